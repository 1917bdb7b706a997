// The database: damaged lines cost themselves and nothing else; writers do not lose each other's lines.
#include "autotune/records/database.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>

#include "autotune/commands/commands.h"
#include "autotune/evidence/exchange.h"
#include "autotune/evidence/merge.h"
#include "kernels/support/files.h"

namespace outgrad::autotune {
namespace {

Record record(int value) {
  Record record;
  record.others["value"] = value;
  return record;
}

TEST(Database, AbsentIsEmpty) {
  const kernels::ScratchFolder folder;
  const Database database = load_database(folder / "none.jsonl");
  EXPECT_TRUE(database.records.empty());
  EXPECT_TRUE(database.warnings.empty());
}

TEST(Database, EveryCutOfTheLastLineCostsThatLineOnly) {
  const kernels::ScratchFolder folder;
  const std::string path = folder / "db.jsonl";
  append_records(path, {record(1), record(2)});
  const std::string whole = kernels::read_file(path);
  const std::size_t second = whole.find('\n') + 1;
  for (std::size_t size = second + 1; size + 1 < whole.size(); ++size) {
    kernels::write_file(path, whole.substr(0, size));
    append_records(path, {record(3)});
    const Database database = load_database(path);
    ASSERT_EQ(database.records.size(), 2u) << "cut at " << size;
    EXPECT_EQ(database.records[1].others["value"], 3);
    ASSERT_EQ(database.warnings.size(), 1u);
    EXPECT_EQ(database.warnings[0].rfind(path + ":2: ", 0), 0u) << database.warnings[0];
  }
}

TEST(Database, ForeignLinesAreWarningsWithTheirPlace) {
  const kernels::ScratchFolder folder;
  const std::string path = folder / "db.jsonl";
  kernels::write_file(path, line_of(record(1)) +
                                "\n[1,2]\n\n{\"schema\":\"outgrad.fit/2\"}\n{\"value\":1}\n\xff\xfe\n" +
                                line_of(record(2)) + "\n");
  const Database database = load_database(path);
  EXPECT_EQ(database.records.size(), 2u);
  EXPECT_EQ(left_out(database), database.warnings.front() + ", and 3 more such lines");
  ASSERT_EQ(database.warnings.size(), 4u);
  for (const auto& [index, line] : {std::pair{0, 2}, {1, 4}, {2, 5}, {3, 6}})
    EXPECT_EQ(
        database.warnings[static_cast<std::size_t>(index)].rfind(path + ":" + std::to_string(line) + ": ", 0),
        0u);
}

TEST(Database, ACompressedOneIsNamed) {
  const kernels::ScratchFolder folder;
  kernels::write_file(folder / "db.jsonl.gz", "\x1f\x8b\b");
  try {
    load_database(folder / "db.jsonl.gz");
    FAIL() << "it was read";
  } catch (const kernels::SpecError& refusal) {
    EXPECT_EQ(refusal.what(), folder / "db.jsonl.gz" + ": byte 1: is compressed: gunzip it first");
  }
}

// A file of a newer program is read by that program: every reader and writer refuses it, in one line, and
// leaves it as it is.
TEST(Database, ANewerSchemaIsRefusedWithItsPlace) {
  for (const std::string schema : {"outgrad.tune/2", "outgrad.tune/10", "outgrad.tune/1.1",
                                   "outgrad.tune/2-draft", "outgrad.tune/99999999999999999999"}) {
    SCOPED_TRACE(schema);
    const kernels::ScratchFolder folder;
    const std::string path = folder / "tune_cpu.jsonl";  // what a tuner on this folder appends to
    const std::string text = line_of(record(1)) + "\ndamaged\n{\"a\":[1],\"schema\":\"" + schema + "\"}\n" +
                             line_of(record(2)) + "\n";
    kernels::write_file(path, text);
    for (const auto& use : std::vector<std::function<void()>>{
             [&] { load_database(path); },
             [&] { append_records(path, {record(3)}); },
             [&] { read_recording(path); },
             [&] { tune_command({"--out", folder.path(), "--kernel", "gelu_forward", "--format", "f32"}); },
             [&] { tune_command({"--device", "replay:" + path}); },
         }) {
      try {
        use();
        FAIL() << "took it";
      } catch (const kernels::SpecError& error) {
        const std::string said = error.what();
        EXPECT_EQ(said.rfind(path + ":3: ", 0), 0u) << said;
        EXPECT_NE(said.find(schema), std::string::npos) << said;
        EXPECT_EQ(said.find('\n'), std::string::npos) << said;
      }
      EXPECT_EQ(kernels::read_file(path), text);
    }
  }
}

TEST(Database, OlderAndOtherSchemasAreWarningsOnly) {
  for (const std::string schema : {"outgrad.tune/0", "outgrad.tune", "outgrad.tune/", "outgrad.tune/x",
                                   "outgrad.tune_summary/2", "outgrad.tune/-2"}) {
    const kernels::ScratchFolder folder;
    const std::string path = folder / "db.jsonl";
    // The words stand in a value, too.
    kernels::write_file(path, "{\"schema\":\"" + schema +
                                  "\"}\n{\"schema\":\"outgrad.tune/1\",\"note\":\"not outgrad.tune/2\"}\n");
    append_records(path, {record(1)});
    const Database database = load_database(path);
    EXPECT_EQ(database.records.size(), 2u) << schema;
    EXPECT_EQ(database.warnings.size(), 1u) << schema;
  }
}

// Processes append many batches at once; one is killed in the middle of its work, wherever that is. Every
// batch whose append returned is there, whole.
TEST(Database, ConcurrentWritersLoseNothingAlsoWhenOneIsKilled) {
  const kernels::ScratchFolder folder;
  const std::string path = folder / "db.jsonl";
  constexpr int kWriters = 5, kAppends = 60, kBatch = 8;
  const std::string filler(2000, 'x');  // lines as long as the tuner's
  std::vector<pid_t> writers;
  std::vector<int> said;
  for (int writer = 0; writer < kWriters; ++writer) {
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child != 0) {
      ::close(pipe[1]);
      writers.push_back(child);
      said.push_back(pipe[0]);
      continue;
    }
    // The first goes on until it is killed.
    for (int append = 0; append < kAppends || writer == 0; ++append) {
      Record one;
      one.others = {{"writer", writer}, {"append", append}, {"filler", filler}};
      const std::vector<Record> batch(kBatch, one);
      append_records(path, batch);
      if (::write(pipe[1], &append, sizeof append) != sizeof append) ::_exit(1);
    }
    ::_exit(0);
  }
  std::vector<int> acknowledged(kWriters, 0);
  const auto listen = [&](int writer, int until) {
    for (int append;
         acknowledged[writer] < until && ::read(said[writer], &append, sizeof append) == sizeof append;)
      ++acknowledged[writer];
  };
  listen(0, 5);
  ::kill(writers[0], SIGKILL);
  for (int writer = 0; writer < kWriters; ++writer) {
    listen(writer, INT_MAX);
    ::close(said[writer]);
    int status = 1;
    ASSERT_EQ(::waitpid(writers[writer], &status, 0), writers[writer]);
    EXPECT_TRUE(writer == 0 ? WIFSIGNALED(status) : status == 0);
    EXPECT_GE(acknowledged[writer], writer == 0 ? 5 : kAppends);
  }
  const Database database = load_database(path);
  EXPECT_LE(database.warnings.size(), 1u) << "the line that the killed one was at";
  std::map<std::pair<int, int>, int> lines;
  for (const Record& one : database.records)
    ++lines[{one.others["writer"].get<int>(), one.others["append"].get<int>()}];
  for (int writer = 0; writer < kWriters; ++writer)
    for (int append = 0; append < acknowledged[writer]; ++append)
      EXPECT_EQ((lines[{writer, append}]), kBatch) << writer << ", " << append;
}

TEST(Database, AFileThatIsReplacedMeanwhileIsNotWrittenToByItsOldName) {
  const kernels::ScratchFolder folder;
  const std::string path = folder / "db.jsonl";
  append_records(path, {record(1)});
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const pid_t writer = ::fork();  // before the lock is taken: a child would inherit it
  if (writer == 0) {
    char go = 0;
    if (::read(pipe[0], &go, 1) == 1) append_records(path, {record(2)});
    ::_exit(go == 'g' ? 0 : 1);
  }
  {
    const DatabaseLock lock(path, /*create=*/false);
    ASSERT_EQ(::write(pipe[1], "g", 1), 1);
    ::usleep(200'000);  // it waits for the lock of the file that is about to go
    kernels::write_file(path, line_of(record(3)) + "\n");
  }
  int status = 1;
  ASSERT_EQ(::waitpid(writer, &status, 0), writer);
  EXPECT_EQ(status, 0);
  const Database database = load_database(path);
  ASSERT_EQ(database.records.size(), 2u);
  EXPECT_EQ(database.records[0].others["value"], 3);
  EXPECT_EQ(database.records[1].others["value"], 2);
}

// Two whole runs of the tuner on one folder at once.
TEST(Database, TwoTunersOnOneFolderBothFinish) {
  const kernels::ScratchFolder folder;
  std::vector<pid_t> tuners;
  for (const char* seed : {"1", "2"}) {
    tuners.push_back(::fork());
    ASSERT_GE(tuners.back(), 0);
    if (tuners.back() != 0) continue;
    const int nowhere = ::open("/dev/null", O_WRONLY);
    ::dup2(nowhere, STDOUT_FILENO);
    try {
      ::_exit(tune_command({"--out", folder.path(), "--kernel", "gelu_forward", "--format", "f32",
                            "--evaluations", "2", "--elements", "65536", "--budget", "300", "--seed", seed,
                            "--json"}));
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      ::_exit(99);
    }
  }
  for (const pid_t tuner : tuners) {
    int status = 1;
    ASSERT_EQ(::waitpid(tuner, &status, 0), tuner);
    EXPECT_EQ(status, 0);
  }
  const Database database = load_database(folder / "tune_cpu.jsonl");
  EXPECT_TRUE(database.warnings.empty());
  std::map<std::uint64_t, int> winners;  // what a run writes last
  for (const Record& one : database.records) winners[one.run.seed.value()] += one.winner == true ? 1 : 0;
  EXPECT_EQ(winners, (std::map<std::uint64_t, int>{{1, 1}, {2, 1}}));
  EXPECT_NE(kernels::read_file(folder / "tuned_cpu.h").find("struct"), std::string::npos);
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    EXPECT_EQ(entry.path().string().find(".tmp"), std::string::npos);
}

// A folder that nobody can write to, root neither: sysfs makes no files.
TEST(Database, AReadOnlyFolderIsOneClearLine) {
  const std::string folder = "/sys/kernel";
  if (!std::filesystem::is_directory(folder)) GTEST_SKIP() << "no sysfs to stand for a read-only folder";
  const auto refused = [&](const char* what, auto use) {
    try {
      use();
      ADD_FAILURE() << what << ": wrote into " << folder;
    } catch (const kernels::IoError& error) {
      const std::string said = error.what();
      EXPECT_EQ(said.rfind(folder, 0), 0u) << said;
      EXPECT_EQ(said.find('\n'), std::string::npos) << said;
      EXPECT_EQ(error.exit_status(),
                error.error_number() == EROFS ? kernels::kExitEnvironment : kernels::kExitBadInput)
          << said;
    }
  };
  refused("append", [&] { append_records(folder + "/db.jsonl", {record(1)}); });
  refused("tune", [&] {
    tune_command({"--out", folder, "--kernel", "gelu_forward", "--format", "f32", "--evaluations", "1",
                  "--elements", "65536"});
  });
  refused("publish", [&] { publish({}, {}, folder + "/outgrad", Accuracy::kAsDefault); });
  const kernels::ScratchFolder ours;
  append_records(ours / "in.jsonl", {record(1)});
  refused("merge", [&] { tune_command({"--merge", ours / "in.jsonl", "--out", folder + "/out.jsonl"}); });
  // A file where the cache's folder should be.
  kernels::write_file(ours / "variants", "");
  const std::vector<std::string> here = {"--out", ours.path(),     "--kernel", "gelu_forward", "--format",
                                         "f32",   "--evaluations", "1",        "--elements",   "65536"};
  EXPECT_THROW(tune_command(here), kernels::IoError);
  EXPECT_FALSE(std::filesystem::exists(ours / "tune_cpu.jsonl"));
  EXPECT_FALSE(std::filesystem::exists(ours / "tuned_cpu.h"));
}

TEST(Database, SaysWhyItCannotWrite) {
  const kernels::ScratchFolder folder;
  try {
    append_records(folder / "absent/db.jsonl", {record(1)});
    FAIL() << "wrote into a folder that is not there";
  } catch (const kernels::IoError& error) {
    EXPECT_EQ(error.exit_status(), kernels::kExitBadInput);
    EXPECT_NE(std::string(error.what()).find("absent/db.jsonl"), std::string::npos);
  }
  if (::access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full to stand for a full disk";
  try {
    append_records("/dev/full", {record(1)});
    FAIL() << "wrote to a full disk";
  } catch (const kernels::IoError& error) {
    EXPECT_EQ(error.error_number(), ENOSPC);
    EXPECT_EQ(error.exit_status(), kernels::kExitEnvironment);
  }
}

}  // namespace
}  // namespace outgrad::autotune
