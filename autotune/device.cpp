// CPU identity from /proc and sysfs; SHA-256; header hashes.
#include "autotune/device.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string_view>

#include "kernels/host/elementwise.h"
#include "kernels/host/files.h"
#include "kernels/host/identity.h"

namespace outgrad::autotune {
namespace {

std::string line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// "32768K" as sysfs writes it; 0 for anything else.
long long bytes_of(const std::string& size) {
  std::istringstream text(size);
  long long value = 0;
  char unit = 0;
  if (!(text >> value)) return 0;
  text >> unit;
  return value << (unit == 'K' ? 10 : unit == 'M' ? 20 : 0);
}

std::uint32_t big_endian(const unsigned char* byte) {
  return std::uint32_t{byte[0]} << 24 | std::uint32_t{byte[1]} << 16 | std::uint32_t{byte[2]} << 8 | byte[3];
}

}  // namespace

CpuIdentity identify_cpu() {
  CpuIdentity cpu;
  const kernels::CpuFacts facts = kernels::read_cpu();  // what the kernels will find where they choose by it
  cpu.model = facts.model;
  cpu.threads = facts.threads;
  cpu.vector_bits = kernels::kBestVectorBits;
  for (const char* extension : {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_bf16", "avx512_fp16"})
    for (int i = 0; i < kernels::kKeyExtensionCount; ++i)
      if (facts.has[i] && extension == std::string_view(kernels::kKeyExtensions[i])) cpu.isa += (cpu.isa.empty() ? "" : " ") + std::string(extension);

  std::ifstream info("/proc/cpuinfo");
  std::set<std::string> sockets;
  for (std::string line; std::getline(info, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string key = line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1);
    const std::string value = colon + 2 <= line.size() ? line.substr(colon + 2) : "";
    if (key == "physical id") sockets.insert(value);
  }
  cpu.sockets_seen = std::max(1, static_cast<int>(sockets.size()));
  for (int index = 0; index < 8; ++index) {
    const std::string cache = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index);
    const std::string level = line_of(cache + "/level");
    const long long size = bytes_of(line_of(cache + "/size"));
    if (level == "1" && line_of(cache + "/type") == "Data") cpu.l1d_bytes = size;
    if (level == "2") cpu.l2_bytes = size;
    if (level == "3") cpu.l3_bytes = size;
  }
  return cpu;
}

nlohmann::json to_json(const CpuIdentity& cpu) {
  return {{"kind", "cpu"},
          {"model", cpu.model},
          {"threads", cpu.threads},
          {"sockets", cpu.sockets_seen},
          {"l1d_bytes", cpu.l1d_bytes},
          {"l2_bytes", cpu.l2_bytes},
          {"l3_bytes", cpu.l3_bytes},
          {"vector_bits", cpu.vector_bits},
          {"isa", cpu.isa}};
}

long long available_memory_bytes() {
  std::ifstream info("/proc/meminfo");
  for (std::string key, rest; info >> key; std::getline(info, rest)) {
    long long kib = 0;
    if (key == "MemAvailable:" && info >> kib) return kib << 10;
  }
  return static_cast<long long>(::sysconf(_SC_AVPHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
}

std::string sha256(const std::string& bytes) {
  // The constants are the first 32 bits of the fractional parts of the cube roots (k) and square roots (state) of the first primes.
  static constexpr std::array<std::uint32_t, 64> k = {
      0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
      0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
      0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
      0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
      0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
      0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
  std::array<std::uint32_t, 8> state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::string padded = bytes + '\x80';
  padded.resize((padded.size() + 8 + 63) / 64 * 64, '\0');
  for (int i = 0; i < 8; ++i) padded[padded.size() - 1 - i] = static_cast<char>(std::uint64_t{bytes.size()} * 8 >> (8 * i));

  for (std::size_t block = 0; block < padded.size(); block += 64) {
    std::array<std::uint32_t, 64> w;
    for (std::size_t i = 0; i < 16; ++i) w[i] = big_endian(reinterpret_cast<const unsigned char*>(padded.data()) + block + 4 * i);
    for (std::size_t i = 16; i < 64; ++i) {
      const std::uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
      const std::uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
      w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    auto [a, b, c, d, e, f, g, h] = state;
    for (std::size_t i = 0; i < 64; ++i) {
      const std::uint32_t t1 = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + ((e & f) ^ (~e & g)) + k[i] + w[i];
      const std::uint32_t t2 = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    const std::array<std::uint32_t, 8> mixed = {a, b, c, d, e, f, g, h};
    for (std::size_t i = 0; i < 8; ++i) state[i] += mixed[i];
  }
  std::string hex;
  for (const std::uint32_t word : state)
    for (int shift = 28; shift >= 0; shift -= 4) hex += "0123456789abcdef"[word >> shift & 15];
  return hex;
}

SourceHashes hash_sources(const std::string& include_root) {
  namespace fs = std::filesystem;
  const fs::path root = fs::path(include_root) / "kernels";
  std::error_code error;
  std::vector<fs::path> headers;
  for (fs::recursive_directory_iterator entry(root, error), end; !error && entry != end; entry.increment(error))
    if (entry->path().extension() == ".h" && entry->path().filename().string().rfind("tuned_", 0) != 0) headers.push_back(entry->path());
  if (error) throw kernels::IoError(root.string(), "read", error.value());
  std::sort(headers.begin(), headers.end());

  std::string code, coefficients;
  for (const fs::path& header : headers) {
    const std::string content = kernels::read_file(header.string());
    const bool generated = header.parent_path().filename() == "generated";
    (generated ? coefficients : code) += fs::relative(header, root).string() + '\n' + std::to_string(content.size()) + '\n' + content;
  }
  return {sha256(code), sha256(coefficients)};
}

}  // namespace outgrad::autotune
