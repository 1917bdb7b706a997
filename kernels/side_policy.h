// Which channels of a norm need a side buffer, tested while a model trains: gamma and beta drift, and the
// channels were chosen for other values.
//
// The policy is that of `outgrad stability` (validation/README.md). The stored output tells a channel's x^
// well enough if storing it moves an x^ of magnitude 1 by at most tau,
//   u (1 + |beta / gamma|) + (a + 2^-149) / |gamma| + 3 2^-24 <= tau,
// where u is the format's unit roundoff and a half its least subnormal number; if 1 / gamma is a normal fp32
// number; and if y cannot overflow where |x^| <= 6. Here the first is |beta| <= slope |gamma| - floor,
// without a division.
//
// Channels are chosen with a margin: those that are told well enough for tau / 2 have none. A channel beyond
// it is near: the channels should be chosen again, but its gradients are still within their bounds. A channel
// beyond tau is lost: its gradients, and those of its rows, are NaN.
#pragma once

#include "kernels/formats.h"

namespace outgrad::kernels {

// Limits that say which channels are told well enough, all on magnitudes.
struct SideLimits {
  float slope = 0, floor = 0;  // of beta
  float least = 0, greatest = 0;  // of gamma: both are outside
  float overflow = 0;  // of 6 gamma + beta: outside
};

// What a norm's forward tests: `near` and `lost`, and where it says so. seen[0] becomes 1 if a channel
// without a side buffer is beyond the one, and seen[1] if it is beyond the other; nothing else is written.
// Null: nothing is tested.
struct SideWatch {
  SideLimits near{}, lost{};
  i32* seen = nullptr;
};

// What a norm's backward tests.
struct SideGuard {
  SideLimits lost{};
  i32 tests = 0;  // 0: nothing is tested
};

}  // namespace outgrad::kernels

namespace outgrad::kernels::inline OUTGRAD_ABI {

// Whether the output tells this channel well enough. A NaN in gamma or beta is not told.
OUTGRAD_HD bool is_told(const SideLimits& limits, float gamma, float beta) {
  const float g = float_of(bits_of(gamma) & 0x7fffffffu), b = float_of(bits_of(beta) & 0x7fffffffu);
  return b <= sub_rn(mul_rn(limits.slope, g), limits.floor) && g > limits.least && g < limits.greatest &&
         fma_rn(6.0f, g, b) < limits.overflow;
}

#ifndef __CUDACC_RTC__
namespace detail {

struct StoredIn {
  double unit, half_subnormal, overflow;
};
template <class T>
inline constexpr StoredIn kStoredIn{};
template <>
inline constexpr StoredIn kStoredIn<float>{0x1p-24, 0.0, 0x1.fffffep127};
template <>
inline constexpr StoredIn kStoredIn<F16>{0x1p-11, 0x1p-25, 65520.0};
template <>
inline constexpr StoredIn kStoredIn<BF16>{0x1p-8, 0x1p-134, 0x1.ffp127};

// A tau below what storing any y costs leaves no channel told: the slope is negative.
template <class T>
constexpr SideLimits side_limits(double tau, double least, double greatest, double overflow) {
  constexpr StoredIn kIn = kStoredIn<T>;
  return {static_cast<float>((tau - 0x3p-24 - kIn.unit) / kIn.unit),
          static_cast<float>((kIn.half_subnormal + 0x1p-149) / kIn.unit), static_cast<float>(least),
          static_cast<float>(greatest), static_cast<float>(overflow)};
}

}  // namespace detail

// The limits lie a little beyond tau / 2, so that a channel which was chosen in float64 is never near at
// once, and a little within tau, so that fp32's roundings lose no channel.
template <class T>
constexpr SideLimits near_limits(double tau) {
  return detail::side_limits<T>(tau / 2 * (1 + 0x1p-10), 0x1p-127, 0x1p125,
                                detail::kStoredIn<T>.overflow / 2);
}
template <class T>
constexpr SideLimits lost_limits(double tau) {
  return detail::side_limits<T>(tau * (1 - 0x1p-10), 0x1p-128, 0x1p126,
                                detail::kStoredIn<T>.overflow * (1 - 0x1p-9));
}

#endif  // __CUDACC_RTC__

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
