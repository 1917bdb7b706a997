(* Bound B: how far the deployed sequence of fp32 operations is from the same in real arithmetic. Gappa finds
   the proof and writes it for Coq; the tactic below turns what it has proven, a refutation, into a statement
   about real numbers. fp32 has no largest number here: that nothing overflows is not part of these theorems.
   *)

From Coq Require Import Reals Lra Lia Classical.
From Flocq Require Import Core.
From Gappa Require Import Gappa_library.
Open Scope R_scope.

(* To the nearest, ties to even: 24 bits, and no bit below 2^-149. *)
Definition fp32 (x : R) := round radix2 (FLT_exp (-149) 24) ZnearestE x.

(* Gappa's numbers as the theorems write them. *)
Lemma gappa_fraction n k : float2R (Float2 n (Z.neg k)) = IZR n / 2 ^ Pos.to_nat k.
Proof.
  unfold float2R, F2R. cbn [Defs.Fnum Defs.Fexp Fnum Fexp bpow]. unfold Rdiv. do 2 f_equal.
  change (IZR (2 ^ Z.pos k) = 2 ^ Pos.to_nat k). now rewrite <- (positive_nat_Z k), <- pow_IZR.
Qed.

Lemma gappa_multiple n k : float2R (Float2 n (Z.pos k)) = IZR n * 2 ^ Pos.to_nat k.
Proof.
  unfold float2R, F2R. cbn [Defs.Fnum Defs.Fexp Fnum Fexp bpow]. f_equal.
  change (IZR (2 ^ Z.pos k) = 2 ^ Pos.to_nat k). now rewrite <- (positive_nat_Z k), <- pow_IZR.
Qed.

Lemma gappa_integer n : float2R (Float2 n 0) = IZR n.
Proof. apply Rmult_1_r. Qed.

Ltac literals H :=
  repeat match type of H with
  | context [float2R (Float2 ?n (Z.neg ?k))] => rewrite (gappa_fraction n k) in H; let m := eval compute in
    (Pos.to_nat k) in change (Pos.to_nat k) with m in H
  | context [float2R (Float2 ?n (Z.pos ?k))] => rewrite (gappa_multiple n k) in H; let m := eval compute in
    (Pos.to_nat k) in change (Pos.to_nat k) with m in H
  | context [float2R (Float2 ?n 0)] => rewrite (gappa_integer n) in H
  end.

Lemma abs_of_between x a b : a = - b -> ~ ~ (a <= x <= b) -> Rabs x <= b.
Proof. intros -> H. apply Rabs_le, NNPP, H. Qed.

(* H says, when the identities it rests on have been shown, that the goal cannot be false. *)
Ltac conclude H :=
  repeat match type of H with (_ = _ :> R) -> _ => specialize (H ltac:(ring)) end;
  unfold BND, rndNE, Float1 in H; cbn [lower upper] in H; literals H;
  repeat (split || intro);
  match goal with
  | |- Rabs ?x <= ?b => match type of H with context [?a <= x <= b] => apply (abs_of_between x a b);
    [lra|intro; apply H; tauto] end
  | |- _ => apply NNPP; intro; apply H; tauto
  end.
