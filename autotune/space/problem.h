// What is tuned: a kernel of the catalogue (kernels/kernels.h) in one storage format, at one size. Its arrays
// are made, verified and timed by the catalogue's operands.
#pragma once

#include <array>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "autotune/space/arguments.h"
#include "kernels/formats.h"
#include "kernels/kernels.h"

namespace outgrad::autotune {

using kernels::Content;
using kernels::Element;
using kernels::Extent;
using kernels::is_backward;
using kernels::kNoOperand;
using kernels::name_of;  // "gelu_backward", ...
using kernels::Operand;
using kernels::operands;  // in the order of Arguments::array
using kernels::Role;

enum class FormatId { kF32, kF16, kBf16 };  // kernels::ActivationFormats; the C interface's numbers

inline constexpr auto kAllKernels = [] {
  std::array<KernelId, kernels::kKernels> all{};
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<KernelId>(i);
  return all;
}();
inline constexpr FormatId kAllFormats[] = {FormatId::kF32, FormatId::kBf16, FormatId::kF16};

const char* name_of(FormatId format);  // "f32", ...
const char* type_of(FormatId format);  // "float", "F16", ..., of namespace kernels
int bytes_of(FormatId format);
std::optional<FormatId> format_named(std::string_view name);
inline std::vector<std::string> format_names() {
  return {std::begin(kernels::ActivationFormats::kNames), std::end(kernels::ActivationFormats::kNames)};
}

// action(T{}) for the format's type T.
template <class Action>
decltype(auto) with_type(FormatId format, Action&& action) {
  switch (format) {
    case FormatId::kF32: return action(float{});
    case FormatId::kF16: return action(kernels::F16{});
    default: return action(kernels::BF16{});
  }
}

int bytes_of(Element element, FormatId format);  // of one element of an array

struct Problem {
  KernelId kernel = KernelId::kGeluBackward;
  FormatId format = FormatId::kF32;
  kernels::i64 rows = 1, cols = 0;  // of an elementwise kernel 1 and its elements; cols = 0: not sized yet
  // These two are for kernels of codes. Exact codes of 4 bits are timed, and the schedule that wins serves
  // all codes; the verifier tries them all.
  int code_bits = Arguments{}.code.bits;
  std::optional<kernels::u64> code_seed{};

  std::string name() const { return std::string(name_of(kernel)) + "." + name_of(format); }
  std::string sized_name() const;  // "layernorm_backward.bf16.16384x1024", "gelu_backward.bf16.67108864"
  kernels::i64 elements() const { return rows * cols; }
  Problem sized(kernels::i64 new_rows, kernels::i64 new_cols) const {
    return {kernel, format, new_rows, new_cols, code_bits, code_seed};
  }
  // A call without its arrays. It points into this problem.
  Arguments arguments() const;
  // What one call touches: each input and each output once, and no scratch.
  double bytes() const;
  // The part of it that grows with elements(), per element: dy, y, dx and an eighth of a byte of mask, or
  // half a byte of codes; not vectors of rows and columns.
  double bytes_per_element() const;
  // the kernel has rows: everything but plain GELU
  bool over_rows() const { return kernels::over_rows(kernel); }
  // a fit is a parameter: of GELU's kernels with a mask
  bool has_fit() const { return kernels::has_fit(kernel); }
  // An array's elements, the bytes of one, and the bytes of all.
  kernels::i64 count_of(const Operand& operand) const;
  int element_bytes(const Operand& operand) const { return bytes_of(operand.element, format); }
  std::size_t array_bytes(const Operand& operand) const {
    return static_cast<std::size_t>(count_of(operand)) * static_cast<std::size_t>(element_bytes(operand));
  }
  bool operator==(const Problem&) const = default;
};

// The problem of that Problem::name(), not sized; nothing for another name.
std::optional<Problem> problem_named(std::string_view name);
// The problem at its own size, else at the default one: `elements` of an elementwise kernel; rows of 1024
// columns, at most 16384 and at least one, within `elements`.
Problem sized_within(const Problem& problem, kernels::i64 elements);

}  // namespace outgrad::autotune
