// The stores' kernels as the compiled library runs them, one timing path (timing.h).
#include "autotune/bench/stores.h"

#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "autotune/bench/compare.h"
#include "autotune/measure/device.h"
#include "autotune/measure/workload.h"
#include "kernels/c/outgrad.h"
#include "kernels/catalogue/stores.h"
#include "kernels/stores/fp8.h"
#include "kernels/support/errors.h"

namespace outgrad::autotune {
namespace {

using kernels::i64;
using kernels::StoreId;
using nlohmann::json;

constexpr int kTimedBits[] = {2, 4, 5, 8};
constexpr double kMaskBytes = 0.125;

struct TimedStore {
  std::string name;
  double forward_bytes, backward_bytes;
  std::function<void()> forward, backward;
};

void require(outgrad_status status) {
  if (status != OUTGRAD_OK) throw kernels::SpecError(outgrad_error_message());
}

// The arrays that all stores of a layer share: x or dy is read, y or dx written. What a store keeps is never
// more than y and a mask.
struct Arrays {
  const void *x, *dy;
  void* out;
  std::byte* kept;
  std::uint32_t* mask;
};

outgrad_call call_of(FormatId format, StoreId store, i64 n) {
  outgrad_call call{};
  call.size = sizeof call;
  call.format = static_cast<outgrad_format>(format);
  call.store = static_cast<outgrad_store>(store);
  call.n = n;
  return call;
}

// Codes, scales and parts of these sizes, one behind the other in what is kept.
void place_kept(outgrad_call& call, std::byte* kept) {
  const auto place = [&](std::size_t bytes) { return std::exchange(kept, kept + (bytes + 63) / 64 * 64); };
  call.codes = place(call.codes_bytes);
  call.scales = place(call.scales_bytes);
  call.parts = place(call.parts_bytes);
}

// bytes and run: of the forward and of the backward.
using Function = outgrad_status (*)(const outgrad_call*);
TimedStore timed(std::string name, const std::array<double, 2>& bytes, outgrad_call call,
                 const Arrays& arrays, const std::array<Function, 2>& run) {
  call.x = arrays.x;
  call.dy = arrays.dy;
  call.dx = arrays.out;
  return {std::move(name), bytes[0], bytes[1], [=] { require(run[0](&call)); },
          [=] { require(run[1](&call)); }};
}

// GELU, each store by the name that it has in `front`.
std::vector<TimedStore> gelu_stores(FormatId format, i64 n, const Arrays& arrays) {
  const auto size = static_cast<double>(bytes_of(format));
  std::vector<TimedStore> stores;
  const auto add = [&](const std::string& name, StoreId id, int bits = 0,
                       const std::uint64_t* seed = nullptr) {
    // the workload's largest y is below 8
    static constexpr float kScale = kernels::kLargestOf<kernels::F8E4M3> / 8;
    const kernels::Store& store = kernels::store_of(id);
    outgrad_call call = call_of(format, id, n);
    call.bits = bits;
    call.seed = seed;
    call.scale = &kScale;
    call.mask = arrays.mask;
    require(outgrad_activation_sizes(&call));
    place_kept(call, arrays.kept);
    call.y = store.keeps_y ? static_cast<void*>(arrays.kept) : arrays.out;
    const double kept = static_cast<double>(call.codes_bytes + call.scales_bytes + call.parts_bytes) /
                            static_cast<double>(n) +
                        (store.keeps_mask ? kMaskBytes : 0) + (store.keeps_y ? size : 0);
    const double y = store.writes_y && !store.keeps_y ? size : 0;
    stores.push_back(timed(name, {size + y + kept, 2 * size + kept}, call, arrays,
                           {outgrad_activation_forward, outgrad_activation_backward}));
  };
  const std::string plain = name_of(format);
  add(plain + " y, bit", StoreId::kY);
  if (format != FormatId::kF32) add(plain + " y with its branch", StoreId::kParity);
  add("MXFP8 y, bit", StoreId::kMxFp8);
  add("e4m3 y at a scale, 1 bit", StoreId::kE4m3, 1);
  add("e4m3 y at a scale, 2 bits", StoreId::kE4m3, 2);
  static constexpr std::uint64_t kSeed = 1;
  add("code of 2 bits, dithered", StoreId::kCode, 2, &kSeed);
  for (const int bits : kTimedBits) add("code of " + std::to_string(bits) + " bits", StoreId::kCode, bits);
  return stores;
}

// The arrays of a LayerNorm beside those of every layer.
struct NormArrays {
  static constexpr i64 kColumns = 1024;
  i64 rows;
  std::vector<float> gamma, beta, rstd, dgamma, dbeta, workspace;

