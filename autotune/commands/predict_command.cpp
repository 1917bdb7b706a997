// `tune --device sm_XX`: variants compiled for a GPU that is not there, ranked by predictions. Nothing runs,
// so nothing is measured: every figure is marked predicted.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>

#include "autotune/commands/tune_modes.h"
#include "autotune/evidence/identity.h"
#include "autotune/evidence/tuned_header.h"
#include "autotune/gpu/offline.h"
#include "autotune/measure/device.h"
#include "autotune/records/database.h"
#include "kernels/support/files.h"
#include "kernels/support/jit/nvrtc.h"
#include "kernels/support/progress.h"

namespace outgrad::autotune {
namespace {

using nlohmann::json;

struct PredictOptions {
  std::string device, board, out = "out/tuned";
  ProblemChoice problems{};
  double budget = 60;  // seconds
  std::int64_t evaluations = 200;
  std::uint64_t seed = kSeed;
  Accuracy accuracy = Accuracy::kAsDefault;
  kernels::ResultForm form;
};

PredictOptions predict_options(const Words& words) {
  PredictOptions o;
  read_options(tune_mode("a device that is not there"), words, [&](CLI::App& app) {
    add_text(app, "--device", o.device);
    add_text(app, "--board", o.board);
    add_text(app, "--out", o.out);
    add_problems(app, o.problems);
    add_number<double>(app, "--budget", o.budget, 1, 1e6);
    add_number<std::int64_t>(app, "--evaluations", o.evaluations, 1, 1'000'000);
    add_seed(app, o.seed);
    add_accuracy(app, o.accuracy);
    kernels::add_result_form(app, o.form, "the result");
  });
  return o;
}

DeviceRecord absent_device(const gpu::Architecture& architecture) {
  DeviceRecord record;
  record.kind = "offline", record.architecture = architecture.name, record.board = architecture.board;
  return record;
}

Record predicted_record(const gpu::Outcome& outcome, const gpu::Architecture& architecture) {
  const gpu::GpuVariant& variant = outcome.variant;
  Record record;
  record.run.device = absent_device(architecture),
  record.run.toolkit = kernels::jit::Nvrtc::instance().version();
  record.kernel = name_of(variant.problem.kernel), record.format = name_of(variant.problem.format);
  record.variant = variant.name(), record.parameters = variant.parameters(),
  record.elements = variant.problem.elements();
  if (variant.fit) record.fit = fit_record(variant.problem, *variant.fit);
  if (variant.problem.over_rows()) record.rows = variant.problem.rows, record.cols = variant.problem.cols;
  if (const auto* pruned = std::get_if<gpu::Pruned>(&outcome.result)) {
    record.state = "rejected";
    record.rejected = {"compile", name_of(pruned->reason), pruned->detail, {}};
    return record;
  }
  const auto& [code, helpers, prediction, compiled] = std::get<gpu::Predicted>(outcome.result);
  record.state = "predicted";
  record.resources = {code.resources.registers, code.resources.shared_bytes, {}};
  // Not counted: the machine code has not told (autotune/gpu/facts.h), and the model assumes a number.
  record.instructions_per_element = code.counted ? code.instructions_per_element : INFINITY;
  record.predicted = {prediction.ns,
                      prediction.memory_ns,
                      prediction.issue_ns,
                      prediction.shared_ns,
                      prediction.cache_ns,
                      prediction.others_ns,
                      prediction.launch_ns,
                      prediction.occupancy,
                      prediction.bytes_in_flight,
                      prediction.share_of_bandwidth,
                      prediction.resident_blocks,
                      {}};
  return record;
}

// Faster first; equal predictions, which a model without a difference gives, by the smaller schedule's name.
bool is_predicted_faster(const gpu::Outcome* a, const gpu::Outcome* b) {
  const double left = std::get<gpu::Predicted>(a->result).prediction.ns,
               right = std::get<gpu::Predicted>(b->result).prediction.ns;
  return left != right ? left < right : a->variant.name() < b->variant.name();
}

// The best of a ranking as an entry of a tuned header; the gain is over the default as predicted, where that
// is among the outcomes.
TunedChoice best_of(const std::vector<const gpu::Outcome*>& ranked, const gpu::Outcome& first,
                    const gpu::Architecture& architecture) {
  const gpu::Outcome& best = *ranked.front();
  Interval gain;
  const auto* standard = std::get_if<gpu::Predicted>(&first.result);
  if (standard != nullptr &&
      first.variant.name() == gpu::default_gpu_variant(first.variant.problem, architecture).name())
    gain.median = gain.low = gain.high =
        standard->prediction.ns / std::get<gpu::Predicted>(best.result).prediction.ns;
  return tuned_choice(best.variant, device_key(absent_device(architecture)).value(),
                      kernels::Evidence::predicted, gain);
}

// What came of one problem's variants.
struct ProblemRanking {
  std::vector<const gpu::Outcome*> ranked;  // the fastest first
  std::map<std::string, int> pruned;  // how many, by reason
};

ProblemRanking ranking_of(const std::vector<gpu::Outcome>& outcomes) {
  ProblemRanking ranking;
  for (const gpu::Outcome& outcome : outcomes) {
    if (const auto* why = std::get_if<gpu::Pruned>(&outcome.result))
      ++ranking.pruned[name_of(why->reason)];
    else
      ranking.ranked.push_back(&outcome);
  }
  std::sort(ranking.ranked.begin(), ranking.ranked.end(), is_predicted_faster);
  return ranking;
}

json predictions_json(const Problem& problem, const ProblemRanking& ranking,
                      const gpu::Architecture& architecture) {
  json ranked = json::array();
  for (const gpu::Outcome* outcome : ranking.ranked)
    ranked.push_back(to_json(predicted_record(*outcome, architecture)));
  return {{"problem", name_of(problem.kernel)},
          {"format", name_of(problem.format)},
          {"rows", problem.rows},
          {"cols", problem.cols},
          {"pruned", ranking.pruned},
          {"ranking", ranked}};
}

void print_predictions(const Problem& problem, const Points& points, std::size_t compiled,
                       const ProblemRanking& ranking) {
  constexpr std::size_t kShown = 5;
  std::printf("%s: space: %s\n", problem.sized_name().c_str(), size_report(points).c_str());
  std::printf("  %zu compiled, %zu ranked", compiled, ranking.ranked.size());
  for (const auto& [reason, count] : ranking.pruned) std::printf(", %d %s", count, reason.c_str());
  std::printf("\n");
  for (std::size_t i = 0; i < ranking.ranked.size() && i < kShown; ++i) {
    const gpu::Predicted& of = std::get<gpu::Predicted>(ranking.ranked[i]->result);
    std::printf(
        "  predicted %5.1f%% of bandwidth  %5.1f instr/element  %3d registers  occupancy %3.0f%%  %s\n",
        100 * of.prediction.share_of_bandwidth, of.code.instructions_per_element, of.code.resources.registers,
        100 * of.prediction.occupancy, ranking.ranked[i]->variant.name().c_str());
  }
}

}  // namespace

int predict_command(const Words& words) {
  const PredictOptions options = predict_options(words);
  const std::string& device = options.device;
  kernels::jit::Nvrtc::instance().require(device);
  const gpu::Architecture& architecture = gpu::architecture_of(device, options.board);
  const std::vector<Problem> problems = with_space_on_gpus(problems_of("tune", options.problems));
  gpu::OfflineSettings settings;
  settings.cache_folder = options.out + "/" + device;
  settings.jobs = identify_cpu().threads;
  const auto began = std::chrono::steady_clock::now();
  kernels::ProgressLine line;
  settings.progress = [&](std::size_t done, std::size_t programs) {
    line.draw("compiling for " + device + ": " + std::to_string(done) + " of " + std::to_string(programs) +
              ", " + std::to_string(std::lround(seconds_since(began))) + " s");
  };
  if (!options.form)
    std::printf("%s as on %s; nothing runs: all figures are predicted\n", device.c_str(),
                architecture.board.c_str());
  json rankings = json::array();
  std::vector<Record> records;
  std::vector<TunedChoice> best;
  for (std::size_t p = 0; p < problems.size(); ++p) {
    constexpr kernels::i64 kElements = kernels::i64{1} << 26;  // far more than any last cache
    const Problem problem = sized_within(problems[p], kElements);
    const Fits fits = fits_within(problem, options.accuracy);
    const Space space = gpu::gpu_space(problem, fits, architecture);
    const Points points = space.construct();
    settings.budget_seconds =
        (options.budget - seconds_since(began)) / static_cast<double>(problems.size() - p);
    const std::vector<gpu::GpuVariant> chosen =
        gpu::choose_gpu_variants({problem, fits, architecture, space, points},
                                 static_cast<std::size_t>(options.evaluations), options.seed);
    const std::vector<gpu::Outcome> outcomes = gpu::evaluate(chosen, architecture, settings);
    line.erase();
    for (const gpu::Outcome& outcome : outcomes) records.push_back(predicted_record(outcome, architecture));
    const ProblemRanking ranking = ranking_of(outcomes);
    if (!ranking.ranked.empty()) best.push_back(best_of(ranking.ranked, outcomes.front(), architecture));
    if (options.form)
      rankings.push_back(predictions_json(problem, ranking, architecture));
    else
      print_predictions(problem, points, outcomes.size(), ranking);
  }
  const std::string database = options.out + "/tune_" + device + ".jsonl",
                    tuned = options.out + "/tuned_" + device + ".h";
  append_records(database, records);
  const std::string origin =
      "predicted for " + device + " as on " + architecture.board + "; nothing was measured";
  kernels::write_file(tuned, tuned_header(best, Backend::kCuda, origin, options.accuracy));
  if (options.form)
    kernels::print_result(options.form,
                          json{{"schema", "outgrad.tune_offline/1"},
                               {"architecture", device},
                               {"board", architecture.board},
                               {"predicted", true},
                               {"database", database},
                               {"header", tuned},
                               {"problems", rankings}},
                          "problems");
  else
    std::printf("%s and %s, in %.1f s\n", tuned.c_str(), database.c_str(), seconds_since(began));
  return kernels::kExitHolds;
}

}  // namespace outgrad::autotune
