// Evaluates the bounds of stability.h upwards and classifies the channels.
#include "validation/stability.h"

#include <fmt/format.h>
#include <mag.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "kernels/host/errors.h"

namespace outgrad::validation {

using kernels::i64;
using kernels::SpecError;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kUnit = 0x1p-24;  // fp32's unit roundoff, e in stability.h
constexpr double kFp32Overflow = 0x1p127;  // half of the first magnitude that rounds to infinity: room for every relative error in sight

// The arithmetic that the derivation of stability.h is evaluated for.
struct Arithmetic {
  double unit;      // roundoff
  double least;     // least subnormal: 2 h of its own underflow; 0 where nothing underflows
  bool fma;         // products that feed a sum are not rounded
  double overflow;  // infinite where nothing overflows
};
constexpr Arithmetic kFp32{kUnit, 0x1p-149, true, kFp32Overflow};
// long double of at least 64 bits: its exponents hold whatever fp32 numbers can form.
constexpr Arithmetic kExtended{0x1p-64, 0, false, kInfinity};

// A non-negative number that is at least the exact value of the expression it came from. Every double given is taken as it is (rounded
// up to mag_t's 30 bits); a divisor must be exact, that is an fp32 value or an integer below 2^30.
class Upper {
 public:
  Upper(double value) {  // NOLINT(google-explicit-constructor): formulas mix bounds and exact numbers
    mag_init(mag_);
    mag_set_d(mag_, value);
  }
  Upper(const Upper& other) {
    mag_init(mag_);
    mag_set(mag_, other.mag_);
  }
  Upper& operator=(const Upper& other) {
    mag_set(mag_, other.mag_);
    return *this;
  }
  ~Upper() { mag_clear(mag_); }

  double value() const { return mag_get_d(mag_); }  // exact: 30 bits fit a double

  friend Upper operator+(const Upper& a, const Upper& b) { return apply(mag_add, a, b); }
  friend Upper operator*(const Upper& a, const Upper& b) { return apply(mag_mul, a, b); }
  friend Upper operator/(const Upper& a, float exact) { return apply(mag_div, a, Upper(static_cast<double>(exact))); }
  Upper& operator+=(const Upper& other) { return *this = *this + other; }

  friend Upper sqrt(const Upper& a) {
    Upper root(0);
    mag_sqrt(root.mag_, a.mag_);
    return root;
  }

 private:
  template <class Operation>
  static Upper apply(Operation operation, const Upper& a, const Upper& b) {
    Upper result(0);
    operation(result.mag_, a.mag_, b.mag_);
    return result;
  }

  mag_t mag_;
};

Upper smaller(const Upper& a, const Upper& b) { return a.value() < b.value() ? a : b; }
Upper larger(const Upper& a, const Upper& b) { return a.value() < b.value() ? b : a; }

// (1 + a)(1 + b) - 1, without the cancellation.
Upper compound(const Upper& a, const Upper& b) { return a + b + a * b; }

// g(n) = n e / (1 - n e) <= n e (1 + 2 n e) while n e <= 1/2, which every depth of 2^20 columns and 2^40 rows keeps.
Upper roundings(const Arithmetic& arithmetic, i64 n) {
  const double ne = static_cast<double>(n) * arithmetic.unit;
  return Upper(ne) * (Upper(1) + 2 * ne);
}

// What does not depend on the channel.
struct RowModel {
  Arithmetic arithmetic;
  Norm norm;
  i64 columns;
  int mean_roundings;          // of a division by N: none where N is a power of two
  i64 depth;
  Upper dy, unit_y, half_y;    // G; U; h + 2^-149 (fp32 underflow)
  Upper forward_a, forward_b;  // AE, BE
  Upper rstd;                  // R
  Upper format;                // u
  i64 column_depth;

