// All kernels of the library built for other machines, one of them emulated, give its bits.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

namespace {

#ifndef OUTGRAD_C_HASH_MACHINES
#define OUTGRAD_C_HASH_MACHINES ""
#endif

// The lines that a command prints; none if it fails.
std::vector<std::string> lines_of(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return {};
  std::string text;
  std::array<char, 4096> buffer;
  while (const size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe))
    text.append(buffer.data(), got);
  if (pclose(pipe) != 0) return {};
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

void expect_the_librarys_bits(const std::string& machine) {
  std::istringstream all(OUTGRAD_C_HASH_MACHINES);
  std::string command;
  for (std::string entry; std::getline(all, entry, ':');) {
    if (entry.rfind(machine + "=", 0) == 0) command = entry.substr(machine.size() + 1);
  }
  if (command.empty())
    GTEST_SKIP() << "this build has no compiler or no emulator for " << machine
                 << ": tests/kernels/hash_programs.cmake";
  const auto expected = lines_of("'" OUTGRAD_C_HASH "'"), actual = lines_of(command);
  ASSERT_GT(expected.size(), 150u);  // c_api_test.cpp counts them
  ASSERT_EQ(actual.size(), expected.size());
  EXPECT_EQ(actual[1], "instruction_set baseline");  // the one variant of such a build
  for (size_t i = 2; i < expected.size(); ++i) EXPECT_EQ(actual[i], expected[i]);
}

// Built for these tests: tests/kernels/hash_programs.cmake.
TEST(MachinesExhaustive, CodeWithoutFmaGivesTheLibrarysBits) { expect_the_librarys_bits("portable"); }
TEST(MachinesExhaustive, ContractedCodeGivesTheLibrarysBits) { expect_the_librarys_bits("contracted"); }
TEST(MachinesExhaustive, UnoptimisedCodeGivesTheLibrarysBits) { expect_the_librarys_bits("plain"); }
TEST(MachinesExhaustive, ClangGivesTheLibrarysBits) { expect_the_librarys_bits("clang"); }
TEST(MachinesExhaustive, EmulatedAarch64GivesTheLibrarysBits) { expect_the_librarys_bits("aarch64"); }

}  // namespace
