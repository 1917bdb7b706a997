// What the stages before the report left in a folder, as values: headers, fits, sweeps, stability analyses, tuning records.
//
// Every file is read only through its schema (outgrad.fit/3, outgrad.sweep/1, outgrad.stability/1, outgrad.pareto/2,
// outgrad.norm_attack/1, outgrad.certificate_attack/1, outgrad.proofs/1, outgrad.training/2, outgrad.provenance/1; the tuner's by
// autotune/records/database.h).
// Nothing else of the programs that wrote it is linked here. What is missing is an empty list; what is malformed is a
// SpecError "file: place: why".
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "validation/certificate/header_reader.h"

namespace outgrad::validation {

struct FitResult {
  std::string file, name, kind, format;  // format: empty for a forward
  bool own = false;                      // of a user's own expression
  std::string spec_sha256, accuracy;
  double bound_a = 0;
  std::optional<double> bound_k, bound_b;  // none for a forward
  double bound_ab = 0, bound_ulp = 0;  // 0: no such claim
  int pieces = 0;
  // For the piece with the greatest certified error: the certified error, and the least error that any polynomial of
  // this degree can have there.
  double worst_certified = 0, worst_lower_bound = 0;
};

/// A maximum over x, a proved upper bound of it, and where it was attained, for m = 0 and m = 1.
struct SweptMaximum {
  double value = 0, bound = 0;
  std::array<std::string, 2> x;  // hex floats; empty where a branch saw nothing
  int worst_branch = 0;
  const std::string& worst() const { return x[static_cast<std::size_t>(worst_branch)]; }
};

/// Errors of g over x of one distribution.
struct WeightedErrors {
  std::string x;
  double rms = 0, bias = 0, most = 0, share = 0;  // most: within the range that holds nearly all x; share: of x in the worst codes
};

struct ErrorBin {
  double x = 0, least = 0, greatest = 0, floor = 0;  // middle of the bin; signed errors; O
};

/// One domain of x, of which every pattern was swept.
struct SweptDomain {
  std::string x_format;
  std::int64_t patterns = 0, finite = 0, oracle_decisions = 0, misrounded = 0, wrong_mask = 0, wrong_special = 0;
  SweptMaximum total, stored, oracle, regret, storage;  // T, T_dx, O, R, C
  double ratio = 0, rms = 0;  // upper bound of max T / max O; rms of T over [-8, 8)
  double near_ulp = 0, far_ulp = 0;  // forward error, as proved bounds; 0 if the forward is not the kernels' own
  std::vector<std::pair<std::string, double>> foreign;  // T with other forwards
  std::optional<double> from_x;  // bound of the error of PyTorch's fp32 formula, which reads x
  std::vector<ErrorBin> curve;
  std::vector<WeightedErrors> under;  // empty for a file from before there were any
};

struct SweepResult {
  std::string file, activation, format, fit, forward;  // the names of the fits that were swept
  // For coefficients that are not ours: what the backward pass is given, and whose they are; otherwise empty.
  std::string stored, source;
  std::vector<SweptDomain> domains;
};

/// A store in place of y and a bit, over every x of its format.
struct SweptStore {
  std::string name;
  std::int64_t patterns = 0, wrong_special = 0;
  SweptMaximum total;
  double proven = 0;                                // the header's bound of T
  std::optional<double> bias, proven_bias;          // of a dithered code, as bounds
  std::vector<WeightedErrors> under;
};

/// The stores of one header.
struct StoreSweep {
  std::string file, activation, format, fit;
  std::vector<SweptStore> stores;
};

/// One group's range of a quantiser of x or y.
struct QuantisedRange {
  double min = 0, max = 0;
  double total = 0, wrapped = 0;  // bounds of T; wrapped: where a code has wrapped, 0 if none can
  double oracle = 0, bias = 0, maximum_wraps = 0;  // O; E z^ - z as found; the probability that z = max wraps
  std::vector<std::pair<std::string, double>> rms;  // by distribution of x, where the x hold nearly all of it
};

/// foreign/sweeps/*.json of schema outgrad.quantiser/1.
struct QuantiserResult {
  std::string file, name, activation, format, stored, source;
  double bits = 0;  // of an element, with its share of a scale and a minimum
  std::vector<QuantisedRange> ranges;
  std::vector<std::pair<std::string, double>> groups;  // rms where every group has its own range, by distribution
  std::optional<double> wraps_mean, wraps_most;  // of the maximum of a group with its own range; of the worst binade of max - min
  std::optional<double> running_wraps;  // simulated: the share of steps of a running range that wrap something
};

/// What a store costs for x of one distribution.
struct StoreErrors {
  std::string x;
  double greatest = 0, rms = 0, bias = 0, shrinkage = 0;
};

/// A row of a front.
struct StoreResult {
  std::string name, origin, condition, dominated_by;
  double beyond = 0, all = 0;  // bits an element
  std::optional<double> proven;
  std::optional<double> forward_speed, backward_speed;  // over those of the kernels that keep y and a bit
  std::vector<StoreErrors> under;

