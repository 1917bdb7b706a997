// Depth-first construction of a constrained space.
#include "autotune/space/space.h"

#include <algorithm>
#include <set>
#include <stdexcept>

#include "kernels/support/random.h"

namespace outgrad::autotune {
namespace {

// strides[p]: how much the rank grows by one step in p's list; the last parameter runs fastest.
std::vector<std::uint64_t> strides_of(const std::vector<Parameter>& parameters) {
  std::vector<std::uint64_t> strides(parameters.size());
  std::uint64_t product = 1;
  for (std::size_t p = parameters.size(); p-- > 0;) {
    strides[p] = product;
    if (__builtin_mul_overflow(product, parameters[p].values.size(), &product))
      throw std::length_error("the space has more than 2^64 raw points");
  }
  return strides;
}

}  // namespace

Points::Points(std::vector<Parameter> parameters, std::vector<std::uint64_t> ranks, std::vector<Cut> cuts)
    : parameters_(std::move(parameters)), strides_(strides_of(parameters_)), ranks_(std::move(ranks)),
      cuts_(std::move(cuts)) {
  std::sort(ranks_.begin(), ranks_.end());
  if (std::adjacent_find(ranks_.begin(), ranks_.end()) != ranks_.end())
    throw std::invalid_argument("a point occurs twice");
  if (!ranks_.empty() && static_cast<double>(ranks_.back()) >= raw_size())
    throw std::invalid_argument("a rank lies outside the product");
}

double Points::raw_size() const {
  double product = 1;
  for (const Parameter& parameter : parameters_) product *= static_cast<double>(parameter.values.size());
  return product;
}

Point Points::operator[](std::size_t index) const {
  Point values(parameters_.size());
  for (std::size_t p = 0; p < values.size(); ++p) values[p] = parameters_[p].values[position(index, p)];
  return values;
}

std::optional<std::size_t> Points::find_rank(std::uint64_t rank) const {
  const auto at = std::lower_bound(ranks_.begin(), ranks_.end(), rank);
  if (at == ranks_.end() || *at != rank) return std::nullopt;
  return static_cast<std::size_t>(at - ranks_.begin());
}

std::optional<std::size_t> Points::find(const std::vector<std::size_t>& positions) const {
  if (positions.size() != parameters_.size()) return std::nullopt;
  std::uint64_t rank = 0;
  for (std::size_t p = 0; p < positions.size(); ++p) {
    if (positions[p] >= parameters_[p].values.size()) return std::nullopt;
    rank += strides_[p] * positions[p];
  }
  return find_rank(rank);
}

std::optional<std::size_t> Points::find(const Point& values) const {
  if (values.size() != parameters_.size()) return std::nullopt;
  std::vector<std::size_t> positions(values.size());
  for (std::size_t p = 0; p < values.size(); ++p) {
    const auto& list = parameters_[p].values;
    positions[p] = static_cast<std::size_t>(std::find(list.begin(), list.end(), values[p]) - list.begin());
  }
  return find(positions);
}

Points Points::part(std::size_t index, std::size_t count) const {
  Points kept = *this;
  std::erase_if(kept.ranks_, [&](std::uint64_t rank) { return kernels::next_random(rank) % count != index; });
  return kept;
}

std::vector<std::size_t> Points::neighbours(std::size_t index) const {
  std::vector<std::size_t> found;
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    const std::size_t here = position(index, p);
    for (std::size_t to = 0; to < parameters_[p].values.size(); ++to) {
      if (to == here) continue;
      if (const auto neighbour = find_rank(ranks_[index] - strides_[p] * here + strides_[p] * to))
        found.push_back(*neighbour);
    }
  }
  return found;
}

