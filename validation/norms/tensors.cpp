// Tensor files: nlohmann/json reads safetensors; libzip and a reader of the .npy header's dictionary read
// npz.
#include "validation/norms/tensors.h"

#include <fmt/format.h>
#include <zip.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "kernels/formats.h"
#include "kernels/support/errors.h"
#include "kernels/support/files.h"
#include "kernels/support/json.h"

namespace outgrad::validation {

using kernels::SpecError;
using kernels::u16;
using kernels::u32;
using kernels::u64;

namespace {

// The reference implementation of safetensors also refuses longer headers.
constexpr u64 kMaxSafetensorsHeaderBytes = 100'000'000;
// NumPy writes 128 bytes for a plain array. Its own reader refuses more than 10,000 characters as unsafe.
constexpr u64 kMaxNpyHeaderBytes = 10'000;
// The most that one read may allocate, whatever a file claims: a norm over 2^23 fp64 channels, hundreds of
// times the width of the widest model.
constexpr u64 kMaxTensorBytes = u64{64} << 20;

// A file of torch.save, of either kind.
constexpr const char* kPickle =
    "a pickle of PyTorch (.pt, .pth, .bin), which may hold any program: load it with torch.load(..., "
    "weights_only=True) and save its tensors with "
    "safetensors.torch.save_file";

enum class Element { kF16, kBF16, kF32, kF64 };

u64 element_bytes(Element element) {
  switch (element) {
    case Element::kF16:
    case Element::kBF16: return 2;
    case Element::kF32: return 4;
    case Element::kF64: return 8;
  }
  return 0;
}

std::optional<u64> checked_multiply(u64 a, u64 b) {
  u64 product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

// The product of a shape, or nothing if it overflows.
std::optional<u64> element_count(const std::vector<u64>& shape) {
  std::optional<u64> count = 1;
  for (const u64 extent : shape) {
    if (count) count = checked_multiply(*count, extent);
  }
  return count;
}

template <class Stored, class Widen>
std::vector<float> widen_all(std::string_view bytes, Widen widen) {
  std::vector<float> values(bytes.size() / sizeof(Stored));
  for (size_t i = 0; i < values.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, bytes.data() + i * sizeof(Stored), sizeof(Stored));
    values[i] = widen(stored);
  }
  return values;
}

float nearest_float(double value) {
  // Converting a double beyond fp32's range is undefined behaviour. From the midpoint above the largest float
  // on, the nearest value is infinity.
  constexpr double kRoundsToInfinity = 0x1.ffffffp127;
  if (std::abs(value) >= kRoundsToInfinity) return value > 0 ? HUGE_VALF : -HUGE_VALF;
  return static_cast<float>(value);
}

std::vector<float> decode(std::string_view bytes, Element element) {
  switch (element) {
    case Element::kF16:
      return widen_all<kernels::F16>(bytes, [](kernels::F16 v) { return kernels::widen(v); });
    case Element::kBF16:
      return widen_all<kernels::BF16>(bytes, [](kernels::BF16 v) { return kernels::widen(v); });
    case Element::kF32: return widen_all<float>(bytes, [](float v) { return v; });
    case Element::kF64: return widen_all<double>(bytes, nearest_float);
  }
  return {};
}

// Sizes in bits of the dtypes of the safetensors format (its `Dtype`, release 0.6), and those of them that
// can be read; the others are only listed.
const std::map<std::string, u64, std::less<>> kSafetensorsBits = {
    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"BOOL", 8},        {"U8", 8},          {"I8", 8},
    {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"F64", 64},    {"I64", 64},    {"U64", 64},    {"C64", 64}};
const std::map<std::string, Element, std::less<>> kSafetensorsElements = {
    {"F16", Element::kF16}, {"BF16", Element::kBF16}, {"F32", Element::kF32}, {"F64", Element::kF64}};

// What a file is that was given in place of a checkpoint, and what to give instead; nothing where it is none
// of these. Asked only of files that cannot be safetensors: read as a header's length, these beginnings
// exceed the limit.
std::optional<std::string> other_file(const std::string& bytes) {
  const auto begins = [&](std::string_view magic) { return std::string_view(bytes).starts_with(magic); };
  if (begins("\x93NUMPY"))
    return "one NumPy array (.npy): put gamma and beta into an .npz with numpy.savez, or give --gamma and "
           "--beta";
  if (begins("\x80\x02") || begins("\x80\x03") || begins("\x80\x04") || begins("\x80\x05")) return kPickle;
  if (begins("GGUF")) return "a GGUF file: give the .safetensors from which it was converted";
  if (begins("\x89HDF")) return "an HDF5 file: save its tensors as .safetensors or .npz";
  if (!begins("{") && !begins("[")) return std::nullopt;
  const nlohmann::json document = kernels::parse_json_line(bytes);
  const auto shards = document.is_object() ? document.find("weight_map") : document.end();
  if (!document.is_object() || shards == document.end() || !shards->is_object())
    return "a JSON text: give a .safetensors or .npz file";
  constexpr size_t kShown = 100;
  const std::string first = !shards->empty() && shards->begin()->is_string()
                                ? shards->begin()->get<std::string>().substr(0, kShown)
                                : "";
  return "the index of a checkpoint in several files, not one of them: give each file that it names" +
         (first.empty() ? "" : ", such as " + first);
}

class SafetensorsFile final : public TensorFile {
 public:
  SafetensorsFile(std::string label, std::unique_ptr<std::istream> stream, u64 size)
      : TensorFile(std::move(label)), stream_(std::move(stream)) {
    if (size < sizeof(u64))
      throw SpecError(
          label_, "offset 0",
          fmt::format("{} bytes are no .safetensors file, which begins with its header's length", size));
    u64 header_bytes = 0;
    std::memcpy(&header_bytes, bytes_at(0, sizeof(u64), "header length").data(), sizeof(u64));
    if (header_bytes > kMaxSafetensorsHeaderBytes || header_bytes > size - sizeof(u64)) {
      constexpr u64 kMostOfAnIndex = u64{16} << 20;
      if (const auto what = other_file(bytes_at(0, std::min(size, kMostOfAnIndex), "offset 0")))
        throw SpecError(label_, "offset 0", *what);
      throw SpecError(label_, "offset 0",
                      fmt::format("header length {} in a file of {} bytes (limit {})", header_bytes, size,
                                  kMaxSafetensorsHeaderBytes));
    }
    data_begin_ = sizeof(u64) + header_bytes;
    data_bytes_ = size - data_begin_;
    read_header(bytes_at(sizeof(u64), header_bytes, "header"));
    require_whole_buffer();
  }

