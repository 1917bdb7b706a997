// Takes a specification through partition, exchange, rounding and certificate to a fit.
#include "approx/search/fitter.h"

#include "approx/progress.h"
#include "approx/proof/certificate.h"
#include "approx/proof/product.h"
#include "approx/search/code_fit.h"
#include "approx/search/fp8_fit.h"
#include "approx/search/constants.h"
#include "approx/search/direct_table.h"
#include "approx/search/layouts.h"
#include "approx/search/partition.h"
#include "approx/search/rounded_forward.h"
#include "approx/search/rounding.h"
#include "approx/search/splitting.h"
#include "approx/search/storage_fit.h"
#include "approx/search/worst_input.h"
#include "kernels/eval.h"
#include "kernels/formats.h"
#include "kernels/host/errors.h"
#include "kernels/support/parallel.h"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace outgrad::approx {
namespace {

using kernels::SpecError;

/// Samples a piece is fitted on: 256 resolve the maxima of a degree-12 error to 1/1000 of their height.
constexpr int kSamples = 256;
/// Share of the target that the best real coefficients may take up before their degree is raised.
constexpr double kOneWordRoom = 0.9;
/// The same of two-word rows, whose c1 may lose as much again.
constexpr double kTwoWordRoom = 0.25;
/// What A may take of an ulp, class ulp of an f32 fit.
constexpr double kUlpShare = 1.0 / 8;

/// One row evaluated as the kernel does.
struct RowOps : kernels::FloatOps {
  float lookup(const RoundedFit& fit, kernels::u32, int word) const {
    return word == 0 ? fit.centre : fit.c[static_cast<size_t>(word) - 1];  // no forward row is a two-word one
  }
};

float deployed_value(const RoundedFit& fit, const Piece& piece, float x) {
  const int degree = static_cast<int>(fit.c.size()) - 1;
  if (piece.compensated) return kernels::evaluate_compensated(RowOps{}, fit, 0U, degree, x, piece.c1_low);
  const float p = kernels::evaluate_row(RowOps{}, fit, 0U, degree, x);
  return piece.scale == 1 ? p : kernels::mul_rn(p, static_cast<float>(piece.scale));
}

/// The stored values of a 16-bit format that lie in a piece, with the exact f: probes of which fit rounds
/// best. Those formats have forwards of their own; what is chosen by them stays what it was.
template <class T>
struct StoredArguments {
  static constexpr double kLeastProbe = 0x1p-9;  // f is all but x/2 below it, on a tie of the format
  std::vector<std::pair<float, Ball>> values;
  StoredArguments(const Composite& composite, const Piece& piece) {
    for (unsigned bits = 0; bits < 0x10000; ++bits) {
      const float x = kernels::widen(T{static_cast<kernels::u16>(bits)});
      const auto d = static_cast<double>(x);
      if (std::abs(d) >= kLeastProbe && d >= piece.v_lo && d <= piece.v_hi)
        values.emplace_back(x, composite.activation().value_ball(Ball(d)));
    }
  }
  /// x whose narrowed value is not the correctly rounded f(x); no f(x) of these lies on a rounding boundary.
  [[nodiscard]] int misrounded(const RoundedFit& fit, const Piece& piece) const {
    int count = 0;
    for (const auto& [x, exact] : values) {
      const float y = kernels::widen(kernels::narrow<T>(deployed_value(fit, piece, x)));
      const Ball off = abs(exact - Ball(y));
      const auto neighbour = [&](int step) {
        const auto bits = kernels::narrow<T>(y).bits;
        return static_cast<double>(kernels::widen(T{static_cast<kernels::u16>(bits + step)}));
      };
      const double y_d = static_cast<double>(y);
      const double gap_out = std::abs(neighbour(+1) - y_d),
                   gap_in =
                       (kernels::narrow<T>(y).bits & 0x7fffU) == 0 ? gap_out : std::abs(neighbour(-1) - y_d);
      const bool outward = (exact - Ball(y_d)).negative() == std::signbit(y);  // |exact| > |y|
      if (off.upper() > 0.5 * (outward ? gap_out : gap_in)) ++count;
    }
    return count;
  }
};

/// Largest error in ulp over some arguments of the piece, those next to the minimum counted fourfold: there,
/// within 0.1 of x*, an error of y is magnified into the gradient (0.51 ulp are allowed, 2 elsewhere).
struct UlpProbe {
  struct Value {
    float x;
    double exact, weight;
  };
  std::vector<Value> values;
  UlpProbe(const Composite& composite, const Piece& piece) {
    const double x_star = composite.masked() ? composite.x_star().to_double() : INFINITY;
    constexpr double kNearMinimum = 0.1, kNearWeight = 4;
    const bool near = piece.v_lo < x_star + kNearMinimum && piece.v_hi > x_star - kNearMinimum;
    const int probes = near ? 400000 : 300;  // of 2^20 floats: y is rounded anew at each
    for (int i = 0; i < probes; ++i) {
      const auto x = static_cast<float>(piece.v_lo + (piece.v_hi - piece.v_lo) * (i + 0.37) / probes);
      if (x == 0) continue;
      const bool weighted = std::abs(static_cast<double>(x) - x_star) <= kNearMinimum;
      // 2^-50 relative, 2^-27 ulp: libm's erfc is good enough to choose by.
      values.push_back(
          {x, composite.activation().value(static_cast<double>(x)), weighted ? kNearWeight : 1.0});
    }
  }
  [[nodiscard]] double worst(const RoundedFit& fit, const Piece& piece) const {
    double worst = 0;
    for (const auto& [x, exact, weight] : values) {
      const double ulp = std::ldexp(1.0, std::max(std::ilogb(exact), -126) - 23);
      worst = std::max(worst,
                       weight * std::abs(static_cast<double>(deployed_value(fit, piece, x)) - exact) / ulp);
    }
    return worst;
  }
};

/// Among rounded fits: first those that round the 16-bit formats correctly, if the sequence is GELU's, whose
/// choice goes back to when it served them; then the least error in ulp.
const RoundedFit& choose_forward(const Composite& composite, const Piece& piece,
                                 const std::vector<RoundedFit>& fits, double target) {
  const StoredArguments<kernels::F16> f16(composite, piece);
  const StoredArguments<kernels::BF16> bf16(composite, piece);
  const UlpProbe probe(composite, piece);
  const RoundedFit* best = nullptr;
  std::pair<int, double> least{};
  for (const RoundedFit& fit : fits) {
    if (best != nullptr && fit.error > target) continue;
    const std::pair cost{piece.compensated ? 0 : f16.misrounded(fit, piece) + bf16.misrounded(fit, piece),
                         probe.worst(fit, piece)};
    if (best == nullptr || cost < least) {
      best = &fit;
      least = cost;
    }
  }
  return *best;
}

/// Which samples of a row the deployed sequence asks for; all samples of a forward count.
std::function<bool(double)> asked_for(const BackwardModel* model, const Piece& p) {
  if (model == nullptr) return nullptr;
  return [model, &p](double v) { return asks_for(*model, p, v); };
}

/// The coefficients of one row, of the lowest degree that leaves room for rounding: a row that needs no more
/// has zeros in front, and a fit as near to its bound.
void fit_row(const Composite& composite, Piece& p, int degree, const BackwardModel* model) {
  const Samples samples = sample(composite, p, kSamples);
  p.degree = degree;
  if (p.target != Target::value_relative) {
    const double room = p.two_word ? kTwoWordRoom : kOneWordRoom;
    while (p.degree > 1 && minimax_level(samples, p, p.degree - 1) <= room * p.allowed) --p.degree;
  }
  const std::vector<RoundedFit> fits = fit_piece(samples, p, p.degree);
  const RoundedFit& chosen =
      p.target != Target::value_relative ? fits.front() : choose_forward(composite, p, fits, p.allowed);
  p.centre = chosen.centre;
  p.c = chosen.c;
  p.c0_low = chosen.c0_low;
  p.c.resize(static_cast<size_t>(degree) + 1, 0.0f);
  p.observed = chosen.error;
  p.found = measure(samples, chosen, asked_for(model, p));
}

void fit_piece(const Composite& composite, Piece& p, int degree, const BackwardModel* model) {
  if (p.constant) {
    p.centre = p.anchor->centre;
    p.c.assign(static_cast<size_t>(degree) + 1, 0.0f);
    p.c[0] = p.anchor->c0;
    return;
  }
  if (!p.storage_aware) fit_row(composite, p, degree, model);
  if (!std::all_of(p.c.begin(), p.c.end(), [](float c) { return std::isfinite(c); })) {
    throw SpecError(
        fmt::format("row {} (v in [{:.4g}, {:.4g}]) needs coefficients of degree {} beyond fp32: lower the "
                    "degree, or merge the left end earlier",
                    p.row, p.v_lo, p.v_hi, p.degree));
  }
  if (p.lower_bound > p.allowed) return;  // reported for all pieces together
  p.certified = certify_approximation(composite, p, 0);
  if (p.target != Target::value_relative) p.minimax_certified = certify_minimax(composite, p);
  if (model != nullptr) p.evaluation = certify_evaluation(*model, p);
  if (p.two_word) p.ulp = certify_ulp(*model, p);
}

void fit_pieces(const Composite& composite, std::vector<Piece>& pieces, int degree,
                const BackwardModel* model, Stage& rows) {
  kernels::for_each_task(pieces.size(), 0, [&](size_t i) {
    fit_piece(composite, pieces[i], degree, model);
    rows.tick();
  });
  flint_cleanup();
}

/// The bounds of rows whose coefficients were found elsewhere.
void certify_pieces(const Composite& composite, BackwardModel& model, Stage& rows) {
  kernels::for_each_task(model.pieces.size(), 0, [&](size_t i) {
    Piece& p = model.pieces[i];
    const Samples samples = sample(composite, p, kSamples);
    const RoundedFit fit{p.centre, p.c, p.c0_low, 0};
    p.observed = measure(samples, fit).error;
    p.found = measure(samples, fit, asked_for(&model, p));
    p.certified = certify_approximation(composite, p, 0);
    p.evaluation = certify_evaluation(model, p);
    rows.tick();
  });
  flint_cleanup();
}

/// What a row may err by where |g| >= least, in a fit in ulps.
double allowed_error(double least) {
  // ulp(1) counts for g next to 1, which is below it as well.
  return kUlpShare * std::ldexp(1.0, std::ilogb(std::max(std::nextafter(least, 0.0), kUlpFrom)) - 23);
}

double worst_of(const std::vector<Piece>& pieces, double Piece::* member) {
  double worst = 0;
  for (const Piece& p : pieces) worst = std::max(worst, p.*member);
  return worst;
}

void require_target(const std::string& name, const std::vector<Piece>& pieces) {
  for (const Piece& p : pieces) {
    if (p.lower_bound > p.allowed) {
      throw SpecError(
          fmt::format("{}: target 2^{:.2f} is out of reach: on row {} (x in [{:.4f}, {:.4f}]) no polynomial "
                      "of degree {} errs by less than "
                      "2^{:.2f} (proven)",
                      name, std::log2(p.allowed), p.row, static_cast<double>(p.x_lo),
                      static_cast<double>(p.x_hi), p.c.size() - 1, std::log2(p.lower_bound)));
    }
  }
  for (const Piece& p : pieces) {
    if (p.certified > p.allowed) {
      throw SpecError(fmt::format(
          "{}: target 2^{:.2f} is not reached: row {} (x in [{:.4f}, {:.4f}]) is certified to 2^{:.2f}; no "
          "polynomial of "
          "degree {} errs by less than 2^{:.2f} (proven)",
          name, std::log2(p.allowed), p.row, static_cast<double>(p.x_lo), static_cast<double>(p.x_hi),
          std::log2(p.certified), p.c.size() - 1, std::log2(p.lower_bound)));
    }
  }
}

/// What a specification asks of the shape of f.
/// @throws kernels::SpecError
void require_shape(const Composite& composite, const BackwardSpec& spec) {
  if (!composite.masked()) {
    if (carries_branch(spec.format))
      throw SpecError(
          fmt::format("format {}: f rises: there is no branch for y to carry", to_string(spec.format)));
    if (spec.left) throw SpecError("left_segment: f rises: it has no branch left of a minimum");
    if (spec.product != Format::f32)
      throw SpecError("product: f rises: g of a quotient is for an f with a minimum");
    if (spec.right_from) throw SpecError("right_from: f rises: every row is a polynomial in y already");
    return;
  }
  if (spec.product != Format::f32 && composite.activation().name == "expression")
    throw SpecError("product: is of an activation that has a name: its T is over all real x");
  // The branch m = 0 ends at y = -0, which kernels take for y > 0 there too. Beside the depth of the minimum
  // a smaller limit moves that end by nothing.
  constexpr double kSettledShare = 0x1p-10;
  const double y_star = composite.y_star().to_double(), limit = composite.left_limit();
  if (!(y_star < 0) || std::fabs(limit) > -y_star * kSettledShare) {
    throw SpecError(fmt::format(
        "f tends to {:.6g} at the left, from a minimum of {:.6g}: with a minimum f must tend to 0 there",
        limit, y_star));
  }
}

ForwardModel fit_forward(const Composite& composite, const Spec& spec, Stage& rows) {
  ForwardModel m = lay_out(composite, *spec.as<ForwardSpec>());
  rows.expect(static_cast<std::int64_t>(m.core.size() + m.tail.size()));
  for (auto* pieces : {&m.core, &m.tail}) {
    for (Piece& p : *pieces) p.allowed = spec.target;
  }
  fit_pieces(composite, m.core, m.kDegree, nullptr, rows);
  fit_pieces(composite, m.tail, m.kTailDegree, nullptr, rows);
  require_target(spec.name, m.core);
  require_target(spec.name, m.tail);
  m.kA = std::max(worst_of(m.core, &Piece::certified), worst_of(m.tail, &Piece::certified));
  return m;
}

/// A backward fit, step by step: constants, layout, rows, bounds.
class BackwardFitter {
 public:
  BackwardFitter(const Composite& composite, const Spec& spec, const std::vector<StorageInterval>& intervals)
      : composite_(composite), name_(spec.name), accuracy_(spec.accuracy), target_(spec.target),
        spec_(spec.backward()), layout_(spec_), intervals_(intervals) {}

