// `tune --record DIR`: the time of every point of a CPU's space.
#include "autotune/commands/tune_modes.h"
#include "autotune/search/recorder.h"

namespace outgrad::autotune {

int record_command(const Words& words) {
  std::string device = "cpu";
  ProblemChoice problems;
  RecorderSettings settings;
  read_options(tune_mode("--record"), words, [&](CLI::App& app) {
    add_text(app, "--record", settings.folder);
    add_text(app, "--device", device);
    add_problems(app, problems);
    add_number<double>(app, "--budget", settings.budget, 1, 1e6);
    add_number<std::int64_t>(app, "--evaluations", settings.evaluations, 1, INT64_MAX);
    add_number<std::int64_t>(app, "--passes", settings.passes, 1, 1000);
    add_seed(app, settings.seed);
    add_accuracy(app, settings.accuracy);
  });
  require_cpu_device("tune", device);
  record_spaces(problems_of("tune", problems), settings);
  return kernels::kExitHolds;
}

}  // namespace outgrad::autotune
