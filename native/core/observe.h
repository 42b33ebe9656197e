// SPDX-License-Identifier: Apache-2.0
//
// What looks on while ops run: the profile, and the account of live buffers. While nothing does, the cost is one flag.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "buffer.h"
#include "registry.h"
#include "tape.h"

namespace mixgrad::core::observe {

inline constexpr std::uint8_t kProfile = 1, kBuffers = 2;
/// Of these two: what looks on now.
extern std::uint8_t looking;

/// Who ran: an implementation's language, or an override.
enum class By : std::uint8_t { native, python, override_function };
const char* to_string(By) noexcept;

/// One forward or gradient that ran while the profile looked on.
struct Event {
  const Op* op;
  What what;
  By by;
  Location where;                     ///< in the user's program: a reference of its own
  std::int64_t start, duration, own;  ///< nanoseconds; `own` is without what ran inside it
  std::int64_t bytes;                 ///< allocated, without what ran inside it; at least the size of what it made
  unsigned long thread;
};

/// Spans one forward or gradient; does nothing while nothing looks on.
class Scope {
 public:
  /// `where` null: where the user's program is now.
  Scope(const Op& op, What what, const Location* where = nullptr) noexcept {
    if (looking != 0) [[unlikely]]
      open(op, what, where);
  }
  ~Scope() {
    if (active_) [[unlikely]]
      close();
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  void ran(By by) noexcept { by_ = by; }
  /// What was made: counted as allocated where somebody else, as NumPy, allocated it.
  void made(const ValueRef& value) noexcept {
    if (active_ && value) [[unlikely]]
      made_ += static_cast<std::int64_t>(value->bytes());
  }

 private:
  friend void born(const Buffer*) noexcept;
  void open(const Op& op, What what, const Location* where) noexcept;
  void close() noexcept;

  bool active_ = false;
  By by_ = By::native;
  What what_{};
  const Op* op_ = nullptr;
  Location where_{};
  Scope* outer_ = nullptr;
  std::int64_t start_ = 0, inner_ = 0, bytes_ = 0, inner_bytes_ = 0, made_ = 0;
};

/// Starts and ends looking on, each as often as it is called. The profile begins anew with its first.
void start(std::uint8_t what) noexcept;
void stop(std::uint8_t what) noexcept;
/// The events since the last call.
std::vector<Event> take_events() noexcept;
/// How many were not kept because there were too many; back to zero.
std::int64_t take_lost() noexcept;
/// Nanoseconds of the forward that ended last in this thread, 0 when the profile does not look on.
std::uint32_t last_forward() noexcept;

/// A buffer that lives, and where it comes from.
struct Live {
  const Op* op;  ///< null: made outside of any op
  What what;
  By by;
  PyObject* code;  ///< owned by the account
  int offset;
  std::int64_t bytes;
  const Op* kept_by;  ///< whose gradient has kept it beyond its call; null: none
  By keeper;
};
std::vector<Live> live_buffers();
void born(const Buffer* buffer) noexcept;
void died(const Buffer* buffer) noexcept;
/// What a gradient was given and has more holders of than before is kept by it.
class Keeps {
 public:
  explicit Keeps(const mixgrad_call& call) noexcept;
  void check(const mixgrad_call& call, By by) noexcept;

 private:
  std::vector<std::int64_t> before_;
};

}  // namespace mixgrad::core::observe
