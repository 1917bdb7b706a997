// What is kept for the backward pass of an activation, in how few bits, against the error of its gradient.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "validation/report/sections.h"

namespace outgrad::validation {

using namespace page;

namespace {

constexpr std::size_t kSigma1 = 1;  // in the distributions of a front
constexpr const char* kCommand = "./outgrad front --activation NAME --foreign FILE...";

/// The bits beyond y against an error; a name at each point that nothing dominates.
Plot plot_of(const FrontResult& front, const char* heading, const std::function<double(const StoreResult&)>& error) {
  Plot plot{fmt::format("{} of each store of {} over the bits that it keeps beyond y", heading, front.activation),
            heading,
            {.label = "bits an element beyond y", .from = -0.5},
            {.log = 2},
            {{"ours", "blue", "dots"}, {"published", "orange", "squares"}}};
  for (const StoreResult& store : front.stores) {
    Series& series = plot.series[store.origin == "outgrad" ? 0 : 1];
    series.add(store.beyond, error(store));
    series.notes.push_back(store.dominated_by.empty() ? quoted(store.name) : "");
  }
  std::erase_if(plot.series, [](const Series& series) { return series.x.empty(); });
  return plot;
}

Table table_of(const FrontResult& front) {
  Table table{fmt::format("Stores of {}, for every x of bf16. Shrinkage is E(g f') / E(f'^2). A store is dominated by one that needs no more bits and is no "
                          "worse in its largest error and its rms.",
                          quoted(front.activation)),
              kCommand,
              {words("store"), {"bits beyond y"}, {"bits in all"}, {"largest error", "proven for every x"}, {"largest error", "found"}},
              {}};
  const std::vector<StoreErrors>& distributions = front.stores.front().under;
  for (const StoreErrors& under : distributions) table.columns.push_back({"rms", quoted(under.x)});
  const std::size_t one = std::min(kSigma1, distributions.size() - 1);
  table.columns.push_back({"bias", quoted(distributions[one].x)});
  table.columns.push_back({"shrinkage", quoted(distributions[one].x)});
  const bool timed = std::any_of(front.stores.begin(), front.stores.end(), [](const StoreResult& store) { return store.forward_speed.has_value(); });
  if (timed) table.columns.insert(table.columns.end(), {{"speed", "forward, over y and a bit"}, {"speed", "backward"}});
  table.columns.push_back(words("dominated by"));
  for (const StoreResult& store : front.stores) {
    std::vector<Cell> row{quoted(store.name), fmt::format("{:.4g}", store.beyond), fmt::format("{:.4g}", store.all),
                          store.proven ? Cell(three_digits_up(*store.proven)) : Cell("-", Tone::muted), Cell(scientific(store.found()))};
    for (const StoreErrors& under : store.under) row.emplace_back(scientific(under.rms));
    row.emplace_back(fmt::format("{:+.2g}", store.under[one].bias));
    row.emplace_back(fmt::format("{:.5f}", store.under[one].shrinkage));
    const auto speed = [&](const std::optional<double>& ratio) { row.push_back(ratio ? Cell(fmt::format("{:.2f}", *ratio)) : Cell("-", Tone::muted)); };
    if (timed) speed(store.forward_speed), speed(store.backward_speed);
    row.emplace_back(quoted(store.dominated_by));
    table.rows.push_back(std::move(row));
  }
  return table;
}

/// What the sweeps of stores found, beside what their headers prove.
Table swept_table(const std::vector<StoreSweep>& sweeps) {
  Table table{
      "Codes of f'(x), y that carries its branch, and y in 8 or 4 bits: the largest error over every x of the format, of a dithered code over every dither "
      "too, and of y at a scale or in blocks over some of these from one end of the claims to the other, beside the bound that its header proves for every x.",
      kStoreCommand,
      {words("header"),
       words("store"),
       words("x in"),
       {"patterns of x"},
       {"largest error", "proven"},
       {"largest error", "found"},
       {"found / proven"},
       words("at x ="),
       {"rms", quoted("N(0, 1^2)")},
       {"bias", quoted("N(0, 1^2)")},
       {"bias of one x", "dithered, found"},
       {"bias of one x", "proven"}},
      {}};
  for (const StoreSweep& sweep : sweeps) {
    for (const SweptStore& store : sweep.stores) {
      const bool holds = store.total.bound <= store.proven;
      std::vector<Cell> row{quoted(sweep.fit),
                            store.name,
                            sweep.format,
                            grouped(store.patterns),
                            three_digits_up(store.proven),
                            scientific(store.total.value),
                            {rounded_up(store.total.bound / store.proven, 6), holds ? Tone::normal : Tone::bad},
                            quoted(store.total.worst())};
      const bool weighed = store.under.size() > kSigma1;
      row.push_back(weighed ? Cell(scientific(store.under[kSigma1].rms)) : Cell("-", Tone::muted));
      row.push_back(weighed ? Cell(fmt::format("{:+.2g}", store.under[kSigma1].bias)) : Cell("-", Tone::muted));
      row.push_back(store.bias ? Cell(three_digits_up(*store.bias), *store.bias <= *store.proven_bias ? Tone::normal : Tone::bad) : Cell("-", Tone::muted));
      row.push_back(store.bias ? Cell(three_digits_up(*store.proven_bias)) : Cell("-", Tone::muted));
      table.rows.push_back(std::move(row));
    }
  }
  return table;
}

}  // namespace

double StoreResult::found() const {
  double most = 0;
  for (const StoreErrors& each : under) most = std::max(most, each.greatest);
  return most;
}

Section bits_section(const Results& results) {
  Section section{"Bits kept against the error of the gradient", {}};
  if (results.fronts.empty()) section.blocks.push_back(nothing("Fronts of bits and errors", kCommand));
  for (const FrontResult& front : results.fronts) {
    Figure figure{"Names stand at the stores that no other dominates. No single figure ranks stores: rms, bias and shrinkage are in the table.", kCommand, {}};
    figure.plots.push_back(plot_of(front, "largest error", [](const StoreResult& store) { return store.proven.value_or(store.found()); }));
    if (front.stores.front().under.size() > kSigma1) {
      figure.plots.push_back(plot_of(front, "rms error, x of N(0, 1)", [](const StoreResult& store) { return store.under[kSigma1].rms; }));
    }
    section.blocks.push_back(std::move(figure));
    section.blocks.push_back(table_of(front));
  }
  if (!results.store_sweeps.empty()) section.blocks.push_back(swept_table(results.store_sweeps));
  return section;
}

}  // namespace outgrad::validation
