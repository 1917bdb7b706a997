// SHA-256 (FIPS 180-4).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace outgrad::autotune {

class Sha256 {
 public:
  using Digest = std::array<unsigned char, 32>;

  // By the processor's own instructions where it has them, or by portable code, which tests compare with them.
  enum class Way { kFastest, kPortable };
  explicit Sha256(Way way = Way::kFastest);

  void add(const void* data, std::size_t bytes);
  // Of all that was added; nothing may be added after it.
  Digest digest();

 private:
  static constexpr std::size_t kBlock = 64;
  using Compress = void (*)(std::uint32_t* state, const unsigned char* data, std::size_t blocks);

  Compress compress_;
  std::array<std::uint32_t, 8> state_;
  std::array<unsigned char, kBlock> rest_;  // what does not fill a block yet
  std::uint64_t bytes_ = 0;
};

std::string hex(const Sha256::Digest& digest);

// Of a text, as 64 hex digits.
std::string sha256(const std::string& bytes);

}  // namespace outgrad::autotune
