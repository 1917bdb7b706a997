// The C interface: checks arguments, chooses the instruction set once, turns exceptions into statuses.
//
// Compiled for the baseline, like everything that runs before the choice.
#include <omp.h>

#include <array>
#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "kernels/c/build.h"
#include "kernels/c/outgrad.h"
#include "kernels/c/table.h"
#include "kernels/catalogue/codes.h"
#include "kernels/catalogue/few_bits.h"
#include "kernels/host/errors.h"
#include "kernels/host/parallel.h"
#include "kernels/norm_store.h"
#include "kernels/product_fits.h"
#include "kernels/softmax.h"

namespace outgrad::c {
namespace {

using kernels::Arguments;
using kernels::Extent;
using kernels::KernelId;
using kernels::Operand;
using kernels::Role;
using kernels::Store;
namespace catalogue = kernels::catalogue;

// --- Errors --------------------------------------------------------------------------------------

constexpr std::size_t kMessageBytes = 512;  // one line; longer lines are cut off
thread_local char message[kMessageBytes] = "";
thread_local const char* function = "";  // of this interface, which the thread is in

// Ends a function of this interface before it has written anything.
struct Refusal {
  outgrad_status status;
};

[[noreturn]] __attribute__((format(printf, 2, 3))) void refuse(outgrad_status status, const char* format,
                                                               ...) {
  const int begin = std::snprintf(message, sizeof message, "%s: ", function);
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(message + begin, sizeof message - static_cast<std::size_t>(begin), format, arguments);
  va_end(arguments);
  throw Refusal{status};
}

// Runs the body of a function of this interface. If a kernel throws (which it does before it writes
// anything), it was given a value that it does not accept.
template <class Body>
outgrad_status entered(const char* name, const Body& body) noexcept {
  const auto failed = [&](outgrad_status status, const char* what) {
    std::snprintf(message, sizeof message, "%s: %s", name, what);
    return status;
  };
  function = name;
  const kernels::DefaultFloatEnvironment environment;  // for what is computed before the kernels set it
  try {
    body();
    return OUTGRAD_OK;
  } catch (const Refusal& refusal) {
    return refusal.status;
  } catch (const kernels::SpecError& error) {
    return failed(OUTGRAD_ERROR_VALUE, error.what());
  } catch (const std::exception& error) {
    return failed(OUTGRAD_ERROR_INTERNAL, error.what());
  } catch (...) {
    return failed(OUTGRAD_ERROR_INTERNAL, "unknown exception");
  }
}

// --- What runs -----------------------------------------------------------------------------------

enum class Isa { baseline, avx2, avx512, avx512_bf16 };
constexpr const char* kIsaNames[] = {"baseline", "avx2", "avx512", "avx512_bf16"};
constexpr const char* kUnknownIsa =
    "the environment variable OUTGRAD_ISA is none of baseline, avx2, avx512, avx512_bf16";

Isa supported_isa() {
#if defined(OUTGRAD_C_X86)
  __builtin_cpu_init();
  unsigned a, b, c, d;
  // older compilers' __builtin_cpu_supports lacks it
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
  if (!(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && f16c)) return Isa::baseline;
  if (!(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("bmi2"))) {
    return Isa::avx2;
  }
#if defined(OUTGRAD_C_AVX512_BF16)
  if (__builtin_cpu_supports("avx512bf16")) return Isa::avx512_bf16;
#endif
  return Isa::avx512;
#else
  return Isa::baseline;
#endif
}

struct Choice {
  Isa isa = Isa::baseline;
  const FormatKernels* kernels[kFormats] = {};
  bool environment_holds = true;
};

Choice choose() {
  Choice choice;
  choice.isa = supported_isa();
  if (const char* wanted = std::getenv("OUTGRAD_ISA"); wanted != nullptr && *wanted != '\0') {
    choice.environment_holds = false;
    for (int isa = 0; isa <= static_cast<int>(Isa::avx512_bf16); ++isa) {
      if (std::strcmp(wanted, kIsaNames[isa]) != 0) continue;
      choice.environment_holds = true;
      if (isa < static_cast<int>(choice.isa)) choice.isa = static_cast<Isa>(isa);
    }
  }
  const FormatKernels* const* family = kBaseline;
#if defined(OUTGRAD_C_X86)
  if (choice.isa >= Isa::avx512) {
    family = kAvx512;
  } else if (choice.isa == Isa::avx2) {
    family = kAvx2;
  }
#endif
  for (int format = 0; format < kFormats; ++format) choice.kernels[format] = family[format];
#if defined(OUTGRAD_C_AVX512_BF16)
  if (choice.isa == Isa::avx512_bf16) choice.kernels[OUTGRAD_BF16] = &kBf16Avx512Bf16;
#endif
  return choice;
}

const Choice& choice() {
  static const Choice chosen = choose();
  return chosen;
}

struct FitInfo {
  const char* name;
  bool masked;
};

struct FormatInfo {
  i64 bytes;
  FitInfo fits[kActivations];
};

template <class T, class... Fit>
constexpr FormatInfo info_of(FitList<Fit...>) {
  return {sizeof(T), {{Fit::kName, Fit::kMasked}...}};
}
constexpr FormatInfo kInfo[kFormats] = {info_of<float>(ActivationFits<float>::Type{}),
                                        info_of<kernels::F16>(ActivationFits<kernels::F16>::Type{}),
                                        info_of<kernels::BF16>(ActivationFits<kernels::BF16>::Type{})};

bool is_format(outgrad_format format) { return format >= 0 && format < kFormats; }
bool is_activation(outgrad_activation activation) { return activation >= 0 && activation < kActivations; }

const char* digest_of(const char* fit) {
  for (int i = 0; i < kDigestCount; ++i) {
    if (std::strcmp(kDigests[i].fit, fit) == 0) return kDigests[i].sha256;
  }
  return nullptr;
}

// --- Threads -------------------------------------------------------------------------------------

std::atomic<std::int32_t> wanted_threads{0};

// While this object exists, parallel regions that this thread starts have the wanted number of threads. It is
// a setting of this thread only.
class ThreadLimit {
 public:
  ThreadLimit() : wanted_(wanted_threads.load(std::memory_order_relaxed)), saved_(omp_get_max_threads()) {
    if (wanted_ > 0) omp_set_num_threads(wanted_);
  }
  ~ThreadLimit() {
    if (wanted_ > 0) omp_set_num_threads(saved_);
  }
  ThreadLimit(const ThreadLimit&) = delete;
  ThreadLimit& operator=(const ThreadLimit&) = delete;

