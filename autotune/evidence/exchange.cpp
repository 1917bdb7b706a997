// Readers that trust nothing, writers of what the readers read.
#include "autotune/evidence/exchange.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>

#include "autotune/evidence/identity.h"
#include "autotune/records/database.h"
#include "autotune/space/problem.h"
#include "kernels/support/files.h"
#include "kernels/support/json_node.h"
#include "kernels/support/statistics.h"

namespace outgrad::autotune {
namespace {

using kernels::i64;
using kernels::JsonNode;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kT4Version = "1.0.0";

// Kernel Tuner's word for a failure, and T4's. T4 knows more than Kernel Tuner: those without a word of their
// own fail at run time.
struct FailureName {
  const char *kernel_tuner, *t4;
};
constexpr FailureName kFailures[] = {
    {"CompilationFailedConfig", "compile"}, {"RuntimeFailedConfig", "runtime"},
    {"InvalidConfig", "constraints"},       {"ErrorConfig", "runtime"},
    {"RuntimeFailedConfig", "timeout"},     {"RuntimeFailedConfig", "correctness"},
};

// Python's json module, with which Kernel Tuner writes, spells three values that JSON has no number for. Here
// they become texts: no number, as they are.
std::string with_quoted_words(std::string text) {
  if (text.find("NaN") == text.npos && text.find("Infinity") == text.npos) return text;
  std::string quoted;
  bool in_text = false;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t length = 1;
    bool word = false;
    if (in_text && text[i] == '\\') {
      length = std::min<std::size_t>(2, text.size() - i);
    } else if (text[i] == '"') {
      in_text = !in_text;
    } else if (!in_text) {
      for (const std::string_view spelt : {"NaN", "Infinity", "-Infinity"})
        if (std::string_view(text).substr(i).starts_with(spelt)) word = true, length = spelt.size();
    }
    quoted += (word ? "\"" : "") + text.substr(i, length) + (word ? "\"" : "");
    i += length;
  }
  return quoted;
}

bool is_no_number(std::string_view text) {
  return text == "NaN" || text == "Infinity" || text == "-Infinity";
}

// A Kernel Tuner cache that was not closed: its two last braces are missing, and a comma may follow the last
// entry, or not. Closed as Kernel Tuner closes it; any other text as it is.
std::string closed_cache(std::string text) {
  if (text.find("\"tune_params_keys\"") == text.npos) return text;
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) text.pop_back();
  if (!text.empty() && text.back() == ',')
    text.pop_back();
  else if (!kernels::parse_json_line(text).is_discarded())
    return text;
  std::string closed = text + "}\n}";
  // else the place of its damage is the file's own
  return kernels::parse_json_line(closed).is_discarded() ? text : closed;
}

// What stands under a key, as far as it is of the type; other writers leave it out, or write something else.
std::string text_at(const JsonNode& object, const char* key) {
  return object.has(key) && object[key].raw().is_string() ? object[key].text() : std::string();
}
double number_at(const JsonNode& object, const char* key) {
  return object.has(key) && object[key].raw().is_number() ? object[key].number() : 0;
}
std::vector<double> numbers_at(const JsonNode& object, const char* key) {
  std::vector<double> numbers;
  if (!object.has(key) || !object[key].raw().is_array()) return numbers;
  for (const json& value : object[key].raw())
    if (value.is_number()) numbers.push_back(value.get<double>());
  return numbers;
}
json value_at(const JsonNode& object, const char* key) {
  return object.has(key) ? object[key].raw() : json();
}

// One recorded value in a key of a Kernel Tuner cache: what Python's str() makes of it.
std::string python_text(const json& value) {
  if (value.is_null()) return "None";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (!value.is_array()) return value.dump();
  std::string list;
  for (const json& item : value) {
    const std::string text = python_text(item), quote = !item.is_string()              ? ""
                                                        : text.find('\'') == text.npos ? "'"
                                                                                       : "\"";
    list += (list.empty() ? "" : ", ") + quote + text + quote;
  }
  return "[" + list + "]";
}

