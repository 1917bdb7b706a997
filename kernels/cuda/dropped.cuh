// Dropout by counter (kernels/dropout.h) of octets and elements in registers, for the kernel that does
// nothing else and for those that drop on the way.
#pragma once

#include "kernels/cuda/octets.cuh"
#include "kernels/dropout.h"

namespace outgrad::kernels::inline OUTGRAD_ABI::cuda {

// An array's dropout; key: the seed.
struct Dropping {
  static constexpr int kWords = 4;  // of one counter
  u64 key;
  DropoutRule rule;

  // An octet whose first half has the words of `counter`, and its second half those of counter + apart.
  template <class T>
  __device__ __forceinline__ Octet<T> octet(const Octet<T>& from, u64 counter, u64 apart = 1) const {
    float result[kOctet];
    OUTGRAD_UNROLL
    for (int half = 0; half < kOctet / kWords; ++half) {
      const PhiloxWords words = philox(counter + half * apart, key);
      OUTGRAD_UNROLL
      for (int k = 0; k < kWords; ++k) {
        const float product = mul_rn(widened(from, kWords * half + k), rule.scale);
        result[kWords * half + k] = dropout_keeps(rule, words.word[k]) ? product : 0.0f;
      }
    }
    return packed<T>(result);
  }
  // Element i of the array.
  template <class T>
  __device__ __forceinline__ T element(T x, u64 i) const {
    const PhiloxWords words = philox(i / kWords, key);
    const u32 low = i % 2 != 0 ? words.word[1] : words.word[0],
              high = i % 2 != 0 ? words.word[3] : words.word[2];
    return dropout_element(rule, i % kWords >= 2 ? high : low, x);
  }
  // An octet that begins at any element of the array.
  template <class T>
  __device__ __forceinline__ Octet<T> octet_at(const Octet<T>& from, u64 first) const {
    constexpr int kMostCounters = kOctet / kWords + 1;
    u32 word[kWords * kMostCounters];
    OUTGRAD_UNROLL
    for (int c = 0; c < kMostCounters; ++c) {
      const PhiloxWords words = philox(first / kWords + static_cast<u64>(c), key);
      OUTGRAD_UNROLL
      for (int k = 0; k < kWords; ++k) word[kWords * c + k] = words.word[k];
    }
    float result[kOctet];
    OUTGRAD_UNROLL
    for (int k = 0; k < kOctet; ++k) {
      const u32 even = first % 2 != 0 ? word[k + 1] : word[k],
                odd = first % 2 != 0 ? word[k + 3] : word[k + 2];
      const float product = mul_rn(widened(from, k), rule.scale);
      result[k] = dropout_keeps(rule, first % kWords >= 2 ? odd : even) ? product : 0.0f;
    }
    return packed<T>(result);
  }
};

}  // namespace outgrad::kernels::inline OUTGRAD_ABI::cuda
