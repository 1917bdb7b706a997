// The cases, moves and climbs of attack.h.
#include "tests/attack/norms.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <span>
#include <nlohmann/json.hpp>

#include "kernels/host/errors.h"
#include "kernels/support/parallel.h"
#include "kernels/support/random.h"
#include "kernels/support/statistics.h"
#include "validation/limits.h"
#include "tests/attack/kept_output.h"

namespace outgrad::validation {

using kernels::i32;
using kernels::i64;
using kernels::Norm;
using kernels::Random;
using kernels::SpecError;

namespace {

constexpr NormPeer kPeerKinds[kPeers] = {NormPeer::kFromInput, NormPeer::kClampedGamma, NormPeer::kUnguarded};
// covers more than the roundings of the few double operations it is applied to
constexpr double kUp = 1 + 0x1p-40;

// --- Cases ---------------------------------------------------------------------------------------

enum class Rows { kCentred, kOutlier, kLargeMean, kConstant, kHuge, kSubnormal };

struct RowsKind {
  const char* name;
  Rows rows;
  double mean_ratio;  // that of the class; for kConstant it follows from eps
  double x_hat_max;   // that of the class, unless the row's length gives a smaller one
};
constexpr RowsKind kRowsKinds[] = {
    {"centred", Rows::kCentred, 1, 6},          {"outlier", Rows::kOutlier, 1, kInfinity},
    {"mean/std 1e3", Rows::kLargeMean, 1e3, 6}, {"mean/std 1e5", Rows::kLargeMean, 1e5, 6},
    {"constant", Rows::kConstant, 0, 0x1p-30},  {"huge", Rows::kHuge, 1, 6},
    {"subnormal", Rows::kSubnormal, 1, 0x1p-8},
};
const RowsKind& rows_kind(const std::string& name) {
  return *std::ranges::find_if(kRowsKinds, [&](const RowsKind& kind) { return name == kind.name; });
}

struct Parameters {
  const char* name;
  bool with_beta;  // LayerNorm only
  bool from_output;
  std::function<float(size_t, Random&)> gamma, beta;
};

// Near the lower end of a binade, and nearly half an ulp off the lattices of bf16 (ulp 8) and f16 (ulp 1), so
// that it rounds about as badly as possible.
constexpr double kWorstBeta = 1024 + 3.4999;
// For y in 8 bits, |beta| for which y errs the most where the largest is 1024: midway between codes in e4m3
// (272 of 448) and int8 (the group reaches from -1024 to 1024), and saturated in mxfp8.
double worst_beta(const std::string& format, size_t j, Random& random) {
  constexpr size_t kBlock = 32;
  switch (storage_format(format).store.kind) {
    case NormStoreKind::kPlain: return random.sign() * kWorstBeta;
    case NormStoreKind::kE4m3: return random.sign() * (j % kBlock == 0 ? 1024 : 1024 * 272 / 448.0);
    case NormStoreKind::kMxFp8: return random.sign() * 1023;
    case NormStoreKind::kInt8:
      return j % kBlock < 2 ? (j % 2 ? -1024 : 1024)
                            : 2048 / 255.0 * (static_cast<double>(random.below(255)) + 0.5) - 1024;
  }
  return 0;
}

float power(double low, double high, Random& random) {
  return static_cast<float>(random.sign() * std::exp2(random.uniform(low, high)));
}

std::vector<Parameters> parameter_kinds(const std::string& format) {
  const auto worst = [format](size_t j, Random& random) {
    return static_cast<float>(worst_beta(format, j, random));
  };
  const auto constant = [](float value) { return [value](size_t, Random&) { return value; }; };
  const auto normal = [](size_t, Random& random) { return static_cast<float>(random.normal()); };
  const auto third = [](float first, float second, float other) {
    return [=](size_t j, Random&) { return j % 3 == 0 ? (j % 2 ? first : second) : other; };
  };
  return {
      {"gamma 1", false, false, constant(1), constant(0)},
      {"mixed signs", false, false, [](size_t, Random& random) { return power(-10, 3, random); },
       [](size_t, Random&) { return 0.0f; }},
      {"mixed signs, beta", true, false, [](size_t, Random& random) { return power(-3, 3, random); }, normal},
      {"|beta/gamma| 10", true, false, constant(0.5f),
       [](size_t, Random& random) { return static_cast<float>(5 * random.sign()); }},
      {"|beta/gamma| 1e6, from y", true, true, constant(1e-3f), worst},
      {"|beta/gamma| 1e6", true, false, constant(1e-3f), worst},
      {"gamma 0 among them", true, false, third(0.0f, -0.0f, 1.0f), normal},
      {"gamma 0 among them", false, false, third(0.0f, -0.0f, 1.0f), constant(0)},
      {"gamma subnormal among them", true, false, third(1e-39f, -3e-42f, -1.0f), normal},
      {"gamma subnormal among them", false, false, third(1e-39f, -3e-42f, -1.0f), constant(0)},
      {"gamma 1e-8", false, false,
       [](size_t, Random& random) { return static_cast<float>(1e-8 * random.sign()); }, constant(0)},
      {"gamma 1e-8, beta 1e-8", true, false,
       [](size_t, Random& random) { return static_cast<float>(1e-8 * random.sign()); },
       [](size_t, Random& random) { return static_cast<float>(1e-8 * random.normal()); }},
  };
}

double format_largest(const std::string& format) { return format == "f16" ? 65504 : kInfinity; }

// --- One case ------------------------------------------------------------------------------------

class CaseAttack {
 public:
  CaseAttack(const AttackCase& subject, std::uint64_t seed, const NormTamper* tamper)
      : subject_(subject), layer_(subject.layer), kind_(rows_kind(subject.rows_kind)), tamper_(tamper),
        store_(subject.options.format.store), kernels_(norm_kernels(layer_)), random_(seed),
        n_(static_cast<size_t>(layer_.n)), rows_(static_cast<size_t>(layer_.rows)),
        widest_(std::min(subject.options.x_hat_max, largest_x_hat(layer_.norm, layer_.n))) {
    const StabilityResult stability = analyse_stability(layer_.gamma, layer_.beta, subject.options);
    bounds_ = subject.from_output ? stability.from_output : stability.recommended;
    reference_bounds_ = reference_bounds(stability);
    overflow_ = subject.options.format.overflow;
    result_.subject = subject;
    for (size_t j = 0; j < n_; ++j) {
      for (const auto member : {&ChannelBounds::dx, &ChannelBounds::dgamma}) {
        const double own = (reference_bounds_.channels[j].*member).conditional,
                     whole = (bounds_.channels[j].*member).conditional;
        if (whole > 0 && std::isfinite(whole))
          result_.reference_share = std::max(result_.reference_share, own / (own + whole));
      }
    }
  }

