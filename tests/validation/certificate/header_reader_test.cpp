// The reader accepts what emit writes and nothing else, and no text makes it crash.
#include "validation/certificate/header_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <random>
#include <string>

#include "kernels/host/errors.h"
#include "kernels/support/files.h"
#include "tests/header_names.h"
#include "tests/refusal.h"
#include "tests/validation/certificate/sample_header.h"

namespace outgrad::validation {
namespace {

using kernels::SpecError;

// Coefficients do not matter to the reader; a header with every kind of constant does.
BackwardHeader arbitrary_header() {
  BackwardHeader h;
  h.file = "h.h", h.fit_path = "fit.json", h.spec_sha256 = std::string(64, '0'), h.name = "gelu_f32",
  h.activation = "gelu", h.function = "x*normal_cdf(x)", h.format = "f32";
  h.accuracy = "abs:2^-20", h.exact_limits = true;
  h.degree = 2, h.rows = 4, h.operations = 6;
  h.y_hi = -0x1.5c1a2cp-3f, h.y_lo = 0x1.8p-30f, h.t_min = 0x1p-149f, h.s_min = -0.4f, h.y_max = 4.0f,
  h.index_scale = 4.0f, h.index_bias = 0x1p23f;
  h.has_left = true, h.left_y = -0.125f, h.left_row = 2, h.left_knee = 246, h.left_base = -3;
  h.bound_a = 0x1.23456789abcdfp-27, h.bound_k = 0, h.bound_b = 0x1p-22, h.bound_ab = 0x1.8p-22;
  h.found_a = {true, -27.01, -0x1.23p+2}, h.found_b = {true, -22.5, 0x1.5p-3, false},
  h.found_ab = {true, -21.75, -0x0p+0, true};
  h.table = {4, 4, {}, {-20.5, -21, -22.25, -23.01}, {{}, {true, -21.03, 1.5}, {}, {}}};
  for (int i = 0; i < 16; ++i)
    h.table.values.push_back(i % 3 == 0 ? -0.0f : std::ldexp(1.0f + 0x1p-23f * static_cast<float>(i), i - 8));
  return h;
}

// The other parts: no mask, break points, storage claims.
BackwardHeader unmasked_header() {
  BackwardHeader h = arbitrary_header();
  h.activation = "softplus", h.function = "softplus(x)", h.format = "bf16", h.masked = false,
  h.has_left = false;
  h.y_min = 0, h.rows = 3, h.has_breaks = true, h.breaks = {0.5f, 1.25f}, h.scheme = 2;
  h.found_a = {}, h.found_b = {true, -22.5, 0x1.5p-3}, h.found_ab = {};
  h.storage = {0x1p-8, 0x1p-9, 0x1p-10, {}, {true, -9, 0x1p-3}, {}};
  h.table = {3, 4, std::vector<float>(12, 0.75f), {-9, -9, -9}, {}};
  return h;
}

TableHeader arbitrary_table() {
  TableHeader h;
  h.fit_path = "fit.json", h.spec_sha256 = std::string(64, '0'), h.name = "gelu_e4m3", h.activation = "gelu",
  h.function = "x*normal_cdf(x)", h.format = "e4m3", h.accuracy = "oracle";
  h.entry_format = "f16", h.index_operations = 11;
  h.upper = {0, 3, 0}, h.lower = {1, 2, 4}, h.left = {0, 0, 6};
  h.storage = {0x1p-4, 0x1p-5, 0x1p-6, {true, -4, -0x1.4p-3}, {}, {}};
  h.entries = {0x3800, 0x3900, 0x3a00, 0x3c00, 0x3700, 0x3600, 0x0000};
  return h;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string message_of(const std::string& text) {
  return refusal_of([&] { parse_header(text, "h.h"); });
}

TEST(HeaderReader, ReadsBackEveryBit) {
  const BackwardHeader h = arbitrary_header();
  const auto read = std::get<BackwardHeader>(parse_header(print_header(h), "h.h"));
  EXPECT_EQ(print_header(read), print_header(h));
  ASSERT_EQ(read.table.values.size(), h.table.values.size());
  for (size_t i = 0; i < h.table.values.size(); ++i) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(read.table.values[i]),
              std::bit_cast<std::uint32_t>(h.table.values[i]))
        << i;
  }
  EXPECT_EQ(read.left_base, -3);
  EXPECT_EQ(read.bound_a, h.bound_a);
  EXPECT_EQ(read.bound_ab, h.bound_ab);
  EXPECT_EQ(read.name, "gelu_f32");
  EXPECT_EQ(read.found_a.at, h.found_a.at);
  EXPECT_EQ(read.found_b.m, false);
  EXPECT_EQ(read.found_ab.log2_error, -21.75);
  EXPECT_FALSE(read.found_k.given);
  EXPECT_EQ(read.table.found[1].at, 1.5);
}

// A figure of other than two decimals, an input in another notation, of another kind, without its branch or
// with a branch more.
TEST(HeaderReader, RejectsWhatIsNoInput) {
  const std::string masked = print_header(arbitrary_header()), unmasked = print_header(unmasked_header());
  EXPECT_NE(masked.find("; found 2^-27.01 at x = -0x1.23p+2\n"), std::string::npos);
  EXPECT_NE(masked.find("; found 2^-22.50 at y = 0x1.5p-3, m = 0\n"), std::string::npos);
  for (const auto& [from, to] : {std::pair{"found 2^-27.01", "found 2^-27.0"},
                                 {"found 2^-27.01", "found -27.01"},
                                 {"at x = -0x1.23p+2", "at y = -0x1.23p+2"},
                                 {"at x = -0x1.23p+2", "at x = -0x1.230p+2"},
                                 {"at x = -0x1.23p+2", "at x = -4.5"},
                                 {"at x = -0x1.23p+2", "at x = nan"},
                                 {"at x = -0x1.23p+2", "at x = inf"},
                                 {"0x1.5p-3, m = 0", "nan, m = 0"},
                                 {"0x1.5p-3, m = 0", "1e999, m = 0"},
                                 {"0x1.5p-3, m = 0", "0x1.5p-3"},
                                 {"0x1.5p-3, m = 0", "0x1.5p-3, m = 2"},
                                 {"at x = 0x1.8p+0", "at x = 0x1.8p+0, m = 1"}}) {
    EXPECT_NE(message_of(replaced(masked, from, to)), "") << to;
  }
  EXPECT_NE(message_of(replaced(unmasked, "at y = 0x1.5p-3", "at y = 0x1.5p-3, m = 1")), "");
  // What lies beyond the largest number is stored as an infinity.
  EXPECT_EQ(message_of(replaced(unmasked, "at y = 0x1p-3", "at y = -inf")), "");
}

TEST(HeaderReader, ReadsBackTheOtherParts) {
  const auto unmasked = std::get<BackwardHeader>(parse_header(print_header(unmasked_header()), "h.h"));
  EXPECT_EQ(print_header(unmasked), print_header(unmasked_header()));
  EXPECT_EQ(unmasked.breaks, (std::vector<float>{0.5f, 1.25f}));
  EXPECT_EQ(unmasked.storage.oracle, 0x1p-9);
  const auto table = std::get<TableHeader>(parse_header(print_header(arbitrary_table()), "h.h"));
  EXPECT_EQ(print_header(table), print_header(arbitrary_table()));
  EXPECT_EQ(table.entries, arbitrary_table().entries);
  EXPECT_EQ(table.left.base, 6);
}

std::vector<std::string> all_texts() {
  return {print_header(arbitrary_header()), print_header(unmasked_header()), print_header(arbitrary_table())};
}

TEST(HeaderReader, RejectsPartsThatDoNotFit) {
  const std::string unmasked = print_header(unmasked_header()), table = print_header(arbitrary_table());
  EXPECT_NE(message_of(replaced(unmasked, "{0x1p-1f, 0x1.4p+0f}", "{0x1p-1f}")).find("expected ', '"),
            std::string::npos);
  EXPECT_NE(message_of(replaced(unmasked, "kHasBreaks = true", "kHasBreaks = false")), "");
  EXPECT_NE(message_of(replaced(unmasked, "kMasked = false", "kMasked = true")), "");
  EXPECT_NE(message_of(replaced(unmasked, "kScheme = 2", "kScheme = 3")), "");
  EXPECT_NE(message_of(replaced(unmasked, "softplus(x)", "softplus(x")).find("kFunction: column 11"),
            std::string::npos);
  EXPECT_NE(message_of(replaced(unmasked, "return at[k]", "return at[0]")), "");
  EXPECT_NE(message_of(replaced(unmasked, "\"bf16\"", "\"bf15\"")).find("kFormat = 'bf15' is unknown"),
            std::string::npos);
  EXPECT_NE(message_of(replaced(unmasked, "\"bf16\"", "\"bf16_parity\""))
                .find("kFormat = 'bf16_parity' carries a branch, and f rises"),
            std::string::npos);
  EXPECT_NE(message_of(replaced(table, "kEntries = 7", "kEntries = 8")), "");
  EXPECT_NE(message_of(replaced(table, "kEntries = 7", "kEntries = 6"))
                .find("the segment of kLeft leaves the table"),
            std::string::npos);
  EXPECT_NE(message_of(replaced(table, "kEntries = 7", "kEntries = 999999999")), "");
  EXPECT_NE(message_of(replaced(table, "0x3800", "0x38000")), "");
  EXPECT_NE(message_of(replaced(table, "0x3800", "0x38g0")).find("expected 16 bits in hexadecimal"),
            std::string::npos);
  EXPECT_NE(message_of(replaced(table, "kLeftBase = 6", "kLeftBase = 7")).find("leaves the table"),
            std::string::npos);
  EXPECT_NE(message_of(replaced(table, "kUpperLast = 3", "kUpperLast = 32768")), "");
  EXPECT_NE(message_of(replaced(table, "kLowerFirst = 1", "kLowerFirst = 3")), "");
}

TEST(HeaderReader, RejectsEveryTruncation) {
  for (const std::string& text : all_texts()) {
    for (size_t length = 0; length < text.size(); ++length)
      EXPECT_THROW(parse_header(text.substr(0, length), "h.h"), SpecError) << length;
  }
}

TEST(HeaderReader, RejectsAMissingOrRepeatedLine) {
  for (const std::string& text : all_texts()) {
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = text.find('\n', begin) + 1;
      const std::string line = text.substr(begin, end - begin);
      EXPECT_THROW(parse_header(std::string(text).erase(begin, line.size()), "h.h"), SpecError) << line;
      EXPECT_THROW(parse_header(std::string(text).insert(begin, line), "h.h"), SpecError) << line;
      begin = end;
    }
  }
}

