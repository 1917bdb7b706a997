(* The error of the fp32 kernel at every fp32 number y. There are too many of them to run the kernel at each.
   But the kernel uses one row for all y between two, if it uses that row at these two, because each operation
   on the way to the row is monotone. Over such a span, bound A of the row's polynomial and bound B of its
   rounding (Evaluation.v) add up. The coordinate's constants stand for y_star; what that changes is bound K,
   and falls as the coordinate grows. *)

From Coq Require Import Reals ZArith List Bool SpecFloat Lia Lra.
From Flocq Require Import Core IEEE754.BinarySingleNaN.
From Outgrad Require Import Calculus Activation BranchPoint Evaluation Format Kernel Index Continuum Product.
Import ListNotations.
Open Scope R_scope.

(* ---- Rounding to fp32 ------------------------------------------------------------------------ *)

Definition value (a : spec_float) : R := SF2R radix2 a.

Lemma fp32_same v : in_format 24 128 v -> fp32 v = v.
Proof. intros [G _]. apply round_generic; trivial. apply valid_rnd_N. Qed.

Lemma fp32_within v k : (-149 <= k)%Z -> Rabs v <= bpow radix2 k -> Rabs (fp32 v) <= bpow radix2 k.
Proof.
  intros K H. apply (abs_round_le_generic radix2 (SpecFloat.fexp 24 128)); trivial.
  - apply valid_rnd_N.
  - apply generic_format_bpow. unfold SpecFloat.fexp, SpecFloat.emin. lia.
Qed.

Lemma below_overflow v k : (-149 <= k < 128)%Z -> Rabs v <= bpow radix2 k ->
  Rabs (nearest 24 128 v) < bpow radix2 128.
Proof. intros K H. apply Rle_lt_trans with (1 := fp32_within v k ltac:(lia) H). apply bpow_lt. lia. Qed.

(* |a| <= 2^size a. *)
Definition size (a : spec_float) : Z :=
  match a with S754_finite _ m e => Z.log2 (Zpos m) + 1 + e | _ => -149 end%Z.
Lemma within_size a k : (size a <= k)%Z -> Rabs (value a) <= bpow radix2 k.
Proof.
  intros H. destruct a as [s|s| |s m e]; try (unfold value; simpl; rewrite Rabs_R0; apply bpow_ge_0).
  apply Rle_trans with (bpow radix2 (size (S754_finite s m e))); [|now apply bpow_le]. left.
  apply F2R_lt_bpow. cbn [Fnum Fexp size]. rewrite abs_cond_Zopp. replace (_ + 1 + e - e)%Z with
    (Z.succ (Z.log2 (Zpos m))) by lia. now apply Z.log2_spec.
Qed.

Lemma sum_within a b j k : Rabs a <= bpow radix2 j -> Rabs b <= bpow radix2 k ->
  Rabs (a + b) <= bpow radix2 (Z.max j k + 1) /\ Rabs (a - b) <= bpow radix2 (Z.max j k + 1).
Proof.
  intros A B. rewrite bpow_plus. simpl (bpow radix2 1).
  pose proof (bpow_le radix2 j _ (Z.le_max_l j k)). pose proof (bpow_le radix2 k _ (Z.le_max_r j k)).
  split; [eapply Rle_trans; [apply Rabs_triang|]|unfold Rminus; eapply Rle_trans;
    [apply Rabs_triang|rewrite Rabs_Ropp]]; lra.
Qed.

