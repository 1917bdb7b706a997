// A list has as many parts as commas and one more.
#include "kernels/support/lists.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace outgrad::kernels {
namespace {

TEST(Lists, KeepEmptyParts) {
  using Parts = std::vector<std::string>;
  EXPECT_EQ(parts_of("a,bc"), (Parts{"a", "bc"}));
  EXPECT_EQ(parts_of(""), Parts{""});
  EXPECT_EQ(parts_of(",1,,3,"), (Parts{"", "1", "", "3", ""}));
}

}  // namespace
}  // namespace outgrad::kernels
