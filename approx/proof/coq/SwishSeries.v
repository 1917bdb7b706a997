(* Swish's Phi and f' at a point by integers: those of the logistic function, whose argument is enclosed
   first. *)

From Coq Require Import Reals ZArith Lra Lia.
From Interval Require Import Tactic.
From Outgrad Require Import Logistic Swish PowerSeries LogisticSeries Exhaustion.
Open Scope R_scope.

(* The steepness in units of 2^-bits. *)
Definition steepness_low (bits : Z) : Z := (fst steepness_of * 2 ^ bits / snd steepness_of)%Z.
Definition steepness_high (bits : Z) : Z := (- (- (fst steepness_of) * 2 ^ bits / snd steepness_of))%Z.

Lemma steepness_between bits :
  IZR (steepness_low bits) <= steepness * IZR (2 ^ bits) <= IZR (steepness_high bits).
Proof.
  unfold steepness_low, steepness_high. set (u := (2 ^ bits)%Z).
  split; [|rewrite opp_IZR; apply Ropp_le_cancel; rewrite Ropp_involutive]; apply division_below;
    try reflexivity; rewrite mult_IZR; simpl; lra.
Qed.

(* Enclosures for the two 16-bit formats. *)
Definition enclosing_by (bits : Z) (terms : nat) (threshold tail_bits : Z) : enclosing :=
  let low := steepness_low bits in
  let high := steepness_high bits in {|
  unit_bits := bits;
  enclosed_at m k :=
    let from := Z.shiftr (m * low) k in
    let to := (Z.shiftr (m * high) k + 1)%Z in enclosure (2 ^ bits) terms bits from to from to;
  threshold := threshold; tail_bits := tail_bits
|}.

Lemma sound bits terms a places : (2 <= bits)%Z -> (0 < places)%Z -> tail <= IZR a ->
  - / IZR (2 ^ places) <= f (- IZR a) -> - / IZR (2 ^ places) <= f' (- IZR a) ->
  sound_enclosing (enclosing_by bits terms a places).
Proof.
  intros U P A F S. split; [cbn [unit_bits enclosing_by]; lia|split; [trivial|split; [|now split]]].
  intros m k b c b' c' M K Q. cbn [enclosed_at unit_bits enclosing_by] in *.
  pose proof (power_pos k K) as PK. apply IZR_lt in PK as PK'. set (t := IZR m / IZR (2 ^ k)).
  pose proof (steepness_between bits) as W. pose proof (power_pos bits ltac:(lia)) as B.
  assert (L : (0 <= steepness_low bits)%Z)
    by (apply Z.div_pos; [apply Z.mul_nonneg_nonneg; [discriminate|lia]|reflexivity]).
  set (low := steepness_low bits) in *. set (high := steepness_high bits) in *.
  apply IZR_le in M as M'. set (u := IZR (2 ^ bits)) in *. set (w := steepness * t).
  assert (E : w * u * IZR (2 ^ k) = IZR m * (steepness * u)) by (unfold w, t; field; lra).
  assert (E' : IZR (Z.shiftr (m * low) k) <= w * u <= IZR (Z.shiftr (m * high) k + 1)).
  { rewrite !Z.shiftr_div_pow2 by trivial.
    split; [apply division_below|apply division_above]; trivial; rewrite E, mult_IZR; apply Rmult_le_compat_l;
      trivial; apply W. }
  apply enclosed with (t := w) (s := w) in Q; try apply (unit_right bits U); trivial; try lia;
    try (apply Z.shiftr_nonneg; nia).
  unfold f', phi. replace (Phi t + t * (steepness * (Phi t * (1 - Phi t))) - 1 / 2)
    with (sigma w - 1 / 2 + w * (sigma w * (1 - sigma w))) by (change (sigma w) with (Phi t); unfold w; ring).
  exact Q.
Qed.

Ltac prove_sound := apply sound; [discriminate|reflexivity|unfold bf16_threshold, f16_threshold; lra|
  unfold f', f, phi, Phi, bf16_threshold, f16_threshold; interval with (i_prec 300)..].

(* bf16, whose least number is 2^-133. *)
Definition bf16_least := enclosing_by 144 500 bf16_threshold 137.
Definition bf16_near := enclosing_by 72 500 bf16_threshold 137.
Definition bf16_far := enclosing_by 240 500 bf16_threshold 137.
(* f16, where half the least number is 2^-25. *)
Definition f16_all := enclosing_by 64 500 f16_threshold 30.

Lemma bf16_least_sound : sound_enclosing bf16_least.
Proof. prove_sound. Qed.
Lemma bf16_near_sound : sound_enclosing bf16_near.
Proof. prove_sound. Qed.
Lemma bf16_far_sound : sound_enclosing bf16_far.
Proof. prove_sound. Qed.
Lemma f16_all_sound : sound_enclosing f16_all.
Proof. prove_sound. Qed.
