// Machine code of kernels, from a cubin, and the instructions that a thread issues on its way through it.
//
// What is counted. A path runs from the kernel's entry to an EXIT and takes every loop for exactly one trip.
// Hot paths are those on which the thread stores exactly the `wide_stores` global words of its octets and
// makes no other global store but those that are allowed by name; this leaves out the element-by-element loop
// of ragged ends and misaligned tensors. Between the entry and the EXIT everything counts: prologue, table
// fill, the octets of one trip, the checks behind the loop. Predicated instructions count whether their
// predicate holds or not: they are issued. Both the shortest and the longest hot path are given; they differ
// by branches that depend on the data.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

namespace outgrad::autotune::gpu {

struct Instruction {
  std::string guard;  // "@P0", "@!UP1", or nothing
  std::string opcode;  // with its modifiers: "LDG.E.128.CONSTANT"
  std::string operands;  // all that follows, without the semicolon
};

// One function, in the order of its addresses.
struct SassFunction {
  std::string name;  // mangled
  std::vector<Instruction> instructions;
  std::map<std::string, std::size_t> labels;  // index of the instruction that follows
};

// Decodes the code of a cubin as far as paths and accesses need it: control flow, guards, loads and stores
// with their widths; any other instruction is "OTHER", and operands are those of branches. NVIDIA documents
// no encoding: it was read off nvdisasm's output for sm_80, sm_90 and sm_100 (CUDA 13.0), and the tests
// compare the two for every kernel. Throws std::runtime_error on anything else than a cubin of 16-byte
// instructions. `architecture`: 90 for sm_90.
std::vector<SassFunction> decode_cubin(const std::string& cubin, int architecture);

struct HotPaths {
  int shortest = 0;  // instructions; 0 if there is no such path
  int longest = 0;
  std::vector<Instruction> instructions;  // of the longest
  std::vector<std::size_t> path;  // their places in the function
  std::vector<std::size_t> shortest_path;  // places of the shortest's
};

struct PathRules {
  std::string wide_store;  // modifier that marks an octet's store: ".128"
  int wide_stores = 1;  // on the path; with those of `also_counted`
  // modifiers of other stores that are part of the work: ".U8", the mask's
  std::set<std::string> also_stores;
  // other instructions that the path has exactly so many of, as "LDG.128": a way that does all of the work
  std::set<std::string> also_counted{};
  bool count_guarded = true;  // also those of `also_counted` that are issued under a predicate
};

// Throws std::runtime_error on an indirect branch, whose target the text does not tell.
HotPaths hot_paths(const SassFunction& function, const PathRules& rules);

// Places of a loop's first and last instruction; first = last = 0: none.
struct LoopExtent {
  std::size_t first = 0, last = 0;

  bool holds(std::size_t at) const { return last > 0 && at >= first && at <= last; }
  bool holds(const LoopExtent& other) const { return holds(other.first) && holds(other.last); }
  bool operator==(const LoopExtent&) const = default;
};
// Every loop of a function, from a backward branch's target to the branch; of those that begin together the
// widest.
std::vector<LoopExtent> loops_of(const SassFunction& function);
// The innermost loop around the first `stores` wide stores of a hot path, 0: all of them.
LoopExtent loop_around(const SassFunction& function, const HotPaths& paths, const PathRules& rules,
                       std::size_t stores = 0);

// Whether `opcode` is `name`, with any modifiers, and has `modifier` among them (nothing: any).
bool is_instruction(const std::string& opcode, const std::string& name, const std::string& modifier = "");

}  // namespace outgrad::autotune::gpu
