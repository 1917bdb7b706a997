// Records of runs that never took place, as the tuner would write them. For tests of what is made of records: they say nothing of any machine.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "autotune/records/database.h"
#include "autotune/records/merge.h"
#include "autotune/timing.h"

namespace outgrad::autotune {

inline nlohmann::json cpu_device(int threads = 8) {
  return {{"kind", "cpu"}, {"model", "A CPU 9000"}, {"threads", threads}, {"vector_bits", 512}, {"isa", "avx2 fma"}};
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
  nlohmann::json device = cpu_device();
  std::string kernels = "k1", coefficients = "c1", kernel = "gelu_backward", format = "bf16";
  long long rows = 0, cols = 0;

  nlohmann::json record() const {
    nlohmann::json record = {
        {"schema", kSchema},
        {"time", time},
        {"seed", 1},
        {"device", device},
        {"kernels_sha256", kernels},
        {"coefficients_sha256", coefficients},
        {"compiler", "c++ (Debian) 12.2.0"},
        {"flags", "-std=c++20 -O3"},
        {"kernel", kernel},
        {"format", format},
        {"variant", variant},
        {"parameters", {{"fit", "Gelu"}, {"unroll", unroll}, {"block_elements", block}}},
        {"fit",
         {{"name", "gelu"}, {"class", fit_class}, {"a_plus_b", a_plus_b}, {"t", 0x1p-6}, {"r", 0x1p-9}, {"as_accurate", as_accurate}}},
        {"default", variant == "default"},
        {"state", "timed"},
        {"elements", elements},
        {"ceiling", {{"name", "triad"}, {"bytes", 1e8}}},
        {"final", {{"ns", std::vector<double>(static_cast<std::size_t>(rounds), 5e6 / median)}}},
        {"discarded_rounds", 0},
        {"finalist", true},
        {"speedup", {{"median", median}, {"low", low}, {"high", high}, {"confidence", kConfidence}}},
        {"gb_per_s", 27.25},
        {"share_of_ceiling", 0.625},
        {"winner", false},
        {"gain", false}};
    if (rows > 0) record["rows"] = rows, record["cols"] = cols;
    return record;
  }
};

// The same run's rejection of it.
inline nlohmann::json rejected(const Measured& of, const std::string& reason, const std::string& stage = "verify") {
  nlohmann::json record = of.record();
  for (const char* key : {"elements", "ceiling", "final", "discarded_rounds", "finalist", "speedup", "gb_per_s", "share_of_ceiling", "winner", "gain"})
    record.erase(key);
  record["state"] = "rejected";
  record["rejected"] = {{"stage", stage}, {"reason", reason}, {"detail", "/home/somebody/kernel.cpp:3: what it said"}};
  return record;
}

inline std::string lines_of(const std::vector<nlohmann::json>& records) {
  std::string text;
  for (const nlohmann::json& record : records) text += line_of(record) + '\n';
  return text;
}

// The record of the variant that the evidence chooses for a kernel and format on this device: of these sources, against this default; of several
// shapes the one with the most elements decides. Null where nothing was measured.
inline nlohmann::json chosen_record(const std::vector<nlohmann::json>& records, const DeviceKey& device, const SourceHashes& sources, const std::string& kernel,
                   const std::string& format, const std::string& default_name) {
  nlohmann::json chosen;
  kernels::i64 most = -1;
  for (const ProblemEvidence& problem : weigh(records, Accuracy::kAsDefault)) {
    if (!(problem.device == device) || problem.kernel != kernel || problem.format != format || problem.baseline != default_name) continue;
    if (problem.sources.kernels != sources.kernels || problem.sources.coefficients != sources.coefficients) continue;
    if (problem.elements <= most) continue;
    most = problem.elements;
    chosen = problem.variants[problem.winner].record;
  }
  return chosen;
}

}  // namespace outgrad::autotune
