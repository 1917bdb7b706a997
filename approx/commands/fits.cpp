// `outgrad fit`, `emit` and `table` go from specifications to fits, and from fits to what is read
// of them.

#include "approx/commands/commands.h"
#include "approx/model/emit.h"
#include "approx/progress.h"
#include "approx/search/fitter.h"
#include "approx/search/pareto.h"
#include "kernels/support/bounds.h"
#include "kernels/support/errors.h"
#include "kernels/support/files.h"
#include "kernels/support/json.h"
#include "kernels/support/options.h"
#include "kernels/support/process.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace outgrad::approx {
namespace {

using kernels::decimals_up, kernels::digits_up, kernels::power_up;

/// Rows that equal g have no ratio to a lower bound.
bool has_ratio(const Piece& p) { return !p.storage_aware && p.lower_bound > 0x1p-55; }

/// How far the rows' certified bounds are from what no polynomial of their degree can undercut, before and
/// after rounding.
std::string optimality(const BackwardModel& m) {
  double before = 0, after = 0, observed = 0;
  for (const Piece& p : m.pieces) {
    if (!has_ratio(p)) continue;
    before = std::max(before, p.minimax_certified / p.lower_bound);
    after = std::max(after, p.certified / p.lower_bound);
    observed = std::max(observed, p.certified / p.observed);
  }
  return fmt::format("certified/lower bound {:.4f} before, {:.4f} after rounding, certified/observed {:.4f}",
                     before, after, observed);
}

std::string six(double bound) { return fmt::format("{:.6f}", decimals_up(bound, 6)); }

/// What `fit` prints of each kind: bounds rounded up, what no function goes below rounded down.
std::string summary(const Fit& fit, const ForwardModel& m) {
  return fmt::format("{}: relative fit error <= {} (certified)", fit.name, power_up(m.kA));
}
std::string summary(const Fit& fit, const RoundedForwardModel& m) {
  return fmt::format(
      "{}: every x of the format rounded correctly (exhaustive); relative fit error <= {}, right of x = "
      "{:.6g} <= {} (certified)",
      fit.name, power_up(m.kA), m.pieces[static_cast<size_t>(m.kCoreFirst)].v_lo, power_up(m.kCoreA));
}
std::string summary(const Fit& fit, const CodeModel& m) {
  return fmt::format(
      "{}: f' in [{:.9g}, {:.9g}], g within {} of it; T of 4, 5, 6, 8 bits {}, {}, {}, {}, of 2 and 3 "
      "dithered "
      "{}, {} (certified{})",
      fit.name, static_cast<double>(m.kLo), static_cast<double>(m.kHi), power_up(m.kG), six(m.kT[3]),
      six(m.kT[4]), six(m.kT[5]), six(m.kT[7]), six(m.kDithered[0]), six(m.kDithered[1]),
      fit.activation == "expression" ? ", given g" : "");
}
std::string summary(const Fit& fit, const Fp8Model& m) {
  return fmt::format(
      "{}: T of e4m3 with 0, 1, 2 bits {}, {}, {}, of e5m2 {}, {}, {} over all scales, of which {} beside "
      "the "
      "parts (certified)",
      fit.name, six(m.e4m3.kT[0]), six(m.e4m3.kT[1]), six(m.e4m3.kT[2]), six(m.e5m2.kT[0]), six(m.e5m2.kT[1]),
      six(m.e5m2.kT[2]), power_up(m.kRoom));
}
std::string summary(const Fit& fit, const TableModel& t) {
  return fmt::format(
      "{}: T {:.6g}, O {:.6g}, T/O {:.5f}, R {} (enumerated); {} entries, {} bytes, {} integer operations",
      fit.name, digits_up(t.kT, 6), -digits_up(-t.kO, 6), decimals_up(t.kT / t.kO, 5), power_up(t.kR),
      t.entries.size(), 2 * t.entries.size(), t.index_operations());
}
std::string summary(const Fit& fit, const BackwardModel& m) {
  const Cost cost = cost_of(m);
  std::string text = fmt::format(
      "{}: A <= {}{}, B <= {}, A + B <= {}, {} (certified); {} operations, {} rows of degree {}, {} bytes",
      fit.name, power_up(m.kA), fit.accuracy.starts_with("rel") ? " |g|" : "", power_up(m.kB),
      power_up(m.kAB),
      m.of_product() ? fmt::format("T <= {}, O >= {:.6f}", six(m.kT), -decimals_up(-m.kO, 6))
                     : fmt::format("K <= {:.3g}", digits_up(m.kK, 3)),
      cost.arithmetic, m.kRows, m.kDegree, cost.table_bytes);
  if (m.kO > 0) text += fmt::format("; T/O {:.4f}", decimals_up(m.kT / m.kO, 4));
  if (m.kR > 0) text += fmt::format(", R {}", power_up(m.kR));
  if (m.kTwoWord) {
    text +=
        fmt::format(", A + B <= {:.3f} ulp(g) where |g| >= {}", decimals_up(m.kUlp, 3), power_up(kUlpFrom));
  } else if (fit.accuracy.starts_with("ulp")) {
    text += fmt::format(", {:.3f} ulp", decimals_up(m.worst_ulp, 3));
  }
  if (m.programme_dual > 0) {
    text += fmt::format("; programme {:.4f}, dual bound {:.4f}", m.programme_reached, m.programme_dual);
  } else {
    text += "; " + optimality(m);
  }
  return text;
}

/// A row of the table of fits in approx/README.md; "" of a kind that has none there.
template <class Model>
std::string table_row(const Fit&, const Model&) {
  return "";
}
std::string table_row(const Fit& fit, const TableModel& t) {
  return fmt::format("| {} | {} | {} integer | {} | - | {:.4f} | {} | |\n", fit.name, fit.accuracy,
                     t.index_operations(), 2 * t.entries.size(), decimals_up(t.kT / t.kO, 4), power_up(t.kR));
}
std::string table_row(const Fit& fit, const BackwardModel& m) {
  const Cost cost = cost_of(m);
  double after = 0;
  for (const Piece& p : m.pieces) {
    if (has_ratio(p)) after = std::max(after, p.certified / p.lower_bound);
  }
  const std::string ratio = m.kO > 0 ? fmt::format("{:.4f}", decimals_up(m.kT / m.kO, 4)) : "";
  std::string near = m.programme_dual > 0
                         ? fmt::format("{:.3f} of {:.3f}", m.programme_reached, m.programme_dual)
                     : after > 0 ? fmt::format("{:.3f}", after)
                                 : "exact";
  if (m.kTwoWord) near += fmt::format("; A + B <= {:.3f} ulp", decimals_up(m.kUlp, 3));
  return fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} |\n", fit.name, fit.accuracy, cost.arithmetic,
                     cost.table_bytes, power_up(m.kAB), ratio, m.kR > 0 ? power_up(m.kR) : "", near);
}

