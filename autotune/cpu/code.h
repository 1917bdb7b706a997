// The machine code of a compiled CPU variant: binutils' disassembly of its object, the loop over its elements, and one trip of that loop.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace outgrad::autotune::cpu {

// One instruction in AT&T syntax: sources before the destination.
struct Instruction {
  std::uint64_t address = 0;
  std::string opcode;                 // "vfmadd132ps", without prefixes
  std::vector<std::string> operands;  // "%zmm1", "0x40(%rsp)", "%zmm4{%k1}"
};

struct Function {
  std::string name;  // mangled
  std::vector<Instruction> instructions;
};

// The functions in the text of `objdump -d --no-show-raw-insn`. Throws SpecError(`origin`, the line, why) for a line in a function that is not of its
// form, and for a text without functions.
std::vector<Function> read_disassembly(std::string_view text, const std::string& origin);
// What objdump, which comes with every compiler of this system, prints for an object. Throws EnvironmentError where there is none, or it fails.
std::string disassembled(const std::string& object);

// Bits of the widest vector register among the operands; 0: there is none.
int vector_bits(const Instruction& instruction);
bool is_memory(std::string_view operand);
bool is_jump(const Instruction& instruction);

// One trip of a loop that stores vectors, on its way without side channels: of all ways through the loop that make all its stores, the one with the fewest
// instructions. Where elements are rare that need more (GELU's left tail, NaNs), this is what most trips do.
struct Trip {
  std::vector<Instruction> path;
  int stored_bytes = 0;         // by vectors, beyond the function's own stack
  std::size_t before = 0;       // instructions from the function's entry to the loop, the fewest
};

struct HotLoops {
  Trip main;
  std::optional<Trip> rest;  // of what is left by whole trips of `main`: the loop that stores least
};

// Of an object with one variant: the loop that stores most bytes to a trip, with streaming stores or with others, and that for the rest in the same function.
// Nothing where there is no such loop.
std::optional<HotLoops> hot_loops(const std::vector<Function>& functions, bool streaming);

}  // namespace outgrad::autotune::cpu
