// The grammar of text.h.
#include "validation/training/text.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/support/random.h"

namespace outgrad::validation {

using kernels::Random;

namespace {

constexpr std::string_view kAlphabet = "abcdefghijklmnopqrstuvwxyz .,()\n";
static_assert(kAlphabet.size() == kTextSymbols);

constexpr std::uint64_t kLanguage = 20221128;  // seed of the lexicon: there is one language
constexpr std::size_t kNouns = 80, kVerbs = 50, kAdjectives = 40;
constexpr int kDeepestClause = 2;

std::string word(Random& random, std::size_t syllables) {
  constexpr std::string_view kConsonants = "bcdfghjklmnpqrstvwxz", kVowels = "aeiouy", kCodas = "lmnrs";
  constexpr double kClosed = 0.35;  // share of syllables that end in a consonant
  std::string text;
  for (std::size_t k = 0; k < syllables; ++k) {
    text += kConsonants[random.below(kConsonants.size())];
    text += kVowels[random.below(kVowels.size())];
    if (random.chance(kClosed)) text += kCodas[random.below(kCodas.size())];
  }
  return text;
}

/// Words whose probability falls as 1 / rank.
class Lexicon {
 public:
  Lexicon(Random& random, std::size_t count) {
    double sum = 0;
    for (std::size_t rank = 1; rank <= count; ++rank) {
      words_.push_back(word(random, 1 + random.below(2)));
      cumulative_.push_back(sum += 1.0 / static_cast<double>(rank));
    }
  }
  const std::string& draw(Random& random) const {
    const double at = random.uniform() * cumulative_.back();
    const auto place = std::upper_bound(cumulative_.begin(), cumulative_.end() - 1, at) - cumulative_.begin();
    return words_[static_cast<std::size_t>(place)];
  }

 private:
  std::vector<std::string> words_;
  std::vector<double> cumulative_;
};

class Writer {
 public:
  explicit Writer(std::uint64_t seed)
      : lexicon_(kLanguage), nouns_(lexicon_, kNouns), verbs_(lexicon_, kVerbs), adjectives_(lexicon_, kAdjectives), random_(seed) {}

  void paragraph(std::string& text) {
    names_ = {word(random_, 3), word(random_, 3)};
    const std::size_t sentences = 3 + random_.below(3);
    for (std::size_t k = 0; k < sentences; ++k) {
      clause(text, 0, k == 0);
      text += ". ";
    }
    text += names_[0] + ", " + names_[1] + ".\n";
  }

 private:
  static constexpr double kPlural = 0.4, kName = 0.45, kAdjective = 0.3, kRelative = 0.35;

  /// Subject, verb, object; the first of a paragraph introduces both names.
  void clause(std::string& text, int depth, bool introduces) {
    const bool plural = subject(text, depth, introduces ? 0 : kNone);
    text += ' ' + verbs_.draw(random_) + (plural ? "u " : "a ");
    subject(text, kDeepestClause, introduces ? 1 : kNone);
  }

  static constexpr std::size_t kNone = 2;

  /// Returns whether it is plural.
  bool subject(std::string& text, int depth, std::size_t name) {
    if (name == kNone && random_.chance(kName)) name = random_.below(names_.size());
    bool plural = false;
    if (name != kNone) {
      text += names_[name];
    } else {
      plural = random_.chance(kPlural);
      if (random_.chance(kAdjective)) text += adjectives_.draw(random_) + ' ';
      text += nouns_.draw(random_);
      if (plural) text += "ti";
    }
    if (depth < kDeepestClause && random_.chance(kRelative)) {
      text += " (";
      clause(text, depth + 1, false);
      text += ')';
    }
    return plural;
  }

  Random lexicon_;
  Lexicon nouns_, verbs_, adjectives_;
  Random random_;
  std::array<std::string, 2> names_;
};

}  // namespace

std::vector<std::uint8_t> made_up_text(std::size_t length, std::uint64_t seed) {
  Writer writer(seed);
  std::string text;
  while (text.size() < length) writer.paragraph(text);
  text.resize(length);
  std::vector<std::uint8_t> symbols(length);
  std::transform(text.begin(), text.end(), symbols.begin(), [](char c) { return static_cast<std::uint8_t>(kAlphabet.find(c)); });
  return symbols;
}

char text_character(std::uint8_t symbol) { return kAlphabet[symbol]; }

}  // namespace outgrad::validation
