#include "approx/expression.h"

#include "kernels/host/errors.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <string_view>

namespace outgrad::approx {

namespace {

enum class Kind { number, x, pi, add, subtract, multiply, divide, negate, power, call };

constexpr std::array<std::string_view, 11> kFunctions{"exp", "log", "sqrt", "tanh", "sigmoid", "softplus", "erf", "normal_cdf", "abs", "sin", "cos"};
enum Function : size_t { kExp, kLog, kSqrt, kTanh, kSigmoid, kSoftplus, kErf, kNormalCdf, kAbs, kSin, kCos };

}  // namespace

struct Expression::Node {
  Kind kind = Kind::x;
  std::string number;  ///< as written
  bool hexadecimal = false;
  int exponent = 0;
  size_t function = 0;
  std::shared_ptr<const Node> a, b;
};

namespace {

using NodePtr = std::shared_ptr<const Expression::Node>;

class Parser {
 public:
  explicit Parser(const std::string& text) : text_(text) {}

  NodePtr parse() {
    constexpr size_t kLongest = 4096;
    if (text_.size() > kLongest) fail(kLongest, "an expression has at most 4096 characters");
    NodePtr root = sum(0);
    skip();
    if (at_ < text_.size()) fail(at_, fmt::format("'{}' is not expected here", text_[at_]));
    return root;
  }

 private:
  [[noreturn]] static void fail(size_t at, const std::string& why) { throw kernels::SpecError(fmt::format("column {}: {}", at + 1, why)); }
  void skip() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
  }
  bool take(char ch) {
    skip();
    if (at_ >= text_.size() || text_[at_] != ch) return false;
    ++at_;
    return true;
  }
  static NodePtr binary(Kind kind, NodePtr a, NodePtr b) {
    auto n = std::make_shared<Expression::Node>();
    n->kind = kind;
    n->a = std::move(a);
    n->b = std::move(b);
    return n;
  }
  NodePtr sum(int depth) {
    constexpr int kDeepest = 64;
    if (depth > kDeepest) fail(at_, "nested more than 64 deep");
    NodePtr left = term(depth);
    while (true) {
      if (take('+')) {
        left = binary(Kind::add, left, term(depth));
      } else if (take('-')) {
        left = binary(Kind::subtract, left, term(depth));
      } else {
        return left;
      }
    }
  }
  NodePtr term(int depth) {
    NodePtr left = factor(depth);
    while (true) {
      if (take('*')) {
        left = binary(Kind::multiply, left, factor(depth));
      } else if (take('/')) {
        left = binary(Kind::divide, left, factor(depth));
      } else {
        return left;
      }
    }
  }
  NodePtr factor(int depth) {
    bool negative = false;
    while (true) {  // a run of signs is a loop, so that its length costs no stack
      if (take('-')) {
        negative = !negative;
      } else if (!take('+')) {
        break;
      }
    }
    NodePtr p = power(depth);
    return negative ? binary(Kind::negate, std::move(p), nullptr) : p;
  }
  NodePtr power(int depth) {
    NodePtr base = atom(depth);
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
    auto n = std::make_shared<Expression::Node>();
    n->kind = Kind::power;
    n->a = std::move(base);
    n->exponent = negative ? -exponent : exponent;
    if (take('^')) fail(at_ - 1, "a power of a power needs parentheses");
    return n;
  }
  NodePtr atom(int depth) {
    skip();
    if (at_ >= text_.size()) fail(at_, "the expression ends here");
    const char ch = text_[at_];
    if (take('(')) {
      NodePtr inner = sum(depth + 1);
      if (!take(')')) fail(at_, "')' is missing");
      return inner;
    }
    auto n = std::make_shared<Expression::Node>();
    if (std::isdigit(static_cast<unsigned char>(ch)) != 0 || ch == '.') return number();
    if (std::isalpha(static_cast<unsigned char>(ch)) == 0) fail(at_, fmt::format("'{}' is not expected here", ch));
    const size_t begin = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 || text_[at_] == '_')) ++at_;
    const std::string_view name(text_.data() + begin, at_ - begin);
    if (name == "x" || name == "pi") {
      n->kind = name == "x" ? Kind::x : Kind::pi;
      return n;
    }
    for (size_t k = 0; k < kFunctions.size(); ++k) {
      if (name != kFunctions[k]) continue;
      if (!take('(')) fail(at_, fmt::format("'(' is missing after {}", name));
      n->kind = Kind::call;
      n->function = k;
      n->a = sum(depth + 1);
      if (!take(')')) fail(at_, "')' is missing");
      return n;
    }
    fail(begin, fmt::format("'{}' is unknown; known: x, pi, {}", name.substr(0, 40), fmt::join(kFunctions, ", ")));
  }
  NodePtr number() {
    const size_t begin = at_;
    const bool hexadecimal = text_[at_] == '0' && at_ + 1 < text_.size() && (text_[at_ + 1] == 'x' || text_[at_ + 1] == 'X');
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
    // 13 hexadecimal digits are exact in a double, whatever the first is, and 14 behind a first 1; 60 decimal ones outdo any constant.
    const bool leading_one = hexadecimal && text_[begin + 2] == '1';
    if (points > 1 || digits == 0 || digits > (hexadecimal ? (leading_one ? 14 : 13) : 60)) fail(begin, "is not a number of reasonable length");
    const char mark = hexadecimal ? 'p' : 'e';
    if (at_ < text_.size() && std::tolower(static_cast<unsigned char>(text_[at_])) == mark) {
      ++at_;
      if (at_ < text_.size() && (text_[at_] == '-' || text_[at_] == '+')) ++at_;
      const size_t exponent = at_;
      while (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
      if (at_ == exponent || at_ - exponent > 3) fail(exponent, "an exponent has one to three digits");
    }
    auto n = std::make_shared<Expression::Node>();
    n->kind = Kind::number;
    n->number = text_.substr(begin, at_ - begin);
    n->hexadecimal = hexadecimal;
    const double value = std::strtod(n->number.c_str(), nullptr);
    // Far smaller and larger ones would only overflow, and a hexadecimal one must be exact.
    if (value != 0 && !(std::abs(value) > 1e-280 && std::abs(value) < 1e280)) fail(begin, "is beyond 1e-280 .. 1e280");
    return n;
  }

  const std::string& text_;
  size_t at_ = 0;
};

