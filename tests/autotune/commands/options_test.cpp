// Options: what is read, what is refused, and that the refusal names the option.
#include "autotune/commands/options.h"

#include <gtest/gtest.h>

#include <utility>

#include "tests/refusal.h"

namespace outgrad::autotune {
namespace {

struct Read {
  std::uint64_t seed = kSeed;
  std::optional<double> budget{};
  std::vector<FormatId> formats{};
  std::vector<Shape> shapes{};
  std::string device = "cpu", strategy = "model";
  Accuracy accuracy = Accuracy::kAsDefault;
  Words merge{};
  bool json = false;
};

Read parse(const Words& words) {
  static constexpr std::string_view kAll[] = {"--seed", "--passes"};
  Read read;
  read_options({"tune", "a test", kAll}, words, [&](CLI::App& app) {
    add_number<std::int64_t>(app, "--seed", read.seed, 0, 100);
    add_number<double>(app, "--budget", read.budget, 0, 10);
    add_formats(app, read.formats);
    add_shapes(app, read.shapes);
    add_text(app, "--device", read.device);
    add_choice(app, "--strategy", read.strategy, {"model", "random"});
    add_accuracy(app, read.accuracy);
    add_list(app, "--merge", read.merge);
    add_flag(app, "--json", read.json);
  });
  return read;
}

TEST(Options, ReadsValuesInBothForms) {
  const Read read = parse({"--seed", "12", "--format=bf16", "--json", "--budget", "1.5", "--accuracy", "any",
                           "--strategy=random"});
  EXPECT_EQ(read.seed, 12u);
  EXPECT_EQ(read.formats, std::vector<FormatId>{FormatId::kBf16});
  EXPECT_EQ(read.budget, 1.5);
  EXPECT_EQ(read.accuracy, Accuracy::kAny);
  EXPECT_EQ(read.strategy, "random");
  EXPECT_TRUE(read.json);
  const Read nothing = parse({});
  EXPECT_EQ(nothing.seed, kSeed);
  EXPECT_FALSE(nothing.budget || nothing.json);
  EXPECT_EQ(parse({"--seed", "010"}).seed, 10u);
}

TEST(Options, ReadsListsUpToTheNextOption) {
  const Read read = parse({"--merge", "a", "b", "--json", "--seed", "1"});
  EXPECT_EQ(read.merge, (Words{"a", "b"}));
  EXPECT_TRUE(read.json);
  EXPECT_EQ(parse({"--merge=a", "b"}).merge, (Words{"a", "b"}));
  EXPECT_TRUE(parse({}).merge.empty());
}

TEST(Options, ReadsWordsBetweenCommasInTheOrderOfTheCatalogue) {
  const auto formats = [&](const std::string& text) { return parse({"--format", text}).formats; };
  EXPECT_EQ(formats("bf16,f32"), (std::vector<FormatId>{FormatId::kF32, FormatId::kBf16}));
  EXPECT_EQ(formats("all").size(), 3u);
  for (const char* text : {"", ",", "f32,", "f32,all", "f8", "f32,f32"})
    EXPECT_NE(refusal_of([&] { formats(text); }).find("tune: --format: "), std::string::npos) << text;
}

TEST(Options, ReadsShapes) {
  const std::vector<Shape> shapes = parse({"--shape", "4096x1024,7x3"}).shapes;
  ASSERT_EQ(shapes.size(), 2u);
  EXPECT_EQ(shapes[0].rows * 10'000 + shapes[0].cols, 40961024);
  EXPECT_EQ(shapes[1].rows * 10'000 + shapes[1].cols, 70003);
  for (const char* shape :
       {"", "4", "4x", "x4", "4x4x4", "4x4,", "0x1", "-1x-1", "65536x65537", "9999999999999999999x1"})
    EXPECT_NE(refusal_of([&] { parse({"--shape", shape}); }).find("tune: --shape: "), std::string::npos)
        << shape;
}

TEST(Options, RefusalsNameTheOption) {
  const std::vector<std::pair<Words, std::string>> refusals = {
      {{"--sed", "1"}, "--sed: unknown option; did you mean '--seed'?"},
      {{"--sed=1"}, "--sed: unknown option; did you mean '--seed'?"},
      {{"--passes", "1"}, "--passes: does not go with a test"},
      {{"--seed"}, "--seed: 1 required VALUE missing"},
      {{"--seed="}, "--seed: 1 required VALUE missing"},
      {{"--merge"}, "--merge: 1 required VALUE missing"},
      {{"--seed", "1", "--seed", "2"}, "--seed: given twice"},
      {{"--json", "--json"}, "--json: given twice"},
      {{"--merge", "a", "--merge", "b"}, "--merge: given twice"},
      {{"stray"}, "stray: unexpected argument"},
      {{"-s", "1"}, "-s: unexpected argument"},
      {{"--json", "stray"}, "stray: unexpected argument"},
      {{"--json=1"}, "json was given a disallowed flag override"},
  };
  for (const auto& [words, expected] : refusals)
    EXPECT_EQ(refusal_of([&] { parse(words); }), "tune: " + expected);
  for (const char* seed : {"", "x", "1x", "1.5", "-1", "101", "99999999999999999999", " 1"})
    EXPECT_NE(refusal_of([&] { parse({"--seed", seed}); }).find("tune: --seed: "), std::string::npos) << seed;
  for (const char* budget : {"nan", "inf", "-1", "1e9", "1,5"})
    EXPECT_NE(refusal_of([&] { parse({"--budget", budget}); }).find("tune: --budget: "), std::string::npos)
        << budget;
  EXPECT_EQ(refusal_of([&] { parse({"--strategy", "tabu"}); }),
            "tune: --strategy: tabu not in {model,random}");
}

TEST(Given, FindsTheValueInBothForms) {
  EXPECT_EQ(given({"--device", "sm_90", "--json"}, "--device"), "sm_90");
  EXPECT_EQ(given({"--json", "--device=replay:a=b"}, "--device"), "replay:a=b");
  EXPECT_EQ(given({"--json", "--device"}, "--json"), "");
  EXPECT_EQ(given({"--json", "--device"}, "--device"), "");
  EXPECT_EQ(given({"--devices", "x", "device"}, "--device"), std::nullopt);
}

TEST(Device, OnlyWhatThisBuildHasIsAccepted) {
  EXPECT_NO_THROW(require_cpu_device("tune", "cpu"));
  EXPECT_NO_THROW(require_cpu_device("tune", "auto"));
  for (const char* device : {"gpu", "cuda:", "cuda:x", "cuda:-1"})
    EXPECT_NE(refusal_of([&] { require_cpu_device("tune", device); }).find("tune: --device: "),
              std::string::npos)
        << device;
  EXPECT_NE(refusal_of([&] { require_cpu_device("bench", "sm_90"); }).find("is for tune"), std::string::npos);
  EXPECT_NE(refusal_of([&] { require_cpu_device("eval", "replay:cache.json"); }).find("of tune alone"),
            std::string::npos);
}

TEST(Device, CudaWithoutADriverIsTheEnvironmentsFault) {
  try {
    require_cpu_device("tune", "cuda:0");
    FAIL() << "cuda:0 accepted";
  } catch (const kernels::CudaError& error) {
    EXPECT_NE(std::string(error.what()).find("libcuda"), std::string::npos);
  } catch (const kernels::SpecError&) {
    GTEST_SKIP() << "this machine has an NVIDIA driver";
  }
}

std::vector<std::string> asked(const Words& words) {
  ProblemChoice choice;
  read_options({"tune", "a test"}, words, [&](CLI::App& app) { add_problems(app, choice); });
  std::vector<std::string> names;
  for (const Problem& problem : problems_of("tune", choice)) names.push_back(problem.sized_name());
  return names;
}

TEST(ProblemsOf, ExpandsKernelsFormatsAndShapes) {
  EXPECT_EQ(asked({}).size(), 14u * 3);
  EXPECT_EQ(asked({"--kernel", "layernorm_backward", "--format", "bf16", "--shape", "4096x1024,7x3"}),
            (std::vector<std::string>{"layernorm_backward.bf16.4096x1024", "layernorm_backward.bf16.7x3"}));
  EXPECT_EQ(asked({"--kernel", "gelu_forward", "--format", "f32", "--elements", "4096"}),
            (std::vector<std::string>{"gelu_forward.f32.4096"}));
  // A shape is for the kernels that have rows, a number of elements for the others.
  const std::vector<std::string> both = asked({"--format", "f16", "--shape", "8x16", "--elements", "4096"});
  EXPECT_EQ(both.size(), 14u);
  EXPECT_EQ(both[0], "gelu_backward.f16.4096");
  EXPECT_EQ(both[2], "bias_gelu_backward.f16.8x16");
  EXPECT_EQ(asked({"--kernel", "rmsnorm_forward", "--format", "f16", "--elements", "4096"}),
            (std::vector<std::string>{"rmsnorm_forward.f16.4x1024"}));
}

TEST(ProblemsOf, RefusesWhatIsNoShape) {
  for (const char* shape : {"", "4096", "4096x", "x1024", "0x4", "4x0", "-1x4", "4x4,", "4x4x4", "4096X1024",
                            "1.5x2", "65537x65536", " 4x4"}) {
    const std::vector<std::string> args = {"--kernel", "layernorm_backward", std::string("--shape=") + shape};
    try {
      asked(args);
      ADD_FAILURE() << "'" << shape << "' accepted";
    } catch (const kernels::SpecError& error) {
      EXPECT_EQ(std::string(error.what()).find("tune: --shape: "), 0u) << error.what();
    }
  }
  EXPECT_THROW(asked({"--kernel", "gelu_forward", "--shape", "4x4"}), kernels::SpecError);
  EXPECT_THROW(asked({"--kernel", "softmax"}), kernels::SpecError);
}

}  // namespace
}  // namespace outgrad::autotune
