// Ways to keep softmax's output: the published figures come out, and ours hold what is proven.
#include "validation/softmax/stores.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/softmax.h"
#include "kernels/support/files.h"
#include "validation/sweep/foreign.h"

namespace outgrad::validation {
namespace {

NamedQuantiser quantiser_of(const std::string& name) {
  const std::string file = std::string(OUTGRAD_SOURCE_DIR) + "/notebooks_data/foreign/" + name + ".json";
  return {name, *parse_foreign(kernels::read_file(file), file).quantiser};
}

const SoftmaxFrontRow& row_of(const std::vector<SoftmaxFrontRow>& rows, const std::string& store) {
  const auto found =
      std::find_if(rows.begin(), rows.end(), [&](const SoftmaxFrontRow& row) { return row.store == store; });
  if (found == rows.end()) throw std::runtime_error(store);
  return *found;
}

// S = 4096, scores of standard deviation 4: the figures of the issue that asks for this table are 0.145 for
// Mesa, 0.034 and 0.02 for ours, 0.071 for e4m3, and nothing less than 2 for int8.
TEST(SoftmaxStores, ReproduceThePublishedFigures) {
  const std::vector<SoftmaxFrontRow> rows =
      softmax_front({.lengths = {4096},
                     .spreads = {4},
                     .groups = 6,
                     .seed = 1,
                     .quantisers = {quantiser_of("mesa_gelu"), quantiser_of("mesa_gelu_saturated")}});
  const SoftmaxFrontRow& mesa = row_of(rows, "mesa_gelu, own range");
  EXPECT_NEAR(mesa.relative, 0.13, 3 * mesa.relative_deviation);
  EXPECT_NEAR(row_of(rows, "mesa_gelu, running range").relative, 0.145,
              3 * row_of(rows, "mesa_gelu, running range").relative_deviation);
  EXPECT_LT(mesa.relative_deviation, 0.01);
  EXPECT_NEAR(row_of(rows, "e4m3, scaled").e1_proven, 0.0714, 5e-5);
  EXPECT_TRUE(std::isnan(row_of(rows, "int8, nearest").e1_proven));
  EXPECT_EQ(mesa.bits, quantiser_of("mesa_gelu").quantiser.bits_per_element(kF32));

  const SoftmaxFrontRow& ours = row_of(rows, "log2, 8 bits");
  EXPECT_EQ(ours.e1_proven, kernels::softmax_e1(4096));
  EXPECT_LE(ours.e1_proven, 0.034);
  EXPECT_LE(ours.e1, 0.02);
  EXPECT_LE(ours.sum_most, ours.sum_proven + 2e-3);  // what has code 0 is not in it
  EXPECT_LT(ours.relative, 0.16 * mesa.relative);
  EXPECT_LT(ours.relative, row_of(rows, "log2, 8 bits, D as sum p' dp").relative);
  EXPECT_EQ(ours.bits, 8);
  for (const SoftmaxFrontRow& row : rows) EXPECT_TRUE(row.holds()) << row.store;
}

TEST(SoftmaxStores, TablesHaveEveryRow) {
  const std::vector<SoftmaxFrontRow> rows =
      softmax_front({.lengths = {2, 16}, .spreads = {1}, .groups = 1, .seed = 1, .quantisers = {}});
  ASSERT_EQ(rows.size(), 2 * 5u);
  const std::string text = softmax_front_text(rows);
  EXPECT_EQ(static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')), 2 + rows.size());
  const auto json = softmax_front_json(rows);
  EXPECT_EQ(json["schema"], kSoftmaxFrontSchema);
  EXPECT_EQ(json["rows"].size(), rows.size());
  SoftmaxFrontRow broken = rows.front();
  broken.e1_most = broken.e1_proven * 1.001;
  EXPECT_FALSE(broken.holds());
}

// The committed figures of the shortest rows are what comes out today, and the page has those of the longest.
TEST(SoftmaxStores, TheCommittedTableAndThePageAreOfToday) {
  const std::string root = OUTGRAD_SOURCE_DIR;
  const auto committed =
      nlohmann::json::parse(kernels::read_file(root + "/notebooks_data/softmax/front.json"));
  EXPECT_EQ(committed["code"]["cell_claimed"], kernels::kSoftmaxCell);
  EXPECT_EQ(committed["attack"]["violations"], 0);
  SoftmaxFrontOptions options;
  options.lengths = {128};
  for (const char* name : {"mesa_gelu", "mesa_gelu_saturated", "actnn_8bit"})
    options.quantisers.push_back(quantiser_of(name));
  const auto today = nlohmann::json(softmax_front_json(softmax_front(options)));
  for (std::size_t k = 0; k < today["rows"].size(); ++k) {
    const auto &a = committed["rows"][k], &b = today["rows"][k];
    for (const char* key : {"length", "spread", "store"}) ASSERT_EQ(a[key], b[key]);
    for (const char* key : {"bits", "e1_mean", "e1_most", "relative_error", "relative_sum_most"}) {
      EXPECT_NEAR(a[key].get<double>(), b[key].get<double>(), 1e-9 * (1 + std::abs(a[key].get<double>())))
          << a["store"] << ' ' << key;
    }
  }
  const std::string page = kernels::read_file(root + "/docs/how_few_bits.md");
  int shown = 0;
  for (const auto& flat : committed["rows"]) {
    if (flat["length"] != 4096 || flat["spread"] != 1) continue;
    for (const auto& peaked : committed["rows"]) {
      if (peaked["length"] != 4096 || peaked["spread"] != 4 || peaked["store"] != flat["store"]) continue;
      const std::string proven =
          flat["e1_proven"].is_null()
              ? "-"
              : fmt::format("{:.4f}", std::ceil(flat["e1_proven"].get<double>() * 1e4) * 1e-4);
      const std::string row = fmt::format(
          "| {} | {:.4g} | {} | {:.4f} | {:.4f} | {:.4f} | {:.4f} | {:.4f} |",
          flat["store"].get<std::string>(), flat["bits"].get<double>(), proven, flat["e1_mean"].get<double>(),
          peaked["e1_mean"].get<double>(), flat["relative_error"].get<double>(),
          peaked["relative_error"].get<double>(), peaked["relative_sum_most"].get<double>());
      EXPECT_NE(page.find(row), std::string::npos) << row;
      ++shown;
    }
  }
  EXPECT_EQ(shown, 10);
}

}  // namespace
}  // namespace outgrad::validation
