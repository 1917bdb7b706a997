// A tree of nodes, which one template evaluates over any scalar; the scalars provide their elementary
// functions.
#include "validation/exact/function.h"

#include <fmt/format.h>

#include <cctype>
#include <cmath>
#include <map>
#include <numbers>
#include <utility>

#include "kernels/host/errors.h"

namespace outgrad::validation {
namespace {

using kernels::SpecError;

// Limits for hostile text, because the tree is walked recursively, and powers are repeated products.
constexpr size_t kMaxText = 1024;
constexpr int kMaxDepth = 64;
constexpr int kMaxPower = 256;
// unequal decimals of that length differ by more than an Interval's rounding
constexpr size_t kMaxLiteral = 60;

enum class Operation {
  Literal,
  Pi,
  Variable,
  Add,
  Subtract,
  Multiply,
  Divide,
  Negate,
  Power,
  Exp,
  Log,
  Sqrt,
  Tanh,
  Sigmoid,
  Softplus,
  Erf,
  NormalCdf,
  Abs,
  Sin,
  Cos
};

}  // namespace

struct Function::Node {
  Operation operation;
  std::shared_ptr<const Node> left, right;
  Interval literal = 0;
  int power = 0;
};

namespace {

using Node = Function::Node;
using Tree = std::shared_ptr<const Node>;

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {
    if (text.size() > kMaxText)
      throw SpecError(fmt::format("an expression of {} characters is too long", text.size()));
  }

  Tree whole() {
    Tree tree = sum();
    blanks();
    if (at_ != text_.size()) fail(fmt::format("unexpected '{}'", text_[at_]));
    return tree;
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw SpecError(fmt::format("column {}: {}", at_ + 1, why));
  }

  void blanks() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  bool accept(char symbol) {
    blanks();
    if (at_ == text_.size() || text_[at_] != symbol) return false;
    ++at_;
    return true;
  }
  void expect(char symbol) {
    if (!accept(symbol)) fail(fmt::format("expected '{}'", symbol));
  }
  static Tree node(Operation operation, Tree left, Tree right = {}) {
    return std::make_shared<const Node>(Node{operation, std::move(left), std::move(right), 0, 0});
  }

  Tree sum() {
    if (++depth_ > kMaxDepth) fail("nested too deeply");
    Tree tree = product();
    while (true) {
      if (accept('+')) {
        tree = node(Operation::Add, tree, product());
      } else if (accept('-')) {
        tree = node(Operation::Subtract, tree, product());
      } else {
        break;
      }
      limit();
    }
    --depth_;
    return tree;
  }

  Tree product() {
    Tree tree = signed_power();
    while (true) {
      if (accept('*')) {
        tree = node(Operation::Multiply, tree, signed_power());
      } else if (accept('/')) {
        tree = node(Operation::Divide, tree, signed_power());
      } else {
        break;
      }
      limit();
    }
    return tree;
  }

  // Chains of sums and products lean to the left, so their length also adds to the depth.
  void limit() {
    if (++chained_ > 2 * kMaxDepth) fail("too many terms");
  }

  Tree signed_power() {
    if (accept('-')) {
      if (++depth_ > kMaxDepth) fail("nested too deeply");
      Tree tree = node(Operation::Negate, signed_power());
      --depth_;
      return tree;
    }
    Tree base = primary();
    if (!accept('^')) return base;
    return std::make_shared<const Node>(Node{Operation::Power, std::move(base), {}, 0, exponent()});
  }

