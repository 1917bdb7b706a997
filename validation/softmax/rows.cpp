// The exact gradient of softmax and the attack on its bounds, see rows.h.
#include "validation/softmax/rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <type_traits>
#include <utility>

#include "kernels/host/softmax.h"
#include "kernels/support/random.h"
#include "validation/exact/oracle.h"
#include "validation/limits.h"

namespace outgrad::validation {
namespace {

using kernels::BF16;
using kernels::F16;
using kernels::i64;
using kernels::Random;
using kernels::u8;

// --- Rows ----------------------------------------------------------------------------------------

constexpr double kCell = 3.0 / 32;     // octaves
constexpr double kInside = 0x1p-19;    // by how much of itself a p is beside an end of its cell

struct Row {
  std::string name;
  std::vector<float> x, dp;
};

// Adds p that lie at ends of cells, where |p' - p| / p is largest: below the upper end, so that p' < p, or
// above the lower one. Greedily, the largest end up to `most` that still fits into 1 is taken; what is left
// at last goes to the first p.
std::vector<double> at_ends(Random& random, i64 n, std::vector<double> p, double most) {
  double left = 1 - std::accumulate(p.begin(), p.end(), 0.0);
  while (std::ssize(p) < n) {
    const double end = std::exp2(std::floor(std::log2(std::min(left, most)) / kCell) * kCell);
    if (!(end > 0x1p-23)) break;
    p.push_back(end * (1 + random.sign() * kInside));
    left -= p.back();
  }
  p.front() += left;
  p.resize(static_cast<std::size_t>(n), 0.0);
  return p;
}

float logarithm(double p) {
  return p > 0 ? static_cast<float>(std::log(p)) : -std::numeric_limits<float>::infinity();
}

constexpr i64 kSizes[] = {1, 2, 3, 7, 16, 64, 257, 1024, 4096, 20000};
constexpr double kSpreads[] = {0.1, 1, 4, 16};

Row random_row(Random& random) {
  Row row;
  const i64 n = kSizes[random.below(std::size(kSizes))];
  row.x.resize(static_cast<std::size_t>(n));
  row.dp.resize(static_cast<std::size_t>(n));
  const double most = std::exp2(-random.uniform(0, std::log2(static_cast<double>(n))));
  bool extreme = false;
  switch (random.below(5)) {
    case 0: {
      row.name = "at ends of cells";
      const std::vector<double> p = at_ends(random, n, {most}, most);
      std::transform(p.begin(), p.end(), row.x.begin(), logarithm);
      break;
    }
    case 1: {
      row.name = "below the least code";
      const double least = random.uniform(0.9, 1) * kernels::kSoftmaxLeast;
      std::fill(row.x.begin(), row.x.end(), logarithm(least));
      row.x.front() = logarithm(1 - static_cast<double>(n - 1) * least);
      break;
    }
    case 2: {  // what makes the bound of the sum as tight as it can be (kernels/softmax.h)
      row.name = "a large p, above the lower end of its cell";
      const double first = std::exp2(-kCell) * (1 + kInside);
      const std::vector<double> p = at_ends(random, n, {first}, most * (1 - first));
      std::transform(p.begin(), p.end(), row.x.begin(), logarithm);
      extreme = true;
      break;
    }
    default: {
      row.name = "of a normal distribution";
      const double spread = kSpreads[random.below(std::size(kSpreads))];
      const double masked = random.chance(0.3) ? 0.5 : 0.0;
      for (float& x : row.x)
        x = random.chance(masked) ? -std::numeric_limits<float>::infinity()
                                  : static_cast<float>(spread * random.normal());
      row.x[random.below(row.x.size())] = 0.0f;  // one at least is not masked
    }
  }
  const double offset = random.chance(0.2) && !extreme ? 1e4 * random.normal() : 0.0,
               size = std::exp2(random.uniform(-10, 10));
  switch (extreme ? 0 : random.below(4)) {
    case 0:  // by the direction in which p is off
      row.name += ", dp by the sign of the error";
      for (std::size_t i = 0; i < row.x.size(); ++i) {
        const float p = static_cast<float>(std::exp(static_cast<double>(row.x[i])));
        row.dp[i] = static_cast<float>(
            offset + (kernels::softmax_of_code(kernels::softmax_code(p)) > p ? size : -size));
      }
      if (extreme) row.dp.front() = static_cast<float>(offset);
      break;
    case 1:  // a small part of p, and all else D
      row.name += ", dp of a small part";
      std::fill(row.dp.begin(), row.dp.end(), static_cast<float>(offset));
      for (std::size_t i = row.dp.size() - row.dp.size() / 16; i < row.dp.size(); ++i)
        row.dp[i] = static_cast<float>(offset + random.sign() * size);
      break;
    default:
      row.name += ", dp of a normal distribution";
      for (float& dp : row.dp) dp = static_cast<float>(offset + size * random.normal());
  }
  return row;
}

// --- Comparisons ---------------------------------------------------------------------------------

struct FormatRounding {
  double unit, tiny;  // |RN(v) - v| <= unit |v| + tiny; 0 where nothing is rounded
};
template <class T>
FormatRounding rounding_of(const FloatFormat& format) {
  if (std::is_same_v<T, float>) return {0, 0};
  return {std::ldexp(1.0, -format.precision), std::ldexp(1.0, format.quantum_exponent - 1)};
}

void note(SoftmaxTightness& worst, double error, double bound, const Row& row, const FloatFormat& format,
          SoftmaxAttack& attack) {
  if (!(error <= bound)) ++attack.violations;
  const double ratio = error / bound;
  if (!(ratio <= worst.ratio))
    worst = {ratio, fmt::format("{}, n = {}, {}", row.name, row.x.size(), format.name)};
}

template <class T>
void attack_row(const Row& given, const FloatFormat& format, const SoftmaxKernels& with,
                SoftmaxAttack& attack) {
  constexpr kernels::CpuSchedule kSchedule = kernels::kWidestSchedule;
  const auto n = static_cast<i64>(given.x.size());
  std::vector<T> x(given.x.size()), dy(given.x.size()), out(given.x.size());
  Row row = given;
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = kernels::narrow<T>(given.x[i]), dy[i] = kernels::narrow<T>(given.dp[i]);
    row.x[i] = kernels::widen(x[i]), row.dp[i] = kernels::widen(dy[i]);
  }
  if (!std::all_of(row.dp.begin(), row.dp.end(), [](float v) { return std::isfinite(v); })) return;
  std::vector<u8> codes(x.size());
  kernels::softmax_forward_code<T, kSchedule>(x.data(), out.data(), codes.data(), 1, n);
  if constexpr (std::is_same_v<T, float>) {
    (with.backward ? with.backward : kernels::softmax_backward_code<float, kSchedule>)(dy.data(),
                                                                                       codes.data(),
                                                                                       out.data(), 1, n);
  } else {
    kernels::softmax_backward_code<T, kSchedule>(dy.data(), codes.data(), out.data(), 1, n);
  }
  const ExactSoftmax exact = exact_softmax(row.x, row.dp);
  const kernels::SoftmaxRow facts{n, exact.sum, exact.range, exact.greatest};
  const FormatRounding rounding = rounding_of<T>(format);
  const double reference = 0x1p-49 + static_cast<double>(n) * 0x1p-52;  // of p, and of D over max |dp|
  double e1 = 0, sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double kept = static_cast<double>(kernels::softmax_of_code(codes[i]));
    e1 += std::abs(kept - exact.p[i]);
    const double error = std::abs(static_cast<double>(kernels::widen(out[i])) - exact.ds[i]);
    sum += error;
    const double bound = kernels::softmax_gradient_element(facts, exact.p[i], exact.ds[i]) +
                         4 * reference * exact.p[i] * exact.greatest;
    note(attack.element, error, bound + rounding.unit * (std::abs(exact.ds[i]) + bound) + rounding.tiny, row,
         format, attack);
  }
  note(attack.e1, e1, kernels::softmax_e1(n) + reference, row, format, attack);
  const double bound = kernels::softmax_gradient_sum(facts) + 4 * reference * exact.greatest;
  note(attack.sum, sum, bound + rounding.unit * (exact.sum + bound) + static_cast<double>(n) * rounding.tiny,
       row, format, attack);
  attack.evaluations += x.size();
}

