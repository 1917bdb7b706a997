// Names, sources and the declared space of the CUDA kernels.
#include "autotune/gpu/variant.h"

#include <algorithm>

#include "kernels/cuda/gpu_ops.cuh"
#include "kernels/fits.h"
#include "kernels/host/errors.h"

namespace outgrad::autotune::gpu {
namespace {

using kernels::CacheHint;
using kernels::GpuSchedule;
using kernels::TableHome;

constexpr int kOctet = 8;  // elements: kernels/cuda/octets.cuh

// The names of an enumeration's values in C++; in variants' names they are short.
const char* name_of(TableHome home) {
  switch (home) {
    case TableHome::automatic:
      return "automatic";
    case TableHome::caches:
      return "caches";
    case TableHome::columns:
      return "columns";
    case TableHome::rows:
      return "rows";
    case TableHome::spread:
      return "spread";
    default:
      return "entries";
  }
}
const char* name_of(CacheHint hint) { return hint == CacheHint::streaming ? "streaming" : "none"; }
const char* short_name(CacheHint hint) { return hint == CacheHint::streaming ? "cs" : "wb"; }

const char* type_of(FormatId format) { return format == FormatId::kF32 ? "float" : format == FormatId::kF16 ? "F16" : "BF16"; }

// What a fit's tables take of shared memory in each home, in bytes, laid out as in kernels/cuda/tables.cuh; 0 for a home that it has not.
struct TableBytes {
  bool direct = false, one_row = false;
  std::int64_t columns = 0, rows = 0, spread = 0, entries = 0;

  std::int64_t in(TableHome home) const {
    return home == TableHome::columns ? columns : home == TableHome::rows ? rows : home == TableHome::spread ? spread : home == TableHome::entries ? entries : 0;
  }
};

void add_table(TableBytes& bytes, int rows, std::size_t row_bytes) {
  constexpr std::int64_t kQuad = 16, kCopies = 8;
  const std::int64_t quads = (static_cast<std::int64_t>(row_bytes) + kQuad - 1) / kQuad;
  bytes.columns += rows * static_cast<std::int64_t>(row_bytes);
  bytes.rows += rows * quads * kQuad;
  bytes.spread += rows * quads * kQuad * kCopies;
}

// Of a fit that this program was built with. A header of the caller's is what the compiler says it is.
TableBytes bytes_of(const Problem& problem, const FitChoice& choice) {
  TableBytes bytes;
  bytes.one_row = !choice.has_rows;
  if (!choice.header.empty()) return bytes;
  if (problem.kernel == KernelId::kGeluForward) {
    using Forward = kernels::generated::GeluForward;
    add_table(bytes, Forward::kRows, sizeof(Forward::table().w[0]));
    add_table(bytes, Forward::kTailRows, sizeof(Forward::tail().w[0]));
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
      const int entries = half ? kernels::cuda::DeviceFit<Fit, kernels::F16>::kEntries : kernels::cuda::DeviceFit<Fit, kernels::BF16>::kEntries;
      bytes.entries = static_cast<std::int64_t>(sizeof(kernels::u16)) * entries;
    } else {
      add_table(bytes, Fit::kRows, sizeof(Fit::table().w[0]));
    }
  });
  return bytes;
}

// A C++ initialiser.
std::string text_of(const GpuSchedule& schedule) {
  return "{.threads = " + std::to_string(schedule.threads) + ", .octets = " + std::to_string(schedule.octets) +
         ", .access_bytes = " + std::to_string(schedule.access_bytes) + ", .blocks_per_sm = " + std::to_string(schedule.blocks_per_sm) +
         ", .resident_blocks = " + std::to_string(schedule.resident_blocks) + ", .loads = CacheHint::" + name_of(schedule.loads) +
         ", .stores = CacheHint::" + name_of(schedule.stores) + ", .table = TableHome::" + name_of(schedule.table) + "}";
}

}  // namespace

std::string GpuVariant::name() const {
  return std::string(autotune::name_of(problem.format)) + "." + fit->name + ".ipt_" + std::to_string(kOctet * schedule.octets) + ".tpb_" +
         std::to_string(schedule.threads) + ".vec_" + std::to_string(schedule.access_bytes) + ".tab_" + name_of(schedule.table) + ".grid_" +
         std::to_string(schedule.blocks_per_sm) + ".occ_" + std::to_string(schedule.resident_blocks) + ".ld_" + short_name(schedule.loads) +
         ".st_" + short_name(schedule.stores);
}

