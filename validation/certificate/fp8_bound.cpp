// Covers the scales by cells, and encloses f' over what a code and its bits stand for in each.
#include "validation/certificate/fp8_bound.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include "kernels/catalogue/codes.h"
#include "kernels/formats.h"
#include "kernels/stores/fp8.h"
#include "kernels/support/bounds.h"
#include "validation/exact/activation.h"
#include "validation/limits.h"

namespace outgrad::validation {
namespace {

constexpr double kTableRounding = 0x1p-22, kExtremumRoom = 0x1p-24;
// More than the product's rounding, and than the 4 ulp that an fp32 y may be below the minimum.
constexpr double kEndRoom = 0x1p-20;
// Cells of v are not halved below this width, relative.
constexpr double kNarrowest = 0x1p-22;
// What a scale needs is looked at where the bound is as near to the claim as this.
constexpr double kNearClaim = 0.99;

template <class A, class Fit>
void add_codes(std::map<std::string, DeployedCodes>& all) {
  if constexpr (Fit::kMasked) {
    using Forward = typename A::template Forward<float>;
    const auto gradient = [](float x) {
      return kernels::fitted_gradient<Fit, Forward>(x, kernels::forward_at<Forward>(x));
    };
    all[Fit::kActivation] = {A::Code::kName, Fit::kName,
                             Fit::kFunction, (Interval(Fit::kAB) + Fit::kK).upper(),
                             Fit::kTMin,     {Fit::kAB, Fit::kYHi, Fit::kYLo, gradient}};
  }
}

// Both lists are in the order of the names.
template <class... A, class... Fit>
std::map<std::string, DeployedCodes> list_codes(kernels::CodedList<A...>, kernels::FitList<Fit...>) {
  std::map<std::string, DeployedCodes> all;
  (add_codes<A, Fit>(all), ...);
  return all;
}

// Certain f(x) at x from the minimum outwards, in order: they enclose an argument without a search, to their
// distance.
class Nodes {
 public:
  Nodes(const Activation& activation, bool right) {
    constexpr int kNodes = 4096;
    constexpr double kReach = 6;
    const double star = right ? activation.x_star().upper() : activation.x_star().lower();
    for (int i = 0; i <= kNodes; ++i) {
      const double x = star + (right ? 1 : -1) * kReach * i / kNodes;
      const Interval value = activation.only().f.at<0>(Interval(x))[0];
      nodes_.push_back({x, value.lower(), value.upper()});
    }
    beyond_ = right ? kInfinity : -kInfinity;
  }
  // An x not further out, and one not further in, than the x with f(x) = y.
  double within(double y) const {
    const auto after =
        std::partition_point(nodes_.begin(), nodes_.end(), [&](const Node& node) { return node.most <= y; });
    return after == nodes_.begin() ? nodes_.front().x : std::prev(after)->x;
  }
  double outside(double y) const {
    const auto at =
        std::partition_point(nodes_.begin(), nodes_.end(), [&](const Node& node) { return node.least < y; });
    return at == nodes_.end() ? beyond_ : at->x;
  }

 private:
  struct Node {
    double x, least, most;
  };
  std::vector<Node> nodes_;
  double beyond_;
};

// f' over part of one side of the minimum.
using Slopes = std::optional<Interval>;

// Cuts into `parts`: the longest part of the better of an equal cut of the whole and equal cuts on either
// side of a gap.
double longest_part(const Slopes& left, const Slopes& right, int parts) {
  if (!left && !right) return 0;
  const Interval whole = left && right ? hull(*left, *right) : left ? *left : *right;
  double longest = (Interval(whole.width()) / parts).upper();
  if (left && right && certainly_less(*left, *right)) {
    for (int k = 1; k < parts; ++k) {
      longest = std::min(longest, std::max((Interval(left->width()) / k).upper(),
                                           (Interval(right->width()) / (parts - k)).upper()));
    }
  }
  return longest;
}

// A code whose |y| lie from r v to v, v from `least` to `most`; without an end, from v on.
struct Shape {
  int code;
  bool negative, endless, both;  // both: the code of -0 and +0, with as many y on either side of 0
  double ratio, least, most;
  double far;  // v = far / scale
};

class Totals {
 public:
  Totals(const Fp8Header& h, const std::string& format, Fp8Claims claims)
      : activation_(activation_of(h.activation, h.function, true)), format_(format),
        four_bits_(format == "mxfp4" || format == "nvfp4"), claims_(claims), floor_(0),
        left_(activation_, false), right_(activation_, true) {
    const DeployedCodes& codes = *deployed_codes(h.activation);
    floor_ = (Interval(h.room) + codes.fit_error + kTableRounding).upper();
  }

