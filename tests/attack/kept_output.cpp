// Codes and scales of validation/norms/stores.h.
#include "tests/attack/kept_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/host/errors.h"
#include "kernels/stores/mxfp8.h"

namespace outgrad::validation {

using kernels::i64;
using kernels::SpecError;
using kernels::u32;
using kernels::u8;

KeptOutput::KeptOutput(const NormStore& store, i64 rows, i64 columns)
    : store_(store), rows_(static_cast<size_t>(rows)), columns_(static_cast<size_t>(columns)),
      group_(static_cast<size_t>(store.group_of(columns))), codes_(rows_ * columns_),
      scales_(store.kind == NormStoreKind::kE4m3 ? 1 : codes_.size() / group_) {}

void KeptOutput::keep(const std::vector<float>& y) {
  for (size_t e = 0; e < codes_.size(); ++e) {
    if (!std::isfinite(y[e])) {
      throw SpecError("norm store", fmt::format("y[{}, {}]", e / columns_, e % columns_),
                      std::isnan(y[e]) ? "NaN" : "infinite in fp32");
    }
  }
  const size_t share = codes_.size() / scales_.size();
  for (size_t g = 0; g < scales_.size(); ++g) {
    const auto begin = y.begin() + static_cast<std::ptrdiff_t>(g * share),
               end = begin + static_cast<std::ptrdiff_t>(share);
    Scale& scale = scales_[g];
    switch (store_.kind) {
      case NormStoreKind::kPlain: break;
      case NormStoreKind::kE4m3: {
        float largest = 0;
        for (auto value = begin; value != end; ++value) largest = std::max(largest, std::abs(*value));
        scale.step =
            store_.scale ? *store_.scale : std::max(kernels::div_rn(largest, kLargestE4m3), kLeastScale);
        scale.least = -largest, scale.most = largest;
        break;
      }
      case NormStoreKind::kMxFp8: {
        u32 largest = 0;
        for (auto value = begin; value != end; ++value)
          largest = std::max(largest, kernels::magnitude_in_block(*value));
        scale.shared = kernels::shared_scale(largest);
        scale.step = kernels::widen(scale.shared);
        // the last number of the power of two that the scale stands for
        scale.most = kernels::mul_rn(512 * (1 - 0x1p-24f), scale.step);
        scale.least = -scale.most;
        break;
      }
      case NormStoreKind::kInt8: {
        const auto [least, most] = std::minmax_element(begin, end);
        scale.zero = scale.least = *least;
        scale.most = *most;
        const float range = kernels::sub_rn(*most, *least);
        if (std::isinf(range))
          throw SpecError(
              "norm store",
              fmt::format("the group from y[{}, {}] on", g * share / columns_, g * share % columns_),
              "its range is infinite in fp32");
        scale.step = std::max(kernels::div_rn(range, kLastInt8), kLeastScale);
        break;
      }
    }
  }
  for (size_t e = 0; e < codes_.size(); ++e) codes_[e] = code_of(y[e], scale_at(e));
}

void KeptOutput::read(std::vector<float>& y) const {
  y.resize(codes_.size());
  for (size_t e = 0; e < codes_.size(); ++e) y[e] = value_of(codes_[e], scale_at(e));
}

float KeptOutput::read_as(float y, size_t row, size_t column) const {
  const Scale& scale = scale_at(row * columns_ + column);
  return value_of(code_of(y, scale), scale);
}

bool KeptOutput::same_scale(float y, size_t row, size_t column) const {
  const Scale& scale = scale_at(row * columns_ + column);
  return y >= scale.least && y <= scale.most;
}

u8 KeptOutput::code_of(float y, const Scale& scale) const {
  switch (store_.kind) {
    case NormStoreKind::kPlain: break;
    case NormStoreKind::kE4m3:
      return kernels::narrow_saturated<kernels::F8E4M3>(kernels::div_rn(y, scale.step)).bits;
    case NormStoreKind::kMxFp8: return kernels::block_element(y, scale.shared).bits;
    // A candidate of a search may lie beyond the group's range; it saturates.
    case NormStoreKind::kInt8:
      return static_cast<u8>(std::clamp(
          std::nearbyint(kernels::div_rn(kernels::sub_rn(y, scale.zero), scale.step)), 0.0f, kLastInt8));
  }
  return 0;
}

float KeptOutput::value_of(u8 code, const Scale& scale) const {
  if (store_.kind == NormStoreKind::kInt8)
    return kernels::fma_rn(static_cast<float>(code), scale.step, scale.zero);
  return kernels::mul_rn(kernels::widen(kernels::F8E4M3{code}), scale.step);
}

}  // namespace outgrad::validation
