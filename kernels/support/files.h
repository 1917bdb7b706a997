// Whole-file input, all-or-nothing output, and raw little-endian arrays.
//
// An output is written under a temporary name in the folder of its target, synced, then renamed over the
// target: readers see the old file or the whole new one, also after a crash. A symbolic link is followed, so
// the link itself survives; a device or pipe (/dev/stdout, /dev/null) is written directly, because renaming
// over it would replace the device. A folder that is not there is made: what took an hour to compute is not
// lost for want of one.
#pragma once

#include <sys/types.h>

#include <bit>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/portable.h"
#include "kernels/support/errors.h"

namespace outgrad::kernels {

static_assert(std::endian::native == std::endian::little, "raw arrays are little-endian and are not swapped");

// Closed at the end of its life.
class Descriptor {
 public:
  explicit Descriptor(int descriptor = -1) : descriptor_(descriptor) {}
  Descriptor(Descriptor&& other) noexcept : descriptor_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Descriptor() { close(); }
  int get() const { return descriptor_; }
  int release() { return std::exchange(descriptor_, -1); }
  void close();

 private:
  int descriptor_;
};

// The whole content of a file, or of a pipe that a shell hands on. Throws IoError, and SpecError for a named
// pipe, which may be waited for without end, and for a device that has none, such as /dev/zero.
std::string read_file(const std::string& path);

// What read_array() does for any type: `room` is told the number of elements, and gives the place for them.
void read_elements(const std::string& path, size_t element_bytes, i64 count,
                   const std::function<void*(size_t elements)>& room);

// Raw little-endian elements of a regular file. Throws SpecError if the size is not a whole number of
// elements, or not `count` of them where one is given; IoError if it cannot be read.
template <class T>
std::vector<T> read_array(const std::string& path, i64 count = -1) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> elements;
  read_elements(path, sizeof(T), count, [&](size_t size) {
    elements.resize(size);
    return elements.data();
  });
  return elements;
}

// A file that appears whole, under its name, at commit(), and not at all without it. Throws IoError.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile() { discard(); }

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void commit();

 private:
  void open_temporary();
  [[noreturn]] void fail(const char* action);
  void discard();

  std::string target_;
  std::string temporary_;  // empty: written directly, or already committed
  Descriptor file_;
};

// Makes a folder, and those above it. Throws IoError.
void create_folder(const std::string& path);

// Replaces the file by `content`, or leaves it as it was and throws IoError.
void write_file(const std::string& path, std::string_view content);

// Likewise for raw little-endian elements.
template <class T>
void write_array(const std::string& path, std::span<const T> elements) {
  static_assert(std::is_trivially_copyable_v<T>);
  OutputFile file(path);
  file.write(std::as_bytes(elements));
  file.commit();
}

// A folder of its own in TMPDIR, or in /tmp, removed with what it holds, also where a signal ends the
// process. Throws EnvironmentError.
class ScratchFolder {
 public:
  ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder();
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  pid_t guard_ = 0;
};

// Throws what writing the file would throw, where that can be told beforehand: before an hour of work, not
// after it; and SpecError where it is one of the `others` that the same command reads or writes, which would
// be lost. Makes the folder. Pipes and devices are not asked: a pipe's reader would take the question for
// the end.
void require_writable(const std::string& path, const std::vector<std::string>& others = {});

}  // namespace outgrad::kernels
