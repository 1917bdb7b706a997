// SHA-256 by portable code and by x86's SHA extensions.
#include "kernels/support/digest.h"

#include <algorithm>
#include <bit>
#include <stdexcept>

#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace outgrad::kernels {
namespace {

constexpr std::size_t kBlock = 64;
constexpr std::string_view kDigits = "0123456789abcdef";

// The constants are the first 32 bits of the fractional parts of the cube roots (these) and square roots (the
// first state) of the first primes.
constexpr std::array<std::uint32_t, 64> kRoots = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::uint32_t big_endian(const unsigned char* byte) {
  return std::uint32_t{byte[0]} << 24 | std::uint32_t{byte[1]} << 16 | std::uint32_t{byte[2]} << 8 | byte[3];
}

void compress_portably(std::uint32_t* state, const unsigned char* data, std::size_t blocks) {
  for (; blocks > 0; --blocks, data += kBlock) {
    std::array<std::uint32_t, 64> w;
    for (std::size_t i = 0; i < 16; ++i) w[i] = big_endian(data + 4 * i);
    for (std::size_t i = 16; i < 64; ++i) {
      const std::uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
      const std::uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
      w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    std::uint32_t a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5],
                  g = state[6], h = state[7];
    for (std::size_t i = 0; i < 64; ++i) {
      const std::uint32_t t1 = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                               ((e & f) ^ (~e & g)) + kRoots[i] + w[i];
      const std::uint32_t t2 =
          (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d, state[4] += e, state[5] += f, state[6] += g,
        state[7] += h;
  }
}

#ifdef __x86_64__
bool has_sha_instructions() {
  constexpr unsigned kSsse3 = 1u << 9, kSse41 = 1u << 19, kSha = 1u << 29;  // leaf 1: ecx; leaf 7: ebx
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kSsse3) == 0 || (c & kSse41) == 0) return false;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & kSha) != 0;
}

// The instructions keep the state as the words a, b, e, f and c, d, g, h, highest first, and go four rounds
// on for four words of the message.
__attribute__((target("sha,sse4.1"))) void compress_by_instructions(std::uint32_t* state,
                                                                    const unsigned char* data,
                                                                    std::size_t blocks) {
  const __m128i big_endian_words = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  const __m128i cdab = _mm_shuffle_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(state)), 0xb1);
  const __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(state + 4)), 0x1b);
  __m128i abef = _mm_alignr_epi8(cdab, efgh, 8), cdgh = _mm_blend_epi16(efgh, cdab, 0xf0);
  for (; blocks > 0; --blocks, data += kBlock) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i w[4];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      __m128i& own = w[i % 4];
      if (i < 4) {
        own = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data) + i), big_endian_words);
      } else {
        const __m128i last = w[(i + 3) % 4];
        own = _mm_add_epi32(_mm_sha256msg1_epu32(own, w[(i + 1) % 4]),
                            _mm_alignr_epi8(last, w[(i + 2) % 4], 4));
        own = _mm_sha256msg2_epu32(own, last);
      }
      const __m128i sum =
          _mm_add_epi32(own, _mm_loadu_si128(reinterpret_cast<const __m128i*>(kRoots.data()) + i));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1b), dchg = _mm_shuffle_epi32(cdgh, 0xb1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state), _mm_blend_epi16(feba, dchg, 0xf0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}
#endif

}  // namespace

Sha256::Sha256(Way way)
    : compress_(compress_portably),
      state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19},
      rest_{} {
#ifdef __x86_64__
  static const bool has = has_sha_instructions();
  if (way == Way::kFastest && has) compress_ = compress_by_instructions;
#else
  static_cast<void>(way);
#endif
}

void Sha256::add(const void* data, std::size_t bytes) {
  const auto* from = static_cast<const unsigned char*>(data);
  const std::size_t held = bytes_ % kBlock;
  bytes_ += bytes;
  if (held > 0) {
    const std::size_t taken = std::min(kBlock - held, bytes);
    std::copy_n(from, taken, rest_.data() + held);
    from += taken, bytes -= taken;
    if (held + taken < kBlock) return;
    compress_(state_.data(), rest_.data(), 1);
  }
  compress_(state_.data(), from, bytes / kBlock);
  std::copy_n(from + bytes / kBlock * kBlock, bytes % kBlock, rest_.data());
}

std::string Sha256::digest() {
  const std::uint64_t bits = 8 * bytes_;
  std::array<unsigned char, 2 * kBlock> end = {0x80};
  // 8 bytes of it are the length
  const std::size_t held = bytes_ % kBlock, padding = (held < kBlock - 8 ? kBlock : 2 * kBlock) - held;
  for (std::size_t i = 0; i < 8; ++i) end[padding - 1 - i] = static_cast<unsigned char>(bits >> (8 * i));
  add(end.data(), padding);
  std::string digest;
  for (std::size_t i = 0; i < kDigestBytes; ++i)
    digest += static_cast<char>(state_[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char c : bytes)
    for (const int shift : {4, 0}) text += kDigits[static_cast<unsigned char>(c) >> shift & 15];
  return text;
}

std::string bytes_of_hex(std::string_view text) {
  if (text.size() % 2 != 0) throw std::invalid_argument("half a byte");
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::size_t digit = kDigits.find(text[i]);
    if (digit == std::string_view::npos) throw std::invalid_argument("not hexadecimal");
    if (i % 2 == 0)
      bytes += static_cast<char>(digit << 4);
    else
      bytes.back() = static_cast<char>(bytes.back() | static_cast<char>(digit));
  }
  return bytes;
}

std::string sha256(std::string_view bytes) {
  Sha256 sum;
  sum.add(bytes.data(), bytes.size());
  return hex(sum.digest());
}

}  // namespace outgrad::kernels
