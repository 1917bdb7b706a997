// Damage: whenever a bound no longer holds, the checker must say so; whether it still holds is decided here
// by dense sampling.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numbers>

#include "kernels/host/errors.h"
#include "tests/validation/certificate/sample_header.h"
#include "validation/certificate/check.h"
#include "validation/certificate/fit_bound.h"
#include "validation/exact/oracle.h"

namespace outgrad::validation {
namespace {

const BackwardHeader& sample(bool has_left) {
  static const BackwardHeader bf16 = make_sample("bf16", 6, 16, false), f32 = make_sample("f32", 6, 32, true);
  return has_left ? f32 : bf16;
}

// The sample headers, one of another activation, and the committed defaults.
std::vector<BackwardHeader> subjects() {
  std::vector<BackwardHeader> headers{sample(false), sample(true)};
  SampleShape shape;
  shape.activation = "silu", shape.has_breaks = true, shape.degree = 5, shape.rows = 10,
  shape.scheme = kEstrin, shape.format = "f32", shape.has_right = true;
  headers.push_back(make_sample(shape));
  for (const char* name : {"gelu_f32", "gelu_f16", "gelu_bf16"}) headers.push_back(committed(name));
  return headers;
}

// Every coefficient of every row, one ulp up and one down. A row far below the header's bound survives an ulp
// rightly, so each row is held both to the header's claim and to its own: just above its largest error, where
// an ulp does break it.
TEST(Mutation, NightlyEveryCoefficientByOneUlp) {
  for (const BackwardHeader& h : subjects()) {
    int broken = 0, caught = 0;
    for (const Cell& cell : backward_cells(h)) {
      const std::vector<CurvePoint> points = points_of_cell(h, cell, 60);
      const double own = prove_cell(h, cell, h.bound_a).proven * (1 + 1e-9);
      ASSERT_EQ(prove_cell(h, cell, own).verdict, Verdict::Holds) << h.name << " row " << cell.row;
      for (int word = 1; word < h.table.words; ++word) {
        for (const float towards : {-HUGE_VALF, HUGE_VALF}) {
          BackwardHeader damaged = h;
          float& c = damaged.table.row(cell.row)[word];
          c = std::nextafter(c, towards);
          const double seen = largest_error(damaged, cell, points);
          for (const double claim : {h.bound_a, own}) {
            const SupNorm result = prove_cell(damaged, cell, claim);
            if (seen > claim * (1 + 1e-12)) {
              ++broken;
              EXPECT_NE(result.verdict, Verdict::Holds) << h.name << " row " << cell.row << " word " << word;
            }
            caught += result.verdict != Verdict::Holds;
            EXPECT_EQ(result.verdict == Verdict::Holds, result.proven <= claim);
          }
        }
      }
    }
    // the test has something to notice, also where 16 bits leave an ulp of fp32 little to say
    EXPECT_GT(broken, h.rows / 2) << h.name;
    EXPECT_GE(caught, broken) << h.name;
  }
}

// Changes that break the mathematics, not the syntax. Each must fail as a whole header, read back from its
// text.
TEST(Mutation, EveryStructuralDamageFails) {
  using Damage = std::function<void(BackwardHeader&)>;
  const auto negate_odd = [](BackwardHeader& h) {
    for (int row = 0; row < h.rows; ++row) {
      for (int word = 2; word < h.table.words; word += 2) h.table.row(row)[word] = -h.table.row(row)[word];
    }
  };
  const auto middle_row = [](const BackwardHeader& h) { return (h.has_left ? h.rows / 2 : h.rows) / 2; };
  const std::map<std::string, Damage> damages{
      {"kSMin's sign", [](BackwardHeader& h) { h.s_min = -h.s_min; }},
      {"kYMax's sign", [](BackwardHeader& h) { h.y_max = -h.y_max; }},
      {"a branch's sign: s negated",
       [&](BackwardHeader& h) {
         negate_odd(h);
         h.index_scale = -h.index_scale;
       }},
      {"a branch's sign: u negated", negate_odd},
      {"g negated",
       [](BackwardHeader& h) {
         for (float& v : h.table.values) v = -v;
       }},
      {"kYHi's sign", [](BackwardHeader& h) { h.y_hi = -h.y_hi; }},
      {"kYHi by 2^-8", [](BackwardHeader& h) { h.y_hi += 0x1p-8f; }},
      {"kTMin", [](BackwardHeader& h) { h.t_min = 0x1p-6f; }},
      {"kTMin negative", [](BackwardHeader& h) { h.t_min = -h.t_min; }},
      {"kIndexScale by 1%", [](BackwardHeader& h) { h.index_scale *= 1.01f; }},
      {"kIndexBias by one", [](BackwardHeader& h) { h.index_bias += 1; }},
      {"kIndexBias below 2^23", [](BackwardHeader& h) { h.index_bias -= static_cast<float>(2 * h.rows); }},
      {"two rows swapped",
       [&](BackwardHeader& h) {
         // Neighbours may continue each other within the bound, these two cannot.
         const auto row = h.table.row(middle_row(h));
         std::swap_ranges(row.begin(), row.end(), h.table.row(0).begin());
       }},
      {"a row of zeros", [&](BackwardHeader& h) { std::ranges::fill(h.table.row(middle_row(h)), 0.0f); }},
      {"a centre", [&](BackwardHeader& h) { h.table.row(middle_row(h))[0] += 0.01f; }},
      {"a coefficient's sign", [&](BackwardHeader& h) { h.table.row(middle_row(h))[2] *= -1; }},
      {"the right limit", [](BackwardHeader& h) { h.y_max *= 0.998f; }},
      {"kOperations", [](BackwardHeader& h) { --h.operations; }},
      {"the activation", [](BackwardHeader& h) { h.activation = "silu"; }},
      {"kA halved", [](BackwardHeader& h) { h.bound_a /= 2; }},
      {"kK halved", [](BackwardHeader& h) { h.bound_k /= 2; }},
      {"kB 2^-30", [](BackwardHeader& h) { h.bound_b = 0x1p-30; }},
      {"kA zero", [](BackwardHeader& h) { h.bound_a = 0; }},
      {"kK negative", [](BackwardHeader& h) { h.bound_k = -h.bound_k; }},
  };
  for (const bool has_left : {false, true}) {
    ASSERT_EQ(check_header(parse_header(print_header(sample(has_left)), "sample.h")).verdict(),
              Verdict::Holds);
    for (const auto& [what, damage] : damages) {
      BackwardHeader h = sample(has_left);
      damage(h);
      if (what == "kSMin's sign" && has_left) continue;  // not part of the sequence
      EXPECT_NE(check_header(parse_header(print_header(h), "sample.h"), Findings::to_failure).verdict(),
                Verdict::Holds)
          << what << (has_left ? ", f32" : ", bf16");
    }
  }
  for (const auto& [what, damage] : std::map<std::string, Damage>{
           {"kLeftY's sign", [](BackwardHeader& h) { h.left_y = -h.left_y; }},
           {"kLeftY above the first row", [](BackwardHeader& h) { h.left_y = -0.15f; }},
           {"kLeftRow", [](BackwardHeader& h) { ++h.left_row; }},
           {"kLeftKnee", [](BackwardHeader& h) { h.left_knee += 2; }},
           {"kLeftBase", [](BackwardHeader& h) { --h.left_base; }},
           {"the left segment dropped", [](BackwardHeader& h) { h.has_left = false; }},
       }) {
    BackwardHeader h = sample(true);
    damage(h);
    EXPECT_NE(check_header(h, Findings::to_failure).verdict(), Verdict::Holds) << what;
  }
}

double largest_relative_error(const ForwardHeader& h, const Cell& cell) {
  GeluOracle oracle;
  const auto row = cell.left ? h.tail.row(cell.row) : h.table.row(cell.row);
  const int degree = cell.left ? h.tail_degree : h.degree;
  double largest = 0;
  constexpr int kPoints = 40;
  for (int i = 0; i <= kPoints; ++i) {
    const double x = cell.low + (static_cast<double>(cell.high) - cell.low) *
                                    (0.5 - 0.5 * std::cos(std::numbers::pi * i / kPoints));
    if (x == 0) continue;
    double p = 0;
    for (int word = degree + 1; word >= 1; --word) p = p * (x - row[0]) + row[word];
    largest =
        std::max(largest, std::fabs(p * (cell.left ? row[degree + 2] : 1.0) / oracle.value_bounds(x).lo - 1));
  }
  return largest;
}

// Every eighth row, each coefficient, up and down, against the header's claim and the row's own.
TEST(Mutation, NightlyForwardCoefficientByOneUlp) {
  const ForwardHeader h = committed<ForwardHeader>("gelu_forward");
  const std::vector<Cell> cells = forward_cells(h);
  int broken = 0;
  for (size_t k = 0; k < cells.size(); k += 8) {
    const Cell& cell = cells[k];
    const double own = prove_cell(h, cell, h.bound_a).proven * (1 + 1e-9);
    const int words = (cell.left ? h.tail_degree : h.degree) + 2;
    for (int word = 1; word < words; ++word) {
      for (const float towards : {-HUGE_VALF, HUGE_VALF}) {
        ForwardHeader damaged = h;
        float& c = (cell.left ? damaged.tail : damaged.table).row(cell.row)[word];
        c = std::nextafter(c, towards);
        const double seen = largest_relative_error(damaged, cell);
        for (const double claim : {h.bound_a, own}) {
          if (!(seen > claim * (1 + 1e-12))) continue;
          ++broken;
          EXPECT_NE(prove_cell(damaged, cell, claim).verdict, Verdict::Holds)
              << (cell.left ? "tail" : "core") << " row " << cell.row << " word " << word;
        }
      }
    }
  }
  EXPECT_GT(broken, 10);
}

TEST(Mutation, ForwardDamageFails) {
  using Damage = std::function<void(ForwardHeader&)>;
  for (const auto& [what, damage] : std::map<std::string, Damage>{
           {"kXStar up", [](ForwardHeader& h) { h.x_star = std::nextafter(h.x_star, 0.0f); }},
           {"kXStar down", [](ForwardHeader& h) { h.x_star = std::nextafter(h.x_star, -1.0f); }},
           {"kXMax", [](ForwardHeader& h) { h.x_max = 4; }},
           {"kXMin", [](ForwardHeader& h) { h.x_min = -14; }},
           {"kTailX", [](ForwardHeader& h) { h.tail_x -= 0.5f; }},
           {"kIndexBias", [](ForwardHeader& h) { ++h.index_bias; }},
           {"kTailIndexScale", [](ForwardHeader& h) { h.tail_index_scale *= 1.125f; }},
           {"a tail scale", [](ForwardHeader& h) { h.tail.row(100)[h.tail_degree + 2] *= 2; }},
           {"a tail scale of no power of two",
            [](ForwardHeader& h) { h.tail.row(100)[h.tail_degree + 2] *= 1.5f; }},
           {"tail rows swapped",
            [](ForwardHeader& h) {
              std::swap_ranges(h.tail.row(80).begin(), h.tail.row(80).end(), h.tail.row(81).begin());
            }},
           {"kA lowered by 2%", [](ForwardHeader& h) { h.bound_a *= 0.98; }},
           {"f(-0) = +0",
            [](ForwardHeader& h) {
              for (int row = 0; row < h.rows; ++row) {
                if (h.table.row(row)[0] == 0) h.table.row(row)[1] = 0.0f;
              }
            }},
       }) {
    ForwardHeader h = committed<ForwardHeader>("gelu_forward");
    damage(h);
    EXPECT_NE(check_header(h, Findings::to_failure).verdict(), Verdict::Holds) << what;
  }
}

// What only some f32 forwards have: a tail for an f that fades, a limit instead of x at the right, rows that
// are compensated, and what is added to c1.
TEST(Mutation, DamageOfAnF32ForwardsFormFails) {
  using Damage = std::function<void(ForwardHeader&)>;
  const auto masked = [](ForwardHeader& h) { h.masked = !h.masked; };
  const auto levels = [](ForwardHeader& h) { h.levels = !h.levels; };
  const auto plus_zero = [](ForwardHeader& h) {
    for (int row = 0; row < h.rows; ++row) {
      if (h.table.row(row)[0] == 0) h.table.row(row)[1] = 0.0f;
    }
  };
  const auto no_tail = [](ForwardHeader& h) { h.has_tail = false, h.x_min = h.tail_x; };
  const auto x_min_inwards = [](ForwardHeader& h) { h.x_min *= 0.98f; };
  const auto lower_bound = [](ForwardHeader& h) { h.bound_a *= 0.98; };
  // The first float whose cell is the one before the first: it would be answered by the last row.
  const auto tail_beyond_first_row = [](ForwardHeader& h) {
    const float first = cell_index(h.tail_x, h.index_scale, h.index_bias);
    while (cell_index(h.tail_x, h.index_scale, h.index_bias) == first)
      h.tail_x = std::nextafter(h.tail_x, -100.0f);
  };
  const auto coefficient = [](int row, int word) {
    return [=](ForwardHeader& h) { h.table.row(row)[word] *= 1 + 0x1p-18f; };
  };
  const auto tail_coefficient = [](ForwardHeader& h) { h.tail.row(100)[2] *= 1.001f; };
  std::string last;
  for (const auto& [name, what, damage] : std::vector<std::tuple<std::string, const char*, Damage>>{
           {"silu_forward", "kXStar left out", masked},
           {"silu_forward", "kXStar up", [](ForwardHeader& h) { h.x_star = std::nextafter(h.x_star, 0.0f); }},
           {"silu_forward", "kXStar down",
            [](ForwardHeader& h) { h.x_star = std::nextafter(h.x_star, -2.0f); }},
           {"silu_forward", "kXMin", x_min_inwards},
           {"silu_forward", "kXMax", [](ForwardHeader& h) { h.x_max = 16.5f; }},
           {"silu_forward", "kLevels", levels},
           {"silu_forward", "no tail", no_tail},
           {"silu_forward", "kTailX", tail_beyond_first_row},
           {"silu_forward", "kSlopeLow", [](ForwardHeader& h) { h.slope_low = 0x1p-24f; }},
           {"silu_forward", "kCompensated of degree 1", [](ForwardHeader& h) { h.degree = 1; }},
           {"silu_forward", "the activation", [](ForwardHeader& h) { h.activation = "swish"; }},
           {"silu_forward", "kTailIndexBias", [](ForwardHeader& h) { ++h.tail_index_bias; }},
           {"silu_forward", "a tail scale",
            [](ForwardHeader& h) { h.tail.row(100)[h.tail_degree + 2] *= 2; }},
           {"silu_forward", "c1 of a tail row", tail_coefficient},
           {"silu_forward", "c0 of a row", coefficient(3, 1)},
           {"silu_forward", "f(-0) = +0", plus_zero},
           {"silu_forward", "kA lowered by 2%", lower_bound},
           {"mish_forward", "kSlopeLow left out", [](ForwardHeader& h) { h.slope_low = 0; }},
           {"mish_forward", "kSlopeLow turned round", [](ForwardHeader& h) { h.slope_low = -h.slope_low; }},
           {"mish_forward", "kSlopeLow doubled", [](ForwardHeader& h) { h.slope_low *= 2; }},
           {"mish_forward", "kSlopeLow of no compensated rows",
            [](ForwardHeader& h) { h.compensated = false; }},
           {"mish_forward", "c1 of a row", coefficient(3, 2)},
           {"mish_forward", "kXMin", x_min_inwards},
           {"sigmoid_forward", "kLevels left out", levels},
           {"sigmoid_forward", "kXStar given", masked},
           {"sigmoid_forward", "kXMax", [](ForwardHeader& h) { h.x_max = 16; }},
           {"sigmoid_forward", "kXMin", x_min_inwards},
           {"sigmoid_forward", "c1 of a tail row", tail_coefficient},
           {"softplus_forward", "kXMax", [](ForwardHeader& h) { h.x_max = 13; }},
           {"softplus_forward", "kLevels", levels},
           {"tanh_forward", "kLevels left out", levels},
           {"tanh_forward", "kXMin", [](ForwardHeader& h) { h.x_min = -8; }},
           {"tanh_forward", "kXMax", [](ForwardHeader& h) { h.x_max = 8; }},
           {"tanh_forward", "the left limit", coefficient(0, 1)},
           {"tanh_forward", "kIndexBias", [](ForwardHeader& h) { ++h.index_bias; }},
           {"tanh_forward", "f(-0) = +0", plus_zero},
           {"tanh_forward", "kA lowered by 2%", lower_bound},
           {"elu_forward", "kXMax", [](ForwardHeader& h) { h.x_max = 0.25f; }},
           {"elu_forward", "kLevels", levels},
           {"elu_forward", "kXMin", [](ForwardHeader& h) { h.x_min = -16; }},
           {"elu_forward", "A of ELU", [](ForwardHeader& h) { h.function = "0x1.8p+0*(exp(x)-1)"; }},
           {"elu_forward", "c2 of a row", coefficient(30, 3)},
       }) {
    ForwardHeader h = committed<ForwardHeader>(name);
    if (name != last) {
      const CheckReport sound = check_header(h);
      EXPECT_EQ(sound.verdict(), Verdict::Holds) << to_text(sound);
      last = name;
    }
    damage(h);
    EXPECT_NE(check_header(h, Findings::to_failure).verdict(), Verdict::Holds) << name << ": " << what;
  }
}

TEST(Mutation, NightlyRoundedForwardDamageFails) {
  using Damage = std::function<void(RoundedForwardHeader&)>;
  for (const char* name : {"gelu_forward_f16", "gelu_forward_bf16", "silu_forward_f16"}) {
    EXPECT_EQ(check_header(committed<RoundedForwardHeader>(name)).verdict(), Verdict::Holds) << name;
    for (const auto& [what, damage] : std::map<std::string, Damage>{
             {"kFormat", [](RoundedForwardHeader& h) { h.format = h.format == "f16" ? "bf16" : "f16"; }},
             {"kXStar up", [](RoundedForwardHeader& h) { h.x_star = std::nextafter(h.x_star, 0.0f); }},
             {"kXStar down", [](RoundedForwardHeader& h) { h.x_star = std::nextafter(h.x_star, -1.0f); }},
             {"kXMax", [](RoundedForwardHeader& h) { h.x_max = 4.5f; }},
             {"kXMin", [](RoundedForwardHeader& h) { h.x_min *= 0.98f; }},
             {"kTie", [](RoundedForwardHeader& h) { h.tie *= 2; }},
             {"kIndexBias", [](RoundedForwardHeader& h) { ++h.index_bias; }},
             {"kIndexScale", [](RoundedForwardHeader& h) { h.index_scale *= 1.125f; }},
             {"kCoreFirst", [](RoundedForwardHeader& h) { --h.core_first; }},
             {"kCoreRows", [](RoundedForwardHeader& h) { h.core_rows /= 2; }},
             {"kQuarticShift", [](RoundedForwardHeader& h) { ++h.quartic_shift; }},
             {"rows swapped",
              [](RoundedForwardHeader& h) {
                std::swap_ranges(h.table.row(5).begin(), h.table.row(5).end(), h.table.row(6).begin());
              }},
             {"c1 of a row", [](RoundedForwardHeader& h) { h.table.row(h.core_first + 14)[1] *= 1.001f; }},
             {"kA lowered by 2%", [](RoundedForwardHeader& h) { h.bound_a *= 0.98; }},
             {"kCoreA lowered by 2%", [](RoundedForwardHeader& h) { h.bound_core *= 0.98; }},
         }) {
      RoundedForwardHeader h = committed<RoundedForwardHeader>(name);
      damage(h);
      EXPECT_NE(check_header(h, Findings::to_failure).verdict(), Verdict::Holds) << name << ": " << what;
    }
  }
}

// kA is about every x from kXMin on: beyond kXMax p is the 1 (plain: the v) that the text names, whatever 16
// bits would round away.
TEST(Mutation, AForwardsEndIsWhatTheTextSays) {
  for (const char* name : {"silu_forward_f16", "softplus_forward_f16", "elu_forward_f16"}) {
    const auto sound = committed<RoundedForwardHeader>(name);
    EXPECT_EQ(check_structure(sound).verdict, Verdict::Holds) << name;
    const int last = sound.core_first + sound.core_rows - 1;
    for (const int word : {0, sound.plain ? 1 : 0}) {
      RoundedForwardHeader h = sound;
      float& c = h.table.row(last)[word];
      c *= 1 - 0x1p-14f;
      EXPECT_EQ(check_structure(h).verdict, Verdict::Violated) << name << ": c" << word;
    }
  }
}

// What only some forwards have.
TEST(Mutation, NightlyDamageOfAForwardsFormFails) {
  using Damage = std::function<void(RoundedForwardHeader&)>;
  const auto no_end = [](RoundedForwardHeader& h) { h.end = std::numeric_limits<float>::infinity(); };
  const auto no_pull = [](RoundedForwardHeader& h) { h.pull = 0; };
  const auto masked = [](RoundedForwardHeader& h) { h.masked = !h.masked; };
  const auto plain = [](RoundedForwardHeader& h) { h.plain = !h.plain; };
  for (const auto& [name, what, damage] : std::vector<std::tuple<const char*, const char*, Damage>>{
           {"mish_forward_f16", "kPull left out", no_pull},
           {"mish_forward_f16", "kPull turned round", [](RoundedForwardHeader& h) { h.pull = -h.pull; }},
           {"mish_forward_f16", "kPull too large", [](RoundedForwardHeader& h) { h.pull *= 2; }},
           {"sigmoid_forward_f16", "kPlain", plain},
           {"sigmoid_forward_f16", "kEnd left out", no_end},
           {"sigmoid_forward_f16", "kXStar given", masked},
           {"softplus_forward_bf16", "kEnd left out", no_end},
           {"softplus_forward_bf16", "kEnd is kXMax", [](RoundedForwardHeader& h) { h.end = h.x_max; }},
           {"tanh_forward_bf16", "kEnd left out", no_end},
           {"tanh_forward_bf16", "kEnd below kXMax", [](RoundedForwardHeader& h) { h.end = 2; }},
           {"tanh_forward_bf16", "kXMin", [](RoundedForwardHeader& h) { h.x_min = -3; }},
           {"elu_forward_bf16", "kXMax", [](RoundedForwardHeader& h) { h.x_max = 1; }},
           {"silu_forward_bf16", "kXStar left out", masked},
       }) {
    RoundedForwardHeader h = committed<RoundedForwardHeader>(name);
    damage(h);
    EXPECT_NE(check_header(h, Findings::to_failure).verdict(), Verdict::Holds) << name << ": " << what;
  }
}

TEST(Mutation, WrongShapeIsNotAHeader) {
  const std::string text = print_header(sample(false));
  for (const char* line : {"kDegree = 5", "kDegree = 7", "kRows = 8"}) {
    std::string damaged = text;
    const std::string name(line, std::string_view(line).find(' '));
    const size_t at = damaged.find("int " + name + " = ") + 4;
    damaged.replace(at, damaged.find(';', at) - at, line);
    EXPECT_THROW(parse_header(damaged, "sample.h"), kernels::SpecError) << line;
  }
  EXPECT_THROW(parse_header(text.substr(0, text.size() / 2), "sample.h"), kernels::SpecError);
}

}  // namespace
}  // namespace outgrad::validation
