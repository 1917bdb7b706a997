// The one place that writes --json and --csv.
#include "kernels/support/result.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace outgrad::kernels {
namespace {

using Json = nlohmann::ordered_json;

TEST(Result, ARowForEachElementWithMembersOfMembersUnderTheirPath) {
  const Json document{{"schema", "s"},
                      {"rows",
                       {{{"name", "a"}, {"T", {{"bound", 0.5}, {"at", nullptr}}}, {"list", {1, 2}}},
                        {{"name", "b"}, {"more", true}}}}};
  EXPECT_EQ(to_csv(document, "rows"),
            "name,T.bound,T.at,more\r\n"
            "a,0.5,,\r\n"
            "b,,,true\r\n");
}

TEST(Result, AnElementOfAnInnerListStandsBehindWhatTheOuterOneSays) {
  const Json document{
      {"groups",
       {{{"format", "f32"}, {"name", "outer"}, {"cases", {{{"name", "x"}, {"ns", 1}}, {{"name", "y"}}}}},
        {{"format", "f16"}, {"cases", {{{"name", "z"}}}}}}}};
  EXPECT_EQ(to_csv(document, "groups.cases"),
            "format,name,ns\r\n"
            "f32,x,1\r\n"
            "f32,y,\r\n"
            "f16,z,\r\n");
}

TEST(Result, ADocumentMayBeTheListOrTheOnlyRow) {
  EXPECT_EQ(to_csv(Json{{"a", 1}}, ""), "a\r\n1\r\n");
  EXPECT_EQ(to_csv(Json::array({{{"a", 1}}, {{"a", 2}}}), ""), "a\r\n1\r\n2\r\n");
  EXPECT_EQ(to_csv(Json::array({{{"f", "x"}, {"domains", {{{"T", 3}}}}}}), ".domains"), "f,T\r\nx,3\r\n");
  EXPECT_EQ(to_csv(Json{{"rows", Json::array()}}, "rows"), "\r\n");
}

// RFC 4180: what a reader would take for the end of a cell is quoted, and a quote is doubled.
TEST(Result, TextStaysOneCell) {
  for (const auto& [text, cell] : {std::pair("a,b", "\"a,b\""),
                                   {"say \"x\"", "\"say \"\"x\"\"\""},
                                   {"two\nlines", "\"two\nlines\""},
                                   {"plain", "plain"},
                                   {"", ""}})
    EXPECT_EQ(to_csv(Json{{"k", text}}, ""), std::string("k\r\n") + cell + "\r\n");
}

TEST(Result, JsonIsTheWholeDocument) {
  const Json document{{"rows", {{{"a", "\xff"}}}}, {"other", 1}};
  const std::string text = to_text({.json = true}, document, "rows");
  EXPECT_EQ(Json::parse(text)["other"], 1);
  EXPECT_TRUE(text.ends_with("}\n"));
  EXPECT_TRUE(to_text({.csv = true}, document, "rows").starts_with("a\r\n"));
  EXPECT_FALSE(ResultForm{});
}

}  // namespace
}  // namespace outgrad::kernels
