// Stimuli, guarded arrays, comparison.
#include "autotune/measure/verify.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <memory>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "kernels/formats.h"
#include "kernels/stores/code.h"
#include "kernels/support/errors.h"
#include "kernels/support/random.h"

namespace outgrad::autotune {
namespace {

using kernels::i64;
using kernels::u16;
using kernels::u32;
using kernels::u64;

// Bytes that end where an unmapped page begins. The bytes before them hold a pattern that a stray write would
// destroy.
class GuardedArray {
 public:
  explicit GuardedArray(std::size_t size) : size_(size) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    mapped_ = (size + kFront + page - 1) / page * page + page;
    void* memory = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw kernels::IoError("verification arrays", "map", errno);
    base_ = static_cast<std::byte*>(memory);
    if (::mprotect(base_ + mapped_ - page, page, PROT_NONE) != 0)
      throw kernels::IoError("verification arrays", "protect", errno);
    data_ = base_ + mapped_ - page - size;
    std::fill(data_ - kFront, data_, kPattern);
  }
  GuardedArray(const GuardedArray&) = delete;
  GuardedArray& operator=(const GuardedArray&) = delete;
  ~GuardedArray() { ::munmap(base_, mapped_); }

  void assign(const void* bytes) {
    if (size_ > 0) std::memcpy(data_, bytes, size_);
  }
  void fill(std::byte value) { std::fill(data_, data_ + size_, value); }
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

// The bits of one element, NaNs made one.
u32 canonical_at(const Operand& operand, FormatId format, const std::byte* array, i64 i) {
  if (operand.element == Element::kMaskWord) {
    u32 word;
    std::memcpy(&word, array + static_cast<std::size_t>(i) * sizeof word, sizeof word);
    return word;
  }
  if (operand.element == Element::kByte) return std::to_integer<u32>(array[i]);
  return with_type(operand.element == Element::kF32 ? FormatId::kF32 : format,
                   [&]<class T>(T) { return bits_at<T>(array, i); });
}

// The patterns of the argument (y or x) that a format is tried on; a power of two of them, so that arrays
// come out aligned.
std::vector<u32> argument_patterns(FormatId format, std::uint64_t& random) {
  std::vector<u32> patterns;
  if (format != FormatId::kF32) {
    for (u32 bits = 0; bits < 0x10000u; ++bits) patterns.push_back(bits);
  } else {
    constexpr std::size_t kPatterns = 1 << 16;
    for (u32 exponent = 0; exponent < 0x200u; ++exponent) {  // sign and exponent
      const u32 base = exponent << 23;
      patterns.insert(patterns.end(), {base, base | 1u, base | 0x7fffffu, base | 0x400000u});
      for (int i = 0; i < 44; ++i)
        patterns.push_back(base | static_cast<u32>(kernels::next_random(random) & 0x7fffffu));
    }
    // The branch point is the hard place: 4096 neighbours on each side of GELU's minimum in y and of its
    // abscissa in x.
    for (const float centre : {-0.16997121f, -0.75179154f})
      for (int i = -4096; i < 4096; ++i) patterns.push_back(kernels::bits_of(centre) + static_cast<u32>(i));
    while (patterns.size() < kPatterns) {  // where the polynomials are: uniform in value
      const double unit = static_cast<double>(kernels::next_random(random) >> 11) * 0x1p-53;
      patterns.push_back(kernels::bits_of(static_cast<float>(unit * 16 - 8)));
    }
  }
  // Neighbouring lanes must differ, or a lookup that mixes lanes up would pass.
  kernels::shuffle(patterns, random);
  return patterns;
}

u32 narrowed(FormatId format, float value) {
  if (format == FormatId::kF32) return kernels::bits_of(value);
  return format == FormatId::kF16 ? kernels::narrow<kernels::F16>(value).bits
                                  : kernels::narrow<kernels::BF16>(value).bits;
}

double uniform(std::uint64_t& random) {
  return static_cast<double>(kernels::next_random(random) >> 11) * 0x1p-53;
}
double normal(std::uint64_t& random) {  // near enough: four uniform terms, of variance 1/12 each
  return (uniform(random) + uniform(random) + uniform(random) + uniform(random) - 2) * 1.7320508075688772;
}

// The first `begin` bytes again and again.
void repeat(std::vector<std::byte>& array, std::size_t begin) {
  for (std::size_t done = begin; done < array.size(); done += begin)
    std::memcpy(array.data() + done, array.data(), std::min(begin, array.size() - done));
}

// What makes a row special, one kind after the other.
float special_value(int kind, bool chosen, float plain, FormatId format) {
  const float least = format == FormatId::kF16 ? 0x1p-24f : format == FormatId::kBf16 ? 0x1p-133f : 0x1p-149f;
  switch (kind) {
    case 0: return chosen ? INFINITY : plain;
    case 1: return chosen ? NAN : plain;
    case 2:  // subnormals, all of them
      return plain * 3 * least;
    case 3: return std::copysign(0.0f, plain);
    case 4:  // no variance
      return 1.5f;
    default:  // far apart in size
      return chosen ? 0x1p14f : plain;
  }
}
constexpr int kSpecialKinds = 6;
// How many rows on the next special one is: plain rows lie between them, and yet all kinds are to be had
// where there is room.
i64 special_every(i64 rows) { return rows < 4 * kSpecialKinds ? 2 : 4; }

// A column's gamma has either sign, and a few are so small that their reciprocal is barely finite.
float gamma_of(i64 j, std::uint64_t& random) {
  const double size = 0.25 + 2 * uniform(random), sign = kernels::next_random(random) % 2 == 0 ? 1 : -1;
  if (j % 16 == 9) return static_cast<float>(sign * 0x1p-30 * size);
  if (j % 64 == 35) return static_cast<float>(sign * 0x1p-127);  // subnormal, its reciprocal 2^127
  return static_cast<float>(sign * size);
}

float plain_value(Content content, std::uint64_t& random) {
  switch (content) {
    case Content::kActivation: {
      const double x = 2 * normal(random);
      return static_cast<float>(0.5 * x * (1 + std::erf(x * std::sqrt(0.5))));
    }
    case Content::kDy:
    case Content::kDzNext: return static_cast<float>(2 * uniform(random) - 1);
    case Content::kRstd: return static_cast<float>(0.1 + 3 * uniform(random));
    case Content::kBeta:
    case Content::kBias: return static_cast<float>(uniform(random) - 0.5);
    default: return static_cast<float>(normal(random));
  }
}

Problem coded(const Problem& problem, int bits, std::optional<u64> seed) {
  Problem of_kind = problem;
  of_kind.code_bits = bits, of_kind.code_seed = seed;
  return of_kind;
}

bool is_argument(Content content) { return content == Content::kX || content == Content::kActivation; }

}  // namespace

Verifier::Verifier(const Problem& problem, VariantFunction reference, std::uint64_t seed)
    : problem_(problem), reference_(reference), seed_(seed) {
  if (!kernels::is_norm(problem.kernel)) patterns_ = argument_patterns(problem.format, seed_);
  const auto count = static_cast<i64>(patterns_.size());
  // With both mask values, where the mask is given.
  const bool masked = std::any_of(operands(problem.kernel).begin(), operands(problem.kernel).end(),
                                  [](const Operand& o) { return o.content == Content::kMask; });
  const i64 all = masked ? 2 * count : count;
  constexpr i64 kStreamedBytes = i64{2} << 20;  // outputs as large are streamed (kernels/host)
  const i64 streamed = kStreamedBytes / bytes_of(problem.format);
  const auto everywhere = [](Case& c) { c.aliased = c.flushed = true; };
  if (!problem.over_rows()) {
    for (const Problem& kind : with_codes()) {
      const auto add = [&](i64 length) -> Case& {
        return cases_.emplace_back(case_of(kind.sized(1, length), Fill::kPatterns));
      };
      for (const i64 length :
           {0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 129, 255, 1000, 1023, 1025, 4099})
        add(length);
      add(all - 1);
      everywhere(add(all));
      // With codes of 3 bits too, exact and dithered: they lie across the bounds of bytes.
      if (kind.code_bits == problem.code_bits || (kind.code_bits == 3 && kind.code_seed != u64{0}))
        add(streamed).aliased = true;
    }
    return;
  }
  const auto add = [&](i64 rows, i64 cols, Fill fill, Absent absent = Absent::kNone) -> Case& {
    return cases_.emplace_back(case_of(problem_.sized(rows, cols), fill, absent));
  };
  // Shorter and longer than a vector, and than a chunk (8), a step (256) and a group (16384) of the sums over
  // a row (kernels/reduce.h); whole and broken vectors and cache lines.
  add(0, 8, Fill::kPlain);
  add(1, 1, Fill::kPlain);
  add(3, 7, Fill::kPlain);
  add(5, 8, Fill::kSpecial);
  add(7, 16, Fill::kPlain);
  add(9, 17, Fill::kPlain, Absent::kSecond);
  add(29, 255, Fill::kSpecial, Absent::kInputs);
  everywhere(add(27, 256, Fill::kSpecial));
  add(13, 1000, Fill::kPlain);
  add(11, 1024, Fill::kPlain, Absent::kOutputs);
  everywhere(add(33, 1025, Fill::kSpecial));
  add(3, 4096 + 8, Fill::kPlain);
  add(2, 16384 + 16, Fill::kPlain);
  add(2051, 8, Fill::kPlain);  // more rows than any number of tasks
  constexpr i64 kWide = 1024;
  if (problem.cols > 0) {  // in every way: code that is made for these columns may take few others
    constexpr i64 kMostElements = i64{1} << 24;
    const i64 rows = std::clamp<i64>(kMostElements / problem.cols, 1, 2 * kSpecialKinds);
    add(rows, problem.cols, Fill::kPlain);
    everywhere(add(rows, problem.cols, Fill::kSpecial));
    add(1, problem.cols, Fill::kPlain, Absent::kInputs);
    add(1, problem.cols, Fill::kPlain, Absent::kOutputs);
  }
  if (count > 0) add((all + kWide - 1) / kWide, kWide, Fill::kPatterns);
  add((streamed + kWide - 1) / kWide, kWide, Fill::kPlain).aliased = true;
}

Verifier::Bytes Verifier::filled(const Operand& operand, const Problem& problem, Fill fill) const {
  Bytes array(problem.array_bytes(operand));
  if (operand.content == Content::kResult) return array;
  std::uint64_t random = seed_ + 1 + static_cast<std::uint64_t>(operand.content);
  const bool matrix = operand.extent == Extent::kElements;
  const FormatId format = operand.element == Element::kFormat ? problem.format : FormatId::kF32;
  const int size = problem.element_bytes(operand);
  const auto half = static_cast<i64>(patterns_.size());
  // Large arrays repeat themselves, at places that no row, vector or task knows: a prime.
  constexpr i64 kPeriod = 10'007;
  const i64 count = problem.count_of(operand),
            drawn_count = fill == Fill::kPlain && matrix ? std::min(count, kPeriod) : count;
  for (i64 i = 0; i < drawn_count; ++i) {
    u32 bits;
    if (operand.content == Content::kMask) {
      // after them the patterns come again, with the opposite bits
      const i64 words = std::max<i64>(half / 32, 1);
      std::uint64_t drawn = random + static_cast<std::uint64_t>(i % words);
      bits = static_cast<u32>(kernels::next_random(drawn) >> 32);
      if (i / words % 2 == 1) bits = ~bits;
    } else if (operand.content == Content::kCodes) {
      bits = static_cast<u32>(kernels::next_random(random) >> 56);
    } else if (fill == Fill::kPatterns && matrix && is_argument(operand.content)) {
      bits = patterns_[static_cast<std::size_t>(i % half)];
    } else if (fill == Fill::kPatterns && matrix) {  // dy: 1 for half of them, so that g itself is compared
      const std::uint64_t drawn = kernels::next_random(random);
      bits = (drawn & 1) != 0 ? narrowed(format, 1) : static_cast<u32>(drawn >> 32) >> (32 - 8 * size);
    } else {
      float value =
          operand.content == Content::kGamma ? gamma_of(i, random) : plain_value(operand.content, random);
      const i64 row = matrix ? i / problem.cols : operand.extent == Extent::kRows ? i : 0;
      const i64 every = special_every(problem.rows);
      if (fill == Fill::kSpecial && operand.extent != Extent::kColumns && row % every == every - 1) {
        // Other contents are special in the same rows in other ways.
        const int kind = static_cast<int>((row / every + static_cast<i64>(operand.content)) % kSpecialKinds);
        value = special_value(
            kind, !matrix || i % problem.cols == (3 * row + static_cast<i64>(operand.content)) % problem.cols,
            value, format);
      }
      bits = narrowed(format, value);
    }
    // little-endian
    std::memcpy(array.data() + static_cast<std::size_t>(i) * static_cast<std::size_t>(size), &bits,
                static_cast<std::size_t>(size));
  }
  if (drawn_count < count)
    repeat(array, static_cast<std::size_t>(drawn_count) * static_cast<std::size_t>(size));
  return array;
}

std::vector<Problem> Verifier::with_codes() const {
  if (!kernels::has_codes(problem_.kernel)) return {problem_};
  std::vector<Problem> kinds;
  for (int bits = 1; bits <= kernels::kMostCodeBits; ++bits) {
    kinds.push_back(coded(problem_, bits, std::nullopt));
    if (kernels::code_bits_hold(bits, true))
      for (const u64 seed : {u64{0}, static_cast<u64>(seed_)}) kinds.push_back(coded(problem_, bits, seed));
  }
  return kinds;
}

Verifier::Case Verifier::case_of(const Problem& problem, Fill fill, Absent absent) const {
  const std::span<const Operand> all = operands(problem.kernel);
  Case c{problem, {}, {}};
  // Beyond all patterns with both mask values an elementwise kernel does the same again, but for dithers.
  const i64 period = 2 * static_cast<i64>(patterns_.size());
  if (!problem.over_rows() && problem.cols > period && !problem.code_seed) {
    c = case_of(problem.sized(1, period), fill, absent);
    c.problem = problem;
    for (std::size_t k = 0; k < all.size(); ++k) {
      const std::size_t bytes = c.arrays[k].size();
      c.arrays[k].resize(problem.array_bytes(all[k]));
      repeat(c.arrays[k], bytes);
    }
    return c;
  }
  Arguments arguments = problem.arguments();
  std::vector<Bytes> scratch(all.size());
  int optional_inputs = 0, optional_outputs = 0;
  for (std::size_t k = 0; k < all.size(); ++k) {
    int& seen = all[k].role == Role::kInput ? optional_inputs : optional_outputs;
    if (all[k].optional) ++seen;
    c.absent.push_back(all[k].optional && ((absent == Absent::kInputs && all[k].role == Role::kInput) ||
                                           (absent == Absent::kOutputs && all[k].role == Role::kOutput) ||
                                           (absent == Absent::kSecond && seen == 2)));
    if (all[k].role == Role::kScratch) {
      c.arrays.emplace_back();
      scratch[k].resize(problem.array_bytes(all[k]));
      arguments.array[k] = scratch[k].data();
    } else {
      c.arrays.push_back(filled(all[k], problem, fill));
      arguments.array[k] = c.absent[k] ? nullptr : c.arrays.back().data();
    }
  }
  reference_(arguments);
  return c;
}

std::vector<Problem> Verifier::block_problems(int block_elements) const {
  std::vector<Problem> list;
  if (!problem_.over_rows()) {
    // Dithered codes of 3 bits too: codes lie across the bounds of bytes, and a dither goes by the element's
    // number.
    std::vector<Problem> kinds = {problem_};
    if (kernels::has_codes(problem_.kernel)) kinds.push_back(coded(problem_, 3, seed_));
    for (const Problem& kind : kinds)
      for (const i64 length :
           {block_elements - i64{1}, block_elements + i64{1}, 2 * i64{block_elements} + 33})
        if (length > 0 && length < 2 * static_cast<i64>(patterns_.size()))
          list.push_back(kind.sized(1, length));
    return list;
  }
  constexpr i64 kCols = 40, kMostRows = 8192;  // broken vectors of every width
  for (const i64 rows : {block_elements / kCols, block_elements / kCols + 1, 2 * block_elements / kCols + 3})
    if (rows > 0 && rows <= kMostRows) list.push_back(problem_.sized(rows, kCols));
  return list;
}

std::vector<Verifier::Alias> Verifier::aliases() const {
  std::vector<Alias> list;
  const std::span<const Operand> all = operands(problem_.kernel);
  for (std::size_t k = 0; k < all.size(); ++k)
    for (const int input : all[k].may_alias)
      if (input != kNoOperand) list.push_back({static_cast<int>(k), input});
  return list;
}

Verifier::Verdict Verifier::verdict(const std::function<void(const Arguments&)>& function, int block_elements,
                                    const Takes& takes) const {
  Verdict all;
  const auto agrees = [&](const Case& c, const Alias& alias, bool flush_to_zero) {
    const Verdict one = run(function, c, alias, flush_to_zero);
    all = {one.mismatch, all.checked + one.checked};
    return !one.mismatch;
  };
  const auto taken = [&](const Problem& problem) { return !takes || takes(problem.cols); };
  for (const Case& c : cases_) {
    if (!taken(c.problem)) continue;
    if (!agrees(c, {}, false) || (c.flushed && !agrees(c, {}, true))) return all;
    if (c.aliased &&
        !std::ranges::all_of(aliases(), [&](const Alias& alias) { return agrees(c, alias, false); }))
      return all;
  }
  for (const Problem& problem : block_problems(block_elements))
    if (taken(problem) &&
        !agrees(case_of(problem, problem_.over_rows() ? Fill::kPlain : Fill::kPatterns), {}, false))
      return all;
  return all;
}

Verifier::Verdict Verifier::run(const std::function<void(const Arguments&)>& function, const Case& c,
                                const Alias& alias, bool flush_to_zero) const {
  // of outputs; of scratch, whose content may not matter
  constexpr std::byte kUnwritten{0xa5}, kNanByte{0xff};
  const std::span<const Operand> all = operands(problem_.kernel);
  std::vector<std::unique_ptr<GuardedArray>> arrays;
  Arguments arguments = c.problem.arguments();
  for (std::size_t k = 0; k < all.size(); ++k) {
    const bool elsewhere = c.absent[k] || static_cast<int>(k) == alias.output;
    arrays.push_back(std::make_unique<GuardedArray>(elsewhere ? 0 : c.problem.array_bytes(all[k])));
    if (elsewhere) continue;
    arguments.array[k] = arrays[k]->data();
    if (all[k].role == Role::kInput)
      arrays[k]->assign(c.arrays[k].data());
    else
      arrays[k]->fill(all[k].role == Role::kOutput ? kUnwritten : kNanByte);
  }
  const auto at = [](int k) { return static_cast<std::size_t>(k); };
  if (alias.output != kNoOperand) arguments.array[alias.output] = arrays[at(alias.input)]->data();

  std::string place = problem_.over_rows() ? " (" + std::to_string(c.problem.rows) + " x " +
                                                 std::to_string(c.problem.cols) + " elements"
                                           : " (" + std::to_string(c.problem.cols) + " elements";
  if (kernels::has_codes(problem_.kernel)) {
    place +=
        ", codes of " + std::to_string(c.problem.code_bits) + (c.problem.code_bits == 1 ? " bit" : " bits");
    if (c.problem.code_seed) place += ", dithered by " + std::to_string(*c.problem.code_seed);
  }
  if (alias.output != kNoOperand)
    place += std::string(", ") + all[at(alias.output)].name + " over " + all[at(alias.input)].name;
  for (std::size_t k = 0; k < all.size(); ++k)
    if (c.absent[k]) place += std::string(", no ") + all[k].name;
  place += flush_to_zero ? ", caller flushes to zero)" : ")";
  {
    const FlushToZero environment(flush_to_zero);
    function(arguments);
    if (!environment.kept()) return {"the caller's floating-point environment is not restored" + place};
  }
  for (std::size_t k = 0; k < all.size(); ++k)
    if (!arrays[k]->front_intact()) return {std::string("wrote before the start of ") + all[k].name + place};
  for (std::size_t k = 0; k < all.size(); ++k)
    if (all[k].role == Role::kInput && !c.absent[k] && static_cast<int>(k) != alias.input &&
        !arrays[k]->equals(c.arrays[k].data()))
      return {std::string("wrote to the input ") + all[k].name + place};

  Verdict verdict;
  for (std::size_t k = 0; k < all.size(); ++k) {
    if (all[k].role != Role::kOutput || c.absent[k]) continue;
    const auto* got = static_cast<const std::byte*>(arguments.array[k]);
    const std::byte* const want = c.arrays[k].data();
    verdict.checked += c.problem.count_of(all[k]);
    if (c.arrays[k].empty() || std::memcmp(got, want, c.arrays[k].size()) == 0) continue;
    for (i64 i = 0; i < c.problem.count_of(all[k]); ++i) {
      const u32 have = canonical_at(all[k], c.problem.format, got, i),
                wanted = canonical_at(all[k], c.problem.format, want, i);
      if (have == wanted) continue;
      char text[96];
      std::snprintf(text, sizeof text, "%s[%lld]: got 0x%x, want 0x%x", all[k].name,
                    static_cast<long long>(i), have, wanted);
      std::string difference = text;
      for (std::size_t in = 0; in < all.size(); ++in) {
        if (all[k].extent != Extent::kElements || all[in].extent != Extent::kElements ||
            all[in].role != Role::kInput)
          continue;
        std::snprintf(text, sizeof text, ", %s 0x%x", all[in].name,
                      canonical_at(all[in], c.problem.format, c.arrays[in].data(), i));
        difference += text;
      }
      return {difference + place};
    }
  }
  return verdict;
}

}  // namespace outgrad::autotune
