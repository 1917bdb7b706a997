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
#include "kernels/support/files.h"
#include "kernels/support/json.h"
#include "kernels/support/statistics.h"

namespace outgrad::autotune {
namespace {

using kernels::i64;
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

template <class Json>
Json parse(const std::string& path, const std::string& text) {
  try {
    return kernels::parse_json<Json>(text);
  } catch (const json::parse_error& error) {
    const std::size_t end = std::min(error.byte, text.size());
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(end), '\n');
    throw kernels::SpecError(path, "line " + std::to_string(line),
                             end == text.size() ? "the file ends early" : "not JSON");
  } catch (const json::out_of_range&) {  // whose text quotes all of the number
    throw kernels::SpecError(path, "JSON", "a number is beyond double's range");
  }
}

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

// The text at a key; empty where there is none.
template <class Json>
std::string text_at(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->template get<std::string>() : std::string();
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
  kernels::SpecError bad(const std::string& place, const std::string& why) const {
    return {path_, place, why};
  }

  // `values`: an object that holds each parameter's value.
  template <class Json>
  void add(const std::string& place, const Json& values, Evaluation evaluation) {
    std::uint64_t rank = 0;
    for (std::size_t p = 0; p < recording_.labels.size(); ++p) {
      const Parameter& parameter = recording_.points.parameters()[p];
      const auto found = values.find(parameter.name);
      if (found == values.end()) throw bad(place, "has no value of parameter " + parameter.name);
      const auto& list = recording_.labels[p];
      const auto at = std::find(list.begin(), list.end(), json(*found));
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

// A number under the key; 0 where there is none.
template <class Json>
double number_at(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->template get<double>() : 0;
}

template <class Json>
std::vector<double> numbers_at(const Json& object, const char* key) {
  std::vector<double> numbers;
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array()) return numbers;
  for (const auto& value : *found)
    if (value.is_number()) numbers.push_back(value.template get<double>());
  return numbers;
}

// The one objective is time: shorter is better, failures apart.
template <class Json>
void require_time(const Json& objective, const Collector& collector, const std::string& place) {
  const auto is_time = [](const Json& value) { return value == "time"; };
  if (is_time(objective) || (objective.is_array() && objective.size() == 1 && is_time(objective[0]))) return;
  throw collector.bad(place, "the objective " + objective.dump() + " is not \"time\"");
}

Recording read_kernel_tuner(const std::string& path, const json& root) {
  const auto bad = [&](const std::string& place, const std::string& why) {
    return kernels::SpecError(path, place, why);
  };
  const auto keys = root.find("tune_params_keys"), lists = root.find("tune_params"),
             cache = root.find("cache");
  if (keys == root.end() || !keys->is_array() || keys->empty())
    throw bad("tune_params_keys", "not a list of names");
  if (lists == root.end() || !lists->is_object()) throw bad("tune_params", "not an object of lists");
  if (!cache->is_object()) throw bad("cache", "not an object");
  std::vector<std::string> names;
  std::vector<std::vector<json>> labels;
  for (const json& key : *keys) {
    if (!key.is_string()) throw bad("tune_params_keys", key.dump() + " is not a name");
    names.push_back(key.get<std::string>());
    if (std::count(names.begin(), names.end(), names.back()) > 1)
      throw bad("tune_params_keys", "'" + names.back() + "' occurs twice");
    const auto list = lists->find(names.back());
    if (list == lists->end() || !list->is_array() || list->empty())
      throw bad("tune_params", "'" + names.back() + "' has no list of values");
    labels.emplace_back(list->begin(), list->end());
  }
  Collector collector(path, names, labels);
  if (const auto objective = root.find("objective"); objective != root.end())
    require_time(*objective, collector, "objective");
  collector.recording().device = text_at(root, "device_name");
  collector.recording().kernel = text_at(root, "kernel_name");
  if (const auto size = root.find("problem_size"); size != root.end())
    collector.recording().problem_size = *size;
  for (const auto& [key, entry] : cache->items()) {
    const std::string place = "cache: \"" + key + "\"";
    if (!entry.is_object()) throw bad(place, "not an object");
    Evaluation evaluation;
    const auto time = entry.find("time");
    const std::string failure =
        time != entry.end() && time->is_string() ? time->get<std::string>() : text_at(entry, "__error__");
    if (is_no_number(failure)) {
      evaluation.failure = "runtime";  // it ran, and its time is none
    } else if (!failure.empty()) {
      const auto* known = std::find_if(std::begin(kFailures), std::end(kFailures),
                                       [&](const auto& f) { return failure == f.kernel_tuner; });
      if (known == std::end(kFailures)) throw bad(place, "unknown failure '" + failure + "'");
      evaluation.failure = known->t4;
    } else if (time != entry.end() && time->is_number()) {
      evaluation.time_ms = time->get<double>();
    } else {
      throw bad(place, "neither a time nor a failure");
    }
    evaluation.times_ms = numbers_at(entry, "times");
    evaluation.compile_ms = number_at(entry, "compile_time");
    evaluation.verify_ms = number_at(entry, "verification_time");
    evaluation.benchmark_ms = number_at(entry, "benchmark_time");
    evaluation.search_ms = number_at(entry, "strategy_time");
    evaluation.framework_ms = number_at(entry, "framework_time");
    evaluation.timestamp = text_at(entry, "timestamp");
    collector.add(place, entry, std::move(evaluation));
  }
  return std::move(collector).finish();
}

// Milliseconds in a unit of time as writers of T4 spell it (Kernel Tuner wrongly, once). T4's schema has any
// text there.
double milliseconds_of(const kernels::SpecError& refusal, const std::string& unit) {
  static const std::vector<std::pair<double, std::set<std::string>>> known = {
      {1e-6, {"ns", "nsec", "nanosecond", "nanoseconds"}},
      // the micro sign, and the Greek letter
      {1e-3, {"us", "\u00b5s", "\u03bcs", "usec", "microsecond", "microseconds"}},
      {1, {"ms", "msec", "millisecond", "milliseconds", "miliseconds"}},
      {1e3, {"s", "sec", "second", "seconds"}}};
  for (const auto& [milliseconds, spellings] : known)
    if (spellings.contains(unit)) return milliseconds;
  throw refusal;
}

Recording read_t4(const std::string& path, const ordered_json& root) {
  const auto bad = [&](const std::string& place, const std::string& why) {
    return kernels::SpecError(path, place, why);
  };
  const ordered_json& results = root["results"];
  if (!results.is_array() || results.empty()) throw bad("results", "not a list of results");
  if (const std::string version = text_at(root, "schema_version"); version != kT4Version)
    throw bad("schema_version", "'" + version + "' is not " + kT4Version);
  const auto metadata = root.find("metadata");
  const bool described = metadata != root.end() && metadata->is_object();
  // The unit of all times of the file; where it names none, a result's `time` has its own, which is that of
  // its samples too.
  const auto unit_of = [&](const std::string& place, const ordered_json& unit, double otherwise) {
    if (unit.is_null() || unit == "") return otherwise;
    const std::string text = unit.is_string() ? unit.get<std::string>() : unit.dump();
    constexpr std::size_t kShown = 40;
    return milliseconds_of(
        bad(place, "unknown unit of time '" + text.substr(0, kShown) + "'; known: ns, us, ms, s"), text);
  };
  const double named =
      unit_of("metadata: timeunit",
              described && metadata->contains("timeunit") ? metadata->at("timeunit") : ordered_json(), 0);
  const double unit = named > 0 ? named : 1;
  const auto place_of = [](std::size_t i) { return "results[" + std::to_string(i) + "]"; };

  // Parameters in the order of the first configuration; values in ascending order, texts in the order in
  // which they occur.
  std::vector<std::string> names;
  std::vector<std::vector<json>> labels;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const auto configuration = results[i].is_object() ? results[i].find("configuration") : results[i].end();
    if (!results[i].is_object() || configuration == results[i].end() || !configuration->is_object() ||
        configuration->empty())
      throw bad(place_of(i), "has no configuration");
    if (i == 0)
      for (const auto& item : configuration->items()) names.push_back(item.key()), labels.emplace_back();
    for (std::size_t p = 0; p < names.size(); ++p) {
      const auto value = configuration->find(names[p]);
      if (value == configuration->end()) throw bad(place_of(i), "has no value of parameter " + names[p]);
      if (std::find(labels[p].begin(), labels[p].end(), json(*value)) == labels[p].end())
        labels[p].push_back(json(*value));
    }
  }
  for (auto& list : labels)
    if (std::all_of(list.begin(), list.end(), [](const json& v) { return v.is_number(); }))
      std::sort(list.begin(), list.end());

  Collector collector(path, names, labels);
  if (described) {
    collector.recording().device = text_at(*metadata, "device_name");
    collector.recording().kernel = text_at(*metadata, "kernel_name");
    if (const auto size = metadata->find("problem_size"); size != metadata->end())
      collector.recording().problem_size = json(*size);
  }
  for (std::size_t i = 0; i < results.size(); ++i) {
    const ordered_json& result = results[i];
    if (const auto objectives = result.find("objectives"); objectives != result.end())
      require_time(*objectives, collector, place_of(i) + ": objectives");
    Evaluation evaluation;
    const std::string invalidity = text_at(result, "invalidity");
    if (invalidity != "correct") {
      const auto* known = std::find_if(std::begin(kFailures), std::end(kFailures),
                                       [&](const auto& f) { return invalidity == f.t4; });
      if (known == std::end(kFailures)) throw bad(place_of(i), "unknown invalidity '" + invalidity + "'");
      evaluation.failure = invalidity;
    }
    double sample_unit = unit;
    if (const auto measurements = result.find("measurements");
        measurements != result.end() && measurements->is_array())
      for (const auto& measurement : *measurements) {
        if (!measurement.is_object() || text_at(measurement, "name") != "time") continue;
        const double own = measurement.contains("unit")
                               ? unit_of(place_of(i) + ": measurements", measurement["unit"], unit)
                               : unit;
        if (named == 0) sample_unit = own;
        if (evaluation.failure.empty() && measurement.contains("value") && measurement["value"].is_number())
          evaluation.time_ms = own * measurement["value"].get<double>();
      }
    if (const auto times = result.find("times"); times != result.end() && times->is_object()) {
      evaluation.times_ms = numbers_at(*times, "runtimes");
      for (double& sample : evaluation.times_ms) sample *= sample_unit;
      // The schema's key, and the one that Kernel Tuner writes.
      evaluation.compile_ms =
          unit * (times->contains("compilation_time") ? number_at(*times, "compilation_time")
                                                      : number_at(*times, "compilation"));
      evaluation.verify_ms = unit * number_at(*times, "validation");
      evaluation.benchmark_ms = unit * number_at(*times, "benchmark");
      evaluation.search_ms = unit * number_at(*times, "search_algorithm");
      evaluation.framework_ms = unit * number_at(*times, "framework");
    }
    evaluation.timestamp = text_at(result, "timestamp");
    if (evaluation.failure.empty()) {
      if (!evaluation.time_ms && !evaluation.times_ms.empty())
        evaluation.time_ms = kernels::median(evaluation.times_ms);
      if (!evaluation.time_ms) throw bad(place_of(i), "correct, but without a time");
    }
    collector.add(place_of(i), result["configuration"], std::move(evaluation));
  }
  return std::move(collector).finish();
}

// What the rows of one point say: times in units of the default's, and how it failed where no row has a time.
struct Rows {
  json parameters;
  std::vector<double> relative, samples_ms;
  double compile_ms = 0;
  std::string failure, timestamp;
};

Recording read_database(const std::string& path, std::string_view problem) {
  const Database database = load_database(path);
  const auto problem_of = [](const Record& record) { return record.kernel + "." + record.format; };
  std::set<std::string> problems;
  for (const Record& record : database.records) problems.insert(problem_of(record));
  std::string wanted(problem);
  if (wanted.empty() && problems.size() == 1) wanted = *problems.begin();
  if (problems.count(wanted) == 0) {
    std::string known;
    for (const std::string& name : problems) known += (known.empty() ? "" : ", ") + name;
    if (known.empty())
      throw kernels::SpecError(path, "line 1",
                               database.warnings.empty() ? "no records" : database.warnings.front());
    throw kernels::SpecError(path, "records",
                             (wanted.empty() ? "of several problems" : "none of " + wanted) +
                                 " (--kernel and --format pick one of: " + known + ")");
  }
  std::map<std::string, Rows> points;
  std::vector<double> default_ms;
  std::string device;
  i64 elements = 0;
  for (const Record& record : database.records) {
    if (problem_of(record) != wanted || record.parameters.empty()) continue;
    const auto key = device_key(record.run.device);
    const std::string own = key ? key->device : record.run.device.model.value_or("");
    if (device.empty()) device = own;
    if (own != device)
      throw kernels::SpecError(path, "records",
                               "of two devices, '" + device + "' and '" + own + "': replay wants one");
    Rows& rows = points[record.parameters.dump()];
    rows.parameters = record.parameters;
    rows.timestamp = record.run.time;
    rows.compile_ms = std::max(rows.compile_ms, record.compile_ms.value_or(0));
    if (record.elements > 0) {
      if (elements > 0 && elements != record.elements)
        throw kernels::SpecError(path, "records",
                                 "of several sizes, " + std::to_string(elements) + " and " +
                                     std::to_string(record.elements) + " elements");
      elements = record.elements;
    }
    if (record.state == "rejected") {
      const auto& [stage, reason, detail, others] = record.rejected;
      rows.failure = stage == "compile"         ? "compile"
                     : reason == "wrong answer" ? "correctness"
                     : reason == "hung"         ? "timeout"
                                                : "runtime";
    }
    if (record.state != "timed") continue;
    if (record.speedup) rows.relative.push_back(1 / record.speedup->median);
    for (const double ns : record.screening.ns.value_or(std::vector<double>{}))
      rows.samples_ms.push_back(ns * 1e-6);
    if (record.is_default == true)
      default_ms.insert(default_ms.end(), rows.samples_ms.begin(), rows.samples_ms.end());
  }
  const double unit = default_ms.empty() ? 1 : kernels::median(default_ms);
  std::vector<std::string> names;
  std::vector<std::vector<json>> labels;
  for (const auto& [text, rows] : points)
    for (const auto& [name, value] : rows.parameters.items()) {
      const auto at = static_cast<std::size_t>(std::find(names.begin(), names.end(), name) - names.begin());
      if (at == names.size()) names.push_back(name), labels.emplace_back();
      if (std::find(labels[at].begin(), labels[at].end(), value) == labels[at].end())
        labels[at].push_back(value);
    }
  for (auto& list : labels) std::sort(list.begin(), list.end());
  Collector collector(path, names, labels);
  collector.recording().device = device;
  collector.recording().kernel = wanted;
  if (elements > 0) collector.recording().problem_size = elements;
  for (auto& [text, rows] : points) {
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
  return std::move(collector).finish();
}

ordered_json configuration_of(const Recording& recording, std::size_t point) {
  ordered_json configuration = ordered_json::object();
  for (std::size_t p = 0; p < recording.labels.size(); ++p)
    configuration[recording.points.parameters()[p].name] =
        recording.labels[p][recording.points.position(point, p)];
  return configuration;
}

}  // namespace

Outcome Recording::best_ms() const {
  Outcome best;
  for (const Evaluation& evaluation : evaluations)
    if (evaluation.time_ms && (!best || *evaluation.time_ms < *best)) best = evaluation.time_ms;
  return best;
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
  const json root = parse<json>(path, whole);
  if (root.is_object() && root.contains("cache")) return read_kernel_tuner(path, root);
  if (root.is_object() && root.contains("results")) return read_t4(path, parse<ordered_json>(path, whole));
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
    ordered_json entry = configuration_of(recording, i);
    if (evaluation.time_ms) {
      entry["time"] = *evaluation.time_ms;
    } else {
      const auto* known = std::find_if(std::begin(kFailures), std::end(kFailures),
                                       [&](const auto& f) { return evaluation.failure == f.t4; });
      entry["time"] = entry["__error__"] = known->kernel_tuner;
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
                       {"configuration", configuration_of(recording, i)},
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
