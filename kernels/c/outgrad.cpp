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
#include <initializer_list>
#include <memory>
#include <new>
#include <span>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "kernels/c/build.h"
#include "kernels/c/outgrad.h"
#include "kernels/c/table.h"
#include "kernels/codes.h"
#include "kernels/fp4.h"
#include "kernels/fp8s.h"
#include "kernels/host/errors.h"
#include "kernels/norm_store.h"
#include "kernels/softmax.h"

namespace outgrad::c {
namespace {

using kernels::Arguments;
using kernels::Extent;
using kernels::KernelId;
using kernels::Operand;
using kernels::Role;
namespace catalogue = kernels::catalogue;
using u64 = kernels::u64;

// --- Errors --------------------------------------------------------------------------------------

constexpr std::size_t kMessageBytes = 512;  // one line; longer lines are cut off
thread_local char message[kMessageBytes] = "";

__attribute__((format(printf, 3, 4))) outgrad_status fail(outgrad_status status, const char* function,
                                                          const char* format, ...) {
  const int begin = std::snprintf(message, sizeof message, "%s: ", function);
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(message + begin, sizeof message - static_cast<std::size_t>(begin), format, arguments);
  va_end(arguments);
  return status;
}

// --- What runs -----------------------------------------------------------------------------------

enum class Isa { baseline, avx2, avx512, avx512_bf16 };
constexpr const char* kIsaNames[] = {"baseline", "avx2", "avx512", "avx512_bf16"};

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

// An array of a call. Its operand's may_alias are positions in the list in which it is checked.
struct Array {
  Operand of;
  const void* pointer;
  i64 bytes;
  i64 alignment;
};

bool overlap(const Array& a, const Array& b) {
  const auto begin = [](const Array& o) { return reinterpret_cast<std::uintptr_t>(o.pointer); };
  return a.pointer != nullptr && b.pointer != nullptr && a.bytes > 0 && b.bytes > 0 &&
         begin(a) < begin(b) + static_cast<u64>(b.bytes) && begin(b) < begin(a) + static_cast<u64>(a.bytes);
}

// The pointer of an array of no bytes may be anything.
outgrad_status check_arrays(const char* function, std::span<const Array> arrays) {
  for (const Array& array : arrays) {
    if (array.bytes == 0) continue;
    if (array.pointer == nullptr) {
      if (array.of.optional) continue;
      return fail(OUTGRAD_ERROR_NULL_POINTER, function, "%s is null", array.of.name);
    }
    const auto address = reinterpret_cast<std::uintptr_t>(array.pointer);
    if (address % static_cast<u64>(array.alignment) != 0) {
      return fail(OUTGRAD_ERROR_ALIGNMENT, function, "%s is not aligned to its elements of %lld bytes",
                  array.of.name, static_cast<long long>(array.alignment));
    }
    if (static_cast<u64>(array.bytes) > UINTPTR_MAX - address) {
      return fail(OUTGRAD_ERROR_SIZE, function, "%lld bytes from the address of %s on do not exist",
                  static_cast<long long>(array.bytes), array.of.name);
    }
  }
  for (const Array& written : arrays) {
    if (written.of.role == Role::kInput) continue;
    for (const Array& other : arrays) {
      if (&other == &written || !overlap(written, other)) continue;
      bool allowed = false;
      for (const int place : written.of.may_alias)
        allowed |= place != kernels::kNoOperand && &other == &arrays[static_cast<std::size_t>(place)];
      if (allowed && written.pointer == other.pointer) continue;
      return fail(OUTGRAD_ERROR_OVERLAP, function, "%s overlaps %s", written.of.name, other.of.name);
    }
  }
  return OUTGRAD_OK;
}

outgrad_status check_format(const char* function, outgrad_format format) {
  if (!choice().environment_holds) {
    return fail(OUTGRAD_ERROR_ENVIRONMENT, function,
                "the environment variable OUTGRAD_ISA is none of baseline, avx2, avx512, avx512_bf16");
  }
  if (!is_format(format))
    return fail(OUTGRAD_ERROR_FORMAT, function, "format %d is unknown", static_cast<int>(format));
  return OUTGRAD_OK;
}

outgrad_status check_length(const char* function, i64 n) {
  if (n < 0) return fail(OUTGRAD_ERROR_SIZE, function, "n = %lld is negative", static_cast<long long>(n));
  if (n > kMostElements)
    return fail(OUTGRAD_ERROR_SIZE, function, "n = %lld is more than can be addressed",
                static_cast<long long>(n));
  return OUTGRAD_OK;
}

outgrad_status check_shape(const char* function, i64 rows, i64 n) {
  if (rows < 0)
    return fail(OUTGRAD_ERROR_SIZE, function, "rows = %lld is negative", static_cast<long long>(rows));
  if (n < 1)
    return fail(OUTGRAD_ERROR_SIZE, function, "n = %lld: a row needs at least one element",
                static_cast<long long>(n));
  if (n > kMostElements || rows > kMostElements / n) {
    return fail(OUTGRAD_ERROR_SIZE, function, "[%lld, %lld] is more than can be addressed",
                static_cast<long long>(rows), static_cast<long long>(n));
  }
  return OUTGRAD_OK;
}

outgrad_status check_elements(const char* function, outgrad_format format, i64 n) {
  if (const outgrad_status status = check_format(function, format)) return status;
  return check_length(function, n);
}

// An array of bytes that is no operand of the catalogue.
constexpr Operand byte_array(const char* name, Role role) {
  return {name, kernels::Content::kResult, kernels::Element::kFormat, Extent::kElements, role};
}

// A side array. It is not an operand of the catalogue, because a norm may do without it.
constexpr Operand side_array(const char* name, Role role) {
  return {name, kernels::Content::kResult, kernels::Element::kF32, Extent::kRows, role};
}

outgrad_status check_side(const char* function, const std::int32_t* channels, i64 count, i64 n) {
  if (count < 0 || count > n) {
    return fail(OUTGRAD_ERROR_VALUE, function, "side_count = %lld of %lld channels",
                static_cast<long long>(count), static_cast<long long>(n));
  }
  if (count == 0) return OUTGRAD_OK;
  const Array array{side_array("side_channels", Role::kInput), channels, count * 4, 4};
  if (const outgrad_status status = check_arrays(function, {&array, 1})) return status;
  for (i64 k = 0; k < count; ++k) {
    if (channels[k] < (k > 0 ? i64{channels[k - 1]} + 1 : 0) || channels[k] >= n) {
      return fail(OUTGRAD_ERROR_VALUE, function, "side_channels[%lld] = %d: channels ascend within [0, %lld)",
                  static_cast<long long>(k), static_cast<int>(channels[k]), static_cast<long long>(n));
    }
  }
  return OUTGRAD_OK;
}

outgrad_status check_workspace(const char* function, const void* workspace, std::size_t bytes, i64 words) {
  if (workspace != nullptr && bytes / 4 >= static_cast<u64>(words)) return OUTGRAD_OK;
  return fail(OUTGRAD_ERROR_WORKSPACE, function, "the workspace holds %llu of the %lld bytes that it needs",
              workspace == nullptr ? 0ull : static_cast<unsigned long long>(bytes),
              static_cast<long long>(words * 4));
}

// Runs the kernel. If the kernel itself throws (which it does before it writes anything), it was given a
// value that it does not accept.
template <class Body>
outgrad_status run(const char* function, const Body& body) noexcept {
  try {
    const ThreadLimit limit;
    body();
    return OUTGRAD_OK;
  } catch (const kernels::SpecError& error) {
    return fail(OUTGRAD_ERROR_VALUE, function, "%s", error.what());
  } catch (const std::exception& error) {
    return fail(OUTGRAD_ERROR_INTERNAL, function, "%s", error.what());
  } catch (...) {
    return fail(OUTGRAD_ERROR_INTERNAL, function, "unknown exception");
  }
}

i64 mask_bytes(i64 n) { return (n + 31) / 32 * 4; }
i64 mxfp8_scales(i64 n) { return kernels::scales_of<kernels::MxFp8>(n); }

i64 workspace_words(KernelId kernel, outgrad_format format, i64 rows, i64 n) {
  if (kernels::has_extent(kernel, Extent::kNormWorkspace))
    return choice().kernels[format]->norm_workspace(rows, n);
  return kernels::has_extent(kernel, Extent::kBiasWorkspace)
             ? choice().kernels[format]->bias_workspace(rows, n)
             : 0;
}

// The arrays of a call in the catalogue's order. Only z, which a norm has only with a residual, comes after
// all others: it is y that overlaps z.
class Arrays {
 public:
  Arrays(KernelId kernel, outgrad_format format, bool masked, i64 workspace_words, const Arguments& a) {
    const i64 size = kInfo[format].bytes;
    Array z{};
    int place = 0;
    for (const Operand& of : operands(kernel)) {
      i64 bytes = 0;
      switch (of.extent) {
        case Extent::kElements: bytes = a.elements() * size; break;
        case Extent::kRows: bytes = a.rows * 4; break;
        // there is nothing to add it to
        case Extent::kColumns:
          bytes = of.content == kernels::Content::kBias && a.rows == 0 ? 0 : a.cols * 4;
          break;
        case Extent::kCodes: bytes = kernels::code_bytes(a.code.bits, a.elements()); break;
        case Extent::kMaskWords: bytes = masked ? mask_bytes(a.elements()) : 0; break;
        default: bytes = workspace_words * 4;
      }
      const Array array{of, a.array[place++], bytes,
                        of.element == kernels::Element::kFormat ? size
                        : of.element == kernels::Element::kByte ? 1
                                                                : 4};
      if (std::strcmp(of.name, "z") == 0) {
        z = array;
      } else {
        add(array);
      }
    }
    if (is_norm(kernel)) {
      add({side_array("side_channels", Role::kInput), a.side.channels, a.side.count * 4, 4});
      add({side_array("side_x_hat", is_backward(kernel) ? Role::kInput : Role::kOutput), a.side.x_hat,
           a.rows * a.side.count * 4, 4});
    }
    if (z.of.name != nullptr) add(z);
  }
  std::span<const Array> all() const { return {arrays_, static_cast<std::size_t>(count_)}; }

