// Exhaustive sweeps; sweep.h says what they establish and why this is proven.

#include "validation/sweep/sweep.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <chrono>
#include <exception>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "kernels/formats.h"
#include "kernels/host/parallel.h"
#include "kernels/support/digest.h"
#include "kernels/support/errors.h"
#include "kernels/support/files.h"
#include "kernels/support/json.h"
#include "kernels/support/progress.h"
#include "validation/limits.h"
#include "validation/sweep/sweep_json.h"

namespace outgrad::validation {
namespace {

using kernels::IoError;
using kernels::SpecError;

// Two tables of doubles and a dozen arrays of this many elements fit in a core's second-level cache.
constexpr std::int64_t kBlock = 2048;
constexpr std::int64_t kMaskWords = kBlock / 32;
constexpr std::size_t kExamples = 16;
// errors of y cost most up to kNear, because of sqrt(y - y*); f needs relative accuracy below kTail
constexpr double kNear = 0.1, kTail = -2;

std::uint32_t infinity_pattern(const FloatFormat& format) {
  return (1u << (format.bits - 1)) - (1u << (format.precision - 1));
}

float from_pattern(const FloatFormat& format, std::uint32_t pattern) {
  if (format.bits == 32) return std::bit_cast<float>(pattern);
  const std::uint32_t sign = pattern >> (format.bits - 1),
                      magnitude = pattern & ((1u << (format.bits - 1)) - 1);
  const int exponent = static_cast<int>(magnitude >> (format.precision - 1));
  const std::uint32_t hidden = 1u << (format.precision - 1), fraction = magnitude & (hidden - 1);
  if (magnitude >= infinity_pattern(format)) {
    return std::bit_cast<float>(sign << 31 | 0x7f800000u |
                                fraction << (std::numeric_limits<float>::digits - format.precision));
  }
  const double value = exponent == 0 ? std::ldexp(fraction, format.quantum_exponent)
                                     : std::ldexp(hidden + fraction, exponent - 1 + format.quantum_exponent);
  return static_cast<float>(sign ? -value : value);
}

int curve_bin(float x) {
  constexpr double kBinsPerUnit = kCurveBins / (2 * kCurveReach);
  if (!(x >= -kCurveReach && x < kCurveReach)) return x < 0 ? -1 : kCurveBins;
  return static_cast<int>((static_cast<double>(x) + kCurveReach) * kBinsPerUnit);
}

/// |error|, where a NaN counts as infinite, so that no comparison can miss it.
inline double magnitude_of(double error) {
  const double magnitude = std::fabs(error);
  return magnitude <= std::numeric_limits<double>::max() ? magnitude : kInfinity;
}

/// Upper bound of |g_m(y) - f'(x)| for rounding errors of y of half an ulp, where `derivative` is f'(x)
/// (sweep.h).
inline double storage_bound(double y, double derivative, double per_y, double least, double bend,
                            double flat_from) {
  constexpr double kFlatBound = 0x1p-16;
  const double h = bend * std::max(std::fabs(y) * per_y, least);
  return y >= flat_from ? kFlatBound : std::min(h / std::fabs(derivative), std::sqrt(h)) + kSweepMargin;
}
/// Half an ulp at y is at most |y| times the first value, or the second value if y is subnormal.
double half_ulp_per_y(const FloatFormat& format) { return std::ldexp(1.0, -format.precision); }
double least_half_ulp(const FloatFormat& format) { return std::ldexp(0.5, format.quantum_exponent); }

void extend(Run& run, const Run& by) {
  run.x_last = by.x_last;
  run.lo = std::min(run.lo, by.lo);
  run.hi = std::max(run.hi, by.hi);
}

/// Joins a run with all others of its code.
void add_to_cell(const Run& run, Segment& segment) {
  const auto [cell, is_new] = segment.cells.try_emplace(run.y, run);
  if (!is_new) extend(cell->second, run);
}

void close_run(const Run& run, const Stored& stored, Segment& segment) {
  const FloatFormat& format = stored.format;
  const SweptActivation& activation = *stored.activation;
  const double half_range = (run.hi - run.lo) / 2, middle = (run.hi + run.lo) / 2;
  const auto branch = static_cast<std::size_t>(stored.code ? run.x_first > activation.x_star : run.right);
  segment.oracle[branch].raise({half_range, run.x_first, run.y, run.lo, run.hi});
  segment.regret[branch].raise({magnitude_of(run.g - middle), run.x_first, run.y, run.g, middle});
  if (half_range > 0 && !stored.scattered) {
    const int last = std::min(curve_bin(run.x_last), kCurveBins - 1);
    for (int bin = std::max(curve_bin(run.x_first), 0); bin <= last; ++bin) {
      double& floor = segment.curve[bin].floor;
      floor = std::max(floor, half_range);
    }
  }
  if (stored.lists_worst() && half_range >= activation.oracle_floor(format) / 2) segment.worst.push_back(run);
  if (stored.code || !activation.masked()) return;
  const double steepest = std::max(std::fabs(run.lo), std::fabs(run.hi));
  const double most =
      2 * half_range + storage_bound(run.y, steepest, half_ulp_per_y(format), least_half_ulp(format),
                                     activation.facts().bend, activation.facts().flat_from);
  if (!(most > std::max(segment.storage[branch].value, activation.oracle_floor(format)))) return;
  const double exact = activation.oracle()->derivative_at_value(run.y, run.right);
  segment.storage[branch].raise({std::fabs(exact - run.lo), run.x_first, run.y, exact, run.lo});
  segment.storage[branch].raise({std::fabs(exact - run.hi), run.x_last, run.y, exact, run.hi});
}

bool same_pair(const Run& a, const Run& b) {
  return a.right == b.right && std::bit_cast<std::uint32_t>(a.y) == std::bit_cast<std::uint32_t>(b.y);
}

/// Appends a run that no later run has touched yet.
void push_run(const Run& run, const Stored& stored, Segment& segment) {
  Run& open = segment.last.used ? segment.last : segment.first;
  if (!open.used) {
    segment.first = run;
  } else if (same_pair(open, run)) {
    extend(open, run);
  } else {
    if (segment.last.used) close_run(segment.last, stored, segment);
    segment.last = run;
  }
}

/// The digests of the outputs of one chunk, see sweep.h.
class OutputDigests {
 public:
  explicit OutputDigests(const FloatFormat& format) : format_(format) {}

  /// The floats must be values of the format.
  void add(const float* y, const std::uint32_t* mask, const float* dx, std::int64_t n) {
    add_values(sums_[0], y, n);
    for (std::int64_t i = 0; i < n; i += 32) {
      const int bits = static_cast<int>(std::min<std::int64_t>(32, n - i));
      pending_ |= (mask[i / 32] & (~std::uint64_t{0} >> (64 - bits))) << pending_bits_;
      pending_bits_ += bits;
      if (pending_bits_ >= 32) flush();
    }
    add_values(sums_[2], dx, n);
  }

  void finish(std::array<std::string, 3>& digests) {
    if (pending_bits_ > 0) flush();
    for (std::size_t k = 0; k < sums_.size(); ++k) digests[k] += sums_[k].digest();
  }

