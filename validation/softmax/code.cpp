// Enumerates softmax's codes and its exp, see code.h.
#include "validation/softmax/code.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "kernels/host/softmax.h"
#include "kernels/support/bounds.h"
#include "validation/exact/mp.h"
#include "validation/limits.h"

namespace outgrad::validation {
namespace {

using kernels::float_of;
using kernels::u32;
using kernels::u8;

constexpr u32 kOneBits = 0x3f800000u;
constexpr double kOctaves = 24;

// 2^(k octaves / codes - octaves): the lower end of cell k, the upper one of cell k - 1.
CoarseInterval end_of_cell(int k) {
  return exp(CoarseInterval(kOctaves * k / kSoftmaxCodes - kOctaves) * log(CoarseInterval(2)));
}

// Fills first, last and numbers; false if a code is less than that of a smaller number, or left out.
bool enumerate(u32 least, SoftmaxEncoder& encode, SoftmaxCodeProof& proof) {
  constexpr u32 kBlock = 1 << 22;
  std::vector<float> p(kBlock);
  std::vector<u8> codes(kBlock);
  int previous = -1;
  for (u32 begin = least; begin <= kOneBits; begin += kBlock) {
    const u32 count = std::min(kBlock, kOneBits - begin + 1);
    for (u32 i = 0; i < count; ++i) p[i] = float_of(begin + i);
    encode(p.data(), codes.data(), count);
    u32 changes = 0;
    for (u32 i = 1; i < count; ++i) changes += static_cast<u32>(codes[i] != codes[i - 1]);
    if (changes > 0 || codes[0] != previous) {
      for (u32 i = 0; i < count; ++i) {
        if (codes[i] == previous) continue;
        if (codes[i] != previous + 1) {
          proof.problem = fmt::format("code {} of {:.9g} follows code {}", codes[i], p[i], previous);
          return false;
        }
        if (previous >= 0)
          proof.last[static_cast<std::size_t>(previous)] = i > 0 ? p[i - 1] : float_of(begin - 1);
        previous = codes[i];
        proof.first[codes[i]] = p[i];
      }
    }
    proof.numbers += count;
  }
  proof.last[static_cast<std::size_t>(previous)] = 1;
  if (previous != kSoftmaxCodes - 1) proof.problem = fmt::format("1 has code {}", previous);
  return proof.problem.empty();
}

constexpr double kSeriesError = 0x1p-50;

// exp(x) for |x| <= 400, within kSeriesError of it. k times the 42 bits of kHigh is exact, and so is x less
// that; r = x - k log 2 is within 2^-54. The series up to the 13th power has a rest below 2^-57, and of its
// roundings little more than the last two count.
double exp_by_series(float x) {
  constexpr double kLog2e = 0x1.71547652b82fep0, kHigh = 0x1.62e42fefa38p-1, kLow = 0x1.ef35793c7673p-45;
  constexpr int kDegree = 13;
  const double k = std::nearbyint(static_cast<double>(x) * kLog2e);
  const double r = (static_cast<double>(x) - k * kHigh) - k * kLow;
  double sum = 1;
  for (int n = kDegree; n >= 1; --n) sum = 1 + sum * r * (1.0 / n);
  return sum * std::bit_cast<double>(static_cast<std::int64_t>(k + 1023) << 52);
}

}  // namespace

void encode_softmax(const float* p, u8* codes, kernels::i64 n) {
  kernels::softmax_encode<float, kernels::kWidestSchedule>(p, codes, n);
}

SoftmaxCodeProof prove_softmax_code(float least, SoftmaxEncoder* encode) {
  SoftmaxCodeProof proof;
  if (!enumerate(kernels::bits_of(least), *encode, proof)) return proof;
  if (kernels::softmax_of_code(0) != 0) proof.problem = "code 0 does not stand for 0";
  for (int code = 1; code < kSoftmaxCodes; ++code) {
    const auto at = static_cast<std::size_t>(code);
    const CoarseInterval a = end_of_cell(code), b = end_of_cell(code + 1);
    const float p = kernels::softmax_of_code(static_cast<u8>(code));
    const CoarseInterval middle = CoarseInterval(2) * a * b / (a + b);
    const auto nearest = [](double v) { return static_cast<float>(v); };
    if (nearest(middle.lower()) != p || nearest(middle.upper()) != p) {
      proof.problem =
          fmt::format("code {} stands for {:.9g}, not for the harmonic mean {:.9g} of its cell's ends", code,
                      p, middle.middle());
      return proof;
    }
    for (const float end : {proof.first[at], proof.last[at]}) {
      const CoarseInterval kept(static_cast<double>(p)), exact(static_cast<double>(end));
      const double relative = absolute((kept - exact) / exact).upper();
      if (relative > proof.cell) proof.cell = relative, proof.worst_code = code;
    }
    // The boundary lies between the last number of the code before and the first of this one.
    const CoarseInterval between(static_cast<double>(proof.last[at - 1]),
                                 static_cast<double>(proof.first[at]));
    const CoarseInterval cells = (log(between) / log(CoarseInterval(2)) + CoarseInterval(kOctaves)) *
                                 CoarseInterval(kSoftmaxCodes / kOctaves);
    proof.boundary = std::max(proof.boundary, (cells - CoarseInterval(code)).magnitude());
  }
  return proof;
}

bool holds(const SoftmaxCodeProof& proof) {
  return proof.problem.empty() && proof.cell <= kernels::kSoftmaxCell &&
         static_cast<double>(proof.last[0]) <= kernels::kSoftmaxLeast;
}

nlohmann::ordered_json to_json(const SoftmaxCodeProof& proof) {
  return {{"numbers", proof.numbers},
          {"problem", proof.problem},
          {"cell", proof.cell},
          {"cell_claimed", kernels::kSoftmaxCell},
          {"worst_code", proof.worst_code},
          {"least", proof.last[0]},
          {"least_claimed", kernels::kSoftmaxLeast},
          {"boundary_cells", proof.boundary}};
}

std::string to_text(const SoftmaxCodeProof& proof) {
  if (!proof.problem.empty()) return proof.problem + "\n";
  return fmt::format(
      "codes of {} fp32 numbers: |p' - p| / p <= {:.9f} (claimed {:.6f}), in code {}; code 0 up to {:.9g} "
      "(claimed {:.5g}); boundaries within {:.1e} cells\n",
      proof.numbers, kernels::decimals_up(proof.cell, 9), kernels::kSoftmaxCell, proof.worst_code,
      proof.last[0], kernels::kSoftmaxLeast, proof.boundary);
}

double exponentials(float greatest, const float* x, float* e, kernels::i64 n) {
  constexpr kernels::CpuSchedule kLoop = kernels::kWidestSchedule;
  const kernels::SoftmaxExp row = kernels::softmax_exp_of(greatest);
  kernels::detail::over_row<kLoop>(n, [&](const auto& ops, kernels::i64 j) __attribute__((always_inline)) {
    const kernels::detail::ExponentialElements<float> elements{x, row};
    kernels::detail::store_value<false>(ops, e + j, kernels::detail::elements_at(ops, elements, j));
  });
  return static_cast<double>(kernels::kSoftmaxToInteger - row.base);
}

SoftmaxExpProof prove_softmax_exp(u32 stride, SoftmaxExponential* evaluate) {
  constexpr u32 kBlock = 1 << 22;  // half an octave at most: less than kSoftmaxReach
  SoftmaxExpProof proof;
  std::vector<float> x, e;
  std::vector<double> error;
  for (const float end : {-kernels::kSoftmaxNear - kernels::kSoftmaxReach, kernels::kSoftmaxNear}) {
    const u32 first = kernels::bits_of(std::copysign(0.0f, end)), last = kernels::bits_of(end);
    for (u32 begin = first; begin <= last; begin += kBlock) {
      x.clear();
      for (u32 bits = begin; bits <= std::min(last, begin + kBlock - 1); bits += stride)
        x.push_back(float_of(bits));
      e.resize(x.size()), error.resize(x.size());
      const double m = evaluate(std::max(x.front(), x.back()), x.data(), e.data(), std::ssize(x));
      const double scale = std::exp2(m - 64);
      for (std::size_t i = 0; i < x.size(); ++i)
        error[i] = std::abs(static_cast<double>(e[i]) * scale / exp_by_series(x[i]) - 1);
      for (std::size_t i = 0; i < x.size(); ++i) {
        if (error[i] <= proof.error) continue;
        proof.error = std::isnan(error[i]) ? kInfinity : error[i], proof.worst = x[i];
      }
      proof.numbers += x.size();
    }
  }
  proof.error += 2 * kSeriesError;
  return proof;
}

bool holds(const SoftmaxExpProof& proof) { return proof.error <= kernels::kSoftmaxExp; }

nlohmann::ordered_json to_json(const SoftmaxExpProof& proof) {
  return {{"numbers", proof.numbers},
          {"error", proof.error},
          {"error_claimed", kernels::kSoftmaxExp},
          {"worst", proof.worst}};
}

std::string to_text(const SoftmaxExpProof& proof) {
  return fmt::format("exp of {} fp32 numbers: within {:.4f} 2^-24 of it (claimed {:.4f}), worst at {:.9g}\n",
                     proof.numbers, kernels::decimals_up(proof.error * 0x1p24, 4),
                     kernels::kSoftmaxExp * 0x1p24, proof.worst);
}

}  // namespace outgrad::validation
