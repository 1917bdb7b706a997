// As a test (kernels_fuzz_test.cpp) it runs a fixed number of cases from fixed seeds. With
// -DOUTGRAD_LIBFUZZER it is a libFuzzer target: `-DOUTGRAD_FUZZ=ON`, target outgrad-kernels-fuzz.
#include "tests/kernels/kernels_fuzz.h"

#include <omp.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define OUTGRAD_FUZZ_ASAN
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define OUTGRAD_FUZZ_ASAN
#endif
#ifdef OUTGRAD_FUZZ_ASAN
#include <sanitizer/asan_interface.h>
#endif

#include "kernels/c/outgrad.h"
#include "kernels/c/table.h"
#include "kernels/fits.h"
#include "tests/kernels/c_calls.h"
#include "tests/kernels/kernels_fuzz_oracle.h"
#include "tests/kernels/patterns.h"

namespace outgrad::kernels::fuzz {

const char* kind_name(int kind) {
  return kind == kQueries ? "queries" : kind == kSizes ? "sizes" : c_calls::kFunctions[kind].name;
}

std::vector<const c::FormatKernels*> kernels_of(outgrad_format format) {
  std::vector<const c::FormatKernels*> all = {c::kBaseline[format]};
#if defined(OUTGRAD_C_X86)
  const std::string chosen = outgrad_instruction_set();
  if (chosen != "baseline") all.push_back(c::kAvx2[format]);
  if (chosen.starts_with("avx512")) all.push_back(c::kAvx512[format]);
#if defined(OUTGRAD_C_AVX512_BF16)
  if (chosen == "avx512_bf16" && format == OUTGRAD_BF16) all.push_back(&c::kBf16Avx512Bf16);
#endif
#endif
  return all;
}

namespace {

using namespace c_calls;

// --- Choices -------------------------------------------------------------------------------------

// Numbers from the bytes; once they are used up, from a generator that they seed.
class Choices {
 public:
  explicit Choices(std::span<const std::uint8_t> bytes) : bytes_(bytes), random_(seed_of(bytes)) {}

  u32 below(u32 limit) {
    u32 value = 0;
    if (bytes_.size() >= 2) {
      value = static_cast<u32>(bytes_[0] | bytes_[1] << 8);
      bytes_ = bytes_.subspan(2);
    } else {
      value = random_.next() >> 8;
    }
    return value % limit;
  }
  bool one_in(u32 count) { return below(count) == 0; }
  u64 seed() { return u64{below(1u << 16)} << 32 | random_.next(); }
  template <class T, size_t N>
  T of(const T (&values)[N]) {
    return values[below(N)];
  }

 private:
  static u64 seed_of(std::span<const std::uint8_t> bytes) {
    u64 state = 0xcbf29ce484222325u;  // FNV-1a
    for (const std::uint8_t byte : bytes) state = (state ^ byte) * 0x100000001b3u;
    return state;
  }

  std::span<const std::uint8_t> bytes_;
  patterns::Random random_;
};

// --- Memory --------------------------------------------------------------------------------------

// `bytes` bytes at an address that is `offset` modulo a cache line, with guards before and behind.
class Region {
 public:
  static constexpr size_t kLine = 64;

  Region(i64 bytes, size_t offset)
      : begin_(kLine + offset), size_(kLine + offset + static_cast<size_t>(bytes) + kLine) {
    memory_.reset(static_cast<u8*>(::operator new(size_, std::align_val_t{kLine})));
    std::fill_n(memory_.get(), size_, u8{0xa5});
    end_ = begin_ + static_cast<size_t>(bytes);
  }
  ~Region() { open(); }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  u8* data() { return memory_.get() + begin_; }
  u8* end() { return memory_.get() + end_; }
  u8* all() { return memory_.get(); }
  size_t size() const { return size_; }
  void save() { saved_.assign(all(), all() + size_); }
  void restore() { std::copy(saved_.begin(), saved_.end(), all()); }
  const std::vector<u8>& saved() const { return saved_; }

  // While closed, AddressSanitizer reports every access to the guards.
  void close() {
#ifdef OUTGRAD_FUZZ_ASAN
    ASAN_POISON_MEMORY_REGION(all(), begin_);
    ASAN_POISON_MEMORY_REGION(all() + end_, size_ - end_);
#endif
  }
  void open() {
#ifdef OUTGRAD_FUZZ_ASAN
    ASAN_UNPOISON_MEMORY_REGION(all(), size_);
#endif
  }

 private:
  struct Free {
    void operator()(u8* memory) const { ::operator delete(memory, std::align_val_t{kLine}); }
  };
  size_t begin_, size_, end_ = 0;
  std::unique_ptr<u8, Free> memory_;
  std::vector<u8> saved_;
};

// --- The call ------------------------------------------------------------------------------------

struct Call {
  Id id = kActivationForward;
  outgrad_call given{.size = sizeof(outgrad_call), .rows = 1, .eps = 1e-5f};
  Uses uses;

