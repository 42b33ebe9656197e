// SPDX-License-Identifier: Apache-2.0
//
// mixgrad::Array and the functions on it: what gradients written in C++ are composed of. Everything goes through the
// dispatcher and onto the tape, so a gradient written with these is itself differentiable.
#ifndef MIXGRAD_ARRAY_HPP
#define MIXGRAD_ARRAY_HPP

#include <concepts>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "mixgrad/api.h"

// Hidden: otherwise inline variables and functions of two plug-ins would be merged by the dynamic linker.
namespace mixgrad {
inline namespace [[gnu::visibility("hidden")]] v1 {

namespace detail {
inline const mixgrad_api* table = nullptr;
}  // namespace detail

/// The core's table of functions.
inline const mixgrad_api* api() noexcept { return detail::table; }
/// Called once, before anything else here is used.
inline void set_api(const mixgrad_api* table) noexcept { detail::table = table; }

// --- errors ---------------------------------------------------------------------------------------------------------

/// An error is set in the core. Nothing needs to be done with it: what calls an implementation hands it on to Python.
class Error : public std::exception {
 public:
  const char* what() const noexcept override { return "an error is set in mixgrad's core"; }
};

/// Thrown to leave this call to the next implementation.
class Decline : public std::exception {
 public:
  const char* what() const noexcept override { return "this implementation does not take these arguments"; }
};

namespace detail {

/// Sets an error and throws.
[[noreturn, gnu::cold, gnu::noinline]] inline void fail(mixgrad_error kind, const std::string& message) {
  table->error_set(kind, message.c_str());
  throw Error();
}

[[noreturn, gnu::cold, gnu::noinline]] inline void fail() { throw Error(); }

inline mixgrad_array* checked(mixgrad_array* handle) {
  if (!handle) [[unlikely]]
    fail();
  return handle;
}

inline void checked(mixgrad_status status) {
  if (status == MIXGRAD_OK) [[likely]]
    return;
  if (status == MIXGRAD_DECLINED) throw Decline();
  fail();
}

}  // namespace detail

// --- element types --------------------------------------------------------------------------------------------------

/// A complex number as it lies in memory. `std::complex` does as well wherever an element type is asked for.
template <class T>
struct Complex {
  using value_type = T;
  T re, im;
  constexpr T real() const noexcept { return re; }
  constexpr T imag() const noexcept { return im; }
};

/// Any type that looks like a complex number, std::complex among them (whose header costs a third of a second).
template <class C>
concept ComplexLike = requires(const C& c) {
  typename C::value_type;
  { c.real() } -> std::convertible_to<double>;
  { c.imag() } -> std::convertible_to<double>;
} && sizeof(C) == 2 * sizeof(typename C::value_type);

template <class T>
concept Number = std::is_arithmetic_v<T> || ComplexLike<T>;

enum class Dtype : std::int32_t {
  boolean = MIXGRAD_BOOL,
  int8 = MIXGRAD_INT8,
  uint8 = MIXGRAD_UINT8,
  int16 = MIXGRAD_INT16,
  uint16 = MIXGRAD_UINT16,
  int32 = MIXGRAD_INT32,
  uint32 = MIXGRAD_UINT32,
  int64 = MIXGRAD_INT64,
  uint64 = MIXGRAD_UINT64,
  float32 = MIXGRAD_FLOAT32,
  float64 = MIXGRAD_FLOAT64,
  complex64 = MIXGRAD_COMPLEX64,
  complex128 = MIXGRAD_COMPLEX128
};

constexpr bool is_real(Dtype d) noexcept { return d == Dtype::float32 || d == Dtype::float64; }
constexpr bool is_complex(Dtype d) noexcept { return d == Dtype::complex64 || d == Dtype::complex128; }
constexpr bool is_differentiable(Dtype d) noexcept { return is_real(d) || is_complex(d); }

/// As NumPy writes it.
constexpr const char* name(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::boolean:
      return "bool";
    case Dtype::int8:
      return "int8";
    case Dtype::uint8:
      return "uint8";
    case Dtype::int16:
      return "int16";
    case Dtype::uint16:
      return "uint16";
    case Dtype::int32:
      return "int32";
    case Dtype::uint32:
      return "uint32";
    case Dtype::int64:
      return "int64";
    case Dtype::uint64:
      return "uint64";
    case Dtype::float32:
      return "float32";
    case Dtype::float64:
      return "float64";
    case Dtype::complex64:
      return "complex64";
    case Dtype::complex128:
      return "complex128";
  }
  return "of unknown kind";
}

namespace detail {
template <class T>
consteval Dtype dtype_of() {
  using Plain = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<Plain, bool>) {
    return Dtype::boolean;
  } else if constexpr (std::is_same_v<Plain, float>) {
    return Dtype::float32;
  } else if constexpr (std::is_same_v<Plain, double>) {
    return Dtype::float64;
  } else if constexpr (ComplexLike<Plain>) {
    static_assert(
        std::is_same_v<typename Plain::value_type, float> || std::is_same_v<typename Plain::value_type, double>,
        "complex elements are of float or double");
    return std::is_same_v<typename Plain::value_type, float> ? Dtype::complex64 : Dtype::complex128;
  } else {
    static_assert(std::is_integral_v<Plain>, "no dtype has elements of this type");
    constexpr bool is_signed = std::is_signed_v<Plain>;
    switch (sizeof(Plain)) {
      case 1:
        return is_signed ? Dtype::int8 : Dtype::uint8;
      case 2:
        return is_signed ? Dtype::int16 : Dtype::uint16;
      case 4:
        return is_signed ? Dtype::int32 : Dtype::uint32;
      default:
        return is_signed ? Dtype::int64 : Dtype::uint64;
    }
  }
}
}  // namespace detail

