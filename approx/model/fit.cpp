// Writes fits as JSON and reads them back, with the place of whatever is wrong.
#include "approx/model/fit.h"

#include "approx/model/type_name.h"
#include "kernels/host/errors.h"
#include "kernels/support/json.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <regex>

namespace outgrad::approx {
namespace {

using kernels::SpecError;
using json = nlohmann::ordered_json;

json number(double d) { return fmt::format("{:a}", d); }
json number(float f) { return fmt::format("{:a}", static_cast<double>(f)); }

/// Access with the path of the file in every refusal.
class Node {
 public:
  Node(const json& value, const std::string& path, std::string place)
      : value_(value), path_(path), place_(std::move(place)) {}
  [[noreturn]] void fail(const std::string& why) const {
    throw SpecError(path_, place_.empty() ? "top level" : place_, why);
  }
  [[nodiscard]] Node operator[](const std::string& key) const {
    if (!value_.is_object() || !value_.contains(key)) fail("'" + key + "' is missing");
    return {value_.at(key), path_, place_.empty() ? key : place_ + "." + key};
  }
  [[nodiscard]] bool has(const std::string& key) const { return value_.is_object() && value_.contains(key); }
  [[nodiscard]] std::vector<Node> items() const {
    if (!value_.is_array()) fail("must be an array");
    std::vector<Node> r;
    for (size_t i = 0; i < value_.size(); ++i)
      r.emplace_back(value_[i], path_, fmt::format("{}[{}]", place_, i));
    return r;
  }
  [[nodiscard]] std::string text() const {
    if (!value_.is_string()) fail("must be a string");
    return value_.get<std::string>();
  }
  /// An identifier: it goes into C++ source.
  [[nodiscard]] std::string word() const {
    const std::string s = text();
    if (!std::regex_match(s, std::regex("[a-z][a-z0-9_]{0,63}"))) fail("must be a lower-case identifier");
    return s;
  }
  /// Printable text without quotes and backslashes: it goes into a string literal.
  [[nodiscard]] std::string line() const {
    const std::string s = text();
    if (s.empty() || s.size() > 4096) fail("must be 1 to 4096 characters long");
    for (const char ch : s) {
      if (ch < ' ' || ch > '~' || ch == '"' || ch == '\\')
        fail("holds a character other than printable ASCII, or a quote or backslash");
    }
    return s;
  }
  [[nodiscard]] double real() const {
    const std::string s = text();
    char* end = nullptr;
    const double d = std::strtod(s.c_str(), &end);
    if (s.empty() || end != s.c_str() + s.size() || !std::isfinite(d))
      fail("'" + s.substr(0, 40) + "' is not a finite number");
    return d;
  }
  [[nodiscard]] float single() const {
    const double d = real();
    const auto f = static_cast<float>(d);
    if (static_cast<double>(f) != d) fail("is not an fp32 number");
    return f;
  }
  [[nodiscard]] int integer(int lo, int hi) const {
    if (!value_.is_number_integer() || value_.get<int64_t>() < lo || value_.get<int64_t>() > hi)
      fail(fmt::format("must be an integer in {} .. {}", lo, hi));
    return value_.get<int>();
  }
  [[nodiscard]] bool boolean() const {
    if (!value_.is_boolean()) fail("must be true or false");
    return value_.get<bool>();
  }

