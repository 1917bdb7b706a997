// A generated coefficient header as data, and its one text.
//
// Every header has one canonical text: banner, `#pragma once`, the include of kernels/table.h, one struct of
// `static constexpr` literals in a fixed order, each line with the comment that follows from its value, its
// tables and break points. The same description of those lines prints and reads them (header_reader.cpp), and
// a byte that differs, in a comment or a blank too, is refused with "file:line:column: why": so what is
// proved is what a compiler reads. Sizes are bounded before anything is allocated, so a hostile file costs no
// more than its length.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace outgrad::validation {

/// The worst input that was found for a bound, as the comment behind the bound states it: "; found 2^-26.25
/// at x = -0x1.29c22efc9a0cbp+2". A header may state none.
struct FoundInput {
  bool given = false;
  double log2_error = 0;  // to two decimals
  double at = 0;  // x for A, else a stored y
  bool m = true;  // of masked headers: the branch of y
};

/// A table of `rows` rows of `words` floats, row-major.
struct CoefficientTable {
  int rows = 0;
  int words = 0;
  std::vector<float> values;
  /// What the header claims of each row's own A, as log2: of the rows that it lists; those after them are
  /// zeros that no argument asks for.
  std::vector<double> log2_fit_errors;
  std::vector<FoundInput> found = {};  // of the same rows

  std::span<const float> row(int k) const {
    return {values.data() + static_cast<size_t>(k) * words, static_cast<size_t>(words)};
  }
  std::span<float> row(int k) {
    return {values.data() + static_cast<size_t>(k) * words, static_cast<size_t>(words)};
  }
};

/// T, O and R over every stored y of a 16- or 8-bit format, both mask bits, and all real x that round to that
/// y.
struct StorageClaims {
  double total = 0, oracle = 0, regret = 0;
  FoundInput found_total = {}, found_oracle = {}, found_regret = {};
};

/// What is claimed of y = RN_f32(z / b) for a z = f(x) b rounded to `format`, |y - f(x)| <= relative |f(x)| +
/// absolute: over every such fp32 y, both mask bits and all real x.
struct ProductClaims {
  std::string format;  // empty: nothing
  double relative = 0, absolute = 0, total = 0, oracle = 0;
  FoundInput found_total = {}, found_oracle = {};
};

/// What every header says of itself.
struct HeaderNames {
  std::string file;  // as messages name it
  std::string fit_path, spec_sha256;  // where it came from; nothing is proved of these two
  std::string name, activation, function;
  double x_limit = 0;  // of a user's expression: the claims are about |x| <= x_limit
};

/// "f16_parity" and "bf16_parity": the lowest bit of a negative y is 0 right of the minimum and 1 left of it.
/// Their numbers are those of the carrier, f16 or bf16; any other format carries itself.
bool is_parity(const std::string& format);
std::string carrier_of(const std::string& format);

/// g = f'(f^-1(y)) from (y, m): constants in the order of the header. `table`: centre, c0, ..., c_degree and,
/// in a two-word header, the low part of c0.
struct BackwardHeader : HeaderNames {
  std::string format, accuracy;
  int degree = 0, rows = 0, scheme = 0, operations = 0;
  bool centred = true, exact_limits = false, masked = true;
  float y_hi = 0, y_lo = 0, t_min = 0, s_min = 0;  // masked
  float y_min = 0;  // not masked
  float y_max = 0;
  bool has_breaks = false;
  std::vector<float> breaks;  // rows - 1 of them
  float index_scale = 0, index_bias = 0;  // without breaks
  bool has_left = false;
  float left_y = 0;
  int left_bits = 1, left_row = 0, left_knee = 0, left_base = 0;
  bool has_right = false, right_both = false;
  float right_s = 0;
  bool two_word = false;  // c0 has a low part, the row's last word
  // of two-word headers: (A + B) / ulp(g) where |g| >= ulp_from
  double bound_ulp = 0, ulp_from = 0;
  double bound_a = 0, bound_k = 0, bound_b = 0;  // bound_k of masked headers
  // sup over the rows of A + B, of f32 headers but those of the class rel
  double bound_ab = 0;
  FoundInput found_a, found_k, found_b, found_ab, found_ulp;
  StorageClaims storage;  // of headers whose format is not f32
  ProductClaims product;  // of some f32 headers, in place of bound_k
  bool of_product() const { return !product.format.empty(); }
  CoefficientTable table;
};

