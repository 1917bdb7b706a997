// CPU identity from /proc and sysfs.
#include "autotune/measure/device.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <ctime>
#include <fstream>
#include <set>
#include <sstream>
#include <string_view>

#include "kernels/host/identity.h"
#include "kernels/simd.h"

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

}  // namespace

CpuIdentity identify_cpu() {
  CpuIdentity cpu;
  const kernels::CpuFacts facts = kernels::read_cpu();  // what the kernels will find where they choose by it
  cpu.model = facts.model;
  cpu.threads = facts.threads;
  cpu.vector_bits = kernels::kBestVectorBits;
  for (const char* extension : {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_bf16", "avx512_fp16"})
    for (int i = 0; i < kernels::kKeyExtensionCount; ++i)
      if (facts.has[i] && extension == std::string_view(kernels::kKeyExtensions[i]))
        cpu.isa += (cpu.isa.empty() ? "" : " ") + std::string(extension);

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

DeviceRecord device_record(const CpuIdentity& cpu) {
  DeviceRecord record;
  record.kind = "cpu", record.model = cpu.model, record.isa = cpu.isa;
  record.threads = cpu.threads, record.sockets = cpu.sockets_seen, record.vector_bits = cpu.vector_bits;
  record.l1d_bytes = cpu.l1d_bytes, record.l2_bytes = cpu.l2_bytes, record.l3_bytes = cpu.l3_bytes;
  return record;
}

std::string processor_text() {
  static const std::set<std::string> kKeys = {
      "vendor_id",       "cpu family",       "model",       "model name", "flags", "Features",
      "CPU implementer", "CPU architecture", "CPU variant", "CPU part"};
  std::string text;
  std::ifstream info("/proc/cpuinfo");
  // the first of the processors: an empty line ends it
  for (std::string line; std::getline(info, line) && !line.empty();)
    if (kKeys.contains(line.substr(0, line.find_last_not_of(" \t", line.find(':') - 1) + 1)))
      text += line + '\n';
  return text;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

long long available_memory_bytes() {
  std::ifstream info("/proc/meminfo");
  for (std::string key, rest; info >> key; std::getline(info, rest)) {
    long long kib = 0;
    if (key == "MemAvailable:" && info >> kib) return kib << 10;
  }
  return static_cast<long long>(::sysconf(_SC_AVPHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
}

}  // namespace outgrad::autotune
