// Options: what is refused, and that the refusal names the option.
#include "autotune/options.h"

#include <gtest/gtest.h>

#include <functional>
#include <utility>

namespace outgrad::autotune {
namespace {

Options parse(const std::vector<std::string>& args) { return Options("tune", args, {"seed", "format", "budget", "device", "shape"}, {"json"}, {"merge"}); }

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

TEST(Options, ReadsListsUpToTheNextOption) {
  const Options options = parse({"--merge", "a", "b", "--json", "--seed", "1"});
  EXPECT_EQ(options.words("merge"), (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(options.has("merge") && options.has("json"));
  EXPECT_EQ(parse({"--merge=a", "b"}).words("merge"), (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(parse({}).words("merge").empty());
}

TEST(Options, ReadsWordsBetweenCommasInTheOrderOfTheCatalogue) {
  const std::vector<std::string> all = {"all", "f32", "f16", "bf16"};
  const auto formats = [&](const std::string& text) { return parse({"--format", text}).several_of("format", all); };
  EXPECT_EQ(formats("bf16,f32"), (std::vector<std::string>{"f32", "bf16"}));
  EXPECT_EQ(formats("all"), (std::vector<std::string>{"f32", "f16", "bf16"}));
  EXPECT_EQ(parse({}).several_of("format", all).size(), 3u);
  for (const char* text : {"", ",", "f32,", "f32,all", "f8", "f32,f32"})
    EXPECT_NE(refusal([&] { formats(text); }).find("tune: --format: "), std::string::npos) << text;
}

TEST(Options, ReadsShapes) {
  const std::vector<Shape> shapes = parse({"--shape", "4096x1024,7x3"}).shapes("shape");
  ASSERT_EQ(shapes.size(), 2u);
  EXPECT_EQ(shapes[0].rows * 10'000 + shapes[0].cols, 40961024);
  EXPECT_EQ(shapes[1].rows * 10'000 + shapes[1].cols, 70003);
  for (const char* shape : {"", "4", "4x", "x4", "4x4x4", "4x4,", "0x1", "-1x-1", "65536x65537", "9999999999999999999x1"})
    EXPECT_NE(refusal([&] { parse({"--shape", shape}).shapes("shape"); }).find("tune: --shape: "), std::string::npos) << shape;
}

TEST(Options, RefusalsNameTheOption) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> refusals = {
      {{"--sed", "1"}, "--sed: unknown option"},           {{"--sed=1"}, "--sed: unknown option"},
      {{"--seed"}, "--seed: 1 required VALUE missing"},    {{"--seed="}, "--seed: 1 required VALUE missing"},
      {{"--merge"}, "--merge: 1 required VALUE missing"},  {{"--seed", "1", "--seed", "2"}, "--seed: given twice"},
      {{"--json", "--json"}, "--json: given twice"},       {{"--merge", "a", "--merge", "b"}, "--merge: given twice"},
      {{"stray"}, "stray: unexpected argument"},           {{"-s", "1"}, "-s: unexpected argument"},
      {{"--json", "stray"}, "stray: unexpected argument"}, {{"--json=1"}, "json was given a disallowed flag override"},
  };
  for (const auto& [args, expected] : refusals) EXPECT_EQ(refusal([&] { parse(args); }), "tune: " + expected);
  for (const char* seed : {"", "x", "1x", "1.5", "-1", "101", "99999999999999999999", " 1"})
    EXPECT_NE(refusal([&] { parse({"--seed", seed}).integer("seed", 0, 0, 100); }).find("tune: --seed: "), std::string::npos) << seed;
  for (const char* budget : {"nan", "inf", "-1", "1e9", "1,5"})
    EXPECT_NE(refusal([&] { parse({"--budget", budget}).number("budget", 0, 0, 10); }).find("tune: --budget: "), std::string::npos) << budget;
  EXPECT_NE(refusal([&] { parse({"--format", "f64"}).one_of("format", {"all", "bf16"}); }).find("tune: --format: f64 not in {all,bf16}"), std::string::npos);
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
