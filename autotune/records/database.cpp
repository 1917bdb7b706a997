// Reading with warnings; appending under a lock.
#include "autotune/records/database.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>

#include "autotune/problem.h"

namespace outgrad::autotune {
namespace {

using nlohmann::json;

constexpr std::string_view kFamily = "outgrad.tune/";
constexpr unsigned kVersion = 1;
// A record nests three deep. The library's parser copes with any depth, but copying, comparing and writing such a value recurse.
constexpr int kDeepest = 32;

bool nests_too_deep(std::string_view line) {
  int depth = 0;
  bool in_text = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (in_text) {
      if (c == '\\') ++i;
      if (c == '"') in_text = false;
    } else if (c == '"') {
      in_text = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kDeepest) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

// Whether a schema's name is of this family and of a later version: "outgrad.tune/2", "outgrad.tune/1.1", "outgrad.tune/10-rc".
bool is_newer(std::string_view schema) {
  if (schema.substr(0, kFamily.size()) != kFamily) return false;
  schema.remove_prefix(kFamily.size());
  unsigned version = 0;
  const auto [end, error] = std::from_chars(schema.data(), schema.data() + schema.size(), version);
  if (error == std::errc::result_out_of_range) return true;
  return error == std::errc() && (version > kVersion || (version == kVersion && end != schema.data() + schema.size() && *end == '.'));
}

kernels::SpecError newer(const std::string& path, long long line, const std::string& schema) {
  return {path + ":" + std::to_string(line), "schema",
          "'" + schema.substr(0, 40) + "' is newer than this program's " + kSchema + ": use the program that wrote it, or give another file"};
}

// The value of a line, null where it is none of ours or too deep for the library.
json value_of(std::string_view line) {
  if (nests_too_deep(line)) return {};
  json value = json::parse(line, nullptr, /*allow_exceptions=*/false);
  return value.is_discarded() ? json() : value;
}

// Throws when a line of `text` is of a newer schema; quicker than parsing all of it.
void refuse_newer(const std::string& path, std::string_view text) {
  const std::string_view family = kFamily.substr(0, kFamily.size() - 1), ours = std::string_view(kSchema).substr(family.size());
  for (std::size_t at = text.find(family); at != text.npos; at = text.find(family, at + family.size())) {
    const std::string_view rest = text.substr(at + family.size(), ours.size() + 1);
    if (rest.substr(0, ours.size()) == ours && rest.back() == '"') continue;
    const std::size_t begin = text.rfind('\n', at) + 1;  // npos + 1 is 0
    const json record = value_of(text.substr(begin, text.find('\n', at) - begin));
    if (const auto schema = record.find("schema"); record.is_object() && schema != record.end() && schema->is_string() && is_newer(schema->get<std::string>()))
      throw newer(path, 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(begin), '\n'), schema->get<std::string>());
  }
}

bool is_count(const json& value) { return value.is_number_integer() && (value.is_number_unsigned() || value.get<std::int64_t>() >= 0); }

// A number that the library wrote: one that is not finite became null.
bool is_figure(const json& value) { return value.is_null() || value.is_number(); }

bool is_positive(const json& value) { return value.is_number() && value.get<double>() > 0 && std::isfinite(value.get<double>()); }

bool has_only(const json& object, bool (*fits)(const json&), std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (const auto found = object.find(key); found != object.end() && !fits(*found)) return false;
  return true;
}

bool is_text(const json& value) { return value.is_string(); }
bool is_truth(const json& value) { return value.is_boolean(); }

bool is_fit(const json& value) {
  return value.is_object() && value.contains("name") && has_only(value, is_text, {"name", "class", "sha256"}) &&
         has_only(value, is_figure, {"a_plus_b", "t", "r"}) && has_only(value, is_truth, {"as_accurate"});
}

bool is_rejection(const json& value) { return value.is_object() && has_only(value, is_text, {"stage", "reason", "detail"}); }

bool is_ceiling(const json& value) { return value.is_object() && has_only(value, is_text, {"name"}) && has_only(value, is_figure, {"bytes"}); }

bool is_interval(const json& value) {
  if (!value.is_object()) return false;
  for (const char* key : {"median", "low", "high"})
    if (const auto found = value.find(key); found == value.end() || !is_positive(*found)) return false;
  const auto confidence = value.find("confidence");
  return value["low"].get<double>() <= value["high"].get<double>() &&
         (confidence == value.end() || (is_positive(*confidence) && confidence->get<double>() < 1));
}

bool is_samples(const json& value) {
  return value.is_object() && has_only(value, [](const json& list) { return list.is_array() && std::all_of(list.begin(), list.end(), is_positive); },
                                       {"ns", "ceiling_ns", "default_ns"});
}

bool is_parameters(const json& value) {
  return value.is_object() && std::all_of(value.begin(), value.end(), [](const json& one) { return one.is_number() || one.is_boolean() || one.is_string(); });
}

struct Rule {
  const char* what;
  bool (*fits)(const json&);
  std::initializer_list<const char*> keys;
};

const Rule kRules[] = {
    {"a text", is_text,
     {"time", "kernels_sha256", "coefficients_sha256", "compiler", "flags", "kernel", "format", "variant", "state", "toolkit", "baseline"}},
    {"true or false", is_truth, {"default", "finalist", "winner", "gain"}},
    {"a count", is_count, {"seed", "elements", "rows", "cols", "checked", "discarded_rounds", "rounds"}},
    {"a number", is_figure, {"compile_ms", "bytes", "bytes_per_element", "gb_per_s", "share_of_ceiling"}},
    {"an object", [](const json& value) { return value.is_object(); }, {"device"}},
    {"an object of numbers, truths and texts", is_parameters, {"parameters"}},
    {"an object with a name", is_fit, {"fit"}},
    {"an object of texts", is_rejection, {"rejected"}},
    {"an object of a name and bytes", is_ceiling, {"ceiling"}},
    {"an interval of positive numbers", is_interval, {"speedup"}},
    {"lists of positive numbers", is_samples, {"screening", "final"}},
};

bool same_file(int descriptor, const std::string& path) {
  struct stat held {}, named {};
  return ::fstat(descriptor, &held) == 0 && ::stat(path.c_str(), &named) == 0 && held.st_dev == named.st_dev && held.st_ino == named.st_ino;
}

std::string content_of(int descriptor, off_t size, const std::string& path) {
  std::string text(static_cast<std::size_t>(size), '\0');
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t got = ::pread(descriptor, text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw kernels::IoError(path, "read", errno);
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return text;
}

}  // namespace

std::optional<std::string> flaw_of(const json& record) {
  for (const Rule& rule : kRules)
    for (const char* key : rule.keys)
      if (const auto found = record.find(key); found != record.end() && !rule.fits(*found)) return "\"" + std::string(key) + "\" is not " + rule.what;
  return std::nullopt;
}

bool is_of_an_earlier_rule(const json& record) {
  const auto kernel = record.find("kernel");
  if (kernel == record.end()) return false;
  const bool has_choice = std::any_of(std::begin(kAllKernels), std::end(kAllKernels),
                                      [&](KernelId id) { return is_backward(id) && Problem{id}.has_fit() && *kernel == name_of(id); });
  const auto fit = record.find("fit");
  return has_choice && (fit == record.end() || !fit->contains("as_accurate"));
}

bool is_eligible(const json& record, Accuracy accuracy) {
  if (is_of_an_earlier_rule(record)) return false;
  const auto fit = record.find("fit");
  return accuracy == Accuracy::kAny || fit == record.end() || fit->value("as_accurate", true);
}

Database parse_database(const std::string& path, std::string_view text) {
  Database database;
  std::map<std::string, json> runs;  // what lines of a published file have in common, by name
  long long number = 0, earlier = 0, first_earlier = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.empty()) continue;
    const auto warn = [&](const std::string& why) { database.warnings.push_back(path + ":" + std::to_string(number) + ": " + why + ", ignored"); };
    if (nests_too_deep(line)) {
      warn("nested deeper than " + std::to_string(kDeepest));
      continue;
    }
    json record = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (record.is_discarded() || !record.is_object()) {
      warn("not a JSON object");
      continue;
    }
    const auto schema = record.find("schema");
    if (schema == record.end() || *schema != kSchema) {
      if (schema != record.end() && schema->is_string() && is_newer(schema->get<std::string>())) throw newer(path, number, schema->get<std::string>());
      constexpr std::size_t kShown = 60;
      warn("schema is " + (schema == record.end() ? std::string("missing") : line_of(*schema).substr(0, kShown)) + ", not \"" + kSchema + "\"");
      continue;
    }
    if (const auto flaw = flaw_of(record)) {
      warn(*flaw);
      continue;
    }
    if (const auto defined = record.find("run"); defined != record.end() && defined->is_string()) {
      const std::string name = defined->get<std::string>();
      for (const char* key : {"run", "of_run"}) record.erase(key);
      runs[name] = std::move(record);
      continue;
    }
    if (const auto of = record.find("of_run"); of != record.end()) {
      const auto run = of->is_string() ? runs.find(of->get<std::string>()) : runs.end();
      if (run == runs.end()) {
        warn("of a run that no line above describes");
        continue;
      }
      record.erase("of_run");
      for (const auto& [key, value] : run->second.items())
        if (!record.contains(key)) record[key] = value;
    }
    if (is_of_an_earlier_rule(record)) {
      if (++earlier == 1) first_earlier = number;
      continue;
    }
    database.records.push_back(std::move(record));
  }
  if (earlier > 0)
    database.warnings.push_back(
        path + ":" + std::to_string(first_earlier) + ": the first of " + std::to_string(earlier) +
        " records of an earlier rule of accuracy (no \"as_accurate\" in \"fit\"), ignored: their problems are searched again");
  return database;
}

