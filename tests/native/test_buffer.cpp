// SPDX-License-Identifier: Apache-2.0
#include "core/buffer.h"
#include "support.h"

namespace mixgrad::tests {
namespace {

struct Release {
  void operator()(Buffer* buffer) const noexcept { buffer->release(); }
};
using BufferRef = std::unique_ptr<Buffer, Release>;

BufferRef allocate(std::size_t bytes) { return BufferRef(Buffer::allocate(bytes)); }

/// Over a vector; `released` counts how often its owner was let go.
BufferRef borrow(std::vector<char>& memory, int& released) {
  return BufferRef(Buffer::borrow(memory.data(), memory.size(), &released,
                                  [](void* owner) noexcept { ++*static_cast<int*>(owner); }));
}

/// The mutation check, until the end of the scope.
class Checking {
 public:
  explicit Checking(MutationCheck check) noexcept { mutation_check = check; }
  ~Checking() { mutation_check = before_; }
  Checking(const Checking&) = delete;
  Checking& operator=(const Checking&) = delete;

 private:
  MutationCheck before_ = mutation_check;
};

TEST_SUITE_BEGIN("buffer");

TEST_CASE_FIXTURE(NoLeaks, "counters follow a buffer's life") {
  const Counters before = counters;
  BufferRef buffer = allocate(100);
  CHECK(buffer->bytes == 100);
  CHECK_FALSE(buffer->foreign());
  CHECK(counters.buffers == before.buffers + 1);
  CHECK(counters.buffer_bytes == before.buffer_bytes + 100);
  buffer.reset();
  CHECK(counters.buffers == before.buffers);
  CHECK(counters.buffer_bytes == before.buffer_bytes);
  CHECK(counters.allocated_bytes == before.allocated_bytes + 100);
}

TEST_CASE_FIXTURE(NoLeaks, "a buffer lives as long as its last reference") {
  const BufferRef first = allocate(8);
  first->retain();
  BufferRef second(first.get());
  CHECK(first->references == 2);
  second.reset();
  CHECK(first->references == 1);
}

TEST_CASE_FIXTURE(NoLeaks, "data is aligned as NumPy aligns its own") {
  for (const std::size_t bytes : {0u, 1u, 100u, 5000u, 100'000u, 3'000'000u}) {
    const BufferRef buffer = allocate(bytes);
    CHECK(reinterpret_cast<std::uintptr_t>(buffer->data) % 16 == 0);
  }
}

#ifndef MIXGRAD_NO_POOLS
std::uintptr_t address(const BufferRef& buffer) { return reinterpret_cast<std::uintptr_t>(buffer.get()); }
std::uintptr_t address_of_freed(std::size_t bytes) { return address(allocate(bytes)); }

TEST_CASE_FIXTURE(NoLeaks, "pools give the block that was freed last, to sizes of its class only") {
  const auto small = address_of_freed(100);
  CHECK(address_of_freed(97) == small);
  const BufferRef other_class = allocate(200);
  CHECK(address(other_class) != small);
  const auto large = address_of_freed(1'000'000);
  CHECK(address_of_freed(990'000) == large);
}

TEST_CASE_FIXTURE(NoLeaks, "a burst does not stay in the pool") {
  const pool::FreeList& list = pool::lists[(64 + 500 + pool::kGranule - 1) / pool::kGranule];
  {
    std::vector<BufferRef> burst;
    for (std::size_t i = 0; i < pool::kKept + 100; ++i) burst.push_back(allocate(500));
    CHECK(list.length == 0);
  }
  CHECK(list.length == pool::kKept);
  const BufferRef one = allocate(500);
  CHECK(list.length == pool::kKept - 1);
}
#endif

TEST_CASE_FIXTURE(NoLeaks, "borrowed memory releases its owner exactly once") {
  std::vector<char> memory(40);
  const std::int64_t bytes = counters.buffer_bytes;
  int released = 0;
  {
    const BufferRef buffer = borrow(memory, released);
    CHECK(buffer->foreign());
    CHECK(buffer->data == memory.data());
    CHECK(counters.buffer_bytes == bytes);
    buffer->retain();
    const BufferRef second(buffer.get());
    CHECK(released == 0);
  }
  CHECK(released == 1);
}

TEST_CASE_FIXTURE(NoLeaks, "only memory that others can write into is watched") {
  std::vector<char> memory(40);
  int released = 0;
  const BufferRef own = allocate(40), foreign = borrow(memory, released), locked = borrow(memory, released);
  locked->locked = true;
  for (Buffer* buffer : {own.get(), foreign.get(), locked.get()}) buffer->watch();
  CHECK(own->watched == MutationCheck::off);
  CHECK(foreign->watched == MutationCheck::sampled);
  CHECK(locked->watched == MutationCheck::off);
}

TEST_CASE_FIXTURE(NoLeaks, "the checksum is compared once per backward pass") {
  std::vector<char> memory(1000);
  int released = 0;
  const BufferRef buffer = borrow(memory, released);
  buffer->watch();
  CHECK(buffer->unchanged(1));
  memory[999] = 1;
  CHECK(buffer->unchanged(1));
  CHECK_FALSE(buffer->unchanged(2));
  CHECK_FALSE(buffer->unchanged(2));
  memory[999] = 0;
  CHECK(buffer->unchanged(3));
}

TEST_CASE_FIXTURE(NoLeaks, "what is watched stays watched as it began") {
  std::vector<char> memory(1000);
  int released = 0;
  const BufferRef buffer = borrow(memory, released);
  buffer->watch();
  memory[0] = 1;
  buffer->watch();
  CHECK_FALSE(buffer->unchanged(1));
}

struct Mutation {
  const char* what;
  MutationCheck check;
  std::size_t first, step;
  bool unchanged;
};

TEST_CASE_FIXTURE(NoLeaks, "which changes of large memory are seen") {
  constexpr std::size_t bytes = 64 * 4096 + 100;
  const Mutation mutations[] = {
      {"nothing", MutationCheck::full, bytes, bytes, true},
      {"the first element, sampled", MutationCheck::sampled, 0, bytes, false},
      {"the last element, sampled", MutationCheck::sampled, bytes - 1, bytes, false},
      {"every element, sampled", MutationCheck::sampled, 0, 1, false},
      {"a column, sampled", MutationCheck::sampled, 2048, 4096, false},
      {"one element in the middle, sampled", MutationCheck::sampled, 10 * 4096, bytes, true},
      {"one element in the middle, full", MutationCheck::full, 10 * 4096, bytes, false},
      {"every element, off", MutationCheck::off, 0, 1, true},
  };
  for (const Mutation& mutation : mutations) {
    INFO(std::string(mutation.what));
    const Checking checking(mutation.check);
    std::vector<char> memory(bytes);
    int released = 0;
    const BufferRef buffer = borrow(memory, released);
    buffer->watch();
    for (std::size_t i = mutation.first; i < bytes; i += mutation.step) memory[i] = 1;
    CHECK(buffer->unchanged(1) == mutation.unchanged);
  }
}

TEST_SUITE_END();

}  // namespace
}  // namespace mixgrad::tests
