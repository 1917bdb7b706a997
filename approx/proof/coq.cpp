// Writes the theorems of A and B as Coq files, a row each.
#include "approx/proof/coq.h"

#include "approx/function/composite.h"
#include "approx/proof/coq_activation.h"
#include "approx/proof/coq_index.h"
#include "approx/proof/coq_kernel.h"
#include "approx/proof/coq_span.h"
#include "approx/proof/coq_text.h"
#include "kernels/host/errors.h"

#include <Eigen/Dense>
#include <boost/multiprecision/eigen.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <regex>
#include <sstream>
#include <utility>

namespace outgrad::approx::coq {
namespace {

/// Cells are at most this wide, in units of the activation: a polynomial near phi then needs a degree of
/// about 10.
constexpr double kCellWidth = 0.625;
/// No row's x goes so far: a file that says so would be cut into cells without end.
constexpr double kWidestRow = 4096;
/// |x - x*| below this, in the same units, is treated about x*, as long as the row is there in s.
constexpr double kNearRoot = 0.25;
/// Ends of cells and their centres are multiples of 2^-kPlaceBits.
constexpr int kPlaceBits = 20;
/// What polynomials leave out is below the room between A and the observed error by this many bits.
constexpr int kRoomBits = 10;
/// Coefficients have so many bits more than that.
constexpr int kCoefficientBits = 4;
/// Bits that coq-interval works with beyond those of the room.
constexpr int kWorkBits = 30;
constexpr int kSamples = 256;
constexpr int kLeastDegree = 4, kMostDegree = 24;
/// The maximum over the samples and the maximum differ by less.
constexpr double kBetweenSamples = 1.25;
/// Degree of coq-interval's Taylor models: one less than the polynomials' pays, from here to there.
constexpr int kLeastModel = 5, kMostModel = 12;

std::string list(const std::vector<Real>& c) {
  std::string text;
  for (const Real& r : c) text += (text.empty() ? "" : "; ") + exact(r);
  return "[" + text + "]";
}

/// A polynomial near a function on [a, b] and what it leaves out, rounded up; found, not proven.
struct Near {
  std::vector<Real> c;
  Real error;
};

/// Interpolation at Chebyshev's points, of the least degree whose error is below `allowed`.
Near near(const std::function<Real(const Real&)>& function, const Real& a, const Real& b, const Real& allowed,
          int bits) {
  using Matrix = Eigen::Matrix<Real, Eigen::Dynamic, Eigen::Dynamic>;
  using Vector = Eigen::Matrix<Real, Eigen::Dynamic, 1>;
  const Real mid = (a + b) / 2, half = (b - a) / 2, pi = 4 * atan(Real(1));
  for (int degree = kLeastDegree;; ++degree) {
    const int n = degree + 1;
    Matrix powers(n, n);
    Vector values(n);
    for (int i = 0; i < n; ++i) {
      const Real u = mid + half * cos(pi * (2 * i + 1) / (2 * n));
      values[i] = function(u);
      Real power = 1;
      for (int k = 0; k < n; ++k, power *= u) powers(i, k) = power;
    }
    const Vector solution = powers.fullPivLu().solve(values);
    Near result;
    for (int k = 0; k < n; ++k) result.c.push_back(nearest(solution[k], bits));
    for (int i = 0; i <= kSamples; ++i) {
      const Real u = a + (b - a) * i / kSamples;
      Real p = 0;
      for (int k = n; k-- > 0;) p = p * u + result.c[static_cast<size_t>(k)];
      result.error = std::max(result.error, Real(abs(p - function(u))));
    }
    result.error = above(result.error * kBetweenSamples, bits) + power_of_2(-bits);
    if (result.error <= allowed || degree == kMostDegree) return result;
  }
}

/// What the theorems of one row have in common.
struct Row {
  const KnownActivation& of;
  const Piece& piece;
  int room;  ///< A and the observed error differ by 2^-room at least
  std::string text = {};
  int cells = 0;

  [[nodiscard]] int bits() const { return room + kRoomBits + kCoefficientBits; }
  /// What coq-interval works with, for what the polynomials leave out and for the row's error.
  [[nodiscard]] int near_bits() const { return bits() + kWorkBits; }
  [[nodiscard]] int row_bits() const { return room + kWorkBits; }
  [[nodiscard]] std::string part(const char* what) const { return fmt::format("{}_{}", what, cells); }

