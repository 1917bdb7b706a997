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
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/c/outgrad.h"
#include "kernels/c/table.h"
#include "kernels/fits.h"
#include "kernels/host/bias.h"
#include "kernels/host/code.h"
#include "kernels/host/elementwise.h"
#include "kernels/host/forwards.h"
#include "kernels/host/fp4.h"
#include "kernels/host/fp8.h"
#include "kernels/host/layernorm.h"
#include "kernels/host/mxfp8.h"
#include "kernels/host/norm_store.h"
#include "kernels/host/parity.h"
#include "kernels/host/gated.h"
#include "kernels/host/product.h"
#include "kernels/host/softmax.h"
#include "tests/kernels/c_calls.h"
#include "tests/kernels/patterns.h"

namespace outgrad::kernels {
namespace {

using namespace c_calls;

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
  // 3 formats: 10 forwards and the 6 masks, 10 backwards, 4 arrays in and from MXFP8, 10 codes and one of
  // the caller's own, y in 3 formats of 8 bits and 2 of 4, 2 arrays of 4 gates, 4 of softmax, two shapes
  // of 11 arrays of the norms and of 9 of the fused forms, 3 arrays of both norms in each of 3 stores of 8
  // bits; and the two lines that say what ran. In 2 formats y carries the mask, 6 forwards and backwards, and
  // 3 gates have 3 arrays of pairs that keep their product.
  ASSERT_EQ(expected.lines.size(),
            2 + 3 * (16 + 10 + 4 + 11 + 5 + 2 * 4 + 4 + 2 * 11 + 2 * 9 + 3 * 2 * 3) + 2 * (6 + 6 + 3 * 3));
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

// The arrays of an activation's call, with a guard behind each: results take the place of x and dy.
template <class T>
struct Arrays {
  std::vector<T> y, dx;
  std::vector<u32> mask;
  std::vector<u8> codes, scales, parts;

