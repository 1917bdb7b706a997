// Names, sources and the declared space of the CUDA kernels.
#include "autotune/gpu/variant.h"

#include <algorithm>
#include <stdexcept>

#include "autotune/gpu/model.h"
#include "autotune/space/schedule.h"
#include "kernels/cuda/gpu_ops.cuh"
#include "kernels/fits.h"
#include "kernels/forward_fits.h"
#include "kernels/host/errors.h"

namespace outgrad::autotune::gpu {
namespace {

using kernels::CacheHint;
using kernels::GpuSchedule;
using kernels::TableHome;

using kernels::ColumnSums;
using kernels::GpuNormSchedule;
using kernels::i64;
using kernels::Norm;
using kernels::RowHome;
using kernels::cuda::DeviceKernel;
using kernels::cuda::kOctet;
using kernels::cuda::LaunchPlan;
using kernels::cuda::PlanLimits;
using kernels::cuda::SideChannels;

const char* short_name(CacheHint hint) { return hint == CacheHint::streaming ? "cs" : "wb"; }

// What a fit's tables take of shared memory in each home, in bytes, laid out as in kernels/cuda/tables.cuh; 0
// for a home that it has not.
struct TableBytes {
  bool direct = false, one_row = false;
  std::int64_t columns = 0, rows = 0, spread = 0, entries = 0;

