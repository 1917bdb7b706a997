// Tensor files: what is read equals what was written, and every kind of damage is refused with file, place
// and reason.
#include "validation/norms/tensors.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/support/errors.h"
#include "kernels/support/files.h"
#include "tests/refusal.h"
#include "tests/validation/norms/tensor_samples.h"

namespace outgrad::validation {
namespace {

using kernels::u64;

std::string safetensors(const std::string& header, const std::string& data) {
  const u64 length = header.size();
  std::string file(sizeof(u64), '\0');
  std::memcpy(file.data(), &length, sizeof(u64));
  return file + header + data;
}

// The message with which a file is refused, when opened or when any of its tensors is read; "" if all is
// well.
std::string refusal(const std::string& bytes) {
  return refusal_of([&] {
    const auto file = parse_tensors("F", bytes);
    for (const TensorInfo& tensor : file->tensors()) file->read(tensor);
  });
}

void expect_refused(const std::string& bytes, const std::string& reason) {
  const std::string message = refusal(bytes);
  EXPECT_TRUE(message.starts_with("F: ")) << message << ", of " << reason;
  EXPECT_NE(message.find(reason), std::string::npos) << message;
}

TEST(Tensors, WhatIsWrittenIsRead) {
  std::mt19937 random(1);
  std::uniform_int_distribution<kernels::u32> bits;
  for (int round = 0; round < 50; ++round) {
    std::vector<NamedTensor> tensors;
    for (int k = 0; k < round % 5; ++k) {
      NamedTensor tensor{"t\"\n" + std::to_string(random()), {}};  // names that JSON has to escape
      for (auto n = random() % 20; n > 0; --n) tensor.values.push_back(kernels::float_of(bits(random)));
      tensors.push_back(tensor);
    }
    const std::string bytes = safetensors_bytes(tensors, {{"licence", "none"}});
    const auto file = parse_tensors("F", bytes);
    ASSERT_EQ(file->tensors().size(), tensors.size());
    for (const NamedTensor& tensor : tensors) {
      const std::vector<float> values = file->read(file->find(tensor.name));
      const auto same_bits = [](float a, float b) { return kernels::bits_of(a) == kernels::bits_of(b); };
      EXPECT_TRUE(std::ranges::equal(values, tensor.values, same_bits)) << tensor.name;
    }
    std::reverse(tensors.begin(), tensors.end());
    EXPECT_EQ(bytes, safetensors_bytes(tensors, {{"licence", "none"}})) << "the order given must not matter";
  }
}

TEST(Tensors, EveryDtypeWidensExactly) {
  const std::string data = std::string("\x00\x3c\x01\x00", 4) +  // F16: 1, 2^-24
                           std::string("\x80\x3f\x01\x00", 4) +  // BF16: 1, 2^-133
                           // F64: 1, DBL_MAX
                           std::string("\x00\x00\x00\x00\x00\x00\xf0\x3f", 8) +
                           std::string("\xff\xff\xff\xff\xff\xff\xef\x7f", 8);
  const auto file = parse_tensors("F", safetensors(R"({"h":{"dtype":"F16","shape":[2],"data_offsets":[0,4]},
      "b":{"dtype":"BF16","shape":[2],"data_offsets":[4,8]},
      "d":{"dtype":"F64","shape":[2,1],"data_offsets":[8,24]}})",
                                                   data));
  EXPECT_EQ(file->read(file->find("h")), (std::vector<float>{1, 0x1p-24f}));
  EXPECT_EQ(file->read(file->find("b")), (std::vector<float>{1, 0x1p-133f}));
  EXPECT_EQ(file->read(file->find("d")), (std::vector<float>{1, std::numeric_limits<float>::infinity()}));
  EXPECT_EQ(file->find("d").shape, (std::vector<u64>{2, 1}));
}

TEST(Tensors, NumpyFilesAreRead) {
  for (const auto hex : {kStoredNpzHex, kDeflatedNpzHex}) {
    const auto file = parse_tensors("F", from_hex(hex));
    ASSERT_EQ(file->tensors().size(), 3u);
    EXPECT_EQ(file->read(file->find("gamma")),
              std::vector<float>(std::begin(kSampleGamma), std::end(kSampleGamma)));
    EXPECT_EQ(file->read(file->find("beta")),
              std::vector<float>(std::begin(kSampleBeta), std::end(kSampleBeta)));
    const std::vector<float> wide = file->read(file->find("wide"));
    for (int i = 0; i < 8; ++i) EXPECT_FLOAT_EQ(wide[i], static_cast<float>(-2 + i * 4.0 / 7));
  }
}

