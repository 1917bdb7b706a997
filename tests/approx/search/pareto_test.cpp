// Fronts: covering is an order that keeps what makes a difference, costs are the evaluator's, and every point
// is what its specification gives.
#include "approx/search/pareto.h"

#include "approx/search/fitter.h"
#include "kernels/host/errors.h"
#include "kernels/support/files.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <random>

namespace outgrad::approx {
namespace {

using nlohmann::json;

const std::string kFolder = std::string(OUTGRAD_SOURCE_DIR) + "/notebooks_data/pareto";

/// Few different costs and errors within two bits of each other, so that most pairs are close.
std::vector<Merit> random_merits(int count) {
  std::mt19937 random(7);
  std::uniform_int_distribution<int> cost(10, 14);
  std::uniform_real_distribution<double> bits(-8, -6), ratio(1, 1.05);
  std::vector<Merit> all;
  for (int i = 0; i < count; ++i) {
    all.push_back({cost(random), cost(random), 64 * cost(random), std::exp2(bits(random)),
                   0.0106 * ratio(random), std::exp2(bits(random))});
  }
  return all;
}

bool equal(const Merit& a, const Merit& b) {
  return a.work == b.work && a.depth == b.depth && a.table_bytes == b.table_bytes &&
         a.a_plus_b == b.a_plus_b && a.total == b.total && a.regret == b.regret;
}

TEST(Pareto, OneCoversAnotherNeverBothWays) {
  const std::vector<Merit> all = random_merits(300);
  int covering = 0;
  for (const Merit& a : all) {
    for (const Merit& b : all) {
      if (!covers(a, b, Format::bf16)) continue;
      ++covering;
      EXPECT_FALSE(covers(b, a, Format::bf16));
    }
    EXPECT_FALSE(covers(a, a, Format::bf16));
  }
  EXPECT_GT(covering, 100);
}

TEST(Pareto, KeepsNoPointThatAnotherCoversAndDropsNoneThatNothingCovers) {
  std::vector<Merit> all = random_merits(300);
  all.push_back(all[3]);  // the same twice is one point
  const std::vector<size_t> kept = worth_choosing(all, Format::bf16);
  EXPECT_GT(kept.size(), 5u);
  EXPECT_LT(kept.size(), 150u);
  for (const size_t a : kept) {
    for (const size_t b : kept) EXPECT_FALSE(covers(all[a], all[b], Format::bf16));
  }
  for (size_t i = 0; i < all.size(); ++i) {
    if (std::find(kept.begin(), kept.end(), i) != kept.end()) continue;
    EXPECT_TRUE(std::any_of(kept.begin(), kept.end(), [&](size_t k) {
      return covers(all[k], all[i], Format::bf16) || equal(all[k], all[i]);
    })) << i;
  }
  // Whatever order they come in.
  std::vector<Merit> reversed(all.rbegin(), all.rend());
  const std::vector<size_t> again = worth_choosing(reversed, Format::bf16);
  ASSERT_EQ(again.size(), kept.size());
  for (size_t k = 0; k < kept.size(); ++k) EXPECT_TRUE(equal(all[kept[k]], reversed[again[k]]));
}

TEST(Pareto, TheFactorsAreWhatSeparatesPoints) {
  const Merit p{20, 14, 256, 0x1p-8, 0.011, 0x1p-8};
  const auto cheaper = [&](double bound, double total, double regret) {
    return Merit{19, 14, 256, p.a_plus_b * bound, p.total * total, p.regret * regret};
  };
  EXPECT_TRUE(covers(cheaper(1.41, 1.009, 1.41), p, Format::bf16));
  EXPECT_FALSE(covers(cheaper(1.42, 1, 1), p, Format::bf16));
  EXPECT_FALSE(covers(cheaper(1, 1.011, 1), p, Format::bf16));
  EXPECT_FALSE(covers(cheaper(1, 1, 1.42), p, Format::bf16));
  // Costs are compared as they are, each of them.
  EXPECT_FALSE(covers({19, 15, 256, 0x1p-9, 0.011, 0x1p-9}, p, Format::bf16));
  EXPECT_FALSE(covers({19, 14, 260, 0x1p-9, 0.011, 0x1p-9}, p, Format::bf16));
  // Below the format's resolution no error counts: 2^-10 in bf16, not so in f32.
  const Merit fine{20, 14, 256, 0x1p-20, 0.011, 0x1p-20}, coarse{19, 14, 256, 0x1p-11, 0.011, 0x1p-11};
  EXPECT_TRUE(covers(coarse, fine, Format::bf16));
  EXPECT_FALSE(covers(coarse, fine, Format::f32));
}

TEST(Pareto, CostsAreCountedByTheEvaluator) {
  BackwardModel model;
  model.kDegree = 6;
  model.kRows = 16;
  // Clamp, difference, floor, root, select, clamp at s_min; index, row, the centre; then the polynomial,
  // which waits for u = v - centre.
  constexpr int kToU = 6 + 2 + 1 + 1;
  EXPECT_EQ(cost_of(model).arithmetic, 1 + 1 + 1 + 6);
  EXPECT_EQ(cost_of(model).loads, 8);
  EXPECT_EQ(cost_of(model).depth, kToU + 6);
  model.kScheme = kernels::kEstrin;  // 4 pairs, u^2 and u^4 beside them: three steps, two products more
  EXPECT_EQ(cost_of(model).arithmetic, 1 + 1 + 1 + 6 + 2);
  EXPECT_EQ(cost_of(model).depth, kToU + 3);
  model.kScheme = kernels::kEvenOdd;  // u^2, three steps of the even part, one to join: one product more
  EXPECT_EQ(cost_of(model).arithmetic, 1 + 1 + 1 + 6 + 1);
  EXPECT_EQ(cost_of(model).depth, kToU + 5);
  model.kRows = 1;  // no index to speak of, and constants of the code
  EXPECT_EQ(cost_of(model).loads, 0);
  EXPECT_EQ(cost_of(model).table_bytes, 0);
  for (const bool masked : {false, true}) {
    TableModel table;
    table.kMasked = masked;
    const Cost cost = cost_of_direct(masked);
    constexpr int kKeepsNaN = 2;  // a comparison and a select after the lookup
    EXPECT_EQ(cost.integer + cost.selects, table.index_operations() + kKeepsNaN);
    EXPECT_EQ(cost.arithmetic, 0);
    EXPECT_EQ(cost.loads, 1);
  }
}

/// A front of few specifications, made once.
struct SmallFront {
  ParetoCandidates candidates;
  ParetoFront front;
};

const SmallFront& softplus() {
  static const SmallFront made = [] {
    SmallFront s;
    s.candidates = pareto_candidates("softplus", "\"activation\": \"softplus\"", Format::bf16, 0);
    const auto is_wanted = [](const ParetoCandidate& c) {
      const std::string name = json::parse(c.spec)["name"];
      for (const char* wanted :
           {"_stored_d8_1", "_stored_d2_32", "_d2_16", "_d3_8", "_d4_16", "_table_f16"}) {
        if (name == std::string("softplus_bf16") + wanted) return true;
      }
      return false;
    };
    std::erase_if(s.candidates.candidates, [&](const ParetoCandidate& c) { return !is_wanted(c); });
    // Its programme tells what it will reach: given twice, it is not fitted again.
    const auto stored = std::find_if(
        s.candidates.candidates.begin(), s.candidates.candidates.end(),
        [](const ParetoCandidate& c) { return c.spec.find("_stored_d2_32") != std::string::npos; });
    if (stored != s.candidates.candidates.end())
      s.candidates.candidates.insert(stored, ParetoCandidate(*stored));
    s.front = pareto_front(s.candidates, 0);
    return s;
  }();
  return made;
}

TEST(Pareto, NightlyAPointIsWhatItsSpecificationGives) {
  const SmallFront& s = softplus();
  ASSERT_GE(s.front.points.size(), 4u);
  for (size_t i = 0; i < s.front.points.size(); i += 2) {  // every second: a fit takes its half a second
    const ParetoPoint& p = s.front.points[i];
    const ParetoPoint again = pareto_point(p.spec, fit(parse_spec(p.spec, "point"), 1));
    EXPECT_TRUE(equal(p.merit, again.merit)) << p.spec;
    if (again.fit.as<BackwardModel>()) {
      EXPECT_EQ(p.merit.work, cost_of(*again.fit.as<BackwardModel>()).work());
      EXPECT_EQ(p.merit.table_bytes, cost_of(*again.fit.as<BackwardModel>()).table_bytes);
      EXPECT_EQ(p.merit.a_plus_b, again.fit.as<BackwardModel>()->kAB);
    }
    for (const ParetoPoint& q : s.front.points)
      EXPECT_FALSE(covers(q.merit, p.merit, Format::bf16)) << q.spec << " covers " << p.spec;
  }
}

TEST(Pareto, NightlyCandidatesKnowTheirCostsAndAreNotFittedTwice) {
  const SmallFront& s = softplus();
  EXPECT_GE(s.front.skipped, 1) << "the one given twice";
  EXPECT_EQ(s.front.skipped + s.front.unreachable + s.front.covered +
                (s.front.too_coarse - s.candidates.too_coarse) + static_cast<int>(s.front.points.size()),
            static_cast<int>(s.candidates.candidates.size()));
  for (const ParetoPoint& p : s.front.points) {
    const auto of = std::find_if(s.candidates.candidates.begin(), s.candidates.candidates.end(),
                                 [&](const ParetoCandidate& c) { return c.spec == p.spec; });
    ASSERT_NE(of, s.candidates.candidates.end());
    EXPECT_EQ(of->expected.work, p.merit.work);
    EXPECT_EQ(of->expected.depth, p.merit.depth);
    EXPECT_EQ(of->expected.table_bytes, p.merit.table_bytes);
    // Estimates that are wrong by a bit would leave out what belongs into the front.
    EXPECT_NEAR(std::log2(of->expected.a_plus_b), std::log2(p.merit.a_plus_b), 1) << p.spec;
  }
}

TEST(Pareto, AnExactFunctionHasOnePolynomial) {
  const ParetoCandidates tanh = pareto_candidates("tanh", "\"activation\": \"tanh\"", Format::f32, 0);
  EXPECT_TRUE(tanh.exact);
  ASSERT_EQ(tanh.candidates.size(), 1u);
  const ParetoFront front = pareto_front(tanh, 0);
  ASSERT_EQ(front.points.size(), 1u);
  EXPECT_EQ(front.points[0].cost.arithmetic, 2);  // g = 1 - y^2
  EXPECT_EQ(json::parse(to_json(front, "tanh"))["exact"], true);
}

TEST(Pareto, BadInputIsRefused) {
  EXPECT_THROW(pareto_candidates("x", "\"activation\": \"no_such\"", Format::bf16, 0), kernels::SpecError);
  EXPECT_THROW(pareto_candidates("x", "\"expression\": \"sin(x)\"", Format::bf16, 0), kernels::SpecError);
}

TEST(Pareto, CommittedFrontsHoldWhatTheyClaim) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.path().extension() != ".json") continue;
    ++files;
    const std::string path = entry.path().string();
    const json front = json::parse(kernels::read_file(path));
    ASSERT_EQ(front.at("schema"), "outgrad.pareto/2") << path;
    const Format format = format_of(front.at("format"));
    const bool table_only = format == Format::e4m3 || format == Format::e5m2;
    EXPECT_TRUE(front.at("points").size() >= 4 || front.at("exact") == true || table_only) << path;
    std::vector<Merit> merits;
    for (const json& p : front.at("points")) {
      const Spec spec = parse_spec(p.at("spec").dump(), path);
      EXPECT_EQ(spec.name, p.at("name")) << path;
      EXPECT_EQ(spec.backward().format, format) << path;
      merits.push_back({p.at("work"), p.at("depth"), p.at("table_bytes"), p.at("a_plus_b"), p.at("total"),
                        p.at("regret")});
      EXPECT_EQ(merits.back().work, p.at("operations").get<int>() + p.at("roots").get<int>() +
                                        p.at("selects").get<int>() + p.at("integer").get<int>() +
                                        p.at("loads").get<int>());
    }
    EXPECT_EQ(worth_choosing(merits, format).size(), merits.size()) << path;
  }
  EXPECT_GE(files, 30) << "ten activations in three formats";
}

TEST(Pareto, ACommittedPointIsReproduced) {
  const std::string path = kFolder + "/softplus_bf16.json";
  const json front = json::parse(kernels::read_file(path));
  const json& p = front.at("points").at(front.at("points").size() / 2);
  const ParetoPoint again = pareto_point("", fit(parse_spec(p.at("spec").dump(), path), 0));
  EXPECT_TRUE(equal(again.merit, {p.at("work"), p.at("depth"), p.at("table_bytes"), p.at("a_plus_b"),
                                  p.at("total"), p.at("regret")}))
      << p.dump(1);
}

}  // namespace
}  // namespace outgrad::approx
