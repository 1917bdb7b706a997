// A median with the interval around it, as timing finds it and a record keeps it.
#pragma once

namespace outgrad::autotune {

struct Interval {
  double median = 1, low = 1, high = 1;
};

}  // namespace outgrad::autotune
