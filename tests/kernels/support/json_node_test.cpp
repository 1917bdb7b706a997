// A value that is not what its reader expects is refused in one line, with the file and the place.
#include "kernels/support/json_node.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>

#include "tests/refusal.h"

namespace outgrad::kernels {
namespace {

JsonNode document(const std::string& text) { return {parse_json(text, "f.json"), "f.json"}; }

TEST(JsonNode, ReadsWhatIsThere) {
  const JsonNode node = document(R"({"a": [1, "0x1.8p+1", "inf", null], "b": {"c": true}, "w": "two"})");
  // The document lives as long as any of its values.
  const JsonNode list = document(R"({"list": [7]})")["list"];
  EXPECT_EQ(list.items(1)[0].count<int>(), 7);
  const auto a = node["a"].items(4);
  EXPECT_EQ(a[0].count(), 1);
  EXPECT_EQ(a[1].hex(), 3);
  EXPECT_EQ(a[1].finite(), 3);
  EXPECT_TRUE(std::isinf(a[2].real()));
  EXPECT_TRUE(std::isinf(a[3].bound()));
  EXPECT_TRUE(node["b"]["c"].boolean());
  EXPECT_EQ(node["w"].word<int>({{"one", 1}, {"two", 2}}), 2);
  EXPECT_EQ(node.keys().size(), 3u);
  EXPECT_EQ(document("[18446744073709551615]").items()[0].count<std::uint64_t>(), UINT64_MAX);
}

TEST(JsonNode, ARefusalHasItsPlace) {
  const JsonNode node = document(R"({"a": [1, -1, 2147483648, "x", "nan"], "b": {"c": "-0x1p0"}})");
  const auto a = node["a"].items();
  EXPECT_EQ(refusal_of([&] { node["d"]; }), "f.json: top level: 'd' is missing");
  EXPECT_EQ(refusal_of([&] { node["b"]["d"]; }), "f.json: b: 'd' is missing");
  EXPECT_EQ(refusal_of([&] { a[0]["d"]; }), "f.json: a[0]: 'd' is missing");
  EXPECT_EQ(refusal_of([&] { node["a"].items(4); }), "f.json: a: has 5 elements where 4 are expected");
  EXPECT_EQ(refusal_of([&] { a[1].count(); }), "f.json: a[1]: is not a count");
  EXPECT_EQ(refusal_of([&] { a[2].count<int>(); }), "f.json: a[2]: is too large");
  EXPECT_EQ(refusal_of([&] { a[3].number(); }), "f.json: a[3]: is not a number");
  EXPECT_EQ(refusal_of([&] { a[3].finite(); }), "f.json: a[3]: is not a number");
  EXPECT_EQ(refusal_of([&] { a[4].number(); }), "f.json: a[4]: is not a number");
  EXPECT_EQ(refusal_of([&] { a[4].finite(); }), "f.json: a[4]: is not finite");
  EXPECT_EQ(refusal_of([&] { node["b"]["c"].hex_bound(); }), "f.json: b.c: is negative");
  EXPECT_EQ(refusal_of([&] { node["b"]["c"].boolean(); }), "f.json: b.c: is not true or false");
  EXPECT_EQ(refusal_of([&] { a[3].word<int>({{"one", 1}, {"two", 2}}); }),
            "f.json: a[3]: 'x' is not one of one, two");
  EXPECT_EQ(refusal_of([&] { node["b"].expect_keys({"d"}); }), "f.json: b: has an unknown key 'c'");
  EXPECT_EQ(refusal_of([&] { document(R"({"schema": "s/1"})").expect_schema("s/2"); }),
            "f.json: schema: is not s/2");
  EXPECT_EQ(refusal_of([] { JsonNode(nlohmann::json(1), "").text(); }), "top level: is not a string");
}

}  // namespace
}  // namespace outgrad::kernels
