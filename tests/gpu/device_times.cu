// Times by CUDA graphs: a sample is one launch of a graph of at least 20 calls, so that what a launch costs
// the host is hidden, and these calls go round as many sets of arrays as exceed the second-level cache
// threefold, so that small arrays come from memory too.
//
// All kernels of a size, a device copy and a scale in place are run in interleaved rounds: shares are of
// the same run's copy. x is N(0, 1), y and mask are what our own forward makes of it, and no kernel that is
// timed changes an input of another: what a store keeps, its forward writes for its backward, the same bits
// in each call.
#include "tests/gpu/device_times.h"

#include <chrono>
#include <cstdint>

#include "tests/gpu/device_side.cuh"
#include "tests/gpu/launches.cuh"
#include "kernels/activations.h"
#include "kernels/cuda/plan.h"
#include "kernels/forwards.h"
#include "kernels/support/statistics.h"

namespace outgrad::tests::gpu {
namespace {

using kernels::BF16;
using kernels::F16;
using kernels::Norm;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

constexpr int kCallsPerGraph = 20;         // the fewest
constexpr int kRounds = 25, kFewest = 5;   // of a size; the median of 5 survives two disturbed ones
constexpr int kReducedRounds = 2;
constexpr double kCaches = 3;              // by which the sets of arrays exceed the second-level cache
constexpr double kCopyShareFloor = 0.9;    // of the best round, as on the CPU
constexpr double kWarmUpSeconds = 0.2;     // until the clocks have risen
constexpr i64 kBiasColumns = 1024;         // of the matrix that bias + GELU sees
constexpr double kMaskBytes = 0.125;       // of an element
constexpr double kElementwiseKernels = 4;  // timed for each one of the norms, about

// Whether the forward of an activation writes a mask, by its place in kActivationNames.
template <class... F>
bool masks(kernels::ForwardList<F...>, int activation) {
  int each = 1;  // after GELU
  bool found = activation == 0;
  ((each++ == activation ? void(found = F::kMasked) : void()), ...);
  return found;
}

// A size to be timed: rows of columns; plain elements are one row.
struct Size {
  i64 rows, columns;
  i64 elements() const { return rows * columns; }
};

// The arrays of a format, made once: a size takes as many sets of consecutive elements from them as it needs.
template <class T>
struct Pool {
  explicit Pool(i64 elements)
      : x(elements), y(elements), dy(elements), out(elements), z(elements), mask(elements / 32),
        mask_out(elements / 32), gamma(kMostColumns), beta(kMostColumns), bias(kBiasColumns),
        dgamma(kMostColumns), dbeta(kMostColumns), dbias(kBiasColumns), scale(1), seed(1),
        maxima(2 * kernels::cuda::kMostMaxima), tables(kernels::kMostPartBits + 1) {
    fill(x, NormalAt<T>{kXStream});
    fill(dy, UniformAt<T>{kDyStream});
    fill(out, UniformAt<T>{kDyStream});
    fill(gamma, GammaAt{});
    fill(beta, UniformAt<float>{kBetaStream});
    check(cudaMemset(bias.get(), 0, kBiasColumns * sizeof(float)), "bias");  // x + bias is N(0, 1) too
    check(cudaMemset(seed.get(), 1, sizeof(u64)), "seed");
    constexpr float kScale = kernels::kLargestOf<kernels::F8E4M3> / 8;  // the largest y is below 8
    check(cudaMemcpy(scale.get(), &kScale, sizeof kScale, cudaMemcpyHostToDevice), "scale");
    for (int bits = 0; bits <= kernels::kMostPartBits; ++bits)
      check(launches::fp8_table(scale.get(), bits, tables.get() + bits, nullptr), "fp8_table");
  }
  static constexpr i64 kMostColumns = 8192;
  Array<T> x, y, dy, out, z;
  Array<u32> mask, mask_out;
  Array<float> gamma, beta, bias, dgamma, dbeta, dbias, scale;
  Array<u64> seed;  // any
  Array<u32> maxima;
  Array<kernels::Fp8Table> tables;
};

// What the stores keep of `sets` sets of n elements.
template <class T>
struct Kept {
  explicit Kept(i64 sets, i64 n) : stores(all()), elements(n) {
    for (const launches::Store<T>& store : stores) {
      bytes.push_back(
          (static_cast<i64>(store.kept_bytes * static_cast<double>(n)) + kScaleBytes + kAlignment - 1) /
          kAlignment * kAlignment);
      arrays.emplace_back(sets * bytes.back());
    }
  }
  // What a store keeps of the set that begins with element `first`.
  kernels::u8* of(size_t store, i64 first) const {
    return arrays[store].get() + first / elements * bytes[store];
  }
  // The bytes that all stores together keep of an element.
  static double most_bytes() {
    double sum = 0;
    for (const launches::Store<T>& store : all()) sum += store.kept_bytes;
    return sum;
  }
  static std::vector<launches::Store<T>> all() {
    std::vector<launches::Store<T>> stores = launches::stores<T>(), pairs = launches::pairs<T>();
    stores.insert(stores.end(), pairs.begin(), pairs.end());
    return stores;
  }

