// Writes the theorems about the rows' ranges of x.
#include "approx/proof/coq_index.h"

#include "approx/function/composite.h"
#include "approx/proof/coq_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

namespace outgrad::approx::coq {
namespace {

/// Phi at an end of a range is given to so many bits, and proven with so many.
constexpr int kEndBits = 80, kEndProofBits = 100;
/// Places of what is asked of a coordinate and of a y, and units in the last of them by which it is on the
/// safe side. The ranges of the core are wider than the kernel needs by far more; those of the left segment
/// end at powers of two, but a double outward from where f is one.
constexpr int kCorePlaces = 50, kLeftPlaces = 70;
constexpr int kCoreMargin = 64, kLeftMargin = 2;

std::string range_text(const Piece& piece) {
  const auto [lo, hi] = piece.outer_range();
  if (piece.left_tail && piece.right_tail) return "True";
  return piece.left_tail    ? "x <= " + exact(hi)
         : piece.right_tail ? exact(lo) + " <= x"
                            : between(lo, "x", hi);
}

std::string written_by(const std::string& what) {
  return fmt::format("(* {}. Written by outgrad certify --coq. *)\n\n", what);
}

/// The lemmas end_0, end_1, ...: Phi at the ends of ranges.
struct Ends {
  const KnownActivation of;
  std::string text = {};
  std::map<Real, int> places = {};

  std::string at(const Real& x) {
    const auto [entry, is_new] = places.emplace(x, static_cast<int>(places.size()));
    const std::string name = fmt::format("end_{}", entry->second);
    if (is_new)
      text += fmt::format("Lemma {} : Rabs (Phi {} - {}) <= {}.\nProof. prove_anchor {}%positive. Qed.\n",
                          name, operand(x), operand(nearest(of.cdf(x), kEndBits)),
                          operand(power_of_2(-kEndBits)), kEndProofBits);
    return name;
  }
};

/// What the kernel may ask the row for: what the coordinate, or y, is at the ends of the range, a little
/// inward.
struct Demand {
  std::string least = "None", greatest = "None";
  [[nodiscard]] std::string pair() const { return fmt::format("({}, {})", least, greatest); }
};

std::string places(const Real& r, int bits) {
  return fmt::format("Some (places {} ({}))", bits, exact(ldexp(r, bits)));
}
std::string least_of(const Real& r, int bits, int margin) {
  return places(above(r, bits) + margin * power_of_2(-bits), bits);
}
std::string greatest_of(const Real& r, int bits, int margin) {
  return places(below(r, bits) - margin * power_of_2(-bits), bits);
}

/// What is asked of the rows in the core and in the left segment, row by row, with the proofs.
class Demands {
 public:
  explicit Demands(const Fit& fit)
      : core(static_cast<size_t>(fit.as<BackwardModel>()->kRows)), left(core), ends{known(fit.function)},
        x_star_(Composite(activation_from_expression(fit.function)).x_star().mid()), y_star_(f_at(x_star_)) {
    for (const Piece& piece : fit.as<BackwardModel>()->pieces) add(piece);
  }

  /// The demands of all rows, and how a row's case is proven.
  struct List {
    explicit List(size_t rows) : demands(rows, "nothing"), cases(rows, "now apply none in D") {}
    std::vector<std::string> demands, cases;
    [[nodiscard]] std::string dispatch() const {
      std::string text;
      for (const std::string& one : cases) text += fmt::format("  destruct row as [|row]; [{}|].\n", one);
      return text + "  destruct row; now apply none in D.\n";
    }
  };
  List core, left;
  Ends ends;
  std::string lemmas;

 private:
  [[nodiscard]] Real f_at(const Real& x) const { return x * ends.of.cdf(x); }

  void add(const Piece& piece) {
    const bool in_core = piece.region == Region::core;
    std::string proof;
    const Demand demand = in_core ? in_coordinate(piece, proof) : in_y(piece, proof);
    List& list = in_core ? core : left;
    list.demands.at(static_cast<size_t>(piece.row)) = demand.pair();
    list.cases.at(static_cast<size_t>(piece.row)) = fmt::format("now apply row_{}", piece.row);
    lemmas += fmt::format(
        "Lemma row_{0} x : {1}asked (nth {0} {2} nothing) ({3}) -> range {0} x.\nProof.\n  intros {4}[L U]. "
        "cbv [nth {2} fst snd] in L, U.\n{5}Qed.\n",
        piece.row, in_core ? "" : "x < x_star -> ", in_core ? "core" : "left",
        in_core ? "coordinate x" : "f x", in_core ? "" : "X ", proof);
  }