  Upper g(i64 n) const { return roundings(arithmetic, n); }
  Upper tiny(double multiple) const { return multiple * arithmetic.least; }
};

// The depths of the sums of one row, and of one column over all rows.
struct Depths {
  i64 row, column;
};

RowModel row_model(const StabilityOptions& options, i64 columns, const Arithmetic& arithmetic, const Depths& depths) {
  const auto g = [&](i64 n) { return roundings(arithmetic, n); };
  const auto tiny = [&](double multiple) { return Upper(multiple * arithmetic.least); };
  const Upper unit = arithmetic.unit;
  const Upper inverse_eps = Upper(1) / options.eps;
  const bool centred = options.norm == Norm::layer;
  const bool single = centred && columns == 1;  // x - mean = 0 and var = 0, exactly
  const int mean_roundings = std::has_single_bit(static_cast<kernels::u64>(columns)) ? 0 : 1;
  const Upper mean =
      !centred || single ? Upper(0) : g(depths.row + mean_roundings) * (Upper(options.mean_ratio) + 1) + tiny(0.5) * sqrt(inverse_eps);
  // <= 1/4: eps is at least 2^-100. LayerNorm rounds a difference that is squared.
  const Upper h0 = single ? Upper(0) : g(depths.row + mean_roundings + (centred ? 4 : 2)) + tiny(2) * inverse_eps;
  const Upper h = h0 + mean * mean * (Upper(1) + h0);
  const Upper rstd = compound(g(2), h * 0.5 * (Upper(1) + 2 * h0));  // 1/(1-H0) <= 1 + 2 H0 below 1/2
  const Upper normalise = compound(rstd, centred ? compound(unit, unit) : unit);
  return {
      .arithmetic = arithmetic,
      .norm = options.norm,
      .columns = columns,
      .mean_roundings = mean_roundings,
      .depth = depths.row,
      .dy = options.dy_max,
      .unit_y = compound(unit, options.format.unit_roundoff),
      .half_y = Upper(options.format.half_subnormal) + tiny(1),
      .forward_a = normalise,
      .forward_b = (Upper(1) + normalise) * mean + tiny(0.5),
      .rstd = rstd,
      .format = options.format.unit_roundoff,
      .column_depth = depths.column,
  };
}

RowModel kernels_model(const StabilityOptions& options, i64 columns) {
  return row_model(options, columns, kFp32, {row_tree_depth(columns), column_tree_depth(options.rows, columns)});
}

// The affine error A |xh| + B of one channel's normalised value before the backward pass rounds it.
struct Affine {
  Upper a, b;
  Upper at(const Upper& x) const { return a * x + b; }
};

Affine reconstruction(const RowModel& row, const ChannelParameters& channel, bool side) {
  if (side) return {row.forward_a, row.forward_b};
  const Upper a = compound(row.forward_a, row.unit_y);
  const Upper beta = std::abs(static_cast<double>(channel.beta));
  const Upper b = row.forward_b * (Upper(1) + row.unit_y) + (row.unit_y * beta + row.half_y) / std::abs(channel.gamma);
  return {a, b};
}

// Error of xh at |xh| = 1 that the storage of y alone causes.
double storage_error(const StabilityOptions& options, double gamma, double rho) {
  const double u = std::max(options.format.unit_roundoff, kUnit);
  return u * (1 + rho) + (options.format.half_subnormal + 0x1p-149) / gamma + 3 * kUnit;
}

// 1/gamma has to be a normal number: its relative rounding error is unbounded otherwise (gamma is zero, below 2^-128 or beyond 2^126).
bool reciprocal_is_normal(float gamma) { return std::isnormal(1.0f / gamma) && std::abs(gamma) <= 0x1p126f; }

bool overflows(const RowModel& row, const StorageFormat& format, float gamma, float beta, double x_hat) {
  const Upper normalised = x_hat + row.forward_a * x_hat + row.forward_b;
  const Upper y = (Upper(std::abs(static_cast<double>(gamma))) * normalised + std::abs(static_cast<double>(beta))) * (Upper(1) + kUnit);
  return !(y.value() < format.overflow) || !(y.value() < kFp32Overflow);
}

ChannelClass classify(const StabilityOptions& options, const RowModel& row, const ChannelParameters& channel) {
  if (channel.gamma == 0) return ChannelClass::kZeroGamma;
  if (!reciprocal_is_normal(channel.gamma)) return ChannelClass::kUnstable;
  if (overflows(row, options.format, channel.gamma, channel.beta, options.x_hat_max)) return ChannelClass::kUnstable;
  if (storage_error(options, std::abs(static_cast<double>(channel.gamma)), channel.rho) > options.tau) return ChannelClass::kUnstable;
  return channel.bits_lost <= 1 ? ChannelClass::kStable : ChannelClass::kDegraded;
}

// The bounds when the channels marked in `side` are read from a side buffer.
class BoundsEvaluator {
 public:
  BoundsEvaluator(const StabilityOptions& options, const RowModel& row, const std::vector<ChannelParameters>& channels,
                  std::vector<bool> side)
      : options_(options), row_(row), channels_(channels), side_(std::move(side)) {}