/// The fit of a specification read from `path`; a refusal names the specification or the file.
Fit fit_of(const Spec& spec, const std::string& path, int threads) {
  try {
    return fit(spec, threads, /*advises=*/true);
  } catch (const kernels::SpecError& error) {
    const std::string why = error.what();
    throw kernels::SpecError(why.find(spec.name) == 0 ? why : path + ": " + why);
  }
}

/// What a banner calls a file: its place in the repository, where it stands among the committed results of
/// `home`; elsewhere its name alone, so that a header says nothing of the folders of the machine on which it
/// was made.
std::string banner_path_of(const std::filesystem::path& file, const std::filesystem::path& home) {
  const std::filesystem::path folder = std::filesystem::absolute(file).lexically_normal().parent_path();
  const bool committed =
      folder.filename() == home.filename() && folder.parent_path().filename() == home.parent_path();
  return (committed ? home / file.filename() : file.filename()).string();
}

/// What a command wrote, and which one reads it.
void print_written(const std::string& path, const char* next) {
  fmt::print("written: {}; next: ./outgrad {} {}\n", path, next, path);
}

/// The headers of all points of a front: it is emitted whole or not at all.
void emit_front(const std::string& text, const std::string& path, const std::string& folder,
                const std::string& banner_path) {
  const std::vector<Spec> specs = specs_of_front(text, path);
  const JobLine line(path);
  Stage points("points", static_cast<std::int64_t>(specs.size()));
  std::vector<std::string> headers;
  for (const Spec& spec : specs) {
    headers.push_back(emit_header(fit_of(spec, path, 0), banner_path));
    points.tick();
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    const std::string file = folder + "/" + specs[i].name + ".h";
    kernels::write_file(file, headers[i]);
    print_written(file, "check");
  }
}

}  // namespace

