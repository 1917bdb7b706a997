// The products' fits that ship.
#include "kernels/product_fits.h"
#include "validation/sweep/product_subject.h"

namespace outgrad::validation {
namespace {

// Of every activation whose gate has them, in f16 and bf16.
template <int kFirst = 0>
void add_products(std::vector<ProductSubject>& list) {
  if constexpr (kFirst < kernels::kActivations) {
    using Gate = kernels::GateAt<kFirst>;
    if constexpr (kernels::kHasProduct<Gate, kernels::BF16>) {
      list.push_back(make_product_subject<typename kernels::ProductFit<Gate, kernels::F16>::Type>());
      list.push_back(make_product_subject<typename kernels::ProductFit<Gate, kernels::BF16>::Type>());
    }
    add_products<kFirst + 1>(list);
  }
}

}  // namespace

const std::vector<ProductSubject>& shipped_products() {
  static const std::vector<ProductSubject> list = [] {
    std::vector<ProductSubject> all;
    add_products(all);
    return all;
  }();
  return list;
}

}  // namespace outgrad::validation
