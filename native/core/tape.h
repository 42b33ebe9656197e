// SPDX-License-Identifier: Apache-2.0
//
// The tape: one per thread, entries of both languages in one list. Windows are intervals of it; positions are never
// reused, storage is in chunks that never move, and an entry lives as long as a window that depends on it.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "python.h"
#include "value.h"

namespace mixgrad::core {

struct Op;

/// Where in the user's program an op was called: a code object and an offset, never a frame.
struct Location {
  PyObject* code = nullptr;
  int offset = 0;
  static Location here() noexcept;
  /// Frames of files in this folder are the package's own, and passed over.
  static void set_package_folder(const std::string& folder);
};

/// (file, line), or None.
Ref location_tuple(const Location& location);

/// One recorded operation. An op with several outputs takes as many consecutive positions: the first holds the
/// operation, the others (no op, `lead` set) their output only.
struct Entry {
  const Op* op;  ///< null: an identity (a watched source), or a further output
  Mask windows;  ///< the windows that depend on it; 0: free
  Value* output;
  Value** inputs;  ///< to `inline_inputs`, or a block of its own
  Value* inline_inputs[2];
  PyObject* attributes;
  PyObject* overrides;  ///< in force when it was recorded
  Location location;
  std::uint32_t n_inputs;
  std::uint32_t n_outputs;
  std::uint32_t lead;         ///< of a further output: how many positions before it the operation lies
  std::int16_t watcher;       ///< of an identity: the bit of the window whose source it is
  std::uint32_t nanoseconds;  ///< that the forward took, while a profile looked on
  std::uint32_t saved;        ///< bits of the inputs whose data is kept (bit 30: all from 30 on); bit 31: the outputs'
};

inline constexpr std::uint32_t kSavedOutput = 1u << 31;
inline constexpr std::uint32_t kSavedAll = 0xFFFFFFFFu;
constexpr std::uint32_t saved_bit(std::size_t input) noexcept { return 1u << (input < 30 ? input : 30); }

class Tape {
 public:
  /// This thread's tape.
  static Tape& current();
  /// Whether the value is being recorded on the tape of a thread other than this one.
  bool recorded_elsewhere(const Value& value) const noexcept;

  /// A tape belongs to its thread and to its windows, which may be freed from another thread later.
  void retain() noexcept { owners_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept {
    if (owners_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

  std::uint32_t id() const noexcept { return id_; }
  Position next() const noexcept { return next_; }

  /// The windows that `value` depends on and that are recording now.
  Mask live(const Value& value) const noexcept {
    if (value.windows == 0) return 0;
    Mask mask = value.windows & recording_;
    if (mask == 0) return 0;
    if (value.tape != id_) [[unlikely]]
      return 0;
    if (value.position < newest_start_) [[unlikely]]
      return live_slow(value.position, mask);
    return mask;
  }

  /// Appends `n_outputs` positions; the entry of the first is returned, blank but for its counts.
  Entry& push(Mask windows, std::uint32_t n_outputs, std::uint32_t n_inputs);
  Entry* at(Position position) noexcept;
  /// Hands the entry Python objects of its own (either may be null), and the place in the user's program.
  void give_objects(Position position, PyObject* attributes, PyObject* overrides) noexcept;

  /// Opens a window: a bit, from the next position on. Throws when all are in use.
  int open_window();
  /// Ends recording for the window; its entries stay.
  void close_window(int bit) noexcept;
  void pause(int bit) noexcept { recording_ &= ~(Mask{1} << bit); }
  void resume(int bit) noexcept { recording_ |= Mask{1} << bit; }
  /// Pauses every other window that records; returns which, for `resume_all`.
  Mask pause_all_but(int bit) noexcept {
    const Mask others = recording_ & ~(Mask{1} << bit);
    recording_ &= ~others;
    return others;
  }
  Mask pause_all() noexcept { return std::exchange(recording_, 0); }
  void resume_all(Mask paused) noexcept { recording_ |= paused & open_; }
  /// Whether a greedy window records what uses `value`: whatever was recorded at any time.
  Mask greedy(const Value& value) const noexcept {
    return value.position >= 0 && value.tape == id_ ? greedy_ & recording_ : 0;
  }
  bool recording(int bit) const noexcept { return (recording_ >> bit & 1) != 0; }
  /// Takes the window off one operation's entries: cheaper than `drop`, which also looks for chunks to free.
  void forget(int bit, Position position, std::uint32_t n_outputs) noexcept;
  /// Takes the window off the entries in [start, end) and frees those that no other window depends on.
  void drop(int bit, Position start, Position end) noexcept;

  /// Visits the Python objects of the entries in [start, end) that `windows` alone depend on.
  int for_each_object(Position start, Position end, Mask windows, visitproc visit, void* arg);

  Mask recording() const noexcept { return recording_; }
  /// Backward passes that are under way: what they call is theirs.
  int walks = 0;
  /// Windows that record every op on a value that was ever recorded (a checkpoint's): their bits.
  bool any_greedy() const noexcept { return greedy_ != 0; }
  void set_greedy(int bit, bool on) noexcept { greedy_ = on ? greedy_ | Mask{1} << bit : greedy_ & ~(Mask{1} << bit); }

  static constexpr int kChunkShift = 8;
  static constexpr Position kChunkSize = Position{1} << kChunkShift;

 private:
  struct Chunk {
    Entry entries[kChunkSize];
    std::int32_t live = 0;
    std::int32_t objects = 0;  ///< entries with attributes or overrides of their own
  };

  Tape();
  ~Tape();
  Mask live_slow(Position position, Mask mask) const noexcept;
  void find_newest_start() noexcept;
  void clear(Entry& entry, Chunk& chunk) noexcept;
  Chunk* chunk_for_push();

  std::atomic<std::int32_t> owners_{1};
  std::uint32_t id_;
  Mask open_ = 0;
  Mask recording_ = 0;
  Mask greedy_ = 0;
  Position newest_start_ = 0;
  Position next_ = 0;
  Position first_chunk_ = 0;  ///< index of chunks_.front()
  std::deque<std::unique_ptr<Chunk>> chunks_;
  std::unique_ptr<Chunk> spare_;
  Position starts_[64] = {};
};

/// Records nothing on the tape for its lifetime.
class PausedTape {
 public:
  explicit PausedTape(Tape& tape) noexcept : tape_(tape), paused_(tape.pause_all()) {}
  ~PausedTape() { tape_.resume_all(paused_); }
  PausedTape(const PausedTape&) = delete;
  PausedTape& operator=(const PausedTape&) = delete;

 private:
  Tape& tape_;
  Mask paused_;
};

/// Fills an entry's references: inputs whose bit is in `saved` keep their data.
void fill(Entry& entry, const Op* op, std::span<Value* const> inputs, std::uint32_t saved);

}  // namespace mixgrad::core
