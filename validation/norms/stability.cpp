// Evaluates the bounds of stability.h, rounding upwards, and classifies the channels.
#include "validation/norms/stability.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "kernels/host/errors.h"
#include "kernels/stores/mxfp8.h"
#include "validation/limits.h"

namespace outgrad::validation {

using kernels::i64;
using kernels::SpecError;

namespace {

constexpr double kUnit = 0x1p-24;  // fp32's unit roundoff, e in stability.h
// half of the least magnitude that rounds to infinity, which leaves room for every relative error here
constexpr double kFp32Overflow = 0x1p127;

// The arithmetic for which the derivation of stability.h is evaluated.
struct Arithmetic {
  double unit;      // roundoff
  double least;     // least subnormal: 2 h of its own underflow; 0 if nothing underflows
  bool fma;         // products that feed a sum are not rounded
  double overflow;  // infinite if nothing overflows
};
constexpr Arithmetic kFp32{kUnit, 0x1p-149, true, kFp32Overflow};
// long double of at least 64 bits. Its exponent range holds everything that can be formed from fp32 numbers.
constexpr Arithmetic kExtended{0x1p-64, 0, false, kInfinity};

// The next number above a value >= 0.
double above(double value) { return std::bit_cast<double>(std::bit_cast<std::uint64_t>(value) + 1); }

// A non-negative number that is at least the exact value of the expression it came from. The exact result of
// an operation on doubles is at most the double above the rounded result. A double that is given is taken as
// exact.
class Upper {
 public:
  Upper(double value)
      : value_(value) {}  // NOLINT(google-explicit-constructor): formulas mix bounds and exact numbers
  double value() const { return value_; }

  friend Upper operator+(Upper a, Upper b) {
    return a.value_ == 0 ? b : b.value_ == 0 ? a : upwards(a.value_ + b.value_);
  }
  friend Upper operator*(Upper a, Upper b) {
    return a.value_ == 0 || b.value_ == 0 ? Upper(0) : upwards(a.value_ * b.value_);
  }
  friend Upper operator/(Upper a, double exact) {
    return a.value_ == 0 ? Upper(0) : upwards(a.value_ / exact);
  }
  Upper& operator+=(Upper other) { return *this = *this + other; }

  friend Upper sqrt(Upper a) { return a.value_ == 0 ? a : upwards(std::sqrt(a.value_)); }
  // An upper bound of the difference from an exact number, for a difference that is known not to be negative.
  friend Upper minus(Upper a, double exact) {
    return a.value_ > exact ? upwards(a.value_ - exact) : Upper(0);
  }

 private:
  static Upper upwards(double rounded) { return std::isinf(rounded) ? rounded : above(rounded); }

  double value_;
};

Upper smaller(const Upper& a, const Upper& b) { return a.value() < b.value() ? a : b; }
Upper larger(const Upper& a, const Upper& b) { return a.value() < b.value() ? b : a; }

// (1 + a)(1 + b) - 1, without its cancellation.
Upper compound(const Upper& a, const Upper& b) { return a + b + a * b; }

// g(n) = n e / (1 - n e) <= n e (1 + 2 n e) while n e <= 1/2. For larger n e nothing is bounded. For example,
// a slot of 2^40 rows of 1024 columns adds 2^29 of them, and n e is 32.
Upper roundings(const Arithmetic& arithmetic, i64 n) {
  const double ne = static_cast<double>(n) * arithmetic.unit;
  if (!(ne <= 0.5)) return Upper(std::numeric_limits<double>::infinity());
  return Upper(ne) * (Upper(1) + 2 * ne);
}

constexpr double kE4m3Unit = 0x1p-4;

// r in stability.h: the relative error of storing y, beside the absolute one.
Upper stored_relative(const StorageFormat& format) {
  const Upper unit = kUnit;
  switch (format.store.kind) {
    case NormStoreKind::kPlain: return format.unit_roundoff;
    case NormStoreKind::kE4m3: return compound(Upper(1) / 17, compound(unit, unit));
    case NormStoreKind::kMxFp8: return 0x1p-3;
    case NormStoreKind::kInt8: return unit;
  }
  return kInfinity;
}

// The largest |y| for which the store's bound holds.
double largest_stored(const StorageFormat& format) {
  switch (format.store.kind) {
    case NormStoreKind::kPlain:
    case NormStoreKind::kMxFp8: return format.overflow;
    case NormStoreKind::kE4m3:
      return format.store.scale ? kLargestE4m3 * static_cast<double>(*format.store.scale) : format.overflow;
    case NormStoreKind::kInt8: return 0x1p126;  // the range of a group must not overflow
  }
  return 0;
}

// The quantities that do not depend on the channel.
struct RowModel {
  Arithmetic arithmetic;
  Norm norm;
  i64 columns;
  int mean_roundings;  // of a division by N; none if N is a power of two
  i64 depth;
  // G; U; h + 2^-149 (fp32 underflow), those of dx and of a y that has no store of its own
  Upper dy, unit_y, half_y;
  Upper forward_a, forward_b;  // AE, BE
  Upper rstd;  // R
  Upper format;  // u
  i64 column_depth;
  i64 slots, slot_levels;  // of the tree over rows; 0 if the sum is sequential

