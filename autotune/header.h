// Runs the kernel of one generated header that this program was not built with: reads it, compiles it, calls it in a child process.
#pragma once

#include <string>

#include "autotune/variant.h"

namespace outgrad::autotune {

// What the text of a generated header says of itself. Its code is the compiler's business.
struct GeneratedHeader {
  std::string path, text;
  std::string type;        // of its struct: "GeluBf16"
  std::string activation;  // "gelu"
  std::string format;      // kFormat: "f32", "f16", "bf16", "e4m3", "e5m2"; empty in a forward header, which serves every format
  bool forward = false;
  bool masked = true;

  int y_bytes() const { return format == "f32" ? 4 : format == "f16" || format == "bf16" ? 2 : 1; }  // of a backward header
};

// Reads a header as `outgrad emit` writes them: its banner, no directive but the expected ones, one struct, the constants above.
// Throws SpecError (file, place, why), IoError.
GeneratedHeader read_generated_header(const std::string& path);

// The header's kernel on the arrays of `arguments`, whose `out` (and in a forward header `mask`) must be shared with child processes
// (SharedArray). `format` is that of dy and dx, or of x and y. Throws SpecError when the header does not compile or its code does
// not survive the call, EnvironmentError when there is no compiler.
void run_generated_header(const GeneratedHeader& header, FormatId format, const Arguments& arguments);

// Zeros that a child process can fill for its parent. Throws IoError when there is no memory for them.
class SharedArray {
 public:
  explicit SharedArray(std::size_t bytes);
  SharedArray(const SharedArray&) = delete;
  SharedArray& operator=(const SharedArray&) = delete;
  ~SharedArray();
  void* data() const { return data_; }

 private:
  std::size_t mapped_;
  void* data_;
};

}  // namespace outgrad::autotune
