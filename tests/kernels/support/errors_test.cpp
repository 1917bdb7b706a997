// Errors are one line with the right exit status.
#include "kernels/support/errors.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <system_error>

namespace outgrad::kernels {
namespace {

int exit_status_of(const std::exception& error) {
  testing::internal::CaptureStderr();
  const int status = run_main([&]() -> int {
    if (const auto* io = dynamic_cast<const IoError*>(&error)) throw *io;
    if (const auto* spec = dynamic_cast<const SpecError*>(&error)) throw *spec;
    if (const auto* cuda = dynamic_cast<const CudaError*>(&error)) throw *cuda;
    throw std::runtime_error(error.what());
  });
  testing::internal::GetCapturedStderr();
  return status;
}

TEST(Errors, EachKindHasItsExitStatusAndOneLine) {
  EXPECT_EQ(exit_status_of(SpecError("f", "p", "w")), kExitBadInput);
  EXPECT_EQ(exit_status_of(CudaError("no device")), kExitEnvironment);
  EXPECT_EQ(exit_status_of(IoError("f", "open", ENOENT)), kExitBadInput);
  EXPECT_EQ(exit_status_of(IoError("f", "write", ENOSPC)), kExitEnvironment);
  EXPECT_EQ(exit_status_of(IoError("f", "write", EFBIG)), kExitEnvironment);
  EXPECT_EQ(exit_status_of(std::runtime_error("broken")), kExitViolated);
  testing::internal::CaptureStderr();
  // such as that of a working folder that is gone; 1 would say that a bound is violated
  EXPECT_EQ(run_main([]() -> int { throw std::system_error(ENOENT, std::generic_category()); }),
            kExitEnvironment);
  testing::internal::GetCapturedStderr();
  EXPECT_EQ(run_main([] { return kExitHolds; }), kExitHolds);
  testing::internal::CaptureStderr();
  run_main([]() -> int { throw SpecError("a\nb.json", "line 3", "bad \x1b[31mkey"); });
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "outgrad: a b.json: line 3: bad  [31mkey\n");
}

}  // namespace
}  // namespace outgrad::kernels
