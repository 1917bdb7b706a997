// T, O and R of a header for 16- or 8-bit y, re-proved by enumeration.
//
// A stored y stands for all real x of a branch with RN(f(x)) = y (nearest even, beyond the largest number to
// infinity where the format has one), an interval whose ends are f^-1 of the midpoints between y and its
// neighbours, x* or the ends of the line. At each midpoint f^-1 is isolated by an interval Newton step around
// an approximation in double, and f' enclosed there; between, f' is monotone but for the brackets of
// activation.h. Stored y that no x reaches (below RN(y*), y >= +0 for m = 0, outside the range of f) stand
// for nothing and are left out. So is what e4m3 stores as a NaN: without an infinity and without saturation
// (OFP8; kernels/formats.h), all f(x) beyond +-464, so that 448 stands for [432, 464]. f32 is not enumerated.
//
// In a parity format the negative codes of a branch are every second one, even right of the minimum and odd
// left of it. Instead of the midpoint, the number between two of them, which is the other branch's, parts
// what they stand for; on the left the last stands for all up to 0.
#pragma once

#include <vector>

#include "validation/certificate/header_reader.h"
#include "validation/certificate/verdict.h"

namespace outgrad::validation {

/// T = sup |g - f'|, O = sup of half the range of f', R = sup |g - middle of the range| against the claims,
/// in this order. Violated if an x that is stored as some y shows more than the claim: f(x) certainly lies
/// between the boundaries of y, on the side of m (for O and R two such x). Without such an x, what the
/// enclosures do not exclude is Undecided. A claim must also be reached: one above what is proven is
/// Violated, and one above what an x shows is Undecided. Then what the class promises, where that is about
/// the stored y: in ulp, "ulp"; T against the least O that is shown, "class" (stored, oracle).
std::vector<Finding> prove_storage(const BackwardHeader& h);
std::vector<Finding> prove_storage(const TableHeader& h);

/// A stored y of a branch: what the header computes, and an enclosure of f' over all x that are stored so.
struct StoredGradient {
  double y = 0;
  bool m = true;
  double g = 0, least = 0, most = 0;
};
/// All that some x is stored as, branch by branch (right first) in ascending y; of a block format in blocks
/// of the largest scale. Nothing for f32.
std::vector<StoredGradient> stored_gradients(const BackwardHeader& h);
std::vector<StoredGradient> stored_gradients(const TableHeader& h);

}  // namespace outgrad::validation
