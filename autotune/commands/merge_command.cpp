// `tune --merge FILE... --out FILE`: databases of several runs and machines as one, and what their
// measurements say together.
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "autotune/commands/publish.h"
#include "autotune/commands/tune_modes.h"
#include "kernels/support/files.h"

namespace outgrad::autotune {
namespace {

using nlohmann::json;

struct MergeOptions {
  Words inputs{};
  std::string out{};
  Accuracy accuracy = Accuracy::kAsDefault;
  bool publish = false;
  kernels::ResultForm form;
};

MergeOptions merge_options(const Words& words) {
  MergeOptions o;
  read_options(tune_mode("--merge"), words, [&](CLI::App& app) {
    add_list(app, "--merge", o.inputs);
    add_text(app, "--out", o.out);
    add_accuracy(app, o.accuracy);
    add_flag(app, "--publish", o.publish);
    kernels::add_result_form(app, o.form, "the result");
  });
  if (o.out.empty()) throw kernels::SpecError("tune", "--out", "is required");
  return o;
}

// What is read of the inputs, and of what --out already holds.
struct Read {
  std::vector<Record> records;
  std::size_t lines = 0;
  Database all = {};  // of what was left out

  void take(const Database& database) {
    all.warnings.insert(all.warnings.end(), database.warnings.begin(), database.warnings.end());
    lines += database.records.size();
    records.insert(records.end(), database.records.begin(), database.records.end());
  }
};

// Writes the union of all into --out, whose writers wait meanwhile, and then find the merged file in its
// place.
Read merge_into(const MergeOptions& options) {
  const std::string& out = options.out;
  std::error_code error;
  Read read;
  for (const std::string& path : options.inputs) {
    if (!std::filesystem::exists(path, error)) throw kernels::IoError(path, "open", ENOENT);
    read.take(load_database(path));
  }
  if (read.records.empty())
    throw kernels::SpecError("tune", "--merge",
                             "no record of " + std::string(kSchema) + " in " +
                                 (options.inputs.size() == 1 ? options.inputs.front() : "any of the files") +
                                 (read.all.warnings.empty() ? "" : " (" + left_out(read.all) + ")"));
  const bool regular = !std::filesystem::exists(out, error) || std::filesystem::is_regular_file(out, error);
  std::optional<DatabaseLock> lock;
  if (regular) {
    lock.emplace(out, /*create=*/false);
    if (lock->holds()) {
      const Database database = load_database(out);
      if (!database.warnings.empty())
        throw kernels::SpecError(
            "tune", "--out",
            "a line there would be lost (" + database.warnings.front() + "): give another file");
      read.take(database);
    }
  }
  read.records = united(std::move(read.records));
  std::string text;
  for (const Record& record : read.records) text += line_of(record) + '\n';
  kernels::write_file(out, text);
  warn_of_left_out(read.all);
  return read;
}

json evidence_json(const std::vector<ProblemEvidence>& problems) {
  json rows = json::array();
  for (const ProblemEvidence& problem : problems) {
    json row = {{"problem", problem.name()},
                {"device", problem.device.device},
                {"kernels_sha256", problem.sources.kernels},
                {"coefficients_sha256", problem.sources.coefficients},
                {"default", problem.baseline},
                {"winner", problem.variants[problem.winner].name()},
                {"gain", problem.gain},
                {"speedup", to_json(SpeedupRecord{problem.variants[problem.winner].speedup, kConfidence})},
                {"runs", problem.variants[problem.winner].runs},
                {"rounds", problem.variants[problem.winner].rounds},
                {"variants", problem.variants.size()},
                {"conflicts", problem.conflicts}};
    if (problem.baseline.empty())
      for (const char* of_winner : {"winner", "speedup", "runs", "rounds"}) row[of_winner] = nullptr;
    rows.push_back(std::move(row));
  }
  return rows;
}

void print_evidence(const std::vector<ProblemEvidence>& problems) {
  std::string device, sources;
  for (const ProblemEvidence& problem : problems) {
    const std::string of =
        problem.sources.kernels.substr(0, 8) + "/" + problem.sources.coefficients.substr(0, 8);
    if (problem.device.device != device || of != sources)
      std::printf("%s; sources %s\n", problem.device.device.c_str(), one_line(of).c_str());
    device = problem.device.device, sources = of;
    const VariantEvidence& winner = problem.variants[problem.winner];
    if (problem.baseline.empty())
      std::printf("  %-42s no default among %zu variants: nothing to compare with\n", problem.name().c_str(),
                  problem.variants.size());
    else if (problem.gain)
      std::printf("  %-42s %-28s %s  %d run%s, %d rounds\n", problem.name().c_str(),
                  interval_text(winner.speedup).c_str(), winner.name().c_str(), winner.runs,
                  winner.runs == 1 ? "" : "s", winner.rounds);
    else
      std::printf("  %-42s %-28s %s  of %zu variants\n", problem.name().c_str(), "the default stays",
                  winner.name().c_str(), problem.variants.size());
    for (const std::string& conflict : problem.conflicts) std::printf("    conflict: %s\n", conflict.c_str());
  }
}

}  // namespace

int merge_command(const Words& words) {
  const MergeOptions options = merge_options(words);
  std::error_code error;
  if (std::filesystem::is_directory(options.out, error))
    throw kernels::SpecError("tune", "--out",
                             "'" + options.out + "' is a folder: a merge goes into one file");
  const Read merged = merge_into(options);
  if (options.publish) publish_records(merged.records, options.accuracy);
  const std::vector<ProblemEvidence> problems = weigh(merged.records, options.accuracy);
  if (options.form) {
    const json summary = {{"schema", "outgrad.merge/1"},
                          {"database", options.out},
                          {"records", merged.records.size()},
                          {"records_read", merged.lines},
                          {"problems", evidence_json(problems)}};
    kernels::print_result(options.form, summary, "problems");
    return kernels::kExitHolds;
  }
  std::printf("%s: %zu records of %zu read, %zu problems\n", options.out.c_str(), merged.records.size(),
              merged.lines, problems.size());
  print_evidence(problems);
  return kernels::kExitHolds;
}

}  // namespace outgrad::autotune