 private:
  const json& value_;
  const std::string& path_;
  std::string place_;
};

/// Rows of a forward have no evaluation bound, and no certified minimax.
bool is_forward(Target target) {
  return target == Target::value_relative || target == Target::ratio_relative;
}

json pieces_to_json(const std::vector<Piece>& pieces) {
  json rows = json::array();
  for (const Piece& p : pieces) {
    json c = json::array();
    for (const float f : p.c) c.push_back(number(f));
    json row{{"row", p.row},
             {"region", to_string(p.region)},
             {"error", p.target == Target::gradient ? "absolute" : "relative"},
             {"coordinate", to_string(p.coordinate)},
             {"v", {number(p.v_lo), number(p.v_hi)}},
             {"x", {number(static_cast<double>(p.x_lo)), number(static_cast<double>(p.x_hi))}},
             {"left_tail", p.left_tail},
             {"right_tail", p.right_tail},
             {"centre", number(p.centre)},
             {"c", std::move(c)}};
    if (p.target == Target::value_relative) row["scale"] = number(p.scale);
    if (p.two_word) row["c0_low"] = number(p.c0_low);
    row["degree"] = p.degree;
    row["storage_aware"] = p.storage_aware;
    // Lower bound <= best real coefficients <= their certified bound; observed <= certified, after rounding.
    row["lower_bound"] = number(p.lower_bound);
    row["minimax"] = number(p.minimax);
    if (!is_forward(p.target)) row["minimax_certified"] = number(p.minimax_certified);
    row["observed"] = number(p.observed);
    row["found"] = {{"error", number(p.found.error)}, {"x", number(p.found.at)}};
    row["certified"] = number(p.certified);
    if (!is_forward(p.target)) row["evaluation"] = number(p.evaluation);
    if (p.two_word) row["ulp"] = number(p.ulp);
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<Piece> pieces_from_json(const Node& rows, Target target, int degree, int table_rows,
                                    bool two_word = false) {
  std::vector<Piece> pieces;
  for (const Node& node : rows.items()) {
    Piece p;
    p.target = target;
    const std::string error = node["error"].text();
    if (error != "absolute" && error != "relative") node["error"].fail("must be absolute or relative");
    if (target == Target::gradient && error == "relative") p.target = Target::gradient_relative;
    p.row = node["row"].integer(0, table_rows - 1);
    if (p.row != static_cast<int>(pieces.size())) node["row"].fail("rows must ascend from 0");
    const std::string region = node["region"].text();
    bool known = false;
    for (const Region r : {Region::core, Region::right, Region::right_mirrored, Region::left}) {
      if (region == to_string(r)) {
        p.region = r;
        known = true;
      }
    }
    if (!known) node["region"].fail("'" + region.substr(0, 40) + "' is unknown");
    const std::string coordinate = node["coordinate"].text();
    known = false;
    for (const Coordinate c : {Coordinate::signed_root, Coordinate::identity, Coordinate::argument}) {
      if (coordinate == to_string(c)) {
        p.coordinate = c;
        known = true;
      }
    }
    if (!known) node["coordinate"].fail("'" + coordinate.substr(0, 40) + "' is unknown");
    const auto v = node["v"].items(), x = node["x"].items();
    if (v.size() != 2 || x.size() != 2) node.fail("v and x must be pairs");
    p.v_lo = v[0].real();
    p.v_hi = v[1].real();
    p.x_lo = Real(x[0].real());
    p.x_hi = Real(x[1].real());
    p.left_tail = node["left_tail"].boolean();
    p.right_tail = node["right_tail"].boolean();
    p.centre = node["centre"].single();
    for (const Node& c : node["c"].items()) p.c.push_back(c.single());
    if (static_cast<int>(p.c.size()) != degree + 1)
      node["c"].fail(fmt::format("must hold {} coefficients", degree + 1));
    if (target == Target::value_relative) p.scale = node["scale"].real();
    p.two_word = two_word;
    if (two_word) {
      p.c0_low = node["c0_low"].single();
      p.ulp = node["ulp"].real();
    }
    p.degree = node["degree"].integer(0, degree);
    p.storage_aware = node["storage_aware"].boolean();
    if (target == Target::gradient) p.minimax_certified = node["minimax_certified"].real();
    p.lower_bound = node["lower_bound"].real();
    p.minimax = node["minimax"].real();
    p.observed = node["observed"].real();
    p.found = {node["found"]["error"].real(), node["found"]["x"].real()};
    p.certified = node["certified"].real();
    if (target == Target::gradient) p.evaluation = node["evaluation"].real();
    pieces.push_back(std::move(p));
  }
  return pieces;
}

json found_to_json(const FoundInputs& found) {
  json inputs = json::object();
  for (const auto& [bound, input] : found)
    inputs[bound] = {{"error", number(input.error)}, {"y", number(input.at)}, {"m", input.m}};
  return inputs;
}

FoundInputs found_from_json(const Node& node) {
  FoundInputs found;
  for (const char* bound : {"AB", "B", "K", "O", "R", "T", "ulp"}) {
    if (!node.has(bound)) continue;
    const Node input = node[bound];
    found[bound] = {input["error"].real(), input["y"].real(), input["m"].boolean()};
  }
  return found;
}

Format format_from(const Node& node) {
  const std::string name = node.text();
  for (const Format f : kFormats) {
    if (name == to_string(f)) return f;
  }
  node.fail("format is unknown");
}

int scheme_from(const Node& node) {
  const std::string name = node.text();
  for (const int s : {kernels::kHorner, kernels::kEstrin, kernels::kEvenOdd}) {
    if (name == to_string_scheme(s)) return s;
  }
  node.fail("is unknown");
}

template <size_t kCount>
void bounds_from(const Node& node, std::array<double, kCount>& to) {
  const std::vector<Node> all = node.items();
  if (all.size() != kCount) node.fail(fmt::format("must hold {} bounds", kCount));
  for (size_t i = 0; i < kCount; ++i) to[i] = all[i].real();
}

/// A table larger than this is none of ours.
constexpr int kMostRowsRead = 4096;

}  // namespace

std::string to_json(const Fit& fit) {
  json j{{"schema", "outgrad.fit/3"},   {"name", fit.name},      {"activation", fit.activation},
         {"function", fit.function},    {"class", fit.accuracy}, {"spec_sha256", fit.spec_sha256},
         {"target", number(fit.target)}};
  if (fit.backward) {
    const BackwardModel& m = *fit.backward;
    j["kind"] = "backward";
    j["format"] = to_string(m.format);
    j["degree"] = m.kDegree;
    j["rows"] = m.kRows;
    j["scheme"] = to_string_scheme(m.kScheme);
    const Cost cost = cost_of(m);
    j["cost"] = {{"operations", cost.arithmetic}, {"roots", cost.roots}, {"selects", cost.selects},
                 {"integer", cost.integer},       {"loads", cost.loads}, {"table_bytes", cost.table_bytes}};
    json breaks = json::array();
    for (const float b : m.breaks) breaks.push_back(number(b));
    j["constants"] = {{"centred", m.kCentred},
                      {"exact_limits", m.kExactLimits},
                      {"masked", m.kMasked},
                      {"y_hi", number(m.kYHi)},
                      {"y_lo", number(m.kYLo)},
                      {"t_min", number(m.kTMin)},
                      {"s_min", number(m.kSMin)},
                      {"y_min", number(m.kYMin)},
                      {"y_max", number(m.kYMax)},
                      {"has_breaks", m.kHasBreaks},
                      {"breaks", std::move(breaks)},
                      {"index_scale", number(m.kIndexScale)},
                      {"index_bias", number(m.kIndexBias)},
                      {"has_left", m.kHasLeft},
                      {"left_y", number(m.kLeftY)},
                      {"left_bits", m.kLeftBits},
                      {"left_row", m.kLeftRow},
                      {"left_knee", m.kLeftKnee},
                      {"left_base", m.kLeftBase},
                      {"has_right", m.kHasRight},
                      {"right_s", number(m.kRightS)},
                      {"right_both", m.kRightBoth},
                      {"two_word", m.kTwoWord}};
    j["certificate"] = {{"A", number(m.kA)},
                        {"K", number(m.kK)},
                        {"B", number(m.kB)},
                        {"AB", number(m.kAB)},
                        {"expected_ratio", number(fit.expected_ratio)},
                        {"expected_regret", number(fit.expected_regret)}};
    j["certificate"].update({{"T", number(m.kT)},
                             {"O", number(m.kO)},
                             {"R", number(m.kR)},
                             {"worst_ulp", number(fit.worst_ulp)},
                             {"ulp", number(m.kUlp)},
                             {"programme_reached", number(fit.programme_reached)},
                             {"programme_dual", number(fit.programme_dual)},
                             {"found", found_to_json(m.found)}});
    j["pieces"] = pieces_to_json(m.pieces);
  } else if (fit.table) {
    const TableModel& t = *fit.table;
    j["kind"] = "table";
    j["format"] = to_string(t.format);
    j["entry_format"] = to_string(t.entry_format);
    j["masked"] = t.kMasked;
    j["cost"] = {{"integer", t.index_operations()}, {"loads", 1}, {"table_bytes", 2 * t.entries.size()}};
    const auto segment = [](const TableModel::Segment& s) {
      return json{{"first", s.first}, {"last", s.last}, {"base", s.base}};
    };
    j["segments"] = {{"upper", segment(t.upper)}, {"lower", segment(t.lower)}, {"left", segment(t.left)}};
    j["certificate"] = {
        {"T", number(t.kT)}, {"O", number(t.kO)}, {"R", number(t.kR)}, {"found", found_to_json(t.found)}};
    j["entries"] = t.entries;
  } else if (fit.rounded) {
    const RoundedForwardModel& m = *fit.rounded;
    j["kind"] = "rounded_forward";
    j["format"] = to_string(m.format);
    j["rows"] = m.kRows;
    j["core_rows"] = m.kCoreRows;
    j["quartic_shift"] = m.kQuarticShift;
    j["constants"] = {{"x_star", number(m.kXStar)},
                      {"x_min", number(m.kXMin)},
                      {"x_max", number(m.kXMax)},
                      {"tie", number(m.kTie)},
                      {"index_scale", number(m.kIndexScale)},
                      {"index_bias", number(m.kIndexBias)}};
    j["certificate"] = {{"A", number(m.kA)}, {"core_A", number(m.kCoreA)}};
    j["pieces"] = pieces_to_json(m.pieces);
  } else if (fit.code) {
    const CodeModel& m = *fit.code;
    j["kind"] = "code";
    j["range"] = {{"lo", number(m.kLo)}, {"hi", number(m.kHi)}};
    json exact = json::array(), dithered = json::array();
    for (const double t : m.kT) exact.push_back(number(t));
    for (const double t : m.kDithered) dithered.push_back(number(t));
    j["certificate"] = {{"G", number(m.kG)},
                        {"T", std::move(exact)},
                        {"dithered", std::move(dithered)},
                        {"bias", number(m.kBias)}};
  } else if (fit.fp8) {
    const Fp8Model& m = *fit.fp8;
    const auto totals = [](const std::array<double, 3>& of) {
      json bounds = json::array();
      for (const double t : of) bounds.push_back(number(t));
      return bounds;
    };
    const auto scales = [&](const Fp8Model::Scales& s) {
      return json{{"least", number(s.least)}, {"most", number(s.most)}, {"T", totals(s.kT)}};
    };
    j["kind"] = "fp8";
    j["code"] = m.code;
    j["fit"] = m.fit;
    j["extrema"] = {{"least_at", number(m.kLeastAt)}, {"greatest_at", number(m.kGreatestAt)}};
    j["certificate"] = {{"G", number(m.kG)},        {"room", number(m.kRoom)}, {"e4m3", scales(m.e4m3)},
                        {"e5m2", scales(m.e5m2)},   {"int8", scales(m.int8)},  {"mxfp4", scales(m.mxfp4)},
                        {"nvfp4", scales(m.nvfp4)}, {"sign", totals(m.kSignT)}};
  } else {
    const ForwardModel& m = *fit.forward;
    j["kind"] = "forward";
    j["constants"] = {{"x_star", number(m.kXStar)},
                      {"x_min", number(m.kXMin)},
                      {"x_max", number(m.kXMax)},
                      {"tail_x", number(m.kTailX)}};
    j["certificate"] = {{"A", number(m.kA)}};
    j["core"] = {{"degree", m.kDegree},
                 {"rows", m.kRows},
                 {"index_scale", number(m.kIndexScale)},
                 {"index_bias", number(m.kIndexBias)},
                 {"pieces", pieces_to_json(m.core)}};
    j["tail"] = {{"degree", m.kTailDegree},
                 {"rows", m.kTailRows},
                 {"index_scale", number(m.kTailIndexScale)},
                 {"index_bias", number(m.kTailIndexBias)},
                 {"pieces", pieces_to_json(m.tail)}};
  }
  return j.dump(1) + "\n";
}

Fit fit_from_json(const std::string& text, const std::string& path) {
  const json document = kernels::parse_json(text, path);
  const Node j(document, path, "");
  if (j["schema"].text() != "outgrad.fit/3") j["schema"].fail("is unknown; known: outgrad.fit/3");
  Fit fit;
  fit.name = j["name"].text();
  fit.activation = j["activation"].word();
  if (const std::string why = refusal_of_name(fit.name, fit.activation == "expression"); !why.empty())
    j["name"].fail(why);
  fit.function = j["function"].line();
  fit.accuracy = j["class"].line();
  fit.spec_sha256 = j["spec_sha256"].text();
  if (!std::regex_match(fit.spec_sha256, std::regex("[0-9a-f]{64}")))
    j["spec_sha256"].fail("must be 64 hexadecimal digits");
  fit.target = j["target"].real();
  const std::string kind = j["kind"].text();
  const Node certificate = j["certificate"];
  if (kind == "table") {
    TableModel t;
    t.format = format_from(j["format"]);
    t.entry_format = format_from(j["entry_format"]);
    if (t.format == Format::f32 || (t.entry_format != Format::f16 && t.entry_format != Format::bf16))
      j["format"].fail("is none of a direct table");
    t.kMasked = j["masked"].boolean();
    for (const Node& e : j["entries"].items())
      t.entries.push_back(static_cast<std::uint16_t>(e.integer(0, 0xffff)));
    const auto segment = [&](const char* name) {
      const Node node = j["segments"][name];
      TableModel::Segment s{node["first"].integer(0, 0x7fff), node["last"].integer(0, 0x7fff),
                            node["base"].integer(0, 0x1ffff)};
      if (s.last < s.first || static_cast<size_t>(s.base + s.last - s.first) >= t.entries.size())
        node.fail("leaves the table");
      return s;
    };
    t.upper = segment("upper");
    t.lower = segment("lower");
    if (t.kMasked) t.left = segment("left");
    t.kT = certificate["T"].real();
    t.kO = certificate["O"].real();
    t.kR = certificate["R"].real();
    t.found = found_from_json(certificate["found"]);
    fit.table = std::move(t);
    return fit;
  }
  if (kind == "code") {
    CodeModel m;
    m.kLo = j["range"]["lo"].single();
    m.kHi = j["range"]["hi"].single();
    m.kG = certificate["G"].real();
    bounds_from(certificate["T"], m.kT);
    bounds_from(certificate["dithered"], m.kDithered);
    m.kBias = certificate["bias"].real();
    fit.code = std::move(m);
    return fit;
  }
  if (kind == "fp8") {
    Fp8Model m;
    m.code = j["code"].word();
    m.fit = j["fit"].word();
    m.kLeastAt = j["extrema"]["least_at"].single();
    m.kGreatestAt = j["extrema"]["greatest_at"].single();
    m.kG = certificate["G"].real();
    m.kRoom = certificate["room"].real();
    const auto scales = [](const Node& from, Fp8Model::Scales& to) {
      to.least = from["least"].single();
      to.most = from["most"].single();
      bounds_from(from["T"], to.kT);
    };
    scales(certificate["e4m3"], m.e4m3);
    scales(certificate["e5m2"], m.e5m2);
    scales(certificate["int8"], m.int8);
    scales(certificate["mxfp4"], m.mxfp4);
    scales(certificate["nvfp4"], m.nvfp4);
    bounds_from(certificate["sign"], m.kSignT);
    fit.fp8 = std::move(m);
    return fit;
  }
  const Node constants = j["constants"];
  if (kind == "backward") {
    BackwardModel m;
    m.format = format_from(j["format"]);
    m.kDegree = j["degree"].integer(1, 16);
    m.kRows = j["rows"].integer(1, kMostRowsRead);
    m.kScheme = scheme_from(j["scheme"]);
    m.kCentred = constants["centred"].boolean();
    m.kExactLimits = constants["exact_limits"].boolean();
    m.kMasked = constants["masked"].boolean();
    m.kYHi = constants["y_hi"].single();
    m.kYLo = constants["y_lo"].single();
    m.kTMin = constants["t_min"].single();
    m.kSMin = constants["s_min"].single();
    m.kYMin = constants["y_min"].single();
    m.kYMax = constants["y_max"].single();
    m.kHasBreaks = constants["has_breaks"].boolean();
    for (const Node& b : constants["breaks"].items()) m.breaks.push_back(b.single());
    if (static_cast<int>(m.breaks.size()) != (m.kHasBreaks ? m.kRows - 1 : 0))
      constants["breaks"].fail("must hold one break point less than there are rows");
    m.kIndexScale = constants["index_scale"].single();
    m.kIndexBias = constants["index_bias"].single();
    m.kHasLeft = constants["has_left"].boolean();
    m.kLeftY = constants["left_y"].single();
    m.kLeftBits = constants["left_bits"].integer(1, 4);
    m.kLeftRow = constants["left_row"].integer(0, kMostRowsRead);
    m.kLeftKnee = constants["left_knee"].integer(0, 256 << m.kLeftBits);
    m.kLeftBase = constants["left_base"].integer(0, 256 << m.kLeftBits);
    m.kHasRight = constants["has_right"].boolean();
    m.kRightS = constants["right_s"].single();
    m.kRightBoth = constants["right_both"].boolean();
    m.kTwoWord = constants["two_word"].boolean();
    m.kA = certificate["A"].real();
    m.kK = certificate["K"].real();
    m.kB = certificate["B"].real();
    m.kAB = certificate["AB"].real();
    m.kT = certificate["T"].real();
    m.kO = certificate["O"].real();
    m.kR = certificate["R"].real();
    m.found = found_from_json(certificate["found"]);
    fit.worst_ulp = certificate["worst_ulp"].real();
    m.kUlp = certificate["ulp"].real();
    fit.programme_reached = certificate["programme_reached"].real();
    fit.programme_dual = certificate["programme_dual"].real();
    fit.expected_ratio = certificate["expected_ratio"].real();
    fit.expected_regret = certificate["expected_regret"].real();
    m.pieces = pieces_from_json(j["pieces"], Target::gradient, m.kDegree, m.kRows, m.kTwoWord);
    // The last cell is left out where nothing asks for it: its row stays in the table, which has a power of
    // two of them.
    const int listed = static_cast<int>(m.pieces.size());
    if (listed < m.kRows - (m.kHasBreaks ? 0 : 1) ||
        static_cast<int>(deployed_place(m, m.kYMax, true).row) >= listed) {
      j["pieces"].fail(fmt::format("must hold {} rows", m.kRows));
    }
    fit.backward = std::move(m);
  } else if (kind == "forward") {
    ForwardModel m;
    m.kXStar = constants["x_star"].single();
    m.kXMin = constants["x_min"].single();
    m.kXMax = constants["x_max"].single();
    m.kTailX = constants["tail_x"].single();
    m.kA = certificate["A"].real();
    const auto part = [&](const char* name, int& degree, int& rows, float& scale, float& bias,
                          std::vector<Piece>& pieces) {
      const Node node = j[name];
      degree = node["degree"].integer(1, 16);
      rows = node["rows"].integer(1, kMostRowsRead);
      scale = node["index_scale"].single();
      bias = node["index_bias"].single();
      pieces = pieces_from_json(node["pieces"], Target::value_relative, degree, rows);
    };
    part("core", m.kDegree, m.kRows, m.kIndexScale, m.kIndexBias, m.core);
    part("tail", m.kTailDegree, m.kTailRows, m.kTailIndexScale, m.kTailIndexBias, m.tail);
    fit.forward = std::move(m);
  } else if (kind == "rounded_forward") {
    RoundedForwardModel m;
    m.format = format_from(j["format"]);
    m.kRows = j["rows"].integer(1, kMostRowsRead);
    m.kCoreRows = j["core_rows"].integer(1, m.kRows);
    m.kQuarticShift = j["quartic_shift"].integer(16, 20);
    m.kXStar = constants["x_star"].single();
    m.kXMin = constants["x_min"].single();
    m.kXMax = constants["x_max"].single();
    m.kTie = constants["tie"].single();
    m.kIndexScale = constants["index_scale"].single();
    m.kIndexBias = constants["index_bias"].single();
    m.kA = certificate["A"].real();
    m.kCoreA = certificate["core_A"].real();
    m.pieces = pieces_from_json(j["pieces"], Target::ratio_relative, RoundedForwardModel::kDegree, m.kRows);
    m.kCoreFirst = static_cast<int>(m.pieces.size()) - m.kCoreRows;
    if (m.kCoreFirst < 0) j["pieces"].fail(fmt::format("must hold the {} rows of the core", m.kCoreRows));
    for (const Piece& p : m.pieces) {
      if (kernels::bits_of(p.c[3]) << m.kQuarticShift != kernels::bits_of(p.c[4]))
        j["pieces"].fail(fmt::format("row {}: c4 is not what c3 ends in", p.row));
    }
    fit.rounded = std::move(m);
  } else {
    j["kind"].fail("must be backward, table, forward, rounded_forward, code or fp8");
  }
  return fit;
}

}  // namespace outgrad::approx