nlohmann::json GpuVariant::parameters() const {
  return {{"fit", fit->type},
          {"threads", schedule.threads},
          {"octets", schedule.octets},
          {"access_bytes", schedule.access_bytes},
          {"blocks_per_sm", schedule.blocks_per_sm},
          {"resident_blocks", schedule.resident_blocks},
          {"loads", name_of(schedule.loads)},
          {"stores", name_of(schedule.stores)},
          {"table", name_of(schedule.table)}};
}

std::string GpuVariant::source() const {
  const std::string t = type_of(problem.format);
  const bool backward = problem.kernel == KernelId::kGeluBackward;
  std::string text = "#include \"kernels/cuda/elementwise.cuh\"\n";
  // A header of the caller's own stands in the program, one of ours is embedded.
  text += fit->header.empty() ? "#include \"kernels/generated/" + fit->name + ".h\"\n" : fit->header + "\n";
  kernels::GpuSchedule code = schedule;
  code.blocks_per_sm = kernels::GpuSchedule{}.blocks_per_sm;
  text += "using namespace outgrad::kernels;\nstruct Schedule {\n  static constexpr GpuSchedule kSchedule" + text_of(code) + ";\n};\n";
  if (backward)
    return text + "template __global__ void cuda::activation_backward<generated::" + fit->type + ", " + t + ", " + t + ", Schedule>(const " +
           t + "*, const " + t + "*, const u32*, " + t + "*, i64);\n";
  return text + "template __global__ void cuda::gelu_forward<generated::" + fit->type + ", " + t + ", Schedule>(const " + t + "*, " + t +
         "*, u32*, i64);\n";
}

int GpuVariant::block_elements() const { return schedule.threads * schedule.octets * kOctet; }

GpuVariant default_gpu_variant(const Problem& problem) {
  const std::shared_ptr<const FitChoice>& fit = fits_of(problem).front();
  kernels::GpuSchedule schedule;
  // As default_octets in kernels/cuda/elementwise.cuh: a direct table or a single row leaves registers for more, f32 needs more to spread
  // its polynomial's cost over.
  schedule.octets = !fit->has_rows ? 4 : problem.format == FormatId::kF32 ? 3 : 2;
  return {problem, fit, schedule};
}

Traffic traffic_of(const Problem& problem) {
  constexpr double kMask = 0.125;
  const double element = autotune::bytes_of(problem.format);
  return problem.kernel == KernelId::kGeluBackward ? Traffic{2 * element + kMask, element} : Traffic{element, element + kMask};
}

Space gpu_space(const Problem& problem, const Fits& fits, int max_threads) {
  std::vector<std::int64_t> fit_numbers;
  std::vector<TableBytes> tables;
  for (std::size_t i = 0; i < fits.size(); ++i) {
    fit_numbers.push_back(static_cast<std::int64_t>(i));
    tables.push_back(bytes_of(problem, *fits[i]));
  }
  const auto home = [](TableHome which) { return static_cast<std::int64_t>(which); };
  Space space;
  space.parameter("fit", fit_numbers)
      .parameter("threads", {64, 128, 256, 512, 1024})
      .parameter("octets", {1, 2, 3, 4, 6, 8})
      .parameter("access_bytes", {4, 8, 16})
      .parameter("blocks_per_sm", {0, 1, 2, 4, 8, 16, 32})
      .parameter("resident_blocks", {1, 2, 3, 4, 6, 8})
      .parameter("loads", {0, 1})
      .parameter("stores", {0, 1})
      .parameter("table", {home(TableHome::caches), home(TableHome::columns), home(TableHome::rows), home(TableHome::spread),
                           home(TableHome::entries)});
  space.constraint("registers are kept for blocks that an SM can hold", {"threads", "resident_blocks"},
                   [max_threads](const Point& p) { return p[0] * p[1] <= max_threads; });
  space.constraint("the grid has at least the blocks that registers are kept for", {"blocks_per_sm", "resident_blocks"},
                   [](const Point& p) { return p[0] == 0 || p[0] >= p[1]; });
  const std::int64_t octet_bytes = kOctet * autotune::bytes_of(problem.format);
  space.constraint("an access is no wider than an octet", {"access_bytes"}, [octet_bytes](const Point& p) { return p[0] <= octet_bytes; });
  // 8 octets of f32, twice, are 128 registers before anything is computed.
  const std::int64_t most_octets = problem.format == FormatId::kF32 ? 4 : 8;
  space.constraint("a trip's elements fit into the registers of a thread", {"octets"}, [most_octets](const Point& p) { return p[0] <= most_octets; });
  const auto table = [tables](const Point& p) { return tables[static_cast<std::size_t>(p[0])]; };
  space.constraint("a direct table's entries lie in the caches or as they are", {"fit", "table"}, [table, home](const Point& p) {
    return p[1] == home(TableHome::caches) || table(p).direct == (p[1] == home(TableHome::entries));
  });
  space.constraint("a single row needs no table in shared memory", {"fit", "table"},
                   [table, home](const Point& p) { return !table(p).one_row || p[1] == home(TableHome::caches); });
  space.constraint("a block declares 48 KiB of shared memory at most", {"fit", "table"}, [table](const Point& p) {
    constexpr std::int64_t kMost = 48 * 1024;
    return table(p).in(static_cast<TableHome>(p[1])) <= kMost;
  });
  return space;
}