  static constexpr i64 kAlignment = 256, kScaleBytes = 2 * sizeof(float);
  std::vector<launches::Store<T>> stores;
  i64 elements;
  std::vector<i64> bytes;  // of a set
  std::vector<Array<kernels::u8>> arrays;
};

// What is timed: `call` enqueues it once, on the set whose first element is given.
struct Timed {
  std::string name;
  double bytes;  // of a call: each input and output once
  std::function<void(i64 first, cudaStream_t)> call;
  std::vector<double> us = {};  // of a call, by rounds
};

class Timer {
 public:
  Timer() {
    check(cudaEventCreate(&start_), "event");
    check(cudaEventCreate(&stop_), "event");
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  ~Timer() {
    cudaEventDestroy(start_);
    cudaEventDestroy(stop_);
  }
  double ms(const Graph& graph, const char* what) const {
    check(cudaEventRecord(start_, stream.get()), "event");
    graph.launch(stream);
    check(cudaEventRecord(stop_, stream.get()), "event");
    check(cudaEventSynchronize(stop_), what);
    float ms = 0;
    check(cudaEventElapsedTime(&ms, start_, stop_), "event");
    return ms;
  }
  const Stream stream;

 private:
  cudaEvent_t start_ = nullptr, stop_ = nullptr;
};

class Times {
 public:
  Times(const TimeSettings& settings, const std::function<void(const std::string&)>& keep)
      : settings_(settings), keep_(keep) {
    int bytes = 0;
    check(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, 0), "size of the second-level cache");
    l2_bytes_ = bytes;
    for (const size_t bytes_of_element : {sizeof(float), sizeof(F16), sizeof(BF16)})
      for (const std::vector<Size>& sizes : {elementwise_sizes(), norm_sizes()})
        for (const Size& each : sizes) weight_to_go_ += weight_of(each, bytes_of_element);
  }

  template <class T>
  void format() {
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "memory size");
    i64 most = 0;
    for (const Size& size : elementwise_sizes()) most = std::max(most, size.elements());
    constexpr double kShare = 0.8;  // of the free memory
    const double bytes = 5 * sizeof(T) + 2 * kMaskBytes + Kept<T>::most_bytes();  // x, y, dy, out, z
    while (most > 2 * kBiasColumns && static_cast<double>(most) * bytes > kShare * static_cast<double>(free))
      most /= 2;
    Pool<T> pool(most);
    check(launches::gelu_forward(pool.x.get(), pool.y.get(), pool.mask.get(), most, nullptr), "gelu_forward");
    check(cudaDeviceSynchronize(), "gelu_forward");
    i64 last = 0;
    for (const Size& size : elementwise_sizes())
      if (const i64 n = std::min(size.columns, most); n != last) elementwise(pool, {1, last = n});
    for (const Size& size : norm_sizes())
      if (size.elements() <= most) norms(pool, size);
  }

