// The catalogue of stores: what may be kept for the backward pass in place of x. Names and facts alone; what
// a value is kept as follows from the header of its arithmetic (kernels/stores/parity.h, code.h, mxfp8.h,
// fp8.h, fp4.h, norm_store.h). Everything that goes through the stores one by one goes through this list. To
// add a store, add it at the end here and to outgrad_store in kernels/c/outgrad.h.
#pragma once

#include "kernels/portable.h"

namespace outgrad::kernels {

// In the order of outgrad_store.
enum class StoreId { kY, kParity, kCode, kMxFp8, kE4m3, kE5m2, kInt8, kMxFp4, kNvFp4 };

inline constexpr int kChosenBits = -1;  // of a code whose bits the caller chooses

// What an activation keeps of an element, and beside it.
struct Store {
  const char* name;
  bool keeps_y = false;  // in the format
  bool keeps_mask = false;  // of an activation with a minimum
  bool writes_y = false;  // kept or not
  int code_bits = 0;  // 0 without a code
  int block = 0;  // elements that share a scale of one byte, 0 without
  bool has_parts = false;  // bits beside a code that say where f'(x) lies in what the code leaves open
  bool takes_scale = false;  // of the tensor
};

inline constexpr Store kStores[] = {
    {.name = "y", .keeps_y = true, .keeps_mask = true, .writes_y = true},
    {.name = "y with its branch", .keeps_y = true, .writes_y = true},
    {.name = "code", .writes_y = true, .code_bits = kChosenBits},
    {.name = "mxfp8", .keeps_mask = true, .code_bits = 8, .block = 32},
    {.name = "e4m3", .code_bits = 8, .has_parts = true, .takes_scale = true},
    {.name = "e5m2", .code_bits = 8, .has_parts = true, .takes_scale = true},
    {.name = "int8", .code_bits = 8, .has_parts = true, .takes_scale = true},
    {.name = "mxfp4", .code_bits = 4, .block = 32, .has_parts = true, .takes_scale = true},
    {.name = "nvfp4", .code_bits = 4, .block = 16, .has_parts = true, .takes_scale = true},
};
inline constexpr int kStoreCount = sizeof kStores / sizeof *kStores;

OUTGRAD_HD constexpr const Store& store_of(StoreId id) { return kStores[static_cast<int>(id)]; }

}  // namespace outgrad::kernels
