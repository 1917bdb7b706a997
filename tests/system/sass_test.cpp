// What the CUDA compiler makes of the kernels of elementwise.cuh and bias.cuh, without a GPU: registers,
// spills, the width of global accesses, and the instructions that a thread issues for an element, against
// sass_limits.txt; and of the norms' kernels, against norm_sass_limits.txt.
//
// Counted as autotune/gpu/sass.h says: from the kernel's entry through one trip, prologue and table fill
// included, divided by the trip's elements (8 to an octet). Large arrays take many trips and pay the prologue
// once, so this is more than what they issue. Without nvcc or a disassembler the tests are skipped, not
// passed.

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <map>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "autotune/gpu/sass.h"
#include "kernels/cuda/plan.h"
#include "kernels/support/files.h"
#include "kernels/support/jit/nvrtc.h"

namespace outgrad::tests {
namespace {

namespace fs = std::filesystem;
using namespace autotune::gpu;  // the readers under test
using kernels::jit::KernelResources;
using kernels::jit::read_ptxas_report;

const fs::path kRoot = OUTGRAD_SOURCE_DIR;
const fs::path kBuild = OUTGRAD_BINARY_DIR;

// --- The reader ----------------------------------------------------------------------------------

// What nvdisasm -c prints. Throws std::runtime_error, naming the line, on text that is not nvdisasm's.
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
      if (functions.empty())
        throw std::runtime_error("line " + std::to_string(number) + ": an instruction outside any function");
      std::string guard = match[2];
      while (!guard.empty() && guard.back() == ' ') guard.pop_back();
      functions.back().instructions.push_back({guard, match[3], match[4]});
    } else if (std::regex_match(line, address)) {
      throw std::runtime_error("line " + std::to_string(number) +
                               ": cannot be read as an instruction: " + line);
    }
  }
  if (functions.empty()) throw std::runtime_error("no function in the disassembly");
  return functions;
}

// Instructions of double precision: half to a 64th of the rate of the others.
bool is_double(const std::string& opcode) {
  static const std::regex kDouble(R"(D(ADD|MUL|FMA|SETP|MNMX)(\..*)?|(.*\.F64|MUFU\.\w*64H)(\..*)?)");
  return std::regex_match(opcode, kDouble);
}

constexpr const char* kLoop = R"(	.target	sm_90
.text.kernel:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/               @P0 BRA `(.L_x_2) ;
.L_x_1:
        /*0020*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0030*/              @!P1 BRA `(.L_x_3) ;
        /*0040*/                   FADD R4, R4, R5 ;
        /*0050*/                   FADD R6, R6, R7 ;
.L_x_3:
        /*0060*/                   STG.E.128 desc[UR4][R2.64], R4 ;
        /*0070*/               @P2 BRA `(.L_x_1) ;
.L_x_2:
        /*0080*/               @P3 EXIT ;
        /*0090*/                   STG.E.U16 desc[UR4][R2.64], R4 ;
        /*00a0*/                   EXIT ;
.L_x_4:
        /*00b0*/                   BRA `(.L_x_4);
        /*00c0*/                   NOP;
)";

TEST(SassReaderTest, ReadsInstructionsAndLabels) {
  const std::vector<SassFunction> functions = read_sass(kLoop);
  ASSERT_EQ(functions.size(), 1u);
  EXPECT_EQ(functions[0].name, "kernel");
  ASSERT_EQ(functions[0].instructions.size(), 13u);
  EXPECT_EQ(functions[0].instructions[1].guard, "@P0");
  EXPECT_EQ(functions[0].instructions[2].opcode, "LDG.E.128");
  EXPECT_EQ(functions[0].labels.at(".L_x_2"), 8u);
  EXPECT_TRUE(is_instruction("LDG.E.128.CONSTANT", "LDG", ".128"));
  EXPECT_FALSE(is_instruction("LDG.E.128.CONSTANT", "LD", ".128"));
  EXPECT_FALSE(is_instruction("LDG.E.U16", "LDG", ".U1"));
}

TEST(SassReaderTest, CountsOneTripWithAndWithoutTheBranch) {
  const HotPaths paths = hot_paths(read_sass(kLoop).front(), {".128", 1, {}});
  EXPECT_EQ(paths.longest, 9);  // all up to the EXIT at 0080
  EXPECT_EQ(paths.shortest, 7);  // without the two additions
  EXPECT_EQ(paths.instructions.size(), 9u);
  EXPECT_EQ(hot_paths(read_sass(kLoop).front(), {".128", 2, {}}).longest, 0) << "one trip stores once";
  EXPECT_EQ(hot_paths(read_sass(kLoop).front(), {".64", 1, {}}).longest, 0);
}

