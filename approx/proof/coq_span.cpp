// Cuts the fp32 numbers into spans, and writes the theorems over them for Coq.
#include "approx/proof/coq_span.h"

#include "approx/function/composite.h"
#include "approx/proof/coq_index.h"
#include "approx/proof/coq_kernel.h"
#include "approx/proof/coq_text.h"
#include "kernels/host/errors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

namespace outgrad::approx::coq {
namespace {

/// Phi at an end of a row's range is given to so many bits, and proven with more. Ranges of the left segment
/// end at powers of two, but a double outward; those of the core are wider than the kernel needs.
constexpr int kRightBits = 45, kLeftBits = 80, kMoreBits = 20;
/// The library's enclosure of y* is narrower.
const Real kStarError = power_of_2(-48);

/// The fp32 numbers in ascending order, as Continuum.v counts them.
int numeral_of(float y) {
  const auto magnitude = static_cast<int>(std::bit_cast<std::uint32_t>(y) & 0x7fffffffu);
  return std::signbit(y) ? -magnitude : magnitude;
}
float at_numeral(int i) {
  return std::copysign(std::bit_cast<float>(static_cast<std::uint32_t>(std::abs(i))), i < 0 ? -1.0f : 1.0f);
}

/// Numbers from `first` to `last`, on one side of x*, at which the kernel uses `piece`.
struct Span {
  const Piece* piece;
  bool right;
  int first, last;
  bool at_star;  ///< the number next to y*
  [[nodiscard]] std::string side() const { return right ? "right" : "left"; }
};

/// Those of one side; the kernel's row is monotone in y. `first`, next to y*, is a span of its own: K is what
/// the constants change there, where over a row the slope would be known too little.
std::vector<Span> spans_of(const BackwardModel& model, bool right, int first, int last) {
  const auto row_at = [&](int i) {
    return static_cast<int>(deployed_place(model, at_numeral(i), right).row);
  };
  std::vector<Span> spans;
  while (first <= last) {
    const int row = row_at(first);
    const bool at_star = spans.empty();
    int inside = first, outside = (at_star ? first : last) + 1;
    while (outside - 1 > inside) {
      const int middle = std::midpoint(inside, outside);
      (row_at(middle) == row ? inside : outside) = middle;
    }
    const auto piece = std::ranges::find(model.pieces, row, &Piece::row);
    if (piece != model.pieces.end()) spans.push_back({&*piece, right, first, inside, at_star});
    first = outside;
  }
  return spans;
}

/// As Coq reads what Gappa writes.
std::string number(double d) {
  const auto [integer, exponent] = integer_and_exponent(d);
  return exponent == 0 ? fmt::format("{}", integer)
                       : fmt::format("{} {} 2 ^ {}", integer, exponent < 0 ? '/' : '*', std::abs(exponent));
}
std::string number_at(int numeral) { return number(static_cast<double>(at_numeral(numeral))); }

/// What a span's theorem says of the constants that stand for y*: square roots of what y less these and y
/// less y* are at least, how far coordinates are from the centre, and how steep the polynomial is there.
struct Slack {
  Real t, w, distance, slope;
};

/// The files of the spans of one fit.
class SpanWriter {
 public:
  explicit SpanWriter(const Fit& subject)
      : fit(subject), model(*fit.as<BackwardModel>()), of_(known(fit.function)) {
    const Composite composite(activation_from_expression(fit.function));
    x_star_ = composite.x_star().mid(), y_star_ = composite.y_star().mid();
    constant_ = Real(static_cast<double>(model.kYHi)) + Real(static_cast<double>(model.kYLo));
    z_low_ = below(std::min(constant_, y_star_) - kStarError, 60);
    z_high_ = above(std::max(constant_, y_star_) + kStarError, 60);
    int first = numeral_of(static_cast<float>(y_star_));
    if (exactly(first) < y_star_) ++first;
    right = spans_of(model, true, first, numeral_of(model.kYMax));
    left = spans_of(model, false, first, -1);
    for (const std::vector<Span>* side : {&right, &left}) {
      for (const Span& s : *side) {
        if (in_s(*s.piece)) k_ = std::max(k_, Real(slack(s).slope * (z_high_ - z_low_)));
      }
    }
    k_ = above(k_, 40);
  }

