// `outgrad-eval eval` through its command line: the right bytes, or one line, the right status and no file at
// all.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <numbers>
#include <span>

#include "autotune/space/reference.h"
#include "autotune/space/variant.h"
#include "kernels/activations.h"
#include "kernels/c/outgrad.h"
#include "kernels/fits.h"
#include "kernels/host/elementwise.h"
#include "kernels/host/layernorm.h"
#include "kernels/support/files.h"
#include "kernels/support/random.h"
#include "tests/kernels/synthetic_fit.h"

namespace outgrad::autotune {
namespace {

using kernels::BF16;
using kernels::F16;
using kernels::i64;
using kernels::u32;

struct CommandResult {
  int status;
  std::string output;  // stdout and stderr
};

CommandResult tune(const std::string& arguments) {
  CommandResult outcome{-1, {}};
  FILE* pipe = ::popen((std::string(OUTGRAD_BINARY_DIR "/outgrad-eval ") + arguments + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> block;
  while (std::fgets(block.data(), block.size(), pipe) != nullptr) outcome.output += block.data();
  const int status = ::pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

bool is_one_line(const std::string& text) {
  return text.rfind("outgrad: ", 0) == 0 && text.find('\n') == text.size() - 1;
}

class Eval : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(OUTGRAD_BINARY_DIR "/outgrad-eval"))
      GTEST_SKIP() << "outgrad-eval is not built";
  }

  template <class T>
  void write(const std::string& name, const std::vector<T>& values) {
    kernels::write_array(folder_ / name, std::span<const T>(values));
  }
  template <class T>
  std::vector<u32> bits(const std::string& name) {
    std::vector<u32> all;
    for (const T value : kernels::read_array<T>(folder_ / name))
      all.push_back(kernels::canonical_bits(value));
    return all;
  }
  template <class T>
  static std::vector<u32> bits_of(const std::vector<T>& values) {
    std::vector<u32> all;
    for (const T value : values) all.push_back(kernels::canonical_bits(value));
    return all;
  }
  std::string option(const std::string& name) const { return " --" + name + " " + folder_ / name; }

  kernels::ScratchFolder folder_;
};

template <class T>
std::vector<T> patterns(std::size_t n, std::uint64_t seed) {
  std::vector<T> values(n);
  for (T& value : values) {
    const auto bits = static_cast<u32>(kernels::next_random(seed) >> 32);
    std::memcpy(&value, &bits, sizeof value);
  }
  return values;
}

std::vector<float> uniform(std::size_t n, std::uint64_t seed, float low, float high) {
  std::vector<float> values(n);
  for (float& value : values)
    value = low + (high - low) * static_cast<float>(kernels::next_random(seed) >> 40) * 0x1p-24f;
  return values;
}

TEST_F(Eval, GeluGivesTheReferenceBitsInEveryFormat) {
  const auto run = [&]<class T>(T, FormatId format) {
    constexpr std::size_t kElements = 70'001;  // neither whole vectors nor whole mask words
    const std::string name = name_of(format);
    std::vector<T> x = patterns<T>(kElements, 11), dy = patterns<T>(kElements, 12), y(kElements),
                   dx(kElements);
    std::vector<u32> mask((kElements + 31) / 32);
    fits_of({KernelId::kGeluForward, format})
        .front()
        ->reference({{x.data(), y.data(), mask.data()}, 1, static_cast<i64>(kElements)});
    write("x", x);
    const CommandResult forward = tune("eval --op forward --activation gelu --format " + name + option("x") +
                                       option("y") + option("mask"));
    ASSERT_EQ(forward.status, 0) << forward.output;
    EXPECT_EQ(forward.output, "");
    EXPECT_EQ(bits<T>("y"), bits_of(y)) << name;
    EXPECT_EQ(kernels::read_array<u32>(folder_ / "mask"), mask) << name;

    fits_of({KernelId::kGeluBackward, format})
        .front()
        ->reference({{dy.data(), y.data(), mask.data(), dx.data()}, 1, static_cast<i64>(kElements)});
    write("dy", dy);
    const CommandResult backward = tune("eval --op backward --activation gelu --format " + name +
                                        option("dy") + option("y") + option("mask") + option("dx"));
    ASSERT_EQ(backward.status, 0) << backward.output;
    EXPECT_EQ(bits<T>("dx"), bits_of(dx)) << name;
  };
  run(float{}, FormatId::kF32);
  run(F16{}, FormatId::kF16);
  run(BF16{}, FormatId::kBf16);
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// The ten functions as their names are defined, in the order of the catalogue.
double activation_of(int activation, double x) {
  switch (activation) {
    case OUTGRAD_GELU: return 0.5 * x * std::erfc(-x * std::sqrt(0.5));
    case OUTGRAD_GELU_TANH:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    case OUTGRAD_QUICK_GELU: return x * sigmoid(1.702 * x);
    case OUTGRAD_SILU: return x * sigmoid(x);
    case OUTGRAD_SWISH: return x * sigmoid(1.5 * x);
    case OUTGRAD_MISH: return x * std::tanh(std::log1p(std::exp(x)));
    case OUTGRAD_TANH: return std::tanh(x);
    case OUTGRAD_SIGMOID: return sigmoid(x);
    case OUTGRAD_SOFTPLUS: return std::log1p(std::exp(x));
    default: return x >= 0 ? x : std::expm1(x);
  }
}

// The bits of the library, and the numbers of the definition: y within a few ulp in f32 and half an ulp in 16
// bits, dx (from dy = 1) within a little more than T, by a difference quotient.
TEST_F(Eval, EveryActivationGivesTheLibrarysBits) {
  const auto run = [&]<class T>(T, FormatId format, outgrad_format c_format, double relative, double total) {
    constexpr std::size_t kElements = 1003;
    std::vector<T> x = patterns<T>(kElements, 41), dy = patterns<T>(kElements, 42);
    constexpr float kSome[] = {-3.0f, -2.25f, -1.0f, -0.5f, 0.5f, 1.25f, 3.0f};
    for (std::size_t k = 0; k < std::size(kSome); ++k)
      x[k] = kernels::narrow<T>(kSome[k]), dy[k] = kernels::narrow<T>(1);
    write("x", x), write("dy", dy);
    for (int activation = 0; activation < kernels::kActivations; ++activation) {
      const bool masked = activation < OUTGRAD_TANH;
      const std::string of = " --activation " + std::string(kernels::kActivationNames[activation]) +
                             " --format " + name_of(format);
      SCOPED_TRACE(of);
      std::vector<T> y(kElements), dx(kElements);
      std::vector<u32> mask((kElements + 31) / 32);
      outgrad_call call{};
      call.size = sizeof call, call.activation = activation, call.format = c_format, call.n = kElements;
      call.x = x.data(), call.y = y.data(), call.mask = mask.data();
      call.dy = dy.data(), call.dx = dx.data();
      ASSERT_EQ(outgrad_activation_forward(&call), OUTGRAD_OK);
      ASSERT_EQ(outgrad_activation_backward(&call), OUTGRAD_OK);
      const std::string kept = masked ? option("mask") : "";
      const CommandResult forward = tune("eval --op forward" + of + option("x") + option("y") + kept);
      ASSERT_EQ(forward.status, 0) << forward.output;
      EXPECT_EQ(bits<T>("y"), bits_of(y));
      if (masked) {
        EXPECT_EQ(kernels::read_array<u32>(folder_ / "mask"), mask);
      }
      const CommandResult backward =
          tune("eval --op backward" + of + option("dy") + option("y") + kept + option("dx"));
      ASSERT_EQ(backward.status, 0) << backward.output;
      EXPECT_EQ(bits<T>("dx"), bits_of(dx));
      for (std::size_t k = 0; k < std::size(kSome); ++k) {
        const double at = kSome[k], f = activation_of(activation, at), step = 1e-5;
        EXPECT_NEAR(kernels::widen(y[k]), f, std::abs(f) * relative) << at;
        EXPECT_NEAR(
            kernels::widen(dx[k]),
            (activation_of(activation, at + step) - activation_of(activation, at - step)) / (2 * step), total)
            << at;
      }
    }
  };
  run(float{}, FormatId::kF32, OUTGRAD_F32, 0x1p-22, 1e-4);
  run(F16{}, FormatId::kF16, OUTGRAD_F16, 0x1.004p-11, 0.006);
  run(BF16{}, FormatId::kBf16, OUTGRAD_BF16, 0x1.02p-8, 0.02);
}

TEST_F(Eval, AnActivationThatRisesHasNoMask) {
  write("x", std::vector<float>(64)), write("mask", std::vector<u32>(2));
  for (const std::string name : {"tanh", "sigmoid", "softplus", "elu"}) {
    const CommandResult outcome = tune("eval --op forward --activation " + name + " --format f32" +
                                       option("x") + option("y") + " --mask " + folder_ / "m");
    EXPECT_EQ(outcome.status, 2);
    EXPECT_EQ(outcome.output, "outgrad: eval: --mask: is not an option of " + name +
                                  ", which rises: y tells on which side x lies\n");
    EXPECT_FALSE(std::filesystem::exists(folder_ / "y"));
  }
  const CommandResult masked =
      tune("eval --op forward --activation mish --format f32" + option("x") + option("y"));
  EXPECT_EQ(masked.output, "outgrad: eval: --mask: is required\n");
  const CommandResult said = tune("eval --op backward --activation elu --format f32 --json --dy " +
                                  folder_ / "x" + " --y " + folder_ / "x" + option("dx"));
  const nlohmann::json json = nlohmann::json::parse(said.output, nullptr, false);
  ASSERT_TRUE(json.is_object()) << said.output;
  EXPECT_EQ(json["activation"], "elu");
  EXPECT_EQ(json["fit"]["name"], outgrad_fit_name(OUTGRAD_ELU, OUTGRAD_F32));
  EXPECT_EQ(json["instruction_set"], outgrad_instruction_set());
}

TEST_F(Eval, AFileThatAnotherOptionNamesIsNotWritten) {
  const std::vector<float> x = uniform(64, 1, -3, 3);
  write("x", x), write("rstd", std::vector<float>(4));
  const std::string other_spelling = std::string(folder_ / ".") + "/x";
  for (const auto& [rest, why] :
       {std::pair{"forward --activation tanh" + option("x") + " --y " + other_spelling,
                  "--y: is the same file as --x"},
        std::pair{"forward --activation mish" + option("x") + option("y") + " --mask " + folder_ / "y",
                  "--y: is the same file as --mask"},
        std::pair{"rmsnorm_backward --rows 4 --cols 16 --dy " + folder_ / "x" + " --y " + folder_ / "x" +
                      option("rstd") + option("dx") + " --dgamma " + folder_ / "rstd",
                  "--dgamma: is the same file as --rstd"}}) {
    const CommandResult outcome = tune("eval --format f32 --op " + rest);
    EXPECT_EQ(outcome.status, 2);
    EXPECT_EQ(outcome.output, std::string("outgrad: eval: ") + why + "\n");
  }
  EXPECT_EQ(bits<float>("x"), bits_of(x));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "y") || std::filesystem::exists(folder_ / "dx"));
}

TEST_F(Eval, NormsGiveTheReferenceBits) {
  constexpr kernels::CpuSchedule kScalar{.threads = 1};
  constexpr i64 kRows = 13, kCols = 77;
  constexpr std::size_t kElements = kRows * kCols;
  const std::vector<float> x = uniform(kElements, 1, -3, 3), dy = uniform(kElements, 2, -1, 1),
                           gamma = uniform(kCols, 3, 0.5f, 2), beta = uniform(kCols, 4, -1, 1);
  write("x", x), write("dy", dy), write("gamma", gamma), write("beta", beta);
  const std::string shape = " --format f32 --rows 13 --cols 77";
  for (const bool layer : {true, false}) {
    const std::string op = layer ? "layernorm" : "rmsnorm";
    const std::string parameters = option("gamma") + (layer ? option("beta") : "");
    std::vector<float> y(kElements), rstd(kRows), dx(kElements), dgamma(kCols), dbeta(kCols);
    const kernels::NormForward<float> to_y{.x = x.data(),
                                           .gamma = gamma.data(),
                                           .beta = beta.data(),
                                           .rows = kRows,
                                           .n = kCols,
                                           .eps = 1e-3f,
                                           .y = y.data(),
                                           .rstd = rstd.data()};
    layer ? kernels::layernorm_forward<float, kScalar>(to_y) : kernels::rmsnorm_forward<float, kScalar>(to_y);
    const kernels::NormBackward<float> to_dx{.dy = dy.data(),
                                             .y = y.data(),
                                             .gamma = gamma.data(),
                                             .beta = beta.data(),
                                             .rstd = rstd.data(),
                                             .rows = kRows,
                                             .n = kCols,
                                             .dx = dx.data(),
                                             .dgamma = dgamma.data(),
                                             .dbeta = dbeta.data()};
    layer ? kernels::layernorm_backward<float, kScalar>(to_dx)
          : kernels::rmsnorm_backward<float, kScalar>(to_dx);
    const CommandResult forward = tune("eval --op " + op + "_forward --eps 1e-3" + shape + parameters +
                                       option("x") + option("y") + option("rstd"));
    ASSERT_EQ(forward.status, 0) << forward.output;
    EXPECT_EQ(bits<float>("y"), bits_of(y));
    EXPECT_EQ(bits<float>("rstd"), bits_of(rstd));
    const CommandResult backward =
        tune("eval --op " + op + "_backward" + shape + parameters + option("dy") + option("y") +
             option("rstd") + option("dx") + option("dgamma") + (layer ? option("dbeta") : ""));
    ASSERT_EQ(backward.status, 0) << backward.output;
    EXPECT_EQ(bits<float>("dx"), bits_of(dx));
    EXPECT_EQ(bits<float>("dgamma"), bits_of(dgamma));
    if (layer) {
      EXPECT_EQ(bits<float>("dbeta"), bits_of(dbeta));
    }
  }
}

// Forward headers of other activations, with and without a mask, a tail and compensated rows, give the
// library's bits.
TEST_F(Eval, AForwardHeaderGivesTheLibrarysBits) {
  const std::string generated = OUTGRAD_SOURCE_DIR "/kernels/generated/";
  const auto run = [&]<class T>(T, FormatId format, const std::string& activation, const std::string& name) {
    write("x", patterns<T>(1003, 43));
    const bool masked = activation != "tanh";
    const auto to = [&](const std::string& y, const std::string& mask) {
      return option("x") + " --y " + folder_ / y + (masked ? " --mask " + folder_ / mask : "");
    };
    for (const std::string& from :
         {" --activation " + activation + " --format " + name_of(format) + to("want", "want_mask"),
          " --header " + generated + name + ".h" + to("y", "mask")}) {
      const CommandResult result = tune("eval --op forward" + from);
      ASSERT_EQ(result.status, 0) << result.output;
    }
    EXPECT_EQ(bits<T>("y"), bits<T>("want")) << name;
    if (masked) {
      EXPECT_EQ(kernels::read_file(folder_ / "mask"), kernels::read_file(folder_ / "want_mask")) << name;
    }
  };
  run(float{}, FormatId::kF32, "silu", "silu_forward");
  run(float{}, FormatId::kF32, "tanh", "tanh_forward");
  run(BF16{}, FormatId::kBf16, "mish", "mish_forward_bf16");
  const std::string of = "eval --op forward --header " + generated;
  for (const auto& [rest, why] :
       {std::pair{"tanh_forward.h" + option("x") + option("y") + option("mask"),
                  "--mask: tanh rises and has none"},
        std::pair{"silu_forward.h" + option("x") + option("y"), "--mask: is required"}}) {
    const CommandResult result = tune(of + rest);
    EXPECT_EQ(result.status, 2);
    EXPECT_NE(result.output.find(why), std::string::npos) << result.output;
  }
}

// The text of a generated header for one of tests/kernels' made-up tables.
template <class Table>
std::string header_text() {
  std::string text =
      "// GENERATED by outgrad emit. DO NOT EDIT.\n// command: none\n#pragma once\n\n#include "
      "\"kernels/table.h\"\n\n"
      "namespace outgrad::kernels::generated {\n\nstruct MadeUp {\n";
  const auto line = [&](const std::string& type, const std::string& name, const std::string& value) {
    text += "  static constexpr " + type + name + " = " + value + ";\n";
  };
  const auto quoted = [](const char* word) { return '"' + std::string(word) + '"'; };
  line("const char* ", "kName", quoted("made_up"));
  line("const char* ", "kActivation", quoted(Table::kActivation));
  line("const char* ", "kFormat", quoted(Table::kFormat));
  line("const char* ", "kEntryFormat", quoted(Table::kEntryFormat));
  line("int ", "kEntries", std::to_string(Table::kEntries));
  line("bool ", "kMasked", Table::kMasked ? "true" : "false");
  const auto segment = [&](const std::string& name, int first, int last, int base) {
    line("int ", name + "First", std::to_string(first));
    line("int ", name + "Last", std::to_string(last));
    line("int ", name + "Base", std::to_string(base));
  };
  segment("kUpper", Table::kUpperFirst, Table::kUpperLast, Table::kUpperBase);
  segment("kLower", Table::kLowerFirst, Table::kLowerLast, Table::kLowerBase);
  if constexpr (Table::kMasked) segment("kLeft", Table::kLeftFirst, Table::kLeftLast, Table::kLeftBase);
  for (const char* bound : {"kT", "kR"}) line("double ", bound, "0x1p-1");
  text += "  static OUTGRAD_HD constexpr Entries<kEntries> entries() {\n    return {{";
  for (const kernels::u16 entry : Table::entries().w) text += std::to_string(entry) + ", ";
  return text + "}};\n  }\n};\n\n}  // namespace outgrad::kernels::generated\n";
}

const std::string kGenerated = OUTGRAD_SOURCE_DIR "/kernels/generated/";

TEST_F(Eval, ACommittedHeaderGivesThePlainBytes) {
  const auto run = [&]<class T>(T, const std::string& format) {
    constexpr std::size_t kElements = 20'011;
    write("dy", patterns<T>(kElements, 31)), write("y", patterns<T>(kElements, 32));
    write("mask", patterns<u32>((kElements + 31) / 32, 33));
    const std::string arrays = option("dy") + option("y") + option("mask");
    const CommandResult plain =
        tune("eval --op backward --activation gelu --format " + format + arrays + option("dx"));
    ASSERT_EQ(plain.status, 0) << plain.output;
    const CommandResult given = tune("eval --op backward --header " + kGenerated + "gelu_" + format + ".h" +
                                     arrays + " --dx " + folder_ / "other");
    ASSERT_EQ(given.status, 0) << given.output;
    EXPECT_EQ(given.output, "");
    EXPECT_EQ(kernels::read_file(folder_ / "other"), kernels::read_file(folder_ / "dx")) << format;
  };
  run(float{}, "f32");
  run(F16{}, "f16");
  run(BF16{}, "bf16");

  write("x", patterns<BF16>(20'011, 34));
  const std::string x = " --format bf16" + option("x");
  ASSERT_EQ(tune("eval --op forward --activation gelu" + x + option("y") + option("mask")).status, 0);
  const CommandResult given =
      tune("eval --op forward --activation gelu --header " + kGenerated + "gelu_forward_bf16.h" + x +
           " --y " + folder_ / "y2" + " --mask " + folder_ / "mask2");
  ASSERT_EQ(given.status, 0) << given.output;
  EXPECT_EQ(kernels::read_file(folder_ / "y2"), kernels::read_file(folder_ / "y"));
  EXPECT_EQ(kernels::read_file(folder_ / "mask2"), kernels::read_file(folder_ / "mask"));
}

TEST_F(Eval, AHeaderWhoseYCarriesItsBranchReadsNoMask) {
  constexpr std::size_t kElements = 20'011;
  const std::vector<BF16> dy = patterns<BF16>(kElements, 35), y = patterns<BF16>(kElements, 36);
  std::vector<kernels::ParityBf16> carrying;
  for (const BF16 each : y) carrying.push_back({each});
  std::vector<BF16> dx(kElements);
  kernels::activation_backward<kernels::generated::GeluBf16Parity, BF16, kReferenceSchedule,
                               kernels::ParityBf16>(dy.data(), carrying.data(), nullptr, dx.data(),
                                                    static_cast<i64>(kElements));
  write("dy", dy), write("y", y);
  const CommandResult given = tune("eval --op backward --header " + kGenerated + "gelu_bf16_parity.h" +
                                   option("dy") + option("y") + option("dx"));
  ASSERT_EQ(given.status, 0) << given.output;
  EXPECT_EQ(bits<BF16>("dx"), bits_of(dx));
}

TEST_F(Eval, ATableHeaderGivesItsScalarKernelsBits) {
  const auto run = [&]<class Table, class T, class Y>(const Table&, T, Y, const std::string& options) {
    constexpr std::size_t kElements = 5'003;
    std::vector<T> dy = patterns<T>(kElements, 41);
    std::vector<Y> y = patterns<Y>(kElements, 42);
    std::vector<u32> mask = patterns<u32>((kElements + 31) / 32, 43);
    std::vector<T> dx(kElements);
    run_backward<Table, T, kReferenceSchedule, Y>(
        {{dy.data(), y.data(), mask.data(), dx.data()}, 1, static_cast<i64>(kElements)});
    write("dy", dy), write("y", y), write("mask", mask);
    kernels::write_file(folder_ / "made_up.h", header_text<Table>());
    const CommandResult given = tune("eval --op backward --header " + folder_ / "made_up.h" + options +
                                     option("dy") + option("y") + option("dx"));
    ASSERT_EQ(given.status, 0) << given.output;
    EXPECT_EQ(bits<T>("dx"), bits_of(dx));
  };
  run(kernels::synthetic::Direct<BF16, F16>{}, BF16{}, BF16{}, option("mask"));
  run(kernels::synthetic::Direct<kernels::F8E4M3, F16>{}, BF16{}, kernels::F8E4M3{},
      option("mask") + " --format bf16");
  // no mask needed
  run(kernels::synthetic::Direct<F16, BF16, false>{}, F16{}, F16{}, " --format f16 --activation tanh");
}

TEST_F(Eval, AHeaderOfABlockFormatReadsScales) {
  using kernels::MxFp8;
  constexpr std::size_t kElements = 5'003;
  std::vector<BF16> dy = patterns<BF16>(kElements, 51);
  std::vector<kernels::F8E4M3> y = patterns<kernels::F8E4M3>(kElements, 52);
  std::vector<kernels::E8M0> scales((kElements + 31) / 32);
  for (std::size_t k = 0; k < scales.size(); ++k) scales[k].bits = static_cast<kernels::u8>(110 + k % 20);
  std::vector<u32> mask = patterns<u32>((kElements + 31) / 32, 53);
  std::vector<BF16> dx(kElements);
  kernels::activation_backward<kernels::generated::GeluMxfp8, BF16, kReferenceSchedule, MxFp8>(
      dy.data(), kernels::stored<MxFp8>(y.data(), scales.data()), mask.data(), dx.data(),
      static_cast<i64>(kElements));
  write("dy", dy), write("y", y), write("scales", scales), write("mask", mask);
  const std::string command = "eval --op backward --format bf16 --header " + kGenerated + "gelu_mxfp8.h" +
                              option("dy") + option("y") + option("mask") + option("dx");
  const CommandResult given = tune(command + option("scales"));
  ASSERT_EQ(given.status, 0) << given.output;
  EXPECT_EQ(bits<BF16>("dx"), bits_of(dx));

  std::filesystem::remove(folder_ / "dx");
  const auto expect_refused = [&](const std::string& refused, const std::string& says) {
    const CommandResult outcome = tune(refused);
    EXPECT_EQ(outcome.status, 2) << outcome.output;
    EXPECT_TRUE(is_one_line(outcome.output)) << outcome.output;
    EXPECT_NE(outcome.output.find(says), std::string::npos) << outcome.output;
    EXPECT_FALSE(std::filesystem::exists(folder_ / "dx"));
  };
  expect_refused(command, "--scales: is required");
  scales.pop_back();
  write("scales", scales);
  expect_refused(command + option("scales"), "scales: ");
  expect_refused("eval --op backward --header " + kGenerated + "gelu_bf16.h" + option("dy") + " --y " +
                     folder_ / "dy" + option("mask") + option("dx") + option("scales"),
                 "--scales: y in bf16 has no scales");
  expect_refused("eval --op backward --activation gelu --format bf16" + option("dy") + " --y " +
                     folder_ / "dy" + option("mask") + option("dx") + option("scales"),
                 "--scales: is not an option of --op backward without --header");
}

// On a device, of which the tests have a stand-in: the CPU's bytes, from the same files.
class EvalOnDevice : public Eval {
 protected:
  void SetUp() override {
    Eval::SetUp();
    ::setenv("OUTGRAD_LIBCUDA", OUTGRAD_STAND_IN_DRIVER, 1);
    write("probe", std::vector<float>(1));
    const CommandResult probe = tune("eval --op forward --activation gelu --format f32 --device cuda:0" +
                                     option("probe", "x") + option("y") + option("mask"));
    if (probe.status == 3 && probe.output.find("NVRTC") != std::string::npos) GTEST_SKIP() << probe.output;
  }
  void TearDown() override {
    ::unsetenv("OUTGRAD_LIBCUDA");
    ::unsetenv("OUTGRAD_STAND_IN_PLANTS");
  }
  std::string option(const std::string& file, const std::string& name) const {
    return " --" + name + " " + folder_ / file;
  }
  using Eval::option;

  // Runs it on both; `outputs` have equal bytes.
  void expect_alike(const std::string& command, const std::vector<std::string>& outputs) {
    std::string host = command, device = command + " --device cuda:0";
    for (const std::string& output : outputs) {
      host += option(output);
      device += option("device_" + output, output);
    }
    const CommandResult on_host = tune(host), on_device = tune(device);
    ASSERT_EQ(on_host.status, 0) << on_host.output;
    ASSERT_EQ(on_device.status, 0) << command << ": " << on_device.output;
    EXPECT_EQ(on_device.output, "");
    for (const std::string& output : outputs)
      EXPECT_EQ(kernels::read_file(folder_ / "device_" + output), kernels::read_file(folder_ / output))
          << command << ": " << output;
  }
};

// Each activation in one of the formats, since every kernel is compiled.
TEST_F(EvalOnDevice, NightlyEveryActivationGivesTheHostsBytes) {
  const auto run = [&]<class T>(T, const std::string& format, int first) {
    std::vector<T> x;
    for (const float value : uniform(4099, 53, -6, 6)) x.push_back(kernels::narrow<T>(value));
    write("x", x), write("dy", x);
    for (int activation = first; activation < kernels::kActivations; activation += 3) {
      const bool masked = activation < OUTGRAD_TANH;
      const std::string of =
          " --activation " + std::string(kernels::kActivationNames[activation]) + " --format " + format;
      expect_alike("eval --op forward" + of + option("x"),
                   masked ? std::vector<std::string>{"y", "mask"} : std::vector<std::string>{"y"});
      expect_alike("eval --op backward" + of + option("dy") + option("y") + (masked ? option("mask") : ""),
                   {"dx"});
    }
  };
  run(float{}, "f32", OUTGRAD_GELU_TANH);
  run(F16{}, "f16", OUTGRAD_QUICK_GELU);
  run(BF16{}, "bf16", OUTGRAD_SILU);
}

TEST_F(EvalOnDevice, NightlyGivesTheHostsBytesInEveryFormat) {
  const auto run = [&]<class T>(T, const std::string& format) {
    constexpr std::size_t kElements = 20'011;
    std::vector<T> x;
    for (const float value : uniform(kElements, 51, -6, 6)) x.push_back(kernels::narrow<T>(value));
    write("x", x), write("dy", x);
    const std::string of = " --activation gelu --format " + format;
    expect_alike("eval --op forward" + of + option("x"), {"y", "mask"});
    expect_alike("eval --op backward" + of + option("dy") + option("y") + option("mask"), {"dx"});
    write("x", std::vector<T>(x.begin(), x.begin() + 13 * 77)),
        write("dy", std::vector<T>(x.rbegin(), x.rbegin() + 13 * 77));
    write("gamma", uniform(77, 52, 0.5f, 2)), write("beta", uniform(77, 53, -1, 1));
    const std::string shape = " --rows 13 --cols 77 --format " + format;
    for (const std::string norm : {"layernorm", "rmsnorm"}) {
      const std::string parameters = option("gamma") + (norm == "layernorm" ? option("beta") : "");
      expect_alike("eval --op " + norm + "_forward --eps 1e-3" + shape + parameters + option("x"),
                   {"y", "rstd"});
      std::vector<std::string> gradients = {"dx", "dgamma"};
      if (norm == "layernorm") gradients.push_back("dbeta");
      expect_alike("eval --op " + norm + "_backward" + shape + parameters + option("dy") + option("y") +
                       option("rstd"),
                   gradients);
      expect_alike("eval --op " + norm + "_backward" + shape + option("dy") + option("y") + option("rstd"),
                   {"dx"});
    }
  };
  run(float{}, "f32");
  run(F16{}, "f16");
  run(BF16{}, "bf16");
}

TEST_F(EvalOnDevice, RefusesInOneLine) {
  write("x", uniform(64, 54, -1, 1)), write("gamma", std::vector<float>(64)),
      write("rstd", std::vector<float>(1)), write("mask", std::vector<u32>(2));
  const std::string forward =
      "eval --op forward --activation gelu --format f32" + option("x") + option("y") + option("mask", "mask");
  const auto refused = [&](const std::string& command, int status, const std::string& says) {
    const CommandResult outcome = tune(command);
    EXPECT_EQ(outcome.status, status) << command << ": " << outcome.output;
    EXPECT_TRUE(is_one_line(outcome.output)) << outcome.output;
    EXPECT_NE(outcome.output.find(says), std::string::npos) << outcome.output;
  };
  refused(forward + " --device cuda:9", 3, "this machine has 1 devices");
  refused(forward + " --device cuda:x", 2, "names no device");
  refused(forward + " --device sm_90", 2, "is for tune");
  refused("eval --op backward --header " + kGenerated + "gelu_bf16.h" + option("x", "dy") + option("x", "y") +
              option("mask") + option("dx") + " --device cuda:0",
          2, "is for the CPU");
  refused("eval --op layernorm_backward --format f32 --rows 1 --cols 64 --device cuda:0" + option("x", "dy") +
              option("x", "y") + option("gamma") + option("rstd") + option("dx"),
          2, "channel 0: gamma = 0 has no finite reciprocal");
  ::setenv("OUTGRAD_LIBCUDA", "/no/such/libcuda.so", 1);
  refused(forward + " --device cuda:0", 3, "/no/such/libcuda.so cannot be loaded");
}

// A wrong bit of the device is in the file: nothing of what is compared comes from the host.
TEST_F(EvalOnDevice, WritesWhatTheDeviceComputed) {
  write("x", uniform(4096, 55, -2, 2));
  const std::string forward =
      "eval --op forward --activation gelu --format f32" + option("x") + option("mask");
  ASSERT_EQ(tune(forward + option("y")).status, 0);
  ::setenv("OUTGRAD_STAND_IN_PLANTS", "256:bit", 1);
  ASSERT_EQ(tune(forward + option("other", "y") + " --device cuda:0").status, 0);
  EXPECT_NE(kernels::read_file(folder_ / "other"), kernels::read_file(folder_ / "y"));
}

TEST_F(Eval, BadHeadersAreOneLineStatusTwoAndNoOutput) {
  using Table = kernels::synthetic::Direct<BF16, F16>;
  write("dy", std::vector<BF16>(64)), write("y", std::vector<BF16>(64)), write("mask", std::vector<u32>(2)),
      write("x", std::vector<BF16>(64));
  write("odd", std::vector<char>(7));
  const std::string good = header_text<Table>();
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return text;
  };
  const std::string arrays = option("dy") + option("y") + option("mask") + option("dx"),
                    backward = "eval --op backward --header " + folder_ / "h.h";
  struct Case {
    std::string text, command, says;
  };
  const std::vector<Case> cases = {
      {"", backward + arrays, "h.h: line 1: not a generated header"},
      {good.substr(3), backward + arrays, "h.h: line 1: not a generated header"},
      {changed("#include \"kernels/table.h\"", "#include \"/etc/hosts\""), backward + arrays,
       "h.h: line 5: a directive"},
      {changed("struct MadeUp {", "struct Other {\n};\nstruct MadeUp {"), backward + arrays,
       "h.h: line 11: a second struct"},
      {changed("struct MadeUp", "class MadeUp"), backward + arrays, "no struct"},
      {changed("kActivation", "kActivatio"), backward + arrays, "h.h: kActivation: missing"},
      {changed("\"bf16\"", "\"f8\""), backward + arrays, "h.h: kFormat: unknown format 'f8'"},
      {changed("kMasked = true", "kMasked = 1"), backward + arrays, "h.h: kMasked:"},
      {changed("int kEntries", "int kEntires"), backward + arrays,
       "h.h: does not compile: " + folder_ / "h.h" + ":2"},
      {changed("kUpperBase = ", "kUpperBase = 1"), backward + arrays, "upper segment beyond the table"},
      {good, backward + arrays + " --format f16", "--format: f16 not in {bf16}"},
      {good, backward + arrays + " --activation silu", "--activation: silu not in {gelu}"},
      {good, backward + option("dy") + option("y") + option("dx"), "--mask: is required"},
      {good, backward + option("dy") + option("mask") + option("dx") + " --y " + folder_ / "odd",
       "not a whole number"},
      {good,
       "eval --op forward --header " + folder_ / "h.h" + option("x") + " --y " + folder_ / "out --mask " +
           folder_ / "m",
       "struct MadeUp: is a backward header"},
      {good, "eval --op backward --header " + kGenerated + "gelu_forward.h" + arrays,
       "struct GeluForward: is a forward header"},
      {header_text<kernels::synthetic::Direct<kernels::F8E5M2, F16>>(), backward + arrays,
       "--format: is required"},
      {good,
       "eval --op layernorm_forward --format f32 --header " + folder_ / "h.h" + " --rows 1 --cols 1" +
           option("x") + " --y " + folder_ / "out --rstd " + folder_ / "m",
       "--header: is not an option"},
      {good, "eval --op backward --activation siluu --format bf16" + arrays,
       "--activation: siluu not in {gelu,gelu_tanh,quick_gelu,silu,"},
  };
  for (const Case& which : cases) {
    kernels::write_file(folder_ / "h.h", which.text);
    const CommandResult outcome = tune(which.command);
    EXPECT_EQ(outcome.status, 2) << which.command << "\n" << outcome.output;
    EXPECT_TRUE(is_one_line(outcome.output)) << outcome.output;
    EXPECT_NE(outcome.output.find(which.says), std::string::npos) << which.says << "\n" << outcome.output;
    for (const char* name : {"out", "m", "dx"})
      EXPECT_FALSE(std::filesystem::exists(folder_ / name)) << which.command;
  }
  // Code that does not survive its call is the header's fault, found in a child process.
  kernels::write_file(
      folder_ / "h.h",
      changed("};\n\n}", "};\n\nnamespace { const int crash = (__builtin_trap(), 0); }\n\n}"));
  const CommandResult crashed = tune(backward + arrays);
  EXPECT_EQ(crashed.status, 2);
  EXPECT_TRUE(is_one_line(crashed.output)) << crashed.output;
  EXPECT_NE(crashed.output.find("its kernel: killed by signal"), std::string::npos) << crashed.output;
}

TEST_F(Eval, AHeaderWithoutACompilerIsTheEnvironments) {
  write("dy", std::vector<BF16>(64)), write("y", std::vector<BF16>(64)), write("mask", std::vector<u32>(2));
  ::setenv("CXX", "/no/such/compiler", 1);
  const CommandResult outcome = tune("eval --op backward --header " + kGenerated + "gelu_bf16.h" +
                                     option("dy") + option("y") + option("mask") + option("dx"));
  ::unsetenv("CXX");
  EXPECT_EQ(outcome.status, 3) << outcome.output;
  EXPECT_TRUE(is_one_line(outcome.output)) << outcome.output;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "dx"));
}

