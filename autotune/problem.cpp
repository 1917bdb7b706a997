// Names, sizes, the table of operands.
#include "autotune/problem.h"

#include <algorithm>
#include <cstdint>

#include "autotune/options.h"
#include "kernels/host/bias.h"
#include "kernels/host/layernorm.h"

namespace outgrad::autotune {
namespace {

using kernels::i64;

constexpr Operand matrix_in(const char* name, Content content) { return {name, content, Element::kFormat, Extent::kElements, Role::kInput}; }
constexpr Operand matrix_out(const char* name, int over, int or_over = kNoOperand) {
  return {name, Content::kResult, Element::kFormat, Extent::kElements, Role::kOutput, {over, or_over}};
}
constexpr Operand columns_in(const char* name, Content content, bool optional) {
  return {name, content, Element::kF32, Extent::kColumns, Role::kInput, {kNoOperand, kNoOperand}, optional};
}
constexpr Operand columns_out(const char* name, bool optional) {
  return {name, Content::kResult, Element::kF32, Extent::kColumns, Role::kOutput, {kNoOperand, kNoOperand}, optional};
}
constexpr Operand scratch(Extent extent) { return {"workspace", Content::kResult, Element::kF32, extent, Role::kScratch}; }

constexpr bool kOptional = true, kRequired = false;
constexpr Operand kX = matrix_in("x", Content::kX), kResidual = matrix_in("residual", Content::kResidual), kDy = matrix_in("dy", Content::kDy),
                  kGeluY = matrix_in("y", Content::kActivation), kNormY = matrix_in("y", Content::kNormed), kDzNext = matrix_in("dz_next", Content::kDzNext),
                  kGamma = columns_in("gamma", Content::kGamma, kOptional), kBeta = columns_in("beta", Content::kBeta, kOptional),
                  kBias = columns_in("bias", Content::kBias, kRequired), kDgamma = columns_out("dgamma", kOptional), kDbeta = columns_out("dbeta", kOptional),
                  kDbias = columns_out("dbias", kRequired), kMaskIn{"mask", Content::kMask, Element::kMaskWord, Extent::kMaskWords, Role::kInput},
                  kMaskOut{"mask", Content::kResult, Element::kMaskWord, Extent::kMaskWords, Role::kOutput},
                  kRstdIn{"rstd", Content::kRstd, Element::kF32, Extent::kRows, Role::kInput},
                  kRstdOut{"rstd", Content::kResult, Element::kF32, Extent::kRows, Role::kOutput}, kNormScratch = scratch(Extent::kNormWorkspace),
                  kBiasScratch = scratch(Extent::kBiasWorkspace);

constexpr Operand kGeluBackward[] = {kDy, kGeluY, kMaskIn, matrix_out("dx", 0)};
constexpr Operand kGeluForward[] = {kX, matrix_out("y", 0), kMaskOut};
constexpr Operand kBiasGeluBackward[] = {kDy, kGeluY, kMaskIn, matrix_out("dx", 0), kDbias, kBiasScratch};
constexpr Operand kBiasGeluForward[] = {kX, kBias, matrix_out("y", 0), kMaskOut};
constexpr Operand kLayernormBackward[] = {kDy, kNormY, kGamma, kBeta, kRstdIn, matrix_out("dx", 0), kDgamma, kDbeta, kNormScratch};
constexpr Operand kLayernormForward[] = {kX, kGamma, kBeta, matrix_out("y", 0), kRstdOut};
constexpr Operand kRmsnormBackward[] = {kDy, kNormY, kGamma, kRstdIn, matrix_out("dx", 0), kDgamma, kNormScratch};
constexpr Operand kRmsnormForward[] = {kX, kGamma, matrix_out("y", 0), kRstdOut};
constexpr Operand kResidualLayernormBackward[] = {kDy, kNormY, kDzNext, kGamma, kBeta, kRstdIn, matrix_out("dz", 0, 2), kDgamma, kDbeta, kNormScratch};
constexpr Operand kResidualLayernormForward[] = {kX, kResidual, kGamma, kBeta, matrix_out("z", 0, 1), matrix_out("y", 0, 1), kRstdOut};
constexpr Operand kResidualRmsnormBackward[] = {kDy, kNormY, kDzNext, kGamma, kRstdIn, matrix_out("dz", 0, 2), kDgamma, kNormScratch};
constexpr Operand kResidualRmsnormForward[] = {kX, kResidual, kGamma, matrix_out("z", 0, 1), matrix_out("y", 0, 1), kRstdOut};
static_assert(std::size(kResidualLayernormBackward) == kMostOperands);

struct Kernel {
  KernelId id;
  const char* name;
  std::span<const Operand> operands;
};
constexpr Kernel kKernels[] = {{KernelId::kGeluBackward, "gelu_backward", kGeluBackward},
                               {KernelId::kGeluForward, "gelu_forward", kGeluForward},
                               {KernelId::kBiasGeluBackward, "bias_gelu_backward", kBiasGeluBackward},
                               {KernelId::kBiasGeluForward, "bias_gelu_forward", kBiasGeluForward},
                               {KernelId::kLayernormBackward, "layernorm_backward", kLayernormBackward},
                               {KernelId::kLayernormForward, "layernorm_forward", kLayernormForward},
                               {KernelId::kRmsnormBackward, "rmsnorm_backward", kRmsnormBackward},
                               {KernelId::kRmsnormForward, "rmsnorm_forward", kRmsnormForward},
                               {KernelId::kResidualLayernormBackward, "residual_layernorm_backward", kResidualLayernormBackward},
                               {KernelId::kResidualLayernormForward, "residual_layernorm_forward", kResidualLayernormForward},
                               {KernelId::kResidualRmsnormBackward, "residual_rmsnorm_backward", kResidualRmsnormBackward},
                               {KernelId::kResidualRmsnormForward, "residual_rmsnorm_forward", kResidualRmsnormForward}};

constexpr const Kernel& kernel_of(KernelId id) { return kKernels[static_cast<std::size_t>(id)]; }
constexpr bool in_order() {
  for (std::size_t i = 0; i < std::size(kKernels); ++i)
    if (static_cast<std::size_t>(kKernels[i].id) != i || kAllKernels[i] != kKernels[i].id) return false;
  return std::size(kKernels) == std::size(kAllKernels);
}
static_assert(in_order());

bool has_content(KernelId kernel, std::initializer_list<Extent> extents) {
  const std::span<const Operand> all = operands(kernel);
  return std::any_of(all.begin(), all.end(), [&](const Operand& o) { return std::find(extents.begin(), extents.end(), o.extent) != extents.end(); });
}

}  // namespace

const char* name_of(KernelId kernel) { return kernel_of(kernel).name; }

const char* name_of(FormatId format) {
  return with_type(format, []<class T>(T) { return kernels::Format<T>::kName; });
}

const char* type_of(FormatId format) {
  return with_type(format, []<class T>(T) { return kernels::Format<T>::kType; });
}

int bytes_of(FormatId format) {
  return with_type(format, []<class T>(T) { return static_cast<int>(sizeof(T)); });
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

std::span<const Operand> operands(KernelId kernel) { return kernel_of(kernel).operands; }

bool is_backward(KernelId kernel) { return operands(kernel).front().content == Content::kDy; }

i64 Operand::count(const Problem& problem) const {
  switch (extent) {
    case Extent::kElements: return problem.elements();
    case Extent::kRows: return problem.rows;
    case Extent::kColumns: return problem.cols;
    case Extent::kMaskWords: return (problem.elements() + 31) / 32;
    case Extent::kNormWorkspace: return kernels::norm_backward_workspace(problem.rows, problem.cols);
    default: return kernels::bias_backward_workspace(problem.rows, problem.cols);
  }
}

std::string Problem::sized_name() const { return name() + "." + (over_rows() ? std::to_string(rows) + "x" : "") + std::to_string(cols); }

double Problem::bytes() const {
  double sum = 0;
  for (const Operand& operand : operands(kernel))
    if (operand.role != Role::kScratch) sum += static_cast<double>(operand.bytes(*this));
  return sum;
}

double Problem::bytes_per_element() const {
  double sum = 0;
  for (const Operand& operand : operands(kernel)) {
    if (operand.extent == Extent::kElements) sum += operand.element_bytes(format);
    if (operand.extent == Extent::kMaskWords) sum += 0.125;
  }
  return sum;
}

bool Problem::over_rows() const { return has_content(kernel, {Extent::kRows, Extent::kColumns}); }

bool Problem::has_fit() const { return has_content(kernel, {Extent::kMaskWords}); }

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
