(* Phi and f' of GELU's tanh form at a point by integers: those of the logistic function, whose argument, a
   cubic with sqrt (2/PI) in it, is enclosed first. *)

From Coq Require Import Reals ZArith Lra Lia Psatz.
From Interval Require Import Tactic.
From Outgrad Require Import Logistic TanhGelu PowerSeries LogisticSeries Exhaustion.
Open Scope R_scope.

Section Cubic.

(* millionth_low and millionth_high enclose a millionth of scale in units of 2^-(bits + 20). *)
Variables bits millionth_low millionth_high : Z.
Hypothesis bits_positive : (0 <= bits)%Z.
Hypothesis low_positive : (0 <= millionth_low)%Z.
Hypothesis scale_between : IZR millionth_low <= scale / 1000000 * IZR (2 ^ (bits + 20)) <= IZR millionth_high.

(* Bounds of scale (v + c / 1000000 v^3) in units of 2^-bits, for v between x and x + 1 in this unit. *)
Definition cubic_low (c x : Z) : Z :=
  Z.shiftr (millionth_low * (1000000 * x + c * Z.shiftr (x * x * x) (2 * bits))) (bits + 20).
Definition cubic_high (c x : Z) : Z :=
  let x := (x + 1)%Z in
  (Z.shiftr (millionth_high * (1000000 * x + c * (Z.shiftr (x * x * x) (2 * bits) + 1))) (bits + 20) + 1)%Z.

Lemma cubic_between c x v : (0 <= c)%Z -> (0 <= x)%Z -> IZR x <= v * IZR (2 ^ bits) <= IZR (x + 1) ->
  (0 <= cubic_low c x)%Z /\
  IZR (cubic_low c x) <= scale * (v + IZR c / 1000000 * (v * v * v)) * IZR (2 ^ bits) <= IZR (cubic_high c x).
