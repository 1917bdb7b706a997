// The stores that the library has: what its kernels keep, and what they compute from it.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "kernels/catalogue/codes.h"
#include "kernels/catalogue/few_bits.h"
#include "kernels/fits.h"
#include "kernels/fitted_forward.h"
#include "kernels/stores/mxfp8.h"
#include "kernels/stores/parity.h"
#include "validation/front/front.h"

namespace outgrad::validation {
namespace {

using kernels::BF16;
using kernels::FloatOps;

// The same moments for every distribution: gradient(x) is what a backward pass computes for x.
template <class Gradient>
auto errors_by(Gradient gradient) {
  return [gradient](const FrontDomain& domain, const Distribution&) {
    std::vector<float> g;
    for (const float x : domain.x) g.push_back(gradient(x));
    return errors_of(g, domain);
  };
}

template <class Forward, class T>
T stored(T x) {
  if constexpr (requires { Forward::table(); }) {
    static constexpr auto kTables = kernels::forward_tables<Forward>();
    return kernels::fitted_forward_element(Forward{}, kTables, x).y;
  } else {
    return kernels::forward_of<Forward>(x);
  }
}

template <class Fit>
constexpr int operations_of() {
  if constexpr (kernels::kIsDirect<Fit>) {
    return 0;
  } else {
    return Fit::kOperations;
  }
}

template <class Forward>
bool right_of_minimum(float x) {
  if constexpr (requires { Forward::kXStar; }) {
    return Forward::kXStar <= x;
  } else {
    return true;
  }
}

// y in bf16 and a bit, as the plain kernels keep it.
template <class Fit, class Forward>
Store plain() {
  Store store;
  store.name = Fit::kMasked ? "bf16 y, bit" : "bf16 y";
  store.beyond = Fit::kMasked ? 1 : 0;
  store.all = kKeptY + store.beyond;
  store.proven = Fit::kT, store.proof = Fit::kName, store.operations = operations_of<Fit>();
  store.errors = errors_by([](float x) {
    const float y = kernels::widen(stored<Forward>(kernels::narrow<BF16>(x)));
    return kernels::evaluate_backward<Fit>(FloatOps{}, y, right_of_minimum<Forward>(x));
  });
  return store;
}

template <class Fit>
Store parity() {
  using Y = kernels::ParityBf16;
  Store store;
  store.name = "bf16 y with its branch";
  store.beyond = 0, store.all = kKeptY;
  store.proven = Fit::kT, store.proof = Fit::kName, store.operations = operations_of<Fit>();
  store.condition = "changes y < 0, by at most a unit in its last place";
  store.errors = errors_by([](float x) {
    const Y y = kernels::forward_to_branch<kernels::ParityForward<Fit>, Y>(kernels::narrow<BF16>(x));
    const bool left = (y.bits & 0x8001u) == 0x8001u;
    return kernels::evaluate_backward<Fit>(FloatOps{}, kernels::widen(y), !left);
  });
  return store;
}

// y in MXFP8 and a bit, in blocks whose largest magnitude is 2 to 4 or, where |y| is larger, as large as
// that.
Store mxfp8() {
  using Fit = kernels::generated::GeluMxfp8;
  using Forward = kernels::ForwardFit<BF16>::Type;
  constexpr double kCodeAndScale = 8 + 8.0 / kernels::Format<kernels::MxFp8>::kBlock;
  Store store;
  store.name = "MXFP8 y, bit";
  store.beyond = 1, store.all = kCodeAndScale + 1;
  store.proven = Fit::kT, store.proof = Fit::kName, store.operations = operations_of<Fit>();
  store.condition = "blocks with |y| below 2^12; found: in blocks with amax from 2 to 4";
  store.errors = errors_by([](float x) {
    static constexpr auto kTables = kernels::forward_tables<Forward>();
    const float y = kernels::fitted_forward_value<BF16>(FloatOps{}, Forward{}, kTables, x);
    const kernels::E8M0 scale =
        kernels::shared_scale(kernels::magnitude_in_block(std::max(std::fabs(y), 2.0f)));
    const float kept =
        kernels::mul_rn(kernels::widen(kernels::block_element(y, scale)), kernels::widen(scale));
    return kernels::evaluate_backward<Fit>(FloatOps{}, kept, Forward::kXStar <= x);
  });
  return store;
}

// y in e4m3 without a scale and a bit, by a direct table. Beyond 448 y is a NaN there, and g has its limit.
Store e4m3() {
  using Fit = kernels::generated::GeluE4m3Oracle;
  using Forward = kernels::ForwardFit<BF16>::Type;
  using Y = kernels::F8E4M3;
  Store store;
  store.name = "e4m3 y, bit";
  store.beyond = 1, store.all = 9;
  store.proven = Fit::kT, store.proof = Fit::kName, store.operations = operations_of<Fit>();
  store.condition = "no scale; |y| up to 448";
  store.errors = errors_by([](float x) {
    static constexpr auto kTables = kernels::forward_tables<Forward>();
    static constexpr auto kEntries = Fit::entries();
    const float y = std::min(kernels::fitted_forward_value<BF16>(FloatOps{}, Forward{}, kTables, x),
                             kernels::kLargestOf<kernels::F8E4M3>);
    const Y code = kernels::narrow<Y>(y);
    return kernels::evaluate_direct<Y>(FloatOps{}, Fit{}, kEntries, kernels::code_of(code),
                                       kernels::widen(code), Forward::kXStar <= x);
  });
  return store;
}

template <class A>
Store code(int bits) {
  const kernels::CodeRule rule = kernels::exact_code({A::Code::kLo, A::Code::kHi}, bits);
  Store store;
  store.name = fmt::format("code of {} bit{}", bits, bits == 1 ? "" : "s");
  store.beyond = bits, store.all = kKeptY + bits;
  store.proven = kernels::code_error<typename A::Code>(bits, false), store.proof = A::Code::kName,
  store.operations = 1;
  store.errors = errors_by([rule](float x) {
    const float g = kernels::gradient_at<typename A::template Forward<float>>(x);
    return kernels::gradient_of_code(rule, kernels::coded_gradient(rule, g));
  });
  return store;
}

// The dither on a grid of kDithers values, each for as many of the kernel's.
template <class A>
Store dithered_code(int bits) {
  constexpr kernels::u32 kDithers = 1024;
  const kernels::CodeRule rule = kernels::dithered_code({A::Code::kLo, A::Code::kHi}, bits);
  Store store;
  store.name = fmt::format("code of {} bits, dithered", bits);
  store.beyond = bits, store.all = kKeptY + bits;
  store.proven = kernels::code_error<typename A::Code>(bits, true), store.proof = A::Code::kName,
  store.operations = 2;
  store.errors = [rule](const FrontDomain& domain, const Distribution&) {
    std::vector<ErrorAt> errors;
    for (std::size_t i = 0; i < domain.x.size(); ++i) {
      const float g = kernels::gradient_at<typename A::template Forward<float>>(domain.x[i]);
      ErrorAt at;
      for (kernels::u32 k = 0; k < kDithers; ++k) {
        const float d = kernels::dither_of(k * (0xffffffffu / kDithers + 1) + 0x80000000u / kDithers);
        const double e =
            static_cast<double>(kernels::gradient_of_code(rule, kernels::coded_gradient(rule, g, d), d)) -
            domain.slope[i];
        at.mean += e / kDithers;
        at.square += e * e / kDithers;
        at.greatest = std::max(at.greatest, std::fabs(e));
      }
      errors.push_back(at);
    }
    return errors;
  };
  return store;
}

// y in 8 bits with the scale at which the parts of the codes are longest, of many by which 1 to 2 becomes the
// largest number; in int8, where less and less remains of small y as the largest grows, 4 to 8, the end of
// what is claimed.
template <class A, class Arithmetic>
Store scaled(int bits) {
  using F = typename Arithmetic::Code;
  constexpr int kScales = 128;
  constexpr float kFirstLargest = std::is_same_v<F, kernels::I8> ? 4 : 1;
  constexpr kernels::Fp8Claims kClaims = Arithmetic::template kClaims<typename A::Header>;
  constexpr double kBitsOfCode = 8;  // one scale a tensor is nothing beside it
  Store store;
  store.name =
      fmt::format("{} y at a scale, {} bit{}", kernels::Format<F>::kName, bits, bits == 1 ? "" : "s");
  store.beyond = bits, store.all = kBitsOfCode + bits;
  store.proven = kClaims.total[bits], store.proof = A::Header::kName, store.operations = 0;
  const auto table = std::make_shared<kernels::Fp8Table>();
  table->widest = 0;
  float worst = 0;
  for (int k = 0; k < kScales; ++k) {
    const float scale = kernels::kLargestOf<F> / kFirstLargest * kScales / static_cast<float>(kScales + k);
    kernels::Fp8Table other;
    kernels::fill_fp8_table<A, F>(scale, bits, other);
    if (other.widest > table->widest) *table = other, worst = scale;
  }
  store.condition = fmt::format("scales from {:g} to {:g}; found: at {:g}, the worst of {}", kClaims.least,
                                kClaims.most, worst, kScales);
  store.errors = errors_by([table, worst](float x) {
    const float y = kernels::forward_at<typename A::template Forward<float>>(x);
    const kernels::u8 code = kernels::fp8_code<F>(y, worst).bits;
    return table->values[kernels::part_of(
        *table, code, kernels::fitted_gradient<typename A::Fit, typename A::template Forward<float>>(x, y))]
                        [code];
  });
  return store;
}

// y in blocks of e2m1 whose largest magnitude is 2 or, where |y| is larger, as large as that; of NVFP4 with
// the tensor's scale for 64.
template <class A, class B>
Store in_blocks(int bits) {
  using Header = typename A::Header;
  using Scale = kernels::BlockScale<B>;
  constexpr double kSignT[] = {Header::kSignT0, Header::kSignT1, Header::kSignT2}, kScaleBits = 8;
  static constexpr float kAmax = 2;
  static const float kTensor = Scale::tensor_scale_for(64);
  Store store;
  std::string name = kernels::Format<B>::kName;
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::toupper(c); });
  store.name = fmt::format("{} y, {} bit{}", name, bits, bits == 1 ? "" : "s");
  store.beyond = bits, store.all = kernels::kFp4Bits + kScaleBits / kernels::Format<B>::kBlock + bits;
  store.proven = kSignT[bits], store.proof = Header::kName, store.operations = 0;
  store.condition = "every block; found: in blocks with amax 2, or |y| if that is larger";
  const auto tables = std::make_shared<kernels::Fp4Tables>();
  kernels::fill_fp4_tables<A, B>(kTensor, bits, 0, *tables);
  store.errors = errors_by([tables](float x) {
    const float y = kernels::forward_at<typename A::template Forward<float>>(x);
    const kernels::u8 scale = Scale::of(kernels::magnitude_in_block(std::max(std::fabs(y), kAmax)), kTensor);
    const kernels::u8 code = kernels::fp8_code<kernels::F4E2M1>(y, tables->multiplier[scale]).bits;
    const kernels::Fp4Table& table = tables->of_scale[scale];
    return table.values[kernels::part_of(
        table, code, kernels::fitted_gradient<typename A::Fit, typename A::template Forward<float>>(x, y))]
                       [code];
  });
  return store;
}

