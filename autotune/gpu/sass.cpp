// Decodes machine code into instructions and edges, and counts along paths.
#include "autotune/gpu/sass.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace outgrad::autotune::gpu {
namespace {

constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);

// The instructions that may follow each one.
using Edges = std::vector<std::vector<std::size_t>>;

Edges edges_of(const SassFunction& function) {
  const std::size_t size = function.instructions.size();
  Edges edges(size);
  for (std::size_t i = 0; i < size; ++i) {
    const Instruction& instruction = function.instructions[i];
    bool falls_through = true;
    if (is_instruction(instruction.opcode, "BRX") || is_instruction(instruction.opcode, "JMX") ||
        is_instruction(instruction.opcode, "JMP")) {
      throw std::runtime_error(function.name + ": indirect branch " + instruction.opcode);
    }
    // ptxas writes some jumps as calls that never return; where there is a RET, the way through it ends there
    // and is no path to an EXIT.
    const bool call = is_instruction(instruction.opcode, "CALL", ".NOINC");
    if (is_instruction(instruction.opcode, "CALL") && !call)
      throw std::runtime_error(function.name + ": " + instruction.opcode);
    if (call || is_instruction(instruction.opcode, "BRA") || is_instruction(instruction.opcode, "UBRA")) {
      const std::size_t open = instruction.operands.find("`("), close = instruction.operands.find(')');
      if (open == std::string::npos || close == std::string::npos)
        throw std::runtime_error(function.name + ": branch " + instruction.operands);
      const auto label = function.labels.find(instruction.operands.substr(open + 2, close - open - 2));
      if (label == function.labels.end() || label->second >= size)
        throw std::runtime_error(function.name + ": branch to nowhere");
      edges[i].push_back(label->second);
      falls_through = !instruction.guard.empty() || open != 0;  // a condition may stand before the label
    } else if (is_instruction(instruction.opcode, "EXIT") || is_instruction(instruction.opcode, "RET")) {
      falls_through = !instruction.guard.empty();
    }
    if (falls_through && i + 1 < size) edges[i].push_back(i + 1);
  }
  return edges;
}

// Takes out the edges that close a loop, and returns the instructions that the entry reaches, each before
// those that follow it.
std::vector<std::size_t> one_trip(Edges& edges) {
  enum class State { unseen, open, closed };
  std::vector<State> state(edges.size(), State::unseen);
  std::vector<std::size_t> order;
  std::vector<std::pair<std::size_t, std::size_t>> stack;  // instruction, next of its edges
  if (!edges.empty()) stack.emplace_back(0, 0);
  if (!edges.empty()) state[0] = State::open;
  while (!stack.empty()) {
    auto& [at, next] = stack.back();
    if (next == edges[at].size()) {
      state[at] = State::closed;
      order.push_back(at);
      stack.pop_back();
      continue;
    }
    const std::size_t to = edges[at][next];
    if (state[to] == State::open) {
      edges[at].erase(edges[at].begin() + static_cast<std::ptrdiff_t>(next));
      continue;
    }
    ++next;
    if (state[to] == State::unseen) {
      state[to] = State::open;
      stack.emplace_back(to, 0);
    }
  }
  std::reverse(order.begin(), order.end());
  return order;
}

constexpr std::size_t kInstructionBytes = 16;

// Bits [first, first + count) of an instruction, count <= 64.
std::uint64_t bits_of(std::uint64_t low, std::uint64_t high, int first, int count) {
  std::uint64_t value = first >= 64  ? high >> (first - 64)
                        : first == 0 ? low
                                     : low >> first | high << (64 - first);
  return count == 64 ? value : value & ((std::uint64_t{1} << count) - 1);
}

// The name of a predicate register, negated or not; nothing for the one that is always true.
std::string predicate_of(std::uint64_t number, bool negated) {
  constexpr std::uint64_t kTrue = 7;
  return number == kTrue && !negated
             ? ""
             : (negated ? "!P" : "P") + (number == kTrue ? "T" : std::to_string(number));
}

