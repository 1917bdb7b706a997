// A hash of code changes with the code and with nothing else.
#include "autotune/space/sources.h"

#include <gtest/gtest.h>

namespace outgrad::autotune {
namespace {

TEST(CodeOf, LeavesOutCommentsAndBlanksAlone) {
  EXPECT_EQ(code_of("// Title.\n\nint  f();   // why\n\n\tint g();\n"), "int f();\nint g();");
  EXPECT_EQ(code_of("int/* of */f(); /* two\nlines */ int g();"), "int f(); int g();");
  EXPECT_EQ(code_of("#define A(x) x  // one\n#define B"), "#define A(x) x\n#define B");
}

TEST(CodeOf, KnowsLiterals) {
  for (const char* text :
       {"a = \"//  x /* y\";", "a = '\"'; b = '\"';", "a = \"\\\"  // x\";", "a = R\"(//  \"  )\";",
        "a = R\"q( )\"  // )q\" + b;", "a = 16'384 + 2'000;", "a = '\\\\';", "a = '/';", "a = b / c;"})
    EXPECT_EQ(code_of(text), text);
  EXPECT_EQ(code_of("a = 16'384;  // it's\nb = 'x';  // c"), "a = 16'384;\nb = 'x';");
}

TEST(CodeOf, TakesAnyText) {
  for (const char* text : {"\"", "'", "R\"", "R\"(", "/*", "//", "\"\\", "/", "a\\"})
    EXPECT_NO_THROW(code_of(text)) << text;
}

TEST(SourceHashes, FollowTheCodeAndTheNames) {
  const std::vector<std::pair<std::string, std::string>> sources = {{"kernels/a.h", "int a;"},
                                                                    {"kernels/generated/b.h", "int b;"}};
  const auto changed = [&](std::size_t which, const char* name, const char* text) {
    auto other = sources;
    other[which] = {name, text};
    return hash_of(other);
  };
  const SourceHashes plain = hash_of(sources);
  EXPECT_EQ(changed(0, "kernels/a.h", "int  a;  // an a\n"), plain);
  EXPECT_EQ(hash_of({sources[1], sources[0]}), plain);
  EXPECT_NE(changed(0, "kernels/a.h", "int c;").kernels, plain.kernels);
  EXPECT_NE(changed(0, "kernels/c.h", "int a;").kernels, plain.kernels);
  EXPECT_EQ(changed(0, "kernels/c.h", "int a;").coefficients, plain.coefficients);
  EXPECT_NE(changed(1, "kernels/generated/b.h", "int c;").coefficients, plain.coefficients);
  EXPECT_EQ(changed(1, "kernels/generated/b.h", "int c;").kernels, plain.kernels);
  EXPECT_EQ(hash_of({sources[0], sources[1], {"kernels/generated/tuned_default.h", "int t;"}}), plain);
  EXPECT_EQ(hash_of({sources[0], sources[1], {"kernels/support/files.h", "int f;"}}), plain);
}

}  // namespace
}  // namespace outgrad::autotune
