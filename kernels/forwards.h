// The activations other than GELU, and their f and f' in double precision, shared by the host, vectors and
// GPUs. Kernels take f' from here for codes, and f where kernels/forward_fits.h has no fit; tests take f as
// the reference of the fits.
//
// f has a relative error of at most kForwardError. Rounded once to f16 or bf16 it is f(x) correctly rounded,
// for every x (tests/kernels/forwards_test.cpp tries all of them).
//
// The error, in units u = 2^-53 of a rounded operation: exp(v) = 2^k (1 + p), where v = k log 2 + r, |r| <
// 0.3466, and p is the Taylor polynomial of degree 12 of exp(r) - 1, whose remainder is below 0.3466^12 / 13!
// |r| < 2^-50 |r|. The reduction is exact for k = 0. For other k it moves r by less than 2 u, because k times
// the 42 bits of kLog2High is exact within an fma. So 1 + p is within 16 u, and so is p for k = 0, and so is
// 2^k - 1 + 2^k p, which cancels one bit at most (k = -1). What follows is a handful of operations without
// cancellation. In quick_gelu, swish and gelu_tanh the argument v is itself rounded and off by at most 4 u
// |v|. There |v| < 109 wherever f(x) is not below half the least subnormal float. The total is below 512 u =
// 2^-44.
//
// Specified cases: NaN in gives NaN out, and m = 0; f(-0) = -0 where f(0) = 0; at the infinities the limits,
// -0 for those that have a minimum.
#pragma once

#include "kernels/activations.h"
#include "kernels/formats.h"
#include "kernels/portable.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

// Relative error of f in double precision, before it is rounded to the format.
inline constexpr double kForwardError = 0x1p-44;
// Absolute error of f' in double precision, for |x| <= kSlopeReach. `outgrad check` proves it of every code
// header.
inline constexpr double kSlopeError = 0x1p-37;

// One value in double precision, on host and device. Every operation rounds once, like those of portable.h.
struct DoubleOps {
  using Value = double;

  static OUTGRAD_HD double constant(double value) { return value; }
  static OUTGRAD_HD double add(double a, double b) {
#ifdef __CUDA_ARCH__
    return __dadd_rn(a, b);
#else
    return a + b;
#endif
  }
  static OUTGRAD_HD double sub(double a, double b) {
#ifdef __CUDA_ARCH__
    return __dsub_rn(a, b);
#else
    return a - b;
#endif
  }
  static OUTGRAD_HD double fma(double a, double b, double c) {
#ifdef __CUDA_ARCH__
    return __fma_rn(a, b, c);
#else
    return __builtin_fma(a, b, c);
#endif
  }
  static OUTGRAD_HD double mul(double a, double b) {
#ifdef __CUDA_ARCH__
    return __dmul_rn(a, b);
#else
    return unfused(a * b);
#endif
  }
  static OUTGRAD_HD double div(double a, double b) {
#ifdef __CUDA_ARCH__
    return __ddiv_rn(a, b);
#else
    return a / b;
#endif
  }
  static OUTGRAD_HD double at_least(double a, double lo) { return a < lo ? lo : a; }
  static OUTGRAD_HD double at_most(double a, double hi) { return hi < a ? hi : a; }
  static OUTGRAD_HD double negate(double a) { return -a; }
  static OUTGRAD_HD double magnitude(double a) {
    return __builtin_bit_cast(double, __builtin_bit_cast(u64, a) & ~kSign);
  }
  static OUTGRAD_HD double signed_as(double a, double b) {
    return __builtin_bit_cast(double,
                              (__builtin_bit_cast(u64, a) & ~kSign) | (__builtin_bit_cast(u64, b) & kSign));
  }
  // 2^k of t = 1.5 2^52 + k, |k| < 1023.
  static OUTGRAD_HD double power_of_two(double t) {
    return __builtin_bit_cast(double, (__builtin_bit_cast(u64, t) << 52) + (u64{1023} << 52));
  }

 private:
  static constexpr u64 kSign = u64{1} << 63;
};