(* ---- A row's polynomial ---------------------------------------------------------------------- *)

(* By Horner's scheme in fp32 and in real arithmetic, in the form that the theorems of B have. *)
Fixpoint horner_fp32 (c : list R) (u : R) : R :=
  match c with [] => 0 | [a] => a | a :: c => fp32 (horner_fp32 c u * u + a) end.
Fixpoint horner_exact (c : list R) (u : R) : R :=
  match c with [] => 0 | [a] => a | a :: c => horner_exact c u * u + a end.

Lemma horner_fp32_cons a b c u : horner_fp32 (a :: b :: c) u = fp32 (horner_fp32 (b :: c) u * u + a).
Proof. reflexivity. Qed.

(* The zeros behind a row of lower degree change nothing. *)
Lemma horner_padded c u k : (forall a, In a c -> in_format 24 128 a) ->
  c <> [] -> horner_fp32 (c ++ repeat 0 k) u = horner_fp32 c u.
Proof.
  assert (Z0 : forall k, horner_fp32 (repeat 0 k) u = 0).
  { clear k. intros [|k]; trivial. induction k as [|k IH]; trivial. simpl repeat. rewrite horner_fp32_cons.
    change (0 :: repeat 0 k) with (repeat 0 (S k)). rewrite IH, Rmult_0_l, Rplus_0_r.
    apply round_0, valid_rnd_N. }
  induction c as [|a c IH]; [easy|]. intros F _. destruct c as [|b c].
  - destruct k as [|k]; trivial. simpl app. change (0 :: repeat 0 k) with (repeat 0 (S k)).
    simpl repeat. rewrite horner_fp32_cons. change (0 :: repeat 0 k) with (repeat 0 (S k)).
    rewrite Z0, Rmult_0_l, Rplus_0_l. apply fp32_same, F. now left.
  - simpl app. rewrite !horner_fp32_cons. change (b :: c ++ repeat 0 k) with ((b :: c) ++ repeat 0 k).
    rewrite IH; trivial; [|easy]. intros d D. apply F. now right.
Qed.

(* |u| <= 2^k makes the result at most 2^reach, and nothing overflows. *)
Fixpoint reach (c : list spec_float) (k : Z) : Z :=
  match c with [] => -149 | [a] => size a | a :: c => Z.max (Z.max (reach c k + k) (size a) + 1) (-149) end.
Fixpoint fits (c : list spec_float) (k : Z) : bool :=
  match c with [] => false | [a] => is_fp32 a
    | a :: c => fits c k && is_fp32 a && (reach c k + k <? 127)%Z && (size a <? 127)%Z end.

Lemma horner_fits c k u32 u : fits c k = true -> stands_for 24 128 u32 u -> Rabs u <= bpow radix2 k ->
  stands_for 24 128 (horner32 c u32) (horner_fp32 (map value c) u) /\
  Rabs (horner_fp32 (map value c) u) <= bpow radix2 (reach c k).
Proof.
  intros F U K. induction c as [|a c IH]; [discriminate|]. destruct c as [|b c].
  - split; [now apply is_fp32_value|now apply within_size].
  - set (rest := b :: c) in *. assert (E : fits (a :: rest) k = fits rest k && is_fp32 a
      && (reach rest k + k <? 127)%Z && (size a <? 127)%Z) by reflexivity. rewrite E in F.
    apply andb_prop in F as [F S]. apply andb_prop in F as [F R]. apply andb_prop in F as [F V].
    apply Z.ltb_lt in S, R. specialize (IH F) as [P B].
    change (horner32 (a :: rest) u32) with (fma (horner32 rest u32) u32 a).
    change (horner_fp32 (map value (a :: rest)) u) with
      (nearest 24 128 (horner_fp32 (map value rest) u * u + value a)).
    change (reach (a :: rest) k) with (Z.max (Z.max (reach rest k + k) (size a) + 1) (-149)).
    assert (M : Rabs (horner_fp32 (map value rest) u * u + value a)
      <= bpow radix2 (Z.max (reach rest k + k) (size a) + 1)).
    { apply sum_within; [|now apply within_size]. rewrite Rabs_mult, bpow_plus.
      apply Rmult_le_compat; trivial; apply Rabs_pos. }
    set (j := (Z.max (reach rest k + k) (size a) + 1)%Z) in *.
    assert (M' := Rle_trans _ _ _ M (bpow_le radix2 j (Z.max j (-149)) (Z.le_max_l _ _))).
    split; [|apply fp32_within; trivial; lia]. apply fma_nearest; trivial.
    + now apply is_fp32_value.
    + apply below_overflow with (2 := M'). lia.
Qed.

Lemma evaluate_fits h row k v32 v centre c : nth (Z.to_nat row) (table h) [] = centre :: c ->
  stands_for 24 128 v32 v -> Rabs v <= bpow radix2 k ->
  (-149 <= k < 127)%Z -> is_fp32 centre = true -> (size centre <= k)%Z -> fits c (k + 1) = true ->
  stands_for 24 128 (evaluate_row h row v32) (horner_fp32 (map value c) (fp32 (v - value centre))).
Proof.
  intros E V B K F S P. unfold evaluate_row. rewrite E.
  destruct (sum_within v (value centre) k k B (within_size _ _ S)) as [_ D]. rewrite Z.max_id in D.
  apply horner_fits with (k + 1)%Z; trivial.
  - apply sub_nearest; trivial; [now apply is_fp32_value|]. apply below_overflow with (2 := D). lia.
  - apply fp32_within; trivial. lia.
Qed.

(* ---- The coordinate -------------------------------------------------------------------------- *)

Section Header.

Variable h : header.

(* What the constants have to be like; 2^7 is far more than they are. *)
Definition constants_fit : bool :=
  let small a := is_fp32 a && (size a <=? 7)%Z in
  forallb small [y_hi h; y_lo h; t_min h; y_max h; index_scale h; left_y h; right_s h] &&
  is_fp32 (index_bias h) && (size (index_bias h) <=? 60)%Z && negb (SFeqb (y_lo h) (S754_zero false)) &&
  less_equal (S754_zero false) (t_min h) && less_equal (S754_zero false) (index_scale h) && is_unheld h.

Hypothesis constants : constants_fit = true.

Lemma zero_stands s : stands_for 24 128 (S754_zero s) 0.
Proof. now split. Qed.

Lemma constants_are : (forall a, In a [y_hi h; y_lo h; t_min h; y_max h; index_scale h; left_y h; right_s h]
    -> stands_for 24 128 a (value a) /\ Rabs (value a) <= bpow radix2 7) /\
  stands_for 24 128 (index_bias h) (value (index_bias h)) /\
  Rabs (value (index_bias h)) <= bpow radix2 60 /\
  SFeqb (y_lo h) (S754_zero false) = false /\ is_unheld h = true /\
  0 <= value (t_min h) /\ 0 <= value (index_scale h).
Proof.
  pose proof constants as C. unfold constants_fit in C. cbv zeta in C.
  apply andb_prop in C as [C U].
  apply andb_prop in C as [C I]. apply andb_prop in C as [C M]. apply andb_prop in C as [C L].
  apply andb_prop in C as [C B]. apply andb_prop in C as [C N]. rewrite forallb_forall in C.
  assert (All : forall a, In a [y_hi h; y_lo h; t_min h; y_max h; index_scale h; left_y h; right_s h] ->
    stands_for 24 128 a (value a) /\ Rabs (value a) <= bpow radix2 7).
  { intros a A. specialize (C a A). apply andb_prop in C as [F S]. split. now apply is_fp32_value.
    apply within_size. now apply Z.leb_le. }
  split; [exact All|]. split; [now apply is_fp32_value|]. split; [apply within_size; now apply Z.leb_le|].
  split; [now apply negb_true_iff|]. split; [exact U|].
  split; [apply (less_equal_values _ _ _ _ (zero_stands false)) with (2 := M)|
    apply (less_equal_values _ _ _ _ (zero_stands false)) with (2 := I)]; apply All; simpl; tauto.
Qed.

(* The kernel's y - y_star, its coordinate and the number whose low bits are the row's, as real numbers. *)
Definition square_fp32 (v : R) : R := fp32 (fp32 (v - value (y_hi h)) - value (y_lo h)).
Definition coordinate_fp32 (m : bool) (v : R) : R :=
  let r := fp32 (sqrt (square_fp32 v)) in if m then r else - r.
Definition position_fp32 (m : bool) (v : R) : R :=
  fp32 (coordinate_fp32 m v * value (index_scale h) + value (index_bias h)).

Definition square_of (y : spec_float) : spec_float := sub (sub y (y_hi h)) (y_lo h).
Definition position_of (m : bool) (y : spec_float) : spec_float :=
  fma (evaluate_coordinate h y m) (index_scale h) (index_bias h).

Lemma square_rises v w : v <= w -> square_fp32 v <= square_fp32 w.
Proof. intros L. apply nearest_rises, Rplus_le_compat_r, nearest_rises. lra. Qed.

Lemma coordinate_rises v w : v <= w -> coordinate_fp32 true v <= coordinate_fp32 true w.
Proof. intros L. apply nearest_rises, sqrt_le_1_alt. now apply square_rises. Qed.

Lemma coordinate_side m v : coordinate_fp32 m v = if m then coordinate_fp32 true v
  else - coordinate_fp32 true v.
Proof. now destruct m. Qed.

Lemma square_stands y v : stands_for 24 128 y v -> Rabs v <= bpow radix2 7 ->
  stands_for 24 128 (square_of y) (square_fp32 v) /\ Rabs (square_fp32 v) <= bpow radix2 9.
Proof.
  intros Y B. destruct constants_are as (C & _).
  destruct (C (y_hi h)) as [H HB]; [simpl; tauto|]. destruct (C (y_lo h)) as [L LB]; [simpl; tauto|].
  destruct (sum_within v (value (y_hi h)) 7 7 B HB) as [_ D].
  assert (D' := fp32_within _ 8 ltac:(lia) D).
  destruct (sum_within _ (value (y_lo h)) 8 7 D' LB) as [_ E]. split; [|apply fp32_within; trivial; lia].
  apply sub_nearest; trivial; [|now apply below_overflow with 9%Z]. apply sub_nearest; trivial.
  now apply below_overflow with 8%Z.
Qed.

(* The coordinate, where y - y_star is at least t_min. *)
Lemma coordinate_stands y v m : stands_for 24 128 y v -> Rabs v <= bpow radix2 7 ->
  value (t_min h) <= square_fp32 v ->
  stands_for 24 128 (evaluate_coordinate h y m) (coordinate_fp32 m v) /\
  Rabs (coordinate_fp32 m v) <= bpow radix2 9.
Proof.
  intros Y B T. destruct constants_are as (C & _ & _ & N & U & T0 & _).
  destruct (square_stands y v Y B) as [S SB].
  destruct (C (t_min h)) as [TS _]; [simpl; tauto|].
  assert (R : Rabs (sqrt (square_fp32 v)) <= bpow radix2 9).
  { rewrite Rabs_pos_eq by apply sqrt_pos. rewrite Rabs_pos_eq in SB by lra.
    rewrite <- (sqrt_square (bpow radix2 9)) by apply bpow_ge_0. apply sqrt_le_1_alt.
    apply Rle_trans with (1 := SB). simpl. lra. }
  unfold evaluate_coordinate. cbv zeta. rewrite unheld, N by exact U. fold (square_of y). unfold at_least.
  rewrite (less_stands _ _ _ _ S TS), Rlt_bool_false by exact T.
  assert (Q : stands_for 24 128 (sqrt32 (square_of y)) (fp32 (sqrt (square_fp32 v))))
    by (apply sqrt_nearest; trivial; lra).
  assert (QB := fp32_within _ 9 ltac:(lia) R). destruct m; [now split|]. split.
  - now apply opp_value.
  - unfold coordinate_fp32. cbv zeta. now rewrite Rabs_Ropp.
Qed.

Lemma position_stands y v m : stands_for 24 128 y v -> Rabs v <= bpow radix2 7 ->
  value (t_min h) <= square_fp32 v -> stands_for 24 128 (position_of m y) (position_fp32 m v).
Proof.
  intros Y B T. destruct constants_are as (C & I & IB & _).
  destruct (C (index_scale h)) as [S SB]; [simpl; tauto|].
  destruct (coordinate_stands y v m Y B T) as [E EB]. apply fma_nearest; trivial.
  apply below_overflow with 61%Z; [lia|].
  apply (sum_within _ _ 16 60); trivial. rewrite Rabs_mult. change 16%Z with (9 + 7)%Z. rewrite bpow_plus.
  apply Rmult_le_compat; trivial; apply Rabs_pos.
Qed.

Lemma position_between m a v b : a <= v <= b ->
  Rmin (position_fp32 m a) (position_fp32 m b) <= position_fp32 m v
    <= Rmax (position_fp32 m a) (position_fp32 m b).
Proof.
  intros [A B]. destruct constants_are as (_ & _ & _ & _ & _ & _ & S). set (k := value (index_scale h)) in *.
  pose proof (coordinate_rises a v A) as P. pose proof (coordinate_rises v b B) as Q.
  pose proof (Rmult_le_compat_r k _ _ S P). pose proof (Rmult_le_compat_r k _ _ S Q).
  assert (M : forall v w, coordinate_fp32 m v * k <= coordinate_fp32 m w * k ->
    position_fp32 m v <= position_fp32 m w) by (intros; apply nearest_rises; fold k; lra).
  destruct m.
  - split; [eapply Rle_trans; [apply Rmin_l|]|eapply Rle_trans; [|apply Rmax_r]]; now apply M.
  - split; [eapply Rle_trans; [apply Rmin_r|]|eapply Rle_trans; [|apply Rmax_l]]; apply M;
      rewrite !(coordinate_side false); lra.
Qed.

(* ---- Spans ----------------------------------------------------------------------------------- *)

Definition y_fits (y : spec_float) : bool := is_fp32 y && (size y <=? 7)%Z.

(* From first to last the kernel takes `row` of the core, and its polynomial in y or in the coordinate. *)
Definition core_span (m in_y : bool) (row : Z) (first last : spec_float) : bool :=
  let position := position_of m first in
  y_fits first && y_fits last && less_equal last (y_max h) && (m || less_equal last (left_y h)) &&
  less_equal (t_min h) (square_of first) && negb (is_zero position) &&
  SFeqb position (position_of m last) && (row_index position (rows h) =? row)%Z &&
  if in_y then m && less_equal (right_s h) (evaluate_coordinate h first m)
    else less (evaluate_coordinate h (if m then last else first) m) (right_s h).

Lemma y_fits_stands y : y_fits y = true -> stands_for 24 128 y (value y) /\ Rabs (value y) <= bpow radix2 7.
Proof.
  intros H. apply andb_prop in H as [F S]. split. now apply is_fp32_value. now apply within_size, Z.leb_le.
Qed.

Lemma between_within a v b k : a <= v <= b -> Rabs a <= bpow radix2 k -> Rabs b <= bpow radix2 k ->
  Rabs v <= bpow radix2 k.
Proof. intros V A B. apply Rabs_le. apply Rabs_le_inv in A, B. lra. Qed.

Lemma at_most_y_max y v : stands_for 24 128 y v -> v <= value (y_max h) -> at_most y (y_max h) = y.
Proof.
  intros Y L. destruct constants_are as (C & _). destruct (C (y_max h)) as [M _]; [simpl; tauto|].
  unfold at_most.
  now rewrite (less_stands _ _ _ _ M Y), Rlt_bool_false.
Qed.

Theorem core_span_place m in_y row first last y v : core_span m in_y row first last = true ->
  stands_for 24 128 y v -> value first <= v <= value last ->
  row_of h y m = row /\ stands_for 24 128 (argument h y m) (if in_y then v else coordinate_fp32 m v) /\
  value (t_min h) <= square_fp32 v.
Proof.
  intros S Y V. unfold core_span in S. cbv zeta in S. apply andb_prop in S as [S I].
  apply andb_prop in S as [S R]. apply andb_prop in S as [S E]. apply andb_prop in S as [S N].
  apply andb_prop in S as [S T]. apply andb_prop in S as [S Le]. apply andb_prop in S as [S Mx].
  apply andb_prop in S as [F L]. apply y_fits_stands in F as [F FB], L as [L LB].
  assert (VB := between_within _ _ _ _ V FB LB). destruct constants_are as (C & _).
  apply (less_equal_values _ _ (value (t_min h)) _ ltac:(apply C; simpl; tauto)
    (proj1 (square_stands _ _ F FB))) in T.
  assert (TV := Rle_trans _ _ _ T (square_rises _ _ (proj1 V))).
  assert (TL := Rle_trans _ _ _ TV (square_rises _ _ (proj2 V))).
  assert (M : at_most y (y_max h) = y).
  { apply at_most_y_max with v; trivial.
    apply (less_equal_values _ _ _ (value (y_max h)) L) in Mx; [lra|apply C; simpl; tauto]. }
  assert (Core : in_left_segment h y m = false).
  { unfold in_left_segment. rewrite M. destruct m; trivial. simpl orb in Le.
    destruct (C (left_y h)) as [LS _]; [simpl; tauto|].
    apply (less_equal_values _ _ _ _ L LS) in Le. rewrite (less_equal_stands _ _ _ _ Y LS).
    now rewrite Rle_bool_true by lra. }
  assert (Var : variable h y m = evaluate_coordinate h y m).
  { unfold variable. now rewrite Core, M. }
  destruct (coordinate_stands y v m Y VB TV) as [S _]. split; [|split; trivial].
  - unfold row_of, row_by. rewrite Core, Var. fold (position_of m y).
    pose proof (position_stands _ _ m F FB T) as PF. pose proof (position_stands _ _ m L LB TL) as PL.
    pose proof (position_stands _ _ m Y VB TV) as PY. pose proof (equal_values _ _ _ _ _ _ PF PL E) as Q.
    pose proof (position_between m _ _ _ V) as B. rewrite <- Q, Rmin_left, Rmax_left in B by apply Rle_refl.
    replace (position_fp32 m v) with (position_fp32 m (value first)) in PY by lra.
    apply Z.eqb_eq in R. destruct (stands_for_unique _ _ _ _ _ PY PF) as [->|[_ Z0]]; trivial.
    rewrite Z0 in N. discriminate.
  - destruct (C (right_s h)) as [RS _]; [simpl; tauto|].
    unfold argument. rewrite Core, Var, M, orb_false_l, (less_stands _ _ _ _ S RS).
    destruct in_y.
    + apply andb_prop in I as [-> I].
      apply (less_equal_values _ _ _ _ RS (proj1 (coordinate_stands _ _ true F FB T))) in I.
      rewrite Rlt_bool_false; trivial. eapply Rle_trans. exact I. apply coordinate_rises, V.
    + rewrite Rlt_bool_true; trivial. destruct m.
      * apply (less_values _ _ _ _ (proj1 (coordinate_stands _ _ true L LB TL)) RS) in I.
        eapply Rle_lt_trans; [|exact I]. apply coordinate_rises, V.
      * apply (less_values _ _ _ _ (proj1 (coordinate_stands _ _ false F FB T)) RS) in I.
        eapply Rle_lt_trans; [|exact I]. rewrite 2!(coordinate_side false). apply Ropp_le_contravar.
        apply coordinate_rises, V.
Qed.

(* In the left segment. *)
Open Scope Z_scope.

Definition octave (z : spec_float) : Z :=
  let e := bits z mod 2 ^ 31 / 2 ^ (23 - left_bits h) in
    Z.max ((e + Z.max e (left_knee h)) / 2 - left_base h) 0.
Definition left_span (row : Z) (first last : spec_float) : bool :=
  y_fits first && y_fits last && less_equal last (y_max h) && less (left_y h) first &&
  less_equal last (S754_zero true) && (octave first =? octave last) &&
  ((left_row h + octave first) mod rows h =? row).

Lemma octave_rises a b v w : stands_for 24 128 a v -> stands_for 24 128 b w -> (Rabs v <= Rabs w)%R ->
  octave a <= octave b.
Proof.
  intros A B L. unfold octave. cbv zeta. pose proof (magnitude_number_rises a b v w A B L) as H.
  assert (D : bits a mod 2 ^ 31 / 2 ^ (23 - left_bits h) <= bits b mod 2 ^ 31 / 2 ^ (23 - left_bits h)).
  { destruct (Z.lt_ge_cases (23 - left_bits h) 0) as [N|P].
    - rewrite (Z.pow_neg_r _ _ N), !Zdiv_0_r. lia.
    - apply Z.div_le_mono; trivial. now apply Z.pow_pos_nonneg. }
  enough (forall i j, i <= j -> (i + Z.max i (left_knee h)) / 2 <= (j + Z.max j (left_knee h)) / 2) as M
    by (specialize (M _ _ D); lia).
  intros i j I. apply Z.div_le_mono; lia.
Qed.

Theorem left_span_place row first last y v : left_span row first last = true -> stands_for 24 128 y v ->
  (value first <= v <= value last)%R -> row_of h y false = row /\ stands_for 24 128 (argument h y false) v.
Proof.
  intros S Y V. unfold left_span in S. apply andb_prop in S as [S R]. apply andb_prop in S as [S O].
  apply andb_prop in S as [S Z0]. apply andb_prop in S as [S Le]. apply andb_prop in S as [S Mx].
  apply andb_prop in S as [F L]. apply y_fits_stands in F as [F _], L as [L _].
  destruct constants_are as (C & _). destruct (C (left_y h)) as [LS _]; [simpl; tauto|].
  assert (M : at_most y (y_max h) = y).
  { apply at_most_y_max with v; trivial.
    apply (less_equal_values _ _ _ (value (y_max h)) L) in Mx; [lra|apply C; simpl; tauto]. }
  apply (less_equal_values _ _ _ _ L (zero_stands true)) in Z0. apply (less_values _ _ _ _ LS F) in Le.
  assert (In : in_left_segment h y false = true).
  { unfold in_left_segment. rewrite M, (less_equal_stands _ _ _ _ Y LS). now rewrite Rle_bool_false by lra. }
  assert (Var : variable h y false = y).
  { unfold variable. rewrite In, M. unfold non_positive. rewrite (less_stands _ _ _ _ (zero_stands false) Y).
    now rewrite Rlt_bool_false by lra. }
  split; [|now unfold argument; rewrite In, Var].
  unfold row_of, row_by. rewrite In, Var. change ((left_row h + octave y) mod rows h = row).
  apply Z.eqb_eq in O, R.
  assert (octave y <= octave first)
    by (apply (octave_rises _ _ _ _ Y F); rewrite !Rabs_left1 by lra; lra).
  assert (octave last <= octave y)
    by (apply (octave_rises _ _ _ _ L Y); rewrite !Rabs_left1 by lra; lra).
  now replace (octave y) with (octave first) by lia.
Qed.

Open Scope R_scope.

(* Beyond y_max the kernel computes with y_max. *)
Theorem held_at_y_max y v m : stands_for 24 128 y v -> value (y_max h) < v ->
  evaluate_backward h y m = evaluate_backward h (y_max h) m.
Proof.
  intros Y L. destruct constants_are as (C & _). destruct (C (y_max h)) as [M _]; [simpl; tauto|].
  assert (E : at_most y (y_max h) = at_most (y_max h) (y_max h)).
  { unfold at_most. rewrite (less_stands _ _ _ _ M Y), Rlt_bool_true by trivial. now destruct (less _ _). }
  unfold evaluate_backward. now rewrite E.
Qed.

End Header.

(* ---- The x of a span ------------------------------------------------------------------------- *)

Definition on_side (m : bool) (x : R) : Prop := if m then x_star <= x else x < x_star.

Lemma right_from c l x : f c <= l -> l <= f x -> x_star <= x -> c <= x.
Proof. intros C X S. destruct (Rle_dec c x); trivial. pose proof (f_right x c). lra. Qed.
Lemma right_to c u x : x_star <= c -> u <= f c -> f x <= u -> x <= c.
Proof. intros S C X. destruct (Rle_dec x c); trivial. pose proof (f_right c x). lra. Qed.

(* ---- What the constants for y_star change ---------------------------------------------------- *)

Lemma roots_apart a b d t w : 0 < t -> 0 < w -> t * t <= a -> w * w <= b -> Rabs (a - b) <= d ->
  Rabs (sqrt a - sqrt b) <= d / (t + w) /\ Rabs (sqrt a - sqrt b) <= d / sqrt b.
Proof.
  intros T W A B D. assert (P : 0 <= a) by nra. assert (Q : 0 <= b) by nra.
  assert (SA : t <= sqrt a) by (rewrite <- (sqrt_square t) by lra; now apply sqrt_le_1_alt).
  assert (SB : w <= sqrt b) by (rewrite <- (sqrt_square w) by lra; now apply sqrt_le_1_alt).
  assert (E : Rabs (a - b) = Rabs (sqrt a - sqrt b) * (sqrt a + sqrt b)).
  { rewrite <- (Rabs_pos_eq (sqrt a + sqrt b)), <- Rabs_mult by lra. f_equal.
    pose proof (sqrt_sqrt a P). pose proof (sqrt_sqrt b Q). nra. }
  assert (U : forall u, 0 < u -> u <= sqrt a + sqrt b -> Rabs (sqrt a - sqrt b) <= d / u).
  { intros u U L. apply Rmult_le_reg_r with u; trivial. replace (d / u * u) with d by (field; lra).
    eapply Rle_trans; [|exact D]. rewrite E. apply Rmult_le_compat_l; trivial. apply Rabs_pos. }
  split; apply U; lra.
Qed.

(* At |u| <= U a polynomial is at most so large, and its slope so steep. *)
Fixpoint size_within (c : list R) (U : R) : R :=
  match c with [] => 0 | a :: c => size_within c U * U + Rabs a end.
Fixpoint slope_within (c : list R) (U : R) : R :=
  match c with [] => 0 | _ :: c => slope_within c U * U + size_within c U end.

Lemma horner_exact_cons a c u : horner_exact (a :: c) u = horner_exact c u * u + a.
Proof. destruct c; simpl; ring. Qed.

Lemma size_within_pos c U : 0 <= U -> 0 <= size_within c U.
Proof. intros H. induction c as [|a c IH]; simpl. lra. pose proof (Rabs_pos a). nra. Qed.

Lemma horner_within c U u : Rabs u <= U -> Rabs (horner_exact c u) <= size_within c U.
Proof.
  intros H. induction c as [|a c IH]; [simpl; rewrite Rabs_R0; apply Rle_refl|]. rewrite horner_exact_cons.
  eapply Rle_trans. apply Rabs_triang. simpl. rewrite Rabs_mult. apply Rplus_le_compat_r.
  apply Rmult_le_compat; trivial; apply Rabs_pos.
Qed.

Lemma horner_apart c U u w : Rabs u <= U -> Rabs w <= U ->
  Rabs (horner_exact c u - horner_exact c w) <= slope_within c U * Rabs (u - w).
Proof.
  intros Hu Hw. assert (P : 0 <= U) by (eapply Rle_trans; [apply Rabs_pos|exact Hu]).
  induction c as [|a c IH]; [simpl; unfold Rminus; rewrite Rplus_opp_r, Rabs_R0, Rmult_0_l; apply Rle_refl|].
  rewrite !horner_exact_cons. cbn [slope_within].
  replace (horner_exact c u * u + a - (horner_exact c w * w + a)) with
    ((horner_exact c u - horner_exact c w) * u + horner_exact c w * (u - w)) by ring.
  eapply Rle_trans. apply Rabs_triang. rewrite !Rabs_mult, Rmult_plus_distr_r. apply Rplus_le_compat.
  - replace (slope_within c U * U * Rabs (u - w)) with (slope_within c U * Rabs (u - w) * U) by ring.
    apply Rmult_le_compat; trivial; apply Rabs_pos.
  - apply Rmult_le_compat_r. apply Rabs_pos. now apply horner_within.
Qed.

(* ---- The error over a span ------------------------------------------------------------------- *)

(* 2^k bounds what the row's polynomial is of. *)
Definition row_fits_within (h : header) (row k : Z) : bool :=
  match nth (Z.to_nat row) (table h) [] with [] => false
    | centre :: c => is_fp32 centre && (size centre <=? k)%Z && fits c (k + 1) end &&
  (-149 <=? k)%Z && (k <? 127)%Z.

(* The words of a row, as the theorems of A and B have them: without the zeros of a lower degree. *)
Definition has_words (h : header) (row : Z) (centre : R) (c : list R) : Prop :=
  c <> [] /\ exists zeros, map value (nth (Z.to_nat row) (table h) []) = centre :: c ++ repeat 0 zeros.

Definition within (h : header) (m : bool) (y : spec_float) (x bound : R) : Prop :=
  let g := evaluate_backward h y m in is_finite_SF g = true /\ Rabs (value g - f' x) <= bound.

Lemma fits_in_format c k a : fits c k = true -> In a (map value c) -> in_format 24 128 a.
Proof.
  intros F I. apply in_map_iff in I as (w & <- & I). enough (is_fp32 w = true) as V
    by (apply is_fp32_value in V; now apply stands_for_in_format in V).
  induction c as [|b c IH]; [easy|]. destruct c as [|d c]; [destruct I as [->|[]]; exact F|].
  assert (E : fits (b :: d :: c) k = fits (d :: c) k && is_fp32 b && (reach (d :: c) k + k <? 127)%Z
    && (size b <? 127)%Z) by reflexivity. rewrite E in F. apply andb_prop in F as [F _].
  apply andb_prop in F as [F _]. apply andb_prop in F as [F V]. destruct I as [->|I]; trivial. now apply IH.
Qed.

Lemma row_within h m row k centre c y v e x A B : row_of h y m = row ->
  stands_for 24 128 (argument h y m) v ->
  Rabs v <= bpow radix2 k -> row_fits_within h row k = true -> has_words h row centre c ->
  Rabs (horner_fp32 c (fp32 (v - centre)) - e) <= B -> Rabs (e - f' x) <= A -> within h m y x (A + B).
Proof.
  intros <- V K F (N & zeros & W) HB HA. unfold row_fits_within in F. apply andb_prop in F as [F K'].
  apply andb_prop in F as [F K'']. apply Z.ltb_lt in K'. apply Z.leb_le in K''.
  destruct (nth (Z.to_nat (row_of h y m)) (table h) []) as [|centre32 c32] eqn:E; [discriminate|].
  apply andb_prop in F as [F P]. apply andb_prop in F as [F S]. apply Z.leb_le in S.
  simpl map in W. injection W as C W.
  pose proof (evaluate_fits h _ k _ _ _ _ E V K (conj K'' K') F S P) as G.
  rewrite C, W, horner_padded in G; trivial.
  - unfold within. cbv zeta. rewrite evaluates_row_of. destruct G as (_ & G & R). split; trivial.
    change (value (evaluate_row h (row_of h y m) (argument h y m))) with
      (SF2R radix2 (evaluate_row h (row_of h y m) (argument h y m))). rewrite R.
    replace (_ - f' x) with ((horner_fp32 c (fp32 (v - centre)) - e) + (e - f' x)) by ring.
    eapply Rle_trans. apply Rabs_triang. lra.
  - intros a I. apply (fits_in_format c32 (k + 1)); trivial. rewrite W. apply in_or_app. now left.
Qed.

Section Error.

Variable h : header.
Hypothesis constants : constants_fit h = true.
Variables (row : Z) (centre : R) (c : list R) (first last : spec_float) (A B : R).
Hypothesis words : has_words h row centre c.

Let spanned (v : R) : Prop := value first <= v <= value last.

(* The polynomial is one in y: right of x_star, and in the left segment. *)
Theorem output_within (m : bool) k : (if m then core_span h true true row first last
    else left_span h row first last) = true -> row_fits_within h row k = true ->
  (size first <=? k)%Z && (size last <=? k)%Z = true ->
  (forall v, in_format 24 128 v -> spanned v ->
    Rabs (horner_fp32 c (fp32 (v - centre)) - horner_exact c (v - centre)) <= B) ->
  forall y v x, stands_for 24 128 y v -> spanned v ->
  Rabs (horner_exact c (v - centre) - f' x) <= A -> within h m y x (A + B).
Proof.
  intros S F K HB y v x Y V HA. apply andb_prop in K as [K K'].
  assert (VK : Rabs v <= bpow radix2 k)
    by (apply (between_within _ _ _ _ V); apply within_size; now apply Z.leb_le).
  assert (P : row_of h y m = row /\ stands_for 24 128 (argument h y m) v).
  { destruct m; [|now apply (left_span_place h constants row first last)].
    now destruct (core_span_place h constants true true row first last y v S Y V) as (P & Q & _). }
  destruct P as [R P].
  apply row_within with row k centre c v (horner_exact c (v - centre)); trivial.
  apply HB; trivial. now apply stands_for_in_format in Y.
Qed.

(* It is one in the coordinate. hi + lo stands for y_star, and both lie between z_low and z_high; t and w are
   below the square roots of what y - hi - lo and y - y_star are at least, U above the distance of coordinates
   from the centre, and J above how steep the polynomial is there. *)
Variables (hi lo z_low z_high t w U J : R).
Let d := z_high - z_low.
Definition coordinate_exact (m : bool) (z v : R) : R := let r := sqrt (v - z) in if m then r else - r.

(* What the constants change. *)
Definition constants_error (x : R) : R := Rmin (J * (d / (t + w))) (J * (d / Rabs (coordinate x))).

Theorem coordinate_within (m : bool) : core_span h m false row first last = true ->
  row_fits_within h row 9 = true ->
  z_low <= y_low /\ y_high <= z_high -> z_low <= hi + lo <= z_high -> 0 < t -> 0 < w ->
  t * t <= value first - hi - lo -> w * w <= value first - y_high ->
  (forall v, in_format 24 128 v -> spanned v ->
    Rabs (horner_fp32 c (fp32 (coordinate_fp32 h m v - centre))
      - horner_exact c ((let r := sqrt (v - hi - lo) in if m then r else - r) - centre)) <= B) ->
  (forall z v, z_low <= z <= z_high -> spanned v -> Rabs (coordinate_exact m z v - centre) <= U) ->
  slope_within c U <= J ->
  forall y v x, stands_for 24 128 y v -> spanned v -> f x = v -> on_side m x ->
  Rabs (horner_exact c (coordinate x - centre) - f' x) <= A -> within h m y x (A + B + constants_error x).
Proof.
  intros S F [ZL ZH] Y0 T W FT FW HB HU HJ y v x Y V X M HA. pose proof y_star_between as Star.
  unfold spanned, d in *.
  destruct (core_span_place h constants m false row first last y v S Y V) as (R & P & Q).
  assert (C : coordinate x = coordinate_exact m y_star v).
  { unfold coordinate, coordinate_exact. rewrite X. cbv zeta. unfold on_side in M.
    destruct m, (Rle_dec x_star x); trivial; exfalso; lra. }
  replace (A + B + constants_error x) with (A + constants_error x + B) by ring.
  apply row_within with row 9%Z centre c (coordinate_fp32 h m v)
    (horner_exact c (coordinate_exact m (hi + lo) v - centre)); trivial.
  - assert (YB : Rabs v <= bpow radix2 7).
    { unfold core_span in S. cbv zeta in S. do 7 apply andb_prop in S as [S _].
      apply andb_prop in S as [S1 S2]. apply y_fits_stands in S1, S2.
      now apply (between_within (value first) _ (value last)). }
    now apply (coordinate_stands h constants y).
  - unfold coordinate_exact. cbv zeta. replace (v - (hi + lo)) with (v - hi - lo) by ring. apply HB; trivial.
    now apply stands_for_in_format in Y.
  - rewrite C in HA. replace (_ - f' x) with ((horner_exact c (coordinate_exact m (hi + lo) v - centre)
      - horner_exact c (coordinate_exact m y_star v - centre))
      + (horner_exact c (coordinate_exact m y_star v - centre) - f' x)) by ring.
    eapply Rle_trans. apply Rabs_triang.
    enough (Rabs (horner_exact c (coordinate_exact m (hi + lo) v - centre)
      - horner_exact c (coordinate_exact m y_star v - centre)) <= constants_error x) by lra.
    set (u := Rabs (sqrt (v - (hi + lo)) - sqrt (v - y_star))).
    assert (E : Rabs (coordinate_exact m (hi + lo) v - centre - (coordinate_exact m y_star v - centre)) = u).
    { unfold coordinate_exact, u. cbv zeta.
      destruct m; [f_equal; ring|rewrite <- (Rabs_Ropp (sqrt _ - sqrt _)); f_equal; ring]. }
    assert (L : Rabs (horner_exact c (coordinate_exact m (hi + lo) v - centre)
      - horner_exact c (coordinate_exact m y_star v - centre)) <= J * u).
    { rewrite <- E. eapply Rle_trans; [|apply Rmult_le_compat_r; [apply Rabs_pos|exact HJ]].
      apply horner_apart; apply HU; trivial; lra. }
    assert (J0 : 0 <= J).
    { specialize (HU y_star v ltac:(lra) V). assert (0 <= U) by (eapply Rle_trans; [apply Rabs_pos|exact HU]).
      eapply Rle_trans; [|exact HJ]. clear - H. induction c as [|a l IH]; simpl. lra.
      pose proof (size_within_pos l U H). nra. }
    destruct (roots_apart (v - (hi + lo)) (v - y_star) (z_high - z_low) t w) as [N1 N2]; try lra.
    { apply Rabs_le. lra. }
    fold u in N1, N2. unfold constants_error, d. rewrite C. replace (Rabs (coordinate_exact m y_star v)) with
      (sqrt (v - y_star)).
    + eapply Rle_trans. exact L. apply Rmin_glb; now apply Rmult_le_compat_l.
    + unfold coordinate_exact. cbv zeta. pose proof (sqrt_pos (v - y_star)).
      destruct m; [|rewrite Rabs_Ropp]; now rewrite Rabs_pos_eq.
Qed.

End Error.

(* ---- For the files of a fit ------------------------------------------------------------------ *)

(* The i-th fp32 number in ascending order, 0 the 0th. *)
Definition at_numeral (i : Z) : spec_float :=
  let d := numeral 24 128 i in
  match Fnum d with Z0 => S754_zero false | Zpos m => S754_finite false m (Fexp d)
    | Zneg m => S754_finite true m (Fexp d) end.

Lemma at_numeral_value i : value (at_numeral i) = F2R (numeral 24 128 i).
Proof. unfold at_numeral, value. destruct (numeral 24 128 i) as [[|m|m] e]; trivial. now rewrite F2R_0. Qed.

Lemma numeral_between first i last : (first <= i <= last)%Z ->
  value (at_numeral first) <= F2R (numeral 24 128 i) <= value (at_numeral last).
Proof. intros I. rewrite !at_numeral_value. split; now apply (numeral_rises 24 128 eq_refl). Qed.

(* The bound of the header: A + B, and at most K or, away from the branch point, k / |s|. *)
Definition bound_at (AB K k x : R) : R := AB + Rmin K (k / Rabs (coordinate x)).

Lemma coordinate_apart x : y_high < f x -> 0 < Rabs (coordinate x).
Proof.
  intros H. pose proof y_star_between. assert (P : 0 < sqrt (f x - y_star)) by (apply sqrt_lt_R0; lra).
  unfold coordinate. destruct Rle_dec; [|rewrite Rabs_Ropp]; rewrite Rabs_pos_eq; lra.
Qed.

Lemma bound_at_least AB K k x a : y_high < f x -> 0 <= K -> 0 <= k -> a <= AB -> a <= bound_at AB K k x.
Proof.
  intros H P Q L. unfold bound_at. enough (0 <= Rmin K (k / Rabs (coordinate x))) by lra.
  apply Rmin_glb; trivial. apply Rmult_le_pos; trivial. left. now apply Rinv_0_lt_compat, coordinate_apart.
Qed.

(* Where a is below AB, the constants may change more than K by the difference. *)
Lemma bound_at_coordinate AB K k z z' t w J x a : y_high < f x -> a <= AB ->
  a + J * ((z' - z) / (t + w)) <= AB + K -> J * (z' - z) <= k ->
  a + constants_error z z' t w J x <= bound_at AB K k x.
Proof.
  intros H L D S. unfold bound_at, constants_error.
  assert (R : J * ((z' - z) / Rabs (coordinate x)) <= k / Rabs (coordinate x)).
  { unfold Rdiv. rewrite <- Rmult_assoc. apply Rmult_le_compat_r; trivial. left.
    now apply Rinv_0_lt_compat, coordinate_apart. }
  pose proof (Rmin_l (J * ((z' - z) / (t + w))) (J * ((z' - z) / Rabs (coordinate x)))).
  pose proof (Rmin_r (J * ((z' - z) / (t + w))) (J * ((z' - z) / Rabs (coordinate x)))).
  unfold Rmin at 2. destruct Rle_dec; lra.
Qed.

Lemma within_at_most h m y x a b : within h m y x a -> a <= b -> within h m y x b.
Proof. intros [F W] L. split; trivial. now apply Rle_trans with a. Qed.

(* A number with its value as a fraction. *)
Ltac prove_value :=
  unfold value; match goal with |- SF2R _ ?a = _ => let a' := eval vm_compute in a in change a with a' end;
  unfold SF2R, F2R; cbn [cond_Zopp Z.opp Fnum Fexp]; simpl bpow; lra.
(* From the theorem of B at a number: H says that it is one of the format. *)
Ltac by_evaluation E H :=
  cbv zeta in E; rewrite (fp32_same _ H) in E; cbn [horner_fp32 horner_exact]; cbv zeta;
  rewrite ?Rminus_0_r, ?(fp32_same _ H), ?Rplus_0_r; apply E; lra.
Ltac prove_words zeros :=
  split; [discriminate|exists zeros];
  match goal with |- map value ?l = _ => let l' := eval vm_compute in l in change l with l' end;
  cbn [map app repeat]; repeat (apply f_equal2; [try prove_value|]); reflexivity.
