// Total error by exhaustion: every bit pattern of x goes through the kernels under test, and is compared with
// the double reference and its proven bound.
//
// What is established, for y stored in `format` and x over every pattern of a domain (the format itself, or
// f32):
//   T      max |g(y, m) - f'(x)|, with y and m from the forward under test;
//          T_dx is the same for dx at dy = 1, in its format
//   O      max over (y, m) of half the range of f' over the preimage {x : y = f(x) correctly rounded}: no
//          function of (y, m) does better
//   R      max over the same (y, m) of |g(y, m) - middle of that range|
//   C      max |g_m(y) - f'(x)| with the exact g_m at the correctly rounded y: the error that storing y
//          causes in an evaluation without error
//   rms and mean signed error of g under distributions of x, where each bit pattern has as weight the
//     probability that x rounds to it (distribution.h)
//   the share of x whose stored (y, m) is among the worst, that is, half the range of f' over the preimage is
//     at least half of O
//   forward error in ulp by region, and every y that is not the correctly rounded f(x)
//   errors of dx in ulp of its format by region: at dy = 1 as measured, and for every dy as a bound
//   the SHA-256 of every y, mask and dx (see below)
//   foreign forwards: T if y comes from elsewhere, with |y - f(x)| <= a + k ulp before it is stored, or from
//     0.5 x (1 + erff(x / sqrt 2))
//   beside T in f32, the error of PyTorch's formula, which reads x
//
// How. f is monotone on each branch, so for ascending x a preimage is one contiguous run. It is tracked only
// by its first and last x and the range of f'. A run that the border of a chunk cuts is joined when chunks
// merge (Segment is a monoid). The reference is within kDerivativeBound = 2^-51 of f', so a maximum of |g -
// f'| found with it is within 2^-51 + a double rounding < kSweepMargin of the true one, on both sides; g is
// taken as the exact fp32 that it is. Where the reference cannot decide which way f(x) rounds, MPFR decides
// (these cases are counted). At the end MPFR recomputes f' at the witnesses of T and T_dx. A disagreement
// beyond the bound would be an error of this program, and throws.
//
// A backward pass may also be given a code of x (a step of f', of say 2 bits) instead of (y, m). O and R are
// then taken over the x that share a code, and there is no C. A sweep can be of any activation of
// swept_activation.h. A rising activation has only the right branch and no mask: the mask bits are set and
// never read.
//
// A code may be dithered: then each x has one g for each dither. T is over all x and all dithers, rms and
// bias are over both too, and beside them stands the largest mean error of an x over its dithers. This needs
// no list of all dithers. The code rises with the dither, and what one code stands for falls, each step of
// the kernels being monotone. So the extremes of g are at the first and the last dither of a code, and within
// a code the mean follows from the first and the last dither, but for the roundings of decoding
// (kDitherMargin). O and R would be over all (code, dither), and are not measured. A y at a scale of its
// tensor or block is tried at many of them in the same way, and its T is the largest.
//
// Digests are the reference for runs on other devices. They cover a forward and a backward pass at dy = 1
// over the patterns of a domain in the sweep's order (Domain). y and dx are taken as stored, little endian,
// with every NaN as kernels/formats.h's canonical one. The mask is packed as the kernels pack it, bit i % 32
// of word i / 32, from the first pattern of a chunk of 2^22 on. The digest of a sweep is the SHA-256 of the
// digests of its chunks, so that chunks may be computed anywhere.
//
// C is evaluated by MPFR inversion only for runs where it can matter. Since |(g^2)'| = 2 |f''| <= b
// (SweptFacts::bend) and g keeps its sign on a branch, a y within h = half an ulp of f(x) has |g(y) - f'(x)|
// <= min(b h / |f'(x)|, sqrt(b h)); the tails of f' add 2^-79. Together with the range of the run this bounds
// C there. C >= O by the definition of O, so runs whose bound is below a known floor of O are skipped, and
// the floor is checked at the end. For a rising f every run could matter, but g(y) is then a formula in y
// (SweptActivation::slope_of_value), and C is computed for every x.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string>
#include <vector>

#include "validation/exact/oracle.h"
#include "validation/exact/reference.h"
#include "validation/sweep/distribution.h"
#include "validation/sweep/ranks.h"
#include "validation/sweep/swept_activation.h"

