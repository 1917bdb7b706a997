// Which words are near enough to be meant.
#include "kernels/support/suggestion.h"

#include <gtest/gtest.h>

namespace outgrad::kernels {
namespace {

const std::vector<std::string> kWords{"gelu", "gelu_tanh", "silu", "softplus", "--expression", "--format"};

TEST(Suggestion, NamesTheNearestWordWithinSomeSlips) {
  EXPECT_EQ(did_you_mean("sliu", kWords), "; did you mean 'silu'?");  // exchanged
  EXPECT_EQ(did_you_mean("slu", kWords), "; did you mean 'silu'?");  // left out
  EXPECT_EQ(did_you_mean("siluu", kWords), "; did you mean 'silu'?");  // added
  EXPECT_EQ(did_you_mean("sofplsu", kWords), "");  // two slips in seven letters
  EXPECT_EQ(did_you_mean("sofptlus", kWords), "; did you mean 'softplus'?");
  EXPECT_EQ(did_you_mean("--expresion", kWords), "; did you mean '--expression'?");
  EXPECT_EQ(did_you_mean("gelu_tnah", kWords), "; did you mean 'gelu_tanh'?");
}

TEST(Suggestion, SaysNothingOfFarOrEqualWordsAndOfNone) {
  for (const char* word : {"", "mish", "x", "--frob", "silu"})
    EXPECT_EQ(did_you_mean(word, kWords), "") << word;
  EXPECT_EQ(did_you_mean(std::string(100000, 'a'), kWords), "");
  EXPECT_EQ(did_you_mean("silu", {}), "");
  EXPECT_EQ(did_you_mean("a", {"b"}), "");  // nothing of the word is left
}

// A slip may stand anywhere, and the distance is the same both ways.
TEST(Suggestion, FindsEveryWordWithOneLetterLeftOut) {
  for (const std::string& word : kWords) {
    for (std::size_t k = 0; k < word.size(); ++k) {
      std::string slip = word;
      slip.erase(k, 1);
      EXPECT_EQ(did_you_mean(slip, {word}), "; did you mean '" + word + "'?");
      EXPECT_EQ(did_you_mean(word, {slip}), "; did you mean '" + slip + "'?");
    }
  }
}

}  // namespace
}  // namespace outgrad::kernels