  [[nodiscard]] std::string name(const Span& s) const {
    return fmt::format("{}_span_{}_{}{}", fit.name, s.piece->row, s.at_star ? "star_" : "", s.side());
  }
  [[nodiscard]] WitnessScript script(const Span& s) const;
  [[nodiscard]] WitnessScript theorem() const;

  const Fit& fit;
  const BackwardModel& model;
  std::vector<Span> right, left;

 private:
  static Real exactly(int numeral) { return static_cast<double>(at_numeral(numeral)); }
  [[nodiscard]] Slack slack(const Span& s) const;
  [[nodiscard]] std::string evaluation(const Span& s) const;
  [[nodiscard]] std::string anchor(const Span& s, const char* what, const Real& x) const;
  [[nodiscard]] std::string range_proof(const Span& s) const;
  /// `form` with all that the files speak of by name.
  [[nodiscard]] std::string filled(const Span& s, const char* form) const;
  [[nodiscard]] std::string cases(const std::vector<Span>& spans) const;
  [[nodiscard]] std::string apart(int numeral, bool m) const;

  const KnownActivation of_;
  Real x_star_, y_star_, constant_;  ///< constant: what stands for y*
  Real z_low_, z_high_;  ///< both lie between these
  Real k_ = 0;  ///< what K is at s = 1
};

Slack SpanWriter::slack(const Span& s) const {
  constexpr int kBits = 40, kFewBits = 20;
  const Real first = exactly(s.first), centre(static_cast<double>(s.piece->centre));
  Slack found{below(sqrt(first - constant_), kBits), below(sqrt(first - y_star_ - kStarError), kBits), 0, 0};
  for (const int end : {s.first, s.last}) {
    for (const Real& star : {z_low_, z_high_}) {
      const Real root = sqrt(exactly(end) - star);
      found.distance = std::max(found.distance, Real(abs((s.right ? root : Real(-root)) - centre)));
    }
  }
  found.distance = above(found.distance, kFewBits);
  Real size = 0;
  for (size_t i = s.piece->c.size(); i-- > 0;) {
    found.slope = found.slope * found.distance + size;
    size = size * found.distance + abs(Real(static_cast<double>(s.piece->c[i])));
  }
  found.slope = above(found.slope, kFewBits);
  return found;
}

/// The module of B's theorem: of a row on both sides there are two.
std::string SpanWriter::evaluation(const Span& s) const {
  const auto scripts = gappa_scripts(fit.name, model, *s.piece);
  const bool sided = std::ranges::any_of(
      scripts, [&](const WitnessScript& script) { return script.name.ends_with(s.side() + ".gappa"); });
  return fmt::format("{}_row_{}{}_B", fit.name, s.piece->row, sided ? "_" + s.side() : "");
}

/// Phi at an end of the row's range.
std::string SpanWriter::anchor(const Span& s, const char* what, const Real& x) const {
  const int bits = s.right ? kRightBits : kLeftBits;
  return fmt::format("Lemma {} : Rabs (Phi {} - {}) <= {}.\nProof. prove_anchor {}%positive. Qed.\n", what,
                     operand(x), operand(nearest(of_.cdf(x), bits)), operand(power_of_2(-bits)),
                     bits + kMoreBits);
}

/// That x is in the range of the row's theorem, or in a tail, by f at the ends of the range or by x*.
std::string SpanWriter::range_proof(const Span& s) const {
  const Piece& piece = *s.piece;
  const auto [lo, hi] = piece.outer_range();
  constexpr const char* kBesideStar =
      "  + pose proof x_star_between as S. unfold x_low, x_high in S. unfold on_side in M. lra.\n";
  constexpr const char* kInTail = "  + trivial.\n";
  const char* const lower = piece.left_tail           ? kInTail
                            : s.right && lo < x_star_ ? kBesideStar
                            : s.right
                                ? "  + apply right_from with (2 := proj1 V); try exact M; by_value lower.\n"
                                : "  + apply left_from with (3 := proj2 V); by_value lower.\n";
  const char* const upper = piece.right_tail           ? kInTail
                            : !s.right && hi > x_star_ ? kBesideStar
                            : s.right
                                ? "  + apply right_to with (3 := proj2 V); by_value upper.\n"
                                : "  + apply left_to with (2 := proj1 V); try exact M; by_value upper.\n";
  std::string proof;
  if (piece.left_tail) proof += "  destruct (Rle_dec ({lo}) x); [|apply {a}.fit_error_far_left; lra].\n";
  if (piece.right_tail)
    proof +=
        "  destruct (Rle_dec x ({hi})).\n"
        "  2: {{ rewrite <- (Rmin_left (f x) ({y_max})) by lra. apply {a}.fit_error_far_right. lra. }}\n";
  return proof + "  apply {a}.fit_error. split.\n" + lower + upper;
}

std::string SpanWriter::filled(const Span& s, const char* form) const {
  const Piece& piece = *s.piece;
  std::vector<std::string> words;
  for (const float word : piece.c) words.push_back(number(static_cast<double>(word)));
  while (words.size() > 1 && words.back() == "0") words.pop_back();
  const auto [lo, hi] = piece.outer_range();
  const double reach = static_cast<double>(
      std::max({std::abs(at_numeral(s.first)), std::abs(at_numeral(s.last)), std::abs(piece.centre)}));
  const Slack found = in_s(piece) ? slack(s) : Slack{};
  using fmt::arg;
  const auto number_of = [](float word) { return number(static_cast<double>(word)); };
  return fmt::format(
      fmt::runtime(form), arg("name", fit.name), arg("row", piece.row), arg("side", s.side()),
      arg("m", s.right), arg("a", fmt::format("{}_row_{}", fit.name, piece.row)), arg("b", evaluation(s)),
      arg("what", in_s(piece) ? "coordinate x" : "f x"), arg("centre", number_of(piece.centre)),
      arg("c", fmt::format("{}", fmt::join(words, "; "))),
      arg("zeros", model.kDegree + 1 - static_cast<int>(words.size())), arg("first", s.first),
      arg("last", s.last), arg("next", s.last + 1), arg("first_value", number_at(s.first)),
      arg("last_value", number_at(s.last)), arg("next_value", number_at(s.last + 1)),
      arg("lo", exact(Real(lo))), arg("hi", exact(Real(hi))), arg("y_hi", number_of(model.kYHi)),
      arg("y_lo", number_of(model.kYLo)), arg("y_max", number_of(model.kYMax)), arg("low", operand(z_low_)),
      arg("high", operand(z_high_)), arg("t", operand(found.t)), arg("w", operand(found.w)),
      arg("distance", operand(found.distance)), arg("slope", operand(found.slope)),
      arg("size", std::ilogb(reach) + 1), arg("AB", operand(Real(model.kAB))),
      arg("K", operand(Real(model.kK))), arg("k", operand(k_)));
}

constexpr const char* kHead =
    R"((* {name}, row {row}: the kernel's error at every y from {first_value} to {last_value}
   whose x is {side} of x_star. Written by outgrad certify --coq. *)

From Coq Require Import Reals ZArith List SpecFloat Lra.
From Coquelicot Require Import Coquelicot.
From Flocq Require Import Core IEEE754.BinarySingleNaN.
From Interval Require Import Tactic.
From Outgrad Require Import Calculus Activation BranchPoint Series Row Evaluation Format Kernel Index Span
  {name}_kernel.
From Outgrad Require {a} {b}.
Import ListNotations.
Open Scope R_scope.

Definition centre := {centre}.
Definition c := [{c}].
Definition first := Eval vm_compute in at_numeral ({first}).
Definition last := Eval vm_compute in at_numeral ({last}).

Lemma constants : constants_fit kernel = true.
Proof. vm_cast_no_check (eq_refl true). Qed.
Lemma words : has_words kernel {row} centre c.
Proof. unfold centre, c. prove_words {zeros}%nat. Qed.
Lemma first_value : value first = {first_value}.
Proof. prove_value. Qed.
Lemma last_value : value last = {last_value}.
Proof. prove_value. Qed.
)";

