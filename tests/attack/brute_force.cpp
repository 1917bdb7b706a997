// Suprema over the outcomes, compared with the claims.
#include "tests/attack/brute_force.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "kernels/catalogue/few_bits.h"
#include "kernels/formats.h"
#include "kernels/host/errors.h"
#include "kernels/stores/code.h"

namespace outgrad::validation::gate {
namespace {

// A claim is printed to 53 bits and rounded up, and a figure that was seen carries the rounding of long
// double. A figure that exceeds a claim by less than this does not make the claim false.
constexpr double kRelativeRoom = 0x1p-40, kAbsoluteRoom = 0x1p-60;
// How much kO may exceed the least error that any function reaches. It is quoted to five digits, and T/O is
// judged at 1.01.
constexpr double kOracleRoom = 0x1p-20;
// The domain on which a user's expression is claimed, unless its header says otherwise.
constexpr double kExpressionEnd = 64;

std::string text_of(const char* text) { return text ? text : ""; }

// A figure, and the place where it was greatest.
struct Peak {
  double value = 0, at = 0;
  bool m = true;
  void raise(double seen, const Point& point) {
    if (seen > value || std::isnan(seen))
      value = std::isnan(seen) ? std::numeric_limits<double>::infinity() : seen, at = point.at, m = point.m;
  }
};

bool exceeds(double seen, double claimed) { return seen > claimed * (1 + kRelativeRoom) + kAbsoluteRoom; }

// "abs:2^-10" -> abs, 2^-10. False if the bound is not a number.
bool read_class(const std::string& accuracy, std::string& kind, double& bound) {
  const size_t colon = accuracy.find(':');
  kind = accuracy.substr(0, colon);
  bound = 0;
  if (colon == std::string::npos) return kind == "oracle" || kind == "rounded";
  std::string number = accuracy.substr(colon + 1);
  const bool power = number.starts_with("2^");
  if (power) number.erase(0, 2);
  char* end = nullptr;
  bound = std::strtod(number.c_str(), &end);
  if (power) bound = std::exp2(bound);
  return !number.empty() && *end == '\0' && bound > 0 && std::isfinite(bound) &&
         (kind == "abs" || kind == "rel" || kind == "ulp" || kind == "stored");
}

class Judgement {
 public:
  Judgement(Library& library, const Claims& claims, std::span<const Outcome> outcomes)
      : library_(library), claims_(claims), truth_(library.truth(claims)), outcomes_(outcomes) {}

  std::vector<Falsehood> falsehoods;
  Sight sight;

  void run() {
    switch (claims_.kind) {
      case Claims::Kind::backward:
      case Claims::Kind::table: gradient(); break;
      case Claims::Kind::forward:
      case Claims::Kind::rounded: forward(); break;
      case Claims::Kind::code: codes(); break;
      case Claims::Kind::fp8: eight_bits(kernels::Fp8Activations{}); break;
    }
  }

 private:
  void claim(const std::string& name, const Peak& peak, double claimed) {
    if (std::isnan(claimed)) return;
    sight.shares[name] = peak.value / claimed;
    if (exceeds(peak.value, claimed)) falsehoods.push_back({name, peak.value, claimed, peak.at, peak.m});
  }
  void require(bool holds, const std::string& name, double got, double want, const Point& point = {}) {
    if (!holds) falsehoods.push_back({name, got, want, point.at, point.m});
  }

