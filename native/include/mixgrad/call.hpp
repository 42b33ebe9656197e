// SPDX-License-Identifier: Apache-2.0
//
// What a forward or gradient written in C++ is given and returns, and how it is registered.
#ifndef MIXGRAD_CALL_HPP
#define MIXGRAD_CALL_HPP

#include <cxxabi.h>

#include <array>
#include <stdexcept>
#include <typeinfo>

#include "mixgrad/array.hpp"

namespace mixgrad {
inline namespace [[gnu::visibility("hidden")]] v1 {

/// Return this from a forward or gradient to leave the call to the next implementation (Python's).
struct Declined {};
inline constexpr Declined decline{};

namespace detail {
template <class T>
inline constexpr bool is_optional = false;
template <class T>
inline constexpr bool is_optional<std::optional<T>> = true;
}  // namespace detail

/// One call: of a forward, or of a gradient for an operation on the tape.
class Call {
 public:
  explicit Call(mixgrad_call* handle) noexcept : handle_(handle) {}

  mixgrad_call* handle() const noexcept { return handle_; }
  const char* name() const { return api()->call_name(handle_); }
  std::size_t n_inputs() const { return static_cast<std::size_t>(api()->call_n_inputs(handle_)); }
  std::size_t n_outputs() const { return static_cast<std::size_t>(api()->call_n_outputs(handle_)); }

  /// An array argument of the op. An error if its data is not saved; input_shape() and input_dtype() always work.
  Array input(std::size_t i = 0) const {
    return Array::own(detail::checked(api()->call_input(handle_, static_cast<std::int32_t>(i))));
  }
  /// All of them, for a structured binding: `auto [x, y] = op.inputs<2>();`. One that is not saved is an empty Array,
  /// and an error when it is used.
  template <std::size_t N>
  std::array<Array, N> inputs() const {
    require_count(N);
    std::array<Array, N> arrays;
    for (std::size_t i = 0; i < N; ++i)
      if (is_saved(i)) arrays[i] = input(i);
    return arrays;
  }
  std::vector<Array> inputs() const {
    std::vector<Array> arrays(n_inputs());
    for (std::size_t i = 0; i < arrays.size(); ++i)
      if (is_saved(i)) arrays[i] = input(i);
    return arrays;
  }
  /// Whether the data of this input can be read.
  bool is_saved(std::size_t i) const { return input_view(i).data != nullptr; }
  std::span<const std::int64_t> input_shape(std::size_t i = 0) const { return shape_of(input_view(i)); }
  Dtype input_dtype(std::size_t i = 0) const { return static_cast<Dtype>(input_view(i).dtype); }

  /// In a gradient: what the forward gave. An error if the op does not save its output.
  Array output(std::size_t i = 0) const {
    return Array::own(detail::checked(api()->call_output(handle_, static_cast<std::int32_t>(i))));
  }
  std::span<const std::int64_t> output_shape(std::size_t i = 0) const { return shape_of(output_view(i)); }
  Dtype output_dtype(std::size_t i = 0) const { return static_cast<Dtype>(output_view(i).dtype); }
  bool is_output_saved(std::size_t i = 0) const { return output_view(i).data != nullptr; }
  /// In a gradient: the gradient of output i. `g` is that of the first.
  Array upstream(std::size_t i = 0) const {
    return Array::own(detail::checked(api()->call_upstream(handle_, static_cast<std::int32_t>(i))));
  }
  /// In a gradient: whether somebody needs the gradient of input i.
  bool needs_gradient(std::size_t i) const {
    return api()->call_needs_gradient(handle_, static_cast<std::int32_t>(i)) != 0;
  }
  /// In a gradient: whether it is itself being recorded, for a higher-order derivative. It must then be composed of
  /// ops.
  bool is_recorded() const { return api()->call_is_recorded(handle_) != 0; }

  /// The attribute as the table has it, for whatever attribute<T> does not do.
  mixgrad_attribute attribute(const char* name) const {
    mixgrad_attribute attribute;
    detail::checked(api()->call_attribute(handle_, name, &attribute));
    return attribute;
  }
  /// An argument of the op that is no array input, as an integer, a bool, double, std::string, Shape or
  /// std::vector<std::int64_t> (of one integer too), Array, or std::optional of these (None: nullopt). `otherwise`
  /// where it is None or the op has none of this name. The call is declined when it holds anything else.
  template <class T>
  T attribute(const char* name, T otherwise = T()) const {
    const mixgrad_attribute a = attribute(name);
    if (a.kind == MIXGRAD_ATTRIBUTE_MISSING) return otherwise;
    if constexpr (detail::is_optional<T>) {
      if (a.kind == MIXGRAD_ATTRIBUTE_NONE) return std::nullopt;
      return convert<typename T::value_type>(a);
    } else {
      if (a.kind == MIXGRAD_ATTRIBUTE_NONE) return otherwise;
      return convert<T>(a);
    }
  }
  /// Whether the attribute is None, or the op has none of this name.
  bool is_none(const char* name) const {
    const mixgrad_attribute a = attribute(name);
    return a.kind == MIXGRAD_ATTRIBUTE_NONE || a.kind == MIXGRAD_ATTRIBUTE_MISSING;
  }
  /// Whether the attribute is True (or False), and nothing that could stand for it.
  bool is(const char* name, bool value) const {
    const mixgrad_attribute a = attribute(name);
    return a.kind == MIXGRAD_ATTRIBUTE_BOOL && (a.integer != 0) == value;
  }
  std::string attribute(const char* name, const char* otherwise) const {
    return attribute<std::string>(name, std::string(otherwise));
  }
  /// The attribute handed on to another op: `call("index_add", {g}, {op.pass("index")})`.
  Attribute pass(const char* name) const noexcept { return Attribute(name, handle_); }
  /// An axis, several, or all of them (None), of an array with `ndim` axes: one bit per axis. The call is declined when
  /// they do not fit, so that Python's implementation can raise NumPy's own error.
  std::uint64_t axes(const char* name, std::size_t ndim) const {
    const mixgrad_attribute a = attribute(name);
    if (a.kind == MIXGRAD_ATTRIBUTE_NONE || a.kind == MIXGRAD_ATTRIBUTE_MISSING) return Axis().bits(ndim);
    const std::int64_t one[] = {a.integer};
    const std::int64_t* items = a.kind == MIXGRAD_ATTRIBUTE_INT ? one : a.integers;
    const int count = a.kind == MIXGRAD_ATTRIBUTE_INT ? 1 : a.count;
    if (a.kind != MIXGRAD_ATTRIBUTE_INT && a.kind != MIXGRAD_ATTRIBUTE_INTS) throw Decline();
    std::uint64_t bits = 0;
    const auto n = static_cast<std::int64_t>(ndim);
    for (int i = 0; i < count; ++i) {
      if (items[i] < -n || items[i] >= n) throw Decline();
      const std::uint64_t bit = std::uint64_t{1} << (items[i] < 0 ? items[i] + n : items[i]);
      if (bits & bit) throw Decline();
      bits |= bit;
    }
    return bits;
  }
  /// One axis of an array with `ndim` of them, counted from the front; declined when it does not fit.
  std::size_t axis(const char* name, std::size_t ndim) const {
    const mixgrad_attribute a = attribute(name);
    const auto n = static_cast<std::int64_t>(ndim);
    if (a.kind != MIXGRAD_ATTRIBUTE_INT || a.integer < -n || a.integer >= n) throw Decline();
    return static_cast<std::size_t>(a.integer < 0 ? a.integer + n : a.integer);
  }

 private:
  mixgrad_view input_view(std::size_t i) const {
    mixgrad_view view;
    detail::checked(api()->call_input_view(handle_, static_cast<std::int32_t>(i), &view));
    return view;
  }
  mixgrad_view output_view(std::size_t i) const {
    mixgrad_view view;
    detail::checked(api()->call_output_view(handle_, static_cast<std::int32_t>(i), &view));
    return view;
  }
  static std::span<const std::int64_t> shape_of(const mixgrad_view& view) noexcept {
    return {view.shape, static_cast<std::size_t>(view.ndim)};
  }
  void require_count(std::size_t n) const {
    if (n != n_inputs()) [[unlikely]]
      detail::fail(MIXGRAD_ERROR_VALUE, std::string("op '") + name() + "' has " + std::to_string(n_inputs()) +
                                            " inputs; its implementation in C++ asked for inputs<" + std::to_string(n) +
                                            ">()");
  }
  template <class T>
  static T convert(const mixgrad_attribute& a) {
    if constexpr (std::is_same_v<T, bool>) {
      if (a.kind == MIXGRAD_ATTRIBUTE_BOOL) return a.integer != 0;
    } else if constexpr (std::is_integral_v<T>) {
      if (a.kind == MIXGRAD_ATTRIBUTE_INT) return static_cast<T>(a.integer);
    } else if constexpr (std::is_floating_point_v<T>) {
      if (a.kind == MIXGRAD_ATTRIBUTE_FLOAT || a.kind == MIXGRAD_ATTRIBUTE_INT) return static_cast<T>(a.real);
    } else if constexpr (std::is_same_v<T, std::string>) {
      if (a.kind == MIXGRAD_ATTRIBUTE_STRING) return a.string;
    } else if constexpr (std::is_same_v<T, Array>) {
      if (a.kind == MIXGRAD_ATTRIBUTE_ARRAY) {
        api()->array_retain(a.array);
        return Array::own(a.array);
      }
    } else {
      static_assert(std::is_same_v<T, Shape> || std::is_same_v<T, std::vector<std::int64_t>>,
                    "no attribute is of this type");
      if (a.kind == MIXGRAD_ATTRIBUTE_INT) return T(std::initializer_list<std::int64_t>{a.integer});
      if (a.kind == MIXGRAD_ATTRIBUTE_INTS) {
        T items;
        for (int i = 0; i < a.count; ++i) items.push_back(a.integers[i]);
        return items;
      }
    }
    throw Decline();
  }

  mixgrad_call* handle_;
};

/// What an implementation returns: one Array per input (gradients; an empty one is zero) or per output (forwards).
/// `return {g * y, g * x};`, `return out;`, `return decline;`, or a std::vector<Array>.
class Results {
 public:
  Results() noexcept = default;
  Results(Declined) noexcept : declined_(true) {}
  Results(Array a) noexcept : size_(1), few_{std::move(a)} {}
  template <class T>
    requires(std::is_arithmetic_v<T> || ComplexLike<T>)
  Results(const T& number) : Results(Array(number)) {}
  Results(Array a, Array b) noexcept : size_(2), few_{std::move(a), std::move(b)} {}
  Results(Array a, Array b, Array c) noexcept : size_(3), few_{std::move(a), std::move(b), std::move(c)} {}
  Results(Array a, Array b, Array c, Array d) noexcept
      : size_(4), few_{std::move(a), std::move(b), std::move(c), std::move(d)} {}
  Results(Array a, Array b, Array c, Array d, Array e) : Results(move({&a, &b, &c, &d, &e})) {}
  Results(Array a, Array b, Array c, Array d, Array e, Array f) : Results(move({&a, &b, &c, &d, &e, &f})) {}
  /// Any number of them.
  Results(std::vector<Array> arrays) noexcept : size_(arrays.size()), many_(std::move(arrays)) {}

  bool declined() const noexcept { return declined_; }
  std::size_t size() const noexcept { return size_; }
  const Array& operator[](std::size_t i) const noexcept { return many_.empty() ? few_[i] : many_[i]; }

 private:
  static std::vector<Array> move(std::initializer_list<Array*> arrays) {
    std::vector<Array> moved;
    moved.reserve(arrays.size());
    for (Array* array : arrays) moved.push_back(std::move(*array));
    return moved;
  }

  std::size_t size_ = 0;
  bool declined_ = false;
  Array few_[4];
  std::vector<Array> many_;
};

/// Of a gradient: one per input.
using Gradients = Results;

// --- registration ---------------------------------------------------------------------------------------------------

/// What is said at registration besides the name: `Elementwise{"arctan2", real_only, ...}`.
template <std::uint32_t Bits>
struct Flags {
  static constexpr std::uint32_t bits = Bits;
};
/// The expressions hold for real numbers only: complex calls are left to Python.
inline constexpr Flags<MIXGRAD_FLAG_REAL_ONLY> real_only;
/// Of a new op: its gradients may have the output's shape, and are then summed to the input's.
inline constexpr Flags<MIXGRAD_FLAG_BROADCASTS> broadcasts;
/// Of a new op: its forward returns several outputs.
inline constexpr Flags<MIXGRAD_FLAG_MULTIPLE> multiple;
/// Takes the place of an implementation that is registered already.
inline constexpr Flags<MIXGRAD_FLAG_REPLACE> replace;
inline constexpr Flags<0> no_flags;
template <std::uint32_t A, std::uint32_t B>
constexpr Flags<A | B> operator|(Flags<A>, Flags<B>) noexcept {
  return {};
}

namespace detail {
inline mixgrad_registration* first = nullptr;

/// Links the node in front of the list; called by static constructors, where nothing may be thrown.
inline void link(mixgrad_registration& node) noexcept {
  node.next = first;
  first = &node;
}
}  // namespace detail

/// What the translation units of this library have registered: the core reads it once the library is loaded.
inline mixgrad_registration* registrations() noexcept { return detail::first; }

namespace detail {

using ForwardFunction = Results (*)(const Call&);
using GradientFunction = Results (*)(const Call&, const Array&);

/// Turns the exception in flight into an error of the core.
[[gnu::cold, gnu::noinline]] inline mixgrad_status caught(mixgrad_call* call, const char* what) noexcept {
  try {
    const auto describe = [&](const char* message) {
      std::string text = std::string("the native ") + what + " of op '" + table->call_name(call) + "' threw ";
      const std::type_info* type = abi::__cxa_current_exception_type();
      int status = -1;
      char* name = type ? abi::__cxa_demangle(type->name(), nullptr, nullptr, &status) : nullptr;
      text += status == 0 ? name : "an unknown C++ exception";
      __builtin_free(name);
      return message ? text + ": " + message : text;
    };
    try {
      throw;
    } catch (const Error&) {
    } catch (const Decline&) {
      return MIXGRAD_DECLINED;
    } catch (const std::bad_alloc&) {
      table->error_set(MIXGRAD_ERROR_MEMORY, describe(nullptr).c_str());
    } catch (const std::logic_error& error) {
      // Invalid argument, out of range and their kin.
      table->error_set(MIXGRAD_ERROR_VALUE, describe(error.what()).c_str());
    } catch (const std::exception& error) {
      table->error_set(MIXGRAD_ERROR_RUNTIME, describe(error.what()).c_str());
    } catch (...) {
      table->error_set(MIXGRAD_ERROR_RUNTIME, describe(nullptr).c_str());
    }
  } catch (...) {
    // No memory even for the message.
    table->error_set(MIXGRAD_ERROR_MEMORY, "out of memory in a native implementation");
  }
  return MIXGRAD_ERROR;
}

inline mixgrad_status give(mixgrad_call* call, const Results& results) {
  for (std::size_t i = 0; i < results.size(); ++i) {
    const mixgrad_status status = table->call_return(call, static_cast<std::int32_t>(i), results[i].handle());
    if (status != MIXGRAD_OK) return status;
  }
  return MIXGRAD_OK;
}

[[gnu::noinline]] inline mixgrad_status run_forward(mixgrad_call* handle, ForwardFunction function) noexcept {
  try {
    const Results results = function(Call(handle));
    if (results.declined()) return MIXGRAD_DECLINED;
    return give(handle, results);
  } catch (...) {
    return caught(handle, "forward");
  }
}

[[gnu::noinline]] inline mixgrad_status run_gradient(mixgrad_call* handle, GradientFunction function) noexcept {
  try {
    const Call call(handle);
    const Results results = function(call, call.upstream());
    if (results.declined()) return MIXGRAD_DECLINED;
    const std::size_t n = call.n_inputs();
    if (results.size() != n)
      fail(MIXGRAD_ERROR_GRADIENT_COUNT,
           std::string("the native gradient of op '") + call.name() + "' returned " + std::to_string(results.size()) +
               (results.size() == 1 ? " value" : " values") + ", but the op has " + std::to_string(n) +
               (n == 1 ? " input" : " inputs") + "; return one per input (an empty Array for zero)");
    return give(handle, results);
  } catch (...) {
    return caught(handle, "gradient");
  }
}

template <ForwardFunction F>
mixgrad_status forward_entry(mixgrad_call* call) noexcept {
  return run_forward(call, F);
}
template <GradientFunction F>
mixgrad_status gradient_entry(mixgrad_call* call) noexcept {
  return run_gradient(call, F);
}

/// A static object of the macros below.
class Registrar {
 public:
  template <std::uint32_t Bits = 0>
  Registrar(mixgrad_kind kind, const char* op, mixgrad_function function, const char* file, int line,
            Flags<Bits> = no_flags) noexcept {
    node_.struct_size = sizeof node_;
    node_.kind = kind;
    node_.op = op;
    node_.flags = Bits;
    node_.function = function;
    node_.file = file;
    node_.line = line;
    link(node_);
  }
  Registrar(const Registrar&) = delete;
  Registrar& operator=(const Registrar&) = delete;

 private:
  mixgrad_registration node_{};
};

}  // namespace detail

/// A whole op in C++: how it is called in Python, what its docstring says, its forward and its gradient. Registered by
/// being defined, and found in Python as mixgrad.ops.NAME:
///
///     static const NewOp cube_{"cube", "x", "The third power.", saves{"x"},
///                              [](const Call& op) -> Results { auto [x] = op.inputs<1>(); return x * x * x; },
///                              [](const Call& op, const Array& g) -> Gradients {
///                                auto [x] = op.inputs<1>();
///                                return g * 3.0 * square(x);
///                              }};
///
/// The signature is Python's: parameters without a default are array inputs, all others attributes. The gradient is
/// composed of functions on Arrays, so it can be differentiated; one over raw memory is registered by its macro instead
/// (leave the gradient out here).
struct saves {
  const char* words = "inputs output";
};

class NewOp {
 public:
  template <class Forward, class Gradient = std::nullptr_t, std::uint32_t Bits = 0>
  NewOp(const char* name, const char* signature, const char* doc, saves saved, Forward, Gradient = nullptr,
        Flags<Bits> = no_flags, const char* file = __builtin_FILE(), int line = __builtin_LINE()) noexcept {
    fill(op_, MIXGRAD_KIND_OP, name, Bits, nullptr, file, line);
    op_.signature = signature;
    op_.doc = doc;
    op_.saves = saved.words;
    constexpr std::uint32_t replacing = Bits & MIXGRAD_FLAG_REPLACE;
    fill(
        forward_, MIXGRAD_KIND_FORWARD, name, replacing,
        [](mixgrad_call* call) { return detail::run_forward(call, Forward{}); }, file, line);
    if constexpr (!std::is_same_v<Gradient, std::nullptr_t>) {
      fill(
          gradient_, MIXGRAD_KIND_GRADIENT, name, replacing,
          [](mixgrad_call* call) { return detail::run_gradient(call, Gradient{}); }, file, line);
      detail::link(gradient_);
    }
    detail::link(forward_);
    detail::link(op_);
  }
  NewOp(const NewOp&) = delete;
  NewOp& operator=(const NewOp&) = delete;

 private:
  static void fill(mixgrad_registration& node, mixgrad_kind kind, const char* name, std::uint32_t flags,
                   mixgrad_function function, const char* file, int line) noexcept {
    node.struct_size = sizeof node;
    node.kind = kind;
    node.op = name;
    node.flags = flags;
    node.function = function;
    node.file = file;
    node.line = line;
  }

  mixgrad_registration op_{}, forward_{}, gradient_{};
};

}  // namespace v1
}  // namespace mixgrad