// A parameter's value as Kernel Tuner knows them: a number, a text, True, False, None, or a list of such.
bool is_value(const json& value) {
  if (value.is_array()) return std::all_of(value.begin(), value.end(), is_value);
  return value.is_null() || value.is_number() || value.is_string() || value.is_boolean();
}

// Collects entries into a recording, checking each.
class Collector {
 public:
  Collector(std::string path, std::vector<std::string> names, std::vector<std::vector<json>> labels)
      : path_(std::move(path)) {
    recording_.labels = std::move(labels);
    std::vector<Parameter> parameters;
    for (std::size_t p = 0; p < names.size(); ++p) {
      const auto& list = recording_.labels[p];
      const bool integers = std::all_of(
          list.begin(), list.end(), [](const json& v) { return v.is_number_integer() || v.is_boolean(); });
      Parameter parameter{names[p], {}, std::any_of(list.begin(), list.end(), [](const json& v) {
                            return !v.is_number() && !v.is_boolean();
                          })};
      for (std::size_t i = 0; i < list.size(); ++i) {
        if (!is_value(list[i]))
          throw bad("parameter " + names[p],
                    "a value that is neither a number nor a text, None or a list of these");
        for (std::size_t j = 0; j < i; ++j)
          if (list[i] == list[j])
            throw bad("parameter " + names[p], "the value " + list[i].dump() + " occurs twice");
        parameter.values.push_back(!integers              ? static_cast<std::int64_t>(i)
                                   : list[i].is_boolean() ? list[i].get<bool>()
                                                          : list[i].get<std::int64_t>());
      }
      // true beside 1
      if (std::set<std::int64_t>(parameter.values.begin(), parameter.values.end()).size() != list.size())
        std::iota(parameter.values.begin(), parameter.values.end(), std::int64_t{0});
      parameters.push_back(std::move(parameter));
    }
    try {
      recording_.points = Points(std::move(parameters), {});
    } catch (const std::length_error& error) {
      throw bad("parameters", error.what());
    }
  }

  Recording& recording() { return recording_; }
  void describe(const JsonNode& metadata) {
    recording_.device = text_at(metadata, "device_name");
    recording_.kernel = text_at(metadata, "kernel_name");
    recording_.problem_size = value_at(metadata, "problem_size");
  }
  kernels::SpecError bad(const std::string& place, const std::string& why) const {
    return {path_, place, why};
  }

  // `values`: an object that holds each parameter's value.
  void add(const std::string& place, const json& values, Evaluation evaluation) {
    std::uint64_t rank = 0;
    for (std::size_t p = 0; p < recording_.labels.size(); ++p) {
      const Parameter& parameter = recording_.points.parameters()[p];
      const auto found = values.find(parameter.name);
      if (found == values.end()) throw bad(place, "has no value of parameter " + parameter.name);
      const auto& list = recording_.labels[p];
      const auto at = std::find(list.begin(), list.end(), *found);
      if (at == list.end())
        throw bad(place, "parameter " + parameter.name + ": " + found->dump() + " is not in its list");
      rank = rank * list.size() + static_cast<std::uint64_t>(at - list.begin());
    }
    if (evaluation.time_ms && !(*evaluation.time_ms > 0 && std::isfinite(*evaluation.time_ms)))
      throw bad(place, "the time " + std::to_string(*evaluation.time_ms) + " is not positive");
    if (!entries_.emplace(rank, std::move(evaluation)).second)
      throw bad(place, "this configuration occurs twice");
  }

  Recording finish() && {
    if (entries_.empty()) throw bad("results", "there are none");
    std::vector<std::uint64_t> ranks;
    for (auto& [rank, evaluation] : entries_) {
      ranks.push_back(rank);
      recording_.evaluations.push_back(std::move(evaluation));
    }
    recording_.points = Points(recording_.points.parameters(), std::move(ranks));
    return std::move(recording_);
  }

 private:
  std::string path_;
  Recording recording_;
  std::map<std::uint64_t, Evaluation> entries_;  // by rank: in the order of the points
};

