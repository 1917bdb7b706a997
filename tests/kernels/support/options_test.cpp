// What every program's command line refuses, and how it says so.
#include "kernels/support/options.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace outgrad::kernels {
namespace {

// What a program with the command `fit [--threads N]` answers to these words.
std::string answer(const std::vector<std::string>& words) {
  CLI::App app("about", "outgrad");
  app.require_subcommand(1);
  int threads = 0;
  std::uint64_t boxes = 0;
  double tau = 1;
  std::string said = "help";
  CLI::App* const command = app.add_subcommand("fit", "about fit");
  command->add_option("--threads", threads)->check(in_range(0, 1024));
  command->add_option("--boxes", boxes);
  command->add_option("--tau", tau);
  command->callback([&] {
    said = "ran with " + std::to_string(threads);
    if (boxes > 0) said += ", " + std::to_string(boxes);
  });
  testing::internal::CaptureStdout();
  try {
    parse(app, words);
  } catch (const SpecError& error) {
    said = error.what();
  }
  const std::string help = testing::internal::GetCapturedStdout();
  return help.empty() ? said : help.substr(0, help.find('\n'));
}

TEST(CommandLine, RunsTheCommandOrSaysWhyNot) {
  EXPECT_EQ(answer({"fit", "--threads", "7"}), "ran with 7");
  EXPECT_EQ(answer({"fit", "--help"}), "about fit");
  EXPECT_EQ(answer({"--help"}), "about");
  EXPECT_EQ(answer({}), "A subcommand is required");
  EXPECT_EQ(answer({"frob", "--threads", "7"}), "unknown command frob");
  EXPECT_EQ(answer({"fit", "--threads", "1025"}), "fit: --threads: '1025' is not an integer from 0 to 1024");
  // As the tuner's options are read, and as people read them.
  EXPECT_EQ(answer({"fit", "--threads", "010", "--boxes", "0100"}), "ran with 10, 100");
  EXPECT_EQ(answer({"fit", "--threads", "0x10"}), "fit: --threads: '0x10' is not an integer");
  EXPECT_EQ(answer({"fit", "--boxes", "18446744073709551615"}), "ran with 0, 18446744073709551615");
  for (const std::string text : {"-1", "18446744073709551616", "1e3", ""})
    EXPECT_EQ(answer({"fit", "--boxes", text}), "fit: --boxes: '" + text + "' is not a count");
  EXPECT_EQ(answer({"fit", "--tau", ""}), "fit: --tau: '' is not a number");
  EXPECT_EQ(answer({"fit", "--frob"}), "fit: The following argument was not expected: --frob");
  EXPECT_EQ(answer({"fit", "--thread=7"}),
            "fit: The following argument was not expected: --thread=7; did you mean '--threads'?");
  EXPECT_EQ(answer({"fti", "--threads", "7"}), "unknown command fti; did you mean 'fit'?");
}

TEST(CommandLine, RangesLetNothingElsePass) {
  const CLI::Validator percent = in_range(0.0, 100.0), count = in_range(0, 100);
  for (const char* text : {"0", "100", "99.5", "1e1"}) EXPECT_EQ(percent(std::string(text)), "") << text;
  for (const char* text : {"nan", "inf", "-1", "100.1", "", "5%"})
    EXPECT_NE(percent(std::string(text)), "") << text;
  for (const char* text : {"", " 1", "0x10", "1.5", "101", "99999999999"})
    EXPECT_NE(count(std::string(text)), "") << text;
}

}  // namespace
}  // namespace outgrad::kernels
