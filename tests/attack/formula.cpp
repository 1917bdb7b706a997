// A parser by recursive descent into postfix steps, and the chain rule over them.
#include "tests/attack/formula.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/host/errors.h"

namespace outgrad::validation::gate {

namespace {

constexpr int kDeepest = 64, kLargestExponent = 64;
constexpr size_t kMostOperations = 512;

double complementary_error(double x) { return std::erfc(x); }
Real complementary_error(const Real& x) {
  Real result;
  mpfr_erfc(result.backend().data(), x.backend().data(), MPFR_RNDN);
  return result;
}
double error_function(double x) { return std::erf(x); }
Real error_function(const Real& x) {
  Real result;
  mpfr_erf(result.backend().data(), x.backend().data(), MPFR_RNDN);
  return result;
}
double log_one_plus(double x) { return std::log1p(x); }
Real log_one_plus(const Real& x) {
  Real result;
  mpfr_log1p(result.backend().data(), x.backend().data(), MPFR_RNDN);
  return result;
}
template <class T>
T pi() {
  return static_cast<T>(boost::math::constants::pi<Real>());
}

template <class T>
T sigmoid(const T& x) {
  using std::exp;
  return T(1) / (T(1) + exp(T(-x)));
}

template <class T>
T power(const T& x, int n) {
  T result = 1, square = n < 0 ? T(1) / x : x;
  for (int left = std::abs(n); left > 0; left /= 2) {
    if (left % 2 == 1) result *= square;
    square *= square;
  }
  return result;
}

}  // namespace

class FormulaParser {
 public:
  FormulaParser(std::string_view text, std::vector<Formula::Step>& steps) : text_(text), steps_(steps) {
    sum(0);
    if (at_ != text_.size()) fail("unexpected character");
  }

 private:
  using Op = Formula::Op;

  [[noreturn]] void fail(const char* why) const {
    throw kernels::SpecError(fmt::format("column {}: {}", at_ + 1, why));
  }
  char peek() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool accept(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void add(Formula::Step step) {
    if (steps_.size() == kMostOperations) fail("too long");
    steps_.push_back(std::move(step));
  }
  void add(Op op) { add(Formula::Step{op, 0, 0, {}}); }

  void sum(int depth) {
    if (depth > kDeepest) fail("nested too deep");
    term(depth);
    for (;;) {
      const bool plus = accept('+');
      if (!plus && !accept('-')) return;
      term(depth);
      add(plus ? Op::add : Op::subtract);
    }
  }
  void term(int depth) {
    factor(depth);
    for (;;) {
      const bool times = accept('*');
      if (!times && !accept('/')) return;
      factor(depth);
      add(times ? Op::multiply : Op::divide);
    }
  }
  void factor(int depth) {
    if (depth > kDeepest) fail("nested too deep");
    if (accept('-')) {
      factor(depth + 1);
      add(Op::negate);
    } else if (accept('+')) {
      factor(depth + 1);
    } else {
      atom(depth);
      if (accept('^')) add({Op::power, exponent(), 0, {}});
    }
  }
  int exponent() {
    const bool negative = accept('-');
    peek();
    int n = 0;
    const size_t begin = at_;
    while (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])) &&
           n <= kLargestExponent)
      n = 10 * n + (text_[at_++] - '0');
    if (at_ == begin || n > kLargestExponent) fail("an integer exponent up to 64 is missing");
    return negative ? -n : n;
  }
  void atom(int depth) {
    const char c = peek();
    if (accept('(')) {
      sum(depth + 1);
      if (!accept(')')) fail("a parenthesis is open");
    } else if (std::isdigit(static_cast<unsigned char>(c)) || c == '.') {
      number();
    } else if (std::isalpha(static_cast<unsigned char>(c))) {
      name(depth);
    } else {
      fail("a number, x or a function is missing");
    }
  }
  void number() {
    const size_t begin = at_;
    const bool hex = text_.substr(at_, 2) == "0x";
    if (hex) at_ += 2;
    const auto inside = [&](char c) {
      const char before = at_ > begin ? text_[at_ - 1] : '\0';
      if (c == '+' || c == '-') return hex ? before == 'p' : before == 'e' || before == 'E';
      return c == '.' || std::isdigit(static_cast<unsigned char>(c)) ||
             (hex ? std::isxdigit(static_cast<unsigned char>(c)) || c == 'p' : c == 'e' || c == 'E');
    };
    while (at_ < text_.size() && inside(text_[at_])) ++at_;
    const std::string digits(text_.substr(begin, at_ - begin));
    Formula::Step step{Op::literal, 0, 0, {}};
    char* end = nullptr;
    mpfr_strtofr(step.exact.backend().data(), digits.c_str(), &end, 0, MPFR_RNDN);
    if (*end != '\0') fail("not a number");
    step.number = static_cast<double>(step.exact);
    add(std::move(step));
  }
  void name(int depth) {
    const size_t begin = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_'))
      ++at_;
    const std::string_view word = text_.substr(begin, at_ - begin);
    if (word == "x") return add(Op::x);
    if (word == "pi") return add({Op::literal, 0, pi<double>(), pi<Real>()});
    constexpr std::array<std::pair<std::string_view, Op>, 11> kNames{{{"exp", Op::exp},
                                                                      {"log", Op::log},
                                                                      {"sqrt", Op::sqrt},
                                                                      {"tanh", Op::tanh},
                                                                      {"sigmoid", Op::sigmoid},
                                                                      {"softplus", Op::softplus},
                                                                      {"erf", Op::erf},
                                                                      {"normal_cdf", Op::normal_cdf},
                                                                      {"abs", Op::abs},
                                                                      {"sin", Op::sin},
                                                                      {"cos", Op::cos}}};
    for (const auto& [known, op] : kNames) {
      if (known != word) continue;
      if (!accept('(')) fail("an argument is missing");
      sum(depth + 1);
      if (!accept(')')) fail("a parenthesis is open");
      return add(op);
    }
    fail("unknown name");
  }

  std::string_view text_;
  std::vector<Formula::Step>& steps_;
  size_t at_ = 0;
};

