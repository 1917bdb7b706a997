// Depth-first construction of a constrained space.
#include "autotune/space.h"

#include <algorithm>
#include <set>
#include <stdexcept>

namespace outgrad::autotune {

Space& Space::parameter(std::string name, std::vector<std::int64_t> values) {
  if (values.empty()) throw std::invalid_argument("parameter " + name + " has no values");
  if (std::set<std::int64_t>(values.begin(), values.end()).size() != values.size())
    throw std::invalid_argument("parameter " + name + " repeats a value");
  for (const Parameter& known : parameters_)
    if (known.name == name) throw std::invalid_argument("parameter " + name + " is declared twice");
  parameters_.push_back({std::move(name), std::move(values)});
  return *this;
}

Space& Space::constraint(std::string why, const std::vector<std::string>& over, Predicate holds) {
  Constraint added{std::move(why), {}, std::move(holds)};
  for (const std::string& name : over) added.over.push_back(index_of(name));
  constraints_.push_back(std::move(added));
  return *this;
}

std::size_t Space::index_of(const std::string& name) const {
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (parameters_[i].name == name) return i;
  throw std::invalid_argument("unknown parameter " + name);
}

Space::Points Space::construct(std::size_t most) const {
  Points points;
  for (const Parameter& parameter : parameters_) points.raw_size *= static_cast<double>(parameter.values.size());
  for (const Constraint& constraint : constraints_) points.cuts.push_back({constraint.why, 0});

  // due[d]: the constraints whose last parameter is parameter d, so that they are decided as soon as it has a value.
  std::vector<std::vector<std::size_t>> due(parameters_.size());
  for (std::size_t c = 0; c < constraints_.size(); ++c) {
    const auto& over = constraints_[c].over;
    if (!over.empty()) due[*std::max_element(over.begin(), over.end())].push_back(c);
  }
  Point point(parameters_.size()), seen;
  const auto first_failing = [&](std::size_t depth) -> const std::size_t* {
    for (const std::size_t& c : due[depth]) {
      seen.clear();
      for (const std::size_t p : constraints_[c].over) seen.push_back(point[p]);
      if (!constraints_[c].holds(seen)) return &c;
    }
    return nullptr;
  };
  const std::function<void(std::size_t)> assign = [&](std::size_t depth) {
    if (depth == parameters_.size()) {
      if (points.valid.size() == most) throw std::length_error("the space has more than " + std::to_string(most) + " points");
      points.valid.push_back(point);
      return;
    }
    for (const std::int64_t value : parameters_[depth].values) {
      point[depth] = value;
      if (const std::size_t* failing = first_failing(depth))
        ++points.cuts[*failing].partial_points;
      else
        assign(depth + 1);
    }
  };
  assign(0);
  return points;
}

std::string size_report(const Space::Points& points) {
  std::string text = std::to_string(static_cast<long long>(points.raw_size)) + " raw points, " + std::to_string(points.valid.size()) +
                     (points.valid.empty() ? " valid: contradictory constraints" : " valid");
  std::string cuts;
  for (const Space::Cut& cut : points.cuts)
    if (cut.partial_points > 0) cuts += (cuts.empty() ? "" : "; ") + cut.why + " (" + std::to_string(cut.partial_points) + ")";
  return cuts.empty() ? text : text + "; partial points cut by: " + cuts;
}

}  // namespace outgrad::autotune
