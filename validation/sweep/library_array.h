// Values of a format, as the library takes them, from and to floats that are such values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/c/outgrad.h"
#include "kernels/formats.h"
#include "validation/exact/oracle.h"

namespace outgrad::validation::detail {

inline outgrad_format library_format(const FloatFormat& format) {
  return format.name == kF32.name ? OUTGRAD_F32 : format.name == kF16.name ? OUTGRAD_F16 : OUTGRAD_BF16;
}

class LibraryArray {
 public:
  LibraryArray(const FloatFormat& format, std::int64_t n)
      : format_(library_format(format)), n_(n), words_(static_cast<std::size_t>(n)) {}
  LibraryArray(const FloatFormat& format, const float* values, std::int64_t n) : LibraryArray(format, n) {
    with_type([&]<class T>(T* to) {
      std::transform(values, values + n_, to, [](float v) { return kernels::narrow<T>(v); });
    });
  }
  static LibraryArray ones(const FloatFormat& format, std::int64_t n) {
    LibraryArray array(format, n);
    array.with_type([&]<class T>(T* to) { std::fill_n(to, n, kernels::narrow<T>(1.0f)); });
    return array;
  }

  void* data() { return words_.data(); }
  const void* data() const { return words_.data(); }
  void widen(float* to) {
    with_type([&]<class T>(T* from) {
      std::transform(from, from + n_, to, [](T v) { return kernels::widen(v); });
    });
  }

 private:
  template <class Action>
  void with_type(const Action& action) {
    switch (format_) {
      case OUTGRAD_F32: return action(reinterpret_cast<float*>(words_.data()));
      case OUTGRAD_F16: return action(reinterpret_cast<kernels::F16*>(words_.data()));
      default: return action(reinterpret_cast<kernels::BF16*>(words_.data()));
    }
  }

  outgrad_format format_;
  std::int64_t n_;
  std::vector<float> words_;  // room enough in any format
};

}  // namespace outgrad::validation::detail
