// JSON of sweeps, see sweep_json.h.

#include "validation/sweep/sweep_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

#include "kernels/host/errors.h"
#include "kernels/support/digest.h"
#include "kernels/support/json_node.h"

namespace outgrad::validation {
namespace {

using Json = nlohmann::ordered_json;
using kernels::SpecError;

constexpr const char* kPartSchema = "outgrad.sweep-part/7";
constexpr const char* kReportSchema = "outgrad.sweep/1";
constexpr std::array<const char*, 2> kBranchNames{"left", "right"};
constexpr std::array<const char*, 3> kOutputNames{"y", "mask", "dx"};

// JSON has no infinities and no NaN, so these are written as strings.
Json number(double v) {
  if (std::isfinite(v)) return v;
  return std::isnan(v) ? "nan" : v > 0 ? "inf" : "-inf";
}

double number_from(const nlohmann::json& json) {
  if (!json.is_string()) return json.get<double>();
  const auto text = json.get<std::string>();
  return text == "nan" ? std::numeric_limits<double>::quiet_NaN() : text == "inf" ? INFINITY : -INFINITY;
}

Json bits(float v) { return std::bit_cast<std::uint32_t>(v); }
float float_from(const nlohmann::json& json) { return std::bit_cast<float>(json.get<std::uint32_t>()); }

Json pack(const Maximum& m) {
  return Json::array({number(m.value), bits(m.x), bits(m.y), number(m.got), number(m.want)});
}

Maximum maximum_from(const nlohmann::json& json) {
  return {number_from(json.at(0)), float_from(json.at(1)), float_from(json.at(2)), number_from(json.at(3)),
          number_from(json.at(4))};
}

Json pack(const Run& r) {
  if (!r.used) return nullptr;
  return Json::array(
      {r.right, bits(r.y), bits(r.x_first), bits(r.x_last), bits(r.g), number(r.lo), number(r.hi)});
}

Run run_from(const nlohmann::json& json) {
  if (json.is_null()) return {};
  return {true,
          json.at(0).get<bool>(),
          float_from(json.at(1)),
          float_from(json.at(2)),
          float_from(json.at(3)),
          float_from(json.at(4)),
          number_from(json.at(5)),
          number_from(json.at(6))};
}

template <std::size_t N>
Json pack(const std::array<Maximum, N>& maxima) {
  Json json = Json::array();
  for (const Maximum& m : maxima) json.push_back(pack(m));
  return json;
}

template <std::size_t N>
void unpack(const nlohmann::json& json, std::array<Maximum, N>& maxima) {
  for (std::size_t i = 0; i < N; ++i) maxima[i] = maximum_from(json.at(i));
}

const FloatFormat& format_in(const kernels::JsonNode& node) {
  return *node.word<const FloatFormat*>({{"f32", &kF32}, {"f16", &kF16}, {"bf16", &kBf16}});
}

/// A maximum for readers: its value and where it occurs.
Json describe(const Maximum& m) {
  return {{"value", number(m.value)},
          {"x", fmt::format("{:a}", m.x)},
          {"y", fmt::format("{:a}", m.y)},
          {"got", number(m.got)},
          {"want", number(m.want)}};
}

/// With an upper bound of the true maximum.
Json describe(const Maximum& m, double margin) {
  if (m.value < 0) return nullptr;
  Json json = describe(m);
  json["bound"] = number(std::nextafter(m.value + margin, INFINITY));
  return json;
}

Json describe(const PerBranch& maxima, double margin = kSweepMargin) {
  Json json;
  json["max"] = number(std::max(maxima[0].value, maxima[1].value));
  json["bound"] = number(std::nextafter(std::max(maxima[0].value, maxima[1].value) + margin, INFINITY));
  for (std::size_t branch = 0; branch < 2; ++branch)
    json[kBranchNames[branch]] = describe(maxima[branch], margin);
  return json;
}

}  // namespace

Json segment_to_json(const Segment& segment) {
  Json json;
  for_each_count([&](const char* name, std::int64_t count) { json[name] = count; }, segment);
  for_each_maxima([&](const char* name, const auto& maxima) { json[name] = pack(maxima); }, segment);
  Json& examples = json["examples"] = Json::array();
  for (const Mismatch& m : segment.examples) examples.push_back({bits(m.x), bits(m.got), bits(m.want)});
  Json& curve = json["curve"] = Json::array();
  for (const auto& [bin, e] : segment.curve) {
    curve.push_back(
        {bin, number(e.least), number(e.greatest), number(e.floor), e.squares.to_json(), e.weight.to_json()});
  }
  Json& under = json["under"] = Json::array();
  for (const WeightedError& w : segment.under)
    under.push_back({w.mass.to_json(), w.error.to_json(), w.square.to_json()});
  Json& cells = json["cells"] = Json::array();
  for (const auto& [code, cell] : segment.cells) cells.push_back(pack(cell));
  Json& worst = json["worst"] = Json::array();
  for (const Run& run : segment.worst) worst.push_back(pack(run));
  Json& digests = json["digests"] = Json::array();
  for (const std::string& bytes : segment.digests) digests.push_back(kernels::hex(bytes));
  json["first"] = pack(segment.first);
  json["last"] = pack(segment.last);
  return json;
}

Segment segment_from_json(const nlohmann::json& json) {
  Segment segment;
  for_each_count([&](const char* name, std::int64_t& count) { json.at(name).get_to(count); }, segment);
  for_each_maxima([&](const char* name, auto& maxima) { unpack(json.at(name), maxima); }, segment);
  for (const auto& m : json.at("examples"))
    segment.examples.push_back({float_from(m.at(0)), float_from(m.at(1)), float_from(m.at(2))});
  for (const auto& e : json.at("curve")) {
    segment.curve[e.at(0).get<int>()] = {number_from(e.at(1)), number_from(e.at(2)), number_from(e.at(3)),
                                         ExactSum::from_json(e.at(4)), ExactSum::from_json(e.at(5))};
  }
  for (const auto& w : json.at("under")) {
    segment.under.push_back(
        {ExactSum::from_json(w.at(0)), ExactSum::from_json(w.at(1)), ExactSum::from_json(w.at(2))});
  }
  for (const auto& each : json.at("cells")) {
    const Run cell = run_from(each);
    segment.cells[cell.y] = cell;
  }
  for (const auto& run : json.at("worst")) segment.worst.push_back(run_from(run));
  for (std::size_t k = 0; k < segment.digests.size(); ++k)
    segment.digests[k] = kernels::bytes_of_hex(json.at("digests").at(k).get<std::string>());
  segment.first = run_from(json.at("first"));
  segment.last = run_from(json.at("last"));
  return segment;
}

namespace {

Json claims_json(const Subject& subject) {
  Json claims = Json::array();
  for (const Claim& claim : subject.claims) claims.push_back({claim.what, claim.limit});
  return claims;
}

std::vector<Claim> claims_from(const nlohmann::json& json) {
  std::vector<Claim> claims;
  for (const auto& claim : json)
    claims.push_back({claim.at(0).get<std::string>(), claim.at(1).get<double>()});
  return claims;
}

}  // namespace

Json to_json(const Subject& subject, const std::vector<DomainPart>& parts) {
  Json json{{"schema", kPartSchema},
            {"subject", subject.name},
            {"format", subject.format.name},
            {"identity", subject.identity}};
  json["activation"] = subject.activation->name;
  json["code"] = subject.code;
  json["own_forward"] = subject.own_forward;
  json["x"] = to_string(subject.swept);
  json["deployed"] = subject.deployed;
  json["scattered"] = subject.scattered;
  json["claims"] = claims_json(subject);
  Json& stores = json["stores"] = Json::array();
  for (const Subject& store : subject.stores)
    stores.push_back({{"name", store.name}, {"claims", claims_json(store)}});
  Json& under = json["distributions"] = Json::array();
  for (const Distribution& distribution : subject.distributions) under.push_back(distribution.to_json());
  json["origin"] = subject.origin.dump();  // as text, which keeps the order of its keys
  Json& list = json["parts"] = Json::array();
  for (const DomainPart& part : parts) {
    list.push_back({{"x_format", part.domain.x_format.name},
                    {"store", part.domain.store},
                    {"begin", part.begin},
                    {"end", part.end},
                    {"segment", segment_to_json(part.segment)}});
  }
  json["sha256"] = part_digest(kernels::parse_json(json.dump()));
  return json;
}

std::string part_digest(nlohmann::json part) {
  part.erase("sha256");
  return kernels::sha256(part.dump());
}

const char* to_string(SweptX swept) {
  return swept == SweptX::own ? "own" : swept == SweptX::f32 ? "f32" : "all";
}

SweptX swept_named(const std::string& name, const std::string& file, const char* place) {
  for (const SweptX swept : {SweptX::own, SweptX::f32, SweptX::all}) {
    if (name == to_string(swept)) return swept;
  }
  throw SpecError(file, place, "'" + name + "' is not one of own, f32, all");
}

SweepParts parts_from_json(const std::string& text, const std::string& file) {
  const kernels::JsonNode json(kernels::parse_json(text, file), file);
  json.expect_schema(kPartSchema);
  if (json["sha256"].text() != part_digest(json.raw()))
    json["sha256"].fail("is not that of the rest: the shard was changed");
  try {
    Subject subject{json["subject"].text(), format_in(json["format"]), json["identity"].text()};
    subject.activation = swept_activation(json["activation"].text());
    if (!subject.activation) json["activation"].fail("is not one that is swept");
    subject.code = json["code"].boolean();
    subject.own_forward = json["own_forward"].boolean();
    subject.swept = swept_named(json["x"].text(), file, "x");
    subject.deployed = json["deployed"].boolean();
    subject.scattered = json["scattered"].boolean();
    subject.claims = claims_from(json["claims"].raw());
    subject.distributions.clear();
    for (const kernels::JsonNode& distribution : json["distributions"].items())
      subject.distributions.push_back(Distribution::from_json(distribution.raw(), file));
    subject.origin = kernels::parse_json<Json>(json["origin"].text());
    std::vector<Subject> stores;
    for (const kernels::JsonNode& each : json["stores"].items()) {
      Subject& store = stores.emplace_back(subject);  // all but what is its own
      store.name = each["name"].text();
      store.claims = claims_from(each["claims"].raw());
    }
    subject.stores = std::move(stores);
    SweepParts read{std::move(subject), {}};
    for (const kernels::JsonNode& part : json["parts"].items()) {
      read.parts.push_back({{format_in(part["x_format"]), part["store"].count<std::size_t>()},
                            part["begin"].count(),
                            part["end"].count(),
                            segment_from_json(part["segment"].raw())});
    }
    return read;
  } catch (const nlohmann::json::exception& error) {
    throw SpecError(file, "JSON", error.what());
  } catch (const std::invalid_argument& error) {
    throw SpecError(file, "digests", error.what());
  }
}

namespace {

// The report draws large curves of GELU's deployed kernels. For other kernels, an eighth of the bins shows
// everything.
constexpr int kBinsJoined = 8;

Json forward_json(const Segment& all) {
  Json forward{{"misrounded", all.misrounded}};
  Json& ulp = forward["max_ulp"];
  for (std::size_t i = 0; i < all.forward_ulp.size(); ++i) {
    const bool subnormal = i == static_cast<std::size_t>(ForwardRegion::subnormal);
    ulp[kForwardRegionNames[i]] =
        describe(all.forward_ulp[i], subnormal ? kSubnormalMarginUlp : kForwardMarginUlp);
  }
  Json& examples = forward["examples"] = Json::array();
  for (const Mismatch& m : all.examples) {
    examples.push_back({{"x", fmt::format("{:a}", m.x)},
                        {"got", fmt::format("{:a}", m.got)},
                        {"want", fmt::format("{:a}", m.want)}});
  }
  return forward;
}

Json gradient_json(const Segment& all, const FloatFormat& format) {
  Json json;
  for (std::size_t i = 0; i < all.gradient_ulp.size(); ++i) {
    if (all.gradient_ulp[i].value < 0) continue;
    const Maximum &at_one = all.gradient_ulp[i], &found = all.gradient_found[i];
    Json& any = json[kGradientRegionNames[i]] = {
        {"dy_1", describe(at_one)},
        {"any_dy_bound", number(gradient_ulp_for_any_dy(all.gradient_relative[i].value, format))}};
    any["any_dy_found"] = nullptr;
    if (found.value >= 0)
      any["any_dy_found"] = {{"value", number(found.value)},
                             {"x", fmt::format("{:a}", found.x)},
                             {"dy", fmt::format("{:a}", found.got)}};
  }
  return json;
}

Json digests_json(const Segment& all) {
  if (all.digests[0].empty()) return nullptr;
  Json json{{"chunks", all.digests[0].size() / kernels::Sha256::kDigestBytes}};
  for (std::size_t k = 0; k < all.digests.size(); ++k)
    json[kOutputNames[k]] = kernels::sha256(all.digests[k]);
  return json;
}

/// The greatest |error| of the bins that overlap [low, high].
double greatest_error(const std::map<int, CurveBin>& bins, double low, double high) {
  double greatest = 0;
  for (const auto& [bin, e] : bins) {
    const double width = 2 * kCurveReach / kCurveBins, from = -kCurveReach + bin * width;
    if (from + width > low && from < high)
      greatest = std::max({greatest, std::fabs(e.least), std::fabs(e.greatest)});
  }
  return greatest;
}

/// Joins `joined` neighbouring bins into one.
Json curve_json(const std::map<int, CurveBin>& bins, int joined) {
  std::map<int, CurveBin> wide;
  for (const auto& [bin, e] : bins) {
    CurveBin& mine = wide[bin / joined];
    mine.least = std::min(mine.least, e.least);
    mine.greatest = std::max(mine.greatest, e.greatest);
    mine.floor = std::max(mine.floor, e.floor);
  }
  const double width = joined * (2 * kCurveReach / kCurveBins);
  Json curve{{"columns", {"x_from", "least", "greatest", "floor"}}, {"bin_width", width}};
  Json& rows = curve["rows"] = Json::array();
  for (const auto& [bin, e] : wide)
    rows.push_back({-kCurveReach + bin * width, number(e.least), number(e.greatest), number(e.floor)});
  return curve;
}

}  // namespace

Json under_json(const Subject& subject, const DomainResult& result) {
  Json list = Json::array();
  const bool listed = subject.stored().lists_worst();
  for (std::size_t k = 0; k < result.all.under.size(); ++k) {
    const Distribution& distribution = subject.distributions.at(k);
    const WeightedError& sums = result.all.under[k];
    const double mass = sums.mass.value();
    double share = 0;
    for (const Run& run : result.all.worst) {
      share += distribution.mass(rounding_interval(run.x_first, result.domain.x_format)[0],
                                 rounding_interval(run.x_last, result.domain.x_format)[1]);
    }
    const auto [low, high] = distribution.reach();
    list.push_back({{"x", distribution.name()},
                    {"mass", mass},
                    {"rms", number(std::sqrt(sums.square.value() / mass))},
                    {"bias", number(sums.error.value() / mass)},
                    {"max", number(greatest_error(result.all.curve, low, high))},
                    {"max_within", {std::max(low, -kCurveReach), std::min(high, kCurveReach)}},
                    {"worst_codes", listed ? Json(result.all.worst.size()) : Json()},
                    {"share_in_worst_codes", listed ? number(share) : Json()}});
  }
  return list;
}

Json report_json(const Subject& subject, const std::vector<DomainResult>& results) {
  Json json{{"schema", kReportSchema},
            {"activation", subject.activation->name},
            {"format", subject.format.name},
            {"subject", subject.name},
            {"identity", subject.identity}};
  if (!subject.origin.is_null()) json["foreign"] = subject.origin;
  Json& domains = json["domains"] = Json::array();
  for (const DomainResult& result : results) {
    const Segment& all = result.all;
    const Subject& store = subject.of(result.domain);
    Json domain{{"x_format", result.domain.x_format.name}};
    if (!subject.stores.empty()) {
      domain["store"] = store.name;
      for (const Claim& claim : store.claims) domain["proven"][claim.what] = claim.limit;
    }
    Json& counts = domain["counts"];
    for_each_count([&](const char* name, std::int64_t count) { counts[name] = count; }, all);
    domain["T"] = describe(all.total);
    domain["T_dx"] = describe(all.stored);
    const bool ranged = result.max(all.oracle) >= 0;  // not of a dithered code
    domain["O"] = ranged ? describe(all.oracle) : Json();
    domain["R"] = ranged ? describe(all.regret) : Json();
    domain["C"] = subject.code ? Json() : describe(all.storage);
    if (result.max(all.deviation) >= 0) domain["D"] = describe(all.deviation);
    if (result.max(all.bias) >= 0) domain["bias"] = describe(all.bias, kDitherMargin + kSweepMargin);
    domain["T_over_O"] = ranged ? Json(result.ratio()) : Json();
    domain["rms_T"] = result.rms;
    domain["under"] = under_json(subject, result);
    domain["dx_ulp"] = subject.code ? Json() : gradient_json(all, subject.format);
    domain["sha256"] = digests_json(all);
    Json& forward = domain["forward"];
    if (subject.own_forward) forward = forward_json(all);
    Json& foreign = domain["foreign"] = Json::array();
    const bool swept = !subject.code && subject.activation == &kGelu;
    for (std::size_t k = 0; swept && k < kForeignForwards.size(); ++k) {
      foreign.push_back({{"forward", kForeignForwards[k].name},
                         {"x", {kForeignLeft, kForeignRight}},
                         {"T", describe(all.foreign[k])}});
    }
    if (swept)
      foreign.push_back({{"forward", "0.5 x (1 + erff(x / sqrt 2))"},
                         {"abs_x", {kErffLeast, kErffGreatest}},
                         {"T", describe(all.erff)}});
    if (result.max(all.from_x) >= 0) {
      domain["from_x"] = {{"formula", "PyTorch's in fp32, by erff and expf"},
                          {"abs_x", {kErffLeast, kErffGreatest}},
                          {"T", describe(all.from_x)}};
    }
    // Nobody draws the curves of stores, of which a header has up to ten.
    if (subject.stores.empty())
      domain["curve"] =
          curve_json(all.curve, subject.deployed && subject.activation == &kGelu ? 1 : kBinsJoined);
    domains.push_back(std::move(domain));
  }
  return json;
}

}  // namespace outgrad::validation
