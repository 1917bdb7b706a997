// Reads every #include of the four folders, and of tests/attack and tests/gpu, which are built without the
// tests, too, and fails on an arrow that the architecture forbids:
//   kernels <- kernels/support <- approx, validation, autotune, kernels/torch; tests see all, nothing sees
//   tests or
//   notebooks_data. validation/ is the second witness of what approx/ proves: it shares no code with it, nor
//   its ball
//   arithmetic. approx/, autotune/ and validation/ have rooms, which see downwards only (kRooms).
// One small part of autotune/, the records of the tuning database, is validation's as well, whose report
// reads them. Third-party headers are confined too: none in kernels/, nlohmann/json alone in kernels/support/
// and autotune/, CLI11 in kernels/support/ (of autotune/, only the commands include what has it), PyTorch's
// in kernels/torch/, which nothing includes.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace outgrad::tests {
namespace {

namespace fs = std::filesystem;

const fs::path kRoot = OUTGRAD_SOURCE_DIR;

struct Include {
  std::string target;
  bool quoted;
  int line;
};

std::vector<Include> includes_of(const std::string& text) {
  static const std::regex pattern(R"(^\s*#\s*include\s*([<"])([^>"]+)[>"])");
  std::vector<Include> found;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (std::smatch match; std::regex_search(line, match, pattern))
      found.push_back({match[2], match[1] == "\"", number});
  }
  return found;
}

// What a folder may include: our folders, prefixes of third-party headers, and single headers of other
// folders.
struct Layer {
  std::set<std::string> folders;
  std::vector<std::string> third_party;
  std::set<std::string> headers{};
};

const std::map<std::string, Layer> kLayers = {
    {"kernels", {{"kernels"}, {}}},
    {"kernels/support", {{"kernels", "kernels/support"}, {"nlohmann/json", "CLI/"}}},
    {"kernels/torch", {{"kernels", "kernels/support", "kernels/torch"}, {"torch/"}}},
    {"approx",
     {{"kernels", "kernels/support", "approx"},
      {"nlohmann/", "CLI/", "fmt/", "Eigen/", "boost/", "flint/", "arb", "acb", "fmpr", "mag", "mpfr.h",
       "gmp.h"}}},
    {"validation",
     {{"kernels", "kernels/support", "validation"},
      {"nlohmann/", "CLI/", "fmt/", "Eigen/", "boost/", "mpfr.h", "gmp.h", "zip.h", "mpi.h"},
      {"autotune/records/database.h", "autotune/records/record.h", "autotune/evidence/identity.h"}}},
    {"autotune", {{"kernels", "kernels/support", "autotune"}, {"nlohmann/json"}}},
    {"tests/attack",
     {{"kernels", "kernels/support", "validation", "tests/attack"},
      {"nlohmann/", "CLI/", "fmt/", "boost/", "mpfr.h", "gmp.h"}}},
    {"tests/gpu", {{"kernels", "kernels/support", "tests/gpu", "tests"}, {"nlohmann/json"}}},
};

// The rooms of a folder. Each sees itself and those of the lines before its own; two rooms of one line do not
// see each other.
using Rooms = std::vector<std::set<std::string>>;
const std::map<std::string, Rooms> kRooms = {
    {"approx", {{"function"}, {"model"}, {"proof"}, {"search"}, {"commands"}}},
    {"autotune",
     {{"records"}, {"space"}, {"measure"}, {"cpu", "gpu"}, {"evidence"}, {"bench", "search"}, {"commands"}}},
    {"validation", {{"exact", "norms"}, {"certificate", "sweep"}, {"softmax"}, {"front"}, {"report"}}},
};
// What stands beside the rooms is below all of them, but for a program's main file.
const std::set<std::string> kMainFiles = {"validation/main.cpp"};

// The room of a file, given by its path from the root; empty where it stands beside the rooms.
std::string room_of(const std::string& file) {
  const std::size_t first = file.find('/'), second = file.find('/', first + 1);
  return second == std::string::npos ? "" : file.substr(first + 1, second - first - 1);
}

bool goes_up(const std::string& file, const std::string& target) {
  const std::string folder = file.substr(0, file.find('/'));
  const auto rooms = kRooms.find(folder);
  if (rooms == kRooms.end() || !target.starts_with(folder + "/") || kMainFiles.contains(file)) return false;
  const auto line_of = [&](const std::string& room) {  // -1: beside the rooms
    const auto found =
        std::ranges::find_if(rooms->second, [&](const auto& line) { return line.contains(room); });
    return found == rooms->second.end() ? -1 : static_cast<int>(found - rooms->second.begin());
  };
  const std::string from = room_of(file), to = room_of(target);
  return from != to && line_of(to) >= line_of(from);
}

