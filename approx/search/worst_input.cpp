// Evaluates the deployed sequence at stored y, of f32 at some of each row, and keeps the largest errors.
#include "approx/search/worst_input.h"

#include "approx/proof/certificate.h"
#include "kernels/host/errors.h"
#include "kernels/support/parallel.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace outgrad::approx {
namespace {

/// The y of an f32 fit that are looked at, over all rows.
constexpr size_t kLooks = size_t{1} << 18;
constexpr double kGoldenRatio = 0x1.3c6ef372fe95p-1;

/// The y of one row at which the sequence was seen to be above and below its exact value the most.
struct Extremes {
  Found above, below;
};

/// The sequence in double arithmetic, which is exact beside fp32. A row's polynomial is that of
/// kernels/eval.h.
double evaluate(const BackwardModel& m, const Piece& piece, float y, bool right) {
  double v = static_cast<double>(std::min(y, m.kYMax));
  if (piece.coordinate == Coordinate::signed_root) {
    const double root = std::sqrt(std::max(v - static_cast<double>(m.kYHi) - static_cast<double>(m.kYLo),
                                           static_cast<double>(m.kTMin)));
    v = right ? root : m.kHasLeft ? -root : std::max(-root, static_cast<double>(m.kSMin));
  } else if (!m.kMasked) {
    v = std::max(v, static_cast<double>(m.kYMin));
  }
  const double u = v - (m.kCentred ? static_cast<double>(piece.centre) : 0.0);
  double p = 0;
  for (size_t k = piece.c.size(); k-- > 0;) p = p * u + static_cast<double>(piece.c[k]);
  return p + static_cast<double>(piece.c0_low);
}

struct StoredY {
  float y;
  bool m;
};

/// The float whose deployed coordinate is about v.
StoredY stored_at(const BackwardModel& m, const Piece& piece, double v) {
  if (piece.coordinate != Coordinate::signed_root)
    return {static_cast<float>(v), !m.kMasked || piece.region == Region::right};
  return {static_cast<float>(static_cast<double>(m.kYHi) + static_cast<double>(m.kYLo) + v * v), v > 0};
}

/// Next to an end of its range, rounding can lead to another row, or to another coordinate of the same one.
bool asks_for(const BackwardModel& m, const Piece& piece, const StoredY& stored) {
  const auto place = deployed_place(m, stored.y, stored.m);
  const bool at_root = m.kMasked && place.v == deployed_coordinate(m, stored.y, stored.m);
  return static_cast<int>(place.row) == piece.row && at_root == (piece.coordinate == Coordinate::signed_root);
}

void look(const BackwardModel& m, const Piece& piece, const StoredY& stored, Extremes& seen) {
  if (!asks_for(m, piece, stored)) return;
  const double off =
      static_cast<double>(deployed_gradient(m, stored.y, stored.m)) - evaluate(m, piece, stored.y, stored.m);
  (off > 0 ? seen.above : seen.below).see(std::abs(off), static_cast<double>(stored.y), stored.m);
}

/// Multiples of the golden ratio modulo 1 are evenly spread, and no row has them on a coarse grid of floats,
/// where sums would be exact.
void look_at_row(const BackwardModel& m, const Piece& piece, Extremes& seen) {
  const size_t looks = kLooks / m.pieces.size();
  for (size_t i = 1; i <= looks; ++i) {
    const double place = std::fmod(static_cast<double>(i) * kGoldenRatio, 1.0);
    look(m, piece, stored_at(m, piece, piece.v_lo + (piece.v_hi - piece.v_lo) * place), seen);
  }
}

/// g at the coordinate that the constants make of y; nothing where that leaves no enclosure of x, far in a
/// tail.
std::optional<Ball> gradient_of(const Composite& composite, const BackwardModel& m, const Piece& piece,
                                float y, bool right) {
  Ball value(static_cast<double>(y));
  if (piece.coordinate == Coordinate::signed_root)
    value = composite.y_star() + max(value - m.y_c(), Ball(m.kTMin));
  try {
    return composite.gradient(composite.enclose_argument_of(value, right), 1)[0];
  } catch (const kernels::SpecError&) {
    return {};
  }
}

/// What one y says of B, A + B, and A + B in ulp.
struct Errors {
  Found evaluation, both, ulps;

  void see(const Composite& composite, const BackwardModel& m, const Piece& piece, const Found& candidate) {
    if (candidate.error == 0) return;
    const auto y = static_cast<float>(candidate.at);
    const Ball deployed(static_cast<double>(deployed_gradient(m, y, candidate.m)));
    evaluation.see(std::abs((deployed - exact_evaluation(m, piece, y, candidate.m)).to_double()),
                   candidate.at, candidate.m);
    if (m.format != Format::f32) return;
    const std::optional<Ball> g = gradient_of(composite, m, piece, y, candidate.m);
    if (!g) return;
    const double off = std::abs((deployed - *g).to_double()), size = std::abs(g->to_double());
    both.see(off, candidate.at, candidate.m);
    if (size >= kUlpFrom) ulps.see(off / std::ldexp(1.0, std::ilogb(size) - 23), candidate.at, candidate.m);
  }
  void see(const Errors& other) {
    evaluation.see(other.evaluation), both.see(other.both), ulps.see(other.ulps);
  }
};

}  // namespace

bool asks_for(const BackwardModel& model, const Piece& piece, double v) {
  if (v < piece.v_lo || v > piece.v_hi) return false;
  // The floats on both sides of the real y.
  const auto [y, m] = stored_at(model, piece, v);
  return asks_for(model, piece, {std::nextafter(y, -INFINITY), m}) &&
         asks_for(model, piece, {std::nextafter(y, INFINITY), m});
}

void find_worst_inputs(const Composite& composite, BackwardModel& model,
                       const std::vector<StorageInterval>& intervals) {
  std::vector<Extremes> extremes(model.pieces.size());
  if (model.format == Format::f32) {
    for (size_t row = 0; row < extremes.size(); ++row) look_at_row(model, model.pieces[row], extremes[row]);
  } else {
    for (const StorageInterval& i : intervals) {
      const auto row = static_cast<size_t>(deployed_place(model, i.y, i.m).row);
      look(model, model.pieces[row], {i.y, i.m}, extremes[row]);
    }
  }
  std::vector<Errors> rows(model.pieces.size());
  kernels::for_each_task(rows.size(), 0, [&](size_t i) {
    for (const Found& candidate : {extremes[i].above, extremes[i].below})
      rows[i].see(composite, model, model.pieces[i], candidate);
  });
  flint_cleanup();
  Errors worst;
  for (const Errors& row : rows) worst.see(row);
  model.found["B"] = worst.evaluation;
  if (model.format != Format::f32) return;
  model.found["AB"] = worst.both;
  if (model.kTwoWord) model.found["ulp"] = worst.ulps;
}

}  // namespace outgrad::approx
