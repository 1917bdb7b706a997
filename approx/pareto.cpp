#include "approx/pareto.h"

#include "approx/partition.h"
#include "approx/rounding.h"
#include "kernels/host/errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace outgrad::approx {
namespace {

/// What is tried for a format. Targets are per degree and rows unknown beforehand: each layout is asked for the least its rows can do, by
/// a target that only the layout's own error limits.
struct Layout {
  int degree;
  std::string shape;   ///< members of the spec that describe the rows
  std::string suffix;  ///< of the name
};

/// Left segments for an f with minimum y*: octaves from the largest power of two below |y*| down to where g is nothing beside the target.
std::string left_segment(int edge, int half_octaves, int octaves) {
  return fmt::format("\"left_segment\": {{\"edge_log2\": {}, \"half_octaves\": {}, \"merge_log2\": {}}}", edge, half_octaves, edge - octaves);
}

std::vector<Layout> absolute_layouts(Format format, bool masked, bool linear, int edge) {
  std::vector<Layout> all;
  if (linear) return {{1, "\"cells\": 2", "d1"}};
  const int lowest = format == Format::f32 ? 3 : 2, highest = format == Format::f32 ? 8 : 6;
  const std::vector<int> sizes = format == Format::f32 ? std::vector<int>{16, 32, 64, 128} : std::vector<int>{4, 8, 16, 32};
  for (int degree = lowest; degree <= highest; ++degree) {
    if (!masked) {
      all.push_back({degree, "\"cells\": 1", fmt::format("d{}_1", degree)});
    }
    for (const int rows : sizes) {
      all.push_back({degree, fmt::format("\"cells\": {}", rows), fmt::format("d{}_{}", degree, rows)});
      if (!masked) continue;
      // The octaves of the left end take up to half the rows.
      const int octaves = format == Format::f32 ? 14 : format == Format::f16 ? 4 : 3, halves = rows >= 32 ? 1 : 0;
      const int left = 1 + octaves + halves;
      if (left * 4 > rows * 3) continue;
      const std::string right = format == Format::f32 ? ", \"right_from\": 0.44" : "";
      all.push_back({degree, fmt::format("\"cells\": {}, {}{}", rows - left, left_segment(edge, halves, octaves), right), fmt::format("d{}_{}l", degree, rows)});
    }
  }
  return all;
}

/// The least A, as a target 2^-N.NN, that the rows of a layout reach, their rounding aside. The clamp at the right end depends on the
/// target and the rows' width on the clamp: three rounds settle it.
std::string least_target(const Composite& composite, const BackwardSpec& spec) {
  CoordinateConstants plain{0, 0, 0, 0, 0};
  if (composite.masked()) plain = {static_cast<float>(composite.y_star().mid()), 0, 0x1p-40f, 0, 0};
  double target = 0x1p-12;
  for (int round = 0; round < 3; ++round) {
    const BackwardModel model = lay_out(composite, spec, plain, target);
    double level = 0;
#pragma omp parallel for schedule(dynamic, 1) reduction(max : level)
    for (size_t i = 0; i < model.pieces.size(); ++i) {
      if (model.pieces[i].constant) continue;
      constexpr int kRoughSamples = 48;
      level = std::max(level, minimax_level(sample(composite, model.pieces[i], kRoughSamples), model.pieces[i], spec.degree));
    }
    flint_cleanup();
    // Room for the rounding of coefficients; nothing below 2^-50 is of use.
    constexpr double kRoom = 1.2, kLeast = 0x1p-50;
    target = std::min(0.5, std::max(level * kRoom, kLeast));
  }
  return fmt::format("abs:2^{:.2f}", std::ceil(100 * std::log2(target)) / 100);
}

bool dominates(const ParetoPoint& a, const ParetoPoint& b) {
  const bool no_worse = a.operations <= b.operations && a.table_bytes <= b.table_bytes && a.a_plus_b <= b.a_plus_b && a.total <= b.total && a.regret <= b.regret;
  const bool better = a.operations < b.operations || a.table_bytes < b.table_bytes || a.a_plus_b < b.a_plus_b || a.total < b.total || a.regret < b.regret;
  return no_worse && better;
}

ParetoPoint measured(std::string spec, Fit fit) {
  ParetoPoint p;
  p.spec = std::move(spec);
  if (fit.table) {
    p.operations = fit.table->index_operations();
    p.integer = p.operations;
    p.loads = 1;
    p.table_bytes = static_cast<int>(2 * fit.table->entries.size());
    p.total = fit.table->kT;
    p.oracle = fit.table->kO;
    p.regret = fit.table->kR;
    // Its entries are the function itself on every stored y: what is left is the regret.
    p.a_plus_b = fit.table->kR;
  } else {
    const Cost cost = cost_of(*fit.backward);
    p.operations = cost.arithmetic;
    p.roots = cost.roots;
    p.integer = cost.integer;
    p.loads = cost.loads;
    p.table_bytes = cost.table_bytes;
    p.a_plus_b = fit.backward->kA + fit.backward->kB;
    p.total = fit.backward->kT;
    p.oracle = fit.backward->kO;
    p.regret = fit.backward->kR;
  }
  p.fit = std::move(fit);
  return p;
}

}  // namespace