  AttackResult run(double evaluations) {
    // dx has the most elements and the most ways to go wrong.
    const std::pair<Gradient, double> phases[] = {
        {Gradient::kDx, 0.55}, {Gradient::kDgamma, 0.75}, {Gradient::kDbeta, 0.85}, {Gradient::kRstd, 1.0}};
    // Cases without a bound would never end if only evaluations counted.
    const double most_batches = 16 + 4 * evaluations / static_cast<double>(rows_ * n_);
    double batches = 0;
    for (const auto& [goal, until] : phases) {
      if (goal == Gradient::kDbeta && layer_.norm == Norm::rms) continue;
      goal_ = goal;
      start_all();
      do {
        step();
      } while (++batches < until * most_batches && counted() < until * evaluations);
    }
    return std::move(result_);
  }

 private:
  // The state of a row: its values, and what the last accepted comparison found for them.
  struct RowState {
    std::vector<float> x, dy;
    std::vector<double> x_hat, delta;  // exact xh; xh' - xh
    double mean = 0, rstd = 1, rstd_error = 0;
    double score = -1;
    size_t target = 0;  // the channel with the worst error
    int idle = 0;
    size_t index = 0;  // of the row in the batch
  };

  double counted() const {
    double sum = 0;
    for (const Gradient g : {Gradient::kDx, Gradient::kDgamma, Gradient::kDbeta}) sum += tally(g).evaluations;
    return sum;
  }
  GradientTally& tally(Gradient g) { return result_.tally[static_cast<int>(g)]; }
  const GradientTally& tally(Gradient g) const { return result_.tally[static_cast<int>(g)]; }

  double gamma(size_t j) const { return layer_.gamma[j]; }
  // For N = 1 no bound depends on the mean, and in e4m3 a row outside of the class would take the others with
  // it.
  bool no_mean() const { return n_ == 1 && !store_.plain(); }
  bool centred() const { return layer_.norm == Norm::layer; }

  float bounded_x(double x) const {
    return kernels_->rounded(std::clamp(x, -subject_.x_max, subject_.x_max));
  }
  float bounded_dy(double dy) const {
    return kernels_->rounded(std::clamp(dy, -subject_.options.dy_max, subject_.options.dy_max));
  }

  // --- Constructions ---

  // Rows of unit size about 0, in the shapes that the error's terms call for. x^ of the element `outlier` is
  // `height`.
  std::vector<double> shape(size_t outlier, double height) {
    std::vector<double> z(n_);
    const double noise = random_.chance(0.5) ? 0 : random_.uniform(0, 0.3);
    const int style = static_cast<int>(random_.below(4));
    for (size_t j = 0; j < n_; ++j) {
      if (style == 0) {
        z[j] = random_.normal();
      } else if (style == 1) {
        z[j] = random_.uniform(-1.7, 1.7);
      } else {
        z[j] = (style == 2 ? (j % 2 ? 1.0 : -1.0) : random_.sign()) * (1 + noise * random_.uniform(-1, 1));
      }
    }
    if (n_ > 1 && random_.chance(0.75)) {
      // The other elements shrink to 1 - h^2 / N of the sum of squares.
      const double n = static_cast<double>(n_), rest = std::sqrt(std::max(1 - height * height / n, 1e-6));
      for (double& v : z) v *= rest;
      z[outlier] = height * random_.sign();
    }
    return z;
  }

  // Rounding to a coarse format may move a row out of its class. Then another row is tried.
  void start(RowState& row) {
    constexpr int kTries = 20;
    for (int k = 0; k < kTries; ++k) {
      construct(row);
      if (fits(row)) return;
    }
    // x^ = 0, or 1 for RMSNorm. Such rows are in every class except that of a subnormal x, which the
    // constructions do not leave.
    if (kind_.rows != Rows::kSubnormal) std::ranges::fill(row.x, 1.0f);
  }

  bool fits(const RowState& row) const {
    double mean = 0, squares = 0, largest = 0;
    for (const float x : row.x) mean += centred() ? x / static_cast<double>(n_) : 0;
    for (const float x : row.x) {
      squares += (x - mean) * (x - mean);
      largest = std::max(largest, std::abs(x - mean));
    }
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(n_) + static_cast<double>(layer_.eps));
    return (no_mean() || std::abs(mean) * rstd <= subject_.options.mean_ratio) &&
           largest * rstd <= subject_.options.x_hat_max;
  }

  void construct(RowState& row) {
    const size_t index = row.index;
    row = RowState{};
    row.index = index;
    row.x.resize(n_);
    row.dy.resize(n_);
    const size_t outlier = goal_ == Gradient::kDgamma ? column_ : random_.below(n_);
    // For dx the product xh m2 is largest at xh^2 = N / 2; for dgamma the error is largest at the largest xh.
    const double height = std::min(widest_ * (1 - 0x1p-12), goal_ == Gradient::kDx && random_.chance(0.7)
                                                                ? std::sqrt(static_cast<double>(n_) / 2)
                                                                : kInfinity);
    if (aims() && random_.chance(0.7)) {
      double body = aim_body_ * random_.uniform(0.97, 1);
      for (int k = 0; k < 3; ++k, body *= 0.93) {
        if (aim(row, outlier, body)) return;
      }
    }
    const std::vector<double> z = shape(outlier, height);
    double scale = std::exp2(random_.uniform(0, 1)), shift = 0;
    switch (kind_.rows) {
      case Rows::kCentred:
      case Rows::kOutlier: break;
      case Rows::kLargeMean: {
        shift = subject_.options.mean_ratio * scale * random_.uniform(0.9, 0.998);
        // The sizes stay within f16, and reach its lattice at every height.
        const double size =
            std::exp2(-std::floor(random_.uniform(0, 4)) - std::log2(subject_.options.mean_ratio));
        scale *= size, shift *= size;
        const double largest = format_largest(layer_.format);
        if (random_.chance(0.5) && shift * 1024 < largest / 2) scale *= 1024, shift *= 1024;
        break;
      }
      case Rows::kConstant: break;
      case Rows::kHuge: scale = subject_.x_max / (widest_ + 2) * random_.uniform(0.3, 1); break;
      case Rows::kSubnormal: scale = subject_.x_max * random_.uniform(0.01, 0.3); break;
    }
    const double constant = random_.sign() * random_.uniform(0.5, 2);
    for (size_t j = 0; j < n_; ++j)
      row.x[j] = bounded_x(kind_.rows == Rows::kConstant ? constant : shift + scale * z[j]);
    set_dy(row, z, outlier);
  }