TEST(Tensors, FilesOnDiskAndInMemoryAgree) {
  const kernels::ScratchFolder folder;
  for (const std::string& bytes :
       {from_hex(kStoredNpzHex), from_hex(kDeflatedNpzHex), safetensors_bytes({{"gamma", {1, 2}}}, {})}) {
    const std::string path = folder / "tensors";
    kernels::write_file(path, bytes);
    const auto on_disk = open_tensors(path);
    const auto in_memory = parse_tensors("F", bytes);
    ASSERT_EQ(on_disk->tensors().size(), in_memory->tensors().size());
    for (const TensorInfo& tensor : in_memory->tensors())
      EXPECT_EQ(on_disk->read(on_disk->find(tensor.name)), in_memory->read(tensor));
  }
  EXPECT_THROW(open_tensors(folder / "none"), kernels::IoError);
  EXPECT_THROW(open_tensors(folder.path()), kernels::IoError);
  kernels::write_file(folder / "empty", "");
  EXPECT_THROW(open_tensors(folder / "empty"), kernels::SpecError);
}

TEST(Tensors, HostileSafetensorsHeadersAreRefused) {
  const auto one = [](const std::string& entry, const std::string& data) {
    return safetensors("{\"a\":" + entry + "}", data);
  };
  const std::string four(4, '\0');
  EXPECT_EQ(refusal(one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})", four)), "");

  expect_refused("", "0 bytes");
  expect_refused("\x10", "1 bytes");
  expect_refused(std::string(8, '\xff'), "header length 18446744073709551615");
  expect_refused(std::string("\x01\0\0\0\0\0\0\0", 8), "header length 1 in a file of 8");
  expect_refused(safetensors("[]", ""), "not a JSON object");
  expect_refused(safetensors("{", ""), "header: line 1, column 2: is not JSON: unexpected end of input");
  expect_refused(safetensors("{\"a\xff\":1}", ""), "header");
  expect_refused(safetensors("{\"a\":" + std::string(1000, '[') + std::string(1000, ']') + "}", ""),
                 "nested deeper than 32");
  const std::string a = R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  expect_refused(safetensors("{" + a + "," + a + "}", four), "'a' occurs twice");
  expect_refused(safetensors(R"({"a":{"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]}})", four),
                 "'dtype' occurs twice");
  expect_refused(one("7", four), "'shape' is not a list");
  expect_refused(one(R"({"dtype":"F33","shape":[1],"data_offsets":[0,4]})", four),
                 "a: dtype F33 where F16, BF16, F32 or F64 is needed");
  expect_refused(one(R"({"dtype":4,"shape":[1],"data_offsets":[0,4]})", four), "'dtype' is not a string");
  expect_refused(one(R"({"dtype":"I32","shape":[1],"data_offsets":[0,4]})", four), "dtype I32 where");
  expect_refused(one(R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})", four), "non-negative integer");
  expect_refused(one(R"({"dtype":"F32","shape":[1.0],"data_offsets":[0,4]})", four), "non-negative integer");
  expect_refused(one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4,4]})", four), "[begin, end]");
  expect_refused(one(R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})", four), "[begin, end]");
  expect_refused(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})", four),
                 "ends at data byte 8 of 4");
  expect_refused(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})", four),
                 "take 8 bytes, data_offsets span 4");
  expect_refused(one(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})", ""),
                 "overflows");
  // The count fits, the bytes do not: 2^62 + 1 elements of 4 bytes wrap to 4.
  expect_refused(one(R"({"dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4]})", four),
                 "overflows");
  expect_refused(one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})", four + four),
                 "8 bytes, but the tensors end at 4");
  // A NUL ends no header, neither for the guard nor for the parser.
  expect_refused(
      safetensors(
          std::string(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})") + '\0' + R"("a":{)", four),
      "header");
  const auto two = [](const char* first, const char* second, size_t bytes) {
    return safetensors(std::string(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":)") + first +
                           R"(},"b":{"dtype":"F32","shape":[1],"data_offsets":)" + second + "}}",
                       std::string(bytes, '\0'));
  };
  EXPECT_EQ(refusal(two("[4,8]", "[0,4]", 8)), "");
  expect_refused(two("[0,4]", "[2,6]", 6), "b: begins at data byte 2, inside");
  expect_refused(two("[0,4]", "[0,4]", 4), "inside");
  expect_refused(two("[0,4]", "[5,9]", 9), "after a hole");
}

