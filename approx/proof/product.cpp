// Branch and bound over x for the gradients of quotients.
#include "approx/proof/product.h"

#include "approx/proof/certificate.h"
#include "kernels/host/errors.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <queue>

namespace outgrad::approx {
namespace {

/// T is claimed within this of the largest error that was seen.
constexpr double kWithin = 1 + 0x1p-9;
/// What is claimed of a range of f' leaves so much to x that are shown to be within it.
constexpr double kShown = 1 - 0x1p-20;
/// Cells that may be halved: a fit takes some thousands.
constexpr int kMostCells = 1 << 17;
/// A row's polynomial is followed from turn to turn in so many halvings; then its enclosure has to do.
constexpr int kTurns = 10;

/// The deployed root, which picks the row, is this near to the exact one.
constexpr double kRoundingOfRoot = 0x1p-22;

struct Span {
  double lo = INFINITY, hi = -INFINITY;
  void join(const Ball& b) {
    lo = std::min(lo, b.lower());
    hi = std::max(hi, b.upper());
  }
};

class Products {
 public:
  Products(const Composite& composite, const BackwardModel& model)
      : composite_(composite), model_(model), ball_(product_ball(model.product)) {}

  ProductErrors run() {
    for (const bool right : {true, false}) {
      tail(right);
      // 64 cells: none of them is so wide that f' over it has no bound
      constexpr int kStart = 64;
      const double star = star_of(right), end = end_of(right);
      double near = star;
      for (int k = 1; k <= kStart; ++k) {
        const double far = k == kStart ? end : star + (end - star) * k / kStart;
        add(near, far, right);
        near = far;
      }
    }
    for (int cells = 0; cells_.top().bound > errors_.worst_total.error * kWithin; ++cells) {
      if (cells == kMostCells) throw kernels::SpecError("undecided: T over the quotients of a product");
      const Cell cell = cells_.top();
      const double middle = 0.5 * (cell.near + cell.far);
      cells_.pop();
      look(middle, cell.right);
      add(cell.near, middle, cell.right);
      add(middle, cell.far, cell.right);
    }
    errors_.total = (std::max(cells_.top().bound, tails_) + model_.kB) * kUp;
    const Found worst = errors_.worst_total;
    errors_.worst_total = {};
    errors_.worst_total.see(error_at(static_cast<float>(worst.at), worst.m), worst.at, worst.m);
    for (const bool right : {true, false}) bound_below(right);
    return errors_;
  }

 private:
  /// The x from `near`, on the side of x*, to `far`.
  struct Cell {
    double near, far;
    bool right;
    double bound;
    bool operator<(const Cell& other) const { return bound < other.bound; }
  };

  /// Where a branch begins: x* lies beyond it.
  [[nodiscard]] double star_of(bool right) const {
    return right ? composite_.x_star().lower() : composite_.x_star().upper();
  }

  /// From where on its tail's bound speaks.
  [[nodiscard]] double end_of(bool right) const {
    return right ? composite_.activation().reach : -composite_.activation().reach;
  }

  /// f(x) and its ball upwards or downwards.
  [[nodiscard]] Ball moved(const Ball& y, int sign) const {
    return y + Ball(sign) * (Ball(ball_.relative) * abs(y) + Ball(ball_.absolute));
  }
  /// The f(x) that y is just within the ball of: the largest, or the least.
  [[nodiscard]] Ball source(double y, int sign) const {
    const Ball w = Ball(y) + Ball(sign * ball_.absolute);
    return w / Ball(w.positive() == (sign > 0) ? 1 - ball_.relative : 1 + ball_.relative);
  }

  void add(double near, double far, bool right) {
    const Ball x = Ball::hull(near, far);
    const Series g = composite_.gradient(x, 2);
    const Ball middle(0.5 * (near + far)), linear = composite_.gradient(middle, 1)[0] + g[1] * (x - middle);
    const double least = std::max(g[0].lower(), linear.lower()),
                 most = std::min(g[0].upper(), linear.upper());
    const Ball lowest =
        near == star_of(right) ? composite_.y_star() : composite_.activation().value_ball(Ball(near));
    const Span p = deployed_between(moved(lowest, -1).lower(),
                                    moved(composite_.activation().value_ball(Ball(far)), 1).upper(), right);
    const double bound = std::max(p.hi - least, most - p.lo) * kUp;
    if (!std::isfinite(bound)) throw kernels::SpecError("undecided: a bound is not finite");
    cells_.push({near, far, right, bound});
  }

  /// Beyond the activation's reach f' is at its limit, and y anywhere from there on.
  void tail(bool right) {
    const Activation& f = composite_.activation();
    const double end = end_of(right), limit = right ? f.right_limit_gradient : f.left_limit_gradient;
    const Span p = deployed_between(moved(f.value_ball(Ball(end)), -1).lower(),
                                    right ? std::numeric_limits<float>::max() : ball_.absolute, right);
    tails_ =
        std::max(tails_, (std::max(p.hi - limit, limit - p.lo) + f.gradient_tail(Ball(end), right)) * kUp);
  }

