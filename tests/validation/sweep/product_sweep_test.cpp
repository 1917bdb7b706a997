// Pairs of a gated product: counted, within the claims, alike in every binade of b, and changed coefficients
// are seen.
#include "validation/sweep/product_sweep.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>

#include "kernels/generated/gelu_f16_product.h"
#include "kernels/generated/silu_bf16_product.h"
#include "kernels/support/files.h"
#include "validation/sweep/product_subject.h"

namespace outgrad::validation {
namespace {

using Json = nlohmann::json;

Json committed(const ProductSubject& subject) {
  return Json::parse(kernels::read_file(std::string(OUTGRAD_SOURCE_DIR) + "/notebooks_data/sweeps/" +
                                        subject.name + ".json"));
}

/// The numbers of a format from 2^exponent to twice that.
std::vector<float> binade(const FloatFormat& format, int exponent) {
  std::vector<float> found = every_number(format);
  std::erase_if(found, [exponent](float b) {
    return !(b >= std::ldexp(1.0f, exponent) && b < std::ldexp(1.0f, exponent + 1));
  });
  return found;
}

bool hold(const ProductErrors& errors, const ProductSubject& subject) {
  return std::ranges::all_of(gates_of(errors, subject), [](const SweepGate& gate) { return gate.holds(); });
}

const ProductSubject& shipped_product(const std::string& name) {
  return *std::ranges::find(shipped_products(), name, &ProductSubject::name);
}

// What the header of product_sweep.h argues, and how the committed counts over all 2^32 pairs are made again
// in a test of every run.
TEST(ProductSweep, OneBinadeOfBHasItAll) {
  ASSERT_EQ(shipped_products().size(), 6u);
  for (const ProductSubject& subject : shipped_products()) {
    const std::vector<float> factors = binade(subject.format, 0);
    ASSERT_EQ(factors.size(), std::size_t{1} << (subject.format.precision - 1));
    const ProductErrors errors = product_errors(subject, factors);
    EXPECT_EQ(errors.pairs(), std::int64_t{65536} << (subject.format.precision - 1)) << subject.name;
    EXPECT_TRUE(hold(errors, subject)) << subject.name;
    const Json all = committed(subject);
    EXPECT_EQ(errors.total[0].value, all["T"]["left"]["value"].get<double>()) << subject.name;
    EXPECT_EQ(errors.total[1].value, all["T"]["right"]["value"].get<double>()) << subject.name;
    EXPECT_LE(errors.relative.value, all["relative"]["value"].get<double>()) << subject.name;
    EXPECT_GE(errors.relative.value, 0.999 * all["relative"]["value"].get<double>()) << subject.name;
  }
}

TEST(ProductSweep, PairsAreAlikeInEveryBinadeAndBothSigns) {
  const ProductSubject& subject = shipped_product("silu_bf16_product");
  const ProductErrors one = product_errors(subject, binade(kBf16, 0));
  for (const int exponent : {-60, 60}) {
    std::vector<float> factors = binade(kBf16, exponent);
    if (exponent < 0) std::ranges::for_each(factors, [](float& b) { b = -b; });
    const ProductErrors other = product_errors(subject, factors);
    EXPECT_EQ(other.total[0].value, one.total[0].value);
    EXPECT_EQ(other.total[1].value, one.total[1].value);
    EXPECT_EQ(other.total[1].a, one.total[1].a);
    EXPECT_EQ(other.pairs(), one.pairs());
  }
}

TEST(ProductSweep, CommittedCountsAreOfAllPairs) {
  for (const ProductSubject& subject : shipped_products()) {
    const Json counts = committed(subject)["counts"];
    const auto count = [&](const char* kind) { return counts[kind].get<std::int64_t>(); };
    const std::int64_t finite = 65536 - (std::int64_t{2} << (subject.format.precision - 1));
    EXPECT_EQ(count("special"), (std::int64_t{1} << 32) - finite * finite) << subject.name;
    EXPECT_EQ(count("b_is_zero"), 2 * finite) << subject.name;
    EXPECT_EQ(count("f_is_zero") % (finite - 2), 0) << subject.name << ": whole a, with every b but 0";
    EXPECT_GT(count("overflow"), 0) << subject.name;
    std::int64_t all = 0;
    for (const char* kind : kPairKindNames) all += count(kind);
    EXPECT_EQ(all, std::int64_t{1} << 32) << subject.name;
    EXPECT_EQ(count("normal") % 2, 0) << subject.name << ": b and -b";
  }
}

double parsed(const Json& text) { return std::strtod(text.get<std::string>().c_str(), nullptr); }

// The products and quotients of the worst pairs, by double arithmetic and MPFR's f and f'.
TEST(ProductSweep, WorstPairsAreWhatMpfrSaysOfThem) {
  for (const ProductSubject& subject : shipped_products()) {
    const Json all = committed(subject);
    const std::unique_ptr<Oracle> oracle = subject.activation->oracle();
    for (const Json& worst : {all["T"]["left"], all["T"]["right"], all["relative"]}) {
      const double a = parsed(worst["a"]), b = parsed(worst["b"]), z = parsed(worst["z"]);
      const double f = (oracle->value_bounds(a).lo + oracle->value_bounds(a).hi) / 2;
      const double exact = round_to_format(f * b, subject.format);
      const double step = std::ldexp(std::fabs(z), 1 - subject.format.precision);
      EXPECT_LE(std::fabs(z - exact), step) << subject.name << ": f in fp32 may have moved a tie";
      EXPECT_EQ(parsed(worst["s"]), static_cast<double>(static_cast<float>(z / b))) << subject.name;
    }
    for (const char* side : {"left", "right"}) {
      const Json& worst = all["T"][side];
      const double slope = oracle->derivative(parsed(worst["a"]));
      EXPECT_NEAR(worst["want"].get<double>(), slope, 0x1p-50);
      EXPECT_NEAR(worst["value"].get<double>(), std::fabs(worst["got"].get<double>() - slope), 0x1p-50);
      EXPECT_LE(std::fabs(worst["got"].get<double>() - slope), subject.claims.total);
    }
  }
}

/// The fit with one coefficient of one row moved by 2%.
template <class Fit, int kRow, int kWord>
struct Damaged : Fit {
  static OUTGRAD_HD constexpr auto table() {
    auto table = Fit::table();
    table.w[kRow][kWord] += 0.02f;
    return table;
  }
};

TEST(ProductSweep, ADamagedCoefficientOrClaimFails) {
  using kernels::generated::SiluBf16Product;
  const std::vector<float> factors = binade(kBf16, 0);
  const auto holds = [&](const ProductSubject& subject) {
    return hold(product_errors(subject, factors), subject);
  };
  EXPECT_TRUE(holds(make_product_subject<SiluBf16Product>()));
  EXPECT_FALSE((holds(make_product_subject<Damaged<SiluBf16Product, 1, 1>>())));
  EXPECT_FALSE((holds(make_product_subject<Damaged<SiluBf16Product, 3, 1>>())));
  EXPECT_FALSE((holds(make_product_subject<Damaged<SiluBf16Product, 12, 1>>())));
  const std::string identity = make_product_subject<SiluBf16Product>().identity;
  EXPECT_NE((make_product_subject<Damaged<SiluBf16Product, 7, 2>>()).identity, identity);
  ProductSubject claims = make_product_subject<SiluBf16Product>();
  claims.claims.relative *= 0.99;
  EXPECT_FALSE(holds(claims));
  claims = make_product_subject<SiluBf16Product>();
  claims.claims.total *= 0.9;
  EXPECT_FALSE(holds(claims));
}

// A product just below the least normal number that rounds to it is off by more than u / (1 + u) of itself:
// z = 2^-14 here, f(a) = 44.5. This broke kRelative as long as such a z counted as normal.
TEST(ProductSweep, TheLeastNormalNumberIsNoNormalProduct) {
  const ProductSubject& subject = shipped_product("gelu_f16_product");
  const ProductErrors errors = product_errors(subject, {-0x1.7p-20f});
  EXPECT_TRUE(hold(errors, subject));
  EXPECT_GT(errors.count(PairKind::small_b), 0);
  const float f = 44.5f, b = -0x1.7p-20f, z = kernels::widen(kernels::narrow<kernels::F16>(f * b));
  EXPECT_EQ(z, -0x1p-14f);
  EXPECT_GT(std::fabs(z / b - f) - subject.claims.absolute, subject.claims.relative * f);
}

TEST(ProductSweep, EdgesAreOfTheirKinds) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const ProductSubject& subject : shipped_products()) {
    const std::int64_t finite = 65536 - (std::int64_t{2} << (subject.format.precision - 1));
    const auto least = static_cast<float>(std::ldexp(1.0, subject.format.quantum_exponent));
    for (const float b : {0.0f, -0.0f, INFINITY, kNan, least, static_cast<float>(subject.format.largest)}) {
      const ProductErrors errors = product_errors(subject, {b});
      SCOPED_TRACE(subject.name + " " + std::to_string(b));
      EXPECT_TRUE(hold(errors, subject));
      EXPECT_EQ(errors.pairs(), 65536);
      EXPECT_EQ(errors.count(PairKind::special), std::isfinite(b) ? 65536 - finite : 65536);
      EXPECT_EQ(errors.count(PairKind::b_is_zero), b == 0 ? finite : 0);
      EXPECT_EQ(errors.count(PairKind::overflow) > 0, b == static_cast<float>(subject.format.largest));
      EXPECT_EQ(errors.count(PairKind::beside_f) > 0, b == least);
    }
  }
}

}  // namespace
}  // namespace outgrad::validation
