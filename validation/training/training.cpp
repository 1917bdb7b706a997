// Runs, probes and their summary, see training.h.
#include "validation/training/training.h"

#include <fmt/format.h>
#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <chrono>
#include <cmath>
#include <iterator>
#include <limits>
#include <mutex>
#include <numbers>
#include <tuple>
#include <utility>

#include "kernels/formats.h"
#include "kernels/support/parallel.h"
#include "kernels/support/random.h"
#include "validation/training/text.h"

namespace outgrad::validation {

using kernels::i64;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
// Seeds of streams: a run's batches have its seed times kBatchStream and their step added, its weights the seed alone; the texts are the same in all runs.
constexpr std::uint64_t kBatchStream = std::uint64_t{1} << 32, kTrainingText = std::uint64_t{1} << 63, kValidationText = kTrainingText + 1;

struct Texts {
  std::vector<std::uint8_t> training, validation;
};

/// Windows of a text, and what follows each of their tokens.
struct Batch {
  std::vector<std::uint8_t> tokens, targets;
  void add(const std::vector<std::uint8_t>& text, std::size_t begin, std::size_t context) {
    const auto at = text.begin() + static_cast<std::ptrdiff_t>(begin);
    tokens.insert(tokens.end(), at, at + static_cast<std::ptrdiff_t>(context));
    targets.insert(targets.end(), at + 1, at + 1 + static_cast<std::ptrdiff_t>(context));
  }
};

/// Windows at random places: those of a step are the same in every way.
Batch batch_of(const TrainingOptions& options, const Texts& texts, int seed, int step) {
  // A stream for each step, so that a probe may look ahead.
  kernels::Random random(kBatchStream * static_cast<std::uint64_t>(seed) + static_cast<std::uint64_t>(step));
  const auto context = static_cast<std::size_t>(options.shape.context);
  Batch batch;
  for (i64 k = 0; k < options.batch; ++k) batch.add(texts.training, random.below(texts.training.size() - context), context);
  return batch;
}

/// The mean loss over the windows that tile the validation text, as many as fill whole batches.
template <class T>
double validation_loss(const TrainingOptions& options, const Texts& texts, Model<T>& model, const std::vector<float>& parameters) {
  const auto context = static_cast<std::size_t>(options.shape.context);
  const auto windows = static_cast<std::size_t>(options.batch);
  const std::size_t batches = (texts.validation.size() - 1) / (context * windows);
  double sum = 0;
  for (std::size_t b = 0; b < batches; ++b) {
    Batch batch;
    for (std::size_t k = 0; k < windows; ++k) batch.add(texts.validation, (b * windows + k) * context, context);
    sum += model.forward(parameters.data(), batch.tokens, batch.targets);
  }
  return sum / static_cast<double>(batches);
}

class Updater {
 public:
  Updater(const TrainingOptions& options, std::size_t parameters) : options_(options), first_(parameters), second_(parameters) {}

  /// `step` counts from 1.
  void update(int step, const Buffer<float>& gradient, std::vector<float>& parameters) {
    const double rate = learning_rate(step);
    const double kept1 = 1 - std::pow(TrainingOptions::kBeta1, step), kept2 = 1 - std::pow(TrainingOptions::kBeta2, step);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const double g = static_cast<double>(gradient[static_cast<i64>(i)]);
      double change = 0;
      if (options_.optimiser == Optimiser::sgd) {
        first_[i] = TrainingOptions::kMomentum * first_[i] + g;
        change = first_[i];
      } else {
        first_[i] += (1 - TrainingOptions::kBeta1) * (g - first_[i]);
        second_[i] += (1 - TrainingOptions::kBeta2) * (g * g - second_[i]);
        change = first_[i] / kept1 / (std::sqrt(second_[i] / kept2) + TrainingOptions::kAdamEps);
      }
      parameters[i] = static_cast<float>(static_cast<double>(parameters[i]) - rate * change);
    }
  }