  NormBounds evaluate() {
    const double widest = largest_x_hat(row_.norm, row_.columns);
    const double x_max[2] = {widest, std::min(options_.x_hat_max, widest)};
    NormBounds bounds{};
    bounds.channels.resize(channels_.size());
    for (int range = 0; range < 2; ++range) {
      const auto at = [range](Bound& bound) -> double& { return range == 0 ? bound.worst : bound.conditional; };
      sum_over_channels(x_max[range]);
      const bool row_overflows = any_overflow(x_max[range]);
      for (size_t j = 0; j < channels_.size(); ++j) {
        ChannelBounds& channel = bounds.channels[j];
        const bool usable = side_[j] || (reciprocal_is_normal(channels_[j].gamma) &&
                                         !overflows(row_, options_.format, channels_[j].gamma, channels_[j].beta, x_max[range]));
        at(channel.x_hat) = usable ? x_hat(j, x_max[range]).value() : kInfinity;
        at(channel.dx) = usable && !row_overflows ? dx(j, x_max[range]).value() : kInfinity;
        at(channel.dgamma) = usable && !row_overflows ? dgamma(j, x_max[range]).value() : kInfinity;
        at(bounds.dx) = std::max(at(bounds.dx), at(channel.dx));
      }
      at(bounds.dx_rms) = row_overflows || !all_reciprocals_normal() ? kInfinity : dx_rms().value();
      const double scale = (row_.dy * rms_gamma_).value();
      at(bounds.dx_rms_relative) = at(bounds.dx_rms) / scale * (1 + 0x1p-50);  // the quotient's own rounding
    }
    bounds.dx_absolute = row_.half_y.value();
    // A slot starts from 0: its first addition is exact.
    const Upper dbeta = row_.g(row_.column_depth - 1) * row_.dy;
    bounds.dbeta = (dbeta * static_cast<double>(options_.rows)).value() < row_.arithmetic.overflow ? dbeta.value() : kInfinity;
    bounds.rstd = row_.rstd.value();
    return bounds;
  }

 private:
  Upper absolute(float value) const { return std::abs(static_cast<double>(value)); }

