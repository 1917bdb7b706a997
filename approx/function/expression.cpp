// Parses functions of x by recursive descent, and evaluates them over each scalar.
#include "approx/function/expression.h"

#include "approx/progress.h"
#include "kernels/host/errors.h"
#include "kernels/support/suggestion.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

namespace outgrad::approx {

namespace {

enum class Kind { constant, x, add, subtract, multiply, divide, negate, power, call };

constexpr std::array<std::string_view, 11> kFunctions{
    "exp", "log", "sqrt", "tanh", "sigmoid", "softplus", "erf", "normal_cdf", "abs", "sin", "cos"};
enum Function : size_t { kExp, kLog, kSqrt, kTanh, kSigmoid, kSoftplus, kErf, kNormalCdf, kAbs, kSin, kCos };

/// A real constant over every scalar.
struct Constant {
  double nearest;
  Real rounded;
  Ball ball;
};

/// One operation; the operands are earlier nodes.
struct Operation {
  Kind kind;
  size_t a = 0, b = 0;  ///< `a` of a constant is its index
  int exponent = 0;
  size_t function = 0;
};

}  // namespace

/// A list in which operands stand before what uses them, so that the length of a text costs no stack.
struct Expression::Program {
  std::vector<Operation> nodes;  ///< the last is the whole
  std::vector<Constant> constants;
};

namespace {

class Parser {
 public:
  explicit Parser(const std::string& text) : text_(text) {}

  std::shared_ptr<const Expression::Program> parse() {
    constexpr size_t kLongest = 4096;
    if (text_.size() > kLongest) fail(kLongest, "an expression has at most 4096 characters");
    sum(0);
    skip();
    if (at_ < text_.size()) unexpected();
    return std::make_shared<const Expression::Program>(std::move(program_));
  }