  BackwardModel fit(Stage& rows) {
    choose_constants();
    lay_out_rows();
    if (minimum_ && follows_g()) bend_rows_near_minimum();
    rows.expect(static_cast<std::int64_t>(model_.pieces.size()));
    if (storage_aware()) {
      const StorageProgramme programme = fit_to_storage(model_, intervals_, spec_, target_);
      model_.programme_reached = programme.reached;
      model_.programme_dual = programme.dual;
      certify_pieces(composite_, model_, rows);
    } else {
      fit_to_g(rows);
    }
    bound_sequence();
    if (!intervals_.empty()) bound_storage();
    if (model_.of_product()) bound_product();
    model_.expected_ratio = constants_.expected_ratio;
    model_.expected_regret = constants_.expected_regret;
    return std::move(model_);
  }

 private:
  /// Ulps of an f32 gradient are bounded by A and B; those of a 16-bit format by enumeration.
  [[nodiscard]] bool in_ulps() const {
    return spec_.accuracy == AccuracyClass::ulp && spec_.format == Format::f32;
  }
  [[nodiscard]] bool storage_aware() const {
    return spec_.accuracy == AccuracyClass::stored ||
           (spec_.accuracy == AccuracyClass::ulp && spec_.format != Format::f32);
  }
  [[nodiscard]] bool follows_g() const { return !storage_aware() && !in_ulps(); }

