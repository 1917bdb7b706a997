// What is known of a kernel's speed on an architecture without running it: occupancy, and the time per
// element that its memory traffic, its issued instructions and its table reads leave possible. Results are
// predictions, and are marked so wherever they are shown.
//
// The model, per element on one SM (n large, so prologues count by their share):
//   memory   bytes / B (1 + (F / F*)^-q)^(1/q): B the SM's share of the DRAM bandwidth; F the bytes that
//            resident warps have requested and wait for (a trip's loads, for every resident thread); F* =
//            latency B (Little's law, as in V. Volkov, "Understanding latency hiding on GPUs", PhD thesis, UC
//            Berkeley 2016, ch. 4), q how sharp its corner is
//   issue    I / (32 schedulers clock): I the instructions that a thread issues for an element, from the
//            machine code of the hot path; more where a scheduler has few warps
//   shared   S / (128 clock): S the bytes of shared memory that an element's table reads occupy, conflicts
//            included
//   cache    the lines that loads and stores touch, and the rows of a table that lies in the caches
// These overlap imperfectly: their p-norm, p = kOverlap, is taken for the time. Blocks that do not fill whole
// rounds of resident blocks, or that some SMs have and others have not, cost a part of what stands empty.
//
// Rows of a norm: a thread requests its part of a row (one octet at a time where registers do not hold it),
// and waits for the sums over the row; rows that an SM has side by side wait together. Where rows are
// requested ahead, F is that of all of them. What a thread does once a row, once a slot of rows, or once, is
// spread over its elements. The other kernels of a plan follow one another: each takes its launch, and its
// bytes' time at a part of the bandwidth.
//
// All constants beside those of the boards are fitted to one H200's measurements (model.cpp): they say
// nothing sure of another architecture.
#pragma once

#include <string>

#include "autotune/gpu/variant.h"

namespace outgrad::autotune::gpu {

// One SM's limits (CUDA C++ Programming Guide, "Compute capabilities") and the figures of a board with it
// (NVIDIA's data sheets). A device that is there says these of itself.
struct Architecture {
  std::string name;  // "sm_90"
  std::string board;  // "H200 SXM"
  int sms = 0;
  double clock_ghz = 0;  // boost
  double dram_gb_per_s = 0;  // of the board
  int threads_per_sm = 0;  // resident
  int blocks_per_sm = 0;  // resident
  int shared_per_sm = 0;  // bytes, at the largest carve-out
  int shared_per_block = 0;  // bytes, with opt-in
};
// On this board, or on the one that the architecture is known by. Throws SpecError for what is not in the
// table.
const Architecture& architecture_of(const std::string& name, const std::string& board = "");

inline constexpr int kWarp = 32;
inline constexpr int kSchedulers = 4;  // per SM, one instruction per clock each

// Blocks of a kernel that are resident on one SM; 0 when not even one is.
int resident_blocks(const Architecture& architecture, const KernelResources& resources, int threads);

// What the machine code of one kernel says.
struct CodeFacts {
  std::string symbol;  // mangled
  KernelResources resources;
  // issued on the hot path of one trip, x ~ N(0, 1), without what comes before the loop; of a row that fills
  // its threads
  double instructions_per_element = 0;
  double prologue_instructions = 0;  // per thread
  double shared_loads_per_element = 0;  // of any width, in bytes
  double row_instructions = 0;  // per thread and row, beside those of its elements
  double slot_instructions = 0;  // per thread and slot of rows, beside those of its rows
  bool counted = true;  // else the five above are not known
};

struct Prediction {
  int resident_blocks = 0;
  double occupancy = 0;  // resident warps, of those an SM can hold
  double bytes_in_flight = 0;  // per SM
  double needed_in_flight = 0;
  double memory_ns = 0, issue_ns = 0, shared_ns = 0, cache_ns = 0;  // per element on the whole device
  double others_ns = 0;  // per element, of the kernels beside the one of the schedule
  double launch_ns = 0;  // per element, of that one: its launch and its prologue
  double ns = 0;  // per element, of all
  double share_of_bandwidth = 0;
};
// What a block takes of an SM: what the compiler says, and the launch's dynamic shared memory for the
// problem.
KernelResources resources_of(const Architecture& architecture, const GpuVariant& variant,
                             const KernelResources& compiled);
int block_threads(const GpuVariant& variant);
// Predicts a kernel of which resident_blocks() is not 0. A norm's problem is sized; any other one without a
// size is as large as it takes.
Prediction predict(const Architecture& architecture, const GpuVariant& variant, const CodeFacts& code);

}  // namespace outgrad::autotune::gpu
