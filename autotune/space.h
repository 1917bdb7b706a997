// A search space given by parameters and constraints, and the points that satisfy them.
//
// Constraints are solved during construction: a partial point is abandoned as soon as a constraint over the parameters assigned
// so far fails, so the raw product is never enumerated. A parameter is a name and an ordered list of integer values; what the
// values mean is the business of whoever declares the space (autotune/variant.h for the CPU kernels).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace outgrad::autotune {

struct Parameter {
  std::string name;
  std::vector<std::int64_t> values;
};

// One value per parameter, in the order in which the parameters were declared.
using Point = std::vector<std::int64_t>;

class Space {
 public:
  // What a constraint sees: the values of the parameters it named, in the order it named them.
  using Predicate = std::function<bool(const Point&)>;

  // Throws std::invalid_argument for an empty list of values, a repeated value or a repeated name.
  Space& parameter(std::string name, std::vector<std::int64_t> values);
  // `why` is the sentence the report prints, e.g. "table in registers: vectors of 512 bits". Throws std::invalid_argument for an
  // unknown parameter.
  Space& constraint(std::string why, const std::vector<std::string>& over, Predicate holds);

  struct Cut {
    std::string why;
    std::uint64_t partial_points = 0;  // partial points abandoned because of this constraint alone (the first that failed)
  };
  struct Points {
    std::vector<Point> valid;  // in lexicographic order of value positions
    double raw_size = 1;       // the product of the lists' lengths
    std::vector<Cut> cuts;     // one per constraint, in the order of declaration
  };
  // Throws std::length_error past `most` valid points.
  Points construct(std::size_t most = 1'000'000) const;

  const std::vector<Parameter>& parameters() const { return parameters_; }
  std::size_t index_of(const std::string& name) const;  // throws std::invalid_argument for an unknown name

 private:
  struct Constraint {
    std::string why;
    std::vector<std::size_t> over;
    Predicate holds;
  };
  std::vector<Parameter> parameters_;
  std::vector<Constraint> constraints_;
};

// "144 raw points, 96 valid; cut by: ..." in one line; with no valid point, the constraints that contradict the lists of values.
std::string size_report(const Space::Points& points);

}  // namespace outgrad::autotune
