// The kernels of the C library in one format, for the instruction set that the translation unit is compiled
// for.
//
// The build compiles variant_f32.cpp, variant_f16.cpp and variant_bf16.cpp once for every instruction set.
// Each unit has one format, because all three together take minutes to compile with sanitizers.
// OUTGRAD_C_VARIANT names the set and, together with the format, the constant that a unit defines. The inline
// namespace of the headers keeps the copies apart, and nothing here runs before it is called.
#pragma once

#include "kernels/c/table.h"
#include "kernels/catalogue/codes.h"
#include "kernels/forwards.h"
#include "kernels/host/code.h"
#include "kernels/host/dropout.h"
#include "kernels/host/forwards.h"
#include "kernels/host/fp4.h"
#include "kernels/host/fp8.h"
#include "kernels/host/functions.h"
#include "kernels/host/gated.h"
#include "kernels/host/mxfp8.h"
#include "kernels/host/norm_store.h"
#include "kernels/host/parity.h"
#include "kernels/host/product.h"
#include "kernels/host/softmax.h"
#include "kernels/host/tensor_codes.h"

namespace outgrad::c {
namespace {

using kernels::BF16;
using kernels::F16;
using kernels::KernelId;
using kernels::u8;
namespace tuned = kernels::tuned;

// An array of a call as a kernel takes it.
template <class T>
T* as(const void* array) {
  return static_cast<T*>(const_cast<void*>(array));
}

// The fits are always this library's own, whatever fits the tables name, so that results depend only on the
// arguments. Only the schedules come from the tables.
template <KernelId K, class T>
void run(const Call& call) {
  const kernels::Arguments& a = call.arguments;
  tuned::run<typename kernels::HostKernel<K>::template Table<T>>(a.rows, a.cols, [&]<class Choice>(Choice) {
    kernels::run<K, kernels::StandardFit<K, T>, T, Choice::kSchedule>(a);
  });
}

// The other activations and stores are not tuned and run the default schedule. Nine more kernels for each
// schedule would be most of the library.
constexpr kernels::CpuSchedule kSchedule = tuned::kDefaultSchedule;

template <class F, class T>
void forward_y(const Call& call) {
  kernels::call<KernelId::kGeluForward, T>(
      call.arguments, [](auto... x) { kernels::activation_forward<F, T, kSchedule>(x...); });
}

template <class Fit, class T>
void backward_y(const Call& call) {
  kernels::run<KernelId::kGeluBackward, Fit, T, kSchedule>(call.arguments);
}

// GELU's codes are tuned; so is the backward from codes of every activation, which is GELU's with another
// range.
template <StoreId kId, class Table, class Run>
void in_schedule(const Call& call, const Run& run) {
  if constexpr (kId != StoreId::kCode) {
    run.template operator()<kSchedule>();
  } else {
    tuned::run<Table>(1, call.given.n,
                      [&]<class Choice>(Choice) { run.template operator()<Choice::kSchedule>(); });
  }
}

kernels::StoreCall store_call(const Call& call) {
  const outgrad_call& a = call.given;
  return {.y = a.y,
          .mask = a.mask,
          .codes = as<u8>(a.codes),
          .scales = as<u8>(a.scales),
          .parts = as<u8>(a.parts),
          .choice = {a.bits, a.seed},
          .range = {call.lo, call.hi},
          .scale = a.scale == nullptr ? 1 : *a.scale,
          .tables = call.tables};
}

template <StoreId kId, class Of, class T>
void forward(const Call& call) {
  using Table = std::conditional_t<std::is_same_v<Of, kernels::CodedGelu>, tuned::GeluForwardCode<T>,
                                   kernels::Untuned<tuned::DefaultCode>>;
  in_schedule<kId, Table>(call, [&]<kernels::CpuSchedule kS>() {
    kernels::HostStore<kId>::template forward<Of, T, kS>(store_call(call), as<const T>(call.given.x),
                                                         call.given.n);
  });
}

template <StoreId kId, class Of, class T>
void backward(const Call& call) {
  in_schedule<kId, tuned::GeluBackwardCode<T>>(call, [&]<kernels::CpuSchedule kS>() {
    kernels::HostStore<kId>::template backward<Of, T, kS>(store_call(call), as<const T>(call.given.dy),
                                                          as<T>(call.given.dx), call.given.n);
  });
}

template <class T>
void encode_gradients(const Call& call) {
  const outgrad_call& a = call.given;
  kernels::encode_gradients<T, tuned::DefaultCode::kSchedule>({call.lo, call.hi}, {a.bits, a.seed},
                                                              as<const T>(a.g), as<u8>(a.codes), a.n);
}

// The two matrices of a pair or, where the second is null, the halves of the first one's rows.
template <class T>
struct Pair {
  T *a, *b;
  kernels::GatedShape shape;

