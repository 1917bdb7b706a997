// A libcuda that runs on the host, for tests of the tuner: OUTGRAD_LIBCUDA names it. It has one device, an sm_90, whose kernels compute what
// the host's scalar kernels compute, found by the names in their mangled symbols; machine code is never looked at.
//
// OUTGRAD_STAND_IN_PLANTS=THREADS:WHAT,..: launches with blocks of THREADS threads go wrong. WHAT: bit (one wrong bit), write (one element
// beyond the output), fault (the launch ends in an error and so does every later call), crash (the process dies), hang, memory (the device
// is out of memory), late (only the last of 1000 elements or more is wrong).
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>

#include "autotune/variant_abi.h"
#include "kernels/fits.h"

namespace {

using namespace outgrad;
using kernels::BF16;
using kernels::F16;

constexpr int kSuccess = 0, kOutOfMemory = 2, kInvalid = 1, kNoDevice = 101, kIllegalAddress = 700;
constexpr kernels::CpuSchedule kScalar{.threads = 1};

int sticky = kSuccess;
std::map<void*, std::chrono::steady_clock::time_point> events;

struct Kernel {
  std::string symbol;
};

std::string plant_of(unsigned threads) {
  const char* plants = std::getenv("OUTGRAD_STAND_IN_PLANTS");
  const std::string text = plants == nullptr ? "" : "," + std::string(plants) + ",", key = "," + std::to_string(threads) + ":";
  const std::size_t at = text.find(key);
  return at == std::string::npos ? "" : text.substr(at + key.size(), text.find(',', at + 1) - at - key.size());
}

std::string mangled(const std::string& name) { return std::to_string(name.size()) + name; }

std::string type_of(const char* name) {  // "GeluF32" for "gelu_f32"
  std::string type;
  bool capital = true;
  for (const char* c = name; *c != '\0'; ++c) {
    if (*c != '_') type += capital ? static_cast<char>(std::toupper(static_cast<unsigned char>(*c))) : *c;
    capital = *c == '_';
  }
  return type;
}

template <class T>
bool forward(const std::string& symbol, const char* type, const autotune::Arguments& a) {
  if (symbol.find(type) == std::string::npos) return false;
  autotune::run_forward<kernels::generated::GeluForward, T, kScalar>(a);
  return true;
}

// Whether the symbol is of a kernel that is known.
bool compute(const std::string& symbol, const autotune::Arguments& a) {
  if (symbol.find(mangled("gelu_forward")) != std::string::npos) {
    return forward<BF16>(symbol, "4BF16", a) || forward<F16>(symbol, "3F16", a) || forward<float>(symbol, "GeluForwardEf", a);
  }
  bool known = false;
  kernels::for_each_fit([&](auto fit) {
    using Fit = decltype(fit);
    constexpr std::string_view kFormat = Fit::kFormat;
    if constexpr (std::string_view(Fit::kActivation) == "gelu" && (kFormat == "f32" || kFormat == "f16" || kFormat == "bf16")) {
      if (symbol.find(mangled(type_of(Fit::kName)) + "E") == std::string::npos) return;
      using T = std::conditional_t<kFormat == "f32", float, std::conditional_t<kFormat == "f16", F16, BF16>>;
      autotune::run_backward<Fit, T, kScalar>(a);
      known = true;
    }
  });
  return known;
}

int size_of(const std::string& symbol) { return symbol.find("3F16E") != std::string::npos || symbol.find("4BF16E") != std::string::npos ? 2 : 4; }

}  // namespace

