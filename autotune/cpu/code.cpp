// Reading objdump's text; loops of a control-flow graph; the way of one trip.
#include "autotune/cpu/code.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <functional>
#include <limits>
#include <set>
#include <unordered_map>

#include "kernels/support/process.h"

namespace outgrad::autotune::cpu {
namespace {

constexpr int kNoCommand = 127;  // the shell's status for a command that is not there
constexpr std::size_t kNowhere = std::numeric_limits<std::size_t>::max();

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())) != 0) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) text.remove_suffix(1);
  return text;
}

std::string_view take_word(std::string_view& text) {
  text = trimmed(text);
  const std::string_view word = text.substr(0, text.find_first_of(" \t"));
  text = trimmed(text.substr(word.size()));
  return word;
}

std::optional<std::uint64_t> hexadecimal(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// At commas that stand outside of parentheses and braces.
std::vector<std::string> operands_of(std::string_view text) {
  std::vector<std::string> operands;
  int depth = 0;
  std::string operand;
  for (const char c : text) {
    if (c == '(' || c == '{') ++depth;
    if (c == ')' || c == '}') --depth;
    if (c == ',' && depth == 0) {
      operands.push_back(std::move(operand));
      operand.clear();
    } else {
      operand += c;
    }
  }
  if (!operand.empty()) operands.push_back(std::move(operand));
  return operands;
}

bool is_prefix(std::string_view word) {
  constexpr std::string_view kPrefixes[] = {"addr32", "bnd", "cs", "data16", "ds", "es", "fs", "gs", "lock", "notrack", "rep", "repnz", "repz", "rex.W", "ss"};
  return std::find(std::begin(kPrefixes), std::end(kPrefixes), word) != std::end(kPrefixes);
}

bool goes_on(const Instruction& instruction) {
  return !instruction.opcode.starts_with("jmp") && !instruction.opcode.starts_with("ret") && instruction.opcode != "ud2" && instruction.opcode != "hlt";
}

using Edges = std::vector<std::vector<std::size_t>>;  // by instruction: those that may be next

Edges edges_of(const Function& function) {
  std::unordered_map<std::uint64_t, std::size_t> at;
  for (std::size_t i = 0; i < function.instructions.size(); ++i) at.emplace(function.instructions[i].address, i);
  Edges edges(function.instructions.size());
  for (std::size_t i = 0; i < function.instructions.size(); ++i) {
    const Instruction& instruction = function.instructions[i];
    if (goes_on(instruction) && i + 1 < function.instructions.size()) edges[i].push_back(i + 1);
    if (!is_jump(instruction) || instruction.operands.empty()) continue;
    const auto target = hexadecimal(instruction.operands.front());  // of an indirect jump there is none
    if (!target) continue;
    if (const auto found = at.find(*target); found != at.end()) edges[i].push_back(found->second);  // else it leaves the function
  }
  return edges;
}

// A loop is entered at its header; an edge back to that begins its next trip.
struct Loop {
  std::set<std::size_t> members;
  std::size_t header = kNowhere;
  std::set<std::size_t> inner;  // members of the loops within it
};

// Strongly connected components with a cycle (R. Tarjan, "Depth-first search and linear graph algorithms", SIAM J. Comput. 1, 1972), without
// recursion: functions have thousands of instructions.
std::vector<std::set<std::size_t>> cycles_of(const std::set<std::size_t>& nodes, const Edges& edges, std::size_t cut) {
  struct Mark {
    std::size_t index = kNowhere, low = kNowhere;
    bool open = false;
  };
  std::unordered_map<std::size_t, Mark> marks;
  std::vector<std::size_t> open;
  std::vector<std::set<std::size_t>> found;
  std::size_t next = 0;
  const auto is_edge = [&](std::size_t to) { return to != cut && nodes.count(to) > 0; };
  for (const std::size_t root : nodes) {
    if (marks[root].index != kNowhere) continue;
    std::vector<std::pair<std::size_t, std::size_t>> way = {{root, 0}};  // node, its next edge
    while (!way.empty()) {
      const std::size_t node = way.back().first;
      if (way.back().second == 0) {
        marks[node] = {next, next, true};
        ++next;
        open.push_back(node);
      }
      bool deeper = false;
      while (way.back().second < edges[node].size()) {
        const std::size_t to = edges[node][way.back().second++];
        if (!is_edge(to)) continue;
        if (marks[to].index == kNowhere) {
          way.push_back({to, 0});
          deeper = true;
          break;
        }
        if (marks[to].open) marks[node].low = std::min(marks[node].low, marks[to].index);
      }
      if (deeper) continue;
      if (marks[node].low == marks[node].index) {
        std::set<std::size_t> component;
        for (std::size_t member = kNowhere; member != node;) {
          member = open.back();
          open.pop_back();
          marks[member].open = false;
          component.insert(member);
        }
        const bool itself = std::any_of(edges[node].begin(), edges[node].end(), [&](std::size_t to) { return to == node && is_edge(to); });
        if (component.size() > 1 || itself) found.push_back(std::move(component));
      }
      way.pop_back();
      if (!way.empty()) marks[way.back().first].low = std::min(marks[way.back().first].low, marks[node].low);
    }
  }
  return found;
}

// All loops, inner ones too.
void collect_loops(const std::set<std::size_t>& nodes, const Edges& edges, const Edges& sources, std::size_t cut, std::vector<Loop>& loops) {
  for (std::set<std::size_t>& members : cycles_of(nodes, edges, cut)) {
    Loop loop;
    for (const std::size_t member : members) {
      const auto is_outside = [&](std::size_t from) { return members.count(from) == 0; };
      const bool entered = member == 0 || std::any_of(sources[member].begin(), sources[member].end(), is_outside);
      if (entered && loop.header == kNowhere) loop.header = member;
    }
    if (loop.header == kNowhere) loop.header = *members.begin();
    loop.members = std::move(members);
    const std::size_t first_inner = loops.size();
    collect_loops(loop.members, edges, sources, loop.header, loops);
    for (std::size_t i = first_inner; i < loops.size(); ++i) loop.inner.insert(loops[i].members.begin(), loops[i].members.end());
    loops.push_back(std::move(loop));
  }
}

bool uses_frame_pointer(const Function& function) {
  return std::any_of(function.instructions.begin(), function.instructions.end(), [](const Instruction& instruction) {
    return instruction.opcode == "mov" && instruction.operands == std::vector<std::string>{"%rsp", "%rbp"};
  });
}

bool is_on_stack(const std::string& operand, bool frame_pointer) {
  return operand.find("(%rsp") != std::string::npos || (frame_pointer && operand.find("(%rbp") != std::string::npos);
}

constexpr std::string_view kVectorStores[] = {"vmovap", "vmovup", "vmovdq", "vmovnt", "vpmov", "vcvtps2ph", "vextract"};

// Bytes that a vector's store writes beyond the stack; 0 for anything else.
int stored_bytes(const Instruction& instruction, bool frame_pointer) {
  constexpr int kByte = 8;
  const std::string& opcode = instruction.opcode;
  if (instruction.operands.size() < 2) return 0;
  const std::string& to = instruction.operands.back();
  if (!is_memory(to) || is_on_stack(to, frame_pointer)) return 0;
  if (std::none_of(std::begin(kVectorStores), std::end(kVectorStores), [&](std::string_view name) { return opcode.starts_with(name); })) return 0;
  const int bytes = vector_bits(instruction) / kByte;
  return opcode.starts_with("vpmov") || opcode.starts_with("vcvtps2ph") || opcode.starts_with("vextract") ? bytes / 2 : bytes;
}

bool is_streaming(const Instruction& instruction) { return instruction.opcode.starts_with("vmovnt"); }

// The fewest instructions from the entry to `to`, it not included.
std::size_t fewest_before(const Edges& edges, std::size_t to) {
  std::vector<std::size_t> distance(edges.size(), kNowhere);
  std::vector<std::size_t> queue = {0};
  distance[0] = 0;
  for (std::size_t next = 0; next < queue.size() && distance[to] == kNowhere; ++next)
    for (const std::size_t after : edges[queue[next]])
      if (distance[after] == kNowhere) {
        distance[after] = distance[queue[next]] + 1;
        queue.push_back(after);
      }
  return distance[to] == kNowhere ? 0 : distance[to];
}

// The trip: most stored bytes first, then fewest instructions. What the loops within do is no part of it.
std::optional<Trip> trip_of(const Function& function, const Edges& edges, const Loop& loop, bool streaming) {
  const bool frame_pointer = uses_frame_pointer(function);
  const auto is_member = [&](std::size_t at) { return loop.members.count(at) > 0 && loop.inner.count(at) == 0; };
  if (!is_member(loop.header)) return std::nullopt;
  const auto bytes_at = [&](std::size_t at) {
    const int bytes = stored_bytes(function.instructions[at], frame_pointer);
    return is_streaming(function.instructions[at]) == streaming ? bytes : 0;
  };
  // Without the header's incoming edges and the loops within, what is left has no cycle: order by depth-first search.
  std::vector<std::size_t> order;
  std::set<std::size_t> seen = {loop.header};
  std::vector<std::pair<std::size_t, std::size_t>> way = {{loop.header, 0}};
  while (!way.empty()) {
    const std::size_t node = way.back().first;
    if (way.back().second < edges[node].size()) {
      const std::size_t to = edges[node][way.back().second++];
      if (to != loop.header && is_member(to) && seen.insert(to).second) way.push_back({to, 0});
    } else {
      order.push_back(node);
      way.pop_back();
    }
  }
  std::reverse(order.begin(), order.end());
  struct Best {
    int bytes = -1;
    std::size_t length = 0, from = kNowhere;
    bool better_than(const Best& other) const { return bytes != other.bytes ? bytes > other.bytes : length < other.length; }
  };
  std::unordered_map<std::size_t, Best> best;
  best[loop.header] = {bytes_at(loop.header), 1, kNowhere};
  Best end;
  std::size_t last = kNowhere;
  for (const std::size_t node : order) {
    const Best here = best[node];
    if (here.bytes < 0) continue;
    for (const std::size_t to : edges[node]) {
      if (to == loop.header) {
        if (last == kNowhere || here.better_than(end)) end = here, last = node;
        continue;
      }
      if (!is_member(to)) continue;
      const Best next = {here.bytes + bytes_at(to), here.length + 1, node};
      if (best[to].bytes < 0 || next.better_than(best[to])) best[to] = next;
    }
  }
  if (last == kNowhere || end.bytes <= 0) return std::nullopt;
  Trip trip;
  trip.stored_bytes = end.bytes;
  for (std::size_t at = last; at != kNowhere; at = best[at].from) trip.path.push_back(function.instructions[at]);
  std::reverse(trip.path.begin(), trip.path.end());
  trip.before = fewest_before(edges, loop.header);
  return trip;
}

}  // namespace