// Literals over each scalar. `like` gives the length of a series.
double literal(const Expression::Node& n, double) { return std::strtod(n.number.c_str(), nullptr); }
Real literal(const Expression::Node& n, const Real&) { return n.hexadecimal ? Real(std::strtod(n.number.c_str(), nullptr)) : Real(n.number); }
Ball literal(const Expression::Node& n, const Ball&) {
  if (n.hexadecimal) return Ball(std::strtod(n.number.c_str(), nullptr));
  Ball r;
  arb_set_str(r.raw(), n.number.c_str(), kPrecisionBits);
  return r;
}
Series literal(const Expression::Node& n, const Series& like) { return Series::constant(literal(n, Ball()), like.length()); }

double pi_of(double) { return M_PI; }
Real pi_of(const Real&) { return boost::math::constants::pi<Real>(); }
Ball pi_of(const Ball&) {
  Ball r;
  arb_const_pi(r.raw(), kPrecisionBits);
  return r;
}
Series pi_of(const Series& like) { return Series::constant(pi_of(Ball()), like.length()); }

double one_of(double) { return 1; }
Real one_of(const Real&) { return 1; }
Ball one_of(const Ball&) { return Ball(1.0); }
Series one_of(const Series& like) { return Series::constant(Ball(1.0), like.length()); }

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
T evaluate(const Expression::Node& n, const T& x) {
  switch (n.kind) {
    case Kind::number: return literal(n, x);
    case Kind::x: return x;
    case Kind::pi: return pi_of(x);
    case Kind::add: return evaluate(*n.a, x) + evaluate(*n.b, x);
    case Kind::subtract: return evaluate(*n.a, x) - evaluate(*n.b, x);
    case Kind::multiply: return evaluate(*n.a, x) * evaluate(*n.b, x);
    case Kind::divide: return evaluate(*n.a, x) / evaluate(*n.b, x);
    case Kind::negate: return (one_of(x) - one_of(x)) - evaluate(*n.a, x);
    case Kind::power: break;
    case Kind::call: return call(n.function, evaluate(*n.a, x));
  }
  const T base = evaluate(*n.a, x);
  T result = one_of(x);
  for (int k = 0; k < std::abs(n.exponent); ++k) result = result * base;
  return n.exponent < 0 ? one_of(x) / result : result;
}

}  // namespace

Expression::Expression(const std::string& text) : text_(text), root_(Parser(text_).parse()) {}

double Expression::operator()(double x) const { return evaluate(*root_, x); }
Real Expression::operator()(const Real& x) const { return evaluate(*root_, x); }
Ball Expression::operator()(const Ball& x) const { return evaluate(*root_, x); }
Series Expression::operator()(const Series& x) const { return evaluate(*root_, x); }

}  // namespace outgrad::approx
