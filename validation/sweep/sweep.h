// Total error by exhaustion: every bit pattern of x through the kernels under test, against the double reference with its proven bound.
//
// What is established, for y stored in `format` and x over every pattern of a domain (the format itself, or f32):
//   T      max |g(y, m) - f'(x)|, y and m as the forward under test gives them;   T_dx the same for dx at dy = 1, in its format
//   O      max over (y, m) of half the range of f' over the preimage {x : y = f(x) correctly rounded}: no function of (y, m) does better
//   R      max over the same (y, m) of |g(y, m) - middle of that range|
//   C      max |g_m(y) - f'(x)| with the exact g_m at the correctly rounded y: what storing y costs an evaluation without error
//   rms and mean signed error of g under distributions of x, each bit pattern weighed by the probability that x rounds to it (distribution.h)
//   the share of x whose stored (y, m) is among the worst: half the range of f' over the preimage at least half of O
//   forward error in ulp by region, and every y that is not the correctly rounded f(x)
//   errors of dx in ulp of its format, at dy = 1 as they are and for every dy as a bound, by region
//   the SHA-256 of every y, mask and dx, below
//   foreign forwards: T when y comes from elsewhere, |y - f(x)| <= a + k ulp before it is stored, or from 0.5 x (1 + erff(x / sqrt 2))
//   beside T in f32, the error of PyTorch's formula, which reads x
//
// How. f is monotone on each branch, so in ascending x a preimage is one contiguous run: it is tracked by its first and last x and the
// range of f' alone, and a run cut by the border of a chunk is joined when chunks merge (Segment is a monoid). The reference is within
// kDerivativeBound = 2^-51 of f', so a maximum of |g - f'| found with it is within 2^-51 + a double rounding < kSweepMargin of the true one, on
// both sides; g is taken as the exact fp32 it is. Where the reference cannot say which way f(x) rounds, MPFR does (counted). At the end
// MPFR recomputes f' at the witnesses of T and T_dx; a disagreement beyond the bound would be an error of this program, and throws.
//
// A backward pass may also be given a code of x (a step of f', say 2 bits) in place of (y, m): O and R are then taken over the x that share
// a code, and there is no C. Any activation of swept_activation.h. One that rises has one branch, the right one, and no mask: its bits are set and never
// read.
//
// Digests are the reference that a run on another device compares with. They are of a forward and a backward pass at dy = 1 over the patterns of a domain
// in the sweep's order (Domain): y and dx as stored, little endian, every NaN as kernels/params.h's canonical one, and the mask packed as the kernels pack
// it, bit i % 32 of word i / 32, from the first pattern of a chunk of 2^22 on. The digest of a sweep is the SHA-256 of the digests of its chunks, so that
// chunks may be made anywhere.
//
// C is evaluated by MPFR inversion only for runs where it can matter. As |(g^2)'| = 2 |f''| <= b (SweptFacts::bend) and g keeps its sign on a
// branch, a y within h = half an ulp of f(x) has |g(y) - f'(x)| <= min(b h / |f'(x)|, sqrt(b h)), where the tails of f' add 2^-79; with the range of the
// run added this bounds C there. C >= O by the definition of O, so runs below a known floor of O are passed over, and the floor is checked at the
// end. Where f rises every run could matter, but g(y) is a formula in y (SweptActivation::slope_of_value), and C is taken over every x.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string>
#include <string_view>
#include <vector>

#include "validation/exact/oracle.h"
#include "validation/exact/reference.h"
#include "validation/sweep/distribution.h"
#include "validation/sweep/ranks.h"
#include "validation/sweep/swept_activation.h"

namespace outgrad::validation {

inline constexpr double kSweepMargin = 0x1p-50;
/// An error in ulp of a format of at most 24 bits is measured against a value within a relative 2^-50, so within 2^-26 ulp; in the region
/// `subnormal` within 2^-14, the distance of the reference's proxy where f rounds to zero.
inline constexpr double kForwardMarginUlp = 0x1p-26, kSubnormalMarginUlp = 0x1p-14;

/// What the backward pass is given: y in a format and one bit, or a code of x in place of y. A code takes the part of (y, m) in O and R; C
/// and the forward's error do not exist for it.
struct Stored {
  FloatFormat format;
  bool code = false;
  const SweptActivation* activation = &kGelu;

