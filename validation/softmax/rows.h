// Rows of softmax: the exact gradient, and the search for rows that break the bounds of kernels/softmax.h.
//
// The reference is in double. Of its p each is off by less than 2^-49 of it, and so is D by n 2^-52 of max
// |dp|. Both are added to the bounds, of which they are less than 10^-6.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace outgrad::validation {

struct ExactSoftmax {
  std::vector<double> p, ds;
  double sum = 0;       // of |ds|
  double range = 0;     // of dp
  double greatest = 0;  // |dp|
};

/// x need not be finite, but its largest element is.
ExactSoftmax exact_softmax(std::span<const float> x, std::span<const float> dp);

/// The largest error over its bound, which is at most 1 unless a bound is violated, and where it was found.
struct SoftmaxTightness {
  double ratio = 0;
  std::string row;
};

struct SoftmaxAttack {
  std::uint64_t evaluations = 0;  // elements whose gradient was compared
  std::uint64_t violations = 0;   // elements and rows beyond a bound
  SoftmaxTightness e1, sum, element;
};

/// How the kernels are called; a test puts wrong ones in their place.
struct SoftmaxKernels {
  // null: the kernels'
  void (*backward)(const float* dy, const unsigned char* codes, float* dx, std::int64_t rows,
                   std::int64_t n) = nullptr;
};

/// At least `evaluations` elements, in all three formats. The same seed gives the same rows.
SoftmaxAttack attack_softmax(std::uint64_t evaluations, std::uint64_t seed,
                             const SoftmaxKernels& kernels = {});

nlohmann::ordered_json to_json(const SoftmaxAttack& attack);
std::string to_text(const SoftmaxAttack& attack);

}  // namespace outgrad::validation