  /// What g may be off by where it is taken to have reached its limit. Storage-aware fits have no A to reach:
  /// the clamp lies where g is within a quarter of what the class allows of its limit.
  [[nodiscard]] double budget() const {
    if (in_ulps()) return allowed_error(1);
    if (spec_.accuracy == AccuracyClass::ulp) return target_ * ulp_of(spec_.format, 1);
    return spec_.accuracy == AccuracyClass::stored ? spec_.storage.regret : target_;
  }

  void choose_constants() {
    if (!composite_.masked()) return;
    if (storage_aware() && spec_.cells == 1 && !spec_.left) {
      const ClampedConstants found = search_constants(composite_, intervals_, spec_, target_);
      constants_ = found.constants;
      layout_.y_max = found.y_max;
      layout_.s_min = found.s_min;
    } else {
      minimum_.emplace(composite_, spec_.format, spec_.product);
      constants_ = minimum_->choose_constants(spec_.storage);
    }
  }

  void lay_out_rows() {
    if (spec_.split == Split::levelled) breaks_ = levelled_breaks(composite_, spec_, constants_, target_);
    model_ = lay_out(composite_, layout_, constants_, budget(), breaks_);
    model_.product = spec_.product;
  }

  /// The row that holds s = 0 is the one that the folded preimages of the lowest stored y can bend. Not in
  /// ulps: errors that are small beside O cannot tell constants apart.
  void bend_rows_near_minimum() {
    fit_rows_within(minimum_->reach());
    constants_ = minimum_->choose_constants(spec_.storage, model_.pieces);
    lay_out_rows();
    if (!spec_.storage.programme) return;
    fit_rows_within(std::numeric_limits<double>::min());
    for (Piece& p : model_.pieces) {
      if (!p.storage_aware) continue;
      const Samples of_g = sample(composite_, p, kSamples);
      fit_piece(of_g, p, spec_.degree);  // what is reported is against g
      p.storage_aware = minimum_->fit(spec_.storage, constants_, p);
      const RoundedFit fit{p.centre, p.c, p.c0_low, 0};
      p.observed = measure(of_g, fit).error;
      p.found = measure(of_g, fit, asked_for(&model_, p));
    }
  }