  void set_dy(RowState& row, const std::vector<double>& z, size_t outlier) {
    const size_t style = random_.below(6);
    for (size_t j = 0; j < n_; ++j) {
      const double aligned = std::copysign(1.0, z[j]) * (gamma(j) < 0 ? -1 : 1);
      const double dy = style < 3 ? aligned : style == 3 ? 1 : style == 4 ? random_.sign() : random_.normal();
      row.dy[j] = bounded_dy(dy * subject_.options.dy_max * (style == 2 ? random_.uniform(0.9, 1) : 1));
    }
    if (style == 0) row.dy[outlier] = -row.dy[outlier];
  }

  // Whether rows are also built for a store in 8 bits: where only the class's limits on |mean| rstd and |xh|
  // restrict them.
  bool aims() const {
    constexpr size_t kLeast = 8;
    return !store_.plain() && n_ >= kLeast && kind_.x_hat_max > 1 &&
           (kind_.rows == Rows::kCentred || kind_.rows == Rows::kOutlier || kind_.rows == Rows::kLargeMean);
  }

  // A row whose y lie, all in one direction, where the store errs the most. The scales come from a first
  // choice of x^ (z), whose largest elements then stay; each other element is the worst of some nearby
  // numbers. Any z of mean 0 (LayerNorm) and mean square q < 1 is the x^ of a row: eps gives the rest, since
  // var rstd^2 = q if var = eps q / (1 - q). False if z fails.
  bool aim(RowState& row, size_t target, double body) {
    const double n = static_cast<double>(n_), widest = widest_ * (1 - 0x1p-10);
    const size_t group = static_cast<size_t>(store_.group_of(layer_.n));
    std::vector<double> z(n_);
    for (size_t j = 0; j < n_; ++j)
      z[j] = body * (j % 2 ? 1 : -1) * (aim_mixed_ ? random_.uniform(0.3, 1) : 1);
    std::vector<bool> fixed(n_, false);
    double rest = 0.96 * n;
    const auto fix = [&](size_t j, double value) {
      z[j] = value;
      fixed[j] = true;
      rest -= value * value;
    };
    // The elements that the scales follow from: in int8 both ends of each group, or of the target's.
    const auto largest_of = [&](size_t begin, size_t but) {
      size_t best = begin == but ? begin + 1 : begin;
      for (size_t j = begin; j < begin + group; ++j) {
        if (j != but && j != target && std::abs(gamma(j)) > std::abs(gamma(best))) best = j;
      }
      return best == target ? (best + 1 == but ? best + 2 : best + 1) % n_ : best;
    };
    if (store_.kind == NormStoreKind::kInt8) {
      const double height = std::min(aim_height_, std::sqrt(0.8 * static_cast<double>(group) / 2));
      for (size_t begin = 0; begin < n_; begin += group) {
        if (aim_mixed_ && !(target >= begin && target < begin + group)) continue;
        const size_t first = largest_of(begin, n_), second = largest_of(begin, first);
        const double sign = gamma(first) * gamma(second) < 0 ? 1 : -1;
        fix(first, height);
        fix(second, sign * height);
      }
    } else if (store_.kind == NormStoreKind::kE4m3) {
      fix(largest_of(0, n_), aim_height_);
    }
    const double sign = random_.sign();
    if (!fixed[target]) {
      z[target] = sign * std::min(widest, aim_height_) * random_.uniform(0.75, 1);
      if (store_.kind == NormStoreKind::kMxFp8 && gamma(target) != 0) {  // just below a power of two
        const double beta = beta_of(target), y = std::abs(z[target] * gamma(target) + beta),
                     power = std::ldexp(1.0, std::ilogb(y) + static_cast<int>(random_.below(2)));
        const double top =
            (std::copysign(power * (1 - 0x1p-8), z[target] * gamma(target) + beta) - beta) / gamma(target);
        if (std::abs(top) <= widest) z[target] = top;
      }
      rest -= z[target] * z[target];
    }
    size_t free = 0;
    double squares = 0;
    for (size_t j = 0; j < n_; ++j) {
      if (fixed[j] || j == target) continue;
      ++free;
      squares += z[j] * z[j];
    }
    if (rest < 0 || free < 4) return false;
    const double shrink = std::min(1.0, std::sqrt(rest / std::max(squares, 1e-300)));
    for (size_t j = 0; j < n_; ++j) {
      if (!fixed[j] && j != target) z[j] *= shrink;
    }
    std::vector<float> y(n_);
    const auto y_of = [&](size_t j, double value) {
      return static_cast<float>(value * gamma(j) + beta_of(j));
    };
    for (size_t j = 0; j < n_; ++j) y[j] = y_of(j, z[j]);
    KeptOutput kept(store_, 1, layer_.n);
    kept.keep(y);

    constexpr size_t kCandidates = 24, kShare = 8;  // one element in kShare only makes the mean 0
    const double direction = random_.sign();
    double sum = 0;
    std::vector<size_t> slack;
    for (size_t j = 0; j < n_; ++j) {
      const bool is_slack = centred() && !fixed[j] && j != target && j % kShare == slack_place_;
      if (is_slack) slack.push_back(j);
      if (!fixed[j] && !is_slack && gamma(j) != 0) {
        double most = 0, best = z[j];
        const double step = store_.kind == NormStoreKind::kInt8 ? std::abs(1.5 * aim_height_ / kLastInt8) : 0;
        for (size_t c = 0; c < kCandidates; ++c) {
          const double candidate = z[j] * random_.uniform(0.8, 1.05) + step * random_.uniform(-1, 1);
          const float y_candidate = y_of(j, candidate);
          if (std::abs(candidate) > widest || !kept.same_scale(y_candidate, 0, j)) continue;
          const double error =
              (static_cast<double>(kept.read_as(y_candidate, 0, j)) - y_candidate) / gamma(j);
          const double gain = std::abs(candidate) < step ? std::abs(error)
                                                         : direction * std::copysign(1.0, candidate) * error;
          if (gain > most) most = gain, best = candidate;
        }
        z[j] = best;
      }
      sum += z[j];
    }
    if (centred()) {
      if (slack.empty()) return false;
      for (const size_t j : slack) z[j] -= sum / static_cast<double>(slack.size());
    }
    double q = 0;
    for (const double value : z) {
      if (std::abs(value) > widest) return false;
      q += value * value / n;
    }
    if (!(q < 1 - 0x1p-12)) return false;
    const double rstd = std::sqrt((1 - q) / static_cast<double>(layer_.eps));
    const double ratio = !centred() ? 0
                                    : subject_.options.mean_ratio * (kind_.rows == Rows::kLargeMean
                                                                         ? random_.uniform(0.9, 0.998)
                                                                         : random_.uniform(0, 0.9));
    for (size_t j = 0; j < n_; ++j) row.x[j] = bounded_x((z[j] + ratio) / rstd);
    set_dy(row, z, target);
    return true;
  }

