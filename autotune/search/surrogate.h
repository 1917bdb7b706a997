// A Gaussian process over the points of a space: what a search knows of points that it has not evaluated.
//
// The process is k(x, x') = v m(r) + noise [x = x'], r^2 = sum over coordinates of (difference / length)^2, m
// the Matern function of smoothness 5/2: m(r) = (1 + sqrt5 r + 5 r^2 / 3) exp(-sqrt5 r). Lengths and noise
// maximise the marginal likelihood.
//
// A parameter gives a coordinate: its values, or their logarithms where they span a factor of four or more,
// as sizes do. One whose values are not all powers of two gives a second: how many times two divides the
// value. Sizes of 32 and 48 are neighbours in the first and far apart in the second, which decides about
// alignment, whole warps and equal shares; the fitted lengths weigh the two.
//
// Mean and variance are kept for a fixed list of candidates and updated by each observation: with V = L^-1
// K(observed, candidates), L the Cholesky factor of the observations' covariance, an observation adds one row
// to V; the mean is V^T (L^-1 y), the variance v - column sums of V^2. An observation after n others costs n
// multiplications a candidate.
#pragma once

#include <cstddef>
#include <vector>

#include "autotune/space/space.h"

namespace outgrad::autotune {

// Coordinates of points, each scaled to [0, 1].
class Features {
 public:
  explicit Features(const Points& points);  // which must outlive it
  std::size_t dimensions() const { return coordinates_.size(); }
  float at(std::size_t dimension, std::size_t point) const {
    return coordinates_[dimension].scaled[points_->position(point, coordinates_[dimension].parameter)];
  }
  double square_distance(std::size_t a, std::size_t b) const;

 private:
  struct Coordinate {
    std::size_t parameter;
    std::vector<float> scaled;  // by position of the parameter's value
  };
  const Points* points_;
  std::vector<Coordinate> coordinates_;
};

struct Hyperparameters {
  std::vector<double> log_length;  // per dimension
  double log_noise = -4;  // noise variance as a share of v, logarithm
};

// Hyperparameters that (nearly) maximise the marginal likelihood of y at these points, v being profiled out,
// under a prior that keeps lengths near the size of the space; gradient steps from `start`. y has mean 0.
Hyperparameters fit_hyperparameters(const Features& features, const std::vector<std::size_t>& points,
                                    const std::vector<double>& y, Hyperparameters start);

class GaussianProcess {
 public:
  // Features must outlive it. Candidates and observations are points of theirs.
  GaussianProcess(const Features& features, std::vector<std::size_t> candidates,
                  const Hyperparameters& hyperparameters);

  void observe(std::size_t point, double y);
  void forget_last();  // the latest observation

  struct Prediction {
    double mean, variance;  // variance as a share of v, without the noise
  };
  const std::vector<std::size_t>& candidates() const { return candidates_; }
  // by place in candidates()
  Prediction at(std::size_t candidate) const { return {mean_[candidate], variance_[candidate]}; }
  // of any point; n^2 / 2 multiplications
  Prediction predict(std::size_t point) const;
  double noise() const { return noise_; }
  double scale() const;  // v, from what was observed: the mean of (L^-1 y)^2

 private:
  struct Row {
    std::vector<float> here;  // the observation's coordinates, divided by the lengths
    std::vector<float> l;  // the row of L left of its diagonal
    float pivot, weight;  // L's diagonal, and the entry of L^-1 y
    std::vector<float> v;  // the row of V
  };
  std::vector<float> coordinates_of(std::size_t point) const;
  std::vector<float> solve(const std::vector<float>& here) const;  // L^-1 K(observed, here)

  const Features* features_;
  std::vector<std::size_t> candidates_;
  std::vector<float> inverse_length_;
  double noise_;
  std::vector<std::vector<float>> coordinates_;  // of the candidates; by dimension
  std::vector<Row> rows_;  // by observation
  std::vector<float> mean_, variance_;  // by candidate
};

}  // namespace outgrad::autotune