  Arrays(const outgrad_call& sizes, const std::vector<T>& x)
      : y(x), dx(x), mask((x.size() + 31) / 32 + 1, 0x5e5e5e5eu), codes(sizes.codes_bytes + 1, 0x5e),
        scales(sizes.scales_bytes + 1, 0x5e), parts(sizes.parts_bytes + 1, 0x5e) {}
};

// Calls one direction of a header's kernels, on x or dy.
template <class T>
using Header = std::function<void(const T* input, Arrays<T>& arrays, i64 n)>;

// Both directions of a call on all patterns against those of the headers.
template <class T>
void expect_bits(outgrad_call call, const Header<T>& forward, const Header<T>& backward,
                 Function run_forward = kFunctions[kActivationForward],
                 Function run_backward = kFunctions[kActivationBackward]) {
  const std::string trace = std::string(kActivationNames[call.activation]) + " " + Format<T>::kName +
                            " store " + std::to_string(call.store) + " bits " + std::to_string(call.bits);
  SCOPED_TRACE(trace);
  const std::vector<T> x = patterns::all<T>();
  call.size = sizeof call, call.format = kFormatOf<T>, call.n = static_cast<i64>(x.size());
  ASSERT_EQ(outgrad_activation_sizes(&call), OUTGRAD_OK);
  Arrays<T> e(call, x), c(call, x);
  forward(x.data(), e, call.n);
  backward(x.data(), e, call.n);
  call.x = call.g = call.y = c.y.data(), call.dy = call.dx = c.dx.data();
  call.mask = call.activation < OUTGRAD_TANH ? c.mask.data() : nullptr;
  call.codes = c.codes.data(), call.scales = c.scales.data();
  call.parts = call.parts_bytes == 0 ? nullptr : c.parts.data();
  ASSERT_EQ(run_forward.run(&call), OUTGRAD_OK) << outgrad_error_message();
  ASSERT_EQ(run_backward.run(&call), OUTGRAD_OK) << outgrad_error_message();
  EXPECT_EQ(patterns::first_difference(e.y, c.y), -1);
  EXPECT_EQ(patterns::first_difference(e.dx, c.dx), -1);
  EXPECT_EQ(e.mask, c.mask);
  EXPECT_EQ(e.codes, c.codes);
  EXPECT_EQ(e.scales, c.scales);
  EXPECT_EQ(e.parts, c.parts);
}

// A backward from any y with either mask bit, most of which no forward makes.
template <class T>
void expect_backward(outgrad_store store, outgrad_activation activation,
                     const std::function<void(const patterns::Backward<T>& a, T* dx)>& header) {
  const auto a = patterns::backward<T>();
  std::vector<T> expected(a.y.size()), dx = a.dy;
  header(a, expected.data());
  outgrad_call call{.size = sizeof call, .format = kFormatOf<T>, .activation = activation, .store = store};
  call.n = a.size(), call.dy = call.dx = dx.data(), call.y = const_cast<T*>(a.y.data());
  call.mask = const_cast<u32*>(a.mask.data());
  ASSERT_EQ(outgrad_activation_backward(&call), OUTGRAD_OK) << outgrad_error_message();
  EXPECT_EQ(patterns::first_difference(expected, dx), -1) << activation << " " << Format<T>::kName;
}

template <size_t K, template <class...> class List, class... Each>
std::tuple_element_t<K, std::tuple<Each...>> nth_of(List<Each...>);
template <size_t K, class List>
using Nth = decltype(nth_of<K>(List{}));

template <size_t K, class T>
struct ForwardOf {
  using Type = Nth<K - 1, ActivationForwards>;
};
template <class T>
struct ForwardOf<0, T> {
  using Type = typename ForwardFit<T>::Type;
};

template <class Wanted, class... Fit>
auto parity_fit_of(ParityFitList<Fit...>) {
  static_assert((same_text(Fit::kActivation, Wanted::kActivation) + ...) == 1);
  return std::get<0>(std::tuple_cat(std::conditional_t<same_text(Fit::kActivation, Wanted::kActivation),
                                                       std::tuple<Fit>, std::tuple<>>{}...));
}

template <size_t K, class T>
void expect_y() {
  using Fit = Nth<K, typename c::ActivationFits<T>::Type>;
  constexpr auto kActivation = static_cast<outgrad_activation>(K);
  const std::string name = std::string(kActivationNames[K]) + "_" + Format<T>::kName;
  EXPECT_EQ(Fit::kName, name);
  EXPECT_STREQ(outgrad_fit_name(kActivation, kFormatOf<T>), name.c_str());
  const auto forward = [](const T* x, Arrays<T>& e, i64 n) {
    if constexpr (K == 0) {
      gelu_forward<typename ForwardOf<K, T>::Type, T, kScalar>(x, e.y.data(), e.mask.data(), n);
    } else {
      activation_forward<typename ForwardOf<K, T>::Type, T, kScalar>(x, e.y.data(), e.mask.data(), n);
    }
  };
  expect_bits<T>({.activation = kActivation}, forward, [](const T* dy, Arrays<T>& e, i64 n) {
    activation_backward<Fit, T, kScalar>(dy, e.y.data(), e.mask.data(), e.dx.data(), n);
  });
  expect_backward<T>(OUTGRAD_STORE_Y, kActivation, [](const auto& a, T* dx) {
    activation_backward<Fit, T, kScalar>(a.dy.data(), a.y.data(), a.mask.data(), dx, a.size());
  });
}

template <size_t K, class T>
void expect_parity() {
  using Y = std::conditional_t<std::is_same_v<T, F16>, ParityF16, ParityBf16>;
  using Fit =
      decltype(parity_fit_of<Nth<K, typename c::ActivationFits<T>::Type>>(typename ParityFits<Y>::Type{}));
  constexpr auto kActivation = static_cast<outgrad_activation>(K);
  const auto carrying = [](const T* y) { return reinterpret_cast<const Y*>(y); };
  static_assert(sizeof(Y) == sizeof(T));
  expect_bits<T>(
      {.activation = kActivation, .store = OUTGRAD_STORE_PARITY},
      [](const T* x, Arrays<T>& e, i64 n) {
        activation_forward_parity<ParityForward<Fit>, Y, kScalar>(x, reinterpret_cast<Y*>(e.y.data()), n);
      },
      [&](const T* dy, Arrays<T>& e, i64 n) {
        activation_backward<Fit, T, kScalar, Y>(dy, carrying(e.y.data()), nullptr, e.dx.data(), n);
      });
  expect_backward<T>(OUTGRAD_STORE_PARITY, kActivation, [&](const auto& a, T* dx) {
    activation_backward<Fit, T, kScalar, Y>(a.dy.data(), carrying(a.y.data()), nullptr, dx, a.size());
  });
}

template <size_t K, class T>
void expect_code() {
  using A = Nth<K, CodedActivations>;
  static const u64 seed = 42;
  EXPECT_STREQ(outgrad_code_name(static_cast<outgrad_activation>(K)), A::Code::kName);
  for (const CodeChoice& choice : {CodeChoice{5, nullptr}, CodeChoice{2, &seed}}) {
    expect_bits<T>(
        {.activation = static_cast<outgrad_activation>(K),
         .store = OUTGRAD_STORE_CODE,
         .bits = choice.bits,
         .seed = choice.seed},
        [&](const T* x, Arrays<T>& e, i64 n) {
          activation_forward_code<A, T, kScalar>(choice, x, e.y.data(), e.codes.data(), n);
        },
        [&](const T* dy, Arrays<T>& e, i64 n) {
          activation_backward_code<T, kScalar>({A::Code::kLo, A::Code::kHi}, choice, dy, e.codes.data(),
                                               e.dx.data(), n);
        });
  }
}

// Fills the tables of y in 8 bits at a scale or in 4 by blocks, and returns the error that they say.
template <class A, class F, class Tables>
__attribute__((noinline)) double fill_tables(float scale, std::int32_t bits, Tables& tables) {
  if constexpr (std::is_same_v<Tables, Fp4Tables>) {
    return fill_fp4_tables<A, F>(scale, bits, bits_of(3.0f), tables);
  } else {
    fill_fp8_table<A, F>(scale, bits, tables);
    return fp8_error<A>(tables);
  }
}

// y in 8 bits at a scale, F its format, or in 4 by blocks.
template <size_t K, class F, class T>
void expect_few() {
  using A = Nth<K, Fp8Activations>;
  EXPECT_STREQ(A::Header::kActivation, kActivationNames[K]);
  constexpr bool kBlocks = std::is_same_v<F, MxFp4> || std::is_same_v<F, NvFp4>;
  const outgrad_store store = std::is_same_v<F, F8E4M3>   ? OUTGRAD_STORE_E4M3
                              : std::is_same_v<F, F8E5M2> ? OUTGRAD_STORE_E5M2
                              : std::is_same_v<F, I8>     ? OUTGRAD_STORE_INT8
                              : std::is_same_v<F, MxFp4>  ? OUTGRAD_STORE_MXFP4
                                                          : OUTGRAD_STORE_NVFP4;
  const float scale = store == OUTGRAD_STORE_MXFP4 ? 1.0f : 0x1.23p6f;
  const auto tables = std::make_unique<std::conditional_t<kBlocks, Fp4Tables, Fp8Table>>();
  for (std::int32_t bits = 0; bits <= 2; ++bits) {
    double error = 0;
    const double expected = fill_tables<A, F>(scale, bits, *tables);
    const outgrad_call call{
        .size = sizeof call, .activation = K, .store = store, .bits = bits, .scale = &scale};
    ASSERT_EQ(outgrad_store_error(&call, 3.0f, &error), OUTGRAD_OK);
    EXPECT_EQ(error, expected);
    const auto forward = [&](const T* x, Arrays<T>& e, i64 n) {
      if constexpr (kBlocks) {
        activation_forward_fp4<A, F, T, kScalar>(*tables, x, e.codes.data(), e.scales.data(), e.parts.data(),
                                                 n);
      } else {
        auto* const codes = reinterpret_cast<F*>(e.codes.data());
        activation_forward_fp8<A, F, T, kScalar>(*tables, scale, x, codes, e.parts.data(), n);
      }
    };
    expect_bits<T>(call, forward, [&](const T* dy, Arrays<T>& e, i64 n) {
      const u8 *const codes = e.codes.data(), *const parts = e.parts.data();
      if constexpr (kBlocks) {
        activation_backward_fp4<F, T, kScalar>(*tables, dy, codes, e.scales.data(), parts, e.dx.data(), n);
      } else {
        activation_backward_fp8<T, kScalar>(*tables, dy, codes, parts, e.dx.data(), n);
      }
    });
  }
}

template <class T>
void expect_mxfp8() {
  expect_bits<T>(
      {.store = OUTGRAD_STORE_MXFP8},
      [](const T* x, Arrays<T>& e, i64 n) {
        gelu_forward_mxfp8<typename ForwardFit<T>::Type, T, kScalar>(
            x, reinterpret_cast<F8E4M3*>(e.codes.data()), reinterpret_cast<E8M0*>(e.scales.data()),
            e.mask.data(), n);
      },
      [](const T* dy, Arrays<T>& e, i64 n) {
        activation_backward<generated::GeluMxfp8, T, kScalar, MxFp8>(
            dy, stored<MxFp8>(e.codes.data(), e.scales.data()), e.mask.data(), e.dx.data(), n);
      });
}

// Codes of gradients that the caller has computed: x stands for them.
template <class T>
void expect_encoded(const CodeRange& range) {
  static const u64 seed = 77;
  for (const CodeChoice& choice : {CodeChoice{4, nullptr}, CodeChoice{3, &seed}}) {
    expect_bits<T>(
        {.store = OUTGRAD_STORE_CODE,
         .bits = choice.bits,
         .lo = range.lo,
         .hi = range.hi,
         .seed = choice.seed},
        [&](const T* g, Arrays<T>& e, i64 n) {
          encode_gradients<T, kScalar>(range, choice, g, e.codes.data(), n);
        },
        [&](const T* dy, Arrays<T>& e, i64 n) {
          activation_backward_code<T, kScalar>(range, choice, dy, e.codes.data(), e.dx.data(), n);
        },
        kFunctions[kEncode], kFunctions[kBackwardEncoded]);
  }
}

// GELU in every store and format.
template <class T>
void expect_gelu() {
  expect_y<0, T>();
  if constexpr (!std::is_same_v<T, float>) expect_parity<0, T>();
  expect_code<0, T>();
  expect_mxfp8<T>();
  expect_few<0, F8E4M3, T>(), expect_few<0, F8E5M2, T>(), expect_few<0, I8, T>();
  expect_few<0, MxFp4, T>(), expect_few<0, NvFp4, T>();
}

TEST(CInterface, GeluIsTheHeadersBitsF32) { expect_gelu<float>(), expect_encoded<float>({-0.125f, 1.25f}); }
TEST(CInterface, GeluIsTheHeadersBitsF16) { expect_gelu<F16>(), expect_encoded<F16>({0, 1}); }
TEST(CInterface, GeluIsTheHeadersBitsBf16) { expect_gelu<BF16>(), expect_encoded<BF16>({-2, 2}); }

// Every other one in one format, those with a minimum in one that can carry the branch and in one store of
// few bits: that the library has the right kernel in every place is what equal hashes do not say.
template <size_t K>
void expect_other() {
  constexpr size_t kFormat = K < OUTGRAD_TANH ? 1 + K % 2 : K % 3;
  using T = std::tuple_element_t<kFormat, std::tuple<float, F16, BF16>>;
  expect_y<K, T>();
  expect_code<K, T>();
  if constexpr (K < OUTGRAD_TANH) {
    expect_parity<K, T>();
    expect_few<K, std::tuple_element_t<K - 1, std::tuple<F8E4M3, NvFp4, F8E5M2, MxFp4, I8>>, T>();
  }
}

TEST(CInterface, EveryOtherActivationIsItsHeadersBits) {
  [&]<size_t... K>(std::index_sequence<K...>) {
    (expect_other<K + 1>(), ...);
  }(std::make_index_sequence<kActivations - 1>{});
  EXPECT_EQ(outgrad_code_name(10), nullptr);
  EXPECT_EQ(outgrad_code_coefficients_sha256(-1), nullptr);
}

template <class T>
void expect_softmax() {
  constexpr i64 rows = 3, n = 1000;
  patterns::Random random(7);
  std::vector<T> x(rows * n), dy(rows * n), y(rows * n), dx(rows * n);
  for (T& each : x) each = narrow<T>(static_cast<float>(static_cast<i32>(random.next())) * 0x1p-28f);
  for (T& each : dy) each = narrow<T>(static_cast<float>(static_cast<i32>(random.next())) * 0x1p-31f);
  // what lies beyond the codes is left alone
  std::vector<u8> codes(rows * n + 1, 0xa5), encoded = codes, actual = codes, actual_encoded = codes;
  softmax_forward_code<T, kScalar>(x.data(), y.data(), codes.data(), rows, n);
  softmax_backward_code<T, kScalar>(dy.data(), codes.data(), dx.data(), rows, n);
  softmax_encode<T, kScalar>(y.data(), encoded.data(), rows * n);
  outgrad_call call{.size = sizeof call, .format = kFormatOf<T>, .rows = rows, .n = n};
  call.x = call.y = x.data(), call.dy = call.dx = dy.data();
  call.codes = actual.data(), call.codes_bytes = actual.size();
  ASSERT_EQ(outgrad_softmax_forward(&call), OUTGRAD_OK) << outgrad_error_message();
  ASSERT_EQ(outgrad_softmax_backward(&call), OUTGRAD_OK) << outgrad_error_message();
  call.codes = actual_encoded.data();
  ASSERT_EQ(outgrad_softmax_encode(&call), OUTGRAD_OK) << outgrad_error_message();
  EXPECT_EQ(patterns::first_difference(y, x), -1);
  EXPECT_EQ(patterns::first_difference(dx, dy), -1);
  EXPECT_EQ(codes, actual);
  EXPECT_EQ(encoded, actual_encoded);
}

// Apart and packed, to the header's bits.
template <int kActivation, class T>
void expect_gated() {
  if constexpr (kIsGate<GateAt<kActivation>>) {
    using Gate = GateAt<kActivation>;
    constexpr i64 rows = 3, n = 700;
    patterns::Random random(8);
    const auto values = [&](i64 count) {
      std::vector<T> all(static_cast<size_t>(count));
      for (T& each : all) each = narrow<T>(static_cast<float>(static_cast<i32>(random.next())) * 0x1p-28f);
      return all;
    };
    const std::vector<T> x = values(2 * rows * n), dy = values(rows * n);
    std::vector<T> y(dy.size()), dx(x.size()), found_y = y, found_dx = dx;
    const GatedShape shape{rows, n, 2 * n};
    gated_forward<Gate, T, kScalar>(x.data(), x.data() + n, shape, y.data());
    gated_backward<Gate, T, kScalar>(dy.data(), x.data(), x.data() + n, shape, dx.data(), dx.data() + n,
                                     nullptr);
    outgrad_call call{.size = sizeof call,
                      .format = kFormatOf<T>,
                      .activation = kActivation,
                      .rows = rows,
                      .n = n,
                      .x = x.data(),
                      .y = found_y.data(),
                      .dy = dy.data(),
                      .dx = found_dx.data()};
    ASSERT_EQ(outgrad_gated_forward(&call), OUTGRAD_OK) << outgrad_error_message();
    EXPECT_EQ(patterns::first_difference(found_y, y), -1);
    std::vector<T> again(dy.size());
    call.y = again.data();
    ASSERT_EQ(outgrad_gated_backward(&call), OUTGRAD_OK) << outgrad_error_message();
    EXPECT_EQ(patterns::first_difference(again, y), -1);
    EXPECT_EQ(patterns::first_difference(found_dx, dx), -1);

    std::vector<T> a, b, da, db, found_da(dy.size()), found_db(dy.size());
    for (i64 row = 0; row < rows; ++row) {
      const i64 at = 2 * row * n;
      a.insert(a.end(), x.begin() + at, x.begin() + at + n);
      b.insert(b.end(), x.begin() + at + n, x.begin() + at + 2 * n);
      da.insert(da.end(), dx.begin() + at, dx.begin() + at + n);
      db.insert(db.end(), dx.begin() + at + n, dx.begin() + at + 2 * n);
    }
    call.x = a.data(), call.b = b.data(), call.dx = found_da.data(), call.db = found_db.data();
    call.y = nullptr;
    ASSERT_EQ(outgrad_gated_backward(&call), OUTGRAD_OK) << outgrad_error_message();
    EXPECT_EQ(patterns::first_difference(found_da, da), -1);
    EXPECT_EQ(patterns::first_difference(found_db, db), -1);
    call.y = b.data();
    ASSERT_EQ(outgrad_gated_forward(&call), OUTGRAD_OK) << outgrad_error_message();
    EXPECT_EQ(patterns::first_difference(b, y), -1) << "y in the place of b";
    call.dx = call.db = found_da.data();
    EXPECT_EQ(outgrad_gated_backward(&call), OUTGRAD_ERROR_OVERLAP);
  } else {
    outgrad_call call{.size = sizeof call, .format = kFormatOf<T>, .activation = kActivation, .n = 1};
    EXPECT_EQ(outgrad_gated_forward(&call), OUTGRAD_ERROR_ACTIVATION);
    EXPECT_EQ(outgrad_gated_backward(&call), OUTGRAD_ERROR_ACTIVATION);
    EXPECT_NE(std::string(outgrad_error_message()).find("is no gate; gelu"), std::string::npos);
  }
}

// The same of pairs that keep their product.
template <int kActivation, class T>
void expect_product() {
  outgrad_call call{
      .size = sizeof call, .format = kFormatOf<T>, .activation = kActivation, .rows = 3, .n = 700};
  if constexpr (kHasProduct<GateAt<kActivation>, T>) {
    using Gate = GateAt<kActivation>;
    const i64 elements = call.rows * call.n;
    const auto count = static_cast<size_t>(elements);
    patterns::Random random(9);
    std::vector<T> x(2 * count), dy(count);
    for (std::vector<T>* const all : {&x, &dy}) {
      for (T& each : *all) each = narrow<T>(static_cast<float>(static_cast<i32>(random.next())) * 0x1p-28f);
    }
    std::vector<T> y(count), slot(count), dx(x.size()), found_y = y, found_slot = slot, found_dx = dx;
    std::vector<u32> mask((count + 31) / 32), found_mask = mask;
    const GatedShape shape{call.rows, call.n, 2 * call.n};
    product_forward<Gate, T, kScalar>(x.data(), x.data() + call.n, shape, y.data(), slot.data(), mask.data());
    product_backward<Gate, T, kScalar>(dy.data(), y.data(), slot.data(), mask.data(), shape, dx.data(),
                                       dx.data() + call.n);
    call.x = x.data(), call.y = found_y.data(), call.mask = found_mask.data(), call.slot = found_slot.data();
    call.dy = dy.data(), call.dx = found_dx.data();
    ASSERT_EQ(outgrad_product_forward(&call), OUTGRAD_OK) << outgrad_error_message();
    EXPECT_EQ(patterns::first_difference(found_y, y), -1);
    EXPECT_EQ(patterns::first_difference(found_slot, slot), -1);
    EXPECT_EQ(found_mask, mask);
    ASSERT_EQ(outgrad_product_backward(&call), OUTGRAD_OK) << outgrad_error_message();
    EXPECT_EQ(patterns::first_difference(found_dx, dx), -1);

    // apart, in place of a, b and dy, of the first row
    const std::vector<T> wanted(dx.begin() + call.n, dx.begin() + 2 * call.n);
    call.rows = 1, call.b = x.data() + call.n, call.y = x.data(), call.slot = x.data() + call.n;
    ASSERT_EQ(outgrad_product_forward(&call), OUTGRAD_OK) << outgrad_error_message();
    std::vector<T> db(static_cast<size_t>(call.n));
    call.dx = dy.data(), call.db = db.data();
    ASSERT_EQ(outgrad_product_backward(&call), OUTGRAD_OK) << outgrad_error_message();
    EXPECT_EQ(patterns::first_difference(db, wanted), -1);
    dy.resize(static_cast<size_t>(call.n)), dx.resize(static_cast<size_t>(call.n));
    EXPECT_EQ(patterns::first_difference(dy, dx), -1);
    call.db = call.dx;
    EXPECT_EQ(outgrad_product_backward(&call), OUTGRAD_ERROR_OVERLAP);
  } else {
    const auto status = has_product(kActivation) ? OUTGRAD_ERROR_FORMAT : OUTGRAD_ERROR_ACTIVATION;
    EXPECT_EQ(outgrad_product_forward(&call), status);
    EXPECT_EQ(outgrad_product_backward(&call), status);
    EXPECT_NE(std::string(outgrad_error_message()).find("product"), std::string::npos);
  }
}

TEST(CInterface, GatedPairsThatKeepTheirProductAreTheHeadersBits) {
  [&]<size_t... K>(std::index_sequence<K...>) {
    (expect_product<K, float>(), ...);
    (expect_product<K, F16>(), ...);
    (expect_product<K, BF16>(), ...);
  }(std::make_index_sequence<kActivations>{});
}

TEST(CInterface, GatedPairsAreTheHeadersBits) {
  [&]<size_t... K>(std::index_sequence<K...>) {
    (expect_gated<K, float>(), ...);
    (expect_gated<K, F16>(), ...);
    (expect_gated<K, BF16>(), ...);
  }(std::make_index_sequence<kActivations>{});
}

TEST(CInterface, SoftmaxIsTheHeadersBits) {
  expect_softmax<float>();
  expect_softmax<F16>();
  expect_softmax<BF16>();
}

// The arrays of a norm and of bias + GELU.
template <class T>
struct Rows {
  static constexpr i64 kRows = 5, kN = 192, kSize = kRows * kN;
  std::vector<T> x, dy, residual, y = std::vector<T>(kSize), z = y, dx = y;
  std::vector<float> gamma, beta, dgamma = std::vector<float>(kN), dbeta = dgamma;
  std::vector<float> rstd = std::vector<float>(kRows), x_hat = std::vector<float>(kRows * 2);
  std::vector<float> scales = std::vector<float>(kRows * kN / 64 * 2), workspace;
  std::vector<u8> codes = std::vector<u8>(kSize);
  std::vector<u32> mask = std::vector<u32>((kSize + 31) / 32);
  std::vector<i32> channels = {3, 190};
  const SideBuffer<float> side{channels.data(), 2, x_hat.data()};
  const SideBuffer<const float> kept{channels.data(), 2, x_hat.data()};
  outgrad_call call{.size = sizeof call, .format = kFormatOf<T>, .rows = kRows, .n = kN, .eps = 1e-5f};

