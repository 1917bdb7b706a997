// The transformer's backward pass against differences of its loss, the ways to GELU's and LayerNorm's gradient against each other, and training as a
// whole: the same bits on any number of threads, paired runs that differ by their gradients alone, the file it writes.

#include "validation/training/training.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "kernels/host/api.h"
#include "kernels/support/errors.h"
#include "kernels/support/files.h"
#include "kernels/support/random.h"
#include "tests/validation/command_fixture.h"
#include "validation/exact/oracle.h"
#include "validation/training/text.h"
#include "validation/training/train_command.h"

namespace outgrad::validation {
namespace {

using kernels::i64;

constexpr ModelShape kTiny{.vocabulary = 7, .context = 6, .width = 8, .heads = 2, .layers = 2, .hidden = 12};
constexpr i64 kWindows = 3;

GradientWay foreign_of(const std::string& name) {
  const std::string file = std::string(OUTGRAD_SOURCE_DIR) + "/notebooks_data/foreign/" + name + ".json";
  return foreign_way(parse_foreign(kernels::read_file(file), file));
}

std::vector<GradientWay> all_ways() {
  std::vector<GradientWay> ways;
  for (const char* name : {"exact", "input_f32", "ours"}) ways.push_back(*built_in_way(name));
  for (const char* name : {"tempo_gelu", "tempo_gelu_centred", "regelu2"}) ways.push_back(foreign_of(name));
  return ways;
}

/// A tiny model's tokens and parameters; gamma and beta are moved off 1 and 0, where errors in them could hide.
struct TinyProblem {
  std::vector<std::uint8_t> tokens, targets;
  std::vector<float> parameters = initial_parameters(kTiny, 3);

  TinyProblem() {
    kernels::Random random(4);
    for (i64 i = 0; i < kWindows * kTiny.context; ++i) {
      tokens.push_back(static_cast<std::uint8_t>(random.below(static_cast<std::size_t>(kTiny.vocabulary))));
      targets.push_back(static_cast<std::uint8_t>(random.below(static_cast<std::size_t>(kTiny.vocabulary))));
    }
    for (const ParameterTensor& tensor : parameter_tensors(kTiny)) {
      if (tensor.name.find("norm") == std::string::npos) continue;
      for (i64 i = 0; i < tensor.rows * tensor.columns; ++i) {
        parameters[static_cast<std::size_t>(tensor.offset + i)] += static_cast<float>(0.4 * random.uniform() - 0.2);
      }
    }
  }