  Upper g(i64 n) const { return roundings(arithmetic, n); }
  Upper tiny(double multiple) const { return multiple * arithmetic.least; }
};

// The largest error of rounding a number of magnitude at most `largest` (normal) to nearest with unit
// roundoff u: half an ulp of the highest binade that the number can lie within. A number that is itself a
// power of two is not rounded.
Upper half_ulp(const Upper& largest, double unit) {
  const double value = largest.value();
  // 0, infinity or a subnormal double, which exceeds half of its ulp
  if (!std::isnormal(value)) return value;
  constexpr std::uint64_t kMantissa = (std::uint64_t{1} << 52) - 1;
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(value);
  return std::bit_cast<double>(bits & ~kMantissa) * ((bits & kMantissa) == 0 ? unit / 2 : unit);
}

// The depths of the sums of one row, and of one column over all rows.
struct Depths {
  i64 row, column, slots, slot_levels;
};

// The model for rows whose |xh| is at most x_max (or has rms 1 at most).
RowModel row_model(const StabilityOptions& options, i64 columns, const Arithmetic& arithmetic,
                   const Depths& depths, double x_max) {
  const auto g = [&](i64 n) { return roundings(arithmetic, n); };
  const auto tiny = [&](double multiple) { return Upper(multiple * arithmetic.least); };
  const Upper unit = arithmetic.unit;
  const Upper inverse_eps = Upper(1) / static_cast<double>(options.eps);
  const bool centred = options.norm == Norm::layer;
  const bool single = centred && columns == 1;  // x - mean = 0 and var = 0, exactly
  const int mean_roundings = std::has_single_bit(static_cast<kernels::u64>(columns)) ? 0 : 1;
  const Upper mean = !centred || single ? Upper(0)
                                        : g(depths.row + mean_roundings) *
                                                  (Upper(options.mean_ratio) + std::min(x_max, 1.0)) +
                                              tiny(0.5) * sqrt(inverse_eps);
  // <= 1/4, because eps is at least 2^-100. LayerNorm squares a difference that is rounded.
  const Upper h0 =
      single ? Upper(0) : g(depths.row + mean_roundings + (centred ? 4 : 2)) + tiny(2) * inverse_eps;
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
      .unit_y = compound(unit, stored_relative(options.format)),
      .half_y = Upper(options.format.half_subnormal) + tiny(1),
      .forward_a = normalise,
      .forward_b = (Upper(1) + normalise) * mean + tiny(0.5),
      .rstd = rstd,
      .format = options.format.unit_roundoff,
      .column_depth = depths.column,
      .slots = depths.slots,
      .slot_levels = depths.slot_levels,
  };
}

RowModel kernels_model(const StabilityOptions& options, i64 columns, double x_max = kInfinity) {
  const i64 slots = kernels::slot_count(options.rows, columns);
  const i64 levels = std::bit_width(static_cast<kernels::u64>(slots) - 1);
  return row_model(options, columns, kFp32,
                   {row_tree_depth(columns), column_tree_depth(options.rows, columns), slots, levels}, x_max);
}

// The affine error A |xh| + B of one channel's normalised value, before the backward pass rounds it.
struct Affine {
  Upper a, b;
  Upper at(const Upper& x) const { return a * x + b; }
};

// `half_y` is h + 2^-149 of the channel.
Affine reconstruction(const RowModel& row, const ChannelParameters& channel, const Upper& half_y, bool side) {
  if (side) return {row.forward_a, row.forward_b};
  const Upper a = compound(row.forward_a, row.unit_y);
  const Upper beta = std::abs(static_cast<double>(channel.beta));
  const Upper b = row.forward_b * (Upper(1) + row.unit_y) +
                  (row.unit_y * beta + half_y) / std::abs(static_cast<double>(channel.gamma));
  return {a, b};
}

// The error of xh at |xh| = 1 that is caused only by the storage of y, whose absolute part is `half_y`.
double storage_error(const StabilityOptions& options, double half_y, double gamma, double rho) {
  const double u = std::max(stored_relative(options.format).value(), kUnit);
  return u * (1 + rho) + half_y / gamma + 3 * kUnit;
}

// 1/gamma must be a normal number. Otherwise (gamma is zero, below 2^-128 or beyond 2^126) its relative
// rounding error is unbounded.
bool reciprocal_is_normal(float gamma) { return std::isnormal(1.0f / gamma) && std::abs(gamma) <= 0x1p126f; }

bool overflows(const RowModel& row, const StorageFormat& format, float gamma, float beta, double x_hat) {
  const Upper normalised = x_hat + row.forward_a * x_hat + row.forward_b;
  const Upper y =
      (Upper(std::abs(static_cast<double>(gamma))) * normalised + std::abs(static_cast<double>(beta))) *
      (Upper(1) + kUnit);
  return !(y.value() < largest_stored(format)) || !(y.value() < kFp32Overflow);
}

// What storing y may cost beside its relative error in the channels that share a scale.
struct GroupErrors {
  Upper half_y;  // h + 2^-149
  Upper scale;  // the largest s; 0 if there is none
};

// Those of every group of a row, for rows with |xh| <= x. A y without a store of its own has one group.
class StoreErrors {
 public:
  StoreErrors(const StabilityOptions& options, const RowModel& row,
              const std::vector<ChannelParameters>& channels, double x)
      : store_(options.format.store),
        group_(static_cast<size_t>(store_.group_of(static_cast<i64>(channels.size())))) {
    if (store_.plain()) {
      groups_.push_back({row.half_y, 0});
      return;
    }
    for (size_t begin = 0; begin < channels.size(); begin += group_) {
      groups_.push_back(errors_of(options.format, row, {channels.data() + begin, group_}, x));
    }
  }

  const Upper& half_y(size_t j) const { return groups_[j / group_].half_y; }
  bool begins_group(size_t j) const { return j % group_ == 0; }

  // An upper bound on the error of storing a number of channel j that is at most y in magnitude, beside the
  // affine one.
  Upper at_most(size_t j, const Upper& y, const RowModel& row) const {
    const auto& [half, scale] = groups_[j / group_];
    switch (store_.kind) {
      case NormStoreKind::kPlain: return half_ulp(y + row.tiny(1), row.format.value()) + half;
      case NormStoreKind::kE4m3: return scale * (16 + 0x1p-13) + half;
      case NormStoreKind::kMxFp8:
        return smaller(larger(mxfp8_saturated(y), half_ulp(y, kE4m3Unit)), scale * 64) + half;
      case NormStoreKind::kInt8: return row.unit_y * y + half;
    }
    return kInfinity;
  }