  void fit_rows_within(double reach) {
    for (Piece& p : model_.pieces) {
      p.allowed = target_;
      if (p.coordinate != Coordinate::signed_root || p.constant || p.v_lo >= reach || p.v_hi <= -reach)
        continue;
      fit_row(composite_, p, spec_.degree, &model_);
      const bool holds_0 = p.v_lo < 0 && p.v_hi > 0 && !p.left_tail && !p.right_tail && !p.anchor;
      p.storage_aware = spec_.storage.programme && holds_0 && p.lower_bound <= p.allowed;
    }
  }

  void fit_to_g(Stage& rows) {
    for (Piece& p : model_.pieces) {
      p.allowed = target_;
      if (!in_ulps()) continue;
      p.two_word = true;
      const double a = static_cast<double>(composite_.gradient_at(p.x_lo)),
                   b = static_cast<double>(composite_.gradient_at(p.x_hi));
      p.allowed = allowed_error(a * b > 0 ? std::min(std::abs(a), std::abs(b)) : 0);
    }
    fit_pieces(composite_, model_.pieces, spec_.degree, &model_, rows);
    require_target(name_, model_.pieces);
    if (in_ulps()) require_ulps();
  }

  void require_ulps() {
    model_.kUlp = worst_of(model_.pieces, &Piece::ulp);
    if (model_.kUlp <= target_) return;
    const auto worst = std::max_element(model_.pieces.begin(), model_.pieces.end(),
                                        [](const Piece& a, const Piece& b) { return a.ulp < b.ulp; });
    throw SpecError(
        fmt::format("{}: target {} is not reached: row {} (x in [{:.4f}, {:.4f}]) is certified to {:.4f} "
                    "ulp: more rows make what is added to c0 "
                    "smaller",
                    name_, accuracy_, worst->row, static_cast<double>(worst->x_lo),
                    static_cast<double>(worst->x_hi), worst->ulp));
  }