  Rows() {
    patterns::Random random(11);
    const auto draw = [&] { return static_cast<float>(static_cast<i32>(random.next())) * 0x1p-30f; };
    for (std::vector<T>* const to : {&x, &dy, &residual})
      for (i64 i = 0; i < kSize; ++i) to->push_back(narrow<T>(draw()));
    for (i64 j = 0; j < kN; ++j) gamma.push_back(1 + 0.25f * draw()), beta.push_back(draw());
    gamma[3] = gamma[190] = 0;
    EXPECT_EQ(outgrad_bias_gelu_sizes(&call), OUTGRAD_OK);
    const size_t bytes = call.workspace_bytes;
    EXPECT_EQ(outgrad_norm_sizes(&call), OUTGRAD_OK);
    workspace.resize(std::max(bytes, call.workspace_bytes) / 4);
    call.workspace = workspace.data(), call.workspace_bytes = workspace.size() * 4;
    call.x = x.data(), call.dy = dy.data(), call.residual = call.dz_next = residual.data();
    call.y = y.data(), call.z = z.data(), call.dx = call.dz = dx.data(), call.mask = mask.data();
    call.gamma = gamma.data(), call.beta = call.bias = beta.data(), call.rstd = rstd.data();
    call.dgamma = dgamma.data(), call.dbeta = call.dbias = dbeta.data();
    call.codes = codes.data(), call.scales = scales.data();
    call.side_channels = channels.data(), call.side_count = 2, call.side_x_hat = x_hat.data();
  }

