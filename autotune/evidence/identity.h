// What makes two records "the same device", in one place, and how near two different devices are.
//
// A device is what decides which variant is fastest on it: of a CPU the model, the threads that the kernels
// may use, the widest vectors of the build and the instruction sets; of a GPU the name, the architecture, the
// multiprocessors and the memory. Driver, toolkit, compiler, clocks and cache sizes are in the records and do
// not split them: what they change shows as heterogeneity between runs (merge.h).
#pragma once

#include <optional>
#include <string>

#include "autotune/records/record.h"
#include "kernels/ladder.h"

namespace outgrad::autotune {

// Three texts, each a line to be printed and compared as it is. Equal texts mean the same device,
// architecture, family.
struct DeviceKey {
  // "cpu: AMD EPYC 9354, 64 threads, 512-bit vectors, avx2 avx512f";
  // "cuda: NVIDIA H200, sm_90, 132 SMs, 140 GiB"
  std::string device;
  std::string architecture;  // "cpu: 512-bit vectors, avx2 avx512f"; "cuda: sm_90"
  std::string family;  // "cpu: 512-bit vectors"; "cuda: sm_9x", a compute capability's major number
  // of `--device sm_XX`, which nothing ran on; its architecture and family are those of the device that is
  // meant
  bool predicted = false;

  bool operator==(const DeviceKey& other) const { return device == other.device; }
  // A name for files and C++ namespaces: [a-z0-9_], begins with a letter, at most 80 characters. Its end is a
  // hash of `device`, so that two devices never share it: "cpu_amd_epyc_9354_32_core_processor_1f0e5a37".
  std::string slug() const;
};

DeviceKey cpu_key(const std::string& model, int threads, int vector_bits, const std::string& isa);
// Memory counts in whole GiB: what a driver keeps for itself differs by megabytes between its versions.
DeviceKey cuda_key(const std::string& name, const std::string& architecture, int sms, long long memory_bytes);
// One line, whatever a file holds: control characters become blanks.
std::string one_line(std::string text);
// Nothing where a record does not say which device it is.
std::optional<DeviceKey> device_key(const DeviceRecord& device);

using kernels::Rung;  // of the ladder that a choice for a device climbs down, nearest first
// How near `other` is. A prediction is never nearer than its architecture.
Rung rung_of(const DeviceKey& device, const DeviceKey& other);

}  // namespace outgrad::autotune
