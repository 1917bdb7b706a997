// A text is a number as a whole or not at all.
#include "kernels/support/numbers.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace outgrad::kernels {
namespace {

TEST(Numbers, AreWholeTexts) {
  EXPECT_EQ(number_in<int>("-12"), -12);
  EXPECT_EQ(number_in<int>("010"), 10);
  EXPECT_EQ(number_in<double>("1e-3"), 1e-3);
  for (const char* text : {"", " 1", "1 ", "+1", "1x", "0x10", "99999999999"})
    EXPECT_EQ(number_in<int>(text), std::nullopt) << text;
  EXPECT_EQ(number_in<std::uint8_t>("256"), std::nullopt);
  EXPECT_EQ(number_in<double>("1,5"), std::nullopt);
}

TEST(Numbers, InPairs) {
  EXPECT_EQ(numbers_in<int>("3/8", '/'), std::pair(3, 8));
  for (const char* text : {"", "3", "/", "3/", "/8", "3/8/1", "3x8", "3 /8"})
    EXPECT_EQ(numbers_in<int>(text, '/'), std::nullopt) << text;
}

}  // namespace
}  // namespace outgrad::kernels