 private:
  int wanted_;
  int saved_;
};

// --- Arguments -----------------------------------------------------------------------------------

// No address space can hold an array of more bytes (57 bits with five levels of pages). With this bound, no
// sum or product below overflows.
constexpr i64 kMostElements = i64{1} << 54;

long long shown(i64 value) { return value; }

// The call as this release knows it: members that the caller's lacks are 0, and ones that only the caller's
// has must be.
outgrad_call read(const outgrad_call* given) {
  if (given == nullptr) refuse(OUTGRAD_ERROR_NULL_POINTER, "the call is null");
  outgrad_call call{};
  // That of the first release whose functions took a call.
  constexpr std::size_t kLeastSize = offsetof(outgrad_call, b);
  if (given->size < kLeastSize || given->size % alignof(outgrad_call) != 0) {
    refuse(OUTGRAD_ERROR_SIZE, "size = %llu: it is sizeof(outgrad_call), %llu or more",
           static_cast<unsigned long long>(given->size), static_cast<unsigned long long>(kLeastSize));
  }
  const auto* const bytes = reinterpret_cast<const unsigned char*>(given);
  for (std::size_t k = sizeof call; k < given->size; ++k) {
    if (bytes[k] != 0) refuse(OUTGRAD_ERROR_SIZE, "the call has members that this release does not know");
  }
  std::memcpy(&call, given, std::min(given->size, sizeof call));
  if (!choice().environment_holds) refuse(OUTGRAD_ERROR_ENVIRONMENT, "%s", kUnknownIsa);
  return call;
}

const FormatKernels& kernels_of(outgrad_format format) {
  if (!is_format(format)) refuse(OUTGRAD_ERROR_FORMAT, "format %d is unknown", static_cast<int>(format));
  return *choice().kernels[format];
}

void check_activation(outgrad_activation activation) {
  if (!is_activation(activation))
    refuse(OUTGRAD_ERROR_ACTIVATION, "activation %d is unknown", static_cast<int>(activation));
}

const Store& check_store(outgrad_store store) {
  if (store < 0 || store >= kStoreCount)
    refuse(OUTGRAD_ERROR_STORE, "store %d is unknown", static_cast<int>(store));
  return kernels::kStores[store];
}

void check_length(i64 n) {
  if (n < 0) refuse(OUTGRAD_ERROR_SIZE, "n = %lld is negative", shown(n));
  if (n > kMostElements) refuse(OUTGRAD_ERROR_SIZE, "n = %lld is more than can be addressed", shown(n));
}

void check_shape(i64 rows, i64 n) {
  if (rows < 0) refuse(OUTGRAD_ERROR_SIZE, "rows = %lld is negative", shown(rows));
  if (n < 1) refuse(OUTGRAD_ERROR_SIZE, "n = %lld: a row needs at least one element", shown(n));
  if (n > kMostElements || rows > kMostElements / n)
    refuse(OUTGRAD_ERROR_SIZE, "[%lld, %lld] is more than can be addressed", shown(rows), shown(n));
}

void check_code_bits(const outgrad_call& a) {
  const bool dithered = a.seed != nullptr;
  if (kernels::code_bits_hold(a.bits, dithered)) return;
  refuse(OUTGRAD_ERROR_VALUE,
         dithered ? "bits = %d: a dithered code has 2 or 3" : "bits = %d: a code without a seed has 1 to 8",
         static_cast<int>(a.bits));
}

void check_eps(bool backward, float eps) {
  if (!backward && !kernels::eps_holds(eps))
    refuse(OUTGRAD_ERROR_VALUE, "eps = %g: it is at least 0", static_cast<double>(eps));
}

// What the arrays of a store take.
struct Sizes {
  i64 codes = 0, scales = 0, parts = 0;
};

void check_bytes(const outgrad_call& a, const Sizes& sizes, i64 elements) {
  const auto holds = [&](const char* name, std::size_t bytes, i64 needed) {
    if (bytes >= static_cast<u64>(needed)) return;
    refuse(OUTGRAD_ERROR_SIZE, "%s_bytes = %llu: the %s of %lld elements take %lld", name,
           static_cast<unsigned long long>(bytes), name, shown(elements), shown(needed));
  };
  holds("codes", a.codes_bytes, sizes.codes);
  holds("scales", a.scales_bytes, sizes.scales);
  holds("parts", a.parts_bytes, sizes.parts);
}

void check_workspace(const outgrad_call& a, i64 words) {
  if (words == 0 || (a.workspace != nullptr && a.workspace_bytes / 4 >= static_cast<u64>(words))) return;
  refuse(OUTGRAD_ERROR_WORKSPACE, "the workspace holds %llu of the %lld bytes that it needs",
         a.workspace == nullptr ? 0ull : static_cast<unsigned long long>(a.workspace_bytes),
         shown(words * 4));
}

// --- Arrays --------------------------------------------------------------------------------------

// The arrays of a call, in the order in which they are checked. An operand's may_alias are places in it.
class Arrays {
 public:
  void add(const Operand& of, const void* pointer, i64 bytes, i64 alignment) {
    arrays_[count_++] = {of, pointer, bytes, alignment};
  }
  void add(const char* name, Role role, const void* pointer, i64 bytes, i64 alignment = 1) {
    add({name, kernels::Content::kResult, kernels::Element::kByte, Extent::kElements, role}, pointer, bytes,
        alignment);
  }
  // A norm may do without these.
  void add_side(const outgrad_call& a, bool backward) {
    add("side_channels", Role::kInput, a.side_channels, a.side_count * 4, 4);
    add("side_x_hat", backward ? Role::kInput : Role::kOutput, a.side_x_hat, a.rows * a.side_count * 4, 4);
  }

