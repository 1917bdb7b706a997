// The functions of kernels/c/outgrad.h that take arrays, and which arrays each reads and writes, from the
// header's text: what the tests of the C interface go by.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/c/outgrad.h"
#include "kernels/catalogue/stores.h"
#include "kernels/portable.h"

// A call names the members that it takes. The others are 0.
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

namespace outgrad::kernels::c_calls {

#define OUTGRAD_C_FUNCTIONS(_)                                       \
  _(kActivationForward, outgrad_activation_forward)                  \
  _(kActivationBackward, outgrad_activation_backward)                \
  _(kEncode, outgrad_encode_gradients)                               \
  _(kBackwardEncoded, outgrad_backward_encoded)                      \
  _(kGatedForward, outgrad_gated_forward)                            \
  _(kGatedBackward, outgrad_gated_backward)                          \
  _(kProductForward, outgrad_product_forward)                        \
  _(kProductBackward, outgrad_product_backward)                      \
  _(kSoftmaxForward, outgrad_softmax_forward)                        \
  _(kSoftmaxEncode, outgrad_softmax_encode)                          \
  _(kSoftmaxBackward, outgrad_softmax_backward)                      \
  _(kBiasForward, outgrad_bias_gelu_forward)                         \
  _(kBiasBackward, outgrad_bias_gelu_backward)                       \
  _(kLayernormForward, outgrad_layernorm_forward)                    \
  _(kRmsnormForward, outgrad_rmsnorm_forward)                        \
  _(kResidualLayernormForward, outgrad_residual_layernorm_forward)   \
  _(kResidualRmsnormForward, outgrad_residual_rmsnorm_forward)       \
  _(kLayernormBackward, outgrad_layernorm_backward)                  \
  _(kRmsnormBackward, outgrad_rmsnorm_backward)                      \
  _(kResidualLayernormBackward, outgrad_residual_layernorm_backward) \
  _(kResidualRmsnormBackward, outgrad_residual_rmsnorm_backward)
struct Function {
  const char* name;
  outgrad_status (*run)(const outgrad_call* call);
};
#define OUTGRAD_C_ROW(id, function) {#function, function},
inline constexpr Function kFunctions[] = {OUTGRAD_C_FUNCTIONS(OUTGRAD_C_ROW)};
#undef OUTGRAD_C_ROW
#define OUTGRAD_C_ID(id, function) id,
enum Id { OUTGRAD_C_FUNCTIONS(OUTGRAD_C_ID) kIds };
#undef OUTGRAD_C_ID

inline bool is_activation(Id id) { return id <= kActivationBackward; }
inline bool is_coded(Id id) { return id == kEncode || id == kBackwardEncoded; }
// Here their x holds both a and b; c_api_test.cpp has them apart.
inline bool is_gated(Id id) { return id >= kGatedForward && id <= kProductBackward; }
inline bool is_product(Id id) { return id == kProductForward || id == kProductBackward; }
inline bool has_pair(Id id, outgrad_activation activation) {
  return activation == OUTGRAD_GELU || activation == OUTGRAD_GELU_TANH || activation == OUTGRAD_SILU ||
         (activation == OUTGRAD_SIGMOID && !is_product(id));
}
inline bool is_softmax(Id id) { return id >= kSoftmaxForward && id <= kSoftmaxBackward; }
inline bool is_bias(Id id) { return id == kBiasForward || id == kBiasBackward; }
inline bool is_norm_forward(Id id) { return id >= kLayernormForward && id <= kResidualRmsnormForward; }
inline bool is_norm_backward(Id id) { return id >= kLayernormBackward; }
inline bool is_norm(Id id) { return id >= kLayernormForward; }
inline bool is_layer(Id id) { return is_norm(id) && (id - kLayernormForward) % 2 == 0; }
inline bool is_residual(Id id) { return is_norm(id) && (id - kLayernormForward) % 4 >= 2; }
inline bool over_rows(Id id) { return id >= kGatedForward; }

// Whether the function looks at the store; a norm of a sum takes OUTGRAD_STORE_Y alone.
inline bool takes_store(Id id) { return is_activation(id) || is_norm(id); }
inline bool takes_store(Id id, outgrad_store store) {
  if (store == OUTGRAD_STORE_Y) return true;
  if (is_activation(id)) return store > OUTGRAD_STORE_Y && store < kStoreCount;
  return is_norm(id) && !is_residual(id) &&
         (store == OUTGRAD_STORE_MXFP8 || store == OUTGRAD_STORE_E4M3 || store == OUTGRAD_STORE_INT8);
}
// Those of an activation with parts beside a y of few bits.
inline bool has_parts(outgrad_store store) {
  return store >= 0 && store < kStoreCount && kStores[store].has_parts;
}

// The bytes of an element; 0: those of the format.
// clang-format off
#define OUTGRAD_C_ARRAYS(_)                                                                                \
  _(kX, x, 0) _(kResidual, residual, 0) _(kZ, z, 0) _(kY, y, 0) _(kMask, mask, 4) _(kG, g, 0)              \
  _(kDy, dy, 0) _(kDx, dx, 0) _(kDz, dz, 0) _(kDzNext, dz_next, 0)                                         \
  _(kBias, bias, 4) _(kGamma, gamma, 4) _(kBeta, beta, 4) _(kRstd, rstd, 4)                                \
  _(kDgamma, dgamma, 4) _(kDbeta, dbeta, 4) _(kDbias, dbias, 4)                                            \
  _(kCodes, codes, 1) _(kScales, scales, 1) _(kParts, parts, 1) _(kSlot, slot, 0)                          \
  _(kSide, side_channels, 4) _(kXHat, side_x_hat, 4) _(kWorkspace, workspace, 4)
// clang-format on
struct Member {
  const char* name;
  size_t at;  // its place in the call
  i64 element;
};
#define OUTGRAD_C_ROW(id, member, element) {#member, offsetof(outgrad_call, member), element},
inline constexpr Member kMembers[] = {OUTGRAD_C_ARRAYS(OUTGRAD_C_ROW)};
#undef OUTGRAD_C_ROW
#define OUTGRAD_C_ID(id, member, element) id,
enum ArrayId { OUTGRAD_C_ARRAYS(OUTGRAD_C_ID) kArrays };
inline constexpr ArrayId kEveryArray[] = {OUTGRAD_C_ARRAYS(OUTGRAD_C_ID)};
#undef OUTGRAD_C_ID

inline u8* pointer(const outgrad_call& call, ArrayId array) {
  u8* value = nullptr;
  std::memcpy(&value, reinterpret_cast<const char*>(&call) + kMembers[array].at, sizeof value);
  return value;
}
inline void set_pointer(outgrad_call& call, ArrayId array, const void* value) {
  std::memcpy(reinterpret_cast<char*>(&call) + kMembers[array].at, &value, sizeof value);
}

// What a function does with an array.
struct Use {
  i64 bytes = 0;
  i64 element = 1;  // bytes, of which its address is a multiple
  bool used = false, written = false, optional = false;
  std::vector<ArrayId> may_be;  // of one that is written: the arrays whose place it may take