  Pair(const void* first, const void* second, const outgrad_call& of)
      : a(as<T>(first)), b(second == nullptr ? a + of.n : as<T>(second)),
        shape{of.rows, of.n, second == nullptr ? 2 * of.n : of.n} {}
};

template <class Gate, class T>
void gated_forward(const Call& call) {
  const outgrad_call& a = call.given;
  const Pair<const T> of(a.x, a.b, a);
  kernels::gated_forward<Gate, T, kSchedule>(of.a, of.b, of.shape, as<T>(a.y));
}

template <class Gate, class T>
void gated_backward(const Call& call) {
  const outgrad_call& a = call.given;
  const Pair<const T> of(a.x, a.b, a);
  const Pair<T> to(a.dx, a.b == nullptr ? nullptr : a.db, a);
  kernels::gated_backward<Gate, T, kSchedule>(as<const T>(a.dy), of.a, of.b, of.shape, to.a, to.b,
                                              as<T>(a.y));
}

// Of a store that any tensor can have.
template <class T>
kernels::GatedCodes<T> gated_codes(const outgrad_call& of, const GatedCodes& kept) {
  const kernels::TensorFormat<T>* const format =
      of.store == OUTGRAD_STORE_E4M3   ? &kernels::kTensorAtScale<kernels::F8E4M3, T>
      : of.store == OUTGRAD_STORE_E5M2 ? &kernels::kTensorAtScale<kernels::F8E5M2, T>
                                       : &kernels::kTensorInBlocks<T>;
  return {format, kept.codes_of_a, kept.scales_of_a, kept.codes_of_b, kept.scales_of_b};
}

template <class Gate, class T>
void gated_forward_8bit(const outgrad_call& a, const GatedCodes& kept) {
  const Pair<const T> of(a.x, a.b, a);
  const kernels::GatedCodes<T> codes = gated_codes<T>(a, kept);
  kernels::gated_forward<Gate, T, kSchedule>(of.a, of.b, of.shape, as<T>(a.y), &codes);
}

template <class Gate, class T>
void gated_backward_8bit(const outgrad_call& a, const GatedCodes& kept) {
  const Pair<T> to(a.dx, a.db, a);
  const kernels::GatedCodes<T> codes = gated_codes<T>(a, kept);
  kernels::gated_backward<Gate, T, kSchedule>(as<const T>(a.dy), nullptr, nullptr, to.shape, to.a, to.b,
                                              as<T>(a.y), &codes);
}

template <class Gate, class T>
void product_forward(const Call& call) {
  const outgrad_call& a = call.given;
  const Pair<const T> of(a.x, a.b, a);
  kernels::product_forward<Gate, T, kSchedule>(of.a, of.b, of.shape, as<T>(a.y), as<T>(a.slot), a.mask);
}

template <class Gate, class T>
void product_backward(const Call& call) {
  const outgrad_call& a = call.given;
  const Pair<T> to(a.dx, a.db, a);
  kernels::product_backward<Gate, T, kSchedule>(as<const T>(a.dy), as<const T>(a.y), as<const T>(a.slot),
                                                a.mask, to.shape, to.a, to.b);
}

template <class T>
void softmax_forward(const Call& call) {
  const outgrad_call& a = call.given;
  kernels::softmax_forward_code<T, kSchedule>(as<const T>(a.x), as<T>(a.y), as<u8>(a.codes), a.rows, a.n);
}

template <class T>
void softmax_encode(const Call& call) {
  const outgrad_call& a = call.given;
  kernels::softmax_encode<T, kSchedule>(as<const T>(a.y), as<u8>(a.codes), a.rows * a.n);
}

template <class T>
void softmax_backward(const Call& call) {
  const outgrad_call& a = call.given;
  kernels::softmax_backward_code<T, kSchedule>(as<const T>(a.dy), as<const u8>(a.codes), as<T>(a.dx), a.rows,
                                               a.n);
}

template <class T>
void dropout(const void* x, void* y, i64 n, u64 seed, double p) {
  kernels::dropout(as<const T>(x), as<T>(y), n, seed, p);
}

template <class F, class T>
void scale_of_tensor(const void* x, i64 n, float least, void* scale) {
  *as<float>(scale) = kernels::scale_of_tensor<F>(as<const T>(x), n, least);
}

template <class F, class T>
void encode_tensor(const void* x, void* codes, void* scale, i64 n) {
  kernels::encode_tensor(as<const T>(x), as<F>(codes), n, *as<const float>(scale));
}

template <class F, class T>
void decode_tensor(const void* codes, const void* scale, void* x, i64 n) {
  kernels::decode_tensor(as<const F>(codes), *as<const float>(scale), as<T>(x), n);
}

template <class T>
void encode_tensor_blocks(const void* x, void* codes, void* scales, i64 n) {
  kernels::encode_tensor_blocks(as<const T>(x), as<kernels::F8E4M3>(codes), as<kernels::E8M0>(scales), n);
}

template <class T>
void decode_tensor_blocks(const void* codes, const void* scales, void* x, i64 n) {
  kernels::decode_tensor_blocks(as<const kernels::F8E4M3>(codes), as<const kernels::E8M0>(scales), as<T>(x),
                                n);
}

template <kernels::Norm N, class Store, class T>
void norm_forward(const Call& call) {
  constexpr KernelId kId =
      N == kernels::Norm::layer ? KernelId::kLayernormForward : KernelId::kRmsnormForward;
  const outgrad_call& a = call.given;
  kernels::norm_forward_8bit<N>(kernels::NormForward8bit<Store, T>{
      kernels::norm_arrays<kId, T>(call.arguments), as<typename Store::Code>(a.codes),
      as<typename Store::Scale>(a.scales), a.scale});
}

template <kernels::Norm N, class Store, class T>
void norm_backward(const Call& call) {
  constexpr KernelId kId =
      N == kernels::Norm::layer ? KernelId::kLayernormBackward : KernelId::kRmsnormBackward;
  const outgrad_call& a = call.given;
  kernels::norm_backward_8bit<N>(kernels::NormBackward8bit<Store, T>{
      kernels::norm_arrays<kId, T>(call.arguments), as<const typename Store::Code>(a.codes),
      as<const typename Store::Scale>(a.scales)});
}

template <KernelId K, class T>
ChosenSchedule chosen(i64 rows, i64 n) {
  const tuned::Tuning tuning = tuned::tuning_of<typename kernels::HostKernel<K>::template Table<T>>(rows, n);
  return {tuning.entry->variant, name_of(tuning.found.rung)};
}

// Functions of this unit, since those of the headers are inlined.
i64 bias_workspace(i64 rows, i64 n) { return kernels::bias_backward_workspace(rows, n); }
i64 norm_workspace(i64 rows, i64 n) { return kernels::norm_backward_workspace(rows, n); }

// --- The table -----------------------------------------------------------------------------------

constexpr void set(FormatKernels& all, StoreId store, int activation, FormatKernels::Run* forward,
                   FormatKernels::Run* backward) {
  all.forward[static_cast<int>(store)][activation] = forward;
  all.backward[static_cast<int>(store)][activation] = backward;
}

template <class T, class Gelu, class... Fit, class... F>
constexpr void add_y(FormatKernels& all, FitList<Gelu, Fit...>, kernels::ForwardList<F...>) {
  int at = 0;
  set(all, StoreId::kY, at, run<KernelId::kGeluForward, T>, run<KernelId::kGeluBackward, T>);
  (set(all, StoreId::kY, ++at, forward_y<F, T>, backward_y<Fit, T>), ...);
}

// Every store but that of y, for the activations that have it. Where the backward is the same for all, it is
// there once.
template <class T, int... kActivation>
constexpr void add_stores(FormatKernels& all, std::integer_sequence<int, kActivation...>) {
  kernels::for_each_store([&]<StoreId kId>() {
    if constexpr (kId != StoreId::kY) {
      const auto add = [&]<int kAt>() {
        using Of = typename kernels::HostStore<kId>::template Of<kAt, T>;
        using Read =
            std::conditional_t<kernels::store_of(kId).keeps_y || kernels::store_of(kId).keeps_mask, Of, void>;
        if constexpr (!std::is_void_v<Of>) set(all, kId, kAt, forward<kId, Of, T>, backward<kId, Read, T>);
      };
      (add.template operator()<kActivation>(), ...);
    }
  });
}

template <class T, int... kActivation>
constexpr void add_gates(FormatKernels& all, std::integer_sequence<int, kActivation...>) {
  const auto add = [&]<int kAt>() {
    using Gate = kernels::GateAt<kAt>;
    if constexpr (kernels::kIsGate<Gate>) {
      all.gated_forward[kAt] = gated_forward<Gate, T>;
      all.gated_backward[kAt] = gated_backward<Gate, T>;
      all.gated_forward_8bit[kAt] = gated_forward_8bit<Gate, T>;
      all.gated_backward_8bit[kAt] = gated_backward_8bit<Gate, T>;
    }
    if constexpr (kernels::kHasProduct<Gate, T>) {
      all.product_forward[kAt] = product_forward<Gate, T>;
      all.product_backward[kAt] = product_backward<Gate, T>;
    }
  };
  (add.template operator()<kActivation>(), ...);
}

template <class T>
constexpr void add_norms(FormatKernels& all) {
  using kernels::Norm;
  const auto add = [&]<class Store>(StoreId id, Store) {
    const int store = static_cast<int>(id);
    all.norm_forward[0][store] = norm_forward<Norm::layer, Store, T>;
    all.norm_forward[1][store] = norm_forward<Norm::rms, Store, T>;
    all.norm_backward[0][store] = norm_backward<Norm::layer, Store, T>;
    all.norm_backward[1][store] = norm_backward<Norm::rms, Store, T>;
  };
  add(StoreId::kE4m3, kernels::NormE4m3{});
  add(StoreId::kMxFp8, kernels::NormMxFp8{});
  add(StoreId::kInt8, kernels::NormInt8{});
}

template <class T>
constexpr void add_tensor_codes(FormatKernels& all) {
  using kernels::F8E4M3, kernels::F8E5M2;
  const auto at = [&](StoreId id) -> TensorCodes& { return all.tensor_codes[static_cast<int>(id)]; };
  at(StoreId::kE4m3) = {scale_of_tensor<F8E4M3, T>, encode_tensor<F8E4M3, T>, decode_tensor<F8E4M3, T>};
  at(StoreId::kE5m2) = {scale_of_tensor<F8E5M2, T>, encode_tensor<F8E5M2, T>, decode_tensor<F8E5M2, T>};
  at(StoreId::kMxFp8) = {nullptr, encode_tensor_blocks<T>, decode_tensor_blocks<T>};
}

template <class T, int... kKernel>
constexpr FormatKernels kernels_of(std::integer_sequence<int, kKernel...>) {
  FormatKernels all{.run = {run<static_cast<KernelId>(kKernel), T>...},
                    .chosen = {chosen<static_cast<KernelId>(kKernel), T>...},
                    .encode_gradients = encode_gradients<T>,
                    .backward_encoded = backward<StoreId::kCode, void, T>,
                    .softmax_forward = softmax_forward<T>,
                    .softmax_encode = softmax_encode<T>,
                    .softmax_backward = softmax_backward<T>,
                    .dropout = dropout<T>,
                    .norm_workspace = norm_workspace,
                    .bias_workspace = bias_workspace};
  add_y<T>(all, typename ActivationFits<T>::Type{}, kernels::ActivationForwards{});
  add_stores<T>(all, std::make_integer_sequence<int, kActivations>{});
  add_gates<T>(all, std::make_integer_sequence<int, kActivations>{});
  add_norms<T>(all);
  add_tensor_codes<T>(all);
  return all;
}

template <class T>
constexpr FormatKernels kernels_of() {
  return kernels_of<T>(std::make_integer_sequence<int, kKernels>{});
}

}  // namespace

// OUTGRAD_C_CONSTANT(kF32) is kF32Avx2.
#define OUTGRAD_C_JOIN(format, variant) format##variant
#define OUTGRAD_C_NAME(format, variant) OUTGRAD_C_JOIN(format, variant)
#define OUTGRAD_C_CONSTANT(format) OUTGRAD_C_NAME(format, OUTGRAD_C_VARIANT)

}  // namespace outgrad::c