  std::vector<float> read(const TensorInfo& tensor) const override {
    const auto element = kSafetensorsElements.find(tensor.dtype);
    if (element == kSafetensorsElements.end())
      throw SpecError(label_, tensor.name,
                      "dtype " + tensor.dtype + " where F16, BF16, F32 or F64 is needed");
    const Range range = ranges_.at(tensor.name);
    if (range.end - range.begin > kMaxTensorBytes) {
      throw SpecError(label_, tensor.name,
                      fmt::format("{} bytes, beyond the limit of {} for one tensor", range.end - range.begin,
                                  kMaxTensorBytes));
    }
    return decode(bytes_at(data_begin_ + range.begin, range.end - range.begin, tensor.name), element->second);
  }

 private:
  struct Range {
    u64 begin, end;
  };

  // Callers have checked the range against the file's size, so a short read means that the file has shrunk
  // meanwhile.
  std::string bytes_at(u64 offset, u64 count, const std::string& place) const {
    std::string bytes(count, '\0');
    stream_->clear();
    stream_->seekg(static_cast<std::streamoff>(offset));
    stream_->read(bytes.data(), static_cast<std::streamsize>(count));
    if (!*stream_ || static_cast<u64>(stream_->gcount()) != count)
      throw SpecError(label_, place, "the file ends early");
    return bytes;
  }

  void read_header(const std::string& text) {
    const auto header = kernels::parse_json<nlohmann::json>(text, label_ + ": header");
    if (!header.is_object()) throw SpecError(label_, "header", "not a JSON object");
    for (const auto& [name, entry] : header.items()) {
      if (name != "__metadata__") read_entry(name, entry);
    }
  }