 private:
  void add(const Array& array) { arrays_[count_++] = array; }

  Array arrays_[kernels::kMostOperands + 2] = {};
  int count_ = 0;
};

// A kernel's arguments, from its arrays in the catalogue's order.
Arguments arguments(std::initializer_list<const void*> arrays, i64 rows, i64 n) {
  Arguments a{.rows = rows, .cols = n};
  void** to = a.array;
  for (const void* array : arrays) *to++ = const_cast<void*>(array);
  return a;
}
Arguments norm_arguments(std::initializer_list<const void*> arrays, i64 rows, i64 n, float eps,
                         const std::int32_t* channels, i64 count, const float* x_hat) {
  Arguments a = arguments(arrays, rows, n);
  a.eps = eps;
  a.side = {channels, count, const_cast<float*>(x_hat)};
  return a;
}

// Every call of a kernel goes through this function. `activation` matters for GELU's forward and backward,
// which stand for those of all activations.
outgrad_status enter(const char* function, KernelId kernel, outgrad_format format, const Arguments& a,
                     std::size_t workspace_bytes = 0, outgrad_activation activation = OUTGRAD_GELU) {
  if (const outgrad_status status = check_format(function, format)) return status;
  if (!is_activation(activation))
    return fail(OUTGRAD_ERROR_ACTIVATION, function, "activation %d is unknown", static_cast<int>(activation));
  if (const outgrad_status status =
          over_rows(kernel) ? check_shape(function, a.rows, a.cols) : check_length(function, a.cols))
    return status;
  if (a.cols == 0) return OUTGRAD_OK;
  if (is_norm(kernel)) {
    if (!kernels::eps_holds(a.eps))
      return fail(OUTGRAD_ERROR_VALUE, function, "eps = %g: it is at least 0", static_cast<double>(a.eps));
    if (const outgrad_status status = check_side(function, a.side.channels, a.side.count, a.cols))
      return status;
  }
  const i64 words = workspace_words(kernel, format, a.rows, a.cols);
  if (words > 0) {
    const void* const workspace = a.array[operands(kernel).size() - 1];
    if (const outgrad_status status = check_workspace(function, workspace, workspace_bytes, words))
      return status;
  }
  const Arrays arrays(kernel, format, kInfo[format].fits[activation].masked, words, a);
  const outgrad_status status = check_arrays(function, arrays.all());
  // a backward with no rows still writes its sums
  if (status || (a.rows == 0 && !is_backward(kernel))) return status;
  const FormatKernels& kernels = *choice().kernels[format];
  return run(function, [&] {
    switch (kernel) {
      case KernelId::kGeluForward: return kernels.forward[activation](a);
      case KernelId::kGeluBackward: return kernels.backward[activation](a);
      default: return kernels.run[static_cast<int>(kernel)](a);
    }
  });
}

// A call whose arrays are not those of a kernel of the catalogue: they are checked in the given order.
template <class Body>
outgrad_status enter(const char* function, outgrad_format format, std::initializer_list<Array> arrays,
                     const Body& body) {
  if (const outgrad_status status = check_arrays(function, {arrays.begin(), arrays.size()})) return status;
  return run(function, [&] { body(*choice().kernels[format]); });
}

// A call with a y that carries its branch: the arrays of GELU's kernels, without a mask.
outgrad_status enter_parity(const char* function, KernelId kernel, outgrad_format format, const Arguments& a,
                            outgrad_activation activation) {
  if (const outgrad_status status = check_format(function, format)) return status;
  if (format == OUTGRAD_F32)
    return fail(OUTGRAD_ERROR_FORMAT, function, "y carries its branch in f16 and bf16, not in f32");
  if (!is_activation(activation))
    return fail(OUTGRAD_ERROR_ACTIVATION, function, "activation %d is unknown", static_cast<int>(activation));
  const FormatKernels& kernels = *choice().kernels[format];
  FormatKernels::Run* const body =
      (is_backward(kernel) ? kernels.backward_parity : kernels.forward_parity)[activation];
  if (body == nullptr) {
    return fail(OUTGRAD_ERROR_ACTIVATION, function, "%s rises: there is no branch for y to carry",
                kernels::kActivationNames[activation]);
  }
  if (const outgrad_status status = check_length(function, a.cols)) return status;
  const Arrays arrays(kernel, format, false, 0, a);
  if (const outgrad_status status = check_arrays(function, arrays.all())) return status;
  return run(function, [&] { body(a); });
}

// --- Codes ---------------------------------------------------------------------------------------

struct CodeInfo {
  const char* name;
  float lo, hi;  // the range of f'
};

template <class... Code>
constexpr std::array<CodeInfo, kActivations> code_info_of(FitList<Code...>) {
  return {{{Code::kName, Code::kLo, Code::kHi}...}};
}
constexpr std::array<CodeInfo, kActivations> kCodeInfo = code_info_of(kernels::ActivationCodes{});

outgrad_status check_code_bits(const char* function, std::int32_t bits, bool dithered) {
  if (kernels::code_bits_hold(bits, dithered)) return OUTGRAD_OK;
  return fail(
      OUTGRAD_ERROR_VALUE, function,
      dithered ? "bits = %d: a dithered code has 2 or 3" : "bits = %d: a code without a seed has 1 to 8",
      static_cast<int>(bits));
}

outgrad_status check_codes_bytes(const char* function, std::size_t codes_bytes, i64 needed, i64 codes,
                                 int bits) {
  if (codes_bytes >= static_cast<u64>(needed)) return OUTGRAD_OK;
  return fail(OUTGRAD_ERROR_SIZE, function, "codes_bytes = %llu: %lld codes of %d bits take %lld",
              static_cast<unsigned long long>(codes_bytes), static_cast<long long>(codes), bits,
              static_cast<long long>(needed));
}

constexpr Array plain_array(const char* name, Role role, const void* pointer, i64 elements, i64 size) {
  return {byte_array(name, role), pointer, elements * size, size};
}

// Runs a call with codes, of the arrays input, codes and output in this order; the output may be the input
// itself, and is absent if its name is null.
template <class Call, class Body>
outgrad_status enter_with_codes(const char* function, outgrad_format format, const char* input, Role codes,
                                const char* output, i64 elements, i64 code_bytes, const Call& a,
                                const Body& body) {
  const i64 size = kInfo[format].bytes;
  Operand result = byte_array(output, Role::kOutput);
  result.may_alias[0] = 0;
  const Array from = plain_array(input, Role::kInput, a.input, elements, size),
              kept = plain_array("codes", codes, a.codes, code_bytes, 1);
  if (output == nullptr) return enter(function, format, {from, kept}, body);
  return enter(function, format, {from, kept, {result, a.output, elements * size, size}}, body);
}

// Every call with codes of f'(x) goes through this function. `output` is null for one that writes codes
// alone.
template <class Body>
outgrad_status enter_code(const char* function, outgrad_format format, const char* input, Role codes,
                          const char* output, std::size_t codes_bytes, const CodeArguments& a,
                          const Body& body) {
  if (const outgrad_status status = check_length(function, a.n)) return status;
  if (const outgrad_status status = check_code_bits(function, a.bits, a.seed != nullptr)) return status;
  const i64 needed = kernels::code_bytes(a.bits, a.n);
  if (const outgrad_status status = check_codes_bytes(function, codes_bytes, needed, a.n, a.bits))
    return status;
  if (a.n == 0) return OUTGRAD_OK;
  return enter_with_codes(function, format, input, codes, output, a.n, needed, a,
                          [&](const FormatKernels& kernels) { body(kernels, a); });
}

// Those of the library's activations.
template <class Body>
outgrad_status enter_activation_code(const char* function, outgrad_activation activation,
                                     outgrad_format format, const char* input, Role codes, const char* output,
                                     std::size_t codes_bytes, CodeArguments a, const Body& body) {
  if (const outgrad_status status = check_format(function, format)) return status;
  if (!is_activation(activation))
    return fail(OUTGRAD_ERROR_ACTIVATION, function, "activation %d is unknown", static_cast<int>(activation));
  a.lo = kCodeInfo[static_cast<std::size_t>(activation)].lo;
  a.hi = kCodeInfo[static_cast<std::size_t>(activation)].hi;
  return enter_code(function, format, input, codes, output, codes_bytes, a, body);
}

void run_backward_code(const FormatKernels& kernels, const CodeArguments& a) { kernels.backward_code(a); }

// Those of a range that the caller gives.
template <class Body>
outgrad_status enter_range_code(const char* function, outgrad_format format, const char* input, Role codes,
                                const char* output, std::size_t codes_bytes, const CodeArguments& a,
                                const Body& body) {
  if (const outgrad_status status = check_format(function, format)) return status;
  if (!kernels::code_range_holds({a.lo, a.hi})) {
    return fail(OUTGRAD_ERROR_VALUE, function,
                "[%g, %g] is no range of f' that codes are proven for: within +-%g and wider than %g",
                static_cast<double>(a.lo), static_cast<double>(a.hi),
                static_cast<double>(kernels::kLargestGradient), static_cast<double>(kernels::kLeastWidth));
  }
  return enter_code(function, format, input, codes, output, codes_bytes, a, body);
}

// --- Softmax -------------------------------------------------------------------------------------

// Every call of softmax goes through this function. The arrays are in the order input, codes, output; the
// output may be the input itself, and is absent if its name is null.
outgrad_status enter_softmax(const char* function, FormatKernels::RunSoftmax* FormatKernels::* body,
                             outgrad_format format, const char* input, Role codes, const char* output,
                             std::size_t codes_bytes, const SoftmaxArguments& a) {
  if (const outgrad_status status = check_format(function, format)) return status;
  if (const outgrad_status status = check_shape(function, a.rows, a.n)) return status;
  if (a.n > kernels::kMostSoftmax) {
    return fail(OUTGRAD_ERROR_SIZE, function,
                "n = %lld: in a row of more than %lld elements, all of p may be too small for a code",
                static_cast<long long>(a.n), static_cast<long long>(kernels::kMostSoftmax));
  }
  const i64 elements = a.rows * a.n;
  if (const outgrad_status status =
          check_codes_bytes(function, codes_bytes, elements, elements, kernels::kMostCodeBits))
    return status;
  return enter_with_codes(function, format, input, codes, output, elements, elements, a,
                          [&](const FormatKernels& kernels) { (kernels.*body)(a); });
}

// --- y in 8 bits at a scale ----------------------------------------------------------------------

// What makes a table and says how far what is kept can be from f'(x).
using MakeTable = double(float scale, int bits, kernels::Fp8Table& table);

template <class A, class F>
double make_table(float scale, int bits, kernels::Fp8Table& table) {
  kernels::fill_fp8_table<A, F>(scale, bits, table);
  return kernels::fp8_error<A>(table);
}

template <class A>
constexpr bool is_of(int activation) {
  return kernels::same_text(kernels::kActivationNames[activation], A::Header::kActivation);
}

template <class F, class... A>
constexpr std::array<MakeTable*, kActivations> table_makers(kernels::Fp8List<A...>) {
  std::array<MakeTable*, kActivations> makers{};
  for (int i = 0; i < kActivations; ++i)
    ((is_of<A>(i) ? void(makers[static_cast<std::size_t>(i)] = make_table<A, F>) : void()), ...);
  return makers;
}
constexpr std::array<MakeTable*, kActivations> kMakeTable[kFp8Formats] = {
    table_makers<kernels::F8E4M3>(kernels::Fp8Activations{}),
    table_makers<kernels::F8E5M2>(kernels::Fp8Activations{}),
    table_makers<kernels::I8>(kernels::Fp8Activations{})};

outgrad_status check_fp8(const char* function, outgrad_activation activation, outgrad_fp8 fp8, float scale,
                         std::int32_t bits) {
  if (!is_activation(activation))
    return fail(OUTGRAD_ERROR_ACTIVATION, function, "activation %d is unknown", static_cast<int>(activation));
  if (fp8 < 0 || fp8 >= kFp8Formats)
    return fail(OUTGRAD_ERROR_FORMAT, function, "8-bit format %d is unknown", static_cast<int>(fp8));
  if (kMakeTable[fp8][static_cast<std::size_t>(activation)] == nullptr) {
    return fail(OUTGRAD_ERROR_ACTIVATION, function, "%s rises: y in 8 bits is for activations with a minimum",
                kernels::kActivationNames[activation]);
  }
  if (!kernels::scale_holds(scale)) {
    return fail(OUTGRAD_ERROR_VALUE, function, "scale = %g: it is positive, finite and not subnormal",
                static_cast<double>(scale));
  }
  if (!kernels::part_bits_hold(bits))
    return fail(OUTGRAD_ERROR_VALUE, function, "bits = %d: beside y in 8 bits are 0, 1 or 2",
                static_cast<int>(bits));
  return OUTGRAD_OK;
}

// Every call with y in 8 bits goes through this function.
outgrad_status enter_fp8(const char* function, bool backward, outgrad_activation activation,
                         outgrad_format format, outgrad_fp8 fp8, float scale, const void* input,
                         const void* codes, const void* parts, std::size_t parts_bytes, void* output,
                         std::int32_t bits, i64 n) {
  if (const outgrad_status status = check_format(function, format)) return status;
  if (const outgrad_status status = check_fp8(function, activation, fp8, scale, bits)) return status;
  if (const outgrad_status status = check_length(function, n)) return status;
  const i64 needed = kernels::code_bytes(bits, n), bytes = n * kInfo[format].bytes;
  if (parts_bytes < static_cast<u64>(needed)) {
    return fail(OUTGRAD_ERROR_SIZE, function, "parts_bytes = %llu: %lld parts of %d bits take %lld",
                static_cast<unsigned long long>(parts_bytes), static_cast<long long>(n),
                static_cast<int>(bits), static_cast<long long>(needed));
  }
  if (n == 0) return OUTGRAD_OK;
  kernels::Fp8Table table;
  kMakeTable[fp8][static_cast<std::size_t>(activation)](scale, bits, table);
  const Fp8Arguments a{input, const_cast<void*>(codes), const_cast<void*>(parts), output, n, scale, &table};
  const Role kept = backward ? Role::kInput : Role::kOutput;
  return enter(function, format,
               {{backward ? catalogue::kDy : catalogue::kX, input, bytes, kInfo[format].bytes},
                {byte_array("codes", kept), codes, n, 1},
                {byte_array("parts", kept), parts, needed, 1},
                {catalogue::result("dx", 0), output, backward ? bytes : 0, kInfo[format].bytes}},
               [&](const FormatKernels& kernels) {
                 backward ? kernels.backward_fp8(a) : kernels.forward_fp8[fp8][activation](a);
               });
}

// --- Norms with y in 8 bits ----------------------------------------------------------------------

struct NormStoreInfo {
  const char* name;
  i64 group;  // 0: the tensor
  i64 scale_bytes, scale_alignment;
};

template <class... Store>
constexpr std::array<NormStoreInfo, kNormStores> store_info_of(kernels::NormStoreList<Store...>) {
  return {{{Store::kName, Store::kGroup, sizeof(typename Store::Scale), alignof(typename Store::Scale)}...}};
}
constexpr std::array<NormStoreInfo, kNormStores> kNormStoreInfo = store_info_of(kernels::NormStores{});

// Of [rows, n]; scale_bytes is set to what its scales take.
outgrad_status check_norm_store(const char* function, outgrad_norm_store store, i64 rows, i64 n,
                                i64& scale_bytes) {
  if (store < 0 || store >= kNormStores)
    return fail(OUTGRAD_ERROR_FORMAT, function, "store %d is unknown", static_cast<int>(store));
  if (const outgrad_status status = check_shape(function, rows, n)) return status;
  const NormStoreInfo& info = kNormStoreInfo[static_cast<std::size_t>(store)];
  if (info.group > 0 && n % info.group != 0) {
    return fail(OUTGRAD_ERROR_SIZE, function,
                "n = %lld is no whole number of groups of %lld, which share a scale in %s",
                static_cast<long long>(n), static_cast<long long>(info.group), info.name);
  }
  scale_bytes = (info.group == 0 ? 1 : rows * (n / info.group)) * info.scale_bytes;
  return OUTGRAD_OK;
}

// Every call of a norm with y in 8 bits goes through this function. RMSNorm has neither beta nor dbeta.
outgrad_status enter_norm8(const char* function, kernels::Norm norm, bool backward, outgrad_format format,
                           outgrad_norm_store store, std::size_t codes_bytes, std::size_t scales_bytes,
                           std::size_t workspace_bytes, const Norm8Arguments& a) {
  if (const outgrad_status status = check_format(function, format)) return status;
  i64 scale_bytes = 0;
  if (const outgrad_status status = check_norm_store(function, store, a.rows, a.n, scale_bytes))
    return status;
  const NormStoreInfo& info = kNormStoreInfo[static_cast<std::size_t>(store)];
  const i64 elements = a.rows * a.n, size = kInfo[format].bytes;
  if (const outgrad_status status = check_codes_bytes(function, codes_bytes, elements, elements, 8))
    return status;
  if (scales_bytes < static_cast<u64>(scale_bytes)) {
    return fail(OUTGRAD_ERROR_SIZE, function, "scales_bytes = %llu: the scales of [%lld, %lld] take %lld",
                static_cast<unsigned long long>(scales_bytes), static_cast<long long>(a.rows),
                static_cast<long long>(a.n), static_cast<long long>(scale_bytes));
  }
  if (!kernels::eps_holds(a.eps))
    return fail(OUTGRAD_ERROR_VALUE, function, "eps = %g: it is at least 0", static_cast<double>(a.eps));
  if (const outgrad_status status = check_side(function, a.side.channels, a.side.count, a.n)) return status;
  const i64 words = backward ? choice().kernels[format]->norm_workspace(a.rows, a.n) : 0;
  if (backward) {
    if (const outgrad_status status = check_workspace(function, a.workspace, workspace_bytes, words))
      return status;
  }
  const Role kept = backward ? Role::kInput : Role::kOutput;
  const auto floats = [](Operand of, const void* pointer, i64 count) {
    return Array{of, pointer, count * 4, 4};
  };
  Operand output = catalogue::result(backward ? "dx" : "y", 0);
  output.optional = !backward;
  Operand scale = side_array("scale", Role::kInput);
  scale.optional = true;
  return enter(function, format,
               {{backward ? catalogue::kDy : catalogue::kX, a.input, elements * size, size},
                {output, a.output, elements * size, size},
                {byte_array("codes", kept), a.codes, elements, 1},
                {byte_array("scales", kept), a.scales, scale_bytes, info.scale_alignment},
                floats(catalogue::kGamma, a.gamma, a.n),
                floats(catalogue::kBeta, a.beta, a.n),
                floats(scale, a.given, 1),
                floats(backward ? catalogue::kRstd : catalogue::kNewRstd, a.rstd, a.rows),
                floats(side_array("side_channels", Role::kInput), a.side.channels, a.side.count),
                floats(side_array("side_x_hat", kept), a.side.x_hat, a.rows * a.side.count),
                floats(catalogue::kDgamma, a.dgamma, a.n),
                floats(catalogue::kDbeta, a.dbeta, a.n),
                floats(catalogue::kNormScratch, a.workspace, words)},
               [&](const FormatKernels& kernels) {
                 (backward ? kernels.norm_backward : kernels.norm_forward)[static_cast<int>(norm)][store](a);
               });
}

// --- y in 4 bits by blocks -----------------------------------------------------------------------

// What makes the tables and says how far what is kept can be from f'(x) in blocks up to an amax, which is
// given as bits.
using MakeTables = double(float scale, int bits, kernels::u32 amax, kernels::Fp4Tables& tables);

template <class B, class... A>
constexpr std::array<MakeTables*, kActivations> tables_makers(kernels::Fp8List<A...>) {
  std::array<MakeTables*, kActivations> makers{};
  for (int i = 0; i < kActivations; ++i)
    ((is_of<A>(i) ? void(makers[static_cast<std::size_t>(i)] = kernels::fill_fp4_tables<A, B>) : void()),
     ...);
  return makers;
}

struct Fp4Info {
  int block;
  bool (*scale_holds)(float scale);
  const char* scale_rule;
  std::array<MakeTables*, kActivations> make_tables;
};
template <class B>
constexpr Fp4Info fp4_info(const char* scale_rule) {
  return {kernels::Format<B>::kBlock, kernels::BlockScale<B>::tensor_scale_holds, scale_rule,
          tables_makers<B>(kernels::Fp8Activations{})};
}
constexpr Fp4Info kFp4Info[kFp4Formats] = {
    fp4_info<kernels::MxFp4>("MXFP4 has no scale of the tensor; it is 1"),
    fp4_info<kernels::NvFp4>("it is from 2^-117 up to 2^118")};

outgrad_status check_fp4(const char* function, outgrad_activation activation, outgrad_fp4 fp4, float scale,
                         std::int32_t bits) {
  if (!is_activation(activation))
    return fail(OUTGRAD_ERROR_ACTIVATION, function, "activation %d is unknown", static_cast<int>(activation));
  if (fp4 < 0 || fp4 >= kFp4Formats)
    return fail(OUTGRAD_ERROR_FORMAT, function, "4-bit format %d is unknown", static_cast<int>(fp4));
  const Fp4Info& info = kFp4Info[fp4];
  if (info.make_tables[static_cast<std::size_t>(activation)] == nullptr) {
    return fail(OUTGRAD_ERROR_ACTIVATION, function, "%s rises: y in 4 bits is for activations with a minimum",
                kernels::kActivationNames[activation]);
  }
  if (!info.scale_holds(scale))
    return fail(OUTGRAD_ERROR_VALUE, function, "scale = %g: %s", static_cast<double>(scale), info.scale_rule);
  if (!kernels::part_bits_hold(bits))
    return fail(OUTGRAD_ERROR_VALUE, function, "bits = %d: beside y in 4 bits are 0, 1 or 2",
                static_cast<int>(bits));
  return OUTGRAD_OK;
}

// For one call, and null without memory. Too large for a stack, and for the storage that every thread of a
// program would have to set aside for it.
std::unique_ptr<kernels::Fp4Tables> fp4_tables() {
  return std::unique_ptr<kernels::Fp4Tables>(new (std::nothrow) kernels::Fp4Tables);
}
constexpr const char* kNoTables = "no memory for its tables";

// Every call with y in 4 bits goes through this function.
outgrad_status enter_fp4(const char* function, bool backward, outgrad_activation activation,
                         outgrad_format format, outgrad_fp4 fp4, float scale, const void* input,
                         const void* codes, const void* scales, const void* parts, std::size_t parts_bytes,
                         void* output, std::int32_t bits, i64 n) {
  if (const outgrad_status status = check_format(function, format)) return status;
  if (const outgrad_status status = check_fp4(function, activation, fp4, scale, bits)) return status;
  if (const outgrad_status status = check_length(function, n)) return status;
  const i64 needed = kernels::code_bytes(bits, n), bytes = n * kInfo[format].bytes;
  if (parts_bytes < static_cast<u64>(needed)) {
    return fail(OUTGRAD_ERROR_SIZE, function, "parts_bytes = %llu: %lld parts of %d bits take %lld",
                static_cast<unsigned long long>(parts_bytes), static_cast<long long>(n),
                static_cast<int>(bits), static_cast<long long>(needed));
  }
  if (n == 0) return OUTGRAD_OK;
  const Fp4Info& info = kFp4Info[fp4];
  const std::unique_ptr<kernels::Fp4Tables> tables = fp4_tables();
  if (!tables) return fail(OUTGRAD_ERROR_MEMORY, function, kNoTables);
  info.make_tables[static_cast<std::size_t>(activation)](scale, bits, 0, *tables);
  const Fp4Arguments a{
      input,       const_cast<void*>(codes), const_cast<void*>(scales), const_cast<void*>(parts), output, n,
      tables.get()};
  const Role kept = backward ? Role::kInput : Role::kOutput;
  return enter(function, format,
               {{backward ? catalogue::kDy : catalogue::kX, input, bytes, kInfo[format].bytes},
                {byte_array("codes", kept), codes, kernels::code_bytes(kernels::kFp4Bits, n), 1},
                {byte_array("scales", kept), scales, (n - 1) / info.block + 1, 1},
                {byte_array("parts", kept), parts, needed, 1},
                {catalogue::result("dx", 0), output, backward ? bytes : 0, kInfo[format].bytes}},
               [&](const FormatKernels& kernels) {
                 backward ? kernels.backward_fp4[fp4](a) : kernels.forward_fp4[fp4][activation](a);
               });
}

outgrad_status workspace_bytes_of(const char* function, KernelId kernel, outgrad_format format, i64 rows,
                                  i64 n, std::size_t* bytes) {
  if (const outgrad_status status = check_format(function, format)) return status;
  if (const outgrad_status status = check_shape(function, rows, n)) return status;
  if (bytes == nullptr) return fail(OUTGRAD_ERROR_NULL_POINTER, function, "bytes is null");
  *bytes = static_cast<std::size_t>(workspace_words(kernel, format, rows, n)) * 4;
  return OUTGRAD_OK;
}

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

}  // namespace
}  // namespace outgrad::c

