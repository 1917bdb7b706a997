// What stores take, and which are refused.
#include "validation/norms/stores.h"

#include <fmt/format.h>

#include <cmath>

#include "kernels/host/errors.h"

namespace outgrad::validation {

using kernels::i64;
using kernels::SpecError;

double NormStore::bytes(i64 columns, int plain_bytes) const {
  switch (kind) {
    case NormStoreKind::kPlain: return plain_bytes;
    case NormStoreKind::kE4m3: return 1;
    case NormStoreKind::kMxFp8: return 1 + 1.0 / static_cast<double>(group_of(columns));
    case NormStoreKind::kInt8: return 1 + 2.0 * sizeof(float) / static_cast<double>(group_of(columns));
  }
  return 0;
}

void check_store(const NormStore& store, i64 columns, const std::string& label, const std::string& place) {
  if (store.group > 0 && columns % store.group != 0) {
    throw SpecError(
        label, place,
        fmt::format("{} channels are not whole groups of {} that share a scale", columns, store.group));
  }
  if (!store.scale) return;
  if (store.kind != NormStoreKind::kE4m3)
    throw SpecError(label, "scale", "only e4m3 has one scale for the tensor, which can be given");
  if (!std::isnormal(*store.scale) || *store.scale < 0) {
    throw SpecError(label, "scale", fmt::format("{:g} is not a positive normal fp32 number", *store.scale));
  }
}

}  // namespace outgrad::validation
