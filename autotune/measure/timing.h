// Interleaved timing on a noisy machine: every round runs every workload once, in random order, ceiling and
// baseline included.
//
// Shared cores drift by tens of percent within seconds, so times from different seconds do not compare.
// Within one round they do: what is reported is per-round ratios, their median and what holds it. A round
// during which the machine was disturbed shows in its ceiling; such rounds are kept as data and left out of
// every figure.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "autotune/records/interval.h"

namespace outgrad::autotune {

// A round whose ceiling falls under this share of the best round's is discarded: the machine was busy with
// something else. The best is taken after leaving out one round in ten: where others share the memory, a rare
// lucky round is half as fast again as any other.
inline constexpr double kCeilingShare = 0.9;
inline constexpr std::size_t kLuckyRounds = 10;
// With four finalists against one baseline, 99% each keeps the chance of one false winner under 4%.
inline constexpr double kConfidence = 0.99;

struct Workload {
  std::string name;
  double bytes = 0;  // moved by one run, by the definition of the algorithm: no write-allocate traffic
  std::function<void()> run;
};

// How one run is timed: calls it and returns the ns it took. By default the steady clock around the call; a
// device that works behind the caller's back has a clock of its own.
using Stopwatch = std::function<double(const std::function<void()>&)>;
double steady_ns(const std::function<void()>& run);
// Seconds of the steady clock.
double seconds_since(std::chrono::steady_clock::time_point start);

// Rounds of one or several workloads; times in ns, indexed [workload][round].
class Rounds {
 public:
  Rounds(std::vector<Workload> workloads, std::uint64_t seed, Stopwatch stopwatch = steady_ns);

  // Runs one round in a fresh random order; before_each (may be empty) is told the workload's index. Untimed
  // if `warm_up`.
  void run(bool warm_up = false, const std::function<void(std::size_t)>& before_each = {});

  const std::vector<std::vector<double>>& times_ns() const { return times_ns_; }

 private:
  std::vector<Workload> workloads_;
  std::uint64_t state_;
  Stopwatch stopwatch_;
  std::vector<std::vector<double>> times_ns_;
};

// The times of rounds until so many are kept, three times as many at most; the first workload is the ceiling.
std::vector<std::vector<double>> timed_until(std::vector<Workload> workloads, int kept, std::uint64_t seed);

// Which rounds are kept, given the ceiling's times; share = 0 keeps all.
std::vector<bool> kept_rounds(const std::vector<double>& ceiling_ns, double share = kCeilingShare);

std::vector<double> kept_of(const std::vector<double>& values, const std::vector<bool>& kept);

// Fewer rounds have no interval of a median at kConfidence: the least and the largest of 8 hold it between
// them with 1 - 2/2^8 = 99.2%, those of 7 with 98.4%.
inline constexpr std::size_t kFewestRounds = 8;
static_assert(1 - 2.0 / (1 << kFewestRounds) >= kConfidence &&
              1 - 2.0 / (1 << (kFewestRounds - 1)) < kConfidence);
// Ends that are further apart do not tell a kernel from one of twice its speed.
inline constexpr double kWidestInterval = 2;
// Whether a median over so many rounds is a figure to print; else the machine was too busy.
bool is_figure(const Interval& interval, std::size_t rounds);
// What stands in its place: "too noisy: 6 of 30 rounds usable, interval [0.02, 1.22]", the ends times
// `scale`.
std::string too_noisy(const Interval& interval, const std::vector<bool>& kept, double scale = 1);
std::size_t count_of(const std::vector<bool>& kept);
// Median of numerator[r] / denominator[r] over the rounds kept, and the ratios that hold it between them at
// kConfidence, however ratios are spread; of fewer than kFewestRounds the least and the largest, which do
// not. All 1 when no round is kept.
Interval ratio_interval(const std::vector<double>& numerator, const std::vector<double>& denominator,
                        const std::vector<bool>& kept);

// Spearman's rank correlation of two lists of one length: Pearson's of their ranks, equal values sharing the
// mean of theirs. NaN for fewer than two pairs, and where all values of a list are equal.
double spearman(const std::vector<double>& a, const std::vector<double>& b);
// The same with an interval that is nominally at kConfidence, by the jackknife on Fisher's scale; `median` is
// the correlation of all. From 8 pairs on it holds the correlation of the pairs that these were drawn from in
// 96% of samples or more of the kinds that the test draws; in 85% at least where one prediction in twenty
// means nothing, which a sample may not show. -1 to 1 of fewer pairs, and where all but one are alike.
Interval spearman_interval(const std::vector<double>& a, const std::vector<double>& b);

// Ceilings: what this machine's memory gives code that computes (almost) nothing, on all cores, with
// streaming stores. n floats, all three arrays 64-byte aligned.
void triad(const float* a, const float* b, float* out, long long n);  // out = a + 3 b: two reads, one write
void copy(const float* a, float* out, long long n);  // one read, one write

}  // namespace outgrad::autotune
