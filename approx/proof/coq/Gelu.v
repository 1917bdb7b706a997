(* GELU as README.md defines it: f x = x Phi x with the normal distribution function Phi; its derivatives; the
   symmetry Phi (-x) = 1 - Phi x; how near Phi is to its limits 0 and 1; and where f' and f'' change sign. *)

From Coq Require Import Reals Lra Psatz.
From Coquelicot Require Import Coquelicot.
From Interval Require Import Tactic.
From Outgrad Require Import Calculus GeluIntegral.
Open Scope R_scope.

Definition phi (t : R) := exp (- (t * t) / 2) / sqrt (2 * PI).
Definition Phi (x : R) := 1 / 2 + RInt phi 0 x.
Definition f (x : R) := x * Phi x.
Definition f' (x : R) := Phi x + x * phi x.
Definition f'' (x : R) := phi x * (2 - x * x).

Lemma sqrt_2PI : 0 < sqrt (2 * PI).
Proof. apply sqrt_lt_R0. pose proof PI_RGT_0. lra. Qed.

Lemma phi_pos t : 0 < phi t.
Proof. apply Rdiv_lt_0_compat. apply exp_pos. apply sqrt_2PI. Qed.

Lemma phi_opp t : phi (- t) = phi t.
Proof. unfold phi. now replace (- t * - t) with (t * t) by ring. Qed.

Lemma derive_phi t : is_derive phi t (- t * phi t).
Proof. pose proof sqrt_2PI. unfold phi. auto_derive; trivial. fold (- (t * t) / 2). field. lra. Qed.

Lemma continuous_phi t : continuous phi t.
Proof. exact (continuous_of_derive phi _ derive_phi t). Qed.

Lemma derive_Phi x : is_derive Phi x (phi x).
Proof.
  eapply derive_as. apply (derive_plus (fun _ => 1 / 2)). apply is_derive_const.
  apply derive_integral, continuous_phi.
  apply Rplus_0_l.
Qed.

Lemma derive_f x : is_derive f x (f' x).
Proof. exact (derive_by_x Phi phi x (derive_Phi x)). Qed.

Lemma derive_f' x : is_derive f' x (f'' x).
Proof.
  eapply derive_as. apply derive_plus. apply derive_Phi.
  apply (derive_by_x phi (fun t => - t * phi t)), derive_phi. unfold f''. ring.
Qed.

Lemma Phi_0 : Phi 0 = 1 / 2.
Proof. unfold Phi. rewrite integral_point. apply Rplus_0_r. Qed.

Theorem Phi_opp x : Phi (- x) = 1 - Phi x.
Proof.
  enough (Phi (0 + -1 * x) + Phi x = 1) by (replace (- x) with (0 + -1 * x) by ring; lra).
  rewrite (constant_of_derive (fun t => Phi (0 + -1 * t) + Phi t)) with (b := 0).
  - replace (0 + -1 * 0) with 0 by ring. rewrite Phi_0. lra.
  - intros t. eapply derive_as. apply derive_plus. apply (derive_affine Phi phi), derive_Phi.
    apply derive_Phi.
    replace (0 + -1 * t) with (- t) by ring. rewrite phi_opp. ring.
Qed.

(* In the variable of GeluIntegral.v. *)
Lemma Phi_Bell x : Phi x = 1 / 2 + Bell (x / sqrt 2) / sqrt PI.
Proof.
  assert (Q : 0 < sqrt 2) by (apply sqrt_lt_R0; lra). assert (P : 0 < sqrt PI) by apply sqrt_lt_R0, PI_RGT_0.
  enough (E : Phi x - Bell (0 + / sqrt 2 * x) / sqrt PI = 1 / 2).
  { replace (x / sqrt 2) with (0 + / sqrt 2 * x) by (unfold Rdiv; ring). lra. }
  rewrite (constant_of_derive (fun t => Phi t - Bell (0 + / sqrt 2 * t) * / sqrt PI)) with (b := 0).
  - replace (0 + / sqrt 2 * 0) with 0 by ring. unfold Bell. rewrite Phi_0, integral_point. ring.
  - intros t. eapply derive_as. apply derive_minus. apply derive_Phi.
    apply (derive_mult (fun t => Bell (0 + / sqrt 2 * t))). apply (derive_affine Bell bell), derive_Bell.
    apply (is_derive_const (/ sqrt PI)). unfold phi, bell, zero; simpl.
    replace (- ((0 + / sqrt 2 * t) * (0 + / sqrt 2 * t))) with (- (t * t) / 2).
    + rewrite sqrt_mult by (pose proof PI_RGT_0; lra). field. lra.
    + rewrite Rplus_0_l. replace (/ sqrt 2 * t * (/ sqrt 2 * t)) with (t * t / (sqrt 2 * sqrt 2))
        by (field; lra).
      rewrite sqrt_sqrt by lra. field.
Qed.

(* Right of 0, what Phi lacks of 1 is at most 2/PI exp (-x^2/2). *)
Theorem Phi_right x : 0 <= x -> 0 <= 1 - Phi x <= 2 / PI * exp (- (x * x) / 2).
Proof.
  intros Hx. pose proof PI_RGT_0 as HP. set (d := Phi x - 1 / 2).
  assert (D0 : 0 <= d).
  { unfold d, Phi. enough (0 <= RInt phi 0 x) by lra. apply RInt_ge_0; trivial.
    - apply (ex_RInt_continuous (V := R_CompleteNormedModule)). intros; apply continuous_phi.
    - intros t _. left. apply phi_pos. }
  assert (D : 1 / 4 - exp (- (x * x) / 2) / PI <= d * d <= 1 / 4).
  { pose proof (gaussian_integral (x / sqrt 2)) as G. unfold bell in G. revert G.
    assert (Q : 0 < sqrt 2) by (apply sqrt_lt_R0; lra). assert (P : 0 < sqrt PI) by now apply sqrt_lt_R0.
    replace (- (x / sqrt 2 * (x / sqrt 2))) with (- (x * x) / (sqrt 2 * sqrt 2)) by (field; lra).
    rewrite sqrt_sqrt by lra.
    replace (d * d) with (Bell (x / sqrt 2) * Bell (x / sqrt 2) / PI).
    - set (B := Bell (x / sqrt 2) * Bell (x / sqrt 2)). set (e := exp (- (x * x) / 2)). intros [L U].
      split; apply Rmult_le_reg_r with PI; trivial; [replace ((1 / 4 - e / PI) * PI) with (PI / 4 - e)
        by (field; lra)|];
        replace (B / PI * PI) with B by (field; lra); lra.
    - unfold d. rewrite Phi_Bell. rewrite <- (sqrt_sqrt PI) at 1 by lra. field. lra. }
  assert (Dh : d <= 1 / 2) by nra. replace (1 - Phi x) with (1 / 2 - d) by (unfold d; lra). split. lra.
  replace (2 / PI * exp (- (x * x) / 2)) with (2 * (exp (- (x * x) / 2) / PI)) by (field; lra). nra.
Qed.

Corollary Phi_left x : x <= 0 -> 0 <= Phi x <= 2 / PI * exp (- (x * x) / 2).
Proof.
  intros Hx. pose proof (Phi_right (- x)) as H. rewrite Phi_opp in H.
  replace (- x * - x) with (x * x) in H by ring.
  replace (1 - (1 - Phi x)) with (Phi x) in H by ring. apply H. lra.
Qed.

Lemma Phi_within x : 0 < Phi x < 1.
Proof.
  assert (P : forall t, t < 0 -> 0 < Phi t).
  { intros t H. apply Rle_lt_trans with (Phi (t - 1)). apply Phi_left; lra.
    apply (increasing_of_derive Phi phi); [apply derive_Phi|lra|]. intros u _. apply phi_pos. }
  pose proof Phi_0. destruct (Rtotal_order x 0) as [L|[->|G]]; [|lra|].
  - pose proof (P x L). enough (Phi x < Phi 0) by lra.
    apply (increasing_of_derive Phi phi); [apply derive_Phi|trivial|]. intros t _. apply phi_pos.
  - pose proof (P (- x)). pose proof (Phi_opp x). enough (Phi 0 < Phi x) by lra.
    apply (increasing_of_derive Phi phi); [apply derive_Phi|trivial|]. intros t _. apply phi_pos.
Qed.

(* ---- The branch point ------------------------------------------------------------------------ *)

(* f' has its zero between x_low and x_high, and there f is between y_low and y_high. *)
Definition x_low := -846442007617559 / 2 ^ 50.
Definition x_high := -846442007617558 / 2 ^ 50.
(* - x_star lies strictly between these, in units of 2^-50. *)
Definition minus_x_star := (846442007617557, 846442007617560)%Z.
Definition y_low := -191370566667553 / 2 ^ 50.
Definition y_high := -191370566667551 / 2 ^ 50.

(* Rabs (Phi c - v) <= e for numbers c, v and e. *)
Tactic Notation "prove_anchor" constr(bits) := unfold Phi, phi; integral with (i_prec bits, i_degree 12).

Lemma f'_x_low : f' x_low < 0.
Proof.
  assert (P : Rabs (Phi x_low - 260661970547551817 / 2 ^ 60) <= / 2 ^ 60) by (unfold Phi, phi, x_low;
    integral with (i_prec 90, i_degree 15)).
  apply between_of_abs in P. unfold f'. set (P_low := Phi x_low) in *. clearbody P_low. unfold phi, x_low.
  interval with (i_prec 90).
Qed.

Lemma f'_x_high : 0 < f' x_high.
Proof.
  assert (P : Rabs (Phi x_high - 260661970547552125 / 2 ^ 60) <= / 2 ^ 60) by (unfold Phi, phi, x_high;
    integral with (i_prec 90, i_degree 15)).
  apply between_of_abs in P. unfold f'. set (P_high := Phi x_high) in *. clearbody P_high. unfold phi, x_high.
  interval with (i_prec 90).
Qed.

(* There Phi is elementary: f' z = 0 says that Phi z = - z phi z. *)
Lemma f_at_zero z : x_low <= z <= x_high -> f' z = 0 -> y_low <= f z <= y_high.
Proof.
  unfold f', f, x_low, x_high. intros X Z. replace (z * Phi z) with (- (z * z * phi z)).
  - unfold phi, y_low, y_high. interval with (i_prec 70).
  - replace (Phi z) with (- (z * phi z)) by lra. ring.
Qed.

(* Where Phi's bound by exp (-x^2/2) is below what x phi x takes away. *)
Lemma f'_negative_far x : x <= -7 / 4 -> f' x < 0.
Proof.
  intros Hx. destruct (Phi_left x) as [_ P]. lra. unfold f', phi. set (e := exp (- (x * x) / 2)) in *.
  assert (E : 0 < e) by apply exp_pos.
  apply Rle_lt_trans with (e * (2 / PI + x / sqrt (2 * PI))).
  - unfold Rdiv in *. lra.
  - enough (2 / PI + x / sqrt (2 * PI) < 0) by nra.
    apply Rle_lt_trans with (2 / PI + (-7 / 4) / sqrt (2 * PI)).
    + apply Rplus_le_compat_l. unfold Rdiv at 1 2. apply Rmult_le_compat_r; trivial.
      left. apply Rinv_0_lt_compat, sqrt_2PI.
    + interval.
Qed.

(* The sign of f'': f' falls until -sqrt 2 and rises from there to sqrt 2. *)
Lemma f''_negative t : 2 < t * t -> f'' t < 0.
Proof. intros H. unfold f''. pose proof (phi_pos t). nra. Qed.

Lemma f''_positive t : t * t < 2 -> 0 < f'' t.
Proof. intros H. unfold f''. pose proof (phi_pos t). nra. Qed.

Lemma sqrt_2_between : sqrt 2 * sqrt 2 = 2 /\ 141 / 100 <= sqrt 2 <= 142 / 100.
Proof. split. apply sqrt_sqrt; lra. split; interval. Qed.

Lemma f'_left_of z x : x_low <= z <= x_high -> f' z = 0 -> x < z -> f' x < 0.
Proof.
  intros X Z Hx. unfold x_low, x_high in X. destruct sqrt_2_between as [Q Q'].
  destruct (Rle_dec x (-7 / 4)) as [L|L]. now apply f'_negative_far.
  destruct (Rle_dec x (- sqrt 2)) as [M|M].
  - apply Rlt_trans with (f' (-7 / 4)); [|apply f'_negative_far; lra].
    apply (decreasing_of_derive f' f''); [apply derive_f'|lra|]. intros t Ht. apply f''_negative. nra.
  - rewrite <- Z. apply (increasing_of_derive f' f''); [apply derive_f'|lra|]. intros t Ht.
    apply f''_positive. nra.
Qed.

Lemma f'_right_of z x : x_low <= z <= x_high -> f' z = 0 -> z < x -> 0 < f' x.
Proof.
  intros X Z Hx. unfold x_low, x_high in X. destruct sqrt_2_between as [Q Q'].
  destruct (Rle_dec x (sqrt 2)) as [M|M].
  - rewrite <- Z. apply (increasing_of_derive f' f''); [apply derive_f'|lra|]. intros t Ht.
    apply f''_positive. nra.
  - unfold f'. pose proof (phi_pos x). pose proof (Phi_within x). nra.
Qed.

(* Where the tails begin, as a notation, so that lra sees the number; and an integer beyond it. *)
Notation tail := (7 / 4).
Definition tail_place := 4%Z.

Lemma f''_negative_far t : t <= - tail -> f'' t < 0.
Proof. intros H. apply f''_negative. nra. Qed.

(* f' rises from - bend to bend and falls elsewhere; bend, and the most that f' is, in units of 2^-30. *)
Definition bend_between := (1518500249, 1518500250)%Z.
Definition slope_most := 1212151600%Z.
Lemma bend : exists z, IZR (fst bend_between) / 2 ^ 30 <= z <= IZR (snd bend_between) / 2 ^ 30 /\
  f' z <= IZR slope_most / 2 ^ 30 /\ (forall t, Rabs t < z -> 0 < f'' t) /\
  (forall t, z < Rabs t -> f'' t < 0).
Proof.
  destruct sqrt_2_between as [Q Q']. exists (sqrt 2). simpl. split; [split; interval with (i_prec 50)|split].
  - assert (P : Rabs (Phi (sqrt 2) - 989292455 / 2 ^ 30) <= / 2 ^ 29).
    { unfold Phi, phi. integral with (i_prec 60, i_degree 12). }
    apply between_of_abs in P. unfold f', phi. set (p := Phi (sqrt 2)) in *. clearbody p.
    interval with (i_prec 60).
  - assert (S : forall t, t * t = Rabs t * Rabs t) by (intros t; rewrite <- Rabs_mult; symmetry;
    apply Rabs_pos_eq; nra).
    split; intros t H; pose proof (Rabs_pos t); [apply f''_positive|apply f''_negative]; rewrite S; nra.
Qed.

(* Encloses y_low and y_high, in units of 2^-50. *)
Definition near_y_star := (-191370566667553, -191370566667551)%Z.
