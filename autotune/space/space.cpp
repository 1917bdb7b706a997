// Depth-first construction of a constrained space over bit tables.
#include "autotune/space/space.h"

#include <algorithm>
#include <bit>
#include <cmath>
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

constexpr std::size_t kWord = 64;
std::size_t words_of(std::size_t bits) { return (bits + kWord - 1) / kWord; }

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

// One construction: tables of the constraints, an order of the parameters, the depth-first search.
class Space::Solver {
 public:
  Solver(const Space& space, std::size_t most)
      : parameters_(space.parameters_), constraints_(space.constraints_), most_(most),
        strides_(strides_of(parameters_)) {
    for (const Constraint& constraint : constraints_) {
      cuts_.push_back({constraint.why, 0});
      tables_.push_back(table_of(constraint));
    }
    choose_order();
    for (std::size_t c = 0; c < constraints_.size(); ++c) make_filters(c);
    for (const std::size_t p : order_) masks_.emplace_back(words_of(length(p)));
    at_.resize(order_.size());
  }

  Points solve() && {
    if (order_.empty())
      ranks_.push_back(0);  // the empty product is one point
    else
      assign(0, 0);
    return Points(parameters_, std::move(ranks_), std::move(cuts_));
  }

 private:
  // Up to so many combinations a constraint is tabulated: a few milliseconds of calls. A wider one is asked
  // at its last parameter.
  static constexpr double kTableCombinations = 1 << 20;

  // A constraint's verdict over all combinations of its parameters, the last named one fastest; empty: too
  // many.
  struct Table {
    std::vector<char> holds;
    double share = 1;  // of combinations that hold
  };
  // What a constraint says of one parameter when those of its parameters that come before it are assigned.
  struct Filter {
    std::size_t constraint = 0;
    // (depth, factor): the row is the sum of position x factor
    std::vector<std::pair<std::size_t, std::size_t>> before;
    // bits of the values that can be completed; empty: ask the predicate
    std::vector<std::uint64_t> rows;
  };

  std::size_t length(std::size_t parameter) const { return parameters_[parameter].values.size(); }

  Table table_of(const Constraint& constraint) const {
    double combinations = 1;
    for (const std::size_t p : constraint.over) combinations *= static_cast<double>(length(p));
    const bool whole = combinations <= kTableCombinations;
    constexpr std::size_t kSample = 1024;  // enough to order parameters by
    const std::size_t count = whole ? static_cast<std::size_t>(combinations) : kSample;
    Table table{std::vector<char>(whole ? count : 0), 0};
    std::size_t held = 0;
    Point values(constraint.over.size());
    std::uint64_t scrambled = 1;
    for (std::size_t n = 0; n < count; ++n) {
      std::uint64_t rest = n;
      for (std::size_t i = values.size(); i-- > 0;) {
        // Knuth's MMIX generator
        if (!whole) rest = scrambled = scrambled * 6364136223846793005u + 1442695040888963407u;
        const auto& list = parameters_[constraint.over[i]].values;
        values[i] = list[(whole ? rest : rest >> 33) % list.size()];
        rest /= list.size();
      }
      const bool holds = constraint.holds(values);
      held += holds;
      if (whole) table.holds[n] = static_cast<char>(holds);
    }
    table.share = (static_cast<double>(held) + 0.5) / (static_cast<double>(count) + 1);
    return table;
  }

  // Greedy: next comes the parameter whose constraints, weighted by how many of their parameters are then
  // assigned, cut most for its length. Parameters that no constraint names come last: they only multiply.
  void choose_order() {
    std::vector<bool> assigned(parameters_.size());
    depth_of_.resize(parameters_.size());
    for (std::size_t depth = 0; depth < parameters_.size(); ++depth) {
      std::size_t best = parameters_.size();
      double best_score = 0;
      for (std::size_t p = 0; p < parameters_.size(); ++p) {
        if (assigned[p]) continue;
        double score = std::log(static_cast<double>(length(p)));
        bool constrained = false;
        for (std::size_t c = 0; c < constraints_.size(); ++c) {
          const auto& over = constraints_[c].over;
          if (std::find(over.begin(), over.end(), p) == over.end()) continue;
          constrained = true;
          const auto known =
              std::count_if(over.begin(), over.end(), [&](std::size_t q) { return assigned[q]; });
          score +=
              std::log(tables_[c].share) * static_cast<double>(known + 1) / static_cast<double>(over.size());
        }
        if (!constrained) score += 1e9;
        if (best == parameters_.size() || score < best_score) best = p, best_score = score;
      }
      assigned[best] = true;
      depth_of_[best] = depth;
      order_.push_back(best);
    }
    filters_.resize(order_.size());
  }

