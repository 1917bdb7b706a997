// y in 8 bits: what is read back lies within the error that stability.h derives for it, edges of binades, zeros, saturation and
// the least scales among the inputs; bad scales, groups and values are refused.
#include "validation/norms/stores.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/host/errors.h"
#include "validation/norms/stability.h"

namespace outgrad::validation {
namespace {

constexpr double kSlack = 1 + 0x1p-40;

std::string refusal_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const kernels::SpecError& error) {
    return error.what();
  }
  return "accepted";
}

// The error that storing y may cost, from the y themselves: the formulas of stability.h with the group's exact range.
double allowed(const NormStore& store, const std::vector<float>& y, size_t e) {
  const size_t group = store.kind == NormStoreKind::kE4m3 ? y.size() : static_cast<size_t>(store.group), begin = e / group * group;
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
    case NormStoreKind::kInt8: return std::max((most - least) / 255 * (1 + 3 * unit), 0x1p-126) * (0.5 + 0x1p-14) + own * 2 * unit + 0x1p-149;
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
      // Sizes of all magnitudes; both edges of binades; groups of zeros and of a constant; offsets far beyond the range.
      const float size = std::ldexp(1.0f, static_cast<int>(engine() % 240) - 130), offset = engine() % 4 == 0 ? size * 100 * uniform(engine) : 0;
      for (float& value : y) {
        const auto kind = engine() % 8;
        const float power = std::ldexp(size, -static_cast<int>(engine() % 14));
        value = offset + (kind < 4 ? size * uniform(engine) : kind == 4 ? 0 : kind == 5 ? power : kind == 6 ? std::nextafter(power, 0.0f) : -power);
      }
      if (engine() % 4 == 0) std::fill_n(y.begin(), kColumns / 2, engine() % 2 ? 0.0f : offset);
      KeptOutput kept(store, kRows, kColumns);
      kept.keep(y);
      std::vector<float> back;
      kept.read(back);
      for (size_t e = 0; e < y.size(); ++e) {
        const double error = std::abs(static_cast<double>(back[e]) - y[e]), limit = allowed(store, y, e) * kSlack;
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
  EXPECT_EQ(std::vector<float>(back.begin(), back.begin() + 5), (std::vector<float>{1.75f, -0.5f, 0x1p-17f, 1.75f, 0}));
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
  EXPECT_EQ(scale(1), "accepted");

  const auto columns = [](const char* format, size_t n) {
    return refusal_of([&] {
      StabilityOptions options;
      options.format = storage_format(format);
      analyse_stability(std::vector<float>(n, 1.0f), std::vector<float>(n, 0.0f), options, "F", "g", "b");
    });
  };
  EXPECT_EQ(columns("mxfp8", 48), "F: g: 48 channels are not whole groups of 32 that share a scale");
  EXPECT_EQ(columns("int8", 96), "F: g: 96 channels are not whole groups of 64 that share a scale");
  EXPECT_EQ(columns("mxfp8", 96), "accepted");
  EXPECT_EQ(columns("int8_row", 7), "accepted");
  EXPECT_EQ(columns("e4m3", 7), "accepted");

  for (const char* format : {"e4m3", "mxfp8", "int8", "int8_row"}) {
    KeptOutput kept(storage_format(format).store, 2, 64);
    std::vector<float> y(128, 1.0f);
    y[70] = NAN;
    EXPECT_EQ(refusal_of([&] { kept.keep(y); }), "norm store: y[1, 6]: NaN") << format;
    y[70] = -INFINITY;
    EXPECT_EQ(refusal_of([&] { kept.keep(y); }), "norm store: y[1, 6]: infinite in fp32") << format;
  }
}

}  // namespace
}  // namespace outgrad::validation
