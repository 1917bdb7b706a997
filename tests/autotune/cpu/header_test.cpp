// Headers that the tuner was not built with, as fits to choose among: read, compiled, verified; what cannot
// serve is refused by file and place.
#include "autotune/cpu/header.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "autotune/cpu/executor.h"
#include "autotune/evidence/tuned_header.h"
#include "autotune/search/tuner.h"
#include "kernels/fits.h"
#include "kernels/generated/gelu_f32_rel.h"
#include "kernels/support/files.h"
#include "tests/refusal.h"

namespace outgrad::autotune {
namespace {

std::string committed(const std::string& name) {
  return kernels::read_file(OUTGRAD_SOURCE_DIR "/kernels/generated/" + name + ".h");
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

// A committed header under another name: for the tuner a fit of the caller's.
std::string renamed(const std::string& name, const std::string& to) {
  return replaced(
      replaced(committed(name), "struct " + type_name(name) + " ", "struct " + type_name(to) + " "),
      "\"" + name + "\"", "\"" + to + "\"");
}

class Headers : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_ / "headers"); }
  std::string headers() const { return folder_ / "headers"; }
  void write(const std::string& file, const std::string& text) const {
    kernels::write_file(headers() + "/" + file, text);
  }
  std::string refusal() const {
    return refusal_of([&] { read_generated_headers(headers()); });
  }
  kernels::ScratchFolder folder_;
};

TEST_F(Headers, BecomeChoicesWithTheirOwnReferenceNightly) {
  write("a.h", renamed("gelu_bf16_fast", "mine_fast"));
  write("b.h", renamed("gelu_bf16", "mine"));
  write("c.h", renamed("gelu_bf16_oracle", "mine_oracle"));
  write("d.h", renamed("gelu_f16_fast", "mine_f16"));
  CompileSettings settings;
  settings.cache_folder = folder_ / "variants";
  const Fits fits =
      header_fits(read_generated_headers(headers()), FormatId::kBf16, find_toolchain(), settings);
  ASSERT_EQ(fits.size(), 3u);
  const std::vector<std::string> names = {fits[0]->name, fits[1]->name, fits[2]->name};
  EXPECT_EQ(names, (std::vector<std::string>{"mine_fast", "mine", "mine_oracle"}));
  EXPECT_FALSE(fits[0]->has_rows);
  EXPECT_TRUE(fits[1]->has_rows);
  EXPECT_FALSE(fits[2]->has_rows);

  // Compiled into variants and verified; the one whose reference is another fit's is told apart.
  const Problem problem{KernelId::kGeluBackward, FormatId::kBf16};
  std::vector<Candidate> candidates;
  for (const auto& fit : fits)
    candidates.emplace_back(Variant{problem, fit, default_variant(problem).gelu()});
  FitChoice crossed = *fits[0];
  crossed.compiled_reference = fits[1]->compiled_reference;
  candidates.emplace_back(
      Variant{problem, std::make_shared<const FitChoice>(crossed), default_variant(problem).gelu()});
  for (Candidate& candidate : candidates) {
    std::vector<Candidate*> one = {&candidate};
    compile(one, find_toolchain(), settings);
  }
  verify(candidates, MeasureSettings{.open = open_cpu});
  for (std::size_t i = 0; i < fits.size(); ++i)
    EXPECT_NE(candidates[i].as<Verified>(), nullptr) << candidates[i].variant().name();
  const Rejected* why = candidates.back().as<Rejected>();
  ASSERT_NE(why, nullptr);
  EXPECT_EQ(why->reason, Reason::kWrongAnswer) << why->detail;
}

