// Runs untrusted kernels in a child process: a crash or a hang there is an outcome here.
//
// The child is a fork of this process. libgomp's thread pool does not survive a fork, so the parent must not
// enter an OpenMP region before it runs children; everything that computes runs in the child.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace outgrad::autotune {

// How long to wait for what may hang: many times what the baseline took, once that is known.
class Patience {
 public:
  // Within [least_seconds, most_seconds]: a busy machine makes anybody late.
  Patience(double times, double least_seconds, double most_seconds)
      : times_(times), least_(std::min(least_seconds, most_seconds)), most_(most_seconds) {}
  bool knows_baseline() const { return baseline_ > 0; }
  double seconds() const;
  // "2.5 s, 50 times the baseline's 0.05 s"
  std::string text() const;
  void baseline_took(double seconds);  // the longest counts

 private:
  double times_, least_, most_;
  std::atomic<double> baseline_ = 0;  // 0: not known yet
};

struct IsolationLimits {
  double silence_seconds = 60;          // the child is killed when it says nothing for so long
  long long memory_bytes = 64LL << 30;  // address space, thread stacks included; kNoLimit: as the parent's
  Patience* patience = nullptr;  // with every item but 0, which is the baseline; it outlives one child
  static constexpr long long kNoLimit = -1;
};

// What the body in the child tells the parent. Each message also restarts the child's clock.
class Channel {
 public:
  explicit Channel(int descriptor) : descriptor_(descriptor) {}
  // Says, before it happens, which item is about to run, so that the parent knows whom to blame.
  void launching(int item) const { send({{"launching", item}}); }
  void report(const nlohmann::json& result) const { send({{"report", result}}); }

 private:
  void send(nlohmann::json message) const;
  int descriptor_;
};

struct ChildEnd {
  enum class Kind { kFinished, kCrashed, kHung, kOutOfMemory };
  Kind kind = Kind::kFinished;
  int last_launched = -1;  // -1: nothing was launched
  std::string detail;  // "killed by signal 11 (Segmentation fault)", ...
};

// Forks, runs body in the child and hands each of its reports to on_report, in order. An exception that
// leaves body is a crash with its text, std::bad_alloc and what derives from it kOutOfMemory. The child dies
// with its parent. Throws EnvironmentError when no process or pipe can be made.
ChildEnd run_isolated(const std::function<void(const Channel&)>& body,
                      const std::function<void(const nlohmann::json&)>& on_report,
                      const IsolationLimits& limits);

}  // namespace outgrad::autotune
