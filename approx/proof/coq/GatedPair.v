(* What a gated pair z = f(a) b keeps (kernels/product.h), from its operations in fp32 and the narrowing of z:
   how far s = z / b is from f(a), and db = dz s from dz f(a). With Product.v this is the error of f'(a), too.
   x stands for a. A z that is 0 stands beside b as here where |b| >= 1/2; its sign, which may differ, is not
   looked at. *)

From Coq Require Import Reals ZArith Bool SpecFloat Lia Lra.
From Flocq Require Import Core IEEE754.BinarySingleNaN Relative.
From Outgrad Require Import Activation Format Kernel Forward NormChannel.
Open Scope R_scope.

(* ---- The kernel ------------------------------------------------------------------------------ *)

Definition pair_output (prec emax : Z) (f b : spec_float) : spec_float := narrow prec emax (mul f b).
Definition pair_quotient (z b : spec_float) : spec_float := div (widen z) b.

(* ---- The bounds ------------------------------------------------------------------------------ *)

(* Above kGateError of kernels/gate.h: the gate's fp32 f(a) is off by so much of 1 + |f(a)| at most. *)
Definition gate_error : R := 136 / 10 ^ 9.
(* What rounding to a format takes of a normal number, relatively. *)
Definition rounding (prec : Z) : R := bpow radix2 (- prec) / (1 + bpow radix2 (- prec)).
Definition least_normal (prec emax : Z) : R := bpow radix2 (emin prec emax + prec - 1).

(* ---- Rounding -------------------------------------------------------------------------------- *)

Lemma rounding_error prec emax v : Prec_gt_0 prec -> exists d t, Rabs d <= rounding prec /\
  Rabs t <= bpow radix2 (emin prec emax) / 2 /\ nearest prec emax v = v * (1 + d) + t.
Proof.
  intros P. destruct (relative_error_N_FLT'_ex radix2 (emin prec emax) prec P (fun n => negb (Z.even n)) v)
    as (d & t & D & T & _ & E). rewrite u_ro_bpow in D. exists d, t. repeat split; trivial. lra.
Qed.

(* Where the result is above the least normal number. *)
Lemma normal_error prec emax v : Prec_gt_0 prec -> least_normal prec emax < Rabs (nearest prec emax v) ->
  least_normal prec emax < Rabs v /\
  exists d, Rabs d <= rounding prec /\ nearest prec emax v = v * (1 + d).
Proof.
  intros P N. assert (L : least_normal prec emax < Rabs v).
  { apply Rnot_le_lt. intros O. apply (Rlt_not_le _ _ N). unfold nearest.
    apply abs_round_le_generic; trivial; [now apply fexp_correct|apply valid_rnd_N|].
    unfold least_normal. apply generic_format_bpow. unfold SpecFloat.fexp.
    change (SpecFloat.emin prec emax) with (emin prec emax). red in P. lia. }
  split; trivial.
  destruct (relative_error_N_FLX'_ex radix2 prec P (fun n => negb (Z.even n)) v) as (d & D & E).
  rewrite u_ro_bpow in D. exists d. split; trivial. rewrite <- E.
  apply (round_FLT_FLX radix2 (emin prec emax) prec ZnearestE). now apply Rlt_le.
Qed.

(* ---- Finite results -------------------------------------------------------------------------- *)

Lemma mul_value a b v w : stands_for 24 128 a v -> stands_for 24 128 b w -> is_finite_SF (mul a b) = true ->
  stands_for 24 128 (mul a b) (nearest 24 128 (v * w)).
Proof.
  intros A B F. apply mul_nearest; trivial. apply Rnot_le_lt. intros O.
  apply stands_for_Flocq in A as (a' & -> & FA & <-). apply stands_for_Flocq in B as (b' & -> & FB & <-).
  pose proof (Bmult_correct 24 128 _ _ mode_NE a' b') as E. rewrite Rlt_bool_false in E by exact O.
  unfold mul in F. rewrite mul_Flocq, E in F. discriminate.
Qed.

Lemma div_value a b v w : stands_for 24 128 a v -> stands_for 24 128 b w -> w <> 0 ->
  is_finite_SF (div a b) = true -> stands_for 24 128 (div a b) (nearest 24 128 (v / w)).
Proof.
  intros A B N F. apply div_nearest; trivial. apply Rnot_le_lt. intros O.
  apply stands_for_Flocq in A as (a' & -> & FA & <-). apply stands_for_Flocq in B as (b' & -> & FB & <-).
  pose proof (Bdiv_correct 24 128 _ _ mode_NE a' b' N) as E. rewrite Rlt_bool_false in E by exact O.
  rewrite div_Flocq, E in F. discriminate.
Qed.

Lemma narrow_value prec emax a v : Prec_gt_0 prec -> Prec_lt_emax prec emax -> stands_for 24 128 a v ->
  is_finite_SF (narrow prec emax a) = true -> stands_for prec emax (narrow prec emax a) (nearest prec emax v).
Proof.
  intros P L (_ & _ & <-) F. destruct a as [s| | |s m e]; try discriminate.
  - unfold nearest. simpl. rewrite round_0 by apply valid_rnd_N. now repeat split.
  - now apply stands_for_nearest.
Qed.

(* ---- The theorems ---------------------------------------------------------------------------- *)

Section Pair.

Variables prec emax : Z.
Hypothesis format : prec = 8%Z /\ emax = 128%Z \/ prec = 11%Z /\ emax = 16%Z.
Variable relative : R.
Hypothesis room : rounding prec + bpow radix2 (-22) + bpow radix2 (-24) <= relative.

(* z / b before its rounding. *)
Lemma pair_ratio v b z : b <> 0 -> z = nearest prec emax (nearest 24 128 (v * b)) ->
  least_normal prec emax < Rabs z \/ / 2 <= Rabs b ->
  exists d d' t, Rabs d <= e /\ Rabs d' <= rounding prec /\ Rabs t <= bpow radix2 (-24) + bpow radix2 (-40) /\
    z / b = v * (1 + d) * (1 + d') + t.
Proof.
  intros B -> H. assert (P : Prec_gt_0 prec) by (destruct format as [[-> _]|[-> _]]; reflexivity).
  assert (E24 : rounding 24 <= e) by (unfold rounding, e; simpl; lra).
  destruct (Rlt_le_dec (least_normal prec emax) (Rabs (nearest prec emax (nearest 24 128 (v * b))))) as [N|N].
  - destruct (normal_error prec emax _ P N) as (N' & d' & D' & ->).
    destruct (normal_error 24 128 (v * b) eq_refl) as (_ & d & D & ->).
    { eapply Rle_lt_trans; [|exact N'].
      destruct format as [[-> ->]|[-> ->]]; apply bpow_le; unfold emin; lia. }
    exists d, d', 0. rewrite Rabs_R0. repeat split; trivial; try lra; [simpl; lra|]. now field.
  - destruct H as [H|H]; [lra|].
    destruct (rounding_error 24 128 (v * b) eq_refl) as (d & t & D & T & ->).
    destruct (rounding_error prec emax (v * b * (1 + d) + t) P) as (d' & t' & D' & T' & ->).
    exists d, d', ((t * (1 + d') + t') / b). repeat split; trivial; try lra; [|now field].
    unfold Rdiv. rewrite Rabs_mult, Rabs_inv.
    assert (I : / Rabs b <= 2) by (rewrite <- (Rinv_inv 2); apply Rinv_le_contravar; lra).
    assert (U : rounding prec <= 1) by (destruct format as [[-> _]|[-> _]]; unfold rounding; simpl; lra).
    assert (K : Rabs (t * (1 + d') + t') <= bpow radix2 (-149) / 2 * (1 + 1) + bpow radix2 (-24) / 2).
    { apply abs_add; [apply abs_mul; trivial; apply abs_add; [rewrite Rabs_R1|]; lra|].
      eapply Rle_trans; [exact T'|]. apply Rmult_le_compat_r; [lra|]. apply bpow_le.
      destruct format as [[-> ->]|[-> ->]]; unfold emin; lia. }
    apply Rle_trans with ((bpow radix2 (-149) / 2 * (1 + 1) + bpow radix2 (-24) / 2) * 2); [|simpl; lra].
    apply Rmult_le_compat; trivial; [apply Rabs_pos|]. left. apply Rinv_0_lt_compat. lra.
Qed.

(* v is the gate's f(a), z what is kept. *)
Theorem pair_near x v32 v b32 b : stands_for 24 128 v32 v -> stands_for 24 128 b32 b -> b <> 0 ->
  Rabs (v - f x) <= gate_error * (1 + Rabs (f x)) ->
  let z := pair_output prec emax v32 b32 in
  let s := pair_quotient z b32 in
  is_finite_SF z = true -> is_finite_SF s = true ->
  least_normal prec emax < Rabs (SF2R radix2 z) \/ / 2 <= Rabs b ->
  stands_for 24 128 s (SF2R radix2 s) /\
  Rabs (SF2R radix2 s - f x) <= relative * Rabs (f x) + bpow radix2 (-22).
Proof.
  intros V B B0 G z s FZ FS H.
  assert (P : Prec_gt_0 prec) by (destruct format as [[-> _]|[-> _]]; reflexivity).
  assert (L : Prec_lt_emax prec emax) by (destruct format as [[-> ->]|[-> ->]]; reflexivity).
  assert (W : (prec <= 24 /\ emax <= 128 /\ emin 24 128 <= emin prec emax)%Z)
    by (destruct format as [[-> ->]|[-> ->]]; unfold emin; lia).
  assert (FM : is_finite_SF (mul v32 b32) = true).
  { unfold z, pair_output, narrow, converted in FZ. now destruct (mul v32 b32). }
  pose proof (narrow_value prec emax _ _ P L (mul_value _ _ _ _ V B FM) FZ) as Z.
  change (narrow prec emax (mul v32 b32)) with z in Z.
  pose proof (div_value _ _ _ _ (widen_right prec emax P W _ _ Z) B B0 FS) as S.
  change (div (widen z) b32) with s in S. destruct Z as (_ & _ & Z). rewrite Z in H.
  destruct (pair_ratio v b _ B0 eq_refl H) as (d & d' & t & D & D' & T & E). rewrite E in S. clear E Z H.
  destruct (rounding_error 24 128 (v * (1 + d) * (1 + d') + t) eq_refl) as (c & r & C & R & E).
  pose proof S as (_ & _ & Q). rewrite Q. split; [exact S|]. rewrite E.
  assert (C' : Rabs c <= e) by (eapply Rle_trans; [exact C|unfold rounding, e; simpl; lra]). clear C.
  set (F := f x) in *. set (u := rounding prec) in *.
  assert (U : 0 <= u <= / 257) by (unfold u, rounding; destruct format as [[-> _]|[-> _]]; simpl; lra).
  set (D3 := (1 + d) * (1 + d') * (1 + c) - 1).
  assert (De : Rabs D3 <= u + (1 + u) * (2 * e + e * e)).
  { unfold D3. replace ((1 + d) * (1 + d') * (1 + c) - 1) with (d' + (1 + d') * (d + c + d * c)) by ring.
    apply abs_add; trivial. apply abs_mul; [apply abs_add; trivial; rewrite Rabs_R1; lra|].
    replace (2 * e + e * e) with (e + e + e * e) by ring. repeat apply abs_add; trivial. now apply abs_mul. }
  set (m := u + (1 + u) * (2 * e + e * e)) in *.
  replace ((v * (1 + d) * (1 + d') + t) * (1 + c) + r - F) with
    ((v - F) * (1 + D3) + F * D3 + t * (1 + c) + r) by (unfold D3; ring).
  pose proof (Rabs_pos F) as F0.
  apply Rle_trans with (gate_error * (1 + Rabs F) * (1 + m) + Rabs F * m
    + (bpow radix2 (-24) + bpow radix2 (-40)) * (1 + e) + bpow radix2 (-149) / 2).
  - repeat apply abs_add; trivial; apply abs_mul; trivial; try apply Rle_refl; apply abs_add; trivial;
      rewrite Rabs_R1; lra.
  - assert (M : m <= u + 258 / 257 * (2 * e + e * e)).
    { unfold m. apply Rplus_le_compat_l, Rmult_le_compat_r; unfold e; simpl; lra. }
    assert (M1 : gate_error * (1 + m) + m <= relative).
    { eapply Rle_trans; [|exact room]. fold u. unfold gate_error, e in *. simpl in *. lra. }
    assert (M2 : gate_error * (1 + m) + (bpow radix2 (-24) + bpow radix2 (-40)) * (1 + e)
      + bpow radix2 (-149) / 2 <= bpow radix2 (-22)) by (unfold gate_error, e in *; simpl in *; lra).
    apply (Rmult_le_compat_r (Rabs F)) in M1; trivial. lra.
Qed.

(* dz: any fp32 number; db as it is before it is rounded to the format. *)
Theorem pair_db x v32 v b32 b dz32 dz : stands_for 24 128 v32 v -> stands_for 24 128 b32 b -> b <> 0 ->
  stands_for 24 128 dz32 dz -> Rabs (v - f x) <= gate_error * (1 + Rabs (f x)) ->
  let z := pair_output prec emax v32 b32 in
  let s := pair_quotient z b32 in
  let db := mul dz32 s in
  is_finite_SF z = true -> is_finite_SF s = true -> is_finite_SF db = true ->
  least_normal prec emax < Rabs (SF2R radix2 z) \/ / 2 <= Rabs b ->
  Rabs (SF2R radix2 db - dz * f x)
    <= Rabs dz * ((1 + e) * (relative * Rabs (f x) + bpow radix2 (-22)) + e * Rabs (f x)) + least / 2.
Proof.
  intros V B B0 Dz G z s db FZ FS FD H.
  destruct (pair_near x v32 v b32 b V B B0 G FZ FS H) as [S N]. fold z s in S, N.
  set (w := SF2R radix2 s) in *. pose proof (mul_value _ _ _ _ Dz S FD) as (_ & _ & E). fold db in E.
  rewrite E.
  destruct (rounding_error 24 128 (dz * w) eq_refl) as (d & t & D & T & ->).
  assert (D' : Rabs d <= e) by (eapply Rle_trans; [exact D|unfold rounding, e; simpl; lra]).
  replace (dz * w * (1 + d) + t - dz * f x) with (dz * ((1 + d) * (w - f x) + d * f x) + t) by ring.
  apply abs_add; [|exact T]. apply abs_mul; [apply Rle_refl|]. apply abs_add; apply abs_mul; trivial;
    try apply Rle_refl. apply abs_add; trivial. rewrite Rabs_R1. lra.
Qed.

End Pair.
