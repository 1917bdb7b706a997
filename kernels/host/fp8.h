// y in 8 bits at a scale with 0 to 2 bits beside it, over arrays on the CPU (kernels/stores/fp8.h): the
// forward that writes the codes and the parts, and the backward that reads them. Every schedule gives the
// same bits. Parts of one bit lie as a mask does.
#pragma once

#include <algorithm>
#include <memory>
#include <new>

#include "kernels/catalogue/few_bits.h"
#include "kernels/host/code.h"
#include "kernels/host/stores.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

// Codes and parts of f(x[i]), for i in [0, n), at the scale and with the bits of `table`, which
// fill_fp8_table<A, F> made for them. parts has code_bytes(table.bits, n) bytes and is not written without
// bits. No array overlaps another. With a 16-bit T and an n from 2^18 on it allocates 256 KiB, if it can, for
// a table of the results of all x.
template <class A, class F, class T, CpuSchedule S>
void activation_forward_fp8(const Fp8Table& table, float scale, const T* x, F* codes, u8* parts, i64 n);

// Sets dx[i] = dy[i] g, where g is what code i and part i stand for, as dx = RN_T(RN_f32(dy g)). dx may equal
// dy and overlaps nothing otherwise.
template <class T, CpuSchedule S>
void activation_backward_fp8(const Fp8Table& table, const T* dy, const u8* codes, const u8* parts, T* dx,
                             i64 n);

// -------------------------------------------------------------------------------------------------

namespace detail {

// y of kCodeBlock x, and g unless it is null.
template <class A, CpuSchedule S, class T>
void fitted_block(const T* x, float* y, float* g) {
  alignas(64) float wide[kCodeBlock];
  u32 mask[kCodeBlock / 32];
  for (int k = 0; k < kCodeBlock; ++k) wide[k] = widen(x[k]);
  value_block<typename A::template Forward<float>, S>(wide, y, mask);
  if (g == nullptr) return;
  std::fill_n(g, kCodeBlock, 1.0f);  // as dy: the product by 1 is g
  activation_backward<typename A::Fit, float, S>(g, y, mask, g, kCodeBlock);
}

template <class A, class F>
struct ScaledEncoder {
  static constexpr int kInPlace = 1;
  static constexpr bool kStreams = false, kStagedStreams = false;
  const Fp8Table& table;
  float scale;
  const u32* entries = nullptr;  // of every 16-bit x: the code and, above it, the part

  // Codes, and parts unless there are none.
  template <CpuSchedule S, class T>
  void encode_apart(const T* x, F* codes, u8* parts) const {
    alignas(64) float y[kCodeBlock], g[kCodeBlock];
    fitted_block<A, S>(x, y, table.bits > 0 ? g : nullptr);
    for (int k = 0; k < kCodeBlock; ++k) codes[k] = fp8_code<F>(y[k], scale);
    if (table.bits == 0) return;
    for (int k = 0; k < kCodeBlock; ++k) parts[k] = static_cast<u8>(part_of(table, codes[k].bits, g[k]));
  }

  template <CpuSchedule S, bool, class T>
  void encode(i64, const T* x, u8* const* to) const {
    alignas(64) u8 parts[kCodeBlock];
    F* const codes = reinterpret_cast<F*>(to[0]);
    if constexpr (sizeof(T) == 2) {
      if (entries != nullptr) {
        look_up<S, false>(entries, x, codes, parts);
      } else {
        encode_apart<S>(x, codes, parts);
      }
    } else {
      encode_apart<S>(x, codes, parts);
    }
    if (table.bits > 0) pack_codes(parts, table.bits, 0, to[1]);
  }