  // |xh| <= x, so beside Cauchy-Schwarz's rms(gamma) also x mean|gamma| bounds mean |gamma xh|.
  void sum_over_channels(const Upper& x) {
    Upper gamma = 0, gamma_squared = 0, lower_gamma_b = 0;
    for (size_t j = 0; j < channels_.size(); ++j) {
      const Upper g = absolute(channels_[j].gamma);
      gamma += g;
      gamma_squared += g * g;
      if (!side_[j]) lower_gamma_b += row_.unit_y * absolute(channels_[j].beta) + row_.half_y;
    }
    const float n = static_cast<float>(channels_.size());
    mean_gamma_ = gamma / n;
    rms_gamma_ = sqrt(gamma_squared / n);
    const Upper mean_gamma_x = smaller(rms_gamma_, x * mean_gamma_);
    const Upper a = compound(row_.forward_a, row_.unit_y);
    const Upper s = row_.forward_b * (Upper(1) + row_.unit_y) * mean_gamma_ + lower_gamma_b / n;
    const Upper underflow = row_.tiny(2);
    const bool centred = row_.norm == Norm::layer;
    m1_ = centred ? row_.dy * mean_gamma_ : Upper(0);
    m1_error_ = centred ? row_.g(row_.depth + 1 + row_.mean_roundings) * m1_ + underflow : Upper(0);
    m2_ = row_.dy * mean_gamma_x;
    m2_error_ = row_.dy * (a * mean_gamma_x + s) +
                row_.g(row_.depth + 2 + row_.mean_roundings) * row_.dy * ((Upper(1) + a) * mean_gamma_x + s) + underflow +
                row_.tiny(1) * row_.dy;
  }

  // Whether a sum or product of the backward pass may leave fp32. A sum's partial sums are below the sum of its terms' magnitudes.
  bool backward_overflows(double x_max) const {
    if (std::isinf(row_.arithmetic.overflow)) return false;
    Upper centred = 0, weighted = 0, gamma = 0, x_hat_largest = 0;
    for (size_t j = 0; j < channels_.size(); ++j) {
      const Upper g = absolute(channels_[j].gamma);
      const Upper kept = (Upper(1) + row_.forward_a) * x_max + row_.forward_b;
      const Upper y = (Upper(1) + row_.unit_y) * (g * kept + absolute(channels_[j].beta)) + row_.half_y + absolute(channels_[j].beta);
      centred = larger(centred, side_[j] ? kept : y);
      weighted = larger(weighted, side_[j] ? g * kept : y);
      gamma = larger(gamma, g);
      if (side_[j] || reciprocal_is_normal(channels_[j].gamma)) x_hat_largest = larger(x_hat_largest, x_max + x_hat(j, x_max));
    }
    const auto fits = [&](const Upper& value) { return 2 * value.value() < row_.arithmetic.overflow; };
    const double n = static_cast<double>(row_.columns), rows = static_cast<double>(options_.rows);
    return !(fits(n * row_.dy * gamma) && fits(n * row_.dy * weighted) && fits(rows * row_.dy * centred) &&
             fits(row_.dy * gamma + m1_ + m1_error_ + x_hat_largest * (m2_ + m2_error_)));
  }

  bool any_overflow(double x_max) const {
    for (size_t j = 0; j < channels_.size(); ++j) {
      if (!side_[j] && overflows(row_, options_.format, channels_[j].gamma, channels_[j].beta, x_max)) return true;
    }
    return backward_overflows(x_max);
  }

  bool all_reciprocals_normal() const {
    for (size_t j = 0; j < channels_.size(); ++j) {
      if (!side_[j] && !reciprocal_is_normal(channels_[j].gamma)) return false;
    }
    return true;
  }

  // X
  Upper x_hat(size_t j, const Upper& x) const {
    return compound_error(reconstruction(row_, channels_[j], side_[j]), x, side_[j]);
  }

  // A side channel's xh is read as it is: one of the three roundings is left, by a product with 1, hence none.
  Upper compound_error(const Affine& error, const Upper& x, bool side = false) const {
    if (side) return error.at(x);
    return (Upper(1) + row_.g(3)) * error.at(x) + row_.g(3) * x + row_.tiny(1);
  }

  // Dp, from |xh|, X, |a|
  Upper p_error(const Upper& x, const Upper& x_error, const Upper& a) const {
    const Upper m2 = m2_ + m2_error_;
    const Upper rounded = row_.g(row_.arithmetic.fma ? 2 : 4);
    return m1_error_ + x * m2_error_ + x_error * m2 + rounded * (a + m1_ + m1_error_ + (x + x_error) * m2) + row_.tiny(2);
  }