namespace outgrad::validation {

inline constexpr double kSweepMargin = 0x1p-50;
/// Decoding a dithered code rounds code - d, which is below 8, and what this stands for, which is below 2: by
/// at most 2^-22 times a step below 1/2, and 2^-24.
inline constexpr double kDitherMargin = 0x1p-23 + 0x1p-24;
/// An error in ulp of a format of at most 24 bits is measured against a value within a relative 2^-50, and so
/// within 2^-26 ulp. In the region `subnormal` it is within 2^-14, which is the distance of the reference's
/// proxy where f rounds to zero.
inline constexpr double kForwardMarginUlp = 0x1p-26, kSubnormalMarginUlp = 0x1p-14;

/// What the backward pass is given: y in a format and one bit, or a code of x instead of y. In O and R a code
/// replaces (y, m). For a code there is no C and no forward error. The x of a code are one interval, unless
/// they are `scattered`.
struct Stored {
  FloatFormat format;
  bool code = false;
  const SweptActivation* activation = &kGelu;
  bool scattered = false;

  // NOLINTNEXTLINE(google-explicit-constructor): y in this format
  Stored(const FloatFormat& of, bool is_code = false, const SweptActivation& f = kGelu,
         bool is_scattered = false)
      : format(of), code(is_code), activation(&f), scattered(is_scattered) {}

  /// For a rising f, half of all f32 y are among the worst codes, which is too many for a list; and those
  /// whose x are scattered are all alike.
  bool lists_worst() const { return !scattered && (activation->masked() || format.bits < 32); }
};

/// A header's claim about its kernels: an upper bound that a sweep must not contradict.
struct Claim {
  // kT: over all real x that a stored y stands for, by correct rounding
  static constexpr const char* kTotal = "T";
  static constexpr const char* kOracle = "O";  // kO, likewise
  static constexpr const char* kEvaluation = "D";  // kA + kB + kK
  static constexpr const char* kBias = "bias";  // kBias: of a dithered code, over all dithers

  std::string what;
  double limit;
};

/// The x that a sweep goes over: those of the format of y, every f32, or both.
enum class SweptX { own, f32, all };

/// What an x gets from a store over all that varies beside x, dithers or scales: the least and the greatest
/// g, with a dither or scale that gives it; mean and mean square of g - f'(x), without the roundings of
/// decoding.
struct VariedGradient {
  float least, greatest;
  float least_at, greatest_at;
  double error, square;
};

/// The kernels under test, on blocks of n elements. All values are widened to f32; mask bit i is bit i % 32
/// of word i / 32. The functions are called from several threads at once.
struct Subject {
  std::string name;
  FloatFormat format;  // of y
  // differs whenever results may differ: a stored partial sweep with another identity is not continued
  std::string identity = {};
  /// x (any f32 pattern) -> y rounded to `format`, and the mask, whose unused bits are 0. With `code` it
  /// instead gives the code, as an f32 that names it, and the mask is not used. Without `own_forward` there
  /// is no such function: y is the correctly rounded f(x), and m = [x >= mask_from].
  std::function<void(const float* x, float* y, std::uint32_t* mask, std::int64_t n)> forward = nullptr;
  /// g(y, m) in f32.
  std::function<void(const float* y, const std::uint32_t* mask, float* g, std::int64_t n)> derivative =
      nullptr;
  /// dx at dy = 1 in `format`; empty if that is g itself (f32).
  std::function<void(const float* y, const std::uint32_t* mask, float* dx, std::int64_t n)> gradient =
      nullptr;
  /// dx for dy in `format`, for our own kernels in 16 bits; empty otherwise.
  std::function<void(const float* dy, const float* y, const std::uint32_t* mask, float* dx, std::int64_t n)>
      backward = nullptr;
  /// For a dithered code, whose other functions draw a dither for each place in the block, what is known of
  /// every dither; for y at a scale, of which the others take one, what is found at some scales. want[i] is
  /// f'(x[i]). Empty otherwise.
  std::function<void(const float* x, const double* want, VariedGradient* result, std::int64_t n)> varied =
      nullptr;
  /// Stores of one header that are swept together, each over the format's own x; they share format,
  /// activation and everything that stored() says. The functions above are then empty.
  std::vector<Subject> stores = {};

