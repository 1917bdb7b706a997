// Lists the candidates of a front with what each may reach, fits them, and keeps those that none covers.
#include "approx/search/pareto.h"

#include "approx/progress.h"
#include "approx/search/direct_table.h"
#include "approx/search/fitter.h"
#include "approx/search/layouts.h"
#include "approx/search/partition.h"
#include "approx/search/rounding.h"
#include "approx/search/storage_fit.h"
#include "kernels/host/errors.h"
#include "kernels/support/json.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <omp.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>

namespace outgrad::approx {
namespace {

using kernels::SpecError;
using json = nlohmann::ordered_json;

// ---- covering -----------------------------------------------------------------------------------

/// A + B, T, R as far as the format tells them apart, in units of the factors that make a difference.
std::array<double, 3> errors_of(const Merit& m, Format format) {
  const double least = error_resolution(format);
  const auto steps = [](double error, double factor) { return std::log(error) / std::log(factor); };
  return {steps(std::max(m.a_plus_b, least), kBoundFactor), m.total > 0 ? steps(m.total, kTotalFactor) : 0,
          steps(std::max(m.regret, least), kBoundFactor)};
}

std::tuple<int, int, int> costs_of(const Merit& m) { return {m.work, m.table_bytes, m.depth}; }

double overall(const Merit& m, Format format) {
  const auto e = errors_of(m, format);
  return e[0] + e[1] + e[2];
}

bool no_more_costly(const Merit& q, const Merit& p) {
  return q.work <= p.work && q.depth <= p.depth && q.table_bytes <= p.table_bytes;
}

/// Costs no more, and errs by no more than one step in each error.
bool serves_as(const Merit& q, const Merit& p, Format format) {
  const auto of_q = errors_of(q, format), of_p = errors_of(p, format);
  return no_more_costly(q, p) && of_q[0] <= of_p[0] + 1 && of_q[1] <= of_p[1] + 1 && of_q[2] <= of_p[2] + 1;
}

// ---- layouts ------------------------------------------------------------------------------------

/// A T above this many O, or an A + B above that where f32 has no O, makes no fit for training: the limit
/// itself, and one more of it.
constexpr double kCoarsestTotal = 2;
constexpr double kCoarsestBound = 0x1p-12;

bool too_coarse(const Merit& m, double oracle) {
  return oracle > 0 ? m.total > kCoarsestTotal * oracle : m.a_plus_b > kCoarsestBound;
}

/// Regrets that storage-aware fits are tried for: 2^-(k/2), apart by the factor that makes a difference.
std::string regret_text(int halves) { return fmt::format("2^-{:g}", halves / 2.0); }

/// Builds the candidates of one activation and format.
class Search {
 public:
  Search(const std::string& name, const std::string& definition, Format format)
      : name_(name), format_(format),
        head_(fmt::format("\"schema\": \"outgrad.spec/2\", \"kind\": \"backward\", {}, \"format\": \"{}\"",
                          definition, to_string(format))),
        composite_(
            parse_spec(text("probe", "\"target\": \"abs:2^-1\", \"degree\": 1, \"cells\": 1", Format::f32),
                       name)
                .activation) {
    found_.format = format;
  }

  ParetoCandidates run() {
    const Stage stage("what can be on the front");
    if (format_ != Format::f32) intervals_ = storage_intervals(composite_, format_);
    oracle_ = oracle_of(intervals_);
    if (format_ != Format::e4m3 && format_ != Format::e5m2) polynomials();
    if (has_direct_table(format_)) tables();
    std::stable_sort(found_.candidates.begin(), found_.candidates.end(),
                     [&](const ParetoCandidate& a, const ParetoCandidate& b) {
                       return std::tuple(costs_of(a.expected), overall(a.expected, format_)) <
                              std::tuple(costs_of(b.expected), overall(b.expected, format_));
                     });
    return std::move(found_);
  }

