// y in 8 bits: what is read back lies within the error that stability.h derives for it, edges of binades,
// zeros, saturation and the least scales among the inputs; bad scales, groups and values are refused.
#include "tests/attack/kept_output.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/host/errors.h"
#include "kernels/host/layernorm.h"
#include "kernels/host/norm_store.h"
#include "tests/attack/norms.h"
#include "tests/refusal.h"
#include "validation/norms/stability.h"

namespace outgrad::validation {
namespace {

constexpr double kSlack = 1 + 0x1p-40;

// The error that storing y may cost, from the y themselves: the formulas of stability.h with the group's
// exact range.
double allowed(const NormStore& store, const std::vector<float>& y, size_t e) {
  const size_t group = store.kind == NormStoreKind::kE4m3 ? y.size() : static_cast<size_t>(store.group),
               begin = e / group * group;
  double largest = 0, most = y[begin], least = y[begin];
  for (size_t k = begin; k < begin + group; ++k) {
    const double value = y[k];
    largest = std::max(largest, std::abs(value));
    most = std::max(most, value), least = std::min(least, value);
  }
  const double own = std::abs(static_cast<double>(y[e])), unit = 0x1p-24;
  switch (store.kind) {
    case NormStoreKind::kPlain: break;
    case NormStoreKind::kE4m3: {
      const double scale = std::max(largest / 448 * (1 + unit), 0x1p-126);
      return std::max(own / 17, scale * 0x1p-10) * (1 + 0x1p-20) + own * 3 * unit + 0x1p-149;
    }
    case NormStoreKind::kMxFp8: {
      const double scale = std::max(std::ldexp(0x1p-8, largest > 0 ? std::ilogb(largest) : -300), 0x1p-127);
      return own > 448 * scale ? own - 448 * scale : std::max(own / 17, scale * 0x1p-10);
    }
    case NormStoreKind::kInt8:
      return std::max((most - least) / 255 * (1 + 3 * unit), 0x1p-126) * (0.5 + 0x1p-14) + own * 2 * unit +
             0x1p-149;
  }
  return 0;
}

TEST(NormStores, WhatIsReadIsWithinTheDerivedError) {
  std::mt19937_64 engine(3);
  std::uniform_real_distribution<float> uniform(-1, 1);
  constexpr size_t kRows = 3, kColumns = 128;
  for (const char* name : {"e4m3", "mxfp8", "int8", "int8_row"}) {
    NormStore store = storage_format(name).store;
    store.group = store.group_of(kColumns);
    double nearest = 0;
    for (int trial = 0; trial < 400; ++trial) {
      std::vector<float> y(kRows * kColumns);
      // Sizes of all magnitudes; both edges of binades; groups of zeros and of a constant; offsets far beyond
      // the range.
      const float size = std::ldexp(1.0f, static_cast<int>(engine() % 240) - 130),
                  offset = engine() % 4 == 0 ? size * 100 * uniform(engine) : 0;
      for (float& value : y) {
        const auto kind = engine() % 8;
        const float power = std::ldexp(size, -static_cast<int>(engine() % 14));
        value = offset + (kind < 4    ? size * uniform(engine)
                          : kind == 4 ? 0
                          : kind == 5 ? power
                          : kind == 6 ? std::nextafter(power, 0.0f)
                                      : -power);
      }
      if (engine() % 4 == 0) std::fill_n(y.begin(), kColumns / 2, engine() % 2 ? 0.0f : offset);
      KeptOutput kept(store, kRows, kColumns);
      kept.keep(y);
      std::vector<float> back;
      kept.read(back);
      for (size_t e = 0; e < y.size(); ++e) {
        const double error = std::abs(static_cast<double>(back[e]) - y[e]),
                     limit = allowed(store, y, e) * kSlack;
        ASSERT_LE(error, limit) << name << " " << y[e] << " read as " << back[e];
        if (limit > 0) nearest = std::max(nearest, error / limit);
        ASSERT_EQ(back[e], kept.read_as(y[e], e / kColumns, e % kColumns));
        ASSERT_TRUE(kept.same_scale(y[e], e / kColumns, e % kColumns)) << name << " " << y[e];
      }
    }
    EXPECT_GT(nearest, 0.99) << name;
  }
}

TEST(NormStores, ExactValuesStay) {
  std::vector<float> back;
  // 2^-8 of a block's power of two is its scale: 1.875 becomes 480, beyond e4m3's 448.
  KeptOutput block(storage_format("mxfp8").store, 1, 32);
  std::vector<float> y(32, 0.0f);
  y[0] = 1.75f, y[1] = -0.5f, y[2] = 0x1p-17f, y[3] = 1.875f, y[4] = 0x1p-18f;
  block.keep(y);
  block.read(back);
  EXPECT_EQ(std::vector<float>(back.begin(), back.begin() + 5),
            (std::vector<float>{1.75f, -0.5f, 0x1p-17f, 1.75f, 0}));
  // int8 keeps both ends of a group, up to the last rounding.
  KeptOutput group(storage_format("int8").store, 1, 64);
  y.assign(64, 0.25f);
  y[3] = -1, y[60] = 254;
  group.keep(y);
  group.read(back);
  EXPECT_EQ(back[3], -1);
  EXPECT_EQ(back[60], 254);
  EXPECT_EQ(back[0], 0);
}

TEST(NormStores, AGivenScaleSaturates) {
  NormStore store = storage_format("e4m3").store;
  store.scale = 0.5f;
  KeptOutput kept(store, 1, 3);
  kept.keep({1000, -300, 1});
  std::vector<float> back;
  kept.read(back);
  EXPECT_EQ(back, (std::vector<float>{224, -224, 1}));
}

TEST(NormStores, BadInputIsNamed) {
  const auto scale = [](float value) {
    return refusal_of([&] {
      StabilityOptions options;
      options.format = storage_format("e4m3");
      options.format.store.scale = value;
      analyse_stability({1, 1}, {0, 0}, options);
    });
  };
  EXPECT_EQ(scale(0), "stability: scale: 0 is not a positive normal fp32 number");
  EXPECT_EQ(scale(-0.0f), "stability: scale: -0 is not a positive normal fp32 number");
  EXPECT_EQ(scale(-1), "stability: scale: -1 is not a positive normal fp32 number");
  EXPECT_EQ(scale(0x1p-130f), "stability: scale: 7.34684e-40 is not a positive normal fp32 number");
  EXPECT_EQ(scale(INFINITY), "stability: scale: inf is not a positive normal fp32 number");
  EXPECT_EQ(scale(NAN), "stability: scale: nan is not a positive normal fp32 number");
  EXPECT_EQ(scale(1), "");

  const auto columns = [](const char* format, size_t n) {
    return refusal_of([&] {
      StabilityOptions options;
      options.format = storage_format(format);
      analyse_stability(std::vector<float>(n, 1.0f), std::vector<float>(n, 0.0f), options, "F", "g", "b");
    });
  };
  EXPECT_EQ(columns("mxfp8", 48), "F: g: 48 channels are not whole groups of 32 that share a scale");
  EXPECT_EQ(columns("int8", 96), "F: g: 96 channels are not whole groups of 64 that share a scale");
  EXPECT_EQ(columns("mxfp8", 96), "");
  EXPECT_EQ(columns("int8_row", 7), "");
  EXPECT_EQ(columns("e4m3", 7), "");

  for (const char* format : {"e4m3", "mxfp8", "int8", "int8_row"}) {
    KeptOutput kept(storage_format(format).store, 2, 64);
    std::vector<float> y(128, 1.0f);
    y[70] = NAN;
    EXPECT_EQ(refusal_of([&] { kept.keep(y); }), "norm store: y[1, 6]: NaN") << format;
    y[70] = -INFINITY;
    EXPECT_EQ(refusal_of([&] { kept.keep(y); }), "norm store: y[1, 6]: infinite in fp32") << format;
    y[70] = -3e38f, y[71] = 3e38f;
    const bool by_range = format[0] == 'i';
    EXPECT_EQ(refusal_of([&] { kept.keep(y); }),
              by_range ? "norm store: the group from y[1, 0] on: its range is infinite in fp32" : "")
        << format;
  }
}

// --- The kernels ---------------------------------------------------------------------------------

// Rows of x by number: random, zeros, a constant, one huge element, tiny, of two values, with NaN, with an
// infinity. Only the first six have a y that this store accepts.
constexpr size_t kRowsOfX = 8, kFiniteRows = 6;
void set_row(size_t row, float* x, size_t n, std::mt19937_64& engine) {
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (size_t j = 0; j < n; ++j)
    x[j] = row == 1   ? 0
           : row == 2 ? -3
           : row == 5 ? (j % 2 ? 1.0f : -1.0f)
                      : uniform(engine) * (row == 4 ? 1e-30f : 2.0f);
  if (row == 3) x[engine() % n] = 1e18f;
  if (row == 6) x[engine() % n] = NAN;
  if (row == 7) x[engine() % n] = INFINITY;
}

template <class Store>
void expect_the_kernels_reading() {
  std::mt19937_64 engine(17);
  std::uniform_real_distribution<float> uniform(-1, 1);
  size_t compared = 0, refused = 0;
  for (int trial = 0; trial < 300; ++trial) {
    const size_t n = static_cast<size_t>(64 * (1 + engine() % 4));
    // gamma from where y is subnormal to where it overflows.
    const float gamma_size = std::ldexp(1.0f, trial % 9 == 0 ? 127 : static_cast<int>(engine() % 250) - 126);
    std::vector<float> gamma(n), beta(n), x(n), y(n), rstd(1);
    for (float& value : gamma) value = gamma_size * uniform(engine);
    for (float& value : beta)
      value = trial % 3 == 0 ? 0 : gamma_size * (trial % 3 == 1 ? 100 : 1) * uniform(engine);
    set_row(static_cast<size_t>(trial) % kRowsOfX, x.data(), n, engine);
    std::vector<typename Store::Code> codes(n);
    std::vector<typename Store::Scale> scales(
        static_cast<size_t>(kernels::norm_scales_of<Store>(1, static_cast<kernels::i64>(n))));
    kernels::norm_forward_8bit<kernels::Norm::layer>(
        kernels::NormForward8bit<Store, float>{.norm = {.x = x.data(),
                                                        .gamma = gamma.data(),
                                                        .beta = beta.data(),
                                                        .rows = 1,
                                                        .n = static_cast<kernels::i64>(n),
                                                        .y = y.data(),
                                                        .rstd = rstd.data()},
                                               .codes = codes.data(),
                                               .scales = scales.data()});
    const size_t group = Store::kGroup == 0 ? n : static_cast<size_t>(Store::kGroup);
    KeptOutput kept(storage_format(Store::kName).store, 1, static_cast<kernels::i64>(n));
    std::vector<float> back;
    const bool accepted = refusal_of([&] { kept.keep(y); }) == "";
    if (accepted) kept.read(back);
    for (size_t e = 0; e < n; ++e) {
      const float read = kernels::norm_value(codes[e], scales[e / group]);
      if (accepted) {
        ASSERT_EQ(kernels::bits_of(read), kernels::bits_of(back[e]))
            << Store::kName << " " << y[e] << ", trial " << trial;
        ++compared;
      } else if (std::isnan(y[e])) {
        // whatever a store refuses, a NaN is not lost
        ASSERT_TRUE(std::isnan(read)) << Store::kName << ", trial " << trial;
      }
    }
    refused += !accepted;
    if (trial % static_cast<int>(kRowsOfX) >= static_cast<int>(kFiniteRows)) {
      EXPECT_FALSE(accepted);
    }
  }
  EXPECT_GT(compared, 20'000u);
  EXPECT_GT(refused, 75u) << "also rows with y beyond fp32";
}

TEST(NormStores, TheKernelReadsTheSameY) {
  expect_the_kernels_reading<kernels::NormE4m3>();
  expect_the_kernels_reading<kernels::NormMxFp8>();
  expect_the_kernels_reading<kernels::NormInt8>();
}

// gamma and beta of all sizes, zeros and subnormals among them; the policy's side channels. The attack runs
// the kernels from codes.
TEST(NormStores, TheKernelsGradientsObeyTheCertificate) {
  std::mt19937_64 engine(23);
  std::normal_distribution<float> normal;
  for (const char* format : {"e4m3", "mxfp8", "int8"}) {
    double evaluations = 0, nearest = 0;
    size_t with_side = 0;
    for (int trial = 0; trial < 12; ++trial) {
      AttackCase c;
      c.rows_kind = "centred";
      c.layer.norm = trial % 3 == 2 ? Norm::rms : Norm::layer;
      c.layer.format = format;
      c.layer.n = trial % 2 == 0 ? 64 : 192;
      c.layer.rows = 4;
      for (kernels::i64 j = 0; j < c.layer.n; ++j) {
        const auto kind = engine() % 32;
        const float size = std::ldexp(normal(engine), static_cast<int>(engine() % 12) - 6);
        c.layer.gamma.push_back(kind == 0   ? 0.0f
                                : kind == 1 ? -0.0f
                                : kind == 2 ? 1e-39f
                                : kind == 3 ? 1e-8f
                                            : size);
        if (c.layer.norm == Norm::layer) c.layer.beta.push_back((kind < 8 ? 4.0f : 0.25f) * normal(engine));
      }
      c.options.norm = c.layer.norm;
      c.options.format = storage_format(format);
      c.options.tau = c.options.format.tau;
      c.options.eps = c.layer.eps;
      c.options.mean_ratio = 1;
      c.options.rows = c.layer.rows;
      c.options.x_hat_max = std::min(6.0, largest_x_hat(c.layer.norm, c.layer.n) + 1);
      c.x_max = largest_x(c.layer.n);
      for (const size_t channel : side_channels(c.layer.gamma, c.layer.beta, c.options))
        c.layer.side.push_back(static_cast<kernels::i32>(channel));
      with_side += !c.layer.side.empty();
      const AttackResult result = attack(c, 20'000, static_cast<std::uint64_t>(trial));
      for (const GradientTally& tally : result.tally) {
        EXPECT_EQ(tally.violations, 0) << format << ", trial " << trial;
        evaluations += tally.evaluations;
        nearest = std::max(nearest, tally.worst);
      }
    }
    EXPECT_GT(evaluations, 150'000) << format;
    EXPECT_GT(nearest, 0.25) << format << ": the search comes near the bounds";
    EXPECT_GE(with_side, 8u) << format;
  }
}

}  // namespace
}  // namespace outgrad::validation