bool is_jump(const Instruction& instruction) { return instruction.opcode.front() == 'j'; }

bool is_memory(std::string_view operand) { return operand.find('(') != std::string_view::npos && operand.front() != '*'; }

int vector_bits(const Instruction& instruction) {
  int bits = 0;
  for (const std::string& operand : instruction.operands)
    for (const auto& [name, width] : {std::pair("%xmm", 128), std::pair("%ymm", 256), std::pair("%zmm", 512)})
      if (operand.find(name) != std::string::npos) bits = std::max(bits, width);
  return bits;
}

std::vector<Function> read_disassembly(std::string_view text, const std::string& origin) {
  std::vector<Function> functions;
  bool inside = false;
  std::size_t line_number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    ++line_number;
    std::string_view rest = trimmed(line);
    if (rest.empty() || rest == "...") continue;  // "...": zeros
    const auto bad = [&](const std::string& why) {
      return kernels::SpecError(origin, "line " + std::to_string(line_number), why + ": '" + std::string(trimmed(line)) + "'");
    };
    const std::size_t open = line.find(" <");
    if (line.back() == ':' && open != std::string_view::npos && hexadecimal(line.substr(0, open))) {
      const std::string_view name = line.substr(open + 2);
      functions.push_back({std::string(name.substr(0, name.rfind('>'))), {}});
      inside = true;
      continue;
    }
    if (rest.starts_with("Disassembly of section")) {
      inside = false;
      continue;
    }
    if (!inside) continue;  // the file's name and form
    const std::size_t colon = rest.find(':');
    const auto address = hexadecimal(rest.substr(0, colon));
    if (colon == std::string_view::npos || !address) throw bad("not an instruction of a disassembly");
    rest = trimmed(rest.substr(colon + 1));
    rest = trimmed(rest.substr(0, rest.find(" #")));
    Instruction instruction;
    instruction.address = *address;
    std::string_view word = take_word(rest);
    while (is_prefix(word) && !rest.empty()) word = take_word(rest);
    if (word.empty() || (std::isalpha(static_cast<unsigned char>(word.front())) == 0)) throw bad("no instruction after the address");
    instruction.opcode = word;
    instruction.operands = operands_of(rest.substr(0, rest.find(" <")));  // "1556 <symbol+0x1c6>"
    if (!functions.back().instructions.empty() && functions.back().instructions.back().address >= *address) throw bad("an address that does not ascend");
    functions.back().instructions.push_back(std::move(instruction));
  }
  std::erase_if(functions, [](const Function& function) { return function.instructions.empty(); });
  if (functions.empty()) throw kernels::SpecError(origin, "line " + std::to_string(line_number), "no function in the disassembly");
  return functions;
}

