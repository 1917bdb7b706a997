// What tests see of the stand-in for CUDA (cuda_runtime.h): the order in which threads run, what went wrong,
// memory with guards.
//
//   const auto x = GuardedArray<float>::with(values, {.edge = Edge::end});
//   GuardedArray<float> y(n, {});
//   EXPECT_EQ(cuda::launch_...(x.get(), y.get(), n, nullptr), cudaSuccess) << gpu_stand_in::failure();
//   EXPECT_TRUE(y.untouched_outside());
//
// Errors of a kernel end its launch with cudaErrorLaunchFailure, and failure() names the block and the
// thread:
//   - an access to no memory, to the guards of an array or to what is read-only;
//   - a misaligned access, or an index beyond its array, shared arrays too (the compiler's own checks, which
//     trap);
//   - threads that wait for ever: a thread ended, or waits at another barrier or collective;
//   - a shuffle from a lane outside its mask.
// Not seen: accesses within another array, or within the up to 15 bytes between an array's end and its guard
// that alignment may leave (writes there are: untouched_outside); pointers that leave a static __shared__
// array for another one; races that no order of this kind shows; what the device's own instructions do.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

struct CUstream_st;

namespace outgrad::tests::gpu_stand_in {

// Which of the threads that can go on runs next. The first in the order runs until it waits, so a warp is as
// far ahead of the others as barriers allow; blocks run one after the other, in the same order.
enum class Order {
  forward,
  reversed,
  shuffled,  // warps, lanes and blocks by a permutation that the seed gives, another one for each block
};

struct Settings {
  Order order = Order::forward;
  std::uint64_t seed = 1;
  int multiprocessors = 2;
};
// For the launches that follow.
Settings& settings();

// What went wrong in the last launch that failed, or an empty string.
const std::string& failure();

// Launches so far: that a call of a launcher launched nothing, or something.
std::int64_t launches();

// Questions after a kernel's resident blocks so far.
std::int64_t occupancy_questions();

// The streams of the launches and the memory settings since the last call.
std::set<CUstream_st*> take_streams();

enum class Edge {
  end,    // the last byte, but for alignment, is followed by memory that may not be accessed
  begin,  // the first byte, but for alignment, is preceded by it
};
struct Placement {
  Edge edge = Edge::end;
  int offset = 0;  // bytes by which the array is off a multiple of 16
  const char* name = "array";
};

// Pages between two that may not be accessed, filled with poison.
class Guarded {
 public:
  Guarded(std::size_t bytes, const Placement& placement);
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  Guarded(Guarded&& other) noexcept;
  ~Guarded();
  unsigned char* data() const { return data_; }
  bool untouched_outside() const;
  void make_read_only();

 private:
  unsigned char *pages_ = nullptr, *data_ = nullptr;
  std::size_t pages_bytes_ = 0, bytes_ = 0;
};

// n elements of device memory.
template <class T>
class GuardedArray {
 public:
  explicit GuardedArray(std::int64_t n, const Placement& placement = {})
      : memory_(static_cast<std::size_t>(n) * sizeof(T), placement), size_(n) {}
  static GuardedArray with(const std::vector<T>& values, const Placement& placement = {}) {
    GuardedArray array(static_cast<std::int64_t>(values.size()), placement);
    std::copy(values.begin(), values.end(), array.get());
    return array;
  }
  T* get() const { return reinterpret_cast<T*>(memory_.data()); }
  std::int64_t size() const { return size_; }
  std::vector<T> values() const { return std::vector<T>(get(), get() + size_); }
  // Whether all memory around the array that may be accessed is as it was.
  bool untouched_outside() const { return memory_.untouched_outside(); }
  // From now on a write to it is an error.
  void make_read_only() { memory_.make_read_only(); }

 private:
  Guarded memory_;
  std::int64_t size_;
};

}  // namespace outgrad::tests::gpu_stand_in
