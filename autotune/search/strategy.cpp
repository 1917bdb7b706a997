// The five strategies.
#include "autotune/search/strategy.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "autotune/search/surrogate.h"
#include "kernels/support/random.h"

namespace outgrad::autotune {

Strategy::Strategy(const Points& points, std::uint64_t seed, std::vector<std::size_t> first)
    : points_(points), random_(seed), first_(first.begin(), first.end()),
      state_(points.size(), State::kUnseen), unseen_(points.size()), shuffled_(points.size()) {
  std::iota(shuffled_.begin(), shuffled_.end(), 0U);
}

std::vector<std::size_t> Strategy::ask(std::size_t most) {
  std::vector<std::size_t> asked;
  while (asked.size() < most && unseen_ > 0) {
    std::optional<std::size_t> point;
    while (!point && !first_.empty()) {
      if (!seen(first_.front())) point = first_.front();
      first_.pop_front();
    }
    if (!point) point = choose();
    if (!point) point = random_unseen();
    state_[*point] = State::kPending;
    --unseen_;
    pending_.push_back(*point);
    asked.push_back(*point);
  }
  return asked;
}

void Strategy::tell(std::size_t point, Outcome outcome) {
  if (state_.at(point) == State::kTold) throw std::logic_error("a point was told twice");
  if (outcome && !(*outcome > 0 && std::isfinite(*outcome)))
    throw std::logic_error("a time that is not positive and finite");
  if (!seen(point)) --unseen_;
  state_[point] = State::kTold;
  std::erase(pending_, point);
  learn(point, outcome);
}

// A Fisher-Yates shuffle, one step a draw; what others proposed meanwhile is passed over.
std::optional<std::size_t> Strategy::random_unseen() {
  while (drawn_ < shuffled_.size()) {
    std::swap(shuffled_[drawn_], shuffled_[drawn_ + below(shuffled_.size() - drawn_)]);
    const std::size_t point = shuffled_[drawn_++];
    if (!seen(point)) return point;
  }
  return std::nullopt;
}

std::size_t Strategy::below(std::size_t n) {
  // By rejection: the largest multiple of n keeps every remainder equally likely.
  const std::uint64_t limit = UINT64_MAX - UINT64_MAX % n;
  std::uint64_t drawn = kernels::next_random(random_);
  while (drawn >= limit) drawn = kernels::next_random(random_);
  return static_cast<std::size_t>(drawn % n);
}

double Strategy::uniform() { return static_cast<double>(kernels::next_random(random_) >> 11) * 0x1p-53; }

namespace {

class Exhaustive final : public Strategy {
 public:
  using Strategy::Strategy;

 private:
  std::optional<std::size_t> choose() override {
    while (next_ < points().size() && seen(next_)) ++next_;
    return next_ < points().size() ? std::optional(next_) : std::nullopt;
  }
  std::size_t next_ = 0;
};

class Random final : public Strategy {
 public:
  using Strategy::Strategy;

 private:
  std::optional<std::size_t> choose() override { return random_unseen(); }
};

class Local final : public Strategy {
 public:
  using Strategy::Strategy;

 private:
  std::optional<std::size_t> choose() override {
    while (!untried_.empty()) {
      const std::size_t point = untried_.back();
      untried_.pop_back();
      if (!seen(point)) return point;
    }
    here_ = INFINITY;  // a local minimum: whatever comes next is the new start
    return std::nullopt;
  }
  void learn(std::size_t point, Outcome outcome) override {
    if (!outcome || *outcome >= here_) return;
    here_ = *outcome;
    untried_ = points().neighbours(point);
    for (std::size_t i = untried_.size(); i > 1; --i) std::swap(untried_[i - 1], untried_[below(i)]);
  }
  double here_ = INFINITY;  // time of the point whose neighbours are tried
  std::vector<std::size_t> untried_;
};

class Evolutionary final : public Strategy {
 public:
  using Strategy::Strategy;

 private:
  static constexpr std::size_t kPopulation = 20;  // the customary size for spaces of thousands of points

