(* One channel of LayerNorm or RMSNorm, from its stored output: how far x^ = (y - beta) / gamma, as the
   backward kernel computes it (kernels/layernorm.h), is from the exact x^, and that nothing overflows on the
   way. The bound is X of validation/norms/stability.h, for every gamma of which 1 / gamma is a normal number,
   every beta and every x^ for which y stays in its format. The policy of kernels/side_policy.h follows from
   it. The operations are those of Kernel.v and two more here, each proven to be Flocq's. *)

From Coq Require Import Reals ZArith Bool List SpecFloat Lia Lra.
From Flocq Require Import Core IEEE754.BinarySingleNaN Relative Plus_error.
From Outgrad Require Import Format Kernel Forward.
Import ListNotations.
Open Scope R_scope.

(* ---- The kernel ------------------------------------------------------------------------------ *)

Definition div (a b : spec_float) : spec_float := SFdiv 24 128 a b.

(* forward_output of layernorm.h, from its `normalised` on, and narrowed. *)
Definition channel_output (prec emax : Z) (normalised gamma beta : spec_float) : spec_float :=
  narrow prec emax (fma normalised gamma beta).
(* x_hat in input_gradient, with CentredOutput's `centred` and prepare_column's reciprocal. *)
Definition channel_x_hat (y gamma beta : spec_float) : spec_float :=
  mul (sub (widen y) beta) (div (number 1 0) gamma).

(* ---- The bound ------------------------------------------------------------------------------- *)

(* A format in which y is stored, as storage_format of stability.cpp and side_policy.h have it: unit roundoff
   and half the least subnormal number, both 0 where the fp32 result itself is stored; the least magnitude
   that rounds to infinity. *)
Record stored_in := { precision : Z; range : Z; unit : R; half_subnormal : R; overflow : R }.
Definition stored_bf16 := {| precision := 8; range := 128; unit := bpow radix2 (-8);
  half_subnormal := bpow radix2 (-134); overflow := bpow radix2 128 - bpow radix2 119 |}.
Definition stored_f16 := {| precision := 11; range := 16; unit := bpow radix2 (-11);
  half_subnormal := bpow radix2 (-25); overflow := 65520 |}.
Definition stored_f32 := {| precision := 24; range := 128; unit := 0; half_subnormal := 0;
  overflow := bpow radix2 128 - bpow radix2 104 |}.
Definition stored (F : stored_in) : Prop := F = stored_bf16 \/ F = stored_f16 \/ F = stored_f32.

(* e, g(3) and U of stability.h. *)
Definition e : R := bpow radix2 (-24).
Definition g3 : R := 3 * e / (1 - 3 * e).
Definition least : R := bpow radix2 (-149).
Definition stored_unit (F : stored_in) : R := (1 + e) * (1 + unit F) - 1.

(* The largest |y| before it is rounded, where the forward's x^ is off by at most a |x| + b: AE and BE of
   stability.h. *)
Definition reach (a b gamma beta x : R) : R := Rabs gamma * ((1 + a) * Rabs x + b) + Rabs beta.
(* s bounds the error of rounding and storing y: affine_storage and binade_storage of stability.cpp. There 2^k
   and 2^k' are the least powers of two that do. *)
Definition bounds_storage (F : stored_in) (y s : R) : Prop :=
  s = stored_unit F * y + half_subnormal F + least \/
  exists k k', let r := bpow radix2 k * e / 2 in y <= bpow radix2 k /\ y + r + least <= bpow radix2 k' /\
    s = r + bpow radix2 k' * unit F / 2 + half_subnormal F + least.
(* X. *)
Definition x_hat_bound (a b gamma s x : R) : R :=
  (1 + g3) * (a * Rabs x + b + s / Rabs gamma) + g3 * Rabs x + least.
(* What the policy compares with tau. *)
Definition storage_error (F : stored_in) (gamma beta : R) : R :=
  Rmax (unit F) e * (1 + Rabs (beta / gamma)) + (half_subnormal F + least) / Rabs gamma + 3 * e.

(* ---- Rounding -------------------------------------------------------------------------------- *)

Lemma abs_add a b c d : Rabs a <= c -> Rabs b <= d -> Rabs (a + b) <= c + d.
Proof. intros A B. eapply Rle_trans. apply Rabs_triang. lra. Qed.

Lemma abs_mul a b c d : Rabs a <= c -> Rabs b <= d -> Rabs (a * b) <= c * d.
Proof. intros A B. rewrite Rabs_mult. apply Rmult_le_compat; trivial; apply Rabs_pos. Qed.

Lemma u_ro_bpow prec : u_ro radix2 prec = bpow radix2 (- prec).
Proof. unfold u_ro. rewrite bpow_plus. simpl. lra. Qed.

(* Rounded to nearest: a relative and an absolute error. *)
Lemma nearest_error prec emax v : Prec_gt_0 prec -> exists d t, Rabs d <= bpow radix2 (- prec) /\
  Rabs t <= bpow radix2 (emin prec emax - 1) /\ nearest prec emax v = v * (1 + d) + t.
Proof.
  intros P. destruct (relative_error_N_FLT'_ex radix2 (emin prec emax) prec P (fun n => negb (Z.even n)) v)
    as (d & t & D & T & _ & E). exists d, t. rewrite <- u_ro_bpow. repeat split.
  - eapply Rle_trans. exact D. apply u_rod1pu_ro_le_u_ro.
  - replace (bpow radix2 (emin prec emax - 1)) with (/ 2 * bpow radix2 (emin prec emax)). exact T.
    unfold Zminus. rewrite bpow_plus. simpl. lra.
  - exact E.
Qed.

(* y from v = x^ gamma + beta: F of stability.h. *)
Lemma stored_error F v : stored F ->
  Rabs (nearest (precision F) (range F) (nearest 24 128 v) - v)
    <= stored_unit F * Rabs v + half_subnormal F + least.
Proof.
  intros S. destruct (nearest_error 24 128 v eq_refl) as (d & t & D & T & E).
  change (bpow radix2 (- (24))) with e in D.
  assert (L : bpow radix2 (emin 24 128 - 1) = least / 2) by (unfold least; simpl; lra). rewrite L in T.
  assert (W : Prec_gt_0 (precision F) -> stored_unit F = (1 + e) * (1 + bpow radix2 (- precision F)) - 1 ->
    bpow radix2 (- precision F) <= 1 ->
    bpow radix2 (emin (precision F) (range F) - 1) = half_subnormal F ->
    Rabs (nearest (precision F) (range F) (nearest 24 128 v) - v)
      <= stored_unit F * Rabs v + half_subnormal F + least).
  { intros P U O H. destruct (nearest_error (precision F) (range F) (nearest 24 128 v) P)
      as (d' & t' & D' & T' & ->). rewrite E, U, <- H.
    replace ((v * (1 + d) + t) * (1 + d') + t' - v) with (v * (d + d' + d * d') + t * (1 + d') + t') by ring.
    replace (((1 + e) * (1 + bpow radix2 (- precision F)) - 1) * Rabs v + _ + least) with
      (Rabs v * (e + bpow radix2 (- precision F) + e * bpow radix2 (- precision F)) + least / 2 * (1 + 1)
        + bpow radix2 (emin (precision F) (range F) - 1)) by lra.
    repeat apply abs_add; trivial; apply abs_mul; try apply Rle_refl; trivial.
    - repeat apply abs_add; trivial. now apply abs_mul.
    - apply abs_add. rewrite Rabs_R1. lra. lra. }
  destruct S as [->|[->| ->]].
  1, 2: apply W; try reflexivity; simpl; lra.
  simpl. unfold nearest at 1. rewrite round_generic; [|apply valid_rnd_N|apply generic_format_round;
    [now apply
    fexp_correct|apply valid_rnd_N]]. rewrite E.
  replace (v * (1 + d) + t - v) with (v * d + t) by ring.
  replace (stored_unit _ * Rabs v + 0 + least) with (Rabs v * e + least) by (unfold stored_unit; simpl; ring).
  apply abs_add. apply abs_mul; trivial. apply Rle_refl.
  eapply Rle_trans. exact T. unfold least. pose proof (bpow_gt_0 radix2 (-149)). lra.
Qed.

(* The same by half a unit in the last place of the binade below 2^k. *)
Lemma binade_error prec emax v k : Prec_gt_0 prec -> Rabs v <= bpow radix2 k ->
  Rabs (nearest prec emax v - v)
    <= bpow radix2 k * bpow radix2 (- prec) / 2 + bpow radix2 (emin prec emax - 1).
Proof.
  intros P H. replace (bpow radix2 (emin prec emax - 1)) with (/ 2 * bpow radix2 (emin prec emax)).
  2: { unfold Zminus. rewrite bpow_plus. simpl. lra. }
  rewrite <- bpow_plus. pose proof (bpow_ge_0 radix2 (k + - prec)). pose proof (bpow_ge_0 radix2 (emin prec
    emax)).
  assert (Exact : generic_format radix2 (SpecFloat.fexp prec emax) v ->
    Rabs (nearest prec emax v - v) <= bpow radix2 (k + - prec) / 2 + / 2 * bpow radix2 (emin prec emax)).
  { intros G. unfold nearest. rewrite round_generic by (trivial; apply valid_rnd_N). unfold Rminus.
    rewrite Rplus_opp_r, Rabs_R0. lra. }
  destruct (Req_dec v 0) as [->|N]. { apply Exact, generic_format_0. }
  assert (Half : forall j, (cexp radix2 (SpecFloat.fexp prec emax) v <= j)%Z ->
    Rabs (nearest prec emax v - v) <= / 2 * bpow radix2 j).
  { intros j J. eapply Rle_trans. apply error_le_half_ulp. now apply fexp_correct.
    rewrite ulp_neq_0 by trivial. apply Rmult_le_compat_l. lra. now apply bpow_le. }
  assert (C : cexp radix2 (SpecFloat.fexp prec emax) v = Z.max (mag radix2 v - prec) (emin prec emax)) by
    easy.
  destruct (Rle_lt_or_eq_dec _ _ H) as [B|B].
  - pose proof (mag_le_bpow radix2 v k N B).
    destruct (Z.max_spec (mag radix2 v - prec) (emin prec emax)) as [[_ M]|[_ M]]; rewrite M in C.
    + assert (J : (cexp radix2 (SpecFloat.fexp prec emax) v <= emin prec emax)%Z) by lia.
      specialize (Half _ J). lra.
    + assert (J : (cexp radix2 (SpecFloat.fexp prec emax) v <= k + - prec)%Z) by lia.
      specialize (Half _ J). lra.
  - assert (M : (mag radix2 v = k + 1 :> Z)%Z) by now rewrite <- mag_abs, B, mag_bpow.
    destruct (Z.le_gt_cases (emin prec emax) k).
    + apply Exact. apply generic_format_abs_inv. rewrite B. apply generic_format_bpow.
      unfold SpecFloat.fexp. change (SpecFloat.emin prec emax) with (emin prec emax). red in P. lia.
    + assert (J : (cexp radix2 (SpecFloat.fexp prec emax) v <= emin prec emax)%Z) by (red in P; lia).
      specialize (Half _ J). lra.
Qed.

Lemma storage_bounded F v y s : stored F -> bounds_storage F y s -> Rabs v <= y ->
  Rabs (nearest (precision F) (range F) (nearest 24 128 v) - v) <= s.
Proof.
  intros S B V. pose proof (bpow_gt_0 radix2 (-149)) as L. fold least in L.
  destruct B as [->|(k & k' & K & K' & ->)].
  { eapply Rle_trans. now apply stored_error. do 2 apply Rplus_le_compat_r. apply Rmult_le_compat_l; trivial.
    destruct S as [->|[->| ->]]; unfold stored_unit, e; simpl; lra. }
  assert (E : Rabs (nearest 24 128 v - v) <= bpow radix2 k * e / 2 + least / 2).
  { replace (least / 2) with (bpow radix2 (emin 24 128 - 1)) by (unfold least; simpl; lra).
    apply binade_error. reflexivity. lra. }
  assert (V' : Rabs (nearest 24 128 v) <= bpow radix2 k').
  { replace (nearest 24 128 v) with (nearest 24 128 v - v + v) by ring. eapply Rle_trans. apply Rabs_triang.
    lra. }
  replace (nearest (precision F) _ _ - v) with (nearest 24 128 v - v
    + (nearest (precision F) (range F) (nearest 24 128 v) - nearest 24 128 v)) by ring.
  eapply Rle_trans. apply Rabs_triang.
  enough (B : Rabs (nearest (precision F) (range F) (nearest 24 128 v) - nearest 24 128 v)
    <= bpow radix2 k' * unit F / 2 + half_subnormal F) by lra.
  destruct S as [->|[->| ->]]; [exact (binade_error 8 128 _ _ eq_refl V')|exact (binade_error 11 16 _ _
    eq_refl V')|].
  simpl. unfold nearest at 1. rewrite round_generic; [unfold Rminus; rewrite Rplus_opp_r, Rabs_R0;
    lra|apply valid_rnd_N|].
  apply generic_format_round; [now apply fexp_correct|apply valid_rnd_N].
Qed.

(* No difference of two numbers underflows. *)
Lemma difference_error v w : in_format 24 128 v -> in_format 24 128 w ->
  exists d, Rabs d <= e /\ nearest 24 128 (v - w) = (v - w) * (1 + d).
Proof.
  intros [V _] [W _]. destruct (FLT_plus_error_N_ex radix2 (emin 24 128) 24 (fun n => negb (Z.even n)) v (-
    w))
    as (d & D & E); [exact V|now apply generic_format_opp|]. exists d. split; [|exact E].
  eapply Rle_trans. exact D. eapply Rle_trans. apply u_rod1pu_ro_le_u_ro. rewrite u_ro_bpow. apply Rle_refl.
Qed.

(* ---- The operations are Flocq's -------------------------------------------------------------- *)

Theorem div_Flocq (a b : float32) : div (B2SF a) (B2SF b) = B2SF (Bdiv mode_NE a b).
Proof.
  destruct a as [sa|sa| |sa ma ea Ba], b as [sb|sb| |sb mb eb Bb]; try reflexivity.
  unfold div. simpl. rewrite B2SF_SF2B. destruct (SFdiv_core_binary _ _ _ _ _ _) as [[m' e'] l].
  apply round_aux_Flocq.
Qed.

Lemma mul_nearest a b v w : stands_for 24 128 a v -> stands_for 24 128 b w ->
  Rabs (nearest 24 128 (v * w)) < bpow radix2 128 -> stands_for 24 128 (mul a b) (nearest 24 128 (v * w)).
Proof.
  intros A B H. apply stands_for_Flocq in A as (a' & -> & FA & <-).
  apply stands_for_Flocq in B as (b' & -> & FB & <-). unfold mul. rewrite mul_Flocq.
  pose proof (Bmult_correct 24 128 _ _ mode_NE a' b') as E. rewrite Rlt_bool_true in E by exact H.
  destruct E as (E & F & _). split; [apply valid_binary_B2SF|]. rewrite is_finite_SF_B2SF, SF2R_B2SF, F, FA,
    FB.
  now split.
Qed.

Lemma div_nearest a b v w : stands_for 24 128 a v -> stands_for 24 128 b w -> w <> 0 ->
  Rabs (nearest 24 128 (v / w)) < bpow radix2 128 -> stands_for 24 128 (div a b) (nearest 24 128 (v / w)).
Proof.
  intros A B N H. apply stands_for_Flocq in A as (a' & -> & FA & <-).
  apply stands_for_Flocq in B as (b' & -> & FB & <-). rewrite div_Flocq.
  pose proof (Bdiv_correct 24 128 _ _ mode_NE a' b' N) as E. rewrite Rlt_bool_true in E by exact H.
  destruct E as (E & F & _). split; [apply valid_binary_B2SF|]. rewrite is_finite_SF_B2SF, SF2R_B2SF, F.
  now split.
Qed.

Lemma narrow_nearest prec emax a v : Prec_gt_0 prec -> Prec_lt_emax prec emax -> stands_for 24 128 a v ->
  Rabs (nearest prec emax v) < bpow radix2 emax -> stands_for prec emax (narrow prec emax a) (nearest prec
    emax v).
Proof.
  intros P L (_ & F & <-) H. destruct a as [s| | |s m e']; try discriminate.
  - unfold nearest. simpl. rewrite round_0 by apply valid_rnd_N. now repeat split.
  - now apply rounded_nearest.
Qed.

(* ---- The reciprocal -------------------------------------------------------------------------- *)

(* 1 / gamma is a normal number. *)
Definition has_reciprocal (gamma : R) : Prop := bpow radix2 (-128) < Rabs gamma <= bpow radix2 126.

Lemma reciprocal_error gamma : in_format 24 128 gamma -> has_reciprocal gamma ->
  exists d, Rabs d <= e /\ nearest 24 128 (1 / gamma) = 1 / gamma * (1 + d) /\
    Rabs (nearest 24 128 (1 / gamma)) < bpow radix2 128.
Proof.
  intros [G _] [L H]. pose proof (bpow_gt_0 radix2 (-128)) as P.
  assert (I : Rabs (1 / gamma) = / Rabs gamma).
  { unfold Rdiv. rewrite Rmult_1_l. apply Rabs_inv. }
  (* gamma is a multiple of 2^-149, hence at least 2^-128 + 2^-149. *)
  assert (M : bpow radix2 (-149) * (2 ^ 21 + 1) <= Rabs gamma).
  { apply (generic_format_FIX_FLT radix2 (emin 24 128) 24) in G.
    apply FIX_format_generic in G as [[m k] -> K]. simpl in K. subst k. rewrite <- F2R_Zabs in *.
    unfold F2R in *. simpl Fnum in *. simpl Fexp in *. change (emin 24 128) with (-149)%Z in *.
    rewrite Rmult_comm. apply Rmult_le_compat_r. apply bpow_ge_0.
    assert (2 ^ 21 < Z.abs m)%Z.
    { apply lt_IZR. apply Rmult_lt_reg_r with (bpow radix2 (-149)). apply bpow_gt_0.
      eapply Rle_lt_trans; [|exact L]. apply Req_le. change (IZR (2 ^ 21)) with (bpow radix2 21).
      now rewrite <- bpow_plus. }
    apply Rle_trans with (IZR (2 ^ 21 + 1)). simpl. lra. apply IZR_le. lia. }
  destruct (relative_error_N_FLT_ex radix2 (emin 24 128) 24 eq_refl (fun n => negb (Z.even n)) (1 / gamma))
    as (d & D & E).
  { rewrite I. change (bpow radix2 (emin 24 128 + 24 - 1)) with (/ bpow radix2 126).
    apply Rinv_le; trivial. lra. }
  assert (D' : Rabs d <= e) by (eapply Rle_trans; [exact D|unfold e; simpl; lra]). clear D.
  exists d. split; trivial. split. exact E. change (nearest 24 128 (1 / gamma)) with
    (round radix2 (FLT_exp (emin 24 128) 24) (Znearest (fun n => negb (Z.even n))) (1 / gamma)). rewrite E.
  apply Rle_lt_trans with (/ (bpow radix2 (-149) * (2 ^ 21 + 1)) * (1 + e)); [|unfold e; simpl; lra].
  apply abs_mul.
  - rewrite I. apply Rinv_le; trivial. simpl. lra.
  - apply abs_add; trivial. rewrite Rabs_R1. lra.
Qed.

(* ---- The theorem ----------------------------------------------------------------------------- *)

Lemma stored_precision F : stored F -> Prec_gt_0 (precision F) /\ Prec_lt_emax (precision F) (range F) /\
  ((precision F <= 24)%Z /\ (range F <= 128)%Z /\ (emin 24 128 <= emin (precision F) (range F))%Z).
Proof. intros [->|[->| ->]]; repeat split; try reflexivity; now intros. Qed.

(* No y overflows, nor does y - beta. *)
Lemma stays_in_range F s : stored F -> 0 <= s -> s <= (1 - bpow radix2 (-9)) * overflow F ->
  (1 + stored_unit F) * s + half_subnormal F + least <= bpow radix2 (range F) * (1 - bpow radix2 (-20)) /\
  bpow radix2 (range F) <= bpow radix2 128.
Proof.
  intros F' P H. split; [|destruct F' as [->|[->| ->]]; simpl; lra].
  apply Rle_trans with ((1 + stored_unit F) * ((1 - bpow radix2 (-9)) * overflow F) + half_subnormal F +
    least).
  - do 2 apply Rplus_le_compat_r. apply Rmult_le_compat_l; trivial.
    destruct F' as [->|[->| ->]]; unfold stored_unit, e; simpl; lra.
  - destruct F' as [->|[->| ->]]; unfold stored_unit, e, least; simpl; lra.
Qed.

Lemma g3_value : g3 = 3 / 16777213.
Proof. unfold g3. change e with (/ 16777216). field. Qed.

Lemma three_roundings c d d' : Rabs c <= e -> Rabs d <= e -> Rabs d' <= e ->
  Rabs ((1 + c) * (1 + d) * (1 + d') - 1) <= g3.
Proof.
  intros C D D'. replace ((1 + c) * (1 + d) * (1 + d') - 1) with (c + d + c * d + (1 + c) * (1 + d) * d') by
    ring.
  apply Rle_trans with (e + e + e * e + (1 + e) * (1 + e) * e); [|rewrite g3_value; unfold e; simpl; lra].
  assert (O : forall r, Rabs r <= e -> Rabs (1 + r) <= 1 + e) by
    (intros; apply abs_add; trivial; rewrite Rabs_R1; lra).
  repeat apply abs_add; trivial; repeat apply abs_mul; trivial; now apply O.
Qed.

(* x is the exact x^, and z is what the forward kernel has in its place. y keeps the distance from overflow
   that the policy's test in side_policy.h keeps. *)
Theorem channel_x_hat_error F a b s x z32 z gamma32 gamma beta32 beta : stored F ->
  stands_for 24 128 z32 z -> stands_for 24 128 gamma32 gamma -> stands_for 24 128 beta32 beta ->
  Rabs (z - x) <= a * Rabs x + b -> has_reciprocal gamma ->
  reach a b gamma beta x <= (1 - bpow radix2 (-9)) * overflow F ->
  bounds_storage F (reach a b gamma beta x) s -> Rabs x + x_hat_bound a b gamma s x < bpow radix2 128 ->
  let y := channel_output (precision F) (range F) z32 gamma32 beta32 in
  let x' := channel_x_hat y gamma32 beta32 in
  is_finite_SF y = true /\ is_finite_SF x' = true /\
    Rabs (SF2R radix2 x' - x) <= x_hat_bound a b gamma s x.
Proof.
  intros S Z G B E R O St X y x'.
  destruct (stored_precision F S) as (P & L & W).
  set (v := z * gamma + beta). set (w := nearest (precision F) (range F) (nearest 24 128 v)).
  assert (V : Rabs v <= Rabs (gamma * z) + Rabs beta).
  { unfold v. rewrite (Rmult_comm z). apply Rabs_triang. }
  assert (Re : Rabs (gamma * z) + Rabs beta <= reach a b gamma beta x).
  { unfold reach. rewrite Rabs_mult. apply Rplus_le_compat_r, Rmult_le_compat_l. apply Rabs_pos.
    replace z with (x + (z - x)) by ring. eapply Rle_trans. apply Rabs_triang. lra. }
  assert (S0 := Rle_trans _ _ _ Re O).
  assert (Sb : Rabs (w - v) <= s) by (apply storage_bounded with (reach a b gamma beta x); trivial; lra).
  pose proof (stored_error F v S) as SE. fold w in SE.
  assert (U : 0 <= stored_unit F <= 1 / 200) by
    (destruct S as [->|[->| ->]]; unfold stored_unit, e; simpl; lra).
  assert (N : 0 <= half_subnormal F) by (destruct S as [->|[->| ->]]; simpl; lra).
  assert (L0 : 0 < least) by apply bpow_gt_0.
  assert (G0 : 0 < Rabs gamma) by (eapply Rlt_trans; [apply bpow_gt_0|apply R]).
  destruct (stays_in_range F _ S (Rplus_le_le_0_compat _ _ (Rabs_pos _) (Rabs_pos _)) S0) as [In In'].
  assert (UV : stored_unit F * Rabs v <= stored_unit F * (Rabs (gamma * z) + Rabs beta)) by
    now apply Rmult_le_compat_l.
  pose proof (Rabs_pos beta) as B0. pose proof (Rabs_pos (gamma * z)) as GZ0.
  pose proof (bpow_gt_0 radix2 (range F)) as R0.
  assert (T20 : 0 < bpow radix2 (-20) <= 1) by (simpl; lra).
  set (m := Rabs (gamma * z) + Rabs beta) in *.
  assert (In'' : (1 + stored_unit F) * m + half_subnormal F + least <= bpow radix2 128 * (1 - bpow radix2
    (-20))).
  { eapply Rle_trans. exact In. apply Rmult_le_compat_r; lra. }
  assert (U0 : 0 <= stored_unit F * m) by (apply Rmult_le_pos; unfold m; lra).
  (* y *)
  assert (Wf : Rabs w < bpow radix2 (range F)).
  { replace w with (w - v + v) by ring. eapply Rle_lt_trans. apply Rabs_triang. nra. }
  assert (Vf : Rabs (nearest 24 128 v) < bpow radix2 128).
  { destruct (nearest_error 24 128 v eq_refl) as (d & t & D & T & ->).
    eapply Rle_lt_trans. apply abs_add. apply abs_mul. exact V. apply abs_add. rewrite Rabs_R1.
      apply Rle_refl.
    exact D. exact T.
    assert (m <= bpow radix2 128 * (1 - bpow radix2 (-20))) by lra. simpl in *. lra. }
  assert (Y : stands_for (precision F) (range F) y w).
  { apply narrow_nearest; trivial. now apply fma_nearest. }
  (* y - beta *)
  set (c := w - beta).
  assert (C : Rabs c <= bpow radix2 128 * (1 - bpow radix2 (-20))).
  { unfold c. replace (w - beta) with (w - v + gamma * z) by (unfold v; ring).
    eapply Rle_trans. apply Rabs_triang. unfold m in *. lra. }
  assert (Y' : stands_for 24 128 (widen y) w). { now apply widen_right with (precision F) (range F). }
  destruct (difference_error w beta) as (d2 & D2 & E2);
    [now apply stands_for_in_format with (widen y)|now apply stands_for_in_format with beta32|].
  fold c in E2.
  assert (Cs : stands_for 24 128 (sub (widen y) beta32) (nearest 24 128 c)).
  { apply sub_nearest; trivial. fold c. rewrite E2. eapply Rle_lt_trans. apply abs_mul. exact C.
    apply abs_add. rewrite Rabs_R1. apply Rle_refl. exact D2. unfold e. simpl. lra. }
  (* 1 / gamma *)
  destruct (reciprocal_error gamma (stands_for_in_format _ _ _ _ G) R) as (d3 & D3 & E3 & F3).
  assert (Rs : stands_for 24 128 (div (number 1 0) gamma32) (nearest 24 128 (1 / gamma))).
  { apply div_nearest; trivial. 2: { intros ->. rewrite Rabs_R0 in G0. lra. }
    apply rounded_exact; try exact prec_32; try exact range_32. unfold F2R; simpl; lra.
    split. now apply (generic_format_bpow radix2 _ 0). rewrite Rabs_R1. simpl; lra. }
  (* the product *)
  destruct (nearest_error 24 128 (nearest 24 128 c * nearest 24 128 (1 / gamma)) eq_refl)
    as (d4 & t & D4 & T & E4). change (bpow radix2 (- (24))) with e in D4.
  rewrite E2, E3 in E4.
  set (q := z - x + (w - v) / gamma).
  assert (Gn : gamma <> 0) by (intros ->; rewrite Rabs_R0 in G0; lra).
  assert (Q : c / gamma = x + q) by (unfold q, c, v; field; trivial).
  set (D := (1 + d2) * (1 + d3) * (1 + d4) - 1).
  assert (Db : Rabs D <= g3) by now apply three_roundings.
  assert (H : Rabs (nearest 24 128 (nearest 24 128 c * nearest 24 128 (1 / gamma)) - x)
    <= x_hat_bound a b gamma s x).
  { rewrite E2, E3, E4.
    replace (c * (1 + d2) * (1 / gamma * (1 + d3)) * (1 + d4) + t - x) with ((1 + D) * q + D * x + t).
    2: { unfold D. replace (c * (1 + d2) * (1 / gamma * (1 + d3))) with (c / gamma * (1 + d2) * (1 + d3))
           by (field; trivial). rewrite Q. ring. }
    unfold x_hat_bound.
    apply abs_add; [apply abs_add; apply abs_mul|]; trivial; try apply Rle_refl.
    - apply abs_add; trivial. rewrite Rabs_R1. lra.
    - apply abs_add; trivial. unfold Rdiv. rewrite Rabs_mult, Rabs_inv. apply Rmult_le_compat_r; trivial.
      left. now apply Rinv_0_lt_compat.
    - eapply Rle_trans. exact T. unfold least. simpl. lra. }
  assert (Xs : stands_for 24 128 x' (nearest 24 128 (nearest 24 128 c * nearest 24 128 (1 / gamma)))).
  { apply mul_nearest; trivial. eapply Rle_lt_trans; [|exact X].
    replace (nearest _ _ _) with (x + (nearest 24 128 (nearest 24 128 c * nearest 24 128 (1 / gamma)) - x))
      by ring.
    apply abs_add; trivial. apply Rle_refl. }
  destruct Y as (_ & Yf & _), Xs as (_ & Xf & Xe). rewrite Xe. now repeat split.
Qed.

(* A channel that the policy tells well enough: storing y moves an x^ of magnitude 1 by at most tau, but for
   the products of roundings, which the policy's sum leaves out. *)
Theorem told_channel F tau z32 z gamma32 gamma beta32 beta : stored F ->
  stands_for 24 128 z32 z -> stands_for 24 128 gamma32 gamma -> stands_for 24 128 beta32 beta ->
  Rabs z <= 1 -> has_reciprocal gamma -> 6 * Rabs gamma + Rabs beta <= (1 - bpow radix2 (-9)) * overflow F ->
  storage_error F gamma beta <= tau <= 1 ->
  let y := channel_output (precision F) (range F) z32 gamma32 beta32 in
  let x' := channel_x_hat y gamma32 beta32 in
  is_finite_SF y = true /\ is_finite_SF x' = true /\
    Rabs (SF2R radix2 x' - z) <= (1 + bpow radix2 (-11)) * tau.
Proof.
  intros S Z G B M R O T y x'. set (s := stored_unit F * reach 0 0 gamma beta z + half_subnormal F + least).
  assert (G0 : 0 < Rabs gamma) by (eapply Rlt_trans; [apply bpow_gt_0|apply R]).
  assert (H : x_hat_bound 0 0 gamma s z <= (1 + bpow radix2 (-11)) * tau).
  { apply Rle_trans with ((1 + bpow radix2 (-11)) * storage_error F gamma beta).
    2: { apply Rmult_le_compat_l. simpl. lra. apply T. }
    assert (A : 0 <= (half_subnormal F + least) / Rabs gamma).
    { apply Rmult_le_pos. destruct S as [->|[->| ->]]; unfold least; simpl; lra.
      left. now apply Rinv_0_lt_compat. }
    assert (Q : s / Rabs gamma
      = stored_unit F * (Rabs z + Rabs (beta / gamma)) + (half_subnormal F + least) / Rabs gamma).
    { unfold s, reach, Rdiv. rewrite Rabs_mult, Rabs_inv. field. lra. }
    unfold x_hat_bound, storage_error. rewrite Q.
    set (tiny := (half_subnormal F + least) / Rabs gamma) in *.
    pose proof (Rabs_pos (beta / gamma)) as Rho. set (rho := Rabs (beta / gamma)) in *.
    assert (U : 0 < Rmax (unit F) e /\ 0 <= stored_unit F <= (1 + bpow radix2 (-12)) * Rmax (unit F) e).
    { destruct S as [->|[->| ->]]; unfold stored_unit, e; simpl; (rewrite Rmax_left by lra)
        || (rewrite Rmax_right by lra); lra. }
    set (u := Rmax (unit F) e) in *.
    assert (g : 0 <= g3 <= bpow radix2 (-22)) by (rewrite g3_value; simpl; lra).
    assert (g' : g3 + least <= (1 + bpow radix2 (-11)) * (3 * e)) by (rewrite g3_value; unfold least, e;
      simpl; lra).
    assert (M' : stored_unit F * Rabs z <= stored_unit F * 1) by (apply Rmult_le_compat_l; lra).
    assert (M'' : g3 * Rabs z <= g3 * 1) by (apply Rmult_le_compat_l; lra).
    assert (K : (1 + g3) * (stored_unit F * (Rabs z + rho) + tiny)
      <= (1 + bpow radix2 (-22)) * ((1 + bpow radix2 (-12)) * u * (1 + rho) + tiny)).
    { apply Rmult_le_compat; try lra.
      - apply Rplus_le_le_0_compat; trivial. apply Rmult_le_pos. lra. pose proof (Rabs_pos z). lra.
      - apply Rplus_le_compat_r, Rmult_le_compat; try lra. pose proof (Rabs_pos z). lra. }
    pose proof (Rmult_le_pos u (1 + rho)). simpl in *. lra. }
  destruct (channel_x_hat_error F 0 0 s z z32 z gamma32 gamma beta32 beta) as (Y & X & E); trivial.
  - replace (z - z) with 0 by ring. rewrite Rabs_R0. lra.
  - eapply Rle_trans; [|exact O]. unfold reach. pose proof (Rabs_pos gamma). nra.
  - now left.
  - eapply Rle_lt_trans. apply Rplus_le_compat. exact M. exact H. simpl. lra.
  - repeat split; trivial. now apply Rle_trans with (2 := H).
Qed.

(* ---- The policy's test ----------------------------------------------------------------------- *)

(* SideLimits and is_told of side_policy.h. *)
Record side_limits := { slope : spec_float; floor : spec_float; least_gamma : spec_float;
  greatest_gamma : spec_float; most : spec_float }.
Definition is_told (L : side_limits) (gamma beta : spec_float) : bool :=
  let g := SFabs gamma in let b := SFabs beta in
  less_equal b (sub (mul (slope L) g) (floor L)) && less (least_gamma L) g && less g (greatest_gamma L) &&
  less (fma (number 6 0) g b) (most L).

(* What the proof needs of them; lost_limits makes such, each rounded to fp32. *)
Definition lost_limits (F : stored_in) (tau : R) (L : side_limits) : Prop :=
  let u := Rmax (unit F) e in let s := SF2R radix2 (slope L) in
  (forall x, In x [slope L; floor L; least_gamma L; greatest_gamma L; most L] ->
    stands_for 24 128 x (SF2R radix2 x)) /\
  0 < s /\ u * s <= (1 + 2 * e) * (tau * (1 - bpow radix2 (-10)) - 3 * e - u) /\
  (1 - 2 * e) * (half_subnormal F + least) <= u * SF2R radix2 (floor L) /\ SF2R radix2 (floor L) <= 1 /\
  SF2R radix2 (least_gamma L) = bpow radix2 (-128) /\ SF2R radix2 (greatest_gamma L) = bpow radix2 126 /\
  SF2R radix2 (most L) <= (1 - bpow radix2 (-9)) * overflow F.

Lemma stands_for_abs x v : stands_for 24 128 x v -> stands_for 24 128 (SFabs x) (Rabs v).
Proof.
  intros H. apply stands_for_Flocq in H as (b & -> & F & <-).
  replace (SFabs (B2SF b)) with (B2SF (Babs b)) by now destruct b.
  split; [apply valid_binary_B2SF|]. rewrite is_finite_SF_B2SF, SF2R_B2SF, is_finite_Babs, B2R_Babs.
    now split.
Qed.

(* b <= s g - f in fp32, in the real numbers. The product overflows only where b is far less. *)
Lemma told_slope s32 f32 g32 b32 s f g b : stands_for 24 128 s32 s -> stands_for 24 128 f32 f ->
  stands_for 24 128 g32 g -> stands_for 24 128 b32 b -> 0 < s -> 0 < g -> 0 <= b -> 0 <= f <= 1 ->
  less_equal b32 (sub (mul s32 g32) f32) = true ->
  b + f <= (1 + 4 * e) * (s * g) + least.
Proof.
  intros S F G B S0 G0 B0 F0 T. assert (L : 0 < least < 1) by (unfold least; simpl; lra).
  pose proof (stands_for_in_format _ _ _ _ B) as [_ B'']. rewrite Rabs_pos_eq in B'' by trivial.
  pose proof (Rmult_lt_0_compat _ _ S0 G0) as P.
  destruct (nearest_error 24 128 (s * g) eq_refl) as (d & t & D & X & E).
    change (bpow radix2 (- (24))) with e in D.
  replace (bpow radix2 (emin 24 128 - 1)) with (least / 2) in X by (unfold least; simpl; lra).
  apply Rabs_le_inv in D, X. assert (E' : e = / 16777216) by reflexivity.
  destruct (Rlt_le_dec (Rabs (nearest 24 128 (s * g))) (bpow radix2 128)) as [H|H].
  - pose proof (mul_nearest _ _ _ _ S G H) as M.
    destruct (difference_error _ f (stands_for_in_format _ _ _ _ M) (stands_for_in_format _ _ _ _ F)) as (d'
      & D' & E2).
    apply Rabs_le_inv in D'. set (m := nearest 24 128 (s * g)) in *.
    destruct (Rlt_le_dec (Rabs (nearest 24 128 (m - f))) (bpow radix2 128)) as [H'|H'].
    + pose proof (less_equal_values _ _ _ _ B (sub_nearest _ _ _ _ M F H') T) as K. rewrite E2 in K.
      assert (0 <= m - f) by (apply Rnot_lt_le; intros N; assert ((m - f) * (1 + d') < 0 * (1 + d'))
        by (apply Rmult_lt_compat_r; lra); lra).
      assert ((m - f) * (1 + d') <= (m - f) * (1 + e)) by (apply Rmult_le_compat_l; lra).
      assert (s * g * d <= s * g * e) by (apply Rmult_le_compat_l; lra). rewrite E' in *. lra.
    + rewrite E2, Rabs_mult in H'. assert (Rabs (1 + d') <= 1 + e) by (apply Rabs_le; lra).
      assert (s * g * d <= s * g * e) by (apply Rmult_le_compat_l; lra).
      assert (- (s * g * e) <= s * g * d).
      { replace (- (s * g * e)) with (s * g * - e) by ring. apply Rmult_le_compat_l; lra. }
      assert (Rabs (m - f) <= m + 2) by (apply Rabs_le; rewrite E' in *; simpl in X, L; lra).
      assert (Rabs (m - f) * Rabs (1 + d') <= (m + 2) * (1 + e)) by (apply Rmult_le_compat; trivial;
        apply Rabs_pos).
      rewrite E' in *. unfold least in *. simpl in *. lra.
  - assert (s * g * d <= s * g * e) by (apply Rmult_le_compat_l; lra).
    assert (- (s * g * e) <= s * g * d).
    { replace (- (s * g * e)) with (s * g * - e) by ring. apply Rmult_le_compat_l; lra. }
    assert (Rabs (nearest 24 128 (s * g)) <= s * g * (1 + e) + least) by (apply Rabs_le; rewrite E' in *;
      lra).
    rewrite E' in *. unfold least in *. simpl in *. lra.
Qed.

Lemma told_most g32 b32 o32 g b o : stands_for 24 128 g32 g -> stands_for 24 128 b32 b -> stands_for 24 128
  o32 o ->
  0 <= g -> 0 <= b -> less (fma (number 6 0) g32 b32) o32 = true -> 6 * g + b < o.
Proof.
  intros G B O G0 B0 T.
  assert (X : stands_for 24 128 (number 6 0) 6) by (repeat split; simpl; unfold F2R; simpl; lra).
  destruct (Rlt_le_dec (Rabs (nearest 24 128 (6 * g + b))) (bpow radix2 128)) as [H|H].
  - pose proof (less_values _ _ _ _ (fma_nearest _ _ _ _ _ _ X G B H) O T) as K.
    apply Rnot_le_lt. intros N. apply (round_le radix2 (SpecFloat.fexp 24 128) ZnearestE) in N.
    rewrite (round_generic _ _ _ o) in N by apply (stands_for_in_format _ _ _ _ O). unfold nearest in K. lra.
  - apply stands_for_Flocq in X as (x & E & FX & X). rewrite E in T.
    apply stands_for_Flocq in G as (g' & -> & FG & <-). apply stands_for_Flocq in B as (b' & -> & FB & <-).
    apply stands_for_Flocq in O as (o' & -> & FO & _). rewrite fma_Flocq in T.
    pose proof (Bfma_correct 24 128 _ _ mode_NE x g' b' FX FG FB) as C. cbv zeta in C. rewrite X in C.
    rewrite Rlt_bool_false in C by exact H. rewrite C, Rlt_bool_false in T by nra.
    now destruct o' as [| | |[]].
Qed.

(* A channel that passes the kernels' own test, with limits for tau: an x^ of magnitude 1 is moved by at most
   tau. *)
Theorem passed_channel F tau L z32 z gamma32 gamma beta32 beta : stored F -> lost_limits F tau L -> tau <= 1
  ->
  stands_for 24 128 z32 z -> stands_for 24 128 gamma32 gamma -> stands_for 24 128 beta32 beta ->
  Rabs z <= 1 -> is_told L gamma32 beta32 = true ->
  let y := channel_output (precision F) (range F) z32 gamma32 beta32 in
  let x' := channel_x_hat y gamma32 beta32 in
  is_finite_SF y = true /\ is_finite_SF x' = true /\ Rabs (SF2R radix2 x' - z) <= tau.
Proof.
  intros S (V & S0 & Sl & Fl & F1 & Le & Gr & Mo) T1 Z G B M T y x'. unfold is_told in T.
  apply andb_prop in T as [T To]. apply andb_prop in T as [T Tg]. apply andb_prop in T as [Ts Tl].
  pose proof (stands_for_abs _ _ G) as Ga. pose proof (stands_for_abs _ _ B) as Ba.
  assert (Gl : bpow radix2 (-128) < Rabs gamma).
  { rewrite <- Le. eapply less_values; [|exact Ga|exact Tl]. apply V. simpl. tauto. }
  assert (Gg : Rabs gamma < bpow radix2 126).
  { rewrite <- Gr. eapply less_values; [exact Ga| |exact Tg]. apply V. simpl. tauto. }
  assert (G0 : 0 < Rabs gamma) by (eapply Rlt_trans; [apply bpow_gt_0|exact Gl]).
  pose proof (Rabs_pos beta) as B0.
  assert (O : 6 * Rabs gamma + Rabs beta < SF2R radix2 (most L)).
  { eapply told_most; [exact Ga|exact Ba| | | |exact To]; try lra. apply V. simpl. tauto. }
  set (f := SF2R radix2 (floor L)) in *. set (s := SF2R radix2 (slope L)) in *.
  set (u := Rmax (unit F) e) in *. set (h := half_subnormal F + least) in *. set (g := Rabs gamma) in *.
  set (b := Rabs beta) in *.
  assert (U : 0 < u) by (eapply Rlt_le_trans; [apply (bpow_gt_0 radix2 (-24))|apply Rmax_r]).
  assert (H : 0 < h) by (destruct S as [->|[->| ->]]; unfold h, least; simpl; lra).
  assert (E' : e = / 16777216) by reflexivity.
  assert (F0 : 0 <= f).
  { apply Rmult_le_reg_l with u; trivial. rewrite Rmult_0_r. eapply Rle_trans; [|exact Fl].
    apply Rmult_le_pos; lra. }
  assert (K : b + f <= (1 + 4 * e) * (s * g) + least).
  { eapply told_slope; [..|exact Ts]; try exact Ga; try exact Ba; try (apply V; simpl; tauto); trivial.
    now split. }
  assert (Est : storage_error F gamma beta <= (1 - bpow radix2 (-11)) * tau).
  { apply (Rmult_le_compat_l u) in K; [|lra]. apply (Rmult_le_compat_r g) in Sl; [|lra].
    assert (Lg : u * least <= u * (g / 2097152)) by (apply Rmult_le_compat_l; unfold least; simpl in *; lra).
    assert (0 < u * s * g) by (repeat apply Rmult_lt_0_compat; trivial).
    assert (0 <= u * b) by (apply Rmult_le_pos; lra). assert (0 < u * g) by now apply Rmult_lt_0_compat.
    replace (storage_error F gamma beta) with ((u * g + u * b + h + 3 * e * g) * / g).
    2: { unfold storage_error, Rdiv. rewrite Rabs_mult, Rabs_inv. fold u h g b. field. lra. }
    apply Rmult_le_reg_r with g; trivial. rewrite Rmult_assoc, Rinv_l, Rmult_1_r by lra.
    rewrite E' in *. simpl in *. lra. }
  destruct (told_channel F ((1 - bpow radix2 (-11)) * tau) z32 z gamma32 gamma beta32 beta) as (Y & X & E);
    trivial.
  - split; trivial. now left.
  - fold g b. lra.
  - split; trivial. simpl. lra.
  - repeat split; trivial. eapply Rle_trans. exact E. simpl.
    assert (0 < tau). { apply Rnot_le_lt. intros N. rewrite E' in *. simpl in *. nra. } lra.
Qed.