#define MIXGRAD_DETAIL_GRADIENT(name, kind, ...)                                                       \
  namespace {                                                                                          \
  struct mixgrad_gradient_of_##name {                                                                  \
    static ::mixgrad::Gradients compute(const ::mixgrad::Call& op, const ::mixgrad::Array& g);         \
  };                                                                                                   \
  [[maybe_unused]] const ::mixgrad::detail::Registrar mixgrad_gradient_registrar_of_##name(            \
      kind, #name, &::mixgrad::detail::gradient_entry<&mixgrad_gradient_of_##name::compute>, __FILE__, \
      __LINE__ __VA_OPT__(, ) __VA_ARGS__);                                                            \
  }                                                                                                    \
  ::mixgrad::Gradients mixgrad_gradient_of_##name::compute([[maybe_unused]] const ::mixgrad::Call& op, \
                                                           [[maybe_unused]] const ::mixgrad::Array& g)

/// The native gradient of an op, composed of functions on Arrays and so differentiable itself. Its body is given `op`
/// (the Call) and `g` (the gradient of the output), and returns one Array per input:
///
///     MIXGRAD_REGISTER_GRADIENT(mul) {
///       auto [x, y] = op.inputs<2>();
///       return {g * y, g * x};
///     }
///
/// A second argument is a flag: MIXGRAD_REGISTER_GRADIENT(mul, mixgrad::replace).
#define MIXGRAD_REGISTER_GRADIENT(name, ...) \
  MIXGRAD_DETAIL_GRADIENT(name, MIXGRAD_KIND_GRADIENT __VA_OPT__(, ) __VA_ARGS__)