/// Bound A; range_proof() follows.
constexpr const char* kFitError = R"(
Lemma fit_error x : value first <= f x <= value last -> on_side {m} x ->
  Rabs (horner_exact c ({what} - centre) - f' x) <= {a}.A.
Proof.
  intros V M. rewrite first_value, last_value in V.
  replace (horner_exact c ({what} - centre)) with ({a}.p ({what}))
    by (unfold {a}.p, c, centre; cbn [horner horner_exact]; ring).
)";

constexpr const char* kByCoordinate = R"(
Theorem span_error y v x : stands_for 24 128 y v -> value first <= v <= value last -> f x = v ->
  on_side {m} x -> within kernel {m} y x (bound_at {AB} {K} {k} x).
Proof.
  intros Y V X M. assert (HI : value (y_hi kernel) = {y_hi}) by prove_value.
  assert (LO : value (y_lo kernel) = {y_lo}) by prove_value.
  apply within_at_most with ({a}.A + {b}.B + constants_error {low} {high} {t} {w} {slope} x).
  2: {{ apply bound_at_coordinate;
    [rewrite X; rewrite first_value in V; unfold y_high|unfold {a}.A, {b}.B..|]; lra. }}
  apply (coordinate_within kernel constants {row} centre c first last {a}.A {b}.B words
    ({y_hi}) ({y_lo}) {low} {high} {t} {w} {distance} {slope} {m}) with v;
    [vm_cast_no_check (eq_refl true)|vm_cast_no_check (eq_refl true)|..|exact Y|exact V|exact X|exact M|];
    rewrite ?first_value, ?last_value.
  1-6: unfold y_low, y_high; lra.
  - intros u F U. pose proof ({b}.evaluation_error u) as E. unfold coordinate_fp32, square_fp32, c, centre.
    rewrite HI, LO. by_evaluation E F.
  - intros z u Z U. unfold coordinate_exact, centre. cbv zeta. interval with (i_prec 60%positive).
  - unfold c. cbn [slope_within size_within]. interval with (i_prec 60%positive).
  - apply fit_error; trivial. rewrite X. exact V.