  // The pointer of an array of no bytes may be anything.
  void check() const {
    for (int k = 0; k < count_; ++k) {
      const Array& array = arrays_[k];
      if (array.bytes == 0) continue;
      if (array.pointer == nullptr) {
        if (array.of.optional) continue;
        refuse(OUTGRAD_ERROR_NULL_POINTER, "%s is null", array.of.name);
      }
      if (array.begin() % static_cast<u64>(array.alignment) != 0) {
        refuse(OUTGRAD_ERROR_ALIGNMENT, "%s is not aligned to its elements of %lld bytes", array.of.name,
               shown(array.alignment));
      }
      if (static_cast<u64>(array.bytes) > UINTPTR_MAX - array.begin()) {
        refuse(OUTGRAD_ERROR_SIZE, "%lld bytes from the address of %s on do not exist", shown(array.bytes),
               array.of.name);
      }
    }
    for (int k = 0; k < count_; ++k) {
      for (int other = 0; other < count_; ++other) check_overlap(arrays_[k], arrays_[other], other);
    }
  }

 private:
  struct Array {
    Operand of;
    const void* pointer;
    i64 bytes;
    i64 alignment;

    std::uintptr_t begin() const { return reinterpret_cast<std::uintptr_t>(pointer); }
    std::uintptr_t end() const { return begin() + static_cast<u64>(bytes); }
    bool absent() const { return pointer == nullptr || bytes == 0; }
  };

  static void check_overlap(const Array& written, const Array& other, int place) {
    if (written.of.role == Role::kInput || &written == &other || written.absent() || other.absent() ||
        written.begin() >= other.end() || other.begin() >= written.end())
      return;
    for (const int allowed : written.of.may_alias)
      if (allowed == place && written.pointer == other.pointer) return;
    refuse(OUTGRAD_ERROR_OVERLAP, "%s overlaps %s", written.of.name, other.of.name);
  }

  Array arrays_[kernels::kMostOperands + 4] = {};
  int count_ = 0;
};

// Where the array of this name stands in a call.
constexpr std::size_t member_of(std::string_view name) {
  struct Member {
    std::string_view name;
    std::size_t at;
  };
#define OUTGRAD_C_MEMBER(name)          \
  {                                     \
    #name, offsetof(outgrad_call, name) \
  }
  constexpr Member kMembers[] = {
      OUTGRAD_C_MEMBER(x),     OUTGRAD_C_MEMBER(residual), OUTGRAD_C_MEMBER(bias),
      OUTGRAD_C_MEMBER(gamma), OUTGRAD_C_MEMBER(beta),     OUTGRAD_C_MEMBER(y),
      OUTGRAD_C_MEMBER(z),     OUTGRAD_C_MEMBER(mask),     OUTGRAD_C_MEMBER(rstd),
      OUTGRAD_C_MEMBER(dy),    OUTGRAD_C_MEMBER(dz_next),  OUTGRAD_C_MEMBER(dx),
      OUTGRAD_C_MEMBER(dz),    OUTGRAD_C_MEMBER(dgamma),   OUTGRAD_C_MEMBER(dbeta),
      OUTGRAD_C_MEMBER(dbias), OUTGRAD_C_MEMBER(codes),    OUTGRAD_C_MEMBER(b),
      OUTGRAD_C_MEMBER(db),    OUTGRAD_C_MEMBER(slot),     OUTGRAD_C_MEMBER(workspace)};
#undef OUTGRAD_C_MEMBER
  for (const Member& each : kMembers)
    if (each.name == name) return each.at;
  throw std::logic_error("no array of a call");  // for operands, an error of the compiler
}

void* array_at(const outgrad_call& a, std::size_t member) {
  void* pointer;
  std::memcpy(&pointer, reinterpret_cast<const char*>(&a) + member, sizeof pointer);
  return pointer;
}

// Those of the kernels' operands, found once: a norm on few elements takes less than finding them by name.
constexpr auto kMemberOf = [] {
  std::array<std::array<std::size_t, kernels::kMostOperands>, kernels::kKernels> all{};
  for (std::size_t kernel = 0; kernel < all.size(); ++kernel) {
    const auto named = operands(static_cast<KernelId>(kernel));
    for (std::size_t k = 0; k < named.size(); ++k) all[kernel][k] = member_of(named[k].name);
  }
  return all;
}();

void* operand_of(KernelId kernel, const outgrad_call& a, std::size_t place) {
  return array_at(a, kMemberOf[static_cast<std::size_t>(kernel)][place]);
}

// --- Kernels of the catalogue --------------------------------------------------------------------

Arguments arguments_of(KernelId kernel, const outgrad_call& a) {
  Arguments to{.rows = over_rows(kernel) ? a.rows : 1, .cols = a.n, .eps = a.eps};
  to.side = {a.side_channels, a.side_count, a.side_x_hat};
  for (std::size_t k = 0; k < operands(kernel).size(); ++k) to.array[k] = operand_of(kernel, a, k);
  return to;
}

bool has_operand(KernelId kernel, const char* name) { return place_of(kernel, name) != kernels::kNoOperand; }

i64 mask_bytes(i64 elements) { return (elements + 31) / 32 * 4; }

i64 workspace_words(KernelId kernel, const FormatKernels& kernels, i64 rows, i64 n) {
  if (kernels::has_extent(kernel, Extent::kNormWorkspace)) return kernels.norm_workspace(rows, n);
  return kernels::has_extent(kernel, Extent::kBiasWorkspace) ? kernels.bias_workspace(rows, n) : 0;
}

void check_side(const outgrad_call& a) {
  const i64 count = a.side_count, n = a.n;
  if (count < 0 || count > n)
    refuse(OUTGRAD_ERROR_VALUE, "side_count = %lld of %lld channels", shown(count), shown(n));
  if (count == 0) return;
  Arrays channels;
  channels.add("side_channels", Role::kInput, a.side_channels, count * 4, 4);
  channels.check();
  for (i64 k = 0; k < count; ++k) {
    if (a.side_channels[k] < (k > 0 ? i64{a.side_channels[k - 1]} + 1 : 0) || a.side_channels[k] >= n) {
      refuse(OUTGRAD_ERROR_VALUE, "side_channels[%lld] = %d: channels ascend within [0, %lld)", shown(k),
             static_cast<int>(a.side_channels[k]), shown(n));
    }
  }
}

// The arrays of a kernel in the catalogue's order. Only z, which a norm has only with a residual, comes after
// all others: it is y that overlaps z.
Arrays arrays_of(KernelId kernel, const outgrad_call& a, i64 words) {
  const i64 size = kInfo[a.format].bytes, elements = a.rows * a.n;
  Arrays arrays;
  const Operand* z = nullptr;
  for (std::size_t k = 0; k < operands(kernel).size(); ++k) {
    const Operand& of = operands(kernel)[k];
    i64 bytes = 0;
    switch (of.extent) {
      case Extent::kElements: bytes = elements * size; break;
      case Extent::kRows: bytes = a.rows * 4; break;
      case Extent::kColumns:  // without rows there is nothing to add a bias to
        bytes = of.content == kernels::Content::kBias && a.rows == 0 ? 0 : a.n * 4;
        break;
      case Extent::kMaskWords: bytes = mask_bytes(elements); break;
      default: bytes = words * 4;
    }
    if (std::strcmp(of.name, "z") == 0) {
      z = &of;
    } else {
      arrays.add(of, operand_of(kernel, a, k), bytes, of.element == kernels::Element::kFormat ? size : 4);
    }
  }
  if (is_norm(kernel)) arrays.add_side(a, is_backward(kernel));
  if (z != nullptr) arrays.add(*z, a.z, elements * size, size);
  return arrays;
}

// A kernel over rows.
void run_kernel(KernelId kernel, const outgrad_call& a) {
  const FormatKernels& kernels = kernels_of(a.format);
  check_shape(a.rows, a.n);
  if (is_norm(kernel)) {
    check_eps(is_backward(kernel), a.eps);
    check_side(a);
  }
  const i64 words = workspace_words(kernel, kernels, a.rows, a.n);
  check_workspace(a, words);
  arrays_of(kernel, a, words).check();
  if (a.rows == 0 && !is_backward(kernel)) return;  // a backward with no rows still writes its sums
  const ThreadLimit limit;
  kernels.run[static_cast<int>(kernel)]({a, arguments_of(kernel, a)});
}

outgrad_status enter_bias(const char* name, KernelId kernel, const outgrad_call* given) {
  return entered(name, [&] { run_kernel(kernel, read(given)); });
}

// --- Activations ---------------------------------------------------------------------------------

struct CodeInfo {
  const char* name;
  float lo, hi;  // the range of f'
  double (*error)(int bits, bool dithered);
};

template <class... Code>
constexpr std::array<CodeInfo, kActivations> code_info_of(FitList<Code...>) {
  return {{{Code::kName, Code::kLo, Code::kHi, kernels::code_error<Code>}...}};
}
constexpr std::array<CodeInfo, kActivations> kCodeInfo = code_info_of(kernels::ActivationCodes{});

// What the arithmetic of stores with parts adds to the catalogue's facts.
struct FewBits {
  bool (*scale_holds)(float scale) = nullptr;
  const char* scale_rule = nullptr;
  std::size_t table_bytes = 0;
  // Says how far what is kept can be from f'(x); in blocks up to an amax, which is given as bits.
  double (*make[kActivations])(float scale, int bits, u32 amax, void* tables) = {};
};

template <class Store, class Of>
double make_tables_of(float scale, int bits, u32 amax, void* tables) {
  return Store::template make_tables<Of>(scale, bits, amax, *static_cast<typename Store::Tables*>(tables));
}

template <int... kActivation>
constexpr std::array<FewBits, kStoreCount> few_bits_of(std::integer_sequence<int, kActivation...>) {
  std::array<FewBits, kStoreCount> all{};
  kernels::for_each_store([&]<StoreId kId>() {
    if constexpr (kernels::store_of(kId).has_parts) {
      using Arithmetic = kernels::StoreArithmetic<kId>;
      FewBits& store = all[static_cast<std::size_t>(kId)];
      store.scale_holds = Arithmetic::scale_holds;
      store.scale_rule = Arithmetic::kScaleRule;
      store.table_bytes = sizeof(typename Arithmetic::Tables);
      const auto add = [&]<int kAt>() {
        using Of = kernels::Fp8ActivationAt<kAt>;
        if constexpr (!std::is_void_v<Of>) store.make[kAt] = make_tables_of<Arithmetic, Of>;
      };
      (add.template operator()<kActivation>(), ...);
    }
  });
  return all;
}
constexpr std::array<FewBits, kStoreCount> kFewBits =
    few_bits_of(std::make_integer_sequence<int, kActivations>{});

// The tables of a call with y of few bits. Those that are too large for a stack, and for the storage that
// every thread of a program would have to set aside for them, are allocated.
class Tables {
 public:
  explicit Tables(outgrad_store store) {
    const std::size_t bytes = kFewBits[static_cast<std::size_t>(store)].table_bytes;
    if (bytes <= sizeof small_) return;
    large_.reset(new (std::nothrow) std::byte[bytes]);
    if (!large_) refuse(OUTGRAD_ERROR_MEMORY, "no memory for its tables");
  }
  void* get() { return large_ ? large_.get() : small_; }

