// A median with the interval around it, as timing finds it and a record keeps it.
#pragma once

namespace outgrad::autotune {

struct Interval {
  double median = 1, low = 1, high = 1;
};

// Rounds that a comparison needs, so that the interval's ends are more than the extreme samples. With fewer
// the default stays, and that says nothing: the machine was too noisy.
inline constexpr int kLeastRounds = 20;
constexpr bool are_too_few(long long rounds) { return rounds < kLeastRounds; }

}  // namespace outgrad::autotune
