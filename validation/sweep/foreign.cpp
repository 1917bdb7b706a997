// Reads and evaluates coefficients that are not ours, see foreign.h.
#include "validation/sweep/foreign.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "kernels/support/json_node.h"
#include "validation/limits.h"
#include "validation/sweep/fingerprint.h"

namespace outgrad::validation {
namespace {

using kernels::JsonNode;

constexpr std::int64_t kRun = 512;  // elements that are evaluated together
constexpr int kMostCodeBits = 8;    // a longer code than y itself has in 8-bit formats saves nothing

/// A number, converted as the arithmetic requires.
double used(const JsonNode& node, ForeignArithmetic arithmetic) {
  const double value = node.finite();
  if (arithmetic == ForeignArithmetic::f64) return value;
  const double rounded = static_cast<float>(value);
  if (!std::isfinite(rounded)) node.fail("is not finite in f32");
  return rounded;
}

double end_of_interval(const JsonNode& node, ForeignArithmetic arithmetic) {
  const nlohmann::json& value = node.raw();
  if (value == "inf") return kInfinity;
  if (value == "-inf") return -kInfinity;
  return used(node, arithmetic);
}

std::vector<double> used_list(const JsonNode& node, ForeignArithmetic arithmetic, std::size_t most) {
  if (!node.raw().is_array() || node.size() == 0) node.fail("is not a list of numbers");
  if (node.size() > most) node.fail(fmt::format("has {} numbers; at most {} are read", node.size(), most));
  std::vector<double> values;
  for (const JsonNode& item : node.items()) values.push_back(used(item, arithmetic));
  return values;
}

ForeignPiece read_piece(const JsonNode& node, const ForeignFunction& function) {
  ForeignPiece piece;
  if (node.has("constant")) {
    node.expect_keys({"from", "to", "includes", "constant"});
    piece.coefficients = {used(node["constant"], function.arithmetic)};
    return piece;
  }
  node.expect_keys({"from", "to", "includes", "coordinate", "centre", "coefficients", "order"});
  piece.coordinate = node["coordinate"].word<ForeignCoordinate>(
      {{"y", ForeignCoordinate::y}, {"signed_sqrt", ForeignCoordinate::signed_sqrt}});
  if (piece.coordinate == ForeignCoordinate::signed_sqrt && function.t_min <= 0)
    node["coordinate"].fail("needs 'constants'");
  piece.order =
      node["order"].word<ForeignOrder>({{"horner", ForeignOrder::horner}, {"estrin", ForeignOrder::estrin}});
  piece.centre = used(node["centre"], function.arithmetic);
  piece.coefficients = used_list(node["coefficients"], function.arithmetic, kForeignCoefficients);
  return piece;
}

/// Pieces that tile the line. If they do not, the error names the first piece that is wrong.
std::vector<ForeignPiece> read_branch(const JsonNode& node, const ForeignFunction& function) {
  if (!node.raw().is_array() || node.size() == 0) node.fail("is not a list of pieces");
  if (node.size() > kForeignPieces)
    node.fail(fmt::format("has {} pieces; at most {} are read", node.size(), kForeignPieces));
  std::vector<ForeignPiece> pieces;
  double reached = -kInfinity;
  bool end_is_taken = true;  // no piece includes -inf
  for (const JsonNode& item : node.items()) {
    ForeignPiece piece = read_piece(item, function);
    const double from = end_of_interval(item["from"], function.arithmetic);
    piece.to = end_of_interval(item["to"], function.arithmetic);
    enum class Includes { neither, lower, upper, both };
    const auto includes = item["includes"].word<Includes>({{"none", Includes::neither},
                                                           {"from", Includes::lower},
                                                           {"to", Includes::upper},
                                                           {"both", Includes::both}});
    const bool includes_from = includes == Includes::lower || includes == Includes::both;
    piece.includes_to = includes == Includes::upper || includes == Includes::both;
    if (!(from < piece.to)) item.fail("'from' is not below 'to'");
    if (from != reached)
      item["from"].fail(fmt::format("{}: the pieces before reach {}",
                                    from > reached ? "leaves a gap" : "overlaps", reached));
    if (!pieces.empty() && includes_from == end_is_taken) {
      item["includes"].fail(fmt::format("{} belongs to {} this piece and the one before", from,
                                        end_is_taken ? "both" : "neither of"));
    }
    reached = piece.to;
    end_is_taken = piece.includes_to;
    pieces.push_back(std::move(piece));
  }
  if (reached != kInfinity)
    node.fail(fmt::format("ends at {}, not at inf: say what happens outside", reached));
  pieces.back().includes_to = true;
  return pieces;
}

void read_steps(const JsonNode& node, ForeignFunction& function) {
  node.expect_keys({"schema", "name", "activation", "kind", "source", "thresholds", "threshold_belongs",
                    "values", "increments", "code_bits", "claims"});
  function.steps = true;
  const std::int64_t bits = node["code_bits"].count();
  if (bits < 1 || bits > kMostCodeBits)
    node["code_bits"].fail(fmt::format("is not from 1 to {}", kMostCodeBits));
  function.code_bits = static_cast<int>(bits);
  const std::size_t most = std::size_t{1} << bits;
  const std::vector<double> thresholds = used_list(node["thresholds"], function.arithmetic, most - 1);
  const bool below = node["threshold_belongs"].word<bool>({{"below", true}, {"above", false}});
  if (node.has("values") == node.has("increments"))
    node.fail("has not just one of 'values' and 'increments'");
  std::vector<double> values =
      used_list(node[node.has("values") ? "values" : "increments"], function.arithmetic, most);
  // the derivative of a sum of a_i max(x - c_i, 0): 0, a_1, a_1 + a_2, ... summed in f32
  if (node.has("increments")) {
    double sum = 0;
    for (double& value : values) value = sum = static_cast<float>(sum + value);
    values.insert(values.begin(), 0.0);
  }
  if (values.size() != thresholds.size() + 1) {
    node[node.has("values") ? "values" : "increments"].fail(
        fmt::format("give {} steps where {} thresholds make {}", values.size(), thresholds.size(),
                    thresholds.size() + 1));
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) node["increments"].fail("add up to what is not finite");
    if (i > 0 && i < thresholds.size() && !(thresholds[i - 1] < thresholds[i])) {
      node["thresholds"].fail(
          fmt::format("do not rise: {} is not above {}", thresholds[i], thresholds[i - 1]));
    }
    ForeignPiece step;
    step.to = i < thresholds.size() ? thresholds[i] : kInfinity;
    step.includes_to = below || i == thresholds.size();
    step.coefficients = {values[i]};
    function.pieces[0].push_back(step);
  }
}

void read_pieces(const JsonNode& node, ForeignFunction& function) {
  node.expect_keys({"schema", "name", "activation", "kind", "source", "arithmetic", "constants", "mask_from",
                    "forward", "nan", "left", "right", "claims"});
  function.arithmetic = node["arithmetic"].word<ForeignArithmetic>({{"f32", ForeignArithmetic::f32},
                                                                    {"f32_fma", ForeignArithmetic::f32_fma},
                                                                    {"f64", ForeignArithmetic::f64}});
  if (node.has("constants")) {
    const JsonNode constants = node["constants"];
    constants.expect_keys({"y_hi", "y_lo", "t_min"});
    function.y_hi = used(constants["y_hi"], function.arithmetic);
    function.y_lo = used(constants["y_lo"], function.arithmetic);
    function.t_min = used(constants["t_min"], function.arithmetic);
    if (function.t_min <= 0) constants["t_min"].fail("is not above 0");
  }
  if (node.has("mask_from")) function.mask_from = node["mask_from"].finite();
  if (node.has("forward")) {
    function.erff = node["forward"].word<bool>({{"rounded", false}, {"erff", true}});
    if (function.erff && function.activation != &kGelu) node["forward"].fail("'erff' is a forward of gelu");
  }
  if (node.has("nan") && node["nan"].raw() != "passes") {
    function.nan_passes = false;
    function.nan = used(node["nan"], function.arithmetic);
  }
  function.pieces = {read_branch(node["left"], function), read_branch(node["right"], function)};
}

inline bool mask_bit(const std::uint32_t* mask, std::int64_t i) {
  return (mask[i / 32] >> (i % 32) & 1) != 0;
}

/// The piece in which v lies; for a NaN, the number of pieces.
std::size_t piece_of(const std::vector<ForeignPiece>& pieces, double v) {
  return static_cast<std::size_t>(
      std::find_if(pieces.begin(), pieces.end(),
                   [v](const ForeignPiece& p) { return v < p.to || (p.includes_to && v == p.to); }) -
      pieces.begin());
}

/// [low, high], possibly without one of its ends. Like a comparison, it contains no NaN.
struct Range {
  double low, high;
  bool includes_low, includes_high;
  bool contains(double v) const {
    return (v > low || (includes_low && v == low)) && (v < high || (includes_high && v == high));
  }
};

Range range_of(const std::vector<ForeignPiece>& pieces, std::size_t k) {
  return {k == 0 ? -kInfinity : pieces[k - 1].to, pieces[k].to, k == 0 || !pieces[k - 1].includes_to,
          pieces[k].includes_to};
}

/// Replaces each of n elements t by p(t).
template <class Real, class MultiplyAdd>
void evaluate_polynomial(const ForeignPiece& piece, Real* t, std::int64_t n, MultiplyAdd multiply_add) {
  const std::vector<double>& c = piece.coefficients;
  Real result[kRun];
  if (piece.order == ForeignOrder::horner) {
    std::fill_n(result, n, static_cast<Real>(c.back()));
    for (std::size_t k = c.size() - 1; k-- > 0;) {
      const auto next = static_cast<Real>(c[k]);
      for (std::int64_t i = 0; i < n; ++i) result[i] = multiply_add(result[i], t[i], next);
    }
  } else {  // neighbours are joined by t, t^2, t^4, ...
    for (std::int64_t i = 0; i < n; ++i) {
      Real part[kForeignCoefficients];
      for (std::size_t k = 0; k < c.size(); ++k) part[k] = static_cast<Real>(c[k]);
      Real power = t[i];
      for (std::size_t count = c.size(); count > 1; count = (count + 1) / 2, power *= power) {
        for (std::size_t k = 0; 2 * k < count; ++k)
          part[k] = 2 * k + 1 < count ? multiply_add(part[2 * k + 1], power, part[2 * k]) : part[2 * k];
      }
      result[i] = part[0];
    }
  }
  std::copy_n(result, n, t);
}

template <class Real>
void evaluate_piece(const ForeignFunction& function, const ForeignPiece& piece, bool right, const float* y,
                    float* g, std::int64_t n) {
  if (piece.coefficients.size() == 1) {
    std::fill_n(g, n, static_cast<float>(piece.coefficients[0]));
    return;
  }
  const auto centre = static_cast<Real>(piece.centre);
  Real t[kRun];
  for (std::int64_t i = 0; i < n; ++i) {
    auto v = static_cast<Real>(y[i]);
    if (piece.coordinate == ForeignCoordinate::signed_sqrt) {
      const Real distance = (v - static_cast<Real>(function.y_hi)) - static_cast<Real>(function.y_lo);
      const Real root = std::sqrt(
          distance < static_cast<Real>(function.t_min) ? static_cast<Real>(function.t_min) : distance);
      v = right ? root : -root;
    }
    t[i] = v - centre;
  }
  if (function.arithmetic == ForeignArithmetic::f32_fma) {
    evaluate_polynomial(piece, t, n, [](Real a, Real b, Real c) { return std::fma(a, b, c); });
  } else {
    // two roundings, because nothing here is contracted
    evaluate_polynomial(piece, t, n, [](Real a, Real b, Real c) { return a * b + c; });
  }
  for (std::int64_t i = 0; i < n; ++i) g[i] = static_cast<float>(t[i]);
}

}  // namespace

