// Fills the timing arrays.
#include "autotune/workload.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <vector>

#include "autotune/timing.h"
#include "kernels/formats.h"

namespace outgrad::autotune {
namespace {

constexpr auto kBlock = static_cast<std::size_t>(kWorkspacePeriod);

Workspace::Array allocate(std::size_t size) {
  constexpr std::size_t kHugePage = 2 << 20;  // aligned so that the system can back arrays with huge pages
  void* memory = std::aligned_alloc(kHugePage, std::max<std::size_t>(1, (size + kHugePage - 1) / kHugePage) * kHugePage);
  if (memory == nullptr) throw std::bad_alloc();
  return Workspace::Array(static_cast<std::byte*>(memory));
}

template <class T>
void store(std::vector<std::byte>& to, std::size_t i, double value) {
  const T stored = kernels::narrow<T>(static_cast<float>(value));
  std::memcpy(to.data() + i * sizeof(T), &stored, sizeof(T));
}

void store(FormatId format, std::vector<std::byte>& to, std::size_t i, double value) {
  switch (format) {
    case FormatId::kF32:
      return store<float>(to, i, value);
    case FormatId::kF16:
      return store<kernels::F16>(to, i, value);
    default:
      return store<kernels::BF16>(to, i, value);
  }
}

}  // namespace

Workspace::Workspace(FormatId format, kernels::i64 count, bool with_x, bool with_dy_and_y, std::uint64_t seed)
    : elements(count), bytes(static_cast<std::size_t>(count) * static_cast<std::size_t>(bytes_of(format))) {
  const std::size_t size = static_cast<std::size_t>(bytes_of(format)), words = static_cast<std::size_t>(count + 31) / 32;
  std::vector<std::byte> x_block(kBlock * size), y_block(kBlock * size), dy_block(kBlock * size);
  std::vector<kernels::u32> mask_block(kBlock / 32, 0);
  for (std::size_t i = 0; i < kBlock; ++i) {
    const auto uniform = [&] { return (static_cast<double>(next_random(seed) >> 11) + 1) * 0x1p-53; };   // in (0, 1]
    const double value = std::sqrt(-2 * std::log(uniform())) * std::cos(6.283185307179586 * uniform());  // Box and Muller
    store(format, x_block, i, value);
    store(format, y_block, i, 0.5 * value * (1 + std::erf(value * std::sqrt(0.5))));
    store(format, dy_block, i, 2 * uniform() - 1);
    if (value >= -0.75179152) mask_block[i / 32] |= 1u << i % 32;  // x*, near enough for data to time
  }
  out = allocate(bytes), mask = allocate(words * sizeof(kernels::u32));
  if (with_x) x = allocate(bytes);
  if (with_dy_and_y) dy = allocate(bytes), y = allocate(bytes);
#pragma omp parallel for schedule(static)
  for (kernels::i64 begin = 0; begin < count; begin += static_cast<kernels::i64>(kBlock)) {
    const std::size_t element = static_cast<std::size_t>(begin), offset = element * size, length = std::min(kBlock * size, bytes - offset);
    std::memset(out.get() + offset, 0, length);
    if (with_x) std::memcpy(x.get() + offset, x_block.data(), length);
    if (with_dy_and_y) std::memcpy(dy.get() + offset, dy_block.data(), length);
    if (with_dy_and_y) std::memcpy(y.get() + offset, y_block.data(), length);
    std::memcpy(mask_words() + element / 32, mask_block.data(), sizeof(kernels::u32) * std::min(kBlock / 32, words - element / 32));
  }
}

}  // namespace outgrad::autotune
