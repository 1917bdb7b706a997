// Names, sources and the declared space of the CPU kernels.
#include "autotune/space/variant.h"

#include <algorithm>
#include <string_view>
#include <type_traits>

#include "autotune/space/reference.h"
#include "autotune/space/schedule.h"
#include "kernels/fits.h"
#include "kernels/formats.h"
// The committed default whatever -DOUTGRAD_TUNED says: gains are measured against the same thing everywhere.
// Constants only are taken from it, so that it can stand beside another tuned header in one program.
#include "kernels/generated/tuned_default.h"
#include "kernels/host/errors.h"
#include "kernels/host/functions.h"
#include "kernels/host/layernorm.h"
#include "kernels/support/digest.h"

namespace outgrad::autotune {
namespace {

namespace generated = kernels::generated;
using kernels::CpuNormBackwardSchedule;
using kernels::CpuNormForwardSchedule;
using kernels::CpuSchedule;
using kernels::Prefetch;
using kernels::TablePlacement;

template <KernelId K, class T>
Fits fits_for() {
  Fits choices;
  if constexpr (kernels::has_fit(K) && is_backward(K)) {
    kernels::for_each_fit([&](auto fit) {
      using Fit = decltype(fit);
      // The list is of every activation and format; the kernel is GELU's.
      if constexpr (std::string_view(Fit::kFormat) == kernels::Format<T>::kName &&
                    std::string_view(Fit::kActivation) == "gelu") {
        FitChoice choice = backward_choice<Fit, T>();
        choice.reference = &kernels::run<K, Fit, T, kReferenceSchedule>;
        const bool is_default = std::is_same_v<Fit, typename kernels::DefaultFit<T>::Type>;
        choices.insert(is_default ? choices.begin() : choices.end(),
                       std::make_shared<const FitChoice>(std::move(choice)));
      }
    });
  } else if constexpr (kernels::has_fit(K)) {
    using Fit = typename kernels::ForwardFit<T>::Type;
    choices.push_back(std::make_shared<const FitChoice>(
        FitChoice{.type = type_name(Fit::kName),
                  .name = Fit::kName,
                  .has_rows = true,
                  .reference = &kernels::run<K, Fit, T, kReferenceSchedule>}));
  }
  return choices;
}

// Not so is a field that changes nothing. Bias + GELU's backward shares out its rows by slots, not by blocks
// of elements. Of the kernels of codes f32's forward alone evaluates polynomials; the others have no rows to
// pick, and nothing to interleave.
bool is_parameter(const Problem& problem, std::string_view field) {
  if (problem.kernel == KernelId::kBiasGeluBackward) return field != "block_elements";
  const bool evaluates = !kernels::has_codes(problem.kernel) ||
                         (!is_backward(problem.kernel) && problem.format == FormatId::kF32);
  return evaluates || (field != "unroll" && field != "table");
}

}  // namespace

const Fits& fits_of(const Problem& problem) {
  return with_type(problem.format, [&]<class T>(T) -> const Fits& {
    return kernels::with_kernel(problem.kernel, [](auto kernel) -> const Fits& {
      static const Fits kFits = fits_for<kernel(), T>();
      return kFits;
    });
  });
}

std::optional<std::string> why_too_coarse(const Problem& problem, const kernels::FitBounds& bounds,
                                          Accuracy accuracy) {
  if (accuracy == Accuracy::kAny) return std::nullopt;
  return why_less_accurate(bounds, fits_of(problem).front()->bounds);
}

FitRecord fit_record(const Problem& problem, const FitChoice& fit) {
  FitRecord record = fit_record(fit.name, fit.accuracy, fit.bounds);
  record.as_accurate = !why_too_coarse(problem, fit.bounds, Accuracy::kAsDefault);
  if (!fit.header.empty()) record.sha256 = kernels::sha256(fit.header);
  return record;
}

Fits fits_within(const Problem& problem, Accuracy accuracy) {
  Fits fits = fits_of(problem);
  std::erase_if(fits,
                [&](const auto& fit) { return why_too_coarse(problem, fit->bounds, accuracy).has_value(); });
  return fits;
}

std::string Variant::name() const {
  std::string text = autotune::name_of(problem.format);
  if (fit) text += "." + fit->name;
  std::visit(
      [&](const auto& s) {
        text += s.vector_bits == 0 ? ".s" : ".v" + std::to_string(s.vector_bits);
        const std::string stores = s.streaming_stores ? ".nt" : ".wb";
        if constexpr (requires { s.unroll; }) {
          const auto add = [&](const char* field, const std::string& value) {
            text += is_parameter(problem, field) ? "." + value : "";
          };
          add("unroll", "u" + std::to_string(s.unroll));
          add("block_elements", "b" + std::to_string(s.block_elements));
          text += stores;
          add("table", name_of_value(s.table));
        } else {
          text += ".x" + std::to_string(s.vectors) + ".r" + std::to_string(s.rows);
          if constexpr (requires { s.task_elements; })
            text += ".b" + std::to_string(s.task_elements);
          else
            text += ".k" + std::to_string(s.tasks) + ".f" + std::to_string(s.fold_columns);
          text += stores + ".l" + std::to_string(static_cast<int>(s.prefetch));
          if (s.prefetch != Prefetch::none) text += "a" + std::to_string(s.rows_ahead);
        }
        text += ".t" + std::to_string(s.threads);
      },
      schedule);
  return text;
}

std::string Variant::loop_name() const {
  Variant loop = *this;
  std::visit(
      [](auto& s) {
        each_field(s, [](std::string_view name, auto& field) {
          for (const std::string_view cut :
               {"threads", "block_elements", "task_elements", "tasks", "fold_columns", "rows_ahead"})
            if (name == cut) field = {};
        });
      },
      loop.schedule);
  return loop.name();
}

std::string Variant::schedule_text() const {
  return std::visit([](const auto& s) { return type_name_of(s) + initialiser(s); }, schedule);
}

std::string Variant::body() const {
  const std::string kernel = autotune::name_of(problem.kernel), type = type_of(problem.format);
  return "using namespace outgrad::kernels; call<KernelId::k" + type_name(kernel) + ", " + type +
         ">(a, [](auto... x) { " + kernel + "<" + (fit ? "generated::" + fit->type + ", " : "") + type +
         ", " + schedule_text() + ">(x...); });";
}

nlohmann::json Variant::parameters() const {
  nlohmann::json parameters = nlohmann::json::object();
  if (fit) parameters["fit"] = fit->type;
  std::visit(
      [&](const auto& s) {
        each_field(s, [&](const char* name, const auto& field) {
          if (is_parameter(problem, name)) parameters[name] = parameter_of(field);
        });
      },
      schedule);
  return parameters;
}

int Variant::block_elements() const {
  return std::visit(
      [](const auto& s) {
        if constexpr (requires { s.block_elements; })
          return s.block_elements;
        else if constexpr (requires { s.task_elements; })
          return s.task_elements;
        else
          return 0;  // a backward's rows are shared by their number
      },
      schedule);
}

std::shared_ptr<const FitChoice> fit_among(const Fits& fits, const nlohmann::json& parameters) {
  const auto type = parameters.at("fit").get<std::string>();
  const auto fit =
      std::find_if(fits.begin(), fits.end(), [&](const auto& choice) { return choice->type == type; });
  if (fit == fits.end()) throw kernels::SpecError("unknown fit '" + type + "'");
  return *fit;
}

Variant default_variant(const Problem& problem) {
  return with_type(problem.format, [&](auto value) {
    using T = decltype(value);
    constexpr CpuSchedule kBackward = kernels::tuned::DefaultBackward<T>::kSchedule,
                          kForward = kernels::tuned::DefaultForward<T>::kSchedule;
    constexpr CpuNormBackwardSchedule kNormBackward = kernels::tuned::DefaultNormBackward::kSchedule;
    constexpr CpuNormForwardSchedule kNormForward = kernels::tuned::DefaultNormForward::kSchedule;
    const bool backward = is_backward(problem.kernel);
    if (kernels::has_codes(problem.kernel))
      return Variant{problem, nullptr, kernels::tuned::DefaultCode::kSchedule};
    if (problem.has_fit()) return Variant{problem, fits_of(problem).front(), backward ? kBackward : kForward};
    // By the name that it has in the space, where scalar code has no streaming stores.
    const auto named = [&](auto schedule) {
      schedule.streaming_stores = schedule.streaming_stores && schedule.vector_bits != 0;
      return Variant{problem, nullptr, schedule};
    };
    return backward ? named(kNormBackward) : named(kNormForward);
  });
}

namespace {

using Values = std::vector<std::int64_t>;

// Vectors as wide as the build reaches, scalars where it has none.
Values widths_up_to(int vector_bits) {
  Values widths;
  for (const int width : {256, 512})
    if (width <= vector_bits) widths.push_back(width);
  return widths.empty() ? Values{0} : widths;
}

// One thread can win where one core already saturates the memory; with a single core it is the same as all.
Values thread_counts(int threads) { return threads > 1 ? Values{0, 1} : Values{0}; }

// The values without those that `cut` maps to what it maps `kept` to, or an earlier value.
template <class Cut>
Values distinct(const Values& values, std::int64_t kept, const Cut& cut) {
  std::vector<std::int64_t> seen = {cut(kept)};
  Values result;
  for (const std::int64_t value : values) {
    const std::int64_t image = cut(value);
    const bool known = std::find(seen.begin(), seen.end(), image) != seen.end();
    if (value == kept || !known) result.push_back(value);
    if (!known) seen.push_back(image);
  }
  return result;
}

// The space of kernels with a CpuSchedule, which are GELU's and those of codes.
Space gelu_space(const Problem& problem, const Fits& fits, int vector_bits, int threads) {
  const auto has = [&](std::string_view field) { return is_parameter(problem, field); };
  Values fit_numbers;
  for (std::size_t i = 0; i < fits.size(); ++i) fit_numbers.push_back(static_cast<std::int64_t>(i));
  Values blocks;
  for (const std::int64_t kibi : {1,  2,  3,  4,  5,  6,  7,  8,  10,  12,  14,  16,  20, 24,
                                  28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 256})
    blocks.push_back(kibi << 10);
  Space space;
  if (problem.has_fit()) space.nominal_parameter("fit", fit_numbers);
  space.parameter("vector_bits", widths_up_to(vector_bits));
  if (has("unroll")) space.parameter("unroll", {1, 2, 3, 4, 5, 6, 7, 8});
  if (has("block_elements")) space.parameter("block_elements", blocks);
  space.parameter("streaming_stores", {0, 1});
  if (has("table"))
    space.parameter("table",
                    {static_cast<int>(TablePlacement::permute), static_cast<int>(TablePlacement::memory)});
  space.parameter("threads", thread_counts(threads));
  space.constraint("scalar code has no streaming stores", {"vector_bits", "streaming_stores"},
                   [](const Point& p) { return p[0] != 0 || p[1] == 0; });
  if (has("unroll"))
    space.constraint("scalar code has no vectors to interleave", {"vector_bits", "unroll"},
                     [](const Point& p) { return p[0] != 0 || p[1] == 1; });
  if (has("table"))
    space.constraint("scalar code reads its table from memory", {"vector_bits", "table"}, [](const Point& p) {
      return p[0] != 0 || p[1] == static_cast<int>(TablePlacement::memory);
    });
  std::vector<bool> has_rows;
  for (const auto& fit : fits) has_rows.push_back(fit->has_rows);
  if (problem.has_fit())
    space.constraint("a fit without rows has none to permute", {"fit", "table"}, [has_rows](const Point& p) {
      return has_rows[static_cast<std::size_t>(p[0])] || p[1] == static_cast<int>(TablePlacement::memory);
    });
  if (has("block_elements"))
    space.constraint("one thread uses large blocks only", {"block_elements", "threads"},
                     [](const Point& p) { return p[1] != 1 || p[0] >= 1 << 16; });
  return space;
}

Space norm_space(const Problem& problem, int vector_bits, int threads) {
  using kernels::i64;
  const bool backward = is_backward(problem.kernel), sized = problem.cols > 0;
  Values elements, tasks = {4, 8, 16, 32, 64, 128}, columns = {128, 256, 512, 1024, 2048, 4096};
  for (const std::int64_t kibi : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256})
    elements.push_back(kibi << 10);
  static constexpr CpuNormForwardSchedule kForward;
  static constexpr CpuNormBackwardSchedule kBackward;
  if (sized) {
    elements = distinct(elements, kForward.task_elements, [&](i64 value) {
      return std::clamp<i64>(value / problem.cols, 1, std::max<i64>(problem.rows, 1));
    });
    const i64 slots = kernels::slot_count(problem.rows, problem.cols);
    tasks = distinct(tasks, kBackward.tasks, [&](i64 value) { return std::min(value, slots); });
    columns = distinct(columns, kBackward.fold_columns,
                       [&](i64 value) { return (problem.cols + value - 1) / value == 1 ? 0 : value; });
  }
  Space space;
  space.parameter("vector_bits", widths_up_to(vector_bits))
      .parameter("vectors", {1, 2, 3, 4, 5, 6, 8})
      .parameter("rows", {1, 2, 4});
  if (backward)
    space.parameter("tasks", tasks).parameter("fold_columns", columns);
  else
    space.parameter("task_elements", elements);
  space.parameter("streaming_stores", {0, 1})
      .parameter("prefetch", {static_cast<int>(Prefetch::none), static_cast<int>(Prefetch::first_level),
                              static_cast<int>(Prefetch::second_level)})
      .parameter("rows_ahead", {1, 2})
      .parameter("threads", thread_counts(threads));
  // Scalar code has none of what follows: the default's values stand.
  const int plain = backward ? kBackward.vectors : kForward.vectors;
  const int together = backward ? kBackward.rows : kForward.rows;
  const auto fetch = static_cast<std::int64_t>(backward ? kBackward.prefetch : kForward.prefetch);
  space.constraint("scalar code has no vectors side by side", {"vector_bits", "vectors"},
                   [plain](const Point& p) { return p[0] != 0 || p[1] == plain; });
  space.constraint("scalar code takes the default's rows together", {"vector_bits", "rows"},
                   [together](const Point& p) { return p[0] != 0 || p[1] == together; });
  space.constraint("scalar code has no streaming stores", {"vector_bits", "streaming_stores"},
                   [](const Point& p) { return p[0] != 0 || p[1] == 0; });
  space.constraint("scalar code does not prefetch", {"vector_bits", "prefetch", "rows_ahead"},
                   [fetch](const Point& p) { return p[0] != 0 || (p[1] == fetch && p[2] == 1); });
  space.constraint("what is not fetched is not fetched ahead", {"prefetch", "rows_ahead"},
                   [](const Point& p) { return p[0] != static_cast<int>(Prefetch::none) || p[1] == 1; });
  if (backward)
    space.constraint("one thread has nobody to share tasks with", {"tasks", "fold_columns", "threads"},
                     [](const Point& p) {
                       return p[2] != 1 || (p[0] == kBackward.tasks && p[1] == kBackward.fold_columns);
                     });
  else
    space.constraint("one thread uses large tasks only", {"task_elements", "threads"},
                     [](const Point& p) { return p[1] != 1 || p[0] >= kForward.task_elements; });
  return space;
}

}  // namespace

Space cpu_space(const Problem& problem, const Fits& fits, int vector_bits, int threads) {
  return kernels::is_norm(problem.kernel) ? norm_space(problem, vector_bits, threads)
                                          : gelu_space(problem, fits, vector_bits, threads);
}

Variant variant_at(const Problem& problem, const Fits& fits, const Space& space, const Point& point) {
  Variant variant = default_variant(problem);
  if (problem.has_fit()) variant.fit = fits[static_cast<std::size_t>(point[space.index_of("fit")])];
  std::visit(
      [&](auto& s) {
        each_field(s, [&](const char* name, auto& field) {
          if (is_parameter(problem, name))
            field = static_cast<std::remove_reference_t<decltype(field)>>(point[space.index_of(name)]);
        });
      },
      variant.schedule);
  return variant;
}

std::string header_path(const FitChoice& fit) { return "fits/" + fit.name + ".h"; }

}  // namespace outgrad::autotune
