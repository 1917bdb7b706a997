// The gated pair y = f(a) b of gated MLPs over arrays on the CPU, forward and backward in one pass each
// (kernels/gate.h). Every schedule gives the same bits.
//
// a, b and their gradients are matrices whose rows lie `stride` elements apart, so that a and b may be the
// halves of a packed matrix's rows; y and dy are dense. Pointers need only be aligned to their element.
// Nothing is allocated; in vectors of 256 bits the first call for a gate with a 16-bit T and 2^16 elements or
// more fills a table of static storage, 512 KiB, which later ones read.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <type_traits>

#include "kernels/gate.h"
#include "kernels/host/elementwise.h"
#include "kernels/host/stores.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

// [rows, n], rows of a, b, da and db `stride` elements apart, stride >= n.
struct GatedShape {
  i64 rows, n, stride;
};

// Sets y = f(a) b. y may be a or b, if these are dense.
template <class Gate, class T, CpuSchedule S>
void gated_forward(const T* a, const T* b, const GatedShape& shape, T* y);

// Sets da = dy b f'(a), db = dy f(a) and, unless y is null, y as the forward did. da may be a, db may be b,
// and y may be dy.
template <class Gate, class T, CpuSchedule S>
void gated_backward(const T* dy, const T* a, const T* b, const GatedShape& shape, T* da, T* db, T* y);

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

// Elements whose f and f' are made before anything is multiplied by them: these stay in the first-level
// cache, and the loops that evaluate a gate, which are long, are there once for each kind of them.
inline constexpr int kGateBlock = 1024;
struct GateBlock {
  alignas(64) float f[kGateBlock], slope[kGateBlock];
};

// What a gate evaluates on the host: both units are run as cubic ones.
template <class Kind>
OUTGRAD_HD const Kind& host_kind(const Kind& kind) {
  return kind;
}
OUTGRAD_HD gates::CubicUnit host_kind(const gates::LinearUnit& kind) { return kind; }

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

// f and f' of `count` a's, at most a block. What is behind the last one is written, too.
template <class Kind, class T, CpuSchedule S>
__attribute__((noinline)) void evaluate_block(const Kind& kind, const T* a, i64 count, GateBlock& to) {
  if constexpr (S.vector_bits > 0) {
    // Four vectors hide the latency of the exponential's chain; tables take the registers of two.
    constexpr LanesOf<S, gates::kReadsTables<Kind> ? 2 : 4> kOps{};
    static_assert(kGateBlock % kOps.kElements == 0);
    for (i64 k = 0; k < count; k += kOps.kElements) {
      const T* from = a + k;
      T last[kOps.kElements];
      if (count - k < kOps.kElements) {
        std::fill(std::copy_n(from, count - k, last), last + kOps.kElements, T{});
        from = last;
      }
      const auto at = evaluate_gate(kOps, kind, gate_tables<Kind, true>(), kOps.load(from));
      store_value<false>(kOps, to.f + k, at.f);
      store_value<false>(kOps, to.slope + k, at.slope);
    }
  } else {
    for (i64 k = 0; k < count; ++k) {
      const GateValue<float> at = evaluate_gate(FloatOps{}, kind, gate_tables<Kind, false>(), widen(a[k]));
      to.f[k] = at.f, to.slope[k] = at.slope;
    }
  }
}

// The entry of an x of 16 bits in a table of all of them.
template <class Gate>
struct GateEntry {
  template <class T>
  GateValue<float> operator()(T a) const {
    return evaluate_gate(FloatOps{}, Gate::kind(), gate_tables<typename Gate::Kind, false>(), widen(a));
  }
};

