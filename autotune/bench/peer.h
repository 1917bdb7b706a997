// PyTorch's kernels as workloads beside ours: a Python process that runs one of them at a word.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "autotune/space/variant.h"
#include "kernels/support/process.h"

namespace outgrad::autotune {

class TorchPeer {
 public:
  // Starts $OUTGRAD_PYTHON, else python3, on autotune/bench/torch_peer.py, and waits for its first line.
  // Null, with the reason in `why`, where there is no such Python or it cannot import torch. Arrays of
  // `elements`, LayerNorm over their first `rows` of `cols`, `threads` threads.
  static std::unique_ptr<TorchPeer> start(FormatId format, kernels::i64 elements, kernels::i64 rows,
                                          kernels::i64 cols, int threads, std::string& why);
  ~TorchPeer();
  TorchPeer(const TorchPeer&) = delete;
  TorchPeer& operator=(const TorchPeer&) = delete;

  const std::string& version() const { return version_; }                // of PyTorch
  const std::vector<std::string>& kernels() const { return kernels_; }  // "gelu_backward", ...

  // Runs a kernel once and returns when it is done: the pipe adds some 0.1 ms to a run of tens. Throws
  // EnvironmentError when the process is gone.
  void run(const std::string& kernel);

 private:
  TorchPeer() = default;
  std::string line();  // empty at the end

  pid_t process_ = -1;
  kernels::Descriptor in_, out_;  // ends of the pipes: the process's stdin, its stdout
  std::string version_;
  std::vector<std::string> kernels_;
};

}  // namespace outgrad::autotune
