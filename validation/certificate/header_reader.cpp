// Tokens, then a grammar without alternatives: every constant once, in any order, of the expected type, and exactly representable.
#include "validation/certificate/header_reader.h"

#include <fmt/format.h>
#include <mpfr.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <utility>

#include "kernels/host/errors.h"
#include "kernels/host/files.h"
#include "validation/exact/function.h"

namespace outgrad::validation {
namespace {

using kernels::SpecError;

// Far above what emit writes (under 64 KiB; 256 rows of 12 words), small enough to bound the work on a hostile file.
constexpr size_t kMaxFileBytes = size_t{1} << 20;
constexpr int kMaxRows = 4096;
constexpr int kMaxOctaveBits = 8;
constexpr int kMaxDegree = 16;        // of kernels/eval.h
constexpr int kMaxEntries = 1 << 17;  // every code of 16 bits with either mask bit

enum class Kind { Word, Number, String, Symbol, Directive, End };

struct Token {
  Kind kind;
  std::string_view text;
  int line;
};

class Reader {
 public:
  Reader(std::string_view text, const std::string& file) : text_(text), file_(file) { advance(); }

  const Token& peek() const { return token_; }
  Token take() {
    const Token taken = token_;
    if (taken.kind != Kind::End) advance();
    return taken;
  }

  [[noreturn]] void fail(int line, const std::string& why) const { throw SpecError(fmt::format("{}:{}: {}", file_, line, why)); }

  // One token of the fixed text. A token list is written as in the header, blanks between tokens.
  void expect(std::string_view words) {
    while (!words.empty()) {
      const size_t blank = std::min(words.find(' '), words.size());
      const Token token = take();
      if (token.text != words.substr(0, blank))
        fail(token.line, fmt::format("expected '{}', found {}", words.substr(0, blank), shown(token)));
      words.remove_prefix(std::min(blank + 1, words.size()));
    }
  }

  Token expect_kind(Kind kind, std::string_view what) {
    const Token token = take();
    if (token.kind != kind) fail(token.line, fmt::format("expected {}, found {}", what, shown(token)));
    return token;
  }

  bool accept(std::string_view symbol) {
    if (token_.text != symbol || token_.kind == Kind::End) return false;
    advance();
    return true;
  }

  std::string shown(const Token& token) const {
    constexpr size_t kShown = 40;
    if (token.kind == Kind::End) return "the end of the file";
    return fmt::format("'{}'", token.text.substr(0, kShown));
  }

 private:
  void advance();

