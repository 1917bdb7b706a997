// A norm's output as it is kept in 8 bits (validation/norms/stores.h).
#pragma once

#include <vector>

#include "kernels/formats.h"
#include "validation/norms/stores.h"

namespace outgrad::validation {

// A matrix y as it is kept: codes and scales.
class KeptOutput {
 public:
  KeptOutput(const NormStore& store, kernels::i64 rows, kernels::i64 columns);  // not kPlain

  // Throws SpecError, which names the element, for a y that is infinite or NaN: int8 has no code for it, and
  // in the other formats one such element of a gradient's input would spoil its row. So does a group of int8
  // whose range overflows.
  void keep(const std::vector<float>& y);
  void read(std::vector<float>& y) const;
  // What a y at [row, column] would be read as by the scales of the last keep().
  float read_as(float y, size_t row, size_t column) const;
  // Whether such a y leaves the scale there as the last keep() chose it.
  bool same_scale(float y, size_t row, size_t column) const;

 private:
  struct Scale {
    float step = 1, zero = 0;
    kernels::E8M0 shared{};
    float least = 0, most = 0;  // the y that leave it as it is
  };
  kernels::u8 code_of(float y, const Scale& scale) const;
  float value_of(kernels::u8 code, const Scale& scale) const;
  const Scale& scale_at(size_t element) const {
    return scales_[store_.kind == NormStoreKind::kE4m3 ? 0 : element / group_];
  }

  NormStore store_;
  size_t rows_, columns_, group_;
  std::vector<kernels::u8> codes_;
  std::vector<Scale> scales_;
};

}  // namespace outgrad::validation
