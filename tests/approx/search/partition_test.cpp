#include "approx/search/partition.h"

#include "approx/model/fit.h"
#include "kernels/eval.h"
#include "kernels/support/files.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace outgrad::approx {
namespace {

TEST(Partition, EveryStoredOutputArrivesAtAPieceThatCoversIt) {
  std::mt19937 random(9);
  for (const char* name : {"gelu_f32", "gelu_f16", "gelu_bf16", "gelu_bf16_stored", "gelu_bf16_ulp", "gelu_bf16_fast"}) {
    const std::string path = std::string(OUTGRAD_SOURCE_DIR) + "/notebooks_data/fits/" + name + ".json";
    const Fit fit = fit_from_json(kernels::read_file(path), path);
    const BackwardModel& m = *fit.backward;
    std::vector<bool> reached(m.pieces.size());
    const auto check = [&](float y, bool bit) {
      const auto place = deployed_place(m, y, bit);
      ASSERT_LT(place.row, m.pieces.size()) << name << " y " << y << " m " << bit;
      const Piece& p = m.pieces[place.row];
      EXPECT_LE(p.v_lo, static_cast<double>(place.v)) << name << " y " << y << " m " << bit << " row " << place.row;
      EXPECT_GE(p.v_hi, static_cast<double>(place.v)) << name << " y " << y << " m " << bit << " row " << place.row;
      reached[place.row] = true;
    };
    std::uniform_real_distribution<double> log_size(-140, 7), near(-0.1699713, -0.125), all(-0.17, 7);
    for (int i = 0; i < 200000; ++i) {
      check(static_cast<float>(-std::exp2(std::min(-2.56, log_size(random)))), false);
      check(static_cast<float>(near(random)), i % 2 == 0);
      check(static_cast<float>(all(random)), true);
    }
    for (const float y : {-0.0f, 0.0f, 1e30f, INFINITY, -0x1p-149f, -0.125f, std::nextafter(-0.125f, 0.0f), m.kYHi}) {
      check(y, true);
      check(y, false);  // y > 0 with m = 0 is foreign data: clamped to the left end
    }
    constexpr int kAllFound = 32;  // among more rows, some are a few floats wide
    if (m.kRows <= kAllFound) {
      EXPECT_EQ(std::count(reached.begin(), reached.end(), false), 0) << name;
    }
  }
}

}  // namespace
}  // namespace outgrad::approx
