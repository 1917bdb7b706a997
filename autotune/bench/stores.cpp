// The stores' kernels in the default schedule, one timing path (timing.h).
#include "autotune/bench/stores.h"

#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "autotune/bench/compare.h"
#include "autotune/measure/device.h"
#include "autotune/measure/workload.h"
#include "kernels/host/api.h"
#include "kernels/host/code.h"
#include "kernels/host/fp8.h"
#include "kernels/host/mxfp8.h"
#include "kernels/host/norm_store.h"
#include "kernels/host/parity.h"

namespace outgrad::autotune {
namespace {

using kernels::BF16;
using kernels::F16;
using kernels::i64;
using kernels::MxFp8;
using kernels::u32;
using kernels::u64;
using kernels::u8;
using nlohmann::json;

constexpr kernels::CpuSchedule kSchedule = kernels::tuned::kDefaultSchedule;
constexpr int kTimedBits[] = {2, 4, 5, 8};
constexpr double kMaskBytes = 0.125;

struct TimedStore {
  std::string name;
  double forward_bytes, backward_bytes;
  std::function<void()> forward, backward;
};

// GELU on these arrays: of x or dy, of y or dx, and whatever a store keeps, which is never more than y and a
// mask.
template <class T>
std::vector<TimedStore> stores_of(const T* x, const T* dy, T* out, std::byte* kept, u32* mask, i64 n) {
  using Fit = typename kernels::DefaultFit<T>::Type;
  using Forward = typename kernels::ForwardFit<T>::Type;
  const double size = sizeof(T);
  std::vector<TimedStore> stores;
  T* const y = reinterpret_cast<T*>(kept);
  const std::string format = kernels::Format<T>::kName;
  stores.push_back({format + " y, bit", 2 * size + kMaskBytes, 3 * size + kMaskBytes,
                    [=] { kernels::gelu_forward<Forward, T, kSchedule>(x, y, mask, n); },
                    [=] { kernels::gelu_backward<Fit, T, kSchedule>(dy, y, mask, out, n); }});
  if constexpr (sizeof(T) == 2) {
    using Y = std::conditional_t<std::is_same_v<T, F16>, kernels::ParityF16, kernels::ParityBf16>;
    using Parity = std::conditional_t<std::is_same_v<T, F16>, kernels::generated::GeluF16Parity,
                                      kernels::generated::GeluBf16Parity>;
    Y* const carrying = reinterpret_cast<Y*>(kept);
    stores.push_back(
        {format + " y with its branch", 2 * size, 3 * size,
         [=] {
           kernels::activation_forward_parity<kernels::ParityForward<Parity>, Y, kSchedule>(x, carrying, n);
         },
         [=] { kernels::activation_backward<Parity, T, kSchedule, Y>(dy, carrying, nullptr, out, n); }});
  }
  constexpr double kBlockBytes = 1 + 1.0 / kernels::Format<MxFp8>::kBlock;
  auto* const codes = reinterpret_cast<kernels::F8E4M3*>(kept);
  auto* const scales = reinterpret_cast<kernels::E8M0*>(kept + (n + 63) / 64 * 64);
  stores.push_back({"MXFP8 y, bit", size + kBlockBytes + kMaskBytes, 2 * size + kBlockBytes + kMaskBytes,
                    [=] { kernels::gelu_forward_mxfp8<Forward, T, kSchedule>(x, codes, scales, mask, n); },
                    [=] {
                      kernels::activation_backward<kernels::generated::GeluMxfp8, T, kSchedule, MxFp8>(
                          dy, kernels::stored<MxFp8>(codes, scales), mask, out, n);
                    }});
  using Scaled = kernels::Fp8Activation<kernels::generated::GeluFp8>;
  using F = kernels::F8E4M3;
  for (const int bits : {1, 2}) {
    constexpr float kScale = kernels::kLargestOf<F> / 8;  // the workload's largest y is below 8
    const auto table = std::make_shared<kernels::Fp8Table>();
    kernels::fill_fp8_table<Scaled, F>(kScale, bits, *table);
    u8* const parts = reinterpret_cast<u8*>(kept + (n + 63) / 64 * 64);
    const double bytes = 1 + bits / 8.0;
    stores.push_back({std::string("e4m3 y at a scale, ") + (bits == 1 ? "1 bit" : "2 bits"), size + bytes,
                      2 * size + bytes,
                      [=] {
                        kernels::activation_forward_fp8<Scaled, F, T, kSchedule>(*table, kScale, x, codes,
                                                                                 parts, n);
                      },
                      [=] {
                        kernels::activation_backward_fp8<T, kSchedule>(
                            *table, dy, reinterpret_cast<const u8*>(codes), parts, out, n);
                      }});
  }
  const auto coded = [&](const std::string& name, int bits, const u64* seed) {
    u8* const packed = reinterpret_cast<u8*>(kept);
    const double code = bits / 8.0;
    constexpr kernels::CpuSchedule kCodeSchedule = kernels::tuned::DefaultCode::kSchedule;
    stores.push_back(
        {name, 2 * size + code, 2 * size + code,
         [=] { kernels::gelu_forward_code<T, kCodeSchedule>({bits, seed}, x, out, packed, n); },
         [=] { kernels::gelu_backward_code<T, kCodeSchedule>({bits, seed}, dy, packed, out, n); }});
  };
  static constexpr u64 kSeed = 1;
  coded("code of 2 bits, dithered", 2, &kSeed);
  for (const int bits : kTimedBits) coded("code of " + std::to_string(bits) + " bits", bits, nullptr);
  return stores;
}

// The arrays of a LayerNorm beside those of stores_of.
struct NormArrays {
  static constexpr i64 kColumns = 1024;
  std::vector<float> gamma, beta, rstd, dgamma, dbeta, workspace;
  i64 rows;

