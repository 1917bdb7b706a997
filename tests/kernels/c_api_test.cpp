// The compiled library behind the C interface: the header-only kernels' bits under every instruction set,
// every refusal without a write.
#include <gtest/gtest.h>

#include <omp.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/c/outgrad.h"
#include "kernels/c/table.h"
#include "kernels/fits.h"
#include "kernels/host/bias.h"
#include "kernels/host/code.h"
#include "kernels/host/fp4.h"
#include "kernels/host/fp8.h"
#include "kernels/host/elementwise.h"
#include "kernels/host/forwards.h"
#include "kernels/host/layernorm.h"
#include "kernels/host/norm_store.h"
#include "kernels/host/mxfp8.h"
#include "kernels/host/parity.h"
#include "kernels/host/softmax.h"
#include "tests/kernels/patterns.h"

namespace outgrad::kernels {
namespace {

template <class T>
constexpr outgrad_format kFormatOf = std::is_same_v<T, float> ? OUTGRAD_F32
                                     : std::is_same_v<T, F16> ? OUTGRAD_F16
                                                              : OUTGRAD_BF16;

constexpr CpuSchedule kScalar{};

struct Output {
  int status = -1;
  std::vector<std::string> lines;
};

// The C99 program of this folder with OUTGRAD_ISA set.
Output hash_program(const std::string& isa) {
  Output output;
  FILE* pipe = popen(("OUTGRAD_ISA='" + isa + "' '" OUTGRAD_C_HASH "' 2>&1").c_str(), "r");
  if (pipe == nullptr) return output;
  std::string text;
  std::array<char, 4096> buffer;
  while (const size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe))
    text.append(buffer.data(), got);
  output.status = pclose(pipe);
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) output.lines.push_back(line);
  return output;
}

// --- Bits ----------------------------------------------------------------------------------------

TEST(CInterface, EveryInstructionSetGivesTheSameBits) {
  const std::vector<std::string> names = {"baseline", "avx2", "avx512", "avx512_bf16"};
  const Output expected = hash_program(names.front());
  ASSERT_EQ(expected.status, 0) << (expected.lines.empty() ? "" : expected.lines.back());
  // 3 formats: 10 forwards and the 6 masks, 10 backwards, 4 arrays in and from MXFP8, 10 codes and one of the
  // caller's own, y in 3 formats of 8 bits and 2 of 4, 4 arrays of softmax, two shapes of 11 arrays of the
  // norms and of 9 of the fused forms, 3 arrays of both norms in each of 3 stores of 8 bits; and the two
  // lines that say what ran. In 2 formats y carries the mask: 6 forwards and backwards.
  ASSERT_EQ(expected.lines.size(),
            2 + 3 * (16 + 10 + 4 + 11 + 5 + 4 + 2 * 11 + 2 * 9 + 3 * 2 * 3) + 2 * (6 + 6));
  EXPECT_EQ(expected.lines[1], "instruction_set baseline");
  int ran = 1;
  for (const std::string& name : names) {
    const Output output = hash_program(name);
    ASSERT_EQ(output.status, 0) << name;
    ASSERT_EQ(output.lines.size(), expected.lines.size()) << name;
    // this machine lacks it: OUTGRAD_ISA never raises the choice
    if (output.lines[1] != "instruction_set " + name) continue;
    ran += name != names.front();
    for (size_t i = 2; i < expected.lines.size(); ++i) EXPECT_EQ(output.lines[i], expected.lines[i]) << name;
  }
  if (ran == 1) GTEST_SKIP() << "this machine has the baseline alone";
}

TEST(CInterface, UnknownInstructionSetIsRefused) {
  const Output output = hash_program("avx9");
  EXPECT_EQ(output.status, 2 << 8);
  std::string text;  // stderr and stdout, in either order
  for (const std::string& line : output.lines) text += line + "\n";
  EXPECT_NE(
      text.find(
          "OUTGRAD_ERROR_ENVIRONMENT: outgrad_activation_forward: the environment variable OUTGRAD_ISA"),
      std::string::npos)
      << text;
}

template <class T>
void expect_activation_bits() {
  const auto a = patterns::backward<T>();
  std::vector<T> expected(a.y.size()), actual(a.y.size());
  activation_backward<typename DefaultFit<T>::Type, T, kScalar>(a.dy.data(), a.y.data(), a.mask.data(),
                                                                expected.data(), a.size());
  ASSERT_EQ(
      outgrad_gelu_backward(kFormatOf<T>, a.dy.data(), a.y.data(), a.mask.data(), actual.data(), a.size()),
      OUTGRAD_OK);
  EXPECT_EQ(patterns::first_difference(expected, actual), -1);
  std::vector<T> in_place = a.dy;
  ASSERT_EQ(outgrad_gelu_backward(kFormatOf<T>, in_place.data(), a.y.data(), a.mask.data(), in_place.data(),
                                  a.size()),
            OUTGRAD_OK);
  EXPECT_EQ(patterns::first_difference(expected, in_place), -1);

  const std::vector<T> x = patterns::all<T>();
  std::vector<T> y(x.size()), c_y = x;
  std::vector<u32> mask((x.size() + 31) / 32), c_mask((x.size() + 31) / 32, ~0u);
  gelu_forward<typename ForwardFit<T>::Type, T, kScalar>(x.data(), y.data(), mask.data(),
                                                         static_cast<i64>(x.size()));
  ASSERT_EQ(
      outgrad_gelu_forward(kFormatOf<T>, c_y.data(), c_y.data(), c_mask.data(), static_cast<i64>(x.size())),
      OUTGRAD_OK);
  EXPECT_EQ(patterns::first_difference(y, c_y), -1);
  EXPECT_EQ(mask, c_mask);
}

TEST(CInterface, ActivationsAreTheHeadersBits) {
  expect_activation_bits<float>();
  expect_activation_bits<F16>();
  expect_activation_bits<BF16>();
}

template <class Fit, class T>
void expect_fit(int activation) {
  const std::string name = std::string(kActivationNames[activation]) + "_" + Format<T>::kName;
  EXPECT_EQ(Fit::kName, name);
  EXPECT_STREQ(outgrad_fit_name(activation, kFormatOf<T>), name.c_str());
  const auto a = patterns::backward<T>();
  std::vector<T> expected(a.y.size()), actual(a.y.size());
  activation_backward<Fit, T, kScalar>(a.dy.data(), a.y.data(), a.mask.data(), expected.data(), a.size());
  ASSERT_EQ(outgrad_activation_backward(activation, kFormatOf<T>, a.dy.data(), a.y.data(), a.mask.data(),
                                        actual.data(), a.size()),
            OUTGRAD_OK);
  EXPECT_EQ(patterns::first_difference(expected, actual), -1) << name;
}

template <class T, class... Fit>
void expect_fits(c::FitList<Fit...>) {
  int activation = 0;
  (expect_fit<Fit, T>(activation++), ...);
}

TEST(CInterface, EveryBackwardIsItsHeadersBits) {
  expect_fits<float>(c::ActivationFits<float>::Type{});
  expect_fits<F16>(c::ActivationFits<F16>::Type{});
  expect_fits<BF16>(c::ActivationFits<BF16>::Type{});
}

template <class F, class T>
void expect_forward(outgrad_activation activation) {
  const std::vector<T> x = patterns::all<T>();
  const auto n = static_cast<i64>(x.size());
  std::vector<T> expected(x.size()), y = x;
  std::vector<u32> expected_mask((x.size() + 31) / 32), mask = expected_mask;
  activation_forward<F, T, kScalar>(x.data(), expected.data(), expected_mask.data(), n);
  ASSERT_EQ(outgrad_activation_forward(activation, kFormatOf<T>, y.data(), y.data(),
                                       F::kMasked ? mask.data() : nullptr, n),
            OUTGRAD_OK);
  EXPECT_EQ(patterns::first_difference(expected, y), -1) << F::kActivation;
  EXPECT_EQ(mask, expected_mask) << F::kActivation;
}

template <class... F>
void expect_forwards(ForwardList<F...>) {
  outgrad_activation activation = OUTGRAD_GELU;
  ((++activation, expect_forward<F, float>(activation), expect_forward<F, F16>(activation),
    expect_forward<F, BF16>(activation)),
   ...);
  EXPECT_EQ(activation, OUTGRAD_ELU);
}

TEST(CInterface, EveryForwardIsItsHeadersBits) {
  expect_forwards(ActivationForwards{});
  const std::vector<float> x = patterns::all<float>();
  std::vector<float> expected(x.size()), y(x.size());
  std::vector<u32> expected_mask((x.size() + 31) / 32), mask = expected_mask;
  ASSERT_EQ(outgrad_gelu_forward(OUTGRAD_F32, x.data(), expected.data(), expected_mask.data(),
                                 static_cast<i64>(x.size())),
            OUTGRAD_OK);
  ASSERT_EQ(outgrad_activation_forward(OUTGRAD_GELU, OUTGRAD_F32, x.data(), y.data(), mask.data(),
                                       static_cast<i64>(x.size())),
            OUTGRAD_OK);
  EXPECT_EQ(patterns::first_difference(expected, y), -1);
  EXPECT_EQ(mask, expected_mask);
}

template <class T>
void expect_mxfp8_bits() {
  const std::vector<T> x = patterns::all<T>();
  const auto n = static_cast<i64>(x.size());
  struct Kept {
    std::vector<u8> codes, scales;
    std::vector<u32> mask;
  };
  const size_t blocks = (x.size() + 31) / 32;
  Kept expected{std::vector<u8>(x.size()), std::vector<u8>(blocks), std::vector<u32>(blocks)},
      actual = expected;
  gelu_forward_mxfp8<typename ForwardFit<T>::Type, T, kScalar>(
      x.data(), reinterpret_cast<F8E4M3*>(expected.codes.data()),
      reinterpret_cast<E8M0*>(expected.scales.data()), expected.mask.data(), n);
  ASSERT_EQ(outgrad_gelu_forward_mxfp8(kFormatOf<T>, x.data(), actual.codes.data(), actual.scales.data(),
                                       actual.mask.data(), n),
            OUTGRAD_OK);
  EXPECT_EQ(expected.codes, actual.codes);
  EXPECT_EQ(expected.scales, actual.scales);
  EXPECT_EQ(expected.mask, actual.mask);
  std::vector<T> dx(x.size()), in_place = x;
  activation_backward<generated::GeluMxfp8, T, kScalar, MxFp8>(
      x.data(), stored<MxFp8>(actual.codes.data(), actual.scales.data()), actual.mask.data(), dx.data(), n);
  ASSERT_EQ(outgrad_gelu_backward_mxfp8(kFormatOf<T>, in_place.data(), actual.codes.data(),
                                        actual.scales.data(), actual.mask.data(), in_place.data(), n),
            OUTGRAD_OK);
  EXPECT_EQ(patterns::first_difference(dx, in_place), -1);
}

TEST(CInterface, Mxfp8IsTheHeadersBits) {
  expect_mxfp8_bits<float>();
  expect_mxfp8_bits<F16>();
  expect_mxfp8_bits<BF16>();
}

template <class T>
void expect_softmax_bits() {
  constexpr i64 rows = 3, n = 1000;
  patterns::Random random(7);
  std::vector<T> x(rows * n), dy(rows * n), y(rows * n), dx(rows * n);
  for (T& each : x) each = narrow<T>(static_cast<float>(static_cast<i32>(random.next())) * 0x1p-28f);
  for (T& each : dy) each = narrow<T>(static_cast<float>(static_cast<i32>(random.next())) * 0x1p-31f);
  std::vector<u8> codes(rows * n), actual(rows * n + 1, 0xa5), encoded(rows * n), actual_encoded(rows * n);
  softmax_forward_code<T, kScalar>(x.data(), y.data(), codes.data(), rows, n);
  softmax_backward_code<T, kScalar>(dy.data(), codes.data(), dx.data(), rows, n);
  softmax_encode<T, kScalar>(y.data(), encoded.data(), rows * n);
  ASSERT_EQ(
      outgrad_softmax_forward_code(kFormatOf<T>, x.data(), rows, n, x.data(), actual.data(), actual.size()),
      OUTGRAD_OK);
  EXPECT_EQ(patterns::first_difference(y, x), -1);
  EXPECT_TRUE(std::equal(codes.begin(), codes.end(), actual.begin()));
  EXPECT_EQ(actual.back(), 0xa5);  // what lies beyond the codes is left alone
  ASSERT_EQ(
      outgrad_softmax_backward_code(kFormatOf<T>, dy.data(), codes.data(), codes.size(), rows, n, dy.data()),
      OUTGRAD_OK);
  EXPECT_EQ(patterns::first_difference(dx, dy), -1);
  ASSERT_EQ(
      outgrad_softmax_encode(kFormatOf<T>, y.data(), rows, n, actual_encoded.data(), actual_encoded.size()),
      OUTGRAD_OK);
  EXPECT_EQ(actual_encoded, encoded);
}

TEST(CInterface, SoftmaxIsTheHeadersBits) {
  expect_softmax_bits<float>();
  expect_softmax_bits<F16>();
  expect_softmax_bits<BF16>();
}

