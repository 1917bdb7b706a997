// A block format (kernels/stored.h) for tests, whose scales are no powers of two: its products are rounded.
#pragma once

#include "kernels/formats.h"
#include "kernels/portable.h"
#include "kernels/stored.h"

namespace outgrad::kernels {
namespace synthetic {

struct BlocksOf16 {};  // e5m2 by fp32

}  // namespace synthetic

template <>
struct Format<synthetic::BlocksOf16> {
  static constexpr const char* kName = "blocks_of_16";
  static constexpr const char* kType = "synthetic::BlocksOf16";
  using Element = F8E5M2;
  using Scale = float;
  static constexpr int kBlock = 16;
};

}  // namespace outgrad::kernels