  int exponent() {
    if (++depth_ > kMaxDepth) fail("nested too deeply");
    const bool parenthesis = accept('(');
    const bool negative = accept('-');
    blanks();
    int value = 0;
    const size_t begin = at_;
    while (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])) && value <= kMaxPower)
      value = 10 * value + (text_[at_++] - '0');
    if (at_ == begin ||
        (at_ < text_.size() && (text_[at_] == '.' || std::isalnum(static_cast<unsigned char>(text_[at_]))))) {
      fail("a power is not a decimal integer");
    }
    if (parenthesis) expect(')');
    if (value > kMaxPower) fail(fmt::format("a power beyond {}", kMaxPower));
    if (accept('^')) {
      const int outer = exponent();
      if (outer < 0) fail("a power is not an integer");
      double power = std::pow(static_cast<double>(value), outer);
      if (!(power <= kMaxPower)) fail(fmt::format("a power beyond {}", kMaxPower));
      value = static_cast<int>(power);
    }
    --depth_;
    return negative ? -value : value;
  }

  Tree primary() {
    if (accept('(')) {
      Tree tree = sum();
      expect(')');
      return tree;
    }
    blanks();
    if (at_ == text_.size()) fail("the expression ends too early");
    const auto is_letter = [](char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; };
    const auto is_digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
    const char first = text_[at_];
    if (is_digit(first) || first == '.') return literal();
    if (!is_letter(first)) fail(fmt::format("unexpected '{}'", first));
    const size_t begin = at_;
    while (at_ < text_.size() && (is_letter(text_[at_]) || is_digit(text_[at_]))) ++at_;
    const std::string_view name = text_.substr(begin, at_ - begin);
    if (name == "x") return node(Operation::Variable, {});
    if (name == "pi") return node(Operation::Pi, {});
    static const std::map<std::string_view, Operation> functions{
        {"exp", Operation::Exp},   {"log", Operation::Log},
        {"sqrt", Operation::Sqrt}, {"tanh", Operation::Tanh},
        {"erf", Operation::Erf},   {"sigmoid", Operation::Sigmoid},
        {"abs", Operation::Abs},   {"softplus", Operation::Softplus},
        {"sin", Operation::Sin},   {"normal_cdf", Operation::NormalCdf},
        {"cos", Operation::Cos}};
    const auto found = functions.find(name);
    if (found == functions.end()) fail(fmt::format("unknown name '{}'", name));
    expect('(');
    Tree argument = sum();
    expect(')');
    return node(found->second, std::move(argument));
  }

  Tree literal() {
    const size_t begin = at_;
    const bool hex = text_.substr(at_, 2) == "0x" || text_.substr(at_, 2) == "0X";
    while (at_ < text_.size()) {
      const char c = text_[at_];
      const char before =
          static_cast<char>(at_ > begin ? std::tolower(static_cast<unsigned char>(text_[at_ - 1])) : '\0');
      const bool sign = (c == '+' || c == '-') && before == (hex ? 'p' : 'e');
      if (!(std::isalnum(static_cast<unsigned char>(c)) || c == '.' || sign)) break;
      ++at_;
    }
    const std::string digits(text_.substr(begin, at_ - begin));
    if (digits.size() > kMaxLiteral) fail("a literal is too long");
    Interval value = Interval::parse(digits.c_str());
    if (!std::isfinite(value.magnitude())) fail(fmt::format("'{}' is not a number", digits));
    return std::make_shared<const Node>(Node{Operation::Literal, {}, {}, std::move(value), 0});
  }

  std::string_view text_;
  size_t at_ = 0;
  int depth_ = 0, chained_ = 0;
};

// A complex rectangle.
struct Box {
  CoarseInterval re, im;

  Box(double point = 0) : re(point), im(0) {}
  Box(CoarseInterval real, CoarseInterval imaginary) : re(std::move(real)), im(std::move(imaginary)) {}
  static Box everything() { return {CoarseInterval::whole_line(), CoarseInterval::whole_line()}; }

  /// sup |z|; +inf for a value that was not bounded.
  double magnitude() const {
    const double bound = sqrt(square(re) + square(im)).upper();
    return bound >= 0 ? bound : std::numeric_limits<double>::infinity();
  }
  friend Box operator-(const Box& v) { return {-v.re, -v.im}; }
  friend Box operator+(const Box& v, const Box& w) { return {v.re + w.re, v.im + w.im}; }
  friend Box operator-(const Box& v, const Box& w) { return {v.re - w.re, v.im - w.im}; }
  friend Box operator*(const Box& v, const Box& w) {
    return {v.re * w.re - v.im * w.im, v.re * w.im + v.im * w.re};
  }
  friend Box operator/(const Box& v, const Box& w) {
    const CoarseInterval modulus = square(w.re) + square(w.im);
    if (!modulus.positive()) return everything();
    // 1 / w, at most the reciprocal of the distance from 0.
    const CoarseInterval most = symmetric(sqrt(CoarseInterval(1) / modulus).keep_upper());
    return v * Box{intersection(w.re / modulus, most), intersection(-w.im / modulus, most)};
  }
  friend Box square(const Box& v) { return {square(v.re) - square(v.im), v.re * v.im * 2}; }
  friend Box exp(const Box& v) {
    const CoarseInterval modulus = exp(v.re);
    return {modulus * cos(v.im), modulus * sin(v.im)};
  }
  friend Box sin(const Box& v) {
    const CoarseInterval up = exp(v.im), down = exp(-v.im);
    return {sin(v.re) * (up + down) * 0.5, cos(v.re) * (up - down) * 0.5};
  }
  friend Box cos(const Box& v) {
    const CoarseInterval up = exp(v.im), down = exp(-v.im);
    return {cos(v.re) * (up + down) * 0.5, -(sin(v.re) * (up - down) * 0.5)};
  }
  // The principal value, if the rectangle does not touch the cut.
  friend Box log(const Box& v) {
    const CoarseInterval modulus = square(v.re) + square(v.im);
    if (!modulus.positive()) return everything();
    if (v.re.positive()) return {log(modulus) * 0.5, atan(v.im / v.re)};
    if (v.im.contains_zero()) return everything();
    // arg = pi/2 - atan(re / im) above the axis, -pi/2 - atan(re / im) below.
    const CoarseInterval quarter = CoarseInterval::pi() * (v.im.positive() ? 0.5 : -0.5);
    return {log(modulus) * 0.5, quarter - atan(v.re / v.im)};
  }
  friend Box sqrt(const Box& v) { return exp(log(v) * Box(0.5)); }
};