 private:
  [[noreturn]] static void fail(size_t at, const std::string& why) {
    throw kernels::SpecError(fmt::format("column {}: {}", at + 1, why));
  }
  [[noreturn]] void unexpected() const {
    const auto ch = static_cast<unsigned char>(text_[at_]);
    fail(at_, ch > 0x20 && ch < 0x7f ? fmt::format("'{}' is not expected here", text_[at_])
                                     : fmt::format("the byte 0x{:02x} is not expected here", ch));
  }
  void skip() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
  }
  bool take(char ch) {
    skip();
    if (at_ >= text_.size() || text_[at_] != ch) return false;
    ++at_;
    return true;
  }
  /// @return the index of the node.
  size_t add(const Operation& node) {
    // A fit evaluates f some hundred thousand times: this many parts take minutes.
    constexpr size_t kMostParts = 256;
    if (program_.nodes.size() == kMostParts)
      fail(at_, "an expression has at most 256 numbers, variables and operations");
    program_.nodes.push_back(node);
    return program_.nodes.size() - 1;
  }
  size_t add(Constant constant) {
    program_.constants.push_back(std::move(constant));
    return add({.kind = Kind::constant, .a = program_.constants.size() - 1});
  }
  size_t sum(int depth) {
    constexpr int kDeepest = 64;
    if (depth > kDeepest) fail(at_, "nested more than 64 deep");
    size_t left = term(depth);
    while (true) {
      if (take('+')) {
        left = add({.kind = Kind::add, .a = left, .b = term(depth)});
      } else if (take('-')) {
        left = add({.kind = Kind::subtract, .a = left, .b = term(depth)});
      } else {
        return left;
      }
    }
  }
  size_t term(int depth) {
    size_t left = factor(depth);
    while (true) {
      if (take('*')) {
        left = add({.kind = Kind::multiply, .a = left, .b = factor(depth)});
      } else if (take('/')) {
        left = add({.kind = Kind::divide, .a = left, .b = factor(depth)});
      } else {
        return left;
      }
    }
  }
  size_t factor(int depth) {
    bool negative = false;
    while (true) {  // a run of signs is a loop, so that its length costs no stack
      if (take('-')) {
        negative = !negative;
      } else if (!take('+')) {
        break;
      }
    }
    const size_t p = power(depth);
    return negative ? add({.kind = Kind::negate, .a = p}) : p;
  }
  size_t power(int depth) {
    const size_t base = atom(depth);
    if (!take('^')) return base;
    const bool negative = take('-');
    skip();
    const size_t begin = at_;
    int exponent = 0;
    while (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])) != 0) {
      exponent = exponent * 10 + (text_[at_++] - '0');
      constexpr int kLargest = 64;
      if (exponent > kLargest) fail(begin, "an exponent is at most 64");
    }
    if (at_ == begin) fail(begin, "an exponent is an integer");
    if (take('^')) fail(at_ - 1, "a power of a power needs parentheses");
    return add({.kind = Kind::power, .a = base, .exponent = negative ? -exponent : exponent});
  }
  size_t atom(int depth) {
    skip();
    if (at_ >= text_.size()) fail(at_, "the expression ends here");
    const char ch = text_[at_];
    if (take('(')) {
      const size_t inner = sum(depth + 1);
      if (!take(')')) fail(at_, "')' is missing");
      return inner;
    }
    if (std::isdigit(static_cast<unsigned char>(ch)) != 0 || ch == '.') return number();
    if (std::isalpha(static_cast<unsigned char>(ch)) == 0) unexpected();
    const size_t begin = at_;
    while (at_ < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 || text_[at_] == '_'))
      ++at_;
    const std::string_view name(text_.data() + begin, at_ - begin);
    if (name == "x") return add({.kind = Kind::x});
    if (name == "pi") return add(pi());
    for (size_t k = 0; k < kFunctions.size(); ++k) {
      if (name != kFunctions[k]) continue;
      if (!take('(')) fail(at_, fmt::format("'(' is missing after {}", name));
      const size_t argument = sum(depth + 1);
      if (!take(')')) fail(at_, "')' is missing");
      return add({.kind = Kind::call, .a = argument, .function = k});
    }
    fail(begin,
         fmt::format("'{}' is unknown; known: x, pi, {}{}", name.substr(0, 40), fmt::join(kFunctions, ", "),
                     kernels::did_you_mean(name, {kFunctions.begin(), kFunctions.end()})));
  }
  size_t number() {
    const size_t begin = at_;
    const bool hexadecimal =
        text_[at_] == '0' && at_ + 1 < text_.size() && (text_[at_ + 1] == 'x' || text_[at_ + 1] == 'X');
    if (hexadecimal) at_ += 2;
    int digits = 0, points = 0;
    const auto digit = [&] {
      const auto ch = static_cast<unsigned char>(text_[at_]);
      return hexadecimal ? std::isxdigit(ch) != 0 : std::isdigit(ch) != 0;
    };
    while (at_ < text_.size() && (digit() || text_[at_] == '.')) {
      (text_[at_] == '.' ? points : digits)++;
      ++at_;
    }
    // 13 hexadecimal digits are exact in a double, whatever the first is, and 14 behind a first 1; 60 decimal
    // ones outdo any constant.
    const bool leading_one = hexadecimal && text_[begin + 2] == '1';
    if (points > 1 || digits == 0 || digits > (hexadecimal ? (leading_one ? 14 : 13) : 60))
      fail(begin, "is not a number of reasonable length");
    const bool is_zero = std::string_view(text_).substr(begin, at_ - begin).find_first_not_of("0.xX") ==
                         std::string_view::npos;
    const char mark = hexadecimal ? 'p' : 'e';
    if (at_ < text_.size() && std::tolower(static_cast<unsigned char>(text_[at_])) == mark) {
      ++at_;
      if (at_ < text_.size() && (text_[at_] == '-' || text_[at_] == '+')) ++at_;
      const size_t exponent = at_;
      while (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
      if (at_ == exponent || at_ - exponent > 3) fail(exponent, "an exponent has one to three digits");
    }
    const std::string digits_read = text_.substr(begin, at_ - begin);
    const double value = std::strtod(digits_read.c_str(), nullptr);
    // Far smaller and larger ones would only overflow, and a hexadecimal one must be exact.
    if (!is_zero && !(std::abs(value) > 1e-280 && std::abs(value) < 1e280))
      fail(begin, fmt::format("{} is beyond 1e-280 .. 1e280", digits_read));
    if (hexadecimal) return add({value, Real(value), Ball(value)});
    Constant constant{value, Real(digits_read), Ball()};
    if (arb_set_str(constant.ball.raw(), digits_read.c_str(), kPrecisionBits) != 0)
      fail(begin, "is not a number");
    return add(std::move(constant));
  }
  static Constant pi() {
    Constant c{M_PI, boost::math::constants::pi<Real>(), Ball()};
    arb_const_pi(c.ball.raw(), kPrecisionBits);
    return c;
  }

  const std::string& text_;
  size_t at_ = 0;
  Expression::Program program_;
};

