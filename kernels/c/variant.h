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

namespace tuned = kernels::tuned;

// The fits are always this library's own, whatever fits the tables name, so that results depend only on the
// arguments. Only the schedules come from the tables.
template <KernelId K, class T>
void run(const kernels::Arguments& a) {
  tuned::run<typename kernels::HostKernel<K>::template Table<T>>(a.rows, a.cols, [&]<class Choice>(Choice) {
    kernels::run<K, kernels::StandardFit<K, T>, T, Choice::kSchedule>(a);
  });
}

// The other activations are not tuned and run the default schedule. Nine more kernels for each schedule would
// be most of the library.
template <class Fit, class T>
void backward(const kernels::Arguments& a) {
  kernels::run<KernelId::kGeluBackward, Fit, T, tuned::kDefaultSchedule>(a);
}

template <class F, class T>
void forward(const kernels::Arguments& a) {
  kernels::call<KernelId::kGeluForward, T>(
      a, [](auto... x) { kernels::activation_forward<F, T, tuned::kDefaultSchedule>(x...); });
}

// GELU's y in MXFP8.
template <class T>
void forward_mxfp8(const kernels::Arguments& a) {
  kernels::gelu_forward_mxfp8<typename kernels::ForwardFit<T>::Type, T, tuned::kDefaultSchedule>(
      a.at<const T>(0), a.at<kernels::F8E4M3>(1), static_cast<kernels::E8M0*>(const_cast<void*>(a.scales)),
      a.at<u32>(2), a.cols);
}

template <class T>
void backward_mxfp8(const kernels::Arguments& a) {
  kernels::call<KernelId::kGeluBackward, T, kernels::MxFp8>(a, [](auto... x) {
    kernels::activation_backward<kernels::generated::GeluMxfp8, T, tuned::kDefaultSchedule, kernels::MxFp8>(
        x...);
  });
}

// GELU's codes are tuned; so is the backward from codes of every activation, which is GELU's with another
// range.
template <class A, class T>
void forward_code(const CodeArguments& a) {
  const auto call = [&]<class Choice>(Choice) {
    kernels::activation_forward_code<A, T, Choice::kSchedule>(
        {a.bits, a.seed}, static_cast<const T*>(a.input), static_cast<T*>(a.output),
        static_cast<kernels::u8*>(a.codes), a.n);
  };
  if constexpr (std::is_same_v<A, kernels::CodedGelu>) {
    tuned::run<tuned::GeluForwardCode<T>>(1, a.n, call);
  } else {
    call(tuned::DefaultCode{});
  }
}

template <class T>
void encode_gradients(const CodeArguments& a) {
  kernels::encode_gradients<T, tuned::DefaultCode::kSchedule>({a.lo, a.hi}, {a.bits, a.seed},
                                                              static_cast<const T*>(a.input),
                                                              static_cast<kernels::u8*>(a.codes), a.n);
}

template <class T>
void backward_code(const CodeArguments& a) {
  tuned::run<tuned::GeluBackwardCode<T>>(1, a.n, [&]<class Choice>(Choice) {
    kernels::activation_backward_code<T, Choice::kSchedule>(
        {a.lo, a.hi}, {a.bits, a.seed}, static_cast<const T*>(a.input),
        static_cast<const kernels::u8*>(a.codes), static_cast<T*>(a.output), a.n);
  });
}

template <class T>
void softmax_forward(const SoftmaxArguments& a) {
  kernels::softmax_forward_code<T, tuned::kDefaultSchedule>(static_cast<const T*>(a.input),
                                                            static_cast<T*>(a.output),
                                                            static_cast<kernels::u8*>(a.codes), a.rows, a.n);
}

template <class T>
void softmax_encode(const SoftmaxArguments& a) {
  kernels::softmax_encode<T, tuned::kDefaultSchedule>(static_cast<const T*>(a.input),
                                                      static_cast<kernels::u8*>(a.codes), a.rows * a.n);
}

template <class T>
void softmax_backward(const SoftmaxArguments& a) {
  kernels::softmax_backward_code<T, tuned::kDefaultSchedule>(static_cast<const T*>(a.input),
                                                             static_cast<const kernels::u8*>(a.codes),
                                                             static_cast<T*>(a.output), a.rows, a.n);
}

// Nor is y in 8 bits at a scale.
template <class A, class F, class T>
void forward_fp8(const Fp8Arguments& a) {
  kernels::activation_forward_fp8<A, F, T, tuned::kDefaultSchedule>(
      *a.table, a.scale, static_cast<const T*>(a.input), static_cast<F*>(a.codes),
      static_cast<kernels::u8*>(a.parts), a.n);
}