 private:
  alignas(kernels::Fp8Table) std::byte small_[sizeof(kernels::Fp8Table)];
  std::unique_ptr<std::byte[]> large_;
};

// Checks the store's bits and scale.
void check_choice(const Store& store, const outgrad_call& a) {
  if (store.code_bits == kernels::kChosenBits) check_code_bits(a);
  if (store.has_parts && !kernels::part_bits_hold(a.bits)) {
    refuse(OUTGRAD_ERROR_VALUE, "bits = %d: beside y in %d bits are 0, 1 or 2", static_cast<int>(a.bits),
           store.code_bits);
  }
}
void check_scale(const Store& store, const outgrad_call& a) {
  if (!store.takes_scale) return;
  Arrays scale;
  scale.add("scale", Role::kInput, a.scale, 4, 4);
  scale.check();
  const FewBits& few = kFewBits[static_cast<std::size_t>(a.store)];
  if (!few.scale_holds(*a.scale))
    refuse(OUTGRAD_ERROR_VALUE, "scale = %g: %s", static_cast<double>(*a.scale), few.scale_rule);
}

Sizes sizes_of(const Store& store, const outgrad_call& a) {
  return {.codes = store.code_bits == 0
                       ? 0
                       : kernels::code_bytes(store.code_bits > 0 ? store.code_bits : a.bits, a.n),
          .scales = store.block == 0 ? 0 : (a.n + store.block - 1) / store.block,
          .parts = store.has_parts ? kernels::code_bytes(a.bits, a.n) : 0};
}

[[noreturn]] void refuse_activation(const Store& store, const outgrad_call& a) {
  const char* const name = kernels::kActivationNames[a.activation];
  if (a.store == OUTGRAD_STORE_PARITY) {
    if (a.format == OUTGRAD_F32)
      refuse(OUTGRAD_ERROR_FORMAT, "y carries its branch in f16 and bf16, not in f32");
    refuse(OUTGRAD_ERROR_ACTIVATION, "%s rises: there is no branch for y to carry", name);
  }
  if (a.store == OUTGRAD_STORE_MXFP8)
    refuse(OUTGRAD_ERROR_ACTIVATION, "%s: y in mxfp8 is for gelu alone", name);
  refuse(OUTGRAD_ERROR_ACTIVATION, "%s rises: y in %d bits is for activations with a minimum", name,
         store.code_bits);
}

// What is kept of an activation, as arrays that its forward writes and its backward reads.
void add_kept(Arrays& arrays, const Store& store, const outgrad_call& a, const Sizes& sizes, Role role) {
  const i64 size = kInfo[a.format].bytes;
  if (store.keeps_y || (store.writes_y && role == Role::kOutput))
    arrays.add(role == Role::kOutput ? catalogue::result("y", 0) : catalogue::kGeluY, a.y, a.n * size, size);
  arrays.add("codes", role, a.codes, sizes.codes);
  arrays.add("scales", role, a.scales, sizes.scales);
  arrays.add("parts", role, a.parts, sizes.parts);
  const bool masked = store.keeps_mask && kInfo[a.format].fits[a.activation].masked;
  arrays.add("mask", role, a.mask, masked ? mask_bytes(a.n) : 0, 4);
}

void add_seed(Arrays& arrays, const outgrad_call& a) {
  if (a.seed != nullptr) arrays.add("seed", Role::kInput, a.seed, 8, 8);
}

outgrad_status enter_activation(const char* name, bool backward, const outgrad_call* given) {
  return entered(name, [&] {
    outgrad_call a = read(given);
    a.rows = 1;
    const FormatKernels& kernels = kernels_of(a.format);
    check_activation(a.activation);
    const Store& store = check_store(a.store);
    FormatKernels::Run* const body = (backward ? kernels.backward : kernels.forward)[a.store][a.activation];
    if (body == nullptr) refuse_activation(store, a);
    check_choice(store, a);
    check_scale(store, a);
    check_length(a.n);
    const Sizes sizes = sizes_of(store, a);
    check_bytes(a, sizes, a.n);
    if (a.n == 0) return;
    const i64 size = kInfo[a.format].bytes;
    Arrays arrays;
    arrays.add(backward ? catalogue::kDy : catalogue::kX, backward ? a.dy : a.x, a.n * size, size);
    add_kept(arrays, store, a, sizes, backward ? Role::kInput : Role::kOutput);
    if (backward) arrays.add(catalogue::result("dx", 0), a.dx, a.n * size, size);
    if (store.takes_scale) arrays.add("scale", Role::kInput, a.scale, 4, 4);
    if (store.code_bits == kernels::kChosenBits) add_seed(arrays, a);
    arrays.check();

    Tables tables(a.store);
    if (store.has_parts) make_tables(a, *a.scale, 0, tables.get());
    const CodeInfo& code = kCodeInfo[static_cast<std::size_t>(a.activation)];
    const ThreadLimit limit;
    body({a, arguments_of(backward ? KernelId::kGeluBackward : KernelId::kGeluForward, a), code.lo, code.hi,
          tables.get()});
  });
}

// Codes of a range that the caller gives.
outgrad_status enter_range(const char* name, bool backward, const outgrad_call* given) {
  return entered(name, [&] {
    const outgrad_call a = read(given);
    const FormatKernels& kernels = kernels_of(a.format);
    if (!kernels::code_range_holds({a.lo, a.hi})) {
      refuse(OUTGRAD_ERROR_VALUE,
             "[%g, %g] is no range of f' that codes are proven for: within +-%g and wider than %g",
             static_cast<double>(a.lo), static_cast<double>(a.hi),
             static_cast<double>(kernels::kLargestGradient), static_cast<double>(kernels::kLeastWidth));
    }
    check_code_bits(a);
    check_length(a.n);
    const Sizes sizes{.codes = kernels::code_bytes(a.bits, a.n)};
    check_bytes(a, sizes, a.n);
    if (a.n == 0) return;
    const i64 size = kInfo[a.format].bytes;
    Arrays arrays;
    arrays.add(backward ? "dy" : "g", Role::kInput, backward ? a.dy : a.g, a.n * size, size);
    arrays.add("codes", backward ? Role::kInput : Role::kOutput, a.codes, sizes.codes);
    if (backward) arrays.add(catalogue::result("dx", 0), a.dx, a.n * size, size);
    add_seed(arrays, a);
    arrays.check();
    const ThreadLimit limit;
    (backward ? kernels.backward_encoded : kernels.encode_gradients)({a, {}, a.lo, a.hi});
  });
}

// --- Gated pairs ---------------------------------------------------------------------------------

outgrad_status enter_gated(const char* name, bool backward, const outgrad_call* given) {
  return entered(name, [&] {
    const outgrad_call a = read(given);
    const FormatKernels& kernels = kernels_of(a.format);
    check_activation(a.activation);
    FormatKernels::Run* const run = (backward ? kernels.gated_backward : kernels.gated_forward)[a.activation];
    if (run == nullptr) {
      refuse(OUTGRAD_ERROR_ACTIVATION, "%s is no gate; gelu, gelu_tanh, silu and sigmoid are",
             kernels::kActivationNames[a.activation]);
    }
    check_shape(a.rows, a.n);
    check_shape(a.rows, 2 * a.n);
    const bool packed = a.b == nullptr;
    const i64 size = kInfo[a.format].bytes, bytes = a.rows * a.n * size, of_x = packed ? 2 * bytes : bytes;
    Arrays arrays;
    if (backward) arrays.add("dy", Role::kInput, a.dy, bytes, size);
    arrays.add("x", Role::kInput, a.x, of_x, size);
    if (!packed) arrays.add("b", Role::kInput, a.b, bytes, size);
    if (backward) {
      arrays.add(catalogue::result("dx", 1), a.dx, of_x, size);
      if (!packed) arrays.add(catalogue::result("db", 2), a.db, bytes, size);
      Operand y = catalogue::result("y", 0);
      y.optional = true;
      arrays.add(y, a.y, bytes, size);
    } else {
      arrays.add(packed ? catalogue::result("y", kernels::kNoOperand) : catalogue::result("y", 0, 1), a.y,
                 bytes, size);
    }
    arrays.check();
    const ThreadLimit limit;
    run({a});
  });
}

outgrad_status enter_product(const char* name, bool backward, const outgrad_call* given) {
  return entered(name, [&] {
    const outgrad_call a = read(given);
    const FormatKernels& kernels = kernels_of(a.format);
    check_activation(a.activation);
    if (!kernels::has_product(a.activation)) {
      refuse(OUTGRAD_ERROR_ACTIVATION, "%s has no pair that keeps its product; gelu, gelu_tanh and silu have",
             kernels::kActivationNames[a.activation]);
    }
    FormatKernels::Run* const run =
        (backward ? kernels.product_backward : kernels.product_forward)[a.activation];
    if (run == nullptr) refuse(OUTGRAD_ERROR_FORMAT, "a pair keeps its product in f16 and bf16, not in f32");
    check_shape(a.rows, a.n);
    check_shape(a.rows, 2 * a.n);
    const bool packed = (backward ? a.db : a.b) == nullptr;
    const i64 elements = a.rows * a.n, size = kInfo[a.format].bytes, bytes = elements * size,
              of_pair = packed ? 2 * bytes : bytes;
    Arrays arrays;
    if (backward) {
      for (const char* const input : {"dy", "y", "slot"})
        arrays.add(input, Role::kInput, array_at(a, member_of(input)), bytes, size);
      arrays.add("mask", Role::kInput, a.mask, mask_bytes(elements), 4);
      arrays.add(packed ? catalogue::result("dx", kernels::kNoOperand) : catalogue::result("dx", 0), a.dx,
                 of_pair, size);
      if (!packed) arrays.add(catalogue::result("db", kernels::kNoOperand), a.db, bytes, size);
    } else {
      arrays.add("x", Role::kInput, a.x, of_pair, size);
      if (!packed) arrays.add("b", Role::kInput, a.b, bytes, size);
      arrays.add(catalogue::result("y", packed ? kernels::kNoOperand : 0), a.y, bytes, size);
      arrays.add(catalogue::result("slot", packed ? kernels::kNoOperand : 1), a.slot, bytes, size);
      arrays.add("mask", Role::kOutput, a.mask, mask_bytes(elements), 4);
    }
    arrays.check();
    const ThreadLimit limit;
    run({a});
  });
}

// --- Softmax -------------------------------------------------------------------------------------

// From `input`, codes, or from it and codes `output`, which may be the input itself and is null without one.
outgrad_status enter_softmax(const char* name, FormatKernels::Run* FormatKernels::* body, const char* input,
                             const char* output, const outgrad_call* given) {
  return entered(name, [&] {
    const outgrad_call a = read(given);
    const FormatKernels& kernels = kernels_of(a.format);
    check_shape(a.rows, a.n);
    if (a.n > kernels::kMostSoftmax) {
      refuse(OUTGRAD_ERROR_SIZE,
             "n = %lld: in a row of more than %lld elements, all of p may be too small for a code",
             shown(a.n), shown(kernels::kMostSoftmax));
    }
    const i64 elements = a.rows * a.n, size = kInfo[a.format].bytes;
    check_bytes(a, {.codes = elements}, elements);
    Arrays arrays;
    arrays.add(input, Role::kInput, array_at(a, member_of(input)), elements * size, size);
    arrays.add("codes", body == &FormatKernels::softmax_backward ? Role::kInput : Role::kOutput, a.codes,
               elements);
    if (output != nullptr)
      arrays.add(catalogue::result(output, 0), array_at(a, member_of(output)), elements * size, size);
    arrays.check();
    const ThreadLimit limit;
    (kernels.*body)({a});
  });
}

// --- Norms ---------------------------------------------------------------------------------------

struct NormStore {
  i64 group = 0;  // elements of a row that share a scale, 0: the tensor
  i64 scale_bytes = 0, scale_alignment = 1;
};

template <class Store>
constexpr NormStore norm_store() {
  using Scale = typename Store::Scale;
  return {Store::kGroup, sizeof(Scale), alignof(Scale)};
}

NormStore norm_store_of(outgrad_store store) {
  switch (store) {
    case OUTGRAD_STORE_E4M3: return norm_store<kernels::NormE4m3>();
    case OUTGRAD_STORE_MXFP8: return norm_store<kernels::NormMxFp8>();
    case OUTGRAD_STORE_INT8: return norm_store<kernels::NormInt8>();
    default: refuse(OUTGRAD_ERROR_STORE, "%s is no store of a norm", check_store(store).name);
  }
}

Sizes sizes_of(const NormStore& store, const outgrad_call& a) {
  if (store.group > 0 && a.n % store.group != 0) {
    refuse(OUTGRAD_ERROR_SIZE, "n = %lld is no whole number of groups of %lld, which share a scale in %s",
           shown(a.n), shown(store.group), check_store(a.store).name);
  }
  return {.codes = a.rows * a.n,
          .scales = (store.group == 0 ? 1 : a.rows * (a.n / store.group)) * store.scale_bytes};
}

// A norm whose y is kept in 8 bits.
void run_8bit(KernelId kernel, const outgrad_call& given) {
  const bool backward = is_backward(kernel);
  const kernels::Norm norm = has_operand(kernel, "beta") ? kernels::Norm::layer : kernels::Norm::rms;
  outgrad_call a = given;
  if (norm == kernels::Norm::rms) a.beta = nullptr, a.dbeta = nullptr;
  if (backward || a.store != OUTGRAD_STORE_E4M3) a.scale = nullptr;  // the others find those of their groups
  const FormatKernels& kernels = kernels_of(a.format);
  const NormStore store = norm_store_of(a.store);
  check_shape(a.rows, a.n);
  const Sizes sizes = sizes_of(store, a);
  check_bytes(a, sizes, a.rows * a.n);
  check_eps(backward, a.eps);
  check_side(a);
  const i64 words = backward ? kernels.norm_workspace(a.rows, a.n) : 0;
  check_workspace(a, words);

  const i64 elements = a.rows * a.n, size = kInfo[a.format].bytes;
  const Role kept = backward ? Role::kInput : Role::kOutput;
  Operand output = catalogue::result(backward ? "dx" : "y", 0);
  output.optional = !backward;
  Arrays arrays;
  arrays.add(backward ? catalogue::kDy : catalogue::kX, backward ? a.dy : a.x, elements * size, size);
  arrays.add(output, backward ? a.dx : a.y, elements * size, size);
  arrays.add("codes", kept, a.codes, elements);
  arrays.add("scales", kept, a.scales, sizes.scales, store.scale_alignment);
  arrays.add(catalogue::kGamma, a.gamma, a.n * 4, 4);
  arrays.add(catalogue::kBeta, a.beta, a.n * 4, 4);
  if (a.scale != nullptr) arrays.add("scale", Role::kInput, a.scale, 4, 4);
  arrays.add(backward ? catalogue::kRstd : catalogue::kNewRstd, a.rstd, a.rows * 4, 4);
  arrays.add_side(a, backward);
  if (backward) {
    arrays.add(catalogue::kDgamma, a.dgamma, a.n * 4, 4);
    arrays.add(catalogue::kDbeta, a.dbeta, a.n * 4, 4);
    arrays.add(catalogue::kNormScratch, a.workspace, words * 4, 4);
  }
  arrays.check();
  const ThreadLimit limit;
  FormatKernels::Run* const(&run)[kNorms][kStoreCount] =
      backward ? kernels.norm_backward : kernels.norm_forward;
  run[static_cast<int>(norm)][a.store]({a, arguments_of(kernel, a)});
}

outgrad_status enter_norm(const char* name, KernelId kernel, const outgrad_call* given) {
  return entered(name, [&] {
    const outgrad_call a = read(given);
    kernels_of(a.format);
    if (a.store == OUTGRAD_STORE_Y) return run_kernel(kernel, a);
    if (has_operand(kernel, "residual") || has_operand(kernel, "dz_next"))
      refuse(OUTGRAD_ERROR_STORE, "the norm of a sum keeps y alone, not %s", check_store(a.store).name);
    run_8bit(kernel, a);
  });
}

// --- Tuned schedules -----------------------------------------------------------------------------

// Null for an unknown kernel. The values of outgrad_kernel stay the same, whatever the catalogue's order is.
const KernelId* kernel_of(outgrad_kernel kernel) {
  switch (kernel) {
#define OUTGRAD_C_KERNEL(type, function, value, ...)   \
  case OUTGRAD_KERNEL_##value: {                       \
    static constexpr KernelId kId = KernelId::k##type; \
    return &kId;                                       \
  }
    OUTGRAD_KERNELS(OUTGRAD_C_KERNEL)
#undef OUTGRAD_C_KERNEL
    default: return nullptr;
  }
}

ChosenSchedule chosen_of(outgrad_kernel kernel, outgrad_format format, i64 rows, i64 n) {
  const KernelId* const known = kernel_of(kernel);
  return known && is_format(format) ? choice().kernels[format]->chosen[static_cast<int>(*known)](rows, n)
                                    : ChosenSchedule{};
}

// What a function wrote into the caller's own call.
void give(outgrad_call* call, const Sizes& sizes) {
  call->codes_bytes = static_cast<std::size_t>(sizes.codes);
  call->scales_bytes = static_cast<std::size_t>(sizes.scales);
  call->parts_bytes = static_cast<std::size_t>(sizes.parts);
}

}  // namespace