std::string disassembled(const std::string& object) {
  kernels::Launch launch{{"objdump", "-d", "--no-show-raw-insn", object}};
  launch.out = kernels::Launch::kCaptured;  // a failure is said below, in one line
  launch.environment = {"LC_ALL=C"};
  kernels::Ending ending = kernels::run(launch);
  if (ending.status < 0 || ending.status == kernels::Ending::kNotStarted)
    throw kernels::EnvironmentError("objdump, of binutils, does not run: a ranking for the CPU reads machine code with it");
  if (ending.status != 0) throw kernels::EnvironmentError("objdump does not read " + object);
  return std::move(ending.text);
}

std::optional<HotLoops> hot_loops(const std::vector<Function>& functions, bool streaming) {
  std::optional<HotLoops> found;
  for (const Function& function : functions) {
    const Edges edges = edges_of(function);
    Edges sources(edges.size());
    std::set<std::size_t> all;
    for (std::size_t from = 0; from < edges.size(); ++from) {
      all.insert(from);
      for (const std::size_t to : edges[from]) sources[to].push_back(from);
    }
    std::vector<Loop> loops;
    collect_loops(all, edges, sources, kNowhere, loops);
    std::optional<Trip> most, least;
    for (const Loop& loop : loops) {
      std::optional<Trip> trip = trip_of(function, edges, loop, streaming);
      if (!trip) continue;
      if (!most || trip->stored_bytes > most->stored_bytes) most = trip;
      if (!least || trip->stored_bytes < least->stored_bytes) least = trip;
    }
    if (!most || (found && found->main.stored_bytes >= most->stored_bytes)) continue;
    found = HotLoops{*most, std::nullopt};
    if (least->stored_bytes < most->stored_bytes) found->rest = least;
  }
  return found;
}

}  // namespace outgrad::autotune::cpu
