(* The total error of the kernel where y is no stored f x but the quotient of a rounded product: any fp32
   number within a ball about f x, for every real x. The real numbers are cut into cells by places, as in
   Continuum.v, and the y of a cell are all fp32 numbers between two of them. Rounding is monotone, so that
   the kernel's own operations, done at the ends of an interval, enclose what they do within it. A boolean
   function that Coq runs halves the interval of y, and then that of x, until the bound shows. *)

From Coq Require Import Reals ZArith List Bool SpecFloat Lia Lra.
From Flocq Require Import Core IEEE754.BinarySingleNaN Calc.Operations.
From Outgrad Require Import Activation BranchPoint Format Kernel Exhaustion Forward Continuum NormChannel.
Import ListNotations.
Open Scope Z_scope.

(* ---- Intervals of fp32 numbers --------------------------------------------------------------- *)

Definition span := (spec_float * spec_float)%type.
Definition inside (i : span) (v : R) : Prop :=
  exists a b, stands_for 24 128 (fst i) a /\ stands_for 24 128 (snd i) b /\ (a <= v <= b)%R.

Definition finite (i : span) : option span :=
  if is_finite_SF (fst i) && is_finite_SF (snd i) then Some i else None.

(* The results of v - c and of p u + c. *)
Definition sub_span (v : span) (c : spec_float) : option span := finite (sub (fst v) c, sub (snd v) c).
Definition fma_span (p u : span) (c : spec_float) : option span :=
  match finite (fma (fst p) (fst u) c, fma (fst p) (snd u) c),
    finite (fma (snd p) (fst u) c, fma (snd p) (snd u) c) with
  | Some (a, b), Some (a', b') =>
    Some (at_most (at_most a b) (at_most a' b'), at_least (at_least a b) (at_least a' b'))
  | _, _ => None
  end.
Fixpoint horner_span (c : list spec_float) (u : span) : option span :=
  match c with
  | [] => None
  | [a] => Some (a, a)
  | a :: c => match horner_span c u with Some p => fma_span p u a | None => None end
  end.

