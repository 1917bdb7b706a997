// Databases of several runs, machines and years as one: their union, what the measurements in it say
// together, and what of it is published.
//
// Union. A merge is the set of all lines: whatever the order and the grouping of its inputs, the same bytes
// come out, and merging again changes nothing. Lines are never rewritten: "winner" in a line is what its own
// run concluded, and only that.
//
// Evidence. One measurement of a variant is the interval of its ratio to the default in the final rounds of
// one run. Measurements of one variant of one problem (kernel, format, shape, default) on one device and the
// same sources are independent estimates of one figure, so they are combined on the logarithm of the ratio:
// weights are inverse variances, each run's widened by the variance between runs (DerSimonian and Laird
// 1986), and the interval has the quantile of Student's t with one degree of freedom less than there are runs
// (Follmann and Proschan 1999). Where no variance between runs shows, which of few runs may be chance, the
// interval is as long to either side as the surest run's. What it holds how often: autotune/README.md.
// Runs whose intervals exclude each other are heterogeneous, and said to be so: a driver, a compiler or the
// room's temperature differed; the result reaches over all of their intervals then. Order, dates and the
// runs' own verdicts decide nothing. Predictions and screening rounds are no evidence; a wrong answer, a
// crash or a hang anywhere bars the variant.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "autotune/evidence/identity.h"
#include "autotune/measure/timing.h"
#include "autotune/records/database.h"
#include "autotune/space/accuracy.h"
#include "autotune/space/sources.h"
#include "kernels/portable.h"

namespace outgrad::autotune {

// The records of all of them once each, in an order that their content alone decides. A published line
// (reviewable()) is left out where the line that it was made of is there.
std::vector<Record> united(std::vector<Record> records);

// ---- which variant is best

// What best() compares. The interval is of the default's time over the variant's.
struct Contender {
  Interval speedup;
  ErrorOrder error;  // of its fit
  int changes = 0;  // parameters in which it differs from the default: the measure of simplicity
  std::string name;
};
// How many values of `parameters` are not those of `default_parameters`.
int changes_between(const nlohmann::json& parameters, const nlohmann::json& default_parameters);

// Index of the best; [0] is the default, which stays unless another's interval lies above 1. The leader is
// the one of highest lower bound; whose median is not below that bound ties with it, and of those the smaller
// error wins, then the simpler, then the higher bound.
std::size_t best(std::span<const Contender> contenders);

// ---- evidence

struct VariantEvidence {
  Record record;  // of the run with the most rounds, as published
  Interval speedup;  // of all runs together; 1 where nothing was measured
  int runs = 0, rounds = 0;
  bool heterogeneous = false;  // two runs' intervals exclude each other
  std::string barred;  // why it cannot win: "wrong answer"; empty: it can

  std::string name() const;
};

struct ProblemEvidence : ProblemRecord {
  DeviceKey device;
  SourceHashes sources;
  std::string baseline;  // name of the default that ratios are to; empty where no line says it
  std::vector<VariantEvidence> variants;  // the default first, where there is one
  std::vector<Record> records;  // that this was weighed from, as published
  std::size_t winner = 0;
  bool gain = false;
  std::vector<std::string> conflicts;  // what runs disagreed in, and how that was resolved

  std::string name() const;  // "layernorm_backward.bf16.16384x1024", "gelu_backward.bf16.67108864"
};

std::string interval_text(const Interval& interval);  // "1.042x [1.031, 1.050]"

// Whether a record is evidence for whom this accuracy is asked by: its fit, if it has one, may be chosen.
bool is_eligible(const Record& record, Accuracy accuracy);

// What the records say of every problem that anything was measured of, in an order that their content alone
// decides. Those of fits that may not be chosen say nothing.
std::vector<ProblemEvidence> weigh(const std::vector<Record>& records, Accuracy accuracy);

// What of it is of one version of the sources for each device and size: of a present one, else of the one
// with the most rounds.
std::vector<ProblemEvidence> of_one_version(std::vector<ProblemEvidence> problems,
                                            std::span<const SourceHashes> present);

// ---- publishing

// The part of a record that is worth reviewing and names no place: no samples, no messages of compilers, no
// words with a slash, figures to six digits. Applied twice it changes nothing more.
Record reviewable(const Record& record);

// The text of a published file: the lines of a run under one line that says what they share.
std::string published_text(const std::vector<Record>& records);

// The .jsonl files of a folder, in the order of their names; none where there is no such folder.
std::vector<std::string> databases_in(const std::string& folder);

// notebooks_data/tuned of the sources that this program was built from. Throws EnvironmentError where they
// are gone.
std::string published_folder();

struct Published {
  std::string path;
  std::size_t records = 0, problems = 0, bytes = 0;
  std::size_t left_out = 0;  // records of these problems that are evidence, too
  bool changed = false;
};
// Merges what was measured into `folder`, one file a device: DeviceKey::slug() + ".jsonl". Of each problem
// the present sources' records stay, others where there are none of them; of those the default's, the best
// few variants' and the barred ones'. A variant has eight runs at most, each with the default's record of it.
// A file stays under kMostPublishedBytes: fewer runs of a variant, then fewer variants, are kept where it
// would not. Samples are left out: they are a thousand times the rest, and an interval is all that evidence
// needs. Throws IoError; SpecError when a published file is of a newer schema.
inline constexpr std::size_t kMostPublishedBytes = 200'000;
// `present`: of the CPU's kernels, and of those that this program carries for GPUs.
std::vector<Published> publish(const std::vector<Record>& records, const std::vector<SourceHashes>& present,
                               const std::string& folder, Accuracy accuracy);

// The published records of this device and of others no farther than `farthest`, nearest first, and the
// warnings of reading them. Nothing where there is no such folder. Files of a newer schema are a warning
// here: a search does without them.
Database known_records(const DeviceKey& device, Rung farthest, const std::string& folder);
// of published_folder(), where there is one
Database known_records(const DeviceKey& device, Rung farthest = Rung::device);

// What a search asks the records of other devices, sizes and sources.
struct SeedQuestion {
  DeviceKey device;
  SourceHashes sources;
  std::string kernel, format;
  kernels::i64 elements;
  std::size_t count;
  Accuracy accuracy;
};
// Parameters worth trying first: winners and runners-up of the records, nearest device first, then these
// sources before others, measured before predicted, then the nearest size. They may be none of this device's
// space: the caller drops those.
std::vector<nlohmann::json> seed_parameters(const std::vector<Record>& records, const SeedQuestion& asked);

}  // namespace outgrad::autotune
