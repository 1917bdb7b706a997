#include "approx/proof/coq.h"

#include "approx/proof/coq_index.h"
#include "approx/proof/coq_kernel.h"
#include "approx/proof/coq_text.h"
#include "kernels/support/files.h"
#include "tests/approx/proof/coq_folder.h"
#include "tests/approx/shared.h"
#include "tests/refusal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <ranges>
#include <regex>
#include <string>
#include <vector>

namespace outgrad::approx::coq {
namespace {

const Piece& row(const Fit& fit, int k) { return fit.as<BackwardModel>()->pieces.at(static_cast<size_t>(k)); }

/// The number that the text begins with, "n / 2 ^ k" or "n"; exact where that is a double.
double value(const std::string& begins) {
  const std::string text = begins.substr(0, begins.find_first_of(";<"));
  const size_t slash = text.find(" / 2 ^ ");
  const double n = std::stod(text);
  return slash == std::string::npos ? n : std::ldexp(n, -std::stoi(text.substr(slash + 7)));
}

/// What the first group of the pattern matches in the text, once.
std::string found(const std::string& text, const std::string& pattern) {
  std::smatch m;
  return std::regex_search(text, m, std::regex(pattern)) ? m[1].str() : "nothing";
}

TEST(CoqScripts, StateTheBoundsCoefficientsAndRangesOfTheFit) {
  for (const char* name : {"gelu_bf16", "gelu_f16", "gelu_f32", "gelu_bf16_fast", "gelu_f16_stored",
                           "silu_bf16", "silu_f32", "gelu_tanh_bf16"}) {
    const Fit fit = committed(name);
    for (const Piece& piece : fit.as<BackwardModel>()->pieces) {
      const std::string text = script(fit, piece, name).text;
      const std::string coordinate = piece.coordinate == Coordinate::signed_root ? "coordinate x" : "f x";
      EXPECT_EQ(value(found(text, R"(Definition A := (.*)\.)")), piece.certified);
      EXPECT_EQ(value(found(text, R"(Definition p v := horner .* \(v - \(?([^)]*)\)?\)\.)")),
                static_cast<double>(piece.centre));
      std::string list = found(text, R"(Definition p v := horner \[(.*)\])") + ";";
      for (const float c : piece.c) {
        EXPECT_EQ(value(list), static_cast<double>(c)) << name << " " << piece.row;
        list.erase(0, list.find(';') + 1);
      }
      EXPECT_TRUE(list.empty()) << list;
      const std::string theorem = found(text, R"(Theorem fit_error x : (.*))");
      EXPECT_TRUE(theorem.ends_with(" -> Rabs (p (" + coordinate + ") - f' x) <= A.")) << theorem;
      EXPECT_LE(value(theorem), static_cast<double>(piece.x_lo));
      EXPECT_GE(value(found(theorem, R"(x <= (.*) ->)")), static_cast<double>(piece.x_hi));
      EXPECT_EQ(text.find("Theorem fit_error_far_left x : x <= ") != std::string::npos, piece.left_tail);
      EXPECT_EQ(text.find("Theorem fit_error_far_right x : ") != std::string::npos, piece.right_tail);
      EXPECT_EQ(text.find("Admitted"), std::string::npos);
    }
  }
}

TEST(CoqScripts, AreForAbsoluteErrorsOfActivationsThatTheLibraryHas) {
  const auto refused = [](const char* name) {
    return refusal_of([&] { (void)scripts(committed(name), name); });
  };
  for (const char* name : {"tanh_f16", "mish_bf16"})
    EXPECT_NE(refused(name).find("Coq's library (approx/proof/coq) has no file for "), std::string::npos)
        << name << ": " << refused(name);
  for (const char* name : {"gelu_f32_rel"})
    EXPECT_NE(refused(name).find("in absolute error"), std::string::npos) << name << ": " << refused(name);
  for (const char* name : {"gelu_forward_bf16", "gelu_code"})
    EXPECT_NE(refused(name).find("a backward fit is needed"), std::string::npos)
        << name << ": " << refused(name);
}

TEST(CoqScripts, OfARowWithoutEndAreRefused) {
  Fit fit = committed("silu_bf16");
  Piece& piece = fit.as<BackwardModel>()->pieces[2];
  piece.x_lo = -std::numeric_limits<float>::max();
  EXPECT_THROW((void)script(fit, piece, "silu_bf16"), kernels::SpecError);
}

TEST(CoqScripts, OfEvaluationSayWhatTheGappaScriptSays) {
  const WitnessScript gappa{
      "x.row_3.left.gappa",
      "# x, row 3: a bound.\n# More.\n@rnd = float<ieee_32, ne>;\ny = rnd(y_);\nd0 rnd= y - (-3b-2);\nd0_ = "
      "y - (-3b-2);\n"
      "r1 rnd= sqrt(d0);\nr1_ = sqrt(d0_);\nr2 = sqrt(3b-5);\nq3 = 5b-4 * (-r1) + 1b0;\np3 = rnd(q3);\nP3 = "
      "5b-4 * (-r1_) + 1b0;\nD3 = P3;\n"
      "{ r1 >= 3b-2 /\\ r1_ <= 3b-2 /\\ y in [-1b3, 0] -> p3 - P3 in [-7b-9, 7b-9] }\np3 - P3 -> D3;\n",
      3, 7 * 0x1p-9};
  const WitnessScript theorem = evaluation_script(
      gappa, "Variable _y_ : R.\nDefinition f1 := Float2 (-1) (3).\nDefinition s1 := p1.\n");
  EXPECT_EQ(theorem.name, "x_row_3_left_B.v");
  EXPECT_EQ(theorem.text.substr(0, theorem.text.find('\n')),
            "(* x, row 3: a bound. From here to the end of the section Gappa's proof, then what it says. "
            "Written by outgrad certify --coq. *)");
  EXPECT_NE(theorem.text.find(
                "Definition B := 7 / 2 ^ 9.\n\n"
                "Theorem evaluation_error y_ :\n"
                "  let y := fp32 y_ in\n"
                "  let d0 := fp32 (y - (-3 / 2 ^ 2)) in\n"
                "  let d0_ := y - (-3 / 2 ^ 2) in\n"
                "  let r1 := fp32 (sqrt d0) in\n"
                "  let r1_ := sqrt d0_ in\n"
                "  let q3 := (5 / 2 ^ 4) * (-r1) + 1 in\n"
                "  let p3 := fp32 q3 in\n"
                "  let P3 := (5 / 2 ^ 4) * (-r1_) + 1 in\n"
                "  3 / 2 ^ 2 <= r1 /\\ r1_ <= 3 / 2 ^ 2 /\\ -1 * 2 ^ 3 <= y <= 0 -> Rabs (p3 - P3) <= B.\n"),
            std::string::npos)
      << theorem.text;
  EXPECT_NE(theorem.text.find("cbv delta [f1 s1] in H"), std::string::npos);
}

TEST(CoqAssumptions, AreTheNamesThatBeginLinesWithTheirStatements) {
  EXPECT_EQ(assumptions("Axioms:\nb.two : forall x : R,\n  x = x\n\na.one\n  : R\n# c\n"),
            (std::map<std::string, std::string>{{"a.one", "R"}, {"b.two", "forall x : R, x = x"}}));
}

// A name of the list does not make another statement true: what is called excluded middle may say that 0 = 1.
TEST(CoqAssumptions, CountAsListedOnlyWithTheListedStatement) {
  const auto listed = assumptions(kernels::read_file(kSources + "/assumptions"));
  EXPECT_EQ(listed.at("Classical_Prop.classic"), "forall P : Prop, P \\/ ~ P");
  EXPECT_EQ(
      unlisted(assumptions("Axioms:\nClassical_Prop.classic\n  : forall P : Prop,\n    P \\/ ~ P\n"), listed),
      std::vector<std::string>{});
  EXPECT_EQ(unlisted(assumptions("Axioms:\nClassical_Prop.classic : 0 = 1\nx.y : False\n"), listed),
            (std::vector<std::string>{"Classical_Prop.classic, stated as: 0 = 1", "x.y"}));
}

// The ranges of a fit's rows are hypotheses of their theorems: a file of its own says that they are every x.
TEST(CoqScripts, SayThatTheRowsLeaveNoXOut) {
  const Fit fit = committed("gelu_bf16");
  const WitnessScript ranges = scripts(fit, "gelu_bf16").front().front();
  EXPECT_EQ(ranges.name, "gelu_bf16_ranges.v");
  EXPECT_EQ(ranges.bound, 'x');
  for (const Piece& piece : fit.as<BackwardModel>()->pieces) {
    const std::string range = found(ranges.text, "\\| " + std::to_string(piece.row) + "%nat => (.*)");
    const std::string theorem = found(script(fit, piece, "").text, R"(Theorem fit_error x : (.*) -> )");
    const std::string expected = piece.left_tail    ? theorem.substr(theorem.find("x <="))
                                 : piece.right_tail ? theorem.substr(0, theorem.find(" <= x") + 5)
                                                    : theorem;
    EXPECT_EQ(range, expected) << piece.row;
  }
}

// Without --rows, what is about the ranges is tied to the rows' theorems and, where the library has the
// kernel, to its index arithmetic.
TEST(CoqScripts, TieTheRangesToTheRowsAndToTheKernel) {
  const auto names = [](const Groups& groups) {
    std::vector<std::string> ranges;
    for (const WitnessScript& script : groups | std::views::join) {
      if (script.bound == 'x') ranges.push_back(script.name);
    }
    return ranges;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names(scripts(committed("gelu_f16"), "")),
            (Names{"gelu_f16_ranges.v", "gelu_f16_kernel.v", "gelu_f16_index.v", "gelu_f16_rows.v"}));
  EXPECT_EQ(names(scripts(committed("gelu_f16"), "", {3})), (Names{"gelu_f16_ranges.v", "gelu_f16_rows.v"}));
  EXPECT_EQ(names(scripts(committed("gelu_f32"), "")), (Names{"gelu_f32_ranges.v", "gelu_f32_rows.v"}));
  // T brings its own copy of the kernel, once.
  Groups groups = scripts(committed("gelu_bf16"), "");
  add(groups, exhaustion_scripts(committed("gelu_forward_bf16"), committed("gelu_bf16"), ""));
  EXPECT_EQ(names(groups), (Names{"gelu_bf16_ranges.v", "gelu_bf16_index.v", "gelu_bf16_rows.v"}));
  EXPECT_EQ(std::ranges::count(groups[0], "gelu_bf16_kernel.v", &WitnessScript::name), 1);
}

class Coq : public CoqFolder, public testing::WithParamInterface<std::string> {};

/// What coqc says where a bound does not hold.
constexpr const char* kNotBelow = "Numerical evaluation failed to conclude";

/// The row's theorem with another claim.
WitnessScript claiming(const Fit& fit, const Piece& piece, double claim) {
  Piece other = piece;
  other.certified = claim;
  // the polynomials of the proof are as near as before
  other.observed = claim - (piece.certified - piece.observed);
  return script(fit, other, fit.name);
}

// The library takes 10 s, so that what needs it is one test.
TEST_F(Coq, NightlyAcceptsRowsAndRefusesWhatIsFalse) {
  const Fit fit = committed("gelu_bf16"), fine = committed("gelu_f32");
  // A list of assumptions that lacks one.
  const std::string sources = folder() + "/sources";
  std::filesystem::copy(kSources, sources, std::filesystem::copy_options::recursive);
  kernels::write_file(sources + "/assumptions",
                      with(kernels::read_file(kSources + "/assumptions"),
                           "Classical_Prop.classic : forall P : Prop, P \\/ ~ P\n", ""));

  // Across x*, with B on both sides of the floor and at it; next to the right limit; left in y.
  Groups asked = scripts(fit, "gelu_bf16", {1, 11, 14});
  std::erase_if(asked[1], [](const WitnessScript& s) { return s.bound == 'B' && s.row != 1; });
  std::vector<std::string> order;
  CheckedFit checked = check_all(asked, known("x*normal_cdf(x)"), sources, folder(), kPatience, 2,
                                 [&](const Checked& file) { order.push_back(file.file); });
  for (const auto* files : {&checked.library, &checked.bounds}) {
    for (const Checked& file : *files) {
      EXPECT_EQ(file.outcome, Outcome::proven) << file.file << ": " << file.output;
      EXPECT_GT(file.cpu_s, 0.05);
      EXPECT_GT(file.peak_bytes, size_t{100} << 20);
      EXPECT_LT(file.peak_bytes, size_t{3} << 29);
    }
  }
  ASSERT_EQ(order.size(), checked.library.size() + 10);
  EXPECT_EQ(checked.bounds[0].theorems, (std::vector<std::string>{"ranges_cover"}));
  EXPECT_EQ(checked.bounds[9].theorems, (std::vector<std::string>{"rows_within_A"}));
  EXPECT_TRUE(std::ranges::equal(checked.bounds, order | std::views::drop(checked.library.size()), {},
                                 &Checked::file));
  EXPECT_EQ(checked.bounds[7].theorems, (std::vector<std::string>{"fit_error", "fit_error_far_right"}));
  EXPECT_EQ(checked.bounds[2].theorems, (std::vector<std::string>{"evaluation_error"}));
  // What the list lacks makes the result worthless, and nothing else does.
  EXPECT_EQ(checked.unlisted, (std::vector<std::string>{"Classical_Prop.classic"}));
  EXPECT_FALSE(checked.holds());
  checked.unlisted.clear();
  EXPECT_TRUE(checked.holds());

  EXPECT_TRUE(refuses(claiming(fit, row(fit, 1), 0.99 * row(fit, 1).observed), kNotBelow));
  EXPECT_TRUE(refuses(claiming(fit, row(fit, 11), 0.99 * row(fit, 11).observed), kNotBelow));
  // One unit in the last place of c0 is more than the room between A and the error in f32.
  Piece off = row(fine, 3);
  ASSERT_LT(off.certified - off.observed, 0x1p-33);
  EXPECT_TRUE(accepts(script(fine, off, "gelu_f32")));
  off.c[1] = std::nextafter(off.c[1], 2.0F);
  EXPECT_TRUE(refuses(script(fine, off, "gelu_f32"), kNotBelow));
  // The bound of B at a hundredth: Gappa finds no proof of it to write.
  WitnessScript rounding = gappa_scripts(fit.name, *fit.as<BackwardModel>(), row(fit, 14)).front();
  rounding.text = with(rounding.text, "] -> p", "] -> 100 * p");
  EXPECT_EQ(judge(rounding, 8).outcome == Outcome::proven, false);
  // A row's range that is cut to where its error is small, with that smaller claim: the row's own theorem is
  // true, and the ranges leave a gap.
  Fit cut = fit;
  Piece& middle = cut.as<BackwardModel>()->pieces.at(1);
  middle.x_lo = Real(-0.75), middle.x_hi = Real(-0.74609375);
  EXPECT_TRUE(refuses(ranges_script(cut), "Cannot find witness"));
  // Nor does it help to leave the range that is written down as it was: it has to be that of the row's
  // theorem.
  middle.observed = 0x1.7p-12, middle.certified = 0x1.8p-12;
  ASSERT_LT(middle.certified, row(fit, 1).certified);
  ASSERT_TRUE(accepts(script(cut, middle, "gelu_bf16")));
  EXPECT_TRUE(refuses(rows_script(fit, {1}), "The term \"H\" has type"));
  // A library with other definitions than the committed one proves nothing: here f' is that of another
  // function.
  kernels::write_file(sources + "/Gelu.v", with(kernels::read_file(kSources + "/Gelu.v"), "Phi x + x * phi x",
                                                "Phi x - x * phi x"));
  EXPECT_THROW((void)compile_library(sources, folder(), kPatience, known("x*normal_cdf(x)"), false),
               kernels::SpecError);
  // A limit that is reached decides nothing.
  const Checked hurried = judge(script(fit, row(fit, 1), "gelu_bf16"), 0.2);
  EXPECT_EQ(hurried.outcome, Outcome::undecided);
  EXPECT_EQ(hurried.output, "out of time");
}

// As above: across x*, next to the right limit, and left in y.
class CoqRows : public Coq {};
TEST_P(CoqRows, NightlyAreAcceptedAndWhatIsFalseIsRefused) {
  const Fit fit = committed(GetParam());
  Groups asked = scripts(fit, GetParam(), {1, 11, 15});
  std::erase_if(asked[1], [](const WitnessScript& s) { return s.bound == 'B' && s.row != 11; });
  (void)prove_all(asked, fit);
  for (const int k : {1, 11, 15})
    EXPECT_TRUE(refuses(claiming(fit, row(fit, k), 0.99 * row(fit, k).observed), kNotBelow));
}

INSTANTIATE_TEST_SUITE_P(Of, CoqRows, testing::Values("silu_bf16", "gelu_tanh_bf16"),
                         [](const auto& fit) { return fit.param; });

TEST_P(Coq, ExhaustiveAcceptsEveryRow) {
  const Fit fit = committed(GetParam());
  const CheckedFit checked = prove_all(scripts(fit, GetParam()), fit);
  const auto index = std::ranges::find(checked.bounds, GetParam() + "_index.v", &Checked::file);
  ASSERT_NE(index, checked.bounds.end());
  EXPECT_EQ(index->theorems, (std::vector<std::string>{"index_in_range"}));
  EXPECT_EQ(std::ranges::count(checked.bounds, 'A', &Checked::bound),
            std::ssize(fit.as<BackwardModel>()->pieces));
}

INSTANTIATE_TEST_SUITE_P(Committed, Coq,
                         testing::Values("gelu_bf16", "gelu_f16", "gelu_tanh_bf16", "gelu_tanh_f16",
                                         "silu_bf16", "silu_f16"),
                         [](const auto& fit) { return fit.param; });

}  // namespace
}  // namespace outgrad::approx::coq