Proof.
  intros C X V. unfold cubic_low, cubic_high. set (x' := (x + 1)%Z) in *. rewrite !Z.shiftr_div_pow2 by lia.
  pose proof (power_pos bits bits_positive) as P. pose proof (power_pos (2 * bits) ltac:(lia)) as P2.
  pose proof (power_pos (bits + 20) ltac:(lia)) as P20.
  assert (E2 : IZR (2 ^ (2 * bits)) = IZR (2 ^ bits) * IZR (2 ^ bits))
    by (rewrite <- mult_IZR, <- Z.pow_add_r by lia; do 2 f_equal; lia).
  assert (Q0 : (0 <= x * x * x / 2 ^ (2 * bits))%Z) by (apply Z.div_pos; nia).
  set (q := (x * x * x / 2 ^ (2 * bits))%Z) in *. set (q' := (x' * x' * x' / 2 ^ (2 * bits) + 1)%Z).
  set (u := IZR (2 ^ bits)) in *. set (w := v * u) in *. apply IZR_lt in P as U. fold u in U.
  apply IZR_le in X as X', C as C', low_positive as L, Q0 as Q0'.
  assert (Q : IZR q <= v * v * v * u <= IZR q').
  { assert (E : v * v * v * u * IZR (2 ^ (2 * bits)) = w * w * w) by (rewrite E2; unfold w; ring).
    split; [apply division_below|apply division_above]; trivial; rewrite E, !mult_IZR;
      repeat apply Rmult_le_compat; try lra; apply Rmult_le_pos; lra. }
  set (y := 1000000 * w + IZR c * (v * v * v * u)).
  assert (Y : IZR (1000000 * x + c * q) <= y <= IZR (1000000 * x' + c * q')).
  { unfold y. rewrite !plus_IZR, !(mult_IZR 1000000), !(mult_IZR c). split; apply Rplus_le_compat;
      (apply Rmult_le_compat_l; lra). }
  assert (Y0 : 0 <= IZR (1000000 * x + c * q)) by (apply IZR_le; nia).
  assert (E : scale * (v + IZR c / 1000000 * (v * v * v)) * u * IZR (2 ^ (bits + 20))
    = scale / 1000000 * IZR (2 ^ (bits + 20)) * y) by (unfold y, w; field).
  split; [apply Z.div_pos; trivial; nia|].
  split; [apply division_below|apply division_above]; trivial; rewrite E, mult_IZR;
    apply Rmult_le_compat; lra.
Qed.

End Cubic.

(* Enclosures for the two 16-bit formats. *)
Definition enclosing_by (bits millionth_low millionth_high : Z) (terms : nat) (threshold tail_bits : Z)
  : enclosing := {|
  unit_bits := bits;
  enclosed_at m k :=
    let x := Z.shiftr (m * 2 ^ bits) k in
    let low c := cubic_low bits millionth_low c x in
    let high c := cubic_high bits millionth_high c x in
    enclosure (2 ^ bits) terms bits (low 44715%Z) (high 44715%Z) (low 134145%Z) (high 134145%Z);
  threshold := threshold; tail_bits := tail_bits
|}.

Lemma sound bits low high terms a places : (2 <= bits)%Z -> (0 <= low)%Z ->
  IZR low <= scale / 1000000 * IZR (2 ^ (bits + 20)) <= IZR high -> (0 < places)%Z -> tail <= IZR a ->
  - / IZR (2 ^ places) <= f (- IZR a) -> - / IZR (2 ^ places) <= f' (- IZR a) ->
  sound_enclosing (enclosing_by bits low high terms a places).
Proof.
  intros U L S P A F F'. split; [cbn [unit_bits enclosing_by]; lia|split; [trivial|split; [|now split]]].
  intros m k b c b' c' M K Q. cbn [enclosed_at unit_bits enclosing_by] in *.
  pose proof (power_pos k K) as P'. set (t := IZR m / IZR (2 ^ k)). apply IZR_lt in P' as PK.
  set (x := Z.shiftr (m * 2 ^ bits) k) in *.
  assert (X : IZR x <= t * IZR (2 ^ bits) <= IZR (x + 1)).
  { unfold x. rewrite Z.shiftr_div_pow2 by trivial.
    assert (E : t * IZR (2 ^ bits) * IZR (2 ^ k) = IZR (m * 2 ^ bits))
      by (rewrite mult_IZR; unfold t; field; lra).
    split; [apply division_below|apply division_above]; trivial; lra. }
  assert (X0 : (0 <= x)%Z) by (apply Z.shiftr_nonneg; pose proof (power_pos bits); nia).
  destruct (cubic_between bits low high ltac:(lia) L S 44715 x t ltac:(lia) X0 X) as [W0 W].
  destruct (cubic_between bits low high ltac:(lia) L S 134145 x t ltac:(lia) X0 X) as [I0 I].
  set (s := scale * (t + 134145 / 1000000 * (t * t * t))) in *.
  apply enclosed with (t := argument t) (s := s) in Q; try apply (unit_right bits U); trivial; try lia.
  unfold f', phi. replace (Phi t + t * (argument' t * (Phi t * (1 - Phi t))) - 1 / 2)
    with (sigma (argument t) - 1 / 2 + s * (sigma (argument t) * (1 - sigma (argument t))))
    by (change (sigma (argument t)) with (Phi t); unfold s; field). exact Q.
Qed.

Ltac prove_sound := apply sound; [discriminate|discriminate|split; interval with (i_prec 300)|reflexivity|lra|
  unfold f', f, phi, Phi; interval with (i_prec 300)..].

(* bf16, whose least number is 2^-133; from t = 11 on, f (-t) is nearer to 0 than half of it. *)
Definition bf16_least := enclosing_by 144 37315506944461954606988270748396792460502138
  37315506944461954606988270748396792460502139 500 11 137.
Definition bf16_near := enclosing_by 72 7901865956363980202155 7901865956363980202156 500 11 137.
Definition bf16_far := enclosing_by 240
  2956439048497991203200129355247150432033544856418176822034327771706457680
  2956439048497991203200129355247150432033544856418176822034327771706457681 500 11 137.
(* f16, where half the least number is 2^-25. *)
Definition f16_all := enclosing_by 64 30866663892046797664 30866663892046797665 500 6 30.

Lemma bf16_least_sound : sound_enclosing bf16_least.
Proof. prove_sound. Qed.
Lemma bf16_near_sound : sound_enclosing bf16_near.
Proof. prove_sound. Qed.
Lemma bf16_far_sound : sound_enclosing bf16_far.
Proof. prove_sound. Qed.
Lemma f16_all_sound : sound_enclosing f16_all.
Proof. prove_sound. Qed.
