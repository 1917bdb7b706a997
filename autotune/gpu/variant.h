// The CUDA kernels as a search space: schedules of kernels/params.h, their names, and one program to each.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "autotune/space.h"
#include "autotune/variant.h"
#include "kernels/params.h"

namespace outgrad::autotune::gpu {

struct GpuVariant : AnyVariant {
  kernels::GpuSchedule schedule;  // `table` may be left to the kernel (automatic), `octets` not: a launch has to know its trips

  GpuVariant(const Problem& of, std::shared_ptr<const FitChoice> choice, const kernels::GpuSchedule& how)
      : AnyVariant(of, std::move(choice)), schedule(how) {}

  // "bf16.gelu_bf16.ipt_16.tpb_256.vec_16.tab_spread.grid_8.occ_1.ld_cs.st_wb": format, fit, items per thread and trip, threads per block, bytes per access, table's home, blocks per SM of the grid (grid_0: a block for each trip), blocks per SM
  // that registers are kept for, hints of loads and stores (cs: streaming, wb: none).
  std::string name() const override;
  nlohmann::json parameters() const override;
  int block_elements() const override;  // of a block's trip
  // A program with this kernel alone. Variants that differ in their launch only, by blocks_per_sm, have the same.
  std::string source() const;
};

// Bytes per element that a kernel reads before it computes, and those that it writes; each once.
struct Traffic {
  double read = 0, written = 0;
};
Traffic traffic_of(const Problem& problem);

// The kernel's own default, with the octets that it completes it by.
GpuVariant default_gpu_variant(const Problem& problem);

// The space over these fits. Parameters: fit, threads, octets, access_bytes, blocks_per_sm, resident_blocks, loads, stores, table.
// `max_threads`: resident threads of an SM.
Space gpu_space(const Problem& problem, const Fits& fits, int max_threads);
GpuVariant gpu_variant_at(const Problem& problem, const Fits& fits, const Space& space, const Point& point);
// Reads back what parameters() wrote. Throws SpecError, also for a fit that is not among these.
GpuVariant gpu_variant_from(const Problem& problem, const Fits& fits, const nlohmann::json& parameters);

// The text of a header with a struct for each variant's problem, which is the schedule type of its launcher and names its fit. `name`: of the
// namespace, "sm_90" or a device's; `evidence`: "measured" or "predicted"; `origin`: a comment line on where it comes from.
std::string tuned_header(const std::vector<GpuVariant>& variants, const std::string& name, const std::string& evidence,
                         const std::string& origin);

}  // namespace outgrad::autotune::gpu
