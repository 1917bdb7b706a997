// One description of the lines of each kind of header, walked by a printer and by a reader. The reader takes
// what varies (a number, a word, a row) from its place, has the line printed from it, and compares.
#include "validation/certificate/header_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <type_traits>

#include "kernels/activations.h"
#include "kernels/host/errors.h"
#include "kernels/support/bounds.h"
#include "kernels/support/files.h"
#include "validation/exact/function.h"

namespace outgrad::validation {
namespace {

using kernels::SpecError;

// Far above what emit writes (under 64 KiB; 256 rows of 12 words), small enough to bound the work on a
// hostile file.
constexpr size_t kMaxFileBytes = size_t{1} << 20;
constexpr int kMaxRows = 4096;
constexpr int kMaxOctaveBits = 8;
constexpr int kMaxDegree = 16;        // of kernels/eval.h
constexpr int kMaxEntries = 1 << 17;  // every code of 16 bits with either mask bit
constexpr int kMostInteger = 999'999'999;
constexpr size_t kEntriesPerLine = 16;

constexpr std::string_view kRowBegin = "      {", kFreeRows = "      // rows ";

std::string literal(float value) { return fmt::format("{:a}f", static_cast<double>(value)); }
std::string literal(double value) { return value == 0 ? "0" : fmt::format("{:a}", value); }
std::string literal(int value) { return fmt::format("{}", value); }
std::string literal(bool value) { return value ? "true" : "false"; }
std::string literal(const std::string& value) { return fmt::format("\"{}\"", value); }
std::string literal(std::uint16_t value) { return fmt::format("0x{:04x}", value); }

template <class T>
std::string constant_begin(const char* name) {
  const char* type = std::is_same_v<T, std::string> ? "const char*"
                     : std::is_same_v<T, int>       ? "int"
                     : std::is_same_v<T, bool>      ? "bool"
                     : std::is_same_v<T, float>     ? "float"
                                                    : "double";
  return fmt::format("  static constexpr {} {} = ", type, name);
}

// What stands behind a number in the header's own comment: a float's decimal value, a claim's power of two,
// rounded up.
std::string reading(float value, std::string_view note) {
  return fmt::format("  // {:.9g}{}", static_cast<double>(value), note);
}
std::string reading(double value, std::string_view note) {
  return value == 0 ? fmt::format("  // {}", note)
                    : fmt::format("  // 2^{:.2f}: {}", kernels::decimals_up(std::log2(value), 2), note);
}
// A claim of a code once more.
std::string in_decimals(double value) { return fmt::format("{:.6f}", kernels::decimals_up(value, 6)); }
template <class T>
std::string reading(const T&, std::string_view) {
  return "";
}

template <class T>
std::string constant_line(const char* name, const T& value, std::string_view note) {
  return constant_begin<T>(name) + literal(value) + ";" + reading(value, note) + "\n";
}

// What the input of a bound is.
enum class InputKind { x, y, y_and_mask };

constexpr std::string_view kFound = "; found 2^";

const char* input_name(InputKind kind) { return kind == InputKind::x ? "x" : "y"; }

std::string found_text(const FoundInput& found, InputKind kind) {
  if (!found.given) return "";
  const std::string mask = kind == InputKind::y_and_mask ? fmt::format(", m = {:d}", found.m) : "";
  return fmt::format("{}{:.2f} at {} = {:a}{}", kFound, found.log2_error, input_name(kind), found.at, mask);
}

// A bound's line, and what was found for it.
std::string bound_line(const char* name, double value, std::string_view note, const FoundInput& found,
                       InputKind kind) {
  std::string line = constant_line(name, value, note);
  line.insert(line.size() - 1, found_text(found, kind));
  return line;
}

std::string list_of(std::span<const float> values) {
  std::string list;
  for (const float value : values) list += (list.empty() ? "" : ", ") + literal(value);
  return list;
}

std::string row_line(std::span<const float> words, int row, double log2_fit_error, const FoundInput& found) {
  return fmt::format("{}{}}},  // row {}: A <= 2^{:.2f}{}\n", kRowBegin, list_of(words), row, log2_fit_error,
                     found_text(found, InputKind::x));
}

std::string free_rows_line(int listed, int rows) {
  return fmt::format("{}{} to {} are never asked for\n", kFreeRows, listed, rows - 1);
}

std::string table_begin(const char* name, const char* rows, const char* words) {
  return fmt::format("  static OUTGRAD_HD constexpr Table<{}, {}> {}() {{\n    return {{{{\n", rows, words,
                     name);
}

// gelu_f32 -> GeluF32.
std::string struct_name(const std::string& name) {
  std::string result;
  bool upper = true;
  for (const char c : name) {
    if (c != '_') result += upper ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c;
    upper = c == '_';
  }
  return result;
}

// Why no header can have this name, or "": its struct would have no name, or one that compiles to something
// else.
std::string misnomer(const std::string& name) {
  const auto small = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; };
  if (!std::all_of(name.begin(), name.end(), small) || !std::islower(static_cast<unsigned char>(name[0])) ||
      name.back() == '_' || name.find("__") != std::string::npos) {
    return "kName is not made of words of lower-case letters and digits with one underscore between two";
  }
  const std::string type = struct_name(name);
  if (type == "Table" || type == "Entries")
    return fmt::format("a struct {} hides what the header itself uses", type);
  const auto letters = std::count_if(type.begin(), type.end(),
                                     [](char c) { return std::isalpha(static_cast<unsigned char>(c)); });
  if (letters > 1 && std::none_of(type.begin(), type.end(),
                                  [](char c) { return std::islower(static_cast<unsigned char>(c)); })) {
    return fmt::format("a struct {} is written as macros are, in capitals", type);
  }
  return "";
}

// Whether it is the struct of one of the library's own headers, GeluTanhBf16Parity for example.
bool is_of_library(const std::string& type) {
  for (const std::string activation : kernels::kActivationNames) {
    std::string_view rest = type;
    const std::string begin = struct_name(activation);
    if (!rest.starts_with(begin)) continue;
    rest.remove_prefix(begin.size());
    for (const std::string_view kind :
         {"F32", "F16", "Bf16", "E4m3", "E5m2", "Mxfp8", "Code", "Fp8", "Forward"}) {
      if (rest.starts_with(kind) &&
          (rest == kind || std::isupper(static_cast<unsigned char>(rest[kind.size()]))))
        return true;
    }
  }
  return false;
}

class Printer {
 public:
  const std::string& text() const { return text_; }
  void line(std::string_view text) { text_ += text; }
  void given(std::string_view, bool&) const {}
  void ahead(std::string_view, bool&) const {}
  template <class T>
  void constant(const char* name, T& value, std::string_view note = {}) {
    text_ += constant_line(name, value, note);
  }
  // A claim whose note is its value to six decimals.
  void decimal(const std::string& name, double& value) {
    text_ += constant_line(name.c_str(), value, in_decimals(value));
  }
  void bound(const char* name, double& value, std::string_view note, FoundInput& found, InputKind kind) {
    text_ += bound_line(name, value, note, found, kind);
  }
  void word(std::string_view begin, std::string& value) { text_ += fmt::format("{}{}\n", begin, value); }
  void breaks(std::vector<float>& values, int) { text_ += list_of(values); }
  void entries(std::vector<std::uint16_t>& values, int) {
    for (size_t k = 0; k < values.size(); ++k)
      text_ += (k == 0 ? "" : k % kEntriesPerLine == 0 ? "," : ", ") + line_break(k) + literal(values[k]);
  }
  void rows(CoefficientTable& table) {
    const int listed = static_cast<int>(table.log2_fit_errors.size());
    table.found.resize(table.log2_fit_errors.size());
    for (int row = 0; row < listed; ++row) {
      text_ += row_line(table.row(row), row, table.log2_fit_errors[static_cast<size_t>(row)],
                        table.found[static_cast<size_t>(row)]);
    }
    if (listed < table.rows) text_ += free_rows_line(listed, table.rows);
  }
  void require(bool, const std::string&) const {}
  static std::string line_break(size_t k) { return k % kEntriesPerLine == 0 ? "\n      " : ""; }

