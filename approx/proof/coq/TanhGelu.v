(* The tanh form of GELU: f x = x Phi x with Phi x = (1 + tanh (sqrt (2/PI) (x + 0.044715 x^3))) / 2, which is
   the logistic function of twice that argument, by the names of Gelu.v; and where f' and f'' change sign. *)

From Coq Require Import Reals Lra Psatz.
From Coquelicot Require Import Coquelicot.
From Interval Require Import Tactic.
From Outgrad Require Import Calculus Logistic.
Open Scope R_scope.

(* Notations, so that unfolding Phi and phi leaves numbers and x. *)
Notation scale := (2 * sqrt (2 / PI)).
Notation argument x := (scale * (x + 44715 / 1000000 * (x * x * x))).
Notation argument' x := (scale * (1 + 3 * (44715 / 1000000) * (x * x))).
Notation argument'' x := (scale * (6 * (44715 / 1000000) * x)).

Definition Phi (x : R) := / (1 + exp (- argument x)).
Definition phi (x : R) := argument' x * (Phi x * (1 - Phi x)).
Definition f (x : R) := x * Phi x.
Definition f' (x : R) := Phi x + x * phi x.
Definition f'' (x : R) := Phi x * (1 - Phi x)
  * (2 * argument' x + x * argument'' x + x * (argument' x * argument' x) * (1 - 2 * Phi x)).

Lemma scale_between : 159 / 100 <= scale <= 8 / 5.
Proof. split; interval. Qed.

Lemma derive_argument x : is_derive (fun x => argument x) x (argument' x).
Proof. pose proof scale_between. set (c := scale) in *. clearbody c. auto_derive; trivial. field. Qed.

Lemma argument'_pos x : 0 < argument' x.
Proof. pose proof scale_between. apply Rmult_lt_0_compat; nra. Qed.

Lemma argument'_rises x z : x < z -> x * argument' x < z * argument' z.
Proof.
  intros H. pose proof scale_between. set (c := scale) in *. clearbody c.
  apply (increasing_of_derive (fun x => x * (c * (1 + 3 * (44715 / 1000000) * (x * x))))
    (fun x => c * (1 + 9 * (44715 / 1000000) * (x * x)))); trivial.
  - intros t. auto_derive; trivial. field.
  - intros t _. apply Rmult_lt_0_compat; nra.
Qed.

Lemma Phi_within x : 0 < Phi x < 1.
Proof. exact (sigma_within (argument x)). Qed.

Theorem Phi_opp x : Phi (- x) = 1 - Phi x.
Proof. unfold Phi. replace (argument (- x)) with (- argument x) by ring. exact (sigma_opp (argument x)). Qed.

Lemma phi_opp x : phi (- x) = phi x.
Proof. unfold phi. rewrite Phi_opp. ring. Qed.

Lemma derive_Phi x : is_derive Phi x (phi x).
Proof. exact (derive_distribution (fun x => argument x) (fun x => argument' x) derive_argument x). Qed.

Lemma derive_phi x :
  is_derive phi x (argument'' x * (Phi x * (1 - Phi x)) + argument' x * (phi x * (1 - 2 * Phi x))).
Proof.
  eapply derive_as. apply (derive_mult (fun x => argument' x) (fun x => Phi x * (1 - Phi x))).
  - instantiate (1 := argument'' x). set (c := scale). clearbody c. auto_derive; trivial. field.
  - apply (derive_mult Phi (fun t => 1 - Phi t)). apply derive_Phi. apply (derive_minus (fun _ => 1)).
    apply is_derive_const. apply derive_Phi.
  - unfold zero; simpl. ring.
Qed.

Lemma derive_f x : is_derive f x (f' x).
Proof. exact (derive_by_x Phi phi x (derive_Phi x)). Qed.

Lemma derive_f' x : is_derive f' x (f'' x).
Proof.
  eapply derive_as. apply derive_plus. apply derive_Phi.
  apply (derive_by_x phi (fun t =>
    argument'' t * (Phi t * (1 - Phi t)) + argument' t * (phi t * (1 - 2 * Phi t)))), derive_phi.
  unfold f'', phi. ring.
Qed.

(* ---- The branch point ------------------------------------------------------------------------ *)

Definition x_low := -847196245012426 / 2 ^ 50.
Definition x_high := -847196245012425 / 2 ^ 50.
Definition minus_x_star := (847196245012424, 847196245012427)%Z.
Definition y_low := -191448865227626 / 2 ^ 50.
Definition y_high := -191448865227624 / 2 ^ 50.

Tactic Notation "prove_anchor" constr(bits) := unfold Phi; interval with (i_prec bits).

Lemma f'_x_low : f' x_low < 0.
Proof. unfold f', phi, Phi, x_low. interval with (i_prec 90). Qed.

Lemma f'_x_high : 0 < f' x_high.
Proof. unfold f', phi, Phi, x_high. interval with (i_prec 90). Qed.

Lemma f_at_zero z : x_low <= z <= x_high -> f' z = 0 -> y_low <= f z <= y_high.
Proof.
  intros X Z. pose proof (value_at_zero (fun x => argument x) (fun x => argument' x) argument'_pos z Z) as V.
  change (f z = z + / argument' z) in V. rewrite V. unfold x_low, x_high, y_low, y_high in *.
  interval with (i_prec 70).
Qed.

Lemma f'_left_of z x : x_low <= z <= x_high -> f' z = 0 -> x < z -> f' x < 0.
Proof.
  intros _. exact (slope_left_of (fun x => argument x) (fun x => argument' x) derive_argument argument'_pos
    argument'_rises z x).
Qed.

Lemma f'_right_of z x : x_low <= z <= x_high -> f' z = 0 -> z < x -> 0 < f' x.
Proof.
  intros _. exact (slope_right_of (fun x => argument x) (fun x => argument' x) derive_argument argument'_pos
    argument'_rises z x).
Qed.

(* Where the tails begin, as a notation, so that lra sees the number; and an integer beyond it. *)
Notation tail := 2.
Definition tail_place := 4%Z.

Lemma f''_negative_far t : t <= - tail -> f'' t < 0.
Proof.
  intros H. pose proof (sigma'_pos (argument t)) as P. pose proof (argument'_pos t) as W.
  pose proof scale_between as C.
  assert (E : 40 <= exp (- argument t)).
  { apply Rle_trans with (exp (374 / 100)). interval. left. apply exp_increasing.
    assert (2357 / 1000 <= - t + 44715 / 1000000 * (- t * - t * - t)) by nra.
    set (c := scale) in *. clearbody c. nra. }
  pose proof (sigma_below (argument t) 40 ltac:(lra) E) as S. change (sigma (argument t)) with (Phi t) in *.
  assert (D : 488 / 100 <= - t * argument' t).
  { set (c := scale) in *. clearbody c. nra. }
  assert (Q : 2 * argument' t + t * argument'' t <= 4 * argument' t).
  { set (c := scale) in *. clearbody c. lra. }
  unfold f''. set (a := argument' t) in *.
  assert (R : 488 / 100 * (39 / 41) <= - t * a * (1 - 2 * Phi t)) by (apply Rmult_le_compat; lra).
  enough (4 * a + t * (a * a) * (1 - 2 * Phi t) < 0) by nra. nra.
Qed.

(* f' rises from - bend to bend and falls elsewhere; bend, and the most that f' is, in units of 2^-30. *)
Definition bend_between := (1523107081, 1523107082)%Z.
Definition slope_most := 1212247080%Z.

(* f'' has its sign. *)
Definition bending (x : R) :=
  2 * argument' x + x * argument'' x + x * (argument' x * argument' x) * (1 - 2 * Phi x).

Lemma bending_abs x : bending (Rabs x) = bending x.
Proof. unfold bending, Rabs. destruct (Rcase_abs x); trivial. rewrite Phi_opp. ring. Qed.

Lemma derive_bending x : is_derive bending x (4 * argument'' x + (1 - 2 * Phi x) *
  (argument' x * argument' x + 2 * x * argument' x * argument'' x)
  - 2 * x * (argument' x * argument' x) * phi x).
Proof.
  unfold bending. eapply derive_as.
  apply (derive_plus (fun x => 2 * argument' x + x * argument'' x)
    (fun x => x * (argument' x * argument' x) * (1 - 2 * Phi x))).
  - instantiate (1 := 4 * argument'' x). set (c := scale). clearbody c. auto_derive; trivial. field.
  - apply (derive_mult (fun x => x * (argument' x * argument' x)) (fun x => 1 - 2 * Phi x)).
    + instantiate (1 := argument' x * argument' x + 2 * x * argument' x * argument'' x).
      set (c := scale). clearbody c. auto_derive; trivial. field.
    + apply (derive_minus (fun _ => 1) (fun x => 2 * Phi x)). apply is_derive_const.
      apply (is_derive_scal Phi), derive_Phi.
  - unfold zero; simpl. ring.
Qed.

Lemma bending_falls a b : 13 / 10 <= a -> a < b -> b <= 3 / 2 -> bending b < bending a.
Proof.
  intros A L B. eapply (decreasing_of_derive bending); [apply derive_bending|trivial|]. intros t T.
  assert (H : 13 / 10 <= t <= 3 / 2) by lra. unfold phi, Phi. interval with (i_bisect t).
Qed.

Lemma bend : exists z, IZR (fst bend_between) / 2 ^ 30 <= z <= IZR (snd bend_between) / 2 ^ 30 /\
  f' z <= IZR slope_most / 2 ^ 30 /\ (forall t, Rabs t < z -> 0 < f'' t) /\
  (forall t, z < Rabs t -> f'' t < 0).
Proof.
  assert (E : forall t, f'' t = Phi t * (1 - Phi t) * bending t) by reflexivity.
  assert (P : forall t, 0 < Phi t * (1 - Phi t)) by (intros t; pose proof (Phi_within t); nra).
  destruct (IVT (fun x => - bending x) (IZR (fst bend_between) / 2 ^ 30) (IZR (snd bend_between) / 2 ^ 30))
    as (z & Z & R).
  - intros x. apply continuity_pt_filterlim, (continuous_opp bending).
    eapply continuous_of_derive, derive_bending.
  - simpl. lra.
  - unfold bending, Phi. simpl. interval with (i_prec 60).
  - unfold bending, Phi. simpl. interval with (i_prec 60).
  - exists z. split; [trivial|]. simpl in Z. split.
    + unfold f', phi, Phi. simpl. interval with (i_prec 60).
    + split; intros t H; rewrite E, <- bending_abs; pose proof (P t); pose proof (Rabs_pos t) as A;
        set (a := Rabs t) in *.
      * enough (0 < bending a) by nra. destruct (Rle_dec a (13 / 10)) as [L|L].
        -- clearbody a. unfold bending, Phi. interval with (i_bisect a).
        -- pose proof (bending_falls a z). lra.
      * enough (bending a < 0) by nra. destruct (Rle_dec a (3 / 2)) as [L|L].
        -- pose proof (bending_falls z a). lra.
        -- destruct (Rle_dec a 2) as [M|M].
           ++ assert (3 / 2 <= a <= 2) by lra. clearbody a. unfold bending, Phi. interval with (i_bisect a).
           ++ pose proof (f''_negative_far (- a) ltac:(lra)) as F. rewrite E, <- bending_abs, Rabs_Ropp in F.
              rewrite (Rabs_pos_eq a) in F by trivial. apply Rnot_le_lt.
              intros G. pose proof (Rmult_le_pos _ _ (Rlt_le _ _ (P (- a))) G). lra.
Qed.

(* Encloses y_low and y_high, in units of 2^-50. *)
Definition near_y_star := (-191448865227626, -191448865227624)%Z.
