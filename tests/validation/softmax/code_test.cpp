// The proofs of softmax's codes and of its exp: they hold, their claims are tight, and they see what is a
// little wrong.
#include "validation/softmax/code.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/host/softmax.h"
#include "kernels/support/bounds.h"
#include "validation/exact/mp.h"

namespace outgrad::validation {
namespace {

using kernels::float_of;
using kernels::i64;
using kernels::u32;
using kernels::u8;

// What is smaller takes the way of kSoftmaxClamp; the exhaustive test has all.
constexpr float kFrom = 0x1p-26f;

void expect_proof(const SoftmaxCodeProof& proof) {
  EXPECT_EQ(proof.problem, "");
  EXPECT_TRUE(holds(proof));
  EXPECT_EQ(kernels::decimals_up(proof.cell, 6), kernels::kSoftmaxCell);
  EXPECT_EQ(kernels::digits_up(proof.last[0], 5), kernels::kSoftmaxLeast);
  EXPECT_LT(proof.boundary, 1e-4);
  EXPECT_EQ(proof.last[kSoftmaxCodes - 1], 1.0f);
}

const SoftmaxCodeProof& the_proof() {
  static const SoftmaxCodeProof proof = prove_softmax_code(kFrom);
  return proof;
}

TEST(SoftmaxCode, IsProven) {
  const SoftmaxCodeProof& proof = the_proof();
  expect_proof(proof);
  EXPECT_EQ(proof.numbers, (26u << 23) + 1u);
  EXPECT_EQ(to_json(proof)["cell"], proof.cell);
  EXPECT_NE(to_text(proof).find("claimed 0.032482"), std::string::npos) << to_text(proof);
}

// The ends of all cells, by the scalar code that a GPU runs too.
TEST(SoftmaxCode, TheScalarEncoderHasTheSameBoundaries) {
  const SoftmaxCodeProof& proof = the_proof();
  for (std::size_t code = 0; code < kSoftmaxCodes; ++code) {
    EXPECT_EQ(kernels::softmax_code(proof.last[code]), code);
    EXPECT_EQ(kernels::softmax_code(proof.first[code]), code);
  }
}

// A number of its own whose code is one too large.
void encode_with_a_hole(const float* p, u8* codes, i64 n) {
  encode_softmax(p, codes, n);
  for (i64 i = 0; i < n; ++i) codes[i] = static_cast<u8>(codes[i] + (p[i] == 0.3f));
}
// Boundaries a thousandth of a cell higher.
void encode_lower(const float* p, u8* codes, i64 n) {
  std::vector<float> moved(p, p + n);
  for (float& each : moved) each *= 1 - 6.5e-5f;
  encode_softmax(moved.data(), codes, n);
}

TEST(SoftmaxCode, TheProofFailsForWrongCodes) {
  const SoftmaxCodeProof hole = prove_softmax_code(kFrom, encode_with_a_hole);
  EXPECT_FALSE(holds(hole));
  EXPECT_NE(hole.problem.find("follows code"), std::string::npos) << hole.problem;
  EXPECT_EQ(to_text(hole), hole.problem + "\n");
  const SoftmaxCodeProof lower = prove_softmax_code(kFrom, encode_lower);
  EXPECT_EQ(lower.problem, "");
  EXPECT_FALSE(holds(lower));
  EXPECT_GT(lower.cell, kernels::kSoftmaxCell);
}

// All 2^32 patterns: those from 0 to 1 by the proof, the scalar encoder beside the vectors, and whatever is
// no p.
TEST(SoftmaxCode, EveryPatternExhaustive) {
  const SoftmaxCodeProof proof = prove_softmax_code();
  expect_proof(proof);
  EXPECT_EQ(proof.numbers, 0x3f800001u);
  constexpr std::size_t kBlock = std::size_t{1} << 24;
  std::vector<float> p(kBlock);
  std::vector<u8> codes(kBlock);
  std::uint64_t seen = 0, wrong = 0;
  for (std::uint64_t begin = 0; begin >> 32 == 0; begin += kBlock) {
    for (std::size_t i = 0; i < kBlock; ++i) p[i] = float_of(static_cast<u32>(begin + i));
    encode_softmax(p.data(), codes.data(), kBlock);
    for (std::size_t i = 0; i < kBlock; ++i, ++seen) {
      const bool low = !(p[i] > proof.last[0]), high = p[i] >= 1;
      wrong += static_cast<std::uint64_t>(codes[i] != kernels::softmax_code(p[i]) || (low && codes[i] != 0) ||
                                          (high && codes[i] != 255));
    }
  }
  EXPECT_EQ(seen, std::uint64_t{1} << 32);
  EXPECT_EQ(wrong, 0u);
}

// --- Exp -----------------------------------------------------------------------------------------

// |e' - e| / e by MPFR.
double exact_error(float x) {
  float e = 0;
  const double m = exponentials(x, &x, &e, 1);
  const Interval kept(std::ldexp(static_cast<double>(e), static_cast<int>(m) - 64)),
      exact = exp(Interval(static_cast<double>(x)));
  return absolute((kept - exact) / exact).upper();
}

void expect_proof(const SoftmaxExpProof& proof, double tight) {
  EXPECT_TRUE(holds(proof));
  EXPECT_GT(proof.error, tight * kernels::kSoftmaxExp);
  EXPECT_NEAR(proof.error, exact_error(proof.worst), 0x1p-48);
  EXPECT_EQ(to_json(proof)["error"], proof.error);
  EXPECT_NE(to_text(proof).find("claimed 1.4262"), std::string::npos) << to_text(proof);
}

TEST(SoftmaxExp, IsProvenForEachSixtyFourth) {
  const SoftmaxExpProof proof = prove_softmax_exp(64);
  expect_proof(proof, 0.97);
  EXPECT_EQ(proof.numbers, (kernels::bits_of(256.0f) + kernels::bits_of(368.0f)) / 64 + 2);
}

TEST(SoftmaxExp, EveryNumberExhaustive) {
  const SoftmaxExpProof proof = prove_softmax_exp();
  expect_proof(proof, 0.9999);
  EXPECT_EQ(proof.numbers, kernels::bits_of(256.0f) + kernels::bits_of(368.0f) + 2);
}

// An ulp more where x is of one row of 2^16.
double exponentials_with_a_hole(float greatest, const float* x, float* e, i64 n) {
  const double m = exponentials(greatest, x, e, n);
  for (i64 i = 0; i < n; ++i)
    e[i] = float_of(kernels::bits_of(e[i]) + (kernels::bits_of(x[i]) == 0xc1200000u));
  return m;
}
double exponentials_of_nothing(float greatest, const float* x, float* e, i64 n) {
  const double m = exponentials(greatest, x, e, n);
  for (i64 i = 0; i < n; ++i) e[i] = x[i] == -2 ? std::nanf("") : e[i];
  return m;
}

TEST(SoftmaxExp, TheProofFailsForAWrongExp) {
  EXPECT_EQ(prove_softmax_exp(64, exponentials_with_a_hole).worst, -10.0f);
  EXPECT_FALSE(holds(prove_softmax_exp(64, exponentials_with_a_hole)));
  EXPECT_FALSE(holds(prove_softmax_exp(64, exponentials_of_nothing)));
}

}  // namespace
}  // namespace outgrad::validation