Qed.
)";

constexpr const char* kByOutput = R"(
Lemma rounding v : in_format 24 128 v -> value first <= v <= value last ->
  Rabs (horner_fp32 c (fp32 (v - centre)) - horner_exact c (v - centre)) <= {b}.B.
Proof.
  intros F V. rewrite first_value, last_value in V. pose proof ({b}.evaluation_error v) as E.
  unfold c, centre. by_evaluation E F.
Qed.

Theorem span_error y v x : stands_for 24 128 y v -> value first <= v <= value last -> f x = v ->
  on_side {m} x -> within kernel {m} y x (bound_at {AB} {K} {k} x).
Proof.
  intros Y V X M. apply within_at_most with ({a}.A + {b}.B).
  2: {{ apply bound_at_least; [rewrite X; rewrite first_value in V; unfold y_high|..|
    unfold {a}.A, {b}.B]; lra. }}
  apply (output_within kernel constants {row} centre c first last {a}.A {b}.B words {m} ({size})) with v;
    [vm_cast_no_check (eq_refl true)|vm_cast_no_check (eq_refl true)|vm_cast_no_check (eq_refl true)|
     exact rounding|exact Y|exact V|].
  rewrite <- X. apply fit_error; trivial. now rewrite X.
Qed.
)";

constexpr const char* kBeyond = R"(
(* The numbers beyond y_max. *)
Theorem beyond_error y v x : stands_for 24 128 y v -> value (at_numeral ({next})) <= v -> f x = v ->
  on_side true x -> within kernel true y x (bound_at {AB} {K} {k} x).