// Constants over each scalar. `like` gives the length of a series.
double constant_as(const Constant& c, double) { return c.nearest; }
Real constant_as(const Constant& c, const Real&) { return c.rounded; }
Ball constant_as(const Constant& c, const Ball&) { return c.ball; }
Series constant_as(const Constant& c, const Series& like) { return Series::constant(c.ball, like.length()); }

double integer_as(int n, double) { return n; }
Real integer_as(int n, const Real&) { return n; }
Ball integer_as(int n, const Ball&) { return {static_cast<double>(n)}; }
Series integer_as(int n, const Series& like) { return Series::constant(Ball(n), like.length()); }

template <class T>
T call(size_t function, const T& a) {
  using std::abs, std::cos, std::exp, std::log, std::sin, std::sqrt, std::tanh;
  switch (function) {
    case kExp: return exp(a);
    case kLog: return log(a);
    case kSqrt: return sqrt(a);
    case kTanh: return tanh(a);
    case kSigmoid: return sigmoid(a);
    case kSoftplus: return softplus(a);
    case kErf: return error_function(a);
    case kNormalCdf: return normal_cdf(a);
    case kAbs: return abs(a);
    case kSin: return sin(a);
    default: return cos(a);
  }
}

template <class T>
T power(const T& base, int n) {
  // 0 base and not 0: where the base is undecided, so is its power.
  if (n == 0) return integer_as(1, base) + integer_as(0, base) * base;
  T result = integer_as(1, base);
  for (int k = 0; k < std::abs(n); ++k) result = result * base;
  return n < 0 ? integer_as(1, base) / result : result;
}

template <class T>
T evaluate(const Expression::Program& program, const T& x) {
  std::vector<T> values;
  values.reserve(program.nodes.size());
  for (const Operation& n : program.nodes) {
    values.push_back([&]() -> T {
      switch (n.kind) {
        case Kind::constant: return constant_as(program.constants[n.a], x);
        case Kind::x: return x;
        case Kind::add: return values[n.a] + values[n.b];
        case Kind::subtract: return values[n.a] - values[n.b];
        case Kind::multiply: return values[n.a] * values[n.b];
        case Kind::divide: return values[n.a] / values[n.b];
        case Kind::negate: return integer_as(0, x) - values[n.a];
        case Kind::power: return power(values[n.a], n.exponent);
        case Kind::call: break;
      }
      return call(n.function, values[n.a]);
    }());
  }
  return values.back();
}

}  // namespace

Expression::Expression(const std::string& text) : text_(text), program_(Parser(text_).parse()) {}

size_t Expression::size() const {
  size_t operations = 0;
  for (const Operation& n : program_->nodes) operations += 1 + static_cast<size_t>(std::abs(n.exponent));
  return operations;
}

bool Expression::divides_exponentials() const {
  std::vector<bool> has_exp;  // the node or what it is made of
  for (const Operation& n : program_->nodes) {
    const bool binary =
        n.kind == Kind::add || n.kind == Kind::subtract || n.kind == Kind::multiply || n.kind == Kind::divide;
    const bool unary = n.kind == Kind::negate || n.kind == Kind::power || n.kind == Kind::call;
    const bool a = (unary || binary) && has_exp[n.a], b = binary && has_exp[n.b];
    if (n.kind == Kind::divide && a && b) return true;
    has_exp.push_back(a || b || (n.kind == Kind::call && n.function == kExp));
  }
  return false;
}

double Expression::operator()(double x) const { return evaluate(*program_, x); }
Real Expression::operator()(const Real& x) const { return evaluate(*program_, x); }
Ball Expression::operator()(const Ball& x) const {
  count_evaluation();
  return evaluate(*program_, x);
}
Series Expression::operator()(const Series& x) const {
  count_evaluation();
  return evaluate(*program_, x);
}

}  // namespace outgrad::approx
