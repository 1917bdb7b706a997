// Stimuli, guarded arrays, comparison.
#include "autotune/verify.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "autotune/timing.h"
#include "kernels/formats.h"
#include "kernels/host/errors.h"

namespace outgrad::autotune {
namespace {

using kernels::i64;
using kernels::u16;
using kernels::u32;

// Bytes that end where an unmapped page begins. The bytes before them hold a pattern that a stray write would destroy.
class GuardedArray {
 public:
  explicit GuardedArray(std::size_t size) : size_(size) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    mapped_ = (size + kFront + page - 1) / page * page + page;
    void* memory = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw kernels::IoError("verification arrays", "map", errno);
    base_ = static_cast<std::byte*>(memory);
    if (::mprotect(base_ + mapped_ - page, page, PROT_NONE) != 0) throw kernels::IoError("verification arrays", "protect", errno);
    data_ = base_ + mapped_ - page - size;
    std::fill(data_ - kFront, data_, kPattern);
  }
  GuardedArray(const GuardedArray&) = delete;
  GuardedArray& operator=(const GuardedArray&) = delete;
  ~GuardedArray() { ::munmap(base_, mapped_); }

  void assign(const void* bytes) {
    if (size_ > 0) std::memcpy(data_, bytes, size_);
  }
  std::byte* data() const { return data_; }
  bool front_intact() const {
    return std::all_of(data_ - kFront, data_, [](std::byte b) { return b == kPattern; });
  }
  // A copy of the content at the time, for arrays that may not change.
  bool equals(const void* bytes) const { return size_ == 0 || std::memcmp(data_, bytes, size_) == 0; }

 private:
  static constexpr std::size_t kFront = 64;  // one vector of the widest kind
  static constexpr std::byte kPattern{0xa5};
  std::size_t size_, mapped_ = 0;
  std::byte *base_ = nullptr, *data_ = nullptr;
};

// The caller's flush-to-zero and denormals-are-zero, which a kernel has to ignore and to leave as they were.
class FlushToZero {
 public:
#if defined(__SSE2__)
  explicit FlushToZero(bool on) : saved_(_mm_getcsr()) {
    if (on) _mm_setcsr(saved_ | kBits);
    expected_ = _mm_getcsr() & kBits;
  }
  ~FlushToZero() { _mm_setcsr(saved_); }
  bool kept() const { return (_mm_getcsr() & kBits) == expected_; }

 private:
  static constexpr unsigned kBits = 0x8040;  // FTZ, DAZ
  unsigned saved_, expected_;
#else
  explicit FlushToZero(bool) {}
  bool kept() const { return true; }
#endif
};

template <class T>
u32 bits_at(const std::byte* array, i64 i) {
  T value;
  std::memcpy(&value, array + static_cast<std::size_t>(i) * sizeof(T), sizeof(T));
  return kernels::canonical_bits(value);
}

u32 canonical_at(FormatId format, const std::byte* array, i64 i) {
  switch (format) {
    case FormatId::kF32:
      return bits_at<float>(array, i);
    case FormatId::kF16:
      return bits_at<kernels::F16>(array, i);
    default:
      return bits_at<kernels::BF16>(array, i);
  }
}

// The patterns of the argument (y or x) that a format is tried on; a power of two of them, so that arrays come out aligned.
std::vector<u32> argument_patterns(FormatId format, std::uint64_t& random) {
  std::vector<u32> patterns;
  if (format != FormatId::kF32) {
    for (u32 bits = 0; bits < 0x10000u; ++bits) patterns.push_back(bits);
  } else {
    constexpr std::size_t kPatterns = 1 << 16;
    for (u32 exponent = 0; exponent < 0x200u; ++exponent) {  // sign and exponent
      const u32 base = exponent << 23;
      patterns.insert(patterns.end(), {base, base | 1u, base | 0x7fffffu, base | 0x400000u});
      for (int i = 0; i < 44; ++i) patterns.push_back(base | static_cast<u32>(next_random(random) & 0x7fffffu));
    }
    // The branch point is the hard place: 4096 neighbours on each side of GELU's minimum in y and of its abscissa in x.
    for (const float centre : {-0.16997121f, -0.75179154f})
      for (int i = -4096; i < 4096; ++i) patterns.push_back(kernels::bits_of(centre) + static_cast<u32>(i));
    while (patterns.size() < kPatterns) {  // where the polynomials are: uniform in value
      const double unit = static_cast<double>(next_random(random) >> 11) * 0x1p-53;
      patterns.push_back(kernels::bits_of(static_cast<float>(unit * 16 - 8)));
    }
  }
  // Neighbouring lanes must differ, or a lookup that mixes lanes up would pass.
  for (std::size_t i = patterns.size(); i > 1; --i) std::swap(patterns[i - 1], patterns[next_random(random) % i]);
  return patterns;
}

void store(std::vector<std::byte>& array, std::size_t i, int size, u32 bits) {
  std::memcpy(array.data() + i * static_cast<std::size_t>(size), &bits, static_cast<std::size_t>(size));  // little-endian
}

u32 one(FormatId format) { return format == FormatId::kF32 ? 0x3f800000u : format == FormatId::kF16 ? 0x3c00u : 0x3f80u; }

}  // namespace