// On the left exp(-v) may be huge; the other form has no such term there.
Box sigmoid(const Box& v) {
  if (v.re.upper() <= 0) {
    const Box e = exp(v);
    return e / (Box(1) + e);
  }
  return Box(1) / (Box(1) + exp(-v));
}
Box tanh(const Box& v) { return Box(1) - Box(2) / (Box(1) + exp(v * Box(2))); }
// log(1 + exp v), analytic from 0 on the real line while |Im v| < pi, because 1 + exp v does not touch the
// cut there.
Box softplus(const Box& v) {
  if (!certainly_less(v.im, CoarseInterval::pi()) || !certainly_less(-CoarseInterval::pi(), v.im))
    return Box::everything();
  if (v.re.lower() >= 0) return v + log(Box(1) + exp(-v));
  return log(Box(1) + exp(v));
}
Box normal_density(const Box& v) {
  return exp(square(v) * Box(-0.5)) *
         Box(CoarseInterval(1) / sqrt(CoarseInterval(2) * CoarseInterval::pi()), 0);
}
// By the mean value from a real point: |Phi(z) - Phi(a)| <= |z - a| sup |phi|, |phi(u)| = exp((Im^2 - Re^2) /
// 2) / sqrt(2 pi).
Box normal_cdf(const Box& v) {
  const double a = v.re.middle();
  if (!std::isfinite(a)) return Box::everything();
  const CoarseInterval density = exp((square(absolute(v.im)).keep_upper() - square(v.re)) * 0.5) /
                                 sqrt(CoarseInterval(2) * CoarseInterval::pi());
  const CoarseInterval reach = sqrt(square(v.re - a) + square(v.im)).keep_upper();
  const CoarseInterval spread = symmetric((density.keep_upper() * reach).keep_upper());
  return {erfc(CoarseInterval(-a) / sqrt(CoarseInterval(2))) * 0.5 + spread, spread};
}
Box absolute(const Box& v) { return v.re.positive() ? v : v.re.negative() ? -v : Box::everything(); }
Box sign_of(const Box& v) { return v.re.positive() ? Box(1) : v.re.negative() ? Box(-1) : Box::everything(); }

template <int Bits>
BasicInterval<Bits> sigmoid(const BasicInterval<Bits>& v) {
  return BasicInterval<Bits>(1) / (exp(-v) + 1);
}
template <int Bits>
BasicInterval<Bits> softplus(const BasicInterval<Bits>& v) {
  // From here on exp(v) is too large a number; v + log1p(exp(-v)) is the same.
  constexpr double kLarge = 1024;
  return v.lower() > kLarge ? v + log1p(exp(-v)) : log1p(exp(v));
}
template <int Bits>
BasicInterval<Bits> normal_density(const BasicInterval<Bits>& v) {
  static const BasicInterval<Bits> scale =
      BasicInterval<Bits>(1) / sqrt(BasicInterval<Bits>(2) * BasicInterval<Bits>::pi());
  return exp(square(v) * -0.5) * scale;
}
template <int Bits>
BasicInterval<Bits> normal_cdf(const BasicInterval<Bits>& v) {
  static const BasicInterval<Bits> scale = BasicInterval<Bits>(-1) / sqrt(BasicInterval<Bits>(2));
  return erfc(v * scale) * 0.5;
}
// Over all members; sqrt(v) takes the part that is not negative.
template <int Bits>
BasicInterval<Bits> root(const BasicInterval<Bits>& v) {
  return v.lower() < 0 ? BasicInterval<Bits>::whole_line() : sqrt(v);
}
template <int Bits>
BasicInterval<Bits> sign_of(const BasicInterval<Bits>& v) {
  return v.positive()   ? BasicInterval<Bits>(1)
         : v.negative() ? BasicInterval<Bits>(-1)
                        : BasicInterval<Bits>::whole_line();
}