template <class Fit, class Y>
void expect_parity_fit() {
  using T = typename Format<Y>::Carrier;
  const auto activation = static_cast<outgrad_activation>(
      std::find(kActivationNames, kActivationNames + kActivations, std::string(Fit::kActivation)) -
      kActivationNames);
  EXPECT_EQ(Fit::kName, std::string(Fit::kActivation) + "_" + Format<Y>::kName);
  const std::vector<T> x = patterns::all<T>();
  const auto n = static_cast<i64>(x.size());
  std::vector<Y> expected(x.size());
  activation_forward_parity<ParityForward<Fit>, Y, kScalar>(x.data(), expected.data(), n);
  std::vector<T> y = x;
  ASSERT_EQ(outgrad_activation_forward_parity(activation, kFormatOf<T>, y.data(), y.data(), n), OUTGRAD_OK);
  for (size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i].bits, expected[i].bits) << Fit::kName;

  const auto a = patterns::backward<T>();
  std::vector<Y> carrying;
  for (const T& each : a.y) carrying.push_back(Y{each});
  std::vector<T> dx(a.y.size()), actual = a.dy;
  activation_backward<Fit, T, kScalar, Y>(a.dy.data(), carrying.data(), nullptr, dx.data(), a.size());
  ASSERT_EQ(outgrad_activation_backward_parity(activation, kFormatOf<T>, actual.data(), a.y.data(),
                                               actual.data(), a.size()),
            OUTGRAD_OK);
  EXPECT_EQ(patterns::first_difference(dx, actual), -1) << Fit::kName;
}

template <class Y, class... Fit>
void expect_parity_fits(ParityFitList<Fit...>) {
  (expect_parity_fit<Fit, Y>(), ...);
}

TEST(CInterface, AYThatCarriesItsBranchIsTheHeadersBits) {
  expect_parity_fits<ParityF16>(ParityFits<ParityF16>::Type{});
  expect_parity_fits<ParityBf16>(ParityFits<ParityBf16>::Type{});
}

TEST(CInterface, IncreasingActivationsNeedNoMask) {
  const std::vector<float> y(100, 0.25f), dy(100, 2.0f);
  std::vector<float> dx(100);
  ASSERT_EQ(
      outgrad_activation_backward(OUTGRAD_TANH, OUTGRAD_F32, dy.data(), y.data(), nullptr, dx.data(), 100),
      OUTGRAD_OK);
  for (const float value : dx) EXPECT_EQ(value, 2.0f * (1.0f - 0.25f * 0.25f));  // exact in fp32
}

template <class A, class T>
void expect_code(outgrad_activation activation, const CodeChoice& choice) {
  const std::vector<T> x = patterns::all<T>();
  const auto n = static_cast<i64>(x.size());
  std::vector<T> expected_y(x.size()), y = x, expected_dx(x.size()), dx = x;
  size_t bytes = 0;
  ASSERT_EQ(outgrad_code_bytes(choice.bits, n, &bytes), OUTGRAD_OK);
  ASSERT_EQ(static_cast<i64>(bytes), code_bytes(choice.bits, n));
  std::vector<u8> expected(bytes), codes(bytes + 1, 0x5e);
  activation_forward_code<A, T, kScalar>(choice, x.data(), expected_y.data(), expected.data(), n);
  ASSERT_EQ(outgrad_activation_forward_code(activation, kFormatOf<T>, y.data(), y.data(), codes.data(), bytes,
                                            choice.bits, choice.seed, n),
            OUTGRAD_OK);
  EXPECT_EQ(patterns::first_difference(expected_y, y), -1) << A::Code::kName;
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), codes.begin()))
      << A::Code::kName << " " << choice.bits;
  EXPECT_EQ(codes.back(), 0x5e);
  activation_backward_code<T, kScalar>({A::Code::kLo, A::Code::kHi}, choice, x.data(), expected.data(),
                                       expected_dx.data(), n);
  ASSERT_EQ(outgrad_activation_backward_code(activation, kFormatOf<T>, dx.data(), codes.data(), bytes,
                                             dx.data(), choice.bits, choice.seed, n),
            OUTGRAD_OK);
  EXPECT_EQ(patterns::first_difference(expected_dx, dx), -1) << A::Code::kName << " " << choice.bits;
}

// Codes of gradients that the caller has computed: x stands for them.
template <class T>
void expect_encoded(const CodeRange& range, const CodeChoice& choice) {
  const std::vector<T> g = patterns::all<T>();
  const auto n = static_cast<i64>(g.size());
  const auto bytes = static_cast<size_t>(code_bytes(choice.bits, n));
  std::vector<T> expected_dx(g.size()), dx = g;
  std::vector<u8> expected(bytes + 1, 0x5e), codes(bytes + 1, 0x5e);
  encode_gradients<T, kScalar>(range, choice, g.data(), expected.data(), n);
  ASSERT_EQ(outgrad_encode_gradients(range.lo, range.hi, kFormatOf<T>, g.data(), codes.data(), bytes,
                                     choice.bits, choice.seed, n),
            OUTGRAD_OK);
  EXPECT_EQ(expected, codes) << choice.bits;
  activation_backward_code<T, kScalar>(range, choice, g.data(), expected.data(), expected_dx.data(), n);
  ASSERT_EQ(outgrad_backward_encoded(range.lo, range.hi, kFormatOf<T>, dx.data(), codes.data(), bytes,
                                     dx.data(), choice.bits, choice.seed, n),
            OUTGRAD_OK);
  EXPECT_EQ(patterns::first_difference(expected_dx, dx), -1) << choice.bits;
}

template <class A, class F, class T>
void expect_fp8(outgrad_activation activation, outgrad_fp8 fp8, float scale, std::int32_t bits) {
  const std::vector<T> x = patterns::all<T>();
  const auto n = static_cast<i64>(x.size());
  Fp8Table table;
  fill_fp8_table<A, F>(scale, bits, table);
  double error = 0;
  ASSERT_EQ(outgrad_fp8_error(activation, fp8, scale, bits, &error), OUTGRAD_OK);
  EXPECT_EQ(error, fp8_error<A>(table));
  const auto bytes = static_cast<size_t>(code_bytes(bits, n));
  std::vector<F> expected_codes(x.size());
  std::vector<u8> codes(x.size()), expected(bytes + 1, 0x5e), parts(bytes + 1, 0x5e);
  std::vector<T> expected_dx(x.size()), dx = x;
  activation_forward_fp8<A, F, T, kScalar>(table, scale, x.data(), expected_codes.data(), expected.data(), n);
  ASSERT_EQ(outgrad_activation_forward_fp8(activation, kFormatOf<T>, x.data(), fp8, scale, codes.data(),
                                           bits == 0 ? nullptr : parts.data(), bytes, bits, n),
            OUTGRAD_OK);
  EXPECT_EQ(std::memcmp(expected_codes.data(), codes.data(), codes.size()), 0) << A::Header::kName;
  EXPECT_EQ(expected, parts) << A::Header::kName << " " << bits;
  activation_backward_fp8<T, kScalar>(table, x.data(), codes.data(), expected.data(), expected_dx.data(), n);
  ASSERT_EQ(outgrad_activation_backward_fp8(activation, kFormatOf<T>, dx.data(), fp8, scale, codes.data(),
                                            parts.data(), bytes, dx.data(), bits, n),
            OUTGRAD_OK);
  EXPECT_EQ(patterns::first_difference(expected_dx, dx), -1) << A::Header::kName << " " << bits;
}

template <class T, class... A>
void expect_fp8s(Fp8List<A...>) {
  const auto one = [&]<class Each>() {
    const auto activation = static_cast<outgrad_activation>(
        std::find_if(std::begin(kActivationNames), std::end(kActivationNames),
                     [](const char* name) { return std::string_view(name) == Each::Header::kActivation; }) -
        std::begin(kActivationNames));
    for (std::int32_t bits = 0; bits <= 2; ++bits) {
      expect_fp8<Each, F8E4M3, T>(activation, OUTGRAD_E4M3, 0x1.23p6f, bits);
      expect_fp8<Each, F8E5M2, T>(activation, OUTGRAD_E5M2, 0x1.7p11f, bits);
      expect_fp8<Each, I8, T>(activation, OUTGRAD_INT8, 0x1.7p5f, bits);
    }
  };
  (one.template operator()<A>(), ...);
}

TEST(CInterface, YIn8BitsIsTheHeadersF16) { expect_fp8s<F16>(Fp8Activations{}); }
TEST(CInterface, YIn8BitsIsTheHeadersBf16) { expect_fp8s<BF16>(Fp8Activations{}); }
TEST(CInterface, YIn8BitsIsTheHeadersF32) {
  expect_fp8<Fp8Activation<generated::GeluFp8>, F8E4M3, float>(OUTGRAD_GELU, OUTGRAD_E4M3, 0x1.23p6f, 2);
}

template <class A, class B, class T>
void expect_fp4(outgrad_activation activation, outgrad_fp4 fp4, float scale, std::int32_t bits) {
  const std::vector<T> x = patterns::all<T>();
  const auto n = static_cast<i64>(x.size());
  const auto tables = std::make_unique<Fp4Tables>();
  double error = 0;
  ASSERT_EQ(outgrad_fp4_error(activation, fp4, scale, 3.0f, bits, &error), OUTGRAD_OK);
  EXPECT_EQ(error, (fill_fp4_tables<A, B>(scale, bits, bits_of(3.0f), *tables)));
  const auto bytes = static_cast<size_t>(code_bytes(bits, n)),
             code_count = static_cast<size_t>(code_bytes(kFp4Bits, n)),
             blocks = static_cast<size_t>(blocks_of<B>(n));
  std::vector<u8> expected_codes(code_count), codes(code_count), expected_scales(blocks), scales(blocks),
      expected(bytes + 1, 0x5e), parts(bytes + 1, 0x5e);
  std::vector<T> expected_dx(x.size()), dx = x;
  activation_forward_fp4<A, B, T, kScalar>(*tables, x.data(), expected_codes.data(), expected_scales.data(),
                                           expected.data(), n);
  ASSERT_EQ(outgrad_activation_forward_fp4(activation, kFormatOf<T>, x.data(), fp4, scale, codes.data(),
                                           scales.data(), bits == 0 ? nullptr : parts.data(), bytes, bits, n),
            OUTGRAD_OK);
  EXPECT_EQ(expected_codes, codes) << A::Header::kName;
  EXPECT_EQ(expected_scales, scales) << A::Header::kName;
  EXPECT_EQ(expected, parts) << A::Header::kName << " " << bits;
  activation_backward_fp4<B, T, kScalar>(*tables, x.data(), codes.data(), scales.data(), expected.data(),
                                         expected_dx.data(), n);
  ASSERT_EQ(outgrad_activation_backward_fp4(activation, kFormatOf<T>, dx.data(), fp4, scale, codes.data(),
                                            scales.data(), parts.data(), bytes, dx.data(), bits, n),
            OUTGRAD_OK);
  EXPECT_EQ(patterns::first_difference(expected_dx, dx), -1) << A::Header::kName << " " << bits;
}

TEST(CInterface, YIn4BitsIsTheHeaders) {
  using Gelu = Fp8Activation<generated::GeluFp8>;
  using Mish = Fp8Activation<generated::MishFp8>;
  for (std::int32_t bits = 0; bits <= 2; ++bits) {
    expect_fp4<Gelu, MxFp4, BF16>(OUTGRAD_GELU, OUTGRAD_MXFP4, 1.0f, bits);
    expect_fp4<Gelu, NvFp4, F16>(OUTGRAD_GELU, OUTGRAD_NVFP4, 0x1.23p6f, bits);
    expect_fp4<Mish, NvFp4, BF16>(OUTGRAD_MISH, OUTGRAD_NVFP4, 0x1.23p9f, bits);
  }
  expect_fp4<Mish, MxFp4, float>(OUTGRAD_MISH, OUTGRAD_MXFP4, 1.0f, 1);
}

template <class T, class... A>
void expect_codes(CodedList<A...>) {
  const u64 seed = 42;
  outgrad_activation activation = OUTGRAD_GELU;
  const auto check = [&]<class Each>(Each) {
    EXPECT_STREQ(outgrad_code_name(activation), Each::Code::kName);
    expect_code<Each, T>(activation, {5, nullptr});
    expect_code<Each, T>(activation, {2, &seed});
    ++activation;
  };
  (check(A{}), ...);
  EXPECT_EQ(activation, OUTGRAD_ELU + 1);
}

TEST(CInterface, EveryCodeIsItsHeadersBits) {
  expect_codes<float>(CodedActivations{});
  expect_codes<F16>(CodedActivations{});
  expect_codes<BF16>(CodedActivations{});
  static const u64 seed = 77;
  for (const CodeChoice& choice : {CodeChoice{4, nullptr}, CodeChoice{3, &seed}}) {
    expect_encoded<float>({-0.125f, 1.25f}, choice);
    expect_encoded<F16>({0, 1}, choice);
    expect_encoded<BF16>({-2, 2}, choice);
  }
  EXPECT_EQ(outgrad_code_name(10), nullptr);
  EXPECT_EQ(outgrad_code_coefficients_sha256(-1), nullptr);
}

