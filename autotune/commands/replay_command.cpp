// `tune --device replay:FILE`: one search of a recording and how near to the recorded optimum it came; or the
// recording in another format.
#include <algorithm>
#include <cstdio>

#include "autotune/commands/tune_modes.h"
#include "autotune/search/replay.h"
#include "kernels/support/files.h"

namespace outgrad::autotune {
namespace {

using nlohmann::json;

struct ReplayOptions {
  std::string device, kernel, format, strategy = strategy_names().front(), kernel_tuner, t4;
  std::int64_t evaluations = 0;  // 0: a share of the space
  std::uint64_t seed = kSeed;
  Accuracy accuracy = Accuracy::kAsDefault;
  kernels::ResultForm form;
};

ReplayOptions replay_options(const Words& words) {
  ReplayOptions o;
  read_options(tune_mode("a replay"), words, [&](CLI::App& app) {
    add_recording(app, o.device, o.kernel, o.format);
    add_choice(app, "--strategy", o.strategy, strategy_names());
    add_number<std::int64_t>(app, "--evaluations", o.evaluations, 1, INT64_MAX);
    add_seed(app, o.seed);
    add_accuracy(app, o.accuracy);
    kernels::add_result_form(app, o.form, "the result");
  });
  return o;
}

ReplayOptions export_options(const Words& words) {
  ReplayOptions o;
  read_options(tune_mode("an export"), words, [&](CLI::App& app) {
    add_recording(app, o.device, o.kernel, o.format);
    add_text(app, "--export-kernel-tuner", o.kernel_tuner);
    add_text(app, "--export-t4", o.t4);
  });
  if (o.kernel_tuner.empty() && o.t4.empty())
    throw kernels::SpecError("tune", "--device", "an export takes the name of a file");
  return o;
}

// The part of the recording whose fits may be chosen; a line says how much is left out.
Recording eligible_of(Recording recording, const std::string& path, Accuracy accuracy) {
  const std::size_t recorded = recording.points.size();
  recording = eligible_part(std::move(recording), accuracy);
  if (const std::size_t left_out = recorded - recording.points.size(); left_out > 0)
    kernels::print_error_line(
        "warning: " + path + ": " + std::to_string(left_out) + " of " + std::to_string(recorded) +
        " points left out: their fit is less accurate than the default's (--accuracy any searches them)");
  if (recording.points.empty())
    throw kernels::SpecError(path, "fit", "every recorded point's is less accurate than the default's");
  return recording;
}

void export_to(const std::string& file, const std::string& text, const Recording& recording,
               const std::string& path) {
  kernels::write_file(file, text);
  std::printf("%s: %zu points of %s\n", file.c_str(), recording.points.size(), path.c_str());
}

// The search: --strategy, --seed, --evaluations or the share at which strategies are compared
// (notebooks_data/study).
void search_recording(const Recording& recording, const std::string& path, const ReplayOptions& options) {
  constexpr double kShare = 0.05;
  const auto usual =
      static_cast<std::int64_t>(std::max(1.0, kShare * static_cast<double>(recording.points.size())));
  const auto evaluations = static_cast<std::size_t>(options.evaluations > 0 ? options.evaluations : usual);
  const std::string& name = options.strategy;
  const auto strategy = make_strategy(name, recording.points, options.seed);
  const Replay run = replay(recording, *strategy, evaluations);
  const auto best = std::find(run.best_ms.begin(), run.best_ms.end(), run.best_ms.back());
  const auto found = static_cast<std::size_t>(best - run.best_ms.begin()) + 1;
  const double share = share_of_optimum(recording, run, run.best_ms.size());
  if (options.form) {
    json result = {{"schema", "outgrad.replay/1"},
                   {"file", path},
                   {"device", recording.device},
                   {"kernel", recording.kernel},
                   {"points", recording.points.size()},
                   {"raw_points", recording.points.raw_size()},
                   {"strategy", name},
                   {"seed", options.seed},
                   {"evaluations", run.best_ms.size()},
                   {"share_of_optimum", share},
                   {"found_after", found},
                   {"best", nullptr},
                   {"best_ms", nullptr}};
    if (run.best) {
      result["best"] = recording.name_of(*run.best);
      result["best_ms"] = run.best_ms.back();
    }
    kernels::print_result(options.form, result, "");
    return;
  }
  std::printf("%s: %s on %s, %.0f raw points, %zu recorded\n", path.c_str(), recording.kernel.c_str(),
              recording.device.c_str(), recording.points.raw_size(), recording.points.size());
  if (run.best)
    std::printf("%s: %.6g ms, %.2f%% of the optimum (%.6g ms), found after %zu of %zu evaluations: %s\n",
                name.c_str(), run.best_ms.back(), 100 * share, *recording.best_ms(), found,
                run.best_ms.size(), recording.name_of(*run.best).c_str());
  else
    std::printf("%s: all of %zu evaluations failed\n", name.c_str(), run.best_ms.size());
}

}  // namespace

void add_recording(CLI::App& app, std::string& device, std::string& kernel, std::string& format) {
  add_text(app, "--device", device);
  add_text(app, "--kernel", kernel);
  add_text(app, "--format", format);
}

std::string recorded_path(const std::string& device) {
  return device.substr(std::string_view("replay:").size());
}

Recording recording_of(const std::string& device, const std::string& kernel, const std::string& format) {
  if (kernel.empty() != format.empty())
    throw kernels::SpecError("tune", kernel.empty() ? "--kernel" : "--format",
                             "a database's problem takes both, --kernel and --format");
  return read_recording(recorded_path(device), kernel.empty() ? "" : kernel + "." + format);
}

int replay_command(const Words& words) {
  const bool exports = given(words, "--export-kernel-tuner") || given(words, "--export-t4");
  const ReplayOptions options = exports ? export_options(words) : replay_options(words);
  const std::string path = recorded_path(options.device);
  for (const std::string* const out : {&options.kernel_tuner, &options.t4})
    if (!out->empty())
      kernels::require_writable(*out, {path, out == &options.t4 ? options.kernel_tuner : std::string()});
  Recording recording = recording_of(options.device, options.kernel, options.format);
  if (!options.kernel_tuner.empty())
    export_to(options.kernel_tuner, kernel_tuner_cache(recording), recording, path);
  if (!options.t4.empty()) export_to(options.t4, t4_results(recording), recording, path);
  if (!exports) search_recording(eligible_of(std::move(recording), path, options.accuracy), path, options);
  return kernels::kExitHolds;
}

}  // namespace outgrad::autotune