 private:
  static GroupErrors errors_of(const StorageFormat& format, const RowModel& row,
                               std::span<const ChannelParameters> channels, double x) {
    const Upper kept = (Upper(1) + row.forward_a) * x + row.forward_b;
    Upper largest = 0;
    double most = -kInfinity, least = kInfinity, most_beta = -kInfinity, least_beta = kInfinity, first = 0,
           second = 0;
    for (const ChannelParameters& channel : channels) {
      if (overflows(row, format, channel.gamma, channel.beta, x)) return {kInfinity, kInfinity};
      const double gamma = std::abs(static_cast<double>(channel.gamma)), beta = channel.beta;
      const Upper product = gamma * kept, y = (product + std::abs(beta)) * (Upper(1) + kUnit) + row.tiny(1);
      // of the fma, and of the sums here
      const double slack = y.value() * (kUnit * (1 + 0x1p-20)) + 0x1p-149;
      largest = larger(largest, y);
      most = std::max(most, product.value() + beta + slack),
      least = std::min(least, beta - product.value() - slack);
      most_beta = std::max(most_beta, beta), least_beta = std::min(least_beta, beta);
      if (gamma > first)
        std::swap(first, second), first = gamma;
      else
        second = std::max(second, gamma);
    }
    switch (format.store.kind) {
      case NormStoreKind::kPlain: break;
      case NormStoreKind::kE4m3: {
        const Upper scale = format.store.scale
                                ? Upper(*format.store.scale)
                                : larger(largest / kLargestE4m3 * (Upper(1) + kUnit), kLeastScale);
        return {scale * (0x1p-10 * (1 + 0x1p-20)) + row.tiny(1), scale};
      }
      case NormStoreKind::kMxFp8: {
        const double y = largest.value(),
                     scale = std::max(y > 0 ? std::ldexp(0x1p-8, std::ilogb(y)) : 0, 0x1p-127);
        return {Upper(scale * 0x1p-10) + row.tiny(1), scale};
      }
      case NormStoreKind::kInt8: {
        if (channels.size() == 1) return {Upper(kLeastScale) + row.tiny(1), kLeastScale};
        const Upper by_channel = Upper(std::max(most - least, 0.0)) * (1 + 0x1p-50);
        const Upper by_row =
            (Upper(1) + row.forward_a) *
                sqrt(static_cast<double>(row.columns) * (Upper(first * first) + second * second)) +
            row.forward_b * (Upper(first) + second) + Upper(most_beta - least_beta) * (1 + 0x1p-50) +
            2 * kUnit * (1 + 0x1p-20) * largest + row.tiny(1);
        const Upper scale = larger(
            smaller(by_channel, by_row) / kLastInt8 * (Upper(1) + 2 * kUnit * (1 + 0x1p-20)), kLeastScale);
        return {scale * ((0.5 + 0x1p-14) * (1 + kUnit)) + row.tiny(1), scale};
      }
    }
    return {kInfinity, kInfinity};
  }

  // What saturation may cost in mxfp8; below it, y is rounded.
  static Upper mxfp8_saturated(const Upper& y) {
    const double most = y.value();
    if (!std::isnormal(most)) return most;
    double scale = std::ldexp(1.0, std::ilogb(most / kLargestE4m3));
    if (kLargestE4m3 * scale >= most) scale /= 2;
    // exact: all are multiples of an ulp of y
    return std::max(std::min(most, 512 * scale) - kLargestE4m3 * scale, 32 * scale);
  }

  const NormStore& store_;
  const size_t group_;
  std::vector<GroupErrors> groups_;
};

ChannelClass classify(const StabilityOptions& options, const RowModel& row, const ChannelParameters& channel,
                      double half_y) {
  if (channel.gamma == 0) return ChannelClass::kZeroGamma;
  if (!reciprocal_is_normal(channel.gamma)) return ChannelClass::kUnstable;
  if (overflows(row, options.format, channel.gamma, channel.beta, options.x_hat_max))
    return ChannelClass::kUnstable;
  if (storage_error(options, half_y, std::abs(static_cast<double>(channel.gamma)), channel.rho) > options.tau)
    return ChannelClass::kUnstable;
  return channel.bits_lost <= 1 ? ChannelClass::kStable : ChannelClass::kDegraded;
}

// The bounds when the channels marked in `side` are read from a side buffer.
class BoundsEvaluator {
 public:
  // The models of all rows, and of the rows with |xh| <= x_hat_max.
  BoundsEvaluator(const StabilityOptions& options, const RowModel& every, const RowModel& conditional,
                  const std::vector<ChannelParameters>& channels, std::vector<bool> side)
      : options_(options), rows_{&every, &conditional}, row_(&every), channels_(channels),
        side_(std::move(side)) {}

  NormBounds evaluate() {
    const double widest = largest_x_hat(row_->norm, row_->columns);
    const double x_max[2] = {widest, std::min(options_.x_hat_max, widest)};
    NormBounds bounds{};
    bounds.channels.resize(channels_.size());
    for (int range = 0; range < 2; ++range) {
      const auto at = [range](Bound& bound) -> double& {
        return range == 0 ? bound.worst : bound.conditional;
      };
      row_ = rows_[range];
      stores_.emplace(options_, *row_, channels_, x_max[range]);
      sum_over_channels(x_max[range]);
      const bool row_overflows = any_overflow(x_max[range]);
      // Equal |gamma| and |beta| have equal bounds if one scale is theirs; this finds the first such channel.
      std::unordered_map<kernels::u64, size_t> seen[2];
      for (size_t j = 0; j < channels_.size(); ++j) {
        if (stores_->begins_group(j)) seen[0].clear();
        ChannelBounds& channel = bounds.channels[j];
        const kernels::u64 key = kernels::u64{std::bit_cast<kernels::u32>(std::abs(channels_[j].gamma))}
                                     << 32 |
                                 std::bit_cast<kernels::u32>(std::abs(channels_[j].beta));
        if (const auto [first, is_new] = seen[side_[j]].try_emplace(key, j); !is_new) {
          ChannelBounds& known = bounds.channels[first->second];
          at(channel.x_hat) = at(known.x_hat), at(channel.dx) = at(known.dx),
          at(channel.dgamma) = at(known.dgamma);
          continue;
        }
        const bool usable = side_[j] || (reciprocal_is_normal(channels_[j].gamma) &&
                                         !overflows(*row_, options_.format, channels_[j].gamma,
                                                    channels_[j].beta, x_max[range]));
        at(channel.x_hat) = usable ? x_hat(j, x_max[range]).value() : kInfinity;
        at(channel.dx) = usable && !row_overflows ? dx(j, x_max[range]).value() : kInfinity;
        at(channel.dgamma) = usable && !row_overflows ? dgamma(j, x_max[range]).value() : kInfinity;
        at(bounds.dx) = std::max(at(bounds.dx), at(channel.dx));
      }
      at(bounds.dx_rms) = row_overflows || !all_reciprocals_normal() ? kInfinity : dx_rms().value();
      const double scale = (row_->dy * rms_gamma_).value();
      at(bounds.dx_rms_relative) = at(bounds.dx_rms) / scale * (1 + 0x1p-50);  // the quotient's own rounding
    }
    bounds.dx_absolute = row_->half_y.value();
    const Upper dbeta = dbeta_bound();
    bounds.dbeta = (dbeta * static_cast<double>(options_.rows)).value() < row_->arithmetic.overflow
                       ? dbeta.value()
                       : kInfinity;
    bounds.rstd = row_->rstd.value();
    return bounds;
  }

