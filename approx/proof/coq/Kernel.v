(* The fp32 kernel that computes f' x from y and the branch bit, as kernels/eval.h has it (evaluate_backward,
   over the operations of FloatOps), for headers with a mask, centred rows and Horner's scheme, without break
   points or second words. It computes with the standard library's SpecFloat, so that Coq can run it.

   What SpecFloat has are add, subtract, multiply and square root; proven here is that its subtraction and
   square root and the fused multiply-add defined here are Flocq's for every operand, hence correctly rounded
   in the real numbers. *)

From Coq Require Import Reals ZArith List Bool SpecFloat Lia Lra.
From Flocq Require Import Core IEEE754.BinarySingleNaN Calc.Operations.
From Outgrad Require Import Format.
Import ListNotations.
Open Scope Z_scope.

#[export] Instance prec_32 : Prec_gt_0 24 := eq_refl.
#[export] Instance range_32 : Prec_lt_emax 24 128 := eq_refl.
Notation float32 := (binary_float 24 128).

(* ---- Operations (FloatOps) ------------------------------------------------------------------- *)

Definition number (m e : Z) : spec_float := rounded 24 128 m e false.
Definition sub (a b : spec_float) : spec_float := SFsub 24 128 a b.
Definition sqrt32 (a : spec_float) : spec_float := SFsqrt 24 128 a.
Definition less (a b : spec_float) : bool := SFltb a b.
Definition less_equal (a b : spec_float) : bool := SFleb a b.
Definition at_least (a low : spec_float) : spec_float := if less a low then low else a.
Definition at_most (a high : spec_float) : spec_float := if less high a then high else a.
Definition non_positive (a : spec_float) : spec_float :=
  if less (S754_zero false) a then S754_zero true else a.

(* a b + c: exact in integers, then rounded once. A product that is 0 or not finite needs no rounding. *)
Definition fma (a b c : spec_float) : spec_float :=
  match a, b, c with
  | S754_finite sa ma ea, S754_finite sb mb eb, S754_finite sc mc ec =>
    let e := Z.min (ea + eb) ec in
    number (cond_Zopp (xorb sa sb) (Zpos (ma * mb)) * 2 ^ (ea + eb - e) + cond_Zopp sc (Zpos mc) * 2 ^
      (ec - e)) e
  | S754_finite sa ma ea, S754_finite sb mb eb, S754_zero _ =>
    number (cond_Zopp (xorb sa sb) (Zpos (ma * mb))) (ea + eb)
  | S754_finite _ _ _, S754_finite _ _ _, _ => c
  | _, _, _ => SFadd 24 128 (SFmul 24 128 a b) c
  end.

(* The 32 bits of a number. All NaN are one here. *)
Definition bits (a : spec_float) : Z :=
  match a with
  | S754_zero s => if s then 2 ^ 31 else 0
  | S754_infinity s => (if s then 2 ^ 31 else 0) + 255 * 2 ^ 23
  | S754_nan => 2 ^ 31 - 2 ^ 22
  | S754_finite s m e => (if s then 2 ^ 31 else 0) + (if Zpos m <? 2 ^ 23 then Zpos m
    else (e + 149) * 2 ^ 23 + Zpos m)
  end.
Definition row_index (q : spec_float) (rows : Z) : Z := bits q mod rows.
Definition octave_row (z : spec_float) (fraction_bits knee base first_row rows : Z) : Z :=
  let h := bits z mod 2 ^ 31 / 2 ^ (23 - fraction_bits) in
    (first_row + Z.max ((h + Z.max h knee) / 2 - base) 0) mod rows.

(* ---- The kernel ------------------------------------------------------------------------------ *)

(* The members of a generated header that the kernel reads, with their names there; right_s is infinity where
   there is no right segment. Without a left one left_y is infinity, with one s_min is minus infinity. A row
   is its centre, c0, c1, ... *)
Record header := {
  rows : Z; y_hi : spec_float; y_lo : spec_float; t_min : spec_float; s_min : spec_float;
  y_max : spec_float;
  index_scale : spec_float; index_bias : spec_float;
  right_s : spec_float;
  left_y : spec_float; left_bits : Z; left_row : Z; left_knee : Z; left_base : Z;
  table : list (list spec_float)
}.