  void gradient() {
    const std::string format = text_of(claims_.format), accuracy = text_of(claims_.accuracy);
    std::string kind;
    double bound = 0;
    require(read_class(accuracy, kind, bound), "kClass", 0, 0);
    const bool relative = kind == "rel", direct = claims_.kind == Claims::Kind::table;
    Peak total, regret, ulps, fit, rounding, entry_error, sharp;
    std::map<std::uint32_t, std::pair<double, double>> rows;  // A and B as seen, for each row
    std::uint32_t end_row = ~0u;
    float end = -std::numeric_limits<float>::infinity();
    for (size_t i = 0; i < outcomes_.size(); ++i) {
      const Point& point = truth_.points[i];
      if (!point.m && point.traced && point.at > end) end = point.at, end_row = outcomes_[i].row;
    }
    for (size_t i = 0; i < outcomes_.size(); ++i) {
      const Point& point = truth_.points[i];
      const Known& known = truth_.known[i];
      const Outcome& outcome = outcomes_[i];
      const double g = outcome.got;
      if (known.limit != Known::Limit::none) {
        if (!direct) limit(point, known, g);
        continue;
      }
      if (known.stored) {
        const double middle = (known.low + known.high) / 2;
        total.raise(std::max(known.high - g, g - known.low), point);
        regret.raise(std::fabs(g - middle), point);
        // By contract g = 0 at (y = -0, m = 0).
        if (point.m || point.at != 0) ulps.raise(std::fabs(g - middle) / ulp_of(format, middle), point);
        // "oracle": T <= O + half an ulp of the entry.
        if (direct)
          entry_error.raise(
              std::max(known.high - g, g - known.low) - ulp_of(text_of(claims_.entry_format), g) / 2, point);
      }
      if (!point.traced) continue;
      if (claims_.operations >= 0 && outcome.operations != claims_.operations && falsehoods.size() < 8) {
        require(false, "kOperations", outcome.operations, claims_.operations, point);
      }
      auto& [row_fit, row_rounding] = rows[outcome.row];
      // B is a claim about the stored y, A one about every real x.
      if (known.stored || format == "f32") {
        rounding.raise(outcome.rounding, point);
        row_rounding = std::max(row_rounding, outcome.rounding);
      }
      if (!known.sloped) continue;
      const bool by_ratio = relative && outcome.row != end_row;
      const double error = static_cast<double>(
          std::fabs(by_ratio ? outcome.star / known.slope - 1 : outcome.star - known.slope));
      fit.raise(error, point);
      row_fit = std::max(row_fit, error);
      // If a row is evaluated at y itself, only A and B separate g from f'.
      if (!std::isnan(claims_.ulp) && std::fabs(g) >= claims_.ulp_from && claims_.right_both &&
          static_cast<double>(point.root) >= 2 * claims_.right_s) {
        sharp.raise(off(outcome.got, i) / ulp_of("f32", g), point);
      }
    }
    if (!direct) {
      for (const auto& [row, errors] : rows) sight.row_fits[static_cast<int>(row)] = errors.first;
      claim("kA", fit, claims_.a);
      claim("kB", rounding, claims_.b);
      if (kind == "abs" || relative) require(!exceeds(fit.value, bound), "kClass", fit.value, bound);
      if (!std::isnan(claims_.ab)) {
        Peak both;
        for (const auto& [row, errors] : rows)
          both.value = std::max(both.value, errors.first + errors.second);
        // The two maxima were not seen at the same point, while the header's claim bounds their sum.
        claim("kAB", both, claims_.ab);
      }
      if (claims_.masked && !claims_.product) {
        Peak coordinate;
        float at = 0;
        coordinate.value = library_.coordinate_error(claims_, at);
        coordinate.at = at;
        claim("kK", coordinate, claims_.k);
      }
      if (!std::isnan(claims_.ulp)) {
        claim("kUlp", sharp, claims_.ulp);
        if (kind == "ulp") require(!exceeds(sharp.value, bound), "kClass", sharp.value, bound);
      }
    } else {
      const int operations = claims_.masked ? 12 : 8;  // kernels/direct.h
      require(claims_.index_operations == operations, "kIndexOperations", operations,
              claims_.index_operations);
      if (kind == "oracle")
        require(!exceeds(entry_error.value, truth_.oracle), "kClass", entry_error.value, truth_.oracle);
    }
    if (claims_.product) return product(total);
    if (format == "f32") return;
    claim("kT", total, claims_.t);
    claim("kR", regret, claims_.r);
    Peak oracle;
    oracle.value = truth_.oracle;
    claim("kO", oracle, claims_.o);
    require(!(claims_.o > truth_.oracle * (1 + kOracleRoom)), "kO", truth_.oracle, claims_.o);
    if (kind == "stored")
      require(!exceeds(total.value, bound * truth_.oracle), "kClass", total.value / truth_.oracle, bound);
    if (kind == "ulp" && !direct)
      require(!exceeds(ulps.value, bound), "kClass", ulps.value, bound,
              {static_cast<float>(ulps.at), 0, ulps.m});
  }