TEST_F(Eval, EmptyArraysAreFine) {
  write("x", std::vector<float>{});
  EXPECT_EQ(
      tune("eval --op forward --activation gelu --format f32" + option("x") + option("y") + option("mask"))
          .status,
      0);
  EXPECT_EQ(std::filesystem::file_size(folder_ / "y"), 0u);
}

TEST_F(Eval, BadInputIsOneLineStatusTwoAndNoOutput) {
  write("x", std::vector<float>(64)), write("y", std::vector<float>(64)), write("dy", std::vector<float>(64));
  write("mask", std::vector<u32>(2)), write("short", std::vector<float>(63)),
      write("long_mask", std::vector<u32>(3));
  write("odd", std::vector<char>(7)), write("zero", std::vector<float>(8)),
      write("ones", std::vector<float>(8, 1.0f));
  const std::string gelu = "eval --activation gelu --format f32 --op ";
  const std::string backward = gelu + "backward" + option("dx"),
                    norm = "eval --format f32 --rows 8 --cols 8 --op layernorm_";
  const auto as = [&](const std::string& name, const std::string& file) {
    return " --" + name + " " + folder_ / file;
  };
  const std::vector<std::string> commands = {
      "eval",
      "eval --op forward",
      gelu + "sideways",
      "eval --op forward --activation tanhh --format f32" + option("x") + as("y", "out") + as("mask", "m"),
      "eval --op forward --activation gelu --format f64" + option("x") + as("y", "out") + as("mask", "m"),
      gelu + "forward" + as("x", "absent") + as("y", "out") + as("mask", "m"),
      gelu + "forward" + as("x", "odd") + as("y", "out") + as("mask", "m"),
      gelu + "forward" + option("x") + as("y", "out") + as("mask", "out"),
      gelu + "forward" + option("x") + as("y", "out") + as("mask", "./out"),
      gelu + "forward" + option("x") + as("y", "short/out") + as("mask", "m"),
      gelu + "forward" + option("x") + as("y", "out") + as("mask", "short/m"),
      gelu + "forward" + option("x") + as("y", "out"),
      gelu + "forward" + option("x") + as("y", "out") + as("mask", "m") + " --rows 3",
      backward + as("dy", "short") + option("y") + option("mask"),
      backward + option("dy") + option("y") + as("mask", "long_mask"),
      backward + option("dy") + as("y", "odd") + option("mask"),
      norm + "forward" + as("x", "short") + as("y", "out") + as("rstd", "m"),
      norm + "forward --eps -1" + option("x") + as("y", "out") + as("rstd", "m"),
      norm + "forward" + option("x") + as("gamma", "x") + as("y", "out") + as("rstd", "m"),
      norm + "backward" + option("dy") + option("y") + as("gamma", "zero") + as("rstd", "ones") +
          option("dx"),
      "eval --format f32 --rows 1099511627776 --cols 1099511627776 --op layernorm_forward" + option("x") +
          as("y", "out") + as("rstd", "m"),
      "eval --format f32 --rows -1 --cols 8 --op layernorm_forward" + option("x") + as("y", "out") +
          as("rstd", "m"),
      "nonsense",
      "bench --format f8",
      "tune --kernel softmax",
      "tune --device sm_ninety",
      "tune --device sm_90 --headers x",
      "tune --device sm_90 --strategy random",
      "tune --device sm_90 --record out",
      "tune --device cuda:0 --headers x",
      "eval --op forward --device sm_90",
      "tune --device replay:x",
      "tune --budget 0",
      "tune --kernel layernorm_backward --shape 4x64,8x64,4x64"};
  for (const std::string& command : commands) {
    const CommandResult outcome = tune(command);
    EXPECT_EQ(outcome.status, 2) << command << "\n" << outcome.output;
    EXPECT_TRUE(is_one_line(outcome.output)) << command << "\n" << outcome.output;
    for (const char* name : {"out", "m", "dx"})
      EXPECT_FALSE(std::filesystem::exists(folder_ / name)) << command;
  }
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_.path())) ++files;
  EXPECT_EQ(files, 9u) << "a temporary file was left behind";
}

