// One rounding an operation: sums, roots and fused multiply-adds cannot be contracted any further.
#include "validation/certificate/deployed.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/formats.h"

namespace outgrad::validation {
namespace {

using kernels::bits_of;

// From 0 at the step next to 0.
int left_step(const BackwardHeader& h, float z) {
  const int octave = static_cast<int>((bits_of(z) & 0x7fffffffu) >> (23 - h.left_bits));
  return std::max(((octave + std::max(octave, h.left_knee)) >> 1) - h.left_base, 0);
}

int left_row(const BackwardHeader& h, float z) { return (h.left_row + left_step(h, z)) & (h.rows - 1); }

// Cuts a cell where `key`, monotone in v, changes; no more than `most` pieces.
void cut(std::vector<Cell>& cells, const Cell& whole, int most, auto&& key, auto&& row_of) {
  std::int64_t at = float_order(whole.low);
  const std::int64_t end = float_order(whole.high);
  for (int count = 0; at <= end && count < most; ++count) {
    const auto here = key(float_at(at));
    std::int64_t inside = at, outside = end + 1;
    while (outside - inside > 1) {
      const std::int64_t middle = inside + (outside - inside) / 2;
      (key(float_at(middle)) == here ? inside : outside) = middle;
    }
    cells.push_back({row_of(float_at(at)), whole.left, float_at(at), float_at(inside), whole.evaluated});
    at = inside + 1;
  }
}

int low_bits(float index, int rows) {
  return static_cast<int>(bits_of(index) & static_cast<std::uint32_t>(rows - 1));
}

int core_row(const BackwardHeader& h, float v) {
  if (!h.has_breaks) return low_bits(cell_index(v, h.index_scale, h.index_bias), h.rows);
  return static_cast<int>(std::count_if(h.breaks.begin(), h.breaks.end(), [&](float b) { return b <= v; }));
}

float deployed_compensated(const ForwardHeader& h, std::span<const float> row, float v) {
  const float u = v - row[0], c0 = row[1], c1 = row[2];
  float t = row[static_cast<size_t>(h.degree) + 1];
  for (int word = h.degree; word >= 3; --word) t = std::fma(t, u, row[static_cast<size_t>(word)]);
  const float high = std::fma(c1, u, c0), low = std::fma(c1, -u, high - c0);
  const float rest = h.slope_low == 0 ? t * u : std::fma(t, u, h.slope_low);
  return high - std::fma(rest, -u, low);
}

}  // namespace

std::int64_t float_order(float v) {
  const std::uint32_t magnitude = bits_of(v) & 0x7fffffffu;
  return std::signbit(v) ? -static_cast<std::int64_t>(magnitude) : static_cast<std::int64_t>(magnitude);
}

float float_at(std::int64_t order) {
  const float magnitude = std::bit_cast<float>(static_cast<std::uint32_t>(order < 0 ? -order : order));
  return order < 0 ? -magnitude : magnitude;
}

float deployed_s(const BackwardHeader& h, float y, bool m) {
  y = h.y_max < y ? h.y_max : y;
  if (!h.masked) return y < h.y_min ? h.y_min : y;
  float t = y - h.y_hi;
  if (h.y_lo != 0) t = t - h.y_lo;
  t = t < h.t_min ? h.t_min : t;
  const float root = std::sqrt(t);
  float s = m ? root : -root;
  if (!h.has_left) s = s < h.s_min ? h.s_min : s;
  return s;
}

Interval exact_root(const BackwardHeader& h, float y) {
  return sqrt(
      maximum(Interval(std::min(y, h.y_max)) - static_cast<double>(h.y_hi) - static_cast<double>(h.y_lo),
              static_cast<double>(h.t_min)));
}

std::pair<float, float> core_range(const BackwardHeader& h) {
  return {!h.masked    ? h.y_min
          : h.has_left ? deployed_s(h, h.left_y, false)
                       : h.s_min,
          deployed_s(h, h.y_max, true)};
}

int left_steps(const BackwardHeader& h) { return left_step(h, std::nextafter(h.left_y, 1.0f)) + 1; }

Selection deployed_selection(const BackwardHeader& h, float y, bool m) {
  y = h.y_max < y ? h.y_max : y;
  if (h.has_left && !m && !(y <= h.left_y)) {
    const float z = y > 0 ? -0.0f : y;
    return {left_row(h, z), Coordinate::left_output, z};
  }
  const float v = deployed_s(h, y, m);
  const int row = core_row(h, v);
  if (!h.masked) return {row, Coordinate::output, v};
  if (in_right_segment(h, v)) return {row, Coordinate::output, y};
  return {row, Coordinate::root, v};
}

bool in_right_segment(const BackwardHeader& h, float v) {
  return h.has_right && !((h.right_both ? std::fabs(v) : v) < h.right_s) && !std::isnan(v);
}

float deployed_row(std::span<const float> row, int degree, float v, int scheme, bool centred, bool two_word) {
  const float u = centred ? v - row[0] : v;
  const auto c = row.subspan(1, static_cast<size_t>(degree) + 1);
  if (scheme == kEstrin) {
    std::vector<float> level;
    for (int k = 0; k <= degree; k += 2) level.push_back(k < degree ? std::fma(c[k + 1], u, c[k]) : c[k]);
    for (float w = u; level.size() > 1;) {
      w = w * w;
      std::vector<float> joined;
      for (size_t k = 0; k < level.size(); k += 2)
        joined.push_back(k + 1 < level.size() ? std::fma(level[k + 1], w, level[k]) : level[k]);
      level = std::move(joined);
    }
    return level[0];
  }
  if (scheme == kEvenOdd && degree >= 2) {
    const float w = u * u;
    const auto every_second = [&](int top) {
      float p = c[top];
      for (int k = top - 2; k >= 0; k -= 2) p = std::fma(p, w, c[k]);
      return p;
    };
    const bool top_is_even = degree % 2 == 0;
    const float even = every_second(top_is_even ? degree : degree - 1),
                odd = every_second(top_is_even ? degree - 1 : degree);
    return std::fma(odd, u, even);
  }
  float p = c[degree];
  for (int k = degree - 1; k >= 1; --k) p = std::fma(p, u, c[k]);
  if (two_word) return c[0] + std::fma(p, u, row[static_cast<size_t>(degree) + 2]);
  return degree == 0 ? p : std::fma(p, u, c[0]);
}

float deployed_row(const BackwardHeader& h, const Selection& selection) {
  return deployed_row(h.table.row(selection.row), h.degree, selection.v, h.scheme, h.centred, h.two_word);
}

float deployed_gradient(const BackwardHeader& h, float y, bool m) {
  return deployed_row(h, deployed_selection(h, y, m));
}

float deployed_entry(const TableHeader& h, std::uint32_t code, bool m) {
  const std::uint32_t sign = h.format == "f16" || h.format == "bf16" ? 0x8000 : 0x80;
  const bool left = h.masked && !m, negative = (code & sign) != 0;
  const TableHeader::Segment& segment = left ? h.left : negative ? h.lower : h.upper;
  const int magnitude = left && !negative ? 0 : static_cast<int>(code & (sign - 1));
  const std::uint16_t entry = h.entries[static_cast<size_t>(
      segment.base + std::clamp(magnitude, segment.first, segment.last) - segment.first)];
  return h.entry_format == "f16" ? kernels::widen(kernels::F16{entry}) : kernels::widen(kernels::BF16{entry});
}

float deployed_forward(const ForwardHeader& h, float x) {
  if (!h.levels && !(x < h.x_max)) return x;
  if (h.has_tail && x < h.tail_x) {
    const float v = x < h.x_min ? h.x_min : x;
    const auto row = h.tail.row(low_bits(cell_index(v, h.tail_index_scale, h.tail_index_bias), h.tail_rows));
    return deployed_row(row, h.tail_degree, v) * row[h.tail_degree + 2];
  }
  float v = !h.has_tail && x < h.x_min ? h.x_min : x;
  if (h.levels) v = h.x_max < v ? h.x_max : v;
  const auto row = h.table.row(low_bits(cell_index(v, h.index_scale, h.index_bias), h.rows));
  return h.compensated ? deployed_compensated(h, row, v) : deployed_row(row, h.degree, v);
}

std::array<float, 5> coefficients_of(const RoundedForwardHeader& h, int row) {
  const std::span<const float> words = h.table.row(row);
  return {words[0], words[1], words[2], words[3],
          std::bit_cast<float>(std::bit_cast<std::uint32_t>(words[3]) << h.quartic_shift)};
}

float deployed_forward(const RoundedForwardHeader& h, float x) {
  const float v = x < h.x_min ? h.x_min : x, w = h.x_max < v ? h.x_max : v;
  const float index = cell_index(w, h.index_scale, h.index_bias);
  const float enters = h.end < v ? h.end : v;
  const float u = std::fma(index - h.index_bias, -1.0f / h.index_scale, h.plain ? enters : w);
  const std::array<float, 5> c = coefficients_of(h, low_bits(index, h.rows));
  float t = c[4];
  for (int k = 3; k >= 1; --k) t = std::fma(t, u, c[static_cast<size_t>(k)]);
  if (h.plain) return std::fma(u, t, c[0]);
  // A subnormal tie comes last; 0 keeps itself.
  const bool last = h.tie < std::numeric_limits<float>::min();
  const float factor = h.pull == 0 ? enters : std::fma(-h.pull, std::fabs(enters), enters);
  float y = std::fma(w * u, t, last ? factor * c[0] : std::fma(factor, c[0], h.tie));
  if (last && y != 0) y += h.tie;
  return std::copysign(y, x);
}

float cell_index(float v, float scale, float bias) { return std::fma(v, scale, bias); }

std::vector<Cell> backward_cells(const BackwardHeader& h) {
  std::vector<Cell> cells;
  const auto [low, high] = core_range(h);
  const auto key = [&](float v) {
    return h.has_breaks ? static_cast<float>(core_row(h, v)) : cell_index(v, h.index_scale, h.index_bias);
  };
  cut(cells, {0, false, low, high, h.masked ? Coordinate::root : Coordinate::output}, h.rows, key,
      [&](float v) { return core_row(h, v); });
  // A cell that holds both kinds of s becomes two.
  const auto divide = [&](float first_above) {
    const auto divided = std::find_if(cells.begin(), cells.end(), [&](const Cell& c) {
      return c.low < first_above && c.high >= first_above;
    });
    if (divided == cells.end()) return;
    Cell below = *divided;
    below.high = std::nextafter(first_above, -std::numeric_limits<float>::infinity());
    divided->low = first_above;
    cells.insert(divided, below);
  };
  if (h.has_right) {
    divide(h.right_s);
    if (h.right_both) divide(std::nextafter(-h.right_s, 1.0f));
    for (Cell& c : cells) {
      if (in_right_segment(h, c.low)) c.evaluated = Coordinate::output;
    }
  }
  if (h.has_left) {
    const auto row = [&](float z) { return left_row(h, z); };
    cut(cells, {0, true, std::nextafter(h.left_y, 1.0f), -0.0f, Coordinate::left_output}, h.rows, row, row);
  }
  return cells;
}

std::vector<Cell> forward_cells(const ForwardHeader& h) {
  std::vector<Cell> cells;
  const auto core = [&](float x) { return cell_index(x, h.index_scale, h.index_bias); };
  const auto tail = [&](float x) { return cell_index(x, h.tail_index_scale, h.tail_index_bias); };
  const float low = h.has_tail ? h.tail_x : h.x_min;
  cut(cells, {0, false, low, h.levels ? h.x_max : std::nextafter(h.x_max, low), Coordinate::root}, h.rows,
      core, [&](float x) { return low_bits(core(x), h.rows); });
  if (!h.has_tail) return cells;
  cut(cells, {0, true, h.x_min, std::nextafter(h.tail_x, h.x_min), Coordinate::root}, h.tail_rows, tail,
      [&](float x) { return low_bits(tail(x), h.tail_rows); });
  return cells;
}

std::vector<Cell> forward_cells(const RoundedForwardHeader& h) {
  std::vector<Cell> cells;
  const auto index = [&](float x) { return cell_index(x, h.index_scale, h.index_bias); };
  cut(cells, {0, false, h.x_min, h.x_max, Coordinate::root}, h.rows, index,
      [&](float x) { return low_bits(index(x), h.rows); });
  for (Cell& cell : cells) cell.left = cell.row < h.core_first;
  return cells;
}

}  // namespace outgrad::validation