  // Then there is an oracle for all results.
  bool keeps_y() const {
    return !is_coded(id) && !is_softmax(id) && !is_gated(id) &&
           (!takes_store(id) || given.store == OUTGRAD_STORE_Y);
  }
  ArrayId result() const { return is_residual(id) ? kDz : kDx; }
  i64 rows() const { return over_rows(id) ? given.rows : 1; }
  bool holds(ArrayId array) const {
    return uses[array].used && uses[array].bytes > 0 && pointer(given, array) != nullptr;
  }
  template <class T = u8>
  T* at(ArrayId array) const {
    return uses[array].used ? reinterpret_cast<T*>(pointer(given, array)) : nullptr;
  }
};

// The same through the kernels of one instruction set, where y is kept.
void call_kernels(const Call& c, const c::FormatKernels& kernels) {
  constexpr size_t kPrefix = sizeof "outgrad_" - 1;
  const std::string function = is_activation(c.id)
                                   ? (c.id == kActivationForward ? "gelu_forward" : "gelu_backward")
                                   : kFunctions[c.id].name + kPrefix;
  const auto* const row = std::find_if(std::begin(catalogue::kTable), std::end(catalogue::kTable),
                                       [&](const Kernel& kernel) { return kernel.name == function; });
  const auto kernel = static_cast<KernelId>(row - catalogue::kTable);
  Arguments a{.rows = c.rows(),
              .cols = c.given.n,
              .eps = c.given.eps,
              .side = {c.given.side_channels, c.given.side_count, c.given.side_x_hat}};
  for (size_t k = 0; k < operands(kernel).size(); ++k) {
    for (const ArrayId array : kEveryArray)
      if (std::strcmp(kMembers[array].name, operands(kernel)[k].name) == 0) a.array[k] = c.at<void>(array);
  }
  const auto& by_store = c.id == kActivationForward ? kernels.forward : kernels.backward;
  auto* const run = is_activation(c.id) ? by_store[OUTGRAD_STORE_Y][c.given.activation]
                                        : kernels.run[static_cast<int>(kernel)];
  run({c.given, a});
}

// --- The contract --------------------------------------------------------------------------------

struct Violations {
  std::set<outgrad_status> certain;  // one of these is the status, if there is any
  // the header leaves it open whether these count: arrays that a call of no rows would not read
  std::set<outgrad_status> open;
};

bool shape_holds(Id id, const outgrad_call& a) {
  constexpr i64 kMost = i64{1} << 54;  // elements: 2^56 bytes, beyond all that can be mapped
  if (!over_rows(id)) return a.n >= 0 && a.n <= kMost;
  const i64 most = is_gated(id) ? kMost / 2 : kMost;  // its rows hold those of two
  return a.n >= 1 && a.rows >= 0 && a.n <= most && a.rows <= most / a.n;
}

bool bits_hold(const outgrad_call& a, bool code) {
  if (!code) return a.bits >= 0 && a.bits <= 2;
  return a.seed ? a.bits == 2 || a.bits == 3 : a.bits >= 1 && a.bits <= 8;
}

bool is_normal(float scale) { return std::isnormal(scale) && scale > 0; }

bool scale_holds_of(outgrad_store store, float scale) {
  if (store == OUTGRAD_STORE_MXFP4) return scale == 1;
  if (store == OUTGRAD_STORE_NVFP4) return scale >= 0x1p-117f && scale < 0x1p118f;
  return is_normal(scale);
}

bool activation_has(outgrad_activation activation, outgrad_store store) {
  if (store == OUTGRAD_STORE_MXFP8) return activation == OUTGRAD_GELU;
  return activation < OUTGRAD_TANH || store == OUTGRAD_STORE_Y || store == OUTGRAD_STORE_CODE;
}

// What is wrong with the members that are no arrays; then how long the arrays should be is not known.
std::set<outgrad_status> wrong_values(Id id, const outgrad_call& a) {
  std::set<outgrad_status> found;
  const bool of_store = is_activation(id),
             known_activation = a.activation >= 0 && a.activation <= OUTGRAD_ELU;
  const bool known_store = takes_store(id, a.store) || !takes_store(id);
  if (a.format < OUTGRAD_F32 || a.format > OUTGRAD_BF16) found.insert(OUTGRAD_ERROR_FORMAT);
  if (of_store ? !known_activation : is_gated(id) && !has_pair(id, a.activation))
    found.insert(OUTGRAD_ERROR_ACTIVATION);
  if (is_product(id) && a.format == OUTGRAD_F32) found.insert(OUTGRAD_ERROR_FORMAT);
  if (!known_store) found.insert(OUTGRAD_ERROR_STORE);
  if (of_store && known_store) {
    if (a.store == OUTGRAD_STORE_PARITY && a.format == OUTGRAD_F32) found.insert(OUTGRAD_ERROR_FORMAT);
    if (known_activation && !activation_has(a.activation, a.store)) found.insert(OUTGRAD_ERROR_ACTIVATION);
    if ((a.store == OUTGRAD_STORE_CODE || has_parts(a.store)) && !bits_hold(a, a.store == OUTGRAD_STORE_CODE))
      found.insert(OUTGRAD_ERROR_VALUE);
    if (has_parts(a.store)) {
      const bool aligned = reinterpret_cast<std::uintptr_t>(a.scale) % 4 == 0;
      if (a.scale == nullptr) found.insert(OUTGRAD_ERROR_NULL_POINTER);
      if (!aligned) found.insert(OUTGRAD_ERROR_ALIGNMENT);
      if (a.scale && aligned && !scale_holds_of(a.store, *a.scale)) found.insert(OUTGRAD_ERROR_VALUE);
    }
  }
  if (is_coded(id) &&
      (!bits_hold(a, true) || !(a.lo >= -2 && a.lo <= 0 && a.hi <= 2 && a.hi - a.lo > 0.125f)))
    found.insert(OUTGRAD_ERROR_VALUE);
  if (is_norm_forward(id) && (std::isnan(a.eps) || (std::signbit(a.eps) && bits_of(a.eps) != bits_of(-0.0f))))
    found.insert(OUTGRAD_ERROR_VALUE);
  if (is_norm(id) && (a.side_count < 0 || (shape_holds(id, a) && a.side_count > a.n)))
    found.insert(OUTGRAD_ERROR_VALUE);
  if (!shape_holds(id, a) || (is_softmax(id) && a.n > i64{1} << 23)) found.insert(OUTGRAD_ERROR_SIZE);
  if (is_norm(id) &&
      ((a.store == OUTGRAD_STORE_MXFP8 && a.n % 32 != 0) || (a.store == OUTGRAD_STORE_INT8 && a.n % 64 != 0)))
    found.insert(OUTGRAD_ERROR_SIZE);
  return found;
}

Violations violations(const Call& call) {
  const outgrad_call& a = call.given;
  Violations found{wrong_values(call.id, a), {}};
  const auto& uses = call.uses;
  if (a.codes_bytes < static_cast<size_t>(uses[kCodes].bytes) ||
      a.scales_bytes < static_cast<size_t>(uses[kScales].bytes) ||
      a.parts_bytes < static_cast<size_t>(uses[kParts].bytes))
    found.certain.insert(OUTGRAD_ERROR_SIZE);
  if (!wrong_values(call.id, a).empty()) return found;

  struct Span {
    ArrayId array;
    std::uintptr_t begin;
    Use use;
    bool open;  // whether the header leaves it open that it counts
  };
  std::vector<Span> spans;
  const bool nothing = !over_rows(call.id) && a.n == 0, no_rows = over_rows(call.id) && a.rows == 0;
  for (const ArrayId array : kEveryArray) {
    const Use& use = uses[array];
    if (!use.used || use.bytes == 0) continue;
    const bool per_column = array == kBias || array == kGamma || array == kBeta;
    spans.push_back({array, reinterpret_cast<std::uintptr_t>(pointer(a, array)), use, no_rows && per_column});
  }
  const auto scalar = [&](const void* at, i64 bytes) {
    if (at != nullptr && !nothing)
      spans.push_back(
          {kArrays, reinterpret_cast<std::uintptr_t>(at), {bytes, bytes, true, false, true, {}}, false});
  };
  const bool given_scale = is_norm_forward(call.id) && a.store == OUTGRAD_STORE_E4M3;
  if ((is_activation(call.id) && has_parts(a.store)) || given_scale) scalar(a.scale, 4);
  if (is_coded(call.id) || (is_activation(call.id) && a.store == OUTGRAD_STORE_CODE)) scalar(a.seed, 8);
  const auto add = [&](bool open, outgrad_status status) {
    (open ? found.open : found.certain).insert(status);
  };
  for (const Span& span : spans) {
    if (span.array == kWorkspace && (!span.begin || a.workspace_bytes < static_cast<size_t>(span.use.bytes)))
      found.certain.insert(OUTGRAD_ERROR_WORKSPACE);
    if (!span.begin) {
      if (span.array != kWorkspace && !span.use.optional) add(span.open, OUTGRAD_ERROR_NULL_POINTER);
      continue;
    }
    if (span.begin % static_cast<u64>(span.use.element) != 0) add(span.open, OUTGRAD_ERROR_ALIGNMENT);
    if (!span.use.written) continue;
    for (const Span& other : spans) {
      if (&other == &span || !other.begin) continue;
      const bool apart = span.begin + static_cast<u64>(span.use.bytes) <= other.begin ||
                         other.begin + static_cast<u64>(other.use.bytes) <= span.begin;
      const auto& may_be = span.use.may_be;
      const bool allowed =
          span.begin == other.begin && std::count(may_be.begin(), may_be.end(), other.array) != 0;
      if (!apart && !allowed) add(other.open, OUTGRAD_ERROR_OVERLAP);
    }
  }
  const auto readable = [&](const void* at) {
    return at != nullptr && reinterpret_cast<std::uintptr_t>(at) % 4 == 0;
  };
  if (given_scale && readable(a.scale) && !is_normal(*a.scale)) found.certain.insert(OUTGRAD_ERROR_VALUE);
  if (!is_norm(call.id) || (a.side_count > 0 && !readable(a.side_channels))) return found;
  for (i64 k = 0; k < a.side_count; ++k) {
    const std::int32_t* const side = a.side_channels;
    if (side[k] < 0 || side[k] >= a.n || (k > 0 && side[k] <= side[k - 1]))
      found.certain.insert(OUTGRAD_ERROR_VALUE);
  }
  if (!is_norm_backward(call.id)) return found;
  if (readable(a.gamma)) {
    const std::set<i64> kept(a.side_channels, a.side_channels + a.side_count);
    for (i64 j = 0; j < a.n; ++j)
      if (!kept.contains(j) && std::isinf(1.0f / a.gamma[j])) found.certain.insert(OUTGRAD_ERROR_VALUE);
  }
  if (readable(a.scales) && (a.store == OUTGRAD_STORE_E4M3 || a.store == OUTGRAD_STORE_INT8)) {
    const bool steps = a.store == OUTGRAD_STORE_INT8;  // each behind a least y, which may be anything
    for (i64 k = steps; k < uses[kScales].bytes / 4; k += steps ? 2 : 1)
      if (!is_normal(static_cast<const float*>(a.scales)[k]) ||
          (steps && std::isinf(static_cast<const float*>(a.scales)[k - 1])))
        found.certain.insert(OUTGRAD_ERROR_VALUE);
  }
  return found;
}

// --- Values --------------------------------------------------------------------------------------

float widened(outgrad_format format, const u8* array, i64 i) {
  if (format == OUTGRAD_F32) {
    float value = 0;
    std::memcpy(&value, array + 4 * i, 4);
    return value;
  }
  u16 bits = 0;
  std::memcpy(&bits, array + 2 * i, 2);
  return format == OUTGRAD_F16 ? widen(F16{bits}) : widen(BF16{bits});
}

void store(outgrad_format format, u8* array, i64 i, float value) {
  if (format == OUTGRAD_F32) {
    std::memcpy(array + 4 * i, &value, 4);
    return;
  }
  const u16 bits = format == OUTGRAD_F16 ? narrow<F16>(value).bits : narrow<BF16>(value).bits;
  std::memcpy(array + 2 * i, &bits, 2);
}

std::vector<float> widened_all(outgrad_format format, const u8* array, i64 first, i64 count, i64 stride = 1) {
  std::vector<float> values(static_cast<size_t>(count));
  for (i64 i = 0; i < count; ++i) values[static_cast<size_t>(i)] = widened(format, array, first + i * stride);
  return values;
}

enum class Kind { moderate, any_bits, specials, equal, minute };

// Uniform in (-4, 4).
float moderate(patterns::Random& random) {
  return static_cast<float>(static_cast<i32>(random.next())) * 0x1p-29f;
}

float special(patterns::Random& random) {
  static constexpr float kValues[] = {0.0f, -0.0f, 1.0f, -1.0f, INFINITY, -INFINITY, NAN,
                                      std::numeric_limits<float>::denorm_min(),
                                      -std::numeric_limits<float>::denorm_min(),
                                      0x1p-24f,  // f16's least
                                      -0x1p-133f,  // bf16's least
                                      0x1p-126f, 0x1.fffffep+127f, -0x1.fffffep+127f, 65504.0f,
                                      -65520.0f,  // rounds to f16's infinity
      // GELU's minimum and its neighbour, which no forward makes
                                      -0x1.5c1efcp-3f, -0x1.5c2p-3f, -0.75179154f, 20.0f, -20.0f};
  return kValues[random.next() % std::size(kValues)];
}

void fill_values(outgrad_format as, u8* array, i64 count, Kind kind, patterns::Random& random) {
  const float equal = moderate(random);
  for (i64 i = 0; i < count; ++i) {
    switch (kind) {
      case Kind::moderate: store(as, array, i, moderate(random)); break;
      case Kind::any_bits: {
        const u32 bits = random.next();
        std::memcpy(array + i * (as == OUTGRAD_F32 ? 4 : 2), &bits, as == OUTGRAD_F32 ? 4 : 2);
        break;
      }
      case Kind::specials:
        store(as, array, i, random.next() % 8 == 0 ? special(random) : moderate(random));
        break;
      case Kind::equal: store(as, array, i, equal); break;
      case Kind::minute: store(as, array, i, moderate(random) * 0x1p-126f); break;
    }
  }
}

// --- A case --------------------------------------------------------------------------------------

const Activation& activation_of(int number) {
  static const std::vector<Activation> all = [] {
    std::vector<Activation> made;
    for (int i = 0; i <= OUTGRAD_ELU; ++i) made.emplace_back(i);
    return made;
  }();
  return all[static_cast<size_t>(number)];
}

template <class Fit>
constexpr FitBounds bounds_of() {
  FitBounds bounds{Fit::kMasked, 0, 0, 0};
  if constexpr (requires { Fit::kAB; }) {
    bounds.evaluation = Fit::kAB;
  } else {
    bounds.evaluation = Fit::kA + Fit::kB;
  }
  if constexpr (requires { Fit::kK; }) bounds.evaluation += Fit::kK;
  if constexpr (Fit::kMasked) bounds.least_y = static_cast<double>(Fit::kYHi) + Fit::kYLo + Fit::kTMin;
  if constexpr (requires { Fit::kT; }) bounds.total = Fit::kT;
  return bounds;
}

template <class... Fit>
constexpr std::array<FitBounds, c::kActivations> all_bounds(c::FitList<Fit...>) {
  return {bounds_of<Fit>()...};
}

constexpr std::array<std::array<FitBounds, c::kActivations>, 3> kBounds = {
    all_bounds(c::ActivationFits<float>::Type{}), all_bounds(c::ActivationFits<F16>::Type{}),
    all_bounds(c::ActivationFits<BF16>::Type{})};

class Case {
 public:
  Case(std::span<const std::uint8_t> bytes, Tally& tally)
      : choose_(bytes), tally_(tally), random_(choose_.seed()) {}

