// Outputs appear whole or not at all, arrays have the size asked for.
#include "kernels/support/files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "kernels/support/process.h"

namespace outgrad::kernels {
namespace {

namespace fs = std::filesystem;

class Files : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / ("outgrad-files-" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  size_t entries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }

  fs::path folder_;
};

TEST_F(Files, WhatIsWrittenIsRead) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{65536}, size_t{300001}}) {
    std::string content(size, '\0');
    for (size_t i = 0; i < size; ++i) content[i] = static_cast<char>(i * 37 + i / 256);
    write_file(path("a"), content);
    EXPECT_EQ(read_file(path("a")), content);
  }
  EXPECT_EQ(entries(), 1u);
}

TEST_F(Files, ArraysKeepBitsAndCount) {
  const std::vector<float> values = {1.0f, -0.0f, 0x1p-149f};
  write_array(path("a"), std::span<const float>(values));
  EXPECT_EQ(fs::file_size(path("a")), 12u);
  EXPECT_EQ(read_file(path("a")).substr(0, 4), std::string("\0\0\x80\x3f", 4));  // little-endian
  EXPECT_EQ(read_array<float>(path("a"), 3), values);
  EXPECT_EQ(read_array<u16>(path("a")).size(), 6u);
  EXPECT_THROW(read_array<float>(path("a"), 4), SpecError);
  EXPECT_THROW(read_array<float>(path("a"), 2), SpecError);
  write_file(path("b"), "12345");
  EXPECT_THROW(read_array<float>(path("b")), SpecError);
}

TEST_F(Files, NothingAppearsWithoutCommit) {
  write_file(path("a"), "old");
  {
    OutputFile file(path("a"));
    file.write("new");
    EXPECT_EQ(read_file(path("a")), "old");
  }
  EXPECT_EQ(read_file(path("a")), "old");
  EXPECT_EQ(entries(), 1u);
}

// A file size limit stands in for a full disk: write() fails midway in the same way.
TEST_F(Files, FailedWriteLeavesTheOldFileAndNoTemporary) {
  write_file(path("a"), "old");
  rlimit saved;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &saved), 0);
  rlimit small = saved;
  small.rlim_cur = 1000;
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_THROW(write_file(path("a"), std::string(5000, 'x')), IoError);
  setrlimit(RLIMIT_FSIZE, &saved);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(read_file(path("a")), "old");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(Files, FullDeviceIsReportedAsTheEnvironments) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  try {
    write_file("/dev/full", "x");
    FAIL();
  } catch (const IoError& error) {
    EXPECT_EQ(error.error_number(), ENOSPC);
    EXPECT_EQ(error.exit_status(), kExitEnvironment);
    EXPECT_NE(std::string(error.what()).find("/dev/full: write: No space left"), std::string::npos);
  }
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
}

TEST_F(Files, DevicesArePreservedAndLinksFollowed) {
  write_file("/dev/null", "x");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  write_file(path("target"), "old");
  fs::create_symlink("target", path("link"));
  write_file(path("link"), "new");
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_EQ(read_file(path("target")), "new");
}

TEST_F(Files, BadPathsAreBadInput) {
  for (const auto& attempt : {std::function<void()>([&] { read_file(path("absent")); }),
                              std::function<void()>([&] { read_file(folder_.string()); }),
                              std::function<void()>([&] { write_file("/dev/null/a", "x"); }),
                              std::function<void()>([&] { write_file(path("absent/"), "x"); }),
                              std::function<void()>([&] { write_file(folder_.string(), "x"); })}) {
    try {
      attempt();
      FAIL();
    } catch (const IoError& error) {
      EXPECT_EQ(error.exit_status(), kExitBadInput) << error.what();
    }
  }
  EXPECT_TRUE(fs::is_empty(folder_));
}

// Nobody may ever write to it. A pipe that a shell hands on has no name, and is read.
TEST_F(Files, ANamedPipeIsRefusedNotWaitedFor) {
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  EXPECT_THROW(read_file(path("fifo")), SpecError);
  EXPECT_THROW(read_array<float>(path("fifo")), SpecError);
  Pipe pipe;
  ASSERT_EQ(::write(pipe.to.get(), "in", 2), 2);
  pipe.to.close();
  EXPECT_EQ(read_file("/dev/fd/" + std::to_string(pipe.from.get())), "in");
}

// It would be read until no memory is left. /dev/null ends at once.
TEST_F(Files, ADeviceThatHasNoEndIsRefused) {
  for (const char* device : {"/dev/zero", "/dev/urandom", "/dev/full"}) {
    if (!fs::exists(device)) continue;
    EXPECT_THROW(read_file(device), SpecError) << device;
    EXPECT_THROW(read_array<float>(device), SpecError) << device;
  }
  EXPECT_EQ(read_file("/dev/null"), "");
}