using namespace outgrad::c;

outgrad_status outgrad_gelu_forward(outgrad_format format, const void* x, void* y, std::uint32_t* mask,
                                    std::int64_t n) {
  return enter("outgrad_gelu_forward", KernelId::kGeluForward, format, arguments({x, y, mask}, 1, n));
}

outgrad_status outgrad_activation_forward(outgrad_activation activation, outgrad_format format, const void* x,
                                          void* y, std::uint32_t* mask, std::int64_t n) {
  return enter("outgrad_activation_forward", KernelId::kGeluForward, format, arguments({x, y, mask}, 1, n), 0,
               activation);
}

outgrad_status outgrad_activation_backward(outgrad_activation activation, outgrad_format format,
                                           const void* dy, const void* y, const std::uint32_t* mask, void* dx,
                                           std::int64_t n) {
  return enter("outgrad_activation_backward", KernelId::kGeluBackward, format,
               arguments({dy, y, mask, dx}, 1, n), 0, activation);
}

outgrad_status outgrad_gelu_backward(outgrad_format format, const void* dy, const void* y,
                                     const std::uint32_t* mask, void* dx, std::int64_t n) {
  return enter("outgrad_gelu_backward", KernelId::kGeluBackward, format, arguments({dy, y, mask, dx}, 1, n));
}

