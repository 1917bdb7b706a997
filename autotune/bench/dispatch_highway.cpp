// GELU's backward for bench_dispatch.cpp in Google Highway's operations.
//
// The evaluators of kernels/eval.h cannot be compiled for Highway's targets: a template keeps the instruction set of the place where it is
// defined, and Highway changes it by pragma around each inclusion of this file. So the formulas are written out once more.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "autotune/bench/dispatch_highway.cpp"
#include <hwy/foreach_target.h>  // includes this file once for each target; before highway.h
#include <hwy/highway.h>

#include <cstring>

#include "autotune/bench/dispatch.h"
#include "kernels/eval.h"
#include "kernels/fits.h"
#include "kernels/table.h"

#ifndef OUTGRAD_DISPATCH_HIGHWAY_ONCE
#define OUTGRAD_DISPATCH_HIGHWAY_ONCE
namespace outgrad::autotune {

using HighwayFit = kernels::DefaultFit<kernels::BF16>::Type;
static_assert(HighwayFit::kDegree == 2 && HighwayFit::kCentred && HighwayFit::kScheme == kernels::kHorner && HighwayFit::kYLo == 0 && HighwayFit::kHasLeft &&
                  !HighwayFit::kHasRight && !HighwayFit::kHasBreaks,
              "what is written out below");
inline constexpr auto kHighwayColumns = kernels::columns_of(HighwayFit::table());

}  // namespace outgrad::autotune
#endif

HWY_BEFORE_NAMESPACE();
namespace outgrad::autotune::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using kernels::BF16;
using kernels::i64;
using kernels::u32;
using D = hn::ScalableTag<float>;
using DI = hn::RebindToSigned<D>;
using V = hn::Vec<D>;
using VI = hn::Vec<DI>;

HWY_ATTR inline V load(const BF16* from) {
  const hn::Rebind<std::uint16_t, D> d16;
  const hn::RebindToUnsigned<D> d32;
  return hn::BitCast(D(), hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(from)))));
}

HWY_ATTR inline void store(BF16* to, V value) {
  const hn::Rebind<std::uint16_t, D> d16;
  const hn::RebindToUnsigned<D> d32;
  const auto wide = hn::BitCast(d32, value);
  const auto odd = hn::And(hn::ShiftRight<16>(wide), hn::Set(d32, 1));
  const VI rounded = hn::BitCast(DI(), hn::ShiftRight<16>(hn::Add(hn::Add(wide, hn::Set(d32, 0x7fff)), odd)));
  const VI result = hn::IfThenElse(hn::RebindMask(DI(), hn::IsNaN(value)), hn::Set(DI(), kernels::kCanonicalNanBf16), rounded);
  hn::StoreU(hn::DemoteTo(d16, result), d16, reinterpret_cast<std::uint16_t*>(to));
}

// Word `word` of the rows picked by the low bits of `row`.
HWY_ATTR inline V lookup(int word, VI row) {
  const VI index = hn::And(row, hn::Set(DI(), HighwayFit::kRows - 1));
  if constexpr (hn::MaxLanes(D()) >= HighwayFit::kRows) {
    return hn::TableLookupLanes(hn::Load(D(), kHighwayColumns.w[word]), hn::IndicesFromVec(D(), index));
  } else {
    return hn::GatherIndex(D(), kHighwayColumns.w[word], index);
  }
}

