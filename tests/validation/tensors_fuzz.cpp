// Mutational fuzzing of the tensor readers: whatever the bytes, a file is read or refused by SpecError, nothing else.
//
// As a test it runs a fixed number of mutations from a fixed seed. With -DOUTGRAD_LIBFUZZER it is a libFuzzer target:
//   clang++ -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -DOUTGRAD_LIBFUZZER -I. tests/validation/tensors_fuzz.cpp
//     validation/tensors.cpp -lfmt -lzip -o tensors_fuzz
#include <cstdint>
#include <string>

#include "kernels/host/errors.h"
#include "validation/tensors.h"

namespace {

// Whether the bytes were read as a tensor file to the end.
bool read_everything(const std::string& bytes) {
  try {
    const auto file = outgrad::validation::parse_tensors("fuzz", bytes);
    for (const auto& tensor : file->tensors()) {
      if (file->read(tensor).size() != tensor.elements) __builtin_trap();
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
#include <random>
#include <string_view>
#include <vector>

#include "tests/validation/tensor_samples.h"

namespace {

using outgrad::kernels::u32;
using outgrad::kernels::u64;

// Damages a file in one of the ways that break readers.
class Mutator {
 public:
  explicit Mutator(u64 seed) : random_(seed) {}

  std::string mutate(std::string bytes, const std::string& donor) {
    for (size_t rounds = 1 + below(3); rounds > 0; --rounds) mutate_once(bytes, donor);
    return bytes;
  }

 private:
  size_t below(size_t limit) { return limit == 0 ? 0 : random_() % limit; }

  void mutate_once(std::string& bytes, const std::string& donor) {
    // Numbers where length fields, offsets and sizes go wrong.
    static constexpr std::array<u64, 8> kEdges = {0, 1, 0x7f, 0xff, 0xffff, 0x7fffffff, 0xffffffff, ~u64{0}};
    static constexpr std::array<std::string_view, 9> kTokens = {"18446744073709551615", "4294967296", "-1", "[", "{", "\"", "BF16",
                                                                "PK\x05\x06",           "9"};
    const size_t at = below(bytes.size());
    switch (below(7)) {
      case 0:
        if (!bytes.empty()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 1:
        bytes.resize(at);
        break;
      case 2: {
        const u64 edge = kEdges[below(kEdges.size())];
        const size_t width = std::min<size_t>(size_t{1} << below(4), bytes.size() - at);
        std::memcpy(bytes.data() + at, &edge, width);
        break;
      }
      case 3:
        bytes.insert(at, kTokens[below(kTokens.size())]);
        break;
      case 4:
        bytes.erase(at, 1 + below(16));
        break;
      case 5: {
        const size_t from = below(donor.size());
        bytes.insert(at, donor.substr(from, below(64)));
        break;
      }
      case 6:  // a digit of a shape, an offset or a dtype
        for (size_t i = at; i < bytes.size(); ++i) {
          if (bytes[i] >= '0' && bytes[i] <= '9') {
            bytes[i] = static_cast<char>('0' + below(10));
            break;
          }
        }
        break;
    }
  }

  std::mt19937_64 random_;
};

TEST(TensorsFuzz, MutatedFilesAreReadOrRefused) {
  using namespace outgrad::validation;
  const std::vector<std::string> seeds = {safetensors_bytes({{"n.weight", {1, 2, 3}}, {"n.bias", {4, 5, 6}}, {"x", {}}}, {{"k", "v"}}),
                                          from_hex(kStoredNpzHex), from_hex(kDeflatedNpzHex)};
  constexpr int kIterations = 100'000;
  Mutator mutator(20240229);
  int accepted = 0;
  for (int i = 0; i < kIterations; ++i) {
    accepted += read_everything(mutator.mutate(seeds[i % seeds.size()], seeds[(i / seeds.size()) % seeds.size()]));
  }
  // Both outcomes occur, or the mutations are too harsh or too mild to say anything.
  EXPECT_GT(accepted, kIterations / 100);
  EXPECT_LT(accepted, kIterations / 2);
}

}  // namespace

#endif