  std::vector<Finding> run() {
    const std::vector<Shape> all = format_ == "sign" ? signs() : shapes();
    for (const Shape& shape : all) {
      if (format_ == "mxfp4") {
        for (double v = shape.most; v >= shape.least; v /= 2) see(shape, v, v);
      } else {
        cover(shape);
      }
    }
    const bool any = std::any_of(exceeded_.begin(), exceeded_.end(), [](bool exceeded) { return exceeded; });
    if (any) {
      for (const Shape& shape : all) refute(shape);
    }
    std::vector<Finding> findings;
    for (size_t bits = 0; bits < proven_.size(); ++bits) {
      Finding finding{fmt::format("{} T{}", format_, bits), Verdict::Holds, claims_.total[bits],
                      proven_[bits]};
      // At the scale that needs most, no function of a code and so many bits is nearer to every f'(x).
      const double reachable = reachable_[bits];
      finding.why = fmt::format("{:.6f} where {:.6f} is the least that any table reaches at scale {:.9g}",
                                kernels::decimals_up(finding.claim, 6), -kernels::decimals_up(-reachable, 6),
                                scale_[bits]);
      if (finding.claim < reachable) {
        finding.verdict = Verdict::Violated;
        finding.witness = Witness{scale_[bits], reachable, finding.claim};
      } else if (!(finding.proven <= finding.claim)) {
        finding.verdict = Verdict::Undecided;
        finding.why = fmt::format("only {:.9g} is proven", finding.proven);
      }
      findings.push_back(std::move(finding));
    }
    return findings;
  }

 private:
  double number(int code) const {
    const auto bits = static_cast<kernels::u8>(code);
    if (format_ == "int8") return static_cast<double>(kernels::widen(kernels::I8{bits}));
    if (four_bits_) return static_cast<double>(kernels::widen(kernels::F4E2M1{bits}));
    return static_cast<double>(format_ == "e4m3" ? kernels::widen(kernels::F8E4M3{bits})
                                                 : kernels::widen(kernels::F8E5M2{bits}));
  }

  std::vector<Shape> shapes() const {
    const int binade = format_ == "e4m3" ? 8 : 4;  // codes of one
    const double end = format_ == "mxfp4" ? 8 : format_ == "nvfp4" ? 6.375 : kInfinity;  // y s is below
    int largest = four_bits_ ? 7 : 0x7f;
    while (!std::isfinite(number(largest))) --largest;
    std::vector<Shape> all;
    for (int code = 0; code <= largest; ++code) {
      const double near = code == 0 ? 0 : (number(code - 1) + number(code)) / 2,
                   far = code == largest ? (std::isfinite(end) ? end : number(code))
                                         : (number(code) + number(code + 1)) / 2;
      const bool endless = code == largest && !std::isfinite(end);
      // The interval of a normal number is twice that of its half, if this is a normal number above the
      // least.
      const bool alone = format_ == "int8" || four_bits_ || code <= 2 * binade || code == largest,
                 first_of_its_kind = !alone && code <= 3 * binade;
      if (!alone && !first_of_its_kind) continue;
      for (const bool negative : {false, true}) {
        const bool both = format_ == "int8" && code == 0;
        if (both && !negative) continue;
        Shape shape{code, negative, endless, both, endless ? 1 : near / far, 0, kInfinity, far};
        if (endless) shape.far = near;
        if (alone)
          shape.least = shape.far / static_cast<double>(claims_.most),
          shape.most = shape.far / static_cast<double>(claims_.least);
        all.push_back(shape);
      }
    }
    return all;
  }

  // All y from 0 on, and all below: no code has more, and at a very small scale the codes of +-0 have nearly
  // all.
  static std::vector<Shape> signs() {
    constexpr double kSmallScale = 0x1p-100;
    std::vector<Shape> all;
    for (const bool negative : {false, true}) all.push_back({0, negative, true, false, 0, 1, 1, kSmallScale});
    return all;
  }

