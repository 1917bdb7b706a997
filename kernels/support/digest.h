// SHA-256 (FIPS 180-4), and bytes as hexadecimal digits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace outgrad::kernels {

class Sha256 {
 public:
  static constexpr std::size_t kDigestBytes = 32;

  // By the processor's own instructions where it has them, or by portable code, which tests compare with
  // them.
  enum class Way { kFastest, kPortable };
  explicit Sha256(Way way = Way::kFastest);

  void add(const void* data, std::size_t bytes);
  // The bytes of the digest of all that was added; nothing may be added after it.
  std::string digest();

 private:
  static constexpr std::size_t kBlock = 64;
  using Compress = void (*)(std::uint32_t* state, const unsigned char* data, std::size_t blocks);

  Compress compress_;
  std::array<std::uint32_t, 8> state_;
  std::array<unsigned char, kBlock> rest_;  // what does not fill a block yet
  std::uint64_t bytes_ = 0;
};

std::string hex(std::string_view bytes);
// Its inverse; std::invalid_argument where a text is not that of bytes.
std::string bytes_of_hex(std::string_view text);

// Of a text, as 64 hex digits.
std::string sha256(std::string_view bytes);

}  // namespace outgrad::kernels
