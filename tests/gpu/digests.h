// SHA-256 of GELU's outputs over every bit pattern of a format, as the exhaustive sweeps have it
// (validation/sweep/sweep.h): what ties a device's bits to the sweeps' proofs.
//
// Outputs are y, the mask and dx of a forward and a backward pass at dy = 1 over the patterns in the sweeps'
// order (stimulus.h: swept), NaNs as the canonical one. The digest of an array is that of its chunks'
// digests, so chunks are hashed side by side, a thread to each.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/gpu/stimulus.h"

namespace outgrad::tests::gpu {

inline constexpr i64 kSweepChunk = i64{1} << 22;  // patterns that are hashed as one

// As hexadecimal digits.
struct OutputDigests {
  std::string y, mask, dx;
};

// One thread's way to the outputs: a device, or the host's kernels.
template <class T>
class SweptOutputs {
 public:
  // Arrays that the caller may change; they are the source's, and hold until its next call.
  struct Chunk {
    T* y;
    u32* mask;
    T* dx;
  };
  virtual ~SweptOutputs() = default;
  virtual Chunk compute(u64 begin, i64 n) = 0;  // over places [begin, begin + n) of the order
};

// Each of the threads asks `source` for outputs of its own. Throws what they throw.
template <class T>
OutputDigests digests_of(const std::function<std::unique_ptr<SweptOutputs<T>>()>& source, int threads);

// Those of the sweep in `folder`/gelu_FORMAT.json over x of the format itself. Throws IoError, SpecError.
OutputDigests digests_of_sweep(const std::string& folder, const std::string& format);

// A device's digests beside a sweep's.
struct DigestReport {
  std::string json;
  bool equal = true;

  void add(const std::string& format, const OutputDigests& got, const OutputDigests& want);
};

}  // namespace outgrad::tests::gpu
