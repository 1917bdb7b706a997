// What a header makes of every x: the same y and slope as the witness of a named activation, whose proofs are
// other ones; claims that are kept; and changed headers that are seen.
#include "validation/front/header_points.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/support/errors.h"
#include "kernels/support/files.h"
#include "validation/front/front.h"
#include "validation/commands.h"
#include "validation/sweep/sweep.h"
#include "validation/sweep/swept_activation.h"

namespace outgrad::validation {
namespace {

std::string header_file(const std::string& name) {
  return fmt::format("{}/kernels/generated/{}.h", OUTGRAD_SOURCE_DIR, name);
}

struct Case {
  const char* header;
  const FloatFormat& format;
  std::size_t x;  // with |x| <= 64: +-0, subnormals, and the binades below 64 with 64 itself
  friend void PrintTo(const Case& of, std::ostream* out) { *out << of.header; }
};

class HeaderPoints : public testing::TestWithParam<Case> {};

TEST_P(HeaderPoints, AreThoseOfTheActivationsOwnWitness) {
  const Case& each = GetParam();
  const Header header = read_header(header_file(each.header));
  const SweptActivation& f = *swept_activation(std::get<BackwardHeader>(header).activation);
  const auto oracle = f.oracle();
  const std::vector<HeaderPoint> points = header_points(header, each.format);
  ASSERT_EQ(points.size(), each.x);
  double worst = 0;
  for (const HeaderPoint& p : points) {
    const double x = static_cast<double>(p.x), y = oracle->value(x, each.format);
    ASSERT_EQ(static_cast<double>(p.y), y) << x;
    ASSERT_EQ(std::signbit(p.y), std::signbit(y)) << x;
    ASSERT_NEAR(p.slope, oracle->derivative(x), 0x1p-50) << x;
    ASSERT_EQ(p.m, x > f.x_star) << x;
    worst = std::max(worst, std::fabs(static_cast<double>(p.g) - p.slope));
  }
  EXPECT_LE(worst, summary_of(header).claims.total);
  EXPECT_GT(worst, summary_of(header).claims.total / 2);  // over all real x it is little more
}

INSTANTIATE_TEST_SUITE_P(Headers, HeaderPoints,
                         testing::Values(Case{"silu_bf16", kBf16, 2 * (132 * 128 + 1 + 127 + 1)},
                                         Case{"tanh_f16", kF16, 2 * (20 * 1024 + 1 + 1023 + 1)},
                                         Case{"elu_bf16", kBf16, 2 * (132 * 128 + 1 + 127 + 1)}),
                         [](const auto& each) { return std::string(each.param.header); });

TEST(HeaderSweep, SeesAChangedCoefficientAndRefusesOtherHeaders) {
  const kernels::ScratchFolder folder;
  const std::string out = folder / "sweep.json";
  EXPECT_TRUE(validate_header(header_file("silu_bf16"), "", out, {}));
  const auto swept = nlohmann::json::parse(kernels::read_file(out));
  EXPECT_EQ(swept.at("counts").at("x"), 2 * (132 * 128 + 1 + 127 + 1));
  EXPECT_LT(swept.at("O").at("max").get<double>(), swept.at("T").at("max").get<double>());
  auto header = std::get<BackwardHeader>(read_header(header_file("silu_bf16")));
  header.table.values[1] += 0.25f;  // c0 of the first row
  kernels::write_file(folder / "changed.h", print_header(header));
  EXPECT_FALSE(validate_header(folder / "changed.h", "", out, {}));
  for (const char* other : {"silu_f32", "silu_code", "silu_forward_bf16"})
    EXPECT_THROW(validate_header(header_file(other), "", out, {}), kernels::SpecError) << other;
}

TEST(HeaderFront, TheHeadersStoreHasTheErrorsOfTheShippedOne) {
  const Header header = read_header(header_file("silu_bf16"));
  constexpr std::size_t kOfOne = 1;  // sigma
  const auto of = [&](const FrontDomain& domain, Store store) {
    return front_of(domain, {std::move(store)}, usual_distributions(), kOfOne).front();
  };
  const FrontRow own = of(FrontDomain(header), header_store(header)),
                 shipped = of(kSilu, own_stores(kSilu).front());
  EXPECT_EQ(own.store.name, shipped.store.name);
  EXPECT_EQ(own.store.proven, shipped.store.proven);
  EXPECT_NEAR(own.under[kOfOne].rms, shipped.under[kOfOne].rms, 1e-9);
  EXPECT_NEAR(own.under[kOfOne].greatest, shipped.under[kOfOne].greatest, kSweepMargin);
}

TEST(FrontTable, FitsAnyTerminal) {
  const auto rows = front_of(kGelu, own_stores(kGelu), usual_distributions(), 1);
  for (const int columns : {40, 80, 100, 200}) {
    const std::string table = front_table("gelu", rows, 1, columns);
    EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), static_cast<std::ptrdiff_t>(rows.size()) + 2);
    for (std::size_t begin = 0, end = 0; begin < table.size(); begin = end + 1) {
      end = table.find('\n', begin);
      EXPECT_LE(end - begin, static_cast<std::size_t>(columns)) << table.substr(begin, end - begin);
    }
  }
}

}  // namespace
}  // namespace outgrad::validation