 private:
  void flush() {
    const auto word = static_cast<std::uint32_t>(pending_);
    sums_[1].add(&word, sizeof word);
    pending_ >>= 32;
    pending_bits_ = std::max(0, pending_bits_ - 32);
  }

  void add_values(kernels::Sha256& sum, const float* v, std::int64_t n) {
    if (format_.bits == 32) {
      std::uint32_t bits[kBlock];
      for (std::int64_t i = 0; i < n; ++i) bits[i] = kernels::canonical_bits(v[i]);
      sum.add(bits, static_cast<std::size_t>(n) * sizeof *bits);
    } else if (format_.precision == kF16.precision) {
      add_narrow<kernels::F16>(sum, v, n);
    } else {
      add_narrow<kernels::BF16>(sum, v, n);
    }
  }

  template <class T>
  static void add_narrow(kernels::Sha256& sum, const float* v, std::int64_t n) {
    std::uint16_t bits[kBlock];
    for (std::int64_t i = 0; i < n; ++i) {
      // Thousands of f32 x share a y, so the previous value is often the same one.
      const bool same = i > 0 && std::bit_cast<std::uint32_t>(v[i]) == std::bit_cast<std::uint32_t>(v[i - 1]);
      bits[i] =
          same ? bits[i - 1] : static_cast<std::uint16_t>(kernels::canonical_bits(kernels::narrow<T>(v[i])));
    }
    sum.add(bits, static_cast<std::size_t>(n) * sizeof *bits);
  }

  FloatFormat format_;
  std::array<kernels::Sha256, 3> sums_;
  std::uint64_t pending_ = 0;
  int pending_bits_ = 0;
};

/// Sweeps blocks of finite x of one branch, ascending, into a Segment.
class BlockSweeper {
 public:
  BlockSweeper(const Subject& subject, const Domain& domain, Segment& segment, OutputDigests& digests)
      : subject_(subject), domain_(domain), stored_(subject.stored()),
        reference_(subject.activation->reference()), oracle_(subject.activation->oracle()), segment_(segment),
        digests_(digests), buffers_(std::make_unique<Buffers>()) {
    for (const Claim& claim : subject.claims) {
      if (claim.what == Claim::kEvaluation) evaluation_claim_ = claim.limit;
      claims_bias_ |= claim.what == Claim::kBias;
    }
  }

  float* x() { return buffers_->x; }

  void sweep(std::int64_t n, bool right) {
    n_ = n;
    right_ = right;
    Buffers& b = *buffers_;
    reference_.evaluate(b.x, b.value, b.value_lo, b.value_hi, b.want, n);
    if (subject_.code) {
      subject_.varied ? sweep_varied() : sweep_codes();
      return;
    }
    segment_.oracle_decisions +=
        round_values({b.x, b.value_lo, b.value_hi, n}, b.y_true, subject_.format, *oracle_);
    if (subject_.own_forward) {
      subject_.forward(b.x, b.y, b.mask, n);
    } else {
      std::copy_n(b.y_true, n, b.y);
      set_masks();
    }
    count_masks();
    evaluate(subject_.derivative, b.y, b.g);
    const bool all_rounded = count_misrounded();
    measure_total();
    const float* const dx = subject_.gradient ? b.g_other : b.g;
    digests_.add(b.y, b.mask, dx, n);
    measure_gradient_ulp(dx);
    if (subject_.backward && domain_.x_format.bits == 16) search_dy();
    if (subject_.activation->slope_of_value) measure_storage();
    measure_forward();
    measure_curve();
    weigh_errors();

    std::fill_n(b.mask, kMaskWords, right ? ~0u : 0u);
    if (!all_rounded) evaluate(subject_.derivative, b.y_true, b.g);
    if (evaluation_claim_) measure_deviation(*evaluation_claim_);
    track_runs();
    if (subject_.activation != &kGelu) return;  // the ranges of foreign forwards are those of GELU
    if (b.x[n - 1] >= kForeignLeft && b.x[0] <= kForeignRight) measure_foreign();
    if (reaches_erff()) measure_erff();
  }

 private:
  struct alignas(64) Buffers {
    float x[kBlock], y[kBlock], y_true[kBlock], y_other[kBlock], g[kBlock], g_other[kBlock];
    double value[kBlock], value_lo[kBlock], value_hi[kBlock], want[kBlock], error[kBlock], reach[kBlock];
    std::uint32_t mask[kMaskWords];
    VariedGradient varied[kBlock];
  };

  /// The code takes the place of y; nothing takes the place of the mask.
  void sweep_codes() {
    Buffers& b = *buffers_;
    subject_.forward(b.x, b.y_true, b.mask, n_);
    std::copy_n(b.y_true, n_, b.y);
    std::fill_n(b.mask, kMaskWords, 0u);
    segment_.right += right_ ? n_ : 0;
    evaluate(subject_.derivative, b.y, b.g);
    measure_total();
    measure_curve();
    weigh_errors();
    track_runs();
  }

  /// g - f'(x) and its square.
  void measure_curve() {
    measure_curve([&](std::int64_t i) { return error_at(i); }, [&](std::int64_t i) { return error_at(i); },
                  [&](std::int64_t i) { return error_at(i) * error_at(i); });
  }
  void weigh_errors() {
    weigh_errors([&](std::int64_t i) { return error_at(i); },
                 [&](std::int64_t i) { return error_at(i) * error_at(i); });
  }
  double error_at(std::int64_t i) const { return buffers_->g[i] - buffers_->want[i]; }

  /// T is also measured for the dither that the kernels drew, or for one scale.
  void sweep_varied() {
    Buffers& b = *buffers_;
    subject_.forward(b.x, b.y_true, b.mask, n_);
    segment_.right += right_ ? n_ : 0;
    subject_.derivative(b.y_true, b.mask, b.g, n_);
    raise_by_gradient(segment_.total[right_], b.y_true, b.g);
    subject_.varied(b.x, b.want, b.varied, n_);
    const auto measure = [&](PerBranch& maxima, const auto& stored) {
      for (std::int64_t i = 0; i < n_; ++i) {
        const VariedGradient& d = b.varied[i];
        const float least = stored(d.least), greatest = stored(d.greatest);
        maxima[right_].raise({magnitude_of(least - b.want[i]), b.x[i], d.least_at, least, b.want[i]});
        maxima[right_].raise(
            {magnitude_of(greatest - b.want[i]), b.x[i], d.greatest_at, greatest, b.want[i]});
      }
    };
    measure(segment_.total, [](float g) { return g; });
    measure(segment_.stored, [&](float g) {
      return static_cast<float>(round_to_format(static_cast<double>(g), subject_.format));
    });
    for (std::int64_t i = 0; claims_bias_ && i < n_; ++i) {
      const double error = b.varied[i].error;
      segment_.bias[right_].raise({magnitude_of(error), b.x[i], 0, b.want[i] + error, b.want[i]});
    }
    measure_curve([&](std::int64_t i) { return b.varied[i].least - b.want[i]; },
                  [&](std::int64_t i) { return b.varied[i].greatest - b.want[i]; },
                  [&](std::int64_t i) { return b.varied[i].square; });
    weigh_errors([&](std::int64_t i) { return b.varied[i].error; },
                 [&](std::int64_t i) { return b.varied[i].square; });
  }