  // f' over the x of a side with f(x) in [low, high]; roughly to the distance of the nodes.
  Slopes slopes(bool right, double low, double high, bool rough) const {
    const Interval& y_star = activation_.y_star();
    if (high < y_star.lower() || (!right && low >= 0)) return {};
    const Nodes& nodes = right ? right_ : left_;
    const auto argument = [&](double y) {
      const Interval root = sqrt(maximum(Interval(y) - y_star, 0));
      return activation_.inverse_signed_root(right ? root : -root);
    };
    const Interval inner = rough                  ? Interval(nodes.within(low))
                           : low > y_star.upper() ? argument(low)
                                                  : activation_.x_star();
    const bool endless = right ? !std::isfinite(high) : high >= 0;
    const Interval outer = endless ? Interval(right ? kInfinity : -kInfinity)
                           : rough ? Interval(nodes.outside(high))
                                   : argument(high);
    const Interval range = right ? activation_.only().slopes(inner.lower(), outer.upper())
                                 : activation_.only().slopes(outer.lower(), inner.upper());
    // f' is positive right of the minimum and negative left of it.
    return right ? maximum(range, 0) : minimum(range, 0);
  }

  using Lengths = std::array<double, 3>;
  Lengths lengths(const Shape& shape, double least, double most, double room, bool rough = false) const {
    const double near = (Interval(least) * shape.ratio * (Interval(1) - room)).lower();
    const double far = shape.endless ? kInfinity : (Interval(most) * (Interval(1) + room)).upper();
    const Slopes left = shape.negative ? slopes(false, -far, -near, rough) : Slopes{},
                 right = shape.negative ? slopes(true, -far, shape.both ? far : -near, rough)
                                        : slopes(true, near, far, rough);
    return {longest_part(left, right, 1), longest_part(left, right, 2), longest_part(left, right, 4)};
  }

  void cover(const Shape& shape) {
    // Beyond, no y is negative, or f' has its limit.
    const double end = shape.negative && !shape.both
                           ? (absolute(activation_.y_star()) * 2 / std::max(shape.ratio, 0.25)).upper()
                           : 0x1p10;
    struct Cell {
      double from, to;
    };
    std::vector<Cell> pending{{shape.least, std::min(shape.most, end)}};
    if (shape.least >= end) pending.clear();
    if (shape.most > end) see(shape, std::max(end, shape.least), shape.most);
    while (!pending.empty()) {
      const Cell cell = pending.back();
      pending.pop_back();
      const Lengths over = near_lengths(shape, cell.from, cell.to);
      const double middle = cell.from + (cell.to - cell.from) / 2;
      if (!holds(over) && cell.to - cell.from > cell.to * kNarrowest) {
        pending.insert(pending.end(), {{cell.from, middle}, {middle, cell.to}});
        continue;
      }
      enter(shape, over, middle);
    }
  }
  void see(const Shape& shape, double least, double most) {
    enter(shape, near_lengths(shape, least, most), least);
  }

  // As roughly as the claims allow: an argument that is enclosed exactly takes a thousand times as long as
  // one between two nodes.
  Lengths near_lengths(const Shape& shape, double least, double most) const {
    const Lengths rough = lengths(shape, least, most, kEndRoom, true);
    return holds(rough) ? rough : lengths(shape, least, most, kEndRoom);
  }

  double total(double length) const { return (Interval(length) / 2 + floor_).upper(); }
  // For the bits that no narrow cell has yet shown to exceed their claim.
  bool holds(const Lengths& over) const {
    for (size_t b = 0; b < over.size(); ++b) {
      if (!exceeded_[b] && total(over[b]) > claims_.total[b]) return false;
    }
    return true;
  }

  void enter(const Shape& shape, const Lengths& over, double v) {
    for (size_t b = 0; b < over.size(); ++b) {
      const double here = total(over[b]);
      if (exceeded_[b] || here <= proven_[b]) continue;
      proven_[b] = here;
      exceeded_[b] = here > claims_.total[b];
      if (here > claims_.total[b] * kNearClaim) need(shape, v);
    }
  }

