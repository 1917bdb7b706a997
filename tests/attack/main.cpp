// outgrad-attack: searches for what the proofs miss. Subcommands attack (false headers) and stability
// --attack (rows that break a norm's bounds).
#include <CLI/CLI.hpp>

#include "kernels/support/errors.h"
#include "kernels/support/options.h"
#include "tests/attack/commands.h"

namespace {

int run(int argc, char** argv) {
  using namespace outgrad;
  CLI::App app("Attacks on outgrad's proofs", "outgrad");
  app.require_subcommand(1);
  int status = kernels::kExitHolds;
  validation::add_attack(app, status);
  validation::add_stability_attack(app, status);
  kernels::parse(app, {argv + 1, argv + argc});
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  return outgrad::kernels::run_main([&] { return run(argc, argv); });
}