  // dx / rstd from Dp and |p|
  Upper outer(const Upper& p_error, const Upper& p) const {
    const Upper v = compound(compound(row_.rstd, row_.arithmetic.unit), row_.format);
    return p_error + v * (p + p_error);
  }

  Upper dx(size_t j, const Upper& x) const {
    const Upper a = row_.dy * absolute(channels_[j].gamma);
    return outer(p_error(x, x_hat(j, x), a), a + m1_ + x * m2_);
  }

  Upper dx_rms() const {
    Upper squares = 0;
    Upper a = 0;
    for (size_t j = 0; j < channels_.size(); ++j) {
      const Affine error = reconstruction(row_, channels_[j], side_[j]);
      if (a.value() < error.a.value()) a = error.a;
      squares += error.b * error.b;
    }
    const Affine rms{a, sqrt(squares / static_cast<float>(channels_.size()))};
    const Upper scale = row_.dy * rms_gamma_;
    return outer(p_error(1, compound_error(rms, 1), scale), scale);
  }

  Upper dgamma(size_t j, const Upper& x) const {
    const Affine error = reconstruction(row_, channels_[j], side_[j]);
    const Upper tree = row_.g(row_.column_depth + 3);
    const Upper underflow = side_[j] ? row_.tiny(2) : row_.tiny(1) + row_.tiny(1) / std::abs(channels_[j].gamma);
    return row_.dy * (error.at(x) + tree * (x + error.at(x))) + underflow;
  }

