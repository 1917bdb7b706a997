// The CUDA kernels as a search space: schedules of kernels/params.h, their names, and one program to each.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "autotune/space/space.h"
#include "autotune/space/variant.h"
#include "kernels/cuda/plan.h"
#include "kernels/params.h"
#include "kernels/support/jit/nvrtc.h"
#include "kernels/support/jit/program.h"

namespace outgrad::autotune::gpu {

using kernels::jit::CompileError;
using kernels::jit::GpuCode;
using kernels::jit::is_symbol_of;
using kernels::jit::KernelResources;
using kernels::jit::name_of;  // of a device's kernel
using kernels::jit::Nvrtc;

struct Architecture;  // autotune/gpu/model.h

// One kernel of the library in one schedule. Its code is in at most two programs: the kernel that the
// schedule makes, and those that follow or precede it and are the same for all schedules.
struct GpuVariant : AnyVariant {
  // of GELU and of bias + GELU: `table` may be left to the kernel (automatic), `octets` not: a launch has to
  // know its trips
  kernels::GpuSchedule schedule{};
  // of the norms, with nothing left open but `sums` of a forward; the fit is null
  kernels::GpuNormSchedule norm{};

  GpuVariant(const Problem& of, std::shared_ptr<const FitChoice> choice, const kernels::GpuSchedule& how)
      : AnyVariant(of, std::move(choice)), schedule(how) {}
  GpuVariant(const Problem& of, const kernels::GpuNormSchedule& how);

  // GELU: "bf16.gelu_bf16.ipt_16.tpb_256.vec_16.tab_spread.grid_8.occ_1.ld_cs.st_wb": format, fit, items per
  // thread and trip, threads per block, bytes per access, table's home, blocks per SM of the grid (grid_all:
  // as many as it holds; grid_0: a block for each trip), blocks per SM that registers are kept for, hints of
  // loads and stores (cs: streaming, wb: none). Norms:
  // "bf16.n1024.wpr_2.oct_2.rpb_4.vec_16.home_registers.sums_fused.grid_0.occ_2.ahead_2.ld_wb.st_wb":
  // columns, warps to a row, octets of it to a thread, rows to a block, where rows lie, how sums over rows
  // come about (backwards alone), rows loaded ahead.
  std::string name() const override;
  nlohmann::json parameters() const override;
  int block_elements() const override;  // of a block's trip
  // A program with this kernel alone, as a shape of the problem's columns needs it. Variants that differ in
  // their launch only, by blocks_per_sm, have the same.
  std::string source() const;
  // A program with the other kernels of the plan; empty where there are none.
  std::string helper_source() const;
  // What is launched for this shape, which takes() it; `sums`: a norm's dgamma or dbeta is wanted.
  kernels::cuda::LaunchPlan plan(kernels::i64 rows, kernels::i64 cols,
                                 const kernels::cuda::PlanLimits& limits, bool sums = true) const;
  bool takes(kernels::i64 cols) const override;
  // The kernel of source().
  kernels::cuda::DeviceKernel main_kernel() const;
};

// What a kernel of the norms computes.
struct NormKind {
  kernels::Norm norm;
  bool residual, forward;
};
using kernels::is_norm;
NormKind norm_kind(KernelId kernel);  // of a norm's kernel
constexpr bool is_forward(KernelId kernel) { return !is_backward(kernel); }
// Whether a kernel has a space on GPUs. Those of codes (kernels/cuda/code.cuh) have none yet.
constexpr bool has_space(KernelId kernel) { return !kernels::has_codes(kernel); }

// Whether tensors of these columns are taken by octets: those that tuning makes are aligned.
bool is_wide(const Problem& problem);

// Bytes per element that a kernel reads before it computes, and those that it writes; each once. Not vectors
// that all rows share.
struct Traffic {
  double read = 0, written = 0;
};
Traffic traffic_of(const Problem& problem);

// The kernel's own default, with what it completes it by: octets, and all of a norm's schedule. A norm's
// problem has columns. `fit`, where it is not null, stands in place of the problem's default.
GpuVariant default_gpu_variant(const Problem& problem, const Architecture& architecture,
                               std::shared_ptr<const FitChoice> fit = nullptr);

// The space over these fits. Parameters of GELU's kernels: fit, threads, octets, access_bytes, blocks_per_sm,
// resident_blocks, loads, stores, table; of the norms: row_warps, octets, block_rows, access_bytes,
// blocks_per_sm, resident_blocks, rows_ahead, home, sums, loads, stores, for rows of the problem's columns.
Space gpu_space(const Problem& problem, const Fits& fits, const Architecture& architecture);
GpuVariant gpu_variant_at(const Problem& problem, const Fits& fits, const Space& space, const Point& point);
// Reads back what parameters() wrote. Throws SpecError, also for a fit that is not among these.
GpuVariant gpu_variant_from(const Problem& problem, const Fits& fits, const nlohmann::json& parameters);

}  // namespace outgrad::autotune::gpu
