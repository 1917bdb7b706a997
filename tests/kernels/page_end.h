// Bytes that end where an unmapped page begins: a read beyond them crashes.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <vector>

#include "kernels/portable.h"

namespace outgrad::kernels {

class PageEnd {
 public:
  explicit PageEnd(const std::vector<u8>& bytes) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)),
               inner = (bytes.size() + page - 1) / page * page;
    mapped_ = inner + page;
    memory_ = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    u8* const end = static_cast<u8*>(memory_) + inner;
    if (::mprotect(end, page, PROT_NONE) != 0) throw std::bad_alloc();
    data_ = end - bytes.size();
    std::copy(bytes.begin(), bytes.end(), data_);
  }
  PageEnd(const PageEnd&) = delete;
  PageEnd& operator=(const PageEnd&) = delete;
  ~PageEnd() { ::munmap(memory_, mapped_); }

  const u8* data() const { return data_; }

 private:
  std::size_t mapped_;
  void* memory_;
  u8* data_;
};

}  // namespace outgrad::kernels
