// Records of runs that never took place, as the tuner would write them. For tests of what is made of records:
// they say nothing of any machine.
#pragma once

#include <string>
#include <vector>

#include "autotune/evidence/merge.h"
#include "autotune/measure/timing.h"
#include "autotune/records/database.h"

namespace outgrad::autotune {

inline DeviceRecord cpu_device(int threads = 8) {
  DeviceRecord device;
  device.kind = "cpu", device.model = "A CPU 9000", device.isa = "avx2 fma", device.threads = threads,
  device.vector_bits = 512;
  return device;
}

inline DeviceRecord gpu_device(const std::string& name = "NVIDIA H200", int sms = 132,
                               long long memory_bytes = 150754820096LL) {
  DeviceRecord device;
  device.kind = "cuda", device.name = name, device.architecture = "sm_90", device.sms = sms,
  device.memory_bytes = memory_bytes;
  return device;
}

// A GPU that is not there.
inline DeviceRecord offline_device() {
  DeviceRecord device;
  device.kind = "offline", device.architecture = "sm_90", device.board = "H200 SXM";
  return device;
}

// One variant in the final rounds of the run that began at `time`.
struct Measured {
  std::string variant;
  double median = 1, low = 1, high = 1;
  std::string fit_class = "abs:2^-10";
  double a_plus_b = 0x1p-10;
  bool as_accurate = true;
  std::string time = "2026-01-01T00:00:00Z";
  int unroll = 4, block = 4096;
  int rounds = kLeastRounds;
  long long elements = 1 << 20;
  DeviceRecord device = cpu_device();
  std::string kernels = "k1", coefficients = "c1", kernel = "gelu_backward", format = "bf16";
  long long rows = 0, cols = 0;

  Record record() const {
    Record record;
    record.run = {device, {kernels, coefficients}, "c++ (Debian) 12.2.0", "-std=c++20 -O3", time, 1};
    record.kernel = kernel, record.format = format, record.variant = variant, record.state = "timed";
    record.rows = rows, record.cols = cols, record.elements = elements;
    record.parameters = {{"fit", "Gelu"}, {"unroll", unroll}, {"block_elements", block}};
    record.fit = {"gelu", fit_class, a_plus_b, 0x1p-6, 0x1p-9, as_accurate, "", {}};
    record.is_default = variant == "default";
    record.ceiling = {"triad", 1e8, {}};
    record.final.ns = std::vector<double>(static_cast<std::size_t>(rounds), 5e6 / median);
    record.discarded_rounds = 0;
    record.speedup = {{median, low, high}, kConfidence};
    record.gb_per_s = 27.25, record.share_of_ceiling = 0.625;
    record.finalist = true, record.winner = record.gain = false;
    return record;
  }
};

// The same run's rejection of it.
inline Record rejected(const Measured& of, const std::string& reason, const std::string& stage = "verify") {
  const Record timed = of.record();
  Record record;
  record.run = timed.run, record.kernel = timed.kernel, record.format = timed.format,
  record.variant = timed.variant, record.rows = timed.rows;
  record.cols = timed.cols, record.parameters = timed.parameters, record.fit = timed.fit,
  record.is_default = timed.is_default;
  record.state = "rejected";
  record.rejected = {stage, reason, "/home/somebody/kernel.cpp:3: what it said", {}};
  return record;
}

// Lines of records, or of values.
template <class Line>
std::string lines_of(const std::vector<Line>& records) {
  std::string text;
  for (const Line& record : records) text += line_of(record) + '\n';
  return text;
}

// The record of the variant that the evidence chooses for a kernel and format on this device: of these
// sources, against this default; of several shapes the one with the most elements decides. Empty where
// nothing was measured.
inline Record chosen_record(const std::vector<Record>& records, const DeviceKey& device,
                            const SourceHashes& sources, const std::string& kernel, const std::string& format,
                            const std::string& default_name) {
  Record chosen;
  kernels::i64 most = -1;
  for (const ProblemEvidence& problem : weigh(records, Accuracy::kAsDefault)) {
    if (!(problem.device == device) || problem.kernel != kernel || problem.format != format ||
        problem.baseline != default_name)
      continue;
    if (problem.sources.kernels != sources.kernels || problem.sources.coefficients != sources.coefficients)
      continue;
    if (problem.elements <= most) continue;
    most = problem.elements;
    chosen = problem.variants[problem.winner].record;
  }
  return chosen;
}

}  // namespace outgrad::autotune