namespace forwards {

// exp(v) - 1 = s - 1 + s p for v in [-700, 700]. Beyond this range the result is that of the nearer end.
template <class Value>
struct Exponential {
  Value s, p;
};

template <class Ops>
OUTGRAD_HD Exponential<typename Ops::Value> exponential(const Ops& ops, const typename Ops::Value& argument) {
  using Value = typename Ops::Value;
  constexpr double kEnd = 700, kToInteger = 0x1.8p52, kLog2e = 0x1.71547652b82fep0,
                   kLog2High = 0x1.62e42fefa38p-1, kLog2Low = 0x1.ef35793c7673p-45;
  const Value v = ops.at_most(ops.at_least(argument, ops.constant(-kEnd)), ops.constant(kEnd));
  const Value t = ops.fma(v, ops.constant(kLog2e), ops.constant(kToInteger));
  const Value k = ops.sub(t, ops.constant(kToInteger));
  const Value r = ops.fma(k, ops.constant(-kLog2Low), ops.fma(k, ops.constant(-kLog2High), v));
  constexpr int kDegree = 12;
  constexpr double kOneOverFactorial[] = {
      1.0,        1.0,         1.0 / 2,      1.0 / 6,       1.0 / 24,       1.0 / 120,      1.0 / 720,
      1.0 / 5040, 1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600};
  Value q = ops.constant(kOneOverFactorial[kDegree]);
  OUTGRAD_UNROLL
  for (int n = kDegree - 1; n >= 2; --n) q = ops.fma(q, r, ops.constant(kOneOverFactorial[n]));
  return {ops.power_of_two(t), ops.fma(ops.mul(r, r), q, r)};
}

template <class Ops>
OUTGRAD_HD typename Ops::Value exp_of(const Ops& ops, const typename Ops::Value& v) {
  const auto e = exponential(ops, v);
  return ops.fma(e.s, e.p, e.s);
}

template <class Ops>
OUTGRAD_HD typename Ops::Value expm1_of(const Ops& ops, const typename Ops::Value& v) {
  const auto e = exponential(ops, v);
  return ops.fma(e.s, e.p, ops.sub(e.s, ops.constant(1)));
}

// log(1 + t) for t in [0, 1]: 2 atanh(z), z = t / (2 + t) <= 1/3, by the odd powers of z up to the 27th. The
// rest of the series is below 2^-48 of the sum.
template <class Ops>
OUTGRAD_HD typename Ops::Value log1p_of(const Ops& ops, const typename Ops::Value& t) {
  using Value = typename Ops::Value;
  const Value z = ops.div(t, ops.add(ops.constant(2), t));
  const Value square = ops.mul(z, z);
  constexpr int kTerms = 14;
  Value sum = ops.constant(1.0 / (2 * kTerms - 1));
  OUTGRAD_UNROLL
  for (int n = kTerms - 2; n >= 0; --n) sum = ops.fma(sum, square, ops.constant(1.0 / (2 * n + 1)));
  return ops.mul(ops.add(z, z), sum);
}

// Below this x, every f that has a minimum is less than half the least subnormal float. An infinite x would
// make x sigmoid(v) the product inf 0.
inline constexpr double kLeastArgument = -1024;

// x / (1 + exp(-v)), where v has x's sign. Where the quotient is as good as x / 2, it may be a midpoint for a
// subnormal x, and f(x) lies above it. The divisor is then 2, and it is moved by the least amount that puts
// the quotient on the right side.
template <class Ops>
OUTGRAD_HD typename Ops::Value times_sigmoid(const Ops& ops, const typename Ops::Value& x,
                                             const typename Ops::Value& v) {
  const auto divisor = ops.add(ops.constant(1), exp_of(ops, ops.negate(v)));
  return ops.div(x, ops.sub(divisor, ops.signed_as(ops.constant(0x1.8p-52), v)));
}

// s (1 + z (1 - s)), where s = 1 / (1 + exp(-v)): the derivative of x s if z = x dv/dx.
template <class Ops>
OUTGRAD_HD typename Ops::Value sigmoid_unit_slope(const Ops& ops, const typename Ops::Value& v,
                                                  const typename Ops::Value& z) {
  const auto one = ops.constant(1);
  const auto s = ops.div(one, ops.add(one, exp_of(ops, ops.negate(v))));
  return ops.mul(s, ops.fma(z, ops.sub(one, s), one));
}

// Where f' is taken at larger |x|: it is within 2^-80 of its limits there.
template <class Ops>
OUTGRAD_HD typename Ops::Value within(const Ops& ops, const typename Ops::Value& x, double reach) {
  return ops.at_most(ops.at_least(x, ops.constant(-reach)), ops.constant(reach));
}

// Each activation has kActivation, as in kActivationNames; kMasked and, if it is set, kXStar, the least float
// with m = 1; value(ops, x), f in double; slope(ops, x), f' in double, for |x| <= kSlopeReach, beyond which
// f' is as good as its limits.

struct WithMinimum {
  static constexpr bool kMasked = true;
  static constexpr double kSlopeReach = 64;
};
struct Rising {
  static constexpr bool kMasked = false;
  static constexpr double kSlopeReach = 64;
};

struct GeluTanh : WithMinimum {
  static constexpr const char* kActivation = "gelu_tanh";
  static constexpr float kXStar = -0x1.81429ep-1f;
  static constexpr double kSlopeReach = 16;
  // 2 sqrt(2 / pi), and 0.044715 of it
  static constexpr double kLinear = 0x1.9884533d43651p0, kCubic = 0x1.2444f2a4d8b4bp-4;
  template <class Ops>
  static OUTGRAD_HD typename Ops::Value value(const Ops& ops, const typename Ops::Value& argument) {
    const auto x = ops.at_least(argument, ops.constant(kLeastArgument));
    return times_sigmoid(ops, x,
                         ops.mul(x, ops.fma(ops.mul(x, x), ops.constant(kCubic), ops.constant(kLinear))));
  }
  template <class Ops>
  static OUTGRAD_HD typename Ops::Value slope(const Ops& ops, const typename Ops::Value& x) {
    const auto square = ops.mul(x, x);
    const auto v = ops.mul(x, ops.fma(square, ops.constant(kCubic), ops.constant(kLinear)));
    return sigmoid_unit_slope(ops, v,
                              ops.mul(x, ops.fma(square, ops.constant(3 * kCubic), ops.constant(kLinear))));
  }
};

template <class Self>
struct SigmoidUnit : WithMinimum {
  template <class Ops>
  static OUTGRAD_HD typename Ops::Value value(const Ops& ops, const typename Ops::Value& argument) {
    const auto x = ops.at_least(argument, ops.constant(kLeastArgument));
    return times_sigmoid(ops, x, scaled(ops, x));
  }
  template <class Ops>
  static OUTGRAD_HD typename Ops::Value slope(const Ops& ops, const typename Ops::Value& x) {
    const auto v = scaled(ops, x);
    return sigmoid_unit_slope(ops, v, v);
  }