// Arguments of the norms, all valid; each test spoils one.
template <class T>
struct NormCase {
  static constexpr i64 kRows = 5, kN = 40;
  std::vector<T> x = std::vector<T>(kRows * kN), dy = x, y = x, dx = x;
  std::vector<float> gamma = std::vector<float>(kN), beta = gamma, dgamma = gamma, dbeta = gamma;
  std::vector<float> rstd = std::vector<float>(kRows), x_hat = std::vector<float>(kRows * 2), workspace;
  std::vector<i32> side = {0, 7};
  size_t bytes = 0;

  NormCase() {
    patterns::Random random(7);
    const auto draw = [&] { return static_cast<float>(static_cast<i32>(random.next())) * 0x1p-30f; };
    for (T& value : x) value = narrow<T>(draw());
    for (T& value : dy) value = narrow<T>(draw());
    for (float& value : gamma) value = 1.0f + 0.25f * draw();
    for (float& value : beta) value = draw();
    gamma[0] = gamma[7] = 0.0f;
    EXPECT_EQ(outgrad_norm_backward_workspace(kFormatOf<T>, kRows, kN, &bytes), OUTGRAD_OK);
    workspace.resize(bytes / 4);
  }
};

template <class T>
void expect_norm_bits() {
  NormCase<T> c, e;
  const auto rows = c.kRows, n = c.kN;
  const outgrad_format format = kFormatOf<T>;
  ASSERT_EQ(outgrad_layernorm_forward(format, c.x.data(), c.gamma.data(), c.beta.data(), rows, n, 1e-5f,
                                      c.y.data(), c.rstd.data(), c.side.data(), 2, c.x_hat.data()),
            OUTGRAD_OK);
  ASSERT_EQ(outgrad_layernorm_backward(format, c.dy.data(), c.y.data(), c.gamma.data(), c.beta.data(),
                                       c.rstd.data(), rows, n, c.dx.data(), c.dgamma.data(), c.dbeta.data(),
                                       c.side.data(), 2, c.x_hat.data(), c.workspace.data(), c.bytes),
            OUTGRAD_OK);
  layernorm_forward<T, kScalar>(e.x.data(), e.gamma.data(), e.beta.data(), rows, n, 1e-5f, e.y.data(),
                                e.rstd.data(), {e.side.data(), 2, e.x_hat.data()});
  layernorm_backward<T, kScalar>(e.dy.data(), e.y.data(), e.gamma.data(), e.beta.data(), e.rstd.data(), rows,
                                 n, e.dx.data(), e.dgamma.data(), e.dbeta.data(),
                                 {e.side.data(), 2, e.x_hat.data()});
  EXPECT_EQ(patterns::first_difference(e.y, c.y), -1);
  EXPECT_EQ(patterns::first_difference(e.dx, c.dx), -1);
  EXPECT_EQ(e.rstd, c.rstd);
  EXPECT_EQ(e.x_hat, c.x_hat);
  EXPECT_EQ(e.dgamma, c.dgamma);
  EXPECT_EQ(e.dbeta, c.dbeta);
  ASSERT_EQ(outgrad_rmsnorm_forward(format, c.x.data(), c.gamma.data(), rows, n, 1e-5f, c.y.data(),
                                    c.rstd.data(), c.side.data(), 2, c.x_hat.data()),
            OUTGRAD_OK);
  ASSERT_EQ(outgrad_rmsnorm_backward(format, c.dy.data(), c.y.data(), c.gamma.data(), c.rstd.data(), rows, n,
                                     c.dx.data(), c.dgamma.data(), c.side.data(), 2, c.x_hat.data(),
                                     c.workspace.data(), c.bytes),
            OUTGRAD_OK);
  rmsnorm_forward<T, kScalar>(e.x.data(), e.gamma.data(), rows, n, 1e-5f, e.y.data(), e.rstd.data(),
                              {e.side.data(), 2, e.x_hat.data()});
  rmsnorm_backward<T, kScalar>(e.dy.data(), e.y.data(), e.gamma.data(), e.rstd.data(), rows, n, e.dx.data(),
                               e.dgamma.data(), {e.side.data(), 2, e.x_hat.data()});
  EXPECT_EQ(patterns::first_difference(e.y, c.y), -1);
  EXPECT_EQ(patterns::first_difference(e.dx, c.dx), -1);
  EXPECT_EQ(e.dgamma, c.dgamma);
}

TEST(CInterface, NormsAreTheHeadersBits) {
  expect_norm_bits<float>();
  expect_norm_bits<F16>();
  expect_norm_bits<BF16>();
}

template <class Store, class T>
void expect_norm_bits_from(outgrad_norm_store store) {
  constexpr i64 rows = 5, n = 192;
  patterns::Random random(11);
  const auto draw = [&] { return static_cast<float>(static_cast<i32>(random.next())) * 0x1p-30f; };
  std::vector<T> x, dy, y(rows * n), dx(rows * n), c_y(rows * n), c_dx(rows * n);
  std::vector<float> gamma, beta, rstd(rows), x_hat(2 * rows), dgamma(n), dbeta(n), c_rstd(rows),
      c_x_hat(2 * rows), c_dgamma(n), c_dbeta(n);
  for (i64 i = 0; i < rows * n; ++i) x.push_back(narrow<T>(draw())), dy.push_back(narrow<T>(draw()));
  for (i64 j = 0; j < n; ++j) gamma.push_back(1 + 0.25f * draw()), beta.push_back(draw());
  gamma[3] = gamma[190] = 0;
  const std::vector<i32> side = {3, 190};
  size_t bytes = 0, scale_bytes = 0;
  ASSERT_EQ(outgrad_norm_backward_workspace(kFormatOf<T>, rows, n, &bytes), OUTGRAD_OK);
  ASSERT_EQ(outgrad_norm_scale_bytes(store, rows, n, &scale_bytes), OUTGRAD_OK);
  std::vector<float> workspace(bytes / 4), c_scales((scale_bytes + 3) / 4);
  std::vector<u8> c_codes(rows * n);
  std::vector<typename Store::Code> codes(rows * n);
  std::vector<typename Store::Scale> scales(static_cast<size_t>(norm_scales_of<Store>(rows, n)));
  ASSERT_EQ(scales.size() * sizeof(typename Store::Scale), scale_bytes);
  const float given = 0.002f;
  for (const bool rms : {false, true}) {
    for (const float* scale : {static_cast<const float*>(nullptr), &given}) {
      if (scale && store != OUTGRAD_NORM_E4M3) continue;
      if (rms) {
        ASSERT_EQ(
            outgrad_rmsnorm_forward_8bit(kFormatOf<T>, store, x.data(), gamma.data(), rows, n, 1e-5f, scale,
                                         c_y.data(), c_codes.data(), c_codes.size(), c_scales.data(),
                                         scale_bytes, c_rstd.data(), side.data(), 2, c_x_hat.data()),
            OUTGRAD_OK);
        ASSERT_EQ(outgrad_rmsnorm_backward_8bit(kFormatOf<T>, store, dy.data(), c_codes.data(),
                                                c_codes.size(), c_scales.data(), scale_bytes, gamma.data(),
                                                c_rstd.data(), rows, n, c_dx.data(), c_dgamma.data(),
                                                side.data(), 2, c_x_hat.data(), workspace.data(), bytes),
                  OUTGRAD_OK);
        rmsnorm_forward_8bit<Store, T, kScalar>(x.data(), gamma.data(), rows, n, 1e-5f, scale, y.data(),
                                                codes.data(), scales.data(), rstd.data(),
                                                {side.data(), 2, x_hat.data()});
        rmsnorm_backward_8bit<Store, T, kScalar>(dy.data(), codes.data(), scales.data(), gamma.data(),
                                                 rstd.data(), rows, n, dx.data(), dgamma.data(),
                                                 {side.data(), 2, x_hat.data()}, workspace);
      } else {
        ASSERT_EQ(outgrad_layernorm_forward_8bit(kFormatOf<T>, store, x.data(), gamma.data(), beta.data(),
                                                 rows, n, 1e-5f, scale, c_y.data(), c_codes.data(),
                                                 c_codes.size(), c_scales.data(), scale_bytes, c_rstd.data(),
                                                 side.data(), 2, c_x_hat.data()),
                  OUTGRAD_OK);
        ASSERT_EQ(outgrad_layernorm_backward_8bit(kFormatOf<T>, store, dy.data(), c_codes.data(),
                                                  c_codes.size(), c_scales.data(), scale_bytes, gamma.data(),
                                                  beta.data(), c_rstd.data(), rows, n, c_dx.data(),
                                                  c_dgamma.data(), c_dbeta.data(), side.data(), 2,
                                                  c_x_hat.data(), workspace.data(), bytes),
                  OUTGRAD_OK);
        layernorm_forward_8bit<Store, T, kScalar>(x.data(), gamma.data(), beta.data(), rows, n, 1e-5f, scale,
                                                  y.data(), codes.data(), scales.data(), rstd.data(),
                                                  {side.data(), 2, x_hat.data()});
        layernorm_backward_8bit<Store, T, kScalar>(
            dy.data(), codes.data(), scales.data(), gamma.data(), beta.data(), rstd.data(), rows, n,
            dx.data(), dgamma.data(), dbeta.data(), {side.data(), 2, x_hat.data()}, workspace);
        EXPECT_EQ(dbeta, c_dbeta);
      }
      EXPECT_EQ(std::memcmp(codes.data(), c_codes.data(), codes.size()), 0) << Store::kName;
      EXPECT_EQ(std::memcmp(scales.data(), c_scales.data(), scale_bytes), 0) << Store::kName;
      EXPECT_EQ(patterns::first_difference(y, c_y), -1) << Store::kName;
      EXPECT_EQ(patterns::first_difference(dx, c_dx), -1) << Store::kName;
      EXPECT_EQ(rstd, c_rstd);
      EXPECT_EQ(x_hat, c_x_hat);
      EXPECT_EQ(dgamma, c_dgamma);
    }
  }
}

template <class T>
void expect_norm_bits_from_stores() {
  expect_norm_bits_from<NormE4m3, T>(OUTGRAD_NORM_E4M3);
  expect_norm_bits_from<NormMxFp8, T>(OUTGRAD_NORM_MXFP8);
  expect_norm_bits_from<NormInt8, T>(OUTGRAD_NORM_INT8);
}

TEST(CInterface, NormsFrom8BitsAreTheHeadersBits) {
  expect_norm_bits_from_stores<float>();
  expect_norm_bits_from_stores<F16>();
  expect_norm_bits_from_stores<BF16>();
}