  std::string run() {
    kind_ = static_cast<int>(choose_.below(kKinds));
    outgrad_call& a = call_.given;
    a.format = static_cast<outgrad_format>(choose_.below(3));
    if (kind_ == kQueries) return queries();
    if (kind_ == kSizes) return sizes();
    call_.id = static_cast<Id>(kind_);
    choose_store();
    choose_shape();
    call_.uses = uses_of(call_.id, a);
    allocate();
    fill();
    leave_out();
    alias();
    if (choose_.below(5) < 2) {
      spoil();
      if (choose_.one_in(4)) spoil();
    }
    const Violations expected = violations(call_);
    if (expected.certain.empty() && !stays_within()) {
      ++tally_.astray;
      return {};
    }
    for (const auto& region : regions_) region->save();
    const bool good = expected.certain.empty() && expected.open.empty();
    std::string wrong = choose_.one_in(20) ? without_a_call() : "";
    if (wrong.empty()) wrong = good ? accepted() : refused(expected, &call_.given);
    for (const auto& region : regions_) region->open();
    return wrong.empty() ? wrong : describe() + ": " + wrong;
  }

 private:
  // --- Making it ---

  void choose_store() {
    outgrad_call& a = call_.given;
    if (is_activation(call_.id))
      a.activation = static_cast<outgrad_activation>(choose_.below(OUTGRAD_ELU + 1));
    if (is_gated(call_.id)) {
      static constexpr outgrad_activation kGates[] = {OUTGRAD_GELU, OUTGRAD_GELU_TANH, OUTGRAD_SILU,
                                                      OUTGRAD_SIGMOID};
      do {
        a.activation = choose_.of(kGates);
      } while (!has_pair(call_.id, a.activation));
      if (is_product(call_.id) && a.format == OUTGRAD_F32) a.format = OUTGRAD_BF16;
    }
    if (takes_store(call_.id) && choose_.one_in(2)) {
      do {
        a.store = static_cast<outgrad_store>(choose_.below(OUTGRAD_STORE_NVFP4 + 1));
      } while (!takes_store(call_.id, a.store));
    }
    if (is_activation(call_.id) && !activation_has(a.activation, a.store)) a.activation = OUTGRAD_GELU;
    if (a.store == OUTGRAD_STORE_PARITY && a.format == OUTGRAD_F32) a.format = OUTGRAD_BF16;
    const bool dithered = choose_.one_in(3);
    if (is_coded(call_.id) || a.store == OUTGRAD_STORE_CODE) {
      a.seed = dithered ? seed_ : nullptr;
      a.bits = static_cast<std::int32_t>(dithered ? 2 + choose_.below(2) : 1 + choose_.below(8));
      a.lo = choose_.one_in(2) ? -0.125f : 0.0f, a.hi = choose_.one_in(2) ? 1.125f : 2.0f;
    } else {
      a.bits = static_cast<std::int32_t>(choose_.below(3));
    }
    scale_[0] =
        a.store == OUTGRAD_STORE_MXFP4 ? 1.0f : std::ldexp(1.37f, static_cast<int>(choose_.below(40)) - 20);
    if (!is_norm(call_.id) || choose_.one_in(2)) a.scale = scale_;
  }

