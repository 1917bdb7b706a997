// What can be kept of a gated pair z = f(a) b, for a and b of bf16: rows of a table of their own beside the
// front, because a store of one operand cannot take their place, and because each of the gradients is
// computed from other factors: da = dz b f'(a), db = dz f(a), and that of the next product's weight from z.
//
// The figures of f'(a) are those of the front, with b of the same distribution as a where they depend on it.
// They do so by b's significand alone (validation/sweep/product_sweep.h).
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "validation/front/front.h"

namespace outgrad::validation {

/// A store of pairs: `beyond` counts the bits beside the z that the next product keeps, `all` those too.
struct PairStore {
  Store store;
  double next = 0;  // bits of a z that the next product keeps
  /// The largest errors that were found: of f(a) in db over max(1, |f(a)|); of b in da over |b|; and of z in
  /// the gradient of the next product's weight over max(1, |f(a)|) |b|.
  double value = 0, factor = 0, product = 0;
};

struct PairRow {
  FrontRow slope;  // of f'(a)
  double next, value, factor, product;
};

/// None for an activation without a product's fit.
std::vector<PairStore> pair_stores(const SweptActivation& f);
std::vector<PairRow> pair_rows(const SweptActivation& f, const std::vector<Distribution>& distributions,
                               std::size_t rank_by);

nlohmann::ordered_json pairs_json(const std::vector<PairRow>& rows);
/// A Markdown table with a line above it; empty without rows.
std::string pairs_text(const std::vector<PairRow>& rows);

}  // namespace outgrad::validation