  double beta_of(size_t j) const { return layer_.beta.empty() ? 0 : layer_.beta[j]; }

  void start_all() {
    column_ = random_.below(n_);
    if (!store_.plain()) choose_aim();
    current_.assign(rows_, {});
    for (size_t i = 0; i < rows_; ++i) {
      current_[i].index = i;
      start(current_[i]);
    }
    column_score_.assign(n_, -1);
    matrix_score_ = -1;
    matrix_idle_ = 0;
    fresh_ = true;
  }

  void choose_aim() {
    const double widest = widest_ * (1 - 0x1p-10);
    aim_height_ = random_.chance(0.5) ? widest : widest * std::exp2(-random_.uniform(0, 3));
    aim_body_ = random_.chance(0.7) ? random_.uniform(0.9, 1) : random_.uniform(0.1, 1);
    aim_mixed_ = random_.chance(0.3);
    slack_place_ = random_.below(8);
  }

  // --- Moves ---

  size_t some() {  // how many elements a move touches, of any order of magnitude
    return std::min<size_t>(n_, size_t{1} << random_.below(static_cast<size_t>(std::bit_width(n_))));
  }
  int ulps() {
    return static_cast<int>(random_.sign()) *
           static_cast<int>(1 + random_.below(random_.chance(0.7) ? 2 : 16));
  }

  void move_x(RowState& row) {
    if (kind_.rows == Rows::kConstant && centred()) {
      const float constant = random_.chance(0.5)
                                 ? kernels_->stepped(row.x[0], ulps())
                                 : kernels_->rounded(random_.sign() * random_.uniform(0.5, 2));
      std::ranges::fill(row.x, bounded_x(constant));
      return;
    }
    // steps of a few ulp of x seldom reach another code of 8 bits
    switch (store_.plain() || random_.chance(0.5) ? random_.below(9) : 8) {
      case 0:
      case 1:
      case 2:
        for (size_t k = some(); k > 0; --k) {
          float& x = row.x[random_.below(n_)];
          x = bounded_x(kernels_->stepped(x, ulps()));
        }
        break;
      case 3: {
        const size_t a = random_.below(n_), b = random_.below(n_);
        std::swap(row.x[a], row.x[b]);
        if (random_.chance(0.5)) std::swap(row.dy[a], row.dy[b]);
        break;
      }
      case 4:
        if (kind_.rows == Rows::kLargeMean) {
          const double shift = row.mean * random_.uniform(-0x1p-10, 0x1p-10);
          for (float& x : row.x) x = bounded_x(x + shift);
        } else {
          float& x = row.x[random_.below(n_)];
          x = -x;
        }
        break;
      case 5: {
        const double factor = std::exp2(random_.uniform(-0.5, 0.5));
        for (float& x : row.x) x = bounded_x(x * factor);
        break;
      }
      case 6: {
        const double factor = random_.chance(0.5) ? 2 : 0.5;
        for (float& x : row.x) x = bounded_x(x * factor);
        break;
      }
      case 7: ascend_x(row); break;
      default: sweep(row);
    }
  }

  void move_dy(RowState& row) {
    switch (random_.below(6)) {
      case 0:
        for (size_t k = some(); k > 0; --k) {
          float& dy = row.dy[random_.below(n_)];
          dy = bounded_dy(kernels_->stepped(dy, ulps()));
        }
        break;
      case 1:
        for (size_t k = some(); k > 0; --k) {
          float& dy = row.dy[random_.below(n_)];
          dy = -dy;
        }
        break;
      case 2: {
        float& dy = row.dy[random_.below(n_)];
        dy = bounded_dy(random_.sign() *
                        std::exp2(-std::floor(random_.uniform(0, random_.chance(0.5) ? 3 : 40))));
        break;
      }
      case 3: {
        const double factor = random_.uniform(0.5, 1);
        for (float& dy : row.dy) dy = bounded_dy(dy * factor);
        break;
      }
      default: ascend_dy(row);
    }
  }

  // The first-order error of dx at the target, divided by rstd, is delta_t m2 + xh_t D2 + r p_t, up to its
  // sign. It is linear in dy.
  void ascend_dy(RowState& row) {
    if (row.delta.empty()) return;
    const size_t t = row.target;
    const double n = static_cast<double>(n_), xh_t = row.x_hat[t], delta_t = row.delta[t];
    const double rounding = std::max(subject_.options.format.unit_roundoff, 0x1p-24) *
                            (static_cast<double>(random_.below(3)) - 1);
    const double r = row.rstd_error + rounding, direction = random_.sign();
    const double size =
        random_.chance(0.7) ? subject_.options.dy_max : random_.uniform(0.9, 1) * subject_.options.dy_max;
    for (size_t i = 0; i < n_; ++i) {
      const double p = (i == t ? 1 : 0) - (centred() ? 1 / n : 0) - xh_t * row.x_hat[i] / n;
      const double slope =
          direction * gamma(i) * (r * p - (delta_t * row.x_hat[i] + xh_t * row.delta[i]) / n);
      if (slope != 0) row.dy[i] = bounded_dy(std::copysign(size, slope));
    }
  }

  // Follows the gradient in x of the same functional, with the errors delta frozen.
  void ascend_x(RowState& row) {
    if (row.delta.empty() || n_ < 2) return;
    const size_t t = row.target;
    const double n = static_cast<double>(n_);
    double m1 = 0, m2 = 0, d2 = 0;
    for (size_t i = 0; i < n_; ++i) {
      const double a = gamma(i) * static_cast<double>(row.dy[i]);
      m1 += centred() ? a / n : 0;
      m2 += a * row.x_hat[i] / n;
      d2 += a * row.delta[i] / n;
    }
    std::vector<double> slope(n_);
    double largest = 0;
    for (size_t i = 0; i < n_; ++i) {
      const double a = gamma(i) * static_cast<double>(row.dy[i]);
      slope[i] = row.delta[t] * (a - m1 - row.x_hat[i] * m2) +
                 d2 * ((i == t ? n : 0) - (centred() ? 1 : 0) - row.x_hat[i] * row.x_hat[t]);
      largest = std::max(largest, std::abs(slope[i]));
    }
    if (!(largest > 0)) return;
    const double step = random_.sign() * std::exp2(-random_.uniform(0, 10)) / (row.rstd * largest);
    for (size_t i = 0; i < n_; ++i) row.x[i] = bounded_x(row.x[i] + step * slope[i]);
  }

