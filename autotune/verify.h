// Accepts a variant by bit equality with the scalar kernel: no tolerance, since a schedule may not change a bit.
//
// 16-bit formats: every bit pattern of y with both mask values (backward) or every x (forward). f32: every exponent with both signs
// and sampled mantissas, a dense stretch around GELU's minimum, the specials. Then short, odd and block-straddling lengths in
// arrays that end flush with an unmapped page (so that a read past the end is a crash, not luck), dx in place of dy, and a
// caller that has flush-to-zero set. NaNs compare as one pattern.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "autotune/variant.h"

namespace outgrad::autotune {

class Verifier {
 public:
  Verifier(const Problem& problem, VariantFunction reference, std::uint64_t seed);

  // Nothing when the function agrees with the reference everywhere, else the first difference. `block_elements` adds lengths around
  // the variant's block.
  std::optional<std::string> mismatch(const std::function<void(const Arguments&)>& function, int block_elements) const;
  // Outputs compared by one successful call of mismatch().
  long long checked(int block_elements) const;

 private:
  // One call to make: elements [0, length) of the inputs.
  struct Call {
    long long length;
    bool in_place, flush_to_zero;
  };
  Arguments arguments(const void* first, const void* second, void* mask, void* out, kernels::i64 length) const;
  std::vector<Call> calls(int block_elements) const;
  std::optional<std::string> run(const std::function<void(const Arguments&)>& function, const Call& call) const;

  Problem problem_;
  long long elements_ = 0;
  std::vector<std::byte> first_, second_, expected_;
  std::vector<kernels::u32> mask_;  // given (backward) or expected (forward)
};

}  // namespace outgrad::autotune
