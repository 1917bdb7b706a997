// Arguments and output of `outgrad compare`.
#include "validation/commands.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/support/options.h"
#include "validation/report/compare.h"

namespace outgrad::validation {

void add_compare(CLI::App& app) {
  struct Arguments {
    std::string a, b;
    kernels::ResultForm form;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* const command = app.add_subcommand(
      "compare",
      "Two results side by side: what changed from A to B, and whether it is beyond the noise within a run");
  const char* const kinds = "A sweep, a bench (bench --json), or a database of the tuner (.jsonl)";
  command->add_option("A", arguments->a, kinds)->required();
  command->add_option("B", arguments->b, "One of the same kind")->required();
  kernels::add_result_form(*command, arguments->form, "the differences");
  command->callback([arguments] {
    const ComparedFile a = read_compared(arguments->a), b = read_compared(arguments->b);
    const std::vector<Difference> differences = compare(a, b);
    if (arguments->form)
      kernels::print_result(arguments->form, to_json(a, b, differences), "differences");
    else
      fmt::print("{}", to_text(a, b, differences));
  });
}

}  // namespace outgrad::validation