TEST_F(Eval, SaysWhatRanWhereAsked) {
  const auto parsed = [](const CommandResult& result) {
    return nlohmann::json::parse(result.output, nullptr, false);
  };
  write("x", std::vector<float>(64)), write("rstd", std::vector<float>(8));
  const CommandResult gelu = tune("eval --op forward --activation gelu --format f32 --json" + option("x") +
                                  option("y") + option("mask"));
  EXPECT_EQ(parsed(gelu), (nlohmann::json{{"op", "forward"}, {"rung", "default"}, {"variant", "default"}}));
  const CommandResult backward =
      tune("eval --op backward --activation gelu --format f32 --json --dy " + folder_ / "x" + " --y " +
           folder_ / "x" + option("mask") + option("dx"));
  const nlohmann::json said = parsed(backward);
  ASSERT_TRUE(said.is_object()) << backward.output;
  EXPECT_EQ(said["fit"]["name"], kernels::generated::GeluF32::kName);
  EXPECT_EQ(said["fit"]["class"], kernels::generated::GeluF32::kClass);
  EXPECT_EQ(said["fit"]["a_plus_b"], kernels::generated::GeluF32::kA + kernels::generated::GeluF32::kB);
  EXPECT_TRUE(said["fit"]["r"].is_null()) << "f32's is not enumerated over real x";
  const CommandResult row = tune("eval --op forward --activation gelu --format f32 --csv" + option("x") +
                                 option("y") + option("mask"));
  EXPECT_EQ(row.output, "op,rung,variant\r\nforward,default,default\r\n");
  const CommandResult norm = tune("eval --op rmsnorm_backward --format f32 --rows 8 --cols 8 --json --dy " +
                                  folder_ / "x" + " --y " + folder_ / "x" + option("rstd") + option("dx"));
  EXPECT_EQ(parsed(norm),
            (nlohmann::json{{"op", "rmsnorm_backward"}, {"rung", "default"}, {"variant", "default"}}));
}

TEST_F(Eval, AFullDiskAndAMissingDriverAreTheEnvironments) {
  write("x", std::vector<float>(64));
  const std::string forward =
      "eval --op forward --activation gelu --format f32" + option("x") + option("mask");
  if (std::filesystem::exists("/dev/full")) {
    const CommandResult full = tune(forward + " --y /dev/full");
    EXPECT_EQ(full.status, 3) << full.output;
    EXPECT_TRUE(is_one_line(full.output)) << full.output;
    EXPECT_FALSE(std::filesystem::exists(folder_ / "mask"));
  }
  const CommandResult cuda = tune(forward + option("y") + " --device cuda:9999");
  EXPECT_TRUE(is_one_line(cuda.output)) << cuda.output;
  EXPECT_EQ(cuda.status, 3) << cuda.output;
}

}  // namespace
}  // namespace outgrad::autotune
