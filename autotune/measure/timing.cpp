// Rounds, their statistics, and the bandwidth ceilings.
#include "autotune/measure/timing.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>

#include "kernels/support/random.h"
#include "kernels/support/statistics.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace outgrad::autotune {

double steady_ns(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Rounds::Rounds(std::vector<Workload> workloads, std::uint64_t seed, Stopwatch stopwatch)
    : workloads_(std::move(workloads)), state_(seed), stopwatch_(std::move(stopwatch)),
      times_ns_(workloads_.size()) {}

void Rounds::run(bool warm_up, const std::function<void(std::size_t)>& before_each) {
  std::vector<std::size_t> order(workloads_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  kernels::shuffle(order, state_);
  for (const std::size_t w : order) {
    if (before_each) before_each(w);
    const double ns = stopwatch_(workloads_[w].run);
    if (!warm_up) times_ns_[w].push_back(ns);
  }
}

std::vector<std::vector<double>> timed_until(std::vector<Workload> workloads, int kept, std::uint64_t seed) {
  constexpr int kPatience = 3;
  Rounds rounds(std::move(workloads), seed);
  rounds.run(/*warm_up=*/true);
  for (int round = 0; round < kPatience * kept; ++round) {
    if (count_of(kept_rounds(rounds.times_ns().front())) >= static_cast<std::size_t>(kept)) break;
    rounds.run();
  }
  return rounds.times_ns();
}

std::vector<bool> kept_rounds(const std::vector<double>& ceiling_ns, double share) {
  std::vector<double> sorted = ceiling_ns;
  std::sort(sorted.begin(), sorted.end());
  const double best = sorted.empty() ? 0 : sorted[sorted.size() / kLuckyRounds];
  std::vector<bool> kept;
  for (const double time : ceiling_ns) kept.push_back(best >= share * time);  // bandwidth is 1 / time
  return kept;
}

std::vector<double> kept_of(const std::vector<double>& values, const std::vector<bool>& kept) {
  std::vector<double> chosen;
  for (std::size_t r = 0; r < values.size() && r < kept.size(); ++r)
    if (kept[r]) chosen.push_back(values[r]);
  return chosen;
}

Interval ratio_interval(const std::vector<double>& numerator, const std::vector<double>& denominator,
                        const std::vector<bool>& kept) {
  const std::vector<double> above = kept_of(numerator, kept), below = kept_of(denominator, kept);
  const std::size_t n = std::min(above.size(), below.size());
  if (n == 0) return {};
  std::vector<double> ratios(n);
  for (std::size_t r = 0; r < n; ++r) ratios[r] = above[r] / below[r];
  std::sort(ratios.begin(), ratios.end());
  const std::size_t end = std::max(kernels::place_of_bound(n, kConfidence), std::size_t{1}) - 1;
  return {kernels::median(ratios), ratios[end], ratios[n - 1 - end]};
}

std::size_t count_of(const std::vector<bool>& kept) {
  return static_cast<std::size_t>(std::count(kept.begin(), kept.end(), true));
}

bool is_figure(const Interval& interval, std::size_t rounds) {
  return rounds >= kFewestRounds && interval.low > 0 && interval.high <= kWidestInterval * interval.low;
}

std::string too_noisy(const Interval& interval, const std::vector<bool>& kept, double scale) {
  char text[128];
  std::snprintf(text, sizeof text, "too noisy: %zu of %zu rounds usable, interval [%.2f, %.2f]",
                count_of(kept), kept.size(), scale * interval.low, scale * interval.high);
  return text;
}

namespace {

// 0, 1, .. in ascending order of the values; equal values share the mean of theirs.
std::vector<double> ranks_of(const std::vector<double>& values) {
  std::vector<std::size_t> order(values.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (std::size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    for (std::size_t i = begin; i < end; ++i) ranks[order[i]] = static_cast<double>(begin + end - 1) / 2;
  }
  return ranks;
}

// The ranks of the other values where one is left out.
std::vector<double> ranks_without(const std::vector<double>& ranks, std::size_t left_out) {
  std::vector<double> others;
  others.reserve(ranks.size());
  const double own = ranks[left_out];
  for (std::size_t i = 0; i < ranks.size(); ++i)
    if (i != left_out) others.push_back(ranks[i] - (ranks[i] > own ? 1 : ranks[i] == own ? 0.5 : 0));
  return others;
}

// Pearson's correlation of ranks.
double correlation_of(const std::vector<double>& x, const std::vector<double>& y) {
  const double mean = static_cast<double>(x.size() - 1) / 2;  // of ranks, ties or not
  double xy = 0, xx = 0, yy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - mean) * (y[i] - mean);
    xx += (x[i] - mean) * (x[i] - mean);
    yy += (y[i] - mean) * (y[i] - mean);
  }
  return xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

double spearman(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size() || a.size() < 2) return std::numeric_limits<double>::quiet_NaN();
  return correlation_of(ranks_of(a), ranks_of(b));
}

Interval spearman_interval(const std::vector<double>& a, const std::vector<double>& b) {
  const double found = spearman(a, b);
  if (std::isnan(found)) return {found, found, found};
  const Interval unknown{found, -1, 1};
  if (a.size() < kFewestRounds) return unknown;
  const auto n = static_cast<double>(a.size());
  if (std::abs(found) == 1) {
    // All of n / 2 disjoint pairs of points are in one order with a chance above 1% where a pair is so with
    // this chance; that bounds Kendall's correlation, and Daniels' inequality then Spearman's.
    const double chance = std::pow(1 - kConfidence, 1 / std::floor(n / 2)), kendall = 2 * chance - 1;
    const double least = std::max((3 * kendall - 1) / 2, -1.0);
    return found > 0 ? Interval{1, least, 1} : Interval{-1, -1, -least};
  }
  const std::vector<double> x = ranks_of(a), y = ranks_of(b);
  double sum = 0, squares = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double moved = correlation_of(ranks_without(x, i), ranks_without(y, i)) - found;
    sum += moved, squares += moved * moved;
  }
  // On Fisher's scale, on which the interval has one length to either side.
  const double error = std::sqrt((n - 1) / n * (squares - sum * sum / n)) / (1 - found * found);
  if (std::isnan(error)) return unknown;
  const double middle = std::atanh(found),
               reach = kernels::students_t(kConfidence, static_cast<int>(a.size()) - 1) * error;
  return {found, std::tanh(middle - reach), std::tanh(middle + reach)};
}

// Both ceilings give each thread one contiguous range, as the kernels do.
namespace {

#if defined(__AVX512F__)
constexpr int kLane = 16;
inline void stream_sum(const float* a, const float* b, float* out) {
  _mm512_stream_ps(out, _mm512_fmadd_ps(_mm512_set1_ps(3), _mm512_load_ps(b), _mm512_load_ps(a)));
}
inline void stream_copy(const float* a, float* out) { _mm512_stream_ps(out, _mm512_load_ps(a)); }
inline void fence() { _mm_sfence(); }
#elif defined(__AVX__)
constexpr int kLane = 8;
inline void stream_sum(const float* a, const float* b, float* out) {
  _mm256_stream_ps(out,
                   _mm256_add_ps(_mm256_load_ps(a), _mm256_mul_ps(_mm256_set1_ps(3), _mm256_load_ps(b))));
}
inline void stream_copy(const float* a, float* out) { _mm256_stream_ps(out, _mm256_load_ps(a)); }
inline void fence() { _mm_sfence(); }
#elif defined(__SSE2__)
constexpr int kLane = 4;
inline void stream_sum(const float* a, const float* b, float* out) {
  _mm_stream_ps(out, _mm_add_ps(_mm_load_ps(a), _mm_mul_ps(_mm_set1_ps(3), _mm_load_ps(b))));
}
inline void stream_copy(const float* a, float* out) { _mm_stream_ps(out, _mm_load_ps(a)); }
inline void fence() { _mm_sfence(); }
#else
constexpr int kLane = 1;
inline void stream_sum(const float* a, const float* b, float* out) { *out = *a + 3 * *b; }
inline void stream_copy(const float* a, float* out) { *out = *a; }
inline void fence() {}
#endif

}  // namespace

void triad(const float* a, const float* b, float* out, long long n) {
  const long long whole = n - n % kLane;
#pragma omp parallel
  {
#pragma omp for schedule(static)
    for (long long i = 0; i < whole; i += kLane) stream_sum(a + i, b + i, out + i);
    fence();
  }
  for (long long i = whole; i < n; ++i) out[i] = a[i] + 3 * b[i];
}

void copy(const float* a, float* out, long long n) {
  const long long whole = n - n % kLane;
#pragma omp parallel
  {
#pragma omp for schedule(static)
    for (long long i = 0; i < whole; i += kLane) stream_copy(a + i, out + i);
    fence();
  }
  for (long long i = whole; i < n; ++i) out[i] = a[i];
}

}  // namespace outgrad::autotune
