/// outgrad-fit: `fit` a specification, `emit` a header from a fit, `pareto` fronts, `reach`: what no fit can do, `certify` a fit by programs
/// that are not ours.

#include "approx/commands/commands.h"
#include "approx/progress.h"
#include "kernels/support/errors.h"
#include "kernels/support/options.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>

namespace outgrad::approx {

ProgressLine::ProgressLine(const std::string& label) {
  if (isatty(STDERR_FILENO) == 0) return;
  drawer_ = std::thread([this, label] {
    const auto start = std::chrono::steady_clock::now();
    std::unique_lock lock(guard_);
    while (!over_.wait_for(lock, std::chrono::seconds(1), [this] { return is_over_; })) {
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      fmt::print(stderr, "\r\033[K{}: {:.0f} s: {}", label, seconds, describe_progress());
    }
    if (std::chrono::steady_clock::now() - start > std::chrono::seconds(1)) fmt::print(stderr, "\r\033[K");
  });
}

ProgressLine::~ProgressLine() {
  if (!drawer_.joinable()) return;
  {
    const std::lock_guard lock(guard_);
    is_over_ = true;
  }
  over_.notify_one();
  drawer_.join();
}

std::string power(double bound) { return bound > 0 ? fmt::format("2^{:.2f}", std::log2(bound)) : "0"; }

namespace {

int run(int argc, char** argv) {
  CLI::App app{"Fits and certifies piecewise polynomials, and emits them as headers", "outgrad"};
  app.require_subcommand(1);
  int status = kernels::kExitHolds;
  for (const auto add : {add_fit, add_emit, add_certify, add_table, add_pareto, add_reach}) add(app, status);
  kernels::parse(app, {argv + 1, argv + argc});
  return status;
}

}  // namespace
}  // namespace outgrad::approx

int main(int argc, char** argv) {
  return outgrad::kernels::run_main([&] { return outgrad::approx::run(argc, argv); });
}
