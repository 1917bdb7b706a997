// Accepts a variant by bit equality with the scalar kernel: no tolerance, since a schedule may not change a
// bit.
//
// GELU in 16-bit formats: every bit pattern of y with both mask values (backward) or every x (forward). f32:
// every exponent with both signs and sampled mantissas, a dense stretch around GELU's minimum, the specials.
// Then short, odd and block-straddling lengths. Kernels of codes: the same x, and any bytes as codes, for
// each number of bits, exact and by several seeds of the dither. Kernels over rows: shapes on both sides of
// what their loops branch on, rows with specials among plain ones, optional operands absent. All of it in
// arrays that end flush with an unmapped page (so that an access past the end is a crash, not luck), outputs
// in place of the inputs that they may equal, outputs that are large enough to be streamed past the cache,
// and a caller that has flush-to-zero set. NaNs compare as one pattern.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "autotune/space/problem.h"

namespace outgrad::autotune {

class Verifier {
 public:
  // `reference` defines the bits. Of a problem over rows the number of columns, where it is sized, is among
  // the shapes.
  Verifier(const Problem& problem, VariantFunction reference, std::uint64_t seed);

  // Which numbers of columns a function takes; empty: all.
  using Takes = std::function<bool(kernels::i64 cols)>;

  struct Verdict {
    std::optional<std::string> mismatch;  // the first difference; nothing: the function agrees everywhere
    long long checked = 0;  // elements of outputs that were compared
  };
  // Whether the function agrees with the reference. `block_elements` adds lengths around the variant's block.
  // Shapes that the function does not take are left out.
  Verdict verdict(const std::function<void(const Arguments&)>& function, int block_elements,
                  const Takes& takes = {}) const;

 private:
  using Bytes = std::vector<std::byte>;
  // One shape with its inputs and the outputs that the reference gives.
  struct Case {
    Problem problem;
    std::vector<Bytes> arrays;  // by operand; of scratch empty
    std::vector<bool> absent;  // by operand
    bool aliased = false;  // to be run with outputs over inputs, too
    bool flushed = false;  // and by a caller that flushes to zero
  };
  struct Alias {
    int output = kNoOperand, input = kNoOperand;
  };
  // What the arrays of a case hold.
  enum class Fill {
    kPlain,
    kSpecial,  // infinities, NaN, subnormals and zeros in some rows
    kPatterns,  // GELU's argument takes all bit patterns of patterns_
  };
  // optional operands: all inputs, all outputs, the second of each
  enum class Absent { kNone, kInputs, kOutputs, kSecond };

  Case case_of(const Problem& problem, Fill fill, Absent absent = Absent::kNone) const;
  Bytes filled(const Operand& operand, const Problem& problem, Fill fill) const;
  // The problem with each kind of code; of another kernel the problem alone.
  std::vector<Problem> with_codes() const;
  std::vector<Problem> block_problems(int block_elements) const;
  Verdict run(const std::function<void(const Arguments&)>& function, const Case& c, const Alias& alias,
              bool flush_to_zero) const;
  std::vector<Alias> aliases() const;

  Problem problem_;
  VariantFunction reference_;
  std::uint64_t seed_;
  std::vector<kernels::u32> patterns_;  // of GELU's argument
  std::vector<Case> cases_;
};

}  // namespace outgrad::autotune
