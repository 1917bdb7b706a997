// Scans headers, and damages each kind of place.
#include "tests/attack/mutation.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <span>

#include "kernels/support/bounds.h"

namespace outgrad::validation::gate {

using kernels::Random;

namespace {

constexpr std::array<const char*, 10> kNumberDamages{
    "one ulp up",    "one ulp down",   "a few ulps", "a thousandth", "a factor up",
    "a factor down", "a large factor", "sign",       "zero",         "swapped"};
constexpr std::array<const char*, 6> kIntegerDamages{"one more", "one less", "doubled",
                                                     "sign",     "zero",     "swapped"};
constexpr std::array<const char*, 1> kBooleanDamages{"negated"};
constexpr std::array<const char*, 5> kStringDamages{"a letter", "another number", "another header's",
                                                    "swapped", "empty"};
constexpr std::array<const char*, 7> kCommentDamages{
    "a letter",         "another number",      "removed",
    "swapped",          "ends in a backslash", "ends in a backslash and a blank",
    "a carriage return"};
constexpr std::array<const char*, 7> kLineDamages{
    "dropped", "doubled", "swapped", "a blank more", "an empty line before", "a directive before", "a tab"};

std::span<const char* const> damages(Site::Kind kind) {
  switch (kind) {
    case Site::Kind::real:
    case Site::Kind::coefficient:
    case Site::Kind::breakpoint: return kNumberDamages;
    case Site::Kind::integer:
    case Site::Kind::entry: return kIntegerDamages;
    case Site::Kind::boolean: return kBooleanDamages;
    case Site::Kind::string: return kStringDamages;
    case Site::Kind::comment: return kCommentDamages;
    case Site::Kind::line: break;
  }
  return kLineDamages;
}

bool is_number_letter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' || c == '+';
}

// The numbers between commas and braces of [begin, end).
void add_list(std::string_view text, size_t begin, size_t end, Site::Kind kind, const std::string& what,
              std::vector<Site>& sites) {
  int word = 0;
  for (size_t at = begin; at < end;) {
    if (!is_number_letter(text[at])) {
      ++at;
      continue;
    }
    const size_t first = at;
    while (at < end && is_number_letter(text[at])) ++at;
    sites.push_back({kind, fmt::format("{}, word {}", what, word++), first, at - first});
  }
}

// A hexadecimal literal of a float (ends in f) or double.
struct Number {
  double value;
  bool is_float;
  std::string text() const {
    if (is_float) return fmt::format("{:a}f", value);
    return value == 0 ? "0" : fmt::format("{:a}", value);
  }
  Number moved(int ulps) const {
    Number result = *this;
    for (int i = 0; i < std::abs(ulps); ++i) {
      const double towards =
          ulps > 0 ? std::numeric_limits<double>::infinity() : -std::numeric_limits<double>::infinity();
      result.value = is_float ? static_cast<double>(std::nextafter(static_cast<float>(result.value),
                                                                   static_cast<float>(towards)))
                              : std::nextafter(result.value, towards);
    }
    return result;
  }
  Number times(double factor) const {
    Number result = *this;
    result.value = is_float ? static_cast<double>(static_cast<float>(value * factor)) : value * factor;
    return result;
  }
};

Number number_of(std::string_view text) {
  const std::string digits(text);
  return {std::strtod(digits.c_str(), nullptr),
          digits.ends_with('f') && digits.find('p') != std::string::npos};
}

std::string damaged_number(const std::string& old, size_t damage, Random& random) {
  const Number number = number_of(old);
  switch (damage) {
    case 0: return number.moved(1).text();
    case 1: return number.moved(-1).text();
    case 2:
      return number.moved(static_cast<int>((2 + random.below(30)) * (random.chance(0.5) ? 1 : -1))).text();
    case 3: return number.times(random.chance(0.5) ? 1.001 : 0.999).text();
    case 4: return number.times(1.0625 + random.uniform()).text();
    case 5: return number.times(0.9375 - 0.5 * random.uniform()).text();
    case 6: return number.times(std::exp2(random.sign() * static_cast<double>(4 + random.below(12)))).text();
    case 7: return number.times(-1).text();
    default: return Number{0, number.is_float}.text();
  }
}

std::string damaged_integer(const std::string& old, size_t damage, bool entry) {
  const long value = std::strtol(old.c_str(), nullptr, 0);
  // The bits of an entry: a step of one is an ulp, and the first bit is the sign.
  const long changed = damage == 0   ? value + 1
                       : damage == 1 ? value - 1
                       : damage == 2 ? 2 * value
                       : damage == 3 ? (entry ? value ^ 0x8000 : -value)
                                     : 0;
  return entry ? fmt::format("0x{:04x}", static_cast<unsigned>(changed) & 0xffffu)
               : fmt::format("{}", changed);
}

std::string with_letter(std::string text, Random& random) {
  if (text.empty()) return "a";
  char& c = text[random.below(text.size())];
  const char letters[] = "abcxyz019.*";
  const char put = letters[random.below(sizeof letters - 1)];
  c = c == put ? '_' : put;
  return text;
}

// Changes one digit of a number in a text.
std::string with_number(std::string text, Random& random) {
  std::vector<size_t> digits;
  for (size_t i = 0; i < text.size(); ++i)
    if (std::isdigit(static_cast<unsigned char>(text[i]))) digits.push_back(i);
  if (digits.empty()) return text;
  char& c = text[digits[random.below(digits.size())]];
  c = static_cast<char>('0' + (c - '0' + 1 + static_cast<int>(random.below(9))) % 10);
  return text;
}

// The value of the constant of the same name in another header.
std::string donated(const std::string& donor, const std::string& name) {
  const std::string mark = " " + name + " = \"";
  const size_t at = donor.find(mark);
  if (at == std::string::npos) return {};
  const size_t begin = at + mark.size();
  return donor.substr(begin, donor.find('"', begin) - begin);
}

// The comment of a constant follows from its value: "// 0.125: ..." for a float, "// 2^-3.00: ..." for a
// bound.
std::string with_fitting_comment(const std::string& text, size_t at) {
  const size_t begin = text.rfind('\n', at) + 1, end = std::min(text.find('\n', at), text.size());
  const std::string line = text.substr(begin, end - begin);
  const size_t equals = line.find(" = "), semicolon = line.find(";  // ");
  if (!line.starts_with("  static constexpr ") || equals == std::string::npos ||
      semicolon == std::string::npos)
    return text;
  const double value = std::strtod(line.c_str() + equals + 3, nullptr);
  std::string comment = line.substr(semicolon + 6);
  const bool bound = line.starts_with("  static constexpr double ");
  const size_t note = bound && !comment.starts_with("2^") ? 0 : std::min(comment.find(':'), comment.size());
  const std::string rest = note == 0 ? ": " + comment : comment.substr(note);
  if (bound) {
    // of a code: the value once more
    const bool decimal = !rest.empty() && rest.find_first_not_of(": 0123456789.") == std::string::npos;
    const std::string words = decimal ? fmt::format(": {:.6f}", kernels::decimals_up(value, 6)) : rest;
    comment = value == 0 ? words.substr(2)
                         : fmt::format("2^{:.2f}{}", kernels::decimals_up(std::log2(value), 2), words);
  } else {
    comment = fmt::format("{:.9g}{}", value, rest);
  }
  return text.substr(0, begin) + line.substr(0, semicolon + 6) + comment + text.substr(end);
}

// "row K: A <= 2^N", and nothing after it but what was found.
std::optional<RowClaim> row_claim_of(const std::string& whole_comment) {
  const std::string comment = whole_comment.substr(0, whole_comment.find("; found 2^"));
  RowClaim claim{};
  int end = 0;
  if (std::sscanf(comment.c_str(), " row %d: A <= 2^%lf%n", &claim.row, &claim.log2, &end) != 2 ||
      static_cast<size_t>(end) != comment.size())
    return {};
  // A text that fmt's {:.2f} would not print is not from emit.
  return fmt::format(" row {}: A <= 2^{:.2f}", claim.row, claim.log2) == comment ? std::optional(claim)
                                                                                 : std::nullopt;
}

// Whether two comments, "...; found 2^FIGURE at x = INPUT", differ in the input alone: the error there may be
// the same to its two decimals, so `check` has to look. Another figure beside the same input is wrong, as the
// old one was right.
bool states_another_input(const std::string& before, const std::string& after) {
  const size_t found = before.find("; found 2^"),
               equals = found == std::string::npos ? found : before.find(" = ", found);
  if (equals == std::string::npos || before.substr(0, equals + 3) != after.substr(0, equals + 3))
    return false;
  const std::string input = after.substr(equals + 3);
  char* end = nullptr;
  const double value = std::strtod(input.c_str(), &end);
  const std::string branch = end;
  const bool known = before.find(", m = ", equals) == std::string::npos
                         ? branch.empty()
                         : branch == ", m = 0" || branch == ", m = 1";
  return known && std::isfinite(value) && input == fmt::format("{:a}{}", value, branch);
}

const Site* neighbour(const std::vector<Site>& sites, size_t site) {
  for (size_t i = site + 1; i < sites.size(); ++i)
    if (sites[i].kind == sites[site].kind) return &sites[i];
  return nullptr;
}

}  // namespace