  /// A, B, K and the limits of the whole.
  void bound_sequence() {
    BackwardModel& m = model_;
    m.kA = worst_of(m.pieces, &Piece::certified);
    m.kB = worst_of(m.pieces, &Piece::evaluation);
    for (const Piece& p : m.pieces)
      m.kAB = std::max(m.kAB, (absolute_bound(composite_, p) + p.evaluation) * kUp);
    if (!m.of_product()) {  // whose T has it
      const CoordinateBound coordinate = certify_coordinate(composite_, m);
      m.kK = coordinate.bound;
      if (m.kMasked) m.found["K"] = coordinate.found;
    }
    find_worst_inputs(composite_, m, intervals_);
    const Activation& f = composite_.activation();
    m.kExactLimits =
        deployed_gradient(m, INFINITY, true) == static_cast<float>(f.right_limit_gradient) &&
        deployed_gradient(m,
                          static_cast<float>(composite_.left_limit()) * (composite_.masked() ? -1.0f : 1.0f),
                          false) == static_cast<float>(f.left_limit_gradient);
  }

  /// T, O, R and, of a 16-bit format, the regret in ulp by enumeration: the intervals of f32 are those next
  /// to the minimum, and say nothing of it.
  void bound_storage() {
    BackwardModel& m = model_;
    const StorageErrors e = measure_storage(
        intervals_, spec_.format, [&](const StorageInterval& i) { return deployed_gradient(m, i.y, i.m); });
    m.kT = e.total;
    m.kO = e.oracle;
    m.kR = e.regret;
    if (m.format != Format::f32) {
      m.worst_ulp = e.worst_ulp;
      m.found.insert({{"T", e.worst_total}, {"O", e.worst_oracle}, {"R", e.worst_regret}});
    } else {
      double approximation = 0;
      for (const Piece& p : m.pieces) approximation = std::max(approximation, absolute_bound(composite_, p));
      const double beyond = (approximation + m.kB + certify_storage_beyond(composite_, m)) * kUp;
      m.kT = std::max(m.kT, beyond);
      m.kR = std::max(m.kR, beyond);
    }
    const bool kept = spec_.accuracy == AccuracyClass::ulp ? e.worst_ulp <= target_ * (1 + 0x1p-16)
                                                           : e.total <= target_ * e.oracle;
    if (storage_aware() && !(kept && e.regret <= spec_.storage.regret)) {
      throw SpecError(
          fmt::format("{}: as deployed T/O is {:.5f}, R 2^{:.2f}, {:.4f} ulp: rounding the coefficients lost "
                      "the target {}",
                      name_, e.total / e.oracle, std::log2(e.regret), e.worst_ulp, accuracy_));
    }
  }