ParetoFront pareto_front(const std::string& name, const std::string& definition, Format format, int threads, const std::function<void(int, int)>& progress) {
  const std::string head = fmt::format("\"schema\": \"outgrad.spec/2\", \"kind\": \"backward\", {}, \"format\": \"{}\"", definition, to_string(format));
  const Spec probe = parse_spec(fmt::format("{{{}, \"name\": \"probe\", \"target\": \"abs:2^-1\", \"degree\": 1, \"cells\": 1}}", head), name);
  const Composite composite(probe.activation);
  const bool masked = composite.masked();
  const int edge = masked ? static_cast<int>(std::ceil(std::log2(-composite.y_star().to_double()))) - 1 : 0;
  std::vector<std::string> specs;
  const auto add = [&](const std::string& suffix, const std::string& rest) {
    specs.push_back(fmt::format("{{{}, \"name\": \"{}_{}_{}\", {}}}", head, name, to_string(format), suffix, rest));
  };
  const bool f32 = format == Format::f32;
  const std::string regret = format == Format::f16 ? "2^-11" : "2^-9";
  if (format == Format::e4m3 || format == Format::e5m2) {
    for (const char* entries : {"f16", "bf16"}) add(fmt::format("table_{}", entries), fmt::format("\"target\": \"oracle\", \"entries\": \"{}\"", entries));
  } else {
    for (const Layout& l : absolute_layouts(format, masked, probe.activation.linear_from_zero, edge)) {
      const std::string rows = fmt::format("\"degree\": {}, {}, \"storage\": {{\"ratio\": 1.05, \"regret\": \"{}\"}}", l.degree, l.shape, f32 ? "2^-18" : regret);
      const Spec layout = parse_spec(fmt::format("{{{}, \"name\": \"layout\", \"target\": \"abs:2^-1\", {}}}", head, rows), name);
      add(l.suffix, fmt::format("\"target\": \"{}\", {}", least_target(composite, *layout.backward), rows));
    }
    if (!f32 && masked) {
      for (const int degree : {5, 6, 7, 8}) {
        for (const char* allowed : {"2^-6.5", "2^-7", "2^-7.4", "2^-8"}) {
          add(fmt::format("fast{}_{}", degree, std::string(allowed).substr(3) == "6.5" ? "65" : std::string(allowed).substr(3) == "7" ? "7" : std::string(allowed).substr(3) == "8" ? "8" : "74"),
              fmt::format("\"target\": \"stored:1.05\", \"degree\": {}, \"cells\": 1, \"centred\": false, \"storage\": {{\"regret\": \"{}\"}}", degree, allowed));
        }
      }
      for (const int rows : {8, 16, 32}) {
        for (const int degree : {2, 3, 4, 5}) {
          add(fmt::format("stored_d{}_{}", degree, rows),
              fmt::format("\"target\": \"stored:1.01\", \"degree\": {}, \"cells\": {}, \"storage\": {{\"regret\": \"{}\"}}", degree, rows, regret));
        }
      }
    }
    if (!f32) {
      for (const char* entries : {"f16", "bf16"}) add(fmt::format("table_{}", entries), fmt::format("\"target\": \"oracle\", \"entries\": \"{}\"", entries));
    }
  }
  ParetoFront front;
  std::vector<ParetoPoint> found;
  for (size_t k = 0; k < specs.size(); ++k) {
    ++front.tried;
    try {
      found.push_back(measured(specs[k], fit(parse_spec(specs[k], "pareto"), threads)));
    } catch (const kernels::SpecError&) {
      ++front.unreachable;
    }
    if (progress) progress(static_cast<int>(k) + 1, static_cast<int>(specs.size()));
  }
  for (const ParetoPoint& p : found) {
    if (std::none_of(found.begin(), found.end(), [&](const ParetoPoint& q) { return dominates(q, p); })) front.points.push_back(p);
  }
  front.dominated = static_cast<int>(found.size() - front.points.size());
  std::stable_sort(front.points.begin(), front.points.end(), [](const ParetoPoint& a, const ParetoPoint& b) {
    return std::pair(a.operations, a.table_bytes) < std::pair(b.operations, b.table_bytes);
  });
  return front;
}

std::string to_json(const ParetoFront& front, const std::string& activation, Format format) {
  using json = nlohmann::ordered_json;
  json points = json::array();
  for (const ParetoPoint& p : front.points) {
    points.push_back({{"name", p.fit.name}, {"class", p.fit.accuracy}, {"operations", p.operations}, {"roots", p.roots}, {"integer", p.integer}, {"loads", p.loads},
                      {"table_bytes", p.table_bytes}, {"a_plus_b", p.a_plus_b}, {"total", p.total}, {"oracle", p.oracle}, {"regret", p.regret},
                      {"spec", json::parse(p.spec)}});
  }
  return json{{"schema", "outgrad.pareto/1"}, {"activation", activation}, {"format", to_string(format)}, {"tried", front.tried},
              {"out_of_reach", front.unreachable}, {"dominated", front.dominated}, {"points", std::move(points)}}
             .dump(1) +
         "\n";
}

}  // namespace outgrad::approx