  // T over the balls of the y that were looked at. kO is a lower bound, and the y whose ball just reaches the
  // minimum, which is among these, has the longest range.
  void product(const Peak& total) {
    const ProductBall ball = *product_ball(claims_.product);
    require(claims_.relative >= ball.relative, "kRelative", ball.relative, claims_.relative);
    require(claims_.absolute >= ball.absolute, "kAbsolute", ball.absolute, claims_.absolute);
    claim("kT", total, claims_.t);
    require(!(claims_.o > truth_.oracle * (1 + kOracleRoom)), "kO", truth_.oracle, claims_.o);
    sight.shares["kO"] = claims_.o / truth_.oracle;
  }

  void limit(const Point& point, const Known& known, double g) {
    if (known.limit == Known::Limit::nan) return require(std::isnan(g), "NaN", g, kAbsent, point);
    const double want = known.limit == Known::Limit::left ? truth_.left_limit : truth_.right_limit;
    if (claims_.exact_limits) {
      require(static_cast<float>(g) == static_cast<float>(want), "kExactLimits", g, want, point);
    } else {
      require(!exceeds(std::fabs(g - want), claims_.a + claims_.b), "kA + kB at a limit", std::fabs(g - want),
              claims_.a + claims_.b, point);
    }
  }

  void forward() {
    const bool small = claims_.kind == Claims::Kind::rounded;
    const std::string format = small ? text_of(claims_.format) : "f32";
    const Curve& curve = library_.curve(text_of(claims_.activation), text_of(claims_.function));
    Peak fit, core;
    const double star = curve.masked() ? static_cast<double>(curve.x_star()) : kAbsent;
    if (curve.masked()) {
      const auto x_star = static_cast<float>(star),
                 least = x_star < star ? std::nextafter(x_star, 1e9f) : x_star;
      require(claims_.x_star == least, "kXStar", least, claims_.x_star);
    }
    const bool levels = claims_.end == claims_.x_max;
    if (small) require(text_of(claims_.accuracy) == "rounded", "kClass", 0, 0);
    for (size_t i = 0; i < outcomes_.size(); ++i) {
      const Point& point = truth_.points[i];
      const Known& known = truth_.known[i];
      const Outcome& outcome = outcomes_[i];
      const double x = point.at;
      if (falsehoods.size() > 8) break;
      require(outcome.bit == (x >= star), "the mask bit", outcome.bit, x >= star, point);
      if (small) {
        const float y = format == "f16" ? kernels::widen(kernels::narrow<kernels::F16>(outcome.got))
                                        : kernels::widen(kernels::narrow<kernels::BF16>(outcome.got));
        const bool negative = std::signbit(x) && !claims_.plain;
        require(y == known.low && std::signbit(y) == negative, "rounded", y, known.low, point);
        if (curve.masked() && x <= claims_.x_min) require(known.low == 0, "kXMin", known.low, 0, point);
        if (!levels && x >= claims_.x_max) require(known.low == x, "kXMax", known.low, x, point);
      } else {
        end_of_f32(i);
      }
      // Beyond its ends a forward is not p. Next to 0 the exact product leaves the range in which ratios of
      // long doubles are normal.
      if (!point.traced || x < claims_.x_min || x >= claims_.x_max || std::fabs(x) < 0x1p-100) continue;
      const auto error = static_cast<double>(std::fabs(outcome.star / known.slope - 1));
      fit.raise(error, point);
      if (small && static_cast<int>(outcome.row) >= claims_.core_first) core.raise(error, point);
    }
    claim("kA", fit, claims_.a);
    if (small) claim("kCoreA", core, claims_.core_a);
  }

  // What an f32 forward gives beyond its ends, and at 0.
  void end_of_f32(size_t i) {
    const Point& point = truth_.points[i];
    const long double f = truth_.known[i].slope;
    const float y = outcomes_[i].got;
    const double x = point.at;
    // Half the gap from y to its neighbour on the side of 0, the smaller one.
    const long double away = std::fabs(f - static_cast<long double>(y)),
                      gap = std::fabs(y - static_cast<long double>(std::nextafter(y, 0.0f)));
    const bool rounds = away <= gap / 2;
    if (x >= claims_.x_max)
      require(rounds && (claims_.levels || y == point.at), "kXMax", y, static_cast<double>(f), point);
    if (claims_.has_tail ? x < claims_.x_min : x <= claims_.x_min) {
      const bool fades = y == 0 && std::signbit(y) == claims_.masked && std::fabs(f) <= 0x1p-150L;
      require(claims_.has_tail ? fades : rounds, "kXMin", y, static_cast<double>(f), point);
    }
    if (x == 0 && f == 0) require(y == 0 && std::signbit(y) == std::signbit(x), "f(+-0)", y, x, point);
  }