// A comment that ends in a backslash, or in one and a blank, swallows the next line in g++ and clang++.
TEST(HeaderReader, RejectsWhatACompilerReadsDifferently) {
  for (const std::string& text : all_texts()) {
    for (const char* spliced : {"\\", "\\ ", "\\\t", "?\?/", " "}) {
      for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', end + 1)) {
        EXPECT_THROW(parse_header(std::string(text).insert(end, spliced), "h.h"), SpecError)
            << "offset " << end << ": " << spliced;
      }
    }
  }
  const std::string text = print_header(arbitrary_header());
  const size_t at = text.find("  // row 0: ");
  const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
  const size_t end = text.find('\n', at), column = end - text.rfind('\n', end - 1);
  EXPECT_EQ(message_of(std::string(text).insert(end, " \\ ")),
            fmt::format("h.h:{}:{}: expected '\\n', found ' \\ '", line, column));
}

// A committed header is what the printer makes of what the reader took from it.
TEST(HeaderReader, PrintsEveryCommittedHeader) {
  int headers = 0;
  for (const auto& entry : std::filesystem::directory_iterator(OUTGRAD_SOURCE_DIR "/kernels/generated")) {
    if (entry.path().filename().string().starts_with("tuned_")) continue;
    EXPECT_EQ(print_header(read_header(entry.path().string())), kernels::read_file(entry.path().string()))
        << entry.path();
    ++headers;
  }
  EXPECT_GE(headers, 45);
}