// The one objective is time: shorter is better, failures apart.
void require_time(const JsonNode& object, const char* key) {
  if (!object.has(key)) return;
  const json& objective = object[key].raw();
  if (objective == "time" || objective == json::array({"time"})) return;
  object[key].fail("the objective " + objective.dump() + " is not \"time\"");
}

// The failure that a file of either format names.
const FailureName* failure_named(const std::string& name, const char* FailureName::* format) {
  const auto* const known = std::find_if(std::begin(kFailures), std::end(kFailures),
                                         [&](const auto& failure) { return name == failure.*format; });
  return known == std::end(kFailures) ? nullptr : known;
}

Evaluation kernel_tuner_evaluation(const JsonNode& entry) {
  Evaluation evaluation;
  const json time = value_at(entry, "time");
  const std::string failure = time.is_string() ? time.get<std::string>() : text_at(entry, "__error__");
  if (is_no_number(failure)) {
    evaluation.failure = "runtime";  // it ran, and its time is none
  } else if (!failure.empty()) {
    const FailureName* const known = failure_named(failure, &FailureName::kernel_tuner);
    if (known == nullptr) entry.fail("unknown failure '" + failure + "'");
    evaluation.failure = known->t4;
  } else if (time.is_number()) {
    evaluation.time_ms = time.get<double>();
  } else {
    entry.fail("neither a time nor a failure");
  }
  evaluation.times_ms = numbers_at(entry, "times");
  evaluation.compile_ms = number_at(entry, "compile_time");
  evaluation.verify_ms = number_at(entry, "verification_time");
  evaluation.benchmark_ms = number_at(entry, "benchmark_time");
  evaluation.search_ms = number_at(entry, "strategy_time");
  evaluation.framework_ms = number_at(entry, "framework_time");
  evaluation.timestamp = text_at(entry, "timestamp");
  return evaluation;
}

Recording read_kernel_tuner(const std::string& path, const JsonNode& root) {
  const JsonNode keys = root["tune_params_keys"], lists = root["tune_params"], cache = root["cache"];
  std::vector<std::string> names;
  std::vector<std::vector<json>> labels;
  for (const JsonNode& key : keys.items()) {
    names.push_back(key.text());
    if (std::count(names.begin(), names.end(), names.back()) > 1)
      key.fail("'" + names.back() + "' occurs twice");
    const json list = value_at(lists, names.back().c_str());
    if (!list.is_array() || list.empty()) lists.fail("'" + names.back() + "' has no list of values");
    labels.emplace_back(list.begin(), list.end());
  }
  if (names.empty()) keys.fail("is empty");
  require_time(root, "objective");
  Collector collector(path, names, labels);
  collector.describe(root);
  for (const std::string& key : cache.keys()) {
    const JsonNode entry = cache[key];
    if (!entry.raw().is_object()) entry.fail("is not an object");
    collector.add(entry.place(), entry.raw(), kernel_tuner_evaluation(entry));
  }
  return std::move(collector).finish();
}

// Milliseconds in the unit of time that stands under the key, as writers of T4 spell it (Kernel Tuner
// wrongly, once): T4's schema has any text there. `otherwise`: where there is none.
double unit_at(const JsonNode& object, const char* key, double otherwise) {
  static const std::vector<std::pair<double, std::set<std::string>>> known = {
      {1e-6, {"ns", "nsec", "nanosecond", "nanoseconds"}},
      // the micro sign, and the Greek letter
      {1e-3, {"us", "\u00b5s", "\u03bcs", "usec", "microsecond", "microseconds"}},
      {1, {"ms", "msec", "millisecond", "milliseconds", "miliseconds"}},
      {1e3, {"s", "sec", "second", "seconds"}}};
  const json unit = value_at(object, key);
  if (unit.is_null() || unit == "") return otherwise;
  const std::string text = unit.is_string() ? unit.get<std::string>() : unit.dump();
  for (const auto& [milliseconds, spellings] : known)
    if (spellings.contains(text)) return milliseconds;
  constexpr std::size_t kShown = 40;
  object[key].fail("unknown unit of time '" + text.substr(0, kShown) + "'; known: ns, us, ms, s");
}

