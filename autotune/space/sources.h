// Where the sources are, and the hashes that tie a measurement to the code it measured.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "autotune/records/record.h"

namespace outgrad::autotune {

// C++ without its comments, blank lines and runs of blanks: what a compiler makes no difference between has
// one text. Literals stay.
std::string code_of(const std::string& source);

// Hashes of names and code: of all but kernels/generated/ ("kernels"), and of that alone ("coefficients"), in
// the order of the names. Tuned headers choose among variants and change none, and kernels/support/ and
// kernels/torch/ are in no kernel: they are in neither.
SourceHashes hash_of(std::vector<std::pair<std::string, std::string>> sources);  // "kernels/eval.h", its text
// The hashes of the headers under `include_root`/kernels that host compilers read. Throws IoError.
SourceHashes hash_sources(const std::string& include_root);

// Folder of the sources: $OUTGRAD_SOURCE_DIR, else where this program was built from. Throws
// EnvironmentError.
std::string source_root();

}  // namespace outgrad::autotune