  std::string_view text_;
  const std::string& file_;
  size_t at_ = 0;
  int line_ = 1;
  Token token_{Kind::End, {}, 1};
};

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

void Reader::advance() {
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (c == '\n') ++line_;
    if (c == ' ' || c == '\n') {
      ++at_;
    } else if (text_.substr(at_, 2) == "//") {
      const size_t end = std::min(text_.find('\n', at_), text_.size());
      // A comment that ends in a backslash swallows the next line in C++: the compiler would not see what this reader sees.
      if (text_[end - 1] == '\\') fail(line_, "a comment ends in a backslash");
      at_ = end;
    } else {
      break;
    }
  }
  const size_t begin = at_;
  Kind kind = Kind::Symbol;
  if (begin == text_.size()) {
    token_ = {Kind::End, {}, line_};
    return;
  }
  const char first = text_[begin];
  const auto run = [&](auto&& inside) {
    while (at_ < text_.size() && inside(text_[at_])) ++at_;
  };
  if (first == '#') {
    kind = Kind::Directive;
    run([](char c) { return c != '\n'; });
  } else if (first == '"') {
    kind = Kind::String;
    ++at_;
    run([](char c) { return c != '"' && c != '\n' && c != '\\'; });
    if (at_ == text_.size() || text_[at_] != '"') fail(line_, "a string does not end");
    ++at_;
  } else if (std::isdigit(static_cast<unsigned char>(first))) {
    kind = Kind::Number;
    run([&](char c) {
      const char before = at_ > begin ? text_[at_ - 1] : '\0';
      return is_word(c) || c == '.' || ((c == '+' || c == '-') && (before == 'p' || before == 'e'));
    });
  } else if (is_word(first)) {
    kind = Kind::Word;
    run(is_word);
  } else if (text_.substr(begin, 2) == "::") {
    at_ += 2;
  } else if (std::string_view("{}()[];,=<>+-*").find(first) != std::string_view::npos) {
    ++at_;
  } else {
    fail(line_, fmt::format("unexpected character 0x{:02x}", static_cast<unsigned>(static_cast<unsigned char>(first))));
  }
  token_ = {kind, text_.substr(begin, at_ - begin), line_};
}

// A floating literal whose value is exactly a number of `Float`: a rounded literal would make the text and the proof differ.
template <class Float>
Float read_floating(Reader& reader) {
  const bool negative = reader.accept("-");
  const Token token = reader.expect_kind(Kind::Number, "a number");
  std::string digits(token.text);
  const bool hex = digits.starts_with("0x");
  const bool suffix = std::is_same_v<Float, float> && digits.ends_with('f') && (!hex || digits.find('p') != std::string::npos);
  if (suffix) digits.pop_back();
  if (std::is_same_v<Float, float> && !suffix) reader.fail(token.line, fmt::format("{} is not a float literal", reader.shown(token)));
  const bool floating = digits.find(hex ? "p" : ".") != std::string::npos || (!hex && digits.find('e') != std::string::npos);
  if (std::is_same_v<Float, double> && digits == "0") return negative ? -0.0 : 0.0;
  if (!floating || digits.size() > 64) reader.fail(token.line, fmt::format("{} is not a floating literal", reader.shown(token)));
  mpfr_t value;
  mpfr_init2(value, 64);
  char* end = nullptr;
  const int inexact = mpfr_strtofr(value, digits.c_str(), &end, 0, MPFR_RNDN);
  const bool whole = *end == '\0' && mpfr_number_p(value);
  const Float result = static_cast<Float>(std::is_same_v<Float, float> ? mpfr_get_flt(value, MPFR_RNDN) : mpfr_get_d(value, MPFR_RNDN));
  const bool exact = whole && inexact == 0 && std::isfinite(result) && mpfr_cmp_d(value, static_cast<double>(result)) == 0;
  mpfr_clear(value);
  if (!whole) reader.fail(token.line, fmt::format("{} is not a number", reader.shown(token)));
  if (!exact) reader.fail(token.line, fmt::format("{} is not exactly a finite {}", reader.shown(token), suffix ? "float" : "double"));
  return negative ? -result : result;
}

int read_integer(Reader& reader) {
  const bool negative = reader.accept("-");
  const Token token = reader.expect_kind(Kind::Number, "an integer");
  constexpr size_t kDigits = 9;  // fits an int
  if (token.text.size() > kDigits || token.text.find_first_not_of("0123456789") != std::string_view::npos ||
      (token.text.size() > 1 && token.text[0] == '0')) {
    reader.fail(token.line, fmt::format("{} is not a decimal integer", reader.shown(token)));
  }
  int value = 0;
  for (const char digit : token.text) value = 10 * value + (digit - '0');
  return negative ? -value : value;
}

std::string read_string(Reader& reader) {
  const Token token = reader.expect_kind(Kind::String, "a string");
  return std::string(token.text.substr(1, token.text.size() - 2));
}

bool read_boolean(Reader& reader) {
  const Token token = reader.expect_kind(Kind::Word, "true or false");
  if (token.text != "true" && token.text != "false")
    reader.fail(token.line, fmt::format("expected true or false, found {}", reader.shown(token)));
  return token.text == "true";
}

using Value = std::variant<std::string, int, float, double, bool>;

// The members of the struct, as found; `take_*` hands each out once, and what is left over was not expected.
class Members {
 public:
  explicit Members(Reader& reader);

