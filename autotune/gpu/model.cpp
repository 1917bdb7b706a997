// The table of architectures, occupancy, and the model of time.
#include "autotune/gpu/model.h"

#include <algorithm>
#include <cmath>

#include "kernels/host/errors.h"

namespace outgrad::autotune::gpu {
namespace {

constexpr int kKiB = 1024;

const std::vector<Architecture>& architectures() {
  static const std::vector<Architecture> kTable = {
      {"sm_80", "A100 SXM 80 GB", 108, 1.410, 2039, 2048, 32, 164 * kKiB, 163 * kKiB},
      {"sm_86", "A10", 72, 1.695, 600, 1536, 16, 100 * kKiB, 99 * kKiB},
      {"sm_89", "L40S", 142, 2.520, 864, 1536, 24, 100 * kKiB, 99 * kKiB},
      {"sm_90", "H200 SXM", 132, 1.980, 4800, 2048, 32, 228 * kKiB, 227 * kKiB},
      {"sm_100", "B200", 148, 1.965, 8000, 2048, 32, 228 * kKiB, 227 * kKiB},
      {"sm_120", "GeForce RTX 5090", 170, 2.407, 1792, 1536, 24, 100 * kKiB, 99 * kKiB},
  };
  return kTable;
}

// Granularities of allocation (CUDA occupancy calculator; the same for every architecture of the table).
constexpr int kRegistersPerSm = 65536, kRegisterUnit = 256;  // per warp
constexpr int kSharedUnit = 128, kSharedReserved = 1024;     // bytes per block; the second is the system's own
// DRAM latency under load. An assumption, the same for all, until a device's measurements replace it: idle latencies are some hundred ns
// on these boards, and a streaming kernel's requests queue.
constexpr double kLatencyNs = 800;
constexpr double kSharedBytesPerClock = 128;
constexpr double kOverlap = 4;
// Lanes of a warp that read different rows of a table `rows` collide: 8 lanes at a time on 8 groups of banks, of which a random
// assignment has 2.6 on the fullest (the expected maximum load of 8 balls in 8 bins).
constexpr double kRowConflicts = 2.6;

int up_to(int value, int unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

const Architecture& architecture_of(const std::string& name) {
  std::string known;
  for (const Architecture& each : architectures()) {
    if (each.name == name) return each;
    known += (known.empty() ? "" : ", ") + each.name;
  }
  throw kernels::SpecError("device", name, "no model of it (" + known + ")");
}

int resident_blocks(const Architecture& architecture, const KernelResources& resources, int threads) {
  const int warps = up_to(threads, kWarp) / kWarp;
  int blocks = std::min(architecture.blocks_per_sm, architecture.threads_per_sm / (warps * kWarp));
  const int registers = up_to(resources.registers * kWarp, kRegisterUnit);
  if (registers > 0) {
    // Each of the four parts of an SM has a quarter of the registers and holds whole warps.
    const int resident_warps = kRegistersPerSm / kSchedulers / registers * kSchedulers;
    blocks = std::min(blocks, resident_warps / warps);
  }
  const int shared = up_to(resources.shared_bytes, kSharedUnit) + kSharedReserved;
  if (resources.shared_bytes > architecture.shared_per_block) return 0;
  return std::min(blocks, architecture.shared_per_sm / shared);
}

Prediction predict(const Architecture& architecture, const GpuVariant& variant, const CodeFacts& code) {
  constexpr int kOctet = 8;
  const kernels::GpuSchedule& schedule = variant.schedule;
  const Traffic traffic = traffic_of(variant.problem);
  const double elements_per_trip = kOctet * schedule.octets;
  Prediction p;
  p.resident_blocks = resident_blocks(architecture, code.resources, schedule.threads);
  const int launched = schedule.blocks_per_sm > 0 ? std::min(p.resident_blocks, schedule.blocks_per_sm) : p.resident_blocks;
  const double threads = static_cast<double>(launched) * schedule.threads;
  p.occupancy = threads / architecture.threads_per_sm;
  const double bandwidth = architecture.dram_gb_per_s / architecture.sms;  // bytes per ns and SM
  p.bytes_in_flight = threads * elements_per_trip * traffic.read;
  p.needed_in_flight = kLatencyNs * bandwidth * traffic.read / (traffic.read + traffic.written);
  const double bytes = traffic.read + traffic.written;
  p.memory_ns = bytes / (bandwidth * std::min(1.0, p.bytes_in_flight / p.needed_in_flight));
  // A block of a grid without a loop has its prologue for one trip; one that loops, for many.
  double instructions = code.instructions_per_element;
  if (schedule.blocks_per_sm == 0) instructions += code.prologue_instructions / elements_per_trip;
  p.issue_ns = instructions / (kWarp * kSchedulers * architecture.clock_ghz);
  const double conflicts = schedule.table == kernels::TableHome::rows ? kRowConflicts : 1;
  p.shared_ns = conflicts * code.shared_loads_per_element / (kSharedBytesPerClock * architecture.clock_ghz);
  p.ns = std::pow(std::pow(p.memory_ns, kOverlap) + std::pow(p.issue_ns, kOverlap) + std::pow(p.shared_ns, kOverlap), 1 / kOverlap);
  if (schedule.blocks_per_sm > p.resident_blocks) {
    const double rounds = std::ceil(static_cast<double>(schedule.blocks_per_sm) / p.resident_blocks);
    p.ns *= rounds * p.resident_blocks / schedule.blocks_per_sm;
  }
  for (double* each : {&p.memory_ns, &p.issue_ns, &p.shared_ns, &p.ns}) *each /= architecture.sms;
  p.share_of_bandwidth = bytes / p.ns / architecture.dram_gb_per_s;
  return p;
}

}  // namespace outgrad::autotune::gpu
