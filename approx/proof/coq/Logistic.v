(* The logistic function sigma, and what f x = x sigma (w x) owes to it where w and x w' rise: the derivative,
   whose sign is that of 1 + x w' + exp w, which rises; and the value at its zero, where exp w is known. *)

From Coq Require Import Reals Lra Psatz.
From Coquelicot Require Import Coquelicot.
From Outgrad Require Import Calculus.
Open Scope R_scope.

Definition sigma (t : R) := / (1 + exp (- t)).

Lemma sigma_within t : 0 < sigma t < 1.
Proof.
  pose proof (exp_pos (- t)). unfold sigma. split. apply Rinv_0_lt_compat; lra.
  rewrite <- Rinv_1. apply Rinv_lt_contravar; lra.
Qed.

Lemma sigma_opp t : sigma (- t) = 1 - sigma t.
Proof. pose proof (exp_pos t). unfold sigma. rewrite Ropp_involutive, exp_Ropp. field. lra. Qed.

Lemma sigma'_pos t : 0 < sigma t * (1 - sigma t).
Proof. pose proof (sigma_within t). nra. Qed.

Lemma derive_sigma t : is_derive sigma t (sigma t * (1 - sigma t)).
Proof. pose proof (exp_pos (- t)). unfold sigma. auto_derive. lra. field. lra. Qed.

(* Far on the left. *)
Lemma sigma_below t c : 0 < c -> c <= exp (- t) -> sigma t <= / (1 + c).
Proof. intros C H. apply Rinv_le_contravar; lra. Qed.

Section Argument.

Variables w w' : R -> R.
Hypothesis derive_w : forall x, is_derive w x (w' x).
Hypothesis w'_pos : forall x, 0 < w' x.
Hypothesis rising : forall x z, x < z -> x * w' x < z * w' z.

Definition density (x : R) := w' x * (sigma (w x) * (1 - sigma (w x))).
Definition slope (x : R) := sigma (w x) + x * density x.

Lemma derive_distribution x : is_derive (fun x => sigma (w x)) x (density x).
Proof. apply (is_derive_comp sigma w). apply derive_sigma. apply derive_w. Qed.

Lemma slope_by_sign x : slope x = sigma (w x) * (1 - sigma (w x)) * (1 + x * w' x + exp (w x)).
Proof.
  pose proof (exp_pos (- w x)). unfold slope, density, sigma. replace (exp (w x)) with (/ exp (- w x))
    by now rewrite exp_Ropp, Rinv_inv.
  field. split; lra.
Qed.

Lemma zero_of_slope z : slope z = 0 -> 1 + z * w' z + exp (w z) = 0.
Proof. rewrite slope_by_sign. pose proof (sigma'_pos (w z)). intros [Z|Z]%Rmult_integral; [lra|exact Z]. Qed.

Lemma sign_rises x z : x < z -> x * w' x + exp (w x) < z * w' z + exp (w z).
Proof.
  intros H. pose proof (rising x z H). enough (w x < w z) by (pose proof (exp_increasing (w x) (w z)); lra).
  now apply (increasing_of_derive w w').
Qed.

Lemma slope_left_of z x : slope z = 0 -> x < z -> slope x < 0.
Proof.
  intros Z H. apply zero_of_slope in Z. pose proof (sign_rises x z H). rewrite slope_by_sign.
  pose proof (sigma'_pos (w x)). nra.
Qed.

Lemma slope_right_of z x : slope z = 0 -> z < x -> 0 < slope x.
Proof.
  intros Z H. apply zero_of_slope in Z. pose proof (sign_rises z x H). rewrite slope_by_sign.
  pose proof (sigma'_pos (w x)). nra.
Qed.

Lemma value_at_zero z : slope z = 0 -> z * sigma (w z) = z + / w' z.
Proof.
  intros Z. apply zero_of_slope in Z. pose proof (w'_pos z). pose proof (exp_pos (w z)). unfold sigma.
  rewrite exp_Ropp. replace (exp (w z)) with (- (1 + z * w' z)) by lra. field. nra.
Qed.

End Argument.
