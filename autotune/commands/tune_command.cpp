// From the words to the mode.
#include "autotune/commands/commands.h"

#include "autotune/commands/tune_modes.h"

namespace outgrad::autotune {

Mode tune_mode(const char* name) {
  static constexpr std::string_view kOptions[] = {
      "--accuracy",  "--board",    "--budget",      "--defaults",
      "--device",    "--elements", "--evaluations", "--export-kernel-tuner",
      "--export-t4", "--format",   "--fresh",       "--headers",
      "--csv",       "--json",     "--kernel",      "--merge",
      "--out",       "--passes",   "--publish",     "--ranking",
      "--record",    "--seed",     "--shape",       "--shard",
      "--strategy"};
  return {"tune", name, kOptions};
}

int tune_command(const std::vector<std::string>& words) {
  if (given(words, "--merge")) return merge_command(words);
  if (given(words, "--defaults")) return defaults_command(words);
  const std::string device = given(words, "--device").value_or("cpu");
  if (device.starts_with("replay:"))
    return given(words, "--ranking") ? ranking_command(words) : replay_command(words);
  if (given(words, "--record")) return record_command(words);
  if (device.starts_with("sm_")) return predict_command(words);
  if (device.starts_with("cuda:")) return gpu_command(words);
  return cpu_command(words);
}

}  // namespace outgrad::autotune
