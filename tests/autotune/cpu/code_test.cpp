// Disassemblies are read, or refused; the trip of a loop is the way without side channels; its counts are those of objdump's text.
#include "autotune/cpu/code.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "autotune/compile.h"
#include "autotune/cpu/model.h"
#include "kernels/support/errors.h"
#include "kernels/support/files.h"
#include "tests/autotune/scoped_variable.h"

namespace outgrad::autotune::cpu {
namespace {

// A loop of two vectors with a side channel that a loop of its own may follow, spills, and the loop for the rest; objdump's own form.
constexpr const char* kText = R"(
/tmp/object.so:     file format elf64-x86-64


Disassembly of section .plt:

0000000000001000 <puts@plt>:
    1000:	bnd jmp *0x2fda(%rip)        # 3fe0 <puts@GLIBC_2.2.5>
	...

Disassembly of section .text:

0000000000001100 <kernel(float const*)>:
    1100:	push   %rbp
    1101:	mov    %rsp,%rbp
    1104:	jmp    1120 <kernel(float const*)+0x20>
    1110:	vmovups %zmm7,0x80(%rdi,%rax,4)
    1118:	vmovaps %zmm1,-0x40(%rbp)
    111c:	data16 cs nopw 0x0(%rax,%rax,1)
    1120:	vmovups (%rsi,%rax,4),%zmm1
    1126:	vcmplt_oqps %zmm0,%zmm1,%k1
    112c:	kortestw %k1,%k1
    1130:	jne    1160 <kernel(float const*)+0x60>
    1132:	vfmadd132ps %zmm1,%zmm2,%zmm3{%k1}
    1138:	vmovups %zmm3,(%rdi,%rax,4)
    113e:	vmovups %zmm3,0x40(%rdi,%rax,4)
    1144:	vmovss %xmm3,0x7c(%rdi,%rax,4)
    1148:	add    $0x20,%rax
    114c:	cmp    %rdx,%rax
    114f:	jl     1120 <kernel(float const*)+0x20>
    1151:	jmp    1180 <kernel(float const*)+0x80>
    1160:	vaddss (%rsp),%xmm3,%xmm3
    1164:	js     1168 <kernel(float const*)+0x68>
    1166:	jmp    1132 <kernel(float const*)+0x32>
    1168:	sub    $0x1,%ecx
    116b:	jne    1168 <kernel(float const*)+0x68>
    116d:	jmp    1132 <kernel(float const*)+0x32>
    1180:	vmovntps %zmm3,(%rdi,%rax,4)
    1186:	vmovups %zmm3,(%rdi,%rax,4)
    118c:	add    $0x10,%rax
    1190:	jne    1180 <kernel(float const*)+0x80>
    1192:	ret
)";

TEST(Disassembly, IsReadWithoutNamesAndComments) {
  const std::vector<Function> functions = read_disassembly(kText, "text");
  ASSERT_EQ(functions.size(), 2U);
  EXPECT_EQ(functions[0].name, "puts@plt");
  EXPECT_EQ(functions[0].instructions.front().opcode, "jmp");
  EXPECT_EQ(functions[0].instructions.front().operands, std::vector<std::string>{"*0x2fda(%rip)"});
  const Function& kernel = functions[1];
  EXPECT_EQ(kernel.name, "kernel(float const*)");
  EXPECT_EQ(kernel.instructions.size(), 29U);
  const auto at = [&](std::uint64_t address) {
    return *std::find_if(kernel.instructions.begin(), kernel.instructions.end(), [&](const Instruction& i) { return i.address == address; });
  };
  EXPECT_EQ(at(0x1104).operands, std::vector<std::string>{"1120"});
  EXPECT_EQ(at(0x111c).opcode, "nopw");
  EXPECT_EQ(at(0x1138).operands, (std::vector<std::string>{"%zmm3", "(%rdi,%rax,4)"}));
  EXPECT_EQ(at(0x1132).operands.back(), "%zmm3{%k1}");
  EXPECT_EQ(vector_bits(at(0x1132)), 512);
  EXPECT_EQ(vector_bits(at(0x1160)), 128);
  EXPECT_EQ(vector_bits(at(0x1148)), 0);
}

// One line says where and what.
TEST(Disassembly, IsRefusedWhereItIsNone) {
  const auto why = [](const std::string& text) -> std::string {
    try {
      read_disassembly(text, "object");
    } catch (const kernels::SpecError& error) {
      return error.what();
    }
    return "read";
  };
  const std::string head = "0000000000001000 <f>:\n";
  EXPECT_EQ(why(""), "object: line 0: no function in the disassembly");
  EXPECT_EQ(why("hello\n"), "object: line 1: no function in the disassembly");
  EXPECT_EQ(why(head), "object: line 1: no function in the disassembly");
  EXPECT_EQ(why(head + "    1000:\tret\nSegmentation fault\n"), "object: line 3: not an instruction of a disassembly: 'Segmentation fault'");
  EXPECT_EQ(why(head + "    zzzz:\tret\n"), "object: line 2: not an instruction of a disassembly: 'zzzz:\tret'");
  EXPECT_EQ(why(head + "    1000:\t(bad)\n"), "object: line 2: no instruction after the address: '1000:\t(bad)'");
  EXPECT_EQ(why(head + "    1000:\n"), "object: line 2: no instruction after the address: '1000:'");
  EXPECT_EQ(why(head + "    1004:\tnop\n    1000:\tret\n"), "object: line 3: an address that does not ascend: '1000:\tret'");
  EXPECT_EQ(why(head + "    1000:\tret\n"), "read");
}

TEST(HotLoop, IsTheShortestWayThatMakesAllStores) {
  const auto loops = hot_loops(read_disassembly(kText, "text"), false);
  ASSERT_TRUE(loops);
  EXPECT_EQ(loops->main.stored_bytes, 128);  // neither the scalar nor the one on the stack
  std::vector<std::uint64_t> addresses;
  for (const Instruction& instruction : loops->main.path) addresses.push_back(instruction.address);
  EXPECT_EQ(addresses, (std::vector<std::uint64_t>{0x1120, 0x1126, 0x112c, 0x1130, 0x1132, 0x1138, 0x113e, 0x1144, 0x1148, 0x114c, 0x114f}));
  EXPECT_EQ(loops->main.before, 3U);
  ASSERT_TRUE(loops->rest);
  EXPECT_EQ(loops->rest->stored_bytes, 64);
  EXPECT_EQ(loops->rest->path.size(), 4U);
  const auto streaming = hot_loops(read_disassembly(kText, "text"), true);
  ASSERT_TRUE(streaming);
  EXPECT_EQ(streaming->main.path.front().address, 0x1180U);
  EXPECT_FALSE(streaming->rest);
  EXPECT_FALSE(hot_loops(read_disassembly("0000000000001000 <f>:\n    1000:\tvmovups %zmm0,(%rdi)\n    1006:\tret\n", "text"), false));
}

// What a loop within does is no part of a trip of the loop around it.
TEST(HotLoop, IsTheInnermost) {
  const char* text = R"(
0000000000001000 <f>:
    1000:	mov    $0x10,%ecx
    1005:	vmovups %zmm1,(%rdi)
    1009:	vmovups %zmm1,0x40(%rdi)
    100d:	sub    $0x1,%ecx
    1010:	jne    1005 <f+0x5>
    1012:	vmovups %zmm1,0x80(%rdi)
    1016:	cmp    %rdi,%rsi
    1019:	jne    1000 <f>
    101b:	ret
)";
  const auto loops = hot_loops(read_disassembly(text, "text"), false);
  ASSERT_TRUE(loops);
  EXPECT_EQ(loops->main.stored_bytes, 128);
  EXPECT_EQ(loops->main.path.size(), 4U);
}

