// `bench`: the kernels that this program runs beside the machine's ceiling and peers, with a tuned header and
// without one, or with stores that keep less.
#pragma once

#include <string>
#include <vector>

namespace outgrad::autotune {

// Returns the exit status.
int bench_command(const std::vector<std::string>& words);

}  // namespace outgrad::autotune