  // How far g is from f' at a point.
  double off(float g, size_t i) const {
    return static_cast<double>(std::fabs(static_cast<long double>(g) - truth_.known[i].slope));
  }

  // What is coded at a point: the library's g, or the two ends of what the caller of an expression's codes
  // promises, where a float is so near.
  std::vector<float> coded_at(size_t i) const {
    const Known& known = truth_.known[i];
    if (text_of(claims_.activation) != "expression") return {known.gradient};
    std::vector<float> ends;
    for (const double by : {-claims_.g, claims_.g}) {
      auto end = static_cast<float>(known.slope + by);
      const auto away = [&] { return std::fabs(static_cast<long double>(end) - known.slope); };
      if (away() > std::fabs(by)) end = std::nextafter(end, static_cast<float>(known.slope));
      if (away() <= std::fabs(by)) ends.push_back(end);
    }
    return ends;
  }

  void codes() {
    std::string kind;
    double bound = 0;
    require(read_class(text_of(claims_.accuracy), kind, bound) && kind == "abs", "kClass", 0, 0);
    if (text_of(claims_.activation) == "expression")
      require(std::fabs(claims_.g - bound) <= 1e-9 * bound, "kG is not what kClass promises", claims_.g,
              bound);
    const kernels::CodeRange range{static_cast<float>(claims_.lo), static_cast<float>(claims_.hi)};
    Peak below, above, gradient, bias;
    std::array<Peak, kernels::kMostCodeBits> exact;
    std::array<Peak, kernels::kMostDitheredBits - kernels::kLeastDitheredBits + 1> dithered;
    size_t worst = 0;
    float worst_gradient = 0;
    const auto off_dithered = [&](const kernels::CodeRule& rule, float g, size_t i, kernels::u32 word) {
      const float d = kernels::dither_of(word);
      return off(kernels::gradient_of_code(rule, kernels::coded_gradient(rule, g, d), d), i);
    };
    for (size_t i = 0; i < truth_.points.size(); ++i) {
      const Point& point = truth_.points[i];
      const auto slope = static_cast<double>(truth_.known[i].slope);
      below.raise(claims_.lo - slope, point), above.raise(slope - claims_.hi, point);
      for (const float g : coded_at(i)) {
        if (off(g, i) > gradient.value || i == 0) worst = i, worst_gradient = g;
        gradient.raise(off(g, i), point);
        for (size_t k = 0; k < exact.size(); ++k) {
          const kernels::CodeRule rule = kernels::exact_code(range, static_cast<int>(k) + 1);
          exact[k].raise(off(kernels::gradient_of_code(rule, kernels::coded_gradient(rule, g)), i), point);
        }
        for (size_t k = 0; k < dithered.size(); ++k) {
          const kernels::CodeRule rule =
              kernels::dithered_code(range, static_cast<int>(k) + kernels::kLeastDitheredBits);
          constexpr kernels::u32 kSpread = 0x9e3779b9u;  // neighbours get dithers far apart
          dithered[k].raise(off_dithered(rule, g, i, static_cast<kernels::u32>(i) * kSpread), point);
        }
      }
    }
    // The mean over all dithers, where g itself is furthest from f'.
    for (size_t k = 0; k < dithered.size(); ++k) {
      const kernels::CodeRule rule =
          kernels::dithered_code(range, static_cast<int>(k) + kernels::kLeastDitheredBits);
      constexpr kernels::u32 kDithers = 1u << 23;
      double sum = 0;
      for (kernels::u32 r = 0; r < kDithers; ++r) {
        const float d = kernels::dither_of(r << 9);
        sum += static_cast<double>(
            kernels::gradient_of_code(rule, kernels::coded_gradient(rule, worst_gradient, d), d));
      }
      bias.raise(std::fabs(sum / kDithers - static_cast<double>(truth_.known[worst].slope)),
                 truth_.points[worst]);
    }
    require(!exceeds(below.value, 0), "kLo", claims_.lo - below.value, claims_.lo,
            {static_cast<float>(below.at)});
    require(!exceeds(above.value, 0), "kHi", claims_.hi + above.value, claims_.hi,
            {static_cast<float>(above.at)});
    require(!exceeds(gradient.value, bound), "kClass", gradient.value, bound,
            {static_cast<float>(gradient.at)});
    claim("kG", gradient, claims_.g);
    for (size_t k = 0; k < exact.size(); ++k) claim(fmt::format("kT{}", k + 1), exact[k], claims_.exact[k]);
    for (size_t k = 0; k < dithered.size(); ++k)
      claim(fmt::format("kDithered{}", k + 2), dithered[k], claims_.dithered[k]);
    claim("kBias", bias, claims_.bias);
  }

