// The error of a gated pair's gradients from its product, z = f(a) b, by exhaustion: each of the 2^32 pairs
// (a, b) of a 16-bit format goes through the kernels' body (kernels/product.h).
//
//   T         max |g(s, m) - f'(a)|, s = RN_f32(z / b)
//   relative  max (|s - f(a)| - kAbsolute) / |f(a)|, which the header claims to be at most kRelative
//   db        max |s - f(a)| / max(1, |f(a)|): the error of b's gradient at dz = 1
// T and relative are over the kinds of pairs for which the header claims them, db is over these and products
// of 0.
//
// Each pair is of one kind:
//   normal       |z| is above the least normal number
//   subnormal    it is not, |b| >= 1/2: the same claims hold
//   small_b      it is not, |b| < 1/2: s may be off by h / |b| more, h half the least subnormal, and
//                |b| |g - f'(a)| by sqrt(2.01 h |b| max |f''|) more (docs/how_it_works.md)
//   b_is_zero    z = -0 stands beside f(a): nothing is lost
//   f_is_zero    f(a) is 0 in fp32, b is not; z = +0 stands beside b: nothing is lost
//   beside_b     f(a) b rounds to 0, and the slot holds b: f(a) is lost, with the room of small_b
//   beside_f     the same, and the slot holds f(a): b is lost
//   overflow     z is infinite: s is, too, and g has its limit
//   special      a or b is no finite number
//
// The figures of `normal` do not depend on the exponent of b. Let b = +-2^e q with 1 <= q < 2. Rounding
// commutes with powers of two while results are normal, and with signs always: z = +-2^e RN_T(RN_f32(f q)),
// so that s = RN_f32(RN_T(RN_f32(f q)) / q), in which e does not occur. A subnormal b has such a q, too. So
// the b of one binade, as far as they make z normal, find all of T (ProductSweep.OneBinadeOfBHasItAll in the
// tests); here all b are tried all the same.
//
// The least normal number itself counts as subnormal, because a product below it may round to it, by more
// than u / (1 + u) of itself.
//
// f and f' are those of the double reference (validation/exact/reference.h), and MPFR has the last word at
// the worst pairs.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/support/result.h"
#include "validation/exact/oracle.h"
#include "validation/sweep/sweep_gate.h"
#include "validation/sweep/swept_activation.h"

namespace outgrad::validation {

inline constexpr const char* kProductSchema = "outgrad.product_sweep/1";
/// f(a) of the reference is within a relative 2^-50, and so is |s - f(a)| / |f(a)| but for the double's own
/// roundings.
inline constexpr double kRelativeMargin = 0x1p-48;

/// The results for pairs of neighbouring a with one b; z is as it is kept, its sign says what the slot holds.
struct PairBlock {
  static constexpr int kSize = 256;  // as many a as divide both formats' finite numbers
  alignas(64) float z[kSize], s[kSize], g[kSize], da[kSize];
};

/// A fit's name, its claims and its kernels.
struct ProductSubject {
  struct Claims {
    double total, oracle, relative, absolute;
  };
  std::string name;
  FloatFormat format;  // of a, b and z
  const SweptActivation* activation;
  Claims claims;
  std::string identity;
  /// f(a) in fp32, and as a number of the format.
  void (*gates)(const float* a, float* f, float* stored, std::int64_t n);
  /// f'(a) in fp32, from a itself.
  void (*slopes)(const float* a, float* slope, std::int64_t n);
  /// Of kSize a, by the two above and their bits m.
  void (*pairs)(const float* f, const float* stored, const std::uint8_t* mask, float b, PairBlock& to);
};

/// Distinguishes kernels by what they give for every a and some b.
std::string identity_of(const ProductSubject& subject);

/// Every product's fit that ships, in the order of swept_activations(), bf16 after f16.
const std::vector<ProductSubject>& shipped_products();

enum class PairKind {
  normal,
  subnormal,
  small_b,
  b_is_zero,
  f_is_zero,
  beside_b,
  beside_f,
  overflow,
  special
};
inline constexpr int kPairKinds = 9;
inline constexpr std::array<const char*, kPairKinds> kPairKindNames{"normal",    "subnormal", "small_b",
                                                                    "b_is_zero", "f_is_zero", "beside_b",
                                                                    "beside_f",  "overflow",  "special"};

/// A figure and the pair that it is of; below 0: none was seen.
struct PairMaximum {
  double value = -1;
  float a = 0, b = 0, z = 0, s = 0;
  double got = 0, want = 0;  // g and f'(a), or s and f(a)

  void raise(const PairMaximum& other) {
    if (other.value > value) *this = other;
  }
};

struct ProductErrors {
  std::array<std::int64_t, kPairKinds> counts{};
  std::int64_t wrong_special = 0;  // infinities and NaN that are not as kernels/product.h says
  std::int64_t wrong_da = 0;  // da that are not RN_f32(b g)
  std::array<PairMaximum, 2> total;  // left and right of x*
  PairMaximum relative, db;
  /// of small_b and beside_b, beyond the claims: shares of what a product so small may cost
  PairMaximum room_a, room_b;
  PairMaximum lost;  // the factor that is lost, in units of sqrt(h) + h

  std::int64_t count(PairKind kind) const { return counts[static_cast<std::size_t>(kind)]; }
  std::int64_t pairs() const;
  double max_total() const { return total[0].value > total[1].value ? total[0].value : total[1].value; }
  /// `next` are errors of later b.
  void append(const ProductErrors& next);
};

/// Of every a with each b of `factors`. Throws std::logic_error if MPFR's f or f' at a worst pair is another.
ProductErrors product_errors(const ProductSubject& subject, const std::vector<float>& factors);
/// Every number of a format, finite or not.
std::vector<float> every_number(const FloatFormat& format);

std::vector<SweepGate> gates_of(const ProductErrors& errors, const ProductSubject& subject);
/// Schema kProductSchema, of all pairs. Throws std::logic_error if they were not all counted.
nlohmann::ordered_json product_json(const ProductErrors& errors, const ProductSubject& subject);

/// What `outgrad validate` does with such fits: counts all pairs of each, prints, and writes each result to
/// `out`, the file of one or the folder of many (empty: to out/sweeps). Returns whether all gates hold.
bool validate_products(const std::vector<const ProductSubject*>& subjects, const std::string& out,
                       const kernels::ResultForm& form);

}  // namespace outgrad::validation
