// One call of the C interface with arguments made from bytes, judged against what kernels/c/outgrad.h says.
//
// The bytes choose function, format, shape, the offset of every array from a cache line, aliases, kinds of
// values, threads and the caller's floating-point control register, and in some cases one or two ways to
// spoil the arguments. The contract is modelled here a second time (kernels_fuzz.cpp, `violations`), from the
// header's text:
//   - a refusal has a status that the spoiled arguments deserve and one line of message, and changes not one
//     byte of any array;
//   - an accepted call changes what it writes, nothing around it and nothing that it reads; where y is kept,
//     its results are the bits of every other instruction set of this machine, the scalar one in arrays of
//     its own, and within the bounds of kernels_fuzz_oracle.h; with any other store, the bits of the same
//     call on one thread in arrays of its own.
// With AddressSanitizer the surroundings of every array are poisoned, so that reading there is found too.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/c/table.h"
#include "kernels/portable.h"
#include "tests/kernels/c_calls.h"

namespace outgrad::kernels::fuzz {

// The functions with arrays (c_calls.h), those of sizes, and one that stands for all other queries.
inline constexpr int kSizes = c_calls::kIds, kQueries = kSizes + 1, kKinds = kQueries + 1;
const char* kind_name(int kind);
inline constexpr int kStatuses = OUTGRAD_ERROR_STORE + 1;
inline constexpr i64 kLargestSize = i64{1} << 21;  // elements of an array

// What was exercised: a test that draws cases at random has to show that it drew all kinds.
struct Tally {
  std::array<std::array<i64, 3>, kKinds> accepted{};  // by format
  std::array<std::array<i64, kStatuses>, kKinds> refused{};  // by status
  // rows, columns or elements held against the oracle
  std::array<i64, kKinds> judged{};
  // accepted calls in which arrays that may coincide did
  i64 aliased = 0;
  // calls that nothing refuses and whose arrays are no memory of the case's: not made
  i64 astray = 0;
};

// The kernels of every instruction set that this process may run, the chosen one last.
std::vector<const c::FormatKernels*> kernels_of(outgrad_format format);

// "" if all holds, else the call and what is wrong with it.
std::string run_case(std::span<const std::uint8_t> bytes, Tally& tally);

}  // namespace outgrad::kernels::fuzz
