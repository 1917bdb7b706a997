// The reader accepts what emit writes and nothing else, and no text makes it crash.
#include "validation/certificate/header_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <random>
#include <string>

#include "kernels/host/errors.h"
#include "tests/validation/certificate/sample_header.h"

namespace outgrad::validation {
namespace {

using kernels::SpecError;

// Coefficients do not matter to the reader; a header with every kind of constant does.
BackwardHeader arbitrary_header() {
  BackwardHeader h;
  h.file = "h.h", h.struct_name = "GeluF32", h.name = "gelu_f32", h.activation = "gelu", h.function = "x*normal_cdf(x)", h.format = "f32";
  h.accuracy = "abs:2^-20", h.exact_limits = true;
  h.degree = 2, h.rows = 4, h.operations = 6;
  h.y_hi = -0x1.5c1a2cp-3f, h.y_lo = 0x1.8p-30f, h.t_min = 0x1p-149f, h.s_min = -0.4f, h.y_max = 4.0f, h.index_scale = 4.0f,
  h.index_bias = 0x1p23f;
  h.has_left = true, h.left_y = -0.125f, h.left_row = 2, h.left_knee = 246, h.left_base = -3;
  h.bound_a = 0x1.23456789abcdfp-27, h.bound_k = 0, h.bound_b = 0x1p-22, h.bound_ab = 0x1.8p-22;
  h.table = {4, 4, {}};
  for (int i = 0; i < 16; ++i) h.table.values.push_back(i % 3 == 0 ? -0.0f : std::ldexp(1.0f + 0x1p-23f * static_cast<float>(i), i - 8));
  return h;
}

// The other parts: no mask, break points, storage claims.
BackwardHeader unmasked_header() {
  BackwardHeader h = arbitrary_header();
  h.activation = "softplus", h.function = "softplus(x)", h.format = "bf16", h.masked = false, h.has_left = false;
  h.y_min = 0, h.rows = 3, h.has_breaks = true, h.breaks = {0.5f, 1.25f}, h.scheme = 2;
  h.storage = {0x1p-8, 0x1p-9, 0x1p-10};
  h.table = {3, 4, std::vector<float>(12, 0.75f)};
  return h;
}

TableHeader arbitrary_table() {
  TableHeader h;
  h.struct_name = "GeluE4m3", h.name = "gelu_e4m3", h.activation = "gelu", h.function = "x*normal_cdf(x)", h.format = "e4m3",
  h.accuracy = "oracle";
  h.entry_format = "f16", h.index_operations = 11;
  h.upper = {0, 3, 0}, h.lower = {1, 2, 4}, h.left = {0, 0, 6};
  h.storage = {0x1p-4, 0x1p-5, 0x1p-6};
  h.entries = {0x3800, 0x3900, 0x3a00, 0x3c00, 0x3700, 0x3600, 0x0000};
  return h;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string message_of(const std::string& text) {
  try {
    parse_header(text, "h.h");
  } catch (const SpecError& error) {
    return error.what();
  }
  return "";
}

TEST(HeaderReader, ReadsBackEveryBit) {
  const BackwardHeader h = arbitrary_header();
  const auto read = std::get<BackwardHeader>(parse_header(header_text(h), "h.h"));
  EXPECT_EQ(header_text(read), header_text(h));
  ASSERT_EQ(read.table.values.size(), h.table.values.size());
  for (size_t i = 0; i < h.table.values.size(); ++i) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(read.table.values[i]), std::bit_cast<std::uint32_t>(h.table.values[i])) << i;
  }
  EXPECT_EQ(read.left_base, -3);
  EXPECT_EQ(read.bound_a, h.bound_a);
  EXPECT_EQ(read.bound_ab, h.bound_ab);
  EXPECT_EQ(read.name, "gelu_f32");
}

TEST(HeaderReader, ReadsBackTheOtherParts) {
  const auto unmasked = std::get<BackwardHeader>(parse_header(header_text(unmasked_header()), "h.h"));
  EXPECT_EQ(header_text(unmasked), header_text(unmasked_header()));
  EXPECT_EQ(unmasked.breaks, (std::vector<float>{0.5f, 1.25f}));
  EXPECT_EQ(unmasked.storage.oracle, 0x1p-9);
  const auto table = std::get<TableHeader>(parse_header(header_text(arbitrary_table()), "h.h"));
  EXPECT_EQ(header_text(table), header_text(arbitrary_table()));
  EXPECT_EQ(table.entries, arbitrary_table().entries);
  EXPECT_EQ(table.left.base, 6);
}

std::vector<std::string> all_texts() {
  return {header_text(arbitrary_header()), header_text(unmasked_header()), header_text(arbitrary_table())};
}

TEST(HeaderReader, RejectsPartsThatDoNotFit) {
  const std::string unmasked = header_text(unmasked_header()), table = header_text(arbitrary_table());
  EXPECT_NE(message_of(replaced(unmasked, "{0x1p-1f, 0x1.4p+0f}", "{0x1p-1f}")).find("1 break points for 3 rows"), std::string::npos);
  EXPECT_NE(message_of(replaced(unmasked, "kHasBreaks = true", "kHasBreaks = false")), "");
  EXPECT_NE(message_of(replaced(unmasked, "kMasked = false", "kMasked = true")), "");
  EXPECT_NE(message_of(replaced(unmasked, "kScheme = 2", "kScheme = 3")), "");
  EXPECT_NE(message_of(replaced(unmasked, "softplus(x)", "softplus(x")).find("kFunction: column 11"), std::string::npos);
  EXPECT_NE(message_of(replaced(unmasked, "return at[k]", "return at[0]")), "");
  EXPECT_NE(message_of(replaced(unmasked, "\"bf16\"", "\"bf15\"")).find("kFormat = 'bf15' is unknown"), std::string::npos);
  EXPECT_NE(message_of(replaced(table, "kEntries = 7", "kEntries = 8")).find("fewer entries"), std::string::npos);
  EXPECT_NE(message_of(replaced(table, "kEntries = 7", "kEntries = 6")).find("more entries"), std::string::npos);
  EXPECT_NE(message_of(replaced(table, "kEntries = 7", "kEntries = 999999999")), "");
  EXPECT_NE(message_of(replaced(table, "0x3800", "0x38000")).find("not 16 bits"), std::string::npos);
  EXPECT_NE(message_of(replaced(table, "kLeftBase = 6", "kLeftBase = 7")).find("leaves the table"), std::string::npos);
  EXPECT_NE(message_of(replaced(table, "kUpperLast = 3", "kUpperLast = 32768")), "");
  EXPECT_NE(message_of(replaced(table, "kLowerFirst = 1", "kLowerFirst = 3")), "");
}

TEST(HeaderReader, RejectsEveryTruncation) {
  for (const std::string& text : all_texts()) {
    const size_t end = text.rfind('}');  // what follows is blank
    for (size_t length = 0; length <= end; ++length) EXPECT_THROW(parse_header(text.substr(0, length), "h.h"), SpecError) << length;
  }
}

TEST(HeaderReader, RejectsAMissingOrRepeatedLine) {
  for (const std::string& text : all_texts()) {
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = text.find('\n', begin) + 1;
      const std::string line = text.substr(begin, end - begin);
      // Comments say nothing, and a row left out at the end is rows of zeros: check_test shows that the proof then fails.
      const bool free = line.find_first_not_of(" \n") == std::string::npos || (line.starts_with("//") && begin > 0) ||
                        line.find("// row ") != std::string::npos;
      if (!free) {
        EXPECT_THROW(parse_header(std::string(text).erase(begin, line.size()), "h.h"), SpecError) << line;
        // A repeated banner is one more comment.
        if (begin > 0) {
          EXPECT_THROW(parse_header(std::string(text).insert(begin, line), "h.h"), SpecError) << line;
        }
      }
      begin = end;
    }
  }
}

