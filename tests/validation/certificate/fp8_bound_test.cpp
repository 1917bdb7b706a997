// Headers for y in 8 bits at a scale: what is committed holds and is nearly needed, and what is damaged is
// refused.
#include "validation/certificate/fp8_bound.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "kernels/support/files.h"
#include "validation/certificate/check.h"

namespace outgrad::validation {
namespace {

std::string fp8_text(const std::string& activation) {
  return kernels::read_file(OUTGRAD_SOURCE_DIR "/kernels/generated/" + activation + "_fp8.h");
}

Fp8Header committed_fp8(const std::string& activation) {
  return std::get<Fp8Header>(parse_header(fp8_text(activation), activation));
}

// The first finding that does not hold.
std::string fp8_refused_by(const Fp8Header& h) {
  for (const Finding& finding : check_header(h, Findings::to_failure).findings) {
    if (finding.verdict != Verdict::Holds) return finding.name;
  }
  return "";
}

void expect_held(const char* activation) {
  const Header header = parse_header(fp8_text(activation), activation);
  EXPECT_EQ(print_header(header), fp8_text(activation));
  const CheckReport report = check_header(header);
  EXPECT_EQ(report.verdict(), Verdict::Holds) << to_text(report);
  EXPECT_EQ(report.findings.size(), 4u + 6 * 3) << activation;
  for (const Finding& finding : report.findings) {
    if (finding.name.find(" T") == std::string::npos) continue;
    EXPECT_GT(finding.proven, finding.claim * 0.999) << activation << " " << finding.name;
  }
}

TEST(Fp8Bound, CommittedHeadersHoldAndAreTheirOneText) {
  for (const char* activation : {"gelu", "silu"}) expect_held(activation);
}

TEST(Fp8Bound, NightlyOtherCommittedHeadersHoldAndAreTheirOneText) {
  for (const char* activation : {"gelu_tanh", "quick_gelu", "swish", "mish"}) expect_held(activation);
}

TEST(Fp8Bound, DamagedHeadersAreRefused) {
  const Fp8Header good = committed_fp8("gelu");
  const auto expect = [&](const std::string& finding, const auto& damage) {
    Fp8Header h = good;
    damage(h);
    EXPECT_EQ(fp8_refused_by(h), finding);
  };
  expect("structure", [](Fp8Header& h) { h.code = "silu_code"; });
  expect("structure", [](Fp8Header& h) { h.fit = "silu_f32"; });
  expect("structure", [](Fp8Header& h) { h.bound_g = 0; });
  expect("structure", [](Fp8Header& h) { h.function = "x*sigmoid(x)"; });
  expect("structure", [](Fp8Header& h) { h.activation = "tanh"; });
  expect("structure", [](Fp8Header& h) { h.accuracy = "abs:2^-14"; });
  expect("structure", [](Fp8Header& h) { h.accuracy = "oracle"; });
  expect("structure", [](Fp8Header& h) { h.e4m3.least = 0; });
  expect("structure", [](Fp8Header& h) { h.e5m2.most = h.e5m2.least; });
  expect("structure", [](Fp8Header& h) { h.e5m2.most = INFINITY; });
  expect("structure", [](Fp8Header& h) { h.e4m3.total[2] = 0; });
  expect("extrema", [](Fp8Header& h) { h.least_at *= 1.01f; });
  expect("extrema", [](Fp8Header& h) { h.greatest_at *= 0.99f; });
  expect("extrema", [](Fp8Header& h) { h.greatest_at = -h.greatest_at; });
  expect("extrema", [](Fp8Header& h) { h.least_at = -h.least_at; });
  expect("G", [](Fp8Header& h) { h.bound_g *= 0.999; });
  expect("room", [](Fp8Header& h) { h.room *= 0.999; });
  expect("room", [](Fp8Header& h) { h.bound_g *= 1.001; });
  expect("e4m3 T0", [](Fp8Header& h) { h.e4m3.least /= 4; });
  expect("structure", [](Fp8Header& h) { h.mxfp4.least *= 1.5f; });
}

// By the prover of the claims of one format, since what is before them in the header takes a minute to prove.
TEST(Fp8Bound, NightlyDamagedTotalsAreRefused) {
  const Fp8Header good = committed_fp8("gelu");
  const auto expect = [&](const std::string& format, std::vector<bool> holds, const auto& damage) {
    Fp8Header h = good;
    damage(h);
    const std::vector<Finding> findings = prove_fp8_totals(h, format);
    ASSERT_EQ(findings.size(), holds.size()) << format;
    for (size_t bits = 0; bits < holds.size(); ++bits) {
      EXPECT_EQ(findings[bits].name, fmt::format("{} T{}", format, bits));
      EXPECT_EQ(findings[bits].verdict == Verdict::Holds, holds[bits]) << findings[bits].name;
    }
  };
  // At smaller scales there are fewer numbers about the minimum, at larger ones the largest number is nearer
  // to it.
  expect("e5m2", {true, false, false}, [](Fp8Header& h) { h.e5m2.most *= 8; });
  expect("int8", {false, false, false}, [](Fp8Header& h) { h.int8.least /= 2; });
  expect("mxfp4", {false, false, false}, [](Fp8Header& h) { h.mxfp4.least /= 2; });
  expect("nvfp4", {false, false, false}, [](Fp8Header& h) { h.nvfp4.least /= 2; });
  for (size_t bits = 0; bits < 3; ++bits) {
    std::vector<bool> holds(3, true);
    holds[bits] = false;
    expect("e4m3", holds, [&](Fp8Header& h) { h.e4m3.total[bits] *= 0.999; });
    expect("e5m2", holds, [&](Fp8Header& h) { h.e5m2.total[bits] *= 0.999; });
    expect("int8", holds, [&](Fp8Header& h) { h.int8.total[bits] *= 0.999; });
    expect("mxfp4", holds, [&](Fp8Header& h) { h.mxfp4.total[bits] *= 0.999; });
    expect("nvfp4", holds, [&](Fp8Header& h) { h.nvfp4.total[bits] *= 0.999; });
    expect("sign", holds, [&](Fp8Header& h) { h.sign[bits] *= 0.999; });
  }
}

// Half a claim is refuted by a scale, not left undecided.
TEST(Fp8Bound, WhatNoTableReachesIsViolated) {
  Fp8Header h = committed_fp8("silu");
  for (const auto& [format, claims] : {std::pair{"e5m2", &h.e5m2}, std::pair{"int8", &h.int8},
                                       std::pair{"mxfp4", &h.mxfp4}, std::pair{"nvfp4", &h.nvfp4}}) {
    for (double& total : claims->total) total /= 2;
    for (const Finding& finding : prove_fp8_totals(h, format)) {
      EXPECT_EQ(finding.verdict, Verdict::Violated) << finding.name;
      ASSERT_TRUE(finding.witness.has_value());
      EXPECT_GE(finding.witness->at, static_cast<double>(claims->least));
      EXPECT_LE(finding.witness->at, static_cast<double>(claims->most));
    }
  }
}

}  // namespace
}  // namespace outgrad::validation
