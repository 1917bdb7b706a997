// kClass as data: what a header promises beside its bounds.
#pragma once

#include <string>

namespace outgrad::validation {

enum class ClassKind {
  unknown,  // what cannot be read promises nothing, and is a failure
  abs,      // "abs:2^-10": A
  rel,      // "rel:2^-20": A of the relative error
  // "ulp:1": 16-bit y, |g - middle| in ulp of the middle at every (y, m) but (-0, 0); f32, A + B in ulp of g
  ulp,
  stored,  // "stored:1.01": T / O
  oracle,  // direct tables: T <= O + half an ulp of the largest entry
  rounded,  // forwards of 16-bit formats: the nearest number of the format for every x of the format
};

struct AccuracyClass {
  ClassKind kind = ClassKind::unknown;
  double bound = 0;
};

AccuracyClass read_class(const std::string& text);

}  // namespace outgrad::validation
