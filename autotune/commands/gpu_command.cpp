// `tune` on GPUs of this machine.
#include <algorithm>
#include <cstdio>
#include <set>

#include "autotune/commands/search_command.h"
#include "autotune/commands/tune_modes.h"
#include "autotune/evidence/identity.h"
#include "autotune/gpu/gpu_device.h"
#include "kernels/support/files.h"
#include "kernels/support/json.h"
#include "kernels/support/process.h"

namespace outgrad::autotune {
namespace {

using nlohmann::json;

int on_gpu(int index, const SearchOptions& options, const std::vector<Problem>& problems,
           const Shard& shard) {
  return search_on(*gpu::open_gpu_device(index, options.out, options.seed, options.accuracy), options,
                   problems, shard);
}

// All GPUs of this machine side by side, a process each: those that are the same device share its space, and
// its database.
int on_all_gpus(const SearchOptions& options, const std::vector<Problem>& problems, const Shard& shard) {
  const int count = gpu::count_gpus();
  if (count == 0) throw kernels::CudaError("--device cuda:all: the driver has no device");
  kernels::create_folder(options.out);
  std::vector<std::string> keys;
  for (int index = 0; index < count; ++index)
    keys.push_back(device_key(gpu::identify_gpu(index)).value_or(DeviceKey{}).device);
  std::vector<pid_t> children;
  const auto said_by = [&](int index) {
    return options.out + "/tune_cuda_" + std::to_string(index) + ".txt";
  };
  for (int index = 0; index < count; ++index) {
    const std::string& key = keys[static_cast<std::size_t>(index)];
    const auto alike = static_cast<std::size_t>(std::count(keys.begin(), keys.end(), key));
    const auto before = static_cast<std::size_t>(std::count(keys.begin(), keys.begin() + index, key));
    children.push_back(kernels::start_copy([&] {
      SearchOptions of_child = options;
      if (options.form) of_child.form = {.json = true};  // which is read again below
      if (std::freopen(said_by(index).c_str(), "w", stdout) == nullptr) return kernels::kExitEnvironment;
      return kernels::run_main([&] {
        return on_gpu(index, of_child, problems, {shard.index * alike + before, shard.count * alike});
      });
    }));
  }
  int worst = kernels::kExitHolds;
  json summaries = json::array();
  for (int index = 0; index < count; ++index) {
    const int status = kernels::wait_for(children[static_cast<std::size_t>(index)]).status;
    worst = std::max(worst, status < 0 ? kernels::kExitEnvironment : status);
    const std::string said = kernels::read_file(said_by(index));
    if (options.form) {
      const json summary = kernels::parse_json_line(said);
      // A device that failed has no summary: the reason is on stderr.
      summaries.push_back(summary.is_discarded() ? json(nullptr) : summary);
    } else {
      std::printf("== cuda:%d\n%s", index, said.c_str());
    }
  }
  if (options.form) kernels::print_result(options.form, summaries, "");
  return worst;
}

}  // namespace

std::vector<Problem> with_space_on_gpus(std::vector<Problem> problems) {
  std::set<std::string> left_out;
  std::erase_if(problems, [&](const Problem& problem) {
    const bool absent = !gpu::has_space(problem.kernel);
    if (absent) left_out.insert(name_of(problem.kernel));
    return absent;
  });
  std::string names;
  for (const std::string& name : left_out) names += (names.empty() ? "" : ", ") + name;
  if (problems.empty()) throw kernels::SpecError("tune", "--kernel", names + ": tuned on CPUs only");
  if (!names.empty()) kernels::print_error_line("warning: tune: " + names + ": tuned on CPUs only, left out");
  return problems;
}

int gpu_command(const Words& words) {
  SearchOptions options;
  read_options(tune_mode("a GPU"), words, [&](CLI::App& app) { add_search_options(app, options); });
  std::optional<int> index;
  if (options.device != "cuda:all") index = cuda_device("tune", options.device);
  const Shard shard = shard_of(options.shard);
  const std::vector<Problem> problems = with_space_on_gpus(problems_of("tune", options.problems));
  return index ? on_gpu(*index, options, problems, shard) : on_all_gpus(options, problems, shard);
}

}  // namespace outgrad::autotune
