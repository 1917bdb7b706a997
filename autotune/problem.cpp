// Names and sizes.
#include "autotune/problem.h"

#include <algorithm>
#include <cstdint>

#include "autotune/options.h"
#include "kernels/code.h"
#include "kernels/host/bias.h"
#include "kernels/host/layernorm.h"

namespace outgrad::autotune {

using kernels::i64;

const char* name_of(FormatId format) {
  return with_type(format, []<class T>(T) { return kernels::Format<T>::kName; });
}

const char* type_of(FormatId format) {
  return with_type(format, []<class T>(T) { return kernels::Format<T>::kType; });
}

int bytes_of(FormatId format) {
  return with_type(format, []<class T>(T) { return static_cast<int>(sizeof(T)); });
}

int bytes_of(Element element, FormatId format) {
  switch (element) {
    case Element::kFormat: return bytes_of(format);
    case Element::kByte: return 1;
    default: return 4;
  }
}

std::optional<FormatId> format_named(std::string_view name) {
  const auto found = std::find_if(std::begin(kAllFormats), std::end(kAllFormats), [&](FormatId format) { return name == name_of(format); });
  return found == std::end(kAllFormats) ? std::nullopt : std::optional(*found);
}

std::vector<FormatId> formats_of(const Options& options) {
  std::vector<std::string> words = format_names();
  words.insert(words.begin(), "all");
  const std::vector<std::string> chosen = options.several_of("format", words);
  std::vector<FormatId> formats;
  for (const FormatId format : kAllFormats)
    if (std::find(chosen.begin(), chosen.end(), name_of(format)) != chosen.end()) formats.push_back(format);
  return formats;
}

i64 Problem::count_of(const Operand& operand) const {
  switch (operand.extent) {
    case Extent::kElements: return elements();
    case Extent::kRows: return rows;
    case Extent::kColumns: return cols;
    case Extent::kMaskWords: return (elements() + 31) / 32;
    case Extent::kCodes: return kernels::code_bytes(code_bits, elements());
    case Extent::kNormWorkspace: return kernels::norm_backward_workspace(rows, cols);
    default: return kernels::bias_backward_workspace(rows, cols);
  }
}

Arguments Problem::arguments() const {
  Arguments a{.rows = rows, .cols = cols};
  a.code = {code_bits, code_seed ? &*code_seed : nullptr};
  return a;
}

std::string Problem::sized_name() const { return name() + "." + (over_rows() ? std::to_string(rows) + "x" : "") + std::to_string(cols); }

double Problem::bytes() const {
  double sum = 0;
  for (const Operand& operand : operands(kernel))
    if (operand.role != Role::kScratch) sum += static_cast<double>(array_bytes(operand));
  return sum;
}

double Problem::bytes_per_element() const {
  double sum = 0;
  for (const Operand& operand : operands(kernel)) {
    if (operand.extent == Extent::kElements) sum += element_bytes(operand);
    if (operand.extent == Extent::kMaskWords) sum += 0.125;
    if (operand.extent == Extent::kCodes) sum += code_bits / 8.0;
  }
  return sum;
}

Problem sized_within(const Problem& problem, i64 elements) {
  constexpr i64 kCols = 1024;   // a common hidden size
  constexpr i64 kRows = 16384;  // a batch of 8 sequences of 2048
  if (problem.cols > 0) return problem;
  if (!problem.over_rows()) return problem.sized(1, elements);
  return problem.sized(std::clamp<i64>(elements / kCols, 1, kRows), kCols);
}

std::optional<Problem> problem_named(std::string_view name) {
  for (const KernelId kernel : kAllKernels)
    for (const FormatId format : kAllFormats)
      if (const Problem problem{kernel, format}; problem.name() == name) return problem;
  return std::nullopt;
}

std::vector<Problem> problems_of(const Options& options, std::span<const KernelId> kernels) {
  std::vector<std::string> names = {"all"};
  for (const KernelId k : kernels) names.push_back(name_of(k));
  const std::vector<std::string> chosen = options.several_of("kernel", names);
  const std::vector<FormatId> formats = formats_of(options);
  const auto has = [](const std::vector<std::string>& list, const char* name) { return std::find(list.begin(), list.end(), name) != list.end(); };
  const i64 elements = options.integer("elements", 0, 0, i64{1} << 32);
  const std::vector<Shape> shapes = options.shapes("shape");
  std::vector<Problem> problems;
  bool with_rows = false;
  for (const KernelId k : kernels)
    for (const FormatId f : formats) {
      if (!has(chosen, name_of(k))) continue;
      const Problem problem{k, f};
      if (!problem.over_rows()) {
        problems.push_back(elements > 0 ? problem.sized(1, elements) : problem);
        continue;
      }
      with_rows = true;
      // Without a shape, --elements bounds the default one.
      if (shapes.empty()) problems.push_back(elements > 0 ? sized_within(problem, elements) : problem);
      for (const Shape& shape : shapes) problems.push_back(problem.sized(shape.rows, shape.cols));
    }
  if (!shapes.empty() && !with_rows) throw options.bad("shape", "--kernel " + options.text("kernel", "all") + " has no rows: --elements N is its size");
  return problems;
}

}  // namespace outgrad::autotune
