// y in 8 bits at a scale, and in 4 bits by blocks, as subjects of a sweep. What an x gets depends on its
// tensor's scale, or on the largest |y| of its block. So each x is tried with many of them: with scales from
// one end of the header's claims to the other, and in blocks of which another element, small or large, may
// lead. `check` proves the bounds over all of them.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <type_traits>
#include <vector>

#include "kernels/fp8s.h"
#include "kernels/host/fp4.h"
#include "kernels/host/fp8.h"
#include "validation/sweep/store_subject.h"

namespace outgrad::validation {
namespace detail {

/// What a forward kept of some elements: codes, the parts beside them, and of blocks their scales.
struct Kept {
  std::vector<std::uint8_t> codes, parts, scales;
};

/// Room for n numbers of so many bits, and what bits_at may read beyond.
inline std::vector<std::uint8_t> room_for(int bits, std::int64_t n) {
  return std::vector<std::uint8_t>(static_cast<std::size_t>(kernels::code_bytes(bits, n)) + 2);
}

/// What a store has named by a float: 0 for one that names nothing.
inline std::uint32_t number_of(float kept, std::uint32_t numbers) {
  return kept >= 0 && kept < static_cast<float>(numbers) ? static_cast<std::uint32_t>(kept) : 0;
}

/// y in F at some scales, from x of T. The first scale is that of the functions of one x.
template <class A, class F, class T>
class AtScales {
 public:
  static constexpr const char* kVaries = "at a scale";

  explicit AtScales(int bits) : bits_(bits) {
    constexpr int kScales = 65;
    constexpr kernels::Fp8Claims kClaims = kernels::fp8_claims<typename A::Header, F>();
    for (int k = 0; k < kScales; ++k) {
      const double octaves = std::log2(static_cast<double>(kClaims.most) / kClaims.least) * k / (kScales - 1);
      const auto scale =
          std::clamp(static_cast<float>(static_cast<double>(kClaims.most) * std::exp2(-octaves)),
                     kClaims.least, kClaims.most);
      scales_.push_back(scale);
      kernels::fill_fp8_table<A, F>(scale, bits, tables_.emplace_back());
    }
  }

  double claim() const { return kernels::fp8_claims<typename A::Header, F>().total[bits_]; }
  std::size_t variants() const { return scales_.size(); }
  float variant(std::size_t k) const { return scales_[k]; }

  /// g of each x with one of the variants.
  void gradients(std::size_t k, const T* x, float* g, std::int64_t n) const {
    decode(k, encode(k, x, n), g, n);
  }

  void keep(const T* x, float* kept, std::int64_t n) const {
    const Kept all = encode(0, x, n);
    for (std::int64_t i = 0; i < n; ++i) {
      const std::uint8_t code = all.codes[static_cast<std::size_t>(i)];
      const std::uint32_t part = bits_at(all.parts.data(), bits_, i);
      kept[i] = static_cast<float>(code + kernels::kFp8Codes * part);
      if (std::isnan(tables_[0].values[part][code])) kept[i] = std::numeric_limits<float>::quiet_NaN();
    }
  }
  template <class D>
  void gradients_of(const float* kept, D* g, std::int64_t n) const {
    Kept all{std::vector<std::uint8_t>(static_cast<std::size_t>(n)), room_for(bits_, n), {}};
    for (std::int64_t i = 0; i < n; ++i) {
      const bool nan = std::isnan(kept[i]);
      const std::uint32_t number = number_of(kept[i], kNumbers);
      all.codes[static_cast<std::size_t>(i)] = nan ? kernels::fp8_code<F>(kept[i], 1.0f).bits
                                                   : static_cast<std::uint8_t>(number % kernels::kFp8Codes);
      put_bits(all.parts.data(), bits_, i, number / kernels::kFp8Codes % (1u << bits_));
    }
    decode(0, all, g, n);
  }

 private:
  static constexpr std::uint32_t kNumbers = kernels::kFp8Codes * kernels::kMostParts;

  Kept encode(std::size_t k, const T* x, std::int64_t n) const {
    Kept kept{std::vector<std::uint8_t>(static_cast<std::size_t>(n)), room_for(bits_, n), {}};
    kernels::activation_forward_fp8<A, F, T, kSweepSchedule>(
        tables_[k], scales_[k], x, reinterpret_cast<F*>(kept.codes.data()), kept.parts.data(), n);
    return kept;
  }
  template <class D>
  void decode(std::size_t k, const Kept& kept, D* g, std::int64_t n) const {
    std::fill_n(g, n, kernels::narrow<D>(1.0f));
    kernels::activation_backward_fp8<D, kSweepSchedule>(tables_[k], g, kept.codes.data(), kept.parts.data(),
                                                        g, n);
  }

