// `tune --defaults FILE...`: the schedules whose worst loss over the devices of these databases is least.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <set>

#include "autotune/commands/tune_modes.h"
#include "autotune/evidence/defaults.h"
#include "autotune/gpu/offline.h"
#include "autotune/records/database.h"
#include "kernels/support/files.h"

namespace outgrad::autotune {
namespace {

using nlohmann::json;

struct DefaultsOptions {
  Words inputs{};
  std::string out{};  // a header
  kernels::ResultForm form;
};

DefaultsOptions defaults_options(const Words& words) {
  DefaultsOptions o;
  read_options(tune_mode("--defaults"), words, [&](CLI::App& app) {
    add_list(app, "--defaults", o.inputs);
    add_text(app, "--out", o.out);
    kernels::add_result_form(app, o.form, "the result");
  });
  return o;
}

json choice_json(const DefaultChoice& choice) {
  json table = json::array();
  for (const Loss& loss : choice.table)
    table.push_back({{"variant", loss.variant},
                     {"parameters", loss.parameters},
                     {"losses", loss.losses},
                     {"worst", loss.worst},
                     {"changes", loss.changes}});
  return {{"problem", choice.problem.name()},
          {"places", choice.places},
          {"table", table},
          {"chosen", choice.choice().variant}};
}

void print_choice(const DefaultChoice& choice) {
  constexpr std::size_t kShown = 6;
  std::printf("%s: %zu variants were measured in all of %zu places\n", choice.problem.name().c_str(),
              choice.table.size(), choice.places.size());
  for (std::size_t place = 0; place < choice.places.size(); ++place)
    std::printf("  (%zu) %s\n", place + 1, choice.places[place].c_str());
  for (std::size_t i = 0; i < choice.table.size(); ++i) {
    const Loss& loss = choice.table[i];
    if (i >= kShown && i != choice.chosen && loss.variant != kDefaultName) continue;
    std::printf("  %s worst %6.2f%%  ", i == choice.chosen ? "->" : "  ", 100 * loss.worst);
    for (std::size_t place = 0; place < loss.losses.size(); ++place)
      std::printf(" (%zu) %6.2f%%", place + 1, 100 * loss.losses[place]);
    std::printf("  %s\n", loss.variant.c_str());
  }
}

}  // namespace

int defaults_command(const Words& words) {
  const DefaultsOptions options = defaults_options(words);
  if (!options.out.empty()) kernels::require_writable(options.out, options.inputs);
  std::vector<Record> records;
  Database all;  // of what was left out
  for (const std::string& path : options.inputs) {
    Database database = load_database(path);
    if (database.records.empty())
      throw kernels::SpecError(
          path, "records",
          "none: " + (database.warnings.empty() ? "the file is missing or empty" : left_out(database)));
    all.warnings.insert(all.warnings.end(), database.warnings.begin(), database.warnings.end());
    records.insert(records.end(), std::make_move_iterator(database.records.begin()),
                   std::make_move_iterator(database.records.end()));
  }
  const auto is_of_cpu = [](const Record& record) { return record.run.device.kind == "cpu"; };
  const bool cpu = is_of_cpu(records.front());
  if (std::ranges::any_of(records, [&](const Record& record) { return is_of_cpu(record) != cpu; }))
    throw kernels::SpecError(
        "tune: --defaults: there are records of CPUs and of GPUs: a header has schedules of one of them");
  const SourceHashes sources = cpu ? hash_sources(source_root()) : gpu::hash_of_embedded();
  const std::vector<DefaultChoice> choices = choose_defaults(records, sources);
  const std::string& header = options.out;
  std::vector<TunedChoice> entries;
  if (!header.empty())
    entries = winners_in(records, sources, std::filesystem::path(header).parent_path().string(),
                         Accuracy::kAsDefault, /*earlier_too=*/true);
  if (choices.empty() && entries.empty())
    throw kernels::SpecError(
        "tune: --defaults: no record was measured with these sources (kernels_sha256, coefficients_sha256)");
  warn_of_left_out(all);
  json results = json::array();
  for (const DefaultChoice& choice : choices) {
    if (options.form)
      results.push_back(choice_json(choice));
    else
      print_choice(choice);
  }
  if (!header.empty()) {
    std::set<std::string> families;
    std::size_t earlier = 0;
    for (const TunedChoice& entry : entries) {
      families.insert(entry.device.family);
      earlier += entry.evidence == kernels::Evidence::measured_earlier;
    }
    if (earlier > 0)
      kernels::print_error_line("warning: " + std::to_string(earlier) + " of " +
                                std::to_string(entries.size()) +
                                " winners were measured before the kernels' sources changed");
    if (cpu || families.size() > 1) {  // one family of GPUs says nothing of the others
      const std::vector<TunedChoice> defaults = default_entries(choices);
      entries.insert(entries.end(), defaults.begin(), defaults.end());
    }
    kernels::write_file(
        header, tuned_header(std::move(entries), cpu ? Backend::kCpu : Backend::kCuda,
                             "by tune --defaults, from records of several runs", Accuracy::kAsDefault));
  }
  if (options.form)
    kernels::print_result(
        options.form,
        json{{"schema", "outgrad.defaults/1"}, {"tie", kLossTie}, {"problems", results}, {"header", header}},
        "problems");
  return kernels::kExitHolds;
}

}  // namespace outgrad::autotune