TEST(SassReaderTest, FollowsJumpsWrittenAsCalls) {
  std::string text = kLoop;
  text.replace(text.find("@P2 BRA `(.L_x_1)"), 17, "@P2 CALL.REL.NOINC `(.L_x_2)");
  EXPECT_EQ(hot_paths(read_sass(text).front(), {".128", 1, {}}).longest, 9);
}

TEST(SassReaderTest, KnowsDoublePrecision) {
  for (const char* opcode :
       {"DADD", "DFMA.RM", "DSETP.MAX.AND", "F2F.F64.F32", "F2F.F32.F64", "I2F.F64.S64", "MUFU.RCP64H"})
    EXPECT_TRUE(is_double(opcode)) << opcode;
  for (const char* opcode : {"FADD", "DEPBAR.LE", "MUFU.SQRT", "LDG.E.64", "F2FP.BF16.F32.PACK_AB"})
    EXPECT_FALSE(is_double(opcode)) << opcode;
}

TEST(SassReaderTest, RefusesWhatItCannotRead) {
  EXPECT_THROW(read_sass("nothing"), std::runtime_error);
  EXPECT_THROW(read_sass(".text.kernel:\n        /*0000*/                   (FADD) R4 ;\n"),
               std::runtime_error);
  EXPECT_THROW(hot_paths(read_sass(".text.k:\n  /*0000*/  BRX R2 ;\n").front(), {".128", 1, {}}),
               std::runtime_error);
  EXPECT_THROW(hot_paths(read_sass(".text.k:\n  /*0000*/  BRA `(.L_x_9) ;\n").front(), {".128", 1, {}}),
               std::runtime_error);
}

// Two readers of the same machine code: our decoder of a cubin and nvdisasm. Whatever the decoder names,
// nvdisasm names so too, and the other way round; branches lead to the same instructions.
void expect_same_code(const SassFunction& decoded, const SassFunction& disassembled) {
  static const std::set<std::string> kNamed = {"LDG", "STG",  "LDL",  "STL", "LDS", "STS", "MUFU", "BAR",
                                               "BRA", "CALL", "EXIT", "RET", "NOP", "BRX", "JMP",  "JMX"};
  static const std::set<std::string> kWidths = {".U8", ".S8", ".U16", ".S16", ".64", ".128"};
  const auto base_of = [](const std::string& opcode) { return opcode.substr(0, opcode.find('.')); };
  const auto target_of = [](const SassFunction& function, const Instruction& instruction) -> long {
    const std::size_t open = instruction.operands.find("`(");
    if (open == std::string::npos) return -1;
    return static_cast<long>(function.labels.at(
        instruction.operands.substr(open + 2, instruction.operands.find(')', open) - open - 2)));
  };
  ASSERT_EQ(decoded.instructions.size(), disassembled.instructions.size());
  for (std::size_t i = 0; i < decoded.instructions.size(); ++i) {
    const Instruction &ours = decoded.instructions[i], &theirs = disassembled.instructions[i];
    SCOPED_TRACE(theirs.guard + " " + theirs.opcode + " " + theirs.operands);
    const std::string base = base_of(theirs.opcode);
    if (kNamed.count(base) == 0) {
      ASSERT_EQ(ours.opcode, "OTHER");
      continue;
    }
    ASSERT_EQ(base_of(ours.opcode), base);
    ASSERT_EQ(ours.guard.empty(), theirs.guard.empty());
    if (base == "BRA" || base == "CALL") {
      ASSERT_EQ(target_of(decoded, ours), target_of(disassembled, theirs));
    }
    if (base == "BRA") {
      ASSERT_EQ(ours.operands[0] == '`', theirs.operands[0] == '`') << "a condition beside the guard";
    }
    for (const std::string& width : kWidths) {
      if (base.starts_with("LD") || base.starts_with("ST")) {
        ASSERT_EQ(is_instruction(ours.opcode, base, width), is_instruction(theirs.opcode, base, width));
      }
    }
  }
}

TEST(SassReaderTest, RefusesWhatIsNoCubin) {
  EXPECT_THROW(decode_cubin("", 90), std::runtime_error);
  EXPECT_THROW(decode_cubin(std::string("\x7f"
                                        "ELF\x02\x01",
                                        6),
                            90),
               std::runtime_error);
  EXPECT_THROW(decode_cubin(std::string(4096, '\xff'), 90), std::runtime_error);
}

