// What the code under test writes to stdout or stderr, taken from the stream until the end of its life. A
// test that an exception ends gives the stream back: googletest aborts at a second capture of one stream.
#pragma once

#include <gtest/gtest.h>

#include <string>

namespace outgrad::autotune {

class Captured {
 public:
  enum Stream { kStdout, kStderr };
  explicit Captured(Stream stream) : stream_(stream) {
    stream == kStdout ? testing::internal::CaptureStdout() : testing::internal::CaptureStderr();
  }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
  ~Captured() {
    if (!released_) release();
  }

  // What was written so far; from here on nothing is taken any more.
  std::string release() {
    released_ = true;
    return stream_ == kStdout ? testing::internal::GetCapturedStdout()
                              : testing::internal::GetCapturedStderr();
  }

 private:
  const Stream stream_;
  bool released_ = false;
};

}  // namespace outgrad::autotune
