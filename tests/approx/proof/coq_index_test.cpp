// Coq runs the kernel's index arithmetic: at some numbers of bf16 no row is asked for an x outside its range,
// and each constant of the index, changed a little, and a range that is a little shorter, are refused. The
// whole format is in coq_test.cpp.
#include "approx/proof/coq_index.h"

#include "approx/proof/coq_kernel.h"
#include "tests/approx/proof/coq_folder.h"
#include "tests/approx/shared.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <regex>
#include <string>
#include <vector>

namespace outgrad::approx::coq {
namespace {

/// `text` from `begin` on, as far as `end`.
std::string cut_out(const std::string& text, const std::string& begin, const std::string& end) {
  const std::size_t from = text.find(begin), to = text.find(end, from + begin.size());
  EXPECT_TRUE(from != std::string::npos && to != std::string::npos) << begin;
  return text.substr(from, to - from);
}

using CoqIndex = CoqFolder;

/// A fit whose kernel is that of gelu_bf16 but for one thing, or whose rows have ranges that are.
struct Variant {
  std::string what;
  std::function<void(Fit&)> change;
};
Piece& piece_of(Fit& fit, std::size_t row) { return fit.as<BackwardModel>()->pieces.at(row); }
const std::vector<Variant> kVariants = {
    {"scale", [](Fit& fit) { fit.as<BackwardModel>()->kIndexScale *= 1.01F; }},
    {"bias", [](Fit& fit) { fit.as<BackwardModel>()->kIndexBias += 1; }},
    {"base", [](Fit& fit) { fit.as<BackwardModel>()->kLeftBase += 1; }},
    {"knee", [](Fit& fit) { fit.as<BackwardModel>()->kLeftKnee += 1; }},
    {"first left row", [](Fit& fit) { fit.as<BackwardModel>()->kLeftRow += 1; }},
    {"left y", [](Fit& fit) { fit.as<BackwardModel>()->kLeftY *= 0.5F; }},
    {"y hi", [](Fit& fit) { fit.as<BackwardModel>()->kYHi -= 0x1p-9F; }},
    {"y hi", [](Fit& fit) { fit.as<BackwardModel>()->kYHi -= 0x1p-7F; }},
    // Ranges, by less than a hundredth; at the end of an octave on the left, which is a y of the format, by
    // less than a millionth.
    {"upper end", [](Fit& fit) { piece_of(fit, 5).x_hi -= Real(0.008); }},
    {"lower end", [](Fit& fit) { piece_of(fit, 6).x_lo += Real(0.008); }},
    {"upper end of the row of x*", [](Fit& fit) { piece_of(fit, 1).x_hi -= Real(0.008); }},
    {"lower end of a row on the left", [](Fit& fit) { piece_of(fit, 14).x_lo += Real(0x1p-24); }},
};

/// `fits` of Coq: the patterns next to the y where the kernel goes from row 5 to row 6, from row 1 to row 2,
/// and from row to row in the left segment.
constexpr const char* kFits =
    "Definition fits := forallb (fun first => rows_fit kernel core left 8 128 first 6)\n"
    "  [16160; 48672; 48254; 48510; 48382; 48318; 48574; 48638].\n";

/// The module `name`: the kernel and what its rows are asked for at most.
std::string module(const std::string& name, const Fit& fit) {
  return fmt::format("Module {}.\n{}{}{}End {}.\n", name,
                     cut_out(kernel_script(fit, "").text, "Definition kernel", "(* "),
                     cut_out(index_script(fit).text, "Definition core", "Lemma asked_for"), kFits, name);
}

/// That row 5 is asked for nothing beyond the range in NAME_ranges.v, as in NAME_index.v.
WitnessScript row_lemma(const Fit& fit) {
  const std::string text = index_script(fit).text, lemma = cut_out(text, "Lemma row_5 ", "Lemma row_6 ");
  std::string part = text.substr(0, text.find("Lemma asked_for")) + "Open Scope R_scope.\n";
  static const std::regex kEnd(R"(by_value (end_\d+))");
  for (std::sregex_iterator m(lemma.begin(), lemma.end(), kEnd), none; m != none; ++m)
    part += cut_out(text, "Lemma " + (*m)[1].str() + " ", "Lemma ");
  return {"One_row.v", part + lemma};
}

// The library takes 20 s of a processor, so that what needs it is one test.
TEST_F(CoqIndex, NightlyAcceptsSomeNumbersAndRefusesWhatIsALittleWrong) {
  const Fit fit = committed("gelu_bf16");
  ASSERT_TRUE(has_library(fit.function, false));
  EXPECT_TRUE(accepts(ranges_script(fit)));
  EXPECT_TRUE(accepts(kernel_script(fit, "")));

  std::string modules =
      "From Coq Require Import ZArith List SpecFloat.\nFrom Flocq Require Import Core.\nFrom Outgrad Require "
      "Import Kernel Index.\n"
      "Import ListNotations.\nOpen Scope Z_scope.\n" +
      module("deployed", fit);
  std::string lemmas =
      "Lemma deployed_fits : deployed.fits = true.\nProof. vm_cast_no_check (eq_refl true). Qed.\n";
  for (std::size_t i = 0; i < kVariants.size(); ++i) {
    Fit other = fit;
    kVariants[i].change(other);
    modules += fmt::format("(* {} *)\n", kVariants[i].what) + module(fmt::format("other_{}", i), other);
    lemmas += fmt::format(
        "Lemma other_{0}_does_not : other_{0}.fits = false.\nProof. vm_cast_no_check (eq_refl false). Qed.\n",
        i);
  }
  EXPECT_TRUE(accepts({"Numbers.v", modules + lemmas}));
  EXPECT_TRUE(
      refuses({"Numbers.v",
               modules + "Lemma no : other_0.fits = true.\nProof. vm_cast_no_check (eq_refl true). Qed.\n"},
              kUnequal));

  // What the row may be asked for is within its range; what reaches a millionth beyond is not.
  EXPECT_TRUE(accepts(row_lemma(fit)));
  Fit wider = fit;
  piece_of(wider, 5).x_hi += Real(1e-6);
  EXPECT_TRUE(refuses(row_lemma(wider), "Cannot find witness"));
}

}  // namespace
}  // namespace outgrad::approx::coq