outgrad_status outgrad_gelu_forward_mxfp8(outgrad_format format, const void* x, std::uint8_t* codes,
                                          std::uint8_t* scales, std::uint32_t* mask, std::int64_t n) {
  constexpr const char* kName = "outgrad_gelu_forward_mxfp8";
  if (const outgrad_status status = check_elements(kName, format, n)) return status;
  if (n == 0) return OUTGRAD_OK;
  Arguments a = arguments({x, codes, mask}, 1, n);
  a.scales = scales;
  return enter(kName, format,
               {{catalogue::kX, x, n * kInfo[format].bytes, kInfo[format].bytes},
                {byte_array("codes", Role::kOutput), codes, n, 1},
                {byte_array("scales", Role::kOutput), scales, mxfp8_scales(n), 1},
                {catalogue::kNewMask, mask, mask_bytes(n), 4}},
               [&](const FormatKernels& kernels) { kernels.forward_mxfp8(a); });
}

outgrad_status outgrad_gelu_backward_mxfp8(outgrad_format format, const void* dy, const std::uint8_t* codes,
                                           const std::uint8_t* scales, const std::uint32_t* mask, void* dx,
                                           std::int64_t n) {
  constexpr const char* kName = "outgrad_gelu_backward_mxfp8";
  if (const outgrad_status status = check_elements(kName, format, n)) return status;
  if (n == 0) return OUTGRAD_OK;
  Arguments a = arguments({dy, codes, mask, dx}, 1, n);
  a.scales = scales;
  return enter(kName, format,
               {{catalogue::kDy, dy, n * kInfo[format].bytes, kInfo[format].bytes},
                {byte_array("codes", Role::kInput), codes, n, 1},
                {byte_array("scales", Role::kInput), scales, mxfp8_scales(n), 1},
                {catalogue::kMask, mask, mask_bytes(n), 4},
                {catalogue::result("dx", 0), dx, n * kInfo[format].bytes, kInfo[format].bytes}},
               [&](const FormatKernels& kernels) { kernels.backward_mxfp8(a); });
}