/// The same over raw memory: first order only.
#define MIXGRAD_REGISTER_KERNEL_GRADIENT(name, ...) \
  MIXGRAD_DETAIL_GRADIENT(name, MIXGRAD_KIND_KERNEL_GRADIENT __VA_OPT__(, ) __VA_ARGS__)

/// The native forward of an op. Its body is given `op`, reads op.input(i) and the attributes, and returns the output.
/// It works on raw memory: what it calls is not differentiated.
#define MIXGRAD_REGISTER_FORWARD(name, ...)                                                                          \
  namespace {                                                                                                        \
  struct mixgrad_forward_of_##name {                                                                                 \
    static ::mixgrad::Results compute(const ::mixgrad::Call& op);                                                    \
  };                                                                                                                 \
  [[maybe_unused]] const ::mixgrad::detail::Registrar mixgrad_forward_registrar_of_##name(                           \
      MIXGRAD_KIND_FORWARD, #name, &::mixgrad::detail::forward_entry<&mixgrad_forward_of_##name::compute>, __FILE__, \
      __LINE__ __VA_OPT__(, ) __VA_ARGS__);                                                                          \
  }                                                                                                                  \
  ::mixgrad::Results mixgrad_forward_of_##name::compute([[maybe_unused]] const ::mixgrad::Call& op)

#endif  // MIXGRAD_CALL_HPP
