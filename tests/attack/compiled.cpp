// One translation unit for each batch, in which the preprocessor renames the struct of each header.
#include "tests/attack/compiled.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "kernels/support/errors.h"
#include "tests/attack/process.h"

namespace outgrad::validation::gate {
namespace {

// Written without a sync, because nobody reads the file after a crash.
void write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file.flush()) throw kernels::IoError(path, "write", errno);
}

// The NAME of "struct NAME {"; empty if the text has none.
std::string type_of(const std::string& text) {
  const std::string word = "struct ";
  const size_t begin = text.find("\n" + word);
  if (begin == std::string::npos) return {};
  size_t end = begin + 1 + word.size();
  while (end < text.size() && (std::isalnum(static_cast<unsigned char>(text[end])) || text[end] == '_'))
    ++end;
  return text.substr(begin + 1 + word.size(), end - begin - 1 - word.size());
}

std::string header_name(size_t index) { return fmt::format("mutant_{}.h", index); }

// The members of the batch that an error message names.
std::set<size_t> named_in(const std::string& errors) {
  std::set<size_t> named;
  for (const char* mark : {"mutant_", "Mutant_", "probe_"}) {
    for (size_t at = errors.find(mark); at != std::string::npos; at = errors.find(mark, at + 1)) {
      char* end = nullptr;
      const char* digits = errors.c_str() + at + std::string_view(mark).size();
      const unsigned long index = std::strtoul(digits, &end, 10);
      if (end != digits) named.insert(index);
    }
  }
  return named;
}

}  // namespace

Toolchain default_toolchain() {
  const char* compiler = std::getenv("CXX");
  Toolchain toolchain{compiler && *compiler ? compiler : "c++", OUTGRAD_SOURCES};
  if (!std::filesystem::exists(toolchain.sources + "/kernels/eval.h"))
    throw kernels::EnvironmentError(toolchain.sources + ": the kernels' sources are not there");
  return toolchain;
}

CompiledBatch::CompiledBatch(const Toolchain& toolchain, const std::string& folder,
                             const std::vector<std::string>& headers)
    : libraries_(headers.size()), complaints_(headers.size()) {
  std::vector<size_t> members;
  for (size_t i = 0; i < headers.size(); ++i) {
    types_.push_back(type_of(headers[i]));
    if (types_.back().empty()) {
      complaints_[i] = "no struct";
      continue;
    }
    // The number at the end makes two equal mutants different files for #pragma once.
    write_text(folder + "/" + header_name(i), headers[i] + fmt::format("\n// {}\n", i));
    members.push_back(i);
  }
  compile(toolchain, folder, members);
}

void CompiledBatch::compile(const Toolchain& toolchain, const std::string& folder,
                            std::vector<size_t> members) {
  constexpr int kCompilerSeconds = 300;
  constexpr std::uint64_t kCompilerMemory = std::uint64_t{4} << 30;
  while (!members.empty()) {
    std::string unit = "#include \"tests/attack/probe.h\"\n";
    for (const size_t i : members) {
      unit += fmt::format(
          "#define {} Mutant_{}\n#include \"{}\"\n#undef {}\nOUTGRAD_ATTACK_PROBE({}, Mutant_{})\n",
          types_[i], i, header_name(i), types_[i], i, i);
    }
    const std::string base = fmt::format("{}/unit_{}", folder, units_++), library = base + ".so";
    write_text(base + ".cpp", unit);
    // Warnings are caused by the mutants. -O1 takes half as long as -O2, and every operation is the same.
    const kernels::Ending ending =
        run_program({toolchain.compiler, "-std=c++20", "-O1", "-w", "-march=native", "-shared", "-fPIC",
                     "-fvisibility=hidden", "-fmax-errors=0", "-I" + toolchain.sources, "-I" + folder,
                     base + ".cpp", "-o", library},
                    {kCompilerSeconds, kCompilerMemory});
    if (ending.status == 0) {
      for (const size_t i : members) libraries_[i] = library;
      return;
    }
    const std::set<size_t> named = named_in(ending.text);
    std::vector<size_t> rest;
    for (const size_t i : members) {
      if (named.contains(i)) {
        complaints_[i] = ending.text.substr(0, 400);
      } else {
        rest.push_back(i);
      }
    }
    if (members.size() == 1) {
      complaints_[members.front()] = "does not compile: " + ending.text.substr(0, 400);
      return;
    }
    if (rest.size() == members.size() || ending.late) {
      const std::vector<size_t> front(members.begin(),
                                      members.begin() + static_cast<std::ptrdiff_t>(members.size() / 2)),
          back(members.begin() + static_cast<std::ptrdiff_t>(members.size() / 2), members.end());
      compile(toolchain, folder, front);
      compile(toolchain, folder, back);
      return;
    }
    // The compiler may name a header because of something before it. Therefore the headers that were named
    // are tried once more, one by one.
    for (const size_t i : members) {
      if (named.contains(i) && members.size() > 1) compile(toolchain, folder, {i});
    }
    members = rest;
  }
}

CompiledBatch::~CompiledBatch() {
  for (const auto& [path, handle] : handles_) dlclose(handle);
}

void* CompiledBatch::symbol(size_t index, const char* what) const {
  void*& library = handles_[libraries_[index]];
  if (!library) library = dlopen(libraries_[index].c_str(), RTLD_NOW | RTLD_LOCAL);
  void* found = library ? dlsym(library, fmt::format("outgrad_attack_{}_{}", what, index).c_str()) : nullptr;
  if (!found) throw kernels::EnvironmentError(libraries_[index] + ": cannot be loaded");
  return found;
}

Claims CompiledBatch::claims(size_t index) const {
  Claims claims;
  reinterpret_cast<ClaimsFunction>(symbol(index, "claims"))(&claims);
  return claims;
}

std::vector<Outcome> CompiledBatch::run(size_t index, std::span<const Point> points) const {
  std::vector<Outcome> outcomes(points.size());
  reinterpret_cast<ProbeFunction>(symbol(index, "probe"))(points.data(), points.size(), outcomes.data());
  return outcomes;
}

}  // namespace outgrad::validation::gate
