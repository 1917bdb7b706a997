/// outgrad-fit: `fit` a specification, `emit` a header from a fit, `pareto` fronts, `reach`: what no fit can
/// do, `certify` a fit by programs that are not ours.

#include "approx/commands/commands.h"
#include "approx/progress.h"
#include "kernels/support/errors.h"
#include "kernels/support/options.h"
#include "kernels/support/progress.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <stop_token>

namespace outgrad::approx {

JobLine::JobLine(const std::string& label)
    : drawer_([label](const std::stop_token& over) {
        kernels::ProgressLine line;
        if (!line.shown()) return;
        const auto start = std::chrono::steady_clock::now();
        std::mutex guard;
        std::condition_variable_any wake;
        std::unique_lock lock(guard);
        while (!wake.wait_for(lock, over, std::chrono::seconds(1), [&] { return over.stop_requested(); })) {
          const double seconds =
              std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
          line.draw(fmt::format("{}: {:.0f} s: {}", label, seconds, describe_progress()));
        }
      }) {}

void add_threads(CLI::App& command, int& threads) {
  command.add_option("--threads", threads, "threads, 0 for all; the result does not depend on it")
      ->check(kernels::in_range(0, 1024));
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