  // For each x, picks from the nearby values the one whose stored y errs the most away from beta (or towards
  // it).
  void sweep(RowState& row) {
    if (row.delta.empty()) return;
    constexpr size_t kCandidates = 8, kMost = 4096;
    const double direction = random_.chance(0.8) ? 1 : -1;
    const bool near = random_.chance(0.6);
    // In 8 bits, many x that move at once move each other's y to other codes.
    const size_t count = std::min(store_.plain() ? n_ : some(), kMost), begin = random_.below(n_);
    for (size_t k = 0; k < count; ++k) {
      const size_t i = (begin + k) % n_;
      if (gamma(i) == 0) continue;
      const double beta = beta_of(i);
      float best = row.x[i];
      double most = direction * std::copysign(1.0, row.x_hat[i]) * row.delta[i];
      for (size_t c = 0; c < kCandidates; ++c) {
        const double offset = row.x[i] - row.mean;
        const float x = bounded_x(near ? kernels_->stepped(row.x[i], ulps())
                                       : row.mean + offset * random_.uniform(0.8, 1.25));
        const double x_hat = (x - row.mean) * row.rstd;
        const double y = kernels_->read_as(static_cast<float>(x_hat * gamma(i) + beta), row.index, i);
        const double error = direction * std::copysign(1.0, x_hat) * ((y - beta) / gamma(i) - x_hat);
        if (error > most) most = error, best = x;
      }
      row.x[i] = best;
    }
  }

  void move(RowState& row) {
    switch (goal_) {
      case Gradient::kDx: random_.chance(0.55) ? move_x(row) : move_dy(row); break;
      case Gradient::kDgamma:
      case Gradient::kRstd: move_x(row); break;
      case Gradient::kDbeta: break;
    }
  }

  // --- Climbing ---

  void step() {
    std::vector<RowState> next = current_;
    const bool again =
        !fresh_ && aims() && (goal_ == Gradient::kDx || goal_ == Gradient::kDgamma) && random_.chance(0.2);
    const bool whole = !again && goal_ == Gradient::kDgamma && random_.chance(0.5);
    if (again) {
      choose_aim();
      for (RowState& row : next) start(row);
    } else if (!fresh_) {
      if (goal_ == Gradient::kDbeta) {
        move_columns(next);
      } else if (whole) {
        // For the sum over rows: sets dy of the target column along the errors, or a little off them.
        for (RowState& row : next) {
          float& dy = row.dy[column_];
          if (random_.chance(0.5))
            dy = bounded_dy(
                std::copysign(subject_.options.dy_max, row.delta.empty() ? 1 : row.delta[column_]));
          if (random_.chance(0.5)) dy = bounded_dy(kernels_->stepped(dy, ulps()));
        }
      } else {
        for (RowState& row : next) {
          if (row.idle > kPatience) {
            start(row);
          } else {
            for (size_t k = 1 + random_.below(2); k > 0; --k) move(row);
          }
        }
      }
    }
    compare(next);
    if (again) {
      // In e4m3 all rows share a scale, so they are replaced together.
      double before = -1, after = -1;
      for (size_t i = 0; i < rows_; ++i)
        before = std::max(before, current_[i].score), after = std::max(after, row_score(i));
      if (after < before) return;
      for (size_t i = 0; i < rows_; ++i) {
        current_[i] = next[i];
        current_[i].score = row_score(i);
        note(current_[i], i);
      }
    } else if (goal_ == Gradient::kDbeta) {
      accept_columns(next);
    } else if (whole) {
      const double score = matrix_ratio_;
      if (fresh_ || score >= matrix_score_) {
        matrix_idle_ = score > matrix_score_ ? 0 : matrix_idle_ + 1;
        matrix_score_ = score;
        current_ = next;
      } else if (++matrix_idle_ > kPatience) {
        start_all();
        return;
      }
    } else {
      for (size_t i = 0; i < rows_; ++i) {
        const double score = row_score(i);
        RowState& row = current_[i];
        if (row.idle > kPatience || score >= row.score) {
          const int idle = score > row.score ? 0 : row.idle + 1;
          const bool started = row.idle > kPatience;
          row = next[i];
          row.score = score;
          row.idle = started ? 0 : idle;
          note(row, i);
        } else {
          ++row.idle;
        }
      }
    }
    fresh_ = false;
  }

  double row_score(size_t i) const {
    if (!in_class_[i]) return -1;
    switch (goal_) {
      case Gradient::kDx: return dx_ratio_[i];
      case Gradient::kRstd: return rstd_ratio_[i];
      default:
        return std::abs(
            static_cast<double>(gradients_.x_hat[i * n_ + column_] - reference_.x_hat[i * n_ + column_]));
    }
  }

  void note(RowState& row, size_t i) {
    row.x_hat.resize(n_);
    row.delta.resize(n_);
    for (size_t j = 0; j < n_; ++j) {
      row.x_hat[j] = static_cast<double>(reference_.x_hat[i * n_ + j]);
      const double delta = static_cast<double>(gradients_.x_hat[i * n_ + j] - reference_.x_hat[i * n_ + j]);
      row.delta[j] = std::isfinite(delta) ? delta : 0;
    }
    row.rstd = static_cast<double>(reference_.rstd[i]);
    row.mean = static_cast<double>(batch_.x[i * n_]) - row.x_hat[0] / row.rstd;
    row.rstd_error = static_cast<double>(gradients_.rstd[i] / reference_.rstd[i] - 1);
    row.target = dx_target_[i];
  }

  void move_columns(std::vector<RowState>& next) {
    for (size_t j = 0; j < n_; ++j) {
      for (size_t k = 1 + random_.below(3); k > 0; --k) {
        float& dy = next[random_.below(rows_)].dy[j];
        switch (random_.below(4)) {
          case 0: dy = bounded_dy(kernels_->stepped(dy, ulps())); break;
          case 1: dy = -dy; break;
          case 2:
            dy = bounded_dy(random_.sign() * random_.uniform(0.5, 1) *
                            std::exp2(-std::floor(random_.uniform(0, 26))));
            break;
          default: dy = bounded_dy(random_.sign() * random_.uniform(0.5, 1)); break;
        }
      }
    }
  }

  void accept_columns(const std::vector<RowState>& next) {
    for (size_t j = 0; j < n_; ++j) {
      if (dbeta_ratio_[j] < column_score_[j]) continue;
      column_score_[j] = dbeta_ratio_[j];
      for (size_t i = 0; i < rows_; ++i) current_[i].dy[j] = next[i].dy[j];
    }
  }

