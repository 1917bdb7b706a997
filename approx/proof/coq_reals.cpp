// Finds the places between which T is proven, and writes them for Coq.
#include "approx/proof/coq_reals.h"

#include "approx/function/storage.h"
#include "approx/proof/coq_activation.h"
#include "approx/proof/coq_kernel.h"
#include "approx/proof/coq_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace outgrad::approx::coq {
namespace {

/// Places are multiples of 2^-kPointBits (place_bits in Continuum.v).
constexpr int kPointBits = 70;
/// From so far beyond where Continuum.v's tails begin there is one cell for all the rest: half an ulp has
/// room between.
constexpr double kBeyondTail = 0.5;
/// Several y share a cell only if this part of T is not used up, which is more than the intervals' ends are
/// off.
constexpr double kShared = 1 - 0x1p-20;

/// What all y of a cell have in common.
struct Cell {
  double lo, hi;  ///< f'
  double least, greatest;  ///< the kernel
  [[nodiscard]] double error() const { return std::max(greatest - lo, hi - least); }
};

/// places() of one side.
std::vector<std::string> places_of(const BackwardModel& model, const Composite& composite, double tail,
                                   const std::vector<StorageInterval>& intervals, bool right) {
  const auto tail_y = static_cast<double>(composite.value_at(Real(right ? tail : -tail)));
  std::vector<std::string> found{"star"};
  Cell cell{INFINITY, -INFINITY, INFINITY, -INFINITY};
  const StorageInterval* last = nullptr;
  for (const StorageInterval& i : intervals) {
    if (i.m != right || !std::isfinite(i.y)) continue;
    const auto g = static_cast<double>(deployed_gradient(model, i.y, right));
    const Cell joined{std::min(cell.lo, i.lo), std::max(cell.hi, i.hi), std::min(cell.least, g),
                      std::max(cell.greatest, g)};
    const bool cut = last != nullptr && last->y != i.y &&
                     (joined.error() > kShared * model.kT ||
                      (static_cast<double>(last->y) <= tail_y && static_cast<double>(i.y) > tail_y));
    if (cut) {
      const Real middle = (Real(static_cast<double>(last->y)) + Real(static_cast<double>(i.y))) / 2;
      const Real below = floor(ldexp(composite.argument_of(middle, right), kPointBits));
      // Outward: on the left the one above comes first.
      for (const Real& place : {right ? below : Real(below + 1), right ? Real(below + 1) : below})
        found.push_back(fmt::format("point ({})", exact(place)));
    }
    cell = cut ? Cell{i.lo, i.hi, g, g} : joined;
    last = &i;
  }
  found.emplace_back(right ? "far_right" : "far_left");
  return found;
}

}  // namespace

std::array<std::vector<std::string>, 2> places(const Fit& backward) {
  const auto& model = *backward.as<BackwardModel>();
  const Composite composite(activation_from_expression(backward.function));
  const std::vector<StorageInterval> intervals = storage_intervals(composite, model.format);
  const double tail = known(backward.function).tail_place() + kBeyondTail;
  return {places_of(model, composite, tail, intervals, false),
          places_of(model, composite, tail, intervals, true)};
}

WitnessScript reals_script(const Fit& backward, const std::vector<std::string>& ascending, bool right) {
  const auto& model = *backward.as<BackwardModel>();
  const std::string format = Shape(model.format).arguments();
  return {fmt::format("{}_reals_{}.v", backward.name, right ? 1 : 0),
          fmt::format(
              "(* {0} at the real numbers between two places {1} of x_star. *)\n\n"
              "From Coq Require Import Reals ZArith List.\nFrom Flocq Require Import Core.\n"
              "From Outgrad Require Import Activation BranchPoint Format Kernel Exhaustion {2}Series "
              "Continuum {0}_kernel.\n"
              "Import ListNotations.\nOpen Scope Z_scope.\n\n"
              "Definition places := [\n  {3}\n].\n\n"
              "Lemma covered : forall x, after ({4}) x -> before ({5}) x -> Rle_bool x_star x = {6} ->\n"
              "  in_format {7} (nearest {7} (f x)) -> total_error_at {7} kernel (F2R T) x.\n"
              "Proof.\n"
              "  intros x A B M V. apply check_places_correct with bf16_least {6} ({4}) places;\n"
              "    [exact bf16_least_sound|reflexivity|reflexivity|repeat split; discriminate|discriminate|\n"
              "    vm_cast_no_check (eq_refl true)|exact A|exact B|exact M|exact V].\nQed.\n",
              backward.name, right ? "right" : "left", known(backward.function).module,
              fmt::join(ascending.begin() + 1, ascending.end(), ";\n  "), ascending.front(), ascending.back(),
              right, format),
          0, model.kT, 'T'};
}

Groups reals_scripts(const Fit& backward, const std::string& path) {
  Groups groups{{kernel_script(backward, path)}, {}, {}};
  const auto& model = *backward.as<BackwardModel>();
  auto [left, right] = places(backward);
  std::ranges::reverse(left);
  groups[1] = {reals_script(backward, left, false), reals_script(backward, right, true)};
  groups[2].push_back(
      {backward.name + "_reals.v",
       fmt::format(R"((* {name} at every real number x whose f x, rounded to the format, is finite. *)

From Coq Require Import Reals ZArith SpecFloat.
From Flocq Require Import Core IEEE754.BinarySingleNaN.
From Outgrad Require Import Activation BranchPoint Format Kernel Exhaustion Continuum {name}_kernel
  {name}_reals_0 {name}_reals_1.
Open Scope Z_scope.

(* The total error; y: f x rounded to the format, as an fp32 number. *)
Theorem {name}_T_reals : forall x, in_format {format} (nearest {format} (f x)) ->
  (exists y, stands_for 24 128 y (nearest {format} (f x))) /\
  forall y, stands_for 24 128 y (nearest {format} (f x)) ->
    let g := evaluate_backward kernel y (Rle_bool x_star x) in
    is_finite_SF g = true /\ (Rabs (SF2R radix2 g - f' x) <= F2R T)%R.
Proof.
  intros x V. change (total_error_at {format} kernel (F2R T) x).
  destruct (Rle_bool_spec x_star x) as [R|L].
  - apply {name}_reals_1.covered; try exact V; try exact I; [exact R|now apply Rle_bool_true].
  - apply {name}_reals_0.covered; try exact V; try exact I; [apply Rlt_le, L|now apply Rle_bool_false].
Qed.
)",
                   fmt::arg("name", backward.name), fmt::arg("format", Shape(model.format).arguments())),
       0, model.kT, 'T'});
  return groups;
}

}  // namespace outgrad::approx::coq
