// Exceptions for a broken environment beside SpecError, and the one place that turns them all into a line on
// stderr and an exit status.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>

#include "kernels/host/errors.h"

namespace outgrad::kernels {

inline constexpr int kExitHolds = 0;
inline constexpr int kExitViolated = 1;     // a bound or a check does not hold
inline constexpr int kExitBadInput = 2;     // usage or input
// the machine lacks something: a tool, a device, memory, disk space
inline constexpr int kExitEnvironment = 3;

// The environment lacks something; the message names it.
class EnvironmentError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A CUDA library or device is absent or failed.
class CudaError : public EnvironmentError {
 public:
  using EnvironmentError::EnvironmentError;
};

// A file could not be opened, read or written: "path: action: reason", the reason from errno.
class IoError : public std::runtime_error {
 public:
  IoError(const std::string& path, const std::string& action, int error_number);
  int error_number() const { return error_number_; }
  // A wrong path is bad input; a full or failing disk, or a spent descriptor table, is the environment's.
  int exit_status() const;

 private:
  int error_number_;
};

// Prints "outgrad: <message>" as exactly one line that a person can read: control characters, which a hostile
// file may have put there, become blanks, and of a message that quotes too much of a file its middle is left
// out.
void print_error_line(std::string message);

// Runs `body`, which returns an exit status, as the whole of main(): an exception becomes one line and its
// exit status, and so does a stdout that could not take the results (a full disk behind a redirection).
int run_main(const std::function<int()>& body);

}  // namespace outgrad::kernels
