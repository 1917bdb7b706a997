// Coq has the deployed kernels of GELU, its tanh form and Swish, and accepts what is claimed of them over one
// binade of bf16 but nothing that is a little wrong; exhaustively, over every number of bf16 and of f16. Coq
// also has what the kernels of norms do with one channel, and their limits; and the kernels of gated pairs.
#include "approx/proof/coq_kernel.h"

#include "approx/function/composite.h"
#include "approx/function/format.h"
#include "approx/proof/coq_activation.h"
#include "approx/proof/coq_product.h"
#include "approx/proof/coq_reals.h"
#include "approx/proof/coq_text.h"
#include "approx/search/own_fit.h"
#include "kernels/eval.h"
#include "kernels/generated/gelu_bf16.h"
#include "kernels/generated/gelu_bf16_product.h"
#include "kernels/generated/gelu_bf16_stored.h"
#include "kernels/generated/gelu_f16.h"
#include "kernels/generated/gelu_f16_product.h"
#include "kernels/generated/gelu_forward_bf16.h"
#include "kernels/generated/gelu_forward_f16.h"
#include "kernels/generated/gelu_tanh_bf16.h"
#include "kernels/generated/gelu_tanh_bf16_product.h"
#include "kernels/generated/gelu_tanh_f16.h"
#include "kernels/generated/gelu_tanh_f16_product.h"
#include "kernels/generated/gelu_tanh_forward_bf16.h"
#include "kernels/generated/gelu_tanh_forward_f16.h"
#include "kernels/generated/quick_gelu_bf16.h"
#include "kernels/generated/quick_gelu_forward_bf16.h"
#include "kernels/generated/silu_bf16.h"
#include "kernels/generated/silu_bf16_product.h"
#include "kernels/generated/silu_f16.h"
#include "kernels/generated/silu_f16_product.h"
#include "kernels/generated/silu_forward_bf16.h"
#include "kernels/generated/silu_forward_f16.h"
#include "kernels/gate.h"
#include "kernels/layernorm.h"
#include "kernels/product.h"
#include "kernels/side_policy.h"
#include "kernels/support/digest.h"
#include "kernels/support/files.h"
#include "tests/approx/proof/coq_folder.h"
#include "tests/approx/shared.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

