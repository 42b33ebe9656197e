// SPDX-License-Identifier: Apache-2.0
//
// Reference-counted memory, and the pool that small objects come from. Counts and pools are touched with the GIL held.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace mixgrad::core {

/// Blocks of up to 2 KiB from free lists by size; larger ones from the system. Compiled out under the sanitizers.
namespace pool {
void* allocate(std::size_t bytes);
void release(void* block, std::size_t bytes) noexcept;
}  // namespace pool

/// How users' memory that the tape shares is watched for changes between recording and gradient.
enum class MutationCheck : std::uint8_t { off, sampled, full };

/// Memory that values view: the core's own, or borrowed from an owner that is released with it.
struct Buffer {
  std::int32_t references;
  MutationCheck watched;
  bool changed;
  std::uint32_t verified;  ///< the backward pass that compared the checksum last
  std::size_t bytes;
  char* data;
  void* owner;
  void (*release_owner)(void*) noexcept;
  std::uint64_t checksum;

  static Buffer* allocate(std::size_t bytes);
  static Buffer* borrow(char* data, std::size_t bytes, void* owner, void (*release_owner)(void*) noexcept);
  bool foreign() const noexcept { return release_owner != nullptr; }
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
};
extern Counters counters;

}  // namespace mixgrad::core
