// Facts about this build. The build itself writes them (cmake/outgrad-build.cpp.in).
#pragma once

namespace outgrad::c {

struct CoefficientDigest {
  const char* fit;     // kName of a generated header
  const char* sha256;  // of the header's bytes, hexadecimal
};

extern const CoefficientDigest kDigests[];
extern const int kDigestCount;
extern const char* const kVersion;

}  // namespace outgrad::c
