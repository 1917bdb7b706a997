// One rounding an operation: sums, roots and fused multiply-adds cannot be contracted any further.
#include "validation/deployed.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace outgrad::validation {
namespace {

std::uint32_t bits(float v) { return std::bit_cast<std::uint32_t>(v); }

int left_row(const BackwardHeader& h, float z) {
  const int half_octave = static_cast<int>(bits(z) >> 22 & 0x1ff);
  return (h.left_row + std::max(((half_octave + std::max(half_octave, h.left_knee)) >> 1) - h.left_base, 0)) & (h.rows - 1);
}

// Cuts [low, high] where `key`, monotone in v, changes; no more than `most` pieces.
template <class Key>
void cut(std::vector<Cell>& cells, float low, float high, bool left, int most, Key&& key, auto&& row_of) {
  std::int64_t at = float_order(low);
  const std::int64_t end = float_order(high);
  for (int count = 0; at <= end && count < most; ++count) {
    const auto here = key(float_at(at));
    std::int64_t inside = at, outside = end + 1;
    while (outside - inside > 1) {
      const std::int64_t middle = inside + (outside - inside) / 2;
      (key(float_at(middle)) == here ? inside : outside) = middle;
    }
    cells.push_back({row_of(float_at(at)), left, float_at(at), float_at(inside)});
    at = inside + 1;
  }
}

int low_bits(float index, int rows) { return static_cast<int>(bits(index) & static_cast<std::uint32_t>(rows - 1)); }

}  // namespace

std::int64_t float_order(float v) {
  const std::uint32_t magnitude = bits(v) & 0x7fffffffu;
  return std::signbit(v) ? -static_cast<std::int64_t>(magnitude) : static_cast<std::int64_t>(magnitude);
}

float float_at(std::int64_t order) {
  const float magnitude = std::bit_cast<float>(static_cast<std::uint32_t>(order < 0 ? -order : order));
  return order < 0 ? -magnitude : magnitude;
}

float deployed_s(const BackwardHeader& h, float y, bool m) {
  float t = y - h.y_hi;
  if (h.y_lo != 0) t = t - h.y_lo;
  t = t < h.t_min ? h.t_min : t;
  const float root = std::sqrt(t);
  float s = m ? root : -root;
  s = s > h.s_max ? h.s_max : s;
  if (!h.has_left) s = s < h.s_min ? h.s_min : s;
  return s;
}

Selection deployed_selection(const BackwardHeader& h, float y, bool m) {
  if (h.has_left && !m && !(y <= h.left_y)) {
    const float z = y > 0 ? -0.0f : y;
    return {left_row(h, z), true, z};
  }
  const float s = deployed_s(h, y, m);
  return {low_bits(cell_index(s, h.index_scale, h.index_bias), h.rows), false, s};
}

float deployed_row(std::span<const float> row, int degree, float v) {
  const float u = v - row[0];
  float p = row[degree + 1];
  for (int word = degree; word >= 1; --word) p = std::fma(p, u, row[word]);
  return p;
}

float deployed_gradient(const BackwardHeader& h, float y, bool m) {
  const Selection selection = deployed_selection(h, y, m);
  return deployed_row(h.table.row(selection.row), h.degree, selection.v);
}

float deployed_forward(const ForwardHeader& h, float x) {
  if (!(x < h.x_max)) return x;
  if (x < h.tail_x) {
    const float v = x < h.x_min ? h.x_min : x;
    const auto row = h.tail.row(low_bits(cell_index(v, h.tail_index_scale, h.tail_index_bias), h.tail_rows));
    return deployed_row(row, h.tail_degree, v) * row[h.tail_degree + 2];
  }
  return deployed_row(h.table.row(low_bits(cell_index(x, h.index_scale, h.index_bias), h.rows)), h.degree, x);
}

float cell_index(float v, float scale, float bias) { return std::fma(v, scale, bias); }

std::vector<Cell> backward_cells(const BackwardHeader& h) {
  std::vector<Cell> cells;
  const float low = h.has_left ? deployed_s(h, h.left_y, false) : h.s_min;
  const auto index = [&](float s) { return cell_index(s, h.index_scale, h.index_bias); };
  cut(cells, low, h.s_max, false, h.rows, index, [&](float s) { return low_bits(index(s), h.rows); });
  if (h.has_left) {
    const auto row = [&](float z) { return left_row(h, z); };
    cut(cells, std::nextafter(h.left_y, 1.0f), -0.0f, true, h.rows, row, row);
  }
  return cells;
}

std::vector<Cell> forward_cells(const ForwardHeader& h) {
  std::vector<Cell> cells;
  const auto core = [&](float x) { return cell_index(x, h.index_scale, h.index_bias); };
  const auto tail = [&](float x) { return cell_index(x, h.tail_index_scale, h.tail_index_bias); };
  cut(cells, h.tail_x, std::nextafter(h.x_max, h.tail_x), false, h.rows, core, [&](float x) { return low_bits(core(x), h.rows); });
  cut(cells, h.x_min, std::nextafter(h.tail_x, h.x_min), true, h.tail_rows, tail, [&](float x) { return low_bits(tail(x), h.tail_rows); });
  return cells;
}

}  // namespace outgrad::validation
