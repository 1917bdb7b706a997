// A search space given by parameters and constraints, and the points that satisfy them.
//
// Constraints are solved during construction: parameters are assigned in the order of their declaration, and
// a constraint is asked as soon as all of its own are, so that a partial point is abandoned there and the raw
// product is never enumerated. Whoever declares a space puts side by side what is constrained together. A
// parameter is a name and an ordered list of integer values; what the values mean is the business of that
// caller (autotune/space/variant.h for the CPU kernels).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace outgrad::autotune {

struct Parameter {
  std::string name;
  std::vector<std::int64_t> values;
  // the values are numbers of things, such as fits: neither order nor distance means anything
  bool nominal = false;
};

// One value per parameter, in the order in which the parameters were declared.
using Point = std::vector<std::int64_t>;

// What came of evaluating a point: its time (any unit, one for all), or nothing: it did not compile, crashed,
// hung or was wrong.
using Outcome = std::optional<double>;

// The valid points of a space, numbered in lexicographic order of value positions.
//
// A point is stored as its rank: its number in the raw product, in the same order. So 10^6 points are 8 MB,
// any of them is found by bisection, and a neighbour's rank is one addition away.
class Points {
 public:
  struct Cut {
    std::string why;
    // partial points abandoned because of this constraint alone (the first that failed)
    std::uint64_t partial_points = 0;
  };
  Points() = default;
  // Any points of the product, in any order. Throws std::length_error where the product exceeds 2^64,
  // std::invalid_argument for a repeated rank or one outside the product.
  Points(std::vector<Parameter> parameters, std::vector<std::uint64_t> ranks, std::vector<Cut> cuts = {});

  std::size_t size() const { return ranks_.size(); }
  bool empty() const { return ranks_.empty(); }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  double raw_size() const;  // the product of the lists' lengths
  const std::vector<Cut>& cuts() const { return cuts_; }  // one per constraint, in the order of declaration

  Point operator[](std::size_t index) const;
  std::uint64_t rank(std::size_t index) const { return ranks_[index]; }
  // of the parameter's value in its list
  std::size_t position(std::size_t index, std::size_t parameter) const {
    return static_cast<std::size_t>(ranks_[index] / strides_[parameter] %
                                    parameters_[parameter].values.size());
  }
  // Number of the point with these value positions, or with these values; none: it is not valid.
  std::optional<std::size_t> find(const std::vector<std::size_t>& positions) const;
  std::optional<std::size_t> find(const Point& values) const;
  // The points of one of `count` parts of about the same size, in which neighbours are strangers: the same
  // parts on every machine.
  Points part(std::size_t index, std::size_t count) const;
  // Those in which one parameter differs, in ascending order of parameter, then of value position.
  std::vector<std::size_t> neighbours(std::size_t index) const;

 private:
  std::optional<std::size_t> find_rank(std::uint64_t rank) const;

  std::vector<Parameter> parameters_;
  std::vector<std::uint64_t> strides_;  // of each parameter's position in a rank
  std::vector<std::uint64_t> ranks_;  // ascending
  std::vector<Cut> cuts_;
};

class Space {
 public:
  // What a constraint sees: the values of the parameters it named, in the order it named them. Called for
  // combinations in any order, also such as other constraints exclude.
  using Predicate = std::function<bool(const Point&)>;

  // Throws std::invalid_argument for an empty list of values, a repeated value or a repeated name.
  Space& parameter(std::string name, std::vector<std::int64_t> values);
  Space& nominal_parameter(std::string name, std::vector<std::int64_t> values);
  // `why` is the sentence the report prints, e.g. "table in registers: vectors of 512 bits". Throws
  // std::invalid_argument for an unknown parameter, a repeated one, or none.
  Space& constraint(std::string why, const std::vector<std::string>& over, Predicate holds);

  // Throws std::length_error past `most` valid points, or past 2^64 raw ones.
  Points construct(std::size_t most = 1'000'000) const;

  const std::vector<Parameter>& parameters() const { return parameters_; }
  std::size_t index_of(const std::string& name) const;  // throws std::invalid_argument for an unknown name

 private:
  struct Constraint {
    std::string why;
    std::vector<std::size_t> over;
    Predicate holds;
  };
  class Solver;
  std::vector<Parameter> parameters_;
  std::vector<Constraint> constraints_;
};

// "144 raw points, 96 valid; cut by: ..." in one line; with no valid point, the constraints that contradict
// the lists of values.
std::string size_report(const Points& points);

}  // namespace outgrad::autotune
