// Hashes chunks side by side, and reads what the sweeps found.
#include "autotune/gpu/digests.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "autotune/sha256.h"
#include "kernels/host/errors.h"
#include "kernels/support/files.h"

namespace outgrad::autotune::gpu {
namespace {

template <class T>
Sha256::Digest digest_of_values(T* values, i64 n) {
  constexpr i64 kPiece = 16'384;  // stays in the first-level cache between the two passes
  Sha256 sum;
  for (i64 begin = 0; begin < n; begin += kPiece) {
    const i64 end = std::min(n, begin + kPiece);
    for (i64 i = begin; i < end; ++i) values[i] = from_bits<T>(kernels::canonical_bits(values[i]));
    sum.add(values + begin, static_cast<std::size_t>(end - begin) * sizeof(T));
  }
  return sum.digest();
}

Sha256::Digest digest_of_mask(const u32* mask, i64 n) {
  Sha256 sum;
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
    Sha256::Digest y, mask, dx;
  };
  std::vector<Digests> digests(kChunks);
  std::atomic<std::size_t> next = 0;
  std::mutex failing;
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      const std::unique_ptr<SweptOutputs<T>> own = source();
      for (std::size_t chunk; (chunk = next++) < kChunks;) {
        const auto outputs = own->compute(chunk * static_cast<u64>(kChunk), kChunk);
        digests[chunk] = {digest_of_values(outputs.y, kChunk), digest_of_mask(outputs.mask, kChunk), digest_of_values(outputs.dx, kChunk)};
      }
    } catch (...) {
      const std::lock_guard lock(failing);
      if (failure == nullptr) failure = std::current_exception();
      next = kChunks;  // the others end with their chunk
    }
  };
  std::vector<std::thread> workers;
  const std::size_t count = std::clamp<std::size_t>(static_cast<std::size_t>(std::max(threads, 1)), 1, kChunks);
  for (std::size_t i = 1; i < count; ++i) workers.emplace_back(work);
  work();
  for (std::thread& worker : workers) worker.join();
  if (failure != nullptr) std::rethrow_exception(failure);
  Sha256 y, mask, dx;
  for (const Digests& of : digests) {
    y.add(of.y.data(), of.y.size());
    mask.add(of.mask.data(), of.mask.size());
    dx.add(of.dx.data(), of.dx.size());
  }
  return {hex(y.digest()), hex(mask.digest()), hex(dx.digest())};
}
template OutputDigests digests_of<float>(const std::function<std::unique_ptr<SweptOutputs<float>>()>&, int);
template OutputDigests digests_of<kernels::F16>(const std::function<std::unique_ptr<SweptOutputs<kernels::F16>>()>&, int);
template OutputDigests digests_of<kernels::BF16>(const std::function<std::unique_ptr<SweptOutputs<kernels::BF16>>()>&, int);

OutputDigests digests_of_sweep(const std::string& folder, const std::string& format) {
  using nlohmann::json;
  const std::string path = folder + "/gelu_" + format + ".json";
  try {
    const json sweep = json::parse(kernels::read_file(path));
    for (const json& domain : sweep.at("domains")) {
      if (domain.at("x_format") != format) continue;
      const json& digests = domain.at("sha256");
      return {digests.at("y").get<std::string>(), digests.at("mask").get<std::string>(), digests.at("dx").get<std::string>()};
    }
  } catch (const json::exception&) {
  }
  throw kernels::SpecError(path, "sha256", "no digests of x in " + format);
}

void DigestReport::add(const std::string& format, const OutputDigests& got, const OutputDigests& want) {
  const auto compare = [&](const char* array, const std::string& own, const std::string& swept) {
    const bool same = own == swept;
    equal = equal && same;
    std::printf("%-4s %-4s %s %s\n", format.c_str(), array, own.c_str(), same ? "as the sweep" : ("DIFFERS from " + swept).c_str());
    json += (json.empty() ? "" : ",\n    ") +
            nlohmann::json({{"format", format}, {"array", array}, {"sha256", own}, {"sweep", swept}, {"equal", same}}).dump();
  };
  compare("y", got.y, want.y);
  compare("mask", got.mask, want.mask);
  compare("dx", got.dx, want.dx);
  std::fflush(stdout);
}

}  // namespace outgrad::autotune::gpu
