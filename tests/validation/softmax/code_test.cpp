// The proof of softmax's codes: it holds, its claims are tight, and it sees codes that are a little wrong.
#include "validation/softmax/code.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/host/softmax.h"

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
  EXPECT_GT(proof.cell, 0.99998 * kernels::kSoftmaxCell);
  EXPECT_GT(static_cast<double>(proof.last[0]), 0.99998 * kernels::kSoftmaxLeast);
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

}  // namespace
}  // namespace outgrad::validation
