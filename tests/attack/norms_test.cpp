// A reduced attack finds no violation and comes close to the bounds; one on kernels with a planted fault
// finds it.
#include "tests/attack/norms.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

namespace outgrad::validation {
namespace {

using kernels::Norm;

AttackOptions reduced(double evaluations) {
  AttackOptions options;
  options.seed = 20;
  options.evaluations = evaluations;
  options.max_columns = 64;
  return options;
}

TEST(NormAttack, BreaksNoBoundAndComesClose) {
  const std::vector<AttackResult> results = attack_all(reduced(2e6));
  const AttackSummary summary = summarise(results);
  EXPECT_EQ(summary.violations, 0);
  EXPECT_GE(summary.evaluations, 1.9e6);
  EXPECT_LE(summary.median_tightness_all, 4);
  EXPECT_LE(summary.median_tightness[static_cast<int>(Gradient::kDx)], 6);
  for (const AttackResult& r : results) {
    double compared = 0;
    for (const GradientTally& t : r.tally) compared += t.evaluations;
    EXPECT_GT(compared, 0) << r.subject.parameters << ", " << r.subject.rows_kind << ", "
                           << r.subject.layer.format << ", N = " << r.subject.layer.n;
  }
  // The policies that others have for gamma near 0 leave our bounds by orders of magnitude, or to infinity.
  double clamp = 0;
  bool unguarded_infinite = false;
  for (const AttackResult& r : results) {
    const GradientTally& dgamma = r.tally[static_cast<int>(Gradient::kDgamma)];
    if (r.subject.parameters != "gamma 0 among them") continue;
    clamp = std::max(clamp, dgamma.peer_worst[1]);
    unguarded_infinite = unguarded_infinite || std::isinf(dgamma.peer_worst[2]);
  }
  EXPECT_GT(clamp, 1e3);
  EXPECT_TRUE(unguarded_infinite);
}

TEST(NormAttack, BreaksNoBoundOfEightBitsAndComesClose) {
  AttackOptions options = reduced(2e6);
  options.formats = {"e4m3", "mxfp8", "int8", "int8_row"};
  const AttackSummary summary = summarise(attack_all(options));
  for (const std::string& format : options.formats) {
    EXPECT_EQ(summary.by_format.at(format).violations, 0) << format;
    EXPECT_GE(summary.by_format.at(format).evaluations, 2e5) << format;
    EXPECT_LE(summary.by_format.at(format).median_tightness, 4) << format;
  }
}

// The search is strong enough to break the bounds of a better store.
TEST(NormAttack, BoundsOfOtherStoresAreBroken) {
  const auto broken = [](const char* store, const char* bounds_of) {
    AttackOptions options = reduced(1);
    options.formats = {store};
    double violations = 0;
    for (AttackCase& c : attack_cases(options)) {
      if (c.parameters != "gamma 1" || c.rows_kind != "centred" || c.layer.n != 64) continue;
      c.options.format = storage_format(bounds_of);
      const AttackResult result = attack(c, 3e4, 5);
      violations += result.tally[static_cast<int>(Gradient::kDx)].violations +
                    result.tally[static_cast<int>(Gradient::kDgamma)].violations;
    }
    return violations;
  };
  for (const char* store : {"e4m3", "mxfp8", "int8", "int8_row"}) EXPECT_EQ(broken(store, store), 0) << store;
  EXPECT_GT(broken("mxfp8", "e4m3"), 0) << "saturated";
  EXPECT_GT(broken("e4m3", "int8"), 0);
  EXPECT_GT(broken("int8_row", "f16"), 0);
}

TEST(NormAttack, IsDeterministicInTheSeed) {
  AttackOptions options = reduced(3e4);
  options.max_columns = 7;
  const std::string first = to_json(options, attack_all(options)).dump();
  EXPECT_EQ(first, to_json(options, attack_all(options)).dump());
  ++options.seed;
  EXPECT_NE(first, to_json(options, attack_all(options)).dump());
}

TEST(NormAttack, CasesCoverWhatIsPromised) {
  const std::vector<AttackCase> cases = attack_cases({});
  const auto any = [&](const std::function<bool(const AttackCase&)>& holds) {
    return std::ranges::any_of(cases, holds);
  };
  for (const char* format : {"f32", "f16", "bf16"}) {
    for (const Norm norm : {Norm::layer, Norm::rms}) {
      const auto of = [&](const AttackCase& c) { return c.layer.format == format && c.layer.norm == norm; };
      EXPECT_TRUE(any([&](const AttackCase& c) { return of(c) && c.layer.n == 1; }));
      EXPECT_TRUE(any([&](const AttackCase& c) { return of(c) && c.layer.n == 65536; }));
      for (const char* rows : {"constant", "huge", "subnormal"})
        EXPECT_TRUE(any([&](const AttackCase& c) { return of(c) && c.rows_kind == rows; })) << rows;
      EXPECT_TRUE(
          any([&](const AttackCase& c) { return of(c) && c.layer.gamma[0] == 0 && !c.layer.side.empty(); }));
      EXPECT_TRUE(any(
          [&](const AttackCase& c) { return of(c) && std::fpclassify(c.layer.gamma[0]) == FP_SUBNORMAL; }));
      EXPECT_TRUE(any([&](const AttackCase& c) { return of(c) && std::abs(c.layer.gamma[0]) == 1e-8f; }));
    }
    EXPECT_TRUE(any([&](const AttackCase& c) {
      return c.layer.format == format && !c.layer.beta.empty() &&
             std::abs(c.layer.beta[0] / c.layer.gamma[0]) >= 1e6f && c.from_output;
    }));
    EXPECT_TRUE(any([&](const AttackCase& c) {
      return c.layer.format == format && c.options.mean_ratio >= 1e3 && c.rows_kind == "mean/std 1e3";
    }));
  }
}

// A fault in the kernels' results, in the shape that a wrong kernel would give it.
class Fault : public NormTamper {
 public:
  std::function<void(const NormLayer&, const NormBatch&, std::vector<float>&)> forward;
  std::function<void(const NormLayer&, const NormBatch&, NormGradients&)> backward;