// A header is read in time that grows with its length, not with its square: 10^5 tensors took more than ten
// minutes, by which these would take more than the hour that ctest gives a test.
TEST(Tensors, HundredsOfThousandsOfTensorsAreReadAtOnce) {
  constexpr int kTensors = 300'000;
  std::string header = "{", data;
  for (int i = 0; i < kTensors; ++i)
    header += fmt::format(R"({}"layer.{}.weight":{{"dtype":"F16","shape":[1],"data_offsets":[{},{}]}})",
                          i == 0 ? "" : ",", i, 2 * i, 2 * i + 2);
  data.assign(2 * kTensors, '\0');
  const auto file = parse_tensors("many", safetensors(header + "}", data));
  EXPECT_EQ(file->tensors().size(), static_cast<size_t>(kTensors));
}

TEST(Tensors, OneReadAllocatesNoMoreThanTheLimit) {
  // 64 MiB + 4 bytes of zeros, honestly described.
  const u64 bytes = (u64{64} << 20) + 4;
  const std::string header = R"({"a":{"dtype":"F32","shape":[)" + std::to_string(bytes / 4) +
                             R"(],"data_offsets":[0,)" + std::to_string(bytes) + "]}}";
  expect_refused(safetensors(header, std::string(bytes, '\0')), "beyond the limit");
}

TEST(Tensors, EveryTruncationIsRefused) {
  for (const std::string& whole : {safetensors_bytes({{"gamma", {1, 2, 3}}, {"beta", {4}}}, {{"k", "v"}}),
                                   from_hex(kStoredNpzHex), from_hex(kDeflatedNpzHex)}) {
    ASSERT_EQ(refusal(whole), "");
    for (size_t length = 0; length < whole.size(); ++length)
      EXPECT_NE(refusal(whole.substr(0, length)), "") << length;
  }
}

// A zip entry carries a checksum: a flipped bit anywhere either is refused or changes nothing of the values
// that are read.
TEST(Tensors, NoFlippedBitOfAnNpzChangesAValue) {
  for (const auto hex : {kStoredNpzHex, kDeflatedNpzHex}) {
    const std::string whole = from_hex(hex);
    int refused = 0;
    for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
      std::string damaged = whole;
      damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
      try {
        const auto file = parse_tensors("F", damaged);
        EXPECT_EQ(file->read(file->find("gamma")),
                  std::vector<float>(std::begin(kSampleGamma), std::end(kSampleGamma)))
            << bit;
        EXPECT_EQ(file->read(file->find("beta")),
                  std::vector<float>(std::begin(kSampleBeta), std::end(kSampleBeta)))
            << bit;
      } catch (const kernels::SpecError&) {
        ++refused;
      }
    }
    EXPECT_GT(refused, 1000);  // the three arrays' headers and data alone are more bits than that
  }
}

TEST(Tensors, NpyHeadersAreReadStrictly) {
  // Replaces text of equal length inside the stored archive's gamma array; the checksum is then wrong, but
  // listing comes first.
  const auto with = [](const std::string& from, const std::string& to) {
    std::string bytes = from_hex(kStoredNpzHex);
    const size_t at = bytes.find(from);
    EXPECT_NE(at, std::string::npos);
    EXPECT_EQ(from.size(), to.size());
    return bytes.replace(at, from.size(), to);
  };
  expect_refused(with("NUMPY", "NUMPX"), "gamma: not a .npy array");
  expect_refused(with("NUMPY\x01", "NUMPY\x04"), "gamma: .npy version 4, which is not read");
  expect_refused(with("'descr'", "'descR'"), "unknown key");
  expect_refused(with("'shape': (8,), }", "'descr': '<f4',}"), "repeated key");
  expect_refused(with("False", "Falsy"), "neither True nor False");
  expect_refused(with("(8,)", "(-8)"), "not a non-negative integer");
  expect_refused(with("(8,), }", "(8,), x"), "'");
  expect_refused(with("(8,), }              ", "(99999999999999999999"), "overflows");
  expect_refused(with("(8,)", "(9,)"), "gamma: 9 elements of '<f4' in 32 bytes");
  expect_refused(with("<f4", ">f4"), "dtype '>f4' where");
  expect_refused(with("<f4", "<i4"), "dtype '<i4' where");
}

