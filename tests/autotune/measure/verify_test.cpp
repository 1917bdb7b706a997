// The verifier on every kernel: it passes what is right, and each planted fault is seen and named.
#include "autotune/measure/verify.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <functional>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "autotune/space/variant.h"
#include "kernels/c/outgrad.h"
#include "kernels/c/table.h"
#include "kernels/host/functions.h"

namespace outgrad::autotune {
namespace {

using kernels::i64;
using kernels::u64;
using Function = std::function<void(const Arguments&)>;

VariantFunction reference_of(const Problem& problem) {
  return problem.has_fit() ? fits_of(problem).front()->reference : fitless_reference(problem);
}

std::string verdict(const Problem& problem, const Function& function) {
  return Verifier(problem, reference_of(problem), 1).verdict(function, 4096).mismatch.value_or("equal");
}

// The verdict on the reference followed by `spoil`.
std::string spoiled(const Problem& problem, const Function& spoil) {
  return verdict(problem, [&](const Arguments& a) {
    reference_of(problem)(a);
    spoil(a);
  });
}

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Verifier, EveryReferenceAgreesWithItself) {
  for (const KernelId kernel : kAllKernels)
    for (const FormatId format : kAllFormats) {
      const Problem problem{kernel, format};
      const auto [mismatch, checked] =
          Verifier(problem, reference_of(problem), 1).verdict(reference_of(problem), 4096);
      EXPECT_EQ(mismatch, std::nullopt) << problem.name();
      EXPECT_GT(checked, 1 << 20) << problem.name();
    }
}

// What callers run, against the reference, which is scalar. On one thread, for this process forks children
// for other tests.
TEST(Verifier, TheLibrarysKernelsAgree) {
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  for (const KernelId kernel : kAllKernels)
    for (const FormatId format : kAllFormats) {
      const Problem problem{kernel, format};
      const c::FormatKernels& kernels = c::chosen_kernels(static_cast<outgrad_format>(format));
      const outgrad_call call{};
      const auto run = [&](const Arguments& a) { kernels.run[static_cast<int>(kernel)]({call, a}); };
      EXPECT_EQ(verdict(problem, run), "equal") << problem.name();
    }
  omp_set_num_threads(threads);
}

// One bit of the last element of each output; a byte of each input; a byte before each array.
TEST(Verifier, SeesAFaultInEveryArrayOfEveryKernel) {
  for (const KernelId kernel : kAllKernels) {
    const Problem problem{kernel, FormatId::kBf16};
    const std::span<const Operand> all = operands(kernel);
    const VariantFunction reference = reference_of(problem);
    const Verifier verifier(problem, reference, 1);
    for (std::size_t k = 0; k < all.size(); ++k) {
      SCOPED_TRACE(std::string(name_of(kernel)) + " " + all[k].name);
      const auto bytes = [&](const Arguments& a) {
        Problem of_call = problem.sized(a.rows, a.cols);
        of_call.code_bits = a.code.bits;
        return of_call.array_bytes(all[k]);
      };
      const auto spoil_if = [&](const std::function<void(unsigned char*, std::size_t)>& spoil) {
        const auto with_fault = [&](const Arguments& a) {
          reference(a);
          if (a.array[k] != nullptr && bytes(a) > 0)
            spoil(a.at<unsigned char>(static_cast<int>(k)), bytes(a));
        };
        return verifier.verdict(with_fault, 4096).mismatch.value_or("equal");
      };
      const auto width = static_cast<std::size_t>(problem.element_bytes(all[k]));
      if (all[k].role == Role::kOutput) {
        EXPECT_TRUE(says(spoil_if([&](unsigned char* array, std::size_t size) { array[size - width] ^= 1; }),
                         std::string(all[k].name) + "["));
        EXPECT_TRUE(says(
            spoil_if([&](unsigned char* array, std::size_t size) { std::fill(array, array + size, 0xa5); }),
            std::string(all[k].name) + "["))
            << "not written";
      }
      if (all[k].role == Role::kInput) {
        EXPECT_TRUE(says(spoil_if([](unsigned char* array, std::size_t) { array[0] ^= 1; }),
                         std::string("wrote to the input ") + all[k].name));
      }
      EXPECT_TRUE(says(spoil_if([](unsigned char* array, std::size_t) { array[-1] ^= 1; }),
                       std::string("wrote before the start of ") + all[k].name));
    }
  }
}

// Faults that only one kind of call shows.
TEST(Verifier, SeesFaultsThatFewCallsShow) {
  const Problem problem{KernelId::kLayernormBackward, FormatId::kBf16};
  enum { kDy, kY, kGamma, kBeta, kRstd, kDx, kDgamma, kDbeta, kWorkspace };
  const auto flips = [&](const std::function<bool(const Arguments&)>& when) {
    return spoiled(problem, [&](const Arguments& a) {
      if (a.elements() > 0 && when(a)) a.at<unsigned short>(kDx)[a.elements() / 2] ^= 1;
    });
  };
  EXPECT_EQ(flips([](const Arguments&) { return false; }), "equal");
  EXPECT_TRUE(says(flips([](const Arguments& a) { return a.cols == 1025; }), "(33 x 1025 elements)"));
  EXPECT_TRUE(says(flips([](const Arguments& a) { return a.rows > 2000; }), "(2051 x 8 elements)"));
  EXPECT_TRUE(says(flips([](const Arguments& a) { return a.cols > 10'000; }), "(2 x 16400 elements)"));
  EXPECT_TRUE(says(flips([](const Arguments& a) { return a.array[kDx] == a.array[kDy]; }), "dx over dy)"));
  EXPECT_TRUE(
      says(flips([](const Arguments& a) { return a.array[kGamma] == nullptr; }), ", no gamma, no beta)"));
  EXPECT_TRUE(
      says(flips([](const Arguments& a) { return a.array[kBeta] == nullptr && a.array[kGamma] != nullptr; }),
           ", no beta, no dbeta)"));
  EXPECT_TRUE(
      says(flips([](const Arguments& a) { return a.array[kDgamma] == nullptr; }), ", no dgamma, no dbeta)"));
  EXPECT_TRUE(
      says(flips([](const Arguments& a) { return a.elements() * 2 >= 2 << 20; }), "(1024 x 1024 elements)"))
      << "where outputs are streamed";
  EXPECT_TRUE(says(spoiled(problem,
                           [](const Arguments& a) {
                             if (a.array[kDgamma] != nullptr)
                               a.at<float>(kDgamma)[0] +=
                                   0 * a.at<float>(
                                           kWorkspace)[kernels::norm_backward_workspace(a.rows, a.cols) - 1];
                           }),
                   "dgamma[0]: got 0x7fc00000"))
      << "reads what nobody has written";
  const Problem residual{KernelId::kResidualRmsnormForward, FormatId::kF32};
  const auto over = [&](int output, int input) {
    return spoiled(residual, [=](const Arguments& a) {
      if (a.array[output] == a.array[input]) a.at<unsigned>(output)[0] ^= 1;
    });
  };
  enum { kX, kResidual, kRmsGamma, kZ, kOut };
  EXPECT_TRUE(says(over(kZ, kX), "z over x)"));
  EXPECT_TRUE(says(over(kZ, kResidual), "z over residual)"));
  EXPECT_TRUE(says(over(kOut, kX), "y over x)"));
  EXPECT_TRUE(says(over(kOut, kResidual), "y over residual)"));
}

// A fault that only some codes, lengths or elements show.
TEST(Verifier, SeesFaultsThatFewCodesShow) {
  const Problem forward{KernelId::kGeluForwardCode, FormatId::kBf16},
      backward{KernelId::kGeluBackwardCode, FormatId::kF32};
  enum { kX, kY, kNewCodes };
  enum { kDy, kCodes, kDx };
  const auto flips = [&](const std::function<bool(const Arguments&)>& when) {
    return spoiled(forward, [&](const Arguments& a) {
      if (a.elements() > 0 && when(a))
        a.at<unsigned char>(kNewCodes)[kernels::code_bytes(a.code.bits, a.elements()) - 1] ^= 1;
    });
  };
  EXPECT_EQ(flips([](const Arguments&) { return false; }), "equal");
  for (int bits = 1; bits <= kernels::kMostCodeBits; ++bits) {
    const std::string name = bits == 1 ? "1 bit" : std::to_string(bits) + " bits";
    EXPECT_TRUE(says(flips([&](const Arguments& a) { return a.code.bits == bits && a.code.seed == nullptr; }),
                     "elements, codes of " + name + ")"))
        << bits;
    const bool dithered = kernels::code_bits_hold(bits, true);
    EXPECT_EQ(says(flips([&](const Arguments& a) { return a.code.bits == bits && a.code.seed != nullptr; }),
                   name + ", dithered by "),
              dithered)
        << bits;
  }
  EXPECT_TRUE(says(flips([](const Arguments& a) { return a.code.bits == 7 && a.elements() % 8 == 7; }),
                   "(7 elements, codes of 7 bits)"));
  for (const bool dithered : {false, true})
    EXPECT_TRUE(says(flips([&](const Arguments& a) {
                       return (a.code.seed != nullptr) == dithered && a.code.bits == 3 &&
                              a.elements() * 2 >= 2 << 20;
                     }),
                     "(1048576 elements, codes of 3 bits"));
  EXPECT_TRUE(
      says(flips([](const Arguments& a) { return a.array[kY] == a.array[kX] && a.code.seed != nullptr; }),
           ", y over x)"));
  // Bits beyond the last code of the last byte.
  EXPECT_TRUE(says(spoiled(forward,
                           [](const Arguments& a) {
                             if (a.elements() % 8 == 1 && a.code.bits == 2)
                               a.at<unsigned char>(kNewCodes)[kernels::code_bytes(2, a.elements()) - 1] |=
                                   0x80;
                           }),
                   "codes[0]: got 0x8"));
  // A dither by another seed, by none, or by the element's place in a block.
  const auto by_another_seed = [](const Problem& problem, u64 seed) {
    return verdict(problem, [&](Arguments a) {
      if (a.code.seed != nullptr) a.code.seed = &seed;
      reference_of(problem)(a);
    });
  };
  for (const u64 seed : {u64{0}, u64{7}})
    for (const Problem& problem : {forward, backward})
      EXPECT_TRUE(says(by_another_seed(problem, seed), ", dithered by ")) << seed << problem.name();
  EXPECT_TRUE(says(verdict(backward,
                           [&](Arguments a) {
                             a.code.seed = nullptr;
                             reference_of(backward)(a);
                           }),
                   ", dithered by 0)"));
  EXPECT_TRUE(says(verdict(backward,
                           [&](Arguments a) {
                             const i64 all = a.elements();
                             for (i64 begin = 0; begin < all; begin += 1024) {
                               Arguments part = a;
                               part.cols = std::min<i64>(1024, all - begin);
                               part.array[kDy] = a.at<float>(kDy) + begin;
                               part.array[kCodes] = a.at<unsigned char>(kCodes) + begin / 8 * a.code.bits;
                               part.array[kDx] = a.at<float>(kDx) + begin;
                               reference_of(backward)(part);
                             }
                           }),
                   "(1025 elements, codes of 2 bits, dithered by 0)"));
}

#if defined(__SSE2__)
TEST(Verifier, SeesTheFloatingPointEnvironment) {
  const Problem problem{KernelId::kRmsnormForward, FormatId::kF32};
  constexpr unsigned kFlush = 0x8040;
  EXPECT_TRUE(says(spoiled(problem, [](const Arguments&) { _mm_setcsr(_mm_getcsr() & ~kFlush); }),
                   "the caller's floating-point environment is not restored"));
  // A kernel that computes as its caller does loses the subnormals.
  volatile float one = 1;
  EXPECT_TRUE(says(spoiled(problem,
                           [&](const Arguments& a) {
                             for (i64 i = 0; i < a.elements(); ++i) a.at<float>(2)[i] *= one;
                           }),
                   "caller flushes to zero)"));
}
#endif

// A problem's own number of columns is tried, beside the fixed ones.
TEST(Verifier, TriesTheShapeThatIsTuned) {
  const Problem problem{KernelId::kRmsnormForward, FormatId::kBf16, 1 << 20, 4224};
  EXPECT_TRUE(says(spoiled(problem,
                           [](const Arguments& a) {
                             if (a.cols == 4224) a.at<unsigned short>(2)[4223] ^= 1;
                           }),
                   "(12 x 4224 elements)"));
}

// Code that is made for its columns may have been compiled for nothing else: they are tried in every way,
// however many there are.
TEST(Verifier, TriesTheShapeThatIsTunedInEveryWay) {
  enum { kDy, kY, kGamma, kBeta, kRstd, kDx, kDgamma };
  for (const i64 cols : {4224, 20'000, 1 << 18}) {
    const auto flips = [&](const std::function<bool(const Arguments&)>& when) {
      return spoiled({KernelId::kLayernormBackward, FormatId::kBf16, 64, cols}, [&](const Arguments& a) {
        if (a.cols == cols && when(a)) a.at<unsigned short>(kDx)[a.elements() / 2] ^= 1;
      });
    };
    const auto holds_nan = [](const Arguments& a) {
      for (i64 i = 0; i < a.elements(); ++i)
        if ((a.at<unsigned short>(kY)[i] & 0x7fff) > 0x7f80) return true;
      return false;
    };
    EXPECT_NE(flips([](const Arguments&) { return true; }), "equal") << cols;
    EXPECT_NE(flips(holds_nan), "equal") << cols;
    EXPECT_NE(flips([](const Arguments& a) { return a.array[kDx] == a.array[kDy]; }), "equal") << cols;
    EXPECT_NE(flips([](const Arguments& a) { return a.array[kGamma] == nullptr; }), "equal") << cols;
    EXPECT_NE(flips([](const Arguments& a) { return a.array[kDgamma] == nullptr; }), "equal") << cols;
  }
}

}  // namespace
}  // namespace outgrad::autotune
