// Writes the error of a row as Sollya commands, with a series of its own next to x*.
#include "approx/proof/sollya.h"

#include "approx/function/expression.h"
#include "kernels/host/errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <vector>

namespace outgrad::approx {
namespace {

/// Bits Sollya works with: errors of 2^-40 are the difference of values near 1, with over 100 bits to spare.
constexpr int kSollyaBits = 165;
/// |x - x*| below this is treated by the Taylor form about x*; its remainder is then below 2^-80.
constexpr double kNearRoot = 0.125;
/// The same with room for the roundings of the ends.
constexpr double kNearReach = kNearRoot + 0x1p-10;
/// For a fit by one expression, which has to hold on all of a piece next to x*.
constexpr double kFitReach = 0.25;

/// Decimal exponents that numbers of a function may have.
constexpr int kMostPlaces = 1000;

/// The polynomial by Horner's rule, in x, Sollya's variable, or an expression of it; without its `first`
/// coefficients.
std::string polynomial(const Piece& piece, size_t first = 0, const char* u = "x") {
  std::string p = fmt::format("({:a})", static_cast<double>(piece.c.back()));
  for (size_t k = piece.c.size() - 1; k-- > first;)
    p = fmt::format("({:a}) + {} * ({})", static_cast<double>(piece.c[k]), u, p);
  if (piece.c0_low != 0) p = fmt::format("({:a}) + ({})", static_cast<double>(piece.c0_low), p);
  return p;
}

/// The functions that Sollya lacks.
constexpr const char* kPrelude = R"(sigmoid = 1 / (1 + exp(-x));
softplus = log1p(exp(x));
normal_cdf = erfc(-x / sqrt(2)) / 2;
)";

constexpr const char* kMinimum = R"(
// The minimum: f' changes sign within `radius` of x_mid, where f'' > 0, so x* is in X and y* in Y.
radius = 1b-140;
X = [x_mid - radius; x_mid + radius];
if (!((sup(evaluate(fp, [x_mid - radius])) < 0) && (inf(evaluate(fp, [x_mid + radius])) > 0) &&
      (inf(evaluate(diff(fp), X)) > 0))) then {
  print("FAILED: the minimum is not where the script says");
  quit;
};
Y = evaluate(f, [x_mid]) + evaluate(fp, X) * [-radius; radius];
y_mid = mid(Y);
y_radius = sup(abs(Y - y_mid));
)";

/// h about x*: f - y* = w^2 (h + eta), |eta| <= h_error for |w| <= near.
constexpr const char* kQuotient = R"(
terms = 30;
form = taylorform(f, terms, X, [x_mid - near - radius; x_mid + near + radius], relative);
h = 0;
h_error = sup(abs(form[2])) * near^(terms - 1);
for k from 2 to terms do {
  h = h + coeff(form[0], k) * x^(k - 2);
  h_error = h_error + sup(abs(form[1][k])) * near^(k - 2);
};
h_error = 2 * h_error;  // covers the roundings of this sum
h = horner(h);
)";

/// Walks over [a; b] from left to right with steps that adapt: a Taylor form of E, the norm of its polynomial
/// by infnorm, and `extra`, a procedure that bounds what E leaves out on the same interval.
constexpr const char* kBound = R"(
taylor_degree = 12;
upper = 0;
lower = 0;
covered = 0;  // parts that were walked to their end
stopped = false;
procedure cover(E, extra, a, b) {
  var left, right, step, J, m, form, errors, norm, total, least, k;
  step = (b - a) / 8;
  left = a;
  while ((left < b) && (!stopped)) do {
    right = left + step;
    if (right > b) then { right = b; };
    J = [left; right];
    m = mid(J);
    form = taylorform(E, taylor_degree, m, J, absolute);
    errors = form[2];
    for k from 0 to taylor_degree do errors = errors + form[1][k] * ([left; right] - [m; m])^k;
    norm = infnorm(form[0], [left; right] - [m; m]);
    total = sup([sup(norm)] + abs(errors) + [extra(J)]);
    if (total <= claim) then {
      if (total > upper) then { upper = total; };
      least = inf([inf(norm)] - abs(errors) - [extra(J)]);
      if (least > lower) then { lower = least; };
      left = right;
      step = step * 1.5;
    } else {
      step = step / 2;
      if (step < (b - a) * 1b-12) then {
        stopped = true;
        print("not below the claim next to", left, "where the norm is in", norm);
      };
    };
  };
  if ((!stopped) && (left == b)) then { covered = covered + 1; };
};
)";