const FormatKernels& chosen_kernels(outgrad_format format) {
  if (!choice().environment_holds) throw kernels::SpecError(kUnknownIsa);
  return *choice().kernels[format];
}

double make_tables(const outgrad_call& a, float scale, u32 amax, void* tables) {
  return kFewBits[static_cast<std::size_t>(a.store)].make[a.activation](scale, a.bits, amax, tables);
}

}  // namespace outgrad::c

using namespace outgrad::c;

outgrad_status outgrad_activation_forward(const outgrad_call* call) {
  return enter_activation("outgrad_activation_forward", false, call);
}

outgrad_status outgrad_activation_backward(const outgrad_call* call) {
  return enter_activation("outgrad_activation_backward", true, call);
}

outgrad_status outgrad_activation_sizes(outgrad_call* call) {
  return entered("outgrad_activation_sizes", [&] {
    const outgrad_call a = read(call);
    const Store& store = check_store(a.store);
    check_choice(store, a);
    check_length(a.n);
    give(call, sizes_of(store, a));
  });
}

outgrad_status outgrad_store_error(const outgrad_call* call, float amax, double* error) {
  return entered("outgrad_store_error", [&] {
    const outgrad_call a = read(call);
    check_activation(a.activation);
    const Store& store = check_store(a.store);
    check_choice(store, a);
    if (store.code_bits == outgrad::kernels::kChosenBits) {
      if (error == nullptr) refuse(OUTGRAD_ERROR_NULL_POINTER, "error is null");
      *error = kCodeInfo[static_cast<std::size_t>(a.activation)].error(a.bits, a.seed != nullptr);
      return;
    }
    if (!store.has_parts) {
      refuse(OUTGRAD_ERROR_STORE, "the bound of %s is in the header of each fit", store.name);
    }
    const auto make = kFewBits[static_cast<std::size_t>(a.store)].make[a.activation];
    if (make == nullptr) refuse_activation(store, a);
    check_scale(store, a);
    if (store.block > 0 && !(amax >= 0))
      refuse(OUTGRAD_ERROR_VALUE, "amax = %g: it is not negative", static_cast<double>(amax));
    if (error == nullptr) refuse(OUTGRAD_ERROR_NULL_POINTER, "error is null");
    Tables tables(a.store);
    *error = make(*a.scale, a.bits, outgrad::kernels::bits_of(amax) & 0x7fffffffu, tables.get());
  });
}

