// Measured bandwidth of the kernels that this program runs, against the machine's ceiling and peers,
// interleaved in one run.
#pragma once

#include <cstdint>

#include "autotune/bench/group.h"

namespace outgrad::autotune {

// Runs rounds until `rounds` are kept (three times as many at most). Throws std::bad_alloc.
BenchGroup run_bench(FormatId format, kernels::i64 elements, int rounds, std::uint64_t seed);

}  // namespace outgrad::autotune