  template <class T>
  Buffer<typename Model<T>::Scalar> gradient(const GradientWay& way) const {
    using Scalar = typename Model<T>::Scalar;
    const std::vector<Scalar> at(parameters.begin(), parameters.end());
    Model<T> model(kTiny, kWindows);
    model.forward(at.data(), tokens, targets);
    Buffer<Scalar> result(static_cast<i64>(at.size()));
    model.backward(at.data(), PreparedWay<T>(way), result.data());
    return result;
  }
};

template <class A, class B>
double relative_distance(const A& a, const B& b) {
  double difference = 0, norm = 0;
  for (i64 i = 0; i < b.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    difference += d * d;
    norm += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return std::sqrt(difference / norm);
}

TEST(TrainingModel, BackwardIsTheDerivativeOfTheLossInEveryTensor) {
  const TinyProblem problem;
  std::vector<double> parameters(problem.parameters.begin(), problem.parameters.end());
  Model<double> model(kTiny, kWindows);
  const auto loss = [&] { return model.forward(parameters.data(), problem.tokens, problem.targets); };
  loss();
  Buffer<double> gradient(static_cast<i64>(parameters.size()));
  model.backward(parameters.data(), PreparedWay<double>(*built_in_way("exact")), gradient.data());
  // Five points: the truncation is h^4 f'''''/30, the rounding 1e-16 / h.
  constexpr double kStep = 1e-3;
  for (const ParameterTensor& tensor : parameter_tensors(kTiny)) {
    double largest = 0, worst = 0;
    for (i64 i = tensor.offset; i < tensor.offset + tensor.rows * tensor.columns; ++i) {
      double& p = parameters[static_cast<std::size_t>(i)];
      const double at = p;
      const auto shifted = [&](double by) {
        p = at + by;
        return loss();
      };
      const double far = shifted(2 * kStep) - shifted(-2 * kStep), near = shifted(kStep) - shifted(-kStep);
      p = at;
      worst = std::max(worst, std::abs((8 * near - far) / (12 * kStep) - gradient[i]));
      largest = std::max(largest, std::abs(gradient[i]));
    }
    EXPECT_LT(worst, 2e-10) << tensor.name;
    EXPECT_GT(largest, 1e-4) << tensor.name << " has no gradient to speak of: nothing was compared";
  }
}

TEST(TrainingModel, ExactWayIsTheReferenceUpToRounding) {
  const TinyProblem problem;
  const GradientWay exact = *built_in_way("exact");
  const Buffer<double> reference = problem.gradient<double>(exact);
  EXPECT_LT(relative_distance(problem.gradient<float>(exact), reference), 1e-6);
  EXPECT_LT(relative_distance(problem.gradient<kernels::F16>(exact), reference), 5e-3);   // 2^-11 at every rounding
  EXPECT_LT(relative_distance(problem.gradient<kernels::BF16>(exact), reference), 4e-2);  // 2^-8
}

TEST(TrainingModel, OursIsTheExactWayUpToWhatStorageCosts) {
  const TinyProblem problem;
  const GradientWay exact = *built_in_way("exact"), ours = *built_in_way("ours");
  EXPECT_LT(relative_distance(problem.gradient<float>(ours), problem.gradient<float>(exact)), 2e-6);
  EXPECT_LT(relative_distance(problem.gradient<kernels::F16>(ours), problem.gradient<kernels::F16>(exact)), 2e-3);
  EXPECT_LT(relative_distance(problem.gradient<kernels::BF16>(ours), problem.gradient<kernels::BF16>(exact)), 1e-2);
  // And the published coefficients are not.
  EXPECT_GT(relative_distance(problem.gradient<float>(foreign_of("regelu2")), problem.gradient<float>(exact)), 1e-2);
}

TEST(TrainingModel, ChannelWithoutGammaGoesThroughTheSideBuffer) {
  TinyProblem problem;
  for (const ParameterTensor& tensor : parameter_tensors(kTiny)) {
    if (tensor.name == "block0.norm2.gamma") problem.parameters[static_cast<std::size_t>(tensor.offset + 2)] = 0;
  }
  Model<float> model(kTiny, kWindows);
  model.forward(problem.parameters.data(), problem.tokens, problem.targets);
  EXPECT_EQ(model.side_channels(), 1);
  EXPECT_LT(relative_distance(problem.gradient<float>(*built_in_way("ours")), problem.gradient<double>(*built_in_way("exact"))), 2e-6);
}

TEST(TrainingWays, DerivativeByFormulaAgreesWithMpfr) {
  GeluOracle oracle;
  std::mt19937 random(5);
  std::uniform_real_distribution<float> within(-15, 15);
  std::vector<float> x{0.0f, -0.0f, -0.7517916f, 1e-30f, -1e-30f, 1e30f, -1e30f};
  for (int i = 0; i < 5000; ++i) x.push_back(within(random));
  for (const float v : x) ASSERT_NEAR(gelu_derivative(static_cast<double>(v)), oracle.derivative(static_cast<double>(v)), 0x1p-50) << v;
  EXPECT_EQ(gelu_derivative(HUGE_VAL), 1);
  EXPECT_EQ(gelu_derivative(-HUGE_VAL), 0);
  EXPECT_TRUE(std::isnan(gelu_derivative(std::numeric_limits<double>::quiet_NaN())));
}

/// dx at dy = 1 of one x in every way.
template <class T>
std::vector<float> derivatives_at(float at) {
  const T x = kernels::narrow<T>(at), one = kernels::narrow<T>(1.0f);
  T y, dx;
  kernels::u32 mask = 0;
  kernels::gelu_forward<T>(&x, &y, &mask, 1);
  std::vector<float> found;
  for (const GradientWay& way : all_ways()) {
    PreparedWay<T>(way).gelu(&one, &x, &y, &mask, &dx, 1);
    found.push_back(kernels::widen(dx));
  }
  return found;
}

TEST(TrainingWays, EachIsWhatItsNameSays) {
  // At x = 2.5 Tempo's piece is wrong by its sign, and with the sign put right it is not; ReGELU2 has the middle step.
  for (const auto& [found, tolerance] : {std::pair{derivatives_at<float>(2.5f), 4e-5}, std::pair{derivatives_at<kernels::BF16>(2.5f), 1e-2}}) {
    const double exact = gelu_derivative(2.5);
    for (int way = 0; way < 3; ++way) EXPECT_NEAR(found[static_cast<std::size_t>(way)], exact, tolerance);
    EXPECT_GT(std::abs(static_cast<double>(found[3]) - exact), 0.1);
    EXPECT_NEAR(found[4], exact, tolerance);
    EXPECT_NEAR(found[5], 1.0979632065417297 - 0.04922261145617846, tolerance);
  }
  // x between Tempo's minimum and the true one would differ in the mask alone; far off on either side all masks agree.
  const std::vector<float> left = derivatives_at<float>(-1.5f);
  EXPECT_NEAR(left[3], gelu_derivative(-1.5), 0.03);
  EXPECT_LT(left[3], 0);
}

TEST(TrainingWays, NotANumberPassesThrough) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const int way : {0, 1, 2}) {
    EXPECT_TRUE(std::isnan(derivatives_at<float>(nan)[static_cast<std::size_t>(way)])) << way;
    EXPECT_TRUE(std::isnan(derivatives_at<kernels::F16>(nan)[static_cast<std::size_t>(way)])) << way;
  }
}

TEST(TrainingText, IsTheSameForASeedAndKeepsItsRules) {
  const std::vector<std::uint8_t> text = made_up_text(20'000, 1);
  EXPECT_EQ(text, made_up_text(20'000, 1));
  EXPECT_NE(text, made_up_text(20'000, 2));
  std::string characters;
  for (const std::uint8_t symbol : text) characters += text_character(symbol);
  // Brackets nest within a sentence, at most two deep.
  int depth = 0, deepest = 0;
  for (const char c : characters) {
    depth += c == '(' ? 1 : c == ')' ? -1 : 0;
    deepest = std::max(deepest, depth);
    ASSERT_GE(depth, 0);
    if (c == '.') {
      ASSERT_EQ(depth, 0);
    }
  }
  EXPECT_EQ(deepest, 2);
  // The names that end a paragraph open it, in that order.
  std::size_t begin = 0;
  int paragraphs = 0;
  for (std::size_t end; (end = characters.find('\n', begin)) != std::string::npos; begin = end + 1, ++paragraphs) {
    const std::string paragraph = characters.substr(begin, end - begin);
    const std::size_t last = paragraph.rfind(". ") + 2, comma = paragraph.find(", ", last);
    ASSERT_NE(comma, std::string::npos);
    const std::string first = paragraph.substr(last, comma - last), second = paragraph.substr(comma + 2, paragraph.size() - comma - 3);
    EXPECT_EQ(paragraph.find(first + ' '), 0u);
    EXPECT_LT(paragraph.find(second), paragraph.find('.'));
  }
  EXPECT_GT(paragraphs, 50);
}

TrainingOptions small_options() {
  TrainingOptions options;
  options.shape = {.vocabulary = kTextSymbols, .context = 16, .width = 16, .heads = 2, .layers = 1, .hidden = 32};
  options.formats = {"f32", "bf16"};
  options.ways = all_ways();
  options.seeds = 2;
  options.steps = 40;
  options.batch = 4;
  options.warmup = 5;
  options.probes = 2;
  options.training_symbols = 1 << 14;
  options.validation_symbols = 1 << 11;
  options.threads = 1;
  return options;
}

TEST(Training, TheSameOnAnyNumberOfThreads) {
  TrainingOptions options = small_options();
  const std::string one = to_json(options, train(options), "").dump();
  options.threads = 3;
  EXPECT_EQ(to_json(options, train(options), "").dump(), one);
}

TEST(Training, PairsDifferByTheirGradientsAlone) {
  const TrainingOptions options = small_options();
  const TrainingResult result = train(options);
  ASSERT_EQ(result.runs.size(), 2 * 2 * options.ways.size());
  for (std::size_t k = 0; k < result.runs.size(); ++k) {
    const TrainingRun& run = result.runs[k];
    const TrainingRun& exact = result.runs[k / options.ways.size() * options.ways.size()];
    ASSERT_EQ(exact.way, "exact");
    EXPECT_EQ(run.diverged_at, 0);
    EXPECT_EQ(run.first_loss, exact.first_loss) << run.way;  // to the bit: the forward pass is the same
    ASSERT_EQ(run.loss.size(), 4u);
    EXPECT_LT(run.loss.back(), run.loss.front() - 0.3) << run.way;
    EXPECT_LT(run.validation_loss, run.first_loss);
    if (run.way == "regelu2") {
      EXPECT_NE(run.validation_loss, exact.validation_loss);
    }
  }
  EXPECT_NE(result.runs[0].first_loss, result.runs[options.ways.size()].first_loss) << "another seed, other weights";
  ASSERT_EQ(result.probes.size(), 2u * 2 * 2);
  for (const TrainingProbe& probe : result.probes) {
    EXPECT_TRUE(probe.step == 1 || probe.step == options.steps);
    ASSERT_EQ(probe.ways.size(), options.ways.size() - 1);
    EXPECT_GT(probe.other_batch, 0.1);
    EXPECT_GT(probe.deviation, 0.3);
    EXPECT_GT(probe.in_tempo_piece, 0);
    const ProbedWay &ours = probe.ways[1], &regelu2 = probe.ways[4];
    EXPECT_LT(ours.relative_l2, probe.format == "f32" ? 1e-5 : 1e-2);
    EXPECT_GT(regelu2.relative_l2, 10 * ours.relative_l2);
    EXPECT_NEAR(regelu2.gelu.max, 0.55, 0.01);
    EXPECT_EQ(ours.gelu.above[0] > 0, probe.format == "bf16" && ours.gelu.max > kGeluErrorSteps[0]);
  }
}

TEST(Training, DivergenceIsRecorded) {
  TrainingOptions options = small_options();
  options.formats = {"f16"};
  options.ways.resize(3);
  options.seeds = 1;
  options.optimiser = Optimiser::sgd;
  options.learning_rate = 1e30;
  const TrainingResult result = train(options);
  for (const TrainingRun& run : result.runs) {
    EXPECT_GT(run.diverged_at, 1) << run.way;
    EXPECT_TRUE(std::isnan(run.validation_loss));
    EXPECT_EQ(run.loss.size(), 4u);
    EXPECT_TRUE(std::isnan(run.loss.back()));
  }
  const auto json = to_json(options, result, "");
  EXPECT_TRUE(json["runs"][0]["validation_loss"].is_null());
  EXPECT_EQ(json["summary"][0]["diverged"], 1);
  EXPECT_EQ(json["summary"][0]["n"], 0);
  EXPECT_TRUE(json["summary"][1]["difference"].is_null());
}

TEST(Training, IntervalOfPairedDifferencesIsStudents) {
  EXPECT_FALSE(paired_difference({1.0}));
  // Mean 3, standard deviation sqrt(2.5), n = 5: t(0.975, 4) = 2.776445.
  const auto found = paired_difference({1, 2, 3, 4, 5});
  ASSERT_TRUE(found);
  EXPECT_DOUBLE_EQ(found->mean, 3);
  EXPECT_NEAR(found->high - found->mean, 2.776445 * std::sqrt(2.5 / 5), 1e-6);
  EXPECT_NEAR(found->low + found->high, 6, 1e-12);
}

class TrainCommand : public CommandTest {
 protected:
  TrainCommand() : CommandTest("train", add_train) {}
};

TEST_F(TrainCommand, RefusesBadInput) {
  using kernels::SpecError;
  const auto refused = [this](const std::vector<std::string>& arguments, const std::string& place) {
    try {
      run(arguments);
      ADD_FAILURE() << place << " was taken";
    } catch (const SpecError& error) {
      const std::string why = error.what();
      EXPECT_NE(why.find(place), std::string::npos) << why;
      EXPECT_EQ(why.find('\n'), std::string::npos);
    }
  };
  refused({"--steps", "0"}, "--steps");
  refused({"--steps", "-3"}, "--steps");
  refused({"--seeds", "0"}, "--seeds");
  refused({"--batch", "0"}, "--batch");
  refused({"--threads", "-1"}, "--threads");
  refused({"--formats", "f32,f64"}, "--formats");
  refused({"--formats", "f32,f32"}, "--formats");
  refused({"--ways", "ours,apex"}, "--ways");
  refused({"--ways", "ours,ours"}, "--ways");
  refused({"--ways", "resilu2"}, "activation");
  refused({"--optimiser", "lion"}, "--optimiser");
  refused({"--learning-rate", "0"}, "--learning-rate");
  refused({"--learning-rate", "nan"}, "--learning-rate");
  EXPECT_THROW(run({"--steps", "many"}), CLI::ParseError);
  EXPECT_THROW(run({"--ways", file("absent.json")}), kernels::IoError);
  EXPECT_THROW(run({"--out", "/dev/null/folder.json"}), kernels::IoError);
  kernels::write_file(file("torn.json"), "{\"schema\"");
  EXPECT_THROW(run({"--ways", file("torn.json")}), SpecError);
}

TEST_F(TrainCommand, WritesItsSchema) {
  EXPECT_EQ(run({"--formats", "bf16", "--ways", "tempo_gelu", "--seeds", "2", "--steps", "10", "--batch", "1", "--out", file("out.json")}),
            kernels::kExitHolds);
  const auto json = nlohmann::json::parse(kernels::read_file(file("out.json")));
  EXPECT_EQ(json["schema"], kTrainingSchema);
  EXPECT_EQ(json["command"], "./outgrad train --formats bf16 --ways exact,tempo_gelu --seeds 2 --steps 10 --batch 1");
  EXPECT_EQ(json["configuration"]["ways"], (std::vector<std::string>{"exact", "tempo_gelu"}));
  EXPECT_EQ(json["configuration"]["model"]["parameters"], parameter_count({}));
  EXPECT_EQ(json["loss_steps"], (std::vector<int>{10}));
  ASSERT_EQ(json["runs"].size(), 4u);
  for (const auto& run : json["runs"]) {
    EXPECT_EQ(run["loss"].size(), 1u);
    EXPECT_TRUE(run["diverged_at"].is_null());
  }
  ASSERT_EQ(json["probes"].size(), 2 * json["configuration"]["probe_steps"].size());
  EXPECT_EQ(json["probes"][0]["ways"][0]["way"], "tempo_gelu");
  EXPECT_EQ(json["probes"][0]["ways"][0]["gelu_error"]["above"].size(), 3u);
  ASSERT_EQ(json["summary"].size(), 2u);
  EXPECT_TRUE(json["summary"][0]["difference"].is_null());
  EXPECT_EQ(json["summary"][1]["difference"]["n"], 2);
  EXPECT_EQ(json["ways"][1]["source"]["repository"], "https://github.com/UofT-EcoSystem/Tempo");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1) << "no temporary is left";
}

}  // namespace
}  // namespace outgrad::validation