namespace outgrad::approx::coq {
namespace {

/// Where a step of a proof does not follow; other errors have no environment.
constexpr const char* kNoProof = "In environment";

using CoqKernel = CoqFolder;

// ---- The kernel ---------------------------------------------------------------------------------

// Kernel.v and Forward.v say the same as these functions. When they change, look at those, and then change
// the digest.
TEST(CoqKernelText, IsOfTheEvaluatorThatIsDeployed) {
  const std::string text = kernels::read_file(kRoot + "/kernels/eval.h");
  const auto part = [&](const std::string& from, const std::string& to) {
    const std::size_t begin = text.find(from), end = text.find(to, begin);
    EXPECT_TRUE(begin != std::string::npos && end != std::string::npos) << from;
    return text.substr(begin, end - begin);
  };
  const std::string functions =
      part("// p(u), the row's polynomial", "// The same, given only a generated header.") +
      part("struct FloatOps {", "  OUTGRAD_HD float exponent(float a)") +
      part("inline constexpr float kLeastNormal", "// The body of a `where` over w.") +
      part("// f(x) in fp32, ready to be narrowed", "// The same, for use where every x") +
      part("// m = [x >= x*]", "// No bit of an exponent");
  EXPECT_EQ(kernels::sha256(functions), "f7d5fdff73c46cdfe95633387bb0e58619392eb7b9a38fc3e311d8debab52394");
}

namespace generated = kernels::generated;
const Compiled<kernels::BF16, generated::GeluBf16, generated::GeluForwardBf16> kGeluBf16{Format::bf16};
const Compiled<kernels::F16, generated::GeluF16, generated::GeluForwardF16> kGeluF16{Format::f16};
const Compiled<kernels::BF16, generated::GeluTanhBf16, generated::GeluTanhForwardBf16> kGeluTanhBf16{
    Format::bf16};
const Compiled<kernels::F16, generated::GeluTanhF16, generated::GeluTanhForwardF16> kGeluTanhF16{Format::f16};
const Compiled<kernels::BF16, generated::SiluBf16, generated::SiluForwardBf16> kSiluBf16{Format::bf16};
const Compiled<kernels::F16, generated::SiluF16, generated::SiluForwardF16> kSiluF16{Format::f16};
const Compiled<kernels::BF16, generated::QuickGeluBf16, generated::QuickGeluForwardBf16> kQuickGeluBf16{
    Format::bf16};

WitnessScript same_hashes(const std::string& activation, const std::string& format, int step, int count,
                          std::uint64_t results, std::uint64_t outputs) {
  return {"Same.v",
          fmt::format(
              "From Coq Require Import ZArith.\nFrom Outgrad Require Import Kernel Forward {6}_{0}_kernel "
              "{6}_forward_{0}_kernel.\nOpen Scope Z_scope.\n"
              "Lemma results : hash_of_results kernel {1} 0 {2} {3} = {4}.\nProof. vm_cast_no_check (eq_refl "
              "{4}). Qed.\n"
              "Lemma outputs : hash_of_outputs forward {1} 0 {2} {3} = {5}.\nProof. vm_cast_no_check "
              "(eq_refl {5}). Qed.\n",
              format, format == "bf16" ? "8 128" : "11 16", step, count, results, outputs, activation)};
}

// ---- One binade ---------------------------------------------------------------------------------

/// An activation's binade in bf16 where the worst error of all is, next to y*: absolute values first <= n <
/// last.
struct Binade {
  std::string activation;
  int first, last;
  double x_star;
  long double (*cdf)(long double);
  long double (*density)(long double x, long double cdf);
  std::uint64_t (*results)(int step, int count), (*outputs)(int step, int count);
  friend void PrintTo(const Binade& of, std::ostream* out) { *out << of.activation; }
};
const long double kLongPi = std::acos(-1.0L), kTanhScale = 2 * std::sqrt(2 / kLongPi);
const Binade kBinades[] = {
    {"gelu", 126 << 7, 127 << 7, -0.7517, [](long double x) { return std::erfc(-x * std::sqrt(0.5L)) / 2; },
     [](long double x, long double) { return std::exp(-x * x / 2) / std::sqrt(2 * kLongPi); },
     [](int step, int count) { return kGeluBf16.hash_of_results(step, count); },
     [](int step, int count) { return kGeluBf16.hash_of_outputs(step, count); }},
    {"gelu_tanh", 126 << 7, 127 << 7, -0.7525,
     [](long double x) { return 1 / (1 + std::exp(-kTanhScale * (x + 0.044715L * x * x * x))); },
     [](long double x, long double cdf) {
       return kTanhScale * (1 + 3 * 0.044715L * x * x) * cdf * (1 - cdf);
     },
     [](int step, int count) { return kGeluTanhBf16.hash_of_results(step, count); },
     [](int step, int count) { return kGeluTanhBf16.hash_of_outputs(step, count); }},
    {"silu", 127 << 7, 128 << 7, -1.2784, [](long double x) { return 1 / (1 + std::exp(-x)); },
     [](long double, long double cdf) { return cdf * (1 - cdf); },
     [](int step, int count) { return kSiluBf16.hash_of_results(step, count); },
     [](int step, int count) { return kSiluBf16.hash_of_outputs(step, count); }},
    {"quick_gelu", 126 << 7, 127 << 7, -0.7511, [](long double x) { return 1 / (1 + std::exp(-1.702L * x)); },
     [](long double, long double cdf) { return 1.702L * cdf * (1 - cdf); },
     [](int step, int count) { return kQuickGeluBf16.hash_of_results(step, count); },
     [](int step, int count) { return kQuickGeluBf16.hash_of_outputs(step, count); }},
};

/// The theorem of that binade, from a covered_script() file.
WitnessScript binade_theorem(const Binade& of) {
  return {
      "Binade.v",
      fmt::format(
          "From Coq Require Import Reals ZArith Lia.\nFrom Flocq Require Import Core.\nFrom Outgrad Require "
          "Import Format Kernel Exhaustion Forward "
          "{2}_bf16_kernel {2}_forward_bf16_kernel {2}_bf16_all_0.\nOpen Scope Z_scope.\n"
          "Theorem binade : forall n x, {0} <= n < {1} -> in_format 8 128 x -> Rabs x = magnitude 8 128 n "
          "->\n  total_error_at 8 128 kernel (F2R T) x /\\ forward_right_at 8 128 forward x /\\ "
          "stored_gradient_at 8 128 forward kernel (F2R T) x.\n"
          "Proof.\n  intros n x N X E. apply both_checked_correct with n; trivial; try reflexivity; try lia. "
          "repeat split; discriminate.\n"
          "  apply covered. lia.\nQed.\n",
          of.first, of.last, of.activation)};
}

/// The largest error of the kernel at the numbers of the binade, by long double, whose f' is off by less than
/// 2^-63 there.
long double worst_error(const BackwardModel& model, const Binade& of) {
  long double worst = 0;
  for (int n = of.first; n < of.last; ++n) {
    for (const int sign : {0, 1}) {
      const auto x =
          static_cast<long double>(decode(Format::bf16, static_cast<std::uint32_t>(n | (sign << 15))));
      const long double Phi = of.cdf(x), phi = of.density(x, Phi);
      // To the nearest number of bf16: f(x) is no tie.
      const long double ulp = std::ldexp(1.0L, std::ilogb(x * Phi) - 7),
                        y = std::nearbyint(x * Phi / ulp) * ulp;
      worst = std::max(
          worst,
          std::abs(static_cast<long double>(deployed_gradient(model, static_cast<float>(y), x > of.x_star)) -
                   (Phi + x * phi)));
    }
  }
  return worst;
}

/// Whether x < 0 is in the binade.
bool holds(const Binade& of, const Real& x) {
  const auto at = [](int n) { return Real(decode(Format::bf16, static_cast<std::uint32_t>(n))); };
  return at(of.first) <= -x && -x <= at(of.last);
}

/// The supremum of the kernel's error over the negative x of the binade on one side of x*, with 60 digits: f'
/// is monotone there, so that it is at an x whose f(x) is midway between two numbers, or at x*.
Real supremum_of_error(const Fit& fit, const Binade& of, bool right) {
  const Composite f(activation_from_expression(fit.function));
  const auto y = [](int n) { return Real(-decode(Format::bf16, static_cast<std::uint32_t>(n))); };
  Real supremum = 0, near = f.x_star().mid();
  for (int n = narrowed(Format::bf16, static_cast<float>(f.y_star().to_double())) & 0x7fff;; --n) {
    const Real far = f.argument_of((y(n) + y(n - 1)) / 2, right);
    if (!holds(of, far)) return supremum;
    const Real g(
        static_cast<double>(deployed_gradient(*fit.as<BackwardModel>(), static_cast<float>(y(n)), right)));
    for (const Real& x : {near, far}) supremum = std::max(supremum, Real(abs(g - f.gradient_at(x))));
    near = far;
  }
}

/// Of places from x* outward, x* and those that are in the binade.
std::vector<std::string> in_binade(const Binade& of, const std::vector<std::string>& outward) {
  std::vector<std::string> found{"star"};
  for (const std::string& place : outward) {
    if (place.starts_with("point (") && holds(of, ldexp(Real(place.substr(7, place.size() - 8)), -70)))
      found.push_back(place);
  }
  return found;
}

class CoqBinade : public CoqKernel, public testing::WithParamInterface<Binade> {};

TEST_P(CoqBinade, NightlyIsAcceptedAndNothingALittleWrong) {
  const auto& [activation, kFirst, kLast, x_star, cdf, density, results_of, outputs_of] = GetParam();
  Fit fit = committed(activation + "_bf16");
  const KnownActivation subject = known(fit.function);
  ASSERT_TRUE(has_library(fit.function, true));
  const Fit forward = committed(activation + "_forward_bf16");
  ASSERT_TRUE(accepts(kernel_script(fit, "")));
  ASSERT_TRUE(accepts(kernel_script(forward, "")));

  // The kernels, against the compiled ones.
  constexpr int kStep = 61, kCount = 65536 / kStep;
  const std::uint64_t results = results_of(kStep, kCount), outputs = outputs_of(kStep, kCount);
  const auto same = [&](std::uint64_t r, std::uint64_t o) {
    return same_hashes(activation, "bf16", kStep, kCount, r, o);
  };
  EXPECT_TRUE(accepts(same(results, outputs)));
  EXPECT_TRUE(refuses(same(results + 1, outputs), kUnequal));
  EXPECT_TRUE(refuses(same(results, outputs + 1), kUnequal));

  // The double next above the worst error is accepted as T, the one next below is not.
  const WitnessScript binade = covered_script(forward, fit, 0, kFirst, kLast);
  const long double worst = worst_error(*fit.as<BackwardModel>(), GetParam());
  const auto above = static_cast<double>(worst) > worst ? static_cast<double>(worst)
                                                        : std::nextafter(static_cast<double>(worst), 1.0);
  const double below = std::nextafter(above, 0.0);
  EXPECT_GT(worst - static_cast<long double>(below), 0x1p-63L);
  EXPECT_GT(static_cast<long double>(above) - worst, 0x1p-63L);
  EXPECT_LT(above, fit.as<BackwardModel>()->kT);
  fit.as<BackwardModel>()->kT = below;
  ASSERT_TRUE(accepts(kernel_script(fit, "")));
  EXPECT_TRUE(refuses(binade, kUnequal));
  fit.as<BackwardModel>()->kT = above;
  ASSERT_TRUE(accepts(kernel_script(fit, "")));
  ASSERT_TRUE(accepts(binade));
  EXPECT_TRUE(accepts(binade_theorem(GetParam())));

  // The absolute value at either end left out.
  for (const int end : {0, 1}) {
    ASSERT_TRUE(accepts(covered_script(forward, fit, 0, kFirst + end, kLast - 1 + end)));
    EXPECT_TRUE(refuses(binade_theorem(GetParam()), "Cannot find witness")) << end;
  }

  // The same over all negative real x of the binade.
  const double claim = committed(activation + "_bf16").as<BackwardModel>()->kT;
  const Real supremum = supremum_of_error(fit, GetParam(), true);
  const auto nearest = static_cast<double>(supremum);
  const double least = Real(nearest) < supremum ? std::nextafter(nearest, 1.0) : nearest;
  EXPECT_GT(supremum, supremum_of_error(fit, GetParam(), false));
  EXPECT_LE(least, claim);
  EXPECT_LT(claim, least * (1 + 0x1p-25));
  fit.as<BackwardModel>()->kT = std::nextafter(least, 0.0);
  ASSERT_TRUE(accepts(kernel_script(fit, "")));
  std::array<std::vector<std::string>, 2> sides = places(fit);
  for (std::vector<std::string>& side : sides) side = in_binade(GetParam(), side);
  std::ranges::reverse(sides[0]);
  const WitnessScript right = reals_script(fit, sides[1], true);
  EXPECT_TRUE(refuses(right, kUnequal));
  fit.as<BackwardModel>()->kT = least;
  ASSERT_TRUE(accepts(kernel_script(fit, "")));
  ASSERT_TRUE(accepts(right));
  EXPECT_TRUE(accepts(reals_script(fit, sides[0], false)));
  // A place left out: those next to y* are two for each boundary between two y.
  sides[1].erase(sides[1].begin() + 1, sides[1].begin() + 3);
  EXPECT_TRUE(refuses(reals_script(fit, sides[1], true), kUnequal));

  // The branch bit read the other way round.
  ASSERT_TRUE(accepts(with(of_library("Kernel"), "if m then r else SFopp r", "if m then SFopp r else r")));
  for (const std::string& name : {std::string("Exhaustion"), std::string("Forward"),
                                  subject.module + "Series", std::string("Continuum")})
    ASSERT_TRUE(accepts(of_library(name)));
  ASSERT_TRUE(accepts(kernel_script(fit, "")));
  ASSERT_TRUE(accepts(kernel_script(forward, "")));
  EXPECT_TRUE(refuses(binade, kUnequal));
  EXPECT_TRUE(refuses(right, kUnequal));
}

INSTANTIATE_TEST_SUITE_P(Of, CoqBinade, testing::ValuesIn(kBinades),
                         [](const auto& of) { return of.param.activation; });

/// Without a left segment, coordinates are held at s_min.
TEST_F(CoqKernel, NightlyHoldsCoordinatesWhereThereIsNoLeftSegment) {
  const Fit fit = committed("gelu_bf16_stored");
  ASSERT_TRUE(has_library(fit.function, false));
  constexpr int kStep = 7, kCount = 65536 / kStep;
  const Compiled<kernels::BF16, generated::GeluBf16Stored, void> compiled{Format::bf16};
  const WitnessScript same =
      same_results(fit.name, "8 128", kStep, kCount, compiled.hash_of_results(kStep, kCount));
  WitnessScript kernel = kernel_script(fit, "");
  ASSERT_TRUE(accepts(kernel));
  EXPECT_TRUE(accepts(same));
  const size_t held = kernel.text.find("s_min := ") + 9;
  kernel.text.replace(held, kernel.text.find(';', held) - held, "S754_infinity true");
  ASSERT_TRUE(accepts(kernel));
  EXPECT_TRUE(refuses(same, kUnequal));
}

TEST(CoqKernelScripts, AreForTheKernelsThatTheLibraryHas) {
  for (const char* const name : {"gelu_f32", "mish_bf16", "gelu_bf16_oracle", "gelu_forward"}) {
    EXPECT_THROW((void)kernel_script(committed(name), name), kernels::SpecError) << name;
  }
  // Every absolute value is in one of the files.
  for (const std::string name : {"gelu_bf16", "gelu_f16", "gelu_tanh_bf16", "gelu_tanh_f16", "silu_bf16",
                                 "silu_f16", "quick_gelu_bf16", "quick_gelu_f16", "swish_bf16"}) {
    const Fit fit = committed(name),
              forward = committed(std::string(name).insert(name.rfind('_'), "_forward"));
    int next = 0;
    for (const WitnessScript& script : exhaustion_scripts(forward, fit, "").at(1)) {
      const std::string& text = script.text;
      int first = 0, last = 0;
      ASSERT_EQ(std::sscanf(text.c_str() + text.find("forall n, "), "forall n, %d <= n < %d", &first, &last),
                2)
          << text;
      EXPECT_EQ(first, next);
      next = last;
    }
    EXPECT_EQ(next, fit.as<BackwardModel>()->format == Format::bf16 ? 0x7f80 : 0x7c00) << name;
  }
}

// ---- One channel of a norm ----------------------------------------------------------------------

/// Triples of operands: bit patterns of all numbers, or of those of magnitude 2^-7 to 2. In Coq they are next
/// and operand.
class Operands {
 public:
  std::array<float, 3> next(bool near) {
    std::array<float, 3> numbers{};
    for (float& number : numbers) {
      state_ = (state_ * 25214903917 + 11) % (std::uint64_t{1} << 48);
      const auto bits = static_cast<std::uint32_t>(state_ >> 16);
      number = kernels::float_of(near ? bits % (1u << 26) + (15u << 26) + (bits >> 31 << 31) : bits);
    }
    return numbers;
  }