/// The dtype of elements of type T.
template <class T>
inline constexpr Dtype dtype_of = detail::dtype_of<T>();

// --- shapes ---------------------------------------------------------------------------------------------------------

/// A shape, strides, or a list of axes: up to MIXGRAD_MAX_NDIM integers, without a heap.
class Shape {
 public:
  Shape() noexcept : size_(0) {}
  Shape(std::initializer_list<std::int64_t> items) : Shape(std::span(items.begin(), items.size())) {}
  Shape(std::span<const std::int64_t> items) : size_(0) {
    for (const std::int64_t item : items) push_back(item);
  }
  Shape(const std::vector<std::int64_t>& items) : Shape(std::span(items)) {}
  /// `n` times the same number.
  Shape(std::size_t n, std::int64_t item) : size_(0) {
    for (std::size_t i = 0; i < n; ++i) push_back(item);
  }
  Shape(const Shape& other) noexcept : size_(other.size_) {
    for (std::size_t i = 0; i < size_; ++i) items_[i] = other.items_[i];
  }
  Shape& operator=(const Shape& other) noexcept {
    size_ = other.size_;
    for (std::size_t i = 0; i < size_; ++i) items_[i] = other.items_[i];
    return *this;
  }

  std::size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  std::int64_t* data() noexcept { return items_; }
  const std::int64_t* data() const noexcept { return items_; }
  std::int64_t* begin() noexcept { return items_; }
  std::int64_t* end() noexcept { return items_ + size_; }
  const std::int64_t* begin() const noexcept { return items_; }
  const std::int64_t* end() const noexcept { return items_ + size_; }
  std::int64_t& operator[](std::size_t i) noexcept { return items_[i]; }
  std::int64_t operator[](std::size_t i) const noexcept { return items_[i]; }
  std::int64_t& back() noexcept { return items_[size_ - 1]; }

  void push_back(std::int64_t item) {
    if (size_ == MIXGRAD_MAX_NDIM) detail::fail(MIXGRAD_ERROR_VALUE, "an array has at most 64 axes");
    items_[size_++] = item;
  }
  void insert(std::size_t at, std::int64_t item) {
    push_back(item);
    for (std::size_t i = size_ - 1; i > at; --i) items_[i] = items_[i - 1];
    items_[at] = item;
  }
  void erase(std::size_t at) noexcept {
    --size_;
    for (std::size_t i = at; i < size_; ++i) items_[i] = items_[i + 1];
  }
  /// The product of all: the number of elements of an array of this shape.
  std::int64_t product() const noexcept {
    std::int64_t n = 1;
    for (const std::int64_t item : *this) n *= item;
    return n;
  }
  friend bool operator==(const Shape& a, const Shape& b) noexcept {
    if (a.size_ != b.size_) return false;
    for (std::size_t i = 0; i < a.size_; ++i)
      if (a.items_[i] != b.items_[i]) return false;
    return true;
  }

 private:
  std::size_t size_;
  std::int64_t items_[MIXGRAD_MAX_NDIM];
};

namespace detail {
/// The axis counted from the front.
inline std::size_t axis_index(std::int64_t axis, std::int64_t ndim) {
  if (axis < -ndim || axis >= ndim)
    fail(MIXGRAD_ERROR_VALUE,
         "axis " + std::to_string(axis) + " is out of bounds for an array of " + std::to_string(ndim) + " axes");
  return static_cast<std::size_t>(axis < 0 ? axis + ndim : axis);
}
}  // namespace detail

