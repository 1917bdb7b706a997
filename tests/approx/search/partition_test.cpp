#include "approx/search/partition.h"

#include "approx/model/fit.h"
#include "kernels/eval.h"
#include "kernels/formats.h"
#include "kernels/support/files.h"
#include "tests/refusal.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace outgrad::approx {
namespace {

TEST(Partition, EveryStoredOutputArrivesAtAPieceThatCoversIt) {
  std::mt19937 random(9);
  for (const char* name :
       {"gelu_f32", "gelu_f16", "gelu_bf16", "gelu_bf16_stored", "gelu_bf16_ulp", "gelu_bf16_fast"}) {
    const std::string path = std::string(OUTGRAD_SOURCE_DIR) + "/notebooks_data/fits/" + name + ".json";
    const Fit fit = fit_from_json(kernels::read_file(path), path);
    const BackwardModel& m = *fit.as<BackwardModel>();
    std::vector<bool> reached(m.pieces.size());
    const auto check = [&](float y, bool bit) {
      const auto place = deployed_place(m, y, bit);
      ASSERT_LT(place.row, m.pieces.size()) << name << " y " << y << " m " << bit;
      const Piece& p = m.pieces[place.row];
      EXPECT_LE(p.v_lo, static_cast<double>(place.v))
          << name << " y " << y << " m " << bit << " row " << place.row;
      EXPECT_GE(p.v_hi, static_cast<double>(place.v))
          << name << " y " << y << " m " << bit << " row " << place.row;
      reached[place.row] = true;
    };
    std::uniform_real_distribution<double> log_size(-140, 7), near(-0.1699713, -0.125), all(-0.17, 7);
    for (int i = 0; i < 200000; ++i) {
      check(static_cast<float>(-std::exp2(std::min(-2.56, log_size(random)))), false);
      check(static_cast<float>(near(random)), i % 2 == 0);
      check(static_cast<float>(all(random)), true);
    }
    for (const float y :
         {-0.0f, 0.0f, 1e30f, INFINITY, -0x1p-149f, -0.125f, std::nextafter(-0.125f, 0.0f), m.kYHi}) {
      check(y, true);
      check(y, false);  // y > 0 with m = 0 is foreign data: clamped to the left end
    }
    constexpr int kAllFound = 32;  // among more rows, some are a few floats wide
    if (m.kRows <= kAllFound) {
      EXPECT_EQ(std::count(reached.begin(), reached.end(), false), 0) << name;
    }
  }
}

// The range of tanh is as long on both sides of 0: of an even number of cells centred at multiples of their
// width one is left over, which had "no values that can be told apart".
TEST(Partition, CellsBeyondASymmetricRangeAreLeftOut) {
  for (const char* expression : {"tanh(x)", "tanh(0.8*x)", "erf(x)"}) {
    const Composite composite(activation_from_expression(expression));
    for (const int cells : {8, 16, 32}) {
      BackwardSpec spec;
      spec.format = Format::bf16, spec.degree = 3;
      spec.cells = cells;
      const BackwardModel m = lay_out(composite, spec, {0, 0, 0, 0, 0}, 0x1p-8);
      EXPECT_EQ(m.kRows, cells);
      EXPECT_EQ(m.pieces.size(), static_cast<size_t>(cells) - 1) << expression;
      for (const Piece& p : m.pieces) EXPECT_LT(p.v_lo, p.v_hi) << expression << " row " << p.row;
      EXPECT_TRUE(m.pieces.back().right_tail);
      for (int k = 0; k < 1 << 16; ++k) {
        const float y = kernels::widen(kernels::BF16{static_cast<kernels::u16>(k)});
        EXPECT_TRUE(!std::isfinite(y) || deployed_place(m, y, true).row < m.pieces.size())
            << expression << " y " << y;
      }
      EXPECT_LT(deployed_place(m, INFINITY, true).row, m.pieces.size());
    }
  }
}

// Cells about 0 would be empty, or hold an interval from right to left.
TEST(Partition, CellsFollowAFunctionThatKeepsToOneSideOfZero) {
  for (const char* f : {"softplus(x)", "sigmoid(x)", "3*tanh(x)"}) {
    for (const double shift : {-128.0, -20.3, -9.7, -4.0, 3.125, 4.0, 20.0, 77.7, 1000.0}) {
      for (const int cells : {2, 4, 8, 16}) {
        const std::string expression = fmt::format("{}{:+}", f, shift);
        const Composite composite(activation_from_expression(expression));
        BackwardSpec spec;
        spec.format = Format::bf16, spec.degree = 3;
        spec.cells = cells;
        const BackwardModel m = lay_out(composite, spec, {0, 0, 0, 0, 0}, 0x1p-8);
        const double least_width = (static_cast<double>(m.kYMax) - static_cast<double>(m.kYMin)) / cells;
        EXPECT_EQ(m.pieces.size(), static_cast<size_t>(cells)) << expression;
        for (const Piece& p : m.pieces) {
          EXPECT_GT(p.v_hi - p.v_lo, least_width / 8) << expression << " row " << p.row;
          // Less than a cell is left over at either end.
          EXPECT_LT(p.v_hi - p.v_lo, least_width * (cells + 2) / cells) << expression << " row " << p.row;
        }
        EXPECT_TRUE(m.pieces.front().left_tail && m.pieces.back().right_tail);
        constexpr int kSteps = 1000;
        for (int k = 0; k <= kSteps; ++k) {
          const float y = m.kYMin + (m.kYMax - m.kYMin) * static_cast<float>(k) / kSteps;
          const Piece& p = m.pieces.at(deployed_place(m, y, true).row);
          EXPECT_TRUE(p.v_lo <= y && y <= p.v_hi) << expression << " y " << y;
        }
      }
    }
  }
}

TEST(Partition, CellsThatAFloatCannotCountAreRefused) {
  const Composite composite(activation_from_expression("sigmoid(x)+100000"));
  BackwardSpec spec;
  spec.format = Format::f32, spec.degree = 3;
  spec.cells = 8;
  EXPECT_EQ(refusal_of([&] { lay_out(composite, spec, {0, 0, 0, 0, 0}, 0x1p-8); }),
            "y in [100000, 100001] is too far from 0 for 8 cells of equal width");
}

TEST(Partition, AnEdgeAboveTheMinimumIsRefusedWithOneThatIsNot) {
  const Composite composite(activation_from_expression("x*normal_cdf(2*x)"));  // half of GELU's: y* = -0.085
  BackwardSpec spec;
  spec.format = Format::bf16, spec.degree = 3;
  spec.cells = 12;
  spec.left = LeftSegment{-3, 0, -6};
  const CoordinateConstants constants{static_cast<float>(composite.y_star().to_double()), 0, 0x1p-20f, 1, 0};
  EXPECT_EQ(refusal_of([&] { lay_out(composite, spec, constants, 0x1p-8); }),
            "left_segment.edge_log2: -2^-3 is not above the minimum -0.0850; -4 is");
  spec.left->edge_log2 = -4;
  EXPECT_EQ(lay_out(composite, spec, constants, 0x1p-8).kRows, 15);
}

}  // namespace
}  // namespace outgrad::approx
