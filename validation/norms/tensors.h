// Reads tensors of `.safetensors` and `.npz` files, which may be damaged or hostile, and writes
// `.safetensors`.
//
// Both formats describe themselves. So nothing that a file says about itself is used before it is checked
// against the file's real size: header length, offsets, shapes (whose product may overflow), names (which may
// repeat), and for zip entries the inflated size. What this reader does not know of a tensor stops only who
// reads that tensor. A file of another kind is named, with what to give in its place. Sources: safetensors
// README, "Format", and its `Dtype`; NumPy's numpy.lib.format (.npy 1.0 to 3.0). The zip container itself is
// left to libzip.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/portable.h"

namespace outgrad::validation {

struct TensorInfo {
  std::string name;
  std::string dtype = {};  // as written in the file: "BF16", "<f4"
  std::vector<kernels::u64> shape = {};
  kernels::u64 elements = 0;  // product of the shape
  // Where the file says of the tensor what this reader does not know (a dtype that came after it, a
  // structured array): what. Such a tensor is listed and cannot be read; of its size nothing is checked but
  // that it lies in the file. Empty for all others.
  std::string unknown = {};
};

class TensorFile {
 public:
  virtual ~TensorFile() = default;

  const std::string& label() const { return label_; }
  // in the order of the file; names are unique
  const std::vector<TensorInfo>& tensors() const { return tensors_; }

  // The tensor named `name`; throws SpecError if there is none.
  const TensorInfo& find(const std::string& name) const;

  // The elements in storage order as fp32, the type in which the kernels take parameters. The conversion is
  // exact from f16, bf16 and f32; f64 is rounded to nearest (out of range: infinity). Throws SpecError for
  // another dtype, for a tensor larger than 64 MiB or `unknown`, and for damaged data.
  virtual std::vector<float> read(const TensorInfo& tensor) const = 0;

 protected:
  explicit TensorFile(std::string label) : label_(std::move(label)) {}
  void add(TensorInfo tensor);  // throws SpecError for a repeated name

  std::string label_;
  std::vector<TensorInfo> tensors_;

 private:
  std::map<std::string, size_t> index_;
};

// Opens a tensor file; its content determines the format. Tensor data stay on disk until they are read.
// Throws IoError, or SpecError as "path: place: why".
std::unique_ptr<TensorFile> open_tensors(const std::string& path);

// The same for a file held in memory; messages use `label` instead of the path.
std::unique_ptr<TensorFile> parse_tensors(const std::string& label, std::string bytes);

struct NamedTensor {
  std::string name;
  std::vector<float> values;  // one-dimensional
};

// Writes a safetensors file of one-dimensional fp32 tensors. They are sorted by name and the header is padded
// to 8 bytes, so that equal content gives equal bytes.
std::string safetensors_bytes(std::vector<NamedTensor> tensors,
                              const std::map<std::string, std::string>& metadata);

}  // namespace outgrad::validation
