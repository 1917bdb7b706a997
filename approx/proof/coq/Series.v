(* Polynomials as lists of coefficients, and functions near them: from a polynomial near phi to one near Phi,
   and from one near f'' to f' and the coordinate next to the branch point. Coefficients of integrals are not
   given but computed, so that there is nothing to prove of them. *)

From Coq Require Import Reals Lra List ZArith Lia.
From Coquelicot Require Import Coquelicot.
From Outgrad Require Import Calculus Activation BranchPoint.
Import ListNotations.
Open Scope R_scope.

Fixpoint horner (c : list R) (u : R) : R :=
  match c with [] => 0 | [a] => a | a :: c => a + u * horner c u end.

(* a_0 / k, a_1 / (k + 1), ...: u^k times it has the derivative u^(k - 1) times (a_0 + a_1 u + ...). *)
Fixpoint primitive (k : Z) (c : list R) : list R :=
  match c with [] => [] | a :: c => a / IZR k :: primitive (k + 1) c end.

Lemma horner_cons a c u : horner (a :: c) u = a + u * horner c u.
Proof. destruct c; simpl; ring. Qed.

Lemma primitive_cons k a c : primitive k (a :: c) = a / IZR k :: primitive (k + 1) c.
Proof. reflexivity. Qed.

Lemma derive_primitive_power c : forall n u,
  is_derive (fun u => u ^ S n * horner (primitive (Z.of_nat (S n)) c) u) u (u ^ n * horner c u).
Proof.
  induction c as [|a c IH]; intros n u.
  - simpl horner. rewrite Rmult_0_r. apply derive_ext with (fun _ => 0). intros t. ring.
    exact (is_derive_const 0 u).
  - apply derive_ext with (fun u =>
      a / INR (S n) * u ^ S n + u ^ S (S n) * horner (primitive (Z.of_nat (S (S n))) c) u).
    + intros t. rewrite primitive_cons, horner_cons, <- INR_IZR_INZ.
      replace (Z.of_nat (S n) + 1)%Z with (Z.of_nat (S (S n))) by lia.
      rewrite <- (tech_pow_Rmult t (S n)). ring.
    + rewrite horner_cons. eapply derive_as. apply derive_plus; [|apply IH].
      apply (is_derive_scal (fun u => u ^ S n)).
      apply (is_derive_pow (fun u => u) (S n) u 1), (is_derive_id u). simpl pred. simpl pow.
      assert (0 < INR (S n)) by apply lt_0_INR, Nat.lt_0_succ. field. lra.
Qed.

Lemma derive_primitive c u : is_derive (fun u => u * horner (primitive 1 c) u) u (horner c u).
Proof.
  eapply derive_ext; [|eapply derive_as; [apply (derive_primitive_power c 0)|]].
  - intros t. simpl. ring.
  - simpl. ring.
Qed.

Lemma derive_primitive_2 c u : is_derive (fun u => u * u * horner (primitive 2 c) u) u (u * horner c u).
Proof.
  eapply derive_ext; [|eapply derive_as; [apply (derive_primitive_power c 1)|]].
  - intros t. simpl. ring.
  - simpl. ring.
Qed.

(* If G' is near F' within d, then G, which is 0 at 0, is near F within d |u| times what the distance allows.
   *)
Lemma near_primitive (F F' G G' : R -> R) a b u d :
  (forall t, is_derive F t (F' t)) -> (forall t, is_derive G t (G' t)) -> a <= 0 <= b -> a <= u <= b ->
  (forall t, a <= t <= b -> Rabs t <= Rabs u -> Rabs (F' t - G' t) <= d) -> Rabs ((F u - F 0) - (G u - G 0))
    <= d * Rabs u.
Proof.
  intros DF DG H0 Hu Hd.
  destruct (mean_value (fun t => F t - G t) (fun t => F' t - G' t) 0 u) as (c & Hc & E).
  - intros t. now apply derive_minus.
  - replace (F u - F 0 - (G u - G 0)) with ((F' c - G' c) * (u - 0)) by lra. rewrite Rminus_0_r, Rabs_mult.
    apply Rmult_le_compat_r. apply Rabs_pos. revert Hc. unfold Rmin, Rmax.
    destruct (Rle_dec 0 u); intros Hc; apply Hd; try lra; unfold Rabs; destruct (Rcase_abs c), (Rcase_abs u);
      lra.
Qed.

(* One cell of Phi about its centre c: from its value there and a polynomial near phi. *)
Theorem Phi_cell D c v e d a b :
  a <= 0 <= b -> Rabs (Phi c - v) <= e -> (forall u, a <= u <= b -> Rabs (phi (c + u) - horner D u) <= d) ->
  forall u, a <= u <= b -> Rabs (Phi (c + u) - (v + u * horner (primitive 1 D) u)) <= e + d * Rabs u.
Proof.
  intros H0 Hv Hd u Hu.
  pose proof (near_primitive (fun u => Phi (c + 1 * u)) (fun u => 1 * phi (c + 1 * u)) (fun u =>
    u * horner (primitive 1 D) u) (horner D) a b u d) as N.
  assert (B : Rabs (Phi (c + 1 * u) - Phi (c + 1 * 0) - (u * horner (primitive 1 D) u
    - 0 * horner (primitive 1 D) 0)) <= d * Rabs u).
  { apply N; trivial.
    - intros t. apply (derive_affine Phi phi), derive_Phi.
    - apply derive_primitive.
    - intros t Ht _. rewrite !Rmult_1_l. now apply Hd. }
  replace (c + 1 * u) with (c + u) in B by ring. replace (c + 1 * 0) with c in B by ring.
  replace (Phi (c + u) - (v + u * horner (primitive 1 D) u)) with
    ((Phi c - v) + (Phi (c + u) - Phi c - (u * horner (primitive 1 D) u - 0 * horner (primitive 1 D) 0)))
      by ring.
  eapply Rle_trans. apply Rabs_triang. lra.