// dy g of one vector; `bits` has the mask, lane k in bit k.
HWY_ATTR inline V product(V dy, V y, const std::uint8_t* bits) {
  const D d;
  const DI di;
  const auto m = hn::LoadMaskBits(d, bits);
  y = hn::IfThenElse(hn::Lt(hn::Set(d, HighwayFit::kYMax), y), hn::Set(d, HighwayFit::kYMax), y);
  const V difference = hn::Sub(y, hn::Set(d, HighwayFit::kYHi));
  const V t = hn::IfThenElse(hn::Lt(difference, hn::Set(d, HighwayFit::kTMin)), hn::Set(d, HighwayFit::kTMin), difference);
  const V root = hn::Sqrt(t);
  V v = hn::IfThenElse(m, root, hn::Neg(root));
  VI row = hn::BitCast(di, hn::MulAdd(v, hn::Set(d, HighwayFit::kIndexScale), hn::Set(d, HighwayFit::kIndexBias)));
  const auto left = hn::Not(hn::Or(m, hn::Le(y, hn::Set(d, HighwayFit::kLeftY))));
  const V z = hn::IfThenElse(hn::Gt(y, hn::Zero(d)), hn::Set(d, -0.0f), y);
  const VI h = hn::ShiftRight<23 - HighwayFit::kLeftBits>(hn::And(hn::BitCast(di, z), hn::Set(di, 0x7fffffff)));
  const VI twice = hn::Add(h, hn::Max(h, hn::Set(di, HighwayFit::kLeftKnee)));
  const VI above = hn::Max(hn::Sub(hn::ShiftRight<1>(twice), hn::Set(di, HighwayFit::kLeftBase)), hn::Zero(di));
  row = hn::IfThenElse(hn::RebindMask(di, left), hn::Add(above, hn::Set(di, HighwayFit::kLeftRow)), row);
  v = hn::IfThenElse(left, z, v);
  const V u = hn::Sub(v, lookup(0, row));
  return hn::Mul(dy, hn::MulAdd(hn::MulAdd(lookup(3, row), u, lookup(2, row)), u, lookup(1, row)));
}

HWY_ATTR const char* target() { return hwy::TargetName(HWY_TARGET); }

HWY_ATTR void backward(const BF16* dy, const BF16* y, const u32* mask, BF16* dx, i64 n) {
  const i64 lanes = static_cast<i64>(hn::Lanes(D()));
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(mask);
  i64 i = 0;
  // As our units do: vectors side by side, so that one's latency hides behind the others'.
  constexpr int kUnroll = 4;
  if (lanes >= 8) {
    for (; i + kUnroll * lanes <= n; i += kUnroll * lanes) {
      V part[kUnroll];
      for (int k = 0; k < kUnroll; ++k) part[k] = product(load(dy + i + k * lanes), load(y + i + k * lanes), bytes + (i + k * lanes) / 8);
      for (int k = 0; k < kUnroll; ++k) store(dx + i + k * lanes, part[k]);
    }
  }
  // The rest by padded vectors.
  constexpr int kMost = static_cast<int>(hn::MaxLanes(D()));
  for (; i < n; i += lanes) {
    const i64 count = n - i < lanes ? n - i : lanes;
    BF16 from_dy[kMost] = {}, from_y[kMost] = {}, to[kMost];
    std::memcpy(from_dy, dy + i, static_cast<std::size_t>(count) * sizeof(BF16));
    std::memcpy(from_y, y + i, static_cast<std::size_t>(count) * sizeof(BF16));
    std::uint8_t bits[8] = {};  // LoadMaskBits reads up to so many bytes
    for (i64 k = 0; k < count; ++k) bits[k / 8] |= static_cast<std::uint8_t>((mask[(i + k) / 32] >> ((i + k) % 32) & 1) << (k % 8));
    store(to, product(load(from_dy), load(from_y), bits));
    std::memcpy(dx + i, to, static_cast<std::size_t>(count) * sizeof(BF16));
  }
}

}  // namespace outgrad::autotune::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace outgrad::autotune {

HWY_EXPORT(backward);
HWY_EXPORT(target);

void backward_by_highway(const kernels::BF16* dy, const kernels::BF16* y, const kernels::u32* mask, kernels::BF16* dx, kernels::i64 n) {
  HWY_DYNAMIC_DISPATCH(backward)(dy, y, mask, dx, n);
}

const char* highway_target() { return HWY_DYNAMIC_DISPATCH(target)(); }

}  // namespace outgrad::autotune
#endif
