// Names and sizes.
#include "autotune/space/problem.h"

#include <algorithm>

#include "kernels/host/bias.h"
#include "kernels/host/layernorm.h"
#include "kernels/stores/code.h"

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
  const auto found = std::find_if(std::begin(kAllFormats), std::end(kAllFormats),
                                  [&](FormatId format) { return name == name_of(format); });
  return found == std::end(kAllFormats) ? std::nullopt : std::optional(*found);
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

std::string Problem::sized_name() const {
  return name() + "." + (over_rows() ? std::to_string(rows) + "x" : "") + std::to_string(cols);
}

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

}  // namespace outgrad::autotune
