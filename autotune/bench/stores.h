// `bench --stores`: forwards and backwards of GELU and LayerNorm that keep less, beside the plain ones, in
// the same rounds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "autotune/measure/timing.h"
#include "autotune/space/problem.h"

namespace outgrad::autotune {

inline constexpr const char* kStoreBenchSchema = "outgrad.store_bench/2";  // read by validation/front/

enum class StoredLayer { gelu, layernorm };

// One store, GELU's by the name that it has in `front`: its speed over that of the plain kernels, which keep
// y and for GELU a bit, by rounds.
struct StoreSpeed {
  std::string store;
  double forward_bytes = 0, backward_bytes = 0;  // an element, read and written
  Interval forward{}, backward{};
  std::vector<bool> kept{};  // which rounds were quiet enough to count
};

// The speeds of stores whose names and bytes are there, from the times of all rounds: the ceiling's, which
// say what rounds are kept, then of each store its forward's and its backward's. Were the plain forward's to
// say it, it would be in rounds in which it was fast, and every other one would seem slow.
void rate(std::vector<StoreSpeed>& stores, const std::vector<std::vector<double>>& ns);

// The first is the plain one, whose ratios are 1. n elements, for LayerNorm in rows of 1024; threads: all.
// Throws std::bad_alloc.
std::vector<StoreSpeed> store_speeds(StoredLayer layer, FormatId format, kernels::i64 n, int rounds,
                                     std::uint64_t seed);

}  // namespace outgrad::autotune
