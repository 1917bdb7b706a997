// Names, sources and the declared space of the CPU kernels.
#include "autotune/variant.h"

#include <algorithm>
#include <cctype>
#include <stdexcept>
#include <type_traits>

#include "autotune/timing.h"
#include "kernels/fits.h"
#include "kernels/formats.h"
// The committed default whatever -DOUTGRAD_TUNED says: gains are measured against the same thing everywhere. Constants only are
// taken from it, so that it can stand beside another tuned header in one program.
#include "kernels/generated/tuned_default.h"
#include "kernels/host/errors.h"

namespace outgrad::autotune {
namespace {

namespace generated = kernels::generated;
using kernels::CpuSchedule;
using kernels::TablePlacement;

template <class T>
Fits backward_fits() {
  Fits choices;
  kernels::for_each_fit([&](auto fit) {
    using Fit = decltype(fit);
    // The list is of every activation and format; the kernel is GELU's.
    if constexpr (std::string_view(Fit::kFormat) == kernels::Format<T>::kName && std::string_view(Fit::kActivation) == "gelu") {
      auto choice = std::make_shared<const FitChoice>(backward_choice<Fit, T>());
      const bool is_default = std::is_same_v<Fit, typename kernels::DefaultFit<T>::Type>;
      choices.insert(is_default ? choices.begin() : choices.end(), std::move(choice));
    }
  });
  return choices;
}

template <class T>
Fits forward_fits() {
  using Fit = generated::GeluForward;
  return {std::make_shared<const FitChoice>(
      FitChoice{.type = type_name(Fit::kName), .name = Fit::kName, .has_rows = true, .reference = &run_forward<Fit, T, kReferenceSchedule>})};
}

// Calls action with a value of the format's type.
template <class Action>
decltype(auto) with_type(FormatId format, Action&& action) {
  switch (format) {
    case FormatId::kF32:
      return action(float{});
    case FormatId::kF16:
      return action(kernels::F16{});
    default:
      return action(kernels::BF16{});
  }
}

const char* placement_name(TablePlacement table) { return table == TablePlacement::permute ? "permute" : "memory"; }

const char* type_of(FormatId format) { return format == FormatId::kF32 ? "float" : format == FormatId::kF16 ? "F16" : "BF16"; }

}  // namespace

std::string type_name(std::string_view name) {
  std::string type;
  bool capital = true;
  for (const char c : name) {
    if (c != '_') type += capital ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c;
    capital = c == '_';
  }
  return type;
}

const Fits& fits_of(const Problem& problem) {
  return with_type(problem.format, [&](auto value) -> const Fits& {
    using T = decltype(value);
    static const Fits kBackward = backward_fits<T>(), kForward = forward_fits<T>();
    return problem.kernel == KernelId::kGeluBackward ? kBackward : kForward;
  });
}

Fits accurate_fits_of(const Problem& problem) {
  Fits fits = fits_of(problem);
  const double most = fits.front()->error;
  std::erase_if(fits, [most](const auto& fit) { return fit->error > most; });
  return fits;
}

std::string Variant::name() const {
  std::string text = std::string(autotune::name_of(problem.format)) + "." + fit->name;
  text += schedule.vector_bits == 0 ? ".s" : ".v" + std::to_string(schedule.vector_bits);
  text += ".u" + std::to_string(schedule.unroll) + ".b" + std::to_string(schedule.block_elements);
  text += schedule.streaming_stores ? ".nt." : ".wb.";
  text += placement_name(schedule.table);
  return text + ".t" + std::to_string(schedule.threads);
}

std::string Variant::schedule_text() const {
  return "{" + std::to_string(schedule.threads) + ", " + std::to_string(schedule.vector_bits) + ", " + std::to_string(schedule.unroll) +
         ", " + std::to_string(schedule.block_elements) + ", " + (schedule.streaming_stores ? "true" : "false") +
         ", TablePlacement::" + placement_name(schedule.table) + "}";
}

std::string Variant::body() const {
  const std::string run = problem.kernel == KernelId::kGeluBackward ? "run_backward" : "run_forward";
  return "using namespace outgrad::kernels; outgrad::autotune::" + run + "<generated::" + fit->type + ", " + type_of(problem.format) +
         ", CpuSchedule" + schedule_text() + ">(a);";
}

nlohmann::json Variant::parameters() const {
  return {{"fit", fit->type},
          {"vector_bits", schedule.vector_bits},
          {"unroll", schedule.unroll},
          {"block_elements", schedule.block_elements},
          {"streaming_stores", schedule.streaming_stores},
          {"table", placement_name(schedule.table)},
          {"threads", schedule.threads}};
}

Variant variant_from(const Problem& problem, const Fits& fits, const nlohmann::json& parameters) {
  try {
    const std::string table = parameters.at("table").get<std::string>(), type = parameters.at("fit").get<std::string>();
    const auto fit = std::find_if(fits.begin(), fits.end(), [&](const auto& choice) { return choice->type == type; });
    if (fit == fits.end()) throw kernels::SpecError("tuning record", "fit", "unknown fit '" + type + "'");
    if (table != "permute" && table != "memory") throw kernels::SpecError("tuning record", "table", "unknown placement '" + table + "'");
    return {problem,
            *fit,
            {parameters.at("threads").get<int>(), parameters.at("vector_bits").get<int>(), parameters.at("unroll").get<int>(),
             parameters.at("block_elements").get<int>(), parameters.at("streaming_stores").get<bool>(),
             table == "permute" ? TablePlacement::permute : TablePlacement::memory}};
  } catch (const nlohmann::json::exception& error) {
    throw kernels::SpecError("tuning record", "parameters", error.what());
  }
}

Variant default_variant(const Problem& problem) {
  return with_type(problem.format, [&](auto value) {
    using T = decltype(value);
    constexpr CpuSchedule kBackward = kernels::tuned::GeluBackward<T>::kSchedule, kForward = kernels::tuned::GeluForward<T>::kSchedule;
    return Variant{problem, fits_of(problem).front(), problem.kernel == KernelId::kGeluBackward ? kBackward : kForward};
  });
}

Space cpu_space(const Fits& fits, int vector_bits, int threads, Grid grid) {
  std::vector<std::int64_t> fit_numbers, widths;
  for (std::size_t i = 0; i < fits.size(); ++i) fit_numbers.push_back(static_cast<std::int64_t>(i));
  for (const int width : {256, 512})
    if (width <= vector_bits) widths.push_back(width);
  if (widths.empty()) widths = {0};
  // One thread can win where one core already saturates the memory; with a single core it is the same as all.
  const std::vector<std::int64_t> counts = threads > 1 ? std::vector<std::int64_t>{0, 1} : std::vector<std::int64_t>{0};
  std::vector<std::int64_t> unrolls = {1, 2, 4}, blocks = {1 << 12, 1 << 14, 1 << 16};
  if (grid == Grid::kFine) {
    unrolls = {1, 2, 3, 4, 5, 6, 7, 8};
    blocks.clear();
    for (const std::int64_t kibi : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128}) blocks.push_back(kibi << 10);
  }