  // NOLINTNEXTLINE(google-explicit-constructor): y in this format
  Stored(const FloatFormat& of, bool is_code = false, const SweptActivation& f = kGelu) : format(of), code(is_code), activation(&f) {}

  /// Of an f that rises, half of all f32 y are among the worst codes: no list would hold them.
  bool lists_worst() const { return activation->masked() || format.bits < 32; }
};

/// What a header says of its kernels: an upper bound that a sweep must not contradict.
struct Claim {
  static constexpr const char* kTotal = "T";              // kT: over all real x that a stored y stands for, by correct rounding
  static constexpr const char* kOracle = "O";             // kO, likewise
  static constexpr const char* kEvaluation = "D";         // kA + kB + kK

  std::string what;
  double limit;
};

/// Which x a sweep goes over: those of the format of y, every f32, or both.
enum class SweptX { own, f32, all };

/// The kernels under test, on blocks of n elements; all values widened to f32, mask bit i in bit i % 32 of word i / 32.
/// The functions are called from several threads at once.
struct Subject {
  std::string name;
  FloatFormat format;    // of y
  std::string identity;  // differs whenever results may: a stored partial sweep of another identity is not continued
  /// x (any f32 pattern) -> y rounded to `format`, and the mask; the mask's unused bits are 0. With `code` it gives the code instead, as an f32
  /// that names it, and the mask is not looked at. Without
  /// `own_forward` there is none: y is the correctly rounded f(x), and m = [x >= mask_from].
  std::function<void(const float* x, float* y, std::uint32_t* mask, std::int64_t n)> forward;
  /// g(y, m) in f32.
  std::function<void(const float* y, const std::uint32_t* mask, float* g, std::int64_t n)> derivative;
  /// dx at dy = 1 in `format`; empty where that is g itself (f32).
  std::function<void(const float* y, const std::uint32_t* mask, float* dx, std::int64_t n)> gradient;
  /// dx for dy in `format`, of our own kernels in 16 bits; empty otherwise.
  std::function<void(const float* dy, const float* y, const std::uint32_t* mask, float* dx, std::int64_t n)> backward = nullptr;

  bool code = false;
  bool own_forward = true;  // y is the subject's, not the correctly rounded f(x)
  const SweptActivation* activation = &kGelu;
  double mask_from = kGeluXStar;
  std::vector<Distribution> distributions = usual_distributions();  // of x, to weigh errors by
  std::vector<Claim> claims = {};
  double limit_error = 0;  // g at y = f(+-inf) may be off by this (a header without kExactLimits)
  bool deployed = false;  // held to the targets of its format (targets.h): all of them with a forward of its own, else those of the backward
  SweptX swept = SweptX::all;
  nlohmann::ordered_json origin = nullptr;  // of coefficients that are not ours: what the report says of them

  Stored stored() const { return {format, code, *activation}; }
  /// The domains of `swept`.
  std::vector<struct Domain> domains() const;
};

/// A value and where it was attained. value < 0: nothing seen yet.
struct Maximum {
  double value = -1;
  float x = 0;
  float y = 0;
  double got = 0;
  double want = 0;