// f and, with kSlopes, f' of `count` a's, at most a block. by_code: those of all numbers of T, or null.
template <class Gate, class T, CpuSchedule S, bool kSlopes>
void gate_values(const T* a, i64 count, const GateValue<float>* by_code, GateBlock& to) {
  if constexpr (sizeof(T) == 2) {
    if (by_code != nullptr) {
      for (i64 k = 0; k < count; ++k) {
        const GateValue<float>& at = by_code[a[k].bits];
        to.f[k] = at.f;
        if constexpr (kSlopes) to.slope[k] = at.slope;
      }
      return;
    }
  }
  const auto kind = host_kind(Gate::kind());
  evaluate_block<std::remove_cv_t<decltype(kind)>, T, kLoopOf<S>>(kind, a, count, to);
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

template <class T, CpuSchedule S, bool kStreaming>
void multiply_block(const GateBlock& of, const T* b, T* y, i64 count) {
  over_products<S>(count, [&](const auto& ops, i64 i) __attribute__((always_inline)) {
    store_value<kStreaming>(ops, y + i, ops.mul(ops.load(of.f + i), ops.load(b + i)));
  });
}

template <class T, CpuSchedule S, bool kStreaming>
void multiply_gradients(const GateBlock& of, const T* dy, const T* b, T* da, T* db, T* y, i64 count) {
  over_products<S>(count, [&](const auto& ops, i64 i) __attribute__((always_inline)) {
    const auto f = ops.load(of.f + i), factor = ops.load(b + i);
    const auto gradients = gate_gradients(ops, {f, ops.load(of.slope + i)}, ops.load(dy + i), factor);
    store_value<kStreaming>(ops, da + i, gradients.da);
    store_value<kStreaming>(ops, db + i, gradients.db);
    if (y != nullptr) store_value<kStreaming>(ops, y + i, ops.mul(f, factor));
  });
}

// AVX2 looks a 16-bit a up in a table of all of them where there are many: two loads an element take less
// than an exponential and a division.
template <class Gate, class T, CpuSchedule S>
const GateValue<float>* gate_by_code([[maybe_unused]] i64 elements) {
  if constexpr (kGoesByCode<T, S>) {
    if (elements >= kCodes) return table_by_code<T>(GateEntry<Gate>{});
  }
  return nullptr;
}

// part(values, at, dense, count) for runs of at most a block, with f and, with kSlopes, f' of their a.
template <class Gate, class T, CpuSchedule S, bool kStreaming, bool kSlopes, class Part>
void over_gate_blocks(const T* a, const GatedShape& shape, const Part& part) {
  const GateValue<float>* const by_code = gate_by_code<Gate, T, S>(shape.rows * shape.n);
  over_gated<S>(shape, [=](i64 at, i64 dense, i64 count) {
    GateBlock values;
    for (i64 k = 0; k < count; k += kGateBlock) {
      const i64 own = std::min<i64>(count - k, kGateBlock);
      gate_values<Gate, T, S, kSlopes>(a + at + k, own, by_code, values);
      part(values, at + k, dense + k, own);
    }
    end_streaming<kStreaming>();
  });
}

}  // namespace detail

template <class Gate, class T, CpuSchedule S>
void gated_forward(const T* a, const T* b, const GatedShape& shape, T* y) {
  static_assert(detail::schedule_holds<S>());
  const auto all = [&]<bool kStreaming>() {
    detail::over_gate_blocks<Gate, T, S, kStreaming, false>(
        a, shape, [=](const detail::GateBlock& values, i64 at, i64 dense, i64 count) {
          detail::multiply_block<T, detail::kLoopOf<S>, kStreaming>(values, b + at, y + dense, count);
        });
  };
  if constexpr (S.streaming_stores && S.vector_bits > 0) {
    if (detail::gated_streams<S, T>(shape, {y})) return all.template operator()<true>();
  }
  all.template operator()<false>();
}

template <class Gate, class T, CpuSchedule S>
void gated_backward(const T* dy, const T* a, const T* b, const GatedShape& shape, T* da, T* db, T* y) {
  static_assert(detail::schedule_holds<S>());
  const auto all = [&]<bool kStreaming>() {
    detail::over_gate_blocks<Gate, T, S, kStreaming, true>(
        a, shape, [=](const detail::GateBlock& values, i64 at, i64 dense, i64 count) {
          detail::multiply_gradients<T, detail::kLoopOf<S>, kStreaming>(
              values, dy + dense, b + at, da + at, db + at, y == nullptr ? nullptr : y + dense, count);
        });
  };
  if constexpr (S.streaming_stores && S.vector_bits > 0) {
    if (detail::gated_streams<S, T>(shape, {da, db, y})) return all.template operator()<true>();
  }
  all.template operator()<false>();
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