/// What the expression given to cover() leaves out, by the mean value theorem. `e` bounds the error of v.
constexpr const char* kLeftOut = R"(procedure left_out(J) {
  var e;
  e = coordinate_error(J);
  return sup(e * abs(evaluate(diff(p), evaluate(v, J) - centre + [-e; e])) + [slope_error(J)]);
};
)";

/// The same of the quotient, whose value is at most 2 for a claim of at most 1.
constexpr const char* kLeftOutRelative = R"(procedure left_out(J) {
  var e, d, g;
  e = coordinate_error(J);
  d = slope_error(J);
  g = abs(evaluate(slope, J)) - [0; d];
  return sup((e * abs(evaluate(diff(p), evaluate(v, J) - centre + [-e; e])) + 2 * [d]) / g);
};
)";

/// f'(x* + w) = w (slope_h(w) + ...), the remainder up to slope_h_error.
constexpr const char* kGradientQuotient = R"(
form = taylorform(fp, terms, X, [x_mid - near - radius; x_mid + near + radius], relative);
slope_h = 0;
slope_h_error = sup(abs(form[2])) * near^terms;
for k from 1 to terms do {
  slope_h = slope_h + coeff(form[0], k) * x^(k - 1);
  slope_h_error = slope_h_error + sup(abs(form[1][k])) * near^(k - 1);
};
slope_h_error = 2 * slope_h_error;  // covers the roundings of this sum
slope_h = horner(slope_h);
)";

/// E + 1 = r q(w r)/slope_h with r = sqrt(h), q = p/u; the derivative of r q(w r) by r is q + w r q'.
constexpr const char* kLeftOutAtZero = R"(procedure left_out(J) {
  var e, r, change, g;
  e = sup(h_error / sqrt(evaluate(h, J)));
  r = sqrt(evaluate(h, J)) + [-e; e];
  change = e * abs(evaluate(p_over_u, J * r) + J * r * evaluate(diff(p_over_u), J * r));
  g = abs(evaluate(slope_h, J)) - [0; slope_h_error];
  return sup((change + 2 * [slope_h_error]) / g);
};
)";

std::string real_text(const Real& r) { return r.str(55, std::ios_base::scientific); }

struct Part {
  enum Side { plain, left, near, right } side;
  std::string from, to;  ///< x, or w for `near`
};

/// Pieces in s are cut at x* +- kNearRoot.
std::vector<Part> parts_of(const Piece& piece, const Real& x_star) {
  const auto [lo, hi] = piece.outer_range();
  const auto text = [](double d) { return fmt::format("({:a})", d); };
  if (piece.coordinate != Coordinate::signed_root) return {{Part::plain, text(lo), text(hi)}};
  const auto x0 = static_cast<double>(x_star);
  const double below = x0 - kNearRoot, above = x0 + kNearRoot;
  std::vector<Part> parts;
  if (lo < below) parts.push_back({Part::left, text(lo), text(std::min(hi, below))});
  // w lies within `radius` of x - x_mid; twice covers this expression's rounding.
  if (hi > below && lo < above) {
    parts.push_back({Part::near, fmt::format("({} - x_mid - 2 * radius)", text(std::max(lo, below))),
                     fmt::format("({} - x_mid + 2 * radius)", text(std::min(hi, above)))});
  }
  if (hi > above) parts.push_back({Part::right, text(std::max(lo, above)), text(hi)});
  return parts;
}

/// `near`: how far from x* the Taylor form about it is to reach.
std::string head(const std::string& function, const Piece& piece, const Real& x_star, double near) {
  std::string text = fmt::format("prec = {}!;\n", kSollyaBits);
  text += kPrelude;
  text += fmt::format("f = {};\nfp = diff(f);\ncentre = {:a};\n", sollya_function(function),
                      static_cast<double>(piece.centre));
  if (piece.coordinate != Coordinate::signed_root) return text;
  text += fmt::format("x_mid = {};\nnear = {:a};\n", real_text(x_star), near);
  return text + kMinimum + kQuotient;
}