template <class... A>
void add_scaled(std::string_view activation, std::vector<Store>& stores, kernels::Fp8List<A...>) {
  const auto add = [&]<class Each>() {
    if (activation != Each::Header::kActivation) return;
    kernels::for_each_store([&]<kernels::StoreId kId>() {
      if constexpr (kernels::store_of(kId).has_parts) {
        using Arithmetic = kernels::StoreArithmetic<kId>;
        for (int bits = kId == kernels::StoreId::kE4m3 ? 0 : 1; bits <= kernels::kMostPartBits; ++bits) {
          if constexpr (requires { typename Arithmetic::Block; }) {
            stores.push_back(in_blocks<Each, typename Arithmetic::Block>(bits));
          } else {
            stores.push_back(scaled<Each, Arithmetic>(bits));
          }
        }
      }
    });
  };
  (add.template operator()<A>(), ...);
}

template <class... Fit>
void add_parity(std::string_view activation, std::vector<Store>& stores, kernels::ParityFitList<Fit...>) {
  ((activation == Fit::kActivation ? stores.push_back(parity<Fit>()) : void()), ...);
}

template <class A, class Fit>
void add(std::string_view activation, std::vector<Store>& stores) {
  if (activation != A::Code::kActivation) return;
  stores.push_back(plain<Fit, typename A::template Forward<BF16>>());
  add_parity(activation, stores, kernels::ParityFits<kernels::ParityBf16>::Type{});
  if (activation == std::string_view("gelu")) stores.push_back(mxfp8()), stores.push_back(e4m3());
  add_scaled(activation, stores, kernels::Fp8Activations{});
  for (int bits = 1; bits <= kernels::kMostCodeBits; ++bits) stores.push_back(code<A>(bits));
  for (int bits = kernels::kLeastDitheredBits; bits <= kernels::kMostDitheredBits; ++bits)
    stores.push_back(dithered_code<A>(bits));
}

template <class... A, class... Fit>
void add_all(std::string_view activation, std::vector<Store>& stores, kernels::CodedList<A...>,
             kernels::FitList<Fit...>) {
  (add<A, Fit>(activation, stores), ...);
}

}  // namespace

std::vector<Store> own_stores(const SweptActivation& f) {
  std::vector<Store> stores;
  add_all(f.name, stores, kernels::CodedActivations{}, kernels::ActivationFits<BF16>::Type{});
  if (stores.empty()) throw std::logic_error(fmt::format("{}: no store", f.name));
  for (Store& store : stores) store.origin = "outgrad";
  return stores;
}

}  // namespace outgrad::validation