template <class T>
void expect_fused_bits() {
  NormCase<T> c, e;
  const auto rows = c.kRows, n = c.kN;
  const outgrad_format format = kFormatOf<T>;
  using Fit = typename DefaultFit<T>::Type;
  std::vector<u32> mask(static_cast<size_t>((rows * n + 31) / 32), ~0u), expected_mask(mask.size());
  size_t bytes = 0;
  ASSERT_EQ(outgrad_bias_gelu_forward(format, c.x.data(), c.beta.data(), rows, n, c.y.data(), mask.data()),
            OUTGRAD_OK);
  bias_gelu_forward<typename ForwardFit<T>::Type, T, kScalar>(e.x.data(), e.beta.data(), rows, n, e.y.data(),
                                                              expected_mask.data());
  EXPECT_EQ(patterns::first_difference(e.y, c.y), -1);
  EXPECT_EQ(mask, expected_mask);
  ASSERT_EQ(outgrad_bias_backward_workspace(format, rows, n, &bytes), OUTGRAD_OK);
  std::vector<float> workspace(bytes / 4);
  ASSERT_EQ(outgrad_bias_gelu_backward(format, c.dy.data(), c.y.data(), mask.data(), rows, n, c.dx.data(),
                                       c.dbeta.data(), workspace.data(), bytes),
            OUTGRAD_OK);
  bias_gelu_backward<Fit, T, kScalar>(e.dy.data(), e.y.data(), mask.data(), rows, n, e.dx.data(),
                                      e.dbeta.data());
  EXPECT_EQ(patterns::first_difference(e.dx, c.dx), -1);
  EXPECT_EQ(e.dbeta, c.dbeta);

  std::vector<T> z(c.x.size()), expected_z(z.size());
  std::vector<float> scratch(static_cast<size_t>(norm_backward_workspace(rows, n)));
  for (const bool layer : {true, false}) {
    const std::vector<T> residual = c.dx;  // any values
    const SideBuffer<float> side{e.side.data(), 2, e.x_hat.data()};
    if (layer) {
      ASSERT_EQ(outgrad_residual_layernorm_forward(format, c.x.data(), residual.data(), c.gamma.data(),
                                                   c.beta.data(), rows, n, 1e-5f, z.data(), c.y.data(),
                                                   c.rstd.data(), c.side.data(), 2, c.x_hat.data()),
                OUTGRAD_OK);
      ASSERT_EQ(outgrad_residual_layernorm_backward(
                    format, c.dy.data(), c.y.data(), c.x.data(), c.gamma.data(), c.beta.data(), c.rstd.data(),
                    rows, n, c.dx.data(), c.dgamma.data(), c.dbeta.data(), c.side.data(), 2, c.x_hat.data(),
                    c.workspace.data(), c.bytes),
                OUTGRAD_OK);
      residual_layernorm_forward<T, kScalar>(e.x.data(), residual.data(), e.gamma.data(), e.beta.data(), rows,
                                             n, 1e-5f, expected_z.data(), e.y.data(), e.rstd.data(), side);
      residual_layernorm_backward<T, kScalar>(
          e.dy.data(), e.y.data(), e.x.data(), e.gamma.data(), e.beta.data(), e.rstd.data(), rows, n,
          e.dx.data(), e.dgamma.data(), e.dbeta.data(), {e.side.data(), 2, e.x_hat.data()}, scratch);
    } else {
      ASSERT_EQ(outgrad_residual_rmsnorm_forward(format, c.x.data(), residual.data(), c.gamma.data(), rows, n,
                                                 1e-5f, z.data(), c.y.data(), c.rstd.data(), c.side.data(), 2,
                                                 c.x_hat.data()),
                OUTGRAD_OK);
      ASSERT_EQ(
          outgrad_residual_rmsnorm_backward(format, c.dy.data(), c.y.data(), c.x.data(), c.gamma.data(),
                                            c.rstd.data(), rows, n, c.dx.data(), c.dgamma.data(),
                                            c.side.data(), 2, c.x_hat.data(), c.workspace.data(), c.bytes),
          OUTGRAD_OK);
      residual_rmsnorm_forward<T, kScalar>(e.x.data(), residual.data(), e.gamma.data(), rows, n, 1e-5f,
                                           expected_z.data(), e.y.data(), e.rstd.data(), side);
      residual_rmsnorm_backward<T, kScalar>(e.dy.data(), e.y.data(), e.x.data(), e.gamma.data(),
                                            e.rstd.data(), rows, n, e.dx.data(), e.dgamma.data(),
                                            {e.side.data(), 2, e.x_hat.data()}, scratch);
    }
    EXPECT_EQ(patterns::first_difference(expected_z, z), -1);
    EXPECT_EQ(patterns::first_difference(e.y, c.y), -1);
    EXPECT_EQ(patterns::first_difference(e.dx, c.dx), -1);
    EXPECT_EQ(e.rstd, c.rstd);
    EXPECT_EQ(e.x_hat, c.x_hat);
    EXPECT_EQ(e.dgamma, c.dgamma);
    EXPECT_EQ(e.dbeta, c.dbeta);
  }
}

TEST(CInterface, FusedFormsAreTheHeadersBits) {
  expect_fused_bits<float>();
  expect_fused_bits<F16>();
  expect_fused_bits<BF16>();
}

// --- Refusals ------------------------------------------------------------------------------------

constexpr i64 kMax = std::numeric_limits<i64>::max();
constexpr u32 kGuard = 0x5eedca5eu;

// A refusal: the status, a message that names the function and holds `words`, and not one byte of `memory`
// changed.
template <class Call>
void expect_refused(outgrad_status expected, const std::string& words, std::vector<u32>& memory,
                    const Call& call) {
  const std::vector<u32> before = memory;
  const outgrad_status status = call();
  EXPECT_STREQ(outgrad_status_name(status), outgrad_status_name(expected)) << words;
  const std::string text = outgrad_error_message();
  EXPECT_EQ(text.rfind("outgrad_", 0), 0u) << text;
  EXPECT_NE(text.find(words), std::string::npos) << text;
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  EXPECT_EQ(memory, before) << text;
}

TEST(CInterface, ActivationRefusesWithoutWriting) {
  constexpr i64 n = 64;
  std::vector<u32> memory(4 * n + 8, kGuard);
  u32* const dy = memory.data();
  u32* const y = dy + n;
  u32* const dx = y + n;
  u32* const mask = dx + n;
  const auto backward = [&](const void* p, const void* q, const u32* m, void* r, i64 count,
                            int format = OUTGRAD_F32, int activation = OUTGRAD_GELU) {
    return [=] { return outgrad_activation_backward(activation, format, p, q, m, r, count); };
  };
  const auto offset = [](void* pointer, int bytes) {
    return static_cast<void*>(static_cast<char*>(pointer) + bytes);
  };
  expect_refused(OUTGRAD_ERROR_NULL_POINTER, "dy is null", memory, backward(nullptr, y, mask, dx, n));
  expect_refused(OUTGRAD_ERROR_NULL_POINTER, "y is null", memory, backward(dy, nullptr, mask, dx, n));
  expect_refused(OUTGRAD_ERROR_NULL_POINTER, "mask is null", memory, backward(dy, y, nullptr, dx, n));
  expect_refused(OUTGRAD_ERROR_NULL_POINTER, "dx is null", memory, backward(dy, y, mask, nullptr, n));
  expect_refused(OUTGRAD_ERROR_SIZE, "n = -1", memory, backward(dy, y, mask, dx, -1));
  expect_refused(OUTGRAD_ERROR_SIZE, "addressed", memory, backward(dy, y, mask, dx, kMax));
  expect_refused(OUTGRAD_ERROR_SIZE, "addressed", memory, backward(dy, y, mask, dx, kMax / 4 + 1));
  expect_refused(OUTGRAD_ERROR_OVERLAP, "dx overlaps dy", memory, backward(dy, y, mask, dy + 1, n));
  expect_refused(OUTGRAD_ERROR_OVERLAP, "dx overlaps y", memory, backward(dy, y, mask, y, n));
  expect_refused(OUTGRAD_ERROR_OVERLAP, "dx overlaps y", memory, backward(dy, dy, mask, dy, n));
  expect_refused(OUTGRAD_ERROR_OVERLAP, "dx overlaps mask", memory, backward(dy, y, dx + n - 1, dx, n));
  expect_refused(OUTGRAD_ERROR_ALIGNMENT, "y", memory, backward(dy, offset(y, 2), mask, dx, n));
  expect_refused(OUTGRAD_ERROR_ALIGNMENT, "dx", memory,
                 backward(dy, y, mask, offset(dx, 1), n, OUTGRAD_BF16));
  expect_refused(OUTGRAD_ERROR_FORMAT, "format 3", memory, backward(dy, y, mask, dx, n, 3));
  expect_refused(OUTGRAD_ERROR_FORMAT, "format -1", memory, backward(dy, y, mask, dx, n, -1));
  expect_refused(OUTGRAD_ERROR_ACTIVATION, "activation 10", memory,
                 backward(dy, y, mask, dx, n, OUTGRAD_F16, 10));
  expect_refused(OUTGRAD_ERROR_ACTIVATION, "activation -1", memory,
                 backward(dy, y, mask, dx, n, OUTGRAD_F16, -1));
  expect_refused(OUTGRAD_ERROR_SIZE, "do not exist", memory,
                 backward(dy, reinterpret_cast<const void*>(std::numeric_limits<std::uintptr_t>::max() - 7),
                          mask, dx, n));

  const auto forward = [&](const void* x, void* out, u32* m, i64 count, int format = OUTGRAD_F32) {
    return [=] { return outgrad_gelu_forward(format, x, out, m, count); };
  };
  expect_refused(OUTGRAD_ERROR_NULL_POINTER, "x is null", memory, forward(nullptr, y, mask, n));
  expect_refused(OUTGRAD_ERROR_NULL_POINTER, "y is null", memory, forward(dy, nullptr, mask, n));
  expect_refused(OUTGRAD_ERROR_NULL_POINTER, "mask is null", memory, forward(dy, y, nullptr, n));
  expect_refused(OUTGRAD_ERROR_OVERLAP, "y overlaps x", memory, forward(dy, dy + 1, mask, n));
  expect_refused(OUTGRAD_ERROR_OVERLAP, "mask overlaps x", memory, forward(dy, y, dy, n));
  expect_refused(OUTGRAD_ERROR_OVERLAP, "overlaps", memory, forward(dy, y, y + 2, n));
  expect_refused(OUTGRAD_ERROR_SIZE, "n = -5", memory, forward(dy, y, mask, -5));
  expect_refused(OUTGRAD_ERROR_FORMAT, "format 7", memory, forward(dy, y, mask, n, 7));
  const auto any_forward = [&](outgrad_activation activation, u32* m) {
    return [=] { return outgrad_activation_forward(activation, OUTGRAD_F32, dy, y, m, n); };
  };
  expect_refused(OUTGRAD_ERROR_ACTIVATION, "activation 10", memory, any_forward(10, mask));
  expect_refused(OUTGRAD_ERROR_ACTIVATION, "activation -1", memory, any_forward(-1, mask));
  expect_refused(OUTGRAD_ERROR_NULL_POINTER, "mask is null", memory, any_forward(OUTGRAD_SILU, nullptr));
  expect_refused(OUTGRAD_ERROR_OVERLAP, "overlaps", memory, any_forward(OUTGRAD_SILU, y + 2));

  const auto parity = [&](const void* x, void* out, i64 count, outgrad_format format = OUTGRAD_BF16,
                          outgrad_activation activation = OUTGRAD_SILU) {
    return [=] { return outgrad_activation_forward_parity(activation, format, x, out, count); };
  };
  const auto parity_back = [&](const void* p, const void* q, void* r, i64 count,
                               outgrad_format format = OUTGRAD_F16,
                               outgrad_activation activation = OUTGRAD_GELU) {
    return [=] { return outgrad_activation_backward_parity(activation, format, p, q, r, count); };
  };
  expect_refused(OUTGRAD_ERROR_FORMAT, "not in f32", memory, parity(dy, y, n, OUTGRAD_F32));
  expect_refused(OUTGRAD_ERROR_FORMAT, "not in f32", memory, parity_back(dy, y, dx, n, OUTGRAD_F32));
  expect_refused(OUTGRAD_ERROR_FORMAT, "format 3", memory, parity(dy, y, n, 3));
  for (const outgrad_activation rising : {OUTGRAD_TANH, OUTGRAD_SIGMOID, OUTGRAD_SOFTPLUS, OUTGRAD_ELU}) {
    expect_refused(OUTGRAD_ERROR_ACTIVATION, std::string(kActivationNames[rising]) + " rises", memory,
                   parity(dy, y, n, OUTGRAD_F16, rising));
    expect_refused(OUTGRAD_ERROR_ACTIVATION, std::string(kActivationNames[rising]) + " rises", memory,
                   parity_back(dy, y, dx, n, OUTGRAD_BF16, rising));
  }
  expect_refused(OUTGRAD_ERROR_ACTIVATION, "activation 10", memory, parity(dy, y, n, OUTGRAD_F16, 10));
  expect_refused(OUTGRAD_ERROR_ACTIVATION, "activation -1", memory,
                 parity_back(dy, y, dx, n, OUTGRAD_F16, -1));
  expect_refused(OUTGRAD_ERROR_SIZE, "n = -1", memory, parity(dy, y, -1));
  expect_refused(OUTGRAD_ERROR_NULL_POINTER, "x is null", memory, parity(nullptr, y, n));
  expect_refused(OUTGRAD_ERROR_NULL_POINTER, "y is null", memory, parity_back(dy, nullptr, dx, n));
  expect_refused(OUTGRAD_ERROR_OVERLAP, "y overlaps x", memory, parity(dy, offset(dy, 2), n));
  expect_refused(OUTGRAD_ERROR_OVERLAP, "dx overlaps y", memory, parity_back(dy, y, y, n));
  expect_refused(OUTGRAD_ERROR_ALIGNMENT, "y", memory, parity_back(dy, offset(y, 1), dx, n));

  // Nothing to do is no error, and writes nothing, whatever the pointers are.
  const std::vector<u32> before = memory;
  EXPECT_EQ(outgrad_activation_forward_parity(OUTGRAD_GELU, OUTGRAD_F16, nullptr, nullptr, 0), OUTGRAD_OK);
  EXPECT_EQ(outgrad_activation_backward_parity(OUTGRAD_MISH, OUTGRAD_BF16, nullptr, nullptr, nullptr, 0),
            OUTGRAD_OK);
  EXPECT_EQ(outgrad_gelu_forward(OUTGRAD_F16, nullptr, nullptr, nullptr, 0), OUTGRAD_OK);
  EXPECT_EQ(outgrad_gelu_forward(OUTGRAD_F16, y, y, mask, 0), OUTGRAD_OK);
  EXPECT_EQ(outgrad_gelu_backward(OUTGRAD_BF16, nullptr, nullptr, nullptr, nullptr, 0), OUTGRAD_OK);
  EXPECT_EQ(memory, before);
}

