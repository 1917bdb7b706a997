// The conversation with a Python process, by stand-ins that keep to it, break off, or never begin.
#include "autotune/bench/peer.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "kernels/support/errors.h"
#include "kernels/support/files.h"

namespace outgrad::autotune {
namespace {

class Peer : public testing::Test {
 protected:
  // A stand-in for python3: a shell script.
  std::unique_ptr<TorchPeer> start(const std::string& script) {
    const std::string path = folder_ / "python";
    kernels::write_file(path, "#!/bin/sh\n" + script);
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    ::setenv("OUTGRAD_PYTHON", path.c_str(), 1);
    auto peer = TorchPeer::start(FormatId::kBf16, 4096, 2, 1024, 3, why_);
    ::unsetenv("OUTGRAD_PYTHON");
    return peer;
  }
  kernels::ScratchFolder folder_;
  std::string why_;
};

TEST_F(Peer, RunsWhatItIsTold) {
  const auto peer = start(
      "echo \"$*\" >\"$0.words\"; echo 9.9 gelu_backward layernorm_forward; while read -r k; do echo \"$k\" "
      ">>\"$0.ran\"; echo 5; done\n");
  ASSERT_NE(peer, nullptr) << why_;
  EXPECT_EQ(peer->version(), "9.9");
  EXPECT_EQ(peer->kernels(), (std::vector<std::string>{"gelu_backward", "layernorm_forward"}));
  peer->run("layernorm_forward");
  peer->run("gelu_backward");
  EXPECT_EQ(kernels::read_file(folder_ / "python.ran"), "layernorm_forward\ngelu_backward\n");
  EXPECT_NE(kernels::read_file(folder_ / "python.words").find("torch_peer.py bf16 4096 2 1024 3"),
            std::string::npos);
}

TEST_F(Peer, AbsentIsAReasonAndDeathIsAnError) {
  EXPECT_EQ(start("exit 1\n"), nullptr);
  EXPECT_NE(why_.find("does not import torch"), std::string::npos);
  const auto peer = start("echo 9.9 gelu_backward\n");
  ASSERT_NE(peer, nullptr);
  EXPECT_THROW(peer->run("gelu_backward"), kernels::EnvironmentError);
  EXPECT_THROW(peer->run("gelu_backward"), kernels::EnvironmentError);
}

}  // namespace
}  // namespace outgrad::autotune
