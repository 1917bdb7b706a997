(* The activation's branch point: f' has exactly one zero x_star, f' < 0 left of it and f' > 0 right of it;
   the minimum y_star = f x_star; and the tails. *)

From Coq Require Import Reals Lra.
From Coquelicot Require Import Coquelicot.
From Outgrad Require Import Calculus Activation.
Open Scope R_scope.

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

Lemma y_star_between : y_low <= y_star <= y_high.
Proof. exact (f_at_zero x_star x_star_between f'_x_star). Qed.

Theorem f'_left x : x < x_star -> f' x < 0.
Proof. exact (f'_left_of x_star x x_star_between f'_x_star). Qed.

Theorem f'_right x : x_star < x -> 0 < f' x.
Proof. exact (f'_right_of x_star x x_star_between f'_x_star). Qed.

Lemma x_star_negative : x_star < 0.
Proof. pose proof x_star_between as X. unfold x_high in X. lra. Qed.

Theorem minimum x : y_star <= f x.
Proof.
  destruct (Rtotal_order x x_star) as [L|[->|G]].
  - left. apply (decreasing_of_derive f f'); [apply derive_f|trivial|]. intros t Ht. apply f'_left. lra.
  - apply Rle_refl.
  - left. apply (increasing_of_derive f f'); [apply derive_f|trivial|]. intros t Ht. apply f'_right. lra.
Qed.

(* f falls until x_star and rises from there. *)
Lemma f_left a b : a < b -> b <= x_star -> f b < f a.
Proof.
  intros L B. apply (decreasing_of_derive f f'); [apply derive_f|trivial|]. intros t Ht. apply f'_left. lra.
Qed.
Lemma f_right a b : a < b -> x_star <= a -> f a < f b.
Proof.
  intros L A. apply (increasing_of_derive f f'); [apply derive_f|trivial|]. intros t Ht. apply f'_right. lra.
Qed.

Lemma negative_left x : x < x_star -> f x < 0.
Proof. intros X. pose proof x_star_negative. pose proof (Phi_within x). unfold f. nra. Qed.

(* What holds far on the left holds far on the right. *)
Lemma f_opp x : f (- x) = f x - x.
Proof. unfold f. rewrite Phi_opp. ring. Qed.

Lemma f'_opp x : f' (- x) = 1 - f' x.
Proof. unfold f'. rewrite Phi_opp, phi_opp. ring. Qed.

(* Far on the left f rises to its limit 0 from below as x falls, and f' does likewise. *)
Theorem left_tail a x : a <= - tail -> x <= a -> f a <= f x <= 0 /\ f' a <= f' x <= 0.
Proof.
  intros Ha Hx. pose proof x_star_between as X. unfold x_low, x_high in *. split; split.
  - destruct Hx as [L| ->]; [|apply Rle_refl]. left.
    apply (decreasing_of_derive f f'); [apply derive_f|trivial|]. intros t Ht. apply f'_left. lra.
  - unfold f. pose proof (Phi_within x). nra.
  - destruct Hx as [L| ->]; [|apply Rle_refl]. left.
    apply (decreasing_of_derive f' f''); [apply derive_f'|trivial|]. intros t Ht. apply f''_negative_far. lra.
  - left. apply f'_left. lra.
Qed.

(* Far on the right f rises without end, and f' falls to its limit 1. *)
Theorem right_tail b x : tail <= b -> b <= x -> f b <= f x /\ 1 <= f' x <= f' b.
Proof.
  intros Hb Hx. pose proof x_star_negative. split.
  - destruct Hx as [L| ->]; [|apply Rle_refl]. left.
    apply (increasing_of_derive f f'); [apply derive_f|trivial|]. intros t Ht. apply f'_right. lra.
  - destruct (left_tail (- b) (- x)) as [_ T]; try lra. rewrite !f'_opp in T. lra.
Qed.

(* The coordinate in which both branches are one: the square root of y - y_star, negative left of x_star. *)
Definition coordinate (x : R) := if Rle_dec x_star x then sqrt (f x - y_star) else - sqrt (f x - y_star).