  // Null if there is no memory for them.
  template <class T, CpuSchedule S>
  std::unique_ptr<u32[]> all_entries() const {
    const DefaultFloatEnvironment environment;
    std::unique_ptr<u32[]> all(new (std::nothrow) u32[kCodes]);
    for (i64 first = 0; all != nullptr && first < kCodes; first += kCodeBlock) {
      T x[kCodeBlock];
      F codes[kCodeBlock];
      u8 parts[kCodeBlock] = {};
      for (int k = 0; k < kCodeBlock; ++k) x[k].bits = static_cast<u16>(first + k);
      encode_apart<S>(x, codes, parts);
      for (int k = 0; k < kCodeBlock; ++k) all[first + k] = codes[k].bits | static_cast<u32>(parts[k]) << 16;
    }
    return all;
  }
};

struct ScaledDecoder {
  static constexpr bool kStreams = false;
  const Fp8Table& table;

  template <CpuSchedule S, class Use>
  OUTGRAD_HD void with_gradients(i64, const u8* const* kept, float* scratch, const Use& use) const {
    const u8 *const codes = kept[0], *const parts = kept[1];
#ifdef OUTGRAD_AVX512
    if constexpr (S.vector_bits == 512) {
      constexpr __mmask16 kAll = 0xffff;  // see sixteen_numbers
      for (int k = 0; k < kCodeBlock; k += 16) {
        __m512i at =
            _mm512_maskz_cvtepu8_epi32(kAll, _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + k)));
        if (table.bits > 0) {
          static_assert(kFp8Codes == 1 << 8);
          at = _mm512_or_si512(at, _mm512_maskz_slli_epi32(kAll, sixteen_numbers(parts, k, table.bits), 8));
        }
        _mm512_store_ps(scratch + k, _mm512_mask_i32gather_ps(_mm512_setzero_ps(), kAll, at,
                                                              &table.values[0][0], sizeof(float)));
      }
    }
#endif
    if constexpr (S.vector_bits < 512) {
      for (int k = 0; k < kCodeBlock; k += 8) {
        const u64 part = table.bits > 0 ? eight_numbers(parts, k, table.bits) : 0;
        for (int i = 0; i < 8; ++i) scratch[k + i] = table.values[part >> 8 * i & 0xff][codes[k + i]];
      }
    }
    use([=](const auto& ops, int k) __attribute__((always_inline)) { return ops.load(scratch + k); });
  }
};

}  // namespace detail

template <class A, class F, class T, CpuSchedule S>
void activation_forward_fp8(const Fp8Table& table, float scale, const T* x, F* codes, u8* parts, i64 n) {
  detail::ScaledEncoder<A, F> encoder{table, scale};
  std::unique_ptr<u32[]> entries;
  if constexpr (sizeof(T) == 2) {
    if (n >= 4 * detail::kCodes) entries = encoder.template all_entries<T, detail::kLoopOf<S>>();
    encoder.entries = entries.get();
  }
  detail::keep<S>(encoder, x, {detail::Plane<u8>{reinterpret_cast<u8*>(codes), 8}, {parts, table.bits}}, n);
}

template <class T, CpuSchedule S>
void activation_backward_fp8(const Fp8Table& table, const T* dy, const u8* codes, const u8* parts, T* dx,
                             i64 n) {
  detail::restore<S>(detail::ScaledDecoder{table}, dy,
                     {detail::Plane<const u8>{codes, 8}, {parts, table.bits}}, dx, n);
}

// Stores at a scale of the tensor.
template <StoreId kId>
  requires requires { typename StoreArithmetic<kId>::Code; }
struct HostStore<kId> {
  template <int kActivation, class>
  using Of = Fp8ActivationAt<kActivation>;

  template <class A, class T, CpuSchedule S>
  static void forward(const StoreCall& a, const T* x, i64 n) {
    using Code = typename StoreArithmetic<kId>::Code;
    activation_forward_fp8<A, Code, T, S>(*static_cast<const Fp8Table*>(a.tables), a.scale, x,
                                          reinterpret_cast<Code*>(a.codes), a.parts, n);
  }
  template <class, class T, CpuSchedule S>
  static void backward(const StoreCall& a, const T* dy, T* dx, i64 n) {
    activation_backward_fp8<T, S>(*static_cast<const Fp8Table*>(a.tables), dy, a.codes, a.parts, dx, n);
  }
};

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
