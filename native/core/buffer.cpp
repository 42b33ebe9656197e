// SPDX-License-Identifier: Apache-2.0
#include "buffer.h"

#include <bit>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <new>

#include "observe.h"

namespace mixgrad::core {

Counters counters{};
MutationCheck mutation_check = MutationCheck::sampled;

#ifndef MIXGRAD_NO_POOLS
namespace pool {
FreeList lists[kClasses + 1];
}
#endif

namespace {

// NumPy aligns its data to 16 bytes at least; a header of 64 keeps the data on a cache line of its own.
constexpr std::size_t kHeader = 64;
static_assert(sizeof(Buffer) <= kHeader);

constexpr std::size_t kPage = 4096;
constexpr std::size_t kLine = 64;

/// Large blocks that were freed last, kept for the next of their size: giving them back to the system and getting them
/// again costs more than most loops over them.
namespace large {

#ifdef MIXGRAD_NO_POOLS

void* allocate(std::size_t bytes) { return pool::allocate(bytes); }
void release(void* block, std::size_t bytes) noexcept { pool::release(block, bytes); }

#else

constexpr std::size_t kSmallest = std::size_t{1} << 16;
constexpr std::size_t kLargest = std::size_t{1} << 25;
constexpr std::size_t kKept = std::size_t{1} << 26;

struct Block {
  void* start;
  std::size_t bytes;
};
Block blocks[16];
std::size_t count = 0, total = 0;

/// Sizes in steps of an eighth, so that nearly equal ones share blocks. Pages that nobody touches take no memory.
std::size_t rounded(std::size_t bytes) noexcept {
  const std::size_t step = std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
}

void remove(std::size_t at) noexcept {
  total -= blocks[at].bytes;
  std::memmove(blocks + at, blocks + at + 1, (count - at - 1) * sizeof(Block));
  --count;
}

void* allocate(std::size_t bytes) {
  if (bytes < kSmallest || bytes > kLargest) return pool::allocate(bytes);
  const std::size_t size = rounded(bytes);
  for (std::size_t i = count; i-- > 0;) {
    if (blocks[i].bytes != size) continue;
    void* block = blocks[i].start;
    remove(i);
    return block;
  }
  return pool::allocate(size);
}

void release(void* block, std::size_t bytes) noexcept {
  if (bytes < kSmallest || bytes > kLargest) return pool::release(block, bytes);
  const std::size_t size = rounded(bytes);
  while (count > 0 && (count == std::size(blocks) || total + size > kKept)) {
    void* oldest = blocks[0].start;
    const std::size_t its = blocks[0].bytes;
    remove(0);
    pool::release(oldest, its);
  }
  blocks[count++] = {block, size};
  total += size;
}

#endif

}  // namespace large

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
  void* block = large::allocate(kHeader + bytes);
  auto* buffer = ::new (block) Buffer{};
  buffer->references = 1;
  buffer->bytes = bytes;
  buffer->data = static_cast<char*>(block) + kHeader;
  ++counters.buffers;
  counters.buffer_bytes += static_cast<std::int64_t>(bytes);
  counters.allocated_bytes += static_cast<std::int64_t>(bytes);
  if (observe::looking & observe::kBuffers) [[unlikely]]
    observe::born(buffer);
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
  if (observe::looking & observe::kBuffers) [[unlikely]]
    observe::born(buffer);
  return buffer;
}

void Buffer::watch() noexcept {
  if (!exposed() || watched != MutationCheck::off || mutation_check == MutationCheck::off) return;
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
  if (observe::looking & observe::kBuffers) [[unlikely]]
    observe::died(this);
  if (release_owner) {
    auto* const releaser = release_owner;
    void* const what = owner;
    pool::release(this, kHeader);
    releaser(what);
    return;
  }
  counters.buffer_bytes -= static_cast<std::int64_t>(bytes);
  large::release(this, kHeader + bytes);
}

}  // namespace mixgrad::core
