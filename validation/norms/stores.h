// The output y of a norm kept in 8 bits, as the next product reads it: how it is stored, and how it is read
// back.
//
// All arithmetic is fp32, rounded to nearest even. y is what the norm's forward gives in fp32 before it is
// narrowed, so it is rounded once. [rows, n], row-major.
//
//   e4m3     One scale s for the whole tensor, in fp32: RN(amax / 448), where amax is the largest |y|; at
//            least 2^-126, so that it is a normal number. Code: RN(y / s) in e4m3. It stands for RN(code s).
//            A given scale may be smaller: then codes saturate at 448.
//   mxfp8    Blocks of 32 along the row share a power of two, as kernels/stores/mxfp8.h stores them (OCP
//            Microscaling Formats 1.0): the largest element of a block saturates if its significand exceeds
//            1.75.
//   int8     Groups along the row keep two fp32 numbers: the zero point z, their least y, and the scale s =
//            RN(RN(max - z) / 255), at least 2^-126. Code: RN(RN(y - z) / s) to an integer, 0 to 255. It
//            stands for RN(z + code s).
//   int8_row The same with the row as the group.
//
// A norm without gamma and beta, whose x^ the next product reads (MS-LN and MS-RMSNorm: Yang et al.,
// "Reducing Fine-Tuning Memory Overhead by Approximate and Memory-Sharing Backpropagation", ICML 2024), is
// the norm with gamma = 1 and beta = 0.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/formats.h"
#include "kernels/saturated.h"

namespace outgrad::validation {

inline constexpr float kLeastScale = 0x1p-126f;  // of e4m3 and int8
inline constexpr float kLargestE4m3 = kernels::kLargestOf<kernels::F8E4M3>;
inline constexpr float kLastInt8 = 255;

enum class NormStoreKind {
  kPlain,  // each y in a floating-point format, by itself
  kE4m3,
  kMxFp8,
  kInt8,
};

struct NormStore {
  NormStoreKind kind = NormStoreKind::kPlain;
  kernels::i64 group = 0;  // elements along the row that share a scale; 0: all of the row
  std::optional<float> scale{};  // kE4m3: the tensor's scale, if it does not follow from amax

  bool plain() const { return kind == NormStoreKind::kPlain; }
  kernels::i64 group_of(kernels::i64 columns) const { return group == 0 ? columns : group; }
  // Bytes of y and of its scales for an element of a row; the single scale of a tensor is not counted.
  double bytes(kernels::i64 columns, int plain_bytes) const;
};

// Throws SpecError "label: place: why" if groups do not divide a row of `columns`, or a given scale is zero,
// negative, subnormal, infinite or NaN, or belongs to a store that has none.
void check_store(const NormStore& store, kernels::i64 columns, const std::string& label,
                 const std::string& place);

}  // namespace outgrad::validation