// --- The kernels ---------------------------------------------------------------------------------

// A line of sass_limits.txt.
struct Row {
  std::string architecture, kernel, fit, t, y, schedule;
  int octets = 0, access_bytes = 0;
  double shortest = 0, longest = 0;  // instructions per element, as measured when the limits were set
  int registers = 0;
  double most_instructions = 0;
  int most_registers = 0;
};

std::vector<Row> read_limits() {
  std::vector<Row> rows;
  std::ifstream file(kRoot / "tests/system/sass_limits.txt");
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    Row row;
    std::istringstream words(line);
    if (!(words >> row.architecture >> row.kernel >> row.fit >> row.t >> row.y >> row.schedule >>
          row.octets >> row.access_bytes >> row.shortest >> row.longest >> row.registers >>
          row.most_instructions >> row.most_registers)) {
      throw std::runtime_error("sass_limits.txt: " + line);
    }
    rows.push_back(row);
  }
  return rows;
}

// Alternatives to the default, by the name that the limits use.
constexpr const char* kSchedules = R"(
struct ByColumns { static constexpr GpuSchedule kSchedule{.table = TableHome::columns}; };
struct ByRows { static constexpr GpuSchedule kSchedule{.table = TableHome::rows}; };
struct ByCaches { static constexpr GpuSchedule kSchedule{.table = TableHome::caches}; };
struct ByOneOctet { static constexpr GpuSchedule kSchedule{.octets = 1}; };
struct ByFourOctets { static constexpr GpuSchedule kSchedule{.threads = 128, .octets = 4}; };
struct ByNarrow { static constexpr GpuSchedule kSchedule{.threads = 512, .octets = 1, .access_bytes = 8}; };
struct ByStreaming {
  static constexpr GpuSchedule kSchedule{.blocks_per_sm = 0, .resident_blocks = 2,
                                         .loads = CacheHint::streaming, .stores = CacheHint::streaming};
};
)";

// Of the kernels of gated pairs: how many arrays of elements they read and write, whether a mask, and whether
// two arrays of codes.
struct PairArrays {
  int read = 0, written = 0;
  bool reads_mask = false, writes_mask = false, reads_codes = false, writes_codes = false;
};
PairArrays pair_arrays(const std::string& kernel) {
  if (kernel == "gated_forward") return {2, 1};
  if (kernel == "gated_backward") return {3, 3};
  if (kernel == "gated_forward_8bit") return {.read = 2, .written = 1, .writes_codes = true};
  if (kernel == "gated_backward_8bit") return {.read = 1, .written = 3, .reads_codes = true};
  if (kernel == "product_forward") return {.read = 2, .written = 2, .writes_mask = true};
  if (kernel == "product_backward") return {.read = 3, .written = 2, .reads_mask = true};
  return {};
}

// The explicit instantiation of a line's kernel. Y is the format of the bias for bias_gelu_forward, of y for
// the backwards. An activation_forward runs the fit and, by ForwardsScheduleOf, the schedule of its function.
std::string instantiation_of(const Row& row) {
  const std::string t = row.t, in = "const " + row.t + "*, ", y = "const " + row.y + "*, ";
  if (const PairArrays pair = pair_arrays(row.kernel); pair.read > 0) {
    std::string arrays;
    for (int k = 0; k < pair.read; ++k) arrays += in;
    if (pair.reads_mask) arrays += "const u32*, ";
    if (pair.reads_codes) arrays += "cuda::GatedCodes, ";
    arrays += "i64, i64, i64";
    for (int k = 0; k < pair.written; ++k) arrays += ", " + t + "*";
    if (pair.writes_mask) arrays += ", u32*";
    if (pair.writes_codes) arrays += ", cuda::Maxima, cuda::GatedCodes";
    const std::string kept = pair.reads_codes || pair.writes_codes ? ", cuda::AtScale<" + row.y + ">" : "";
    return "template __global__ void cuda::" + row.kernel + "<gates::" + row.fit + ", " + t + kept +
           ", true>(" + arrays + ");\n";
  }
  const bool by_function = row.kernel == "activation_forward";
  const std::string start = "template __global__ void cuda::" + row.kernel +
                            (by_function ? "<forwards::" : "<generated::") + row.fit + ", " + t + ", ";
  if (by_function)
    return start + "cuda::" + row.schedule + "<forwards::" + row.fit + ", " + t + ">>(" + in + t +
           "*, u32*, i64);\n";
  if (row.kernel == "gelu_forward") return start + row.schedule + ">(" + in + t + "*, u32*, i64);\n";
  if (row.kernel == "activation_backward")
    return start + row.y + ", " + row.schedule + ">(" + in + y + "const u32*, " + t + "*, i64);\n";
  if (row.kernel == "bias_gelu_forward")
    return start + row.y + ", true, " + row.schedule + ">(" + in + y + "i64, i64, " + t + "*, u32*);\n";
  if (row.kernel == "bias_gelu_backward")
    return start + "true, " + row.schedule + ">(" + in + y + "const u32*, cuda::SlotRows, int, i64, " + t +
           "*, float*);\n";
  throw std::runtime_error("sass_limits.txt: no kernel " + row.kernel);
}

