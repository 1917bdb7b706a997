// Bandwidths, shares and intervals from the rounds that were kept, and the rows that are printed of them.
#include "autotune/bench/group.h"

#include <algorithm>
#include <cstdio>

#include "autotune/bench/compare.h"
#include "autotune/bench/stores.h"
#include "autotune/space/accuracy.h"
#include "kernels/support/statistics.h"

namespace outgrad::autotune {

using nlohmann::json;

double BenchGroup::gb_per_s(const BenchCase& which) const {
  return which.bytes / kernels::median(kept_of(which.ns, kept()));
}

Interval BenchGroup::share_of_triad(const BenchCase& which) const {
  const Interval ratio = ratio_interval(cases.front().ns, which.ns, kept());
  const double scale = which.bytes / cases.front().bytes;
  return {ratio.median * scale, ratio.low * scale, ratio.high * scale};
}

Interval BenchGroup::speed_against(const BenchCase& which, const std::string& peer) const {
  const auto other =
      std::find_if(cases.begin(), cases.end(), [&](const BenchCase& c) { return c.name == peer; });
  if (other == cases.end()) return {0, 0, 0};
  const Interval ratio = ratio_interval(other->ns, which.ns, kept());
  const double scale = which.elements / other->elements;
  return {ratio.median * scale, ratio.low * scale, ratio.high * scale};
}

void rate(std::vector<StoreSpeed>& stores, const std::vector<std::vector<double>>& ns) {
  const std::vector<bool> kept = kept_rounds(ns.front());
  for (std::size_t k = 0; k < stores.size(); ++k) {
    stores[k].forward = ratio_interval(ns[1], ns[2 * k + 1], kept);
    stores[k].backward = ratio_interval(ns[2], ns[2 * k + 2], kept);
    stores[k].kept = kept;
  }
}

json to_json(const BenchGroup& group) {
  json cases = json::array();
  const std::vector<bool> kept = group.kept();
  for (const BenchCase& which : group.cases) {
    const json share = to_json(group.share_of_triad(which), kept);
    cases.push_back({{"name", which.name},
                     {"variant", which.variant},
                     {"rung", which.rung},
                     {"elements", which.elements},
                     {"bytes", which.bytes},
                     {"ns", which.ns},
                     {"status", share["status"]},
                     {"gb_per_s", share["median"].is_null() ? json() : json(group.gb_per_s(which))},
                     {"share_of_triad", share}});
    cases.back().update(claims_json(which.fit));
    if (const Interval speed = group.speed_against(which, "torch_" + which.name); speed.median > 0)
      cases.back()["against_torch"] = to_json(speed, kept);
  }
  return {{"format", name_of(group.format)},
          {"discarded_rounds", kept.size() - count_of(kept)},
          {"cases", cases}};
}

namespace {

template <class... Value>
std::string printed(const char* format, Value... values) {
  char text[256];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

}  // namespace

std::string text_of(const BenchGroup& group) {
  const std::vector<bool> kept = group.kept();
  std::string text = printed("%s, %.0f elements, %zu rounds, %zu of them discarded", name_of(group.format),
                             group.cases[2].elements, kept.size(), kept.size() - count_of(kept));
  text += (group.no_torch.empty() ? "" : "; no PyTorch: " + group.no_torch) + "\n";
  for (const BenchCase& which : group.cases) {
    const Interval share = group.share_of_triad(which);
    text += printed("  %-27s ", which.name.c_str());
    if (is_figure(share, count_of(kept))) {
      const double bandwidth = group.gb_per_s(which);
      text += printed("%7.2f GB/s  %5.1f%% of triad [%.1f, %.1f]  %6.3f G elements/s  ", bandwidth,
                      100 * share.median, 100 * share.low, 100 * share.high,
                      bandwidth * which.elements / which.bytes);
    } else {
      text += too_noisy(share, kept, 100) + "% of triad  ";
    }
    text += which.rung.empty() || which.variant == which.rung ? which.variant
                                                              : which.variant + " (" + which.rung + ")";
    if (which.fit.name != nullptr) text += "; " + claims_text(which.fit);
    for (const char* peer : {"torch", "libm"}) {
      const Interval speed = group.speed_against(which, std::string(peer) + "_" + which.name);
      if (!(speed.median > 0)) continue;
      text += is_figure(speed, count_of(kept))
                  ? printed("  %.2fx [%.2f, %.2f] %s", speed.median, speed.low, speed.high, peer)
                  : printed("  too noisy [%.2f, %.2f]x %s", speed.low, speed.high, peer);
    }
    text += "\n";
  }
  return text;
}

}  // namespace outgrad::autotune