Fixpoint horner32 (c : list spec_float) (u : spec_float) : spec_float :=
  match c with [] => S754_nan | [a] => a | a :: c => fma (horner32 c u) u a end.

Definition evaluate_row (h : header) (row : Z) (v : spec_float) : spec_float :=
  match nth (Z.to_nat row) (table h) [] with [] => S754_nan | centre :: c => horner32 c (sub v centre) end.

Definition evaluate_coordinate (h : header) (y : spec_float) (m : bool) : spec_float :=
  let t := sub y (y_hi h) in
  let t := if SFeqb (y_lo h) (S754_zero false) then t else sub t (y_lo h) in
  let r := sqrt32 (at_least t (t_min h)) in
  at_least (if m then r else SFopp r) (s_min h).

(* At a y that is held at y_max. *)
Definition evaluate_held (h : header) (y : spec_float) (m : bool) : spec_float :=
  if negb m && negb (less_equal y (left_y h)) then
    let z := non_positive y in
    evaluate_row h (octave_row z (left_bits h) (left_knee h) (left_base h) (left_row h) (rows h)) z
  else
    let s := evaluate_coordinate h y m in
    evaluate_row h (row_index (fma s (index_scale h) (index_bias h)) (rows h)) (if less s (right_s h) then s
      else y).
Definition evaluate_backward (h : header) (y : spec_float) (m : bool) : spec_float :=
  evaluate_held h (at_most y (y_max h)) m.

(* Coordinates are not held at s_min. *)
Definition is_unheld (h : header) : bool :=
  match s_min h with S754_infinity true => true | _ => false end.
Lemma unheld h a : is_unheld h = true -> at_least a (s_min h) = a.
Proof.
  unfold is_unheld. destruct (s_min h) as [|[]| |]; try discriminate. now destruct a as [|[]| |[]].
Qed.

(* The fp32 number of a bit pattern of a format that is not wider. *)
Definition of_pattern (prec emax pattern : Z) : spec_float :=
  let sign_bit := 2 * emax * implicit_bit prec in
  let minus := sign_bit <=? pattern in
  let n := pattern mod sign_bit in
  if n =? 0 then S754_zero minus
  else if n <? magnitudes prec emax then number (cond_Zopp minus (significand prec n)) (exponent prec emax n)
  else if n =? magnitudes prec emax then S754_infinity minus else S754_nan.

(* The results for every step-th pattern from first on, with either bit, in one number. The compiled kernel
   has to have the same (tests/approx/proof/coq_kernel_test.cpp). *)
Definition hashed (hash : Z) (result : spec_float) : Z := (hash * 1000003 + bits result + 1) mod (2 ^ 61 - 1).
Fixpoint hash_of_patterns (one : Z -> Z -> Z) (pattern step : Z) (count : nat) (hash : Z) : Z :=
  match count with O => hash
    | S count => hash_of_patterns one (pattern + step) step count (one hash pattern) end.
Definition hash_of_results (h : header) (prec emax first step : Z) (count : nat) : Z :=
  hash_of_patterns (fun hash pattern => let y := of_pattern prec emax pattern in
    hashed (hashed hash (evaluate_backward h y false)) (evaluate_backward h y true)) first step count 0.