struct Output {
  int status = 0;
  std::string text;
};

Output run(const std::string& command) {
  Output output;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("popen failed");
  std::array<char, 65536> buffer;
  for (std::size_t size; (size = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    output.text.append(buffer.data(), size);
  const int status = pclose(pipe);
  output.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return output;
}

std::string find_nvcc() {
  std::vector<std::string> candidates;
  for (const char* variable : {"CUDA_PATH", "CUDA_HOME"}) {
    if (const char* value = std::getenv(variable)) candidates.push_back(std::string(value) + "/bin/nvcc");
  }
  if (const char* value = std::getenv("CUDACXX")) candidates.insert(candidates.begin(), value);
  candidates.insert(candidates.end(), {"nvcc", "/usr/local/cuda/bin/nvcc"});
  for (const std::string& candidate : candidates) {
    if (run("'" + candidate + "' --version").status == 0) return candidate;
  }
  return {};
}

std::map<std::string, KernelResources> resources_of(const std::string& log) {
  std::map<std::string, KernelResources> resources;
  for (const auto& [name, use] : read_ptxas_report(log)) resources[name] = use;
  return resources;
}

std::string mangled(const std::string& name) { return std::to_string(name.size()) + name; }

class SassTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (nvcc.empty()) GTEST_SKIP() << "no CUDA toolkit here: nvcc was not found";
    Output found = run("bash '" + (kRoot / "tests/system/pinned_tool.sh").string() + "' nvdisasm '" +
                       kBuild.string() + "'");
    while (!found.text.empty() && found.text.back() == '\n') found.text.pop_back();
    if (found.status == 77) GTEST_SKIP() << found.text;
    ASSERT_EQ(found.status, 0) << found.text;
    nvdisasm = found.text;
  }

  std::string nvcc = find_nvcc(), nvdisasm;
};

