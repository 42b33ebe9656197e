// SPDX-License-Identifier: Apache-2.0
#include "observe.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <unordered_map>
#include <utility>

#include "dispatch.h"

namespace mixgrad::core::observe {

std::uint8_t looking = 0;

namespace {

// About 100 MB: a profile is of minutes, not of days.
constexpr std::size_t kMostEvents = 1'000'000;

int profiles = 0, accounts = 0;
std::vector<Event> events;
std::int64_t lost = 0;
std::int64_t epoch = 0;
thread_local Scope* innermost = nullptr;
thread_local std::uint32_t last_duration = 0;

struct Site {
  const Op* op;
  What what;
  By by;
  Location where;
  const Op* kept_by;
  By keeper;
};
std::unordered_map<const Buffer*, Site> account;

std::int64_t now() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Location copy(const Location& location) noexcept { return {Py_XNewRef(location.code), location.offset}; }

void forget_events() noexcept {
  std::vector<Event> old;
  old.swap(events);
  for (const Event& event : old) Py_XDECREF(event.where.code);
  lost = 0;
}

}  // namespace

const char* to_string(By by) noexcept {
  static constexpr const char* names[] = {"native", "python", "override"};
  return names[static_cast<int>(by)];
}

void Scope::open(const Op& op, What what, const Location* where) noexcept {
  active_ = true;
  op_ = &op;
  what_ = what;
  outer_ = innermost;
  // What runs inside a gradient was caused by the line that the gradient belongs to.
  where_ = where ? copy(*where) : outer_ ? copy(outer_->where_) : Location::here();
  innermost = this;
  bytes_ = counters.allocated_bytes;
  start_ = now();
}

void Scope::close() noexcept {
  const std::int64_t duration = now() - start_, bytes = counters.allocated_bytes - bytes_;
  innermost = outer_;
  if (outer_) {
    outer_->inner_ += duration;
    outer_->inner_bytes_ += bytes;
  }
  if (what_ == What::forward) last_duration = static_cast<std::uint32_t>(std::min<std::int64_t>(duration, UINT32_MAX));
  if (looking & kProfile) {
    if (events.size() < kMostEvents) {
      try {
        events.push_back({op_, what_, by_, where_, start_ - epoch, duration, duration - inner_,
                          std::max(bytes - inner_bytes_, made_), PyThread_get_thread_ident()});
        return;
      } catch (const std::bad_alloc&) {
      }
    }
    ++lost;
  }
  Py_XDECREF(where_.code);
}

void start(std::uint8_t what) noexcept {
  if ((what & kProfile) && profiles++ == 0) {
    forget_events();
    epoch = now();
  }
  if (what & kBuffers) ++accounts;
  looking |= what;
}

void stop(std::uint8_t what) noexcept {
  if ((what & kProfile) && profiles > 0 && --profiles == 0) looking &= static_cast<std::uint8_t>(~kProfile);
  if ((what & kBuffers) && accounts > 0 && --accounts == 0) {
    looking &= static_cast<std::uint8_t>(~kBuffers);
    std::unordered_map<const Buffer*, Site> old;
    old.swap(account);
    for (const auto& [buffer, site] : old) Py_XDECREF(site.where.code);
  }
}

std::vector<Event> take_events() noexcept { return std::exchange(events, {}); }
std::int64_t take_lost() noexcept { return std::exchange(lost, 0); }
std::uint32_t last_forward() noexcept { return (looking & kProfile) ? last_duration : 0; }

void born(const Buffer* buffer) noexcept {
  const Scope* scope = innermost;
  // The outermost gradient is what a user knows; what it calls is its own affair.
  for (const Scope* outer = scope; outer; outer = outer->outer_)
    if (outer->what_ == What::gradient) scope = outer;
  Site site{};
  if (scope) {
    site = {scope->op_, scope->what_, scope->by_, copy(scope->where_), nullptr, By::native};
  } else {
    site.where = Location::here();
  }
  try {
    account.insert_or_assign(buffer, site);
  } catch (const std::bad_alloc&) {
    Py_XDECREF(site.where.code);
  }
}

void died(const Buffer* buffer) noexcept {
  const auto found = account.find(buffer);
  if (found == account.end()) return;
  PyObject* code = found->second.where.code;
  account.erase(found);
  Py_XDECREF(code);
}

std::vector<Live> live_buffers() {
  std::vector<Live> all;
  all.reserve(account.size());
  for (const auto& [buffer, site] : account)
    all.push_back({site.op, site.what, site.by, site.where.code, site.where.offset,
                   static_cast<std::int64_t>(buffer->bytes), site.kept_by, site.keeper});
  return all;
}

namespace {

std::int64_t holders(const Value& value) noexcept {
  return static_cast<std::int64_t>(value.references) + value.uses + (value.buffer ? value.buffer->references : 0);
}

template <class Visit>
void for_each_given(const Call& call, Visit&& visit) {
  for (const Value* input : call.inputs) visit(*input);
  for (const Value* output : call.outputs) visit(*output);
  for (const ValueRef& g : call.upstream) visit(*g);
}

}  // namespace

Keeps::Keeps(const Call& call) noexcept {
  if (!(looking & kBuffers)) [[likely]]
    return;
  try {
    for_each_given(call, [this](const Value& value) { before_.push_back(holders(value)); });
  } catch (const std::bad_alloc&) {
    before_.clear();
  }
}

void Keeps::check(const Call& call, By by) noexcept {
  if (before_.empty()) return;
  std::size_t i = 0;
  for_each_given(call, [&](const Value& value) {
    const std::int64_t before = before_[i++];
    std::int64_t expected = before;
    // A result may be what was given, or a view of it.
    for (const ValueRef& result : call.results) {
      if (!result) continue;
      if (result.get() == &value || result->buffer == value.buffer) ++expected;
    }
    if (holders(value) <= expected) return;
    if (const auto found = account.find(value.buffer); found != account.end()) {
      found->second.kept_by = call.op;
      found->second.keeper = by;
    }
  });
}

}  // namespace mixgrad::core::observe
