// A text is a JSON document to its last byte or not at all.
#include "kernels/support/json.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/refusal.h"

namespace outgrad::kernels {
namespace {

struct Counter : nlohmann::json::json_sax_t {
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return ++numbers > 0; }
  bool number_unsigned(number_unsigned_t) override { return ++numbers > 0; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(std::size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override {
    return false;
  }
  int numbers = 0;
};

TEST(Json, NothingStandsBehindTheDocument) {
  using namespace std::string_literals;
  const std::vector<std::string> hidden = {
      "[1]\0"s, "[1]\0[2]"s, "[1] \0 not JSON {{{"s, "[1,\0 2]"s, "\0[1]"s, "[1]\0\0"s,
      "[1] x"s, "[1] [2]"s,  "[\"a\0\"]"s,           ""s};
  for (const std::string& text : hidden) {
    EXPECT_THROW(parse_json(text), nlohmann::json::parse_error) << text;
    EXPECT_THROW(parse_json<nlohmann::ordered_json>(text), nlohmann::json::parse_error) << text;
    EXPECT_TRUE(parse_json_line(text).is_discarded()) << text;
    Counter counter;
    EXPECT_FALSE(scan_json(text, counter)) << text;
  }
  const auto expected = nlohmann::json::array({1, std::string("\0", 1)});
  // a NUL that is spelt out is part of a string
  for (const std::string& text : {"[1,\"\\u0000\"]"s, " [1, \"\\u0000\"] \n"s}) {
    EXPECT_EQ(parse_json(text), expected);
    EXPECT_EQ(parse_json_line(text), expected);
    Counter counter;
    EXPECT_TRUE(scan_json(text, counter));
    EXPECT_EQ(counter.numbers, 1);
  }
}

TEST(Json, ARefusalNamesLineColumnAndReason) {
  const auto said = [](const std::string& text) { return refusal_of([&] { parse_json(text, "f.json"); }); };
  EXPECT_EQ(said(std::string("{}\0{}", 5)), "f.json: line 1, column 3: is not JSON");
  EXPECT_EQ(said("[1}"), "f.json: line 1, column 3: is not JSON: unexpected '}'; expected ']'");
  EXPECT_EQ(said("{\n \"a\": 1,\n \"b\" 2}"),
            "f.json: line 3, column 6: is not JSON: unexpected number literal; expected ':'");
  EXPECT_EQ(
      said("[\n"),
      "f.json: line 2, column 1: is not JSON: unexpected end of input; expected '[', '{', or a literal");
  // What was read is not quoted, however much that is.
  EXPECT_LT(said("\"" + std::string(100000, 'a')).size(), 200u);
  EXPECT_EQ(said("[1e999]"), "f.json: JSON: a number is beyond double's range");
  EXPECT_EQ(said("[1]"), "");
  EXPECT_EQ(said(R"({"a": {"b": 1}, "b": [{"a": 1}, {"a": 2}]})"), "");
  for (const std::string twice : {R"({"a": 1, "b": {"a": 2}, "a": 1})", R"([{"\u0061": 1, "a": 1}])"}) {
    EXPECT_EQ(said(twice), "f.json: JSON: the key 'a' occurs twice");
    EXPECT_TRUE(parse_json_line(twice).is_discarded());
  }
  // A value this deep would end the program where it is copied.
  for (const auto& [open, close] : {std::pair("[", "]"), std::pair(R"({"a":)", "}")}) {
    std::string deep = "1";
    for (int depth = 1; depth <= 33; ++depth) {
      deep = open + deep + close;
      EXPECT_EQ(said(deep), depth <= 32 ? "" : "f.json: JSON: nested deeper than 32");
      EXPECT_EQ(parse_json_line(deep).is_discarded(), depth > 32);
    }
  }
}

}  // namespace
}  // namespace outgrad::kernels
