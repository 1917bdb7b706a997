// The Python process and its two pipes.
#include "autotune/bench/peer.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <sstream>

#include "autotune/compile.h"
#include "kernels/support/errors.h"

namespace outgrad::autotune {

std::unique_ptr<TorchPeer> TorchPeer::start(FormatId format, kernels::i64 elements, kernels::i64 rows, kernels::i64 cols, int threads,
                                            std::string& why) {
  const char* chosen = std::getenv("OUTGRAD_PYTHON");
  const std::string python = chosen != nullptr && *chosen != '\0' ? chosen : "python3", script = source_root() + "/autotune/bench/torch_peer.py";
  const std::string words[] = {name_of(format), std::to_string(elements), std::to_string(rows), std::to_string(cols), std::to_string(threads)};
  int to[2], from[2];
  if (::pipe2(to, O_CLOEXEC) != 0 || ::pipe2(from, O_CLOEXEC) != 0) throw kernels::IoError("pipe", "create", errno);
  std::unique_ptr<TorchPeer> peer(new TorchPeer);
  peer->in_ = to[1];
  peer->out_ = from[0];
  peer->process_ = ::fork();
  if (peer->process_ < 0) throw kernels::IoError(python, "start", errno);
  if (peer->process_ == 0) {
    ::dup2(to[0], STDIN_FILENO);
    ::dup2(from[1], STDOUT_FILENO);
    const int nowhere = ::open("/dev/null", O_WRONLY);
    if (nowhere >= 0) ::dup2(nowhere, STDERR_FILENO);  // a missing module is said below, in one line
    // Its threads sleep between runs, and freed results are kept for the next ones: nobody pays for pages twice.
    ::setenv("OMP_WAIT_POLICY", "passive", 1);
    ::setenv("MALLOC_MMAP_THRESHOLD_", "1099511627776", 1);
    ::setenv("MALLOC_TRIM_THRESHOLD_", "1099511627776", 1);
    ::execlp(python.c_str(), python.c_str(), script.c_str(), words[0].c_str(), words[1].c_str(), words[2].c_str(), words[3].c_str(),
             words[4].c_str(), nullptr);
    ::_exit(127);
  }
  ::close(to[0]);
  ::close(from[1]);
  std::istringstream first(peer->line());
  if (!(first >> peer->version_)) {
    why = python + " does not import torch (OUTGRAD_PYTHON names another)";
    return nullptr;
  }
  for (std::string kernel; first >> kernel;) peer->kernels_.push_back(kernel);
  return peer;
}

TorchPeer::~TorchPeer() {
  if (in_ >= 0) ::close(in_);  // the end of its input ends it
  if (out_ >= 0) ::close(out_);
  if (process_ < 0) return;
  while (::waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

std::string TorchPeer::line() {
  std::string text;
  for (char c = 0;;) {
    const ssize_t got = ::read(out_, &c, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return {};
    if (c == '\n') return text;
    text += c;
  }
}

void TorchPeer::run(const std::string& kernel) {
  struct sigaction ignore = {}, before = {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignore, &before);  // a dead process is an error below, not a signal
  const std::string word = kernel + "\n";
  const bool sent = ::write(in_, word.data(), word.size()) == static_cast<ssize_t>(word.size());
  ::sigaction(SIGPIPE, &before, nullptr);
  if (!sent || line().empty()) throw kernels::EnvironmentError("bench: PyTorch's " + kernel + " did not come back: its process ended");
}

}  // namespace outgrad::autotune