outgrad_status outgrad_encode_gradients(const outgrad_call* call) {
  return enter_range("outgrad_encode_gradients", false, call);
}

outgrad_status outgrad_backward_encoded(const outgrad_call* call) {
  return enter_range("outgrad_backward_encoded", true, call);
}

outgrad_status outgrad_bias_gelu_forward(const outgrad_call* call) {
  return enter_bias("outgrad_bias_gelu_forward", KernelId::kBiasGeluForward, call);
}

outgrad_status outgrad_bias_gelu_backward(const outgrad_call* call) {
  return enter_bias("outgrad_bias_gelu_backward", KernelId::kBiasGeluBackward, call);
}

outgrad_status outgrad_bias_gelu_sizes(outgrad_call* call) {
  return entered("outgrad_bias_gelu_sizes", [&] {
    const outgrad_call a = read(call);
    const FormatKernels& kernels = kernels_of(a.format);
    check_shape(a.rows, a.n);
    call->workspace_bytes = static_cast<std::size_t>(kernels.bias_workspace(a.rows, a.n)) * 4;
  });
}

outgrad_status outgrad_gated_forward(const outgrad_call* call) {
  return enter_gated("outgrad_gated_forward", false, call);
}

outgrad_status outgrad_gated_backward(const outgrad_call* call) {
  return enter_gated("outgrad_gated_backward", true, call);
}

