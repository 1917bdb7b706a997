// `tune` on this machine's CPU.
#include <algorithm>

#include "autotune/commands/search_command.h"
#include "autotune/commands/tune_modes.h"
#include "autotune/cpu/cpu_device.h"

namespace outgrad::autotune {

int cpu_command(const Words& words) {
  SearchOptions options;
  std::string headers;
  read_options(tune_mode("the CPU"), words, [&](CLI::App& app) {
    add_search_options(app, options);
    add_text(app, "--headers", headers);
  });
  require_cpu_device("tune", options.device);
  const std::vector<Problem> problems = problems_of("tune", options.problems);
  CpuChoices choices;
  choices.out = options.out;
  choices.accuracy = options.accuracy;
  if (given(words, "--headers")) choices.headers = read_generated_headers(headers);
  for (const GeneratedHeader& header : choices.headers) {
    const auto takes = [&](const Problem& p) {
      return p.kernel == KernelId::kGeluBackward && header.format == name_of(p.format);
    };
    if (std::none_of(problems.begin(), problems.end(), takes))
      throw kernels::SpecError(header.path, "kFormat",
                               "'" + header.format + "': --kernel and --format leave no problem that has it");
  }
  return search_on(*open_cpu_device(choices, options.seed), options, problems, shard_of(options.shard));
}

}  // namespace outgrad::autotune
