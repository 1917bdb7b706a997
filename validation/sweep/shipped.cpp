// One subject for each header, see shipped.h.

#include "validation/sweep/shipped.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "kernels/activations.h"
#include "kernels/tuned.h"
#include "validation/sweep/subject.h"

namespace outgrad::validation {
namespace {

/// The storage type that belongs to a format's name.
template <class Fit>
using StorageOf = std::conditional_t<Fit::kFormat == std::string_view("f32"), float,
                                     std::conditional_t<Fit::kFormat == std::string_view("f16"), kernels::F16, kernels::BF16>>;
template <class Fit>
constexpr const FloatFormat& format_of() {
  return Fit::kFormat == kF32.name ? kF32 : Fit::kFormat == kF16.name ? kF16 : kBf16;
}

/// The header must be of the function that is swept for its activation.
template <class Fit>
const SweptActivation& activation_of_header() {
  const SweptActivation* const activation = swept_activation(Fit::kActivation);
  if (!activation || !(Function::parse(activation->function) == Function::parse(Fit::kFunction)) || activation->masked() != Fit::kMasked) {
    throw std::logic_error(fmt::format("{}: '{}' is not the {} that is swept", Fit::kName, Fit::kFunction, Fit::kActivation));
  }
  return *activation;
}

template <class Fit>
using DeployedGelu = typename kernels::tuned::GeluBackward<StorageOf<Fit>>::Fit;

template <class Fit>
Subject make() {
  const SweptActivation& activation = activation_of_header<Fit>();
  if constexpr (std::string_view("gelu") == Fit::kActivation) {
    Subject subject = make_subject<Fit, typename kernels::tuned::GeluForward<StorageOf<Fit>>::Fit, StorageOf<Fit>>(format_of<Fit>());
    subject.deployed = std::is_same_v<Fit, DeployedGelu<Fit>>;
    return subject;
  } else {
    Subject subject = make_backward_subject<Fit, StorageOf<Fit>>(format_of<Fit>(), activation);
    subject.deployed = true;
    return subject;
  }
}

template <class Fit>
void add(std::vector<Shipped>& list) {
  if constexpr (Fit::kFormat == kF32.name || Fit::kFormat == kF16.name || Fit::kFormat == kBf16.name) {
    bool deployed = true;
    if constexpr (std::string_view("gelu") == Fit::kActivation) deployed = std::is_same_v<Fit, DeployedGelu<Fit>>;
    list.push_back({&activation_of_header<Fit>(), Fit::kFormat, Fit::kName, deployed, make<Fit>});
  }
}

// GELU has other fits beside the default one.
template <class Gelu, class... Fit>
void add_others(std::vector<Shipped>& list, kernels::FitList<Gelu, Fit...>) {
  (add<Fit>(list), ...);
}

std::vector<Shipped> list_all() {
  std::vector<Shipped> list;
  add_others(list, kernels::ActivationFits<float>::Type{});
  add_others(list, kernels::ActivationFits<kernels::F16>::Type{});
  add_others(list, kernels::ActivationFits<kernels::BF16>::Type{});
  kernels::for_each_fit([&](auto fit) { add<decltype(fit)>(list); });
  const auto place = [](const Shipped& s) {
    const auto& all = swept_activations();
    const int format = s.format == kF32.name ? 0 : s.format == kF16.name ? 1 : 2;
    return std::tuple(std::find(all.begin(), all.end(), s.activation) - all.begin(), format, !s.deployed);
  };
  std::stable_sort(list.begin(), list.end(), [&](const Shipped& a, const Shipped& b) { return place(a) < place(b); });
  return list;
}

}  // namespace

const std::vector<Shipped>& shipped() {
  static const std::vector<Shipped> list = list_all();
  return list;
}

}  // namespace outgrad::validation
