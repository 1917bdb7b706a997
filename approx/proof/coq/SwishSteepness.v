(* The steepness of Swish, and numbers that belong to it. certify --coq writes those of another here.
   Only the steepness has to be believed; what the others are said to be is proven. *)

From Coq Require Import Reals ZArith.
Open Scope R_scope.

(* f x = x / (1 + exp (- (steepness * x))). Notations, so that tactics see the numbers. *)
Notation steepness := (1 / 1).
Definition steepness_of : Z * Z := (1, 1)%Z.

(* x_star and y_star between multiples of 2^-50. *)
Definition x_low := -1439423109596291 / 2 ^ 50.
Definition x_high := -1439423109596290 / 2 ^ 50.
Definition minus_x_star := (1439423109596289, 1439423109596292)%Z.
Definition y_low := -313523202753667 / 2 ^ 50.
Definition y_high := -313523202753666 / 2 ^ 50.
Definition near_y_star := (-313523202753667, -313523202753666)%Z.

(* Where the tails begin; and an integer beyond it. *)
Notation tail := (5 / 2).
Definition tail_place := 4%Z.
(* Where f' turns right of 0, in units of 2^-30. *)
Definition bend_between := (2576290262, 2576290263)%Z.

(* From here on f (- t) and f' (- t) are between 0 and -2^-137, or -2^-30. *)
Definition bf16_threshold := 100%Z.
Definition f16_threshold := 24%Z.