  /// m = [x >= mask_from].
  void set_masks() {
    Buffers& b = *buffers_;
    std::fill_n(b.mask, kMaskWords, 0u);
    for (std::int64_t i = 0; i < n_; ++i)
      b.mask[i / 32] |= static_cast<std::uint32_t>(b.x[i] >= subject_.mask_from) << (i % 32);
  }

  static double top_of(const double* error, std::int64_t n) {
    double top = -1;
#pragma omp simd reduction(max : top)
    for (std::int64_t i = 0; i < n; ++i) top = std::max(top, error[i]);
    return top;
  }

  template <class Got>
  void set_errors(const Got* got, const double* want) {
    double* const error = buffers_->error;
#pragma omp simd
    for (std::int64_t i = 0; i < n_; ++i) error[i] = magnitude_of(got[i] - want[i]);
  }

  /// Raises `maximum` to the greatest value in buffers_->error; y, got and want describe the element.
  template <class Got>
  void raise(Maximum& maximum, const float* y, const Got* got, const double* want) {
    const Buffers& b = *buffers_;
    const double top = top_of(b.error, n_);
    if (!(top > maximum.value)) return;
    const std::int64_t i = std::find(b.error, b.error + n_, top) - b.error;
    maximum = {top, b.x[i], y[i], static_cast<double>(got[i]), want[i]};
  }

  void raise_by_gradient(Maximum& maximum, const float* y, const float* g) {
    set_errors(g, buffers_->want);
    raise(maximum, y, g, buffers_->want);
  }

  /// function(y, mask) of the block. If all elements have the same y and mask bit, which happens because
  /// thousands of f32 x share a 16-bit y, it is computed for one element.
  template <class Function>
  void evaluate(const Function& function, const float* y, float* result) const {
    const std::uint32_t* const mask = buffers_->mask;
    const std::int64_t words = (n_ + 31) / 32;
    bool constant = n_ % 32 == 0 && (mask[0] == 0 || mask[0] == ~0u);
    for (std::int64_t word = 1; word < words && constant; ++word) constant = mask[word] == mask[0];
    std::int64_t other = 0;
#pragma omp simd reduction(+ : other)
    for (std::int64_t i = 1; i < n_; ++i)
      other += std::bit_cast<std::uint32_t>(y[i]) != std::bit_cast<std::uint32_t>(y[0]);
    constant = constant && other == 0;
    function(y, mask, result, constant ? 1 : n_);
    if (constant) std::fill_n(result + 1, n_ - 1, result[0]);
  }

  void count_masks() {
    std::int64_t set = 0;
    for (std::int64_t word = 0; word < (n_ + 31) / 32; ++word) set += std::popcount(buffers_->mask[word]);
    segment_.wrong_mask += right_ ? n_ - set : set;
    segment_.right += right_ ? n_ : 0;
  }

  /// Whether every y is correctly rounded and every mask bit is right, so that g is also g at (y_true, true
  /// mask).
  bool count_misrounded() {
    const Buffers& b = *buffers_;
    std::int64_t wrong = 0;
#pragma omp simd reduction(+ : wrong)
    for (std::int64_t i = 0; i < n_; ++i)
      wrong += std::bit_cast<std::uint32_t>(b.y[i]) != std::bit_cast<std::uint32_t>(b.y_true[i]);
    segment_.misrounded += wrong;
    for (std::int64_t i = 0; wrong > 0 && i < n_ && segment_.examples.size() < kExamples; ++i) {
      if (std::bit_cast<std::uint32_t>(b.y[i]) != std::bit_cast<std::uint32_t>(b.y_true[i])) {
        segment_.examples.push_back({b.x[i], b.y[i], b.y_true[i]});
      }
    }
    return wrong == 0 && segment_.wrong_mask == 0;
  }

  void measure_total() {
    Buffers& b = *buffers_;
    raise_by_gradient(segment_.total[right_], b.y, b.g);
    if (subject_.gradient) {
      evaluate(subject_.gradient, b.y, b.g_other);
      raise_by_gradient(segment_.stored[right_], b.y, b.g_other);
    } else {
      segment_.stored[right_] = segment_.total[right_];
    }
  }

  /// C, for activations whose g is a formula in y.
  void measure_storage() {
    Buffers& b = *buffers_;
    subject_.activation->slope_of_value(b.y_true, b.reach, n_);
    set_errors(b.reach, b.want);
    raise(segment_.storage[right_], b.y_true, b.reach, b.want);
  }

  /// D: g against f' at the argument of y itself. If this is a formula in y, it is measured for every y.
  /// Otherwise it is measured only where T is above the claim, because there the storage of y must account
  /// for the excess.
  void measure_deviation(double claim) {
    Buffers& b = *buffers_;
    Maximum& maximum = segment_.deviation[right_];
    if (subject_.activation->slope_of_value) {
      set_errors(b.g, b.reach);
      return raise(maximum, b.y_true, b.g, b.reach);
    }
    set_errors(b.g, b.want);
    if (top_of(b.error, n_) <= claim - kSweepMargin) return;
    double exact = 0;
    for (std::int64_t i = 0, last = -1; i < n_; ++i) {
      if (b.error[i] <= claim - kSweepMargin) continue;
      if (last < 0 ||
          std::bit_cast<std::uint32_t>(b.y_true[i]) != std::bit_cast<std::uint32_t>(b.y_true[last]))
        exact = oracle_->derivative_at_value(b.y_true[i], right_);
      last = i;
      maximum.raise({magnitude_of(b.g[i] - exact), b.x[i], b.y_true[i], b.g[i], exact});
    }
  }

  /// least(i), greatest(i) and square(i): the ends of the errors of element i, and their mean square.
  template <class Least, class Greatest, class Square>
  void measure_curve(const Least& least_of, const Greatest& greatest_of, const Square& square_of) {
    Buffers& b = *buffers_;
    for (std::int64_t begin = 0; begin < n_;) {
      const int bin = curve_bin(b.x[begin]);
      const std::int64_t end =
          std::partition_point(b.x + begin, b.x + n_, [bin](float x) { return curve_bin(x) <= bin; }) - b.x;
      if (bin >= 0 && bin < kCurveBins) {
        double least = 0, greatest = 0, squares = 0, weight = 0;
#pragma omp simd reduction(min : least) reduction(max : greatest) reduction(+ : squares, weight)
        for (std::int64_t i = begin; i < end; ++i) {
          // 2^exponent is the spacing of normal x, up to a factor common to the format. (Subnormal x have a
          // share of 2^-100, or 2^-13 in f16.)
          constexpr double kCommon = 0x1p-26;  // makes the sum over a binade of f32 equal to 1
          const double spacing =
              kCommon *
              static_cast<double>(std::bit_cast<float>(std::bit_cast<std::uint32_t>(b.x[i]) & 0x7f800000u));
          least = std::min(least, least_of(i));
          greatest = std::max(greatest, greatest_of(i));
          squares += square_of(i) * spacing;
          weight += spacing;
        }
        CurveBin& entry = segment_.curve[bin];
        entry.least = std::min(entry.least, least);
        entry.greatest = std::max(entry.greatest, greatest);
        entry.squares.add(squares);
        entry.weight.add(weight);
      }
      begin = end;
    }
  }

