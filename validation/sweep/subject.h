// The host kernels of one fit as the subject of a sweep.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "kernels/accuracy.h"
#include "kernels/activations.h"
#include "kernels/eval.h"
#include "kernels/formats.h"
#include "kernels/fitted_forward.h"
#include "kernels/host/elementwise.h"
#include "kernels/params.h"
#include "validation/sweep/fingerprint.h"
#include "validation/sweep/store_subject.h"
#include "validation/sweep/sweep.h"

namespace outgrad::validation {

/// The forward of a fused kernel that has x in f32 and stores y as T: the element body for T, applied to f32
/// x.
template <class Forward, class T, kernels::CpuSchedule S>
void fused_forward(const float* x, float* y, std::uint32_t* mask, std::int64_t n) {
  std::fill(mask, mask + (n + 31) / 32, 0);
  auto* const bytes = reinterpret_cast<std::uint8_t*>(mask);
  std::int64_t i = 0;
  if constexpr (S.vector_bits > 0) {
    constexpr kernels::detail::LanesOf<S, S.unroll> kOps{};
    for (; i + kOps.kElements <= n; i += kOps.kElements) {
      kernels::detail::forward_pack<Forward, T, false>(kOps, kOps.load(x + i), y + i, bytes + i / 8);
    }
  }
  for (; i < n; ++i) {
    mask[i / 32] |= static_cast<std::uint32_t>(kernels::evaluate_mask(kernels::FloatOps{}, Forward{}, x[i]))
                    << (i % 32);
    y[i] = kernels::fitted_forward_value<T>(kernels::FloatOps{}, Forward{},
                                            kernels::detail::kForwardTables<Forward>, x[i]);
  }
  std::transform(y, y + n, y, [](float v) { return kernels::widen(kernels::narrow<T>(v)); });
}

namespace detail {

// Any schedule gives the same bits. A sweep runs one block per thread.
inline constexpr kernels::CpuSchedule kSweepSchedule{
    .threads = 1, .vector_bits = kernels::kBestVectorBits, .unroll = 2};

/// The words of a table, which has rows or entries.
void add_table(Fingerprint& fingerprint, const auto& table) {
  for (const auto& row : table.w) {
    if constexpr (std::is_array_v<std::remove_cvref_t<decltype(row)>>) {
      fingerprint.add(row, std::size(row));
    } else {
      const auto word = static_cast<float>(row);  // 16 bits, so this is exact
      fingerprint.add(&word, 1);
    }
  }
}

/// What the header claims about itself.
template <class Fit>
std::vector<Claim> claims_of() {
  std::vector<Claim> claims;
  if constexpr (requires { Fit::kT; }) {
    claims.push_back({Claim::kTotal, Fit::kT});
    claims.push_back({Claim::kOracle, Fit::kO});
  } else if constexpr (requires {
                         Fit::kB;
                         requires !kernels::is_relative(Fit::kClass);
                       }) {
    // Between f' at y itself and the kernel lies what the header bounds: of each row A + B where it says so.
    double evaluation = Fit::kA + Fit::kB;
    if constexpr (requires { Fit::kAB; }) evaluation = Fit::kAB;
    if constexpr (requires { Fit::kK; }) evaluation += Fit::kK;
    claims.push_back({Claim::kEvaluation, std::nextafter(evaluation, 2.0)});
  }
  return claims;
}

/// Whether the compiled library runs this fit for y in its format.
template <class Fit, class T>
inline constexpr bool kShips = []<class... Each>(kernels::FitList<Each...>) {
  return (std::is_same_v<Fit, Each> || ...);
}(typename kernels::ActivationFits<T>::Type{});

/// The format whose numbers a y has that carries its branch, or its own.
template <class Y>
struct NumberOf {
  using Type = Y;
};
template <kernels::CarriesBranch Y>
struct NumberOf<Y> {
  using Type = typename kernels::Format<Y>::Carrier;
};

/// f' in fp32 at y, by the kernels' body of one element, whose bits all kernels have. Y is the format of y,
/// or float.
template <class Fit, class Y>
float derivative_at(const Y& y, bool m) {
  static constexpr auto kTable = kernels::table_of<Fit>();
  if constexpr (kernels::CarriesBranch<Y>)
    m = kernels::carried_mask(kernels::FloatOps{}, kernels::code_of(y));
  return kernels::activation_backward_element<Fit>(kTable, 1.0f, &y, m);
}

/// The same for n values and their mask. It looks up what has 16 bits: a sweep asks for each y many times.
template <class Fit, class Y>
void derivatives(const float* y, const std::uint32_t* mask, float* g, std::int64_t n) {
  using Number = typename NumberOf<Y>::Type;
  constexpr std::size_t kCodes = std::size_t{1} << 16;
  constexpr bool kOfNumbersAlone = kernels::CarriesBranch<Y> || kernels::kIsDirect<Fit>;
  static const std::vector<float> of_all = [] {
    const kernels::DefaultFloatEnvironment environment;
    std::vector<float> all(2 * kCodes);
    for (std::size_t k = 0; k < all.size(); ++k)
      all[k] = derivative_at<Fit>(Y{Number{static_cast<std::uint16_t>(k % kCodes)}}, k >= kCodes);
    return all;
  }();
  for (std::int64_t i = 0; i < n; ++i) {
    const bool m = mask != nullptr && (mask[i / 32] >> i % 32 & 1) != 0;
    const auto number = kernels::narrow<Number>(y[i]);
    g[i] = of_all[number.bits + (m ? kCodes : 0)];
    if constexpr (!kOfNumbersAlone) {
      if (kernels::widen(number) != y[i] && y[i] == y[i]) g[i] = derivative_at<Fit>(y[i], m);
    }
  }
}

/// Floats that are values of T, as these; and back.
template <class T>
std::vector<T> narrowed(const float* values, std::int64_t n) {
  std::vector<T> result(static_cast<std::size_t>(n));
  std::transform(values, values + n, result.begin(), [](float v) { return kernels::narrow<T>(v); });
  return result;
}
template <class T>
void widen_all(const std::vector<T>& values, float* to) {
  std::transform(values.begin(), values.end(), to, [](T v) { return kernels::widen(v); });
}

/// The backward of a fit: the compiled library's where it runs this fit, else the host kernel.
template <class Fit, class T>
decltype(Subject::backward) backward_of(const FloatFormat& format) {
  if constexpr (kShips<Fit, T>) {
    return library_backward(activation_number(Fit::kActivation), format);
  } else {
    return [](const float* dy, const float* y, const std::uint32_t* mask, float* dx, std::int64_t n) {
      const std::vector<T> stored = narrowed<T>(y, n);
      std::vector<T> gradients = narrowed<T>(dy, n);
      kernels::activation_backward<Fit, T, kSweepSchedule>(gradients.data(), stored.data(), mask,
                                                           gradients.data(), n);
      widen_all(gradients, dx);
    };
  }
}

/// dx at dy = 1.
inline decltype(Subject::derivative) at_one(const decltype(Subject::backward)& backward) {
  return [backward](const float* y, const std::uint32_t* mask, float* dx, std::int64_t n) {
    std::fill_n(dx, n, 1.0f);
    backward(dx, y, mask, dx, n);
  };
}

/// GELU's forward kernel. If x are values of T (every x of the domain T), they go through the kernel for T
/// itself. Other x, such as those of a fused bias or a wider accumulator, go through the same body on f32 x.
template <class Forward, class T>
void gelu_forward_of(const float* x, float* y, std::uint32_t* mask, std::int64_t n) {
  if constexpr (std::is_same_v<T, float>) {
    kernels::gelu_forward<Forward, float, kSweepSchedule>(x, y, mask, n);
  } else {
    const auto is_stored = [](float v) {
      return std::bit_cast<std::uint32_t>(kernels::widen(kernels::narrow<T>(v))) ==
                 std::bit_cast<std::uint32_t>(v) ||
             v != v;
    };
    if (!std::all_of(x, x + n, is_stored)) return fused_forward<Forward, T, kSweepSchedule>(x, y, mask, n);
    std::vector<T> buffer = narrowed<T>(x, n);
    kernels::gelu_forward<Forward, T, kSweepSchedule>(buffer.data(), buffer.data(), mask, n);
    widen_all(buffer, y);
  }
}

}  // namespace detail

/// The backward pass of a fit with y stored as T and f32 arithmetic. y is the correctly rounded f(x), as the
/// forwards in 16 bits give it, and m = [x >= x*]. `activation` is the header's activation.
template <class Fit, class T>
Subject make_backward_subject(const FloatFormat& format, const SweptActivation& activation) {
  Subject subject{std::string(Fit::kName) + "+rounded", format};
  subject.activation = &activation;
  subject.mask_from = activation.x_star;
  subject.own_forward = false;
  if constexpr (std::is_same_v<T, float>) {
    subject.derivative = detail::at_one(detail::backward_of<Fit, T>(format));
  } else {
    subject.derivative = detail::derivatives<Fit, T>;
    subject.backward = detail::backward_of<Fit, T>(format);
    subject.gradient = detail::at_one(subject.backward);
  }
  subject.claims = detail::claims_of<Fit>();
  if constexpr (requires { Fit::kExactLimits; }) {
    if (!Fit::kExactLimits) subject.limit_error = Fit::kA + Fit::kB;
  }
  Fingerprint fingerprint;
  static constexpr auto kTable = kernels::table_of<Fit>();
  detail::add_table(fingerprint, kTable);
  subject.identity = identity_of(subject, fingerprint);
  return subject;
}

/// The same with a forward of its own: GELU's kernel, or in f32 another activation's of the library.
template <class Fit, class Forward, class T>
Subject make_subject(const FloatFormat& format, const SweptActivation& activation = kGelu) {
  Subject subject = make_backward_subject<Fit, T>(format, activation);
  subject.name = std::string(Fit::kName) + "+" + Forward::kName;
  subject.own_forward = true;
  if constexpr (kernels::same_text(Forward::kActivation, "gelu")) {
    subject.forward = detail::gelu_forward_of<Forward, T>;
  } else {
    static_assert(std::is_same_v<T, float>);
    subject.forward = detail::library_forward(activation);
  }
  Fingerprint fingerprint;
  static constexpr auto kTable = kernels::table_of<Fit>();
  static constexpr auto kRows = Forward::table();
  detail::add_table(fingerprint, kTable);
  detail::add_table(fingerprint, kRows);
  if constexpr (requires { Forward::tail(); }) {
    static constexpr auto kTail = Forward::tail();
    detail::add_table(fingerprint, kTail);
  }
  subject.identity = identity_of(subject, fingerprint);
  return subject;
}

}  // namespace outgrad::validation
