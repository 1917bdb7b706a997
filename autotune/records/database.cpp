// Reading with warnings; appending under a lock.
#include "autotune/records/database.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <map>

#include "kernels/support/errors.h"
#include "kernels/support/json.h"

namespace outgrad::autotune {
namespace {

using nlohmann::json;

constexpr std::string_view kFamily = "outgrad.tune/";
constexpr unsigned kVersion = 1;

// Whether a schema's name is of this family and of a later version: "outgrad.tune/2", "outgrad.tune/1.1",
// "outgrad.tune/10-rc".
bool is_newer(std::string_view schema) {
  if (schema.substr(0, kFamily.size()) != kFamily) return false;
  schema.remove_prefix(kFamily.size());
  unsigned version = 0;
  const auto [end, error] = std::from_chars(schema.data(), schema.data() + schema.size(), version);
  if (error == std::errc::result_out_of_range) return true;
  return error == std::errc() &&
         (version > kVersion || (version == kVersion && end != schema.data() + schema.size() && *end == '.'));
}

kernels::SpecError newer(const std::string& path, long long line, const std::string& schema) {
  return {path + ":" + std::to_string(line), "schema",
          "'" + schema.substr(0, 40) + "' is newer than this program's " + kSchema +
              ": use the program that wrote it, or give another file"};
}

// The value of a line, null where it is none of ours.
json value_of(std::string_view line) {
  json value = kernels::parse_json_line(line);
  return value.is_discarded() ? json() : value;
}

// Throws when a line of `text` is of a newer schema; quicker than parsing all of it.
void refuse_newer(const std::string& path, std::string_view text) {
  const std::string_view family = kFamily.substr(0, kFamily.size() - 1),
                         ours = std::string_view(kSchema).substr(family.size());
  for (std::size_t at = text.find(family); at != text.npos; at = text.find(family, at + family.size())) {
    const std::string_view rest = text.substr(at + family.size(), ours.size() + 1);
    if (rest.substr(0, ours.size()) == ours && rest.back() == '"') continue;
    const std::size_t begin = text.rfind('\n', at) + 1;  // npos + 1 is 0
    const json record = value_of(text.substr(begin, text.find('\n', at) - begin));
    if (const auto schema = record.find("schema"); record.is_object() && schema != record.end() &&
                                                   schema->is_string() &&
                                                   is_newer(schema->get<std::string>()))
      throw newer(path, 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(begin), '\n'),
                  schema->get<std::string>());
  }
}

bool same_file(int descriptor, const std::string& path) {
  struct stat held{}, named{};
  return ::fstat(descriptor, &held) == 0 && ::stat(path.c_str(), &named) == 0 &&
         held.st_dev == named.st_dev && held.st_ino == named.st_ino;
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

bool is_of_an_earlier_rule(const Record& record) {
  return (record.kernel == "gelu_backward" || record.kernel == "bias_gelu_backward") &&
         !record.fit.as_accurate;
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
    const auto warn = [&](const std::string& why) {
      database.warnings.push_back(path + ":" + std::to_string(number) + ": " + why + ", ignored");
    };
    json record = kernels::parse_json_line(line);
    if (record.is_discarded() || !record.is_object()) {
      const std::string why = kernels::json_refusal(line);
      warn(why.empty() ? "not a JSON object" : why);
      continue;
    }
    const auto schema = record.find("schema");
    if (schema == record.end() || *schema != kSchema) {
      if (schema != record.end() && schema->is_string() && is_newer(schema->get<std::string>()))
        throw newer(path, number, schema->get<std::string>());
      constexpr std::size_t kShown = 60;
      warn("schema is " +
           (schema == record.end() ? std::string("missing") : line_of(*schema).substr(0, kShown)) +
           ", not \"" + kSchema + "\"");
      continue;
    }
    try {
      if (const auto name = record.find("run"); name != record.end() && name->is_string()) {
        record_from(record);  // which says what is wrong with it
        json& run = runs[name->get<std::string>()] = record;
        for (const char* key : {"run", "of_run"}) run.erase(key);
        continue;
      }
      if (const auto of = record.find("of_run"); of != record.end()) {
        const auto run = of->is_string() ? runs.find(of->get<std::string>()) : runs.end();
        if (run == runs.end()) {
          warn("of a run that no line above describes");
          continue;
        }
        record.erase("of_run");
        record.insert(run->second.begin(), run->second.end());  // what the line itself says stays
      }
      Record whole = record_from(std::move(record));
      if (!is_of_an_earlier_rule(whole))
        database.records.push_back(std::move(whole));
      else if (++earlier == 1)
        first_earlier = number;
    } catch (const kernels::SpecError& fault) {
      warn(fault.what());
    }
  }
  if (earlier > 0)
    database.warnings.push_back(path + ":" + std::to_string(first_earlier) + ": the first of " +
                                std::to_string(earlier) +
                                " records of an earlier rule of accuracy (no \"as_accurate\" in \"fit\"), "
                                "ignored: their problems are searched again");
  return database;
}

Database load_database(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return {};
  const std::string text = kernels::read_file(path);
  if (text.starts_with("\x1f\x8b"))
    throw kernels::SpecError(path, "byte 1", "is compressed: gunzip it first");
  return parse_database(path, text);
}

std::string left_out(const Database& database) {
  if (database.warnings.empty()) return {};
  const std::size_t more = database.warnings.size() - 1;
  return database.warnings.front() +
         (more > 0 ? ", and " + std::to_string(more) + " more such line" + (more > 1 ? "s" : "") : "");
}

void warn_of_left_out(const Database& database) {
  if (const std::string what = left_out(database); !what.empty())
    kernels::print_error_line("warning: " + what);
}

DatabaseLock::DatabaseLock(const std::string& path, bool create) {
  while (true) {
    file_ = kernels::Descriptor(
        ::open(path.c_str(), O_RDWR | O_APPEND | O_CLOEXEC | (create ? O_CREAT : 0), 0666));
    if (file_.get() < 0 && !create && errno == ENOENT) return;
    if (file_.get() < 0) throw kernels::IoError(path, "open", errno);
    while (::flock(file_.get(), LOCK_EX) != 0)  // released when the file is closed
      if (errno != EINTR) throw kernels::IoError(path, "lock", errno);
    if (same_file(file_.get(), path)) return;  // else a merge put another file in its place while this waited
  }
}

void append_records(const std::string& path, const std::vector<Record>& records) {
  const DatabaseLock file(path, /*create=*/true);
  const off_t size = ::lseek(file.descriptor(), 0, SEEK_END);
  std::string text;
  if (size > 0) {
    const std::string there = content_of(file.descriptor(), size, path);
    refuse_newer(path, there);
    if (there.back() != '\n') text += '\n';
  }
  for (const Record& record : records) text += line_of(record) + '\n';

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
  // EINVAL: a device, not a file
  if (::fsync(file.descriptor()) != 0 && errno != EINVAL) throw kernels::IoError(path, "sync", errno);
}

}  // namespace outgrad::autotune