  void bound_product() {
    BackwardModel& m = model_;
    const ProductErrors e = certify_product(composite_, m);
    m.kT = e.total;
    m.kO = e.oracle;
    m.found.insert({{"T", e.worst_total}, {"O", e.worst_oracle}});
    if (!(m.kT <= spec_.storage.ratio * m.kO))
      throw SpecError(fmt::format("{}: T/O is {:.5f}, with T {:.6f}; storage.ratio asks for {}", name_,
                                  m.kT / m.kO, m.kT, spec_.storage.ratio));
  }

  const Composite& composite_;
  const std::string& name_;
  const std::string& accuracy_;
  const double target_;
  const BackwardSpec& spec_;
  BackwardSpec layout_;  ///< the specification with the clamps that the constants were found with
  const std::vector<StorageInterval>& intervals_;
  CoordinateConstants constants_{0, 0, 0, 0, 0};
  std::optional<NearMinimum> minimum_;
  std::vector<float> breaks_;
  BackwardModel model_;
};

/// By the cheapest layout that reaches the target.
BackwardModel fit_found_layout(const Composite& composite, const Spec& spec,
                               const std::vector<StorageInterval>& intervals, Stage& rows) {
  const std::vector<std::string> layouts = layouts_within(composite, spec);
  // Quick looks are off by some percent: where the cheapest misses the target, the next does not.
  for (size_t k = 0;; ++k) {
    try {
      return BackwardFitter(composite, with_layout(spec, layouts[k]), intervals).fit(rows);
    } catch (const SpecError&) {
      if (k + 1 == layouts.size()) throw;
    }
  }
}

/// What a user may write in place of a layout that does not reach the target, after a semicolon.
std::string remedy(const Composite& composite, const Spec& spec,
                   const std::vector<StorageInterval>& intervals) {
  constexpr size_t kMostTried = 3;  // each is a whole fit
  Spec free = spec;
  std::get<BackwardSpec>(free.kind).degree = 0;
  try {
    std::vector<std::string> layouts = layouts_within(composite, free);
    layouts.resize(std::min(layouts.size(), kMostTried));
    for (const std::string& layout : layouts) {
      try {
        Stage rows("rows of another layout");
        BackwardFitter(composite, with_layout(free, layout), intervals).fit(rows);
        return "; try " + layout_in_place(spec, layout);
      } catch (const SpecError&) {  // the next one may
      }
    }
    return "";
  } catch (const SpecError& error) {
    return fmt::format("; {}", error.what());
  }
}

/// The rows as they are asked for; a refusal may end with a layout that reaches the target.
BackwardModel fit_given_layout(const Composite& composite, const Spec& spec,
                               const std::vector<StorageInterval>& intervals, bool advises, Stage& rows) {
  try {
    return BackwardFitter(composite, spec, intervals).fit(rows);
  } catch (const SpecError& error) {
    if (!advises || spec.activation.name != "expression" ||
        spec.backward().accuracy != AccuracyClass::absolute)
      throw;
    const std::string advice = remedy(composite, spec, intervals);
    throw SpecError(advice == fmt::format("; {}", error.what()) ? error.what() : error.what() + advice);
  }
}

}  // namespace

