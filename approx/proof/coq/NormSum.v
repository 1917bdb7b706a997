(* The sums of a row (kernels/reduce.h, first_fold of GradientTerms in kernels/layernorm.h): products of fp32
   numbers, two at a time by one fma, added in any tree. The error is that of stability.h, with D one more
   than the additions on the longest path, because its D counts the fma. *)

From Coq Require Import Reals ZArith Bool List SpecFloat Lia Lra.
From Flocq Require Import Core IEEE754.BinarySingleNaN.
From Outgrad Require Import Format Kernel Forward NormChannel.
Import ListNotations.
Open Scope R_scope.

Inductive tree := Fold (low_a low_b high_a high_b : spec_float) | Add (low high : tree).

Fixpoint summed (t : tree) : spec_float :=
  match t with Fold a b c d => fma a b (mul c d) | Add s t => add (summed s) (summed t) end.

Definition value (a : spec_float) : R := SF2R radix2 a.
Fixpoint exact (t : tree) : R :=
  match t with Fold a b c d => value a * value b + value c * value d | Add s t => exact s + exact t end.
Fixpoint magnitudes_of (t : tree) : R :=
  match t with
  | Fold a b c d => Rabs (value a * value b) + Rabs (value c * value d)
  | Add s t => magnitudes_of s + magnitudes_of t
  end.
Fixpoint folds (t : tree) : nat := match t with Fold _ _ _ _ => 1 | Add s t => folds s + folds t end%nat.
Fixpoint additions (t : tree) : nat :=
  match t with Fold _ _ _ _ => 0 | Add s t => S (Nat.max (additions s) (additions t)) end%nat.
(* Numbers of fp32, or infinities or NaN of it. *)
Fixpoint in_fp32 (t : tree) : Prop :=
  match t with
  | Fold a b c d => Forall (fun x => valid_binary 24 128 x = true) [a; b; c; d]
  | Add s t => in_fp32 s /\ in_fp32 t
  end.

(* ---- A finite result has finite operands, and is correctly rounded ---------------------------- *)

Lemma valid_Flocq x : valid_binary 24 128 x = true -> exists b : float32, x = B2SF b.
Proof. intros V. exists (SF2B x V). now rewrite B2SF_SF2B. Qed.

Lemma overflow_not_finite s : is_finite_SF (binary_overflow 24 128 mode_NE s) = false.
Proof. reflexivity. Qed.

Lemma add_finite (a b : float32) : is_finite_SF (add (B2SF a) (B2SF b)) = true ->
  is_finite a = true /\ is_finite b = true /\ value (add (B2SF a) (B2SF b)) = nearest 24 128 (B2R a + B2R b).
Proof.
  unfold value, add. rewrite add_Flocq, is_finite_SF_B2SF, SF2R_B2SF. intros F.
  assert (FA : is_finite a = true) by now destruct a as [|[]| |], b as [|[]| |].
  assert (FB : is_finite b = true) by now destruct a as [|[]| |], b as [|[]| |].
  pose proof (Bplus_correct 24 128 _ _ mode_NE a b FA FB) as E. destruct Rlt_bool.
  - now split; [|split].
  - destruct E as [E _]. rewrite <- is_finite_SF_B2SF, E in F. discriminate.
Qed.

Lemma mul_finite (a b : float32) : is_finite_SF (mul (B2SF a) (B2SF b)) = true ->
  is_finite a = true /\ is_finite b = true /\ value (mul (B2SF a) (B2SF b)) = nearest 24 128 (B2R a * B2R b).
Proof.
  unfold value, mul. rewrite mul_Flocq, is_finite_SF_B2SF, SF2R_B2SF. intros F.
  assert (FA : is_finite a = true) by now destruct a, b.
  assert (FB : is_finite b = true) by now destruct a, b.
  pose proof (Bmult_correct 24 128 _ _ mode_NE a b) as E. destruct Rlt_bool.
  - now split; [|split].
  - rewrite <- is_finite_SF_B2SF, E in F. discriminate.
Qed.

Lemma fma_finite (a b c : float32) : is_finite_SF (fma (B2SF a) (B2SF b) (B2SF c)) = true ->
  is_finite c = true /\
  value (fma (B2SF a) (B2SF b) (B2SF c)) = nearest 24 128 (B2R a * B2R b + B2R c).
