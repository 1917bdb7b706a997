// The numbers are the published ones.
#include "kernels/support/random.h"

#include <gtest/gtest.h>

namespace outgrad::kernels {
namespace {

TEST(Random, IsSplitmix64) {
  Random random(1234567);  // the first five of Vigna's splitmix64.c, as Rosetta Code lists them
  for (const std::uint64_t number : {6457827717110365317u, 3203168211198807973u, 9817491932198370423u,
                                     4593380528125082431u, 16408922859458223821u})
    EXPECT_EQ(random.bits(), number);
}

TEST(Random, StaysInItsRange) {
  Random random(1);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_LT(random.below(3), 3u);
    const double drawn = random.uniform(-2, 5);
    EXPECT_TRUE(drawn >= -2 && drawn < 5) << drawn;
  }
}

}  // namespace
}  // namespace outgrad::kernels
