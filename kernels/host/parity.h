// Activations with a minimum whose 16-bit y carries its branch (kernels/parity.h), over arrays on the CPU. The backward is
// activation_backward of kernels/host/elementwise.h with Y = ParityF16 or ParityBf16, whose mask may be null.
#pragma once

#include <type_traits>

#include "kernels/activations.h"
#include "kernels/fits.h"
#include "kernels/forwards.h"
#include "kernels/host/elementwise.h"
#include "kernels/parity.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

namespace detail {

template <class Fit, class... F>
struct ForwardNamed;
template <class Fit, class F, class... More>
struct ForwardNamed<Fit, F, More...> : std::conditional_t<same_text(Fit::kActivation, F::kActivation), std::type_identity<F>, ForwardNamed<Fit, More...>> {};

template <class Fit, class... F>
ForwardNamed<Fit, ForwardFit<float>::Type, F...> forward_named(ForwardList<F...>);

}  // namespace detail

// The forward whose y a fit of a parity format takes.
template <class Fit>
using ParityForward = typename decltype(detail::forward_named<Fit>(ActivationForwards{}))::type;

// y[i] = f(x[i]) on its branch, for i in [0, n); x is in the format that carries Y's codes. y may be x itself. Every schedule
// gives the same bits: the first call fills a static table of 128 KiB with y for every x, which later calls read.
template <class F, CarriesBranch Y, CpuSchedule S>
void activation_forward_parity(const typename Format<Y>::Carrier* x, Y* y, i64 n);

namespace detail {

// The codes of x stand in `from`.
template <class F, class Y>
void parity_elements(const Y* from, Y* y, u8*, i64 begin, i64 end) {
  for (i64 i = begin; i < end; ++i) y[i] = forward_to_branch<F, Y>(from[i]);
}

// A table of its own, beside those of forwards with a mask.
template <class F>
struct ToBranch;

}  // namespace detail

template <class F, CarriesBranch Y, CpuSchedule S>
void activation_forward_parity(const typename Format<Y>::Carrier* x, Y* y, i64 n) {
  static_assert(detail::schedule_holds<S>());
  if (n == 0) return;
  const u16* const outputs = detail::outputs_by_code<detail::ToBranch<F>, Y>(detail::parity_elements<F, Y>);
  detail::over_blocks<S>(n, [=](i64 begin, i64 end) {
    for (i64 i = begin; i < end; ++i) y[i].bits = outputs[x[i].bits];
  });
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
