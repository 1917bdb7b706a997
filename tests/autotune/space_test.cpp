// The space: solved during construction means the same points as filtering, without visiting the product.
#include "autotune/space.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <stdexcept>

#include "autotune/variant.h"
#include "kernels/fits.h"
#include "kernels/host/errors.h"
#include "tests/kernels/synthetic_fit.h"

namespace outgrad::autotune {
namespace {

TEST(Space, ConstructsWhatFilteringTheProductGives) {
  Space space;
  space.parameter("a", {1, 2, 3, 4, 5}).parameter("b", {0, 1}).parameter("c", {2, 3, 5, 7});
  space.constraint("a c is even", {"a", "c"}, [](const Point& p) { return p[0] * p[1] % 2 == 0; });
  space.constraint("c before a: the order of names is the order of values", {"c", "a"}, [](const Point& p) { return p[0] >= p[1]; });
  space.constraint("b needs a > 2", {"b", "a"}, [](const Point& p) { return p[0] == 0 || p[1] > 2; });

  std::vector<Point> filtered;
  for (const std::int64_t a : {1, 2, 3, 4, 5})
    for (const std::int64_t b : {0, 1})
      for (const std::int64_t c : {2, 3, 5, 7})
        if (a * c % 2 == 0 && c >= a && (b == 0 || a > 2)) filtered.push_back({a, b, c});
  const Space::Points points = space.construct();
  EXPECT_EQ(points.valid, filtered);
  EXPECT_EQ(points.raw_size, 40);
  for (const Space::Cut& cut : points.cuts) EXPECT_GT(cut.partial_points, 0u) << cut.why;
}

TEST(Space, ABillionRawPointsWithFewValidTakeNoTime) {
  Space space;
  std::vector<std::int64_t> values(1000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int64_t>(i);
  space.parameter("a", values).parameter("b", values).parameter("c", values);
  space.constraint("b = a", {"a", "b"}, [](const Point& p) { return p[0] == p[1]; });
  space.constraint("c = b", {"b", "c"}, [](const Point& p) { return p[0] == p[1]; });
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(space.construct().valid.size(), 1000u);
  // Filtering 10^9 points takes tens of seconds; construction visits 2 x 10^6 partial points.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST(Space, ReportsContradictionsByName) {
  Space space;
  space.parameter("a", {1, 2}).parameter("b", {3, 4});
  space.constraint("a exceeds b", {"a", "b"}, [](const Point& p) { return p[0] > p[1]; });
  const Space::Points points = space.construct();
  EXPECT_TRUE(points.valid.empty());
  EXPECT_NE(size_report(points).find("contradictory"), std::string::npos);
  EXPECT_NE(size_report(points).find("a exceeds b"), std::string::npos);
}

TEST(Space, RefusesWhatCannotBeMeant) {
  Space space;
  space.parameter("a", {1, 2});
  EXPECT_THROW(space.parameter("a", {3}), std::invalid_argument);
  EXPECT_THROW(space.parameter("b", {}), std::invalid_argument);
  EXPECT_THROW(space.parameter("c", {1, 1}), std::invalid_argument);
  EXPECT_THROW(space.constraint("?", {"d"}, [](const Point&) { return true; }), std::invalid_argument);
  EXPECT_THROW(space.construct(1), std::length_error);
}

TEST(CpuSpace, NamesAreUniqueAndParametersRoundTrip) {
  for (const KernelId kernel : kAllKernels)
    for (const FormatId format : kAllFormats)
      for (const int vector_bits : {0, 256, 512}) {
        const Problem problem{kernel, format};
        const Fits& fits = fits_of(problem);
        const Space space = cpu_space(fits, vector_bits, 2);
        std::set<std::string> names;
        for (const Point& point : space.construct().valid) {
          const Variant variant = variant_at(problem, fits, space, point);
          EXPECT_LE(variant.schedule.vector_bits, vector_bits);
          EXPECT_EQ(variant.schedule.block_elements % 1024, 0);
          EXPECT_TRUE(names.insert(variant.name()).second) << variant.name();
          EXPECT_EQ(variant_from(problem, fits, variant.parameters()).name(), variant.name());
        }
        EXPECT_FALSE(names.empty());
      }
}

TEST(CpuSpace, NameSpeaks) {
  const Variant variant{{KernelId::kGeluBackward, FormatId::kF32},
                        fits_of({KernelId::kGeluBackward, FormatId::kF32}).front(),
                        {.threads = 2,
                         .vector_bits = 512,
                         .unroll = 4,
                         .block_elements = 16384,
                         .streaming_stores = true,
                         .table = kernels::TablePlacement::permute}};
  EXPECT_EQ(variant.name(), "f32.gelu_f32.v512.u4.b16384.nt.permute.t2");
}

TEST(CpuSpace, HoldsDirectTablesAndFitsOfOneRow) {
  using kernels::BF16;
  Fits fits;
  for (const FitChoice& choice :
       {backward_choice<kernels::synthetic::WithoutLeft<16, 5>, BF16>(), backward_choice<kernels::synthetic::OneRow<6>, BF16>(),
        backward_choice<kernels::synthetic::Direct<BF16, kernels::F16>, BF16>()})
    fits.push_back(std::make_shared<const FitChoice>(choice));
  EXPECT_EQ(fits[2]->type, "SyntheticTable");
  const Space space = cpu_space(fits, 512, 2);
  const Space::Points points = space.construct();
  std::vector<std::size_t> all(fits.size()), permuted(fits.size());
  for (const Point& point : points.valid) {
    const auto fit = static_cast<std::size_t>(point[space.index_of("fit")]);
    ++all[fit];
    permuted[fit] += point[space.index_of("table")] == static_cast<int>(kernels::TablePlacement::permute);
  }
  EXPECT_EQ(permuted, (std::vector<std::size_t>{all[0] / 2, 0, 0}));
  EXPECT_EQ(all, (std::vector<std::size_t>{all[0], all[0] / 2, all[0] / 2}));
  EXPECT_GT(all[2], 10u);
}

// What kernels/fits.h lists for a format, its kernel can be tuned with.
TEST(CpuSpace, EveryListedFitOfTheFormatIsAChoice) {
  for (const FormatId format : kAllFormats) {
    const Problem problem{KernelId::kGeluBackward, format};
    std::set<std::string> listed, offered;
    kernels::for_each_fit([&](auto fit) {
      if (std::string(fit.kFormat) == name_of(format) && std::string(fit.kActivation) == "gelu") listed.insert(fit.kName);
    });
    const Space space = cpu_space(fits_of(problem), 512, 2);
    for (const Point& point : space.construct().valid) {
      const Variant variant = variant_at(problem, fits_of(problem), space, point);
      if (variant.name().find("." + variant.fit->name + ".") != std::string::npos) offered.insert(variant.fit->name);
    }
    EXPECT_EQ(offered, listed);
    EXPECT_FALSE(listed.empty());
  }
}

TEST(CpuSpace, ChoosesTheDefaultThenItsNeighboursAndRepeatsFromASeed) {
  const Problem problem{KernelId::kGeluBackward, FormatId::kBf16};
  const Variant first = default_variant(problem);
  const Space space = cpu_space(fits_of(problem), std::max(256, first.schedule.vector_bits), 2);
  const std::vector<Point> valid = space.construct().valid;
  const auto names = [&](std::uint64_t seed) {
    std::vector<std::string> list;
    for (const Variant& variant : choose_variants(problem, fits_of(problem), space, valid, 24, seed)) list.push_back(variant.name());
    return list;
  };
  const std::vector<std::string> chosen = names(7);
  EXPECT_EQ(chosen.size(), 24u);
  EXPECT_EQ(chosen.front(), first.name());
  EXPECT_EQ(std::set<std::string>(chosen.begin(), chosen.end()).size(), chosen.size());
  EXPECT_EQ(names(7), chosen);
  EXPECT_NE(names(8), chosen);
}

TEST(VariantFrom, RefusesForeignRecords) {
  const Problem problem{KernelId::kGeluBackward, FormatId::kF32};
  nlohmann::json parameters = default_variant(problem).parameters();
  const nlohmann::json whole = parameters;
  for (const auto& [key, value] : whole.items()) {
    nlohmann::json damaged = whole;
    damaged.erase(key);
    EXPECT_THROW(variant_from(problem, fits_of(problem), damaged), kernels::SpecError) << key;
  }
  parameters["fit"] = "NoSuchFit";
  EXPECT_THROW(variant_from(problem, fits_of(problem), parameters), kernels::SpecError);
}

}  // namespace
}  // namespace outgrad::autotune