// Options are read by commands alone.
bool reads_options_elsewhere(const std::string& file, const std::string& target) {
  return target == "kernels/support/options.h" && file.starts_with("autotune/") &&
         room_of(file) != "commands";
}

// The layer of a file, given by its path from the root.
std::string layer_of(const std::string& file) {
  for (const char* room : {"kernels/support", "kernels/torch", "tests/attack", "tests/gpu"})
    if (file.starts_with(std::string(room) + "/")) return room;
  return file.substr(0, file.find('/'));
}

// C++ headers have no dot and no slash; of the rest only what the C library, the compiler or CUDA brings.
bool is_platform_header(const std::string& target) {
  static const std::set<std::string> allowed = {
      "immintrin.h", "xmmintrin.h", "cpuid.h", "omp.h",   "pthread.h", "sched.h",  "fcntl.h",  "unistd.h",
      "poll.h",      "signal.h",    "spawn.h", "dlfcn.h", "elf.h",     "stdlib.h", "stddef.h", "stdint.h"};
  return target.find_first_of("./") == std::string::npos || allowed.contains(target) ||
         target.starts_with("sys/") || target.starts_with("linux/");
}

bool is_cuda_header(const std::string& target) {
  return target.starts_with("cuda") || target.starts_with("nvrtc");
}

bool is_cuda_source(const fs::path& file) { return file.extension() == ".cu" || file.extension() == ".cuh"; }

// One line per forbidden include of a file, given by its path from the root.
std::vector<std::string> violations(const std::string& file, const std::string& text) {
  const Layer& layer = kLayers.at(layer_of(file));
  std::vector<std::string> found;
  for (const Include& include : includes_of(text)) {
    const std::string folder = layer_of(include.target);
    const bool ours =
        include.quoted || kLayers.contains(folder) || folder == "tests" || folder == "notebooks_data";
    const bool third_party = std::ranges::any_of(
        layer.third_party, [&](const std::string& prefix) { return include.target.starts_with(prefix); });
    bool allowed = false;
    if (ours) {
      allowed = include.quoted &&
                (layer.folders.contains(folder) || layer.headers.contains(include.target)) &&
                !goes_up(file, include.target) && !reads_options_elsewhere(file, include.target);
    } else {
      allowed = third_party || is_platform_header(include.target) ||
                (is_cuda_source(file) && is_cuda_header(include.target));
    }
    if (!allowed)
      found.push_back(file + ":" + std::to_string(include.line) + ": must not include " + include.target);
  }
  return found;
}

std::string read(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::vector<std::string> sources() {
  static const std::set<std::string> extensions = {".h", ".cpp", ".cu", ".cuh"};
  std::vector<std::string> files;
  for (const std::string folder :
       {"kernels", "approx", "validation", "autotune", "tests/attack", "tests/gpu"}) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(kRoot / folder)) {
      const bool is_test = entry.path().stem().string().ends_with("_test");
      if (extensions.contains(entry.path().extension()) && !is_test)
        files.push_back(fs::relative(entry.path(), kRoot).generic_string());
    }
  }
  std::ranges::sort(files);
  return files;
}

TEST(Layering, NoForbiddenArrowInTheTree) {
  const std::vector<std::string> files = sources();
  for (const auto& [folder, layer] : kLayers) {
    EXPECT_TRUE(std::ranges::any_of(files, [&](const std::string& file) {
      return file.starts_with(folder + "/");
    })) << folder;
  }
  for (const std::string& file : files) {
    for (const std::string& violation : violations(file, read(kRoot / file))) ADD_FAILURE() << violation;
  }
}

// A folder that is no room would be one that everybody sees.
TEST(Layering, EveryFolderOfTheToolsIsARoom) {
  for (const auto& [folder, rooms] : kRooms) {
    std::set<std::string> listed, there;
    for (const std::set<std::string>& line : rooms) listed.insert(line.begin(), line.end());
    for (const std::string& file : sources())
      if (file.starts_with(folder + "/") && !room_of(file).empty()) there.insert(room_of(file));
    EXPECT_EQ(there, listed) << folder;
  }
}

TEST(Layering, OurIncludesAreRootedAndExist) {
  for (const std::string& file : sources()) {
    for (const Include& include : includes_of(read(kRoot / file))) {
      if (include.quoted) {
        EXPECT_TRUE(fs::is_regular_file(kRoot / include.target))
            << file << ":" << include.line << ": " << include.target;
      }
    }
  }
}