  int bits_;
  std::vector<float> scales_;
  std::vector<kernels::Fp8Table> tables_;
};

/// y in blocks of B, from x of T, in blocks that begin with one of some elements. In the functions of one x
/// it is alone among zeros.
template <class A, class B, class T>
class InBlocks {
 public:
  static constexpr const char* kVaries = "in blocks";

  explicit InBlocks(int bits) : bits_(bits), tables_(std::make_unique<kernels::Fp4Tables>()) {
    constexpr int kFirstOctave = -8, kLastOctave = 10, kPerOctave = 4;
    for (int k = kLastOctave * kPerOctave; k >= kFirstOctave * kPerOctave; --k)
      leaders_.push_back(static_cast<float>(std::exp2(k / double{kPerOctave})));
    // MXFP4 has no scale of the tensor. That of NVFP4 is one for the largest leader.
    const float tensor = std::is_same_v<B, kernels::NvFp4> ? 6 * 448 / leaders_.front() : 1.0f;
    kernels::fill_fp4_tables<A, B>(tensor, bits, kernels::kLargestFiniteBits, *tables_);
  }

  /// Of blocks with any largest |y|.
  double claim() const {
    using H = typename A::Header;
    constexpr double kAny[] = {H::kSignT0, H::kSignT1, H::kSignT2};
    return kAny[bits_];
  }
  std::size_t variants() const { return leaders_.size(); }
  float variant(std::size_t k) const { return leaders_[k]; }

  void gradients(std::size_t k, const T* x, float* g, std::int64_t n) const {
    std::vector<T> all = spread(x, n, kBlock - 1, 1, kernels::narrow<T>(leaders_[k]));
    std::vector<float> result(all.size());
    decode(encode(all), result);
    for (std::int64_t i = 0; i < n; ++i)
      g[i] = result[static_cast<std::size_t>(i / (kBlock - 1) * kBlock + 1 + i % (kBlock - 1))];
  }

  void keep(const T* x, float* kept, std::int64_t n) const {
    const Kept all = encode(spread(x, n, 1, 0, kernels::narrow<T>(0.0f)));
    for (std::int64_t i = 0; i < n; ++i) {
      const std::uint8_t scale = all.scales[static_cast<std::size_t>(i)];
      const std::uint32_t code = bits_at(all.codes.data(), kernels::kFp4Bits, i * kBlock),
                          part = bits_at(all.parts.data(), bits_, i * kBlock);
      kept[i] =
          static_cast<float>(code + kernels::kFp4Codes * (part + kernels::kMostParts * std::uint32_t{scale}));
      if (scale == kernels::BlockScale<B>::kNan) kept[i] = std::numeric_limits<float>::quiet_NaN();
    }
  }
  template <class D>
  void gradients_of(const float* kept, D* g, std::int64_t n) const {
    Kept all = of_size(n * kBlock);
    for (std::int64_t i = 0; i < n; ++i) {
      const bool nan = std::isnan(kept[i]);
      const std::uint32_t number = number_of(kept[i], kNumbers);
      const std::uint32_t beside = number / kernels::kFp4Codes;
      all.scales[static_cast<std::size_t>(i)] =
          nan ? kernels::BlockScale<B>::kNan : static_cast<std::uint8_t>(beside / kernels::kMostParts);
      put_bits(all.codes.data(), kernels::kFp4Bits, i * kBlock, number % kernels::kFp4Codes);
      put_bits(all.parts.data(), bits_, i * kBlock, beside % (1u << bits_));
    }
    std::vector<D> result(static_cast<std::size_t>(n * kBlock));
    decode(all, result);
    for (std::int64_t i = 0; i < n; ++i) g[i] = result[static_cast<std::size_t>(i * kBlock)];
  }

 private:
  static constexpr std::int64_t kBlock = kernels::Format<B>::kBlock;
  static constexpr std::uint32_t kNumbers = kernels::kFp4Codes * kernels::kMostParts * kernels::kBlockScales;

