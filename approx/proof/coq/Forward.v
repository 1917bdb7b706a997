(* The 16-bit forward kernel of kernels/eval.h (evaluate_forward for fits of one format), its narrowing to the
   format, and the branch bit that it delivers: y is f x rounded correctly, and the bit is [x >= x_star]. With
   Exhaustion.v this gives the error of the gradient from what the two kernels store, with nothing assumed of
   y. *)

From Coq Require Import Reals ZArith List Bool SpecFloat Lia Lra.
From Flocq Require Import Core IEEE754.BinarySingleNaN.
From Outgrad Require Import Activation BranchPoint Format Kernel Exhaustion.
Import ListNotations.
Open Scope Z_scope.

(* ---- Operations (FloatOps) ------------------------------------------------------------------- *)

Definition mul (a b : spec_float) : spec_float := SFmul 24 128 a b.
Definition add (a b : spec_float) : spec_float := SFadd 24 128 a b.
Definition set_sign (s : bool) (a : spec_float) : spec_float :=
  match a with S754_zero _ => S754_zero s | S754_infinity _ => S754_infinity s | S754_finite _ m e =>
    S754_finite s m e | S754_nan => a end.
Definition sign (a : spec_float) : bool :=
  match a with S754_zero s | S754_infinity s | S754_finite s _ _ => s | S754_nan => false end.
Definition signed_as (a b : spec_float) : spec_float := set_sign (sign b) a.
(* The fp32 number with these 32 bits. *)
Definition of_bits (b : Z) : spec_float := of_pattern 24 128 b.
Definition shifted (a : spec_float) (places : Z) : spec_float := of_bits (bits a * 2 ^ places mod 2 ^ 32).
(* a + tie where that may differ from a: at exponents below -123. *)
Definition nudged (a tie : spec_float) : spec_float :=
  if (bits a mod 2 ^ 31 <? 2 ^ 25) && negb (is_zero a) then add a tie else a.

(* ---- The kernel ------------------------------------------------------------------------------ *)

(* The members of a generated header of a rounded forward, with their names there; minus_step is -1 /
   kIndexScale. A row is c0, c1, c2, c3. *)
Record forward_header := {
  f_rows : Z; x_star_32 : spec_float; x_min : spec_float; x_max : spec_float; tie : spec_float;
    tie_is_subnormal : bool;
  f_index_scale : spec_float; f_index_bias : spec_float; minus_step : spec_float; quartic_shift : Z;
  f_table : list (list spec_float)
}.

Definition evaluate_product (h : forward_header) (q w v : spec_float) : spec_float :=
  match nth (Z.to_nat (row_index q (f_rows h))) (f_table h) [] with
  | [c0; c1; c2; c3] =>
    let u := fma (sub q (f_index_bias h)) (minus_step h) w in
    let t := fma (shifted c3 (quartic_shift h)) u c3 in
    let t := fma t u c2 in
    let t := fma t u c1 in
    if tie_is_subnormal h then nudged (fma (mul w u) t (mul v c0)) (tie h)
      else fma (mul w u) t (fma v c0 (tie h))
  | _ => S754_nan
  end.

Definition evaluate_forward (h : forward_header) (x : spec_float) : spec_float :=
  let v := at_least x (x_min h) in
  let w := at_most v (x_max h) in
  let q := fma w (f_index_scale h) (f_index_bias h) in
  signed_as (evaluate_product h q w v) x.

Definition evaluate_mask (h : forward_header) (x : spec_float) : bool := less_equal (x_star_32 h) x.

(* To a narrower format, and back. *)
Definition converted (prec emax : Z) (a : spec_float) : spec_float :=
  match a with S754_finite s m e => rounded prec emax (cond_Zopp s (Zpos m)) e false | _ => a end.
Definition narrow (prec emax : Z) (a : spec_float) : spec_float := converted prec emax a.
Definition widen (a : spec_float) : spec_float := converted 24 128 a.

(* As hash_of_results of Kernel.v, for y in the format and the bit. *)
Definition hash_of_outputs (h : forward_header) (prec emax first step : Z) (count : nat) : Z :=
  hash_of_patterns (fun hash pattern => let x := of_pattern prec emax pattern in
    hashed hash (widen (narrow prec emax (evaluate_forward h x))) * 2
      + Z.b2z (evaluate_mask h x)) first step count 0.

(* ---- The check ------------------------------------------------------------------------------- *)

Section Forward.

Variables prec emax : Z.
Context (prec_positive : Prec_gt_0 prec) (range : Prec_lt_emax prec emax).
Hypothesis narrower : prec <= 24 /\ emax <= 128 /\ emin 24 128 <= emin prec emax.
Variable h : forward_header.

(* What the forward kernel delivers for x is right, for either zero if x is 0. *)
Definition forward_right_at (x : R) : Prop := forall x32, stands_for 24 128 x32 x ->
  stands_for prec emax (narrow prec emax (evaluate_forward h x32)) (nearest prec emax (f x)) /\
    evaluate_mask h x32 = Rle_bool x_star x.

