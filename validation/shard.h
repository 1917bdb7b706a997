// --shard i/n of the commands here.
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <string>

#include "kernels/host/errors.h"

namespace outgrad::validation {

/// Part `index` of `count`, from 1 on.
struct Shard {
  int index = 1, count = 1;
};

/// "i/n", 1 <= i <= n. Throws kernels::SpecError "COMMAND: --shard: why".
inline Shard read_shard(const std::string& text, const char* command) {
  constexpr int kMostShards = 1024;  // a shard of a sweep has at least one chunk
  Shard shard;
  const char* const end = text.data() + text.size();
  const auto [slash, first_error] = std::from_chars(text.data(), end, shard.index);
  if (first_error == std::errc() && slash != end && *slash == '/') {
    const auto [rest, second_error] = std::from_chars(slash + 1, end, shard.count);
    if (second_error == std::errc() && rest == end && 1 <= shard.index && shard.index <= shard.count && shard.count <= kMostShards) return shard;
  }
  throw kernels::SpecError(command, "--shard", fmt::format("'{}' is not i/n with 1 <= i <= n <= {}", text, kMostShards));
}

}  // namespace outgrad::validation