 private:
  std::uint64_t state_ = 1;
};
const std::string kOperandsInCoq =
    "Definition next s := (s * 25214903917 + 11) mod 2 ^ 48.\n"
    "Definition operand s (near : bool) := let b := s / 2 ^ 16 in of_pattern 24 128\n"
    "  (if near then b mod 2 ^ 26 + 15 * 2 ^ 26 + b / 2 ^ 31 * 2 ^ 31 else b).\n";

/// What layernorm.h makes of an x^, gamma and beta: y, the backward's x^, and the first fold of two products.
template <class T>
std::uint64_t hash_of_channels(int count, bool divides) {
  using Hash = decltype(kSiluBf16);
  std::uint64_t hash = 0;
  Operands operands;
  for (int i = 0; i < count; ++i) {
    float column[kernels::kColumnArrays];
    const auto [x, gamma, beta] = operands.next(i % 2 == 1);
    const T y = kernels::narrow<T>(kernels::forward_output(x, 0.0f, 1.0f, gamma, beta));
    const kernels::NormColumns columns = kernels::columns_at(column, 1);
    kernels::prepare_column(columns, &gamma, &beta, 0, false);
    const float c = kernels::CentredOutput<T>{&y, columns.beta}.template centred<float>(0);
    // dx is x^ to the bit.
    const float x_hat =
        divides ? c / gamma : kernels::input_gradient(-0.0f, c, 0.0f, *columns.reciprocal, -0.0f, 1.0f, 1.0f);
    using Terms = kernels::GradientTerms<kernels::Norm::rms, float, kernels::CentredStaged>;
    const float fold = Terms::first_fold<float>({{x, 0.0f, gamma}}, {{beta, 0.0f, x_hat}}).v[0];
    for (const float result : {kernels::widen(y), x_hat, fold}) hash = Hash::hashed(hash, result);
  }
  return hash;
}

TEST_F(CoqKernel, NightlyHasOneChannelOfANorm) {
  ASSERT_TRUE(has_library("x*sigmoid(x)", true));
  static constexpr int kCount = 1000;
  const auto same = [](const std::string& format, std::uint64_t hash) {
    return WitnessScript{
        "Same.v",
        fmt::format(
            "From Coq Require Import ZArith.\nFrom Outgrad Require Import Kernel Forward NormChannel "
            "NormSum.\nOpen Scope Z_scope.\n{3}"
            "Fixpoint hash_of_channels s near count hash := match count with O => hash | S count =>\n"
            "  let s1 := next s in let s2 := next s1 in let s3 := next s2 in\n"
            "  let x := operand s1 near in let gamma := operand s2 near in let beta := operand s3 near in\n"
            "  let y := channel_output {0} x gamma beta in let x_hat := channel_x_hat y gamma beta in\n"
            "  hash_of_channels s3 (negb near) count (hashed (hashed (hashed hash (widen y)) x_hat)\n"
            "    (summed (Fold x gamma beta x_hat))) end.\n"
            "Lemma same : hash_of_channels 1 false {1} 0 = {2}.\nProof. vm_cast_no_check (eq_refl "
            "{2}). Qed.\n",
            format, kCount, hash, kOperandsInCoq)};
  };
  EXPECT_TRUE(accepts(same("8 128", hash_of_channels<kernels::BF16>(kCount, false))));
  EXPECT_TRUE(accepts(same("11 16", hash_of_channels<kernels::F16>(kCount, false))));
  EXPECT_TRUE(accepts(same("24 128", hash_of_channels<float>(kCount, false))));
  // A quotient in place of the product with the reciprocal.
  EXPECT_TRUE(refuses(same("8 128", hash_of_channels<kernels::BF16>(kCount, true)), kUnequal));

  // The limits of the policy's test, for tau = 2^-bits.
  const auto limits = [](const std::string& format, const kernels::SideLimits& of, int bits) {
    const auto number = [](float value) {
      return fmt::format("of_pattern 24 128 {}", kernels::bits_of(value));
    };
    return WitnessScript{
        "Limits.v",
        fmt::format(
            "From Coq Require Import Reals SpecFloat Lra.\nFrom Flocq Require Import Core "
            "IEEE754.BinarySingleNaN.\n"
            "From Outgrad Require Import Kernel NormChannel.\nOpen Scope R_scope.\n"
            "Goal exists L, lost_limits stored_{} (/ 2 ^ {}) L.\nProof.\n  let L := eval vm_compute in {{| "
            "slope := {}; floor := {}; least_gamma := {}; greatest_gamma := {}; most := {} |}} in exists L.\n"
            "  unfold lost_limits, e, least; simpl; (rewrite Rmax_left by lra) || (rewrite Rmax_right by "
            "lra).\n  split; [intros x X; repeat (destruct X as [<-|X]; [now repeat split|]); "
            "contradiction|].\n"
            "  unfold F2R; simpl; lra.\nQed.\n",
            format, bits, number(of.slope), number(of.floor), number(of.least), number(of.greatest),
            number(of.overflow))};
  };
  EXPECT_TRUE(accepts(limits("bf16", kernels::lost_limits<kernels::BF16>(0x1p-4), 4)));
  EXPECT_TRUE(accepts(limits("f16", kernels::lost_limits<kernels::F16>(0x1p-4), 4)));
  EXPECT_TRUE(accepts(limits("f32", kernels::lost_limits<float>(0x1p-17), 17)));
  EXPECT_TRUE(
      refuses(limits("bf16", kernels::lost_limits<kernels::BF16>(0x1.01p-4), 4), "Cannot find witness"));
}

// ---- A gated pair -------------------------------------------------------------------------------

/// A header's constants, and what its kernel makes of every kPairStep-th fp32 number.
constexpr int kPairStep = 1048573, kPairCount = 4096;
struct PairKernel {
  const char* name;
  double relative, absolute;
  std::uint64_t results;
  friend void PrintTo(const PairKernel& of, std::ostream* out) { *out << of.name; }
};
template <class Header>
PairKernel pair_kernel() {
  return {Header::kName, Header::kRelative, Header::kAbsolute,
          Compiled<float, Header, void>{Format::f32}.hash_of_results(kPairStep, kPairCount)};
}
const PairKernel kPairKernels[] = {
    pair_kernel<generated::SiluBf16Product>(),     pair_kernel<generated::SiluF16Product>(),
    pair_kernel<generated::GeluTanhBf16Product>(), pair_kernel<generated::GeluTanhF16Product>(),
    pair_kernel<generated::GeluBf16Product>(),     pair_kernel<generated::GeluF16Product>()};

WitnessScript same_pair_hash(const PairKernel& of, std::uint64_t results) {
  return same_results(of.name, "24 128", kPairStep, kPairCount, results);
}

TEST(CoqPairScripts, HaveTheBallOfTheHeaderAndAreForPairsAlone) {
  static_assert(kernels::kGateError < 136e-9, "gate_error of GatedPair.v");
  for (const PairKernel& of : kPairKernels) {
    const Fit fit = committed(of.name);
    EXPECT_FALSE(has_kernel(fit));  // its index is not that of a stored y
    const Groups groups = product_scripts(fit, of.name);
    const std::string& text = groups.at(1).at(0).text;
    for (const auto& [what, value] : {std::pair("relative", of.relative), {"absolute", of.absolute}})
      EXPECT_NE(text.find(fmt::format("Definition {} : float radix2 := {}.", what, dyadic(value))),
                std::string::npos)
          << of.name;
    EXPECT_EQ(groups.at(0).at(0).claim, fit.as<BackwardModel>()->kT);
  }
  Fit mish = committed("silu_bf16_product");
  mish.function = "x*tanh(softplus(x))";
  EXPECT_THROW((void)product_scripts(mish, ""), kernels::SpecError);
}

/// That T holds from x* on, where the largest error is, to -1.
WitnessScript near_minimum(const PairKernel& of, double t, double relative) {
  return {"Near.v", fmt::format("From Coq Require Import ZArith.\nFrom Flocq Require Import Core.\n"
                                "From Outgrad Require Import Kernel SwishSeries Continuum Product "
                                "{0}_kernel.\nOpen Scope Z_scope.\n"
                                "Lemma near : check_between bf16_least kernel ({1}) ({2}) ({3}) true star "
                                "(point (- 2 ^ place_bits)) = true.\n"
                                "Proof. vm_cast_no_check (eq_refl true). Qed.\n",
                                of.name, dyadic(t), dyadic(relative), dyadic(of.absolute))};
}

/// What product.h makes of f(a), b and dz, from z on: z, and db.
template <class T>
std::uint64_t hash_of_pairs(int count) {
  using Fit = generated::SiluBf16Product;  // db is the same of all
  static constexpr auto kTable = Fit::table();
  const kernels::FloatOps ops;
  std::uint64_t hash = 0;
  Operands operands;
  for (int i = 0; i < count; ++i) {
    const auto [f, b, dz] = operands.next(true);
    const float z = kernels::widen(kernels::narrow<T>(f * b));
    const auto kept = kernels::keep_product(ops, z, f, b);
    const float db = kernels::product_gradients(ops, Fit{}, kTable, dz, kept.z, kept.slot, true).db;
    for (const float result : {z, db}) hash = decltype(kSiluBf16)::hashed(hash, result);
  }
  return hash;
}

WitnessScript same_pairs(const std::string& format, std::uint64_t hash) {
  return {"Same.v",
          fmt::format(
              "From Coq Require Import ZArith.\nFrom Outgrad Require Import Kernel Forward GatedPair.\n"
              "Open Scope Z_scope.\n{3}"
              "Fixpoint hash_of_pairs s count hash := match count with O => hash | S count =>\n"
              "  let s1 := next s in let s2 := next s1 in let s3 := next s2 in let b := operand s2 true in\n"
              "  let z := pair_output {0} (operand s1 true) b in\n"
              "  hash_of_pairs s3 count (hashed (hashed hash (widen z)) (mul (operand s3 true) "
              "(pair_quotient z b))) end.\n"
              "Lemma same : hash_of_pairs 1 {1} 0 = {2}.\nProof. vm_cast_no_check (eq_refl {2}). Qed.\n",
              format, kPairCount, hash, kOperandsInCoq)};
}

TEST_F(CoqKernel, NightlyHasAPairAndNothingALittleWrong) {
  ASSERT_TRUE(has_library("x*sigmoid(x)", true));
  EXPECT_TRUE(accepts(same_pairs("8 128", hash_of_pairs<kernels::BF16>(kPairCount))));
  EXPECT_TRUE(accepts(same_pairs("11 16", hash_of_pairs<kernels::F16>(kPairCount))));
  EXPECT_TRUE(refuses(same_pairs("11 16", hash_of_pairs<kernels::BF16>(kPairCount)), kUnequal));
  for (const PairKernel& of : {kPairKernels[0], kPairKernels[1]}) {
    Fit fit = committed(of.name);
    auto& model = *fit.as<BackwardModel>();
    ASSERT_TRUE(accepts(kernel_script(fit, "")));
    EXPECT_TRUE(accepts(same_pair_hash(of, of.results)));
    EXPECT_TRUE(refuses(same_pair_hash(of, of.results + 1), kUnequal));

    // An error that was seen is refused as T, as is what no function of (s, bit) goes below; a little more is
    // accepted, but not of a ball that is a little wider.
    const double seen = model.found.at("T").error, above = seen * (1 + 0x1p-9);
    EXPECT_LE(model.kT, above);
    EXPECT_TRUE(accepts(near_minimum(of, above, of.relative)));
    EXPECT_TRUE(refuses(near_minimum(of, seen * (1 - 0x1p-20), of.relative), kUnequal));
    EXPECT_TRUE(refuses(near_minimum(of, model.kO, of.relative), kUnequal));
    EXPECT_TRUE(refuses(near_minimum(of, above, 1.01 * of.relative), kUnequal));

    // A coefficient of the row about x* that is damaged.
    const auto row =
        std::ranges::find_if(model.pieces, [](const Piece& p) { return p.v_lo < 0 && p.v_hi > 0; });
    row->c[0] -= 0x1p-12f;
    ASSERT_TRUE(accepts(kernel_script(fit, "")));
    EXPECT_TRUE(refuses(near_minimum(of, above, of.relative), kUnequal));
  }

  // The theorems; not with a part of the line left out.
  const PairKernel& of = kPairKernels[0];
  const Groups groups = product_scripts(committed(of.name), "");
  ASSERT_TRUE(accepts(groups.at(0).at(0)));
  const WitnessScript& theorems = groups.at(1).at(0);
  EXPECT_TRUE(accepts(theorems));
  const WitnessScript product = of_library("Product");
  EXPECT_TRUE(refuses(with(product, " &&\n  check true star (point outer)", ""), kNoProof));
  // The branch bit read the other way round.
  ASSERT_TRUE(accepts(with(of_library("Kernel"), "if m then r else SFopp r", "if m then SFopp r else r")));
  for (const char* const name : {"Exhaustion", "Forward", "SwishSeries", "Continuum", "NormChannel"})
    ASSERT_TRUE(accepts(of_library(name)));
  EXPECT_TRUE(refuses(product, kNoProof));
}

// ---- The whole format ---------------------------------------------------------------------------

class CoqKernelExhaustive : public CoqKernel {
 protected:
  template <class Kernels>
  void prove(const std::string& activation, const std::string& format, const Kernels& compiled) {
    const std::string name = activation + "_" + format, delivers = activation + "_forward_" + format;
    const Fit fit = committed(name), forward = committed(delivers);
    Groups groups = exhaustion_scripts(forward, fit, "");
    add(groups, reals_scripts(fit, ""));
    const CheckedFit checked = prove_all(groups, fit);
    std::vector<std::string> theorems;
    for (const Checked& file : checked.bounds) std::ranges::copy(file.theorems, std::back_inserter(theorems));
    EXPECT_EQ(theorems, (std::vector<std::string>{name + "_T", delivers + "_right", name + "_gradient",
                                                  name + "_T_reals"}));
    EXPECT_TRUE(accepts(same_hashes(activation, format, 1, 65536, compiled.hash_of_results(1, 65536),
                                    compiled.hash_of_outputs(1, 65536))));
  }
};

TEST_F(CoqKernelExhaustive, GeluBf16) { prove("gelu", "bf16", kGeluBf16); }
TEST_F(CoqKernelExhaustive, GeluF16) { prove("gelu", "f16", kGeluF16); }
TEST_F(CoqKernelExhaustive, GeluTanhBf16) { prove("gelu_tanh", "bf16", kGeluTanhBf16); }
TEST_F(CoqKernelExhaustive, GeluTanhF16) { prove("gelu_tanh", "f16", kGeluTanhF16); }
TEST_F(CoqKernelExhaustive, SiluBf16) { prove("silu", "bf16", kSiluBf16); }
TEST_F(CoqKernelExhaustive, SiluF16) { prove("silu", "f16", kSiluF16); }
TEST_F(CoqKernelExhaustive, QuickGeluBf16) { prove("quick_gelu", "bf16", kQuickGeluBf16); }

class CoqOwn : public CoqKernel, public testing::WithParamInterface<const char*> {};

/// Of both ends of the steepnesses that there are, and of one between.
TEST_P(CoqOwn, ExhaustiveIsProvenOverTheRealNumbers) {
  const std::string definition = fmt::format(R"text("expression": "x*sigmoid({}*x)")text", GetParam());
  const Fit fit = fit_own({"own", definition, Format::bf16}, 0).fit;
  ASSERT_FALSE(fit.as<BackwardModel>()->kHasLeft);
  const CheckedFit checked = prove_all(reals_scripts(fit, ""), fit);
  EXPECT_EQ(checked.bounds.back().theorems, (std::vector<std::string>{"own_T_reals"}));
}

INSTANTIATE_TEST_SUITE_P(Of, CoqOwn, testing::Values("0.25", "1.2", "32"));

class CoqPair : public CoqKernel, public testing::WithParamInterface<PairKernel> {};

TEST_P(CoqPair, ExhaustiveIsProvenOverTheWholeLine) {
  const std::string name = GetParam().name;
  const Fit fit = committed(name);
  const CheckedFit checked = prove_all(product_scripts(fit, ""), fit);
  EXPECT_EQ(checked.bounds.back().theorems, (std::vector<std::string>{name + "_T", name + "_pair"}));
  EXPECT_TRUE(accepts(same_pair_hash(GetParam(), GetParam().results)));
}

INSTANTIATE_TEST_SUITE_P(Of, CoqPair, testing::ValuesIn(kPairKernels),
                         [](const auto& of) { return std::string(of.param.name); });

}  // namespace
}  // namespace outgrad::approx::coq