  bool code = false;
  bool scattered = false;  // see Stored
  bool keeps_nan = false;  // of a store with scattered x: whether a NaN stays one; otherwise it has code 0
  bool own_forward = true;  // y comes from the subject and is not the correctly rounded f(x)
  const SweptActivation* activation = &kGelu;
  double mask_from = kGeluXStar;
  // the distributions of x by which errors are weighted
  std::vector<Distribution> distributions = usual_distributions();
  std::vector<Claim> claims = {};
  double limit_error = 0;  // g at y = f(+-inf) may be off by this (for a header without kExactLimits)
  // whether the targets of its format (targets.h) apply: all with a forward of its own, otherwise those of
  // the backward
  bool deployed = false;
  SweptX swept = SweptX::all;
  // for coefficients that are not ours: what the report says about them
  nlohmann::ordered_json origin = nullptr;

  Stored stored() const { return {format, code, *activation, scattered}; }
  /// The domains that `swept` names, or those of the stores.
  std::vector<struct Domain> domains() const;
  /// The subject itself, or the store that a domain is of.
  const Subject& of(const struct Domain& domain) const;
};

/// A value and where it was attained. value < 0 means that nothing has been seen yet.
struct Maximum {
  double value = -1;
  float x = 0;
  float y = 0;
  double got = 0;
  double want = 0;

