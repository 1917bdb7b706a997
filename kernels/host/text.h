// A line of text in a fixed array, so that naming a device allocates nothing.
#pragma once

#include <cstddef>

#include "kernels/portable.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

// Text that does not fit is cut off.
class TextLine {
 public:
  const char* text() const { return text_; }
  TextLine& operator<<(const char* more) {
    for (; *more != '\0' && length_ + 1 < sizeof text_; ++more) text_[length_++] = *more;
    text_[length_] = '\0';
    return *this;
  }
  TextLine& operator<<(long long number) {
    char digits[24];
    int at = sizeof digits;
    digits[--at] = '\0';
    unsigned long long left =
        number < 0 ? 0ull - static_cast<unsigned long long>(number) : static_cast<unsigned long long>(number);
    do digits[--at] = static_cast<char>('0' + left % 10);
    while ((left /= 10) > 0);
    if (number < 0) digits[--at] = '-';
    return *this << digits + at;
  }

 private:
  static constexpr std::size_t kBytes = 256;
  char text_[kBytes] = "";
  std::size_t length_ = 0;
};

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
