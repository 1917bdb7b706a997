// The gated pair y = f(a) b of gated MLPs over arrays on the CPU, forward and backward in one pass each
// (kernels/gate.h). Every schedule gives the same bits.
//
// a, b and their gradients are matrices whose rows lie `stride` elements apart, so that a and b may be the
// halves of a packed matrix's rows; y and dy are dense. Pointers need only be aligned to their element.
// Nothing is allocated; in vectors of 256 bits the first forward of a gate with a 16-bit T and 2^16 elements
// or more fills a table of static storage, 256 KiB, which later ones read, and so does GELU's first backward,
// 512 KiB.
#pragma once

#include <algorithm>
#include <atomic>
#include <initializer_list>
#include <type_traits>

#include "kernels/gate.h"
#include "kernels/host/elementwise.h"
#include "kernels/host/stores.h"
#include "kernels/host/tensor_codes.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

// [rows, n], rows of a, b, da and db `stride` elements apart, stride >= n.
struct GatedShape {
  i64 rows, n, stride;
};

// What is kept of a and b: codes of 8 bits (kernels/tensor_codes.h), dense, with their scales. In blocks,
// rows that lie apart are whole blocks.
template <class T>
struct GatedCodes {
  const TensorFormat<T>* format;
  void *codes_of_a, *scales_of_a, *codes_of_b, *scales_of_b;
};

// Sets y = f(a) b, and writes what is to be kept, if that is not null. y may be a or b, if these are dense
// and nothing else is kept of them.
template <class Gate, class T, CpuSchedule S>
void gated_forward(const T* a, const T* b, const GatedShape& shape, T* y,
                   const GatedCodes<T>* kept = nullptr);

// Sets da = dy b f'(a), db = dy f(a) and, unless y is null, y as the forward did. da may be a, db may be b,
// and y may be dy. From what was kept, if that is not null: a and b are then what it stands for, in T.
template <class Gate, class T, CpuSchedule S>
void gated_backward(const T* dy, const T* a, const T* b, const GatedShape& shape, T* da, T* db, T* y,
                    const GatedCodes<T>* kept = nullptr);

// -------------------------------------------------------------------------------------------------

namespace detail {

// part(at, dense, count) for runs of count neighbours, which begin `at` in a matrix of rows apart and
// `dense` in one without gaps.
template <CpuSchedule S, class Part>
void over_gated(const GatedShape& shape, const Part& part) {
  const bool is_dense = shape.stride == shape.n;
  const i64 elements = shape.rows * shape.n, n = is_dense ? elements : shape.n;
  over_blocks<S>(elements, [&](i64 begin, i64 end) {
    while (begin < end) {
      const i64 row = begin / n, count = std::min(end, (row + 1) * n) - begin;
      part(row * shape.stride + (begin - row * n), begin, count);
      begin += count;
    }
  });
}

// Whether all that is written may go past the cache: it is large, and every run of it begins on a line.
template <CpuSchedule S, class T>
bool gated_streams(const GatedShape& shape, std::initializer_list<const T*> outputs) {
  constexpr i64 kLine = 64 / sizeof(T);
  return (shape.stride == shape.n || (shape.stride % kLine == 0 && shape.n % kLine == 0)) &&
         std::ranges::all_of(outputs, [&](const T* output) {
           return output == nullptr || streams<S>(output, shape.rows * shape.n);
         });
}

// The tables of a kind, as scalar code and as vectors read them.
template <class Kind, bool kVector>
OUTGRAD_HD const auto& gate_tables() {
  if constexpr (!gates::kReadsTables<Kind>) {
    static constexpr NoTail kNone{};
    return kNone;
  } else if constexpr (kVector) {
    return kForwardColumns<typename Kind::Forward>;
  } else {
    return kForwardTables<typename Kind::Forward>;
  }
}

// Elements that go through the steps of a gate together: what the first step makes of their a stays in the
// first-level cache. Of those from k on set(ops, k, a) makes it, and value(ops, k, a) is f and f' from it.
inline constexpr int kGateBlock = 1024;

// Of a gate that has a sigma: exp(-u).
template <class Gate>
struct ExponentBlock {
  alignas(64) float e[kGateBlock];

  template <class Ops>
  OUTGRAD_HD void set(const Ops& ops, i64 k, const typename Ops::Value& a) {
    store_value<false>(ops, e + k, gate_exponential(ops, Gate::kind(), a));
  }
  template <class Ops>
  OUTGRAD_HD ValueAndSlope<typename Ops::Value> value(const Ops& ops, i64 k,
                                                      const typename Ops::Value& a) const {
    return gate_value(ops, Gate::kind(), a, ops.load(e + k));
  }
};

// Of any other, and where a table has them: f and, with kSlopes, f'.
template <class Gate, bool kSlopes>
struct ValueBlock {
  alignas(64) float f[kGateBlock], slope[kSlopes ? kGateBlock : 1];