(* The number of an absolute value in Format.v's numbering. *)
Definition magnitude_number (z : spec_float) : Z := bits z mod 2 ^ 31.

(* ---- Their correctness ----------------------------------------------------------------------- *)

Lemma nearest_rises v w : (v <= w)%R -> (nearest 24 128 v <= nearest 24 128 w)%R.
Proof. intros H. apply round_le; trivial. now apply fexp_correct. apply valid_rnd_N. Qed.

Lemma nearest_within a v b : (a <= v <= b)%R -> (Rabs (nearest 24 128 a) < bpow radix2 128)%R ->
  (Rabs (nearest 24 128 b) < bpow radix2 128)%R -> (Rabs (nearest 24 128 v) < bpow radix2 128)%R.
Proof.
  intros [L U] A B. apply nearest_rises in L, U. apply Rabs_lt_inv in A, B. apply Rabs_lt. lra.
Qed.

Lemma stands_for_bounded a v : stands_for 24 128 a v -> (Rabs v < bpow radix2 128)%R.
Proof. intros A. apply (stands_for_in_format _ _ _ _ A). Qed.

Lemma finite_correct i j : finite i = Some j ->
  i = j /\ is_finite_SF (fst i) = true /\ is_finite_SF (snd i) = true.
Proof.
  unfold finite. destruct (is_finite_SF (fst i) && is_finite_SF (snd i)) eqn:F; [|discriminate].
  intros [= <-]. apply andb_prop in F. tauto.
Qed.

Lemma sub_finite a c v w : stands_for 24 128 a v -> stands_for 24 128 c w -> is_finite_SF (sub a c) = true ->
  stands_for 24 128 (sub a c) (nearest 24 128 (v - w)).
Proof.
  intros A C F. apply sub_nearest; trivial. apply Rnot_le_lt. intros O.
  apply stands_for_Flocq in A as (a' & -> & FA & <-). apply stands_for_Flocq in C as (c' & -> & FC & <-).
  pose proof (Bminus_correct 24 128 _ _ mode_NE a' c' FA FC) as E. rewrite Rlt_bool_false in E by exact O.
  rewrite sub_Flocq, (proj1 E) in F. discriminate.
Qed.

Lemma fma_finite a b c u v w : stands_for 24 128 a u -> stands_for 24 128 b v -> stands_for 24 128 c w ->
  is_finite_SF (fma a b c) = true -> stands_for 24 128 (fma a b c) (nearest 24 128 (u * v + w)).
Proof.
  intros A B C F. apply fma_nearest; trivial. apply Rnot_le_lt. intros O.
  apply stands_for_Flocq in A as (a' & -> & FA & <-). apply stands_for_Flocq in B as (b' & -> & FB & <-).
  apply stands_for_Flocq in C as (c' & -> & FC & <-).
  pose proof (Bfma_correct 24 128 _ _ mode_NE a' b' c' FA FB FC) as E. cbv zeta in E.
  rewrite Rlt_bool_false in E by exact O. rewrite fma_Flocq, E in F. discriminate.
Qed.

Lemma sqrt_finite a v : stands_for 24 128 a v -> is_finite_SF (sqrt32 a) = true -> (0 <= v)%R.
Proof.
  intros (_ & _ & <-) F. destruct a as [s| | |[] m e]; try discriminate; simpl; try lra.
  apply F2R_ge_0. easy.
Qed.

Lemma at_least_value a b v w : stands_for 24 128 a v -> stands_for 24 128 b w ->
  stands_for 24 128 (at_least a b) (Rmax v w).
Proof.
  intros A B. unfold at_least. rewrite (less_stands a b v w) by trivial.
  destruct (Rlt_bool_spec v w); [rewrite Rmax_right|rewrite Rmax_left]; trivial; lra.
Qed.

Lemma at_most_value a b v w : stands_for 24 128 a v -> stands_for 24 128 b w ->
  stands_for 24 128 (at_most a b) (Rmin v w).
Proof.
  intros A B. unfold at_most. rewrite (less_stands b a w v) by trivial.
  destruct (Rlt_bool_spec w v); [rewrite Rmin_right|rewrite Rmin_left]; trivial; lra.
Qed.

Lemma non_positive_value a v : stands_for 24 128 a v -> stands_for 24 128 (non_positive a) (Rmin v 0).
Proof.
  intros A. unfold non_positive. rewrite (less_stands (S754_zero false) a 0 v) by (trivial; now repeat split).
  destruct (Rlt_bool_spec 0 v); [rewrite Rmin_right by lra; now repeat split|rewrite Rmin_left]; trivial.
Qed.

Lemma opp_value a v : stands_for 24 128 a v -> stands_for 24 128 (SFopp a) (- v).
Proof.
  intros A. apply stands_for_Flocq in A as (a' & -> & FA & <-).
  replace (SFopp (B2SF a')) with (B2SF (Bopp a')) by now destruct a'.
  split; [apply valid_binary_B2SF|]. now rewrite is_finite_SF_B2SF, SF2R_B2SF, is_finite_Bopp, B2R_Bopp.
Qed.

Lemma product_between p x p' u y u' : (p <= x <= p')%R -> (u <= y <= u')%R ->
  (Rmin (Rmin (p * u) (p * u')) (Rmin (p' * u) (p' * u')) <= x * y <=
    Rmax (Rmax (p * u) (p * u')) (Rmax (p' * u) (p' * u')))%R.
Proof.
  intros P U.
  assert (L : forall a, (a * u <= a * y \/ a * u' <= a * y)%R /\ (a * y <= a * u \/ a * y <= a * u')%R)
    by (intros a; destruct (Rle_dec 0 a); split; [left|right|right|left]; nra).
  pose proof (L p) as [L1 L2]. pose proof (L p') as [L3 L4].
  assert ((p * y <= x * y \/ p' * y <= x * y) /\ (x * y <= p * y \/ x * y <= p' * y))%R as [L5 L6]
    by (destruct (Rle_dec 0 y); split; [left|right|right|left]; nra).
  unfold Rmin, Rmax. repeat destruct Rle_dec; lra.
Qed.

Lemma sub_span_correct i c w j a v : sub_span i c = Some j -> stands_for 24 128 c w -> inside i v ->
  stands_for 24 128 a v -> exists v', stands_for 24 128 (sub a c) v' /\ inside j v'.
Proof.
  intros H C (l & u & L & U & B) A. apply finite_correct in H as (<- & F & G). cbn [fst snd] in F, G.
  pose proof (sub_finite _ _ _ _ L C F) as L'. pose proof (sub_finite _ _ _ _ U C G) as U'.
  exists (nearest 24 128 (v - w)). split.
  - apply sub_nearest; trivial. apply nearest_within with (l - w)%R (u - w)%R; [lra|..];
      eapply stands_for_bounded; eassumption.
  - eexists _, _. split; [exact L'|]. split; [exact U'|]. split; apply nearest_rises; lra.
Qed.

Lemma fma_span_correct i j c w k a b v x : fma_span i j c = Some k -> stands_for 24 128 c w ->
  inside i v -> inside j x -> stands_for 24 128 a v -> stands_for 24 128 b x ->
  exists v', stands_for 24 128 (fma a b c) v' /\ inside k v'.
Proof.
  intros H C (l & u & L & U & LU) (l' & u' & L' & U' & LU') A B. unfold fma_span in H.
  destruct (finite (fma (fst i) _ c, _)) as [[q q']|] eqn:Q; [|discriminate].
  destruct (finite (fma (snd i) _ c, _)) as [[r r']|] eqn:S; [|discriminate]. injection H as <-.
  apply finite_correct in Q as ([= <- <-] & F1 & F2). apply finite_correct in S as ([= <- <-] & F3 & F4).
  cbn [fst snd] in F1, F2, F3, F4.
  pose proof (fma_finite _ _ _ _ _ _ L L' C F1) as G1. pose proof (fma_finite _ _ _ _ _ _ L U' C F2) as G2.
  pose proof (fma_finite _ _ _ _ _ _ U L' C F3) as G3. pose proof (fma_finite _ _ _ _ _ _ U U' C F4) as G4.
  pose proof (at_most_value _ _ _ _ (at_most_value _ _ _ _ G1 G2) (at_most_value _ _ _ _ G3 G4)) as Lo.
  pose proof (at_least_value _ _ _ _ (at_least_value _ _ _ _ G1 G2) (at_least_value _ _ _ _ G3 G4)) as Hi.
  pose proof (product_between _ _ _ _ _ _ LU LU') as P.
  assert (N : (Rmin (Rmin (nearest 24 128 (l * l' + w)) (nearest 24 128 (l * u' + w)))
        (Rmin (nearest 24 128 (u * l' + w)) (nearest 24 128 (u * u' + w))) <= nearest 24 128 (v * x + w) <=
      Rmax (Rmax (nearest 24 128 (l * l' + w)) (nearest 24 128 (l * u' + w)))
        (Rmax (nearest 24 128 (u * l' + w)) (nearest 24 128 (u * u' + w))))%R).
  { pose proof (fun y => nearest_rises (y + w) (v * x + w)) as M1.
    pose proof (fun y => nearest_rises (v * x + w) (y + w)) as M2.
    assert (D : forall y z : R, (y <= z -> y + w <= z + w)%R) by (intros; lra).
    split.
    - assert (l * l' <= v * x \/ l * u' <= v * x \/ u * l' <= v * x \/ u * u' <= v * x)%R as K
        by (revert P; unfold Rmin, Rmax; repeat destruct Rle_dec; lra).
      destruct K as [K|[K|[K|K]]]; apply D, M1 in K; revert K; unfold Rmin; repeat destruct Rle_dec; lra.
    - assert (v * x <= l * l' \/ v * x <= l * u' \/ v * x <= u * l' \/ v * x <= u * u')%R as K
        by (revert P; unfold Rmin, Rmax; repeat destruct Rle_dec; lra).
      destruct K as [K|[K|[K|K]]]; apply D, M2 in K; revert K; unfold Rmax; repeat destruct Rle_dec; lra. }
  exists (nearest 24 128 (v * x + w)). split; [|eexists _, _; split; [exact Lo|split; [exact Hi|exact N]]].
  apply fma_nearest; trivial. apply stands_for_bounded in Lo, Hi. apply Rabs_lt_inv in Lo, Hi.
  apply Rabs_lt. lra.
Qed.

Definition is_fp32 (a : spec_float) : bool := valid_binary 24 128 a && is_finite_SF a.
Lemma is_fp32_value a : is_fp32 a = true -> stands_for 24 128 a (SF2R radix2 a).
Proof. intros H. apply andb_prop in H as [V F]. now repeat split. Qed.

Lemma horner_span_correct u b x : inside u x -> stands_for 24 128 b x ->
  forall c i, forallb is_fp32 c = true -> horner_span c u = Some i ->
  exists v, stands_for 24 128 (horner32 c b) v /\ inside i v.
Proof.
  intros U B. induction c as [|a c IH]; intros i V H; [discriminate|].
  cbn [forallb] in V. apply andb_prop in V as [A V]. apply is_fp32_value in A.
  destruct c as [|a' c].
  - injection H as <-. exists (SF2R radix2 a). split; trivial. eexists _, _. split; [exact A|].
    split; [exact A|]. split; apply Rle_refl.
  - change (match horner_span (a' :: c) u with Some p => fma_span p u a | None => None end = Some i) in H.
    destruct (horner_span (a' :: c) u) as [p|]; [|discriminate]. destruct (IH p V eq_refl) as (v & P & I).
    exact (fma_span_correct p u a _ i (horner32 (a' :: c) b) b v x H A I U P B).
Qed.

(* ---- Absolute values in ascending order ------------------------------------------------------ *)

Lemma magnitude_number_value a v : stands_for 24 128 a v ->
  0 <= magnitude_number a /\ Rabs v = magnitude 24 128 (magnitude_number a) /\
  ((0 < v)%R -> bits a = magnitude_number a).
Proof.
  intros (V & F & <-). unfold magnitude_number. split; [apply Z.mod_pos_bound; lia|].
  destruct a as [s| | |s m e]; try discriminate.
  - replace (bits (S754_zero s) mod 2 ^ 31) with 0 by now destruct s.
    unfold magnitude. simpl. rewrite Rabs_R0, F2R_0. split; [trivial|lra].
  - unfold valid_binary, bounded in V. apply andb_prop in V as [C E]. apply Z.leb_le in E.
    unfold canonical_mantissa in C. apply Zeq_bool_eq in C. unfold SpecFloat.fexp, SpecFloat.emin in C.
    rewrite Digits.Zpos_digits2_pos in C.
    pose proof (Digits.Zdigits_correct radix2 (Zpos m)) as D.
    set (d := Digits.Zdigits radix2 (Zpos m)) in *. change (Z.abs (Zpos m)) with (Zpos m) in D.
    change (Z.pow (radix_val radix2)) with (Z.pow 2) in D.
    assert (M : (Zpos m < 2 ^ 24) /\ (e = -149 \/ -149 <= e /\ 2 ^ 23 <= Zpos m)).
    { assert (Dd : d <= 24 /\ (e = -149 \/ -149 <= e /\ 24 <= d)) by lia. split.
      - apply Z.lt_le_trans with (2 ^ d); [apply D|]. apply Z.pow_le_mono_r; lia.
      - destruct Dd as [_ [K|[K K']]]; [now left|right; split; trivial].
        apply Z.le_trans with (2 ^ (d - 1)); [|apply D]. apply Z.pow_le_mono_r; lia. }
    clear D d C. change (128 - 24) with 104 in E. destruct M as [M N].
    assert (A : Rabs (SF2R radix2 (S754_finite s m e)) = F2R (Float radix2 (Zpos m) e)).
    { simpl. rewrite <- F2R_Zabs. now destruct s. }
    assert (S : (0 < SF2R radix2 (S754_finite s m e))%R -> s = false).
    { destruct s; trivial. simpl. intros P.
      pose proof (F2R_lt_0 radix2 (Float radix2 (Zneg m) e) eq_refl). lra. }
    rewrite A. unfold magnitude, significand, exponent, implicit_bit, emin. change (24 - 1) with 23.
    change (3 - 128 - 24) with (-149).
    set (n := if Zpos m <? 2 ^ 23 then Zpos m else (e + 149) * 2 ^ 23 + Zpos m).
    assert (N' : 0 <= n < 2 ^ 31) by (unfold n; destruct (Z.ltb_spec (Zpos m) (2 ^ 23)); lia).
    assert (B : bits (S754_finite s m e) mod 2 ^ 31 = n /\ (n < 2 ^ 23 /\ n = Zpos m /\ e = -149 \/
      n = (e + 150) * 2 ^ 23 + (Zpos m - 2 ^ 23) /\ 0 <= Zpos m - 2 ^ 23 < 2 ^ 23 /\ -149 <= e)).
    { unfold bits. fold n. split.
      - replace ((if s then 2 ^ 31 else 0) + n) with (n + (if s then 1 else 0) * 2 ^ 31)
          by (destruct s; ring).
        rewrite Z_mod_plus_full. now apply Z.mod_small.
      - unfold n. destruct (Z.ltb_spec (Zpos m) (2 ^ 23)); [left|right]; lia. }
    split; [|intros P; apply S in P; subst s; symmetry; now apply Z.mod_small].
    destruct B as [-> [(L & -> & ->)|(-> & L & K)]].
    + apply Z.ltb_lt in L. now rewrite L.
    + destruct (Z.ltb_spec ((e + 150) * 2 ^ 23 + (Zpos m - 2 ^ 23)) (2 ^ 23)) as [O|_]; [lia|].
      rewrite (Z.add_comm ((e + 150) * 2 ^ 23)), Z_mod_plus_full, Z_div_plus_full, Z.mod_small,
        Z.div_small by lia. f_equal. f_equal; lia.
Qed.

Lemma magnitude_number_rises a b v w : stands_for 24 128 a v -> stands_for 24 128 b w ->
  (Rabs v <= Rabs w)%R -> magnitude_number a <= magnitude_number b.
Proof.
  intros A B H.
  destruct (magnitude_number_value a v A) as (NA & EA & _), (magnitude_number_value b w B) as (NB & EB & _).
  apply Z.nlt_ge. intros O.
  pose proof (magnitude_rises 24 128 prec_32 (magnitude_number b) (magnitude_number a) ltac:(lia)) as M.
  assert (E : Rabs v = Rabs w) by lra.
  apply stands_for_abs in A, B. rewrite E in A.
  enough (magnitude_number a = magnitude_number b) by lia.
  assert (S : forall z, magnitude_number (SFabs z) = magnitude_number z).
  { intros z. unfold magnitude_number. destruct z as [[]|[]| |[] m e]; try reflexivity. simpl SFabs.
    change (bits (S754_finite true m e)) with (2 ^ 31 + bits (S754_finite false m e)).
    replace (2 ^ 31 + bits (S754_finite false m e)) with (bits (S754_finite false m e) + 1 * 2 ^ 31) by ring.
    now rewrite Z_mod_plus_full. }
  rewrite <- (S a), <- (S b). destruct (stands_for_unique _ _ _ _ _ A B) as [-> |[ZA ZB]]; trivial.
  destruct (SFabs a) as [[]| | |]; try discriminate; destruct (SFabs b) as [[]| | |]; try discriminate;
    reflexivity.
Qed.

Lemma magnitude_number_less a b v w : stands_for 24 128 a v -> stands_for 24 128 b w ->
  (Rabs v < Rabs w)%R -> magnitude_number a < magnitude_number b.
Proof.
  intros A B H.
  destruct (magnitude_number_value a v A) as (NA & EA & _), (magnitude_number_value b w B) as (NB & EB & _).
  apply Z.nle_gt. intros O. pose proof (magnitude_rises 24 128 prec_32 _ _ (conj NB O)). lra.
Qed.

(* ---- The check ------------------------------------------------------------------------------- *)

Section Check.

Variables (c : enclosing) (h : header) (T relative absolute : dyadic).
(* On which side of x_star the x are. *)
Variable mask : bool.

(* The n-th row against an f' x within `slope`, for every v of the span. *)
Definition row_fits (slope : pair) (v : span) (n : Z) : bool :=
  match nth (Z.to_nat (n mod rows h)) (table h) [] with
  | [] => false
  | centre :: c =>
    match sub_span v centre with
    | Some u =>
      match horner_span c u with
      | Some (a, b) =>
        match dyadic_of a, dyadic_of b with
        | Some a, Some b => at_most_dyadic b (Fplus (fst slope) T) && at_most_dyadic (snd slope) (Fplus a T)
        | _, _ => false
        end
      | None => false
      end
    | None => false
    end
  end.
Fixpoint rows_fit (slope : pair) (v : span) (n : Z) (count : nat) : bool :=
  match count with
  | O => true
  | S count => if row_fits slope v n then rows_fit slope v (n + 1) count else false
  end.

Definition coordinate_span (y : span) : option span :=
  match sub_span y (y_hi h) with
  | Some t =>
    match (if SFeqb (y_lo h) (S754_zero false) then Some t else sub_span t (y_lo h)) with
    | Some t =>
      let r := sqrt32 (at_least (fst t) (t_min h)) in
      let r' := sqrt32 (at_least (snd t) (t_min h)) in
      finite (if mask then (r, r') else (SFopp r', SFopp r))
    | None => None
    end
  | None => None
  end.
(* With each row from that of one end to that of the other. *)
Definition core_fits (slope : pair) (y : span) : bool :=
  match coordinate_span y with
  | Some v =>
    match fma_span v (index_scale h, index_scale h) (index_bias h) with
    | Some (q, q') =>
      less (S754_zero false) q && rows_fit slope v (magnitude_number q)
        (Z.to_nat (magnitude_number q' - magnitude_number q + 1))
    | None => false
    end
  | None => false
  end.

(* octave_row, from a number of an absolute value. *)
Definition left_row_number (n : Z) : Z :=
  let k := n / 2 ^ (23 - left_bits h) in left_row h + Z.max ((k + Z.max k (left_knee h)) / 2 - left_base h) 0.
(* For the y above left_y. *)
Definition left_fits (slope : pair) (y : span) : bool :=
  let z := non_positive (fst y) in
  let z' := non_positive (snd y) in
  let first := left_row_number (magnitude_number z') in
  let last := left_row_number (Z.min (magnitude_number z) (magnitude_number (left_y h) - 1)) in
  rows_fit slope (z, z') first (Z.to_nat (last - first + 1)).

(* The kernel at every y of the span, bounded by y_max. *)
Definition span_fits (slope : pair) (y : span) : bool :=
  let lower := (fst y, at_most (snd y) (left_y h)) in
  let upper := (at_least (fst y) (left_y h), snd y) in
  if mask then core_fits slope y
  else if if less_equal (fst y) (left_y h) then core_fits slope lower else true then
    if less_equal (snd y) (left_y h) then true else left_fits slope upper
  else false.

(* Halves the span. *)
Fixpoint all_y_fit (fuel : nat) (slope : pair) (y : span) : bool :=
  if span_fits slope y then true
  else
    match fuel with
    | O => false
    | S fuel =>
      let middle := fma (sub (snd y) (fst y)) (number 1 (-1)) (fst y) in
      if is_fp32 middle then
        if all_y_fit fuel slope (fst y, middle) then all_y_fit fuel slope (middle, snd y) else false
      else false
    end.

Definition y_halvings : nat := 12.
Definition x_halvings : nat := 24.

(* That of the ball about an f x. *)
Definition radius (d : dyadic) : dyadic := Fplus (Fmult relative (Fabs d)) absolute.
(* a and b are what is known at p and q. *)
Definition cell_fits (p q : place) (a b : pair * pair) : bool :=
  let rounded_to d := number (Fnum d) (Fexp d) in
  let lower := fst (fst (if mask then a else b)) in
  let upper := snd (fst (if mask then b else a)) in
  let y := rounded_to (Fminus lower (radius lower)) in
  let y' := match q with far_right => y_max h | _ => rounded_to (Fplus upper (radius upper)) end in
  if on_side mask p && on_side mask q && far p q && is_finite_SF y && is_finite_SF y' then
    all_y_fit y_halvings (slopes mask p q (snd a) (snd b)) (at_most y (y_max h), at_most y' (y_max h))
  else false.

(* Halves the cell. *)
Definition units_of (p : place) : Z :=
  match p with point k => k | _ => - fst minus_x_star * 2 ^ (place_bits - 50) end.
Fixpoint all_x_fit (fuel : nat) (p q : place) (a b : pair * pair) : bool :=
  if cell_fits p q a b then true
  else
    match fuel with
    | O => false
    | S fuel =>
      let r := point ((units_of p + units_of q) / 2) in
      match known_at c r with
      | Some k => if all_x_fit fuel p r a k then all_x_fit fuel r q k b else false
      | None => false
      end
    end.

(* What the proofs need of the header. *)
Definition sane : bool :=
  forallb is_fp32 [y_hi h; y_lo h; t_min h; y_max h; index_scale h; index_bias h; left_y h] &&
  forallb (forallb is_fp32) (table h) && (left_bits h <=? 23) && less (left_y h) (S754_zero false) &&
  is_unheld h && match right_s h with S754_infinity false => true | _ => false end.

(* All x between two places. *)
Definition check_between (p q : place) : bool :=
  match known_at c p, known_at c q with
  | Some a, Some b =>
    (0 <=? Fnum relative) && at_most_dyadic relative one && all_x_fit x_halvings p q a b
  | _, _ => false
  end.

(* ---- Its correctness ------------------------------------------------------------------------- *)

Hypothesis enclosing_sound : sound_enclosing c.
Hypothesis is_sane : sane = true.

Definition is_within (slope : pair) (g : spec_float) : Prop := forall d, between slope d ->
  is_finite_SF g = true /\ (Rabs (SF2R radix2 g - d) <= F2R T)%R.

Lemma sane_parts :
  forallb is_fp32 [y_hi h; y_lo h; t_min h; y_max h; index_scale h; index_bias h; left_y h] = true /\
  forallb (forallb is_fp32) (table h) = true /\ (left_bits h <=? 23) = true /\
  less (left_y h) (S754_zero false) = true /\ is_unheld h = true.
Proof.
  pose proof is_sane as S. unfold sane in S. apply andb_prop in S as [S _].
  do 4 (apply andb_prop in S as [S ?]). now repeat split.
Qed.

(* There is no right segment. *)
Lemma left_of_right a v : stands_for 24 128 a v -> less a (right_s h) = true.
Proof.
  intros (_ & F & _). pose proof is_sane as S. unfold sane in S. apply andb_prop in S as [_ S].
  destruct (right_s h) as [|[]| |]; try discriminate. now destruct a as [| | |[]].
Qed.

Lemma constants a : In a [y_hi h; y_lo h; t_min h; y_max h; index_scale h; index_bias h; left_y h] ->
  stands_for 24 128 a (SF2R radix2 a).
Proof.
  intros A. destruct sane_parts as (S & _).
  rewrite forallb_forall in S. now apply is_fp32_value, S.
Qed.

Lemma row_fits_correct slope v n b x : row_fits slope v n = true -> inside v x -> stands_for 24 128 b x ->
  is_within slope (evaluate_row h (n mod rows h) b).
Proof.
  unfold row_fits, evaluate_row. intros H V B d D.
  destruct (nth (Z.to_nat (n mod rows h)) (table h) []) as [|centre w] eqn:R; [discriminate|].
  assert (W : forallb is_fp32 (centre :: w) = true).
  { destruct sane_parts as (_ & S & _).
    rewrite forallb_forall in S. apply S. rewrite <- R. apply nth_In. apply Nat.nle_gt. intros O.
    apply nth_overflow with (d := []) in O. rewrite O in R. discriminate. }
  cbn [forallb] in W. apply andb_prop in W as [C W]. apply is_fp32_value in C.
  destruct (sub_span v centre) as [u|] eqn:U; [|discriminate].
  destruct (sub_span_correct _ _ _ _ _ _ U C V B) as (t & Bt & It).
  destruct (horner_span w u) as [[lo hi]|] eqn:P; [|discriminate].
  destruct (horner_span_correct _ _ _ It Bt _ _ W P) as (g & G & l & k & L & K & I).
  destruct (dyadic_of (fst (lo, hi))) as [dl|] eqn:Dl; [|cbn [fst] in Dl; rewrite Dl in H; discriminate].
  destruct (dyadic_of (snd (lo, hi))) as [dh|] eqn:Dh;
    [|cbn [snd] in Dh; rewrite Dh in H; now destruct (dyadic_of lo)].
  cbn [fst snd] in *. rewrite Dl, Dh in H. apply dyadic_of_correct in Dl as [_ Dl], Dh as [_ Dh].
  apply andb_prop in H as [H1 H2]. apply at_most_dyadic_correct in H1, H2. rewrite F2R_plus in H1, H2.
  destruct L as (_ & _ & L), K as (_ & _ & K), G as (_ & F & G). split; trivial. rewrite G.
  destruct D as [D1 D2]. apply Rabs_le. lra.
Qed.

Lemma rows_fit_each slope v : forall count n, rows_fit slope v n count = true ->
  forall k, n <= k < n + Z.of_nat count -> row_fits slope v k = true.
Proof.
  induction count as [|count IH]; intros n H k K; [lia|]. cbn [rows_fit] in H.
  destruct (row_fits slope v n) eqn:R; [|discriminate].
  destruct (Z.eq_dec k n) as [-> |]; trivial. apply IH with (n + 1); trivial. lia.
Qed.

Lemma coordinate_span_correct y v a w : coordinate_span y = Some v -> inside y w -> stands_for 24 128 a w ->
  exists x, stands_for 24 128 (evaluate_coordinate h a mask) x /\ inside v x.
Proof.
  unfold coordinate_span, evaluate_coordinate. cbv zeta. rewrite unheld by apply sane_parts. intros H Y A.
  destruct (sub_span y (y_hi h)) as [t|] eqn:S; [|discriminate].
  destruct (sub_span_correct _ _ _ _ _ _ S (constants (y_hi h) ltac:(simpl; tauto)) Y A) as (w1 & A1 & Y1).
  assert (E : exists t' w2,
    (if SFeqb (y_lo h) (S754_zero false) then Some t else sub_span t (y_lo h)) = Some t' /\
    inside t' w2 /\ stands_for 24 128 (if SFeqb (y_lo h) (S754_zero false) then sub a (y_hi h)
      else sub (sub a (y_hi h)) (y_lo h)) w2).
  { destruct (SFeqb (y_lo h) (S754_zero false)); [now exists t, w1|].
    destruct (sub_span t (y_lo h)) as [t'|] eqn:S'; [|discriminate].
    destruct (sub_span_correct _ _ _ _ _ _ S' (constants (y_lo h) ltac:(simpl; tauto)) Y1 A1)
      as (w2 & A2 & Y2).
    now exists t', w2. }
  destruct E as (t' & w2 & E & (l & u & L & U & B) & A2). rewrite E in H. clear E.
  set (s := if SFeqb (y_lo h) (S754_zero false) then _ else _) in *. clearbody s.
  pose proof (constants (t_min h) ltac:(simpl; tauto)) as M. set (m := SF2R radix2 (t_min h)) in *.
  pose proof (at_least_value _ _ _ _ L M) as L'. pose proof (at_least_value _ _ _ _ U M) as U'.
  pose proof (at_least_value _ _ _ _ A2 M) as A'.
  assert (B' : (Rmax l m <= Rmax w2 m <= Rmax u m)%R) by (unfold Rmax; repeat destruct Rle_dec; lra).
  apply finite_correct in H as (<- & F & G).
  assert (P : (0 <= Rmax l m)%R).
  { apply sqrt_finite with (1 := L'). destruct mask; cbn [fst snd] in F, G; trivial.
    now destruct (sqrt32 (at_least (fst t') (t_min h))). }
  pose proof (sqrt_nearest _ _ L' P) as QL. pose proof (sqrt_nearest _ _ U' ltac:(lra)) as QU.
  pose proof (sqrt_nearest _ _ A' ltac:(lra)) as QA.
  assert (Q : (nearest 24 128 (sqrt (Rmax l m)) <= nearest 24 128 (sqrt (Rmax w2 m)) <=
    nearest 24 128 (sqrt (Rmax u m)))%R) by (split; apply nearest_rises, sqrt_le_1_alt; lra).
  cbv zeta. destruct mask.
  - eexists. split; [exact QA|]. eexists _, _. split; [exact QL|split; [exact QU|exact Q]].
  - eexists. split; [exact (opp_value _ _ QA)|]. eexists _, _.
    split; [exact (opp_value _ _ QU)|split; [exact (opp_value _ _ QL)|lra]].
Qed.

Lemma core_fits_correct slope y a w : core_fits slope y = true -> inside y w -> stands_for 24 128 a w ->
  let v := evaluate_coordinate h a mask in
  is_within slope (evaluate_row h (row_index (fma v (index_scale h) (index_bias h)) (rows h))
    (if less v (right_s h) then v else a)).
Proof.
  intros H Y A v. unfold core_fits in H. destruct (coordinate_span y) as [i|] eqn:V; [|discriminate].
  destruct (coordinate_span_correct _ _ _ _ V Y A) as (x & X & I).
  change (stands_for 24 128 v x) in X. rewrite (left_of_right v x X).
  destruct (fma_span i _ _) as [[q q']|] eqn:Q; [|discriminate].
  pose proof (constants (index_scale h) ltac:(simpl; tauto)) as S.
  pose proof (constants (index_bias h) ltac:(simpl; tauto)) as B.
  assert (J : inside (index_scale h, index_scale h) (SF2R radix2 (index_scale h)))
    by (eexists _, _; split; [exact S|split; [exact S|split; apply Rle_refl]]).
  destruct (fma_span_correct _ _ _ _ _ _ _ _ _ Q B I J X S) as (n & N & l & u & L & U & K). clear J.
  cbn [fst snd] in L, U. apply andb_prop in H as [P H].
  rewrite (less_stands _ _ 0 l) in P by (trivial; now repeat split).
  destruct (Rlt_bool_spec 0 l) as [O|]; [|discriminate].
  unfold row_index. rewrite (proj2 (proj2 (magnitude_number_value _ _ N))) by lra.
  apply row_fits_correct with i x; trivial.
  apply rows_fit_each with (1 := H).
  pose proof (magnitude_number_rises _ _ _ _ L N ltac:(rewrite !Rabs_pos_eq; lra)).
  pose proof (magnitude_number_rises _ _ _ _ N U ltac:(rewrite !Rabs_pos_eq; lra)). lia.
Qed.

Lemma left_row_number_rises n k : n <= k -> left_row_number n <= left_row_number k.
Proof.
  intros H. unfold left_row_number. cbv zeta. destruct sane_parts as (_ & _ & B & _). apply Z.leb_le in B.
  assert (P : 0 < 2 ^ (23 - left_bits h)) by (apply Z.pow_pos_nonneg; lia).
  pose proof (Z.div_le_mono n k _ P H) as D. set (d := n / _) in *. set (d' := k / _) in *.
  apply Z.add_le_mono_l, Z.max_le_compat_r, Z.sub_le_mono_r, Z.div_le_mono; lia.
Qed.

Lemma left_fits_correct slope y a w : left_fits slope y = true -> inside y w -> stands_for 24 128 a w ->
  (SF2R radix2 (left_y h) < w)%R ->
  let z := non_positive a in
  is_within slope
    (evaluate_row h (octave_row z (left_bits h) (left_knee h) (left_base h) (left_row h) (rows h)) z).
Proof.
  intros H (l & u & L & U & B) A O z. unfold left_fits in H.
  pose proof (constants (left_y h) ltac:(simpl; tauto)) as Y. set (e := SF2R radix2 (left_y h)) in *.
  assert (e < 0)%R.
  { destruct sane_parts as (_ & _ & _ & N).
    rewrite (less_stands _ _ e 0) in N by (trivial; now repeat split). now destruct (Rlt_bool_spec e 0). }
  pose proof (non_positive_value _ _ L) as L'. pose proof (non_positive_value _ _ U) as U'.
  pose proof (non_positive_value _ _ A) as A'. change (stands_for 24 128 z (Rmin w 0)) in A'.
  assert (B' : (Rmin l 0 <= Rmin w 0 <= Rmin u 0)%R) by (unfold Rmin; repeat destruct Rle_dec; lra).
  assert (R : (Rmin u 0 <= 0)%R) by apply Rmin_r.
  change (octave_row z _ _ _ _ _) with (left_row_number (magnitude_number z) mod rows h).
  apply row_fits_correct with (non_positive (fst y), non_positive (snd y)) (Rmin w 0); trivial.
  2: now exists (Rmin l 0), (Rmin u 0).
  apply rows_fit_each with (1 := H).
  pose proof (magnitude_number_rises _ _ _ _ U' A' ltac:(rewrite !Rabs_left1; lra)).
  pose proof (magnitude_number_rises _ _ _ _ A' L' ltac:(rewrite !Rabs_left1; lra)).
  assert (magnitude_number z <= magnitude_number (left_y h) - 1).
  { enough (magnitude_number z < magnitude_number (left_y h)) by lia.
    apply (magnitude_number_less _ _ _ _ A' Y). rewrite !Rabs_left1 by lra. unfold Rmin.
    destruct Rle_dec; lra. }
  pose proof (left_row_number_rises (magnitude_number (non_positive (snd y))) (magnitude_number z)).
  pose proof (left_row_number_rises (magnitude_number z) (Z.min (magnitude_number (non_positive (fst y)))
    (magnitude_number (left_y h) - 1))). lia.
Qed.

Lemma span_fits_correct slope y a w : span_fits slope y = true -> inside y w -> stands_for 24 128 a w ->
  is_within slope (evaluate_held h a mask).
Proof.
  pose proof (core_fits_correct slope) as Core. unfold span_fits, evaluate_held. intros H Y A.
  destruct mask; cbn [negb andb]; [exact (Core _ _ _ H Y A)|].
  pose proof (constants (left_y h) ltac:(simpl; tauto)) as E. set (e := SF2R radix2 (left_y h)) in *.
  destruct Y as (l & u & L & U & B). cbn [fst snd] in *.
  rewrite (less_equal_stands _ _ _ _ L E), (less_equal_stands _ _ _ _ U E) in H.
  rewrite (less_equal_stands _ _ _ _ A E).
  destruct (Rle_bool_spec w e) as [O|O]; cbn [negb andb].
  - rewrite Rle_bool_true in H by lra. destruct (core_fits slope _) eqn:C; [|discriminate].
    apply (Core _ _ w C); trivial. exists l, (Rmin u e). cbn [fst snd].
    split; [trivial|split; [now apply at_most_value|]]. unfold Rmin. destruct Rle_dec; lra.
  - rewrite (Rle_bool_false u e) in H by lra. destruct (if Rle_bool l e then _ else true); [|discriminate].
    apply (left_fits_correct _ _ _ w H); trivial. exists (Rmax l e), u. cbn [fst snd].
    split; [now apply at_least_value|split; trivial]. unfold Rmax. destruct Rle_dec; lra.
Qed.

Lemma all_y_fit_correct slope a w : stands_for 24 128 a w ->
  forall fuel y, all_y_fit fuel slope y = true -> inside y w -> is_within slope (evaluate_held h a mask).
Proof.
  intros A. induction fuel as [|fuel IH]; intros y H Y; cbn [all_y_fit] in H;
    (destruct (span_fits slope y) eqn:S; [now apply span_fits_correct with y w|]); [discriminate|].
  cbv zeta in H. set (middle := fma _ _ _) in H. destruct (is_fp32 middle) eqn:M; [|discriminate].
  apply is_fp32_value in M. set (m := SF2R radix2 middle) in *.
  destruct (all_y_fit fuel slope (fst y, middle)) eqn:L; [|discriminate]. destruct Y as (l & u & Y & Y' & B).
  destruct (Rle_dec w m) as [W|W]; [apply IH with (1 := L)|apply IH with (1 := H)].
  - exists l, m. split; [exact Y|split; [exact M|lra]].
  - exists m, u. split; [exact M|split; [exact Y'|lra]].
Qed.

(* What is known of y. *)
Definition is_quotient (x v : R) : Prop := (Rabs (v - f x) <= F2R relative * Rabs (f x) + F2R absolute)%R.

Lemma radius_value d : F2R (radius d) = (F2R relative * Rabs (F2R d) + F2R absolute)%R.
Proof. unfold radius. now rewrite F2R_plus, F2R_mult, F2R_abs. Qed.

Lemma cell_fits_correct p q a b x s v : (0 <= F2R relative <= 1)%R ->
  known_at c p = Some a -> known_at c q = Some b -> cell_fits p q a b = true ->
  after p x -> before q x -> Rle_bool x_star x = mask -> stands_for 24 128 s v -> is_quotient x v ->
  within h (F2R T) x s.
Proof.
  intros R KP KQ H A B M V N. unfold cell_fits in H. cbv zeta in H.
  destruct (_ && is_finite_SF _) eqn:G in H; [|discriminate]. do 4 (apply andb_prop in G as [G ?]).
  apply known_at_correct in KP as [FP SP], KQ as [FQ SQ]; trivial.
  pose proof (f_between mask p q x G H3 A B M) as F.
  set (lower := fst (fst (if mask then a else b))) in *.
  set (upper := snd (fst (if mask then b else a))) in *.
  assert (L : (F2R lower <= f x)%R) by (unfold lower, between in *; destruct mask; lra).
  assert (U : q = far_right \/ (f x <= F2R upper)%R).
  { unfold upper, between in *. destruct mask; [destruct F as [_ [F|F]]; [now left|right; lra]|right; lra]. }
  assert (V' : nearest 24 128 v = v).
  { apply round_generic; [apply valid_rnd_N|apply (stands_for_in_format _ _ _ _ V)]. }
  assert (D : forall d, is_finite_SF (number (Fnum d) (Fexp d)) = true ->
    stands_for 24 128 (number (Fnum d) (Fexp d)) (nearest 24 128 (F2R d)))
    by (intros [m e] I; now apply stands_for_nearest).
  assert (Lip : forall u w, (u <= w -> u - F2R relative * Rabs u <= w - F2R relative * Rabs w /\
    u + F2R relative * Rabs u <= w + F2R relative * Rabs w)%R).
  { intros u w W. unfold Rabs. destruct (Rcase_abs u), (Rcase_abs w); nra. }
  unfold is_quotient in N. apply Rabs_le_inv in N.
  pose proof (constants (y_max h) ltac:(simpl; tauto)) as Y. set (most := SF2R radix2 (y_max h)) in *.
  set (lo := Fminus lower (radius lower)) in *. set (hi := Fplus upper (radius upper)) in *.
  assert (V1 : (nearest 24 128 (F2R lo) <= v)%R).
  { rewrite <- V'. apply nearest_rises. unfold lo. rewrite F2R_minus, radius_value. apply Lip in L. lra. }
  set (y' := match q with far_right => _ | _ => _ end) in *.
  assert (V2 : exists u, stands_for 24 128 y' u /\ (u = most \/ v <= u)%R).
  { destruct U as [-> |K]; [exists most; auto|].
    assert (y' = y_max h \/ y' = number (Fnum hi) (Fexp hi)) as [E|E] by (unfold y'; destruct q; auto);
      rewrite E in *; [exists most; auto|exists (nearest 24 128 (F2R hi)); split; [now apply D|right]].
    rewrite <- V'. apply nearest_rises. unfold hi. rewrite F2R_plus, radius_value. apply Lip in K. lra. }
  destruct V2 as (u & S & V2). apply D in H1. fold y' in S.
  assert (I : inside (at_most (number (Fnum lo) (Fexp lo)) (y_max h), at_most y' (y_max h)) (Rmin v most)).
  { exists (Rmin (nearest 24 128 (F2R lo)) most), (Rmin u most).
    split; [exact (at_most_value _ _ _ _ H1 Y)|split; [exact (at_most_value _ _ _ _ S Y)|]].
    unfold Rmin. repeat destruct Rle_dec; lra. }
  pose proof (all_y_fit_correct _ _ _ (at_most_value _ _ _ _ V Y) _ _ H I (f' x)) as E.
  unfold within. rewrite M. apply E. now apply slopes_correct.
Qed.

Theorem check_between_correct p q x s v : check_between p q = true ->
  after p x -> before q x -> Rle_bool x_star x = mask -> stands_for 24 128 s v -> is_quotient x v ->
  within h (F2R T) x s.
Proof.
  unfold check_between. destruct (known_at c p) as [a|] eqn:P; [|discriminate].
  destruct (known_at c q) as [b|] eqn:Q; [|discriminate]. intros H A B M V N.
  apply andb_prop in H as [H F]. apply andb_prop in H as [R0 R1].
  assert (R : (0 <= F2R relative <= 1)%R).
  { apply at_most_dyadic_correct in R1. unfold one in R1. split; [apply F2R_ge_0; now apply Z.leb_le|].
    revert R1. unfold F2R at 2. simpl. lra. }
  revert p q a b P Q A B F. generalize x_halvings. induction n as [|n IH]; intros; cbn [all_x_fit] in F;
    (destruct (cell_fits p q a b) eqn:C; [now apply cell_fits_correct with p q a b v|]); [discriminate|].
  cbv zeta in F. set (r := point _) in F. destruct (known_at c r) as [k|] eqn:K; [|discriminate].
  destruct (all_x_fit n p r a k) eqn:L; [|discriminate].
  destruct (before_or_after r x); [now apply IH with p r a k|now apply IH with r q k b].
Qed.

End Check.

(* ---- The whole line -------------------------------------------------------------------------- *)

(* Where the tails begin, in units of 2^-place_bits: f' is at its limits there, as far as matters here. *)
Definition outer : Z := tail_place * 2 ^ (place_bits + 2).

Definition check_line (c : enclosing) (h : header) (T relative absolute : dyadic) : bool :=
  let check := check_between c h T relative absolute in
  sane h && check false far_left (point (- outer)) && check false (point (- outer)) star &&
  check true star (point outer) && check true (point outer) far_right.

Theorem check_line_correct c h T relative absolute : sound_enclosing c ->
  check_line c h T relative absolute = true ->
  forall x s v, stands_for 24 128 s v -> is_quotient relative absolute x v -> within h (F2R T) x s.
Proof.
  intros C H x s v S Q. unfold check_line in H. cbv zeta in H. do 4 (apply andb_prop in H as [H ?]).
  pose proof (fun mask p q F => check_between_correct c h T relative absolute mask C H p q x s v F) as K.
  destruct (Rle_bool_spec x_star x) as [R|L]; [apply Rle_bool_true in R as M|apply Rle_bool_false in L as M].
  - destruct (before_or_after (point outer) x); [apply (K _ _ _ H1)|apply (K _ _ _ H0)]; trivial. exact I.
  - destruct (before_or_after (point (- outer)) x); [apply (K _ _ _ H3)|apply (K _ _ _ H2)]; trivial;
      [exact I|apply Rlt_le, L].
Qed.
