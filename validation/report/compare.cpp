// Readers of what is compared, one for each schema, and the rule that tells a change from noise.
#include "validation/report/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "autotune/evidence/identity.h"
#include "kernels/support/errors.h"
#include "kernels/support/files.h"
#include "kernels/support/json_node.h"
#include "kernels/support/progress.h"
#include "kernels/support/statistics.h"
#include "validation/report/results.h"

namespace outgrad::validation {
namespace {

using Node = kernels::JsonNode;
using Json = nlohmann::ordered_json;

constexpr double kConfidence = 0.99;
constexpr int kColumns = 100;  // of the table
constexpr const char* kIntervalsOf = "the rounds of one run";

// ---- sweeps

void read_maxima(const Node& domain, const std::string& of, std::vector<Comparable>& figures) {
  for (const char* name : {"T", "T_dx", "O", "R", "C"}) {
    if (!domain.has(name) || domain[name].null()) continue;
    figures.push_back({.of = of, .quantity = name, .value = domain[name]["bound"].real()});
  }
  for (const char* name : {"T_over_O", "rms_T"})
    if (domain.has(name) && !domain[name].null())  // no O, no quotient
      figures.push_back({.of = of, .quantity = name, .value = domain[name].real()});
  if (domain.has("bias"))
    figures.push_back({.of = of, .quantity = "bias", .value = domain["bias"]["bound"].real()});
  for (const char* name : {"misrounded", "wrong_mask", "wrong_special"}) {
    if (!domain["counts"].has(name)) continue;
    const auto count = static_cast<double>(domain["counts"][name].count());
    figures.push_back({.of = of, .quantity = name, .value = count});
  }
}

void read_sweep(const Node& node, ComparedFile& result) {
  result.subject = fmt::format("{}, y in {}", node["activation"].text(), node["format"].text());
  for (const Node& domain : node["domains"].items()) {
    const bool store = domain.has("store");
    read_maxima(domain, store ? domain["store"].text() : "every " + domain["x_format"].text() + " x",
                result.figures);
  }
}

// ---- benches

/// As the tuner tells devices apart, where a file says so much.
std::string machine_of(const autotune::DeviceRecord& device) {
  if (const auto key = autotune::device_key(device)) return key->device;
  return device.name ? *device.name
                     : fmt::format("{}, {} threads", device.model.value_or(""), device.threads.value_or(0));
}

std::string machine_of(const Node& device) {
  try {
    return machine_of(autotune::device_record_from(device.raw()));
  } catch (const kernels::SpecError& error) {
    device.fail(error.what());
  }
}

void read_bench(const Node& node, ComparedFile& result) {
  result.machine = machine_of(node["device"]);
  for (const Node& group : node["groups"].items()) {
    for (const Node& one : group["cases"].items()) {
      std::vector<double> times;
      for (const Node& ns : one["ns"].items()) times.push_back(ns.number());
      if (times.empty()) continue;
      Comparable figure = median_of(std::move(times));
      const std::string variant = one.has("variant") ? one["variant"].text() : "";
      figure.of = fmt::format("{} {}, {:.0f}{}{}", group["format"].text(), one["name"].text(),
                              one["elements"].number(), variant.empty() ? "" : ", ", variant);
      figure.quantity = "ns", figure.measured = true;
      result.figures.push_back(std::move(figure));
    }
  }
}

/// A ratio of speeds with the interval that the file states, of which more is better.
Comparable speed(std::string of, std::string quantity, double median, double low, double high) {
  return {.of = std::move(of),
          .quantity = std::move(quantity),
          .value = median,
          .interval = ConfidenceInterval{low, high},
          .measured = true,
          .more_is_better = true};
}

void read_store_bench(const Node& node, ComparedFile& result) {
  result.machine = machine_of(node["device"]);
  for (const Node& group : node["groups"].items()) {
    for (const Node& store : group["stores"].items()) {
      const std::string of =
          fmt::format("{} {}: {}", group["format"].text(), group["layer"].text(), store["store"].text());
      for (const char* way : {"forward", "backward"}) {
        const Node ratio = store[way];
        if (ratio["median"].null()) continue;  // too noisy for a figure
        result.figures.push_back(speed(of, std::string(way) + " speed", ratio["median"].number(),
                                       ratio["low"].number(), ratio["high"].number()));
      }
    }
  }
}

// ---- tuning

/// The winner of the latest run on each problem; GB/s stand beside it as they are, without an interval.
ComparedFile read_tuning(const std::string& file) {
  const autotune::Database database = autotune::load_database(file);
  const std::vector<TunedRun> runs = latest_runs(database);
  if (const std::string why = autotune::left_out(database); !why.empty() && runs.empty())
    throw kernels::SpecError(file, "records", "none of the tuner: " + why);
  if (runs.empty()) throw kernels::SpecError(file, "line 1", "has no records of the tuner");
  autotune::warn_of_left_out(database);
  ComparedFile result{.file = file, .schema = "outgrad.tune/1", .subject = {}, .machine = {}, .figures = {}};
  for (const auto& [kernel, format, size, records] : runs) {
    const auto won = std::find_if(records.rbegin(), records.rend(), [](const autotune::Record* one) {
      return one->winner.value_or(false) && one->speedup;
    });
    if (won == records.rend()) continue;
    const autotune::SpeedupRecord& ratio = *(*won)->speedup;
    Comparable figure = speed(fmt::format("{} {}, {}", format, kernel, size), "over default", ratio.median,
                              ratio.low, ratio.high);
    if (is_too_noisy(**won)) figure.interval.reset();  // its own 1 would be a certain one
    result.figures.push_back(std::move(figure));
  }
  for (const autotune::Record& record : database.records) {
    if (!record.is_of_a_variant()) continue;
    const std::string machine = machine_of(record.run.device);
    if (result.machine.empty()) result.machine = machine;
    if (machine != result.machine)
      throw kernels::SpecError(file, "device",
                               fmt::format("records are of two, '{}' and '{}'", result.machine, machine));
  }
  return result;
}

// ---- the rule

Change change_of(const Comparable& a, const Comparable& b) {
  if (a.measured && (!a.interval || !b.interval)) return Change::undecided;  // whatever their medians
  if (a.value == b.value || (std::isnan(a.value) && std::isnan(b.value))) return Change::same;
  if (a.measured && a.interval->low <= b.interval->high && b.interval->low <= a.interval->high)
    return Change::noise;
  if (std::isnan(b.value)) return Change::worse;
  return (b.value > a.value) == a.more_is_better ? Change::better : Change::worse;
}

std::string shown(const std::optional<Comparable>& figure) {
  if (!figure) return "-";
  if (figure->quantity == "ns") return fmt::format("{:.5g} us", figure->value / 1e3);
  if (std::abs(figure->value) < 1e12 && figure->value == std::round(figure->value))
    return fmt::format("{:.0f}", figure->value);  // a count
  return fmt::format("{:.6g}", figure->value);
}

bool is_measured(const Difference& one) { return (one.a ? one.a : one.b)->measured; }

/// B over A with its interval, as a change in percent.
std::string relative(const Difference& one) {
  if (!one.a || !one.b || one.change == Change::same || !(one.a->value != 0)) return "";
  const auto percent = [](double ratio) { return 100 * (ratio - 1); };
  std::string text = fmt::format("{:+.3g}%", percent(one.b->value / one.a->value));
  if (one.a->interval && one.b->interval)
    text += fmt::format(" [{:+.2g}, {:+.2g}]", percent(one.b->interval->low / one.a->interval->high),
                        percent(one.b->interval->high / one.a->interval->low));
  return text;
}

}  // namespace

const char* to_string(Change change) {
  constexpr std::array kNames{"same",           "better",    "worse",    "within noise",
                              "too few rounds", "only in A", "only in B"};
  return kNames.at(static_cast<std::size_t>(change));
}

Comparable median_of(std::vector<double> values) {
  Comparable figure{.of = {}, .quantity = {}, .value = kernels::median(values)};
  std::sort(values.begin(), values.end());
  if (const std::size_t k = kernels::place_of_bound(values.size(), kConfidence); k > 0)
    figure.interval = ConfidenceInterval{values[k - 1], values[values.size() - k]};
  return figure;
}

ComparedFile read_compared(const std::string& file) {
  const std::string text = kernels::read_file(file);  // of a file that is not there a database is empty
  if (std::filesystem::path(file).extension() == ".jsonl") return read_tuning(file);
  const Node node(kernels::parse_json(text, file), file);
  ComparedFile result{
      .file = file, .schema = node["schema"].text(), .subject = {}, .machine = {}, .figures = {}};
  const std::array<std::pair<const char*, void (*)(const Node&, ComparedFile&)>, 3> readers{
      {{"outgrad.sweep/1", read_sweep},
       {"outgrad.bench/1", read_bench},
       {"outgrad.store_bench/2", read_store_bench}}};
  for (const auto& [schema, read] : readers) {
    if (result.schema != schema) continue;
    read(node, result);
    return result;
  }
  node["schema"].fail("is none of outgrad.sweep/1, outgrad.bench/1, outgrad.store_bench/2, outgrad.tune/1");
}

std::vector<Difference> compare(const ComparedFile& a, const ComparedFile& b) {
  if (a.schema != b.schema) throw kernels::SpecError(b.file, "schema", "is not that of " + a.file);
  if (a.subject != b.subject)
    throw kernels::SpecError(b.file, "activation, format",
                             fmt::format("is of {}, and {} of {}", b.subject, a.file, a.subject));
  std::map<std::pair<std::string, std::string>, const Comparable*> of_b;
  for (const Comparable& one : b.figures) of_b.emplace(std::pair(one.of, one.quantity), &one);
  std::vector<Difference> differences;
  for (const Comparable& one : a.figures) {
    Difference found{.of = one.of, .quantity = one.quantity, .a = one, .b = {}, .change = Change::only_a};
    if (const auto other = of_b.extract({one.of, one.quantity}); !other.empty())
      found.b = *other.mapped(), found.change = change_of(one, *found.b);
    differences.push_back(std::move(found));
  }
  for (const Comparable& one : b.figures) {
    if (of_b.contains({one.of, one.quantity}))
      differences.push_back(
          {.of = one.of, .quantity = one.quantity, .a = {}, .b = one, .change = Change::only_b});
  }
  return differences;
}

std::string to_text(const ComparedFile& a, const ComparedFile& b,
                    const std::vector<Difference>& differences) {
  std::string text = fmt::format("A: {}\nB: {}\n", a.file, b.file);
  if (a.machine != b.machine)
    text += fmt::format("The machines differ, and the times with them.\n{}\n{}\n",
                        kernels::folded("  A: " + a.machine, kColumns),
                        kernels::folded("  B: " + b.machine, kColumns));
  std::map<Change, int> counts;
  std::string of;
  for (const Difference& one : differences) {
    ++counts[one.change];
    if (one.of != of) text += fmt::format("{}\n", of = one.of);
    text += fmt::format("  {:<14} {:>12} {:>12}  {:<28} {}\n", one.quantity, shown(one.a), shown(one.b),
                        relative(one), to_string(one.change));
  }
  std::string end;
  for (const auto& [change, count] : counts)
    end += fmt::format("{}{} {}", end.empty() ? "" : ", ", count, to_string(change));
  text += fmt::format("{} figures: {}\n", differences.size(), end.empty() ? "nothing to compare" : end);
  if (std::ranges::any_of(differences, is_measured))
    text += fmt::format(
        "Each interval is of {}: two runs of one program may differ by more.\n"
        "bench --tuned times a tuned build and the default's in turn, in one run.\n",
        kIntervalsOf);
  return text;
}

Json to_json(const ComparedFile& a, const ComparedFile& b, const std::vector<Difference>& differences) {
  const auto side = [](const std::optional<Comparable>& figure) -> Json {
    if (!figure) return {{"value", nullptr}};
    Json json{{"value", figure->value}};
    if (figure->interval) json["low"] = figure->interval->low, json["high"] = figure->interval->high;
    return json;
  };
  Json listed = Json::array();
  for (const Difference& one : differences)
    listed.push_back({{"of", one.of},
                      {"quantity", one.quantity},
                      {"a", side(one.a)},
                      {"b", side(one.b)},
                      {"change", to_string(one.change)}});
  return {{"schema", "outgrad.comparison/1"},
          {"a", {{"file", a.file}, {"machine", a.machine}}},
          {"b", {{"file", b.file}, {"machine", b.machine}}},
          {"confidence", kConfidence},
          {"intervals_of", std::ranges::any_of(differences, is_measured) ? Json(kIntervalsOf) : Json()},
          {"differences", listed}};
}

}  // namespace outgrad::validation
