// Sums over the rows of a matrix on the host, one per column: the slots of kernels/reduce.h, shared among
// threads.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "kernels/host/errors.h"
#include "kernels/host/parallel.h"
#include "kernels/host/refusal.h"
#include "kernels/portable.h"
#include "kernels/reduce.h"
#include "kernels/simd.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {
namespace detail {

inline constexpr i64 kLineWords = 16;

// The distance between arrays of n words of scratch. It is whole cache lines, because a vector that crosses
// two lines costs twice.
inline i64 column_stride(i64 n) { return (n + kLineWords - 1) / kLineWords * kLineWords; }

// The number of words from `words` to the next cache line, less than kLineWords.
inline i64 line_offset(const float* words) {
  return static_cast<i64>(
      (kLineWords - reinterpret_cast<std::uintptr_t>(words) / sizeof(float) % kLineWords) % kLineWords);
}

// Tasks share the slots evenly. Their greatest number is a power of two that depends only on the shape, so
// that the scratch, which has room for them, does too. It is enough for the cores of the largest machines,
// and few enough that the tasks' partial sums stay small beside the tensors.
inline i64 column_tasks(i64 slots) { return std::min<i64>(slots, 128); }

// A task's scratch: the pending sums of complete subtrees of its slots, at most one per level, and the sum
// that is growing.
inline i64 column_task_words(i64 slots, i64 tasks, i64 n) {
  return column_stride(n) * static_cast<i64>(std::bit_width(static_cast<u64>(slots / tasks)));
}

// Number of fp32 words of scratch that column_sums needs.
inline i64 column_words(i64 rows, i64 n) {
  const i64 slots = slot_count(rows, n), tasks = column_tasks(slots);
  return kLineWords - 1 + tasks * column_task_words(slots, tasks, n);
}

// The scratch of a backward over rows: what the caller gives or, where that is empty, words of its own.
class Workspace {
 public:
  Workspace(const char* function, std::span<float> given, i64 words) : words_(given.data()) {
    if (given.empty() && words > 0) {
      own_ = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(words));
      words_ = own_.get();
    } else if (static_cast<i64>(given.size()) < words) {
      refuse(refusal(function) + "the workspace holds " + std::to_string(given.size()) + " of the " +
             std::to_string(words) + " words it needs");
    }
  }
  float* words() const { return words_; }

 private:
  std::unique_ptr<float[]> own_;
  float* words_;
};

// result[j] = the sum of the terms of column j over all rows, for j in [0, n). add_row(row, sums) adds a
// row's n terms to sums[0 .. n), which begins on a cache line, and may write the last line's rest. It is
// called once for each row, so it may do more with the row, and may stream some of it (kStreaming). Io says
// how vectors of columns are read, added and written. The scratch has column_words(rows, n) words, whose
// content does not matter.
template <class Io, bool kStreaming, class AddRow>
void column_sums(i64 rows, i64 n, int threads, float* words, float* result, const AddRow& add_row) {
  const i64 slots = slot_count(rows, n), tasks = tasks_for(column_tasks(slots), threads),
            task_slots = slots / tasks, task_words = column_task_words(slots, tasks, n);
  const i64 stride = column_stride(n);
  float* const scratch = words + line_offset(words);
  const auto add_columns = [](float* sum, const float* term, i64 begin, i64 end) {
    i64 j = begin;
    for (; end - j >= Io::kWidth; j += Io::kWidth)
      Io::store(sum + j, Io::add(Io::load(sum + j), Io::load(term + j)));
    for (; j < end; ++j) sum[j] = add_rn(sum[j], term[j]);
  };
  parallel_for(tasks, threads, [&](i64 task) {
    float* top = scratch + task * task_words;  // a stack of arrays of `stride` words
    for (i64 k = 0; k < task_slots; ++k) {
      std::fill(top, top + stride, 0.0f);
      const i64 slot = task * task_slots + k;
      for (i64 row = slot_begin(rows, slots, slot); row < slot_begin(rows, slots, slot + 1); ++row)
        add_row(row, top);
      top += stride;
      // two neighbours of equal size are complete: add them
      for (i64 complete = k + 1; complete % 2 == 0; complete /= 2) {
        top -= stride;
        add_columns(top - stride, top, 0, n);
      }
    }
    end_streaming<kStreaming>();
  });
  // The upper levels of the slots' tree. Each task has a block of 1024 columns, so that it reads runs of 4
  // KiB of every task's sums.
  constexpr i64 kBlock = 1024;
  parallel_for((n + kBlock - 1) / kBlock, threads, [&](i64 block) {
    const i64 begin = block * kBlock, end = std::min(n, begin + kBlock);
    for (i64 apart = 1; apart < tasks; apart *= 2) {
      for (i64 task = 0; task < tasks; task += 2 * apart)
        add_columns(scratch + task * task_words, scratch + (task + apart) * task_words, begin, end);
    }
    std::copy(scratch + begin, scratch + end, result + begin);
  });
}

}  // namespace detail
}  // namespace outgrad::kernels::inline OUTGRAD_ABI
