// The gated pair z = f(a) b that keeps z, b and a bit over arrays on the CPU (kernels/product.h), forward and
// backward in one pass each. Every schedule gives the same bits.
//
// a, b and their gradients are matrices whose rows lie apart, as in kernels/host/gated.h; z, dz and the slots
// are dense. Pointers need only be aligned to their element, the mask to its words. Nothing is allocated; the
// first forward of many elements fills the gate's table of kernels/host/gated.h.
#pragma once

#include <algorithm>

#include "kernels/host/gated.h"
#include "kernels/product.h"
#include "kernels/product_fits.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

// Sets z = f(a) b, the slots, which hold b or what stands in its place, and bit i % 32 of mask[i / 32] to
// [a >= x*] of element i; the bits of the last word beyond the last element to 0. z may be a, and a slot may
// be b, if these are dense.
template <class Gate, class T, CpuSchedule S>
void product_forward(const T* a, const T* b, const GatedShape& shape, T* z, T* slot, u32* mask);

// Sets da = dz b f'(a), f' by the fit, and db = dz z / b, from what the forward kept. da may be dz, and db
// may be the slots, if these are dense.
template <class Gate, class T, CpuSchedule S>
void product_backward(const T* dz, const T* z, const T* slot, const u32* mask, const GatedShape& shape, T* da,
                      T* db);

// -------------------------------------------------------------------------------------------------

namespace detail {

// A block of neighbours of a dense matrix in one whose rows lie apart: where it is, if one row has all of it,
// or else a copy.
template <class T>
class RowsBlock {
 public:
  RowsBlock(T* matrix, const GatedShape& shape, i64 first, i64 count)
      : matrix_(matrix), shape_(shape), first_(first), count_(count),
        in_place_(shape.stride == shape.n || first % shape.n + count <= shape.n) {}

  const T* read() {
    if (!in_place_) over_runs([&](T* from, i64 done, i64 run) { std::copy_n(from, run, copy_ + done); });
    return in_place_ ? begin() : copy_;
  }
  // What is written there is put where it belongs by end().
  T* write() { return in_place_ ? begin() : copy_; }
  void end() {
    if (!in_place_) over_runs([&](T* to, i64 done, i64 run) { std::copy_n(copy_ + done, run, to); });
  }

 private:
  T* begin() const { return at(first_); }
  T* at(i64 element) const { return matrix_ + element / shape_.n * shape_.stride + element % shape_.n; }
  template <class Part>
  void over_runs(const Part& part) {
    for (i64 done = 0; done < count_;) {
      const i64 run = std::min(count_ - done, shape_.n - (first_ + done) % shape_.n);
      part(at(first_ + done), done, run);
      done += run;
    }
  }

