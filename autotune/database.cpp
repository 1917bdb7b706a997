// Reading with warnings; appending under a lock.
#include "autotune/database.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <sstream>

#include "kernels/host/files.h"

namespace outgrad::autotune {

Database load_database(const std::string& path) {
  Database database;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return database;
  std::istringstream lines(kernels::read_file(path));
  long long number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.empty()) continue;
    const auto warn = [&](const std::string& why) { database.warnings.push_back(path + ":" + std::to_string(number) + ": " + why); };
    nlohmann::json record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (record.is_discarded() || !record.is_object()) {
      warn("not a JSON object, ignored");
    } else if (const auto schema = record.find("schema"); schema == record.end() || *schema != kSchema) {
      warn("schema is " + (schema == record.end() ? std::string("missing") : schema->dump()) + ", not \"" + kSchema + "\", ignored");
    } else {
      database.records.push_back(std::move(record));
    }
  }
  return database;
}

void append_records(const std::string& path, const std::vector<nlohmann::json>& records) {
  const kernels::detail::Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (file.get() < 0) throw kernels::IoError(path, "open", errno);
  while (::flock(file.get(), LOCK_EX) != 0)  // released when the file is closed
    if (errno != EINTR) throw kernels::IoError(path, "lock", errno);

  const off_t size = ::lseek(file.get(), 0, SEEK_END);
  std::string text;
  char last = '\n';
  if (size > 0 && ::pread(file.get(), &last, 1, size - 1) == 1 && last != '\n') text += '\n';
  for (const nlohmann::json& record : records) text += record.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + '\n';

  for (std::size_t done = 0; done < text.size();) {
    const ssize_t put = ::write(file.get(), text.data() + done, text.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      const int error_number = errno;
      static_cast<void>(::ftruncate(file.get(), size));
      throw kernels::IoError(path, "append", error_number);
    }
    done += static_cast<std::size_t>(put);
  }
  if (::fsync(file.get()) != 0 && errno != EINVAL) throw kernels::IoError(path, "sync", errno);  // EINVAL: a device, not a file
}

}  // namespace outgrad::autotune