 private:
  std::string text_;
};

class Reader {
 public:
  Reader(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  void line(std::string_view text) { expect(text); }
  // Sets the flag by whether the text goes on like this.
  void given(std::string_view text, bool& flag) const { flag = text_.substr(at_).starts_with(text); }
  // Sets the flag by whether the text is found further down, where an earlier line's comment follows from it.
  void ahead(std::string_view text, bool& flag) const {
    flag = text_.find(text, at_) != std::string_view::npos;
  }

  template <class T>
  void constant(const char* name, T& value, std::string_view note = {}) {
    take_constant(name, value);
    expect(constant_line(name, value, note));
  }

  void decimal(const std::string& name, double& value) {
    take_constant(name.c_str(), value);
    expect(constant_line(name.c_str(), value, in_decimals(value)));
  }

  // A bound's value, and what was found for it.
  void bound(const char* name, double& value, std::string_view note, FoundInput& found, InputKind kind) {
    take_constant(name, value);
    const std::string line = constant_line(name, value, note);
    expect(line.substr(0, line.size() - 1));
    found_input(found, kind);
    at_ = begin_;
    expect(bound_line(name, value, note, found, kind));
  }

  void word(std::string_view begin, std::string& value) {
    expect(begin);
    begin_ = at_;
    value = token("\n");
    // What a compiler could take for the end of the comment, or its continuation.
    require_plain(value);
    require(value.back() != ' ', "a blank at the end of a line");
    expect("\n");
  }

  void breaks(std::vector<float>& values, int count) {
    begin_ = at_;
    for (int k = 0; k < count; ++k) {
      if (k > 0) expect(", ");
      take(values.emplace_back(), ",}");
    }
    at_ = begin_;
    expect(list_of(values));
  }

  void entries(std::vector<std::uint16_t>& values, int count) {
    for (size_t k = 0; k < static_cast<size_t>(count); ++k) {
      if (k > 0) expect(k % kEntriesPerLine == 0 ? "," : ", ");
      expect(Printer::line_break(k));
      constexpr size_t kLength = 6;
      const std::string_view digits = text_.substr(at_, kLength);
      std::uint16_t value = 0;
      if (digits.size() < kLength ||
          std::from_chars(digits.data() + 2, digits.data() + kLength, value, 16).ptr !=
              digits.data() + kLength) {
        fail(at_, "expected 16 bits in hexadecimal");
      }
      expect(literal(value));
      values.push_back(value);
    }
  }

  void rows(CoefficientTable& table) {
    const auto words = static_cast<size_t>(table.words);
    for (int row = 0; row < table.rows && text_.substr(at_).starts_with(kRowBegin); ++row) {
      begin_ = at_;
      at_ += kRowBegin.size();
      for (size_t word = 0; word < words; ++word) {
        if (word > 0) expect(", ");
        take(table.values.emplace_back(), ",}");
      }
      expect(fmt::format("}},  // row {}: A <= 2^", row));
      double log2_fit_error = 0;
      take(log2_fit_error, ";\n");
      FoundInput found;
      found_input(found, InputKind::x);
      at_ = begin_;
      expect(row_line({table.values.data() + static_cast<size_t>(row) * words, words}, row, log2_fit_error,
                      found));
      table.log2_fit_errors.push_back(log2_fit_error);
      table.found.push_back(found);
    }
    const int listed = static_cast<int>(table.log2_fit_errors.size());
    require_at(at_, listed > 0, "a table without rows");
    if (listed < table.rows) expect(free_rows_line(listed, table.rows));
    table.values.resize(static_cast<size_t>(table.rows) * words);
  }

  // Requires something of what was read last.
  void require(bool holds, const std::string& why) const { require_at(begin_, holds, why); }
  void end() const { require_at(at_, at_ == text_.size(), "the header goes on after its end"); }

 private:
  [[noreturn]] void fail(size_t at, const std::string& why) const {
    const std::string_view before = text_.substr(0, at);
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    const size_t column = at - (before.rfind('\n') + 1) + 1;  // rfind's npos + 1 is 0
    throw SpecError(fmt::format("{}:{}:{}: {}", file_, line, column, why));
  }
  void require_at(size_t at, bool holds, const std::string& why) const {
    if (!holds) fail(at, why);
  }

  // A constant's value, from its line, which is left to be compared.
  template <class T>
  void take_constant(const char* name, T& value) {
    begin_ = at_;
    expect(constant_begin<T>(name));
    take(value, ";");
    at_ = begin_;
  }

  // To the end of the line, if anything was found at all.
  void found_input(FoundInput& found, InputKind kind) {
    given(kFound, found.given);
    if (!found.given) return;
    expect(kFound);
    take(found.log2_error, " ");
    expect(fmt::format(" at {} = ", input_name(kind)));
    take_real(
        found.at, ",\n", [](const char* text, char** end) { return std::strtod(text, end); },
        /*infinite=*/kind != InputKind::x);
    if (kind != InputKind::y_and_mask) return;
    expect(", m = ");
    int m = 0;
    take(m, "\n");
    found.m = m != 0;
  }

  // What stands at a place, as far as it fits into a message.
  static std::string shown(std::string_view text) {
    constexpr size_t kShown = 40;
    if (text.empty()) return "the end of the file";
    std::string result;
    for (const char c : text.substr(0, std::min(kShown, std::max<size_t>(text.find('\n'), 1)))) {
      const auto byte = static_cast<unsigned char>(c);
      result += byte >= 0x20 && byte < 0x7f ? std::string(1, c)
                : c == '\n'                 ? "\\n"
                                            : fmt::format("\\x{:02x}", static_cast<unsigned>(byte));
    }
    return fmt::format("'{}'", result);
  }

  void expect(std::string_view expected) {
    const std::string_view found = text_.substr(at_, expected.size());
    if (found == expected) {
      at_ += expected.size();
      return;
    }
    const auto differs = static_cast<size_t>(
        std::mismatch(found.begin(), found.end(), expected.begin()).first - found.begin());
    fail(at_ + differs, fmt::format("expected {}, found {}", shown(expected.substr(differs)),
                                    shown(text_.substr(at_ + differs))));
  }

  // As far as one of the ends, on this line.
  std::string token(std::string_view ends) {
    constexpr size_t kLongest = 1000;
    const std::string_view rest = text_.substr(at_, kLongest);
    const size_t length = std::min(rest.find_first_of(ends), rest.find('\n'));
    if (length == std::string_view::npos)
      fail(at_, fmt::format("expected {} after this", shown(ends.substr(0, 1))));
    at_ += length;
    return std::string(rest.substr(0, length));
  }

  void require_plain(const std::string& value) const {
    require(!value.empty() &&
                std::all_of(value.begin(), value.end(),
                            [](char c) { return c >= ' ' && c <= '~' && c != '\\' && c != '"' && c != '?'; }),
            "expected printable characters other than \\, \" and ?");
  }

  void take(std::string& value, std::string_view) {
    const size_t begin = at_;
    std::string text = token(";");
    if (text.size() < 2 || text.front() != '"' || text.back() != '"') fail(begin, "expected a string");
    value = text.substr(1, text.size() - 2);
    require_plain(value);
  }
  void take(bool& value, std::string_view ends) {
    const size_t begin = at_;
    const std::string text = token(ends);
    if (text != "true" && text != "false")
      fail(begin, fmt::format("expected true or false, found {}", shown(text)));
    value = text == "true";
  }
  void take(int& value, std::string_view ends) {
    const size_t begin = at_;
    const std::string text = token(ends);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() ||
        std::abs(static_cast<double>(value)) > kMostInteger)
      fail(begin, fmt::format("expected an integer, found {}", shown(text)));
  }
  void take(float& value, std::string_view ends) {
    take_real(value, ends, [](const char* text, char** end) { return std::strtof(text, end); });
  }
  void take(double& value, std::string_view ends) {
    take_real(value, ends, [](const char* text, char** end) { return std::strtod(text, end); });
  }