 private:
  template <class Ops>
  static OUTGRAD_HD typename Ops::Value scaled(const Ops& ops, const typename Ops::Value& x) {
    return Self::kSlope == 1 ? x : ops.mul(x, ops.constant(Self::kSlope));
  }
};

struct QuickGelu : SigmoidUnit<QuickGelu> {
  static constexpr const char* kActivation = "quick_gelu";
  static constexpr float kXStar = -0x1.80974ap-1f;
  static constexpr double kSlope = 1.702;
};

struct Silu : SigmoidUnit<Silu> {
  static constexpr const char* kActivation = "silu";
  static constexpr float kXStar = -0x1.474972p0f;
  static constexpr double kSlope = 1;
};

struct Swish : SigmoidUnit<Swish> {
  static constexpr const char* kActivation = "swish";
  static constexpr float kXStar = -0x1.b461eep-1f;
  static constexpr double kSlope = 1.5;
};

// tanh(log(1 + e)) = w / (w + 2), where e = exp(x), w = e (e + 2).
struct Mish : WithMinimum {
  static constexpr const char* kActivation = "mish";
  static constexpr float kXStar = -0x1.31432cp0f;
  template <class Ops>
  static OUTGRAD_HD typename Ops::Value value(const Ops& ops, const typename Ops::Value& argument) {
    const auto x = ops.at_least(argument, ops.constant(kLeastArgument));
    const auto e = exp_of(ops, ops.at_most(x, ops.constant(100)));  // w / (w + 2) is 1 from here on
    const auto w = ops.mul(e, ops.add(e, ops.constant(2)));
    return ops.mul(x, ops.div(w, ops.add(w, ops.constant(2))));
  }
  // (w (w + 2) + 4 x e (1 + e)) / (w + 2)^2
  template <class Ops>
  static OUTGRAD_HD typename Ops::Value slope(const Ops& ops, const typename Ops::Value& x) {
    const auto e = exp_of(ops, x);
    const auto w = ops.mul(e, ops.add(e, ops.constant(2))), divisor = ops.add(w, ops.constant(2));
    const auto rise = ops.div(ops.mul(ops.mul(ops.constant(4), e), ops.add(e, ops.constant(1))), divisor);
    return ops.div(ops.fma(x, rise, w), divisor);
  }
};

// w / (w + 2), where w = exp(2 |x|) - 1.
struct Tanh : Rising {
  static constexpr const char* kActivation = "tanh";
  template <class Ops>
  static OUTGRAD_HD typename Ops::Value value(const Ops& ops, const typename Ops::Value& x) {
    const auto magnitude = ops.magnitude(x);
    const auto w = expm1_of(ops, ops.add(magnitude, magnitude));
    return ops.signed_as(ops.div(w, ops.add(w, ops.constant(2))), x);
  }
  // 4 e / (e + 1)^2, where e = exp(2 |x|).
  template <class Ops>
  static OUTGRAD_HD typename Ops::Value slope(const Ops& ops, const typename Ops::Value& x) {
    const auto magnitude = ops.magnitude(x);
    const auto e = exp_of(ops, ops.add(magnitude, magnitude)), divisor = ops.add(e, ops.constant(1));
    return ops.div(ops.div(ops.mul(ops.constant(4), e), divisor), divisor);
  }
};

struct Sigmoid : Rising {
  static constexpr const char* kActivation = "sigmoid";
  template <class Ops>
  static OUTGRAD_HD typename Ops::Value value(const Ops& ops, const typename Ops::Value& x) {
    return ops.div(ops.constant(1), ops.add(ops.constant(1), exp_of(ops, ops.negate(x))));
  }
  template <class Ops>
  static OUTGRAD_HD typename Ops::Value slope(const Ops& ops, const typename Ops::Value& x) {
    const auto s = value(ops, x);
    return ops.mul(s, ops.sub(ops.constant(1), s));
  }
};

struct Softplus : Rising {
  static constexpr const char* kActivation = "softplus";
  template <class Ops>
  static OUTGRAD_HD typename Ops::Value value(const Ops& ops, const typename Ops::Value& x) {
    return ops.add(ops.at_least(x, ops.constant(0)),
                   log1p_of(ops, exp_of(ops, ops.negate(ops.magnitude(x)))));
  }
  template <class Ops>
  static OUTGRAD_HD typename Ops::Value slope(const Ops& ops, const typename Ops::Value& x) {
    return Sigmoid::value(ops, x);
  }
};

struct Elu : Rising {
  static constexpr const char* kActivation = "elu";
  template <class Ops>
  static OUTGRAD_HD typename Ops::Value value(const Ops& ops, const typename Ops::Value& x) {
    const auto left = expm1_of(ops, ops.at_most(x, ops.constant(0)));
    return ops.signed_as(ops.add(left, ops.at_least(x, ops.constant(0))), x);
  }
  template <class Ops>
  static OUTGRAD_HD typename Ops::Value slope(const Ops& ops, const typename Ops::Value& x) {
    return exp_of(ops, ops.at_most(x, ops.constant(0)));
  }
};

}  // namespace forwards