  // Lengths around those at which the loops change: vectors, mask words, unrolled bodies, steps of the tree,
  // blocks.
  i64 length() {
    static constexpr i64 kEdges[] = {0, 1, 8, 16, 24, 32, 64, 96, 128, 192, 256, 512, 1024, 2048};
    if (choose_.one_in(4)) return choose_.below(3000);
    return std::max<i64>(0, choose_.of(kEdges) + choose_.below(5) - 2);
  }

  void choose_shape() {
    outgrad_call& a = call_.given;
    if (!over_rows(call_.id)) {
      a.n = length();
      // The table of all outputs begins at 2^16 elements, streaming stores at 2 MiB; blocks are 2^16.
      if (choose_.one_in(200)) a.n = (1 << 16) + choose_.below(1 << 17);
      if (choose_.one_in(1000)) a.n = (1 << 20) + choose_.below(200);
      return;
    }
    a.n = std::max<i64>(1, length());
    if (choose_.one_in(100)) a.n = 16384 + choose_.below(300);  // beyond one group of steps
    constexpr i64 kUsual = 1 << 14;
    const i64 most = std::max<i64>(1, kUsual / a.n);
    static constexpr i64 kRows[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 31, 63, 64, 65, 130, 260};
    a.rows = std::min(choose_.of(kRows), most + choose_.below(2));
    if (choose_.one_in(500)) {  // rows that are streamed
      a.n = 1024;
      a.rows = 1024 + choose_.below(70);
    }
    if (!is_norm(call_.id)) return;
    if (a.store == OUTGRAD_STORE_MXFP8 || a.store == OUTGRAD_STORE_INT8) a.n = (a.n + 63) / 64 * 64;
    if (choose_.one_in(2)) a.side_count = std::min<i64>(choose_.below(6), a.n);
    static constexpr float kEps[] = {1e-5f, 0.0f, 1.0f, 1e-12f, -0.0f, 0x1p-149f};
    a.eps = is_norm_forward(call_.id) ? choose_.of(kEps) : special(random_);
  }

  void allocate() {
    for (const ArrayId array : kEveryArray) {
      const Use& use = call_.uses[array];
      if (!use.used) continue;
      const auto unit = static_cast<size_t>(use.element);
      const size_t offset =
          choose_.one_in(3) ? 0 : choose_.below(static_cast<u32>(Region::kLine / unit)) * unit;
      regions_.push_back(std::make_unique<Region>(use.bytes, offset));
      set_pointer(call_.given, array, regions_.back()->data());
    }
  }

  // The format of an array's elements; f32 if they are no numbers.
  outgrad_format format_of(int array) const {
    return kMembers[array].element == 0 ? call_.given.format : OUTGRAD_F32;
  }

  void fill() {
    const outgrad_call& a = call_.given;
    for (const ArrayId array : kEveryArray) {
      const Use& use = call_.uses[array];
      if (!use.used || use.bytes == 0 || array == kSide) continue;
      u8* const at = call_.at(array);
      Kind kind = choose_.one_in(2) ? Kind::moderate : static_cast<Kind>(choose_.below(5));
      if (array == kMask || use.written) kind = Kind::any_bits;
      if (use.element == 1) {
        for (i64 i = 0; i < use.bytes; ++i) at[i] = static_cast<u8>(random_.next());
      } else if (array == kScales) {
        for (i64 i = 0; i < use.count(); ++i) store(OUTGRAD_F32, at, i, 1 + 0.2f * moderate(random_));
      } else {
        fill_values(format_of(array), at, use.count(), kind, random_);
      }
    }
    if (is_norm(call_.id)) fill_norm();
    // y and mask as a forward makes them.
    if (call_.id == kActivationBackward && call_.keeps_y() && a.n <= 4096 && choose_.one_in(2)) {
      const Activation& f = activation_of(a.activation);
      const float scale = choose_.one_in(4) ? 8.0f : 1.0f;
      std::fill_n(call_.at(kMask), call_.uses[kMask].bytes, u8{0});
      for (i64 i = 0; i < a.n; ++i) {
        x_.push_back(moderate(random_) * scale);
        const float y = f.rounded_value(static_cast<Stored>(a.format), x_.back());
        if (std::isnan(y)) x_.back() = NAN;  // undecided
        store(a.format, call_.at(kY), i, y);
        if (f.masked() && x_.back() >= f.x_star())
          call_.at(kMask)[i / 8] = static_cast<u8>(call_.at(kMask)[i / 8] | 1 << (i % 8));
      }
      made_y_ = call_.at(kY), made_mask_ = call_.at(kMask);
    }
  }

  // Channels ascend; those of a backward's gamma that cannot be divided by are mostly among them.
  void fill_norm() {
    const outgrad_call& a = call_.given;
    i64 channel = -1;
    for (i64 k = 0; k < a.side_count; ++k) {
      const i64 left = a.side_count - k - 1;
      channel += 1 + static_cast<i64>(random_.next() % static_cast<u32>(std::max<i64>(
                                                           1, (a.n - left - channel - 1) / (left + 1))));
      side_.push_back(static_cast<std::int32_t>(channel));
    }
    if (a.side_count > 0) std::memcpy(call_.at(kSide), side_.data(), side_.size() * 4);
    if (choose_.below(4) == 0) return;
    const std::set<std::int32_t> kept(side_.begin(), side_.end());
    for (i64 j = 0; j < a.n; ++j) {
      const float near_one = 1 + 0.2f * moderate(random_);  // in (0.2, 1.8)
      store(OUTGRAD_F32, call_.at(kGamma), j,
            kept.contains(static_cast<std::int32_t>(j)) && random_.next() % 2 ? 0.0f : near_one);
    }
    for (i64 row = 0; row < a.rows && is_norm_backward(call_.id); ++row)
      store(OUTGRAD_F32, call_.at(kRstd), row, 1 + 0.2f * moderate(random_));
  }

  void leave_out() {
    for (const ArrayId array : kEveryArray) {
      const Use& use = call_.uses[array];
      if (use.used && (use.optional || use.bytes == 0) && choose_.one_in(4))
        set_pointer(call_.given, array, nullptr);
    }
  }

  // Lets arrays coincide that may.
  void alias() {
    if (!choose_.one_in(2)) return;
    for (const ArrayId array : kEveryArray) {
      if (call_.at(array) == nullptr || !choose_.one_in(2)) continue;
      for (const ArrayId other : call_.uses[array].may_be) {
        if (call_.at(other) == nullptr || !choose_.one_in(2)) continue;
        set_pointer(call_.given, array, call_.at(other));
        aliased_ = true;
      }
    }
  }

  // --- Spoiling it ---

  ArrayId any_used() {
    for (;;) {
      const auto array = static_cast<ArrayId>(choose_.below(kArrays));
      if (call_.uses[array].used) return array;
    }
  }

