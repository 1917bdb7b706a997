// Writes the theorem about the kernel of a gated pair.
#include "approx/proof/coq_product.h"

#include "approx/proof/coq_activation.h"
#include "approx/proof/coq_kernel.h"
#include "approx/proof/coq_text.h"

#include <fmt/format.h>

namespace outgrad::approx::coq {

Groups product_scripts(const Fit& fit, const std::string& path) {
  const auto& model = *fit.as<BackwardModel>();
  const ProductBall ball = product_ball(model.product);
  return {
      {kernel_script(fit, path)},
      {{fit.name + "_all.v",
        fmt::format(R"((* {fit} at every real number x, for every fp32 number s that z / b may be. *)

From Coq Require Import Reals ZArith SpecFloat Lra.
From Flocq Require Import Core IEEE754.BinarySingleNaN.
From Outgrad Require Import Activation BranchPoint Format Kernel {module}Series Product GatedPair
  {fit}_kernel.
Open Scope R_scope.

(* {relative_text} and {absolute_text} *)
Definition relative : float radix2 := {relative}.
Definition absolute : float radix2 := {absolute}.

(* The total error; v: the value of s. *)
Theorem {fit}_T : forall x s v, stands_for 24 128 s v ->
  Rabs (v - f x) <= F2R relative * Rabs (f x) + F2R absolute ->
  let g := evaluate_backward kernel s (Rle_bool x_star x) in
  is_finite_SF g = true /\ Rabs (SF2R radix2 g - f' x) <= F2R T.
Proof.
  apply check_line_correct with bf16_least; [exact bf16_least_sound|vm_cast_no_check (eq_refl true)].
Qed.

(* From what a gated pair keeps, z beside b; v: the value of f x that z was made of. *)
Theorem {fit}_pair : forall x v32 v b32 b, stands_for 24 128 v32 v -> stands_for 24 128 b32 b ->
  b <> 0 -> Rabs (v - f x) <= gate_error * (1 + Rabs (f x)) ->
  let z := pair_output {format} v32 b32 in
  let s := pair_quotient z b32 in
  is_finite_SF z = true -> is_finite_SF s = true ->
  least_normal {format} < Rabs (SF2R radix2 z) \/ / 2 <= Rabs b ->
  let g := evaluate_backward kernel s (Rle_bool x_star x) in
  is_finite_SF g = true /\ Rabs (SF2R radix2 g - f' x) <= F2R T.
Proof.
  intros x v32 v b32 b V B N G z s FZ FS H.
  assert (R : rounding {precision} + bpow radix2 (-22) + bpow radix2 (-24) <= F2R relative)
    by (unfold rounding, F2R; simpl; lra).
  destruct (pair_near {format} ltac:(auto) _ R x v32 v b32 b V B N G FZ FS H) as [S D].
  replace (bpow radix2 (-22)) with (F2R absolute) in D by (unfold F2R; simpl; lra).
  exact ({fit}_T x s _ S D).
Qed.
)",
                    fmt::arg("fit", fit.name), fmt::arg("module", known(fit.function).module),
                    fmt::arg("relative_text", power_of_two(ball.relative)),
                    fmt::arg("absolute_text", power_of_two(ball.absolute)),
                    fmt::arg("format", Shape(model.product).arguments()),
                    fmt::arg("precision", precision_bits(model.product)),
                    fmt::arg("relative", dyadic(ball.relative)), fmt::arg("absolute", dyadic(ball.absolute))),
        0, model.kT, 'T'}}};
}

}  // namespace outgrad::approx::coq
