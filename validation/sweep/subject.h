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

#include "kernels/activations.h"
#include "kernels/eval.h"
#include "kernels/formats.h"
#include "kernels/gelu.h"
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
    y[i] = kernels::gelu_forward_value<T>(kernels::FloatOps{}, Forward{},
                                          kernels::detail::kForwardTables<Forward>, x[i]);
  }
  std::transform(y, y + n, y, [](float v) { return kernels::widen(kernels::narrow<T>(v)); });
}

namespace detail {

// Any schedule gives the same bits. A sweep runs one block per thread.
inline constexpr kernels::CpuSchedule kSweepSchedule{
    .threads = 1, .vector_bits = kernels::kBestVectorBits, .unroll = 2};
inline constexpr std::int64_t kLargestBlock = 4096;

/// The words of a fit's table, which has rows or entries.
template <class Fit>
void add_table(Fingerprint& fingerprint) {
  constexpr auto kTable = kernels::table_of<Fit>();
  if constexpr (kernels::kIsDirect<Fit>) {
    for (const auto entry : kTable.w) {
      const auto word = static_cast<float>(entry);  // 16 bits, so this is exact
      fingerprint.add(&word, 1);
    }
  } else {
    for (const auto& row : kTable.w) fingerprint.add(row, std::size(row));
  }
}

/// What the header claims about itself.
template <class Fit>
std::vector<Claim> claims_of() {
  std::vector<Claim> claims;
  if constexpr (requires { Fit::kT; }) {
    claims.push_back({Claim::kTotal, Fit::kT});
    claims.push_back({Claim::kOracle, Fit::kO});
  } else if constexpr (requires { Fit::kB; }) {
    // Between f' at y itself and the kernel lies what the header bounds: of each row A + B where it says so.
    double evaluation = 0;
    if constexpr (requires { Fit::kAB; }) {
      evaluation = Fit::kAB;
    } else {
      evaluation = Fit::kA + Fit::kB;
    }
    if constexpr (requires { Fit::kK; }) evaluation += Fit::kK;
    claims.push_back({Claim::kEvaluation, std::nextafter(evaluation, 2.0)});
  }
  return claims;
}

/// Whether a 16-bit format's backward in the compiled library runs this fit.
template <class Fit, class T>
constexpr bool ships() {
  if constexpr (std::is_same_v<T, float>) {
    return false;
  } else {
    return []<class... Each>(kernels::FitList<Each...>) {
      return (std::is_same_v<Fit, Each> || ...);
    }(typename kernels::ActivationFits<T>::Type{});
  }
}
template <class Fit, class T>
inline constexpr bool kShips = ships<Fit, T>();

/// f' in fp32 of a y that carries its branch.
template <class Fit, class Y>
void parity_derivative(const float* kept, const std::uint32_t*, float* g, std::int64_t n) {
  alignas(64) Y y[kLargestBlock];
  std::transform(kept, kept + n, y,
                 [](float v) { return Y{kernels::narrow<typename kernels::Format<Y>::Carrier>(v)}; });
  std::fill_n(g, n, 1.0f);
  kernels::activation_backward<Fit, float, kSweepSchedule, Y>(g, y, nullptr, g, n);
}

}  // namespace detail

