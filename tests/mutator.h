// What fuzzed readers start from, and how it is damaged; from a seed, the same on every machine.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/support/files.h"

namespace outgrad {

// The texts of all files of these folders of the repository.
inline std::vector<std::string> texts_in(const std::vector<std::string>& folders) {
  std::vector<std::filesystem::path> paths;
  for (const std::string& folder : folders)
    for (const auto& entry :
         std::filesystem::directory_iterator(std::string(OUTGRAD_SOURCE_DIR) + "/" + folder))
      if (entry.is_regular_file()) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());  // the order of a folder is its file system's
  std::vector<std::string> texts;
  for (const auto& path : paths) texts.push_back(kernels::read_file(path.string()));
  return texts;
}

// Damages files in the ways that break readers and what comes after them.
class Mutator {
 public:
  // A kind of damage that only some readers know, at a place in the text.
  using Damage = std::function<void(Mutator&, std::string& text, std::size_t at)>;

  // tokens: what a reader takes notice of.
  Mutator(std::uint64_t seed, std::vector<std::string_view> tokens, std::vector<Damage> own = {})
      : random_(seed), tokens_(std::move(tokens)), own_(std::move(own)) {}

  // One to three damages; parts of the donor are inserted.
  std::string mutate(std::string text, const std::string& donor) {
    for (std::size_t rounds = 1 + below(3); rounds > 0; --rounds) damage(text, donor);
    return text;
  }

  std::size_t below(std::size_t limit) { return limit == 0 ? 0 : random_() % limit; }
  std::string_view token() { return tokens_[below(tokens_.size())]; }

 private:
  void damage(std::string& text, const std::string& donor) {
    constexpr std::size_t kCommon = 5;
    const std::size_t at = below(text.size() + 1), kind = below(kCommon + own_.size());
    switch (kind) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
        break;
      case 1: text.insert(at, token()); break;
      case 2: text.erase(at, 1 + below(8)); break;
      case 3: text.insert(at, donor.substr(below(donor.size() + 1), below(32))); break;
      case 4:  // of a number: a size, an offset, a coefficient
        if (const std::size_t digit = text.find_first_of("0123456789", at); digit != std::string::npos)
          text[digit] = static_cast<char>('0' + below(10));
        break;
      default: own_[kind - kCommon](*this, text, at);
    }
  }

  std::mt19937_64 random_;
  std::vector<std::string_view> tokens_;
  std::vector<Damage> own_;
};

}  // namespace outgrad
