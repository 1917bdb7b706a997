// outgrad-check: the second witness. Subcommands check, validate, front, stability, report, compare.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/support/errors.h"
#include "kernels/support/options.h"
#include "kernels/support/progress.h"
#include "validation/certificate/check.h"
#include "validation/commands.h"

namespace {

using namespace outgrad;

validation::CheckReport check_with_progress(const validation::Header& header, const std::string& file,
                                            const std::string& place) {
  std::atomic<int> done = 0;
  const kernels::JobLine line(place,
                              [&] { return fmt::format("{} claims proven of {}", done.load(), file); });
  return validation::check_header(header, validation::Findings::all, &done);
}

// `status` is set where a bound does not hold; bad input and the environment leave by exceptions.
void add_check(CLI::App& app, int& status) {
  struct Arguments {
    std::vector<std::string> files;
    kernels::ResultForm form;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand(
      "check", "Re-prove the certificates of generated coefficient headers from their text alone");
  command->add_option("FILE", arguments->files, "generated headers")->required();
  kernels::add_result_form(*command, arguments->form, "the findings");
  command->callback([arguments, &status] {
    // All files are read before the first proof: a misspelt name should not cost the proofs of the others.
    std::vector<validation::Header> headers;
    for (const std::string& file : arguments->files) headers.push_back(validation::read_header(file));
    std::vector<validation::CheckReport> reports;
    const bool coloured = kernels::takes_colour(STDOUT_FILENO);
    for (std::size_t k = 0; k < headers.size(); ++k) {
      reports.push_back(check_with_progress(headers[k], arguments->files[k],
                                            fmt::format("header {} of {}", k + 1, headers.size())));
      if (!arguments->form) fmt::print("{}", validation::to_text(reports.back(), coloured));
      if (reports.back().verdict() != validation::Verdict::Holds) status = kernels::kExitViolated;
    }
    if (arguments->form)
      kernels::print_result(arguments->form, validation::to_json(reports), "files.findings");
  });
}

int run(int argc, char** argv) {
  CLI::App app("Proofs and validation for outgrad's generated kernels", "outgrad");
  app.require_subcommand(1);
  int status = kernels::kExitHolds;
  add_check(app, status);
  validation::add_validate(app, status, validation::validate_header);
  validation::add_front(app, status);
  validation::add_stability(app);
  validation::add_report(app, status);
  validation::add_compare(app);
  validation::add_plot(app);
  kernels::parse(app, {argv + 1, argv + argc});
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  return kernels::run_main([&] { return run(argc, argv); });
}
