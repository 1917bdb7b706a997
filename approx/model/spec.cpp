// Reads specifications, and refuses what contradicts itself with the key and the reason.
#include "approx/model/spec.h"

#include "approx/model/type_name.h"
#include "kernels/host/errors.h"
#include "kernels/support/digest.h"
#include "kernels/support/files.h"
#include "kernels/support/json.h"
#include "kernels/support/suggestion.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <tuple>

namespace outgrad::approx {
namespace {

using kernels::SpecError;

/// For a message, which may quote a key or value of any length.
std::string brief(const std::string& text) {
  constexpr size_t kLongest = 240;
  return text.size() <= kLongest ? text : text.substr(0, kLongest) + "...";
}

/// One JSON object of the spec; says where a value is wrong and refuses keys it was not asked for.
class Reader {
 public:
  Reader(const nlohmann::json& object, std::string path, std::string place)
      : object_(object), path_(std::move(path)), place_(std::move(place)) {
    if (!object_.is_object()) fail("", "must be an object");
  }
  [[noreturn]] void fail(const std::string& key, const std::string& why) const {
    const std::string place = place_.empty() ? key : key.empty() ? place_ : place_ + "." + key;
    throw SpecError(path_, place.empty() ? "top level" : brief(place), brief(why));
  }
  const nlohmann::json& at(const std::string& key) {
    seen_.insert(key);
    known_.insert(key);
    if (!object_.contains(key)) fail(key, "is missing" + misspelt(key));
    return object_.at(key);
  }
  std::string text(const std::string& key) {
    const nlohmann::json& v = at(key);
    if (!v.is_string()) fail(key, "must be a string");
    return v.get<std::string>();
  }
  int integer(const std::string& key, int lo, int hi) {
    const nlohmann::json& v = at(key);
    if (!v.is_number_integer()) fail(key, "must be an integer");
    const auto i = v.is_number_unsigned() && v.get<uint64_t>() > INT64_MAX ? INT64_MAX : v.get<int64_t>();
    if (i < lo || i > hi) fail(key, fmt::format("{} is outside {} .. {}", i, lo, hi));
    return static_cast<int>(i);
  }
  bool boolean(const std::string& key) {
    const nlohmann::json& v = at(key);
    if (!v.is_boolean()) fail(key, "must be true or false");
    return v.get<bool>();
  }
  double number(const std::string& key, double lo, double hi) {
    const nlohmann::json& v = at(key);
    if (!v.is_number()) fail(key, "must be a number");
    const double d = v.get<double>();
    if (!(d >= lo && d <= hi)) fail(key, fmt::format("{} is outside {} .. {}", d, lo, hi));
    return d;
  }
  /// "2^-26" or "2^-12.5".
  double power_of_two(const std::string& key) {
    static const std::regex form("2\\^(-[0-9]{1,2}(\\.[0-9]{1,3})?)");
    const std::string s = text(key);
    std::smatch match;
    if (!std::regex_match(s, match, form)) fail(key, "'" + s + "' is not of the form 2^-N");
    return std::exp2(std::stod(match[1]));
  }
  Reader object(const std::string& key) {
    return {at(key), path_, place_.empty() ? key : place_ + "." + key};
  }
  [[nodiscard]] bool has(const std::string& key) {
    known_.insert(key);
    return object_.contains(key);
  }
  void finish() const {
    for (const auto& item : object_.items()) {
      if (!seen_.contains(item.key()))
        fail(item.key(), "is not a key of this schema" +
                             kernels::did_you_mean(item.key(), {known_.begin(), known_.end()}));
    }
  }

 private:
  /// Another key that may be meant to be this one.
  [[nodiscard]] std::string misspelt(const std::string& key) const {
    std::vector<std::string> others;
    for (const auto& item : object_.items())
      if (!known_.contains(item.key())) others.push_back(item.key());
    const std::string near = kernels::nearest(key, others);
    return near.empty() ? "" : fmt::format("; '{}' is no key", near);
  }

