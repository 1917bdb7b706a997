// The gate against false certificates: damaged headers and random specifications are given to `check`, and
// its verdicts are compared with a brute force that shares nothing with it.
//
// The checker must refuse a mutant that the brute force finds false, or whose text is not what `outgrad emit`
// would have written. A mutant that it accepts has SURVIVED, and the gate fails. A mutant in which the brute
// force finds no falsehood is harmless and does not count against the checker. A random specification may be
// refused or fitted, but a header that results from a fit must be true, whatever `check` says of it, and so
// must be what the fit prints. A header that `check` calls violated although the brute force finds nothing
// false is CONTESTED: one of the two is wrong, and the gate fails.
// All work is done in processes with limits of time and memory.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tests/attack/brute_force.h"
#include "tests/attack/compiled.h"
#include "tests/attack/mutation.h"
#include "tests/attack/specification.h"

namespace outgrad::validation::gate {

/// A checker's verdict on a header's text.
struct Answer {
  bool holds = false;
  std::string why;
  bool violated = false;  ///< it does not hold because a claim is refuted, not because it is undecided
};
/// May throw: kernels::SpecError is a refusal, and anything else is an internal error.
using Checker = std::function<Answer(const std::string& text, const std::string& name)>;
/// `outgrad check`: the header is read, and its claims are proven up to the first that does not hold.
Answer check_text(const std::string& text, const std::string& name);

/// The places of a header at which damage of a name or kind ("kO", "comments") is done; empty: all places.
std::vector<Site> sites_for(const std::string& text, const std::string& only);

struct Options {
  std::uint64_t seed = 1;
  size_t passes = 1;  ///< the number of kinds of damage tried on each coefficient
  size_t most = 0;  ///< mutants of one header, 0 for no limit
  std::string only;  ///< for sites_for
  size_t specifications = 0;
  size_t stores = 0;  ///< specifications of parity formats, MXFP8 and codes
  std::string fitter;  ///< the executable outgrad-fit
  Toolchain toolchain;
  Checker checker = check_text;
  /// what is true of the functions, for several headers about the same function
  std::shared_ptr<Library> library;
};

/// Counts of mutants; tried is the sum of the other four.
struct MutantTally {
  std::int64_t tried = 0, killed = 0, harmless = 0, survived = 0, internal = 0;
  void add(const MutantTally& other);
};

struct MutantFailure {
  std::string header, place, kind, why;
};

/// The results for one header.
struct HeaderResult {
  std::string header;
  std::string baseline;  ///< empty, or what the brute force objects to in the undamaged header
  std::map<std::string, double> shares;  ///< how much of each of its claims the brute force saw
  std::map<std::string, MutantTally> kinds;  ///< by place and damage, "constants: sign"
  std::vector<MutantFailure> failures;  ///< survivors and internal errors
  MutantTally total() const;
};

HeaderResult attack_header(const std::string& name, const std::string& text,
                           const std::vector<std::string>& donors, const Options& options);

struct SpecificationFailure {
  std::string specification, outcome, why;
};

/// The results for a block of specifications; tried is the sum of the next eight.
struct SpecificationResult {
  std::int64_t tried = 0, fitted = 0, refused = 0, undecided = 0, false_claims = 0, contested = 0, hung = 0,
               internal = 0, memory = 0;
  std::int64_t survived = 0;  ///< those of the false claims that `check` accepted
  double longest_cpu_s = 0;
  std::vector<double> seconds;  ///< processor time of each fit, in the order of the specifications
  /// of refusals and of undecided cases, without numbers and names
  std::map<std::string, std::int64_t> reasons;
  std::vector<SpecificationFailure> failures;
  void add(const SpecificationResult& other);
};

inline constexpr size_t kBlock = 20;
/// The specifications of one block of kBlock, or the rest of `options.specifications`.
std::vector<Specification> specifications_of(size_t block, const Options& options);
/// The same of `options.stores`.
std::vector<Specification> stores_of(size_t block, const Options& options);
SpecificationResult attack_specifications(const std::vector<Specification>& specs, const Options& options);

/// Units of work by name, as stored between runs: "header NAME", "specifications K" and "stores K"; null: of
/// another shard, or not done yet.
using Units = std::map<std::string, nlohmann::json>;
nlohmann::json to_json(const HeaderResult& result);
nlohmann::json to_json(const SpecificationResult& result);

/// Schema "outgrad.certificate_attack/1": totals, by header and by kind of damage, and the units from which
/// they are made.
nlohmann::json document(const Units& units, std::uint64_t seed);
/// The units of a result file. Throws kernels::SpecError "file: place: why" if it is not one, or has another
/// seed.
Units read_units(const std::string& file, std::uint64_t seed);
/// Whether nothing survived, was false, hung or failed.
bool holds(const nlohmann::json& document);

}  // namespace outgrad::validation::gate