template <class T>
void backward_fp8(const Fp8Arguments& a) {
  kernels::activation_backward_fp8<T, tuned::kDefaultSchedule>(
      *a.table, static_cast<const T*>(a.input), static_cast<const kernels::u8*>(a.codes),
      static_cast<const kernels::u8*>(a.parts), static_cast<T*>(a.output), a.n);
}

// Nor are the norms from y in 8 bits.
template <kernels::Norm N, class Store, class T>
void norm_forward_8bit(const Norm8Arguments& a) {
  const T* const x = static_cast<const T*>(a.input);
  T* const y = static_cast<T*>(a.output);
  auto* const codes = static_cast<typename Store::Code*>(a.codes);
  auto* const scales = static_cast<typename Store::Scale*>(a.scales);
  if constexpr (N == kernels::Norm::layer) {
    kernels::layernorm_forward_8bit<Store, T>(x, a.gamma, a.beta, a.rows, a.n, a.eps, a.given, y, codes,
                                              scales, a.rstd, a.side);
  } else {
    kernels::rmsnorm_forward_8bit<Store, T>(x, a.gamma, a.rows, a.n, a.eps, a.given, y, codes, scales, a.rstd,
                                            a.side);
  }
}

template <kernels::Norm N, class Store, class T>
void norm_backward_8bit(const Norm8Arguments& a) {
  const T* const dy = static_cast<const T*>(a.input);
  T* const dx = static_cast<T*>(a.output);
  const auto* const codes = static_cast<const typename Store::Code*>(a.codes);
  const auto* const scales = static_cast<const typename Store::Scale*>(a.scales);
  const kernels::SideBuffer<const float> side{a.side.channels, a.side.count, a.side.x_hat};
  const std::span<float> workspace(a.workspace,
                                   static_cast<std::size_t>(kernels::norm_backward_workspace(a.rows, a.n)));
  if constexpr (N == kernels::Norm::layer) {
    kernels::layernorm_backward_8bit<Store, T>(dy, codes, scales, a.gamma, a.beta, a.rstd, a.rows, a.n, dx,
                                               a.dgamma, a.dbeta, side, workspace);
  } else {
    kernels::rmsnorm_backward_8bit<Store, T>(dy, codes, scales, a.gamma, a.rstd, a.rows, a.n, dx, a.dgamma,
                                             side, workspace);
  }
}

template <class T, class... Store>
constexpr void add_norms(FormatKernels& all, kernels::NormStoreList<Store...>) {
  using kernels::Norm;
  int store = 0;
  ((all.norm_forward[0][store] = norm_forward_8bit<Norm::layer, Store, T>,
    all.norm_forward[1][store] = norm_forward_8bit<Norm::rms, Store, T>,
    all.norm_backward[0][store] = norm_backward_8bit<Norm::layer, Store, T>,
    all.norm_backward[1][store] = norm_backward_8bit<Norm::rms, Store, T>, ++store),
   ...);
}

// Nor is y in 4 bits by blocks.
template <class A, class B, class T>
void forward_fp4(const Fp4Arguments& a) {
  kernels::activation_forward_fp4<A, B, T, tuned::kDefaultSchedule>(
      *a.tables, static_cast<const T*>(a.input), static_cast<kernels::u8*>(a.codes),
      static_cast<kernels::u8*>(a.scales), static_cast<kernels::u8*>(a.parts), a.n);
}

template <class B, class T>
void backward_fp4(const Fp4Arguments& a) {
  kernels::activation_backward_fp4<B, T, tuned::kDefaultSchedule>(
      *a.tables, static_cast<const T*>(a.input), static_cast<const kernels::u8*>(a.codes),
      static_cast<const kernels::u8*>(a.scales), static_cast<const kernels::u8*>(a.parts),
      static_cast<T*>(a.output), a.n);
}

template <KernelId K, class T>
ChosenSchedule chosen(i64 rows, i64 n) {
  const tuned::Tuning tuning = tuned::tuning_of<typename kernels::HostKernel<K>::template Table<T>>(rows, n);
  return {tuning.entry->variant, name_of(tuning.found.rung)};
}

i64 bias_workspace(i64 rows, i64 n) { return kernels::bias_backward_workspace(rows, n); }

i64 norm_workspace(i64 rows, i64 n) { return kernels::norm_backward_workspace(rows, n); }

