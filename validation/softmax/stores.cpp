// Ways to keep softmax's output, and what they cost, see stores.h.
#include "validation/softmax/stores.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "kernels/host/softmax.h"
#include "kernels/support/random.h"
#include "validation/exact/reference.h"
#include "validation/softmax/rows.h"

namespace outgrad::validation {
namespace {

using kernels::i64;
using kernels::Random;
using kernels::u8;

constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();

// Rows with their p in fp32, as a forward leaves it.
struct Group {
  i64 rows, n;
  std::vector<float> x, p, dp;
  std::vector<u8> codes;
};

Group random_group(Random& random, i64 n, double spread) {
  Group group{kSoftmaxGroupRows, n, {}, {}, {}, {}};
  const auto size = static_cast<std::size_t>(group.rows * n);
  group.x.resize(size), group.p.resize(size), group.dp.resize(size), group.codes.resize(size);
  for (float& x : group.x) x = static_cast<float>(spread * random.normal());
  for (float& dp : group.dp) dp = static_cast<float>(random.normal());
  kernels::softmax_forward_code<float, kernels::kWidestSchedule>(group.x.data(), group.p.data(),
                                                                 group.codes.data(), group.rows, n);
  return group;
}

// p' of a group. A store may draw at random, and may remember the groups before.
using Keep = std::function<std::vector<double>(const Group&, Random&)>;

struct PStore {
  std::string name;
  double bits;
  std::function<double(i64)> proven;  // e1 of rows of this length
  bool ours;                          // the kernels' backward; otherwise p' (dp - sum p' dp)
  Keep keep;
};

template <class Round>
Keep each(const Round& round) {
  return [round](const Group& group, Random&) {
    const double most = static_cast<double>(*std::max_element(group.p.begin(), group.p.end()));
    std::vector<double> kept(group.p.size());
    std::transform(group.p.begin(), group.p.end(), kept.begin(),
                   [&](float p) { return round(static_cast<double>(p), most); });
    return kept;
  };
}

std::vector<double> decoded_codes(const Group& group, Random&) {
  std::vector<double> kept(group.codes.size());
  std::transform(group.codes.begin(), group.codes.end(), kept.begin(),
                 [](u8 code) { return static_cast<double>(kernels::softmax_of_code(code)); });
  return kept;
}

double quantised(const QuantisedGroup& by, const Quantiser& quantiser, double p, Random& random) {
  const double u = quantiser.stochastic ? quantiser.u(random.bits() >> (64 - quantiser.u_bits)) : 0.0;
  return by.value(by.code(by.raw(p, u)));
}

// Parts of a group with their own exact range: all of it if `part` is 0.
std::vector<double> quantised_by_parts(const Quantiser& quantiser, std::size_t part, const Group& group,
                                       Random& random) {
  std::vector<double> kept(group.p.size());
  const std::size_t step = part == 0 ? kept.size() : part;
  for (std::size_t begin = 0; begin < kept.size(); begin += step) {
    const auto from = group.p.begin() + static_cast<std::ptrdiff_t>(begin),
               to = group.p.begin() + static_cast<std::ptrdiff_t>(std::min(begin + step, kept.size()));
    const auto [least, most] = std::minmax_element(from, to);
    const QuantisedGroup by(quantiser, static_cast<double>(*least), static_cast<double>(*most), kF32);
    for (auto p = from; p != to; ++p) {
      kept[static_cast<std::size_t>(p - group.p.begin())] =
          by.problem().empty() ? quantised(by, quantiser, static_cast<double>(*p), random)
                               : static_cast<double>(*p);
    }
  }
  return kept;
}

// The minimum and c move towards each group's before they are used, as after many steps of training.
Keep running(const Quantiser& quantiser) {
  return [quantiser, moved = QuantisedGroup::Moved{0, -1}](const Group& group, Random& random) mutable {
    const auto [least, most] = std::minmax_element(group.p.begin(), group.p.end());
    const double min = static_cast<double>(*least),
                 c = round_to_format(static_cast<double>(*most) - min, kF32);
    const auto towards = [&](double from, double to) {
      return round_to_format(
          from - round_to_format(round_to_format(quantiser.momentum, kF32) * round_to_format(from - to, kF32),
                                 kF32),
          kF32);
    };
    moved = moved.c < 0 ? QuantisedGroup::Moved{min, c}
                        : QuantisedGroup::Moved{towards(moved.min, min), towards(moved.c, c)};
    const QuantisedGroup by(quantiser, moved, kF32);
    std::vector<double> kept(group.p.size());
    std::transform(group.p.begin(), group.p.end(), kept.begin(),
                   [&](float p) { return quantised(by, quantiser, static_cast<double>(p), random); });
    return kept;
  };
}

std::vector<PStore> stores_of(const std::vector<NamedQuantiser>& quantisers) {
  const auto unknown = [](i64) { return kNothing; };
  std::vector<PStore> stores;
  stores.push_back({"log2, 8 bits", 8, kernels::softmax_e1, true, decoded_codes});
  stores.push_back({"log2, 8 bits, D as sum p' dp", 8, kernels::softmax_e1, false, decoded_codes});
  // Normal numbers are within half a unit in the last place, subnormal ones within half their distance.
  stores.push_back({"bf16", 16, [](i64 n) { return 0x1p-8 + static_cast<double>(n) * 0x1p-134; }, false,
                    each([](double p, double) { return round_to_format(p, kBf16); })});
  stores.push_back({"e4m3, scaled", 8, [](i64 n) { return 0x1p-4 + static_cast<double>(n) * 0x1p-10 / 448; },
                    false, each([](double p, double most) {
                      return round_to_format(p * (kE4m3.largest / most), kE4m3) * (most / kE4m3.largest);
                    })});
  stores.push_back({"int8, nearest", 8, [](i64 n) { return static_cast<double>(n) / 510; }, false,
                    each([](double p, double most) {
                      const double step = most / 255;
                      return std::nearbyint(p / step) * step;
                    })});
  for (const auto& [name, quantiser] : quantisers) {
    const double bits = quantiser.bits_per_element(kF32);
    if (quantiser.rule == Quantiser::Rule::exact) {
      stores.push_back({name, bits, unknown, false, [quantiser](const Group& group, Random& random) {
                          return quantised_by_parts(quantiser, static_cast<std::size_t>(quantiser.group),
                                                    group, random);
                        }});
      continue;
    }
    // Such a range is that of the first group itself.
    stores.push_back(
        {name + ", own range", bits, unknown, false, [quantiser](const Group& group, Random& random) {
           return quantised_by_parts(quantiser, 0, group, random);
         }});
    if (quantiser.rule == Quantiser::Rule::running)
      stores.push_back({name + ", running range", bits, unknown, false, running(quantiser)});
  }
  return stores;
}

std::vector<double> gradient(const Group& group, const PStore& store, const std::vector<double>& kept) {
  std::vector<double> ds(kept.size());
  if (store.ours) {
    std::vector<float> dx(kept.size());
    kernels::softmax_backward_code<float, kernels::kWidestSchedule>(group.dp.data(), group.codes.data(),
                                                                    dx.data(), group.rows, group.n);
    std::transform(dx.begin(), dx.end(), ds.begin(), [](float v) { return static_cast<double>(v); });
    return ds;
  }
  const auto n = static_cast<std::size_t>(group.n);
  for (std::size_t row = 0; row < kept.size(); row += n) {
    double mean = 0;
    for (std::size_t i = row; i < row + n; ++i) mean += kept[i] * static_cast<double>(group.dp[i]);
    for (std::size_t i = row; i < row + n; ++i) ds[i] = kept[i] * (static_cast<double>(group.dp[i]) - mean);
  }
  return ds;
}

// The errors of a store over all rows so far.
struct Tally {
  double e1 = 0, e1_most = 0, relative = 0, squares = 0, sum_most = 0, rows = 0;

