#include "approx/progress.h"

#include "approx/function/composite.h"
#include "approx/function/storage.h"
#include "approx/model/spec.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace outgrad::approx {
namespace {

TEST(Progress, NamesOpenStagesOuterFirst) {
  EXPECT_TRUE(describe_progress().ends_with(" evaluations"));
  Stage outer("points", 3);
  outer.tick();
  {
    Stage inner("rows");
    inner.tick(5);
    EXPECT_TRUE(describe_progress().starts_with("points 1/3, rows 5, ")) << describe_progress();
    inner.expect(16);
    EXPECT_TRUE(describe_progress().starts_with("points 1/3, rows 5/16, ")) << describe_progress();
  }
  EXPECT_TRUE(describe_progress().starts_with("points 1/3, ")) << describe_progress();
  EXPECT_EQ(describe_progress().find("rows"), std::string::npos);
}

// Whoever watches a long job from another thread sees it move.
TEST(Progress, StorageIntervalsMoveWhileTheyAreMade) {
  const Spec spec = parse_spec(
      R"({"schema": "outgrad.spec/2", "kind": "backward", "activation": "mish", "format": "bf16",
          "name": "watched", "target": "oracle"})",
      "spec");
  std::atomic<bool> over{false};
  std::vector<std::string> seen;
  std::thread watcher([&] {
    while (!over) {
      const std::string now = describe_progress();
      if (now.starts_with("storage intervals ") && (seen.empty() || seen.back() != now)) seen.push_back(now);
    }
  });
  const Composite composite(spec.activation);
  EXPECT_FALSE(storage_intervals(composite, Format::bf16).empty());
  over = true;
  watcher.join();
  EXPECT_GT(seen.size(), 10u);
}

}  // namespace
}  // namespace outgrad::approx