  /// Errors weighted by the probability of x. Beyond kFarthest no distribution here has a share that matters.
  template <class Error, class Square>
  void weigh_errors(const Error& error_of, const Square& square_of) {
    constexpr float kFarthest = 64;
    const Buffers& b = *buffers_;
    const float first = b.x[0], last = b.x[n_ - 1];
    if (first >= kFarthest || last <= -kFarthest || subject_.distributions.empty()) return;
    segment_.under.resize(subject_.distributions.size());
    const auto exponent_of = [](float v) { return std::bit_cast<std::uint32_t>(v) & 0xff800000u; };
    const bool one_binade = domain_.x_format.bits == 32 && exponent_of(first) == exponent_of(last);
    BlockMoments block{};
    if (one_binade) block = moments(error_of, square_of);
    for (std::size_t k = 0; k < subject_.distributions.size(); ++k) {
      const Distribution& distribution = subject_.distributions[k];
      WeightedError& sums = segment_.under[k];
      Distribution::Sums add;
      const bool steps = domain_.x_format.bits == 32 && !distribution.smooth();
      if (one_binade &&
          (!steps || (n_ > 1 && distribution.regular(step_from_zero(first)[0], step_from_zero(last)[1])))) {
        add = distribution.weigh(block);
        for (const std::int64_t i : {std::int64_t{0}, n_ - 1}) {
          if (!distribution.smooth()) break;
          // The spacing towards 0 is half for a power of two, and absent for a zero.
          const std::uint32_t bits = std::bit_cast<std::uint32_t>(b.x[i]);
          const std::uint32_t exponent = bits >> 23 & 0xff;
          if ((bits & 0x7fffffu) != 0 || exponent == 1 || (i > 0 && n_ == 1)) continue;
          const double less = (exponent == 0 ? 0.5 : 0.25) * block.spacing * distribution.density(b.x[i]);
          add.mass -= less;
          add.error -= less * error_of(i);
          add.square -= less * square_of(i);
          if (n_ == 1) break;
        }
      } else {
        for (std::int64_t i = 0; i < n_; ++i) {
          const auto [low, high] =
              steps ? step_from_zero(b.x[i]) : rounding_interval(b.x[i], domain_.x_format);
          const double mass = distribution.mass(low, high);
          add.mass += mass;
          add.error += mass * error_of(i);
          add.square += mass * square_of(i);
        }
      }
      sums.mass.add(add.mass);
      sums.error.add(add.error);
      sums.square.add(add.square);
    }
  }

  /// The moments of a block of neighbouring f32 in one binade.
  template <class Error, class Square>
  BlockMoments moments(const Error& error_of, const Square& square_of) const {
    const Buffers& b = *buffers_;
    const auto n = static_cast<double>(n_);
    double e0 = 0, e1 = 0, e2 = 0, e3 = 0, s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    // |c| D <= 2^-44 here, so the density is constant to 2^-42 over the block
    constexpr float kFlat = 0x1p-16f;
    if (std::fabs(b.x[0]) < kFlat) {
#pragma omp simd reduction(+ : e0, s0)
      for (std::int64_t i = 0; i < n_; ++i) {
        e0 += error_of(i);
        s0 += square_of(i);
      }
      return block_of({e0, 0, 0, 0}, {s0, 0, 0, 0});
    }
#pragma omp simd reduction(+ : e0, e1, e2, e3, s0, s1, s2, s3)
    for (std::int64_t i = 0; i < n_; ++i) {
      const double u = (static_cast<double>(2 * static_cast<std::int32_t>(i)) - (n - 1)) / n;
      const double e = error_of(i), eu = e * u, s = square_of(i), su = s * u;
      e0 += e;
      e1 += eu;
      e2 += eu * u;
      e3 += eu * u * u;
      s0 += s;
      s1 += su;
      s2 += su * u;
      s3 += su * u * u;
    }
    return block_of({e0, e1, e2, e3}, {s0, s1, s2, s3});
  }

  BlockMoments block_of(const std::array<double, 4>& error, const std::array<double, 4>& square) const {
    constexpr int kBiasAndFraction = 150;
    const float* const x = buffers_->x;
    const std::uint32_t exponent = std::max(std::bit_cast<std::uint32_t>(x[0]) >> 23 & 0xff, 1u);
    const double spacing = std::ldexp(1.0, static_cast<int>(exponent) - kBiasAndFraction);
    const double centre = (static_cast<double>(x[0]) + x[n_ - 1]) / 2;
    return {centre, spacing * static_cast<double>(n_) / 2, spacing, n_, error, square};
  }

  /// 1 / ulp of the format at |v|.
  static double per_ulp(double v, std::int64_t precision, std::int64_t quantum_exponent) {
    constexpr std::int64_t kBias = 1023, kFraction = 52;
    const std::int64_t exponent = ((std::bit_cast<std::int64_t>(v) >> kFraction) & 0x7ff) - kBias;
    return std::bit_cast<double>((kBias - std::max(exponent - precision + 1, quantum_exponent)) << kFraction);
  }

  GradientRegion gradient_region_of(std::int64_t i) const {
    const double x = buffers_->x[i];
    if (std::fabs(x - subject_.activation->x_star) <= kNear) return GradientRegion::near_minimum;
    return x < kTail ? GradientRegion::left_tail : GradientRegion::elsewhere;
  }

  /// Raises the maximum of each element's region by buffers_->error, which is negative for elements without
  /// an error in ulp.
  template <std::size_t N, class Region, class Got>
  void raise_by_region(std::array<Maximum, N>& maxima, const Region& region, const Got* got,
                       const double* want) {
    const Buffers& b = *buffers_;
    const auto maximum_of = [&](std::int64_t i) -> Maximum& {
      return maxima[static_cast<std::size_t>(region(i))];
    };
    if (in_one_binade() && region(0) == region(n_ - 1)) return raise(maximum_of(0), b.y, got, want);
    for (std::int64_t i = 0; i < n_; ++i)
      maximum_of(i).raise({b.error[i], b.x[i], b.y[i], static_cast<double>(got[i]), want[i]});
  }
  template <class Got>
  void raise_by_gradient_region(std::array<Maximum, kGradientRegions>& maxima, const Got* got,
                                const double* want) {
    raise_by_region(maxima, [&](std::int64_t i) { return gradient_region_of(i); }, got, want);
  }

  /// Within one binade, the regions are intervals wider than any block of neighbouring f32.
  bool in_one_binade() const {
    const float* const x = buffers_->x;
    return n_ == kBlock && (x[0] < 0 ? x[0] > 2 * x[n_ - 1] : x[n_ - 1] < 2 * x[0]);
  }

