// Published coefficients beside ours, the bytes that training keeps, and the effect of other gradients on training.
#include "validation/report/sections.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace outgrad::validation {

using namespace page;

namespace {

/// The ends of the table's intervals: the asymptotes, x*, and the ends of Tempo's pieces (y = 3 is x = 3.004).
constexpr std::array<double, 9> kIntervalEnds{-8, -2, -0.75, 0, 0.5, 1.13, 3, 5, 8};

/// The greatest |error| of a curve over the bins whose middle lies in [from, to).
double greatest_within(const SweptDomain& domain, double from, double to) {
  double greatest = 0;
  for (const ErrorBin& p : domain.curve) {
    if (p.x >= from && p.x < to) greatest = std::max({greatest, std::abs(p.least), std::abs(p.greatest)});
  }
  return greatest;
}

/// GELU in f32 for every x; ours comes first.
std::vector<const SweepResult*> comparable(const Results& results) {
  std::vector<const SweepResult*> sweeps;
  if (const SweepResult* ours = results.sweep_of("f32")) sweeps.push_back(ours);
  for (const SweepResult& sweep : results.foreign) {
    if (sweep.activation == "gelu" && sweep.format == "f32") sweeps.push_back(&sweep);
  }
  return sweeps;
}

constexpr const char* kAuditCommand = "./outgrad validate --foreign notebooks_data/foreign/NAME.json --format FORMAT";

Plot beside_plot(const std::vector<const SweepResult*>& sweeps) {
  constexpr std::array<const char*, 6> kLineColours{"blue", "red", "orange", "violet", "green", "grey"};
  Plot plot{"Largest error of g over x from -8 to 8: ours far below the published coefficients",
            "largest error of g, y in f32",
            {.label = "x", .from = -8, .to = 8},
            {.log = 2, .from = 0x1p-36, .to = 0x1p3},
            {}};
  for (size_t k = 0; k < std::min(sweeps.size(), kLineColours.size()); ++k) {
    Series& line = plot.series.emplace_back(Series{quoted(sweeps[k]->fit), kLineColours[k], "line"});
    const std::vector<ErrorBin>& curve = sweeps[k]->domains.back().curve;
    constexpr size_t kMostBins = 500;
    const size_t join = (curve.size() + kMostBins - 1) / kMostBins;
    for (size_t i = 0; i < curve.size(); i += join) {
      double most = 0;
      for (size_t n = i; n < std::min(i + join, curve.size()); ++n) most = std::max({most, std::abs(curve[n].least), std::abs(curve[n].greatest)});
      if (most > 0 && std::isfinite(most)) line.add(curve[i].x, most);
    }
  }
  return plot;
}

Table interval_table(const std::vector<const SweepResult*>& sweeps) {
  Table table{
      "Largest error by interval of x, y in f32, as the curves of the sweeps have it (a bin belongs to the interval that its middle lies "
      "in; the last row is over all x).",
      kAuditCommand,
      {{"x from"}, {"to"}},
      {}};
  for (const SweepResult* sweep : sweeps) table.columns.push_back({quoted(sweep->fit), "largest |g - f'|"});
  for (size_t i = 0; i + 1 < kIntervalEnds.size(); ++i) {
    std::vector<Cell> row{fmt::format("{:g}", kIntervalEnds[i]), fmt::format("{:g}", kIntervalEnds[i + 1])};
    for (const SweepResult* sweep : sweeps) row.emplace_back(scientific(greatest_within(sweep->domains.back(), kIntervalEnds[i], kIntervalEnds[i + 1])));
    table.rows.push_back(std::move(row));
  }
  std::vector<Cell> all{"-inf", "inf"};
  for (const SweepResult* sweep : sweeps) all.emplace_back(three_digits_up(sweep->domains.back().total.bound));
  table.rows.push_back(std::move(all));
  return table;
}

/// Published coefficients, in the same sweep as ours.
Table audit_table(const Results& results) {
  Table audit{
      "Published coefficients, as published, through the same exhaustive sweep as ours: every bit pattern of x, the same exact derivative, "
      "the "
      "same T, O and R. O is the least T of any function of what the backward pass is given: (y, bit), or a code of x.",
      kAuditCommand,
      {words("coefficients"),
       words("activation"),
       words("backward is given"),
       words("format"),
       words("every x in"),
       {"T", "exhaustive"},
       {"at x ="},
       {"O", "exhaustive"},
       {"R", "exhaustive"},
       {"T / O", "exhaustive"},
       {"rms T", "x in [-8, 8)"},
       {"wrong NaN, infinities"},
       {"T of ours", "same x and format"}},
      {}};
  for (const SweepResult& sweep : results.foreign) {
    const SweepResult* ours = nullptr;
    for (const SweepResult& one : results.sweeps) {
      if (!ours && one.activation == sweep.activation && one.format == sweep.format) ours = &one;
    }
    for (const SweptDomain& d : sweep.domains) {
      Cell same("not swept", Tone::muted);
      for (const SweptDomain& o : ours ? ours->domains : std::vector<SweptDomain>{}) {
        if (o.x_format == d.x_format) same = Cell(scientific(o.total.bound));
      }
      audit.rows.push_back({quoted(sweep.fit), sweep.activation, sweep.stored, sweep.format, d.x_format, scientific(d.total.bound), quoted(d.total.worst()),
                            scientific(d.oracle.value), scientific(d.regret.bound), fmt::format("{:.4g}", d.ratio), scientific(d.rms),
                            fmt::format("{}", d.wrong_special), same});
    }
  }
  return audit;
}

/// Published quantisers of activations: a row for each range, and one for groups that each have their own.
Table quantiser_table(const Results& results) {
  Table table{
      "Systems that keep x in a few bits and take f' from the number that these stand for, in their own arithmetic: the largest error of f' over "
      "every x of the range and every random number, bounded; where a code wraps, a large x becomes a small one. O is the least T of any function "
      "of the code. The mean signed error of x is over the random numbers, exact. rms is by quadrature; how often something wraps with a running range is "
      "simulated.",
      kAuditCommand,
      {words("quantiser"),
       {"bits", "an element"},
       words("format"),
       {"min, max"},
       {"T", "without wraps"},
       {"T", "wrapped"},
       {"O"},
       {"bias of x"},
       {"the maximum wraps", "probability"},
       {"rms T", "x of N(0, 1)"}},
      {}};
  const auto listed = [](const std::vector<std::pair<std::string, double>>& rms) {
    for (const auto& [x, value] : rms) {
      if (x == "N(0, 1^2)") return Cell(scientific(value));
    }
    return Cell("-", Tone::muted);
  };
  const Cell none("-", Tone::muted);
  for (const QuantiserResult& q : results.quantisers) {
    const std::vector<Cell> head{quoted(q.name), fmt::format("{:.4g}", q.bits), q.format};
    const auto add = [&](std::vector<Cell> cells) {
      std::vector<Cell>& row = table.rows.emplace_back(head);
      row.insert(row.end(), cells.begin(), cells.end());
    };
    for (const QuantisedRange& r : q.ranges) {
      add({fmt::format("{:.4g}, {:.4g}", r.min, r.max), three_digits_up(r.total), r.wrapped > 0 ? Cell(three_digits_up(r.wrapped), Tone::bad) : none,
           scientific(r.oracle), scientific(r.bias), scientific(r.maximum_wraps), listed(r.rms)});
    }
    if (!q.groups.empty() || q.wraps_most) {
      add({"each group's own", none, none, none, none,
           q.wraps_most ? Cell(fmt::format("mean {}, most {}", scientific(*q.wraps_mean), scientific(*q.wraps_most))) : none, listed(q.groups)});
    }
    if (q.running_wraps) {
      add({"running", none, none, none, none, fmt::format("{:.0f}% of steps", 100 * *q.running_wraps), none});
    }
  }
  return table;
}

// ---- training -------------------------------------------------------------------------------------------------------

/// The mean training loss of every way on one text.
Plot training_plot(const TrainingResult& training, const std::string& text) {
  // Dashes make a line visible that lies under another.
  constexpr std::array<std::pair<const char*, const char*>, 8> kLines{{{"ink", "thick"},
                                                                       {"grey", "line"},
                                                                       {"blue", "dotted"},
                                                                       {"red", "dash-dotted"},
                                                                       {"orange", "line"},
                                                                       {"violet", "dashed"},
                                                                       {"green", "dotted"},
                                                                       {"pale", "dash-dotted"}}};
  Plot plot{"Mean training loss over the steps, a line for each way to take gradients, text: " + quoted(text),
            "training loss, " + quoted(text),
            {.label = "step"},
            {},
            {}};
  for (const TrainingCurve& curve : training.curves) {
    if (curve.text != text || plot.series.size() == kLines.size()) continue;
    const auto& [colour, mark] = kLines[plot.series.size()];
    Series& line = plot.series.emplace_back(Series{quoted(curve.way), colour, mark});
    for (size_t i = 0; i < curve.loss.size(); ++i) {
      if (curve.loss[i]) line.add(training.loss_steps[i], *curve.loss[i]);
    }
  }
  return plot;
}

/// The results at the end of training: differences from the runs with exact gradients, with their intervals.
Plot difference_plot(const TrainingResult& training) {
  std::vector<const TrainedWay*> ways;
  for (const TrainedWay& way : training.summary) {
    if (way.difference && way.low && way.high) ways.push_back(&way);
  }
  const double top = static_cast<double>(ways.size()) + 0.7;
  Axis names{.from = 0.3, .to = top};
  Series ends{"", "blue", "interval"};
  for (size_t i = 0; i < ways.size(); ++i) {
    const auto line = static_cast<double>(ways.size() - i);
    ends.add(*ways[i]->difference, line);
    ends.low.push_back(*ways[i]->low), ends.high.push_back(*ways[i]->high);
    names.ticks.emplace_back(line, quoted(ways[i]->way + ", " + ways[i]->text));
  }
  constexpr int kRowHeight = 17, kMargins = 90;
  return {"Validation loss at the end, difference from exact gradients with its interval, way by way",
          "validation loss - that of exact gradients",
          {.label = "nats per hidden byte"},
          names,
          {{"", "grey", "line", {0, 0}, {names.from, names.to}}, ends},
          460,
          std::max(190, kMargins + kRowHeight * static_cast<int>(ways.size()))};
}

}  // namespace