  // Rounds what is no number of the type; its line then prints otherwise than it stands.
  template <class Float, class Parse>
  void take_real(Float& value, std::string_view ends, Parse parse, bool infinite = false) {
    const size_t begin = at_;
    const std::string text = token(ends);
    char* end = nullptr;
    value = parse(text.c_str(), &end);
    if (end == text.c_str() || std::isnan(value) || (!infinite && std::isinf(value)))
      fail(begin, fmt::format("expected a finite number, found {}", shown(text)));
  }

  std::string_view text_;
  const std::string& file_;
  size_t at_ = 0;
  size_t begin_ = 0;  // where what was read last begins
};

bool one_of(const std::string& value, std::initializer_list<std::string_view> choices) {
  return std::find(choices.begin(), choices.end(), value) != choices.end();
}

template <class Text>
void choice(Text& t, const char* name, std::string& value, std::initializer_list<std::string_view> choices) {
  t.constant(name, value);
  t.require(one_of(value, choices), fmt::format("{} = '{}' is unknown", name, value));
}

template <class Text>
void within(Text& t, const char* name, int& value, int least, int most) {
  t.constant(name, value);
  t.require(value >= least && value <= most,
            fmt::format("{} = {} is outside [{}, {}]", name, value, least, most));
}

template <class Text>
void power_of_two(Text& t, const char* name, int& value) {
  within(t, name, value, 1, kMaxRows);
  t.require(std::has_single_bit(static_cast<unsigned>(value)),
            fmt::format("{} = {} is not a power of two", name, value));
}

// The size of a table, and how its declaration spells it.
struct TableSize {
  int rows, words;
  const char *rows_text, *words_text;
};

template <class Text>
void table(Text& t, const char* name, CoefficientTable& values, const TableSize& size) {
  if constexpr (std::is_same_v<Text, Reader>) values.rows = size.rows, values.words = size.words;
  t.line(table_begin(name, size.rows_text, size.words_text));
  t.rows(values);
  t.line("    }};\n  }\n");
}

template <class Text>
void describe_names(Text& t, HeaderNames& h) {
  t.line("// GENERATED by outgrad emit. DO NOT EDIT.\n");
  t.word("// command: ./outgrad emit ", h.fit_path);
  t.word("// spec sha256: ", h.spec_sha256);
  constexpr size_t kDigits = 64;
  t.require(h.spec_sha256.size() == kDigits &&
                h.spec_sha256.find_first_not_of("0123456789abcdef") == std::string::npos,
            "expected 64 hexadecimal digits");
}

// The header's own name is read before the struct's, which follows from it: the reader looks ahead.
template <class Text>
void describe_function(Text& t, HeaderNames& h) {
  t.constant("kName", h.name);
  const std::string why = misnomer(h.name);
  t.require(why.empty(), why);
  t.constant("kActivation", h.activation);
  t.require(h.activation != "expression" || !is_of_library(struct_name(h.name)),
            fmt::format("'{}' is the name of a header of the library", h.name));
  t.constant("kFunction", h.function);
  if constexpr (std::is_same_v<Text, Reader>) {
    // The text of a function is parsed here once, so that what follows can rely on it.
    try {
      Function::parse(h.function);
    } catch (const SpecError& error) {
      t.require(false, fmt::format("kFunction: {}", error.what()));
    }
  }
  t.line(
      "  // found: the largest error among the inputs that were looked at, and where it is; it proves "
      "nothing of the other inputs\n");
  if (h.activation == "expression")
    t.constant("kXLimit", h.x_limit, "the claims are about |x| <= kXLimit alone");
}

template <class Text>
void describe_storage(Text& t, const HeaderNames& h, StorageClaims& claims, InputKind input) {
  t.line(
      fmt::format("  // over every stored y, both masks, and all {} that a y stands for (T total error, O "
                  "the least any function of (y, m) reaches, R "
                  "regret)\n",
                  h.activation == "expression" ? "|x| <= kXLimit" : "real x"));
  t.bound("kT", claims.total, "sup |g(y, m) - f'(x)|", claims.found_total, input);
  t.bound("kO", claims.oracle, "half the longest range of f' over one (y, m)", claims.found_oracle, input);
  t.bound("kR", claims.regret, "sup |g(y, m) - middle of that range|", claims.found_regret, input);
}

template <class Text>
void require_mask(Text& t, const BackwardHeader& h) {  // of rows that are picked by low bits
  t.require(std::has_single_bit(static_cast<unsigned>(h.rows)),
            fmt::format("kRows = {} is not a power of two", h.rows));
}

// From y to the row: the coordinate, and the break points or the index.
template <class Text>
void describe_coordinate(Text& t, BackwardHeader& h) {
  if (h.masked) {
    t.line(
        "  // coordinate: s = +-sqrt(max((y - kYHi) - kYLo, kTMin)), negative for m = 0; y_c = kYHi + kYLo "
        "and kTMin are chosen for the format\n");
    t.constant("kYHi", h.y_hi);
    t.constant("kYLo", h.y_lo);
    t.constant("kTMin", h.t_min);
    t.constant("kSMin", h.s_min);
  } else {
    t.line("  // coordinate: y itself\n");
    t.constant("kYMin", h.y_min);
  }
  t.constant("kYMax", h.y_max, ": g has its limit from here on");
  t.constant("kHasBreaks", h.has_breaks);
  if (h.has_breaks && h.rows > 1) {
    t.line(
        "  // row = how many of these the coordinate has reached\n  static OUTGRAD_HD constexpr float "
        "break_at(int k) {\n    constexpr float at[] = {");
    t.breaks(h.breaks, h.rows - 1);
    t.line("};\n    return at[k];\n  }\n");
  }
  if (!h.has_breaks) {
    t.line(
        fmt::format("  // row = bits(fma({}, kIndexScale, kIndexBias)) mod kRows\n", h.masked ? "s" : "y"));
    t.constant("kIndexScale", h.index_scale);
    t.constant("kIndexBias", h.index_bias);
    require_mask(t, h);
  }
}

// Where a row is found, or its polynomial evaluated, in another way.
template <class Text>
void describe_segments(Text& t, BackwardHeader& h) {
  t.constant("kHasLeft", h.has_left);
  if (h.has_left) {
    t.line(
        "  // m = 0 and y > kLeftY: identity coordinate, row = kLeftRow + max(((h + max(h, kLeftKnee)) >> 1) "
        "- kLeftBase, 0), h = exponent and first "
        "kLeftBits fraction bits of y\n");
    t.constant("kLeftY", h.left_y);
    within(t, "kLeftBits", h.left_bits, 1, kMaxOctaveBits);
    t.constant("kLeftRow", h.left_row);
    t.constant("kLeftKnee", h.left_knee);
    t.constant("kLeftBase", h.left_base);
    require_mask(t, h);
  }
  t.constant("kHasRight", h.has_right);
  if (h.has_right) {
    t.given("  // from |s|", h.right_both);
    t.line(fmt::format("  // from {} = kRightS on a row's polynomial is one in y\n",
                       h.right_both ? "|s|" : "s"));
    t.constant("kRightS", h.right_s);
    if (h.right_both) t.line("  static constexpr bool kRightBoth = true;\n");
  }
}

template <class Text>
void describe_product(Text& t, ProductClaims& claims, InputKind input) {
  t.line(
      "  // y = RN_f32(z / b) of a z = f(x) b rounded to kProduct: |y - f(x)| <= kRelative |f(x)| + "
      "kAbsolute\n");
  choice(t, "kProduct", claims.format, {"f16", "bf16"});
  t.constant("kRelative", claims.relative, "u / (1 + u), and roundings to fp32");
  t.constant("kAbsolute", claims.absolute, "what an fp32 f(x) is off by where it is near 0");
  t.line(
      "  // over every fp32 y, both masks, and all real x so near to it (T total error, O what no function "
      "of "
      "(y, m) goes below)\n");
  t.bound("kT", claims.total, "sup |g(y, m) - f'(x)|", claims.found_total, input);
  t.bound("kO", claims.oracle, "half the range of f' over one (y, m)", claims.found_oracle, input);
}

template <class Text>
void describe_bounds(Text& t, BackwardHeader& h) {
  const bool relative = h.accuracy.starts_with("rel:");
  t.line(
      "  // proven bounds (design: A approximation, K coordinate constants, B rounding of the deployed fp32 "
      "sequence)\n");
  const InputKind input = h.masked ? InputKind::y_and_mask : InputKind::y;
  t.bound("kA", h.bound_a, relative ? "sup |p/g - 1|; in the row next to y = 0-, sup |p - g|" : "sup |p - g|",
          h.found_a, InputKind::x);
  constexpr std::string_view kProductText = "  // y = RN_f32(z / b)";
  bool of_product = h.of_product();
  t.ahead(kProductText, of_product);
  if (h.masked && !of_product)
    t.bound("kK", h.bound_k, "sup |g(s_c(y)) - g(s(y))| over the stored y", h.found_k, input);
  t.bound("kB", h.bound_b, "sup |fp32 sequence - exact sequence|", h.found_b, input);
  if (h.format == "f32" && !relative)
    t.bound("kAB", h.bound_ab, "sup over the rows of A + B", h.found_ab, input);
  if (h.two_word) {
    t.bound("kUlp", h.bound_ulp, "sup (A + B) / ulp(g) where |g| >= kUlpFrom", h.found_ulp, input);
    t.constant("kUlpFrom", h.ulp_from, "");
  }
  if (of_product) describe_product(t, h.product, input);
  if (h.format != "f32") describe_storage(t, h, h.storage, input);
}

template <class Text>
void describe(Text& t, BackwardHeader& h) {
  choice(t, "kFormat", h.format, {"f32", "f16", "bf16", "mxfp8", "f16_parity", "bf16_parity"});
  t.constant("kClass", h.accuracy);
  within(t, "kDegree", h.degree, 1, kMaxDegree);
  within(t, "kRows", h.rows, 1, kMaxRows);
  within(t, "kScheme", h.scheme, 0, 2);
  t.constant("kOperations", h.operations);
  t.constant("kCentred", h.centred);
  t.constant("kExactLimits", h.exact_limits);
  t.constant("kMasked", h.masked);
  t.require(h.masked || !is_parity(h.format),
            fmt::format("kFormat = '{}' carries a branch, and f rises", h.format));
  describe_coordinate(t, h);
  describe_segments(t, h);
  constexpr std::string_view kTwoWordText =
      "  // the result is c0 plus the rest: a row's last word is the low part of c0\n  static constexpr bool "
      "kTwoWord = true;\n";
  t.given(kTwoWordText, h.two_word);
  if (h.two_word) t.line(kTwoWordText);
  describe_bounds(t, h);
  t.line(h.centred ? "  // a row: centre, c0, c1, ...; p(u) with u = s - centre (or y - centre)\n"
                   : "  // a row: centre (not used), c0, c1, ...; p(u) with u = s (or y)\n");
  table(t, "table", h.table,
        {h.rows, h.degree + (h.two_word ? 3 : 2), "kRows", h.two_word ? "kDegree + 3" : "kDegree + 2"});
}

template <class Text>
void describe(Text& t, TableHeader& h) {
  choice(t, "kFormat", h.format, {"f16", "bf16", "e4m3", "e5m2"});
  t.constant("kClass", h.accuracy);
  choice(t, "kEntryFormat", h.entry_format, {"f16", "bf16"});
  int count = static_cast<int>(h.entries.size());
  within(t, "kEntries", count, 1, kMaxEntries);
  t.constant("kIndexOperations", h.index_operations);
  t.constant("kMasked", h.masked);
  t.line(
      "  // entry = base + clamp(bits of |y|, first, last) - first; upper: y's sign bit clear, lower: set; "
      "left: m = 0\n");
  const auto segment = [&](const std::string& name, TableHeader::Segment& s) {
    constexpr int kMostMagnitude = 0x7fff;
    within(t, (name + "First").c_str(), s.first, 0, kMostMagnitude);
    within(t, (name + "Last").c_str(), s.last, s.first, kMostMagnitude);
    t.constant((name + "Base").c_str(), s.base);
    t.require(s.base >= 0 && s.base + s.last - s.first < count,
              fmt::format("the segment of {} leaves the table", name));
  };
  segment("kUpper", h.upper);
  segment("kLower", h.lower);
  if (h.masked) segment("kLeft", h.left);
  describe_storage(t, h, h.storage, h.masked ? InputKind::y_and_mask : InputKind::y);
  t.line("  static OUTGRAD_HD constexpr Entries<kEntries> entries() {\n    return {{");
  t.entries(h.entries, count);
  t.line("\n    }};\n  }\n");
}

template <class Text>
void describe(Text& t, ForwardHeader& h) {
  constexpr std::string_view kLevelsText = "  static constexpr bool kLevels = true;\n";
  constexpr std::string_view kCompensatedText =
      "  // core rows are evaluated with what fma(c1, u, c0) loses\n"
      "  static constexpr bool kCompensated = true;\n";
  t.given("  static constexpr float kXStar", h.masked);
  t.ahead("  static constexpr float kTailX", h.has_tail);
  t.ahead(kLevelsText, h.levels);
  if (h.masked) t.constant("kXStar", h.x_star, ": the least float with m = 1");
  t.constant("kXMin", h.x_min,
             !h.has_tail ? ": f rounds to its limit here and below"
             : h.masked  ? ": f rounds to -0 below"
                         : ": f rounds to 0 below");
  t.constant("kXMax", h.x_max,
             h.levels ? ": f rounds to its limit from here on" : ": f rounds to x from here on");
  if (h.has_tail) t.constant("kTailX", h.tail_x, ": below, the tail table");
  if (h.levels) t.line(kLevelsText);
  t.line("  // core: row = bits(fma(x, kIndexScale, kIndexBias)) mod kRows, f = p(x - centre)\n");
  within(t, "kDegree", h.degree, 1, kMaxDegree);
  power_of_two(t, "kRows", h.rows);
  t.constant("kIndexScale", h.index_scale);
  t.constant("kIndexBias", h.index_bias);
  t.given(kCompensatedText, h.compensated);
  if (h.compensated) {
    t.line(kCompensatedText);
    bool has_slope_low = h.slope_low != 0;
    t.given("  static constexpr float kSlopeLow", has_slope_low);
    if (has_slope_low) {
      t.constant("kSlopeLow", h.slope_low,
                 ": f'(0) less its nearest float; is added to every c1 of the core");
      t.require(h.slope_low != 0, "kSlopeLow = 0 says nothing");
    }
  }
  if (h.has_tail) {
    t.line("  // tail: the same with its own constants, f = p(x - centre) times the last word of the row\n");
    within(t, "kTailDegree", h.tail_degree, 1, kMaxDegree);
    power_of_two(t, "kTailRows", h.tail_rows);
    t.constant("kTailIndexScale", h.tail_index_scale);
    t.constant("kTailIndexBias", h.tail_index_bias);
  }
  t.bound("kA", h.bound_a, "sup |p/f - 1|, proven", h.found_a, InputKind::x);
  table(t, "table", h.table, {h.rows, h.degree + 2, "kRows", "kDegree + 2"});
  if (h.has_tail) table(t, "tail", h.tail, {h.tail_rows, h.tail_degree + 3, "kTailRows", "kTailDegree + 3"});
}

template <class Text>
void describe(Text& t, RoundedForwardHeader& h) {
  choice(t, "kFormat", h.format, {"f16", "bf16"});
  t.constant("kClass", h.accuracy);
  t.given("  static constexpr float kXStar", h.masked);
  if (h.masked) t.constant("kXStar", h.x_star, ": the least float with m = 1");
  constexpr std::string_view kPlainText =
      "  // f = p(u), with u of v in place of w\n  static constexpr bool kPlain = true;\n";
  t.given(kPlainText, h.plain);
  if (h.plain) t.line(kPlainText);
  bool has_end = std::isfinite(h.end), has_pull = h.pull != 0;
  t.given("  static constexpr float kEnd", has_end);
  if (has_end) t.constant("kEnd", h.end, ": v is this at the most where it enters f");
  t.constant("kXMin", h.x_min,
             h.masked ? ": v = max(x, kXMin); f rounds to -0 here and below"
                      : ": v = max(x, kXMin); f rounds to its limit here and below");
  const bool levels = has_end && h.end < std::numeric_limits<float>::max();
  t.constant("kXMax", h.x_max,
             levels    ? ": w = min(v, kXMax); f rounds to its limit from here on"
             : h.plain ? ": w = min(v, kXMax); f rounds to x from here on, and p is v"
                       : ": w = min(v, kXMax); f rounds to x from here on, and p is 1");
  if (!h.plain) t.constant("kTie", h.tie, ": f = v p + kTie, with the sign of x");
  t.given("  static constexpr float kPull", has_pull);
  if (has_pull) t.constant("kPull", h.pull, ": p's c0 is multiplied by v less kPull of |v|");
  t.line(
      "  // q = fma(w, kIndexScale, kIndexBias), row = bits(q) mod kRows, u = w - (q - "
      "kIndexBias)/kIndexScale\n");
  power_of_two(t, "kRows", h.rows);
  int words = 4;
  within(t, "kWords", words, 4, 4);
  within(t, "kCoreFirst", h.core_first, 0, h.rows - 1);
  within(t, "kCoreRows", h.core_rows, 1, h.rows);
  t.constant("kIndexScale", h.index_scale);
  t.constant("kIndexBias", h.index_bias);
  within(t, "kQuarticShift", h.quartic_shift, 16, 20);
  t.bound("kA", h.bound_a,
          h.plain ? "sup |p/f - 1| for x >= kXMin, proven" : "sup |x p/f - 1| for x >= kXMin, proven",
          h.found_a, InputKind::x);
  t.bound("kCoreA", h.bound_core, "the same over the rows from kCoreFirst on", h.found_core, InputKind::x);
  t.line(
      "  // a row: c0, c1, c2, c3; p(u), where the bits of c3, shifted left by kQuarticShift, are those of "
      "c4\n");
  table(t, "table", h.table, {h.rows, words, "kRows", "kWords"});
}

template <class Text>
void describe(Text& t, CodeHeader& h) {
  t.constant("kClass", h.accuracy);
  const bool own = h.activation == "expression";
  t.line(fmt::format("  // kLo <= f'(x) <= kHi for {}\n", own ? "|x| <= kXLimit" : "every x"));
  t.constant("kLo", h.lo, "");
  t.constant("kHi", h.hi, "");
  t.line(own ? "  // proven bounds over |x| <= kXLimit, given kG: g is the f'(x) that the caller computes in "
               "fp32 and has coded\n"
             : "  // proven bounds over every finite f32 x; g is that of kernels/code.h\n");
  t.constant("kG", h.bound_g, own ? "what the caller promises: sup |g - f'(x)|" : "sup |g - f'(x)|");
  t.line("  // of an exact code of so many bits: sup |what the code of x stands for - f'(x)|\n");
  for (size_t i = 0; i < h.exact.size(); ++i) t.decimal(fmt::format("kT{}", i + 1), h.exact[i]);
  t.line("  // of a dithered code: the same, and sup |its mean over all dithers - f'(x)|\n");
  for (size_t i = 0; i < h.dithered.size(); ++i) t.decimal(fmt::format("kDithered{}", i + 2), h.dithered[i]);
  t.constant("kBias", h.bias, "of 2 bits and of 3");
}

template <class Text>
void describe_totals(Text& t, const std::string& prefix, std::array<double, 3>& totals) {
  for (size_t i = 0; i < totals.size(); ++i) t.decimal(fmt::format("{}T{}", prefix, i), totals[i]);
}

template <class Text>
void describe_scales(Text& t, const std::string& format, const std::string& prefix, Fp8Claims& claims,
                     const char* blocks = nullptr) {
  t.line(
      fmt::format("  // of y in {} with so many bits beside it: sup |what is kept stands for - f'(x)| over "
                  "every finite x and all scales from Least to Most\n",
                  format));
  if (blocks != nullptr) t.line(fmt::format("  // of blocks, as {} have\n", blocks));
  t.constant((prefix + "Least").c_str(), claims.least, "");
  t.constant((prefix + "Most").c_str(), claims.most, "");
  describe_totals(t, prefix, claims.total);
}

template <class Text>
void describe(Text& t, Fp8Header& h) {
  t.constant("kClass", h.accuracy);
  t.constant("kCode", h.code);
  t.constant("kFit", h.fit);
  t.line("  // f(x) where f'(x) is least, left of f's minimum, and greatest\n");
  t.constant("kLeastAt", h.least_at, "");
  t.constant("kGreatestAt", h.greatest_at, "");
  t.line("  // proven over every finite x; g is that of kFit at the library's f32 y and mask bit of x\n");
  t.constant("kG", h.bound_g, "sup |g - f'(x)|");
  t.line(
      "  // proven over every finite x at any scale: what is kept stands for f'(x) within half of the "
      "table's longest part and kRoom (kernels/fp8.h)\n");
  t.constant("kRoom", h.room, "the errors of g, and rounding");
  t.line(
      "  // of y in any format with a -0, at any scale, with so many bits beside it: sup |what is kept "
      "stands for - f'(x)| over every finite x\n");
  describe_totals(t, "kSign", h.sign);
  describe_scales(t, "e4m3", "kE4m3", h.e4m3);
  describe_scales(t, "e5m2", "kE5m2", h.e5m2);
  describe_scales(t, "int8", "kInt8", h.int8);
  describe_scales(t, "mxfp4", "kMxfp4", h.mxfp4, "those with amax below 1");
  describe_scales(t, "nvfp4", "kNvfp4", h.nvfp4, "those with amax below 1 and a normal scale");
}

template <class Text, class H>
void describe_whole(Text& t, H& h, const std::string& type) {
  describe_names(t, h);
  t.line(
      fmt::format("#pragma once\n\n#include \"kernels/table.h\"\n\nnamespace outgrad::kernels::generated "
                  "{{\n\nstruct {} {{\n",
                  type));
  describe_function(t, h);
  describe(t, h);
  t.line("};\n\n}  // namespace outgrad::kernels::generated\n");
}

// What a header is called: kName, which the struct's own name is made of.
std::string name_in(std::string_view text) {
  constexpr std::string_view kBegin = "kName = \"";
  const size_t at = text.find(kBegin);
  if (at == std::string_view::npos) return "";
  constexpr size_t kLongest = 200;
  const std::string_view rest = text.substr(at + kBegin.size(), kLongest);
  return std::string(rest.substr(0, std::min(rest.find('"'), rest.size())));
}

template <class H>
Header read_as(std::string_view text, const std::string& file) {
  H h;
  Reader reader(text, file);
  describe_whole(reader, h, struct_name(name_in(text)));
  reader.end();
  h.file = file;
  return h;
}

}  // namespace

