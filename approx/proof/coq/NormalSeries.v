(* Phi and phi at a point, to any precision, by integers. With the terms of two series of positive terms,

     1, x^2/2, x^4/(2 4), x^6/(2 4 6), ...   and   x, x^3/3, x^5/(3 5), x^7/(3 5 7), ...,

   phi x times the sum of the first is phi 0, and phi x times the sum of the second is Phi x - 1/2 (Abramowitz
   and Stegun 26.2.11). What the first n terms leave out lies between 0 and phi 0 times the next term, because
   the derivative of what they leave out is phi times the derivative of that term. So Phi x - 1/2 is phi 0
   times the quotient of the two sums, to a relative precision that does not suffer from exp's decay. The
   integers below enclose both sums, and with them Phi and f', in units of 2^-p. *)

From Coq Require Import Reals ZArith Bool Lra Lia Psatz.
From Coquelicot Require Import Coquelicot.
From Outgrad Require Import Calculus Gelu.
Open Scope R_scope.

(* ---- The series ------------------------------------------------------------------------------ *)

(* first is 0 for the first series and 1 for the second. *)
Fixpoint coefficient (first n : nat) : R :=
  match n with O => 1 | S k => coefficient first k / IZR (Z.of_nat (first + 2 * n)) end.
Definition term (first n : nat) (x : R) : R := coefficient first n * x ^ (first + 2 * n).
Fixpoint partial_sum (first n : nat) (x : R) : R :=
  match n with O => 0 | S k => partial_sum first k x + term first k x end.
Definition term' (first n : nat) (x : R) : R := match n with O => INR first | S k => x * term first k x end.

Lemma coefficient_pos first n : 0 < coefficient first n.
Proof. induction n; simpl coefficient. lra. apply Rdiv_lt_0_compat; trivial. apply IZR_lt. lia. Qed.

Lemma term_pos first n x : 0 <= x -> 0 <= term first n x.
Proof. intros H. apply Rmult_le_pos. left. apply coefficient_pos. now apply pow_le. Qed.

Lemma partial_sum_pos first n x : 0 <= x -> 0 <= partial_sum first n x.
Proof. intros H. induction n; simpl. lra. pose proof (term_pos first n x H). lra. Qed.

Lemma term'_pos first n x : 0 <= x -> 0 <= term' first n x.
Proof. intros H. destruct n; simpl. apply pos_INR. apply Rmult_le_pos; trivial. now apply term_pos. Qed.

Lemma term_next first n x : term first (S n) x
  = term first n x * (x * x) / IZR (Z.of_nat (first + 2 * n) + 2).
Proof.
  unfold term. cbn [coefficient]. replace (Z.of_nat (first + 2 * S n)) with (Z.of_nat (first + 2 * n) + 2)%Z
    by lia.
  replace (first + 2 * S n)%nat with (S (S (first + 2 * n))) by lia. simpl pow. field. apply IZR_neq. lia.
Qed.

Lemma derive_term first n x : (first <= 1)%nat -> is_derive (term first n) x (term' first n x).
Proof.
  intros H. destruct n as [|k].
  - unfold term; simpl. destruct first as [|[|first]]; [..|lia]; simpl; auto_derive; trivial; ring.
  - unfold term. eapply derive_as. apply (is_derive_scal (fun x => x ^ (first + 2 * S k))).
    apply (is_derive_pow (fun x => x) (first + 2 * S k) x 1), (is_derive_id x).
    unfold term', term. replace (first + 2 * S k)%nat with (S (S (first + 2 * k))) by lia.
    cbn [coefficient pred].
    replace (first + 2 * S k)%nat with (S (S (first + 2 * k))) by lia. rewrite INR_IZR_INZ. simpl pow. field.
    apply IZR_neq. lia.
Qed.

(* What n terms leave out of F, whose derivative is phi times that of term 0. *)
Lemma derive_rest first (F : R -> R) n x : (first <= 1)%nat ->
  (forall x, is_derive F x (phi x * INR first)) ->
  is_derive (fun x => F x - phi x * partial_sum first n x) x (phi x * term' first n x).
Proof.
  intros H D. induction n as [|n IH].
  - apply derive_ext with F. intros t. simpl. ring. apply D.
  - apply derive_ext with (fun x => (F x - phi x * partial_sum first n x) - phi x * term first n x). intros t.
    simpl. ring.
    eapply derive_as. apply derive_minus. exact IH. apply derive_mult. apply derive_phi.
    now apply derive_term. simpl term'. ring.
Qed.

Lemma nondecreasing (F F' : R -> R) x : (forall t, is_derive F t (F' t)) -> (forall t, 0 <= t -> 0 <= F' t) ->
  0 <= x -> F 0 <= F x.
Proof.
  intros D P H. destruct (mean_value F F' 0 x D) as (c & Hc & E).
  rewrite Rmin_left, Rmax_right in Hc by trivial.
  specialize (P c (proj1 Hc)). nra.
Qed.

Lemma phi_below t : phi t <= phi 0.
Proof.
  unfold phi. apply Rmult_le_compat_r. left. apply Rinv_0_lt_compat, sqrt_2PI.
  destruct (Req_dec t 0) as [->|N]. lra.
  left. apply exp_increasing. nra.
Qed.

Lemma rest_between first (F : R -> R) n x : (first <= 1)%nat ->
  (forall x, is_derive F x (phi x * INR first)) ->
  0 <= F 0 - phi 0 * partial_sum first n 0 <= phi 0 * term first n 0 -> 0 <= x ->
  0 <= F x - phi x * partial_sum first n x <= phi 0 * term first n x.
Proof.
  intros H D [L U] Hx. pose proof (fun t => derive_rest first F n t H D) as D1. split.
  - eapply Rle_trans. exact L. apply nondecreasing with (1 := D1); trivial.
    intros t Ht. apply Rmult_le_pos. left. apply phi_pos. now apply term'_pos.
  - enough (phi 0 * term first n 0 - (F 0 - phi 0 * partial_sum first n 0) <=
      phi 0 * term first n x - (F x - phi x * partial_sum first n x)) by lra.
    apply nondecreasing with (F := fun x => phi 0 * term first n x - (F x - phi x * partial_sum first n x))
      (F' := fun x => phi 0 * term' first n x - phi x * term' first n x); trivial.
    + intros t. apply derive_minus; trivial. apply (is_derive_scal (term first n)). now apply derive_term.
    + intros t Ht. pose proof (term'_pos first n t Ht). pose proof (phi_below t). nra.
Qed.

Lemma term_0 first n : (0 < first + n)%nat -> term first n 0 = 0.
Proof. intros H. unfold term. rewrite pow_ne_zero by lia. ring. Qed.

Theorem density_series n x : 0 <= x -> 0 <= phi 0 - phi x * partial_sum 0 n x <= phi 0 * term 0 n x.
Proof.
  apply (rest_between 0 (fun _ => phi 0)). lia. intros t. rewrite Rmult_0_r. apply (is_derive_const (phi 0)).
  assert (E : forall k, partial_sum 0 (S k) 0 = 1).
  { induction k as [|k IH]. unfold partial_sum, term; simpl; ring. rewrite <- IH. simpl partial_sum.
    rewrite (term_0 0 (S k)) by lia. simpl; ring. }
  pose proof (phi_pos 0). destruct n as [|n]. unfold term; simpl; lra. rewrite E, term_0 by lia. lra.
Qed.

Theorem distribution_series n x : 0 <= x -> 0 <= Phi x - 1 / 2 - phi x * partial_sum 1 n x
  <= phi 0 * term 1 n x.
Proof.
  apply (rest_between 1 (fun x => Phi x - 1 / 2)). lia.
  - intros t. eapply derive_as. apply (derive_minus Phi (fun _ => 1 / 2)). apply derive_Phi.
    apply is_derive_const. unfold zero; simpl. ring.
  - rewrite Phi_0, term_0 by lia. replace (partial_sum 1 n 0) with 0. lra.
    induction n; simpl; trivial. rewrite <- IHn, term_0 by lia. ring.
Qed.

(* ---- By integers ----------------------------------------------------------------------------- *)

Lemma division_below (a b : Z) (v : R) : (0 < b)%Z -> IZR a <= v * IZR b -> IZR (a / b) <= v.
Proof.
  intros B H. apply IZR_lt in B as B'. apply Rmult_le_reg_r with (IZR b); trivial. eapply Rle_trans;
    [|exact H].
  rewrite <- mult_IZR. apply IZR_le. rewrite Z.mul_comm. now apply Z.mul_div_le.
Qed.

Lemma division_above (a b : Z) (v : R) : (0 < b)%Z -> v * IZR b <= IZR a -> v <= IZR (a / b + 1).
Proof.
  intros B H. apply IZR_lt in B as B'. apply Rmult_le_reg_r with (IZR b); trivial. eapply Rle_trans. exact H.
  rewrite <- mult_IZR. apply IZR_le. pose proof (Z.mul_succ_div_gt a b B). lia.
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

(* From the n-th term's bounds and the sums of the terms before: the sums and the bound of the term at which
   it stopped. *)
Fixpoint sums (fuel : nat) (square shift j low high sum_low sum_high : Z) : Z * Z * Z :=
  match fuel with
  | O => (sum_low, sum_high, high)
  | S fuel =>
    if (low =? 0)%Z then (sum_low, sum_high, high)
    else sums fuel square shift (j + 2) (Z.shiftr (low * square) shift / (j + 2))
      ((Z.shiftr (high * square) shift + 1) / (j + 2) + 1)
           (sum_low + low) (sum_high + high)
  end%Z.

Lemma power_pos j : (0 <= j)%Z -> (0 < 2 ^ j)%Z.
Proof. now apply Z.pow_pos_nonneg. Qed.

Lemma point_pos : 0 <= point.
Proof. apply Rmult_le_pos. now apply IZR_le. left. apply Rinv_0_lt_compat, IZR_lt, power_pos, k_positive. Qed.

Lemma sums_between first fuel : forall n low high sum_low sum_high,
  IZR low <= term first n point * IZR one <= IZR high ->
  IZR sum_low <= partial_sum first n point * IZR one <= IZR sum_high ->
  let '(a, b, r) := sums fuel (m * m) (2 * k) (Z.of_nat (first + 2 * n)) low high sum_low sum_high in
  exists n, IZR a <= partial_sum first n point * IZR one <= IZR b /\ term first n point * IZR one <= IZR r.
Proof.
  induction fuel as [|fuel IH]; intros n low high sum_low sum_high T U; cbn [sums].
  { now exists n. }
  destruct (low =? 0)%Z. now exists n.
  replace (Z.of_nat (first + 2 * n) + 2)%Z with (Z.of_nat (first + 2 * S n)) by lia.
  apply IH; [|simpl partial_sum; rewrite !plus_IZR; lra].
  rewrite term_next, !Z.shiftr_div_pow2 by lia. replace (Z.of_nat (first + 2 * n) + 2)%Z
    with (Z.of_nat (first + 2 * S n)) by lia.
  set (j := Z.of_nat (first + 2 * S n)). assert (J : (0 < j)%Z) by lia. apply IZR_lt in J as J'.
  set (s := (2 ^ (2 * k))%Z). assert (Q : (0 < s)%Z) by (apply power_pos; lia). apply IZR_lt in Q as Q'.
  assert (E : point * point = IZR (m * m) / IZR s).
  { unfold point, s. replace (2 * k)%Z with (k + k)%Z by lia. rewrite Z.pow_add_r, !mult_IZR by trivial.
    field. apply IZR_neq.
    pose proof (power_pos k k_positive). lia. }
  assert (M : 0 <= IZR (m * m)) by (apply IZR_le; nia).
  replace (term first n point * (point * point) / IZR j * IZR one)
    with (term first n point * IZR one * IZR (m * m) / IZR s / IZR j)
    by (rewrite E; field; split; lra).
  set (t := term first n point * IZR one) in *. split.
  - apply division_below; trivial. apply Rle_trans with (t * IZR (m * m) / IZR s); [|right; field; lra].
    apply division_below; trivial. rewrite mult_IZR. apply Rle_trans with (t * IZR (m * m));
      [nra|right; field; lra].
  - apply division_above; trivial. apply Rle_trans with (t * IZR (m * m) / IZR s). right; field; lra.
    apply division_above; trivial. rewrite (mult_IZR high). apply Rle_trans with (t * IZR (m * m));
      [right; field; lra|nra].
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
  pose proof (sums_between 0 fuel 0 one one 0 0) as E. simpl Z.of_nat in E.
  destruct (sums fuel (m * m) (2 * k) 0 one one 0 0) as [[el eh] er].
  destruct E as (n & E & ER). { unfold term; simpl; lra. } { simpl; lra. }
  pose proof (sums_between 1 fuel 0 (m * one / 2 ^ k) (m * one / 2 ^ k + 1) 0 0) as D. simpl Z.of_nat in D.
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
  pose proof (density_series n point X) as DE. pose proof (distribution_series i point X) as DS.
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
