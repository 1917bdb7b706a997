// SHA-256, and how the outputs of a sweep are hashed: the reference that a run on another device compares with.
//
// Outputs are those of a forward and a backward pass at dy = 1 over the patterns of a domain in the sweep's order (Domain): y and dx as stored, little
// endian, every NaN as kernels/params.h's canonical one, and the mask packed as the kernels pack it, bit i % 32 of word i / 32, from the first pattern
// of a chunk of 2^22 on. The digest of a sweep is the SHA-256 of the digests of its chunks, so that chunks may be made anywhere.
#pragma once

#include <openssl/evp.h>

#include <array>
#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

namespace outgrad::validation {

class Sha256 {
 public:
  using Digest = std::array<unsigned char, 32>;

  Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    if (!context_ || EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) != 1) throw std::runtime_error("SHA-256 is not to be had of libcrypto");
  }
  void add(const void* data, std::size_t bytes) {
    if (EVP_DigestUpdate(context_.get(), data, bytes) != 1) throw std::runtime_error("SHA-256 failed");
  }
  /// Of all that was added; nothing may be added after it.
  Digest digest() {
    Digest digest{};
    if (EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr) != 1) throw std::runtime_error("SHA-256 failed");
    return digest;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

inline std::string hex(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

/// Its inverse; std::invalid_argument where a text is not that of bytes.
inline std::string bytes_of_hex(std::string_view text) {
  std::string bytes;
  const auto nibble = [](char c) {
    const std::size_t at = std::string_view("0123456789abcdef").find(c);
    if (at == std::string_view::npos) throw std::invalid_argument("not hexadecimal");
    return static_cast<int>(at);
  };
  if (text.size() % 2 != 0) throw std::invalid_argument("half a byte");
  for (std::size_t i = 0; i < text.size(); i += 2) bytes += static_cast<char>(nibble(text[i]) << 4 | nibble(text[i + 1]));
  return bytes;
}

}  // namespace outgrad::validation