Definition output_is (y : spec_float) (mask : bool) (x32 : spec_float) : bool :=
  let z := narrow prec emax (evaluate_forward h x32) in
  is_finite_SF (evaluate_forward h x32) && is_finite_SF z && SFeqb z y && Bool.eqb (evaluate_mask h x32) mask.

(* x is m 2^e, and f x is within `output`. *)
Definition check_forward_side (output : bounds) (mask : bool) (m e : Z) : bool :=
  let y := rounded prec emax (low output) (at_exponent output) false in
  let y' := rounded prec emax (high output) (at_exponent output) false in
  is_finite_SF y && is_finite_SF y' && SFeqb y y' &&
  (if m =? 0 then output_is y mask (S754_zero false) && output_is y mask (S754_zero true)
    else output_is y mask (number m e)).

Definition check_forward (c : enclosing) (n : Z) : bool :=
  let m := significand prec n in
  let e := exponent prec emax n in
  match bounds_at c m e, mask_left (Float radix2 m e) with
  | Some (plus, minus, _), Some mask => check_forward_side plus true m e &&
    check_forward_side minus mask (- m) e
  | _, _ => false
  end.

(* This and Exhaustion.v's check of a backward kernel, with the bounds computed once. *)
Definition check_both (k : header) (T : dyadic) (c : enclosing) (n : Z) : bool :=
  let m := significand prec n in
  let e := exponent prec emax n in
  match bounds_at c m e, mask_left (Float radix2 m e) with
  | Some (plus, minus, slope), Some mask =>
    check_forward_side plus true m e && check_forward_side minus mask (- m) e &&
    (check_side prec emax k T plus (slope_right slope) true &&
      check_side prec emax k T minus (slope_left slope) mask)
  | _, _ => false
  end.

Definition check_both_range (k : header) (T : dyadic) (c : enclosing) (first : Z) (count : nat) : bool :=
  forallb (check_both k T c) (map (fun i => first + Z.of_nat i) (seq 0 count)).

Definition both_checked (k : header) (T : dyadic) (n : Z) : Prop :=
  exists c, sound_enclosing c /\ check_both k T c n = true.

(* ---- Its correctness ------------------------------------------------------------------------- *)

Lemma stands_for_nearest p x m e s : Prec_gt_0 p -> Prec_lt_emax p x ->
  is_finite_SF (rounded p x m e s) = true ->
  stands_for p x (rounded p x m e s) (nearest p x (F2R (Float radix2 m e))).
Proof.
  intros P L H. apply rounded_nearest; trivial. apply Rnot_le_lt. intros O.
  pose proof (binary_normalize_correct p x P L mode_NE m e s) as C. cbv zeta in C. unfold nearest in O.
  rewrite Rlt_bool_false in C by exact O. rewrite (rounded_Flocq p x P L), C in H. discriminate.
Qed.

Lemma narrow_right a y v : is_finite_SF (narrow prec emax a) = true -> SFeqb (narrow prec emax a) y = true ->
  stands_for prec emax y v -> stands_for prec emax (narrow prec emax a) v.
Proof.
  intros F E Y. assert (exists w, stands_for prec emax (narrow prec emax a) w) as (w & W).
  { destruct a as [s| | |s m e]; try discriminate F; [exists 0%R; now repeat split|]. eexists.
    now apply stands_for_nearest. }
  now rewrite <- (equal_values prec emax _ _ _ _ W Y E).
Qed.

Lemma check_forward_side_right output mask m e x (X : x = F2R (Float radix2 m e)) : in_format prec emax x ->
  check_forward_side output mask m e = true -> bounded output (f x) -> mask = Rle_bool x_star x ->
    forward_right_at x.
Proof.
  unfold check_forward_side. set (y := rounded prec emax (low output) _ _).
  set (y' := rounded prec emax (high output) _ _).
  intros I H O M x32 X32. repeat apply andb_prop in H as [H ?].
  pose proof (rounded_between prec emax prec_positive range output (f x) H H2 H1 O) as Y. fold y in Y.
  assert (R : output_is y mask x32 = true).
  { destruct (Z.eqb_spec m 0) as [-> |N].
    - rewrite F2R_0 in X. subst x. destruct (stands_for_unique 24 128 x32 (S754_zero false) 0 X32) as [->
        |[Z _]].
      now repeat split. now apply andb_prop in H0.
      destruct x32 as [[]| | |]; try discriminate; now apply andb_prop in H0.
    - assert (W : stands_for 24 128 (number m e) x).
      { apply rounded_exact; try exact prec_32; try exact range_32. easy.
        now apply in_wider with prec emax; trivial; try lia; try exact prec_32; try exact range_32. }
      destruct (stands_for_unique 24 128 x32 _ _ X32 W) as [-> |[_ Z]]; trivial.
      destruct (number m e) eqn:Q; try discriminate. destruct W as (_ & _ & W). simpl in W. rewrite <- W in X.
      symmetry in X. now apply eq_0_F2R in X. }
  unfold output_is in R. repeat apply andb_prop in R as [R ?]. split.
  - now apply narrow_right with y.
  - rewrite <- M. now apply eqb_prop.
Qed.

Theorem check_forward_correct c n x : sound_enclosing c -> 0 <= n -> check_forward c n = true ->
  in_format prec emax x ->
  Rabs x = magnitude prec emax n -> forward_right_at x.
Proof.
  intros S Hn H X E. unfold check_forward in H. set (m := significand prec n) in *.
  set (e := exponent prec emax n) in *.
  destruct (bounds_at c m e) as [[[plus minus] slope]|] eqn:B; [|discriminate].
  destruct (mask_left (Float radix2 m e)) as [mask|] eqn:M; [|discriminate].
  assert (Hm : 0 <= m) by now apply significand_positive.
  apply bounds_at_correct in B as (R & L & _); trivial. apply mask_left_correct in M.
  apply andb_prop in H as [HR HL].
  unfold magnitude in E. fold m e in E.
  destruct (Rle_dec 0 x) as [P|P].
  - rewrite Rabs_pos_eq in E by trivial. subst x. apply check_forward_side_right with plus true m e; trivial.
    rewrite Rle_bool_true; trivial. pose proof x_star_negative. lra.
  - rewrite Rabs_left in E by lra. assert (x = (- F2R (Float radix2 m e))%R) by lra. subst x.
    apply check_forward_side_right with minus mask (- m) e; trivial. now rewrite F2R_Zopp.
Qed.

Lemma both_checked_range k T c first last :
  sound_enclosing c -> check_both_range k T c first (Z.to_nat (last - first)) = true ->
    forall n, first <= n < last -> both_checked k T n.
Proof.
  intros S H n N. exists c. split; trivial. unfold check_both_range in H. rewrite forallb_forall in H.
  apply H, in_map_iff. exists (Z.to_nat (n - first)). split. lia. apply in_seq. lia.
Qed.

Lemma both_checked_each k T n : both_checked k T n -> checked prec emax k T n /\
  exists c, sound_enclosing c /\ check_forward c n = true.
Proof.
  intros (c & S & H). enough (check prec emax c k T n = true /\ check_forward c n = true) as [A B]
    by (split; now exists c).
  unfold check_both, check, check_forward in *. destruct (bounds_at c _ _) as [[[plus minus] slope]|];
    [|discriminate].
  destruct (mask_left _); [|discriminate]. apply andb_prop in H as [A B]. now split.
Qed.

(* ---- Both kernels ---------------------------------------------------------------------------- *)

Lemma widen_right y v : stands_for prec emax y v -> stands_for 24 128 (widen y) v.
Proof.
  intros Y. pose proof (stands_for_in_format prec emax y v Y) as I. destruct Y as (_ & F & V).
  destruct y as [s| | |s m e]; try discriminate. now repeat split.
  apply rounded_exact; try exact prec_32; try exact range_32. exact V.
  apply in_wider with prec emax; trivial; try lia; try exact prec_32; try exact range_32.
Qed.

(* The gradient from what the forward kernel stores. *)
Definition stored_gradient_at (k : header) (T : R) (x : R) : Prop := forall x32, stands_for 24 128 x32 x ->
  let y := narrow prec emax (evaluate_forward h x32) in
  let g := evaluate_backward k (widen y) (evaluate_mask h x32) in
  stands_for prec emax y (nearest prec emax (f x)) /\ is_finite_SF g = true /\
    (Rabs (SF2R radix2 g - f' x) <= T)%R.

Theorem stored_gradient k T x : forward_right_at x -> total_error_at prec emax k T x ->
  stored_gradient_at k T x.
Proof.
  intros F B x32 X y g. destruct (F x32 X) as [Y M]. split; trivial. unfold g. rewrite M.
  apply (proj2 B), widen_right, Y.
Qed.

Theorem both_checked_correct k T n x : 0 <= n -> both_checked k T n -> in_format prec emax x ->
  Rabs x = magnitude prec emax n ->
  total_error_at prec emax k (F2R T) x /\ forward_right_at x /\ stored_gradient_at k (F2R T) x.
Proof.
  intros N H X E. apply both_checked_each in H as [B (c & S & F)].
  assert (B' : total_error_at prec emax k (F2R T) x) by now apply total_error_checked with n.
  assert (F' : forward_right_at x) by now apply check_forward_correct with c n.
  split; [|split]; trivial. now apply stored_gradient.
Qed.

(* The whole format. *)
Theorem exhausted k T : (forall n, 0 <= n < magnitudes prec emax -> both_checked k T n) ->
  forall x, in_format prec emax x ->
  total_error_at prec emax k (F2R T) x /\ forward_right_at x /\ stored_gradient_at k (F2R T) x.
Proof.
  intros H x X. destruct (numbered prec emax prec_positive range x X) as (n & N & E).
  apply both_checked_correct with n; trivial. apply N. now apply H.
Qed.

End Forward.