namespace detail {

template <class... F>
OUTGRAD_HD constexpr bool forwards_follow_the_names() {
  int index = 1;  // after GELU
  return (same_text(F::kActivation, kActivationNames[index++]) && ...);
}

}  // namespace detail

// The forwards of all activations except GELU, which has fits (kernels/fitted_forward.h).
template <class... F>
struct ForwardList {
  static_assert(1 + sizeof...(F) == kActivations, "a forward of each activation");
  static_assert(detail::forwards_follow_the_names<F...>(), "forwards in the order of the activations");
};
using ActivationForwards =
    ForwardList<forwards::GeluTanh, forwards::QuickGelu, forwards::Silu, forwards::Swish, forwards::Mish,
                forwards::Tanh, forwards::Sigmoid, forwards::Softplus, forwards::Elu>;

// The float next to `value`, with its last bit set if `value` is inexact. Rounding it again, to fewer bits,
// gives `value` rounded once.
OUTGRAD_HD float rounded_to_odd(double value) {
  const float nearest = static_cast<float>(value);
  const double wide = nearest;
  if (wide == value || value != value || (bits_of(nearest) & 1u) != 0) return nearest;
  const bool beyond = value < 0 ? wide < value : wide > value;
  return float_of(beyond ? bits_of(nearest) - 1 : bits_of(nearest) + 1);
}

// f(x) in fp32, such that narrowing it to a 16-bit format gives f(x) rounded once.
template <class F>
OUTGRAD_HD float forward_in_f32(float x) {
  return rounded_to_odd(F::value(DoubleOps{}, static_cast<double>(x)));
}

// f'(x) in double precision, for every x.
template <class F, class Ops>
OUTGRAD_HD typename Ops::Value slope_of(const Ops& ops, const typename Ops::Value& x) {
  return F::slope(ops, forwards::within(ops, x, F::kSlopeReach));
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