  Space space;
  space.parameter("fit", fit_numbers)
      .parameter("vector_bits", widths)
      .parameter("unroll", unrolls)
      .parameter("block_elements", blocks)
      .parameter("streaming_stores", {0, 1})
      .parameter("table", {static_cast<int>(TablePlacement::permute), static_cast<int>(TablePlacement::memory)})
      .parameter("threads", counts);
  space.constraint("scalar code has no vectors to interleave", {"vector_bits", "unroll"},
                   [](const Point& p) { return p[0] != 0 || p[1] == 1; });
  space.constraint("scalar code has no streaming stores", {"vector_bits", "streaming_stores"},
                   [](const Point& p) { return p[0] != 0 || p[1] == 0; });
  space.constraint("scalar code reads its table from memory", {"vector_bits", "table"},
                   [](const Point& p) { return p[0] != 0 || p[1] == static_cast<int>(TablePlacement::memory); });
  std::vector<bool> has_rows;
  for (const auto& fit : fits) has_rows.push_back(fit->has_rows);
  space.constraint("a fit without rows has none to permute", {"fit", "table"}, [has_rows](const Point& p) {
    return has_rows[static_cast<std::size_t>(p[0])] || p[1] == static_cast<int>(TablePlacement::memory);
  });
  space.constraint("one thread takes its elements in large blocks", {"block_elements", "threads"},
                   [](const Point& p) { return p[1] != 1 || p[0] >= 1 << 16; });
  return space;
}

