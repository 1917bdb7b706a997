(* The total error of the kernel at every number of a format, by a boolean function that Coq runs and whose
   answer `true` is proven to mean what it should: for x = t and x = - t, where t is the n-th absolute value
   of the format, y = f x rounded to the format, Rabs (evaluate_backward h y [x >= x_star] - f' x) <= T, for
   both zeros if y is 0. Bounds of f x decide y, because both of them are rounded to it. For t below a
   threshold the bounds come from the activation's series, and beyond it from the tails of f and f'. *)

From Coq Require Import Reals ZArith List Bool SpecFloat Lia Lra.
From Flocq Require Import Core IEEE754.BinarySingleNaN Calc.Operations.
From Outgrad Require Import Calculus Activation BranchPoint Format Kernel.
Import ListNotations.
Open Scope Z_scope.

Notation dyadic := (float radix2).

(* ---- What is claimed ------------------------------------------------------------------------- *)

Section Claim.

Variables prec emax : Z.

(* The fp32 number y stands for f x, rounded to the format. *)
Definition stored (x : R) (y : spec_float) : Prop := stands_for 24 128 y (nearest prec emax (f x)).

(* The kernel's result is finite and within T of f' x. *)
Definition within (h : header) (T : R) (x : R) (y : spec_float) : Prop :=
  let g := evaluate_backward h y (Rle_bool x_star x) in is_finite_SF g = true /\
    (Rabs (SF2R radix2 g - f' x) <= T)%R.

(* x's stored output exists, and for every fp32 number that it can be (either zero for 0) the kernel is within
   T. *)
Definition total_error_at (h : header) (T : R) (x : R) : Prop :=
  (exists y, stored x y) /\ forall y, stored x y -> within h T x y.

End Claim.

(* ---- The check ------------------------------------------------------------------------------- *)

(* How f and f' are enclosed: for t = m / 2^k below the threshold, an integer, `enclosed_at m k` has bounds of
   Phi t - 1/2 and of f' t - 1/2 in units of 2^-unit_bits; from there on f (-t) and f' (-t) are between
   -2^-tail_bits and 0. *)
Record enclosing := { unit_bits : Z; enclosed_at : Z -> Z -> option (Z * Z * Z * Z); threshold : Z;
  tail_bits : Z }.

Definition sound_enclosing (c : enclosing) : Prop :=
  0 < unit_bits c /\ 0 < tail_bits c /\
  (forall m k low high slope_low slope_high, 0 <= m -> 0 <= k ->
    enclosed_at c m k = Some (low, high, slope_low, slope_high) ->
    let t := (IZR m / IZR (2 ^ k))%R in
    (IZR low <= (Phi t - 1 / 2) * IZR (2 ^ unit_bits c) <= IZR high)%R /\
    (IZR slope_low <= (f' t - 1 / 2) * IZR (2 ^ unit_bits c) <= IZR slope_high)%R) /\
  (tail <= IZR (threshold c))%R /\ (- / IZR (2 ^ tail_bits c) <= f (- IZR (threshold c)))%R /\
  (- / IZR (2 ^ tail_bits c) <= f' (- IZR (threshold c)))%R.

(* low <= v <= high in the unit 2^exponent. *)
Record bounds := { low : Z; high : Z; at_exponent : Z }.
Definition bounded (b : bounds) (v : R) : Prop :=
  (F2R (Float radix2 (low b) (at_exponent b)) <= v <= F2R (Float radix2 (high b) (at_exponent b)))%R.

Definition at_most_dyadic (a b : dyadic) : bool := 0 <=? Fnum (Fminus b a).

Definition dyadic_of (x : spec_float) : option dyadic :=
  match x with
  | S754_zero _ => Some (Float radix2 0 0)
  | S754_finite s m e => Some (Float radix2 (cond_Zopp s (Zpos m)) e)
  | _ => None
  end.

Section Check.

Variables prec emax : Z.
Variables (c : enclosing) (h : header) (T : dyadic).

(* Bounds of f t, f (- t), f' t - 1/2 for t = m 2^e. *)
Definition bounds_at (m e : Z) : option (bounds * bounds * bounds) :=
  if (0 <=? e) || (threshold c * 2 ^ (- e) <=? m) then
    if (0 <=? e) && (m <? threshold c) then None
    else
      let u := Z.min e (- tail_bits c) in
      let t := m * 2 ^ (e - u) in
      let tiny := 2 ^ (- tail_bits c - u) in
      let half := 2 ^ (tail_bits c - 1) in
      Some (Build_bounds (t - tiny) t u, Build_bounds (- tiny) 0 u,
        Build_bounds half (half + 1) (- tail_bits c))
  else
    match enclosed_at c m (- e) with
    | Some (a, b, a', b') =>
      let half := 2 ^ (unit_bits c - 1) in
      let u := e - unit_bits c in
      Some (Build_bounds (m * (half + a)) (m * (half + b)) u,
        Build_bounds (m * (a - half)) (m * (b - half)) u,
            Build_bounds a' b' (- unit_bits c))
    | None => None
    end.

(* The kernel at y against f' x, which is within `slope`. *)
Definition kernel_within (slope : dyadic * dyadic) (mask : bool) (y : spec_float) : bool :=
  match dyadic_of (evaluate_backward h y mask) with
  | Some g => at_most_dyadic g (Fplus (fst slope) T) && at_most_dyadic (snd slope) (Fplus g T)
  | None => false
  end.

Definition check_side (output : bounds) (slope : dyadic * dyadic) (mask : bool) : bool :=
  let y := rounded prec emax (low output) (at_exponent output) false in
  let y' := rounded prec emax (high output) (at_exponent output) false in
  match dyadic_of y with
  | Some d =>
    is_finite_SF y' && SFeqb y y' &&
    (if is_zero y then kernel_within slope mask (S754_zero false) && kernel_within slope mask (S754_zero true)
     else kernel_within slope mask (number (Fnum d) (Fexp d)))
  | None => false
  end.

(* 1/2 + b and 1/2 - b, between the bounds b. *)
Definition slope_right (b : bounds) : dyadic * dyadic :=
  (Fplus (Float radix2 1 (-1)) (Float radix2 (low b) (at_exponent b)),
    Fplus (Float radix2 1 (-1)) (Float radix2 (high b) (at_exponent b))).
Definition slope_left (b : bounds) : dyadic * dyadic :=
  (Fminus (Float radix2 1 (-1)) (Float radix2 (high b) (at_exponent b)),
    Fminus (Float radix2 1 (-1)) (Float radix2 (low b) (at_exponent b))).

Definition near_star : dyadic * dyadic :=
  (Float radix2 (fst minus_x_star) (-50), Float radix2 (snd minus_x_star) (-50)).

(* [- t >= x_star]. *)
Definition mask_left (t : dyadic) : option bool :=
  if at_most_dyadic t (fst near_star) then Some true else if at_most_dyadic (snd near_star) t then Some false
    else None.

Definition check (n : Z) : bool :=
  let m := significand prec n in
  let e := exponent prec emax n in
  match bounds_at m e, mask_left (Float radix2 m e) with
  | Some (plus, minus, slope), Some mask => check_side plus (slope_right slope) true &&
    check_side minus (slope_left slope) mask
  | _, _ => false
  end.

(* ---- Its correctness ------------------------------------------------------------------------- *)

Hypothesis enclosing_sound : sound_enclosing c.
Context (prec_positive : Prec_gt_0 prec) (range : Prec_lt_emax prec emax).
Hypothesis narrower : prec <= 24 /\ emax <= 128 /\ emin 24 128 <= emin prec emax.

Lemma at_most_dyadic_correct a b : at_most_dyadic a b = true -> (F2R a <= F2R b)%R.
Proof.
  unfold at_most_dyadic. intros H. apply Z.leb_le in H. enough (0 <= F2R b - F2R a)%R by lra.
  rewrite <- F2R_minus.
  destruct (Fminus b a) as [m e]. now apply F2R_ge_0.
Qed.

Lemma dyadic_of_correct x d : dyadic_of x = Some d -> is_finite_SF x = true /\ SF2R radix2 x = F2R d.
Proof.
  destruct x as [s| | |s m e]; try discriminate; intros [= <-]; split; trivial. simpl. now rewrite F2R_0.
Qed.

Lemma kernel_within_correct slope mask y v :
  kernel_within slope mask y = true -> (F2R (fst slope) <= v <= F2R (snd slope))%R ->
  let g := evaluate_backward h y mask in is_finite_SF g = true /\ (Rabs (SF2R radix2 g - v) <= F2R T)%R.
Proof.
  unfold kernel_within. intros H V. cbv zeta. destruct (dyadic_of (evaluate_backward h y mask)) as [d|] eqn:D;
    [|discriminate].
  apply dyadic_of_correct in D as [F ->]. split; trivial. apply andb_prop in H as [A B].
  apply at_most_dyadic_correct in A, B. rewrite F2R_plus in A, B. apply Rabs_le. lra.
Qed.

(* |f x| <= |x|, so that no number of the format has an f x beyond it. *)
Lemma nearest_f x : in_format prec emax x -> in_format prec emax (nearest prec emax (f x)).
Proof.
  intros [G B]. split. apply generic_format_round; [now apply fexp_correct|apply valid_rnd_N].
  apply Rle_lt_trans with (2 := B). unfold nearest.
  apply abs_round_le_generic; [now apply fexp_correct|apply valid_rnd_N|now apply generic_format_abs|].
  unfold f. pose proof (Phi_within x) as P. rewrite Rabs_mult, (Rabs_pos_eq (Phi x)) by lra.
  pose proof (Rabs_pos x). nra.
Qed.

(* If both bounds are rounded to the same number, so is everything between them. *)
Lemma rounded_between output v :
  let y := rounded prec emax (low output) (at_exponent output) false in
  let y' := rounded prec emax (high output) (at_exponent output) false in
  is_finite_SF y = true -> is_finite_SF y' = true -> SFeqb y y' = true -> bounded output v ->
  stands_for prec emax y (nearest prec emax v).
Proof.
  intros y y' F F' E [L U].
  assert (N : forall k, is_finite_SF (rounded prec emax k (at_exponent output) false) = true ->
    stands_for prec emax (rounded prec emax k (at_exponent output) false)
      (nearest prec emax (F2R (Float radix2 k (at_exponent output))))).
  { intros k H. apply rounded_nearest; trivial. apply Rnot_le_lt. intros O.
    pose proof (binary_normalize_correct prec emax prec_positive range mode_NE k
      (at_exponent output) false) as C. cbv zeta in C.
    unfold nearest in O. rewrite Rlt_bool_false in C by exact O.
    rewrite (rounded_Flocq prec emax prec_positive range), C in H.
    unfold binary_overflow in H. simpl in H. discriminate. }
  pose proof (N _ F) as A. pose proof (N _ F') as B. fold y in A. fold y' in B.
  pose proof (equal_values prec emax _ _ _ _ A B E) as Q.
  replace (nearest prec emax v)
    with (nearest prec emax (F2R (Float radix2 (low output) (at_exponent output)))); trivial.
  assert (M : forall a b, (a <= b)%R -> (nearest prec emax a <= nearest prec emax b)%R).
  { intros a b H. apply round_le; trivial. now apply fexp_correct. apply valid_rnd_N. }
  apply M in L, U. apply Rle_antisym; trivial. now rewrite Q.
Qed.

Lemma check_side_correct output slope mask x :
  check_side output slope mask = true -> in_format prec emax x -> bounded output (f x) ->
  (F2R (fst slope) <= f' x <= F2R (snd slope))%R ->
  mask = Rle_bool x_star x -> total_error_at prec emax h (F2R T) x.
Proof.
  unfold check_side. set (y := rounded prec emax (low output) (at_exponent output) false).
  set (y' := rounded prec emax (high output) (at_exponent output) false). intros H X O S M.
  destruct (dyadic_of y) as [d|] eqn:D; [|discriminate]. apply dyadic_of_correct in D as [F V].
  apply andb_prop in H as [H K]. apply andb_prop in H as [F' E].
  pose proof (rounded_between output (f x) F F' E O) as Y. fold y in Y.
  destruct Y as (_ & _ & VY).
  assert (W : stands_for 24 128 (number (Fnum d) (Fexp d)) (nearest prec emax (f x))).
  { apply rounded_exact; try exact prec_32; try exact range_32.
    - destruct d. now rewrite <- VY, V.
    - apply in_wider with prec emax; trivial; try lia; try exact prec_32; try exact range_32.
      now apply nearest_f. }
  split; [now exists (number (Fnum d) (Fexp d))|]. intros z Z. unfold stored in Z. unfold within.
  rewrite <- M.
  apply kernel_within_correct with slope; trivial. destruct (is_zero y) eqn:Q.
  - assert (z = S754_zero false \/ z = S754_zero true) as [-> | ->]; [|now apply andb_prop in K..].
    destruct y as [s| | |]; try discriminate. simpl in VY. rewrite <- VY in Z.
    destruct (stands_for_unique 24 128 z (S754_zero false) 0) as [-> |[Q' _]]; trivial;
      [now repeat split|now left|].
    destruct z as [[]| | |]; try discriminate; auto.
  - destruct (stands_for_unique 24 128 z _ _ Z W) as [-> |[Q' _]]; trivial. exfalso.
    destruct z; try discriminate. destruct Z as (_ & _ & Z). simpl in Z.
    destruct y as [| | |sy my ey]; try discriminate. rewrite <- Z in VY. simpl in VY. apply eq_0_F2R in VY.
    now destruct sy.
Qed.

Lemma mask_left_correct t mask : mask_left t = Some mask -> mask = Rle_bool x_star (- F2R t).
Proof.
  pose proof x_star_between as X. unfold mask_left.
  assert (A : (F2R (fst near_star) < - x_high)%R) by (unfold F2R, near_star, x_high; simpl; lra).
  assert (B : (- x_low < F2R (snd near_star))%R) by (unfold F2R, near_star, x_low; simpl; lra).
  destruct (at_most_dyadic t (fst near_star)) eqn:L.
  - intros [= <-]. apply at_most_dyadic_correct in L. rewrite Rle_bool_true; trivial. lra.
  - destruct (at_most_dyadic (snd near_star) t) eqn:U; [|discriminate]. intros [= <-].
    apply at_most_dyadic_correct in U.
    rewrite Rle_bool_false; trivial. lra.
Qed.

Lemma power_IZR u : 0 <= u -> IZR (2 ^ u) = bpow radix2 u.
Proof. exact (IZR_Zpower radix2 u). Qed.

Lemma half_power u : 0 < u -> IZR (2 ^ u) = (2 * IZR (2 ^ (u - 1)))%R.
Proof. intros H. rewrite <- mult_IZR, <- Z.pow_succ_r by lia. do 2 f_equal. lia. Qed.

Lemma bounds_at_correct m e plus minus slope (t := F2R (Float radix2 m e)) :
  0 <= m -> bounds_at m e = Some (plus, minus, slope) ->
  bounded plus (f t) /\ bounded minus (f (- t)) /\ bounded slope (f' t - 1 / 2).
Proof.
  intros Hm. destruct enclosing_sound as (U & L & C & A2 & F0 & F0'). unfold bounds_at.
  destruct ((0 <=? e) || (threshold c * 2 ^ (- e) <=? m)) eqn:Far.
  - destruct ((0 <=? e) && (m <? threshold c)) eqn:Less; [discriminate|]. intros [= <- <- <-].
    assert (A0 : (0 <= IZR (threshold c))%R) by lra.
    assert (H : (IZR (threshold c) <= t)%R).
    { unfold t. destruct (Z.leb_spec 0 e) as [E|E]; simpl in Far, Less.
      - apply Z.ltb_ge in Less. unfold F2R; simpl. rewrite <- (Rmult_1_r (IZR (threshold c))).
        apply Rmult_le_compat; try lra. now apply IZR_le. apply (bpow_le radix2 0); lia.
      - apply Z.leb_le, IZR_le in Far. rewrite mult_IZR in Far. rewrite power_IZR in Far by lia.
        unfold F2R; simpl. apply Rmult_le_reg_r with (bpow radix2 (- e)). apply bpow_gt_0.
        rewrite Rmult_assoc, <- bpow_plus, Z.add_opp_diag_r. simpl. lra. }
    set (a := IZR (threshold c)) in *.
    destruct (left_tail (- a) (- t)) as [F F']; try lra. pose proof (f'_opp t) as O'.
    rewrite power_IZR, <- bpow_opp in F0, F0' by lia.
    set (u := Z.min e (- tail_bits c)).
    assert (T1 : F2R (Float radix2 (m * 2 ^ (e - u)) u) = t).
    { unfold t. rewrite (F2R_change_exp radix2 u m e) by lia. reflexivity. }
    assert (T2 : (F2R (Float radix2 (2 ^ (- tail_bits c - u)) u) = bpow radix2 (- tail_bits c))%R).
    { unfold F2R; simpl Fnum; simpl Fexp. rewrite power_IZR by lia. rewrite <- bpow_plus. f_equal. lia. }
    assert (E : F2R (Float radix2 (2 ^ (tail_bits c - 1)) (- tail_bits c)) = (1 / 2)%R).
    { unfold F2R; simpl. rewrite power_IZR, <- bpow_plus by lia. replace (tail_bits c - 1 + - tail_bits c)
        with (-1) by ring. simpl. lra. }
    pose proof (f_opp t) as FO. unfold bounded; simpl. repeat split.
    + unfold F2R in *; simpl in *. rewrite minus_IZR. lra.
    + rewrite T1. lra.
    + unfold F2R in *; simpl in *. rewrite opp_IZR. lra.
    + rewrite F2R_0. lra.
    + rewrite E. lra.
    + unfold F2R in *; simpl in *. rewrite plus_IZR. lra.
  - destruct (enclosed_at c m (- e)) as [[[[p q] p'] q']|] eqn:Q; [|discriminate]. intros [= <- <- <-].
    apply orb_false_elim in Far as [E _]. apply Z.leb_gt in E.
    apply C in Q; try lia. cbv zeta in Q.
    replace (IZR m / IZR (2 ^ - e))%R with t in Q
      by (unfold t, F2R; simpl; rewrite power_IZR, bpow_opp by lia; unfold Rdiv; now rewrite Rinv_inv).
     pose proof (half_power (unit_bits c) U) as HP. rewrite power_IZR in Q, HP by lia.
    assert (PU : (bpow radix2 (unit_bits c) * bpow radix2 (- unit_bits c) = 1)%R)
      by (rewrite <- bpow_plus, Z.add_opp_diag_r; reflexivity).
    pose proof (bpow_gt_0 radix2 (- unit_bits c)) as PO.
    set (w := bpow radix2 (- unit_bits c)) in *. set (W := bpow radix2 (unit_bits c)) in *.
    assert (T0 : (0 <= t)%R) by (apply F2R_ge_0; trivial).
    assert (TE : forall k, F2R (Float radix2 (m * k) (e - unit_bits c)) = (t * (IZR k * w))%R).
    { intros k. unfold t, F2R; simpl. rewrite mult_IZR. unfold Zminus. rewrite bpow_plus. fold w. ring. }
    assert (D : forall v, v = (v * W * w)%R) by (intros v; rewrite Rmult_assoc, PU; ring).
    destruct Q as [[Q1 Q2] [Q3 Q4]]. apply (Rmult_le_compat_r w) in Q1, Q2, Q3, Q4; try lra.
    rewrite <- D in Q1, Q2, Q3, Q4.
    assert (HW : (IZR (2 ^ (unit_bits c - 1)) * w = 1 / 2)%R) by (rewrite HP in PU; lra).
    unfold bounded; simpl. rewrite !TE, !plus_IZR, !minus_IZR, !Rmult_plus_distr_r, !Rmult_minus_distr_r, HW,
      f_opp. unfold f.
    unfold F2R; simpl. fold w. repeat split; trivial; nra.
Qed.

Theorem check_correct n x : 0 <= n -> check n = true -> in_format prec emax x ->
  Rabs x = magnitude prec emax n ->
  total_error_at prec emax h (F2R T) x.
Proof.
  intros Hn H X E. unfold check in H. set (m := significand prec n) in *.
  set (e := exponent prec emax n) in *.
  destruct (bounds_at m e) as [[[plus minus] slope]|] eqn:B; [|discriminate].
  destruct (mask_left (Float radix2 m e)) as [mask|] eqn:M; [|discriminate].
  assert (Hm : 0 <= m) by now apply significand_positive.
  apply bounds_at_correct in B as (R & L & S); trivial. apply mask_left_correct in M.
  apply andb_prop in H as [HR HL].
  unfold magnitude in E. fold m e in E. set (t := F2R (Float radix2 m e)) in *. unfold bounded in S.
  assert (T0 : (0 <= t)%R) by (apply F2R_ge_0; trivial).
  assert (H2 : F2R (Float radix2 1 (-1)) = (1 / 2)%R) by (unfold F2R; simpl; lra).
  destruct (Rle_dec 0 x) as [P|P].
  - rewrite Rabs_pos_eq in E by trivial. subst x. apply check_side_correct with plus (slope_right slope) true;
      trivial.
    + unfold slope_right; simpl. rewrite !F2R_plus, H2. lra.
    + rewrite Rle_bool_true; trivial. pose proof x_star_negative. lra.
  - rewrite Rabs_left in E by lra. assert (x = (- t)%R) by lra. subst x.
    apply check_side_correct with minus (slope_left slope) mask; trivial.
    unfold slope_left; simpl. rewrite !F2R_minus, H2, f'_opp. lra.
Qed.

End Check.

(* ---- One number of the format ---------------------------------------------------------------- *)

Section Format.

Variables (prec emax : Z) (h : header) (T : dyadic).

(* The check holds at the n-th absolute value, with one of several ways to enclose f. *)
Definition checked (n : Z) : Prop := exists c, sound_enclosing c /\ check prec emax c h T n = true.

Context (prec_positive : Prec_gt_0 prec) (range : Prec_lt_emax prec emax).
Hypothesis narrower : prec <= 24 /\ emax <= 128 /\ emin 24 128 <= emin prec emax.

Theorem total_error_checked n x :
  0 <= n -> checked n -> in_format prec emax x -> Rabs x = magnitude prec emax n ->
    total_error_at prec emax h (F2R T) x.
Proof. intros N (c & S & H). now apply check_correct with c. Qed.

End Format.