// Stores of every kind that the kernels' formats take, and those of single elements.
TEST(HotLoop, CountsBytesOfVectorsAlone) {
  const auto stored = [](const std::string& store) {
    const std::string text = "0000000000001000 <f>:\n    1000:\t" + store + "\n    1008:\tjne    1000 <f>\n    100a:\tret\n";
    const auto loops = hot_loops(read_disassembly(text, "text"), false);
    return loops ? loops->main.stored_bytes : 0;
  };
  EXPECT_EQ(stored("vmovups %ymm1,(%rdi,%rax,4)"), 32);
  EXPECT_EQ(stored("vmovdqu %xmm1,(%rdi,%rax,2)"), 16);
  EXPECT_EQ(stored("vmovdqu16 %zmm1,(%rdi,%rax,2){%k1}"), 64);
  EXPECT_EQ(stored("vcvtps2ph $0x0,%zmm1,(%rdi)"), 32);
  EXPECT_EQ(stored("vpmovdw %ymm1,(%rdi)"), 16);
  EXPECT_EQ(stored("vextracti128 $0x1,%ymm1,(%rdi)"), 16);
  EXPECT_EQ(stored("vmovss %xmm1,(%rdi)"), 0);
  EXPECT_EQ(stored("vmovd %xmm1,(%rdi)"), 0);
  EXPECT_EQ(stored("vmovq %xmm1,(%rdi)"), 0);
  EXPECT_EQ(stored("vmovaps %zmm1,0x40(%rsp)"), 0);
  EXPECT_EQ(stored("vmovups (%rsi),%zmm1"), 0);
  EXPECT_EQ(stored("mov    %eax,(%rdi)"), 0);
}

