// Options: what is refused, and that the refusal names the option.
#include "autotune/options.h"

#include <gtest/gtest.h>

namespace outgrad::autotune {
namespace {

Options parse(const std::vector<std::string>& args) { return Options("tune", args, {"seed", "format", "budget", "device"}, {"json"}); }

std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const kernels::SpecError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Options, ReadsValuesInBothForms) {
  const Options options = parse({"--seed", "12", "--format=bf16", "--json", "--budget", "1.5"});
  EXPECT_EQ(options.integer("seed", 0, 0, 100), 12);
  EXPECT_EQ(options.one_of("format", {"all", "bf16"}), "bf16");
  EXPECT_EQ(options.number("budget", 0, 0, 10), 1.5);
  EXPECT_TRUE(options.has("json"));
  EXPECT_EQ(parse({}).one_of("format", {"all", "bf16"}), "all");
}

TEST(Options, RefusalsNameTheOption) {
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{"--sed", "1"}, {"--seed"}, {"--seed", "1", "--seed", "2"}, {"stray"}, {"--json=1"}}) {
    const std::string message = refusal([&] { parse(args); });
    EXPECT_EQ(message.rfind("tune: ", 0), 0u) << message;
    EXPECT_NE(message.find(args.front().substr(0, args.front().find('='))), std::string::npos) << message;
  }
  for (const char* seed : {"", "x", "1x", "1.5", "-1", "101", "99999999999999999999", " 1"})
    EXPECT_NE(refusal([&] { parse({"--seed", seed}).integer("seed", 0, 0, 100); }).find("tune: --seed: "), std::string::npos) << seed;
  for (const char* budget : {"nan", "inf", "-1", "1e9", "1,5"})
    EXPECT_NE(refusal([&] { parse({"--budget", budget}).number("budget", 0, 0, 10); }).find("tune: --budget: "), std::string::npos) << budget;
  EXPECT_NE(refusal([&] { parse({"--format", "f64"}).one_of("format", {"all", "bf16"}); }).find("'f64'"), std::string::npos);
}

TEST(Device, OnlyWhatThisBuildHasIsAccepted) {
  EXPECT_NO_THROW(require_cpu_device(parse({})));
  EXPECT_NO_THROW(require_cpu_device(parse({"--device", "cpu"})));
  EXPECT_NO_THROW(require_cpu_device(parse({"--device", "auto"})));
  for (const char* device : {"gpu", "cuda:", "cuda:x", "cuda:-1"})
    EXPECT_NE(refusal([&] { require_cpu_device(parse({"--device", device})); }), "accepted") << device;
  EXPECT_NE(refusal([&] { require_cpu_device(parse({"--device", "sm_90"})); }).find("is for tune"), std::string::npos);
  EXPECT_NE(refusal([&] { require_cpu_device(parse({"--device", "replay:cache.json"})); }).find("of tune alone"), std::string::npos);
}

TEST(Device, CudaWithoutADriverIsTheEnvironmentsFault) {
  try {
    require_cpu_device(parse({"--device", "cuda:0"}));
    FAIL() << "cuda:0 accepted";
  } catch (const kernels::CudaError& error) {
    EXPECT_NE(std::string(error.what()).find("libcuda"), std::string::npos);
  } catch (const kernels::SpecError&) {
    GTEST_SKIP() << "this machine has an NVIDIA driver";
  }
}

}  // namespace
}  // namespace outgrad::autotune
