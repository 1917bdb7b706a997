// The verdict of the brute force on a compiled header: which of its claims an output that was seen contradicts.
//
// Every judgement errs to the header's side: a suprema is taken over the points there are, of which none lies beyond what the claim covers, so a claim that is called
// false is false. Where a claim is two-sided (kO is the LEAST error of any function), too much is false as well.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "validation/attack/truth.h"

namespace outgrad::validation::gate {

/// A claim beside what was seen of it.
struct Falsehood {
  std::string claim;
  double seen = 0, claimed = 0;
  double at = 0;  ///< y, or x of a forward header
  bool m = true;
  std::string text() const;
};

/// Curves and truths, made once. What was asked before a process forks is there in its children.
class Library {
 public:
  /// Throws kernels::SpecError where the function cannot be read.
  const Curve& curve(const std::string& activation, const std::string& function);
  const Truth& truth(const Claims& claims);
  double coordinate_error(const Claims& claims, float& at);

 private:
  std::map<std::pair<std::string, std::string>, std::unique_ptr<Curve>> curves_;
  std::map<std::tuple<std::string, std::string, std::string, bool>, std::unique_ptr<Truth>> truths_;
  std::map<std::tuple<std::string, std::string, std::string, std::vector<double>>, std::pair<double, float>> coordinates_;
};

/// Whether two claims are about the same thing at all; else its one falsehood says why not (an unknown format, a function that cannot be read, another one than its name's).
std::vector<Falsehood> judge_subject(Library& library, const Claims& claims);

/// outcomes: of truth.points. Assumes that judge_subject found nothing.
std::vector<Falsehood> judge(Library& library, const Claims& claims, std::span<const Outcome> outcomes);

/// How sharp a judgement is.
struct Sight {
  std::map<std::string, double> shares;  ///< how much of each claim was seen: near 1 where the claim is sharp and the brute force looks where it matters
  std::map<int, double> row_fits;  ///< the A seen of each row of a backward header
};
Sight sight_of(Library& library, const Claims& claims, std::span<const Outcome> outcomes);

}  // namespace outgrad::validation::gate