// SIGXFSZ would end a program that does not ignore it, and leave its temporary file.
TEST_F(Files, AFileBeyondTheLimitIsAnErrorOfItsWrite) {
  const pid_t child = start_copy([&] {
    limit_resource(RLIMIT_FSIZE, 10);
    return run_main([&] {
      write_file(path("large"), std::string(100, 'x'));
      return kExitHolds;
    });
  });
  EXPECT_EQ(wait_for(child).status, kExitEnvironment);
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(Files, WithoutATemporaryFolderTheEnvironmentLacksSomething) {
  const char* const given = std::getenv("TMPDIR");
  const std::string saved = given == nullptr ? "" : given;
  ::setenv("TMPDIR", path("absent").c_str(), 1);
  EXPECT_THROW(ScratchFolder(), EnvironmentError);
  ::setenv("TMPDIR", folder_.c_str(), 1);
  EXPECT_EQ(fs::path(ScratchFolder().path()).parent_path(), folder_);
  given == nullptr ? ::unsetenv("TMPDIR") : ::setenv("TMPDIR", saved.c_str(), 1);
}

// Whatever thread made it: what a guard is told with is of one thread.
TEST_F(Files, AScratchFolderGoesWithTheProcessNotWithTheThreadThatMadeIt) {
  constexpr size_t kFolders = 20;
  Pipe pipe;
  const pid_t child = start_copy([&] {
    std::vector<std::unique_ptr<ScratchFolder>> folders(kFolders);
    for (auto& folder : folders) std::thread([&] { folder = std::make_unique<ScratchFolder>(); }).join();
    ::usleep(200'000);  // a guard that acts too early has acted
    std::string there;
    for (const auto& folder : folders)
      if (fs::exists(folder->path())) there += folder->path() + "\n";
    static_cast<void>(::write(pipe.to.get(), there.data(), there.size()));
    return ::kill(::getpid(), SIGKILL);
  });
  pipe.to.close();
  EXPECT_EQ(wait_for(child).signal, SIGKILL);
  std::string text;
  read_to_end(pipe.from, 5, [&](std::string_view more) { text += more; });
  std::vector<std::string> there;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) there.push_back(line);
  EXPECT_EQ(there.size(), kFolders);
  const auto left = [&] {
    return std::count_if(there.begin(), there.end(), [](const std::string& one) { return fs::exists(one); });
  };
  for (int tries = 0; tries < 500 && left() > 0; ++tries) ::usleep(10'000);
  EXPECT_EQ(left(), 0);
  for (const std::string& one : there) fs::remove_all(one);
}

TEST_F(Files, TheFolderOfAnOutputIsMade) {
  write_file(path("absent/in/absent"), "x");
  EXPECT_EQ(read_file(path("absent/in/absent")), "x");
}

TEST_F(Files, WhetherAFileCanBeWrittenIsToldBeforehand) {
  write_file(path("there"), "old");
  require_writable(path("there"));
  require_writable(path("new/one"));
  EXPECT_EQ(read_file(path("there")), "old");
  EXPECT_TRUE(fs::is_empty(path("new")));
  EXPECT_THROW(require_writable(path("there/in it")), IoError);
  EXPECT_THROW(require_writable(folder_.string()), IoError);
  require_writable(path("there"), {path("another"), path("new/there")});
  for (const char* same : {"there", "./there", "new/../there", "link"}) {
    std::error_code exists;
    fs::create_symlink("there", path("link"), exists);
    EXPECT_THROW(require_writable(path("there"), {path("another"), path(same)}), SpecError) << same;
  }
  // The reader of a pipe does not take the question for the end.
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  const int reader = ::open(path("pipe").c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  require_writable(path("pipe"));
  pollfd event{reader, POLLIN, 0};
  EXPECT_EQ(::poll(&event, 1, 0), 0) << "revents " << event.revents;
  ::close(reader);
}

TEST_F(Files, NamesAsLongAsTheSystemAllowsCanBeWritten) {
  const std::string name(255, 'n');
  write_file(path(name), "x");
  EXPECT_EQ(read_file(path(name)), "x");
}

TEST_F(Files, UmaskDecidesThePermissions) {
  const mode_t saved = ::umask(022);
  write_file(path("a"), "x");
  ::umask(saved);
  EXPECT_EQ(fs::status(path("a")).permissions(), static_cast<fs::perms>(0644));
}

}  // namespace
}  // namespace outgrad::kernels
