// Writes fits as JSON and reads them back, with the place of whatever is wrong: each kind lists its fields
// once, in the order of the file, for both.
#include "approx/model/fit.h"

#include "approx/model/type_name.h"
#include "kernels/host/errors.h"
#include "kernels/support/json.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <regex>
#include <utility>

namespace outgrad::approx {
namespace {

using json = nlohmann::ordered_json;

/// An integer with the ends of what a file may give for it.
struct Integer {
  int& value;
  int least, most;
};
/// An order of evaluation, by its name.
struct Scheme {
  int& value;
};
/// A text, what it may be, and what a refusal says of that.
struct Text {
  std::string& value;
  bool (*allowed)(const std::string&);
  const char* why;
};
/// An identifier: it goes into C++ source.
Text word(std::string& value) {
  const auto allowed = [](const std::string& s) {
    return std::regex_match(s, std::regex("[a-z][a-z0-9_]{0,63}"));
  };
  return {value, allowed, "must be a lower-case identifier"};
}
/// It goes into a string literal.
Text line(std::string& value) {
  const auto allowed = [](const std::string& s) {
    return !s.empty() && s.size() <= 4096 && std::all_of(s.begin(), s.end(), [](char c) {
      return c >= ' ' && c <= '~' && c != '"' && c != '\\';
    });
  };
  return {value, allowed, "must be 1 to 4096 printable ASCII characters, without quotes and backslashes"};
}
Text digest(std::string& value) {
  const auto allowed = [](const std::string& s) { return std::regex_match(s, std::regex("[0-9a-f]{64}")); };
  return {value, allowed, "must be 64 hexadecimal digits"};
}

/// A stored y, which may be an infinity.
struct StoredInput {
  double& value;
};

/// A place of the document, to be written or, if there is a path for the refusals, to be read.
class Place {
 public:
  Place(json& value, const std::string* path, std::string place)
      : value_(value), path_(path), place_(std::move(place)) {}
  [[nodiscard]] bool reads() const { return path_ != nullptr; }
  [[noreturn]] void fail(const std::string& why) const {
    throw kernels::SpecError(*path_, place_.empty() ? "top level" : place_, why);
  }
  [[nodiscard]] bool has(const char* key) const { return value_.is_object() && value_.contains(key); }
  [[nodiscard]] Place operator[](const char* key) const {
    if (reads() && !has(key)) fail(fmt::format("'{}' is missing", key));
    return {value_[key], path_, place_.empty() ? key : place_ + "." + key};
  }

  /// Members: key and field in turn.
  template <class Field, class... More>
  void operator()(const char* key, Field&& field, More&&... more) const {
    (*this)[key].is(std::forward<Field>(field));
    if constexpr (sizeof...(More) > 0) (*this)(more...);
  }
  /// What is written for people, and is not read.
  void remark(const char* key, const json& value) const {
    if (!reads()) value_[key] = value;
  }

