// What the norms' launchers refuse.
#pragma once

namespace outgrad::tests::gpu {

// Calls them with arguments that break their contract, and prints each call that is not answered as it should
// be. Needs no GPU: nothing is launched. Exit status: kernels::kExitHolds or kExitViolated.
int refused_norm_arguments();

}  // namespace outgrad::tests::gpu
