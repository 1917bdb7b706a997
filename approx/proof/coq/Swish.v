(* Swish: f x = x Phi x with the logistic function of steepness x as Phi, by the names of Gelu.v; and where f'
   and f'' change sign. SiLU is the one of steepness 1. *)

From Coq Require Import Reals Lra Psatz.
From Coquelicot Require Import Coquelicot.
From Interval Require Import Tactic.
From Outgrad Require Import Calculus Logistic.
From Outgrad Require Export SwishSteepness.
Open Scope R_scope.

Definition Phi (x : R) := / (1 + exp (- (steepness * x))).
Definition phi (x : R) := steepness * (Phi x * (1 - Phi x)).
Definition f (x : R) := x * Phi x.
Definition f' (x : R) := Phi x + x * phi x.
Definition f'' (x : R) := phi x * (2 + steepness * x * (1 - 2 * Phi x)).

Lemma Phi_within x : 0 < Phi x < 1.
Proof. exact (sigma_within (steepness * x)). Qed.

Theorem Phi_opp x : Phi (- x) = 1 - Phi x.
Proof. unfold Phi. rewrite Ropp_mult_distr_r_reverse. exact (sigma_opp (steepness * x)). Qed.

Lemma phi_opp x : phi (- x) = phi x.
Proof. unfold phi. rewrite Phi_opp. ring. Qed.