  // The tables of the library for the activation, at scales that nearly need the claims and at the ends of
  // the claimed ranges.
  template <class... A>
  void eight_bits(kernels::Fp8List<A...>) {
    std::string kind;
    double bound = 0;
    require(read_class(text_of(claims_.accuracy), kind, bound) && kind == "abs" && claims_.room <= bound,
            "kClass", claims_.room, bound);
    extrema();
    Peak gradient, room;
    const auto look = [&]<class Each>() {
      if (text_of(claims_.activation) != Each::Header::kActivation) return;
      require(text_of(claims_.code) == Each::Code::kName, "kCode", 0, 0);
      require(text_of(claims_.fit) == Each::Fit::kName, "kFit", 0, 0);
      std::vector<float> y, g;
      for (size_t i = 0; i < truth_.points.size(); ++i) {
        const float x = truth_.points[i].at;
        y.push_back(kernels::forward_at<typename Each::template Forward<float>>(x));
        g.push_back(kernels::fitted_gradient<typename Each::Fit, typename Each::template Forward<float>>(
            x, y.back()));
        gradient.raise(off(g.back(), i), truth_.points[i]);
      }
      at_scales<Each, kernels::F8E4M3>("kE4m3", claims_.e4m3, y, g, room);
      at_scales<Each, kernels::F8E5M2>("kE5m2", claims_.e5m2, y, g, room);
      at_scales<Each, kernels::I8>("kInt8", claims_.int8, y, g, room);
      in_blocks<Each>("kMxfp4", claims_.mxfp4, 8, true, y, g, room);
      in_blocks<Each>("kNvfp4", claims_.nvfp4, 6.375, false, y, g, room);
      in_blocks<Each>("kSign", {0x1p-8, 1, {claims_.sign[0], claims_.sign[1], claims_.sign[2]}}, INFINITY,
                      true, y, g, room);
    };
    (look.template operator()<A>(), ...);
    claim("kG", gradient, claims_.g);
    claim("kRoom", room, claims_.room);
  }

  // f' at the x with f(x) = kLeastAt or kGreatestAt against f' at its extremum on that side.
  void extrema() {
    constexpr double kExtremumRoom = 0x1p-24;
    const Curve& curve = library_.curve(text_of(claims_.activation), text_of(claims_.function));
    for (const Real& x : curve.inflections()) {
      const bool right = x > curve.x_star();
      const double y = right ? claims_.greatest_at : claims_.least_at;
      double near = curve.first_guess(y, right);
      const Curve::Preimage there = curve.preimage(Real(y), right, near);
      const auto off =
          static_cast<double>(std::fabs(there.slope - static_cast<long double>(curve.formula().at(x).slope)));
      require(!there.before && !there.beyond && off <= kExtremumRoom, right ? "kGreatestAt" : "kLeastAt", off,
              kExtremumRoom, {static_cast<float>(y)});
    }
  }

  template <class A, class F>
  void at_scales(const std::string& prefix, const Claims::Scales& claimed, const std::vector<float>& y,
                 const std::vector<float>& gradients, Peak& room) {
    require(claimed.least > 0 && claimed.least < claimed.most && std::isfinite(claimed.most),
            prefix + "Least", claimed.least, claimed.most);
    if (!(claimed.least > 0 && claimed.least < claimed.most && std::isfinite(claimed.most))) return;
    std::vector<float> scales{static_cast<float>(claimed.least), static_cast<float>(claimed.most)};
    // By these a code's interval ends at the minimum.
    if constexpr (std::is_same_v<F, kernels::I8>) {
      for (int code = 0; code < kernels::kNanI8 - 1; ++code) {
        const double scale = (code + 0.5) / -static_cast<double>(A::Fit::kYHi);
        if (claimed.least <= scale && scale <= claimed.most) scales.push_back(static_cast<float>(scale));
      }
    } else {
      constexpr int kFractionBits = std::is_same_v<F, kernels::F8E4M3> ? 3 : 2,
                    kCodesOfBinade = 1 << kFractionBits;
      for (int code = 0; code < kCodesOfBinade; ++code) {
        double scale = (1 + (code + 0.5) / kCodesOfBinade) / -static_cast<double>(A::Fit::kYHi);
        while (scale < claimed.least) scale *= 2;
        while (scale > claimed.most) scale /= 2;
        if (scale >= claimed.least) scales.push_back(static_cast<float>(scale));
      }
    }
    Totals total;
    for (const float scale : scales) {
      if (!kernels::scale_holds(scale)) {
        require(false, prefix + "Least", static_cast<double>(scale), claimed.most);
        continue;
      }
      for (int bits = 0; bits <= kernels::kMostPartBits; ++bits) {
        kernels::Fp8Table table;
        kernels::fill_fp8_table<A, F>(scale, bits, table);
        for (size_t i = 0; i < truth_.points.size(); ++i)
          read<F>(table, scale, i, y, gradients, total[static_cast<size_t>(bits)], room);
      }
    }
    claim_totals(prefix, total, claimed);
  }

