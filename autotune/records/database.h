// The tuning database: JSON Lines, one line per candidate, append-only, safe for several writers.
//
// The schema is `outgrad.tune/1` (autotune/README.md lists its keys). A reader meets lines cut short by a
// crash, lines of other programs and lines that somebody edited: each is a warning with path and line, never
// an error. A line of a newer version of the schema is an error: the file belongs to a newer program, whose
// records this one would misread or mix with its own.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "autotune/records/record.h"
#include "kernels/support/files.h"

namespace outgrad::autotune {

struct Database {
  std::vector<Record> records;
  std::vector<std::string> warnings;  // "path:line: why"
};

// The first of the lines that were left out, and how many more there are; empty if all were read.
std::string left_out(const Database& database);

// Says so on stderr, in one line.
void warn_of_left_out(const Database& database);

// The records in the text of a database, in the order of its lines; `path` is for messages. Lines of a
// published file that share what their run has in common come out whole. Throws SpecError(path:line) for a
// line of a newer schema.
Database parse_database(const std::string& path, std::string_view text);

// The same of a file; empty when there is no such file. Throws IoError when it cannot be read, SpecError as
// above and for a compressed file.
Database load_database(const std::string& path);

// Whether a record was made by a rule of accuracy before the present one: of a backward with a fit, it does
// not say whether that is as accurate as the default. Its search could choose what none may choose now;
// parse_database() leaves such records out.
bool is_of_an_earlier_rule(const Record& record);

// Holds a database for itself: writers wait. Throws IoError.
class DatabaseLock {
 public:
  // `create`: an absent file is made; else an absent file leaves the lock empty.
  DatabaseLock(const std::string& path, bool create);
  bool holds() const { return file_.get() >= 0; }
  int descriptor() const { return file_.get(); }

 private:
  kernels::Descriptor file_;
};

// Appends the records in one locked write, synced: all of them or, when the disk is full, none. A last line
// that a crash cut short is ended first, so that only that line is lost. Throws IoError, and SpecError when
// the file holds a line of a newer schema: it is left as it is.
void append_records(const std::string& path, const std::vector<Record>& records);

}  // namespace outgrad::autotune
