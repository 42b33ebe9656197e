// SPDX-License-Identifier: Apache-2.0
#include "buffer.h"

#include <cstdlib>
#include <cstring>
#include <new>

namespace mixgrad::core {

Counters counters{};
MutationCheck mutation_check = MutationCheck::sampled;

namespace pool {

#ifdef MIXGRAD_NO_POOLS

void* allocate(std::size_t bytes) {
  void* block = std::malloc(bytes);
  if (!block) throw std::bad_alloc();
  return block;
}

void release(void* block, std::size_t) noexcept { std::free(block); }

#else

namespace {
constexpr std::size_t kGranule = 32;
constexpr std::size_t kLargest = 2048;
constexpr std::size_t kClasses = kLargest / kGranule;
// Keeps bursts (a long tape that is freed at once) from pinning memory for ever.
constexpr std::size_t kKept = 4096;

struct FreeList {
  void* head = nullptr;
  std::size_t length = 0;
};
FreeList lists[kClasses + 1];

std::size_t size_class(std::size_t bytes) noexcept { return (bytes + kGranule - 1) / kGranule; }
}  // namespace

void* allocate(std::size_t bytes) {
  const std::size_t index = size_class(bytes);
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

void release(void* block, std::size_t bytes) noexcept {
  const std::size_t index = size_class(bytes);
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

namespace {

// NumPy aligns its data to 16 bytes at least; a header of 64 keeps the data on a cache line of its own.
constexpr std::size_t kHeader = 64;
static_assert(sizeof(Buffer) <= kHeader);

constexpr std::size_t kPage = 4096;
constexpr std::size_t kLine = 64;

std::uint64_t mix(std::uint64_t hash, const char* data, std::size_t bytes) noexcept {
  while (bytes >= 8) {
    std::uint64_t word;
    std::memcpy(&word, data, 8);
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
    data += 8;
    bytes -= 8;
  }
  std::uint64_t word = 0;
  std::memcpy(&word, data, bytes);
  return (hash ^ word) * 0x9E3779B97F4A7C15u;
}

std::uint64_t checksum_of(const char* data, std::size_t bytes, MutationCheck check) noexcept {
  std::uint64_t hash = bytes;
  if (check == MutationCheck::full || bytes <= kCopyLimit) return mix(hash, data, bytes);
  std::size_t at = 0;
  for (; at + kPage <= bytes; at += kPage) {
    // A line that moves from page to page sees strided writes too.
    const std::size_t line = (at / kPage * 17 % (kPage / kLine)) * kLine;
    hash = mix(hash, data + at + line, kLine);
  }
  const std::size_t tail = bytes - at < kLine ? bytes - at : kLine;
  if (tail) hash = mix(hash, data + bytes - tail, tail);
  // The first line always: single-element writes mostly go to the beginning.
  return mix(hash, data, kLine);
}

}  // namespace

Buffer* Buffer::allocate(std::size_t bytes) {
  void* block = pool::allocate(kHeader + bytes);
  auto* buffer = ::new (block) Buffer{};
  buffer->references = 1;
  buffer->bytes = bytes;
  buffer->data = static_cast<char*>(block) + kHeader;
  ++counters.buffers;
  counters.buffer_bytes += static_cast<std::int64_t>(bytes);
  return buffer;
}

Buffer* Buffer::borrow(char* data, std::size_t bytes, void* owner, void (*release_owner)(void*) noexcept) {
  auto* buffer = ::new (pool::allocate(kHeader)) Buffer{};
  buffer->references = 1;
  buffer->bytes = bytes;
  buffer->data = data;
  buffer->owner = owner;
  buffer->release_owner = release_owner;
  ++counters.buffers;
  return buffer;
}

void Buffer::watch() noexcept {
  if (!foreign() || watched != MutationCheck::off || mutation_check == MutationCheck::off) return;
  watched = mutation_check;
  checksum = checksum_of(data, bytes, watched);
}

bool Buffer::unchanged(std::uint32_t pass) noexcept {
  if (watched == MutationCheck::off) return true;
  if (verified != pass) {
    verified = pass;
    changed = checksum != checksum_of(data, bytes, watched);
  }
  return !changed;
}

void Buffer::destroy() noexcept {
  --counters.buffers;
  if (release_owner) {
    auto* const releaser = release_owner;
    void* const what = owner;
    pool::release(this, kHeader);
    releaser(what);
    return;
  }
  counters.buffer_bytes -= static_cast<std::int64_t>(bytes);
  pool::release(this, kHeader + bytes);
}

}  // namespace mixgrad::core