  const nlohmann::json& object_;
  std::string path_, place_;
  /// Those that were read, and all that were asked for.
  std::set<std::string> seen_, known_;
};

Format parse_format(Reader& r, const std::string& key) {
  try {
    return format_of(r.text(key));
  } catch (const SpecError& error) {
    r.fail(key, error.what());
  }
}

bool power_of_two_rows(int rows) { return rows > 0 && (rows & (rows - 1)) == 0; }

/// A table larger than this is none of ours, and the index arithmetic of a fit counts on it.
constexpr int kMostRows = 1024;

/// "abs:2^-26", "rel:2^-10", "ulp:1", "stored:1.05", "oracle", "rounded".
struct Accuracy {
  AccuracyClass kind;
  double bound;
};

Accuracy parse_accuracy(const Reader& r, const std::string& key, const std::string& text) {
  static const std::regex power("(abs|rel):2\\^(-?[0-9]{1,3}(\\.[0-9]{1,3})?)"),
      ratio("(ulp|stored):([0-9]{1,2}(\\.[0-9]{1,4})?)");
  std::smatch match;
  if (text == "oracle") return {AccuracyClass::oracle, 0};
  if (text == "rounded") return {AccuracyClass::rounded, 0};
  if (std::regex_match(text, match, power))
    return {match[1] == "abs" ? AccuracyClass::absolute : AccuracyClass::relative,
            std::exp2(std::stod(match[2]))};
  if (std::regex_match(text, match, ratio)) {
    const double bound = std::stod(match[2]);
    const bool ulp = match[1] == "ulp";
    if (bound < (ulp ? 0.25 : 1.0001))
      r.fail(key, "'" + text + "' is out of reach of any function of the stored y");
    return {ulp ? AccuracyClass::ulp : AccuracyClass::stored, bound};
  }
  r.fail(key, "'" + text + "' is none of abs:2^-N, rel:2^-N, ulp:N, stored:RATIO, oracle, rounded");
}

int parse_scheme(Reader& r, const std::string& key) {
  if (!r.has(key)) return kernels::kHorner;
  const std::string name = r.text(key);
  for (const int scheme : {kernels::kHorner, kernels::kEstrin, kernels::kEvenOdd}) {
    if (name == to_string_scheme(scheme)) return scheme;
  }
  r.fail(key, "'" + name + "' is unknown; known: horner, estrin, even_odd");
}

LeftSegment parse_left_segment(Reader& r) {
  Reader left = r.object("left_segment");
  // 2^-149 is the least number of fp32.
  LeftSegment segment{left.integer("edge_log2", LeftSegment::kLeastEdge, LeftSegment::kGreatestEdge),
                      left.integer("half_octaves", 0, 8), left.integer("merge_log2", -149, 5)};
  if (left.has("octave_bits")) segment.octave_bits = left.integer("octave_bits", 1, 4);
  if (segment.merge_log2 > segment.edge_log2 - segment.half_octaves)
    left.fail("merge_log2", "lies above the undivided octaves");
  left.finish();
  return segment;
}

/// The rest of a direct table's.
void parse_table(Reader& r, BackwardSpec& b) {
  if (carries_branch(b.format))
    r.fail("format", "a parity format has no direct table, whose entries are found by y and a mask");
  if (b.format == Format::mxfp8)
    r.fail("format", "mxfp8 has no direct table: what a code stands for depends on the scale of its block");
  if (r.has("entries")) b.entries = parse_format(r, "entries");
  if (b.entries != Format::f16 && b.entries != Format::bf16) r.fail("entries", "must be f16 or bf16");
}

/// A layout is found only where nothing of one is given.
[[noreturn]] void refuse_beside(Reader& r, const char* key) {
  const int left_rows = r.has("left_segment") ? parse_left_segment(r).rows() : 0,
            all_rows = left_rows > 12 ? 2 * 16 : 16;
  r.fail("cells", fmt::format("is missing beside {}: give \"degree\": 3, \"cells\": {}, or leave {} out, "
                              "and the layout is found",
                              key, all_rows - left_rows, key));
}

/// Which rows there are.
void parse_rows(Reader& r, BackwardSpec& b) {
  if (r.has("split")) {
    const std::string split = r.text("split");
    if (split != "levelled") r.fail("split", "'" + split + "' is unknown; known: levelled (or give cells)");
    if (b.accuracy != AccuracyClass::absolute) r.fail("split", "levelled is for targets abs:2^-N");
    b.split = Split::levelled;
  } else if (r.has("cells")) {
    b.cells = r.integer("cells", 1, kMostRows);
  } else {
    for (const char* key : {"left_segment", "right_from", "both_sides", "centred"})
      if (r.has(key)) refuse_beside(r, key);
  }
  if (r.has("y_max")) b.y_max = static_cast<float>(r.number("y_max", 0.01, 1e6));
  int rows = b.cells;
  if (r.has("left_segment")) {
    b.left = parse_left_segment(r);
    rows += b.left->rows();
    if (b.split == Split::levelled) r.fail("left_segment", "a levelled split has none");
  }
  if (r.has("right_from")) {
    b.right_from = r.number("right_from", 0, 100);
    if (b.split == Split::levelled || b.cells == 1) r.fail("right_from", "is for uniform cells");
    if (r.has("both_sides")) b.both_sides = r.boolean("both_sides");
    if (b.both_sides && !b.left) r.fail("both_sides", "needs a left_segment, where m = 0 ends");
  }
  // A cell's index is taken modulo the number of rows.
  if (b.split == Split::uniform && (!power_of_two_rows(rows) || rows > kMostRows) &&
      (b.cells > 1 || b.left)) {
    r.fail("cells",
           fmt::format("cells and rows of the left segment add up to {}, not to a power of two up to {}",
                       rows, kMostRows));
  }
}

/// What the constants are chosen for.
StorageGoal parse_storage(Reader& r, const BackwardSpec& b, const Accuracy& accuracy) {
  if (!r.has("storage")) {
    if (b.accuracy == AccuracyClass::stored) r.fail("storage", "is missing");
    return {1.05, 1, false};
  }
  Reader storage = r.object("storage");
  const StorageGoal goal{b.anchored ? storage.number("ratio", 1.0001, 10) : accuracy.bound,
                         storage.power_of_two("regret"),
                         storage.has("programme") && storage.boolean("programme")};
  if (goal.programme && (b.accuracy != AccuracyClass::absolute || b.format == Format::f32))
    storage.fail("programme", "is for a 16-bit format with an abs target");
  storage.finish();
  return goal;
}

/// y is a quotient of fp32, by which the rows are to be chosen.
void parse_product(Reader& r, BackwardSpec& b) {
  b.product = parse_format(r, "product");
  if (b.product != Format::f16 && b.product != Format::bf16) r.fail("product", "must be f16 or bf16");
  if (b.format != Format::f32) r.fail("format", "must be f32 beside product: z / b is an fp32 number");
  if (b.accuracy != AccuracyClass::absolute) r.fail("target", "must be abs:2^-N beside product");
  if (b.split == Split::uniform && b.cells == 0) r.fail("cells", "is missing beside product");
  if (!r.has("storage")) r.fail("storage", "is missing beside product");
}

BackwardSpec parse_backward(Reader& r, const Accuracy& accuracy) {
  BackwardSpec b{};
  b.format = parse_format(r, "format");
  b.accuracy = accuracy.kind;
  if (b.accuracy == AccuracyClass::rounded) r.fail("target", "rounded is of a forward");
  const bool small_format = b.format != Format::f32;
  if ((b.accuracy == AccuracyClass::stored || b.accuracy == AccuracyClass::oracle) && !small_format)
    r.fail("target", "counts the values of a 16- or 8-bit format; the format is f32");
  if (b.accuracy == AccuracyClass::oracle) {
    parse_table(r, b);
    return b;
  }
  if (b.format == Format::e4m3 || b.format == Format::e5m2)
    r.fail("format", "8-bit formats have direct tables only (target oracle)");
  const bool finds_layout = !r.has("cells") && !r.has("split");
  if (finds_layout && b.accuracy != AccuracyClass::absolute)
    r.fail(
        "cells",
        "is missing (a layout is found for targets abs:2^-N alone): \"degree\": 3, \"cells\": 16 is a start");
  if (!finds_layout || r.has("degree")) b.degree = r.integer("degree", 1, 12);
  b.scheme = parse_scheme(r, "scheme");
  b.centred = !r.has("centred") || r.boolean("centred");
  const bool in_ulps = b.accuracy == AccuracyClass::ulp && !small_format;
  // a fit to the storage intervals is not held at g's limits
  b.anchored = b.accuracy != AccuracyClass::stored && (b.accuracy != AccuracyClass::ulp || in_ulps);
  if (in_ulps && accuracy.bound <= 0.5) r.fail("target", "the last rounding alone may cost half an ulp");
  if (in_ulps && (b.scheme != kernels::kHorner || !b.centred))
    r.fail("scheme", "a target in ulp of f32 takes centred rows by horner");
  parse_rows(r, b);
  if (r.has("product")) parse_product(r, b);
  b.storage = parse_storage(r, b, accuracy);
  return b;
}

Cells parse_cells(Reader r) {
  Cells c{r.integer("degree", 1, 12), r.number("cells_per_unit", 1, 64), r.integer("rows", 1, 1024)};
  if (std::fmod(c.cells_per_unit, 0.125) != 0) r.fail("cells_per_unit", "must be a multiple of 1/8");
  if (!power_of_two_rows(c.rows)) r.fail("rows", "must be a power of two");
  r.finish();
  return c;
}

RoundedForwardSpec parse_rounded(Reader& r) {
  RoundedForwardSpec s{};
  s.format = parse_format(r, "format");
  if (s.format != Format::f16 && s.format != Format::bf16)
    r.fail("format", "must be f16 or bf16: every x of the format is tried");
  s.cells_per_unit = r.integer("cells_per_unit", 1, 64);
  s.rows = r.integer("rows", 1, kMostRows);
  s.core_rows = r.integer("core_rows", 1, s.rows);
  for (const auto& [key, rows] :
       {std::pair{"cells_per_unit", s.cells_per_unit}, {"rows", s.rows}, {"core_rows", s.core_rows}}) {
    if (!power_of_two_rows(rows)) r.fail(key, "must be a power of two");
  }
  s.quartic_shift = r.integer("quartic_shift", 16, 20);
  s.x_max = static_cast<float>(r.number("x_max", 0, 32));
  if (r.has("x_min")) s.x_min = static_cast<float>(r.number("x_min", -128, -1));
  return s;
}

}  // namespace

Spec parse_spec(const std::string& text, const std::string& path) {
  const nlohmann::json document = kernels::parse_json(text, path);
  Reader r(document, path, "");
  if (const std::string schema = r.text("schema"); schema != "outgrad.spec/2")
    r.fail("schema", "'" + schema + "' is unknown; known: outgrad.spec/2");
  Spec spec;
  spec.name = r.text("name");
  const bool named = r.has("activation");
  if (const std::string why = refusal_of_name(spec.name, !named); !why.empty()) r.fail("name", why);
  if (named == r.has("expression")) r.fail("activation", "give either it or an expression");
  const std::string key = named ? "activation" : "expression", definition = r.text(key);
  Parameters parameters;
  if (r.has("parameters")) {
    Reader p = r.object("parameters");
    for (const auto& [name, of, value] :
         {std::tuple{"beta", "swish", &parameters.beta}, {"alpha", "elu", &parameters.alpha}}) {
      if (!p.has(name)) continue;
      *value = p.number(name, 1e-3, 1e3);
      if (!named || definition != of) p.fail(name, fmt::format("is of {}, not of {}", of, definition));
    }
    p.finish();
  }
  try {
    spec.activation =
        named ? find_activation(definition, parameters) : activation_from_expression(definition);
  } catch (const SpecError& error) {
    r.fail(key, error.what());
  }
  spec.accuracy = r.text("target");
  const Accuracy accuracy = parse_accuracy(r, "target", spec.accuracy);
  spec.target = accuracy.bound;
  const std::string kind = r.text("kind");
  if (kind == "backward") {
    spec.kind = parse_backward(r, accuracy);
  } else if (kind == "forward") {
    if (accuracy.kind != AccuracyClass::relative && accuracy.kind != AccuracyClass::rounded) {
      r.fail("target", "must be rel:2^-N, or rounded for a 16-bit format: the forward is relative");
    }
    if (accuracy.kind == AccuracyClass::rounded) {
      spec.kind = parse_rounded(r);
    } else {
      auto& forward = spec.kind.emplace<ForwardSpec>();
      forward.core = parse_cells(r.object("core"));
      if (r.has("tail")) forward.tail = parse_cells(r.object("tail"));
      if (r.has("compensated")) forward.compensated = r.boolean("compensated");
      if (forward.compensated && forward.core.degree < 2)
        r.fail("core", "degree must be at least 2 of compensated rows");
      if (!named)
        r.fail(key,
               "a forward in f32 is of an activation that has a name: the ends of another are not proven");
    }
  } else if (kind == "code") {
    if (accuracy.kind != AccuracyClass::absolute)
      r.fail("target", "must be abs:2^-N, how near to f' the coded g is");
    spec.kind = CodeSpec{};
  } else if (kind == "fp8") {
    if (accuracy.kind != AccuracyClass::absolute)
      r.fail("target", "must be abs:2^-N, what the fit and its rounding may add");
    spec.kind = Fp8Spec{r.text("code"), r.text("fit")};
  } else {
    r.fail("kind", "'" + kind + "' is unknown; known: backward, forward, code, fp8");
  }
  r.finish();
  spec.text = text;
  spec.sha256 = kernels::sha256(text);
  return spec;
}

Spec read_spec(const std::string& path) { return parse_spec(kernels::read_file(path), path); }

}  // namespace outgrad::approx