// `named`: the unit of all times of the file; 0 where it names none, so that a result's `time` has its own,
// which is that of its samples too.
Evaluation t4_evaluation(const JsonNode& result, double named) {
  const double unit = named > 0 ? named : 1;
  Evaluation evaluation;
  const std::string invalidity = text_at(result, "invalidity");
  if (invalidity != "correct") {
    if (failure_named(invalidity, &FailureName::t4) == nullptr)
      result.fail("unknown invalidity '" + invalidity + "'");
    evaluation.failure = invalidity;
  }
  double sample_unit = unit;
  if (value_at(result, "measurements").is_array())
    for (const JsonNode& measurement : result["measurements"].items()) {
      if (text_at(measurement, "name") != "time") continue;
      const double own = unit_at(measurement, "unit", unit);
      if (named == 0) sample_unit = own;
      if (evaluation.failure.empty() && value_at(measurement, "value").is_number())
        evaluation.time_ms = own * measurement["value"].number();
    }
  if (value_at(result, "times").is_object()) {
    const JsonNode times = result["times"];
    evaluation.times_ms = numbers_at(times, "runtimes");
    for (double& sample : evaluation.times_ms) sample *= sample_unit;
    // The schema's key, and the one that Kernel Tuner writes.
    const char* const compilation = times.has("compilation_time") ? "compilation_time" : "compilation";
    evaluation.compile_ms = unit * number_at(times, compilation);
    evaluation.verify_ms = unit * number_at(times, "validation");
    evaluation.benchmark_ms = unit * number_at(times, "benchmark");
    evaluation.search_ms = unit * number_at(times, "search_algorithm");
    evaluation.framework_ms = unit * number_at(times, "framework");
  }
  evaluation.timestamp = text_at(result, "timestamp");
  if (evaluation.failure.empty() && !evaluation.time_ms) {
    if (evaluation.times_ms.empty()) result.fail("correct, but without a time");
    evaluation.time_ms = kernels::median(evaluation.times_ms);
  }
  return evaluation;
}

// `ordered`: the same, for parameters in the order of the first configuration. Values stand in ascending
// order, texts in the order in which they occur.
Recording read_t4(const std::string& path, const JsonNode& root, const ordered_json& ordered) {
  const std::vector<JsonNode> results = root["results"].items();
  if (results.empty()) root["results"].fail("is empty");
  if (const std::string version = text_at(root, "schema_version"); version != kT4Version)
    root["schema_version"].fail("'" + version + "' is not " + kT4Version);
  std::vector<std::string> names;
  std::vector<std::vector<json>> labels;
  for (const JsonNode& result : results) {
    const json configuration = value_at(result, "configuration");
    if (!configuration.is_object() || configuration.empty()) result.fail("has no configuration");
    if (names.empty())
      for (const auto& item : ordered["results"][0]["configuration"].items())
        names.push_back(item.key()), labels.emplace_back();
    for (std::size_t p = 0; p < names.size(); ++p) {
      const auto value = configuration.find(names[p]);
      if (value == configuration.end()) result.fail("has no value of parameter " + names[p]);
      if (std::find(labels[p].begin(), labels[p].end(), *value) == labels[p].end())
        labels[p].push_back(*value);
    }
  }
  for (auto& list : labels)
    if (std::all_of(list.begin(), list.end(), [](const json& v) { return v.is_number(); }))
      std::sort(list.begin(), list.end());

  Collector collector(path, names, labels);
  double named = 0;
  if (value_at(root, "metadata").is_object()) {
    collector.describe(root["metadata"]);
    named = unit_at(root["metadata"], "timeunit", 0);
  }
  for (const JsonNode& result : results) {
    require_time(result, "objectives");
    collector.add(result.place(), result["configuration"].raw(), t4_evaluation(result, named));
  }
  return std::move(collector).finish();
}

