// The brute force's verdict on a compiled header: which of its claims are contradicted by an output that was
// seen.
//
// Every judgement errs in favour of the header. A supremum is taken over the points that exist, none of which
// lies beyond what the claim covers. So a claim that is called false is false. Where a claim is two-sided (kO
// is the LEAST error of any function), too large a value is false as well.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "tests/attack/truth.h"

namespace outgrad::validation::gate {

/// A claim, and what was seen of its quantity.
struct Falsehood {
  std::string claim;
  double seen = 0, claimed = 0;
  double at = 0;  ///< y, or x of a forward header
  bool m = true;
  std::string text() const;
};

/// Curves and truths, each computed once. What was computed before a process forks is available in its
/// children.
class Library {
 public:
  /// Throws kernels::SpecError if the function cannot be read.
  const Curve& curve(const std::string& activation, const std::string& function);
  const Truth& truth(const Claims& claims);
  double coordinate_error(const Claims& claims, float& at);

 private:
  std::map<std::pair<std::string, std::string>, std::unique_ptr<Curve>> curves_;
  std::map<std::tuple<std::string, std::string, std::string, bool>, std::unique_ptr<Truth>> truths_;
  std::map<std::tuple<std::string, std::string, std::string, std::vector<double>>, std::pair<double, float>>
      coordinates_;
};

/// Whether the claims are about one and the same thing. If not, the only falsehood gives the reason: an
/// unknown format, a function that cannot be read, or a function that is not the named one.
std::vector<Falsehood> judge_subject(Library& library, const Claims& claims);

/// outcomes: those of truth.points. judge_subject must have found nothing.
std::vector<Falsehood> judge(Library& library, const Claims& claims, std::span<const Outcome> outcomes);

/// How sharp the judgement is.
struct Sight {
  /// the part of each claim that was seen: near 1 if the claim is sharp and the brute force looks in the
  /// right places
  std::map<std::string, double> shares;
  std::map<int, double> row_fits;  ///< the A seen of each row of a backward header
};
Sight sight_of(Library& library, const Claims& claims, std::span<const Outcome> outcomes);

}  // namespace outgrad::validation::gate