TEST(CInterface, Mxfp8RefusesWithoutWriting) {
  constexpr i64 n = 64;
  std::vector<u32> memory(4 * n, kGuard);
  u32 *const x = memory.data(), *const dx = x + n, *const mask = dx + n;
  u8 *const codes = reinterpret_cast<u8*>(mask + 2), *const scales = codes + n;
  const auto forward = [&](const void* p, u8* c, u8* s, u32* m, i64 count, int format = OUTGRAD_F32) {
    return [=] { return outgrad_gelu_forward_mxfp8(format, p, c, s, m, count); };
  };
  expect_refused(OUTGRAD_ERROR_NULL_POINTER, "x is null", memory, forward(nullptr, codes, scales, mask, n));
  expect_refused(OUTGRAD_ERROR_NULL_POINTER, "codes is null", memory, forward(x, nullptr, scales, mask, n));
  expect_refused(OUTGRAD_ERROR_NULL_POINTER, "scales is null", memory, forward(x, codes, nullptr, mask, n));
  expect_refused(OUTGRAD_ERROR_NULL_POINTER, "mask is null", memory, forward(x, codes, scales, nullptr, n));
  expect_refused(OUTGRAD_ERROR_OVERLAP, "codes overlaps x", memory,
                 forward(x, reinterpret_cast<u8*>(x), scales, mask, n));
  expect_refused(OUTGRAD_ERROR_OVERLAP, "codes overlaps scales", memory,
                 forward(x, codes, codes + n - 1, mask, n));
  expect_refused(OUTGRAD_ERROR_OVERLAP, "codes overlaps mask", memory,
                 forward(x, reinterpret_cast<u8*>(mask) + 7, scales, mask, n));
  expect_refused(OUTGRAD_ERROR_SIZE, "n = -1", memory, forward(x, codes, scales, mask, -1));
  expect_refused(OUTGRAD_ERROR_SIZE, "addressed", memory, forward(x, codes, scales, mask, kMax));
  expect_refused(OUTGRAD_ERROR_FORMAT, "format 3", memory, forward(x, codes, scales, mask, n, 3));
  const auto backward = [&](const void* p, const u8* c, const u8* s, const u32* m, void* d, i64 count,
                            int format = OUTGRAD_F32) {
    return [=] { return outgrad_gelu_backward_mxfp8(format, p, c, s, m, d, count); };
  };
  expect_refused(OUTGRAD_ERROR_NULL_POINTER, "dy is null", memory,
                 backward(nullptr, codes, scales, mask, dx, n));
  expect_refused(OUTGRAD_ERROR_NULL_POINTER, "codes is null", memory,
                 backward(x, nullptr, scales, mask, dx, n));
  expect_refused(OUTGRAD_ERROR_NULL_POINTER, "scales is null", memory,
                 backward(x, codes, nullptr, mask, dx, n));
  expect_refused(OUTGRAD_ERROR_NULL_POINTER, "mask is null", memory,
                 backward(x, codes, scales, nullptr, dx, n));
  expect_refused(OUTGRAD_ERROR_NULL_POINTER, "dx is null", memory,
                 backward(x, codes, scales, mask, nullptr, n));
  expect_refused(OUTGRAD_ERROR_OVERLAP, "dx overlaps dy", memory, backward(x, codes, scales, mask, x + 1, n));
  expect_refused(OUTGRAD_ERROR_OVERLAP, "dx overlaps scales", memory,
                 backward(x, codes, reinterpret_cast<u8*>(dx) + 5, mask, dx, n));
  expect_refused(OUTGRAD_ERROR_ALIGNMENT, "dx", memory,
                 backward(x, codes, scales, mask, reinterpret_cast<u8*>(dx) + 1, n, OUTGRAD_BF16));
  expect_refused(OUTGRAD_ERROR_FORMAT, "format -1", memory, backward(x, codes, scales, mask, dx, n, -1));
  EXPECT_EQ(outgrad_gelu_forward_mxfp8(OUTGRAD_F16, nullptr, nullptr, nullptr, nullptr, 0), OUTGRAD_OK);
  EXPECT_EQ(outgrad_gelu_backward_mxfp8(OUTGRAD_BF16, nullptr, nullptr, nullptr, nullptr, nullptr, 0),
            OUTGRAD_OK);
}

TEST(CInterface, CodesRefuseWithoutWriting) {
  constexpr i64 n = 64;
  constexpr size_t kBytes = 40;  // 64 codes of 5 bits
  std::vector<u32> memory(4 * n, kGuard);
  u32* const x = memory.data();
  u32* const y = x + n;
  u32* const codes = y + n;
  static const u64 seed = 3;
  struct A {
    const void* in;
    void *out, *codes;
    size_t bytes;
    std::int32_t bits;
    const u64* seed;
    i64 n;
    int format, activation;
  };
  const A good{x, y, codes, kBytes, 5, nullptr, n, OUTGRAD_F32, OUTGRAD_GELU};
  const auto both = [&](outgrad_status status, const std::string& words, const auto& spoil) {
    A a = good;
    spoil(a);
    expect_refused(status, words, memory, [&] {
      return outgrad_activation_forward_code(a.activation, a.format, a.in, a.out, a.codes, a.bytes, a.bits,
                                             a.seed, a.n);
    });
    expect_refused(status, words, memory, [&] {
      return outgrad_activation_backward_code(a.activation, a.format, a.in, a.codes, a.bytes, a.out, a.bits,
                                              a.seed, a.n);
    });
  };
  both(OUTGRAD_ERROR_NULL_POINTER, " is null", [](A& a) { a.in = nullptr; });
  both(OUTGRAD_ERROR_NULL_POINTER, " is null", [](A& a) { a.out = nullptr; });
  both(OUTGRAD_ERROR_NULL_POINTER, "codes is null", [](A& a) { a.codes = nullptr; });
  both(OUTGRAD_ERROR_SIZE, "codes_bytes = 39: 64 codes of 5 bits take 40", [](A& a) { a.bytes = 39; });
  both(OUTGRAD_ERROR_SIZE, "take 41", [](A& a) { a.n = 65; });
  both(OUTGRAD_ERROR_SIZE, "n = -1", [](A& a) { a.n = -1; });
  both(OUTGRAD_ERROR_SIZE, "addressed", [](A& a) { a.n = kMax; });
  for (const std::int32_t bits : {-1, 0, 9, 1 << 30}) {
    both(OUTGRAD_ERROR_VALUE, "bits = " + std::to_string(bits), [&](A& a) { a.bits = bits; });
    EXPECT_EQ(outgrad_code_bytes(bits, 1, nullptr), OUTGRAD_ERROR_VALUE);
  }
  for (const std::int32_t bits : {1, 4, 8}) {
    both(OUTGRAD_ERROR_VALUE, "a dithered code has 2 or 3", [&](A& a) { a.bits = bits, a.seed = &seed; });
  }
  both(OUTGRAD_ERROR_OVERLAP, "overlaps", [&](A& a) { a.out = x + 1; });
  both(OUTGRAD_ERROR_OVERLAP, "overlaps", [&](A& a) { a.codes = reinterpret_cast<u8*>(y) + 4 * n - 1; });
  expect_refused(OUTGRAD_ERROR_OVERLAP, "codes overlaps x", memory, [&] {
    return outgrad_activation_forward_code(OUTGRAD_GELU, OUTGRAD_F32, x, y, x + n - 1, kBytes, 5, nullptr, n);
  });
  both(OUTGRAD_ERROR_ALIGNMENT, "is not aligned", [&](A& a) { a.out = reinterpret_cast<u8*>(y) + 2; });
  both(OUTGRAD_ERROR_FORMAT, "format 3", [](A& a) { a.format = 3; });
  both(OUTGRAD_ERROR_ACTIVATION, "activation 10", [](A& a) { a.activation = 10; });
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const CodeRange& range :
       {CodeRange{kNan, 1}, {0, kNan}, {1, 0}, {0, 0.125f}, {0.25f, 1}, {0, 3}, {-3, 0}}) {
    const std::string words = "is no range of f' that codes are proven for";
    expect_refused(OUTGRAD_ERROR_VALUE, words, memory, [&] {
      return outgrad_encode_gradients(range.lo, range.hi, OUTGRAD_F32, x, codes, kBytes, 5, nullptr, n);
    });
    expect_refused(OUTGRAD_ERROR_VALUE, words, memory, [&] {
      return outgrad_backward_encoded(range.lo, range.hi, OUTGRAD_F32, x, codes, kBytes, y, 5, nullptr, n);
    });
  }
  expect_refused(OUTGRAD_ERROR_NULL_POINTER, "g is null", memory, [&] {
    return outgrad_encode_gradients(0, 1, OUTGRAD_F32, nullptr, codes, kBytes, 5, nullptr, n);
  });
  expect_refused(OUTGRAD_ERROR_OVERLAP, "codes overlaps g", memory, [&] {
    return outgrad_encode_gradients(0, 1, OUTGRAD_F32, x, x + n - 1, kBytes, 5, nullptr, n);
  });
  expect_refused(OUTGRAD_ERROR_SIZE, "take 40", memory,
                 [&] { return outgrad_encode_gradients(0, 1, OUTGRAD_F32, x, codes, 39, 5, nullptr, n); });
  expect_refused(OUTGRAD_ERROR_FORMAT, "format 3", memory,
                 [&] { return outgrad_backward_encoded(0, 1, 3, x, codes, kBytes, y, 5, nullptr, n); });
  expect_refused(OUTGRAD_ERROR_NULL_POINTER, "bytes is null", memory,
                 [] { return outgrad_code_bytes(4, 1, nullptr); });
  expect_refused(OUTGRAD_ERROR_SIZE, "n = -1", memory, [] { return outgrad_code_bytes(4, -1, nullptr); });
  EXPECT_EQ(outgrad_activation_forward_code(OUTGRAD_GELU, OUTGRAD_BF16, nullptr, nullptr, nullptr, 0, 4,
                                            nullptr, 0),
            OUTGRAD_OK);
  // Codes lie anywhere, a backward reads what it may not write, and nothing beyond the codes is written.
  EXPECT_EQ(outgrad_activation_forward_code(OUTGRAD_GELU, OUTGRAD_F32, x, y, reinterpret_cast<u8*>(codes) + 1,
                                            kBytes, 5, nullptr, n),
            OUTGRAD_OK);
  EXPECT_EQ(reinterpret_cast<u8*>(codes)[0], kGuard & 0xff);
  EXPECT_EQ(reinterpret_cast<u8*>(codes)[kBytes + 1], kGuard >> 8 & 0xff);
}

TEST(CInterface, SoftmaxRefusesWithoutWriting) {
  constexpr i64 rows = 4, n = 16, size = rows * n;
  std::vector<u32> memory(4 * size, kGuard);
  u32* const x = memory.data();
  u32* const y = x + size;
  struct A {
    const void* in;
    void *out, *codes;
    size_t bytes;
    i64 rows, n;
    int format;
  };
  const A good{x, y, y + size, size, rows, n, OUTGRAD_F32};
  const auto encoder = [&](outgrad_status status, const std::string& words, const auto& spoil) {
    A a = good;
    spoil(a);
    expect_refused(status, words, memory,
                   [&] { return outgrad_softmax_encode(a.format, a.in, a.rows, a.n, a.codes, a.bytes); });
  };
  const auto both = [&](outgrad_status status, const std::string& words, const auto& spoil) {
    A a = good;
    spoil(a);
    expect_refused(status, words, memory, [&] {
      return outgrad_softmax_forward_code(a.format, a.in, a.rows, a.n, a.out, a.codes, a.bytes);
    });
    expect_refused(status, words, memory, [&] {
      return outgrad_softmax_backward_code(a.format, a.in, a.codes, a.bytes, a.rows, a.n, a.out);
    });
  };
  const auto all = [&](outgrad_status status, const std::string& words, const auto& spoil) {
    both(status, words, spoil);
    encoder(status, words, spoil);
  };
  all(OUTGRAD_ERROR_NULL_POINTER, " is null", [](A& a) { a.in = nullptr; });
  all(OUTGRAD_ERROR_NULL_POINTER, "codes is null", [](A& a) { a.codes = nullptr; });
  both(OUTGRAD_ERROR_NULL_POINTER, " is null", [](A& a) { a.out = nullptr; });
  all(OUTGRAD_ERROR_SIZE, "codes_bytes = 63: 64 codes of 8 bits take 64", [](A& a) { a.bytes = size - 1; });
  all(OUTGRAD_ERROR_SIZE, "n = 0: a row needs at least one element", [](A& a) { a.n = 0; });
  all(OUTGRAD_ERROR_SIZE, "n = -1", [](A& a) { a.n = -1; });
  all(OUTGRAD_ERROR_SIZE, "rows = -1 is negative", [](A& a) { a.rows = -1; });
  all(OUTGRAD_ERROR_SIZE, "addressed", [](A& a) { a.rows = kMax; });
  all(OUTGRAD_ERROR_SIZE,
      "n = 8388609: in a row of more than 8388608 elements, all of p may be too small for a code",
      [](A& a) { a.n = kMostSoftmax + 1; });
  both(OUTGRAD_ERROR_OVERLAP, "overlaps", [](A& a) { a.out = static_cast<u32*>(a.out) - 1; });
  both(OUTGRAD_ERROR_OVERLAP, "overlaps", [](A& a) { a.codes = static_cast<u8*>(a.codes) - 1; });
  encoder(OUTGRAD_ERROR_OVERLAP, "codes overlaps p", [&](A& a) { a.codes = x + 1; });
  all(OUTGRAD_ERROR_ALIGNMENT, "is not aligned", [](A& a) { a.in = static_cast<const u8*>(a.in) + 2; });
  all(OUTGRAD_ERROR_FORMAT, "format 3", [](A& a) { a.format = 3; });
  EXPECT_EQ(outgrad_softmax_forward_code(OUTGRAD_F16, nullptr, 0, 5, nullptr, nullptr, 0), OUTGRAD_OK);
  EXPECT_EQ(outgrad_softmax_encode(OUTGRAD_BF16, nullptr, 0, 5, nullptr, 0), OUTGRAD_OK);
  EXPECT_EQ(outgrad_softmax_backward_code(OUTGRAD_F32, nullptr, nullptr, 0, 0, 5, nullptr), OUTGRAD_OK);
}