Fit fit(const Spec& spec, int threads, bool advises) {
  omp_set_num_threads(threads > 0 ? threads : omp_get_num_procs());
  const Composite composite(spec.activation);
  Fit result{
      spec.name, spec.activation.name, spec.activation.function, spec.accuracy, spec.sha256, spec.target, {}};
  Stage rows("rows");
  if (spec.as<ForwardSpec>()) {
    result.model = fit_forward(composite, spec, rows);
  } else if (const auto* rounded = spec.as<RoundedForwardSpec>()) {
    result.model = fit_rounded_forward(composite, *rounded, spec.name, rows);
  } else if (spec.as<CodeSpec>()) {
    result.model = fit_code(composite, spec);
  } else if (spec.as<Fp8Spec>()) {
    result.model = fit_fp8(composite, spec);
  } else {
    const BackwardSpec& backward = spec.backward();
    require_shape(composite, backward);
    const std::vector<StorageInterval> intervals = backward.product == Format::f32
                                                       ? storage_intervals(composite, backward.format)
                                                       : std::vector<StorageInterval>{};
    if (backward.accuracy == AccuracyClass::oracle) {
      result.model = direct_table(composite, backward, intervals);
    } else if (backward.split == Split::uniform && backward.cells == 0) {
      result.model = fit_found_layout(composite, spec, intervals, rows);
    } else {
      result.model = fit_given_layout(composite, spec, intervals, advises, rows);
    }
  }
  return result;
}

}  // namespace outgrad::approx