void ForeignFunction::derivative(const float* y, const std::uint32_t* mask, float* g, std::int64_t n) const {
  if (steps) {
    for (std::int64_t i = 0; i < n; ++i) {
      const float code = y[i];
      const bool known = code >= 0 && code < static_cast<float>(pieces[0].size());
      g[i] = known ? static_cast<float>(pieces[0][static_cast<std::size_t>(code)].coefficients[0])
                   : std::numeric_limits<float>::quiet_NaN();
    }
    return;
  }
  for (std::int64_t begin = 0; begin < n;) {
    const bool right = mask_bit(mask, begin);
    const std::vector<ForeignPiece>& branch = pieces[static_cast<std::size_t>(right)];
    const std::size_t k = piece_of(branch, y[begin]);
    if (k == branch.size()) {
      g[begin] = nan_passes ? y[begin] : static_cast<float>(nan);
      ++begin;
      continue;
    }
    const Range range = range_of(branch, k);
    std::int64_t end = begin + 1;
    while (end < n && end - begin < kRun && mask_bit(mask, end) == right && range.contains(y[end])) ++end;
    if (arithmetic == ForeignArithmetic::f64) {
      evaluate_piece<double>(*this, branch[k], right, y + begin, g + begin, end - begin);
    } else {
      evaluate_piece<float>(*this, branch[k], right, y + begin, g + begin, end - begin);
    }
    begin = end;
  }
}