  void add(const ExactSoftmax& exact, const double* kept, const double* ds) {
    double e = 0, error = 0, square = 0, whole = 0;
    for (std::size_t i = 0; i < exact.p.size(); ++i) {
      e += std::abs(kept[i] - exact.p[i]);
      const double off = ds[i] - exact.ds[i];
      error += std::abs(off), square += off * off, whole += exact.ds[i] * exact.ds[i];
    }
    const double ratio = std::sqrt(square / whole);
    e1 += e, e1_most = std::max(e1_most, e), relative += ratio, squares += ratio * ratio,
             sum_most = std::max(sum_most, error / exact.sum), rows += 1;
  }
};

}  // namespace

std::vector<SoftmaxFrontRow> softmax_front(const SoftmaxFrontOptions& options) {
  std::vector<SoftmaxFrontRow> result;
  for (const i64 n : options.lengths) {
    for (const double spread : options.spreads) {
      const std::vector<PStore> stores = stores_of(options.quantisers);
      std::vector<Tally> tallies(stores.size());
      Random random(options.seed);
      for (int g = 0; g < options.groups; ++g) {
        const Group group = random_group(random, n, spread);
        std::vector<ExactSoftmax> exact;
        for (i64 row = 0; row < group.rows; ++row) {
          const auto at = static_cast<std::size_t>(row * n), length = static_cast<std::size_t>(n);
          exact.push_back(exact_softmax({group.x.data() + at, length}, {group.dp.data() + at, length}));
        }
        for (std::size_t s = 0; s < stores.size(); ++s) {
          const std::vector<double> kept = stores[s].keep(group, random),
                                    ds = gradient(group, stores[s], kept);
          for (std::size_t row = 0; row < exact.size(); ++row) {
            const std::size_t at = row * static_cast<std::size_t>(n);
            tallies[s].add(exact[row], kept.data() + at, ds.data() + at);
          }
        }
      }
      for (std::size_t s = 0; s < stores.size(); ++s) {
        const Tally& t = tallies[s];
        const double proven = stores[s].proven(n), mean = t.relative / t.rows;
        result.push_back(
            {.length = n,
             .spread = spread,
             .store = stores[s].name,
             .bits = stores[s].bits,
             .e1_proven = proven < 2 ? proven : kNothing,
             .sum_proven = stores[s].ours ? 2 * kernels::softmax_relative(n) : kNothing,
             .e1 = t.e1 / t.rows,
             .e1_most = t.e1_most,
             .relative = mean,
             .relative_deviation = std::sqrt(std::max(0.0, t.squares / t.rows - mean * mean) / t.rows),
             .sum_most = t.sum_most});
      }
    }
  }
  return result;
}

nlohmann::ordered_json softmax_front_json(const std::vector<SoftmaxFrontRow>& rows) {
  nlohmann::ordered_json json{{"schema", kSoftmaxFrontSchema}, {"rows", nlohmann::ordered_json::array()}};
  const auto or_null = [](double v) {
    return std::isnan(v) ? nlohmann::ordered_json() : nlohmann::ordered_json(v);
  };
  for (const SoftmaxFrontRow& row : rows) {
    json["rows"].push_back({{"length", row.length},
                            {"spread", row.spread},
                            {"store", row.store},
                            {"bits", row.bits},
                            {"e1_proven", or_null(row.e1_proven)},
                            {"e1_mean", row.e1},
                            {"e1_most", row.e1_most},
                            {"relative_error", row.relative},
                            {"relative_error_deviation", row.relative_deviation},
                            {"relative_sum_proven", or_null(row.sum_proven)},
                            {"relative_sum_most", row.sum_most}});
  }
  return json;
}

std::string softmax_front_text(const std::vector<SoftmaxFrontRow>& rows) {
  std::string text =
      "| S | sd | store of p | bits | e1 proven | e1 mean | e1 most | gradient, mean | sum proven | sum most "
      "|\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";
  // of bounds
  const auto figure = [](double v) {
    return std::isnan(v) ? std::string("-") : fmt::format("{:.4f}", std::ceil(v * 1e4) * 1e-4);
  };
  for (const SoftmaxFrontRow& row : rows) {
    text +=
        fmt::format("| {} | {:g} | {} | {:.4g} | {} | {:.4f} | {:.4f} | {:.4f} +- {:.4f} | {} | {:.4f} |\n",
                    row.length, row.spread, row.store, row.bits, figure(row.e1_proven), row.e1, row.e1_most,
                    row.relative, row.relative_deviation, figure(row.sum_proven), row.sum_most);
  }
  return text;
}

}  // namespace outgrad::validation
