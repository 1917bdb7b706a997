#include "tests/system/sass.h"

#include <algorithm>
#include <cstddef>
#include <regex>
#include <sstream>
#include <stdexcept>

namespace outgrad::tests {
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
    // ptxas writes some jumps as calls that never return; where there is a RET, the way through it ends there and is no path to an EXIT.
    const bool call = is_instruction(instruction.opcode, "CALL", ".NOINC");
    if (is_instruction(instruction.opcode, "CALL") && !call) throw std::runtime_error(function.name + ": " + instruction.opcode);
    if (call || is_instruction(instruction.opcode, "BRA") || is_instruction(instruction.opcode, "UBRA")) {
      const std::size_t open = instruction.operands.find("`("), close = instruction.operands.find(')');
      if (open == std::string::npos || close == std::string::npos)
        throw std::runtime_error(function.name + ": branch " + instruction.operands);
      const auto label = function.labels.find(instruction.operands.substr(open + 2, close - open - 2));
      if (label == function.labels.end() || label->second >= size) throw std::runtime_error(function.name + ": branch to nowhere");
      edges[i].push_back(label->second);
      falls_through = !instruction.guard.empty() || open != 0;  // a condition may stand before the label
    } else if (is_instruction(instruction.opcode, "EXIT") || is_instruction(instruction.opcode, "RET")) {
      falls_through = !instruction.guard.empty();
    }
    if (falls_through && i + 1 < size) edges[i].push_back(i + 1);
  }
  return edges;
}

// Takes out the edges that close a loop, and returns the instructions that the entry reaches, each before those that follow it.
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

}  // namespace

bool is_instruction(const std::string& opcode, const std::string& name, const std::string& modifier) {
  if (opcode.compare(0, name.size(), name) != 0 || (opcode.size() > name.size() && opcode[name.size()] != '.')) return false;
  return (opcode + ".").find(modifier + ".") != std::string::npos || modifier.empty();
}

std::vector<SassFunction> read_sass(const std::string& text) {
  static const std::regex section(R"(^\.text\.([^:\s]+):\s*$)"), label(R"(^([.$\w]+):\s*$)"),
      instruction(R"(^\s*/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)\s*(.*?)\s*;\s*(/\*.*\*/)?\s*$)"),
      address(R"(^\s*/\*[0-9a-f]{4,}\*/\s+[^0\s].*$)");
  std::vector<SassFunction> functions;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    std::smatch match;
    if (std::regex_match(line, match, section)) {
      functions.push_back({match[1], {}, {}});
    } else if (!functions.empty() && std::regex_match(line, match, label)) {
      functions.back().labels[match[1]] = functions.back().instructions.size();
    } else if (std::regex_match(line, match, instruction)) {
      if (functions.empty()) throw std::runtime_error("line " + std::to_string(number) + ": an instruction outside any function");
      std::string guard = match[2];
      while (!guard.empty() && guard.back() == ' ') guard.pop_back();
      functions.back().instructions.push_back({guard, match[3], match[4]});
    } else if (std::regex_match(line, address)) {
      throw std::runtime_error("line " + std::to_string(number) + ": cannot be read as an instruction: " + line);
    }
  }
  if (functions.empty()) throw std::runtime_error("no function in the disassembly");
  return functions;
}

HotPaths hot_paths(const SassFunction& function, const PathRules& rules) {
  struct Length {
    int shortest = 0, longest = 0;  // 0: not reached
    std::size_t from = kNowhere;    // the longest's
  };
  Edges edges = edges_of(function);
  const std::vector<std::size_t> order = one_trip(edges);
  const auto stores = static_cast<std::size_t>(rules.wide_stores);
  const auto is_wide = [&](std::size_t at) { return is_instruction(function.instructions[at].opcode, "STG", rules.wide_store); };
  const auto is_cold = [&](std::size_t at) {
    const std::string& opcode = function.instructions[at].opcode;
    return is_instruction(opcode, "STG") && !is_wide(at) &&
           std::none_of(rules.also_stores.begin(), rules.also_stores.end(),
                        [&](const std::string& modifier) { return is_instruction(opcode, "STG", modifier); });
  };
  // The shortest way from an instruction, itself included, to an EXIT without a wide store.
  std::vector<int> to_exit(function.instructions.size(), 0);
  std::vector<std::size_t> next_to_exit(function.instructions.size(), kNowhere);
  for (auto at = order.rbegin(); at != order.rend(); ++at) {
    if (is_wide(*at) || is_cold(*at)) continue;
    if (is_instruction(function.instructions[*at].opcode, "EXIT")) to_exit[*at] = 1;
    for (const std::size_t to : edges[*at]) {
      if (to_exit[to] == 0 || (to_exit[*at] != 0 && to_exit[*at] <= to_exit[to] + 1)) continue;
      to_exit[*at] = to_exit[to] + 1;
      next_to_exit[*at] = to;
    }
  }
  // [instruction][wide stores before it]
  std::vector<std::vector<Length>> lengths(function.instructions.size(), std::vector<Length>(stores + 1));
  if (!order.empty()) lengths[0][0] = {1, 1, kNowhere};
  HotPaths found;
  std::size_t last_store = kNowhere, behind = kNowhere;
  for (const std::size_t at : order) {
    if (is_cold(at)) continue;
    const std::size_t more = is_wide(at) ? 1 : 0;
    for (std::size_t before = 0; before + more <= stores; ++before) {
      const Length length = lengths[at][before];
      if (length.longest == 0) continue;
      for (const std::size_t to : edges[at]) {
        if (more == 1 && before + 1 == stores) {
          if (to_exit[to] == 0) continue;
          if (found.shortest == 0 || found.shortest > length.shortest + to_exit[to]) found.shortest = length.shortest + to_exit[to];
          if (found.longest < length.longest + to_exit[to]) found.longest = length.longest + to_exit[to], last_store = at, behind = to;
          continue;
        }
        Length& next = lengths[to][before + more];
        if (next.shortest == 0 || next.shortest > length.shortest + 1) next.shortest = length.shortest + 1;
        if (next.longest < length.longest + 1) next.longest = length.longest + 1, next.from = at;
      }
    }
  }
  if (last_store == kNowhere) return found;
  for (std::size_t at = last_store, count = stores - 1;;) {
    found.instructions.push_back(function.instructions[at]);
    const std::size_t from = lengths[at][count].from;
    if (from == kNowhere) break;
    if (is_wide(from)) --count;
    at = from;
  }
  std::reverse(found.instructions.begin(), found.instructions.end());
  for (std::size_t at = behind; at != kNowhere; at = next_to_exit[at]) found.instructions.push_back(function.instructions[at]);
  return found;
}

}  // namespace outgrad::tests
