// Which exception has which exit status.
#include "kernels/support/errors.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <new>
#include <system_error>

#include "kernels/support/progress.h"

namespace outgrad::kernels {

IoError::IoError(const std::string& path, const std::string& action, int error_number)
    : std::runtime_error(path + ": " + action + ": " + std::strerror(error_number)),
      error_number_(error_number) {}

int IoError::exit_status() const {
  switch (error_number_) {
    case ENOSPC:
    case EDQUOT:
    case EIO:
    case EFBIG:
    case EROFS:
    case EMFILE:
    case ENFILE:
    case ENOMEM: return kExitEnvironment;
    default: return kExitBadInput;
  }
}

void print_error_line(std::string message) {
  constexpr std::size_t kFirst = 1200, kLast = 300;
  if (message.size() > kFirst + kLast) message.replace(kFirst, message.size() - kFirst - kLast, " ... ");
  for (char& c : message) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  std::fprintf(stderr, "outgrad: %s\n", message.c_str());
}

int run_main(const std::function<int()>& body) {
  int status = kExitViolated;
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond `ulimit -f` is an error of its write
  fold_stdout();
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
  } catch (const std::system_error& error) {  // a folder that is gone, no thread to be had
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