Section others_section(const Results& results) {
  Section section{"Beside others", {}};
  const std::vector<const SweepResult*> sweeps = comparable(results);
  if (results.foreign.empty()) {
    section.blocks.push_back(nothing("Published coefficients", kAuditCommand));
  } else {
    if (!sweeps.empty()) {
      section.blocks.push_back(
          Figure{"Ours and published coefficients for GELU over every f32 x, y (or its code) as each stores it: Tempo's pieces meet a square-root "
                 "branch point with polynomials in y, and one piece adds its centre where it should subtract it; steps of two bits cannot follow "
                 "f'.",
                 kAuditCommand,
                 {beside_plot(sweeps)}});
      section.blocks.push_back(interval_table(sweeps));
    }
    section.blocks.push_back(audit_table(results));
    for (const SweepResult& sweep : results.foreign) {
      if (sweep.format == "f32") section.blocks.push_back(Paragraph{"`" + quoted(sweep.fit) + "`: " + quoted(sweep.source), Tone::muted});
    }
  }
  if (!results.quantisers.empty()) {
    section.blocks.push_back(quantiser_table(results));
    std::vector<std::string> sources;
    for (const QuantiserResult& q : results.quantisers) {
      if (std::find(sources.begin(), sources.end(), q.source) != sources.end()) continue;
      sources.push_back(q.source);
      section.blocks.push_back(Paragraph{"`" + quoted(q.name) + "`: " + quoted(q.source), Tone::muted});
    }
  }
  std::string ours = "not measured", from_x = ours;
  const SweepResult* sweep = results.sweep_of("f32");
  if (sweep && sweep->domains.back().from_x) from_x = error_text(*sweep->domains.back().from_x);
  if (const BackwardHeader* header = results.backward_named("gelu_f32"))
    ours = error_text(header->bound_ab > 0 ? header->bound_ab : header->bound_a + header->bound_b);
  section.blocks.push_back(Paragraph{
      fmt::format("PyTorch's fp32 formula of GELU's derivative reads x, not y, and is off by up to {} (over every x from 2^-20 to "
                  "16 in magnitude, by this machine's erff and expf, in the sweep of f32). What compares with it is the error of our fit and evaluation, "
                  "A + B = {}, certified. What storing y in place of x adds is bounded from below by O, for every method.",
                  from_x, ours)});
  return section;
}

