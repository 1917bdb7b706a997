(* From one cell to the error of a row's polynomial over it. Each theorem leaves to be shown an inequality
   between polynomials and square roots, in which what is not known of Phi, phi, f'' and y_star are variables
   with bounds: this is what coq-interval proves. The tactic below does so. *)

From Coq Require Import Reals Lra List ZArith.
From Coquelicot Require Import Coquelicot.
From Interval Require Import Tactic.
From Outgrad Require Import Calculus Activation BranchPoint Series.
Import ListNotations.
Open Scope R_scope.

(* Phi and phi at c + u, by a polynomial D near phi: t and r are what it leaves out. *)
Lemma cell_values D c v e d E a b :
  a <= 0 <= b -> Rabs (Phi c - v) <= e -> (forall u, a <= u <= b -> Rabs (phi (c + u) - horner D u) <= d) ->
  e + d * - a <= E -> e + d * b <= E ->
  forall u, a <= u <= b -> exists t r, - E <= t <= E /\ - d <= r <= d /\
    Phi (c + u) = v + u * horner (primitive 1 D) u + t /\ phi (c + u) = horner D u + r.
Proof.
  intros H0 Hv Hd EL ER u Hu.
  exists (Phi (c + u) - (v + u * horner (primitive 1 D) u)), (phi (c + u) - horner D u).
  split; [|split; [|split]]; try ring; apply Rcomplements.Rabs_le_between; [|now apply Hd].
  eapply Rle_trans. apply (Phi_cell D c v e d a b); trivial.
  assert (P : 0 <= d) by (eapply Rle_trans; [apply Rabs_pos|now apply (Hd u)]).
  unfold Rabs. destruct (Rcase_abs u); nra.
Qed.

Section Cell.

Variables (p : R -> R) (A : R) (D : list R) (c v e d E a b : R).
Hypothesis zero_inside : a <= 0 <= b.
Hypothesis anchor : Rabs (Phi c - v) <= e.
Hypothesis density : forall u, a <= u <= b -> Rabs (phi (c + u) - horner D u) <= d.
Hypothesis error_left : e + d * - a <= E.
Hypothesis error_right : e + d * b <= E.

Ltac enter x :=
  destruct (cell_values D c v e d E a b zero_inside anchor density error_left error_right (x - c)) as
    (t & r & Ht & Hr & P & Q); [lra|];
  replace (c + (x - c)) with x in P, Q by ring.

