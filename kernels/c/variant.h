// The kernels of the C library in one format, for the instruction set that the translation unit is compiled
// for.
//
// The build compiles variant_f32.cpp, variant_f16.cpp and variant_bf16.cpp once for every instruction set.
// Each unit has one format, because all three together take minutes to compile with sanitizers.
// OUTGRAD_C_VARIANT names the set and, together with the format, the constant that a unit defines. The inline
// namespace of the headers keeps the copies apart, and nothing here runs before it is called.
#pragma once

#include "kernels/c/table.h"
#include "kernels/codes.h"
#include "kernels/forwards.h"
#include "kernels/fp8s.h"
#include "kernels/host/code.h"
#include "kernels/host/forwards.h"
#include "kernels/host/fp4.h"
#include "kernels/host/fp8.h"
#include "kernels/host/functions.h"
#include "kernels/host/mxfp8.h"
#include "kernels/host/norm_store.h"
#include "kernels/host/parity.h"
#include "kernels/host/softmax.h"

namespace outgrad::c {
namespace {

using kernels::BF16;
using kernels::F16;
using kernels::KernelId;
using kernels::u8;
namespace generated = kernels::generated;
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
void forward(const Call& call) {
  kernels::call<KernelId::kGeluForward, T>(
      call.arguments, [](auto... x) { kernels::activation_forward<F, T, kSchedule>(x...); });
}

template <class Fit, class T>
void backward(const Call& call) {
  kernels::run<KernelId::kGeluBackward, Fit, T, kSchedule>(call.arguments);
}

template <class Fit, class Y>
void forward_parity(const Call& call) {
  const outgrad_call& a = call.given;
  kernels::activation_forward_parity<kernels::ParityForward<Fit>, Y, kSchedule>(
      as<const typename kernels::Format<Y>::Carrier>(a.x), as<Y>(a.y), a.n);
}

template <class Fit, class Y>
void backward_parity(const Call& call) {
  using T = typename kernels::Format<Y>::Carrier;
  const outgrad_call& a = call.given;
  kernels::activation_backward<Fit, T, kSchedule, Y>(as<const T>(a.dy), as<const Y>(a.y), nullptr,
                                                     as<T>(a.dx), a.n);
}

// GELU's codes are tuned; so is the backward from codes of every activation, which is GELU's with another
// range.
template <class A, class T>
void forward_code(const Call& call) {
  const outgrad_call& a = call.given;
  const auto run_in = [&]<class Choice>(Choice) {
    kernels::activation_forward_code<A, T, Choice::kSchedule>({a.bits, a.seed}, as<const T>(a.x), as<T>(a.y),
                                                              as<u8>(a.codes), a.n);
  };
  if constexpr (std::is_same_v<A, kernels::CodedGelu>) {
    tuned::run<tuned::GeluForwardCode<T>>(1, a.n, run_in);
  } else {
    run_in(tuned::DefaultCode{});
  }
}

template <class T>
void backward_code(const Call& call) {
  const outgrad_call& a = call.given;
  tuned::run<tuned::GeluBackwardCode<T>>(1, a.n, [&]<class Choice>(Choice) {
    kernels::activation_backward_code<T, Choice::kSchedule>(
        {call.lo, call.hi}, {a.bits, a.seed}, as<const T>(a.dy), as<const u8>(a.codes), as<T>(a.dx), a.n);
  });
}

template <class T>
void encode_gradients(const Call& call) {
  const outgrad_call& a = call.given;
  kernels::encode_gradients<T, tuned::DefaultCode::kSchedule>({call.lo, call.hi}, {a.bits, a.seed},
                                                              as<const T>(a.g), as<u8>(a.codes), a.n);
}

template <class T>
void forward_mxfp8(const Call& call) {
  const outgrad_call& a = call.given;
  kernels::gelu_forward_mxfp8<typename kernels::ForwardFit<T>::Type, T, kSchedule>(
      as<const T>(a.x), as<kernels::F8E4M3>(a.codes), as<kernels::E8M0>(a.scales), a.mask, a.n);
}

template <class T>
void backward_mxfp8(const Call& call) {
  const outgrad_call& a = call.given;
  kernels::activation_backward<generated::GeluMxfp8, T, kSchedule, kernels::MxFp8>(
      as<const T>(a.dy), kernels::stored<kernels::MxFp8>(a.codes, a.scales), a.mask, as<T>(a.dx), a.n);
}

template <class A, class F, class T>
void forward_fp8(const Call& call) {
  const outgrad_call& a = call.given;
  kernels::activation_forward_fp8<A, F, T, kSchedule>(*as<const kernels::Fp8Table>(call.tables), *a.scale,
                                                      as<const T>(a.x), as<F>(a.codes), as<u8>(a.parts), a.n);
}

template <class T>
void backward_fp8(const Call& call) {
  const outgrad_call& a = call.given;
  kernels::activation_backward_fp8<T, kSchedule>(*as<const kernels::Fp8Table>(call.tables), as<const T>(a.dy),
                                                 as<const u8>(a.codes), as<const u8>(a.parts), as<T>(a.dx),
                                                 a.n);
}

template <class A, class B, class T>
void forward_fp4(const Call& call) {
  const outgrad_call& a = call.given;
  kernels::activation_forward_fp4<A, B, T, kSchedule>(*as<const kernels::Fp4Tables>(call.tables),
                                                      as<const T>(a.x), as<u8>(a.codes), as<u8>(a.scales),
                                                      as<u8>(a.parts), a.n);
}

template <class B, class T>
void backward_fp4(const Call& call) {
  const outgrad_call& a = call.given;
  kernels::activation_backward_fp4<B, T, kSchedule>(
      *as<const kernels::Fp4Tables>(call.tables), as<const T>(a.dy), as<const u8>(a.codes),
      as<const u8>(a.scales), as<const u8>(a.parts), as<T>(a.dx), a.n);
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

template <kernels::Norm N, class Store, class T>
void norm_forward(const Call& call) {
  const outgrad_call& a = call.given;
  auto* const codes = as<typename Store::Code>(a.codes);
  auto* const scales = as<typename Store::Scale>(a.scales);
  const kernels::SideBuffer<float> side{a.side_channels, a.side_count, a.side_x_hat};
  if constexpr (N == kernels::Norm::layer) {
    kernels::layernorm_forward_8bit<Store, T>(as<const T>(a.x), a.gamma, a.beta, a.rows, a.n, a.eps, a.scale,
                                              as<T>(a.y), codes, scales, a.rstd, side);
  } else {
    kernels::rmsnorm_forward_8bit<Store, T>(as<const T>(a.x), a.gamma, a.rows, a.n, a.eps, a.scale,
                                            as<T>(a.y), codes, scales, a.rstd, side);
  }
}

template <kernels::Norm N, class Store, class T>
void norm_backward(const Call& call) {
  const outgrad_call& a = call.given;
  const auto* const codes = as<const typename Store::Code>(a.codes);
  const auto* const scales = as<const typename Store::Scale>(a.scales);
  const kernels::SideBuffer<const float> side{a.side_channels, a.side_count, a.side_x_hat};
  const std::span<float> workspace(as<float>(a.workspace),
                                   static_cast<std::size_t>(kernels::norm_backward_workspace(a.rows, a.n)));
  if constexpr (N == kernels::Norm::layer) {
    kernels::layernorm_backward_8bit<Store, T>(as<const T>(a.dy), codes, scales, a.gamma, a.beta, a.rstd,
                                               a.rows, a.n, as<T>(a.dx), a.dgamma, a.dbeta, side, workspace);
  } else {
    kernels::rmsnorm_backward_8bit<Store, T>(as<const T>(a.dy), codes, scales, a.gamma, a.rstd, a.rows, a.n,
                                             as<T>(a.dx), a.dgamma, side, workspace);
  }
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

constexpr int index_of(const char* activation) {
  int index = 0;
  while (!kernels::same_text(kernels::kActivationNames[index], activation)) ++index;
  return index;
}

constexpr void set(FormatKernels& all, StoreId store, int activation, FormatKernels::Run* forward,
                   FormatKernels::Run* backward) {
  all.forward[static_cast<int>(store)][activation] = forward;
  all.backward[static_cast<int>(store)][activation] = backward;
}

template <class T, class Gelu, class... Fit, class... F, class... A>
constexpr void add_activations(FormatKernels& all, FitList<Gelu, Fit...>, kernels::ForwardList<F...>,
                               kernels::CodedList<A...>) {
  int at = 0;
  set(all, StoreId::kY, at, run<KernelId::kGeluForward, T>, run<KernelId::kGeluBackward, T>);
  (set(all, StoreId::kY, ++at, forward<F, T>, backward<Fit, T>), ...);
  at = 0;
  (set(all, StoreId::kCode, at++, forward_code<A, T>, backward_code<T>), ...);
  set(all, StoreId::kMxFp8, 0, forward_mxfp8<T>, backward_mxfp8<T>);
}

template <class Y, class... Fit>
constexpr void add_parity(FormatKernels& all, kernels::ParityFitList<Fit...>) {
  (set(all, StoreId::kParity, index_of(Fit::kActivation), forward_parity<Fit, Y>, backward_parity<Fit, Y>),
   ...);
}

template <class T, class... A>
constexpr void add_few_bits(FormatKernels& all, kernels::Fp8List<A...>) {
  const auto add = [&]<class Each>() {
    const int at = index_of(Each::Header::kActivation);
    set(all, StoreId::kE4m3, at, forward_fp8<Each, kernels::F8E4M3, T>, backward_fp8<T>);
    set(all, StoreId::kE5m2, at, forward_fp8<Each, kernels::F8E5M2, T>, backward_fp8<T>);
    set(all, StoreId::kInt8, at, forward_fp8<Each, kernels::I8, T>, backward_fp8<T>);
    set(all, StoreId::kMxFp4, at, forward_fp4<Each, kernels::MxFp4, T>, backward_fp4<kernels::MxFp4, T>);
    set(all, StoreId::kNvFp4, at, forward_fp4<Each, kernels::NvFp4, T>, backward_fp4<kernels::NvFp4, T>);
  };
  (add.template operator()<A>(), ...);
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

template <class T, int... kKernel>
constexpr FormatKernels kernels_of(std::integer_sequence<int, kKernel...>) {
  FormatKernels all{.run = {run<static_cast<KernelId>(kKernel), T>...},
                    .chosen = {chosen<static_cast<KernelId>(kKernel), T>...},
                    .encode_gradients = encode_gradients<T>,
                    .backward_encoded = backward_code<T>,
                    .softmax_forward = softmax_forward<T>,
                    .softmax_encode = softmax_encode<T>,
                    .softmax_backward = softmax_backward<T>,
                    .norm_workspace = norm_workspace,
                    .bias_workspace = bias_workspace};
  add_activations<T>(all, typename ActivationFits<T>::Type{}, kernels::ActivationForwards{},
                     kernels::CodedActivations{});
  if constexpr (sizeof(T) == 2) {
    using Y = std::conditional_t<std::is_same_v<T, F16>, kernels::ParityF16, kernels::ParityBf16>;
    add_parity<Y>(all, typename kernels::ParityFits<Y>::Type{});
  }
  add_few_bits<T>(all, kernels::Fp8Activations{});
  add_norms<T>(all);
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
