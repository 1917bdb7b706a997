// The transitions of a candidate.
#include "autotune/measure/candidate.h"

#include <stdexcept>

namespace outgrad::autotune {
namespace {

template <class Which>
Which& require(Candidate::State& state, const AnyVariant& variant, const char* step) {
  if (Which* held = std::get_if<Which>(&state)) return *held;
  throw std::logic_error("candidate " + variant.name() + ": cannot be " + step + " from its state");
}

}  // namespace

// In the orders of their enumerations.
const char* name_of(Stage stage) {
  constexpr const char* kNames[] = {"compile", "verify", "time"};
  return kNames[static_cast<int>(stage)];
}

const char* name_of(Reason reason) {
  constexpr const char* kNames[] = {"compiler error", "compiler timeout", "compiler crashed", "spills",
                                    "no block fits",  "not understood",   "wrong answer",     "crashed",
                                    "hung",           "out of memory"};
  return kNames[static_cast<int>(reason)];
}

const Compiled* Candidate::code() const {
  if (const auto* held = as<Compiled>()) return held;
  if (const auto* held = as<Verified>()) return &held->compiled;
  if (const auto* held = as<Timed>()) return &held->verified.compiled;
  return nullptr;
}

const char* Candidate::state_name() const {
  // the order of State
  constexpr const char* kNames[] = {"proposed", "compiled", "verified", "timed", "rejected"};
  return kNames[state_.index()];
}

void Candidate::compiled(Compiled result) {
  require<Proposed>(state_, *variant_, "compiled");
  state_ = std::move(result);
}

void Candidate::verified(long long checked) {
  state_ = Verified{std::move(require<Compiled>(state_, *variant_, "verified")), checked};
}

void Candidate::timed(std::vector<double> screening_ns, std::vector<double> final_ns) {
  state_ = Timed{std::move(require<Verified>(state_, *variant_, "timed")), std::move(screening_ns),
                 std::move(final_ns)};
}

void Candidate::reject(Stage stage, Reason reason, std::string detail) {
  switch (stage) {
    case Stage::kCompile: require<Proposed>(state_, *variant_, "rejected by the compiler"); break;
    case Stage::kVerify: require<Compiled>(state_, *variant_, "rejected by verification"); break;
    case Stage::kTime: require<Verified>(state_, *variant_, "rejected while timed"); break;
  }
  state_ = Rejected{stage, reason, std::move(detail)};
}

}  // namespace outgrad::autotune
