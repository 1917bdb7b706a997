// SHA-256 gives the published digests, by instructions and without, however its input is cut.
#include "kernels/support/digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

namespace outgrad::kernels {
namespace {

std::string digest_of(Sha256::Way way, const std::string& text, std::size_t piece) {
  Sha256 sum(way);
  for (std::size_t at = 0; at < text.size(); at += piece)
    sum.add(text.data() + at, std::min(piece, text.size() - at));
  return hex(sum.digest());
}

TEST(Sha256, OfThePublishedExamples) {  // FIPS 180-4, and NIST's example values
  const std::pair<std::string, const char*> examples[] = {
      {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
      {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
      {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
       "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
      {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopq"
       "rstnopqrstu",
       "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
      {std::string(1'000'000, 'a'), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"}};
  for (const auto& [text, digest] : examples) {
    EXPECT_EQ(sha256(text), digest);
    for (const Sha256::Way way : {Sha256::Way::kFastest, Sha256::Way::kPortable})
      EXPECT_EQ(digest_of(way, text, 4096), digest);
  }
}

// Every length around the blocks' ends, in pieces that end everywhere in a block.
TEST(Sha256, IsOfTheBytesAndNotOfTheirPieces) {
  std::string text;
  for (int i = 0; i < 200; ++i) {
    const std::string whole = digest_of(Sha256::Way::kPortable, text, 1000);
    for (const std::size_t piece : {1, 55, 63, 64, 65}) {
      EXPECT_EQ(digest_of(Sha256::Way::kFastest, text, piece), whole) << i << " bytes in pieces of " << piece;
      EXPECT_EQ(digest_of(Sha256::Way::kPortable, text, piece), whole)
          << i << " bytes in pieces of " << piece;
    }
    text += static_cast<char>(7 * i);
  }
}

TEST(Hex, ThereAndBack) {
  const std::string bytes = {'\0', '\x7f', '\x80', '\xff', 'a'};
  EXPECT_EQ(hex(bytes), "007f80ff61");
  EXPECT_EQ(bytes_of_hex(hex(bytes)), bytes);
  for (const char* text : {"1", "0g", "0A"}) EXPECT_THROW(bytes_of_hex(text), std::invalid_argument) << text;
}

}  // namespace
}  // namespace outgrad::kernels