  void measure_gradient_ulp(const float* dx) {
    Buffers& b = *buffers_;
    const std::int64_t precision = subject_.format.precision,
                       quantum_exponent = subject_.format.quantum_exponent;
    const double per_unit = std::ldexp(1.0, subject_.format.precision);
    std::int64_t flat = 0;
#pragma omp simd reduction(+ : flat)
    for (std::int64_t i = 0; i < n_; ++i) {
      const bool counts = std::fabs(b.want[i]) >= kLeastUlpGradient;
      flat += !counts;
      b.error[i] =
          counts ? magnitude_of((dx[i] - b.want[i]) * per_ulp(b.want[i], precision, quantum_exponent)) : -1.0;
    }
    segment_.flat += flat;
    if (flat == n_) return;
    raise_by_gradient_region(segment_.gradient_ulp, dx, b.want);
#pragma omp simd
    for (std::int64_t i = 0; i < n_; ++i) {
      const double magnitude = std::fabs(b.want[i]);
      b.error[i] =
          magnitude >= kLeastUlpGradient ? magnitude_of(b.g[i] - b.want[i]) * per_unit / magnitude : -1.0;
    }
    raise_by_gradient_region(segment_.gradient_relative, b.g, b.want);
  }

  /// Tries every significand of dy. dy's power of two scales dx and its ulp alike.
  void search_dy() {
    Buffers& b = *buffers_;
    const std::int64_t precision = subject_.format.precision,
                       quantum_exponent = subject_.format.quantum_exponent;
    for (int k = 1 << (precision - 1); k < 1 << precision; ++k) {
      const auto dy = static_cast<float>(std::ldexp(k, static_cast<int>(1 - precision)));
      std::fill_n(b.y_other, n_, dy);
      subject_.backward(b.y_other, b.y, b.mask, b.g_other, n_);
#pragma omp simd
      for (std::int64_t i = 0; i < n_; ++i) {
        const double want = b.reach[i] = dy * b.want[i];
        b.error[i] = std::fabs(b.want[i]) >= kLeastUlpGradient
                         ? magnitude_of((b.g_other[i] - want) * per_ulp(want, precision, quantum_exponent))
                         : -1.0;
      }
      raise_by_gradient_region(segment_.gradient_found, b.y_other, b.reach);
    }
  }

  ForwardRegion region_of(std::int64_t i) const {
    const FloatFormat& format = subject_.format;
    const double x = buffers_->x[i];
    if (std::fabs(x - subject_.activation->x_star) <= kNear) return ForwardRegion::near_minimum;
    if (std::fabs(buffers_->value[i]) < std::ldexp(1.0, format.quantum_exponent + format.precision - 1))
      return ForwardRegion::subnormal;
    return x < kTail ? ForwardRegion::left_tail : ForwardRegion::elsewhere;
  }

  void measure_forward() {
    Buffers& b = *buffers_;
    const std::int64_t precision = subject_.format.precision,
                       quantum_exponent = subject_.format.quantum_exponent;
    const double largest = subject_.format.largest;
#pragma omp simd
    for (std::int64_t i = 0; i < n_; ++i) {
      // Beyond the largest finite value, an infinite y is either right or counted as misrounded. It has no
      // ulp.
      const bool overflow = std::fabs(static_cast<double>(b.y[i])) > largest &&
                            std::fabs(static_cast<double>(b.y_true[i])) > largest;
      b.error[i] =
          overflow ? 0.0
                   : magnitude_of((b.y[i] - b.value[i]) * per_ulp(b.value[i], precision, quantum_exponent));
    }
    raise_by_region(segment_.forward_ulp, [&](std::int64_t i) { return region_of(i); }, b.y, b.value);
  }

  void track_runs() {
    const Buffers& b = *buffers_;
    std::int64_t repeats = 0;
#pragma omp simd reduction(+ : repeats)
    for (std::int64_t i = 1; i < n_; ++i)
      repeats += std::bit_cast<std::uint32_t>(b.y_true[i]) == std::bit_cast<std::uint32_t>(b.y_true[i - 1]);
    if (repeats == 0 && !subject_.code && close_distinct()) return;
    for (std::int64_t begin = 0; begin < n_;) {
      const std::int64_t end = repeats == n_ - 1 ? n_ : end_of_run(begin);
      double lo = b.want[begin], hi = lo;
#pragma omp simd reduction(min : lo) reduction(max : hi)
      for (std::int64_t i = begin; i < end; ++i) {
        lo = std::min(lo, b.want[i]);
        hi = std::max(hi, b.want[i]);
      }
      const Run run{true, right_ && !subject_.code, b.y_true[begin], b.x[begin], b.x[end - 1], b.g[begin], lo,
                    hi};
      stored_.scattered ? add_to_cell(run, segment_) : push_run(run, stored_, segment_);
      begin = end;
    }
  }

  std::int64_t end_of_run(std::int64_t begin) const {
    const Buffers& b = *buffers_;
    const std::uint32_t y = std::bit_cast<std::uint32_t>(b.y_true[begin]);
    std::int64_t end = begin + 1;
    while (end < n_ && std::bit_cast<std::uint32_t>(b.y_true[end]) == y) ++end;
    return end;
  }

  /// For a block in which all y differ: every run except the first and the last is one x, so its range is a
  /// point. Returns false, and does nothing, if one of the runs may matter for C.
  bool close_distinct() {
    Buffers& b = *buffers_;
    if (n_ < 3) return false;
    const double per_y = half_ulp_per_y(subject_.format), least = least_half_ulp(subject_.format);
    const double bend = subject_.activation->facts().bend, flat_from = subject_.activation->facts().flat_from;
    double most = 0;
#pragma omp simd reduction(max : most)
    for (std::int64_t i = 0; i < n_; ++i) {
      most = std::max(most, storage_bound(b.y_true[i], b.want[i], per_y, least, bend, flat_from));
      b.error[i] = magnitude_of(b.g[i] - b.want[i]);
    }
    if (subject_.activation->masked() && most > subject_.activation->oracle_floor(subject_.format))
      return false;
    const auto single = [&](std::int64_t i) {
      return Run{true, right_, b.y_true[i], b.x[i], b.x[i], b.g[i], b.want[i], b.want[i]};
    };
    push_run(single(0), stored_, segment_);
    b.error[0] = b.error[n_ - 1] = -1;  // these runs are still open
    segment_.oracle[right_].raise({0, b.x[1], b.y_true[1], b.want[1], b.want[1]});
    raise(segment_.regret[right_], b.y_true, b.g, b.want);
    push_run(single(n_ - 1), stored_, segment_);
    return true;
  }

