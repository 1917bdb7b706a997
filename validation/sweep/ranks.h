// The processes of one MPI job that share a list of tasks. Rank 0 hands the tasks out one by one and collects
// the results. A process that mpirun did not start is rank 0 of 1, and does not use MPI.
//
// Only rank 0 reads and writes files, so messages are the only link between the machines. The collected
// result does not depend on who computed it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace outgrad::validation {

class Ranks {
 public:
  /// This process alone.
  Ranks() = default;
  /// Joins the job of mpirun, if there is one; to be done once in a process. Throws kernels::EnvironmentError
  /// under mpirun if the build has no MPI.
  static Ranks of_job() { return Ranks(Join{}); }
  /// Leaves the job. During an exception it ends the whole job, because the others wait for this rank.
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Threads for each rank of this machine: `threads` if that is positive, otherwise an equal share of the
  /// machine's cores.
  int threads(int threads) const;

  /// Returns rank 0's text on every rank.
  std::string broadcast(std::string text) const;

  /// Does every task of [0, tasks) once, in some thread of some rank. `work` runs concurrently and returns
  /// the result. On rank 0, `collect` takes the results one at a time. Returns when all are done. The first
  /// exception of either ends the job.
  void share(std::int64_t tasks, int threads, const std::function<std::string(std::int64_t task)>& work,
             const std::function<void(std::int64_t task, const std::string& result)>& collect) const;

 private:
  struct Join {};
  explicit Ranks(Join);

  int rank_ = 0, size_ = 1;
  bool joined_ = false;
  int uncaught_ = 0;  // number of exceptions in flight when it joined
};

}  // namespace outgrad::validation