 private:
  [[nodiscard]] std::string text(const std::string& suffix, const std::string& rest,
                                 std::optional<Format> instead = {}) const {
    std::string head = head_;
    if (instead)
      head.replace(head.rfind('"' + std::string(to_string(format_)) + '"'), std::string::npos,
                   fmt::format("\"{}\"", to_string(*instead)));
    return fmt::format("{{{}, \"name\": \"{}_{}_{}\", {}}}", head, name_, to_string(format_), suffix, rest);
  }
  [[nodiscard]] Spec parsed(const std::string& suffix, const std::string& rest) const {
    return parse_spec(text(suffix, rest), "pareto");
  }

  static Merit with_costs(const BackwardModel& model) {
    const Cost cost = cost_of(model);
    return {cost.work(), cost.depth, cost.table_bytes, 0, 0, 0};
  }

  /// Another order of evaluation than Horner's is told by the name.
  void add(const std::string& suffix, const std::string& rest, const Merit& expected,
           int scheme = kernels::kHorner) {
    const std::string name = to_string_scheme(scheme);
    if (too_coarse(expected, oracle_)) {
      ++found_.too_coarse;
    } else if (scheme == kernels::kHorner) {
      found_.candidates.push_back({text(suffix, rest), expected});
    } else {
      found_.candidates.push_back(
          {text(suffix + "_" + name, fmt::format("{}, \"scheme\": \"{}\"", rest, name)), expected});
    }
  }

  [[nodiscard]] std::string storage_goal(const std::string& regret) const {
    return fmt::format("\"storage\": {{\"ratio\": 1.05, \"regret\": \"{}\"}}", regret);
  }

  void polynomials() {
    const std::string regret = usual_regret(format_);
    if (composite_.masked()) {
      const Spec any =
          parsed("any", "\"target\": \"abs:2^-1\", \"degree\": 1, \"cells\": 2, " + storage_goal(regret));
      constants_ = constants_for(any.backward().storage);
    }
    for (const Ladder& ladder : absolute_layouts(format_, composite_)) {
      for (const Layout& layout : ladder) {
        const double level = absolute(layout, regret);
        if (found_.exact) return;
        if (level < 0.5 * error_resolution(format_)) break;
      }
    }
    if (format_ == Format::f32 || composite_.activation().linear_from_zero) return;
    for (const int rows : {1, 8, 16, 32}) {
      // Without a mask the clamp is where g is within a quarter of the regret: one above O would put T itself
      // out of reach.
      int met = composite_.masked()
                    ? kCoarsestRegret
                    : std::max(kCoarsestRegret, static_cast<int>(std::floor(-2 * std::log2(oracle_))));
      for (const int degree : rows > 1              ? std::vector{2, 3, 4, 5}
                              : composite_.masked() ? std::vector{5, 6, 7, 8}
                                                    : std::vector{5, 6, 7, 8, 9}) {
        const std::string shape =
            rows == 1 ? "\"cells\": 1, \"centred\": false" : fmt::format("\"cells\": {}", rows);
        met = storage_aware({degree, shape, fmt::format("stored_d{}_{}", degree, rows)}, rows, met);
        if (std::exp2(-met / 2.0) < error_resolution(format_)) break;
      }
    }
  }

  /// One row and some, of a degree whose chain is long enough to be cut: where the other orders of evaluation
  /// are tried.
  [[nodiscard]] bool tries_schemes(int rows, int degree) const {
    return format_ == Format::f32 ? rows == 32 && degree == 6
                                  : (rows == 1 && degree == 7) || (rows == 16 && degree == 4);
  }

  /// The least A that the rows reach, their rounding aside, and a layout that reaches it. The clamp at the
  /// right end depends on the target and the rows' width on the clamp: a level counts as no less than what
  /// its own layout was made for, until the two agree.
  [[nodiscard]] std::pair<double, BackwardModel> least_level(const BackwardSpec& spec) const {
    double made_for = std::ldexp(1.0, -precision_bits(format_)), best = INFINITY;
    BackwardModel best_model;
    constexpr int kMostRounds = 6;
    for (int round = 0; round < kMostRounds; ++round) {
      BackwardModel model =
          lay_out(composite_, spec, constants_, std::clamp(kRoomOfTarget * made_for, kNoise, 0.5));
      const double level = LayoutSamples(composite_, model).level(spec.degree);
      constexpr double kSettledLevel = 0.05;
      if (level < kNoise || std::abs(level / made_for - 1) < kSettledLevel) return {level, std::move(model)};
      if (std::max(level, made_for) < best) {
        best = std::max(level, made_for);
        best_model = std::move(model);
      }
      made_for = level;
    }
    return {best, std::move(best_model)};
  }

