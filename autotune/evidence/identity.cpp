// Keys from identities, slugs from keys.
#include "autotune/evidence/identity.h"

#include <cctype>
#include <set>
#include <sstream>

#include "autotune/measure/device.h"
#include "kernels/support/digest.h"

namespace outgrad::autotune {
namespace {

// The words of `isa` in one order, so that a system which lists its flags in another is the same device.
std::string sorted_words(const std::string& isa) {
  std::istringstream text(isa);
  std::set<std::string> words;
  for (std::string word; text >> word;) words.insert(word);
  std::string sorted;
  for (const std::string& word : words) sorted += (sorted.empty() ? "" : " ") + word;
  return sorted.empty() ? "no extensions" : sorted;
}

// "sm_9x" of "sm_90" and "sm_90a", "sm_12x" of "sm_120": all digits but the last are the major number.
std::string family_of(const std::string& architecture) {
  std::size_t end = architecture.size();
  while (end > 0 && std::isdigit(static_cast<unsigned char>(architecture[end - 1])) == 0) --end;
  return end == 0 ? architecture : architecture.substr(0, end - 1) + "x";
}

}  // namespace

std::string DeviceKey::slug() const {
  constexpr std::size_t
      kReadable = 71,
      kHash = 8;  // 80 with the underscore between: a file name leaves room for ".jsonl" and a folder
  // The name of a device ends at the first comma: counts and extensions are the hash's to tell apart.
  return slug_of(device.substr(0, device.find(',')), kReadable) + "_" +
         kernels::sha256(device).substr(0, kHash);
}

DeviceKey cpu_key(const std::string& model, int threads, int vector_bits, const std::string& isa) {
  const std::string vectors = std::to_string(vector_bits) + "-bit vectors",
                    code = vectors + ", " + one_line(sorted_words(isa));
  return {"cpu: " + one_line(model) + ", " + std::to_string(threads) +
              (threads == 1 ? " thread, " : " threads, ") + code,
          "cpu: " + code, "cpu: " + vectors};
}

DeviceKey cuda_key(const std::string& name, const std::string& architecture, int sms,
                   long long memory_bytes) {
  const std::string arch = one_line(architecture);
  const long long gib = (memory_bytes >> 30) + (memory_bytes >> 29 & 1);  // to nearest
  return {"cuda: " + one_line(name) + ", " + arch + ", " + std::to_string(sms) + " SMs, " +
              std::to_string(gib) + " GiB",
          "cuda: " + arch, "cuda: " + family_of(arch)};
}

std::optional<DeviceKey> device_key(const DeviceRecord& d) {
  if (d.kind == "cpu" && d.model && d.isa && d.threads && d.vector_bits)
    return cpu_key(*d.model, *d.threads, *d.vector_bits, *d.isa);
  if (d.kind == "cuda" && d.name && d.architecture && d.sms && d.memory_bytes)
    return cuda_key(*d.name, *d.architecture, *d.sms, *d.memory_bytes);
  if (d.kind != "offline" || !d.board || !d.architecture) return std::nullopt;
  const std::string arch = one_line(*d.architecture);
  return DeviceKey{"predicted: " + arch + " as on " + one_line(*d.board), "cuda: " + arch,
                   "cuda: " + family_of(arch), /*predicted=*/true};
}

std::string one_line(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = ' ';
  return text;
}

Rung rung_of(const DeviceKey& device, const DeviceKey& other) {
  if (device == other && !other.predicted) return Rung::device;
  if (device.architecture == other.architecture) return Rung::architecture;
  return device.family == other.family ? Rung::family : Rung::all_devices;
}

}  // namespace outgrad::autotune
