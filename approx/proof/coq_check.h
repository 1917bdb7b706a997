/// Has Coq check the bounds of a fit: the hand-written library, a file for A of each row, a file for each
/// Gappa script of B, those about the rows' ranges, those of T where they are asked for, and last of all what
/// all their theorems together assume.
///
/// A theorem counts as proven only if coqc accepts its file, over a library that is the committed one, and
/// nothing is assumed beyond a list. One that comes to no end within the limits of time and memory is
/// undecided.
#pragma once

#include "approx/model/fit.h"
#include "approx/proof/coq.h"
#include "approx/proof/coq_activation.h"

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace outgrad::approx::coq {

enum class Outcome { proven, refused, undecided };
const char* to_string(Outcome outcome);

/// One file, and how it fared.
struct Checked {
  std::string file;
  char bound = ' ';  ///< 'A', 'B' or 'T'; 'x': the ranges of x of the rows; ' ' for a file of the library
  int row = 0;
  double claim = 0;
  std::vector<std::string> theorems = {};
  Outcome outcome = Outcome::undecided;
  double seconds = 0, cpu_s = 0;  ///< the clock's, and the processors'
  std::size_t peak_bytes = 0;
  /// why it is not proven: "out of time", "out of memory", or what the program that refused it wrote
  std::string output = {};
};

struct CheckedFit {
  std::string coq, gappa;  ///< versions
  std::vector<Checked> library, bounds;
  Checked trust;  ///< the file that has the assumptions printed
  std::vector<std::string> assumptions;  ///< what all accepted theorems assume
  std::vector<std::string> unlisted;  ///< those that the list lacks, or has with another statement

  /// Everything is proven, and assumes nothing beyond the list.
  [[nodiscard]] bool holds() const;
};

/// The first error in what coqc wrote, in one line and without its place.
std::string error_in(const std::string& output);

/// Debian's, of what is needed.
inline constexpr const char* kCoqPackages = "coq, libcoq-interval, libcoq-gappa, gappa";

/// Fills in the versions of coqc and gappa, after a small proof in `folder` by all that the proofs use.
/// @throws kernels::EnvironmentError if a program is not there, or coqc lacks something: a line.
void find_programs(CheckedFit& checked, const std::string& folder);

/// Writes the hand-written library to `folder`, once its files have the digests of `sources`/library.sha256,
/// and compiles it: `sources`/*.v in the order of its _CoqProject, but those of other activations, as far as
/// A, B and the ranges need them, or, with `total`, all of them. Activation.v then names the module of
/// `activation`, and SwishSteepness.v is written anew. Stops at a file that is not accepted. @throws
/// kernels::SpecError for a file with another digest.
std::vector<Checked> compile_library(const std::string& sources, const std::string& folder, double limit_s,
                                     const KnownActivation& activation, bool total);

/// Writes a script of scripts() or gappa_scripts() to `folder`, which holds the compiled library, and has Coq
/// check it.
Checked check(const WitnessScript& script, const std::string& folder, double limit_s);

/// All of these, group by group, `threads` files at a time. `said` is called with each file in order, as soon
/// as it and those before it are done. @throws kernels::EnvironmentError as find_programs() does,
/// kernels::SpecError as compile_library() does.
CheckedFit check_all(const Groups& groups, const KnownActivation& activation, const std::string& sources,
                     const std::string& folder, double limit_s, int threads,
                     const std::function<void(const Checked&)>& said);

/// Schema outgrad.proofs/1, notebooks_data/proofs/README.md.
std::string to_json(const CheckedFit& checked, const Fit& fit);

}  // namespace outgrad::approx::coq