std::string problem_of(const Record& record) { return record.kernel + "." + record.format; }

// The one problem of the database, or the one of several that is wanted.
std::string problem_in(const Database& database, const std::string& path, std::string_view problem) {
  std::set<std::string> problems;
  for (const Record& record : database.records) problems.insert(problem_of(record));
  std::string wanted(problem);
  if (wanted.empty() && problems.size() == 1) wanted = *problems.begin();
  if (problems.count(wanted) > 0) return wanted;
  std::string known;
  for (const std::string& name : problems) known += (known.empty() ? "" : ", ") + name;
  if (known.empty() && !database.warnings.empty())
    throw kernels::SpecError(database.warnings.front());  // which names the file and the line
  if (known.empty()) throw kernels::SpecError(path, "line 1", "no records");
  throw kernels::SpecError(path, "records",
                           (wanted.empty() ? "of several problems" : "none of " + wanted) +
                               " (--kernel and --format pick one of: " + known + ")");
}

// What the rows of one point say: times in units of the default's, and how it failed where no row has a time.
struct Rows {
  json parameters;
  std::vector<double> relative, samples_ms;
  double compile_ms = 0;
  std::string failure, timestamp;

  void add(const Record& record) {
    parameters = record.parameters;
    timestamp = record.run.time;
    compile_ms = std::max(compile_ms, record.compile_ms.value_or(0));
    if (record.state == "rejected") {
      const auto& [stage, reason, detail, others] = record.rejected;
      failure = stage == "compile"         ? "compile"
                : reason == "wrong answer" ? "correctness"
                : reason == "hung"         ? "timeout"
                                           : "runtime";
    }
    if (record.state != "timed") return;
    if (record.speedup) relative.push_back(1 / record.speedup->median);
    for (const double ns : record.screening.ns.value_or(std::vector<double>{}))
      samples_ms.push_back(ns * 1e-6);
  }
};

// The rows of a problem, which must be of one device, version of the sources and size.
struct RecordedPoints {
  std::map<std::string, Rows> points;  // by parameters
  std::string device;
  std::optional<SourceHashes> sources;
  std::string size;  // "1024x512", "67108864"
  i64 elements = 0;
  std::vector<double> default_ms;
};

// How long the default took beside a record: its samples, or, where it is the default's own and has none, as
// published, what its bandwidth comes to.
void add_default_times(const Record& record, RecordedPoints& all) {
  if (record.state != "timed") return;
  const bool own = record.is_default == true;
  const std::size_t before = all.default_ms.size();
  for (const Record::Rounds* rounds : {&record.screening, &record.final})
    for (const double ns :
         (rounds->default_ns || !own ? rounds->default_ns : rounds->ns).value_or(std::vector<double>{}))
      all.default_ms.push_back(ns * 1e-6);
  const std::optional<Problem> problem = problem_named(problem_of(record));
  if (!own || all.default_ms.size() > before || !problem || !record.gb_per_s || record.elements < 1) return;
  const double bytes = (problem->over_rows() && record.cols > 0 ? problem->sized(record.rows, record.cols)
                                                                : problem->sized(1, record.elements))
                           .bytes();
  all.default_ms.push_back(bytes / *record.gb_per_s * 1e-6);
}

RecordedPoints points_of(const Database& database, const std::string& path, const std::string& wanted) {
  RecordedPoints all;
  for (const Record& record : database.records) {
    if (problem_of(record) != wanted || record.parameters.empty()) continue;
    const auto key = device_key(record.run.device);
    const std::string own = key ? key->device : record.run.device.model.value_or("");
    if (all.device.empty()) all.device = own;
    if (own != all.device)
      throw kernels::SpecError(path, "records",
                               "of two devices, '" + all.device + "' and '" + own + "': replay wants one");
    if (all.sources.value_or(record.run.hashes) != record.run.hashes)
      throw kernels::SpecError(path, "records",
                               "of two versions of the sources (kernels_sha256, coefficients_sha256): replay "
                               "wants one");
    all.sources = record.run.hashes;
    // A rejected one's is 0 elements: it is of any size. Shapes of as many elements have other loops.
    const std::string size = record.rows > 0 && record.cols > 0
                                 ? std::to_string(record.rows) + "x" + std::to_string(record.cols)
                                 : std::to_string(record.elements);
    if (record.elements > 0) {
      if (all.elements > 0 && all.size != size)
        throw kernels::SpecError(path, "records", "of several sizes, " + all.size + " and " + size);
      all.elements = record.elements, all.size = size;
    }
    all.points[record.parameters.dump()].add(record);
    add_default_times(record, all);
  }
  return all;
}

