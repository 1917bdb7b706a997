// Reads tensors of `.safetensors` and `.npz` files, which may be damaged or hostile, and writes `.safetensors`.
//
// Both formats are self-describing, so nothing a file says about itself is used before it is checked against the file's real size:
// header length, offsets, shapes (whose product may overflow), names (which may repeat), and for zip entries the inflated size.
// Sources: safetensors README, "Format"; NumPy NEP 1 (.npy 1.0, 2.0); the zip container itself is libzip's business.
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
  std::string dtype;  // as the file spells it: "BF16", "<f4"
  std::vector<kernels::u64> shape;
  kernels::u64 elements = 0;  // product of the shape
};

class TensorFile {
 public:
  virtual ~TensorFile() = default;

  const std::string& label() const { return label_; }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // in the file's order, names unique

  // The tensor named `name`; throws SpecError if there is none.
  const TensorInfo& find(const std::string& name) const;

  // The elements in storage order as fp32, the type in which the kernels take parameters: exact from f16, bf16 and f32, rounded to
  // nearest from f64 (out of range: infinity). Throws SpecError for another dtype, a tensor beyond 64 MiB or damaged data.
  virtual std::vector<float> read(const TensorInfo& tensor) const = 0;

 protected:
  explicit TensorFile(std::string label) : label_(std::move(label)) {}
  void add(TensorInfo tensor);  // throws SpecError for a repeated name

  std::string label_;
  std::vector<TensorInfo> tensors_;

 private:
  std::map<std::string, size_t> index_;
};

// Opens a tensor file, whose content tells the format; tensor data stay on disk until read. Throws IoError, or SpecError as
// "path: place: why".
std::unique_ptr<TensorFile> open_tensors(const std::string& path);

// The same for a file held in memory; `label` stands for the path in messages.
std::unique_ptr<TensorFile> parse_tensors(const std::string& label, std::string bytes);

struct NamedTensor {
  std::string name;
  std::vector<float> values;  // one-dimensional
};

// A safetensors file of one-dimensional fp32 tensors: sorted by name, header padded to 8 bytes, so equal content gives equal bytes.
std::string safetensors_bytes(std::vector<NamedTensor> tensors, const std::map<std::string, std::string>& metadata);

}  // namespace outgrad::validation