 private:
  std::vector<Size> elementwise_sizes() const {
    if (settings_.reduced) return {{1, 1 << 12}, {1, 1 << 14}};
    return {{1, 1 << 20}, {1, 1 << 22}, {1, 1 << 24}, {1, 1 << 28}};
  }
  std::vector<Size> norm_sizes() const {
    if (settings_.reduced) return {{4, 1024}};
    std::vector<Size> sizes = {{1 << 18, 128}};  // of heads
    for (const i64 columns : {1024, 4096, 8192})
      for (const i64 rows : {1 << 10, 1 << 12, 1 << 13, 1 << 14}) sizes.push_back({rows, columns});
    return sizes;
  }
  // The scale touches least: one array of each set.
  i64 sets_of(const Size& size, size_t element_bytes) const {
    return std::max<i64>(1, static_cast<i64>(std::ceil(kCaches * l2_bytes_ /
                                                       (static_cast<double>(size.elements()) *
                                                        static_cast<double>(element_bytes)))));
  }
  // each set as often as the others
  static i64 calls_of(i64 sets) { return (kCallsPerGraph + sets - 1) / sets * sets; }
  // A size's part of the budget: by the elements of a round.
  double weight_of(const Size& size, size_t element_bytes) const {
    const double kernels = size.rows == 1 ? kElementwiseKernels : 1;
    return kernels * static_cast<double>(calls_of(sets_of(size, element_bytes)) * size.elements()) *
           static_cast<double>(element_bytes);
  }

  template <class T>
  void ceilings(std::vector<Timed>& cases, const Pool<T>& pool, i64 n) const {
    const double bytes = 2.0 * sizeof(T) * static_cast<double>(n);
    cases.push_back({"copy", bytes, [&pool, n](i64 first, cudaStream_t stream) {
                       check(cudaMemcpyAsync(pool.out.get() + first, pool.dy.get() + first,
                                             static_cast<size_t>(n) * sizeof(T), cudaMemcpyDeviceToDevice,
                                             stream),
                             "copy");
                     }});
    cases.push_back({"scale", bytes, [&pool, n](i64 first, cudaStream_t stream) {
                       scale_in_place(pool.out.get() + first, n, 1.0f, stream);
                     }});
  }