  void spoil() {
    outgrad_call& a = call_.given;
    switch (choose_.below(11)) {
      case 0: set_pointer(a, any_used(), nullptr); break;
      case 1: {
        const ArrayId array = any_used();
        u8* const at = call_.at(array);
        const i64 unit = call_.uses[array].element;
        // twice might be none
        if (at != nullptr && unit > 1 && reinterpret_cast<std::uintptr_t>(at) % static_cast<u64>(unit) == 0)
          set_pointer(a, array, at + 1 + choose_.below(static_cast<u32>(unit - 1)));
        break;
      }
      case 2:
      case 3: overlap(); break;
      case 4: spoil_shape(); break;
      case 5: {
        static constexpr outgrad_format kFormats[] = {-1, 3, 7, INT32_MIN, INT32_MAX};
        a.format = choose_.of(kFormats);
        break;
      }
      case 6:
        if (is_activation(call_.id)) {
          static constexpr outgrad_activation kActivations[] = {-1, 10, INT32_MIN, INT32_MAX, OUTGRAD_TANH};
          a.activation = choose_.of(kActivations);
          if (a.activation == OUTGRAD_TANH && activation_has(a.activation, a.store)) a.activation = -1;
        } else if (is_gated(call_.id)) {
          static constexpr outgrad_activation kOthers[] = {-1, 10, OUTGRAD_MISH, OUTGRAD_ELU};
          a.activation = choose_.of(kOthers);
        } else if (is_norm_forward(call_.id)) {
          static constexpr float kEps[] = {-1e-9f, -1.0f, -0x1p-149f, -INFINITY, NAN};
          a.eps = choose_.of(kEps);
        } else if (is_norm_backward(call_.id) && addressable(kGamma) && call_.uses[kGamma].count() == a.n) {
          static constexpr float kGammas[] = {0.0f,       -0.0f,     0x1p-129f,
                                              -0x1p-149f, 0x1p-128f, 0x1.000004p-128f};
          call_.at<float>(kGamma)[choose_.below(static_cast<u32>(a.n))] = choose_.of(kGammas);
        }
        break;
      case 7: spoil_side(); break;
      case 8:
        if (call_.uses[kWorkspace].used && choose_.one_in(3)) {
          a.workspace = nullptr;
        } else if (call_.uses[kWorkspace].used) {
          a.workspace_bytes -=
              std::min<size_t>(a.workspace_bytes, choose_.one_in(2) ? 1 : 1 + choose_.below(1 << 12));
        }
        break;
      case 9: {
        size_t* const sizes[] = {&a.codes_bytes, &a.scales_bytes, &a.parts_bytes};
        size_t& size = *choose_.of(sizes);
        size -= std::min<size_t>(size, 1 + choose_.below(size > 64 ? 64 : 1));
        break;
      }
      default: spoil_store();
    }
  }

  void spoil_shape() {
    static constexpr i64 kSizes[] = {-1, INT64_MIN, INT64_MAX, i64{1} << 62, (i64{1} << 55) + 1};
    outgrad_call& a = call_.given;
    if (!over_rows(call_.id) || choose_.one_in(2)) {
      a.n = choose_.of(kSizes);
    } else if (choose_.one_in(2)) {
      a.rows = choose_.of(kSizes);
    } else if (choose_.one_in(2)) {
      a.n = 0;
    } else {
      a.rows = a.n = i64{1} << 32;  // the product is 0 modulo 2^64
    }
  }

  void spoil_side() {
    outgrad_call& a = call_.given;
    if (!is_norm(call_.id)) return;
    static constexpr i64 kCounts[] = {-1, INT64_MIN, INT64_MAX};
    if (a.side_count <= 0 || !addressable(kSide) || choose_.one_in(3)) {
      a.side_count =
          choose_.one_in(2) && a.n < kLargestSize ? std::max<i64>(a.n, 0) + 1 : choose_.of(kCounts);
    } else if (a.side_count <= call_.uses[kSide].count()) {
      auto* const side = call_.at<std::int32_t>(kSide);
      const auto k = choose_.below(static_cast<u32>(a.side_count));
      const std::int32_t wrong[] = {-1, static_cast<std::int32_t>(std::min<i64>(a.n, kLargestSize)),
                                    k > 0 ? side[k - 1] : -5, INT32_MIN, INT32_MAX};
      side[k] = choose_.of(wrong);
    }
  }

  template <class T>
  static const T* moved(const T* at, int bytes) {
    return reinterpret_cast<const T*>(reinterpret_cast<const u8*>(at) + bytes);
  }

  // The store and what it makes of bits, scale, seed and the range.
  void spoil_store() {
    outgrad_call& a = call_.given;
    static constexpr float kBad[] = {0.0f, -0.0f, -1.0f, 0x1p-127f, INFINITY, NAN};
    const bool coded = is_coded(call_.id) || (is_activation(call_.id) && a.store == OUTGRAD_STORE_CODE);
    switch (choose_.below(5)) {
      case 0: {
        static constexpr outgrad_store kStores[] = {-1, 9, OUTGRAD_STORE_CODE, OUTGRAD_STORE_NVFP4,
                                                    INT32_MAX};
        const outgrad_store wrong = choose_.of(kStores);
        if (takes_store(call_.id) && !takes_store(call_.id, wrong)) a.store = wrong;
        break;
      }
      case 1: a.bits = coded ? (a.seed ? 4 : choose_.one_in(2) ? 0 : 9) : choose_.one_in(2) ? -1 : 3; break;
      case 2:
        if (choose_.one_in(2) || !coded) {
          scale_[0] = choose_.of(kBad);
          if (addressable(kScales) && call_.uses[kScales].count() > 1)
            call_.at<float>(kScales)[1] = scale_[0];
        } else {
          static constexpr float kRanges[][2] = {{0.25f, 1}, {0, 0.125f}, {-2.5f, 1}, {0, 2.5f}, {1, 0}};
          const auto& range = kRanges[choose_.below(5)];
          a.lo = range[0], a.hi = range[1];
        }
        break;
      case 3:  // not aligned, or none
        if (is_activation(call_.id)) a.scale = choose_.one_in(2) ? nullptr : moved(scale_, 2);
        if (coded && a.seed) a.seed = moved(seed_, 4);
        break;
      default: {  // where a result goes
        const ArrayId array = any_used();
        if (!call_.uses[array].written || !addressable(array) || call_.uses[array].bytes < 8) return;
        if (a.scale) a.scale = call_.at<float>(array);
        if (a.seed) a.seed = call_.at<std::uint64_t>(array);
      }
    }
  }

  // Whether the array's words may be read and written: another way to spoil it may have moved it.
  bool addressable(ArrayId array) const {
    return call_.at(array) != nullptr && reinterpret_cast<std::uintptr_t>(call_.at(array)) % 4 == 0 &&
           call_.uses[array].element == 4 && within_a_region(call_.at(array), call_.uses[array].bytes);
  }
  bool within_a_region(const u8* at, i64 bytes) const {
    return std::any_of(regions_.begin(), regions_.end(), [&](const auto& region) {
      return at >= region->data() && at + bytes <= region->end();
    });
  }

  // Whether a call that is not refused keeps to memory that there is: of two ways to spoil it the second may
  // undo what the first broke, an overlap, and leave an array where it was moved to, beyond the end of its
  // region.
  bool stays_within() const {
    for (const ArrayId array : kEveryArray) {
      if (call_.holds(array) && !within_a_region(call_.at(array), call_.uses[array].bytes)) return false;
    }
    return true;
  }

  // Two arrays share bytes. Where both are read only, which is allowed, the one lies within the other.
  void overlap() {
    const ArrayId a = any_used(), b = any_used();
    if (a == b || !call_.holds(a) || !call_.holds(b)) return;
    const Use &moved = call_.uses[a], &other = call_.uses[b];
    const i64 unit = moved.element;
    if (!moved.written && !other.written) {
      if (moved.bytes <= other.bytes) set_pointer(call_.given, a, call_.at(b));
      return;
    }
    i64 shift = 0;
    switch (choose_.below(4)) {
      case 0: break;
      case 1:
        // the first of `moved` is the last of `other`
        shift = other.bytes - std::min<i64>(unit, other.bytes);
        break;
      case 2:
        shift = -(moved.bytes - 1) / unit * unit;  // the last of `moved` is the first of `other`
        break;
      default: shift = static_cast<i64>(choose_.below(1 << 16)) * unit % other.bytes / unit * unit;
    }
    // What says which columns are side channels, gamma and scales are read before the call is refused.
    if ((a == kSide || a == kGamma || a == kScales) && !within_a_region(call_.at(b) + shift, moved.bytes))
      return;
    set_pointer(call_.given, a, call_.at(b) + shift);
  }

  // --- Judging it ---