using std::cos, std::exp, std::log, std::sin, std::sqrt, std::tanh;
Box root(const Box& v) { return sqrt(v); }
double root(double v) { return std::sqrt(v); }
double square(double v) { return v * v; }
double absolute(double v) { return std::fabs(v); }
double sign_of(double v) { return v < 0 ? -1 : 1; }
double sigmoid(double v) { return v < 0 ? std::exp(v) / (1 + std::exp(v)) : 1 / (1 + std::exp(-v)); }
double softplus(double v) { return v > 0 ? v + std::log1p(std::exp(-v)) : std::log1p(std::exp(v)); }
double normal_density(double v) {
  return std::exp(-0.5 * v * v) * std::numbers::inv_sqrtpi / std::numbers::sqrt2;
}
double normal_cdf(double v) { return 0.5 * std::erfc(-v / std::numbers::sqrt2); }

template <class Scalar>
struct Constant;
template <int Bits>
struct Constant<BasicInterval<Bits>> {
  static BasicInterval<Bits> of(const Interval& v) { return BasicInterval<Bits>(v); }
};
template <>
struct Constant<Box> {
  static Box of(const Interval& v) { return {CoarseInterval(v), 0}; }
};
template <>
struct Constant<double> {
  static double of(const Interval& v) { return v.middle(); }
};

template <class Scalar>
Scalar power(const Scalar& v, int n) {
  if (n == 0) return Scalar(1);
  if (n % 2 != 0) return n == 1 ? v : power(v, n - 1) * v;
  return square(power(v, n / 2));
}

// Taylor coefficients f(x), f'(x), f''(x) / 2, ... of a node.
template <class Scalar, int N>
using Jet = std::array<Scalar, N + 1>;

template <class Scalar, int N>
Jet<Scalar, N> multiply(const Jet<Scalar, N>& v, const Jet<Scalar, N>& w) {
  Jet<Scalar, N> product{};
  for (int k = 0; k <= N; ++k) {
    Scalar sum = v[0] * w[k];
    for (int j = 1; j <= k; ++j) sum = sum + v[j] * w[k - j];
    product[k] = sum;
  }
  return product;
}

template <class Scalar, int N>
Jet<Scalar, N> divide(const Jet<Scalar, N>& v, const Jet<Scalar, N>& w) {
  Jet<Scalar, N> quotient{};
  for (int k = 0; k <= N; ++k) {
    Scalar rest = v[k];
    for (int j = 1; j <= k; ++j) rest = rest - w[j] * quotient[k - j];
    quotient[k] = rest / w[0];
  }
  return quotient;
}

// The jet of F(u) from Taylor coefficients of F at u[0]: `coefficients(k)`.
template <class Scalar, int N, class Coefficients>
Jet<Scalar, N> compose(const Jet<Scalar, N>& u, const Coefficients& coefficients) {
  Jet<Scalar, N> result{};
  result[0] = coefficients(0);
  if constexpr (N >= 1) {
    const Scalar f1 = coefficients(1);
    result[1] = f1 * u[1];
    if constexpr (N >= 2) {
      const Scalar f2 = coefficients(2);
      result[2] = f1 * u[2] + f2 * square(u[1]);
      if constexpr (N >= 3)
        result[3] = f1 * u[3] + f2 * u[1] * u[2] * Scalar(2) + coefficients(3) * u[1] * square(u[1]);
    }
  }
  return result;
}

template <class Scalar, int N>
Jet<Scalar, N> constant(const Scalar& value) {
  Jet<Scalar, N> jet{};
  jet[0] = value;
  return jet;
}

