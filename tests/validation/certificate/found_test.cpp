// The inputs beside the bounds: committed headers state them for every bound, and another input or another
// figure is refused.
#include "validation/certificate/found.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "kernels/support/files.h"
#include "validation/certificate/deployed.h"
#include "validation/certificate/fit_bound.h"
#include "validation/certificate/storage_bound.h"
#include "validation/exact/activation.h"

namespace outgrad::validation {
namespace {

std::string committed_text(const std::string& name) {
  return kernels::read_file(OUTGRAD_SOURCE_DIR "/kernels/generated/" + name + ".h");
}

// Why the first finding does not hold that looks at inputs and fails; "" where all of them hold.
std::string refusal(const std::string& text) {
  const Header header = parse_header(text, "h.h");
  std::vector<Finding> findings;
  std::visit(
      [&]<class H>(const H& h) {
        if constexpr (!std::is_same_v<H, TableHeader> && !std::is_same_v<H, CodeHeader> &&
                      !std::is_same_v<H, Fp8Header>) {
          if (const auto found = prove_found(h)) findings.push_back(*found);
        }
        if constexpr (std::is_same_v<H, TableHeader>) findings = prove_storage(h);
        if constexpr (std::is_same_v<H, BackwardHeader>) {
          if (h.format != "f32") std::ranges::copy(prove_storage(h), std::back_inserter(findings));
        }
      },
      header);
  for (const Finding& finding : findings) {
    if (finding.verdict != Verdict::Holds) return finding.why;
  }
  return "";
}

// "NAME ... 2^B ...; found 2^F at y = INPUT": where F and INPUT stand in the text, and what they are.
struct Statement {
  std::string name;  // "kA", "row 3"
  size_t figure_at = 0, figure_size = 0, input_at = 0, input_size = 0;
  double bound = 0, figure = 0, input = 0;
  bool of_row() const { return name.starts_with("row "); }
};

std::vector<Statement> statements_of(const std::string& text) {
  static const std::regex form(
      R"((k[A-Z][A-Za-z]*|row [0-9]+)(?: = 0x[^ ]*  // |: A <= )2\^(-?[0-9.]+)[^\n]*)"
      R"(; found 2\^(-?[0-9.]+) at [xy] = (-?0x[0-9a-fp.+-]+))");
  std::vector<Statement> statements;
  for (std::sregex_iterator match(text.begin(), text.end(), form), end; match != end; ++match) {
    const auto at = [&](size_t group) { return static_cast<size_t>(match->position(group)); };
    const auto size = [&](size_t group) { return static_cast<size_t>(match->length(group)); };
    statements.push_back({(*match)[1], at(3), size(3), at(4), size(4), std::stod((*match)[2]),
                          std::stod((*match)[3]), std::stod((*match)[4])});
  }
  return statements;
}

std::vector<std::string> headers() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(OUTGRAD_SOURCE_DIR "/kernels/generated")) {
    if (!entry.path().filename().string().starts_with("tuned_")) names.insert(entry.path().stem().string());
  }
  return {names.begin(), names.end()};
}

// How far below its bound an error was found, in bits. T, O and R are enumerated. A polynomial's largest
// error lies where it was sampled, but for the rows of fits to storage ranges: there the proof of a clamp
// adds two distances.
double most_bits_below(const Statement& s, bool follows_g) {
  if (s.name == "kT" || s.name == "kO" || s.name == "kR") return 0.011;
  if (s.name == "kA" || s.name == "kCoreA" || s.of_row()) return follows_g ? 0.08 : 2.6;
  return s.name == "kB" ? 1000 : 2;  // B is about every real y of a row, and 16-bit formats store few of them
}

// Every bound but those of polynomials that equal g. What was found is below it, and not far below.
TEST(Found, EveryCommittedBoundHasItsInput) {
  static const std::regex bound_line(
      R"((k[A-Z][A-Za-z]*|row [0-9]+)(?: = 0x[^ ]*  // |: A <= )2\^(-?[0-9.]+)[^\n]*)");
  std::set<std::string> without;
  size_t bounds = 0;
  for (const std::string& name : headers()) {
    if (name.ends_with("_code") || name.ends_with("_fp8")) continue;  // they state no inputs
    const std::string text = committed_text(name);
    for (std::sregex_iterator match(text.begin(), text.end(), bound_line), end; match != end; ++match) {
      constexpr double kEqual = -48;
      const std::string bound = (*match)[1];
      if (bound.ends_with("From") || bound == "kRelative" || bound == "kAbsolute") continue;  // no bounds
      if (std::stod((*match)[2]) < kEqual) continue;
      ++bounds;
      if (match->str().find("; found 2^") == std::string::npos)
        without.insert(fmt::format("{}: {}", name, (*match)[1].str()));
    }
    const bool follows_g = text.find("kClass = \"stored") == std::string::npos &&
                           text.find("kClass = \"ulp:1\"") == std::string::npos;
    for (const Statement& s : statements_of(text)) {
      EXPECT_LE(s.figure, s.bound) << name << " " << s.name;
      EXPECT_GE(s.figure, s.bound - most_bits_below(s, follows_g)) << name << " " << s.name;
    }
  }
  EXPECT_GT(bounds, 2600u);
  // y + 1 is exact for every y of f16; and kTMin keeps every s away from that row.
  EXPECT_EQ(without, (std::set<std::string>{"elu_f16: kB", "gelu_bf16_ulp: row 13"}));
}

