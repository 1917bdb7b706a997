// The gate against false certificates: damaged headers and random specifications against `check`, beside a brute force that shares nothing with it.
//
// A mutant that the brute force finds false, or whose text is not what `outgrad emit` would have written, has to be refused by the checker; one that is accepted has
// SURVIVED, and the gate fails. What the brute force finds no falsehood in is harmless and is not held against anybody. A random specification may be refused
// or fitted; a header that comes out of a fit must be true. All work is done in processes under limits of time and memory.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "validation/attack/brute_force.h"
#include "validation/attack/compiled.h"
#include "validation/attack/specification.h"

namespace outgrad::validation::gate {

/// What a checker says of a header's text.
struct Answer {
  bool holds = false;
  std::string why;
};
/// May throw: kernels::SpecError is a refusal, anything else an internal error.
using Checker = std::function<Answer(const std::string& text, const std::string& name)>;
/// `outgrad check`: the header is read, and proven up to the first claim that does not hold.
Answer check_text(const std::string& text, const std::string& name);

struct Options {
  std::uint64_t seed = 1;
  size_t passes = 1;  ///< kinds of damage that each coefficient gets
  size_t most = 0;  ///< mutants of one header, 0 for no limit
  std::string only;  ///< damage is done at places of this name or kind alone ("kO", "comments"); empty: everywhere
  size_t specifications = 0;
  std::string fitter;  ///< the executable outgrad-fit
  Toolchain toolchain;
  Checker checker = check_text;
  std::shared_ptr<Library> library;  ///< what is true of the functions, where several headers are about the same one
};

/// Counts of mutants: tried is the sum of the other four.
struct MutantTally {
  std::int64_t tried = 0, killed = 0, harmless = 0, survived = 0, internal = 0;
  void add(const MutantTally& other);
};

struct MutantFailure {
  std::string header, place, kind, why;
};

/// Of one header.
struct HeaderResult {
  std::string header;
  std::string baseline;  ///< empty, or what the brute force has against the header as it is
  std::map<std::string, double> shares;  ///< how much of each of its claims the brute force saw
  std::map<std::string, MutantTally> kinds;  ///< by place and damage, "constants: sign"
  std::vector<MutantFailure> failures;  ///< survivors and internal errors
  MutantTally total() const;
};

HeaderResult attack_header(const std::string& name, const std::string& text, const std::vector<std::string>& donors, const Options& options);

struct SpecificationFailure {
  std::string specification, outcome, why;
};

/// Of a block of specifications: tried is the sum of the next seven.
struct SpecificationResult {
  std::int64_t tried = 0, fitted = 0, refused = 0, undecided = 0, false_claims = 0, hung = 0, internal = 0, memory = 0;
  std::int64_t survived = 0;  ///< of the false claims, those that `check` accepted
  double longest_cpu_s = 0;
  std::map<std::string, std::int64_t> reasons;  ///< of refusals and of what was left undecided, numbers and names taken out
  std::vector<SpecificationFailure> failures;
  void add(const SpecificationResult& other);
};

inline constexpr size_t kBlock = 20;
/// Those of one block of kBlock, or what is left of `options.specifications`.
std::vector<Specification> specifications_of(size_t block, const Options& options);
SpecificationResult attack_specifications(const std::vector<Specification>& specs, const Options& options);

/// Units of work by name, as stored between runs: "header NAME" and "specifications K".
using Units = std::map<std::string, nlohmann::json>;
nlohmann::json to_json(const HeaderResult& result);
nlohmann::json to_json(const SpecificationResult& result);

/// Schema "outgrad.certificate_attack/1": totals, by header and by kind of damage, and the units they are made of.
nlohmann::json document(const Units& units, std::uint64_t seed);
/// The units of a result file. Throws kernels::SpecError "file: place: why" where it is none, or another seed's.
Units read_units(const std::string& file, std::uint64_t seed);
/// Whether nothing survived, was false, hung or broke down.
bool holds(const nlohmann::json& document);

}  // namespace outgrad::validation::gate