TEST(CInterface, YIn8BitsRefusesWithoutWriting) {
  constexpr i64 n = 64;
  constexpr size_t kBytes = 16;  // 64 parts of 2 bits
  std::vector<u32> memory(4 * n, kGuard);
  u32* const in = memory.data();
  u32* const out = in + n;
  u8* const codes = reinterpret_cast<u8*>(out + n);
  struct A {
    const void* in;
    void *out, *parts;
    u8* codes;
    size_t bytes;
    std::int32_t bits;
    float scale;
    i64 n;
    int format, activation, fp8;
  };
  const A good{in, out, codes + n, codes, kBytes, 2, 100.0f, n, OUTGRAD_F32, OUTGRAD_GELU, OUTGRAD_E4M3};
  const auto forward = [](const A& a) {
    return outgrad_activation_forward_fp8(a.activation, a.format, a.in, a.fp8, a.scale, a.codes, a.parts,
                                          a.bytes, a.bits, a.n);
  };
  const auto backward = [](const A& a) {
    return outgrad_activation_backward_fp8(a.activation, a.format, a.in, a.fp8, a.scale, a.codes, a.parts,
                                           a.bytes, a.out, a.bits, a.n);
  };
  double error = 7;
  const auto refused = [&](outgrad_status status, const std::string& words, bool by_error,
                           const auto& spoil) {
    A a = good;
    spoil(a);
    expect_refused(status, words, memory, [&] { return forward(a); });
    expect_refused(status, words, memory, [&] { return backward(a); });
    if (by_error)
      expect_refused(status, words, memory,
                     [&] { return outgrad_fp8_error(a.activation, a.fp8, a.scale, a.bits, &error); });
  };
  refused(OUTGRAD_ERROR_NULL_POINTER, " is null", false, [](A& a) { a.in = nullptr; });
  refused(OUTGRAD_ERROR_NULL_POINTER, "codes is null", false, [](A& a) { a.codes = nullptr; });
  refused(OUTGRAD_ERROR_NULL_POINTER, "parts is null", false, [](A& a) { a.parts = nullptr; });
  refused(OUTGRAD_ERROR_SIZE, "parts_bytes = 15: 64 parts of 2 bits take 16", false,
          [](A& a) { a.bytes = 15; });
  refused(OUTGRAD_ERROR_SIZE, "n = -1", false, [](A& a) { a.n = -1; });
  refused(OUTGRAD_ERROR_SIZE, "addressed", false, [](A& a) { a.n = kMax; });
  for (const std::int32_t bits : {-1, 3, 1 << 30})
    refused(OUTGRAD_ERROR_VALUE, "bits = " + std::to_string(bits), true, [&](A& a) { a.bits = bits; });
  for (const float scale : {0.0f, -0.0f, -1.0f, 0x1p-127f, INFINITY, -INFINITY, NAN}) {
    refused(OUTGRAD_ERROR_VALUE, "it is positive, finite and not subnormal", true,
            [&](A& a) { a.scale = scale; });
  }
  refused(OUTGRAD_ERROR_FORMAT, "format 3", false, [](A& a) { a.format = 3; });
  refused(OUTGRAD_ERROR_FORMAT, "8-bit format 3", true, [](A& a) { a.fp8 = 3; });
  refused(OUTGRAD_ERROR_ACTIVATION, "activation 10", true, [](A& a) { a.activation = 10; });
  refused(OUTGRAD_ERROR_ACTIVATION, "tanh rises", true, [](A& a) { a.activation = OUTGRAD_TANH; });
  A over = good;
  over.parts = codes + n - 1;
  expect_refused(OUTGRAD_ERROR_OVERLAP, "codes overlaps parts", memory, [&] { return forward(over); });
  over = good, over.out = out + 1;
  expect_refused(OUTGRAD_ERROR_OVERLAP, "dx overlaps codes", memory, [&] { return backward(over); });
  expect_refused(OUTGRAD_ERROR_NULL_POINTER, "error is null", memory,
                 [] { return outgrad_fp8_error(OUTGRAD_GELU, OUTGRAD_E4M3, 1.0f, 1, nullptr); });
  EXPECT_EQ(error, 7);
  A none = good;
  none.n = 0, none.in = none.out = none.parts = nullptr, none.codes = nullptr, none.bytes = 0;
  EXPECT_EQ(forward(none), OUTGRAD_OK);
  EXPECT_EQ(backward(none), OUTGRAD_OK);
}

TEST(CInterface, NormsFrom8BitsRefuseWithoutWriting) {
  constexpr i64 rows = 2, n = 64, size = rows * n;
  size_t bytes = 0;
  ASSERT_EQ(outgrad_norm_backward_workspace(OUTGRAD_F32, rows, n, &bytes), OUTGRAD_OK);
  // 1, as scales are
  std::vector<u32> memory(static_cast<size_t>(2 * size + size / 4 + 4 + n + rows) + bytes / 4, 0x3f800000u);
  float* const base = reinterpret_cast<float*>(memory.data());
  struct A {
    int format = OUTGRAD_F32, store = OUTGRAD_NORM_INT8;
    void *in, *out, *codes, *scales, *workspace;
    float *rstd, *dgamma, eps = 1e-5f;
    const float* scale = nullptr;
    size_t codes_bytes = 128, scales_bytes = 16, workspace_bytes;
    i64 rows = 2, n = 64;
  } good;
  good.in = base;
  good.out = base + size;
  good.codes = base + 2 * size;
  good.scales = base + 2 * size + size / 4;
  good.dgamma = base + 2 * size + size / 4 + 4;
  good.rstd = good.dgamma + n;
  good.workspace = good.rstd + rows;
  good.workspace_bytes = bytes;
  const auto forward = [](const A& a) {
    return outgrad_layernorm_forward_8bit(a.format, a.store, a.in, nullptr, nullptr, a.rows, a.n, a.eps,
                                          a.scale, a.out, a.codes, a.codes_bytes, a.scales, a.scales_bytes,
                                          a.rstd, nullptr, 0, nullptr);
  };
  const auto backward = [](const A& a) {
    return outgrad_rmsnorm_backward_8bit(a.format, a.store, a.in, a.codes, a.codes_bytes, a.scales,
                                         a.scales_bytes, nullptr, a.rstd, a.rows, a.n, a.out, a.dgamma,
                                         nullptr, 0, nullptr, a.workspace, a.workspace_bytes);
  };
  const auto one = [&](bool is_backward, outgrad_status status, const std::string& words, const auto& spoil) {
    A a = good;
    spoil(a);
    expect_refused(status, words, memory, [&] { return is_backward ? backward(a) : forward(a); });
  };
  const auto both = [&](outgrad_status status, const std::string& words, const auto& spoil) {
    one(false, status, words, spoil);
    one(true, status, words, spoil);
  };
  both(OUTGRAD_ERROR_FORMAT, "format 3", [](A& a) { a.format = 3; });
  both(OUTGRAD_ERROR_FORMAT, "store 3 is unknown", [](A& a) { a.store = 3; });
  both(OUTGRAD_ERROR_FORMAT, "store -1 is unknown", [](A& a) { a.store = -1; });
  both(OUTGRAD_ERROR_NULL_POINTER, " is null", [](A& a) { a.in = nullptr; });
  both(OUTGRAD_ERROR_NULL_POINTER, "codes is null", [](A& a) { a.codes = nullptr; });
  both(OUTGRAD_ERROR_NULL_POINTER, "scales is null", [](A& a) { a.scales = nullptr; });
  both(OUTGRAD_ERROR_NULL_POINTER, "rstd is null", [](A& a) { a.rstd = nullptr; });
  one(true, OUTGRAD_ERROR_NULL_POINTER, "dx is null", [](A& a) { a.out = nullptr; });
  both(OUTGRAD_ERROR_SIZE, "codes_bytes = 127: 128 codes of 8 bits take 128",
       [](A& a) { a.codes_bytes = 127; });
  both(OUTGRAD_ERROR_SIZE, "scales_bytes = 15: the scales of [2, 64] take 16",
       [](A& a) { a.scales_bytes = 15; });
  both(OUTGRAD_ERROR_SIZE, "n = 32 is no whole number of groups of 64, which share a scale in int8",
       [](A& a) { a.n = 32; });
  both(OUTGRAD_ERROR_SIZE, "n = 48 is no whole number of groups of 32, which share a scale in mxfp8",
       [](A& a) { a.n = 48, a.store = OUTGRAD_NORM_MXFP8; });
  both(OUTGRAD_ERROR_SIZE, "rows = -1 is negative", [](A& a) { a.rows = -1; });
  both(OUTGRAD_ERROR_SIZE, "a row needs at least one element", [](A& a) { a.n = 0; });
  both(OUTGRAD_ERROR_SIZE, "addressed", [](A& a) { a.rows = kMax; });
  one(false, OUTGRAD_ERROR_VALUE, "eps = -1", [](A& a) { a.eps = -1; });
  one(true, OUTGRAD_ERROR_WORKSPACE, "the workspace holds 4 of the ", [](A& a) { a.workspace_bytes = 4; });
  both(OUTGRAD_ERROR_ALIGNMENT, "scales is not aligned to its elements of 4 bytes",
       [](A& a) { a.scales = static_cast<u8*>(a.scales) + 1, a.scales_bytes = 17; });
  both(OUTGRAD_ERROR_OVERLAP, "overlaps", [](A& a) { a.out = static_cast<float*>(a.out) + 1; });
  one(false, OUTGRAD_ERROR_OVERLAP, "y overlaps codes",
      [](A& a) { a.codes = static_cast<u8*>(a.codes) - 1; });
  one(true, OUTGRAD_ERROR_OVERLAP, "dx overlaps codes",
      [](A& a) { a.codes = static_cast<u8*>(a.codes) - 1; });
  const float one_scale = 1;
  one(false, OUTGRAD_ERROR_VALUE, "a scale is given, but int8 finds those of its groups itself",
      [&](A& a) { a.scale = &one_scale; });
  for (const float bad : {0.0f, -0.0f, -1.0f, 0x1p-127f, INFINITY, -INFINITY, NAN}) {
    one(false, OUTGRAD_ERROR_VALUE, "the given scale is zero, negative, subnormal, infinite or NaN",
        [&](A& a) { a.store = OUTGRAD_NORM_E4M3, a.scale = &bad; });
    static_cast<float*>(good.scales)[3] = bad;
    one(true, OUTGRAD_ERROR_VALUE, "scale 1 is zero, negative, subnormal, infinite or NaN", [](A&) {});
    static_cast<float*>(good.scales)[3] = 1;
  }
  size_t untouched = 7;
  expect_refused(OUTGRAD_ERROR_FORMAT, "store 9 is unknown", memory,
                 [&] { return outgrad_norm_scale_bytes(9, rows, n, &untouched); });
  expect_refused(OUTGRAD_ERROR_SIZE, "n = 33", memory,
                 [&] { return outgrad_norm_scale_bytes(OUTGRAD_NORM_MXFP8, rows, 33, &untouched); });
  expect_refused(OUTGRAD_ERROR_NULL_POINTER, "bytes is null", memory,
                 [&] { return outgrad_norm_scale_bytes(OUTGRAD_NORM_E4M3, rows, 33, nullptr); });
  EXPECT_EQ(untouched, 7u);
  EXPECT_EQ(outgrad_norm_scale_bytes(OUTGRAD_NORM_E4M3, rows, 33, &untouched), OUTGRAD_OK);
  EXPECT_EQ(untouched, 4u);
  A none = good;
  none.rows = 0, none.in = none.out = none.codes = none.scales = none.rstd = nullptr,
  none.codes_bytes = none.scales_bytes = 0;
  EXPECT_EQ(forward(none), OUTGRAD_OK);
  EXPECT_EQ(backward(none), OUTGRAD_OK);
  EXPECT_EQ(forward(good), OUTGRAD_OK);
  EXPECT_EQ(backward(good), OUTGRAD_OK);
}

