/// How far a long job is, for whoever draws it: the stages that are open in this process, what they counted,
/// and how many evaluations of the function were made since, which moves even where a stage's own steps are
/// long.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace outgrad::approx {

/// Open while it lives, within the stages opened before it. Any thread may open one and tick.
class Stage {
 public:
  /// `what` outlives the stage. `all` steps are expected; 0: unknown.
  explicit Stage(const char* what, std::int64_t all = 0);
  ~Stage();
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;
  void tick(std::int64_t steps = 1) { done_.fetch_add(steps, std::memory_order_relaxed); }
  void expect(std::int64_t all) { all_.store(all, std::memory_order_relaxed); }

 private:
  friend std::string describe_progress();
  const char* what_;
  std::atomic<std::int64_t> done_{0}, all_;
};

/// Counts one evaluation of a function over balls or series.
void count_evaluation();

/// "rows 3/16, 1240000 evaluations"; of nested stages the outer first.
std::string describe_progress();

}  // namespace outgrad::approx