void ForeignFunction::codes(const float* x, float* code, std::int64_t n) const {
  for (std::int64_t i = 0; i < n; ++i) {
    const std::size_t k = piece_of(pieces[0], x[i]);
    code[i] = k == pieces[0].size() ? 0.0f : static_cast<float>(k);  // NaN is above no threshold
  }
}

ForeignFunction parse_foreign(const std::string& text, const std::string& file) {
  if (text.size() > kForeignBytes)
    throw kernels::SpecError(file, "size",
                             fmt::format("{} bytes; at most {} are read", text.size(), kForeignBytes));
  const JsonNode node(kernels::parse_json(text, file), file);
  node.expect_schema(kForeignSchema);
  ForeignFunction function;
  function.name = node["name"].text();
  constexpr std::size_t kLongestName = 48;
  const auto is_plain = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; };
  if (function.name.empty() || function.name.size() > kLongestName ||
      !std::all_of(function.name.begin(), function.name.end(), is_plain)) {
    node["name"].fail(fmt::format("is not made of at most {} of a-z, 0-9 and _", kLongestName));
  }
  function.activation = node["activation"].word<const SweptActivation*>({{"gelu", &kGelu}, {"silu", &kSilu}});
  function.mask_from = function.activation->x_star;
  const JsonNode source = node["source"];
  source.expect_keys({"work", "repository", "commit", "file", "note"});
  for (const auto& [key, value] : source.raw().items()) function.source[key] = source[key].text();
  if (!source.has("work")) source.fail("'work' is missing: whose coefficients they are");
  enum class Kind { pieces, steps, quantiser };
  const auto kind = node["kind"].word<Kind>(
      {{"pieces", Kind::pieces}, {"steps", Kind::steps}, {"quantiser", Kind::quantiser}});
  if (kind == Kind::pieces) read_pieces(node, function);
  if (kind == Kind::steps) read_steps(node, function);
  if (kind == Kind::quantiser) function.quantiser = read_quantiser(node);
  if (node.has("claims")) {
    const JsonNode claims = node["claims"];
    if (kind == Kind::quantiser) {
      claims.expect_keys({"T"});
    } else {
      claims.expect_keys({"T", "T_dx", "R"});
    }
    for (const auto& [key, value] : claims.raw().items())
      function.claims.emplace_back(key, claims[key].finite());
  }
  return function;
}