  explicit NormArrays(i64 n)
      : rows(n / kColumns), gamma(kColumns, 1.1f), beta(kColumns, 0.1f), rstd(static_cast<std::size_t>(rows)),
        dgamma(kColumns), dbeta(kColumns) {}
};

// LayerNorm, n a multiple of kColumns. Every forward writes y; y in 8 bits comes beside it.
std::vector<TimedStore> norm_stores(FormatId format, i64 n, const Arrays& arrays, NormArrays& norm) {
  const auto size = static_cast<double>(bytes_of(format));
  std::vector<TimedStore> stores;
  for (const StoreId id : {StoreId::kY, StoreId::kE4m3, StoreId::kMxFp8, StoreId::kInt8}) {
    static constexpr float kScale = 0.02f;  // of a step before, as FP8 products have it
    const kernels::Store& store = kernels::store_of(id);
    outgrad_call call = call_of(format, id, NormArrays::kColumns);
    call.rows = norm.rows;
    require(outgrad_norm_sizes(&call));
    place_kept(call, arrays.kept);
    norm.workspace.resize(call.workspace_bytes / sizeof(float));
    call.eps = 1e-5f;
    if (id == StoreId::kE4m3) call.scale = &kScale;
    call.y = store.keeps_y ? static_cast<void*>(arrays.kept) : arrays.out;
    call.gamma = norm.gamma.data();
    call.beta = norm.beta.data();
    call.rstd = norm.rstd.data();
    call.dgamma = norm.dgamma.data();
    call.dbeta = norm.dbeta.data();
    call.workspace = norm.workspace.data();
    const double kept =
        store.keeps_y ? size
                      : static_cast<double>(call.codes_bytes + call.scales_bytes) / static_cast<double>(n);
    stores.push_back(timed(store.keeps_y ? "y" : std::string(store.name) + " y beside y",
                           {(store.keeps_y ? size : 2 * size) + kept, 2 * size + kept}, call, arrays,
                           {outgrad_layernorm_forward, outgrad_layernorm_backward}));
  }
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
  for (std::size_t k = 0;; ++k) {
    Array array = filled(Content::kResult, Element::kFormat, format, n + n / 8 + 128, seed);
    const Arrays arrays{x.get(), dy.get(), out.get(), array.get(),
                        reinterpret_cast<std::uint32_t*>(mask.get())};
    std::vector<TimedStore> all = layer == StoredLayer::layernorm ? norm_stores(format, n, arrays, norm)
                                                                  : gelu_stores(format, n, arrays);
    if (k == all.size()) break;
    stores.push_back(std::move(all[k]));
    kept.push_back(std::move(array));
  }
  const i64 floats = n * bytes_of(format) / static_cast<i64>(sizeof(float));
  std::vector<Workload> workloads = {
      {"copy", 2.0 * static_cast<double>(n * bytes_of(format)),
       [&] { copy(reinterpret_cast<const float*>(x.get()), reinterpret_cast<float*>(out.get()), floats); }}};
  std::vector<StoreSpeed> speeds;
  for (const TimedStore& store : stores) {
    speeds.push_back({store.name, store.forward_bytes, store.backward_bytes});
    workloads.push_back(
        {store.name + " forward", store.forward_bytes * static_cast<double>(n), store.forward});
    workloads.push_back(
        {store.name + " backward", store.backward_bytes * static_cast<double>(n), store.backward});
    store.forward();
  }
  rate(speeds, timed_until(std::move(workloads), rounds, seed));
  return speeds;
}

}  // namespace outgrad::autotune