  /// @return the level.
  double absolute(const Layout& layout, const std::string& regret) {
    const std::string rest =
        fmt::format("\"degree\": {}, {}, {}", layout.degree, layout.rows, storage_goal(regret));
    const Spec spec = parsed("layout", "\"target\": \"abs:2^-1\", " + rest);
    auto [level, model] = least_level(spec.backward());
    // In fp32 coefficients the finest levels of f32 are lost to rounding, of no account beside B.
    const double least =
        format_ == Format::f32 && level >= kNoise ? 0.25 * error_resolution(format_) : kNoise;
    const std::string target = fmt::format(
        "abs:2^{:.2f}", std::ceil(100 * std::log2(std::clamp(level * kRoomOfTarget, least, 0.5))) / 100);
    // What B comes to: where f has a minimum, s carries the rounding of a difference and a root into g.
    const double bound = level + (model.kHasRight ? 0x1p-23 : composite_.masked() ? 0x1p-22 : 0x1p-24);
    const auto considered = [&](int scheme) {
      model.kScheme = scheme;
      Merit expected = with_costs(model);
      expected.a_plus_b = bound;
      expected.regret = std::max(level, constants_.expected_regret);
      if (oracle_ > 0) expected.total = std::max({oracle_, constants_.expected_ratio * oracle_, level});
      add(layout.suffix, fmt::format("\"target\": \"{}\", {}", target, rest), expected, scheme);
    };
    considered(kernels::kHorner);
    if (level < kNoise) {  // nothing else is worth a try
      found_.exact = true;
      const ParetoCandidate only = found_.candidates.back();
      found_.candidates = {only};
    } else if (tries_schemes(model.kRows, layout.degree)) {
      for (const int scheme : {kernels::kEstrin, kernels::kEvenOdd}) considered(scheme);
    }
    return level;
  }

  [[nodiscard]] const CoordinateConstants& constants_for(const StorageGoal& goal) {
    const auto [place, fresh] = constants_of_regret_.try_emplace(goal.regret);
    if (fresh) place->second = NearMinimum(composite_, format_).choose_constants(goal);
    return place->second;
  }

  /// Coarser than this is of no class. Regrets are powers of 2^(-1/2).
  static constexpr int kCoarsestRegret = 12;

  /// The layout with the least regret that its programme can meet at T <= 1.05 O; one coarser than
  /// 2^(-from/2) is not looked for. @return the exponent, in halves, of the regret met, or `from`.
  int storage_aware(const Layout& layout, int rows, int from) {
    struct Met {
      BackwardModel model;
      std::string rest;
    };
    const auto attempt = [&](int halves) -> std::optional<Met> {
      Met met;
      met.rest =
          fmt::format("\"target\": \"stored:1.05\", \"degree\": {}, {}, \"storage\": {{\"regret\": \"{}\"}}",
                      layout.degree, layout.rows, regret_text(halves));
      const Spec spec = parsed("layout", met.rest);
      BackwardSpec deployed = spec.backward();
      CoordinateConstants constants{0, 0, 0, 0, 0};
      if (composite_.masked() && rows == 1) {
        const ClampedConstants clamped = search_constants(composite_, intervals_, deployed, spec.target);
        if (clamped.cost > 1) return std::nullopt;
        constants = clamped.constants;
        deployed.y_max = clamped.y_max;
        deployed.s_min = clamped.s_min;
      } else if (composite_.masked()) {
        constants = constants_for(deployed.storage);
      }
      met.model = lay_out(composite_, deployed, constants, deployed.storage.regret);
      try {
        fit_to_storage(met.model, intervals_, deployed, spec.target);
      } catch (const SpecError&) {
        return std::nullopt;
      }
      return met;
    };
    // Finer than half the resolution makes no difference. Steps double: most layouts meet little more than
    // one of a degree less.
    const int finest = static_cast<int>(std::ceil(-2 * std::log2(error_resolution(format_)))) + 1;
    int met = from - 1, missed = finest + 1;
    std::optional<Met> best;
    for (int step = 1; missed - met > 1; step *= 2) {
      const int middle = std::min((met + missed) / 2, met + step);
      if (auto next = attempt(middle)) {
        met = middle;
        best = std::move(next);
      } else {
        missed = middle;
      }
    }
    if (!best) {
      ++found_.too_coarse;
      return from;
    }
    const auto considered = [&](int scheme) {
      best->model.kScheme = scheme;
      Merit expected = with_costs(best->model);
      const StorageErrors e = measure_storage(intervals_, format_, [&](const StorageInterval& i) {
        return deployed_gradient(best->model, i.y, i.m);
      });
      expected.total = e.total;
      expected.regret = e.regret;
      for (const Piece& p : best->model.pieces)
        expected.a_plus_b = std::max(expected.a_plus_b,
                                     measure(sample(composite_, p, kRoughSamples), {p.centre, p.c, 0}).error);
      add(layout.suffix, best->rest, expected, scheme);
    };
    considered(kernels::kHorner);
    if (tries_schemes(rows, layout.degree)) {
      for (const int scheme : {kernels::kEstrin, kernels::kEvenOdd}) considered(scheme);
    }
    return met;
  }