  void after_forward(const NormLayer& layer, const NormBatch& batch,
                     std::vector<float>& rstd) const override {
    if (forward) forward(layer, batch, rstd);
  }
  void after_backward(const NormLayer& layer, const NormBatch& batch, NormGradients& result) const override {
    if (backward) backward(layer, batch, result);
  }
};

double violations(const Fault& fault, Gradient g, const char* format, Norm norm) {
  AttackOptions options = reduced(4e4);
  options.formats = {format};
  options.max_columns = 16;
  options.tamper = &fault;
  double sum = 0;
  for (const AttackResult& r : attack_all(options)) {
    if (r.subject.layer.norm == norm) sum += r.tally[static_cast<int>(g)].violations;
  }
  return sum;
}

double mean_of(const NormLayer& layer, const std::function<double(size_t)>& term) {
  double sum = 0;
  for (size_t j = 0; j < static_cast<size_t>(layer.n); ++j) sum += term(j);
  return sum / static_cast<double>(layer.n);
}

struct Planted {
  const char* name;
  Gradient seen;
  Fault fault;
};

std::vector<Planted> faults() {
  std::vector<Planted> all(9);
  all[0].name = "rstd off by 2 ulp";
  all[0].seen = Gradient::kRstd;
  all[0].fault.forward = [](const NormLayer&, const NormBatch&, std::vector<float>& rstd) {
    for (float& r : rstd) r = std::nextafter(std::nextafter(r, 2 * r), 2 * r);
  };
  all[1].name = "rstd off by a factor 1 + 2^-7 reaches dx";
  all[1].seen = Gradient::kDx;
  all[1].fault.forward = [](const NormLayer&, const NormBatch&, std::vector<float>& rstd) {
    for (float& r : rstd) r *= 1 + 0x1p-7f;
  };
  all[2].name = "sign of dx";
  all[2].seen = Gradient::kDx;
  all[2].fault.backward = [](const NormLayer&, const NormBatch&, NormGradients& result) {
    for (float& dx : result.dx) dx = -dx;
  };
  all[3].name = "no mean of a";
  all[3].seen = Gradient::kDx;
  all[3].fault.backward = [](const NormLayer& layer, const NormBatch& batch, NormGradients& result) {
    const size_t n = static_cast<size_t>(layer.n);
    for (size_t e = 0; e < result.dx.size(); ++e) {
      const float* const dy = batch.dy.data() + e / n * n;
      result.dx[e] += static_cast<float>(static_cast<double>(result.rstd[e / n]) *
                                         mean_of(layer, [&](size_t j) { return dy[j] * layer.gamma[j]; }));
    }
  };
  all[4].name = "no product with x^";
  all[4].seen = Gradient::kDx;
  all[4].fault.backward = [](const NormLayer& layer, const NormBatch& batch, NormGradients& result) {
    const size_t n = static_cast<size_t>(layer.n);
    for (size_t e = 0; e < result.dx.size(); ++e) {
      const size_t first = e / n * n;
      const double m2 = mean_of(
          layer, [&](size_t j) { return batch.dy[first + j] * layer.gamma[j] * result.x_hat[first + j]; });
      result.dx[e] += static_cast<float>(static_cast<double>(result.rstd[e / n] * result.x_hat[e]) * m2);
    }
  };
  all[5].name = "sign of dgamma";
  all[5].seen = Gradient::kDgamma;
  all[5].fault.backward = [](const NormLayer&, const NormBatch&, NormGradients& result) {
    for (float& d : result.dgamma) d = -d;
  };
  all[6].name = "gamma = 0 frozen";
  all[6].seen = Gradient::kDgamma;
  all[6].fault.backward = [](const NormLayer& layer, const NormBatch&, NormGradients& result) {
    for (size_t j = 0; j < result.dgamma.size(); ++j)
      result.dgamma[j] = layer.gamma[j] == 0 ? 0 : result.dgamma[j];
  };
  all[7].name = "dbeta without the last row";
  all[7].seen = Gradient::kDbeta;
  all[7].fault.backward = [](const NormLayer& layer, const NormBatch& batch, NormGradients& result) {
    const size_t n = static_cast<size_t>(layer.n);
    for (size_t j = 0; j < n; ++j) result.dbeta[j] -= batch.dy[batch.dy.size() - n + j];
  };
  all[8].name = "NaN";
  all[8].seen = Gradient::kDx;
  all[8].fault.backward = [](const NormLayer&, const NormBatch&, NormGradients& result) {
    result.dx[0] = std::numeric_limits<float>::quiet_NaN();
  };
  return all;
}

TEST(NormAttack, PlantedFaultsAreFound) {
  for (const Planted& planted : faults()) {
    for (const char* format : {"f32", "f16", "bf16"}) {
      EXPECT_GT(violations(planted.fault, planted.seen, format, Norm::layer), 0)
          << planted.name << ", " << format;
    }
  }
  EXPECT_EQ(violations(Fault(), Gradient::kDx, "bf16", Norm::layer), 0);
}

TEST(NormAttack, AViolationLeavesAWitness) {
  AttackOptions options = reduced(1e3);
  options.formats = {"bf16"};
  options.max_columns = 3;
  const Fault fault = faults()[2].fault;
  options.tamper = &fault;
  const nlohmann::json json = to_json(options, attack_all(options));
  EXPECT_GT(json["violations"], 0);
  bool witnessed = false;
  for (const auto& c : json["cases"]) {
    if (!c["gradients"].contains("dx") || c["gradients"]["dx"]["violations"] == 0) continue;
    const auto& witness = c["gradients"]["dx"]["witness"];
    EXPECT_EQ(witness["x"].size(), c["columns"]);
    EXPECT_EQ(witness["x"][0].get<std::string>().find("0x") != std::string::npos, true);
    witnessed = true;
  }
  EXPECT_TRUE(witnessed);
}

}  // namespace
}  // namespace outgrad::validation
