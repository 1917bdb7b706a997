// Runs the deployed evaluator over a scalar that writes down what it computes, as a Gappa script.
#include "approx/proof/gappa.h"

#include "kernels/eval.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

namespace outgrad::approx {
namespace {

/// Exactly, in Gappa's notation: integer b exponent.
std::string dyadic(double d) {
  const auto [integer, exponent] = integer_and_exponent(d);
  return d == 0 ? "0" : fmt::format("{}b{}", integer, exponent);
}

std::string operand(double d) { return d < 0 ? "(" + dyadic(d) + ")" : dyadic(d); }

/// y, a float.
constexpr const char* kInput = "@rnd = float<ieee_32, ne>;\ny = rnd(y_);\n";

/// One value of the sequence: names or literals. Before u there is no `middle` and no `slope`.
struct Written {
  std::string rounded, middle, exact;
  std::string slope;  ///< D, empty for 0
};

/// How a clamp of the coordinate acts on the deployed and on the exact value, in the case that a script
/// treats.
struct Clamp {
  bool deployed = false, exact = false;
};

/// The operations of kernels/eval.h over text.
struct WritingOps {
  using Value = Written;
  using Mask = bool;
  using Row = int;

  Clamp floor;     ///< t_min
  Clamp left_end;  ///< s_min
  mutable std::string definitions, hints;
  mutable int steps = 0;  ///< names given
  mutable Written root;   ///< |s| before it is clamped

  [[nodiscard]] Value constant(float c) const {
    const std::string text = operand(static_cast<double>(c));
    return {text, text, text, ""};
  }
  [[nodiscard]] Value lookup(const Piece& p, Row, int word) const { return constant(p.word(word)); }

  /// y - y_hi, t - y_lo, v - centre.
  [[nodiscard]] Value sub(const Value& a, const Value& b) const {
    if (b.exact == "0") return a;
    const Value r = fresh("d");
    definitions += fmt::format("{} rnd= {} - {};\n{} = {} - {};\n", r.rounded, a.rounded, b.rounded, r.exact,
                               a.exact, b.exact);
    return r;
  }
  [[nodiscard]] Value at_least(const Value& a, const Value& lo) const {
    // the floor comes before the root, the end of the table after
    const Clamp& c = rooted ? left_end : floor;
    return {c.deployed ? lo.rounded : a.rounded, "", c.exact ? lo.exact : a.exact, ""};
  }
  // kYMax is a float: y stays exact
  [[nodiscard]] Value at_most(const Value& a, const Value&) const { return a; }
  [[nodiscard]] Value sqrt(const Value& a) const {
    const Value r = fresh("r");
    definitions += fmt::format("{} rnd= sqrt({});\n{} = sqrt({});\n", r.rounded, a.rounded, r.exact, a.exact);
    rooted = true;
    root = r;
    return r;
  }
  [[nodiscard]] Value negate(const Value& a) const {
    return {"(-" + a.rounded + ")", "", "(-" + a.exact + ")", ""};
  }
  [[nodiscard]] Value mul(const Value& a, const Value& b) const { return fma(a, b, constant(0.0f)); }
  [[nodiscard]] Value fma(const Value& a, const Value& b, const Value& c) const {
    // a leading coefficient that the row does without; c is a float
    if (a.exact == "0" || b.exact == "0") return c;
    const int k = steps++;
    Value r{fmt::format("p{}", k), fmt::format("M{}", k), fmt::format("P{}", k), ""};
    const auto sum = [](const std::string& x, const std::string& y, const std::string& z) {
      return z == "0" ? x + " * " + y : x + " * " + y + " + " + z;
    };
    const std::string q = fmt::format("q{}", k), unrounded = sum(a.rounded, b.rounded, c.rounded),
                      middle = sum(a.middle, b.middle, c.middle), exact = sum(a.exact, b.exact, c.exact);
    definitions += fmt::format("{} = {};\n{} = rnd({});\n", q, unrounded, r.rounded, q);
    // Equal expressions get one name: Gappa would choose one of two by itself.
    if (middle == unrounded) {
      r.middle = q;
    } else {
      definitions += fmt::format("{} = {};\n", r.middle, middle);
      std::string error = fmt::format("({} - {})", r.rounded, q);
      if (a.rounded != a.middle) error += fmt::format(" + ({} - {}) * {}", a.rounded, a.middle, b.rounded);
      if (b.rounded != b.middle) error += fmt::format(" + {} * ({} - {})", a.middle, b.rounded, b.middle);
      if (c.rounded != c.middle) error += fmt::format(" + ({} - {})", c.rounded, c.middle);
      hints += fmt::format("{} - {} -> {};\n", r.rounded, r.middle, error);
    }
    if (exact == middle) {
      r.exact = r.middle;
      return r;
    }
    definitions += fmt::format("{} = {};\n", r.exact, exact);
    std::string slope;
    const auto add = [&](const std::string& d, const std::string& factor) {
      if (d.empty()) return;
      slope += (slope.empty() ? "" : " + ") + (d == "1" ? factor : factor == "1" ? d : d + " * " + factor);
    };
    add(a.slope, b.exact);
    add(b.slope, a.middle);
    add(c.slope, "1");
    // A sole literal or name needs no definition of its own.
    if (slope.find(' ') == std::string::npos) {
      r.slope = slope;
    } else {
      r.slope = fmt::format("D{}", k);
      definitions += fmt::format("{} = {};\n", r.slope, slope);
    }
    return r;
  }