Proof.
  unfold value. rewrite fma_Flocq, is_finite_SF_B2SF, SF2R_B2SF. intros F.
  assert (FA : is_finite a = true) by now destruct a as [|[]| |[]], b as [|[]| |[]], c as [|[]| |].
  assert (FB : is_finite b = true) by now destruct a as [|[]| |[]], b as [|[]| |[]], c as [|[]| |].
  assert (FC : is_finite c = true) by now destruct a as [|[]| |[]], b as [|[]| |[]], c as [|[]| |].
  pose proof (Bfma_correct 24 128 _ _ mode_NE a b c FA FB FC) as E. cbv zeta in E. destruct Rlt_bool.
  - now split.
  - rewrite <- is_finite_SF_B2SF, E in F. discriminate.
Qed.

(* ---- The error ------------------------------------------------------------------------------- *)

Lemma sum_error v w : in_format 24 128 v -> in_format 24 128 w ->
  exists d, Rabs d <= e /\ nearest 24 128 (v + w) = (v + w) * (1 + d).
Proof.
  intros V [W W']. replace (v + w) with (v - - w) by ring. apply difference_error; trivial.
  split. now apply generic_format_opp. now rewrite Rabs_Ropp.
Qed.

Definition growth (n : nat) : R := (1 + e) ^ n.

Lemma growth_at_least n : 1 <= growth n.
Proof. apply pow_R1_Rle. unfold e. simpl. lra. Qed.

Lemma growth_monotone m n : (m <= n)%nat -> growth m <= growth n.
Proof. intros H. apply Rle_pow; trivial. unfold e. simpl. lra. Qed.

Lemma exact_at_most t : Rabs (exact t) <= magnitudes_of t.
Proof. induction t; simpl; apply abs_add; trivial; apply Rle_refl. Qed.

Lemma magnitudes_positive t : 0 <= magnitudes_of t.
Proof. eapply Rle_trans; [apply Rabs_pos|apply exact_at_most]. Qed.

Lemma summed_valid t : in_fp32 t -> exists b : float32, summed t = B2SF b.
Proof.
  induction t as [a b c d|s IHs t IHt]; simpl.
  - intros V. repeat match goal with H : Forall _ (_ :: _) |- _ => inversion_clear H end.
    destruct (valid_Flocq a) as (a' & ->), (valid_Flocq b) as (b' & ->), (valid_Flocq c) as (c' & ->),
      (valid_Flocq d) as (d' & ->); trivial. unfold mul. rewrite mul_Flocq, fma_Flocq. eauto.
  - intros [V W]. destruct (IHs V) as (a & ->), (IHt W) as (b & ->). unfold add. rewrite add_Flocq. eauto.
Qed.

(* Of an addition, from the errors of what is added. *)
Lemma addition_error v w v' w' E : in_format 24 128 v' -> in_format 24 128 w' ->
  Rabs (v' - v) + Rabs (w' - w) <= E ->
  Rabs (nearest 24 128 (v' + w') - (v + w)) <= (1 + e) * E + e * (Rabs v + Rabs w).
Proof.
  intros V W H. destruct (sum_error v' w' V W) as (d & D & ->).
  replace ((v' + w') * (1 + d) - (v + w)) with ((1 + d) * (v' - v + (w' - w)) + d * (v + w)) by ring.
  assert (E' : Rabs (v' - v + (w' - w)) <= E) by (eapply Rle_trans; [apply Rabs_triang|exact H]).
  apply abs_add; apply abs_mul; trivial; [|apply Rabs_triang]. apply abs_add; trivial. rewrite Rabs_R1. lra.
Qed.

(* As long as nothing overflows, which the result shows. *)
Theorem row_sum_error t : in_fp32 t -> is_finite_SF (summed t) = true ->
  Rabs (value (summed t) - exact t)
    <= (growth (additions t + 2) - 1) * magnitudes_of t + INR (folds t) * least * growth (additions t + 1).
Proof.
  assert (L : 0 < least) by apply bpow_gt_0.
  assert (E0 : 0 < e <= 1) by (unfold e; simpl; lra).
  induction t as [a b c d|s IHs t IHt]; intros V F.
  - clear - V F L E0. simpl in V.
    repeat match goal with H : Forall _ (_ :: _) |- _ => inversion_clear H end.
    destruct (valid_Flocq a) as (a' & ->), (valid_Flocq b) as (b' & ->), (valid_Flocq c) as (c' & ->),
      (valid_Flocq d) as (d' & ->); trivial.
    simpl summed in *. unfold mul in *. rewrite mul_Flocq in *. apply fma_finite in F as [P ->].
    rewrite <- is_finite_SF_B2SF, <- mul_Flocq in P. apply mul_finite in P as (_ & _ & P).
    unfold value, mul in P. rewrite mul_Flocq, SF2R_B2SF in P. rewrite P. unfold value. simpl exact.
    simpl magnitudes_of. unfold value. rewrite !SF2R_B2SF.
    set (p := B2R a' * B2R b'). set (q := B2R c' * B2R d').
    destruct (nearest_error 24 128 q eq_refl) as (d1 & t1 & D1 & T1 & ->).
    destruct (nearest_error 24 128 (p + (q * (1 + d1) + t1)) eq_refl) as (d2 & t2 & D2 & T2 & ->).
    change (bpow radix2 (- (24))) with e in *.
    replace (bpow radix2 (emin 24 128 - 1)) with (least / 2) in * by (unfold least; simpl; lra).
    replace ((p + (q * (1 + d1) + t1)) * (1 + d2) + t2 - (p + q))
      with (p * d2 + q * (d1 + d2 + d1 * d2) + (t1 * (1 + d2) + t2)) by ring.
    assert (D2' : Rabs (1 + d2) <= 1 + e) by (apply abs_add; trivial; rewrite Rabs_R1; lra).
    apply Rle_trans with (Rabs p * e + Rabs q * (e + e + e * e) + (least / 2 * (1 + e) + least / 2)).
    { repeat apply abs_add; apply abs_mul || trivial; trivial; try apply Rle_refl.
      repeat apply abs_add; trivial. now apply abs_mul. }
    unfold growth. simpl. pose proof (Rabs_pos p). pose proof (Rabs_pos q). nra.
  - destruct V as [V W]. destruct (summed_valid s V) as (s' & S'), (summed_valid t W) as (t' & T').
    simpl summed in *. rewrite S', T' in *. apply add_finite in F as (Fs & Ft & ->).
    rewrite is_finite_SF_B2SF in *. specialize (IHs V Fs). specialize (IHt W Ft). unfold value in *.
    rewrite !SF2R_B2SF in *. simpl exact. simpl magnitudes_of. simpl folds. simpl additions.
    set (m := Nat.max (additions s) (additions t)). rewrite plus_INR.
    pose proof (magnitudes_positive s) as Ms. pose proof (magnitudes_positive t) as Mt.
    assert (G : forall u, additions u = additions s \/ additions u = additions t ->
      (growth (additions u + 2) - 1) * magnitudes_of u + INR (folds u) * least * growth (additions u + 1)
        <= (growth (m + 2) - 1) * magnitudes_of u + INR (folds u) * least * growth (m + 1)).
    { intros u U. assert (additions u <= m)%nat by (unfold m; lia). apply Rplus_le_compat.
      - apply Rmult_le_compat_r. apply magnitudes_positive.
        pose proof (growth_monotone (additions u + 2) (m + 2)). lra || (apply Rplus_le_compat_r,
          growth_monotone; lia).
      - apply Rmult_le_compat_l. apply Rmult_le_pos. apply pos_INR. lra. apply growth_monotone. lia. }
    pose proof (Rle_trans _ _ _ IHs (G s (or_introl eq_refl))) as Hs.
    pose proof (Rle_trans _ _ _ IHt (G t (or_intror eq_refl))) as Ht.
    eapply Rle_trans.
    { apply addition_error; [apply stands_for_in_format with (B2SF s')|apply stands_for_in_format with
        (B2SF t')|apply (Rplus_le_compat _ _ _ _ Hs Ht)]; (split; [apply valid_binary_B2SF|]);
        rewrite is_finite_SF_B2SF, SF2R_B2SF; now split. }
    pose proof (exact_at_most s). pose proof (exact_at_most t).
    replace (growth (S m + 2)) with ((1 + e) * growth (m + 2)) by reflexivity.
    replace (growth (S m + 1)) with ((1 + e) * growth (m + 1)) by reflexivity. nra.
Qed.

(* (1 + e)^n - 1 is at most g(n) of stability.h. *)
Theorem growth_at_most n : INR n * e < 1 -> growth n - 1 <= INR n * e / (1 - INR n * e).
Proof.
  intros H. assert (E0 : 0 < e) by apply bpow_gt_0. pose proof (pos_INR n) as N.
  assert (B : growth n * (1 - INR n * e) <= 1).
  { clear H N. induction n as [|n IH]; [unfold growth; simpl; lra|].
    rewrite S_INR. change (growth (S n)) with ((1 + e) * growth n). pose proof (growth_at_least n).
    pose proof (pos_INR n). nra. }
  apply Rmult_le_reg_r with (1 - INR n * e). lra. unfold Rdiv. rewrite Rmult_assoc, Rinv_l by lra. lra.
Qed.
