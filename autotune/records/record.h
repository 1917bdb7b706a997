// A line of the tuning database as a value, and the one codec between the two. The schema is `outgrad.tune/1`
// (autotune/README.md lists its keys).
//
// No key has to be there. A member that a line does not have is nothing, an empty text or zero, and such a
// member is not written. What a line has beside the schema's keys is kept in `others` and written again. A
// figure that is null in a line is infinite: a bound that its header does not state, a quotient by zero.
#pragma once

#include <compare>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "autotune/records/interval.h"
#include "kernels/portable.h"

namespace outgrad::autotune {

inline constexpr const char* kSchema = "outgrad.tune/1";

// The hashes of the sources that were measured (autotune/space/sources.h).
struct SourceHashes {
  std::string kernels, coefficients;

  auto operator<=>(const SourceHashes&) const = default;
};

// Which device it was. What does not change from one driver or system to the next identifies it (identity.h).
struct DeviceRecord {
  std::string kind;  // "cpu"; "cuda"; "offline": a GPU that is not there
  std::optional<std::string> model, isa;  // of a CPU, as are sockets, caches and vectors
  std::optional<int> threads, sockets, vector_bits;
  std::optional<kernels::i64> l1d_bytes, l2_bytes, l3_bytes;
  std::optional<std::string> name, architecture, board;  // of a GPU, as is all that follows
  std::optional<int> sms, threads_per_sm, blocks_per_sm, shared_per_sm, shared_per_block, driver;
  std::optional<double> clock_ghz, memory_clock_ghz, dram_gb_per_s;
  std::optional<kernels::i64> memory_bytes;
  nlohmann::json others;
};

// What the lines of one run share.
struct RunIdentity {
  DeviceRecord device;
  SourceHashes hashes;
  std::string compiler, flags, time;
  std::optional<std::uint64_t> seed;
  std::string toolkit{};  // of a GPU that is not there
};

// What was measured: a kernel and format in a size. A rejected variant has no elements.
struct ProblemRecord {
  std::string kernel, format;
  kernels::i64 rows = 0, cols = 0, elements = 0;  // rows and columns of a kernel over rows alone

  auto operator<=>(const ProblemRecord&) const = default;
};

struct FitRecord {
  std::string name;
  std::optional<std::string> accuracy;  // the key "class"; empty of a forward
  std::optional<double> a_plus_b, t, r;
  std::optional<bool> as_accurate;  // as the default
  std::string sha256;  // of the header, where the caller brought it
  nlohmann::json others;
};

// Over the default of the same run.
struct SpeedupRecord : Interval {
  std::optional<double> confidence{};
  nlohmann::json others{};
};

// One candidate of one run.
struct Record : ProblemRecord {
  struct Rejection {
    std::string stage, reason;  // name_of() of candidate.h
    std::optional<std::string> detail;
    nlohmann::json others;
  };
  struct Ceiling {
    std::string name;
    std::optional<double> bytes;  // of one run of it
    nlohmann::json others;
  };
  struct Rounds {  // times in ns, one a round
    std::optional<std::vector<double>> ns, default_ns, ceiling_ns;
    nlohmann::json others;
  };
  struct Resources {
    std::optional<int> registers, shared_bytes;
    nlohmann::json others;
  };
  struct Predicted {  // gpu::Prediction
    std::optional<double> ns_per_element, memory_ns, issue_ns, shared_ns, cache_ns, others_ns, launch_ns,
        occupancy, bytes_in_flight_per_sm, share_of_bandwidth;
    std::optional<int> resident_blocks;
    nlohmann::json others;
  };

  RunIdentity run;
  std::string variant, state, baseline;  // baseline: the default's name
  nlohmann::json parameters = nlohmann::json::object();  // of the variant: numbers, truths and texts
  FitRecord fit;
  std::optional<bool> is_default, finalist, winner, gain;
  Rejection rejected;
  Ceiling ceiling;
  Rounds screening, final;
  std::optional<SpeedupRecord> speedup;
  std::optional<double> compile_ms, bytes, bytes_per_element, gb_per_s, share_of_ceiling;
  // rounds: of a published line, those that its interval rests on
  std::optional<kernels::i64> checked, discarded_rounds, rounds;
  Resources resources;
  std::optional<double> instructions_per_element;
  Predicted predicted;
  nlohmann::json others;

  // Whether it says of which variant it is: others are carried along, and are no evidence of anything.
  bool is_of_a_variant() const { return !kernel.empty() && !variant.empty() && !state.empty(); }
};

// Final rounds that its figures rest on: those that the ceiling does not disown. 0 of a screening.
kernels::i64 rounds_of(const Record& record);

// Whether it is of a default that was kept because too few rounds were left to tell it from any other.
bool is_too_noisy(const Record& record);

// Throw SpecError with what is wrong: "fit.name: is not a string". The schema itself is the database's to
// check.
Record record_from(nlohmann::json line);
DeviceRecord device_record_from(nlohmann::json object);

nlohmann::json to_json(const Record& record);
nlohmann::json to_json(const DeviceRecord& device);
nlohmann::json to_json(const RunIdentity& run);
nlohmann::json to_json(const FitRecord& fit);
nlohmann::json to_json(const SpeedupRecord& speedup);

// The two kinds of lines of a published file: what the lines of a run share, under a name, and a record of
// that run without it.
nlohmann::json run_line(const RunIdentity& run, const std::string& name);
nlohmann::json line_of_run(Record record, const std::string& name);

// As one line, without its end: keys in order, bytes that are no UTF-8 replaced.
std::string line_of(const nlohmann::json& value);
std::string line_of(const Record& record);

}  // namespace outgrad::autotune
