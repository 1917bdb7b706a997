// Codes of 8 bits for softmax's output p, which are all that its backward pass needs:
//
//   p_i = exp(s_i) / sum_j exp(s_j),   ds_i = p_i (dp_i - D),   D = sum_j p_j dp_j.
//
// The code. [2^-24, 1] is cut into 256 cells of 3/32 octave. Code c > 0 is the cell (2^(3 (c - 256) / 32),
// 2^(3 (c - 255) / 32)] and stands for the harmonic mean p' of its ends a and b, 2 a b / (a + b): |p' - p| /
// p is largest at both ends and equal there, (r - 1) / (r + 1) = 0.0324799 with r = 2^(3/32), and no other p'
// has a smaller maximum. As sum(p) = 1, cells of equal ratio bound e1 = sum |p' - p| by this number, however
// p is spread. Code 0 stands for p' = 0 and is for what lies below 2^(-24 + 3/32), a masked p = 0 among it.
//
// Which cell fp32 arithmetic gives a p next to a boundary does not follow from this. So the claims below
// (kSoftmaxCell, kSoftmaxLeast) are about the codes as computed, for every fp32 number
// (validation/softmax/code.h).
//
// The gradient from codes, with P' = sum(p'):
//
//   ds'_i = p'_i (dp_i - D'),   D' = sum_j p'_j dp_j / P'.
//
// Without the division by P' the error would grow with |dp|, and a row with a single p = 1, whose gradient is
// 0, would get another one. p'_i itself is not divided by P': that would double the bound of a single
// element. Let e_i = p'_i - p_i. Then P' (D' - D) = sum_j e_j (dp_j - D), so
//
//   ds'_i - ds_i = e_i (dp_i - D) - p'_i (D' - D)   and   sum_i |ds'_i - ds_i| <= 2 sum_i |e_i| |dp_i - D|.
//
// Where |e_i| <= c p_i, the right side is 2 c sum |ds_i|: a relative error in the norm of sums, whatever dp
// is. The factor 2 cannot be less: let a small part q of p have dp = +-1, and all else dp = D = 0; let e_i be
// +-c p_i with the sign of dp_i in that part and + elsewhere; the error tends to 2 c sum |ds_i| as q tends to
// 0. What has code 0 adds at most 2 p_i R, where R is the range of dp (max - min). In terms of e1 alone the
// bound is 2 e1 R.
//
// fp32. The forward computes e_i, the exp of s_i less a number that is the row's own, within kSoftmaxExp of
// it (softmax_exp), sums by the tree of kernels/reduce.h, and divides. So p is off by two errors of e and by
// depth + 1 roundings by u = 2^-24, where depth is the tree's (softmax_forward_error); below 2^-126 by up to
// 2^-150 more, but there it has code 0. An s that is less than the greatest by more than 112 is taken for 112
// less: its p is 0 either way, and all such terms together are less than 2^-137 of the sum. The sums of the
// backward make depth + 1 and depth roundings, and the quotient, the difference and the product one each.
//
// Specified cases. s = -inf gives p = 0 and ds = 0 (for finite dp). A row with a NaN, with +inf, or with
// nothing but -inf has p = NaN. All its codes are 0, which no other row of at most kMostSoftmax elements has,
// because the largest p is at least 1 / n. So P' = 0, and all its ds are NaN.
#pragma once

#include "kernels/eval.h"
#include "kernels/portable.h"
#include "kernels/reduce.h"
#include "kernels/stores/code.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

// Longer rows are refused: all their p may lie below the least code.
inline constexpr i64 kMostSoftmax = i64{1} << 23;

// 32 codes make 3 octaves.
inline constexpr int kSoftmaxRows = 32, kSoftmaxOctaves = 3;
// Code 0 without its exception: p' of the lowest cell.
inline constexpr double kSoftmaxFirst = 0x1p-24, kSoftmaxRatio = 0x1.11301d0125b51p+0;  // 2^(3/32)

