// Code headers: what is committed holds, what is damaged is refused, and the proofs are near what is found by
// trying.
#include "validation/certificate/code_bound.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/activations.h"
#include "kernels/catalogue/codes.h"
#include "kernels/host/errors.h"
#include "kernels/support/files.h"
#include "validation/certificate/accuracy_class.h"
#include "validation/certificate/check.h"
#include "validation/sweep/swept_activation.h"

namespace outgrad::validation {
namespace {

std::string code_text(const std::string& activation) {
  return kernels::read_file(OUTGRAD_SOURCE_DIR "/kernels/generated/" + activation + "_code.h");
}

CodeHeader committed_code(const std::string& activation) {
  return std::get<CodeHeader>(parse_header(code_text(activation), activation));
}

// The first finding that does not hold.
std::string refused_by(const CodeHeader& h) {
  for (const Finding& finding : check_header(h, Findings::to_failure).findings) {
    if (finding.verdict != Verdict::Holds) return finding.name;
  }
  return "";
}

TEST(CodeBound, EveryCommittedHeaderHoldsAndIsItsOneText) {
  for (const char* activation : kernels::kActivationNames) {
    const Header header = parse_header(code_text(activation), activation);
    EXPECT_EQ(print_header(header), code_text(activation));
    const CheckReport report = check_header(header);
    EXPECT_EQ(report.verdict(), Verdict::Holds) << to_text(report);
    EXPECT_EQ(report.findings.size(), 3u + 8 + 2 + 1) << activation;
    for (const Finding& finding : report.findings) {
      if (finding.name.starts_with("T") || finding.name.starts_with("dithered")) {
        EXPECT_GT(finding.proven, finding.claim * (1 - 1e-6)) << activation << " " << finding.name;
        EXPECT_GE(std::stod(finding.why), finding.claim) << activation << " " << finding.why;
      }
    }
  }
}

TEST(CodeBound, DamagedHeadersAreRefused) {
  for (const char* activation : {"silu", "elu"}) {
    const CodeHeader good = committed_code(activation);
    ASSERT_EQ(refused_by(good), "");
    const auto expect = [&](const char* finding, const auto& damage) {
      CodeHeader h = good;
      damage(h);
      EXPECT_EQ(refused_by(h), finding) << activation;
    };
    expect("range", [](CodeHeader& h) { h.hi -= 0x1p-22f; });
    if (good.lo < 0) expect("range", [](CodeHeader& h) { h.lo += 0x1p-22f; });
    expect("structure", [](CodeHeader& h) {
      h.hi += 0x1p-24f * h.hi;
      h.lo -= 0x1p-24f;
    });
    expect("structure", [](CodeHeader& h) { h.lo = h.hi; });
    expect("structure", [](CodeHeader& h) { h.function = "x*normal_cdf(x)"; });
    expect("structure", [](CodeHeader& h) { h.activation = "expression"; });
    expect("structure", [](CodeHeader& h) { h.accuracy = "abs:2^-30"; });
    expect("structure", [](CodeHeader& h) { h.accuracy = "oracle"; });
    // A wider range makes every code coarser than its claim.
    expect("T1", [](CodeHeader& h) { h.hi += 0x1p-10f; });
    expect("T1", [](CodeHeader& h) { h.lo -= 0x1p-10f; });
    for (size_t i = 0; i < good.exact.size(); ++i) {
      const std::string name = fmt::format("T{}", i + 1);
      expect(name.c_str(), [&](CodeHeader& h) { h.exact[i] *= 1 - 1e-5; });
      expect(name.c_str(), [&](CodeHeader& h) { h.exact[i] *= 0.9; });
    }
    for (size_t i = 0; i < good.dithered.size(); ++i) {
      expect(fmt::format("dithered {}", i + 2).c_str(), [&](CodeHeader& h) { h.dithered[i] *= 1 - 1e-5; });
    }
    expect("bias", [](CodeHeader& h) { h.bias *= 0.99; });
  }
}

// A header for an expression of a user's own, of which the library computes no g.
CodeHeader own_code(const std::string& activation) {
  CodeHeader h = committed_code(activation);
  h.activation = "expression", h.name = "own_" + h.name;
  h.x_limit = 64;
  h.bound_g = read_class(h.accuracy).bound;
  const double more = h.bound_g - committed_code(activation).bound_g;
  for (double& total : h.exact) total += more * (1 + 0x1p-40);
  for (double& total : h.dithered) total += more * (1 + 0x1p-40);
  h.bias += more * (1 + 0x1p-40);
  return h;
}

TEST(CodeBound, CodesOfAnExpressionHoldGivenTheCallersGradient) {
  for (const char* activation : {"silu", "softplus", "gelu_tanh"}) {
    const CodeHeader h = own_code(activation);
    const std::string text = print_header(h);
    EXPECT_NE(text.find("given kG"), std::string::npos);
    EXPECT_NE(text.find("kXLimit"), std::string::npos);
    const CheckReport report = check_header(parse_header(text, "own.h"));
    EXPECT_EQ(report.verdict(), Verdict::Holds) << to_text(report);
    EXPECT_EQ(std::count_if(report.findings.begin(), report.findings.end(),
                            [](const Finding& f) { return f.name == "given"; }),
              1);
    EXPECT_EQ(to_text(report).find("G holds"), std::string::npos);
  }
}

TEST(CodeBound, DamagedHeadersOfAnExpressionAreRefused) {
  const CodeHeader good = own_code("silu");
  const auto expect = [&](const char* finding, const auto& damage) {
    CodeHeader h = good;
    damage(h);
    EXPECT_EQ(refused_by(h), finding);
  };
  expect("structure", [](CodeHeader& h) { h.x_limit = 0; });
  expect("structure", [](CodeHeader& h) { h.x_limit = 128; });
  expect("structure", [](CodeHeader& h) { h.activation = "sulu"; });
  // of a function that rises, which this is not
  expect("structure", [](CodeHeader& h) { h.lo = 0; });
  expect("structure", [](CodeHeader& h) { h.function = "sin(x)"; });  // many minima
  expect("structure", [](CodeHeader& h) { h.function = "log(1+exp(x))"; });  // none
  expect("structure", [](CodeHeader& h) { h.bound_g = 0; });
  expect("structure", [](CodeHeader& h) { h.bound_g = 0x1p-24; });  // not what the class promises
  expect("range", [](CodeHeader& h) { h.function = "x*normal_cdf(2*x)"; });
  expect("range", [](CodeHeader& h) { h.hi -= 0x1p-22f; });
  expect("range", [](CodeHeader& h) { h.lo += 0x1p-22f; });
  // a promise that the claims were not made for
  expect("T1", [](CodeHeader& h) { h.bound_g = 0x1p-20, h.accuracy = "abs:2^-20"; });
  for (size_t i = 0; i < good.exact.size(); ++i) {
    expect(fmt::format("T{}", i + 1).c_str(), [&](CodeHeader& h) { h.exact[i] *= 1 - 1e-5; });
  }
  expect("dithered 2", [](CodeHeader& h) { h.dithered[0] *= 1 - 1e-5; });
  expect("bias", [](CodeHeader& h) { h.bias *= 0.99; });
}

// Violated means that an f'(x) outside is shown; an end that is only not proven is Undecided.
TEST(CodeBound, ARangeIsViolatedByAWitnessAlone) {
  for (const char* activation : kernels::kActivationNames) {
    const CodeHeader good = committed_code(activation);
    for (const bool greatest : {false, true}) {
      if (!greatest && good.lo == 0) continue;
      for (const float by : {0x1p-22f, 0x1p-12f}) {
        CodeHeader h = good;
        (greatest ? h.hi : h.lo) += greatest ? -by : by;
        const Finding finding = prove_code_range(h);
        EXPECT_NE(finding.verdict, Verdict::Holds) << activation;
        EXPECT_EQ(finding.verdict == Verdict::Violated, finding.witness.has_value()) << activation;
        EXPECT_TRUE(finding.witness || by < 0x1p-12f) << activation;
        if (!finding.witness) continue;
        const double beyond = greatest ? finding.witness->got - static_cast<double>(h.hi)
                                       : static_cast<double>(h.lo) - finding.witness->got;
        EXPECT_GT(beyond, 0) << activation;
        EXPECT_LE(beyond, static_cast<double>(by)) << activation;
      }
    }
  }
}

// Violated means that an x is shown; a bound that is just not proven is Undecided.
TEST(CodeBound, NightlyAnErrorOfTheCodedGradientIsShown) {
  for (const char* activation : kernels::kActivationNames) {
    CodeHeader h = committed_code(activation);
    h.bound_g /= 32;
    const Finding finding = prove_coded_gradient(h);
    EXPECT_EQ(finding.verdict, Verdict::Violated) << activation;
    ASSERT_TRUE(finding.witness) << activation;
    EXPECT_GT(finding.witness->got, h.bound_g) << activation;
    EXPECT_LE(finding.witness->got, 32 * h.bound_g) << activation;
    h.bound_g *= 24;
    const Finding near = prove_coded_gradient(h);
    EXPECT_NE(near.verdict, Verdict::Holds) << activation;
    EXPECT_EQ(near.verdict == Verdict::Violated, near.witness.has_value()) << activation;
  }
}

// What is proven of the coded g, against what is found at 200,000 x of the range in which f' is not at its
// limits.
TEST(CodeBound, TheErrorOfTheCodedGradientIsWithinTheBoundAndNearIt) {
  constexpr int kCount = 200'000;
  std::vector<float> x;
  for (int i = 0; i <= kCount; ++i) x.push_back(-16 + 32.0f * static_cast<float>(i) / kCount);
  const auto find = [&](const SweptActivation& witness, float (*gradient)(float)) {
    const std::vector<double> slope = witness.reference().at(x).slope;
    double found = 0;
    for (std::size_t i = 0; i < x.size(); ++i)
      found = std::max(found, std::fabs(static_cast<double>(gradient(x[i])) - slope[i]));
    return found;
  };
  const auto expect = [&]<class A>() {
    const double bound = committed_code(A::Code::kActivation).bound_g;
    const double found = find(*swept_activation(A::Code::kActivation),
                              kernels::gradient_at<typename A::template Forward<float>>);
    EXPECT_LE(found, bound) << A::Code::kActivation;
    EXPECT_GE(found, bound / 16) << A::Code::kActivation;
  };
  [&]<class... A>(kernels::CodedList<A...>) {
    (expect.template operator()<A>(), ...);
  }(kernels::CodedActivations{});
}

// By the reader, or, in the words that it takes as they are, by the check.
TEST(CodeBound, DamagedBytesAreRefused) {
  const std::string text = code_text("gelu");
  int read = 0;
  for (size_t at = text.find("kClass"); at < text.size(); at += 7) {
    std::string damaged = text;
    damaged[at] = '#';
    try {
      EXPECT_EQ(refused_by(std::get<CodeHeader>(parse_header(damaged, "h.h"))), "structure") << at;
      ++read;
    } catch (const kernels::SpecError&) {
    }
  }
  EXPECT_LT(read, 10);
}

}  // namespace
}  // namespace outgrad::validation