// `offset` is the instruction's own, `size` the function's, in bytes; a branch's target becomes a label.
Instruction decoded(std::uint64_t low, std::uint64_t high, int architecture, std::size_t offset,
                    std::size_t size, std::map<std::string, std::size_t>& labels) {
  constexpr int kOpcodeBits = 12, kWidthBit = 73;
  struct Known {
    std::uint64_t opcode;
    const char* name;
    bool access, branch;
  };
  static constexpr Known kKnown[] = {
      {0x981, "LDG", true, false},   {0x986, "STG", true, false},   {0x386, "STG", true, false},
      {0x983, "LDL", true, false},   {0x987, "STL", true, false},   {0x387, "STL", true, false},
      {0x984, "LDS", true, false},   {0x988, "STS", true, false},   {0x388, "STS", true, false},
      {0x308, "MUFU", false, false}, {0x908, "MUFU", false, false}, {0xb1d, "BAR", false, false},
      {0x947, "BRA", false, true},   {0x547, "BRA", false, true},   {0x944, "CALL.NOINC", false, true},
      {0x94d, "EXIT", false, false}, {0x950, "RET", false, false},  {0x918, "NOP", false, false},
      {0x949, "BRX", false, false},  {0x94a, "JMP", false, false},  {0x94c, "JMX", false, false}};
  static constexpr const char* kWidths[] = {".U8", ".S8", ".U16", ".S16", ".32", ".64", ".128", ".INVALID"};
  Instruction instruction;
  if (const std::string guard = predicate_of(bits_of(low, high, 12, 3), bits_of(low, high, 15, 1) != 0);
      !guard.empty())
    instruction.guard = "@" + guard;
  const std::uint64_t opcode = bits_of(low, high, 0, kOpcodeBits);
  const auto* const known = std::find_if(std::begin(kKnown), std::end(kKnown),
                                         [&](const Known& each) { return each.opcode == opcode; });
  if (known == std::end(kKnown)) {
    instruction.opcode = "OTHER";
    return instruction;
  }
  instruction.opcode = known->name;
  if (known->access) instruction.opcode += kWidths[bits_of(low, high, kWidthBit, 3)];
  if (known->branch) {
    // The distance from the next instruction in words of 4 bytes, signed: bits 34 to 81; from sm_90 on these
    // count 256 words, and bits 16 to 23 the words below.
    constexpr int kFirst = 34, kCount = 48, kLowFirst = 16, kLowCount = 8, kSplitSince = 90;
    auto words =
        static_cast<std::int64_t>(bits_of(low, high, kFirst, kCount) << (64 - kCount)) >> (64 - kCount);
    if (architecture >= kSplitSince)
      words = words * (1 << kLowCount) + static_cast<std::int64_t>(bits_of(low, high, kLowFirst, kLowCount));
    const std::int64_t target = static_cast<std::int64_t>(offset + kInstructionBytes) + 4 * words;
    if (target < 0 || target >= static_cast<std::int64_t>(size) ||
        target % static_cast<std::int64_t>(kInstructionBytes) != 0)
      throw std::runtime_error("branch at " + std::to_string(offset) + " to " + std::to_string(target));
    const std::string label = ".L_" + std::to_string(target);
    labels[label] = static_cast<std::size_t>(target) / kInstructionBytes;
    // The second form branches on a uniform predicate, bit 91 of the first (.DIV) where lanes of a uniform
    // register's mask have parted: nobody here needs these by their numbers.
    constexpr int kParted = 91;
    const std::string condition =
        opcode == 0x547 ? "UP"
        : bits_of(low, high, kParted, 1) != 0
            ? "UR"
            : predicate_of(bits_of(low, high, 87, 3), bits_of(low, high, 90, 1) != 0);
    instruction.operands = (condition.empty() ? "" : condition + ", ") + "`(" + label + ")";
  }
  return instruction;
}

}  // namespace

bool is_instruction(const std::string& opcode, const std::string& name, const std::string& modifier) {
  if (opcode.compare(0, name.size(), name) != 0 ||
      (opcode.size() > name.size() && opcode[name.size()] != '.'))
    return false;
  return (opcode + ".").find(modifier + ".") != std::string::npos || modifier.empty();
}

