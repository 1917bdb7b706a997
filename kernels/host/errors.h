// Exceptions for a broken contract or environment, and the one place that turns them into a line on stderr and an exit status.
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>

namespace outgrad::kernels {

inline constexpr int kExitHolds = 0;
inline constexpr int kExitViolated = 1;     // a bound or a check does not hold
inline constexpr int kExitBadInput = 2;     // usage or input
inline constexpr int kExitEnvironment = 3;  // the machine lacks something: a tool, a device, memory, disk space

// Usage or input that breaks a contract. `place` says where in the file (a key, a line, a byte offset); the user reads
// "file: place: why".
class SpecError : public std::runtime_error {
 public:
  explicit SpecError(const std::string& why) : std::runtime_error(why) {}
  SpecError(const std::string& file, const std::string& place, const std::string& why)
      : std::runtime_error(file + ": " + place + ": " + why) {}
};

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
  IoError(const std::string& path, const std::string& action, int error_number)
      : std::runtime_error(path + ": " + action + ": " + std::strerror(error_number)), error_number_(error_number) {}

  int error_number() const { return error_number_; }

  // A wrong path is bad input; a full or failing disk, or a spent descriptor table, is the environment's.
  int exit_status() const {
    switch (error_number_) {
      case ENOSPC:
      case EDQUOT:
      case EIO:
      case EROFS:
      case EMFILE:
      case ENFILE:
      case ENOMEM: return kExitEnvironment;
      default: return kExitBadInput;
    }
  }

 private:
  int error_number_;
};

// Prints "outgrad: <message>" as exactly one line that a person can read: control characters, which a hostile file may have put there,
// become blanks, and of a message that quotes too much of a file its middle is left out.
inline void print_error_line(std::string message) {
  constexpr std::size_t kFirst = 1200, kLast = 300;
  if (message.size() > kFirst + kLast) message.replace(kFirst, message.size() - kFirst - kLast, " ... ");
  for (char& c : message) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  std::fprintf(stderr, "outgrad: %s\n", message.c_str());
}

// Runs `body` (a callable returning an exit status) as the whole of main(): an exception becomes one line and its exit status, and
// so does a stdout that could not take the results (a full disk behind a redirection).
template <class Body>
int run_main(Body&& body) {
  int status = kExitViolated;
  try {
    status = body();
  } catch (const IoError& error) {
    print_error_line(error.what());
    status = error.exit_status();
  } catch (const SpecError& error) {
    print_error_line(error.what());
    status = kExitBadInput;
  } catch (const EnvironmentError& error) {
    print_error_line(error.what());
    status = kExitEnvironment;
  } catch (const std::bad_alloc&) {
    print_error_line("out of memory");
    status = kExitEnvironment;
  } catch (const std::exception& error) {
    print_error_line(std::string("internal error: ") + error.what());
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout)) {
    print_error_line(std::string("standard output: write: ") + std::strerror(errno));
    if (status == kExitHolds) status = kExitEnvironment;
  }
  return status;
}

}  // namespace outgrad::kernels