  template <class T>
  void elementwise(const Pool<T>& pool, const Size& size) {
    const i64 n = size.elements(), rows = n / kBiasColumns,
              sets = std::min(sets_of(size, sizeof(T)), pool.x.size() / n);
    const double of_array = sizeof(T) * static_cast<double>(n), of_mask = kMaskBytes * static_cast<double>(n);
    const double backward = 3 * of_array + of_mask, forward = 2 * of_array + of_mask;
    const Array<float> workspace(kernels::cuda::bias_backward_workspace(rows, kBiasColumns));
    const Kept<T> kept(sets, n);
    std::vector<Timed> cases;
    ceilings(cases, pool, n);
    cases.push_back({"gelu_forward", forward, [&](i64 first, cudaStream_t stream) {
                       check(launches::gelu_forward(pool.x.get() + first, pool.out.get() + first,
                                                    pool.mask_out.get() + first / 32, n, stream),
                             "gelu_forward");
                     }});
    cases.push_back({"gelu_backward", backward, [&](i64 first, cudaStream_t stream) {
                       check(launches::gelu_backward(pool.dy.get() + first, pool.y.get() + first,
                                                     pool.mask.get() + first / 32, pool.out.get() + first, n,
                                                     stream),
                             "gelu_backward");
                     }});
    for (int activation = 1; activation < kernels::kActivations; ++activation) {
      const std::string name = std::string(kernels::kActivationNames[activation]) + "_forward";
      const bool masked = masks(kernels::ActivationForwards{}, activation);
      cases.push_back(
          {name, 2 * of_array + (masked ? of_mask : 0), [=, &pool](i64 first, cudaStream_t stream) {
             u32* const mask = masked ? pool.mask_out.get() + first / 32 : nullptr;
             check(launches::activation_forward(activation, pool.x.get() + first, pool.out.get() + first,
                                                mask, n, stream),
                   name.c_str());
           }});
    }
    cases.push_back({"dropout", 2 * of_array, [&](i64 first, cudaStream_t stream) {
                       check(launches::dropout(pool.x.get() + first, pool.out.get() + first, n,
                                               pool.seed.get(), 0.1, stream),
                             "dropout");
                     }});
    cases.push_back({"bias_gelu_forward", forward, [&](i64 first, cudaStream_t stream) {
                       check(launches::bias_gelu_forward(pool.x.get() + first, pool.bias.get(), rows,
                                                         kBiasColumns, pool.out.get() + first,
                                                         pool.mask_out.get() + first / 32, stream),
                             "bias_gelu_forward");
                     }});
    cases.push_back({"bias_gelu_backward", backward, [&](i64 first, cudaStream_t stream) {
                       check(launches::bias_gelu_backward(pool.dy.get() + first, pool.y.get() + first,
                                                          pool.mask.get() + first / 32, rows, kBiasColumns,
                                                          pool.out.get() + first, pool.dbias.get(),
                                                          workspace.get(), workspace.size(), stream),
                             "bias_gelu_backward");
                     }});
    for (size_t k = 0; k < kept.stores.size(); ++k) {
      const launches::Store<T>& store = kept.stores[k];
      const auto add = [&](const char* name, double bytes, const auto& kernel) {
        cases.push_back({name,
                         bytes + store.kept_bytes * static_cast<double>(n) + (store.masked ? of_mask : 0),
                         [=, &pool, &kept](i64 first, cudaStream_t stream) {
                           check(kernel({.x = pool.x.get() + first,
                                         .b = pool.y.get() + first,
                                         .dy = pool.dy.get() + first,
                                         .out = pool.out.get() + first,
                                         .second_out = pool.z.get() + first,
                                         .kept = kept.of(k, first),
                                         .mask_out = pool.mask_out.get() + first / 32,
                                         .mask = pool.mask.get() + first / 32,
                                         .seed = pool.seed.get(),
                                         .scale = pool.scale.get(),
                                         .tables = pool.tables.get(),
                                         .maxima = pool.maxima.get()},
                                        n, stream),
                                 name);
                         }});
      };
      add(store.forward_name, store.forward_arrays * of_array, store.forward);
      if (store.backward != nullptr)
        add(store.backward_name, store.backward_arrays * of_array, store.backward);
    }
    time(cases, pool.x.size(), size, sizeof(T), kernels::Format<T>::kName);
  }