Lemma phi_pos x : 0 < phi x.
Proof. pose proof (sigma'_pos (steepness * x) : 0 < Phi x * (1 - Phi x)). unfold phi. lra. Qed.

Lemma derive_argument t : is_derive (fun t => steepness * t) t steepness.
Proof. auto_derive; trivial. ring. Qed.

Lemma derive_Phi x : is_derive Phi x (phi x).
Proof. exact (derive_distribution (fun t => steepness * t) (fun _ => steepness) derive_argument x). Qed.

Lemma derive_phi x : is_derive phi x (phi x * (steepness * (1 - 2 * Phi x))).
Proof.
  eapply derive_as. apply (is_derive_scal (fun t => Phi t * (1 - Phi t))).
  apply (derive_mult Phi (fun t => 1 - Phi t)). apply derive_Phi.
  apply (derive_minus (fun _ => 1)). apply is_derive_const. apply derive_Phi. unfold phi, zero; simpl. ring.
Qed.

Lemma derive_f x : is_derive f x (f' x).
Proof. exact (derive_by_x Phi phi x (derive_Phi x)). Qed.

Lemma derive_f' x : is_derive f' x (f'' x).
Proof.
  eapply derive_as. apply derive_plus. apply derive_Phi.
  apply (derive_by_x phi (fun t => phi t * (steepness * (1 - 2 * Phi t)))), derive_phi. unfold f''. ring.
Qed.

(* ---- The branch point ------------------------------------------------------------------------ *)

Tactic Notation "prove_anchor" constr(bits) := unfold Phi; interval with (i_prec bits).

Lemma f'_x_low : f' x_low < 0.
Proof. unfold f', phi, Phi, x_low. interval with (i_prec 90). Qed.

Lemma f'_x_high : 0 < f' x_high.
Proof. unfold f', phi, Phi, x_high. interval with (i_prec 90). Qed.

Lemma f'_slope x : f' x = slope (fun t => steepness * t) (fun _ => steepness) x.
Proof. reflexivity. Qed.

Lemma f_at_zero z : x_low <= z <= x_high -> f' z = 0 -> y_low <= f z <= y_high.
Proof.
  intros X. rewrite f'_slope. intros Z. apply value_at_zero in Z; [|intros; lra].
  change (f z = z + / steepness) in Z. unfold x_low, x_high, y_low, y_high in *. lra.
Qed.

Lemma f'_left_of z x : x_low <= z <= x_high -> f' z = 0 -> x < z -> f' x < 0.
Proof. rewrite !f'_slope. intros _. apply slope_left_of; [exact derive_argument|intros; lra..]. Qed.

Lemma f'_right_of z x : x_low <= z <= x_high -> f' z = 0 -> z < x -> 0 < f' x.
Proof. rewrite !f'_slope. intros _. apply slope_right_of; [exact derive_argument|intros; lra..]. Qed.

Lemma f''_negative_far t : t <= - tail -> f'' t < 0.
Proof.
  intros H. pose proof (phi_pos t). unfold f''. enough (2 + steepness * t * (1 - 2 * Phi t) < 0) by nra.
  assert (U : steepness * t <= - (5 / 2)) by lra.
  assert (E : 12 <= exp (- (steepness * t))).
  { apply Rle_trans with (exp (5 / 2)). interval. destruct (Req_dec (- (steepness * t)) (5 / 2)) as [->|N].
    lra. left. apply exp_increasing. lra. }
  pose proof (sigma_below (steepness * t) 12 ltac:(lra) E) as S.
  change (sigma (steepness * t)) with (Phi t) in S.
  set (u := steepness * t) in *. clearbody u. nra.
Qed.

(* f' rises from - bend to bend and falls elsewhere; the most that f' is, in units of 2^-30. *)
Definition slope_most := 1180943480%Z.

Definition bending (x : R) := steepness * x * (2 * Phi x - 1).

Lemma bending_abs x : bending (Rabs x) = bending x.
Proof. unfold bending, Rabs. destruct (Rcase_abs x); trivial. rewrite Phi_opp. ring. Qed.

Lemma bending_rises a b : 0 <= a -> a < b -> bending a < bending b.
Proof.
  intros A L. assert (Phi a < Phi b) by (apply (increasing_of_derive Phi phi); [apply derive_Phi|trivial|
    intros t _; apply phi_pos]).
  assert (Phi 0 <= Phi a).
  { destruct A as [A | <-]; [left|apply Rle_refl]. apply (increasing_of_derive Phi phi); [apply derive_Phi|
    trivial|intros t _; apply phi_pos]. }
  assert (Phi 0 = / 2) by (unfold Phi; rewrite Rmult_0_r, Ropp_0, exp_0; lra).
  unfold bending. enough (a * (2 * Phi a - 1) < b * (2 * Phi b - 1)) by lra. nra.
Qed.

Lemma bend : exists z, IZR (fst bend_between) / 2 ^ 30 <= z <= IZR (snd bend_between) / 2 ^ 30 /\
  f' z <= IZR slope_most / 2 ^ 30 /\ (forall t, Rabs t < z -> 0 < f'' t) /\
  (forall t, z < Rabs t -> f'' t < 0).
Proof.
  assert (E : forall t, f'' t = phi t * (2 - bending t)) by (intros t; unfold f'', bending; ring).
  destruct (IVT (fun x => bending x - 2) (IZR (fst bend_between) / 2 ^ 30) (IZR (snd bend_between) / 2 ^ 30))
    as (z & Z & R).
  - intros x. unfold bending, Phi. apply continuity_pt_filterlim.
    apply (ex_derive_continuous (fun x => steepness * x * (2 * / (1 + exp (- (steepness * x))) - 1) - 2)).
    pose proof (exp_pos (- (steepness * x))). auto_derive. lra.
  - simpl. lra.
  - unfold bending, Phi. simpl. interval with (i_prec 90).
  - unfold bending, Phi. simpl. interval with (i_prec 90).
  - exists z. split; [trivial|]. simpl in Z. split.
    + unfold f', phi, Phi. simpl. interval with (i_bisect z, i_prec 90).
    + split; intros t H; rewrite E, <- bending_abs; pose proof (phi_pos t); pose proof (Rabs_pos t).
      * pose proof (bending_rises (Rabs t) z). nra.
      * pose proof (bending_rises z (Rabs t)). nra.
Qed.
