// A tuned header for the device that stands in for a GPU: another fit for a few elements than for many, so
// that bits tell which choice ran, and another schedule of a norm, which no bit tells.
#pragma once

#include "kernels/generated/tuned_tables_cuda.h"

namespace outgrad::kernels::inline OUTGRAD_ABI::cuda::tuned {

constexpr DeviceKey kStandIn{"cuda: Stand-in GPU, sm_90, 2 SMs, 1 GiB", "cuda: sm_90", "cuda: sm_9x"};

struct Fast {
  using Fit = generated::GeluBf16Fast;
  static constexpr GpuSchedule kSchedule{.threads = 64, .octets = 1};
};
template <>
struct GeluBackward<BF16> : Fast {
  using Choices = kernels::Choices<Fast, DefaultBackward<BF16>>;
  static constexpr bool kAnyAccuracy = true;
  static constexpr TunedEntry kEntries[] = {{kStandIn, 1, 1000, 0, "few", Evidence::measured},
                                            {kStandIn, 1, 100000, 1, "many", Evidence::measured},
                                            {{}, 0, 0, 1}};
};

struct Shared {
  static constexpr GpuNormSchedule kSchedule{.row_warps = 2, .home = RowHome::shared};
};
template <>
struct LayernormForward<float> : Shared {
  using Choices = kernels::Choices<Shared, DefaultNormForward>;
  static constexpr TunedEntry kEntries[] = {{kStandIn, 8, 512, 0, "shared", Evidence::measured},
                                            {{}, 0, 0, 1}};
};

}  // namespace outgrad::kernels::inline OUTGRAD_ABI::cuda::tuned