Section ledger_section(const Results& results) {
  Section section{"Bytes kept", {}};
  if (results.ledgers.empty()) {
    section.blocks.push_back(nothing("What training keeps for its backward pass", "python notebooks_data/studies/ledger.py --write"));
    return section;
  }
  for (const LedgerResult& ledger : results.ledgers) {
    const std::string command = quoted(ledger.command);
    std::vector<std::string> gib;
    for (const std::int64_t memory : ledger.memories) gib.push_back(std::to_string(memory));
    const std::string memories = fmt::format("{} GiB", fmt::join(gib, " / "));
    Table layers{fmt::format("What a layer keeps for the backward pass of a sequence of {} tokens, in MiB: counted by storage, parameters apart, on "
                             "tensors that have no values.",
                             ledger.length),
                 command,
                 {words("layer"), words("recipe")},
                 {}};
    Table models{
        "What a whole model keeps for a sequence, in MiB, and the largest batch: by arithmetic, from what weights, gradients and Adam's moments "
        "leave of a memory, not by a measurement.",
        command,
        {words("model"), words("recipe")},
        {}};
    for (const std::string& mode : ledger.modes) {
      layers.columns.push_back({quoted(mode), "MiB"});
      models.columns.push_back({quoted(mode), "MiB"});
      models.columns.push_back({"largest batch", quoted(mode + ", " + memories)});
    }
    for (const LedgerRow& row : ledger.layers) {
      std::vector<Cell> cells{quoted(row.of), quoted(row.recipe)};
      for (const double mib : row.mib) cells.push_back(fmt::format("{:.3f}", mib));
      layers.rows.push_back(std::move(cells));
    }
    for (const LedgerRow& row : ledger.models) {
      std::vector<Cell> cells{quoted(row.of), quoted(row.recipe)};
      for (size_t i = 0; i < row.mib.size(); ++i) {
        cells.push_back(fmt::format("{:.1f}", row.mib[i]));
        cells.push_back(fmt::format("{}", fmt::join(row.batches[i], " / ")));
      }
      models.rows.push_back(std::move(cells));
    }
    section.blocks.push_back(std::move(layers));
    section.blocks.push_back(std::move(models));
  }
  return section;
}