  // --- Comparison ---

  void compare(const std::vector<RowState>& candidates) {
    batch_.x.clear(), batch_.dy.clear();
    for (const RowState& row : candidates) {
      batch_.x.insert(batch_.x.end(), row.x.begin(), row.x.end());
      batch_.dy.insert(batch_.dy.end(), row.dy.begin(), row.dy.end());
    }
    kernels_->run(batch_, tamper_, gradients_);
    exact_gradients(layer_, batch_, reference_);
    const StabilityOptions& limits = subject_.options;
    in_class_.assign(rows_, false);
    bool all = true;
    // Exactly 0, or limited only by |x| <= x_max.
    const bool known = n_ == 1 || kind_.rows == Rows::kConstant || kind_.rows == Rows::kSubnormal;
    for (size_t i = 0; i < rows_; ++i) {
      const double slack = reference_bounds_.channels[0].x_hat.worst;
      const double k =
          (reference_.mean_ratio[i] + (known ? 0 : slack)) * (1 + 2 * reference_bounds_.rstd) * kUp;
      const double t = (reference_.x_hat_max[i] + (known ? 0 : slack)) * kUp;
      const double dy =
          std::abs(std::ranges::max(candidates[i].dy, {}, [](float each) { return std::abs(each); }));
      in_class_[i] = (!centred() || no_mean() || k <= limits.mean_ratio) &&
                     (t <= limits.x_hat_max || limits.x_hat_max >= largest_x_hat(layer_.norm, layer_.n)) &&
                     dy <= limits.dy_max;
      all = all && in_class_[i];
      if (!in_class_[i]) ++result_.rejected;
    }
    // A tensor's one scale follows from all rows.
    if (!all && subject_.options.format.store.kind == NormStoreKind::kE4m3) in_class_.assign(rows_, false);
    improved_ = false;
    compare_rows();
    dbeta_ratio_.assign(n_, -1);
    matrix_ratio_ = -1;
    if (all) compare_columns();
    // The peers' errors are computed on one batch in eight, and wherever ours is the largest so far.
    constexpr int kEvery = 8;
    if (improved_ || ++since_peers_ >= kEvery) {
      since_peers_ = 0;
      compare_peers(all);
    }
  }

  // The bound of dx[i, j], including the reference's own error; infinite where the bound does not apply.
  double dx_limit(size_t i, size_t j) const {
    const double rstd = static_cast<double>(reference_.rstd[i]) * (1 + 2 * reference_bounds_.rstd) * kUp;
    const double limit =
        (bounds_.channels[j].dx.conditional + reference_bounds_.channels[j].dx.conditional) * rstd * kUp +
        bounds_.dx_absolute;
    const double largest = std::abs(static_cast<double>(reference_.dx[i * n_ + j])) + limit;
    return largest < overflow_ ? limit : kInfinity;
  }
  double dgamma_limit(size_t j) const {
    return static_cast<double>(rows_) *
           (bounds_.channels[j].dgamma.conditional + reference_bounds_.channels[j].dgamma.conditional) * kUp;
  }
  double dbeta_limit() const {
    return static_cast<double>(rows_) * (bounds_.dbeta + reference_bounds_.dbeta) * kUp;
  }

  // error / limit. A NaN counts as the largest error. If the limit is 0, the error must also be 0.
  static double ratio(double got, long double want, double limit) {
    const double error = static_cast<double>(std::abs(static_cast<long double>(got) - want));
    if (error == 0) return 0;
    const double share = error / limit;
    return std::isnan(share) ? kInfinity : share;
  }

  void compare_rows() {
    dx_ratio_.assign(rows_, 0);
    rstd_ratio_.assign(rows_, 0);
    dx_target_.assign(rows_, 0);
    for (size_t i = 0; i < rows_; ++i) {
      if (!in_class_[i]) continue;
      for (size_t j = 0; j < n_; ++j) {
        const double limit = dx_limit(i, j);
        if (std::isinf(limit)) {
          ++result_.excluded;
          continue;
        }
        const double share = ratio(gradients_.dx[i * n_ + j], reference_.dx[i * n_ + j], limit);
        if (share > dx_ratio_[i]) dx_ratio_[i] = share, dx_target_[i] = j;
        record(Gradient::kDx, share, i, j, gradients_.dx[i * n_ + j], reference_.dx[i * n_ + j], limit);
      }
      const double limit =
          (bounds_.rstd + 2 * reference_bounds_.rstd) * static_cast<double>(reference_.rstd[i]) * kUp;
      rstd_ratio_[i] = ratio(gradients_.rstd[i], reference_.rstd[i], limit);
      record(Gradient::kRstd, rstd_ratio_[i], i, 0, gradients_.rstd[i], reference_.rstd[i], limit);
    }
  }

  void compare_columns() {
    for (size_t j = 0; j < n_; ++j) {
      const double limit = dgamma_limit(j);
      if (std::isinf(limit)) {
        ++result_.excluded;
      } else {
        const double share = ratio(gradients_.dgamma[j], reference_.dgamma[j], limit);
        if (j == column_) matrix_ratio_ = share;
        record(Gradient::kDgamma, share, 0, j, gradients_.dgamma[j], reference_.dgamma[j], limit);
      }
      if (!centred()) continue;
      dbeta_ratio_[j] = ratio(gradients_.dbeta[j], reference_.dbeta[j], dbeta_limit());
      record(Gradient::kDbeta, dbeta_ratio_[j], 0, j, gradients_.dbeta[j], reference_.dbeta[j],
             dbeta_limit());
    }
  }

  void record(Gradient g, double share, size_t i, size_t j, float got, long double want, double limit) {
    GradientTally& t = tally(g);
    ++t.evaluations;
    if (share > 1) ++t.violations;
    if (share <= t.worst) return;
    t.worst = share;
    improved_ = true;
    const bool one_row = g == Gradient::kDx || g == Gradient::kRstd;
    const auto part = [&](const std::vector<float>& values) {
      if (!one_row) return values;
      const std::span row = std::span(values).subspan(i * n_, n_);
      return std::vector<float>(row.begin(), row.end());
    };
    t.witness = {static_cast<i64>(i), static_cast<i64>(j), got, static_cast<double>(want), limit,
                 part(batch_.x),      part(batch_.dy)};
  }

