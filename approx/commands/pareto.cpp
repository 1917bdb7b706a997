// `outgrad pareto` finds the fits of an activation and format that are worth choosing from.

#include "approx/search/pareto.h"

#include "approx/commands/commands.h"
#include "approx/function/activations.h"
#include "kernels/support/errors.h"
#include "kernels/support/files.h"
#include "kernels/support/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

namespace outgrad::approx {

void add_pareto(CLI::App& app, int&) {
  struct Arguments {
    std::string activation, expression, format, out;
    std::optional<double> beta, alpha;
    int threads = 0;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* const command = app.add_subcommand(
      "pareto", "the fits of an activation and format that no other beats in operations, bytes and errors");
  auto* const by_name = command->add_option("--activation", arguments->activation,
                                            fmt::format("{}", fmt::join(activation_names(), ", ")));
  command->add_option("--expression", arguments->expression, "a function of x in place of an activation")
      ->excludes(by_name);
  command->add_option("--beta", arguments->beta, "of swish");
  command->add_option("--alpha", arguments->alpha, "of elu");
  command
      ->add_option("--format", arguments->format,
                   "f32, f16, bf16, e4m3, e5m2, mxfp8, f16_parity, bf16_parity")
      ->required();
  command->add_option("--out", arguments->out,
                      "where the front goes (default: out/pareto/ACTIVATION_FORMAT.json)");
  add_threads(*command, arguments->threads);
  command->callback([arguments] {
    const auto& [activation, expression, format, out, beta, alpha, threads] = *arguments;
    if (activation.empty() == expression.empty())
      throw kernels::SpecError("pareto: give --activation or --expression");
    const Format of = format_of(format);
    const std::string name = activation.empty() ? "expression" : activation;
    nlohmann::ordered_json definition{
        {activation.empty() ? "expression" : "activation", activation.empty() ? expression : activation}};
    for (const auto& [option, value] : {std::pair("beta", beta), std::pair("alpha", alpha)}) {
      if (value) definition["parameters"][option] = *value;
    }
    const std::string member = definition.dump();
    const JobLine line(name + " " + format);
    const ParetoCandidates candidates =
        pareto_candidates(name, member.substr(1, member.size() - 2), of, threads);
    const ParetoFront front = pareto_front(candidates, threads);
    kernels::write_file(out.empty() ? "out/pareto/" + name + "_" + format + ".json" : out,
                        to_json(front, name));
    for (const ParetoPoint& p : front.points) {
      fmt::print("{:<36} work {:>3} depth {:>3} bytes {:>6} A + B <= {:<9} T {:<11} R {}\n", p.fit.name,
                 p.merit.work, p.merit.depth, p.merit.table_bytes, power(p.merit.a_plus_b),
                 p.oracle > 0 ? fmt::format("{:.4f} O", p.merit.total / p.oracle) : "-",
                 power(p.merit.regret));
    }
    fmt::print(
        "{} {}: {} tried; {} too coarse, {} covered before they were fitted, {} out of reach, {} covered; {} "
        "on the front\n",
        name, format, front.tried, front.too_coarse, front.skipped, front.unreachable, front.covered,
        front.points.size());
  });
}

}  // namespace outgrad::approx