// A function of u that goes from one limit to another, or the integral of one.
template <class Scalar, int N>
Jet<Scalar, N> apply_sigmoidal(Operation operation, const Jet<Scalar, N>& u) {
  const Scalar& a = u[0];
  static const Scalar third = Scalar(1) / Scalar(3), half(0.5);
  switch (operation) {
    case Operation::Tanh: {
      const Scalar t = tanh(a);
      if constexpr (N == 0) return constant<Scalar, N>(t);
      // 1 - t^2, without cancellation
      const Scalar d = sigmoid(a * Scalar(2)) * sigmoid(a * Scalar(-2)) * Scalar(4);
      return compose<Scalar, N>(u, [&](int k) {
        return k == 0 ? t : k == 1 ? d : k == 2 ? -t * d : d * (square(t) * Scalar(2) - d) * third;
      });
    }
    case Operation::Sigmoid:
    case Operation::Softplus: {
      const bool integrated = operation == Operation::Softplus;
      if constexpr (N == 0) return constant<Scalar, N>(integrated ? softplus(a) : sigmoid(a));
      const Scalar s = sigmoid(a), d = s * sigmoid(-a);
      const auto derivative = [&](int k) {  // of sigmoid
        return k == 0   ? s
               : k == 1 ? d
               : k == 2 ? d * (Scalar(1) - s * Scalar(2))
                        : d * (Scalar(1) - d * Scalar(6));
      };
      const auto over_factorial = [&](const Scalar& v, int k) {
        return k < 2 ? v : k == 2 ? v * half : v * half * third;
      };
      if (!integrated) return compose<Scalar, N>(u, [&](int k) { return over_factorial(derivative(k), k); });
      return compose<Scalar, N>(
          u, [&](int k) { return k == 0 ? softplus(a) : over_factorial(derivative(k - 1), k); });
    }
    case Operation::NormalCdf: {
      const Scalar value = normal_cdf(a);
      if constexpr (N == 0) return constant<Scalar, N>(value);
      const Scalar density = normal_density(a);
      return compose<Scalar, N>(u, [&](int k) {
        return k == 0   ? value
               : k == 1 ? density
               : k == 2 ? -a * density * half
                        : (square(a) - Scalar(1)) * density * half * third;
      });
    }
    case Operation::Erf: {
      static const Scalar root = sqrt(Constant<Scalar>::of(Interval(2)));
      const Scalar argument = a * root;
      return compose<Scalar, N>(u, [&](int k) {
        if (k == 0) return normal_cdf(argument) * Scalar(2) - Scalar(1);
        const Scalar slope = normal_density(argument) * root * Scalar(2);
        return k == 1 ? slope : k == 2 ? -a * slope : (square(a) * Scalar(2) - Scalar(1)) * slope * third;
      });
    }
    default: return {};
  }
}

// The operation of a node on its one argument.
template <class Scalar, int N>
Jet<Scalar, N> applied(const Node& node, const Jet<Scalar, N>& u) {
  const Scalar& a = u[0];
  static const Scalar third = Scalar(1) / Scalar(3), half(0.5);
  switch (node.operation) {
    case Operation::Power: {
      const int n = std::abs(node.power);
      const Jet<Scalar, N> positive = compose<Scalar, N>(u, [&](int k) {
        double binomial = 1;
        for (int j = 0; j < k; ++j) binomial = binomial * (n - j) / (j + 1);
        return k > n ? Scalar(0) : power(a, n - k) * Scalar(binomial);
      });
      return node.power >= 0 ? positive : divide<Scalar, N>(constant<Scalar, N>(Scalar(1)), positive);
    }
    case Operation::Exp: {
      const Scalar e = exp(a);
      return compose<Scalar, N>(u, [&](int k) { return k < 2 ? e : k == 2 ? e * half : e * half * third; });
    }
    case Operation::Log:
      return compose<Scalar, N>(u, [&](int k) {
        return k == 0   ? log(a)
               : k == 1 ? Scalar(1) / a
               : k == 2 ? -half / square(a)
                        : third / (square(a) * a);
      });
    case Operation::Sqrt: {
      const Scalar r = root(a);
      return compose<Scalar, N>(u, [&](int k) {
        return k == 0   ? r
               : k == 1 ? half / r
               : k == 2 ? Scalar(-0.125) / (r * a)
                        : Scalar(0.0625) / (r * square(a));
      });
    }
    case Operation::Abs:
      return compose<Scalar, N>(u, [&](int k) {
        return k == 0 ? absolute(a) : k == 1 ? sign_of(a) : sign_of(a) - sign_of(a);
      });
    case Operation::Sin:
      return compose<Scalar, N>(u, [&](int k) {
        return k == 0 ? sin(a) : k == 1 ? cos(a) : k == 2 ? -sin(a) * half : -cos(a) * half * third;
      });
    case Operation::Cos:
      return compose<Scalar, N>(u, [&](int k) {
        return k == 0 ? cos(a) : k == 1 ? -sin(a) : k == 2 ? -cos(a) * half : sin(a) * half * third;
      });
    default: return apply_sigmoidal<Scalar, N>(node.operation, u);
  }
}

