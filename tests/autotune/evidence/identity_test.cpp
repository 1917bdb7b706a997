// Device keys: what splits devices and what does not; names of files that cannot collide.
#include "autotune/evidence/identity.h"

#include <gtest/gtest.h>

#ifdef __linux__
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

#include <cctype>
#include <cstdlib>
#include <set>

#include "autotune/gpu/driver.h"
#include "autotune/measure/device.h"
#include "kernels/host/errors.h"

namespace outgrad::autotune {
namespace {

using nlohmann::json;

// The key that a record's "device" gives.
std::optional<DeviceKey> device_key(const json& device) {
  return autotune::device_key(device_record_from(device));
}

json cpu() {
  return {{"kind", "cpu"}, {"model", "A CPU 9000 (R)"}, {"threads", 8},
          {"sockets", 1},  {"vector_bits", 512},        {"isa", "avx2 fma avx512f"}};
}

json gpu() {
  return {{"kind", "cuda"}, {"name", "NVIDIA H200"},          {"architecture", "sm_90"},
          {"sms", 132},     {"memory_bytes", 150754820096LL}, {"driver", 13000}};
}

json with(json device, const char* key, const json& value) {
  device[key] = value;
  return device;
}

TEST(DeviceKey, WhatChoosesAVariantSplitsDevicesAndNothingElse) {
  const DeviceKey one = *device_key(cpu());
  for (const auto& [key, value] : {std::pair<const char*, json>{"model", "A CPU 9001 (R)"},
                                   {"threads", 16},
                                   {"vector_bits", 256},
                                   {"isa", "avx2 fma"}})
    EXPECT_FALSE(one == *device_key(with(cpu(), key, value))) << key;
  for (const auto& [key, value] : {std::pair<const char*, json>{"l3_bytes", 1},
                                   {"sockets", 2},
                                   {"isa", "avx512f avx2  fma"},
                                   {"stepping", 7}})
    EXPECT_TRUE(one == *device_key(with(cpu(), key, value))) << key;
  const DeviceKey other = *device_key(gpu());
  for (const auto& [key, value] : {std::pair<const char*, json>{"name", "NVIDIA H100"},
                                   {"architecture", "sm_100"},
                                   {"sms", 114},
                                   {"memory_bytes", 80LL << 30}})
    EXPECT_FALSE(other == *device_key(with(gpu(), key, value))) << key;
  for (const auto& [key, value] : {std::pair<const char*, json>{"driver", 13010},
                                   {"clock_ghz", 1.2},
                                   {"memory_bytes", 150754820096LL - (20 << 20)}})
    EXPECT_TRUE(other == *device_key(with(gpu(), key, value))) << key;
}

TEST(DeviceKey, IsTheSameFromARecordAndFromTheMachine) {
  const CpuIdentity here = identify_cpu();
  const auto key = autotune::device_key(device_record(here));
  ASSERT_TRUE(key);
  EXPECT_EQ(key->device, cpu_key(here.model, here.threads, here.vector_bits, here.isa).device);
}

// What one of several processors does is no measurement of them all.
TEST(DeviceKey, IsOfTheProcessorsThatAProcessMayUse) {
#ifdef __linux__
  cpu_set_t own;
  ASSERT_EQ(sched_getaffinity(0, sizeof own, &own), 0);
  const auto may_use = [](const cpu_set_t& set) {  // of OpenMP, a process that starts so
    const pid_t child = fork();
    if (child == 0) {
      const bool set_so = sched_setaffinity(0, sizeof set, &set) == 0;
      if (set_so) execl("/proc/self/exe", "tests", "--gtest_filter=DeviceKey.SaysItsThreads", nullptr);
      _exit(255);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  cpu_set_t first;
  CPU_ZERO(&first);
  for (std::size_t at = 0; at < CPU_SETSIZE && CPU_COUNT(&first) == 0; ++at)
    if (CPU_ISSET(at, &own)) CPU_SET(at, &first);
  ASSERT_EQ(setenv("OUTGRAD_TEST_THREADS_AS_STATUS", "1", 1), 0);
  EXPECT_EQ(may_use(first), 1);
  EXPECT_EQ(may_use(own), CPU_COUNT(&own) % 256);
  unsetenv("OUTGRAD_TEST_THREADS_AS_STATUS");
#endif
}
TEST(DeviceKey, SaysItsThreads) {  // for the test above
  if (std::getenv("OUTGRAD_TEST_THREADS_AS_STATUS") != nullptr) std::_Exit(identify_cpu().threads % 256);
}

TEST(DeviceKey, TheLadderGoesFromTheDeviceToItsFamily) {
  const DeviceKey h200 = *device_key(gpu()), many = *device_key(with(cpu(), "threads", 64));
  EXPECT_EQ(rung_of(h200, h200), Rung::device);
  EXPECT_EQ(rung_of(h200, *device_key(with(gpu(), "name", "NVIDIA H100"))), Rung::architecture);
  EXPECT_EQ(rung_of(h200, *device_key(with(gpu(), "architecture", "sm_90a"))), Rung::family);
  EXPECT_EQ(rung_of(h200, *device_key(with(gpu(), "architecture", "sm_100"))), Rung::all_devices);
  EXPECT_EQ(rung_of(*device_key(with(gpu(), "architecture", "sm_80")),
                    *device_key(with(gpu(), "architecture", "sm_89"))),
            Rung::family);
  EXPECT_EQ(rung_of(*device_key(with(gpu(), "architecture", "sm_100")),
                    *device_key(with(gpu(), "architecture", "sm_120"))),
            Rung::all_devices);
  EXPECT_EQ(rung_of(*device_key(cpu()), many), Rung::architecture);
  EXPECT_EQ(rung_of(many, *device_key(with(cpu(), "isa", "avx2 avx512f avx512_bf16"))), Rung::family);
  EXPECT_EQ(rung_of(many, *device_key(with(cpu(), "vector_bits", 256))), Rung::all_devices);
  EXPECT_EQ(rung_of(many, h200), Rung::all_devices);
  const DeviceKey offline =
      *device_key({{"kind", "offline"}, {"architecture", "sm_90"}, {"board", "H200 SXM"}});
  EXPECT_TRUE(offline.predicted);
  EXPECT_EQ(rung_of(h200, offline), Rung::architecture);
  EXPECT_EQ(rung_of(offline, offline), Rung::architecture) << "nothing ran there";
}

TEST(DeviceKey, SlugsAreFileNamesAndTellDevicesApart) {
  std::set<std::string> slugs;
  const json offline = {{"kind", "offline"}, {"architecture", "sm_90"}, {"board", "H200"}};
  std::vector<json> devices = {cpu(), gpu(), offline, with(cpu(), "threads", 9), with(gpu(), "sms", 1)};
  for (const std::string& model :
       {std::string("A CPU 9000 R"), std::string("a cpu-9000 (r)"), std::string(),
        std::string("../../etc/passwd\n\x01"), std::string(5000, 'x'), std::string("\xe2\x82\xac")})
    devices.push_back(with(cpu(), "model", model));
  for (const json& device : devices) {
    const std::string slug = device_key(device)->slug();
    EXPECT_LE(slug.size(), 80u);
    EXPECT_NE(std::isalpha(static_cast<unsigned char>(slug.front())), 0) << slug;
    EXPECT_EQ(slug.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_"), std::string::npos) << slug;
    EXPECT_TRUE(slugs.insert(slug).second) << slug;
  }
  EXPECT_EQ(device_key(gpu())->slug().rfind("cuda_nvidia_h200_", 0), 0u);
}

TEST(DeviceKey, WhatNamesNoDeviceHasNone) {
  for (const char* text : {"{}", R"({"kind":"tpu"})", R"({"kind":"cpu","model":"x"})",
                           R"({"kind":"cuda","name":"x"})", R"({"kind":"offline","board":"x"})"})
    EXPECT_FALSE(device_key(json::parse(text))) << text;
  for (const char* text : {"null", "\"cpu\"", "[]", R"({"kind":1})"})
    EXPECT_THROW(device_record_from(json::parse(text)), kernels::SpecError) << text;
  for (const auto& [key, value] : {std::pair<const char*, json>{"model", 3},
                                   {"threads", "8"},
                                   {"threads", -1},
                                   {"threads", 1e300},
                                   {"threads", UINT64_MAX},
                                   {"isa", json::array()},
                                   {"memory_bytes", nullptr}})
    EXPECT_THROW(device_record_from(with(cpu(), key, value)), kernels::SpecError) << key << value;
}

}  // namespace
}  // namespace outgrad::autotune
