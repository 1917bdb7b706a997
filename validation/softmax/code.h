// Softmax's exp and its codes of 8 bits as the kernels compute them, proven by enumeration.
//
// kernels/softmax.h claims what the code of a p says of it. Every fp32 number from 0 to 1 is encoded. If the
// codes never fall as p rises, each code stands for the numbers from its first to its last, and |p' - p| / p
// is largest at one of these two. MPFR evaluates both, and the definition of the cells and of p' beside them.
// Nothing is taken from the kernels but their codes and p'.
//
// Of the exp every fp32 number is compared that comes to the kernel's polynomial: from -kSoftmaxNear -
// kSoftmaxReach to kSoftmaxNear. (Of rows far from 0 these are exact differences.) The reference is the
// series in double, within 2^-50, which tests compare with MPFR.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/portable.h"

namespace outgrad::validation {

inline constexpr int kSoftmaxCodes = 256;

struct SoftmaxCodeProof {
  std::uint64_t numbers = 0;  // that were encoded
  std::string problem;  // empty, or the first thing that does not hold
  std::array<float, kSoftmaxCodes> first{}, last{};  // of the numbers that have a code
  double cell = 0;  // at least |p' - p| / p of every p whose code is not 0
  int worst_code = 0;  // where it is reached, up to rounding
  double boundary = 0;  // at least the distance of every boundary from its place, in cells
};

/// Sets codes[i] to the code of p[i], i < n.
using SoftmaxEncoder = void(const float* p, kernels::u8* codes, kernels::i64 n);

/// The kernel's, in vectors.
void encode_softmax(const float* p, kernels::u8* codes, kernels::i64 n);

/// Over every fp32 number from `least` to 1. Codes of numbers below are not looked at.
SoftmaxCodeProof prove_softmax_code(float least = 0, SoftmaxEncoder* encode = encode_softmax);

/// Whether the claims of kernels/softmax.h follow from the proof.
bool holds(const SoftmaxCodeProof& proof);
nlohmann::ordered_json to_json(const SoftmaxCodeProof& proof);
std::string to_text(const SoftmaxCodeProof& proof);

struct SoftmaxExpProof {
  std::uint64_t numbers = 0;  // that were compared
  double error = 0;  // at least |e' - e| / e of each of them
  float worst = 0;  // where it is reached, up to 2^-49
};

/// Sets e[i] to 2^(64 - M) exp(x[i]), i < n, as in a row whose greatest element is `greatest`; returns M.
using SoftmaxExponential = double(float greatest, const float* x, float* e, kernels::i64 n);

/// The kernel's, in vectors.
double exponentials(float greatest, const float* x, float* e, kernels::i64 n);

/// Over every stride-th number.
SoftmaxExpProof prove_softmax_exp(kernels::u32 stride = 1, SoftmaxExponential* evaluate = exponentials);

bool holds(const SoftmaxExpProof& proof);
nlohmann::ordered_json to_json(const SoftmaxExpProof& proof);
std::string to_text(const SoftmaxExpProof& proof);

}  // namespace outgrad::validation