  void tables() {
    for (const char* entries : {"f16", "bf16"}) {
      const std::string rest = fmt::format("\"target\": \"oracle\", \"entries\": \"{}\"", entries);
      Fit fit;
      fit.model = direct_table(composite_, parsed("table", rest).backward(), intervals_);
      add(fmt::format("table_{}", entries), rest, pareto_point("", std::move(fit)).merit);
    }
  }

  std::string name_;
  Format format_;
  std::string head_;
  Composite composite_;
  std::vector<StorageInterval> intervals_;
  double oracle_ = 0;
  CoordinateConstants constants_{0, 0, 0, 0, 0};  ///< those of the absolute class
  std::map<double, CoordinateConstants> constants_of_regret_;
  ParetoCandidates found_;
};

}  // namespace

double error_resolution(Format format) { return std::ldexp(1.0, -precision_bits(format) - 2); }

const char* usual_regret(Format format) {
  return format == Format::f32 ? "2^-18" : format == Format::f16 ? "2^-11" : "2^-9";
}

bool covers(const Merit& q, const Merit& p, Format format) {
  if (!serves_as(q, p, format)) return false;
  return costs_of(q) != costs_of(p) || overall(q, format) < overall(p, format);
}

std::vector<size_t> worth_choosing(const std::vector<Merit>& all, Format format) {
  std::vector<size_t> order(all.size()), kept;
  std::iota(order.begin(), order.end(), size_t{0});
  // Whoever covers another comes before it in this order: what is kept stays kept.
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::tuple(costs_of(all[a]), overall(all[a], format)) <
           std::tuple(costs_of(all[b]), overall(all[b], format));
  });
  for (const size_t i : order) {
    if (std::none_of(kept.begin(), kept.end(), [&](size_t k) { return serves_as(all[k], all[i], format); }))
      kept.push_back(i);
  }
  return kept;
}

ParetoPoint pareto_point(std::string spec, Fit fit) {
  ParetoPoint p;
  p.spec = std::move(spec);
  if (const auto* t = fit.as<TableModel>()) {
    p.cost = cost_of_direct(t->kMasked);
    p.cost.table_bytes = static_cast<int>(sizeof(std::uint16_t) * t->entries.size());
    p.oracle = t->kO;
    p.merit = {p.cost.work(), p.cost.depth, p.cost.table_bytes, t->kR, t->kT, t->kR};
  } else {
    const BackwardModel& m = *fit.as<BackwardModel>();
    p.cost = cost_of(m);
    p.oracle = m.kO;
    p.merit = {p.cost.work(), p.cost.depth, p.cost.table_bytes, m.kAB, m.kT, m.kR};
  }
  p.fit = std::move(fit);
  return p;
}

