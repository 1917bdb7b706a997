// LayerNorm and RMSNorm on the host: forward, and backward from the output, on all cores.
//
// x, y, dy, dx are [rows, n], row-major, in format T; gamma, beta, dgamma, dbeta [n] and rstd [rows] are fp32. gamma and beta may be
// null (1 and 0). Any element-aligned pointers; rows may be 0, n is at least 1. y may alias x in the forward, dx may alias dy in the
// backward; nothing else may overlap. Every schedule gives the same bits, those of the formulas in kernels/layernorm.h summed by
// the trees of kernels/reduce.h. The caller's floating-point environment is neither used nor changed.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "kernels/host/errors.h"
#include "kernels/host/parallel.h"
#include "kernels/layernorm.h"
#include "kernels/params.h"
#include "kernels/simd.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

inline constexpr CpuSchedule kWidestSchedule{.vector_bits = kBestVectorBits};

// y and rstd from x. With a side buffer, x^ of its channels is written there too.
// Throws SpecError: a negative shape, n = 0, eps negative or NaN, channels that do not ascend within [0, n).
template <class T, CpuSchedule S = kWidestSchedule>
void layernorm_forward(const T* x, const float* gamma, const float* beta, i64 rows, i64 n, float eps, T* y, float* rstd,
                       SideBuffer<float> side = {});

template <class T, CpuSchedule S = kWidestSchedule>
void rmsnorm_forward(const T* x, const float* gamma, i64 rows, i64 n, float eps, T* y, float* rstd, SideBuffer<float> side = {});

// Number of fp32 words of scratch that a backward of this shape needs.
i64 norm_backward_workspace(i64 rows, i64 n);

// dx, dgamma and dbeta from dy and the output y; dgamma and dbeta may be null (not wanted). Allocates nothing: `workspace` holds
// norm_backward_workspace(rows, n) words, its content does not matter.
// Throws SpecError, before anything is written: as the forward does; a workspace too small; a gamma whose reciprocal is infinite
// (0, or below 2^-128 in magnitude) outside the side buffer, by channel.
template <class T, CpuSchedule S = kWidestSchedule>
void layernorm_backward(const T* dy, const T* y, const float* gamma, const float* beta, const float* rstd, i64 rows, i64 n, T* dx,
                        float* dgamma, float* dbeta, SideBuffer<const float> side, std::span<float> workspace);

template <class T, CpuSchedule S = kWidestSchedule>
void rmsnorm_backward(const T* dy, const T* y, const float* gamma, const float* rstd, i64 rows, i64 n, T* dx, float* dgamma,
                      SideBuffer<const float> side, std::span<float> workspace);

// The same with a workspace of their own.
template <class T, CpuSchedule S = kWidestSchedule>
void layernorm_backward(const T* dy, const T* y, const float* gamma, const float* beta, const float* rstd, i64 rows, i64 n, T* dx,
                        float* dgamma, float* dbeta, SideBuffer<const float> side = {});

template <class T, CpuSchedule S = kWidestSchedule>
void rmsnorm_backward(const T* dy, const T* y, const float* gamma, const float* rstd, i64 rows, i64 n, T* dx, float* dgamma,
                      SideBuffer<const float> side = {});

// ---------------------------------------------------------------------------------------------------------------------------------

#ifdef OUTGRAD_AVX2
template <class Isa>
using Vector = FloatPack<Isa, 1>;

template <class Isa>
OUTGRAD_HD Vector<Isa> fma_rn(const Vector<Isa>& a, const Vector<Isa>& b, const Vector<Isa>& c) {
  return {{Isa::fma(a.v[0], b.v[0], c.v[0])}};
}
template <class Isa>
OUTGRAD_HD Vector<Isa> add_rn(const Vector<Isa>& a, const Vector<Isa>& b) {
  return {{Isa::add(a.v[0], b.v[0])}};
}
template <class Isa>
OUTGRAD_HD Vector<Isa> sub_rn(const Vector<Isa>& a, const Vector<Isa>& b) {
  return {{Isa::sub(a.v[0], b.v[0])}};
}
template <class Isa>
OUTGRAD_HD Vector<Isa> mul_rn(const Vector<Isa>& a, const Vector<Isa>& b) {
  return {{Isa::mul(a.v[0], b.v[0])}};
}

