(* The row that the kernel's index arithmetic picks for a stored y, and what has to be looked at so that this row's range
   of x holds what the row is computed for: the x whose coordinate is the kernel's own or, in the left segment, the x
   left of x_star with f x = y. All numbers of the format are tried, with either bit. What is asked of a coordinate, or of
   a y, are the bounds that it has at the ends of the row's range, in units of 2^-160. *)

From Coq Require Import Reals ZArith List Bool SpecFloat Lia Lra.
From Flocq Require Import Core IEEE754.BinarySingleNaN.
From Outgrad Require Import Calculus Gelu BranchPoint Format Kernel.
Import ListNotations.
Open Scope Z_scope.

(* ---- The kernel's row ------------------------------------------------------------------------------------------- *)

Definition in_left_segment (h : header) (y : spec_float) (m : bool) : bool := negb m && negb (less_equal (at_most y (y_max h)) (left_y h)).
Definition variable (h : header) (y : spec_float) (m : bool) : spec_float :=
  if in_left_segment h y m then non_positive (at_most y (y_max h)) else evaluate_coordinate h (at_most y (y_max h)) m.
Definition row_of (h : header) (y : spec_float) (m : bool) : Z :=
  if in_left_segment h y m
  then octave_row (variable h y m) (left_bits h) (left_knee h) (left_base h) (left_row h) (rows h)
  else row_index (fma (variable h y m) (index_scale h) (index_bias h)) (rows h).

Theorem evaluates_row_of h y m : evaluate_backward h y m = evaluate_row h (row_of h y m) (variable h y m).
Proof. unfold evaluate_backward, row_of, variable, in_left_segment. now destruct (negb m && _). Qed.

(* ---- What is asked ---------------------------------------------------------------------------------------------- *)

(* The least and the greatest that a row takes; no bound where it takes all. *)
Definition demand := (option Z * option Z)%type.
Definition nothing : demand := (Some 1, Some 0).
Definition met (d : demand) (n : Z) : bool :=
  match fst d with None => true | Some l => l <=? n end && match snd d with None => true | Some u => n <=? u end.

Definition units (y : spec_float) : option Z :=
  match y with
  | S754_zero _ => Some 0
  | S754_finite s m e => if -160 <=? e then Some (cond_Zopp s (Zpos m) * 2 ^ (e + 160)) else None
  | _ => None
  end.

(* Left of x_star no f x is 0 or more. *)
Definition row_fits (h : header) (core left : list demand) (y : spec_float) (m : bool) : bool :=
  match units (variable h y m) with
  | None => false
  | Some n => if in_left_segment h y m then (0 <=? n) || met (nth (Z.to_nat (row_of h y m)) left nothing) n
              else met (nth (Z.to_nat (row_of h y m)) core nothing) n
  end.
Definition rows_fit (h : header) (core left : list demand) (prec emax first : Z) (count : nat) : bool :=
  forallb (fun i => let y := of_pattern prec emax (first + Z.of_nat i) in
    negb (is_finite_SF y) || row_fits h core left y false && row_fits h core left y true) (seq 0 count).

Lemma pattern_fits h core left prec emax first count p m :
  rows_fit h core left prec emax first count = true -> first <= p < first + Z.of_nat count ->
  is_finite_SF (of_pattern prec emax p) = true -> row_fits h core left (of_pattern prec emax p) m = true.
Proof.
  intros H P F. unfold rows_fit in H. rewrite forallb_forall in H. specialize (H (Z.to_nat (p - first))).
  cbv zeta in H. replace (first + Z.of_nat (Z.to_nat (p - first))) with p in H by lia. rewrite F in H.
  apply andb_prop in H as [A B]; [|apply in_seq; lia]. now destruct m.
Qed.

(* ---- In real numbers -------------------------------------------------------------------------------------------- *)

Open Scope R_scope.

Definition asked (d : demand) (v : R) : Prop :=
  match fst d with None => True | Some l => IZR l / 2 ^ 160 <= v end /\ match snd d with None => True | Some u => v <= IZR u / 2 ^ 160 end.

Lemma bpow_160 : bpow radix2 160 = 2 ^ 160.
Proof. rewrite <- (IZR_Zpower radix2) by lia. rewrite pow_IZR. apply f_equal. reflexivity. Qed.

Lemma units_value y n : units y = Some n -> SF2R radix2 y = IZR n / 2 ^ 160.
Proof.
  rewrite <- bpow_160. destruct y as [s| | |s m e]; try discriminate; simpl units.
  - intros [= <-]. simpl. unfold Rdiv. now rewrite Rmult_0_l.
  - destruct (Z.leb_spec (-160) e) as [E|]; [|discriminate]. intros [= <-]. simpl SF2R. unfold F2R. simpl Fnum. simpl Fexp.
    rewrite mult_IZR. change (2 ^ (e + 160))%Z with (radix2 ^ (e + 160))%Z. rewrite IZR_Zpower by lia. rewrite bpow_plus.
    field. apply Rgt_not_eq, bpow_gt_0.
Qed.

Lemma positive_unit : 0 < / 2 ^ 160.
Proof. apply Rinv_0_lt_compat, pow_lt. lra. Qed.

Lemma met_asked d n v : v = IZR n / 2 ^ 160 -> met d n = true -> asked d v.
Proof.
  intros -> H. unfold met in H. apply andb_prop in H as [L U]. unfold asked. pose proof positive_unit.
  split; [destruct (fst d)|destruct (snd d)]; trivial; apply Rmult_le_compat_r; try lra; apply IZR_le; now apply Z.leb_le.
Qed.

Theorem asked_of_core h core left y m x : row_fits h core left y m = true -> in_left_segment h y m = false ->
  coordinate x = SF2R radix2 (variable h y m) -> asked (nth (Z.to_nat (row_of h y m)) core nothing) (coordinate x).
Proof.
  intros H S E. unfold row_fits in H. rewrite S in H. destruct (units (variable h y m)) as [n|] eqn:U; [|discriminate].
  apply met_asked with n; trivial. rewrite E. now apply units_value.
Qed.

Lemma negative_left x : x < x_star -> f x < 0.
Proof.
  intros X. pose proof x_star_between. unfold x_high in *. unfold f. enough (0 < Phi x) by nra.
  apply Rle_lt_trans with (Phi (x - 1)). apply Phi_left; lra.
  apply (increasing_of_derive Phi phi); [apply derive_Phi|lra|]. intros t _. apply phi_pos.
Qed.

Theorem asked_of_left h core left y m x : row_fits h core left y m = true -> in_left_segment h y m = true -> x < x_star ->
  f x = SF2R radix2 (variable h y m) -> asked (nth (Z.to_nat (row_of h y m)) left nothing) (f x).
Proof.
  intros H S X E. unfold row_fits in H. rewrite S in H. destruct (units (variable h y m)) as [n|] eqn:U; [|discriminate].
  apply units_value in U. rewrite U in E. apply orb_prop in H as [H|H]; [|now apply met_asked with n].
  exfalso. pose proof (negative_left x X). pose proof positive_unit. apply Z.leb_le, IZR_le in H.
  assert (0 <= IZR n / 2 ^ 160) by (apply Rmult_le_pos; lra). lra.
Qed.

(* ---- From what is asked to the range of x ----------------------------------------------------------------------- *)

Lemma f_left a b : a < b -> b <= x_star -> f b < f a.
Proof. intros L B. apply (decreasing_of_derive f f'); [apply derive_f|trivial|]. intros t Ht. apply f'_left. lra. Qed.
Lemma f_right a b : a < b -> x_star <= a -> f a < f b.
Proof. intros L A. apply (increasing_of_derive f f'); [apply derive_f|trivial|]. intros t Ht. apply f'_right. lra. Qed.

Theorem coordinate_increases a b : a < b -> coordinate a < coordinate b.
Proof.
  intros L. pose proof (minimum a). pose proof (minimum b). unfold coordinate. destruct (Rle_dec x_star a), (Rle_dec x_star b); try lra.
  - apply sqrt_lt_1; try lra. pose proof (f_right a b L). lra.
  - apply Rlt_le_trans with 0; [|apply sqrt_pos]. apply Ropp_lt_gt_0_contravar, sqrt_lt_R0. unfold y_star. pose proof (f_left a x_star). lra.
  - apply Ropp_lt_contravar, sqrt_lt_1; try lra. pose proof (f_left a b L). lra.
Qed.

Lemma from_coordinate c l x : coordinate c <= l -> l <= coordinate x -> c <= x.
Proof. intros C X. destruct (Rle_dec c x); trivial. pose proof (coordinate_increases x c). lra. Qed.
Lemma to_coordinate c u x : u <= coordinate c -> coordinate x <= u -> x <= c.
Proof. intros C X. destruct (Rle_dec x c); trivial. pose proof (coordinate_increases c x). lra. Qed.

(* The coordinate at an end, by f there. *)
Lemma coordinate_right_below c l : x_high <= c -> 0 <= l -> f c - y_low <= l * l -> coordinate c <= l.
Proof.
  intros C L H. pose proof x_star_between. pose proof y_star_between. unfold coordinate. destruct Rle_dec; [|lra].
  rewrite <- (sqrt_square l) by trivial. apply sqrt_le_1_alt. lra.
Qed.
Lemma coordinate_right_above c u : x_high <= c -> 0 <= u -> u * u <= f c - y_high -> u <= coordinate c.
Proof.
  intros C L H. pose proof x_star_between. pose proof y_star_between. unfold coordinate. destruct Rle_dec; [|lra].
  rewrite <- (sqrt_square u) by trivial. apply sqrt_le_1_alt. lra.
Qed.
Lemma coordinate_left_below c l : c < x_low -> l <= 0 -> l * l <= f c - y_high -> coordinate c <= l.
Proof.
  intros C L H. pose proof x_star_between. pose proof y_star_between. unfold coordinate. destruct Rle_dec; [lra|].
  apply Ropp_le_cancel. rewrite Ropp_involutive, <- (sqrt_square (- l)) by lra. apply sqrt_le_1_alt. lra.
Qed.
Lemma coordinate_left_above c u : c < x_low -> u <= 0 -> f c - y_low <= u * u -> u <= coordinate c.
Proof.
  intros C L H. pose proof x_star_between. pose proof y_star_between. unfold coordinate. destruct Rle_dec; [lra|].
  apply Ropp_le_cancel. rewrite Ropp_involutive, <- (sqrt_square (- u)) by lra. apply sqrt_le_1_alt. lra.
Qed.

(* In the left segment. *)
Lemma left_from c u x : c <= x_star -> u <= f c -> f x <= u -> c <= x.
Proof. intros C U H. destruct (Rle_dec c x); trivial. pose proof (f_left x c). lra. Qed.
Lemma left_to c l x : f c <= l -> l <= f x -> x < x_star -> x <= c.
Proof. intros L H X. destruct (Rle_dec x c); trivial. pose proof (f_left c x). lra. Qed.
