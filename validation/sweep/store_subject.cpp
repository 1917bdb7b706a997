// Calls of the compiled library with arrays in the stores' own formats, and what they keep as numbers.
#include "validation/sweep/store_subject.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "kernels/c/table.h"
#include "kernels/catalogue/codes.h"
#include "kernels/catalogue/few_bits.h"
#include "validation/sweep/fingerprint.h"
#include "validation/sweep/library_array.h"

namespace outgrad::validation {
namespace detail {

using kernels::Store;
using kernels::StoreId;
using std::int64_t;
using std::size_t;
using std::uint32_t;
using std::uint8_t;

VariedGradient over_dithers(const kernels::CodeRule& rule, float g, double want) {
  const auto code_at = [&](uint32_t dither) {
    return kernels::coded_gradient(rule, g, dither_numbered(dither));
  };
  const float in_cells = kernels::in_cells(kernels::FloatOps{}, rule, g);
  const uint32_t last_code = code_at(kDithers - 1);
  VariedGradient all{2, -2, 0, 0, 0, 0};  // f' and what codes stand for lie between
  for (uint32_t first = 0, end = 0; first < kDithers; first = end) {
    const kernels::u8 code = code_at(first);
    end = kDithers;
    if (code != last_code) {  // the first dither of a larger code, from where it is without roundings
      const double guess = (code + 1.0 - static_cast<double>(in_cells)) * kDithers;
      end = static_cast<uint32_t>(std::clamp(guess, first + 1.0, kDithers - 1.0));
      while (end > first + 1 && code_at(end - 1) > code) --end;
      while (code_at(end) <= code) ++end;
    }
    const float from = dither_numbered(first), to = dither_numbered(end - 1);
    const float greatest = kernels::gradient_of_code(rule, code, from),
                least = kernels::gradient_of_code(rule, code, to);
    if (greatest > all.greatest) all.greatest = greatest, all.greatest_at = from;
    if (least < all.least) all.least = least, all.least_at = to;
    const double count = end - first, share = count / kDithers,
                 step = static_cast<double>(rule.step) / kDithers;
    const double error = (code - (static_cast<double>(from) + to) / 2) * rule.step + rule.first - want;
    all.error += share * error;
    all.square += share * (error * error + step * step * (count * count - 1) / 12);
  }
  return all;
}

namespace {

/// A call of a store's kernels, whatever its arrays.
outgrad_call call_of(int activation, StoreId store, int bits, int64_t n) {
  outgrad_call call{};
  call.size = sizeof call;
  call.activation = activation;
  call.store = static_cast<outgrad_store>(store);
  call.bits = bits;
  call.n = n;
  return call;
}

void forward(const outgrad_call& call, const FloatFormat& format, const void* tables = nullptr) {
  const c::FormatKernels& all = c::chosen_kernels(library_format(format));
  all.forward[call.store][call.activation]({call, {}, 0, 0, tables});
}
void backward(const outgrad_call& call, const FloatFormat& format, c::Call more) {
  const c::FormatKernels& all = c::chosen_kernels(library_format(format));
  all.backward[call.store][call.activation]({call, more.arguments, more.lo, more.hi, more.tables});
}

/// The number at place i of packed ones of at most 8 bits, of which one byte more than they take is there;
/// and puts one where the bits are 0.
uint32_t bits_at(const uint8_t* packed, int bits, int64_t i) {
  const int64_t bit = i * bits;
  const uint32_t two = packed[bit / 8] | static_cast<uint32_t>(packed[bit / 8 + 1]) << 8;
  return two >> bit % 8 & ((1u << bits) - 1);
}
void put_bits(uint8_t* packed, int bits, int64_t i, uint32_t number) {
  const int64_t bit = i * bits;
  packed[bit / 8] = static_cast<uint8_t>(packed[bit / 8] | number << bit % 8);
  packed[bit / 8 + 1] = static_cast<uint8_t>(packed[bit / 8 + 1] | number >> (8 - bit % 8));
}
/// Room for n numbers of so many bits, and what bits_at may read beyond.
std::vector<uint8_t> room_for(int bits, int64_t n) {
  return std::vector<uint8_t>(static_cast<size_t>(kernels::code_bytes(bits, n)) + 2);
}
/// What a store has named by a float: 0 for one that names nothing.
uint32_t number_of(float kept, uint32_t numbers) {
  return kept >= 0 && kept < static_cast<float>(numbers) ? static_cast<uint32_t>(kept) : 0;
}

/// The identity of all stores together.
std::string identity_of_stores(const Subject& subject) {
  Fingerprint fingerprint;
  for (const Subject& store : subject.stores) {
    const std::string one = identity_of(store, {});
    fingerprint.add(one.data(), one.size());
  }
  return fmt::format("{:016x}", fingerprint.value());
}

/// A subject without functions, of which `stores` is to be filled.
Subject subject_of_stores(const std::string& name, const FloatFormat& format, int activation) {
  Subject subject{name, format};
  subject.activation = swept_activation(kernels::kActivationNames[activation]);
  subject.mask_from = subject.activation->x_star;
  subject.code = true, subject.own_forward = false, subject.swept = SweptX::own;
  return subject;
}

// --- Codes of f'(x) ------------------------------------------------------------------------------

constexpr kernels::u64 kDrawnDithers = 1;  // the seed of the dithers that the kernels draw

/// What the library's code header says of an activation, and f'(x) as its kernels compute it.
struct CodeFacts {
  kernels::CodeRange range;
  double bias;
  float (*gradient)(float x);
};
template <class... A>
CodeFacts code_facts(int activation, kernels::CodedList<A...>) {
  const CodeFacts all[] = {{{A::Code::kLo, A::Code::kHi}, A::Code::kBias, [](float x) {
                              return kernels::gradient_at<typename A::template Forward<float>>(x);
                            }}...};
  return all[activation];
}

Subject code_store(const Subject& common, int activation, int bits, bool dithered) {
  const CodeFacts facts = code_facts(activation, kernels::CodedActivations{});
  const kernels::u64* const seed = dithered ? &kDrawnDithers : nullptr;
  const FloatFormat format = common.format;
  const outgrad_call call = [&] {
    outgrad_call of = call_of(activation, StoreId::kCode, bits, 0);
    of.seed = seed;
    return of;
  }();
  Subject store = common;
  store.name = fmt::format("code of {} bit{}{}", bits, bits == 1 ? "" : "s", dithered ? ", dithered" : "");
  double claim = 0;
  if (outgrad_store_error(&call, 0, &claim) != OUTGRAD_OK) throw std::logic_error(outgrad_error_message());
  store.claims.push_back({Claim::kTotal, claim});
  if (dithered) store.claims.push_back({Claim::kBias, facts.bias});
  store.limit_error = claim;
  store.forward = [=](const float* x, float* code, std::uint32_t*, int64_t n) {
    const LibraryArray from(format, x, n);
    LibraryArray y(format, n);
    std::vector<uint8_t> packed = room_for(bits, n);
    outgrad_call of = call;
    of.n = n, of.x = from.data(), of.y = y.data(), of.codes = packed.data();
    forward(of, format);
    for (int64_t i = 0; i < n; ++i) code[i] = static_cast<float>(bits_at(packed.data(), bits, i));
  };
  const auto gradients = [=](const FloatFormat& of_dx, const float* code, float* dx, int64_t n) {
    std::vector<uint8_t> packed = room_for(bits, n);
    const auto most = static_cast<float>((1 << bits) - 1);
    for (int64_t i = 0; i < n; ++i)
      put_bits(packed.data(), bits, i, code[i] <= most ? number_of(code[i], 1u << bits) : 0u);
    LibraryArray g = LibraryArray::ones(of_dx, n);
    outgrad_call of = call;
    of.n = n, of.dy = of.dx = g.data(), of.codes = packed.data();
    backward(of, of_dx, {of, {}, facts.range.lo, facts.range.hi});
    g.widen(dx);
  };
  store.derivative = [=](const float* code, const std::uint32_t*, float* g, int64_t n) {
    gradients(kF32, code, g, n);
  };
  if (format.bits < kF32.bits) {
    store.gradient = [=](const float* code, const std::uint32_t*, float* dx, int64_t n) {
      gradients(format, code, dx, n);
    };
  }
  if (dithered) {
    store.varied = [facts, rule = kernels::dithered_code(facts.range, bits)](
                       const float* x, const double* want, VariedGradient* result, int64_t n) {
      for (int64_t i = 0; i < n; ++i) result[i] = over_dithers(rule, facts.gradient(x[i]), want[i]);
    };
  }
  return store;
}

// --- Few bits ------------------------------------------------------------------------------------

/// body(A{}) for the activation's entry in the catalogue of y of few bits.
template <class Body, class... A>
void with_header(int activation, const Body& body, kernels::Fp8List<A...>) {
  const auto one = [&]<class Each>(Each) {
    if (kernels::same_text(Each::Header::kActivation, kernels::kActivationNames[activation])) body(Each{});
  };
  (one(A{}), ...);
}

/// What a store's arithmetic says of an activation: the scales that its claims are over, and these for each
/// number of bits; a scale of the tensor for the largest |y|; the code, in blocks the block's scale, that a
/// NaN gets.
struct FewBitsFacts {
  kernels::Fp8Claims claims;
  float (*scale_for)(float largest);
  uint8_t nan;
};
FewBitsFacts few_bits_facts(int activation, StoreId store) {
  FewBitsFacts facts{};
  kernels::for_each_store([&]<StoreId kId>() {
    if constexpr (kernels::store_of(kId).has_parts) {
      using Arithmetic = kernels::StoreArithmetic<kId>;
      if (kId != store) return;
      facts.scale_for = Arithmetic::scale_for;
      facts.nan = Arithmetic::nan();
      with_header(
          activation, [&]<class A>(A) { facts.claims = Arithmetic::template kClaims<typename A::Header>; },
          kernels::Fp8Activations{});
    }
  });
  return facts;
}

}  // namespace

int activation_number(std::string_view activation) {
  const char* const* const begin = kernels::kActivationNames;
  return static_cast<int>(std::find(begin, begin + kernels::kActivations, activation) - begin);
}

decltype(Subject::forward) library_forward(const SweptActivation& activation) {
  const int number = activation_number(activation.name);
  c::FormatKernels::Run* const run =
      c::chosen_kernels(OUTGRAD_F32).forward[static_cast<int>(StoreId::kY)][number];
  return [=, masked = activation.masked()](const float* x, float* y, std::uint32_t* mask, int64_t n) {
    if (!masked) {
      std::fill_n(mask, (n + 31) / 32, 0u);
      for (int64_t i = 0; i < n; ++i) mask[i / 32] |= static_cast<std::uint32_t>(x[i] == x[i]) << (i % 32);
    }
    kernels::Arguments arguments{.cols = n};
    void* const arrays[] = {const_cast<float*>(x), y, masked ? mask : nullptr};
    std::ranges::copy(arrays, arguments.array);
    const outgrad_call call = call_of(number, StoreId::kY, 0, n);
    run({call, arguments});
  };
}

decltype(Subject::backward) library_backward(int activation, const FloatFormat& format) {
  // Taken here, so that a wrong OUTGRAD_ISA is refused before a sweep has opened its log.
  c::FormatKernels::Run* const run =
      c::chosen_kernels(library_format(format)).backward[static_cast<int>(StoreId::kY)][activation];
  return [=](const float* dy, const float* y, const std::uint32_t* mask, float* dx, int64_t n) {
    LibraryArray kept(format, y, n), gradients(format, dy, n);
    kernels::Arguments arguments{.cols = n};
    void* const arrays[] = {gradients.data(), kept.data(), const_cast<std::uint32_t*>(mask),
                            gradients.data()};
    std::ranges::copy(arrays, arguments.array);
    const outgrad_call call = call_of(activation, StoreId::kY, 0, n);
    run({call, arguments});
    gradients.widen(dx);
  };
}

struct FewBits::Tables {
  float scale = 1;
  kernels::Fp8Table of_scale;
  kernels::Fp4Tables of_blocks;
  const void* of(int64_t block) const { return block > 1 ? static_cast<const void*>(&of_blocks) : &of_scale; }
};

FewBits::~FewBits() = default;

FewBits::FewBits(int activation, StoreId store, const FloatFormat& format, int bits)
    : activation_(activation), store_(store), format_(format), bits_(bits),
      block_(std::max(kernels::store_of(store).block, 1)), codes_(1u << kernels::store_of(store).code_bits) {
  const FewBitsFacts facts = few_bits_facts(activation, store);
  const kernels::Fp8Claims& claims = facts.claims;
  claim_ = claims.total[bits], nan_ = facts.nan;
  const auto add_tables = [&](float scale) {
    Tables& tables = *tables_.emplace_back(std::make_unique<Tables>());
    tables.scale = scale;
    c::make_tables(call_of(activation, store, bits, 0), scale, kernels::kLargestFiniteBits,
                   const_cast<void*>(tables.of(block_)));
  };
  if (block_ == 1) {
    constexpr int kScales = 65;
    for (int k = 0; k < kScales; ++k) {
      const double octaves = std::log2(static_cast<double>(claims.most) / claims.least) * k / (kScales - 1);
      variants_.push_back(
          std::clamp(static_cast<float>(static_cast<double>(claims.most) * std::exp2(-octaves)), claims.least,
                     claims.most));
      add_tables(variants_.back());
    }
  } else {
    constexpr int kFirstOctave = -8, kLastOctave = 10, kPerOctave = 4;
    for (int k = kLastOctave * kPerOctave; k >= kFirstOctave * kPerOctave; --k)
      variants_.push_back(static_cast<float>(std::exp2(k / double{kPerOctave})));
    add_tables(facts.scale_for(variants_.front()));  // of the largest leader
  }
}

Kept FewBits::encode(size_t k, const std::vector<float>& x) const {
  const auto n = static_cast<int64_t>(x.size());
  const Tables& tables = *tables_[block_ > 1 ? 0 : k];
  const LibraryArray from(format_, x.data(), n);
  Kept kept{room_for(kernels::store_of(store_).code_bits, n), room_for(bits_, n),
            std::vector<uint8_t>(static_cast<size_t>((n + block_ - 1) / block_))};
  outgrad_call call = call_of(activation_, store_, bits_, n);
  call.x = from.data(), call.scale = &tables.scale;
  call.codes = kept.codes.data(), call.scales = kept.scales.data(), call.parts = kept.parts.data();
  forward(call, format_, tables.of(block_));
  return kept;
}

void FewBits::decode(size_t k, const Kept& kept, const FloatFormat& of, std::vector<float>& g) const {
  const auto n = static_cast<int64_t>(g.size());
  const Tables& tables = *tables_[block_ > 1 ? 0 : k];
  LibraryArray dx = LibraryArray::ones(of, n);
  outgrad_call call = call_of(activation_, store_, bits_, n);
  call.dy = call.dx = dx.data(), call.scale = &tables.scale;
  call.codes = const_cast<uint8_t*>(kept.codes.data()),
  call.scales = const_cast<uint8_t*>(kept.scales.data());
  call.parts = const_cast<uint8_t*>(kept.parts.data());
  backward(call, of, {call, {}, 0, 0, tables.of(block_)});
  dx.widen(g.data());
}

void FewBits::gradients(size_t k, const float* x, float* g, int64_t n) const {
  // With blocks each x stands behind the leader in one of them.
  const int64_t each = std::max<int64_t>(block_ - 1, 1), leads = block_ > 1;
  std::vector<float> all(static_cast<size_t>((n + each - 1) / each * block_), variants_[k]);
  const auto place = [&](int64_t i) { return static_cast<size_t>(i / each * block_ + leads + i % each); };
  if (leads == 0) all.resize(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) all[place(i)] = x[i];
  const Kept kept = encode(k, all);
  decode(k, kept, kF32, all);
  for (int64_t i = 0; i < n; ++i) g[i] = all[place(i)];
}

void FewBits::keep(const float* x, float* kept, int64_t n) const {
  std::vector<float> all(static_cast<size_t>(n * block_), 0.0f);
  for (int64_t i = 0; i < n; ++i) all[static_cast<size_t>(i * block_)] = x[i];
  const Kept of = encode(0, all);
  const int code_bits = kernels::store_of(store_).code_bits;
  for (int64_t i = 0; i < n; ++i) {
    const uint8_t scale = of.scales[static_cast<size_t>(i)];
    const uint32_t code = bits_at(of.codes.data(), code_bits, i * block_),
                   part = bits_at(of.parts.data(), bits_, i * block_);
    const bool nan = block_ > 1 ? scale == nan_ : std::isnan(tables_[0]->of_scale.values[part][code]);
    kept[i] =
        nan ? std::numeric_limits<float>::quiet_NaN()
            : static_cast<float>(
                  code + codes_ * (part + kernels::kMostParts * uint32_t{block_ > 1 ? scale : uint8_t{0}}));
  }
}

void FewBits::gradients_of(const float* kept, const FloatFormat& of, float* g, int64_t n) const {
  const int code_bits = kernels::store_of(store_).code_bits;
  const uint32_t numbers = codes_ * kernels::kMostParts * (block_ > 1 ? kernels::kBlockScales : 1u);
  Kept all{room_for(code_bits, n * block_), room_for(bits_, n * block_),
           std::vector<uint8_t>(static_cast<size_t>(n))};
  for (int64_t i = 0; i < n; ++i) {
    const bool nan = std::isnan(kept[i]);
    const uint32_t number = number_of(kept[i], numbers), beside = number / codes_;
    put_bits(all.codes.data(), code_bits, i * block_, nan && block_ == 1 ? nan_ : number % codes_);
    put_bits(all.parts.data(), bits_, i * block_, beside % (1u << bits_));
    all.scales[static_cast<size_t>(i)] = nan ? nan_ : static_cast<uint8_t>(beside / kernels::kMostParts);
  }
  std::vector<float> result(static_cast<size_t>(n * block_));
  decode(0, all, of, result);
  for (int64_t i = 0; i < n; ++i) g[i] = result[static_cast<size_t>(i * block_)];
}

namespace {

Subject few_bits_store(const Subject& common, int activation, StoreId id, int bits) {
  const auto kernels_of = std::make_shared<const FewBits>(activation, id, common.format, bits);
  const bool in_blocks = kernels::store_of(id).block > 0;
  std::string name = kernels::store_of(id).name;
  if (in_blocks) std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::toupper(c); });
  Subject store = common;
  store.name = fmt::format("y in {} {}, {} bit{}", name, in_blocks ? "in blocks" : "at a scale", bits,
                           bits == 1 ? "" : "s");
  store.claims.push_back({Claim::kTotal, kernels_of->claim()});
  store.limit_error = store.claims.front().limit;
  store.forward = [kernels_of](const float* x, float* kept, std::uint32_t*, int64_t n) {
    kernels_of->keep(x, kept, n);
  };
  store.derivative = [kernels_of](const float* kept, const std::uint32_t*, float* g, int64_t n) {
    kernels_of->gradients_of(kept, kF32, g, n);
  };
  store.gradient = [kernels_of, format = common.format](const float* kept, const std::uint32_t*, float* dx,
                                                        int64_t n) {
    kernels_of->gradients_of(kept, format, dx, n);
  };
  store.varied = [kernels_of](const float* x, const double* want, VariedGradient* result, int64_t n) {
    std::vector<float> g(static_cast<size_t>(n));
    std::fill_n(result, n, VariedGradient{2, -2, 0, 0, 0, 0});  // f' and what is kept stands for lie between
    const auto count = static_cast<double>(kernels_of->variants());
    for (size_t k = 0; k < kernels_of->variants(); ++k) {
      kernels_of->gradients(k, x, g.data(), n);
      for (int64_t i = 0; i < n; ++i) {
        VariedGradient& all = result[i];
        const float got = g[static_cast<size_t>(i)];
        const double error = got - want[i];
        if (got < all.least) all.least = got, all.least_at = kernels_of->variant(k);
        if (got > all.greatest) all.greatest = got, all.greatest_at = kernels_of->variant(k);
        all.error += error / count, all.square += error * error / count;
      }
    }
  };
  return store;
}

}  // namespace
}  // namespace detail