// What an f32 forward may have or lack decides comments above it as well.
TEST(HeaderReader, RejectsAnF32ForwardOfAnotherForm) {
  const auto text_of = [](const char* name) {
    return kernels::read_file(fmt::format("{}/kernels/generated/{}.h", OUTGRAD_SOURCE_DIR, name));
  };
  const std::string mish = text_of("mish_forward"), tanh = text_of("tanh_forward");
  const std::string levels = "  static constexpr bool kLevels = true;\n",
                    compensated = "  static constexpr bool kCompensated = true;\n";
  for (const std::string& changed :
       {replaced(tanh, levels, ""), replaced(tanh, levels, levels + levels),
        replaced(tanh, "kLevels = true", "kLevels = false"),
        replaced(tanh, "its limit from here on", "x from here on"),
        replaced(tanh, "its limit here and below", "0 below"), replaced(tanh, compensated, ""),
        replaced(tanh, levels,
                 "  static constexpr float kTailX = -0x1p+1f;  // -2: below, the tail table\n" + levels),
        replaced(mish, "kCompensated = true", "kCompensated = false"), replaced(mish, compensated, ""),
        replaced(mish, "-0 below", "0 below"), replaced(mish, "x from here on", "its limit from here on"),
        replaced(mish, "kXStar", "kStar"), replaced(mish, "kTailX", "kTail"),
        replaced(mish, "kSlopeLow = -0x1.99999ap-26f;  // -2.38418583e-08", "kSlopeLow = 0x0p+0f;  // 0"),
        replaced(mish, "kSlopeLow = -0x1.99999ap-26f", "kSlopeLow = -0x1.99999ap-27f"),
        replaced(mish, "kTailDegree = 6", "kTailDegree = 7"), replaced(mish, "tail()", "tails()")}) {
    EXPECT_NE(message_of(changed), "");
  }
  // Without kSlopeLow it is another header, which is not true.
  const size_t at = mish.find("  static constexpr float kSlopeLow");
  const std::string without = std::string(mish).erase(at, mish.find('\n', at) + 1 - at);
  EXPECT_EQ(print_header(parse_header(without, "h.h")), without);
}