// code = RN(log2(p) 32/3 + 255.5), clamped: half a cell above the middle of the cell's number, since its
// upper end belongs to it.
inline constexpr CodeRule kSoftmaxRule{32.0f / 3, 255.5f, 255.0f, 0, 0.0f, 0.0f};
// What is smaller has code 0. Zeros, NaN and negative numbers take this way too.
inline constexpr float kSoftmaxClamp = 0x1p-25f;

// log2(1 + t) / t for sqrt(1/2) <= 1 + t <= sqrt(2): the best polynomial of its degree for log2(1 + t), of
// which it is off by 2^-21.6 (tests/approx/search/remez_test.cpp computes both).
inline constexpr int kSoftmaxLog2Degree = 6;
struct SoftmaxLog2 {
  float c[kSoftmaxLog2Degree + 1];
};
inline constexpr SoftmaxLog2 kSoftmaxLog2{{0x1.7154c4p+0f, -0x1.71582ep-1f, 0x1.ebff06p-2f, -0x1.6f93b2p-2f,
                                           0x1.30659ap-2f, -0x1.173e2p-2f, 0x1.5d75ap-3f}};

// log2(p) of a positive normal number: k + log2(m), m in [sqrt(1/2), sqrt(2)).
template <class Ops>
OUTGRAD_HD typename Ops::Value log2_of(const Ops& ops, const typename Ops::Value& p) {
  constexpr SoftmaxLog2 kLog2 = kSoftmaxLog2;  // see softmax_coded
  const auto t = ops.sub(ops.significand(p), ops.constant(1.0f));
  auto q = ops.constant(kLog2.c[kSoftmaxLog2Degree]);
  OUTGRAD_UNROLL
  for (int n = kSoftmaxLog2Degree - 1; n >= 0; --n) q = ops.fma(q, t, ops.constant(kLog2.c[n]));
  return ops.fma(q, t, ops.exponent(p));
}

// 2^23 + the code of p.
template <class Ops>
OUTGRAD_HD typename Ops::Value softmax_coded(const Ops& ops, const typename Ops::Value& p) {
  // in nvcc's device code the reference takes an object of the function's own
  constexpr CodeRule kRule = kSoftmaxRule;
  const auto least = ops.constant(kSoftmaxClamp);
  return coded(ops, kRule, in_cells(ops, kRule, log2_of(ops, ops.select(ops.less(least, p), p, least))));
}

OUTGRAD_HD u8 softmax_code(float p) { return static_cast<u8>(bits_of(softmax_coded(FloatOps{}, p))); }

// p' of the codes of the lowest 3 octaves; those 32 above are 8 times as large.
struct alignas(64) SoftmaxTable {
  float w[kSoftmaxRows];

  OUTGRAD_HD constexpr SoftmaxTable() : w() {
    double p = kSoftmaxFirst * (2 * kSoftmaxRatio / (1 + kSoftmaxRatio));
    for (int row = 0; row < kSoftmaxRows; ++row, p *= kSoftmaxRatio) w[row] = static_cast<float>(p);
  }
};

OUTGRAD_HD float softmax_of_code(u8 code) {
  static constexpr SoftmaxTable kTable{};
  const u32 octaves = code / kSoftmaxRows * kSoftmaxOctaves;
  return code == 0 ? 0.0f : float_of(bits_of(kTable.w[code % kSoftmaxRows]) + (octaves << 23));
}

// What the exps of a row have in common. Moving all s by one number changes no p. Here it is not the greatest
// s but the multiple of log 2 next to it, M log 2: s - M log 2 = (k - M) log 2 + r takes one reduction of s,
// and no difference of two s, which fp32 may not hold. Of a large s that reduction is inaccurate. So where
// the greatest s is beyond kSoftmaxNear, it is subtracted first. This is exact for every s that is less by up
// to 112, because the two are within a factor of 2.
struct SoftmaxExp {
  float origin;  // that is subtracted: 0, or the greatest s
  float least;  // of s - origin
  float base;  // kSoftmaxToInteger - M
};

