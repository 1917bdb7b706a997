// What gradients computed from outputs do to training: the same transformer, the same initial weights and the same batches, with GELU's and
// LayerNorm's gradients had in several ways.
//
// One run is one (format, seed, way). The weights start from the seed, the batches follow from the seed, and the forward pass is the same in every
// way, so that two runs of a seed differ by their gradients alone. Differences to the way `exact` are therefore taken in pairs, seed by seed. On the
// trajectory of the exact run, at some steps, the gradient of all parameters is computed in every way at the same weights from the same batch.
//
// A run is one thread's, whole; threads only share the runs out. Results do not depend on their number.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "validation/training/model.h"

namespace outgrad::validation {

inline constexpr const char* kTrainingSchema = "outgrad.training/1";
inline constexpr double kTrainingConfidence = 0.95;
/// Errors of a derivative beyond which the share of GELU's inputs is counted.
inline constexpr double kGeluErrorSteps[] = {0.01, 0.1, 1};

enum class Optimiser { adam, sgd };

struct TrainingOptions {
  ModelShape shape;
  std::vector<std::string> formats{"f32", "bf16", "f16"};
  std::vector<GradientWay> ways;  // the first is exact
  int seeds = 5;                  // 1 .. seeds
  int steps = 400;
  kernels::i64 batch = 8;         // windows a step
  Optimiser optimiser = Optimiser::adam;
  double learning_rate = 0.01;    // reached after `warmup` steps, then falling to a tenth by half a cosine
  int warmup = 20;
  int loss_every = 10;            // steps that one point of a loss curve is the mean of
  int probes = 5;                 // spread over the steps, the first among them
  std::size_t training_symbols = std::size_t{1} << 19, validation_symbols = std::size_t{1} << 15;
  int threads = 0;                // 0: all
  bool progress = false;          // drawn on a terminal's stderr

  /// Adam's usual constants (Kingma and Ba, ICLR 2015), the second moment's rate as is common for transformers; SGD's momentum.
  static constexpr double kBeta1 = 0.9, kBeta2 = 0.99, kAdamEps = 1e-8, kMomentum = 0.9;
};

/// The ways that need no file: exact, input_f32, ours.
std::optional<GradientWay> built_in_way(const std::string& name);
GradientWay foreign_way(const ForeignFunction& function);

struct TrainingRun {
  std::string format, way;
  int seed = 0;
  double first_loss = 0;           // before any update
  std::vector<double> loss;        // means over loss_every steps; NaN from the step of divergence on
  double validation_loss = 0;      // at the end; NaN if diverged
  int diverged_at = 0;             // the step whose loss or gradient is not finite; 0: none
  kernels::i64 side_channels = 0;  // most that were in use at once
};

/// Of dx at dy = 1, in the format, against f'(x).
struct GeluErrorShares {
  double rms = 0, max = 0;
  std::vector<double> above;  // share of inputs, by kGeluErrorSteps
};

struct ProbedWay {
  std::string way;
  double relative_l2 = 0, cosine = 0;  // of the gradient, to the exact way's
  GeluErrorShares gelu;
};

struct TrainingProbe {
  std::string format;
  int seed = 0, step = 0;
  double loss = 0, gradient_norm = 0, other_batch = 0;
  double inputs = 0, mean = 0, deviation = 0, in_tempo_piece = 0;
  std::vector<ProbedWay> ways;  // all but exact
};

struct TrainingResult {
  std::vector<TrainingRun> runs;
  std::vector<TrainingProbe> probes;
};

/// Steps after whose forward pass a probe is taken.
std::vector<int> probe_steps(const TrainingOptions& options);

TrainingResult train(const TrainingOptions& options);

/// Of the differences of pairs, way - exact.
struct PairedDifference {
  int n = 0;
  double mean = 0, deviation = 0, low = 0, high = 0;  // the interval is Student's
};
std::optional<PairedDifference> paired_difference(const std::vector<double>& differences);

struct TrainingSummary {
  std::string format, way;
  int n = 0, diverged = 0;
  double mean = 0, deviation = 0, least = 0, greatest = 0;  // of the validation loss
  std::optional<PairedDifference> difference;
  double median_relative_l2 = 0, greatest_relative_l2 = 0;  // 0 for exact
};
std::vector<TrainingSummary> summarise(const TrainingOptions& options, const TrainingResult& result);

nlohmann::ordered_json to_json(const TrainingOptions& options, const TrainingResult& result, const std::string& command);

}  // namespace outgrad::validation