extern "C" {

int cuInit(unsigned) { return kSuccess; }
int cuGetErrorName(int error, const char** name) {
  *name = error == kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY" : error == kIllegalAddress ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_INVALID_VALUE";
  return kSuccess;
}
int cuDriverGetVersion(int* version) { return *version = 13000, kSuccess; }
int cuDeviceGetCount(int* count) { return *count = 1, kSuccess; }
int cuDeviceGet(int* device, int index) { return *device = index, index == 0 ? kSuccess : kNoDevice; }
int cuDeviceGetName(char* name, int bytes, int) {
  std::strncpy(name, "Stand-in GPU", static_cast<std::size_t>(bytes));
  return kSuccess;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  static const std::map<int, int> kValues = {{13, 1980000}, {16, 2}, {36, 1600000}, {37, 128}, {38, 1 << 20}, {39, 2048}, {75, 9}, {76, 0}, {81, 228 << 10}, {97, 227 << 10}, {106, 32}};
  const auto found = kValues.find(attribute);
  if (found == kValues.end()) return kInvalid;
  *value = found->second;
  return kSuccess;
}
int cuDeviceTotalMem_v2(std::size_t* bytes, int) { return *bytes = std::size_t{1} << 30, kSuccess; }
int cuDevicePrimaryCtxRetain(void** context, int) { return *context = &sticky, kSuccess; }
int cuDevicePrimaryCtxRelease_v2(int) { return kSuccess; }
int cuCtxSetCurrent(void*) { return kSuccess; }
int cuCtxSynchronize() { return sticky; }
int cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* total) { return *free_bytes = *total = std::size_t{1} << 30, sticky; }
int cuMemAlloc_v2(std::uint64_t* address, std::size_t bytes) {
  void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  *address = reinterpret_cast<std::uint64_t>(memory);
  return memory == nullptr ? kOutOfMemory : sticky;
}
int cuMemFree_v2(std::uint64_t address) { return std::free(reinterpret_cast<void*>(address)), sticky; }
int cuMemcpyHtoD_v2(std::uint64_t to, const void* from, std::size_t bytes) { return std::memcpy(reinterpret_cast<void*>(to), from, bytes), sticky; }
int cuMemcpyDtoH_v2(void* to, std::uint64_t from, std::size_t bytes) { return std::memcpy(to, reinterpret_cast<void*>(from), bytes), sticky; }
int cuMemcpyDtoDAsync_v2(std::uint64_t to, std::uint64_t from, std::size_t bytes, void*) {
  return std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes), sticky;
}
int cuMemsetD8Async(std::uint64_t to, unsigned char byte, std::size_t bytes, void*) { return std::memset(reinterpret_cast<void*>(to), byte, bytes), sticky; }
int cuModuleLoadData(void** module, const void* image) { return *module = const_cast<void*>(image), sticky; }
int cuModuleGetFunction(void** function, void*, const char* name) { return *function = new Kernel{name}, sticky; }
int cuEventCreate(void** event, unsigned) { return *event = new char, kSuccess; }
int cuEventDestroy_v2(void* event) { return delete static_cast<char*>(event), kSuccess; }
int cuEventRecord(void* event, void*) { return events[event] = std::chrono::steady_clock::now(), sticky; }
int cuEventSynchronize(void*) { return sticky; }
int cuEventElapsedTime(float* milliseconds, void* start, void* stop) {
  *milliseconds = std::chrono::duration<float, std::milli>(events[stop] - events[start]).count();
  return sticky;
}

int cuLaunchKernel(void* function, unsigned, unsigned, unsigned, unsigned threads, unsigned, unsigned, unsigned, void*, void** parameters, void**) {
  if (sticky != kSuccess) return sticky;
  const std::string& symbol = static_cast<Kernel*>(function)->symbol;
  const std::string plant = plant_of(threads);
  if (plant == "fault") return sticky = kIllegalAddress, kSuccess;
  if (plant == "crash") std::raise(SIGSEGV);
  if (plant == "memory") return kOutOfMemory;
  while (plant == "hang") ::pause();
  const auto address = [&](int k) { return *static_cast<std::uint64_t*>(parameters[k]); };
  autotune::Arguments a;
  const bool is_forward = symbol.find("gelu_forward") != std::string::npos;
  const int arrays = is_forward ? 3 : 4;  // x, y, mask or dy, y, mask, dx; then n
  for (int k = 0; k < arrays; ++k) a.array[k] = reinterpret_cast<void*>(address(k));
  a.cols = static_cast<kernels::i64>(address(arrays));
  if (!compute(symbol, a)) return kInvalid;
  auto* out = static_cast<unsigned char*>(a.array[is_forward ? 1 : 3]);
  const std::size_t bytes = static_cast<std::size_t>(a.elements() * size_of(symbol));
  if (a.elements() > 0 && plant == "bit") out[0] ^= 1;
  if (a.elements() > 0 && plant == "write") out[bytes] ^= 1;
  if (a.elements() >= 1000 && plant == "late") out[bytes - 1] ^= 0x40;
  return kSuccess;
}
}
