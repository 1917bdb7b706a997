// Arguments and outputs of `outgrad report`.
#include "validation/commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/support/errors.h"
#include "kernels/support/options.h"
#include "validation/report/facts.h"
#include "validation/report/own_function.h"
#include "validation/report/requirements.h"

namespace outgrad::validation {
namespace {

struct Arguments {
  std::string in = "out", out, headers, header;
  kernels::ResultForm form;
};

/// Headers are in the folder itself or, for the committed results of a checkout, where they are committed:
/// kernels/generated beside it.
std::string headers_of(const std::filesystem::path& in) {
  namespace fs = std::filesystem;
  const fs::path own = in / "generated",
                 committed = fs::absolute(in).lexically_normal() / "../kernels/generated";
  std::error_code ignored;
  return (fs::is_directory(own, ignored) || !fs::is_directory(committed, ignored)
              ? own
              : committed.lexically_normal())
      .string();
}

/// Whether no requirement is violated.
bool report(const Arguments& arguments) {
  namespace fs = std::filesystem;
  const fs::path in(arguments.in), out(arguments.out.empty() ? in / "report" : fs::path(arguments.out));
  const std::string headers = arguments.headers.empty() ? headers_of(in) : arguments.headers;
  const Results results = read_results(in.string(), headers);
  // The headers of a checkout, which stand beside any folder of it, are no results of that folder.
  const bool borrowed = arguments.headers.empty() && headers != (in / "generated").string();
  if (results.empty(borrowed))
    throw kernels::SpecError(arguments.in, "--in",
                             "holds no results (fits/, generated/, sweeps/, foreign/, stability/, attack/, "
                             "pareto/, front/, proofs/, studies/, training/, tests/, tuned/)");
  const std::vector<Requirement> rows = requirements(results);
  Json json = to_json(rows);
  const std::string shown =
      arguments.form ? kernels::to_text(arguments.form, json, "requirements") : to_text(rows);
  json["facts"] = facts(results);
  write_report(json, out.string());
  fmt::print("{}", shown);
  return std::none_of(rows.begin(), rows.end(),
                      [](const Requirement& row) { return row.verdict() == RequirementVerdict::fail; });
}

}  // namespace

void add_report(CLI::App& app, int& status) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* const command = app.add_subcommand(
      "report", "What was proved and measured, as HTML and Markdown, against what must be reached");
  command
      ->add_option("--in", arguments->in,
                   "Folder with fits/, generated/, sweeps/, foreign/, stability/, attack/, pareto/, front/, "
                   "proofs/, studies/, training/, tests/, tuned/; what is missing is "
                   "taken from the same folders in committed/, or is not measured. provenance.json says of "
                   "which run they are")
      ->capture_default_str();
  command
      ->add_option(
          "--header", arguments->header,
          "In place of all that: a page of one header, such as `fit --expression` writes, or of all headers "
          "of a folder")
      ->excludes("--in");
  command
      ->add_option(
          "--headers", arguments->headers,
          "Folder with the coefficient headers (default: IN/generated, else kernels/generated beside IN)")
      ->excludes("--header");
  command->add_option(
      "--out", arguments->out,
      "Folder for index.html, report.md and report.json (default: IN/report; of a header the folder "
      "NAME_report beside it, with own.json)");
  kernels::add_result_form(*command, arguments->form, "the requirements and their verdicts");
  command->callback([arguments, &status] {
    const bool holds = arguments->header.empty()
                           ? report(*arguments)
                           : report_of_own(arguments->header, arguments->out, arguments->form);
    if (!holds) status = kernels::kExitViolated;
  });
}

}  // namespace outgrad::validation
