// The gradients of PyTorch's Linear, by PyTorch's own products, without the views that Python would make of
// what they are given and of what comes of it, which for a few rows are a large part of the work.
#pragma once

#include <algorithm>
#include <optional>
#include <tuple>

#include "kernels/torch/eager.h"

namespace outgrad::torch_operators {

// out = a b and out += a b of matrices, on one kind of device.
struct Products {
  using Product = AOTITorchError(AtenTensorHandle out, AtenTensorHandle a, AtenTensorHandle b);
  using Sum = AOTITorchError(AtenTensorHandle out, AtenTensorHandle to, AtenTensorHandle a,
                             AtenTensorHandle b, double beta, double alpha);
  Product* product = nullptr;
  Sum* sum = nullptr;

  // Without functions where PyTorch has none.
  static Products of(const Place& place) {
    if (place.type == aoti_torch_device_type_cpu()) {
      static const Products on_host = found("aoti_torch_cpu_mm_out", "aoti_torch_cpu_addmm_out");
      return on_host;
    }
    if (place.type != aoti_torch_device_type_cuda()) return {};
    static const Products on_cuda = found("aoti_torch_cuda_mm_out", "aoti_torch_cuda_addmm_out");
    return on_cuda;
  }

 private:
  static Products found(const char* product, const char* sum) {
    return {function_of_pytorch<Product>(product), function_of_pytorch<Sum>(sum)};
  }
};

// The same elements as another matrix.
inline Tensor as_matrix(const Tensor& tensor, i64 rows, i64 columns, i64 row_stride, i64 column_stride) {
  const i64 sizes[] = {rows, columns}, strides[] = {row_stride, column_stride};
  AtenTensorHandle handle = nullptr;
  succeed(aoti_torch__reinterpret_tensor(tensor.get(), 2, sizes, strides, 0, &handle), "view a tensor");
  return Tensor(handle);
}

// A tensor as the rows of its last dimension, which lie one behind the other.
class Rows {
 public:
  explicit Rows(const Tensor& tensor)
      : columns(tensor.sizes().back()), rows(columns > 0 ? tensor.numel() / columns : 0),
        matrix(as_matrix(tensor, rows, columns, columns, 1)) {}
  Tensor transposed() const { return as_matrix(matrix, columns, rows, 1, columns); }

  i64 columns, rows;
  Tensor matrix;
};

// Of a Linear's x [..., n] and weight [m, n] from dy [..., m]: dx, or `onto` with dx added; dweight; dbias.
// Nothing where Python is to compute it.
using LinearGradients = std::tuple<OptionalTensor, OptionalTensor, OptionalTensor>;
inline Maybe<LinearGradients> linear_gradients(const Tensor& dy, const OptionalTensor& x,
                                               const Tensor& weight, bool for_x, bool for_weight,
                                               bool for_bias, const OptionalTensor& onto) {
  const Call call(dy);
  const Products products = Products::of(place_of(dy));
  const auto is_plain = [&](const Tensor& tensor) {
    return call.holds(tensor) && tensor.scalar_type() == dy.scalar_type() && tensor.is_contiguous() &&
           tensor.dim() >= 2 && tensor.numel() > 0;
  };
  if (products.product == nullptr || products.sum == nullptr || !is_plain(dy) || !is_plain(weight) ||
      weight.dim() != 2 || weight.sizes()[0] != dy.sizes().back())
    return std::nullopt;
  const Rows of_dy(dy);
  const i64 n = weight.sizes()[1];
  const auto is_like_x = [&](const OptionalTensor& tensor) {
    return tensor && is_plain(*tensor) && tensor->sizes().back() == n &&
           std::ranges::equal(tensor->sizes().slice(0, tensor->dim() - 1), dy.sizes().slice(0, dy.dim() - 1));
  };
  if ((for_weight && !is_like_x(x)) || (onto && !is_like_x(onto))) return std::nullopt;
  LinearGradients found;
  auto& [dx, dweight, dbias] = found;
  if (for_weight) {
    dweight = call.made_like(weight);
    succeed(products.product(dweight->get(), of_dy.transposed().get(), Rows(*x).matrix.get()), "multiply");
  }
  if (for_bias) {
    const i64 over_rows = 0;
    dbias = torch::stable::sum(of_dy.matrix, torch::headeronly::IntHeaderOnlyArrayRef(&over_rows, 1));
  }
  if (for_x) {  // the last, for Python must not add a second time
    dx = onto ? *onto : call.made_like(dy, n);
    const Tensor of_dx = Rows(*dx).matrix;
    AtenTensorHandle const out = of_dx.get(), a = of_dy.matrix.get(), b = weight.get();
    succeed(onto ? products.sum(out, out, a, b, 1, 1) : products.product(out, a, b), "multiply");
  }
  return found;
}

}  // namespace outgrad::torch_operators