Database load_database(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return {};
  return parse_database(path, kernels::read_file(path));
}

std::string line_of(const json& record) { return record.dump(-1, ' ', false, json::error_handler_t::replace); }

DatabaseLock::DatabaseLock(const std::string& path, bool create) {
  while (true) {
    file_ = kernels::Descriptor(::open(path.c_str(), O_RDWR | O_APPEND | O_CLOEXEC | (create ? O_CREAT : 0), 0666));
    if (file_.get() < 0 && !create && errno == ENOENT) return;
    if (file_.get() < 0) throw kernels::IoError(path, "open", errno);
    while (::flock(file_.get(), LOCK_EX) != 0)  // released when the file is closed
      if (errno != EINTR) throw kernels::IoError(path, "lock", errno);
    if (same_file(file_.get(), path)) return;  // else a merge put another file in its place while this waited
  }
}

void append_records(const std::string& path, const std::vector<json>& records) {
  const DatabaseLock file(path, /*create=*/true);
  const off_t size = ::lseek(file.descriptor(), 0, SEEK_END);
  std::string text;
  if (size > 0) {
    const std::string there = content_of(file.descriptor(), size, path);
    refuse_newer(path, there);
    if (there.back() != '\n') text += '\n';
  }
  for (const json& record : records) text += line_of(record) + '\n';

  for (std::size_t done = 0; done < text.size();) {
    const ssize_t put = ::write(file.descriptor(), text.data() + done, text.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      const int error_number = errno;
      static_cast<void>(::ftruncate(file.descriptor(), size));
      throw kernels::IoError(path, "append", error_number);
    }
    done += static_cast<std::size_t>(put);
  }
  if (::fsync(file.descriptor()) != 0 && errno != EINVAL) throw kernels::IoError(path, "sync", errno);  // EINVAL: a device, not a file
}

}  // namespace outgrad::autotune