TEST_P(SassTest, KernelsKeepTheirLimits) {
  std::vector<Row> rows;
  for (const Row& row : read_limits()) {
    if (row.architecture == GetParam()) rows.push_back(row);
  }
  ASSERT_GE(rows.size(), 20u) << "the default kernels of every fit and their alternatives";
  std::string source =
      "#include \"kernels/cuda/bias.cuh\"\n"
      "#include \"kernels/cuda/forwards.cuh\"\n"
      "#include \"kernels/cuda/gated_codes.cuh\"\n"
      "#include \"kernels/cuda/product.cuh\"\n"
      "#include \"kernels/fits.h\"\n"
      "using namespace outgrad::kernels;\n" +
      std::string(kSchedules);
  for (const Row& row : rows) source += instantiation_of(row);
  const fs::path folder = kBuild / "sass" / GetParam();
  std::error_code unwritable;  // then what was measured is in no file
  fs::create_directories(folder, unwritable);
  const kernels::ScratchFolder scratch;  // the folder above may be another user's
  std::ofstream(scratch / "kernels.cu") << source;
  const std::string cubin = scratch / "kernels.cubin";
  const Output compiled = run("'" + nvcc + "' -std=c++20 -O3 -arch=" + GetParam() + " -cubin -Xptxas -v -I'" +
                              kRoot.string() + "' -o '" + cubin + "' '" + scratch / "kernels.cu" + "'");
  ASSERT_EQ(compiled.status, 0) << compiled.text;
  EXPECT_EQ(compiled.text.find("warning"), std::string::npos) << compiled.text;
  const Output disassembled = run("'" + nvdisasm + "' -c '" + cubin + "'");
  ASSERT_EQ(disassembled.status, 0) << disassembled.text.substr(0, 2000);
  const std::map<std::string, KernelResources> resources = resources_of(compiled.text);
  const std::vector<SassFunction> functions = read_sass(disassembled.text);
  std::ostringstream machine_code;
  machine_code << std::ifstream(cubin, std::ios::binary).rdbuf();
  const std::string image = machine_code.str();
  const int number = std::stoi(GetParam().substr(3));
  const std::vector<SassFunction> decoded = decode_cubin(image, number);
  ASSERT_EQ(decoded.size(), functions.size());
  for (const SassFunction& ours : decoded) {
    SCOPED_TRACE(ours.name);
    const auto theirs = std::find_if(functions.begin(), functions.end(),
                                     [&](const SassFunction& each) { return each.name == ours.name; });
    ASSERT_NE(theirs, functions.end());
    expect_same_code(ours, *theirs);
  }
  // cut short anywhere: an error, or functions that lie before the cut
  for (std::size_t length = 0; length < image.size(); length += 997) {
    try {
      decode_cubin(image.substr(0, length), number);
    } catch (const std::runtime_error&) {
    }
  }

  std::ofstream measured(folder / "measured.txt");
  for (const Row& row : rows) {
    const std::string what =
        row.architecture + " " + row.kernel + " " + row.fit + " " + row.t + " " + row.y + " " + row.schedule;
    SCOPED_TRACE(what);
    // The fit's name, and T's behind it.
    const auto is_of = [&](const std::string& name) {
      const std::size_t fit = name.find(mangled(row.fit) + "E");
      if (fit == std::string::npos) return false;
      const std::string rest = name.substr(fit + mangled(row.fit).size() + 1);
      return row.t == "float" ? rest.starts_with("f")
                              : rest.starts_with("N") && rest.find(mangled(row.t)) < rest.find('E');
    };
    const SassFunction* function = nullptr;
    for (const SassFunction& candidate : functions) {
      const bool all = candidate.name.find(mangled(row.kernel)) != std::string::npos &&
                       is_of(candidate.name) &&
                       candidate.name.find(mangled(row.schedule)) != std::string::npos;
      if (!all) continue;
      EXPECT_EQ(function, nullptr) << "two kernels fit the line: " << candidate.name;
      function = &candidate;
    }
    ASSERT_NE(function, nullptr) << "not in the disassembly";

    const KernelResources& use = resources.at(function->name);
    EXPECT_EQ(use.spill_bytes, 0);
    EXPECT_EQ(use.stack_bytes, 0);
    for (const Instruction& instruction : function->instructions) {
      EXPECT_FALSE(is_instruction(instruction.opcode, "LDL") || is_instruction(instruction.opcode, "STL"))
          << "local memory: " << instruction.opcode;
      EXPECT_FALSE(is_double(instruction.opcode)) << "double precision: " << instruction.opcode;
    }

    const int element = row.t == "float" ? 4 : 2, y_element = row.y == "float" ? 4 : row.y[1] == '8' ? 1 : 2;
    const bool forward = row.kernel.ends_with("forward"), bias = row.kernel.starts_with("bias");
    const PairArrays pair = pair_arrays(row.kernel);
    const bool gated = pair.read > 0;
    const std::string wide = "." + std::to_string(8 * row.access_bytes);
    // Beside the octets, a forward stores bytes of the mask, and bias's backward the sums of its columns.
    const int stored_bytes = 8 * row.octets * element * (gated ? pair.written : 1);
    std::set<std::string> beside;
    if (gated ? pair.writes_mask : forward) beside = {".U8"};
    if (pair.writes_codes) beside = {".64", ".E"};  // and by one thread the scales
    if (bias && !forward) beside = {".E"};
    const HotPaths paths = hot_paths(*function, {wide, stored_bytes / row.access_bytes, beside});
    ASSERT_GT(paths.shortest, 0) << "no path with " << row.octets << " octets stored " << wide
                                 << " at a time";
    // Global loads of the path: the octets' in full width, a byte of the mask for each, and those of tables.
    int bytes = 0, mask_bytes = 0;
    for (const Instruction& instruction : paths.instructions) {
      if (!is_instruction(instruction.opcode, "LDG") ||
          is_instruction(instruction.opcode, "LDG", ".CONSTANT"))
        continue;
      if (is_instruction(instruction.opcode, "LDG", ".U8")) {
        ++mask_bytes;
      } else {
        const bool fp8 = y_element == 1 && is_instruction(instruction.opcode, "LDG", ".64");
        EXPECT_TRUE(fp8 || is_instruction(instruction.opcode, "LDG", wide))
            << instruction.opcode << " " << instruction.operands;
        bytes += fp8 ? 8 : row.access_bytes;
      }
    }
    EXPECT_EQ(bytes, row.octets * 8 *
                         (gated              ? element * pair.read + (pair.reads_codes ? 2 : 0)
                          : forward && !bias ? element
                                             : element + y_element));
    // f32 goes by quads, whose bits are halves of bytes.
    const int halves = row.t == "float" && row.y == "float" && row.access_bytes == 16 && !bias ? 2 : 1;
    EXPECT_EQ(mask_bytes, (gated ? !pair.reads_mask : forward) ? 0 : row.octets * halves);

    const double elements = 8.0 * row.octets;
    EXPECT_LE(paths.longest / elements, row.most_instructions) << "instructions per element";
    EXPECT_LE(use.registers, row.most_registers) << "registers";
    measured << what << " " << row.octets << " " << row.access_bytes << std::fixed << std::setprecision(2)
             << " " << paths.shortest / elements << " " << paths.longest / elements << " " << use.registers
             << "\n";
  }
}