Proof.
  intros Y V X M. assert (N : value (at_numeral ({next})) = {next_value}) by prove_value. rewrite N in V.
  assert (MAX : y_max kernel = last) by (vm_compute; reflexivity).
  unfold within. rewrite (held_at_y_max kernel constants y v true) by (trivial; rewrite MAX, last_value; lra).
  apply within_at_most with ({a}.A + {b}.B).
  2: {{ apply bound_at_least; [rewrite X; unfold y_high|..|unfold {a}.A, {b}.B]; lra. }}
  apply (output_within kernel constants {row} centre c first last {a}.A {b}.B words true ({size}))
    with (value last);
    [vm_cast_no_check (eq_refl true)|vm_cast_no_check (eq_refl true)|vm_cast_no_check (eq_refl true)|
     exact rounding|..].
  - rewrite MAX. now apply Product.is_fp32_value.
  - rewrite first_value, last_value. lra.
  - rewrite last_value. assert (H : {hi} <= x).
    {{ apply right_from with (2 := Req_le _ _ eq_refl); try exact M. rewrite X. by_value upper. }}
    pose proof ({a}.fit_error_far_right x H) as E. rewrite X, Rmin_right in E by lra.
    replace (horner_exact c ({y_max} - centre)) with ({a}.p ({y_max})); trivial.
    unfold {a}.p, c, centre. cbn [horner horner_exact]. ring.
Qed.
)";

WitnessScript SpanWriter::script(const Span& s) const {
  const auto [lo, hi] = s.piece->outer_range();
  std::string form = kHead;
  if (!s.piece->left_tail && !(s.right && lo < x_star_)) form += anchor(s, "lower", lo);
  if (!(!s.right && hi > x_star_)) form += anchor(s, "upper", hi);
  form += kFitError + range_proof(s) + "Qed.\n" + (in_s(*s.piece) ? kByCoordinate : kByOutput);
  if (s.piece->right_tail) form += kBeyond;
  return {name(s) + ".v", filled(s, form.c_str()), s.piece->row,
          in_s(*s.piece) ? model.kAB + model.kK : model.kAB, 'G'};
}

/// Which span the i-th number is in.
std::string SpanWriter::cases(const std::vector<Span>& spans) const {
  std::string text;
  for (const Span& s : spans) {
    const bool is_last = &s == &spans.back() && !s.right;
    if (!is_last) text += fmt::format("    destruct (Z_le_gt_dec i ({})).\n", s.last);
    text += fmt::format(
        "    {{ apply {}.span_error with (F2R (numeral 24 128 i)); trivial.\n"
        "      apply (numeral_between ({}) i ({})). lia. }}\n",
        name(s), s.first, s.last);
  }
  return text;
}

/// What the kernel makes of a number that no f(x) is, but that f(x) may be rounded to.
std::string SpanWriter::apart(int numeral, bool m) const {
  const bool zero = numeral == 0;
  return fmt::format(
      R"(
Theorem {name}_at_{what} : let g := evaluate_backward kernel ({y}) {m} in
  is_finite_SF g = true /\ Rabs (SF2R radix2 g) <= {claim}.
Proof.
  cbv zeta. split; [vm_compute; reflexivity|].
  replace (SF2R radix2 (evaluate_backward kernel ({y}) {m})) with ({value}) by (symmetry; prove_value).
  apply Rabs_le. unfold AB, K. lra.
Qed.
)",
      fmt::arg("name", fit.name),
      fmt::arg("what", zero ? "zero"
                       : m  ? "minimum_right"
                            : "minimum_left"),
      fmt::arg("m", m), fmt::arg("y", zero ? "S754_zero true" : fmt::format("at_numeral ({})", numeral)),
      fmt::arg("claim", zero ? "AB" : "AB + K"),
      fmt::arg("value",
               number(static_cast<double>(deployed_gradient(model, zero ? -0.0f : at_numeral(numeral), m)))));
}

