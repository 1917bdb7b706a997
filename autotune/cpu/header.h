// Generated headers that this program was not built with: reads them, runs the kernel of one, makes them
// choices of the tuner.
#pragma once

#include <string>

#include "autotune/cpu/compile.h"
#include "autotune/space/variant.h"

namespace outgrad::autotune {

// What the text of a generated header says of itself. Its code is the compiler's business.
struct GeneratedHeader {
  std::string path, text;
  std::string type;        // of its struct: "GeluBf16"
  std::string name;        // kName: "gelu_bf16"
  std::string accuracy;    // kClass: "abs:2^-26"; empty where there is none, as in a forward header
  kernels::FitBounds bounds{};
  std::string activation;  // "gelu"
  // kFormat: "f32", "f16", "bf16", "e4m3", "e5m2", "mxfp8", or a parity format; a forward header without it
  // is f32's
  std::string format;
  bool forward = false;
  bool masked = true;  // has a mask: f has a minimum, and y does not carry the branch
  bool has_rows = false;  // a polynomial of more than one row

  bool in_blocks() const { return format == kernels::Format<kernels::MxFp8>::kName; }
  // What the codes of y are those of: the format itself, or the one that carries a parity format.
  std::string carrier() const { return format.substr(0, format.find("_parity")); }
  int y_bytes() const { return format == "f32" ? 4 : carrier() == "f16" || carrier() == "bf16" ? 2 : 1; }
};

// Reads a header as `outgrad emit` writes them: its banner, no directive but the expected ones, one struct,
// the constants above. Throws SpecError (file, place, why), IoError.
GeneratedHeader read_generated_header(const std::string& path);

// The *.h files of a folder as fits to choose among, by name. Throws SpecError also for a folder without any,
// a header that no tuned kernel can use (forward, of another activation, y in 8 bits), and a struct that
// kernels/fits.h or another file has too.
std::vector<GeneratedHeader> read_generated_headers(const std::string& folder);

// The header as a choice; its reference is not compiled.
FitChoice choice_from(const GeneratedHeader& header);

// The choices for a y stored in `format`, their scalar kernels compiled. Throws SpecError when a header does
// not compile.
Fits header_fits(const std::vector<GeneratedHeader>& headers, FormatId format, const Toolchain& toolchain,
                 const CompileSettings& settings);

// The header's kernel on the arrays of `arguments`, whose outputs (dx; of a forward header y and mask) must
// be shared with child processes (SharedArray). `format` is that of dy and dx, or of x and y. Throws
// SpecError when the header does not compile or its code does not survive the call, EnvironmentError when
// there is no compiler.
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