  std::string describe() const {
    const outgrad_call& a = call_.given;
    char line[256];
    std::snprintf(
        line, sizeof line,
        "%s format %d activation %d store %d bits %d [%lld, %lld] side %lld eps %a scale %a workspace "
        "%zu threads %d",
        kind_name(kind_), a.format, a.activation, a.store, a.bits, static_cast<long long>(a.rows),
        static_cast<long long>(a.n), static_cast<long long>(a.side_count), static_cast<double>(a.eps),
        static_cast<double>(scale_[0]), a.workspace_bytes, threads_);
    std::string text = line;
#if defined(__SSE2__)
    std::snprintf(line, sizeof line, " control %x", control_);
    text += line;
#endif
    for (const ArrayId array : kEveryArray) {
      if (!call_.uses[array].used) continue;
      std::snprintf(line, sizeof line, " %s %p+%lld", kMembers[array].name,
                    static_cast<const void*>(call_.at(array)),
                    static_cast<long long>(call_.uses[array].bytes));
      text += line;
    }
    return text;
  }

  // Seldom: threads that wait for each other cost more than all else here.
  bool several_threads() { return choose_.one_in(8); }

  // Calls with the caller's floating-point control register as chosen, which has to be as before afterwards.
  template <class Body>
  std::string guarded(const Body& body) {
    for (const auto& region : regions_) region->close();
#if defined(__SSE2__)
    const unsigned before = _mm_getcsr();
    _mm_setcsr(control_);
#endif
    body();
#if defined(__SSE2__)
    const unsigned after = _mm_getcsr();
    _mm_setcsr(before);
#endif
    for (const auto& region : regions_) region->open();
#if defined(__SSE2__)
    if ((after & ~kStickyFlags) != (control_ & ~kStickyFlags))
      return "the caller's floating-point control register was changed";
#endif
    return {};
  }

  std::string library(const outgrad_call* given, outgrad_status& status) {
    static constexpr int kThreads[] = {0, 2, 3, 5};
    threads_ = several_threads() ? choose_.of(kThreads) : 1;
    if (outgrad_set_threads(threads_) != OUTGRAD_OK || outgrad_get_threads() != threads_)
      return "the number of threads was not taken";
#if defined(__SSE2__)
    // The reset value; flush-to-zero with denormals-are-zero; downwards; towards zero with flush-to-zero.
    static constexpr unsigned kControls[] = {0x1f80, 0x1f80, 0x9fc0, 0x3f80, 0xff80};
    control_ = choose_.of(kControls);
#endif
    return guarded([&] { status = kFunctions[call_.id].run(given); });
  }

  // No call at all, one of another size, and one of a later release that has something else in it.
  std::string without_a_call() {
    std::string wrong = refused({{OUTGRAD_ERROR_NULL_POINTER}, {}}, nullptr);
    struct {
      outgrad_call call;
      std::uint8_t more[24];
    } later{call_.given, {}};
    later.call.size = choose_.below(offsetof(outgrad_call, b));
    if (wrong.empty()) wrong = refused({{OUTGRAD_ERROR_SIZE}, {}}, &later.call);
    const auto more = choose_.below(sizeof later.more);
    later.call.size = sizeof(outgrad_call) + more + 1;
    later.more[more] = static_cast<std::uint8_t>(1 + choose_.below(255));
    return wrong.empty() ? refused({{OUTGRAD_ERROR_SIZE}, {}}, &later.call) : wrong;
  }

  std::string refused(const Violations& expected, const outgrad_call* given) {
    outgrad_status status = OUTGRAD_OK;
    if (std::string wrong = library(given, status); !wrong.empty()) return wrong;
    if (status == OUTGRAD_OK && expected.certain.empty()) return {};
    if (!expected.certain.contains(status) && !expected.open.contains(status)) {
      std::string names;
      for (const outgrad_status one : expected.certain) names += std::string(" ") + outgrad_status_name(one);
      for (const outgrad_status one : expected.open)
        names += std::string(" (") + outgrad_status_name(one) + ")";
      return std::string(outgrad_status_name(status)) + " (" +
             (status == OUTGRAD_OK ? "" : outgrad_error_message()) + ") instead of" + names;
    }
    ++tally_.refused[static_cast<size_t>(kind_)][static_cast<size_t>(status)];
    const std::string message = outgrad_error_message(), begin = std::string(kind_name(kind_)) + ": ";
    if (!message.starts_with(begin) || message.size() <= begin.size() ||
        message.find('\n') != std::string::npos) {
      return "the message is \"" + message + "\"";
    }
    for (const auto& region : regions_) {
      if (std::memcmp(region->all(), region->saved().data(), region->size()) != 0)
        return std::string("refused (") + message + ") and yet written";
    }
    return {};
  }

  // A call with the inputs' values in arrays of its own, which do not coincide, and the results of the
  // baseline's scalar kernels in others; with another store than y, those of the library on one thread.
  Call reference(std::vector<std::vector<u64>>& memory) const {
    Call reference = call_;
    memory.resize(kArrays);
    for (const ArrayId array : kEveryArray) {
      if (!call_.holds(array)) continue;
      const auto bytes = static_cast<size_t>(call_.uses[array].bytes);
      std::vector<u64>& words = memory[array];
      words.assign(bytes / 8 + 2, 0x7fa5a5a57fa5a5a5u);
      if (!call_.uses[array].written) std::memcpy(words.data(), call_.at(array), bytes);
      set_pointer(reference.given, array, words.data());
    }
    // the interface answers without rows or elements itself
    if (call_.keeps_y() && call_.rows() > 0 && call_.given.n > 0) {
      call_kernels(reference, *c::kBaseline[call_.given.format]);
    } else if (kFunctions[call_.id].run(&reference.given) != OUTGRAD_OK) {
      reference.given.n = -1;
    }
    return reference;
  }

  // Everything but the results is as it was, and the results are those of `reference`.
  std::string compare(const Call& reference) {
    char line[128];
    for (const auto& region : regions_) {
      std::vector<u8> now(region->all(), region->all() + region->size());
      for (const ArrayId array : kEveryArray) {
        const u8* const written = call_.at(array);
        if (!call_.uses[array].written || written < region->all() ||
            written >= region->all() + region->size())
          continue;
        const auto at = written - region->all();
        std::copy_n(region->saved().begin() + at, call_.uses[array].bytes, now.begin() + at);
      }
      if (now != region->saved()) {
        const auto at = std::mismatch(now.begin(), now.end(), region->saved().begin()).first - now.begin();
        std::snprintf(line, sizeof line, "%p was written, which is no result",
                      static_cast<const void*>(region->all() + at));
        return line;
      }
    }
    for (const ArrayId array : kEveryArray) {
      const Use& use = call_.uses[array];
      if (!call_.holds(array) || !use.written || array == kWorkspace) continue;
      for (i64 i = 0; i < use.count(); ++i) {
        const auto bits = [&](const u8* from) -> u32 {
          u32 word = 0;
          std::memcpy(&word, from + use.element * i, static_cast<size_t>(use.element));
          return array != kMask && use.element > 1 ? canonical_bits(widened(format_of(array), from, i))
                                                   : word;
        };
        const u32 actual = bits(call_.at(array)), expected = bits(reference.at(array));
        if (actual == expected) continue;
        std::snprintf(line, sizeof line, "%s[%lld] is %08x, %08x as it should be", kMembers[array].name,
                      static_cast<long long>(i), actual, expected);
        return line;
      }
    }
    return {};
  }