  /// Tries every y that a forward of that accuracy may store. In f32 these are the floats within the error. A
  /// narrower format stores only the rounding of f - e or of f + e, because two grid points are much more
  /// than 2 e apart.
  void measure_foreign() {
    Buffers& b = *buffers_;
    for (std::size_t k = 0; k < kForeignForwards.size(); ++k) {
      double most = 0;  // the most f32 steps that the error may reach
      for (std::int64_t i = 0; i < n_; ++i) {
        // The power of two is that of f itself, because f does not leave the normal range here.
        constexpr std::int64_t kExponentField = 0x7ff0000000000000;
        const double ulp =
            std::bit_cast<double>(std::bit_cast<std::int64_t>(b.value[i]) & kExponentField) * 0x1p-23;
        constexpr double kSlack = 1 + 0x1p-20;  // covers the reference's own error: 2^-50 of f is 2^-26 ulp
        b.reach[i] = (kForeignForwards[k].absolute + kForeignForwards[k].ulp * ulp) * kSlack;
        most = std::max(most, b.reach[i] / ulp);
      }
      Maximum& maximum = segment_.foreign[k][right_];
      const auto measure_stored = [&](auto stored) {
        for (std::int64_t i = 0; i < n_; ++i) b.y_other[i] = static_cast<float>(stored(i));
        evaluate(subject_.derivative, b.y_other, b.g_other);
        raise_by_gradient(maximum, b.y_other, b.g_other);
      };
      if (subject_.format.precision < kF32.precision) {
        for (const double side : {-1.0, 1.0}) {
          measure_stored([&](std::int64_t i) {
            return round_to_format(b.value[i] + side * b.reach[i], subject_.format);
          });
        }
        continue;
      }
      const int steps = static_cast<int>(most) + 1;
      for (int step = -steps; step <= steps; ++step) {
        measure_stored([&](std::int64_t i) {
          const float y = std::bit_cast<float>(std::bit_cast<std::uint32_t>(b.y_true[i]) +
                                               static_cast<std::uint32_t>(step));
          return std::fabs(y - b.value[i]) <= b.reach[i] ? y : b.y_true[i];
        });
      }
    }
  }

  bool reaches_erff() const {
    const float nearest = std::min(std::fabs(buffers_->x[0]), std::fabs(buffers_->x[n_ - 1]));
    const float farthest = std::max(std::fabs(buffers_->x[0]), std::fabs(buffers_->x[n_ - 1]));
    return farthest >= kErffLeast && nearest <= kErffGreatest;
  }

  void measure_erff() {
    Buffers& b = *buffers_;
    const FloatFormat format = subject_.format;
    for (std::int64_t i = 0; i < n_; ++i) b.y_other[i] = gelu_by_erff(b.x[i]);
#pragma omp simd
    for (std::int64_t i = 0; i < n_; ++i) {
      const float magnitude = std::fabs(b.x[i]);
      const bool covered = magnitude >= kErffLeast && magnitude <= kErffGreatest;
      b.y_other[i] = covered ? static_cast<float>(round_to_format(static_cast<double>(b.y_other[i]), format))
                             : b.y_true[i];
    }
    evaluate(subject_.derivative, b.y_other, b.g_other);
    raise_by_gradient(segment_.erff[right_], b.y_other, b.g_other);
    if (!subject_.deployed || format.precision != kF32.precision) return;
    for (std::int64_t i = 0; i < n_; ++i) b.g_other[i] = gelu_slope_by_erff(b.x[i]);
    raise_by_gradient(segment_.from_x[right_], b.x, b.g_other);
  }

  const Subject& subject_;
  const Domain domain_;
  const Stored stored_;
  const Reference& reference_;
  const std::unique_ptr<Oracle> oracle_;
  std::optional<double> evaluation_claim_;
  bool claims_bias_ = false;
  Segment& segment_;
  OutputDigests& digests_;
  std::unique_ptr<Buffers> buffers_;
  std::int64_t n_ = 0;
  bool right_ = false;
};

/// Codes whose x are scattered have 0 for NaN, unless they keep it, and their bound for the limits of f'.
/// NaN and infinite x must be treated as kernels/fitted_forward.h and kernels/activation.h specify: m = 0 for
/// NaN. With a minimum, -inf gives (-0, 0) and a finite g, and +inf gives (+inf, 1) and g = 1. Without one, y
/// and g have the limits of f and f'. A fit without exact limits may differ from the limits of g by its
/// limit_error.
void sweep_special(const Subject& subject, const Domain& domain, std::int64_t begin, std::int64_t end,
                   Segment& segment, OutputDigests& digests) {
  alignas(64) float x[kBlock], y[kBlock], g[kBlock], dx[kBlock];
  std::uint32_t mask[kMaskWords] = {};
  for (; begin < end; begin += kBlock) {
    const std::int64_t n = std::min(kBlock, end - begin);
    for (std::int64_t i = 0; i < n; ++i) x[i] = domain.at(begin + i);
    if (subject.own_forward || subject.code) {
      subject.forward(x, y, mask, n);
    } else {
      std::fill_n(mask, kMaskWords, 0u);
      for (std::int64_t i = 0; i < n; ++i) {
        y[i] = std::isnan(x[i]) ? x[i] : static_cast<float>(subject.activation->value_limit(x[i] > 0));
        mask[i / 32] |= static_cast<std::uint32_t>(x[i] >= subject.mask_from) << (i % 32);
      }
    }
    subject.derivative(y, mask, g, n);
    if (subject.gradient) subject.gradient(y, mask, dx, n);
    if (!subject.code) digests.add(y, mask, subject.gradient ? dx : g, n);
    for (std::int64_t i = 0; i < n; ++i) {
      const bool right = (mask[i / 32] >> (i % 32) & 1) != 0;
      bool holds = false;
      if (std::isnan(x[i])) {
        ++segment.nan;
        holds = subject.scattered && !subject.keeps_nan ? y[i] == 0
                : subject.code                          ? std::isnan(g[i])
                                                        : !right && std::isnan(y[i]) && std::isnan(g[i]);
      } else if (++segment.infinite; subject.scattered) {
        holds = std::fabs(g[i] - subject.activation->slope_limit(x[i] > 0)) <= subject.limit_error;
      } else if (subject.code) {
        holds = x[i] > 0 ? g[i] == 1 : std::isfinite(g[i]);
      } else {
        const SweptActivation& of = *subject.activation;
        const auto limit = static_cast<float>(of.value_limit(x[i] > 0));
        holds = std::bit_cast<std::uint32_t>(y[i]) == std::bit_cast<std::uint32_t>(limit) &&
                right == (x[i] >= of.x_star) &&
                (x[i] < 0 && of.masked() ? std::isfinite(g[i])
                                         : std::fabs(g[i] - of.slope_limit(x[i] > 0)) <= subject.limit_error);
      }
      segment.wrong_special += !holds;
    }
  }
}

}  // namespace

void Segment::append(Segment next, const Stored& stored_as) {
  for_each_count([](const char*, auto& mine, const auto& theirs) { mine += theirs; }, *this, next);
  for_each_maxima(
      [](const char*, auto& mine, const auto& theirs) {
        for (std::size_t i = 0; i < mine.size(); ++i) mine[i].raise(theirs[i]);
      },
      *this, next);
  examples.insert(examples.end(), next.examples.begin(), next.examples.end());
  examples.resize(std::min(examples.size(), kExamples));
  for (std::size_t k = 0; k < digests.size(); ++k) digests[k] += next.digests[k];
  for (const auto& [code, theirs] : next.cells) add_to_cell(theirs, *this);
  for (const auto& [bin, theirs] : next.curve) {
    CurveBin& mine = curve[bin];
    mine.least = std::min(mine.least, theirs.least);
    mine.greatest = std::max(mine.greatest, theirs.greatest);
    mine.floor = std::max(mine.floor, theirs.floor);
    mine.squares.add(theirs.squares);
    mine.weight.add(theirs.weight);
  }
  under.resize(std::max(under.size(), next.under.size()));
  for (std::size_t k = 0; k < next.under.size(); ++k) {
    under[k].mass.add(next.under[k].mass);
    under[k].error.add(next.under[k].error);
    under[k].square.add(next.under[k].square);
  }
  worst.insert(worst.end(), next.worst.begin(), next.worst.end());
  if (next.first.used) push_run(next.first, stored_as, *this);
  if (next.last.used) push_run(next.last, stored_as, *this);
}

void Segment::close(const Stored& stored_as) {
  for (Run* run : {&first, &last}) {
    if (run->used) close_run(*run, stored_as, *this);
    run->used = false;
  }
  for (const auto& [code, cell] : cells) close_run(cell, stored_as, *this);
  cells.clear();
}

std::int64_t Domain::finite() const { return 2 * static_cast<std::int64_t>(infinity_pattern(x_format)); }

float Domain::at(std::int64_t index) const {
  const std::int64_t half = infinity_pattern(x_format), sign = std::int64_t{1} << (x_format.bits - 1);
  const std::int64_t specials = sign - half;  // those of one sign
  std::int64_t pattern = index - half;
  if (index < half) {
    pattern = sign + half - 1 - index;
  } else if (index >= 2 * half) {
    const std::int64_t k = index - 2 * half;
    pattern = k < specials ? half + k : sign + half + (k - specials);
  }
  return from_pattern(x_format, static_cast<std::uint32_t>(pattern));
}

void Domain::fill(std::int64_t index, std::int64_t n, float* x) const {
  if (x_format.bits == 32 &&
      (index + n <= finite() / 2 || (index >= finite() / 2 && index + n <= finite()))) {
    const auto first = std::bit_cast<std::uint32_t>(at(index));
    const std::uint32_t step = index < finite() / 2 ? ~0u : 1u;
    for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(n); ++i)
      x[i] = std::bit_cast<float>(first + i * step);
    return;
  }
  for (std::int64_t i = 0; i < n; ++i) x[i] = at(index + i);
}