  double found() const;
};

/// front/*.json.
struct FrontResult {
  std::string file, activation;
  std::vector<StoreResult> stores;
};

struct ChannelResult {
  std::string layer, channel_class;
  int index = 0;
  double gamma = 0, beta = 0, rho = 0, bits_lost = 0, x_hat = 0, dgamma = 0;  // bounds for rows with |x^| <= x_hat_max
};

struct NormResult {
  std::string name, norm, policy;
  int columns = 0;
  std::array<int, 4> classes{};  // kChannelClasses
  double rho_median = 0, rho_max = 0;
  double dx_from_output = 0, dx_recommended = 0;  // rms error over rstd max|dy| rms(gamma)
  double dgamma_estimate = 0;
  int side_buffer_bytes = 0;  // per row
  std::vector<ChannelResult> channels;
};
inline constexpr std::array<const char*, 4> kChannelClasses{"stable", "degraded", "unstable", "zero_gamma"};

struct StabilityFile {
  std::string file, source, format;
  double mean_ratio = 0, dy_max = 0, eps = 0, tau = 0, x_hat_max = 0;
  std::vector<NormResult> norms;
};

struct Rejection {
  std::string variant, stage, reason, detail;
};

/// The fastest timed candidate of a certified fit, as the ratio of the default's time to the candidate's time.
struct FitSpeed {
  std::string name, accuracy;
  double speedup = 1, low = 1, high = 1;
};

/// The latest run of the tuner on one kernel and format.
struct TuningResult {
  std::string file, kernel, format, size, machine, compiler, time;  // size: "16384x1024", or the number of elements
  int timed = 0, unfinished = 0;  // candidates that were accepted and timed; candidates that were accepted but have no time
  std::vector<Rejection> rejected;
  // The winner; an empty name if nothing was timed.
  std::string winner, default_variant, ceiling;
  bool gain = false;
  double gb_per_s = 0, share = 0, speedup = 1, speedup_low = 1, speedup_high = 1, confidence = 0;
  std::vector<FitSpeed> fits;  // fastest first
};

struct ParetoPointResult {
  std::string name, accuracy;
  int work = 0, depth = 0, table_bytes = 0, operations = 0;
  double a_plus_b = 0, total = 0, regret = 0, oracle = 0;  // the last is 0 if the format's T is not enumerated
};

/// What the search against a bound found for one gradient; errors are in units of the bound.
struct AttackedBound {
  std::string gradient;  // dx, dgamma, dbeta, rstd
  double evaluations = 0, violations = 0;
  std::optional<double> tightness;  // bound / largest error; none: no error was found
  double ours = 0;  // the largest error of the way for which the bound holds
  std::array<double, 3> peers{};  // kPeerWays; not for rstd
};
inline constexpr std::array<const char*, 3> kPeerWays{"from_input", "clamped_gamma", "unguarded"};

/// One class of rows of one norm, format and number of columns.
struct AttackedCase {
  std::string norm, format, parameters, x, policy;
  int columns = 0;
  std::vector<AttackedBound> bounds;
  const AttackedBound* of(const std::string& gradient) const;  // null if it was not attacked
};

struct AttackFile {
  std::string file;
  double evaluations = 0, violations = 0, median_tightness = 0, share_within_4 = 0;
  std::vector<std::pair<std::string, double>> median_of_gradient, median_of_dx;  // by gradient; and for dx by format
  std::vector<AttackedCase> cases;
};

/// One way to compute gradients on a text, over all seeds.
struct TrainedWay {
  std::string text, way;
  int ended = 0, diverged = 0;
  std::optional<double> loss;  // mean validation loss of the runs that finished
  std::optional<double> difference, low, high;  // from the runs with exact gradients, paired by seed; with its interval
  std::optional<double> distance_median, distance_most;  // of the gradient from the exact one at the same weights, relative L2
};

struct TrainingCurve {
  std::string text, way;
  std::vector<std::optional<double>> loss;  // mean over the seeds; none where one of them had diverged
};

struct TrainingResult {
  std::string file, command, model;  // the model in a few words
  int seeds = 0, steps = 0;
  double confidence = 0;
  std::vector<double> loss_steps;
  std::vector<std::string> texts, ways;
  std::vector<TrainedWay> summary;
  std::vector<TrainingCurve> curves;
  std::optional<double> noise;  // median distance of another batch's exact gradient, which is the noise of any gradient of a batch
};

/// What one recipe keeps for the backward pass of one sequence, by mode.
struct LedgerRow {
  std::string of, recipe;  // the name of a layer or model
  std::vector<double> mib;
  std::vector<std::vector<std::int64_t>> batches;  // for a model: the largest batches for each memory, by arithmetic
};

/// studies/ledger.json.
struct LedgerResult {
  std::string file, command;
  int length = 0;  // tokens of a sequence
  std::vector<std::string> modes;
  std::vector<std::int64_t> memories;  // GiB
  std::vector<LedgerRow> layers, models;
};

/// The fits of an activation and format that are worth choosing from; the cheapest comes first.
struct ParetoResult {
  std::string file, activation, format;
  bool exact = false;
  int tried = 0;
  std::vector<ParetoPointResult> points;
};

/// attack/certificates.json: damaged headers and random specifications against `check`.
struct CertificateAttack {
  std::string file;
  std::int64_t mutants = 0, killed = 0, harmless = 0, survived = 0;
  std::int64_t specifications = 0, fitted = 0, refused = 0, undecided = 0, false_claims = 0;
  std::int64_t broken = 0;  ///< hangs, internal errors, fits that ran out of memory, and true headers that `check` calls violated
};

/// What Coq was asked of one bound of a fit.
struct CoqBound {
  int files = 0, proven = 0;
  double claim = 0;  ///< the greatest of the files
};

/// proofs/*.json: what Coq accepted of a fit.
struct CoqProof {
  std::string file, name, spec_sha256, coq;
  bool holds = false;
  double cpu_s = 0;
  std::array<CoqBound, 3> bounds{};  ///< kCoqBounds
  std::size_t assumptions = 0, unlisted = 0;
};
inline constexpr std::array<const char*, 3> kCoqBounds{"A", "B", "T"};

/// provenance.json, which whoever ran the stages leaves beside their results: what made them, and which are not of that run.
struct Provenance {
  std::string made_by;                          // one line: version, commit, date, machine; empty if there is no such file
  std::map<std::string, std::string> of_files;  // "this run", or "committed DATE COMMIT", by path
};

struct Results {
  Provenance provenance;
  std::vector<BackwardHeader> backward;
  std::vector<ForwardHeader> forward;
  std::vector<RoundedForwardHeader> rounded;
  std::vector<TableHeader> tables;
  std::vector<CodeHeader> codes;
  std::vector<FitResult> fits;
  std::vector<SweepResult> sweeps, foreign;  // those of our kernels; those of published coefficients
  std::vector<StoreSweep> store_sweeps;
  std::vector<QuantiserResult> quantisers;
  std::vector<FrontResult> fronts;
  std::vector<StabilityFile> stability;
  std::vector<TuningResult> tuning;
  std::vector<ParetoResult> pareto;
  std::vector<AttackFile> attacks;
  std::optional<CertificateAttack> certificates;
  std::vector<CoqProof> proofs;
  std::vector<LedgerResult> ledgers;
  std::vector<TrainingResult> training;
  std::vector<std::string> warnings;  // "file:line: why", for what was skipped

