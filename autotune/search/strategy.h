// Search strategies: which points of a space to evaluate next, given what came of those before.
//
// One interface for all: ask for points, evaluate them in any way and order, tell what came of each. A
// strategy sees neither clock nor device; budgets are its caller's. The same seed, questions and answers give
// the same points.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "autotune/space/space.h"

namespace outgrad::autotune {

class Strategy {
 public:
  // `first`: points proposed before any other, in this order: a ranking's best, a neighbouring device's
  // winner.
  Strategy(const Points& points, std::uint64_t seed, std::vector<std::size_t> first);
  virtual ~Strategy() = default;
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;

  // Up to `most` points, each asked for once only; fewer when the space has no more. Points asked for and not
  // told yet count as pending: a strategy keeps away from them.
  std::vector<std::size_t> ask(std::size_t most);
  // Points may be told that were not asked for: what an earlier run measured. Throws std::logic_error for a
  // point told twice or a time that is not positive and finite.
  void tell(std::size_t point, Outcome outcome);

 protected:
  // The strategy's choice, a point not seen() yet, of which there is one; nothing: any will do, and it gets
  // one at random.
  virtual std::optional<std::size_t> choose() = 0;
  virtual void learn(std::size_t, Outcome) {}

  const Points& points() const { return points_; }
  bool seen(std::size_t point) const { return state_[point] != State::kUnseen; }  // asked for, or told
  const std::vector<std::size_t>& pending() const { return pending_; }
  std::optional<std::size_t> random_unseen();
  std::size_t below(std::size_t n);  // uniform in [0, n)
  double uniform();  // in [0, 1)

 private:
  enum class State : char { kUnseen, kPending, kTold };
  const Points& points_;
  std::uint64_t random_;
  std::deque<std::size_t> first_;
  std::vector<State> state_;
  std::size_t unseen_;
  std::vector<std::size_t> pending_;
  std::vector<std::uint32_t> shuffled_;  // all points; those before drawn_ were drawn by random_unseen()
  std::size_t drawn_ = 0;
};

// Names for make_strategy, the default first.
const std::vector<std::string>& strategy_names();

// model         Gaussian process with expected improvement; the default, needs no options
//               (autotune/search/surrogate.h)
// evolutionary  steady state: tournaments, uniform crossover, mutation
// local         descent to the first better neighbour, restarted at random
// random        uniform, without repetition
// exhaustive    all, in order
// The points must outlive the strategy. Throws std::invalid_argument for an unknown name.
std::unique_ptr<Strategy> make_strategy(const std::string& name, const Points& points, std::uint64_t seed,
                                        std::vector<std::size_t> first = {});

}  // namespace outgrad::autotune
