// Random numbers that are the same on every machine, unlike those of the distributions of <random>.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <utility>
#include <vector>

namespace outgrad::kernels {

// splitmix64 (Steele, Lea, Flood, OOPSLA 2014): the next number of a state, which may be any.
inline std::uint64_t next_random(std::uint64_t& state) {
  std::uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Fisher, Yates 1938.
template <class Item>
void shuffle(std::vector<Item>& items, std::uint64_t& state) {
  for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[next_random(state) % i]);
}

// The same as what is drawn from. Exact but for normal(), which takes libm's logarithm and cosine.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t bits() { return next_random(state_); }
  // In [0, 1).
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  // In [0, n).
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(uniform() * static_cast<double>(n)); }
  double sign() { return bits() & 1 ? 1.0 : -1.0; }
  bool chance(double probability) { return uniform() < probability; }
  // Of mean 0 and variance 1 (Box, Muller 1958).
  double normal() {
    // drawn before the angle: operands have no order
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

 private:
  std::uint64_t state_;
};

}  // namespace outgrad::kernels
