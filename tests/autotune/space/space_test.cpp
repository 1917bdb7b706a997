// The space: solved during construction means the same points as filtering, without visiting the product.
#include "autotune/space/space.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <set>
#include <stdexcept>

#include "autotune/space/reference.h"
#include "autotune/space/variant.h"
#include "kernels/fits.h"
#include "kernels/host/errors.h"
#include "kernels/support/random.h"
#include "tests/kernels/synthetic_fit.h"

namespace outgrad::autotune {
namespace {

std::vector<Point> all_of(const Points& points) {
  std::vector<Point> all;
  for (std::size_t i = 0; i < points.size(); ++i) all.push_back(points[i]);
  return all;
}

// A kernel with tiles in shared memory, as one would declare it: more than 10^9 raw points, close to 10^6
// valid ones.
Space tiled_kernel() {
  Space space;
  std::vector<std::int64_t> widths;
  for (std::int64_t width = 16; width <= 512; width += 16) widths.push_back(width);
  space.parameter("block_x", widths)
      .parameter("block_y", {1, 2, 3, 4, 6, 8, 16, 32})
      .parameter("tile_x", {1, 2, 3, 4, 5, 6, 7, 8, 12, 16})
      .parameter("tile_y", {1, 2, 3, 4, 5, 6, 7, 8, 12, 16})
      .parameter("tile_k", {4, 8, 16, 32, 64})
      .parameter("unroll", {1, 2, 4, 8, 16, 32, 64})
      .parameter("vector", {1, 2, 4, 8})
      .parameter("stages", {1, 2, 3, 4})
      .parameter("in_shared", {0, 1})
      .parameter("padding", {0, 1})
      .parameter("swizzle", {0, 1, 2, 4, 8})
      .parameter("read_only", {0, 1})
      .parameter("blocks_per_sm", {1, 2, 4});
  space.constraint("at most 1024 threads", {"block_x", "block_y"},
                   [](const Point& p) { return p[0] * p[1] <= 1024; });
  space.constraint("whole warps, eight at a time", {"block_y", "block_x"},
                   [](const Point& p) { return p[0] * p[1] % 256 == 0; });
  space.constraint("8 to 32 outputs a thread", {"tile_x", "tile_y"},
                   [](const Point& p) { return p[0] * p[1] >= 8 && p[0] * p[1] <= 32; });
  space.constraint("the unrolled loop divides the tile", {"tile_k", "unroll"},
                   [](const Point& p) { return p[0] % p[1] == 0; });
  space.constraint("vectors divide a thread's row", {"tile_x", "vector"},
                   [](const Point& p) { return p[0] % p[1] == 0; });
  space.constraint("padding only in shared memory", {"in_shared", "padding"},
                   [](const Point& p) { return p[0] == 1 || p[1] == 0; });
  space.constraint("stages only in shared memory", {"in_shared", "stages"},
                   [](const Point& p) { return p[0] == 1 || p[1] == 1; });
  space.constraint("the read-only cache only without", {"in_shared", "read_only"},
                   [](const Point& p) { return p[0] == 0 || p[1] == 0; });
  space.constraint("swizzled or padded", {"swizzle", "padding"},
                   [](const Point& p) { return p[0] == 0 || p[1] == 0; });
  space.constraint("a swizzle spans one vector", {"swizzle", "vector"},
                   [](const Point& p) { return p[0] == 0 || p[0] == p[1]; });
  space.constraint("48 KiB of shared memory",
                   {"block_x", "tile_x", "block_y", "tile_y", "tile_k", "stages", "in_shared", "padding"},
                   [](const Point& p) {
                     return p[6] == 0 || 4 * p[5] * p[4] * (p[0] * p[1] + p[2] * p[3] + p[7]) <= 48 * 1024;
                   });
  space.constraint(
      "65536 registers in the blocks resident",
      {"block_x", "block_y", "tile_x", "tile_y", "vector", "unroll", "blocks_per_sm"},
      [](const Point& p) { return p[6] * p[0] * p[1] * (24 + p[2] * p[3] + p[4] * p[5] / 2) <= 65536; });
  return space;
}

TEST(Space, ConstructsWhatFilteringTheProductGives) {
  Space space;
  space.parameter("a", {1, 2, 3, 4, 5}).parameter("b", {0, 1}).parameter("c", {2, 3, 5, 7});
  space.constraint("a c is even", {"a", "c"}, [](const Point& p) { return p[0] * p[1] % 2 == 0; });
  space.constraint("c before a: the order of names is the order of values", {"c", "a"},
                   [](const Point& p) { return p[0] >= p[1]; });
  space.constraint("b needs a > 2", {"b", "a"}, [](const Point& p) { return p[0] == 0 || p[1] > 2; });

  std::vector<Point> filtered;
  for (const std::int64_t a : {1, 2, 3, 4, 5})
    for (const std::int64_t b : {0, 1})
      for (const std::int64_t c : {2, 3, 5, 7})
        if (a * c % 2 == 0 && c >= a && (b == 0 || a > 2)) filtered.push_back({a, b, c});
  const Points points = space.construct();
  EXPECT_EQ(all_of(points), filtered);
  EXPECT_EQ(points.raw_size(), 40);
  for (const Points::Cut& cut : points.cuts()) EXPECT_GT(cut.partial_points, 0u) << cut.why;
}

// Partial points that construction looked at: those it cut and those that became points.
std::size_t looked_at(const Points& points) {
  std::size_t count = points.size();
  for (const Points::Cut& cut : points.cuts()) count += cut.partial_points;
  return count;
}

TEST(Space, ABillionRawPointsWithFewValidAreNotLookedAt) {
  Space space;
  std::vector<std::int64_t> values(1000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int64_t>(i);
  space.parameter("a", values).parameter("b", values).parameter("c", values);
  space.constraint("b = a", {"a", "b"}, [](const Point& p) { return p[0] == p[1]; });
  space.constraint("c = b", {"b", "c"}, [](const Point& p) { return p[0] == p[1]; });
  const Points points = space.construct();
  EXPECT_EQ(points.size(), 1000u);
  // For each of the 1000 values of a, 999 of b are cut; for each of the 1000 pairs that are left, 999 of c.
  EXPECT_EQ(looked_at(points), 2u * 1000 * 999 + 1000);
}

TEST(Space, OfABillionRawPointsWithAMillionValidFewAreLookedAtInVain) {
  const Points points = tiled_kernel().construct();
  EXPECT_GT(points.raw_size(), 1e9);
  EXPECT_GT(points.size(), 500'000u);
  RecordProperty("report", size_report(points));
  EXPECT_LT(looked_at(points), 10 * points.size()) << size_report(points);
}

// Random spaces: the points are those that filtering gives, in the same order.
TEST(Space, RandomSpacesEqualTheirFilteredProducts) {
  std::uint64_t state = 11;
  const auto below = [&](std::uint64_t n) { return kernels::next_random(state) % n; };
  for (int trial = 0; trial < 60; ++trial) {
    Space space;
    const std::size_t parameters = 1 + below(5);
    std::vector<std::string> names;
    for (std::size_t p = 0; p < parameters; ++p) {
      std::vector<std::int64_t> values;
      for (std::uint64_t v = 0, count = 1 + below(trial % 3 == 0 ? 70 : 6); v < count; ++v)
        values.push_back(static_cast<std::int64_t>(v * 7 % 97));
      names.push_back("p" + std::to_string(p));
      space.parameter(names.back(), values);
    }
    std::vector<std::pair<std::vector<std::size_t>, Space::Predicate>> constraints;
    for (std::uint64_t c = 0, count = below(4); c < count; ++c) {
      std::vector<std::size_t> over;
      for (std::size_t p = 0; p < parameters; ++p)
        if (below(2) == 0) over.insert(over.begin() + static_cast<std::ptrdiff_t>(below(over.size() + 1)), p);
      if (over.empty()) continue;
      const auto modulus = static_cast<std::int64_t>(2 + below(5));
      const Space::Predicate holds = [modulus](const Point& seen) {
        std::int64_t sum = 1;
        for (std::size_t i = 0; i < seen.size(); ++i)
          sum = sum * 3 + seen[i] * static_cast<std::int64_t>(i + 1);
        return sum % modulus == 0;
      };
      std::vector<std::string> over_names;
      for (const std::size_t p : over) over_names.push_back(names[p]);
      space.constraint("c" + std::to_string(c), over_names, holds);
      constraints.push_back({over, holds});
    }
    std::vector<Point> filtered;
    Point point(parameters);
    const std::function<void(std::size_t)> visit = [&](std::size_t p) {
      if (p == parameters) {
        for (const auto& [over, holds] : constraints) {
          Point seen;
          for (const std::size_t q : over) seen.push_back(point[q]);
          if (!holds(seen)) return;
        }
        filtered.push_back(point);
        return;
      }
      for (const std::int64_t value : space.parameters()[p].values) point[p] = value, visit(p + 1);
    };
    double raw = 1;
    for (const Parameter& parameter : space.parameters()) raw *= static_cast<double>(parameter.values.size());
    if (raw > 1e5) continue;
    visit(0);
    const Points points = space.construct();
    ASSERT_EQ(points.size(), filtered.size()) << trial;
    for (std::size_t i = 0; i < points.size(); ++i) ASSERT_EQ(points[i], filtered[i]) << trial;
  }
}

TEST(Points, FindsPointsAndTheirNeighbours) {
  Space space;
  space.parameter("a", {1, 2, 4, 8}).parameter("b", {0, 1, 2}).parameter("c", {5, 3});
  space.constraint("not 2 beside 1", {"a", "b"}, [](const Point& p) { return p[0] != 2 || p[1] != 1; });
  const Points points = space.construct();
  for (std::size_t i = 0; i < points.size(); ++i) {
    EXPECT_EQ(points.find(points[i]), i);
    std::vector<std::size_t> expected;
    for (std::size_t j = 0; j < points.size(); ++j) {
      int differing = 0;
      for (std::size_t p = 0; p < 3; ++p) differing += points[i][p] != points[j][p];
      if (differing == 1) expected.push_back(j);
    }
    std::vector<std::size_t> found = points.neighbours(i);
    std::sort(found.begin(), found.end());
    EXPECT_EQ(found, expected) << i;
  }
  EXPECT_EQ(points.find(Point{2, 1, 5}), std::nullopt);
  EXPECT_EQ(points.find(Point{3, 1, 5}), std::nullopt);
  EXPECT_EQ(points.find(Point{1, 1}), std::nullopt);
  EXPECT_THROW(Points(space.parameters(), {3, 3}), std::invalid_argument);
  EXPECT_THROW(Points(space.parameters(), {24}), std::invalid_argument);
}

TEST(Space, ReportsContradictionsByName) {
  Space space;
  space.parameter("a", {1, 2}).parameter("b", {3, 4});
  space.constraint("a exceeds b", {"a", "b"}, [](const Point& p) { return p[0] > p[1]; });
  const Points points = space.construct();
  EXPECT_TRUE(points.empty());
  EXPECT_NE(size_report(points).find("contradictory"), std::string::npos);
  EXPECT_NE(size_report(points).find("; 4 combinations left out, because a exceeds b"), std::string::npos)
      << size_report(points);
}

TEST(Space, ReportsLargeCountsInGroupsOfThreeDigits) {
  Space space;
  std::vector<std::int64_t> numbers(50);
  std::iota(numbers.begin(), numbers.end(), 0);
  space.parameter("a", numbers).parameter("b", numbers);
  space.constraint("a exceeds b", {"a", "b"}, [](const Point& p) { return p[0] > p[1]; });
  EXPECT_EQ(size_report(space.construct()),
            "2500 raw points, 1225 valid; 1,275 combinations left out, because a exceeds b");
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
        const Space space = cpu_space(problem, fits, vector_bits, 2);
        std::set<std::string> names;
        for (const Point& point : all_of(space.construct())) {
          const Variant variant = variant_at(problem, fits, space, point);
          EXPECT_LE(std::visit([](const auto& schedule) { return schedule.vector_bits; }, variant.schedule),
                    vector_bits);
          EXPECT_TRUE(names.insert(variant.name()).second) << variant.name();
        }
        EXPECT_FALSE(names.empty());
      }
}

// What a search is worth for: thousands of points where there are vectors, the default among them on any
// machine.
TEST(CpuSpace, HoldsThousandsAndTheDefault) {
  const auto points_of = [](const Problem& problem, int vector_bits) {
    return cpu_space(problem, fits_of(problem), vector_bits, 2).construct();
  };
  for (const KernelId kernel : kAllKernels)
    for (const FormatId format : kAllFormats) {
      const Problem problem = sized_within({kernel, format}, 1 << 18);
      const Fits& fits = fits_of(problem);
      const std::size_t points = points_of(problem, 512).size();
      // nothing to interleave there
      const bool looks_up = kernels::has_codes(kernel) && (is_backward(kernel) || format != FormatId::kF32);
      // no block size in the former
      const bool few = kernel == KernelId::kBiasGeluBackward || looks_up;
      EXPECT_GE(points, few ? 128u : 2000u) << problem.name();
      RecordProperty(problem.name(), static_cast<int>(points));

      const Space space = cpu_space(problem, fits, kernels::kBestVectorBits, 2);
      std::set<std::string> names;
      for (const Point& point : all_of(space.construct()))
        names.insert(variant_at(problem, fits, space, point).name());
      EXPECT_EQ(names.count(default_variant(problem).name()), 1u) << default_variant(problem).name();
    }
}

// A value that cuts a shape as another one does is no other point.
TEST(CpuSpace, ValuesThatCutAShapeAlikeAreOne) {
  const auto size = [](KernelId kernel, kernels::i64 rows, kernels::i64 cols) {
    const Problem problem{kernel, FormatId::kBf16, rows, cols};
    return cpu_space(problem, {}, 512, 2).construct().size();
  };
  // fewer columns to fold
  EXPECT_LT(size(KernelId::kLayernormBackward, 16384, 512), size(KernelId::kLayernormBackward, 16384, 4096));
  // fewer slots to share
  EXPECT_LT(size(KernelId::kLayernormBackward, 16, 1024), size(KernelId::kLayernormBackward, 16384, 1024));
  // one row is a task
  EXPECT_LT(size(KernelId::kLayernormForward, 16384, 1 << 16),
            size(KernelId::kLayernormForward, 16384, 1024));
  // all rows are
  EXPECT_LT(size(KernelId::kLayernormForward, 4, 1024), size(KernelId::kLayernormForward, 16384, 1024));
}

TEST(CpuSpace, NameSpeaks) {
  const Variant variant{{KernelId::kGeluBackward, FormatId::kF32},
                        fits_of({KernelId::kGeluBackward, FormatId::kF32}).front(),
                        kernels::CpuSchedule{.threads = 2,
                                             .vector_bits = 512,
                                             .unroll = 4,
                                             .block_elements = 16384,
                                             .streaming_stores = true,
                                             .table = kernels::TablePlacement::permute}};
  EXPECT_EQ(variant.name(), "f32.gelu_f32.v512.u4.b16384.nt.permute.t2");
  EXPECT_EQ(default_variant({KernelId::kGeluBackwardCode, FormatId::kF32}).parameters().size(), 4u);
  EXPECT_EQ(default_variant({KernelId::kGeluForwardCode, FormatId::kF16}).parameters().size(), 4u);
  EXPECT_EQ(default_variant({KernelId::kGeluForwardCode, FormatId::kF32}).parameters().size(), 6u);
  EXPECT_EQ((Variant{{KernelId::kGeluForwardCode, FormatId::kBf16},
                     nullptr,
                     kernels::CpuSchedule{.threads = 1,
                                          .vector_bits = 512,
                                          .unroll = 3,
                                          .block_elements = 1 << 16,
                                          .streaming_stores = true}}
                 .name()),
            "bf16.v512.b65536.nt.t1");
  EXPECT_EQ((Variant{{KernelId::kGeluForwardCode, FormatId::kF32},
                     nullptr,
                     kernels::CpuSchedule{.vector_bits = 256, .unroll = 3}}
                 .name()),
            "f32.v256.u3.b65536.wb.permute.t0");
  const Variant backward{
      {KernelId::kLayernormBackward, FormatId::kBf16},
      nullptr,
      kernels::CpuNormBackwardSchedule{
          .vector_bits = 512, .vectors = 3, .tasks = 32, .streaming_stores = true, .rows_ahead = 2}};
  EXPECT_EQ(backward.name(), "bf16.v512.x3.r4.k32.f1024.nt.l2a2.t0");
  EXPECT_EQ(backward.loop_name(), "bf16.v512.x3.r4.k0.f0.nt.l2a0.t0");
  EXPECT_EQ(backward.schedule_text(),
            "CpuNormBackwardSchedule{.threads = 0, .vector_bits = 512, .vectors = 3, .rows = 4, .tasks = 32, "
            ".fold_columns = 1024, "
            ".streaming_stores = true, .prefetch = Prefetch::second_level, .rows_ahead = 2}");
  const Variant forward{
      {KernelId::kRmsnormForward, FormatId::kF16}, nullptr, kernels::CpuNormForwardSchedule{.threads = 1}};
  EXPECT_EQ(forward.name(), "f16.s.x2.r4.b65536.wb.l2a1.t1");
  EXPECT_EQ(forward.body(),
            "using namespace outgrad::kernels; call<KernelId::kRmsnormForward, F16>(a, [](auto... x) { "
            "rmsnorm_forward<F16, "
            "CpuNormForwardSchedule{.threads = 1, .vector_bits = 0, .vectors = 2, .rows = 4, .task_elements "
            "= 65536, .streaming_stores = false, "
            ".prefetch = Prefetch::second_level, .rows_ahead = 1}>(x...); });");
}

TEST(CpuSpace, HoldsDirectTablesAndFitsOfOneRow) {
  using kernels::BF16;
  Fits fits;
  for (const FitChoice& choice : {backward_choice<kernels::synthetic::WithoutLeft<16, 5>, BF16>(),
                                  backward_choice<kernels::synthetic::OneRow<6>, BF16>(),
                                  backward_choice<kernels::synthetic::Direct<BF16, kernels::F16>, BF16>()})
    fits.push_back(std::make_shared<const FitChoice>(choice));
  EXPECT_EQ(fits[2]->type, "SyntheticTable");
  const Space space = cpu_space({KernelId::kGeluBackward, FormatId::kBf16}, fits, 512, 2);
  const Points points = space.construct();
  std::vector<std::size_t> all(fits.size()), permuted(fits.size());
  for (const Point& point : all_of(points)) {
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
      if (std::string(fit.kFormat) == name_of(format) && std::string(fit.kActivation) == "gelu")
        listed.insert(fit.kName);
    });
    const Space space = cpu_space(problem, fits_of(problem), 512, 2);
    for (const Point& point : all_of(space.construct())) {
      const Variant variant = variant_at(problem, fits_of(problem), space, point);
      if (variant.name().find("." + variant.fit->name + ".") != std::string::npos)
        offered.insert(variant.fit->name);
    }
    EXPECT_EQ(offered, listed);
    EXPECT_FALSE(listed.empty());
  }
}

TEST(Points, PartsAreDisjointAboutEqualAndTogetherAll) {
  Space space;
  space.parameter("a", {1, 2, 3, 4, 5, 6, 7, 8})
      .parameter("b", {1, 2, 4, 8, 16, 32, 64, 128})
      .parameter("c", {0, 1, 2, 3, 4, 5, 6});
  space.constraint("a reason", {"a", "b"}, [](const Point& p) { return p[0] <= p[1]; });
  const Points all = space.construct();
  for (const std::size_t count : {1, 2, 5}) {
    std::vector<Point> found;
    for (std::size_t index = 0; index < count; ++index) {
      const Points part = all.part(index, count);
      EXPECT_NEAR(static_cast<double>(part.size()),
                  static_cast<double>(all.size()) / static_cast<double>(count),
                  0.25 * static_cast<double>(all.size()));
      for (std::size_t i = 0; i < part.size(); ++i) found.push_back(part[i]);
    }
    std::sort(found.begin(), found.end());
    std::vector<Point> wanted;
    for (std::size_t i = 0; i < all.size(); ++i) wanted.push_back(all[i]);
    std::sort(wanted.begin(), wanted.end());
    EXPECT_EQ(found, wanted);
  }
}

}  // namespace
}  // namespace outgrad::autotune
