// The functions of every kernel of the catalogue, found by the kernel's identifier.
#pragma once

#include "kernels/host/api.h"
#include "kernels/host/call.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

// HostKernel<K>::run<kSchedule, Of...>(arguments...) is the kernel of kernels/host/ in one schedule, where Of
// is its format, preceded by the fit if the kernel is GELU's. ::enter<T> is its plain entry point. ::Table<T>
// is what the tuner chose for it.
template <KernelId K>
struct HostKernel;

#define OUTGRAD_HOST_KERNEL(type, function, ...)       \
  template <>                                          \
  struct HostKernel<KernelId::k##type> {               \
    template <auto kSchedule, class... Of, class... A> \
    static void run(A... a) {                          \
      kernels::function<Of..., kSchedule>(a...);       \
    }                                                  \
    template <class T, class... A>                     \
    static void enter(A... a) {                        \
      tuned::function<T>(a...);                        \
    }                                                  \
    template <class T>                                 \
    using Table = tuned::type<T>;                      \
  };
OUTGRAD_KERNELS(OUTGRAD_HOST_KERNEL)
#undef OUTGRAD_HOST_KERNEL

// The certified fit that a kernel of GELU runs if none is named.
template <KernelId K, class T>
using StandardFit = typename std::conditional_t<is_backward(K), DefaultFit<T>, ForwardFit<T>>::Type;

// Kernel K in one schedule. For a norm, Fit is not used.
template <KernelId K, class Fit, class T, auto kSchedule>
void run(const Arguments& a) {
  call<K, T>(a, [](auto... x) {
    if constexpr (has_fit(K)) {
      HostKernel<K>::template run<kSchedule, Fit, T>(x...);
    } else {
      HostKernel<K>::template run<kSchedule, T>(x...);
    }
  });
}

// Its plain entry point, in the schedule (and for GELU the fit) that kernels/tuned.h chooses.
template <KernelId K, class T>
void enter(const Arguments& a) {
  call<K, T>(a, [](auto... x) { HostKernel<K>::template enter<T>(x...); });
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