inline constexpr float kSoftmaxNear = 256, kSoftmaxReach = 112;
inline constexpr float kSoftmaxLog2e = 0x1.715476p0f;
// The sum of this and a number has the nearest integer n in its last bits, as the exponent field of 2^(n +
// 64). The 2^64, which the quotient of two e does not have, keeps every e normal.
inline constexpr float kSoftmaxToInteger = 0x1.8p23f + 127 + 64;

inline constexpr int kSoftmaxDegree = 4;
struct SoftmaxQ {
  float c[kSoftmaxDegree + 1];
};
// (exp(r) - 1 - r) / r^2 for |r| <= 0.3466: the best polynomial of its degree for the relative error of
// exp(r). With rounded coefficients this is 0.064 2^-24 (tests/approx/search/remez_test.cpp computes both).
inline constexpr SoftmaxQ kSoftmaxQ{
    {0x1.fffffcp-2f, 0x1.555492p-3f, 0x1.5558f2p-5f, 0x1.1239ep-7f, 0x1.6a243ap-10f}};

// All e of the row are NaN if the greatest s is infinite.
OUTGRAD_HD SoftmaxExp softmax_exp_of(float greatest) {
  const bool near = -kSoftmaxNear <= greatest && greatest <= kSoftmaxNear;
  const float origin = near ? 0.0f : greatest, top = sub_rn(greatest, origin);
  const float m = sub_rn(fma_rn(top, kSoftmaxLog2e, kSoftmaxToInteger), kSoftmaxToInteger);
  return {origin, sub_rn(top, kSoftmaxReach), sub_rn(kSoftmaxToInteger, m)};
}

// e = 2^(64 + k - M) (1 + r + r^2 q), where s - origin = k log 2 + r and |r| < 0.3466.
//
// The first fma for r is exact: if k is not 0, it subtracts multiples of 2^-25 and leaves less than 1/2. Both
// parts of log 2 together are off by less than 2^-53. What counts for kSoftmaxExp are three roundings: of r
// and r + r^2 q by up to u / 4 each, and of e.
template <class Ops>
OUTGRAD_HD typename Ops::Value softmax_exp(const Ops& ops, const SoftmaxExp& row,
                                           const typename Ops::Value& s) {
  constexpr float kLog2High = 0x1.62e43p-1f, kLog2Low = -0x1.05c61p-29f;
  constexpr SoftmaxQ kQ = kSoftmaxQ;  // see softmax_coded
  const auto base = ops.constant(row.base);
  const auto x = ops.at_least(ops.sub(s, ops.constant(row.origin)), ops.constant(row.least));
  const auto t = ops.fma(x, ops.constant(kSoftmaxLog2e), base), k = ops.sub(t, base);
  const auto r = ops.fma(k, ops.constant(-kLog2Low), ops.fma(k, ops.constant(-kLog2High), x));
  auto q = ops.constant(kQ.c[kSoftmaxDegree]);
  OUTGRAD_UNROLL
  for (int n = kSoftmaxDegree - 1; n >= 0; --n) q = ops.fma(q, r, ops.constant(kQ.c[n]));
  const auto scale = ops.shifted(t, 23);
  return ops.fma(scale, ops.fma(ops.mul(r, r), q, r), scale);
}

// A row's sum, by which its e are divided.
struct SoftmaxSum {
  float sum, reciprocal;

  OUTGRAD_HD explicit SoftmaxSum(float of) : sum(of), reciprocal(div_rn(1.0f, of)) {}
};

// p = e / sum, by a product and its remainder, which take less time than a division. The product is off by
// two roundings, u each; what the remainder and the reciprocal are off by counts u times that. So p is the
// rounding of a number within 8 u^2 of e / sum, relative to it.
template <class Ops>
OUTGRAD_HD typename Ops::Value softmax_quotient(const Ops& ops, const typename Ops::Value& e,
                                                const SoftmaxSum& of) {
  const auto reciprocal = ops.constant(of.reciprocal), p = ops.mul(e, reciprocal);
  return ops.fma(ops.fma(p, ops.constant(-of.sum), e), reciprocal, p);
}