TEST(HeaderReader, NamesFileLineColumnAndReason) {
  const std::string text = print_header(arbitrary_header());
  EXPECT_NE(message_of(replaced(text, "kRows = 4", "kRows = 6")).find("not a power of two"),
            std::string::npos);
  const auto line =
      1 +
      std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(text.find("kDegree = 2")), '\n');
  EXPECT_EQ(message_of(replaced(text, "kDegree = 2", "kDegree = two")),
            fmt::format("h.h:{}:34: expected an integer, found 'two'", line));
  EXPECT_EQ(message_of(replaced(text, "kDegree = 2", "kDegree = 02")),
            fmt::format("h.h:{}:34: expected '2;', found '02;'", line));
  EXPECT_NE(message_of(replaced(text, "kDegree = 2", "kDegree = 3")), "");
  for (const char* number : {"-0x1.5c1a2c1p-3f", "-0.17f", "0x1p+200f", "-0x1.5c1a2cp-3", "-0x1.5c1a2c0p-3f",
                             "inff", "nanf", "0x1.p-3f"})
    EXPECT_NE(message_of(replaced(text, "-0x1.5c1a2cp-3f", number)), "") << number;
  for (const char* number : {"0x1.00000000000001p-22;", "0x2p-23;", "-0x0p+0;", "inf;"})
    EXPECT_NE(message_of(replaced(text, "0x1p-22;", number)), "") << number;
  EXPECT_NE(message_of(replaced(text, "float kTMin", "float kTmin")).find("expected 'Min = ', found 'min = "),
            std::string::npos);
  EXPECT_NE(message_of(replaced(text, "kRows = 4", "kRows = 1073741824")), "");
  EXPECT_NE(
      message_of(replaced(text, "kRows = 4", "kRows = 99999999999999999999")).find("expected an integer"),
      std::string::npos);
  EXPECT_NE(message_of(replaced(text, "kName = \"gelu_f32\"", "kName = \"gelu\nf32\"")), "");
  EXPECT_NE(message_of(replaced(text, "kName = \"gelu_f32\"", "kName = \"gelu_f33\"")), "");
  EXPECT_NE(message_of(replaced(text, "kHasLeft = true", "kHasLeft = 1")), "");
  EXPECT_NE(message_of(replaced(text, "int kDegree", "float kDegree")), "");
  EXPECT_NE(message_of(replaced(text, "emit fit.json", "emit fit.json\\")), "");
  EXPECT_NE(
      message_of(replaced(text, "spec sha256: 0", "spec sha256: g")).find("expected 64 hexadecimal digits"),
      std::string::npos);
  EXPECT_NE(message_of(text + "int x;").find("the header goes on after its end"), std::string::npos);
  EXPECT_NE(message_of(std::string(2 << 20, ' ')).find("too long"), std::string::npos);
  EXPECT_NE(message_of("").find("not a generated coefficient header"), std::string::npos);
}

