// The front of bits against error: what each way of keeping less for an activation's backward pass costs.
//
// A store is what stands for x in the backward pass. For every x of bf16 it gives moments of g - f'(x), where
// g is what the backward pass computes from the store, and f' is the double reference. What a store draws at
// random (a dither, stochastic rounding) is averaged exactly, or over a fine grid. From the moments follow,
// for x of a distribution,
//   rms         sqrt(E (g - f')^2)
//   bias        E (g - f')
//   shrinkage   E(g f') / E(f'^2): below 1, gradients come out smaller than they are
// Beside them stands the largest |g - f'| that was found, and the proven bound over every x, where there is
// one. No figure alone ranks stores, so one dominates another only if it needs no more bits and is no worse
// in both the largest error and the rms.
#pragma once

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "validation/certificate/header_reader.h"
#include "validation/sweep/distribution.h"
#include "validation/sweep/foreign.h"
#include "validation/sweep/swept_activation.h"

namespace outgrad::validation {

inline constexpr const char* kFrontSchema = "outgrad.front/1";
inline constexpr double kKeptY = 16;  // bits of a y in bf16, which the next layer keeps

/// Of g - f'(x) at one x, over what the store draws.
struct ErrorAt {
  double greatest = 0;  // of |g - f'(x)|
  double mean = 0, square = 0;
};

/// The x of bf16 with f' there: every finite one, or of a header's function those of header_points().
struct FrontDomain {
  // NOLINTNEXTLINE(google-explicit-constructor): an activation stands for its domain
  FrontDomain(const SweptActivation& f);
  explicit FrontDomain(const Header& header);

  std::string name;  // of the activation, or of the header
  std::vector<float> x;
  std::vector<double> slope;
  std::function<double(double)> slope_at;  // f' of any number
};

/// Of a store that draws nothing, whose g at the x of the domain are given.
template <class Real>
std::vector<ErrorAt> errors_of(const std::vector<Real>& g, const FrontDomain& domain) {
  std::vector<ErrorAt> errors;
  for (std::size_t i = 0; i < g.size(); ++i) {
    const double e = static_cast<double>(g[i]) - domain.slope[i];
    errors.push_back({std::fabs(e), e, e * e});
  }
  return errors;
}

/// Speed over that of the kernels that keep y and a bit, in the same rounds; the interval is of 99%.
struct Ratio {
  double median = 0, low = 0, high = 0;
};
struct StoreSpeed {
  Ratio forward, backward;
};

struct Store {
  std::string name;
  std::string origin;  // "outgrad", or the work that publishes it
  double beyond = 0;  // bits an element beyond the y that the next layer keeps
  double all = 0;  // with that y
  // a proven bound of |g - f'(x)|; NaN: none is known
  double proven = std::numeric_limits<double>::quiet_NaN();
  std::string proof;  // the header that claims it, or empty
  std::string condition;  // what the figures hold for, where that is not every x
  int operations = -1;  // fma, add and mul from what is kept to g; -1: not counted
  // the store depends on the range of what is kept, and `errors` on the distribution
  bool by_distribution = false;
  std::function<std::vector<ErrorAt>(const FrontDomain&, const Distribution&)> errors;
  std::optional<StoreSpeed> speed{};
};

/// What is known of a store for x of one distribution.
struct StoreUnder {
  std::string x;
  double greatest = 0, at = 0;  // the largest |g - f'| over the x of the domain, and where
  double rms = 0, bias = 0, shrinkage = 0;
};

struct FrontRow {
  Store store;
  std::vector<StoreUnder> under;
  std::string dominated_by;  // the name of a store that dominates this one, or empty

  /// The largest error over all distributions.
  double found() const;
  /// The proven bound, or the largest error that was found.
  double sup() const { return std::isnan(store.proven) ? found() : store.proven; }
};

/// What a header of one's own computes from y, and, where f has a minimum, a bit.
Store header_store(const Header& header);

/// The stores that the library has for an activation, of swept_activations().
std::vector<Store> own_stores(const SweptActivation& f);

/// A published system of kind "steps" or "quantiser", with its own arithmetic in bf16. A quantiser's group
/// reaches from the mean of the least to the mean of the largest of as many x of the distribution; x beyond
/// are taken to its ends. Throws kernels::SpecError for another kind.
Store foreign_store(const ForeignFunction& function);

/// Rows in the order of the stores. `rank_by` is the index of the distribution by which dominance is decided.
std::vector<FrontRow> front_of(const FrontDomain& domain, std::vector<Store> stores,
                               const std::vector<Distribution>& distributions, std::size_t rank_by);

/// By the name of the store: what `outgrad bench --stores --json` wrote of an activation, for x of bf16.
/// Stores that it calls too noisy are left out. Throws kernels::SpecError.
std::map<std::string, StoreSpeed> parse_speeds(const std::string& text, const std::string& file,
                                               const SweptActivation& f);

nlohmann::ordered_json row_json(const FrontRow& row);
nlohmann::ordered_json front_json(const std::string& name, const std::vector<FrontRow>& rows);
/// The same as a Markdown table.
std::string front_text(const std::string& name, const std::vector<FrontRow>& rows);
/// What tells the stores apart, in lines of at most so many columns: with the rms, bias and shrinkage of the
/// distribution of this index.
std::string front_table(const std::string& name, const std::vector<FrontRow>& rows, std::size_t rank_by,
                        int columns);

}  // namespace outgrad::validation
