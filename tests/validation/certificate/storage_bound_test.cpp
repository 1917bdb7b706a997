// T, O and R against brute force over dense arguments, and direct tables whose entries are exact middles.
#include "validation/certificate/storage_bound.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <map>

#include "kernels/formats.h"
#include "tests/validation/certificate/sample_header.h"
#include "validation/certificate/check.h"

namespace outgrad::validation {
namespace {

// RN to `digits` fraction bits in double, which is exact for the values here; no overflow in the ranges
// sampled.
double round_to(double y, int digits, int least_exponent) {
  if (y == 0) return y;
  const double spacing = std::ldexp(1.0, std::max(std::ilogb(y), least_exponent) - digits);
  return std::nearbyint(y / spacing) * spacing;
}

struct Range {
  double low = HUGE_VAL, high = -HUGE_VAL;
};

struct Sample {
  double y, g;
  bool m;
};

std::vector<Sample> samples_between(const ReferenceFunction& f, double a, double b, int count) {
  const Curve& curve = curve_of(f.name);
  std::vector<Sample> samples;
  for (int i = 0; i <= count; ++i) {
    const double x = a + (b - a) * i / count;
    samples.push_back(
        {static_cast<double>(f.f(x)), static_cast<double>(f.d1(x)), !f.masked || curve.right_of_minimum(x)});
  }
  return samples;
}

// Sampled ranges of f' by (stored y, m): inner approximations of the truth. In a parity format the last bit
// of the significand below 0 is 0 for m = 1 and 1 for m = 0, and y lies between a number of the other branch
// and itself.
std::map<std::pair<double, bool>, Range> sampled(const std::vector<Sample>& samples, int digits,
                                                 int least_exponent, bool parity = false) {
  std::map<std::pair<double, bool>, Range> ranges;
  for (const Sample& sample : samples) {
    double y = round_to(sample.y, digits, least_exponent);
    if (parity && sample.y < 0) {
      const double spacing = std::ldexp(1.0, std::max(std::ilogb(sample.y), least_exponent) - digits),
                   units = -sample.y / spacing, whole = std::floor(units);
      const bool odd = std::fmod(whole, 2) != 0;
      y = -spacing * (odd == !sample.m ? whole : whole + 1);
    }
    Range& r = ranges[{y, sample.m}];
    r.low = std::min(r.low, sample.g), r.high = std::max(r.high, sample.g);
  }
  return ranges;
}

std::string failures_of(const BackwardHeader& h) {
  std::string names;
  for (const Finding& finding : prove_storage(h)) {
    if (finding.verdict != Verdict::Holds) names += (names.empty() ? "" : ", ") + finding.name;
  }
  return names;
}

// The regret of a range seen only in part may be off by half of what is missing.
void covers_and_meets_dense_samples(std::initializer_list<const char*> activations, const char* format,
                                    int digits, int least, int count, bool parity, double missing) {
  SampleShape shape;
  for (const char* name : activations) {
    shape.activation = name, shape.format = format;
    BackwardHeader h = make_sample(shape);
    double total = 0, oracle = 0, regret = 0;
    for (const auto& [key, range] :
         sampled(samples_between(reference_function(name), -6, 8, count), digits, least, parity)) {
      const double g = deployed_gradient(h, static_cast<float>(key.first), key.second);
      total = std::max({total, g - range.low, range.high - g});
      oracle = std::max(oracle, (range.high - range.low) / 2);
      regret = std::max(regret, std::fabs(g - (range.low + range.high) / 2));
    }
    const auto proven = prove_storage(h);
    const std::array seen{total, oracle, regret};
    for (size_t k = 0; k < 3; ++k) {
      EXPECT_EQ(proven[k].verdict, Verdict::Holds) << name << proven[k].why;
      EXPECT_GE(proven[k].proven, seen[k] - (k == 2 ? missing : 0)) << name << " " << proven[k].name;
      EXPECT_NEAR(proven[k].proven, seen[k], 2e-4) << name << " " << proven[k].name;
    }
    h.storage.total *= 1 - 0x1p-25, h.storage.oracle *= 1 - 0x1p-25, h.storage.regret *= 1 - 0x1p-25;
    for (const Finding& finding : prove_storage(h)) {
      EXPECT_EQ(finding.verdict, Verdict::Violated) << name << finding.name;
      EXPECT_TRUE(finding.witness.has_value());
    }
  }
}

TEST(Storage, CoversAndMeetsDenseSamples) {
  covers_and_meets_dense_samples({"gelu", "softplus"}, "bf16", 7, -126, 100000, false, 1e-5);
}
TEST(Storage, NightlyOfOthersCoversAndMeetsDenseSamples) {
  covers_and_meets_dense_samples({"silu", "mish"}, "bf16", 7, -126, 100000, false, 1e-5);
}
TEST(Storage, NightlyParityCoversAndMeetsDenseSamples) {
  covers_and_meets_dense_samples({"gelu", "silu"}, "bf16_parity", 7, -126, 200000, true, 1e-4);
  covers_and_meets_dense_samples({"gelu", "silu"}, "f16_parity", 10, -14, 200000, true, 1e-4);
}

// A branch has half as many numbers, and so a larger O than beside a mask.
TEST(Storage, NightlyAParityHeaderSaysNothingOfTheFormatThatCarriesIt) {
  for (const auto& [name, carrier] : {std::pair{"gelu", "bf16"}, {"mish", "f16"}}) {
    const BackwardHeader parity = committed(fmt::format("{}_{}_parity", name, carrier));
    EXPECT_EQ(failures_of(parity), "") << parity.name;
    BackwardHeader other = parity;
    other.format = carrier;
    EXPECT_NE(failures_of(other).find("O"), std::string::npos) << parity.name;
    other = committed(fmt::format("{}_{}", name, carrier));
    EXPECT_GT(parity.storage.oracle, other.storage.oracle) << parity.name;
    other.format = parity.format;
    EXPECT_NE(failures_of(other).find("O"), std::string::npos) << parity.name;
  }
}

// The same y is in blocks of many scales. Where it is the largest number of a code, it stands for more x than
// elsewhere, and its largest error is the one that a header states.
TEST(Storage, NightlyAnInputOfABlockIsThatOfItsWorstScale) {
  SampleShape shape;
  shape.activation = "softplus", shape.format = "mxfp8";
  BackwardHeader h = make_sample(shape);
  const std::vector<Finding> proven = prove_storage(h);
  FoundInput* const inputs[] = {&h.storage.found_total, &h.storage.found_oracle, &h.storage.found_regret};
  for (size_t k = 0; k < std::size(inputs); ++k) {
    ASSERT_EQ(proven[k].verdict, Verdict::Holds) << proven[k].why;
    const std::string& why = proven[k].why;
    EXPECT_TRUE(why.ends_with(", in blocks whose largest |y| is below 2^12")) << why;
    const double y = std::stod(why.substr(why.find("y = ") + 4));
    // 448, the largest number of e4m3, times a power of two
    EXPECT_EQ(std::frexp(y, std::array<int, 1>{}.data()), 0.875) << y;
    *inputs[k] = {true, std::round(std::log2(proven[k].proven) * 100) / 100, y};
  }
  EXPECT_EQ(failures_of(h), "");
  for (FoundInput* input : inputs) input->log2_error -= 0.01;
  EXPECT_EQ(failures_of(h), "T, O, R");
}

// The entry of every code is the middle of the sampled range, for fp8: T is O and half an ulp of the entry.
TableHeader make_table(const std::string& name, const std::string& format,
                       const std::vector<Sample>& coarse_samples, const std::vector<Sample>& fine_samples) {
  TableHeader h;
  const ReferenceFunction& f = reference_function(name);
  h.file = "table.h", h.fit_path = "fit.json", h.spec_sha256 = std::string(64, '0'), h.name = "own_table",
  h.activation = name, h.function = f.function, h.format = format, h.accuracy = "oracle";
  h.entry_format = "f16", h.masked = f.masked, h.index_operations = f.masked ? 12 : 8;
  const int digits = format == "e4m3" ? 3 : 2, least = format == "e4m3" ? -6 : -14,
            most = format == "e4m3" ? 0x7e : 0x7b;
  const auto ranges = sampled(coarse_samples, digits, least), fine = sampled(fine_samples, digits, least);
  const auto magnitude = [&](int k) {
    const int exponent = k >> digits, mantissa = k & ((1 << digits) - 1);
    return std::ldexp(exponent == 0 ? mantissa : mantissa + (1 << digits),
                      std::max(exponent, 1) + least - 1 - digits);
  };
  const auto fill = [&](TableHeader::Segment& s, double sign, bool m, int last, double empty) {
    s = {0, last, static_cast<int>(h.entries.size())};
    double middle = empty;
    for (int k = 0; k <= last; ++k) {
      for (const auto* all : {&fine, &ranges}) {
        const auto found = all->find({sign * magnitude(k), m});
        if (found == all->end()) continue;
        middle = (found->second.low + found->second.high) / 2;
        break;
      }
      h.entries.push_back(kernels::narrow<kernels::F16>(static_cast<float>(middle)).bits);
    }
  };
  fill(h.upper, 1, true, most, 0);
  const int lowest = format == "e4m3" ? 0x2b : 0x36;  // beyond every minimum here
  fill(h.lower, -1, true, f.masked ? lowest : most, 0.5);
  if (f.masked) fill(h.left, -1, false, lowest, 0);
  h.storage = {1, 1, 2};
  const auto proven = prove_storage(h);
  h.storage = {proven[0].proven, proven[1].proven, proven[2].proven};
  return h;
}

TEST(Storage, DirectTablesReachTheLimit) {
  for (const char* name : {"gelu", "silu", "tanh"}) {
    // Beyond the fine samples f' is all but constant.
    const auto coarse = samples_between(reference_function(name), -20, 500, 52000),
               fine = samples_between(reference_function(name), -8, 12, 200000);
    for (const char* format : {"e4m3", "e5m2"}) {
      const TableHeader h = make_table(name, format, coarse, fine);
      const CheckReport report = check_header(parse_header(print_header(h), "table.h"));
      EXPECT_EQ(report.verdict(), Verdict::Holds) << name << " " << to_text(report);
      // half an ulp of f16 below 2 is 2^-11; sampling
      EXPECT_LE(h.storage.total, h.storage.oracle + 0.004) << name << " " << format;
      EXPECT_GT(h.storage.oracle, 0.03) << name;
      const auto fails = [&](const char* what, auto&& damage) {
        TableHeader damaged = h;
        damage(damaged);
        EXPECT_NE(check_header(damaged).verdict(), Verdict::Holds) << name << " " << format << " " << what;
      };
      fails("kT", [](TableHeader& d) { d.storage.total *= 1 - 0x1p-30; });
      fails("kO", [](TableHeader& d) { d.storage.oracle *= 1 - 0x1p-30; });
      fails("kR", [](TableHeader& d) { d.storage.regret *= 1 - 0x1p-30; });
      fails("kIndexOperations", [](TableHeader& d) { --d.index_operations; });
      fails("a segment's base", [](TableHeader& d) { ++d.upper.base, --d.upper.last; });
      fails("kFunction", [](TableHeader& d) { d.function = "x*sigmoid(2*x)"; });
      // The entry of y = 1/2 (tanh: f' there is 3/4), far off.
      fails("an entry", [&](TableHeader& d) {
        d.entries[static_cast<size_t>(d.upper.base) + (d.format == "e4m3" ? 0x30 : 0x38)] = 0x4400;
      });
    }
  }
}

// A class that compares T with O is no stronger than what is known of O from below.
TEST(Storage, NightlyClaimsAboveTheTruthFail) {
  BackwardHeader h = committed("gelu_bf16_stored");
  EXPECT_EQ(failures_of(h), "");
  h.storage.oracle = h.storage.total;
  EXPECT_EQ(failures_of(h), "O");
  for (double StorageClaims::* claim :
       {&StorageClaims::total, &StorageClaims::oracle, &StorageClaims::regret}) {
    BackwardHeader doubled = committed("gelu_bf16");
    doubled.storage.*claim *= 2;
    EXPECT_NE(failures_of(doubled), "");
  }
  // T far above O, and both claims raised to cover it; what was found for T was another error.
  h = committed("gelu_bf16_stored");
  h.storage.found_total = {};
  for (int row = 0; row < h.rows; ++row) h.table.row(row)[1] += row == 3 ? 0.01f : 0.0f;
  h.storage.regret = 1;
  h.storage.total = h.storage.oracle = prove_storage(h)[0].proven * (1 + 0x1p-40);
  EXPECT_EQ(check_structure(h).verdict, Verdict::Holds);
  EXPECT_EQ(failures_of(h), "O, R, class");
}

// The last rows of the left segment, where an absolute bound has nothing to say.
TEST(Storage, NightlyClassInUlpsIsProven) {
  for (const char* name : {"gelu_f16_ulp", "gelu_bf16_ulp"}) {
    BackwardHeader h = committed(name);
    EXPECT_EQ(failures_of(h), "") << name;
    int damaged = 0;
    for (int row = h.left_row; row < h.rows; ++row) {
      constexpr float kSmall = 0x1p-13f;
      const auto words = h.table.row(row);
      if (!(std::fabs(words[1]) < kSmall)) continue;
      for (size_t word = 1; word < words.size(); ++word) words[word] *= 1.5f;
      ++damaged;
    }
    EXPECT_GE(damaged, 10) << name;
    EXPECT_EQ(failures_of(h), "ulp") << name;
  }
}

// A direct table of an expression whose entries are one number on each segment.
TableHeader constant_table(const std::string& function, const std::string& format, bool masked, float right,
                           float left) {
  TableHeader h;
  h.file = "table.h", h.fit_path = "fit.json", h.spec_sha256 = std::string(64, '0'), h.name = "own_table",
  h.activation = "expression";
  h.function = function, h.format = format, h.accuracy = "oracle", h.entry_format = "f16", h.masked = masked,
  h.x_limit = kExpressionEnd;
  h.index_operations = masked ? 12 : 8;
  for (const float entry : {right, right, left})
    h.entries.push_back(kernels::narrow<kernels::F16>(entry).bits);
  h.upper = {0, 0, 0}, h.lower = {0, 0, 1}, h.left = {0, 0, 2};
  return h;
}

// OFP8's e4m3 without saturation: beyond 464 there is only a NaN, so 448 stands for [432, 464] on either
// side, where f' = 600 (1 - (f / 600)^2).
TEST(Storage, TheLargestNumberOfE4m3EndsWhereNanBegins) {
  TableHeader h = constant_table("600*tanh(x)", "e4m3", false, 300, 0);
  constexpr double kRoom = 1 + 1e-9;
  h.storage = {300 * kRoom, 28672 / 1200.0 * kRoom, 300 * kRoom};  // O = (464^2 - 432^2) / 1200
  const std::vector<Finding> findings = prove_storage(h);
  EXPECT_NEAR(findings[1].proven, 28672 / 1200.0, 1e-12);
  EXPECT_NE(findings[1].why.find("e4m3 does not store as NaN"), std::string::npos) << findings[1].why;
  EXPECT_EQ(findings[1].verdict, Verdict::Holds) << findings[1].why;
  // From -448 to -0 and from +0 to 448.
  EXPECT_EQ(findings[1].why.substr(0, findings[1].why.find(' ')), "254");
}

// -0 and +0 stand for the halves of such a function; f' is 0 at their far ends and 1e-40 at x = 0, which is
// found however small f is beside it.
TEST(Storage, TheZeroOfATinyFunctionIsFound) {
  TableHeader h = constant_table("1e-40*tanh(x)", "e4m3", false, 0, 0);
  h.storage = {1e-40 * (1 + 1e-9), 5e-41 * (1 + 1e-9), 5e-41 * (1 + 1e-9)};
  for (const Finding& finding : prove_storage(h))
    EXPECT_EQ(finding.verdict, Verdict::Holds) << finding.name << ": " << finding.why;
}

// f < 0 on the whole left tail, though it oscillates there: +0 stands for nothing left of the minimum. The
// entry of all other codes is 10 below their f', which are negative.
TEST(Storage, AnEnclosureBeyondZeroStandsForNoX) {
  TableHeader h = constant_table("x*normal_cdf(x)+0.05*sin(3*x)*exp(-x^2/2)", "e4m3", true, 0.5, -10);
  h.storage = {10, 1, 10};
  const Finding regret = prove_storage(h)[2];
  EXPECT_LT(regret.proven, 9.9985) << regret.why;  // 10 less the middle of what -0 stands for, [-0.0036, 0]
  EXPECT_GT(regret.proven, 9.998) << regret.why;
}

// y* is the number -1 itself, at x = 0: left of it f is above, and -1.0078125, which ends at -1 in a parity
// format, stands for nothing. Of the odd codes there are those of (-1, 0), of the even ones those of [-1,
// -0].
TEST(Storage, AMinimumThatIsANumberOfTheFormat) {
  TableHeader h = constant_table("-exp(-x^2)", "bf16_parity", true, 0, 0);
  h.storage = {1, 1, 1};
  const std::vector<Finding> findings = prove_storage(h);
  const int odd = (0xbf7f - 0x8001) / 2 + 1, even = (0xbf80 - 0x8000) / 2 + 1;
  h.storage = {findings[0].proven, findings[1].proven, findings[2].proven};
  const std::vector<Finding> again = prove_storage(h);
  for (size_t k = 0; k < 3; ++k) {
    EXPECT_EQ(again[k].verdict, Verdict::Holds) << again[k].why;
    EXPECT_EQ(again[k].why.substr(0, again[k].why.find(' ')), std::to_string(odd + even));
  }
}

// y* is midway between two numbers of bf16. Whether the lower one is stored is told where x* is a number;
// elsewhere it is open, and nobody can name an x.
TEST(Storage, WithoutAnXNothingIsViolated) {
  const auto table = [](const std::string& function, std::uint32_t code) {
    TableHeader h = constant_table(function, "bf16", true, 0, 0);
    h.entries.assign(2, 0);
    h.entries.resize(2 + 0x3f82, 0);
    h.left = {0, 0x3f81, 2};
    h.entries[2 + (code & 0x7fff)] = kernels::narrow<kernels::F16>(-5.0f).bits;
    h.storage = {0.875, 0.5, 0.875};
    return prove_storage(h);
  };
  const std::string exact = "-1.00390625*exp(-x^2)", open = "-1.00390625*exp(-(x-0.1)^2)";
  const double steepest = 1.00390625 * std::sqrt(2 / std::exp(1.0));
  EXPECT_NEAR(table(exact, 0xbf81)[0].proven, steepest, 1e-9);  // a tie goes to the even -1
  for (const size_t k : {0, 2}) {
    EXPECT_EQ(table(open, 0xbf81)[k].verdict, Verdict::Undecided) << table(open, 0xbf81)[k].why;
    EXPECT_FALSE(table(open, 0xbf81)[k].witness);
    const Finding violated = table(open, 0xbf80)[k];
    EXPECT_EQ(violated.verdict, Verdict::Violated) << violated.why;
    ASSERT_TRUE(violated.witness);
    const double x = violated.witness->at, f = -1.00390625 * std::exp(-(x - 0.1) * (x - 0.1)),
                 slope = -2 * (x - 0.1) * f;
    EXPECT_LT(x, 0.1);
    EXPECT_GT(f, -1.00390625 - 1e-15);
    EXPECT_LT(f, -0.998046875 + 1e-15);
    EXPECT_NEAR(violated.witness->want, slope, 1e-9);
    EXPECT_GT(std::fabs(-5 - slope), 0.875);
  }
}

// All of f is one code of e4m3, or all that lies left of a minimum: x at the steepest place and at the ends
// show what is wrong.
TEST(Storage, ACodeOfAWholeBranchIsRefutedByItsX) {
  TableHeader lifted = constant_table("tanh(x)+20", "e4m3", false, 0, 0);
  lifted.storage = {0x1p-43, 0x1p-43, 0x1p-43};
  const std::vector<Finding> findings = prove_storage(lifted);
  for (size_t k = 0; k < 3; ++k) {
    EXPECT_EQ(findings[k].verdict, Verdict::Violated) << findings[k].why;
    ASSERT_TRUE(findings[k].witness);
    EXPECT_NEAR(findings[k].proven, k == 0 ? 1 : 0.5, 1e-9);
  }
  EXPECT_NEAR(findings[0].witness->at, 0, 1e-6);
  constexpr double kRoom = 1 + 1e-9;
  lifted.storage = {kRoom, 0.5 * kRoom, 0.5 * kRoom};
  for (size_t k = 0; k < 3; ++k)
    EXPECT_EQ(prove_storage(lifted)[k].verdict, Verdict::Holds) << prove_storage(lifted)[k].why;

  TableHeader steep = constant_table("x*sigmoid(300*x)", "e4m3", true, 0.5, 0);
  steep.storage = {0.6, 0.5, 0.6};
  const Finding regret = prove_storage(steep)[2];
  steep.storage.regret = regret.proven * (1 - 0x1p-30);
  EXPECT_EQ(prove_storage(steep)[2].verdict, Verdict::Violated);
}

// What is drawn is what is proven: the largest error of the list is T, and half the longest range O.
TEST(StoredGradients, HaveTheClaimsAsTheirExtremes) {
  for (const char* name : {"gelu_bf16", "softplus_f16"}) {
    const BackwardHeader h = committed(name);
    double total = 0, oracle = 0;
    for (const StoredGradient& p : stored_gradients(h)) {
      ASSERT_LE(p.least, p.most) << p.y;
      total = std::max({total, p.g - p.least, p.most - p.g});
      oracle = std::max(oracle, (p.most - p.least) / 2);
    }
    EXPECT_NEAR(total, h.storage.total, h.storage.total * 0x1p-12) << name;
    EXPECT_NEAR(oracle, h.storage.oracle, h.storage.oracle * 0x1p-12) << name;
  }
  EXPECT_TRUE(stored_gradients(committed("gelu_f32")).empty());
}

}  // namespace
}  // namespace outgrad::validation