  void is(double& d) const {
    is(StoredInput{d});
    if (reads() && !std::isfinite(d)) fail("'" + text().substr(0, 40) + "' is not a finite number");
  }
  void is(const StoredInput& y) const {
    if (!reads()) return write(fmt::format("{:a}", y.value));
    const std::string s = text();
    char* end = nullptr;
    y.value = std::strtod(s.c_str(), &end);
    if (s.empty() || end != s.c_str() + s.size() || std::isnan(y.value))
      fail("'" + s.substr(0, 40) + "' is not a number");
  }
  void is(float& f) const {
    auto d = static_cast<double>(f);
    is(d);
    f = static_cast<float>(d);
    if (reads() && static_cast<double>(f) != d) fail("is not an fp32 number");
  }
  void is(bool& b) const {
    if (!reads()) return write(b);
    if (!value_.is_boolean()) fail("must be true or false");
    b = value_.get<bool>();
  }
  void is(const Integer& i) const {
    if (!reads()) return write(i.value);
    if (!value_.is_number_integer() || value_.get<int64_t>() < i.least || value_.get<int64_t>() > i.most)
      fail(fmt::format("must be an integer in {} .. {}", i.least, i.most));
    i.value = value_.get<int>();
  }
  void is(std::uint16_t& bits) const {
    int value = bits;
    is(Integer{value, 0, 0xffff});
    bits = static_cast<std::uint16_t>(value);
  }
  void is(std::string& s) const {
    if (!reads()) return write(s);
    s = text();
  }
  void is(const Text& t) const {
    is(t.value);
    if (reads() && !t.allowed(t.value)) fail(t.why);
  }
  void is(Format& f) const { one_of(f, kFormats, &to_string); }
  void is(Region& r) const {
    static constexpr Region kAll[] = {Region::core, Region::right, Region::right_mirrored, Region::left};
    one_of(r, kAll, &to_string);
  }
  void is(Coordinate& c) const {
    static constexpr Coordinate kAll[] = {Coordinate::signed_root, Coordinate::identity,
                                          Coordinate::argument};
    one_of(c, kAll, &to_string);
  }
  void is(const Scheme& s) const {
    static constexpr int kAll[] = {kernels::kHorner, kernels::kEstrin, kernels::kEvenOdd};
    one_of(s.value, kAll, &to_string_scheme);
  }
  template <class Value>
  void is(std::vector<Value>& values) const {
    each(values, [](const Place& at, Value& value) { at.is(value); });
  }
  template <size_t kCount>
  void is(std::array<double, kCount>& values) const {
    std::vector<double> all(values.begin(), values.end());
    is(all);
    if (all.size() != kCount) fail(fmt::format("must hold {} numbers", kCount));
    std::copy(all.begin(), all.end(), values.begin());
  }
  void is(FoundInputs& found) const {
    if (!reads()) value_ = json::object();
    for (const char* bound : {"AB", "B", "K", "O", "R", "T", "ulp"}) {
      if (reads() ? !has(bound) : !found.contains(bound)) continue;
      Found& input = found[bound];
      (*this)[bound]("error", input.error, "y", StoredInput{input.at}, "m", input.m);
    }
  }
  void is(TableModel::Segment& s) const {
    (*this)("first", Integer{s.first, 0, 0x7fff}, "last", Integer{s.last, 0, 0x7fff}, "base",
            Integer{s.base, 0, 0x1ffff});
  }
  void is(Fp8Model::Scales& s) const { (*this)("least", s.least, "most", s.most, "T", s.kT); }

  /// The elements of an array.
  template <class Value, class List>
  void each(std::vector<Value>& values, const List& list) const {
    if (!reads()) value_ = json::array_t(values.size());
    if (!value_.is_array()) fail("must be an array");
    if (reads()) values.clear();
    for (size_t i = 0; i < value_.size(); ++i) {
      if (reads()) values.emplace_back();
      list(Place(value_[i], path_, fmt::format("{}[{}]", place_, i)), values[i]);
    }
  }
  template <class Value, size_t kCount>
  void one_of(Value& value, const Value (&all)[kCount], const char* (*name)(Value)) const {
    if (!reads()) return write(name(value));
    const std::string given = text();
    for (const Value each : all) {
      if (given == name(each)) return void(value = each);
    }
    fail("'" + given.substr(0, 40) + "' is unknown");
  }

 private:
  [[nodiscard]] std::string text() const {
    if (!value_.is_string()) fail("must be a string");
    return value_.get<std::string>();
  }
  void write(const json& value) const { value_ = value; }

