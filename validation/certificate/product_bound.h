// T and O of a header whose y is the quotient of a rounded product, re-proved over all fp32 y and all real x.
//
// A y stands for the x of its branch with |y - f(x)| <= kRelative |f(x)| + kAbsolute, that is, f(x) between
// (y - kAbsolute) / (1 +- kRelative) and (y + kAbsolute) / (1 -+ kRelative). Of the floats from a to b these
// are an interval of x, whose ends are f^-1 of two numbers, and f' is enclosed over it. Where all floats
// between select one row, its polynomial in exact arithmetic over their coordinates, widened by kB, is what
// they give. A range of floats that does not meet the claim is halved.
#pragma once

#include <vector>

#include "validation/certificate/header_reader.h"
#include "validation/certificate/verdict.h"

namespace outgrad::validation {

/// T is Violated where an x shows more, and where it is claimed to be more than 2^-8 above what the x of the
/// stated input show. O is a lower bound, which the x of its input show: Undecided if they do not, Violated
/// if they show more by 2^-12.
std::vector<Finding> prove_product(const BackwardHeader& h);

}  // namespace outgrad::validation