// Counts of a loop that the compiler made are those of its lines in objdump's text.
TEST(HotLoop, OfAKnownLoopCountsWhatObjdumpPrints) {
#if !defined(__x86_64__) || !defined(__AVX2__) || !defined(__FMA__)
  GTEST_SKIP() << "the loop is of AVX2";
#else
  const kernels::ScratchFolder folder;
  CompileSettings settings;
  settings.cache_folder = folder.path();
  const std::string source =
      "#include <immintrin.h>\n"
      "extern \"C\" __attribute__((visibility(\"default\"))) void known(const float* x, float* y, long n) {\n"
      "  for (long i = 0; i < n; i += 24) {\n"
      "    for (int k = 0; k < 3; ++k) {\n"
      "      const __m256 v = _mm256_loadu_ps(x + i + 8 * k);\n"
      "      _mm256_storeu_ps(y + i + 8 * k, _mm256_permutevar8x32_ps(_mm256_fmadd_ps(v, v, v), _mm256_castps_si256(v)));\n"
      "    }\n  }\n}\n";
  const std::string text = disassembled(compile_source(source, "known", "the test's loop", find_toolchain(), settings).library);
  const auto loops = hot_loops(read_disassembly(text, "known"), false);
  ASSERT_TRUE(loops);
  const Trip& trip = loops->main;
  EXPECT_EQ(trip.stored_bytes, 96);
  const auto lines_with = [&](const std::string& word) {
    std::size_t count = 0;
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = std::min(text.find('\n', begin), text.size());
      const std::string line = text.substr(begin, end - begin);
      begin = end + 1;
      const std::size_t colon = line.find(":\t");
      if (colon == std::string::npos) continue;
      const auto address = std::stoull(line.substr(0, colon), nullptr, 16);
      if (address >= trip.path.front().address && address <= trip.path.back().address && line.find(word) != std::string::npos) ++count;
    }
    return static_cast<int>(count);
  };
  const TripCost cost = cost_of(zen4(), trip.path);
  EXPECT_EQ(cost.instructions, lines_with(":\t"));
  EXPECT_EQ(cost.permutes, lines_with("vpermps"));
  EXPECT_EQ(cost.permutes, 3);
  EXPECT_EQ(cost.stores, 3);
  EXPECT_EQ(cost.gathers, 0);
  EXPECT_GE(cost.loads, 3);
#endif
}

TEST(Objdump, ThatIsMissingOrFailsIsTheEnvironments) {
  EXPECT_THROW(disassembled("/nowhere/object.so"), kernels::EnvironmentError);
  const kernels::ScratchFolder folder;
  const ScopedVariable path("PATH", folder.path());
  try {
    disassembled("/nowhere/object.so");
    FAIL() << "an objdump out of nowhere";
  } catch (const kernels::EnvironmentError& error) {
    EXPECT_NE(std::string(error.what()).find("objdump, of binutils, does not run"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace outgrad::autotune::cpu
