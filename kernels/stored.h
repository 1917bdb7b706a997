// How a kernel sees an array of stored elements: Stored<Y>.
//
// In most formats a code says its value alone. Such an array is seen through the pointer to its codes, so a
// kernel over a view of it is the machine code of a kernel over the pointer. In a block format, such as those
// of the OCP Microscaling Formats specification (MX) 1.0, consecutive elements share a scale: BlockScaled<Y>
// holds both arrays, and an element stands for RN_f32(widen(code) widen(scale)). A block format is a type Y
// without values of its own, whose Format<Y> has, beside the names that formats.h asks for,
//
//   Element  the format of a code
//   Scale    the format of a scale
//   kBlock   elements of one scale, counted from the first of the array: a power of two, at least 16
#pragma once

#include "kernels/formats.h"
#include "kernels/portable.h"

namespace outgrad::kernels {

template <class Y>
concept ScaledInBlocks = requires { Format<Y>::kBlock; };

// The elements from `first` on. No vector of a kernel crosses a block, since a block is whole vectors and
// kernels begin vectors at multiples of their length.
template <class Y>
struct BlockScaled {
  using Element = typename Format<Y>::Element;
  using Scale = typename Format<Y>::Scale;
  static constexpr int kBlock = Format<Y>::kBlock;
  static_assert(kBlock >= 16 && (kBlock & (kBlock - 1)) == 0,
                "a block is whole vectors of every instruction set");

  const Element* codes = nullptr;  // all of the array
  const Scale* scales = nullptr;  // scales_of<Y>(n) of its n elements
  long long first = 0;
};

template <class Y>
struct StoredOf {
  using Type = const Y*;
};
template <ScaledInBlocks Y>
struct StoredOf<Y> {
  using Type = BlockScaled<Y>;
};
template <class Y>
using Stored = typename StoredOf<Y>::Type;

// The format that a view shows, and the type of its codes.
template <class View>
struct FormatOfView;
template <class Y>
struct FormatOfView<const Y*> {
  using Type = Y;
};
template <class Y>
struct FormatOfView<Y*> {
  using Type = Y;
};
template <class Y>
struct FormatOfView<BlockScaled<Y>> {
  using Type = Y;
};
template <class View>
using FormatOf = typename FormatOfView<View>::Type;

template <class Y>
struct CodeOfFormat {
  using Type = Y;
};
template <ScaledInBlocks Y>
struct CodeOfFormat<Y> {
  using Type = typename Format<Y>::Element;
};
template <class Y>
using CodeOf = typename CodeOfFormat<Y>::Type;

}  // namespace outgrad::kernels

namespace outgrad::kernels::inline OUTGRAD_ABI {

// Scales of n elements, the last block a part of one perhaps.
template <ScaledInBlocks Y>
OUTGRAD_HD constexpr i64 scales_of(i64 n) {
  return (n + (Format<Y>::kBlock - 1)) / Format<Y>::kBlock;
}

template <class Y>
OUTGRAD_HD BlockScaled<Y> operator+(const BlockScaled<Y>& view, i64 elements) {
  return {view.codes, view.scales, view.first + elements};
}

// The view of an array from its codes and, of a block format, its scales.
template <class Y>
OUTGRAD_HD Stored<Y> stored(const void* codes, [[maybe_unused]] const void* scales) {
  if constexpr (ScaledInBlocks<Y>) {
    return {static_cast<const CodeOf<Y>*>(codes), static_cast<const typename Format<Y>::Scale*>(scales)};
  } else {
    return static_cast<const Y*>(codes);
  }
}

template <class Y>
OUTGRAD_HD const Y* codes_of(const Y* view) {
  return view;
}
template <class Y>
OUTGRAD_HD const CodeOf<Y>* codes_of(const BlockScaled<Y>& view) {
  return view.codes + view.first;
}

// The scale of the view's first element.
template <class Y>
OUTGRAD_HD float scale_of(const BlockScaled<Y>& view) {
  return widen(view.scales[static_cast<u64>(view.first) / BlockScaled<Y>::kBlock]);
}

// A value of the view's first block from its code, widened.
template <class Y>
OUTGRAD_HD float scaled(const Y*, float value) {
  return value;
}
template <class Y>
OUTGRAD_HD float scaled(const BlockScaled<Y>& view, float value) {
  return mul_rn(value, scale_of(view));
}

// The view's first element.
template <class View>
OUTGRAD_HD float first_value(const View& view) {
  return scaled(view, widen(*codes_of(view)));
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