// A source that no list names is neither built nor tested; a public header that no list names is neither
// compiled alone nor installed.
TEST(Layering, EverySourceIsNamedInTheBuild) {
  // By the path from the list of the nearest folder that has one, or of a folder above it.
  const auto is_named = [](const fs::path& file) {
    for (fs::path folder = file.parent_path();; folder = folder.parent_path()) {
      const fs::path list = kRoot / folder / "CMakeLists.txt";
      if (fs::exists(list) &&
          read(list).find(fs::relative(file, folder).generic_string()) != std::string::npos)
        return true;
      if (folder.empty()) return false;
    }
  };
  for (const std::string& file : sources()) {
    if (file.starts_with("kernels/generated/")) continue;  // the fitter's, listed as they are
    // no user's
    if (const bool is_header = file.ends_with("h"); is_header && layer_of(file) != "kernels") continue;
    EXPECT_TRUE(is_named(file)) << file << " is not named in a CMakeLists.txt";
  }
  const std::string test_list = read(kRoot / "tests/CMakeLists.txt");
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(kRoot / "tests")) {
    const fs::path& path = entry.path();
    if (!path.stem().string().ends_with("_test")) continue;
    const std::string file = fs::relative(path, kRoot / "tests").generic_string();
    EXPECT_NE(test_list.find(file), std::string::npos) << file << " is not named in tests/CMakeLists.txt";
  }
}

// A list that only some builds read may keep a name that nobody has any more.
TEST(Layering, EverySourceThatTheTestsNameExists) {
  static const std::regex pattern(R"((?:^|[\s("])((?:\.\./)?[a-z_]+/[\w/]+\.(?:h|cpp|cu|cuh)))"),
      comment("#[^\n]*");
  const std::string list = std::regex_replace(read(kRoot / "tests/CMakeLists.txt"), comment, "");
  int names = 0;
  for (std::sregex_iterator at(list.begin(), list.end(), pattern), end; at != end; ++at, ++names)
    EXPECT_TRUE(fs::is_regular_file(kRoot / "tests" / (*at)[1].str()))
        << (*at)[1] << " of tests/CMakeLists.txt";
  EXPECT_GT(names, 100);
}

// A reader learns from the first line what a file is for.
TEST(Layering, EverySourceOpensWithItsPurpose) {
  for (const std::string& file : sources()) {
    if (file.starts_with("kernels/generated/")) continue;
    const std::string text = read(kRoot / file);
    EXPECT_TRUE(text.starts_with("// ") || text.starts_with("/// ") || text.starts_with("/* ")) << file;
  }
}

// nlohmann's own parsers stop at a NUL without a word; kernels/support/json.h says where they may be called,
// and why.
TEST(Layering, JsonIsParsedInOnePlace) {
  static const std::regex parser(R"(\b(?:\w*[Jj]son|JSON|basic_json<>)::(?:parse|accept|sax_parse)\s*\()");
  int places = 0;
  for (const std::string& file : sources()) {
    const std::string text = read(kRoot / file);
    const auto calls =
        std::distance(std::sregex_iterator(text.begin(), text.end(), parser), std::sregex_iterator());
    if (file == "kernels/support/json.h")
      places = static_cast<int>(calls);
    else
      EXPECT_EQ(calls, 0) << file << " parses JSON itself";
  }
  EXPECT_EQ(places, 3);  // the pattern finds what it looks for
}