  using Totals = std::array<Peak, kernels::kMostPartBits + 1>;

  // What a table gives for the point i.
  template <class F>
  void read(const auto& table, float scale, size_t i, const std::vector<float>& y,
            const std::vector<float>& gradients, Peak& total, Peak& room) {
    const kernels::u8 code = kernels::fp8_code<F>(y[i], scale).bits;
    const float g = table.values[kernels::part_of(table, code, gradients[i])][code];
    const double error = off(g, i);
    total.raise(error, truth_.points[i]);
    room.raise(error - static_cast<double>(table.widest) / 2, truth_.points[i]);
  }

  void claim_totals(const std::string& prefix, const Totals& total, const Claims::Scales& claimed) {
    for (size_t bits = 0; bits < total.size(); ++bits)
      claim(fmt::format("{}T{}", prefix, bits), total[bits], claimed.total[bits]);
  }

  // y in e2m1 where |y| m is below `end`, m from 1 to 2^8 times the least that is claimed: powers of 2 times
  // it, or such by which a code's interval ends at the minimum.
  template <class A>
  void in_blocks(const std::string& prefix, const Claims::Scales& claimed, double end, bool powers_of_2,
                 const std::vector<float>& y, const std::vector<float>& gradients, Peak& room) {
    constexpr int kDoublings = 8;
    const bool sound =
        claimed.least > 0x1p-100 && claimed.least < claimed.most && std::isfinite(claimed.most);
    require(sound && claimed.least < 0x1p100, prefix + "Least", claimed.least, claimed.most);
    if (!sound || claimed.least >= 0x1p100) return;
    std::vector<float> scales;
    for (int k = 0; k <= kDoublings; ++k) scales.push_back(static_cast<float>(std::ldexp(claimed.least, k)));
    for (int code = 0; code < 7 && !powers_of_2; ++code) {
      const double middle =
          0.5 * (static_cast<double>(kernels::widen(kernels::F4E2M1{static_cast<kernels::u8>(code)})) +
                 static_cast<double>(kernels::widen(kernels::F4E2M1{static_cast<kernels::u8>(code + 1)})));
      const double scale = middle / -static_cast<double>(A::Fit::kYHi);
      if (scale >= claimed.least) scales.push_back(static_cast<float>(scale));
    }
    Totals total;
    for (const float scale : scales) {
      if (static_cast<double>(scale) > claimed.most) continue;
      const float last = static_cast<float>(end / static_cast<double>(scale));
      const kernels::u32 end_bits = std::isfinite(last) ? kernels::bits_of(last) : kernels::kBeyondInfinity;
      for (int bits = 0; bits <= kernels::kMostPartBits; ++bits) {
        kernels::Fp4Table table;
        kernels::fill_fp8_table<A, kernels::F4E2M1>(scale, bits, table, end_bits);
        for (size_t i = 0; i < truth_.points.size(); ++i) {
          if ((kernels::bits_of(y[i]) & 0x7fffffffu) < end_bits)
            read<kernels::F4E2M1>(table, scale, i, y, gradients, total[static_cast<size_t>(bits)], room);
        }
      }
    }
    claim_totals(prefix, total, claimed);
  }

