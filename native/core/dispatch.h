// SPDX-License-Identifier: Apache-2.0
//
// The dispatcher: the only place that chooses an implementation, and the way every op is run and recorded.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "observe.h"
#include "registry.h"
#include "tape.h"

namespace mixgrad::core {

/// Values of a call that are few: no heap for up to four.
template <class T, std::size_t N = 4>
class Few {
 public:
  explicit Few(std::size_t n = 0) { resize(n); }
  void resize(std::size_t n) {
    if (n > N) many_.resize(n);
    size_ = n;
  }
  std::size_t size() const noexcept { return size_; }
  T* data() noexcept { return size_ > N ? many_.data() : few_; }
  const T* data() const noexcept { return size_ > N ? many_.data() : few_; }
  T& operator[](std::size_t i) noexcept { return data()[i]; }
  const T& operator[](std::size_t i) const noexcept { return data()[i]; }
  T* begin() noexcept { return data(); }
  T* end() noexcept { return data() + size_; }

 private:
  std::size_t size_ = 0;
  T few_[N]{};
  std::vector<T> many_;
};

}  // namespace mixgrad::core

/// What an implementation is called with. A gradient's call reads the entry; a forward's has inputs only.
struct mixgrad_call {
  const mixgrad::core::Op* op = nullptr;
  const mixgrad::core::Entry* entry = nullptr;  ///< null for a forward
  std::span<mixgrad::core::Value* const> inputs;
  std::uint32_t saved = mixgrad::core::kSavedAll;
  std::span<mixgrad::core::Value* const> outputs;
  std::span<mixgrad::core::ValueRef> upstream;
  std::span<mixgrad::core::ValueRef> results;
  std::span<const std::uint8_t> needs;  ///< per input
  PyObject* attributes = nullptr;       ///< tuple of values in the op's order
  int argument = 0;                     ///< of an element-wise composition
  bool recorded = false;
  PyObject* below = nullptr;                  ///< an override record: those up to it have had their turn
  std::vector<mixgrad::core::ValueRef> kept;  ///< what attributes handed out point to
  std::vector<std::vector<std::int64_t>> kept_integers;

  bool needs_gradient(std::size_t input) const noexcept { return input < needs.size() && needs[input] != 0; }
  bool is_saved(std::size_t input) const noexcept { return (saved & mixgrad::core::saved_bit(input)) != 0; }
};

namespace mixgrad::core {

using Call = mixgrad_call;

/// What an op gave: values of differentiable dtype, or anything else as a Python object.
struct Results {
  Few<ValueRef, 1> values;
  Ref plain;
  bool multiple = false;
};

/// Runs the forward, and records it when an input depends on a window that is recording.
/// `inputs` may hold Python numbers (weak); they are given the result's dtype. `attributes` may be null.
void run(const Op& op, std::span<ValueRef> inputs, PyObject* attributes, Results& results);
/// The hot path of the element-wise ops with one output; null when it declines.
ValueRef run_elementwise(const Op& op, std::span<ValueRef> inputs);
/// Runs the forward for Python: Arrays, or plain objects; a tuple for several outputs.
Ref run_to_python(const Op& op, std::span<ValueRef> inputs, PyObject* attributes);

/// One step of a choice, for `explain`.
struct Candidate {
  std::string language;
  std::string origin;
  std::string verdict;
  bool chosen = false;
};

/// What is to run: an implementation, or an override's function.
struct Choice {
  const Implementation* implementation = nullptr;
  PyObject* override_record = nullptr;  ///< borrowed from the context; see OverrideRecord
  Ref keep;
};

/// Chooses the gradient for a call, by the order of docs/dispatch. Throws MissingGradientError or
/// NotDifferentiableError.
Choice choose_gradient(Call& call, std::vector<Candidate>* why = nullptr);

/// Computes `call.results` (one per input, null: zero) with the chosen implementation, unchecked.
void run_gradient(Call& call, const Choice& choice);
/// Computes them with the implementation in `language`, for op.native and op.python.
void run_gradient(Call& call, Language language);
/// Who is going to run, for messages: "native, mixgrad (ops/math.cpp:12)".
std::string describe(const Choice& choice);

/// Overrides, preferences and what watches forwards, in force: a linked list of tuples in a context variable, looked at
/// only while any exist. Record: (previous, op object or None, language or None, function or None, differentiable, when
/// or None, origin, forward watcher or None).
namespace overrides {
extern std::int64_t active;
extern PyObject* variable;
/// The list in force in this context: borrowed from `keep`; null when there is none.
PyObject* current(Ref& keep);
}  // namespace overrides

/// Whether a fallback to Python, where a native gradient exists but declined, is a FallbackWarning, once per op. They
/// are counted in any case.
extern bool tell_fallbacks;

/// Who runs by this choice.
observe::By by(const Choice& choice) noexcept;

[[noreturn]] void refuse_other_thread(const std::string& op);

}  // namespace mixgrad::core
