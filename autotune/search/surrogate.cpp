// Hyperparameters by gradient steps on the marginal likelihood; predictions kept up to date row by row.
#include "autotune/search/surrogate.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace outgrad::autotune {
namespace {

constexpr double kRoot5 = 2.23606797749978969;

float matern(float square) {
  const float r = static_cast<float>(kRoot5) * std::sqrt(square);
  return (1 + r + r * r / 3) * std::exp(-r);
}

// Lower Cholesky factor in place, by rows; false where the matrix is not positive definite.
// Not Eigen's: its sums follow the vector width, while a seed proposes the same points on every machine; and
// its headers, 2.2 MB, would more than double what is carried to a GPU machine.
bool factorise(std::vector<double>& a, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j <= i; ++j) {
      double sum = a[i * n + j];
      for (std::size_t k = 0; k < j; ++k) sum -= a[i * n + k] * a[j * n + k];
      if (i != j) {
        a[i * n + j] = sum / a[j * n + j];
      } else {
        if (!(sum > 0)) return false;
        a[i * n + i] = std::sqrt(sum);
      }
    }
  return true;
}

}  // namespace

Features::Features(const Points& points) : points_(&points) {
  constexpr double kFactor = 4;  // beyond it a doubling matters more than a step
  for (std::size_t p = 0; p < points.parameters().size(); ++p) {
    const std::vector<std::int64_t>& values = points.parameters()[p].values;
    if (values.size() < 2) continue;
    const auto add = [&](const auto& coordinate) {
      std::vector<double> raw;
      for (const std::int64_t value : values) raw.push_back(coordinate(value));
      const auto [least, most] = std::minmax_element(raw.begin(), raw.end());
      if (*least == *most) return;
      Coordinate added{p, {}};
      for (const double at : raw)
        added.scaled.push_back(static_cast<float>((at - *least) / (*most - *least)));
      coordinates_.push_back(std::move(added));
    };
    // As many coordinates as there are things, each with a length of its own: a fit may stand alone, or be
    // like another.
    static constexpr std::size_t kMostThings = 40;
    if (points.parameters()[p].nominal && values.size() > 2 && values.size() <= kMostThings) {
      for (const std::int64_t thing : values)
        add([thing](std::int64_t value) { return value == thing ? 1 : 0; });
      continue;
    }
    const auto [least, most] = std::minmax_element(values.begin(), values.end());
    const bool logarithmic =
        *least > 0 && static_cast<double>(*most) >= kFactor * static_cast<double>(*least);
    add([&](std::int64_t value) {
      return logarithmic ? std::log2(static_cast<double>(value)) : static_cast<double>(value);
    });

    static constexpr int kMostTwos = 6;  // 64 divides: as aligned as anything asks for
    constexpr std::size_t kFew = 3;  // so many values are told apart by one coordinate
    const auto power_of_two = [](std::int64_t value) {
      return value >= 0 && (value & (value - 1)) == 0;
    };  // 0 passes: "off"
    if (values.size() > kFew && !std::all_of(values.begin(), values.end(), power_of_two))
      add([](std::int64_t value) {
        return value == 0 ? kMostTwos
                          : std::min(kMostTwos, std::countr_zero(static_cast<std::uint64_t>(value)));
      });
  }
}

double Features::square_distance(std::size_t a, std::size_t b) const {
  double sum = 0;
  for (std::size_t d = 0; d < dimensions(); ++d) {
    const double difference = at(d, a) - at(d, b);
    sum += difference * difference;
  }
  return sum;
}

namespace {

// Log density of observations and of the prior, up to a constant, and its gradient.
class Likelihood {
 public:
  Likelihood(const Features& features, const std::vector<std::size_t>& points, const std::vector<double>& y)
      : n_(points.size()), dimensions_(features.dimensions()), y_(y),
        squares_(dimensions_, std::vector<double>(n_ * n_)), covariance_(n_ * n_), slope_(n_ * n_),
        gradient_(dimensions_ + 1) {
    for (std::size_t d = 0; d < dimensions_; ++d)
      for (std::size_t i = 0; i < n_; ++i)
        for (std::size_t j = 0; j < i; ++j) {
          const double difference = features.at(d, points[i]) - features.at(d, points[j]);
          squares_[d][i * n_ + j] = difference * difference;
        }
  }

  // By log lengths, then by log noise, where density() was called last.
  const std::vector<double>& gradient() const { return gradient_; }