  // The library's results and those of the headers.
  void expect_equal(const Rows& e) const {
    EXPECT_EQ(patterns::first_difference(e.y, y), -1);
    EXPECT_EQ(patterns::first_difference(e.z, z), -1);
    EXPECT_EQ(patterns::first_difference(e.dx, dx), -1);
    EXPECT_EQ(e.rstd, rstd);
    EXPECT_EQ(e.x_hat, x_hat);
    EXPECT_EQ(e.dgamma, dgamma);
    EXPECT_EQ(e.dbeta, dbeta);
    EXPECT_EQ(e.codes, codes);
    EXPECT_EQ(std::memcmp(e.scales.data(), scales.data(), scales.size() * 4), 0);
    EXPECT_EQ(e.mask, mask);
  }
  void expect_run(Id id) { ASSERT_EQ(kFunctions[id].run(&call), OUTGRAD_OK) << outgrad_error_message(); }
};

template <class T>
void expect_norms() {
  Rows<T> c, e;
  constexpr i64 rows = e.kRows, n = e.kN;
  const T *const x = e.x.data(), *const dy = e.dy.data(), *const more = e.residual.data();
  const float *const gamma = e.gamma.data(), *const beta = e.beta.data();
  T *const y = e.y.data(), *const z = e.z.data(), *const dx = e.dx.data();
  float *const rstd = e.rstd.data(), *const dgamma = e.dgamma.data(), *const dbeta = e.dbeta.data();
  const auto both = [&](Id forward, Id backward, const auto& headers) {
    SCOPED_TRACE(kFunctions[forward].name);
    c.expect_run(forward), c.expect_run(backward);
    headers();
    c.expect_equal(e);
  };
  NormForward<T> forward{.x = x,
                         .residual = more,
                         .gamma = gamma,
                         .beta = beta,
                         .rows = rows,
                         .n = n,
                         .z = z,
                         .y = y,
                         .rstd = rstd,
                         .side = e.side};
  NormBackward<T> backward{.dy = dy,
                           .y = y,
                           .dz_next = more,
                           .gamma = gamma,
                           .beta = beta,
                           .rstd = rstd,
                           .rows = rows,
                           .n = n,
                           .dx = dx,
                           .dgamma = dgamma,
                           .dbeta = dbeta,
                           .side = e.kept};
  both(kLayernormForward, kLayernormBackward,
       [&] { layernorm_forward<T, kScalar>(forward), layernorm_backward<T, kScalar>(backward); });
  both(kRmsnormForward, kRmsnormBackward,
       [&] { rmsnorm_forward<T, kScalar>(forward), rmsnorm_backward<T, kScalar>(backward); });
  backward.workspace = e.workspace;
  both(kResidualLayernormForward, kResidualLayernormBackward, [&] {
    residual_layernorm_forward<T, kScalar>(forward), residual_layernorm_backward<T, kScalar>(backward);
  });
  both(kResidualRmsnormForward, kResidualRmsnormBackward, [&] {
    residual_rmsnorm_forward<T, kScalar>(forward), residual_rmsnorm_backward<T, kScalar>(backward);
  });
  both(kBiasForward, kBiasBackward, [&] {
    bias_gelu_forward<typename ForwardFit<T>::Type, T, kScalar>(x, beta, rows, n, y, e.mask.data());
    bias_gelu_backward<typename DefaultFit<T>::Type, T, kScalar>(dy, y, e.mask.data(), rows, n, dx, dbeta);
  });
}

TEST(CInterface, NormsAndFusedFormsAreTheHeadersBits) {
  expect_norms<float>();
  expect_norms<F16>();
  expect_norms<BF16>();
}

// A norm's y in 8 bits: of each pair of store and format that of one norm, since both share the code.
template <class Store, class T>
void expect_norms_of(outgrad_store store) {
  SCOPED_TRACE(std::string(Store::kName) + " " + Format<T>::kName);
  static const float given = 0.002f;
  constexpr bool kRms = (kFormatOf<T> + Store::kGroup / 32) % 2 != 0;
  Rows<T> c, e;
  constexpr i64 rows = e.kRows, n = e.kN;
  c.call.store = store;
  ASSERT_EQ(outgrad_norm_sizes(&c.call), OUTGRAD_OK);
  ASSERT_EQ(c.call.scales_bytes,
            static_cast<size_t>(norm_scales_of<Store>(rows, n)) * sizeof(typename Store::Scale));
  constexpr Norm kNorm = kRms ? Norm::rms : Norm::layer;
  auto* const codes = reinterpret_cast<typename Store::Code*>(e.codes.data());
  auto* const scales = reinterpret_cast<typename Store::Scale*>(e.scales.data());
  for (const float* const scale : {static_cast<const float*>(nullptr), &given}) {
    if (scale && store != OUTGRAD_STORE_E4M3) continue;
    c.call.scale = scale;
    c.expect_run(kRms ? kRmsnormForward : kLayernormForward);
    c.expect_run(kRms ? kRmsnormBackward : kLayernormBackward);
    norm_forward_8bit<kNorm, kScalar>(NormForward8bit<Store, T>{.norm = {.x = e.x.data(),
                                                                         .gamma = e.gamma.data(),
                                                                         .beta = e.beta.data(),
                                                                         .rows = rows,
                                                                         .n = n,
                                                                         .eps = 1e-5f,
                                                                         .y = e.y.data(),
                                                                         .rstd = e.rstd.data(),
                                                                         .side = e.side},
                                                                .codes = codes,
                                                                .scales = scales,
                                                                .given = scale});
    norm_backward_8bit<kNorm, kScalar>(
        NormBackward8bit<Store, T>{.norm = {.dy = e.dy.data(),
                                            .gamma = e.gamma.data(),
                                            .beta = e.beta.data(),
                                            .rstd = e.rstd.data(),
                                            .rows = rows,
                                            .n = n,
                                            .dx = e.dx.data(),
                                            .dgamma = e.dgamma.data(),
                                            .dbeta = kRms ? nullptr : e.dbeta.data(),
                                            .side = e.kept,
                                            .workspace = e.workspace},
                                   .codes = codes,
                                   .scales = scales});
    c.expect_equal(e);
  }
}

template <class T>
void expect_norms_of_stores() {
  expect_norms_of<NormE4m3, T>(OUTGRAD_STORE_E4M3);
  expect_norms_of<NormMxFp8, T>(OUTGRAD_STORE_MXFP8);
  expect_norms_of<NormInt8, T>(OUTGRAD_STORE_INT8);
}

TEST(CInterface, NormsIn8BitsAreTheHeadersBits) {
  expect_norms_of_stores<float>();
  expect_norms_of_stores<F16>();
  expect_norms_of_stores<BF16>();
}

// --- Refusals ------------------------------------------------------------------------------------

constexpr i64 kMax = std::numeric_limits<i64>::max();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kOne = 1.0f;

using Spoil = std::function<void(outgrad_call& call)>;

// A good call of [2, 64] or 64 elements, of which each test spoils one member. All bytes are those of 1.0f,
// so that every gamma and every scale is one that is taken.
class Good {
 public:
  Good(Id id, outgrad_store store, outgrad_format format = OUTGRAD_F32) : id_(id) {
    if (is_product(id) && format == OUTGRAD_F32) format = OUTGRAD_BF16;
    call = {.size = sizeof call, .format = format, .store = store, .rows = 2, .n = 64, .eps = 1e-5f};
    call.bits = store == OUTGRAD_STORE_CODE || is_coded(id) ? 5 : 2;
    call.lo = 0, call.hi = 1;
    call.scale = is_norm(id) ? nullptr : &kOne;
    call.side_count = is_norm(id) ? 2 : 0;
    uses = uses_of(id, call);
    constexpr size_t kRoom = 1024;  // one and what a spoiled call believes to be there
    memory_.assign(kArrays * kRoom / 4 + call.workspace_bytes / 4, 0x3f800000u);
    for (const ArrayId array : kEveryArray)  // the workspace is the last
      set_pointer(call, array, uses[array].used ? memory_.data() + array * kRoom / 4 : nullptr);
    if (is_norm(id)) side()[0] = 3, side()[1] = 9;
  }

