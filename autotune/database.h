// The tuning database: JSON Lines, one line per candidate, append-only, safe for several writers.
//
// The schema is `outgrad.tune/1` (autotune/README.md lists its keys). A reader meets lines cut short by a crash and lines of other
// versions: each is a warning with path and line, never an error.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace outgrad::autotune {

inline constexpr const char* kSchema = "outgrad.tune/1";

struct Database {
  std::vector<nlohmann::json> records;
  std::vector<std::string> warnings;  // "path:line: why"
};

// The records of this schema, in file order; empty when there is no such file. Throws IoError when it cannot be read.
Database load_database(const std::string& path);

// Appends the records in one locked write, synced: all of them or, when the disk is full, none. A last line that a crash cut short is
// ended first, so that only that line is lost. Throws IoError.
void append_records(const std::string& path, const std::vector<nlohmann::json>& records);

}  // namespace outgrad::autotune
