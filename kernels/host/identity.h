// The identity of this processor, as far as the choice of a schedule depends on it. The tuner writes it into
// its records and tables, and the kernels find it at run time, both from here.
#pragma once

#include <cstring>
#include <thread>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#ifdef _OPENMP
#include <omp.h>
#endif

#include "kernels/host/text.h"
#include "kernels/ladder.h"
#include "kernels/portable.h"
#include "kernels/simd.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

// The instruction sets that a key names, in the key's order.
inline constexpr const char* kKeyExtensions[] = {"avx2",    "avx512_bf16", "avx512_fp16", "avx512bw",
                                                 "avx512f", "f16c",        "fma"};
inline constexpr int kKeyExtensionCount = sizeof kKeyExtensions / sizeof *kKeyExtensions;

struct CpuFacts {
  char model[64] = "unknown";  // the processor's own name for itself, without blanks at its ends
  int threads = 1;             // the number that the system lets this process run side by side
  bool has[kKeyExtensionCount] = {};
};

namespace detail {

#if defined(__x86_64__)
inline void read_model(char (&model)[64]) {
  constexpr unsigned kFirst = 0x80000002, kLast = 0x80000004;  // each gives 16 bytes of the name
  unsigned words[4 * (kLast - kFirst + 1)] = {}, highest = __get_cpuid_max(0x80000000, nullptr);
  if (highest < kLast) return;
  for (unsigned leaf = kFirst; leaf <= kLast; ++leaf) {
    unsigned* const four = words + 4 * (leaf - kFirst);
    __cpuid(leaf, four[0], four[1], four[2], four[3]);
  }
  char name[sizeof words + 1] = {};
  std::memcpy(name, words, sizeof words);
  const char* begin = name;
  while (*begin == ' ') ++begin;
  std::size_t length = std::strlen(begin);
  while (length > 0 && begin[length - 1] == ' ') --length;
  if (length == 0) return;
  for (std::size_t i = 0; i < length; ++i)
    model[i] = static_cast<unsigned char>(begin[i]) < ' ' ? ' ' : begin[i];
  model[length] = '\0';
}

inline void read_extensions(bool (&has)[kKeyExtensionCount]) {
  __builtin_cpu_init();
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return;
  const unsigned features = c;
  unsigned extended_b = 0, extended_d = 0, more_a = 0;
  if (__get_cpuid_count(7, 0, &a, &extended_b, &c, &extended_d) != 0 && a >= 1)
    __get_cpuid_count(7, 1, &more_a, &b, &c, &d);
  // These bits say that the processor has the instruction sets (Intel SDM 2A, CPUID). The builtins say
  // whether the system saves their registers.
  const bool vectors = __builtin_cpu_supports("avx2") != 0, wide = __builtin_cpu_supports("avx512f") != 0;
  const bool found[] = {vectors,
                        wide && (more_a >> 5 & 1) != 0,
                        wide && (extended_d >> 23 & 1) != 0,
                        wide && (extended_b >> 30 & 1) != 0,
                        wide,
                        vectors && (features >> 29 & 1) != 0,
                        vectors && (features >> 12 & 1) != 0};
  static_assert(sizeof found == sizeof has);
  std::memcpy(has, found, sizeof found);
}
#endif

}  // namespace detail

inline CpuFacts read_cpu() {
  CpuFacts cpu;
#if defined(__x86_64__)
  detail::read_model(cpu.model);
  detail::read_extensions(cpu.has);
#endif
#ifdef _OPENMP
  cpu.threads = omp_get_num_procs();
#else
  if (const unsigned threads = std::thread::hardware_concurrency(); threads > 0)
    cpu.threads = static_cast<int>(threads);
#endif
  return cpu;
}

// The texts of a DeviceKey.
struct CpuKey {
  TextLine device, architecture, family;

  DeviceKey key() const { return {device.text(), architecture.text(), family.text()}; }
};

// "cpu: AMD EPYC, 2 threads, 512-bit vectors, avx2 ...", "cpu: 512-bit vectors, avx2 ...", "cpu: 512-bit
// vectors". autotune/evidence/identity.h makes the same texts from a record of the same processor (a test
// compares them). vector_bits is that of the build.
inline CpuKey key_of(const CpuFacts& cpu, int vector_bits) {
  CpuKey key;
  TextLine code;
  code << static_cast<long long>(vector_bits) << "-bit vectors";
  key.family << "cpu: " << code.text();
  bool any = false;
  for (int i = 0; i < kKeyExtensionCount; ++i) {
    if (!cpu.has[i]) continue;
    code << (any ? " " : ", ") << kKeyExtensions[i];
    any = true;
  }
  if (!any) code << ", no extensions";
  key.architecture << "cpu: " << code.text();
  key.device << "cpu: " << cpu.model << ", " << static_cast<long long>(cpu.threads)
             << (cpu.threads == 1 ? " thread, " : " threads, ") << code.text();
  return key;
}

// This processor under this unit's instruction set. The first call finds it, later calls return the stored
// result.
inline DeviceKey this_cpu() {
  static const CpuKey key = key_of(read_cpu(), kBestVectorBits);
  return key.key();
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