template <class Scalar, int N>
Jet<Scalar, N> evaluate(const Node& node, const Scalar& x) {
  using J = Jet<Scalar, N>;
  const auto left = [&] { return evaluate<Scalar, N>(*node.left, x); };
  const auto right = [&] { return evaluate<Scalar, N>(*node.right, x); };
  switch (node.operation) {
    case Operation::Literal: return constant<Scalar, N>(Constant<Scalar>::of(node.literal));
    case Operation::Pi: {
      static const Scalar pi = Constant<Scalar>::of(Interval::pi());
      return constant<Scalar, N>(pi);
    }
    case Operation::Variable: {
      J jet = constant<Scalar, N>(x);
      if constexpr (N >= 1) jet[1] = Scalar(1);
      return jet;
    }
    case Operation::Add:
    case Operation::Subtract: {
      J v = left();
      const J w = right();
      for (int k = 0; k <= N; ++k) v[k] = node.operation == Operation::Add ? v[k] + w[k] : v[k] - w[k];
      return v;
    }
    case Operation::Negate: {
      J v = left();
      for (Scalar& c : v) c = -c;
      return v;
    }
    case Operation::Multiply: return multiply<Scalar, N>(left(), right());
    case Operation::Divide: return divide<Scalar, N>(left(), right());
    default: return applied<Scalar, N>(node, left());
  }
}

// Taylor coefficients of any order by power series. Each elementary function is computed through the
// differential equation that it solves, as in Moore, Kearfott and Cloud, Introduction to Interval Analysis,
// 2009, section 9.3.
template <class Scalar>
using Series = std::vector<Scalar>;

/// Coefficient k of v w, using only the terms from first to last of v.
template <class Scalar>
Scalar product_term(const Series<Scalar>& v, const Series<Scalar>& w, size_t k, size_t first, size_t last) {
  Scalar sum(0);
  for (size_t j = first; j <= last; ++j) sum = sum + v[j] * w[k - j];
  return sum;
}

template <class Scalar>
Series<Scalar> product(const Series<Scalar>& v, const Series<Scalar>& w) {
  Series<Scalar> result(v.size(), Scalar(0));
  for (size_t k = 0; k < v.size(); ++k) result[k] = product_term(v, w, k, 0, k);
  return result;
}

template <class Scalar>
Series<Scalar> quotient(const Series<Scalar>& v, const Series<Scalar>& w) {
  Series<Scalar> result(v.size(), Scalar(0));
  for (size_t k = 0; k < v.size(); ++k)
    result[k] = (k == 0 ? v[0] : v[k] - product_term(result, w, k, 0, k - 1)) / w[0];
  return result;
}

template <class Scalar>
Series<Scalar> scaled(Series<Scalar> v, const Scalar& factor) {
  for (Scalar& c : v) c = c * factor;
  return v;
}

/// F(u), from F(u_0) and from coefficient k - 1 of F'(u), which may use coefficients of F(u) below k.
template <class Scalar, class Slope>
Series<Scalar> integrated(const Series<Scalar>& u, const Scalar& start, const Slope& slope) {
  Series<Scalar> result(u.size(), Scalar(0)), slopes(u.size(), Scalar(0));
  result[0] = start;
  for (size_t k = 1; k < u.size(); ++k) {
    slopes[k - 1] = slope(result, k - 1);
    Scalar sum(0);
    for (size_t j = 1; j <= k; ++j) sum = sum + u[j] * Scalar(static_cast<double>(j)) * slopes[k - j];
    result[k] = sum / Scalar(static_cast<double>(k));
  }
  return result;
}

template <class Scalar>
Series<Scalar> exponential(const Series<Scalar>& u) {
  return integrated(u, exp(u[0]), [](const Series<Scalar>& e, size_t k) { return e[k]; });
}

/// sigma' = sigma(u) sigma(-u), whose second factor keeps relative accuracy at both ends.
template <class Scalar>
Series<Scalar> logistic(const Series<Scalar>& u) {
  const Scalar other = sigmoid(-u[0]);
  return integrated(u, sigmoid(u[0]), [&](const Series<Scalar>& s, size_t k) {
    Scalar sum = s[k] * other;
    for (size_t j = 0; j < k; ++j) sum = sum - s[j] * s[k - j];
    return sum;
  });
}

template <class Scalar>
Series<Scalar> density(const Series<Scalar>& u) {
  Series<Scalar> result = exponential(scaled(product(u, u), Scalar(-0.5)));
  return scaled(result, Scalar(1) / sqrt(Scalar(2) * Scalar::pi()));
}