  template <class T>
  void norms(const Pool<T>& pool, const Size& size) {
    const i64 rows = size.rows, n = size.columns,
              sets = std::min(sets_of(size, sizeof(T)), pool.x.size() / size.elements());
    const double matrix = sizeof(T) * static_cast<double>(size.elements());
    const Array<float> rstd(sets * rows), rstd_out(sets * rows),
        workspace(kernels::cuda::norm_backward_workspace(rows, n));
    std::vector<Timed> cases;
    ceilings(cases, pool, size.elements());
    const auto add = [&]<Norm N>(const std::string& name) {
      const float* const beta = N == Norm::layer ? pool.beta.get() : nullptr;
      float* const dbeta = N == Norm::layer ? pool.dbeta.get() : nullptr;
      // dgamma and dbeta, or gamma and beta
      const double gradients = (N == Norm::layer ? 2 : 1) * sizeof(float) * static_cast<double>(n);
      // rstd beside them
      const double vectors = sizeof(float) * static_cast<double>(rows) + gradients;
      const auto arrays = [=, &pool](T* to, float* rstd_to, i64 first) {
        return kernels::cuda::NormForwardArrays<T>{.x = pool.x.get() + first,
                                                   .residual = pool.dy.get() + first,
                                                   .gamma = pool.gamma.get(),
                                                   .beta = beta,
                                                   .rows = rows,
                                                   .n = n,
                                                   .eps = kEps,
                                                   .z = pool.z.get() + first,
                                                   .y = to + first,
                                                   .rstd = rstd_to + first / n};
      };
      const auto forward = [=](T* to, float* rstd_to, i64 first, cudaStream_t stream) {
        check(launches::norm_forward<N>(arrays(to, rstd_to, first), stream), "norm forward");
      };
      const auto gradients_of = [=, &pool, &rstd](i64 first) {
        return kernels::cuda::NormBackwardArrays<T>{.dy = pool.dy.get() + first,
                                                    .y = pool.y.get() + first,
                                                    .dz_next = pool.x.get() + first,
                                                    .rstd = rstd.get() + first / n,
                                                    .rows = rows,
                                                    .n = n,
                                                    .dx = pool.out.get() + first};
      };
      const kernels::cuda::NormBackwardColumns columns{
          pool.gamma.get(), beta, pool.dgamma.get(), dbeta, workspace.get(), workspace.size()};
      cases.push_back(
          {name + "_forward", 2 * matrix + vectors, [=, &pool, &rstd_out](i64 first, cudaStream_t stream) {
             forward(pool.out.get(), rstd_out.get(), first, stream);
           }});
      cases.push_back(
          {name + "_backward", 3 * matrix + vectors + gradients, [=](i64 first, cudaStream_t stream) {
             check(launches::norm_backward<N>(gradients_of(first), columns, stream), "norm backward");
           }});
      // z = x + dy, and the norm's gradient plus x.
      cases.push_back(
          {"residual_" + name + "_forward", 4 * matrix + vectors,
           [=, &pool, &rstd_out](i64 first, cudaStream_t stream) {
             check(launches::residual_norm_forward<N>(arrays(pool.out.get(), rstd_out.get(), first), stream),
                   "residual norm forward");
           }});
      cases.push_back({"residual_" + name + "_backward", 4 * matrix + vectors + gradients,
                       [=](i64 first, cudaStream_t stream) {
                         check(launches::residual_norm_backward<N>(gradients_of(first), columns, stream),
                               "residual norm backward");
                       }});
      if (N == Norm::layer) {  // y and rstd are its; RMSNorm's backward takes the same bytes
        for (i64 set = 0; set < sets; ++set)
          forward(pool.y.get(), rstd.get(), set * size.elements(), nullptr);
        check(cudaDeviceSynchronize(), "norm forward");
      }
    };
    add.template operator()<Norm::layer>("layernorm");
    add.template operator()<Norm::rms>("rmsnorm");
    time(cases, pool.x.size(), size, sizeof(T), kernels::Format<T>::kName);
  }