TEST(HeaderReader, NamesFileLineAndReason) {
  const std::string text = header_text(arbitrary_header());
  EXPECT_EQ(message_of(replaced(text, "kRows = 4", "kRows = 6")).substr(0, 4), "h.h:");
  EXPECT_NE(message_of(replaced(text, "kRows = 4", "kRows = 6")).find("not a power of two"), std::string::npos);
  const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(text.find("kDegree = 2")), '\n');
  EXPECT_EQ(message_of(replaced(text, "kDegree = 2", "kDegree = two")), fmt::format("h.h:{}: expected an integer, found 'two'", line));
  EXPECT_NE(message_of(replaced(text, "kDegree = 2", "kDegree = 3")), "");
  EXPECT_NE(message_of(replaced(text, "0x1p-22;", "0x1.00000000000001p-22;")).find("not exactly a finite double"), std::string::npos);
  EXPECT_NE(message_of(replaced(text, "-0x1.5c1a2cp-3f", "-0x1.5c1a2c1p-3f")).find("not exactly a finite float"), std::string::npos);
  EXPECT_NE(message_of(replaced(text, "-0x1.5c1a2cp-3f", "-0.17f")).find("not exactly a finite float"), std::string::npos);
  EXPECT_NE(message_of(replaced(text, "-0x1.5c1a2cp-3f", "0x1p+200f")).find("not exactly a finite float"), std::string::npos);
  EXPECT_NE(message_of(replaced(text, "-0x1.5c1a2cp-3f", "-0x1.5c1a2cp-3")).find("not a float literal"), std::string::npos);
  EXPECT_NE(message_of(replaced(text, "kTMin", "kTmin")).find("kTMin is missing"), std::string::npos);
  EXPECT_NE(message_of(replaced(text, "kRows = 4", "kRows = 1073741824")), "");
  EXPECT_NE(message_of(replaced(text, "kRows = 4", "kRows = 99999999999999999999")).find("not a decimal integer"), std::string::npos);
  EXPECT_NE(message_of(replaced(text, "// row 0", "// row 0 \\")).find("backslash"), std::string::npos);
  EXPECT_NE(message_of(replaced(text, "kName = \"gelu_f32\"", "kName = \"gelu\nf32\"")), "");
  EXPECT_NE(message_of(replaced(text, "kHasLeft = true", "kHasLeft = 1")), "");
  EXPECT_NE(message_of(replaced(text, "int kDegree", "float kDegree")), "");
  EXPECT_NE(message_of(text + "int x;").find("after the namespace"), std::string::npos);
  EXPECT_NE(message_of(std::string(2 << 20, ' ')).find("too long"), std::string::npos);
  EXPECT_NE(message_of("").find("not a generated coefficient header"), std::string::npos);
}