  const StabilityOptions& options_;
  const RowModel& row_;
  const std::vector<ChannelParameters>& channels_;
  const std::vector<bool> side_;
  Upper mean_gamma_ = 0, rms_gamma_ = 0, m1_ = 0, m1_error_ = 0, m2_ = 0, m2_error_ = 0;
};

void check_finite(const std::vector<float>& values, const std::string& label, const std::string& name) {
  for (size_t j = 0; j < values.size(); ++j) {
    if (!std::isfinite(values[j]))
      throw SpecError(label, fmt::format("{}[{}]", name, j), std::isnan(values[j]) ? "NaN" : "infinite in fp32");
  }
}

void check_options(const StabilityOptions& options) {
  const auto require = [](bool holds, const char* place, const char* why) {
    if (!holds) throw SpecError("stability", place, why);
  };
  // Below 2^-100, underflow in the variance would not be small against eps any more.
  require(options.eps >= 0x1p-100f && options.eps <= 0x1p100f, "eps", "must be between 2^-100 and 2^100");
  require(options.mean_ratio >= 0 && std::isfinite(options.mean_ratio), "mean ratio", "must be finite and not negative");
  require(options.dy_max > 0 && std::isfinite(options.dy_max), "dy bound", "must be finite and positive");
  require(options.x_hat_max > 0 && std::isfinite(options.x_hat_max), "bound on |x^|", "must be finite and positive");
  require(options.tau > 0 && std::isfinite(options.tau), "tau", "must be finite and positive");
  constexpr i64 kMaxRows = i64{1} << 40;
  require(options.rows >= 1 && options.rows <= kMaxRows, "rows", "must be between 1 and 2^40");
}

// rms relative error of rounding to nearest with a logarithmically uniform significand m in [1, 2): the error is uniform in +-u 2^e,
// so u sqrt(E[m^-2] / 3), E[m^-2] = (1 - 1/4) / (2 ln 2).
const double kRmsRounding = std::sqrt(0.75 / (2 * std::log(2.0)) / 3);

// "ln", "ln_1", "ln2", "ln_final", not "lnear".
bool is_ln(std::string_view component) {
  return component.starts_with("ln") && (component.size() == 2 || !std::isalpha(static_cast<unsigned char>(component[2])));
}

bool names_a_norm(std::string_view stem) {
  const size_t separator = stem.find_last_of("./");
  std::string component(separator == std::string_view::npos ? stem : stem.substr(separator + 1));
  std::transform(component.begin(), component.end(), component.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return component.find("norm") != std::string::npos || is_ln(component);
}

struct Suffix {
  std::string_view gamma, beta, running_mean;
  bool any_stem;  // the suffix alone tells a norm
};

constexpr Suffix kSuffixes[] = {
    {".weight", ".bias", ".running_mean", false}, {".scale", ".bias", ".mean", false},
    {".gamma", ".beta", ".moving_mean", true},    {"/gamma", "/beta", "/moving_mean", true},
    {"_gamma", "_beta", "_moving_mean", true},    {"gamma", "beta", "moving_mean", true},
};

nlohmann::json bound_json(const Bound& bound) { return {{"worst", bound.worst}, {"conditional", bound.conditional}}; }

nlohmann::json summary_json(const NormBounds& bounds) {
  Bound x_hat{0, 0}, dgamma{0, 0};
  for (const ChannelBounds& channel : bounds.channels) {
    x_hat = {std::max(x_hat.worst, channel.x_hat.worst), std::max(x_hat.conditional, channel.x_hat.conditional)};
    dgamma = {std::max(dgamma.worst, channel.dgamma.worst), std::max(dgamma.conditional, channel.dgamma.conditional)};
  }
  return {{"x_hat_max", bound_json(x_hat)},
          {"dx_max_over_rstd", bound_json(bounds.dx)},
          {"dx_rms_over_rstd", bound_json(bounds.dx_rms)},
          {"dx_rms_relative", bound_json(bounds.dx_rms_relative)},
          {"dx_absolute", bounds.dx_absolute},
          {"dgamma_max_per_row", bound_json(dgamma)},
          {"dbeta_per_row", bounds.dbeta},
          {"rstd_relative", bounds.rstd}};
}

}  // namespace

StorageFormat storage_format(const std::string& name) {
  if (name == "f32") return {name, 0, 0, 0x1.ffffffp127, 4};
  if (name == "f16") return {name, 0x1p-11, 0x1p-25, 65520, 2};
  if (name == "bf16") return {name, 0x1p-8, 0x1p-134, 0x1.ffp127, 2};
  throw SpecError("stability", "format", "'" + name + "' is not one of f32, f16, bf16");
}

const char* to_string(ChannelClass channel_class) {
  switch (channel_class) {
    case ChannelClass::kStable: return "stable";
    case ChannelClass::kDegraded: return "degraded";
    case ChannelClass::kUnstable: return "unstable";
    case ChannelClass::kZeroGamma: return "zero_gamma";
  }
  return "";
}

const char* to_string(Norm norm) { return norm == Norm::layer ? "layernorm" : "rmsnorm"; }

// Missing terms are added exactly, so a fold of which only the first m values are there rounds ceil(log2 m) times in a row.
int row_tree_depth(i64 columns) {
  const i64 steps = kernels::row_steps(columns);
  const i64 groups = (steps + kernels::kGroupSteps - 1) / kernels::kGroupSteps;
  const i64 chunks = (columns + kernels::kChunkTerms - 1) / kernels::kChunkTerms;
  const auto levels = [](i64 values) { return static_cast<int>(std::bit_width(static_cast<kernels::u64>(values) - 1)); };
  return levels(std::min<i64>(columns, kernels::kChunkTerms)) + levels(std::min<i64>(steps, kernels::kGroupSteps)) +
         static_cast<int>(groups - 1) + levels(std::min<i64>(chunks, kernels::kTreeLanes));
}

int column_tree_depth(i64 rows, i64 columns) {
  const i64 slots = kernels::slot_count(rows, columns);
  return static_cast<int>((rows + slots - 1) / slots) + static_cast<int>(std::bit_width(static_cast<kernels::u64>(slots)) - 1);
}

StabilityResult analyse_stability(const std::vector<float>& gamma, const std::vector<float>& beta, const StabilityOptions& options,
                                  const std::string& label, const std::string& gamma_name, const std::string& beta_name) {
  check_options(options);
  const size_t n = gamma.size();
  constexpr size_t kMaxColumns = size_t{1} << 20;  // keeps every g(n) below 1/2 with room; wider than any norm
  if (n < 1 || n > kMaxColumns) throw SpecError(label, gamma_name, fmt::format("{} channels, where 1 to {} are analysed", n, kMaxColumns));
  if (!beta.empty() && beta.size() != n)
    throw SpecError(label, beta_name, fmt::format("{} channels, but {} has {}", beta.size(), gamma_name, n));
  if (!beta.empty() && options.norm == Norm::rms) throw SpecError(label, beta_name, "RMSNorm has no beta");
  check_finite(gamma, label, gamma_name);
  check_finite(beta, label, beta_name);

  const RowModel row = kernels_model(options, static_cast<i64>(n));
  StabilityResult result{};
  result.options = options;
  result.forward_x_hat = (row.forward_a + row.forward_b).value();
  const double reference = storage_error(options, 1, 0);
  double estimate_squares = 0;
  std::vector<bool> side(n, false);
  for (size_t j = 0; j < n; ++j) {
    ChannelParameters channel{};
    channel.gamma = gamma[j];
    channel.beta = beta.empty() ? 0.0f : beta[j];
    const double g = std::abs(static_cast<double>(channel.gamma));
    channel.rho = g == 0 ? kInfinity : std::abs(static_cast<double>(channel.beta)) / g;
    channel.bits_lost = g == 0 ? kInfinity : std::log2(storage_error(options, g, channel.rho) / reference);
    channel.x_hat_estimate = kRmsRounding * std::max(options.format.unit_roundoff, kUnit) * std::hypot(1.0, channel.rho);
    channel.channel_class = classify(options, row, channel);
    ++result.count[static_cast<size_t>(channel.channel_class)];
    estimate_squares += channel.x_hat_estimate * channel.x_hat_estimate;
    side[j] = channel.channel_class == ChannelClass::kUnstable || channel.channel_class == ChannelClass::kZeroGamma;
    if (side[j]) result.side_buffer.push_back(j);
    result.channels.push_back(channel);
  }
  result.dgamma_estimate = std::sqrt(estimate_squares / static_cast<double>(n));
  result.from_output = BoundsEvaluator(options, row, result.channels, std::vector<bool>(n, false)).evaluate();
  result.recommended = result.side_buffer.empty() ? result.from_output : BoundsEvaluator(options, row, result.channels, side).evaluate();
  return result;
}

NormBounds reference_bounds(const StabilityResult& result) {
  StabilityOptions options = result.options;
  options.format = {"exact", 0, 0, kInfinity, 0};
  const i64 columns = static_cast<i64>(result.channels.size());
  const RowModel row = row_model(options, columns, kExtended, {columns, options.rows});
  return BoundsEvaluator(options, row, result.channels, std::vector<bool>(result.channels.size(), true)).evaluate();
}

double largest_x_hat(Norm norm, i64 columns) {
  return std::sqrt(static_cast<double>(norm == Norm::layer ? columns - 1 : columns)) * (1 + 0x1p-50);  // the root's own rounding
}

double largest_x(i64 columns) {
  // N (2 x)^2 <= 2^125: far enough below 2^128 for every rounding and for eps.
  const int levels = static_cast<int>(std::bit_width(static_cast<kernels::u64>(columns) - 1));
  return std::ldexp(1.0, (123 - levels) / 2);
}

double rho_quantile(const StabilityResult& result, double fraction) {
  std::vector<double> rho;
  for (const ChannelParameters& channel : result.channels) rho.push_back(channel.rho);
  const auto rank = rho.begin() + static_cast<std::ptrdiff_t>(std::llround(fraction * static_cast<double>(rho.size() - 1)));
  std::nth_element(rho.begin(), rank, rho.end());
  return *rank;
}

std::vector<NormNames> detect_norms(const TensorFile& file) {
  std::map<std::string, const TensorInfo*> by_name;
  for (const TensorInfo& tensor : file.tensors()) by_name[tensor.name] = &tensor;
  std::vector<NormNames> norms;
  for (const auto& [name, gamma] : by_name) {
    if (gamma->shape.size() != 1) continue;
    for (const Suffix& suffix : kSuffixes) {
      if (!name.ends_with(suffix.gamma)) continue;
      const std::string stem = name.substr(0, name.size() - suffix.gamma.size());
      if ((!suffix.any_stem && !names_a_norm(stem)) || by_name.contains(stem + std::string(suffix.running_mean))) break;
      const auto beta = by_name.find(stem + std::string(suffix.beta));
      norms.push_back({stem.empty() ? name : stem, name, beta == by_name.end() ? "" : beta->first});
      break;
    }
  }
  return norms;
}

nlohmann::json to_json(const StabilityOptions& options) {
  return {{"format", options.format.name}, {"eps", options.eps},         {"mean_ratio", options.mean_ratio}, {"dy_max", options.dy_max},
          {"x_hat_max", options.x_hat_max}, {"tau", options.tau}, {"rows", options.rows}};
}

nlohmann::json to_json(const StabilityResult& result) {
  using nlohmann::json;
  json columns = {
      {"gamma", json::array()}, {"beta", json::array()}, {"rho", json::array()}, {"class", json::array()}, {"bits_lost", json::array()}};
  for (const char* key : {"x_hat_worst", "x_hat_conditional", "dx_worst", "dx_conditional", "dgamma_worst", "dgamma_conditional"})
    columns[key] = json::array();
  for (size_t j = 0; j < result.channels.size(); ++j) {
    const ChannelParameters& channel = result.channels[j];
    const ChannelBounds& bounds = result.from_output.channels[j];
    columns["gamma"].push_back(channel.gamma);
    columns["beta"].push_back(channel.beta);
    columns["rho"].push_back(channel.rho);
    columns["class"].push_back(to_string(channel.channel_class));
    columns["bits_lost"].push_back(channel.bits_lost);
    columns["x_hat_worst"].push_back(bounds.x_hat.worst);
    columns["x_hat_conditional"].push_back(bounds.x_hat.conditional);
    columns["dx_worst"].push_back(bounds.dx.worst);
    columns["dx_conditional"].push_back(bounds.dx.conditional);
    columns["dgamma_worst"].push_back(bounds.dgamma.worst);
    columns["dgamma_conditional"].push_back(bounds.dgamma.conditional);
  }
  json classes;
  for (const ChannelClass c : {ChannelClass::kStable, ChannelClass::kDegraded, ChannelClass::kUnstable, ChannelClass::kZeroGamma}) {
    classes[to_string(c)] = result.count[static_cast<size_t>(c)];
  }
  json quantiles;
  for (const auto& [name, fraction] : {std::pair("min", 0.0), {"q50", 0.5}, {"q90", 0.9}, {"q99", 0.99}, {"max", 1.0}}) {
    quantiles[name] = rho_quantile(result, fraction);
  }
  return {{"norm", to_string(result.options.norm)},
          {"columns", result.channels.size()},
          {"classes", classes},
          {"rho", quantiles},
          {"policy", {{"name", result.policy()}, {"channels", result.side_buffer}, {"bytes_per_row", result.side_buffer_bytes_per_row()}}},
          {"bounds", {{"from_output", summary_json(result.from_output)}, {"recommended", summary_json(result.recommended)}}},
          {"forward_x_hat", result.forward_x_hat},
          {"x_abs_max", largest_x(static_cast<i64>(result.channels.size()))},
          {"estimates", {{"dgamma_relative_l2", result.dgamma_estimate}}},
          {"channels", columns}};
}

}  // namespace outgrad::validation