  T* matrix_;
  const GatedShape& shape_;
  i64 first_, count_;
  bool in_place_;
  std::remove_const_t<T> copy_[kGateBlock];
};

// part(first, count) for the blocks of the dense matrix.
template <CpuSchedule S, bool kStreaming, class Part>
void over_dense_blocks(const GatedShape& shape, const Part& part) {
  over_blocks<S>(shape.rows * shape.n, [&](i64 begin, i64 end) {
    for (i64 k = begin; k < end; k += kGateBlock) part(k, std::min<i64>(end - k, kGateBlock));
    end_streaming<kStreaming>();
  });
}

// all<streaming>(), where what is written goes past the cache if it is large.
template <CpuSchedule S, class T, class All>
void streamed_or_not(const GatedShape& shape, std::initializer_list<const T*> outputs, const All& all) {
  if constexpr (S.streaming_stores && S.vector_bits > 0) {
    if (shape.stride == shape.n && gated_streams<S, T>(shape, outputs))
      return all.template operator()<true>();
  }
  all.template operator()<false>();
}

// Bits of the elements from i on. The mask's are 0 before.
template <class Ops>
OUTGRAD_HD void set_bits(const Ops& ops, u8* mask, i64 i, const typename Ops::Mask& m) {
  if constexpr (std::is_same_v<Ops, FloatOps>) {
    mask[i / 8] = static_cast<u8>(mask[i / 8] | static_cast<u32>(m) << i % 8);
  } else {
    ops.store_mask(mask + i / 8, m);
  }
}
template <class Ops>
OUTGRAD_HD typename Ops::Mask bits_at(const Ops& ops, const u8* mask, i64 i) {
  if constexpr (std::is_same_v<Ops, FloatOps>) {
    return (mask[i / 8] >> i % 8 & 1) != 0;
  } else {
    return ops.load_mask(mask + i / 8);
  }
}

template <class Gate, CpuSchedule S, bool kStreaming, class Block, class T>
void keep_products(const Block& of, const T* a, const T* b, i64 count, T* z, T* slot, u8* mask) {
  // No product from here on is rounded to 0.
  constexpr float kNormal = std::is_same_v<T, F16> ? 0x1p-14f : 0x1p-126f;
  std::fill_n(mask, (count + 31) / 32 * i64{sizeof(u32)}, u8{0});
  over_products<S>(count, [&](const auto& ops, i64 i) __attribute__((always_inline)) {
    fetch_next<kStreaming>(ops, i, a, b);
    using Value = typename std::remove_cvref_t<decltype(ops)>::Value;
    const Value x = ops.load(a + i), factor = ops.load(b + i), f = of.value(ops, i, x).f,
                product = ops.mul(f, factor);
    KeptProduct<Value> kept{product, factor};
    if (ops.any(ops.less(ops.signed_as(product, ops.constant(1.0f)), ops.constant(kNormal)))) {
      alignas(64) T rounded[2][sizeof(Value) / sizeof(float)];
      store_value<false>(ops, rounded[0], product);
      store_value<false>(ops, rounded[1], f);
      kept = keep_product(ops, ops.load(&rounded[0][0]), ops.load(&rounded[1][0]), factor);
    }
    set_bits(ops, mask, i, ops.less_equal(ops.constant(ProductFit<Gate, T>::Forward::kXStar), x));
    store_value<kStreaming>(ops, z + i, kept.z);
    store_value<kStreaming>(ops, slot + i, kept.slot);
  });
}

template <class Fit, class T, CpuSchedule S, bool kStreaming>
void restore_gradients(const T* dz, const T* z, const T* slot, const u8* mask, i64 count, T* da, T* db) {
  over_products<S>(count, [&](const auto& ops, i64 i) __attribute__((always_inline)) {
    fetch_next<kStreaming>(ops, i, z, slot, dz);
    const auto from = [&](const auto& table) __attribute__((always_inline)) {
      return product_gradients(ops, Fit{}, table, ops.load(dz + i), ops.load(z + i), ops.load(slot + i),
                               bits_at(ops, mask, i));
    };
    const auto gradients = [&]() __attribute__((always_inline)) {
      if constexpr (std::is_same_v<std::remove_cvref_t<decltype(ops)>, FloatOps>) {
        return from(kRowTable<Fit>);
      } else {
        return from(kVectorTable<Fit>);
      }
    }();
    store_value<kStreaming>(ops, da + i, gradients.da);
    store_value<kStreaming>(ops, db + i, gradients.db);
  });
}

}  // namespace detail

template <class Gate, class T, CpuSchedule S>
void product_forward(const T* a, const T* b, const GatedShape& shape, T* z, T* slot, u32* mask) {
  static_assert(detail::schedule_holds<S>());
  const auto bytes = reinterpret_cast<u8*>(mask);
  detail::with_gate_blocks<Gate, T, S, false>(shape.rows * shape.n, [&]<class Block>(const auto& set) {
    detail::streamed_or_not<S, T>(shape, {z, slot}, [&]<bool kStreaming>() {
      detail::over_dense_blocks<S, kStreaming>(shape, [&](i64 first, i64 count) {
        detail::RowsBlock<const T> rows_a(a, shape, first, count), rows_b(b, shape, first, count);
        const T *const own_a = rows_a.read(), *const own_b = rows_b.read();
        Block block;
        set(own_a, count, block);
        detail::keep_products<Gate, detail::kLoopOf<S>, kStreaming>(block, own_a, own_b, count, z + first,
                                                                    slot + first, bytes + first / 8);
      });
    });
  });
}

template <class Gate, class T, CpuSchedule S>
void product_backward(const T* dz, const T* z, const T* slot, const u32* mask, const GatedShape& shape, T* da,
                      T* db) {
  static_assert(detail::schedule_holds<S>());
  const auto bytes = reinterpret_cast<const u8*>(mask);
  detail::streamed_or_not<S, T>(shape, {da, db}, [&]<bool kStreaming>() {
    detail::over_dense_blocks<S, kStreaming>(shape, [&](i64 first, i64 count) {
      using Fit = typename ProductFit<Gate, T>::Type;
      detail::RowsBlock<T> to_a(da, shape, first, count), to_b(db, shape, first, count);
      detail::restore_gradients<Fit, T, detail::kLoopOf<S>, kStreaming>(
          dz + first, z + first, slot + first, bytes + first / 8, count, to_a.write(), to_b.write());
      to_a.end(), to_b.end();
    });
  });
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
