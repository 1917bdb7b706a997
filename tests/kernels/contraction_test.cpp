// The same source gives the same bits whatever the compiler may contract and whichever instruction set it
// has.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

namespace {

#ifndef OUTGRAD_HASH_PROGRAMS
#define OUTGRAD_HASH_PROGRAMS ""
#endif

std::string output_of(const std::string& program) {
  std::string text;
  FILE* pipe = popen(("'" + program + "'").c_str(), "r");
  if (pipe == nullptr) return text;
  std::array<char, 4096> buffer;
  while (const size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe))
    text.append(buffer.data(), got);
  return pclose(pipe) == 0 ? text : "";
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

TEST(ContractionExhaustive, HashesAgreeAcrossFlags) {
  const std::vector<std::string> programs = split(OUTGRAD_HASH_PROGRAMS, ':');
  if (programs.size() < 2) GTEST_SKIP() << "tests/kernels/hash_programs.cmake is not part of this build";
  const std::string expected = output_of(programs.front());
  ASSERT_FALSE(expected.empty()) << programs.front();
  for (size_t i = 1; i < programs.size(); ++i) EXPECT_EQ(output_of(programs[i]), expected) << programs[i];
}

TEST(ContractionExhaustive, ScalarAndVectorLinesAgree) {
  const std::vector<std::string> programs = split(OUTGRAD_HASH_PROGRAMS, ':');
  if (programs.empty()) GTEST_SKIP() << "tests/kernels/hash_programs.cmake is not part of this build";
  for (const std::string& program : programs) {
    const std::vector<std::string> lines = split(output_of(program), '\n');
    ASSERT_GT(lines.size(), 30u) << program;
    for (size_t i = 0; i < lines.size(); ++i) {
      // Each backward and forward is printed twice, first from scalar code, then from vectors.
      if (lines[i].rfind("mask", 0) == 0 || lines[i].rfind("product_sum", 0) == 0) continue;
      ASSERT_LT(i + 1, lines.size());
      EXPECT_EQ(lines[i], lines[i + 1]) << program;
      ++i;
    }
  }
}

}  // namespace