std::string unproven(const Fit& fit) {
  const std::string checker = kernels::beside_this_program("outgrad-check");
  const std::string text = emit_header(fit, fit.name + ".json"), header = "/dev/stdin";
  const kernels::Descriptor memory(::memfd_create("header", MFD_CLOEXEC));  // of which a kill leaves nothing
  if (::write(memory.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    throw kernels::EnvironmentError(fmt::format(
        "no room for the {} bytes that {} reads: memory, or the limit of a file's size (ulimit -f)",
        text.size(), checker));
  const Stage stage("second witness", 1);
  kernels::Launch launch{{checker, "check", header}, memory.get()};
  launch.out = launch.err = kernels::Launch::kCaptured;
  const kernels::Ending ending = kernels::run(launch);
  if (ending.status == kernels::Ending::kNotStarted) {
    throw kernels::EnvironmentError(
        checker + " cannot be started: it has to prove the fit again (--no-check does without)");
  }
  if (ending.status == kernels::kExitHolds) return "";
  if (ending.status == -1)
    throw kernels::EnvironmentError(fmt::format("{}: ended by signal {}", checker, ending.signal));
  std::istringstream lines(ending.text);
  const std::string file = header + ": ";
  for (std::string line; std::getline(lines, line);) {
    if (line.find(" holds: ") != std::string::npos) continue;
    const std::string why = line.starts_with(file) ? line.substr(file.size()) : line;
    if (ending.status != kernels::kExitEnvironment) return why;
    throw kernels::EnvironmentError(checker + ": " + why);
  }
  throw kernels::EnvironmentError(fmt::format("{}: exit status {} without a reason", checker, ending.status));
}

void print_fit(const kernels::ResultForm& form, const std::string& text) {
  if (form.csv)
    kernels::print_result(form, kernels::parse_json<nlohmann::ordered_json>(text), "");
  else
    fmt::print("{}\n", text);  // as the file has it
}

void print_unproven(const Fit& fit, const std::string& why) {
  kernels::print_error_line(fmt::format(
      "{}: the second witness does not confirm the fit, and nothing is written: {}", fit.name, why));
}

namespace {

/// Fits a specification; whether the second witness agrees.
bool fit_specification(const std::string& spec, const OwnRequest& wanted) {
  std::optional<JobLine> line(spec);
  const Spec subject = read_spec(spec);
  const std::string file = wanted.out.empty() ? "out/fits/" + subject.name + ".json" : wanted.out;
  kernels::require_writable(file, {spec});
  const Fit result = fit_of(subject, spec, wanted.threads);
  const std::string text = to_json(result);
  const std::string refuted = wanted.unchecked ? "" : unproven(fit_from_json(text, spec));
  line.reset();
  if (!refuted.empty()) {
    print_unproven(result, refuted);
    return false;
  }
  kernels::write_file(file, text);
  if (wanted.form) {
    print_fit(wanted.form, text);
  } else {
    fmt::print("{}\n", std::visit([&](const auto& model) { return summary(result, model); }, result.model));
    print_written(file, "emit");
  }
  return true;
}

void add_choices(CLI::App& command, OwnRequest& wanted, CLI::Option* spec) {
  add_function(command, wanted.function);
  add_format(command, wanted.format);
  CLI::Option* const error = command.add_option(
      "--error", wanted.error,
      "what the polynomials may differ from f' by, 2^-9 or 0.002 (default: what the format resolves, or the "
      "least that is reached)");
  command
      .add_flag("--oracle", wanted.oracle,
                "a table of the best gradient of every stored y, rounded to 16 bits, for y in 16 and 8 bits")
      ->excludes(error);
  command.add_option("--name", wanted.name, "of the fit (default: made of the function)");
  for (const char* of_function :
       {"--activation", "--expression", "--beta", "--alpha", "--format", "--error", "--oracle", "--name"})
    spec->excludes(of_function);
}

}  // namespace

void add_fit(CLI::App& app, int& status) {
  struct Arguments {
    std::string spec;
    OwnRequest wanted;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* const command = app.add_subcommand(
      "fit",
      "fit a function (--expression or --activation, with --format) or a specification; writes fit and "
      "certificate as JSON, and of a function its header too");
  OwnRequest& wanted = arguments->wanted;
  CLI::Option* const spec =
      command->add_option("SPEC", arguments->spec, "specification, schema outgrad.spec/2");
  add_choices(*command, wanted, spec);
  command->add_option("--out", wanted.out,
                      "where the fit goes (default: out/fits/NAME.json; of a function out/own/NAME.json, "
                      "with NAME.spec.json and NAME.h beside it)");
  add_threads(*command, wanted.threads);
  kernels::add_result_form(*command, wanted.form, "the fit");
  command->add_flag("--no-check", wanted.unchecked,
                    "write the fit without having outgrad-check prove its claims again");
  command->callback([arguments, &status] {
    const bool of_function = arguments->spec.empty();
    if (of_function != arguments->wanted.function.given())
      throw kernels::SpecError("fit: give a specification, or --expression (or --activation) and --format");
    if (!(of_function ? fit_without_specification(arguments->wanted)
                      : fit_specification(arguments->spec, arguments->wanted)))
      status = kernels::kExitViolated;
  });
}

void add_emit(CLI::App& app, int&) {
  struct Arguments {
    std::string input, out, recorded;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* const command =
      app.add_subcommand("emit", "coefficient header from a fit, or those of every point of a front");
  command
      ->add_option(
          "FILE", arguments->input,
          "fit, schema outgrad.fit/3, or front, schema outgrad.pareto/2, whose points are fitted first")
      ->required();
  command->add_option("--out", arguments->out,
                      "where the header goes (default: out/generated/NAME.h); of a front the folder "
                      "(default: out/generated/FRONT)");
  command->add_option("--as", arguments->recorded,
                      "path of FILE to name in the banner (default: its name; its path in the repository, if "
                      "it is in notebooks_data/fits or pareto)");
  command->callback([arguments] {
    const auto& [input, out, recorded] = *arguments;
    const std::string text = kernels::read_file(input);
    const std::filesystem::path path(input);
    if (is_front(text)) {
      emit_front(text, input, out.empty() ? "out/generated/" + path.stem().string() : out,
                 recorded.empty() ? banner_path_of(path, "notebooks_data/pareto") : recorded);
      return;
    }
    const Fit subject = fit_from_json(text, input);
    const std::string banner_path = recorded.empty() ? banner_path_of(path, "notebooks_data/fits") : recorded;
    const std::string header = out.empty() ? "out/generated/" + subject.name + ".h" : out;
    kernels::require_writable(header, {input});
    kernels::write_file(header, emit_header(subject, banner_path));
    print_written(header, "check");
  });
}

void add_table(CLI::App& app, int&) {
  auto files = std::make_shared<std::vector<std::string>>();
  CLI::App* const command = app.add_subcommand("table", "the table of fits in approx/README.md, from fits");
  command->add_option("FIT", *files, "fits, schema outgrad.fit/3")->required();
  command->callback([files] {
    std::string table =
        "| fit | class | operations | table bytes | A + B | T/O | R | near the bound |\n| --- | --- | --- | "
        "--- | --- | --- | --- | --- |\n";
    std::vector<std::string> others;
    for (const std::string& file : *files) {
      const Fit fit = fit_from_json(kernels::read_file(file), file);
      const std::string row = std::visit([&](const auto& model) { return table_row(fit, model); }, fit.model);
      table += row;
      if (row.empty()) others.push_back(fit.name);
    }
    fmt::print("{}", table);
    if (!others.empty())
      fmt::print(stderr, "table: no rows for forwards and codes: {}\n", fmt::join(others, ", "));
  });
}

}  // namespace outgrad::approx
