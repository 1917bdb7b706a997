(* SiLU's Phi and f' at a point by integers: those of the logistic function. *)

From Coq Require Import Reals ZArith Lra Lia.
From Interval Require Import Tactic.
From Outgrad Require Import Logistic Silu PowerSeries LogisticSeries Exhaustion.
Open Scope R_scope.

(* Enclosures for the two 16-bit formats. *)
Definition enclosing_by (bits : Z) (terms : nat) (threshold tail_bits : Z) : enclosing := {|
  unit_bits := bits; enclosed_at m k := enclosure (2 ^ bits) terms k m m m m; threshold := threshold;
  tail_bits := tail_bits
|}.

Lemma sound bits terms a places : (2 <= bits)%Z -> (0 < places)%Z -> tail <= IZR a ->
  - / IZR (2 ^ places) <= f (- IZR a) -> - / IZR (2 ^ places) <= f' (- IZR a) ->
  sound_enclosing (enclosing_by bits terms a places).
Proof.
  intros U P A F S. split; [cbn [unit_bits enclosing_by]; lia|split; [trivial|split; [|now split]]].
  intros m k b c b' c' M K Q. cbn [enclosed_at unit_bits enclosing_by] in *.
  pose proof (power_pos k K) as P'. apply IZR_lt in P'. set (t := IZR m / IZR (2 ^ k)).
  assert (E : IZR m <= t * IZR (2 ^ k) <= IZR m) by (unfold t; split; right; field; lra).
  apply enclosed with (t := t) (s := t) in Q; try apply (unit_right bits U); trivial.
  unfold f', phi. replace (Phi t + t * (Phi t * (1 - Phi t)) - 1 / 2)
    with (sigma t - 1 / 2 + t * (sigma t * (1 - sigma t))) by (change (sigma t) with (Phi t); ring). exact Q.
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