  // What the scale with that v needs.
  void need(const Shape& shape, double v) {
    double scale = shape.far / v;
    if (std::isfinite(shape.most))
      scale = std::clamp(scale, static_cast<double>(claims_.least), static_cast<double>(claims_.most));
    while (scale < static_cast<double>(claims_.least)) scale *= 2;
    while (scale > static_cast<double>(claims_.most)) scale /= 2;
    if (!(scale >= static_cast<double>(claims_.least))) return;
    constexpr double kInner = 0x1p-20;  // of the enclosures, and of the fp32 x next to a real one
    const Lengths at = lengths(shape, v, v, 0);
    for (size_t b = 0; b < at.size(); ++b) {
      const double needed = at[b] / 2 - kInner;
      if (needed > reachable_[b]) reachable_[b] = needed, scale_[b] = scale;
    }
  }

  // Looks for a scale that a claim is too small for. The codes next to 0 need most at the ends of the range
  // of scales, the first of a binade where their interval begins next to the minimum.
  void refute(const Shape& shape) {
    constexpr int kFirst = 3;
    if (!shape.negative || shape.endless) return;
    if (shape.code < kFirst) need(shape, shape.most), need(shape, shape.least);
    if (std::isfinite(shape.most) || number(shape.code) / std::exp2(std::ilogb(number(shape.code))) > 1.25)
      return;
    for (const double part : {0.985, 0.99, 1.0}) need(shape, part * absolute(activation_.y_star()).lower());
  }

  const Activation& activation_;
  std::string format_;
  bool four_bits_;
  Fp8Claims claims_;
  double floor_;
  Nodes left_, right_;
  Lengths proven_{}, reachable_{}, scale_{};
  std::array<bool, 3> exceeded_{};
};

}  // namespace

const DeployedCodes* deployed_codes(const std::string& activation) {
  static const auto all = list_codes(kernels::CodedActivations{}, kernels::ActivationFits<float>::Type{});
  const auto found = all.find(activation);
  return found == all.end() ? nullptr : &found->second;
}

Finding prove_fp8_extrema(const Fp8Header& h) {
  const Activation& activation = activation_of(h.activation, h.function, true);
  const Formula& f = activation.only();
  Finding finding{"extrema", Verdict::Holds, kExtremumRoom, 0, "f' is least and greatest there"};
  for (const bool right : {false, true}) {
    const double y = right ? h.greatest_at : h.least_at;
    const Interval range = right ? f.slopes(activation.x_star().lower(), kInfinity)
                                 : f.slopes(-kInfinity, activation.x_star().upper());
    const Interval above = Interval(y) - activation.y_star();
    double off = kInfinity;
    if (above.positive() && (right || y < 0)) {
      const Interval x = activation.inverse_signed_root(right ? sqrt(above) : -sqrt(above)),
                     slope = f.slopes(x.lower(), x.upper());
      off = right ? (range.keep_upper() - slope.keep_lower()).upper()
                  : (slope.keep_upper() - range.keep_lower()).upper();
    }
    if (!(off <= finding.proven)) finding.proven = off;
    if (off <= kExtremumRoom) continue;
    finding.verdict = Verdict::Undecided;
    finding.why = fmt::format("f' is {} elsewhere than at y = {:.9g}", right ? "greatest" : "least", y);
  }
  return finding;
}

Finding prove_fp8_gradient(const Fp8Header& h) {
  return prove_fitted_gradient(activation_of(h.activation, h.function, true),
                               deployed_codes(h.activation)->gradient, h.bound_g);
}

Finding prove_fp8_room(const Fp8Header& h) {
  const double needed =
      (maximum(Interval(deployed_codes(h.activation)->fit_error) * 2, h.bound_g) + h.bound_g + kTableRounding)
          .upper();
  Finding finding{"room", Verdict::Holds, h.room, needed, "the errors of the fit and of its g, and rounding"};
  if (!(needed <= h.room))
    finding.verdict = Verdict::Undecided, finding.why = fmt::format("only {:.9g} is proven", needed);
  return finding;
}

std::vector<Finding> prove_fp8_totals(const Fp8Header& h, const std::string& format) {
  const std::map<std::string, Fp8Claims> claims{{"sign", {0, std::numeric_limits<float>::max(), h.sign}},
                                                {"e4m3", h.e4m3},
                                                {"e5m2", h.e5m2},
                                                {"int8", h.int8},
                                                {"mxfp4", h.mxfp4},
                                                {"nvfp4", h.nvfp4}};
  return Totals(h, format, claims.at(format)).run();
}

}  // namespace outgrad::validation
