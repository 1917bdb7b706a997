// The processes of one MPI job that share a list of tasks: rank 0 hands them out one by one and collects the results. A process that was not started
// by mpirun is rank 0 of 1, and MPI is not touched.
//
// Only rank 0 reads and writes files, so that nothing but messages joins the machines, and what it collects does not depend on who computed it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace outgrad::validation {

class Ranks {
 public:
  /// This process alone.
  Ranks() = default;
  /// Joins the job of mpirun, if there is one; once in a process. Throws kernels::EnvironmentError under mpirun in a build without MPI.
  static Ranks of_job() { return Ranks(Join{}); }
  /// Leaves the job; with an exception under way it ends the whole job, as the others wait for this rank.
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Threads for each rank of this machine: `threads` where that is positive, else an equal share of its cores.
  int threads(int threads) const;

  /// Rank 0's text, on every rank.
  std::string broadcast(std::string text) const;

  /// Every task of [0, tasks) is done once, by some thread of some rank. `work` runs concurrently and gives the result; on rank 0, one at a time,
  /// `collect` takes the result. Returns when all are done. The first exception of either ends the job.
  void share(std::int64_t tasks, int threads, const std::function<std::string(std::int64_t task)>& work,
             const std::function<void(std::int64_t task, const std::string& result)>& collect) const;

 private:
  struct Join {};
  explicit Ranks(Join);

  int rank_ = 0, size_ = 1;
  bool joined_ = false;
  int uncaught_ = 0;  // exceptions under way when it joined
};

}  // namespace outgrad::validation
