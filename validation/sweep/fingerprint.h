// Distinguishes the results of one set of kernels from those of another.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <type_traits>

#include "kernels/formats.h"
#include "validation/sweep/sweep.h"

namespace outgrad::validation {

/// FNV-1a, 64 bits, which distinguishes the results of one set of kernels from those of another.
class Fingerprint {
 public:
  template <class T>
  void add(const T* values, std::size_t count) {
    static_assert(std::has_unique_object_representations_v<T> || std::is_floating_point_v<T>);
    const auto* bytes = reinterpret_cast<const unsigned char*>(values);
    for (std::size_t i = 0; i < count * sizeof(T); ++i) hash_ = (hash_ ^ bytes[i]) * 0x100000001b3u;
  }
  std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325u;
};

/// The identity of a subject whose coefficients are in `fingerprint`, word by word. Its constants enter by
/// their effect: f and g over all bf16 patterns on both branches.
inline std::string identity_of(const Subject& subject, Fingerprint fingerprint) {
  constexpr std::uint32_t kBlock = 4096;
  for (std::uint32_t begin = 0; begin < 0x10000; begin += kBlock) {
    float x[kBlock], result[kBlock];
    std::uint32_t mask[kBlock / 32] = {};
    const auto add = [&] {
      for (float& v : result) v = kernels::float_of(kernels::canonical_bits(v));
      fingerprint.add(result, kBlock);
    };
    for (std::uint32_t i = 0; i < kBlock; ++i)
      x[i] = kernels::widen(kernels::BF16{static_cast<std::uint16_t>(begin + i)});
    if (subject.forward) {
      subject.forward(x, result, mask, kBlock);
      fingerprint.add(mask, std::size(mask));
      add();
    }
    for (const std::uint32_t branch : {0u, ~0u}) {
      std::fill(std::begin(mask), std::end(mask), branch);
      subject.derivative(x, mask, result, kBlock);
      add();
    }
  }
  return fmt::format("{:016x}", fingerprint.value());
}

}  // namespace outgrad::validation