/// g of each stored y from a table of 16-bit entries.
struct TableHeader : HeaderNames {
  /// Entries base ... base + last - first for the magnitude bits first ... last of y; magnitudes outside are
  /// taken to the nearest.
  struct Segment {
    int first = 0, last = 0, base = 0;
  };
  std::string format, accuracy, entry_format;
  int index_operations = 0;
  bool masked = true;
  Segment upper, lower, left;  // sign bit of y clear, set; m = 0 (masked)
  StorageClaims storage;
  std::vector<std::uint16_t> entries;
};

/// y = f(x) in f32: `table` as above over the core, `tail` with one more word, the power-of-two scale.
struct ForwardHeader : HeaderNames {
  bool masked = true;
  bool has_tail = true;  // f tends to 0 at the left; else f has its limit from x_min down
  bool levels = false;  // f has its limit from x_max on; else f is x there
  float x_star = 0, x_min = 0, x_max = 0, tail_x = 0;
  int degree = 0, rows = 0;
  float index_scale = 0, index_bias = 0;
  bool compensated = false;  // of the core's rows: what fma(c1, u, c0) loses is added
  float slope_low = 0;  // compensated: is added to every c1
  int tail_degree = 0, tail_rows = 0;
  float tail_index_scale = 0, tail_index_bias = 0;
  double bound_a = 0;
  FoundInput found_a;
  CoefficientTable table, tail;
};

/// y = f(x) rounded to a 16-bit format: f = x p(u), or, plain, p(u). `table`: c0, c1, c2, c3, whose bits,
/// shifted left by quartic_shift, are those of c4.
struct RoundedForwardHeader : HeaderNames {
  std::string format, accuracy;
  bool masked = true, plain = false;
  float x_star = 0, x_min = 0, x_max = 0, tie = 0, pull = 0;
  float end = std::numeric_limits<float>::infinity();  // the largest x that enters f
  int rows = 0, core_first = 0, core_rows = 0;
  float index_scale = 0, index_bias = 0;
  int quartic_shift = 0;
  double bound_a = 0, bound_core = 0;  // core: rows from core_first on
  FoundInput found_a, found_core;
  CoefficientTable table;
};

/// Codes of f'(x) (kernels/stores/code.h).
struct CodeHeader : HeaderNames {
  std::string accuracy;
  float lo = 0, hi = 0;
  double bound_g = 0;
  std::array<double, 8> exact{};  // T of exact codes of 1 to 8 bits
  std::array<double, 2> dithered{};  // of dithered ones of 2 and 3
  double bias = 0;
};

/// What is claimed of y in an 8-bit format: the range of scales, and T with 0, 1 and 2 bits beside it.
struct Fp8Claims {
  float least = 0, most = 0;
  std::array<double, 3> total{};
};

/// y in 8 bits at a scale (kernels/stores/fp8.h).
struct Fp8Header : HeaderNames {
  std::string accuracy, code, fit;
  float least_at = 0, greatest_at = 0;
  double bound_g = 0, room = 0;
  std::array<double, 3> sign{};  // T of any format with a -0
  Fp8Claims e4m3, e5m2, int8, mxfp4, nvfp4;
};

using Header =
    std::variant<BackwardHeader, ForwardHeader, TableHeader, RoundedForwardHeader, CodeHeader, Fp8Header>;

/// The header's canonical text.
std::string print_header(const Header& header);

/// Parses a header's text, which must be the canonical one; `file` only names it in messages. Throws
/// kernels::SpecError ("file:line:column: why"), nothing else.
Header parse_header(std::string_view text, const std::string& file);

/// Reads and parses. Throws SpecError; kernels::IoError if the file cannot be read.
Header read_header(const std::string& path);

}  // namespace outgrad::validation
