// What is tuned: a kernel of the library in one storage format, at one size; and the table of every kernel's operands, from which
// arrays are made, verified and timed.
#pragma once

#include <array>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "autotune/arguments.h"
#include "kernels/formats.h"

namespace outgrad::autotune {

class Options;

enum class KernelId {
  kGeluBackward,
  kGeluForward,
  kBiasGeluBackward,
  kBiasGeluForward,
  kLayernormBackward,
  kLayernormForward,
  kRmsnormBackward,
  kRmsnormForward,
  kResidualLayernormBackward,
  kResidualLayernormForward,
  kResidualRmsnormBackward,
  kResidualRmsnormForward,
};
enum class FormatId { kF32, kF16, kBf16 };  // kernels::ActivationFormats

inline constexpr KernelId kAllKernels[] = {KernelId::kGeluBackward,
                                           KernelId::kGeluForward,
                                           KernelId::kBiasGeluBackward,
                                           KernelId::kBiasGeluForward,
                                           KernelId::kLayernormBackward,
                                           KernelId::kLayernormForward,
                                           KernelId::kRmsnormBackward,
                                           KernelId::kRmsnormForward,
                                           KernelId::kResidualLayernormBackward,
                                           KernelId::kResidualLayernormForward,
                                           KernelId::kResidualRmsnormBackward,
                                           KernelId::kResidualRmsnormForward};
inline constexpr KernelId kGeluKernels[] = {KernelId::kGeluBackward, KernelId::kGeluForward};  // the elementwise ones
inline constexpr FormatId kAllFormats[] = {FormatId::kF32, FormatId::kBf16, FormatId::kF16};

const char* name_of(KernelId kernel);  // "gelu_backward", ...
const char* name_of(FormatId format);  // "f32", ...
const char* type_of(FormatId format);  // "float", "F16", ..., of namespace kernels
int bytes_of(FormatId format);
std::optional<FormatId> format_named(std::string_view name);
inline std::vector<std::string> format_names() { return {std::begin(kernels::ActivationFormats::kNames), std::end(kernels::ActivationFormats::kNames)}; }
// What --format asks for, in the order of kAllFormats.
std::vector<FormatId> formats_of(const Options& options);

// action(T{}) for the format's type T.
template <class Action>
decltype(auto) with_type(FormatId format, Action&& action) {
  switch (format) {
    case FormatId::kF32: return action(float{});
    case FormatId::kF16: return action(kernels::F16{});
    default: return action(kernels::BF16{});
  }
}

struct Problem {
  KernelId kernel = KernelId::kGeluBackward;
  FormatId format = FormatId::kF32;
  kernels::i64 rows = 1, cols = 0;  // of an elementwise kernel 1 and its elements; cols = 0: not sized yet

  std::string name() const { return std::string(name_of(kernel)) + "." + name_of(format); }
  std::string sized_name() const;  // "layernorm_backward.bf16.16384x1024", "gelu_backward.bf16.67108864"
  kernels::i64 elements() const { return rows * cols; }
  Problem sized(kernels::i64 new_rows, kernels::i64 new_cols) const { return {kernel, format, new_rows, new_cols}; }
  // Of one call: each input and each output once, scratch not.
  double bytes() const;
  // The part of it that grows with elements(), per element: dy, y, dx and an eighth of a byte of mask; not vectors of rows and columns.
  double bytes_per_element() const;
  bool over_rows() const;  // the kernel has rows: everything but plain GELU
  bool has_fit() const;    // a fit is a parameter: of GELU's kernels, not of the norms
  bool operator==(const Problem&) const = default;
};

// Of Problem::name(), not sized; nothing of another name.
std::optional<Problem> problem_named(std::string_view name);
enum class Element { kFormat, kF32, kMaskWord };
enum class Extent {
  kElements,
  kRows,
  kColumns,
  kMaskWords,      // a bit an element
  kNormWorkspace,  // of the kernels on the host; a device has a workspace of its own size
  kBiasWorkspace,
};
enum class Role { kInput, kOutput, kScratch };

// What an array holds, hence how it is filled.
enum class Content {
  kX,
  kResidual,
  kActivation,  // y of a GELU
  kNormed,      // y of a norm
  kDy,
  kDzNext,
  kMask,
  kGamma,  // has a finite reciprocal
  kBeta,
  kBias,
  kRstd,
  kResult,  // written: nothing to fill
};

inline constexpr int kNoOperand = -1;

struct Operand {
  const char* name;
  Content content;
  Element element;
  Extent extent;
  Role role;
  // Indices of the inputs that an output may equal.
  std::array<int, 2> may_alias = {kNoOperand, kNoOperand};
  bool optional = false;  // may be null

  kernels::i64 count(const Problem& problem) const;  // elements of the array
  int element_bytes(FormatId format) const { return element == Element::kFormat ? bytes_of(format) : 4; }
  std::size_t bytes(const Problem& problem) const { return static_cast<std::size_t>(count(problem)) * static_cast<std::size_t>(element_bytes(problem.format)); }
};

// In the order of Arguments::array.
std::span<const Operand> operands(KernelId kernel);
bool is_backward(KernelId kernel);

// The problem at its own size, else at the default one: `elements` of an elementwise kernel; rows of 1024 columns, at most 16384 and at least one,
// within `elements`.
Problem sized_within(const Problem& problem, kernels::i64 elements);

// What --kernel, --format, --shape and --elements ask for, of `kernels`: one problem for each shape. `all` is the first word of each choice,
// hence the default. Throws SpecError, also for a shape that no chosen kernel has.
std::vector<Problem> problems_of(const Options& options, std::span<const KernelId> kernels = kAllKernels);

}  // namespace outgrad::autotune
