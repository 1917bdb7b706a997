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
#include <string_view>
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
#include "kernels/host/bias.h"
#include "kernels/host/elementwise.h"
#include "kernels/host/forwards.h"
#include "kernels/host/layernorm.h"
#include "tests/kernels/kernels_fuzz_oracle.h"
#include "tests/kernels/patterns.h"

namespace outgrad::kernels::fuzz {

const std::array<const char*, kFunctions> kFunctionNames = {"outgrad_gelu_forward",
                                                            "outgrad_activation_forward",
                                                            "outgrad_activation_backward",
                                                            "outgrad_gelu_backward",
                                                            "outgrad_bias_gelu_forward",
                                                            "outgrad_bias_gelu_backward",
                                                            "outgrad_layernorm_forward",
                                                            "outgrad_rmsnorm_forward",
                                                            "outgrad_residual_layernorm_forward",
                                                            "outgrad_residual_rmsnorm_forward",
                                                            "outgrad_layernorm_backward",
                                                            "outgrad_rmsnorm_backward",
                                                            "outgrad_residual_layernorm_backward",
                                                            "outgrad_residual_rmsnorm_backward",
                                                            "outgrad_norm_backward_workspace",
                                                            "outgrad_bias_backward_workspace",
                                                            "queries"};

namespace {

enum Function {
  kGeluForward,
  kActivationForward,
  kActivationBackward,
  kGeluBackward,
  kBiasForward,
  kBiasBackward,
  kLayernormForward,
  kRmsnormForward,
  kResidualLayernormForward,
  kResidualRmsnormForward,
  kLayernormBackward,
  kRmsnormBackward,
  kResidualLayernormBackward,
  kResidualRmsnormBackward,
  kNormWorkspace,
  kBiasWorkspace,
  kQueries
};

constexpr CpuSchedule kScalar{};
constexpr i64 kFormatBytes[] = {4, 2, 2};

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

enum Role {
  kX,
  kResidual,
  kZ,
  kY,
  kMask,
  kDy,
  kDx,  // dz of a residual form
  kDzNext,
  kGamma,
  kBeta,  // bias of bias + GELU
  kRstd,
  kDgamma,
  kDbeta,  // dbias
  kSide,
  kXHat,
  kWorkspace,
  kRoles
};
constexpr const char* kRoleNames[kRoles] = {
    "x",    "residual", "z",      "y",     "mask",          "dy",         "dx",       "dz_next", "gamma",
    "beta", "rstd",     "dgamma", "dbeta", "side_channels", "side_x_hat", "workspace"};

enum class Element { stored, f32, word };

struct Operand {
  bool used = false;
  Element element = Element::stored;
  i64 count = 0;
  bool written = false;
  bool optional = false;
  bool per_column = false;
  std::vector<Role> may_be;
  u8* pointer = nullptr;
};

struct Call {
  Function function = kQueries;
  int activation = OUTGRAD_GELU;
  outgrad_format format = OUTGRAD_F32;
  i64 rows = 1, n = 0;  // the elementwise functions have no rows
  float eps = 1e-5f;
  i64 side_count = 0;
  size_t workspace_bytes = 0;
  std::array<Operand, kRoles> operands;

  bool is(Function first, Function last) const { return function >= first && function <= last; }
  bool elementwise() const { return is(kGeluForward, kGeluBackward); }
  bool norm() const { return is(kLayernormForward, kResidualRmsnormBackward); }
  bool norm_forward() const { return is(kLayernormForward, kResidualRmsnormForward); }
  bool norm_backward() const { return is(kLayernormBackward, kResidualRmsnormBackward); }
  bool layer() const {
    return function == kLayernormForward || function == kLayernormBackward ||
           function == kResidualLayernormForward || function == kResidualLayernormBackward;
  }
  bool residual() const {
    return is(kResidualLayernormForward, kResidualRmsnormForward) ||
           is(kResidualLayernormBackward, kResidualRmsnormBackward);
  }
  bool any_activation() const { return is(kActivationForward, kActivationBackward); }
  bool needs_mask() const { return !any_activation() || activation < OUTGRAD_TANH; }

