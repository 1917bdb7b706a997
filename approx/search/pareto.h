/// The Pareto front of an activation and format: the fits worth choosing from, each cheaper or more exact
/// than the others.
///
/// Costs that are compared:
///   work         every operation from y to g that the evaluator of kernels/ performs, counted by running it
///                over a counting scalar: fma, add, mul, square roots, selects and comparisons, integer
///                operations, loads. A direct table has no arithmetic and some fifteen of the others; only
///                the sum compares it with a polynomial
///   depth        how many of these stand one behind the other at most: what Estrin's order buys with its
///                extra products
///   table_bytes  of the table, 0 where the coefficients are constants of the code
/// Errors that are compared: A + B (certified, of the same row), T and R (enumerated; 0 where f32 has no
/// minimum and none is listed).
///
/// A front of all non-dominated points would hold dozens that differ in the third digit. So a point covers
/// another if it costs no more and none of its errors is larger by more than a stated factor, and a front
/// holds points none of which covers another (the epsilon-dominance of Laumanns, Thiele, Deb and Zitzler,
/// "Combining convergence and diversity in evolutionary multiobjective optimization", 2002).
#pragma once

#include "approx/model/fit.h"
#include "approx/model/spec.h"

#include <string>
#include <vector>

namespace outgrad::approx {

/// Half a bit: to who picks a fit, errors A + B or R that differ by less are one choice. (A quarter of a bit
/// left 28 points for gelu in bf16, of which each had a neighbour that does as well.)
inline constexpr double kBoundFactor = 1.4142135623730951;  // 2^(1/2)
/// T is never below O; T/O <= 1.01 is the finest that a class asks for.
inline constexpr double kTotalFactor = 1.01;

/// What a fit costs and errs by. All the less the better.
struct Merit {
  int work = 0, depth = 0, table_bytes = 0;
  double a_plus_b = 0, total = 0, regret = 0;  ///< a table has no A and B: by R it is compared with fits
};

/// A + B and R below this are not told apart: a quarter of an error that storing a dx in [1, 2) in the format
/// makes itself; 2^-10 in bf16, 2^-13 in f16, what the accurate fits of these formats are asked for.
double error_resolution(Format format);

/// The regret, as a specification writes it, by which the constants of the format's fits are chosen.
const char* usual_regret(Format format);

/// Whether `q` costs no more than `p`, errs by no more than the factors above allow, and is cheaper in some
/// cost or more exact over all. Never both covers(q, p) and covers(p, q).
bool covers(const Merit& q, const Merit& p, Format format);

/// Indices into `all`, by ascending work, bytes and depth: none of these covers another, and each left out is
/// covered by one of them (or equals one).
std::vector<size_t> worth_choosing(const std::vector<Merit>& all, Format format);

/// A specification to be tried. Its costs are those of the fit, since they follow from the layout. Its errors
/// are estimates: from the minimax levels of its rows and what the exact g with the same constants errs, or
/// from its storage programme. A candidate that is covered by a fit already found, judged by these, is not
/// fitted: they only decide what is tried.
struct ParetoCandidate {
  std::string spec;
  Merit expected;
};

struct ParetoCandidates {
  Format format = Format::f32;
  std::vector<ParetoCandidate> candidates;  ///< cheapest first
  int too_coarse = 0;  ///< layouts left out: T above 2 O: of no use to training
  /// g is a polynomial of y: one fit has no error to speak of, and nothing trades cost for it
  bool exact = false;
};

/// Layouts over degree, number of rows, coordinate maps, evaluation schemes and classes. `definition` is
/// members of a specification: "activation": "silu" and the like. @throws kernels::SpecError
ParetoCandidates pareto_candidates(const std::string& name, const std::string& definition, Format format,
                                   int threads);

struct ParetoPoint {
  std::string spec;  ///< text of its specification, which `outgrad fit` takes as it is
  Fit fit;
  Cost cost;
  Merit merit;
  double oracle = 0;  ///< O; 0 where none is listed
};

/// Costs and errors of a fit. Of a direct table A + B is its R: its entries are the function itself on every
/// stored y.
ParetoPoint pareto_point(std::string spec, Fit fit);

struct ParetoFront {
  Format format = Format::f32;
  std::vector<ParetoPoint> points;  ///< by ascending work, bytes and depth
  /// How many candidates were there, were not fitted as covered already, were refused by the fitter, or were
  /// fitted and covered or too coarse.
  int tried = 0, skipped = 0, unreachable = 0, covered = 0, too_coarse = 0;
  bool exact = false;
};

/// Fits the candidates. Deterministic.
ParetoFront pareto_front(const ParetoCandidates& candidates, int threads);

inline constexpr const char* kFrontSchema = "outgrad.pareto/2";

/// A document of kFrontSchema.
std::string to_json(const ParetoFront& front, const std::string& activation);

/// Whether a file's text claims to be a front, of this schema or another version of it.
bool is_front(const std::string& text);

/// The specifications of a front's points, as to_json wrote them, by name. @throws kernels::SpecError "path:
/// key: why".
std::vector<Spec> specs_of_front(const std::string& text, const std::string& path);

}  // namespace outgrad::approx