Formula::Formula(std::string_view text) { FormulaParser(text, steps_); }

template <class T>
Jet<T> Formula::applied(Op op, const Jet<T>& a) {
  using std::abs, std::cos, std::cosh, std::exp, std::log, std::sin, std::sqrt, std::tanh;
  const T& v = a.value;
  T value, first, second;  // those of the outer function at v
  switch (op) {
    case Op::exp: value = first = second = exp(v); break;
    case Op::log:
      value = log(v);
      first = T(1) / v;
      second = -first * first;
      break;
    case Op::sqrt:
      value = sqrt(v);
      first = T(1) / (T(2) * value);
      second = -first / (T(2) * v);
      break;
    case Op::tanh: {
      const T reciprocal = T(1) / cosh(v);
      value = tanh(v);
      first = reciprocal * reciprocal;
      second = T(-2) * value * first;
      break;
    }
    case Op::sigmoid: {
      const T other = sigmoid(T(-v));
      value = sigmoid(v);
      first = value * other;
      second = first * (other - value);
      break;
    }
    case Op::softplus:
      value = v > 0 ? T(v + log_one_plus(T(exp(T(-v))))) : log_one_plus(T(exp(v)));
      first = sigmoid(v);
      second = first * sigmoid(T(-v));
      break;
    case Op::erf:
      value = error_function(v);
      first = T(2) / sqrt(pi<T>()) * exp(T(-v * v));
      second = T(-2) * v * first;
      break;
    case Op::normal_cdf:
      value = complementary_error(T(-v / sqrt(T(2)))) / T(2);
      first = exp(T(-v * v / T(2))) / sqrt(T(T(2) * pi<T>()));
      second = -v * first;
      break;
    case Op::abs:
      value = abs(v);
      first = v < 0 ? T(-1) : T(1);
      second = 0;
      break;
    case Op::sin:
      value = sin(v);
      first = cos(v);
      second = -value;
      break;
    case Op::cos:
      value = cos(v);
      first = -sin(v);
      second = -value;
      break;
    default: throw std::logic_error("no function of one argument");
  }
  return {value, first * a.slope, second * a.slope * a.slope + first * a.bend};
}