template <class Isa>
struct LaneIo<Vector<Isa>> {
  using Value = Vector<Isa>;
  static constexpr int kWidth = Isa::kLanes;
  static OUTGRAD_HD Value splat(float value) { return {{Isa::splat(value)}}; }
  template <class T>
  static OUTGRAD_HD Value load(const T* source) {
    return {{Isa::load(source)}};
  }
  template <class T>
  static OUTGRAD_HD void store(T* target, const Value& value) {
    Isa::template store<false>(target, value.v[0]);
  }
  template <class Pick, int... Words>
  static OUTGRAD_HD Value shuffled(const Value& a, const Value& b, Pick, std::integer_sequence<int, Words...>) {
    return {{__builtin_shufflevector(a.v[0], b.v[0], Pick{}(Words)...)}};
  }
};
#endif

namespace detail {

// --- The tree in vectors ---------------------------------------------------------------------------------------------------------

template <CpuSchedule S>
struct ScheduleLane {
  static_assert(S.vector_bits == 0, "vector_bits is 0, 256 or 512, and no wider than the instruction set compiled for (-march)");
  static_assert(S.threads >= 0 && S.block_elements > 0, "threads is 0 (all) or positive, block_elements positive");
  using Lane = float;
};
#ifdef OUTGRAD_AVX2
template <CpuSchedule S>
  requires(S.vector_bits == 256)
struct ScheduleLane<S> {
  using Lane = Vector<Avx2>;
};
#endif
#ifdef OUTGRAD_AVX512
template <CpuSchedule S>
  requires(S.vector_bits == 512)
struct ScheduleLane<S> {
  using Lane = Vector<Avx512>;
};
#endif
template <CpuSchedule S>
using LaneOf = typename ScheduleLane<S>::Lane;

// Word i of the result is word Pick{}(i) of a and b side by side.
template <class Pick, class Lane>
OUTGRAD_HD Lane shuffled(const Lane& a, const Lane& b) {
  return LaneIo<Lane>::shuffled(a, b, Pick{}, std::make_integer_sequence<int, LaneIo<Lane>::kWidth>{});
}

// The first (Second: the second) four words of each chunk, a's chunks before b's.
template <int Width, bool Second>
struct HalfChunks {
  constexpr int operator()(int i) const { return i / 4 * kChunkTerms + i % 4 + (Second ? 4 : 0); }
};
// Of each 128-bit part of a, then of b: the first or second two words.
template <int Width, bool Second>
struct Pairs {
  constexpr int operator()(int i) const { return i / 4 * 4 + i % 2 + (i % 4 < 2 ? 0 : Width) + (Second ? 2 : 0); }
};
// Of each 128-bit part of a, then of b: the even or the odd words.
template <int Width, bool Second>
struct Alternate {
  constexpr int operator()(int i) const { return i / 4 * 4 + i % 2 * 2 + (i % 4 < 2 ? 0 : Width) + (Second ? 1 : 0); }
};

// Undoes, once per vector of chunk sums, the order that the folds below leave: word 4 p + i holds chunk (Width / 4) i + p.
template <int Width>
struct ChunkOrder {
  constexpr int operator()(int chunk) const { return chunk % (Width / 4) * 4 + chunk / (Width / 4); }
};

// The sums of kWidth whole chunks from element `first` on, in order. Vectors are paired so that the first fold of each chunk is one
// operation on whole vectors; two shuffles and an addition make each further fold.
template <class Lane, class Terms>
OUTGRAD_HD Tuple<Lane, Terms::kSums> whole_chunk_sums(const Terms& terms, i64 first) {
  constexpr int kWidth = LaneIo<Lane>::kWidth;
  Tuple<Lane, Terms::kSums> p[4];
  OUTGRAD_UNROLL
  for (int k = 0; k < 4; ++k) {
    const auto a = terms.template operands<Lane>(first + 2 * k * kWidth);
    const auto b = terms.template operands<Lane>(first + (2 * k + 1) * kWidth);
    Tuple<Lane, Terms::kOperands> low;
    Tuple<Lane, Terms::kOperands> high;
    OUTGRAD_UNROLL
    for (int o = 0; o < Terms::kOperands; ++o) {
      low.v[o] = shuffled<HalfChunks<kWidth, false>>(a.v[o], b.v[o]);
      high.v[o] = shuffled<HalfChunks<kWidth, true>>(a.v[o], b.v[o]);
    }
    p[k] = Terms::first_fold(low, high);
  }
  Tuple<Lane, Terms::kSums> sums;
  OUTGRAD_UNROLL
  for (int s = 0; s < Terms::kSums; ++s) {
    const Lane c = add_rn(shuffled<Pairs<kWidth, false>>(p[0].v[s], p[1].v[s]), shuffled<Pairs<kWidth, true>>(p[0].v[s], p[1].v[s]));
    const Lane d = add_rn(shuffled<Pairs<kWidth, false>>(p[2].v[s], p[3].v[s]), shuffled<Pairs<kWidth, true>>(p[2].v[s], p[3].v[s]));
    const Lane sum = add_rn(shuffled<Alternate<kWidth, false>>(c, d), shuffled<Alternate<kWidth, true>>(c, d));
    sums.v[s] = shuffled<ChunkOrder<kWidth>>(sum, sum);
  }
  return sums;
}

// Chunks [begin, end) of a step, one by one; `sums` is [kSums, kTreeLanes].
template <class Terms>
__attribute__((noinline)) void single_chunk_sums(const Terms& terms, i64 n, i64 step, int begin, int end, float* sums) {
  for (int lane = begin; lane < end; ++lane) {
    const Tuple<float, Terms::kSums> chunk = chunk_sum(terms, step * kTreeLanes + lane, n);
    for (int s = 0; s < Terms::kSums; ++s) sums[s * kTreeLanes + lane] = chunk.v[s];
  }
}

template <class Lane, class Terms>
OUTGRAD_HD void step_sums(const Terms& terms, i64 n, i64 step, float* sums) {
  constexpr int kWidth = LaneIo<Lane>::kWidth;
  int lane = 0;
  if constexpr (kWidth > 1) {
    const i64 left = n - step * kStepTerms;
    for (; lane < kTreeLanes && left >= (lane + kWidth) * kChunkTerms; lane += kWidth) {
      const auto chunks = whole_chunk_sums<Lane>(terms, step * kStepTerms + lane * kChunkTerms);
      OUTGRAD_UNROLL
      for (int s = 0; s < Terms::kSums; ++s) LaneIo<Lane>::store(sums + s * kTreeLanes + lane, chunks.v[s]);
    }
  }
  if (lane < kTreeLanes) single_chunk_sums(terms, n, step, lane, kTreeLanes, sums);
}

// sum[i] += term[i], i < kWords, a multiple of the widest vector.
template <class Lane, int kWords>
OUTGRAD_HD void add_words(float* sum, const float* term) {
  using Io = LaneIo<Lane>;
  for (int i = 0; i < kWords; i += Io::kWidth) Io::store(sum + i, add_rn(Io::load(sum + i), Io::load(term + i)));
}

// The tree's sums over one row of n elements. A group's steps are stored and then folded in place: all 16 KiB at most that this
// needs are at the function's own level, because g++ 12 lets arrays of inlined inner scopes share stack while both are in use.
template <class Lane, class Terms>
Tuple<float, Terms::kSums> row_sums(const Terms& terms, i64 n) {
  constexpr int kWords = Terms::kSums * kTreeLanes;
  alignas(64) float values[kGroupSteps * kWords];
  alignas(64) float sums[kWords];
  const i64 steps = row_steps(n);
  for (i64 group = 0; group < steps; group += kGroupSteps) {
    int count = static_cast<int>(std::min<i64>(kGroupSteps, steps - group));
    for (int q = 0; q < count; ++q) step_sums<Lane>(terms, n, group + q, values + q * kWords);
    for (int half = kGroupSteps / 2; half > 0; half /= 2) {
      for (int q = 0; q + half < count; ++q) add_words<Lane, kWords>(values + q * kWords, values + (q + half) * kWords);
      count = std::min(count, half);
    }
    if (group == 0) {
      std::copy(values, values + kWords, sums);
    } else {
      add_words<Lane, kWords>(sums, values);
    }
  }
  Tuple<float, Terms::kSums> result;
  for (int s = 0; s < Terms::kSums; ++s) result.v[s] = fold<kTreeLanes>(sums + s * kTreeLanes);
  return result;
}

// body(LaneIo<...>, j) over the columns [begin, end): whole vectors, then single elements.
template <class Lane, class Body>
void for_columns(i64 begin, i64 end, const Body& body) {
  i64 j = begin;
  for (; end - j >= LaneIo<Lane>::kWidth; j += LaneIo<Lane>::kWidth) body(LaneIo<Lane>{}, j);
  for (; j < end; ++j) body(LaneIo<float>{}, j);
}

// --- Contracts -------------------------------------------------------------------------------------------------------------------

template <class Float>
void require_shape(const char* function, i64 rows, i64 n, const SideBuffer<Float>& side) {
  const auto fail = [&](const std::string& why) { throw SpecError(std::string(function) + ": " + why); };
  if (rows < 0) fail("rows = " + std::to_string(rows) + " is negative");
  if (n < 1) fail("n = " + std::to_string(n) + ": a row needs at least one element");
  if (side.count < 0 || side.count > n) fail("side buffer: " + std::to_string(side.count) + " channels of " + std::to_string(n));
  for (i64 k = 0; k < side.count; ++k) {
    const i64 channel = side.channels[k];
    if (channel < (k > 0 ? i64{side.channels[k - 1]} + 1 : 0) || channel >= n) {
      fail("side buffer: channel " + std::to_string(channel) + ": channels must ascend within [0, " + std::to_string(n) + ")");
    }
  }
}

inline void require_reciprocals(const char* function, const float* gamma, i64 n, const SideBuffer<const float>& side) {
  if (!gamma) return;
  i64 next = 0;
  for (i64 j = 0; j < n; ++j) {
    if (next < side.count && side.channels[next] == j) {
      ++next;
    } else if (std::isinf(div_rn(1.0f, gamma[j]))) {
      throw SpecError(std::string(function) + ": channel " + std::to_string(j) + ": gamma = " + (gamma[j] == 0.0f ? "0" : "about 0") +
                      " has no finite reciprocal, so the output does not hold its x^: keep the channel in the side buffer");
    }
  }
}

// --- Forward ---------------------------------------------------------------------------------------------------------------------

template <Norm N, class T, CpuSchedule S>
void norm_forward(const char* function, const T* x, const float* gamma, const float* beta, i64 rows, i64 n, float eps, T* y, float* rstd,
             const SideBuffer<float>& side) {
  using Lane = LaneOf<S>;
  require_shape(function, rows, n, side);
  if (!(eps >= 0.0f)) throw SpecError(std::string(function) + ": eps must be at least 0");
  const i64 task_rows = std::max<i64>(S.block_elements / n, 1);
  parallel_for((rows + task_rows - 1) / task_rows, S.threads, [=](i64 task) {
    for (i64 row = task * task_rows; row < std::min(rows, (task + 1) * task_rows); ++row) {
      const T* x_row = x + row * n;
      T* y_row = y + row * n;
      const float mean = N == Norm::layer ? mean_of(row_sums<Lane>(MeanTerms<T>{x_row}, n).v[0], n) : 0.0f;
      const float r = rstd_of(row_sums<Lane>(VarianceTerms<T>{x_row, mean}, n).v[0], n, eps);
      rstd[row] = r;
      for (i64 k = 0; k < side.count; ++k) {
        side.x_hat[row * side.count + k] = normalised(widen(x_row[side.channels[k]]), mean, r);
      }
      for_columns<Lane>(0, n, [=](auto io, i64 j) {
        io.store(y_row + j, forward_output(x_row, gamma, beta, j, io.splat(mean), io.splat(r)));
      });
    }
  });
}

// --- Backward --------------------------------------------------------------------------------------------------------------------

// Tasks share the slots evenly. A power of two that depends on the shape alone, so the workspace does too; enough for the largest
// machines' cores, few enough that the tasks' partial sums stay small beside the tensors.
inline i64 backward_tasks(i64 slots) { return std::min<i64>(slots, 128); }

// A task's scratch: pending sums of complete subtrees of its slots, at most one per level and the one that grows, and one row of c.
inline i64 backward_task_words(i64 rows, i64 n) {
  const i64 slots = slot_count(rows, n);
  const i64 pending = std::bit_width(static_cast<u64>(slots / backward_tasks(slots)));
  return pending * 2 * n + n;
}

// One row: dx, and the row's terms added to dgamma_sum and dbeta_sum.
template <Norm N, class Lane, class T, class Centred>
void backward_row(const T* dy, const Centred& output, const NormColumns& columns, float rstd, i64 n, T* dx, float* dgamma_sum,
                  float* dbeta_sum) {
  const GradientTerms<N, T, Centred> terms{dy, columns.gamma, output};
  const NegatedMeans means = negated_means<N>(row_sums<Lane>(terms, n), n);
  for_columns<Lane>(0, n, [=](auto io, i64 j) {
    using Io = decltype(io);
    const auto d = Io::load(dy + j);
    const auto c = output.template centred<typename Io::Value>(j);
    Io::store(dgamma_sum + j, fma_rn(d, c, Io::load(dgamma_sum + j)));
    if constexpr (N == Norm::layer) Io::store(dbeta_sum + j, add_rn(Io::load(dbeta_sum + j), d));
    Io::store(dx + j, input_gradient(d, c, Io::load(columns.gamma + j), Io::load(columns.reciprocal + j), Io::splat(means.m1),
                                     Io::splat(means.m2), Io::splat(rstd)));
  });
}

template <Norm N, class T, CpuSchedule S>
void norm_backward(const char* function, const T* dy, const T* y, const float* gamma, const float* beta, const float* rstd, i64 rows,
              i64 n, T* dx, float* dgamma, float* dbeta, const SideBuffer<const float>& side, std::span<float> workspace) {
  using Lane = LaneOf<S>;
  require_shape(function, rows, n, side);
  if (static_cast<i64>(workspace.size()) < norm_backward_workspace(rows, n)) {
    throw SpecError(std::string(function) + ": the workspace holds " + std::to_string(workspace.size()) + " of the " +
                    std::to_string(norm_backward_workspace(rows, n)) + " words it needs");
  }
  const NormColumns columns = columns_at(workspace.data(), n);
  {
    const DefaultFloatEnvironment environment;
    require_reciprocals(function, gamma, n, side);
    i64 next = 0;
    for (i64 j = 0; j < n; ++j) {
      const bool is_side = next < side.count && side.channels[next] == j;
      prepare_column(columns, gamma, beta, j, is_side);
      next += is_side;
    }
  }

  const i64 slots = slot_count(rows, n);
  const i64 tasks = backward_tasks(slots);
  const i64 task_slots = slots / tasks;
  const i64 task_words = backward_task_words(rows, n);
  float* const scratch = workspace.data() + kColumnArrays * n;
  const auto add_columns = [=](float* sum, const float* term, i64 begin, i64 end) {
    for_columns<Lane>(begin, end, [=](auto io, i64 j) { io.store(sum + j, add_rn(io.load(sum + j), io.load(term + j))); });
  };

  parallel_for(tasks, S.threads, [=](i64 task) {
    float* const pending = scratch + task * task_words;  // a stack of [2, n]: dgamma's sums, dbeta's sums
    float* const staged = pending + task_words - n;
    float* top = pending;
    for (i64 k = 0; k < task_slots; ++k) {
      std::fill(top, top + 2 * n, 0.0f);
      const i64 slot = task * task_slots + k;
      for (i64 row = slot_begin(rows, slots, slot); row < slot_begin(rows, slots, slot + 1); ++row) {
        const CentredOutput<T> output{y + row * n, columns.beta};
        if (side.count == 0) {
          backward_row<N, Lane>(dy + row * n, output, columns, rstd[row], n, dx + row * n, top, top + n);
          continue;
        }
        for_columns<Lane>(0, n, [=](auto io, i64 j) { io.store(staged + j, output.template centred<typename decltype(io)::Value>(j)); });
        for (i64 s = 0; s < side.count; ++s) staged[side.channels[s]] = side.x_hat[row * side.count + s];
        backward_row<N, Lane>(dy + row * n, CentredStaged{staged, columns.weight}, columns, rstd[row], n, dx + row * n, top, top + n);
      }
      top += 2 * n;
      for (i64 complete = k + 1; complete % 2 == 0; complete /= 2) {  // two neighbours of equal size are complete: add them
        top -= 2 * n;
        add_columns(top - 2 * n, top, 0, 2 * n);
      }
    }
  });

  // The upper levels of the slots' tree, a block of columns to each task. 1024 columns: 4 KiB runs of every task's sums.
  constexpr i64 kBlock = 1024;
  parallel_for((n + kBlock - 1) / kBlock, S.threads, [=](i64 block) {
    const i64 begin = block * kBlock;
    const i64 end = std::min(n, begin + kBlock);
    for (i64 apart = 1; apart < tasks; apart *= 2) {
      for (i64 task = 0; task < tasks; task += 2 * apart) {
        float* const sum = scratch + task * task_words;
        const float* const term = sum + apart * task_words;
        add_columns(sum, term, begin, end);
        add_columns(sum, term, n + begin, n + end);
      }
    }
    for (i64 j = begin; j < end; ++j) {
      if (dgamma) dgamma[j] = div_rn(scratch[j], columns.divisor[j]);
      if (dbeta) dbeta[j] = scratch[n + j];
    }
  });
}

}  // namespace detail