WitnessScript SpanWriter::theorem() const {
  const int first = right.front().first;
  std::string modules;
  for (const std::vector<Span>* side : {&right, &left}) {
    for (const Span& s : *side) modules += "\n  " + name(s);
  }
  std::string beside =
      "\n(* f x is rounded to -0 far on the left, where f' has the limit 0. *)" + apart(0, false);
  if (y_star_ - exactly(first - 1) < exactly(first) - y_star_)
    beside += "\n(* The number next below y_star, to which f x is rounded near x_star, where f' is 0. *)" +
              apart(first - 1, false) + apart(first - 1, true);
  return {
      fit.name + "_bound.v",
      fmt::format(
          R"((* The error of the kernel of {name} at every fp32 number. Written by outgrad certify --coq. *)

From Coq Require Import Reals ZArith SpecFloat Lia Lra.
From Flocq Require Import Core IEEE754.BinarySingleNaN.
From Outgrad Require Import Activation BranchPoint Format Kernel Continuum Span {name}_kernel.
From Outgrad Require{modules}.
Open Scope R_scope.

(* The header's bounds of A + B and of K, and how K falls where the coordinate grows. *)
Definition AB := {AB}.
Definition K := {K}.
Definition k := {k}.

Theorem {name}_bound : forall y v x, stands_for 24 128 y v -> f x = v ->
  let g := evaluate_backward kernel y (Rle_bool x_star x) in
  is_finite_SF g = true /\
    Rabs (SF2R radix2 g - f' x) <= AB + Rmin K (k / Rabs (coordinate x)).
Proof.
  intros y v x Y X. change (within kernel (Rle_bool x_star x) y x (bound_at AB K k x)).
  pose proof (minimum x) as Least.
  destruct (numeral_of 24 128 eq_refl eq_refl v) as (i & _ & V); [now apply stands_for_in_format in Y|].
  assert (First : (({first}) <= i)%Z).
  {{ destruct (Z_le_gt_dec ({first}) i) as [L|L]; trivial. exfalso.
    assert (N : F2R (numeral 24 128 i) <= value (at_numeral ({before}))).
    {{ rewrite at_numeral_value. apply (numeral_rises 24 128 eq_refl). lia. }}
    replace (value (at_numeral ({before}))) with ({before_value}) in N by (symmetry; prove_value).
    pose proof y_star_between as S. unfold y_low in S. lra. }}
  rewrite V in Y, X. destruct (Rle_bool_spec x_star x) as [R|L].
  - change (on_side true x) in R.
{right_cases}    apply {last_right}.beyond_error with (F2R (numeral 24 128 i)); trivial.
    rewrite at_numeral_value. apply (numeral_rises 24 128 eq_refl). lia.
  - change (on_side false x) in L. assert (I : (i < 0)%Z).
    {{ pose proof (negative_left x L) as N. destruct (Z_lt_le_dec i 0) as [J|J]; trivial. exfalso.
      pose proof (numeral_rises 24 128 eq_refl 0 i J) as P. rewrite X in N.
      change (F2R (numeral 24 128 0)) with (F2R (Float radix2 0 (-149))) in P. rewrite F2R_0 in P. lra. }}
{left_cases}Qed.
{beside})",
          fmt::arg("name", fit.name), fmt::arg("modules", modules), fmt::arg("AB", exact(Real(model.kAB))),
          fmt::arg("K", exact(Real(model.kK))), fmt::arg("k", exact(k_)), fmt::arg("first", first),
          fmt::arg("before", first - 1), fmt::arg("before_value", number_at(first - 1)),
          fmt::arg("right_cases", cases(right)), fmt::arg("left_cases", cases(left)),
          fmt::arg("last_right", name(right.back())), fmt::arg("beside", beside)),
      0, model.kAB + model.kK, 'G'};
}

}  // namespace

bool has_spans(const Fit& fit) {
  const auto* m = fit.as<BackwardModel>();
  return is_described(fit) && m->format == Format::f32 && m->kHasLeft && m->kHasRight && !m->of_product();
}

Groups span_scripts(const Fit& fit, const std::string& path) {
  if (!has_spans(fit))
    throw kernels::SpecError(path, "backward",
                             "a backward fit in f32 is needed whose kernel Coq's library has");
  const SpanWriter writer(fit);
  Groups groups{{constants_script(fit)}, {}, {}, {writer.theorem()}};
  groups[0][0].bound = 'G', groups[0][0].claim = 0;
  for (const std::vector<Span>* side : {&writer.right, &writer.left}) {
    for (const Span& s : *side) groups[2].push_back(writer.script(s));
  }
  return groups;
}

}  // namespace outgrad::approx::coq
