// The class rounded, re-proved by enumeration: a forward of a 16-bit format gives the number nearest to f(x)
// for every x of the format.
#pragma once

#include "validation/certificate/header_reader.h"
#include "validation/certificate/verdict.h"

namespace outgrad::validation {

/// `proven` counts the x that are not rounded correctly, or not decided; the claim is 0. A witness is in x.
Finding prove_rounded(const RoundedForwardHeader& h);

}  // namespace outgrad::validation