ParetoCandidates pareto_candidates(const std::string& name, const std::string& definition, Format format,
                                   int threads) {
  omp_set_num_threads(threads > 0 ? threads : omp_get_num_procs());
  return Search(name, definition, format).run();
}

ParetoFront pareto_front(const ParetoCandidates& candidates, int threads) {
  Stage stage("candidates", static_cast<std::int64_t>(candidates.candidates.size()));
  ParetoFront front;
  front.format = candidates.format;
  front.exact = candidates.exact;
  front.too_coarse = candidates.too_coarse;
  front.tried = static_cast<int>(candidates.candidates.size()) + candidates.too_coarse;
  std::vector<ParetoPoint> found;
  for (const ParetoCandidate& candidate : candidates.candidates) {
    if (std::any_of(found.begin(), found.end(), [&](const ParetoPoint& q) {
          return serves_as(q.merit, candidate.expected, front.format);
        })) {
      ++front.skipped;
    } else {
      try {
        ParetoPoint point = pareto_point(candidate.spec, fit(parse_spec(candidate.spec, "pareto"), threads));
        if (too_coarse(point.merit, point.oracle)) {
          ++front.too_coarse;
        } else {
          found.push_back(std::move(point));
        }
      } catch (const SpecError&) {
        ++front.unreachable;
      }
    }
    stage.tick();
  }
  std::vector<Merit> merits;
  for (const ParetoPoint& p : found) merits.push_back(p.merit);
  const std::vector<size_t> kept = worth_choosing(merits, front.format);
  front.covered = static_cast<int>(found.size() - kept.size());
  for (const size_t i : kept) front.points.push_back(std::move(found[i]));
  return front;
}

bool is_front(const std::string& text) {
  const json front = kernels::parse_json_line(text);
  return front.is_object() && front.contains("schema") && front["schema"].is_string() &&
         front["schema"].get<std::string>().starts_with("outgrad.pareto/");
}

std::vector<Spec> specs_of_front(const std::string& text, const std::string& path) {
  const json front = kernels::parse_json_line(text);
  if (front.is_discarded()) throw SpecError(path + ": not JSON");
  if (!front.is_object() || front.value("schema", json()) != kFrontSchema)
    throw SpecError(path, "schema", fmt::format("is not {}", kFrontSchema));
  if (!front.contains("points") || !front["points"].is_array() || front["points"].empty())
    throw SpecError(path, "points", "an array of points is needed");
  std::vector<Spec> specs;
  for (const json& point : front["points"]) {
    const std::string place = fmt::format("points[{}]", specs.size());
    if (!point.is_object() || !point.contains("spec")) throw SpecError(path, place, "has no spec");
    specs.push_back(parse_spec(point["spec"].dump(), path + ": " + place));
    if (std::any_of(specs.begin(), specs.end() - 1,
                    [&](const Spec& s) { return s.name == specs.back().name; }))
      throw SpecError(path, place, fmt::format("a second '{}'", specs.back().name));
  }
  return specs;
}

std::string to_json(const ParetoFront& front, const std::string& activation) {
  json points = json::array();
  for (const ParetoPoint& p : front.points) {
    points.push_back({{"name", p.fit.name},
                      {"class", p.fit.accuracy},
                      {"work", p.merit.work},
                      {"depth", p.merit.depth},
                      {"table_bytes", p.merit.table_bytes},
                      {"a_plus_b", p.merit.a_plus_b},
                      {"total", p.merit.total},
                      {"regret", p.merit.regret},
                      {"oracle", p.oracle},
                      {"operations", p.cost.arithmetic},
                      {"roots", p.cost.roots},
                      {"selects", p.cost.selects},
                      {"integer", p.cost.integer},
                      {"loads", p.cost.loads},
                      {"spec", kernels::parse_json(p.spec)}});
  }
  return json{{"schema", kFrontSchema},
              {"activation", activation},
              {"format", to_string(front.format)},
              {"exact", front.exact},
              {"tried", front.tried},
              {"skipped", front.skipped},
              {"out_of_reach", front.unreachable},
              {"too_coarse", front.too_coarse},
              {"covered", front.covered},
              {"points", std::move(points)}}
             .dump(1) +
         "\n";
}

}  // namespace outgrad::approx