// The checker itself: each forbidden arrow, put into a file that is otherwise in order, is found.
TEST(Layering, EachForbiddenArrowIsFound) {
  struct Case {
    std::string file, include;
  };
  const std::vector<Case> forbidden = {
      {"kernels/eval.h", "#include \"approx/model/fit.h\""},
      {"kernels/eval.h", "#include \"validation/certificate/check.h\""},
      {"kernels/eval.h", "#include \"autotune/space/space.h\""},
      {"kernels/eval.h", "#include <nlohmann/json.hpp>"},
      {"kernels/host/layernorm.h", "#include \"kernels/support/errors.h\""},
      {"kernels/support/files.h", "#include <fmt/core.h>"},
      {"kernels/support/files.h", "#include \"autotune/space/space.h\""},
      {"kernels/eval.h", "#include <torch/csrc/stable/tensor.h>"},
      {"kernels/c/outgrad.cpp", "#include \"kernels/torch/operators.h\""},
      {"kernels/torch/operators.cpp", "#include \"autotune/gpu/driver.h\""},
      {"kernels/support/files.h", "#include \"kernels/torch/cuda.h\""},
      {"kernels/eval.h", "#include \"portable.h\""},
      {"kernels/eval.h", "#include <kernels/portable.h>"},
      {"kernels/eval.h", "  #  include  <cuda_fp16.h>"},
      {"approx/model/fit.cpp", "#include \"validation/certificate/check.h\""},
      {"approx/model/fit.cpp", "#include \"autotune/space/space.h\""},
      {"approx/model/fit.cpp", "#include \"tests/approx/helper.h\""},
      {"approx/model/fit.cpp", "#include \"approx/search/fitter.h\""},
      {"approx/progress.cpp", "#include \"approx/function/scalars.h\""},
      {"validation/certificate/check.cpp", "#include \"autotune/evidence/merge.h\""},
      {"kernels/eval.h", "#include \"autotune/records/record.h\""},
      {"approx/model/fit.cpp", "#include \"autotune/records/record.h\""},
      {"validation/exact/oracle.cpp", "#include \"approx/function/activations.h\""},
      {"validation/certificate/check.cpp", "#include <arb.h>"},
      {"autotune/space/variant.h", "#include \"autotune/measure/candidate.h\""},
      {"autotune/measure/tunable.h", "#include \"autotune/cpu/executor.h\""},
      {"autotune/gpu/offline.cpp", "#include \"autotune/cpu/compile.h\""},
      {"autotune/cpu/compile.cpp", "#include \"autotune/gpu/offline.h\""},
      {"autotune/evidence/merge.h", "#include \"autotune/search/tuner.h\""},
      {"autotune/search/search.cpp", "#include \"autotune/bench/compare.h\""},
      {"autotune/search/search.cpp", "#include \"autotune/commands/search_command.h\""},
      {"autotune/search/search.cpp", "#include \"kernels/support/options.h\""},
      {"validation/exact/oracle.cpp", "#include \"validation/certificate/check.h\""},
      {"validation/sweep/sweep.cpp", "#include \"validation/certificate/check.h\""},
      {"validation/limits.h", "#include \"validation/exact/oracle.h\""},
      {"validation/report/report.cpp", "#include \"approx/model/fit.h\""},
      {"tests/attack/gate.cpp", "#include \"approx/model/fit.h\""},
      {"tests/gpu/checks.h", "#include \"autotune/gpu/driver.h\""},
      {"autotune/space/space.cpp", "#include \"approx/model/fit.h\""},
      {"autotune/space/space.cpp", "#include \"validation/certificate/check.h\""},
      {"autotune/space/space.cpp", "#include <fmt/core.h>"},
      {"autotune/space/space.cpp", "#include <CLI/CLI.hpp>"},
      {"autotune/space/space.cpp", "#include <mpfr.h>"},
      {"autotune/space/space.cpp", "#include <cuda_runtime.h>"},
  };
  for (const Case& arrow : forbidden) {
    EXPECT_EQ(violations(arrow.file, "#include <vector>\n" + arrow.include + "\n").size(), 1u)
        << arrow.file << ": " << arrow.include;
  }
  const std::vector<Case> permitted = {
      {"approx/model/fit.cpp", "#include \"kernels/eval.h\""},
      {"approx/search/fitter.cpp", "#include \"approx/model/fit.h\""},
      {"approx/model/fit.cpp", "#include \"kernels/support/files.h\""},
      {"kernels/support/files.h", "#include \"kernels/portable.h\""},
      {"kernels/support/files.h", "#include <nlohmann/json.hpp>"},
      {"kernels/support/options.h", "#include <CLI/CLI.hpp>"},
      {"validation/certificate/check.cpp", "#include \"kernels/eval.h\""},
      {"validation/report/results.cpp", "#include \"autotune/records/database.h\""},
      {"validation/report/results.cpp", "#include \"validation/sweep/sweep.h\""},
      {"validation/main.cpp", "#include \"validation/report/requirements.h\""},
      {"validation/certificate/check.cpp", "#include \"validation/limits.h\""},
      {"autotune/commands/merge_command.cpp", "#include \"kernels/support/options.h\""},
      {"autotune/search/search.cpp", "#include \"autotune/measure/timing.h\""},
      {"tests/gpu/gelu_checks.cuh", "#include \"tests/gpu/cases.cuh\""},
      {"autotune/space/space.cpp", "#include <nlohmann/json.hpp>"},
      {"autotune/gpu/probe.cu", "#include <cuda_runtime.h>"},
      {"kernels/simd.h", "#include <immintrin.h>"},
      {"kernels/torch/operators.cpp", "#include <torch/csrc/stable/tensor.h>"},
  };
  for (const Case& arrow : permitted) {
    EXPECT_TRUE(violations(arrow.file, arrow.include + "\n").empty()) << arrow.file << ": " << arrow.include;
  }
}

}  // namespace
}  // namespace outgrad::tests