  // -infinity where the covariance is singular.
  double density(const Hyperparameters& h) {
    const double noise = std::exp(h.log_noise);
    std::vector<double> inverse_square(dimensions_);
    for (std::size_t d = 0; d < dimensions_; ++d) inverse_square[d] = std::exp(-2 * h.log_length[d]);
    set_covariance(inverse_square, noise);
    if (!factorise(covariance_, n_)) return -INFINITY;
    double log_determinant = 0;
    for (std::size_t i = 0; i < n_; ++i) log_determinant += 2 * std::log(covariance_[i * n_ + i]);
    const std::vector<double> inverse = inverse_covariance();
    std::vector<double> alpha(n_);
    double quadratic = 0;
    for (std::size_t i = 0; i < n_; ++i) {
      for (std::size_t j = 0; j < n_; ++j)
        alpha[i] += (j <= i ? inverse[i * n_ + j] : inverse[j * n_ + i]) * y_[j];
      quadratic += alpha[i] * y_[i];
    }
    const double v = std::max(quadratic / static_cast<double>(n_), 1e-12);
    std::fill(gradient_.begin(), gradient_.end(), 0.0);
    for (std::size_t i = 0; i < n_; ++i) {
      gradient_[dimensions_] += 0.5 * noise * (alpha[i] * alpha[i] / v - inverse[i * n_ + i]);
      for (std::size_t j = 0; j < i; ++j) {
        const double factor = slope_[i * n_ + j] * (alpha[i] * alpha[j] / v - inverse[i * n_ + j]);
        for (std::size_t d = 0; d < dimensions_; ++d)
          gradient_[d] += factor * squares_[d][i * n_ + j] * inverse_square[d];
      }
    }
    return with_prior(-0.5 * static_cast<double>(n_) * std::log(v) - 0.5 * log_determinant, h);
  }

 private:
  void set_covariance(const std::vector<double>& inverse_square, double noise) {
    for (std::size_t i = 0; i < n_; ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        double square = 0;
        for (std::size_t d = 0; d < dimensions_; ++d) square += squares_[d][i * n_ + j] * inverse_square[d];
        const double r = kRoot5 * std::sqrt(square), decay = std::exp(-r);
        covariance_[i * n_ + j] = (1 + r + r * r / 3) * decay;
        // -2 dm/d(r^2), the derivative by log length d being slope x square_d
        slope_[i * n_ + j] = 5.0 / 3 * (1 + r) * decay;
      }
      covariance_[i * n_ + i] = 1 + noise;
    }
  }

  // From the Cholesky factor: L^-1 by rows, then L^-T L^-1 where it is needed.
  std::vector<double> inverse_covariance() const {
    std::vector<double> inverse(n_ * n_), product(n_ * n_);
    for (std::size_t i = 0; i < n_; ++i) {
      double* row = &inverse[i * n_];
      row[i] = 1;
      for (std::size_t k = 0; k < i; ++k) {
        const double factor = covariance_[i * n_ + k];
        const double* above = &inverse[k * n_];
        for (std::size_t j = 0; j <= k; ++j) row[j] -= factor * above[j];
      }
      for (std::size_t j = 0; j <= i; ++j) row[j] /= covariance_[i * n_ + i];
    }
    for (std::size_t k = 0; k < n_; ++k) {
      const double* row = &inverse[k * n_];
      for (std::size_t i = 0; i <= k; ++i)
        for (std::size_t j = 0; j <= i; ++j) product[i * n_ + j] += row[i] * row[j];
    }
    return product;
  }

  // Lengths log-normal about 1 (the whole range), noise about exp(-6) of the variance: wide, so that few
  // observations do not mislead.
  double with_prior(double density, const Hyperparameters& h) {
    constexpr double kLengthSpread = 1.5, kNoiseCentre = -6, kNoiseSpread = 2;
    for (std::size_t d = 0; d < dimensions_; ++d) {
      const double z = h.log_length[d] / kLengthSpread;
      density -= 0.5 * z * z;
      gradient_[d] -= z / kLengthSpread;
    }
    const double z = (h.log_noise - kNoiseCentre) / kNoiseSpread;
    gradient_[dimensions_] -= z / kNoiseSpread;
    return density - 0.5 * z * z;
  }

  const std::size_t n_, dimensions_;
  const std::vector<double>& y_;
  std::vector<std::vector<double>> squares_;  // of coordinate differences, by dimension
  std::vector<double> covariance_, slope_, gradient_;
};

}  // namespace