TEST(CInterface, YIn4BitsRefusesWithoutWriting) {
  constexpr i64 n = 64;
  constexpr size_t kBytes = 16;  // 64 parts of 2 bits
  std::vector<u32> memory(4 * n, kGuard);
  u32* const in = memory.data();
  u32* const out = in + n;
  u8* const codes = reinterpret_cast<u8*>(out + n);
  struct A {
    const void* in;
    void *out, *parts;
    u8 *codes, *scales;
    size_t bytes;
    std::int32_t bits;
    float scale;
    i64 n;
    int format, activation, fp4;
  };
  const A good{in, out,    codes + n, codes,       codes + 2 * n, kBytes,
               2,  100.0f, n,         OUTGRAD_F32, OUTGRAD_GELU,  OUTGRAD_NVFP4};
  const auto forward = [](const A& a) {
    return outgrad_activation_forward_fp4(a.activation, a.format, a.in, a.fp4, a.scale, a.codes, a.scales,
                                          a.parts, a.bytes, a.bits, a.n);
  };
  const auto backward = [](const A& a) {
    return outgrad_activation_backward_fp4(a.activation, a.format, a.in, a.fp4, a.scale, a.codes, a.scales,
                                           a.parts, a.bytes, a.out, a.bits, a.n);
  };
  double error = 7;
  const auto refused = [&](outgrad_status status, const std::string& words, bool by_error,
                           const auto& spoil) {
    A a = good;
    spoil(a);
    expect_refused(status, words, memory, [&] { return forward(a); });
    expect_refused(status, words, memory, [&] { return backward(a); });
    if (by_error)
      expect_refused(status, words, memory,
                     [&] { return outgrad_fp4_error(a.activation, a.fp4, a.scale, 1, a.bits, &error); });
  };
  refused(OUTGRAD_ERROR_NULL_POINTER, " is null", false, [](A& a) { a.in = nullptr; });
  refused(OUTGRAD_ERROR_NULL_POINTER, "codes is null", false, [](A& a) { a.codes = nullptr; });
  refused(OUTGRAD_ERROR_NULL_POINTER, "scales is null", false, [](A& a) { a.scales = nullptr; });
  refused(OUTGRAD_ERROR_NULL_POINTER, "parts is null", false, [](A& a) { a.parts = nullptr; });
  refused(OUTGRAD_ERROR_SIZE, "parts_bytes = 15: 64 parts of 2 bits take 16", false,
          [](A& a) { a.bytes = 15; });
  refused(OUTGRAD_ERROR_SIZE, "n = -1", false, [](A& a) { a.n = -1; });
  refused(OUTGRAD_ERROR_SIZE, "addressed", false, [](A& a) { a.n = kMax; });
  for (const std::int32_t bits : {-1, 3})
    refused(OUTGRAD_ERROR_VALUE, "bits = " + std::to_string(bits), true, [&](A& a) { a.bits = bits; });
  for (const float scale : {0.0f, -1.0f, 0x1.fffffep-118f, 0x1p118f, INFINITY, NAN}) {
    refused(OUTGRAD_ERROR_VALUE, "it is from 2^-117 up to 2^118", true, [&](A& a) { a.scale = scale; });
  }
  refused(OUTGRAD_ERROR_VALUE, "MXFP4 has no scale of the tensor", true, [](A& a) { a.fp4 = OUTGRAD_MXFP4; });
  refused(OUTGRAD_ERROR_FORMAT, "format 3", false, [](A& a) { a.format = 3; });
  refused(OUTGRAD_ERROR_FORMAT, "4-bit format 2", true, [](A& a) { a.fp4 = 2; });
  refused(OUTGRAD_ERROR_ACTIVATION, "activation 10", true, [](A& a) { a.activation = 10; });
  refused(OUTGRAD_ERROR_ACTIVATION, "tanh rises", true, [](A& a) { a.activation = OUTGRAD_TANH; });
  A over = good;
  over.scales = codes + 31;
  expect_refused(OUTGRAD_ERROR_OVERLAP, "codes overlaps scales", memory, [&] { return forward(over); });
  over = good, over.out = out + 1;
  expect_refused(OUTGRAD_ERROR_OVERLAP, "dx overlaps codes", memory, [&] { return backward(over); });
  for (const float amax : {-1.0f, NAN}) {
    expect_refused(OUTGRAD_ERROR_VALUE, "amax = ", memory,
                   [&] { return outgrad_fp4_error(OUTGRAD_GELU, OUTGRAD_MXFP4, 1.0f, amax, 1, &error); });
  }
  expect_refused(OUTGRAD_ERROR_NULL_POINTER, "error is null", memory,
                 [] { return outgrad_fp4_error(OUTGRAD_GELU, OUTGRAD_MXFP4, 1.0f, 1, 1, nullptr); });
  EXPECT_EQ(error, 7);
  A none = good;
  none.n = 0, none.in = none.out = none.parts = nullptr, none.codes = none.scales = nullptr, none.bytes = 0;
  EXPECT_EQ(forward(none), OUTGRAD_OK);
  EXPECT_EQ(backward(none), OUTGRAD_OK);
}

TEST(CInterface, NormsRefuseWithoutWriting) {
  constexpr i64 rows = 4, n = 16, size = rows * n;
  size_t bytes = 0;
  ASSERT_EQ(outgrad_norm_backward_workspace(OUTGRAD_F32, rows, n, &bytes), OUTGRAD_OK);
  std::vector<u32> memory(static_cast<size_t>(4 * size + 4 * n + rows + 2 * rows) + 2 + bytes / 4, kGuard);
  struct Arguments {
    int format = OUTGRAD_F32;
    void *x, *y, *dy, *dx, *workspace;
    float *gamma, *beta, *dgamma, *dbeta, *rstd, *x_hat, eps = 1e-5f;
    i32* side;
    i64 rows = ::outgrad::kernels::i64{4}, n = 16, count = 2;
    size_t bytes;
  } good;
  float* const base = reinterpret_cast<float*>(memory.data());
  good.x = base;
  good.y = base + size;
  good.dy = base + 2 * size;
  good.dx = base + 3 * size;
  good.gamma = base + 4 * size;
  good.beta = good.gamma + n;
  good.dgamma = good.beta + n;
  good.dbeta = good.dgamma + n;
  good.rstd = good.dbeta + n;
  good.x_hat = good.rstd + rows;
  good.side = reinterpret_cast<i32*>(good.x_hat + 2 * rows);
  good.workspace = good.side + 2;
  good.bytes = bytes;
  good.side[0] = 3;
  good.side[1] = 9;
  for (i64 j = 0; j < n; ++j) good.gamma[j] = 1.0f;
  const auto forward = [](const Arguments& a) {
    return outgrad_layernorm_forward(a.format, a.x, a.gamma, a.beta, a.rows, a.n, a.eps, a.y, a.rstd, a.side,
                                     a.count, a.x_hat);
  };
  const auto backward = [](const Arguments& a) {
    return outgrad_layernorm_backward(a.format, a.dy, a.y, a.gamma, a.beta, a.rstd, a.rows, a.n, a.dx,
                                      a.dgamma, a.dbeta, a.side, a.count, a.x_hat, a.workspace, a.bytes);
  };
  const auto rms_forward = [](const Arguments& a) {
    return outgrad_rmsnorm_forward(a.format, a.x, a.gamma, a.rows, a.n, a.eps, a.y, a.rstd, a.side, a.count,
                                   a.x_hat);
  };
  const auto rms_backward = [](const Arguments& a) {
    return outgrad_rmsnorm_backward(a.format, a.dy, a.y, a.gamma, a.rstd, a.rows, a.n, a.dx, a.dgamma, a.side,
                                    a.count, a.x_hat, a.workspace, a.bytes);
  };
  const auto refused = [&](outgrad_status status, const std::string& words, const auto& call,
                           const auto& spoil) {
    Arguments a = good;
    spoil(a);
    expect_refused(status, words, memory, [&] { return call(a); });
  };
  const auto all = [&](outgrad_status status, const std::string& words, const auto& spoil) {
    refused(status, words, forward, spoil);
    refused(status, words, backward, spoil);
    refused(status, words, rms_forward, spoil);
    refused(status, words, rms_backward, spoil);
  };
  const auto both_backwards = [&](outgrad_status status, const std::string& words, const auto& spoil) {
    refused(status, words, backward, spoil);
    refused(status, words, rms_backward, spoil);
  };
  const auto both_forwards = [&](outgrad_status status, const std::string& words, const auto& spoil) {
    refused(status, words, forward, spoil);
    refused(status, words, rms_forward, spoil);
  };
  using A = Arguments;
  all(OUTGRAD_ERROR_FORMAT, "format 5", [](A& a) { a.format = 5; });
  all(OUTGRAD_ERROR_SIZE, "rows = -1", [](A& a) { a.rows = -1; });
  all(OUTGRAD_ERROR_SIZE, "n = 0", [](A& a) { a.n = 0; });
  all(OUTGRAD_ERROR_SIZE, "n = -3", [](A& a) { a.n = -3; });
  all(OUTGRAD_ERROR_SIZE, "addressed", [](A& a) { a.rows = kMax; });
  all(OUTGRAD_ERROR_SIZE, "addressed", [](A& a) { a.n = kMax; });
  // the product is 0 modulo 2^64
  all(OUTGRAD_ERROR_SIZE, "addressed", [](A& a) { a.rows = a.n = i64{1} << 32; });
  all(OUTGRAD_ERROR_VALUE, "side_count", [](A& a) { a.count = -1; });
  all(OUTGRAD_ERROR_VALUE, "side_count", [](A& a) { a.count = 17; });
  all(OUTGRAD_ERROR_NULL_POINTER, "side_channels", [](A& a) { a.side = nullptr; });
  all(OUTGRAD_ERROR_NULL_POINTER, "side_x_hat", [](A& a) { a.x_hat = nullptr; });
  std::vector<i32> twice = {3, 3}, outside = {3, 16}, negative = {-1, 3};
  all(OUTGRAD_ERROR_VALUE, "side_channels[1]", [&](A& a) { a.side = twice.data(); });
  all(OUTGRAD_ERROR_VALUE, "side_channels[1]", [&](A& a) { a.side = outside.data(); });
  all(OUTGRAD_ERROR_VALUE, "side_channels[0]", [&](A& a) { a.side = negative.data(); });
  all(OUTGRAD_ERROR_NULL_POINTER, "y is null", [](A& a) { a.y = nullptr; });
  all(OUTGRAD_ERROR_NULL_POINTER, "rstd is null", [](A& a) { a.rstd = nullptr; });
  all(OUTGRAD_ERROR_ALIGNMENT, "gamma",
      [](A& a) { a.gamma = reinterpret_cast<float*>(reinterpret_cast<char*>(a.gamma) + 2); });
  both_forwards(OUTGRAD_ERROR_VALUE, "eps", [](A& a) { a.eps = -1e-9f; });
  both_forwards(OUTGRAD_ERROR_VALUE, "eps", [](A& a) { a.eps = std::numeric_limits<float>::quiet_NaN(); });
  both_forwards(OUTGRAD_ERROR_NULL_POINTER, "x is null", [](A& a) { a.x = nullptr; });
  both_forwards(OUTGRAD_ERROR_OVERLAP, "y overlaps x", [](A& a) { a.y = static_cast<float*>(a.x) + 1; });
  both_forwards(OUTGRAD_ERROR_OVERLAP, "overlaps", [](A& a) { a.rstd = a.gamma; });
  both_forwards(OUTGRAD_ERROR_OVERLAP, "overlaps", [](A& a) { a.x_hat = a.rstd; });
  both_backwards(OUTGRAD_ERROR_NULL_POINTER, "dy is null", [](A& a) { a.dy = nullptr; });
  both_backwards(OUTGRAD_ERROR_NULL_POINTER, "dx is null", [](A& a) { a.dx = nullptr; });
  both_backwards(OUTGRAD_ERROR_OVERLAP, "dx overlaps dy", [](A& a) { a.dx = static_cast<float*>(a.dy) + 1; });
  both_backwards(OUTGRAD_ERROR_OVERLAP, "dx overlaps y", [](A& a) { a.dx = a.y; });
  both_backwards(OUTGRAD_ERROR_OVERLAP, "dgamma overlaps gamma", [](A& a) { a.dgamma = a.gamma; });
  both_backwards(OUTGRAD_ERROR_OVERLAP, "overlaps", [](A& a) { a.workspace = a.dx; });
  both_backwards(OUTGRAD_ERROR_WORKSPACE, "0 of the", [](A& a) { a.workspace = nullptr; });
  both_backwards(OUTGRAD_ERROR_WORKSPACE, "workspace", [](A& a) { a.bytes -= 1; });
  good.gamma[5] = 0.0f;
  both_backwards(OUTGRAD_ERROR_VALUE, "channel 5", [](A&) {});
  good.gamma[5] = 1.0f;
  expect_refused(OUTGRAD_ERROR_NULL_POINTER, "bytes is null", memory,
                 [] { return outgrad_norm_backward_workspace(OUTGRAD_F32, 1, 1, nullptr); });
  size_t untouched = 77;
  EXPECT_EQ(outgrad_norm_backward_workspace(OUTGRAD_F32, 1, 0, &untouched), OUTGRAD_ERROR_SIZE);
  EXPECT_EQ(outgrad_norm_backward_workspace(OUTGRAD_F32, kMax, kMax, &untouched), OUTGRAD_ERROR_SIZE);
  EXPECT_EQ(untouched, 77u);

  // The arguments as they were meant are taken, and so is the backward of no rows: sums of nothing.
  for (i64 i = 0; i < size; ++i)
    static_cast<float*>(good.x)[i] = static_cast<float*>(good.dy)[i] = static_cast<float>(i % 7);
  for (i64 j = 0; j < n; ++j) good.beta[j] = 0.5f;
  EXPECT_EQ(forward(good), OUTGRAD_OK);
  EXPECT_EQ(backward(good), OUTGRAD_OK);
  good.rows = 0;
  EXPECT_EQ(backward(good), OUTGRAD_OK);
  for (i64 j = 0; j < n; ++j) EXPECT_EQ(good.dgamma[j], 0.0f);
}

