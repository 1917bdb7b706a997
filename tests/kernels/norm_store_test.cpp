// y of a norm in 8 bits: codes and scales against their definition, worded once more here, and the backward
// from them against the backward in fp32 from what they stand for, bit for bit, in every schedule; odd
// inputs; refusals.
#include "kernels/host/norm_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/kernels/patterns.h"
#include "tests/kernels/tested_formats.h"
#include "tests/refusal.h"

namespace outgrad::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity(),
                kNan = std::numeric_limits<float>::quiet_NaN();
constexpr CpuSchedule kScalar{.threads = 1, .vector_bits = 0};
constexpr float kEps = 1e-5f;

template <class T>
struct Problem {
  Norm norm;
  i64 rows, n;
  std::vector<T> x, dy;
  std::vector<float> gamma, beta;  // empty: absent
  std::vector<i32> side;
};

template <class Store, class T>
struct Kept {
  std::vector<typename Store::Code> codes;
  std::vector<typename Store::Scale> scales;
  std::vector<T> y, dx;
  std::vector<float> rstd, x_hat, dgamma, dbeta;
};

const float* data_of(const std::vector<float>& values) { return values.empty() ? nullptr : values.data(); }

template <class V>
std::vector<u8> bytes_of(const std::vector<V>& values) {
  std::vector<u8> bytes(values.size() * sizeof(V));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

template <class V>
std::vector<u32> canonical(const std::vector<V>& values) {
  std::vector<u32> bits;
  for (const V& value : values) bits.push_back(canonical_bits(value));
  return bits;
}

template <class Store, CpuSchedule S, class T>
void forward(const Problem<T>& p, Kept<Store, T>& k, const float* given = nullptr) {
  const size_t size = p.x.size();
  k.codes.resize(size);
  k.scales.resize(static_cast<size_t>(norm_scales_of<Store>(p.rows, p.n)));
  k.y.resize(size);
  k.rstd.resize(static_cast<size_t>(p.rows));
  k.x_hat.resize(p.side.size() * static_cast<size_t>(p.rows));
  const NormForward8bit<Store, T> of{
      .norm = {.x = p.x.data(),
               .gamma = data_of(p.gamma),
               .beta = data_of(p.beta),
               .rows = p.rows,
               .n = p.n,
               .eps = kEps,
               .y = k.y.data(),
               .rstd = k.rstd.data(),
               .side = {p.side.data(), static_cast<i64>(p.side.size()), k.x_hat.data()}},
      .codes = k.codes.data(),
      .scales = k.scales.data(),
      .given = given};
  if (p.norm == Norm::layer) {
    norm_forward_8bit<Norm::layer, S>(of);
  } else {
    norm_forward_8bit<Norm::rms, S>(of);
  }
}

template <class Store, CpuSchedule S, class T>
void backward(const Problem<T>& p, Kept<Store, T>& k) {
  k.dx.resize(p.x.size());
  k.dgamma.resize(static_cast<size_t>(p.n));
  k.dbeta.assign(static_cast<size_t>(p.n), 0);
  std::vector<float> workspace(static_cast<size_t>(norm_backward_workspace(p.rows, p.n)));
  const NormBackward8bit<Store, T> of{
      .norm = {.dy = p.dy.data(),
               .gamma = data_of(p.gamma),
               .beta = data_of(p.beta),
               .rstd = k.rstd.data(),
               .rows = p.rows,
               .n = p.n,
               .dx = k.dx.data(),
               .dgamma = k.dgamma.data(),
               .dbeta = k.dbeta.data(),
               .side = {p.side.data(), static_cast<i64>(p.side.size()), k.x_hat.data()},
               .workspace = workspace},
      .codes = k.codes.data(),
      .scales = k.scales.data()};
  if (p.norm == Norm::layer) {
    norm_backward_8bit<Norm::layer, S>(of);
  } else {
    norm_backward_8bit<Norm::rms, S>(of);
  }
}

// --- The definition ------------------------------------------------------------------------------

// The code of e4m3 nearest to v, of two the even one; what is larger than all numbers has the largest.
u8 nearest_e4m3(float v) {
  if (std::isnan(v)) return kCanonicalNanF8;
  static const auto kNumbers = [] {
    std::vector<double> numbers;
    for (int code = 0; code < 0x7f; ++code) numbers.push_back(widen(F8E4M3{static_cast<u8>(code)}));
    return numbers;
  }();
  const double magnitude = std::abs(v);
  const auto above = std::lower_bound(kNumbers.begin(), kNumbers.end() - 1, magnitude);
  int code = static_cast<int>(above - kNumbers.begin());
  if (code > 0 && magnitude < *above) {
    const double down = magnitude - *(above - 1), up = *above - magnitude;
    if (down < up || (down == up && code % 2 == 1)) --code;
  }
  return static_cast<u8>(code | (std::signbit(v) ? 0x80 : 0));
}

// Codes, scales as they lie in memory, and what is read for every y.
struct Definition {
  std::vector<u8> codes, scales;
  std::vector<float> read;
};

template <class Store>
Definition defined(const std::vector<float>& y, const float* given) {
  Definition d;
  const size_t group = Store::kGroup == 0 ? y.size() : static_cast<size_t>(Store::kGroup);
  const auto add = [&](const void* scale, size_t bytes) {
    d.scales.insert(d.scales.end(), static_cast<const u8*>(scale), static_cast<const u8*>(scale) + bytes);
  };
  for (size_t g = 0; g < y.size(); g += group) {
    float amax = 0;
    bool finite = true;
    for (size_t e = g; e < g + group; ++e) {
      finite = finite && std::isfinite(y[e]);
      if (!std::isnan(y[e]))
        amax = std::max(amax, std::min(std::abs(y[e]), std::numeric_limits<float>::max()));
    }
    if constexpr (std::is_same_v<Store, NormInt8>) {
      const float z = *std::min_element(y.begin() + static_cast<std::ptrdiff_t>(g),
                                        y.begin() + static_cast<std::ptrdiff_t>(g + group));
      const float most = *std::max_element(y.begin() + static_cast<std::ptrdiff_t>(g),
                                           y.begin() + static_cast<std::ptrdiff_t>(g + group));
      finite = finite && std::isfinite(most - z);
      const float least_step = std::numeric_limits<float>::min(),
                  step = finite ? std::max((most - z) / 255.0f, least_step) : least_step;
      const float kept[2] = {finite ? (z == 0 ? 0.0f : z) : kNan, step};
      add(kept, sizeof kept);
      for (size_t e = g; e < g + group; ++e) {
        // not compared if the group reads as NaN
        const int code = finite ? static_cast<int>(std::nearbyint((y[e] - z) / step)) : -1;
        EXPECT_LE(code, 255);
        d.codes.push_back(static_cast<u8>(code));
        d.read.push_back(finite ? std::fma(static_cast<float>(code), step, z) : kNan);
      }
    } else {
      float scale = 0;
      if constexpr (std::is_same_v<Store, NormE4m3>) {
        scale = given ? *given : std::max(amax / 448.0f, std::numeric_limits<float>::min());
        add(&scale, sizeof scale);
      } else {
        const int exponent =
            amax >= std::numeric_limits<float>::min() ? std::max(std::ilogb(amax) - 8, -127) : -127;
        scale = std::ldexp(1.0f, exponent);
        const u8 kept = static_cast<u8>(exponent + 127);
        add(&kept, sizeof kept);
      }
      for (size_t e = g; e < g + group; ++e) {
        d.codes.push_back(nearest_e4m3(y[e] / scale));
        d.read.push_back(widen(F8E4M3{d.codes.back()}) * scale);
      }
    }
  }
  return d;
}

// --- Problems ------------------------------------------------------------------------------------

enum class Rows { usual, odd };

// Odd rows: of zeros, of a constant, with one huge element, with NaN, with infinity, and tiny ones.
template <class T>
Problem<T> problem(Norm norm, i64 rows, i64 n, Rows kind, unsigned variant) {
  patterns::Random random(static_cast<u64>(rows * 1000 + n) + variant);
  const auto draw = [&] { return static_cast<float>(static_cast<i32>(random.next())) * 0x1p-31f; };
  Problem<T> p{norm, rows, n, {}, {}, {}, {}, {}};
  for (i64 i = 0; i < rows * n; ++i) {
    p.x.push_back(narrow<T>(0.25f + 2 * draw()));
    p.dy.push_back(narrow<T>(draw()));
  }
  if (variant != 1) {
    for (i64 j = 0; j < n; ++j) p.gamma.push_back((j % 5 == 3 ? -1.0f : 1.0f) * (1 + 0.5f * draw()));
  }
  if (variant != 2 && norm == Norm::layer) {
    for (i64 j = 0; j < n; ++j) p.beta.push_back(0.3f * draw());
  }
  if (variant == 3) {
    for (const i64 j : {i64{0}, n / 3, n - 1}) {
      if (p.side.empty() || p.side.back() < j) p.side.push_back(static_cast<i32>(j));
    }
    p.gamma[0] = 0.0f;
    if (n > 64) p.gamma[64] = 1e30f;  // a group whose y are huge
  }
  if (kind == Rows::odd) {
    for (i64 row = 0; row < rows; ++row) {
      T* const x = p.x.data() + row * n;
      switch (row % 6) {
        case 0: std::fill_n(x, n, narrow<T>(0.0f)); break;
        case 1: std::fill_n(x, n, narrow<T>(-3.0f)); break;
        case 2: x[n / 2] = narrow<T>(60000.0f); break;
        case 3: x[n / 3] = narrow<T>(kNan); break;
        case 4: x[n - 1] = narrow<T>(kInfinity); break;
        default:
          for (i64 j = 0; j < n; ++j) x[j] = narrow<T>(0x1p-20f * widen(x[j]));
      }
    }
  }
  return p;
}

// y in fp32, as a forward in fp32 gives it.
template <class T>
std::vector<float> wide_output(const Problem<T>& p) {
  std::vector<float> x, y(p.x.size()), rstd(static_cast<size_t>(p.rows));
  for (const T& value : p.x) x.push_back(widen(value));
  const NormForward<float> of{.x = x.data(),
                              .gamma = data_of(p.gamma),
                              .beta = data_of(p.beta),
                              .rows = p.rows,
                              .n = p.n,
                              .eps = kEps,
                              .y = y.data(),
                              .rstd = rstd.data()};
  p.norm == Norm::layer ? layernorm_forward<float, kScalar>(of) : rmsnorm_forward<float, kScalar>(of);
  return y;
}

// The codes of int8 in groups that read as NaN do not matter.
template <class Store, class T>
void expect_codes(const Kept<Store, T>& k, const Definition& d, const std::string& where) {
  for (size_t e = 0; e < k.codes.size(); ++e) {
    if (std::is_same_v<Store, NormInt8> && std::isnan(d.read[e])) continue;
    ASSERT_EQ(bytes_of(k.codes)[e], d.codes[e]) << where << ", element " << e;
  }
  ASSERT_EQ(bytes_of(k.scales), d.scales) << where;
}

template <class Store, CpuSchedule S, class T>
void expect_schedule(const Problem<T>& p, const Kept<Store, T>& expected, const float* given,
                     const std::string& where) {
  if constexpr (S.vector_bits <= kBestVectorBits) {
    Kept<Store, T> k;
    forward<Store, S>(p, k, given);
    ASSERT_EQ(bytes_of(k.codes), bytes_of(expected.codes)) << where;
    ASSERT_EQ(bytes_of(k.scales), bytes_of(expected.scales)) << where;
    ASSERT_EQ(canonical(k.y), canonical(expected.y)) << where;
    ASSERT_EQ(canonical(k.rstd), canonical(expected.rstd)) << where;
    ASSERT_EQ(canonical(k.x_hat), canonical(expected.x_hat)) << where;
    backward<Store, S>(p, k);
    ASSERT_EQ(canonical(k.dx), canonical(expected.dx)) << where;
    ASSERT_EQ(canonical(k.dgamma), canonical(expected.dgamma)) << where;
    ASSERT_EQ(canonical(k.dbeta), canonical(expected.dbeta)) << where;
  }
}

template <class Store, class T>
void expect_definition(const Problem<T>& p, const float* given, const std::string& where) {
  Kept<Store, T> k;
  forward<Store, kScalar>(p, k, given);
  const std::vector<float> wide = wide_output(p);
  const Definition d = defined<Store>(wide, given);
  expect_codes(k, d, where);

  // y, rstd and x^ are those of the forward that keeps y.
  Problem<float> f{p.norm, p.rows, p.n, {}, {}, p.gamma, p.beta, p.side};
  for (const T& value : p.dy) f.dy.push_back(widen(value));
  std::vector<T> y(p.x.size());
  std::vector<float> rstd(k.rstd.size()), x_hat(k.x_hat.size()), dx(p.x.size()), dgamma(k.dgamma), dbeta;
  dgamma.resize(static_cast<size_t>(p.n)), dbeta.assign(static_cast<size_t>(p.n), 0);
  const bool layer = p.norm == Norm::layer;
  const NormForward<T> of_y{.x = p.x.data(),
                            .gamma = data_of(p.gamma),
                            .beta = data_of(p.beta),
                            .rows = p.rows,
                            .n = p.n,
                            .eps = kEps,
                            .y = y.data(),
                            .rstd = rstd.data(),
                            .side = {p.side.data(), static_cast<i64>(p.side.size()), x_hat.data()}};
  layer ? layernorm_forward<T, kScalar>(of_y) : rmsnorm_forward<T, kScalar>(of_y);
  const NormBackward<float> of_dy{.dy = f.dy.data(),
                                  .y = d.read.data(),
                                  .gamma = data_of(p.gamma),
                                  .beta = data_of(p.beta),
                                  .rstd = rstd.data(),
                                  .rows = p.rows,
                                  .n = p.n,
                                  .dx = dx.data(),
                                  .dgamma = dgamma.data(),
                                  .dbeta = dbeta.data(),
                                  .side = {p.side.data(), static_cast<i64>(p.side.size()), x_hat.data()}};
  layer ? layernorm_backward<float, kScalar>(of_dy) : rmsnorm_backward<float, kScalar>(of_dy);
  ASSERT_EQ(canonical(k.y), canonical(y)) << where;
  ASSERT_EQ(canonical(k.rstd), canonical(rstd)) << where;
  ASSERT_EQ(canonical(k.x_hat), canonical(x_hat)) << where;

  backward<Store, kScalar>(p, k);
  std::vector<T> narrowed;
  for (const float value : dx) narrowed.push_back(narrow<T>(value));
  ASSERT_EQ(canonical(k.dx), canonical(narrowed)) << where;
  ASSERT_EQ(canonical(k.dgamma), canonical(dgamma)) << where;
  ASSERT_EQ(canonical(k.dbeta), canonical(dbeta)) << where;

  expect_schedule<Store, CpuSchedule{.threads = 3, .vector_bits = 256, .block_elements = 1024}>(
      p, k, given, where + ", 256 bits");
  expect_schedule<Store, CpuSchedule{.threads = 2, .vector_bits = 512, .streaming_stores = true}>(
      p, k, given, where + ", 512 bits");
}

template <class Store, class T>
void expect_definitions() {
  for (const Norm norm : {Norm::layer, Norm::rms}) {
    for (const i64 n : {i64{64}, i64{192}, i64{1024}, Store::kGroup == 0 ? i64{300} : i64{320},
                        Store::kGroup == 32  ? i64{96}
                        : Store::kGroup == 0 ? i64{7}
                                             : i64{64}}) {
      for (const Rows kind : {Rows::usual, Rows::odd}) {
        for (unsigned variant = 0; variant < (n < 1024 ? 4u : 1u); ++variant) {
          const auto p = problem<T>(norm, n == 64 ? 40 : 7, n, kind, variant);
          const std::string where = std::string(Store::kName) + " " + Format<T>::kName +
                                    ", n = " + std::to_string(n) + ", variant " + std::to_string(variant);
          expect_definition<Store>(p, nullptr, where);
          if (::testing::Test::HasFatalFailure()) return;
          const float scale = 0.001f;  // some y of most rows exceed 448 of it
          if (Store::kGroup == 0) expect_definition<Store>(p, &scale, where + ", scale given");
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(NormStore, E4m3IsTheDefinition) {
  in_tested_formats([]<class T>(T) { expect_definitions<NormE4m3, T>(); });
}

TEST(NormStore, MxFp8IsTheDefinition) {
  in_tested_formats([]<class T>(T) { expect_definitions<NormMxFp8, T>(); });
}

TEST(NormStore, Int8IsTheDefinition) {
  in_tested_formats([]<class T>(T) { expect_definitions<NormInt8, T>(); });
}

// --- Elements ------------------------------------------------------------------------------------

TEST(NormStore, AGroupThatInt8HasNoCodesForReadsAsNan) {
  const auto reads_nan = [](std::vector<float> y) {
    OutputRange range;
    for (const float value : y) range.include(value);
    const Int8Scale scale = int8_scale(range);
    EXPECT_TRUE(norm_scale_holds(scale));
    for (const float value : y) {
      if (!std::isnan(norm_value(norm_code(value, scale), scale))) return false;
    }
    return true;
  };
  EXPECT_TRUE(reads_nan({1, kNan, 2}));
  EXPECT_TRUE(reads_nan({1, -kNan, 2}));
  EXPECT_TRUE(reads_nan({1, kInfinity}));
  EXPECT_TRUE(reads_nan({-kInfinity, 1}));
  EXPECT_TRUE(reads_nan({-3e38f, 3e38f}));
  EXPECT_FALSE(reads_nan({-1.5e38f, 1.5e38f}));
  EXPECT_FALSE(reads_nan({-0.0f, 0.0f}));
  EXPECT_FALSE(reads_nan({-0.0f, -0.0f})) << "as of a constant row and a negative gamma";
}

#ifdef OUTGRAD_AVX2
struct Fraction {
  float v, s;
};

// v / s next to the middle of two floats, where a quotient that is not quite right rounds to the wrong one:
// for an odd S of 24 bits and a small odd d there is an M of 25 bits with S M = d mod 2^25, and T = (S M - d)
// / 2^25 has 24 bits. So T 2^25 / S = M (1 - d / (S M)).
std::vector<Fraction> hard_fractions(patterns::Random& random, size_t count) {
  std::vector<Fraction> hard;
  while (hard.size() < count) {
    const u64 odd = (random.next() & 0xffffffu) | 0x800001u, d = (random.next() % 8) * 2 + 1;
    u64 inverse = odd;  // of an odd number mod 2^3, and twice as many bits at each step
    for (int k = 0; k < 4; ++k) inverse *= 2 - odd * inverse;
    const bool above = random.next() % 2 == 0;
    const u64 middle = (above ? d * inverse : -d * inverse) & 0x1ffffffu;
    if (middle < 0x1000000u) continue;
    const u64 dividend = (odd * middle + (above ? -d : d)) >> 25;
    // M 2^-down from 2^-10 to 2^10
    const int power = static_cast<int>(random.next() % 170u) - 110,
              down = 15 + static_cast<int>(random.next() % 20u);
    const Fraction f{std::ldexp(static_cast<float>(dividend), power + 25 - down),
                     std::ldexp(static_cast<float>(odd), power)};
    if (f.v <= Divisor::kMostQuotient * f.s) hard.push_back(f);
  }
  return hard;
}

template <class Isa>
void expect_quotients() {
  patterns::Random random(7);
  std::vector<Fraction> fractions = hard_fractions(random, 100'000);
  while (fractions.size() < 300'000) {  // of all usual scales; any, and halves of whole numbers
    const float s = float_of((35u + static_cast<u32>(random.next()) % 188u) << 23 |
                             (static_cast<u32>(random.next()) & 0x7fffffu));
    const float any = std::ldexp(1.0f + static_cast<float>(random.next() & 0xffffffu) * 0x1p-24f,
                                 static_cast<int>(random.next() % 24u) - 14);
    const float quotient = fractions.size() % 2 == 0 ? any : std::nearbyint(std::min(any, 255.0f)) + 0.5f;
    fractions.push_back({std::min(quotient * s, Divisor::kMostQuotient * s), s});
  }
  alignas(64) float got[Isa::kLanes];
  for (const Fraction& f : fractions) {
    const Divisor by = Divisor::of(f.s);
    ASSERT_TRUE(by.is_usual()) << f.s;
    Isa::template store<false>(got, detail::quotients<Isa>(Isa::splat(f.v), by));
    const float want = f.v / f.s;
    if (want < 0x1p-11f) {
      ASSERT_LT(got[0], 0x1p-10f) << std::hexfloat << f.v << " / " << f.s;
    } else {
      ASSERT_EQ(got[0], want) << std::hexfloat << f.v << " / " << f.s;
    }
  }
}

TEST(NormStore, QuotientsWithoutADivisionAreThoseOfADivision) {
  expect_quotients<Avx2>();
#ifdef OUTGRAD_AVX512
  expect_quotients<Avx512>();
#endif
}
#endif

TEST(NormStore, CodesWithoutBranchesAreThoseOfTheFormat) {
  for (const float y : patterns::f32_patterns(2000)) {
    ASSERT_EQ(e4m3_code(y).bits, narrow_saturated<F8E4M3>(y).bits) << std::hexfloat << y;
    for (const int scale : {0, 1, 100, 119, 127, 200, 246}) {
      const E8M0 shared{static_cast<u8>(scale)};
      ASSERT_EQ(norm_code(y, shared).bits, block_element(y, shared).bits)
          << std::hexfloat << y << " at " << scale;
    }
  }
}

// Wherever the group lies, and however small it is.
TEST(NormStore, Int8NeverWraps) {
  patterns::Random random(5);
  for (int trial = 0; trial < 200'000; ++trial) {
    const auto any = [&] {
      return float_of((random.next() & 0x80ffffffu) | (static_cast<u32>(random.next()) % 0x7eu << 24));
    };
    const float a = any(), b = trial % 2 == 0 ? any() : std::nextafter(a, kInfinity);
    OutputRange range;
    range.include(a), range.include(b);
    const Int8Scale scale = int8_scale(range);
    const float least = std::min(a, b), most = std::max(a, b);
    ASSERT_EQ(norm_code(least, scale), 0) << a << " " << b;
    ASSERT_EQ(norm_code(most, scale), std::nearbyint(sub_rn(most, scale.zero) / scale.step)) << a << " " << b;
    ASSERT_GE(norm_value(norm_code(most, scale), scale), scale.zero);
  }
}

TEST(NormStore, ScalesAreAtLeastNormal) {
  EXPECT_EQ(e4m3_scale(0), 0x1p-126f);
  EXPECT_EQ(e4m3_scale(bits_of(448.0f)), 1.0f);
  EXPECT_TRUE(std::isfinite(e4m3_scale(kLargestFiniteBits)));
  EXPECT_EQ(int8_scale({}).step, 0x1p-126f);
}

// --- In place, and without y ---------------------------------------------------------------------

TEST(NormStore, OutputsMayLieOverInputsAndYMayBeAbsent) {
  auto p = problem<BF16>(Norm::layer, 9, 256, Rows::usual, 0);
  const auto expect_same = [&]<class Store>(Store) {
    Kept<Store, BF16> k, again;
    forward<Store, kWidestSchedule>(p, k);
    backward<Store, kWidestSchedule>(p, k);
    again = k;
    std::fill(again.codes.begin(), again.codes.end(), typename Store::Code{});
    std::vector<BF16> x = p.x, dy = p.dy;
    NormForward8bit<Store, BF16> to{.norm = {.x = p.x.data(),
                                             .gamma = p.gamma.data(),
                                             .beta = p.beta.data(),
                                             .rows = p.rows,
                                             .n = p.n,
                                             .eps = kEps,
                                             .rstd = again.rstd.data()},
                                    .codes = again.codes.data(),
                                    .scales = again.scales.data()};
    norm_forward_8bit<Norm::layer>(to);
    EXPECT_EQ(bytes_of(again.codes), bytes_of(k.codes));
    to.norm.x = to.norm.y = x.data();
    norm_forward_8bit<Norm::layer>(to);
    EXPECT_EQ(bytes_of(again.codes), bytes_of(k.codes));
    EXPECT_EQ(canonical(x), canonical(k.y));
    std::vector<float> workspace(static_cast<size_t>(norm_backward_workspace(p.rows, p.n)));
    norm_backward_8bit<Norm::layer>(NormBackward8bit<Store, BF16>{.norm = {.dy = dy.data(),
                                                                           .gamma = p.gamma.data(),
                                                                           .beta = p.beta.data(),
                                                                           .rstd = k.rstd.data(),
                                                                           .rows = p.rows,
                                                                           .n = p.n,
                                                                           .dx = dy.data(),
                                                                           .workspace = workspace},
                                                                  .codes = k.codes.data(),
                                                                  .scales = k.scales.data()});
    EXPECT_EQ(canonical(dy), canonical(k.dx));
  };
  expect_same(NormE4m3{});
  expect_same(NormMxFp8{});
  expect_same(NormInt8{});
}

// --- Refusals ------------------------------------------------------------------------------------

// Large arrays on cache lines are written past the caches, rows of one group while the next are summed.
TEST(NormStore, StreamedRowsAreThoseThroughTheCaches) {
  if (kWidestSchedule.vector_bits == 0) GTEST_SKIP() << "this machine has no vectors that are streamed";
  constexpr i64 kRows = 4103, kColumns = 576;
  const size_t count = kRows * kColumns;
  const auto lines = [](size_t bytes) {
    return std::unique_ptr<void, decltype(&std::free)>(std::aligned_alloc(64, (bytes + 63) / 64 * 64),
                                                       std::free);
  };
  const auto of = [&]<class Store, class T>(Store, T) {
    auto p = problem<T>(Norm::layer, 7, kColumns, Rows::odd, 0);
    const auto x = lines(count * sizeof(T)), y = lines(count * sizeof(T)),
               codes = lines(count * sizeof(typename Store::Code));
    T* const from = static_cast<T*>(x.get());
    for (size_t i = 0; i < count; ++i) from[i] = p.x[i % p.x.size()];
    const auto scale_count = static_cast<size_t>(norm_scales_of<Store>(kRows, kColumns));
    std::vector<typename Store::Scale> scales(scale_count), expected_scales(scale_count);
    std::vector<float> rstd(kRows);
    std::vector<T> expected(count);
    std::vector<typename Store::Code> expected_codes(count);
    T* const to = static_cast<T*>(y.get());
    auto* const kept = static_cast<typename Store::Code*>(codes.get());
    ASSERT_TRUE(detail::rows_stream<kWidestSchedule>(kept, kRows, kColumns));
    NormForward8bit<Store, T> call{.norm = {.x = from,
                                            .gamma = p.gamma.data(),
                                            .beta = p.beta.data(),
                                            .rows = kRows,
                                            .n = kColumns,
                                            .eps = kEps,
                                            .y = to,
                                            .rstd = rstd.data()},
                                   .codes = kept,
                                   .scales = scales.data()};
    norm_forward_8bit<Norm::layer>(call);
    call.norm.y = expected.data(), call.codes = expected_codes.data(), call.scales = expected_scales.data();
    norm_forward_8bit<Norm::layer, kScalar>(call);
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(std::memcmp(kept + i, expected_codes.data() + i, sizeof *kept), 0)
          << Store::kName << ' ' << i;
      ASSERT_EQ(canonical_bits(to[i]), canonical_bits(expected[i])) << Store::kName << ' ' << i;
    }
    ASSERT_EQ(bytes_of(scales), bytes_of(expected_scales)) << Store::kName;
  };
  of(NormE4m3{}, BF16{});
  of(NormMxFp8{}, float{});
  of(NormInt8{}, BF16{});
}

TEST(NormStore, BadInputIsNamed) {
  std::vector<float> x(192, 1.0f), y(192), rstd(2),
      workspace(
          static_cast<size_t>(std::max(norm_backward_workspace(2, 96), norm_backward_workspace(1, 192))));
  std::vector<F8E4M3> e4m3(192);
  std::vector<u8> codes(192);
  std::vector<E8M0> shared(6);
  std::vector<Int8Scale> groups(3, {0, 1});
  float scale = 1;
  NormForward8bit<NormE4m3, float> into_e4m3{
      .norm = {.x = x.data(), .rows = 2, .n = 96, .eps = kEps, .y = y.data(), .rstd = rstd.data()},
      .codes = e4m3.data(),
      .scales = &scale};
  const auto e4m3_forward = [&](float given) {
    into_e4m3.given = &given;
    return refusal_of([&] { norm_forward_8bit<Norm::rms>(into_e4m3); });
  };
  NormBackward8bit<NormE4m3, float> of_e4m3{
      .norm =
          {.dy = x.data(), .rstd = rstd.data(), .rows = 2, .n = 96, .dx = y.data(), .workspace = workspace},
      .codes = e4m3.data()};
  const auto e4m3_backward = [&](float kept) {
    of_e4m3.scales = &kept;
    return refusal_of([&] { norm_backward_8bit<Norm::rms>(of_e4m3); });
  };
  for (const float bad : {0.0f, -0.0f, -1.0f, 0x1p-127f, kInfinity, -kInfinity, kNan}) {
    EXPECT_EQ(e4m3_forward(bad),
              "rmsnorm_forward_8bit: the given scale is zero, negative, subnormal, infinite or NaN")
        << bad;
    EXPECT_EQ(e4m3_backward(bad),
              "rmsnorm_backward_8bit: scale 0 is zero, negative, subnormal, infinite or NaN")
        << bad;
  }
  EXPECT_EQ(e4m3_forward(0x1p-126f), "");
  EXPECT_EQ(e4m3_backward(0x1p-126f), "");

  const auto int8_backward = [&](i64 rows, i64 n, Int8Scale last) {
    groups.back() = last;
    return refusal_of([&] {
      norm_backward_8bit<Norm::rms>(NormBackward8bit<NormInt8, float>{.norm = {.dy = x.data(),
                                                                               .rstd = rstd.data(),
                                                                               .rows = rows,
                                                                               .n = n,
                                                                               .dx = y.data(),
                                                                               .workspace = workspace},
                                                                      .codes = codes.data(),
                                                                      .scales = groups.data()});
    });
  };
  for (const float bad : {0.0f, -1.0f, 0x1p-127f, kInfinity, kNan}) {
    EXPECT_EQ(int8_backward(1, 192, {0, bad}),
              "rmsnorm_backward_8bit: scale 2 is zero, negative, subnormal, infinite or NaN")
        << bad;
  }
  EXPECT_EQ(int8_backward(1, 192, {kInfinity, 1}),
            "rmsnorm_backward_8bit: scale 2 is zero, negative, subnormal, infinite or NaN");
  EXPECT_EQ(int8_backward(1, 192, {kNan, 1}), "");
  EXPECT_EQ(int8_backward(2, 96, {0, 1}),
            "rmsnorm_backward_8bit: n = 96 is no whole number of groups of 64, which share a scale");
  const auto mxfp8_forward = [&](i64 n, const float* given) {
    return refusal_of([&] {
      norm_forward_8bit<Norm::rms>(NormForward8bit<NormMxFp8, float>{
          .norm = {.x = x.data(), .rows = 1, .n = n, .eps = kEps, .y = y.data(), .rstd = rstd.data()},
          .codes = e4m3.data(),
          .scales = shared.data(),
          .given = given});
    });
  };
  EXPECT_EQ(mxfp8_forward(96, nullptr), "");
  EXPECT_EQ(mxfp8_forward(48, nullptr),
            "rmsnorm_forward_8bit: n = 48 is no whole number of groups of 32, which share a scale");
  EXPECT_EQ(mxfp8_forward(96, &scale),
            "rmsnorm_forward_8bit: a scale is given, but mxfp8 finds those of its groups itself");
  into_e4m3.norm.eps = -1, into_e4m3.given = nullptr;
  EXPECT_EQ(refusal_of([&] { norm_forward_8bit<Norm::rms>(into_e4m3); }),
            "rmsnorm_forward_8bit: eps must be at least 0");
  of_e4m3.scales = &scale, of_e4m3.norm.workspace = std::span(workspace).first(9);
  EXPECT_TRUE(refusal_of([&] {
                norm_backward_8bit<Norm::rms>(of_e4m3);
              }).starts_with("rmsnorm_backward_8bit: the workspace holds 9 of the "));
}

}  // namespace
}  // namespace outgrad::kernels
