// Adversarial search against the bounds of stability.h: it looks for rows x, dy within the format that make
// the deployed kernels as wrong as they can be.
//
// A case fixes the layer (norm, format, N, gamma, beta, eps, and which channels have a side buffer) and the
// class of rows that the bound is for, that is, the limits on |mean| rstd, |xh|, |dy| and |x|. The search
// moves only within the class; a row that leaves it is not compared.
//
// One EVALUATION is one comparison of one output element, dx[i, j], dgamma[j] or dbeta[j]. It compares the
// value from the public host kernels with the gradient of the same stored x in long double. It fails if they
// differ by more than the bound plus the proven error of that reference (reference_bounds). Elements that the
// bound does not cover are not counted as evaluations: those of channels whose bound is infinite, and a dx
// that may leave the format. rstd is also compared, but not counted.
//
// All moves stay within the lattice of the format:
//   - steps of a few ulp, swaps, sign flips, powers of two, and real factors and shifts rounded to the
//     format;
//   - a sweep that picks for each x, among nearby values, the one whose y rounds the most in one direction;
//   - ascent along the gradient, in real arithmetic, of the first-order error delta_j m2 + xh_j D2 + r p_j.
//     (delta is the error of xh, D2 that of m2; r is that of rstd and of the rounding of dx.) In dy the error
//     is linear, so the signs of the gradient give the maximum at once; in x the ascent takes steps.
// Each row climbs on its own for dx and rstd, each column for dbeta, and all rows together for one column of
// dgamma. A climb that makes no progress starts again from one of several constructions.
//
// Where y is kept in 8 bits, an x must move far before its code changes. So the search also builds rows whose
// y all err as much as the store lets them, and in one direction: every element is the worst of some numbers
// near its own, with the scales already fixed by the elements that are largest in their group. It makes such
// rows anew all the time.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "kernels/formats.h"
#include "tests/attack/gradients.h"
#include "validation/norms/stability.h"

namespace outgrad::validation {

struct AttackOptions {
  std::uint64_t seed = 1;
  // the aim for all cases together; a case whose rows mostly leave their class makes fewer
  double evaluations = 1e8;
  kernels::i64 max_columns = 1 << 16;  // cases with more columns are left out
  // of kNormFormats
  std::vector<std::string> formats{std::begin(kernels::ActivationFormats::kNames),
                                   std::end(kernels::ActivationFormats::kNames)};
  const NormTamper* tamper = nullptr;  // for tests
};

// What is compared with its bound.
enum class Gradient { kDx, kDgamma, kDbeta, kRstd };
inline constexpr int kGradients = 4, kPeers = 3;
const char* to_string(Gradient gradient);

// An element and the row it comes from (for dgamma and dbeta: all rows), which is enough to repeat the
// comparison.
struct AttackWitness {
  kernels::i64 row = 0, column = 0;
  float got = 0;
  double want = 0, bound = 0;
  std::vector<float> x, dy;
};

struct GradientTally {
  double evaluations = 0, violations = 0;
  double worst = 0;  // error / bound; at most 1 unless the bound is violated
  double peer_worst[kPeers] = {};  // those of NormPeer, in units of the same bounds
  AttackWitness witness;  // the witness of `worst`
  double tightness() const { return 1 / worst; }  // infinite if no error was found
};

struct AttackCase {
  std::string parameters, rows_kind;
  bool from_output = false;  // no side buffer: every channel is computed from y
  NormLayer layer;
  StabilityOptions options;  // the class of rows
  double x_max = 0;  // limit of |x|
};

struct AttackResult {
  AttackCase subject;
  GradientTally tally[kGradients];
  double excluded = 0;  // elements of dx that may leave the format, or channels without a bound
  double rejected = 0;  // rows outside the class
  // the largest share that the reference's own error has in a bound of dx or dgamma
  double reference_share = 0;
};

// The cases of the options' formats and sizes.
std::vector<AttackCase> attack_cases(const AttackOptions& options);

// Attacks one case until it has made `evaluations`, or four times the number of batches that these take. The
// result is determined by the seed.
AttackResult attack(const AttackCase& subject, double evaluations, std::uint64_t seed,
                    const NormTamper* tamper = nullptr);

// All cases, on all cores. The results have the order of attack_cases, whatever the number of threads.
std::vector<AttackResult> attack_all(const AttackOptions& options);

struct AttackSummary {
  size_t cases = 0;
  double evaluations = 0, violations = 0, excluded = 0;
  // The tightness bound / worst error found, over the cases in which an error was found; NaN if there are
  // none.
  double median_tightness[kGradients] = {};
  double median_tightness_all = 0;  // over all pairs of a case and one of dx, dgamma, dbeta
  double share_within_4 = 0;  // the share of these pairs that have a tightness of at most 4
  std::map<std::string, double> median_dx_by_format;
  struct OfFormat {
    double evaluations = 0, violations = 0;
    double median_tightness = 0;  // over the pairs of a case and one of dx, dgamma, dbeta
  };
  std::map<std::string, OfFormat> by_format;
  double largest_tightness = 0;
  double reference_share = 0;  // the largest
};
AttackSummary summarise(const std::vector<AttackResult>& results);

// Schema outgrad.norm_attack/1. Witnesses are given as hex floats: those of every violation, and those of the
// worst dx in rows of at most 7 elements.
nlohmann::json to_json(const AttackOptions& options, const std::vector<AttackResult>& results);

}  // namespace outgrad::validation