TEST(CInterface, FusedFormsRefuseWithoutWriting) {
  constexpr i64 rows = 4, n = 16, size = rows * n;
  size_t bytes = 0, norm_bytes = 0;
  ASSERT_EQ(outgrad_bias_backward_workspace(OUTGRAD_F32, rows, n, &bytes), OUTGRAD_OK);
  ASSERT_EQ(outgrad_norm_backward_workspace(OUTGRAD_F32, rows, n, &norm_bytes), OUTGRAD_OK);
  std::vector<u32> memory(static_cast<size_t>(4 * size + n + rows + 2) + std::max(bytes, norm_bytes) / 4,
                          kGuard);
  float* const x = reinterpret_cast<float*>(memory.data());
  float *const residual = x + size, *const z = residual + size, *const y = z + size, *const bias = y + size,
               *const rstd = bias + n;
  u32* const mask = reinterpret_cast<u32*>(rstd + rows);
  float* const workspace = rstd + rows + 2;
  const auto bias_forward = [=](const void* a, const float* b, i64 r, i64 c, void* out, u32* m) {
    return [=] { return outgrad_bias_gelu_forward(OUTGRAD_F32, a, b, r, c, out, m); };
  };
  expect_refused(OUTGRAD_ERROR_NULL_POINTER, "bias is null", memory,
                 bias_forward(x, nullptr, rows, n, y, mask));
  expect_refused(OUTGRAD_ERROR_OVERLAP, "y overlaps bias", memory, bias_forward(x, y, rows, n, y, mask));
  expect_refused(OUTGRAD_ERROR_OVERLAP, "mask overlaps", memory,
                 bias_forward(x, bias, rows, n, y, reinterpret_cast<u32*>(bias)));
  expect_refused(OUTGRAD_ERROR_SIZE, "n = 0", memory, bias_forward(x, bias, rows, 0, y, mask));
  expect_refused(OUTGRAD_ERROR_SIZE, "addressed", memory,
                 bias_forward(x, bias, i64{1} << 40, i64{1} << 40, y, mask));
  const auto bias_backward = [=](void* dx, float* sums, void* scratch, size_t room) {
    return
        [=] { return outgrad_bias_gelu_backward(OUTGRAD_F32, x, y, mask, rows, n, dx, sums, scratch, room); };
  };
  expect_refused(OUTGRAD_ERROR_WORKSPACE, "workspace", memory, bias_backward(z, bias, workspace, bytes - 1));
  expect_refused(OUTGRAD_ERROR_WORKSPACE, "0 of the", memory, bias_backward(z, bias, nullptr, bytes));
  expect_refused(OUTGRAD_ERROR_NULL_POINTER, "dbias is null", memory,
                 bias_backward(z, nullptr, workspace, bytes));
  expect_refused(OUTGRAD_ERROR_OVERLAP, "dx overlaps y", memory, bias_backward(y, bias, workspace, bytes));
  const auto forward = [=](void* sum, void* out, const void* added) {
    return [=] {
      return outgrad_residual_layernorm_forward(OUTGRAD_F32, x, added, nullptr, nullptr, rows, n, 1e-5f, sum,
                                                out, rstd, nullptr, 0, nullptr);
    };
  };
  expect_refused(OUTGRAD_ERROR_NULL_POINTER, "residual is null", memory, forward(z, y, nullptr));
  expect_refused(OUTGRAD_ERROR_NULL_POINTER, "z is null", memory, forward(nullptr, y, residual));
  expect_refused(OUTGRAD_ERROR_OVERLAP, "y overlaps z", memory, forward(z, z, residual));
  expect_refused(OUTGRAD_ERROR_OVERLAP, "z overlaps residual", memory, forward(residual + 1, y, residual));
  const auto backward = [=](const void* next, void* dz) {
    return [=] {
      return outgrad_residual_rmsnorm_backward(OUTGRAD_F32, x, y, next, nullptr, rstd, rows, n, dz, nullptr,
                                               nullptr, 0, nullptr, workspace, norm_bytes);
    };
  };
  expect_refused(OUTGRAD_ERROR_NULL_POINTER, "dz_next is null", memory, backward(nullptr, z));
  expect_refused(OUTGRAD_ERROR_OVERLAP, "dz overlaps y", memory, backward(residual, y));
  expect_refused(OUTGRAD_ERROR_OVERLAP, "dz overlaps dz_next", memory, backward(residual, residual + 1));
  EXPECT_EQ(backward(residual, residual)(), OUTGRAD_OK);  // over dz_next
  EXPECT_EQ(forward(residual, x, residual)(), OUTGRAD_OK);
  EXPECT_EQ(bias_backward(x, bias, workspace, bytes)(), OUTGRAD_OK);
}

// --- What runs -----------------------------------------------------------------------------------

TEST(CInterface, SaysWhatItRuns) {
  EXPECT_STREQ(outgrad_version(), "0.2.0");
  const std::string isa = outgrad_instruction_set();
  EXPECT_TRUE(isa == "baseline" || isa == "avx2" || isa == "avx512" || isa == "avx512_bf16") << isa;
  EXPECT_STREQ(outgrad_fit_name(OUTGRAD_GELU_TANH, OUTGRAD_F16), "gelu_tanh_f16");
  EXPECT_STREQ(outgrad_fit_name(OUTGRAD_ELU, OUTGRAD_BF16), "elu_bf16");
  for (int activation = 0; activation <= OUTGRAD_ELU; ++activation) {
    for (int format = 0; format <= OUTGRAD_BF16; ++format) {
      const char* const name = outgrad_fit_name(activation, format);
      const char* const digest = outgrad_coefficients_sha256(activation, format);
      ASSERT_NE(name, nullptr);
      ASSERT_NE(digest, nullptr) << name;
      const std::string command =
          std::string("sha256sum '") + OUTGRAD_SOURCE_DIR + "/kernels/generated/" + name + ".h'";
      std::array<char, 64> text{};
      FILE* pipe = popen(command.c_str(), "r");
      ASSERT_NE(pipe, nullptr);
      const size_t got = std::fread(text.data(), 1, text.size(), pipe);
      EXPECT_EQ(got, text.size()) << command;
      pclose(pipe);
      EXPECT_EQ(std::string(digest), std::string(text.data(), got)) << name;
    }
    EXPECT_EQ(outgrad_fit_name(activation, 3), nullptr);
  }
  ASSERT_NE(outgrad_forward_coefficients_sha256(), nullptr);
  EXPECT_EQ(std::strlen(outgrad_forward_coefficients_sha256()), 64u);
  EXPECT_EQ(outgrad_fit_name(-1, OUTGRAD_F32), nullptr);
  EXPECT_EQ(outgrad_coefficients_sha256(10, OUTGRAD_F32), nullptr);
  EXPECT_STREQ(outgrad_forward_variant(OUTGRAD_F32), "default");
  EXPECT_STREQ(outgrad_backward_variant(OUTGRAD_BF16), "default");
  EXPECT_EQ(outgrad_backward_variant(-1), nullptr);
  for (outgrad_kernel kernel = OUTGRAD_KERNEL_GELU_FORWARD; kernel <= OUTGRAD_KERNEL_GELU_BACKWARD_CODE;
       ++kernel) {
    for (const outgrad_format format : {OUTGRAD_F32, OUTGRAD_F16, OUTGRAD_BF16}) {
      EXPECT_STREQ(outgrad_tuned_variant(kernel, format, 16, 1024), "default");
      EXPECT_STREQ(outgrad_tuned_rung(kernel, format, 16, 1024), "default");
    }
  }
  EXPECT_EQ(outgrad_tuned_variant(OUTGRAD_KERNEL_GELU_BACKWARD_CODE + 1, OUTGRAD_F32, 1, 1), nullptr);
  EXPECT_EQ(outgrad_tuned_variant(-1, OUTGRAD_F32, 1, 1), nullptr);
  EXPECT_EQ(outgrad_tuned_rung(OUTGRAD_KERNEL_GELU_FORWARD, 3, 1, 1), nullptr);
  EXPECT_STREQ(outgrad_status_name(OUTGRAD_ERROR_OVERLAP), "OUTGRAD_ERROR_OVERLAP");
  EXPECT_STREQ(outgrad_status_name(99), "unknown status");
}

TEST(CInterface, MessagesBelongToTheirThread) {
  EXPECT_EQ(outgrad_gelu_forward(9, nullptr, nullptr, nullptr, 1), OUTGRAD_ERROR_FORMAT);
  const std::string mine = outgrad_error_message();
  std::thread other([] {
    EXPECT_STREQ(outgrad_error_message(), "");
    EXPECT_EQ(outgrad_gelu_forward(OUTGRAD_F32, nullptr, nullptr, nullptr, -2), OUTGRAD_ERROR_SIZE);
    EXPECT_STREQ(outgrad_error_message(), "outgrad_gelu_forward: n = -2 is negative");
  });
  other.join();
  EXPECT_EQ(outgrad_error_message(), mine);
  EXPECT_EQ(mine, "outgrad_gelu_forward: format 9 is unknown");
}

TEST(CInterface, ThreadCountIsSetAndTheCallersKept) {
  EXPECT_EQ(outgrad_set_threads(-1), OUTGRAD_ERROR_VALUE);
  EXPECT_EQ(outgrad_get_threads(), 0);
  const int callers = omp_get_max_threads();
  const std::vector<float> x(1 << 20, 0.5f);
  std::vector<float> expected(x.size()), y(x.size());
  std::vector<u32> mask(x.size() / 32);
  ASSERT_EQ(outgrad_gelu_forward(OUTGRAD_F32, x.data(), expected.data(), mask.data(), 1 << 20), OUTGRAD_OK);
  for (const int threads : {1, 3, 0}) {
    ASSERT_EQ(outgrad_set_threads(threads), OUTGRAD_OK);
    EXPECT_EQ(outgrad_get_threads(), threads);
    ASSERT_EQ(outgrad_gelu_forward(OUTGRAD_F32, x.data(), y.data(), mask.data(), 1 << 20), OUTGRAD_OK);
    EXPECT_EQ(y, expected) << threads;
    EXPECT_EQ(omp_get_max_threads(), callers) << threads;
  }
  // More threads than the machine has processors, so that they can be told from those of other calls. OpenMP
  // keeps them for later.
  const auto running = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                         std::filesystem::directory_iterator{});
  };
  const int many = static_cast<int>(running()) + 5;
  const std::vector<float> long_x(static_cast<size_t>(many) << 16, 0.5f);
  std::vector<float> long_y(long_x.size());
  std::vector<u32> long_mask(long_x.size() / 32);
  ASSERT_EQ(outgrad_set_threads(many), OUTGRAD_OK);
  ASSERT_EQ(outgrad_gelu_forward(OUTGRAD_F32, long_x.data(), long_y.data(), long_mask.data(),
                                 static_cast<i64>(long_x.size())),
            OUTGRAD_OK);
  EXPECT_GE(running(), many);
  EXPECT_EQ(omp_get_max_threads(), callers);
  outgrad_set_threads(0);
}

// Calls from several threads at once, while another changes the number of threads.
TEST(CInterface, CallsAtOnce) {
  std::vector<std::thread> workers;
  for (int worker = 0; worker < 4; ++worker) {
    workers.emplace_back([] {
      const auto a = patterns::backward<F16>();
      std::vector<F16> first(a.y.size()), dx(a.y.size());
      ASSERT_EQ(
          outgrad_gelu_backward(OUTGRAD_F16, a.dy.data(), a.y.data(), a.mask.data(), first.data(), a.size()),
          OUTGRAD_OK);
      for (int repeat = 0; repeat < 20; ++repeat) {
        outgrad_set_threads(repeat % 3);
        ASSERT_EQ(
            outgrad_gelu_backward(OUTGRAD_F16, a.dy.data(), a.y.data(), a.mask.data(), dx.data(), a.size()),
            OUTGRAD_OK);
        ASSERT_EQ(patterns::first_difference(first, dx), -1);
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  outgrad_set_threads(0);
}

}  // namespace
}  // namespace outgrad::kernels
