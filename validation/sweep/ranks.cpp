// Hands tasks to the ranks by messages of MPI, and to the threads of one process where there is one rank.
#include "validation/sweep/ranks.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "kernels/support/errors.h"
#include "kernels/support/parallel.h"

#ifdef OUTGRAD_HAS_MPI
#include <mpi.h>
#endif

namespace outgrad::validation {
namespace {

bool under_mpirun() {
  // Open MPI, any launcher with PMIx, MPICH
  for (const char* const name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_SIZE"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  return false;
}

#ifdef OUTGRAD_HAS_MPI
enum Tag { kAsk = 1, kTask, kResult, kParted };

/// Rank 0 answers the others until each of them has left, or until something has failed here.
void serve(int others, const kernels::Failure& failure, const std::function<std::int64_t()>& next,
           const std::function<void(std::int64_t, const std::string&)>& collect) {
  // MPI waits by spinning; a task takes a thousand times this
  constexpr auto kPause = std::chrono::microseconds(200);
  while (others > 0 && !failure.happened()) {
    int waiting = 0;
    MPI_Status status;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &waiting, &status);
    if (!waiting) {
      std::this_thread::sleep_for(kPause);
      continue;
    }
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    std::string message(static_cast<std::size_t>(bytes), '\0');
    MPI_Recv(message.data(), bytes, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, MPI_COMM_WORLD,
             MPI_STATUS_IGNORE);
    std::int64_t task = 0;
    switch (status.MPI_TAG) {
      case kAsk:
        task = next();
        MPI_Send(&task, sizeof task, MPI_BYTE, status.MPI_SOURCE, kTask, MPI_COMM_WORLD);
        break;
      case kResult:
        std::memcpy(&task, message.data(), sizeof task);
        collect(task, message.substr(sizeof task));
        break;
      default: --others;
    }
  }
}
#endif

}  // namespace

Ranks::Ranks(Join) : uncaught_(std::uncaught_exceptions()) {
  if (!under_mpirun()) return;
#ifdef OUTGRAD_HAS_MPI
  int provided = 0;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS ||
      provided < MPI_THREAD_SERIALIZED) {
    throw kernels::EnvironmentError("MPI does not let threads take turns in it (MPI_THREAD_SERIALIZED)");
  }
  joined_ = true;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
#else
  throw kernels::EnvironmentError("started by mpirun, but built without MPI (Debian: libopenmpi-dev)");
#endif
}

Ranks::~Ranks() {
#ifdef OUTGRAD_HAS_MPI
  // A rank that leaves without MPI_Finalize ends the job with its exit status.
  if (joined_ && std::uncaught_exceptions() == uncaught_) MPI_Finalize();
#endif
}

int Ranks::threads(int threads) const {
  if (threads > 0 || size_ == 1) return kernels::thread_count(threads);
  const char* const text = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  const int here = text != nullptr ? std::max(1, std::atoi(text)) : 1;
  // A process that mpirun has bound to some cores already has its share.
  const bool bound = omp_get_num_procs() < static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, kernels::thread_count(0) / (bound ? 1 : here));
}

std::string Ranks::broadcast(std::string text) const {
#ifdef OUTGRAD_HAS_MPI
  if (size_ > 1) {
    auto bytes = static_cast<std::int64_t>(text.size());
    MPI_Bcast(&bytes, sizeof bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
    text.resize(static_cast<std::size_t>(bytes));
    MPI_Bcast(text.data(), static_cast<int>(bytes), MPI_BYTE, 0, MPI_COMM_WORLD);
  }
#endif
  return text;
}

void Ranks::share(std::int64_t tasks, int threads, const std::function<std::string(std::int64_t)>& work,
                  const std::function<void(std::int64_t, const std::string&)>& collect) const {
  kernels::Failure failure;
  std::mutex collecting;
  std::atomic<std::int64_t> first = 0;
  std::function<std::int64_t()> next = [&] {
    const std::int64_t task = first++;
    return task < tasks ? task : -1;
  };
  std::function<void(std::int64_t, const std::string&)> deliver = [&](std::int64_t task,
                                                                      const std::string& result) {
    const std::lock_guard lock(collecting);
    collect(task, result);
  };
#ifdef OUTGRAD_HAS_MPI
  std::thread service;
  std::mutex messages;  // only one thread at a time may call MPI
  if (size_ > 1 && rank_ == 0) {
    service = std::thread([&] { failure.guard([&] { serve(size_ - 1, failure, next, deliver); }); });
  } else if (rank_ > 0) {
    next = [&] {
      const std::lock_guard lock(messages);
      std::int64_t task = 0;
      MPI_Send(nullptr, 0, MPI_BYTE, 0, kAsk, MPI_COMM_WORLD);
      MPI_Recv(&task, sizeof task, MPI_BYTE, 0, kTask, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      return task;
    };
    deliver = [&](std::int64_t task, const std::string& result) {
      std::string message(sizeof task, '\0');
      std::memcpy(message.data(), &task, sizeof task);
      message += result;
      const std::lock_guard lock(messages);
      MPI_Send(message.data(), static_cast<int>(message.size()), MPI_BYTE, 0, kResult, MPI_COMM_WORLD);
    };
  }
#endif
#pragma omp parallel num_threads(this->threads(threads))
  {
    while (!failure.happened()) {
      std::int64_t task = -1;
      failure.guard([&] {
        task = next();
        if (task >= 0) deliver(task, work(task));
      });
      if (task < 0) break;
    }
  }
#ifdef OUTGRAD_HAS_MPI
  if (rank_ > 0 && !failure.happened()) MPI_Send(nullptr, 0, MPI_BYTE, 0, kParted, MPI_COMM_WORLD);
  if (service.joinable()) service.join();
#endif
  failure.rethrow();
}

}  // namespace outgrad::validation
