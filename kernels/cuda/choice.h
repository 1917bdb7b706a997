// Chooses from a tuned header's tables for a device, by its description and the problem's size. These are
// plain functions of values, for launchers of either kind. The header is the one that
// OUTGRAD_TUNED_CUDA_HEADER names, or the default header. NVRTC sees only the tables.
#pragma once

#ifdef OUTGRAD_TUNED_CUDA_HEADER
#include OUTGRAD_TUNED_CUDA_HEADER
#else
#include "kernels/generated/tuned_default_cuda.h"
#endif

#ifndef __CUDACC_RTC__

#include "kernels/accuracy.h"
#include "kernels/host/text.h"
#include "kernels/ladder.h"
#include "kernels/params.h"
#include "kernels/portable.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

constexpr bool runs_here(const GpuSchedule&) { return true; }
constexpr bool runs_here(const GpuNormSchedule&) { return true; }

namespace cuda {

// The texts of a DeviceKey: "cuda: NVIDIA H200, sm_90, 132 SMs, 140 GiB", "cuda: sm_90", "cuda: sm_9x", the
// same as those of autotune/evidence/identity.h.
struct GpuKey {
  TextLine device, architecture, family;

  DeviceKey key() const { return {device.text(), architecture.text(), family.text()}; }
};

inline GpuKey key_of(const char* name, int major, int minor, int sms, u64 memory_bytes) {
  GpuKey key;
  TextLine architecture;
  architecture << "sm_" << static_cast<long long>(major) << static_cast<long long>(minor);
  // rounded to nearest: how much a driver keeps for itself varies
  const u64 gib = (memory_bytes >> 30) + (memory_bytes >> 29 & 1);
  key.device << "cuda: " << name << ", " << architecture.text() << ", " << static_cast<long long>(sms)
             << " SMs, " << static_cast<long long>(gib) << " GiB";
  key.architecture << "cuda: " << architecture.text();
  key.family << "cuda: sm_" << static_cast<long long>(major) << "x";
  return key;
}

namespace tuned {

// Whether the table has a real choice, so that the device matters.
template <class Table>
inline constexpr bool kChooses = sizeof Table::kEntries > sizeof(TunedEntry);

template <class Table>
Found find(const DeviceKey& device, i64 rows, i64 cols) {
  static_assert(table_holds<Table>(),
                "a table ends with the default's choice and has an entry of it for every device and size");
  static_assert(table_is_as_accurate<Table>(),
                "a fit's kA + kB, kT or kR is larger than the default's: tune again, or with --accuracy any");
  if constexpr (kChooses<Table>) {
    return look_up(Table::kEntries, device, rows, cols, [](const TunedEntry&) { return true; });
  } else {
    return {};
  }
}

}  // namespace tuned
}  // namespace cuda
}  // namespace outgrad::kernels::inline OUTGRAD_ABI
#endif