  void read_entry(const std::string& name, const nlohmann::json& entry) {
    const auto refuse = [&](const std::string& why) { throw SpecError(label_, name, why); };
    const auto unsigned_list = [&](const char* key) {
      std::vector<u64> list;
      if (!entry.is_object() || !entry.contains(key) || !entry[key].is_array())
        refuse(fmt::format("'{}' is not a list", key));
      for (const auto& item : entry[key]) {
        if (!item.is_number_unsigned())
          refuse(fmt::format("'{}' holds something other than a non-negative integer", key));
        list.push_back(item.get<u64>());
      }
      return list;
    };
    TensorInfo tensor{.name = name, .shape = unsigned_list("shape")};
    if (!entry.contains("dtype") || !entry["dtype"].is_string()) refuse("'dtype' is not a string");
    tensor.dtype = entry["dtype"].get<std::string>();
    const auto dtype = kSafetensorsBits.find(tensor.dtype);
    const std::vector<u64> offsets = unsigned_list("data_offsets");
    if (offsets.size() != 2 || offsets[0] > offsets[1]) refuse("'data_offsets' is not [begin, end]");
    if (offsets[1] > data_bytes_) refuse(fmt::format("ends at data byte {} of {}", offsets[1], data_bytes_));
    const auto elements = element_count(tensor.shape);
    if (!elements) refuse("the product of the shape overflows 64 bits");
    if (dtype == kSafetensorsBits.end()) {
      tensor.unknown = "dtype " + tensor.dtype;
    } else {
      const auto bits = checked_multiply(*elements, dtype->second);
      if (!bits) refuse("the product of the shape overflows 64 bits");
      if (*bits % 8 != 0)
        refuse(fmt::format("{} elements of {} do not fill whole bytes", *elements, tensor.dtype));
      if (*bits / 8 != offsets[1] - offsets[0])
        refuse(fmt::format("shape and dtype take {} bytes, data_offsets span {}", *bits / 8,
                           offsets[1] - offsets[0]));
    }
    tensor.elements = *elements;
    ranges_[name] = {offsets[0], offsets[1]};
    add(std::move(tensor));
  }

  // The format demands that the tensors tile the data: no overlap, no gap, and nothing after the last tensor.
  void require_whole_buffer() const {
    std::vector<std::pair<std::string, Range>> order(ranges_.begin(), ranges_.end());
    std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
      return std::pair(a.second.begin, a.second.end) < std::pair(b.second.begin, b.second.end);
    });
    u64 end = 0;
    for (const auto& [name, range] : order) {
      if (range.begin != end) {
        throw SpecError(
            label_, name,
            fmt::format("begins at data byte {}, {} {}", range.begin,
                        range.begin < end ? "inside the tensor that ends at" : "after a hole from", end));
      }
      end = range.end;
    }
    if (end != data_bytes_)
      throw SpecError(label_, "data", fmt::format("{} bytes, but the tensors end at {}", data_bytes_, end));
  }

  std::unique_ptr<std::istream> stream_;
  u64 data_begin_ = 0, data_bytes_ = 0;
  std::map<std::string, Range> ranges_;
};

// The dictionary in a .npy header, a Python literal of fixed keys: {'descr': '<f4', 'fortran_order': False,
// 'shape': (3, 4), }.
class NpyDictionary {
 public:
  struct Malformed : std::runtime_error {
    using std::runtime_error::runtime_error;
  };