const char* to_string(Site::Kind kind) {
  constexpr std::array<const char*, 9> kNames{"constants", "integers",     "booleans",
                                              "strings",   "coefficients", "break points",
                                              "entries",   "comments",     "lines"};
  return kNames[static_cast<size_t>(kind)];
}

size_t damages_of(Site::Kind kind) { return damages(kind).size(); }
const char* damage_name(Site::Kind kind, size_t damage) { return damages(kind)[damage]; }

std::vector<Site> sites_of(std::string_view text) {
  using Kind = Site::Kind;
  std::vector<Site> sites;
  int number = 0, row = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    ++number;
    const size_t comment = line.find("//");
    const size_t code_end = begin + std::min(comment, line.size());
    const std::string_view code = text.substr(begin, code_end - begin);
    const size_t constant = code.find("static constexpr "), equals = code.find(" = ");
    if (constant != std::string_view::npos && equals != std::string_view::npos) {
      const size_t name_begin = code.rfind(' ', equals - 1) + 1, value = equals + 3,
                   value_end = code.find(';', value);
      const std::string name(code.substr(name_begin, equals - name_begin));
      const std::string_view type = code.substr(constant + 17, name_begin - constant - 18);
      if (type == "const char*") {
        sites.push_back({Kind::string, name, begin + value + 1, value_end - value - 2});
      } else {
        sites.push_back({type == "int"    ? Kind::integer
                         : type == "bool" ? Kind::boolean
                                          : Kind::real,
                         name, begin + value, value_end - value});
      }
    } else if (code.find("at[] = {") != std::string_view::npos) {
      add_list(text, begin + code.find('{') + 1, code_end, Kind::breakpoint, "breaks", sites);
    } else if (code.starts_with("      {")) {
      add_list(text, begin, code_end, Kind::coefficient, fmt::format("row {}", row++), sites);
    } else if (code.starts_with("      0x")) {
      add_list(text, begin, code_end, Kind::entry, fmt::format("line {}", number), sites);
    }
    if (comment != std::string_view::npos)
      sites.push_back(
          {Kind::comment, fmt::format("line {}", number), begin + comment + 2, end - begin - comment - 2});
    if (!line.empty()) sites.push_back({Kind::line, fmt::format("line {}", number), begin, end - begin});
    begin = end + 1;
  }
  return sites;
}