// The header of `table` has a struct that hides the template it uses, that of `_` one without a name, that of
// `gelu_bf16` a struct of the library.
TEST(HeaderReader, NightlyAcceptsNamesWhoseHeadersCompile) {
  const auto named = [](const std::string& name, const std::string& activation) {
    BackwardHeader h = unmasked_header();
    h.name = name, h.activation = activation;
    return print_header(h);
  };
  tests::expect_names_compile([&](const std::string& name) { return named(name, "expression"); },
                              [&](const std::string& name) { return message_of(named(name, "expression")); });
  EXPECT_EQ(message_of(named("table", "softplus")),
            "h.h:11:1: a struct Table hides what the header itself uses");
  EXPECT_EQ(message_of(named("gelu_f32", "expression")),
            "h.h:12:1: 'gelu_f32' is the name of a header of the library");
  EXPECT_EQ(message_of(named("gelu_f32", "softplus")), "");
}

// A row more or a word less than declared would be a compiler's error or its zeros, not a proof.
TEST(HeaderReader, RejectsTablesOfAnotherShape) {
  const std::string text = print_header(arbitrary_header());
  const size_t row = text.find("      {");
  const std::string line = text.substr(row, text.find('\n', row) + 1 - row);
  EXPECT_NE(message_of(std::string(text).insert(row, line)), "");
  EXPECT_NE(message_of(replaced(text, "      {-0x0p+0f, ", "      {")), "");
  EXPECT_NE(message_of(replaced(text, "kDegree + 2", "kDegree + 3")), "");
  EXPECT_NE(message_of(replaced(text, "Table<kRows", "Table<kDegree")), "");
}

// Whatever the bytes: a SpecError, or a header whose text they are.
TEST(HeaderReader, SurvivesDamage) {
  const std::vector<std::string> texts = all_texts();
  std::mt19937 random(1);
  int accepted = 0;
  constexpr int kRounds = 30000;
  for (int round = 0; round < kRounds; ++round) {
    std::string damaged = texts[static_cast<size_t>(round) % texts.size()];
    for (int edits = 1 + static_cast<int>(random() % 3); edits > 0 && !damaged.empty(); --edits) {
      const size_t at = random() % damaged.size();
      switch (random() % 4) {
        case 0: damaged[at] = static_cast<char>(random() % 256); break;
        case 1: damaged.erase(at, 1 + random() % 20); break;
        case 2: damaged.insert(at, damaged.substr(random() % damaged.size(), random() % 40)); break;
        default:
          damaged.insert(at, std::string(1 + random() % 3, "{}();=,-0x9fp\"#/\\[]*("[random() % 21]));
          break;
      }
    }
    try {
      ASSERT_EQ(print_header(parse_header(damaged, "h.h")), damaged);
      ++accepted;
    } catch (const SpecError&) {
    }
  }
  EXPECT_GT(accepted, 0);  // a digit of a hash, a number that happens to be one
  EXPECT_LT(accepted, kRounds / 10);  // most is not
}

}  // namespace
}  // namespace outgrad::validation