Subject make_codes_subject(int activation, const FloatFormat& format) {
  Subject subject = detail::subject_of_stores(
      fmt::format("{}_{}+codes", outgrad_code_name(activation), format.name), format, activation);
  subject.scattered = true;
  const Subject store = subject;
  for (int bits = 1; bits <= kernels::kMostCodeBits; ++bits)
    subject.stores.push_back(detail::code_store(store, activation, bits, false));
  for (int bits = kernels::kLeastDitheredBits; bits <= kernels::kMostDitheredBits; ++bits)
    subject.stores.push_back(detail::code_store(store, activation, bits, true));
  subject.identity = detail::identity_of_stores(subject);
  return subject;
}

Subject make_few_bits_subject(int activation, const FloatFormat& format) {
  Subject subject = detail::subject_of_stores(
      fmt::format("{}_fp8_{}", kernels::kActivationNames[activation], format.name), format, activation);
  subject.scattered = subject.keeps_nan = true;
  const Subject store = subject;
  for (int id = 0; id < kernels::kStoreCount; ++id) {
    if (!kernels::kStores[id].has_parts) continue;
    for (int bits = 0; bits <= kernels::kMostPartBits; ++bits)
      subject.stores.push_back(
          detail::few_bits_store(store, activation, static_cast<kernels::StoreId>(id), bits));
  }
  subject.identity = detail::identity_of_stores(subject);
  return subject;
}