/// What `axis` is for a reduction: all axes (None), one, or several.
class Axis {
 public:
  Axis() noexcept = default;
  Axis(std::nullopt_t) noexcept {}
  template <std::integral T>
  Axis(T axis) : all_(false), axes_{static_cast<std::int64_t>(axis)} {}
  Axis(std::initializer_list<std::int64_t> axes) : all_(false), axes_(axes) {}
  Axis(const Shape& axes) : all_(false), axes_(axes) {}
  /// The axes of a set of bits.
  static Axis of_bits(std::uint64_t bits) {
    Axis axis;
    axis.all_ = false;
    for (std::int64_t i = 0; bits >> i; ++i)
      if (bits >> i & 1) axis.axes_.push_back(i);
    return axis;
  }

  bool all() const noexcept { return all_; }
  const Shape& axes() const noexcept { return axes_; }
  /// One bit per axis of an array that has `ndim` of them.
  std::uint64_t bits(std::size_t ndim) const {
    if (all_) return ndim >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << ndim) - 1;
    std::uint64_t bits = 0;
    for (const std::int64_t axis : axes_)
      bits |= std::uint64_t{1} << detail::axis_index(axis, static_cast<std::int64_t>(ndim));
    return bits;
  }

 private:
  bool all_ = true;
  Shape axes_;
};

/// A shape with the axes of these bits of length one, as a reduction with keepdims leaves it.
inline Shape kept(std::span<const std::int64_t> shape, std::uint64_t axes) {
  Shape kept(shape);
  for (std::size_t i = 0; i < shape.size(); ++i)
    if (axes >> i & 1) kept[i] = 1;
  return kept;
}
/// How many elements of an array of this shape a reduction over these axes makes one of; 1 where there are none, so
/// that it can divide.
inline std::int64_t count(std::span<const std::int64_t> shape, std::uint64_t axes) {
  std::int64_t n = 1;
  for (std::size_t i = 0; i < shape.size(); ++i)
    if (axes >> i & 1) n *= shape[i];
  return n ? n : 1;
}

// --- Array ----------------------------------------------------------------------------------------------------------