/// v as an expression in x (in w for `near`), and the bound on what it leaves out: of y* (dv <= y_radius/v),
/// of h and x* next to it.
std::string coordinate(const Piece& piece, const Part& part) {
  switch (part.side) {
    case Part::plain:
      return std::string(piece.coordinate == Coordinate::argument ? "v = x;" : "v = f;") +
             "\nslope = fp;\nprocedure coordinate_error(J) { return 0; };\nprocedure slope_error(J) { return "
             "0; };\n";
    case Part::left:
    case Part::right:
      return fmt::format(
          "v = {}sqrt(f - y_mid);\nslope = fp;\nprocedure coordinate_error(J) {{ return sup(y_radius / "
          "abs(evaluate(v, J))); }};\n"
          "procedure slope_error(J) {{ return 0; }};\n",
          part.side == Part::left ? "-" : "");
    case Part::near: break;
  }
  return "v = x * sqrt(h);\nslope = fp(x_mid + x);\n"
         "procedure coordinate_error(J) { return sup(abs(J) * h_error / sqrt(evaluate(h, J))); };\n"
         "procedure slope_error(J) { return sup(radius * abs(evaluate(diff(fp), x_mid + J + [-radius; "
         "radius]))); };\n";
}

}  // namespace

std::string sollya_function(const std::string& function) {
  // the grammar; what is left to do is to write numbers and exponents Sollya's way
  static_cast<void>(Expression(function));
  std::string text;
  const auto digit = [&](size_t i) {
    return i < function.size() && std::isdigit(static_cast<unsigned char>(function[i])) != 0;
  };
  const auto word = [&](size_t i) {
    return i < function.size() &&
           (std::isalnum(static_cast<unsigned char>(function[i])) != 0 || function[i] == '_');
  };
  for (size_t i = 0; i < function.size();) {
    if (function[i] == '0' && i + 1 < function.size() && (function[i + 1] == 'x' || function[i + 1] == 'X')) {
      // A C hexadecimal float is the same in both, its exponent's sign included.
      const size_t start = i;
      while (word(i) || function[i] == '.' ||
             ((function[i] == '-' || function[i] == '+') &&
              (function[i - 1] == 'p' || function[i - 1] == 'P'))) {
        if (++i == function.size()) break;
      }
      text += "(" + function.substr(start, i - start) + ")";
    } else if (digit(i) || function[i] == '.') {
      std::string digits;
      int places = 0;
      while (digit(i)) digits += function[i++];
      if (i < function.size() && function[i] == '.') {
        for (++i; digit(i); ++places) digits += function[i++];
      }
      if (i < function.size() && (function[i] == 'e' || function[i] == 'E')) {
        const bool negative = i + 1 < function.size() && function[i + 1] == '-';
        i += negative || function[i + 1] == '+' ? 2 : 1;
        int exponent = 0;
        for (; digit(i); ++i) exponent = std::min(10 * exponent + (function[i] - '0'), kMostPlaces + 1);
        places += negative ? exponent : -exponent;
      }
      if (std::abs(places) > kMostPlaces)
        throw kernels::SpecError("function: a number has an exponent that Sollya is not given");
      text += places > 0   ? fmt::format("({}/10^{})", digits, places)
              : places < 0 ? fmt::format("({}*10^{})", digits, -places)
                           : digits;
    } else if (word(i)) {
      while (word(i)) text += function[i++];
    } else if (function[i] == '^') {
      // Signed exponents in parentheses.
      text += "^(";
      for (++i; i < function.size() && (digit(i) || function[i] == '-' || function[i] == ' '); ++i)
        text += function[i];
      text += ")";
    } else {
      text += function[i++];
    }
  }
  return text;
}