// A line of norm_sass_limits.txt: a norm's kernel as the launchers choose it for rows of warps x octets x 256
// elements.
struct NormRow {
  std::string architecture, kernel, norm, t, form;
  int warps = 0, octets = 0;
  double shortest = 0;
  int registers = 0;
  double most_instructions = 0;
  int most_registers = 0;

  bool forward() const { return kernel == "norm_forward"; }
  // z = x + residual is summed first: with z stored or not, and x dropped before or not. Of a backward:
  // dz_next is added, and dx = dropout(dz) stored.
  bool drops() const { return form.starts_with("dropped"); }
  bool stores_z() const { return form == "residual" || form == "dropped+z"; }
  bool residual() const {
    return form == "residual" || form == "dropped+next" || (forward() && (form == "sum" || drops()));
  }
  // What is kept in 8 bits in place of y; empty: y itself.
  std::string store() const {
    static const std::map<std::string, std::string> kStores = {
        {"e4m3", "NormE4m3"}, {"mxfp8", "NormMxFp8"}, {"int8", "NormInt8"}};
    const auto found = kStores.find(form);
    return found == kStores.end() ? "" : found->second;
  }
  bool holds() const {
    const std::set<std::string> forms =
        forward() ? std::set<std::string>{"plain", "residual", "sum", "dropped", "dropped+z"}
                  : std::set<std::string>{"plain", "residual", "dropped", "dropped+next"};
    return !store().empty() || forms.count(form) != 0;
  }
  int sums() const { return forward() ? 0 : norm == "layer" ? 2 : 1; }
};

std::vector<NormRow> read_norm_limits(const std::string& architecture) {
  std::vector<NormRow> rows;
  std::ifstream file(kRoot / "tests/system/norm_sass_limits.txt");
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.front() == '#') continue;
    std::istringstream words(line);
    NormRow row;
    words >> row.architecture >> row.kernel >> row.norm >> row.t >> row.form >> row.warps >> row.octets >>
        row.shortest >> row.registers >> row.most_instructions >> row.most_registers;
    std::string rest;
    if (words.fail() || words >> rest || !row.holds())
      throw std::runtime_error("norm_sass_limits.txt: " + line);
    if (row.architecture == architecture) rows.push_back(row);
  }
  return rows;
}

// The instantiation, with the schedule under a name of the line's own. That the octets are the launchers'
// choice is asserted there.
std::string instantiation_of(const NormRow& row, const std::string& name) {
  const auto text = [](bool value) { return std::string(value ? "true" : "false"); };
  const std::string residual = text(row.residual()), drops = text(row.drops()), norm = "Norm::" + row.norm;
  const std::string store = row.store().empty() ? "" : ", " + row.store();
  const std::string use = row.forward() ? "cuda::detail::kForwardUse<" + row.t + ", " + residual + store + ">"
                                        : "cuda::detail::backward_use<" + norm + ", " + row.t + ", " +
                                              residual + ", true, false, " + drops + ">()";
  return "static_assert(cuda::detail::default_octets(" + use + ") == " + std::to_string(row.octets) +
         ");\nstruct " + name + " : cuda::detail::ChosenNormSchedule<DefaultGpuNormSchedule, " +
         std::to_string(row.warps) + ", " + std::to_string(row.octets) + ", RowHome::registers, " + use +
         "> {};\ntemplate __global__ void cuda::" + row.kernel + "<" + norm + ", " + row.t + ", " + name +
         (row.forward()
              ? ", true, " + residual + ", ParameterFormat::f32, " + drops + ", " + text(row.stores_z())
              : ", " + residual + ", cuda::SideChannels::none, ParameterFormat::f32, " + drops) +
         store + ">(cuda::" + (row.forward() ? "NormForwardArrays<" : "NormBackwardArrays<") + row.t +
         ">);\n";
}

