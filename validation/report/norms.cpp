// LayerNorm and RMSNorm from the output: channels of checkpoints, and the bounds under attack.
#include "validation/report/sections.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>

#include "kernels/support/statistics.h"

namespace outgrad::validation {

using namespace page;

namespace {
std::string stability_command(const StabilityFile& file) {
  return fmt::format("./outgrad stability {} --format {}", file.source.empty() ? "--gamma ..." : quoted(shown_path(file.source)), quoted(file.format));
}

std::string source_name(const StabilityFile& file) {
  return file.source.empty() ? "given gamma and beta" : quoted(std::filesystem::path(file.source).filename().string());
}

/// Channels by log10 of rho. The ends of the axis collect what lies beyond, including 0 (no beta) and infinity (gamma
/// = 0).
Plot rho_plot(const StabilityFile& file) {
  constexpr double kReach = 4, kStep = 0.1;
  constexpr int kBins = static_cast<int>(2 * kReach / kStep);
  std::vector<std::array<int, kChannelClasses.size()>> bins(kBins);
  for (const NormResult& norm : file.norms) {
    for (const ChannelResult& channel : norm.channels) {
      const double place = (std::log10(channel.rho) + kReach) / kStep;  // -inf for 0
      const auto bin = static_cast<size_t>(std::clamp(place, 0.0, kBins - 1.0));
      const auto of_class = std::find(kChannelClasses.begin(), kChannelClasses.end(), channel.channel_class) - kChannelClasses.begin();
      ++bins[bin][static_cast<size_t>(of_class)];
    }
  }
  // Counts are stacked: each class is drawn over the sum of the classes before it, from the bottom of the axis.
  std::array<Series, 3> steps{{{"stable", "pale", "steps"}, {"degraded", "orange", "steps"}, {"unstable or gamma = 0", "red", "steps"}}};
  for (int i = 0; i <= kBins; ++i) {
    for (Series& one : steps) one.x.push_back(std::pow(10.0, -kReach + i * kStep));
    if (i == kBins) break;  // the last edge
    const auto& [stable, degraded, unstable, zero] = bins[static_cast<size_t>(i)];
    const std::array counts{stable + degraded + unstable + zero, degraded + unstable + zero, unstable + zero};
    for (size_t k = 0; k < counts.size(); ++k) steps[k].y.push_back(counts[k] > 0 ? counts[k] : std::nan(""));
  }
  return {fmt::format("Channels of {} with y in {}, counted by rho = |beta / gamma| and class", source_name(file), quoted(file.format)),
          "y in " + quoted(file.format),
          {.label = "rho = |beta / gamma|", .log = 10, .from = std::pow(10.0, -kReach), .to = std::pow(10.0, kReach)},
          {.label = "channels", .log = 10, .from = 0.7},
          {steps.begin(), steps.end()},
          460,
          280};
}

Table worst_channels(const StabilityFile& file) {
  constexpr size_t kShown = 8;
  std::vector<const ChannelResult*> channels;
  for (const NormResult& norm : file.norms) {
    for (const ChannelResult& channel : norm.channels) channels.push_back(&channel);
  }
  const size_t shown = std::min(kShown, channels.size());
  std::partial_sort(channels.begin(), channels.begin() + static_cast<std::ptrdiff_t>(shown), channels.end(),
                    [](const ChannelResult* a, const ChannelResult* b) { return a->bits_lost > b->bits_lost; });
  Table table{
      fmt::format("The worst channels of {} with y in {}: error bounds of rows whose |x\u0302| stays under {:g}.", source_name(file), quoted(file.format),
                  file.x_hat_max),
      stability_command(file),
      {words("layer"), {"channel"}, {"gamma"}, {"beta"}, {"rho"}, {"bits lost"}, {"error of x\u0302", "bound"}, {"dgamma", "bound, a row"}, words("class")},
      {}};
  for (size_t k = 0; k < shown; ++k) {
    const ChannelResult& c = *channels[k];
    table.rows.push_back({quoted(c.layer),
                          fmt::format("{}", c.index),
                          scientific(c.gamma),
                          scientific(c.beta),
                          scientific(c.rho),
                          std::isfinite(c.bits_lost) ? fmt::format("{:.1f}", c.bits_lost) : "all",
                          scientific(c.x_hat),
                          scientific(c.dgamma),
                          {c.channel_class, c.channel_class == "stable"     ? Tone::normal
                                            : c.channel_class == "degraded" ? Tone::muted
                                                                            : Tone::bad}});
  }
  return table;
}

/// Files of one source are placed together, with their formats side by side.
std::vector<std::vector<const StabilityFile*>> by_source(const std::vector<StabilityFile>& files) {
  std::vector<std::vector<const StabilityFile*>> groups;
  for (const StabilityFile& file : files) {
    const auto same = [&](const auto& group) { return group.front()->source == file.source; };
    const auto found = std::find_if(groups.begin(), groups.end(), same);
    if (found == groups.end())
      groups.push_back({&file});
    else
      found->push_back(&file);
  }
  return groups;
}

Table layers_table(const StabilityFile& file) {
  Table layers{fmt::format("{}, y in {}; rows with |mean| rstd up to {:g}, |dy| up to {:g}, eps = {:g}, tau = {:g}. Error of dx: certified, rms "
                           "over a row, relative to rstd max|dy| rms(gamma). Error of dgamma: an estimate of the relative L2 error.",
                           source_name(file), quoted(file.format), file.mean_ratio, file.dy_max, file.eps, file.tau),
               stability_command(file),
               {words("layer"),
                {"N"},
                {"stable"},
                {"degraded"},
                {"unstable"},
                {"gamma = 0"},
                {"rho", "median"},
                {"rho", "largest"},
                {"dx", "all from y"},
                {"dx", "by policy"},
                {"dgamma", "estimate"},
                words("policy"),
                {"side buffer", "bytes a row"}},
               {}};
  for (const NormResult& n : file.norms) {
    std::vector<Cell> row{quoted(n.name), fmt::format("{}", n.columns)};
    for (const int count : n.classes) row.emplace_back(fmt::format("{}", count));
    for (const double v : {n.rho_median, n.rho_max, n.dx_from_output, n.dx_recommended, n.dgamma_estimate}) row.emplace_back(scientific(v));
    row.emplace_back(quoted(n.policy));
    row.emplace_back(fmt::format("{}", n.side_buffer_bytes));
    layers.rows.push_back(std::move(row));
  }
  return layers;
}

// ---- under attack ---------------------------------------------------------------------------------------------------

constexpr std::array<const char*, 3> kGradients{"dx", "dgamma", "dbeta"};

/// The formats of y, in the order of the cases.
std::vector<std::string> formats_of(const AttackFile& attack) {
  std::vector<std::string> formats;
  for (const AttackedCase& one : attack.cases) {
    if (std::find(formats.begin(), formats.end(), one.format) == formats.end()) formats.push_back(one.format);
  }
  return formats;
}

/// The tightness of every case, against the length of its rows.
Plot tightness_plot(const AttackFile& attack, const std::string& format) {
  constexpr double kMost = 1e4;  // rows of one or two elements, whose gradients almost vanish, lie beyond
  constexpr double kShortest = 0.6, kLongest = 131072;
  constexpr std::array<const char*, 3> kPointColours{"blue", "green", "orange"};
  Plot plot{format + ": bound over largest error found, case by case, over the length N of a row; every case at or above 1",
            format + ": bound / largest error found",
            {.label = "N", .log = 2, .from = kShortest, .to = kLongest},
            {.log = 10, .from = 0.8, .to = kMost * 1.3},
            {}};
  for (const int length : {1, 2, 3, 7, 16, 64, 257, 1024, 65536}) plot.x.ticks.emplace_back(length, fmt::format("{}", length));
  for (size_t k = 0; k < kGradients.size(); ++k) {
    Series& points = plot.series.emplace_back(Series{kGradients[k], kPointColours[k], "small dots"});
    for (const AttackedCase& one : attack.cases) {
      const AttackedBound* bound = one.format == format ? one.of(kGradients[k]) : nullptr;
      // Gradients are drawn slightly apart, so that none hides another.
      if (bound && bound->tightness) points.add(one.columns * std::exp2(0.22 * (static_cast<double>(k) - 1)), std::min(*bound->tightness, kMost));
    }
  }
  plot.series.push_back({"violated below", "red", "line", {kShortest, kLongest}, {1, 1}});
  plot.series.push_back({"", "grey", "dashed", {kShortest, kLongest}, {4, 4}});
  return plot;
}

/// Cases grouped by `key`, with the median tightness of each gradient in each format.
template <class Key>
void add_groups(const AttackFile& attack, const char* what, Key key, Table& table) {
  std::vector<std::string> names;
  for (const AttackedCase& one : attack.cases) {
    if (std::find(names.begin(), names.end(), key(one)) == names.end()) names.push_back(key(one));
  }
  for (const std::string& name : names) {
    std::vector<Cell> row{what, quoted(name)};
    int cases = 0;
    double violations = 0;
    std::vector<Cell> medians;
    for (const std::string& format : formats_of(attack)) {
      for (const char* gradient : kGradients) {
        std::vector<double> found;
        for (const AttackedCase& one : attack.cases) {
          if (key(one) != name || one.format != format) continue;
          if (const AttackedBound* bound = one.of(gradient)) {
            violations += bound->violations;
            if (bound->tightness) found.push_back(*bound->tightness);
          }
          cases += gradient == kGradients[0] ? 1 : 0;
        }
        medians.push_back(found.empty() ? Cell("-", Tone::muted) : Cell(scientific(kernels::median(found))));
      }
    }
    row.emplace_back(fmt::format("{}", cases));
    row.emplace_back(fmt::format("{:.0f}", violations), violations > 0 ? Tone::bad : Tone::normal);
    row.insert(row.end(), medians.begin(), medians.end());
    table.rows.push_back(std::move(row));
  }
}

/// The largest errors of four ways to compute the same gradient on the same rows.
Table ways_table(const AttackFile& attack) {
  Table table{
      "Four ways to the same gradient on the rows that the search found, largest error in units of our bound, N >= 2: ours (with the side "
      "buffer where "
      "the policy says so), from the input x in the same precision, and NVIDIA Apex's two ways from the output, by our own implementation "
      "of its formulas. "
      "Ours stays at or below 1, or the bound is broken.",
      kAttackCommand,
      {words("gamma, beta"),
       words("y in"),
       {"dx", "ours"},
       {"dx", "from the input"},
       {"dx", "gamma clamped"},
       {"dx", "unguarded"},
       {"dgamma", "ours"},
       {"dgamma", "from the input"},
       {"dgamma", "gamma clamped"},
       {"dgamma", "unguarded"}},
      {}};
  std::vector<std::string> names;
  for (const AttackedCase& one : attack.cases) {
    if (std::find(names.begin(), names.end(), one.parameters) == names.end()) names.push_back(one.parameters);
  }
  for (const std::string& name : names) {
    for (const std::string& format : formats_of(attack)) {
      std::vector<Cell> row{quoted(name), quoted(format)};
      bool any = false;
      for (const char* gradient : {"dx", "dgamma"}) {
        std::array<double, 4> most{};
        for (const AttackedCase& one : attack.cases) {
          const AttackedBound* bound = one.parameters == name && one.format == format && one.columns >= 2 ? one.of(gradient) : nullptr;
          if (!bound) continue;
          any = true;
          most[0] = std::max(most[0], bound->ours);
          for (size_t i = 0; i < kPeerWays.size(); ++i) most[i + 1] = std::max(most[i + 1], bound->peers[i]);
        }
        for (const double error : most) row.emplace_back(scientific(error), error > 1 ? Tone::bad : Tone::normal);
      }
      if (any) table.rows.push_back(std::move(row));
    }
  }
  return table;
}

}  // namespace

Section channels_section(const Results& results) {
  Section section{"Channel stability", {}};
  if (results.stability.empty()) {
    section.blocks.push_back(nothing("LayerNorm channels of a checkpoint", "./outgrad stability CHECKPOINT --format FORMAT"));
    return section;
  }
  section.blocks.push_back(
      Paragraph{"The backward pass takes x\u0302 = (y - beta) / gamma from the stored y, so a channel's rho = |beta / gamma| decides how "
                "much of it is left. A channel is stable if it loses at most one bit, degraded beyond that, unstable if the storage error "
                "of x\u0302 exceeds tau. The policy from_output reads every channel from y; side_buffer keeps x\u0302 of the unstable ones "
                "in fp32. Nothing is clamped."});
  for (const auto& group : by_source(results.stability)) {
    section.blocks.push_back(Heading{source_name(*group.front())});
    std::string formats;
    Figure figure{"", "", {}};
    for (const StabilityFile* file : group) {
      figure.plots.push_back(rho_plot(*file));
      formats += (formats.empty() ? "" : ", ") + quoted(file->format);
    }
    figure.caption = "Channels by rho, classed for y in " + formats + "; the first and the last bar gather what lies beyond.";
    figure.command = stability_command(*group.front());
    section.blocks.push_back(std::move(figure));
    for (const StabilityFile* file : group) section.blocks.push_back(layers_table(*file));
    for (const StabilityFile* file : group) section.blocks.push_back(worst_channels(*file));
  }
  return section;
}

Section attack_section(const Results& results) {
  Section section{"Norm bounds under attack", {}};
  if (results.attacks.empty()) {
    section.blocks.push_back(nothing("Search against the bounds of LayerNorm and RMSNorm", kAttackCommand));
    return section;
  }
  for (const AttackFile& attack : results.attacks) {
    std::string medians;
    for (const auto& [gradient, value] : attack.median_of_gradient) medians += fmt::format("{}{} {:.2f}", medians.empty() ? "" : ", ", gradient, value);
    section.blocks.push_back(
        Paragraph{fmt::format("A search by gradient ascent and lattice moves over x and dy tried to break every bound on dx, dgamma, "
                              "dbeta: {} cases, {:.4g} evaluations, "
                              "{:.0f} violations. Bound over largest error found: median {:.2f} ({}), at most 4 in {:.0f}%.",
                              attack.cases.size(), attack.evaluations, attack.violations, attack.median_tightness, medians, 100 * attack.share_within_4),
                  attack.violations > 0 ? Tone::bad : Tone::normal});
    Figure figure{
        "How near the search came: one point a case, norm and gradient. On the red line the bound is reached; the dashed line is 4.", kAttackCommand, {}};
    for (const std::string& format : formats_of(attack)) figure.plots.push_back(tightness_plot(attack, format));
    section.blocks.push_back(std::move(figure));
    section.blocks.push_back(ways_table(attack));
    Table groups{
        "Median of bound / largest error found, by what the parameters, the rows and their length are. Few errors show where a gradient "
        "all but vanishes.",
        kAttackCommand,
        {words("by"), words("case"), {"cases"}, {"violations"}},
        {}};
    for (const std::string& format : formats_of(attack)) {
      for (const char* gradient : kGradients) groups.columns.push_back({gradient, quoted(format)});
    }
    add_groups(attack, "gamma, beta", [](const AttackedCase& one) { return one.parameters; }, groups);
    add_groups(attack, "rows", [](const AttackedCase& one) { return one.x; }, groups);
    add_groups(attack, "norm", [](const AttackedCase& one) { return one.norm; }, groups);
    add_groups(attack, "N", [](const AttackedCase& one) { return fmt::format("{}", one.columns); }, groups);
    section.blocks.push_back(std::move(groups));
  }
  return section;
}

}  // namespace outgrad::validation