  template <class... Arguments>
  void say(fmt::format_string<Arguments...> form, Arguments&&... arguments) {
    text += fmt::format(form, std::forward<Arguments>(arguments)...) + "\n";
  }
  void begin_bound(const char* keyword, const std::string& name, const std::string& where,
                   const std::string& coordinate) {
    say("{} {} x : {} -> Rabs (p ({}) - f' x) <= A.", keyword, name, where, coordinate);
    say("Proof.");
  }
};

int model_degree(const Near& n) {
  return std::clamp(static_cast<int>(n.c.size()) - 2, kLeastModel, kMostModel);
}

/// The value of Phi at c within e, in Coq's notation, with its proof.
struct PhiAt {
  std::string name, c, v, e;
};

PhiAt add_anchor(Row& row, const Real& c, const std::string& name) {
  PhiAt at{name, operand(c), operand(nearest(row.of.cdf(c), row.bits())), operand(power_of_2(-row.bits()))};
  row.say("Lemma {} : Rabs (Phi {} - {}) <= {}.", at.name, at.c, at.v, at.e);
  row.say("Proof. prove_anchor {}%positive. Qed.\n", row.near_bits());
  return at;
}

/// A cell away from the branch point.
void add_cell(Row& row, const Real& lo, const Real& hi, const Real& x_star) {
  const Real c = nearest((lo + hi) / 2, kPlaceBits), a = lo - c, b = hi - c, reach = std::max(Real(-a), b);
  const Near d = near([&](const Real& u) { return row.of.density(c + u); }, a, b,
                      power_of_2(-row.room - kRoomBits), row.bits());
  const std::string density = row.part("density"), bound = operand(d.error);
  const PhiAt at = add_anchor(row, c, row.part("anchor"));
  row.say("Definition {} := {}.", density, list(d.c));
  row.say("Lemma {}_near u : {} -> Rabs (phi ({} + u) - horner {} u) <= {}.", density, between(a, "u", b),
          at.c, density, bound);
  row.say("Proof. intros Hu. unfold phi, Phi, {}. prove_bound u {}%nat {}%positive. Qed.\n", density,
          model_degree(d), row.near_bits());
  row.begin_bound("Lemma", row.part("cell"), between(lo, "x", hi), coordinate_of(row.piece));
  row.say("  intros Hx.");
  row.say(
      "  apply ({}_cell p A {} {} {} {} {} {} {} {} ltac:(lra) {} {}_near ltac:(lra) ltac:(lra)); [{}|lra].",
      !in_s(row.piece) ? "output"
      : lo > x_star    ? "right"
                       : "left",
      density, at.c, at.v, at.e, bound, operand(above(power_of_2(-row.bits()) + d.error * reach, row.bits())),
      operand(a), operand(b), at.name, density, in_s(row.piece) ? "unfold x_low, x_high; lra| " : "");
  row.say("  intros u t r{} Hu Ht Hr{}. unfold p, A, {}. prove_bound u {}%nat {}%positive.\nQed.\n",
          in_s(row.piece) ? " y" : "", in_s(row.piece) ? " Hy. unfold y_low, y_high in Hy" : "", density,
          model_degree(d), row.row_bits());
  ++row.cells;
}

/// A cell around or next to the branch point, in u = x - x*.
void add_near_cell(Row& row, const Real& lo, const Real& hi, const Real& x_star) {
  // The library's enclosure of x* is narrower than 2^-49.
  const Real l = below(lo - x_star - power_of_2(-49), 50), h = above(hi - x_star + power_of_2(-49), 50),
             a = std::min(Real(0), l), b = std::max(Real(0), h);
  const Near q =
      near([&](const Real& u) { return Real(row.of.density(x_star + u) * row.of.curve(x_star + u)); }, a, b,
           power_of_2(-row.room - kRoomBits), row.bits());
  // x* is not known but to lie in the enclosure, which widens what is left out.
  const std::string curve = row.part("curve"), bound = operand(q.error + power_of_2(-46));
  row.say("Definition {} := {}.", curve, list(q.c));
  row.say("Lemma {}_near x u : x_low <= x <= x_high -> {} -> Rabs (f'' (x + u) - horner {} u) <= {}.", curve,
          between(a, "u", b), curve, bound);
  row.say(
      "Proof. intros Hx Hu. unfold x_low, x_high in Hx. unfold f'', phi, Phi, {}. prove_bound u {}%nat "
      "{}%positive. Qed.\n",
      curve, model_degree(q) + 1, row.near_bits());
  row.begin_bound("Lemma", row.part("cell"), between(lo, "x", hi), coordinate_of(row.piece));
  row.say("  intros Hx.");
  row.say(
      "  apply (across_cell p A {} {} {} {} {} {} ltac:(lra) ltac:(lra) ltac:(lra) {}_near); [|unfold x_low, "
      "x_high; lra].",
      curve, bound, operand(a), operand(b), operand(l), operand(h), curve);
  row.say("  intros u e r Hu He Hr. unfold p, A, {}. prove_bound u {}%nat {}%positive.\nQed.\n", curve,
          model_degree(q), row.row_bits());
  ++row.cells;
}

/// What lies beyond the row's last or first cell, where its polynomial is next to its value at the limit.
void add_tail(Row& row, const Real& end, bool right, float y_max) {
  const PhiAt at = add_anchor(row, end, right ? "right_anchor" : "left_anchor");
  const int bits = row.bits();
  const Real cdf = row.of.cdf(end), slack = 2 * power_of_2(-bits) * (1 + abs(end)),
             gradient = cdf + end * row.of.density(end);
  const std::string low = operand(below(end * cdf - slack, bits));
  const std::string slope = operand(right ? above(gradient + slack, bits) : below(gradient - slack, bits));
  const std::string place = !in_s(row.piece) ? "(fun y => y)" : right ? "root_of" : "left_root_of";
  const std::string values =
      fmt::format("intros P HP; unfold phi, Phi; split; interval with (i_prec {}%positive)", row.near_bits());
  if (right) {
    row.begin_bound("Theorem", "fit_error_far_right", at.c + " <= x", held_coordinate_of(row.piece, y_max));
    row.say("  apply (right_tail_row p {} {} A {} {} {} {} {}); [lra|exact {}|{}|lra|].", place,
            operand(Real(static_cast<double>(y_max))), at.c, at.v, at.e, low, slope, at.name, values);
  } else {
    row.begin_bound("Theorem", "fit_error_far_left", "x <= " + at.c, coordinate_of(row.piece));
    if (in_s(row.piece)) row.say("  intros Hx. rewrite coordinate_left by (unfold x_low; lra). revert x Hx.");
    row.say("  apply (left_tail_row p {} A {} {} {} {} {}); [lra|exact {}|{}|].", place, at.c, at.v, at.e,
            low, slope, at.name, values);
  }
  row.say("  intros y g Hy Hg. unfold p, A.");
  if (in_s(row.piece))
    row.say(
        "  unfold root_of, left_root_of. pose proof y_star_between as Hs. unfold y_low, y_high in Hs. set (s "
        ":= y_star) in *. clearbody s.");
  row.say("  prove_bound y {}%nat {}%positive.\nQed.\n", kLeastModel, row.row_bits());
}

/// The ends of the row's cells. `reaches_root`: those of cells in u = x - x* are among them.
std::vector<Real> cell_ends(const Real& lo, const Real& hi, const Real& left, const Real& right,
                            bool reaches_root, double width) {
  std::vector<Real> ends = {lo};
  const auto add_to = [&](const Real& end) {
    const Real from = ends.back();
    const int parts = static_cast<int>(ceil((end - from) / width));
    for (int i = 1; i < parts; ++i) ends.push_back(nearest(from + (end - from) * i / parts, kPlaceBits));
    ends.push_back(end);
  };
  if (reaches_root) {
    if (lo < left) add_to(left);
    ends.push_back(std::min(hi, right));
    if (hi > right) add_to(hi);
  } else {
    add_to(hi);
  }
  return ends;
}

/// Gappa's "17b-3" as Coq's "17 / 2 ^ 3".
std::string numbers_in_coq(const std::string& text, bool as_operands) {
  static const std::regex kNumber(R"((-?\d+)b(-?)(\d+))");
  std::string result;
  auto end = text.begin();
  for (std::sregex_iterator i(text.begin(), text.end(), kNumber), none; i != none; ++i) {
    const std::smatch& m = *i;
    const bool integer = m[3] == "0",
               enclosed = m.prefix().str().ends_with('(') && m.suffix().str().starts_with(')');
    const std::string number =
        integer ? m[1].str() : fmt::format("{} {} 2 ^ {}", m[1].str(), m[2] == "-" ? "/" : "*", m[3].str());
    result.append(end, text.begin() + m.position());
    result += as_operands && !integer && !enclosed ? "(" + number + ")" : number;
    end = text.begin() + m.position() + m.length();
  }
  return result.append(end, text.end());
}

/// Found once for all rows, because finding it takes long beside the rest.
Real x_star_of(const std::string& function) {
  static std::map<std::string, Real> found;
  const auto [entry, is_new] = found.try_emplace(function);
  if (is_new) entry->second = Composite(activation_from_expression(function)).x_star().mid();
  return entry->second;
}

std::string replaced(const std::string& text, const char* pattern, const char* by) {
  return std::regex_replace(text, std::regex(pattern), by);
}

}  // namespace

WitnessScript script(const Fit& fit, const Piece& piece, const std::string& path) {
  const std::optional<KnownActivation> known = known_activation(fit.function);
  if (!known) throw kernels::SpecError(path, "function", no_theory_of(fit.function));
  if (!fit.as<BackwardModel>() || piece.target != Target::gradient)
    throw kernels::SpecError(path, "target", "certify --coq is for backward fits in absolute error");
  const std::string place = fmt::format("pieces: row {}", piece.row);
  const double slack = piece.certified - piece.observed;
  if (!(slack > 0))
    throw kernels::SpecError(path, place, "the certified error is not above the observed one");
  const auto [lo, hi] = piece.outer_range();
  if (hi - lo > kWidestRow) throw kernels::SpecError(path, place + ".x", "spans more than any row does");
  if ((piece.left_tail && lo > -known->tail) || (piece.right_tail && hi < known->tail))
    throw kernels::SpecError(path, place,
                             fmt::format("certify --coq needs a tail to begin at |x| >= {}", known->tail));
  const Real x_star = x_star_of(fit.function);

  std::vector<Real> c;
  for (const float k : piece.c) c.emplace_back(static_cast<double>(k));
  c[0] += Real(static_cast<double>(piece.c0_low));
  Row row{*known, piece, -std::ilogb(slack)};
  row.say("(* {}, row {}: bound A = {}, for every real x of the row. Written by outgrad certify --coq. *)\n",
          fit.name, piece.row, power_of_two(piece.certified));
  row.say(
      "From Coq Require Import Reals Lra List.\nFrom Coquelicot Require Import Coquelicot.\nFrom Interval "
      "Require Import Tactic.\n"
      "From Outgrad Require Import Activation BranchPoint Series Row.\nImport ListNotations.\nOpen Scope "
      "R_scope.\n");
  row.say("(* The row's polynomial in {}, with its centre. *)", in_s(row.piece) ? "s" : "y");
  row.say("Definition p v := horner {} (v - {}).", list(c), operand(Real(static_cast<double>(piece.centre))));
  row.say("Definition A := {}.\n", exact(Real(piece.certified)));

  const Real beside = kNearRoot * known->width;
  const Real left = nearest(x_star - beside, kPlaceBits), right = nearest(x_star + beside, kPlaceBits);
  const bool reaches_root = in_s(row.piece) && lo < right && hi > left;
  const std::vector<Real> ends = cell_ends(lo, hi, left, right, reaches_root, kCellWidth * known->width);
  for (size_t i = 0; i + 1 < ends.size(); ++i) {
    const bool at_root = reaches_root && ends[i] < right && ends[i + 1] > left;
    (at_root ? add_near_cell : add_cell)(row, ends[i], ends[i + 1], x_star);
  }
  row.begin_bound("Theorem", "fit_error", between(lo, "x", hi), coordinate_of(row.piece));
  row.say("  intros Hx.");
  for (size_t i = 0; i + 2 < ends.size(); ++i)
    row.say("  destruct (Rle_dec x {}). apply cell_{}; lra.", operand(ends[i + 1]), i);
  row.say("  apply cell_{}; lra.\nQed.\n", ends.size() - 2);
  if (piece.left_tail) add_tail(row, lo, false, 0);
  if (piece.right_tail) add_tail(row, hi, true, fit.as<BackwardModel>()->kYMax);
  return {fmt::format("{}_row_{}.v", fit.name, piece.row), std::move(row.text), piece.row, piece.certified,
          'A'};
}

Groups scripts(const Fit& fit, const std::string& path, const std::vector<int>& rows) {
  if (!fit.as<BackwardModel>()) throw kernels::SpecError(path, "kind", "a backward fit is needed");
  std::vector<WitnessScript> bounds;
  for (const Piece& piece : fit.as<BackwardModel>()->pieces) {
    if (!rows.empty() && std::ranges::find(rows, piece.row) == rows.end()) continue;
    bounds.push_back(script(fit, piece, path));
    std::ranges::move(gappa_scripts(fit.name, *fit.as<BackwardModel>(), piece), std::back_inserter(bounds));
  }
  Groups groups{{ranges_script(fit)}, std::move(bounds), {rows_script(fit, rows)}};
  if (rows.empty() && has_kernel(fit)) {
    WitnessScript kernel = kernel_script(fit, path);
    kernel.bound = 'x', kernel.claim = 0;
    groups[0].push_back(std::move(kernel));
    groups[1].push_back(index_script(fit));
  }
  if (rows.empty() && has_spans(fit)) add(groups, span_scripts(fit, path));
  return groups;
}

void add(Groups& groups, const Groups& more) {
  groups.resize(std::max(groups.size(), more.size()));
  for (size_t i = 0; i < more.size(); ++i) {
    for (const WitnessScript& script : more[i]) {
      std::erase_if(groups[i], [&](const WitnessScript& other) { return other.name == script.name; });
      groups[i].push_back(script);
    }
  }
}

WitnessScript evaluation_script(const WitnessScript& script, const std::string& proof) {
  // The lines that gappa_scripts() writes: comments, "@rnd = ...;", definitions, the goal in braces, and
  // hints, which Gappa has used up.
  static const std::regex kDefinition(R"((\w+) (rnd)?= (.*);)");
  std::vector<std::pair<std::string, std::string>> definitions;
  std::string goal, comment;
  std::istringstream lines(script.text);
  for (std::string line; goal.empty() && std::getline(lines, line);) {
    std::smatch m;
    if (line.starts_with("# ") && comment.empty()) comment = line.substr(2);
    if (line.starts_with('{')) goal = line.substr(2, line.size() - 4);
    if (!std::regex_match(line, m, kDefinition)) continue;
    std::string value = replaced(numbers_in_coq(m[3], true), R"(rnd\((\w+)\))", "fp32 $1");
    value = replaced(replaced(value, R"(sqrt\((\w+)\))", "sqrt $1"), R"(sqrt\()", "sqrt (");
    definitions.emplace_back(m[1], m[2].matched ? fmt::format("fp32 ({})", value) : value);
  }
  goal = replaced(goal, R"((\S+ - \S+) in \[-(\w+-?\w*), \2\])", "Rabs ($1) <= B");
  goal = replaced(goal, R"(([^\s(]+) in \[([^,]+), ([^\]]+)\])", "$2 <= $1 <= $3");
  goal = numbers_in_coq(replaced(goal, R"((\S+) >= (\S*\w))", "$2 <= $1"), false);
  // What only the hints speak of is left out.
  std::string statement = "  " + goal + ".\n";
  for (auto d = definitions.rbegin(); d != definitions.rend(); ++d) {
    if (std::regex_search(statement, std::regex("\\b" + d->first + "\\b")))
      statement = fmt::format("  let {} := {} in\n", d->first, d->second) + statement;
  }
  std::string names;
  static const std::regex kName(R"(\nDefinition ([sif]\d+) :=)");
  for (std::sregex_iterator i(proof.begin(), proof.end(), kName), none; i != none; ++i)
    names += " " + (*i)[1].str();

  std::string module = script.name.substr(0, script.name.rfind('.')) + "_B";
  std::ranges::replace(module, '.', '_');
  std::string text = fmt::format(
      "(* {} From here to the end of the section Gappa's proof, then what it says. Written by outgrad "
      "certify --coq. *)\n\n",
      comment);
  text += proof;
  text +=
      "\nFrom Coq Require Import Reals.\nFrom Outgrad Require Import Evaluation.\nOpen Scope R_scope.\n\n";
  // A constant has no y, there as here.
  const bool of_y = statement.find("fp32 y_") != std::string::npos;
  text += fmt::format("Definition B := {}.\n\nTheorem evaluation_error{} :\n{}Proof.\n",
                      exact(Real(script.claim)), of_y ? " y_" : "", statement);
  text +=
      fmt::format("  cbv zeta. unfold fp32, B. pose proof {} as H. cbv delta [{}] in H. conclude H.\nQed.\n",
                  of_y ? "(l1 y_)" : "l1", names.empty() ? names : names.substr(1));
  return {module + ".v", std::move(text), script.row, script.claim, 'B'};
}

std::map<std::string, std::string> assumptions(const std::string& text) {
  // A name begins a line; its statement may go on in lines that are indented.
  std::map<std::string, std::string> statements;
  std::string* statement = nullptr;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#' || line == "Axioms:") continue;
    std::istringstream words(line);
    std::string word;
    if (line[0] != ' ') {
      words >> word;
      statement = &statements[word];
    }
    while (statement != nullptr && words >> word) {
      if (!statement->empty() || word != ":") *statement += (statement->empty() ? "" : " ") + word;
    }
  }
  return statements;
}

std::vector<std::string> unlisted(const std::map<std::string, std::string>& assumed,
                                  const std::map<std::string, std::string>& listed) {
  std::vector<std::string> names;
  for (const auto& [name, statement] : assumed) {
    const auto known = listed.find(name);
    if (known == listed.end()) {
      names.push_back(name);
    } else if (known->second != statement) {
      names.push_back(fmt::format("{}, stated as: {}", name, statement));
    }
  }
  return names;
}

}  // namespace outgrad::approx::coq
