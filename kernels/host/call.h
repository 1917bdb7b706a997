// One way to call every kernel of the catalogue on the host: its arrays in a row, in the order of its
// operands. The C library and the tuner call them so.
#pragma once

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
    return static_cast<T*>(array[operand]);
  }
};

}  // namespace outgrad::kernels

namespace outgrad::kernels::inline OUTGRAD_ABI {

// Of the kernel's own header, bias.h or layernorm.h: others need not be included.
i64 bias_backward_workspace(i64 rows, i64 n);
i64 norm_backward_workspace(i64 rows, i64 n);

namespace detail {

// An array as the kernel's function takes it.
template <KernelId K, int kPlace, class T, class Y>
auto argument(const Arguments& a) {
  constexpr Operand kOperand = operands(K)[kPlace];
  if constexpr (kOperand.extent == Extent::kNormWorkspace) {
    return std::span<float>(a.at<float>(kPlace),
                            static_cast<std::size_t>(norm_backward_workspace(a.rows, a.cols)));
  } else if constexpr (kOperand.extent == Extent::kBiasWorkspace) {
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

}  // namespace detail

// function(inputs, shape, outputs, scratch), with eps after the shape of a norm's forward and the side
// channels after a norm's outputs; the number of elements of an elementwise kernel stands last, and the
// choice of codes first. Y: the format of a stored y of GELU, where it is not T.
template <KernelId K, class T, class Y = T, class Function>
void call(const Arguments& a, const Function& function) {
  constexpr int kInputs = count_of(K, Role::kInput), kOutputs = count_of(K, Role::kOutput),
                kScratch = count_of(K, Role::kScratch);
  [&]<int... kIn, int... kOut, int... kMore>(std::integer_sequence<int, kIn...>,
                                             std::integer_sequence<int, kOut...>,
                                             std::integer_sequence<int, kMore...>) {
    const auto with = [&](auto... shape) {
      return [&, shape...](auto... side) {
        function(detail::argument<K, kIn, T, Y>(a)..., shape...,
                 detail::argument<K, kInputs + kOut, T, Y>(a)..., side...,
                 detail::argument<K, kInputs + kOutputs + kMore, T, Y>(a)...);
      };
    };
    if constexpr (has_codes(K)) {
      function(a.code, detail::argument<K, kIn, T, Y>(a)..., detail::argument<K, kInputs + kOut, T, Y>(a)...,
               a.elements());
    } else if constexpr (!over_rows(K)) {
      with()(a.elements());
    } else if constexpr (!is_norm(K)) {
      with(a.rows, a.cols)();
    } else if constexpr (!is_backward(K)) {
      with(a.rows, a.cols, a.eps)(a.side);
    } else {
      with(a.rows, a.cols)(SideBuffer<const float>{a.side.channels, a.side.count, a.side.x_hat});
    }
  }(std::make_integer_sequence<int, kInputs>{}, std::make_integer_sequence<int, kOutputs>{},
    std::make_integer_sequence<int, kScratch>{});
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
