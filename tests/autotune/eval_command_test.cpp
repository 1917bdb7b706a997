// `outgrad-tune eval` through its command line: the right bytes, or one line, the right status and no file at all.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <span>

#include "autotune/timing.h"
#include "autotune/variant.h"
#include "kernels/host/files.h"
#include "kernels/host/layernorm.h"
#include "tests/autotune/temporary_folder.h"

namespace outgrad::autotune {
namespace {

using kernels::BF16;
using kernels::F16;
using kernels::i64;
using kernels::u32;

struct Outcome {
  int status;
  std::string output;  // stdout and stderr
};

Outcome tune(const std::string& arguments) {
  Outcome outcome{-1, {}};
  FILE* pipe = ::popen((std::string(OUTGRAD_BINARY_DIR "/outgrad-tune ") + arguments + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> block;
  while (std::fgets(block.data(), block.size(), pipe) != nullptr) outcome.output += block.data();
  const int status = ::pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

bool is_one_line(const std::string& text) { return text.rfind("outgrad: ", 0) == 0 && text.find('\n') == text.size() - 1; }

class Eval : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(OUTGRAD_BINARY_DIR "/outgrad-tune")) GTEST_SKIP() << "outgrad-tune is not built";
  }

  template <class T>
  void write(const std::string& name, const std::vector<T>& values) {
    kernels::write_array(folder_ / name, std::span<const T>(values));
  }
  template <class T>
  std::vector<u32> bits(const std::string& name) {
    std::vector<u32> all;
    for (const T value : kernels::read_array<T>(folder_ / name)) all.push_back(kernels::canonical_bits(value));
    return all;
  }
  template <class T>
  static std::vector<u32> bits_of(const std::vector<T>& values) {
    std::vector<u32> all;
    for (const T value : values) all.push_back(kernels::canonical_bits(value));
    return all;
  }
  std::string option(const std::string& name) const { return " --" + name + " " + folder_ / name; }

  TemporaryFolder folder_;
};

template <class T>
std::vector<T> patterns(std::size_t n, std::uint64_t seed) {
  std::vector<T> values(n);
  for (T& value : values) {
    const auto bits = static_cast<u32>(next_random(seed) >> 32);
    std::memcpy(&value, &bits, sizeof value);
  }
  return values;
}

std::vector<float> uniform(std::size_t n, std::uint64_t seed, float low, float high) {
  std::vector<float> values(n);
  for (float& value : values) value = low + (high - low) * static_cast<float>(next_random(seed) >> 40) * 0x1p-24f;
  return values;
}

TEST_F(Eval, GeluGivesTheReferenceBitsInEveryFormat) {
  const auto run = [&]<class T>(T, FormatId format) {
    constexpr std::size_t kElements = 70'001;  // neither whole vectors nor whole mask words
    const std::string name = name_of(format);
    std::vector<T> x = patterns<T>(kElements, 11), dy = patterns<T>(kElements, 12), y(kElements), dx(kElements);
    std::vector<u32> mask((kElements + 31) / 32);
    fits_of({KernelId::kGeluForward, format}).front().reference({x.data(), nullptr, mask.data(), y.data(), static_cast<i64>(kElements)});
    write("x", x);
    const Outcome forward = tune("eval --op forward --activation gelu --format " + name + option("x") + option("y") + option("mask"));
    ASSERT_EQ(forward.status, 0) << forward.output;
    EXPECT_EQ(forward.output, "");
    EXPECT_EQ(bits<T>("y"), bits_of(y)) << name;
    EXPECT_EQ(kernels::read_array<u32>(folder_ / "mask"), mask) << name;

    fits_of({KernelId::kGeluBackward, format})
        .front()
        .reference({dy.data(), y.data(), mask.data(), dx.data(), static_cast<i64>(kElements)});
    write("dy", dy);
    const Outcome backward =
        tune("eval --op backward --activation gelu --format " + name + option("dy") + option("y") + option("mask") + option("dx"));
    ASSERT_EQ(backward.status, 0) << backward.output;
    EXPECT_EQ(bits<T>("dx"), bits_of(dx)) << name;
  };
  run(float{}, FormatId::kF32);
  run(F16{}, FormatId::kF16);
  run(BF16{}, FormatId::kBf16);
}

TEST_F(Eval, NormsGiveTheReferenceBits) {
  constexpr kernels::CpuSchedule kScalar{.threads = 1};
  constexpr i64 kRows = 13, kCols = 77;
  constexpr std::size_t kElements = kRows * kCols;
  const std::vector<float> x = uniform(kElements, 1, -3, 3), dy = uniform(kElements, 2, -1, 1), gamma = uniform(kCols, 3, 0.5f, 2),
                           beta = uniform(kCols, 4, -1, 1);
  write("x", x), write("dy", dy), write("gamma", gamma), write("beta", beta);
  const std::string shape = " --format f32 --rows 13 --cols 77";
  for (const bool layer : {true, false}) {
    const std::string op = layer ? "layernorm" : "rmsnorm";
    const std::string parameters = option("gamma") + (layer ? option("beta") : "");
    std::vector<float> y(kElements), rstd(kRows), dx(kElements), dgamma(kCols), dbeta(kCols);
    if (layer) {
      kernels::layernorm_forward<float, kScalar>(x.data(), gamma.data(), beta.data(), kRows, kCols, 1e-3f, y.data(), rstd.data());
      kernels::layernorm_backward<float, kScalar>(dy.data(), y.data(), gamma.data(), beta.data(), rstd.data(), kRows, kCols, dx.data(),
                                                  dgamma.data(), dbeta.data());
    } else {
      kernels::rmsnorm_forward<float, kScalar>(x.data(), gamma.data(), kRows, kCols, 1e-3f, y.data(), rstd.data());
      kernels::rmsnorm_backward<float, kScalar>(dy.data(), y.data(), gamma.data(), rstd.data(), kRows, kCols, dx.data(), dgamma.data());
    }
    const Outcome forward =
        tune("eval --op " + op + "_forward --eps 1e-3" + shape + parameters + option("x") + option("y") + option("rstd"));
    ASSERT_EQ(forward.status, 0) << forward.output;
    EXPECT_EQ(bits<float>("y"), bits_of(y));
    EXPECT_EQ(bits<float>("rstd"), bits_of(rstd));
    const Outcome backward = tune("eval --op " + op + "_backward" + shape + parameters + option("dy") + option("y") + option("rstd") +
                                  option("dx") + option("dgamma") + (layer ? option("dbeta") : ""));
    ASSERT_EQ(backward.status, 0) << backward.output;
    EXPECT_EQ(bits<float>("dx"), bits_of(dx));
    EXPECT_EQ(bits<float>("dgamma"), bits_of(dgamma));
    if (layer) {
      EXPECT_EQ(bits<float>("dbeta"), bits_of(dbeta));
    }
  }
}

TEST_F(Eval, EmptyArraysAreFine) {
  write("x", std::vector<float>{});
  EXPECT_EQ(tune("eval --op forward --activation gelu --format f32" + option("x") + option("y") + option("mask")).status, 0);
  EXPECT_EQ(std::filesystem::file_size(folder_ / "y"), 0u);
}

TEST_F(Eval, BadInputIsOneLineStatusTwoAndNoOutput) {
  write("x", std::vector<float>(64)), write("y", std::vector<float>(64)), write("dy", std::vector<float>(64));
  write("mask", std::vector<u32>(2)), write("short", std::vector<float>(63)), write("long_mask", std::vector<u32>(3));
  write("odd", std::vector<char>(7)), write("zero", std::vector<float>(8)), write("ones", std::vector<float>(8, 1.0f));
  const std::string gelu = "eval --activation gelu --format f32 --op ";
  const std::string backward = gelu + "backward" + option("dx"), norm = "eval --format f32 --rows 8 --cols 8 --op layernorm_";
  const auto as = [&](const std::string& name, const std::string& file) { return " --" + name + " " + folder_ / file; };
  const std::vector<std::string> commands = {
      "eval",
      "eval --op forward",
      gelu + "sideways",
      "eval --op forward --activation tanhh --format f32" + option("x") + as("y", "out") + as("mask", "m"),
      "eval --op forward --activation gelu --format f64" + option("x") + as("y", "out") + as("mask", "m"),
      gelu + "forward" + as("x", "absent") + as("y", "out") + as("mask", "m"),
      gelu + "forward" + as("x", "odd") + as("y", "out") + as("mask", "m"),
      gelu + "forward" + option("x") + as("y", "out") + as("mask", "out"),
      gelu + "forward" + option("x") + as("y", "no/folder/out") + as("mask", "m"),
      gelu + "forward" + option("x") + as("y", "out") + as("mask", "no/folder/m"),
      gelu + "forward" + option("x") + as("y", "out"),
      gelu + "forward" + option("x") + as("y", "out") + as("mask", "m") + " --rows 3",
      backward + as("dy", "short") + option("y") + option("mask"),
      backward + option("dy") + option("y") + as("mask", "long_mask"),
      backward + option("dy") + as("y", "odd") + option("mask"),
      norm + "forward" + as("x", "short") + as("y", "out") + as("rstd", "m"),
      norm + "forward --eps -1" + option("x") + as("y", "out") + as("rstd", "m"),
      norm + "forward" + option("x") + as("gamma", "x") + as("y", "out") + as("rstd", "m"),
      norm + "backward" + option("dy") + option("y") + as("gamma", "zero") + as("rstd", "ones") + option("dx"),
      "eval --format f32 --rows 1099511627776 --cols 1099511627776 --op layernorm_forward" + option("x") + as("y", "out") + as("rstd", "m"),
      "eval --format f32 --rows -1 --cols 8 --op layernorm_forward" + option("x") + as("y", "out") + as("rstd", "m"),
      "nonsense",
      "bench --format f8",
      "tune --kernel softmax",
      "tune --device sm_90",
      "tune --device replay:x",
      "tune --budget 0"};
  for (const std::string& command : commands) {
    const Outcome outcome = tune(command);
    EXPECT_EQ(outcome.status, 2) << command << "\n" << outcome.output;
    EXPECT_TRUE(is_one_line(outcome.output)) << command << "\n" << outcome.output;
    for (const char* name : {"out", "m", "dx"}) EXPECT_FALSE(std::filesystem::exists(folder_ / name)) << command;
  }
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_.path())) ++files;
  EXPECT_EQ(files, 9u) << "a temporary file was left behind";
}

TEST_F(Eval, AFullDiskAndAMissingDriverAreTheEnvironments) {
  write("x", std::vector<float>(64));
  const std::string forward = "eval --op forward --activation gelu --format f32" + option("x") + option("mask");
  if (std::filesystem::exists("/dev/full")) {
    const Outcome full = tune(forward + " --y /dev/full");
    EXPECT_EQ(full.status, 3) << full.output;
    EXPECT_TRUE(is_one_line(full.output)) << full.output;
    EXPECT_FALSE(std::filesystem::exists(folder_ / "mask"));
  }
  const Outcome cuda = tune(forward + option("y") + " --device cuda:0");
  EXPECT_TRUE(is_one_line(cuda.output)) << cuda.output;
  EXPECT_TRUE(cuda.status == 3 || cuda.status == 2) << cuda.output;  // 2: there is a driver, but not this backend
}

}  // namespace
}  // namespace outgrad::autotune
