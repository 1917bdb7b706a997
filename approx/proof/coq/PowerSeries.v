(* Two series of positive terms,

     1, x^2/2, x^4/(2 4), x^6/(2 4 6), ...   and   x, x^3/3, x^5/(3 5), x^7/(3 5 7), ...

   For a weight w whose derivative is - x w, as that of exp (-x^2/2) is, w x times the sum of the first is
   w 0, and w x times the sum of the second is the integral of w (Abramowitz and Stegun 26.2.11). What the
   first n terms leave out lies between 0 and w 0 times the next term, because the derivative of what they
   leave out is w times the derivative of that term. The sums are enclosed between integers. *)

From Coq Require Import Reals ZArith Bool Lra Lia Psatz.
From Coquelicot Require Import Coquelicot.
From Outgrad Require Import Calculus.
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

Section Weight.

Variable w : R -> R.
Hypothesis derive_w : forall t, is_derive w t (- t * w t).
Hypothesis w_pos : forall t, 0 < w t.
Hypothesis w_below : forall t, w t <= w 0.

(* What n terms leave out of F, whose derivative is w times that of term 0. *)
Lemma derive_rest first (F : R -> R) n x : (first <= 1)%nat ->
  (forall x, is_derive F x (w x * INR first)) ->
  is_derive (fun x => F x - w x * partial_sum first n x) x (w x * term' first n x).
Proof.
  intros H D. induction n as [|n IH].
  - apply derive_ext with F. intros t. simpl. ring. apply D.
  - apply derive_ext with (fun x => (F x - w x * partial_sum first n x) - w x * term first n x). intros t.
    simpl. ring.
    eapply derive_as. apply derive_minus. exact IH. apply derive_mult. apply derive_w.
    now apply derive_term. simpl term'. ring.
Qed.

Lemma nondecreasing (F F' : R -> R) x : (forall t, is_derive F t (F' t)) -> (forall t, 0 <= t -> 0 <= F' t) ->
  0 <= x -> F 0 <= F x.
Proof.
  intros D P H. destruct (mean_value F F' 0 x D) as (c & Hc & E).
  rewrite Rmin_left, Rmax_right in Hc by trivial.
  specialize (P c (proj1 Hc)). nra.
Qed.

Lemma rest_between first (F : R -> R) n x : (first <= 1)%nat ->
  (forall x, is_derive F x (w x * INR first)) ->
  0 <= F 0 - w 0 * partial_sum first n 0 <= w 0 * term first n 0 -> 0 <= x ->
  0 <= F x - w x * partial_sum first n x <= w 0 * term first n x.
Proof.
  intros H D [L U] Hx. pose proof (fun t => derive_rest first F n t H D) as D1. split.
  - eapply Rle_trans. exact L. apply nondecreasing with (1 := D1); trivial.
    intros t Ht. apply Rmult_le_pos. left. apply w_pos. now apply term'_pos.
  - enough (w 0 * term first n 0 - (F 0 - w 0 * partial_sum first n 0) <=
      w 0 * term first n x - (F x - w x * partial_sum first n x)) by lra.
    apply nondecreasing with (F := fun x => w 0 * term first n x - (F x - w x * partial_sum first n x))
      (F' := fun x => w 0 * term' first n x - w x * term' first n x); trivial.
    + intros t. apply derive_minus; trivial. apply (is_derive_scal (term first n)). now apply derive_term.
    + intros t Ht. pose proof (term'_pos first n t Ht). pose proof (w_below t). nra.
Qed.

Lemma term_0 first n : (0 < first + n)%nat -> term first n 0 = 0.
Proof. intros H. unfold term. rewrite pow_ne_zero by lia. ring. Qed.

Theorem density_series n x : 0 <= x -> 0 <= w 0 - w x * partial_sum 0 n x <= w 0 * term 0 n x.
Proof.
  apply (rest_between 0 (fun _ => w 0)). lia. intros t. rewrite Rmult_0_r. apply (is_derive_const (w 0)).
  assert (E : forall k, partial_sum 0 (S k) 0 = 1).
  { induction k as [|k IH]. unfold partial_sum, term; simpl; ring. rewrite <- IH. simpl partial_sum.
    rewrite (term_0 0 (S k)) by lia. simpl; ring. }
  pose proof (w_pos 0). destruct n as [|n]. unfold term; simpl; lra. rewrite E, term_0 by lia. lra.
Qed.

End Weight.

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

Lemma power_pos j : (0 <= j)%Z -> (0 < 2 ^ j)%Z.
Proof. now apply Z.pow_pos_nonneg. Qed.

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

(* x x = square / 2^shift; one is 1 in the unit of the integers. *)
Lemma sums_between one square shift x first fuel : (0 <= square)%Z -> (0 <= shift)%Z ->
  x * x = IZR square / IZR (2 ^ shift) -> forall n low high sum_low sum_high,
  IZR low <= term first n x * IZR one <= IZR high ->
  IZR sum_low <= partial_sum first n x * IZR one <= IZR sum_high ->
  let '(a, b, r) := sums fuel square shift (Z.of_nat (first + 2 * n)) low high sum_low sum_high in
  exists n, IZR a <= partial_sum first n x * IZR one <= IZR b /\ term first n x * IZR one <= IZR r.
Proof.
  intros M Hs E. apply IZR_le in M. induction fuel as [|fuel IH]; intros n low high sum_low sum_high T U;
    cbn [sums].
  { now exists n. }
  destruct (low =? 0)%Z. now exists n.
  replace (Z.of_nat (first + 2 * n) + 2)%Z with (Z.of_nat (first + 2 * S n)) by lia.
  apply IH; [|simpl partial_sum; rewrite !plus_IZR; lra].
  rewrite term_next, E, !Z.shiftr_div_pow2 by lia. replace (Z.of_nat (first + 2 * n) + 2)%Z
    with (Z.of_nat (first + 2 * S n)) by lia.
  set (j := Z.of_nat (first + 2 * S n)). assert (J : (0 < j)%Z) by lia. apply IZR_lt in J as J'.
  pose proof (power_pos shift Hs) as Q. apply IZR_lt in Q as Q'. set (s := (2 ^ shift)%Z) in *.
  replace (term first n x * (IZR square / IZR s) / IZR j * IZR one)
    with (term first n x * IZR one * IZR square / IZR s / IZR j) by (field; split; lra).
  set (t := term first n x * IZR one) in *. split.
  - apply division_below; trivial. apply Rle_trans with (t * IZR square / IZR s); [|right; field; lra].
    apply division_below; trivial. rewrite mult_IZR. apply Rle_trans with (t * IZR square);
      [nra|right; field; lra].
  - apply division_above; trivial. apply Rle_trans with (t * IZR square / IZR s). right; field; lra.
    apply division_above; trivial. rewrite (mult_IZR high). apply Rle_trans with (t * IZR square);
      [right; field; lra|nra].
Qed.
