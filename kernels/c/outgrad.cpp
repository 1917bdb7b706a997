// The C interface: checks arguments, chooses the instruction set once, turns exceptions into statuses.
//
// Compiled for the baseline, as everything that runs before the choice is.
#include <omp.h>

#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <initializer_list>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "kernels/c/build.h"
#include "kernels/c/outgrad.h"
#include "kernels/c/table.h"
#include "kernels/host/errors.h"

namespace outgrad::c {
namespace {

using kernels::Norm;
using kernels::SideBuffer;
using u64 = kernels::u64;

// --- Errors ----------------------------------------------------------------------------------------------------------------------

constexpr std::size_t kMessageBytes = 512;  // one line; longer ones are cut
thread_local char message[kMessageBytes] = "";

__attribute__((format(printf, 3, 4))) outgrad_status fail(outgrad_status status, const char* function, const char* format, ...) {
  const int begin = std::snprintf(message, sizeof message, "%s: ", function);
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(message + begin, sizeof message - static_cast<std::size_t>(begin), format, arguments);
  va_end(arguments);
  return status;
}

// --- What runs -------------------------------------------------------------------------------------------------------------------

enum class Isa { baseline, avx2, avx512, avx512_bf16 };
constexpr const char* kIsaNames[] = {"baseline", "avx2", "avx512", "avx512_bf16"};

Isa supported_isa() {
#if defined(OUTGRAD_C_X86)
  __builtin_cpu_init();
  unsigned a, b, c, d;
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;  // older compilers' __builtin_cpu_supports lacks it
  if (!(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && f16c)) return Isa::baseline;
  if (!(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
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
constexpr FormatInfo kInfo[kFormats] = {info_of<float>(ActivationFits<float>::Type{}), info_of<kernels::F16>(ActivationFits<kernels::F16>::Type{}),
                                        info_of<kernels::BF16>(ActivationFits<kernels::BF16>::Type{})};

bool is_format(outgrad_format format) { return format >= 0 && format < kFormats; }
bool is_kernel(outgrad_kernel kernel) { return kernel >= 0 && kernel < kKernels; }
bool is_activation(outgrad_activation activation) { return activation >= 0 && activation < kActivations; }

const char* digest_of(const char* fit) {
  for (int i = 0; i < kDigestCount; ++i) {
    if (std::strcmp(kDigests[i].fit, fit) == 0) return kDigests[i].sha256;
  }
  return nullptr;
}

// --- Threads ---------------------------------------------------------------------------------------------------------------------

std::atomic<std::int32_t> wanted_threads{0};

// While alive, parallel regions that this thread starts have the wanted number of threads: a setting of the thread alone.
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

// --- Arguments -------------------------------------------------------------------------------------------------------------------

// No array of more bytes fits into any address space (57 bits with five levels of pages); with this bound no sum or product below
// overflows.
constexpr i64 kMostElements = i64{1} << 54;

enum class Use { read, optional_read, write, optional_write };

struct Operand {
  const char* name;
  const void* pointer;
  i64 bytes;
  i64 alignment;
  Use use;
  const char* may_be[2] = {};  // the operands that it may be equal to
};

bool is_written(const Operand& operand) { return operand.use == Use::write || operand.use == Use::optional_write; }

bool overlap(const Operand& a, const Operand& b) {
  const auto begin = [](const Operand& o) { return reinterpret_cast<std::uintptr_t>(o.pointer); };
  return a.pointer != nullptr && b.pointer != nullptr && a.bytes > 0 && b.bytes > 0 && begin(a) < begin(b) + static_cast<u64>(b.bytes) &&
         begin(b) < begin(a) + static_cast<u64>(a.bytes);
}

// Operands of no bytes may be anything.
outgrad_status check_operands(const char* function, std::initializer_list<Operand> operands) {
  for (const Operand& operand : operands) {
    const bool optional = operand.use == Use::optional_read || operand.use == Use::optional_write;
    if (operand.bytes == 0) continue;
    if (operand.pointer == nullptr) {
      if (optional) continue;
      return fail(OUTGRAD_ERROR_NULL_POINTER, function, "%s is null", operand.name);
    }
    const auto address = reinterpret_cast<std::uintptr_t>(operand.pointer);
    if (address % static_cast<u64>(operand.alignment) != 0) {
      return fail(OUTGRAD_ERROR_ALIGNMENT, function, "%s is not aligned to its elements of %lld bytes", operand.name,
                  static_cast<long long>(operand.alignment));
    }
    if (static_cast<u64>(operand.bytes) > UINTPTR_MAX - address) {
      return fail(OUTGRAD_ERROR_SIZE, function, "%s: %lld bytes from its address on do not exist", operand.name, static_cast<long long>(operand.bytes));
    }
  }
  for (const Operand& written : operands) {
    if (!is_written(written)) continue;
    for (const Operand& other : operands) {
      if (&other == &written || !overlap(written, other)) continue;
      bool allowed = false;
      for (const char* name : written.may_be) allowed |= name != nullptr && std::strcmp(name, other.name) == 0;
      if (allowed && written.pointer == other.pointer) continue;
      return fail(OUTGRAD_ERROR_OVERLAP, function, "%s overlaps %s", written.name, other.name);
    }
  }
  return OUTGRAD_OK;
}

outgrad_status check_format(const char* function, outgrad_format format) {
  if (!choice().environment_holds) {
    return fail(OUTGRAD_ERROR_ENVIRONMENT, function, "the environment variable OUTGRAD_ISA is none of baseline, avx2, avx512, avx512_bf16");
  }
  if (!is_format(format)) return fail(OUTGRAD_ERROR_FORMAT, function, "format %d is unknown", static_cast<int>(format));
  return OUTGRAD_OK;
}

outgrad_status check_length(const char* function, i64 n) {
  if (n < 0) return fail(OUTGRAD_ERROR_SIZE, function, "n = %lld is negative", static_cast<long long>(n));
  if (n > kMostElements) return fail(OUTGRAD_ERROR_SIZE, function, "n = %lld is more than can be addressed", static_cast<long long>(n));
  return OUTGRAD_OK;
}

outgrad_status check_shape(const char* function, i64 rows, i64 n) {
  if (rows < 0) return fail(OUTGRAD_ERROR_SIZE, function, "rows = %lld is negative", static_cast<long long>(rows));
  if (n < 1) return fail(OUTGRAD_ERROR_SIZE, function, "n = %lld: a row needs at least one element", static_cast<long long>(n));
  if (n > kMostElements || rows > kMostElements / n) {
    return fail(OUTGRAD_ERROR_SIZE, function, "[%lld, %lld] is more than can be addressed", static_cast<long long>(rows), static_cast<long long>(n));
  }
  return OUTGRAD_OK;
}

outgrad_status check_side(const char* function, const std::int32_t* channels, i64 count, i64 n) {
  if (count < 0 || count > n) {
    return fail(OUTGRAD_ERROR_VALUE, function, "side_count = %lld of %lld channels", static_cast<long long>(count), static_cast<long long>(n));
  }
  if (count == 0) return OUTGRAD_OK;
  const Operand operand{"side_channels", channels, count * 4, 4, Use::read};
  if (const outgrad_status status = check_operands(function, {operand})) return status;
  for (i64 k = 0; k < count; ++k) {
    if (channels[k] < (k > 0 ? i64{channels[k - 1]} + 1 : 0) || channels[k] >= n) {
      return fail(OUTGRAD_ERROR_VALUE, function, "side_channels[%lld] = %d: channels ascend within [0, %lld)", static_cast<long long>(k),
                  static_cast<int>(channels[k]), static_cast<long long>(n));
    }
  }
  return OUTGRAD_OK;
}

outgrad_status check_workspace(const char* function, const void* workspace, std::size_t bytes, i64 words) {
  if (workspace != nullptr && bytes / 4 >= static_cast<u64>(words)) return OUTGRAD_OK;
  return fail(OUTGRAD_ERROR_WORKSPACE, function, "the workspace holds %llu of the %lld bytes that it needs",
              workspace == nullptr ? 0ull : static_cast<unsigned long long>(bytes), static_cast<long long>(words * 4));
}

// Runs the kernel; what it throws of its own accord (before it writes anything) is a value it does not take.
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

outgrad_status activation_backward(const char* function, outgrad_activation activation, outgrad_format format, const void* dy, const void* y,
                                   const std::uint32_t* mask, void* dx, i64 n) {
  if (const outgrad_status status = check_format(function, format)) return status;
  if (!is_activation(activation)) return fail(OUTGRAD_ERROR_ACTIVATION, function, "activation %d is unknown", static_cast<int>(activation));
  if (const outgrad_status status = check_length(function, n)) return status;
  if (n == 0) return OUTGRAD_OK;
  const FormatInfo& info = kInfo[format];
  const i64 bytes = n * info.bytes;
  const outgrad_status status = check_operands(function, {{"dy", dy, bytes, info.bytes, Use::read},
                                                          {"y", y, bytes, info.bytes, Use::read},
                                                          {"mask", mask, info.fits[activation].masked ? mask_bytes(n) : 0, 4, Use::read},
                                                          {"dx", dx, bytes, info.bytes, Use::write, {"dy"}}});
  if (status) return status;
  return run(function, [&] { choice().kernels[format]->backward[activation](dy, y, mask, dx, n); });
}

// With a residual: z = x + residual, and the norm of z.
struct Added {
  const void* residual = nullptr;
  void* z = nullptr;
};

outgrad_status norm_forward(const char* function, Norm norm, outgrad_format format, const void* x, const Added* added, const float* gamma, const float* beta,
                            i64 rows, i64 n, float eps, void* y, float* rstd, const std::int32_t* channels, i64 count, float* x_hat) {
  if (const outgrad_status status = check_format(function, format)) return status;
  if (const outgrad_status status = check_shape(function, rows, n)) return status;
  if (!kernels::eps_holds(eps)) return fail(OUTGRAD_ERROR_VALUE, function, "eps = %g: it is at least 0", static_cast<double>(eps));
  if (const outgrad_status status = check_side(function, channels, count, n)) return status;
  const i64 size = kInfo[format].bytes;
  const i64 bytes = rows * n * size;
  const outgrad_status status = check_operands(function, {{"x", x, bytes, size, Use::read},
                                                          {"gamma", gamma, n * 4, 4, Use::optional_read},
                                                          {"beta", beta, n * 4, 4, Use::optional_read},
                                                          {"y", y, bytes, size, Use::write, {"x", "residual"}},
                                                          {"rstd", rstd, rows * 4, 4, Use::write},
                                                          {"side_channels", channels, count * 4, 4, Use::read},
                                                          {"side_x_hat", x_hat, rows * count * 4, 4, Use::write},
                                                          {"residual", added ? added->residual : nullptr, added ? bytes : 0, size, Use::read},
                                                          {"z", added ? added->z : nullptr, added ? bytes : 0, size, Use::write, {"x", "residual"}}});
  if (status || rows == 0) return status;
  return run(function, [&] {
    if (added) {
      choice().kernels[format]->residual_forward[static_cast<int>(norm)](x, added->residual, gamma, beta, rows, n, eps, added->z, y, rstd,
                                                                         {channels, count, x_hat});
      return;
    }
    choice().kernels[format]->norm_forward[static_cast<int>(norm)](x, gamma, beta, rows, n, eps, y, rstd, {channels, count, x_hat});
  });
}

// dz_next: null without a residual; else a pointer to what is added to the gradient, which is then called dz.
outgrad_status norm_backward(const char* function, Norm norm, outgrad_format format, const void* dy, const void* y, const void* const* dz_next,
                             const float* gamma, const float* beta, const float* rstd, i64 rows, i64 n, void* dx, float* dgamma, float* dbeta,
                             const std::int32_t* channels, i64 count, const float* x_hat, void* workspace, std::size_t workspace_bytes) {
  if (const outgrad_status status = check_format(function, format)) return status;
  if (const outgrad_status status = check_shape(function, rows, n)) return status;
  if (const outgrad_status status = check_side(function, channels, count, n)) return status;
  const i64 words = choice().kernels[format]->norm_workspace(rows, n);
  if (const outgrad_status status = check_workspace(function, workspace, workspace_bytes, words)) return status;
  const i64 size = kInfo[format].bytes;
  const i64 bytes = rows * n * size;
  const outgrad_status status = check_operands(function, {{"dy", dy, bytes, size, Use::read},
                                                          {"y", y, bytes, size, Use::read},
                                                          {"gamma", gamma, n * 4, 4, Use::optional_read},
                                                          {"beta", beta, n * 4, 4, Use::optional_read},
                                                          {"rstd", rstd, rows * 4, 4, Use::read},
                                                          {"dz_next", dz_next ? *dz_next : nullptr, dz_next ? bytes : 0, size, Use::read},
                                                          {dz_next ? "dz" : "dx", dx, bytes, size, Use::write, {"dy", "dz_next"}},
                                                          {"dgamma", dgamma, n * 4, 4, Use::optional_write},
                                                          {"dbeta", dbeta, n * 4, 4, Use::optional_write},
                                                          {"side_channels", channels, count * 4, 4, Use::read},
                                                          {"side_x_hat", x_hat, rows * count * 4, 4, Use::read},
                                                          {"workspace", workspace, words * 4, 4, Use::write}});
  if (status) return status;
  return run(function, [&] {
    if (dz_next) {
      choice().kernels[format]->residual_backward[static_cast<int>(norm)](dy, y, *dz_next, gamma, beta, rstd, rows, n, dx, dgamma, dbeta,
                                                                          {channels, count, x_hat}, static_cast<float*>(workspace), words);
      return;
    }
    choice().kernels[format]->norm_backward[static_cast<int>(norm)](dy, y, gamma, beta, rstd, rows, n, dx, dgamma, dbeta, {channels, count, x_hat},
                                                                    static_cast<float*>(workspace), words);
  });
}

}  // namespace
}  // namespace outgrad::c

using namespace outgrad::c;

outgrad_status outgrad_gelu_forward(outgrad_format format, const void* x, void* y, std::uint32_t* mask, std::int64_t n) {
  const char* const function = "outgrad_gelu_forward";
  if (const outgrad_status status = check_format(function, format)) return status;
  if (const outgrad_status status = check_length(function, n)) return status;
  if (n == 0) return OUTGRAD_OK;
  const i64 size = kInfo[format].bytes;
  const outgrad_status status = check_operands(
      function, {{"x", x, n * size, size, Use::read}, {"y", y, n * size, size, Use::write, {"x"}}, {"mask", mask, mask_bytes(n), 4, Use::write}});
  if (status) return status;
  return run(function, [&] { choice().kernels[format]->gelu_forward(x, y, mask, n); });
}

outgrad_status outgrad_activation_backward(outgrad_activation activation, outgrad_format format, const void* dy, const void* y, const std::uint32_t* mask,
                                           void* dx, std::int64_t n) {
  return activation_backward("outgrad_activation_backward", activation, format, dy, y, mask, dx, n);
}

outgrad_status outgrad_gelu_backward(outgrad_format format, const void* dy, const void* y, const std::uint32_t* mask, void* dx, std::int64_t n) {
  return activation_backward("outgrad_gelu_backward", OUTGRAD_GELU, format, dy, y, mask, dx, n);
}

outgrad_status outgrad_layernorm_forward(outgrad_format format, const void* x, const float* gamma, const float* beta, std::int64_t rows, std::int64_t n,
                                         float eps, void* y, float* rstd, const std::int32_t* side_channels, std::int64_t side_count, float* side_x_hat) {
  return norm_forward("outgrad_layernorm_forward", Norm::layer, format, x, nullptr, gamma, beta, rows, n, eps, y, rstd, side_channels, side_count, side_x_hat);
}

outgrad_status outgrad_rmsnorm_forward(outgrad_format format, const void* x, const float* gamma, std::int64_t rows, std::int64_t n, float eps, void* y,
                                       float* rstd, const std::int32_t* side_channels, std::int64_t side_count, float* side_x_hat) {
  return norm_forward("outgrad_rmsnorm_forward", Norm::rms, format, x, nullptr, gamma, nullptr, rows, n, eps, y, rstd, side_channels, side_count, side_x_hat);
}

outgrad_status outgrad_norm_backward_workspace(outgrad_format format, std::int64_t rows, std::int64_t n, std::size_t* bytes) {
  const char* const function = "outgrad_norm_backward_workspace";
  if (const outgrad_status status = check_format(function, format)) return status;
  if (const outgrad_status status = check_shape(function, rows, n)) return status;
  if (bytes == nullptr) return fail(OUTGRAD_ERROR_NULL_POINTER, function, "bytes is null");
  *bytes = static_cast<std::size_t>(choice().kernels[format]->norm_workspace(rows, n)) * 4;
  return OUTGRAD_OK;
}

outgrad_status outgrad_layernorm_backward(outgrad_format format, const void* dy, const void* y, const float* gamma, const float* beta, const float* rstd,
                                          std::int64_t rows, std::int64_t n, void* dx, float* dgamma, float* dbeta, const std::int32_t* side_channels,
                                          std::int64_t side_count, const float* side_x_hat, void* workspace, std::size_t workspace_bytes) {
  return norm_backward("outgrad_layernorm_backward", Norm::layer, format, dy, y, nullptr, gamma, beta, rstd, rows, n, dx, dgamma, dbeta, side_channels,
                       side_count, side_x_hat, workspace, workspace_bytes);
}

outgrad_status outgrad_rmsnorm_backward(outgrad_format format, const void* dy, const void* y, const float* gamma, const float* rstd, std::int64_t rows,
                                        std::int64_t n, void* dx, float* dgamma, const std::int32_t* side_channels, std::int64_t side_count,
                                        const float* side_x_hat, void* workspace, std::size_t workspace_bytes) {
  return norm_backward("outgrad_rmsnorm_backward", Norm::rms, format, dy, y, nullptr, gamma, nullptr, rstd, rows, n, dx, dgamma, nullptr, side_channels,
                       side_count, side_x_hat, workspace, workspace_bytes);
}

outgrad_status outgrad_residual_layernorm_forward(outgrad_format format, const void* x, const void* residual, const float* gamma, const float* beta,
                                                  std::int64_t rows, std::int64_t n, float eps, void* z, void* y, float* rstd,
                                                  const std::int32_t* side_channels, std::int64_t side_count, float* side_x_hat) {
  const Added added{residual, z};
  return norm_forward("outgrad_residual_layernorm_forward", Norm::layer, format, x, &added, gamma, beta, rows, n, eps, y, rstd, side_channels, side_count,
                      side_x_hat);
}

outgrad_status outgrad_residual_rmsnorm_forward(outgrad_format format, const void* x, const void* residual, const float* gamma, std::int64_t rows,
                                                std::int64_t n, float eps, void* z, void* y, float* rstd, const std::int32_t* side_channels,
                                                std::int64_t side_count, float* side_x_hat) {
  const Added added{residual, z};
  return norm_forward("outgrad_residual_rmsnorm_forward", Norm::rms, format, x, &added, gamma, nullptr, rows, n, eps, y, rstd, side_channels, side_count,
                      side_x_hat);
}

outgrad_status outgrad_residual_layernorm_backward(outgrad_format format, const void* dy, const void* y, const void* dz_next, const float* gamma,
                                                   const float* beta, const float* rstd, std::int64_t rows, std::int64_t n, void* dz, float* dgamma,
                                                   float* dbeta, const std::int32_t* side_channels, std::int64_t side_count, const float* side_x_hat,
                                                   void* workspace, std::size_t workspace_bytes) {
  return norm_backward("outgrad_residual_layernorm_backward", Norm::layer, format, dy, y, &dz_next, gamma, beta, rstd, rows, n, dz, dgamma, dbeta,
                       side_channels, side_count, side_x_hat, workspace, workspace_bytes);
}

outgrad_status outgrad_residual_rmsnorm_backward(outgrad_format format, const void* dy, const void* y, const void* dz_next, const float* gamma,
                                                 const float* rstd, std::int64_t rows, std::int64_t n, void* dz, float* dgamma,
                                                 const std::int32_t* side_channels, std::int64_t side_count, const float* side_x_hat, void* workspace,
                                                 std::size_t workspace_bytes) {
  return norm_backward("outgrad_residual_rmsnorm_backward", Norm::rms, format, dy, y, &dz_next, gamma, nullptr, rstd, rows, n, dz, dgamma, nullptr,
                       side_channels, side_count, side_x_hat, workspace, workspace_bytes);
}

outgrad_status outgrad_bias_gelu_forward(outgrad_format format, const void* x, const float* bias, std::int64_t rows, std::int64_t n, void* y,
                                         std::uint32_t* mask) {
  const char* const function = "outgrad_bias_gelu_forward";
  if (const outgrad_status status = check_format(function, format)) return status;
  if (const outgrad_status status = check_shape(function, rows, n)) return status;
  const i64 size = kInfo[format].bytes, bytes = rows * n * size;
  const outgrad_status status = check_operands(function, {{"x", x, bytes, size, Use::read},
                                                          {"bias", bias, rows > 0 ? n * 4 : 0, 4, Use::read},
                                                          {"y", y, bytes, size, Use::write, {"x"}},
                                                          {"mask", mask, mask_bytes(rows * n), 4, Use::write}});
  if (status || rows == 0) return status;
  return run(function, [&] { choice().kernels[format]->bias_gelu_forward(x, bias, rows, n, y, mask); });
}

outgrad_status outgrad_bias_backward_workspace(outgrad_format format, std::int64_t rows, std::int64_t n, std::size_t* bytes) {
  const char* const function = "outgrad_bias_backward_workspace";
  if (const outgrad_status status = check_format(function, format)) return status;
  if (const outgrad_status status = check_shape(function, rows, n)) return status;
  if (bytes == nullptr) return fail(OUTGRAD_ERROR_NULL_POINTER, function, "bytes is null");
  *bytes = static_cast<std::size_t>(choice().kernels[format]->bias_workspace(rows, n)) * 4;
  return OUTGRAD_OK;
}

outgrad_status outgrad_bias_gelu_backward(outgrad_format format, const void* dy, const void* y, const std::uint32_t* mask, std::int64_t rows, std::int64_t n,
                                          void* dx, float* dbias, void* workspace, std::size_t workspace_bytes) {
  const char* const function = "outgrad_bias_gelu_backward";
  if (const outgrad_status status = check_format(function, format)) return status;
  if (const outgrad_status status = check_shape(function, rows, n)) return status;
  const i64 words = choice().kernels[format]->bias_workspace(rows, n);
  if (words > 0) {
    if (const outgrad_status status = check_workspace(function, workspace, workspace_bytes, words)) return status;
  }
  const i64 size = kInfo[format].bytes, bytes = rows * n * size;
  const outgrad_status status = check_operands(function, {{"dy", dy, bytes, size, Use::read},
                                                          {"y", y, bytes, size, Use::read},
                                                          {"mask", mask, mask_bytes(rows * n), 4, Use::read},
                                                          {"dx", dx, bytes, size, Use::write, {"dy"}},
                                                          {"dbias", dbias, n * 4, 4, Use::write},
                                                          {"workspace", workspace, words * 4, 4, Use::write}});
  if (status) return status;
  return run(function, [&] { choice().kernels[format]->bias_gelu_backward(dy, y, mask, rows, n, dx, dbias, static_cast<float*>(workspace), words); });
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
    default: return "unknown status";
  }
}

outgrad_status outgrad_set_threads(std::int32_t threads) {
  if (threads < 0) return fail(OUTGRAD_ERROR_VALUE, "outgrad_set_threads", "threads = %d is negative", static_cast<int>(threads));
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
  return is_activation(activation) && is_format(format) ? digest_of(kInfo[format].fits[activation].name) : nullptr;
}

const char* outgrad_forward_coefficients_sha256(void) { return digest_of("gelu_forward"); }

const char* outgrad_forward_variant(outgrad_format format) { return outgrad_tuned_variant(OUTGRAD_KERNEL_GELU_FORWARD, format, 1, kMostElements); }

const char* outgrad_backward_variant(outgrad_format format) { return outgrad_tuned_variant(OUTGRAD_KERNEL_GELU_BACKWARD, format, 1, kMostElements); }

const char* outgrad_tuned_variant(outgrad_kernel kernel, outgrad_format format, std::int64_t rows, std::int64_t n) {
  return is_kernel(kernel) && is_format(format) ? choice().kernels[format]->chosen(kernel, rows, n).variant : nullptr;
}

const char* outgrad_tuned_rung(outgrad_kernel kernel, outgrad_format format, std::int64_t rows, std::int64_t n) {
  return is_kernel(kernel) && is_format(format) ? choice().kernels[format]->chosen(kernel, rows, n).rung : nullptr;
}
