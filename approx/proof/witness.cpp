#include "approx/proof/witness.h"

#include "approx/function/composite.h"
#include "approx/proof/sollya.h"
#include "kernels/support/errors.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <sstream>

extern char** environ;

namespace outgrad::approx {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Words by which the programs report that something was not as we meant it. Gappa's other warnings tell of hints it does not need.
bool complains(const std::string& program, const std::string& output) {
  const auto says = [&](const char* word) { return output.find(word) != std::string::npos; };
  return program == "sollya" ? says("Warning") || says("error") || says("FAILED") : says("trivially equal") || says("Error");
}

bool says_proven(const std::string& program, const std::string& output) {
  return program != "sollya" || output.starts_with("PROVEN ") || output.find("\nPROVEN ") != std::string::npos;
}

}  // namespace

std::vector<WitnessScript> witness_scripts(const Fit& fit, const std::string& path) {
  if (!fit.backward) throw kernels::SpecError(path, "kind", "a backward fit is needed: a forward fit has no bound B, and a direct table neither A nor B");
  std::vector<WitnessScript> scripts;
  std::optional<Real> x_star;
  // f is given by its text; x (Sollya warns of a bare x) for x >= 0 where the activation says so.
  const bool linear = fit.activation != "expression" && find_activation(fit.activation).linear_from_zero;
  for (const Piece& piece : fit.backward->pieces) {
    if (piece.coordinate == Coordinate::signed_root && !x_star) x_star = Composite(activation_from_expression(fit.function)).x_star().mid();
    std::vector<WitnessScript> row = gappa_scripts(fit.name, *fit.backward, piece);
    std::move(row.begin(), row.end(), std::back_inserter(scripts));
    scripts.push_back(sollya_script(fit.name, linear && piece.x_lo >= 0 ? "1*x" : fit.function, piece, x_star.value_or(Real(0))));
  }
  return scripts;
}

std::string program_of(const WitnessScript& script) { return script.name.ends_with(".gappa") ? "gappa" : "sollya"; }

bool program_found(const std::string& program) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (::access((folder + "/" + program).c_str(), X_OK) == 0) return true;
  }
  return false;
}

Witnessed run_witness(const WitnessScript& script, const std::string& path, double limit_s) {
  std::string program = program_of(script), option = kGappaOption, file = path;
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw kernels::EnvironmentError(std::string("pipe: ") + std::strerror(errno));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);  // Sollya asks a terminal how to go on
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  std::array<char*, 4> arguments{program.data(), file.data(), nullptr, nullptr};
  if (program == "gappa") arguments = {program.data(), option.data(), file.data(), nullptr};
  pid_t child = 0;
  const Clock::time_point start = Clock::now();
  const int failed = posix_spawnp(&child, program.c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  if (failed != 0) {
    ::close(ends[0]);
    throw kernels::EnvironmentError(program + ": cannot be started: " + std::strerror(failed));
  }
  Witnessed result;
  std::array<char, 4096> buffer{};
  while (true) {
    const double left_s = limit_s - seconds_since(start);
    pollfd wait{ends[0], POLLIN, 0};
    const int ready = left_s > 0 ? ::poll(&wait, 1, static_cast<int>(left_s * 1000) + 1) : 0;
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) {
      result.timed_out = true;
      ::kill(child, SIGKILL);
      break;
    }
    const ssize_t got = ::read(ends[0], buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    result.output.append(buffer.data(), static_cast<size_t>(got));
  }
  ::close(ends[0]);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  result.seconds = seconds_since(start);
  const bool ended_well = !result.timed_out && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  result.proven = ended_well && says_proven(program, result.output) && !complains(program, result.output);
  return result;
}

}  // namespace outgrad::approx