 private:
  Upper absolute(float value) const { return std::abs(static_cast<double>(value)); }

  // The first addition of a slot, to 0, is exact. No node of the tree over the slots exceeds the sum of
  // bounds on its slots, because rounding is monotonic and such a sum is 2^l times a number of 24 bits. So
  // each node of level l rounds by at most half an ulp of that sum.
  Upper dbeta_bound() const {
    if (!row_->slots) return row_->g(row_->column_depth) * row_->dy;
    const Upper slot_rows = static_cast<double>((options_.rows + row_->slots - 1) / row_->slots);
    const Upper within = row_->g(row_->column_depth - 1 - row_->slot_levels);
    const Upper slot_error = within * slot_rows * row_->dy;
    // The sum of a single row is the row itself. Other sums are raised to a number of 24 bits.
    const Upper slot_sum =
        within.value() == 0 ? row_->dy : (slot_rows * row_->dy + slot_error) * (1 + 0x1p-23);
    const Upper level = half_ulp(slot_sum, row_->arithmetic.unit);
    const Upper total =
        (slot_error + static_cast<double>(row_->slot_levels) * level) * static_cast<double>(row_->slots);
    return total / static_cast<double>(options_.rows);
  }

  // The error of storing y = gamma xh + beta for |xh| <= x, before the division by gamma. It is the lesser of
  // two bounds: one that is affine in |xh|, like A and B, and half an ulp of the highest binade that y can
  // reach.
  Upper affine_storage(size_t j, const Upper& x) const {
    const Upper kept = (Upper(1) + row_->forward_a) * x + row_->forward_b;
    return row_->unit_y * (absolute(channels_[j].gamma) * kept + absolute(channels_[j].beta)) +
           stores_->half_y(j);
  }
  Upper binade_storage(size_t j, const Upper& x) const {
    const Upper kept = (Upper(1) + row_->forward_a) * x + row_->forward_b;
    const Upper y = absolute(channels_[j].gamma) * kept + absolute(channels_[j].beta);
    const Upper fma = half_ulp(y, row_->arithmetic.unit);
    return fma + stores_->at_most(j, y + fma, *row_);
  }

  // Sums over the channels for rows where every |xh| <= x.
  void sum_over_channels(const Upper& x) {
    Upper gamma = 0, gamma_squared = 0, offset = 0, binade = 0;
    for (size_t j = 0; j < channels_.size(); ++j) {
      const Upper g = absolute(channels_[j].gamma);
      gamma += g;
      gamma_squared += g * g;
      if (side_[j]) continue;
      offset += row_->unit_y * absolute(channels_[j].beta) + stores_->half_y(j);
      binade += binade_storage(j, x);
    }
    const double n = static_cast<double>(channels_.size());
    mean_gamma_ = gamma / n;
    gamma_squared_ = gamma_squared;
    rms_gamma_ = sqrt(gamma_squared / n);
    gamma_x_ = smaller(rms_gamma_, x * mean_gamma_);  // the other bound is that of Cauchy-Schwarz
    forward_s_ = row_->forward_b * mean_gamma_;
    storage_offset_ = offset / n + row_->unit_y * forward_s_;
    storage_binade_ = binade / n;
    m1_ = row_->norm == Norm::layer ? row_->dy * mean_gamma_ : Upper(0);
    m1_error_ = row_->norm == Norm::layer
                    ? row_->g(row_->depth + 1 + row_->mean_roundings) * m1_ + row_->tiny(2)
                    : Upper(0);
  }

  // |m2| and D2 for rows where mean |gamma xh| <= gamma_x.
  struct Product {
    Upper size, error;
  };
  Product m2(const Upper& gamma_x) const {
    const Upper affine = row_->unit_y * (Upper(1) + row_->forward_a) * gamma_x + storage_offset_;
    const Upper mean_error = row_->forward_a * gamma_x + forward_s_ + smaller(affine, storage_binade_);
    const Upper rounded = row_->g(row_->depth + 2 + row_->mean_roundings) * row_->dy * (gamma_x + mean_error);
    return {row_->dy * gamma_x, row_->dy * mean_error + rounded + row_->tiny(2) + row_->tiny(1) * row_->dy};
  }

  // Whether a sum or product of the backward pass may leave the range of fp32. A sum's partial sums are below
  // the sum of its terms' magnitudes.
  bool backward_overflows(double x_max) const {
    if (std::isinf(row_->arithmetic.overflow)) return false;
    Upper centred = 0, weighted = 0, gamma = 0, x_hat_largest = 0;
    for (size_t j = 0; j < channels_.size(); ++j) {
      const Upper g = absolute(channels_[j].gamma);
      const Upper kept = (Upper(1) + row_->forward_a) * x_max + row_->forward_b;
      const Upper y = (Upper(1) + row_->unit_y) * (g * kept + absolute(channels_[j].beta)) +
                      stores_->half_y(j) + absolute(channels_[j].beta);
      centred = larger(centred, side_[j] ? kept : y);
      weighted = larger(weighted, side_[j] ? g * kept : y);
      gamma = larger(gamma, g);
      if (side_[j] || reciprocal_is_normal(channels_[j].gamma))
        x_hat_largest = larger(x_hat_largest, x_max + x_hat(j, x_max));
    }
    const auto fits = [&](const Upper& value) { return 2 * value.value() < row_->arithmetic.overflow; };
    const double n = static_cast<double>(row_->columns), rows = static_cast<double>(options_.rows);
    return !(
        fits(n * row_->dy * gamma) && fits(n * row_->dy * weighted) && fits(rows * row_->dy * centred) &&
        fits(row_->dy * gamma + m1_ + m1_error_ + x_hat_largest * (m2(gamma_x_).size + m2(gamma_x_).error)));
  }

  bool any_overflow(double x_max) const {
    for (size_t j = 0; j < channels_.size(); ++j) {
      if (!side_[j] && overflows(*row_, options_.format, channels_[j].gamma, channels_[j].beta, x_max))
        return true;
    }
    return backward_overflows(x_max);
  }