Hyperparameters fit_hyperparameters(const Features& features, const std::vector<std::size_t>& points,
                                    const std::vector<double>& y, Hyperparameters start) {
  const std::size_t dimensions = features.dimensions(), unknowns = dimensions + 1;
  start.log_length.resize(dimensions, 0.0);
  Likelihood likelihood(features, points, y);
  // Resilient propagation (Riedmiller and Braun 1993): steps by sign, longer while the sign lasts. Needs no
  // scale and no line search.
  constexpr int kSteps = 30;
  std::vector<double> step(unknowns, 0.3), before(unknowns, 0.0);
  Hyperparameters best = start, now = start;
  double best_density = -INFINITY;
  for (int iteration = 0; iteration < kSteps; ++iteration) {
    const double density = likelihood.density(now);
    if (density == -INFINITY) {
      now = best;
      now.log_noise += 1;
      continue;
    }
    if (density > best_density) best_density = density, best = now;
    const std::vector<double>& gradient = likelihood.gradient();
    for (std::size_t u = 0; u < unknowns; ++u) {
      const double agreement = gradient[u] * before[u];
      step[u] = std::clamp(step[u] * (agreement > 0 ? 1.3 : agreement < 0 ? 0.5 : 1.0), 1e-3, 1.0);
      double& value = u < dimensions ? now.log_length[u] : now.log_noise;
      value += gradient[u] > 0 ? step[u] : gradient[u] < 0 ? -step[u] : 0.0;
      value = u < dimensions ? std::clamp(value, -3.0, 4.0) : std::clamp(value, -11.0, 1.0);
    }
    before = gradient;
  }
  return best;
}

GaussianProcess::GaussianProcess(const Features& features, std::vector<std::size_t> candidates,
                                 const Hyperparameters& hyperparameters)
    : features_(&features), candidates_(std::move(candidates)), noise_(std::exp(hyperparameters.log_noise)),
      mean_(candidates_.size(), 0.0F), variance_(candidates_.size(), 1.0F) {
  for (std::size_t d = 0; d < features.dimensions(); ++d) {
    inverse_length_.push_back(static_cast<float>(std::exp(-hyperparameters.log_length[d])));
    std::vector<float> row;
    for (const std::size_t point : candidates_) row.push_back(features.at(d, point) * inverse_length_[d]);
    coordinates_.push_back(std::move(row));
  }
}

std::vector<float> GaussianProcess::coordinates_of(std::size_t point) const {
  std::vector<float> here;
  for (std::size_t d = 0; d < inverse_length_.size(); ++d)
    here.push_back(features_->at(d, point) * inverse_length_[d]);
  return here;
}

std::vector<float> GaussianProcess::solve(const std::vector<float>& here) const {
  std::vector<float> solved;
  for (const Row& row : rows_) {
    float square = 0;
    for (std::size_t d = 0; d < here.size(); ++d) square += (here[d] - row.here[d]) * (here[d] - row.here[d]);
    double sum = matern(square);
    for (std::size_t k = 0; k < row.l.size(); ++k) sum -= static_cast<double>(row.l[k]) * solved[k];
    solved.push_back(static_cast<float>(sum / row.pivot));
  }
  return solved;
}

void GaussianProcess::observe(std::size_t point, double y) {
  Row row{coordinates_of(point), {}, 1, 0, std::vector<float>(candidates_.size())};
  row.l = solve(row.here);
  double diagonal = 1 + noise_, rest = y;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    diagonal -= static_cast<double>(row.l[i]) * row.l[i];
    rest -= static_cast<double>(row.l[i]) * rows_[i].weight;
  }
  // rounding may leave less than the noise
  row.pivot = static_cast<float>(std::sqrt(std::max(diagonal, 1e-6)));
  row.weight = static_cast<float>(rest / row.pivot);

  for (std::size_t d = 0; d < row.here.size(); ++d)
    for (std::size_t c = 0; c < row.v.size(); ++c)
      row.v[c] += (coordinates_[d][c] - row.here[d]) * (coordinates_[d][c] - row.here[d]);
  for (float& v : row.v) v = matern(v);
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const float factor = row.l[i];
    const std::vector<float>& above = rows_[i].v;
    for (std::size_t c = 0; c < row.v.size(); ++c) row.v[c] -= factor * above[c];
  }
  for (std::size_t c = 0; c < row.v.size(); ++c) {
    row.v[c] /= row.pivot;
    mean_[c] += row.v[c] * row.weight;
    variance_[c] -= row.v[c] * row.v[c];
  }
  rows_.push_back(std::move(row));
}

void GaussianProcess::forget_last() {
  const Row& row = rows_.back();
  for (std::size_t c = 0; c < candidates_.size(); ++c) {
    mean_[c] -= row.v[c] * row.weight;
    variance_[c] += row.v[c] * row.v[c];
  }
  rows_.pop_back();
}

GaussianProcess::Prediction GaussianProcess::predict(std::size_t point) const {
  const std::vector<float> l = solve(coordinates_of(point));
  Prediction prediction{0, 1};
  for (std::size_t i = 0; i < l.size(); ++i) {
    prediction.mean += static_cast<double>(l[i]) * rows_[i].weight;
    prediction.variance -= static_cast<double>(l[i]) * l[i];
  }
  return prediction;
}

double GaussianProcess::scale() const {
  double sum = 0;
  for (const Row& row : rows_) sum += static_cast<double>(row.weight) * row.weight;
  return rows_.empty() ? 1 : sum / static_cast<double>(rows_.size());
}

}  // namespace outgrad::autotune