  /// The exact sequence over the y of one branch from one number to another, whichever rows these reach.
  [[nodiscard]] Span deployed_between(double from, double to, bool right) const {
    const auto most = static_cast<double>(model_.kYMax);
    const auto root = [&](double y) { return sqrt(max(Ball(y) - model_.y_c(), Ball(model_.kTMin))); };
    from = std::min(from, most), to = std::min(to, most);
    double least_s = root(from).lower(), most_s = root(to).upper();
    if (!right) {
      std::swap(least_s, most_s);
      least_s = -least_s, most_s = -most_s;
      if (!model_.kHasLeft)
        least_s = std::max(least_s, static_cast<double>(model_.kSMin)),
        most_s = std::max(most_s, static_cast<double>(model_.kSMin));
      from = std::min(from, 0.0), to = std::min(to, 0.0);
    }
    Span span;
    for (const Piece& piece : model_.pieces) {
      const bool core = piece.region == Region::core;
      if (!core && (piece.region == Region::right) != right) continue;
      const double room = kRoundingOfRoot * std::max(std::abs(piece.v_lo), std::abs(piece.v_hi)),
                   a = std::max(core ? least_s : from, piece.v_lo - room),
                   b = std::min(core ? most_s : to, piece.v_hi + room);
      if (a <= b) join_row(span, piece, a, b, kTurns);
    }
    if (!(span.lo <= span.hi)) throw kernels::SpecError("undecided: no row serves a quotient");
    return span;
  }

  static Ball value_of(const Piece& piece, const Ball& v) {
    const Ball u = v - Ball(piece.centre);
    Ball p(piece.c.back());
    for (size_t k = piece.c.size() - 1; k-- > 0;) p = p * u + Ball(piece.c[k]);
    return p;
  }

  /// What a row gives from a to b: between its turns, what it gives at the ends.
  static void join_row(Span& span, const Piece& piece, double a, double b, int turns) {
    const Ball v = Ball::hull(a, b), u = v - Ball(piece.centre);
    Ball slope(0.0);
    for (size_t k = piece.c.size() - 1; k > 0; --k)
      slope = slope * u + Ball(static_cast<double>(k)) * Ball(piece.c[k]);
    if (slope.positive() || slope.negative() || a == b) {
      span.join(value_of(piece, Ball(a)));
      span.join(value_of(piece, Ball(b)));
    } else if (turns == 0) {
      span.join(value_of(piece, v));
    } else {
      const double middle = 0.5 * (a + b);
      join_row(span, piece, a, middle, turns - 1);
      join_row(span, piece, middle, b, turns - 1);
    }
  }

  /// The error at the fp32 numbers next to both ends of the ball of x.
  void look(double x, bool right) {
    const Ball y = composite_.activation().value_ball(Ball(x));
    const double slope = composite_.gradient(Ball(x), 1)[0].to_double();
    for (const int sign : {-1, 1}) {
      const double end = moved(y, sign).to_double();
      auto s = static_cast<float>(end);
      if (sign * (static_cast<double>(s) - end) > 0) s = std::nextafter(s, sign > 0 ? -INFINITY : INFINITY);
      errors_.worst_total.see(std::abs(static_cast<double>(deployed_gradient(model_, s, right)) - slope),
                              static_cast<double>(s), right);
    }
  }

  /// f' at the x of a branch with this f(x), or at x* where there is none.
  [[nodiscard]] Ball slope_at(const Ball& y, bool right) const {
    if (!(y - composite_.y_star()).positive()) return Ball(0.0);
    return composite_.gradient(composite_.enclose_argument_of(y, right), 1)[0];
  }

  /// The largest error of one y, whose ball is next to x*, where f' is monotone.
  [[nodiscard]] double error_at(float y, bool right) const {
    const Ball g(deployed_gradient(model_, y, right));
    const auto at = static_cast<double>(y);
    return std::max(abs(g - slope_at(source(at, -1), right)).to_double(),
                    abs(g - slope_at(source(at, 1), right)).to_double());
  }

  /// The longest range of f' is that of the last y whose ball still reaches x*, where f' = 0.
  void bound_below(bool right) {
    auto y = static_cast<float>(moved(composite_.y_star(), 1).lower());
    while ((source(static_cast<double>(y), -1) - composite_.y_star()).positive())
      y = std::nextafter(y, -INFINITY);
    const double half =
        (abs(slope_at(source(static_cast<double>(y), 1), right)) * Ball(0.5)).lower() * kShown;
    errors_.oracle = std::max(errors_.oracle, half);
    errors_.worst_oracle.see(half, static_cast<double>(y), right);
  }

  const Composite& composite_;
  const BackwardModel& model_;
  const ProductBall ball_;
  std::priority_queue<Cell> cells_;
  double tails_ = 0;
  ProductErrors errors_;
};

}  // namespace

ProductErrors certify_product(const Composite& composite, const BackwardModel& model) {
  return Products(composite, model).run();
}

}  // namespace outgrad::approx