  bool all_reciprocals_normal() const {
    for (size_t j = 0; j < channels_.size(); ++j) {
      if (!side_[j] && !reciprocal_is_normal(channels_[j].gamma)) return false;
    }
    return true;
  }

  // The error of xh before the backward pass rounds it, for |xh| <= x.
  Upper reconstruction_error(size_t j, const Upper& x) const {
    const Upper forward = row_->forward_a * x + row_->forward_b;
    if (side_[j]) return forward;
    return forward + smaller(affine_storage(j, x), binade_storage(j, x)) /
                         std::abs(static_cast<double>(channels_[j].gamma));
  }

  // X. A side channel's xh is read unchanged.
  Upper x_hat(size_t j, const Upper& x) const {
    const Upper error = reconstruction_error(j, x);
    return side_[j] ? error : read_error(error, x);
  }
  Upper read_error(const Upper& error, const Upper& x) const {
    return (Upper(1) + row_->g(3)) * error + row_->g(3) * x + row_->tiny(1);
  }

  // Dp, computed from |xh|, X, |a| and |p|.
  Upper p_error(const Upper& x, const Upper& x_error, const Upper& a, const Upper& p,
                const Product& m2) const {
    const Upper m = m2.size + m2.error, propagated = m1_error_ + x * m2.error + x_error * m;
    if (!row_->arithmetic.fma)
      return propagated + row_->g(4) * (a + m1_ + m1_error_ + (x + x_error) * m) + row_->tiny(2);
    const Upper inner = propagated + row_->arithmetic.unit * (a + m1_ + m1_error_);
    return inner + row_->arithmetic.unit * (p + inner) + row_->tiny(2);
  }

  // dx / rstd, computed from Dp and |p|.
  Upper outer(const Upper& p_error, const Upper& p) const {
    const Upper v = compound(compound(row_->rstd, row_->arithmetic.unit), row_->format);
    return p_error + v * (p + p_error);
  }

  // |xh_j| itself limits the rest of the row, whose squares sum to at most N - xh_j^2. So this is the maximum
  // over pieces of [0, x].
  Upper dx(size_t j, double x) const {
    constexpr int kMostPieces = 8;
    // If xh_j has little of the row's squares, it takes little from the rest.
    const int pieces = 16 * x * x <= static_cast<double>(channels_.size()) ? 1 : kMostPieces;
    Upper most = 0;
    for (int k = 0; k < pieces; ++k) {
      const double low = x * k / pieces, high = k + 1 == pieces ? x : x * (k + 1) / pieces;
      most = larger(most, dx_between(j, low, high));
    }
    return most;
  }

  Upper dx_between(size_t j, double low, double high) const {
    const double n = static_cast<double>(channels_.size()), own = static_cast<double>(channels_[j].gamma);
    const double low_squared = low * low * (1 - 0x1p-50);
    const Upper gamma = absolute(channels_[j].gamma), x = high;
    // A product of two fp32 numbers is exact.
    const Upper rest_gamma = sqrt(minus(gamma_squared_, own * own)),
                rest_squares = minus(Upper(n), low_squared);
    const Upper gamma_x = smaller(gamma_x_, (gamma * x + rest_gamma * sqrt(rest_squares)) / n);
    const Product product = m2(gamma_x);
    const Upper a = row_->dy * gamma;
    const Upper p = smaller(a + m1_ + x * product.size,
                            row_->dy * projected(gamma, rest_gamma, rest_squares, low_squared, x));
    return outer(p_error(x, x_hat(j, x), a, p, product), p);
  }

  // p = sum_i a_i (delta_ij - 1/N - xh_j xh_i / N) (RMSNorm: without 1/N). With sum_i xh_i = 0,
  // Cauchy-Schwarz over i != j gives
  //   |p| <= G (|gamma_j| |1 - (1 + xh_j^2) / N|
  //             + rest_gamma sqrt(N - 1 - 2 xh_j^2 + xh_j^2 (N - xh_j^2)) / N).
  // For RMSNorm, the numerator over N is only xh_j^2, and the root is xh_j sqrt(N - xh_j^2).
  Upper projected(const Upper& gamma, const Upper& rest_gamma, const Upper& rest_squares, double low_squared,
                  const Upper& x) const {
    const double n = static_cast<double>(channels_.size()), one = row_->norm == Norm::layer ? 1 : 0;
    const Upper above_one = minus((x * x + one) / n, 1),
                below_one = minus(Upper(1), (one + low_squared) / n * (1 - 0x1p-50));
    const Upper others = one != 0
                             ? sqrt(minus(n + x * x * rest_squares, (1 + 2 * low_squared) * (1 - 0x1p-50)))
                             : x * sqrt(rest_squares);
    return gamma * larger(above_one, below_one) + rest_gamma * others / n;
  }

  Upper dx_rms() const {
    Upper squares = 0;
    Upper a = 0;
    for (size_t j = 0; j < channels_.size(); ++j) {
      const Affine error = reconstruction(*row_, channels_[j], stores_->half_y(j), side_[j]);
      if (a.value() < error.a.value()) a = error.a;
      squares += error.b * error.b;
    }
    const Affine rms{a, sqrt(squares / static_cast<double>(channels_.size()))};
    const Upper scale = row_->dy * rms_gamma_;
    return outer(p_error(1, read_error(rms.at(1), 1), scale, scale, m2(gamma_x_)), scale);
  }

  Upper dgamma(size_t j, const Upper& x) const {
    const Upper error = reconstruction_error(j, x);
    const Upper tree = row_->g(row_->column_depth + 3);
    const Upper underflow =
        side_[j] ? row_->tiny(2)
                 : row_->tiny(1) + row_->tiny(1) / std::abs(static_cast<double>(channels_[j].gamma));
    return row_->dy * (error + tree * (x + error)) + underflow;
  }

