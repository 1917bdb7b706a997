// Arguments and tables of `outgrad train`.
#include "validation/training/train_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "kernels/host/errors.h"
#include "kernels/support/files.h"
#include "validation/sweep/foreign.h"
#include "validation/training/training.h"

namespace outgrad::validation {

using kernels::SpecError;

namespace {

const std::vector<std::string> kFormats{"f32", "bf16", "f16"};
const std::vector<std::string> kWays{"exact", "input_f32", "ours", "tempo_gelu", "tempo_gelu_centred", "regelu2"};

struct Arguments {
  TrainingOptions options;
  std::vector<std::string> formats = kFormats, ways = kWays;
  std::string optimiser = "adam";
  std::string out;
  bool json = false;
};

[[noreturn]] void refuse(const char* option, const std::string& why) { throw SpecError("train", option, why); }

void expect_between(const char* option, int value, int least, int most) {
  if (value < least || value > most) refuse(option, fmt::format("{} is not from {} to {}", value, least, most));
}

void expect_different(const char* option, const std::vector<std::string>& names) {
  if (std::set<std::string>(names.begin(), names.end()).size() != names.size()) refuse(option, "names one twice");
}

/// A way of ours, or a file: NAME stands for notebooks_data/foreign/NAME.json.
GradientWay way_of(const std::string& name) {
  if (std::optional<GradientWay> way = built_in_way(name)) return *way;
  const bool is_path = name.find_first_of("./") != std::string::npos;
  const std::string file = is_path ? name : std::string(OUTGRAD_SOURCES) + "/notebooks_data/foreign/" + name + ".json";
  if (!is_path && !std::filesystem::exists(file)) {
    refuse("--ways", fmt::format("'{}' is not one of {}, nor a file of outgrad.foreign/1", name, fmt::join(kWays, ", ")));
  }
  const ForeignFunction function = parse_foreign(kernels::read_file(file), file);
  if (function.activation != &kGelu) throw SpecError(file, "activation", "is not gelu, which the model has");
  return foreign_way(function);
}

/// What gives the same results again: nothing that changes none.
std::string command_of(const Arguments& arguments) {
  const Arguments usual;
  const TrainingOptions &given = arguments.options, &expected = usual.options;
  std::string command = "./outgrad train";
  if (arguments.formats != usual.formats) command += fmt::format(" --formats {}", fmt::join(arguments.formats, ","));
  if (arguments.ways != usual.ways) command += fmt::format(" --ways {}", fmt::join(arguments.ways, ","));
  if (given.seeds != expected.seeds) command += fmt::format(" --seeds {}", given.seeds);
  command += fmt::format(" --steps {}", given.steps);  // named even if usual: how long was trained is the first question
  if (given.batch != expected.batch) command += fmt::format(" --batch {}", given.batch);
  if (arguments.optimiser != usual.optimiser) command += fmt::format(" --optimiser {}", arguments.optimiser);
  if (given.learning_rate != expected.learning_rate) command += fmt::format(" --learning-rate {}", given.learning_rate);
  return command;
}

std::string or_dash(double value, const char* pattern) { return std::isfinite(value) ? fmt::format(fmt::runtime(pattern), value) : "-"; }

void print_tables(const TrainingOptions& options, const TrainingResult& result, double seconds) {
  fmt::print("{} runs of {} steps, {} parameters, {} x {} bytes a step; losses in nats per byte\n\n", result.runs.size(), options.steps,
             parameter_count(options.shape), options.batch, options.shape.context);
  fmt::print("{:<6} {:<20} {:>2} {:>8}  {:>9} {:>8}  {:>10} {:>23}  {:>9} {:>9}\n", "format", "way", "n", "diverged", "val. loss", "sd", "- exact",
             fmt::format("{:g}% interval", 100 * kTrainingConfidence), "grad. L2", "greatest");
  for (const TrainingSummary& s : summarise(options, result)) {
    const bool exact = s.way == options.ways[0].name;
    const auto& d = s.difference;
    fmt::print("{:<6} {:<20} {:>2} {:>8}  {:>9} {:>8}  {:>10} {:>23}  {:>9} {:>9}\n", s.format, s.way, s.n, s.diverged, or_dash(s.mean, "{:.5f}"),
               or_dash(s.deviation, "{:.5f}"), exact || !d ? "-" : fmt::format("{:+.5f}", d->mean),
               exact || !d ? "-" : fmt::format("[{:+.5f}, {:+.5f}]", d->low, d->high), exact ? "-" : fmt::format("{:.2e}", s.median_relative_l2),
               exact ? "-" : fmt::format("{:.2e}", s.greatest_relative_l2));
  }
  double least = 1, greatest = 0, least_batch = HUGE_VAL, greatest_batch = 0;
  for (const TrainingProbe& probe : result.probes) {
    least = std::min(least, probe.in_tempo_piece);
    greatest = std::max(greatest, probe.in_tempo_piece);
    least_batch = std::min(least_batch, probe.other_batch);
    greatest_batch = std::max(greatest_batch, probe.other_batch);
  }
  fmt::print(
      "\n- exact: paired by seed. grad. L2: relative distance of the gradient of all parameters from the exact way's at the same weights and batch,\n"
      "median and greatest of {} points on the exact runs. Another batch's exact gradient there is at {:.2f} to {:.2f}.\n"
      "GELU inputs in Tempo's last polynomial piece at these points: {:.1f}% to {:.1f}%. {:.0f} s.\n",
      result.probes.size(), least_batch, greatest_batch, 100 * least, 100 * greatest, seconds);
}

void run(Arguments& arguments) {
  TrainingOptions& options = arguments.options;
  expect_different("--formats", arguments.formats);
  for (const std::string& format : arguments.formats) {
    if (std::find(kFormats.begin(), kFormats.end(), format) == kFormats.end()) {
      refuse("--formats", fmt::format("'{}' is not one of {}", format, fmt::join(kFormats, ", ")));
    }
  }
  // Days of computing, and more, are taken for a slip.
  expect_between("--steps", options.steps, 1, 1'000'000);
  expect_between("--seeds", options.seeds, 1, 1000);
  expect_between("--batch", static_cast<int>(options.batch), 1, 256);
  expect_between("--threads", options.threads, 0, 1024);
  if (!(options.learning_rate > 0 && options.learning_rate <= 10))
    refuse("--learning-rate", fmt::format("{} is not above 0 and at most 10", options.learning_rate));
  if (arguments.optimiser != "adam" && arguments.optimiser != "sgd") refuse("--optimiser", "'" + arguments.optimiser + "' is not one of adam, sgd");
  expect_different("--ways", arguments.ways);
  // What all others are compared with.
  if (std::find(arguments.ways.begin(), arguments.ways.end(), kWays[0]) == arguments.ways.end()) arguments.ways.insert(arguments.ways.begin(), kWays[0]);
  std::stable_partition(arguments.ways.begin(), arguments.ways.end(), [](const std::string& name) { return name == kWays[0]; });
  options.formats = arguments.formats;
  options.optimiser = arguments.optimiser == "sgd" ? Optimiser::sgd : Optimiser::adam;
  options.progress = true;
  options.ways.clear();
  std::vector<std::string> names;
  for (const std::string& name : arguments.ways) {
    options.ways.push_back(way_of(name));
    names.push_back(options.ways.back().name);
  }
  expect_different("--ways", names);
  if (!arguments.out.empty()) kernels::require_writable(arguments.out);

  const auto begin = std::chrono::steady_clock::now();
  const TrainingResult result = train(options);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const auto document = to_json(options, result, command_of(arguments));
  if (!arguments.out.empty()) kernels::write_file(arguments.out, document.dump() + "\n");
  if (arguments.json) {
    fmt::print("{}\n", document.dump(1));
  } else {
    print_tables(options, result, seconds);
  }
}

}  // namespace

void add_train(CLI::App& app, int&) {
  const auto arguments = std::make_shared<Arguments>();
  TrainingOptions& options = arguments->options;
  CLI::App* command = app.add_subcommand("train", "Train a small transformer with exact gradients, ours and others', and compare");
  command->add_option("--formats", arguments->formats, "Formats of activations: f32, bf16, f16")->delimiter(',')->capture_default_str();
  command->add_option("--ways", arguments->ways, "Ways to GELU's and LayerNorm's gradient; a file of outgrad.foreign/1 (a path) is one, too")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--seeds", options.seeds, "Runs of each way and format, seeds 1, 2, ...")->capture_default_str();
  command->add_option("--steps", options.steps, "Updates of each run")->capture_default_str();
  command->add_option("--batch", options.batch, "Windows of text in each update")->capture_default_str();
  command->add_option("--optimiser", arguments->optimiser, "adam, or sgd with momentum")->capture_default_str();
  command->add_option("--learning-rate", options.learning_rate, "The highest of the schedule")->capture_default_str();
  command->add_option("--threads", options.threads, "Runs at a time (0: one a core); results do not depend on it")->capture_default_str();
  command->add_option("--out", arguments->out, "Write the JSON to this file");
  command->add_flag("--json", arguments->json, "JSON on standard output instead of the table");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace outgrad::validation