Subject make_parity_subject(int activation, const FloatFormat& format, const std::string& name,
                            std::vector<Claim> claims, decltype(Subject::derivative) derivative) {
  using detail::LibraryArray;
  Subject subject = detail::subject_of_stores(name + "+branch", format, activation);
  Subject store = subject;
  store.name = "y with its branch";
  store.claims = std::move(claims);
  const outgrad_call call = detail::call_of(activation, kernels::StoreId::kParity, 0, 0);
  store.forward = [=](const float* x, float* kept, std::uint32_t*, std::int64_t n) {
    const LibraryArray from(format, x, n);
    LibraryArray y(format, n);
    outgrad_call of = call;
    of.n = n, of.x = from.data(), of.y = y.data();
    detail::forward(of, format);
    y.widen(kept);
  };
  store.gradient = [=](const float* kept, const std::uint32_t*, float* dx, std::int64_t n) {
    LibraryArray y(format, kept, n), result = LibraryArray::ones(format, n);
    outgrad_call of = call;
    of.n = n, of.y = y.data(), of.dy = of.dx = result.data();
    detail::backward(of, format, {of});
    result.widen(dx);
  };
  store.derivative = std::move(derivative);
  subject.stores.push_back(std::move(store));
  subject.identity = detail::identity_of_stores(subject);
  return subject;
}

}  // namespace outgrad::validation