GpuVariant gpu_variant_at(const Problem& problem, const Fits& fits, const Space& space, const Point& point) {
  const auto value = [&](const char* name) { return static_cast<int>(point[space.index_of(name)]); };
  GpuSchedule schedule;
  schedule.threads = value("threads");
  schedule.octets = value("octets");
  schedule.access_bytes = value("access_bytes");
  schedule.blocks_per_sm = value("blocks_per_sm");
  schedule.resident_blocks = value("resident_blocks");
  schedule.loads = static_cast<CacheHint>(value("loads"));
  schedule.stores = static_cast<CacheHint>(value("stores"));
  schedule.table = static_cast<TableHome>(value("table"));
  return {problem, fits[static_cast<std::size_t>(value("fit"))], schedule};
}

GpuVariant gpu_variant_from(const Problem& problem, const Fits& fits, const nlohmann::json& parameters) {
  const auto bad = [](const char* field, const std::string& why) { return kernels::SpecError("tuning record", field, why); };
  try {
    const std::string type = parameters.at("fit").get<std::string>(), table = parameters.at("table").get<std::string>();
    const auto fit = std::find_if(fits.begin(), fits.end(), [&](const auto& choice) { return choice->type == type; });
    if (fit == fits.end()) throw bad("fit", "unknown fit '" + type + "'");
    const auto hint = [&](const char* field) {
      const std::string text = parameters.at(field).get<std::string>();
      for (const CacheHint value : {CacheHint::none, CacheHint::streaming})
        if (text == name_of(value)) return value;
      throw bad(field, "unknown hint '" + text + "'");
    };
    GpuSchedule schedule;
    schedule.threads = parameters.at("threads").get<int>();
    schedule.octets = parameters.at("octets").get<int>();
    schedule.access_bytes = parameters.at("access_bytes").get<int>();
    schedule.blocks_per_sm = parameters.at("blocks_per_sm").get<int>();
    schedule.resident_blocks = parameters.at("resident_blocks").get<int>();
    schedule.loads = hint("loads");
    schedule.stores = hint("stores");
    for (const TableHome home : {TableHome::automatic, TableHome::caches, TableHome::columns, TableHome::rows, TableHome::spread, TableHome::entries}) {
      if (table != name_of(home)) continue;
      schedule.table = home;
      return {problem, *fit, schedule};
    }
    throw bad("table", "unknown home '" + table + "'");
  } catch (const nlohmann::json::exception& error) {
    throw bad("parameters", error.what());
  }
}

std::string tuned_header(const std::vector<GpuVariant>& variants, const std::string& name, const std::string& evidence,
                         const std::string& origin) {
  std::string text = "// GENERATED by outgrad tune. DO NOT EDIT.\n// " + origin +
                     "\n// Use: launch_gelu_backward<B::Fit, T, T, B>(..) with B = tuned::" + name +
                     "::GeluBackward<T>; launch_gelu_forward<F::Fit, T, F>(..)\n"
                     "#pragma once\n\n#include \"kernels/fits.h\"\n#include \"kernels/formats.h\"\n#include \"kernels/params.h\"\n";
  for (const GpuVariant& variant : variants)
    if (!variant.fit->header.empty()) text += "#include \"" + header_path(*variant.fit) + "\"\n";
  text += "\nnamespace outgrad::kernels::inline OUTGRAD_ABI::cuda::tuned::" + name +
          " {\n\ntemplate <class T>\nstruct GeluBackward;\n\ntemplate <class T>\nstruct GeluForward;\n";
  for (const GpuVariant& variant : variants)
    text += std::string("\ntemplate <>\nstruct ") + (variant.problem.kernel == KernelId::kGeluBackward ? "GeluBackward<" : "GeluForward<") +
            type_of(variant.problem.format) + "> {\n  using Fit = generated::" + variant.fit->type +
            ";\n  static constexpr GpuSchedule kSchedule" + text_of(variant.schedule) + ";\n  static constexpr const char* kVariant = \"" +
            variant.name() + "\";\n  static constexpr const char* kEvidence = \"" + evidence + "\";\n};\n";
  return text + "\n}  // namespace outgrad::kernels::inline OUTGRAD_ABI::cuda::tuned::" + name + "\n";
}

}  // namespace outgrad::autotune::gpu
