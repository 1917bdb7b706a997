// A tuned header is really what a build with it runs: by the name it reports, and by what it visibly does.
#include "autotune/variant.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>

#include "autotune/compile.h"
#include "kernels/host/files.h"
#include "tests/autotune/temporary_folder.h"

namespace outgrad::autotune {
namespace {

// Prints the variants' names and how many threads the process has once the kernel of each format has run.
constexpr const char* kProgram = R"(
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <vector>
#include "kernels/host/api.h"

template <class T>
void run() {
  constexpr long kElements = 1 << 20;
  std::vector<T> dy(kElements), y(kElements);
  std::vector<outgrad::kernels::u32> mask(kElements / 32);
  outgrad::kernels::gelu_backward<T>(dy.data(), y.data(), mask.data(), dy.data(), kElements);
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  std::printf("%s %d\n", outgrad::kernels::gelu_backward_variant_name<T>(), static_cast<int>(std::distance(begin(tasks), end(tasks))));
}

int main() { run<float>(); run<outgrad::kernels::BF16>(); }
)";

std::string output_of(const std::string& command) {
  std::string text;
  FILE* pipe = ::popen(command.c_str(), "r");
  std::array<char, 4096> block;
  while (pipe != nullptr && std::fgets(block.data(), block.size(), pipe) != nullptr) text += block.data();
  return pipe != nullptr && ::pclose(pipe) == 0 ? text : "failed: " + text;
}

TEST(TunedHeader, IsWhatABuildWithItRuns) {
  const TemporaryFolder folder;
  const Toolchain toolchain = find_toolchain();
  std::vector<Variant> variants;
  for (const KernelId kernel : kGeluKernels)
    for (const FormatId format : kAllFormats) variants.push_back(default_variant({kernel, format}));
  // A schedule that nobody would choose: three threads for f32, five for bf16.
  for (Variant& variant : variants)
    variant.schedule.threads = variant.problem.format == FormatId::kF32 ? 3 : 5, variant.schedule.block_elements = 3 * 1024;
  kernels::write_file(folder / "tuned.h", tuned_header(variants, "for a test"));
  kernels::write_file(folder / "program.cpp", kProgram);

  std::string compile;
  for (const std::string& word : toolchain.compiler) compile += word + " ";
  compile += "-std=c++20 -O1 -march=native -fopenmp -Wall -Wextra -Werror -I" + toolchain.source_root + " " + folder / "program.cpp";
  const auto run = [&](const std::string& options, const std::string& program) {
    const std::string built = output_of(compile + " " + options + " -o " + folder / program + " 2>&1");
    EXPECT_EQ(built, "");
    return output_of("OMP_NUM_THREADS=2 " + folder / program);
  };
  EXPECT_EQ(run("-DOUTGRAD_TUNED_HEADER='\"" + folder / "tuned.h" + "\"'", "tuned"),
            variants[0].name() + " 3\n" + variants[1].name() + " 5\n");
  EXPECT_EQ(run("", "plain"), "default 2\ndefault 2\n");
}

}  // namespace
}  // namespace outgrad::autotune
