// A made-up language to train on: text from a fixed grammar, with structure that reaches back over a window.
//
// Of lower-case letters, blank, full stop, comma, brackets and newline. A lexicon of nouns, verbs and adjectives, drawn once, by Zipf's law; sentences
// of subject, verb and object. What a model may learn beyond spelling:
//   - the verb agrees in number with its subject, over a relative clause in brackets that has a number of its own;
//   - clauses nest, and their brackets close;
//   - a paragraph has two names of its own, made anew, which its sentences use again and its last sentence repeats in their order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace outgrad::validation {

inline constexpr int kTextSymbols = 32;

/// Exact integer arithmetic and one division by 2^53: the same numbers with every standard library.
class TextRandom {
 public:
  explicit TextRandom(std::uint64_t seed) : state_(seed) {}
  /// splitmix64 (Steele, Lea, Flood, OOPSLA 2014).
  std::uint64_t bits() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  /// In [0, 1).
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  /// In [0, n).
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(uniform() * static_cast<double>(n)); }
  bool chance(double p) { return uniform() < p; }

 private:
  std::uint64_t state_;
};

/// At least `length` symbols, cut to it; each in [0, kTextSymbols). The language is the same for every seed, the text is not.
std::vector<std::uint8_t> made_up_text(std::size_t length, std::uint64_t seed);

/// The character that a symbol stands for.
char text_character(std::uint8_t symbol);

}  // namespace outgrad::validation