  /// The range has an upper and a lower end, which are proven one after the other, or one of them.
  static const char* first(const Piece& p) { return p.left_tail || p.right_tail ? "  " : "  split.\n  - "; }
  static const char* second(const Piece& p) { return p.left_tail || p.right_tail ? "" : "  - "; }

  Demand in_coordinate(const Piece& piece, std::string& proof) {
    const auto [lo, hi] = piece.outer_range();
    const auto side = [&](const Real& x) { return x < x_star_ ? "left" : "right"; };
    const auto coordinate = [&](const Real& x) {
      return Real((x < x_star_ ? -1 : 1) * sqrt(abs(f_at(x) - y_star_)));
    };
    Demand demand;
    if (!piece.left_tail) {
      demand.least = least_of(coordinate(lo), kCorePlaces, kCoreMargin);
      proof += fmt::format("{}apply from_coordinate with (2 := L). apply {}_below; by_value {}.\n",
                           first(piece), side(lo), ends.at(lo));
    }
    if (!piece.right_tail) {
      demand.greatest = greatest_of(coordinate(hi), kCorePlaces, kCoreMargin);
      proof += fmt::format("{}apply to_coordinate with (2 := U). apply {}_above; by_value {}.\n",
                           piece.left_tail ? first(piece) : second(piece), side(hi), ends.at(hi));
    }
    return demand;
  }

  /// y falls as x rises.
  Demand in_y(const Piece& piece, std::string& proof) {
    const auto [lo, hi] = piece.outer_range();
    Demand demand;
    if (!piece.left_tail) {
      demand.greatest = greatest_of(f_at(lo), kLeftPlaces, kLeftMargin);
      proof += fmt::format("{}apply left_from with (3 := U); by_value {}.\n", first(piece), ends.at(lo));
    }
    demand.least = least_of(f_at(hi), kLeftPlaces, kLeftMargin);
    proof += fmt::format("{}apply left_to with (2 := L); [by_value {}|exact X].\n",
                         piece.left_tail ? first(piece) : second(piece), ends.at(hi));
    return demand;
  }

  const Real x_star_, y_star_;
};

}  // namespace

WitnessScript ranges_script(const Fit& fit) {
  std::vector<const Piece*> rows;
  for (const Piece& piece : fit.as<BackwardModel>()->pieces) rows.push_back(&piece);
  std::string ranges, cases;
  for (const Piece* piece : rows) ranges += fmt::format("  | {}%nat => {}\n", piece->row, range_text(*piece));
  std::ranges::stable_sort(rows, {}, &Piece::x_lo);
  for (const Piece* piece : rows) {
    const std::string chosen = fmt::format("exists {}%nat. cbv [range]. {}.", piece->row,
                                           piece->left_tail && piece->right_tail ? "trivial" : "lra");
    cases += piece == rows.back() ? "  " + chosen + "\n"
                                  : fmt::format("  destruct (Rle_dec x {}). {{ {} }}\n",
                                                operand(piece->outer_range().second), chosen);
  }
  return {
      fit.name + "_ranges.v",
      written_by(fmt::format("The x of the rows of {}, tails included; they are the whole line", fit.name)) +
          fmt::format(
              "From Coq Require Import Reals Lra.\nOpen Scope R_scope.\n\n"
              "Definition range (row : nat) (x : R) : Prop :=\n  match row with\n{}  | _ => False\n  end.\n\n"
              "Theorem ranges_cover x : exists row, range row x.\nProof.\n{}Qed.\n",
              ranges, cases),
      0, 0, 'x'};
}

WitnessScript index_script(const Fit& fit) {
  const Demands asked(fit);
  return {fit.name + "_index.v",
          written_by(fmt::format(
              "The row that the kernel of {} picks for y is one whose range holds the x that y is of",
              fit.name)) +
              fmt::format(
                  R"(From Coq Require Import Reals ZArith List SpecFloat Lra.
From Flocq Require Import Core IEEE754.BinarySingleNaN.
From Coquelicot Require Import Coquelicot.
From Interval Require Import Tactic.
From Outgrad Require Import Calculus Activation BranchPoint Row Format Kernel Index {name}_kernel
  {name}_ranges.
Import ListNotations.
Open Scope Z_scope.

(* What each row is asked for at most: in the core of coordinates, in the left segment of y. *)
Definition core : list demand := Eval vm_compute in [
  {core}].
Definition left : list demand := Eval vm_compute in [
  {left}].

Lemma asked_for : all_fit kernel core left {format} = true.
Proof. vm_cast_no_check (eq_refl true). Qed.

Open Scope R_scope.

(* Phi at the ends of the ranges. *)
{ends}
{lemmas}
Lemma in_core row x : asked (nth row core nothing) (coordinate x) -> range row x.
Proof.
  intros D.
{core_cases}Qed.
Lemma in_left row x : x < x_star -> asked (nth row left nothing) (f x) -> range row x.
Proof.
  intros X D.
{left_cases}Qed.

(* y: the number of the format with the pattern p; m: the branch bit. *)
Theorem index_in_range p m x : (0 <= p < 65536)%Z ->
  let y := of_pattern {format} p in is_finite_SF y = true ->
  (if in_left_segment kernel y m then x < x_star /\ f x = SF2R radix2 (variable kernel y m)
   else coordinate x = SF2R radix2 (variable kernel y m) \/ coordinate x = exact_coordinate kernel y m) ->
  range (Z.to_nat (row_of kernel y m)) x.
Proof. exact (picked kernel core left {format} range asked_for in_core in_left p m x). Qed.
)",
                  fmt::arg("name", fit.name),
                  fmt::arg("format", Shape(fit.as<BackwardModel>()->format).arguments()),
                  fmt::arg("core", fmt::join(asked.core.demands, ";\n  ")),
                  fmt::arg("left", fmt::join(asked.left.demands, ";\n  ")), fmt::arg("ends", asked.ends.text),
                  fmt::arg("lemmas", asked.lemmas), fmt::arg("core_cases", asked.core.dispatch()),
                  fmt::arg("left_cases", asked.left.dispatch())),
          0, 0, 'x'};
}