  std::optional<std::size_t> choose() override {
    if (born_ < kPopulation || population_.empty()) return ++born_, std::nullopt;
    constexpr int kAttempts = 30;  // most children of a constrained space are invalid or known
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      const std::size_t mother = winner(), father = winner();
      std::vector<std::size_t> child(points().parameters().size());
      for (std::size_t p = 0; p < child.size(); ++p) {
        child[p] = points().position(below(2) == 0 ? mother : father, p);
        if (below(child.size()) == 0) child[p] = below(points().parameters()[p].values.size());
      }
      if (const auto point = points().find(child); point && !seen(*point)) return point;
    }
    const std::vector<std::size_t> near = points().neighbours(winner());
    if (near.empty()) return std::nullopt;
    const std::size_t point = near[below(near.size())];
    return seen(point) ? std::nullopt : std::optional(point);
  }
  void learn(std::size_t point, Outcome outcome) override {
    if (!outcome) return;
    population_.insert(std::lower_bound(population_.begin(), population_.end(), std::pair(*outcome, point)),
                       {*outcome, point});
    if (population_.size() > kPopulation) population_.pop_back();
  }
  std::size_t winner() {
    return population_[std::min(below(population_.size()), below(population_.size()))].second;
  }

  std::size_t born_ = 0;
  std::vector<std::pair<double, std::size_t>> population_;  // fastest first
};

// Expected improvement over the best time seen, by a Gaussian process on the logarithms of times. Two of
// three proposals are confined to the neighbours of the fastest point that has untried ones: a cliff that the
// process smooths over lies next to what is fast already.
//
// A failed point counts as one of the slowest tenth: the process keeps away from where points fail, but a
// failure beside the best does not outweigh it. Pending points are held at their predicted means until they
// are told, so that a batch spreads.
class ModelGuided final : public Strategy {
 public:
  ModelGuided(const Points& points, std::uint64_t seed, std::vector<std::size_t> first)
      : Strategy(points, seed, std::move(first)), features_(points) {}

 private:
  // points that are candidates; a larger space is sampled at each fit
  static constexpr std::size_t kPool = 12'000;
  // that a fit starts from, and half as many again until the next: with kPool, 110 MB
  static constexpr std::size_t kObservations = 1500;
  // that hyperparameters are fitted to: a few milliseconds a step
  static constexpr std::size_t kLikelihood = 160;
  static constexpr double kGrowth = 1.4;  // of the number of observations between two fits
  static constexpr int kTurns = 3, kLocalTurns = 2;

  using Observation = std::pair<std::size_t, Outcome>;

  // What the process observes: the logarithm of the time, less the mean of all.
  double value_of(const Outcome& outcome) const { return outcome ? std::log(*outcome) - centre_ : failed_; }

  std::optional<std::size_t> choose() override {
    // before that a model says little
    const std::size_t design = std::min(points().size() / 4 + 2, 2 * features_.dimensions() + 4);
    if (observed_.size() + pending().size() < design) return spread_out();
    if (fastest_.empty()) return std::nullopt;
    const std::size_t grown = std::min(static_cast<std::size_t>(kGrowth * static_cast<double>(fitted_)),
                                       fitted_ + kObservations / 2);
    if (process_ == nullptr || observed_.size() > grown) fit();
    for (; believed_ < pending().size(); ++believed_)
      process_->observe(pending()[believed_], process_->predict(pending()[believed_]).mean);

    const double deviation = std::sqrt(std::max(process_->scale(), 1e-12)),
                 least = std::log(fastest_.front().first) - centre_;
    std::optional<std::size_t> best;
    double most = -INFINITY;
    const auto consider = [&](std::size_t point, GaussianProcess::Prediction prediction) {
      const double gain =
          improvement(least - prediction.mean,
                      deviation * std::sqrt(std::max(prediction.variance, 0.0) + process_->noise()));
      if (gain > most) most = gain, best = point;
    };
    if (++turn_ % kTurns < kLocalTurns)
      for (const std::size_t point : untried_neighbours()) consider(point, process_->predict(point));
    if (!best)
      for (std::size_t c = 0; c < process_->candidates().size(); ++c)
        if (!seen(process_->candidates()[c])) consider(process_->candidates()[c], process_->at(c));
    return best;
  }

  void learn(std::size_t point, Outcome outcome) override {
    for (; believed_ > 0; --believed_) process_->forget_last();
    observed_.push_back({point, outcome});
    if (outcome)
      fastest_.insert(std::lower_bound(fastest_.begin(), fastest_.end(), std::pair(*outcome, point)),
                      {*outcome, point});
    if (process_ != nullptr) process_->observe(point, value_of(outcome));
  }

  // E max(0, lead + deviation z) for normal z; where that underflows, an order by how many deviations are
  // missing.
  static double improvement(double lead, double deviation) {
    constexpr double kHopeless = -8;
    const double z = lead / deviation;
    if (z < kHopeless) return z;
    return deviation *
           (0.5 * z * std::erfc(-z * M_SQRT1_2) + std::exp(-0.5 * z * z) * 0.5 * M_2_SQRTPI * M_SQRT1_2);
  }

