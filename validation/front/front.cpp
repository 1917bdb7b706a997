// Moments of every store over the x of bf16, and what follows from them.
#include "kernels/support/json_node.h"
#include "validation/front/front.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "kernels/formats.h"
#include "kernels/host/errors.h"
#include "validation/exact/function.h"
#include "validation/front/header_points.h"

namespace outgrad::validation {
namespace {

using kernels::JsonNode;

// The q with P(x <= q) = p, within a range that holds every distribution.
double quantile(const Distribution& distribution, double p) {
  constexpr double kFar = 1024;
  double low = -kFar, high = kFar;
  for (int step = 0; step < 100; ++step) {
    const double middle = (low + high) / 2;
    (distribution.mass(-kFar, middle) < p ? low : high) = middle;
  }
  return (low + high) / 2;
}

std::vector<ErrorAt> errors_of_steps(const ForeignFunction& function, const FrontDomain& domain) {
  const auto n = static_cast<std::int64_t>(domain.x.size());
  std::vector<float> code(domain.x.size()), g(domain.x.size());
  const std::vector<std::uint32_t> mask((domain.x.size() + 31) / 32);
  function.codes(domain.x.data(), code.data(), n);
  function.derivative(code.data(), mask.data(), g.data(), n);
  return errors_of(g, domain);
}

std::vector<ErrorAt> errors_of_quantiser(const ForeignFunction& function, const FrontDomain& domain,
                                         const Distribution& distribution) {
  const Quantiser& quantiser = *function.quantiser;
  // The mean of the largest of n (C.-C. Chen, C. W. Tyler, The American Statistician 53, 1999).
  const double share = -std::expm1(std::log(0.5264) / static_cast<double>(quantiser.group));
  const double low =
      kernels::widen(kernels::narrow<kernels::BF16>(static_cast<float>(quantile(distribution, share))));
  const double high =
      kernels::widen(kernels::narrow<kernels::BF16>(static_cast<float>(quantile(distribution, 1 - share))));
  const QuantisedGroup group(quantiser, low, high, kBf16);
  if (!group.problem().empty()) throw kernels::SpecError(function.name, distribution.name(), group.problem());
  std::vector<double> slope_of(static_cast<std::size_t>(group.codes()));
  for (std::size_t code = 0; code < slope_of.size(); ++code)
    slope_of[code] = domain.slope_at(group.value(static_cast<int>(code)));
  std::vector<ErrorAt> errors;
  // In a group, no x is beyond the largest: what the distribution has there is taken to be at it.
  const double at_low = domain.slope_at(low), at_high = domain.slope_at(high);
  for (std::size_t i = 0; i < domain.x.size(); ++i) {
    const double x = std::clamp(static_cast<double>(domain.x[i]), low, high);
    const double slope = x > domain.x[i] ? at_low : x < domain.x[i] ? at_high : domain.slope[i];
    ErrorAt at;
    const double first = group.least_raw(x), last = group.greatest_raw(x);
    for (double raw = first; raw <= last; ++raw) {
      const double p = quantiser.stochastic
                           ? group.probability(x, raw) - (raw < last ? group.probability(x, raw + 1) : 0)
                           : 1;
      const double e = slope_of[static_cast<std::size_t>(group.code(raw))] - slope;
      at.mean += p * e;
      at.square += p * e * e;
      if (p > 0) at.greatest = std::max(at.greatest, std::fabs(e));
    }
    errors.push_back(at);
  }
  return errors;
}

// To five digits after the point, rounded up.
std::string proven_text(const FrontRow& row) {
  if (std::isnan(row.store.proven)) return "-";
  return fmt::format("{:.5f}", std::ceil(row.store.proven * 1e5) * 1e-5);
}

bool dominates(const FrontRow& a, const FrontRow& b, std::size_t rank_by) {
  const auto figures = [&](const FrontRow& row) {
    return std::array{row.store.beyond, row.store.all, row.sup(), row.under[rank_by].rms};
  };
  const auto one = figures(a), other = figures(b);
  bool better = false;
  for (std::size_t k = 0; k < one.size(); ++k) {
    if (one[k] > other[k]) return false;
    better = better || one[k] < other[k];
  }
  return better;
}

}  // namespace

FrontDomain::FrontDomain(const SweptActivation& f)
    : name(f.name), slope_at([&f](double at) {
        // By the reference at the float nearest to it: within |f''| 2^-24 of its magnitude.
        return f.reference().slope_at(static_cast<float>(at));
      }) {
  const Domain domain{kBf16};
  x.resize(static_cast<std::size_t>(domain.finite()));
  domain.fill(0, domain.finite(), x.data());
  slope = f.reference().at(x).slope;
}

FrontDomain::FrontDomain(const Header& header) : name(summary_of(header).name) {
  for (const HeaderPoint& p : header_points(header, kBf16)) x.push_back(p.x), slope.push_back(p.slope);
  slope_at = [function = std::make_shared<const Function>(Function::parse(summary_of(header).function))](
                 double at) { return function->at<1>(MediumInterval(at))[1].middle(); };
}

Store header_store(const Header& header) {
  const HeaderSummary h = summary_of(header);
  swept_format(h.format, h.file);  // 16 bits, which this front counts
  Store store;
  store.name = h.format + (h.masked ? " y, bit" : " y");
  store.beyond = h.masked ? 1 : 0;
  store.all = kKeptY + store.beyond;
  store.proven = h.claims.total, store.proof = h.name, store.operations = h.operations;
  store.condition = fmt::format("|x| <= {:g}", kPointsReach);
  store.errors = [header](const FrontDomain& domain, const Distribution&) {
    std::vector<float> g;
    for (const HeaderPoint& p : header_points(header, kBf16)) g.push_back(p.g);
    return errors_of(g, domain);
  };
  return store;
}

double FrontRow::found() const {
  double most = 0;
  for (const StoreUnder& each : under) most = std::max(most, each.greatest);
  return most;
}

Store foreign_store(const ForeignFunction& function) {
  Store store;
  store.name = function.name;
  store.origin = function.source.value("work", "");
  if (function.steps) {
    store.beyond = function.code_bits;
    store.errors = [function](const FrontDomain& domain, const Distribution&) {
      return errors_of_steps(function, domain);
    };
  } else if (function.quantiser && !function.quantiser->keeps_y) {
    store.beyond = function.quantiser->bits_per_element(kBf16);
    store.by_distribution = true;
    store.condition = fmt::format("x within its group's range, groups of {}", function.quantiser->group);
    store.errors = [function](const FrontDomain& domain, const Distribution& distribution) {
      return errors_of_quantiser(function, domain, distribution);
    };
  } else {
    throw kernels::SpecError(function.name, "kind", "only steps and quantisers of x are kept in place of x");
  }
  store.all = kKeptY + store.beyond;
  return store;
}

std::vector<FrontRow> front_of(const FrontDomain& domain, std::vector<Store> stores,
                               const std::vector<Distribution>& distributions, std::size_t rank_by) {
  std::vector<std::vector<double>> weights(distributions.size());
  for (std::size_t d = 0; d < distributions.size(); ++d) {
    for (const float x : domain.x) {
      const auto [low, high] = rounding_interval(x, kBf16);
      // The interval of 0 belongs to -0 and +0 alike.
      weights[d].push_back(distributions[d].mass(low, high) * (x == 0 ? 0.5 : 1));
    }
  }
  std::vector<FrontRow> rows;
  for (Store& store : stores) {
    FrontRow row;
    std::vector<ErrorAt> errors;
    for (std::size_t d = 0; d < distributions.size(); ++d) {
      if (d == 0 || store.by_distribution) errors = store.errors(domain, distributions[d]);
      StoreUnder under;
      under.x = distributions[d].name();
      double mass = 0, square = 0, bias = 0, product = 0, slopes = 0;
      for (std::size_t i = 0; i < errors.size(); ++i) {
        const double w = weights[d][i], s = domain.slope[i];
        mass += w;
        square += w * errors[i].square;
        bias += w * errors[i].mean;
        product += w * (s + errors[i].mean) * s;
        slopes += w * s * s;
        if (errors[i].greatest > under.greatest)
          under.greatest = errors[i].greatest, under.at = static_cast<double>(domain.x[i]);
      }
      under.rms = std::sqrt(square / mass);
      under.bias = bias / mass;
      under.shrinkage = product / slopes;
      row.under.push_back(under);
    }
    row.store = std::move(store);
    rows.push_back(std::move(row));
  }
  for (FrontRow& row : rows) {
    for (const FrontRow& other : rows) {
      if (row.dominated_by.empty() && &other != &row && dominates(other, row, rank_by))
        row.dominated_by = other.store.name;
    }
  }
  return rows;
}

std::map<std::string, StoreSpeed> parse_speeds(const std::string& text, const std::string& file,
                                               const SweptActivation& f) {
  const JsonNode node(kernels::parse_json(text, file), file);
  node.expect_schema("outgrad.store_bench/2");
  // On a busy machine `bench` writes no median, only "too noisy": such a store has no speed.
  const auto told = [](const JsonNode& each) {
    return !each.has("status") || each["status"].text() != "too noisy";
  };
  const auto ratio = [](const JsonNode& each) {
    const Ratio found{each["median"].finite(), each["low"].finite(), each["high"].finite()};
    if (!(found.low > 0 && found.low <= found.median && found.median <= found.high))
      each.fail("is not an interval of ratios around its median");
    return found;
  };
  for (const JsonNode& group : node["groups"].items()) {
    if (group["layer"].text() != f.name || group["format"].text() != "bf16") continue;
    std::map<std::string, StoreSpeed> speeds;
    for (const JsonNode& each : group["stores"].items()) {
      if (!told(each["forward"]) || !told(each["backward"])) continue;
      if (!speeds.emplace(each["store"].text(), StoreSpeed{ratio(each["forward"]), ratio(each["backward"])})
               .second)
        each["store"].fail("occurs twice");
    }
    return speeds;
  }
  node["groups"].fail(fmt::format("has no {} in bf16", f.name));
}

nlohmann::ordered_json row_json(const FrontRow& row) {
  const Store& s = row.store;
  nlohmann::ordered_json each{
      {"name", s.name}, {"origin", s.origin}, {"bits_beyond", s.beyond}, {"bits_all", s.all}};
  if (!std::isnan(s.proven)) each["proven"] = s.proven;
  if (!s.proof.empty()) each["proof"] = s.proof;
  if (!s.condition.empty()) each["condition"] = s.condition;
  if (s.operations >= 0) each["operations"] = s.operations;
  auto& under = each["under"] = nlohmann::ordered_json::array();
  for (const StoreUnder& u : row.under) {
    under.push_back({{"x", u.x},
                     {"greatest", u.greatest},
                     {"at", u.at},
                     {"rms", u.rms},
                     {"bias", u.bias},
                     {"shrinkage", u.shrinkage}});
  }
  if (s.speed) {
    const auto ratio = [](const Ratio& r) {
      return nlohmann::ordered_json{{"median", r.median}, {"low", r.low}, {"high", r.high}};
    };
    each["speed"] = {{"forward", ratio(s.speed->forward)}, {"backward", ratio(s.speed->backward)}};
  }
  if (!row.dominated_by.empty()) each["dominated_by"] = row.dominated_by;
  return each;
}

nlohmann::ordered_json front_json(const std::string& name, const std::vector<FrontRow>& rows) {
  nlohmann::ordered_json json{{"schema", kFrontSchema},
                              {"activation", name},
                              {"x_format", "bf16"},
                              {"stores", nlohmann::ordered_json::array()}};
  for (const FrontRow& row : rows) json["stores"].push_back(row_json(row));
  return json;
}

std::string front_text(const std::string& name, const std::vector<FrontRow>& rows) {
  std::string text = fmt::format(
      "{}, every x of bf16. Bits an element: beyond the y that the next layer keeps, and in all.\n\n", name);
  text += "| store | beyond | all | proven | found |";
  std::string line = "| --- | --- | --- | --- | --- |";
  for (const StoreUnder& u : rows.front().under) {
    text += fmt::format(" {}: rms | bias | shrinkage |", u.x);
    line += " --- | --- | --- |";
  }
  text += " operations | speed forward | backward | dominated by |\n" + line + " --- | --- | --- | --- |\n";
  for (const FrontRow& row : rows) {
    text += fmt::format("| {} | {:.4g} | {:.4g} | {} | {:.5f} |", row.store.name, row.store.beyond,
                        row.store.all, proven_text(row), row.found());
    for (const StoreUnder& u : row.under)
      text += fmt::format(" {:.5f} | {:+.5f} | {:.5f} |", u.rms, u.bias, u.shrinkage);
    const auto& speed = row.store.speed;
    text += fmt::format(" {} | {} | {} | {} |\n",
                        row.store.operations < 0 ? "-" : std::to_string(row.store.operations),
                        speed ? fmt::format("{:.2f}", speed->forward.median) : "-",
                        speed ? fmt::format("{:.2f}", speed->backward.median) : "-",
                        row.dominated_by.empty() ? "-" : row.dominated_by);
  }
  return text;
}

std::string front_table(const std::string& name, const std::vector<FrontRow>& rows, std::size_t rank_by,
                        int columns) {
  const auto cells = [&](const FrontRow& row) -> std::vector<std::string> {
    const StoreUnder& u = row.under[rank_by];
    return {row.store.name,
            fmt::format("{:.4g}", row.store.beyond),
            fmt::format("{:.4g}", row.store.all),
            proven_text(row),
            fmt::format("{:.5f}", row.found()),
            fmt::format("{:.5f}", u.rms),
            fmt::format("{:+.5f}", u.bias),
            fmt::format("{:.4f}", u.shrinkage),
            row.dominated_by.empty() ? "" : "< " + row.dominated_by};
  };
  std::vector<std::vector<std::string>> table{
      {"store", "beyond", "all", "proven", "found", "rms", "bias", "shrink", "beaten by"}};
  for (const FrontRow& row : rows) table.push_back(cells(row));
  std::vector<std::size_t> width(table.front().size());
  for (const auto& row : table)
    for (std::size_t c = 0; c < row.size(); ++c) width[c] = std::max(width[c], row[c].size());
  const auto cut = [&](const std::string& line) {
    return line.substr(0, static_cast<std::size_t>(columns)) + "\n";
  };
  std::string text = cut(fmt::format("{}, every x of bf16; rms, bias and shrinkage for x of {}", name,
                                     rows.front().under[rank_by].x));
  for (const auto& row : table) {
    std::string line = fmt::format("{:<{}}", row[0], width[0]);
    for (std::size_t c = 1; c < row.size(); ++c)
      line += c + 1 < row.size() ? fmt::format("  {:>{}}", row[c], width[c]) : "  " + row[c];
    text += cut(line);
  }
  return text;
}

}  // namespace outgrad::validation