Variant variant_at(const Problem& problem, const Fits& fits, const Space& space, const Point& point) {
  const auto value = [&](const char* name) { return static_cast<int>(point[space.index_of(name)]); };
  return {problem,
          fits[static_cast<std::size_t>(value("fit"))],
          {value("threads"), value("vector_bits"), value("unroll"), value("block_elements"), value("streaming_stores") != 0,
           static_cast<TablePlacement>(value("table"))}};
}

std::vector<Variant> choose_variants(const Problem& problem, const Fits& fits, const Space& space, const Points& valid,
                                     std::size_t count, std::uint64_t seed) {
  std::vector<Variant> chosen = {default_variant(problem)};
  const nlohmann::json origin = chosen.front().parameters();
  std::vector<std::pair<std::pair<int, std::uint64_t>, Variant>> others;  // (group, random order)
  for (std::size_t i = 0; i < valid.size(); ++i) {
    Variant variant = variant_at(problem, fits, space, valid[i]);
    const nlohmann::json parameters = variant.parameters();
    // Where the fit leaves no choice of the placement, that is no difference either.
    const bool placed = variant.fit->has_rows;
    const auto differing = std::count_if(parameters.items().begin(), parameters.items().end(), [&](const auto& item) {
      return origin.at(item.key()) != item.value() && (placed || item.key() != "table");
    });
    const int group = differing > 1 ? 2 : variant.fit == chosen.front().fit ? 1 : 0;
    if (differing > 0) others.push_back({{group, next_random(seed)}, std::move(variant)});
  }
  std::sort(others.begin(), others.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& other : others)
    if (chosen.size() < count) chosen.push_back(other.second);
  return chosen;
}

std::string header_path(const FitChoice& fit) { return "fits/" + fit.name + ".h"; }

std::string tuned_header(const std::vector<Variant>& variants, const std::string& origin) {
  std::string text =
      "// GENERATED by outgrad tune. DO NOT EDIT.\n"
      "// " +
      origin +
      "\n"
      "#pragma once\n\n"
      "#include \"kernels/fits.h\"\n"
      "#include \"kernels/formats.h\"\n"
      "#include \"kernels/params.h\"\n";
  for (const Variant& variant : variants)
    if (!variant.fit->header.empty()) text += "#include \"" + header_path(*variant.fit) + "\"\n";
  text +=
      "\nnamespace outgrad::kernels::inline OUTGRAD_ABI::tuned {\n\n"
      "template <class T>\nstruct GeluBackward;\n\n"
      "template <class T>\nstruct GeluForward;\n";
  for (const Variant& variant : variants) {
    const std::string name = variant.problem.kernel == KernelId::kGeluBackward ? "GeluBackward" : "GeluForward";
    text += "\ntemplate <>\nstruct " + name + "<" + type_of(variant.problem.format) + "> {\n  using Fit = generated::" + variant.fit->type +
            ";\n  static constexpr CpuSchedule kSchedule" + variant.schedule_text() + ";\n  static constexpr const char* kVariant = \"" +
            variant.name() + "\";\n};\n";
  }
  return text + "\n}  // namespace outgrad::kernels::inline OUTGRAD_ABI::tuned\n";
}

}  // namespace outgrad::autotune
