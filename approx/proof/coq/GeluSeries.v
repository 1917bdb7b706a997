(* GELU's Phi and f' at a point, to any precision, by integers. By the series of PowerSeries.v, Phi x - 1/2
   is phi 0 times the quotient of the two sums, to a relative precision that does not suffer from exp's decay.
   The integers below enclose both sums, and with them Phi and f', in units of 2^-p. *)

From Coq Require Import Reals ZArith Bool Lra Lia Psatz.
From Coquelicot Require Import Coquelicot.
From Interval Require Import Tactic.
From Outgrad Require Import Calculus Gelu PowerSeries Exhaustion.
Open Scope R_scope.

Lemma phi_below t : phi t <= phi 0.
Proof.
  unfold phi. apply Rmult_le_compat_r. left. apply Rinv_0_lt_compat, sqrt_2PI.
  destruct (Req_dec t 0) as [->|N]. lra.
  left. apply exp_increasing. nra.
Qed.

Theorem distribution_series n x : 0 <= x -> 0 <= Phi x - 1 / 2 - phi x * partial_sum 1 n x
  <= phi 0 * term 1 n x.
Proof.
  apply (rest_between phi derive_phi phi_pos phi_below 1 (fun x => Phi x - 1 / 2)). lia.
  - intros t. eapply derive_as. apply (derive_minus Phi (fun _ => 1 / 2)). apply derive_Phi.
    apply is_derive_const. unfold zero; simpl. ring.
  - rewrite Phi_0, term_0 by lia. replace (partial_sum 1 n 0) with 0. lra.
    induction n; simpl; trivial. rewrite <- IHn, term_0 by lia. ring.
Qed.

Section Enclosure.

(* x = m / 2^k; one is 1 in the unit of the integers; phi_0_low and phi_0_high enclose phi 0. *)
Variables one phi_0_low phi_0_high m k : Z.
Hypothesis one_positive : (0 < one)%Z.
Hypothesis phi_0_between : IZR phi_0_low <= phi 0 * IZR one <= IZR phi_0_high.
Hypothesis phi_0_low_positive : (0 <= phi_0_low)%Z.
Hypothesis m_positive : (0 <= m)%Z.
Hypothesis k_positive : (0 <= k)%Z.

Definition point : R := IZR m / IZR (2 ^ k).

Lemma point_pos : 0 <= point.
Proof. apply Rmult_le_pos. now apply IZR_le. left. apply Rinv_0_lt_compat, IZR_lt, power_pos, k_positive. Qed.

Lemma square_of_point : point * point = IZR (m * m) / IZR (2 ^ (2 * k)).
Proof.
  unfold point. replace (2 * k)%Z with (k + k)%Z by lia. rewrite Z.pow_add_r, !mult_IZR by trivial.
  field. apply IZR_neq. pose proof (power_pos k k_positive). lia.
Qed.

(* Bounds of Phi x - 1/2 and of f' x - 1/2. *)
Definition enclosure (fuel : nat) : option (Z * Z * Z * Z) :=
  (let x := m * one / 2 ^ k in
  let '(even_low, even_high, even_rest) := sums fuel (m * m) (2 * k) 0 one one 0 0 in
  let '(odd_low, odd_high, odd_rest) := sums fuel (m * m) (2 * k) 1 x (x + 1) 0 0 in
  let scale := phi_0_low * (one - even_rest) in
  let low := scale * odd_low / (even_high * one) in
  let high := phi_0_high * odd_high / even_low + 1 + (phi_0_high * odd_rest / one + 1) in
  if (0 <? even_low) && (0 <? even_high) && (even_rest <=? one) && (0 <=? odd_low)
  then Some (low, high, low + Z.shiftr (m * (scale / even_high)) k,
    high + (Z.shiftr (m * (phi_0_high * one / even_low + 1)) k + 1))
  else None)%Z.

Theorem enclosed fuel Phi_low Phi_high slope_low slope_high : enclosure fuel = Some (Phi_low, Phi_high,
  slope_low, slope_high) ->
  IZR Phi_low <= (Phi point - 1 / 2) * IZR one <= IZR Phi_high /\
    IZR slope_low <= (f' point - 1 / 2) * IZR one <= IZR slope_high.
Proof.
  unfold enclosure. pose proof point_pos as X. pose proof (power_pos k k_positive) as K.
  apply IZR_lt in K as K'.
  apply IZR_lt in one_positive as O. apply IZR_le in m_positive as M.
  apply IZR_le in phi_0_low_positive as C0.
  pose proof (sums_between one (m * m) (2 * k) point 0 fuel ltac:(nia) ltac:(lia) square_of_point
    0 one one 0 0) as E. simpl Z.of_nat in E.
  destruct (sums fuel (m * m) (2 * k) 0 one one 0 0) as [[el eh] er].
  destruct E as (n & E & ER). { unfold term; simpl; lra. } { simpl; lra. }
  pose proof (sums_between one (m * m) (2 * k) point 1 fuel ltac:(nia) ltac:(lia) square_of_point
    0 (m * one / 2 ^ k) (m * one / 2 ^ k + 1) 0 0) as D. simpl Z.of_nat in D.
  destruct (sums fuel (m * m) (2 * k) 1 (m * one / 2 ^ k) (m * one / 2 ^ k + 1) 0 0) as [[ol oh] or_].
  destruct D as (i & D & DR).
  { replace (term 1 0 point * IZR one) with (IZR (m * one) / IZR (2 ^ k))
      by (rewrite mult_IZR; unfold term, point; simpl; field; lra).
    split; [apply division_below|apply division_above]; trivial; right; field; lra. }
  { simpl; lra. }
  destruct ((0 <? el) && (0 <? eh) && (er <=? one) && (0 <=? ol))%Z eqn:B; [|discriminate].
  repeat apply andb_prop in B as [B ?]. apply Z.ltb_lt in B as B1, H1 as B2.
  apply Z.leb_le in H0 as B3, H as B4.
  apply IZR_lt in B1 as R1, B2 as R2. apply IZR_le in B3 as R3, B4 as R4.
  intros [= <- <- <- <-].
  pose proof (density_series phi derive_phi phi_pos phi_below n point X) as DE.
  pose proof (distribution_series i point X) as DS.
  pose proof (phi_pos point) as P. pose proof (phi_pos 0) as P0.
  pose proof (partial_sum_pos 1 i point X) as S0.
  set (sum_e := partial_sum 0 n point) in *. set (sum_o := partial_sum 1 i point) in *.
  set (u := IZR one) in *.
  set (te := term 0 n point) in *. set (to := term 1 i point) in *. set (c := phi 0) in *.
  set (g := phi point) in *.
  (* phi, from below and from above *)
  assert (U : 0 < u * u) by now apply Rmult_lt_0_compat.
  assert (GU : 0 < g * u) by now apply Rmult_lt_0_compat.
  assert (GL : IZR (phi_0_low * (one - er)) <= g * u * IZR eh).
  { rewrite mult_IZR, minus_IZR. fold u. apply Rle_trans with (c * u * (u - te * u)).
    apply Rmult_le_compat; lra.
    apply Rle_trans with (g * sum_e * (u * u)).
    - replace (c * u * (u - te * u)) with ((c - c * te) * (u * u)) by ring. apply Rmult_le_compat_r; lra.
    - replace (g * sum_e * (u * u)) with (g * u * (sum_e * u)) by ring. apply Rmult_le_compat_l; lra. }
  assert (GH : g * u * IZR el <= IZR (phi_0_high * one)).
  { rewrite mult_IZR. fold u. apply Rle_trans with (g * u * (sum_e * u)). apply Rmult_le_compat_l; lra.
    replace (g * u * (sum_e * u)) with (g * sum_e * u * u) by ring. apply Rmult_le_compat_r. lra.
    apply Rle_trans with (c * u); [apply Rmult_le_compat_r|]; lra. }
  assert (Q : IZR (phi_0_low * (one - er) * ol / (eh * one)) <= (Phi point - 1 / 2) * u <=
    IZR (phi_0_high * oh / el + 1 + (phi_0_high * or_ / one + 1))).
  { split.
    - apply division_below. lia. rewrite (mult_IZR (phi_0_low * _)), (mult_IZR eh). fold u.
      apply Rle_trans with (g * u * IZR eh * (sum_o * u)).
      + apply Rmult_le_compat; trivial; try lra. apply IZR_le. apply Z.mul_nonneg_nonneg; [|lia].
        now apply le_IZR.
      + replace ((Phi point - 1 / 2) * u * (IZR eh * u)) with ((Phi point - 1 / 2) * (u * u * IZR eh))
          by ring.
        replace (g * u * IZR eh * (sum_o * u)) with (g * sum_o * (u * u * IZR eh)) by ring.
        apply Rmult_le_compat_r; [apply Rmult_le_pos|]; lra.
    - rewrite plus_IZR. apply Rle_trans with (g * sum_o * u + c * to * u).
      { rewrite <- Rmult_plus_distr_r. apply Rmult_le_compat_r; lra. }
      apply Rplus_le_compat.
      + apply division_above; trivial. rewrite (mult_IZR phi_0_high oh). apply Rmult_le_reg_r with u; trivial.
        rewrite mult_IZR in GH. fold u in GH.
        replace (g * sum_o * u * IZR el * u) with (g * u * IZR el * (sum_o * u)) by ring.
        replace (IZR phi_0_high * IZR oh * u) with (IZR phi_0_high * u * IZR oh) by ring.
        apply Rmult_le_compat; try lra; apply Rmult_le_pos; lra.
      + apply division_above; trivial. rewrite mult_IZR. fold u.
        replace (c * to * u * u) with (c * u * (to * u)) by ring.
        assert (0 <= to) by now apply term_pos. apply Rmult_le_compat; try lra; apply Rmult_le_pos; lra. }
  split; trivial. rewrite !plus_IZR in *.
  replace ((f' point - 1 / 2) * u) with ((Phi point - 1 / 2) * u + IZR m * (g * u) / IZR (2 ^ k))
    by (unfold f'; fold g; unfold point at 3; field; lra).
  rewrite !Z.shiftr_div_pow2 by trivial. split; apply Rplus_le_compat; try lra.
  - apply division_below; trivial. rewrite mult_IZR. apply Rle_trans with (IZR m * (g * u));
      [|right; field; lra].
    apply Rmult_le_compat_l; trivial. now apply division_below.
  - rewrite <- (plus_IZR _ 1). apply division_above; trivial. rewrite mult_IZR.
    apply Rle_trans with (IZR m * (g * u)); [right; field; lra|].
    apply Rmult_le_compat_l; trivial. now apply division_above.
Qed.

End Enclosure.

(* ---- Enclosures for the two 16-bit formats --------------------------------------------------- *)

Definition enclosing_by (bits phi_0_low phi_0_high : Z) (terms : nat) (threshold tail_bits : Z) := {|
  unit_bits := bits; enclosed_at m k := enclosure (2 ^ bits) phi_0_low phi_0_high m k terms;
  threshold := threshold; tail_bits := tail_bits
|}.

Lemma sound bits low high terms a places :
  (0 < bits)%Z -> (0 <= low)%Z -> IZR low <= phi 0 * IZR (2 ^ bits) <= IZR high -> (0 < places)%Z ->
  (2 <= a)%Z -> IZR a * (2 / PI * exp (- (IZR a * IZR a) / 2)) <= / IZR (2 ^ places) ->
  IZR a * phi (IZR a) <= / IZR (2 ^ places) -> sound_enclosing (enclosing_by bits low high terms a places).
Proof.
  intros U L P V A F S. apply IZR_le in A as A'. pose proof (Phi_left (- IZR a) ltac:(lra)) as B.
  replace (- IZR a * - IZR a) with (IZR a * IZR a) in B by ring.
  split; [trivial|split; [trivial|split]].
  - intros m k b c b' c' M K Q. cbn [enclosed_at enclosing_by] in Q. apply enclosed in Q; trivial.
    apply power_pos. lia.
  - cbn [threshold tail_bits enclosing_by]. unfold f, f'. rewrite phi_opp. split; [lra|split; nra].
Qed.

Ltac prove_sound := apply sound; [reflexivity|discriminate|unfold phi; interval with (i_prec 300)|reflexivity|
  discriminate|unfold phi; interval with (i_prec 300)..].

(* bf16. From t = 14 on, f (-t) is nearer to 0 than half the least number, 2^-134, and just before that Phi
   (-t) is 2^-146. If t is an odd multiple of the least number, t/2 is midway between two numbers, and the
   rest of f t has to be seen to be positive. *)
Definition bf16_least := enclosing_by 144 8896710144153107311007564246272276034474882
  8896710144153107311007564246272276034474883 500 14 137.
Definition bf16_near := enclosing_by 72 1883951653567309427775 1883951653567309427776 500 14 137.
Definition bf16_far := enclosing_by 240
  704869997143266487884552325069224937446962560753387647160131400038351459
  704869997143266487884552325069224937446962560753387647160131400038351460 500 14 137.
(* f16, where half the least number is 2^-25. *)
Definition f16_all := enclosing_by 64 7359186146747302452 7359186146747302453 500 8 43.

Lemma bf16_least_sound : sound_enclosing bf16_least.
Proof. prove_sound. Qed.
Lemma bf16_near_sound : sound_enclosing bf16_near.
Proof. prove_sound. Qed.
Lemma bf16_far_sound : sound_enclosing bf16_far.
Proof. prove_sound. Qed.
Lemma f16_all_sound : sound_enclosing f16_all.
Proof. prove_sound. Qed.