  template <class T>
  [[nodiscard]] T select(bool mask, const T& a, const T& b) const {
    return mask ? a : b;
  }

  /// The polynomial's variable: what comes out of evaluate_row's subtraction, or v itself.
  [[nodiscard]] Value as_variable(Value v) const {
    v.middle = v.rounded;
    v.slope = v.rounded == v.exact ? "" : "1";
    return v;
  }

 private:
  mutable bool rooted = false;
  [[nodiscard]] Value fresh(const char* letter) const {
    const int k = steps++;
    return as_variable({fmt::format("{}{}", letter, k), "", fmt::format("{}{}_", letter, k), ""});
  }
};

/// What one script is about.
struct Case {
  const char* suffix;   ///< the file's; "" for the only one
  const char* comment;
  double y_lo, y_hi;
  bool m;
  Clamp floor, left_end;
};

std::string script(const std::string& name, const BackwardModel& model, const Piece& piece, const Case& c) {
  WritingOps ops;
  ops.floor = c.floor;
  ops.left_end = c.left_end;
  const Written y{"y", "y", "y", ""};
  Written v = y;
  if (piece.coordinate == Coordinate::signed_root) v = kernels::evaluate_coordinate(ops, model, y, c.m);
  const Written u = ops.as_variable(model.kCentred ? ops.sub(v, ops.lookup(piece, 0, 0)) : v);
  // evaluate_row has the same subtraction again: it is given u and told that it need not centre.
  const Written g = kernels::evaluate_row(ops, piece, 0, model.kDegree, u, model.kScheme, false);
  std::string text = fmt::format(
      "# {}, row {}: |deployed fp32 sequence - the same in real arithmetic| <= {:a} = {} (bound B of the "
      "row).\n"
      "# {}\n"
      "# gappa {} FILE proves it: by default Gappa drops improvements of a bound below 1%.\n"
      "# y is any float in the range; _ marks real arithmetic, M the polynomial in real arithmetic at the "
      "computed u.\n",
      name, piece.row, piece.evaluation, power_of_two(piece.evaluation), c.comment, kGappaOption);
  text += kInput + ops.definitions;
  const bool constant = c.floor.deployed && c.floor.exact;
  const std::string goal = fmt::format("{} - {} in [-{}, {}]", g.rounded, g.exact, dyadic(piece.evaluation),
                                       dyadic(piece.evaluation));
  const bool depends_on_y = !constant && !(c.left_end.deployed && c.left_end.exact);
  // Where one s is clamped and the other is not, s_min lies between them: they differ from it by no more than
  // from one another.
  std::string between, hint;
  if (c.left_end.deployed != c.left_end.exact) {
    const Written& s = ops.root;
    const std::string end = dyadic(-static_cast<double>(model.kSMin));
    between = fmt::format("{} {} {} /\\ {} {} {} /\\ ", s.rounded, c.left_end.deployed ? ">=" : "<=", end,
                          s.exact, c.left_end.exact ? ">=" : "<=", end);
    hint = c.left_end.deployed
               ? fmt::format("{} -> {} - ({} - {});\n", s.exact, s.rounded, s.rounded, s.exact)
               : fmt::format("{} -> {} + ({} - {});\n", s.rounded, s.exact, s.rounded, s.exact);
  }
  text += depends_on_y
              ? fmt::format("{{ {}y in [{}, {}] -> {} }}\n", between, dyadic(c.y_lo), dyadic(c.y_hi), goal)
              : fmt::format("{{ {} }}\n", goal);
  text += hint + ops.hints;
  if (u.rounded != u.exact && g.middle != g.exact) {
    text += fmt::format("{} - {} -> ({} - {}) * {};\n", g.middle, g.exact, u.rounded, u.exact, g.slope);
    text += fmt::format("{} - {} -> ({} - {}) + ({} - {});\n", g.rounded, g.exact, g.rounded, g.middle,
                        g.middle, g.exact);
  }
  if (depends_on_y) text += fmt::format("{} - {} $ y;\n", g.rounded, g.exact);
  return text;
}

/// T = y - y_hi - y_lo; exact in double for floats y next to y_c, which are multiples of 2^-26, with a y_lo
/// below 2^-26.
double distance(const BackwardModel& model, float y) {
  return static_cast<double>(y) - static_cast<double>(model.kYHi) - static_cast<double>(model.kYLo);
}

/// Least float y with T >= t_min.
float above_floor(const BackwardModel& model) {
  const auto t_min = static_cast<double>(model.kTMin);
  float y = model.kYHi + model.kYLo + model.kTMin;
  while (distance(model, y) >= t_min) y = std::nextafter(y, -INFINITY);
  while (distance(model, y) < t_min) y = std::nextafter(y, INFINITY);
  return y;
}

/// y_c + s^2, away from `from`, by more than the roundings of this expression.
double outward(const BackwardModel& model, double s, double direction) {
  const double y = static_cast<double>(model.kYHi) + static_cast<double>(model.kYLo) + s * s;
  return y + std::copysign(0x1p-50 * (1 + s * s), direction);
}

/// s reaches s_min next to y_c + s_min^2. From this far from there on, the computed and the exact s are on
/// the same side of s_min (the script .ends proves it). Between, one of them may be clamped alone.
constexpr double kEndReach = 0x1p-24;

double end_of_table(const BackwardModel& model) {
  return outward(model, static_cast<double>(model.kSMin), 1);
}

std::vector<Case> cases_of(const BackwardModel& model, const Piece& piece) {
  if (piece.coordinate != Coordinate::signed_root)
    return {{"", "The coordinate is y itself.", piece.v_lo, model.greatest_y(piece), false, {}, {}}};
  std::vector<Case> cases;
  const float first = above_floor(model);
  const double root_of_floor = std::sqrt(static_cast<double>(model.kTMin));
  const bool meets_floor = piece.v_lo < root_of_floor && piece.v_hi > -root_of_floor;
  const auto branch = [&](bool m, double least, double most) {  // least and most |s|
    Case c{"", "", 0, 0, m, {}, {}};
    c.y_lo = least <= root_of_floor ? static_cast<double>(first) : outward(model, least, -1);
    c.y_hi = outward(model, most, 1);
    if (m) c.y_hi = std::min(c.y_hi, static_cast<double>(model.kYMax));
    if (!m && model.kHasLeft) c.y_hi = std::min(c.y_hi, static_cast<double>(model.kLeftY));
    c.suffix = meets_floor ? (m ? ".right" : ".left") : "";
    c.comment = meets_floor ? "t >= t_min, by the exact and by the computed t, on one side of the minimum."
                            : "The row lies on one side of the minimum.";
    return c;
  };
  // A branch whose y are all at the floor has none above it.
  const auto add = [&](const Case& c) {
    if (c.y_lo <= c.y_hi) cases.push_back(c);
  };
  if (piece.v_hi > 0) add(branch(true, std::max(piece.v_lo, 0.0), piece.v_hi));
  if (piece.v_lo < 0) {
    Case c = branch(false, std::max(-piece.v_hi, 0.0), -piece.v_lo);
    if (!model.kHasLeft && piece.v_lo <= static_cast<double>(model.kSMin)) {
      c.y_hi = end_of_table(model) + kEndReach;
      Case end = c;
      end.y_lo = end_of_table(model) - kEndReach;
      for (const Clamp clamp : {Clamp{true, false}, Clamp{false, true}, Clamp{true, true}}) {
        end.left_end = clamp;
        end.suffix = clamp.deployed ? (clamp.exact ? ".end" : ".end_deployed") : ".end_exact";
        end.comment =
            clamp.deployed
                ? (clamp.exact ? "y above the end of the table: s = s_min by the exact and by the computed s."
                               : "Next to the end of the table: s_min by the computed s alone.")
                : "Next to the end of the table: s_min by the exact s alone.";
        cases.push_back(end);
      }
    }
    add(c);
  }
  if (meets_floor) {
    for (const bool m : {false, true}) {
      if (m ? piece.v_hi > 0 : piece.v_lo < 0) {
        cases.push_back({m ? ".floor_right" : ".floor_left",
                         "t = t_min, by the exact and by the computed t: a constant.",
                         0,
                         0,
                         m,
                         {true, true},
                         {}});
      }
    }
  }
  return cases;
}

/// The order that the cases at the floor rest on: on both sides of one float, t and T lie on the same side of
/// t_min.
std::string floor_script(const std::string& name, const BackwardModel& model, const Piece& piece) {
  const float first = above_floor(model), last = std::nextafter(first, -INFINITY);
  constexpr double kLargest = std::numeric_limits<float>::max();
  WritingOps ops;
  const Written y{"y", "y", "y", ""};
  Written t = ops.sub(y, ops.constant(model.kYHi));
  if (model.kYLo != 0.0f) t = ops.sub(t, ops.constant(model.kYLo));
  const std::string t_min = dyadic(static_cast<double>(model.kTMin));
  std::string text =
      fmt::format("# {}, row {}: the computed and the exact t are on the same side of t_min.\n", name,
                  piece.row) +
      kInput;
  text += ops.definitions;
  text += fmt::format(
      "{{ (y in [{}, {}] -> {} <= {} /\\ {} <= {}) /\\ (y in [{}, {}] -> {} >= {} /\\ {} >= {}) }}\n",
      dyadic(-kLargest), dyadic(static_cast<double>(last)), t.rounded, t_min, t.exact, t_min,
      dyadic(static_cast<double>(first)), dyadic(kLargest), t.rounded, t_min, t.exact, t_min);
  return text;
}

/// Likewise at the end of the table, s_min.
std::string end_script(const std::string& name, const BackwardModel& model, const Piece& piece) {
  WritingOps ops;
  const Written y{"y", "y", "y", ""};
  BackwardModel open = model;
  open.kHasLeft = true;  // without the clamp
  const Written s = kernels::evaluate_coordinate(ops, open, y, false);
  const std::string s_min = dyadic(static_cast<double>(model.kSMin));
  const double end = end_of_table(model);
  std::string text = fmt::format(
      "# {}, row {}: away from the end of the table the computed and the exact s are on the same side of "
      "s_min.\n",
      name, piece.row);
  text += kInput;
  text += ops.definitions;
  text += fmt::format(
      "{{ (y in [{}, {}] -> {} >= {} /\\ {} >= {}) /\\ (y in [{}, {}] -> {} <= {} /\\ {} <= {}) }}\n",
      dyadic(static_cast<double>(above_floor(model))), dyadic(end - kEndReach), s.rounded, s_min, s.exact,
      s_min, dyadic(end + kEndReach), dyadic(std::max(static_cast<double>(model.kYMax), end + kEndReach)),
      s.rounded, s_min, s.exact, s_min);
  return text;
}

}  // namespace

std::pair<long long, int> integer_and_exponent(double d) {
  if (d == 0) return {0, 0};
  int exponent = 0;
  auto integer = static_cast<long long>(std::ldexp(std::frexp(d, &exponent), 53));
  exponent -= 53;
  for (; integer % 2 == 0; integer /= 2) ++exponent;
  return {integer, exponent};
}

std::string power_of_two(double bound) { return bound > 0 ? fmt::format("2^{:.3f}", std::log2(bound)) : "0"; }

std::vector<WitnessScript> gappa_scripts(const std::string& name, const BackwardModel& model,
                                         const Piece& piece) {
  std::vector<WitnessScript> scripts;
  const auto add = [&](const std::string& suffix, std::string text) {
    scripts.push_back({fmt::format("{}.row_{}{}.gappa", name, piece.row, suffix), std::move(text), piece.row,
                       piece.evaluation, 'B'});
  };
  bool floor = false, end = false;
  for (const Case& c : cases_of(model, piece)) {
    add(c.suffix, script(name, model, piece, c));
    floor = floor || c.floor.exact;
    end = end || c.left_end.exact;
  }
  if (floor) add(".floor", floor_script(name, model, piece));
  if (end) add(".ends", end_script(name, model, piece));
  return scripts;
}

}  // namespace outgrad::approx
