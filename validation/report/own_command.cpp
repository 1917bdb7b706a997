// Finds the headers, has the data made of them, and the page or the picture of the data.
#include "validation/commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include "kernels/support/errors.h"
#include "kernels/support/files.h"
#include "kernels/support/process.h"
#include "kernels/support/progress.h"
#include "validation/report/facts.h"
#include "validation/report/own_function.h"
#include "validation/report/requirements.h"

namespace outgrad::validation {
namespace {

namespace fs = std::filesystem;

constexpr const char* kScript = "own_page.py";

/// A path with another ending.
std::string with_ending(const std::string& path, const std::string& ending) {
  return (fs::path(path).parent_path() / fs::path(path).stem()).string() + ending;
}

/// The header of a fit, by the fitter, the program beside this one.
Header header_of_fit(const std::string& path) {
  const kernels::ScratchFolder scratch;
  const std::string header = scratch / fs::path(path).stem().string() + ".h",
                    fitter = kernels::beside_this_program("outgrad-fit");
  kernels::Launch launch{{fitter, "emit", path, "--out", header}};
  launch.err = kernels::Launch::kCaptured;
  const kernels::Ending ending = kernels::run(launch);
  if (ending.status == kernels::kExitHolds) return read_header(header);
  constexpr const char* kPrefix = "outgrad: ";
  std::string why = ending.text.substr(0, ending.text.find('\n'));
  if (why.starts_with(kPrefix)) why.erase(0, std::string_view(kPrefix).size());
  if (ending.status == kernels::kExitBadInput) throw kernels::SpecError(why);
  throw kernels::EnvironmentError(fitter + ": " + (why.empty() ? "cannot be started" : why));
}

/// Of a fit's JSON or a header.
Header read_either(const std::string& path) {
  const std::string text = kernels::read_file(path);
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string::npos && text[first] == '{' ? header_of_fit(path) : parse_header(text, path);
}

std::vector<std::string> headers_in(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return {path};
  std::vector<std::string> headers;
  for (const fs::directory_entry& entry : fs::directory_iterator(path))
    if (entry.path().extension() == ".h") headers.push_back(entry.path().string());
  if (headers.empty()) throw kernels::SpecError(path, "--header", "this folder has no header");
  std::sort(headers.begin(), headers.end());
  return headers;
}

/// The script reads nothing but its data.
bool refuses_nothing(const std::string&) { return false; }

void plot(const std::string& path, const std::string& out) {
  const std::string to = out.empty() ? with_ending(path, ".svg") : out;
  const Header header = read_either(path);
  kernels::require_writable(to, {path});
  Json data{{"schema", kOwnSchema}, {"functions", {own_function(header, /*proves=*/false)}}};
  kernels::write_file(to, rendered(kScript, "own.json", data, {"own.svg"}, refuses_nothing).at("own.svg"));
  fmt::print("{}: {}\n", data["functions"][0]["name"].get<std::string>(), to);
}

std::string verdict_line(const Json& own) {
  const double bound = own["headline"]["bound"];
  return fmt::format("{}: {}; {} <= {} ({})\n", own["name"].get<std::string>(),
                     own["verdict"] == "holds" ? "every claim holds" : "a claim does not hold",
                     own["headline"]["name"].get<std::string>(), three_digits_up(bound), power_of_two(bound));
}

}  // namespace

bool report_of_own(const std::string& path, const std::string& out, const kernels::ResultForm& form) {
  const std::vector<std::string> files = headers_in(path);
  std::vector<Header> headers;  // a damaged one should not cost the proofs of the others
  std::map<std::string, std::string> of_structs;  // the page tells functions apart by them
  for (const std::string& file : files) {
    const std::string name =
        std::visit([](const auto& header) { return header.name; }, headers.emplace_back(read_header(file)));
    if (const auto [before, is_new] = of_structs.emplace(name, file); !is_new)
      throw kernels::SpecError(file, "struct",
                               fmt::format("{} has a struct of this name, too", before->second));
  }
  Json functions = Json::array();
  for (std::size_t k = 0; k < files.size(); ++k) {
    const kernels::JobLine line(fmt::format("header {} of {}", k + 1, files.size()),
                                [&] { return "proving " + files[k]; });
    functions.push_back(own_function(headers[k], /*proves=*/true));
  }
  const Json data{{"schema", kOwnSchema}, {"functions", functions}};
  const fs::path to = !out.empty()             ? fs::path(out)
                      : fs::is_directory(path) ? fs::path(path) / "report"
                                               : fs::path(with_ending(path, "_report"));
  for (const auto& [name, text] :
       rendered(kScript, "own.json", data, {"own.json", "index.html", "report.md"}, refuses_nothing))
    kernels::write_file((to / name).string(), text);
  if (form) {
    kernels::print_result(form, data, "functions");
  } else {
    for (const Json& own : functions) fmt::print("{}", verdict_line(own));
    fmt::print("report: {}\n", (to / "index.html").string());
  }
  return std::all_of(functions.begin(), functions.end(),
                     [](const Json& own) { return own["verdict"] == "holds"; });
}

void add_plot(CLI::App& app) {
  struct Arguments {
    std::string file, out;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* const command = app.add_subcommand(
      "plot", "Draw a fit as SVG: g and its pieces, the error over y, and what the stored y stand for");
  command->add_option("FILE", arguments->file, "A header, or the fit that it is emitted from")->required();
  command->add_option("--out", arguments->out,
                      "Where the picture goes (default: beside FILE, ending in .svg)");
  command->callback([arguments] { plot(arguments->file, arguments->out); });
}

}  // namespace outgrad::validation
