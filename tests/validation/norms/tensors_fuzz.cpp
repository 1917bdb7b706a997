// Mutational fuzzing of the tensor readers: whatever the bytes, a file is read or refused by SpecError,
// nothing else.
//
// As a test it runs a fixed number of mutations from a fixed seed. With -DOUTGRAD_LIBFUZZER it is a libFuzzer
// target:
//   clang++ -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -DOUTGRAD_LIBFUZZER -I.
//       tests/validation/norms/tensors_fuzz.cpp validation/norms/tensors.cpp -lfmt -lzip -o tensors_fuzz
#include <cstdint>
#include <string>

#include "kernels/host/errors.h"
#include "validation/norms/tensors.h"

namespace {

// Whether the bytes were read as a tensor file to the end.
bool read_everything(const std::string& bytes) {
  try {
    const auto file = outgrad::validation::parse_tensors("fuzz", bytes);
    for (const auto& tensor : file->tensors()) {
      if (file->read(tensor).size() != tensor.elements || !tensor.unknown.empty()) __builtin_trap();
    }
    return true;
  } catch (const outgrad::kernels::SpecError&) {
    return false;
  }
}

}  // namespace

#ifdef OUTGRAD_LIBFUZZER

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  read_everything(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}

#else

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "tests/mutator.h"
#include "tests/validation/norms/tensor_samples.h"

namespace {

using outgrad::kernels::u32;
using outgrad::kernels::u64;

void cut(outgrad::Mutator&, std::string& bytes, size_t at) { bytes.resize(at); }

// A number where length fields, offsets and sizes go wrong.
void put_edge(outgrad::Mutator& mutator, std::string& bytes, size_t at) {
  static constexpr std::array<u64, 8> kEdges = {0, 1, 0x7f, 0xff, 0xffff, 0x7fffffff, 0xffffffff, ~u64{0}};
  const u64 edge = kEdges[mutator.below(kEdges.size())];
  std::memcpy(bytes.data() + at, &edge, std::min<size_t>(size_t{1} << mutator.below(4), bytes.size() - at));
}

TEST(TensorsFuzz, MutatedFilesAreReadOrRefused) {
  using namespace outgrad::validation;
  const std::vector<std::string> seeds = {
      safetensors_bytes({{"n.weight", {1, 2, 3}}, {"n.bias", {4, 5, 6}}, {"x", {}}}, {{"k", "v"}}),
      from_hex(kStoredNpzHex), from_hex(kDeflatedNpzHex)};
  constexpr int kIterations = 100'000;
  outgrad::Mutator mutator(
      20240229,
      {"18446744073709551615", "4294967296", "-1", "[", "{", "\"", "BF16", "PK\x05\x06", "9", "F4", "F6_E2M3",
       "[('a', '<f4')]", std::string_view("\0", 1), "\x93NUMPY", "\x80\x02", R"({"weight_map":{"a":"b"}})"},
      {&cut, &put_edge});
  int accepted = 0;
  for (int i = 0; i < kIterations; ++i) {
    accepted +=
        read_everything(mutator.mutate(seeds[i % seeds.size()], seeds[(i / seeds.size()) % seeds.size()]));
  }
  // Both outcomes occur, or the mutations are too harsh or too mild to say anything.
  EXPECT_GT(accepted, kIterations / 100);
  EXPECT_LT(accepted, kIterations / 2);
}

}  // namespace

#endif