 private:
  double learning_rate(int step) const {
    if (step <= options_.warmup) return options_.learning_rate * step / options_.warmup;
    constexpr double kLeast = 0.1;
    const double done = static_cast<double>(step - options_.warmup) / std::max(1, options_.steps - options_.warmup);
    return options_.learning_rate * (kLeast + (1 - kLeast) * 0.5 * (1 + std::cos(std::numbers::pi * done)));
  }

  const TrainingOptions& options_;
  std::vector<double> first_, second_;
};

double norm_of(const Buffer<float>& v) {
  double sum = 0;
  for (const float value : v) sum += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(sum);
}

double dot(const Buffer<float>& a, const Buffer<float>& b) {
  double sum = 0;
  for (i64 i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

double relative_distance(const Buffer<float>& a, const Buffer<float>& exact) {
  double sum = 0;
  for (i64 i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(exact[i]);
    sum += d * d;
  }
  return std::sqrt(sum) / norm_of(exact);
}

/// The outputs that lie in the last piece of the right branch that is not a constant: of Tempo's the one that adds its centre.
struct OutputRange {
  double low = 1, high = 0;
  bool contains(double y) const { return y > low && y < high; }
};

OutputRange last_piece(const TrainingOptions& options) {
  for (const GradientWay& way : options.ways) {
    if (way.name != "tempo_gelu" || !way.foreign || way.foreign->steps) continue;
    const std::vector<ForeignPiece>& right = way.foreign->pieces[1];
    for (std::size_t k = right.size(); k-- > 1;) {
      if (right[k].coefficients.size() > 1) return {right[k - 1].to, right[k].to};
    }
  }
  return {};
}

template <class T>
using PreparedWays = std::vector<PreparedWay<T>>;

/// GELU's inputs and the errors of every way's derivative there, over all layers.
template <class T>
void probe_gelu(const TrainingOptions& options, const Model<T>& model, const PreparedWays<T>& ways, TrainingProbe& probe) {
  const OutputRange range = last_piece(options);
  double sum = 0, squares = 0, in_piece = 0;
  std::vector<double> error_squares(ways.size());
  std::vector<std::vector<double>> above(ways.size(), std::vector<double>(std::size(kGeluErrorSteps)));
  for (i64 layer = 0; layer < options.shape.layers; ++layer) {
    const auto tensors = model.gelu(layer);
    const auto n = static_cast<i64>(tensors.x.size());
    for (std::size_t i = 0; i < tensors.x.size(); ++i) {
      const double x = static_cast<double>(kernels::widen(tensors.x[i]));
      sum += x;
      squares += x * x;
      in_piece += x > 0 && range.contains(static_cast<double>(kernels::widen(tensors.y[i])));
    }
    probe.inputs += static_cast<double>(n);
    std::vector<double> exact(tensors.x.size());
    std::transform(tensors.x.begin(), tensors.x.end(), exact.begin(), [](T v) { return gelu_derivative(static_cast<double>(kernels::widen(v))); });
    const std::vector<T> ones(exact.size(), kernels::narrow<T>(1.0f));
    std::vector<T> g(exact.size());
    for (std::size_t w = 1; w < ways.size(); ++w) {
      ways[w].gelu(ones.data(), tensors.x.data(), tensors.y.data(), tensors.mask, g.data(), n);
      GeluErrorShares& shares = probe.ways[w - 1].gelu;
      for (std::size_t i = 0; i < g.size(); ++i) {
        const double error = std::abs(static_cast<double>(kernels::widen(g[i])) - exact[i]);
        error_squares[w] += error * error;
        shares.max = std::max(shares.max, error);
        for (std::size_t k = 0; k < above[w].size(); ++k) above[w][k] += error > kGeluErrorSteps[k];
      }
    }
  }
  probe.mean = sum / probe.inputs;
  probe.deviation = std::sqrt(std::max(0.0, squares / probe.inputs - probe.mean * probe.mean));
  probe.in_tempo_piece = in_piece / probe.inputs;
  for (std::size_t w = 1; w < ways.size(); ++w) {
    GeluErrorShares& shares = probe.ways[w - 1].gelu;
    shares.rms = std::sqrt(error_squares[w] / probe.inputs);
    for (const double count : above[w]) shares.above.push_back(count / probe.inputs);
  }
}

class Progress {
 public:
  Progress(bool wanted, i64 total) : shown_(wanted && ::isatty(STDERR_FILENO) != 0), total_(total) {}
  ~Progress() {
    if (shown_) fmt::print(stderr, "\r\033[K");
  }
  void advance() {
    if (!shown_) return;
    const std::lock_guard lock(mutex_);
    ++done_;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    const double left = seconds / static_cast<double>(done_) * static_cast<double>(total_ - done_);
    fmt::print(stderr, "\rtrain {:3}%  {:.0f} s left \033[K", 100 * done_ / total_, left);
    std::fflush(stderr);
  }

 private:
  bool shown_;
  i64 total_, done_ = 0;
  std::mutex mutex_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// One run. The exact way's takes the probes.
template <class T>
void run_one(const TrainingOptions& options, const Texts& texts, const PreparedWays<T>& ways, std::size_t which, TrainingRun& run,
             std::vector<TrainingProbe>& probes, Progress& progress) {
  std::vector<float> parameters = initial_parameters(options.shape, static_cast<std::uint64_t>(run.seed));
  const auto count = static_cast<i64>(parameters.size());
  Model<T> model(options.shape, options.batch);
  Updater updater(options, parameters.size());
  Buffer<float> gradient(count), other(count);
  const std::vector<int> probed = which == 0 ? probe_steps(options) : std::vector<int>{};
  double sum = 0;
  for (int step = 1; step <= options.steps; ++step) {
    const Batch batch = batch_of(options, texts, run.seed, step);
    const double loss = model.forward(parameters.data(), batch.tokens, batch.targets);
    run.side_channels = std::max(run.side_channels, options.ways[which].norm == GradientSource::output ? model.side_channels() : 0);
    if (step == 1) run.first_loss = loss;
    sum += loss;
    if (step % options.loss_every == 0) {
      run.loss.push_back(sum / options.loss_every);
      sum = 0;
    }
    model.backward(parameters.data(), ways[which], gradient.data());
    if (!std::isfinite(loss) || !std::isfinite(norm_of(gradient))) {
      run.diverged_at = step;
      run.loss.resize(static_cast<std::size_t>((step - 1) / options.loss_every));
      break;
    }
    if (std::find(probed.begin(), probed.end(), step) != probed.end()) {
      TrainingProbe probe;
      probe.format = run.format;
      probe.seed = run.seed;
      probe.step = step;
      probe.loss = loss;
      probe.gradient_norm = norm_of(gradient);
      for (std::size_t w = 1; w < ways.size(); ++w) {
        model.backward(parameters.data(), ways[w], other.data());
        probe.ways.push_back({ways[w].way().name, relative_distance(other, gradient), dot(other, gradient) / (norm_of(other) * probe.gradient_norm), {}});
      }
      probe_gelu(options, model, ways, probe);
      // A batch that no step has seen at these weights.
      const Batch unseen = batch_of(options, texts, run.seed, options.steps + step);
      model.forward(parameters.data(), unseen.tokens, unseen.targets);
      model.backward(parameters.data(), ways[which], other.data());
      probe.other_batch = relative_distance(other, gradient);
      probes.push_back(std::move(probe));
    }
    updater.update(step, gradient, parameters);
    progress.advance();
  }
  run.loss.resize(static_cast<std::size_t>(options.steps / options.loss_every), kNaN);
  run.validation_loss = run.diverged_at > 0 ? kNaN : validation_loss(options, texts, model, parameters);
}

template <class T>
PreparedWays<T> prepare(const TrainingOptions& options, const char* format) {
  PreparedWays<T> ways;
  if (std::find(options.formats.begin(), options.formats.end(), format) == options.formats.end()) return ways;
  for (const GradientWay& way : options.ways) ways.emplace_back(way);
  return ways;
}

}  // namespace

std::optional<GradientWay> built_in_way(const std::string& name) {
  for (const auto& [known, source] :
       {std::pair{"exact", GradientSource::exact}, std::pair{"input_f32", GradientSource::input_f32}, std::pair{"ours", GradientSource::output}}) {
    if (name == known) return GradientWay{name, source, source, nullptr};
  }
  return std::nullopt;
}

GradientWay foreign_way(const ForeignFunction& function) {
  return {function.name, GradientSource::foreign, GradientSource::exact, std::make_shared<const ForeignFunction>(function)};
}

std::vector<int> probe_steps(const TrainingOptions& options) {
  std::vector<int> steps;
  for (int k = 0; k < options.probes; ++k) {
    const int step = options.probes == 1 ? 1 : 1 + static_cast<int>(static_cast<i64>(options.steps - 1) * k / (options.probes - 1));
    if (steps.empty() || steps.back() != step) steps.push_back(step);
  }
  return steps;
}

TrainingResult train(const TrainingOptions& options) {
  const Texts texts{made_up_text(options.training_symbols, kTrainingText), made_up_text(options.validation_symbols, kValidationText)};
  const auto f32 = prepare<float>(options, "f32");
  const auto bf16 = prepare<kernels::BF16>(options, "bf16");
  const auto f16 = prepare<kernels::F16>(options, "f16");

  TrainingResult result;
  std::vector<std::size_t> way_of;
  for (const std::string& format : options.formats) {
    for (int seed = 1; seed <= options.seeds; ++seed) {
      for (std::size_t w = 0; w < options.ways.size(); ++w) {
        TrainingRun run;
        run.format = format;
        run.way = options.ways[w].name;
        run.seed = seed;
        result.runs.push_back(std::move(run));
        way_of.push_back(w);
      }
    }
  }
  std::vector<std::vector<TrainingProbe>> probes(result.runs.size());
  Progress progress(options.progress, static_cast<i64>(result.runs.size()) * options.steps);
  kernels::for_each_task(result.runs.size(), options.threads, [&](std::size_t at) {
    omp_set_num_threads(1);  // of the kernels' own loops within this run
    TrainingRun& run = result.runs[at];
    if (run.format == "f32") {
      run_one(options, texts, f32, way_of[at], run, probes[at], progress);
    } else if (run.format == "bf16") {
      run_one(options, texts, bf16, way_of[at], run, probes[at], progress);
    } else {
      run_one(options, texts, f16, way_of[at], run, probes[at], progress);
    }
  });
  for (std::vector<TrainingProbe>& of_run : probes) std::move(of_run.begin(), of_run.end(), std::back_inserter(result.probes));
  return result;
}

namespace {

std::pair<double, double> mean_and_deviation(const std::vector<double>& values) {
  double sum = 0, squares = 0;
  for (const double v : values) sum += v;
  const double mean = sum / static_cast<double>(values.size());
  for (const double v : values) squares += (v - mean) * (v - mean);
  return {mean, values.size() > 1 ? std::sqrt(squares / static_cast<double>(values.size() - 1)) : kNaN};
}

}  // namespace

std::optional<PairedDifference> paired_difference(const std::vector<double>& differences) {
  if (differences.size() < 2) return std::nullopt;
  PairedDifference result;
  result.n = static_cast<int>(differences.size());
  std::tie(result.mean, result.deviation) = mean_and_deviation(differences);
  const boost::math::students_t distribution(result.n - 1);
  const double half = boost::math::quantile(distribution, 0.5 + kTrainingConfidence / 2) * result.deviation / std::sqrt(result.n);
  result.low = result.mean - half;
  result.high = result.mean + half;
  return result;
}

std::vector<TrainingSummary> summarise(const TrainingOptions& options, const TrainingResult& result) {
  std::vector<TrainingSummary> summaries;
  for (const std::string& format : options.formats) {
    for (std::size_t w = 0; w < options.ways.size(); ++w) {
      TrainingSummary summary;
      summary.format = format;
      summary.way = options.ways[w].name;
      std::vector<double> losses, differences, distances;
      const TrainingRun* exact = nullptr;
      for (const TrainingRun& run : result.runs) {
        if (run.format != format) continue;
        if (run.way == options.ways[0].name) exact = &run;
        if (run.way != summary.way) continue;
        if (run.diverged_at > 0) {
          ++summary.diverged;
          continue;
        }
        losses.push_back(run.validation_loss);
        if (w > 0 && exact->diverged_at == 0) differences.push_back(run.validation_loss - exact->validation_loss);
      }
      for (const TrainingProbe& probe : result.probes) {
        if (probe.format == format && w > 0) distances.push_back(probe.ways[w - 1].relative_l2);
      }
      summary.n = static_cast<int>(losses.size());
      if (losses.empty()) {
        summary.mean = summary.deviation = summary.least = summary.greatest = kNaN;
      } else {
        std::tie(summary.mean, summary.deviation) = mean_and_deviation(losses);
        const auto [least, greatest] = std::minmax_element(losses.begin(), losses.end());
        summary.least = *least;
        summary.greatest = *greatest;
      }
      summary.difference = paired_difference(differences);
      if (!distances.empty()) {
        std::sort(distances.begin(), distances.end());
        const std::size_t half = distances.size() / 2;
        summary.median_relative_l2 = distances.size() % 2 == 1 ? distances[half] : 0.5 * (distances[half - 1] + distances[half]);
        summary.greatest_relative_l2 = distances.back();
      }
      summaries.push_back(std::move(summary));
    }
  }
  return summaries;
}

namespace {

using Json = nlohmann::ordered_json;

/// As many digits as mean something; not finite is null.
Json number(double value) {
  constexpr int kDigits = 6;
  return std::isfinite(value) ? Json(std::stod(fmt::format("{:.{}g}", value, kDigits))) : Json(nullptr);
}

const char* gelu_text(GradientSource source) {
  switch (source) {
    case GradientSource::exact: return "from x by the formula in double, rounded to fp32, then to the format";
    case GradientSource::input_f32: return "from x, PyTorch's formula in fp32";
    case GradientSource::output: return "from y and the mask bit, outgrad's default fit of the format";
    case GradientSource::foreign: return "published coefficients, evaluated as published";
  }
  return "";
}

const char* norm_text(GradientSource source) {
  switch (source) {
    case GradientSource::input_f32: return "from x in fp32";
    case GradientSource::output: return "from y, with the side buffer that the policy asks for";
    default: return "from x in double";
  }
}

Json configuration(const TrainingOptions& options) {
  Json ways = Json::array(), seeds = Json::array();
  for (const GradientWay& way : options.ways) ways.push_back(way.name);
  for (int seed = 1; seed <= options.seeds; ++seed) seeds.push_back(seed);
  const ModelShape& shape = options.shape;
  Json optimiser;
  if (options.optimiser == Optimiser::adam) {
    optimiser = {{"name", "adam"}, {"beta1", TrainingOptions::kBeta1}, {"beta2", TrainingOptions::kBeta2}, {"eps", TrainingOptions::kAdamEps}};
  } else {
    optimiser = {{"name", "sgd"}, {"momentum", TrainingOptions::kMomentum}};
  }
  optimiser["learning_rate"] = options.learning_rate;
  optimiser["warmup"] = options.warmup;
  optimiser["schedule"] = "linear warm-up, then half a cosine down to a tenth";
  const i64 windows = (static_cast<i64>(options.validation_symbols) - 1) / (shape.context * options.batch) * options.batch;
  return {{"model",
           {{"layers", shape.layers},
            {"width", shape.width},
            {"heads", shape.heads},
            {"hidden", shape.hidden},
            {"context", shape.context},
            {"vocabulary", shape.vocabulary},
            {"parameters", parameter_count(shape)}}},
          {"optimiser", optimiser},
          {"batch", options.batch},
          {"steps", options.steps},
          {"seeds", seeds},
          {"formats", options.formats},
          {"ways", ways},
          {"loss_every", options.loss_every},
          {"probe_steps", probe_steps(options)},
          {"data",
           {{"what", "a made-up language from a fixed grammar (validation/training/text.h)"},
            {"training_bytes", options.training_symbols},
            {"validation_bytes", options.validation_symbols},
            {"validation_windows", windows}}}};
}

Json run_json(const TrainingRun& run) {
  Json loss = Json::array();
  for (const double value : run.loss) loss.push_back(number(value));
  return {{"format", run.format},
          {"seed", run.seed},
          {"way", run.way},
          {"first_loss", number(run.first_loss)},
          {"loss", loss},
          {"validation_loss", number(run.validation_loss)},
          {"diverged_at", run.diverged_at > 0 ? Json(run.diverged_at) : Json(nullptr)},
          {"side_channels", run.side_channels}};
}

Json probe_json(const TrainingProbe& probe) {
  Json ways = Json::array();
  for (const ProbedWay& way : probe.ways) {
    Json above = Json::array();
    for (std::size_t k = 0; k < way.gelu.above.size(); ++k) above.push_back({{"than", kGeluErrorSteps[k]}, {"share", number(way.gelu.above[k])}});
    ways.push_back({{"way", way.way},
                    {"relative_l2", number(way.relative_l2)},
                    {"cosine", number(way.cosine)},
                    {"gelu_error", {{"rms", number(way.gelu.rms)}, {"max", number(way.gelu.max)}, {"above", above}}}});
  }
  return {{"format", probe.format},
          {"seed", probe.seed},
          {"step", probe.step},
          {"loss", number(probe.loss)},
          {"gradient_norm", number(probe.gradient_norm)},
          {"other_batch", number(probe.other_batch)},
          {"pre_activations",
           {{"count", probe.inputs}, {"mean", number(probe.mean)}, {"std", number(probe.deviation)}, {"in_tempo_piece", number(probe.in_tempo_piece)}}},
          {"ways", ways}};
}

Json summary_json(const TrainingSummary& s, bool exact) {
  Json difference = nullptr, distance = nullptr;
  if (s.difference) {
    difference = {{"mean", number(s.difference->mean)}, {"sd", number(s.difference->deviation)}, {"low", number(s.difference->low)},
                  {"high", number(s.difference->high)}, {"confidence", kTrainingConfidence},     {"n", s.difference->n}};
  }
  if (!exact) distance = {{"median", number(s.median_relative_l2)}, {"greatest", number(s.greatest_relative_l2)}};
  return {{"format", s.format},
          {"way", s.way},
          {"n", s.n},
          {"diverged", s.diverged},
          {"validation_loss", {{"mean", number(s.mean)}, {"sd", number(s.deviation)}, {"least", number(s.least)}, {"greatest", number(s.greatest)}}},
          {"difference", difference},
          {"relative_l2", distance}};
}

}  // namespace

nlohmann::ordered_json to_json(const TrainingOptions& options, const TrainingResult& result, const std::string& command) {
  Json ways = Json::array(), steps = Json::array(), runs = Json::array(), probes = Json::array(), summary = Json::array();
  for (const GradientWay& way : options.ways) {
    ways.push_back(
        {{"name", way.name}, {"gelu", gelu_text(way.gelu)}, {"layernorm", norm_text(way.norm)}, {"source", way.foreign ? way.foreign->source : Json(nullptr)}});
  }
  for (int step = options.loss_every; step <= options.steps; step += options.loss_every) steps.push_back(step);
  for (const TrainingRun& run : result.runs) runs.push_back(run_json(run));
  for (const TrainingProbe& probe : result.probes) probes.push_back(probe_json(probe));
  for (const TrainingSummary& s : summarise(options, result)) summary.push_back(summary_json(s, s.way == options.ways[0].name));
  return {{"schema", kTrainingSchema}, {"command", command}, {"configuration", configuration(options)}, {"ways", ways}, {"loss_steps", steps}, {"runs", runs},
          {"probes", probes},          {"summary", summary}};
}

}  // namespace outgrad::validation
