// No tuned table takes a fit along that is less accurate than the default unless it says so: the rule, each
// of its bounds, and the committed tables.
#include "kernels/accuracy.h"

#include <gtest/gtest.h>

#include <string>

#include "kernels/generated/gelu_f32_rel.h"
#include "kernels/generated/tuned_default.h"
#include "kernels/generated/tuned_default_cuda.h"

namespace outgrad::kernels {
namespace {

constexpr FitBounds kStandard{0x1p-10, 0x1p-6, 0x1p-9};

TEST(FitAccuracy, EachBoundAloneDecides) {
  EXPECT_TRUE(is_as_accurate(kStandard, kStandard));
  EXPECT_TRUE(is_as_accurate({0x1p-11, 0x1p-7, 0x1p-10}, kStandard));
  for (double FitBounds::* bound : {&FitBounds::a_plus_b, &FitBounds::t, &FitBounds::r}) {
    FitBounds worse{0x1p-20, 0x1p-20, 0x1p-20};
    worse.*bound = kStandard.*bound * (1 + 0x1p-52);
    EXPECT_FALSE(is_as_accurate(worse, kStandard));
    worse.*bound = kStandard.*bound;
    EXPECT_TRUE(is_as_accurate(worse, kStandard));
    worse.*bound = FitBounds::kNone;
    EXPECT_FALSE(is_as_accurate(worse, kStandard)) << "what is not stated is not proven";
  }
}

TEST(FitAccuracy, WhatTheDefaultDoesNotStateDecidesNothing) {
  const FitBounds f32{.a_plus_b = 0x1p-23};
  EXPECT_TRUE(is_as_accurate({.a_plus_b = 0x1p-24}, f32));
  EXPECT_FALSE(is_as_accurate({.a_plus_b = 0x1p-22}, f32));
}

// A table has neither A nor B; T and R are of every stored y.
TEST(FitAccuracy, ATableIsJudgedByTAndR) {
  FitBounds table{.t = kStandard.t, .r = kStandard.r, .direct = true};
  EXPECT_TRUE(is_as_accurate(table, kStandard));
  table.r *= 2;
  EXPECT_FALSE(is_as_accurate(table, kStandard));
}

TEST(FitAccuracy, IsWhatTheHeadersState) {
  constexpr FitClaims bf16 = claims_of<generated::GeluBf16>(), table = claims_of<generated::GeluBf16Oracle>(),
                      f32 = claims_of<generated::GeluF32>();
  EXPECT_EQ(std::string(bf16.name), generated::GeluBf16::kName);
  EXPECT_EQ(std::string(bf16.accuracy), generated::GeluBf16::kClass);
  EXPECT_EQ(bf16.bounds.a_plus_b, generated::GeluBf16::kA + generated::GeluBf16::kB);
  EXPECT_EQ(bf16.bounds.t, generated::GeluBf16::kT);
  EXPECT_EQ(bf16.bounds.r, generated::GeluBf16::kR);
  EXPECT_FALSE(bf16.bounds.direct);
  EXPECT_TRUE(table.bounds.direct);
  EXPECT_EQ(table.bounds.a_plus_b, FitBounds::kNone);
  EXPECT_EQ(f32.bounds.a_plus_b, generated::GeluF32::kA + generated::GeluF32::kB);
  EXPECT_EQ(f32.bounds.r, FitBounds::kNone);
  // kA of the class rel is a share of g.
  EXPECT_EQ(claims_of<generated::GeluF32Rel>().bounds.a_plus_b, FitBounds::kNone);
  EXPECT_FALSE(is_as_accurate(claims_of<generated::GeluF32Rel>().bounds, f32.bounds));
}

// T alone let these two pass: theirs is smaller than the default's.
TEST(FitAccuracy, ASmallerTIsNotEnough) {
  constexpr FitBounds standard = claims_of<generated::GeluBf16>().bounds;
  for (const FitBounds& coarse :
       {claims_of<generated::GeluBf16Fast>().bounds, claims_of<generated::GeluBf16Stored>().bounds}) {
    EXPECT_LT(coarse.t, standard.t);
    EXPECT_FALSE(is_as_accurate(coarse, standard));
  }
  EXPECT_TRUE(
      is_as_accurate(claims_of<generated::GeluF32Ulp>().bounds, claims_of<generated::GeluF32>().bounds));
}

template <class F>
struct ChoiceOf {
  using Fit = F;
};
template <class Fit, class Default>
struct Table {
  using Choices = kernels::Choices<ChoiceOf<Default>, ChoiceOf<Fit>, ChoiceOf<Default>>;
};
struct Asked : Table<generated::GeluBf16Fast, generated::GeluBf16> {
  static constexpr bool kAnyAccuracy = true;
};
struct NotAsked : Table<generated::GeluBf16Fast, generated::GeluBf16> {
  static constexpr bool kAnyAccuracy = false;
};

TEST(TunedTables, TakeNoLessAccurateFitAlongUnasked) {
  EXPECT_TRUE((table_is_as_accurate<Table<generated::GeluF32Ulp, generated::GeluF32>>()));
  EXPECT_FALSE((table_is_as_accurate<Table<generated::GeluBf16Fast, generated::GeluBf16>>()));
  EXPECT_FALSE((table_is_as_accurate<Table<generated::GeluF16Oracle, generated::GeluF16>>()));
  EXPECT_FALSE(table_is_as_accurate<NotAsked>());
  EXPECT_TRUE(table_is_as_accurate<Asked>());
}

// Whether a table keeps the rule without asking for any accuracy, and its last choice is the library's own
// default.
template <class Table, class Default>
int keeps() {
  const bool asks = requires { Table::kAnyAccuracy; };
  const FitClaims last = []<class... Choice>(Choices<Choice...>) {
    const FitClaims all[] = {claims_of_choice<Choice>()...};
    return all[sizeof...(Choice) - 1];
  }(typename Table::Choices{});
  EXPECT_EQ(last.name, claims_of<Default>().name);
  EXPECT_TRUE(table_is_as_accurate<Table>());
  EXPECT_FALSE(asks);
  return 1;
}

TEST(TunedTables, TheCommittedOnesKeepTheRule) {
  int tables = 0;
  const auto of_format = [&]<class T>(T) {
    using Default = typename DefaultFit<T>::Type;
    tables += keeps<tuned::GeluBackward<T>, Default>() + keeps<tuned::BiasGeluBackward<T>, Default>();
    tables +=
        keeps<cuda::tuned::GeluBackward<T>, Default>() + keeps<cuda::tuned::BiasGeluBackward<T>, Default>();
  };
  of_format(float{});
  of_format(F16{});
  of_format(BF16{});
  EXPECT_EQ(tables, 12) << "two kernels have a fit to choose, in three formats, on the CPU and on GPUs";
}

}  // namespace
}  // namespace outgrad::kernels