  Library& library_;
  const Claims& claims_;
  const Truth& truth_;
  std::span<const Outcome> outcomes_;
};

}  // namespace

std::string Falsehood::text() const {
  return fmt::format("{}: {:.9g} seen at {:.9g}{}, claimed {:.9g}", claim, seen, at, m ? "" : ", m = 0",
                     claimed);
}

const Curve& Library::curve(const std::string& activation, const std::string& function) {
  auto& curve = curves_[{activation, function}];
  if (!curve)
    curve = std::make_unique<Curve>(formula_of(activation, function),
                                    activation == "expression" ? kExpressionEnd : kEndOfLine);
  return *curve;
}

const Truth& Library::truth(const Claims& claims) {
  const bool backward = claims.kind == Claims::Kind::backward || claims.kind == Claims::Kind::table,
             code = claims.kind == Claims::Kind::code || claims.kind == Claims::Kind::fp8;
  const std::string activation = text_of(claims.activation), function = text_of(claims.function);
  const std::string format = code                                   ? "code"
                             : claims.kind == Claims::Kind::forward ? "f32"
                             : claims.product                       ? "product_" + text_of(claims.product)
                                                                    : text_of(claims.format);
  auto& truth = truths_[{activation, function, format, backward}];
  if (!truth)
    truth = std::make_unique<Truth>(backward ? backward_truth(curve(activation, function), format)
                                    : code   ? code_truth(curve(activation, function), activation)
                                             : forward_truth(curve(activation, function), format));
  return *truth;
}

double Library::coordinate_error(const Claims& c, float& at) {
  const std::vector<double> constants{c.y_hi,
                                      c.y_lo,
                                      c.t_min,
                                      std::isnan(c.s_min) ? 0 : c.s_min,
                                      c.y_max,
                                      std::isnan(c.left_y) ? 0 : c.left_y,
                                      std::isnan(c.right_s) ? 0 : c.right_s,
                                      double(c.has_left),
                                      double(c.has_right),
                                      double(c.right_both)};
  const auto [entry, fresh] =
      coordinates_.try_emplace({text_of(c.activation), text_of(c.function), text_of(c.format), constants});
  if (fresh)
    entry->second.first = gate::coordinate_error(curve(text_of(c.activation), text_of(c.function)), truth(c),
                                                 c, entry->second.second);
  at = entry->second.second;
  return entry->second.first;
}

std::vector<Falsehood> judge_subject(Library& library, const Claims& claims) {
  const std::string activation = text_of(claims.activation), function = text_of(claims.function),
                    format = text_of(claims.format);
  const bool forward = claims.kind == Claims::Kind::forward, eight_bits = claims.kind == Claims::Kind::fp8,
             code = claims.kind == Claims::Kind::code || eight_bits;
  const bool known_format =
      forward || code || format == "f16" || format == "bf16" ||
      (claims.kind == Claims::Kind::table && (format == "e4m3" || format == "e5m2")) ||
      (claims.kind == Claims::Kind::backward &&
       (format == "f32" || format == "mxfp8" || format == "f16_parity" || format == "bf16_parity"));
  if (!known_format) return {{"kFormat", 0, 0, 0, true}};
  if (claims.product && (claims.kind != Claims::Kind::backward || format != "f32" || !claims.masked ||
                         !product_ball(claims.product)))
    return {{"kProduct", 0, 0, 0, true}};
  try {
    const Curve& curve = library.curve(activation, function);
    if (!name_fits(activation, curve.formula())) return {{"kActivation", 0, 0, 0, true}};
    if (!curve.problem().empty()) return {{"kFunction: " + curve.problem(), 0, 0, 0, true}};
    if (code && (eight_bits || activation != "expression") && code_name(activation).empty())
      return {{"kActivation: no codes", 0, 0, 0, true}};
    if (eight_bits && !curve.masked()) return {{"kActivation: no minimum", 0, 0, 0, true}};
    if (!code && curve.masked() != claims.masked) return {{"kMasked", 0, 0, 0, true}};
  } catch (const kernels::SpecError& error) {
    return {{std::string("kFunction: ") + error.what(), 0, 0, 0, true}};
  }
  return {};
}

std::vector<Falsehood> judge(Library& library, const Claims& claims, std::span<const Outcome> outcomes) {
  Judgement judgement(library, claims, outcomes);
  judgement.run();
  return std::move(judgement.falsehoods);
}

Sight sight_of(Library& library, const Claims& claims, std::span<const Outcome> outcomes) {
  Judgement judgement(library, claims, outcomes);
  judgement.run();
  return std::move(judgement.sight);
}

}  // namespace outgrad::validation::gate