  std::string accepted() {
    std::vector<std::vector<u64>> memory;
    const int callers_threads = omp_get_max_threads();
    omp_set_num_threads(1);
    outgrad_set_threads(1);
    const Call expected = reference(memory);
    omp_set_num_threads(callers_threads);
    outgrad_status status = OUTGRAD_OK;
    if (std::string wrong = library(&call_.given, status); !wrong.empty()) return wrong;
    if (status != OUTGRAD_OK || expected.given.n < 0)
      return std::string(outgrad_status_name(status)) + " (" + outgrad_error_message() + ") for a good call";
    ++tally_.accepted[static_cast<size_t>(kind_)][static_cast<size_t>(call_.given.format)];
    tally_.aliased += aliased_;
    if (std::string wrong = compare(expected); !wrong.empty()) return wrong;
    if (std::string wrong = judge(expected); !wrong.empty()) return wrong;
    // the interface answers these itself
    if (call_.rows() == 0 || call_.given.n == 0 || !call_.keeps_y()) return {};
    auto kernels = kernels_of(call_.given.format);
    kernels.pop_back();
    for (size_t i = 0; i < kernels.size(); ++i) {
      for (const auto& region : regions_) region->restore();
      const int threads = omp_get_max_threads();
      omp_set_num_threads(several_threads() ? 2 + static_cast<int>(choose_.below(2)) : 1);
      std::string wrong = guarded([&] { call_kernels(call_, *kernels[i]); });
      omp_set_num_threads(threads);
      if (wrong.empty()) wrong = compare(expected);
      if (!wrong.empty()) return "instruction set " + std::to_string(i) + ": " + wrong;
    }
    return {};
  }

  // --- The oracle: the values of `reference`, which are the library's too, against the definitions ---

  // Some of [0, count): the ends and as many others.
  std::vector<i64> some(i64 count, i64 most) {
    std::vector<i64> chosen;
    for (i64 k = 0; k < std::min(count, most); ++k) {
      chosen.push_back(count <= most ? k
                       : k == 0      ? 0
                       : k == 1      ? count - 1
                                     : static_cast<i64>(random_.next()) % count);
    }
    return chosen;
  }

  static std::string where(const char* what, i64 i, const std::string& wrong) {
    return what + (" " + std::to_string(i)) + ": " + wrong;
  }
  // Of an array, which `stride` elements lie between.
  std::vector<float> values(const Call& c, ArrayId array, i64 first, i64 count, i64 stride = 1) const {
    return widened_all(c.given.format, c.at(array), first, count, stride);
  }

  std::string judge(const Call& c) {
    if (is_activation(c.id) || is_bias(c.id)) {
      if (c.id == kActivationForward || c.id == kBiasForward) return judge_elements_forward(c);
      return c.keeps_y() ? judge_elements_backward(c) : "";
    }
    if (is_norm(c.id) && (c.keeps_y() || (is_norm_forward(c.id) && c.at(kY)))) return judge_norm(c);
    return {};
  }

  static bool bit(const Call& c, i64 i) {
    return c.uses[kMask].bytes > 0 && (c.at<u32>(kMask)[i / 32] >> (i % 32) & 1) != 0;
  }

  std::string judge_elements_forward(const Call& c) {
    const outgrad_call& a = c.given;
    const i64 size = c.rows() * a.n;
    if (!c.uses[kY].used || a.store == OUTGRAD_STORE_PARITY) return {};
    const bool masked = c.uses[kMask].bytes > 0, bias = is_bias(c.id);
    const Activation& f = activation_of(a.activation);
    const auto stored = static_cast<Stored>(a.format);
    for (const i64 i : some(size, 48)) {
      const float x = widened(a.format, c.at(kX), i), z = bias ? x + a.bias[i % a.n] : x,
                  y = widened(a.format, c.at(kY), i);
      const float x_star =
          a.activation == OUTGRAD_GELU ? ForwardFit<float>::Type::kXStar : static_cast<float>(f.x_star());
      const bool m = masked ? bit(c, i) : z >= x_star;  // beside a code none is kept
      std::string wrong = a.activation == OUTGRAD_GELU ? judge_gelu(f, stored, z, bias, y, m)
                                                       : judge_forward(f, stored, z, y, m);
      if (!masked && f.masked() && wrong == "the mask bit is not [x >= x*]") wrong.clear();
      if (!wrong.empty()) return where("element", i, wrong);
      ++tally_.judged[static_cast<size_t>(kind_)];
    }
    if (masked && size % 32 != 0 && c.at<u32>(kMask)[size / 32] >> (size % 32) != 0)
      return "mask bits beyond the last are not 0";
    return {};
  }

  std::string judge_elements_backward(const Call& c) {
    const outgrad_call& a = c.given;
    const FitBounds& bounds = kBounds[static_cast<size_t>(a.format)][static_cast<size_t>(a.activation)];
    const Activation& f = activation_of(a.activation);
    // x_ tells of y as it was made, not of what came to coincide with it.
    const bool of_forward = !x_.empty() && call_.at(kY) == made_y_ && call_.at(kMask) == made_mask_;
    for (const i64 i : some(c.rows() * a.n, 16)) {
      const float* const x =
          of_forward && !std::isnan(x_[static_cast<size_t>(i)]) ? &x_[static_cast<size_t>(i)] : nullptr;
      std::string wrong =
          judge_backward(f, bounds, static_cast<Stored>(a.format), widened(a.format, c.at(kDy), i),
                         widened(a.format, c.at(kY), i), bit(c, i), widened(a.format, c.at(kDx), i), x);
      if (!wrong.empty()) return where("element", i, wrong);
      ++tally_.judged[static_cast<size_t>(kind_)];
    }
    if (c.id != kBiasBackward || a.rows > 64) return {};
    for (const i64 j : some(a.n, 1)) {
      const auto dy = values(c, kDy, j, a.rows, a.n), y = values(c, kY, j, a.rows, a.n);
      const auto m = std::make_unique<bool[]>(static_cast<size_t>(a.rows));
      for (i64 row = 0; row < a.rows; ++row) m[static_cast<size_t>(row)] = bit(c, row * a.n + j);
      std::string wrong =
          judge_bias_gradient(f, bounds, dy, y, {m.get(), static_cast<size_t>(a.rows)}, a.dbias[j]);
      if (!wrong.empty()) return where("column", j, wrong);
    }
    return {};
  }

  std::string judge_norm(const Call& c) {
    const outgrad_call& a = c.given;
    const auto stored = static_cast<Stored>(a.format);
    const auto n = static_cast<size_t>(a.n);
    const auto* const channels = a.side_channels;
    const float *const gamma = c.at<float>(kGamma), *const beta = c.at<float>(kBeta);
    const auto is_side = std::make_unique<bool[]>(n);
    for (i64 k = 0; k < a.side_count; ++k) is_side[static_cast<size_t>(channels[k])] = true;
    for (const i64 row : some(a.rows, 2)) {
      std::string wrong;
      if (is_norm_forward(c.id)) {
        std::vector<float> x = values(c, kX, row * a.n, a.n);
        for (size_t j = 0; j < n && is_residual(c.id); ++j) {
          const auto at = row * a.n + static_cast<i64>(j);
          float z = x[j] + widened(a.format, c.at(kResidual), at);
          u32 rounded = 0;
          store(a.format, reinterpret_cast<u8*>(&rounded), 0, z);
          z = widened(a.format, reinterpret_cast<const u8*>(&rounded), 0);
          if (canonical_bits(z) != canonical_bits(widened(a.format, c.at(kZ), at)))
            return where("z of row", row, std::to_string(j));
          x[j] = z;
        }
        wrong = judge_norm_forward(
            {stored, is_layer(c.id), x, gamma, beta, a.eps, values(c, kY, row * a.n, a.n), a.rstd[row]});
      } else {
        const auto dy = values(c, kDy, row * a.n, a.n), y = values(c, kY, row * a.n, a.n),
                   dx = values(c, c.result(), row * a.n, a.n);
        const auto next = is_residual(c.id) ? values(c, kDzNext, row * a.n, a.n) : std::vector<float>{};
        std::vector<float> x_hat(n);
        for (i64 k = 0; k < a.side_count; ++k)
          x_hat[static_cast<size_t>(channels[k])] = a.side_x_hat[row * a.side_count + k];
        wrong = judge_norm_backward({stored, is_layer(c.id), dy, y, is_residual(c.id) ? next.data() : nullptr,
                                     gamma, beta, x_hat.data(), is_side.get(), a.rstd[row], dx});
      }
      if (!wrong.empty()) return where("row", row, wrong);
      ++tally_.judged[static_cast<size_t>(kind_)];
    }
    if (!is_norm_backward(c.id)) return {};
    for (const i64 j : some(a.n, 3)) {
      const bool side = is_side[static_cast<size_t>(j)];
      const auto dy = values(c, kDy, j, a.rows, a.n);
      auto from = values(c, kY, j, a.rows, a.n);
      const auto k = std::find(channels, channels + a.side_count, j) - channels;
      for (i64 row = 0; side && row < a.rows; ++row)
        from[static_cast<size_t>(row)] = a.side_x_hat[row * a.side_count + k];
      std::string wrong;
      if (const float* const sums = c.at<float>(kDgamma))
        wrong = judge_column(dy, from.data(), beta ? beta[j] : 0.0f, side, side || !gamma ? 1.0f : gamma[j],
                             sums[j]);
      if (const float* const sums = c.at<float>(kDbeta); sums && wrong.empty())
        wrong = judge_column(dy, nullptr, 0, false, 1.0f, sums[j]);
      if (!wrong.empty()) return where("column", j, wrong);
    }
    return {};
  }

