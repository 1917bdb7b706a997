// Whole-file input, all-or-nothing output, and raw little-endian arrays.
//
// An output is written under a temporary name in the folder of its target, synced, then renamed over the target: readers see the old
// file or the whole new one, also after a crash. A symbolic link is followed, so the link itself survives; a device or pipe
// (/dev/stdout, /dev/null) is written directly, because renaming over it would replace the device. A folder that is not there is made:
// what took an hour to compute is not lost for want of one.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/host/errors.h"
#include "kernels/portable.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

static_assert(std::endian::native == std::endian::little, "raw arrays are little-endian and are not swapped");

namespace detail {

class Descriptor {
 public:
  explicit Descriptor(int descriptor = -1) : descriptor_(descriptor) {}
  Descriptor(Descriptor&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Descriptor() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  int get() const { return descriptor_; }
  int release() { return std::exchange(descriptor_, -1); }

 private:
  int descriptor_;
};

// Fills `bytes` from the descriptor; fewer only at the end of the file.
inline size_t read_fully(const Descriptor& file, std::span<std::byte> bytes, const std::string& path) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = ::read(file.get(), bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw IoError(path, "read", errno);
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  return done;
}

inline Descriptor open_for_reading(const std::string& path, struct stat& status) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) throw IoError(path, "open", errno);
  if (::fstat(file.get(), &status) != 0) throw IoError(path, "read", errno);
  if (S_ISDIR(status.st_mode)) throw IoError(path, "read", EISDIR);
  return file;
}

}  // namespace detail

// The whole content of a file (pipes too). Throws IoError.
inline std::string read_file(const std::string& path) {
  struct stat status {};
  const detail::Descriptor file = detail::open_for_reading(path, status);
  // One byte more than the file is said to hold lets a regular file end within the first round.
  std::string content(status.st_size > 0 ? static_cast<size_t>(status.st_size) + 1 : size_t{1} << 16, '\0');
  size_t size = 0;
  while (true) {
    size += detail::read_fully(file, std::as_writable_bytes(std::span(content)).subspan(size), path);
    if (size < content.size()) break;
    content.resize(2 * content.size());
  }
  content.resize(size);
  return content;
}

// Raw little-endian elements of a regular file. Throws SpecError if the size is not a whole number of elements, or not `count` of
// them where one is given; IoError if it cannot be read.
template <class T>
std::vector<T> read_array(const std::string& path, i64 count = -1) {
  static_assert(std::is_trivially_copyable_v<T>);
  struct stat status {};
  const detail::Descriptor file = detail::open_for_reading(path, status);
  if (!S_ISREG(status.st_mode)) throw SpecError(path, "size", "an array is read from a regular file");
  const u64 size = static_cast<u64>(status.st_size);
  if (size % sizeof(T) != 0) {
    throw SpecError(path, "size", std::to_string(size) + " bytes is not a whole number of " + std::to_string(sizeof(T)) + "-byte elements");
  }
  if (count >= 0 && size / sizeof(T) != static_cast<u64>(count)) {
    throw SpecError(path, "size", std::to_string(size / sizeof(T)) + " elements where " + std::to_string(count) + " are needed");
  }
  std::vector<T> elements(size / sizeof(T));
  if (detail::read_fully(file, std::as_writable_bytes(std::span(elements)), path) != size) {
    throw SpecError(path, "size", "the file shrank while it was read");
  }
  return elements;
}

// A file that appears whole, under its name, at commit(), and not at all without it. Throws IoError.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path) : target_(path) {
    namespace fs = std::filesystem;
    std::error_code ignored;
    const fs::file_status status = fs::status(path, ignored);
    if (status.type() == fs::file_type::directory) throw IoError(path, "write", EISDIR);
    if (fs::exists(status) && !fs::is_regular_file(status)) {
      file_ = detail::Descriptor(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
      if (file_.get() < 0) throw IoError(path, "write", errno);
      return;
    }
    const fs::path resolved = fs::weakly_canonical(path, ignored);
    target_ = ignored ? path : resolved.string();
    fs::create_directories(folder_of(target_), ignored);  // a failure shows, with its reason, when the file is opened
    open_temporary();
  }
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile() { discard(); }

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t put = ::write(file_.get(), bytes.data(), bytes.size());
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) fail("write");
      bytes = bytes.subspan(static_cast<size_t>(put));
    }
  }

  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }

  void commit() {
    if (temporary_.empty()) {
      if (::close(file_.release()) != 0) fail("write");
      return;
    }
    if (::fsync(file_.get()) != 0) fail("sync");
    if (::close(file_.release()) != 0) fail("write");
    if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail("rename");
    temporary_.clear();
    // The new name is durable once its folder is synced; some file systems cannot do that, and the content is safe either way.
    const detail::Descriptor folder(::open(folder_of(target_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (folder.get() >= 0) static_cast<void>(::fsync(folder.get()));
  }

 private:
  static std::string folder_of(const std::string& path) {
    const std::string folder = std::filesystem::path(path).parent_path().string();
    return folder.empty() ? "." : folder;
  }

  void open_temporary() {
    static std::atomic<unsigned> counter{0};
    // Leaves room, within the 255 bytes a file name may have, for the suffix.
    constexpr size_t kNameKept = 200;
    const std::string name = std::filesystem::path(target_).filename().string().substr(0, kNameKept);
    do {
      temporary_ = folder_of(target_) + "/." + name + "." + std::to_string(::getpid()) + "-" + std::to_string(counter++) + ".tmp";
      file_ = detail::Descriptor(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    } while (file_.get() < 0 && errno == EEXIST);  // a killed run of the same process id left one behind
    if (file_.get() < 0) {
      const int error_number = errno;
      temporary_.clear();
      throw IoError(target_, "write", error_number);
    }
  }

  [[noreturn]] void fail(const char* action) {
    const int error_number = errno;
    discard();
    throw IoError(target_, action, error_number);
  }

  void discard() {
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
    temporary_.clear();
  }

  std::string target_;
  std::string temporary_;  // empty: written directly, or already committed
  detail::Descriptor file_;
};

// Replaces the file by `content`, or leaves it as it was and throws IoError.
inline void write_file(const std::string& path, std::string_view content) {
  OutputFile file(path);
  file.write(content);
  file.commit();
}

// Likewise for raw little-endian elements.
template <class T>
void write_array(const std::string& path, std::span<const T> elements) {
  static_assert(std::is_trivially_copyable_v<T>);
  OutputFile file(path);
  file.write(std::as_bytes(elements));
  file.commit();
}

// Throws what writing the file would throw, where that can be told beforehand: before an hour of work, not after it. Makes the folder. Pipes and
// devices are not asked: a pipe's reader would take the question for the end.
inline void require_writable(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::file_status status = std::filesystem::status(path, ignored);
  if (std::filesystem::is_fifo(status) || std::filesystem::is_character_file(status)) return;
  static_cast<void>(OutputFile(path));
}

}  // namespace outgrad::kernels
