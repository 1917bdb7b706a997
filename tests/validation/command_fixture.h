// A command of outgrad-check as its own tests run it: in this process, beside a folder that is gone
// afterwards.
#pragma once

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "kernels/support/errors.h"
#include "kernels/support/files.h"
#include "kernels/support/options.h"

namespace outgrad::validation {

class CommandTest : public testing::Test {
 protected:
  /// `add` puts the command into an application.
  CommandTest(std::string command, void (*add)(CLI::App& app, int& status))
      : command_(std::move(command)), add_(add) {}

  std::string file(const std::string& name) const { return (folder_ / name).string(); }

  /// The exit status.
  int run(std::vector<std::string> arguments) const {
    CLI::App app("test");
    int status = kernels::kExitHolds;
    add_(app, status);
    arguments.insert(arguments.begin(), command_);
    kernels::parse(app, arguments);
    return status;
  }

  const kernels::ScratchFolder scratch_;
  const std::filesystem::path folder_{scratch_.path()};

 private:
  std::string command_;
  void (*add_)(CLI::App& app, int& status);
};

}  // namespace outgrad::validation
