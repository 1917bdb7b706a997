// What is known of a CPU variant's speed without running it: the time per element that its machine code, its memory traffic and the way it is cut into tasks
// leave possible. Results are predictions, and are marked so wherever they are shown. Of GELU's kernels with vectors, with and without a bias; bias's backward
// has passes beside its loop, the norms have several loops, and GELU's forward of 16 bits in vectors of 256 looks up its outputs: of those there is no model.
//
// The model, in clocks per trip of the loop over elements (autotune/cpu/code.h: a trip without side channels), loads from the first-level cache:
//   issue    the largest of: macro-operations / dispatch width, a gather's micro-code beside them; for every set of vector pipes the work that only those can
//            do, over their number (what an optimal assignment leaves); loads and stores over their pipes. A 512-bit operation occupies a 256-bit pipe twice.
//   latency  L / (1 + W / N): L the longest chain of dependent instructions that begins and ends in a trip, N the trip's macro-operations, W those that the
//            core holds while they wait. N << W: W / N trips are under way, each L long (Little's law); N >> W: one trip is. But no less than what each trip
//            adds to the longest chain through all of them.
// and per element, of one thread:
//   memory   bytes of inputs, and of outputs twice (they are read before they are written), over the bandwidth of the nearest level that holds the arrays (a
//            core's own caches: the thread's part of them; nothing, where that is the first level); streamed outputs once, over the thread's share of what can
//            be written past the caches.
// These overlap imperfectly: their p-norm, p = 4 as in the model for GPUs, is taken for the time. A call takes what its busiest thread does: its elements
// (whole tasks, handed out as OpenMP's static schedule does), remainders of a task or row by the loop for them; and for each task or row once the instructions
// before the loop, one trip's chain and a mispredicted branch, for each task a fence where it streams; and a start of the threads.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "autotune/cpu/code.h"
#include "autotune/variant.h"

namespace outgrad::autotune::cpu {

// Sets of vector pipes, a bit each.
using Pipes = unsigned;

// What one instruction takes, in a core's terms.
struct Cost {
  double operations = 1;  // dispatched
  double microcode = 0;   // clocks of dispatch that an instruction of many operations takes beside the others
  Pipes pipes = 0;        // that can do it; 0: none is needed
  double pipe_clocks = 0;
  double loads = 0, stores = 0;  // clocks of a pipe for loads, of the one for stores
  double latency = 0;     // clocks from the last source to the result, a load from the first-level cache included
  bool gather = false, permute = false;
};

// A microarchitecture.
struct Core {
  std::string name;
  double clock_ghz;
  double dispatch;         // macro-operations per clock
  double waiting;          // macro-operations that may wait for operands
  int vector_pipes;
  int pipe_bits;           // width of a pipe
  double load_pipes, store_pipes;
  double mispredict;       // clocks
  double l2_bytes, l3_bytes;  // per clock and core
  double dram_gb_per_s, dram_write_gb_per_s;  // that the cores of one machine share
};
// Of a CPU, by the family and model that CPUID gives. Throws EnvironmentError for one that is not in the table.
const Core& core_of(unsigned family, unsigned model);
// This machine's, or that of OUTGRAD_CPU_MODEL=FAMILY,MODEL, by which the tests pretend another machine.
const Core& this_core();
const Core& zen4();

Cost cost_of(const Core& core, const Instruction& instruction);

// Of one trip.
struct TripCost {
  int instructions = 0, loads = 0, stores = 0, gathers = 0, permutes = 0;
  double operations = 0;
  double issue_clocks = 0, chain_clocks = 0, recurrence_clocks = 0;
  double latency_clocks = 0;
};
TripCost cost_of(const Core& core, const std::vector<Instruction>& path);

// Caches are a core's own but for the third level.
struct Machine {
  int threads = 1;
  double l1_bytes = 0, l2_bytes = 0, l3_bytes = 0;
};
Machine this_machine();

// What the object of a variant says.
struct LoopCost {
  TripCost trip;
  double elements = 0;  // of a trip
};
struct CodeCost {
  LoopCost main;
  std::optional<LoopCost> rest;
  double before = 0;  // instructions before the loop
};
CodeCost cost_of(const Core& core, const HotLoops& loops, FormatId format);

struct Prediction {
  double issue_ns = 0, latency_ns = 0, memory_ns = 0;  // per element, on one thread, in the main loop
  double loop_ns = 0;                                  // per element, their p-norm
  double busiest = 0;                                  // elements of the busiest thread, of all
  double starts_ns = 0;                                // of tasks, rows and threads, per call
  double ns = 0;                                       // per call
};
// Of a variant that has a model, whose problem is sized.
Prediction predict(const Core& core, const Machine& machine, const Variant& variant, const CodeCost& code);

// Whether there is a model of a variant; else why not.
std::optional<std::string> without_model(const Variant& variant);
// Whether its stores go past the caches.
bool streams(const Variant& variant);
// The variant whose object has the loops of this one, with and without streaming stores: those that differ in how they are cut into tasks share it.
Variant loop_variant(const Variant& variant);

}  // namespace outgrad::autotune::cpu
