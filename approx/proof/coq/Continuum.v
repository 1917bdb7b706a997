(* The total error of the kernel at every real number x whose y = f x, rounded to the format, is finite. The
   real numbers are cut into cells by places, in ascending order: on one side of x_star f is monotone, so that
   the y of a cell lie between those of its ends, and f' lies between its values there, unless it bends in the
   cell. A boolean function that Coq runs looks at every y of every cell. The places may be any; the bound is
   tight where they lie next to those where f x is midway between two numbers of the format. *)

From Coq Require Import Reals ZArith List Bool SpecFloat Lia Lra.
From Flocq Require Import Core IEEE754.BinarySingleNaN Calc.Operations.
From Outgrad Require Import Calculus Activation BranchPoint Format Kernel Exhaustion Forward.
Import ListNotations.
Open Scope Z_scope.

(* ---- f and f' between two x on one side of x_star -------------------------------------------- *)

Section Slopes.

Open Scope R_scope.

Lemma f_falls a b : a <= b -> b <= x_star -> f b <= f a.
Proof. intros [L| ->] B; [left; now apply f_left|apply Rle_refl]. Qed.

Lemma f_rises a b : a <= b -> x_star <= a -> f a <= f b.
Proof. intros [L| ->] A; [left; now apply f_right|apply Rle_refl]. Qed.

Lemma f'_rises z a b : (forall t, Rabs t < z -> 0 < f'' t) -> - z <= a -> a <= b -> b <= z -> f' a <= f' b.
Proof.
  intros P A [L| ->] B; [left|apply Rle_refl].
  apply (increasing_of_derive f' f''); [apply derive_f'|trivial|]. intros t T. apply P, Rabs_def1; lra.
Qed.

Lemma f'_falls z a b : 0 <= z -> (forall t, z < Rabs t -> f'' t < 0) -> a <= b -> b <= - z \/ z <= a ->
  f' b <= f' a.
Proof.
  intros Z N [L| ->] B; [left|apply Rle_refl].
  apply (decreasing_of_derive f' f''); [apply derive_f'|trivial|]. intros t T. apply N.
  unfold Rabs. destruct (Rcase_abs t), B; lra.
Qed.

Definition bend_low := IZR (fst bend_between) / 2 ^ 30.
Definition bend_high := IZR (snd bend_between) / 2 ^ 30.
Definition most := IZR slope_most / 2 ^ 30.

(* Between two x, f' lies between its values there, unless it bends there. *)
Theorem slope_between a x b : a <= x <= b ->
  (f' a <= f' x \/ f' b <= f' x \/ a < - bend_low /\ - bend_high < b /\ 1 - most <= f' x) /\
  (f' x <= f' a \/ f' x <= f' b \/ a < bend_high /\ bend_low < b /\ f' x <= most).
Proof.
  intros [A B]. destruct bend as (z & Z & M & P & N). fold bend_low bend_high most in Z, M.
  assert (Z0 : 0 <= z) by (unfold bend_low in Z; simpl in Z; lra). pose proof (f'_opp z) as O. split.
  - destruct (Rle_dec x (- z)) as [X|X].
    + destruct (Rle_dec b (- z)) as [C|C]; [right; left; apply f'_falls with z; trivial; lra|].
      destruct (Rle_lt_dec (- z) a); [left; replace x with a by lra; apply Rle_refl|].
      right; right. repeat split; try lra. pose proof (f'_falls z x (- z) Z0 N). lra.
    + destruct (Rle_dec x z) as [Y|Y].
      * destruct (Rle_dec (- z) a) as [C|C]; [left; apply f'_rises with z; trivial; lra|].
        right; right. repeat split; try lra. pose proof (f'_rises z (- z) x P). lra.
      * right; left. apply f'_falls with z; trivial; lra.
  - destruct (Rle_dec x (- z)) as [X|X]; [left; apply f'_falls with z; trivial; lra|].
    destruct (Rle_dec x z) as [Y|Y].
    + destruct (Rle_dec b z) as [C|C]; [right; left; apply f'_rises with z; trivial; lra|].
      destruct (Rle_lt_dec z a); [left; replace x with a by lra; apply Rle_refl|].
      right; right. repeat split; try lra. pose proof (f'_rises z x z P). lra.
    + destruct (Rle_dec z a) as [C|C]; [left; apply f'_falls with z; trivial; lra|].
      right; right. repeat split; try lra. pose proof (f'_falls z z x Z0 N). lra.
Qed.

End Slopes.

(* ---- The format's numbers in ascending order ------------------------------------------------- *)

Section Numbers.

Variables prec emax : Z.
Context (prec_positive : Prec_gt_0 prec) (range : Prec_lt_emax prec emax).

(* The i-th number, negative for negative i; 0 is the 0th. *)
Definition numeral (i : Z) : dyadic :=
  Float radix2 (Z.sgn i * significand prec (Z.abs i)) (exponent prec emax (Z.abs i)).

Lemma magnitude_next n : 0 <= n -> (magnitude prec emax n <= magnitude prec emax (n + 1))%R.
Proof.
  intros H. assert (P : 0 < implicit_bit prec) by (apply Z.pow_pos_nonneg; red in prec_positive; lia).
  unfold magnitude, significand, exponent. set (b := implicit_bit prec) in *. set (e := emin prec emax).
  pose proof (Z.div_mod n b ltac:(lia)) as D. pose proof (Z.mod_pos_bound n b P) as M.
  destruct (Z.ltb_spec n b) as [L|L], (Z.ltb_spec (n + 1) b) as [L'|L']; try lia.
  - apply F2R_le. lia.
  - replace (n + 1) with (0 + 1 * b) by lia. rewrite Z_mod_plus_full, Z_div_plus_full by lia.
    rewrite Z.mod_0_l, Z.div_0_l by lia. replace (e + (0 + 1) - 1) with e by ring. apply F2R_le. lia.
  - destruct (Z.eq_dec (n mod b + 1) b) as [E|E].
    + replace (n + 1) with (0 + (n / b + 1) * b) by lia. rewrite Z_mod_plus_full, Z_div_plus_full by lia.
      rewrite Z.mod_0_l, Z.div_0_l by lia.
      rewrite (F2R_change_exp radix2 (e + n / b - 1) (0 + b) (e + (0 + (n / b + 1)) - 1)) by lia.
      apply F2R_le. replace (e + (0 + (n / b + 1)) - 1 - (e + n / b - 1)) with 1 by ring.
      change (radix2 ^ 1) with 2. lia.
    + replace (n + 1) with (n mod b + 1 + n / b * b) by lia. rewrite Z_mod_plus_full, Z_div_plus_full by lia.
      rewrite (Z.mod_small (n mod b + 1)), (Z.div_small (n mod b + 1)) by lia. apply F2R_le. lia.
Qed.

Lemma magnitude_rises n m : 0 <= n <= m -> (magnitude prec emax n <= magnitude prec emax m)%R.
Proof.
  intros [N L]. replace m with (n + (m - n)) by ring. assert (D : 0 <= m - n) by lia. revert D.
  generalize (m - n) as d. apply natlike_ind.
  - rewrite Z.add_0_r. apply Rle_refl.
  - intros d D IH. eapply Rle_trans; [exact IH|]. replace (n + Z.succ d) with (n + d + 1) by lia.
    apply magnitude_next. lia.
Qed.

Lemma numeral_value i : F2R (numeral i) = (IZR (Z.sgn i) * magnitude prec emax (Z.abs i))%R.
Proof. unfold numeral, magnitude, F2R; simpl. rewrite mult_IZR. ring. Qed.

Lemma magnitude_pos n : 0 <= n -> (0 <= magnitude prec emax n)%R.
Proof. intros H. apply F2R_ge_0. now apply significand_positive. Qed.

Lemma numeral_rises i j : i <= j -> (F2R (numeral i) <= F2R (numeral j))%R.
Proof.
  intros L. rewrite !numeral_value. pose proof (magnitude_pos (Z.abs i) (Z.abs_nonneg i)).
  pose proof (magnitude_pos (Z.abs j) (Z.abs_nonneg j)).
  destruct (Z_lt_le_dec i 0), (Z_lt_le_dec 0 j).
  - rewrite (Z.sgn_neg i), (Z.sgn_pos j) by lia. lra.
  - destruct (Z.eq_dec j 0) as [-> |]; [rewrite (Z.sgn_neg i) by lia; simpl; lra|].
    rewrite (Z.sgn_neg i), (Z.sgn_neg j) by lia. pose proof (magnitude_rises (Z.abs j) (Z.abs i) ltac:(lia)).
      lra.
  - destruct (Z.eq_dec i 0) as [-> |]; [rewrite (Z.sgn_pos j) by lia; simpl; lra|].
    rewrite (Z.sgn_pos i), (Z.sgn_pos j) by lia. pose proof (magnitude_rises (Z.abs i) (Z.abs j) ltac:(lia)).
      lra.
  - replace i with 0 by lia. replace j with 0 by lia. apply Rle_refl.
Qed.

Lemma numeral_of v : in_format prec emax v ->
  exists i, - magnitudes prec emax < i < magnitudes prec emax /\ v = F2R (numeral i).
Proof.
  intros V. destruct (numbered prec emax prec_positive range v V) as (n & N & E).
  destruct (Rle_dec 0 v) as [P|P].
  - exists n. split; [lia|]. rewrite numeral_value, Z.abs_eq, <- E, Rabs_pos_eq by (trivial; lia).
    destruct (Z.eq_dec n 0) as [-> |]; [|rewrite Z.sgn_pos by lia; ring].
    rewrite Rabs_pos_eq in E by trivial. unfold magnitude, significand in E.
    destruct (Z.ltb_spec 0 (implicit_bit prec)) as [_|F];
      [|pose proof (Z.pow_pos_nonneg 2 (prec - 1)); unfold implicit_bit in F; red in prec_positive; lia].
    rewrite E, F2R_0. ring.
  - exists (- n). split; [lia|]. rewrite Rabs_left in E by lra. rewrite numeral_value, Z.abs_opp.
    rewrite Z.abs_eq, <- E by lia.
    destruct (Z.eq_dec n 0) as [-> |]; [|rewrite Z.sgn_neg by lia; ring]. exfalso.
    unfold magnitude, significand in E.
    destruct (Z.ltb_spec 0 (implicit_bit prec)) as [_|F];
      [|pose proof (Z.pow_pos_nonneg 2 (prec - 1)); unfold implicit_bit in F; red in prec_positive; lia].
    rewrite F2R_0 in E. lra.
Qed.

End Numbers.

(* ---- Places ---------------------------------------------------------------------------------- *)

Definition place_bits : Z := 70.
(* point k: k / 2^place_bits. *)
Inductive place := far_left | point (k : Z) | star | far_right.

Definition location (p : place) : R :=
  match p with point k => F2R (Float radix2 k (- place_bits)) | _ => x_star end.
Definition after (p : place) (x : R) : Prop :=
  match p with far_left => True | far_right => False | _ => (location p <= x)%R end.
Definition before (p : place) (x : R) : Prop :=
  match p with far_left => False | far_right => True | _ => (x <= location p)%R end.

Lemma before_or_after p x : before p x \/ after p x.
Proof.
  destruct p as [|k| |]; cbn [before after]; auto; [destruct (Rle_dec x (location (point k)))|
    destruct (Rle_dec x (location star))]; auto; right; lra.
Qed.

(* f and f' there, or the limits of f' and, on the left, of f. *)
Definition f_at (p : place) : R := match p with far_left | far_right => 0%R | _ => f (location p) end.
Definition slope_at (p : place) : R :=
  match p with far_left => 0%R | far_right => 1%R | _ => f' (location p) end.

(* Bounds of a real number. *)
Definition pair := (dyadic * dyadic)%type.
Definition between (d : pair) (v : R) : Prop := (F2R (fst d) <= v <= F2R (snd d))%R.

Definition less_dyadic (a b : dyadic) : bool := 0 <? Fnum (Fminus b a).
Definition least (a b : dyadic) : dyadic := if at_most_dyadic a b then a else b.
Definition greatest (a b : dyadic) : dyadic := if at_most_dyadic a b then b else a.

Lemma less_dyadic_correct a b : less_dyadic a b = true -> (F2R a < F2R b)%R.
Proof.
  unfold less_dyadic. intros H. apply Z.ltb_lt in H. enough (0 < F2R b - F2R a)%R by lra.
  rewrite <- F2R_minus. destruct (Fminus b a) as [m e]. now apply F2R_gt_0.
Qed.

Lemma least_below a b : (F2R (least a b) <= F2R a /\ F2R (least a b) <= F2R b)%R.
Proof.
  unfold least. destruct (at_most_dyadic a b) eqn:H; [apply at_most_dyadic_correct in H; lra|].
  unfold at_most_dyadic in H. apply Z.leb_gt in H. enough (F2R b - F2R a < 0)%R by lra. rewrite <- F2R_minus.
  destruct (Fminus b a) as [m e]. now apply F2R_lt_0.
Qed.

Lemma greatest_above a b : (F2R a <= F2R (greatest a b) /\ F2R b <= F2R (greatest a b))%R.
Proof.
  pose proof (least_below a b) as L. unfold least, greatest in *. destruct (at_most_dyadic a b) eqn:H; [|lra].
  apply at_most_dyadic_correct in H. lra.
Qed.

(* ---- The check ------------------------------------------------------------------------------- *)

Section Check.

Variables prec emax : Z.
Variables (c : enclosing) (h : header) (T : dyadic).
(* On which side of x_star the cells are. *)
Variable mask : bool.

Definition zero : dyadic := Float radix2 0 0.
Definition one : dyadic := Float radix2 1 0.

(* Bounds of f_at and of slope_at. *)
Definition known_at (p : place) : option (pair * pair) :=
  match p with
  | far_left => Some ((zero, zero), (zero, zero))
  | star => Some ((Float radix2 (fst near_y_star) (-50), Float radix2 (snd near_y_star) (-50)), (zero, zero))
  | far_right => Some ((zero, zero), (one, one))
  | point k =>
    match bounds_at c (Z.abs k) (- place_bits) with
    | Some (plus, minus, slope) =>
      let '(b, s) := if 0 <=? k then (plus, slope_right slope) else (minus, slope_left slope) in
      Some ((Float radix2 (low b) (at_exponent b), Float radix2 (high b) (at_exponent b)), s)
    | None => None
    end
  end.

Definition on_side (p : place) : bool :=
  match p with
  | far_left => negb mask
  | star => true
  | far_right => mask
  | point k =>
    match mask_left (Float radix2 (- k) (- place_bits)) with Some m => Bool.eqb m mask | None => false end
  end.

(* Beyond - tail_place and tail_place the theorems about the tails hold. *)
Definition far (p q : place) : bool :=
  match p, q with
  | far_left, point k => k <=? - (tail_place * 2 ^ place_bits)
  | point k, far_right => tail_place * 2 ^ place_bits <=? k
  | far_left, _ | _, far_right => false
  | _, _ => true
  end.

(* Whether f' may bend between two places. *)
Definition bends (p q : place) : bool :=
  let unit := 2 ^ (place_bits - 30) in
  let '(lowest, highest) := if mask then bend_between else (- snd bend_between, - fst bend_between) in
  match p, q with
  | far_left, _ | _, far_right => false
  | _, _ => negb (match q with point k => k <=? lowest * unit | _ => false end ||
      match p with point k => highest * unit <=? k | _ => false end)
  end.

Definition slopes (p q : place) (a b : pair) : pair :=
  let low := least (fst a) (fst b) in
  let high := greatest (snd a) (snd b) in
  if bends p q then
    if mask then (low, greatest high (Float radix2 slope_most (-30)))
    else (least low (Float radix2 (2 ^ 30 - slope_most) (-30)), high)
  else (low, high).

(* Its index, if y is a number of the format. *)
Definition index_of (y : spec_float) : Z :=
  match y with
  | S754_finite s m e => cond_Zopp s ((e - emin prec emax) * implicit_bit prec + Zpos m)
  | _ => 0
  end.
(* That of d, rounded; with a look at the next number above, or below. *)
Definition index (above : bool) (d : dyadic) : option Z :=
  let y := rounded prec emax (Fnum d) (Fexp d) false in
  let i := index_of y in
  match dyadic_of y with
  | Some v =>
    if if above then less_dyadic v (numeral prec emax (i + 1)) else less_dyadic (numeral prec emax (i - 1)) v
    then Some i else None
  | None => None
  end.

(* The kernel at the i-th number, or at both zeros, against an f' x within `slope`. *)
Definition fits (slope : pair) (i : Z) : bool :=
  let fit := kernel_within h T slope mask in
  let d := numeral prec emax i in
  if i =? 0 then fit (S754_zero false) && fit (S754_zero true) else fit (number (Fnum d) (Fexp d)).
Fixpoint all_fit (slope : pair) (i : Z) (count : nat) : bool :=
  match count with O => true | S count => fits slope i && all_fit slope (i + 1) count end.

(* a and b are what is known at p and q. *)
Definition check_cell (p q : place) (a b : pair * pair) : bool :=
  let lower := fst (if mask then a else b) in
  let upper := fst (if mask then b else a) in
  let last := match q with far_right => Some (magnitudes prec emax - 1) | _ => index true (snd upper) end in
  on_side p && on_side q && far p q &&
  match index false (fst lower), last with
  | Some i, Some j => all_fit (slopes p q (snd a) (snd b)) i (Z.to_nat (j - i + 1))
  | _, _ => false
  end.

Fixpoint check_cells (p : place) (a : pair * pair) (ps : list place) : bool :=
  match ps with
  | [] => true
  | q :: ps => match known_at q with Some b => check_cell p q a b && check_cells q b ps | None => false end
  end.

(* The cells between these places. *)
Definition check_places (p : place) (ps : list place) : bool :=
  match known_at p with Some a => check_cells p a ps | None => false end.

(* ---- Its correctness ------------------------------------------------------------------------- *)

Hypothesis enclosing_sound : sound_enclosing c.
Context (prec_positive : Prec_gt_0 prec) (range : Prec_lt_emax prec emax).
Hypothesis narrower : prec <= 24 /\ emax <= 128 /\ emin 24 128 <= emin prec emax.

Lemma known_at_correct p a : known_at p = Some a -> between (fst a) (f_at p) /\ between (snd a) (slope_at p).
Proof.
  unfold between. destruct p as [|k| |]; cbn [known_at f_at slope_at].
  - intros [= <-]. cbn [fst snd]. unfold zero. rewrite F2R_0. lra.
  - destruct (bounds_at c (Z.abs k) (- place_bits)) as [[[plus minus] slope]|] eqn:B; [|discriminate].
    apply bounds_at_correct in B as (P & M & S); trivial; [|lia]. unfold bounded in P, M, S.
    assert (H2 : F2R (Float radix2 1 (-1)) = (1 / 2)%R) by (unfold F2R; simpl; lra).
    cbn [location]. destruct (Z.leb_spec 0 k) as [K|K]; intros [= <-]; cbn [fst snd slope_right slope_left].
    + rewrite Z.abs_eq in P, S by trivial. rewrite !F2R_plus, H2. lra.
    + rewrite Z.abs_neq, F2R_Zopp in M, S by lia. rewrite Ropp_involutive in M. rewrite f'_opp in S.
      rewrite !F2R_minus, H2. lra.
  - intros [= <-]. pose proof y_star_between as Y. unfold y_low, y_high in Y. cbn [location]. fold y_star.
    rewrite f'_x_star. cbn [fst snd]. unfold zero. rewrite F2R_0. unfold F2R. simpl. lra.
  - intros [= <-]. cbn [fst snd]. unfold zero, one. rewrite F2R_0. unfold F2R; simpl. lra.
Qed.

Lemma on_side_correct p : on_side p = true ->
  match p with
  | far_left => mask = false
  | far_right => mask = true
  | _ => if mask then (x_star <= location p)%R else (location p <= x_star)%R
  end.
Proof.
  destruct p as [|k| |]; cbn [on_side].
  - now destruct mask.
  - destruct (mask_left (Float radix2 (- k) (- place_bits))) as [m|] eqn:M; [|discriminate]. intros E.
    apply eqb_prop in E. apply mask_left_correct in M. rewrite F2R_Zopp, Ropp_involutive in M.
    cbn [location]. rewrite E in M. set (l := F2R (Float radix2 k (- place_bits))) in *.
    destruct (Rle_bool_spec x_star l); rewrite M; lra.
  - intros _. cbn [location]. destruct mask; apply Rle_refl.
  - trivial.
Qed.

Lemma f_between p q x : on_side p = true -> on_side q = true -> after p x -> before q x ->
  Rle_bool x_star x = mask ->
  if mask then (f_at p <= f x)%R /\ (q = far_right \/ (f x <= f_at q)%R) else (f_at q <= f x <= f_at p)%R.
Proof.
  intros P Q A B M. apply on_side_correct in P, Q. revert P Q M. destruct mask; intros P Q M.
  - destruct (Rle_bool_spec x_star x); [|discriminate]. split.
    + destruct p; try discriminate; try easy; now apply f_rises.
    + destruct q; try discriminate; try easy; [right|right|now left]; now apply f_rises.
  - destruct (Rle_bool_spec x_star x) as [|L]; [discriminate|]. split.
    + destruct q; try discriminate; try easy; now apply f_falls.
    + destruct p; try discriminate; try easy; [|apply f_falls; trivial; lra..].
      cbn [f_at]. left. now apply negative_left.
Qed.

Lemma scaled n : F2R (Float radix2 (n * 2 ^ (place_bits - 30)) (- place_bits)) = (IZR n / 2 ^ 30)%R.
Proof. unfold F2R, place_bits; simpl Fnum; simpl Fexp. rewrite mult_IZR. simpl. lra. Qed.

Lemma bend_signs : (0 < bend_low <= bend_high /\ - bend_low < x_star /\ x_star < 0)%R.
Proof.
  pose proof x_star_between as X. pose proof x_star_negative.
  unfold bend_low, bend_high, x_low, x_high in *. simpl. lra.
Qed.

Lemma far_correct p q x : far p q = true -> after p x -> before q x ->
  match p, q with
  | far_left, _ => (f' (location q) <= f' x <= 0)%R /\ exists k, q = point k
  | _, far_right => (1 <= f' x <= f' (location p))%R /\ exists k, p = point k
  | _, _ => True
  end.
Proof.
  assert (F : F2R (Float radix2 (tail_place * 2 ^ place_bits) (- place_bits)) = IZR tail_place)
    by (unfold F2R, tail_place; simpl; lra).
  assert (R : (tail <= IZR tail_place)%R) by (unfold tail_place; lra).
  intros H A B. destruct p as [|k| |], q as [|k'| |]; try discriminate; trivial;
    cbn [far after before location] in *; apply Z.leb_le, (F2R_le radix2 _ _ (- place_bits)) in H.
  - rewrite F2R_Zopp, F in H. split; [|now exists k']. apply left_tail; trivial. lra.
  - rewrite F in H. split; [|now exists k]. apply (right_tail _ x); trivial. lra.
Qed.

Lemma slopes_correct p q a b x : on_side p = true -> on_side q = true -> far p q = true ->
  after p x -> before q x -> Rle_bool x_star x = mask -> between a (slope_at p) -> between b (slope_at q) ->
  between (slopes p q a b) (f' x).
Proof.
  intros P Q W A B M SA SB. apply on_side_correct in P, Q. apply far_correct with (x := x) in W; trivial.
  unfold slopes, between in *.
  pose proof (least_below (fst a) (fst b)) as L. pose proof (greatest_above (snd a) (snd b)) as U.
  set (l := least (fst a) (fst b)) in *. set (u := greatest (snd a) (snd b)) in *.
  pose proof (least_below l (Float radix2 (2 ^ 30 - slope_most) (-30))) as L'.
  pose proof (greatest_above u (Float radix2 slope_most (-30))) as U'.
  assert (E1 : F2R (Float radix2 slope_most (-30)) = most)
    by (unfold most, F2R; cbn [Fnum Fexp]; simpl bpow; simpl pow; lra).
  assert (E2 : F2R (Float radix2 (2 ^ 30 - slope_most) (-30)) = (1 - most)%R)
    by (unfold most, F2R; cbn [Fnum Fexp]; rewrite minus_IZR; simpl; lra).
  rewrite E1 in U'. rewrite E2 in L'.
  assert (H : (p = far_left \/ q = far_right) /\ bends p q = false /\ (F2R l <= f' x <= F2R u)%R \/
    ((location p <= x <= location q) /\ slope_at p = f' (location p) /\ slope_at q = f' (location q) /\
      (bends p q = false -> if mask then bend_high <= location p \/ location q <= bend_low else
        (- bend_low <= location p \/ location q <= - bend_high)))%R).
  { destruct p as [|k| |], q as [|k'| |]; try easy;
      try (left; split; [auto|split; [unfold bends; now destruct mask|]]; cbn [slope_at] in *;
        destruct W as [W [j J]]; try discriminate; lra);
      right; (split; [split; [exact A|exact B]|split; [reflexivity|split; [reflexivity|]]]);
      unfold bends; clear - prec_positive; destruct mask; destruct bend_between as [lo hi] eqn:BB;
      unfold bend_low, bend_high; rewrite BB; cbn [fst snd location];
      intros N; apply negb_false_iff, orb_prop in N as [N|N]; try discriminate;
      apply Z.leb_le, (F2R_le radix2 _ _ (- place_bits)) in N; rewrite scaled, ?opp_IZR in N;
      unfold Rdiv in *; rewrite ?Ropp_mult_distr_l; auto. }
  destruct H as [(_ & -> & H)|(X & EP & EQ & H)]; [exact H|]. rewrite EP in SA. rewrite EQ in SB.
  pose proof bend_signs as Z0. destruct (slope_between _ _ _ X) as [Lo Hi].
  assert (P' : if mask then (x_star <= location p)%R else (location p <= x_star)%R)
    by (destruct p; trivial; rewrite P; cbn [location]; apply Rle_refl).
  assert (Q' : if mask then (x_star <= location q)%R else (location q <= x_star)%R)
    by (destruct q; trivial; rewrite Q; cbn [location]; apply Rle_refl).
  clear P Q M. destruct (bends p q); [|specialize (H eq_refl)]; destruct mask; cbn [fst snd]; lra.
Qed.

Lemma index_right above d i v : index above d = Some i -> in_format prec emax (nearest prec emax v) ->
  (if above then (v <= F2R d)%R else (F2R d <= v)%R) ->
  forall j, nearest prec emax v = F2R (numeral prec emax j) -> if above then j <= i else i <= j.
Proof.
  unfold index. intros H V B j J. set (y := rounded prec emax (Fnum d) (Fexp d) false) in *.
  destruct (dyadic_of y) as [w|] eqn:D; [|discriminate]. apply dyadic_of_correct in D as [F W].
  pose proof (stands_for_nearest prec emax _ _ _ prec_positive range F) as (_ & _ & N). fold y in N.
  replace (Float radix2 (Fnum d) (Fexp d)) with d in N by now destruct d.
  rewrite W in N.
  assert (R : forall a b, (a <= b)%R -> (nearest prec emax a <= nearest prec emax b)%R).
  { intros a b L. apply round_le; trivial. now apply fexp_correct. apply valid_rnd_N. }
  destruct above; destruct (less_dyadic _ _) eqn:L in H; try discriminate; injection H as <-;
    apply less_dyadic_correct in L; apply R in B; rewrite J, <- N in B.
  - apply Z.nlt_ge. intros O.
    pose proof (numeral_rises prec emax prec_positive (index_of y + 1) j ltac:(lia)). lra.
  - apply Z.nlt_ge. intros O.
    pose proof (numeral_rises prec emax prec_positive j (index_of y - 1) ltac:(lia)). lra.
Qed.

Lemma all_fit_each slope : forall count i, all_fit slope i count = true ->
  forall j, i <= j < i + Z.of_nat count -> fits slope j = true.
Proof.
  induction count as [|count IH]; intros i H j J; [lia|]. cbn [all_fit] in H. apply andb_prop in H as [A B].
  destruct (Z.eq_dec j i) as [-> |]; trivial. apply IH with (i + 1); trivial. lia.
Qed.

Lemma fits_correct slope i x : fits slope i = true -> between slope (f' x) -> Rle_bool x_star x = mask ->
  in_format prec emax (nearest prec emax (f x)) -> nearest prec emax (f x) = F2R (numeral prec emax i) ->
  total_error_at prec emax h (F2R T) x.
Proof.
  unfold fits. cbv zeta. intros H S M V E. set (d := numeral prec emax i) in *.
  assert (W : stands_for 24 128 (number (Fnum d) (Fexp d)) (nearest prec emax (f x))).
  { apply rounded_exact; try exact prec_32; try exact range_32.
    - rewrite E. now destruct d.
    - apply in_wider with prec emax; trivial; try lia; try exact prec_32; try exact range_32. }
  split; [now exists (number (Fnum d) (Fexp d))|]. intros z Z. unfold stored in Z. unfold within. rewrite M.
  apply kernel_within_correct with slope; trivial. destruct (Z.eqb_spec i 0) as [->|N].
  - rewrite E in Z. unfold d, numeral in Z. simpl in Z. rewrite F2R_0 in Z.
    destruct (stands_for_unique 24 128 z (S754_zero false) 0) as [-> |[Q' _]]; trivial; [now repeat split|
      now apply andb_prop in H|]. destruct z as [[]| | |]; try discriminate; now apply andb_prop in H.
  - destruct (stands_for_unique 24 128 z _ _ Z W) as [-> |[_ Q]]; trivial. exfalso.
    destruct W as (_ & _ & W). destruct (number (Fnum d) (Fexp d)) as [s| | |]; try discriminate. simpl in W.
    rewrite E in W. symmetry in W. unfold d, numeral in W. apply eq_0_F2R in W. simpl in W.
    assert (P : 0 < implicit_bit prec) by (apply Z.pow_pos_nonneg; red in prec_positive; lia).
    enough (0 < significand prec (Z.abs i)) by (destruct (Z.sgn_spec i) as [[? G]|[[? G]|[? G]]];
      rewrite G in W; lia).
    unfold significand. destruct (Z.ltb_spec (Z.abs i) (implicit_bit prec)); [lia|].
    pose proof (Z.mod_pos_bound (Z.abs i) (implicit_bit prec) P). lia.
Qed.

Lemma check_cell_correct p q a b x :
  known_at p = Some a -> known_at q = Some b -> check_cell p q a b = true ->
  after p x -> before q x -> Rle_bool x_star x = mask -> in_format prec emax (nearest prec emax (f x)) ->
  total_error_at prec emax h (F2R T) x.
Proof.
  intros KP KQ H A B M V. unfold check_cell in H. cbv zeta in H. repeat apply andb_prop in H as [H ?].
  apply known_at_correct in KP as [FP SP], KQ as [FQ SQ].
  pose proof (f_between p q x H H2 A B M) as F. unfold between in FP, FQ.
  destruct (index false _) as [i|] eqn:I; [|discriminate].
  destruct (numeral_of prec emax prec_positive range _ V) as (n & N & E).
  assert (L : i <= n).
  { refine (index_right false _ i (f x) I V _ n E). destruct mask; lra. }
  assert (G : exists j, n <= j /\ all_fit (slopes p q (snd a) (snd b)) i (Z.to_nat (j - i + 1)) = true).
  { assert (C : forall d, (f x <= F2R d)%R -> forall j, index true d = Some j -> n <= j)
      by (intros d D j J; exact (index_right true d j (f x) J V D n E)).
    destruct q; try (destruct (index true _) as [j|] eqn:J; [|discriminate]; exists j; split; [|assumption];
      apply C with (2 := J); destruct mask; [destruct F as [_ [F|F]]; [discriminate|lra]|lra]).
    exists (magnitudes prec emax - 1). split; [lia|assumption]. }
  destruct G as (j & J & G). apply fits_correct with (slopes p q (snd a) (snd b)) n; trivial.
  - apply all_fit_each with (1 := G). lia.
  - apply slopes_correct; trivial.
Qed.

Theorem check_places_correct p ps x : ps <> [] -> check_places p ps = true ->
  after p x -> before (last ps star) x -> Rle_bool x_star x = mask ->
  in_format prec emax (nearest prec emax (f x)) -> total_error_at prec emax h (F2R T) x.
Proof.
  unfold check_places. destruct (known_at p) as [a|] eqn:K; [|discriminate]. revert p a K.
  induction ps as [|q ps IH]; intros p a K N H A B M V; [easy|]. cbn [check_cells] in H.
  destruct (known_at q) as [b|] eqn:Q; [|discriminate]. apply andb_prop in H as [H R].
  destruct (before_or_after q x) as [O|O]; [now apply check_cell_correct with p q a b|].
  destruct ps as [|q' ps]; [now apply check_cell_correct with p q a b|].
  apply IH with q b; trivial; try easy.
Qed.

End Check.