  template <class T>
  T take(const std::string& name) {
    const auto found = values_.find(name);
    if (found == values_.end()) reader_.fail(line_, fmt::format("{} is missing", name));
    const auto* value = std::get_if<T>(&found->second.first);
    if (!value) reader_.fail(found->second.second, fmt::format("{} has the wrong type", name));
    T result = *value;
    values_.erase(found);
    return result;
  }

  int take_within(const std::string& name, int least, int most) {
    const int line = values_.contains(name) ? values_.at(name).second : line_;
    const int value = take<int>(name);
    if (value < least || value > most) reader_.fail(line, fmt::format("{} = {} is outside [{}, {}]", name, value, least, most));
    return value;
  }

  std::vector<float> take_breaks() {
    if (!breaks_) reader_.fail(line_, "break_at() is missing");
    std::vector<float> breaks = std::move(*breaks_);
    breaks_.reset();
    return breaks;
  }

  std::vector<std::uint16_t> take_entries() {
    if (!entries_) reader_.fail(line_, "entries() is missing");
    std::vector<std::uint16_t> entries = std::move(*entries_);
    entries_.reset();
    return entries;
  }

  int line_of(const std::string& name) const { return values_.contains(name) ? values_.at(name).second : line_; }
  bool has(const std::string& name) const { return values_.contains(name); }

  CoefficientTable take_table(const std::string& name) {
    const auto found = tables_.find(name);
    if (found == tables_.end()) reader_.fail(line_, fmt::format("the table {}() is missing", name));
    CoefficientTable table = std::move(found->second);
    tables_.erase(found);
    return table;
  }

  void expect_nothing_left() const {
    if (!values_.empty()) reader_.fail(values_.begin()->second.second, fmt::format("unknown constant {}", values_.begin()->first));
    if (breaks_) reader_.fail(line_, "unexpected break_at()");
    if (entries_) reader_.fail(line_, "unexpected entries()");
    if (!tables_.empty()) reader_.fail(line_, fmt::format("unknown table {}()", tables_.begin()->first));
  }

 private:
  void read_constant(const Token& type);
  void read_table();
  void read_breaks();
  void read_entries();
  int integer_constant(const Token& token) const;