Space& Space::parameter(std::string name, std::vector<std::int64_t> values) {
  if (values.empty()) throw std::invalid_argument("parameter " + name + " has no values");
  if (std::set<std::int64_t>(values.begin(), values.end()).size() != values.size())
    throw std::invalid_argument("parameter " + name + " repeats a value");
  for (const Parameter& known : parameters_)
    if (known.name == name) throw std::invalid_argument("parameter " + name + " is declared twice");
  parameters_.push_back({std::move(name), std::move(values)});
  return *this;
}

Space& Space::nominal_parameter(std::string name, std::vector<std::int64_t> values) {
  parameter(std::move(name), std::move(values));
  parameters_.back().nominal = true;
  return *this;
}

Space& Space::constraint(std::string why, const std::vector<std::string>& over, Predicate holds) {
  Constraint added{std::move(why), {}, std::move(holds)};
  for (const std::string& name : over) added.over.push_back(index_of(name));
  if (std::set<std::size_t>(added.over.begin(), added.over.end()).size() != over.size() || over.empty())
    throw std::invalid_argument("constraint '" + added.why + "' names no parameter, or one twice");
  constraints_.push_back(std::move(added));
  return *this;
}

std::size_t Space::index_of(const std::string& name) const {
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (parameters_[i].name == name) return i;
  throw std::invalid_argument("unknown parameter " + name);
}

// One construction: a depth-first search over the parameters as they were declared, which asks a constraint
// as soon as all of its parameters are assigned.
class Space::Solver {
 public:
  Solver(const Space& space, std::size_t most)
      : parameters_(space.parameters_), constraints_(space.constraints_), most_(most),
        strides_(strides_of(parameters_)), asked_(parameters_.size()), values_(parameters_.size()) {
    for (std::size_t c = 0; c < constraints_.size(); ++c) {
      cuts_.push_back({constraints_[c].why});
      asked_[std::ranges::max(constraints_[c].over)].push_back(c);
    }
  }

  Points solve() && {
    assign(0, 0);
    return Points(parameters_, std::move(ranks_), std::move(cuts_));
  }

 private:
  bool holds(std::size_t c) {
    seen_.clear();
    for (const std::size_t p : constraints_[c].over) seen_.push_back(values_[p]);
    return constraints_[c].holds(seen_);
  }

  void assign(std::size_t p, std::uint64_t rank) {
    if (p == parameters_.size()) {
      if (ranks_.size() == most_)
        throw std::length_error("the space has more than " + std::to_string(most_) + " points");
      ranks_.push_back(rank);
      return;
    }
    for (const std::int64_t value : parameters_[p].values) {
      values_[p] = value;
      const auto broken = std::ranges::find_if_not(asked_[p], [&](std::size_t c) { return holds(c); });
      if (broken == asked_[p].end())
        assign(p + 1, rank);
      else
        ++cuts_[*broken].partial_points;
      rank += strides_[p];
    }
  }

  const std::vector<Parameter>& parameters_;
  const std::vector<Constraint>& constraints_;
  std::size_t most_;
  std::vector<std::uint64_t> strides_;
  std::vector<std::vector<std::size_t>> asked_;  // constraints, by the last of their parameters
  Point values_, seen_;
  std::vector<std::uint64_t> ranks_;
  std::vector<Points::Cut> cuts_;
};

Points Space::construct(std::size_t most) const { return Solver(*this, most).solve(); }

namespace {

// 1216 as 1,216
std::string grouped(std::uint64_t count) {
  std::string digits = std::to_string(count);
  for (std::size_t place = digits.size(); place > 3;) digits.insert(place -= 3, ",");
  return digits;
}

}  // namespace

std::string size_report(const Points& points) {
  std::string text = std::to_string(static_cast<long long>(points.raw_size())) + " raw points, " +
                     std::to_string(points.size()) +
                     (points.empty() ? " valid: contradictory constraints" : " valid");
  std::string cuts;
  for (const Points::Cut& cut : points.cuts())
    if (cut.partial_points > 0)
      cuts += "; " + grouped(cut.partial_points) + " combinations left out, because " + cut.why;
  return text + cuts;
}

}  // namespace outgrad::autotune