WitnessScript rows_script(const Fit& fit, const std::vector<int>& rows) {
  std::string modules, within;
  // a row that is not asked for has this proof
  std::vector<std::string> cases(static_cast<size_t>(fit.as<BackwardModel>()->kRows), "easy.");
  for (const Piece& piece : fit.as<BackwardModel>()->pieces) {
    if (!rows.empty() && std::ranges::find(rows, piece.row) == rows.end()) continue;
    const auto [lo, hi] = piece.outer_range();
    const std::string row = fmt::format("{}_row_{}", fit.name, piece.row);
    const auto bound = [&](const std::string& coordinate) {
      return fmt::format("Rabs ({0}.p ({1}) - f' x) <= {0}.A", row, coordinate);
    };
    modules += " " + row;
    within += fmt::format("  | {}%nat => {}", piece.row, bound(coordinate_of(piece)));
    if (piece.right_tail)
      within += fmt::format(" \\/ {} <= x /\\ {}", exact(hi),
                            bound(held_coordinate_of(piece, fit.as<BackwardModel>()->kYMax)));
    within += "\n";
    std::string proof = piece.left_tail || piece.right_tail ? fmt::format("apply {}.fit_error; lra", row)
                                                            : fmt::format("exact ({}.fit_error x H)", row);
    if (piece.right_tail)
      proof = fmt::format(
          "destruct (Rle_dec x {}); [left; {}|right; split; [lra|apply {}.fit_error_far_right; lra]]",
          operand(hi), proof, row);
    if (piece.left_tail)
      proof = fmt::format("destruct (Rle_dec {} x); [{}|{}apply {}.fit_error_far_left; lra]", operand(lo),
                          proof, piece.right_tail ? "left; " : "", row);
    cases.at(static_cast<size_t>(piece.row)) = fmt::format("cbv [range within_A]; intros H. {}.", proof);
  }
  std::string proofs;
  for (const std::string& one : cases) proofs += fmt::format("  destruct row as [|row]. {{ {} }}\n", one);
  return {
      fit.name + "_rows.v",
      written_by(fmt::format("The rows of {} have errors within A over their ranges", fit.name)) +
          fmt::format(
              "From Coq Require Import Reals Lra.\nFrom Outgrad Require Import Activation BranchPoint Row "
              "{}_ranges.\nFrom Outgrad Require{}.\n"
              "Open Scope R_scope.\n\nDefinition within_A (row : nat) (x : R) : Prop :=\n  match row "
              "with\n{}  | _ => {}\n  end.\n\n"
              "Theorem rows_within_A row x : range row x -> within_A row x.\nProof.\n{}  intros [].\nQed.\n",
              fit.name, modules, within, rows.empty() ? "False" : "True", proofs),
      0, 0, 'x'};
}

}  // namespace outgrad::approx::coq