outgrad_status outgrad_activation_forward_parity(outgrad_activation activation, outgrad_format format,
                                                 const void* x, void* y, std::int64_t n) {
  return enter_parity("outgrad_activation_forward_parity", KernelId::kGeluForward, format,
                      arguments({x, y, nullptr}, 1, n), activation);
}

outgrad_status outgrad_activation_backward_parity(outgrad_activation activation, outgrad_format format,
                                                  const void* dy, const void* y, void* dx, std::int64_t n) {
  return enter_parity("outgrad_activation_backward_parity", KernelId::kGeluBackward, format,
                      arguments({dy, y, nullptr, dx}, 1, n), activation);
}

outgrad_status outgrad_layernorm_forward(outgrad_format format, const void* x, const float* gamma,
                                         const float* beta, std::int64_t rows, std::int64_t n, float eps,
                                         void* y, float* rstd, const std::int32_t* side_channels,
                                         std::int64_t side_count, float* side_x_hat) {
  return enter(
      "outgrad_layernorm_forward", KernelId::kLayernormForward, format,
      norm_arguments({x, gamma, beta, y, rstd}, rows, n, eps, side_channels, side_count, side_x_hat));
}

outgrad_status outgrad_rmsnorm_forward(outgrad_format format, const void* x, const float* gamma,
                                       std::int64_t rows, std::int64_t n, float eps, void* y, float* rstd,
                                       const std::int32_t* side_channels, std::int64_t side_count,
                                       float* side_x_hat) {
  return enter("outgrad_rmsnorm_forward", KernelId::kRmsnormForward, format,
               norm_arguments({x, gamma, y, rstd}, rows, n, eps, side_channels, side_count, side_x_hat));
}