  Reader& reader_;
  int line_;
  std::map<std::string, std::pair<Value, int>> values_;
  std::map<std::string, CoefficientTable> tables_;
  std::optional<std::vector<float>> breaks_;
  std::optional<std::vector<std::uint16_t>> entries_;
};

Members::Members(Reader& reader) : reader_(reader), line_(reader.peek().line) {
  while (!reader_.accept("}")) {
    reader_.expect("static");
    if (reader_.accept("OUTGRAD_HD")) {
      reader_.expect("constexpr");
      const Token type = reader_.take();
      if (type.text == "Table") {
        reader_.expect("<");
        read_table();
      } else if (type.text == "float") {
        read_breaks();
      } else if (type.text == "Entries") {
        read_entries();
      } else {
        reader_.fail(type.line, fmt::format("unexpected type {}", reader_.shown(type)));
      }
    } else {
      reader_.expect("constexpr");
      read_constant(reader_.take());
    }
  }
}

void Members::read_constant(const Token& type) {
  if (type.text == "const") reader_.expect("char *");
  const Token name = reader_.expect_kind(Kind::Word, "a constant's name");
  reader_.expect("=");
  Value value;
  if (type.text == "const") {
    value = read_string(reader_);
  } else if (type.text == "int") {
    value = read_integer(reader_);
  } else if (type.text == "bool") {
    value = read_boolean(reader_);
  } else if (type.text == "float") {
    value = read_floating<float>(reader_);
  } else if (type.text == "double") {
    value = read_floating<double>(reader_);
  } else {
    reader_.fail(type.line, fmt::format("unexpected type {}", reader_.shown(type)));
  }
  reader_.expect(";");
  if (!values_.emplace(std::string(name.text), std::pair{std::move(value), name.line}).second) {
    reader_.fail(name.line, fmt::format("{} is defined twice", name.text));
  }
}

int Members::integer_constant(const Token& token) const {
  const auto found = values_.find(std::string(token.text));
  const int* value = found == values_.end() ? nullptr : std::get_if<int>(&found->second.first);
  if (!value) reader_.fail(token.line, fmt::format("{} is not an integer constant defined above", reader_.shown(token)));
  return *value;
}

// `break_at(int k) { constexpr float at[] = {...}; return at[k]; }`
void Members::read_breaks() {
  const int line = reader_.peek().line;
  reader_.expect("break_at ( int k ) { constexpr float at [ ] = {");
  std::vector<float> breaks;
  do {
    if (breaks.size() == kMaxRows) reader_.fail(reader_.peek().line, "too many break points");
    breaks.push_back(read_floating<float>(reader_));
  } while (reader_.accept(","));
  reader_.expect("} ; return at [ k ] ; }");
  if (breaks_) reader_.fail(line, "break_at() is defined twice");
  breaks_ = std::move(breaks);
}

// `Entries<kEntries> entries() { return {{ 0x3800, ... }}; }`, as many entries as declared.
void Members::read_entries() {
  reader_.expect("<");
  const Token size = reader_.expect_kind(Kind::Word, "the number of entries");
  const int count = integer_constant(size);
  if (count < 1 || count > kMaxEntries) reader_.fail(size.line, fmt::format("{} = {} is outside [1, {}]", size.text, count, kMaxEntries));
  reader_.expect("> entries ( ) { return { {");
  std::vector<std::uint16_t> entries;
  do {
    const Token token = reader_.expect_kind(Kind::Number, "an entry");
    constexpr size_t kDigits = 4;
    if (token.text.size() != 2 + kDigits || !token.text.starts_with("0x") ||
        token.text.substr(2).find_first_not_of("0123456789abcdef") != std::string_view::npos) {
      reader_.fail(token.line, fmt::format("{} is not 16 bits in hexadecimal", reader_.shown(token)));
    }
    int value = 0;
    for (const char digit : token.text.substr(2)) value = 16 * value + (digit <= '9' ? digit - '0' : digit - 'a' + 10);
    if (static_cast<int>(entries.size()) == count) reader_.fail(token.line, "more entries than declared");
    entries.push_back(static_cast<std::uint16_t>(value));
  } while (reader_.accept(","));
  if (static_cast<int>(entries.size()) != count) reader_.fail(reader_.peek().line, "fewer entries than declared");
  reader_.expect("} } ; }");
  if (entries_) reader_.fail(size.line, "entries() is defined twice");
  entries_ = std::move(entries);
}

// `kRows, kDegree + 2> table() { return {{ {...}, ... }}; }`, or `kRows, kWords>`; the sizes are constants that were read before.
void Members::read_table() {
  const Token rows = reader_.expect_kind(Kind::Word, "the number of rows");
  reader_.expect(",");
  const Token degree = reader_.expect_kind(Kind::Word, "the degree or the words of a row");
  const bool from_degree = reader_.accept("+");
  const int more = from_degree ? read_integer(reader_) : 0;
  reader_.expect(">");
  const Token name = reader_.expect_kind(Kind::Word, "the table's name");
  CoefficientTable table;
  table.rows = integer_constant(rows);
  if (table.rows < 1 || table.rows > kMaxRows)
    reader_.fail(rows.line, fmt::format("{} = {} is outside [1, {}]", rows.text, table.rows, kMaxRows));
  const int of_degree = integer_constant(degree);
  if (of_degree < 1 || of_degree > kMaxDegree)
    reader_.fail(degree.line, fmt::format("{} = {} is outside [1, {}]", degree.text, of_degree, kMaxDegree));
  if (from_degree && (more < 2 || more > 3)) reader_.fail(degree.line, "a row has a centre, degree + 1 coefficients and at most a scale");
  table.words = of_degree + more;
  reader_.expect("( ) { return { {");
  // Rows that are never asked for may be left out at the end: they are zeros, for a compiler as here.
  while (reader_.accept("{")) {
    if (table.values.size() == static_cast<size_t>(table.rows) * table.words) reader_.fail(reader_.peek().line, "more rows than declared");
    for (int word = 0; word < table.words; ++word) {
      if (word > 0) reader_.expect(",");
      table.values.push_back(read_floating<float>(reader_));
    }
    reader_.expect("}");
    if (!reader_.accept(",")) break;
  }
  if (table.values.empty()) reader_.fail(reader_.peek().line, "a table without rows");
  table.values.resize(static_cast<size_t>(table.rows) * table.words);
  reader_.expect("} } ; }");
  if (!tables_.emplace(std::string(name.text), std::move(table)).second) {
    reader_.fail(name.line, fmt::format("the table {}() is defined twice", name.text));
  }
}

int take_rows(Members& members, const std::string& name, Reader& reader) {
  const int rows = members.take_within(name, 1, kMaxRows);
  if (!std::has_single_bit(static_cast<unsigned>(rows)))
    reader.fail(reader.peek().line, fmt::format("{} = {} is not a power of two", name, rows));
  return rows;
}

CoefficientTable take_shaped(Members& members, const std::string& name, int rows, int words, Reader& reader) {
  CoefficientTable table = members.take_table(name);
  if (table.rows != rows || table.words != words) {
    reader.fail(reader.peek().line,
                fmt::format("the table {}() is {} x {} where {} x {} is expected", name, table.rows, table.words, rows, words));
  }
  return table;
}

// The text of a function is parsed here once, so that what follows can rely on it.
std::string take_function(Members& members, Reader& reader) {
  const int line = members.line_of("kFunction");
  const std::string text = members.take<std::string>("kFunction");
  try {
    Function::parse(text);
  } catch (const SpecError& error) {
    reader.fail(line, fmt::format("kFunction: {}", error.what()));
  }
  return text;
}

std::string take_choice(Members& members, const std::string& name, std::initializer_list<std::string_view> choices, Reader& reader) {
  const int line = members.line_of(name);
  const std::string value = members.take<std::string>(name);
  if (std::find(choices.begin(), choices.end(), value) == choices.end())
    reader.fail(line, fmt::format("{} = '{}' is unknown", name, value));
  return value;
}

StorageClaims take_storage(Members& members) {
  StorageClaims claims;
  claims.total = members.take<double>("kT");
  claims.oracle = members.take<double>("kO");
  claims.regret = members.take<double>("kR");
  return claims;
}

BackwardHeader read_backward(Members& members, Reader& reader) {
  BackwardHeader h;
  h.name = members.take<std::string>("kName");
  h.activation = members.take<std::string>("kActivation");
  h.function = take_function(members, reader);
  h.format = take_choice(members, "kFormat", {"f32", "f16", "bf16"}, reader);
  h.accuracy = members.take<std::string>("kClass");
  h.degree = members.take_within("kDegree", 1, kMaxDegree);
  const int rows_line = members.line_of("kRows");
  h.rows = members.take_within("kRows", 1, kMaxRows);
  h.scheme = members.take_within("kScheme", 0, 2);
  h.operations = members.take<int>("kOperations");
  h.centred = members.take<bool>("kCentred");
  h.exact_limits = members.take<bool>("kExactLimits");
  h.masked = members.take<bool>("kMasked");
  if (h.masked) {
    h.y_hi = members.take<float>("kYHi");
    h.y_lo = members.take<float>("kYLo");
    h.t_min = members.take<float>("kTMin");
    h.s_min = members.take<float>("kSMin");
  } else {
    h.y_min = members.take<float>("kYMin");
  }
  h.y_max = members.take<float>("kYMax");
  h.has_breaks = members.take<bool>("kHasBreaks");
  if (h.has_breaks) {
    if (h.rows > 1) h.breaks = members.take_breaks();
    if (static_cast<int>(h.breaks.size()) != h.rows - 1)
      reader.fail(rows_line, fmt::format("{} break points for {} rows", h.breaks.size(), h.rows));
  } else {
    h.index_scale = members.take<float>("kIndexScale");
    h.index_bias = members.take<float>("kIndexBias");
  }
  h.has_left = members.take<bool>("kHasLeft");
  if (h.has_left) {
    h.left_y = members.take<float>("kLeftY");
    h.left_bits = members.take_within("kLeftBits", 1, kMaxOctaveBits);
    h.left_row = members.take<int>("kLeftRow");
    h.left_knee = members.take<int>("kLeftKnee");
    h.left_base = members.take<int>("kLeftBase");
  }
  // Rows that are picked by low bits.
  if ((!h.has_breaks || h.has_left) && !std::has_single_bit(static_cast<unsigned>(h.rows))) {
    reader.fail(rows_line, fmt::format("kRows = {} is not a power of two", h.rows));
  }
  h.has_right = members.take<bool>("kHasRight");
  if (h.has_right) {
    h.right_s = members.take<float>("kRightS");
    if (members.has("kRightBoth")) h.right_both = members.take<bool>("kRightBoth");
  }
  if (members.has("kTwoWord")) h.two_word = members.take<bool>("kTwoWord");
  h.bound_a = members.take<double>("kA");
  if (h.masked) h.bound_k = members.take<double>("kK");
  h.bound_b = members.take<double>("kB");
  if (h.format == "f32" && !h.accuracy.starts_with("rel:")) h.bound_ab = members.take<double>("kAB");
  if (h.two_word) {
    h.bound_ulp = members.take<double>("kUlp");
    h.ulp_from = members.take<double>("kUlpFrom");
  }
  if (h.format != "f32") h.storage = take_storage(members);
  h.table = take_shaped(members, "table", h.rows, h.degree + (h.two_word ? 3 : 2), reader);
  return h;
}

TableHeader read_direct_table(Members& members, Reader& reader) {
  TableHeader h;
  h.name = members.take<std::string>("kName");
  h.activation = members.take<std::string>("kActivation");
  h.function = take_function(members, reader);
  h.format = take_choice(members, "kFormat", {"f16", "bf16", "e4m3", "e5m2"}, reader);
  h.accuracy = members.take<std::string>("kClass");
  h.entry_format = take_choice(members, "kEntryFormat", {"f16", "bf16"}, reader);
  const int entries_line = members.line_of("kEntries");
  const int count = members.take_within("kEntries", 1, kMaxEntries);
  h.index_operations = members.take<int>("kIndexOperations");
  h.masked = members.take<bool>("kMasked");
  h.entries = members.take_entries();
  if (static_cast<int>(h.entries.size()) != count) reader.fail(entries_line, "kEntries is not the number of entries");
  const auto segment = [&](const std::string& name) {
    constexpr int kMostMagnitude = 0x7fff;
    TableHeader::Segment s;
    const int line = members.line_of("k" + name + "Base");
    s.first = members.take_within("k" + name + "First", 0, kMostMagnitude);
    s.last = members.take_within("k" + name + "Last", s.first, kMostMagnitude);
    s.base = members.take<int>("k" + name + "Base");
    if (s.base < 0 || s.base + s.last - s.first >= count) reader.fail(line, fmt::format("the segment {} leaves the table", name));
    return s;
  };
  h.upper = segment("Upper");
  h.lower = segment("Lower");
  if (h.masked) h.left = segment("Left");
  h.storage = take_storage(members);
  return h;
}

ForwardHeader read_forward(Members& members, Reader& reader) {
  ForwardHeader h;
  h.name = members.take<std::string>("kName");
  h.activation = members.take<std::string>("kActivation");
  h.function = take_function(members, reader);
  h.x_star = members.take<float>("kXStar");
  h.x_min = members.take<float>("kXMin");
  h.x_max = members.take<float>("kXMax");
  h.tail_x = members.take<float>("kTailX");
  h.degree = members.take_within("kDegree", 1, kMaxDegree);
  h.rows = take_rows(members, "kRows", reader);
  h.index_scale = members.take<float>("kIndexScale");
  h.index_bias = members.take<float>("kIndexBias");
  h.tail_degree = members.take_within("kTailDegree", 1, kMaxDegree);
  h.tail_rows = take_rows(members, "kTailRows", reader);
  h.tail_index_scale = members.take<float>("kTailIndexScale");
  h.tail_index_bias = members.take<float>("kTailIndexBias");
  if (members.has("kUlp")) h.ulp = members.take<double>("kUlp");
  h.bound_a = members.take<double>("kA");
  h.table = take_shaped(members, "table", h.rows, h.degree + 2, reader);
  h.tail = take_shaped(members, "tail", h.tail_rows, h.tail_degree + 3, reader);
  return h;
}

RoundedForwardHeader read_rounded_forward(Members& members, Reader& reader) {
  RoundedForwardHeader h;
  h.name = members.take<std::string>("kName");
  h.activation = members.take<std::string>("kActivation");
  h.function = take_function(members, reader);
  h.format = members.take<std::string>("kFormat");
  h.accuracy = members.take<std::string>("kClass");
  h.x_star = members.take<float>("kXStar");
  h.x_min = members.take<float>("kXMin");
  h.x_max = members.take<float>("kXMax");
  h.tie = members.take<float>("kTie");
  const int words = members.take_within("kWords", 4, 4);
  h.rows = take_rows(members, "kRows", reader);
  h.core_first = members.take_within("kCoreFirst", 0, h.rows - 1);
  h.core_rows = members.take_within("kCoreRows", 1, h.rows);
  h.index_scale = members.take<float>("kIndexScale");
  h.index_bias = members.take<float>("kIndexBias");
  h.quartic_shift = members.take_within("kQuarticShift", 16, 20);
  h.bound_a = members.take<double>("kA");
  h.bound_core = members.take<double>("kCoreA");
  h.table = take_shaped(members, "table", h.rows, words, reader);
  return h;
}

}  // namespace