outgrad_status outgrad_product_forward(const outgrad_call* call) {
  return enter_product("outgrad_product_forward", false, call);
}

outgrad_status outgrad_product_backward(const outgrad_call* call) {
  return enter_product("outgrad_product_backward", true, call);
}

outgrad_status outgrad_softmax_forward(const outgrad_call* call) {
  return enter_softmax("outgrad_softmax_forward", &FormatKernels::softmax_forward, "x", "y", call);
}

outgrad_status outgrad_softmax_encode(const outgrad_call* call) {
  return enter_softmax("outgrad_softmax_encode", &FormatKernels::softmax_encode, "y", nullptr, call);
}

outgrad_status outgrad_softmax_backward(const outgrad_call* call) {
  return enter_softmax("outgrad_softmax_backward", &FormatKernels::softmax_backward, "dy", "dx", call);
}

#define OUTGRAD_C_NORM(function, kernel) \
  outgrad_status function(const outgrad_call* call) { return enter_norm(#function, KernelId::kernel, call); }
OUTGRAD_C_NORM(outgrad_layernorm_forward, kLayernormForward)
OUTGRAD_C_NORM(outgrad_rmsnorm_forward, kRmsnormForward)
OUTGRAD_C_NORM(outgrad_layernorm_backward, kLayernormBackward)
OUTGRAD_C_NORM(outgrad_rmsnorm_backward, kRmsnormBackward)
OUTGRAD_C_NORM(outgrad_residual_layernorm_forward, kResidualLayernormForward)
OUTGRAD_C_NORM(outgrad_residual_rmsnorm_forward, kResidualRmsnormForward)
OUTGRAD_C_NORM(outgrad_residual_layernorm_backward, kResidualLayernormBackward)
OUTGRAD_C_NORM(outgrad_residual_rmsnorm_backward, kResidualRmsnormBackward)
#undef OUTGRAD_C_NORM

outgrad_status outgrad_norm_sizes(outgrad_call* call) {
  return entered("outgrad_norm_sizes", [&] {
    const outgrad_call a = read(call);
    const FormatKernels& kernels = kernels_of(a.format);
    check_shape(a.rows, a.n);
    give(call, a.store == OUTGRAD_STORE_Y ? Sizes{} : sizes_of(norm_store_of(a.store), a));
    call->workspace_bytes = static_cast<std::size_t>(kernels.norm_workspace(a.rows, a.n)) * 4;
  });
}

const char* outgrad_code_name(outgrad_activation activation) {
  return is_activation(activation) ? kCodeInfo[static_cast<std::size_t>(activation)].name : nullptr;
}

const char* outgrad_code_coefficients_sha256(outgrad_activation activation) {
  return is_activation(activation) ? digest_of(outgrad_code_name(activation)) : nullptr;
}

const char* outgrad_error_message(void) { return message; }

const char* outgrad_status_name(outgrad_status status) {
  switch (status) {
    case OUTGRAD_OK: return "OUTGRAD_OK";
    case OUTGRAD_ERROR_NULL_POINTER: return "OUTGRAD_ERROR_NULL_POINTER";
    case OUTGRAD_ERROR_SIZE: return "OUTGRAD_ERROR_SIZE";
    case OUTGRAD_ERROR_OVERLAP: return "OUTGRAD_ERROR_OVERLAP";
    case OUTGRAD_ERROR_ALIGNMENT: return "OUTGRAD_ERROR_ALIGNMENT";
    case OUTGRAD_ERROR_FORMAT: return "OUTGRAD_ERROR_FORMAT";
    case OUTGRAD_ERROR_ACTIVATION: return "OUTGRAD_ERROR_ACTIVATION";
    case OUTGRAD_ERROR_WORKSPACE: return "OUTGRAD_ERROR_WORKSPACE";
    case OUTGRAD_ERROR_VALUE: return "OUTGRAD_ERROR_VALUE";
    case OUTGRAD_ERROR_ENVIRONMENT: return "OUTGRAD_ERROR_ENVIRONMENT";
    case OUTGRAD_ERROR_INTERNAL: return "OUTGRAD_ERROR_INTERNAL";
    case OUTGRAD_ERROR_MEMORY: return "OUTGRAD_ERROR_MEMORY";
    case OUTGRAD_ERROR_STORE: return "OUTGRAD_ERROR_STORE";
    default: return "unknown status";
  }
}

outgrad_status outgrad_set_threads(std::int32_t threads) {
  return entered("outgrad_set_threads", [&] {
    if (threads < 0) refuse(OUTGRAD_ERROR_VALUE, "threads = %d is negative", static_cast<int>(threads));
    wanted_threads.store(threads, std::memory_order_relaxed);
  });
}

std::int32_t outgrad_get_threads(void) { return wanted_threads.load(std::memory_order_relaxed); }

const char* outgrad_version(void) { return kVersion; }

const char* outgrad_instruction_set(void) { return kIsaNames[static_cast<int>(choice().isa)]; }

const char* outgrad_fit_name(outgrad_activation activation, outgrad_format format) {
  return is_activation(activation) && is_format(format) ? kInfo[format].fits[activation].name : nullptr;
}

const char* outgrad_coefficients_sha256(outgrad_activation activation, outgrad_format format) {
  return is_activation(activation) && is_format(format) ? digest_of(kInfo[format].fits[activation].name)
                                                        : nullptr;
}

const char* outgrad_forward_coefficients_sha256(void) { return digest_of("gelu_forward"); }

const char* outgrad_tuned_variant(outgrad_kernel kernel, outgrad_format format, std::int64_t rows,
                                  std::int64_t n) {
  return chosen_of(kernel, format, rows, n).variant;
}

const char* outgrad_tuned_rung(outgrad_kernel kernel, outgrad_format format, std::int64_t rows,
                               std::int64_t n) {
  return chosen_of(kernel, format, rows, n).rung;
}
