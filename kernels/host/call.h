// One way to call every kernel of the catalogue on the host: its arrays in a row, in the order of its
// operands. The C library and the tuner call them so.
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

#include "kernels/kernels.h"
#include "kernels/layernorm.h"
#include "kernels/stored.h"

namespace outgrad::kernels {

// The bits of a code for f'(x), and the seed of a dithered one (null: exact codes); code_bits_hold(bits, seed
// != nullptr) of kernels/stores/code.h.
struct CodeChoice {
  int bits;
  const u64* seed;
};

struct Arguments {
  void* array[kMostOperands] = {};  // null for an optional one that is absent
  i64 rows = 1, cols = 0;  // an elementwise kernel has one row
  float eps = 1e-5f;  // of a norm's forward: the frameworks' default
  SideBuffer<float> side{};  // of a norm; a backward only reads it
  const void* scales = nullptr;  // of a GELU's y in a block format (kernels/stored.h)
  CodeChoice code{4, nullptr};  // of a kernel of codes

  // Inlined, for the copies of units with different flags would be one function.
  OUTGRAD_HD i64 elements() const { return rows * cols; }
  template <class T>
  OUTGRAD_HD T* at(int operand) const {
    return operand == kNoOperand ? nullptr : static_cast<T*>(array[operand]);
  }
};

}  // namespace outgrad::kernels

namespace outgrad::kernels::inline OUTGRAD_ABI {

// Of the kernel's own header, bias.h or layernorm.h: others need not be included.
i64 bias_backward_workspace(i64 rows, i64 n);
i64 norm_backward_workspace(i64 rows, i64 n);
template <class T>
struct NormForward;
template <class T>
struct NormBackward;

namespace detail {

// An array as the kernel's function takes it.
template <KernelId K, int kPlace, class T, class Y>
auto argument(const Arguments& a) {
  constexpr Operand kOperand = operands(K)[kPlace];
  if constexpr (kOperand.extent == Extent::kBiasWorkspace) {
    return std::span<float>(a.at<float>(kPlace),
                            static_cast<std::size_t>(bias_backward_workspace(a.rows, a.cols)));
  } else if constexpr (kOperand.content == Content::kActivation) {
    return stored<Y>(a.array[kPlace], a.scales);
  } else {
    using Word = std::conditional_t<kOperand.element == Element::kByte, u8, u32>;
    using Value = std::conditional_t<kOperand.element == Element::kFormat, T,
                                     std::conditional_t<kOperand.element == Element::kF32, float, Word>>;
    return a.at<std::conditional_t<kOperand.role == Role::kInput, const Value, Value>>(kPlace);
  }
}

// An operand's name as a template's argument.
template <std::size_t kSize>
struct Name {
  char text[kSize]{};
  constexpr Name(const char (&from)[kSize]) {
    for (std::size_t k = 0; k < kSize; ++k) text[k] = from[k];
  }
};

// The array of that name, or null if the kernel has none.
template <KernelId K, class T, Name kName>
T* named(const Arguments& a) {
  constexpr int kPlace = place_of(K, kName.text);
  return a.at<T>(kPlace);
}

}  // namespace detail

// The arrays of a norm by their names.
template <KernelId K, class T>
auto norm_arrays(const Arguments& a) {
  if constexpr (is_backward(K)) {
    return NormBackward<T>{
        .dy = detail::named<K, const T, "dy">(a),
        .y = detail::named<K, const T, "y">(a),
        .dz_next = detail::named<K, const T, "dz_next">(a),
        .gamma = detail::named<K, const float, "gamma">(a),
        .beta = detail::named<K, const float, "beta">(a),
        .rstd = detail::named<K, const float, "rstd">(a),
        .rows = a.rows,
        .n = a.cols,
        .dx = has_content(K, Content::kDzNext) ? detail::named<K, T, "dz">(a) : detail::named<K, T, "dx">(a),
        .dgamma = detail::named<K, float, "dgamma">(a),
        .dbeta = detail::named<K, float, "dbeta">(a),
        .side = {a.side.channels, a.side.count, a.side.x_hat},
        .workspace = {detail::named<K, float, "workspace">(a),
                      static_cast<std::size_t>(norm_backward_workspace(a.rows, a.cols))}};
  } else {
    return NormForward<T>{.x = detail::named<K, const T, "x">(a),
                          .residual = detail::named<K, const T, "residual">(a),
                          .gamma = detail::named<K, const float, "gamma">(a),
                          .beta = detail::named<K, const float, "beta">(a),
                          .rows = a.rows,
                          .n = a.cols,
                          .eps = a.eps,
                          .z = detail::named<K, T, "z">(a),
                          .y = detail::named<K, T, "y">(a),
                          .rstd = detail::named<K, float, "rstd">(a),
                          .side = a.side};
  }
}

// function(inputs, shape, outputs, scratch); the number of elements of an elementwise kernel stands last, and
// the choice of codes first. A norm's function takes its arrays in a struct. Y: the format of a stored y of
// GELU, where it is not T.
template <KernelId K, class T, class Y = T, class Function>
void call(const Arguments& a, const Function& function) {
  constexpr int kInputs = count_of(K, Role::kInput), kOutputs = count_of(K, Role::kOutput),
                kScratch = count_of(K, Role::kScratch);
  [&]<int... kIn, int... kOut, int... kMore>(std::integer_sequence<int, kIn...>,
                                             std::integer_sequence<int, kOut...>,
                                             std::integer_sequence<int, kMore...>) {
    if constexpr (is_norm(K)) {
      function(norm_arrays<K, T>(a));
    } else if constexpr (has_codes(K)) {
      function(a.code, detail::argument<K, kIn, T, Y>(a)..., detail::argument<K, kInputs + kOut, T, Y>(a)...,
               a.elements());
    } else if constexpr (!over_rows(K)) {
      function(detail::argument<K, kIn, T, Y>(a)..., detail::argument<K, kInputs + kOut, T, Y>(a)...,
               a.elements());
    } else {
      function(detail::argument<K, kIn, T, Y>(a)..., a.rows, a.cols,
               detail::argument<K, kInputs + kOut, T, Y>(a)...,
               detail::argument<K, kInputs + kOutputs + kMore, T, Y>(a)...);
    }
  }(std::make_integer_sequence<int, kInputs>{}, std::make_integer_sequence<int, kOutputs>{},
    std::make_integer_sequence<int, kScratch>{});
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
