/// outgrad-fit: `fit` a specification, `emit` a header from a fit.

#include "approx/emit.h"
#include "kernels/host/errors.h"
#include "kernels/host/files.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>

namespace {

using namespace outgrad;

void write_output(const std::string& path, const std::string& content) {
  const auto folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);  // a failure shows, with its reason, when the file is opened
  kernels::write_file(path, content);
}

std::string summary(const approx::Fit& fit) {
  if (fit.forward) return fmt::format("{}: relative fit error <= 2^{:.2f} (certified)", fit.name, std::log2(fit.forward->kA));
  const approx::BackwardModel& m = *fit.backward;
  return fmt::format("{}: A <= 2^{:.2f}, B <= 2^{:.2f}, A + B <= 2^{:.2f}, K <= {:.3g} (certified); {} operations, {} rows of degree {}", fit.name,
                     std::log2(m.kA), std::log2(m.kB), std::log2(m.kA + m.kB), m.kK, m.operations(), m.kRows, m.kDegree);
}

int run(int argc, char** argv) {
  CLI::App app{"Fits and certifies piecewise polynomials, and emits them as headers", "outgrad"};
  app.require_subcommand(1);
  std::string input, output;
  int threads = 0;
  bool json = false;
  CLI::App* fit = app.add_subcommand("fit", "fit one specification; writes fit and certificate as JSON");
  fit->add_option("SPEC", input, "specification, schema outgrad.spec/1")->required();
  fit->add_option("--out", output, "where the fit goes (default: out/fits/NAME.json)");
  fit->add_option("--threads", threads, "threads, 0 for all; the result does not depend on it")->check(CLI::Range(0, 1024));
  fit->add_flag("--json", json, "print the fit on stdout too");
  CLI::App* emit = app.add_subcommand("emit", "coefficient header from a fit");
  emit->add_option("FIT", input, "fit, schema outgrad.fit/1")->required();
  emit->add_option("--out", output, "where the header goes (default: out/generated/NAME.h)");
  std::string recorded;
  emit->add_option("--as", recorded, "path of the fit to name in the banner (default: notebooks_data/fits/NAME.json)");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return 0;
  } catch (const CLI::ParseError& error) {
    throw kernels::SpecError(error.what());
  }
  if (*fit) {
    const approx::Spec spec = approx::read_spec(input);
    const bool terminal = isatty(STDERR_FILENO) != 0;
    const approx::Fit result = approx::fit(spec, threads, [&](int done, int all) {
      if (terminal) fmt::print(stderr, "\r{}: {}/{} rows{}", spec.name, done, all, done == all ? "\n" : "");
    });
    const std::string text = approx::to_json(result);
    write_output(output.empty() ? "out/fits/" + spec.name + ".json" : output, text);
    fmt::print("{}\n", json ? text : summary(result));
    return 0;
  }
  const approx::Fit result = approx::fit_from_json(kernels::read_file(input), input);
  const std::string banner_path = recorded.empty() ? "notebooks_data/fits/" + result.name + ".json" : recorded;
  write_output(output.empty() ? "out/generated/" + result.name + ".h" : output, approx::emit_header(result, banner_path));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return outgrad::kernels::run_main([&] { return run(argc, argv); });
}
