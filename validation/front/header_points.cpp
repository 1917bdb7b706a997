// Every x on its own: some microseconds each.
//
// Rounding. Both ends of an enclosure in double give the same number of the format, or two neighbours. Then
// the sign of f(x) less the number midway between them decides, at rising precision (Ziv, ACM TOMS 17, 1991).
#include "validation/front/header_points.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <type_traits>

#include "kernels/formats.h"
#include "kernels/support/errors.h"
#include "kernels/support/parallel.h"
#include "validation/certificate/deployed.h"
#include "validation/exact/activation.h"
#include "validation/exact/reference.h"
#include "validation/sweep/sweep.h"

namespace outgrad::validation {
namespace {

using kernels::SpecError;

template <class H>
constexpr bool kHasGradient = std::is_same_v<H, BackwardHeader> || std::is_same_v<H, TableHeader>;

/// f(x) in the format by an enclosure of this precision; nothing where that does not tell.
template <int Bits>
std::optional<double> rounded_at(const Function& f, double x, const FloatFormat& format) {
  const auto v = f.at<0>(BasicInterval<Bits>(x))[0];
  const double a = round_to_format(v.lower(), format), b = round_to_format(v.upper(), format);
  if (a == b) return a;
  const double middle = a + (b - a) / 2, of_middle = round_to_format(middle, format);
  if (of_middle != a && of_middle != b) return std::nullopt;  // other numbers lie between them
  const auto beyond = v - BasicInterval<Bits>(middle);
  return beyond.positive() ? std::optional(b) : beyond.negative() ? std::optional(a) : std::nullopt;
}

double rounded(const Function& f, double x, const FloatFormat& format, const std::string& file) {
  if (const auto y = rounded_at<128>(f, x, format)) return *y;
  if (const auto y = rounded_at<512>(f, x, format)) return *y;
  if (const auto y = rounded_at<2048>(f, x, format)) return *y;
  throw SpecError(file, fmt::format("x = {:a}", x), "no precision tells how f(x) is rounded");
}

class PointMaker {
 public:
  PointMaker(const HeaderSummary& h, const std::string& activation)
      : file_(h.file), format_(swept_format(h.format, h.file)),
        activation_(activation_of(activation, h.function, h.masked)), masked_(h.masked) {
    if (!activation_.problem().empty()) throw SpecError(h.file, "kFunction", activation_.problem());
  }

  HeaderPoint at(float x) const {
    HeaderPoint p{x};
    const double wide = static_cast<double>(x);
    p.m = !masked_ || !certainly_less(Interval(wide), activation_.x_star());
    const Function& f = activation_.formula_at(wide).f;
    const auto d = f.at<1>(MediumInterval(wide));
    p.slope = d[1].middle();
    p.y = stored(f, wide, d[0]);
    return p;
  }

 private:
  /// f(x) < 0 rounds to -0, and f(-0) = 0 keeps the sign of its x.
  float stored(const Function& f, double x, const MediumInterval& value) const {
    const double y = rounded(f, x, format_, file_);
    const bool is_zero = value.lower() == 0 && value.upper() == 0,
               negative = y < 0 || (y == 0 && (value.negative() || (is_zero && std::signbit(x))));
    return std::copysign(static_cast<float>(y), negative ? -1.0f : 1.0f);
  }

  const std::string& file_;
  const FloatFormat& format_;
  const Activation& activation_;
  bool masked_;
};

float gradient_of(const BackwardHeader& h, float y, bool m) { return deployed_gradient(h, y, m); }
float gradient_of(const TableHeader& h, float y, bool m) {
  const std::uint32_t code =
      h.format == kF16.name ? kernels::narrow<kernels::F16>(y).bits : kernels::narrow<kernels::BF16>(y).bits;
  return deployed_entry(h, code, m);
}

std::vector<float> arguments(const FloatFormat& format) {
  const Domain domain{format};
  std::vector<float> x(static_cast<std::size_t>(domain.finite()));
  domain.fill(0, domain.finite(), x.data());
  std::erase_if(x, [](float each) { return std::fabs(each) > kPointsReach; });
  return x;
}

}  // namespace

const FloatFormat& swept_format(const std::string& format, const std::string& file) {
  for (const FloatFormat* each : {&kF16, &kBf16})
    if (each->name == format) return *each;
  throw SpecError(file, "kFormat",
                  format +
                      " is not swept by its header: f16 and bf16 are, whose x are few; "
                      "`check` proves the bounds of every format");
}

HeaderSummary summary_of(const Header& header) {
  return std::visit(
      [](const auto& h) -> HeaderSummary {
        using H = std::decay_t<decltype(h)>;
        if constexpr (std::is_same_v<H, BackwardHeader>) {
          return {h.file, h.name, h.function, h.format, h.masked, h.operations, h.storage};
        } else if constexpr (std::is_same_v<H, TableHeader>) {
          return {h.file, h.name, h.function, h.format, h.masked, 0, h.storage};
        } else {
          throw SpecError(h.file, "struct", "has no gradient of a stored y");
        }
      },
      header);
}

std::vector<HeaderPoint> header_points(const Header& header, const FloatFormat& x_format) {
  return std::visit(
      [&](const auto& h) -> std::vector<HeaderPoint> {
        const HeaderSummary summary = summary_of(header);
        const PointMaker maker(summary, h.activation);
        const std::vector<float> x = arguments(x_format);
        std::vector<HeaderPoint> points(x.size());
        constexpr std::size_t kBlock = 256;
        kernels::for_each_task((x.size() + kBlock - 1) / kBlock, 0, [&](std::size_t block) {
          for (std::size_t i = block * kBlock; i < std::min(x.size(), (block + 1) * kBlock); ++i) {
            points[i] = maker.at(x[i]);
            if constexpr (kHasGradient<std::decay_t<decltype(h)>>)
              points[i].g = gradient_of(h, points[i].y, points[i].m);
          }
        });
        return points;
      },
      header);
}

}  // namespace outgrad::validation