  /// Keeps the greater; of equals the one that was there.
  void raise(const Maximum& other) {
    if (other.value > value) *this = other;
  }
};

/// Left (m = 0) and right (m = 1).
using PerBranch = std::array<Maximum, 2>;

/// The x of one branch that share the correctly rounded y: [x_first, x_last], f' in [lo, hi] there, g what the kernel makes of (y, m).
struct Run {
  bool used = false;
  bool right = false;
  float y = 0, x_first = 0, x_last = 0, g = 0;
  double lo = 0, hi = 0;
};

/// Error of T over the x of one bin of the error curve; the weight of an x is the spacing of floats there, so sums are integrals dx.
struct CurveBin {
  double least = 0, greatest = 0;   // signed error g - f'
  double floor = 0;                 // largest half range of a preimage that reaches in here
  ExactSum squares, weight;
};

/// Sums of T's signed error over x of one Distribution.
struct WeightedError {
  ExactSum mass, error, square;
};

inline constexpr double kCurveReach = 8;  // bins tile [-8, 8): beyond, |g - f'| is below f's distance from its asymptotes, 2^-47
inline constexpr int kCurveBins = 2000;

enum class ForwardRegion { near_minimum, left_tail, subnormal, elsewhere };
inline constexpr int kForwardRegions = 4;
inline constexpr std::array<const char*, kForwardRegions> kForwardRegionNames{"near_minimum", "left_tail", "subnormal", "elsewhere"};

/// Where an error of dx is given in ulp, as far as |f'| >= kLeastUlpGradient. Below it, only the absolute error is: the reference is.
enum class GradientRegion { near_minimum, left_tail, elsewhere };
inline constexpr int kGradientRegions = 3;
inline constexpr std::array<const char*, kGradientRegions> kGradientRegionNames{"near_minimum", "left_tail", "elsewhere"};
inline constexpr double kLeastUlpGradient = 0x1p-14;

/// What dx = RN_format(RN_f32(dy g)) is off by at most, in ulp of the format at dy f', whatever dy, where dy f' and dx are normal numbers; `relative` is
/// 2^p |g - f'| / |f'|, |f'| >= kLeastUlpGradient, with the reference in place of f'. With e = 2^p |g - f'| / |f'| >= |dy g - dy f'| / ulp:
///   - in the binade of dy f' the rounding adds half an ulp, and the inner one, of 16-bit formats, half an ulp of f32;
///   - beyond its upper end, a power of two that is stored exactly, the roundings, being monotone, move no further than dy g has gone beyond: at
///     most e. The inner one alone adds half an ulp of f32 there, relative 2^-24 of at most 2^p + e ulp, and may be doubled as e is;
///   - below its lower end the ulp is half of that at dy f', and so is what is added.
inline double gradient_ulp_for_any_dy(double relative, const FloatFormat& format) {
  constexpr double kUp = 1 + 0x1p-30;  // more than the roundings of this formula
  const double ulps = std::ldexp(1.0, format.precision), e = (relative + ulps * (kSweepMargin / kLeastUlpGradient)) * kUp;
  const bool narrow = format.precision < kF32.precision;
  const double within = e + 0.5 + (narrow ? ulps * 0x1p-25 : 0), beyond = 2 * e + (narrow ? 0x1p-23 * (ulps + e) : 0);
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
/// Where foreign forwards are swept: around the minimum, where g is steepest in y, resp. where erff is neither 0 nor 1 to f32.
inline constexpr float kForeignLeft = -1.25f, kForeignRight = -0.25f;
inline constexpr float kErffLeast = 0x1p-20f, kErffGreatest = 16.0f;

/// PyTorch's formulas in f32, in its order, by this machine's erff and expf: GELU, and its derivative from x
/// (aten/src/ATen/native/cuda/ActivationGeluKernel.cu).
inline float gelu_by_erff(float x) { return 0.5f * x * (1.0f + std::erf(x * std::numbers::sqrt2_v<float> * 0.5f)); }
inline float gelu_slope_by_erff(float x) {
  constexpr float kBeta = std::numbers::inv_sqrtpi_v<float> * std::numbers::sqrt2_v<float> * 0.5f;
  const float cdf = 0.5f * (1.0f + std::erf(x * (std::numbers::sqrt2_v<float> * 0.5f)));
  const float pdf = std::exp(-0.5f * x * x) * kBeta;
  return cdf + x * pdf;
}

struct Mismatch {
  float x, got, want;
};

/// What a stretch of patterns contributed. Stretches in ascending order append to each other.
struct Segment {
  std::int64_t patterns = 0, finite = 0, right = 0, infinite = 0, nan = 0;
  std::int64_t oracle_decisions = 0;  // roundings of f that the reference left open
  std::int64_t misrounded = 0;        // y other than the correctly rounded one
  std::int64_t wrong_mask = 0;        // m other than [x >= x*]
  std::int64_t wrong_special = 0;     // NaN or infinite x not treated as kernels/gelu.h specifies
  std::vector<Mismatch> examples;     // the first few misrounded y
  PerBranch total, stored, oracle, regret, storage;  // T, T_dx, O, R, C
  PerBranch deviation;  // D, of a subject with a claim about it: |g(y) - f'| at an x with f(x) = y, at every swept y or at those whose T is above the claim
  std::array<Maximum, kForwardRegions> forward_ulp;
  std::int64_t flat = 0;  // |f'| < kLeastUlpGradient: no error in ulp
  std::array<Maximum, kGradientRegions> gradient_ulp;       // of dx at dy = 1
  std::array<Maximum, kGradientRegions> gradient_relative;  // 2^p |g - f'| / |f'|
  std::array<Maximum, kGradientRegions> gradient_found;     // in ulp over every significand of dy, `got` is dy, `want` dy f'; x of a 16-bit format
  std::array<PerBranch, kForeignForwards.size()> foreign;
  PerBranch erff;
  PerBranch from_x;  // of the deployed f32 kernels' sweep: the error of gelu_slope_by_erff, which reads x; its `y` is x
  std::map<int, CurveBin> curve;
  std::vector<WeightedError> under;  // of the subject's distributions
  std::vector<Run> worst;            // runs whose half range is at least half the floor of O; none where lists_worst() is not
  std::array<std::string, 3> digests;  // of y, mask and dx: 32 bytes a chunk
  Run first, last;  // still open at both ends; `last` unused while one run spans everything

  /// `next` is the stretch right after this one.
  void append(Segment next, const Stored& stored);
  /// Both open runs end here.
  void close(const Stored& stored);
};

/// All patterns of x in an order that ascends over the finite ones (-largest ... -0, +0 ... largest), then +inf, NaNs, -inf, NaNs.
struct Domain {
  FloatFormat x_format;

  std::int64_t size() const { return std::int64_t{1} << x_format.bits; }
  std::int64_t finite() const;
  float at(std::int64_t index) const;
  /// x[i] = at(index + i), i < n.
  void fill(std::int64_t index, std::int64_t n, float* x) const;
  /// Index of the least x with m = 1, [x >= x*].
  std::int64_t first_right(double x_star = kGeluXStar) const;
};

/// Sweeps [begin, end) of the domain on the calling thread.
Segment sweep_range(const Subject& subject, const Domain& domain, std::int64_t begin, std::int64_t end);

struct SweepOptions {
  int threads = 0;  // 0 = all
  int shard = 1, shards = 1;
  std::string log;
  std::int64_t chunk_patterns = std::int64_t{1} << 22;  // a fraction of a second of work
  bool progress = true;                                 // on stderr, if that is a terminal
  const Ranks* ranks = nullptr;                         // who shares the work; nobody else
};

/// The patterns [begin, end) of one domain.
struct DomainPart {
  Domain domain;
  std::int64_t begin = 0, end = 0;
  Segment segment;
};

/// Sweeps shard `shard` (from 1 on) of `shards` of all chunks of the domains, in parallel. Finished chunks are appended to the file `log`
/// (empty: none), and taken from there if it belongs to the same subject. With ranks, the first of them has the log and the parts, the others get
/// nothing. Throws kernels::IoError; kernels::SpecError where a rank sweeps another subject.
std::vector<DomainPart> sweep(const Subject& subject, const std::vector<Domain>& domains, const SweepOptions& options);

/// The domains swept for y in `format`: the format itself, and f32 where that is another; or one of the two.
std::vector<Domain> domains_for(const FloatFormat& format, SweptX swept = SweptX::all);

/// A whole domain, counted, its runs closed, its witnesses confirmed by MPFR.
struct DomainResult {
  Domain domain;
  Segment all;
  double rms = 0;  // of T over x uniform in [-8, 8)

  double max(const PerBranch& maxima) const { return maxima[0].value > maxima[1].value ? maxima[0].value : maxima[1].value; }
  /// Upper bound of max T / max O.
  double ratio() const { return (max(all.total) + kSweepMargin) / (max(all.oracle) - kSweepMargin); }
};

/// Joins parts (any order, any shards) into whole domains. Throws kernels::SpecError if patterns are missing or there twice,
/// std::logic_error if the counts or a witness are not what they must be.
std::vector<DomainResult> finish(std::vector<DomainPart> parts, const std::vector<Domain>& domains, const Stored& stored);

}  // namespace outgrad::validation
