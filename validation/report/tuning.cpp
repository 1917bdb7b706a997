// The tuner's latest run on each kernel.
#include "validation/report/sections.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace outgrad::validation {

using namespace page;

namespace {

/// The ulp class is the default of a 16-bit format if it costs at most this share of additional time. Somebody who then
/// gives up the tails would gain nothing.
constexpr double kDefaultClassCost = 0.1;

/// Whether the timings of a format make the ulp class its default, as a sentence.
std::string default_class(const TuningResult& t) {
  const auto ulp = std::find_if(t.fits.begin(), t.fits.end(), [](const FitSpeed& f) { return f.accuracy.starts_with("ulp"); });
  if (ulp == t.fits.end()) return fmt::format("{}: the class ulp was not timed (`./outgrad tune --accuracy any` times it).", t.format);
  const double least = 1 / (1 + kDefaultClassCost);
  const std::string measured = fmt::format("{}: the class ulp (`{}`) runs at {:.3f} [{:.3f}, {:.3f}] of the default's speed", t.format, quoted(ulp->name),
                                           ulp->speedup, ulp->low, ulp->high);
  if (ulp->high < least) return measured + fmt::format("; at {:.3f} or more it would be the default, so the class abs stays it.", least);
  if (ulp->low >= least) return measured + fmt::format(", at least {:.3f}: it can be the default here.", least);
  return measured + fmt::format("; whether that is the {:.3f} that would make it the default is undecided.", least);
}

}  // namespace

Section tuning_section(const Results& results) {
  Section section{"Tuning", {}};
  if (results.tuning.empty()) {
    section.blocks.push_back(nothing("Kernels of this machine", "./outgrad tune"));
    return section;
  }
  Table winners{
      "Winners of the latest run. Every candidate was accepted by bit equality with the reference before it was timed; the ceiling is a "
      "triad (backward) or a copy (forward) over arrays of the same size, timed in the same rounds.",
      "./outgrad tune",
      {words("machine"),
       words("kernel"),
       words("format"),
       words("size"),
       words("winner"),
       {"GB/s"},
       {"share of ceiling"},
       words("ceiling"),
       {"against the default", "ratio of speeds, interval"},
       {"timed"},
       {"rejected"}},
      {}};
  Table rejections{"Rejected candidates, with the stage they did not survive.",
                   "./outgrad tune",
                   {words("machine"), words("kernel"), words("format"), words("variant"), words("stage"), words("reason"), words("detail")},
                   {}};
  for (const TuningResult& t : results.tuning) {
    const bool won = !t.winner.empty();
    const std::string ratio = !won      ? "-"
                              : !t.gain ? "the default, no gain"
                                        : fmt::format("{:.3f} [{:.3f}, {:.3f}] at {:g}%", t.speedup, t.speedup_low, t.speedup_high, 100 * t.confidence);
    winners.rows.push_back({quoted(t.machine), quoted(t.kernel), quoted(t.format), quoted(t.size), won ? "`" + quoted(t.winner) + "`" : "none",
                            won ? fmt::format("{:.1f}", t.gb_per_s) : "-", won ? fmt::format("{:.0f}%", 100 * t.share) : "-", won ? quoted(t.ceiling) : "-",
                            ratio, fmt::format("{}", t.timed), fmt::format("{}", t.rejected.size())});
    for (const Rejection& r : t.rejected) {
      rejections.rows.push_back(
          {quoted(t.machine), quoted(t.kernel), quoted(t.format), "`" + quoted(r.variant) + "`", quoted(r.stage), quoted(r.reason), quoted(r.detail)});
    }
  }
  std::vector<std::string> machines;
  for (const TuningResult& t : results.tuning) {
    const std::string machine = fmt::format("{}; {}", quoted(t.machine), quoted(t.compiler));
    if (std::ranges::find(machines, machine) == machines.end()) machines.push_back(machine);
  }
  section.blocks.push_back(
      Paragraph{fmt::format("{}. Timings are of these machines and of the moment, and no verdict depends on them.", fmt::join(machines, ". "))});
  section.blocks.push_back(std::move(winners));
  Table fits{"Certified fits, each in its fastest timed variant: what an accuracy class costs.",
             "./outgrad tune",
             {words("machine"), words("kernel"), words("format"), words("fit"), words("class"), {"speed", "against the default, interval"}},
             {}};
  std::string classes;
  for (const TuningResult& t : results.tuning) {
    for (const FitSpeed& f : t.fits) {
      fits.rows.push_back({quoted(t.machine), quoted(t.kernel), quoted(t.format), "`" + quoted(f.name) + "`", f.accuracy.empty() ? "-" : quoted(f.accuracy),
                           fmt::format("{:.3f} [{:.3f}, {:.3f}]", f.speedup, f.low, f.high)});
    }
    if (t.kernel == "gelu_backward" && t.format != "f32" && !t.fits.empty()) classes += (classes.empty() ? "" : " ") + default_class(t);
  }
  if (!fits.rows.empty()) section.blocks.push_back(std::move(fits));
  if (!classes.empty()) section.blocks.push_back(Paragraph{"The default class. " + classes});
  if (!rejections.rows.empty())
    section.blocks.push_back(std::move(rejections));
  else
    section.blocks.push_back(Paragraph{"No candidate was rejected."});
  return section;
}

}  // namespace outgrad::validation