  /// Blocks with `each` of the x from place `first` on, and `other` in the rest.
  static std::vector<T> spread(const T* x, std::int64_t n, std::int64_t each, std::int64_t first, T other) {
    const std::int64_t blocks = (n + each - 1) / each;
    std::vector<T> all(static_cast<std::size_t>(blocks * kBlock), other);
    for (std::int64_t i = 0; i < n; ++i)
      all[static_cast<std::size_t>(i / each * kBlock + first + i % each)] = x[i];
    return all;
  }
  Kept of_size(std::int64_t n) const {
    return {room_for(kernels::kFp4Bits, n), room_for(bits_, n),
            std::vector<std::uint8_t>(static_cast<std::size_t>(n / kBlock))};
  }
  Kept encode(const std::vector<T>& x) const {
    const auto n = static_cast<std::int64_t>(x.size());
    Kept kept = of_size(n);
    kernels::activation_forward_fp4<A, B, T, kSweepSchedule>(*tables_, x.data(), kept.codes.data(),
                                                             kept.scales.data(), kept.parts.data(), n);
    return kept;
  }
  template <class D>
  void decode(const Kept& kept, std::vector<D>& g) const {
    std::fill(g.begin(), g.end(), kernels::narrow<D>(1.0f));
    kernels::activation_backward_fp4<B, D, kSweepSchedule>(*tables_, g.data(), kept.codes.data(),
                                                           kept.scales.data(), kept.parts.data(), g.data(),
                                                           static_cast<std::int64_t>(g.size()));
  }

  int bits_;
  std::vector<float> leaders_;
  std::unique_ptr<kernels::Fp4Tables> tables_;
};

template <class S, class T>
Subject scaled_store(const Subject& common, const char* format, int bits) {
  const auto kernels_of = std::make_shared<const S>(bits);
  Subject store = common;
  store.name = fmt::format("y in {} {}, {} bit{}", format, S::kVaries, bits, bits == 1 ? "" : "s");
  store.claims.push_back({Claim::kTotal, kernels_of->claim()});
  store.limit_error = store.claims.front().limit;
  store.forward = [kernels_of](const float* x, float* kept, std::uint32_t*, std::int64_t n) {
    alignas(64) T from[kLargestBlock];
    narrow_all(x, from, n);
    kernels_of->keep(from, kept, n);
  };
  store.derivative = [kernels_of](const float* kept, const std::uint32_t*, float* g, std::int64_t n) {
    kernels_of->gradients_of(kept, g, n);
  };
  store.gradient = [kernels_of](const float* kept, const std::uint32_t*, float* dx, std::int64_t n) {
    alignas(64) T result[kLargestBlock];
    kernels_of->gradients_of(kept, result, n);
    std::transform(result, result + n, dx, [](T v) { return kernels::widen(v); });
  };
  store.varied = [kernels_of](const float* x, const double* want, VariedGradient* result, std::int64_t n) {
    alignas(64) T from[kLargestBlock];
    alignas(64) float g[kLargestBlock];
    narrow_all(x, from, n);
    std::fill_n(result, n, VariedGradient{2, -2, 0, 0, 0, 0});  // f' and what is kept stands for lie between
    const auto count = static_cast<double>(kernels_of->variants());
    for (std::size_t k = 0; k < kernels_of->variants(); ++k) {
      kernels_of->gradients(k, from, g, n);
      for (std::int64_t i = 0; i < n; ++i) {
        VariedGradient& all = result[i];
        const double error = g[i] - want[i];
        if (g[i] < all.least) all.least = g[i], all.least_at = kernels_of->variant(k);
        if (g[i] > all.greatest) all.greatest = g[i], all.greatest_at = kernels_of->variant(k);
        all.error += error / count, all.square += error * error / count;
      }
    }
  };
  return store;
}

}  // namespace detail

/// y in 8 bits at a scale and in 4 bits by blocks, with 0 to 2 bits beside each, for x of a 16-bit T.
/// `activation` is that of the header A.
template <class A, class T>
Subject make_scaled_subject(const FloatFormat& format, const SweptActivation& activation) {
  Subject subject =
      detail::subject_of_stores(fmt::format("{}_{}", A::Header::kName, format.name), format, activation);
  subject.scattered = subject.keeps_nan = true;
  const Subject store = subject;
  const auto add = [&]<class S>(const char* name) {
    for (int bits = 0; bits <= kernels::kMostPartBits; ++bits)
      subject.stores.push_back(detail::scaled_store<S, T>(store, name, bits));
  };
  add.template operator()<detail::AtScales<A, kernels::F8E4M3, T>>("e4m3");
  add.template operator()<detail::AtScales<A, kernels::F8E5M2, T>>("e5m2");
  add.template operator()<detail::AtScales<A, kernels::I8, T>>("int8");
  add.template operator()<detail::InBlocks<A, kernels::MxFp4, T>>("MXFP4");
  add.template operator()<detail::InBlocks<A, kernels::NvFp4, T>>("NVFP4");
  subject.identity = detail::identity_of_stores(subject);
  return subject;
}

}  // namespace outgrad::validation
