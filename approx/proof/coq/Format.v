(* Binary formats of IEEE 754 with round to nearest, ties to even. A format is given by its precision and by
   the least power of two that is beyond it, as in Flocq: (8, 128) is bf16, (11, 16) is f16, (24, 128) is
   fp32.

   Numbers that are computed with are those of the standard library's SpecFloat. Proven here: its rounding of
   an integer times a power of two is Flocq's, and hence `round` in the real numbers; a finite number other
   than 0 is determined by its value; a narrower format is contained in a wider one; and 0, 1, ..., magnitudes
   - 1 number all absolute values of a format, in ascending order, as its bit patterns do. *)

From Coq Require Import Reals ZArith Bool SpecFloat Lia Lra.
From Flocq Require Import Core IEEE754.BinarySingleNaN.
Open Scope Z_scope.

Section Format.

Variables prec emax : Z.
Context (prec_positive : Prec_gt_0 prec) (range : Prec_lt_emax prec emax).

Definition emin := 3 - emax - prec.
Definition nearest (v : R) : R := round radix2 (SpecFloat.fexp prec emax) ZnearestE v.
(* The finite numbers of the format. *)
Definition in_format (v : R) : Prop := generic_format radix2 (SpecFloat.fexp prec emax) v /\
  (Rabs v < bpow radix2 emax)%R.
(* m 2^e, rounded; minus decides the sign of a 0. *)
Definition rounded (m e : Z) (minus : bool) : spec_float := SpecFloat.binary_normalize prec emax m e minus.
(* A finite number with the value v. *)
Definition stands_for (x : spec_float) (v : R) : Prop :=
  valid_binary prec emax x = true /\ is_finite_SF x = true /\ SF2R radix2 x = v.

Lemma round_aux_Flocq s m e l :
  SpecFloat.binary_round_aux prec emax s m e l = BinarySingleNaN.binary_round_aux prec emax mode_NE s m e l.
Proof.
  assert (N : forall k i, round_nearest_even k i = choice_mode mode_NE s k i).
  { intros k [|[]]; try reflexivity. simpl. unfold Round.cond_incr. now case Z.even. }
  unfold SpecFloat.binary_round_aux, BinarySingleNaN.binary_round_aux. destruct (shr_fexp _ _ _ _ _).
  now rewrite N.
Qed.

Lemma rounded_Flocq m e s : rounded m e s
  = B2SF (binary_normalize prec emax prec_positive range mode_NE m e s).
Proof.
  unfold rounded. destruct m as [|p|p]; [reflexivity|..]; simpl; rewrite B2SF_SF2B;
    unfold SpecFloat.binary_round, BinarySingleNaN.binary_round, shl_align_fexp; destruct (shl_align _ _ _);
      apply round_aux_Flocq.
Qed.

Lemma rounded_nearest m e s (v := F2R (Float radix2 m e)) :
  (Rabs (nearest v) < bpow radix2 emax)%R -> stands_for (rounded m e s) (nearest v).
Proof.
  intros H. rewrite rounded_Flocq.
  pose proof (binary_normalize_correct prec emax prec_positive range mode_NE m e s) as C. cbv zeta in C.
  fold v in C. rewrite Rlt_bool_true in C by exact H. destruct C as (V & F & _).
  split; [apply valid_binary_B2SF|]. rewrite is_finite_SF_B2SF, SF2R_B2SF. now split.
Qed.

Corollary rounded_exact m e s v : F2R (Float radix2 m e) = v -> in_format v -> stands_for (rounded m e s) v.
Proof.
  intros <- [G B]. set (v := F2R (Float radix2 m e)) in *.
  assert (E : nearest v = v) by (apply round_generic; trivial; apply valid_rnd_N).
  rewrite <- E at 1. apply rounded_nearest. fold v. now rewrite E.
Qed.

(* What a SpecFloat has to do with a number of Flocq. *)
Lemma stands_for_Flocq x v : stands_for x v -> exists b : binary_float prec emax, x = B2SF b /\
  is_finite b = true /\ B2R b = v.
Proof.
  intros (V & F & E). exists (SF2B x V). rewrite B2SF_SF2B, is_finite_SF2B, B2R_SF2B. repeat split; trivial.
Qed.

Lemma stands_for_in_format x v : stands_for x v -> in_format v.
Proof.
  intros H. apply stands_for_Flocq in H as (b & _ & _ & <-). split. apply generic_format_B2R.
  apply abs_B2R_lt_emax.
Qed.

Definition is_zero (x : spec_float) : bool := match x with S754_zero _ => true | _ => false end.

Lemma stands_for_unique x y v : stands_for x v -> stands_for y v -> x = y \/ is_zero x = true /\
  is_zero y = true.