Header parse_header(std::string_view text, const std::string& file) {
  constexpr std::string_view kBanner = "// GENERATED by outgrad emit. DO NOT EDIT.\n";
  if (text.size() > kMaxFileBytes) throw SpecError(fmt::format("{}:1: {} bytes is too long for a coefficient header", file, text.size()));
  if (!text.starts_with(kBanner)) throw SpecError(fmt::format("{}:1: not a generated coefficient header", file));
  Reader reader(text, file);
  for (const std::string_view directive : {"#pragma once", "#include \"kernels/table.h\""}) {
    const Token token = reader.take();
    if (token.text != directive) reader.fail(token.line, fmt::format("expected '{}', found {}", directive, reader.shown(token)));
  }
  reader.expect("namespace outgrad :: kernels :: generated { struct");
  const std::string name(reader.expect_kind(Kind::Word, "the struct's name").text);
  reader.expect("{");
  Members members(reader);
  reader.expect("; }");
  if (reader.peek().kind != Kind::End)
    reader.fail(reader.peek().line, fmt::format("unexpected {} after the namespace", reader.shown(reader.peek())));
  Header header;
  if (members.has("kTailRows")) {
    header = read_forward(members, reader);
  } else if (members.has("kQuarticShift")) {
    header = read_rounded_forward(members, reader);
  } else if (members.has("kEntries")) {
    header = read_direct_table(members, reader);
  } else {
    header = read_backward(members, reader);
  }
  members.expect_nothing_left();
  std::visit([&](auto& h) { h.file = file, h.struct_name = name; }, header);
  return header;
}

Header read_header(const std::string& path) { return parse_header(kernels::read_file(path), path); }

}  // namespace outgrad::validation
