// A scanner that knows comments and literals.
#include "autotune/space/sources.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "kernels/support/digest.h"
#include "kernels/support/files.h"

namespace outgrad::autotune {
namespace {

// Where the literal that begins at `at` ends; `at` itself where none begins there.
std::size_t end_of_literal(std::string_view text, std::size_t at) {
  const auto is_word = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  const char quote = text[at];
  if (quote != '"' && quote != '\'') return at;
  if (quote == '"' && at > 0 && text[at - 1] == 'R') {
    const std::size_t open = text.find('(', at);
    if (open == std::string_view::npos) return text.size();
    const std::size_t close = text.find(")" + std::string(text.substr(at + 1, open - at - 1)) + "\"", open);
    return close == std::string_view::npos ? text.size() : close + 2 + (open - at - 1);
  }
  // 16'384, but u'c' too: harmless
  if (quote == '\'' && at > 0 && is_word(text[at - 1]) && at + 1 < text.size() && is_word(text[at + 1]))
    return at;
  std::size_t end = at + 1;
  while (end < text.size() && text[end] != quote && text[end] != '\n') end += text[end] == '\\' ? 2 : 1;
  return std::min(end + 1, text.size());
}

}  // namespace

std::string code_of(const std::string& source) {
  std::string code;
  const auto blank = [&](char c) {  // one of a run, a line's end if there is one; none where a line begins
    if (code.empty() || code.back() == '\n') return;
    if (code.back() == ' ') code.pop_back();
    if (c == '\n' || code.back() != '\n') code += c;
  };
  for (std::size_t at = 0; at < source.size();) {
    if (source.compare(at, 2, "//") == 0) {
      at = std::min(source.find('\n', at), source.size());
    } else if (source.compare(at, 2, "/*") == 0) {
      const std::size_t end = source.find("*/", at + 2);
      at = end == std::string::npos ? source.size() : end + 2;
      blank(' ');
    } else if (const char c = source[at]; c == ' ' || c == '\t' || c == '\r' || c == '\n') {
      blank(c == '\n' ? c : ' ');
      ++at;
    } else {
      const std::size_t end = std::max(end_of_literal(source, at), at + 1);
      code.append(source, at, end - at);
      at = end;
    }
  }
  while (!code.empty() && (code.back() == ' ' || code.back() == '\n')) code.pop_back();
  return code;
}

SourceHashes hash_of(std::vector<std::pair<std::string, std::string>> sources) {
  std::sort(sources.begin(), sources.end());
  std::string code, coefficients;
  for (const auto& [name, text] : sources) {
    const std::size_t folder = name.rfind('/');
    if (name.compare(folder + 1, 6, "tuned_") == 0 || name.starts_with("kernels/support/") ||
        name.starts_with("kernels/torch/"))
      continue;
    (name.find("/generated/") != std::string::npos ? coefficients : code) +=
        kernels::sha256(name + "\n" + code_of(text));
  }
  return {kernels::sha256(code), kernels::sha256(coefficients)};
}

SourceHashes hash_sources(const std::string& include_root) {
  namespace fs = std::filesystem;
  const fs::path root = fs::path(include_root) / "kernels";
  std::error_code error;
  std::vector<std::pair<std::string, std::string>> sources;
  for (fs::recursive_directory_iterator entry(root, error), end; !error && entry != end;
       entry.increment(error))
    if (entry->path().extension() == ".h")
      sources.emplace_back(fs::relative(entry->path(), include_root).string(),
                           kernels::read_file(entry->path().string()));
  if (error) throw kernels::IoError(root.string(), "read", error.value());
  return hash_of(std::move(sources));
}

std::string source_root() {
  const char* given = std::getenv("OUTGRAD_SOURCE_DIR");
  const std::filesystem::path root = given != nullptr ? given : OUTGRAD_SOURCES;
  std::error_code error;
  if (!std::filesystem::exists(root / "kernels" / "params.h", error))
    throw kernels::EnvironmentError("the kernels' headers are not in " + root.string() +
                                    " (OUTGRAD_SOURCE_DIR names their folder)");
  return std::filesystem::absolute(root, error).lexically_normal().string();
}

}  // namespace outgrad::autotune
