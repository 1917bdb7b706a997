// Losses from evidence, the least worst one, its table.
#include "autotune/evidence/defaults.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "autotune/evidence/merge.h"
#include "autotune/measure/timing.h"
#include "autotune/records/database.h"
#include "kernels/support/errors.h"
#include "kernels/support/files.h"

namespace outgrad::autotune {
namespace {

using nlohmann::json;

bool is_measured(const VariantEvidence& evidence) { return evidence.runs > 0 && evidence.barred.empty(); }

// Another fit is another function: nobody's default is made faster by what it computes.
bool has_fit_of(const Record& record, const json& of_default) {
  return record.parameters.value("fit", "") == of_default.value("fit", "");
}

// The losses of one place, by variant; the default by its own name and by its role.
std::map<std::string, Loss> losses_in(const ProblemEvidence& place) {
  const auto standard = std::find_if(place.variants.begin(), place.variants.end(),
                                     [&](const VariantEvidence& e) { return e.name() == place.baseline; });
  const json of_default = standard != place.variants.end() ? standard->record.parameters : json::object();
  double best = 1;  // the default's own
  for (const VariantEvidence& evidence : place.variants)
    if (is_measured(evidence) && has_fit_of(evidence.record, of_default))
      best = std::max(best, evidence.speedup.median);
  std::map<std::string, Loss> losses;
  const auto add = [&](const std::string& name, const json& parameters, const Interval& speedup, int rounds) {
    const int changes = parameters.is_null() ? 0 : changes_between(parameters, of_default);
    losses.insert_or_assign(name, Loss{name,
                                       parameters,
                                       {best / speedup.median - 1},
                                       best / speedup.median - 1,
                                       changes,
                                       speedup,
                                       !are_too_few(rounds) && speedup.low > 1});
  };
  for (const VariantEvidence& evidence : place.variants)
    if (is_measured(evidence) && has_fit_of(evidence.record, of_default))
      add(evidence.name(), evidence.record.parameters, evidence.speedup, evidence.rounds);
  add(kDefaultName, nullptr, {}, 0);
  return losses;
}

// What one variant loses in two places together.
Loss joined(const Loss& a, const Loss& b) {
  Loss both = a;
  both.losses.insert(both.losses.end(), b.losses.begin(), b.losses.end());
  both.worst = std::max(a.worst, b.worst);
  both.changes = std::max(a.changes, b.changes);
  both.gains = a.gains || b.gains;
  both.speedup = {std::min(a.speedup.median, b.speedup.median), std::min(a.speedup.low, b.speedup.low),
                  std::min(a.speedup.high, b.speedup.high)};
  return both;
}

}  // namespace

std::vector<DefaultChoice> choose_defaults(const std::vector<Record>& records, const SourceHashes& sources) {
  std::map<std::string, std::vector<ProblemEvidence>> places;  // by problem, without its size
  for (ProblemEvidence& evidence : weigh(records, Accuracy::kAsDefault)) {
    if (evidence.sources != sources) continue;
    if (evidence.baseline.empty() || !problem_named(evidence.kernel + "." + evidence.format)) continue;
    places[evidence.kernel + "." + evidence.format].push_back(std::move(evidence));
  }
  std::vector<DefaultChoice> choices;
  for (auto& [name, all] : places) {
    std::sort(all.begin(), all.end(), [](const ProblemEvidence& a, const ProblemEvidence& b) {
      return std::tuple(a.device.device, a.elements, a.cols, a.baseline) <
             std::tuple(b.device.device, b.elements, b.cols, b.baseline);
    });
    DefaultChoice choice{problem_named(name).value(), {}, {}, 0};
    std::map<std::string, Loss> everywhere;
    for (const ProblemEvidence& place : all) {
      const std::map<std::string, Loss> here = losses_in(place);
      std::map<std::string, Loss> both;
      for (const auto& [variant, loss] : here) {
        const auto before = everywhere.find(variant);
        if (choice.places.empty())
          both.emplace(variant, loss);
        else if (before != everywhere.end())
          both.emplace(variant, joined(before->second, loss));
      }
      everywhere = std::move(both);
      choice.places.push_back(place.name() + " on " + place.device.device);
    }
    for (auto& [variant, loss] : everywhere) choice.table.push_back(std::move(loss));
    std::sort(choice.table.begin(), choice.table.end(), [](const Loss& a, const Loss& b) {
      return std::tuple(a.worst, a.changes, a.variant) < std::tuple(b.worst, b.changes, b.variant);
    });
    // The default by its role goes before the same variant by its name.
    const auto simplicity = [](const Loss& loss) {
      return std::tuple(loss.variant != kDefaultName, loss.changes, loss.worst, loss.variant);
    };
    const auto may = [](const Loss& loss) { return loss.gains || loss.variant == kDefaultName; };
    const auto least = std::find_if(choice.table.begin(), choice.table.end(), may);
    choice.chosen = static_cast<std::size_t>(least - choice.table.begin());
    for (std::size_t i = choice.chosen + 1; i < choice.table.size(); ++i)
      if (may(choice.table[i]) && choice.table[i].worst <= least->worst + kLossTie &&
          simplicity(choice.table[i]) < simplicity(choice.choice()))
        choice.chosen = i;
    choices.push_back(std::move(choice));
  }
  return choices;
}

std::vector<TunedChoice> default_entries(const std::vector<DefaultChoice>& choices) {
  std::vector<TunedChoice> entries;
  for (const DefaultChoice& choice : choices)
    if (!choice.is_default())
      entries.push_back({choice.problem,
                         {},
                         choice.choice().variant,
                         choice.choice().parameters,
                         "",
                         kernels::Evidence::measured,
                         choice.choice().speedup});
  return entries;
}

}  // namespace outgrad::autotune