  i64 element_bytes(const Operand& o) const {
    return o.element == Element::stored && format >= OUTGRAD_F32 && format <= OUTGRAD_BF16
               ? kFormatBytes[format]
               : 4;
  }
  i64 bytes(const Operand& o) const { return o.count * element_bytes(o); }
  template <class T = void>
  T* at(Role role) const {
    return reinterpret_cast<T*>(operands[role].pointer);
  }
};

// The operands of the call's function and shape; pointers still null.
void declare(Call& call) {
  const i64 size = call.rows * call.n;
  const auto stored = [&](Role role, bool written, std::vector<Role> may_be = {}) {
    call.operands[role] = {true, Element::stored, size, written, false, false, std::move(may_be), nullptr};
  };
  const auto fp32 = [&](Role role, i64 count, bool written, bool optional, bool per_column = false) {
    call.operands[role] = {true, Element::f32, count, written, optional, per_column, {}, nullptr};
  };
  const auto words = [&](Role role, i64 count, bool written) {
    call.operands[role] = {true, Element::word, count, written, false, false, {}, nullptr};
  };
  const i64 mask_words = (size + 31) / 32;
  if (call.is(kGeluForward, kActivationForward) || call.function == kBiasForward) {
    stored(kX, false);
    stored(kY, true, {kX});
    words(kMask, call.needs_mask() ? mask_words : 0, true);
    if (call.function == kBiasForward) fp32(kBeta, call.n, false, false, true);
  } else if (call.function <= kBiasBackward) {
    stored(kDy, false);
    stored(kY, false);
    stored(kDx, true, {kDy});
    words(kMask, call.needs_mask() ? mask_words : 0, false);
    if (call.function == kBiasBackward) fp32(kDbeta, call.n, true, false, true);
  } else if (call.norm_forward()) {
    stored(kX, false);
    if (call.residual()) {
      stored(kResidual, false);
      stored(kZ, true, {kX, kResidual});
    }
    stored(kY, true, {kX, kResidual});
    fp32(kGamma, call.n, false, true, true);
    if (call.layer()) fp32(kBeta, call.n, false, true, true);
    fp32(kRstd, call.rows, true, false);
    words(kSide, call.side_count, false);
    fp32(kXHat, call.rows * call.side_count, true, false);
  } else if (call.norm_backward()) {
    stored(kDy, false);
    stored(kY, false);
    if (call.residual()) stored(kDzNext, false);
    stored(kDx, true, {kDy, kDzNext});
    fp32(kGamma, call.n, false, true, true);
    if (call.layer()) fp32(kBeta, call.n, false, true, true);
    fp32(kRstd, call.rows, false, false);
    fp32(kDgamma, call.n, true, true, true);
    if (call.layer()) fp32(kDbeta, call.n, true, true, true);
    words(kSide, call.side_count, false);
    fp32(kXHat, call.rows * call.side_count, false, false);
  }
  if (call.function == kBiasBackward || call.norm_backward()) {
    size_t bytes = 0;
    const auto query =
        call.function == kBiasBackward ? outgrad_bias_backward_workspace : outgrad_norm_backward_workspace;
    if (query(call.format, call.rows, call.n, &bytes) != OUTGRAD_OK) std::abort();
    call.workspace_bytes = bytes;
    words(kWorkspace, static_cast<i64>(bytes / 4), true);
  }
}

// The call through the C interface.
outgrad_status call_library(const Call& c) {
  const auto* const side = c.at<const std::int32_t>(kSide);
  switch (c.function) {
    case kGeluForward:
      return outgrad_gelu_forward(c.format, c.at(kX), c.at(kY), c.at<std::uint32_t>(kMask), c.n);
    case kActivationForward:
      return outgrad_activation_forward(c.activation, c.format, c.at(kX), c.at(kY),
                                        c.at<std::uint32_t>(kMask), c.n);
    case kActivationBackward:
      return outgrad_activation_backward(c.activation, c.format, c.at(kDy), c.at(kY),
                                         c.at<std::uint32_t>(kMask), c.at(kDx), c.n);
    case kGeluBackward:
      return outgrad_gelu_backward(c.format, c.at(kDy), c.at(kY), c.at<std::uint32_t>(kMask), c.at(kDx), c.n);
    case kBiasForward:
      return outgrad_bias_gelu_forward(c.format, c.at(kX), c.at<float>(kBeta), c.rows, c.n, c.at(kY),
                                       c.at<std::uint32_t>(kMask));
    case kBiasBackward:
      return outgrad_bias_gelu_backward(c.format, c.at(kDy), c.at(kY), c.at<std::uint32_t>(kMask), c.rows,
                                        c.n, c.at(kDx), c.at<float>(kDbeta), c.at(kWorkspace),
                                        c.workspace_bytes);
    case kLayernormForward:
      return outgrad_layernorm_forward(c.format, c.at(kX), c.at<float>(kGamma), c.at<float>(kBeta), c.rows,
                                       c.n, c.eps, c.at(kY), c.at<float>(kRstd), side, c.side_count,
                                       c.at<float>(kXHat));
    case kRmsnormForward:
      return outgrad_rmsnorm_forward(c.format, c.at(kX), c.at<float>(kGamma), c.rows, c.n, c.eps, c.at(kY),
                                     c.at<float>(kRstd), side, c.side_count, c.at<float>(kXHat));
    case kResidualLayernormForward:
      return outgrad_residual_layernorm_forward(c.format, c.at(kX), c.at(kResidual), c.at<float>(kGamma),
                                                c.at<float>(kBeta), c.rows, c.n, c.eps, c.at(kZ), c.at(kY),
                                                c.at<float>(kRstd), side, c.side_count, c.at<float>(kXHat));
    case kResidualRmsnormForward:
      return outgrad_residual_rmsnorm_forward(c.format, c.at(kX), c.at(kResidual), c.at<float>(kGamma),
                                              c.rows, c.n, c.eps, c.at(kZ), c.at(kY), c.at<float>(kRstd),
                                              side, c.side_count, c.at<float>(kXHat));
    case kLayernormBackward:
      return outgrad_layernorm_backward(c.format, c.at(kDy), c.at(kY), c.at<float>(kGamma),
                                        c.at<float>(kBeta), c.at<float>(kRstd), c.rows, c.n, c.at(kDx),
                                        c.at<float>(kDgamma), c.at<float>(kDbeta), side, c.side_count,
                                        c.at<float>(kXHat), c.at(kWorkspace), c.workspace_bytes);
    case kRmsnormBackward:
      return outgrad_rmsnorm_backward(c.format, c.at(kDy), c.at(kY), c.at<float>(kGamma), c.at<float>(kRstd),
                                      c.rows, c.n, c.at(kDx), c.at<float>(kDgamma), side, c.side_count,
                                      c.at<float>(kXHat), c.at(kWorkspace), c.workspace_bytes);
    case kResidualLayernormBackward:
      return outgrad_residual_layernorm_backward(
          c.format, c.at(kDy), c.at(kY), c.at(kDzNext), c.at<float>(kGamma), c.at<float>(kBeta),
          c.at<float>(kRstd), c.rows, c.n, c.at(kDx), c.at<float>(kDgamma), c.at<float>(kDbeta), side,
          c.side_count, c.at<float>(kXHat), c.at(kWorkspace), c.workspace_bytes);
    case kResidualRmsnormBackward:
      return outgrad_residual_rmsnorm_backward(c.format, c.at(kDy), c.at(kY), c.at(kDzNext),
                                               c.at<float>(kGamma), c.at<float>(kRstd), c.rows, c.n,
                                               c.at(kDx), c.at<float>(kDgamma), side, c.side_count,
                                               c.at<float>(kXHat), c.at(kWorkspace), c.workspace_bytes);
    default: std::abort();
  }
}

// The catalogue's kernel that a function is, and its arrays by their names.
KernelId kernel_of(const Call& c) {
  switch (c.function) {
    case kGeluForward:
    case kActivationForward: return KernelId::kGeluForward;
    case kBiasForward: return KernelId::kBiasGeluForward;
    case kBiasBackward: return KernelId::kBiasGeluBackward;
    case kLayernormForward: return KernelId::kLayernormForward;
    case kRmsnormForward: return KernelId::kRmsnormForward;
    case kResidualLayernormForward: return KernelId::kResidualLayernormForward;
    case kResidualRmsnormForward: return KernelId::kResidualRmsnormForward;
    case kLayernormBackward: return KernelId::kLayernormBackward;
    case kRmsnormBackward: return KernelId::kRmsnormBackward;
    case kResidualLayernormBackward: return KernelId::kResidualLayernormBackward;
    case kResidualRmsnormBackward: return KernelId::kResidualRmsnormBackward;
    default: return KernelId::kGeluBackward;
  }
}
void* array_of(const Call& c, std::string_view name) {
  const std::pair<std::string_view, Role> places[] = {{"x", kX},
                                                      {"residual", kResidual},
                                                      {"dy", kDy},
                                                      {"dz_next", kDzNext},
                                                      {"mask", kMask},
                                                      {"gamma", kGamma},
                                                      {"beta", kBeta},
                                                      {"bias", kBeta},
                                                      {"rstd", kRstd},
                                                      {"y", kY},
                                                      {"z", kZ},
                                                      {"dx", kDx},
                                                      {"dz", kDx},
                                                      {"dgamma", kDgamma},
                                                      {"dbeta", kDbeta},
                                                      {"dbias", kDbeta},
                                                      {"workspace", kWorkspace}};
  for (const auto& [known, place] : places)
    if (known == name) return c.at(place);
  std::abort();
}

// The same through the kernels of one instruction set.
void call_kernels(const Call& c, const c::FormatKernels& kernels) {
  const KernelId kernel = kernel_of(c);
  Arguments a{.rows = c.elementwise() ? 1 : c.rows,
              .cols = c.n,
              .eps = c.eps,
              .side = {c.at<const i32>(kSide), c.side_count, c.at<float>(kXHat)}};
  for (size_t k = 0; k < operands(kernel).size(); ++k) a.array[k] = array_of(c, operands(kernel)[k].name);
  if (c.elementwise())
    return (kernel == KernelId::kGeluForward ? kernels.forward : kernels.backward)[c.activation](a);
  kernels.run[static_cast<int>(kernel)](a);
}

// The kernels of every instruction set that this process may run, the chosen one last.
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

// --- The scalar code of kernels/host/ ------------------------------------------------------------

template <class Fit, class T>
void scalar_backward(const Call& c) {
  activation_backward<Fit, T, kScalar>(c.at<const T>(kDy), c.at<const T>(kY), c.at<u32>(kMask), c.at<T>(kDx),
                                       c.n);
}

template <class T, class... Fit>
void scalar_backward_of(c::FitList<Fit...>, const Call& c) {
  static constexpr void (*kAll[])(const Call&) = {scalar_backward<Fit, T>...};
  kAll[c.activation](c);
}

template <class F, class T>
void scalar_forward(const Call& c) {
  activation_forward<F, T, kScalar>(c.at<const T>(kX), c.at<T>(kY), c.at<u32>(kMask), c.n);
}

template <class T>
void scalar_gelu_forward(const Call& c) {
  gelu_forward<typename ForwardFit<T>::Type, T, kScalar>(c.at<const T>(kX), c.at<T>(kY), c.at<u32>(kMask),
                                                         c.n);
}

template <class T, class... F>
void scalar_forward_of(ForwardList<F...>, const Call& c) {
  static constexpr void (*kAll[])(const Call&) = {scalar_gelu_forward<T>, scalar_forward<F, T>...};
  kAll[c.activation](c);
}

template <class List>
struct FirstFit;
template <class Fit, class... Others>
struct FirstFit<c::FitList<Fit, Others...>> {
  using Type = Fit;
};

template <class T>
void call_scalar(const Call& c) {
  using Gelu = typename FirstFit<typename c::ActivationFits<T>::Type>::Type;
  const T *const x = c.at<T>(kX), *const dy = c.at<T>(kDy), *const residual = c.at<T>(kResidual),
                 *const dz_next = c.at<T>(kDzNext);
  T *const y = c.at<T>(kY), *const z = c.at<T>(kZ), *const dx = c.at<T>(kDx);
  float *const gamma = c.at<float>(kGamma), *const beta = c.at<float>(kBeta),
               *const rstd = c.at<float>(kRstd);
  float *const dgamma = c.at<float>(kDgamma), *const dbeta = c.at<float>(kDbeta);
  const SideBuffer<float> side{c.at<const i32>(kSide), c.side_count, c.at<float>(kXHat)};
  const SideBuffer<const float> kept{c.at<const i32>(kSide), c.side_count, c.at<float>(kXHat)};
  const std::span<float> workspace(c.at<float>(kWorkspace),
                                   static_cast<size_t>(c.operands[kWorkspace].count));
  switch (c.function) {
    case kGeluForward:
    case kActivationForward: return scalar_forward_of<T>(ActivationForwards{}, c);
    case kActivationBackward:
    case kGeluBackward: return scalar_backward_of<T>(typename c::ActivationFits<T>::Type{}, c);
    case kBiasForward:
      return bias_gelu_forward<typename ForwardFit<T>::Type, T, kScalar>(x, beta, c.rows, c.n, y,
                                                                         c.at<u32>(kMask));
    case kBiasBackward:
      return bias_gelu_backward<Gelu, T, kScalar>(dy, y, c.at<u32>(kMask), c.rows, c.n, dx, dbeta, workspace);
    case kLayernormForward:
      return layernorm_forward<T, kScalar>(x, gamma, beta, c.rows, c.n, c.eps, y, rstd, side);
    case kRmsnormForward: return rmsnorm_forward<T, kScalar>(x, gamma, c.rows, c.n, c.eps, y, rstd, side);
    case kResidualLayernormForward:
      return residual_layernorm_forward<T, kScalar>(x, residual, gamma, beta, c.rows, c.n, c.eps, z, y, rstd,
                                                    side);
    case kResidualRmsnormForward:
      return residual_rmsnorm_forward<T, kScalar>(x, residual, gamma, c.rows, c.n, c.eps, z, y, rstd, side);
    case kLayernormBackward:
      return layernorm_backward<T, kScalar>(dy, y, gamma, beta, rstd, c.rows, c.n, dx, dgamma, dbeta, kept,
                                            workspace);
    case kRmsnormBackward:
      return rmsnorm_backward<T, kScalar>(dy, y, gamma, rstd, c.rows, c.n, dx, dgamma, kept, workspace);
    case kResidualLayernormBackward:
      return residual_layernorm_backward<T, kScalar>(dy, y, dz_next, gamma, beta, rstd, c.rows, c.n, dx,
                                                     dgamma, dbeta, kept, workspace);
    case kResidualRmsnormBackward:
      return residual_rmsnorm_backward<T, kScalar>(dy, y, dz_next, gamma, rstd, c.rows, c.n, dx, dgamma, kept,
                                                   workspace);
    default: std::abort();
  }
}

// --- The contract --------------------------------------------------------------------------------

struct Violations {
  std::set<outgrad_status> certain;  // one of these is the status, if there is any
  // the header leaves it open whether these count: arrays that a call of no rows would not read
  std::set<outgrad_status> open;
};

bool shape_holds(const Call& call) {
  constexpr i64 kMost = i64{1} << 54;  // elements: 2^56 bytes, beyond all that can be mapped
  if (call.n < (call.elementwise() ? 0 : 1) || call.rows < 0 || call.n > kMost) return false;
  return call.rows <= kMost / std::max<i64>(call.n, 1);
}

Violations violations(const Call& call) {
  Violations found;
  if (call.format < OUTGRAD_F32 || call.format > OUTGRAD_BF16) found.certain.insert(OUTGRAD_ERROR_FORMAT);
  if (call.any_activation() && (call.activation < OUTGRAD_GELU || call.activation > OUTGRAD_ELU)) {
    found.certain.insert(OUTGRAD_ERROR_ACTIVATION);
  }
  if (call.norm_forward() &&
      (std::isnan(call.eps) || (std::signbit(call.eps) && bits_of(call.eps) != bits_of(-0.0f)))) {
    found.certain.insert(OUTGRAD_ERROR_VALUE);
  }
  const bool side_holds = call.side_count >= 0 && (!shape_holds(call) || call.side_count <= call.n);
  if (!side_holds) found.certain.insert(OUTGRAD_ERROR_VALUE);
  if (!shape_holds(call)) found.certain.insert(OUTGRAD_ERROR_SIZE);
  if (!found.certain.empty()) return found;  // then how long the arrays should be is not known

  const bool no_rows = call.rows == 0;
  const auto add = [&](bool open, outgrad_status status) {
    (open ? found.open : found.certain).insert(status);
  };
  for (int role = 0; role < kRoles; ++role) {
    const Operand& o = call.operands[role];
    const bool open = no_rows && o.per_column && !o.written;
    if (!o.used || o.count == 0) continue;
    if (role == kWorkspace &&
        (o.pointer == nullptr || call.workspace_bytes < static_cast<size_t>(call.bytes(o)))) {
      found.certain.insert(OUTGRAD_ERROR_WORKSPACE);
    }
    if (o.pointer == nullptr) {
      if (role != kWorkspace && !o.optional) add(open, OUTGRAD_ERROR_NULL_POINTER);
      continue;
    }
    const auto address = reinterpret_cast<std::uintptr_t>(o.pointer);
    if (address % static_cast<u64>(call.element_bytes(o)) != 0) add(open, OUTGRAD_ERROR_ALIGNMENT);
    if (!o.written) continue;
    for (int other_role = 0; other_role < kRoles; ++other_role) {
      const Operand& other = call.operands[other_role];
      if (other_role == role || !other.used || other.count == 0 || other.pointer == nullptr) continue;
      const auto other_address = reinterpret_cast<std::uintptr_t>(other.pointer);
      const bool apart = address + static_cast<u64>(call.bytes(o)) <= other_address ||
                         other_address + static_cast<u64>(call.bytes(other)) <= address;
      const bool allowed =
          address == other_address && std::count(o.may_be.begin(), o.may_be.end(), other_role) != 0;
      if (!apart && !allowed) add(no_rows && other.per_column && !other.written, OUTGRAD_ERROR_OVERLAP);
    }
  }
  const auto readable = [&](Role role) {
    return call.at(role) != nullptr && reinterpret_cast<std::uintptr_t>(call.at(role)) % 4 == 0;
  };
  if (call.side_count > 0 && !readable(kSide)) return found;
  const auto* const side = call.at<const std::int32_t>(kSide);
  for (i64 k = 0; k < call.side_count; ++k) {
    if (side[k] < 0 || side[k] >= call.n || (k > 0 && side[k] <= side[k - 1]))
      found.certain.insert(OUTGRAD_ERROR_VALUE);
  }
  if (call.norm_backward() && readable(kGamma)) {
    const std::set<i64> kept(side, side + call.side_count);
    for (i64 j = 0; j < call.n; ++j) {
      if (!kept.contains(j) && std::isinf(1.0f / call.at<float>(kGamma)[j]))
        found.certain.insert(OUTGRAD_ERROR_VALUE);
    }
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
  static constexpr float kValues[] = {
      0.0f, -0.0f, 1.0f, -1.0f, std::numeric_limits<float>::infinity(),
      -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(),
      std::numeric_limits<float>::denorm_min(), -std::numeric_limits<float>::denorm_min(),
      0x1p-24f,  // f16's least
      -0x1p-133f,  // bf16's least
      0x1p-126f, 0x1.fffffep+127f, -0x1.fffffep+127f, 65504.0f,
      -65520.0f,  // rounds to f16's infinity
                                      // GELU's minimum and its neighbour, which no forward makes
      -0x1.5c1efcp-3f, -0x1.5c2p-3f, -0.75179154f, 20.0f, -20.0f};
  return kValues[random.next() % std::size(kValues)];
}

void fill_values(Element element, outgrad_format format, u8* array, i64 count, Kind kind,
                 patterns::Random& random) {
  const outgrad_format as = element == Element::stored ? format : OUTGRAD_F32;
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
    call_.function = static_cast<Function>(choose_.below(kFunctions));
    call_.format = static_cast<outgrad_format>(choose_.below(3));
    if (call_.function == kQueries) return queries();
    if (call_.function == kNormWorkspace || call_.function == kBiasWorkspace) return workspace_query();
    if (call_.any_activation()) call_.activation = static_cast<int>(choose_.below(OUTGRAD_ELU + 1));
    choose_shape();
    declare(call_);
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
    std::string wrong = expected.certain.empty() && expected.open.empty() ? accepted() : refused(expected);
    for (const auto& region : regions_) region->open();
    return wrong.empty() ? wrong : describe() + ": " + wrong;
  }

 private:
  // --- Making it ---

  // Lengths around those at which the loops change: vectors, mask words, unrolled bodies, steps of the tree,
  // blocks.
  i64 length() {
    static constexpr i64 kEdges[] = {0, 1, 8, 16, 24, 32, 64, 96, 128, 192, 256, 512, 1024, 2048};
    if (choose_.one_in(4)) return choose_.below(3000);
    return std::max<i64>(0, choose_.of(kEdges) + choose_.below(5) - 2);
  }

  void choose_shape() {
    if (call_.elementwise()) {
      call_.rows = 1;
      call_.n = length();
      // The table of all outputs begins at 2^16 elements, streaming stores at 2 MiB; blocks are 2^16.
      if (choose_.one_in(200)) call_.n = (1 << 16) + choose_.below(1 << 17);
      if (choose_.one_in(1000)) call_.n = (1 << 20) + choose_.below(200);
      return;
    }
    call_.n = std::max<i64>(1, length());
    if (choose_.one_in(100)) call_.n = 16384 + choose_.below(300);  // beyond one group of steps
    constexpr i64 kUsual = 1 << 14;
    const i64 most = std::max<i64>(1, kUsual / call_.n);
    static constexpr i64 kRows[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 31, 63, 64, 65, 130, 260};
    call_.rows = std::min(choose_.of(kRows), most + choose_.below(2));
    if (choose_.one_in(500)) {  // rows that are streamed
      call_.n = 1024;
      call_.rows = 1024 + choose_.below(70);
    }
    if (call_.norm() && choose_.one_in(2)) call_.side_count = std::min<i64>(choose_.below(6), call_.n);
    static constexpr float kEps[] = {1e-5f, 0.0f, 1.0f, 1e-12f, -0.0f, 0x1p-149f};
    if (call_.norm_forward()) call_.eps = choose_.of(kEps);
  }

  void allocate() {
    for (int role = 0; role < kRoles; ++role) {
      Operand& o = call_.operands[role];
      if (!o.used) continue;
      const i64 unit = call_.element_bytes(o);
      const size_t offset = choose_.one_in(3)
                                ? 0
                                : choose_.below(static_cast<u32>(Region::kLine / static_cast<size_t>(unit))) *
                                      static_cast<size_t>(unit);
      regions_.push_back(std::make_unique<Region>(call_.bytes(o), offset));
      o.pointer = regions_.back()->data();
    }
  }

  void fill() {
    for (int role = 0; role < kRoles; ++role) {
      Operand& o = call_.operands[role];
      if (!o.used || o.count == 0 || role == kSide) continue;
      Kind kind = choose_.one_in(2) ? Kind::moderate : static_cast<Kind>(choose_.below(5));
      if (role == kMask || o.written) kind = Kind::any_bits;
      fill_values(o.element, call_.format, o.pointer, o.count, kind, random_);
    }
    // Channels ascend; those of a backward's gamma that cannot be divided by are mostly among them.
    i64 channel = -1;
    for (i64 k = 0; k < call_.side_count; ++k) {
      const i64 left = call_.side_count - k - 1;
      channel += 1 + static_cast<i64>(random_.next() % static_cast<u32>(std::max<i64>(
                                                           1, (call_.n - left - channel - 1) / (left + 1))));
      side_.push_back(static_cast<std::int32_t>(channel));
    }
    if (call_.side_count > 0) std::memcpy(call_.operands[kSide].pointer, side_.data(), side_.size() * 4);
    if (call_.norm() && choose_.below(4) != 0) {
      const std::set<std::int32_t> kept(side_.begin(), side_.end());
      for (i64 j = 0; j < call_.n; ++j) {
        const float near_one = 1 + 0.2f * moderate(random_);  // in (0.2, 1.8)
        store(OUTGRAD_F32, call_.operands[kGamma].pointer, j,
              kept.contains(static_cast<std::int32_t>(j)) && random_.next() % 2 ? 0.0f : near_one);
      }
      if (call_.norm_backward()) {
        for (i64 row = 0; row < call_.rows; ++row)
          store(OUTGRAD_F32, call_.operands[kRstd].pointer, row, 1 + 0.2f * moderate(random_));
      }
    }
    // y and mask as a forward makes them.
    if ((call_.function == kActivationBackward || call_.function == kGeluBackward) && call_.n <= 4096 &&
        choose_.one_in(2)) {
      const Activation& f = activation_of(call_.activation);
      const float scale = choose_.one_in(4) ? 8.0f : 1.0f;
      std::fill_n(call_.operands[kMask].pointer, call_.bytes(call_.operands[kMask]), u8{0});
      for (i64 i = 0; i < call_.n; ++i) {
        x_.push_back(moderate(random_) * scale);
        const float y = f.rounded_value(static_cast<Stored>(call_.format), x_.back());
        if (std::isnan(y)) x_.back() = std::numeric_limits<float>::quiet_NaN();  // undecided
        store(call_.format, call_.operands[kY].pointer, i, y);
        if (f.masked() && x_.back() >= f.x_star())
          call_.at<u8>(kMask)[i / 8] = static_cast<u8>(call_.at<u8>(kMask)[i / 8] | 1 << (i % 8));
      }
    }
  }

  void leave_out() {
    for (Operand& o : call_.operands) {
      const bool empty = o.used && o.count == 0;
      if ((o.optional || empty) && choose_.one_in(4)) o.pointer = nullptr;
    }
  }

  // Lets arrays coincide that may: a written one with one that it may be, two read ones of equal length.
  void alias() {
    if (!choose_.one_in(2)) return;
    for (int role = 0; role < kRoles; ++role) {
      Operand& o = call_.operands[role];
      if (!o.used || o.pointer == nullptr || !choose_.one_in(2)) continue;
      for (const Role other : o.may_be) {
        const Operand& target = call_.operands[other];
        if (target.used && target.pointer != nullptr && choose_.one_in(2)) {
          o.pointer = target.pointer;
          aliased_ = true;
        }
      }
    }
  }

  // --- Spoiling it ---

  Role any_used() {
    for (;;) {
      const auto role = static_cast<Role>(choose_.below(kRoles));
      if (call_.operands[role].used) return role;
    }
  }

  void spoil() {
    static constexpr i64 kSizes[] = {-1, std::numeric_limits<i64>::min(), std::numeric_limits<i64>::max(),
                                     i64{1} << 62, (i64{1} << 55) + 1};
    switch (choose_.below(9)) {
      case 0: call_.operands[any_used()].pointer = nullptr; break;
      case 1: {
        Operand& o = call_.operands[any_used()];
        // twice might be none
        const bool whole =
            reinterpret_cast<std::uintptr_t>(o.pointer) % static_cast<u64>(call_.element_bytes(o)) == 0;
        if (o.pointer != nullptr && whole)
          o.pointer += 1 + choose_.below(static_cast<u32>(call_.element_bytes(o) - 1));
        break;
      }
      case 2:
      case 3: overlap(); break;
      case 4:
        if (call_.elementwise() || choose_.one_in(2)) {
          call_.n = choose_.of(kSizes);
        } else if (choose_.one_in(2)) {
          call_.rows = choose_.of(kSizes);
        } else if (choose_.one_in(2)) {
          call_.n = 0;
        } else {
          call_.rows = call_.n = i64{1} << 32;  // the product is 0 modulo 2^64
        }
        break;
      case 5: {
        static constexpr outgrad_format kFormats[] = {-1, 3, 7, std::numeric_limits<std::int32_t>::min(),
                                                      std::numeric_limits<std::int32_t>::max()};
        call_.format = choose_.of(kFormats);
        break;
      }
      case 6:
        if (call_.any_activation()) {
          static constexpr int kActivations[] = {-1, 10, std::numeric_limits<std::int32_t>::min(),
                                                 std::numeric_limits<std::int32_t>::max()};
          call_.activation = choose_.of(kActivations);
        } else if (call_.norm_forward()) {
          static constexpr float kEps[] = {-1e-9f, -1.0f, -0x1p-149f, -std::numeric_limits<float>::infinity(),
                                           std::numeric_limits<float>::quiet_NaN()};
          call_.eps = choose_.of(kEps);
        } else if (call_.norm_backward() && call_.operands[kGamma].count == call_.n && addressable(kGamma)) {
          static constexpr float kGammas[] = {0.0f,       -0.0f,     0x1p-129f,
                                              -0x1p-149f, 0x1p-128f, 0x1.000004p-128f};
          call_.at<float>(kGamma)[choose_.below(static_cast<u32>(call_.n))] = choose_.of(kGammas);
        }
        break;
      case 7:
        if (call_.norm()) {
          static constexpr i64 kCounts[] = {-1, std::numeric_limits<i64>::min(),
                                            std::numeric_limits<i64>::max()};
          if (call_.side_count <= 0 || !addressable(kSide) || choose_.one_in(3)) {
            call_.side_count = choose_.one_in(2) && call_.n < kLargestSize ? std::max<i64>(call_.n, 0) + 1
                                                                           : choose_.of(kCounts);
          } else if (call_.side_count <= call_.operands[kSide].count) {
            auto* const side = call_.at<std::int32_t>(kSide);
            const auto k = choose_.below(static_cast<u32>(call_.side_count));
            const std::int32_t wrong[] = {-1, static_cast<std::int32_t>(std::min<i64>(call_.n, kLargestSize)),
                                          k > 0 ? side[k - 1] : -5, std::numeric_limits<std::int32_t>::min(),
                                          std::numeric_limits<std::int32_t>::max()};
            side[k] = choose_.of(wrong);
          }
        }
        break;
      case 8:
        if (call_.operands[kWorkspace].used) {
          if (choose_.one_in(3)) {
            call_.operands[kWorkspace].pointer = nullptr;
          } else {
            call_.workspace_bytes -=
                std::min<size_t>(call_.workspace_bytes, choose_.one_in(2) ? 1 : 1 + choose_.below(1 << 12));
          }
        }
        break;
    }
  }

  // Whether the operand's words may be read and written: another way to spoil it may have moved it.
  bool addressable(Role role) const {
    const Operand& o = call_.operands[role];
    return o.pointer != nullptr && reinterpret_cast<std::uintptr_t>(o.pointer) % 4 == 0 &&
           within_a_region(o.pointer, call_.bytes(o));
  }
  bool within_a_region(const u8* pointer, i64 bytes) const {
    return std::any_of(regions_.begin(), regions_.end(), [&](const auto& region) {
      return pointer >= region->data() && pointer + bytes <= region->end();
    });
  }

  // Whether a call that is not refused keeps to memory that there is: of two ways to spoil it the second may
  // undo what the first broke, an overlap, and leave an array where it was moved to, beyond the end of its
  // region.
  bool stays_within() const {
    return std::all_of(call_.operands.begin(), call_.operands.end(), [&](const Operand& o) {
      return !o.used || o.pointer == nullptr || o.count == 0 || within_a_region(o.pointer, call_.bytes(o));
    });
  }

  // Two arrays share bytes. Where both are read only, which is allowed, the one lies within the other.
  void overlap() {
    const Role a = any_used(), b = any_used();
    Operand& moved = call_.operands[a];
    const Operand& other = call_.operands[b];
    if (a == b || moved.pointer == nullptr || other.pointer == nullptr || moved.count == 0 ||
        other.count == 0)
      return;
    const i64 bytes = call_.bytes(moved), other_bytes = call_.bytes(other), unit = call_.element_bytes(moved);
    if (!moved.written && !other.written) {
      if (bytes <= other_bytes) moved.pointer = other.pointer;
      return;
    }
    i64 shift = 0;
    switch (choose_.below(4)) {
      case 0: break;
      case 1:
        // the first of `moved` is the last of `other`
        shift = other_bytes - std::min<i64>(unit, other_bytes);
        break;
      case 2:
        shift = -(bytes - 1) / unit * unit;  // the last of `moved` is the first of `other`
        break;
      default: shift = static_cast<i64>(choose_.below(1 << 16)) * unit % other_bytes / unit * unit;
    }
    // What says which columns are side channels, and gamma, are read before the call is refused.
    if ((a == kSide || a == kGamma) && !within_a_region(other.pointer + shift, bytes)) return;
    moved.pointer = other.pointer + shift;
  }

  // --- Judging it ---

  std::string describe() const {
    std::string text = std::string(kFunctionNames[call_.function]) + " format " +
                       std::to_string(call_.format) + " activation " + std::to_string(call_.activation) +
                       " [" + std::to_string(call_.rows) + ", " + std::to_string(call_.n) + "] side " +
                       std::to_string(call_.side_count);
    char line[96];
    std::snprintf(line, sizeof line, " eps %a workspace %zu threads %d", static_cast<double>(call_.eps),
                  call_.workspace_bytes, threads_);
    text += line;
    for (int role = 0; role < kRoles; ++role) {
      if (!call_.operands[role].used) continue;
      std::snprintf(line, sizeof line, " %s %p+%lld", kRoleNames[role],
                    static_cast<const void*>(call_.operands[role].pointer),
                    static_cast<long long>(call_.bytes(call_.operands[role])));
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

  std::string library(outgrad_status& status) {
    static constexpr int kThreads[] = {0, 2, 3, 5};
    threads_ = several_threads() ? choose_.of(kThreads) : 1;
    if (outgrad_set_threads(threads_) != OUTGRAD_OK || outgrad_get_threads() != threads_)
      return "the number of threads was not taken";
#if defined(__SSE2__)
    // The reset value; flush-to-zero with denormals-are-zero; downwards; towards zero with flush-to-zero.
    static constexpr unsigned kControls[] = {0x1f80, 0x1f80, 0x9fc0, 0x3f80, 0xff80};
    control_ = choose_.of(kControls);
#endif
    return guarded([&] { status = call_library(call_); });
  }

  std::string refused(const Violations& expected) {
    outgrad_status status = OUTGRAD_OK;
    if (std::string wrong = library(status); !wrong.empty()) return wrong;
    if (status == OUTGRAD_OK && expected.certain.empty()) return {};
    if (!expected.certain.contains(status) && !expected.open.contains(status)) {
      std::string names;
      for (const outgrad_status one : expected.certain) names += std::string(" ") + outgrad_status_name(one);
      for (const outgrad_status one : expected.open)
        names += std::string(" (") + outgrad_status_name(one) + ")";
      return std::string(outgrad_status_name(status)) + " (" +
             (status == OUTGRAD_OK ? "" : outgrad_error_message()) + ") instead of" + names;
    }
    ++tally_.refused[call_.function][static_cast<size_t>(status)];
    const std::string message = outgrad_error_message(),
                      begin = std::string(kFunctionNames[call_.function]) + ": ";
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

  // A call with the inputs' values in arrays of its own, which do not coincide, and the results of the scalar
  // code in others.
  Call scalar_results(std::vector<std::vector<u32>>& memory) const {
    Call reference = call_;
    memory.resize(kRoles);
    for (int role = 0; role < kRoles; ++role) {
      Operand& o = reference.operands[role];
      if (!o.used || o.pointer == nullptr || o.count == 0) continue;
      std::vector<u32>& words = memory[static_cast<size_t>(role)];
      words.assign(static_cast<size_t>(call_.bytes(o) + 3) / 4 + 1, 0x7fa5a5a5u);
      if (!o.written) std::memcpy(words.data(), o.pointer, static_cast<size_t>(call_.bytes(o)));
      o.pointer = reinterpret_cast<u8*>(words.data());
    }
    if (call_.format == OUTGRAD_F32) {
      call_scalar<float>(reference);
    } else if (call_.format == OUTGRAD_F16) {
      call_scalar<F16>(reference);
    } else {
      call_scalar<BF16>(reference);
    }
    return reference;
  }

  // Everything but the results is as it was, and the results are those of `reference`.
  std::string compare(const Call& reference) {
    for (const auto& region : regions_) {
      std::vector<u8> now(region->all(), region->all() + region->size());
      for (const Operand& o : call_.operands) {
        if (!o.used || !o.written || o.pointer < region->all() || o.pointer >= region->all() + region->size())
          continue;
        const auto at = o.pointer - region->all();
        std::copy_n(region->saved().begin() + at, call_.bytes(o), now.begin() + at);
      }
      if (now != region->saved()) {
        const auto at = std::mismatch(now.begin(), now.end(), region->saved().begin()).first - now.begin();
        char line[96];
        std::snprintf(line, sizeof line, "%p was written, which is no result",
                      static_cast<const void*>(region->all() + at));
        return line;
      }
    }
    for (int role = 0; role < kRoles; ++role) {
      const Operand& o = call_.operands[role];
      if (!o.used || !o.written || o.pointer == nullptr || role == kWorkspace) continue;
      for (i64 i = 0; i < o.count; ++i) {
        const auto bits = [&](const u8* array) -> u32 {
          u32 word = 0;
          if (o.element == Element::word) {
            std::memcpy(&word, array + 4 * i, 4);
            return word;
          }
          return canonical_bits(widened(o.element == Element::f32 ? OUTGRAD_F32 : call_.format, array, i));
        };
        const u32 actual = bits(o.pointer), expected = bits(reference.operands[role].pointer);
        if (actual != expected) {
          char line[128];
          std::snprintf(line, sizeof line, "%s[%lld] is %08x, %08x by the scalar code", kRoleNames[role],
                        static_cast<long long>(i), actual, expected);
          return line;
        }
      }
    }
    return {};
  }

  std::string accepted() {
    std::vector<std::vector<u32>> memory;
    const int callers_threads = omp_get_max_threads();
    omp_set_num_threads(1);
    const Call reference = scalar_results(memory);
    omp_set_num_threads(callers_threads);
    outgrad_status status = OUTGRAD_OK;
    if (std::string wrong = library(status); !wrong.empty()) return wrong;
    if (status != OUTGRAD_OK)
      return std::string(outgrad_status_name(status)) + " (" + outgrad_error_message() + ") for a good call";
    ++tally_.accepted[call_.function][static_cast<size_t>(call_.format)];
    tally_.aliased += aliased_;
    if (std::string wrong = compare(reference); !wrong.empty()) return wrong;
    if (std::string wrong = judge(reference); !wrong.empty()) return wrong;
    // the interface answers these itself
    if (call_.rows == 0 || (call_.elementwise() && call_.n == 0)) return {};
    auto kernels = kernels_of(call_.format);
    kernels.pop_back();
    for (size_t i = 0; i < kernels.size(); ++i) {
      for (const auto& region : regions_) region->restore();
      const int threads = omp_get_max_threads();
      omp_set_num_threads(several_threads() ? 2 + static_cast<int>(choose_.below(2)) : 1);
      std::string wrong = guarded([&] { call_kernels(call_, *kernels[i]); });
      omp_set_num_threads(threads);
      if (wrong.empty()) wrong = compare(reference);
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

  std::string judge(const Call& c) {
    const auto stored = static_cast<Stored>(c.format);
    const auto value = [&](Role role, i64 i) {
      return widened(c.operands[role].element == Element::stored ? c.format : OUTGRAD_F32, c.at<u8>(role), i);
    };
    const auto bit = [&](i64 i) {
      return c.operands[kMask].count > 0 && (c.at<u32>(kMask)[i / 32] >> (i % 32) & 1) != 0;
    };
    const auto where = [](const char* what, i64 i, const std::string& wrong) {
      return what + (" " + std::to_string(i)) + ": " + wrong;
    };
    i64& judged = tally_.judged[c.function];
    if (c.is(kGeluForward, kActivationForward) || c.function == kBiasForward) {
      for (const i64 i : some(c.rows * c.n, 48)) {
        const bool bias = c.function == kBiasForward;
        const float z = bias ? value(kX, i) + value(kBeta, i % c.n) : value(kX, i);
        const Activation& f = activation_of(c.activation);
        const std::string wrong = c.activation == OUTGRAD_GELU
                                      ? judge_gelu(f, stored, z, bias, value(kY, i), bit(i))
                                      : judge_forward(f, stored, z, value(kY, i), bit(i));
        if (!wrong.empty()) return where("element", i, wrong);
        ++judged;
      }
      if (c.needs_mask() && (c.rows * c.n) % 32 != 0 &&
          c.at<u32>(kMask)[c.rows * c.n / 32] >> (c.rows * c.n % 32) != 0)
        return "mask bits beyond the last are not 0";
    } else if (c.function <= kBiasBackward) {
      const FitBounds& bounds = kBounds[static_cast<size_t>(c.format)][static_cast<size_t>(c.activation)];
      const Activation& f = activation_of(c.activation);
      // x_ tells of y as it was made, not of what came to coincide with it.
      const bool of_forward = !x_.empty() && call_.operands[kY].pointer == made_y() &&
                              call_.operands[kMask].pointer == made_mask();
      for (const i64 i : some(c.rows * c.n, 16)) {
        const float* const x =
            of_forward && !std::isnan(x_[static_cast<size_t>(i)]) ? &x_[static_cast<size_t>(i)] : nullptr;
        std::string wrong =
            judge_backward(f, bounds, stored, value(kDy, i), value(kY, i), bit(i), value(kDx, i), x);
        if (!wrong.empty()) return where("element", i, wrong);
        ++judged;
      }
      if (c.function == kBiasBackward && c.rows <= 64) {
        for (const i64 j : some(c.n, 1)) {
          const auto dy = widened_all(c.format, c.at<u8>(kDy), j, c.rows, c.n),
                     y = widened_all(c.format, c.at<u8>(kY), j, c.rows, c.n);
          const auto m = std::make_unique<bool[]>(static_cast<size_t>(c.rows));
          for (i64 row = 0; row < c.rows; ++row) m[static_cast<size_t>(row)] = bit(row * c.n + j);
          std::string wrong =
              judge_bias_gradient(f, bounds, dy, y, {m.get(), static_cast<size_t>(c.rows)}, value(kDbeta, j));
          if (!wrong.empty()) return where("column", j, wrong);
        }
      }
    } else {
      return judge_norm(c);
    }
    return {};
  }

  std::string judge_norm(const Call& c) {
    const auto stored = static_cast<Stored>(c.format);
    const auto where = [](const char* what, i64 i, const std::string& wrong) {
      return what + (" " + std::to_string(i)) + ": " + wrong;
    };
    const auto n = static_cast<size_t>(c.n);
    const auto* const channels = c.at<const std::int32_t>(kSide);
    const auto is_side = std::make_unique<bool[]>(n);
    for (i64 k = 0; k < c.side_count; ++k) is_side[static_cast<size_t>(channels[k])] = true;
    for (const i64 row : some(c.rows, 2)) {
      std::string wrong;
      if (c.norm_forward()) {
        std::vector<float> x = widened_all(c.format, c.at<u8>(kX), row * c.n, c.n);
        if (c.residual()) {
          for (size_t j = 0; j < n; ++j) {
            const auto at = row * c.n + static_cast<i64>(j);
            float z = x[j] + widened(c.format, c.at<u8>(kResidual), at);
            u32 rounded = 0;
            store(c.format, reinterpret_cast<u8*>(&rounded), 0, z);
            z = widened(c.format, reinterpret_cast<const u8*>(&rounded), 0);
            if (canonical_bits(z) != canonical_bits(widened(c.format, c.at<u8>(kZ), at)))
              return where("z of row", row, std::to_string(j));
            x[j] = z;
          }
        }
        const auto y = widened_all(c.format, c.at<u8>(kY), row * c.n, c.n);
        wrong =
            judge_norm_forward({stored, c.layer(), x, c.at<float>(kGamma),
                                c.layer() ? c.at<float>(kBeta) : nullptr, c.eps, y, c.at<float>(kRstd)[row]});
      } else {
        const auto dy = widened_all(c.format, c.at<u8>(kDy), row * c.n, c.n),
                   y = widened_all(c.format, c.at<u8>(kY), row * c.n, c.n);
        const auto dx = widened_all(c.format, c.at<u8>(kDx), row * c.n, c.n);
        const auto next =
            c.residual() ? widened_all(c.format, c.at<u8>(kDzNext), row * c.n, c.n) : std::vector<float>{};
        std::vector<float> x_hat(n);
        for (i64 k = 0; k < c.side_count; ++k)
          x_hat[static_cast<size_t>(channels[k])] = c.at<float>(kXHat)[row * c.side_count + k];
        wrong = judge_norm_backward({stored, c.layer(), dy, y, c.residual() ? next.data() : nullptr,
                                     c.at<float>(kGamma), c.layer() ? c.at<float>(kBeta) : nullptr,
                                     x_hat.data(), is_side.get(), c.at<float>(kRstd)[row], dx});
      }
      if (!wrong.empty()) return where("row", row, wrong);
      ++tally_.judged[c.function];
    }
    if (!c.norm_backward()) return {};
    for (const i64 j : some(c.n, 3)) {
      const bool side = is_side[static_cast<size_t>(j)];
      const auto dy = widened_all(c.format, c.at<u8>(kDy), j, c.rows, c.n);
      auto from = widened_all(c.format, c.at<u8>(kY), j, c.rows, c.n);
      const auto k = std::find(channels, channels + c.side_count, j) - channels;
      for (i64 row = 0; side && row < c.rows; ++row)
        from[static_cast<size_t>(row)] = c.at<float>(kXHat)[row * c.side_count + k];
      const float gamma = c.at(kGamma) ? c.at<float>(kGamma)[j] : 1.0f,
                  beta = c.layer() && c.at(kBeta) ? c.at<float>(kBeta)[j] : 0.0f;
      std::string wrong;
      if (c.at(kDgamma))
        wrong = judge_column(dy, from.data(), beta, side, side ? 1.0f : gamma, c.at<float>(kDgamma)[j]);
      if (wrong.empty() && c.at(kDbeta))
        wrong = judge_column(dy, nullptr, 0, false, 1.0f, c.at<float>(kDbeta)[j]);
      if (!wrong.empty()) return where("column", j, wrong);
    }
    return {};
  }

  // Where y and mask of a backward were made: regions are in the order of roles, and before y and mask comes
  // no other array of a backward.
  const u8* made_y() { return regions_[0]->data(); }
  const u8* made_mask() { return regions_[1]->data(); }

  // --- Functions without arrays ---

  std::string workspace_query() {
    choose_shape();
    const bool norm = call_.function == kNormWorkspace;
    if (choose_.one_in(3)) {
      static constexpr i64 kSizes[] = {
          -1,           0,           std::numeric_limits<i64>::min(), std::numeric_limits<i64>::max(),
          i64{1} << 32, i64{1} << 50};
      (choose_.one_in(2) ? call_.n : call_.rows) = choose_.of(kSizes);
      if (choose_.one_in(3)) call_.rows = call_.n = i64{1} << 32;
    }
    if (choose_.one_in(8)) call_.format = 3;
    constexpr size_t kUntouched = 0x5eed;
    size_t bytes = kUntouched;
    size_t* const out = choose_.one_in(8) ? nullptr : &bytes;
    std::set<outgrad_status> expected;
    if (call_.format == 3) expected.insert(OUTGRAD_ERROR_FORMAT);
    if (!shape_holds(call_)) expected.insert(OUTGRAD_ERROR_SIZE);
    if (out == nullptr) expected.insert(OUTGRAD_ERROR_NULL_POINTER);
    const outgrad_status status = (norm ? outgrad_norm_backward_workspace : outgrad_bias_backward_workspace)(
        call_.format, call_.rows, call_.n, out);
    if (expected.empty() ? status != OUTGRAD_OK : !expected.contains(status))
      return describe() + ": " + outgrad_status_name(status);
    if (status != OUTGRAD_OK) {
      ++tally_.refused[call_.function][static_cast<size_t>(status)];
      if (!std::string(outgrad_error_message()).starts_with(kFunctionNames[call_.function]))
        return describe() + ": " + outgrad_error_message();
      return bytes == kUntouched ? "" : describe() + ": refused and yet written";
    }
    ++tally_.accepted[call_.function][static_cast<size_t>(call_.format)];
    for (const c::FormatKernels* kernels : kernels_of(call_.format)) {
      const i64 words = (norm ? kernels->norm_workspace : kernels->bias_workspace)(call_.rows, call_.n);
      if (words < 0 || static_cast<size_t>(words) * 4 != bytes)
        return describe() + ": " + std::to_string(bytes) + " bytes of workspace";
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
    if (!given(outgrad_forward_variant(format), known_format)) return "outgrad_forward_variant";
    if (!given(outgrad_backward_variant(format), known_format)) return "outgrad_backward_variant";
    if (!given(outgrad_status_name(status), true)) return "outgrad_status_name";
    if (!given(outgrad_version(), true) || !given(outgrad_instruction_set(), true)) return "outgrad_version";
    const std::int32_t before = outgrad_get_threads();
    const outgrad_status taken = outgrad_set_threads(threads);
    if (taken != (threads < 0 ? OUTGRAD_ERROR_VALUE : OUTGRAD_OK)) return "outgrad_set_threads";
    if (outgrad_get_threads() != (threads < 0 ? before : threads)) return "outgrad_get_threads";
    outgrad_set_threads(0);
    ++(taken == OUTGRAD_OK ? tally_.accepted[kQueries][static_cast<size_t>(call_.format)]
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
  Call call_;
  std::vector<std::unique_ptr<Region>> regions_;
  std::vector<std::int32_t> side_;
  std::vector<float> x_;  // of which y and mask were made
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
