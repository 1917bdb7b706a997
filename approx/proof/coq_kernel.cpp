// Writes the kernel's operations and its table as terms of Coq.
#include "approx/proof/coq_kernel.h"

#include "approx/proof/coq_activation.h"
#include "approx/proof/coq_text.h"
#include "kernels/host/errors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace outgrad::approx::coq {
namespace {

/// Absolute values in one file: at most half a minute of coqc.
constexpr int kValuesPerFile = 2048;

/// As a number of Kernel.v.
std::string fp32_number(float value) {
  if (value == 0) return std::signbit(value) ? "S754_zero true" : "S754_zero false";
  const auto [integer, exponent] = integer_and_exponent(static_cast<double>(value));
  return fmt::format("number ({}) ({})", integer, exponent);
}

std::string table_row(std::vector<float> words, std::size_t count) {
  words.resize(count);  // a row of lower degree has zeros above it
  std::vector<std::string> numbers;
  for (const float word : words) numbers.push_back(fp32_number(word));
  return fmt::format("    [{}]", fmt::join(numbers, "; "));
}

/// How MODULESeries.v encloses f, up to the last of the absolute values that it is for.
struct Enclosure {
  const char* name;
  int last;
};
std::vector<Enclosure> enclosures(const Fit& backward) {
  const Format format = backward.as<BackwardModel>()->format;
  const Shape shape(format);
  if (format == Format::f16) return {{"f16_all", shape.magnitudes()}};
  return {{"bf16_least", shape.first_of(3 - shape.range)},
          {"bf16_near", shape.first_of(known(backward.function).near_power())},
          {"bf16_far", shape.magnitudes()}};
}

std::string imports(const Fit& forward, const Fit& backward, const std::string& more) {
  return fmt::format(
      "From Coq Require Import Reals ZArith Lia SpecFloat.\nFrom Flocq Require Import Core "
      "IEEE754.BinarySingleNaN.\n"
      "From Outgrad Require Import Activation BranchPoint Format Kernel Exhaustion Forward {}Series "
      "{}_kernel "
      "{}_kernel{}.\nOpen Scope Z_scope.\n",
      known(backward.function).module, forward.name, backward.name, more);
}

std::string kernel_text(const BackwardModel& m) {
  std::vector<std::string> rows;
  for (const Piece& piece : m.pieces) {
    std::vector<float> words = {piece.centre};
    words.insert(words.end(), piece.c.begin(), piece.c.end());
    rows.push_back(table_row(words, static_cast<std::size_t>(m.words())));
  }
  const auto [integer, exponent] = integer_and_exponent(m.kT);
  return fmt::format(R"(Definition kernel : header := Eval vm_compute in {{|
  rows := {};
  y_hi := {}; y_lo := {}; t_min := {}; s_min := {}; y_max := {};
  index_scale := {}; index_bias := {}; right_s := {};
  left_y := {}; left_bits := {}; left_row := {}; left_knee := {}; left_base := {};
  table := [
{}
  ]
|}}.

(* {} *)
Definition T : float radix2 := Float radix2 {} ({}).
)",
                     m.kRows, fp32_number(m.kYHi), fp32_number(m.kYLo), fp32_number(m.kTMin),
                     m.kHasLeft ? "S754_infinity true" : fp32_number(m.kSMin), fp32_number(m.kYMax),
                     fp32_number(m.kIndexScale), fp32_number(m.kIndexBias),
                     m.kHasRight ? fp32_number(m.kRightS) : "S754_infinity false",
                     m.kHasLeft ? fp32_number(m.kLeftY) : "S754_infinity false", m.kLeftBits, m.kLeftRow,
                     m.kLeftKnee, m.kLeftBase, fmt::join(rows, ";\n"), power_of_two(m.kT), integer, exponent);
}