// Rows that the fused backward of the line has on their way while it works on one.
int rows_ahead(const NormRow& row, int element) {
  using namespace kernels::cuda::detail;
  const auto norm = row.norm == "layer" ? kernels::Norm::layer : kernels::Norm::rms;
  return default_rows_ahead(backward_use(norm, element, row.residual(), true, false, row.drops()),
                            row.octets);
}

// A path takes one row through the kernel: all of its octets in whole accesses, and of a backward the slot's
// sums at the end. Of a backward the loop over rows is counted.
TEST_P(SassTest, NormKernelsKeepTheirLimits) {
  const std::vector<NormRow> rows = read_norm_limits(GetParam());
  ASSERT_GE(rows.size(), 27u)
      << "both directions of the three formats, alone, with a residual, and with dropout";
  const auto name_of = [](std::size_t line) { return "NormLine" + std::to_string(line) + "Schedule"; };
  std::string source = "#include \"kernels/cuda/layernorm.cuh\"\nusing namespace outgrad::kernels;\n";
  for (std::size_t i = 0; i < rows.size(); ++i) source += instantiation_of(rows[i], name_of(i));
  const fs::path folder = kBuild / "sass" / GetParam();
  std::error_code unwritable;  // then what was measured is in no file
  fs::create_directories(folder, unwritable);
  const kernels::ScratchFolder scratch;  // the folder above may be another user's
  std::ofstream(scratch / "norms.cu") << source;
  const std::string cubin = scratch / "norms.cubin";
  const Output compiled = run("'" + nvcc + "' -std=c++20 -O3 -arch=" + GetParam() + " -cubin -Xptxas -v -I'" +
                              kRoot.string() + "' -o '" + cubin + "' '" + scratch / "norms.cu" + "'");
  ASSERT_EQ(compiled.status, 0) << compiled.text;
  EXPECT_EQ(compiled.text.find("warning"), std::string::npos) << compiled.text;
  const Output disassembled = run("'" + nvdisasm + "' -c '" + cubin + "'");
  ASSERT_EQ(disassembled.status, 0) << disassembled.text.substr(0, 2000);
  const std::map<std::string, KernelResources> resources = resources_of(compiled.text);
  const std::vector<SassFunction> functions = read_sass(disassembled.text);

  std::ofstream measured(folder / "norms_measured.txt");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const NormRow& row = rows[i];
    const std::string what = row.architecture + " " + row.kernel + " " + row.norm + " " + row.t + " " +
                             row.form + " " + std::to_string(row.warps) + " " + std::to_string(row.octets);
    SCOPED_TRACE(what);
    const SassFunction* function = nullptr;
    for (const SassFunction& candidate : functions) {
      if (candidate.name.find(mangled(name_of(i))) != std::string::npos) function = &candidate;
    }
    ASSERT_NE(function, nullptr) << "not in the disassembly";
    const KernelResources& use = resources.at(function->name);
    EXPECT_EQ(use.spill_bytes, 0);
    EXPECT_EQ(use.stack_bytes, 0);
    for (const Instruction& instruction : function->instructions) {
      EXPECT_FALSE(is_instruction(instruction.opcode, "LDL") || is_instruction(instruction.opcode, "STL"))
          << "local memory: " << instruction.opcode;
    }

    constexpr int kWide = 16, kFloat = 4;
    const int element = row.t == "float" ? 4 : 2;
    const int written = (row.forward() ? row.stores_z() : row.drops()) ? 2 : 1;
    // Slots side by side add up 8 columns of one sum in each turn of a loop.
    const bool side_by_side = row.warps < kernels::cuda::kSumBlockWarps;
    const int row_bytes = row.octets * 8 * written * element,
              sum_bytes = 8 * kFloat * (side_by_side && !row.forward() ? 1 : row.octets * row.sums());
    // rstd's and x^'s are words; codes come by eights, each group's scale as one or two words or a byte
    const PathRules rules{".128", (row_bytes + sum_bytes) / kWide, {".E", ".64", ".U8"}};
    const HotPaths paths = hot_paths(*function, rules);
    ASSERT_GT(paths.shortest, 0) << "no path with " << row_bytes << " and " << sum_bytes
                                 << " bytes stored 16 at a time";
    // What is loaded of the tensors is loaded 16 bytes at a time, and once, of a backward past the registers;
    // what all rows share comes through the read-only cache.
    int bytes = 0, codes = 0;
    for (const Instruction& instruction : paths.instructions) {
      if (is_instruction(instruction.opcode, "LDGSTS", ".64")) codes += 8;
      const bool tensor = is_instruction(instruction.opcode, "LDG", ".128") &&
                          !is_instruction(instruction.opcode, "LDG", ".CONSTANT");
      EXPECT_FALSE(tensor && !row.forward()) << instruction.opcode << " " << instruction.operands;
      if (tensor || is_instruction(instruction.opcode, "LDGSTS", ".128")) bytes += kWide;
      EXPECT_FALSE(is_instruction(instruction.opcode, "LDG", ".U16") && !row.forward())
          << instruction.opcode << " " << instruction.operands;
    }
    const bool from_codes = !row.forward() && !row.store().empty();
    const int tensors = (row.forward() || from_codes ? 1 : 2) + (row.residual() ? 1 : 0);
    // before the loop, and in a turn of it
    const int rows_loaded = row.forward() ? 1 : rows_ahead(row, element) + 1;
    EXPECT_EQ(bytes, row.octets * 8 * element * tensors * rows_loaded);
    EXPECT_EQ(codes, from_codes ? row.octets * 8 * rows_loaded : 0);

    const double elements = 8.0 * row.octets;
    int counted = paths.shortest;
    if (!row.forward()) {
      const LoopExtent loop =
          loop_around(*function, paths, rules, static_cast<std::size_t>(row_bytes / kWide));
      ASSERT_GT(loop.last, 0u) << "dx is stored outside any loop";
      counted = static_cast<int>(std::count_if(paths.shortest_path.begin(), paths.shortest_path.end(),
                                               [&](std::size_t at) { return loop.holds(at); }));
    }
    EXPECT_LE(counted / elements, row.most_instructions) << "instructions per element";
    EXPECT_LE(use.registers, row.most_registers) << "registers";
    measured << what << std::fixed << std::setprecision(2) << " " << counted / elements << " "
             << use.registers << "\n";
  }
}

