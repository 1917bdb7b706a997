// Curves over the stored y, or over x where those are too many.
#include "validation/report/own_function.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "kernels/host/errors.h"
#include "validation/certificate/check.h"
#include "validation/certificate/deployed.h"
#include "validation/certificate/storage_bound.h"
#include "validation/exact/activation.h"

namespace outgrad::validation {
namespace {

using Pairs = std::vector<StoredGradient>;

constexpr int kBins = 400;  // of a branch: more would share a pixel
constexpr double kFlat = 0x1p-10;  // nearer than this to its limit, a plot shows g as its limit

double error_of(const StoredGradient& p) { return std::max(p.g - p.least, p.most - p.g); }

/// What a y of f32 is, for x from -10 to 10: beyond, f' has its limits to any digit that a plot shows.
Pairs sampled_gradients(const BackwardHeader& h) {
  constexpr int kSamples = 4000;
  constexpr double kReach = 10;
  const Activation& activation = activation_of(h.activation, h.function, h.masked);
  Pairs pairs;
  for (int k = 0; k <= kSamples; ++k) {
    const double x = kReach * (2.0 * k / kSamples - 1);
    const auto d = activation.formula_at(x).f.at<1>(Interval(x));
    const double slope = d[1].middle();
    const bool m = !h.masked || x >= activation.x_star().middle();
    const auto y = static_cast<float>(d[0].middle());
    pairs.push_back({y, m, deployed_gradient(h, y, m), slope, slope});
  }
  return pairs;
}

/// The pairs of a branch in ascending y, without those where g is flat to the right end and, left of all
/// else, to the left.
Pairs shown_of(const Pairs& all, bool m) {
  Pairs branch;
  std::copy_if(all.begin(), all.end(), std::back_inserter(branch),
               [&](const StoredGradient& p) { return p.m == m && std::isfinite(p.y); });
  std::stable_sort(branch.begin(), branch.end(),
                   [](const StoredGradient& a, const StoredGradient& b) { return a.y < b.y; });
  if (branch.empty()) return branch;
  const auto bends = [](double limit) {
    return [limit](const StoredGradient& p) { return std::fabs(p.g - limit) > kFlat; };
  };
  const auto last = std::find_if(branch.rbegin(), branch.rend(), bends(branch.back().g));
  const auto first = std::find_if(branch.begin(), branch.end(), bends(branch.front().g));
  if (last == branch.rend() || first == branch.end()) return branch;
  const double low = first->y, high = last->y, margin = 0.1 * (high - low);
  std::erase_if(branch, [&](const StoredGradient& p) { return p.y < low - margin || p.y > high + margin; });
  return branch;
}

int row_of(const BackwardHeader& h, const StoredGradient& p) {
  return deployed_selection(h, static_cast<float>(p.y), p.m).row;
}
int row_of(const TableHeader&, const StoredGradient&) { return 0; }

/// Bins of equal width in y, each with its first pair and its extremes.
template <class H>
Json curve_of(const H& h, const Pairs& branch, bool m) {
  Json curve{{"m", m}};
  for (const char* key : {"y", "g", "exact", "low", "high", "half", "row"}) curve[key] = Json::array();
  const double first = branch.front().y, width = (branch.back().y - first) / kBins;
  for (std::size_t begin = 0; begin < branch.size();) {
    const StoredGradient& at = branch[begin];
    const double end = first + width * (std::floor((at.y - first) / width) + 1);
    double low = INFINITY, high = -INFINITY, half = 0;
    std::size_t k = begin;
    for (; k < branch.size() && (k == begin || branch[k].y < end); ++k) {
      low = std::min(low, branch[k].g - branch[k].most);
      high = std::max(high, branch[k].g - branch[k].least);
      half = std::max(half, (branch[k].most - branch[k].least) / 2);
    }
    curve["y"].push_back(at.y), curve["g"].push_back(at.g);
    curve["exact"].push_back((at.least + at.most) / 2), curve["half"].push_back(half);
    curve["low"].push_back(low), curve["high"].push_back(high), curve["row"].push_back(row_of(h, at));
    begin = k;
  }
  return curve;
}

/// The stored y around the one with the largest error.
Json around_worst(const Pairs& all) {
  constexpr std::ptrdiff_t kBeside = 10;
  const auto worst = std::max_element(all.begin(), all.end(),
                                      [](const auto& a, const auto& b) { return error_of(a) < error_of(b); });
  Json list = Json::array();
  for (auto p = worst - std::min(kBeside, worst - all.begin()); p != all.end() && p - worst <= kBeside; ++p) {
    if (p->m == worst->m && std::isfinite(p->y))
      list.push_back({{"y", p->y}, {"m", p->m}, {"g", p->g}, {"least", p->least}, {"most", p->most}});
  }
  return list;
}

Json input(const FoundInput& found) {
  if (!found.given) return nullptr;
  // JSON has no infinity, which is a word there.
  const Json at = std::isfinite(found.at) ? Json(found.at) : Json(fmt::format("{}", found.at));
  return {{"y", at}, {"m", found.m}, {"log2_error", found.log2_error}};
}

/// The figure that a page opens with, and where the largest error was found. A header of f32 does not state
/// T: of f' at the stored y itself a kernel is within A + B, and K where there is a minimum.
struct Headline {
  const char* name;
  double bound;
  FoundInput worst;
};
Headline headline_of(const BackwardHeader& h) {
  if (h.format != "f32") return {"T", h.storage.total, h.storage.found_total};
  if (!(h.bound_ab > 0)) return {"A, relative to g", h.bound_a, {}};
  if (!h.masked) return {"A + B", h.bound_ab, h.found_ab};
  const bool at_k = h.found_k.given && (!h.found_ab.given || h.found_k.log2_error > h.found_ab.log2_error);
  return {"A + B + K", std::nextafter(h.bound_ab + h.bound_k, INFINITY), at_k ? h.found_k : h.found_ab};
}

Json json_of(const Headline& of) {
  return {{"headline", {{"name", of.name}, {"bound", of.bound}}}, {"worst", input(of.worst)}};
}

Json facts_of(const BackwardHeader& h) {
  if (h.of_product())
    throw kernels::SpecError(h.file, "kProduct", "is of a quotient, whose y are no list that could be shown");
  Json claims{{"A", h.bound_a}, {"B", h.bound_b}};
  if (h.masked) claims["K"] = h.bound_k;
  if (h.bound_ab > 0) claims["AB"] = h.bound_ab;
  if (h.format != "f32") claims.update(storage_claims(h.storage));
  Json facts = json_of(headline_of(h));
  facts.update(Json{{"kind", "polynomials"},
                    {"operations", h.operations},
                    {"bytes", h.table.values.size() * sizeof(float)},
                    {"rows", h.rows},
                    {"degree", h.degree},
                    {"claims", claims}});
  return facts;
}
Json facts_of(const TableHeader& h) {
  Json facts = json_of({"T", h.storage.total, h.storage.found_total});
  facts.update(Json{{"kind", "table"},
                    {"operations", h.index_operations},
                    {"bytes", h.entries.size() * sizeof h.entries[0]},
                    {"rows", h.entries.size()},
                    {"degree", 0},
                    {"claims", storage_claims(h.storage)}});
  return facts;
}

Pairs gradients_of(const BackwardHeader& h) {
  return h.format == "f32" ? sampled_gradients(h) : stored_gradients(h);
}
Pairs gradients_of(const TableHeader& h) { return stored_gradients(h); }

template <class H>
Json described(const H& h) {
  Json own = facts_of(h);
  own.update(Json{{"schema", kOwnSchema},
                  {"name", h.name},
                  {"file", h.file},
                  {"function", h.function},
                  {"activation", h.activation},
                  {"format", h.format},
                  {"accuracy", h.accuracy},
                  {"masked", h.masked},
                  {"sampled", h.format == "f32"},
                  {"x_limit", h.x_limit > 0 ? Json(h.x_limit) : Json(nullptr)}});
  const Pairs all = gradients_of(h);
  own["branches"] = Json::array();
  for (const bool m : {true, false}) {
    const Pairs branch = shown_of(all, m);
    if (branch.size() > 1) own["branches"].push_back(curve_of(h, branch, m));
  }
  own["around_worst"] = h.format == "f32" ? Json::array() : around_worst(all);
  return own;
}

}  // namespace

Json storage_claims(const StorageClaims& s) { return {{"T", s.total}, {"O", s.oracle}, {"R", s.regret}}; }

Json own_function(const Header& header, bool proves) {
  return std::visit(
      [&](const auto& h) -> Json {
        using H = std::decay_t<decltype(h)>;
        if constexpr (std::is_same_v<H, BackwardHeader> || std::is_same_v<H, TableHeader>) {
          const CheckReport report = proves ? check_header(header) : CheckReport{};
          // A header whose structure does not hold has no curves that mean anything.
          if (proves && report.findings.front().verdict != Verdict::Holds)
            throw kernels::SpecError(h.file, report.findings.front().name, report.findings.front().why);
          Json own = described(h);
          if (proves) {
            own["findings"] = Json(to_json({report})["files"][0]["findings"]);
            own["verdict"] = to_string(report.verdict());
          }
          return own;
        } else {
          throw kernels::SpecError(
              h.file, "struct " + h.name,
              "has no g of a stored y: `fit --expression` and its like make such headers");
        }
      },
      header);
}

}  // namespace outgrad::validation