std::string kernel_text(const RoundedForwardModel& m) {
  std::vector<std::string> rows;
  for (const Piece& piece : m.pieces) rows.push_back(table_row(piece.c, RoundedForwardModel::kWords));
  return fmt::format(R"(Definition forward : forward_header := Eval vm_compute in {{|
  f_rows := {};
  x_star_32 := {}; x_min := {}; x_max := {}; tie := {}; tie_is_subnormal := {};
  f_index_scale := {}; f_index_bias := {}; minus_step := {}; quartic_shift := {};
  f_table := [
{}
  ]
|}}.
)",
                     m.kRows, fp32_number(m.kXStar), fp32_number(m.kXMin), fp32_number(m.kXMax),
                     fp32_number(m.kTie), m.kTie < kernels::kLeastNormal, fp32_number(m.kIndexScale),
                     fp32_number(m.kIndexBias), fp32_number(-1.0f / m.kIndexScale), m.kQuarticShift,
                     fmt::join(rows, ";\n"));
}

/// The theorems, from covered_script() files whose ranges begin at these numbers.
WitnessScript theorems_script(const Fit& forward, const Fit& backward, const std::vector<int>& firsts) {
  const Shape shape(backward.as<BackwardModel>()->format);
  std::string files, cases;
  for (std::size_t k = 0; k < firsts.size(); ++k) {
    files += fmt::format(" {}_all_{}", backward.name, k);
    const std::string use = fmt::format("apply {}_all_{}.covered. lia.", backward.name, k);
    cases += k + 1 < firsts.size()
                 ? fmt::format("  destruct (Z.lt_ge_cases n {}). {{ {} }}\n", firsts[k + 1], use)
                 : fmt::format("  {}\n", use);
  }
  return {backward.name + "_all.v",
          fmt::format(R"((* {forward} and {backward} at every finite number x of their format. *)

{imports}
Lemma covered : forall n, 0 <= n < magnitudes {format} -> both_checked {format} forward kernel T n.
Proof.
  intros n H. change (magnitudes {format}) with {all} in H.
{cases}Qed.

(* The total error; y: f x rounded to the format, as an fp32 number. *)
Theorem {backward}_T : forall x, in_format {format} x ->
  (exists y, stands_for 24 128 y (nearest {format} (f x))) /\
  forall y, stands_for 24 128 y (nearest {format} (f x)) ->
    let g := evaluate_backward kernel y (Rle_bool x_star x) in
    is_finite_SF g = true /\ (Rabs (SF2R radix2 g - f' x) <= F2R T)%R.
Proof. apply exhausted with forward; [reflexivity|reflexivity|repeat split; discriminate|exact covered]. Qed.

(* x32: x as an fp32 number. *)
Theorem {forward}_right : forall x, in_format {format} x -> forall x32, stands_for 24 128 x32 x ->
  stands_for {format} (narrow {format} (evaluate_forward forward x32)) (nearest {format} (f x)) /\
  evaluate_mask forward x32 = Rle_bool x_star x.
Proof. apply exhausted with kernel T; [reflexivity|reflexivity|repeat split; discriminate|exact covered]. Qed.

(* One kernel after the other; y: what the first one stores. *)
Theorem {backward}_gradient : forall x, in_format {format} x -> forall x32, stands_for 24 128 x32 x ->
  let y := narrow {format} (evaluate_forward forward x32) in
  let g := evaluate_backward kernel (widen y) (evaluate_mask forward x32) in
  stands_for {format} y (nearest {format} (f x)) /\ is_finite_SF g = true /\
  (Rabs (SF2R radix2 g - f' x) <= F2R T)%R.
Proof. apply exhausted; [reflexivity|reflexivity|repeat split; discriminate|exact covered]. Qed.
)",
                      fmt::arg("forward", forward.name), fmt::arg("backward", backward.name),
                      fmt::arg("imports", imports(forward, backward, files)),
                      fmt::arg("format", shape.arguments()), fmt::arg("all", shape.magnitudes()),
                      fmt::arg("cases", cases)),
          0, backward.as<BackwardModel>()->kT, 'T'};
}

}  // namespace

bool is_described(const Fit& fit) {
  const auto* m = fit.as<BackwardModel>();
  return m != nullptr && known_activation(fit.function) && m->kMasked && !m->kRightBoth && !m->kHasBreaks &&
         m->kCentred && !m->kTwoWord && m->kScheme == kernels::kHorner;
}

bool has_kernel(const Fit& fit) {
  const auto* m = fit.as<BackwardModel>();
  return is_described(fit) && m->kHasLeft && !m->kHasRight &&
         (m->format == Format::f16 || m->format == Format::bf16);
}

WitnessScript constants_script(const Fit& fit) {
  const auto* backward = fit.as<BackwardModel>();
  return {
      fit.name + "_kernel.v",
      fmt::format("(* The constants and rows of {}, as the kernel in Coq computes with them. *)\n\nFrom "
                  "Coq Require Import ZArith List SpecFloat.\n"
                  "From Flocq Require Import Core.\nFrom Outgrad Require Import Kernel{}.\nImport "
                  "ListNotations.\nOpen Scope Z_scope.\n\n{}",
                  fit.name, backward != nullptr ? "" : " Forward",
                  backward != nullptr ? kernel_text(*backward) : kernel_text(*fit.as<RoundedForwardModel>())),
      0, backward != nullptr ? backward->kT : 0, 'T'};
}

WitnessScript kernel_script(const Fit& fit, const std::string& path) {
  const auto* backward = fit.as<BackwardModel>();
  const auto* forward = fit.as<RoundedForwardModel>();
  const Format format = backward != nullptr  ? backward->of_product() ? backward->product : backward->format
                        : forward != nullptr ? forward->format
                                             : Format::f32;
  if (!known_activation(fit.function)) throw kernels::SpecError(path, "function", no_theory_of(fit.function));
  if (format != Format::f16 && format != Format::bf16)
    throw kernels::SpecError(path, "kind",
                             "a fit in f16 or bf16, backward or rounded forward, is needed: Coq's library "
                             "has no other kernel");
  if (backward != nullptr && (!is_described(fit) || backward->kHasRight))
    throw kernels::SpecError(
        path, "backward",
        "a mask, cells of equal width, centred rows, Horner's scheme and no right segment are needed: Coq's "
        "library has no other kernel");
  if (backward != nullptr && backward->of_product() && !backward->kHasLeft)
    throw kernels::SpecError(path, "backward",
                             "the theorem of a gated pair needs a kernel with a left segment");
  return constants_script(fit);
}

WitnessScript covered_script(const Fit& forward, const Fit& backward, int k, int first, int last) {
  const std::vector<Enclosure> all = enclosures(backward);
  const char* const enclosing =
      std::ranges::find_if(all, [=](const Enclosure& e) { return last <= e.last; })->name;
  return {fmt::format("{}_all_{}.v", backward.name, k),
          fmt::format(
              "(* {0} and {1} at the absolute values {2} to {3} of their format, for both signs. *)\n\n{4}\n"
              "Lemma covered : forall n, {2} <= n < {5} -> both_checked {6} forward kernel T n.\n"
              "Proof. apply both_checked_range with {7}. exact {7}_sound. vm_cast_no_check (eq_refl true). "
              "Qed.\n",
              forward.name, backward.name, first, last - 1, imports(forward, backward, ""), last,
              Shape(backward.as<BackwardModel>()->format).arguments(), enclosing),
          0, backward.as<BackwardModel>()->kT, 'T'};
}

Groups exhaustion_scripts(const Fit& forward, const Fit& backward, const std::string& path) {
  Groups groups{{kernel_script(forward, path), kernel_script(backward, path)}, {}, {}};
  std::vector<int> firsts;
  int first = 0;
  for (const Enclosure& part : enclosures(backward)) {
    while (first < part.last) {
      const int last = std::min(first + kValuesPerFile, part.last);
      groups[1].push_back(covered_script(forward, backward, static_cast<int>(firsts.size()), first, last));
      firsts.push_back(first);
      first = last;
    }
  }
  groups[2].push_back(theorems_script(forward, backward, firsts));
  return groups;
}

}  // namespace outgrad::approx::coq