  /// Whether nothing was read; without headers: nothing but headers.
  bool empty(bool without_headers = false) const {
    const bool no_headers = backward.empty() && forward.empty() && rounded.empty() && tables.empty() && codes.empty();
    return (without_headers || no_headers) && fits.empty() && sweeps.empty() && foreign.empty() && store_sweeps.empty() && quantisers.empty() &&
           fronts.empty() && stability.empty() && tuning.empty() && pareto.empty() && attacks.empty() && !certificates && proofs.empty() && ledgers.empty() &&
           training.empty();
  }
  /// Of which run a file is: "this run", "committed DATE COMMIT", "not of this run"; "not stated" without a provenance.json.
  std::string origin(const std::string& file) const;
  /// Null if there is none.
  const BackwardHeader* backward_named(const std::string& name) const;
  const FitResult* fit_named(const std::string& name) const;
  /// The sweep of the deployed fit of erf-GELU: the first of its format in the order of file names (gelu_bf16 before
  /// gelu_bf16_fast).
  const SweepResult* sweep_of(const std::string& format) const;
  const SweepResult* sweep_of_fit(const std::string& name) const;
};

/// Reads `folder`/{fits,sweeps,stability,pareto,attack,proofs,training}/*.json, `folder`/foreign/sweeps/*.json,
/// `folder`/studies/ledger.json, `folder`/tuned/*.jsonl, `folder`/provenance.json and every coefficient header under `headers`, in the order of
/// their names; and of the same folders in `folder`/committed what `folder` itself has no file of that name for.
/// Throws kernels::SpecError if a file is malformed, if two files contradict each other, or if a sweep is
/// not exhaustive; and kernels::IoError.
Results read_results(const std::string& folder, const std::string& headers);

}  // namespace outgrad::validation