bool is_parity(const std::string& format) { return format == "f16_parity" || format == "bf16_parity"; }
std::string carrier_of(const std::string& format) {
  return is_parity(format) ? format.substr(0, format.find('_')) : format;
}

std::string print_header(const Header& header) {
  return std::visit(
      [](auto h) {
        Printer printer;
        describe_whole(printer, h, struct_name(h.name));
        return printer.text();
      },
      header);
}

Header parse_header(std::string_view text, const std::string& file) {
  constexpr std::string_view kBanner = "// GENERATED by outgrad emit. DO NOT EDIT.\n";
  if (text.size() > kMaxFileBytes)
    throw SpecError(fmt::format("{}:1:1: {} bytes is too long for a coefficient header", file, text.size()));
  if (!text.starts_with(kBanner))
    throw SpecError(fmt::format("{}:1:1: not a generated coefficient header", file));
  // A constant that only headers of this kind, or of one above, have.
  const auto has = [&](std::string_view name) {
    return text.find(fmt::format(" {} = ", name)) != std::string_view::npos;
  };
  if (has("kQuarticShift")) return read_as<RoundedForwardHeader>(text, file);
  if (has("kXMin")) return read_as<ForwardHeader>(text, file);
  if (has("kDithered2")) return read_as<CodeHeader>(text, file);
  if (has("kE4m3T0")) return read_as<Fp8Header>(text, file);
  if (has("kEntries")) return read_as<TableHeader>(text, file);
  return read_as<BackwardHeader>(text, file);
}

Header read_header(const std::string& path) { return parse_header(kernels::read_file(path), path); }

}  // namespace outgrad::validation