  /// Keeps the greater value; of two equal ones, the earlier.
  void raise(const Maximum& other) {
    if (other.value > value) *this = other;
  }
};

/// Left (m = 0) and right (m = 1).
using PerBranch = std::array<Maximum, 2>;

/// The x of one branch that share the correctly rounded y: [x_first, x_last]. f' is in [lo, hi] there, and g
/// is the kernel's result for (y, m).
struct Run {
  bool used = false;
  bool right = false;
  float y = 0, x_first = 0, x_last = 0, g = 0;
  double lo = 0, hi = 0;
};

/// The error of T over the x of one bin of the error curve. The weight of an x is the spacing of floats
/// there, so that sums are integrals dx.
struct CurveBin {
  double least = 0, greatest = 0;  // signed error g - f'
  double floor = 0;  // the largest half range of a preimage that extends into the bin
  ExactSum squares, weight;
};

/// Sums of T's signed error over x of one Distribution.
struct WeightedError {
  ExactSum mass, error, square;
};

// bins tile [-8, 8); beyond, |g - f'| is less than f's distance from its asymptotes, 2^-47
inline constexpr double kCurveReach = 8;
inline constexpr int kCurveBins = 2000;

enum class ForwardRegion { near_minimum, left_tail, subnormal, elsewhere };
inline constexpr int kForwardRegions = 4;
inline constexpr std::array<const char*, kForwardRegions> kForwardRegionNames{"near_minimum", "left_tail",
                                                                              "subnormal", "elsewhere"};

/// The regions in which an error of dx is given in ulp, as far as |f'| >= kLeastUlpGradient. Below that, only
/// the absolute error is given, because the reference has only that.
enum class GradientRegion { near_minimum, left_tail, elsewhere };
inline constexpr int kGradientRegions = 3;
inline constexpr std::array<const char*, kGradientRegions> kGradientRegionNames{"near_minimum", "left_tail",
                                                                                "elsewhere"};
inline constexpr double kLeastUlpGradient = 0x1p-14;

/// The most, in ulp of the format at dy f', by which dx = RN_format(RN_f32(dy g)) can be off for any dy for
/// which dy f' and dx are normal numbers. `relative` is 2^p |g - f'| / |f'|, |f'| >= kLeastUlpGradient, with
/// the reference in place of f'. With e = 2^p |g - f'| / |f'| >= |dy g - dy f'| / ulp:
///   - In the binade of dy f', the rounding adds half an ulp. For 16-bit formats the inner rounding adds half
///     an ulp of f32.
///   - The binade's upper end is a power of two and stored exactly. Beyond it, the roundings, which are
///     monotone, move no further than dy g has gone beyond, which is at most e. The inner rounding alone adds
///     half an ulp of f32 there, a relative 2^-24 of at most 2^p + e ulp, and may be doubled as e is.
///   - Below the binade's lower end, the ulp is half of that at dy f', and so is what is added.
inline double gradient_ulp_for_any_dy(double relative, const FloatFormat& format) {
  constexpr double kUp = 1 + 0x1p-30;  // covers more than the roundings of this formula
  const double ulps = std::ldexp(1.0, format.precision),
               e = (relative + ulps * (kSweepMargin / kLeastUlpGradient)) * kUp;
  const bool narrow = format.precision < kF32.precision;
  const double within = e + 0.5 + (narrow ? ulps * 0x1p-25 : 0),
               beyond = 2 * e + (narrow ? 0x1p-23 * (ulps + e) : 0);
  return std::max(within, beyond) * kUp;
}

/// y may be off by `absolute` + `ulp` of f32 before it is stored.
struct ForeignForward {
  const char* name;
  double absolute;
  double ulp;
};
inline constexpr std::array<ForeignForward, 4> kForeignForwards{
    {{"0 + 0.5 ulp", 0, 0.5}, {"0 + 1 ulp", 0, 1}, {"0 + 2 ulp", 0, 2}, {"2^-23 + 2 ulp", 0x1p-23, 2}}};
/// The ranges in which foreign forwards are swept: around the minimum, where g is steepest in y; and for
/// erff, where it is neither 0 nor 1 in f32.
inline constexpr float kForeignLeft = -1.25f, kForeignRight = -0.25f;
inline constexpr float kErffLeast = 0x1p-20f, kErffGreatest = 16.0f;

/// PyTorch's formulas in f32, in its order, with this machine's erff and expf: GELU, and its derivative from
/// x (aten/src/ATen/native/cuda/ActivationGeluKernel.cu).
inline float gelu_by_erff(float x) {
  return 0.5f * x * (1.0f + std::erf(x * std::numbers::sqrt2_v<float> * 0.5f));
}
inline float gelu_slope_by_erff(float x) {
  constexpr float kBeta = std::numbers::inv_sqrtpi_v<float> * std::numbers::sqrt2_v<float> * 0.5f;
  const float cdf = 0.5f * (1.0f + std::erf(x * (std::numbers::sqrt2_v<float> * 0.5f)));
  const float pdf = std::exp(-0.5f * x * x) * kBeta;
  return cdf + x * pdf;
}

struct Mismatch {
  float x, got, want;
};

/// What a stretch of patterns contributed. A stretch can be appended to the one before it, in ascending
/// order.
struct Segment {
  std::int64_t patterns = 0, finite = 0, right = 0, infinite = 0, nan = 0;
  std::int64_t oracle_decisions = 0;  // roundings of f that the reference could not decide
  std::int64_t misrounded = 0;  // y that differ from the correctly rounded one
  std::int64_t wrong_mask = 0;  // m that differ from [x >= x*]
  std::int64_t wrong_special = 0;  // NaN or infinite x not treated as kernels/fitted_forward.h specifies
  std::vector<Mismatch> examples;  // the first few misrounded y
  PerBranch total, stored, oracle, regret, storage;  // T, T_dx, O, R, C
  // D, for a subject with a claim about it: |g(y) - f'| at an x with f(x) = y, at every swept y or at those
  // with T above the claim
  PerBranch deviation;
  std::array<Maximum, kForwardRegions> forward_ulp;
  std::int64_t flat = 0;  // |f'| < kLeastUlpGradient, so there is no error in ulp
  std::array<Maximum, kGradientRegions> gradient_ulp;  // of dx at dy = 1
  std::array<Maximum, kGradientRegions> gradient_relative;  // 2^p |g - f'| / |f'|
  // in ulp over every significand of dy; `got` is dy, `want` is dy f'; for x of a 16-bit format
  std::array<Maximum, kGradientRegions> gradient_found;
  std::array<PerBranch, kForeignForwards.size()> foreign;
  PerBranch erff;
  // for the sweep of deployed f32 kernels: the error of gelu_slope_by_erff, which reads x; its `y` is x
  PerBranch from_x;
  std::map<int, CurveBin> curve;
  std::vector<WeightedError> under;  // one for each of the subject's distributions
  // of a dithered code: the largest |mean of g - f'(x) over the dithers|; `got` is mean of g
  PerBranch bias;
  // of codes whose x are scattered: the x of each code, from the first to the last
  std::map<float, Run> cells;
  // runs whose half range is at least half the floor of O; none unless lists_worst()
  std::vector<Run> worst;
  std::array<std::string, 3> digests;  // for y, mask and dx: 32 bytes per chunk
  Run first, last;  // still open at both ends; `last` is unused while one run spans everything