Qed.

Lemma coordinate_of_quotient u h : f (x_star + u) - y_star = u * u * h ->
  coordinate (x_star + u) = u * sqrt h.
Proof.
  intros E. unfold coordinate. rewrite E, sqrt_mult_alt by apply Rle_0_sqr. destruct Rle_dec.
  - rewrite sqrt_square by lra. ring.
  - replace (u * u) with (- u * - u) by ring. rewrite sqrt_square by lra. ring.
Qed.

(* Across the branch point, u = x - x_star: from a polynomial q near f'', f' = u (q integrated once + r) and
   the coordinate is u sqrt (q integrated twice + e), so that nothing is singular at u = 0. *)
Theorem branch_cell q d a b :
  a <= 0 <= b -> (forall u, a <= u <= b -> Rabs (f'' (x_star + u) - horner q u) <= d) ->
  forall u, a <= u <= b -> exists r e, - d <= r <= d /\ - d <= e <= d /\
    f' (x_star + u) = u * (horner (primitive 1 q) u + r) /\
    coordinate (x_star + u) = u * sqrt (horner (primitive 2 (primitive 1 q)) u + e).
Proof.
  intros H0 Hd u Hu.
  assert (B1 : forall v, a <= v <= b -> Rabs (f' (x_star + v) - v * horner (primitive 1 q) v) <= d * Rabs v).
  { intros v Hv.
    pose proof (near_primitive (fun u => f' (x_star + 1 * u)) (fun u => 1 * f'' (x_star + 1 * u))
      (fun u => u * horner (primitive 1 q) u) (horner q) a b v d) as N.
    replace (f' (x_star + v) - v * horner (primitive 1 q) v) with
      (f' (x_star + 1 * v) - f' (x_star + 1 * 0) - (v * horner (primitive 1 q) v
        - 0 * horner (primitive 1 q) 0)).
    - apply N; trivial.
      + intros t. apply (derive_affine f' f''), derive_f'.
      + apply derive_primitive.
      + intros t Ht _. rewrite !Rmult_1_l. now apply Hd.
    - replace (x_star + 1 * 0) with x_star by ring. rewrite f'_x_star, Rmult_1_l. ring. }
  assert (B2 : Rabs (f (x_star + u) - y_star - u * u * horner (primitive 2 (primitive 1 q)) u)
    <= d * Rabs u * Rabs u).
  { pose proof (near_primitive (fun u => f (x_star + 1 * u)) (fun u => 1 * f' (x_star + 1 * u))
      (fun u => u * u * horner (primitive 2 (primitive 1 q)) u) (fun u =>
        u * horner (primitive 1 q) u) a b u (d * Rabs u)) as N.
    replace (f (x_star + u) - y_star - u * u * horner (primitive 2 (primitive 1 q)) u) with
      (f (x_star + 1 * u) - f (x_star + 1 * 0) -
        (u * u * horner (primitive 2 (primitive 1 q)) u - 0 * 0 * horner (primitive 2 (primitive 1 q)) 0)).
    - apply N; trivial.
      + intros t. apply (derive_affine f f'), derive_f.
      + intros t. apply derive_primitive_2.
      + intros t Ht L. rewrite !Rmult_1_l. eapply Rle_trans. now apply B1. apply Rmult_le_compat_l; trivial.
        eapply Rle_trans. apply Rabs_pos. apply (Hd 0). lra.
    - replace (x_star + 1 * 0) with x_star by ring. unfold y_star. rewrite Rmult_1_l. ring. }
  specialize (B1 u Hu).
  destruct (Req_dec u 0) as [->|N].
  - assert (0 <= d) by (eapply Rle_trans; [apply Rabs_pos|apply (Hd 0); lra]).
    exists 0, 0. repeat split; try lra.
    + rewrite Rplus_0_r, f'_x_star. ring.
    + apply coordinate_of_quotient. rewrite Rplus_0_r. unfold y_star. ring.
  - exists ((f' (x_star + u) - u * horner (primitive 1 q) u) / u),
      ((f (x_star + u) - y_star - u * u * horner (primitive 2 (primitive 1 q)) u) / (u * u)).
    assert (P : 0 < Rabs u) by now apply Rabs_pos_lt. split; [|split; [|split]].
    + apply Rcomplements.Rabs_le_between. unfold Rdiv. rewrite Rabs_mult, Rabs_inv.
      apply Rmult_le_reg_r with (Rabs u); trivial. rewrite Rmult_assoc, Rinv_l, Rmult_1_r; lra.
    + apply Rcomplements.Rabs_le_between. unfold Rdiv. rewrite Rabs_mult, Rabs_inv, (Rabs_mult u u).
      apply Rmult_le_reg_r with (Rabs u * Rabs u). nra. rewrite Rmult_assoc, Rinv_l, Rmult_1_r; nra.
    + field. trivial.
    + apply coordinate_of_quotient. field. trivial.
Qed.
