// The double reference for GELU, see reference.h for the derivation and proof.

#include "validation/reference.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>

namespace outgrad::validation {
namespace {

constexpr int kCellsPerUnit = 128;
constexpr int kFirstCell = -15 * kCellsPerUnit;
constexpr int kLastCell = 9 * kCellsPerUnit;
constexpr double kHalfCell = 0.5 / kCellsPerUnit;  // D

constexpr float kTiny = 0x1p-53f;
constexpr float kRight = 9.0f;
constexpr float kLeft = -15.0f - static_cast<float>(kHalfCell);

// What a run of arguments is evaluated by: a cell number, or one of these.
constexpr int kLeftTail = -1;
constexpr int kRightTail = kLastCell - kFirstCell + 1;
constexpr int kTinyRun = kRightTail + 1;

constexpr double kUnit = 0x1p-53;
// Second-order terms of the rounding bound and the rounding of the few double operations that add it up.
constexpr double kSecondOrder = 1 + 0x1p-40;
// He_n(a) at |a| <= 15, n <= 8 cancels fewer than 50 of these bits; what is left is far more than binary64's 53.
constexpr mpfr_prec_t kTablePrecision = 160;
constexpr mpfr_prec_t kBoundPrecision = 64;

constexpr int kHighestHermite = 8;
using HermiteBounds = std::array<double, kHighestHermite + 1>;

/// |He|_n(x): He_{n+1} = x He_n - n He_{n-1} with every sign made positive. Exact to a few ulp, all terms positive.
HermiteBounds absolute_hermite(double x) {
  HermiteBounds he{};
  he[0] = 1;
  he[1] = x;
  for (std::size_t n = 1; n < kHighestHermite; ++n) he[n + 1] = x * he[n] + static_cast<double>(n) * he[n - 1];
  return he;
}

double factorial(int n) {
  double product = 1;
  for (int i = 2; i <= n; ++i) product *= i;
  return product;
}

/// Written for a vectoriser: no branch, and every path defined for every x.
inline int classify(float x) {
  // |x| * 128 < 2^11 in the cells, so adding 1.5 * 2^23 rounds it to the nearest integer.
  constexpr float kRoundToInteger = 0x1.8p23f;
  const float inside = std::min(std::max(x, kLeft), kRight);
  const int cell = static_cast<int>((inside * kCellsPerUnit + kRoundToInteger) - kRoundToInteger) - kFirstCell;
  const int tailed = x < kLeft ? kLeftTail : x >= kRight ? kRightTail : cell;
  return std::fabs(x) < kTiny ? kTinyRun : tailed;
}

template <std::size_t N>
double horner(const double (&c)[N], double d) {
  double p = c[N - 1];
  for (std::size_t k = N - 1; k-- > 0;) p = std::fma(p, d, c[k]);
  return p;
}

}  // namespace

GeluReference::GeluReference() {
  GeluOracle oracle;
  cells_.reserve(kLastCell - kFirstCell + 1);
  for (int j = kFirstCell; j <= kLastCell; ++j) cells_.push_back(make_cell(j, oracle));
  // Half of the claim: evaluate() brackets f by the whole of it, which covers the rounding of the bracket's ends too.
  if (proven_value_bound_ > kValueBound / 2 || proven_derivative_bound_ > kDerivativeBound) {
    throw std::logic_error("reference: a cell exceeds the claimed error bound");
  }
}

const GeluReference& GeluReference::instance() {
  static const GeluReference reference;
  return reference;
}

GeluReference::Cell GeluReference::make_cell(int j, GeluOracle& oracle) {
  const double a = static_cast<double>(j) / kCellsPerUnit;
  Cell cell{};
  cell.centre = a;

  Real lo(kTablePrecision), hi(kTablePrecision), density(kTablePrecision);
  oracle.enclose_density(a, density, hi);
  Real he[kHighestHermite + 1];
  for (int n = 0; n <= kHighestHermite; ++n) {
    mpfr_set_prec(he[n].get(), kTablePrecision);
    if (n == 0) {
      mpfr_set(he[0].get(), density.get(), MPFR_RNDN);  // He_n phi throughout
    } else {
      mpfr_mul_d(he[n].get(), he[n - 1].get(), a, MPFR_RNDN);
      if (n >= 2) {
        mpfr_mul_ui(lo.get(), he[n - 2].get(), static_cast<unsigned long>(n - 1), MPFR_RNDN);
        mpfr_sub(he[n].get(), he[n].get(), lo.get(), MPFR_RNDN);
      }
    }
  }
  const auto coefficient = [&](Real& numerator, int n) {
    mpfr_div_d(numerator.get(), numerator.get(), (n % 2 == 1 ? 1 : -1) * factorial(n), MPFR_RNDN);
    return mpfr_get_d(numerator.get(), MPFR_RNDN);
  };
  Real term(kTablePrecision);
  for (int n = 1; n <= kCdfDegree; ++n) {
    mpfr_set(term.get(), he[n - 1].get(), MPFR_RNDN);
    cell.cdf[n] = coefficient(term, n);
  }
  for (int n = 1; n <= kDerivativeDegree; ++n) {
    mpfr_sub(term.get(), he[n - 1].get(), he[n + 1].get(), MPFR_RNDN);
    cell.derivative[n] = coefficient(term, n);
  }
  oracle.enclose_cdf(a, lo, hi);
  cell.cdf[0] = mpfr_get_d(lo.get(), MPFR_RNDN);
  mpfr_mul_d(term.get(), density.get(), a, MPFR_RNDN);
  mpfr_add(term.get(), term.get(), lo.get(), MPFR_RNDN);
  cell.derivative[0] = mpfr_get_d(term.get(), MPFR_RNDN);

  // The bounds of reference.h for this cell.
  const double farthest = std::fabs(a) + kHalfCell, nearest = std::max(std::fabs(a) - kHalfCell, 0.0);
  const HermiteBounds bound = absolute_hermite(farthest);
  Real least(kBoundPrecision), greatest(kBoundPrecision);
  oracle.enclose_density(nearest, least, greatest);
  const double largest_density = mpfr_get_d(greatest.get(), MPFR_RNDU);
  oracle.enclose_cdf(a - kHalfCell, least, greatest);
  const double least_cdf = mpfr_get_d(least.get(), MPFR_RNDD);
  const auto rounding = [](const auto& c) {
    double sum = 0, weight = 1;
    for (std::size_t n = 0; n < std::size(c); ++n, weight *= kHalfCell) sum += (2 + static_cast<double>(n)) * std::fabs(c[n]) * weight;
    return kUnit * sum;
  };
  const double cdf_truncation =
      bound[kCdfDegree] * largest_density * std::pow(kHalfCell, kCdfDegree + 1) / factorial(kCdfDegree + 1);
  const double derivative_truncation = (bound[kDerivativeDegree] + bound[kDerivativeDegree + 2]) * largest_density *
                                       std::pow(kHalfCell, kDerivativeDegree + 1) / factorial(kDerivativeDegree + 1);
  const double value_bound = ((cdf_truncation + rounding(cell.cdf)) / least_cdf + kUnit) * kSecondOrder;
  const double derivative_bound = (derivative_truncation + rounding(cell.derivative)) * kSecondOrder;
  proven_value_bound_ = std::max(proven_value_bound_, value_bound);
  proven_derivative_bound_ = std::max(proven_derivative_bound_, derivative_bound);
  return cell;
}

void GeluReference::evaluate(const float* x, double* value, double* value_lo, double* value_hi, double* derivative,
                             std::int64_t n) const {
  for (std::int64_t begin = 0; begin < n;) {
    const int run = classify(x[begin]);
    std::int64_t others = 0;
#pragma omp simd reduction(+ : others)
    for (std::int64_t i = begin; i < n; ++i) others += classify(x[i]) != run;
    std::int64_t end = others == 0 ? n : begin + 1;
    while (end < n && classify(x[end]) == run) ++end;

    if (run == kLeftTail || run == kRightTail) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        const double wide = x[i];
        const double v = run == kLeftTail ? -0x1p-163 : wide - wide * 0x1p-52;
        value[i] = value_lo[i] = value_hi[i] = v;
        derivative[i] = run == kLeftTail ? 0.0 : 1.0;
      }
    } else if (run == kTinyRun) {
      const Cell& cell = cells_[static_cast<std::size_t>(-kFirstCell)];
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        const double wide = x[i];
        const double v = std::copysign(0.5 * wide + std::fabs(wide) * 0x1p-52, wide);
        value[i] = value_lo[i] = value_hi[i] = v;
        derivative[i] = horner(cell.derivative, wide);
      }
    } else {
      const Cell cell = cells_[static_cast<std::size_t>(run)];
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        const double wide = x[i];
        const double d = wide - cell.centre;
        const double v = wide * horner(cell.cdf, d);
        const double margin = std::fabs(v) * kValueBound;
        value[i] = v;
        value_lo[i] = v - margin;
        value_hi[i] = v + margin;
        derivative[i] = horner(cell.derivative, d);
      }
    }
    begin = end;
  }
}

std::int64_t round_values(const float* x, const double* value_lo, const double* value_hi, float* y, std::int64_t n, const FloatFormat& format,
                          GeluOracle& oracle) {
  const FloatFormat local = format;  // no store to y can alias it
  std::int64_t undecided = 0;
#pragma omp simd reduction(+ : undecided)
  for (std::int64_t i = 0; i < n; ++i) {
    const double lo = round_to_format(value_lo[i], local);
    const double hi = round_to_format(value_hi[i], local);
    undecided += lo != hi;
    y[i] = static_cast<float>(lo);
  }
  if (undecided == 0) return 0;
  for (std::int64_t i = 0; i < n; ++i) {
    if (round_to_format(value_lo[i], format) != round_to_format(value_hi[i], format)) {
      y[i] = static_cast<float>(oracle.value(x[i], format));
    }
  }
  return undecided;
}

}  // namespace outgrad::validation
