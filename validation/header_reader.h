// Reads the text of a generated coefficient header as data, so that what is proved is what the compiler will see.
//
// The accepted language is exactly what `outgrad emit` writes: banner, `#pragma once`, the include of kernels/table.h, one struct of
// `static constexpr` literals and its tables. Anything else is rejected with "file:line: why": a lenient reader could prove a header
// that a compiler reads differently. Sizes are bounded before anything is allocated, so a hostile file costs no more than its length.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace outgrad::validation {

/// A table of `rows` rows of `words` floats, row-major.
struct CoefficientTable {
  int rows = 0;
  int words = 0;
  std::vector<float> values;

  std::span<const float> row(int k) const { return {values.data() + static_cast<size_t>(k) * words, static_cast<size_t>(words)}; }
  std::span<float> row(int k) { return {values.data() + static_cast<size_t>(k) * words, static_cast<size_t>(words)}; }
};

/// g = f'(f^-1(y)) from (y, m): constants in the order of the header. `table`: centre, c0, ..., c_degree.
struct BackwardHeader {
  std::string file, struct_name, name, activation, format;
  int degree = 0, rows = 0, operations = 0;
  float y_hi = 0, y_lo = 0, t_min = 0, s_min = 0, s_max = 0, index_scale = 0, index_bias = 0;
  bool has_left = false;
  float left_y = 0;
  int left_row = 0, left_knee = 0, left_base = 0;
  double bound_a = 0, bound_k = 0, bound_b = 0;
  CoefficientTable table;
};

/// y = f(x): `table` as above over the core, `tail` with one more word, the power-of-two scale.
struct ForwardHeader {
  std::string file, struct_name, name, activation;
  float x_star = 0, x_min = 0, x_max = 0, tail_x = 0;
  int degree = 0, rows = 0;
  float index_scale = 0, index_bias = 0;
  int tail_degree = 0, tail_rows = 0;
  float tail_index_scale = 0, tail_index_bias = 0;
  double ulp = 0;  // 0 if not claimed; proved by the exhaustive sweep, not from the header
  double bound_a = 0;
  CoefficientTable table, tail;
};

using Header = std::variant<BackwardHeader, ForwardHeader>;

/// Parses a header's text; `file` only names it in messages. Throws kernels::SpecError ("file:line: why"), nothing else.
Header parse_header(std::string_view text, const std::string& file);

/// Reads and parses. Throws SpecError; kernels::IoError if the file cannot be read.
Header read_header(const std::string& path);

}  // namespace outgrad::validation