template <class Scalar>
Series<Scalar> constant_series(size_t terms, const Scalar& value) {
  Series<Scalar> series(terms, Scalar(0));
  series[0] = value;
  return series;
}

/// The operation of a node on its one argument.
template <class Scalar>
Series<Scalar> series_applied(const Node& node, const Series<Scalar>& u) {
  const size_t terms = u.size();
  const Scalar& a = u[0];
  switch (node.operation) {
    case Operation::Power: {
      Series<Scalar> result = constant_series<Scalar>(terms, Scalar(1));
      for (int k = 0; k < std::abs(node.power); ++k) result = k == 0 ? u : product(result, u);
      return node.power >= 0 ? result : quotient(constant_series<Scalar>(terms, Scalar(1)), result);
    }
    case Operation::Exp: return exponential(u);
    case Operation::Log: {
      const Series<Scalar> reciprocal = quotient(constant_series<Scalar>(terms, Scalar(1)), u);
      return integrated(u, log(a), [&](const Series<Scalar>&, size_t k) { return reciprocal[k]; });
    }
    case Operation::Sqrt: {
      Series<Scalar> r = constant_series<Scalar>(terms, root(a));
      for (size_t k = 1; k < terms; ++k) r[k] = (u[k] - product_term(r, r, k, 1, k - 1)) / (r[0] * Scalar(2));
      return r;
    }
    case Operation::Tanh: {  // 2 sigma(2 u) - 1, except for the constant term, which that form would cancel
      Series<Scalar> result = scaled(logistic(scaled(u, Scalar(2))), Scalar(2));
      result[0] = tanh(a);
      return result;
    }
    case Operation::Sigmoid: return logistic(u);
    case Operation::Softplus: {
      const Series<Scalar> slope = logistic(u);
      return integrated(u, softplus(a), [&](const Series<Scalar>&, size_t k) { return slope[k]; });
    }
    case Operation::NormalCdf: {
      const Series<Scalar> slope = density(u);
      return integrated(u, normal_cdf(a), [&](const Series<Scalar>&, size_t k) { return slope[k]; });
    }
    case Operation::Erf: {
      const Scalar two = sqrt(Scalar(2));
      const Series<Scalar> argument = scaled(u, two), slope = density(argument);
      Series<Scalar> result = scaled(integrated(argument, normal_cdf(argument[0]),
                                                [&](const Series<Scalar>&, size_t k) { return slope[k]; }),
                                     Scalar(2));
      result[0] = result[0] - Scalar(1);
      return result;
    }
    case Operation::Abs: {
      Series<Scalar> result = scaled(u, sign_of(a));
      result[0] = absolute(a);
      return result;
    }
    case Operation::Sin:
    case Operation::Cos: {
      Series<Scalar> s = constant_series<Scalar>(terms, sin(a)), c = constant_series<Scalar>(terms, cos(a));
      for (size_t k = 1; k < terms; ++k) {
        const Scalar by(static_cast<double>(k));
        for (size_t j = 1; j <= k; ++j) {
          const Scalar weight = u[j] * Scalar(static_cast<double>(j)) / by;
          s[k] = s[k] + weight * c[k - j];
          c[k] = c[k] - weight * s[k - j];
        }
      }
      return node.operation == Operation::Sin ? s : c;
    }
    default: return constant_series<Scalar>(terms, Scalar(0));
  }
}

template <class Scalar>
Series<Scalar> taylor_of(const Node& node, const Scalar& x, size_t terms) {
  const auto left = [&] { return taylor_of<Scalar>(*node.left, x, terms); };
  const auto right = [&] { return taylor_of<Scalar>(*node.right, x, terms); };
  switch (node.operation) {
    case Operation::Literal: return constant_series<Scalar>(terms, Scalar(node.literal));
    case Operation::Pi: return constant_series<Scalar>(terms, Scalar(Interval::pi()));
    case Operation::Variable: {
      Series<Scalar> series = constant_series<Scalar>(terms, x);
      if (terms > 1) series[1] = Scalar(1);
      return series;
    }
    case Operation::Add:
    case Operation::Subtract: {
      Series<Scalar> v = left();
      const Series<Scalar> w = right();
      for (size_t k = 0; k < terms; ++k) v[k] = node.operation == Operation::Add ? v[k] + w[k] : v[k] - w[k];
      return v;
    }
    case Operation::Negate: return scaled(left(), Scalar(-1));
    case Operation::Multiply:
      if (node.left->operation == Operation::Literal) return scaled(right(), Scalar(node.left->literal));
      return product(left(), right());
    case Operation::Divide: return quotient(left(), right());
    default: return series_applied(node, left());
  }
}