std::array<std::pair<const char*, const SoftmaxTightness*>, 3> named(const SoftmaxAttack& attack) {
  return {{{"e1", &attack.e1}, {"sum", &attack.sum}, {"element", &attack.element}}};
}

}  // namespace

ExactSoftmax exact_softmax(std::span<const float> x, std::span<const float> dp) {
  ExactSoftmax exact;
  exact.p.resize(x.size());
  exact.ds.resize(x.size());
  const double most = static_cast<double>(*std::max_element(x.begin(), x.end()));
  double sum = 0, mean = 0, low = kInfinity, high = -kInfinity;
  for (std::size_t i = 0; i < x.size(); ++i) sum += exact.p[i] = std::exp(static_cast<double>(x[i]) - most);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double gradient = static_cast<double>(dp[i]);
    exact.p[i] /= sum;
    mean += exact.p[i] * gradient;
    if (exact.p[i] == 0) continue;
    low = std::min(low, gradient), high = std::max(high, gradient);
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    exact.ds[i] = exact.p[i] * (static_cast<double>(dp[i]) - mean);
    exact.sum += std::abs(exact.ds[i]);
  }
  exact.range = high - low;
  exact.greatest = std::max(std::abs(low), std::abs(high));
  return exact;
}

SoftmaxAttack attack_softmax(std::uint64_t evaluations, std::uint64_t seed, const SoftmaxKernels& kernels) {
  SoftmaxAttack attack;
  Random random(seed);
  while (attack.evaluations < evaluations) {
    const Row row = random_row(random);
    attack_row<float>(row, kF32, kernels, attack);
    attack_row<F16>(row, kF16, kernels, attack);
    attack_row<BF16>(row, kBf16, kernels, attack);
  }
  return attack;
}

nlohmann::ordered_json to_json(const SoftmaxAttack& attack) {
  nlohmann::ordered_json json{{"evaluations", attack.evaluations}, {"violations", attack.violations}};
  for (const auto& [name, worst] : named(attack))
    json[name] = {{"of_bound", worst->ratio}, {"row", worst->row}};
  return json;
}

std::string to_text(const SoftmaxAttack& attack) {
  std::string text = fmt::format("attack: {} elements, {} violations; largest parts of the bounds:\n",
                                 attack.evaluations, attack.violations);
  for (const auto& [name, worst] : named(attack))
    text += fmt::format("  {:8} {:.4f}  {}\n", name, worst->ratio, worst->row);
  return text;
}

}  // namespace outgrad::validation
