// One variant on its way through the tuner: proposed, compiled, verified, timed, or rejected on the way with
// stage and reason.
//
// The states are values and the only way forward is one step: a candidate that was not verified cannot be
// timed, and a rejected one goes nowhere. Rejection is an outcome, kept and stored like any other.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "autotune/space/variant.h"

namespace outgrad::autotune {

// The step of the life cycle that a rejected candidate did not survive.
enum class Stage { kCompile, kVerify, kTime };

enum class Reason {
  kCompilerError,    // the host compiler refused the source
  kCompilerTimeout,  // or did not end in time
  kCompilerCrashed,  // or died of it
  kSpills,           // registers went to memory: slow by construction
  kNoBlockFits,      // no multiprocessor has the registers or the shared memory for one block
  kNotUnderstood,    // the machine code has not the form that its source promises
  kWrongAnswer,      // bits differ from the reference
  kCrashed,          // killed by a signal, or left the child process otherwise
  kHung,             // silent past its limit
  kOutOfMemory,      // asked for more memory than the process or the device has
};

const char* name_of(Stage stage);
const char* name_of(Reason reason);

struct Proposed {};
struct Verified {
  Compiled compiled;
  long long checked;  // outputs compared
};
struct Timed {
  Verified verified;
  std::vector<double> screening_ns;  // one time per screening round
  std::vector<double> final_ns;      // one per final round; empty unless it was a finalist
};
struct Rejected {
  Stage stage;
  Reason reason;
  std::string detail;
};

class Candidate {
 public:
  using State = std::variant<Proposed, Compiled, Verified, Timed, Rejected>;

  // `body`: of the CPU's, the C++ text of the function's body, over `const outgrad::autotune::Arguments& a`;
  // else what its compiler takes.
  Candidate(std::shared_ptr<const AnyVariant> variant, std::string body)
      : variant_(std::move(variant)), body_(std::move(body)) {}
  Candidate(const Variant& variant, std::string body)
      : Candidate(std::make_shared<const Variant>(variant), std::move(body)) {}
  explicit Candidate(const Variant& variant) : Candidate(variant, variant.body()) {}

  const AnyVariant& variant() const { return *variant_; }
  // The same as what it was made of. Throws std::bad_cast for another kind.
  template <class Kind>
  const Kind& variant_as() const {
    return dynamic_cast<const Kind&>(*variant_);
  }
  const std::string& body() const { return body_; }
  const State& state() const { return state_; }

  // The state as an alternative, or nullptr when the candidate is in another state.
  template <class Which>
  const Which* as() const {
    return std::get_if<Which>(&state_);
  }
  // Where its code is; nullptr before compilation and after rejection.
  const Compiled* code() const;
  const char* state_name() const;

  // One step forward, from the state named. Throw std::logic_error from any other.
  void compiled(Compiled result);  // from Proposed
  void verified(long long checked);  // from Compiled
  void timed(std::vector<double> screening_ns, std::vector<double> final_ns);  // from Verified
  // from the state that enters `stage`
  void reject(Stage stage, Reason reason, std::string detail);

 private:
  std::shared_ptr<const AnyVariant> variant_;
  std::string body_;
  State state_;
};

}  // namespace outgrad::autotune