Recording read_database(const std::string& path, std::string_view problem) {
  const Database database = load_database(path);
  const std::string wanted = problem_in(database, path, problem);
  const RecordedPoints all = points_of(database, path, wanted);
  const auto is_timed = [](const auto& point) { return !point.second.relative.empty(); };
  if (all.default_ms.empty() && std::any_of(all.points.begin(), all.points.end(), is_timed))
    throw kernels::SpecError(path, "records", "none says how long the default took, whose ratios they are");
  const double unit = kernels::median(all.default_ms);
  std::vector<std::string> names;
  std::vector<std::vector<json>> labels;
  for (const auto& [text, rows] : all.points)
    for (const auto& [name, value] : rows.parameters.items()) {
      const auto at = static_cast<std::size_t>(std::find(names.begin(), names.end(), name) - names.begin());
      if (at == names.size()) names.push_back(name), labels.emplace_back();
      if (std::find(labels[at].begin(), labels[at].end(), value) == labels[at].end())
        labels[at].push_back(value);
    }
  for (auto& list : labels) std::sort(list.begin(), list.end());
  Collector collector(path, names, labels);
  collector.recording().device = all.device;
  collector.recording().kernel = wanted;
  if (all.elements > 0) collector.recording().problem_size = all.elements;
  for (const auto& [text, rows] : all.points) {
    Evaluation evaluation;
    if (!rows.relative.empty())
      evaluation.time_ms = unit * kernels::median(rows.relative);
    else if (!rows.failure.empty())
      evaluation.failure = rows.failure;
    else
      continue;  // proposed or compiled only: nothing came of it
    evaluation.times_ms = rows.samples_ms;
    evaluation.compile_ms = rows.compile_ms;
    evaluation.timestamp = rows.timestamp;
    collector.add("parameters " + text, rows.parameters, std::move(evaluation));
  }
  Recording recording = std::move(collector).finish();
  warn_of_left_out(database);
  return recording;
}

}  // namespace

Outcome Recording::best_ms() const {
  Outcome best;
  for (const Evaluation& evaluation : evaluations)
    if (evaluation.time_ms && (!best || *evaluation.time_ms < *best)) best = evaluation.time_ms;
  return best;
}

ordered_json Recording::configuration(std::size_t point) const {
  ordered_json values = ordered_json::object();
  for (std::size_t p = 0; p < labels.size(); ++p)
    values[points.parameters()[p].name] = labels[p][points.position(point, p)];
  return values;
}

std::string Recording::name_of(std::size_t point) const {
  std::string name;
  for (std::size_t p = 0; p < labels.size(); ++p)
    if (labels[p].size() > 1)
      name += (name.empty() ? "" : ",") + points.parameters()[p].name + "=" +
              python_text(labels[p][points.position(point, p)]);
  return name;
}

Recording read_recording(const std::string& path, std::string_view problem) {
  const std::string text = kernels::read_file(path);
  // A database is lines of objects; the other two are one object.
  const std::size_t line_end = text.find('\n');
  const json first = kernels::parse_json_line(std::string_view(text).substr(0, line_end));
  const bool lines = path.ends_with(".jsonl");  // also where its first line is damaged
  if (lines || (first.is_object() && first.contains("schema"))) return read_database(path, problem);
  if (!problem.empty()) throw kernels::SpecError(path, "--kernel", "only a database holds several problems");
  const std::string whole = closed_cache(with_quoted_words(text));
  const JsonNode root(kernels::parse_json(whole, path), path);
  if (root.has("cache")) return read_kernel_tuner(path, root);
  if (root.has("results")) return read_t4(path, root, kernels::parse_json<ordered_json>(whole));
  throw kernels::SpecError(
      path, "line 1",
      "neither a tuning database, nor a Kernel Tuner cache (\"cache\"), nor T4 results (\"results\")");
}

