// The database: damaged lines cost themselves and nothing else; writers do not lose each other's lines.
#include "autotune/database.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <set>

#include "kernels/host/files.h"
#include "tests/autotune/temporary_folder.h"

namespace outgrad::autotune {
namespace {

nlohmann::json record(int value) { return {{"schema", kSchema}, {"value", value}}; }

TEST(Database, AbsentIsEmpty) {
  const TemporaryFolder folder;
  const Database database = load_database(folder / "none.jsonl");
  EXPECT_TRUE(database.records.empty());
  EXPECT_TRUE(database.warnings.empty());
}

TEST(Database, EveryCutOfTheLastLineCostsThatLineOnly) {
  const TemporaryFolder folder;
  const std::string path = folder / "db.jsonl";
  append_records(path, {record(1), record(2)});
  const std::string whole = kernels::read_file(path);
  const std::size_t second = whole.find('\n') + 1;
  for (std::size_t size = second + 1; size + 1 < whole.size(); ++size) {
    kernels::write_file(path, whole.substr(0, size));
    append_records(path, {record(3)});
    const Database database = load_database(path);
    ASSERT_EQ(database.records.size(), 2u) << "cut at " << size;
    EXPECT_EQ(database.records[1]["value"], 3);
    ASSERT_EQ(database.warnings.size(), 1u);
    EXPECT_EQ(database.warnings[0].rfind(path + ":2: ", 0), 0u) << database.warnings[0];
  }
}

TEST(Database, ForeignLinesAreWarningsWithTheirPlace) {
  const TemporaryFolder folder;
  const std::string path = folder / "db.jsonl";
  kernels::write_file(path,
                      record(1).dump() + "\n[1,2]\n\n{\"schema\":\"outgrad.tune/2\"}\n{\"value\":1}\n\xff\xfe\n" + record(2).dump() + "\n");
  const Database database = load_database(path);
  EXPECT_EQ(database.records.size(), 2u);
  ASSERT_EQ(database.warnings.size(), 4u);
  for (const auto& [index, line] : {std::pair{0, 2}, {1, 4}, {2, 5}, {3, 6}})
    EXPECT_EQ(database.warnings[static_cast<std::size_t>(index)].rfind(path + ":" + std::to_string(line) + ": ", 0), 0u);
}

TEST(Database, ConcurrentWritersLoseNothing) {
  const TemporaryFolder folder;
  const std::string path = folder / "db.jsonl";
  constexpr int kWriters = 4, kAppends = 25, kBatch = 8;
  for (int writer = 0; writer < kWriters; ++writer) {
    if (::fork() != 0) continue;
    for (int append = 0; append < kAppends; ++append) {
      std::vector<nlohmann::json> batch;
      for (int i = 0; i < kBatch; ++i) batch.push_back(record((writer * kAppends + append) * kBatch + i));
      append_records(path, batch);
    }
    ::_exit(0);
  }
  for (int writer = 0; writer < kWriters; ++writer) {
    int status = 1;
    ASSERT_GT(::wait(&status), 0);
    EXPECT_EQ(status, 0);
  }
  const Database database = load_database(path);
  EXPECT_TRUE(database.warnings.empty());
  std::set<int> values;
  for (const nlohmann::json& one : database.records) values.insert(one["value"].get<int>());
  EXPECT_EQ(values.size(), static_cast<std::size_t>(kWriters * kAppends * kBatch));
}

TEST(Database, SaysWhyItCannotWrite) {
  const TemporaryFolder folder;
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
