// The host kernels' outputs over every 16-bit pattern have the digests of the committed sweeps, by code that
// shares nothing with the sweep but the order of the patterns; and what is refused.
#include "tests/gpu/digests.h"

#include <gtest/gtest.h>

#include <cstring>

#include "kernels/host/api.h"
#include "kernels/support/errors.h"
#include "kernels/support/files.h"

namespace outgrad::tests::gpu {
namespace {

using kernels::BF16;
using kernels::F16;

const std::string kSweeps = OUTGRAD_SOURCE_DIR "/notebooks_data/sweeps";

template <class T>
class HostOutputs : public SweptOutputs<T> {
 public:
  typename SweptOutputs<T>::Chunk compute(u64 begin, i64 n) override {
    y_.resize(static_cast<std::size_t>(n));
    mask_.resize(static_cast<std::size_t>(n + 31) / 32);
    dx_.assign(y_.size(), kernels::narrow<T>(1.0f));
    for (i64 i = 0; i < n; ++i) y_[static_cast<std::size_t>(i)] = swept<T>(begin + static_cast<u64>(i));
    kernels::gelu_forward<T>(y_.data(), y_.data(), mask_.data(), n);
    kernels::gelu_backward<T>(dx_.data(), y_.data(), mask_.data(), dx_.data(), n);
    spoil(begin);
    return {y_.data(), mask_.data(), dx_.data()};
  }

 protected:
  virtual void spoil(u64) {}
  std::vector<T> y_, dx_;
  std::vector<u32> mask_;
};

template <class T, class Source = HostOutputs<T>>
OutputDigests by_host(int threads = 2) {
  return digests_of<T>([] { return std::make_unique<Source>(); }, threads);
}

template <class T>
void expect_as_swept() {
  const OutputDigests got = by_host<T>(), want = digests_of_sweep(kSweeps, kernels::Format<T>::kName);
  EXPECT_EQ(got.y, want.y);
  EXPECT_EQ(got.mask, want.mask);
  EXPECT_EQ(got.dx, want.dx);
}

TEST(Digests, OfTheHostKernelsAreTheSweepsInBf16) { expect_as_swept<BF16>(); }
TEST(Digests, OfTheHostKernelsAreTheSweepsInF16) { expect_as_swept<F16>(); }
TEST(DigestsExhaustive, OfTheHostKernelsAreTheSweepsInF32) { expect_as_swept<float>(); }

TEST(Digests, TheOrderHasEveryPatternOnce) {
  std::vector<int> seen(1 << 16);
  for (u64 i = 0; i < seen.size(); ++i) ++seen[swept<F16>(i).bits];
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), 1 << 16);
  const std::pair<u64, u32> places[] = {
      {0, 0xff7fffff},          {0x7f7fffff, 0x80000000}, {0x7f800000, 0},          {0xfeffffff, 0x7f7fffff},
      {0xff000000, 0x7f800000}, {0xff7fffff, 0x7fffffff}, {0xff800000, 0xff800000}, {0xffffffff, 0xffffffff}};
  for (const auto& [place, bits] : places) EXPECT_EQ(kernels::bits_of(swept<float>(place)), bits) << place;
}

// The last element of an array with another bit: another digest of that array alone.
class OneBitOff : public HostOutputs<BF16> {
  void spoil(u64) override { dx_[12'345].bits ^= 1; }
};
TEST(Digests, AWrongBitIsAnotherDigestOfItsArray) {
  const OutputDigests got = by_host<BF16, OneBitOff>(), want = digests_of_sweep(kSweeps, "bf16");
  EXPECT_EQ(got.y, want.y);
  EXPECT_EQ(got.mask, want.mask);
  EXPECT_NE(got.dx, want.dx);
  DigestReport report;
  report.add("bf16", want, want);
  EXPECT_TRUE(report.equal);
  testing::internal::CaptureStdout();
  report.add("bf16", got, want);
  EXPECT_FALSE(report.equal);
  const std::string said = testing::internal::GetCapturedStdout();
  EXPECT_NE(said.find("bf16 dx   " + got.dx + " DIFFERS from " + want.dx), std::string::npos) << said;
}

class OtherNans : public HostOutputs<F16> {
  void spoil(u64) override {
    for (F16& value : y_)
      if ((value.bits & 0x7fff) > 0x7c00) value.bits = 0xfd55;
  }
};
TEST(Digests, NansAreOnePattern) {
  EXPECT_EQ((by_host<F16, OtherNans>().y), digests_of_sweep(kSweeps, "f16").y);
}

class Failing : public HostOutputs<float> {
  void spoil(u64) override { throw kernels::CudaError("a device that is gone"); }
};
TEST(Digests, AThreadsFailureIsTheCallers) { EXPECT_THROW((by_host<float, Failing>(4)), kernels::CudaError); }

TEST(Digests, AMissingOrDamagedSweepIsOneLine) {
  const kernels::ScratchFolder folder;
  EXPECT_THROW(digests_of_sweep(folder.path(), "bf16"), kernels::IoError);
  for (const char* damage : {"", "{", "[]", "{\"domains\": []}", "{\"domains\": [{\"x_format\": \"bf16\"}]}",
                             "{\"domains\": [{\"x_format\": \"bf16\", \"sha256\": 1}]}",
                             "{\"domains\": [{\"x_format\": \"f16\", \"sha256\": {}}]}"}) {
    kernels::write_file(folder / "gelu_bf16.json", damage);
    try {
      digests_of_sweep(folder.path(), "bf16");
      ADD_FAILURE() << damage;
    } catch (const kernels::SpecError& error) {
      EXPECT_NE(std::string(error.what()).find("gelu_bf16.json: sha256: no digests of x in bf16"),
                std::string::npos)
          << error.what();
    }
  }
}

}  // namespace
}  // namespace outgrad::tests::gpu