template <class T>
Jet<T> Formula::evaluate(const T& x) const {
  if (identity_from_zero_ && x >= 0) return {x, T(1), T(0)};
  static thread_local std::vector<Jet<T>> stack;
  stack.clear();
  for (const Step& step : steps_) {
    switch (step.op) {
      case Op::x: stack.push_back({x, T(1), T(0)}); continue;
      case Op::literal:
        if constexpr (std::is_same_v<T, double>) {
          stack.push_back({step.number, 0.0, 0.0});
        } else {
          stack.push_back({step.exact, T(0), T(0)});
        }
        continue;
      case Op::negate: {
        Jet<T>& a = stack.back();
        a = {-a.value, -a.slope, -a.bend};
        continue;
      }
      case Op::power: {
        Jet<T>& a = stack.back();
        const int n = step.exponent;
        const T first = n == 0 ? T(0) : T(n * power(a.value, n - 1)),
                second = n == 0 || n == 1 ? T(0) : T(n * (n - 1) * power(a.value, n - 2));
        a = {power(a.value, n), first * a.slope, second * a.slope * a.slope + first * a.bend};
        continue;
      }
      case Op::add:
      case Op::subtract:
      case Op::multiply:
      case Op::divide: break;
      default: stack.back() = applied(step.op, stack.back()); continue;
    }
    const Jet<T> b = stack.back();
    stack.pop_back();
    Jet<T>& a = stack.back();
    if (step.op == Op::add) {
      a = {a.value + b.value, a.slope + b.slope, a.bend + b.bend};
    } else if (step.op == Op::subtract) {
      a = {a.value - b.value, a.slope - b.slope, a.bend - b.bend};
    } else if (step.op == Op::multiply) {
      a = {a.value * b.value, a.slope * b.value + a.value * b.slope,
           a.bend * b.value + T(2) * a.slope * b.slope + a.value * b.bend};
    } else {
      const T q = a.value / b.value, q1 = (a.slope - q * b.slope) / b.value;
      a = {q, q1, (a.bend - T(2) * q1 * b.slope - q * b.bend) / b.value};
    }
  }
  return stack.back();
}

template Jet<double> Formula::evaluate(const double&) const;
template Jet<Real> Formula::evaluate(const Real&) const;

Formula formula_of(const std::string& activation, const std::string& function) {
  Formula f(function);
  if (activation == "elu") f.set_identity_from_zero();
  return f;
}

namespace {

// The ten activations from their papers. `parameter` is Swish's beta or ELU's alpha.
double named_value(const std::string& name, double x, double parameter) {
  const auto cdf = [](double v) { return std::erfc(-v / std::sqrt(2.0)) / 2; };
  if (name == "gelu") return x * cdf(x);
  // (1 + tanh v)/2
  if (name == "gelu_tanh") return x * sigmoid(2 * std::sqrt(2 / pi<double>()) * (x + 0.044715 * x * x * x));
  if (name == "quick_gelu") return x * sigmoid(1.702 * x);
  if (name == "silu") return x * sigmoid(x);
  if (name == "swish") return x * sigmoid(parameter * x);
  if (name == "mish") return x * std::tanh(std::log1p(std::exp(x)));
  if (name == "tanh") return std::tanh(x);
  if (name == "sigmoid") return sigmoid(x);
  if (name == "softplus") return std::log1p(std::exp(x));
  if (name == "elu") return x < 0 ? parameter * std::expm1(x) : x;
  return std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

bool name_fits(const std::string& activation, const Formula& f) {
  if (activation == "expression") return true;
  double parameter = 0;
  if (activation == "swish") {
    const double gate = f.at(1.0).value;
    parameter = std::log(gate / (1 - gate));
  } else if (activation == "elu") {
    parameter = f.at(-1.0).value / std::expm1(-1.0);
  }
  for (const double x : {-5.5, -3.25, -2.0, -0.8125, -0.25, 0.125, 0.75, 1.5, 2.75, 4.0}) {
    const double want = named_value(activation, x, parameter);
    // Covers double's rounding and the rounding of the formulas of the tails.
    if (!(std::fabs(f.at(x).value - want) <= 0x1p-40 * std::fabs(want))) return false;
  }
  return true;
}

}  // namespace outgrad::validation::gate