Proof.
  intros X Y. apply stands_for_Flocq in X as (a & -> & FA & A).
  apply stands_for_Flocq in Y as (b & -> & FB & B).
  destruct (Req_dec v 0) as [->|N].
  - right. destruct a as [| | |s m e H]; try discriminate; simpl in A; [|now apply eq_0_F2R in A; destruct s].
    destruct b as [| | |s' m e H]; try discriminate; simpl in B; [now split|now apply eq_0_F2R in B;
      destruct s'].
  - left. f_equal. apply B2R_inj; [..|congruence]; rewrite is_finite_strict_B2R; congruence.
Qed.

(* Comparison of two finite numbers by SpecFloat. *)
Lemma equal_values x y v w : stands_for x v -> stands_for y w -> SFeqb x y = true -> v = w.
Proof.
  intros X Y E. apply stands_for_Flocq in X as (a & -> & FA & <-).
  apply stands_for_Flocq in Y as (b & -> & FB & <-).
  change (Beqb a b = true) in E. rewrite Beqb_correct in E by trivial.
  now destruct (Req_bool_spec (B2R a) (B2R b)).
Qed.

(* ---- Numbering ------------------------------------------------------------------------------- *)

Definition implicit_bit : Z := 2 ^ (prec - 1).
Definition magnitudes : Z := (2 * emax - 1) * implicit_bit.
(* The n-th absolute value of the format is `significand n` 2^(`exponent n`). *)
Definition significand (n : Z) : Z := if n <? implicit_bit then n else n mod implicit_bit + implicit_bit.
Definition exponent (n : Z) : Z := if n <? implicit_bit then emin else emin + n / implicit_bit - 1.
Definition magnitude (n : Z) : R := F2R (Float radix2 (significand n) (exponent n)).

Lemma significand_positive n : 0 <= n -> 0 <= significand n.
Proof.
  intros H. unfold significand. assert (P : 0 < implicit_bit) by (apply Z.pow_pos_nonneg;
    red in prec_positive; lia).
  destruct Z.ltb; trivial. pose proof (Z.mod_pos_bound n implicit_bit P). lia.
Qed.

(* None is missing. *)
Theorem numbered v : in_format v -> exists n, 0 <= n < magnitudes /\ Rabs v = magnitude n.
Proof.
  assert (P : 0 < implicit_bit) by (apply Z.pow_pos_nonneg; red in prec_positive; lia).
  assert (D : 2 ^ prec = 2 * implicit_bit) by (unfold implicit_bit; rewrite <- Z.pow_succ_r
    by (red in prec_positive; lia); f_equal; lia).
  intros [G B]. destruct (Req_dec v 0) as [->|N0].
  { exists 0. split. unfold magnitudes. red in prec_positive, range. nia. unfold magnitude, significand.
    destruct (Z.ltb_spec 0 implicit_bit); [|lia]. now rewrite Rabs_R0, F2R_0. }
  set (e := cexp radix2 (SpecFloat.fexp prec emax) v).
  set (m := Z.abs (Ztrunc (scaled_mantissa radix2 (SpecFloat.fexp prec emax) v))).
  assert (V : Rabs v = F2R (Float radix2 m e)). { rewrite G. unfold m. now rewrite F2R_Zabs. }
  set (k := mag radix2 v : Z). assert (K : k <= emax). { apply mag_le_bpow; trivial. }
  assert (E : e = Z.max (k - prec) emin) by reflexivity.
  assert (U : m < 2 ^ prec).
  { apply lt_IZR. rewrite (IZR_Zpower radix2) by (red in prec_positive; lia).
    apply Rmult_lt_reg_r with (bpow radix2 e). apply bpow_gt_0.
    rewrite <- bpow_plus. change (IZR m * bpow radix2 e)%R with (F2R (Float radix2 m e)). rewrite <- V.
    eapply Rlt_le_trans. apply bpow_mag_gt. apply bpow_le. fold k. lia. }
  assert (L : emin < e -> implicit_bit <= m).
  { intros H. apply le_IZR. unfold implicit_bit. rewrite (IZR_Zpower radix2) by (red in prec_positive; lia).
    apply Rmult_le_reg_r with (bpow radix2 e). apply bpow_gt_0. rewrite <- bpow_plus.
    change (IZR m * bpow radix2 e)%R with (F2R (Float radix2 m e)). rewrite <- V.
    replace (prec - 1 + e) with (k - 1) by lia. now apply bpow_mag_le. }
  assert (0 <= m) by apply Z.abs_nonneg.
  exists ((e - emin) * implicit_bit + m). split.
  - unfold magnitudes. assert (e - emin <= 2 * emax - 3) by (unfold emin in *; red in prec_positive, range;
      lia). nia.
  - rewrite V. unfold magnitude. f_equal. unfold significand, exponent.
    destruct (Z.ltb_spec ((e - emin) * implicit_bit + m) implicit_bit).
    + f_equal; nia.
    + destruct (Z.le_gt_cases implicit_bit m).
      * replace ((e - emin) * implicit_bit + m) with ((m - implicit_bit) + (e - emin + 1) * implicit_bit)
          by ring.
        rewrite Z_mod_plus_full, Z_div_plus_full, Z.mod_small, Z.div_small by lia. f_equal; ring.
      * exfalso. assert (e = emin) by lia. nia.
Qed.

End Format.

(* A number of a narrower format is one of a wider format. *)
Lemma in_wider prec emax prec' emax' v : Prec_gt_0 prec -> Prec_gt_0 prec' -> Prec_lt_emax prec' emax' ->
  prec <= prec' -> emax <= emax' -> emin prec' emax' <= emin prec emax -> in_format prec emax v ->
    in_format prec' emax' v.
Proof.
  intros P P' L' H1 H2 H3 [G B]. split.
  - apply generic_inclusion_mag with (2 := G). intros _. unfold SpecFloat.fexp.
    unfold emin, SpecFloat.emin in *. lia.
  - eapply Rlt_le_trans. exact B. now apply bpow_le.
Qed.