  void time(std::vector<Timed>& cases, i64 pool_elements, const Size& size, size_t element_bytes,
            const char* format) {
    const Clock::time_point begun = Clock::now();
    const i64 sets = std::min(sets_of(size, element_bytes), pool_elements / size.elements()),
              calls = calls_of(sets);
    std::vector<Graph> graphs;
    for (const Timed& each : cases)
      graphs.emplace_back(timer_.stream, [&] {
        for (i64 call = 0; call < calls; ++call)
          each.call(call % sets * size.elements(), timer_.stream.get());
      });
    do {
      for (size_t k = 0; k < cases.size(); ++k) timer_.ms(graphs[k], cases[k].name.c_str());
    } while (!warm_ && seconds_since(begun) < (settings_.reduced ? 0 : kWarmUpSeconds));
    warm_ = true;
    const double weight = weight_of(size, element_bytes),
                 budget = weight / weight_to_go_ * (settings_.budget_seconds - seconds_since(begun_));
    weight_to_go_ -= weight;
    u64 order = 1;
    for (int round = 0; round < (settings_.reduced ? kReducedRounds : kRounds) &&
                        (round < kFewest || seconds_since(begun) < budget);
         ++round) {
      order = mix(order);  // another first kernel each round
      for (size_t i = 0; i < cases.size(); ++i) {
        const size_t k = (i + order) % cases.size();
        cases[k].us.push_back(1e3 * timer_.ms(graphs[k], cases[k].name.c_str()) / static_cast<double>(calls));
      }
    }
    report(cases, sets, calls, size, format);
  }

  // Rounds disturbed from outside show in the copy; they are reported and left out.
  void report(const std::vector<Timed>& cases, i64 sets, i64 calls, const Size& size, const char* format) {
    const std::vector<double>& copies = cases.front().us;
    const double best = *std::min_element(copies.begin(), copies.end());
    const auto median_of_kept = [&](const Timed& which) {
      std::vector<double> kept;
      for (size_t r = 0; r < copies.size(); ++r)
        if (best >= kCopyShareFloor * copies[r]) kept.push_back(which.us[r]);
      return std::pair(kernels::median(kept), kept.size());
    };
    const std::string shape = size.rows == 1
                                  ? std::to_string(size.columns)
                                  : std::to_string(size.rows) + " x " + std::to_string(size.columns);
    const auto gb_per_s_of = [&](const Timed& which) {
      return 1e-3 * which.bytes / median_of_kept(which).first;
    };
    // A copy by the driver moves less than kernels do where arrays are large.
    double ceiling = 0;
    for (const Timed& which : cases)
      if (which.name == "copy" || which.name == "scale") ceiling = std::max(ceiling, gb_per_s_of(which));
    for (const Timed& which : cases) {
      const auto [us, kept] = median_of_kept(which);
      const double gb_per_s = gb_per_s_of(which);
      std::printf("%-30s %-4s %12s %10.2f us %8.1f GB/s %6.1f%% of the ceiling  (%zu of %zu rounds)\n",
                  which.name.c_str(), format, shape.c_str(), us, gb_per_s, 100 * gb_per_s / ceiling, kept,
                  which.us.size());
      std::string samples;
      for (const double sample : which.us) samples += (samples.empty() ? "" : ", ") + number(sample);
      rows_ += (rows_.empty() ? "" : ",\n    ") + ("{\"name\": \"" + which.name) + "\", \"format\": \"" +
               format + "\", \"rows\": " + std::to_string(size.rows) +
               ", \"columns\": " + std::to_string(size.columns) +
               ", \"bytes\": " + std::to_string(static_cast<u64>(which.bytes)) +
               ", \"sets\": " + std::to_string(sets) + ", \"calls\": " + std::to_string(calls) +
               ", \"kept_rounds\": " + std::to_string(kept) + ", \"us_median\": " + number(us) +
               ", \"gb_per_s\": " + number(gb_per_s) + ", \"us\": [" + samples + "]}";
    }
    std::fflush(stdout);
    keep_(rows_);
  }

  static std::string number(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.6g", value);
    return text;
  }

  TimeSettings settings_;
  std::function<void(const std::string&)> keep_;
  Clock::time_point begun_ = Clock::now();
  Timer timer_;
  bool warm_ = false;
  double l2_bytes_ = 0, weight_to_go_ = 0;
  std::string rows_;
};

}  // namespace

void time_kernels(const TimeSettings& settings, const std::function<void(const std::string& rows)>& keep) {
  Times times(settings, keep);
  times.format<BF16>();
  times.format<F16>();
  times.format<float>();
}

}  // namespace outgrad::tests::gpu
