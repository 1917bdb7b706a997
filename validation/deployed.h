// The deployed operation sequence on one fp32 number, transcribed from the format of the generated headers rather than from
// kernels/eval.h, and the cells into which its index arithmetic cuts the coordinate.
//
//   t = max(RN(RN(y - y_hi) - y_lo), t_min)    s = +-RN(sqrt t), clamped to [s_min, s_max]    row = low bits of RN(s scale + bias)
//   left segment (m = 0, y > left_y): z = min(y, -0), row from the exponent of z and its first mantissa bit
//   u = RN(v - centre), v = s or z;  p = c_d, then p = RN(p u + c_k) for k = d - 1 .. 0
#pragma once

#include <cstdint>
#include <vector>

#include "validation/header_reader.h"

namespace outgrad::validation {

/// Which row evaluates which number.
struct Selection {
  int row;
  bool left;  // v is y, not s
  float v;
};

/// The floats v, low <= v <= high, that select `row`; -0 counts as 0.
struct Cell {
  int row;
  bool left;
  float low, high;
};

/// Floats in numeric order as consecutive integers, -0 and +0 both 0; +-inf included.
std::int64_t float_order(float v);
float float_at(std::int64_t order);

float deployed_s(const BackwardHeader& h, float y, bool m);
Selection deployed_selection(const BackwardHeader& h, float y, bool m);
/// Horner's rule on a row {centre, c0, ..., c_degree, ...}.
float deployed_row(std::span<const float> row, int degree, float v);
float deployed_gradient(const BackwardHeader& h, float y, bool m);
float deployed_forward(const ForwardHeader& h, float x);

/// The index of the cell of v before it is reduced to a row: RN(v scale + bias).
float cell_index(float v, float scale, float bias);
/// All cells of s over the reachable [s_min or s(left_y), s_max], then those of the left segment over (left_y, 0]; by bisection over
/// floats, as the index rises with v. Requires check_structure's index conditions; at most `rows` cells of each kind are returned.
std::vector<Cell> backward_cells(const BackwardHeader& h);
/// Cells of x: the core over [tail_x, x_max), the tail (left = true) over [x_min, tail_x).
std::vector<Cell> forward_cells(const ForwardHeader& h);

}  // namespace outgrad::validation