/// The backward pass of a fit with y stored as T and f32 arithmetic: in the format through the compiled
/// library where it runs this fit, else, and for f' in fp32, through the host kernel. y is the correctly
/// rounded f(x), and m = [x >= x*]. `activation` is the header's activation.
template <class Fit, class T>
Subject make_backward_subject(const FloatFormat& format, const SweptActivation& activation) {
  using kernels::narrow;
  using kernels::widen;
  static constexpr kernels::CpuSchedule kSchedule = detail::kSweepSchedule;
  static constexpr std::int64_t kLargestBlock = detail::kLargestBlock;

  Subject subject{std::string(Fit::kName) + "+rounded", format, {}, {}, {}, {}};
  subject.activation = &activation;
  subject.mask_from = activation.x_star;
  subject.own_forward = false;
  subject.derivative = [](const float* y, const std::uint32_t* mask, float* g, std::int64_t n) {
    std::fill_n(g, n, 1.0f);
    if constexpr (kernels::kIsDirect<Fit>) {  // indexed by the bits of y as stored
      alignas(64) T stored[kLargestBlock];
      for (std::int64_t begin = 0; begin < n; begin += kLargestBlock) {
        const std::int64_t count = std::min(kLargestBlock, n - begin);
        std::transform(y + begin, y + begin + count, stored, [](float v) { return narrow<T>(v); });
        kernels::activation_backward<Fit, float, kSchedule, T>(g + begin, stored, mask + begin / 32,
                                                               g + begin, count);
      }
    } else {
      kernels::activation_backward<Fit, float, kSchedule>(g, y, mask, g, n);
    }
  };
  if constexpr (detail::kShips<Fit, T>) {
    subject.backward = detail::library_backward(detail::activation_number(Fit::kActivation), format);
  } else if constexpr (!std::is_same_v<T, float>) {
    subject.backward = [](const float* dy, const float* y, const std::uint32_t* mask, float* dx,
                          std::int64_t n) {
      alignas(64) T stored[kLargestBlock], result[kLargestBlock];
      for (std::int64_t begin = 0; begin < n; begin += kLargestBlock) {
        const std::int64_t count = std::min(kLargestBlock, n - begin);
        std::transform(y + begin, y + begin + count, stored, [](float v) { return narrow<T>(v); });
        std::transform(dy + begin, dy + begin + count, result, [](float v) { return narrow<T>(v); });
        kernels::activation_backward<Fit, T, kSchedule>(result, stored, mask + begin / 32, result, count);
        std::transform(result, result + count, dx + begin, [](T v) { return widen(v); });
      }
    };
  }
  if (subject.backward) {
    subject.gradient = [backward = subject.backward](const float* y, const std::uint32_t* mask, float* dx,
                                                     std::int64_t n) {
      std::fill_n(dx, n, 1.0f);
      backward(dx, y, mask, dx, n);
    };
  }
  subject.claims = detail::claims_of<Fit>();
  if constexpr (requires { Fit::kExactLimits; }) {
    if (!Fit::kExactLimits) subject.limit_error = Fit::kA + Fit::kB;
  }
  Fingerprint fingerprint;
  detail::add_table<Fit>(fingerprint);
  subject.identity = identity_of(subject, fingerprint);
  return subject;
}

/// The same with GELU's forward kernel. If x are values of T (every x of the domain T), they go through the
/// kernel for T itself. Other x, such as those of a fused bias or a wider accumulator, go through the same
/// body on f32 x.
template <class Fit, class Forward, class T>
Subject make_subject(const FloatFormat& format) {
  static constexpr kernels::CpuSchedule kSchedule = detail::kSweepSchedule;
  static constexpr std::int64_t kLargestBlock = detail::kLargestBlock;
  using kernels::narrow;
  using kernels::widen;

  Subject subject = make_backward_subject<Fit, T>(format, kGelu);
  subject.name = std::string(Fit::kName) + "+" + Forward::kName;
  subject.own_forward = true;
  subject.forward = [](const float* x, float* y, std::uint32_t* mask, std::int64_t n) {
    if constexpr (!std::is_same_v<T, float>) {
      const auto is_stored = [](float v) {
        return std::bit_cast<std::uint32_t>(widen(narrow<T>(v))) == std::bit_cast<std::uint32_t>(v) || v != v;
      };
      if (std::all_of(x, x + n, is_stored)) {
        alignas(64) T buffer[kLargestBlock];
        for (std::int64_t begin = 0; begin < n; begin += kLargestBlock) {
          const std::int64_t count = std::min(kLargestBlock, n - begin);
          std::transform(x + begin, x + begin + count, buffer, [](float v) { return narrow<T>(v); });
          kernels::gelu_forward<Forward, T, kSchedule>(buffer, buffer, mask + begin / 32, count);
          std::transform(buffer, buffer + count, y + begin, [](T v) { return widen(v); });
        }
        return;
      }
      fused_forward<Forward, T, kSchedule>(x, y, mask, n);
    } else {
      kernels::gelu_forward<Forward, float, kSchedule>(x, y, mask, n);
    }
  };
  subject.claims = detail::claims_of<Fit>();

  Fingerprint fingerprint;
  detail::add_table<Fit>(fingerprint);
  constexpr auto kRows = Forward::table();
  for (const auto& row : kRows.w) fingerprint.add(row, std::size(row));
  if constexpr (!kernels::kIsRoundedForward<Forward>) {
    constexpr auto kTail = Forward::tail();
    for (const auto& row : kTail.w) fingerprint.add(row, std::size(row));
  }
  subject.identity = identity_of(subject, fingerprint);
  return subject;
}

}  // namespace outgrad::validation
