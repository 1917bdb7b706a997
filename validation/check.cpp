// Structure of headers, and the order and presentation of their proofs.
#include "validation/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "validation/coordinate_bound.h"
#include "validation/deployed.h"
#include "validation/fit_bound.h"
#include "validation/gelu_interval.h"
#include "validation/rounding_bound.h"

namespace outgrad::validation {
namespace {

constexpr float kFloatInfinity = std::numeric_limits<float>::infinity();
constexpr float kIndexLow = 0x1p23f, kIndexHigh = 0x1p24f;  // where an fp32 ulp is 1, so that the low bits count cells

// Collects the conditions that fail.
class Conditions {
 public:
  void require(bool holds, const std::string& what) {
    if (!holds) failed_ += (failed_.empty() ? "" : "; ") + what;
  }
  Finding finding() const {
    Finding result{"structure", failed_.empty() ? Verdict::Holds : Verdict::Violated, 0, 0, failed_, {}};
    if (failed_.empty()) result.why = "constants, index arithmetic and limits";
    return result;
  }

 private:
  std::string failed_;
};

bool same_bits(float a, float b) { return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b); }

void require_index(Conditions& conditions, float low, float high, float scale, float bias, int rows, const char* what) {
  const float first = cell_index(low, scale, bias), last = cell_index(high, scale, bias);
  conditions.require(scale > 0 && first >= kIndexLow && last < kIndexHigh, fmt::format("the {} index leaves [2^23, 2^24)", what));
  // More cells than rows would reach a row from two places: the low bits wrap.
  conditions.require(!(last - first >= static_cast<float>(rows)), fmt::format("the {} index spans more than {} cells", what, rows));
}

int operations(const BackwardHeader& h) {
  const int differences = h.y_lo == 0 ? 1 : 2;  // y - y_hi, - y_lo
  return differences + 1 + 1 + h.degree;        // index, u, Horner
}

template <class Header>
CheckReport prove(const Header& h) {
  CheckReport report{h.file, h.name, {check_structure(h)}};
  if (report.verdict() != Verdict::Holds) return report;
  report.findings.push_back(prove_fit(h, h.bound_a));
  if constexpr (std::is_same_v<Header, BackwardHeader>) {
    report.findings.push_back(prove_coordinate(h, h.bound_k));
    report.findings.push_back(prove_rounding(h, h.bound_b));
  }
  return report;
}

std::string power_of_two(double v) { return v > 0 && std::isfinite(v) ? fmt::format("2^{:.4f}", std::log2(v)) : fmt::format("{:g}", v); }

nlohmann::json finite_or_null(double v) { return std::isfinite(v) ? nlohmann::json(v) : nlohmann::json(nullptr); }

}  // namespace

Verdict CheckReport::verdict() const {
  const auto any = [&](Verdict v) { return std::any_of(findings.begin(), findings.end(), [&](const Finding& f) { return f.verdict == v; }); };
  return any(Verdict::Violated) ? Verdict::Violated : any(Verdict::Undecided) || findings.empty() ? Verdict::Undecided : Verdict::Holds;
}

Finding check_structure(const BackwardHeader& h) {
  Conditions conditions;
  conditions.require(h.activation == "gelu", fmt::format("unknown activation {}", h.activation));
  conditions.require(h.format == "f32" || h.format == "f16" || h.format == "bf16", fmt::format("unknown format {}", h.format));
  conditions.require(h.operations == operations(h), fmt::format("kOperations is {}, the sequence has {}", h.operations, operations(h)));
  conditions.require(h.bound_a > 0 && h.bound_k >= 0 && h.bound_b > 0, "a bound is not positive");
  conditions.require(h.y_hi < 0 && std::fabs(h.y_lo) < -0x1p-10f * h.y_hi, "kYLo is not small beside kYHi");  // kRootRounding's condition
  conditions.require(!std::signbit(h.t_min), "kTMin is negative");
  conditions.require(h.s_min < 0 && h.s_max > 0, "kSMin and kSMax do not enclose 0");
  if (h.has_left) {
    conditions.require(h.left_y < 0 && h.y_hi < h.left_y, "kLeftY is not between y* and 0");
    conditions.require(h.left_row >= 0 && h.left_row < h.rows, "kLeftRow is not a row");
    conditions.require(std::abs(h.left_knee) < 512 && std::abs(h.left_base) < 512, "kLeftKnee or kLeftBase is not an exponent in half octaves");
  }
  Finding finding = conditions.finding();
  if (finding.verdict != Verdict::Holds) return finding;
  require_index(conditions, h.has_left ? deployed_s(h, h.left_y, false) : h.s_min, h.s_max, h.index_scale, h.index_bias, h.rows, "s");
  conditions.require(deployed_gradient(h, kFloatInfinity, true) == 1, "g(+inf, m = 1) is not 1");
  conditions.require(deployed_gradient(h, -0.0f, false) == 0, "g(-0, m = 0) is not 0");
  conditions.require(deployed_gradient(h, 1.0f, false) == 0, "g(y > 0, m = 0) is not 0");
  conditions.require(std::isnan(deployed_row(h.table.row(0), h.degree, std::nanf(""))), "NaN is lost");
  return conditions.finding();
}

