// What the verdicts of the report depend on, as values: headers, and of each result file the figures that are
// judged.
//
// A file is read only through its schema. What is missing is an empty list; what is malformed is a SpecError
// "file: place: why". Of files that nothing is judged by, only the paths are here: the report's Python reads
// and shows them.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "autotune/records/database.h"
#include "validation/certificate/header_reader.h"
#include "validation/sweep/sweep_gate.h"

namespace outgrad::validation {

struct FitResult {
  std::string file, name, kind, spec_sha256;
  bool own = false;  // of a user's own expression
  double bound_a = 0;
  std::optional<double> bound_k, bound_b;  // none for a forward
  double bound_ab = 0, bound_ulp = 0;  // 0: no such claim
};

/// One domain of x, of which every pattern was swept. What has no value of its own is a proved upper bound.
struct SweptDomain {
  std::string x_format;
  std::int64_t misrounded = 0, wrong_mask = 0, wrong_special = 0;
  double total = 0, regret = 0;  // T, R
  double ratio = 0;  // max T / max O
  double near_ulp = 0, far_ulp = 0;  // forward error; 0 if the forward is not the kernels' own
  std::optional<double> from_x;  // the error of PyTorch's fp32 formula, which reads x
};

struct SweepResult {
  std::string file, activation, format, fit;  // the name of the fit that was swept
  bool foreign = false;  // of published coefficients, not of ours
  std::vector<SweptDomain> domains;
  std::vector<SweepGate> gates;  // what `validate` held it to, by which it ended with exit status 0 or 1
};

/// A store in place of y and a bit, over every x of its format, of a gated pair over every pair; of a
/// dithered code its bias too.
struct SweptStore {
  std::int64_t wrong_special = 0;
  double total = 0, proven = 0;  // bounds of T: from the sweep, and of the header
  std::optional<double> bias, proven_bias;
};

/// The stores of one header.
struct StoreSweep {
  std::string file, fit;
  std::vector<SweptStore> stores;
};

/// attack/*.json: a search against the norms' bounds.
struct AttackFile {
  std::string file;
  double evaluations = 0, violations = 0, median_tightness = 0;
};

/// attack/certificates.json: damaged headers and random specifications against `check`.
struct CertificateAttack {
  std::string file;
  std::size_t headers = 0;
  std::int64_t mutants = 0, survived = 0;  ///< survived: mutants, and headers that are false undamaged
  std::int64_t specifications = 0, false_claims = 0;
  std::int64_t broken = 0;  ///< hangs, internal errors, fits out of memory, and true headers called violated
};

/// What Coq was asked of one bound of a fit.
struct CoqBound {
  int files = 0, proven = 0;
  std::set<std::int64_t> rows;  ///< that the files of A or B are about
  double claim = 0;  ///< the greatest of the files
};

/// proofs/*.json: what Coq accepted of a fit.
struct CoqProof {
  std::string file, name, spec_sha256;
  bool holds = false;
  std::array<CoqBound, 4> bounds{};  ///< kCoqBounds
  std::size_t unlisted = 0;  ///< assumptions beyond the list
};
/// G: the error at every number y of fp32.
inline constexpr std::array<const char*, 4> kCoqBounds{"A", "B", "T", "G"};

/// provenance.json, which whoever ran the stages leaves beside their results.
struct Provenance {
  std::string made_by;  // version, commit, date, machine; empty without such a file
  std::string date;
  std::map<std::string, std::string> of_files;  // "this run", or "committed DATE COMMIT", by path
  bool finished = true;  // false: the run was interrupted, or is at work
  std::vector<std::string> missing;  // what it was to make and has not, relative to the folder
};

/// The latest run of the tuner on one kernel, format and size ("67108864", "4096x1024", ""): a record of each
/// variant, in the order of their names. Of a variant with several lines a rejection counts, else the line
/// with the most final rounds, so that its screening does not stand for a finalist.
struct TunedRun {
  std::string kernel, format, size;
  std::vector<const autotune::Record*> records;
};
/// In the order of these three, whatever the order of the lines. A run is what its lines share: its time, its
/// seed and the sources' hashes. The latest is the largest of these: of the runs of one second one counts.
std::vector<TunedRun> latest_runs(const autotune::Database& database);

struct Results {
  Provenance provenance;
  std::vector<BackwardHeader> backward;
  std::vector<ForwardHeader> forward;
  std::vector<RoundedForwardHeader> rounded;
  std::vector<TableHeader> tables;
  std::vector<CodeHeader> codes;
  std::vector<FitResult> fits;
  std::vector<SweepResult> sweeps;  // those of our kernels
  std::vector<StoreSweep> store_sweeps;
  std::vector<AttackFile> attacks;
  std::optional<CertificateAttack> certificates;
  std::vector<CoqProof> proofs;
  /// The latest run of the tuner on each kernel, format and size: `file`, `size`, and its `records`, those of
  /// TunedRun, with `too_noisy` where that is why the default is the winner.
  std::vector<nlohmann::json> tuned;
  /// The files with fits, sweeps and so on, those that nothing is judged by among them, by kind.
  std::map<std::string, std::vector<std::string>> files;
  std::vector<std::string> warnings;  // "file:line: why", for what was skipped

  /// Whether nothing was read; without headers: nothing but headers.
  bool empty(bool without_headers = false) const;
  /// The run that a file is of: "this run", "committed DATE COMMIT", "not of this run"; "not stated" without
  /// a provenance.json.
  std::string origin(const std::string& file) const;
  /// Null if there is none.
  const BackwardHeader* backward_named(const std::string& name) const;
  const FitResult* fit_named(const std::string& name) const;
  /// The sweep of the deployed fit of erf-GELU: the first of its format in the order of file names (gelu_bf16
  /// before gelu_bf16_fast).
  const SweepResult* sweep_of(const std::string& format) const;
  const SweepResult* sweep_of_fit(const std::string& name) const;
};

/// Reads `folder`/{fits,sweeps,attack,proofs}/*.json, `folder`/foreign/sweeps/*.json, `folder`/tuned/*.jsonl,
/// `folder`/provenance.json and every coefficient header under `headers`, in the order of their names, and
/// lists the other results; and of the same folders in `folder`/committed what `folder` itself has no file of
/// that name for. Throws kernels::SpecError if a file is malformed, if two files contradict each other, or if
/// a sweep is not exhaustive; and kernels::IoError.
Results read_results(const std::string& folder, const std::string& headers);

}  // namespace outgrad::validation