std::vector<SassFunction> decode_cubin(const std::string& cubin, int architecture) {
  // ELF-64, little endian (System V ABI, "Object files").
  const auto at = [&](std::size_t offset, std::size_t bytes) {
    if (offset > cubin.size() || bytes > cubin.size() - offset)
      throw std::runtime_error("cubin: cut short at byte " + std::to_string(offset));
    std::uint64_t value = 0;
    for (std::size_t k = 0; k < bytes; ++k)
      value |= std::uint64_t{static_cast<unsigned char>(cubin[offset + k])} << (8 * k);
    return value;
  };
  if (cubin.compare(0, 6,
                    std::string("\x7f"
                                "ELF\x02\x01",
                                6)) != 0)
    throw std::runtime_error("cubin: not a 64-bit ELF file");
  const std::size_t table = at(40, 8), entry = at(58, 2), count = at(60, 2), names_index = at(62, 2);
  if (entry < 64) throw std::runtime_error("cubin: section headers of " + std::to_string(entry) + " bytes");
  const auto header = [&](std::size_t index) { return table + index * entry; };
  const std::size_t names = at(header(names_index) + 24, 8);
  std::vector<SassFunction> functions;
  for (std::size_t index = 0; index < count; ++index) {
    std::size_t from = names + at(header(index), 4);
    std::string name;
    for (char c = 0; (c = static_cast<char>(at(from, 1))) != '\0'; ++from) name += c;
    constexpr const char* kText = ".text.";
    if (name.compare(0, 6, kText) != 0) continue;
    const std::size_t begin = at(header(index) + 24, 8), size = at(header(index) + 32, 8);
    if (size % kInstructionBytes != 0)
      throw std::runtime_error(name + ": " + std::to_string(size) + " bytes are no whole instructions");
    SassFunction function{name.substr(6), {}, {}};
    for (std::size_t offset = 0; offset < size; offset += kInstructionBytes)
      function.instructions.push_back(decoded(at(begin + offset, 8), at(begin + offset + 8, 8), architecture,
                                              offset, size, function.labels));
    functions.push_back(std::move(function));
  }
  if (functions.empty()) throw std::runtime_error("cubin: no function");
  return functions;
}

namespace {

// The shortest and the longest of the ways through a function that have so many of what counts.
class PathSearch {
 public:
  PathSearch(const SassFunction& function, const PathRules& rules)
      : function_(function), rules_(rules), edges_(edges_of(function)), order_(one_trip(edges_)),
        stores_(static_cast<std::size_t>(rules.wide_stores)), to_exit_(function.instructions.size(), 0),
        next_to_exit_(function.instructions.size(), kNowhere),
        lengths_(function.instructions.size(), std::vector<Length>(stores_ + 1)) {}

  HotPaths run() {
    measure_to_exit();
    if (!order_.empty()) lengths_[0][0] = {1, 1};
    for (const std::size_t at : order_)
      if (!is_cold(at)) follow(at);
    if (longest_.at == kNowhere) return found_;
    found_.path = way_to(longest_, &Length::from);
    found_.shortest_path = way_to(shortest_, &Length::from_shortest);
    for (const std::size_t at : found_.path) found_.instructions.push_back(function_.instructions[at]);
    return found_;
  }

 private:
  struct Length {
    int shortest = 0, longest = 0;  // 0: not reached
    std::size_t from = kNowhere, from_shortest = kNowhere;
  };
  struct End {
    std::size_t at = kNowhere, behind = kNowhere;
  };

  bool is_wide(std::size_t at) const {
    return is_instruction(function_.instructions[at].opcode, "STG", rules_.wide_store);
  }
  bool is_counted(std::size_t at) const {
    const Instruction& instruction = function_.instructions[at];
    return is_wide(at) || (rules_.also_counted.count(instruction.opcode) > 0 &&
                           (rules_.count_guarded || instruction.guard.empty()));
  }
  bool is_cold(std::size_t at) const {
    const std::string& opcode = function_.instructions[at].opcode;
    return is_instruction(opcode, "STG") && !is_wide(at) &&
           std::none_of(rules_.also_stores.begin(), rules_.also_stores.end(),
                        [&](const std::string& modifier) { return is_instruction(opcode, "STG", modifier); });
  }