Finding check_structure(const ForwardHeader& h) {
  Conditions conditions;
  conditions.require(h.activation == "gelu", fmt::format("unknown activation {}", h.activation));
  conditions.require(h.bound_a > 0, "kA is not positive");
  conditions.require(certainly_less(x_star(), static_cast<double>(h.x_star)), "kXStar is left of x*");
  conditions.require(certainly_less(static_cast<double>(std::nextafter(h.x_star, -1.0f)), x_star()), "a float below kXStar is right of x*");
  conditions.require(h.x_min < h.tail_x && h.tail_x < 0 && h.x_max > 0, "kXMin, kTailX, 0, kXMax are out of order");
  Finding finding = conditions.finding();
  if (finding.verdict != Verdict::Holds) return finding;
  // Left of x* |f| falls towards -inf, so one point speaks for all to its left; a tie at 2^-150 rounds to even, -0.
  conditions.require(gelu(static_cast<double>(h.x_min)).magnitude() <= 0x1p-150, "f(kXMin) does not round to -0");
  conditions.require(same_bits(deployed_forward(h, h.x_min), -0.0f) && same_bits(deployed_forward(h, -kFloatInfinity), -0.0f),
                     "the clamped left tail is not -0");
  // x - f(x) = x Phi(-x) is at most half the gap below x, 2^-25 x, if Phi(-x) <= 2^-25, which then holds for all larger x.
  conditions.require(normal_cdf(-static_cast<double>(h.x_max)).upper() <= 0x1p-25, "f(kXMax) does not round to kXMax");
  conditions.require(same_bits(deployed_forward(h, 0.0f), 0.0f) && same_bits(deployed_forward(h, -0.0f), -0.0f), "f(+-0) is not +-0");
  conditions.require(std::isnan(deployed_forward(h, std::nanf(""))), "NaN is lost");
  require_index(conditions, h.tail_x, h.x_max, h.index_scale, h.index_bias, h.rows, "core");
  require_index(conditions, h.x_min, h.tail_x, h.tail_index_scale, h.tail_index_bias, h.tail_rows, "tail");
  for (int row = 0; row < h.tail_rows; ++row) {
    const float scale = h.tail.row(row)[h.tail_degree + 2];
    int exponent = 0;
    conditions.require(scale == 0 || std::frexp(scale, &exponent) == 0.5f, fmt::format("the scale of tail row {} is not a power of two", row));
  }
  return conditions.finding();
}

CheckReport check_header(const Header& header) {
  return std::visit([](const auto& h) { return prove(h); }, header);
}

std::string to_text(const CheckReport& report) {
  std::string text;
  for (const Finding& finding : report.findings) {
    text += fmt::format("{}: {} {}: ", report.file, finding.name, to_string(finding.verdict));
    if (finding.name != "structure") text += fmt::format("proven {}, claimed {}: ", power_of_two(finding.proven), power_of_two(finding.claim));
    text += finding.why + "\n";
  }
  return text;
}

nlohmann::json to_json(const std::vector<CheckReport>& reports) {
  nlohmann::json files = nlohmann::json::array();
  for (const CheckReport& report : reports) {
    nlohmann::json findings = nlohmann::json::array();
    for (const Finding& finding : report.findings) {
      nlohmann::json entry = {{"name", finding.name}, {"verdict", to_string(finding.verdict)}, {"why", finding.why}};
      if (finding.name != "structure") entry.update({{"claim", finding.claim}, {"proven", finite_or_null(finding.proven)}});
      if (finding.witness) {
        entry["witness"] = {{"at", finite_or_null(finding.witness->at)},
                            {"got", finite_or_null(finding.witness->got)},
                            {"want", finite_or_null(finding.witness->want)}};
      }
      findings.push_back(std::move(entry));
    }
    files.push_back({{"file", report.file}, {"name", report.name}, {"verdict", to_string(report.verdict())}, {"findings", std::move(findings)}});
  }
  const bool all_hold = std::all_of(reports.begin(), reports.end(), [](const CheckReport& r) { return r.verdict() == Verdict::Holds; });
  return {{"schema", "outgrad.check/1"}, {"holds", all_hold}, {"files", std::move(files)}};
}

const char* to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::Holds: return "holds";
    case Verdict::Violated: return "violated";
    case Verdict::Undecided: break;
  }
  return "undecided";
}

}  // namespace outgrad::validation