outgrad_status outgrad_norm_backward_workspace(outgrad_format format, std::int64_t rows, std::int64_t n,
                                               std::size_t* bytes) {
  return workspace_bytes_of("outgrad_norm_backward_workspace", KernelId::kLayernormBackward, format, rows, n,
                            bytes);
}

outgrad_status outgrad_layernorm_backward(outgrad_format format, const void* dy, const void* y,
                                          const float* gamma, const float* beta, const float* rstd,
                                          std::int64_t rows, std::int64_t n, void* dx, float* dgamma,
                                          float* dbeta, const std::int32_t* side_channels,
                                          std::int64_t side_count, const float* side_x_hat, void* workspace,
                                          std::size_t workspace_bytes) {
  return enter("outgrad_layernorm_backward", KernelId::kLayernormBackward, format,
               norm_arguments({dy, y, gamma, beta, rstd, dx, dgamma, dbeta, workspace}, rows, n, 0,
                              side_channels, side_count, side_x_hat),
               workspace_bytes);
}

outgrad_status outgrad_rmsnorm_backward(outgrad_format format, const void* dy, const void* y,
                                        const float* gamma, const float* rstd, std::int64_t rows,
                                        std::int64_t n, void* dx, float* dgamma,
                                        const std::int32_t* side_channels, std::int64_t side_count,
                                        const float* side_x_hat, void* workspace,
                                        std::size_t workspace_bytes) {
  return enter("outgrad_rmsnorm_backward", KernelId::kRmsnormBackward, format,
               norm_arguments({dy, y, gamma, rstd, dx, dgamma, workspace}, rows, n, 0, side_channels,
                              side_count, side_x_hat),
               workspace_bytes);
}

outgrad_status outgrad_residual_layernorm_forward(outgrad_format format, const void* x, const void* residual,
                                                  const float* gamma, const float* beta, std::int64_t rows,
                                                  std::int64_t n, float eps, void* z, void* y, float* rstd,
                                                  const std::int32_t* side_channels, std::int64_t side_count,
                                                  float* side_x_hat) {
  return enter("outgrad_residual_layernorm_forward", KernelId::kResidualLayernormForward, format,
               norm_arguments({x, residual, gamma, beta, z, y, rstd}, rows, n, eps, side_channels, side_count,
                              side_x_hat));
}

outgrad_status outgrad_residual_rmsnorm_forward(outgrad_format format, const void* x, const void* residual,
                                                const float* gamma, std::int64_t rows, std::int64_t n,
                                                float eps, void* z, void* y, float* rstd,
                                                const std::int32_t* side_channels, std::int64_t side_count,
                                                float* side_x_hat) {
  return enter(
      "outgrad_residual_rmsnorm_forward", KernelId::kResidualRmsnormForward, format,
      norm_arguments({x, residual, gamma, z, y, rstd}, rows, n, eps, side_channels, side_count, side_x_hat));
}

outgrad_status outgrad_residual_layernorm_backward(outgrad_format format, const void* dy, const void* y,
                                                   const void* dz_next, const float* gamma, const float* beta,
                                                   const float* rstd, std::int64_t rows, std::int64_t n,
                                                   void* dz, float* dgamma, float* dbeta,
                                                   const std::int32_t* side_channels, std::int64_t side_count,
                                                   const float* side_x_hat, void* workspace,
                                                   std::size_t workspace_bytes) {
  return enter("outgrad_residual_layernorm_backward", KernelId::kResidualLayernormBackward, format,
               norm_arguments({dy, y, dz_next, gamma, beta, rstd, dz, dgamma, dbeta, workspace}, rows, n, 0,
                              side_channels, side_count, side_x_hat),
               workspace_bytes);
}

outgrad_status outgrad_residual_rmsnorm_backward(outgrad_format format, const void* dy, const void* y,
                                                 const void* dz_next, const float* gamma, const float* rstd,
                                                 std::int64_t rows, std::int64_t n, void* dz, float* dgamma,
                                                 const std::int32_t* side_channels, std::int64_t side_count,
                                                 const float* side_x_hat, void* workspace,
                                                 std::size_t workspace_bytes) {
  return enter("outgrad_residual_rmsnorm_backward", KernelId::kResidualRmsnormBackward, format,
               norm_arguments({dy, y, dz_next, gamma, rstd, dz, dgamma, workspace}, rows, n, 0, side_channels,
                              side_count, side_x_hat),
               workspace_bytes);
}

