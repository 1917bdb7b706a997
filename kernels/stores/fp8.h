// The stores of y in 8 bits with one scale a tensor: e4m3 and e5m2 (OFP8), and int8, whose numbers are the
// integers from -127 to 127. Codes, the parts beside them and their table are those of
// kernels/stores/parts.h.
//
// To add a format, add its StoreArithmetic here: what is the store's own is F and what its claims are called.
#pragma once

#include "kernels/stores/parts.h"
#include "kernels/stores/store.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

template <class F>
struct AtScale {
  using Code = F;
  using Tables = Fp8Table;
  static constexpr const char* kScaleRule = "it is positive, finite and not subnormal";
  OUTGRAD_HD static bool scale_holds(float scale) { return kernels::scale_holds(scale); }
  OUTGRAD_HD static float scale_for(float largest) { return kLargestOf<F> / largest; }
  OUTGRAD_HD static u8 nan() { return fp8_code<F>(float_of(kCanonicalNanF32), 1).bits; }

  // Of an activation S; returns the largest error that is proven at this scale.
  template <class S>
  OUTGRAD_HD static double make_tables(float scale, int bits, u32, Tables& table) {
    fill_fp8_table<S, F>(scale, bits, table);
    return fp8_error<S>(table);
  }
};

template <>
struct StoreArithmetic<StoreId::kE4m3> : AtScale<F8E4M3> {
  template <class Header>
  static constexpr Fp8Claims kClaims = {
      Header::kE4m3Least, Header::kE4m3Most, {Header::kE4m3T0, Header::kE4m3T1, Header::kE4m3T2}};
};
template <>
struct StoreArithmetic<StoreId::kE5m2> : AtScale<F8E5M2> {
  template <class Header>
  static constexpr Fp8Claims kClaims = {
      Header::kE5m2Least, Header::kE5m2Most, {Header::kE5m2T0, Header::kE5m2T1, Header::kE5m2T2}};
};
template <>
struct StoreArithmetic<StoreId::kInt8> : AtScale<I8> {
  template <class Header>
  static constexpr Fp8Claims kClaims = {
      Header::kInt8Least, Header::kInt8Most, {Header::kInt8T0, Header::kInt8T1, Header::kInt8T2}};
};

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
