(* The activation that the files after this one are about: certify --coq writes the name of another here. Each
   of them defines f x = x Phi x with its derivatives, says where the zero of f' lies, and has the tactic that
   proves a value of Phi. *)

From Outgrad Require Export Gelu.
