(* The row that the kernel's index arithmetic picks for a stored y, and what has to be looked at so that this
   row's range of x holds what the row is computed for: the x whose coordinate is the kernel's own, as
   computed or before rounding, or, in the left segment, the x left of x_star with f x = y. All numbers of the
   format are tried, with either bit. What is asked of a coordinate, or of a y, are the bounds that it has at
   the ends of the row's range, in units of 2^-160. *)

From Coq Require Import Reals ZArith List Bool SpecFloat Lia Lra.
From Flocq Require Import Core IEEE754.BinarySingleNaN.
From Outgrad Require Import Calculus Activation BranchPoint Format Kernel.
Import ListNotations.
Open Scope Z_scope.

(* ---- The kernel's row ------------------------------------------------------------------------ *)

Definition in_left_segment (h : header) (y : spec_float) (m : bool) : bool :=
  negb m && negb (less_equal (at_most y (y_max h)) (left_y h)).
Definition variable (h : header) (y : spec_float) (m : bool) : spec_float :=
  if in_left_segment h y m then non_positive (at_most y (y_max h))
    else evaluate_coordinate h (at_most y (y_max h)) m.
Definition row_by (h : header) (in_left : bool) (v : spec_float) : Z :=
  if in_left then octave_row v (left_bits h) (left_knee h) (left_base h) (left_row h) (rows h)
  else row_index (fma v (index_scale h) (index_bias h)) (rows h).
Definition row_of (h : header) (y : spec_float) (m : bool) : Z :=
  row_by h (in_left_segment h y m) (variable h y m).
(* What the row's polynomial is of: in the right segment y itself. *)
Definition argument (h : header) (y : spec_float) (m : bool) : spec_float :=
  if in_left_segment h y m || less (variable h y m) (right_s h) then variable h y m else at_most y (y_max h).

Theorem evaluates_row_of h y m : evaluate_backward h y m = evaluate_row h (row_of h y m) (argument h y m).
Proof.
  unfold evaluate_backward, evaluate_held, argument, row_of, row_by, variable, in_left_segment.
  now destruct (negb m && _).
Qed.

(* ---- What is asked --------------------------------------------------------------------------- *)

(* The least and the greatest that a row takes; no bound where it takes all. *)
Definition demand := (option Z * option Z)%type.
Definition nothing : demand := (Some 1, Some 0).
(* n 2^-k. *)
Definition places (k n : Z) : Z := n * 2 ^ (160 - k).
Definition met (d : demand) (n : Z) : bool :=
  match fst d with None => true | Some l => l <=? n end && match snd d with None => true
    | Some u => n <=? u end.

Definition units (y : spec_float) : option Z :=
  match y with
  | S754_zero _ => Some 0
  | S754_finite s m e => if -160 <=? e then Some (Z.shiftl (cond_Zopp s (Zpos m)) (e + 160)) else None
  | _ => None
  end.

(* Whether the coordinate +-sqrt (t units), or 0 where t is negative, meets the demand. *)
Definition root_met (d : demand) (m : bool) (t : Z) : bool :=
  let scaled := Z.shiftl t 160 in
  let above r := r * r <=? scaled in
  let below r := scaled <=? r * r in
  match fst d with None => true | Some l => if m then (l <=? 0) || above l else (l <=? 0) && below l end
  && match snd d with None => true | Some u => if m then (0 <=? u) && below u else (0 <=? u) || above u end.

(* The kernel's t = y - y*, before rounding. *)
Definition exact_square (h : header) (y : spec_float) : option Z :=
  match units (at_most y (y_max h)), units (y_hi h), units (y_lo h), units (t_min h) with
  | Some y, Some hi, Some lo, Some least => Some (Z.max (y - hi - lo) least)
  | _, _, _, _ => None
  end.

(* Left of x_star no f x is 0 or more. *)
Definition left_met (d : demand) (n : Z) : bool := (0 <=? n) || met d n.

Definition row_fits (h : header) (core left : list demand) (y : spec_float) (m : bool) : bool :=
  let in_left := in_left_segment h y m in
  let v := variable h y m in
  let d := nth (Z.to_nat (row_by h in_left v)) (if in_left then left else core) nothing in
  match units v with
  | None => false
  | Some n => if in_left then left_met d n else met d n && match exact_square h y with None => false
    | Some t => root_met d m t end
  end.
Definition rows_fit (h : header) (core left : list demand) (prec emax first : Z) (count : nat) : bool :=
  forallb (fun i => let y := of_pattern prec emax (first + Z.of_nat i) in
    negb (is_finite_SF y) || row_fits h core left y false && row_fits h core left y true) (seq 0 count).

Lemma one_fits h core left prec emax first count p m : rows_fit h core left prec emax first count = true ->
  first <= p < first + Z.of_nat count -> is_finite_SF (of_pattern prec emax p) = true ->
    row_fits h core left (of_pattern prec emax p) m = true.
Proof.
  intros H P F. unfold rows_fit in H. rewrite forallb_forall in H. specialize (H (Z.to_nat (p - first))).
  cbv zeta in H. replace (first + Z.of_nat (Z.to_nat (p - first))) with p in H by lia. rewrite F in H.
  apply andb_prop in H as [A B]; [|apply in_seq; lia]. now destruct m.
Qed.

(* All 65536 patterns. *)
Definition all_fit (h : header) (core left : list demand) (prec emax : Z) : bool :=
  let size := 2048 in forallb (fun k => rows_fit h core left prec emax (size * Z.of_nat k) (Z.to_nat size))
    (seq 0 32).

Lemma pattern_fits h core left prec emax p m : all_fit h core left prec emax = true -> 0 <= p < 65536 ->
  is_finite_SF (of_pattern prec emax p) = true -> row_fits h core left (of_pattern prec emax p) m = true.
Proof.
  unfold all_fit. set (size := 2048). assert (S : 0 < size) by reflexivity.
  assert (A : 65536 = size * 32) by reflexivity. clearbody size.
  cbv zeta. intros H P. rewrite forallb_forall in H. pose proof (Z.div_pos p size).
  pose proof (Z.div_lt_upper_bound p size 32).
  pose proof (Z.div_mod p size). pose proof (Z.mod_pos_bound p size).
  apply one_fits with (size * Z.of_nat (Z.to_nat (p / size))) (Z.to_nat size).
  - apply (H (Z.to_nat (p / size))), in_seq. lia.
  - rewrite !Z2Nat.id by lia. lia.
Qed.

(* ---- In real numbers ------------------------------------------------------------------------- *)

Open Scope R_scope.

Definition asked (d : demand) (v : R) : Prop :=
  match fst d with None => True | Some l => IZR l / 2 ^ 160 <= v end /\ match snd d with None => True
    | Some u => v <= IZR u / 2 ^ 160 end.

Lemma bpow_160 : bpow radix2 160 = 2 ^ 160.
Proof. rewrite <- (IZR_Zpower radix2) by lia. rewrite pow_IZR. apply f_equal. reflexivity. Qed.

Lemma units_value y n : units y = Some n -> SF2R radix2 y = IZR n / 2 ^ 160.
Proof.
  rewrite <- bpow_160. destruct y as [s| | |s m e]; try discriminate; simpl units.
  - intros [= <-]. simpl. unfold Rdiv. now rewrite Rmult_0_l.
  - destruct (Z.leb_spec (-160) e) as [E|]; [|discriminate]. intros [= <-]. simpl SF2R. unfold F2R.
    simpl Fnum. simpl Fexp.
    rewrite Z.shiftl_mul_pow2, mult_IZR by lia. change (2 ^ (e + 160))%Z with (radix2 ^ (e + 160))%Z.
    rewrite IZR_Zpower by lia. rewrite bpow_plus.
    field. apply Rgt_not_eq, bpow_gt_0.
Qed.

Lemma positive_unit : 0 < / 2 ^ 160.
Proof. apply Rinv_0_lt_compat, pow_lt. lra. Qed.

Lemma met_asked d n v : v = IZR n / 2 ^ 160 -> met d n = true -> asked d v.
Proof.
  intros -> H. unfold met in H. apply andb_prop in H as [L U]. unfold asked. pose proof positive_unit.
  split; [destruct (fst d)|destruct (snd d)]; trivial; apply Rmult_le_compat_r; try lra; apply IZR_le;
    now apply Z.leb_le.
Qed.

Lemma left_met_asked d n x : x < x_star -> f x = IZR n / 2 ^ 160 -> left_met d n = true -> asked d (f x).
Proof.
  intros X E H. apply orb_prop in H as [H|H]; [|now apply met_asked with n].
  exfalso. pose proof (negative_left x X). pose proof positive_unit. apply Z.leb_le, IZR_le in H.
  assert (0 <= IZR n / 2 ^ 160) by (apply Rmult_le_pos; lra). lra.
Qed.

(* The coordinate before rounding; bound K is about its constants, bound B about its rounding. *)
Definition exact_coordinate (h : header) (y : spec_float) (m : bool) : R :=
  let value := SF2R radix2 in
  let r := sqrt (Rmax (value (at_most y (y_max h)) - value (y_hi h) - value (y_lo h)) (value (t_min h))) in
    if m then r else - r.

Lemma exact_square_value h y t : exact_square h y = Some t ->
  Rmax (SF2R radix2 (at_most y (y_max h)) - SF2R radix2 (y_hi h) - SF2R radix2 (y_lo h))
    (SF2R radix2 (t_min h)) = IZR t / 2 ^ 160.
Proof.
  unfold exact_square. destruct (units (at_most y (y_max h))) as [a|] eqn:A, (units (y_hi h)) as [b|] eqn:B,
    (units (y_lo h)) as [c|] eqn:C,
    (units (t_min h)) as [d|] eqn:D; try discriminate. intros [= <-].
  apply units_value in A, B, C, D. rewrite A, B, C, D. pose proof positive_unit.
  replace (IZR a / 2 ^ 160 - IZR b / 2 ^ 160 - IZR c / 2 ^ 160) with (IZR (a - b - c) / 2 ^ 160)
    by (rewrite !minus_IZR; unfold Rdiv; ring).
  unfold Rdiv. destruct (Z.max_spec (a - b - c) d) as [[L ->]|[L ->]].
  - apply Rmax_right, Rmult_le_compat_r; [lra|]. now apply IZR_le, Z.lt_le_incl.
  - apply Rmax_left, Rmult_le_compat_r; [lra|]. now apply IZR_le.
Qed.

Lemma in_units a b : IZR (a * b) / 2 ^ 160 / 2 ^ 160 = (IZR a / 2 ^ 160) * (IZR b / 2 ^ 160).
Proof. rewrite mult_IZR. field. Qed.
Lemma unit_in_units k : IZR (k * 2 ^ 160) / 2 ^ 160 / 2 ^ 160 = IZR k / 2 ^ 160.
Proof. rewrite mult_IZR. replace (IZR (2 ^ 160)) with (2 ^ 160) by now rewrite pow_IZR. field. Qed.
Lemma divided a b : (a <= b)%Z -> IZR a / 2 ^ 160 / 2 ^ 160 <= IZR b / 2 ^ 160 / 2 ^ 160.
Proof.
  intros H. pose proof positive_unit. unfold Rdiv. repeat apply Rmult_le_compat_r; try lra. now apply IZR_le.
Qed.

Lemma below_square t r : (t * 2 ^ 160 <=? r * r)%Z = true ->
  IZR t / 2 ^ 160 <= (IZR r / 2 ^ 160) * (IZR r / 2 ^ 160).
Proof. intros H. apply Z.leb_le, divided in H. now rewrite unit_in_units, in_units in H. Qed.
Lemma above_square t r : (r * r <=? t * 2 ^ 160)%Z = true -> (IZR r / 2 ^ 160) * (IZR r / 2 ^ 160)
  <= IZR t / 2 ^ 160.
Proof. intros H. apply Z.leb_le, divided in H. now rewrite unit_in_units, in_units in H. Qed.
Lemma not_negative r : (0 <=? r)%Z = true -> 0 <= IZR r / 2 ^ 160.
Proof. intros H. pose proof positive_unit. apply Z.leb_le, IZR_le in H. apply Rmult_le_pos; lra. Qed.
Lemma not_positive r : (r <=? 0)%Z = true -> IZR r / 2 ^ 160 <= 0.
Proof. intros H. pose proof positive_unit. apply Z.leb_le, IZR_le in H. unfold Rdiv. nra. Qed.

(* A square root next to a number of either sign. *)
Lemma root_below t r : 0 <= r -> t <= r * r -> sqrt t <= r.
Proof. intros R H. rewrite <- (sqrt_square r) by trivial. now apply sqrt_le_1_alt. Qed.
Lemma root_above t r : r <= 0 \/ r * r <= t -> r <= sqrt t.
Proof.
  intros H. pose proof (sqrt_pos t). destruct (Rle_dec r 0); [lra|]. rewrite <- (sqrt_square r) by lra.
  apply sqrt_le_1_alt. lra.
Qed.

Lemma root_met_asked d (m : bool) t : root_met d m t = true ->
  asked d (if m then sqrt (IZR t / 2 ^ 160) else - sqrt (IZR t / 2 ^ 160)).
Proof.
  intros H. unfold root_met in H. rewrite Z.shiftl_mul_pow2 in H by lia. cbv zeta in H.
  apply andb_prop in H as [L U]. pose proof positive_unit.
  destruct m; unfold asked; (split; [destruct (fst d) as [r|]|destruct (snd d) as [r|]]; trivial).
  - apply root_above. apply orb_prop in L as [L|L]; [left; now apply not_positive|right;
      now apply above_square].
  - apply andb_prop in U as [U V]. apply root_below; [now apply not_negative|now apply below_square].
  - apply andb_prop in L as [L V]. apply Ropp_le_cancel. rewrite Ropp_involutive. apply not_positive in L.
    apply below_square in V.
    apply root_below; lra.
  - apply Ropp_le_cancel. rewrite Ropp_involutive. apply root_above.
    apply orb_prop in U as [U|U]; [left; apply not_negative in U|right; apply above_square in U]; lra.
Qed.

(* What the kernel computes at a stored y is for these x. *)
Definition meant (h : header) (y : spec_float) (m : bool) (x : R) : Prop :=
  if in_left_segment h y m then x < x_star /\ f x = SF2R radix2 (variable h y m)
  else coordinate x = SF2R radix2 (variable h y m) \/ coordinate x = exact_coordinate h y m.

Lemma asked_of_core h core left y m x : row_fits h core left y m = true -> in_left_segment h y m = false ->
  meant h y m x ->
  asked (nth (Z.to_nat (row_of h y m)) core nothing) (coordinate x).
Proof.
  intros H S M. unfold row_fits in H. cbv zeta in H. fold (row_of h y m) in H. unfold meant in M.
  rewrite S in H, M.
  destruct (units (variable h y m)) as [n|] eqn:N; [|discriminate]. apply andb_prop in H as [V Y].
  destruct M as [E|E]; rewrite E.
  - apply met_asked with n; trivial. now apply units_value.
  - destruct (exact_square h y) as [t|] eqn:T; [|discriminate]. unfold exact_coordinate. cbv zeta.
    rewrite (exact_square_value h y t T).
    now apply root_met_asked.
Qed.

Lemma asked_of_left h core left y m x : row_fits h core left y m = true -> in_left_segment h y m = true ->
  meant h y m x ->
  x < x_star /\ asked (nth (Z.to_nat (row_of h y m)) left nothing) (f x).
Proof.
  intros H S M. unfold row_fits in H. cbv zeta in H. fold (row_of h y m) in H. unfold meant in M.
  rewrite S in H, M.
  destruct (units (variable h y m)) as [n|] eqn:N; [|discriminate]. destruct M as [X E]. split; trivial.
  apply left_met_asked with n; trivial. rewrite E. now apply units_value.
Qed.

(* From what all patterns fit to the ranges of the rows. *)
Theorem picked h core left prec emax (range : nat -> R -> Prop) : all_fit h core left prec emax = true ->
  (forall row x, asked (nth row core nothing) (coordinate x) -> range row x) ->
  (forall row x, x < x_star -> asked (nth row left nothing) (f x) -> range row x) ->
  forall p m x, (0 <= p < 65536)%Z -> let y := of_pattern prec emax p in is_finite_SF y = true ->
    meant h y m x ->
  range (Z.to_nat (row_of h y m)) x.
Proof.
  intros H C L p m x P y F M. pose proof (pattern_fits h core left prec emax p m H P F) as R. fold y in R.
  destruct (in_left_segment h y m) eqn:S.
  - destruct (asked_of_left h core left y m x R S M). now apply L.
  - apply C. now apply (asked_of_core h core left y m).
Qed.

Lemma none v : asked nothing v -> False.
Proof. intros [L U]. cbn [fst snd nothing] in L, U. lra. Qed.

(* ---- From what is asked to the range of x ---------------------------------------------------- *)

Lemma coordinate_increases a b : a < b -> coordinate a < coordinate b.
Proof.
  intros L. pose proof (minimum a). pose proof (minimum b). unfold coordinate.
  destruct (Rle_dec x_star a), (Rle_dec x_star b); try lra.
  - apply sqrt_lt_1; try lra. pose proof (f_right a b L). lra.
  - apply Rlt_le_trans with 0; [|apply sqrt_pos]. apply Ropp_lt_gt_0_contravar, sqrt_lt_R0. unfold y_star.
    pose proof (f_left a x_star). lra.
  - apply Ropp_lt_contravar, sqrt_lt_1; try lra. pose proof (f_left a b L). lra.
Qed.

Lemma from_coordinate c l x : coordinate c <= l -> l <= coordinate x -> c <= x.
Proof. intros C X. destruct (Rle_dec c x); trivial. pose proof (coordinate_increases x c). lra. Qed.
Lemma to_coordinate c u x : u <= coordinate c -> coordinate x <= u -> x <= c.
Proof. intros C X. destruct (Rle_dec x c); trivial. pose proof (coordinate_increases c x). lra. Qed.

(* The coordinate at an end, by f there. *)
Lemma right_below c l : x_star <= c -> 0 <= l -> f c - y_low <= l * l -> coordinate c <= l.
Proof.
  intros C L H. pose proof y_star_between. unfold coordinate. destruct Rle_dec; [|lra]. apply root_below; lra.
Qed.
Lemma right_above c u : x_star <= c -> u * u <= f c - y_high -> u <= coordinate c.
Proof.
  intros C H. pose proof y_star_between. unfold coordinate. destruct Rle_dec; [|lra]. apply root_above. lra.
Qed.
Lemma left_below c l : c < x_star -> l * l <= f c - y_high -> coordinate c <= l.
Proof.
  intros C H. pose proof y_star_between. unfold coordinate. destruct Rle_dec; [lra|]. apply Ropp_le_cancel.
  rewrite Ropp_involutive.
  apply root_above. lra.
Qed.
Lemma left_above c u : c < x_star -> u <= 0 -> f c - y_low <= u * u -> u <= coordinate c.
Proof.
  intros C U H. pose proof y_star_between. unfold coordinate. destruct Rle_dec; [lra|]. apply Ropp_le_cancel.
  rewrite Ropp_involutive.
  apply root_below; lra.
Qed.

(* In the left segment. *)
Lemma left_from c u x : c <= x_star -> u <= f c -> f x <= u -> c <= x.
Proof. intros C U H. destruct (Rle_dec c x); trivial. pose proof (f_left x c). lra. Qed.
Lemma left_to c l x : f c <= l -> l <= f x -> x < x_star -> x <= c.
Proof. intros L H X. destruct (Rle_dec x c); trivial. pose proof (f_left c x). lra. Qed.

(* By Phi at an end of a range: what the coordinate, or f, is there. *)
Ltac by_value E :=
  pose proof E as Value; apply between_of_abs in Value; pose proof x_star_between as Star;
    unfold x_low, x_high in Star; unfold f, y_low, y_high; lra.
