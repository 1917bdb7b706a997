// The double references for GELU and SiLU, see reference.h for the derivation and proof.

#include "validation/reference.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>

namespace outgrad::validation {
namespace {

constexpr int kCellsPerUnit = 128;
constexpr double kHalfCell = 0.5 / kCellsPerUnit;  // D

constexpr float kTiny = 0x1p-53f;

// Centres j / kCellsPerUnit from the first to the last.
template <int First, int Last>
struct Cells {
  static constexpr int kFirst = First * kCellsPerUnit, kLast = Last * kCellsPerUnit;
  static constexpr float kRight = Last;
  static constexpr float kLeft = First - static_cast<float>(kHalfCell);
  // What a run of arguments is evaluated by: a cell number, or one of these.
  static constexpr int kLeftTail = -1;
  static constexpr int kRightTail = kLast - kFirst + 1;
  static constexpr int kTinyRun = kRightTail + 1;
};
using GeluCells = Cells<-15, 9>;
using SiluCells = Cells<-120, 44>;

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
template <class C>
inline int classify(float x) {
  // |x| * 128 < 2^14 in the cells, so adding 1.5 * 2^23 rounds it to the nearest integer.
  constexpr float kRoundToInteger = 0x1.8p23f;
  const float inside = std::min(std::max(x, C::kLeft), C::kRight);
  const int cell = static_cast<int>((inside * kCellsPerUnit + kRoundToInteger) - kRoundToInteger) - C::kFirst;
  const int tailed = x < C::kLeft ? C::kLeftTail : x >= C::kRight ? C::kRightTail : cell;
  return std::fabs(x) < kTiny ? C::kTinyRun : tailed;
}

template <std::size_t N>
double horner(const double (&c)[N], double d) {
  double p = c[N - 1];
  for (std::size_t k = N - 1; k-- > 0;) p = std::fma(p, d, c[k]);
  return p;
}

template <class C, class Table>
void evaluate_cells(const Table& cells, const float* x, double* value, double* value_lo, double* value_hi, double* derivative, std::int64_t n) {
  for (std::int64_t begin = 0; begin < n;) {
    const int run = classify<C>(x[begin]);
    std::int64_t others = 0;
#pragma omp simd reduction(+ : others)
    for (std::int64_t i = begin; i < n; ++i) others += classify<C>(x[i]) != run;
    std::int64_t end = others == 0 ? n : begin + 1;
    while (end < n && classify<C>(x[end]) == run) ++end;

    if (run == C::kLeftTail || run == C::kRightTail) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        const double wide = x[i];
        const double v = run == C::kLeftTail ? -0x1p-163 : wide - wide * 0x1p-52;
        value[i] = value_lo[i] = value_hi[i] = v;
        derivative[i] = run == C::kLeftTail ? 0.0 : 1.0;
      }
    } else if (run == C::kTinyRun) {
      const auto& cell = cells[static_cast<std::size_t>(-C::kFirst)];
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        const double wide = x[i];
        const double v = std::copysign(0.5 * wide + std::fabs(wide) * 0x1p-52, wide);
        value[i] = value_lo[i] = value_hi[i] = v;
        derivative[i] = horner(cell.derivative, wide);
      }
    } else {
      const auto cell = cells[static_cast<std::size_t>(run)];
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        const double wide = x[i];
        const double d = wide - cell.centre;
        const double v = wide * horner(cell.cdf, d);
        const double margin = std::fabs(v) * Reference::kValueBound;
        value[i] = v;
        value_lo[i] = v - margin;
        value_hi[i] = v + margin;
        derivative[i] = horner(cell.derivative, d);
      }
    }
    begin = end;
  }
}

}  // namespace

GeluReference::GeluReference() {
  GeluOracle oracle;
  cells_.reserve(GeluCells::kLast - GeluCells::kFirst + 1);
  for (int j = GeluCells::kFirst; j <= GeluCells::kLast; ++j) cells_.push_back(make_cell(j, oracle));
  require_proven();
}

void GeluReference::evaluate(const float* x, double* value, double* value_lo, double* value_hi, double* derivative, std::int64_t n) const {
  evaluate_cells<GeluCells>(cells_, x, value, value_lo, value_hi, derivative, n);
}

const GeluReference& GeluReference::instance() {
  static const GeluReference reference;
  return reference;
}

void Reference::prove(const Cell& cell, double cdf_truncation, double least_cdf, double derivative_truncation) {
  const auto rounding = [](const auto& c) {
    double sum = 0, weight = 1;
    for (std::size_t n = 0; n < std::size(c); ++n, weight *= kHalfCell) sum += (2 + static_cast<double>(n)) * std::fabs(c[n]) * weight;
    return kUnit * sum;
  };
  const double value_bound = ((cdf_truncation + rounding(cell.cdf)) / least_cdf + kUnit) * kSecondOrder;
  const double derivative_bound = (derivative_truncation + rounding(cell.derivative)) * kSecondOrder;
  proven_value_bound_ = std::max(proven_value_bound_, value_bound);
  proven_derivative_bound_ = std::max(proven_derivative_bound_, derivative_bound);
}