Mutant mutant_of(const std::string& text, const std::vector<Site>& sites, size_t index, size_t damage,
                 const std::string& donor, Random& random) {
  using Kind = Site::Kind;
  const Site& site = sites[index];
  const std::string old = text.substr(site.begin, site.length), what = damage_name(site.kind, damage);
  Mutant mutant{
      what, site, text, site.kind == Kind::comment || site.kind == Kind::line || site.name == "kName", {}};
  const auto replace = [&](const Site& where, const std::string& with) {
    mutant.text.replace(where.begin, where.length, with);
  };
  if (what == "swapped") {
    const Site* other = neighbour(sites, index);
    if (!other) return mutant;
    // The later place is changed first, because this does not move the earlier one.
    const std::string others = text.substr(other->begin, other->length);
    replace(*other, old);
    replace(site, others);
    // Two lines that contain only entries are data in another order. Whether their claims hold is for the
    // brute force to decide.
    const auto of_entries = [](const std::string& line) {
      return line.find_first_not_of(" 0123456789abcdefx,\n") == std::string::npos;
    };
    if (site.kind == Kind::line && of_entries(old) && of_entries(others))
      mutant.refused_by_definition = false;
    if (site.kind == Kind::real)
      mutant.text = with_fitting_comment(
          with_fitting_comment(mutant.text, other->begin + others.size() - old.size()), site.begin);
    return mutant;
  }
  switch (site.kind) {
    case Kind::real:
    case Kind::coefficient:
    case Kind::breakpoint: replace(site, damaged_number(old, damage, random)); break;
    case Kind::integer: replace(site, damaged_integer(old, damage, false)); break;
    case Kind::entry: replace(site, damaged_integer(old, damage, true)); break;
    case Kind::boolean: replace(site, old == "true" ? "false" : "true"); break;
    case Kind::string: {
      const std::string other = donated(donor, site.name);
      replace(site, damage == 0   ? with_letter(old, random)
                    : damage == 1 ? with_number(old, random)
                    : damage == 2 ? (other.empty() ? old : other)
                                  : "");
      break;
    }
    case Kind::comment:
      replace(site, damage == 0   ? with_letter(old, random)
                    : damage == 1 ? with_number(old, random)
                    : damage == 2 ? ""
                    : damage == 4 ? old + "\\"
                    : damage == 5 ? old + "\\ "
                                  : old + "\r");
      break;
    case Kind::line:
      if (damage == 0) replace({site.kind, "", site.begin, site.length + 1}, "");
      if (damage == 1) replace(site, old + "\n" + old);
      if (damage == 3) replace(site, " " + old);
      if (damage == 4) replace(site, "\n" + old);
      if (damage == 5) replace(site, "#line 7\n" + old);
      if (damage == 6) replace(site, old + "\t");
      break;
  }
  if (site.kind == Kind::real) mutant.text = with_fitting_comment(mutant.text, site.begin);
  if (site.kind == Kind::comment) {
    const std::string comment =
        mutant.text.substr(site.begin, mutant.text.find('\n', site.begin) - site.begin);
    const std::optional<RowClaim> before = row_claim_of(old), after = row_claim_of(comment);
    const auto found_of = [](const std::string& c) {
      return c.substr(std::min(c.find("; found 2^"), c.size()));
    };
    if (before && after && before->row == after->row && found_of(old) == found_of(comment))
      mutant.row_claim = after, mutant.refused_by_definition = false;
    if (states_another_input(old, comment)) mutant.refused_by_definition = false;
    // The origin of a header cannot be proved, so any path and any 64 digits are possible.
    const bool provenance =
        (old.starts_with(" command: ./outgrad emit ") && comment.starts_with(" command: ./outgrad emit ")) ||
        (old.starts_with(" spec sha256: ") && comment.size() == old.size() &&
         comment.starts_with(" spec sha256: "));
    if (provenance && comment.find_first_of("\\\r") == std::string::npos)
      mutant.refused_by_definition = false;
  }
  return mutant;
}

