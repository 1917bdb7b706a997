// What may be kept in place of y and a bit, as the subject of a sweep through the compiled library: the codes
// of a header for f'(x), a y that carries its branch, and y in 8 bits at a scale or in 4 bits by blocks.
//
// Of a code each x has one error, or one for each dither. Of few bits what an x gets depends on its tensor's
// scale, or on the largest |y| of its block. So each x is tried with many of them: with scales from one end
// of the header's claims to the other, and in blocks of which another element, small or large, may lead.
// `check` proves the bounds over all of them, and that of MXFP8.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/catalogue/stores.h"
#include "kernels/stores/code.h"
#include "validation/sweep/sweep.h"

namespace outgrad::validation {

/// All stores of an activation, by its number in the catalogue: codes of 1 to 8 bits, and dithered ones of 2
/// and 3.
Subject make_codes_subject(int activation, const FloatFormat& format);

/// y in 8 bits at a scale and in 4 bits by blocks, with 0 to 2 bits beside each, for x of 16 bits.
Subject make_few_bits_subject(int activation, const FloatFormat& format);

/// A y in 16 bits that carries its branch, which is its own code. `derivative` is f' in fp32, which the
/// library does not give of such a y; `name` and `claims` are those of the header.
Subject make_parity_subject(int activation, const FloatFormat& format, const std::string& name,
                            std::vector<Claim> claims, decltype(Subject::derivative) derivative);

namespace detail {

/// An activation's number in the catalogue.
int activation_number(std::string_view activation);

/// y and the mask of x in f32, by the compiled library. Of an f that rises the mask is what the sweep takes
/// it for: set, but for a NaN.
decltype(Subject::forward) library_forward(const SweptActivation& activation);

/// dx for dy in a format of 16 bits, from y and a mask, by the compiled library.
decltype(Subject::backward) library_backward(int activation, const FloatFormat& format);

inline constexpr std::uint32_t kDithers = 1u << 23;  // those that there are: dither_of has as many values
inline float dither_numbered(std::uint32_t number) { return kernels::dither_of(number << 9); }

/// The gradient of x over all dithers, see sweep.h. g is f'(x) as the kernels compute it.
VariedGradient over_dithers(const kernels::CodeRule& rule, float g, double want);

/// What a forward kept of some elements.
struct Kept {
  std::vector<std::uint8_t> codes, parts, scales;
};

/// y of few bits in all that varies beside x: a scale of the tensor, or the element that leads a block. In
/// the functions of one x it is at the first scale, or alone among zeros.
class FewBits {
 public:
  FewBits(int activation, kernels::StoreId store, const FloatFormat& format, int bits);
  ~FewBits();
  FewBits(const FewBits&) = delete;
  FewBits& operator=(const FewBits&) = delete;

  double claim() const { return claim_; }
  std::size_t variants() const { return variants_.size(); }
  float variant(std::size_t k) const { return variants_[k]; }

  /// g of each x with one of the variants.
  void gradients(std::size_t k, const float* x, float* g, std::int64_t n) const;
  /// What is kept of each x as a number, or NaN.
  void keep(const float* x, float* kept, std::int64_t n) const;
  /// dx at dy = 1 in a format, of what such numbers name.
  void gradients_of(const float* kept, const FloatFormat& of, float* g, std::int64_t n) const;

 private:
  struct Tables;

  Kept encode(std::size_t k, const std::vector<float>& x) const;
  void decode(std::size_t k, const Kept& kept, const FloatFormat& of, std::vector<float>& g) const;

  int activation_;
  kernels::StoreId store_;
  FloatFormat format_;
  int bits_;
  std::int64_t block_;  // 1 without blocks
  std::uint32_t codes_;  // that there are
  double claim_ = 0;
  std::uint8_t nan_ = 0;  // the code, in blocks the scale, that a NaN gets
  std::vector<float> variants_;
  std::vector<std::unique_ptr<Tables>> tables_;  // one for all blocks
};

}  // namespace detail
}  // namespace outgrad::validation