  template <class Ops>
  OUTGRAD_HD void set(const Ops& ops, i64 k, const typename Ops::Value& a) {
    constexpr bool kVector = !std::is_same_v<Ops, FloatOps>;
    const auto at = evaluate_gate(ops, Gate::kind(), gate_tables<typename Gate::Kind, kVector>(), a);
    store_value<false>(ops, f + k, at.f);
    if constexpr (kSlopes) store_value<false>(ops, slope + k, at.slope);
  }
  template <class Ops>
  OUTGRAD_HD ValueAndSlope<typename Ops::Value> value(const Ops& ops, i64 k,
                                                      const typename Ops::Value&) const {
    return {ops.load(f + k), ops.load(kSlopes ? slope + k : f + k)};
  }
};

// Of `count` a's, at most a block. What is behind the last one is set, too.
template <CpuSchedule S, class Block, class T>
__attribute__((noinline)) void set_block(const T* a, i64 count, Block& to) {
  if constexpr (S.vector_bits > 0) {
    // Vectors side by side hide a chain's latency; tables take the registers of two.
    constexpr LanesOf<S, requires { to.slope; } ? 2 : 4> kOps{};
    static_assert(kGateBlock % kOps.kElements == 0);
    for (i64 k = 0; k < count; k += kOps.kElements) {
      const T* from = a + k;
      T last[kOps.kElements];
      if (count - k < kOps.kElements) {
        std::fill(std::copy_n(from, count - k, last), last + kOps.kElements, T{});
        from = last;
      }
      to.set(kOps, k, kOps.load(from));
    }
  } else {
    for (i64 k = 0; k < count; ++k) to.set(FloatOps{}, k, widen(a[k]));
  }
}

// The entry of an x of 16 bits in a table of all of them.
template <class Gate, bool kSlopes>
struct GateEntry {
  template <class T>
  auto operator()(T a) const {
    const ValueAndSlope<float> at =
        evaluate_gate(FloatOps{}, Gate::kind(), gate_tables<typename Gate::Kind, false>(), widen(a));
    if constexpr (kSlopes) {
      return at;
    } else {
      return at.f;
    }
  }
};

// use<Block>(set), where set(a, count, block) sets a block. AVX2 looks a 16-bit a up in a table of all of
// them where there are many and that takes less: for f alone, and for f and f' where both are polynomials.
template <class Gate, class T, CpuSchedule S, bool kSlopes, class Use>
void with_gate_blocks([[maybe_unused]] i64 elements, const Use& use) {
  constexpr bool kHasSigma = !gates::kReadsTables<typename Gate::Kind>;
  if constexpr (kGoesByCode<T, S> && !(kHasSigma && kSlopes)) {
    if (elements >= kCodes) {
      const auto* const table = table_by_code<T>(GateEntry<Gate, kSlopes>{});
      return use.template operator()<ValueBlock<Gate, kSlopes>>([=](const T* a, i64 count, auto& to) {
        for (i64 k = 0; k < count; ++k) {
          if constexpr (kSlopes) {
            const ValueAndSlope<float>& at = table[a[k].bits];
            to.f[k] = at.f, to.slope[k] = at.slope;
          } else {
            to.f[k] = table[a[k].bits];
          }
        }
      });
    }
  }
  using Block = std::conditional_t<kHasSigma, ExponentBlock<Gate>, ValueBlock<Gate, kSlopes>>;
  use.template operator()<Block>(set_block<kLoopOf<S>, Block, T>);
}

// body(ops, i) for i < count, as many at once as ops handles.
template <CpuSchedule S, class Body>
OUTGRAD_HD void over_products(i64 count, const Body& body) {
  i64 i = 0;
  if constexpr (S.vector_bits > 0) {
    constexpr LanesOf<S, 2> kPair{};
    for (; i + kPair.kElements <= count; i += kPair.kElements) body(kPair, i);
  }
  for (; i < count; ++i) body(FloatOps{}, i);
}

// What the products read after the elements from i on. Of a, what lies a block further on: the next block's
// first step reads it before any product does.
template <bool kStreaming, class Ops, class T, class... Others>
OUTGRAD_HD void fetch_next(const Ops&, i64 i, const T* a, const Others*... others) {
  if constexpr (!std::is_same_v<Ops, FloatOps>) {
    constexpr i64 kBlockBytes = kGateBlock * sizeof(T);
    fetch_ahead<kStreaming, kBlockBytes>(a + i, Ops::kElements);
    (fetch_ahead<kStreaming>(others + i, Ops::kElements), ...);
  }
}

template <CpuSchedule S, bool kStreaming, class Block, class T>
void multiply_block(const Block& of, const T* a, const T* b, T* y, i64 count) {
  over_products<S>(count, [&](const auto& ops, i64 i) __attribute__((always_inline)) {
    fetch_next<kStreaming>(ops, i, a, b);
    store_value<kStreaming>(ops, y + i, ops.mul(of.value(ops, i, ops.load(a + i)).f, ops.load(b + i)));
  });
}

template <CpuSchedule S, bool kStreaming, class Block, class T>
void multiply_gradients(const Block& of, const T* dy, const T* a, const T* b, T* da, T* db, T* y, i64 count) {
  over_products<S>(count, [&](const auto& ops, i64 i) __attribute__((always_inline)) {
    fetch_next<kStreaming>(ops, i, a, b, dy);
    const auto at = of.value(ops, i, ops.load(a + i));
    const auto factor = ops.load(b + i);
    const auto gradients = gate_gradients(ops, at, ops.load(dy + i), factor);
    store_value<kStreaming>(ops, da + i, gradients.da);
    store_value<kStreaming>(ops, db + i, gradients.db);
    if (y != nullptr) store_value<kStreaming>(ops, y + i, ops.mul(at.f, factor));
  });
}

// Of a block: where its elements of a and b are, or what codes of them stand for.
template <class T>
struct GatedFactors {
  const T *a, *b;
  alignas(64) T decoded[2][kGateBlock];

