// The Python process and its two pipes.
#include "autotune/bench/peer.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <sstream>

#include "autotune/space/sources.h"

namespace outgrad::autotune {

std::unique_ptr<TorchPeer> TorchPeer::start(FormatId format, kernels::i64 elements, kernels::i64 rows,
                                            kernels::i64 cols, int threads, std::string& why) {
  const char* chosen = std::getenv("OUTGRAD_PYTHON");
  const std::string python = chosen != nullptr && *chosen != '\0' ? chosen : "python3",
                    script = source_root() + "/autotune/bench/torch_peer.py";
  kernels::Pipe to, from;
  kernels::Launch launch{{python, script, name_of(format), std::to_string(elements), std::to_string(rows),
                          std::to_string(cols), std::to_string(threads)}};
  launch.in = to.from.get();
  launch.out = from.to.get();  // what goes to stderr is lost: a missing module is said below, in one line
  // Its threads sleep between runs, and freed results are kept for the next ones: nobody pays for pages
  // twice.
  launch.environment = {"OMP_WAIT_POLICY=passive", "MALLOC_MMAP_THRESHOLD_=1099511627776",
                        "MALLOC_TRIM_THRESHOLD_=1099511627776"};
  std::unique_ptr<TorchPeer> peer(new TorchPeer);
  peer->process_ = kernels::start(launch);
  peer->in_ = std::move(to.to);
  peer->out_ = std::move(from.from);
  from.to.close();
  std::istringstream first(peer->line());
  if (!(first >> peer->version_)) {
    why = python + " does not import torch (OUTGRAD_PYTHON names another)";
    return nullptr;
  }
  for (std::string kernel; first >> kernel;) peer->kernels_.push_back(kernel);
  return peer;
}

TorchPeer::~TorchPeer() {
  in_.close();  // the end of its input ends it
  out_.close();
  if (process_ > 0) kernels::wait_for(process_);
}

std::string TorchPeer::line() {
  std::string text;
  for (char c = 0;;) {
    const ssize_t got = ::read(out_.get(), &c, 1);
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
  const bool sent = ::write(in_.get(), word.data(), word.size()) == static_cast<ssize_t>(word.size());
  ::sigaction(SIGPIPE, &before, nullptr);
  if (!sent || line().empty())
    throw kernels::EnvironmentError("bench: PyTorch's " + kernel + " did not come back: its process ended");
}

}  // namespace outgrad::autotune