std::int64_t Domain::first_right(double x_star) const {
  std::int64_t below = -1, right = finite();
  while (right - below > 1) {
    const std::int64_t middle = below + (right - below) / 2;
    (at(middle) >= x_star ? right : below) = middle;
  }
  return right;
}

Segment sweep_range(const Subject& subject, const Domain& domain, std::int64_t begin, std::int64_t end) {
  const kernels::DefaultFloatEnvironment environment;
  Segment segment;
  OutputDigests digests(subject.format);
  BlockSweeper sweeper(subject, domain, segment, digests);
  const std::int64_t finite = domain.finite(), first_right = domain.first_right(subject.activation->x_star);
  segment.patterns = end - begin;
  segment.finite = std::max<std::int64_t>(0, std::min(end, finite) - begin);
  for (std::int64_t index = begin; index < std::min(end, finite);) {
    const bool right = index >= first_right;
    const std::int64_t n =
        std::min({kBlock, std::min(end, finite) - index, right ? kBlock : first_right - index});
    domain.fill(index, n, sweeper.x());
    sweeper.sweep(n, right);
    index += n;
  }
  if (end > finite) sweep_special(subject, domain, std::max(begin, finite), end, segment, digests);
  if (!subject.code) digests.finish(segment.digests);  // a code is not an output that anybody stores
  return segment;
}

std::vector<Domain> domains_for(const FloatFormat& format, SweptX swept) {
  if (format.precision == kF32.precision || swept == SweptX::f32) return {{kF32}};
  return swept == SweptX::own ? std::vector<Domain>{{format}} : std::vector<Domain>{{format}, {kF32}};
}

std::vector<Domain> Subject::domains() const {
  if (stores.empty()) return domains_for(format, swept);
  std::vector<Domain> domains;
  for (std::size_t k = 0; k < stores.size(); ++k) domains.push_back({format, k});
  return domains;
}

const Subject& Subject::of(const Domain& domain) const {
  return stores.empty() ? *this : stores.at(domain.store);
}

namespace {

struct Chunk {
  std::size_t domain;
  std::int64_t begin, end;
};

/// Finished chunks, by domain and first pattern.
using Finished = std::map<std::pair<std::size_t, std::int64_t>, Segment>;

/// Finished chunks, one JSON line each, after a line that says to which subject they belong. An incomplete
/// last line is dropped.
class ChunkLog {
 public:
  ChunkLog(const std::string& path, const nlohmann::ordered_json& header, Finished& found) : path_(path) {
    if (path.empty()) return;
    std::string kept = header.dump() + "\n", line;
    std::istringstream lines(std::filesystem::exists(path) ? kernels::read_file(path) : "");
    const auto next = [&] { return std::getline(lines, line) && !lines.eof(); };
    for (bool ours = next() && line + "\n" == kept; ours && next(); kept += line + "\n") {
      try {
        const nlohmann::json chunk = kernels::parse_json(line);
        found[{chunk.at("domain").get<std::size_t>(), chunk.at("begin").get<std::int64_t>()}] =
            segment_from_json(chunk.at("segment"));
      } catch (const std::exception&) {  // from JSON or from a digest
        break;
      }
    }
    kernels::write_file(path, kept);
    descriptor_ = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
    if (descriptor_ < 0) throw IoError(path, "write", errno);
  }
  ChunkLog(const ChunkLog&) = delete;
  ChunkLog& operator=(const ChunkLog&) = delete;
  ~ChunkLog() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  /// `segment` is the chunk's segment as JSON.
  void add(const Chunk& chunk, const std::string& segment) {
    if (descriptor_ < 0) return;
    const std::string line =
        fmt::format("{{\"domain\":{},\"begin\":{},\"segment\":{}}}\n", chunk.domain, chunk.begin, segment);
    for (std::size_t done = 0; done < line.size();) {
      const ssize_t put = ::write(descriptor_, line.data() + done, line.size() - done);
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) throw IoError(path_, "write", errno);
      done += static_cast<std::size_t>(put);
    }
  }

 private:
  std::string path_;
  int descriptor_ = -1;
};

std::string progress_text(std::string_view format, std::int64_t done, std::int64_t tasks, double seconds) {
  constexpr std::int64_t kWidth = 40;
  const auto filled = static_cast<std::size_t>(kWidth * done / tasks);
  return fmt::format("validate {} [{}{}] {:3}%  {:.0f} s left", format, std::string(filled, '#'),
                     std::string(kWidth - filled, '.'), 100 * done / tasks,
                     seconds / static_cast<double>(done) * static_cast<double>(tasks - done));
}

}  // namespace

