// What the arithmetic of a store is found by: its identifier in kernels/catalogue/stores.h. Each header
// beside this one has a store or a family of stores, whose StoreArithmetic says
//
//   of a store with parts  Tables, scale_holds(scale) and kScaleRule; make_tables<S>(scale, bits, amax,
//   tables),
//                          which returns the bound that is proven for them; kClaims<Header>; nan(), the code,
//                          or the scale of a block, that stands for a NaN
//   of one that keeps y    Kept<T>, the format of a y that activation_backward reads, where x is in T
//
// and whatever else the store's own loops need. kernels/host/stores.h says what these are.
#pragma once

#include "kernels/catalogue/stores.h"
#include "kernels/portable.h"

#ifndef __CUDACC_RTC__
#include <utility>
#endif

namespace outgrad::kernels::inline OUTGRAD_ABI {

template <StoreId kId>
struct StoreArithmetic;

#ifndef __CUDACC_RTC__
// body.template operator()<id>() for each store of the catalogue.
template <class Body>
constexpr void for_each_store(const Body& body) {
  [&]<int... kPlace>(std::integer_sequence<int, kPlace...>) {
    (body.template operator()<static_cast<StoreId>(kPlace)>(), ...);
  }(std::make_integer_sequence<int, kStoreCount>{});
}
#endif

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