outgrad_status outgrad_bias_gelu_forward(outgrad_format format, const void* x, const float* bias,
                                         std::int64_t rows, std::int64_t n, void* y, std::uint32_t* mask) {
  return enter("outgrad_bias_gelu_forward", KernelId::kBiasGeluForward, format,
               arguments({x, bias, y, mask}, rows, n));
}

outgrad_status outgrad_bias_backward_workspace(outgrad_format format, std::int64_t rows, std::int64_t n,
                                               std::size_t* bytes) {
  return workspace_bytes_of("outgrad_bias_backward_workspace", KernelId::kBiasGeluBackward, format, rows, n,
                            bytes);
}

outgrad_status outgrad_bias_gelu_backward(outgrad_format format, const void* dy, const void* y,
                                          const std::uint32_t* mask, std::int64_t rows, std::int64_t n,
                                          void* dx, float* dbias, void* workspace,
                                          std::size_t workspace_bytes) {
  return enter("outgrad_bias_gelu_backward", KernelId::kBiasGeluBackward, format,
               arguments({dy, y, mask, dx, dbias, workspace}, rows, n), workspace_bytes);
}

outgrad_status outgrad_code_bytes(std::int32_t bits, std::int64_t n, std::size_t* bytes) {
  constexpr const char* kFunction = "outgrad_code_bytes";
  if (const outgrad_status status = check_length(kFunction, n)) return status;
  if (const outgrad_status status = check_code_bits(kFunction, bits, false)) return status;
  if (bytes == nullptr) return fail(OUTGRAD_ERROR_NULL_POINTER, kFunction, "bytes is null");
  *bytes = static_cast<std::size_t>(outgrad::kernels::code_bytes(bits, n));
  return OUTGRAD_OK;
}

outgrad_status outgrad_activation_forward_code(outgrad_activation activation, outgrad_format format,
                                               const void* x, void* y, void* codes, std::size_t codes_bytes,
                                               std::int32_t bits, const std::uint64_t* seed, std::int64_t n) {
  const CodeArguments a{x, y, codes, n, bits, seed, 0, 0};
  return enter_activation_code(
      "outgrad_activation_forward_code", activation, format, "x", Role::kOutput, "y", codes_bytes, a,
      [&](const FormatKernels& kernels, const CodeArguments& all) { kernels.forward_code[activation](all); });
}

outgrad_status outgrad_activation_backward_code(outgrad_activation activation, outgrad_format format,
                                                const void* dy, const void* codes, std::size_t codes_bytes,
                                                void* dx, std::int32_t bits, const std::uint64_t* seed,
                                                std::int64_t n) {
  return enter_activation_code("outgrad_activation_backward_code", activation, format, "dy", Role::kInput,
                               "dx", codes_bytes, {dy, dx, const_cast<void*>(codes), n, bits, seed, 0, 0},
                               run_backward_code);
}

outgrad_status outgrad_encode_gradients(float lo, float hi, outgrad_format format, const void* g, void* codes,
                                        std::size_t codes_bytes, std::int32_t bits, const std::uint64_t* seed,
                                        std::int64_t n) {
  return enter_range_code(
      "outgrad_encode_gradients", format, "g", Role::kOutput, nullptr, codes_bytes,
      {g, nullptr, codes, n, bits, seed, lo, hi},
      [](const FormatKernels& kernels, const CodeArguments& a) { kernels.encode_gradients(a); });
}

outgrad_status outgrad_backward_encoded(float lo, float hi, outgrad_format format, const void* dy,
                                        const void* codes, std::size_t codes_bytes, void* dx,
                                        std::int32_t bits, const std::uint64_t* seed, std::int64_t n) {
  return enter_range_code("outgrad_backward_encoded", format, "dy", Role::kInput, "dx", codes_bytes,
                          {dy, dx, const_cast<void*>(codes), n, bits, seed, lo, hi}, run_backward_code);
}

outgrad_status outgrad_softmax_forward_code(outgrad_format format, const void* x, std::int64_t rows,
                                            std::int64_t n, void* y, void* codes, std::size_t codes_bytes) {
  return enter_softmax("outgrad_softmax_forward_code", &FormatKernels::softmax_forward, format, "x",
                       Role::kOutput, "y", codes_bytes, {x, y, codes, rows, n});
}

outgrad_status outgrad_softmax_encode(outgrad_format format, const void* p, std::int64_t rows, std::int64_t n,
                                      void* codes, std::size_t codes_bytes) {
  return enter_softmax("outgrad_softmax_encode", &FormatKernels::softmax_encode, format, "p", Role::kOutput,
                       nullptr, codes_bytes, {p, nullptr, codes, rows, n});
}

outgrad_status outgrad_softmax_backward_code(outgrad_format format, const void* dy, const void* codes,
                                             std::size_t codes_bytes, std::int64_t rows, std::int64_t n,
                                             void* dx) {
  return enter_softmax("outgrad_softmax_backward_code", &FormatKernels::softmax_backward, format, "dy",
                       Role::kInput, "dx", codes_bytes, {dy, dx, const_cast<void*>(codes), rows, n});
}

outgrad_status outgrad_activation_forward_fp8(outgrad_activation activation, outgrad_format format,
                                              const void* x, outgrad_fp8 fp8, float scale,
                                              std::uint8_t* codes, void* parts, std::size_t parts_bytes,
                                              std::int32_t bits, std::int64_t n) {
  return enter_fp8("outgrad_activation_forward_fp8", false, activation, format, fp8, scale, x, codes, parts,
                   parts_bytes, nullptr, bits, n);
}

outgrad_status outgrad_activation_backward_fp8(outgrad_activation activation, outgrad_format format,
                                               const void* dy, outgrad_fp8 fp8, float scale,
                                               const std::uint8_t* codes, const void* parts,
                                               std::size_t parts_bytes, void* dx, std::int32_t bits,
                                               std::int64_t n) {
  return enter_fp8("outgrad_activation_backward_fp8", true, activation, format, fp8, scale, dy, codes, parts,
                   parts_bytes, dx, bits, n);
}

outgrad_status outgrad_fp8_error(outgrad_activation activation, outgrad_fp8 fp8, float scale,
                                 std::int32_t bits, double* error) {
  constexpr const char* kFunction = "outgrad_fp8_error";
  if (const outgrad_status status = check_fp8(kFunction, activation, fp8, scale, bits)) return status;
  if (error == nullptr) return fail(OUTGRAD_ERROR_NULL_POINTER, kFunction, "error is null");
  outgrad::kernels::Fp8Table table;
  *error = kMakeTable[fp8][static_cast<std::size_t>(activation)](scale, bits, table);
  return OUTGRAD_OK;
}

outgrad_status outgrad_norm_scale_bytes(outgrad_norm_store store, std::int64_t rows, std::int64_t n,
                                        std::size_t* bytes) {
  constexpr const char* kFunction = "outgrad_norm_scale_bytes";
  outgrad::kernels::i64 needed = 0;
  if (const outgrad_status status = check_norm_store(kFunction, store, rows, n, needed)) return status;
  if (bytes == nullptr) return fail(OUTGRAD_ERROR_NULL_POINTER, kFunction, "bytes is null");
  *bytes = static_cast<std::size_t>(needed);
  return OUTGRAD_OK;
}

