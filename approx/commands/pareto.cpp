// `outgrad pareto` finds the fits of an activation and format that are worth choosing from.

#include "approx/search/pareto.h"

#include "approx/commands/commands.h"
#include "kernels/support/bounds.h"
#include "kernels/support/files.h"

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <utility>

namespace outgrad::approx {

void add_pareto(CLI::App& app, int&) {
  struct Arguments {
    FunctionOptions function;
    std::string format, out;
    int threads = 0;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* const command = app.add_subcommand(
      "pareto", "the fits of an activation and format that no other beats in operations, bytes and errors");
  add_function(*command, arguments->function);
  add_format(*command, arguments->format)->required();
  command->add_option("--out", arguments->out,
                      "where the front goes (default: out/pareto/NAME_FORMAT.json, named for the function)");
  add_threads(*command, arguments->threads);
  command->callback([arguments] {
    const auto& [function, format, out, threads] = *arguments;
    const std::string name = function.name(), members = function.members();
    const Format of = format_of(format);
    const std::string file = out.empty() ? "out/pareto/" + name + "_" + format + ".json" : out;
    kernels::require_writable(file);
    std::optional<JobLine> line(std::in_place, name + " " + format);
    const ParetoFront front = pareto_front(pareto_candidates(name, members, of, threads), threads);
    line.reset();
    kernels::write_file(file, to_json(front, name));
    for (const ParetoPoint& p : front.points) {
      fmt::print(
          "{:<36} work {:>3} depth {:>3} bytes {:>6} A + B <= {:<9} T {:<11} R {}\n", p.fit.name,
          p.merit.work, p.merit.depth, p.merit.table_bytes,
          p.fit.as<TableModel>() != nullptr ? "-" : kernels::power_up(p.merit.a_plus_b),
          p.oracle > 0 ? fmt::format("{:.4f} O", kernels::decimals_up(p.merit.total / p.oracle, 4)) : "-",
          kernels::power_up(p.merit.regret));
    }
    fmt::print(
        "{} {}: {} tried; {} too coarse, {} covered before they were fitted, {} out of reach, {} covered; {} "
        "on the front\n",
        name, format, front.tried, front.too_coarse, front.skipped, front.unreachable, front.covered,
        front.points.size());
  });
}

}  // namespace outgrad::approx
