// One subject for each header, see shipped.h.

#include "validation/sweep/shipped.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "kernels/activations.h"
#include "kernels/catalogue/codes.h"
#include "kernels/catalogue/few_bits.h"
#include "kernels/forward_fits.h"
#include "kernels/tuned.h"
#include "validation/sweep/store_subject.h"
#include "validation/sweep/subject.h"

namespace outgrad::validation {
namespace {

/// The storage type that belongs to a format's name.
template <class Fit>
using StorageOf = std::conditional_t<
    Fit::kFormat == std::string_view("f32"), float,
    std::conditional_t<Fit::kFormat == std::string_view("f16"), kernels::F16, kernels::BF16>>;
template <class Fit>
constexpr const FloatFormat& format_of() {
  return Fit::kFormat == kF32.name ? kF32 : Fit::kFormat == kF16.name ? kF16 : kBf16;
}

/// The header must be of the function that is swept for its activation.
template <class Header>
const SweptActivation& activation_of_header() {
  const SweptActivation* const activation = swept_activation(Header::kActivation);
  bool same = activation && Function::parse(activation->function) == Function::parse(Header::kFunction);
  if constexpr (requires { Header::kMasked; }) same = same && activation->masked() == Header::kMasked;
  if (!same)
    throw std::logic_error(fmt::format("{}: '{}' is not the {} that is swept", Header::kName,
                                       Header::kFunction, Header::kActivation));
  return *activation;
}

template <class Fit>
constexpr bool kIsGelu = std::string_view("gelu") == Fit::kActivation;

/// Of GELU, which has several fits of a format; the others' are all deployed.
template <class Fit>
constexpr bool is_deployed() {
  if constexpr (kIsGelu<Fit>)
    return std::is_same_v<Fit, typename kernels::tuned::GeluBackward<StorageOf<Fit>>::Fit>;
  return true;
}

template <class Fit>
Subject make() {
  using T = StorageOf<Fit>;
  const SweptActivation& activation = activation_of_header<Fit>();
  Subject subject = [&] {
    if constexpr (kIsGelu<Fit>) {
      return make_subject<Fit, typename kernels::tuned::GeluForward<T>::Fit, T>(format_of<Fit>());
    } else if constexpr (std::is_same_v<T, float>) {
      return make_subject<Fit, kernels::ForwardFitOf<Fit, float>, float>(kF32, activation);
    } else {
      return make_backward_subject<Fit, T>(format_of<Fit>(), activation);
    }
  }();
  subject.deployed = is_deployed<Fit>();
  return subject;
}

template <class Fit>
void add(std::vector<Shipped>& list) {
  if constexpr (Fit::kFormat == kF32.name || Fit::kFormat == kF16.name || Fit::kFormat == kBf16.name) {
    list.push_back({&activation_of_header<Fit>(), Fit::kFormat, Fit::kName, Fit::kName, is_deployed<Fit>(),
                    false, make<Fit>});
  }
}

// The stores of a header that serves several formats.
template <class Header>
void add_stores(std::vector<Shipped>& list, const FloatFormat& format,
                Subject (*make)(int activation, const FloatFormat& format)) {
  list.push_back({&activation_of_header<Header>(), std::string(format.name), Header::kName,
                  fmt::format("{}_{}", Header::kName, format.name), false, true,
                  [make, format] { return make(detail::activation_number(Header::kActivation), format); }});
}

template <class... A>
void add_codes(std::vector<Shipped>& list, kernels::CodedList<A...>) {
  for (const FloatFormat& format : {kF32, kF16, kBf16})
    (add_stores<typename A::Code>(list, format, make_codes_subject), ...);
}

template <class... A>
void add_few_bits(std::vector<Shipped>& list, kernels::Fp8List<A...>) {
  for (const FloatFormat& format : {kF16, kBf16})
    (add_stores<typename A::Header>(list, format, make_few_bits_subject), ...);
}

template <class Y, class... Fit>
void add_parity(std::vector<Shipped>& list, kernels::ParityFitList<Fit...>) {
  static const FloatFormat& kFormat = std::is_same_v<Y, kernels::ParityF16> ? kF16 : kBf16;
  (list.push_back(
       {&activation_of_header<Fit>(), std::string(kFormat.name), Fit::kName, Fit::kName, false, true,
        [] {
          return make_parity_subject(detail::activation_number(Fit::kActivation), kFormat, Fit::kName,
                                     detail::claims_of<Fit>(), detail::derivatives<Fit, Y>);
        }}),
   ...);
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
  add_codes(list, kernels::CodedActivations{});
  add_few_bits(list, kernels::Fp8Activations{});
  add_parity<kernels::ParityF16>(list, kernels::ParityFits<kernels::ParityF16>::Type{});
  add_parity<kernels::ParityBf16>(list, kernels::ParityFits<kernels::ParityBf16>::Type{});
  kernels::for_each_fit([&](auto fit) { add<decltype(fit)>(list); });
  const auto place = [](const Shipped& s) {
    const auto& all = swept_activations();
    const int format = s.format == kF32.name ? 0 : s.format == kF16.name ? 1 : 2;
    return std::tuple(std::find(all.begin(), all.end(), s.activation) - all.begin(), format, !s.deployed);
  };
  std::stable_sort(list.begin(), list.end(),
                   [&](const Shipped& a, const Shipped& b) { return place(a) < place(b); });
  return list;
}

}  // namespace

const std::vector<Shipped>& shipped() {
  static const std::vector<Shipped> list = list_all();
  return list;
}

}  // namespace outgrad::validation
