(* GELU's branch point: f' has exactly one zero x_star, f' < 0 left of it and f' > 0 right of it. x_star and
   the minimum y_star = f x_star are enclosed to 2^-49. *)

From Coq Require Import Reals Lra.
From Coquelicot Require Import Coquelicot.
From Interval Require Import Tactic.
From Outgrad Require Import Calculus Gelu.
Open Scope R_scope.

Definition x_low := -846442007617559 / 2 ^ 50.
Definition x_high := -846442007617558 / 2 ^ 50.
Definition y_low := -191370566667553 / 2 ^ 50.
Definition y_high := -191370566667551 / 2 ^ 50.

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

Lemma branch_point : { x : R | x_low <= x <= x_high /\ f' x = 0 }.
Proof.
  apply IVT.
  - intros x. apply continuity_pt_filterlim, (continuous_of_derive f' f''), derive_f'.
  - unfold x_low, x_high; lra.
  - apply f'_x_low.
  - apply f'_x_high.
Qed.

Definition x_star := proj1_sig branch_point.
Definition y_star := f x_star.

Lemma x_star_between : x_low <= x_star <= x_high.
Proof. exact (proj1 (proj2_sig branch_point)). Qed.

Lemma f'_x_star : f' x_star = 0.
Proof. exact (proj2 (proj2_sig branch_point)). Qed.

(* At the branch point Phi is elementary: f' x = 0 says that Phi x = - x phi x. *)
Lemma y_star_between : y_low <= y_star <= y_high.
Proof.
  replace y_star with (- (x_star * x_star * phi x_star)).
  - pose proof x_star_between as X. unfold x_low, x_high in X. unfold phi, y_low, y_high.
    interval with (i_prec 70).
  - pose proof f'_x_star as Z. unfold f' in Z. unfold y_star, f.
    replace (Phi x_star) with (- (x_star * phi x_star)) by lra. ring.
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

Theorem f'_left x : x < x_star -> f' x < 0.
Proof.
  intros Hx. pose proof x_star_between as X. unfold x_low, x_high in X.
  assert (Q : sqrt 2 * sqrt 2 = 2) by (apply sqrt_sqrt; lra). assert (Q' : 141 / 100 <= sqrt 2 <= 142 / 100)
    by (split; interval).
  destruct (Rle_dec x (-7 / 4)) as [L|L]. now apply f'_negative_far.
  destruct (Rle_dec x (- sqrt 2)) as [M|M].
  - apply Rlt_trans with (f' (-7 / 4)); [|apply f'_negative_far; lra].
    apply (decreasing_of_derive f' f''); [apply derive_f'|lra|]. intros t Ht. apply f''_negative. nra.
  - rewrite <- f'_x_star. apply (increasing_of_derive f' f''); [apply derive_f'|lra|]. intros t Ht.
    apply f''_positive. nra.
Qed.

Theorem f'_right x : x_star < x -> 0 < f' x.
Proof.
  intros Hx. pose proof x_star_between as X. unfold x_low, x_high in X.
  assert (Q : sqrt 2 * sqrt 2 = 2) by (apply sqrt_sqrt; lra). assert (Q' : 141 / 100 <= sqrt 2 <= 142 / 100)
    by (split; interval).
  destruct (Rle_dec x (sqrt 2)) as [M|M].
  - rewrite <- f'_x_star. apply (increasing_of_derive f' f''); [apply derive_f'|lra|]. intros t Ht.
    apply f''_positive. nra.
  - unfold f'. pose proof (phi_pos x). enough (0 < Phi x) by nra.
    apply Rlt_trans with (Phi 0). rewrite Phi_0; lra.
    apply (increasing_of_derive Phi phi); [apply derive_Phi|lra|]. intros t _. apply phi_pos.
Qed.

Theorem minimum x : y_star <= f x.
Proof.
  destruct (Rtotal_order x x_star) as [L|[->|G]].
  - left. apply (decreasing_of_derive f f'); [apply derive_f|trivial|]. intros t Ht. apply f'_left. lra.
  - apply Rle_refl.
  - left. apply (increasing_of_derive f f'); [apply derive_f|trivial|]. intros t Ht. apply f'_right. lra.
Qed.

(* f' (-x) = 1 - f' x, so that what holds far on the left holds far on the right. *)
Lemma f'_opp x : f' (- x) = 1 - f' x.
Proof. unfold f'. rewrite Phi_opp, phi_opp. ring. Qed.

(* Far on the left f rises to its limit 0 from below as x falls, and f' does likewise. *)
Theorem left_tail a x : a <= -7 / 4 -> x <= a -> f a <= f x <= 0 /\ f' a <= f' x <= 0.
Proof.
  intros Ha Hx. pose proof x_star_between as X. unfold x_low, x_high in X. split; split.
  - destruct Hx as [L| ->]; [|apply Rle_refl]. left.
    apply (decreasing_of_derive f f'); [apply derive_f|trivial|]. intros t Ht. apply f'_left. lra.
  - unfold f. destruct (Phi_left x) as [P _]. lra. nra.
  - destruct Hx as [L| ->]; [|apply Rle_refl]. left.
    apply (decreasing_of_derive f' f''); [apply derive_f'|trivial|]. intros t Ht. apply f''_negative. nra.
  - left. apply f'_left. lra.
Qed.

(* Far on the right f rises without end, and f' falls to its limit 1. *)
Theorem right_tail b x : 7 / 4 <= b -> b <= x -> f b <= f x /\ 1 <= f' x <= f' b.
Proof.
  intros Hb Hx. pose proof x_star_between as X. unfold x_low, x_high in X. split.
  - destruct Hx as [L| ->]; [|apply Rle_refl]. left.
    apply (increasing_of_derive f f'); [apply derive_f|trivial|]. intros t Ht. apply f'_right. lra.
  - destruct (left_tail (- b) (- x)) as [_ T]; try lra. rewrite !f'_opp in T. lra.
Qed.

(* The coordinate in which both branches are one: the square root of y - y_star, negative left of x_star. *)
Definition coordinate (x : R) := if Rle_dec x_star x then sqrt (f x - y_star) else - sqrt (f x - y_star).
