// What the GELU kernels must reach, format by format, and less of the others: the limits against which
// `outgrad report` checks the headers and sweeps.
//
// The numbers are the project's own requirements, in absolute error of g = f' unless a name says otherwise.
// Their reasons:
//   A      an eighth of the format's unit roundoff at 1/4 and below it, so that the fit's error is negligible
//          beside the cost of storing y
//   A + B  f32: less than PyTorch's own fp32 formula, which reads x (its error is in the sweep of gelu_f32);
//          16 bit: two and one steps beyond A
//   T / O  2% above what any function of the stored (y, mask) can reach
//   R      two and four steps of the format, because T / O alone would allow an error of O everywhere
//   forward  f32: near x* an error of y is an error of g through sqrt(y - y*), so y must be nearly correctly
//            rounded there
//   operations  fma + add + mul from y to g; with more, a 16-bit kernel would be limited by arithmetic and
//               not by memory
#pragma once

#include <array>
#include <optional>

namespace outgrad::validation {

struct Targets {
  const char* format;
  double a, a_plus_b;
  double ratio;  // max T / max O
  std::optional<double> regret;  // none: only reported
  std::optional<double> near_ulp, far_ulp;  // of the forward, |x - x*| <= 0.1 and elsewhere
  // of the forward, x of the format: y that differ from the correctly rounded f(x)
  std::optional<int> misrounded;
  int operations;
};

inline constexpr std::array<Targets, 3> kTargets{{{"f32", 0x1p-26, 0x1p-23, 1.02, {}, 0.51, 2.0, {}, 11},
                                                  {"f16", 0x1p-13, 0x1p-12, 1.02, 0x1p-11, {}, {}, 0, 10},
                                                  {"bf16", 0x1p-10, 0x1p-9, 1.02, 0x1p-9, {}, {}, 0, 10}}};

/// Of the f32 forwards of other activations, in ulp: next to x*, in the left tail, and elsewhere. tanh-GELU's
/// f'/f is about 25 at the end of its tail, and its error the largest there.
/// Mish is off by one of the least floats for an x of 2^-125, and a rounding of that bound more.
inline constexpr double kOtherNearUlp = 0.65, kOtherTailUlp = 1.2, kOtherUlp = 1 + 0x1p-20;

/// max T / max O of other activations' defaults. In bf16, for two of them no function of (y, bit) gets below
/// 1.025 (approx/search/constants.h, least_ratio).
inline constexpr double kOtherRatio = 1.05;

/// What a search against the bounds of LayerNorm and RMSNorm must show: no violation in this many
/// evaluations, and a median bound of at most this many times the largest error found.
struct AttackTargets {
  double evaluations, violations, tightness;
};
inline constexpr AttackTargets kAttackTargets{1e8, 0, 4};

}  // namespace outgrad::validation
