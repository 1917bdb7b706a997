// What may be kept in place of y and a bit, as the subject of a sweep: the codes of a header for f'(x), and a
// y that carries its branch. Each x has one error there, or one for each dither. In MXFP8, and in 8 or 4 bits
// at a scale, the error of an x also depends on its block or tensor; over all of these `check` proves the
// bound.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/codes.h"
#include "kernels/host/code.h"
#include "kernels/host/parity.h"
#include "validation/sweep/subject.h"

namespace outgrad::validation {
namespace detail {

inline constexpr kernels::u64 kDrawnDithers = 1;  // the seed of the dithers that the kernels draw
// those that there are: dither_of has as many values, each for as many words
inline constexpr std::uint32_t kDithers = 1u << 23;
inline float dither_numbered(std::uint32_t number) { return kernels::dither_of(number << 9); }

/// The gradient of x over all dithers, see sweep.h. g is f'(x) as the kernels compute it.
inline VariedGradient over_dithers(const kernels::CodeRule& rule, float g, double want) {
  const auto code_at = [&](std::uint32_t dither) {
    return kernels::coded_gradient(rule, g, dither_numbered(dither));
  };
  const float in_cells = kernels::in_cells(kernels::FloatOps{}, rule, g);
  const std::uint32_t last_code = code_at(kDithers - 1);
  VariedGradient all{2, -2, 0, 0, 0, 0};  // f' and what codes stand for lie between
  for (std::uint32_t first = 0, end = 0; first < kDithers; first = end) {
    const kernels::u8 code = code_at(first);
    end = kDithers;
    if (code != last_code) {  // the first dither of a larger code, from where it is without roundings
      const double guess = (code + 1.0 - static_cast<double>(in_cells)) * kDithers;
      end = static_cast<std::uint32_t>(std::clamp(guess, first + 1.0, kDithers - 1.0));
      while (end > first + 1 && code_at(end - 1) > code) --end;
      while (code_at(end) <= code) ++end;
    }
    const float from = dither_numbered(first), to = dither_numbered(end - 1);
    const float greatest = kernels::gradient_of_code(rule, code, from),
                least = kernels::gradient_of_code(rule, code, to);
    if (greatest > all.greatest) all.greatest = greatest, all.greatest_at = from;
    if (least < all.least) all.least = least, all.least_at = to;
    const double count = end - first, share = count / kDithers,
                 step = static_cast<double>(rule.step) / kDithers;
    const double error = (code - (static_cast<double>(from) + to) / 2) * rule.step + rule.first - want;
    all.error += share * error;
    all.square += share * (error * error + step * step * (count * count - 1) / 12);
  }
  return all;
}

/// Values of T from floats that are such values.
template <class T>
void narrow_all(const float* from, T* to, std::int64_t n) {
  std::transform(from, from + n, to, [](float v) { return kernels::narrow<T>(v); });
}

/// The identity of all stores together.
inline std::string identity_of_stores(const Subject& subject) {
  Fingerprint fingerprint;
  for (const Subject& store : subject.stores) {
    const std::string one = identity_of(store, {});
    fingerprint.add(one.data(), one.size());
  }
  return fmt::format("{:016x}", fingerprint.value());
}

/// A subject without functions, of which `stores` is to be filled.
inline Subject subject_of_stores(const std::string& name, const FloatFormat& format,
                                 const SweptActivation& activation) {
  Subject subject{name, format, {}, {}, {}, {}};
  subject.activation = &activation, subject.mask_from = activation.x_star;
  subject.code = true, subject.own_forward = false, subject.swept = SweptX::own;
  return subject;
}

/// The number at place i of packed ones of at most 8 bits, of which one byte more than they take is there;
/// and puts one where the bits are 0.
inline std::uint32_t bits_at(const std::uint8_t* packed, int bits, std::int64_t i) {
  const std::int64_t bit = i * bits;
  const std::uint32_t two = packed[bit / 8] | static_cast<std::uint32_t>(packed[bit / 8 + 1]) << 8;
  return two >> bit % 8 & ((1u << bits) - 1);
}
inline void put_bits(std::uint8_t* packed, int bits, std::int64_t i, std::uint32_t number) {
  const std::int64_t bit = i * bits;
  packed[bit / 8] = static_cast<std::uint8_t>(packed[bit / 8] | number << bit % 8);
  packed[bit / 8 + 1] = static_cast<std::uint8_t>(packed[bit / 8 + 1] | number >> (8 - bit % 8));
}

template <class A, class T>
Subject code_store(const Subject& common, int bits, bool dithered) {
  static constexpr kernels::CodeRange kRange{A::Code::kLo, A::Code::kHi};
  const kernels::CodeChoice choice{bits, dithered ? &kDrawnDithers : nullptr};
  Subject store = common;
  store.name = fmt::format("code of {} bit{}{}", bits, bits == 1 ? "" : "s", dithered ? ", dithered" : "");
  store.claims.push_back({Claim::kTotal, kernels::code_error<typename A::Code>(bits, dithered)});
  if (dithered) store.claims.push_back({Claim::kBias, A::Code::kBias});
  store.limit_error = store.claims.front().limit;
  store.forward = [choice](const float* x, float* code, std::uint32_t*, std::int64_t n) {
    alignas(64) T from[kLargestBlock], y[kLargestBlock];
    std::uint8_t packed[kLargestBlock + 1] = {};
    narrow_all(x, from, n);
    kernels::activation_forward_code<A, T, kSweepSchedule>(choice, from, y, packed, n);
    for (std::int64_t i = 0; i < n; ++i) code[i] = static_cast<float>(bits_at(packed, choice.bits, i));
  };
  const auto backward = [choice](const float* code, auto* dx, std::int64_t n) {
    using D = std::remove_pointer_t<decltype(dx)>;
    std::uint8_t packed[kLargestBlock + 1] = {};
    for (std::int64_t i = 0; i < n; ++i) {
      const int most = (1 << choice.bits) - 1;
      put_bits(
          packed, choice.bits, i,
          code[i] >= 0 && code[i] <= static_cast<float>(most) ? static_cast<std::uint32_t>(code[i]) : 0u);
    }
    std::fill_n(dx, n, kernels::narrow<D>(1.0f));
    kernels::activation_backward_code<D, kSweepSchedule>(kRange, choice, dx, packed, dx, n);
  };
  store.derivative = [backward](const float* code, const std::uint32_t*, float* g, std::int64_t n) {
    backward(code, g, n);
  };
  if constexpr (!std::is_same_v<T, float>) {
    store.gradient = [backward](const float* code, const std::uint32_t*, float* dx, std::int64_t n) {
      alignas(64) T result[kLargestBlock];
      backward(code, result, n);
      std::transform(result, result + n, dx, [](T v) { return kernels::widen(v); });
    };
  }
  if (dithered) {
    store.varied = [rule = kernels::rule_of(choice, kRange)](const float* x, const double* want,
                                                             VariedGradient* result, std::int64_t n) {
      for (std::int64_t i = 0; i < n; ++i)
        result[i] =
            over_dithers(rule, kernels::gradient_at<typename A::template Forward<float>>(x[i]), want[i]);
    };
  }
  return store;
}

}  // namespace detail

/// The codes that an activation's header bounds, for x of T, through the host kernels that users call: exact
/// ones of 1 to 8 bits, and dithered ones of 2 and 3. `activation` is the header's activation.
template <class A, class T>
Subject make_codes_subject(const FloatFormat& format, const SweptActivation& activation) {
  Subject subject =
      detail::subject_of_stores(fmt::format("{}_{}+codes", A::Code::kName, format.name), format, activation);
  subject.scattered = true;
  Subject store = subject;
  for (int bits = 1; bits <= kernels::kMostCodeBits; ++bits)
    subject.stores.push_back(detail::code_store<A, T>(store, bits, false));
  for (int bits = kernels::kLeastDitheredBits; bits <= kernels::kMostDitheredBits; ++bits)
    subject.stores.push_back(detail::code_store<A, T>(store, bits, true));
  subject.identity = detail::identity_of_stores(subject);
  return subject;
}

/// A y in 16 bits that carries its branch, through the host kernels. The y itself is the code.
template <class Fit, class Y>
Subject make_parity_subject(const FloatFormat& format, const SweptActivation& activation) {
  using T = typename kernels::Format<Y>::Carrier;
  static constexpr std::int64_t kLargestBlock = detail::kLargestBlock;
  Subject subject = detail::subject_of_stores(fmt::format("{}+branch", Fit::kName), format, activation);
  Subject store = subject;
  store.name = "y with its branch";
  store.claims = detail::claims_of<Fit>();
  store.forward = [](const float* x, float* kept, std::uint32_t*, std::int64_t n) {
    alignas(64) T from[kLargestBlock];
    alignas(64) Y y[kLargestBlock];
    detail::narrow_all(x, from, n);
    kernels::activation_forward_parity<kernels::ParityForward<Fit>, Y, detail::kSweepSchedule>(from, y, n);
    std::transform(y, y + n, kept, [](Y v) { return kernels::widen(v); });
  };
  const auto backward = [](const float* kept, auto* dx, std::int64_t n) {
    using D = std::remove_pointer_t<decltype(dx)>;
    alignas(64) Y y[kLargestBlock];
    std::transform(kept, kept + n, y, [](float v) { return Y{kernels::narrow<T>(v)}; });
    std::fill_n(dx, n, kernels::narrow<D>(1.0f));
    kernels::activation_backward<Fit, D, detail::kSweepSchedule, Y>(dx, y, nullptr, dx, n);
  };
  store.derivative = [backward](const float* kept, const std::uint32_t*, float* g, std::int64_t n) {
    backward(kept, g, n);
  };
  store.gradient = [backward](const float* kept, const std::uint32_t*, float* dx, std::int64_t n) {
    alignas(64) T result[kLargestBlock];
    backward(kept, result, n);
    std::transform(result, result + n, dx, [](T v) { return kernels::widen(v); });
  };
  subject.stores.push_back(std::move(store));
  subject.identity = detail::identity_of_stores(subject);
  return subject;
}

}  // namespace outgrad::validation