  i64 count() const { return bytes / element; }
};
using Uses = std::array<Use, kArrays>;

// The arrays of a call whose other members are good; of its sizes it sets what the header says that is
// needed.
inline Uses uses_of(Id id, outgrad_call& call) {
  Uses uses;
  const i64 unit = call.format == OUTGRAD_F32 ? 4 : 2, size = (over_rows(id) ? call.rows : 1) * call.n;
  const auto add = [&](bool written, ArrayId array, i64 bytes, std::vector<ArrayId> may_be = {}) -> Use& {
    const i64 element = kMembers[array].element;
    return uses[array] = {bytes, element ? element : unit, true, written, false, std::move(may_be)};
  };
  const auto stored = [&](bool written, ArrayId array, std::vector<ArrayId> may_be = {}) {
    add(written, array, size * unit, std::move(may_be));
  };
  const auto packed = [&](i64 bits) { return (size * bits + 7) / 8; };
  call.codes_bytes = call.scales_bytes = call.parts_bytes = 0;
  if (is_product(id)) {
    const bool writes = id == kProductForward;
    if (!writes) stored(false, kDy);
    add(!writes, writes ? kX : kDx, 2 * size * unit);
    stored(writes, kY), stored(writes, kSlot), add(writes, kMask, (size + 31) / 32 * 4);
    return uses;
  }
  if (is_gated(id)) {
    if (id == kGatedBackward) stored(false, kDy);
    add(false, kX, 2 * size * unit);
    if (id == kGatedBackward) add(true, kDx, 2 * size * unit, {kX});
    stored(true, kY, id == kGatedBackward ? std::vector{kDy} : std::vector<ArrayId>{});
    uses[kY].optional = id == kGatedBackward;
    return uses;
  }
  const bool forward =
      id == kActivationForward || id == kSoftmaxForward || id == kBiasForward || is_norm_forward(id);
  const outgrad_store store = is_coded(id) || is_softmax(id) ? OUTGRAD_STORE_CODE
                              : takes_store(id)              ? call.store
                                                             : OUTGRAD_STORE_Y;
  const bool kept = forward || id == kEncode || id == kSoftmaxEncode;  // codes and the like are written
  const bool y = store <= OUTGRAD_STORE_PARITY || (store == OUTGRAD_STORE_CODE && forward) ||
                 (is_norm_forward(id) && store != OUTGRAD_STORE_Y);
  if (forward) {
    stored(false, kX);
    if (is_residual(id)) stored(false, kResidual), stored(true, kZ, {kX, kResidual});
    if (y) stored(true, kY, is_residual(id) ? std::vector{kX, kResidual} : std::vector{kX});
    uses[kY].optional = is_norm(id) && store != OUTGRAD_STORE_Y;
  } else if (id == kEncode) {
    stored(false, kG);
  } else if (id == kSoftmaxEncode) {
    stored(false, kY);
  } else {
    stored(false, kDy);
    if (y) stored(false, kY);
    if (is_residual(id)) stored(false, kDzNext);
    stored(true, is_residual(id) ? kDz : kDx, is_residual(id) ? std::vector{kDy, kDzNext} : std::vector{kDy});
  }
  if (is_norm(id)) {
    add(false, kGamma, call.n * 4).optional = true;
    if (is_layer(id)) add(false, kBeta, call.n * 4).optional = true;
    add(kept, kRstd, call.rows * 4);
    add(false, kSide, call.side_count * 4);
    add(kept, kXHat, call.rows * call.side_count * 4);
    if (is_norm_backward(id)) add(true, kDgamma, call.n * 4).optional = true;
    if (is_norm_backward(id) && is_layer(id)) add(true, kDbeta, call.n * 4).optional = true;
    if (store != OUTGRAD_STORE_Y) {
      add(kept, kCodes, size);
      add(kept, kScales,
          store == OUTGRAD_STORE_E4M3    ? 4
          : store == OUTGRAD_STORE_MXFP8 ? size / 32
                                         : size / 64 * 8)
          .element = store == OUTGRAD_STORE_MXFP8 ? 1 : 4;
    }
  } else if (is_softmax(id)) {
    add(kept, kCodes, size);
  } else {
    const bool mask = is_bias(id) || (store == OUTGRAD_STORE_Y && call.activation < OUTGRAD_TANH) ||
                      store == OUTGRAD_STORE_MXFP8;
    if (mask) add(kept, kMask, (size + 31) / 32 * 4);
    if (store == OUTGRAD_STORE_CODE) add(kept, kCodes, packed(call.bits));
    if (store >= OUTGRAD_STORE_MXFP8) add(kept, kCodes, packed(store < OUTGRAD_STORE_MXFP4 ? 8 : 4));
    if (store == OUTGRAD_STORE_MXFP8 || store == OUTGRAD_STORE_MXFP4) add(kept, kScales, (size + 31) / 32);
    if (store == OUTGRAD_STORE_NVFP4) add(kept, kScales, (size + 15) / 16);
    if (has_parts(store)) add(kept, kParts, packed(call.bits));
    if (id == kBiasForward) add(false, kBias, call.n * 4);
    if (id == kBiasBackward) add(true, kDbias, call.n * 4);
  }
  call.codes_bytes = static_cast<size_t>(uses[kCodes].bytes);
  call.scales_bytes = static_cast<size_t>(uses[kScales].bytes);
  call.parts_bytes = static_cast<size_t>(uses[kParts].bytes);
  if (id == kBiasBackward || is_norm_backward(id)) {  // how much only the library knows
    outgrad_call sizes = call;
    if ((is_norm(id) ? outgrad_norm_sizes : outgrad_bias_gelu_sizes)(&sizes) != OUTGRAD_OK) std::abort();
    call.workspace_bytes = sizes.workspace_bytes;
    add(true, kWorkspace, static_cast<i64>(sizes.workspace_bytes));
  }
  return uses;
}

}  // namespace outgrad::kernels::c_calls