template <class T, CpuSchedule S>
void layernorm_forward(const T* x, const float* gamma, const float* beta, i64 rows, i64 n, float eps, T* y, float* rstd,
                       SideBuffer<float> side) {
  detail::norm_forward<Norm::layer, T, S>("layernorm_forward", x, gamma, beta, rows, n, eps, y, rstd, side);
}

template <class T, CpuSchedule S>
void rmsnorm_forward(const T* x, const float* gamma, i64 rows, i64 n, float eps, T* y, float* rstd, SideBuffer<float> side) {
  detail::norm_forward<Norm::rms, T, S>("rmsnorm_forward", x, gamma, nullptr, rows, n, eps, y, rstd, side);
}

inline i64 norm_backward_workspace(i64 rows, i64 n) {
  return kColumnArrays * n + detail::backward_tasks(slot_count(rows, n)) * detail::backward_task_words(rows, n);
}

template <class T, CpuSchedule S>
void layernorm_backward(const T* dy, const T* y, const float* gamma, const float* beta, const float* rstd, i64 rows, i64 n, T* dx,
                        float* dgamma, float* dbeta, SideBuffer<const float> side, std::span<float> workspace) {
  detail::norm_backward<Norm::layer, T, S>("layernorm_backward", dy, y, gamma, beta, rstd, rows, n, dx, dgamma, dbeta, side, workspace);
}

