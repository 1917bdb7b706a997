#include "approx/spec.h"

#include "kernels/host/errors.h"
#include "kernels/host/files.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

namespace outgrad::approx {
namespace {

using nlohmann::json;
using kernels::SpecError;

/// One JSON object of the spec; says where a value is wrong and refuses keys it was not asked for.
class Reader {
 public:
  Reader(const json& object, std::string path, std::string place) : object_(object), path_(std::move(path)), place_(std::move(place)) {
    if (!object_.is_object()) fail("", "must be an object");
  }
  [[noreturn]] void fail(const std::string& key, const std::string& why) const {
    const std::string place = place_.empty() ? key : key.empty() ? place_ : place_ + "." + key;
    throw SpecError(path_, place.empty() ? "top level" : place, why);
  }
  const json& at(const std::string& key) {
    seen_.insert(key);
    if (!object_.contains(key)) fail(key, "is missing");
    return object_.at(key);
  }
  std::string text(const std::string& key) {
    const json& v = at(key);
    if (!v.is_string()) fail(key, "must be a string");
    return v.get<std::string>();
  }
  int integer(const std::string& key, int lo, int hi) {
    const json& v = at(key);
    if (!v.is_number_integer()) fail(key, "must be an integer");
    const auto i = v.is_number_unsigned() && v.get<uint64_t>() > INT64_MAX ? INT64_MAX : v.get<int64_t>();
    if (i < lo || i > hi) fail(key, fmt::format("{} is outside {} .. {}", i, lo, hi));
    return static_cast<int>(i);
  }
  double number(const std::string& key, double lo, double hi) {
    const json& v = at(key);
    if (!v.is_number()) fail(key, "must be a number");
    const double d = v.get<double>();
    if (!(d >= lo && d <= hi)) fail(key, fmt::format("{} is outside {} .. {}", d, lo, hi));
    return d;
  }
  /// "2^-26" or "2^-12.5".
  double power_of_two(const std::string& key) {
    static const std::regex form("2\\^(-[0-9]{1,2}(\\.[0-9]{1,3})?)");
    const std::string s = text(key);
    std::smatch match;
    if (!std::regex_match(s, match, form)) fail(key, "'" + s + "' is not of the form 2^-N");
    return std::exp2(std::stod(match[1]));
  }
  Reader object(const std::string& key) { return {at(key), path_, place_.empty() ? key : place_ + "." + key}; }
  [[nodiscard]] bool has(const std::string& key) const { return object_.contains(key); }
  void finish() const {
    for (const auto& item : object_.items()) {
      if (!seen_.contains(item.key())) fail(item.key(), "is not a key of this schema");
    }
  }

 private:
  const json& object_;
  std::string path_, place_;
  std::set<std::string> seen_;
};

Format parse_format(Reader& r, const std::string& key) {
  const std::string name = r.text(key);
  for (const Format f : {Format::f32, Format::f16, Format::bf16}) {
    if (name == to_string(f)) return f;
  }
  r.fail(key, "format '" + name + "' is unknown; known: f32, f16, bf16");
}

bool power_of_two_rows(int rows) { return rows > 0 && (rows & (rows - 1)) == 0; }

BackwardSpec parse_backward(Reader& r) {
  BackwardSpec b{};
  b.format = parse_format(r, "format");
  if (const std::string mode = r.text("mode"); mode != "absolute") r.fail("mode", "'" + mode + "' is unknown; known: absolute");
  b.degree = r.integer("degree", 1, 12);
  b.root_cells = r.integer("root_cells", 1, 256);
  int rows = b.root_cells;
  if (r.has("left_segment")) {
    Reader left = r.object("left_segment");
    // y* = -0.17: an edge of -1/8 is the largest power of two above it; 2^-60 is far below every target.
    b.left = LeftSegment{left.integer("edge_log2", -20, -3), left.integer("half_octaves", 0, 8), left.integer("merge_log2", -60, -4)};
    if (b.left->merge_log2 > b.left->edge_log2 - b.left->half_octaves) left.fail("merge_log2", "lies above the undivided octaves");
    left.finish();
    rows += b.left->rows();
  }
  if (!power_of_two_rows(rows) || rows > 256) {
    r.fail("root_cells", fmt::format("cells in s and rows of the left segment add up to {}, not to a power of two up to 256", rows));
  }
  Reader storage = r.object("storage");
  b.storage = {storage.number("ratio", 1.0001, 10), storage.power_of_two("regret"), storage.has("bend") ? storage.power_of_two("bend") : 0};
  storage.finish();
  return b;
}

Cells parse_cells(Reader r) {
  Cells c{r.integer("degree", 1, 12), r.integer("cells_per_unit", 1, 64), r.integer("rows", 1, 1024)};
  if (!power_of_two_rows(c.rows)) r.fail("rows", "must be a power of two");
  r.finish();
  return c;
}

}  // namespace

std::string sha256_hex(const std::string& bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_sha256(), nullptr) != 1) throw std::runtime_error("SHA-256 failed");
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) hex += fmt::format("{:02x}", digest[i]);
  return hex;
}

Spec parse_spec(const std::string& text, const std::string& path) {
  json document;
  try {
    document = json::parse(text);
  } catch (const json::parse_error& error) {
    throw SpecError(path, fmt::format("byte {}", error.byte), "is not JSON");
  }
  Reader r(document, path, "");
  if (const std::string schema = r.text("schema"); schema != "outgrad.spec/1") r.fail("schema", "'" + schema + "' is unknown; known: outgrad.spec/1");
  Spec spec;
  spec.name = r.text("name");
  if (!std::regex_match(spec.name, std::regex("[a-z][a-z0-9_]{0,63}"))) r.fail("name", "must be a lower-case identifier of up to 64 characters");
  spec.activation = r.text("activation");
  try {
    find_activation(spec.activation);
  } catch (const SpecError& error) {
    r.fail("activation", error.what());
  }
  spec.target = r.power_of_two("target");
  const std::string kind = r.text("kind");
  if (kind == "backward") {
    spec.backward = parse_backward(r);
  } else if (kind == "forward") {
    spec.forward = ForwardSpec{parse_cells(r.object("core")), parse_cells(r.object("tail"))};
  } else {
    r.fail("kind", "'" + kind + "' is unknown; known: backward, forward");
  }
  r.finish();
  spec.text = text;
  spec.sha256 = sha256_hex(text);
  return spec;
}

Spec read_spec(const std::string& path) { return parse_spec(kernels::read_file(path), path); }

}  // namespace outgrad::approx
