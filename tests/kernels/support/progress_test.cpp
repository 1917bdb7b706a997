// A progress line on a terminal of the test's own, and where stderr is none.
#include "kernels/support/progress.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>

#include "tests/autotune/scoped_variable.h"

namespace outgrad::kernels {
namespace {

// What `draw` leaves on a terminal of so many columns, as bytes.
std::string on_terminal(unsigned short columns, const std::function<void()>& draw) {
  const int screen = ::posix_openpt(O_RDWR | O_NOCTTY);
  EXPECT_TRUE(screen >= 0 && ::grantpt(screen) == 0 && ::unlockpt(screen) == 0);
  const int terminal = ::open(::ptsname(screen), O_RDWR | O_NOCTTY);
  const winsize size{24, columns, 0, 0};
  EXPECT_EQ(::ioctl(terminal, TIOCSWINSZ, &size), 0);
  const int before = ::dup(STDERR_FILENO);
  ::dup2(terminal, STDERR_FILENO);
  draw();
  std::fputs("#", stderr);  // the end
  ::dup2(before, STDERR_FILENO);
  std::string bytes;
  for (char byte = 0; byte != '#' && ::read(screen, &byte, 1) == 1;) bytes += byte;
  for (const int descriptor : {before, terminal, screen}) ::close(descriptor);
  return bytes;
}

TEST(Folded, AnyLineFitsAndLosesNoWord) {
  EXPECT_EQ(folded("a line that fits", 16), "a line that fits");
  EXPECT_EQ(folded("a line that does not", 16), "a line that does\n    not");
  // a table goes on below its last column of the left half, and an indentation is no wider than that
  EXPECT_EQ(folded("  gelu   0.5   a remark of many words", 31),
            "  gelu   0.5   a remark of many\n               words");
  EXPECT_EQ(folded("  --out TEXT  where it goes to", 28), "  --out TEXT  where it goes\n              to");
  EXPECT_EQ(folded("            where it goes", 16), "        where it\n        goes");
  EXPECT_EQ(folded("a row  of a table  with cells", 22), "a row  of a table\n       with cells");
  // words are whole; colours and the further bytes of a letter take no column
  EXPECT_EQ(folded("see a/path/that/is/long here", 10), "see\n    a/path/that/is/long\n    here");
  EXPECT_EQ(folded("\033[32mholds\033[0m 2\u00d7", 8), "\033[32mholds\033[0m 2\u00d7");
  EXPECT_EQ(folded("| a | table |", 4), "| a | table |");
  EXPECT_EQ(folded("      ", 4), "      ");
  EXPECT_EQ(folded("", 4), "");
}

TEST(ProgressLine, IsDrawnInPlaceAndErasedAtTheEnd) {
  const std::string bytes = on_terminal(80, [] {
    ProgressLine line;
    EXPECT_TRUE(line.shown());
    line.draw("1 of 2");
    line.draw("2 of 2");
  });
  EXPECT_EQ(bytes, "\r\033[K1 of 2\r\033[K2 of 2\r\033[K#");
}

TEST(ProgressLine, IsErasedOnceAndWhereItWasDrawnAlone) {
  EXPECT_EQ(on_terminal(80, [] { ProgressLine(); }), "#");
  EXPECT_EQ(on_terminal(80, [] { ProgressLine(false).draw("1 of 2"); }), "#");
  const std::string bytes = on_terminal(80, [] {
    ProgressLine line;
    line.draw("1 of 2");
    line.erase();
  });
  EXPECT_EQ(bytes, "\r\033[K1 of 2\r\033[K#");
}

TEST(ProgressLine, StaysWithinTheTerminal) {
  EXPECT_EQ(on_terminal(10, [] { ProgressLine().draw("0123456789abc"); }), "\r\033[K012345678\r\033[K#");
  EXPECT_EQ(on_terminal(0, [] { ProgressLine().draw(std::string(200, 'x')); }),
            "\r\033[K" + std::string(79, 'x') + "\r\033[K#");
}

TEST(ProgressLine, IsNotDrawnElsewhere) {
  testing::internal::CaptureStderr();  // a file
  ProgressLine().draw("1 of 2");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(JobLine, SaysWhatTheJobIsAtAndLeavesNothing) {
  std::atomic<int> asked = 0;
  const std::string bytes = on_terminal(80, [&] {
    const JobLine line("job", [&] { return std::to_string(++asked) + " done"; });
    while (asked == 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  });
  EXPECT_TRUE(bytes.find(" s: 1 done") != bytes.npos) << bytes;
  EXPECT_TRUE(bytes.ends_with("\r\033[K#")) << bytes;
}

TEST(Colour, IsForTerminalsWhoseUsersTakeIt) {
  const auto takes = [](const std::string& refused, const std::string& terminal) {
    const autotune::ScopedVariable no_colour("NO_COLOR", refused), term("TERM", terminal);
    bool taken = false;
    on_terminal(80, [&] { taken = takes_colour(STDERR_FILENO); });
    return taken;
  };
  EXPECT_TRUE(takes("", "xterm"));
  EXPECT_FALSE(takes("1", "xterm"));
  EXPECT_FALSE(takes("", "dumb"));
  const int file = ::open("/dev/null", O_WRONLY);
  EXPECT_FALSE(takes_colour(file));
  ::close(file);
  EXPECT_EQ(in_colour(Colour::kGood, "holds"), "\033[32mholds\033[0m");
}

}  // namespace
}  // namespace outgrad::kernels