// Every dtype of safetensors' own `Dtype`, with its size in bits as its source states it, and two that it
// does not have.
TEST(Tensors, WhatIsNotReadMayBeOfAnyDtype) {
  const std::vector<std::pair<const char*, int>> dtypes = {
      {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
      {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
      {"U16", 16},    {"I32", 32},    {"U32", 32},    {"C64", 64},        {"I64", 64},        {"U64", 64}};
  const auto bytes_of = [](const std::string& dtype, int elements, int bytes) {
    return safetensors(
        fmt::format(
            R"({{"norm.weight":{{"dtype":"F32","shape":[2],"data_offsets":[0,8]}},
                "q":{{"dtype":"{}","shape":[2,{}],"data_offsets":[8,{}]}}}})",
            dtype, elements / 2, 8 + bytes),
        std::string("\0\0\x80\x3f\0\0\0\x40", 8) + std::string(static_cast<size_t>(bytes), '\x5a'));
  };
  for (const auto& [dtype, bits] : dtypes) {
    const auto file = parse_tensors("F", bytes_of(dtype, 8, bits));
    EXPECT_EQ(file->read(file->find("norm.weight")), (std::vector<float>{1, 2})) << dtype;
    EXPECT_EQ(file->find("q").elements, 8u) << dtype;
    EXPECT_EQ(file->find("q").unknown, "") << dtype;
    EXPECT_THROW(file->read(file->find("q")), kernels::SpecError) << dtype;
    // what is known stays strict
    expect_refused(bytes_of(dtype, 8, bits + 1),
                   fmt::format("take {} bytes, data_offsets span {}", bits, bits + 1));
  }
  expect_refused(bytes_of("F4", 2, 2), "take 1 bytes, data_offsets span 2");
  expect_refused(bytes_of("F6_E2M3", 2, 2), "q: 2 elements of F6_E2M3 do not fill whole bytes");
  for (const char* dtype : {"F33", "F2_OF_TOMORROW"}) {
    const auto file = parse_tensors("F", bytes_of(dtype, 8, 5));
    EXPECT_EQ(file->read(file->find("norm.weight")), (std::vector<float>{1, 2}));
    EXPECT_EQ(file->find("q").unknown, std::string("dtype ") + dtype);
    expect_refused(bytes_of(dtype, 8, 5), std::string("q: dtype ") + dtype + " where");
    expect_refused(bytes_of(dtype, 8, 5) + "x", "14 bytes, but the tensors end at 13");
  }
}

// An archive of stored entries, as zipfile writes it.
std::string zip_of(const std::vector<std::pair<std::string, std::string>>& entries) {
  const auto number = [](u64 value, int bytes) {
    return std::string(reinterpret_cast<const char*>(&value), static_cast<size_t>(bytes));
  };
  const auto crc = [](const std::string& data) {
    kernels::u32 c = ~0u;
    for (const char byte : data) {
      c ^= static_cast<unsigned char>(byte);
      for (int k = 0; k < 8; ++k) c = c >> 1 ^ (c & 1 ? 0xedb88320u : 0);
    }
    return ~c;
  };
  std::string file, directory;
  for (const auto& [name, data] : entries) {
    const std::string common = number(20, 2) + number(0, 2) + number(0, 2) + number(0, 4) +
                               number(crc(data), 4) + number(data.size(), 4) + number(data.size(), 4) +
                               number(name.size(), 2) + number(0, 2);
    directory += "PK\x01\x02" + number(20, 2) + common + number(0, 2) + number(0, 2) + number(0, 2) +
                 number(0, 4) + number(file.size(), 4) + name;
    file += "PK\x03\x04" + common + name + data;
  }
  return file + directory + "PK\x05\x06" + number(0, 4) + number(entries.size(), 2) +
         number(entries.size(), 2) + number(directory.size(), 4) + number(file.size(), 4) + number(0, 2);
}