(* ---- Its operations are Flocq's -------------------------------------------------------------- *)

Lemma number_Flocq m e : number m e = B2SF (binary_normalize 24 128 prec_32 range_32 mode_NE m e false).
Proof. apply rounded_Flocq. Qed.

Lemma sign_of_zero m e s : m <> 0 -> rounded 24 128 m e s = number m e.
Proof. now destruct m. Qed.

Theorem sub_Flocq (a b : float32) : sub (B2SF a) (B2SF b) = B2SF (Bminus mode_NE a b).
Proof.
  destruct a as [sa|sa| |sa ma ea Ba], b as [sb|sb| |sb mb eb Bb]; try reflexivity; try (now destruct sa, sb).
  unfold sub. simpl. unfold Zminus. rewrite <- cond_Zopp_negb. apply number_Flocq.
Qed.

Theorem sqrt_Flocq (a : float32) : sqrt32 (B2SF a) = B2SF (Bsqrt mode_NE a).
Proof.
  destruct a as [s|[]| |[] m e B]; try reflexivity. unfold sqrt32. simpl. rewrite B2SF_SF2B.
  destruct (SFsqrt_core_binary _ _ _ _) as [[m' e'] l]. apply round_aux_Flocq.
Qed.

Lemma mul_Flocq (a b : float32) : SFmul 24 128 (B2SF a) (B2SF b) = B2SF (Bmult mode_NE a b).
Proof.
  destruct a as [sa|sa| |sa ma ea Ba], b as [sb|sb| |sb mb eb Bb]; try reflexivity.
  simpl. rewrite B2SF_SF2B. apply round_aux_Flocq.
Qed.

Lemma add_Flocq (a b : float32) : SFadd 24 128 (B2SF a) (B2SF b) = B2SF (Bplus mode_NE a b).
Proof.
  destruct a as [sa|sa| |sa ma ea Ba], b as [sb|sb| |sb mb eb Bb]; try reflexivity; try (now destruct sa, sb).
  simpl. apply number_Flocq.
Qed.

Theorem fma_Flocq (a b c : float32) : fma (B2SF a) (B2SF b) (B2SF c) = B2SF (Bfma mode_NE a b c).
Proof.
  destruct a as [sa|sa| |sa ma ea Ba], b as [sb|sb| |sb mb eb Bb];
    try (destruct c as [sc|sc| |sc mc ec Bc]; try reflexivity; now destruct sa, sb, sc).
  assert (P : cond_Zopp sa (Zpos ma) * cond_Zopp sb (Zpos mb) = cond_Zopp (xorb sa sb) (Zpos (ma * mb)))
    by now destruct sa, sb.
  destruct c as [sc|sc| |sc mc ec Bc]; try reflexivity; unfold Bfma, Fmult; cbn [fma B2SF]; rewrite P.
  - rewrite <- rounded_Flocq, sign_of_zero; trivial. now destruct (xorb sa sb).
  - (* The sign of an exact 0: the product and c have opposite signs then, and 0 is positive. *)
    unfold Fplus, Falign. set (p := cond_Zopp (xorb sa sb) (Zpos (ma * mb))).
    set (q := cond_Zopp sc (Zpos mc)).
    set (zero := Bfma_szero 24 128 mode_NE (B754_finite sa ma ea Ba) (B754_finite sb mb eb Bb)
      (B754_finite sc mc ec Bc)).
    assert (Z0 : forall i j, 0 < i -> 0 < j -> p * i + q * j = 0 -> zero = false).
    { unfold p, q, zero, Bfma_szero. simpl Bsign. intros i j Hi Hj E.
      pose proof (Z.mul_pos_pos (Zpos (ma * mb)) i eq_refl Hi).
      pose proof (Z.mul_pos_pos (Zpos mc) j eq_refl Hj). destruct (xorb sa sb), sc; trivial; exfalso;
        unfold cond_Zopp in E; lia. }
    assert (S : forall m e, (m = 0 -> zero = false) ->
      number m e = B2SF (binary_normalize 24 128 prec_32 range_32 mode_NE m e zero)).
    { intros m e H. rewrite <- rounded_Flocq. destruct (Z.eq_dec m 0) as [->|N]. now rewrite H.
      now rewrite sign_of_zero. }
    destruct (Zle_bool_spec (ea + eb) ec) as [L|L].
    + rewrite Z.min_l, Z.sub_diag, Z.mul_1_r by trivial. apply S. intros E.
      apply (Z0 1 (2 ^ (ec - (ea + eb)))); [lia|apply Z.pow_pos_nonneg; lia|].
      now rewrite Z.mul_1_r.
    + rewrite Z.min_r, Z.sub_diag, Z.mul_1_r by lia. apply S. intros E.
      apply (Z0 (2 ^ (ea + eb - ec)) 1); [apply Z.pow_pos_nonneg; lia|lia|].
      now rewrite Z.mul_1_r.
Qed.

(* In the real numbers, for finite operands and a result that is. *)
Corollary fma_nearest a b c u v w : stands_for 24 128 a u -> stands_for 24 128 b v -> stands_for 24 128 c w ->
  (Rabs (nearest 24 128 (u * v + w)) < bpow radix2 128)%R ->
    stands_for 24 128 (fma a b c) (nearest 24 128 (u * v + w)).
Proof.
  intros A B C H. apply stands_for_Flocq in A as (a' & -> & FA & <-).
  apply stands_for_Flocq in B as (b' & -> & FB & <-).
  apply stands_for_Flocq in C as (c' & -> & FC & <-). rewrite fma_Flocq.
  pose proof (Bfma_correct 24 128 _ _ mode_NE a' b' c' FA FB FC) as E. cbv zeta in E.
  rewrite Rlt_bool_true in E by exact H.
  destruct E as (E & F & _). split; [apply valid_binary_B2SF|]. now rewrite is_finite_SF_B2SF, SF2R_B2SF.
Qed.

Lemma sub_nearest a b v w : stands_for 24 128 a v -> stands_for 24 128 b w ->
  (Rabs (nearest 24 128 (v - w)) < bpow radix2 128)%R ->
    stands_for 24 128 (sub a b) (nearest 24 128 (v - w)).
Proof.
  intros A B H. apply stands_for_Flocq in A as (a' & -> & FA & <-).
  apply stands_for_Flocq in B as (b' & -> & FB & <-). rewrite sub_Flocq.
  pose proof (Bminus_correct 24 128 _ _ mode_NE a' b' FA FB) as E. rewrite Rlt_bool_true in E by exact H.
  destruct E as (E & F & _). split; [apply valid_binary_B2SF|]. now rewrite is_finite_SF_B2SF, SF2R_B2SF.
Qed.

Lemma sqrt_nearest a v : stands_for 24 128 a v -> (0 <= v)%R ->
  stands_for 24 128 (sqrt32 a) (nearest 24 128 (sqrt v)).
Proof.
  intros A P. apply stands_for_Flocq in A as (b & -> & F & <-). rewrite sqrt_Flocq.
  destruct (Bsqrt_correct 24 128 _ _ mode_NE b) as (E & G & _). split; [apply valid_binary_B2SF|].
  rewrite is_finite_SF_B2SF, SF2R_B2SF. split; [|exact E]. rewrite G. destruct b as [| | |[] m e H]; trivial.
  exfalso. simpl in P. pose proof (F2R_lt_0 radix2 (Float radix2 (Zneg m) e) ltac:(reflexivity)). lra.
Qed.

(* Comparisons. *)
Lemma less_stands x y v w : stands_for 24 128 x v -> stands_for 24 128 y w -> less x y = Rlt_bool v w.
Proof.
  intros X Y. apply stands_for_Flocq in X as (a & -> & FA & <-).
  apply stands_for_Flocq in Y as (b & -> & FB & <-). now apply Bltb_correct.
Qed.
Lemma less_equal_stands x y v w : stands_for 24 128 x v -> stands_for 24 128 y w ->
  less_equal x y = Rle_bool v w.
Proof.
  intros X Y. apply stands_for_Flocq in X as (a & -> & FA & <-).
  apply stands_for_Flocq in Y as (b & -> & FB & <-). now apply Bleb_correct.
Qed.
Lemma less_values x y v w : stands_for 24 128 x v -> stands_for 24 128 y w -> less x y = true -> (v < w)%R.
Proof. intros X Y E. rewrite (less_stands x y v w X Y) in E. now destruct (Rlt_bool_spec v w). Qed.
Lemma less_equal_values x y v w : stands_for 24 128 x v -> stands_for 24 128 y w -> less_equal x y = true ->
  (v <= w)%R.
Proof. intros X Y E. rewrite (less_equal_stands x y v w X Y) in E. now destruct (Rle_bool_spec v w). Qed.