// A bound that a reader made 0 of would be the best there is.
TEST_F(Headers, RefusesABoundThatIsMissingOrNoBound) {
  for (const char* name : {"gelu_bf16", "gelu_f16_oracle", "gelu_f32"}) {
    const std::string text = renamed(name, "mine");
    const bool table = std::string(name).find("oracle") != std::string::npos,
               enumerated = std::string(name).find("f32") == std::string::npos;
    const int struct_line =
        1 + static_cast<int>(std::count(
                text.begin(), text.begin() + static_cast<std::ptrdiff_t>(text.find("struct ")), '\n'));
    for (const std::string bound : {"kA", "kB", "kT", "kR"}) {
      const std::string start = "  static constexpr double " + bound + " = ";
      const std::size_t at = text.find(start), end = text.find(';', at);
      const bool stated = bound == "kA" || bound == "kB" ? !table : enumerated;
      ASSERT_EQ(at != std::string::npos, stated) << name << " " << bound;
      if (!stated) continue;
      const std::string place =
          "line " +
          std::to_string(1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
      write("a.h", std::string(text).erase(at, text.find('\n', at) + 1 - at));
      EXPECT_EQ(refusal(), headers() + "/a.h: line " + std::to_string(struct_line) + ": states no " + bound)
          << name;
      for (const std::string value :
           {"", "zero", "-0x1p-9", "nan", "inf", "0x1p-9f", "0x1p-9 + 1", "1e999", "kO"}) {
        write("a.h", std::string(text).replace(at + start.size(), end - at - start.size(), value));
        EXPECT_EQ(refusal(), headers() + "/a.h: " + place + ": " + bound + ": '" + value +
                                 "' is not a finite number of 0 or more")
            << name;
      }
    }
    write("a.h", text);
    EXPECT_EQ(refusal(), "") << name;
  }
}

TEST_F(Headers, HaveTheBoundsOfTheirCompiledSelves) {
  write("a.h", renamed("gelu_bf16_fast", "mine_fast"));
  write("b.h", renamed("gelu_f16_oracle", "mine_oracle"));
  write("c.h", renamed("gelu_f32", "mine"));
  write("d.h", renamed("gelu_f32_rel", "mine_rel"));
  const std::vector<GeneratedHeader> read = read_generated_headers(headers());
  const kernels::FitBounds compiled[] = {kernels::claims_of<kernels::generated::GeluBf16Fast>().bounds,
                                         kernels::claims_of<kernels::generated::GeluF16Oracle>().bounds,
                                         kernels::claims_of<kernels::generated::GeluF32>().bounds,
                                         kernels::claims_of<kernels::generated::GeluF32Rel>().bounds};
  ASSERT_EQ(read.size(), std::size(compiled));
  for (std::size_t i = 0; i < read.size(); ++i) {
    EXPECT_EQ(read[i].bounds.a_plus_b, compiled[i].a_plus_b) << read[i].name;
    EXPECT_EQ(read[i].bounds.t, compiled[i].t) << read[i].name;
    EXPECT_EQ(read[i].bounds.r, compiled[i].r) << read[i].name;
    EXPECT_EQ(read[i].bounds.direct, compiled[i].direct) << read[i].name;
  }
}

TEST_F(Headers, TunedHeaderBringsTheFitAlong) {
  const Problem problem{KernelId::kGeluBackward, FormatId::kBf16};
  write("a.h", renamed("gelu_bf16_fast", "mine_fast"));
  const FitChoice choice = choice_from(read_generated_headers(headers()).front());
  EXPECT_EQ(header_path(choice), "fits/mine_fast.h");
  const auto text_of = [](const Variant& variant) {
    return tuned_header({tuned_choice(variant, {}, kernels::Evidence::measured, {})}, Backend::kCpu, "a test",
                        Accuracy::kAny);
  };
  const std::string text =
      text_of({problem, std::make_shared<const FitChoice>(choice), kernels::CpuSchedule{}});
  EXPECT_NE(text.find("#include \"fits/mine_fast.h\""), std::string::npos) << text;
  EXPECT_NE(text.find("using Fit = generated::MineFast;"), std::string::npos) << text;
  EXPECT_EQ(text_of(default_variant(problem)).find("fits/"), std::string::npos);
}

TEST_F(Headers, RefusesWhatNoTunedKernelCanUse) {
  EXPECT_NE(refusal().find("holds no .h file"), std::string::npos) << refusal();
  const auto refuses = [&](const std::string& text, const std::string& why) {
    write("a.h", text);
    EXPECT_NE(refusal().find("a.h: " + why), std::string::npos) << refusal();
  };
  refuses(committed("gelu_forward"), "kind");
  refuses(committed("gelu_bf16"), "struct GeluBf16: is the name of a fit of kernels/fits.h");
  refuses(renamed("silu_bf16", "mine"), "kActivation: 'silu'");
  refuses(renamed("gelu_e4m3_oracle", "mine"), "kFormat: 'e4m3'");
  refuses(renamed("gelu_mxfp8", "mine"), "kFormat: 'mxfp8'");
  refuses(renamed("gelu_bf16_parity", "mine"), "kFormat: 'bf16_parity'");
  refuses(committed("gelu_code"), "kBias: a code header");
  refuses(committed("gelu_fp8"), "kCode: a header of y in 8 bits at a scale");
  refuses(replaced(renamed("gelu_bf16", "mine"), "\"mine\"", "\"../mine\""), "kName");
  refuses(replaced(renamed("gelu_bf16", "mine"), "kClass", "kGrade"), "kClass: missing");
  refuses("#pragma once\n", "line 1");
  refuses(replaced(renamed("gelu_bf16", "mine"), "  static constexpr int kDegree",
                   "  /* a comment\n  static constexpr int kDegree"),
          "line 17: a comment");
  refuses(replaced(renamed("gelu_bf16", "mine"), "for the format", "for the format \\ "), "line ");
  write("a.h", renamed("gelu_bf16", "mine"));
  write("b.h", renamed("gelu_bf16_fast", "mine"));
  EXPECT_NE(refusal().find("is also in"), std::string::npos) << refusal();
  EXPECT_THROW(read_generated_headers(folder_ / "nothing"), kernels::IoError);
}

}  // namespace
}  // namespace outgrad::autotune