  void decode(const GatedCodes<T>& kept, i64 dense, i64 count) {
    kept.format->decode(kept.codes_of_a, kept.scales_of_a, dense, decoded[0], count);
    kept.format->decode(kept.codes_of_b, kept.scales_of_b, dense, decoded[1], count);
    a = decoded[0], b = decoded[1];
  }
};

// part(block, factors, at, dense, count) for runs of at most a block, which is set of their a.
template <class Gate, class T, CpuSchedule S, bool kStreaming, bool kSlopes, class Part>
void over_gate_blocks(const T* a, const T* b, const GatedCodes<T>* kept, const GatedShape& shape,
                      const Part& part) {
  with_gate_blocks<Gate, T, S, kSlopes>(shape.rows * shape.n, [&]<class Block>(const auto& set) {
    over_gated<S>(shape, [&](i64 at, i64 dense, i64 count) {
      Block block;
      GatedFactors<T> factors;
      for (i64 k = 0; k < count; k += kGateBlock) {
        const i64 own = std::min<i64>(count - k, kGateBlock);
        if (kept != nullptr) {
          factors.decode(*kept, dense + k, own);
        } else {
          factors.a = a + at + k, factors.b = b + at + k;
        }
        set(factors.a, own, block);
        part(block, factors, at + k, dense + k, own);
      }
      end_streaming<kStreaming>();
    });
  });
}

// The scales of a and b, where they have one each.
template <CpuSchedule S, class T>
void scale_gated(const T* a, const T* b, const GatedShape& shape, const GatedCodes<T>& kept) {
  if (kept.format->scale == nullptr) return;
  std::atomic<u32> of_a = 0, of_b = 0;
  over_gated<S>(shape, [&](i64 at, i64, i64 count) {
    raise_to(of_a, largest_magnitude(a + at, count));
    raise_to(of_b, largest_magnitude(b + at, count));
  });
  const DefaultFloatEnvironment environment;
  *static_cast<float*>(kept.scales_of_a) = kept.format->scale(of_a, kLeastOfTensors);
  *static_cast<float*>(kept.scales_of_b) = kept.format->scale(of_b, kLeastOfTensors);
}

}  // namespace detail

template <class Gate, class T, CpuSchedule S>
void gated_forward(const T* a, const T* b, const GatedShape& shape, T* y, const GatedCodes<T>* kept) {
  static_assert(detail::schedule_holds<S>());
  if (kept != nullptr) detail::scale_gated<S>(a, b, shape, *kept);
  const auto all = [&]<bool kStreaming>() {
    detail::over_gate_blocks<Gate, T, S, kStreaming, false>(
        a, b, nullptr, shape, [=](const auto& block, const auto& of, i64, i64 dense, i64 count) {
          if (kept != nullptr) {
            kept->format->encode(of.a, kept->codes_of_a, kept->scales_of_a, dense, count);
            kept->format->encode(of.b, kept->codes_of_b, kept->scales_of_b, dense, count);
          }
          detail::multiply_block<detail::kLoopOf<S>, kStreaming>(block, of.a, of.b, y + dense, count);
        });
  };
  if constexpr (S.streaming_stores && S.vector_bits > 0) {
    if (detail::gated_streams<S, T>(shape, {y})) return all.template operator()<true>();
  }
  all.template operator()<false>();
}

template <class Gate, class T, CpuSchedule S>
void gated_backward(const T* dy, const T* a, const T* b, const GatedShape& shape, T* da, T* db, T* y,
                    const GatedCodes<T>* kept) {
  static_assert(detail::schedule_holds<S>());
  const auto all = [&]<bool kStreaming>() {
    detail::over_gate_blocks<Gate, T, S, kStreaming, true>(
        a, b, kept, shape, [=](const auto& block, const auto& of, i64 at, i64 dense, i64 count) {
          detail::multiply_gradients<detail::kLoopOf<S>, kStreaming>(
              block, dy + dense, of.a, of.b, da + at, db + at, y == nullptr ? nullptr : y + dense, count);
        });
  };
  if constexpr (S.streaming_stores && S.vector_bits > 0) {
    if (detail::gated_streams<S, T>(shape, {da, db, y})) return all.template operator()<true>();
  }
  all.template operator()<false>();
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
