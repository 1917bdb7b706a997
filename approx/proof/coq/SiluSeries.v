(* SiLU's Phi and f' at a point, to any precision, by integers. With x^2/2 = t, the first series of
   PowerSeries.v is that of exp t, and Phi t - 1/2 = (exp t - 1) / (2 (exp t + 1)) has the relative precision
   of the sum. *)

From Coq Require Import Reals ZArith Bool Lra Lia Psatz.
From Coquelicot Require Import Coquelicot.
From Interval Require Import Tactic.
From Outgrad Require Import Calculus Silu PowerSeries Exhaustion.
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

(* Bounds of Phi t - 1/2 and of f' t - 1/2 for t = m / 2^k; one, a multiple of 4, is 1 in their unit. *)
Definition enclosure (one : Z) (fuel : nat) (m k : Z) : option (Z * Z * Z * Z) :=
  (let '(sum_low, sum_high, rest) := sums fuel (2 * m) k 0 one one 0 0 in
  let low := (sum_low - one) * one / ((sum_low + one) * 2) in
  let high := (sum_high - one + rest) * one / ((sum_high + one - rest) * 2) + 1 in
  if (one <=? sum_low) && (rest <=? one)
  then Some (low, high, low + Z.shiftr (m * (one / 4 - (high * high / one + 1))) k,
    high + (Z.shiftr (m * (one / 4 - low * low / one)) k + 1))
  else None)%Z.

Theorem enclosed one fuel m k low high slope_low slope_high (t := IZR m / IZR (2 ^ k)) :
  (0 < one)%Z -> (one mod 4 = 0)%Z -> (0 <= m)%Z -> (0 <= k)%Z ->
  enclosure one fuel m k = Some (low, high, slope_low, slope_high) ->
  IZR low <= (Phi t - 1 / 2) * IZR one <= IZR high /\
    IZR slope_low <= (f' t - 1 / 2) * IZR one <= IZR slope_high.
Proof.
  intros O O4 M K. unfold enclosure. pose proof (power_pos k K) as P. apply IZR_lt in O as O', P as P'.
  assert (T0 : 0 <= t).
  { apply Rmult_le_pos. now apply IZR_le. left. now apply Rinv_0_lt_compat. }
  set (x := sqrt (2 * t)). assert (X : x * x = 2 * t) by (apply sqrt_sqrt; lra).
  pose proof (sums_between one (2 * m) k x 0 fuel) as S. simpl Z.of_nat in S.
  specialize (S ltac:(lia) K ltac:(rewrite X, mult_IZR; unfold t; field; lra) 0%nat one one 0%Z 0%Z).
  simpl Z.of_nat in S. destruct (sums fuel (2 * m) k 0 one one 0 0) as [[sl sh] r].
  destruct S as (n & [L H] & R). { unfold term; simpl; lra. } { simpl; lra. }
  destruct ((one <=? sl) && (r <=? one))%Z eqn:B; [|discriminate]. apply andb_prop in B as [B1 B2].
  apply Z.leb_le in B1, B2. apply IZR_le in B1 as R1, B2 as R2. intros [= <- <- <- <-].
  pose proof (density_series weight derive_weight weight_pos weight_below n x (sqrt_pos _)) as [D1 D2].
  assert (W : weight x = exp (- t)) by (unfold weight; rewrite X; f_equal; field).
  assert (W0 : weight 0 = 1) by (unfold weight; rewrite <- exp_0; f_equal; field).
  rewrite W, W0 in *. pose proof (exp_pos (- t)) as E. set (e := exp (- t)) in *.
  set (s := partial_sum 0 n x) in *. set (q := term 0 n x) in *. set (u := IZR one) in *.
  assert (P0 : (Phi t - 1 / 2) * (2 * (1 + e)) = 1 - e) by (unfold Phi; fold e; field; lra).
  assert (E1 : e * IZR sl <= u). { apply Rle_trans with (e * (s * u)); [nra|]. nra. }
  assert (E2 : u - IZR r <= e * IZR sh). { apply Rle_trans with (e * (s * u)); [nra|nra]. }
  set (d := Phi t - 1 / 2) in *.
  set (low := ((sl - one) * one / ((sl + one) * 2))%Z).
  set (high := ((sh - one + r) * one / ((sh + one - r) * 2) + 1)%Z).
  assert (SH : u <= IZR sh) by lra. assert (SH' : (one <= sh)%Z) by now apply le_IZR.
  assert (Q : IZR low <= d * u <= IZR high).
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
  assert (LP : (0 <= low)%Z) by (apply Z.div_pos; nia). apply IZR_le in LP as LP'.
  split; trivial. destruct Q as [QL QH].
  assert (U4 : IZR (one / 4) = u / 4).
  { unfold u. rewrite (Z_div_exact_full_2 one 4) at 2 by lia. rewrite mult_IZR. field. }
  assert (F : (f' t - 1 / 2) * u = d * u + IZR m * ((1 / 4 - d * d) * u) / IZR (2 ^ k)).
  { unfold f', phi. replace (Phi t) with (1 / 2 + d) by (unfold d; ring). unfold t. field. lra. }
  rewrite F, !plus_IZR, !Z.shiftr_div_pow2 by trivial. apply IZR_le in M as M'.
  assert (D0 : 0 <= d) by nra.
  split; apply Rplus_le_compat; trivial.
  - apply division_below; trivial. rewrite mult_IZR.
    replace (IZR m * ((1 / 4 - d * d) * u) / IZR (2 ^ k) * IZR (2 ^ k)) with (IZR m * ((1 / 4 - d * d) * u))
      by (field; lra).
    apply Rmult_le_compat_l; trivial. rewrite minus_IZR, U4.
    enough (d * d * u <= IZR (high * high / one + 1)) by lra. apply division_above; trivial.
    rewrite mult_IZR. fold u. nra.
  - rewrite <- (plus_IZR _ 1). apply division_above; trivial. rewrite mult_IZR.
    replace (IZR m * ((1 / 4 - d * d) * u) / IZR (2 ^ k) * IZR (2 ^ k)) with (IZR m * ((1 / 4 - d * d) * u))
      by (field; lra).
    apply Rmult_le_compat_l; trivial. rewrite minus_IZR, U4.
    enough (IZR (low * low / one) <= d * d * u) by lra. apply division_below; trivial.
    rewrite mult_IZR. fold u. nra.
Qed.

(* ---- Enclosures for the two 16-bit formats --------------------------------------------------- *)

Definition enclosing_by (bits : Z) (terms : nat) (threshold tail_bits : Z) : enclosing := {|
  unit_bits := bits; enclosed_at := enclosure (2 ^ bits) terms; threshold := threshold;
  tail_bits := tail_bits
|}.

Lemma sound bits terms a places : (2 <= bits)%Z -> (0 < places)%Z -> tail <= IZR a ->
  - / IZR (2 ^ places) <= f (- IZR a) -> - / IZR (2 ^ places) <= f' (- IZR a) ->
  sound_enclosing (enclosing_by bits terms a places).
Proof.
  intros U P A F S. split; [cbn [unit_bits enclosing_by]; lia|split; [trivial|split; [|now split]]].
  intros m k b c b' c' M K Q. cbn [enclosed_at enclosing_by] in Q. apply enclosed with (5 := Q);
    trivial. apply power_pos. lia.
  cbn [unit_bits enclosing_by]. replace bits with (bits - 2 + 2)%Z by ring. rewrite Z.pow_add_r by lia.
  apply Z.mod_mul. lia.
Qed.

Ltac prove_sound := apply sound; [discriminate|reflexivity|lra|
  unfold f', f, phi, Phi; interval with (i_prec 300)..].

(* bf16, whose least number is 2^-133; from t = 100 on, f (-t) is nearer to 0 than half of it. *)
Definition bf16_least := enclosing_by 144 500 100 137.
Definition bf16_to_4 := enclosing_by 72 500 100 137.
Definition bf16_from_4 := enclosing_by 240 500 100 137.
(* f16, where half the least number is 2^-25. *)
Definition f16_all := enclosing_by 64 500 24 30.

Lemma bf16_least_sound : sound_enclosing bf16_least.
Proof. prove_sound. Qed.
Lemma bf16_to_4_sound : sound_enclosing bf16_to_4.
Proof. prove_sound. Qed.
Lemma bf16_from_4_sound : sound_enclosing bf16_from_4.
Proof. prove_sound. Qed.
Lemma f16_all_sound : sound_enclosing f16_all.
Proof. prove_sound. Qed.
