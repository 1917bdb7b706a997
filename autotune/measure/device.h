// Who this machine is, what memory it has free, what time it is there.
#pragma once

#include <cctype>
#include <string>

#include "autotune/records/record.h"

namespace outgrad::autotune {

struct CpuIdentity {
  std::string model;  // "AMD EPYC 9354 32-Core Processor"
  int threads = 1;    // that this process may use
  int sockets_seen = 1;
  long long l1d_bytes = 0;  // per core; 0 where the system does not say
  long long l2_bytes = 0;
  long long l3_bytes = 0;
  int vector_bits = 0;  // widest vectors that this build of the kernels uses: 0, 256 or 512
  std::string isa;      // of those the kernels care about: "avx2 fma avx512f avx512bf16"
};
CpuIdentity identify_cpu();
DeviceRecord device_record(const CpuIdentity& cpu);

// All that a compiler's -march=native may go by, as a text: another one on another kind of processor.
std::string processor_text();

std::string utc_now();  // "2026-11-21T17:00:00Z"

// Physical memory that is free for use now, in bytes.
long long available_memory_bytes();

// "nvidia_h200" for "NVIDIA H200", of so many characters at most.
inline std::string slug_of(const std::string& name, std::size_t most = std::string::npos) {
  std::string slug;
  for (const char c : name) {
    if (slug.size() == most) break;
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      slug += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    else if (!slug.empty() && slug.back() != '_')
      slug += '_';
  }
  while (!slug.empty() && slug.back() == '_') slug.pop_back();
  return slug;
}

}  // namespace outgrad::autotune