  void compare_peers(bool all) {
    for (int peer = 0; peer < kPeers; ++peer) {
      peer_gradients(layer_, batch_, kPeerKinds[peer], peer_);
      const auto note_worst = [&](Gradient g, double share) {
        tally(g).peer_worst[peer] = std::max(tally(g).peer_worst[peer], share);
      };
      for (size_t i = 0; i < rows_; ++i) {
        if (!in_class_[i]) continue;
        for (size_t j = 0; j < n_; ++j) {
          const double limit = dx_limit(i, j);
          if (!std::isinf(limit))
            note_worst(Gradient::kDx, ratio(peer_.dx[i * n_ + j], reference_.dx[i * n_ + j], limit));
        }
      }
      if (!all) continue;
      for (size_t j = 0; j < n_; ++j) {
        if (!std::isinf(dgamma_limit(j)))
          note_worst(Gradient::kDgamma, ratio(peer_.dgamma[j], reference_.dgamma[j], dgamma_limit(j)));
        if (centred())
          note_worst(Gradient::kDbeta, ratio(peer_.dbeta[j], reference_.dbeta[j], dbeta_limit()));
      }
    }
  }

  static constexpr int kPatience = 400;  // moves without an improvement before a new start

  const AttackCase& subject_;
  const NormLayer& layer_;
  const RowsKind& kind_;
  const NormTamper* tamper_;
  const NormStore& store_;
  std::unique_ptr<NormKernels> kernels_;
  Random random_;
  const size_t n_, rows_;
  const double widest_;  // x^ of the class
  NormBounds bounds_, reference_bounds_;
  double overflow_ = 0;

  Gradient goal_ = Gradient::kDx;
  size_t column_ = 0;
  std::vector<RowState> current_;
  bool fresh_ = true, improved_ = false;
  // What the rows of a start have in common, since in e4m3 their scale is one.
  double aim_height_ = 1, aim_body_ = 1;
  bool aim_mixed_ = false;
  size_t slack_place_ = 0;
  double matrix_score_ = -1, matrix_ratio_ = 0;
  int matrix_idle_ = 0, since_peers_ = 0;
  std::vector<double> column_score_, dx_ratio_, rstd_ratio_, dbeta_ratio_;
  std::vector<size_t> dx_target_;
  std::vector<bool> in_class_;
  NormBatch batch_;
  NormGradients gradients_, peer_;
  NormReference reference_;
  AttackResult result_;
};

std::string hex(double value) { return fmt::format("{:a}", value); }

nlohmann::json hex_list(const std::vector<float>& values) {
  nlohmann::json list = nlohmann::json::array();
  for (const float value : values) list.push_back(hex(static_cast<double>(value)));
  return list;
}

nlohmann::json witness_json(const AttackResult& result, Gradient g) {
  const AttackWitness& w = result.tally[static_cast<int>(g)].witness;
  const NormLayer& layer = result.subject.layer;
  return {{"row", w.row},
          {"column", w.column},
          {"got", hex(static_cast<double>(w.got))},
          {"want", hex(w.want)},
          {"bound", hex(w.bound)},
          {"x", hex_list(w.x)},
          {"dy", hex_list(w.dy)},
          {"gamma", hex_list(layer.gamma)},
          {"beta", hex_list(layer.beta)},
          {"eps", hex(static_cast<double>(layer.eps))}};
}

}  // namespace

const char* to_string(Gradient gradient) {
  constexpr const char* kNames[] = {"dx", "dgamma", "dbeta", "rstd"};
  return kNames[static_cast<int>(gradient)];
}

std::vector<AttackCase> attack_cases(const AttackOptions& options) {
  std::vector<AttackCase> cases;
  constexpr i64 kColumns[] = {1, 2, 3, 7, 16, 64, 257, 1024, 65536};
  constexpr i64 kGroupedColumns[] = {32, 64, 96, 192, 320, 1024, 65536};  // those that are whole groups
  for (const Norm norm : {Norm::layer, Norm::rms}) {
    for (const std::string& format : options.formats) {
      for (const Parameters& parameters : parameter_kinds(format)) {
        if (norm == Norm::rms && parameters.with_beta) continue;
        for (const RowsKind& kind : kRowsKinds) {
          const bool plain = std::string(parameters.name) == "gamma 1";
          // Every kind of rows is combined with plain parameters. The other parameters are combined with
          // ordinary rows and with rows of a large mean.
          if (!plain && kind.rows != Rows::kCentred &&
              !(kind.rows == Rows::kLargeMean && kind.mean_ratio < 1e4))
            continue;
          if (norm == Norm::rms && kind.rows == Rows::kLargeMean) continue;  // its rows have no mean
          // no lattice of a 16-bit format holds such rows
          if (kind.mean_ratio > 1e4 && (format == "f16" || format == "bf16")) continue;
          for (const i64 n : storage_format(format).store.group > 0 ? std::span<const i64>(kGroupedColumns)
                                                                    : std::span<const i64>(kColumns)) {
            if (n > options.max_columns ||
                (storage_format(format).store.group > 0 && n % storage_format(format).store.group != 0))
              continue;
            if (kind.rows == Rows::kOutlier && n <= 36) continue;  // this is the same class as kCentred
            AttackCase c;
            c.parameters = parameters.name;
            c.rows_kind = kind.name;
            c.from_output = parameters.from_output;
            Random random(static_cast<std::uint64_t>(n));
            NormLayer& layer = c.layer;
            layer.norm = norm;
            layer.format = format;
            layer.n = n;
            // elements of a batch; enough rows for a tree over them
            constexpr i64 kBatch = 1024, kMostRows = 4;
            layer.rows = std::clamp<i64>(kBatch / n, 1, kMostRows);
            for (size_t j = 0; j < static_cast<size_t>(n); ++j) {
              layer.gamma.push_back(parameters.gamma(j, random));
              if (norm == Norm::layer) layer.beta.push_back(parameters.beta(j, random));
            }
            StabilityOptions& o = c.options;
            o.norm = norm;
            o.format = storage_format(format);
            o.tau = o.format.tau;
            o.eps = layer.eps;
            o.rows = layer.rows;
            o.x_hat_max = std::min(kind.x_hat_max, largest_x_hat(norm, n) + 1);
            o.mean_ratio = kind.mean_ratio;
            c.x_max = std::min(largest_x(n), format_largest(format));
            if (kind.rows == Rows::kConstant) {
              o.mean_ratio = 2.01 / std::sqrt(static_cast<double>(layer.eps));  // |x| <= 2
              if (norm == Norm::rms) o.x_hat_max = 1.001;
            }
            if (kind.rows == Rows::kSubnormal) {
              c.x_max = format == "f16" ? 0x1p-14 : 0x1p-126;
              o.x_hat_max = std::min(1.0, 1.01 * 2 * c.x_max / std::sqrt(static_cast<double>(layer.eps)));
              o.mean_ratio = o.x_hat_max;
            }
            if (!c.from_output) {
              for (const size_t j : side_channels(layer.gamma, layer.beta, o))
                layer.side.push_back(static_cast<i32>(j));
            }
            cases.push_back(std::move(c));
          }
        }
      }
    }
  }
  return cases;
}