  /// `next` must be the stretch directly after this one.
  void append(Segment next, const Stored& stored);
  /// Both open runs end here.
  void close(const Stored& stored);
};

/// Calls f(name, fields...) for every counter of one or several segments, and for every array of maxima.
template <class F, class... Segments>
void for_each_count(F f, Segments&... s) {
  f("patterns", s.patterns...);
  f("finite", s.finite...);
  f("right", s.right...);
  f("infinite", s.infinite...);
  f("nan", s.nan...);
  f("oracle_decisions", s.oracle_decisions...);
  f("misrounded", s.misrounded...);
  f("wrong_mask", s.wrong_mask...);
  f("wrong_special", s.wrong_special...);
  f("flat", s.flat...);
}
template <class F, class... Segments>
void for_each_maxima(F f, Segments&... s) {
  f("T", s.total...);
  f("T_dx", s.stored...);
  f("O", s.oracle...);
  f("R", s.regret...);
  f("C", s.storage...);
  f("D", s.deviation...);
  f("forward_ulp", s.forward_ulp...);
  f("gradient_ulp", s.gradient_ulp...);
  f("gradient_relative", s.gradient_relative...);
  f("gradient_found", s.gradient_found...);
  for (std::size_t k = 0; k < kForeignForwards.size(); ++k) f(kForeignForwards[k].name, s.foreign[k]...);
  f("erff", s.erff...);
  f("from_x", s.from_x...);
  f("bias", s.bias...);
}

/// All patterns of x in an order that ascends over the finite ones (-largest ... -0, +0 ... largest), then
/// +inf, NaNs, -inf, NaNs.
struct Domain {
  FloatFormat x_format;
  std::size_t store = 0;  // the number of the subject's store, where it has several

  std::int64_t size() const { return std::int64_t{1} << x_format.bits; }
  std::int64_t finite() const;
  float at(std::int64_t index) const;
  /// x[i] = at(index + i), i < n.
  void fill(std::int64_t index, std::int64_t n, float* x) const;
  /// The index of the least x with m = 1, that is, with [x >= x*].
  std::int64_t first_right(double x_star = kGeluXStar) const;
};

/// Sweeps [begin, end) of the domain on the calling thread.
Segment sweep_range(const Subject& subject, const Domain& domain, std::int64_t begin, std::int64_t end);

struct SweepOptions {
  int threads = 0;  // 0 = all
  int shard = 1, shards = 1;
  std::string log;
  std::int64_t chunk_patterns = std::int64_t{1} << 22;  // a fraction of a second of work
  bool progress = true;  // on stderr, if that is a terminal
  const Ranks* ranks = nullptr;  // those who share the work; null: nobody else
};

/// The patterns [begin, end) of one domain.
struct DomainPart {
  Domain domain;
  std::int64_t begin = 0, end = 0;
  Segment segment;
};

/// Sweeps shard `shard` (counted from 1) of `shards` shards of all chunks of the domains, in parallel.
/// Finished chunks are appended to the file `log` (empty: none), and are taken from there if it belongs to
/// the same subject. With ranks, the first rank has the log and the parts, and the others get nothing. Throws
/// kernels::IoError, and kernels::SpecError if a rank sweeps another subject.
std::vector<DomainPart> sweep(const Subject& subject, const std::vector<Domain>& domains,
                              const SweepOptions& options);

/// The domains swept for y in `format`: the format itself and, if that is not f32, f32; or only one of the
/// two.
std::vector<Domain> domains_for(const FloatFormat& format, SweptX swept = SweptX::all);

/// A whole domain: counted, with its runs closed and its witnesses confirmed by MPFR.
struct DomainResult {
  Domain domain;
  Segment all;
  double rms = 0;  // for T over x uniform in [-8, 8)

  double max(const PerBranch& maxima) const {
    return maxima[0].value > maxima[1].value ? maxima[0].value : maxima[1].value;
  }
  /// An upper bound of max T / max O.
  double ratio() const { return (max(all.total) + kSweepMargin) / (max(all.oracle) - kSweepMargin); }
};

/// Joins parts (in any order, of any shards) into whole domains. Throws kernels::SpecError if patterns are
/// missing or occur twice, and std::logic_error if the counts or a witness are not what they must be.
std::vector<DomainResult> finish(std::vector<DomainPart> parts, const std::vector<Domain>& domains,
                                 const Stored& stored);

}  // namespace outgrad::validation