  i32* side() { return reinterpret_cast<i32*>(pointer(call, kSide)); }
  float* floats(ArrayId array) { return reinterpret_cast<float*>(pointer(call, array)); }

  // A refusal of a call: the status, a message that names the function and holds the words, and not one byte
  // changed.
  void call_refused(outgrad_status expected, const std::string& words, const outgrad_call* spoiled) {
    const std::vector<u32> before = memory_;
    const std::string name = kFunctions[id_].name;
    const outgrad_status status = kFunctions[id_].run(spoiled);
    const std::string text = outgrad_error_message(), where = trace() + ": " + words + ": " + text;
    EXPECT_STREQ(outgrad_status_name(status), outgrad_status_name(expected)) << where;
    EXPECT_EQ(text.rfind(name + ": ", 0), 0u) << where;
    EXPECT_NE(text.find(words), std::string::npos) << where;
    EXPECT_EQ(text.find('\n'), std::string::npos) << where;
    EXPECT_EQ(memory_, before) << where;
  }
  void refused(outgrad_status expected, const std::string& words, const Spoil& spoil) {
    outgrad_call spoiled = call;
    spoil(spoiled);
    call_refused(expected, words, &spoiled);
  }
  void taken(const outgrad_call& as) {
    EXPECT_EQ(kFunctions[id_].run(&as), OUTGRAD_OK) << trace() << ": " << outgrad_error_message();
  }

