// SHA-256, and a scanner that knows comments and literals.
#include "autotune/sources.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <filesystem>
#include <string_view>

#include "kernels/host/files.h"

namespace outgrad::autotune {
namespace {

std::uint32_t big_endian(const unsigned char* byte) {
  return std::uint32_t{byte[0]} << 24 | std::uint32_t{byte[1]} << 16 | std::uint32_t{byte[2]} << 8 | byte[3];
}

// Where the literal that begins at `at` ends; `at` itself where none begins there.
std::size_t end_of_literal(std::string_view text, std::size_t at) {
  const auto is_word = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  const char quote = text[at];
  if (quote != '"' && quote != '\'') return at;
  if (quote == '"' && at > 0 && text[at - 1] == 'R') {
    const std::size_t open = text.find('(', at);
    if (open == std::string_view::npos) return text.size();
    const std::size_t close = text.find(")" + std::string(text.substr(at + 1, open - at - 1)) + "\"", open);
    return close == std::string_view::npos ? text.size() : close + 2 + (open - at - 1);
  }
  if (quote == '\'' && at > 0 && is_word(text[at - 1]) && at + 1 < text.size() && is_word(text[at + 1])) return at;  // 16'384, but u'c' too: harmless
  std::size_t end = at + 1;
  while (end < text.size() && text[end] != quote && text[end] != '\n') end += text[end] == '\\' ? 2 : 1;
  return std::min(end + 1, text.size());
}

}  // namespace

std::string sha256(const std::string& bytes) {
  // The constants are the first 32 bits of the fractional parts of the cube roots (k) and square roots (state) of the first primes.
  static constexpr std::array<std::uint32_t, 64> k = {
      0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
      0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
      0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
      0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
      0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
      0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
  std::array<std::uint32_t, 8> state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::string padded = bytes + '\x80';
  padded.resize((padded.size() + 8 + 63) / 64 * 64, '\0');
  for (int i = 0; i < 8; ++i) padded[padded.size() - 1 - i] = static_cast<char>(std::uint64_t{bytes.size()} * 8 >> (8 * i));

  for (std::size_t block = 0; block < padded.size(); block += 64) {
    std::array<std::uint32_t, 64> w;
    for (std::size_t i = 0; i < 16; ++i) w[i] = big_endian(reinterpret_cast<const unsigned char*>(padded.data()) + block + 4 * i);
    for (std::size_t i = 16; i < 64; ++i) {
      const std::uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
      const std::uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
      w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    auto [a, b, c, d, e, f, g, h] = state;
    for (std::size_t i = 0; i < 64; ++i) {
      const std::uint32_t t1 = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + ((e & f) ^ (~e & g)) + k[i] + w[i];
      const std::uint32_t t2 = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    const std::array<std::uint32_t, 8> mixed = {a, b, c, d, e, f, g, h};
    for (std::size_t i = 0; i < 8; ++i) state[i] += mixed[i];
  }
  std::string hex;
  for (const std::uint32_t word : state)
    for (int shift = 28; shift >= 0; shift -= 4) hex += "0123456789abcdef"[word >> shift & 15];
  return hex;
}

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
    if (name.compare(folder + 1, 6, "tuned_") == 0) continue;
    (name.find("/generated/") != std::string::npos ? coefficients : code) += sha256(name + "\n" + code_of(text));
  }
  return {sha256(code), sha256(coefficients)};
}

SourceHashes hash_sources(const std::string& include_root) {
  namespace fs = std::filesystem;
  const fs::path root = fs::path(include_root) / "kernels";
  std::error_code error;
  std::vector<std::pair<std::string, std::string>> sources;
  for (fs::recursive_directory_iterator entry(root, error), end; !error && entry != end; entry.increment(error))
    if (entry->path().extension() == ".h") sources.emplace_back(fs::relative(entry->path(), include_root).string(), kernels::read_file(entry->path().string()));
  if (error) throw kernels::IoError(root.string(), "read", error.value());
  return hash_of(std::move(sources));
}

}  // namespace outgrad::autotune
