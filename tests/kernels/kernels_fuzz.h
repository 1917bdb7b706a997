// One call of the C interface with arguments made from bytes, judged against what kernels/c/outgrad.h says.
//
// The bytes choose function, format, shape, the offset of every array from a cache line, aliases, kinds of
// values, threads and the caller's floating-point control register, and in some cases one or two ways to
// spoil the arguments. The contract is modelled here a second time (kernels_fuzz.cpp, `violations`), from the
// header's text:
//   - a refusal has a status that the spoiled arguments deserve and one line of message, and changes not one
//     byte of any array;
//   - an accepted call changes what it writes, nothing around it and nothing that it reads; its results are
//     the bits of the scalar code of kernels/host/, those of every other instruction set of this machine, and
//     within the bounds of kernels_fuzz_oracle.h.
// With AddressSanitizer the surroundings of every array are poisoned, so that reading there is found too.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "kernels/portable.h"

namespace outgrad::kernels::fuzz {

inline constexpr int kFunctions = 17;  // those with arrays, and one that stands for all queries
extern const std::array<const char*, kFunctions> kFunctionNames;
inline constexpr int kStatuses = 11;
inline constexpr i64 kLargestSize = i64{1} << 21;  // elements of an array

// What was exercised: a test that draws cases at random has to show that it drew all kinds.
struct Tally {
  std::array<std::array<i64, 3>, kFunctions> accepted{};  // by format
  std::array<std::array<i64, kStatuses>, kFunctions> refused{};  // by status
  // rows, columns or elements held against the oracle
  std::array<i64, kFunctions> judged{};
  // accepted calls in which arrays that may coincide did
  i64 aliased = 0;
  // calls that nothing refuses and whose arrays are no memory of the case's: not made
  i64 astray = 0;
};

// "" if all holds, else the call and what is wrong with it.
std::string run_case(std::span<const std::uint8_t> bytes, Tally& tally);

}  // namespace outgrad::kernels::fuzz
