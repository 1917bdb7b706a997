// --shard i/n of the commands that split their work over machines.
#pragma once

#include <string>

#include "kernels/host/errors.h"
#include "kernels/support/numbers.h"

namespace outgrad::kernels {

/// Part `index` of `count`, from 1 on.
struct Shard {
  int index = 1, count = 1;
};

/// "i/n", 1 <= i <= n. Throws SpecError "COMMAND: --shard: why".
inline Shard read_shard(const std::string& text, const char* command) {
  constexpr int kMostShards = 1024;  // a shard of a sweep has at least one chunk
  const auto part = numbers_in<int>(text, '/');
  if (part && 1 <= part->first && part->first <= part->second && part->second <= kMostShards)
    return {part->first, part->second};
  throw SpecError(command, "--shard",
                  "'" + text + "' is not i/n with 1 <= i <= n <= " + std::to_string(kMostShards));
}

}  // namespace outgrad::kernels
