// SPDX-License-Identifier: Apache-2.0
//
// The worker threads of large loops: started when first needed, never joined by a fork.
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels.h"

namespace mixgrad::core::kernels {

namespace {

using Body = void (*)(std::int64_t, std::int64_t, void*);

int default_thread_count() noexcept {
  for (const char* name : {"MIXGRAD_NUM_THREADS", "OMP_NUM_THREADS"}) {
    const char* text = std::getenv(name);
    const int given = text ? std::atoi(text) : 0;
    if (given > 0) return given;
  }
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

std::atomic<int> threads{0};

class Pool {
 public:
  /// Runs the body in pieces of `grain`; the caller takes its share. False when another thread has the pool.
  bool run(std::int64_t n, std::int64_t grain, Body body, void* data) {
    std::unique_lock busy(busy_, std::try_to_lock);
    if (!busy) return false;
    {
      std::unique_lock lock(mutex_);
      start_workers(lock);
      body_ = body;
      data_ = data;
      n_ = n;
      grain_ = grain;
      next_ = 0;
      working_ = static_cast<int>(workers_.size());
      ++generation_;
    }
    wake_.notify_all();
    take_pieces();
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return working_ == 0; });
    return true;
  }

 private:
  void start_workers(std::unique_lock<std::mutex>&) {
    const auto wanted = static_cast<std::size_t>(thread_count() - 1);
    while (workers_.size() < wanted) {
      workers_.emplace_back([this, seen = generation_]() mutable {
        for (;;) {
          {
            std::unique_lock lock(mutex_);
            wake_.wait(lock, [&] { return generation_ != seen; });
            seen = generation_;
          }
          take_pieces();
          std::lock_guard lock(mutex_);
          if (--working_ == 0) done_.notify_one();
        }
      });
      workers_.back().detach();
    }
  }

  void take_pieces() {
    for (;;) {
      const std::int64_t begin = next_.fetch_add(grain_, std::memory_order_relaxed);
      if (begin >= n_) return;
      body_(begin, std::min(n_, begin + grain_), data_);
    }
  }

  std::mutex busy_, mutex_;
  std::condition_variable wake_, done_;
  std::vector<std::thread> workers_;
  std::uint64_t generation_ = 0;
  Body body_ = nullptr;
  void* data_ = nullptr;
  std::int64_t n_ = 0, grain_ = 1;
  std::atomic<std::int64_t> next_{0};
  int working_ = 0;
};

// Never destroyed: workers may outlive static destruction. A forked child has none of them and makes a pool of its own.
std::atomic<Pool*> pool_{nullptr};

Pool& the_pool() {
  static const bool registered = [] {
    pthread_atfork(nullptr, nullptr, [] { pool_.store(nullptr); });
    return true;
  }();
  (void)registered;
  Pool* pool = pool_.load();
  if (!pool) {
    auto* made = new Pool;
    if (pool_.compare_exchange_strong(pool, made)) return *made;
    delete made;
  }
  return *pool;
}

}  // namespace

int thread_count() noexcept {
  int n = threads.load(std::memory_order_relaxed);
  if (n == 0) {
    n = default_thread_count();
    threads.store(n, std::memory_order_relaxed);
  }
  return n;
}

void set_thread_count(int n) noexcept { threads.store(std::clamp(n, 1, 1024), std::memory_order_relaxed); }

void parallel_for(std::int64_t n, std::int64_t grain, Body body, void* data) {
  if (n <= 0) return;
  if (n <= grain) return body(0, n, data);
  const ReleasedGil released;
  if (thread_count() == 1) return body(0, n, data);
  // At least a piece for each thread, and not so many that handing them out costs.
  const std::int64_t piece = std::max(grain, (n + 4 * thread_count() - 1) / (4 * thread_count()));
  if (!the_pool().run(n, piece, body, data)) body(0, n, data);
}

}  // namespace mixgrad::core::kernels