template <class T, CpuSchedule S>
void rmsnorm_backward(const T* dy, const T* y, const float* gamma, const float* rstd, i64 rows, i64 n, T* dx, float* dgamma,
                      SideBuffer<const float> side, std::span<float> workspace) {
  detail::norm_backward<Norm::rms, T, S>("rmsnorm_backward", dy, y, gamma, nullptr, rstd, rows, n, dx, dgamma, nullptr, side, workspace);
}

namespace detail {

// Words that need no initialisation; of an impossible shape none, which the core function then reports.
class BackwardWorkspace {
 public:
  BackwardWorkspace(i64 rows, i64 n)
      : size_(rows < 0 || n < 1 ? 0 : static_cast<size_t>(norm_backward_workspace(rows, n))),
        words_(std::make_unique_for_overwrite<float[]>(size_)) {}
  std::span<float> words() const { return {words_.get(), size_}; }

 private:
  size_t size_;
  std::unique_ptr<float[]> words_;
};

}  // namespace detail

template <class T, CpuSchedule S>
void layernorm_backward(const T* dy, const T* y, const float* gamma, const float* beta, const float* rstd, i64 rows, i64 n, T* dx,
                        float* dgamma, float* dbeta, SideBuffer<const float> side) {
  const detail::BackwardWorkspace workspace(rows, n);
  layernorm_backward<T, S>(dy, y, gamma, beta, rstd, rows, n, dx, dgamma, dbeta, side, workspace.words());
}

template <class T, CpuSchedule S>
void rmsnorm_backward(const T* dy, const T* y, const float* gamma, const float* rstd, i64 rows, i64 n, T* dx, float* dgamma,
                      SideBuffer<const float> side) {
  const detail::BackwardWorkspace workspace(rows, n);
  rmsnorm_backward<T, S>(dy, y, gamma, rstd, rows, n, dx, dgamma, side, workspace.words());
}

}  // namespace outgrad::kernels