std::string kernel_tuner_cache(const Recording& recording) {
  ordered_json header = {{"device_name", recording.device},
                         {"kernel_name", recording.kernel},
                         {"problem_size", recording.problem_size}};
  if (recording.problem_size.is_null()) header["problem_size"] = 1;  // Kernel Tuner wants one
  ordered_json keys = ordered_json::array(), lists = ordered_json::object();
  for (std::size_t p = 0; p < recording.labels.size(); ++p) {
    keys.push_back(recording.points.parameters()[p].name);
    lists[recording.points.parameters()[p].name] = recording.labels[p];
  }
  header["tune_params_keys"] = keys;
  header["tune_params"] = lists;
  header["objective"] = "time";
  std::string text = header.dump(0);
  text.resize(text.size() - 2);  // "\n}"
  text += ",\n\"cache\": {";
  for (std::size_t i = 0; i < recording.points.size(); ++i) {
    const Evaluation& evaluation = recording.evaluations[i];
    std::string key;
    for (std::size_t p = 0; p < recording.labels.size(); ++p)
      key += (p == 0 ? "" : ",") + python_text(recording.labels[p][recording.points.position(i, p)]);
    ordered_json entry = recording.configuration(i);
    if (evaluation.time_ms) {
      entry["time"] = *evaluation.time_ms;
    } else {
      entry["time"] = entry["__error__"] = failure_named(evaluation.failure, &FailureName::t4)->kernel_tuner;
    }
    if (!evaluation.times_ms.empty()) entry["times"] = evaluation.times_ms;
    entry["compile_time"] = evaluation.compile_ms;
    entry["verification_time"] = evaluation.verify_ms;
    entry["benchmark_time"] = evaluation.benchmark_ms;
    entry["strategy_time"] = evaluation.search_ms;
    entry["framework_time"] = evaluation.framework_ms;
    entry["timestamp"] = evaluation.timestamp;
    text += (i == 0 ? "\n" : ",\n") + ordered_json(key).dump() + ": " + entry.dump();
  }
  return text + "}\n}";
}

std::string t4_results(const Recording& recording) {
  ordered_json results = ordered_json::array();
  for (std::size_t i = 0; i < recording.points.size(); ++i) {
    const Evaluation& evaluation = recording.evaluations[i];
    results.push_back({{"timestamp", evaluation.timestamp},
                       {"configuration", recording.configuration(i)},
                       {"objectives", {"time"}},
                       {"times",
                        {{"compilation_time", evaluation.compile_ms},
                         {"compilation", evaluation.compile_ms},
                         {"benchmark", evaluation.benchmark_ms},
                         {"framework", evaluation.framework_ms},
                         {"search_algorithm", evaluation.search_ms},
                         {"validation", evaluation.verify_ms},
                         {"runtimes", evaluation.times_ms}}},
                       {"invalidity", evaluation.time_ms ? "correct" : evaluation.failure},
                       {"correctness", evaluation.failure == "correctness" ? 0 : 1},
                       {"measurements", ordered_json::array()}});
    if (evaluation.time_ms)
      results.back()["measurements"].push_back(
          {{"name", "time"}, {"value", *evaluation.time_ms}, {"unit", "ms"}});
  }
  const ordered_json root = {{"schema_version", kT4Version},
                             {"metadata",
                              {{"timeunit", "milliseconds"},
                               {"device_name", recording.device},
                               {"kernel_name", recording.kernel},
                               {"problem_size", recording.problem_size}}},
                             {"results", results}};
  return root.dump(1) + "\n";
}

}  // namespace outgrad::autotune