  void make_filters(std::size_t c) {
    std::vector<std::size_t> over = constraints_[c].over, factor(over.size());
    std::size_t product = 1;
    for (std::size_t i = over.size(); i-- > 0;) factor[i] = product, product *= length(over[i]);
    std::vector<std::size_t> turn(over.size());  // its parameters by depth
    for (std::size_t i = 0; i < turn.size(); ++i) turn[i] = i;
    std::sort(turn.begin(), turn.end(),
              [&](std::size_t a, std::size_t b) { return depth_of_[over[a]] < depth_of_[over[b]]; });
    if (tables_[c].holds.empty()) {
      filters_[depth_of_[over[turn.back()]]].push_back({c, {}, {}});
      return;
    }
    // possible[row]: whether the combination of the first k + 1 parameters (by depth) can be completed; k
    // from the last down.
    std::vector<char> possible(product);
    for (std::size_t n = 0; n < product; ++n) {
      std::size_t rest = n, at = 0;
      for (std::size_t k = turn.size(); k-- > 0;) {
        at += rest % length(over[turn[k]]) * factor[turn[k]];
        rest /= length(over[turn[k]]);
      }
      possible[n] = tables_[c].holds[at];
    }
    for (std::size_t k = turn.size(); k-- > 0;) {
      const std::size_t values = length(over[turn[k]]), words = words_of(values),
                        rows = possible.size() / values;
      Filter filter{c, {}, std::vector<std::uint64_t>(rows * words)};
      std::vector<char> shorter(rows);
      for (std::size_t n = 0; n < possible.size(); ++n) {
        if (!possible[n]) continue;
        filter.rows[n / values * words + n % values / kWord] |= std::uint64_t{1} << (n % values % kWord);
        shorter[n / values] = 1;
      }
      std::size_t step = words;
      for (std::size_t i = k; i-- > 0;) {
        filter.before.push_back({depth_of_[over[turn[i]]], step});
        step *= length(over[turn[i]]);
      }
      // A table of ones says nothing; the last one stands for the constraint all the same.
      if (k + 1 == turn.size() || std::find(possible.begin(), possible.end(), 0) != possible.end())
        filters_[depth_of_[over[turn[k]]]].push_back(std::move(filter));
      possible = std::move(shorter);
    }
  }

  void apply(const Filter& filter, std::vector<std::uint64_t>& mask, std::size_t depth) {
    std::uint64_t cut = 0;
    if (!filter.rows.empty()) {
      std::size_t row = 0;
      for (const auto& [before, factor] : filter.before) row += at_[before] * factor;
      for (std::size_t w = 0; w < mask.size(); ++w) {
        cut += static_cast<std::uint64_t>(std::popcount(mask[w] & ~filter.rows[row + w]));
        mask[w] &= filter.rows[row + w];
      }
    } else {
      const auto& over = constraints_[filter.constraint].over;
      seen_.resize(over.size());
      for (std::size_t i = 0; i < over.size(); ++i) {
        const std::size_t known = depth_of_[over[i]];
        if (known != depth) seen_[i] = parameters_[over[i]].values[at_[known]];
      }
      const auto self =
          static_cast<std::size_t>(std::find(over.begin(), over.end(), order_[depth]) - over.begin());
      for (std::size_t w = 0; w < mask.size(); ++w)
        for (std::uint64_t left = mask[w]; left != 0; left &= left - 1) {
          seen_[self] =
              parameters_[order_[depth]].values[w * kWord + static_cast<std::size_t>(std::countr_zero(left))];
          if (constraints_[filter.constraint].holds(seen_)) continue;
          mask[w] &= ~(left & (~left + 1));
          ++cut;
        }
    }
    cuts_[filter.constraint].partial_points += cut;
  }

  void assign(std::size_t depth, std::uint64_t rank) {
    std::vector<std::uint64_t>& mask = masks_[depth];
    const std::size_t values = length(order_[depth]);
    std::fill(mask.begin(), mask.end(), ~std::uint64_t{0});
    if (values % kWord != 0) mask.back() = (std::uint64_t{1} << (values % kWord)) - 1;
    for (const Filter& filter : filters_[depth]) apply(filter, mask, depth);
    const std::uint64_t stride = strides_[order_[depth]];
    for (std::size_t w = 0; w < mask.size(); ++w)
      for (std::uint64_t left = mask[w]; left != 0; left &= left - 1) {
        at_[depth] = w * kWord + static_cast<std::size_t>(std::countr_zero(left));
        const std::uint64_t next = rank + stride * at_[depth];
        if (depth + 1 < order_.size()) {
          assign(depth + 1, next);
        } else {
          if (ranks_.size() == most_)
            throw std::length_error("the space has more than " + std::to_string(most_) + " points");
          ranks_.push_back(next);
        }
      }
  }

  const std::vector<Parameter>& parameters_;
  const std::vector<Constraint>& constraints_;
  std::size_t most_;
  std::vector<std::uint64_t> strides_;
  std::vector<Table> tables_;
  std::vector<std::size_t> order_, depth_of_;  // parameter at each depth, depth of each parameter
  std::vector<std::vector<Filter>> filters_;  // by depth
  std::vector<std::vector<std::uint64_t>> masks_;  // by depth: values still possible
  std::vector<std::size_t> at_;  // by depth: position of the value assigned
  Point seen_;
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