WitnessScript sollya_script(const std::string& name, const std::string& function, const Piece& piece,
                            const Real& x_star) {
  const bool relative = piece.target == Target::gradient_relative;
  std::string text = fmt::format(
      "// {}, row {}: sup |{}| <= {:a} = {} (bound A of the row), x in [{:.9g}, {:.9g}].\n", name, piece.row,
      relative ? "p(v(x) - centre)/f'(x) - 1" : "p(v(x) - centre) - f'(x)", piece.certified,
      power_of_two(piece.certified), static_cast<double>(piece.x_lo), static_cast<double>(piece.x_hi));
  if (piece.left_tail)
    text +=
        "// Not in this script: x below that range, where the fit uses a bound on the activation's tail.\n";
  if (piece.right_tail)
    text +=
        "// Not in this script: x above that range, where the fit uses a bound on the activation's tail.\n";
  text += head(function, piece, x_star, kNearReach);
  text += fmt::format("claim = {:a};\np = {};\n", piece.certified, polynomial(piece));
  // f' and p vanish together at x*, so w is divided out of both.
  const std::vector<Part> parts = parts_of(piece, x_star);
  const bool common_zero =
      relative && piece.coordinate == Coordinate::signed_root && piece.centre == 0 && piece.c[0] == 0;
  if (common_zero) text += fmt::format("p_over_u = {};\n", polynomial(piece, 1)) + kGradientQuotient;
  text += kBound;
  for (const Part& part : parts) {
    text += coordinate(piece, part);
    text += "u = v - centre;\n";  // p(u) would be a product for Sollya if p were x itself
    std::string error, left_out;
    if (part.side == Part::near && common_zero) {
      error = "sqrt(h) * p_over_u(x * sqrt(h)) / slope_h - 1";
      left_out = kLeftOutAtZero;
    } else if (relative) {
      error = fmt::format("({}) / slope - 1", polynomial(piece, 0, "u"));
      left_out = kLeftOutRelative;
    } else {
      error = fmt::format("{} - slope", polynomial(piece, 0, "u"));
      left_out = kLeftOut;
    }
    text += left_out + fmt::format("cover({}, left_out, {}, {});\n", error, part.from, part.to);
  }
  text += fmt::format(
      "if ((covered == {}) && (upper <= claim){}) then print(\"PROVEN {} row {}: sup |E| is in\", [lower; "
      "upper], \"claim\", claim)\n"
      "else print(\"FAILED {} row {}: claim\", claim);\nquit;\n",
      parts.size(), relative ? " && (claim <= 1)" : "", name, piece.row, name, piece.row);
  return {fmt::format("{}.row_{}.sollya", name, piece.row), std::move(text), piece.row, piece.certified, 'A'};
}

WitnessScript sollya_fit_script(const std::string& name, const std::string& function, const Piece& piece,
                                const Real& x_star) {
  std::string text = fmt::format(
      "// {}, row {}: Sollya's fpminimax on the piece's x in [{:.9g}, {:.9g}], in powers of v - centre, then "
      "a norm.\n",
      name, piece.row, static_cast<double>(piece.x_lo), static_cast<double>(piece.x_hi));
  text += head(function, piece, x_star, kFitReach);
  text += kBound;
  // One expression has to do for the whole piece: a piece that reaches x* is taken in w, as far as h reaches.
  Part part = parts_of(piece, x_star).front();
  const auto [lo, hi] = piece.outer_range();
  const auto x0 = static_cast<double>(x_star);
  if (piece.coordinate == Coordinate::signed_root && lo < x0 + kNearRoot && hi > x0 - kNearRoot) {
    part = {Part::near, fmt::format("(({:a}) - x_mid)", lo), fmt::format("(({:a}) - x_mid)", hi)};
    if (std::max(hi - x0, x0 - lo) > kFitReach)
      text += "print(\"FAILED: the piece reaches too far beyond the minimum for one expression\");\nquit;\n";
  } else if (part.side != Part::plain) {
    part.from = fmt::format("({:a})", lo);
    part.to = fmt::format("({:a})", hi);
  }
  text += coordinate(piece, part);
  text += fmt::format(
      "basis = [|1|];\nfor k from 1 to {} do basis = basis :. (v - centre)^k;\n"
      "I = [{}; {}];\n"
      "fit_s = time(q = fpminimax(slope, basis, [|SG...|], I, absolute, floating));\n"
      "procedure nothing(J) {{ return 0; }};\n"
      "// The estimate only sets how tight the certified bound must be: 1%, as ours is.\n"
      "norm_s = time({{ claim = 1.01 * dirtyinfnorm(q - slope, I); cover(q - slope, nothing, {}, {}); }});\n"
      "if (covered == 1) then print(\"BESIDE\", upper, fit_s, norm_s) else print(\"FAILED: no certified "
      "norm\", claim, fit_s, norm_s);\nquit;\n",
      piece.degree, part.from, part.to, part.from, part.to);
  return {fmt::format("{}.row_{}.beside.sollya", name, piece.row), std::move(text), piece.row,
          piece.certified, 'A'};
}

}  // namespace outgrad::approx