nlohmann::ordered_json origin_of(const ForeignFunction& function) {
  nlohmann::ordered_json origin{{"name", function.name},
                                {"kind", function.quantiser ? "quantiser"
                                         : function.steps   ? "steps"
                                                            : "pieces"}};
  origin["stored"] =
      function.quantiser
          ? fmt::format("{} in {} bits{}", function.quantiser->keeps_y ? "y" : "x", function.quantiser->bits,
                        function.quantiser->keeps_y ? " and one bit" : "")
      : function.steps ? fmt::format("a code of {} bits", function.code_bits)
                       : "y and one bit";
  origin["source"] = function.source;
  for (const auto& [what, most] : function.claims) origin["claims"][what] = most;
  return origin;
}

Subject make_subject(const ForeignFunction& foreign, const FloatFormat& format) {
  const auto function = std::make_shared<const ForeignFunction>(foreign);
  Subject subject{function->name + (function->steps  ? "+code"
                                    : function->erff ? "+erff"
                                                     : "+rounded"),
                  format};
  subject.activation = function->activation;
  subject.code = function->steps;
  subject.own_forward = function->erff;
  subject.mask_from = function->mask_from == function->activation->x_star
                          ? function->mask_from
                          : round_to_format(function->mask_from, format);
  if (function->steps) {
    subject.forward = [function](const float* x, float* code, std::uint32_t*, std::int64_t n) {
      function->codes(x, code, n);
    };
  } else if (function->erff) {
    subject.forward = [format, from = subject.mask_from](const float* x, float* y, std::uint32_t* mask,
                                                         std::int64_t n) {
      std::fill_n(mask, (n + 31) / 32, 0u);
      for (std::int64_t i = 0; i < n; ++i) {
        const float by_erff = gelu_by_erff(x[i]);
        y[i] = std::isfinite(by_erff)
                   ? static_cast<float>(round_to_format(static_cast<double>(by_erff), format))
                   : by_erff;
        mask[i / 32] |= static_cast<std::uint32_t>(x[i] >= from) << (i % 32);
      }
    };
  }
  subject.derivative = [function](const float* y, const std::uint32_t* mask, float* g, std::int64_t n) {
    function->derivative(y, mask, g, n);
  };
  if (format.precision < kF32.precision) {
    subject.gradient = [function, format](const float* y, const std::uint32_t* mask, float* dx,
                                          std::int64_t n) {
      function->derivative(y, mask, dx, n);
      for (std::int64_t i = 0; i < n; ++i) {
        if (std::isfinite(dx[i]))
          dx[i] = static_cast<float>(round_to_format(static_cast<double>(dx[i]), format));
      }
    };
  }
  Fingerprint fingerprint;
  fingerprint.add(function->name.data(), function->name.size());
  fingerprint.add(&subject.mask_from, 1);
  for (const auto& branch : function->pieces) {
    for (const ForeignPiece& piece : branch) {
      fingerprint.add(&piece.to, 1);
      fingerprint.add(&piece.centre, 1);
      fingerprint.add(piece.coefficients.data(), piece.coefficients.size());
    }
  }
  subject.identity = identity_of(subject, fingerprint);

  subject.origin = origin_of(*function);
  return subject;
}

}  // namespace outgrad::validation
