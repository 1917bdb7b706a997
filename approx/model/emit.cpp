// Writes each kind of fit as the text of its coefficient header.
#include "approx/model/emit.h"

#include "approx/function/activations.h"
#include "approx/model/type_name.h"
#include "kernels/host/errors.h"
#include "kernels/support/bounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>
#include <variant>

namespace outgrad::approx {
namespace {

std::string literal(float f) { return fmt::format("{:a}f", static_cast<double>(f)); }

/// A member of the header, with a note behind a number.
template <class Value>
std::string constant(const char* name, const Value& value, const char* note = "") {
  if constexpr (std::is_same_v<Value, float>) {
    return fmt::format("  static constexpr float {} = {};  // {:.9g}{}\n", name, literal(value),
                       static_cast<double>(value), note);
  } else if constexpr (std::is_arithmetic_v<Value>) {
    return fmt::format("  static constexpr {} {} = {};\n", std::is_same_v<Value, bool> ? "bool" : "int", name,
                       value);
  } else {
    return fmt::format("  static constexpr const char* {} = \"{}\";\n", name, value);
  }
}
/// Members without notes: name and value in turn.
template <class Value, class... More>
std::string constants(const char* name, const Value& value, const More&... more) {
  if constexpr (sizeof...(More) > 0) {
    return constant(name, value) + constants(more...);
  } else {
    return constant(name, value);
  }
}
std::string claim(const char* name, double value, const std::string& note) {
  if (value == 0) return fmt::format("  static constexpr double {} = 0;  // {}\n", name, note);
  return fmt::format("  static constexpr double {} = {:a};  // 2^{:.2f}: {}\n", name, value,
                     kernels::decimals_up(std::log2(value), 2), note);
}

/// What stands behind a bound: how near to it errors were found to come, and where. `place` is what the input
/// is called.
std::string found_text(const Found& found, const std::string& place) {
  // a polynomial that equals g, up to the rounding of its samples, has no worst input
  constexpr double kLeastFound = 0x1p-50;
  if (found.error < kLeastFound) return "";
  return fmt::format("; found 2^{:.2f} at {}", std::log2(found.error), place);
}
std::string found_at_x(const Found& found) { return found_text(found, fmt::format("x = {:a}", found.at)); }
std::string found_at_y(const FoundInputs& inputs, const char* bound, bool masked) {
  const auto input = inputs.find(bound);
  if (input == inputs.end()) return "";
  return found_text(input->second, fmt::format("y = {:a}", input->second.at) +
                                       (masked ? fmt::format(", m = {:d}", input->second.m) : ""));
}

/// The worst input of all rows.
Found worst_input_of(const std::vector<Piece>& pieces, int first_row = 0) {
  Found worst;
  for (const Piece& p : pieces) {
    if (p.row >= first_row) worst.see(p.found);
  }
  return worst;
}

/// A row's words: the centre and the coefficients; the same and the scale; or the four of a rounded forward.
enum class RowForm { centred, scaled, rounded };

/// The words of a row as stored.
std::string row_text(const Piece& p, RowForm form) {
  std::string words;
  if (form == RowForm::rounded) {  // the centre follows from the row, c4 from c3
    for (size_t k = 0; k < RoundedForwardModel::kWords; ++k) words += (k == 0 ? "" : ", ") + literal(p.c[k]);
  } else {
    words = literal(p.centre);
    for (const float c : p.c) words += ", " + literal(c);
  }
  if (p.two_word) words += ", " + literal(p.c0_low);
  if (form == RowForm::scaled) words += ", " + literal(static_cast<float>(p.scale));
  // Rounded up, as it is a claim; what is smaller than the least claim, 0 too, no proof by enclosures needs
  // to reach.
  constexpr double kHundredths = 100, kLeastClaim = 0x1p-60;
  const double bound = std::ceil(std::log2(std::max(p.certified, kLeastClaim)) * kHundredths) / kHundredths;
  return fmt::format("      {{{}}},  // row {}: A <= 2^{:.2f}{}\n", words, p.row, bound, found_at_x(p.found));
}

std::string table_text(const char* name, const char* rows, const std::string& words,
                       const std::vector<Piece>& pieces, RowForm form, int all_rows) {
  std::string text = fmt::format("  static OUTGRAD_HD constexpr Table<{}, {}> {}() {{\n    return {{{{\n",
                                 rows, words, name);
  for (const Piece& p : pieces) text += row_text(p, form);
  if (static_cast<int>(pieces.size()) < all_rows) {
    text += fmt::format("      // rows {} to {} are never asked for\n", pieces.size(), all_rows - 1);
  }
  return text + "    }};\n  }\n";
}

/// A user's own function is certified on its domain only.
bool limited(const Fit& fit) { return fit.activation == "expression"; }

template <class Model>
std::string storage_text(const Fit& fit, const Model& m) {
  const auto found = [&](const char* bound) { return found_at_y(m.found, bound, m.kMasked); };
  std::string t = fmt::format(
      "  // over every stored y, both masks, and all {} that a y stands for (T total error, O the least any "
      "function of (y, m) reaches, R regret)\n",
      limited(fit) ? "|x| <= kXLimit" : "real x");
  t += claim("kT", m.kT, "sup |g(y, m) - f'(x)|" + found("T"));
  t += claim("kO", m.kO, "half the longest range of f' over one (y, m)" + found("O"));
  return t + claim("kR", m.kR, "sup |g(y, m) - middle of that range|" + found("R"));
}

/// What is claimed of the quotient of a product in place of y.
std::string product_text(const BackwardModel& m) {
  const auto found = [&](const char* bound) { return found_at_y(m.found, bound, m.kMasked); };
  const ProductBall ball = product_ball(m.product);
  std::string t =
      "  // y = RN_f32(z / b) of a z = f(x) b rounded to kProduct: |y - f(x)| <= kRelative |f(x)| + "
      "kAbsolute\n";
  t += constant("kProduct", to_string(m.product));
  t += claim("kRelative", ball.relative, "u / (1 + u), and roundings to fp32") +
       claim("kAbsolute", ball.absolute, "what an fp32 f(x) is off by where it is near 0");
  t += "  // over every fp32 y, both masks, and all real x so near to it (T total error, O what no function "
       "of "
       "(y, m) goes below)\n";
  t += claim("kT", m.kT, "sup |g(y, m) - f'(x)|" + found("T"));
  return t + claim("kO", m.kO, "half the range of f' over one (y, m)" + found("O"));
}

/// How the coordinate is made of y, and the row of the coordinate.
std::string place_text(const BackwardModel& m) {
  std::string t;
  if (m.kMasked) {
    t += "  // coordinate: s = +-sqrt(max((y - kYHi) - kYLo, kTMin)), negative for m = 0; y_c = kYHi + kYLo "
         "and kTMin are chosen for the format\n";
    t += constants("kYHi", m.kYHi, "kYLo", m.kYLo, "kTMin", m.kTMin, "kSMin", m.kSMin);
  } else {
    t += "  // coordinate: y itself\n" + constant("kYMin", m.kYMin);
  }
  t += constant("kYMax", m.kYMax, ": g has its limit from here on") + constant("kHasBreaks", m.kHasBreaks);
  if (m.kHasBreaks && m.kRows > 1) {
    std::string words;
    for (const float b : m.breaks) words += (words.empty() ? "" : ", ") + literal(b);
    t += fmt::format(
        "  // row = how many of these the coordinate has reached\n"
        "  static OUTGRAD_HD constexpr float break_at(int k) {{\n    constexpr float at[] = {{{}}};\n    "
        "return at[k];\n  }}\n",
        words);
  }
  if (!m.kHasBreaks) {
    t += fmt::format("  // row = bits(fma({}, kIndexScale, kIndexBias)) mod kRows\n", m.kMasked ? "s" : "y");
    t += constants("kIndexScale", m.kIndexScale, "kIndexBias", m.kIndexBias);
  }
  t += constant("kHasLeft", m.kHasLeft);
  if (m.kHasLeft) {
    t += "  // m = 0 and y > kLeftY: identity coordinate, row = kLeftRow + max(((h + max(h, kLeftKnee)) >> "
         "1) - kLeftBase, 0), h = exponent and first kLeftBits fraction bits of y\n";
    t += constants("kLeftY", m.kLeftY, "kLeftBits", m.kLeftBits, "kLeftRow", m.kLeftRow, "kLeftKnee",
                   m.kLeftKnee, "kLeftBase", m.kLeftBase);
  }
  t += constant("kHasRight", m.kHasRight);
  if (m.kHasRight) {
    t +=
        fmt::format("  // from {} = kRightS on a row's polynomial is one in y\n", m.kRightBoth ? "|s|" : "s");
    t += constant("kRightS", m.kRightS);
    if (m.kRightBoth) t += constant("kRightBoth", true);
  }
  return t;
}

/// The proven bounds.
std::string bounds_text(const Fit& fit, const BackwardModel& m) {
  const bool relative = std::any_of(m.pieces.begin(), m.pieces.end(),
                                    [](const Piece& p) { return p.target == Target::gradient_relative; });
  const auto found = [&](const char* bound) { return found_at_y(m.found, bound, m.kMasked); };
  std::string t =
      "  // proven bounds (design: A approximation, K coordinate constants, B rounding of the deployed fp32 "
      "sequence)\n";
  t += claim("kA", m.kA,
             (relative ? "sup |p/g - 1|; in the row next to y = 0-, sup |p - g|" : "sup |p - g|") +
                 found_at_x(worst_input_of(m.pieces)));
  if (m.kMasked && !m.of_product())
    t += claim("kK", m.kK, "sup |g(s_c(y)) - g(s(y))| over the stored y" + found("K"));
  t += claim("kB", m.kB, "sup |fp32 sequence - exact sequence|" + found("B"));
  if (m.format == Format::f32 && !relative)
    t += claim("kAB", m.kAB, "sup over the rows of A + B" + found("AB"));
  if (m.kTwoWord) {
    t += claim("kUlp", m.kUlp, "sup (A + B) / ulp(g) where |g| >= kUlpFrom" + found("ulp"));
    t += claim("kUlpFrom", kUlpFrom, "");
  }
  if (m.of_product()) return t + product_text(m);
  return m.format == Format::f32 ? t : t + storage_text(fit, m);
}

std::string body(const Fit& fit, const BackwardModel& m) {
  std::string t = constants("kFormat", to_string(m.format), "kClass", fit.accuracy, "kDegree", m.kDegree,
                            "kRows", m.kRows, "kScheme", m.kScheme, "kOperations", cost_of(m).arithmetic,
                            "kCentred", m.kCentred, "kExactLimits", m.kExactLimits, "kMasked", m.kMasked);
  t += place_text(m);
  if (m.kTwoWord)
    t += "  // the result is c0 plus the rest: a row's last word is the low part of c0\n" +
         constant("kTwoWord", true);
  t += bounds_text(fit, m);
  t += m.kCentred ? "  // a row: centre, c0, c1, ...; p(u) with u = s - centre (or y - centre)\n"
                  : "  // a row: centre (not used), c0, c1, ...; p(u) with u = s (or y)\n";
  return t + table_text("table", "kRows", m.kTwoWord ? "kDegree + 3" : "kDegree + 2", m.pieces,
                        RowForm::centred, m.kRows);
}

std::string body(const Fit& fit, const TableModel& m) {
  std::string t = constants("kFormat", to_string(m.format), "kClass", fit.accuracy, "kEntryFormat",
                            to_string(m.entry_format), "kEntries", static_cast<int>(m.entries.size()),
                            "kIndexOperations", m.index_operations(), "kMasked", m.kMasked);
  t += "  // entry = base + clamp(bits of |y|, first, last) - first; upper: y's sign bit clear, lower: set; "
       "left: m = 0\n";
  t += constants("kUpperFirst", m.upper.first, "kUpperLast", m.upper.last, "kUpperBase", m.upper.base,
                 "kLowerFirst", m.lower.first, "kLowerLast", m.lower.last, "kLowerBase", m.lower.base);
  if (m.kMasked)
    t += constants("kLeftFirst", m.left.first, "kLeftLast", m.left.last, "kLeftBase", m.left.base);
  t += storage_text(fit, m) +
       "  static OUTGRAD_HD constexpr Entries<kEntries> entries() {\n    return {{\n      ";
  constexpr size_t kPerLine = 16;
  for (size_t k = 0; k < m.entries.size(); ++k)
    t += fmt::format("{}0x{:04x}", k == 0 ? "" : k % kPerLine == 0 ? ",\n      " : ", ", m.entries[k]);
  return t + "\n    }};\n  }\n";
}

std::string body(const Fit&, const ForwardModel& m) {
  const bool tail = m.kTailX != 0;
  std::string t;
  if (m.kMasked) t += constant("kXStar", m.kXStar, ": the least float with m = 1");
  t += constant("kXMin", m.kXMin,
                !tail       ? ": f rounds to its limit here and below"
                : m.kMasked ? ": f rounds to -0 below"
                            : ": f rounds to 0 below") +
       constant("kXMax", m.kXMax,
                m.kLevels ? ": f rounds to its limit from here on" : ": f rounds to x from here on");
  if (tail) t += constant("kTailX", m.kTailX, ": below, the tail table");
  if (m.kLevels) t += constant("kLevels", true);
  t += "  // core: row = bits(fma(x, kIndexScale, kIndexBias)) mod kRows, f = p(x - centre)\n";
  t += constants("kDegree", m.kDegree, "kRows", m.kRows, "kIndexScale", m.kIndexScale, "kIndexBias",
                 m.kIndexBias);
  if (m.kCompensated) {
    t += "  // core rows are evaluated with what fma(c1, u, c0) loses\n" + constant("kCompensated", true);
    if (m.kSlopeLow != 0)
      t += constant("kSlopeLow", m.kSlopeLow,
                    ": f'(0) less its nearest float; is added to every c1 of the core");
  }
  if (tail) {
    t += "  // tail: the same with its own constants, f = p(x - centre) times the last word of the row\n";
    t += constants("kTailDegree", m.kTailDegree, "kTailRows", m.kTailRows, "kTailIndexScale",
                   m.kTailIndexScale, "kTailIndexBias", m.kTailIndexBias);
  }
  Found found = worst_input_of(m.core);
  found.see(worst_input_of(m.tail));
  t += claim("kA", m.kA, "sup |p/f - 1|, proven" + found_at_x(found));
  t += table_text("table", "kRows", "kDegree + 2", m.core, RowForm::centred, m.kRows);
  return tail ? t + table_text("tail", "kTailRows", "kTailDegree + 3", m.tail, RowForm::scaled, m.kTailRows)
              : t;
}

std::string body(const Fit& fit, const RoundedForwardModel& m) {
  std::string t = constants("kFormat", to_string(m.format), "kClass", fit.accuracy);
  if (m.kMasked) t += constant("kXStar", m.kXStar, ": the least float with m = 1");
  if (m.kPlain) {
    t += "  // f = p(u), with u of v in place of w\n";
    t += constants("kPlain", m.kPlain);
  }
  if (std::isfinite(m.kEnd)) t += constant("kEnd", m.kEnd, ": v is this at the most where it enters f");
  t += constant("kXMin", m.kXMin,
                m.kMasked ? ": v = max(x, kXMin); f rounds to -0 here and below"
                          : ": v = max(x, kXMin); f rounds to its limit here and below");
  t += constant("kXMax", m.kXMax,
                m.kEnd == m.kXMax ? ": w = min(v, kXMax); f rounds to its limit from here on"
                : m.kPlain        ? ": w = min(v, kXMax); f rounds to x from here on, and p is v"
                                  : ": w = min(v, kXMax); f rounds to x from here on, and p is 1");
  if (!m.kPlain) t += constant("kTie", m.kTie, ": f = v p + kTie, with the sign of x");
  if (m.kPull != 0) t += constant("kPull", m.kPull, ": p's c0 is multiplied by v less kPull of |v|");
  t += "  // q = fma(w, kIndexScale, kIndexBias), row = bits(q) mod kRows, u = w - (q - "
       "kIndexBias)/kIndexScale\n";
  t += constants("kRows", m.kRows, "kWords", int{RoundedForwardModel::kWords}, "kCoreFirst", m.kCoreFirst,
                 "kCoreRows", m.kCoreRows, "kIndexScale", m.kIndexScale, "kIndexBias", m.kIndexBias,
                 "kQuarticShift", m.kQuarticShift);
  const std::string error = m.kPlain ? "sup |p/f - 1|" : "sup |x p/f - 1|";
  t += claim("kA", m.kA, error + " for x >= kXMin, proven" + found_at_x(worst_input_of(m.pieces)));
  t +=
      claim("kCoreA", m.kCoreA,
            "the same over the rows from kCoreFirst on" + found_at_x(worst_input_of(m.pieces, m.kCoreFirst)));
  t += "  // a row: c0, c1, c2, c3; p(u), where the bits of c3, shifted left by kQuarticShift, are those of "
       "c4\n";
  return t + table_text("table", "kRows", "kWords", m.pieces, RowForm::rounded, m.kRows);
}

/// Claims with the bound itself as note, named by `first` and on.
template <size_t kCount>
std::string numbered_claims(const std::string& prefix, int first, const std::array<double, kCount>& bounds) {
  std::string t;
  for (const double bound : bounds)
    t += claim(fmt::format("{}{}", prefix, first++).c_str(), bound,
               fmt::format("{:.6f}", kernels::decimals_up(bound, 6)));
  return t;
}

std::string body(const Fit& fit, const CodeModel& m) {
  std::string t = constant("kClass", fit.accuracy);
  t += fmt::format("  // kLo <= f'(x) <= kHi for {}\n", limited(fit) ? "|x| <= kXLimit" : "every x");
  t += constants("kLo", m.kLo, "kHi", m.kHi);
  if (limited(fit)) {
    t += "  // proven bounds over |x| <= kXLimit, given kG: g is the f'(x) that the caller computes in fp32 "
         "and has coded\n";
    t += claim("kG", m.kG, "what the caller promises: sup |g - f'(x)|");
  } else {
    t += "  // proven bounds over every finite f32 x; g is that of kernels/code.h\n";
    t += claim("kG", m.kG, "sup |g - f'(x)|");
  }
  t += "  // of an exact code of so many bits: sup |what the code of x stands for - f'(x)|\n";
  t += numbered_claims("kT", 1, m.kT);
  t += "  // of a dithered code: the same, and sup |its mean over all dithers - f'(x)|\n";
  return t + numbered_claims("kDithered", 2, m.kDithered) + claim("kBias", m.kBias, "of 2 bits and of 3");
}

std::string body(const Fit& fit, const Fp8Model& m) {
  std::string t = constants("kClass", fit.accuracy, "kCode", m.code, "kFit", m.fit);
  t += "  // f(x) where f'(x) is least, left of f's minimum, and greatest\n";
  t += constants("kLeastAt", m.kLeastAt, "kGreatestAt", m.kGreatestAt);
  t += "  // proven over every finite x; g is that of kFit at the library's f32 y and mask bit of x\n";
  t += claim("kG", m.kG, "sup |g - f'(x)|");
  t += "  // proven over every finite x at any scale: what is kept stands for f'(x) within half of the "
       "table's longest part and kRoom (kernels/fp8.h)\n";
  t += claim("kRoom", m.kRoom, "the errors of g, and rounding");
  t += "  // of y in any format with a -0, at any scale, with so many bits beside it: sup |what is kept "
       "stands for - f'(x)| over every finite x\n";
  t += numbered_claims("kSignT", 0, m.kSignT);
  const auto scales = [&](const char* format, const std::string& prefix, const Fp8Model::Scales& s,
                          const char* blocks = nullptr) {
    t += fmt::format(
        "  // of y in {} with so many bits beside it: sup |what is kept stands for - f'(x)| over every "
        "finite x and all scales from Least to Most\n",
        format);
    if (blocks != nullptr) t += fmt::format("  // of blocks, as {} have\n", blocks);
    t += constants((prefix + "Least").c_str(), s.least, (prefix + "Most").c_str(), s.most);
    t += numbered_claims(prefix + "T", 0, s.kT);
  };
  scales("e4m3", "kE4m3", m.e4m3);
  scales("e5m2", "kE5m2", m.e5m2);
  scales("int8", "kInt8", m.int8);
  scales("mxfp4", "kMxfp4", m.mxfp4, "those with amax below 1");
  scales("nvfp4", "kNvfp4", m.nvfp4, "those with amax below 1 and a normal scale");
  return t;
}

}  // namespace

std::string emit_header(const Fit& fit, const std::string& fit_path) {
  // A backslash at its end would make the next line part of the comment, with a blank behind it too.
  const bool plain = std::all_of(fit_path.begin(), fit_path.end(), [](char c) {
    return c >= ' ' && c <= '~' && c != '\\' && c != '"' && c != '?';
  });
  if (fit_path.empty() || !plain || fit_path.back() == ' ')
    throw kernels::SpecError(fmt::format(
        "{}: this path cannot stand in a header: printable characters other than \\, \" and ?", fit_path));
  std::string t = "// GENERATED by outgrad emit. DO NOT EDIT.\n";
  t += fmt::format("// command: ./outgrad emit {}\n// spec sha256: {}\n", fit_path, fit.spec_sha256);
  t += "#pragma once\n\n#include \"kernels/table.h\"\n\nnamespace outgrad::kernels::generated {\n\n";
  t += fmt::format("struct {} {{\n", type_name(fit.name));
  t += constants("kName", fit.name, "kActivation", fit.activation, "kFunction", fit.function);
  t += "  // found: the largest error among the inputs that were looked at, and where it is; it proves "
       "nothing of the other inputs\n";
  if (limited(fit)) t += claim("kXLimit", kExpressionDomain, "the claims are about |x| <= kXLimit alone");
  t += std::visit([&](const auto& model) { return body(fit, model); }, fit.model);
  return t + "};\n\n}  // namespace outgrad::kernels::generated\n";
}

}  // namespace outgrad::approx
