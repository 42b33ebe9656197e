// SPDX-License-Identifier: Apache-2.0
//
// Reference-counted memory, and the pool that small objects come from. Counts and pools are touched with the GIL held.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace mixgrad::core {

/// Blocks of up to 2 KiB from free lists by size; larger ones from the system. Compiled out under the sanitizers.
namespace pool {

#ifdef MIXGRAD_NO_POOLS

inline void* allocate(std::size_t bytes) {
  void* block = std::malloc(bytes ? bytes : 1);
  if (!block) throw std::bad_alloc();
  return block;
}

inline void release(void* block, std::size_t) noexcept { std::free(block); }

#else

inline constexpr std::size_t kGranule = 32;
inline constexpr std::size_t kLargest = 2048;
inline constexpr std::size_t kClasses = kLargest / kGranule;
// Keeps bursts (a long tape that is freed at once) from pinning memory for ever.
inline constexpr std::size_t kKept = 4096;

struct FreeList {
  void* head = nullptr;
  std::size_t length = 0;
};
extern FreeList lists[kClasses + 1];

inline void* allocate(std::size_t bytes) {
  const std::size_t index = (bytes + kGranule - 1) / kGranule;
  if (index <= kClasses) {
    FreeList& list = lists[index];
    if (void* block = list.head) {
      std::memcpy(&list.head, block, sizeof(void*));
      --list.length;
      return block;
    }
    bytes = index * kGranule;
  }
  void* block = std::malloc(bytes ? bytes : kGranule);
  if (!block) throw std::bad_alloc();
  return block;
}

inline void release(void* block, std::size_t bytes) noexcept {
  const std::size_t index = (bytes + kGranule - 1) / kGranule;
  if (index <= kClasses && index > 0) {
    FreeList& list = lists[index];
    if (list.length < kKept) {
      std::memcpy(block, &list.head, sizeof(void*));
      list.head = block;
      ++list.length;
      return;
    }
  }
  std::free(block);
}

#endif

}  // namespace pool

/// How users' memory that the tape shares is watched for changes between recording and gradient.
enum class MutationCheck : std::uint8_t { off, sampled, full };

/// Memory that values view: the core's own, or borrowed from an owner that is released with it.
struct Buffer {
  std::int32_t references;
  MutationCheck watched;
  bool changed;
  bool locked;             ///< foreign memory that nobody else can write into
  std::uint32_t verified;  ///< the backward pass that compared the checksum last
  std::size_t bytes;
  char* data;
  void* owner;
  void (*release_owner)(void*) noexcept;
  std::uint64_t checksum;

  static Buffer* allocate(std::size_t bytes);
  static Buffer* borrow(char* data, std::size_t bytes, void* owner, void (*release_owner)(void*) noexcept);
  bool foreign() const noexcept { return release_owner != nullptr; }
  /// Whether somebody else may change it between recording and gradient.
  bool exposed() const noexcept { return foreign() && !locked; }
  /// Takes the checksum that `unchanged` compares with; once, and only for foreign memory.
  void watch() noexcept;
  /// Whether the memory is as it was when `watch` was called; compared once per backward pass.
  bool unchanged(std::uint32_t pass) noexcept;

  void retain() noexcept { ++references; }
  void release() noexcept {
    if (--references == 0) destroy();
  }

 private:
  void destroy() noexcept;
};

extern MutationCheck mutation_check;

/// Foreign memory up to this size is copied when it is saved; above, it is shared and watched.
inline constexpr std::size_t kCopyLimit = 16 * 1024;

/// Live objects, for mixgrad.debug and the leak tests.
struct Counters {
  std::int64_t buffers, buffer_bytes, values, arrays, entries, windows;
  std::int64_t allocated_bytes;  ///< since the start
};
extern Counters counters;

}  // namespace mixgrad::core
