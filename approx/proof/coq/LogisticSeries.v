(* The logistic function at a point, to any precision, by integers. With x^2/2 = t, the first series of
   PowerSeries.v is that of exp t, and sigma t - 1/2 = (exp t - 1) / (2 (exp t + 1)) has the relative
   precision of the sum. *)

From Coq Require Import Reals ZArith Bool Lra Lia Psatz.
From Coquelicot Require Import Coquelicot.
From Outgrad Require Import Calculus Logistic PowerSeries.
Open Scope R_scope.

Definition weight (x : R) := exp (- (x * x) / 2).

Lemma derive_weight t : is_derive weight t (- t * weight t).
Proof. unfold weight. auto_derive; trivial. fold (- (t * t) / 2). field. Qed.

Lemma weight_pos t : 0 < weight t.
Proof. apply exp_pos. Qed.

Lemma weight_below t : weight t <= weight 0.
Proof.
  unfold weight. destruct (Req_dec t 0) as [->|N]. lra. left. apply exp_increasing. nra.
Qed.

(* From a to b sigma rises by a quarter of their distance at most. *)
Lemma sigma_rises a b : a <= b -> sigma a <= sigma b <= sigma a + (b - a) / 4.
Proof.
  intros H. destruct (mean_value sigma (fun t => sigma t * (1 - sigma t)) a b derive_sigma) as (c & _ & E).
  pose proof (sigma'_pos c). pose proof (Rle_0_sqr (sigma c - 1 / 2)) as S. unfold Rsqr in S. nra.
Qed.

(* Bounds of sigma t - 1/2 and of sigma t - 1/2 + s sigma' t, for t between m and m' and s between i and i' in
   units of 2^-k; one, a multiple of 4, is 1 in the unit of the bounds. *)
Definition enclosure (one : Z) (fuel : nat) (k m m' i i' : Z) : option (Z * Z * Z * Z) :=
  (let '(sum_low, sum_high, rest) := sums fuel (2 * m) k 0 one one 0 0 in
  let low := (sum_low - one) * one / ((sum_low + one) * 2) in
  let high := (sum_high - one + rest) * one / ((sum_high + one - rest) * 2) + 1
    + (Z.shiftr ((m' - m) * (one / 4)) k + 1) in
  if (one <=? sum_low) && (rest <=? one)
  then Some (low, high, low + Z.shiftr (i * Z.max 0 (one / 4 - (high * high / one + 1))) k,
    high + (Z.shiftr (i' * (one / 4 - low * low / one)) k + 1))
  else None)%Z.

Theorem enclosed one fuel k m m' i i' t s low high slope_low slope_high :
  (0 < one)%Z -> (one mod 4 = 0)%Z -> (0 <= m)%Z -> (0 <= i)%Z -> (0 <= k)%Z ->
  IZR m <= t * IZR (2 ^ k) <= IZR m' -> IZR i <= s * IZR (2 ^ k) <= IZR i' ->
  enclosure one fuel k m m' i i' = Some (low, high, slope_low, slope_high) ->
  IZR low <= (sigma t - 1 / 2) * IZR one <= IZR high /\
    IZR slope_low <= (sigma t - 1 / 2 + s * (sigma t * (1 - sigma t))) * IZR one <= IZR slope_high.
Proof.
  intros O O4 M I K T S'. unfold enclosure. pose proof (power_pos k K) as P. apply IZR_lt in O as O', P as P'.
  set (t0 := IZR m / IZR (2 ^ k)). assert (T0 : 0 <= t0).
  { apply Rmult_le_pos. now apply IZR_le. left. now apply Rinv_0_lt_compat. }
  set (x := sqrt (2 * t0)). assert (X : x * x = 2 * t0) by (apply sqrt_sqrt; lra).
  pose proof (sums_between one (2 * m) k x 0 fuel) as S. simpl Z.of_nat in S.
  specialize (S ltac:(lia) K ltac:(rewrite X, mult_IZR; unfold t0; field; lra) 0%nat one one 0%Z 0%Z).
  simpl Z.of_nat in S. destruct (sums fuel (2 * m) k 0 one one 0 0) as [[sl sh] r].
  destruct S as (n & [L H] & R). { unfold term; simpl; lra. } { simpl; lra. }
  destruct ((one <=? sl) && (r <=? one))%Z eqn:B; [|discriminate]. apply andb_prop in B as [B1 B2].
  apply Z.leb_le in B1, B2. apply IZR_le in B1 as R1, B2 as R2. intros [= <- <- <- <-].
  pose proof (density_series weight derive_weight weight_pos weight_below n x (sqrt_pos _)) as [D1 D2].
  assert (W : weight x = exp (- t0)) by (unfold weight; rewrite X; f_equal; field).
  assert (W0 : weight 0 = 1) by (unfold weight; rewrite <- exp_0; f_equal; field).
  rewrite W, W0 in *. pose proof (exp_pos (- t0)) as E. set (e := exp (- t0)) in *.
  set (sum := partial_sum 0 n x) in *. set (q := term 0 n x) in *. set (u := IZR one) in *.
  assert (P0 : (sigma t0 - 1 / 2) * (2 * (1 + e)) = 1 - e) by (unfold sigma; fold e; field; lra).
  assert (E1 : e * IZR sl <= u). { apply Rle_trans with (e * (sum * u)); [nra|]. nra. }
  assert (E2 : u - IZR r <= e * IZR sh). { apply Rle_trans with (e * (sum * u)); [nra|nra]. }
  set (d := sigma t0 - 1 / 2) in *.
  set (low := ((sl - one) * one / ((sl + one) * 2))%Z).
  set (high0 := ((sh - one + r) * one / ((sh + one - r) * 2) + 1)%Z).
  assert (SH : u <= IZR sh) by lra. assert (SH' : (one <= sh)%Z) by now apply le_IZR.
  assert (Q : IZR low <= d * u <= IZR high0).
  { split.
    - apply division_below. lia. rewrite !mult_IZR, plus_IZR, minus_IZR. fold u.
      enough (IZR sl - u <= d * 2 * (IZR sl + u)) by nra.
      apply Rmult_le_reg_r with (1 + e); [lra|].
      replace (d * 2 * (IZR sl + u) * (1 + e)) with (d * (2 * (1 + e)) * (IZR sl + u)) by ring.
      rewrite P0. lra.
    - apply division_above. lia. rewrite !mult_IZR, minus_IZR, !plus_IZR, minus_IZR. fold u.
      enough (d * 2 * (IZR sh + u - IZR r) <= IZR sh - u + IZR r) by nra.
      apply Rmult_le_reg_r with (1 + e); [lra|].
      replace (d * 2 * (IZR sh + u - IZR r) * (1 + e)) with (d * (2 * (1 + e)) * (IZR sh + u - IZR r))
        by ring.
      rewrite P0. lra. }
  assert (U4 : IZR (one / 4) = u / 4).
  { unfold u. rewrite (Z_div_exact_full_2 one 4) at 2 by lia. rewrite mult_IZR. field. }
  set (high := (high0 + (Z.shiftr ((m' - m) * (one / 4)) k + 1))%Z).
  assert (T1 : t0 <= t).
  { apply Rmult_le_reg_r with (IZR (2 ^ k)); trivial. unfold t0, Rdiv. rewrite Rmult_assoc, Rinv_l; lra. }
  pose proof (sigma_rises t0 t T1) as [G G']. set (d' := sigma t - 1 / 2).
  assert (Q' : IZR low <= d' * u <= IZR high).
  { unfold high. rewrite plus_IZR, Z.shiftr_div_pow2 by trivial. split; [unfold d, d' in *; nra|].
    enough ((t - t0) / 4 * u <= IZR ((m' - m) * (one / 4) / 2 ^ k + 1)) by (unfold d, d' in *; nra).
    apply division_above; trivial. rewrite mult_IZR, minus_IZR, U4.
    replace ((t - t0) / 4 * u * IZR (2 ^ k)) with ((t * IZR (2 ^ k) - IZR m) * (u / 4))
      by (unfold t0; field; lra).
    apply Rmult_le_compat_r; lra. }
  assert (LP : (0 <= low)%Z) by (apply Z.div_pos; nia). apply IZR_le in LP as LP'.
  split; trivial. destruct Q' as [QL QH]. assert (D0 : 0 <= d') by nra. apply IZR_le in I as I'.
  set (v := (1 / 4 - d' * d') * u).
  assert (F : sigma t * (1 - sigma t) = 1 / 4 - d' * d') by (unfold d'; field).
  assert (V : 0 <= v).
  { pose proof (sigma'_pos t) as V. rewrite F in V. apply Rmult_le_pos; lra. }
  replace ((d' + s * (sigma t * (1 - sigma t))) * u) with (d' * u + s * v) by (rewrite F; unfold v; ring).
  assert (E3 : s * v * IZR (2 ^ k) = s * IZR (2 ^ k) * v) by ring.
  rewrite !plus_IZR, !Z.shiftr_div_pow2 by trivial. split; apply Rplus_le_compat; trivial.
  - apply division_below; trivial. rewrite E3, mult_IZR.
    apply Rmult_le_compat; try apply S'; trivial. apply IZR_le. lia.
    destruct (Z.max_spec 0 (one / 4 - (high * high / one + 1))) as [[_ ->]|[_ ->]]; trivial.
    rewrite minus_IZR, U4. unfold v. enough (d' * d' * u <= IZR (high * high / one + 1)) by lra.
    apply division_above; trivial. rewrite mult_IZR. fold u. nra.
  - rewrite <- (plus_IZR _ 1). apply division_above; trivial. rewrite E3, mult_IZR.
    apply Rmult_le_compat; try apply S'; trivial. lra. rewrite minus_IZR, U4. unfold v.
    enough (IZR (low * low / one) <= d' * d' * u) by lra. apply division_below; trivial.
    rewrite mult_IZR. fold u. nra.
Qed.

Lemma unit_right bits : (2 <= bits)%Z -> (0 < 2 ^ bits)%Z /\ (2 ^ bits mod 4 = 0)%Z.
Proof.
  intros B. split. apply power_pos. lia. replace bits with (bits - 2 + 2)%Z by ring.
  rewrite Z.pow_add_r by lia. apply Z.mod_mul. lia.
Qed.
