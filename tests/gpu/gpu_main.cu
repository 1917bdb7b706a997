// outgrad-gpu: shows that the GPU's bits are the host's, and times the kernels against a device copy.
//
//   outgrad-gpu equality [--reduced] [--out FILE]
//       every bit pattern of every format (reduced: a sample, for a memory checker)
//   outgrad-gpu streams [--reduced] [--out FILE]
//       every launcher on a stream of its own and in a graph that is launched twice
//   outgrad-gpu digests --sweeps DIR [--reduced] [--out FILE]
//       SHA-256 of all outputs beside the exhaustive sweeps' in DIR (reduced: 16-bit formats alone)
//   outgrad-gpu time [--budget SECONDS] [--reduced] [--out FILE]
//       medians of interleaved samples (reduced: a look whether all of it runs)
//   outgrad-gpu arguments
//       what the launchers refuse; needs no GPU
//
// The CPU kernels are proved over all inputs; equal hashes carry the proof to this device, the first of those
// that CUDA_VISIBLE_DEVICES leaves. FILE is JSON, replaced as results come, so that a run that is killed
// leaves what it had.
// Exit status: 0 all equal, 1 a difference, 2 bad usage or input, 3 no device that can be used.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>

#include "tests/gpu/checks.h"
#include "tests/gpu/device_digests.h"
#include "tests/gpu/device_side.cuh"
#include "tests/gpu/device_times.h"
#include "tests/gpu/gelu_arguments.h"
#include "tests/gpu/norm_arguments.h"
#include "kernels/support/files.h"

namespace outgrad::tests::gpu {
namespace {

using kernels::BF16;
using kernels::F16;

struct Options {
  std::string command, out, sweeps;
  bool reduced = false;
  double budget_seconds = TimeSettings{}.budget_seconds;
};

Options options_of(const std::vector<std::string>& args) {
  const std::map<std::string, std::set<std::string>> known = {{"equality", {"--reduced", "--out"}},
                                                              {"streams", {"--reduced", "--out"}},
                                                              {"digests", {"--sweeps", "--reduced", "--out"}},
                                                              {"time", {"--budget", "--reduced", "--out"}},
                                                              {"arguments", {}}};
  Options options;
  options.command = args.empty() ? "" : args.front();
  const auto command = known.find(options.command);
  if (command == known.end())
    throw kernels::SpecError("outgrad-gpu: expected 'equality', 'streams', 'digests', 'time' or 'arguments'");
  for (size_t i = 1; i < args.size(); ++i) {
    const std::string& option = args[i];
    if (command->second.count(option) == 0)
      throw kernels::SpecError("outgrad-gpu " + options.command, option, "unknown option");
    if (option == "--reduced") {
      options.reduced = true;
      continue;
    }
    if (i + 1 == args.size()) throw kernels::SpecError("outgrad-gpu " + options.command, option, "no value");
    const std::string& value = args[++i];
    if (option == "--out") options.out = value;
    if (option == "--sweeps") options.sweeps = value;
    if (option == "--budget") {
      constexpr size_t kDigits = 5;
      if (value.empty() || value.size() > kDigits ||
          value.find_first_not_of("0123456789") != std::string::npos || std::atoi(value.c_str()) == 0)
        throw kernels::SpecError("outgrad-gpu time", "--budget",
                                 "'" + value + "' is not a number of seconds from 1 to 99999");
      options.budget_seconds = std::atoi(value.c_str());
    }
  }
  if (options.command == "digests" && options.sweeps.empty())
    throw kernels::SpecError("outgrad-gpu digests", "--sweeps", "is missing");
  return options;
}

// The device after its first work: one that is busy, or that this program has no code for, is found here.
cudaDeviceProp open_device() {
  int devices = 0;
  const cudaError_t counted = cudaGetDeviceCount(&devices);
  check(counted == cudaSuccess && devices == 0 ? cudaErrorNoDevice : counted, "device");
  cudaDeviceProp device;
  check(cudaGetDeviceProperties(&device, 0), "device properties");
  std::printf("%s, sm_%d%d, %d SMs", device.name, device.major, device.minor, device.multiProcessorCount);
  std::printf(devices > 1 ? " (the first of %d devices)\n" : "\n", devices);
  std::fflush(stdout);
  check(cudaSetDevice(0), "device");
  const Array<float> first(1);
  fill(first, GammaAt{});
  check(cudaDeviceSynchronize(), "device");
  return device;
}

class ResultFile {
 public:
  ResultFile(const Options& options, const cudaDeviceProp& device, const char* schema, const char* key)
      : path_(options.out) {
    head_ = std::string("{\"schema\": \"") + schema + "\", \"device\": \"" + device.name +
            "\", \"arch\": \"sm_" + std::to_string(10 * device.major + device.minor) +
            "\", \"sms\": " + std::to_string(device.multiProcessorCount) +
            ", \"reduced\": " + (options.reduced ? "true" : "false");
    key_ = key;
    write("", false);  // a place that cannot be written to ends the run before anything is computed
  }
  void write(const std::string& rows, bool complete) const {
    if (path_.empty()) return;
    kernels::write_file(path_, head_ + ", \"complete\": " + (complete ? "true" : "false") + ",\n  \"" + key_ +
                                   "\": [\n    " + rows + "]}\n");
  }