AttackResult attack(const AttackCase& subject, double evaluations, std::uint64_t seed,
                    const NormTamper* tamper) {
  return CaseAttack(subject, seed, tamper).run(evaluations);
}

std::vector<AttackResult> attack_all(const AttackOptions& options) {
  const std::vector<AttackCase> cases = attack_cases(options);
  std::vector<AttackResult> results(cases.size());
  // The longer the rows are, the more moves a climb takes, and the more elements each move has. Beyond kLong
  // the search relies on the constructions and ascents.
  constexpr double kShort = 16, kLong = 1024;
  const auto weight = [&](const AttackCase& c) {
    return std::sqrt(std::clamp(static_cast<double>(c.layer.n), kShort, kLong) / kShort);
  };
  double weights = 0;
  for (const AttackCase& c : cases) weights += weight(c);
  kernels::for_each_task(cases.size(), 0, [&](size_t k) {
    constexpr std::uint64_t kStride = 0x9e3779b97f4a7c15u;
    results[k] = attack(cases[k], options.evaluations * weight(cases[k]) / weights,
                        options.seed + kStride * (k + 1), options.tamper);
  });
  return results;
}

AttackSummary summarise(const std::vector<AttackResult>& results) {
  AttackSummary summary;
  summary.cases = results.size();
  std::vector<double> all, each[kGradients];
  std::map<std::string, std::vector<double>> dx_of, of_format;
  for (const AttackResult& result : results) {
    summary.excluded += result.excluded;
    summary.reference_share = std::max(summary.reference_share, result.reference_share);
    for (int g = 0; g < kGradients; ++g) {
      const GradientTally& tally = result.tally[g];
      const bool is_gradient = static_cast<Gradient>(g) != Gradient::kRstd;
      summary.violations += tally.violations;
      AttackSummary::OfFormat& format = summary.by_format[result.subject.layer.format];
      format.violations += tally.violations;
      if (is_gradient) summary.evaluations += tally.evaluations, format.evaluations += tally.evaluations;
      if (!(tally.worst > 0)) continue;
      each[g].push_back(tally.tightness());
      if (!is_gradient) continue;
      all.push_back(tally.tightness());
      of_format[result.subject.layer.format].push_back(tally.tightness());
      if (static_cast<Gradient>(g) == Gradient::kDx)
        dx_of[result.subject.layer.format].push_back(tally.tightness());
      summary.largest_tightness = std::max(summary.largest_tightness, tally.tightness());
    }
  }
  for (int g = 0; g < kGradients; ++g) summary.median_tightness[g] = kernels::median(each[g]);
  for (const auto& [format, tightness] : dx_of)
    summary.median_dx_by_format[format] = kernels::median(tightness);
  for (auto& [format, found] : summary.by_format) found.median_tightness = kernels::median(of_format[format]);
  constexpr double kAsked = 4;
  const auto within = std::ranges::count_if(all, [](double tightness) { return tightness <= kAsked; });
  if (!all.empty()) summary.share_within_4 = static_cast<double>(within) / static_cast<double>(all.size());
  summary.median_tightness_all = kernels::median(all);
  return summary;
}

nlohmann::json to_json(const AttackOptions& options, const std::vector<AttackResult>& results) {
  using nlohmann::json;
  const AttackSummary summary = summarise(results);
  json cases = json::array();
  for (const AttackResult& result : results) {
    const AttackCase& c = result.subject;
    json gradients;
    for (int g = 0; g < kGradients; ++g) {
      const GradientTally& tally = result.tally[g];
      if (tally.evaluations == 0) continue;
      json entry = {{"evaluations", tally.evaluations},
                    {"violations", tally.violations},
                    {"worst_over_bound", tally.worst},
                    {"tightness", tally.worst > 0 ? json(tally.tightness()) : json()}};
      if (static_cast<Gradient>(g) != Gradient::kRstd) {
        for (int peer = 0; peer < kPeers; ++peer)
          entry["peers_over_bound"][to_string(kPeerKinds[peer])] = tally.peer_worst[peer];
      }
      constexpr i64 kShortRow = 7;
      const bool shown = tally.violations > 0 || (static_cast<Gradient>(g) == Gradient::kDx &&
                                                  c.layer.n <= kShortRow && tally.worst > 0);
      if (shown) entry["witness"] = witness_json(result, static_cast<Gradient>(g));
      gradients[to_string(static_cast<Gradient>(g))] = std::move(entry);
    }
    cases.push_back({{"norm", to_string(c.layer.norm)},
                     {"format", c.layer.format},
                     {"columns", c.layer.n},
                     {"rows", c.layer.rows},
                     {"parameters", c.parameters},
                     {"x", c.rows_kind},
                     {"eps", c.layer.eps},
                     {"policy", c.layer.side.empty() ? "from_output" : "side_buffer"},
                     {"side_channels", c.layer.side.size()},
                     {"class",
                      {{"mean_ratio", c.options.mean_ratio},
                       {"x_hat_max", c.options.x_hat_max},
                       {"dy_max", c.options.dy_max},
                       {"x_max", c.x_max}}},
                     {"gradients", gradients},
                     {"excluded", result.excluded},
                     {"rows_rejected", result.rejected},
                     {"reference_share", result.reference_share}});
  }
  json formats;
  for (const auto& [format, found] : summary.by_format) {
    formats[format] = {{"evaluations", found.evaluations},
                       {"violations", found.violations},
                       {"median_tightness", found.median_tightness}};
  }
  json medians;
  for (int g = 0; g < kGradients; ++g)
    medians[to_string(static_cast<Gradient>(g))] = summary.median_tightness[g];
  return {{"schema", "outgrad.norm_attack/1"},
          {"seed", options.seed},
          {"evaluations", summary.evaluations},
          {"violations", summary.violations},
          {"excluded", summary.excluded},
          {"median_tightness", summary.median_tightness_all},
          {"median_tightness_by_gradient", medians},
          {"median_tightness_of_dx_by_format", summary.median_dx_by_format},
          {"by_format", formats},
          {"share_within_4", summary.share_within_4},
          {"largest_tightness", summary.largest_tightness},
          {"reference_share", summary.reference_share},
          {"cases", cases}};
}

}  // namespace outgrad::validation
