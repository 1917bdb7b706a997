// GELU's launchers called with arguments that break their contract.
#include "tests/gpu/gelu_arguments.h"

#include <cstdio>
#include <iterator>

#include "tests/gpu/launches.cuh"
#include "kernels/support/errors.h"

namespace outgrad::tests::gpu {

using kernels::i64;
using kernels::u32;
using kernels::u64;

int refused_gelu_arguments() {
  constexpr i64 kN = 1000;
  const auto at = [](u64 address) { return reinterpret_cast<float*>(address); };
  const auto bits_at = [](u64 address) { return reinterpret_cast<u32*>(address); };
  float *const dy = at(0x10000), *const y = at(0x20000), *const dx = at(0x30000);
  u32* const mask = bits_at(0x40000);
  const auto backward = [](const float* g, const float* o, const u32* m, float* d, i64 n) {
    return launches::gelu_backward(g, o, m, d, n, nullptr);
  };
  const auto forward = [](const float* x, float* o, u32* m, i64 n) {
    return launches::gelu_forward(x, o, m, n, nullptr);
  };
  struct Case {
    const char* what;
    cudaError_t got, want;
  };
  constexpr cudaError_t kRefused = cudaErrorInvalidValue;
  constexpr i64 kHuge = i64{1} << 60;
  const Case cases[] = {
      {"backward, n = 0", backward(nullptr, nullptr, nullptr, nullptr, 0), cudaSuccess},
      {"backward, n = -1", backward(dy, y, mask, dx, -1), kRefused},
      {"backward, n = 2^60", backward(dy, y, mask, dx, kHuge), kRefused},
      {"backward, beyond the address space", backward(at(~u64{0x7ff}), y, mask, dx, kN), kRefused},
      {"backward, dy null", backward(nullptr, y, mask, dx, kN), kRefused},
      {"backward, y null", backward(dy, nullptr, mask, dx, kN), kRefused},
      {"backward, mask null", backward(dy, y, nullptr, dx, kN), kRefused},
      {"backward, dx null", backward(dy, y, mask, nullptr, kN), kRefused},
      {"backward, dx not aligned to its element", backward(dy, y, mask, at(0x30002), kN), kRefused},
      {"backward, mask not aligned to a word", backward(dy, y, bits_at(0x40001), dx, kN), kRefused},
      {"backward, dx one element into dy", backward(dy, y, mask, dy + 1, kN), kRefused},
      {"backward, dx over y", backward(dy, y, mask, y, kN), kRefused},
      {"backward, dx over the last word of the mask",
       backward(dy, y, bits_at(0x30000 - 4 * ((kN + 31) / 32 - 1)), dx, kN), kRefused},
      {"forward, n = 0", forward(nullptr, nullptr, nullptr, 0), cudaSuccess},
      {"forward, n = -1", forward(y, dx, mask, -1), kRefused},
      {"forward, x null", forward(nullptr, dx, mask, kN), kRefused},
      {"forward, y null", forward(y, nullptr, mask, kN), kRefused},
      {"forward, mask null", forward(y, dx, nullptr, kN), kRefused},
      {"forward, y one element into x", forward(y, y + 1, mask, kN), kRefused},
      {"forward, mask over x", forward(y, dx, bits_at(0x20004), kN), kRefused},
      {"forward, mask over y", forward(y, dx, bits_at(0x30004), kN), kRefused},
  };
  int wrong = 0;
  for (const Case& each : cases) {
    if (each.got == each.want) continue;
    std::printf("%s: %s instead of %s\n", each.what, cudaGetErrorName(each.got), cudaGetErrorName(each.want));
    ++wrong;
  }
  std::printf("%zu calls, %d answered wrongly\n", std::size(cases), wrong);
  return wrong == 0 ? kernels::kExitHolds : kernels::kExitViolated;
}

}  // namespace outgrad::tests::gpu
