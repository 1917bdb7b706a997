// Keeps the stages that are open, and the count of evaluations, for any thread to add to.
#include "approx/progress.h"

#include <fmt/format.h>

#include <mutex>
#include <vector>

namespace outgrad::approx {
namespace {

std::mutex guard;                 // guards `open_stages`
std::vector<Stage*> open_stages;  // outer first
std::atomic<std::int64_t> evaluations{0};

}  // namespace

Stage::Stage(const char* what, std::int64_t all) : what_(what), all_(all) {
  const std::lock_guard lock(guard);
  open_stages.push_back(this);
}

Stage::~Stage() {
  const std::lock_guard lock(guard);
  std::erase(open_stages, this);
}

void count_evaluation() { evaluations.fetch_add(1, std::memory_order_relaxed); }

std::string describe_progress() {
  const std::lock_guard lock(guard);
  std::string text;
  for (const Stage* stage : open_stages) {
    const std::int64_t all = stage->all_.load(std::memory_order_relaxed);
    text += fmt::format("{} {}{}, ", stage->what_, stage->done_.load(std::memory_order_relaxed),
                        all > 0 ? fmt::format("/{}", all) : "");
  }
  return text + fmt::format("{} evaluations", evaluations.load(std::memory_order_relaxed));
}

}  // namespace outgrad::approx