  explicit NormArrays(i64 n)
      : gamma(kColumns, 1.1f), beta(kColumns, 0.1f), rstd(static_cast<std::size_t>(n / kColumns)),
        dgamma(kColumns), dbeta(kColumns),
        workspace(static_cast<std::size_t>(kernels::norm_backward_workspace(n / kColumns, kColumns))),
        rows(n / kColumns) {}
};

// LayerNorm on these arrays, n a multiple of kColumns. Every forward writes y into `out`; y in 8 bits comes
// beside it.
template <class T>
std::vector<TimedStore> norm_stores_of(const T* x, const T* dy, T* out, std::byte* kept, NormArrays& a,
                                       i64 n) {
  constexpr i64 kColumns = NormArrays::kColumns;
  const double size = sizeof(T);
  NormArrays* const arrays = &a;
  std::vector<TimedStore> stores;
  T* const y = reinterpret_cast<T*>(kept);
  stores.push_back({"y", 2 * size, 3 * size,
                    [=] {
                      kernels::layernorm_forward<T>(x, arrays->gamma.data(), arrays->beta.data(),
                                                    arrays->rows, kColumns, 1e-5f, y, arrays->rstd.data());
                    },
                    [=] {
                      kernels::layernorm_backward<T>(
                          dy, y, arrays->gamma.data(), arrays->beta.data(), arrays->rstd.data(), arrays->rows,
                          kColumns, out, arrays->dgamma.data(), arrays->dbeta.data(), {}, arrays->workspace);
                    }});
  const auto add = [&]<class Store>(Store) {
    auto* const codes = reinterpret_cast<typename Store::Code*>(kept);
    auto* const scales = reinterpret_cast<typename Store::Scale*>(kept + (n + 63) / 64 * 64);
    const double bytes = 1 + (Store::kGroup > 0 ? static_cast<double>(sizeof(typename Store::Scale)) /
                                                      static_cast<double>(Store::kGroup)
                                                : 0.0);
    static constexpr float kScale = 0.02f;  // of a step before, as FP8 products have it
    stores.push_back({std::string(Store::kName) + " y beside y", 2 * size + bytes, 2 * size + bytes,
                      [=] {
                        kernels::layernorm_forward_8bit<Store, T>(
                            x, arrays->gamma.data(), arrays->beta.data(), arrays->rows, kColumns, 1e-5f,
                            Store::kGroup == 0 ? &kScale : nullptr, out, codes, scales, arrays->rstd.data());
                      },
                      [=] {
                        kernels::layernorm_backward_8bit<Store, T>(
                            dy, codes, scales, arrays->gamma.data(), arrays->beta.data(), arrays->rstd.data(),
                            arrays->rows, kColumns, out, arrays->dgamma.data(), arrays->dbeta.data(), {},
                            arrays->workspace);
                      }});
  };
  add(kernels::NormE4m3{});
  add(kernels::NormMxFp8{});
  add(kernels::NormInt8{});
  return stores;
}

}  // namespace

std::vector<StoreSpeed> store_speeds(StoredLayer layer, FormatId format, i64 n, int rounds,
                                     std::uint64_t seed) {
  const Array x = filled(Content::kX, Element::kFormat, format, n, seed),
              dy = filled(Content::kDy, Element::kFormat, format, n, seed),
              out = filled(Content::kResult, Element::kFormat, format, n, seed),
              mask = filled(Content::kResult, Element::kMaskWord, format, (n + 31) / 32, seed);
  NormArrays norm(n);
  std::vector<TimedStore> stores;
  std::vector<Array> kept;
  // Every store keeps in an array of its own, so that its backward finds what its forward left.
  with_type(format, [&]<class T>(T) {
    constexpr std::size_t kMost = 12;
    for (std::size_t k = 0; k < kMost; ++k) {
      Array array = filled(Content::kResult, Element::kFormat, format, n + n / 8 + 128, seed);
      const T* const from = reinterpret_cast<const T*>(x.get());
      const T* const gradient = reinterpret_cast<const T*>(dy.get());
      T* const to = reinterpret_cast<T*>(out.get());
      std::vector<TimedStore> all =
          layer == StoredLayer::layernorm
              ? norm_stores_of<T>(from, gradient, to, array.get(), norm, n)
              : stores_of<T>(from, gradient, to, array.get(), reinterpret_cast<u32*>(mask.get()), n);
      if (k == all.size()) break;
      stores.push_back(std::move(all[k]));
      kept.push_back(std::move(array));
    }
  });
  std::vector<Workload> workloads;
  for (const TimedStore& store : stores) {
    workloads.push_back(
        {store.name + " forward", store.forward_bytes * static_cast<double>(n), store.forward});
    workloads.push_back(
        {store.name + " backward", store.backward_bytes * static_cast<double>(n), store.backward});
    store.forward();
  }
  Rounds measured(std::move(workloads), 0, seed);
  measured.run(/*warm_up=*/true);
  constexpr int kPatience = 3;
  measured.run_until(rounds, kPatience * rounds);
  const auto& ns = measured.times_ns();
  const std::vector<bool> kept_ones = kept_rounds(ns[0]);
  std::vector<StoreSpeed> speeds;
  for (std::size_t k = 0; k < stores.size(); ++k) {
    speeds.push_back({stores[k].name, stores[k].forward_bytes, stores[k].backward_bytes,
                      ratio_interval(ns[0], ns[2 * k], kept_ones, seed),
                      ratio_interval(ns[1], ns[2 * k + 1], kept_ones, seed), kept_ones});
  }
  return speeds;
}

}  // namespace outgrad::autotune
