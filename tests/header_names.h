// Names that a generated header may be given, and which of them the compiler takes, so that both readers of
// names are measured by it.
//
// A header NAME.h defines a struct called after the name. Candidates are those that become any identifier or
// macro of the kernels' headers, the keywords of C++, and malformed ones.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "kernels/support/files.h"
#include "kernels/support/process.h"

namespace outgrad::tests {

// What a shell's command prints, errors included.
inline std::string output_of(const std::string& command) {
  kernels::Launch launch{{"sh", "-c", command}};
  launch.out = launch.err = kernels::Launch::kCaptured;
  return kernels::run(launch).text;
}

inline const std::vector<std::string>& malformed_names() {
  static const std::vector<std::string> names{"",    "_",        "__",     "_x",       "x_",  "x__y",
                                              "1x",  "_1x",      "X",      "gelu_F32", "a-b", "a b",
                                              "a.b", "\xc3\xa9", "table_", "a\n"};
  return names;
}

class HeaderNames {
 public:
  // `header` prints one of a user's own function with a name.
  explicit HeaderNames(const std::function<std::string(const std::string& name)>& header) : header_(header) {
    for (const char* folder : {"kernels", "kernels/host"}) {
      for (const auto& file :
           std::filesystem::directory_iterator(std::string(OUTGRAD_SOURCE_DIR "/") + folder)) {
        if (file.path().extension() == ".h")
          kernels_ += fmt::format("#include \"{}/{}\"\n", folder, file.path().filename().string());
      }
    }
    for (const auto& file : std::filesystem::directory_iterator(OUTGRAD_SOURCE_DIR "/kernels/generated")) {
      if (!file.path().filename().string().ends_with("_cuda.h"))
        kernels_ += fmt::format("#include \"kernels/generated/{}\"\n", file.path().filename().string());
    }
    const std::string source = write("kernels.cpp", kernels_);
    // The preprocessed text has every declaration, -dM every macro.
    const std::string text =
        output_of(compiler() + " -E -P " + source) + output_of(compiler() + " -E -dM " + source);
    static const std::regex type("\\b[A-Z][A-Za-z0-9]*\\b");
    std::set<std::string> types;
    for (auto at = std::sregex_iterator(text.begin(), text.end(), type); at != std::sregex_iterator(); ++at)
      types.insert(at->str());
    std::set<std::string> names{"alignas", "and",   "asm",     "auto",      "bool",   "break",   "case",
                                "char",    "class", "concept", "const",     "double", "enum",    "export",
                                "float",   "for",   "if",      "inline",    "int",    "long",    "main",
                                "new",     "not",   "or",      "namespace", "short",  "return",  "signed",
                                "static",  "std",   "this",    "struct",    "switch", "typedef", "void",
                                "union",   "using", "while",   "xor",       "delete", "template"};
    for (const std::string& t : types) {
      std::string name;
      for (const char c : t) {
        if (std::isupper(static_cast<unsigned char>(c)) != 0 && !name.empty()) name += '_';
        name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      }
      if (name.size() <= 64) names.insert(name);
    }
    // A struct that hides what headers use spoils those behind it, so that it comes last.
    names.erase("table");
    names_.assign(names.begin(), names.end());
    names_.emplace_back("table");
  }

  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }

  // Those whose header does not compile behind all of the kernels' headers; each is in errors of its own
  // lines.
  [[nodiscard]] std::set<std::string> that_do_not_compile() const {
    std::map<int, std::string> begins;
    std::string text = kernels_;
    for (const std::string& name : names_) {
      begins[static_cast<int>(std::count(text.begin(), text.end(), '\n')) + 1] = name;
      text += header_(name);
    }
    const std::string source = write("behind.cpp", text),
                      errors = output_of(compiler() + " -fsyntax-only -fmax-errors=0 " + source);
    static const std::regex error("behind\\.cpp:([0-9]+):[0-9]+: error:");
    std::set<std::string> failed;
    for (auto at = std::sregex_iterator(errors.begin(), errors.end(), error); at != std::sregex_iterator();
         ++at) {
      failed.insert(std::prev(begins.upper_bound(std::stoi((*at)[1])))->second);
    }
    return failed;
  }

  // What the compiler says of the headers of these names, included before all others: nothing if none hides a
  // name that those need.
  [[nodiscard]] std::string errors_before_kernels(const std::vector<std::string>& names) const {
    std::string text = "#include \"kernels/table.h\"\n";
    for (const std::string& name : names) text += header_(name);
    return output_of(compiler() + " -fsyntax-only " + write("before.cpp", text + kernels_));
  }

 private:
  static std::string compiler() { return "${CXX:-c++} -std=c++20 -w -fopenmp -I" OUTGRAD_SOURCE_DIR; }
  [[nodiscard]] std::string write(const std::string& name, const std::string& text) const {
    kernels::write_file(folder_ / name, text);
    return "'" + folder_ / name + "'";
  }
  const kernels::ScratchFolder folder_;
  std::function<std::string(const std::string&)> header_;
  std::string kernels_;
  std::vector<std::string> names_;
};

// Holds a reader of names to the compiler: `refusal` is its reason, or "".
inline void expect_names_compile(const std::function<std::string(const std::string& name)>& header,
                                 const std::function<std::string(const std::string& name)>& refusal) {
  for (const std::string& name : malformed_names()) EXPECT_NE(refusal(name), "") << '"' << name << '"';
  const HeaderNames candidates(header);
  const std::set<std::string> failing = candidates.that_do_not_compile();
  // One of each kind: what the header uses, a macro, a header of the library.
  for (const char* name :
       {"table", "n_a_n", "e_o_f", "gelu_bf16", "gelu_tanh_f32", "quick_gelu_code", "gelu_forward"}) {
    EXPECT_TRUE(failing.contains(name)) << name;
  }
  std::vector<std::string> accepted;
  for (const std::string& name : candidates.names()) {
    const std::string why = refusal(name);
    if (why.empty()) accepted.push_back(name);
    EXPECT_FALSE(failing.contains(name) && why.empty())
        << name << " is accepted, and its header does not compile";
    // No name that compiles here is refused, unless it looks like a macro, a header of another kind uses it,
    // or the library may take it.
    const bool kept = why.find("in capitals") != std::string::npos ||
                      why.find("library") != std::string::npos || name == "entries";
    EXPECT_TRUE(kept || why.empty() || failing.contains(name)) << name << ": " << why;
  }
  EXPECT_GT(accepted.size(), 100U);
  EXPECT_EQ(candidates.errors_before_kernels(accepted).substr(0, 2000), "");
}

}  // namespace outgrad::tests