  json& value_;
  const std::string* path_;
  std::string place_;
};

/// A table larger than this is none of ours.
constexpr int kMostRowsRead = 4096;

/// What the rows of a table have in common.
struct Table {
  Target target;
  int degree, rows;
  bool two_word = false;
};

void list_piece(const Place& j, Piece& p, const Table& table, int row) {
  if (j.reads()) p.target = table.target, p.two_word = table.two_word;
  // Rows of a forward have no evaluation bound, and no certified minimax.
  const bool is_forward = p.target == Target::value_relative || p.target == Target::ratio_relative;
  bool relative = p.target != Target::gradient;
  std::array<double, 2> v{p.v_lo, p.v_hi}, x{static_cast<double>(p.x_lo), static_cast<double>(p.x_hi)};
  j("row", Integer{p.row, 0, table.rows - 1}, "region", p.region);
  static constexpr bool kBoth[] = {false, true};
  j["error"].one_of(relative, kBoth, +[](bool is) { return is ? "relative" : "absolute"; });
  j("coordinate", p.coordinate, "v", v, "x", x, "left_tail", p.left_tail, "right_tail", p.right_tail,
    "centre", p.centre, "c", p.c);
  if (p.target == Target::value_relative) j("scale", p.scale);
  if (p.two_word) j("c0_low", p.c0_low);
  // Lower bound <= best real coefficients <= their certified bound; observed <= certified, after rounding.
  j("degree", Integer{p.degree, 0, table.degree}, "storage_aware", p.storage_aware, "lower_bound",
    p.lower_bound, "minimax", p.minimax);
  if (!is_forward) j("minimax_certified", p.minimax_certified);
  j("observed", p.observed);
  j["found"]("error", p.found.error, "x", p.found.at);
  j("certified", p.certified);
  if (!is_forward) j("evaluation", p.evaluation);
  if (p.two_word) j("ulp", p.ulp);
  if (!j.reads()) return;
  if (p.row != row) j["row"].fail("rows must ascend from 0");
  if (p.c.size() != static_cast<size_t>(table.degree) + 1)
    j["c"].fail(fmt::format("must hold {} coefficients", table.degree + 1));
  if (p.target == Target::gradient && relative) p.target = Target::gradient_relative;
  p.v_lo = v[0], p.v_hi = v[1], p.x_lo = x[0], p.x_hi = x[1];
}

void list_pieces(const Place& rows, std::vector<Piece>& pieces, const Table& table) {
  int row = 0;
  rows.each(pieces, [&](const Place& j, Piece& p) { list_piece(j, p, table, row++); });
}

/// What only some fits have: written where it says something. Whether it is there.
template <class Field>
bool optional(const Place& j, const char* key, Field& field, bool says) {
  if (j.reads() ? j.has(key) : says) j(key, field);
  return j.has(key);
}

void list(const Place& j, BackwardModel& m) {
  j("format", m.format);
  optional(j, "product", m.product, m.of_product());
  j("degree", Integer{m.kDegree, 1, 16}, "rows", Integer{m.kRows, 1, kMostRowsRead}, "scheme",
    Scheme{m.kScheme});
  if (!j.reads()) {
    const Cost cost = cost_of(m);
    j.remark("cost", {{"operations", cost.arithmetic},
                      {"roots", cost.roots},
                      {"selects", cost.selects},
                      {"integer", cost.integer},
                      {"loads", cost.loads},
                      {"table_bytes", cost.table_bytes}});
  }
  const Place constants = j["constants"];
  constants("centred", m.kCentred, "exact_limits", m.kExactLimits, "masked", m.kMasked, "y_hi", m.kYHi,
            "y_lo", m.kYLo, "t_min", m.kTMin, "s_min", m.kSMin, "y_min", m.kYMin, "y_max", m.kYMax,
            "has_breaks", m.kHasBreaks, "breaks", m.breaks, "index_scale", m.kIndexScale, "index_bias",
            m.kIndexBias, "has_left", m.kHasLeft, "left_y", m.kLeftY, "left_bits", Integer{m.kLeftBits, 1, 4},
            "left_row", Integer{m.kLeftRow, 0, kMostRowsRead});
  const int codes = 256 << m.kLeftBits;
  constants("left_knee", Integer{m.kLeftKnee, 0, codes}, "left_base", Integer{m.kLeftBase, 0, codes},
            "has_right", m.kHasRight, "right_s", m.kRightS, "right_both", m.kRightBoth, "two_word",
            m.kTwoWord);
  if (j.reads() && m.breaks.size() != (m.kHasBreaks ? static_cast<size_t>(m.kRows) - 1 : 0))
    constants["breaks"].fail("must hold one break point less than there are rows");
  j["certificate"]("A", m.kA, "K", m.kK, "B", m.kB, "AB", m.kAB, "expected_ratio", m.expected_ratio,
                   "expected_regret", m.expected_regret, "T", m.kT, "O", m.kO, "R", m.kR, "worst_ulp",
                   m.worst_ulp, "ulp", m.kUlp, "programme_reached", m.programme_reached, "programme_dual",
                   m.programme_dual, "found", m.found);
  list_pieces(j["pieces"], m.pieces, {Target::gradient, m.kDegree, m.kRows, m.kTwoWord});
  // The last cell is left out where nothing asks for it: its row stays in the table, which has a power of
  // two of them.
  const int listed = static_cast<int>(m.pieces.size());
  if (j.reads() && (listed < m.kRows - (m.kHasBreaks ? 0 : 1) ||
                    static_cast<int>(deployed_place(m, m.kYMax, true).row) >= listed))
    j["pieces"].fail(fmt::format("must hold {} rows", m.kRows));
}

void list(const Place& j, ForwardModel& m) {
  const Place constants = j["constants"];
  m.kMasked = optional(constants, "x_star", m.kXStar, m.kMasked);
  constants("x_min", m.kXMin, "x_max", m.kXMax);
  const bool tail = optional(constants, "tail_x", m.kTailX, m.kTailX != 0);
  optional(constants, "levels", m.kLevels, m.kLevels);
  optional(constants, "compensated", m.kCompensated, m.kCompensated);
  optional(constants, "slope_low", m.kSlopeLow, m.kSlopeLow != 0);
  j["certificate"]("A", m.kA);
  const auto part = [](const Place& at, int& degree, int& rows, float& scale, float& bias,
                       std::vector<Piece>& pieces) {
    at("degree", Integer{degree, 1, 16}, "rows", Integer{rows, 1, kMostRowsRead}, "index_scale", scale,
       "index_bias", bias);
    list_pieces(at["pieces"], pieces, {Target::value_relative, degree, rows});
  };
  part(j["core"], m.kDegree, m.kRows, m.kIndexScale, m.kIndexBias, m.core);
  if (tail) part(j["tail"], m.kTailDegree, m.kTailRows, m.kTailIndexScale, m.kTailIndexBias, m.tail);
}

void list(const Place& j, RoundedForwardModel& m) {
  j("format", m.format, "rows", Integer{m.kRows, 1, kMostRowsRead});
  j("core_rows", Integer{m.kCoreRows, 1, m.kRows}, "quartic_shift", Integer{m.kQuarticShift, 16, 20});
  const Place constants = j["constants"];
  m.kMasked = optional(constants, "x_star", m.kXStar, m.kMasked);
  constants("x_min", m.kXMin, "x_max", m.kXMax, "tie", m.kTie);
  optional(constants, "plain", m.kPlain, m.kPlain);
  optional(constants, "end", m.kEnd, std::isfinite(m.kEnd));
  optional(constants, "pull", m.kPull, m.kPull != 0);
  constants("index_scale", m.kIndexScale, "index_bias", m.kIndexBias);
  j["certificate"]("A", m.kA, "core_A", m.kCoreA);
  list_pieces(
      j["pieces"], m.pieces,
      {m.kPlain ? Target::value_relative : Target::ratio_relative, RoundedForwardModel::kDegree, m.kRows});
  if (!j.reads()) return;
  m.kCoreFirst = static_cast<int>(m.pieces.size()) - m.kCoreRows;
  if (m.kCoreFirst < 0) j["pieces"].fail(fmt::format("must hold the {} rows of the core", m.kCoreRows));
  for (const Piece& p : m.pieces) {
    if (kernels::bits_of(p.c[3]) << m.kQuarticShift != kernels::bits_of(p.c[4]))
      j["pieces"].fail(fmt::format("row {}: c4 is not what c3 ends in", p.row));
  }
}

void list(const Place& j, TableModel& t) {
  j("format", t.format, "entry_format", t.entry_format, "masked", t.kMasked);
  j.remark("cost", {{"integer", t.index_operations()}, {"loads", 1}, {"table_bytes", 2 * t.entries.size()}});
  j["segments"]("upper", t.upper, "lower", t.lower, "left", t.left);
  j["certificate"]("T", t.kT, "O", t.kO, "R", t.kR, "found", t.found);
  j("entries", t.entries);
  if (!j.reads()) return;
  if (t.format == Format::f32 || (t.entry_format != Format::f16 && t.entry_format != Format::bf16))
    j["format"].fail("is none of a direct table");
  for (const auto& [name, s] : {std::pair("upper", t.upper), {"lower", t.lower}, {"left", t.left}}) {
    if (s.last < s.first || static_cast<size_t>(s.base + s.last - s.first) >= t.entries.size())
      j["segments"][name].fail("leaves the table");
  }
}

void list(const Place& j, CodeModel& m) {
  j["range"]("lo", m.kLo, "hi", m.kHi);
  j["certificate"]("G", m.kG, "T", m.kT, "dithered", m.kDithered, "bias", m.kBias);
}

void list(const Place& j, Fp8Model& m) {
  j("code", word(m.code), "fit", word(m.fit));
  j["extrema"]("least_at", m.kLeastAt, "greatest_at", m.kGreatestAt);
  j["certificate"]("G", m.kG, "room", m.kRoom, "e4m3", m.e4m3, "e5m2", m.e5m2, "int8", m.int8, "mxfp4",
                   m.mxfp4, "nvfp4", m.nvfp4, "sign", m.kSignT);
}

/// What a file calls the kinds of Fit::model, in their order.
constexpr const char* kKinds[] = {"backward", "forward", "rounded_forward", "table", "code", "fp8"};

template <size_t... kKind>
void make_kind(Fit& fit, size_t kind, std::index_sequence<kKind...>) {
  ((kind == kKind ? void(fit.model.emplace<kKind>()) : void()), ...);
}

void list(const Place& j, Fit& fit) {
  constexpr const char* kSchema = "outgrad.fit/3";
  std::string schema = kSchema;
  j("schema", schema);
  if (schema != kSchema) j["schema"].fail(fmt::format("is unknown; known: {}", kSchema));
  j("name", fit.name, "activation", word(fit.activation), "function", line(fit.function), "class",
    line(fit.accuracy), "spec_sha256", digest(fit.spec_sha256), "target", fit.target);
  std::string kind = kKinds[fit.model.index()];
  j("kind", kind);
  if (j.reads()) {
    if (const std::string why = refusal_of_name(fit.name, fit.activation == "expression"); !why.empty())
      j["name"].fail(why);
    const auto at = std::find(std::begin(kKinds), std::end(kKinds), kind);
    if (at == std::end(kKinds))
      j["kind"].fail("must be backward, table, forward, rounded_forward, code or fp8");
    make_kind(fit, static_cast<size_t>(at - std::begin(kKinds)),
              std::make_index_sequence<std::size(kKinds)>());
  }
  std::visit([&](auto& model) { list(j, model); }, fit.model);
}

}  // namespace

std::string to_json(Fit fit) {
  json document;
  list(Place(document, nullptr, ""), fit);
  return document.dump(1) + "\n";
}

Fit fit_from_json(const std::string& text, const std::string& path) {
  json document = kernels::parse_json<json>(text, path);
  Fit fit;
  list(Place(document, &path, ""), fit);
  return fit;
}

}  // namespace outgrad::approx