// Softmax's forwards were in double precision, with more instructions and more to spill. Limits are above
// what CUDA 13.0 makes of any of them, by 4% and by 8 registers. On sm_80 and sm_100 some spill sums of the
// tree.
TEST_P(SassTest, SoftmaxForwardsAreInSinglePrecision) {
  std::string source = "#include \"kernels/cuda/softmax.cuh\"\nusing namespace outgrad::kernels;\n";
  for (const std::string of : {"float, 1", "float, 4", "float, 16", "F16, 1", "BF16, 1", "BF16, 16"}) {
    const std::string t = of.substr(0, of.find(','));
    source += "template __global__ void cuda::softmax_forward_code<" + of + ">(const " + t + "*, " + t +
              "*, u8*, i64, i64);\n";
  }
  const kernels::ScratchFolder scratch;
  std::ofstream(scratch / "softmax.cu") << source;
  const std::string cubin = scratch / "softmax.cubin";
  const Output compiled = run("'" + nvcc + "' -std=c++20 -O3 -arch=" + GetParam() + " -cubin -Xptxas -v -I'" +
                              kRoot.string() + "' -o '" + cubin + "' '" + scratch / "softmax.cu" + "'");
  ASSERT_EQ(compiled.status, 0) << compiled.text;
  const Output disassembled = run("'" + nvdisasm + "' -c '" + cubin + "'");
  ASSERT_EQ(disassembled.status, 0) << disassembled.text.substr(0, 2000);
  const std::map<std::string, KernelResources> resources = resources_of(compiled.text);
  const std::vector<SassFunction> functions = read_sass(disassembled.text);
  EXPECT_EQ(functions.size(), 6u);
  constexpr std::size_t kMostInstructions = 1690;
  constexpr int kMostRegisters = 64, kMostSpilled = 128;  // bytes of stores and loads
  for (const SassFunction& function : functions) {
    SCOPED_TRACE(function.name);
    const KernelResources& use = resources.at(function.name);
    EXPECT_LE(use.spill_bytes, GetParam() == "sm_90" ? 0 : kMostSpilled);
    EXPECT_LE(use.registers, kMostRegisters);
    EXPECT_LE(function.instructions.size(), kMostInstructions);
    for (const Instruction& instruction : function.instructions)
      EXPECT_FALSE(is_double(instruction.opcode)) << instruction.opcode;
  }
}

INSTANTIATE_TEST_SUITE_P(Hopper, SassTest, testing::Values("sm_90"),
                         [](const auto& parameter) { return parameter.param; });
INSTANTIATE_TEST_SUITE_P(NightlyArchitectures, SassTest, testing::Values("sm_80", "sm_100"),
                         [](const auto& parameter) { return parameter.param; });

}  // namespace
}  // namespace outgrad::tests
