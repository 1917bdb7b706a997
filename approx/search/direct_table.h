/// Direct tables: for each stored y (16 or 8 bits) and mask bit the middle of its storage interval, rounded
/// to 16 bits.
///
/// No polynomial can do better than T = O, and the table is within half an ulp of its entries of it. It is
/// compacted by clamping: numbers so small, or so large, that the middles there agree within half an ulp of
/// an entry share one.
#pragma once

#include "approx/function/storage.h"
#include "approx/model/spec.h"

#include <vector>

namespace outgrad::approx {

TableModel direct_table(const Composite& composite, const BackwardSpec& spec,
                        const std::vector<StorageInterval>& intervals);

}  // namespace outgrad::approx