bool same(const Tree& f, const Tree& g) {
  if (!f || !g) return !f && !g;
  return f->operation == g->operation && f->power == g->power && f->literal.identical(g->literal) &&
         same(f->left, g->left) && same(f->right, g->right);
}

// Like same(), but the pattern's literal `hole` stands for any literal, which is returned in `found`.
bool matches(const Tree& f, const Tree& pattern, const Interval& hole, const Interval*& found) {
  if (!f || !pattern) return !f && !pattern;
  if (pattern->operation == Operation::Literal && f->operation == Operation::Literal &&
      pattern->literal.identical(hole)) {
    found = &f->literal;
    return true;
  }
  return f->operation == pattern->operation && f->power == pattern->power &&
         f->literal.identical(pattern->literal) && matches(f->left, pattern->left, hole, found) &&
         matches(f->right, pattern->right, hole, found);
}

}  // namespace

Function Function::parse(std::string_view text) { return Function(Parser(text).whole()); }

template <int N, int Bits>
Derivatives<BasicInterval<Bits>, N> Function::at(const BasicInterval<Bits>& x) const {
  Jet<BasicInterval<Bits>, N> jet = evaluate<BasicInterval<Bits>, N>(*root_, x);
  if constexpr (N >= 2) jet[2] = jet[2] * 2;
  return jet;
}

template Derivatives<Interval, 0> Function::at<0>(const Interval&) const;
template Derivatives<Interval, 1> Function::at<1>(const Interval&) const;
template Derivatives<Interval, 2> Function::at<2>(const Interval&) const;
template Derivatives<MediumInterval, 0> Function::at<0>(const MediumInterval&) const;
template Derivatives<MediumInterval, 1> Function::at<1>(const MediumInterval&) const;
template Derivatives<MediumInterval, 2> Function::at<2>(const MediumInterval&) const;

template Derivatives<OracleInterval<0>, 0> Function::at<0>(const OracleInterval<0>&) const;
template Derivatives<OracleInterval<1>, 0> Function::at<0>(const OracleInterval<1>&) const;
template Derivatives<OracleInterval<2>, 0> Function::at<0>(const OracleInterval<2>&) const;
template Derivatives<OracleInterval<3>, 0> Function::at<0>(const OracleInterval<3>&) const;
template Derivatives<OracleInterval<4>, 0> Function::at<0>(const OracleInterval<4>&) const;
template Derivatives<OracleInterval<0>, 1> Function::at<1>(const OracleInterval<0>&) const;
template Derivatives<OracleInterval<1>, 1> Function::at<1>(const OracleInterval<1>&) const;
template Derivatives<OracleInterval<2>, 1> Function::at<1>(const OracleInterval<2>&) const;
template Derivatives<OracleInterval<3>, 1> Function::at<1>(const OracleInterval<3>&) const;
template Derivatives<OracleInterval<4>, 1> Function::at<1>(const OracleInterval<4>&) const;

template <int Bits>
std::vector<BasicInterval<Bits>> Function::taylor(const BasicInterval<Bits>& x, int order) const {
  return taylor_of<BasicInterval<Bits>>(*root_, x, static_cast<size_t>(order) + 1);
}

template std::vector<MediumInterval> Function::taylor(const MediumInterval&, int) const;
template std::vector<CoarseInterval> Function::taylor(const CoarseInterval&, int) const;

Derivatives<double, 1> Function::approximate(double x) const { return evaluate<double, 1>(*root_, x); }

std::array<double, 4> Function::over_disc(double middle, double radius) const {
  const CoarseInterval side = symmetric(CoarseInterval(radius));
  const Jet<Box, 3> jet = evaluate<Box, 3>(*root_, Box(CoarseInterval(middle) + side, side));
  const auto scaled = [](const Box& v, double factorial) { return (v * Box(factorial)).magnitude(); };
  return {jet[0].magnitude(), jet[1].magnitude(), scaled(jet[2], 2), scaled(jet[3], 6)};
}

bool operator==(const Function& f, const Function& g) { return same(f.root_, g.root_); }

const Interval* Function::match(const Function& pattern, const Interval& hole) const {
  const Interval* found = nullptr;
  return matches(root_, pattern.root_, hole, found) ? found : nullptr;
}

}  // namespace outgrad::validation