// --- Bounds --------------------------------------------------------------------------------------

// For every fp32 p from 0 to 1: |p' - p| <= kSoftmaxCell p where its code is not 0, and p <= kSoftmaxLeast
// where it is.
inline constexpr double kSoftmaxCell = 0.032482, kSoftmaxLeast = 6.3607e-8;

// Of e, relative to it, for every fp32 s that is less than the row's greatest by up to 111: kSoftmaxReach
// less a rounding (validation/softmax/code.h).
inline constexpr double kSoftmaxExp = 1.4262 * 0x1p-24;

// Additions between a term of a row of n elements and its sum, at most (kernels/reduce.h).
OUTGRAD_HD constexpr int softmax_depth(i64 n) {
  constexpr int kInChunk = 3, kAcrossLanes = 5;
  const i64 steps = row_steps(n), groups = (steps + kGroupSteps - 1) / kGroupSteps;
  int depth = kInChunk + kAcrossLanes + static_cast<int>(groups) - 1;
  for (i64 together = 1; together < steps && together < kGroupSteps; together *= 2) ++depth;
  return depth;
}

// Of the forward's fp32 p, relative to p, wherever p is not below 2^-126. One rounding more is counted than
// there are, which covers the products of errors.
OUTGRAD_HD constexpr double softmax_forward_error(i64 n) {
  return (softmax_depth(n) + 2) * 0x1p-24 + 2 * kSoftmaxExp;
}

// |p'_i - p_i| <= softmax_relative(n) p_i where code i is not 0, and p_i <= softmax_least(n) where it is,
// with p = softmax(s).
OUTGRAD_HD constexpr double softmax_relative(i64 n) {
  return kSoftmaxCell + (1 + kSoftmaxCell) * softmax_forward_error(n);
}
OUTGRAD_HD constexpr double softmax_least(i64 n) {
  return kSoftmaxLeast * (1 + 2 * softmax_forward_error(n));
}

// e1 = sum |p'_i - p_i| over a row of n elements.
OUTGRAD_HD constexpr double softmax_e1(i64 n) {
  return softmax_relative(n) + static_cast<double>(n) * softmax_least(n);
}

// What the bounds of a row's gradient depend on.
struct SoftmaxRow {
  i64 n;
  double sum;  // of |ds_i|
  double range;  // the largest less the smallest dp
  double greatest;  // of |dp_i|, at most 2^126
};

// How far ds' of a row can be off by its own fp32 arithmetic, over p'_i.
OUTGRAD_HD constexpr double softmax_rounding(const SoftmaxRow& row) {
  return (2 * softmax_depth(row.n) + 8) * 0x1p-24 * row.greatest;
}

// sum |ds'_i - ds_i|, before ds' is narrowed to a format.
OUTGRAD_HD constexpr double softmax_gradient_sum(const SoftmaxRow& row) {
  const auto n = static_cast<double>(row.n);
  return 2 * (softmax_relative(row.n) * row.sum + n * softmax_least(row.n) * row.range) +
         (1 + softmax_e1(row.n)) * softmax_rounding(row) + n * 0x1p-149;
}

// |ds'_i - ds_i| of an element with this p and ds.
OUTGRAD_HD constexpr double softmax_gradient_element(const SoftmaxRow& row, double p, double ds) {
  const double c = softmax_relative(row.n), magnitude = ds < 0 ? -ds : ds;
  // of |D' - D|
  const double mean =
      (c * row.sum + static_cast<double>(row.n) * softmax_least(row.n) * row.range) / (1 - softmax_e1(row.n));
  return (p <= softmax_least(row.n) ? magnitude : 0) + c * magnitude +
         (1 + c) * p * (mean + softmax_rounding(row)) + 0x1p-149;
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