template <class T, class Gelu, class... Fit, class... F, class... A, int... kKernel>
constexpr FormatKernels kernels_of(FitList<Gelu, Fit...>, kernels::ForwardList<F...>,
                                   kernels::CodedList<A...>, std::integer_sequence<int, kKernel...>) {
  return {.run = {run<static_cast<KernelId>(kKernel), T>...},
          .forward = {run<KernelId::kGeluForward, T>, forward<F, T>...},
          .backward = {run<KernelId::kGeluBackward, T>, backward<Fit, T>...},
          .forward_mxfp8 = forward_mxfp8<T>,
          .backward_mxfp8 = backward_mxfp8<T>,
          .chosen = {chosen<static_cast<KernelId>(kKernel), T>...},
          .norm_workspace = norm_workspace,
          .bias_workspace = bias_workspace,
          .forward_code = {forward_code<A, T>...},
          .encode_gradients = encode_gradients<T>,
          .backward_code = backward_code<T>,
          .softmax_forward = softmax_forward<T>,
          .softmax_encode = softmax_encode<T>,
          .softmax_backward = softmax_backward<T>,
          .backward_fp8 = backward_fp8<T>,
          .norm_forward = {},
          .norm_backward = {},
          .backward_fp4 = {backward_fp4<kernels::MxFp4, T>, backward_fp4<kernels::NvFp4, T>}};
}

// y carries its branch.
template <class Fit, class Y>
void forward_parity(const kernels::Arguments& a) {
  using Carrier = typename kernels::Format<Y>::Carrier;
  kernels::activation_forward_parity<kernels::ParityForward<Fit>, Y, tuned::kDefaultSchedule>(
      a.at<const Carrier>(0), a.at<Y>(1), a.elements());
}

template <class Fit, class Y>
void backward_parity(const kernels::Arguments& a) {
  using Carrier = typename kernels::Format<Y>::Carrier;
  kernels::call<KernelId::kGeluBackward, Carrier, Y>(
      a, [](auto... x) { kernels::activation_backward<Fit, Carrier, tuned::kDefaultSchedule, Y>(x...); });
}

constexpr int index_of(const char* activation) {
  int index = 0;
  while (!kernels::same_text(kernels::kActivationNames[index], activation)) ++index;
  return index;
}

template <class Y, class... Fit>
constexpr void add_parity(FormatKernels& all, kernels::ParityFitList<Fit...>) {
  ((all.forward_parity[index_of(Fit::kActivation)] = forward_parity<Fit, Y>,
    all.backward_parity[index_of(Fit::kActivation)] = backward_parity<Fit, Y>),
   ...);
}

template <class T, class... A>
constexpr void add_fp8(FormatKernels& all, kernels::Fp8List<A...>) {
  ((all.forward_fp8[0][index_of(A::Header::kActivation)] = forward_fp8<A, kernels::F8E4M3, T>,
    all.forward_fp8[1][index_of(A::Header::kActivation)] = forward_fp8<A, kernels::F8E5M2, T>,
    all.forward_fp8[2][index_of(A::Header::kActivation)] = forward_fp8<A, kernels::I8, T>,
    all.forward_fp4[0][index_of(A::Header::kActivation)] = forward_fp4<A, kernels::MxFp4, T>,
    all.forward_fp4[1][index_of(A::Header::kActivation)] = forward_fp4<A, kernels::NvFp4, T>),
   ...);
}

template <class T>
constexpr FormatKernels kernels_of() {
  FormatKernels all = kernels_of<T>(typename ActivationFits<T>::Type{}, kernels::ActivationForwards{},
                                    kernels::CodedActivations{}, std::make_integer_sequence<int, kKernels>{});
  if constexpr (sizeof(T) == 2) {
    using Y = std::conditional_t<std::is_same_v<T, F16>, kernels::ParityF16, kernels::ParityBf16>;
    add_parity<Y>(all, typename kernels::ParityFits<Y>::Type{});
  }
  add_fp8<T>(all, kernels::Fp8Activations{});
  add_norms<T>(all, kernels::NormStores{});
  return all;
}

}  // namespace

// OUTGRAD_C_CONSTANT(kF32) is kF32Avx2.
#define OUTGRAD_C_JOIN(format, variant) format##variant
#define OUTGRAD_C_NAME(format, variant) OUTGRAD_C_JOIN(format, variant)
#define OUTGRAD_C_CONSTANT(format) OUTGRAD_C_NAME(format, OUTGRAD_C_VARIANT)

}  // namespace outgrad::c