  const StabilityOptions& options_;
  const RowModel* const rows_[2];
  const RowModel* row_;
  const std::vector<ChannelParameters>& channels_;
  const std::vector<bool> side_;
  std::optional<StoreErrors> stores_;
  Upper mean_gamma_ = 0, gamma_squared_ = 0, rms_gamma_ = 0, gamma_x_ = 0, m1_ = 0, m1_error_ = 0;
  // parts of mean |gamma (xh~ - xh)|: the forward's, and two bounds on that of storage
  Upper forward_s_ = 0, storage_offset_ = 0, storage_binade_ = 0;
};

void check_finite(const std::vector<float>& values, const std::string& label, const std::string& name) {
  for (size_t j = 0; j < values.size(); ++j) {
    if (!std::isfinite(values[j]))
      throw SpecError(label, fmt::format("{}[{}]", name, j),
                      std::isnan(values[j]) ? "NaN" : "infinite in fp32");
  }
}

void check_options(const StabilityOptions& options) {
  const auto require = [](bool holds, const char* place, const char* why) {
    if (!holds) throw SpecError("stability", place, why);
  };
  // Below 2^-100, underflow in the variance would no longer be small compared with eps.
  require(options.eps >= 0x1p-100f && options.eps <= 0x1p100f, "eps", "must be between 2^-100 and 2^100");
  require(options.mean_ratio >= 0 && std::isfinite(options.mean_ratio), "mean ratio",
          "must be finite and not negative");
  require(options.dy_max > 0 && std::isfinite(options.dy_max), "dy bound", "must be finite and positive");
  require(options.x_hat_max > 0 && std::isfinite(options.x_hat_max), "bound on |x^|",
          "must be finite and positive");
  require(options.tau > 0 && std::isfinite(options.tau), "tau", "must be finite and positive");
  constexpr i64 kMaxRows = i64{1} << 40;
  require(options.rows >= 1 && options.rows <= kMaxRows, "rows", "must be between 1 and 2^40");
}

// The relative rms error of rounding to nearest, for a logarithmically uniform significand m in [1, 2). The
// error is uniform in +-u 2^e, so it is u sqrt(E[m^-2] / 3) with E[m^-2] = (1 - 1/4) / (2 ln 2).
const double kRmsRounding = std::sqrt(0.75 / (2 * std::log(2.0)) / 3);

// In int8 the error is uniform over a cell. Its width follows from the range of a group, here that of `group`
// normal numbers instead of the class's largest, `widest`: about twice their expected maximum, by the Gumbel
// limit (David and Nagaraja, Order Statistics, 3rd ed. 2003, section 10.5).
double estimated_error(const StorageFormat& format, double half_y, double gamma, double rho, double group,
                       double widest) {
  const double root = std::sqrt(2 * std::log(std::max(group, 2.0)));
  constexpr double kEuler = 0.5772156649015329, kLogOf4Pi = 2.5310242469692907;
  const double largest = root - (std::log(root * root / 2) + kLogOf4Pi) / (2 * root) + kEuler / root;
  switch (format.store.kind) {
    case NormStoreKind::kPlain:
      return kRmsRounding * std::max(format.unit_roundoff, kUnit) * std::hypot(1.0, rho);
    case NormStoreKind::kE4m3:
    case NormStoreKind::kMxFp8: return kRmsRounding * kE4m3Unit * std::hypot(1.0, rho);  // without saturation
    case NormStoreKind::kInt8: return half_y / gamma / std::sqrt(3.0) * std::min(largest / widest, 1.0);
  }
  return kInfinity;
}

// Matches "ln", "ln_1", "ln2", "ln_final", but not "lnear".
bool is_ln(std::string_view component) {
  return component.starts_with("ln") &&
         (component.size() == 2 || !std::isalpha(static_cast<unsigned char>(component[2])));
}

// "gn", "gn1", and what says it in full.
bool is_group_norm(std::string_view component) {
  const bool short_name =
      component.starts_with("gn") && component.find_first_not_of("0123456789_", 2) == std::string_view::npos;
  return short_name || component.find("group_norm") != std::string_view::npos ||
         component.find("groupnorm") != std::string_view::npos;
}

// The part of a name behind its last separator, in small letters; and the part up to there.
std::string last_component(std::string_view stem) {
  std::string component(stem.substr(stem.find_last_of("./") + 1));  // npos + 1 is 0
  std::transform(component.begin(), component.end(), component.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return component;
}
std::string_view parent_of(std::string_view stem) { return stem.substr(0, stem.find_last_of("./") + 1); }

bool names_a_norm(std::string_view component) {
  return component.find("norm") != std::string_view::npos || is_ln(component) || is_group_norm(component);
}

struct Suffix {
  std::string_view gamma, beta, running_mean;
  bool any_stem;  // the suffix alone identifies a norm
};

constexpr Suffix kSuffixes[] = {
    {".weight", ".bias", ".running_mean", false}, {".scale", ".bias", ".mean", false},
    {".gamma", ".beta", ".moving_mean", true},    {"/gamma", "/beta", "/moving_mean", true},
    {"_gamma", "_beta", "_moving_mean", true},    {"gamma", "beta", "moving_mean", true},
};

// The result without its bounds and estimates.
StabilityResult classified(const std::vector<float>& gamma, const std::vector<float>& beta,
                           const StabilityOptions& options, const std::string& label,
                           const std::string& gamma_name, const std::string& beta_name) {
  check_options(options);
  const size_t n = gamma.size();
  constexpr size_t kMaxColumns = size_t{1} << 20;  // keeps every g(n) well below 1/2; wider than any norm
  if (n < 1 || n > kMaxColumns)
    throw SpecError(label, gamma_name,
                    fmt::format("{} channels, where 1 to {} are analysed", n, kMaxColumns));
  if (!beta.empty() && beta.size() != n)
    throw SpecError(label, beta_name, fmt::format("{} channels, but {} has {}", beta.size(), gamma_name, n));
  if (!beta.empty() && options.norm == Norm::rms) throw SpecError(label, beta_name, "RMSNorm has no beta");
  check_finite(gamma, label, gamma_name);
  check_finite(beta, label, beta_name);
  check_store(options.format.store, static_cast<i64>(n), label, gamma_name);

  const RowModel row = kernels_model(options, static_cast<i64>(n));
  StabilityResult result{};
  result.options = options;
  result.forward_x_hat = (row.forward_a + row.forward_b).value();
  result.channels.resize(n);
  for (size_t j = 0; j < n; ++j) {
    result.channels[j].gamma = gamma[j];
    result.channels[j].beta = beta.empty() ? 0.0f : beta[j];
  }
  const double widest = std::min(options.x_hat_max, largest_x_hat(options.norm, static_cast<i64>(n)));
  const StoreErrors stores(options, row, result.channels, widest);
  // gamma = 1 and beta = 0 everywhere.
  ChannelParameters one{};
  one.gamma = 1;
  const std::vector<ChannelParameters> plain(
      static_cast<size_t>(options.format.store.group_of(static_cast<i64>(n))), one);
  const double reference =
      storage_error(options, StoreErrors(options, row, plain, widest).half_y(0).value(), 1, 0);
  for (size_t j = 0; j < n; ++j) {
    ChannelParameters& channel = result.channels[j];
    const double half_y = stores.half_y(j).value();
    const double g = std::abs(static_cast<double>(channel.gamma));
    channel.rho = g == 0 ? kInfinity : std::abs(static_cast<double>(channel.beta)) / g;
    channel.bits_lost =
        g == 0 ? kInfinity : std::log2(storage_error(options, half_y, g, channel.rho) / reference);
    channel.x_hat_estimate =
        estimated_error(options.format, half_y, g, channel.rho, static_cast<double>(plain.size()), widest);
    channel.channel_class = classify(options, row, channel, half_y);
    ++result.count[static_cast<size_t>(channel.channel_class)];
    if (channel.channel_class == ChannelClass::kUnstable || channel.channel_class == ChannelClass::kZeroGamma)
      result.side_buffer.push_back(j);
  }
  return result;
}

nlohmann::json bound_json(const Bound& bound) {
  return {{"worst", bound.worst}, {"conditional", bound.conditional}};
}

nlohmann::json summary_json(const NormBounds& bounds) {
  Bound x_hat{0, 0}, dgamma{0, 0};
  for (const ChannelBounds& channel : bounds.channels) {
    x_hat = {std::max(x_hat.worst, channel.x_hat.worst),
             std::max(x_hat.conditional, channel.x_hat.conditional)};
    dgamma = {std::max(dgamma.worst, channel.dgamma.worst),
              std::max(dgamma.conditional, channel.dgamma.conditional)};
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
  StorageFormat format = storage_format("f32");
  format.name = name;
  format.tau = 0x1p-2;
  constexpr i64 kInt8Group = 64;
  if (name == "e4m3") {
    format.store = {.kind = NormStoreKind::kE4m3};
  } else if (name == "mxfp8") {
    format.store = {.kind = NormStoreKind::kMxFp8, .group = kernels::Format<kernels::MxFp8>::kBlock};
  } else if (name == "int8") {
    format.store = {.kind = NormStoreKind::kInt8, .group = kInt8Group};
  } else if (name == "int8_row") {
    format.store = {.kind = NormStoreKind::kInt8};
  } else {
    throw SpecError("stability", "format",
                    fmt::format("'{}' is not one of {}", name, fmt::join(kNormFormats, ", ")));
  }
  return format;
}

const char* to_string(ChannelClass channel_class) {
  constexpr std::array kNames{"stable", "degraded", "unstable", "zero_gamma"};
  return kNames.at(static_cast<size_t>(channel_class));
}

const char* to_string(Norm norm) { return norm == Norm::layer ? "layernorm" : "rmsnorm"; }

// Missing terms are added exactly, so a fold that has only the first m values rounds ceil(log2 m) times in a
// row.
int row_tree_depth(i64 columns) {
  const i64 steps = kernels::row_steps(columns);
  const i64 groups = (steps + kernels::kGroupSteps - 1) / kernels::kGroupSteps;
  const i64 chunks = (columns + kernels::kChunkTerms - 1) / kernels::kChunkTerms;
  const auto levels = [](i64 values) {
    return static_cast<int>(std::bit_width(static_cast<kernels::u64>(values) - 1));
  };
  return levels(std::min<i64>(columns, kernels::kChunkTerms)) +
         levels(std::min<i64>(steps, kernels::kGroupSteps)) + static_cast<int>(groups - 1) +
         levels(std::min<i64>(chunks, kernels::kTreeLanes));
}

int column_tree_depth(i64 rows, i64 columns) {
  const i64 slots = kernels::slot_count(rows, columns);
  return static_cast<int>((rows + slots - 1) / slots) +
         static_cast<int>(std::bit_width(static_cast<kernels::u64>(slots)) - 1);
}

StabilityResult analyse_stability(const std::vector<float>& gamma, const std::vector<float>& beta,
                                  const StabilityOptions& options, const std::string& label,
                                  const std::string& gamma_name, const std::string& beta_name) {
  StabilityResult result = classified(gamma, beta, options, label, gamma_name, beta_name);
  const size_t n = gamma.size();
  const RowModel every = kernels_model(options, static_cast<i64>(n)),
                 conditional = kernels_model(options, static_cast<i64>(n), options.x_hat_max);
  std::vector<bool> side(n, false);
  for (const size_t j : result.side_buffer) side[j] = true;
  double estimate_squares = 0;
  for (const ChannelParameters& channel : result.channels)
    estimate_squares += channel.x_hat_estimate * channel.x_hat_estimate;
  result.dgamma_estimate = std::sqrt(estimate_squares / static_cast<double>(n));
  result.from_output =
      BoundsEvaluator(options, every, conditional, result.channels, std::vector<bool>(n, false)).evaluate();
  result.recommended = result.side_buffer.empty()
                           ? result.from_output
                           : BoundsEvaluator(options, every, conditional, result.channels, side).evaluate();
  return result;
}

std::vector<size_t> side_channels(const std::vector<float>& gamma, const std::vector<float>& beta,
                                  const StabilityOptions& options) {
  return classified(gamma, beta, options, "stability", "gamma", "beta").side_buffer;
}

NormBounds reference_bounds(const StabilityResult& result) {
  StabilityOptions options = result.options;
  options.format = {
      .name = "exact", .unit_roundoff = 0, .half_subnormal = 0, .overflow = kInfinity, .bytes = 0};
  const i64 columns = static_cast<i64>(result.channels.size());
  const auto row = [&](double x_max) {
    return row_model(options, columns, kExtended, {columns, options.rows, 0, 0}, x_max);
  };
  const RowModel every = row(kInfinity), conditional = row(options.x_hat_max);
  return BoundsEvaluator(options, every, conditional, result.channels,
                         std::vector<bool>(result.channels.size(), true))
      .evaluate();
}

double largest_x_hat(Norm norm, i64 columns) {
  // the root's own rounding
  return std::sqrt(static_cast<double>(norm == Norm::layer ? columns - 1 : columns)) * (1 + 0x1p-50);
}

double largest_x(i64 columns) {
  // N (2 x)^2 <= 2^125, which is far enough below 2^128 for every rounding and for eps.
  const int levels = static_cast<int>(std::bit_width(static_cast<kernels::u64>(columns) - 1));
  return std::ldexp(1.0, (123 - levels) / 2);
}

double rho_quantile(const StabilityResult& result, double fraction) {
  std::vector<double> rho;
  for (const ChannelParameters& channel : result.channels) rho.push_back(channel.rho);
  const auto rank =
      rho.begin() + static_cast<std::ptrdiff_t>(std::llround(fraction * static_cast<double>(rho.size() - 1)));
  std::nth_element(rho.begin(), rank, rho.end());
  return *rank;
}

std::vector<NormNames> detect_norms(const TensorFile& file) {
  std::map<std::string, const TensorInfo*> by_name;
  for (const TensorInfo& tensor : file.tensors()) by_name[tensor.name] = &tensor;
  std::set<std::string, std::less<>> with_convolutions;  // modules, by name
  for (const TensorInfo& tensor : file.tensors()) {
    constexpr std::string_view kWeight = ".weight";
    if (tensor.shape.size() < 3 || !tensor.name.ends_with(kWeight)) continue;
    with_convolutions.emplace(
        parent_of(std::string_view(tensor.name).substr(0, tensor.name.size() - kWeight.size())));
  }
  std::vector<NormNames> norms;
  for (const auto& [name, gamma] : by_name) {
    if (gamma->shape.size() != 1) continue;
    for (const Suffix& suffix : kSuffixes) {
      if (!name.ends_with(suffix.gamma)) continue;
      const std::string stem = name.substr(0, name.size() - suffix.gamma.size());
      const std::string component = last_component(stem);
      if ((!suffix.any_stem && !names_a_norm(component)) ||
          by_name.contains(stem + std::string(suffix.running_mean)))
        break;
      const auto beta = by_name.find(stem + std::string(suffix.beta));
      norms.push_back({stem.empty() ? name : stem, name, beta == by_name.end() ? "" : beta->first,
                       is_group_norm(component), with_convolutions.contains(parent_of(stem))});
      break;
    }
  }
  return norms;
}

std::optional<float> known_weight_offset(const TensorFile& file, const NormNames& norm,
                                         const std::string& model_type) {
  // The model types of transformers all of whose norms of this kind compute x^ (1 + w): RMSNorms, which have
  // no beta (a vision tower beside them has LayerNorms with plain weights), and Nemotron's LayerNorm1P.
  static const std::set<std::string, std::less<>> rms = {
      "gemma", "gemma2", "gemma3", "gemma3_text", "recurrent_gemma", "t5gemma", "vaultgemma"};
  if (model_type == "nemotron") return 1.0f;
  if (!model_type.empty())
    return rms.contains(model_type) && norm.beta.empty() ? std::optional(1.0f) : std::nullopt;
  // Gemma 2 and 3 have a norm on either side of the feed-forward part; Gemma 3n has them too, with plain
  // weights, and AltUp beside them.
  bool both_sides = false, altup = false;
  for (const TensorInfo& tensor : file.tensors()) {
    both_sides = both_sides || tensor.name.ends_with(".pre_feedforward_layernorm.weight");
    altup = altup || tensor.name.find(".altup.") != std::string::npos;
  }
  return both_sides && !altup && norm.beta.empty() ? std::optional(1.0f) : std::nullopt;
}

bool around_zero(const std::vector<float>& weights) {
  const auto near =
      std::count_if(weights.begin(), weights.end(), [](float w) { return std::fabs(w) < 0.25f; });
  return 2 * near > static_cast<std::ptrdiff_t>(weights.size());
}

nlohmann::json to_json(const StabilityOptions& options) {
  nlohmann::json json = {{"format", options.format.name},
                         {"eps", options.eps},
                         {"mean_ratio", options.mean_ratio},
                         {"dy_max", options.dy_max},
                         {"x_hat_max", options.x_hat_max},
                         {"tau", options.tau},
                         {"rows", options.rows}};
  if (options.format.store.scale) json["scale"] = *options.format.store.scale;
  return json;
}

nlohmann::json to_json(const StabilityResult& result) {
  using nlohmann::json;
  json columns;
  for (size_t j = 0; j < result.channels.size(); ++j) {
    const ChannelParameters& channel = result.channels[j];
    const ChannelBounds& bounds = result.from_output.channels[j];
    columns["gamma"].push_back(channel.gamma);
    columns["beta"].push_back(channel.beta);
    columns["rho"].push_back(channel.rho);
    columns["class"].push_back(to_string(channel.channel_class));
    columns["bits_lost"].push_back(channel.bits_lost);
    for (const auto& [name, bound] :
         {std::pair("x_hat", &bounds.x_hat), {"dx", &bounds.dx}, {"dgamma", &bounds.dgamma}}) {
      columns[std::string(name) + "_worst"].push_back(bound->worst);
      columns[std::string(name) + "_conditional"].push_back(bound->conditional);
    }
  }
  json classes;
  for (size_t c = 0; c < result.count.size(); ++c)
    classes[to_string(static_cast<ChannelClass>(c))] = result.count[c];
  json quantiles;
  for (const auto& [name, fraction] :
       {std::pair("min", 0.0), {"q50", 0.5}, {"q90", 0.9}, {"q99", 0.99}, {"max", 1.0}}) {
    quantiles[name] = rho_quantile(result, fraction);
  }
  return {{"norm", to_string(result.options.norm)},
          {"columns", result.channels.size()},
          {"classes", classes},
          {"rho", quantiles},
          {"policy",
           {{"name", result.policy()},
            {"channels", result.side_buffer},
            {"bytes_per_row", result.side_buffer_bytes_per_row()}}},
          {"bounds",
           {{"from_output", summary_json(result.from_output)},
            {"recommended", summary_json(result.recommended)}}},
          {"forward_x_hat", result.forward_x_hat},
          {"x_abs_max", largest_x(static_cast<i64>(result.channels.size()))},
          {"estimates", {{"dgamma_relative_l2", result.dgamma_estimate}}},
          {"channels", columns}};
}

}  // namespace outgrad::validation
