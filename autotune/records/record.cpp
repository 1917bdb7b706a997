// Each key of the schema once: what is read, written and checked follows from the type of its member.
#include "autotune/records/record.h"

#include <algorithm>
#include <cmath>
#include <concepts>
#include <limits>
#include <type_traits>

#include "kernels/support/json_node.h"

namespace outgrad::autotune {
namespace {

using kernels::JsonNode;
using nlohmann::json;

template <class T, class Of>
concept Is = std::same_as<std::remove_const_t<T>, Of>;
template <class T>
concept IsObject = requires(T t) { t.others; };

// ---- the keys

void each_member(Is<DeviceRecord> auto& d, const auto& visit) {
  visit("kind", d.kind), visit("model", d.model), visit("isa", d.isa), visit("threads", d.threads),
      visit("sockets", d.sockets);
  visit("vector_bits", d.vector_bits), visit("l1d_bytes", d.l1d_bytes), visit("l2_bytes", d.l2_bytes),
      visit("l3_bytes", d.l3_bytes);
  visit("name", d.name), visit("architecture", d.architecture), visit("board", d.board), visit("sms", d.sms),
      visit("driver", d.driver);
  visit("threads_per_sm", d.threads_per_sm), visit("blocks_per_sm", d.blocks_per_sm),
      visit("shared_per_sm", d.shared_per_sm);
  visit("shared_per_block", d.shared_per_block), visit("clock_ghz", d.clock_ghz),
      visit("memory_clock_ghz", d.memory_clock_ghz);
  visit("dram_gb_per_s", d.dram_gb_per_s), visit("memory_bytes", d.memory_bytes);
}

void each_member(Is<RunIdentity> auto& r, const auto& visit) {
  visit("device", r.device), visit("kernels_sha256", r.hashes.kernels),
      visit("coefficients_sha256", r.hashes.coefficients);
  visit("compiler", r.compiler), visit("flags", r.flags), visit("time", r.time), visit("seed", r.seed),
      visit("toolkit", r.toolkit);
}

void each_member(Is<FitRecord> auto& f, const auto& visit) {
  visit("name", f.name), visit("class", f.accuracy), visit("a_plus_b", f.a_plus_b), visit("t", f.t),
      visit("r", f.r);
  visit("as_accurate", f.as_accurate), visit("sha256", f.sha256);
}

void each_member(Is<Record::Rejection> auto& r, const auto& visit) {
  visit("stage", r.stage), visit("reason", r.reason), visit("detail", r.detail);
}

void each_member(Is<Record::Ceiling> auto& c, const auto& visit) {
  visit("name", c.name), visit("bytes", c.bytes);
}

void each_member(Is<Record::Rounds> auto& r, const auto& visit) {
  visit("ns", r.ns), visit("default_ns", r.default_ns), visit("ceiling_ns", r.ceiling_ns);
}

void each_member(Is<SpeedupRecord> auto& s, const auto& visit) {
  visit("median", s.median), visit("low", s.low), visit("high", s.high), visit("confidence", s.confidence);
}

void each_member(Is<Record::Resources> auto& r, const auto& visit) {
  visit("registers", r.registers), visit("shared_bytes", r.shared_bytes);
}

void each_member(Is<Record::Predicted> auto& p, const auto& visit) {
  visit("ns_per_element", p.ns_per_element), visit("memory_ns", p.memory_ns), visit("issue_ns", p.issue_ns),
      visit("shared_ns", p.shared_ns);
  visit("cache_ns", p.cache_ns), visit("others_ns", p.others_ns), visit("launch_ns", p.launch_ns),
      visit("occupancy", p.occupancy), visit("bytes_in_flight_per_sm", p.bytes_in_flight_per_sm);
  visit("share_of_bandwidth", p.share_of_bandwidth), visit("resident_blocks", p.resident_blocks);
}

void each_member(Is<Record> auto& r, const auto& visit) {
  each_member(r.run, visit);
  visit("kernel", r.kernel), visit("format", r.format), visit("variant", r.variant), visit("state", r.state),
      visit("baseline", r.baseline);
  visit("parameters", r.parameters), visit("fit", r.fit), visit("default", r.is_default),
      visit("finalist", r.finalist), visit("winner", r.winner);
  visit("gain", r.gain), visit("rows", r.rows), visit("cols", r.cols), visit("elements", r.elements),
      visit("rejected", r.rejected);
  visit("ceiling", r.ceiling), visit("screening", r.screening), visit("final", r.final),
      visit("speedup", r.speedup), visit("compile_ms", r.compile_ms);
  visit("bytes", r.bytes), visit("bytes_per_element", r.bytes_per_element), visit("gb_per_s", r.gb_per_s),
      visit("share_of_ceiling", r.share_of_ceiling);
  visit("checked", r.checked), visit("discarded_rounds", r.discarded_rounds), visit("rounds", r.rounds),
      visit("resources", r.resources);
  visit("instructions_per_element", r.instructions_per_element), visit("predicted", r.predicted);
}

// ---- reading

bool is_positive(const json& value) {
  return value.is_number() && value.get<double>() > 0 && std::isfinite(value.get<double>());
}

void read(const JsonNode& node, std::string& text) { text = node.text(); }
void read(const JsonNode& node, bool& truth) { truth = node.boolean(); }
void read(const JsonNode& node, double& figure) {
  figure = node.null() ? std::numeric_limits<double>::infinity() : node.number();
  // Times, bytes, rates, shares and errors.
  if (figure < 0) node.fail("is negative");
}
template <std::integral T>
void read(const JsonNode& node, T& count) {
  count = node.count<T>();
}

void read(const JsonNode& node, std::vector<double>& list) {
  const json& value = node.raw();
  if (!value.is_array() || !std::all_of(value.begin(), value.end(), is_positive))
    node.fail("is not a list of positive numbers");
  list = value.get<std::vector<double>>();
}

void read(const JsonNode& node, json& parameters) {
  const json& value = node.raw();
  const auto fits = [](const json& one) { return one.is_number() || one.is_boolean() || one.is_string(); };
  if (!value.is_object() || !std::all_of(value.begin(), value.end(), fits))
    node.fail("is not an object of numbers, truths and texts");
  parameters = value;
}

void check(const JsonNode&, const auto&) {}

void check(const JsonNode& node, const FitRecord& fit) {
  if (fit.name.empty()) node["name"].fail("is empty");
}

void check(const JsonNode& node, const SpeedupRecord& s) {
  const bool is_interval =
      s.low > 0 && s.median > 0 && s.low <= s.high && std::isfinite(s.median) && std::isfinite(s.high);
  if (!is_interval || !(s.confidence.value_or(0.5) > 0 && s.confidence.value_or(0.5) < 1))
    node.fail("is not an interval of positive numbers");
}

template <IsObject T>
void read(const JsonNode& node, T& object);

template <class T>
void read(const JsonNode& node, std::optional<T>& member) {
  read(node, member.emplace());
}

template <IsObject T>
void read(const JsonNode& node, T& object) {
  if (!node.raw().is_object()) node.fail("is not an object");
  json others = node.raw();
  // all three have to be there
  if constexpr (std::same_as<T, SpeedupRecord>) object.median = object.low = object.high = 0;
  each_member(object, [&](const char* key, auto& member) {
    if (others.erase(key) > 0) read(node[key], member);
  });
  check(node, object);
  object.others = others.empty() ? json() : std::move(others);
}

template <class T>
T read_whole(json value) {
  T object;
  read(JsonNode(std::move(value), ""), object);
  return object;
}

// ---- writing

json value_of(const auto& value) { return value; }
json value_of(double figure) { return std::isfinite(figure) ? json(figure) : json(); }
template <IsObject T>
json value_of(const T& object);

void write(json& object, const char* key, const std::string& text) {
  if (!text.empty()) object[key] = text;
}
void write(json& object, const char* key, kernels::i64 count) {
  if (count != 0) object[key] = count;
}
void write(json& object, const char* key, double figure) { object[key] = value_of(figure); }
void write(json& object, const char* key, const json& parameters) {
  if (!parameters.empty()) object[key] = parameters;
}
template <class T>
void write(json& object, const char* key, const std::optional<T>& member) {
  if (member) object[key] = value_of(*member);
}
template <IsObject T>
void write(json& object, const char* key, const T& member) {
  if (json inner = value_of(member); !inner.empty()) object[key] = std::move(inner);
}

void write_members(json& object, const auto& of) {
  each_member(of, [&](const char* key, const auto& member) { write(object, key, member); });
}

template <IsObject T>
json value_of(const T& object) {
  json value = object.others.is_null() ? json::object() : object.others;
  write_members(value, object);
  return value;
}

}  // namespace

kernels::i64 rounds_of(const Record& record) {
  if (record.rounds) return *record.rounds;
  const auto all = static_cast<kernels::i64>(record.final.ns ? record.final.ns->size() : 0);
  return all - std::min(all, record.discarded_rounds.value_or(0));
}

bool is_too_noisy(const Record& record) {
  return record.winner == true && record.is_default == true && are_too_few(rounds_of(record));
}

Record record_from(json line) {
  line.erase("schema");
  return read_whole<Record>(std::move(line));
}

DeviceRecord device_record_from(json object) { return read_whole<DeviceRecord>(std::move(object)); }

json to_json(const Record& record) {
  json line = value_of(record);
  line["schema"] = kSchema;
  return line;
}

json to_json(const DeviceRecord& device) { return value_of(device); }
json to_json(const FitRecord& fit) { return value_of(fit); }
json to_json(const SpeedupRecord& speedup) { return value_of(speedup); }

json to_json(const RunIdentity& run) {
  json object = json::object();
  write_members(object, run);
  return object;
}

json run_line(const RunIdentity& run, const std::string& name) {
  json line = to_json(run);
  line.update({{"schema", kSchema}, {"run", name}});
  return line;
}

json line_of_run(Record record, const std::string& name) {
  record.run = {};
  json line = to_json(record);
  line["of_run"] = name;
  return line;
}

std::string line_of(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }
std::string line_of(const Record& record) { return line_of(to_json(record)); }

}  // namespace outgrad::autotune