  std::int64_t in(TableHome home) const {
    return home == TableHome::columns   ? columns
           : home == TableHome::rows    ? rows
           : home == TableHome::spread  ? spread
           : home == TableHome::entries ? entries
                                        : 0;
  }
};

void add_table(TableBytes& bytes, int rows, std::size_t row_bytes) {
  constexpr std::int64_t kQuad = 16, kCopies = 8;
  const std::int64_t quads = (static_cast<std::int64_t>(row_bytes) + kQuad - 1) / kQuad;
  bytes.columns += rows * static_cast<std::int64_t>(row_bytes);
  bytes.rows += rows * quads * kQuad;
  bytes.spread += rows * quads * kQuad * kCopies;
}

// The tables of a fit that this program was built with. A header of the caller's is what the compiler says it
// is.
TableBytes bytes_of(const Problem& problem, const FitChoice& choice) {
  TableBytes bytes;
  bytes.one_row = !choice.has_rows;
  if (!choice.header.empty()) return bytes;
  if (is_forward(problem.kernel)) {
    const auto add = [&](auto forward) {
      using Forward = decltype(forward);
      add_table(bytes, Forward::kRows, sizeof(Forward::table().w[0]));
      if constexpr (!kernels::kIsRoundedForward<Forward>)
        add_table(bytes, Forward::kTailRows, sizeof(Forward::tail().w[0]));
    };
    if (problem.format == FormatId::kF32) add(kernels::ForwardFit<float>::Type{});
    if (problem.format == FormatId::kF16) add(kernels::ForwardFit<kernels::F16>::Type{});
    if (problem.format == FormatId::kBf16) add(kernels::ForwardFit<kernels::BF16>::Type{});
    return bytes;
  }
  kernels::for_each_fit([&](auto fit) {
    using Fit = decltype(fit);
    if (choice.name != Fit::kName) return;
    if constexpr (kernels::kIsDirect<Fit>) {
      bytes.direct = true;
      bytes.one_row = false;
      // The widened form, if it is small enough to be the one that is kept (kernels/cuda/gpu_ops.cuh).
      const bool half = problem.format == FormatId::kF16;
      const int entries = half ? kernels::cuda::DeviceFit<Fit, kernels::F16>::kEntries
                               : kernels::cuda::DeviceFit<Fit, kernels::BF16>::kEntries;
      bytes.entries = static_cast<std::int64_t>(sizeof(kernels::u16)) * entries;
    } else {
      // whatever y is stored as
      add_table(bytes, kernels::cuda::DeviceFit<Fit, float>::kRows, sizeof(Fit::table().w[0]));
    }
  });
  return bytes;
}

bool is_fused(const GpuNormSchedule& schedule) {
  return schedule.home == RowHome::registers && schedule.sums != ColumnSums::separate;
}

// The lanes that share a row of the problem's, as its plan has them.
int lanes_of(const Problem& problem, const GpuNormSchedule& s) {
  const NormKind kind = norm_kind(problem.kernel);
  const int bytes = bytes_of(problem.format);
  const bool sums = s.sums != ColumnSums::separate;
  const auto use = kind.forward
                       ? kernels::cuda::detail::forward_use(bytes, kind.residual)
                       : kernels::cuda::detail::backward_use(kind.norm, bytes, kind.residual, sums, false);
  return kernels::cuda::detail::row_lanes_of(use, s.home, s.row_warps, s.octets, s.block_rows, problem.cols);
}

LaunchPlan plan_of(const Problem& problem, const GpuNormSchedule& schedule, i64 rows, i64 cols,
                   const PlanLimits& limits, bool sums) {
  const NormKind kind = norm_kind(problem.kernel);
  const kernels::cuda::NormTask task = {kind.norm, bytes_of(problem.format), kind.residual, rows,
                                        cols,      is_wide(problem),         false,         sums};
  return kind.forward ? kernels::cuda::norm_forward_plan(schedule, task, limits)
                      : kernels::cuda::norm_backward_plan(schedule, task, limits);
}

}  // namespace

NormKind norm_kind(KernelId kernel) {
  if (!is_norm(kernel)) throw std::logic_error(std::string(autotune::name_of(kernel)) + " is no norm");
  return {kernels::has_content(kernel, Content::kBeta) ? Norm::layer : Norm::rms,
          kernels::has_content(kernel, Content::kResidual) || kernels::has_content(kernel, Content::kDzNext),
          !is_backward(kernel)};
}

bool is_wide(const Problem& problem) { return problem.cols % kOctet == 0; }

GpuVariant::GpuVariant(const Problem& of, const GpuNormSchedule& how) : AnyVariant(of, nullptr), norm(how) {
  norm.row_lanes = lanes_of(of, norm);
}

DeviceKernel GpuVariant::main_kernel() const {
  return fit && !fit->forward.empty() ? DeviceKernel::activation_forward
                                      : kernels::jit::main_kernel(problem.kernel, norm);
}

bool GpuVariant::takes(i64 cols) const {
  if (problem.over_rows() && is_wide(problem) && cols % kOctet != 0) return false;
  if (!is_norm(problem.kernel)) return true;
  if (norm.home == RowHome::registers)
    return cols <= i64{kernels::cuda::row_threads(norm)} * norm.octets * kOctet;
  // as much shared memory as the device is known to have
  return norm.home == RowHome::memory || cols <= problem.cols;
}

LaunchPlan GpuVariant::plan(i64 rows, i64 cols, const PlanLimits& limits, bool sums) const {
  if (is_norm(problem.kernel)) return plan_of(problem, norm, rows, cols, limits, sums);
  const bool wide = is_wide(problem);
  if (problem.kernel == KernelId::kBiasGeluBackward)
    return kernels::cuda::bias_backward_plan(schedule, rows, cols, wide, limits);
  if (problem.kernel == KernelId::kBiasGeluForward)
    return kernels::cuda::bias_forward_plan(schedule, rows * cols, wide, limits);
  return kernels::cuda::elementwise_plan(main_kernel(), schedule, rows * cols, limits);
}

std::string GpuVariant::name() const {
  const std::string format = autotune::name_of(problem.format);
  if (is_norm(problem.kernel)) {
    std::string text = format + ".n" + std::to_string(problem.cols) + ".wpr_" +
                       std::to_string(norm.row_warps) + ".oct_" + std::to_string(norm.octets) + ".rpb_" +
                       std::to_string(norm.block_rows) + ".vec_" + std::to_string(norm.access_bytes) +
                       ".home_" + name_of_value(norm.home);
    if (!is_forward(problem.kernel)) text += std::string(".sums_") + name_of_value(norm.sums);
    return text + ".grid_" + std::to_string(norm.blocks_per_sm) + ".occ_" +
           std::to_string(norm.resident_blocks) + ".ahead_" + std::to_string(norm.rows_ahead) + ".ld_" +
           short_name(norm.loads) + ".st_" + short_name(norm.stores);
  }
  return std::string(autotune::name_of(problem.format)) + "." + fit->name + ".ipt_" +
         std::to_string(kOctet * schedule.octets) + ".tpb_" + std::to_string(schedule.threads) + ".vec_" +
         std::to_string(schedule.access_bytes) + ".tab_" + name_of_value(schedule.table) + ".grid_" +
         (schedule.blocks_per_sm == kernels::kAllResident ? "all" : std::to_string(schedule.blocks_per_sm)) +
         ".occ_" + std::to_string(schedule.resident_blocks) + ".ld_" + short_name(schedule.loads) + ".st_" +
         short_name(schedule.stores);
}

nlohmann::json GpuVariant::parameters() const {
  nlohmann::json parameters;
  const auto add = [&](const char* name, const auto& field) { parameters[name] = parameter_of(field); };
  if (is_norm(problem.kernel)) {
    GpuNormSchedule chosen = norm;
    chosen.row_lanes = 0;  // which follow
    each_field(chosen, add);
  } else {
    parameters["fit"] = fit->type;
    each_field(schedule, add);
  }
  return parameters;
}

std::string GpuVariant::source() const {
  const std::string type = type_of(problem.format);
  if (is_norm(problem.kernel)) {
    const NormKind kind = norm_kind(problem.kernel);
    const SideChannels side = norm.home == RowHome::registers ? SideChannels::none : SideChannels::either;
    return kernels::jit::source(kernels::jit::NormInstance{main_kernel(), kind.norm, kind.residual, type,
                                                           is_wide(problem), side, norm});
  }
  if (!fit->forward.empty())
    return kernels::jit::source(
        kernels::jit::ElementwiseInstance{main_kernel(), type, fit->forward, "", false, schedule});
  // A header of the caller's own stands in the program, one of ours is embedded.
  const std::string declaration =
      fit->header.empty() ? kernels::jit::fit_include(fit->name) : fit->header + "\n";
  return kernels::jit::source(kernels::jit::ElementwiseInstance{
      main_kernel(), type, kernels::jit::fit_type(fit->name), declaration, is_wide(problem), schedule});
}

std::string GpuVariant::helper_source() const {
  if (problem.kernel == KernelId::kGeluBackward || is_forward(problem.kernel)) return "";
  if (!is_norm(problem.kernel)) return kernels::jit::bias_helper_source();
  return kernels::jit::norm_helper_source(norm_kind(problem.kernel).norm, type_of(problem.format),
                                          !is_fused(norm));
}

int GpuVariant::block_elements() const {
  if (is_norm(problem.kernel)) return static_cast<int>(norm.block_rows * problem.cols);
  return schedule.threads * schedule.octets * kOctet;
}

GpuVariant default_gpu_variant(const Problem& problem, const Architecture& architecture,
                               std::shared_ptr<const FitChoice> fit) {
  if (is_norm(problem.kernel)) {
    // What the launchers choose depends on the columns, and where a block has little shared memory also on
    // the slots that it adds up.
    GpuNormSchedule schedule =
        plan_of(problem, {}, std::max<i64>(1, problem.rows), problem.cols,
                {.sms = architecture.sms, .shared_bytes = architecture.shared_per_block}, true)
            .norm;
    if (!is_forward(problem.kernel))
      schedule.sums = schedule.home == RowHome::registers ? ColumnSums::fused : ColumnSums::separate;
    return {problem, schedule};
  }
  if (!fit) fit = fits_of(problem).front();
  GpuSchedule schedule;
  if (!fit->forward.empty())
    schedule = with_type(problem.format, [&]<class T>(T) {
      return kernels::cuda::forwards_schedule(kernels::has_forward_fit<T>(fit->name.c_str()), sizeof(T));
    });
  return {problem, fit,
          kernels::cuda::completed(schedule, {.forward = is_forward(problem.kernel),
                                              .bias = problem.over_rows(),
                                              .element_bytes = autotune::bytes_of(problem.format),
                                              .rows = fit->has_rows})};
}

Traffic traffic_of(const Problem& problem) {
  Traffic traffic;
  for (const Operand& operand : operands(problem.kernel)) {
    const double bytes = operand.extent == Extent::kElements    ? problem.element_bytes(operand)
                         : operand.extent == Extent::kMaskWords ? 0.125
                                                                : 0;
    (operand.role == Role::kInput ? traffic.read : traffic.written) += bytes;
  }
  return traffic;
}

namespace {

// What the space of a norm follows from.
struct NormShape {
  const Problem& problem;
  const Architecture& architecture;
  NormKind kind = norm_kind(problem.kernel);
  bool wide = is_wide(problem);
  int element_bytes = bytes_of(problem.format);

