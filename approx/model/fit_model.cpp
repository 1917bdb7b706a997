// Says what a model costs, by the evaluator of kernels/eval.h over a scalar that counts, and what it gives,
// by the same over floats.
#include "approx/model/fit_model.h"

#include "kernels/direct.h"
#include "kernels/eval.h"
#include "kernels/formats.h"

#include <algorithm>
#include <cmath>

namespace outgrad::approx {
namespace {

/// A value of the counted sequence: how many counted operations stand one behind the other to make it.
struct Chain {
  int depth = 0;
};

struct CountingOps {
  using Value = Chain;
  using Mask = Chain;
  using Row = Chain;

  Cost& cost;
  bool immediate;  ///< one row: its coefficients are constants of the code

  [[nodiscard]] Chain constant(float) const { return {}; }
  [[nodiscard]] Chain fma(Chain a, Chain b, Chain c) const { return count(cost.arithmetic, a, b, c); }
  [[nodiscard]] Chain sub(Chain a, Chain b) const { return count(cost.arithmetic, a, b); }
  [[nodiscard]] Chain mul(Chain a, Chain b) const { return count(cost.arithmetic, a, b); }
  [[nodiscard]] Chain sqrt(Chain a) const { return count(cost.roots, a); }
  // a sign bit, taken into the select or the next operation
  [[nodiscard]] Chain negate(Chain a) const { return a; }
  [[nodiscard]] Chain at_least(Chain a, Chain b) const { return count(cost.selects, a, b); }
  [[nodiscard]] Chain at_most(Chain a, Chain b) const { return count(cost.selects, a, b); }
  [[nodiscard]] Chain non_positive(Chain a) const { return count(cost.selects, a); }
  [[nodiscard]] Chain select(Chain m, Chain a, Chain b) const { return count(cost.selects, m, a, b); }
  [[nodiscard]] Chain less(Chain a, Chain b) const { return count(cost.selects, a, b); }
  [[nodiscard]] Chain less_equal(Chain a, Chain b) const { return count(cost.selects, a, b); }
  [[nodiscard]] Chain neither(Chain a, Chain b) const { return count(cost.integer, a, b); }
  [[nodiscard]] Chain first_row() const { return {}; }
  [[nodiscard]] Chain next_row(Chain row, Chain m) const { return count(cost.integer, row, m); }
  [[nodiscard]] Chain row_index(Chain q, int) const { return count(cost.integer, q); }
  [[nodiscard]] Chain octave_row(Chain z, int, int, int, int, int) const {
    constexpr int kSteps = 8;  // shift, and, max, add, shift, subtract, max, add: each on the one before
    cost.integer += kSteps;
    return {z.depth + kSteps};
  }
  template <class Table>
  [[nodiscard]] Chain lookup(const Table&, Chain row, int) const {
    return immediate ? Chain{} : count(cost.loads, row);
  }

  // Direct tables: operations on codes and places are integer ones, selects among them.
  [[nodiscard]] Chain low_bits(Chain row, int) const { return count(cost.integer, row); }
  [[nodiscard]] Chain above(Chain row, int) const { return count(cost.integer, row); }
  [[nodiscard]] Chain constant_row(int) const { return {}; }
  [[nodiscard]] Chain row_in(Chain row, Chain first, Chain last, Chain shift) const {
    return count(cost.integer, count(cost.integer, count(cost.integer, row, first), last), shift);
  }
  template <class Entry, class Table>
  [[nodiscard]] Chain entry(const Table&, Chain row) const {
    return count(cost.loads, row);
  }

 private:
  static Chain count(int& counter, Chain a, Chain b = {}, Chain c = {}) {
    ++counter;
    return {1 + std::max({a.depth, b.depth, c.depth})};
  }
};

/// What evaluate_direct asks of a header; the numbers do not change what it does.
template <bool kIsMasked>
struct DirectShape {
  static constexpr bool kMasked = kIsMasked;
  static constexpr const char* kEntryFormat = kernels::Format<kernels::F16>::kName;
  int kUpperFirst = 0, kUpperLast = 0, kUpperBase = 0, kLowerFirst = 0, kLowerLast = 0, kLowerBase = 0,
      kLeftFirst = 0, kLeftLast = 0, kLeftBase = 0;
};

template <bool kMasked>
Cost direct_cost() {
  Cost cost;
  constexpr int kNoTable = 0;
  cost.depth = kernels::evaluate_direct<kernels::F16>(CountingOps{cost, false}, DirectShape<kMasked>{},
                                                      kNoTable, Chain{}, Chain{}, Chain{})
                   .depth;
  return cost;
}

struct PieceOps : kernels::FloatOps {
  float lookup(const std::vector<Piece>& pieces, kernels::u32 row, int word) const {
    if (row >= pieces.size()) return 0;  // what a header holds in rows that are not listed
    return pieces[row].word(word);
  }
};

}  // namespace

const char* to_string_scheme(int scheme) {
  return scheme == kernels::kEstrin ? "estrin" : scheme == kernels::kEvenOdd ? "even_odd" : "horner";
}

const char* to_string(Region r) {
  switch (r) {
    case Region::core: return "core";
    case Region::right: return "right";
    case Region::right_mirrored: return "right_mirrored";
    case Region::left: return "left";
  }
  return "";
}

Cost cost_of(const BackwardModel& model) {
  Cost cost;
  constexpr int kNoTable = 0;  // the counting lookup does not look at it
  cost.depth =
      kernels::evaluate_backward(CountingOps{cost, model.kRows == 1}, model, kNoTable, Chain{}, Chain{})
          .depth;
  const int words = model.words() - (model.kCentred ? 0 : 1);
  cost.table_bytes = model.kRows == 1 ? 0 : static_cast<int>(sizeof(float)) * model.kRows * words;
  return cost;
}

Cost cost_of_direct(bool masked) { return masked ? direct_cost<true>() : direct_cost<false>(); }

float deployed_coordinate(const BackwardModel& model, float y, bool m) {
  return kernels::evaluate_coordinate(kernels::FloatOps{}, model, kernels::FloatOps{}.at_most(y, model.kYMax),
                                      m);
}

kernels::Place<kernels::FloatOps> deployed_place(const BackwardModel& model, float y, bool m) {
  return kernels::evaluate_place(kernels::FloatOps{}, model, y, m);
}

float deployed_gradient(const BackwardModel& model, float y, bool m) {
  return kernels::evaluate_backward(PieceOps{}, model, model.pieces, y, m);
}

float TableModel::at(std::uint32_t code, bool m) const {
  const int shift = shape_of(format).sign_bit();
  const bool negative = (code >> shift & 1U) != 0, is_left = kMasked && !m;
  const Segment& s = is_left ? left : negative ? lower : upper;
  const int magnitude = is_left && !negative ? 0 : static_cast<int>(code & ((1U << shift) - 1));
  return widened(entry_format,
                 entries[static_cast<size_t>(s.base + std::clamp(magnitude, s.first, s.last) - s.first)]);
}

}  // namespace outgrad::approx