// The least change that two decimals show, up and down; and an input twice as large.
TEST(Found, AnotherFigureOrInputIsRefused) {
  for (const char* name : {"gelu_bf16", "gelu_f32", "gelu_f32_rel", "softplus_f32", "elu_bf16",
                           "gelu_forward_bf16", "gelu_e4m3_oracle"}) {
    const std::string text = committed_text(name);
    ASSERT_EQ(refusal(text), "") << name;
    int rows = 0;
    for (const Statement& s : statements_of(text)) {
      if (s.of_row() && ++rows > 4) continue;
      const auto replaced = [&](size_t at, size_t size, const std::string& with) {
        return std::string(text).replace(at, size, with);
      };
      for (const double step : {0.01, -0.01}) {
        const std::string why =
            refusal(replaced(s.figure_at, s.figure_size, fmt::format("{:.2f}", s.figure + step)));
        EXPECT_NE(why.find(fmt::format(", not 2^{:.2f}", s.figure + step)), std::string::npos)
            << name << " " << s.name << ": " << why;
      }
      const std::string why = refusal(replaced(s.input_at, s.input_size, fmt::format("{:a}", 2 * s.input)));
      EXPECT_NE(why, "") << name << " " << s.name;
      EXPECT_EQ(why.find('\n'), std::string::npos);
    }
  }
}

// Neighbouring rows of a fit overlap by 2^-22 of the largest coordinate, and a row's worst input may be its
// very end: next to x* that is far beyond the cell in the cell's own measure. Of four specifications no fit
// was written, for check took such an input for one of no row.
TEST(Found, ARowAnswersInTheWholeOfItsOverlap) {
  for (const char* name : {"gelu_f32", "gelu_bf16", "silu_f16_parity", "gelu_mxfp8"}) {
    const auto h = std::get<BackwardHeader>(parse_header(committed_text(name), "h.h"));
    const Activation& activation = activation_of(h.activation, h.function, h.masked);
    const double largest = deployed_s(h, h.y_max, true);
    int ends = 0;
    for (const Cell& cell : backward_cells(h)) {
      if (cell.left || cell.evaluated != Coordinate::root || !(cell.high < largest)) continue;
      const auto answers = [&](double share) {
        return fit_error_at(h, cell,
                            activation.inverse_signed_root(Interval(cell.high) + share * largest).middle())
            .has_value();
      };
      EXPECT_TRUE(answers(0x1p-22)) << name << " row " << cell.row;
      EXPECT_FALSE(answers(0x1p-19)) << name << " row " << cell.row;
      ++ends;
    }
    EXPECT_GE(ends, 4) << name;
  }
}

TEST(Found, AnEnclosureThatTellsTooLittleIsUndecided) {
  const FoundInput found{.given = true, .log2_error = -1, .at = 0.5};
  EXPECT_EQ(found_problem("A", found, "x = 0.5", Interval(0, 1), 1).verdict, Verdict::Undecided);
  EXPECT_EQ(found_problem("A", found, "x = 0.5", Interval(0.5), 1).verdict, Verdict::Holds);
  EXPECT_EQ(found_problem("A", found, "x = 0.5", Interval(0.25), 1).verdict, Verdict::Violated);
}

// A y that the format cannot store is no input.
TEST(Found, NightlyAnInputIsANumberOfTheFormat) {
  const std::string text = committed_text("gelu_bf16");
  for (const Statement& s : statements_of(text)) {
    if (text.substr(s.input_at - 4, 4) != "y = ") continue;
    const std::string why = refusal(
        std::string(text).replace(s.input_at, s.input_size, fmt::format("{:a}", s.input * (1 + 0x1p-20))));
    EXPECT_NE(why, "") << s.name;
  }
}

}  // namespace
}  // namespace outgrad::validation
