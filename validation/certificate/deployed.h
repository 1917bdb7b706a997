// The deployed operation sequence on one fp32 number, transcribed from the format of the generated headers
// rather than from kernels/eval.h, and the cells into which its index arithmetic cuts the coordinate.
//
//   y <- min(y, y_max)
//   masked:   t = max(RN(RN(y - y_hi) - y_lo), t_min)
//             s = +-RN(sqrt t), without a left segment not below s_min;    v = s
//   unmasked: v = max(y, y_min)
//   row: low bits of RN(v scale + bias), or the number of break points that v has reached
//   right segment (v >= right_s; right_both: |v| >= right_s): v <- y in that row
//   left segment (m = 0, y > left_y): v = min(y, -0), row from the exponent of v and its first left_bits
//     fraction bits
//   u = RN(v - centre), or v where the rows are not centred; then the polynomial by
//     Horner     p = c_d, p = RN(p u + c_k) for k = d - 1 .. 0; with two words the last step is
//                RN(c_0 + RN(p u + low part of c_0))
//     Estrin     pairs RN(c_(2j+1) u + c_2j), joined pairwise by the powers w = RN(u u), RN(w w), ...; an odd
//                one out is carried along
//     even/odd   w = RN(u u); the even and the odd coefficients by Horner in w; RN(odd u + even)
//     compensated (a forward's core)   h = RN(c_1 u + c_0), l = RN(c_1 u + RN(c_0 - h)); t by Horner from c_d
//                to c_2; r = RN(t u), or RN(t u + slope_low) where there is one; RN(h + RN(r u + l))
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "validation/certificate/header_reader.h"
#include "validation/exact/mp.h"

namespace outgrad::validation {

/// What a row's polynomial is evaluated at.
enum class Coordinate { root, output, left_output };  // s; y itself; y on the left segment

/// Which row evaluates which number.
struct Selection {
  int row;
  Coordinate coordinate;
  float v;
};

/// The floats v, low <= v <= high, that select `row`; -0 counts as 0. Cells of the right segment are in s as
/// well, though their row is evaluated at y: `evaluated` says at what.
struct Cell {
  int row;
  bool left;
  float low, high;
  Coordinate evaluated = Coordinate::root;
};

/// Floats in numeric order as consecutive integers, -0 and +0 both 0; +-inf included.
std::int64_t float_order(float v);
float float_at(std::int64_t order);

/// Whether a row is evaluated at y where the deployed s is v.
bool in_right_segment(const BackwardHeader& h, float v);
/// Masked: s, clamped. Unmasked: y, clamped.
float deployed_s(const BackwardHeader& h, float y, bool m);
/// The |s| of a masked header in exact arithmetic, not clamped to s_min.
Interval exact_root(const BackwardHeader& h, float y);
/// The least and the greatest s (unmasked: y) that select rows outside the left segment.
std::pair<float, float> core_range(const BackwardHeader& h);
/// How many steps the left segment has, each with a row of its own if there are as many.
int left_steps(const BackwardHeader& h);
Selection deployed_selection(const BackwardHeader& h, float y, bool m);
/// The polynomial of a row {centre, c0, ..., c_degree, ...}; the schemes are those of kScheme.
inline constexpr int kHorner = 0, kEstrin = 1, kEvenOdd = 2;
float deployed_row(std::span<const float> row, int degree, float v, int scheme = kHorner, bool centred = true,
                   bool two_word = false);
/// What the selected row gives.
float deployed_row(const BackwardHeader& h, const Selection& selection);
float deployed_gradient(const BackwardHeader& h, float y, bool m);
float deployed_forward(const ForwardHeader& h, float x);

float deployed_forward(const RoundedForwardHeader& h, float x);
/// c0, ..., c4 of a row.
std::array<float, 5> coefficients_of(const RoundedForwardHeader& h, int row);

/// The index of the cell of v before it is reduced to a row: RN(v scale + bias).
float cell_index(float v, float scale, float bias);
/// All cells of s over the reachable [s_min or s(left_y), s(y_max)] (unmasked: of y over [y_min, y_max]),
/// then those of the left segment over (left_y, 0]; by bisection over floats, as the index rises with v. A
/// cell that the right segment divides is two. Requires check_structure's index conditions; at most `rows`
/// cells of each kind are returned, before that division.
std::vector<Cell> backward_cells(const BackwardHeader& h);
/// The entry of a direct table for a stored y, NaN apart. `code`: the bits of y in the header's format.
float deployed_entry(const TableHeader& h, std::uint32_t code, bool m);
/// Cells of x: the core over [tail_x, x_max), the tail (left = true) over [x_min, tail_x). Without a tail the
/// core begins at x_min, and with levels x_max is in it.
std::vector<Cell> forward_cells(const ForwardHeader& h);
/// Cells of x over [x_min, x_max].
std::vector<Cell> forward_cells(const RoundedForwardHeader& h);

}  // namespace outgrad::validation
