// The sums of columns that CUDA kernels add up are the tree's of kernels/reduce.h, for every number of slots
// and words.
#include "kernels/cuda/columns.cuh"

#include <gtest/gtest.h>

#include <vector>

#include "tests/kernels/gpu_stand_in/cases.h"

namespace outgrad::kernels {
namespace {

using namespace tests::gpu_stand_in;

// Neighbours first, by definition.
std::vector<float> added(std::vector<float> sums, i64 words, i64 slots) {
  for (i64 apart = 1; apart < slots; apart *= 2) {
    for (i64 slot = 0; slot < slots; slot += 2 * apart) {
      for (i64 j = 0; j < words; ++j) {
        float& sum = sums[static_cast<std::size_t>(slot * words + j)];
        sum = add_rn(sum, sums[static_cast<std::size_t>((slot + apart) * words + j)]);
      }
    }
  }
  sums.resize(static_cast<std::size_t>(words));
  return sums;
}

TEST(StandInColumns, SlotRowsAreSlotBegins) {
  for (const i64 rows : {1, 2, 3, 7, 8, 9, 1000, 1023, 1024, 100'003}) {
    for (i64 slots = 1; slots <= rows; slots *= 2) {
      const cuda::SlotRows slot_rows = cuda::slot_rows(rows, slots);
      for (i64 slot = 0; slot <= slots; ++slot)
        ASSERT_EQ(slot_rows.begin(slot), slot_begin(rows, slots, slot)) << rows << ' ' << slots;
    }
  }
}

TEST(StandInColumns, SlotsAreAddedAsTheTreeOrders) {
  Values<float> values(1);
  constexpr i64 kFan = cuda::kSlotFan;
  for (const i64 words : {1, 2, 31, 255, 256, 257, 600}) {
    for (const i64 slots : {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048}) {
      if (words * slots > 40000) continue;
      SCOPED_TRACE(std::to_string(slots) + " slots of " + std::to_string(words));
      const std::vector<float> terms = values.moderate(words * slots);
      const auto sums = GuardedArray<float>::with(terms, {.name = "sums"});
      next_order();
      for (i64 left = slots, apart = 1; left > 1; left = (left + kFan - 1) / kFan, apart *= kFan)
        expect_success(
            cuda::launch_add_slots({.kernel = cuda::DeviceKernel::add_slots,
                                    .blocks = cuda::column_blocks(words * ((left + kFan - 1) / kFan)),
                                    .threads = cuda::kColumnThreads,
                                    .left = left,
                                    .apart = apart},
                                   sums.get(), words, nullptr));
      std::vector<float> first = sums.values();
      first.resize(static_cast<std::size_t>(words));
      EXPECT_EQ(patterns::first_difference(first, added(terms, words, slots)), -1);
      EXPECT_TRUE(sums.untouched_outside());
    }
  }
}

// The last kernel: rows of sums that lie apart, dgamma divided, either result alone.
TEST(StandInColumns, FinishAddsAndDivides) {
  Values<float> values(2);
  for (const i64 n : {1, 31, 32, 33, 70}) {
    for (const i64 left : {1, 2, 16, 32, 64, 256}) {
      for (const i64 apart : {1, 3}) {
        const i64 stride = n + 3, words = 2 * stride;
        SCOPED_TRACE(std::to_string(left) + " rows of sums of " + std::to_string(n) + " columns, apart by " +
                     std::to_string(apart));
        const std::vector<float> terms = values.moderate(left * apart * words), divisor = values.moderate(n);
        std::vector<float> together;
        for (i64 row = 0; row < left; ++row)
          together.insert(together.end(), terms.begin() + row * apart * words,
                          terms.begin() + (row * apart + 1) * words);
        const std::vector<float> sums = added(together, words, left);
        for (int which = 1; which < 8; ++which) {
          const bool gamma = (which & 1) != 0, beta = (which & 2) != 0, divides = (which & 4) != 0;
          const auto from = GuardedArray<float>::with(terms, {.name = "sums"});
          const auto by = GuardedArray<float>::with(divisor, {.name = "divisor"});
          const GuardedArray<float> dgamma(n, {.name = "dgamma"}), dbeta(n, {.name = "dbeta"});
          next_order();
          const auto blocks =
              static_cast<unsigned>(2 * ((n + cuda::kFinishColumns - 1) / cuda::kFinishColumns));
          expect_success(cuda::launch(cuda::finish_columns<>, blocks, cuda::kColumnThreads, 0, nullptr,
                                      static_cast<const float*>(from.get()),
                                      divides ? static_cast<const float*>(by.get()) : nullptr,
                                      static_cast<const void*>(nullptr), n, stride, words, left, apart,
                                      gamma ? dgamma.get() : nullptr, beta ? dbeta.get() : nullptr));
          std::vector<float> quotients(sums.begin(), sums.begin() + n);
          for (i64 j = 0; divides && j < n; ++j)
            quotients[static_cast<std::size_t>(j)] =
                div_rn(sums[static_cast<std::size_t>(j)], divisor[static_cast<std::size_t>(j)]);
          if (gamma) expect_equal("dgamma", dgamma, quotients);
          if (beta) expect_equal("dbeta", dbeta, {sums.begin() + stride, sums.begin() + stride + n});
          EXPECT_TRUE(from.untouched_outside() && dgamma.untouched_outside() && dbeta.untouched_outside());
        }
      }
    }
  }
}

}  // namespace
}  // namespace outgrad::kernels
