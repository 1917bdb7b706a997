// Hashes chunks side by side, and reads what the sweeps found.
#include "tests/gpu/digests.h"

#include <omp.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "kernels/host/errors.h"
#include "kernels/support/digest.h"
#include "kernels/support/files.h"
#include "kernels/support/json.h"
#include "kernels/support/parallel.h"

namespace outgrad::tests::gpu {
namespace {

template <class T>
std::string digest_of_values(T* values, i64 n) {
  constexpr i64 kPiece = 16'384;  // stays in the first-level cache between the two passes
  kernels::Sha256 sum;
  for (i64 begin = 0; begin < n; begin += kPiece) {
    const i64 end = std::min(n, begin + kPiece);
    for (i64 i = begin; i < end; ++i) values[i] = from_bits<T>(kernels::canonical_bits(values[i]));
    sum.add(values + begin, static_cast<std::size_t>(end - begin) * sizeof(T));
  }
  return sum.digest();
}

std::string digest_of_mask(const u32* mask, i64 n) {
  kernels::Sha256 sum;
  sum.add(mask, static_cast<std::size_t>((n + 31) / 32) * sizeof(u32));
  return sum.digest();
}

}  // namespace

template <class T>
OutputDigests digests_of(const std::function<std::unique_ptr<SweptOutputs<T>>()>& source, int threads) {
  constexpr u64 kPatterns = u64{1} << (8 * sizeof(T));
  constexpr i64 kChunk = std::min<u64>(kPatterns, kSweepChunk);
  constexpr std::size_t kChunks = kPatterns / kChunk;
  struct Digests {
    std::string y, mask, dx;
  };
  std::vector<Digests> digests(kChunks);
  // of each thread
  std::vector<std::unique_ptr<SweptOutputs<T>>> sources(static_cast<std::size_t>(std::max(threads, 1)));
  kernels::for_each_task(kChunks, static_cast<int>(sources.size()), [&](std::size_t chunk) {
    auto& own = sources[static_cast<std::size_t>(omp_get_thread_num())];
    if (own == nullptr) own = source();
    const auto outputs = own->compute(chunk * static_cast<u64>(kChunk), kChunk);
    digests[chunk] = {digest_of_values(outputs.y, kChunk), digest_of_mask(outputs.mask, kChunk),
                      digest_of_values(outputs.dx, kChunk)};
  });
  std::string y, mask, dx;
  for (const Digests& of : digests) y += of.y, mask += of.mask, dx += of.dx;
  return {kernels::sha256(y), kernels::sha256(mask), kernels::sha256(dx)};
}
template OutputDigests digests_of<float>(const std::function<std::unique_ptr<SweptOutputs<float>>()>&, int);
template OutputDigests digests_of<kernels::F16>(
    const std::function<std::unique_ptr<SweptOutputs<kernels::F16>>()>&, int);
template OutputDigests digests_of<kernels::BF16>(
    const std::function<std::unique_ptr<SweptOutputs<kernels::BF16>>()>&, int);

OutputDigests digests_of_sweep(const std::string& folder, const std::string& format) {
  using nlohmann::json;
  const std::string path = folder + "/gelu_" + format + ".json";
  try {
    const json sweep = kernels::parse_json(kernels::read_file(path));
    for (const json& domain : sweep.at("domains")) {
      if (domain.at("x_format") != format) continue;
      const json& digests = domain.at("sha256");
      return {digests.at("y").get<std::string>(), digests.at("mask").get<std::string>(),
              digests.at("dx").get<std::string>()};
    }
  } catch (const json::exception&) {
  }
  throw kernels::SpecError(path, "sha256", "no digests of x in " + format);
}

void DigestReport::add(const std::string& format, const OutputDigests& got, const OutputDigests& want) {
  const auto compare = [&](const char* array, const std::string& own, const std::string& swept) {
    const bool same = own == swept;
    equal = equal && same;
    std::printf("%-4s %-4s %s %s\n", format.c_str(), array, own.c_str(),
                same ? "as the sweep" : ("DIFFERS from " + swept).c_str());
    json += (json.empty() ? "" : ",\n    ") +
            nlohmann::json(
                {{"format", format}, {"array", array}, {"sha256", own}, {"sweep", swept}, {"equal", same}})
                .dump();
  };
  compare("y", got.y, want.y);
  compare("mask", got.mask, want.mask);
  compare("dx", got.dx, want.dx);
  std::fflush(stdout);
}

}  // namespace outgrad::tests::gpu
