(* Calculus in the form that the other files use it: derivatives of sums and products of real functions, the
   mean value theorem for functions that have a derivative everywhere, and what follows from it. *)

From Coq Require Import Reals Lra.
From Coquelicot Require Import Coquelicot.
Open Scope R_scope.

Lemma derive_as (F : R -> R) (t a b : R) : is_derive F t a -> a = b -> is_derive F t b.
Proof. now intros D <-. Qed.

Lemma derive_ext (F G : R -> R) (t a : R) : (forall x : R, F x = G x) -> is_derive F t a -> is_derive G t a.
Proof. intros E. apply is_derive_ext, E. Qed.

Lemma derive_plus (F G : R -> R) (t a b : R) : is_derive F t a -> is_derive G t b ->
  is_derive (fun x => F x + G x) t (a + b).
Proof. exact (is_derive_plus (V := R_NormedModule) F G t a b). Qed.

Lemma derive_minus (F G : R -> R) (t a b : R) : is_derive F t a -> is_derive G t b ->
  is_derive (fun x => F x - G x) t (a - b).
Proof. exact (is_derive_minus (V := R_NormedModule) F G t a b). Qed.

Lemma derive_mult (F G : R -> R) (t a b : R) :
  is_derive F t a -> is_derive G t b -> is_derive (fun x => F x * G x) t (a * G t + F t * b).
Proof. intros; apply (is_derive_mult F G); trivial. exact Rmult_comm. Qed.

(* x F x. *)
Lemma derive_by_x (F F' : R -> R) (t : R) : is_derive F t (F' t) -> is_derive (fun x => x * F x) t
  (F t + t * F' t).
Proof.
  intros D. eapply derive_as. apply (derive_mult (fun x => x)). apply is_derive_id. exact D.
  unfold one; simpl. ring.
Qed.

(* F (a + k x), whose derivative is k F'. *)
Lemma derive_affine (F F' : R -> R) (a k t : R) :
  (forall x, is_derive F x (F' x)) -> is_derive (fun x => F (a + k * x)) t (k * F' (a + k * t)).
Proof. intros D. apply (is_derive_comp F (fun x => a + k * x) t). apply D. auto_derive; trivial. ring. Qed.

Lemma continuous_of_derive (F F' : R -> R) : (forall t, is_derive F t (F' t)) -> forall t, continuous F t.
Proof. intros D t. apply (ex_derive_continuous F). eexists. apply D. Qed.

(* The integral of a continuous function, as a function of its upper end. *)
Lemma derive_integral (F : R -> R) : (forall t, continuous F t) -> forall a x, is_derive (RInt F a) x (F x).
Proof.
  intros C a x. apply (is_derive_RInt F _ a); [|apply C]. exists (mkposreal 1 Rlt_0_1). intros y _.
  apply (RInt_correct (V := R_CompleteNormedModule)), ex_RInt_continuous. auto.
Qed.

Lemma integral_point (F : R -> R) a : RInt F a a = 0.
Proof. exact (RInt_point a F). Qed.

(* The mean value theorem; a and b may be in either order. *)
Lemma mean_value (F F' : R -> R) (a b : R) :
  (forall t, is_derive F t (F' t)) -> exists c, Rmin a b <= c <= Rmax a b /\ F b - F a = F' c * (b - a).
Proof.
  intros D. destruct (MVT_gen F a b F') as (c & Hc & E).
  - intros t _. apply D.
  - intros t _. apply continuity_pt_filterlim, (continuous_of_derive F F' D).
  - now exists c.
Qed.

Lemma constant_of_derive (F : R -> R) : (forall t, is_derive F t 0) -> forall a b, F a = F b.
Proof. intros D a b. destruct (mean_value F (fun _ => 0) a b D) as (c & _ & E). lra. Qed.

(* Strictly increasing where the derivative is positive, ends apart. *)
Lemma increasing_of_derive (F F' : R -> R) (a b : R) :
  (forall t, is_derive F t (F' t)) -> a < b -> (forall t, a < t < b -> 0 < F' t) -> F a < F b.
Proof.
  intros D L P. destruct (MVT_cor2 F F' a b L) as (c & E & Hc). { intros. apply is_derive_Reals, D. }
  pose proof (Rmult_lt_0_compat (F' c) (b - a) (P c Hc)). lra.
Qed.

(* Likewise strictly decreasing where it is negative. *)
Lemma decreasing_of_derive (F F' : R -> R) (a b : R) :
  (forall t, is_derive F t (F' t)) -> a < b -> (forall t, a < t < b -> F' t < 0) -> F b < F a.
Proof.
  intros D L N. enough (- F a < - F b) by lra.
  apply (increasing_of_derive (fun t => - F t) (fun t => - F' t)); trivial.
  - intros t. now apply (is_derive_opp F).
  - intros t Ht. specialize (N t Ht). lra.
Qed.

(* The form in which coq-interval reads what is known of a variable. *)
Lemma between_of_abs x v e : Rabs (x - v) <= e -> v - e <= x <= v + e.
Proof. intros H. apply Rcomplements.Rabs_le_between in H. lra. Qed.