  // --- Functions without arrays ---

  std::string sizes() {
    struct Function {
      const char* name;
      outgrad_status (*run)(outgrad_call*);
      Id of;  // whose sizes they are
    };
    static constexpr Function kAll[] = {
        {"outgrad_activation_sizes", outgrad_activation_sizes, kActivationForward},
        {"outgrad_norm_sizes", outgrad_norm_sizes, kLayernormForward},
        {"outgrad_bias_gelu_sizes", outgrad_bias_gelu_sizes, kBiasBackward}};
    const Function& function = kAll[choose_.below(3)];
    outgrad_call& a = call_.given;
    call_.id = function.of;
    choose_store();
    choose_shape();
    a.side_count = 0, a.eps = 1;
    const Uses& uses = call_.uses = uses_of(call_.id, a);
    if (choose_.one_in(3)) spoil_shape();
    if (choose_.one_in(8) && call_.id != kActivationForward) a.format = 3;
    if (choose_.one_in(8)) spoil_store();
    if (choose_.one_in(8)) a.size = choose_.below(sizeof a);
    a.scale = call_.id == kActivationForward ? scale_ : nullptr;  // not looked at: it is none of the wrong
    scale_[0] = 1;
    a.codes_bytes = a.scales_bytes = a.parts_bytes = a.workspace_bytes = 0x5eed;
    std::set<outgrad_status> expected = wrong_values(call_.id, a);
    // that of an earlier release's call, or of this one's
    if (a.size < offsetof(outgrad_call, b) || a.size % alignof(outgrad_call) != 0)
      expected = {OUTGRAD_ERROR_SIZE};
    const bool none = choose_.one_in(16);
    if (none) expected = {OUTGRAD_ERROR_NULL_POINTER};
    const outgrad_status status = function.run(none ? nullptr : &a);
    const auto wrong = [&](const std::string& what) {
      return describe() + ": " + function.name + ": " + what;
    };
    if (expected.empty() ? status != OUTGRAD_OK : !expected.contains(status))
      return wrong(outgrad_status_name(status));
    if (status != OUTGRAD_OK) {
      ++tally_.refused[kSizes][static_cast<size_t>(status)];
      if (!std::string(outgrad_error_message()).starts_with(function.name))
        return wrong(outgrad_error_message());
      const bool kept = a.codes_bytes == 0x5eed && a.scales_bytes == 0x5eed && a.parts_bytes == 0x5eed &&
                        a.workspace_bytes == 0x5eed;
      return kept ? "" : wrong("refused and yet written");
    }
    ++tally_.accepted[kSizes][static_cast<size_t>(a.format)];
    if (call_.id != kBiasBackward &&
        (a.codes_bytes != static_cast<size_t>(uses[kCodes].bytes) ||
         a.scales_bytes != static_cast<size_t>(uses[kScales].bytes) ||
         (call_.id == kActivationForward && a.parts_bytes != static_cast<size_t>(uses[kParts].bytes))))
      return wrong("the sizes of arrays");
    for (const c::FormatKernels* kernels : kernels_of(a.format)) {
      if (call_.id == kActivationForward) break;
      const i64 words = (is_norm(call_.id) ? kernels->norm_workspace : kernels->bias_workspace)(a.rows, a.n);
      if (words < 0 || static_cast<size_t>(words) * 4 != a.workspace_bytes)
        return wrong(std::to_string(a.workspace_bytes) + " bytes of workspace");
    }
    return {};
  }

  std::string queries() {
    const auto any = [&] {
      return choose_.one_in(4) ? static_cast<std::int32_t>(random_.next())
                               : static_cast<std::int32_t>(choose_.below(14)) - 2;
    };
    const std::int32_t activation = any(), format = any(), status = any(), threads = any();
    const bool known_format = format >= OUTGRAD_F32 && format <= OUTGRAD_BF16,
               known = known_format && activation >= 0 && activation <= OUTGRAD_ELU;
    const auto given = [](const char* text, bool expected) {
      return (text != nullptr && *text != '\0') == expected;
    };
    if (!given(outgrad_fit_name(activation, format), known)) return "outgrad_fit_name";
    const char* const digest = outgrad_coefficients_sha256(activation, format);
    if (!given(digest, known) || (digest && std::strspn(digest, "0123456789abcdef") != 64))
      return "outgrad_coefficients_sha256";
    if (!given(outgrad_forward_coefficients_sha256(), true)) return "outgrad_forward_coefficients_sha256";
    const std::int32_t kernel = any();
    const bool known_kernel =
        kernel >= OUTGRAD_KERNEL_GELU_FORWARD && kernel <= OUTGRAD_KERNEL_GELU_BACKWARD_CODE;
    if (!given(outgrad_tuned_variant(kernel, format, 1, 64), known_format && known_kernel))
      return "outgrad_tuned_variant";
    if (!given(outgrad_status_name(status), true)) return "outgrad_status_name";
    if (!given(outgrad_version(), true) || !given(outgrad_instruction_set(), true)) return "outgrad_version";
    const std::int32_t before = outgrad_get_threads();
    const outgrad_status taken = outgrad_set_threads(threads);
    if (taken != (threads < 0 ? OUTGRAD_ERROR_VALUE : OUTGRAD_OK)) return "outgrad_set_threads";
    if (outgrad_get_threads() != (threads < 0 ? before : threads)) return "outgrad_get_threads";
    outgrad_set_threads(0);
    ++(taken == OUTGRAD_OK ? tally_.accepted[kQueries][static_cast<size_t>(call_.given.format)]
                           : tally_.refused[kQueries][static_cast<size_t>(taken)]);
    return {};
  }

#if defined(__SSE2__)
  static constexpr unsigned kStickyFlags = 0x3f;
  unsigned control_ = 0x1f80;
#endif
  Choices choose_;
  Tally& tally_;
  patterns::Random random_;
  int kind_ = 0;
  Call call_;
  std::vector<std::unique_ptr<Region>> regions_;
  std::vector<std::int32_t> side_;
  float scale_[2] = {1, 1};
  std::uint64_t seed_[2] = {42, 43};
  std::vector<float> x_;  // of which y and mask were made
  const u8 *made_y_ = nullptr, *made_mask_ = nullptr;
  bool aliased_ = false;
  int threads_ = 0;
};

}  // namespace

std::string run_case(std::span<const std::uint8_t> bytes, Tally& tally) { return Case(bytes, tally).run(); }

}  // namespace outgrad::kernels::fuzz

#ifdef OUTGRAD_LIBFUZZER

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static outgrad::kernels::fuzz::Tally tally;
  const std::string wrong = outgrad::kernels::fuzz::run_case({data, size}, tally);
  if (!wrong.empty()) {
    std::fprintf(stderr, "%s\n", wrong.c_str());
    std::abort();
  }
  return 0;
}

#endif