std::string npy(const std::string& descr, const std::string& shape, const std::string& data,
                int version = 1) {
  const std::string header = "{'descr': " + descr + ", 'fortran_order': False, 'shape': " + shape + ", }\n";
  const u64 length = header.size();
  return std::string("\x93NUMPY") + static_cast<char>(version) + '\0' +
         std::string(reinterpret_cast<const char*>(&length), version == 1 ? 2 : 4) + header + data;
}

TEST(Tensors, WhatIsNotReadOfAnArchiveMayBeAnyArray) {
  const std::string one("\0\0\x80\x3f", 4);
  const std::vector<std::pair<std::string, std::string>> arrays = {
      {npy("[('a', '<f4'), ('b', '<i4')]", "(3,)", std::string(24, 'x')),
       "structured dtype [('a', '<f4'), ('b', '<i4')]"},
      {npy("[('a]', [('x', '|S3'), (\"it's\", '<f8')]), (('title', 'name'), '<i2', (2, 3))]", "()",
           std::string(23, 'x')),
       "structured dtype [('a]'"},
      {npy("[('\xc3\xa9', '<f4')]", "(1,)", one, 3), "structured dtype"},
      {npy("'<f4'" + std::string(20'000, ' '), "(1,)", one), "header of 200"},
      {npy("'<f4'", "(1,)", one, 7), ".npy version 7"},
  };
  for (const auto& [array, unknown] : arrays) {
    const std::string bytes = zip_of({{"norm.weight.npy", npy("'<f4'", "(1,)", one)}, {"rec.npy", array}});
    const auto file = parse_tensors("F", bytes);
    EXPECT_EQ(file->read(file->find("norm.weight")), std::vector<float>{1});
    EXPECT_TRUE(file->find("rec").unknown.starts_with(unknown)) << file->find("rec").unknown;
    expect_refused(bytes, "rec: " + unknown);
  }
  // Version 3.0 of a plain array is read.
  const auto third = parse_tensors("F", zip_of({{"g.npy", npy("'<f4'", "(1,)", one, 3)}}));
  EXPECT_EQ(third->read(third->find("g")), std::vector<float>{1});
  // Damage stays damage.
  for (const char* descr : {"[('a', '<f4')", "[('a', '<f4'))", "[('a, '<f4')]", "[", "("})
    expect_refused(zip_of({{"rec.npy", npy(descr, "(3,)", "")}}), "rec: .npy header: ");
}

TEST(Tensors, AFileOfAnotherKindIsNamed) {
  expect_refused(zip_of({{"model/data.pkl", "\x80\x02}q"}, {"model/version", "3"}}),
                 "safetensors.torch.save_file");
  expect_refused(
      "\x80\x02\x8a\nl\xfc\x9c"
      "F\xf9 j\xa8P\x19.",
      "a pickle of PyTorch");
  expect_refused(npy("'<f4'", "(1,)", "abcd"), "numpy.savez");
  expect_refused(
      R"({"metadata": {"total_size": 1}, "weight_map": {"a": "model-00001-of-00002.safetensors"}})",
      "such as model-00001-of-00002.safetensors");
  expect_refused(R"({"architectures": ["GemmaForCausalLM"]})", "a JSON text");
  // each level of it would take 100 bytes
  for (const char* opening : {"", R"({"a":)"})
    expect_refused(opening + std::string(1 << 20, '['), "a JSON text");
  expect_refused("GGUF\x03____________", "GGUF");
  expect_refused("\x89HDF\r\n\x1a\n________", "HDF5");
  expect_refused("neither of these", "header length");
}

TEST(Tensors, AMissingNameIsNamed) {
  const auto file = parse_tensors("F", safetensors_bytes({{"gamma", {1}}}, {}));
  EXPECT_EQ(refusal_of([&] { file->find("beta"); }), "F: beta: no such tensor among 1");
}

}  // namespace
}  // namespace outgrad::validation
