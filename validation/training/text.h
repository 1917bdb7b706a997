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

/// At least `length` symbols, cut to it; each in [0, kTextSymbols). The language is the same for every seed, the text is not.
std::vector<std::uint8_t> made_up_text(std::size_t length, std::uint64_t seed);

/// The character that a symbol stands for.
char text_character(std::uint8_t symbol);

}  // namespace outgrad::validation