 private:
  std::string path_, head_, key_;
};

template <class T>
void equality_of(Report& report, bool reduced) {
  gelu_equality<T>(report, reduced);
  forwards_equality<T>(report, reduced);
  // Every number of warps per row, several rows per warp, ragged ends, one row, many rows over few columns,
  // the widest row that a group of steps holds.
  std::vector<std::pair<i64, i64>> shapes = {{1, 1}, {7, 33}, {70, 128}, {64, 768}};
  if (!reduced)
    shapes.insert(shapes.end(), {{1000, 1000},
                                 {100'000, 64},
                                 {30'000, 128},
                                 {7000, 256},
                                 {3000, 512},
                                 {512, 3000},
                                 {300, 7000},
                                 {4000, 8192},
                                 {3000, 4096},
                                 {128, 12'288},
                                 {16, 65'536},
                                 {3, 100'001}});
  for (const auto& [rows, n] : shapes) {
    bias_equality<T>(report, rows, n);
    norm_equality<T>(report, rows, n);
    if constexpr (std::is_same_v<T, BF16>) {
      norm_schedules_equality(report, rows, n);
      if (n % 64 == 0) norm_stores_equality(report, rows, n);
    }
  }
}

template <class T>
void streams_of(Report& report, bool reduced) {
  gelu_streams<T>(report);
  // Several launches to each sum over rows.
  const std::pair<i64, i64> shapes[] = {{reduced ? 30 : 3000, 1000}, {333, 77}};
  for (const auto& [rows, n] : shapes) {
    bias_streams<T>(report, rows, n);
    norm_streams<T>(report, rows, n);
  }
  if constexpr (std::is_same_v<T, BF16>) norm_stores_streams(report, reduced ? 30 : 3000, 1024);
}

// The formats in the order that brings most results first.
template <class Each>
void for_each_format(const Each& each) {
  each.template operator()<BF16>();
  each.template operator()<F16>();
  each.template operator()<float>();
}

int compared(const Options& options, const cudaDeviceProp& device) {
  const bool equality = options.command == "equality";
  const ResultFile file(options, device, equality ? "outgrad.gpu_equality/1" : "outgrad.gpu_streams/1",
                        "comparisons");
  Report report;
  for_each_format([&]<class T>() {
    equality ? equality_of<T>(report, options.reduced) : streams_of<T>(report, options.reduced);
    file.write(report.json, std::is_same_v<T, float>);
  });
  return report.equal ? kernels::kExitHolds : kernels::kExitViolated;
}

int digests(const Options& options) {
  std::map<std::string, OutputDigests> swept;  // all of them, before anything runs
  for_each_format([&]<class T>() {
    swept[kernels::Format<T>::kName] = digests_of_sweep(options.sweeps, kernels::Format<T>::kName);
  });
  const ResultFile file(options, open_device(), "outgrad.gpu_digests/1", "digests");
  DigestReport report;
  for_each_format([&]<class T>() {
    const std::string format = kernels::Format<T>::kName;
    if (!options.reduced || sizeof(T) == 2) report.add(format, device_digests<T>(), swept[format]);
    file.write(report.json, std::is_same_v<T, float>);
  });
  return report.equal ? kernels::kExitHolds : kernels::kExitViolated;
}

int time(const Options& options) {
  const cudaDeviceProp device = open_device();
  if (std::strstr(device.name, "MIG") != nullptr)
    throw kernels::CudaError(std::string("outgrad-gpu: ") + device.name +
                             ": times of a part of a device are not the device's");
  const ResultFile file(options, device, "outgrad.gpu_time/5", "timings");
  std::string all;
  time_kernels({options.reduced, options.budget_seconds},
               [&](const std::string& rows) { file.write(all = rows, false); });
  file.write(all, true);
  return kernels::kExitHolds;
}

int run(const std::vector<std::string>& args) {
  const Options options = options_of(args);
  if (options.command == "arguments") return std::max(refused_gelu_arguments(), refused_norm_arguments());
  if (options.command == "digests") return digests(options);
  if (options.command == "time") return time(options);
  return compared(options, open_device());
}

}  // namespace
}  // namespace outgrad::tests::gpu

int main(int argc, char** argv) {
  return outgrad::kernels::run_main(
      [&] { return outgrad::tests::gpu::run(std::vector<std::string>(argv + 1, argv + argc)); });
}