outgrad_status outgrad_layernorm_forward_8bit(outgrad_format format, outgrad_norm_store store, const void* x,
                                              const float* gamma, const float* beta, std::int64_t rows,
                                              std::int64_t n, float eps, const float* scale, void* y,
                                              void* codes, std::size_t codes_bytes, void* scales,
                                              std::size_t scales_bytes, float* rstd,
                                              const std::int32_t* side_channels, std::int64_t side_count,
                                              float* side_x_hat) {
  return enter_norm8("outgrad_layernorm_forward_8bit", outgrad::kernels::Norm::layer, false, format, store,
                     codes_bytes, scales_bytes, 0,
                     {x,
                      gamma,
                      beta,
                      rows,
                      n,
                      eps,
                      scale,
                      y,
                      codes,
                      scales,
                      rstd,
                      {side_channels, side_count, side_x_hat},
                      nullptr,
                      nullptr,
                      nullptr});
}

outgrad_status outgrad_rmsnorm_forward_8bit(outgrad_format format, outgrad_norm_store store, const void* x,
                                            const float* gamma, std::int64_t rows, std::int64_t n, float eps,
                                            const float* scale, void* y, void* codes, std::size_t codes_bytes,
                                            void* scales, std::size_t scales_bytes, float* rstd,
                                            const std::int32_t* side_channels, std::int64_t side_count,
                                            float* side_x_hat) {
  return enter_norm8("outgrad_rmsnorm_forward_8bit", outgrad::kernels::Norm::rms, false, format, store,
                     codes_bytes, scales_bytes, 0,
                     {x,
                      gamma,
                      nullptr,
                      rows,
                      n,
                      eps,
                      scale,
                      y,
                      codes,
                      scales,
                      rstd,
                      {side_channels, side_count, side_x_hat},
                      nullptr,
                      nullptr,
                      nullptr});
}

outgrad_status outgrad_layernorm_backward_8bit(outgrad_format format, outgrad_norm_store store,
                                               const void* dy, const void* codes, std::size_t codes_bytes,
                                               const void* scales, std::size_t scales_bytes,
                                               const float* gamma, const float* beta, const float* rstd,
                                               std::int64_t rows, std::int64_t n, void* dx, float* dgamma,
                                               float* dbeta, const std::int32_t* side_channels,
                                               std::int64_t side_count, const float* side_x_hat,
                                               void* workspace, std::size_t workspace_bytes) {
  return enter_norm8("outgrad_layernorm_backward_8bit", outgrad::kernels::Norm::layer, true, format, store,
                     codes_bytes, scales_bytes, workspace_bytes,
                     {dy,
                      gamma,
                      beta,
                      rows,
                      n,
                      0,
                      nullptr,
                      dx,
                      const_cast<void*>(codes),
                      const_cast<void*>(scales),
                      const_cast<float*>(rstd),
                      {side_channels, side_count, const_cast<float*>(side_x_hat)},
                      dgamma,
                      dbeta,
                      static_cast<float*>(workspace)});
}

outgrad_status outgrad_rmsnorm_backward_8bit(outgrad_format format, outgrad_norm_store store, const void* dy,
                                             const void* codes, std::size_t codes_bytes, const void* scales,
                                             std::size_t scales_bytes, const float* gamma, const float* rstd,
                                             std::int64_t rows, std::int64_t n, void* dx, float* dgamma,
                                             const std::int32_t* side_channels, std::int64_t side_count,
                                             const float* side_x_hat, void* workspace,
                                             std::size_t workspace_bytes) {
  return enter_norm8("outgrad_rmsnorm_backward_8bit", outgrad::kernels::Norm::rms, true, format, store,
                     codes_bytes, scales_bytes, workspace_bytes,
                     {dy,
                      gamma,
                      nullptr,
                      rows,
                      n,
                      0,
                      nullptr,
                      dx,
                      const_cast<void*>(codes),
                      const_cast<void*>(scales),
                      const_cast<float*>(rstd),
                      {side_channels, side_count, const_cast<float*>(side_x_hat)},
                      dgamma,
                      nullptr,
                      static_cast<float*>(workspace)});
}

outgrad_status outgrad_activation_forward_fp4(outgrad_activation activation, outgrad_format format,
                                              const void* x, outgrad_fp4 fp4, float scale,
                                              std::uint8_t* codes, std::uint8_t* scales, void* parts,
                                              std::size_t parts_bytes, std::int32_t bits, std::int64_t n) {
  return enter_fp4("outgrad_activation_forward_fp4", false, activation, format, fp4, scale, x, codes, scales,
                   parts, parts_bytes, nullptr, bits, n);
}

outgrad_status outgrad_activation_backward_fp4(outgrad_activation activation, outgrad_format format,
                                               const void* dy, outgrad_fp4 fp4, float scale,
                                               const std::uint8_t* codes, const std::uint8_t* scales,
                                               const void* parts, std::size_t parts_bytes, void* dx,
                                               std::int32_t bits, std::int64_t n) {
  return enter_fp4("outgrad_activation_backward_fp4", true, activation, format, fp4, scale, dy, codes, scales,
                   parts, parts_bytes, dx, bits, n);
}

outgrad_status outgrad_fp4_error(outgrad_activation activation, outgrad_fp4 fp4, float scale, float amax,
                                 std::int32_t bits, double* error) {
  constexpr const char* kFunction = "outgrad_fp4_error";
  if (const outgrad_status status = check_fp4(kFunction, activation, fp4, scale, bits)) return status;
  if (!(amax >= 0))
    return fail(OUTGRAD_ERROR_VALUE, kFunction, "amax = %g: it is not negative", static_cast<double>(amax));
  if (error == nullptr) return fail(OUTGRAD_ERROR_NULL_POINTER, kFunction, "error is null");
  const std::unique_ptr<outgrad::kernels::Fp4Tables> tables = fp4_tables();
  if (!tables) return fail(OUTGRAD_ERROR_MEMORY, kFunction, kNoTables);
  *error = kFp4Info[fp4].make_tables[static_cast<std::size_t>(activation)](
      scale, bits, outgrad::kernels::bits_of(amax) & 0x7fffffffu, *tables);
  return OUTGRAD_OK;
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
    default: return "unknown status";
  }
}

outgrad_status outgrad_set_threads(std::int32_t threads) {
  if (threads < 0)
    return fail(OUTGRAD_ERROR_VALUE, "outgrad_set_threads", "threads = %d is negative",
                static_cast<int>(threads));
  wanted_threads.store(threads, std::memory_order_relaxed);
  return OUTGRAD_OK;
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

const char* outgrad_forward_variant(outgrad_format format) {
  return outgrad_tuned_variant(OUTGRAD_KERNEL_GELU_FORWARD, format, 1, kMostElements);
}

const char* outgrad_backward_variant(outgrad_format format) {
  return outgrad_tuned_variant(OUTGRAD_KERNEL_GELU_BACKWARD, format, 1, kMostElements);
}

const char* outgrad_tuned_variant(outgrad_kernel kernel, outgrad_format format, std::int64_t rows,
                                  std::int64_t n) {
  return chosen_of(kernel, format, rows, n).variant;
}

const char* outgrad_tuned_rung(outgrad_kernel kernel, outgrad_format format, std::int64_t rows,
                               std::int64_t n) {
  return chosen_of(kernel, format, rows, n).rung;
}