  Id id() const { return id_; }
  std::string trace() const {
    return std::string(kFunctions[id_].name) + " store " + std::to_string(call.store);
  }

  outgrad_call call;
  Uses uses;

 private:
  Id id_;
  std::vector<u32> memory_;
};

// Every function with every store that it takes.
void for_all(const std::function<void(Good&)>& check) {
  for (int id = 0; id < kIds; ++id) {
    for (outgrad_store store = OUTGRAD_STORE_Y; store < kStoreCount; ++store) {
      if (!takes_store(static_cast<Id>(id), store)) continue;
      Good good(static_cast<Id>(id), store, store == OUTGRAD_STORE_PARITY ? OUTGRAD_BF16 : OUTGRAD_F32);
      check(good);
    }
  }
}

TEST(CInterface, WhatEveryCallHasIsChecked) {
  for_all([](Good& good) {
    const Id id = good.id();
    good.call_refused(OUTGRAD_ERROR_NULL_POINTER, "the call is null", nullptr);
    for (const size_t size : {size_t{0}, size_t{8}, offsetof(outgrad_call, b) - 8, sizeof(outgrad_call) - 1})
      good.refused(OUTGRAD_ERROR_SIZE, "size = " + std::to_string(size), [&](auto& c) { c.size = size; });
    struct {  // a later release's
      outgrad_call call;
      u64 more[2];
    } later{good.call, {0, 1}};
    later.call.size = sizeof later;
    good.call_refused(OUTGRAD_ERROR_SIZE, "members that this release does not know", &later.call);
    for (const outgrad_format format : {-1, 3})
      good.refused(OUTGRAD_ERROR_FORMAT, "format " + std::to_string(format) + " is unknown",
                   [&](auto& c) { c.format = format; });
    if (is_activation(id)) {
      for (const outgrad_activation activation : {-1, 10})
        good.refused(OUTGRAD_ERROR_ACTIVATION, "activation " + std::to_string(activation) + " is unknown",
                     [&](auto& c) { c.activation = activation; });
    }
    for (outgrad_store store = -1; store <= kStoreCount; ++store) {
      const bool known = store >= OUTGRAD_STORE_Y && store < kStoreCount;
      if (!takes_store(id) || (known && takes_store(id, store))) continue;
      good.refused(OUTGRAD_ERROR_STORE, known ? "" : "store " + std::to_string(store) + " is unknown",
                   [&](auto& c) { c.store = store; });
    }
    if (over_rows(id)) {
      good.refused(OUTGRAD_ERROR_SIZE, "n = 0: a row needs at least one element", [](auto& c) { c.n = 0; });
      good.refused(OUTGRAD_ERROR_SIZE, "n = -3", [](auto& c) { c.n = -3; });
      good.refused(OUTGRAD_ERROR_SIZE, "rows = -1 is negative", [](auto& c) { c.rows = -1; });
      for (const i64 rows : {kMax, (i64{1} << 54) / 64 + 1})
        good.refused(OUTGRAD_ERROR_SIZE, "addressed", [&](auto& c) { c.rows = rows; });
      // the product is 0 modulo 2^64
      good.refused(OUTGRAD_ERROR_SIZE, "addressed", [](auto& c) { c.rows = c.n = i64{1} << 32; });
    } else {
      good.refused(OUTGRAD_ERROR_SIZE, "n = -1 is negative", [](auto& c) { c.n = -1; });
      for (const i64 n : {kMax, kMax / 4 + 1})
        good.refused(OUTGRAD_ERROR_SIZE, "addressed", [&](auto& c) { c.n = n; });
      outgrad_call none = good.call;  // nothing to do is no error, whatever the pointers are
      none.n = 0, none.codes_bytes = none.scales_bytes = none.parts_bytes = 0;
      for (const ArrayId array : kEveryArray) set_pointer(none, array, nullptr);
      good.taken(none);
    }
    outgrad_call earlier = good.call;  // which ends before b
    earlier.size = offsetof(outgrad_call, b);
    earlier.b = good.call.dy, earlier.db = good.call.dx;
    if (!is_product(id)) good.taken(earlier);  // it has no slots
    // A good call is taken, and so is one that a later release's caller makes with what this one knows.
    later.more[1] = 0;
    good.taken(later.call);
    good.taken(good.call);
  });
}

TEST(CInterface, EveryArrayIsChecked) {
  for_all([](Good& good) {
    for (const ArrayId array : kEveryArray) {
      const Use& use = good.uses[array];
      const std::string name = kMembers[array].name;
      if (!use.used || use.bytes == 0) continue;
      const auto moved = [&](const void* to) { return [=](auto& c) { set_pointer(c, array, to); }; };
      u8* const here = pointer(good.call, array);
      if (array == kWorkspace) {
        good.refused(OUTGRAD_ERROR_WORKSPACE, "the workspace holds 0 of the ", moved(nullptr));
      } else if (!use.optional) {
        good.refused(OUTGRAD_ERROR_NULL_POINTER, name + " is null", moved(nullptr));
      }
      if (use.element > 1)
        good.refused(OUTGRAD_ERROR_ALIGNMENT, name + " is not aligned", moved(here + use.element / 2));
      if (use.bytes > use.element)
        good.refused(OUTGRAD_ERROR_SIZE, "do not exist",
                     moved(reinterpret_cast<void*>(UINTPTR_MAX - static_cast<u64>(use.element) + 1)));
      for (const ArrayId other : kEveryArray) {
        const Use& others = good.uses[other];
        if (other == array || array == kSide || !(use.written || others.written) || others.bytes == 0)
          continue;
        u8* const there = pointer(good.call, other);
        const bool may_be = std::count(use.may_be.begin(), use.may_be.end(), other) > 0 ||
                            std::count(others.may_be.begin(), others.may_be.end(), array) > 0;
        const i64 unit = std::max(use.element, others.element);
        if (!may_be || others.bytes > unit)
          good.refused(OUTGRAD_ERROR_OVERLAP, "overlaps", moved(there + (may_be ? unit : 0)));
        if (use.element <= others.element && !may_be)
          good.refused(OUTGRAD_ERROR_OVERLAP, "overlaps", moved(there + others.bytes - use.element));
      }
    }
    const auto too_few = [&](size_t outgrad_call::* bytes, const std::string& name, const std::string& what) {
      const size_t needed = good.call.*bytes;
      if (needed == 0) return;
      const std::string elements = over_rows(good.id()) ? "128 elements" : "64 elements";
      good.refused(OUTGRAD_ERROR_SIZE,
                   name + " = " + std::to_string(needed - 1) + ": the " + what + " of " + elements +
                       " take " + std::to_string(needed),
                   [&](auto& c) { --(c.*bytes); });
    };
    too_few(&outgrad_call::codes_bytes, "codes_bytes", "codes");
    too_few(&outgrad_call::scales_bytes, "scales_bytes", "scales");
    too_few(&outgrad_call::parts_bytes, "parts_bytes", "parts");
    if (good.uses[kWorkspace].used) {
      good.refused(OUTGRAD_ERROR_WORKSPACE, "the workspace holds 4 of the ",
                   [](auto& c) { c.workspace_bytes = 4; });
      good.refused(OUTGRAD_ERROR_WORKSPACE, "the workspace", [](auto& c) { --c.workspace_bytes; });
    }
    good.taken(good.call);
  });
}

// What an activation's store needs of its other members, and outgrad_store_error refuses too.
TEST(CInterface, ValuesOfStoresAreChecked) {
  static const u64 seed = 3;
  double error = 7;
  for_all([&](Good& good) {
    const outgrad_store store = good.call.store;
    if (!is_activation(good.id()) && !is_coded(good.id())) return;
    const auto refused = [&](outgrad_status status, const std::string& words, const Spoil& spoil) {
      good.refused(status, words, spoil);
      if (!is_activation(good.id()) || store <= OUTGRAD_STORE_PARITY || store == OUTGRAD_STORE_MXFP8) return;
      outgrad_call spoiled = good.call;
      spoil(spoiled);
      EXPECT_EQ(outgrad_store_error(&spoiled, 1, &error), status) << good.trace();
      const std::string text = outgrad_error_message();
      EXPECT_EQ(text.rfind("outgrad_store_error: ", 0), 0u) << text;
      EXPECT_NE(text.find(words), std::string::npos) << text;
    };
    if (store == OUTGRAD_STORE_CODE || is_coded(good.id())) {
      for (const std::int32_t bits : {-1, 0, 9, 1 << 30})
        refused(OUTGRAD_ERROR_VALUE, "bits = " + std::to_string(bits) + ": a code without a seed has 1 to 8",
                [&](auto& c) { c.bits = bits; });
      for (const std::int32_t bits : {1, 4, 8})
        refused(OUTGRAD_ERROR_VALUE, "a dithered code has 2 or 3",
                [&](auto& c) { c.bits = bits, c.seed = &seed; });
    }
    if (store == OUTGRAD_STORE_PARITY)
      refused(OUTGRAD_ERROR_FORMAT, "not in f32", [](auto& c) { c.format = OUTGRAD_F32; });
    if (store == OUTGRAD_STORE_PARITY || has_parts(store)) {
      for (const outgrad_activation rising : {OUTGRAD_TANH, OUTGRAD_SIGMOID, OUTGRAD_SOFTPLUS, OUTGRAD_ELU})
        refused(OUTGRAD_ERROR_ACTIVATION, std::string(kActivationNames[rising]) + " rises",
                [&](auto& c) { c.activation = rising; });
    }
    if (store == OUTGRAD_STORE_MXFP8) {
      for (const outgrad_activation other : {OUTGRAD_SILU, OUTGRAD_TANH})
        refused(OUTGRAD_ERROR_ACTIVATION, kActivationNames[other], [&](auto& c) { c.activation = other; });
    }
    if (!has_parts(store)) return;
    for (const std::int32_t bits : {-1, 3, 1 << 30})
      refused(OUTGRAD_ERROR_VALUE, "bits = " + std::to_string(bits), [&](auto& c) { c.bits = bits; });
    refused(OUTGRAD_ERROR_NULL_POINTER, "scale is null", [](auto& c) { c.scale = nullptr; });
    const char* const rule = store == OUTGRAD_STORE_MXFP4   ? "MXFP4 has no scale of the tensor"
                             : store == OUTGRAD_STORE_NVFP4 ? "it is from 2^-117 up to 2^118"
                                                            : "it is positive, finite and not subnormal";
    for (const float scale : {0.0f, -0.0f, -1.0f, 0x1p-127f, INFINITY, -INFINITY, kNan})
      refused(OUTGRAD_ERROR_VALUE, rule, [&](auto& c) { c.scale = &scale; });
    for (const float scale : {0x1.fffffep-118f, 0x1p118f, 2.0f}) {
      if (store == OUTGRAD_STORE_MXFP4 || (store == OUTGRAD_STORE_NVFP4 && scale != 2))
        refused(OUTGRAD_ERROR_VALUE, rule, [&](auto& c) { c.scale = &scale; });
    }
  });
  for (const CodeRange& range :
       {CodeRange{kNan, 1}, {0, kNan}, {1, 0}, {0, 0.125f}, {0.25f, 1}, {0, 3}, {-3, 0}}) {
    for (const Id id : {kEncode, kBackwardEncoded})
      Good(id, OUTGRAD_STORE_Y)
          .refused(OUTGRAD_ERROR_VALUE, "is no range of f' that codes are proven for",
                   [&](auto& c) { c.lo = range.lo, c.hi = range.hi; });
  }
  outgrad_call call{.size = sizeof call, .store = OUTGRAD_STORE_MXFP4, .bits = 1, .scale = &kOne};
  for (const float amax : {-1.0f, kNan})
    EXPECT_EQ(outgrad_store_error(&call, amax, &error), OUTGRAD_ERROR_VALUE) << outgrad_error_message();
  EXPECT_EQ(outgrad_store_error(&call, 1, nullptr), OUTGRAD_ERROR_NULL_POINTER);
  EXPECT_EQ(outgrad_store_error(nullptr, 1, &error), OUTGRAD_ERROR_NULL_POINTER);
  for (const int store : {int{OUTGRAD_STORE_Y}, int{OUTGRAD_STORE_PARITY}, int{OUTGRAD_STORE_MXFP8}, -1, 9}) {
    call.store = store;
    EXPECT_EQ(outgrad_store_error(&call, 1, &error), OUTGRAD_ERROR_STORE) << store;
  }
  EXPECT_EQ(error, 7);
}

// What softmax and the norms need beyond shape and arrays.
TEST(CInterface, ValuesOfRowsAreChecked) {
  for_all([](Good& good) {
    const Id id = good.id();
    const outgrad_store store = good.call.store;
    if (is_softmax(id))
      good.refused(
          OUTGRAD_ERROR_SIZE,
          "n = 8388609: in a row of more than 8388608 elements, all of p may be too small for a code",
          [](auto& c) { c.n = kMostSoftmax + 1; });
    if (!is_norm(id)) return;
    for (const float eps : {-1.0f, -1e-9f, kNan}) {
      if (is_norm_forward(id)) good.refused(OUTGRAD_ERROR_VALUE, "eps = ", [&](auto& c) { c.eps = eps; });
    }
    for (const i64 count : {-1, 65})
      good.refused(OUTGRAD_ERROR_VALUE, "side_count", [&](auto& c) { c.side_count = count; });
    const i32 twice[] = {3, 3}, outside[] = {3, 64}, negative[] = {-1, 3};
    good.refused(OUTGRAD_ERROR_VALUE, "side_channels[1]", [&](auto& c) { c.side_channels = twice; });
    good.refused(OUTGRAD_ERROR_VALUE, "side_channels[1]", [&](auto& c) { c.side_channels = outside; });
    good.refused(OUTGRAD_ERROR_VALUE, "side_channels[0]", [&](auto& c) { c.side_channels = negative; });
    if (is_norm_backward(id)) {
      good.floats(kGamma)[5] = 0;
      good.refused(OUTGRAD_ERROR_VALUE, "channel 5", [](auto&) {});
      good.floats(kGamma)[5] = 1;
    }
    if (store == OUTGRAD_STORE_INT8)
      good.refused(OUTGRAD_ERROR_SIZE,
                   "n = 32 is no whole number of groups of 64, which share a scale in int8",
                   [](auto& c) { c.n = 32; });
    if (store == OUTGRAD_STORE_MXFP8)
      good.refused(OUTGRAD_ERROR_SIZE,
                   "n = 48 is no whole number of groups of 32, which share a scale in mxfp8",
                   [](auto& c) { c.n = 48; });
    for (const float bad : {0.0f, -0.0f, -1.0f, 0x1p-127f, INFINITY, -INFINITY, kNan}) {
      if (store == OUTGRAD_STORE_E4M3 && is_norm_forward(id))
        good.refused(OUTGRAD_ERROR_VALUE, "the given scale is zero, negative, subnormal, infinite or NaN",
                     [&](auto& c) { c.scale = &bad; });
      if (store == OUTGRAD_STORE_INT8 && is_norm_backward(id)) {
        good.floats(kScales)[3] = bad;
        good.refused(OUTGRAD_ERROR_VALUE, "scale 1 is zero, negative, subnormal, infinite or NaN",
                     [](auto&) {});
        good.floats(kScales)[3] = 1;
      }
    }
    if (store != OUTGRAD_STORE_E4M3 || is_norm_backward(id)) good.call.scale = &kNan;  // is not looked at
    if (is_norm_backward(id)) good.call.eps = kNan;
    good.taken(good.call);
    good.call.rows = 0;  // the sums of a backward are those of nothing
    good.taken(good.call);
    if (is_norm_backward(id)) {
      for (i64 j = 0; j < good.call.n; ++j) EXPECT_EQ(good.call.dgamma[j], 0.0f) << good.trace();
    }
  });
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
  outgrad_call call{.size = sizeof call, .format = 9, .n = 1};
  EXPECT_EQ(outgrad_activation_forward(&call), OUTGRAD_ERROR_FORMAT);
  const std::string mine = outgrad_error_message();
  std::thread other([] {
    EXPECT_STREQ(outgrad_error_message(), "");
    outgrad_call wrong{.size = sizeof wrong, .n = -2};
    EXPECT_EQ(outgrad_activation_backward(&wrong), OUTGRAD_ERROR_SIZE);
    EXPECT_STREQ(outgrad_error_message(), "outgrad_activation_backward: n = -2 is negative");
  });
  other.join();
  EXPECT_EQ(outgrad_error_message(), mine);
  EXPECT_EQ(mine, "outgrad_activation_forward: format 9 is unknown");
}

TEST(CInterface, ThreadCountIsSetAndTheCallersKept) {
  EXPECT_EQ(outgrad_set_threads(-1), OUTGRAD_ERROR_VALUE);
  EXPECT_EQ(outgrad_get_threads(), 0);
  const int callers = omp_get_max_threads();
  const auto forward = [](size_t n) {
    const std::vector<float> x(n, 0.5f);
    std::vector<float> y(n);
    std::vector<u32> mask(n / 32);
    outgrad_call call{.size = sizeof call, .n = static_cast<i64>(n)};
    call.x = x.data(), call.y = y.data(), call.mask = mask.data();
    EXPECT_EQ(outgrad_activation_forward(&call), OUTGRAD_OK);
    return y;
  };
  const std::vector<float> expected = forward(1 << 20);
  for (const int threads : {1, 3, 0}) {
    ASSERT_EQ(outgrad_set_threads(threads), OUTGRAD_OK);
    EXPECT_EQ(outgrad_get_threads(), threads);
    EXPECT_EQ(forward(1 << 20), expected) << threads;
    EXPECT_EQ(omp_get_max_threads(), callers) << threads;
  }
  // More threads than the machine has processors, so that they can be told from those of other calls. OpenMP
  // keeps them for later.
  const auto running = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                         std::filesystem::directory_iterator{});
  };
  const int many = static_cast<int>(running()) + 5;
  ASSERT_EQ(outgrad_set_threads(many), OUTGRAD_OK);
  forward(static_cast<size_t>(many) << 16);
  EXPECT_GE(running(), many);
  EXPECT_EQ(omp_get_max_threads(), callers);
  outgrad_set_threads(0);
}

// Calls from several threads at once, while another changes the number of threads.
TEST(CInterface, CallsAtOnce) {
  std::vector<std::thread> workers;
  for (int worker = 0; worker < 4; ++worker) {
    workers.emplace_back([] {
      auto a = patterns::backward<F16>();
      std::vector<F16> first(a.y.size()), dx(a.y.size());
      outgrad_call call{.size = sizeof call, .format = OUTGRAD_F16, .n = a.size()};
      call.dy = a.dy.data(), call.y = a.y.data(), call.mask = a.mask.data(), call.dx = first.data();
      ASSERT_EQ(outgrad_activation_backward(&call), OUTGRAD_OK);
      call.dx = dx.data();
      for (int repeat = 0; repeat < 20; ++repeat) {
        outgrad_set_threads(repeat % 3);
        ASSERT_EQ(outgrad_activation_backward(&call), OUTGRAD_OK);
        ASSERT_EQ(patterns::first_difference(first, dx), -1);
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  outgrad_set_threads(0);
}

}  // namespace
}  // namespace outgrad::kernels