  NpyDictionary() = default;
  // Throws Malformed.
  explicit NpyDictionary(std::string_view text) : text_(text) {
    expect('{');
    std::set<std::string> keys;
    while (!accept('}')) {
      const std::string key = quoted();
      expect(':');
      if (!keys.insert(key).second) fail("repeated key '" + key + "'");
      if (key == "descr") {
        skip_blanks();
        structured = !text_.empty() && (text_.front() == '[' || text_.front() == '(');
        descr = structured ? literal() : quoted();
      } else if (key == "fortran_order") {
        // a one-dimensional tensor is the same in either order, and only these have a meaning here
        boolean();
      } else if (key == "shape") {
        shape = tuple();
      } else {
        fail("unknown key '" + key + "'");
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_blanks();
    if (!text_.empty()) fail("text after the dictionary");
    if (keys.size() != 3) fail("'descr', 'fortran_order' and 'shape' are needed");
  }

  std::string descr;  // of a structured type: its literal as it stands
  bool structured = false;  // each element has fields
  std::vector<u64> shape;

 private:
  [[noreturn]] static void fail(const std::string& why) { throw Malformed(why); }

  void skip_blanks() {
    const size_t blanks = std::min(text_.find_first_not_of(" \t\n"), text_.size());
    text_.remove_prefix(blanks);
  }

  bool accept(char c) {
    skip_blanks();
    if (text_.empty() || text_.front() != c) return false;
    text_.remove_prefix(1);
    return true;
  }

  void expect(char c) {
    if (!accept(c)) fail(fmt::format("'{}' expected", c));
  }

  bool accept_word(std::string_view word) {
    skip_blanks();
    if (!text_.starts_with(word)) return false;
    text_.remove_prefix(word.size());
    return true;
  }

  void boolean() {
    if (!accept_word("True") && !accept_word("False")) fail("'fortran_order' is neither True nor False");
  }

  std::string quoted() {
    const char quote = accept('"') ? '"' : '\'';
    if (quote == '\'') expect('\'');
    const size_t end = text_.find(quote);
    if (end == std::string_view::npos) fail("a string does not end");
    const std::string content(text_.substr(0, end));
    text_.remove_prefix(end + 1);
    return content;
  }

  // One list or tuple, whatever it holds, up to the bracket that closes it.
  std::string literal() {
    const std::string_view from = text_;
    std::string open;  // the brackets that are to close
    do {
      skip_blanks();
      if (text_.empty()) fail("a list does not end");
      const char c = text_.front();
      if (c == '\'' || c == '"') {
        quoted();
        continue;
      }
      text_.remove_prefix(1);
      if (c == '[' || c == '(') open += c == '[' ? ']' : ')';
      if (c != ']' && c != ')') continue;
      if (open.back() != c) fail("brackets that do not match");
      open.pop_back();
    } while (!open.empty());
    return std::string(from.substr(0, from.size() - text_.size()));
  }

  std::vector<u64> tuple() {
    std::vector<u64> extents;
    expect('(');
    while (!accept(')')) {
      extents.push_back(integer());
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    return extents;
  }

  u64 integer() {
    skip_blanks();
    u64 value = 0;
    size_t digits = 0;
    for (; digits < text_.size() && std::isdigit(static_cast<unsigned char>(text_[digits])); ++digits) {
      if (__builtin_mul_overflow(value, u64{10}, &value) ||
          __builtin_add_overflow(value, static_cast<u64>(text_[digits] - '0'), &value)) {
        fail("an extent overflows 64 bits");
      }
    }
    if (digits == 0) fail("an extent is not a non-negative integer");
    text_.remove_prefix(digits);
    return value;
  }

  std::string_view text_;
};

// The NumPy type strings that can be read. Arrays of other types can only be listed.
const std::map<std::string, Element, std::less<>> kNpyElements = {
    {"<f2", Element::kF16}, {"<f4", Element::kF32}, {"<f8", Element::kF64}};

class NpzFile final : public TensorFile {
 public:
  explicit NpzFile(const std::string& path) : TensorFile(path) {
    open(zip_source_file_create(path.c_str(), 0, -1, nullptr));
  }

  NpzFile(std::string label, std::string bytes) : TensorFile(std::move(label)), bytes_(std::move(bytes)) {
    open(zip_source_buffer_create(bytes_.data(), bytes_.size(), 0, nullptr));
  }

  std::vector<float> read(const TensorInfo& tensor) const override {
    const auto element = kNpyElements.find(tensor.dtype);
    if (!tensor.unknown.empty()) throw SpecError(label_, tensor.name, tensor.unknown + ", which is not read");
    if (element == kNpyElements.end())
      throw SpecError(label_, tensor.name,
                      "dtype '" + tensor.dtype + "' where '<f2', '<f4' or '<f8' is needed");
    Entry entry(*this, entries_.at(tensor.name), tensor.name);
    NpyHeader{entry};
    const auto bytes = checked_multiply(tensor.elements, element_bytes(element->second));
    if (!bytes || *bytes != entry.remaining()) {
      throw SpecError(label_, tensor.name,
                      fmt::format("{} elements of '{}' in {} bytes of data", tensor.elements, tensor.dtype,
                                  entry.remaining()));
    }
    if (*bytes > kMaxTensorBytes) {
      throw SpecError(
          label_, tensor.name,
          fmt::format("{} bytes, beyond the limit of {} for one tensor", *bytes, kMaxTensorBytes));
    }
    const std::string data = entry.take(*bytes);
    entry.require_end();
    return decode(data, element->second);
  }

 private:
  // One entry, as a stream of the size that its directory record declares. Inflated data beyond that size are
  // an error, so a zip bomb costs no memory.
  class Entry {
   public:
    Entry(const NpzFile& owner, zip_uint64_t index, std::string place)
        : label_(owner.label_), place_(std::move(place)) {
      zip_stat_t status;
      if (zip_stat_index(owner.archive_.get(), index, 0, &status) != 0 || !(status.valid & ZIP_STAT_SIZE))
        refuse(zip_strerror(owner.archive_.get()));
      remaining_ = status.size;
      file_.reset(zip_fopen_index(owner.archive_.get(), index, 0));
      if (!file_) refuse(zip_strerror(owner.archive_.get()));
    }

    u64 remaining() const { return remaining_; }

    std::string take(u64 count) {
      if (count > remaining_) refuse("the entry ends early");
      std::string bytes(count, '\0');
      const zip_int64_t got = zip_fread(file_.get(), bytes.data(), count);
      if (got < 0) refuse(zip_file_strerror(file_.get()));
      if (static_cast<u64>(got) != count) refuse("the entry ends early");
      remaining_ -= count;
      return bytes;
    }

    // Reading past the last byte makes libzip compare the checksum.
    void require_end() {
      char beyond = 0;
      const zip_int64_t got = zip_fread(file_.get(), &beyond, 1);
      if (got < 0) refuse(zip_file_strerror(file_.get()));
      if (got > 0) refuse("more data than the directory declares");
    }

    [[noreturn]] void refuse(const std::string& why) const { throw SpecError(label_, place_, why); }

   private:
    struct Close {
      void operator()(zip_file_t* file) const { zip_fclose(file); }
    };
    const std::string& label_;
    std::string place_;
    u64 remaining_ = 0;
    std::unique_ptr<zip_file_t, Close> file_;
  };

  // Takes over `source`, which is null if libzip had no memory for it.
  void open(zip_source_t* source) {
    if (source == nullptr) throw std::bad_alloc();
    zip_error_t error;
    zip_error_init(&error);
    archive_.reset(zip_open_from_source(source, ZIP_RDONLY, &error));
    const std::string why = archive_ ? "" : zip_error_strerror(&error);
    zip_error_fini(&error);
    if (!archive_) {
      zip_source_free(source);
      throw SpecError(label_, "zip directory", why);
    }
    const zip_int64_t entries = zip_get_num_entries(archive_.get(), 0);
    for (zip_int64_t i = 0; i < entries; ++i) list_entry(static_cast<zip_uint64_t>(i));
    if (tensors_.empty() && pickled_) throw SpecError(label_, "zip directory", kPickle);
  }

  void list_entry(zip_uint64_t index) {
    constexpr std::string_view kSuffix = ".npy";
    const char* raw_name = zip_get_name(archive_.get(), index, ZIP_FL_ENC_RAW);
    std::string name = raw_name ? raw_name : "";
    pickled_ = pickled_ || name == "data.pkl" || name.ends_with("/data.pkl");
    if (!name.ends_with(kSuffix)) return;
    name.resize(name.size() - kSuffix.size());
    Entry entry(*this, index, name);
    const NpyHeader header(entry);
    TensorInfo tensor{.name = name,
                      .dtype = header.dictionary.descr,
                      .shape = header.dictionary.shape,
                      .unknown = header.unknown};
    const auto elements = element_count(tensor.shape);
    if (!elements) throw SpecError(label_, name, "the product of the shape overflows 64 bits");
    tensor.elements = *elements;
    entries_[name] = index;
    add(std::move(tensor));
  }

  // The header of an entry, read from it. What NumPy may write and this does not know is said in `unknown`;
  // damage is refused.
  struct NpyHeader {
    explicit NpyHeader(Entry& entry) {
      constexpr std::string_view kMagic = "\x93NUMPY";
      const std::string start = entry.take(kMagic.size() + 2);
      if (!start.starts_with(kMagic)) entry.refuse("not a .npy array");
      const int major = static_cast<unsigned char>(start[kMagic.size()]);
      if (major < 1 || major > 3) {  // 3.0 is 2.0 with a header in UTF-8
        unknown = fmt::format(".npy version {}", major);
        return;
      }
      const std::string length_bytes = entry.take(major == 1 ? sizeof(u16) : sizeof(u32));
      u32 length = 0;
      std::memcpy(&length, length_bytes.data(), length_bytes.size());
      if (length > entry.remaining()) entry.refuse("the entry ends early");
      if (length > kMaxNpyHeaderBytes) {
        unknown = fmt::format("header of {} bytes (limit {})", length, kMaxNpyHeaderBytes);
        return;
      }
      try {
        dictionary = NpyDictionary(entry.take(length));
      } catch (const NpyDictionary::Malformed& error) {
        entry.refuse(std::string(".npy header: ") + error.what());
      }
      constexpr size_t kShown = 60;
      if (dictionary.structured) unknown = "structured dtype " + dictionary.descr.substr(0, kShown);
    }

    NpyDictionary dictionary;
    std::string unknown;
  };

  struct Discard {
    void operator()(zip_t* archive) const { zip_discard(archive); }
  };
  std::string bytes_;  // must outlive the archive that reads it
  std::unique_ptr<zip_t, Discard> archive_;
  std::map<std::string, zip_uint64_t> entries_;
  bool pickled_ = false;  // holds what torch.save writes
};

// The beginning of a zip archive. Read as the length of a safetensors header, it would exceed the limit.
bool is_zip(std::string_view start) { return start.starts_with("PK"); }

}  // namespace

void TensorFile::add(TensorInfo tensor) {
  if (!index_.emplace(tensor.name, tensors_.size()).second)
    throw SpecError(label_, tensor.name, "the name occurs twice");
  tensors_.push_back(std::move(tensor));
}

const TensorInfo& TensorFile::find(const std::string& name) const {
  const auto found = index_.find(name);
  if (found == index_.end())
    throw SpecError(label_, name, fmt::format("no such tensor among {}", tensors_.size()));
  return tensors_[found->second];
}

std::unique_ptr<TensorFile> open_tensors(const std::string& path) {
  std::error_code ignored;
  // Pipes have no size against which offsets can be checked, and cannot be read at random. Directories and
  // missing files also fail here.
  if (!std::filesystem::is_regular_file(path, ignored)) return parse_tensors(path, kernels::read_file(path));
  auto stream = std::make_unique<std::ifstream>(path, std::ios::binary);
  if (!*stream) throw kernels::IoError(path, "open", errno);
  std::string start(2, '\0');
  stream->read(start.data(), static_cast<std::streamsize>(start.size()));
  if (!is_zip(start))
    return std::make_unique<SafetensorsFile>(path, std::move(stream), std::filesystem::file_size(path));
  return std::make_unique<NpzFile>(path);
}

std::unique_ptr<TensorFile> parse_tensors(const std::string& label, std::string bytes) {
  if (!is_zip(bytes)) {
    const u64 size = bytes.size();
    return std::make_unique<SafetensorsFile>(label, std::make_unique<std::istringstream>(std::move(bytes)),
                                             size);
  }
  return std::make_unique<NpzFile>(label, std::move(bytes));
}

std::string safetensors_bytes(std::vector<NamedTensor> tensors,
                              const std::map<std::string, std::string>& metadata) {
  std::sort(tensors.begin(), tensors.end(),
            [](const NamedTensor& a, const NamedTensor& b) { return a.name < b.name; });
  nlohmann::json header = nlohmann::json::object();  // std::map inside, so keys are in order
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::string data;
  for (const NamedTensor& tensor : tensors) {
    const size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(tensor.values.data()), tensor.values.size() * sizeof(float));
    header[tensor.name] = {
        {"dtype", "F32"}, {"shape", {tensor.values.size()}}, {"data_offsets", {begin, data.size()}}};
  }
  std::string text = header.dump();
  constexpr size_t kAlignment = 8;  // the format's alignment: data begin aligned for any element type
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  const u64 header_bytes = text.size();
  std::string file(sizeof(u64), '\0');
  std::memcpy(file.data(), &header_bytes, sizeof(u64));
  return file + text + data;
}

}  // namespace outgrad::validation