/// A value, perhaps recorded on the tape: an owning handle, cheap to copy. An empty one stands for zero where a
/// gradient is returned, and for the data of an input that the op does not save.
class Array {
 public:
  Array() noexcept = default;
  Array(const Array& other) noexcept : handle_(other.handle_) {
    if (handle_) api()->array_retain(handle_);
  }
  Array(Array&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Array& operator=(Array other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Array() {
    if (handle_) api()->array_release(handle_);
  }
  /// A number, which takes the dtype of what it meets, as a Python number does.
  template <class T>
    requires std::is_arithmetic_v<T>
  Array(T number) : handle_(detail::checked(api()->array_number(static_cast<double>(number), 0.0, 0))) {}
  template <ComplexLike T>
  Array(const T& number)
      : handle_(detail::checked(
            api()->array_number(static_cast<double>(number.real()), static_cast<double>(number.imag()), 1))) {}
  /// From the table: takes over the caller's reference.
  static Array own(mixgrad_array* handle) noexcept {
    Array array;
    array.handle_ = handle;
    return array;
  }

  /// Whether this stands for nothing.
  bool empty() const noexcept { return !handle_; }
  mixgrad_array* handle() const noexcept { return handle_; }
  /// Whether an op on it would be recorded.
  bool is_recorded() const noexcept { return handle_ && api()->array_is_recorded(handle_) != 0; }

  /// All of the below at once.
  mixgrad_view view() const {
    require();
    mixgrad_view view;
    api()->array_view(handle_, &view);
    return view;
  }
  Dtype dtype() const { return static_cast<Dtype>(view().dtype); }
  std::size_t ndim() const { return static_cast<std::size_t>(view().ndim); }
  std::int64_t size() const { return view().size; }
  /// Valid as long as this Array.
  std::span<const std::int64_t> shape() const {
    const mixgrad_view v = view();
    return {v.shape, static_cast<std::size_t>(v.ndim)};
  }
  std::int64_t shape(std::int64_t axis) const {
    const mixgrad_view v = view();
    return v.shape[detail::axis_index(axis, v.ndim)];
  }
  /// In bytes, perhaps zero or negative. Valid as long as this Array.
  std::span<const std::int64_t> strides() const {
    const mixgrad_view v = view();
    return {v.strides, static_cast<std::size_t>(v.ndim)};
  }
  /// C-contiguous.
  bool is_contiguous() const { return view().contiguous != 0; }

  /// The first element. Elements follow by strides().
  template <class T>
  const T* data() const {
    return static_cast<const T*>(typed(dtype_of<T>).data);
  }
  /// The same to write to: only for an array that this code has made itself.
  template <class T>
  T* mutable_data() {
    return static_cast<T*>(typed(dtype_of<T>).data);
  }
  /// The elements of a contiguous array.
  template <class T>
  std::span<const T> elements() const {
    const mixgrad_view v = contiguous(dtype_of<T>);
    return {static_cast<const T*>(v.data), static_cast<std::size_t>(v.size)};
  }
  template <class T>
  std::span<T> mutable_elements() {
    const mixgrad_view v = contiguous(dtype_of<T>);
    return {static_cast<T*>(v.data), static_cast<std::size_t>(v.size)};
  }

  friend Array operator+(const Array& x, const Array& y);
  friend Array operator-(const Array& x, const Array& y);
  friend Array operator*(const Array& x, const Array& y);
  friend Array operator/(const Array& x, const Array& y);
  friend Array operator-(const Array& x);
  friend Array operator+(const Array& x) { return x; }
  Array& operator+=(const Array& other) { return *this = *this + other; }
  Array& operator-=(const Array& other) { return *this = *this - other; }
  Array& operator*=(const Array& other) { return *this = *this * other; }
  Array& operator/=(const Array& other) { return *this = *this / other; }

  /// Comparisons are element-wise: choose with where(), not with `if`.
  friend Array operator<(const Array& x, const Array& y);
  friend Array operator<=(const Array& x, const Array& y);
  friend Array operator>(const Array& x, const Array& y);
  friend Array operator>=(const Array& x, const Array& y);
  friend Array operator==(const Array& x, const Array& y);
  friend Array operator!=(const Array& x, const Array& y);
  friend Array operator&(const Array& x, const Array& y);
  friend Array operator|(const Array& x, const Array& y);
  friend Array operator!(const Array& x);

 private:
  void require() const {
    if (!handle_) [[unlikely]]
      detail::fail(MIXGRAD_ERROR_NOT_SAVED,
                   "an empty Array was read: it is the data of an input or output that the op does not save");
  }
  mixgrad_view typed(Dtype wanted) const {
    const mixgrad_view v = view();
    if (static_cast<Dtype>(v.dtype) != wanted) [[unlikely]]
      detail::fail(MIXGRAD_ERROR_TYPE, std::string("the elements of an Array of dtype ") +
                                           name(static_cast<Dtype>(v.dtype)) + " were asked for as " + name(wanted));
    return v;
  }
  mixgrad_view contiguous(Dtype wanted) const {
    const mixgrad_view v = typed(wanted);
    if (!v.contiguous) [[unlikely]]
      detail::fail(MIXGRAD_ERROR_VALUE,
                   "the elements of an Array that is not contiguous were asked for; take contiguous(x)");
    return v;
  }

  mixgrad_array* handle_ = nullptr;
};

// --- running ops ----------------------------------------------------------------------------------------------------

/// One attribute of an op that is run from C++. What it points to must live until the op has run.
class Attribute {
 public:
  template <std::integral T>
  Attribute(const char* name, T value) noexcept
      : Attribute(name, std::is_same_v<T, bool> ? MIXGRAD_ATTRIBUTE_BOOL : MIXGRAD_ATTRIBUTE_INT) {
    raw_.integer = static_cast<std::int64_t>(value);
  }
  template <std::floating_point T>
  Attribute(const char* name, T value) noexcept : Attribute(name, MIXGRAD_ATTRIBUTE_FLOAT) {
    raw_.real = static_cast<double>(value);
  }
  Attribute(const char* name, std::nullopt_t) noexcept : Attribute(name, MIXGRAD_ATTRIBUTE_NONE) {}
  Attribute(const char* name, const char* value) noexcept : Attribute(name, MIXGRAD_ATTRIBUTE_STRING) {
    raw_.string = value;
  }
  Attribute(const char* name, std::span<const std::int64_t> value) noexcept : Attribute(name, MIXGRAD_ATTRIBUTE_INTS) {
    raw_.integers = value.data();
    raw_.count = static_cast<std::int32_t>(value.size());
  }
  Attribute(const char* name, const Shape& value) noexcept : Attribute(name, std::span(value.data(), value.size())) {}
  Attribute(const char* name, const Array& value) noexcept : Attribute(name, MIXGRAD_ATTRIBUTE_ARRAY) {
    raw_.array = value.handle();
  }
  Attribute(const char* name, const Axis& value) noexcept : Attribute(name, MIXGRAD_ATTRIBUTE_NONE) {
    if (value.all()) return;
    raw_.kind = MIXGRAD_ATTRIBUTE_INTS;
    raw_.integers = value.axes().data();
    raw_.count = static_cast<std::int32_t>(value.axes().size());
  }
  /// The attribute of another call, whatever it is.
  Attribute(const char* name, mixgrad_call* call) noexcept : Attribute(name, MIXGRAD_ATTRIBUTE_OF_CALL) {
    raw_.array = reinterpret_cast<mixgrad_array*>(call);
  }
  const mixgrad_attribute& raw() const noexcept { return raw_; }

 private:
  Attribute(const char* name, mixgrad_attribute_kind kind) noexcept {
    raw_.name = name;
    raw_.kind = kind;
  }
  mixgrad_attribute raw_{};
};

namespace detail {

[[noreturn, gnu::cold, gnu::noinline]] inline void fail_empty(const char* op) {
  fail(
      MIXGRAD_ERROR_NOT_SAVED,
      std::string("op '") + op +
          "' was given an empty Array in C++: the data of an input or output that the differentiated op does not save. "
          "Declare it where that op is made (saves=)");
}

/// An op by name, looked up when first run. Constant-initialised, so that a static one needs no guard.
class NamedOp {
 public:
  constexpr explicit NamedOp(const char* name) noexcept : name_(name) {}

  template <class... Inputs>
  Array operator()(const Inputs&... inputs) {
    mixgrad_array* const handles[] = {inputs.handle()...};
    return run(handles, sizeof...(Inputs), nullptr, 0);
  }
  Array operator()(const Array& input, std::initializer_list<Attribute> attributes) {
    mixgrad_array* const handles[] = {input.handle()};
    return run(handles, 1, attributes.begin(), attributes.size());
  }
  Array list(std::span<const Array> inputs, std::span<const Attribute> attributes) {
    const std::vector<mixgrad_array*> handles = handles_of(inputs);
    return run(handles.data(), handles.size(), attributes.data(), attributes.size());
  }
  /// The outputs of an op that has several.
  std::vector<Array> several(std::span<const Array> inputs, std::span<const Attribute> attributes, std::size_t n) {
    const std::vector<mixgrad_array*> handles = handles_of(inputs);
    std::vector<mixgrad_array*> outputs(n);
    call(handles.data(), handles.size(), attributes.data(), attributes.size(), outputs.data(), n);
    std::vector<Array> arrays;
    arrays.reserve(n);
    for (mixgrad_array* output : outputs) arrays.push_back(Array::own(output));
    return arrays;
  }

 private:
  static std::vector<mixgrad_array*> handles_of(std::span<const Array> inputs) {
    std::vector<mixgrad_array*> handles;
    handles.reserve(inputs.size());
    for (const Array& input : inputs) handles.push_back(input.handle());
    return handles;
  }
  [[gnu::noinline]] Array run(mixgrad_array* const* inputs, std::size_t n_inputs, const Attribute* attributes,
                              std::size_t n_attributes) {
    mixgrad_array* output = nullptr;
    call(inputs, n_inputs, attributes, n_attributes, &output, 1);
    return Array::own(output);
  }
  void call(mixgrad_array* const* inputs, std::size_t n_inputs, const Attribute* attributes, std::size_t n_attributes,
            mixgrad_array** outputs, std::size_t n_outputs) {
    static_assert(sizeof(Attribute) == sizeof(mixgrad_attribute));
    for (std::size_t i = 0; i < n_inputs; ++i)
      if (!inputs[i]) [[unlikely]]
        fail_empty(name_);
    if (!op_) {
      op_ = table->op_find(name_);
      if (!op_) fail();
    }
    checked(table->op_call(op_, static_cast<std::int32_t>(n_inputs), inputs, static_cast<std::int32_t>(n_attributes),
                           attributes ? &attributes->raw() : nullptr, static_cast<std::int32_t>(n_outputs), outputs));
  }

  const char* name_;
  mixgrad_op* op_ = nullptr;
};

}  // namespace detail

/// Runs any op by name: `call("clip", {x}, {{"a_min", 0.0}, {"a_max", 1.0}})`.
inline Array call(const char* op, std::initializer_list<Array> inputs,
                  std::initializer_list<Attribute> attributes = {}) {
  return detail::NamedOp(op).list(std::span(inputs.begin(), inputs.size()),
                                  std::span(attributes.begin(), attributes.size()));
}

// --- element-wise functions, under NumPy's names --------------------------------------------------------------------

#define MIXGRAD_UNARY(name, op)               \
  inline Array name(const Array& x) {         \
    static constinit detail::NamedOp run{op}; \
    return run(x);                            \
  }
#define MIXGRAD_BINARY(name, op)                      \
  inline Array name(const Array& x, const Array& y) { \
    static constinit detail::NamedOp run{op};         \
    return run(x, y);                                 \
  }
MIXGRAD_BINARY(operator+, "add")
MIXGRAD_BINARY(operator-, "subtract")
MIXGRAD_BINARY(operator*, "multiply")
MIXGRAD_BINARY(operator/, "divide")
MIXGRAD_BINARY(operator<, "less")
MIXGRAD_BINARY(operator<=, "less_equal")
MIXGRAD_BINARY(operator>, "greater")
MIXGRAD_BINARY(operator>=, "greater_equal")
MIXGRAD_BINARY(operator==, "equal")
MIXGRAD_BINARY(operator!=, "not_equal")
MIXGRAD_BINARY(operator&, "logical_and")
MIXGRAD_BINARY(operator|, "logical_or")
MIXGRAD_UNARY(operator-, "negative")
MIXGRAD_UNARY(operator!, "logical_not")
MIXGRAD_BINARY(power, "power")
MIXGRAD_BINARY(maximum, "maximum")
MIXGRAD_BINARY(minimum, "minimum")
MIXGRAD_BINARY(fmax, "fmax")
MIXGRAD_BINARY(fmin, "fmin")
MIXGRAD_BINARY(arctan2, "arctan2")
MIXGRAD_BINARY(hypot, "hypot")
MIXGRAD_BINARY(logaddexp, "logaddexp")
MIXGRAD_BINARY(logaddexp2, "logaddexp2")
MIXGRAD_UNARY(absolute, "absolute")
MIXGRAD_UNARY(abs, "absolute")
MIXGRAD_UNARY(sign, "sign")
MIXGRAD_UNARY(exp, "exp")
MIXGRAD_UNARY(exp2, "exp2")
MIXGRAD_UNARY(expm1, "expm1")
MIXGRAD_UNARY(log, "log")
MIXGRAD_UNARY(log2, "log2")
MIXGRAD_UNARY(log10, "log10")
MIXGRAD_UNARY(log1p, "log1p")
MIXGRAD_UNARY(sqrt, "sqrt")
MIXGRAD_UNARY(cbrt, "cbrt")
MIXGRAD_UNARY(square, "square")
MIXGRAD_UNARY(reciprocal, "reciprocal")
MIXGRAD_UNARY(sin, "sin")
MIXGRAD_UNARY(cos, "cos")
MIXGRAD_UNARY(tan, "tan")
MIXGRAD_UNARY(arcsin, "arcsin")
MIXGRAD_UNARY(arccos, "arccos")
MIXGRAD_UNARY(arctan, "arctan")
MIXGRAD_UNARY(sinh, "sinh")
MIXGRAD_UNARY(cosh, "cosh")
MIXGRAD_UNARY(tanh, "tanh")
MIXGRAD_UNARY(arcsinh, "arcsinh")
MIXGRAD_UNARY(arccosh, "arccosh")
MIXGRAD_UNARY(arctanh, "arctanh")
MIXGRAD_UNARY(floor, "floor")
MIXGRAD_UNARY(ceil, "ceil")
MIXGRAD_UNARY(trunc, "trunc")
MIXGRAD_UNARY(rint, "rint")
MIXGRAD_UNARY(isnan, "isnan")
MIXGRAD_UNARY(isfinite, "isfinite")
MIXGRAD_UNARY(isinf, "isinf")
MIXGRAD_UNARY(real, "real")
MIXGRAD_UNARY(imag, "imag")
MIXGRAD_UNARY(conj, "conjugate")
MIXGRAD_UNARY(relu, "relu")
MIXGRAD_UNARY(sigmoid, "sigmoid")
#undef MIXGRAD_UNARY
#undef MIXGRAD_BINARY

/// Element by element, x where the condition holds, else y.
inline Array where(const Array& condition, const Array& x, const Array& y) {
  static constinit detail::NamedOp run{"where"};
  return run(condition, x, y);
}

// --- making arrays --------------------------------------------------------------------------------------------------

/// New, contiguous, uninitialised.
inline Array empty(Dtype dtype, std::span<const std::int64_t> shape) {
  return Array::own(detail::checked(
      api()->array_new(static_cast<std::int32_t>(dtype), static_cast<std::int32_t>(shape.size()), shape.data())));
}
inline Array empty(Dtype dtype, const Shape& shape) { return empty(dtype, std::span(shape.data(), shape.size())); }
/// New, of the same dtype and shape.
inline Array empty_like(const Array& x) { return empty(x.dtype(), x.shape()); }

inline std::int64_t item_size(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::boolean:
    case Dtype::int8:
    case Dtype::uint8:
      return 1;
    case Dtype::int16:
    case Dtype::uint16:
      return 2;
    case Dtype::int32:
    case Dtype::uint32:
    case Dtype::float32:
      return 4;
    case Dtype::complex128:
      return 16;
    default:
      return 8;
  }
}

inline Array zeros(Dtype dtype, std::span<const std::int64_t> shape) {
  Array array = empty(dtype, shape);
  const mixgrad_view v = array.view();
  __builtin_memset(v.data, 0, static_cast<std::size_t>(v.size * item_size(dtype)));
  return array;
}
inline Array zeros(Dtype dtype, const Shape& shape) { return zeros(dtype, std::span(shape.data(), shape.size())); }
inline Array zeros_like(const Array& x) { return zeros(x.dtype(), x.shape()); }

/// A constant of no dimensions.
inline Array scalar(Dtype dtype, double real, double imaginary = 0.0) {
  return Array::own(detail::checked(api()->array_scalar(static_cast<std::int32_t>(dtype), real, imaginary)));
}

/// Another view of the same memory (offset and strides in bytes). Not recorded: for forwards and kernels.
inline Array strided(const Array& x, std::span<const std::int64_t> shape, std::span<const std::int64_t> strides,
                     std::int64_t offset = 0) {
  return Array::own(detail::checked(
      api()->array_strided(x.handle(), static_cast<std::int32_t>(shape.size()), shape.data(), strides.data(), offset)));
}

/// The same numbers, contiguous and of this dtype: the same array when it is so already. Not recorded: for forwards and
/// kernels.
inline Array contiguous(const Array& x, Dtype dtype) {
  return Array::own(detail::checked(api()->array_contiguous(x.handle(), static_cast<std::int32_t>(dtype))));
}
inline Array contiguous(const Array& x) { return contiguous(x, x.dtype()); }

// --- other shapes of the same elements ------------------------------------------------------------------------------
//
// Where nobody records, these are views made straight away, without an op.

namespace detail {

inline Shape shape_of(const mixgrad_view& v) { return Shape(std::span(v.shape, static_cast<std::size_t>(v.ndim))); }

inline Shape contiguous_strides(const Shape& shape, std::int64_t item) {
  Shape strides(shape);
  for (std::size_t i = shape.size(); i-- > 0;) {
    strides[i] = item;
    item *= shape[i];
  }
  return strides;
}

inline Array view_of(const Array& x, const Shape& shape, const Shape& strides) {
  return strided(x, std::span(shape.data(), shape.size()), std::span(strides.data(), strides.size()));
}

}  // namespace detail

/// -1 stands for what is left over.
inline Array reshape(const Array& x, Shape shape) {
  const mixgrad_view v = x.view();
  std::int64_t known = 1;
  std::int64_t* open = nullptr;
  for (std::int64_t& n : shape) {
    if (n == -1 && !open)
      open = &n;
    else
      known *= n;
  }
  if (open && known != 0) *open = v.size / known;
  if (x.is_recorded() || shape.product() != v.size) {
    static constinit detail::NamedOp run{"reshape"};
    return run(x, {{"shape", shape}});
  }
  const Array base = v.contiguous ? x : contiguous(x);
  return detail::view_of(base, shape, detail::contiguous_strides(shape, item_size(static_cast<Dtype>(v.dtype))));
}

/// Axis i of the result is axis axes[i] of x.
inline Array transpose(const Array& x, const Shape& axes) {
  if (x.is_recorded()) {
    static constinit detail::NamedOp run{"transpose"};
    return run(x, {{"axes", axes}});
  }
  const mixgrad_view v = x.view();
  if (axes.size() != static_cast<std::size_t>(v.ndim))
    detail::fail(MIXGRAD_ERROR_VALUE, "transpose needs one axis for each of the array's");
  Shape shape, strides;
  for (const std::int64_t axis : axes) {
    const std::size_t i = detail::axis_index(axis, v.ndim);
    shape.push_back(v.shape[i]);
    strides.push_back(v.strides[i]);
  }
  return detail::view_of(x, shape, strides);
}
/// With the axes reversed.
inline Array transpose(const Array& x) {
  Shape axes;
  for (std::size_t i = x.ndim(); i-- > 0;) axes.push_back(static_cast<std::int64_t>(i));
  return transpose(x, axes);
}
inline Array swapaxes(const Array& x, std::int64_t axis1, std::int64_t axis2) {
  const auto ndim = static_cast<std::int64_t>(x.ndim());
  Shape axes;
  for (std::int64_t i = 0; i < ndim; ++i) axes.push_back(i);
  std::swap(axes[detail::axis_index(axis1, ndim)], axes[detail::axis_index(axis2, ndim)]);
  return transpose(x, axes);
}

/// A new axis of length one at this place of the result.
inline Array expand_dims(const Array& x, std::int64_t axis) {
  if (x.is_recorded()) {
    static constinit detail::NamedOp run{"expand_dims"};
    return run(x, {{"axis", axis}});
  }
  const mixgrad_view v = x.view();
  const std::size_t at = detail::axis_index(axis, v.ndim + 1);
  Shape shape = detail::shape_of(v), strides(std::span(v.strides, static_cast<std::size_t>(v.ndim)));
  shape.insert(at, 1);
  strides.insert(at, 0);
  return detail::view_of(x, shape, strides);
}
inline Array squeeze(const Array& x, std::int64_t axis) {
  const mixgrad_view v = x.view();
  const std::size_t at = detail::axis_index(axis, v.ndim);
  if (x.is_recorded() || v.shape[at] != 1) {
    static constinit detail::NamedOp run{"squeeze"};
    return run(x, {{"axis", axis}});
  }
  Shape shape = detail::shape_of(v), strides(std::span(v.strides, static_cast<std::size_t>(v.ndim)));
  shape.erase(at);
  strides.erase(at);
  return detail::view_of(x, shape, strides);
}

inline Array broadcast_to(const Array& x, const Shape& shape) {
  const mixgrad_view v = x.view();
  const auto ndim = static_cast<std::size_t>(v.ndim);
  bool fits = shape.size() >= ndim;
  const std::size_t lead = fits ? shape.size() - ndim : 0;
  for (std::size_t i = 0; fits && i < ndim; ++i) fits = v.shape[i] == 1 || v.shape[i] == shape[lead + i];
  if (!fits || x.is_recorded()) {
    static constinit detail::NamedOp run{"broadcast_to"};
    return run(x, {{"shape", shape}});
  }
  Shape strides(shape.size(), 0);
  for (std::size_t i = 0; i < ndim; ++i)
    if (v.shape[i] == shape[lead + i]) strides[lead + i] = v.strides[i];
  return detail::view_of(x, shape, strides);
}

inline Array concatenate(std::span<const Array> arrays, std::int64_t axis = 0) {
  static constinit detail::NamedOp run{"concatenate"};
  const Attribute attributes[] = {{"axis", axis}};
  return run.list(arrays, attributes);
}
inline Array concatenate(std::initializer_list<Array> arrays, std::int64_t axis = 0) {
  return concatenate(std::span(arrays.begin(), arrays.size()), axis);
}
/// The pieces of an axis between the given places: one more than there are places.
inline std::vector<Array> split(const Array& x, const Shape& places, std::int64_t axis = 0) {
  static constinit detail::NamedOp run{"split"};
  const Attribute attributes[] = {{"indices_or_sections", places}, {"axis", axis}};
  return run.several({&x, 1}, attributes, places.size() + 1);
}

// --- products
// ---------------------------------------------------------------------------------------------------------

/// NumPy's matmul.
inline Array matmul(const Array& x, const Array& y) {
  if (!x.empty() && !y.empty() && !x.is_recorded() && !y.is_recorded()) {
    mixgrad_array* out = nullptr;
    const mixgrad_status status = api()->kernel_matmul(x.handle(), y.handle(), &out);
    if (status == MIXGRAD_OK) return Array::own(out);
    if (status == MIXGRAD_ERROR) detail::fail();
  }
  static constinit detail::NamedOp run{"matmul"};
  return run(x, y);
}

// --- reductions -----------------------------------------------------------------------------------------------------

/// The options of a reduction: `sum(x, {.axis = 1, .keepdims = true})`.
struct Reduce {
  Axis axis = {};
  bool keepdims = false;
};

namespace detail {

inline Array reduce(NamedOp& run, const char* kernel, const Array& x, const Reduce& options) {
  if (kernel && !x.is_recorded()) {
    mixgrad_array* out = nullptr;
    const mixgrad_status status =
        table->kernel_reduce(kernel, x.handle(), options.axis.bits(x.ndim()), options.keepdims, &out);
    if (status == MIXGRAD_OK) return Array::own(out);
    if (status == MIXGRAD_ERROR) fail();
  }
  return run(x, {{"axis", options.axis}, {"keepdims", options.keepdims}});
}

}  // namespace detail

inline Array sum(const Array& x, const Reduce& options = {}) {
  static constinit detail::NamedOp run{"sum"};
  return detail::reduce(run, "add", x, options);
}
inline Array prod(const Array& x, const Reduce& options = {}) {
  static constinit detail::NamedOp run{"prod"};
  return detail::reduce(run, "multiply", x, options);
}
inline Array mean(const Array& x, const Reduce& options = {}) {
  static constinit detail::NamedOp run{"mean"};
  return detail::reduce(run, nullptr, x, options);
}
inline Array max(const Array& x, const Reduce& options = {}) {
  static constinit detail::NamedOp run{"max"};
  return detail::reduce(run, "maximum", x, options);
}
inline Array min(const Array& x, const Reduce& options = {}) {
  static constinit detail::NamedOp run{"min"};
  return detail::reduce(run, "minimum", x, options);
}

}  // namespace v1
}  // namespace mixgrad

#endif  // MIXGRAD_ARRAY_HPP
