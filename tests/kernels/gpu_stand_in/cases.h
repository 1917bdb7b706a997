// What the tests of CUDA kernels have in common: orders of threads, places of arrays, values, comparison with
// the host.
#pragma once

#include <gtest/gtest.h>

#include <concepts>
#include <string>
#include <vector>

#include "kernels/formats.h"
#include "tests/kernels/gpu_stand_in/cuda_runtime.h"
#include "tests/kernels/gpu_stand_in/stand_in.h"
#include "tests/kernels/patterns.h"

namespace outgrad::tests::gpu_stand_in {

// body() under every order of threads.
template <class Body>
void under_every_order(const Body& body) {
  struct Named {
    const char* name;
    Settings settings;
  };
  for (const Named& each : {Named{"threads forward", {.order = Order::forward}},
                            Named{"threads reversed", {.order = Order::reversed}},
                            Named{"threads shuffled, seed 1", {.order = Order::shuffled, .seed = 1}},
                            Named{"threads shuffled, seed 2", {.order = Order::shuffled, .seed = 2}}}) {
    SCOPED_TRACE(each.name);
    settings() = each.settings;
    body();
  }
  settings() = {};
}

// Another order for every launch of a long list of cases.
inline void next_order() {
  static std::uint64_t count = 0;
  settings() = {.order = static_cast<Order>(count % 3), .seed = count};
  ++count;
}

// Values of T: one in four any pattern (NaN, infinities, subnormals and -0 among them), the others moderate.
template <class T>
class Values {
 public:
  explicit Values(std::uint64_t seed) : random_(seed) {}
  T next() {
    static const std::vector<T> patterns = kernels::patterns::all<T>(20);
    const std::uint32_t a = random_.next(), b = random_.next();
    return a % 4 == 0 ? patterns[b % patterns.size()]
                      : kernels::narrow<T>(static_cast<float>(static_cast<std::int32_t>(b)) * 0x1p-29f);
  }
  // Moderate ones alone: in a sum no term hides the others, so that their order shows.
  std::vector<T> moderate(std::int64_t n) {
    std::vector<T> values;
    for (std::int64_t i = 0; i < n; ++i)
      values.push_back(
          kernels::narrow<T>(static_cast<float>(static_cast<std::int32_t>(random_.next())) * 0x1p-29f));
    return values;
  }
  std::vector<T> next(std::int64_t n) {
    std::vector<T> values;
    for (std::int64_t i = 0; i < n; ++i) values.push_back(next());
    return values;
  }

 private:
  kernels::patterns::Random random_;
};

// Lengths of elementwise kernels. Around octets, words of the mask, trips of small grids; ragged.
inline constexpr std::int64_t kSizes[] = {1, 7, 8, 9, 31, 32, 33, 255, 256, 257, 1000, 4096, 5003};

// Offsets from a multiple of 16 bytes, in elements.
struct Layout {
  const char* name;
  Edge edge;
  int dy, y, dx;
  bool in_place;
};
inline constexpr Layout kLayouts[] = {
    {"aligned, guards behind", Edge::end, 0, 0, 0, false},
    {"aligned, guards before", Edge::begin, 0, 0, 0, false},
    {"all off by one element", Edge::end, 1, 1, 1, false},
    {"dy off by one element", Edge::begin, 1, 0, 0, false},
    {"y off by one element", Edge::end, 0, 1, 0, false},
    {"dx off by one element", Edge::end, 0, 0, 1, false},
    {"off by 3 elements, by chance flush", Edge::end, 3, 3, 3, false},
    {"in place", Edge::end, 0, 0, 0, true},
    {"in place, off by one element", Edge::begin, 1, 1, 1, true},
};

inline std::vector<std::uint32_t> random_words(std::uint64_t seed, std::int64_t n) {
  kernels::patterns::Random random(seed);
  std::vector<std::uint32_t> words;
  for (std::int64_t i = 0; i < n; ++i) words.push_back(random.next());
  return words;
}

// That the launch went well, and that the array holds what the host computed and nothing around it was
// written.
inline void expect_success(cudaError_t status) { EXPECT_EQ(status, cudaSuccess) << failure(); }

template <class T>
void expect_equal(const char* what, const GuardedArray<T>& device, const std::vector<T>& host) {
  const std::vector<T> values = device.values();
  const std::int64_t at = kernels::patterns::first_difference(values, host);
  if (at >= 0) {
    const auto i = static_cast<std::size_t>(at);
    ADD_FAILURE() << what << '[' << at << "] of " << host.size() << ": device " << std::hex
                  << kernels::canonical_bits(values[i]) << ", host " << kernels::canonical_bits(host[i]);
  }
  EXPECT_TRUE(device.untouched_outside()) << "written outside " << what;
}

template <std::integral T>
void expect_equal(const char* what, const GuardedArray<T>& device, const std::vector<T>& host) {
  EXPECT_EQ(device.values(), host) << what;
  EXPECT_TRUE(device.untouched_outside()) << "written outside " << what;
}

}  // namespace outgrad::tests::gpu_stand_in