(* Right of x_star, in the coordinate s. *)
Theorem right_cell :
  x_high <= c + a ->
  (forall u t r y, a <= u <= b -> - E <= t <= E -> - d <= r <= d -> y_low <= y <= y_high ->
    Rabs (p (sqrt ((c + u) * (v + u * horner (primitive 1 D) u + t) - y))
          - (v + u * horner (primitive 1 D) u + t + (c + u) * (horner D u + r))) <= A) ->
  forall x, c + a <= x <= c + b -> Rabs (p (coordinate x) - f' x) <= A.
Proof.
  intros Hx H x Hr'. pose proof x_star_between. pose proof y_star_between. enter x.
  specialize (H (x - c) t r y_star). replace (c + (x - c)) with x in H by ring. rewrite <- P, <- Q in H.
  unfold coordinate, f at 1, f'. destruct Rle_dec; [|lra]. apply H; trivial; lra.
Qed.

(* Left of x_star, in the coordinate s. *)
Theorem left_cell :
  c + b < x_low ->
  (forall u t r y, a <= u <= b -> - E <= t <= E -> - d <= r <= d -> y_low <= y <= y_high ->
    Rabs (p (- sqrt ((c + u) * (v + u * horner (primitive 1 D) u + t) - y))
          - (v + u * horner (primitive 1 D) u + t + (c + u) * (horner D u + r))) <= A) ->
  forall x, c + a <= x <= c + b -> Rabs (p (coordinate x) - f' x) <= A.
Proof.
  intros Hx H x Hr'. pose proof x_star_between. pose proof y_star_between. enter x.
  specialize (H (x - c) t r y_star). replace (c + (x - c)) with x in H by ring. rewrite <- P, <- Q in H.
  unfold coordinate, f at 2, f'. destruct Rle_dec; [lra|]. apply H; trivial; lra.
Qed.

(* In the coordinate y itself. *)
Theorem output_cell :
  (forall u t r, a <= u <= b -> - E <= t <= E -> - d <= r <= d ->
    Rabs (p ((c + u) * (v + u * horner (primitive 1 D) u + t))
          - (v + u * horner (primitive 1 D) u + t + (c + u) * (horner D u + r))) <= A) ->
  forall x, c + a <= x <= c + b -> Rabs (p (f x) - f' x) <= A.
Proof.
  intros H x Hr'. enter x. specialize (H (x - c) t r). replace (c + (x - c)) with x in H by ring.
  rewrite <- P, <- Q in H. unfold f, f'. apply H; trivial; lra.
Qed.

End Cell.

(* About x_star, in the coordinate s: q is near f'' from a to b, which x_star lies between, and the row from l
   to h. *)
Theorem across_cell p A q d a b l h :
  a <= 0 <= b -> a <= l -> h <= b ->
  (forall x u, x_low <= x <= x_high -> a <= u <= b -> Rabs (f'' (x + u) - horner q u) <= d) ->
  (forall u e r, l <= u <= h -> - d <= e <= d -> - d <= r <= d ->
    Rabs (p (u * sqrt (horner (primitive 2 (primitive 1 q)) u + e)) - u * (horner (primitive 1 q) u + r))
      <= A) ->
  forall x, x_high + l <= x <= x_low + h -> Rabs (p (coordinate x) - f' x) <= A.
Proof.
  intros H0 Hl Hh Hq H x Hx. pose proof x_star_between as X.
  destruct (branch_cell q d a b) with (u := x - x_star) as (r & e & Hr & He & F & S); trivial; [|lra|].
  - intros u Hu. now apply Hq.
  - replace (x_star + (x - x_star)) with x in F, S by ring. rewrite F, S. apply H; trivial. lra.
Qed.

(* The coordinate of y left and right of x_star. *)
Definition left_root_of (y : R) := - sqrt (y - y_star).
Definition root_of (y : R) := sqrt (y - y_star).

Lemma coordinate_left x : x < x_low -> coordinate x = left_root_of (f x).
Proof. intros Hx. pose proof x_star_between. unfold coordinate. destruct Rle_dec; trivial. lra. Qed.

(* What lies left of the first cell, where y goes to 0: p is a polynomial in the coordinate of y, given by
   s_of. *)
Theorem left_tail_row p (s_of : R -> R) A c v e low slope :
  c <= - tail -> Rabs (Phi c - v) <= e -> (forall P, v - e <= P <= v + e -> low <= c * P /\
    slope <= P + c * phi c) ->
  (forall y g, low <= y <= 0 -> slope <= g <= 0 -> Rabs (p (s_of y) - g) <= A) ->
  forall x, x <= c -> Rabs (p (s_of (f x)) - f' x) <= A.
Proof.
  intros Hc Hv Hl H x Hx. apply between_of_abs, Hl in Hv. destruct (left_tail c x Hc Hx) as [F G].
  fold (f c) (f' c) in Hv. apply H; lra.
Qed.

(* Likewise right of the last cell, where y is held at y_max. *)
Theorem right_tail_row p (s_of : R -> R) y_max A c v e low slope :
  tail <= c -> Rabs (Phi c - v) <= e -> (forall P, v - e <= P <= v + e -> low <= c * P /\
    P + c * phi c <= slope) ->
  low <= y_max -> (forall y g, low <= y <= y_max -> 1 <= g <= slope -> Rabs (p (s_of y) - g) <= A) ->
  forall x, c <= x -> Rabs (p (s_of (Rmin (f x) y_max)) - f' x) <= A.
Proof.
  intros Hc Hv Hl Hm H x Hx. apply between_of_abs, Hl in Hv. destruct (right_tail c x Hc Hx) as [F G].
  fold (f c) (f' c) in Hv. apply H; [|lra]. unfold Rmin. destruct Rle_dec; lra.
Qed.

(* ---- Tactic ---------------------------------------------------------------------------------- *)

(* A bound over intervals of variables, u among them; definitions have been unfolded down to lists of numbers.
   Taylor models alone do not split the interval, so both are asked for. *)
Tactic Notation "prove_bound" ident(u) constr(degree) constr(bits) :=
  cbn [horner primitive Z.add Pos.add Pos.succ Pos.add_carry];
    interval with (i_bisect u, i_taylor u, i_degree degree, i_prec bits).
