(* The square of the Gaussian integral, for a finite upper end:

     (RInt (exp (-t^2)) 0 x)^2 + RInt (exp (-x^2 (1 + t^2)) / (1 + t^2)) 0 1 = PI / 4,

   because the derivative of the left-hand side by x is 0 and its value at 0 is atan 1. The second integral
   lies between 0 and exp (-x^2), so that this also says how fast the first one comes to its limit. *)

From Coq Require Import Reals Lra Psatz.
From Coquelicot Require Import Coquelicot.
From Outgrad Require Import Calculus.
Open Scope R_scope.

Definition bell (t : R) := exp (- (t * t)).
Definition Bell (x : R) := RInt bell 0 x.

Definition kernel (x t : R) := exp (- (x * x) * (1 + t * t)) / (1 + t * t).
Definition rest (x : R) := RInt (kernel x) 0 1.
(* The derivative of the kernel by x. *)
Definition kernel_x (x t : R) := -2 * x * exp (- (x * x) * (1 + t * t)).

Lemma one_plus_square t : 1 <= 1 + t * t.
Proof. nra. Qed.

Lemma continuous_bell t : continuous bell t.
Proof. apply (ex_derive_continuous bell). unfold bell. auto_derive; trivial. Qed.

Lemma derive_Bell x : is_derive Bell x (bell x).
Proof. exact (derive_integral bell continuous_bell 0 x). Qed.

Lemma derive_kernel t x : is_derive (fun x => kernel x t) x (kernel_x x t).
Proof. pose proof (one_plus_square t). unfold kernel, kernel_x. auto_derive; trivial. field. lra. Qed.

Lemma integrable_kernel x : ex_RInt (kernel x) 0 1.
Proof.
  apply (ex_RInt_continuous (V := R_CompleteNormedModule)). intros t _.
  apply (ex_derive_continuous (kernel x)).
  pose proof (one_plus_square t). unfold kernel. auto_derive. lra.
Qed.

Lemma continuous_kernel_x x t : continuity_2d_pt kernel_x x t.
Proof.
  assert (S : forall u v, continuity_2d_pt (fun x y => x * x) u v /\ continuity_2d_pt (fun x y => y * y) u v).
  { intros u v. split; apply continuity_2d_pt_mult; auto using continuity_2d_pt_id1, continuity_2d_pt_id2. }
  apply continuity_2d_pt_mult.
  - apply (continuity_2d_pt_mult (fun _ _ => -2)). apply continuity_2d_pt_const. apply continuity_2d_pt_id1.
  - apply (continuity_1d_2d_pt_comp exp (fun u v => - (u * u) * (1 + v * v))).
    + apply derivable_continuous_pt, derivable_pt_exp.
    + apply continuity_2d_pt_mult.
      * apply (continuity_2d_pt_opp (fun u v => u * u)), S.
      * apply continuity_2d_pt_plus. apply continuity_2d_pt_const. apply S.
Qed.

Lemma derive_rest x : is_derive rest x (RInt (kernel_x x) 0 1).
Proof.
  rewrite (RInt_ext (kernel_x x) (fun t => Derive (fun u => kernel u t) x)).
  - apply (is_derive_RInt_param kernel 0 1 x).
    + exists (mkposreal 1 Rlt_0_1). intros y _ t _. eexists. apply derive_kernel.
    + intros t _. apply continuity_2d_pt_ext with kernel_x.
      * intros u v. symmetry. apply is_derive_unique, derive_kernel.
      * apply continuous_kernel_x.
    + exists (mkposreal 1 Rlt_0_1). intros y _. apply integrable_kernel.
  - intros t _. symmetry. apply is_derive_unique, derive_kernel.
Qed.

(* By the substitution x t. *)
Lemma integral_kernel_x x : RInt (kernel_x x) 0 1 = - (2 * bell x * Bell x).
Proof.
  apply is_RInt_unique. apply is_RInt_ext with (fun t => scal (-2 * bell x) (scal x (bell (x * t + 0)))).
  - intros t _. unfold scal; simpl; unfold mult; simpl. unfold kernel_x, bell.
    replace (- (x * x) * (1 + t * t)) with (- (x * x) + - ((x * t + 0) * (x * t + 0))) by ring.
    rewrite exp_plus. ring.
  - replace (- (2 * bell x * Bell x)) with (scal (-2 * bell x) (Bell x)) by (unfold scal; simpl; unfold mult;
      simpl; ring).
    apply (is_RInt_scal (V := R_NormedModule)), (is_RInt_comp_lin bell).
    replace (x * 0 + 0) with 0 by ring. replace (x * 1 + 0) with x by ring.
    apply (RInt_correct (V := R_CompleteNormedModule)), ex_RInt_continuous. intros; apply continuous_bell.
Qed.

Lemma rest_0 : rest 0 = PI / 4.
Proof.
  apply is_RInt_unique. apply (is_RInt_ext (fun t => / (1 + t * t))).
  - intros t _. unfold kernel. replace (- (0 * 0) * (1 + t * t)) with 0 by ring. rewrite exp_0. symmetry.
    apply Rmult_1_l.
  - replace (PI / 4) with (minus (atan 1) (atan 0)) by (rewrite atan_1, atan_0; exact (Rminus_0_r _)).
    apply (is_RInt_derive atan).
    + intros t _. apply is_derive_Reals. replace (/ (1 + t * t)) with (/ (1 + t ^ 2)) by (f_equal; ring).
      apply derivable_pt_lim_atan.
    + intros t _. apply (ex_derive_continuous (fun t => / (1 + t * t))). pose proof (one_plus_square t).
      auto_derive. lra.
Qed.

Lemma Bell_square x : Bell x * Bell x + rest x = PI / 4.
Proof.
  rewrite (constant_of_derive (fun x => Bell x * Bell x + rest x)) with (b := 0).
  - unfold Bell. rewrite integral_point, rest_0. ring.
  - intros t. eapply derive_as. apply derive_plus. apply derive_mult; apply derive_Bell. apply derive_rest.
    rewrite integral_kernel_x. ring.
Qed.

Lemma rest_bounds x : 0 <= rest x <= bell x.
Proof.
  assert (K : forall t, 0 <= kernel x t <= bell x).
  { intros t. pose proof (one_plus_square t) as H. unfold kernel, bell.
    assert (E : exp (- (x * x) * (1 + t * t)) <= exp (- (x * x))).
    { destruct (Rle_lt_or_eq_dec (- (x * x) * (1 + t * t)) (- (x * x))) as [L|L]. nra.
      left. now apply exp_increasing. right. now rewrite L. }
    pose proof (exp_pos (- (x * x) * (1 + t * t))) as P. split.
    - apply Rmult_le_pos. lra. left. apply Rinv_0_lt_compat. lra.
    - apply Rmult_le_reg_r with (1 + t * t). lra. unfold Rdiv. rewrite Rmult_assoc, Rinv_l by lra. nra. }
  split.
  - apply RInt_ge_0. lra. apply integrable_kernel. intros t _. apply K.
  - replace (bell x) with (RInt (fun _ => bell x) 0 1) by (rewrite RInt_const; unfold scal; simpl;
      unfold mult; simpl; ring).
    apply RInt_le. lra. apply integrable_kernel. apply ex_RInt_const. intros t _. apply K.
Qed.

Theorem gaussian_integral x : PI / 4 - bell x <= Bell x * Bell x <= PI / 4.
Proof. pose proof (Bell_square x). pose proof (rest_bounds x). lra. Qed.