std::vector<DomainPart> sweep(const Subject& subject, const std::vector<Domain>& domains,
                              const SweepOptions& options) {
  std::vector<Chunk> all;
  for (std::size_t d = 0; d < domains.size(); ++d) {
    for (std::int64_t begin = 0; begin < domains[d].size(); begin += options.chunk_patterns) {
      all.push_back({d, begin, std::min(domains[d].size(), begin + options.chunk_patterns)});
    }
  }
  const auto total = static_cast<std::int64_t>(all.size());
  const std::span<const Chunk> mine(all.begin() + total * (options.shard - 1) / options.shards,
                                    all.begin() + total * options.shard / options.shards);

  static const Ranks kAlone;
  const Ranks& ranks = options.ranks ? *options.ranks : kAlone;
  const nlohmann::ordered_json header{{"schema", "outgrad.sweep-log/5"},
                                      {"subject", subject.name},
                                      {"format", subject.format.name},
                                      {"identity", subject.identity},
                                      {"chunk_patterns", options.chunk_patterns}};
  // The identity tells coefficients apart, and what kernels give for 65,536 x. Those of another build may
  // differ elsewhere: its chunks are not continued.
  static const std::string program = kernels::sha256(kernels::read_file("/proc/self/exe"));
  nlohmann::ordered_json logged = header;
  logged["program"] = program;
  Finished found;
  ChunkLog log(ranks.rank() == 0 ? options.log : "", logged, found);
  subject.activation->facts();  // also builds the reference, before the threads start

  std::vector<Segment> segments(mine.size());
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < mine.size(); ++i) {
    const auto it = found.find({mine[i].domain, mine[i].begin});
    if (it == found.end()) {
      missing.push_back(i);
    } else {
      segments[i] = std::move(it->second);
    }
  }
  const nlohmann::json agreed =
      kernels::parse_json(ranks.broadcast(nlohmann::json{{"header", header}, {"missing", missing}}.dump()));
  if (agreed["header"] != nlohmann::json(header)) {
    throw SpecError("validate", fmt::format("rank {}", ranks.rank()),
                    fmt::format("sweeps {}, where rank 0 sweeps {}", header.dump(), agreed["header"].dump()));
  }
  missing = agreed["missing"].get<std::vector<std::size_t>>();
  const auto tasks = static_cast<std::int64_t>(missing.size());
  kernels::ProgressLine line(options.progress && ranks.rank() == 0);
  const auto start = std::chrono::steady_clock::now();
  std::int64_t done = 0;
  ranks.share(
      tasks, options.threads,
      [&](std::int64_t task) {
        const Chunk& chunk = mine[missing[static_cast<std::size_t>(task)]];
        return segment_to_json(sweep_range(subject.of(domains[chunk.domain]), domains[chunk.domain],
                                           chunk.begin, chunk.end))
            .dump();
      },
      [&](std::int64_t task, const std::string& segment) {
        const std::size_t i = missing[static_cast<std::size_t>(task)];
        log.add(mine[i], segment);
        segments[i] = segment_from_json(kernels::parse_json(segment));
        const double seconds =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        line.draw(progress_text(subject.format.name, ++done, tasks, seconds));
      });
  if (ranks.rank() != 0) return {};

  std::vector<DomainPart> parts;
  for (std::size_t i = 0; i < mine.size(); ++i) {
    if (i == 0 || mine[i].domain != mine[i - 1].domain) {
      parts.push_back({domains[mine[i].domain], mine[i].begin, mine[i].end, std::move(segments[i])});
    } else {
      parts.back().end = mine[i].end;
      parts.back().segment.append(std::move(segments[i]), subject.stored());
    }
  }
  return parts;
}

namespace {

/// Checks the witness of a maximum of |got - f'(x)| with f' by MPFR. The double reference must have been
/// within its bound of that f'.
void confirm(Maximum& maximum, Oracle& oracle) {
  if (!std::isfinite(maximum.value) || maximum.value < 0) return;
  const double want = oracle.derivative(maximum.x), value = std::fabs(maximum.got - want);
  if (!(std::fabs(value - maximum.value) <= kSweepMargin)) {
    throw std::logic_error(fmt::format("sweep: the reference missed its bound at x = {:a}: {} instead of {}",
                                       maximum.x, maximum.value, value));
  }
  maximum.want = want;
  maximum.value = value;
}

void require_count(const char* what, std::int64_t got, std::int64_t want) {
  if (got != want) throw std::logic_error(fmt::format("sweep: {} {} instead of {}", got, what, want));
}

}  // namespace

std::vector<DomainResult> finish(std::vector<DomainPart> parts, const std::vector<Domain>& domains,
                                 const Stored& stored) {
  const SweptActivation& activation = *stored.activation;
  std::vector<DomainResult> results;
  for (const Domain& domain : domains) {
    std::vector<DomainPart*> own;
    for (DomainPart& part : parts) {
      if (part.domain.x_format.name == domain.x_format.name && part.domain.store == domain.store)
        own.push_back(&part);
    }
    std::sort(own.begin(), own.end(),
              [](const DomainPart* a, const DomainPart* b) { return a->begin < b->begin; });
    DomainResult result{domain, {}};
    std::int64_t next = 0;
    const auto require_next = [&](std::int64_t begin) {
      if (begin == next) return;
      throw SpecError("validate", fmt::format("x in {}", domain.x_format.name),
                      fmt::format("patterns from number {} on are {}", std::min(next, begin),
                                  begin > next ? "missing" : "there twice"));
    };
    for (DomainPart* part : own) {
      require_next(part->begin);
      next = part->end;
      result.all.append(std::move(part->segment), stored);
    }
    require_next(domain.size());
    Segment& all = result.all;
    all.close(stored);
    const std::int64_t finite = domain.finite();
    require_count("patterns", all.patterns, domain.size());
    require_count("finite patterns", all.finite, finite);
    require_count("patterns with m = 1", all.right, finite - domain.first_right(activation.x_star));
    require_count("infinite patterns", all.infinite, 2);
    require_count("NaN patterns", all.nan, domain.size() - finite - 2);
    if (!stored.scattered && result.max(all.oracle) < activation.oracle_floor(stored.format))
      throw std::logic_error("sweep: O fell below the floor that C's search relies on");

    const std::unique_ptr<Oracle> oracle = activation.oracle();
    for (PerBranch* maxima : {&all.total, &all.stored, &all.erff, &all.from_x}) {
      for (Maximum& maximum : *maxima) confirm(maximum, *oracle);
    }
    for (PerBranch& maxima : all.foreign) {
      for (Maximum& maximum : maxima) confirm(maximum, *oracle);
    }
    for (const WeightedError& w : all.under) {
      // detects patterns left out or weighted twice; differences seen were 2^-49 and less
      constexpr double kMassTolerance = 0x1p-30;
      const double mass = w.mass.value();
      if (!(std::fabs(mass - 1) <= kMassTolerance))
        throw std::logic_error(fmt::format("sweep: the weights of all x add up to {}", mass));
    }
    std::sort(all.worst.begin(), all.worst.end(),
              [](const Run& a, const Run& b) { return a.x_first < b.x_first; });
    const double least = result.max(all.oracle) / 2;
    std::erase_if(all.worst, [least](const Run& run) { return (run.hi - run.lo) / 2 < least; });
    ExactSum squares, weight;
    for (const auto& [bin, entry] : all.curve) {
      squares.add(entry.squares);
      weight.add(entry.weight);
    }
    result.rms = std::sqrt(squares.value() / weight.value());
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace outgrad::validation
