// What the GELU kernels must reach, format by format: the limits that `outgrad report` holds the headers and sweeps against.
//
// The numbers are the project's own requirements, in absolute error of g = f' unless a name says otherwise. Behind them:
//   A      an eighth of the format's unit roundoff at 1/4 and below it, so that the fit vanishes beside what storing y costs
//   A + B  f32: less than PyTorch's own fp32 backward, which reads x and is off by 2^-21.8; 16 bit: two and one steps beyond A
//   T / O  2% above what any function of the stored (y, mask) can reach
//   R      two and four steps of the format: T / O alone would forgive an error of O everywhere
//   forward  f32: near x* an error of y is an error of g through sqrt(y - y*), so y has to be nearly correctly rounded there
//   operations  fma + add + mul from y to g; beyond, a 16-bit kernel would be bound by arithmetic and not by memory
#pragma once

#include <array>
#include <optional>

namespace outgrad::validation {

struct Targets {
  const char* format;
  double a, a_plus_b;
  double ratio;                             // max T / max O
  std::optional<double> regret;             // none: reported only
  std::optional<double> near_ulp, far_ulp;  // forward, |x - x*| <= 0.1 and elsewhere
  std::optional<int> misrounded;            // forward, x of the format: y other than the correctly rounded f(x)
  int operations;
};

inline constexpr std::array<Targets, 3> kTargets{{{"f32", 0x1p-26, 0x1p-23, 1.02, {}, 0.51, 2.0, {}, 11},
                                                  {"f16", 0x1p-13, 0x1p-12, 1.02, 0x1p-11, {}, {}, 0, 10},
                                                  {"bf16", 0x1p-10, 0x1p-9, 1.02, 0x1p-9, {}, {}, 0, 10}}};

/// Largest error of PyTorch's fp32 GELU backward, which reads x: 2^-21.8 (measured against the exact derivative).
inline constexpr double kPyTorchError = 2.7e-7;

/// Largest errors of Tempo's published piecewise polynomials (UofT-EcoSystem/Tempo, commit 17e1a0b, src/inplace_gelu/gelu_kernel.cu),
/// evaluated in fp32 as published, against the exact derivative.
struct TempoError {
  double x_from, x_to, error;
  const char* cause;
};
inline constexpr std::array<TempoError, 6> kTempoErrors{{
    {-12, -2, 0.27, "degree 13 in y across both singularities, cancellation of 1e5-sized terms in fp32"},
    {-2, -0.75, 0.018, "polynomial in y at a square-root branch point"},
    {-0.75, 0, 0.012, "the same, right branch"},
    {0, 0.5, 0.127, "end of a piece"},
    {1.13, 3, 2.70, "a piece adds its offset instead of subtracting it"},
    {3, 5, 0.0118, "g set to 1 from y = 3 on"},
}};

}  // namespace outgrad::validation
