// Deterministic inputs for the kernels' tests: every pattern of a 16-bit format, every binade of f32 with its
// edges, special values.
#pragma once

#include <cstddef>
#include <type_traits>
#include <vector>

#include "kernels/formats.h"
#include "kernels/portable.h"
#include "kernels/support/random.h"

namespace outgrad::kernels::patterns {

// 32 bits at a time.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  u32 next() { return static_cast<u32>(next_random(state_) >> 32); }

 private:
  std::uint64_t state_;
};

// f32: per sign and exponent (subnormals, infinities and NaNs are two of the exponents) the edges of the
// binade, the midpoints of f16 and bf16 with their neighbours, and `random_per_binade` significands.
inline std::vector<float> f32_patterns(int random_per_binade) {
  std::vector<u32> significands;
  for (const u32 bit : {0u, 1u << 12, 1u << 13, 3u << 12, 1u << 15, 1u << 16, 3u << 15, 1u << 22, 1u << 23}) {
    for (const u32 near : {bit - 1, bit, bit + 1}) significands.push_back(near & 0x7fffffu);
  }
  Random random(1);
  std::vector<float> values;
  for (u32 high = 0; high < 512; ++high) {
    for (const u32 low : significands) values.push_back(float_of(high << 23 | low));
    for (int k = 0; k < random_per_binade; ++k) values.push_back(float_of(high << 23 | (random.next() >> 9)));
  }
  return values;
}

// All of T's patterns for 16-bit and 8-bit T; f32_patterns otherwise.
template <class T>
std::vector<T> all(int random_per_binade = 100) {
  if constexpr (std::is_same_v<T, float>) {
    return f32_patterns(random_per_binade);
  } else {
    std::vector<T> values;
    for (u32 bits = 0; bits >> (8 * sizeof(T)) == 0; ++bits)
      values.push_back(T{static_cast<typename Format<T>::Bits>(bits)});
    return values;
  }
}

// Arguments of a backward call that pair every y of all<T>() with both mask bits, and a dy each (all kinds of
// values). Neighbours' mask bits are unlike, without a period: whoever reads the bits of a word in another
// order gets other results.
template <class T>
struct Backward {
  std::vector<T> dy, y;
  std::vector<u32> mask;

  i64 size() const { return static_cast<i64>(y.size()); }
};

template <class T>
Backward<T> backward(int random_per_binade = 100) {
  Backward<T> arguments;
  const std::vector<T> values = all<T>(random_per_binade);
  Random random(2);
  for (const u32 pass : {0u, 1u}) {
    Random side(3);  // the same in both passes, so that the second one has the other bit
    for (const T y : values) {
      const u32 m = (side.next() & 1u) ^ pass;
      const size_t i = arguments.y.size();
      if (i % 32 == 0) arguments.mask.push_back(0);
      arguments.mask.back() |= m << (i % 32);
      arguments.y.push_back(y);
      // Three in four moderate, so that g shows; the others any value at all.
      const T any = values[random.next() % values.size()];
      arguments.dy.push_back(random.next() % 4 == 0
                                 ? any
                                 : narrow<T>(static_cast<float>(static_cast<i32>(random.next())) * 0x1p-29f));
    }
  }
  return arguments;
}

// First index at which two arrays differ as canonical_bits, or -1.
template <class T>
i64 first_difference(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (canonical_bits(a[i]) != canonical_bits(b[i])) return static_cast<i64>(i);
  }
  return -1;
}

// FNV-1a, 64 bits, over the little-endian bytes of one word after the other.
class Hash {
 public:
  void add(u32 word) {
    for (int byte = 0; byte < 4; ++byte) state_ = (state_ ^ (word >> (8 * byte) & 0xffu)) * 0x100000001b3u;
  }
  u64 value() const { return state_; }

 private:
  u64 state_ = 0xcbf29ce484222325u;
};

}  // namespace outgrad::kernels::patterns
