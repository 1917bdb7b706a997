/// outgrad-fit: `fit` a specification, `emit` a header from a fit, `pareto` fronts, `reach`: what no fit can
/// do, `certify` a fit by programs that are not ours.

#include "approx/commands/commands.h"
#include "approx/function/activations.h"
#include "approx/progress.h"
#include "kernels/support/errors.h"
#include "kernels/support/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include <cmath>
#include <utility>

namespace outgrad::approx {

JobLine::JobLine(const std::string& label) : kernels::JobLine(label, describe_progress) {}

void add_threads(CLI::App& command, int& threads) {
  command.add_option("--threads", threads, "threads, 0 for all; the result does not depend on it")
      ->check(kernels::in_range(0, 1024));
}

std::string FunctionOptions::members() const {
  if (activation.empty() == expression.empty()) throw kernels::SpecError("give --activation or --expression");
  nlohmann::ordered_json members{
      {activation.empty() ? "expression" : "activation", activation.empty() ? expression : activation}};
  for (const auto& [option, value] : {std::pair("beta", beta), std::pair("alpha", alpha)})
    if (value) members["parameters"][option] = *value;
  const std::string text = members.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  return text.substr(1, text.size() - 2);
}

void add_function(CLI::App& command, FunctionOptions& options) {
  auto* const by_name = command.add_option("--activation", options.activation,
                                           fmt::format("{}", fmt::join(activation_names(), ", ")));
  command
      .add_option("--expression", options.expression,
                  "a function of x in place of an activation, such as \"x*sigmoid(1.2*x)\"")
      ->excludes(by_name);
  command.add_option("--beta", options.beta, "of swish");
  command.add_option("--alpha", options.alpha, "of elu");
}

CLI::Option* add_format(CLI::App& command, std::string& format) {
  return command.add_option("--format", format,
                            "of the stored y: f32, f16, bf16, e4m3, e5m2, mxfp8, f16_parity, bf16_parity");
}

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
