(* SiLU: f x = x Phi x with the logistic function Phi, by the names of Gelu.v; and where f' and f'' change
   sign, which is elementary here. *)

From Coq Require Import Reals Lra Psatz.
From Coquelicot Require Import Coquelicot.
From Interval Require Import Tactic.
From Outgrad Require Import Calculus.
Open Scope R_scope.

Definition Phi (x : R) := / (1 + exp (- x)).
Definition phi (x : R) := Phi x * (1 - Phi x).
Definition f (x : R) := x * Phi x.
Definition f' (x : R) := Phi x + x * phi x.
Definition f'' (x : R) := phi x * (2 + x * (1 - 2 * Phi x)).

Lemma Phi_within x : 0 < Phi x < 1.
Proof.
  pose proof (exp_pos (- x)). unfold Phi. split. apply Rinv_0_lt_compat; lra.
  rewrite <- Rinv_1. apply Rinv_lt_contravar; lra.
Qed.

Theorem Phi_opp x : Phi (- x) = 1 - Phi x.
Proof. pose proof (exp_pos x). unfold Phi. rewrite Ropp_involutive, exp_Ropp. field. lra. Qed.

Lemma phi_opp x : phi (- x) = phi x.
Proof. unfold phi. rewrite Phi_opp. ring. Qed.

Lemma phi_pos x : 0 < phi x.
Proof. pose proof (Phi_within x). unfold phi. nra. Qed.

Lemma derive_Phi x : is_derive Phi x (phi x).
Proof. pose proof (exp_pos (- x)). unfold phi, Phi. auto_derive. lra. field. lra. Qed.

Lemma derive_phi x : is_derive phi x (phi x * (1 - 2 * Phi x)).
Proof.
  eapply derive_as. apply (derive_mult Phi (fun t => 1 - Phi t)). apply derive_Phi.
  apply (derive_minus (fun _ => 1)). apply is_derive_const. apply derive_Phi. unfold phi, zero; simpl. ring.
Qed.

Lemma derive_f x : is_derive f x (f' x).
Proof.
  eapply derive_as. apply (derive_mult (fun t => t)). apply is_derive_id. apply derive_Phi.
  unfold f', one; simpl. ring.
Qed.

Lemma derive_f' x : is_derive f' x (f'' x).
Proof.
  eapply derive_as. apply derive_plus. apply derive_Phi. apply (derive_mult (fun t => t)). apply is_derive_id.
  apply derive_phi. unfold f'', one; simpl. ring.
Qed.

(* ---- The branch point ------------------------------------------------------------------------ *)

Definition x_low := -1439423109596291 / 2 ^ 50.
Definition x_high := -1439423109596290 / 2 ^ 50.
Definition minus_x_star := (1439423109596289, 1439423109596292)%Z.
Definition y_low := -313523202753667 / 2 ^ 50.
Definition y_high := -313523202753666 / 2 ^ 50.

Tactic Notation "prove_anchor" constr(bits) := unfold Phi; interval with (i_prec bits).

Lemma f'_x_low : f' x_low < 0.
Proof. unfold f', phi, Phi, x_low. interval with (i_prec 90). Qed.

Lemma f'_x_high : 0 < f' x_high.
Proof. unfold f', phi, Phi, x_high. interval with (i_prec 90). Qed.

(* The sign of f' is that of 1 + x + exp x, which increases. *)
Lemma f'_by_sign x : f' x = phi x * (1 + x + exp x).
Proof.
  pose proof (exp_pos (- x)). unfold f', phi, Phi. replace (exp x) with (/ exp (- x)).
  field. lra. rewrite exp_Ropp. apply Rinv_inv.
Qed.

Lemma zero_of_f' z : f' z = 0 -> 1 + z + exp z = 0.
Proof. rewrite f'_by_sign. pose proof (phi_pos z). nra. Qed.

Lemma f_at_zero z : x_low <= z <= x_high -> f' z = 0 -> y_low <= f z <= y_high.
Proof.
  intros X Z. apply zero_of_f' in Z. replace (f z) with (1 + z).
  - unfold x_low, x_high, y_low, y_high in *. lra.
  - unfold f, Phi. rewrite exp_Ropp. replace (exp z) with (- (1 + z)) by lra. pose proof (exp_pos z). field.
    lra.
Qed.

Lemma f'_left_of z x : x_low <= z <= x_high -> f' z = 0 -> x < z -> f' x < 0.
Proof.
  intros _ Z H. apply zero_of_f' in Z. rewrite f'_by_sign. pose proof (phi_pos x).
  pose proof (exp_increasing x z H). nra.
Qed.

Lemma f'_right_of z x : x_low <= z <= x_high -> f' z = 0 -> z < x -> 0 < f' x.
Proof.
  intros _ Z H. apply zero_of_f' in Z. rewrite f'_by_sign. pose proof (phi_pos x).
  pose proof (exp_increasing z x H). nra.
Qed.

(* Where the tails begin. A notation, so that lra sees the number. *)
Notation tail := (5 / 2).

Lemma f''_negative_far t : t <= - tail -> f'' t < 0.
Proof.
  intros H. pose proof (phi_pos t). unfold f''. enough (2 + t * (1 - 2 * Phi t) < 0) by nra.
  assert (12 <= exp (- t)).
  { apply Rle_trans with (exp (5 / 2)). interval. destruct (Req_dec (- t) (5 / 2)) as [->|N]. lra.
    left. apply exp_increasing. lra. }
  assert (Phi t <= / 13) by (unfold Phi; apply Rinv_le_contravar; lra). nra.
Qed.