void Reference::require_proven() const {
  // Half of the claim: evaluate() brackets f by the whole of it, which covers the rounding of the bracket's ends too.
  if (proven_value_bound_ > kValueBound / 2 || proven_derivative_bound_ > kDerivativeBound) {
    throw std::logic_error("reference: a cell exceeds the claimed error bound");
  }
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
  const double cdf_truncation =
      bound[kCdfDegree] * largest_density * std::pow(kHalfCell, kCdfDegree + 1) / factorial(kCdfDegree + 1);
  const double derivative_truncation = (bound[kDerivativeDegree] + bound[kDerivativeDegree + 2]) * largest_density *
                                       std::pow(kHalfCell, kDerivativeDegree + 1) / factorial(kDerivativeDegree + 1);
  prove(cell, cdf_truncation, least_cdf, derivative_truncation);
  return cell;
}

SiluReference::SiluReference() {
  SiluOracle oracle;
  cells_.reserve(SiluCells::kLast - SiluCells::kFirst + 1);
  for (int j = SiluCells::kFirst; j <= SiluCells::kLast; ++j) cells_.push_back(make_cell(j, oracle));
  require_proven();
}

void SiluReference::evaluate(const float* x, double* value, double* value_lo, double* value_hi, double* derivative, std::int64_t n) const {
  evaluate_cells<SiluCells>(cells_, x, value, value_lo, value_hi, derivative, n);
}

const SiluReference& SiluReference::instance() {
  static const SiluReference reference;
  return reference;
}

SiluReference::Cell SiluReference::make_cell(int j, SiluOracle& oracle) {
  const double a = static_cast<double>(j) / kCellsPerUnit;
  Cell cell{};
  cell.centre = a;

  constexpr int kTerms = kCdfDegree + 1;
  Real lo(kTablePrecision), hi(kTablePrecision), term(kTablePrecision);
  Real s[kTerms];
  for (Real& one : s) mpfr_set_prec(one.get(), kTablePrecision);
  oracle.enclose_sigmoid(-a, lo, hi);
  mpfr_set(term.get(), lo.get(), MPFR_RNDN);
  oracle.enclose_sigmoid(a, lo, hi);
  mpfr_set(s[0].get(), lo.get(), MPFR_RNDN);
  mpfr_mul(s[1].get(), s[0].get(), term.get(), MPFR_RNDN);  // sigma(a) sigma(-a): no cancellation on the right
  for (int n = 1; n + 1 < kTerms; ++n) {
    mpfr_set(s[n + 1].get(), s[n].get(), MPFR_RNDN);
    for (int i = 0; i <= n; ++i) {
      mpfr_mul(term.get(), s[i].get(), s[n - i].get(), MPFR_RNDN);
      mpfr_sub(s[n + 1].get(), s[n + 1].get(), term.get(), MPFR_RNDN);
    }
    mpfr_div_ui(s[n + 1].get(), s[n + 1].get(), static_cast<unsigned long>(n + 1), MPFR_RNDN);
  }
  for (int n = 0; n <= kCdfDegree; ++n) cell.cdf[n] = mpfr_get_d(s[n].get(), MPFR_RNDN);
  for (int n = 0; n <= kDerivativeDegree; ++n) {
    mpfr_mul_d(term.get(), s[n + 1].get(), a, MPFR_RNDN);
    mpfr_add(term.get(), term.get(), s[n].get(), MPFR_RNDN);
    mpfr_mul_ui(term.get(), term.get(), static_cast<unsigned long>(n + 1), MPFR_RNDN);
    cell.derivative[n] = mpfr_get_d(term.get(), MPFR_RNDN);
  }

  // The bounds of reference.h for this cell. exp of libm is within an ulp or two: far inside the factor that kSlack leaves.
  constexpr double kRho = 1.5, kSlack = 1 + 0x1p-20, kRatio = kHalfCell / kRho;
  const double cdf_most = std::min(1.0, std::exp(a + kRho)) * kSlack, slope_most = std::min(1.0, std::exp(kRho - std::fabs(a))) * kSlack;
  Real least(kBoundPrecision), greatest(kBoundPrecision);
  oracle.enclose_sigmoid(a - kHalfCell, least, greatest);
  const double cdf_truncation = cdf_most * std::pow(kRatio, kCdfDegree + 1) / (1 - kRatio) * kSlack;
  // Sum of (n + 1) q^n from n = N on: q^N (N + 1 - N q) / (1 - q)^2.
  constexpr int kFirst = kDerivativeDegree + 1;
  const double tail = std::pow(kRatio, kFirst) * (kFirst + 1 - kFirst * kRatio) / ((1 - kRatio) * (1 - kRatio));
  const double derivative_truncation = (std::fabs(a) / kRho + 1) * slope_most * tail * kSlack;
  prove(cell, cdf_truncation, mpfr_get_d(least.get(), MPFR_RNDD), derivative_truncation);
  return cell;
}

std::int64_t round_values(const float* x, const double* value_lo, const double* value_hi, float* y, std::int64_t n, const FloatFormat& format,
                          Oracle& oracle) {
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