// A row more or a word less than declared would be a compiler's error or its zeros, not a proof.
TEST(HeaderReader, RejectsTablesOfAnotherShape) {
  const std::string text = header_text(arbitrary_header());
  const size_t row = text.find("      {");
  const std::string line = text.substr(row, text.find('\n', row) + 1 - row);
  EXPECT_NE(message_of(std::string(text).insert(row, line)).find("more rows than declared"), std::string::npos);
  EXPECT_NE(message_of(replaced(text, "      {-0x0p+0f, ", "      {")), "");
  EXPECT_NE(message_of(replaced(text, "kDegree + 2", "kDegree + 3")), "");
  EXPECT_NE(message_of(replaced(text, "Table<kRows", "Table<kDegree")), "");
}

// Whatever the bytes: a value or a SpecError. What still parses may not have become another header unnoticed by its own text.
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
        case 0:
          damaged[at] = static_cast<char>(random() % 256);
          break;
        case 1:
          damaged.erase(at, 1 + random() % 20);
          break;
        case 2:
          damaged.insert(at, damaged.substr(random() % damaged.size(), random() % 40));
          break;
        default:
          damaged.insert(at, std::string(1 + random() % 3, "{}();=,-0x9fp\"#/\\[]*("[random() % 21]));
          break;
      }
    }
    try {
      const Header header = parse_header(damaged, "h.h");
      if (const auto* h = std::get_if<BackwardHeader>(&header)) {
        ASSERT_EQ(h->table.values.size(), static_cast<size_t>(h->rows) * (h->degree + 2));
        ASSERT_EQ(h->breaks.size(), h->has_breaks ? static_cast<size_t>(h->rows) - 1 : 0u);
        for (const float v : h->table.values) ASSERT_TRUE(std::isfinite(v));
      } else {
        const auto* t = std::get_if<TableHeader>(&header);
        ASSERT_NE(t, nullptr);
        // Every code finds an entry.
        for (std::uint32_t code = 0; code <= 0xff; ++code) deployed_entry(*t, code, code % 2 == 0);
      }
      ++accepted;
    } catch (const SpecError&) {
    }
  }
  EXPECT_GT(accepted, 0);            // damage in comments is harmless
  EXPECT_LT(accepted, kRounds / 2);  // most is not
}

}  // namespace
}  // namespace outgrad::validation
