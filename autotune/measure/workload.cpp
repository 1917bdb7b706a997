// Fills the timing arrays.
#include "autotune/measure/workload.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>

#include "autotune/space/variant.h"
#include "kernels/formats.h"
#include "kernels/support/random.h"

namespace outgrad::autotune {
namespace {

using kernels::i64;

Array allocate(std::size_t size) {
  constexpr std::size_t kHugePage = 2 << 20;  // aligned so that the system can back arrays with huge pages
  void* memory =
      std::aligned_alloc(kHugePage, std::max<std::size_t>(1, (size + kHugePage - 1) / kHugePage) * kHugePage);
  if (memory == nullptr) throw std::bad_alloc();
  return Array(static_cast<std::byte*>(memory));
}

template <class T>
void store_as(std::vector<std::byte>& to, std::size_t i, double value) {
  const T stored = kernels::narrow<T>(static_cast<float>(value));
  std::memcpy(to.data() + i * sizeof(T), &stored, sizeof(T));
}

void store(Element element, FormatId format, std::vector<std::byte>& to, std::size_t i, double value) {
  with_type(element == Element::kF32 ? FormatId::kF32 : format,
            [&]<class T>(T) { store_as<T>(to, i, value); });
}

// `normal` is normal(0, 1), `uniform` uniform in (0, 1].
double value_of(Content content, double normal, double uniform) {
  switch (content) {
    case Content::kX:
    case Content::kResidual:
    case Content::kNormed: return normal;
    case Content::kDy:
    case Content::kDzNext: return 2 * uniform - 1;
    case Content::kGamma: return std::copysign(0.5 + uniform, normal);
    case Content::kRstd: return 0.5 + uniform;
    case Content::kBeta:
    case Content::kBias: return uniform - 0.5;
    default: return 0;
  }
}

// The first `count` values of a content.
std::vector<std::byte> drawn(Content content, Element element, FormatId format, i64 count,
                             std::uint64_t seed) {
  const auto width = static_cast<std::size_t>(bytes_of(element, format));
  std::vector<std::byte> block(static_cast<std::size_t>(count) * width);
  if (content != Content::kX && content != Content::kDy) seed += 1 + static_cast<std::uint64_t>(content);
  if (content == Content::kResult) return block;
  for (i64 i = 0; i < count; ++i) {
    // in (0, 1]
    const auto uniform = [&] {
      return (static_cast<double>(kernels::next_random(seed) >> 11) + 1) * 0x1p-53;
    };
    const double radius = std::sqrt(-2 * std::log(uniform()));
    const double normal = radius * std::cos(6.283185307179586 * uniform());  // Box and Muller
    store(element, format, block, static_cast<std::size_t>(i), value_of(content, normal, uniform()));
  }
  return block;
}

// What our own forward makes of the x of this seed: y, its mask or codes.
std::vector<std::byte> activated(Content content, FormatId format, i64 count, std::uint64_t seed) {
  std::vector<std::byte> x = drawn(Content::kX, Element::kFormat, format, count, seed), y(x.size());
  if (content == Content::kCodes) {
    const Problem coded = Problem{KernelId::kGeluForwardCode, format}.sized(1, count);
    std::vector<std::byte> codes(coded.array_bytes(kernels::catalogue::kNewCodes));
    Arguments a = coded.arguments();
    a.array[0] = x.data(), a.array[1] = y.data(), a.array[2] = codes.data();
    fitless_reference(coded)(a);
    return codes;
  }
  std::vector<std::byte> mask(static_cast<std::size_t>(count + 31) / 32 * sizeof(kernels::u32));
  fits_of({KernelId::kGeluForward, format}).front()->reference({{x.data(), y.data(), mask.data()}, 1, count});
  return content == Content::kMask ? mask : y;
}

}  // namespace

Array filled(Content content, Element element, FormatId format, i64 count, std::uint64_t seed) {
  // Mask words and bytes of codes are counted, their elements are drawn.
  const i64 values = std::min(kWorkspacePeriod, element == Element::kMaskWord ? 32 * count
                                                : element == Element::kByte ? 8 / Problem{}.code_bits * count
                                                                            : count);
  const bool made =
      content == Content::kActivation || content == Content::kMask || content == Content::kCodes;
  const std::vector<std::byte> block =
      made ? activated(content, format, values, seed) : drawn(content, element, format, values, seed);
  const std::size_t bytes =
                        static_cast<std::size_t>(count) * static_cast<std::size_t>(bytes_of(element, format)),
                    period = block.size();
  Array array = allocate(bytes);
#pragma omp parallel for schedule(static)
  for (i64 begin = 0; begin < static_cast<i64>(bytes); begin += static_cast<i64>(period)) {
    const std::size_t offset = static_cast<std::size_t>(begin);
    std::memcpy(array.get() + offset, block.data(), std::min(period, bytes - offset));
  }
  return array;
}

Workspace::Workspace(const Problem& problem, std::uint64_t seed) : problem_(problem) {
  for (const Operand& operand : operands(problem.kernel))
    arrays_.push_back(
        filled(operand.content, operand.element, problem.format, problem.count_of(operand), seed));
}

Arguments Workspace::arguments() const {
  Arguments a = problem_.arguments();
  for (std::size_t k = 0; k < arrays_.size(); ++k) a.array[k] = arrays_[k].get();
  return a;
}

}  // namespace outgrad::autotune