  // The threads of a block's rows.
  std::int64_t threads(std::int64_t home, std::int64_t warps, std::int64_t octets, std::int64_t rows) const {
    const GpuNormSchedule schedule{.row_warps = static_cast<int>(warps),
                                   .octets = static_cast<int>(octets),
                                   .block_rows = static_cast<int>(rows),
                                   .home = static_cast<RowHome>(home)};
    return warps * rows * lanes_of(problem, schedule);
  }
};

template <class Value>
constexpr std::int64_t number(Value value) {
  return static_cast<std::int64_t>(value);
}
constexpr std::int64_t kRegisters = number(RowHome::registers), kFused = number(ColumnSums::fused);

Space norm_parameters(const NormShape& of) {
  std::vector<std::int64_t> homes = {kRegisters, number(RowHome::shared), number(RowHome::memory)},
                            sums = {kFused, number(ColumnSums::separate)};
  if (!of.wide) homes.erase(homes.begin());
  if (of.kind.forward)
    sums = {number(ColumnSums::automatic)};
  else if (!of.wide)
    sums.erase(sums.begin());
  // Tensors are aligned when they are tuned, so that narrower accesses have no use; what is no whole octet
  // comes element by element, without hints.
  const std::vector<std::int64_t> accesses =
      of.wide ? std::vector<std::int64_t>{8, 16} : std::vector<std::int64_t>{16};
  const std::vector<std::int64_t> hints =
      of.wide ? std::vector<std::int64_t>{0, 1} : std::vector<std::int64_t>{0};
  Space space;
  space.parameter("row_warps", {1, 2, 4, 8, 16, 32})
      .parameter("octets", {1, 2, 4, 8})
      .parameter("block_rows", {1, 2, 4, 8})
      .parameter("access_bytes", accesses)
      .parameter("blocks_per_sm", {0, 1, 2, 4, 8, 16, 32})
      .parameter("resident_blocks", {1, 2, 3, 4, 6, 8, 12, 16, 24, 32})
      .parameter("rows_ahead",
                 of.kind.forward ? std::vector<std::int64_t>{0} : std::vector<std::int64_t>{0, 1, 2, 3, 4})
      .parameter("home", homes)
      .parameter("sums", sums)
      .parameter("loads", hints)
      .parameter("stores", hints);
  return space;
}

// Threads, registers and blocks.
void constrain_threads(Space& space, const NormShape& of) {
  const i64 steps = kernels::row_steps(of.problem.cols);
  space.constraint("registers hold a row, of one group of the tree at most", {"home", "row_warps", "octets"},
                   [=](const Point& p) {
                     return p[0] != kRegisters ||
                            (p[1] * p[2] >= steps && p[1] * p[2] <= kernels::cuda::kMostRegisterSteps);
                   });
  space.constraint("most threads have a part of the row", {"home", "row_warps", "octets", "block_rows"},
                   [=](const Point& p) {
                     const std::int64_t threads = of.threads(p[0], p[1], p[2], p[3]) / p[3];
                     return threads * p[2] < 2 * (threads < kernels::kTreeLanes
                                                      ? of.problem.cols / kOctet
                                                      : kernels::kTreeLanes * steps);
                   });
  space.constraint("a block has at most 1024 threads", {"row_warps", "block_rows"},
                   [](const Point& p) { return p[0] * p[1] <= kernels::kTreeLanes; });
  const int max_threads = of.architecture.threads_per_sm, max_blocks = of.architecture.blocks_per_sm;
  space.constraint("registers are kept for blocks that an SM can hold",
                   {"home", "row_warps", "octets", "block_rows", "resident_blocks"}, [=](const Point& p) {
                     return of.threads(p[0], p[1], p[2], p[3]) * p[4] <= max_threads && p[4] <= max_blocks;
                   });
  const int tensor_words = kernels::cuda::detail::octet_words(of.element_bytes) *
                           ((of.kind.forward ? 1 : 2) + (of.kind.residual ? 1 : 0)),
            sum_words = kOctet * kernels::cuda::column_sums(of.kind.norm);
  space.constraint(
      "what a thread keeps of its rows leaves it registers for more",
      {"home", "row_warps", "octets", "block_rows", "resident_blocks", "sums"}, [=](const Point& p) {
        constexpr std::int64_t kPerSm = 65536, kPerThread = 255;
        const std::int64_t there = std::min(kPerThread, kPerSm / (of.threads(p[0], p[1], p[2], p[3]) * p[4]));
        return p[0] != kRegisters || p[2] * (tensor_words + (p[5] == kFused ? sum_words : 0)) < there;
      });
  space.constraint("the grid has at least the blocks that registers are kept for",
                   {"blocks_per_sm", "resident_blocks"},
                   [](const Point& p) { return p[0] == 0 || p[0] >= p[1]; });
}

// How rows come, and how sums over rows come about.
void constrain_rows(Space& space) {
  space.constraint(
      "rows that do not lie in registers come one at a time, octet by octet, without sums over rows",
      {"home", "octets", "block_rows", "rows_ahead", "sums"}, [](const Point& p) {
        return p[0] == kRegisters || (p[1] == 1 && p[2] == 1 && p[3] == 0 && p[4] != kFused);
      });
  space.constraint("copies of rows ahead have no hint", {"rows_ahead", "loads"},
                   [](const Point& p) { return p[0] == 0 || p[1] == 0; });
  space.constraint("rows are loaded ahead where they come in turn", {"rows_ahead", "sums"},
                   [](const Point& p) { return p[0] == 0 || p[1] == kFused; });
  space.constraint("fused sums have a block for each of their slots", {"blocks_per_sm", "sums"},
                   [](const Point& p) { return p[0] == 0 || p[1] != kFused; });
}

void constrain_shared_memory(Space& space, const NormShape& of) {
  const i64 slots = kernels::slot_count(of.problem.rows, of.problem.cols);
  const i64 most_shared = of.architecture.shared_per_block;
  const NormKind kind = of.kind;
  const int element_bytes = of.element_bytes;
  space.constraint("a block's shared memory holds the rows ahead and the sums put aside",
                   {"row_warps", "octets", "block_rows", "rows_ahead", "sums"}, [=](const Point& p) {
                     if (p[4] != kFused) return true;
                     GpuNormSchedule s;
                     s.row_warps = static_cast<int>(p[0]), s.octets = static_cast<int>(p[1]),
                     s.block_rows = static_cast<int>(p[2]);
                     s.rows_ahead = static_cast<int>(p[3]);
                     const i64 own_slots = kernels::cuda::slots_together(slots, s.block_rows) / s.block_rows,
                               bytes = kernels::cuda::detail::slots_block_bytes(
                                   s, kind.norm, element_bytes, kind.residual, false, own_slots);
                     return bytes + kernels::cuda::detail::declared_bytes(s) <= most_shared;
                   });
  const int tensors = kind.forward ? 1 : 2;  // that are kept: kernels/cuda/plan.h
  const i64 row_bytes = tensors * kernels::cuda::detail::shared_row_bytes(of.problem.cols, element_bytes);
  const i64 memory =
      kernels::cuda::detail::row_memory({.shared_bytes = of.architecture.shared_per_block}, tensors);
  space.constraint("a block's shared memory holds a row", {"home"},
                   [=](const Point& p) { return p[0] != number(RowHome::shared) || row_bytes <= memory; });
}

Space norm_space(const Problem& problem, const Architecture& architecture) {
  const NormShape of{problem, architecture};
  Space space = norm_parameters(of);
  constrain_threads(space, of);
  constrain_rows(space);
  constrain_shared_memory(space, of);
  return space;
}

}  // namespace

Space gpu_space(const Problem& problem, const Fits& fits, const Architecture& architecture) {
  if (is_norm(problem.kernel)) return norm_space(problem, architecture);
  const int max_threads = architecture.threads_per_sm;
  std::vector<std::int64_t> fit_numbers;
  std::vector<TableBytes> tables;
  for (std::size_t i = 0; i < fits.size(); ++i) {
    fit_numbers.push_back(static_cast<std::int64_t>(i));
    tables.push_back(bytes_of(problem, *fits[i]));
  }
  const auto home = [](TableHome which) { return static_cast<std::int64_t>(which); };
  Space space;
  space.nominal_parameter("fit", fit_numbers)
      .parameter("threads", {64, 128, 256, 512, 1024})
      .parameter("octets", {1, 2, 3, 4, 6, 8})
      .parameter("access_bytes", {4, 8, 16})
      .nominal_parameter("blocks_per_sm", {kernels::kAllResident, 0, 1, 2, 4, 8, 16, 32})
      .parameter("resident_blocks", {1, 2, 3, 4, 6, 8})
      .parameter("loads", {0, 1})
      .parameter("stores", {0, 1})
      .nominal_parameter("table", {home(TableHome::caches), home(TableHome::columns), home(TableHome::rows),
                                   home(TableHome::spread), home(TableHome::entries)});
  space.constraint("registers are kept for blocks that an SM can hold", {"threads", "resident_blocks"},
                   [max_threads](const Point& p) { return p[0] * p[1] <= max_threads; });
  space.constraint("the grid has at least the blocks that registers are kept for",
                   {"blocks_per_sm", "resident_blocks"},
                   [](const Point& p) { return p[0] <= 0 || p[0] >= p[1]; });
  const std::int64_t octet_bytes = kOctet * autotune::bytes_of(problem.format);
  space.constraint("an access is no wider than an octet", {"access_bytes"},
                   [octet_bytes](const Point& p) { return p[0] <= octet_bytes; });
  // 8 octets of f32, twice, are 128 registers before anything is computed.
  const std::int64_t most_octets = problem.format == FormatId::kF32 ? 4 : 8;
  space.constraint("a trip's elements fit into the registers of a thread", {"octets"},
                   [most_octets](const Point& p) { return p[0] <= most_octets; });
  const auto table = [tables](const Point& p) { return tables[static_cast<std::size_t>(p[0])]; };
  space.constraint("a direct table's entries lie in the caches or as they are", {"fit", "table"},
                   [table, home](const Point& p) {
                     return p[1] == home(TableHome::caches) ||
                            table(p).direct == (p[1] == home(TableHome::entries));
                   });
  space.constraint(
      "a single row needs no table in shared memory", {"fit", "table"},
      [table, home](const Point& p) { return !table(p).one_row || p[1] == home(TableHome::caches); });
  space.constraint("a block declares 48 KiB of shared memory at most", {"fit", "table"},
                   [table](const Point& p) {
                     constexpr std::int64_t kMost = 48 * 1024;
                     return table(p).in(static_cast<TableHome>(p[1])) <= kMost;
                   });
  return space;
}

GpuVariant gpu_variant_at(const Problem& problem, const Fits& fits, const Space& space, const Point& point) {
  const auto take = [&](const char* name, auto& field) {
    field = static_cast<std::remove_reference_t<decltype(field)>>(point[space.index_of(name)]);
  };
  GpuNormSchedule norm;
  GpuSchedule schedule;
  if (is_norm(problem.kernel)) return each_field(norm, take), GpuVariant{problem, norm};
  each_field(schedule, take);
  return {problem, fits[static_cast<std::size_t>(point[space.index_of("fit")])], schedule};
}

GpuVariant gpu_variant_from(const Problem& problem, const Fits& fits, const nlohmann::json& parameters) {
  try {
    const auto take = [&](const char* name, auto& field) {
      read_parameter(name, parameters.at(name), field);
    };
    GpuNormSchedule norm;
    GpuSchedule schedule;
    if (!is_norm(problem.kernel))
      return each_field(schedule, take), GpuVariant{problem, fit_among(fits, parameters), schedule};
    each_field(norm, take);
    if (norm.home == RowHome::automatic) throw kernels::SpecError("home: left open");
    return {problem, norm};
  } catch (const std::exception& error) {
    throw kernels::SpecError("tuning record", "parameters", error.what());
  }
}

}  // namespace outgrad::autotune::gpu