Section training_section(const Results& results) {
  Section section{"Training", {}};
  if (results.training.empty()) {
    section.blocks.push_back(nothing("The effect of these gradients on training", "python notebooks_data/studies/training.py --write"));
    return section;
  }
  for (const TrainingResult& training : results.training) {
    const std::string command = quoted(training.command);
    section.blocks.push_back(Paragraph{fmt::format(
        "A masked language model of {}, {} steps from {} seeds, the forward pass the same for every way to take gradients.{}", training.model, training.steps,
        training.seeds,
        training.noise
            ? fmt::format(" The exact gradient of another batch lies {} away in relative L2: what one batch is off by anyhow.", scientific(*training.noise))
            : "")});
    Figure curves{"Training loss, mean over the seeds; a line ends where a run of its way diverged.", command, {}};
    for (const std::string& text : training.texts) curves.plots.push_back(training_plot(training, text));
    curves.plots.push_back(difference_plot(training));
    section.blocks.push_back(std::move(curves));
    Table table{fmt::format("The end of training: validation loss in nats per hidden byte, its difference from the runs with exact gradients "
                            "paired by seed, with a {:g}% interval, "
                            "and how far the gradient of all parameters lies from the exact one at the same weights.",
                            100 * training.confidence),
                command,
                {words("text"),
                 words("gradients"),
                 {"runs ended"},
                 {"diverged"},
                 {"validation loss", "mean"},
                 {"difference", "from exact"},
                 {"interval"},
                 {"gradient's distance", "median, relative L2"},
                 {"gradient's distance", "greatest"}},
                {}};
    const auto shown = [](const std::optional<double>& v, const char* form) { return v ? Cell(fmt::format(fmt::runtime(form), *v)) : Cell("-", Tone::muted); };
    for (const TrainedWay& way : training.summary) {
      table.rows.push_back({quoted(way.text),
                            quoted(way.way),
                            fmt::format("{}", way.ended),
                            {fmt::format("{}", way.diverged), way.diverged > 0 ? Tone::bad : Tone::normal},
                            shown(way.loss, "{:.4f}"),
                            shown(way.difference, "{:+.2g}"),
                            way.low && way.high ? Cell(fmt::format("[{:+.2g}, {:+.2g}]", *way.low, *way.high)) : Cell("-", Tone::muted),
                            shown(way.distance_median, "{:.3g}"),
                            shown(way.distance_most, "{:.3g}")});
    }
    section.blocks.push_back(std::move(table));
  }
  return section;
}

}  // namespace outgrad::validation
