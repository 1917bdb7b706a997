// open, read, write, fsync, rename.
#include "kernels/support/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "kernels/support/process.h"

namespace outgrad::kernels {
namespace {

namespace fs = std::filesystem;

// Fills `bytes` from the descriptor; fewer only at the end of the file.
size_t read_fully(const Descriptor& file, std::span<std::byte> bytes, const std::string& path) {
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

// What has a name in the file system: a pipe that a shell hands on (`<(COMMAND)`, /dev/stdin) has none.
bool is_named_pipe(const std::string& path) {
  std::error_code ignored;
  return fs::is_fifo(path, ignored) && !fs::canonical(path, ignored).empty();
}

// /dev/zero, not /dev/null nor what someone types.
bool is_endless(const Descriptor& file, const struct stat& status, const std::string& path) {
  std::byte first{};
  return S_ISCHR(status.st_mode) && ::isatty(file.get()) == 0 && read_fully(file, {&first, 1}, path) > 0;
}

Descriptor open_for_reading(const std::string& path, struct stat& status) {
  if (is_named_pipe(path))
    throw SpecError(path, "read",
                    "is a named pipe, to which perhaps nobody writes; give a file or <(COMMAND)");
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) throw IoError(path, "open", errno);
  if (::fstat(file.get(), &status) != 0) throw IoError(path, "read", errno);
  if (S_ISDIR(status.st_mode)) throw IoError(path, "read", EISDIR);
  if (is_endless(file, status, path))
    throw SpecError(path, "read", "is a device without an end; give a file");
  return file;
}

std::string folder_of(const std::string& path) {
  const std::string folder = fs::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

}  // namespace

void Descriptor::close() {
  if (descriptor_ >= 0) ::close(release());
}

std::string read_file(const std::string& path) {
  struct stat status{};
  const Descriptor file = open_for_reading(path, status);
  // One byte more than the file is said to hold lets a regular file end within the first round.
  std::string content(status.st_size > 0 ? static_cast<size_t>(status.st_size) + 1 : size_t{1} << 16, '\0');
  size_t size = 0;
  while (true) {
    size += read_fully(file, std::as_writable_bytes(std::span(content)).subspan(size), path);
    if (size < content.size()) break;
    content.resize(2 * content.size());
  }
  content.resize(size);
  return content;
}

void read_elements(const std::string& path, size_t element_bytes, i64 count,
                   const std::function<void*(size_t elements)>& room) {
  struct stat status{};
  const Descriptor file = open_for_reading(path, status);
  if (!S_ISREG(status.st_mode)) throw SpecError(path, "size", "an array is read from a regular file");
  const u64 size = static_cast<u64>(status.st_size), elements = size / element_bytes;
  if (size % element_bytes != 0) {
    throw SpecError(path, "size",
                    std::to_string(size) + " bytes is not a whole number of " +
                        std::to_string(element_bytes) + "-byte elements");
  }
  if (count >= 0 && elements != static_cast<u64>(count)) {
    throw SpecError(path, "size",
                    std::to_string(elements) + " elements where " + std::to_string(count) + " are needed");
  }
  if (read_fully(file, std::span(static_cast<std::byte*>(room(elements)), size), path) != size) {
    throw SpecError(path, "size", "the file shrank while it was read");
  }
}

void create_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw IoError(path, "create", error.value());
}

OutputFile::OutputFile(const std::string& path) : target_(path) {
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (status.type() == fs::file_type::directory || path.ends_with('/')) throw IoError(path, "write", EISDIR);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    file_ = Descriptor(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (file_.get() < 0) throw IoError(path, "write", errno);
    return;
  }
  const fs::path resolved = fs::weakly_canonical(path, ignored);
  target_ = ignored ? path : resolved.string();
  // a failure shows, with its reason, when the file is opened
  fs::create_directories(folder_of(target_), ignored);
  open_temporary();
}

void OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(file_.get(), bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail("write");
    bytes = bytes.subspan(static_cast<size_t>(put));
  }
}

void OutputFile::commit() {
  if (temporary_.empty()) {
    if (::close(file_.release()) != 0) fail("write");
    return;
  }
  if (::fsync(file_.get()) != 0) fail("sync");
  if (::close(file_.release()) != 0) fail("write");
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail("rename");
  temporary_.clear();
  // The new name is durable once its folder is synced; some file systems cannot do that, and the content is
  // safe either way.
  const Descriptor folder(::open(folder_of(target_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() >= 0) static_cast<void>(::fsync(folder.get()));
}

void OutputFile::open_temporary() {
  static std::atomic<unsigned> counter{0};
  // Leaves room, within the 255 bytes a file name may have, for the suffix.
  constexpr size_t kNameKept = 200;
  const std::string name = fs::path(target_).filename().string().substr(0, kNameKept);
  do {
    temporary_ = folder_of(target_) + "/." + name + "." + std::to_string(::getpid()) + "-" +
                 std::to_string(counter++) + ".tmp";
    file_ = Descriptor(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  } while (file_.get() < 0 && errno == EEXIST);  // a killed run of the same process id left one behind
  if (file_.get() < 0) {
    const int error_number = errno;
    temporary_.clear();
    throw IoError(target_, "write", error_number);
  }
}

void OutputFile::fail(const char* action) {
  const int error_number = errno;
  discard();
  throw IoError(target_, action, error_number);
}

void OutputFile::discard() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  temporary_.clear();
}

void write_file(const std::string& path, std::string_view content) {
  OutputFile file(path);
  file.write(content);
  file.commit();
}

void require_writable(const std::string& path, const std::vector<std::string>& others) {
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (fs::is_fifo(status) || fs::is_character_file(status)) return;
  for (const std::string& other : others) {
    if (fs::weakly_canonical(path, ignored) == fs::weakly_canonical(other, ignored))
      throw SpecError(path, "write",
                      "this command reads or writes a file of this name already; give another");
  }
  static_cast<void>(OutputFile(path));
}

ScratchFolder::ScratchFolder() {
  const char* const given = std::getenv("TMPDIR");
  path_ = std::string(given == nullptr || *given == '\0' ? "/tmp" : given) + "/outgrad-XXXXXX";
  if (::mkdtemp(path_.data()) == nullptr)
    throw EnvironmentError(IoError(path_, "create", errno).what() +
                           std::string("; TMPDIR names another folder"));
  // A copy of this process, which no signal to its group reaches, is told when a thread of this one has
  // ended, which need not have been the last.
  const auto guard = [this, owner = ::getpid()] {
    ::setsid();
    sigset_t end;
    sigemptyset(&end), sigaddset(&end, SIGTERM);
    for (int signal = 0; ::getppid() == owner;) ::sigwait(&end, &signal);
    std::error_code ignored;
    // what the ended process started may write a last file while this goes on
    for (int tries = 0; tries < 100 && fs::exists(path_, ignored); ++tries, ::usleep(50'000))
      fs::remove_all(path_, ignored);
    return 0;
  };
  guard_ = start_copy(guard, SIGTERM);
}

ScratchFolder::~ScratchFolder() {
  ::kill(guard_, SIGKILL);
  static_cast<void>(wait_for(guard_));
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace outgrad::kernels