  // The shortest way from each instruction, itself included, to an EXIT without anything that counts.
  void measure_to_exit() {
    for (auto at = order_.rbegin(); at != order_.rend(); ++at) {
      if (is_counted(*at) || is_cold(*at)) continue;
      if (is_instruction(function_.instructions[*at].opcode, "EXIT")) to_exit_[*at] = 1;
      for (const std::size_t to : edges_[*at]) {
        if (to_exit_[to] == 0 || (to_exit_[*at] != 0 && to_exit_[*at] <= to_exit_[to] + 1)) continue;
        to_exit_[*at] = to_exit_[to] + 1;
        next_to_exit_[*at] = to;
      }
    }
  }

  // One step on from an instruction, whatever was counted before it.
  void follow(std::size_t at) {
    const std::size_t more = is_counted(at) ? 1 : 0;
    for (std::size_t before = 0; before + more <= stores_; ++before) {
      const Length length = lengths_[at][before];
      if (length.longest == 0) continue;
      for (const std::size_t to : edges_[at]) {
        if (more == 1 && before + 1 == stores_) {
          if (to_exit_[to] == 0) continue;
          if (found_.shortest == 0 || found_.shortest > length.shortest + to_exit_[to])
            found_.shortest = length.shortest + to_exit_[to], shortest_ = {at, to};
          if (found_.longest < length.longest + to_exit_[to])
            found_.longest = length.longest + to_exit_[to], longest_ = {at, to};
          continue;
        }
        Length& next = lengths_[to][before + more];
        if (next.shortest == 0 || next.shortest > length.shortest + 1)
          next.shortest = length.shortest + 1, next.from_shortest = at;
        if (next.longest < length.longest + 1) next.longest = length.longest + 1, next.from = at;
      }
    }
  }

  std::vector<std::size_t> way_to(const End& end, std::size_t Length::* from_of) const {
    std::vector<std::size_t> path;
    for (std::size_t at = end.at, count = stores_ - 1;;) {
      path.push_back(at);
      const std::size_t from = lengths_[at][count].*from_of;
      if (from == kNowhere) break;
      if (is_counted(from)) --count;
      at = from;
    }
    std::reverse(path.begin(), path.end());
    for (std::size_t at = end.behind; at != kNowhere; at = next_to_exit_[at]) path.push_back(at);
    return path;
  }

  const SassFunction& function_;
  const PathRules& rules_;
  Edges edges_;
  const std::vector<std::size_t> order_;
  const std::size_t stores_;
  std::vector<int> to_exit_;
  std::vector<std::size_t> next_to_exit_;
  std::vector<std::vector<Length>> lengths_;  // [instruction][those that count before it]
  End longest_, shortest_;
  HotPaths found_;
};

}  // namespace

HotPaths hot_paths(const SassFunction& function, const PathRules& rules) {
  return PathSearch(function, rules).run();
}

std::vector<LoopExtent> loops_of(const SassFunction& function) {
  std::map<std::size_t, std::size_t> last_of;  // by first
  for (std::size_t at = 0; at < function.instructions.size(); ++at) {
    if (!is_instruction(function.instructions[at].opcode, "BRA")) continue;
    const std::string& operands = function.instructions[at].operands;
    const std::size_t open = operands.find("`("), close = operands.find(')', open);
    if (open == std::string::npos || close == std::string::npos) continue;
    const auto label = function.labels.find(operands.substr(open + 2, close - open - 2));
    // A branch to itself is what ptxas fills a function's end with.
    if (label != function.labels.end() && label->second < at)
      last_of[label->second] = std::max(last_of[label->second], at);
  }
  std::vector<LoopExtent> loops;
  for (const auto& [first, last] : last_of) loops.push_back({first, last});
  return loops;
}

LoopExtent loop_around(const SassFunction& function, const HotPaths& paths, const PathRules& rules,
                       std::size_t stores) {
  LoopExtent extent, stored{kNowhere, 0};
  std::size_t count = 0;
  for (const std::size_t at : paths.path) {
    if (!is_instruction(function.instructions[at].opcode, "STG", rules.wide_store) ||
        (stores > 0 && count == stores))
      continue;
    ++count;
    stored = {std::min(stored.first, at), std::max(stored.last, at)};
  }
  for (const LoopExtent& loop : loops_of(function))
    if (loop.first <= stored.first && stored.last <= loop.last &&
        (extent.last == 0 || extent.first < loop.first))
      extent = loop;
  return extent;
}

}  // namespace outgrad::autotune::gpu