Verifier::Verifier(const Problem& problem, VariantFunction reference, std::uint64_t seed) : problem_(problem) {
  const bool backward = problem.kernel == KernelId::kGeluBackward;
  const int size = bytes_of(problem.format);
  const std::vector<u32> patterns = argument_patterns(problem.format, seed);
  const std::size_t n = backward ? 2 * patterns.size() : patterns.size();
  elements_ = static_cast<long long>(n);
  first_.resize(n * static_cast<std::size_t>(size));
  expected_.resize(first_.size());
  mask_.assign((n + 31) / 32, 0);
  if (backward) {
    second_.resize(first_.size());
    // The second half repeats the patterns with the opposite mask bit. dy is 1 for half of them, so that g itself is compared.
    for (std::size_t i = 0; i < n; ++i) {
      store(second_, i, size, patterns[i % patterns.size()]);
      const std::uint64_t random = next_random(seed);
      store(first_, i, size, (random & 1) != 0 ? one(problem.format) : static_cast<u32>(random >> 32) >> (32 - 8 * size));
    }
    for (std::size_t word = 0; word < mask_.size() / 2; ++word) {
      mask_[word] = static_cast<u32>(next_random(seed));
      mask_[word + mask_.size() / 2] = ~mask_[word];
    }
  } else {
    for (std::size_t i = 0; i < n; ++i) store(first_, i, size, patterns[i]);
  }
  reference(arguments(first_.data(), second_.data(), mask_.data(), expected_.data(), elements_));
}

Arguments Verifier::arguments(const void* first, const void* second, void* mask, void* out, i64 length) const {
  if (problem_.kernel == KernelId::kGeluForward) return {{const_cast<void*>(first), out, mask}, 1, length};
  return {{const_cast<void*>(first), const_cast<void*>(second), mask, out}, 1, length};
}

std::vector<Verifier::Call> Verifier::calls(int block_elements) const {
  std::vector<Call> list;
  for (const long long length : {0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 129, 255, 1000, 1023, 1025, 4099})
    list.push_back({length, false, false});
  for (const long long length : {block_elements - 1LL, block_elements + 1LL, 2LL * block_elements + 33})
    if (length < elements_) list.push_back({length, false, false});
  list.push_back({elements_ - 1, false, false});
  list.push_back({elements_, false, true});
  if (problem_.kernel == KernelId::kGeluBackward) list.push_back({elements_, true, false});
  return list;
}

long long Verifier::checked(int block_elements) const {
  long long sum = 0;
  for (const Call& call : calls(block_elements)) sum += call.length;
  return sum;
}

std::optional<std::string> Verifier::mismatch(const std::function<void(const Arguments&)>& function, int block_elements) const {
  for (const Call& call : calls(block_elements))
    if (auto difference = run(function, call)) return difference;
  return std::nullopt;
}

std::optional<std::string> Verifier::run(const std::function<void(const Arguments&)>& function, const Call& call) const {
  const bool backward = problem_.kernel == KernelId::kGeluBackward;
  const std::size_t bytes = static_cast<std::size_t>(call.length) * static_cast<std::size_t>(bytes_of(problem_.format));
  const std::size_t words = static_cast<std::size_t>(call.length + 31) / 32;
  GuardedArray first(bytes), second(backward ? bytes : 0), mask(words * sizeof(u32)), separate(call.in_place ? 0 : bytes);
  first.assign(first_.data());
  second.assign(second_.data());
  if (backward) mask.assign(mask_.data());
  std::byte* out = call.in_place ? first.data() : separate.data();

  const std::string place = " (" + std::to_string(call.length) + " elements" + (call.in_place ? ", in place" : "") +
                            (call.flush_to_zero ? ", caller flushes to zero" : "") + ")";
  {
    const FlushToZero environment(call.flush_to_zero);
    function(arguments(first.data(), second.data(), mask.data(), out, call.length));
    if (!environment.kept()) return "the caller's floating-point environment is not restored" + place;
  }
  for (const GuardedArray* array : {&first, &second, &mask, &separate})
    if (!array->front_intact()) return "wrote before the start of an array" + place;
  if (backward && (!second.equals(second_.data()) || !mask.equals(mask_.data()) || (!call.in_place && !first.equals(first_.data()))))
    return "wrote to an input" + place;

  const auto differs = [&](i64 i, const char* what, u32 got, u32 want) {
    char text[160];
    std::snprintf(text, sizeof text, "%s[%lld]: got 0x%x, want 0x%x for 0x%x", what, static_cast<long long>(i), got, want,
                  canonical_at(problem_.format, backward ? second_.data() : first_.data(), i));
    return text + place;
  };
  for (i64 i = 0; i < call.length; ++i) {
    const u32 got = canonical_at(problem_.format, out, i), want = canonical_at(problem_.format, expected_.data(), i);
    if (got != want) return differs(i, backward ? "dx" : "y", got, want);
    if (backward) continue;
    u32 word;
    std::memcpy(&word, mask.data() + static_cast<std::size_t>(i / 32) * sizeof(u32), sizeof word);
    const u32 bit = word >> (i % 32) & 1u, wanted = mask_[static_cast<std::size_t>(i / 32)] >> (i % 32) & 1u;
    if (bit != wanted) return differs(i, "mask", bit, wanted);
  }
  return std::nullopt;
}

}  // namespace outgrad::autotune