std::vector<std::pair<size_t, size_t>> plan(const std::vector<Site>& sites, size_t passes, size_t most,
                                            Random& random) {
  using Kind = Site::Kind;
  std::vector<std::pair<size_t, size_t>> chosen, many;
  for (size_t i = 0; i < sites.size(); ++i) {
    const Kind kind = sites[i].kind;
    const bool of_many = kind == Kind::coefficient || kind == Kind::entry || kind == Kind::breakpoint ||
                         (kind == Kind::comment || kind == Kind::line);
    const size_t damages = damages_of(kind);
    if (!of_many) {
      for (size_t damage = 0; damage < damages; ++damage) chosen.emplace_back(i, damage);
      continue;
    }
    const size_t first = random.below(damages);
    for (size_t pass = 0; pass < std::min(passes, damages); ++pass)
      many.emplace_back(i, (first + pass) % damages);
  }
  const auto thinned = [&](std::vector<std::pair<size_t, size_t>> all, size_t limit) {
    if (all.size() <= limit) return all;
    std::vector<std::pair<size_t, size_t>> kept;
    const size_t begin = random.below(all.size());
    for (size_t k = 0; k < limit; ++k) kept.push_back(all[(begin + k * all.size() / limit) % all.size()]);
    return kept;
  };
  if (most > 0) {
    // At least half go to the constants, because each of them is a claim or decides where all rows are.
    const size_t constants = std::min(chosen.size(), std::max(most / 2, most - std::min(most, many.size())));
    chosen = thinned(std::move(chosen), constants);
    many = thinned(std::move(many), most - std::min(most, chosen.size()));
  }
  chosen.insert(chosen.end(), many.begin(), many.end());
  return chosen;
}

}  // namespace outgrad::validation::gate
