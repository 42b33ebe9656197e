// SPDX-License-Identifier: Apache-2.0
//
// Element-wise gradients, one expression per argument. Instantiated for numbers it is a fused, vectorised loop;
// instantiated for Array it is composed of ops, and so differentiable to any order.
#ifndef MIXGRAD_ELEMENTWISE_HPP
#define MIXGRAD_ELEMENTWISE_HPP

#include <bit>

#include "mixgrad/call.hpp"
#include "mixgrad/scalar.hpp"

namespace mixgrad {
inline namespace [[gnu::visibility("hidden")]] v1 {

namespace detail {

/// Operands of a loop with the most inputs: g, inputs, out, result.
inline constexpr std::size_t kMostOperands = MIXGRAD_MAX_ELEMENTWISE_INPUTS + 3;
inline constexpr std::size_t kBlockBytes = 4096;

/// A loop over operands that all lie contiguous.
using ContiguousLoop = void (*)(char* const* operands, std::int64_t n);

template <class T>
void gather(T* block, const char* from, std::int64_t stride, std::int64_t n) noexcept {
  for (std::int64_t i = 0; i < n; ++i) block[i] = *reinterpret_cast<const T*>(from + i * stride);
}

/// Runs a contiguous loop over operands with any strides: what is not contiguous passes through blocks that stay in the
/// innermost cache, so that one vectorised loop per expression serves all layouts.
template <class T>
[[gnu::noinline]] void run_in_blocks(ContiguousLoop run, char** args, std::int64_t n, const std::int64_t* strides,
                                     std::size_t result, std::uint32_t reads) noexcept {
  constexpr auto item = static_cast<std::int64_t>(sizeof(T));
  constexpr auto block = static_cast<std::int64_t>(kBlockBytes / sizeof(T));
  alignas(64) unsigned char memory[kMostOperands][kBlockBytes];
  enum : std::uint8_t { direct, constant, strided, unread } how[kMostOperands];
  char* operands[kMostOperands];
  for (std::size_t k = 0; k <= result; ++k) {
    how[k] = k < result && !(reads >> k & 1) ? unread
             : strides[k] == item            ? direct
             : strides[k] == 0 && k < result ? constant
                                             : strided;
    operands[k] = how[k] == direct || how[k] == unread ? args[k] : reinterpret_cast<char*>(memory[k]);
    if (how[k] == constant) gather(reinterpret_cast<T*>(memory[k]), args[k], 0, n < block ? n : block);
  }
  for (std::int64_t done = 0; done < n; done += block) {
    const std::int64_t m = n - done < block ? n - done : block;
    for (std::size_t k = 0; k < result; ++k)
      if (how[k] == strided) gather(reinterpret_cast<T*>(memory[k]), args[k] + done * strides[k], strides[k], m);
    run(operands, m);
    if (how[result] == strided)
      for (std::int64_t i = 0; i < m; ++i)
        *reinterpret_cast<T*>(args[result] + (done + i) * strides[result]) =
            reinterpret_cast<const T*>(memory[result])[i];
    for (std::size_t k = 0; k <= result; ++k)
      if (how[k] == direct) operands[k] += m * item;
  }
}

#if defined(__clang__)
// A loop that has no vector form stays as it is, without a warning.
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wpass-failed"
#endif

/// The loops of one expression F over g, N inputs and out.
template <class F, std::size_t N, class = std::make_index_sequence<N + 2>>
struct Expression;

template <class F, std::size_t N, std::size_t... I>
struct Expression<F, N, std::index_sequence<I...>> {
  static constexpr std::size_t result = N + 2;

  static Probe probe() { return Probe(F{}(Probe::of(std::uint32_t{1} << I, Probe::operand)...)); }
  /// The operands that the expression reads, as bits.
  static std::uint32_t reads() { return probe().reads; }

  template <class T>
  [[gnu::noinline]] static void contiguous(char* const* operands, std::int64_t n) noexcept {
    run<T>(n, reinterpret_cast<T*>(operands[result]), reinterpret_cast<const T*>(operands[I])...);
  }

  template <class T, class... Pointers>
  static void run(std::int64_t n, T* to, const Pointers*... from) noexcept {
    const std::uint32_t read = reads();
    // The result may lie exactly over an operand, never shifted.
#if defined(__clang__)
#pragma clang loop vectorize(assume_safety)
#elif defined(__GNUC__)
#pragma GCC ivdep
#endif
    for (std::int64_t i = 0; i < n; ++i)
      to[i] = Scalar<T>(F{}((read >> I & 1 ? Scalar<T>(from[i]) : Scalar<T>())...)).value;
  }

  template <class T>
  static void loop(char** args, const std::int64_t* n, const std::int64_t* strides, void*) noexcept {
    const std::uint32_t read = reads();
    constexpr auto item = static_cast<std::int64_t>(sizeof(T));
    const bool direct = (((read >> I & 1) == 0 || strides[I] == item) && ...) && strides[result] == item;
    if (direct || *n == 1) [[likely]]
      contiguous<T>(args, *n);
    else
      run_in_blocks<T>(&contiguous<T>, args, *n, strides, result, read);
  }

  static Array compose(const std::array<Array, N + 2>& arguments) { return Array(F{}(arguments[I]...)); }
};

#if defined(__clang__)
#pragma clang diagnostic pop
#endif

template <class... F, std::size_t... I>
mixgrad_status compose_one_of(mixgrad_call* handle, std::index_sequence<I...>) noexcept {
  constexpr std::size_t n = sizeof...(F);
  try {
    const Call call(handle);
    std::array<Array, n + 2> arguments;
    arguments[0] = call.upstream();
    for (std::size_t i = 0; i < n; ++i)
      if (call.is_saved(i)) arguments[1 + i] = call.input(i);
    if (call.is_output_saved()) arguments[n + 1] = call.output();
    const auto wanted = static_cast<std::size_t>(table->call_argument(handle));
    Array result;
    const auto compute = [&]<class One>(std::type_identity<One>) {
      if constexpr (!std::is_same_v<One, std::nullptr_t>) result = Expression<One, n>::compose(arguments);
    };
    ((wanted == I ? compute(std::type_identity<F>()) : void()), ...);
    return table->call_return(handle, static_cast<std::int32_t>(wanted), result.handle());
  } catch (...) {
    return caught(handle, "gradient");
  }
}

template <class... F>
mixgrad_status compose(mixgrad_call* call) noexcept {
  return compose_one_of<F...>(call, std::index_sequence_for<F...>());
}

/// A name, and where it was written.
struct Name {
  const char* text;
  const char* file;
  int line;
  constexpr Name(const char* name, const char* in = __builtin_FILE(), int at = __builtin_LINE()) noexcept
      : text(name), file(in), line(at) {}
};

}  // namespace detail

/// The native gradient of an element-wise op, one lambda per input, called with (g, inputs..., out); nullptr where the
/// gradient is zero. A static object registers itself:
///
///     static const Elementwise multiply_{"multiply", [](auto g, auto, auto y, auto) { return g * y; },
///                                                    [](auto g, auto x, auto, auto) { return g * x; }};
///
/// Leave parameters that are not read without a name, call the variable anything but the function it is about, and
/// choose with where(), not with `if`.
class Elementwise {
 public:
  template <class... F>
  Elementwise(detail::Name op, F... gradients) noexcept : Elementwise(op, no_flags, gradients...) {}

  template <std::uint32_t Bits, class... F>
  Elementwise(detail::Name op, Flags<Bits>, F...) noexcept {
    constexpr std::size_t n = sizeof...(F);
    static_assert(n >= 1 && n <= MIXGRAD_MAX_ELEMENTWISE_INPUTS, "one lambda per input, of which there are 1 to 4");
    static_assert(((std::is_empty_v<F> || std::is_same_v<F, std::nullptr_t>) && ...), "a lambda captures nothing");
    node_.struct_size = sizeof node_;
    node_.kind = MIXGRAD_KIND_ELEMENTWISE;
    node_.op = op.text;
    node_.flags = Bits;
    node_.n_inputs = static_cast<std::int32_t>(n);
    node_.function = &detail::compose<F...>;
    node_.file = op.file;
    node_.line = op.line;
    std::size_t i = 0;
    (fill<F, n, (Bits & MIXGRAD_FLAG_REAL_ONLY) == 0>(i++), ...);
    detail::link(node_);
  }
  Elementwise(const Elementwise&) = delete;
  Elementwise& operator=(const Elementwise&) = delete;

 private:
  template <class F, std::size_t N, bool WithComplex>
  void fill(std::size_t i) noexcept {
    if constexpr (std::is_same_v<F, std::nullptr_t>) {
      node_.trivial[i] = MIXGRAD_TRIVIAL_ZERO;
    } else {
      using detail::Expression;
      // g as it is: the core hands it on without a copy.
      const Probe probe = Expression<F, N>::probe();
      if (probe.form == Probe::operand && probe.reads == 1) node_.trivial[i] = MIXGRAD_TRIVIAL_UPSTREAM;
      if (probe.form == Probe::product && (probe.reads & 1) && std::popcount(probe.reads) == 2)
        node_.trivial[i] = static_cast<std::uint8_t>(MIXGRAD_TRIVIAL_TIMES + std::countr_zero(probe.reads & ~1u));
      node_.loops[i][0] = &Expression<F, N>::template loop<float>;
      node_.loops[i][1] = &Expression<F, N>::template loop<double>;
      if constexpr (WithComplex) {
        node_.loops[i][2] = &Expression<F, N>::template loop<Complex<float>>;
        node_.loops[i][3] = &Expression<F, N>::template loop<Complex<double>>;
      }
    }
  }

  mixgrad_registration node_{};
};

}  // namespace v1
}  // namespace mixgrad

#endif  // MIXGRAD_ELEMENTWISE_HPP