  // The untried neighbours of the fastest point that has any.
  std::vector<std::size_t> untried_neighbours() const {
    std::vector<std::size_t> untried;
    for (std::size_t i = 0; i < fastest_.size() && untried.empty(); ++i) {
      untried = points().neighbours(fastest_[i].second);
      std::erase_if(untried, [&](std::size_t point) { return seen(point); });
    }
    return untried;
  }

  // The farthest of a few random points from those seen.
  std::optional<std::size_t> spread_out() {
    constexpr int kTries = 8;
    std::optional<std::size_t> best;
    double farthest = -1;
    for (int t = 0; t < kTries; ++t) {
      const std::size_t point = below(points().size());
      if (seen(point)) continue;
      double nearest = INFINITY;
      for (const auto& [other, outcome] : observed_)
        nearest = std::min(nearest, features_.square_distance(point, other));
      for (const std::size_t other : pending())
        nearest = std::min(nearest, features_.square_distance(point, other));
      if (nearest > farthest) farthest = nearest, best = point;
    }
    return best;
  }

  // At most `most` observations: the fastest half of them, and others evenly spread over the rest: what
  // matters most, and the contrast to it.
  std::vector<Observation> subset(std::size_t most) const {
    std::vector<Observation> all = observed_;
    if (all.size() <= most) return all;
    std::sort(all.begin(), all.end(), [&](const Observation& a, const Observation& b) {
      return std::pair(value_of(a.second), a.first) < std::pair(value_of(b.second), b.first);
    });
    const std::size_t half = most / 2, rest = all.size() - half;
    std::vector<Observation> chosen(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(half));
    for (std::size_t i = 0; i < most - half; ++i) chosen.push_back(all[half + i * rest / (most - half)]);
    return chosen;
  }

  void fit() {
    centre_ = 0;
    for (const auto& [time, point] : fastest_)
      centre_ += std::log(time) / static_cast<double>(fastest_.size());
    failed_ = std::log(fastest_[fastest_.size() * 9 / 10].first) - centre_;
    std::vector<std::size_t> at;
    std::vector<double> y;
    for (const auto& [point, outcome] : subset(kLikelihood))
      at.push_back(point), y.push_back(value_of(outcome));
    const double mean = std::accumulate(y.begin(), y.end(), 0.0) / static_cast<double>(y.size());
    for (double& value : y) value -= mean;
    hyperparameters_ = fit_hyperparameters(features_, at, y, hyperparameters_);
    fitted_ = observed_.size();

    std::vector<std::size_t> candidates(std::min(kPool, points().size()));
    std::iota(candidates.begin(), candidates.end(), std::size_t{0});
    if (points().size() > kPool) {
      for (std::size_t& point : candidates) point = below(points().size());
      std::sort(candidates.begin(), candidates.end());
      candidates.erase(std::unique(candidates.begin(), candidates.end()), candidates.end());
    }
    process_ = std::make_unique<GaussianProcess>(features_, std::move(candidates), hyperparameters_);
    believed_ = 0;
    for (const auto& [point, outcome] : subset(kObservations)) process_->observe(point, value_of(outcome));
  }

  Features features_;
  std::vector<Observation> observed_;
  std::vector<std::pair<double, std::size_t>> fastest_;  // those that did not fail, by time
  double centre_ = 0, failed_ = 0;
  Hyperparameters hyperparameters_;
  std::unique_ptr<GaussianProcess> process_;
  std::size_t fitted_ = 0;  // observations at the latest fit
  // pending points that the process holds at their predicted mean, its latest observations
  std::size_t believed_ = 0;
  int turn_ = 0;
};

}  // namespace

const std::vector<std::string>& strategy_names() {
  static const std::vector<std::string> kNames = {"model", "evolutionary", "local", "random", "exhaustive"};
  return kNames;
}

std::unique_ptr<Strategy> make_strategy(const std::string& name, const Points& points, std::uint64_t seed,
                                        std::vector<std::size_t> first) {
  if (name == "model") return std::make_unique<ModelGuided>(points, seed, std::move(first));
  if (name == "evolutionary") return std::make_unique<Evolutionary>(points, seed, std::move(first));
  if (name == "local") return std::make_unique<Local>(points, seed, std::move(first));
  if (name == "random") return std::make_unique<Random>(points, seed, std::move(first));
  if (name == "exhaustive") return std::make_unique<Exhaustive>(points, seed, std::move(first));
  throw std::invalid_argument("unknown strategy '" + name + "'");
}

}  // namespace outgrad::autotune
