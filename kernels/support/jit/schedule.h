// The schedules of kernels/params.h, member by member and as C++ text. For code that writes the source of a
// kernel whose schedule is known only at run time.
#pragma once

#include <concepts>
#include <span>
#include <string>
#include <type_traits>

#include "kernels/params.h"

namespace outgrad::kernels::jit {

// An enumeration's name, and the names of its values in their order.
struct EnumerationNames {
  const char* type;
  std::span<const char* const> values;
};

template <class Enumeration>
EnumerationNames names_of() {
  static constexpr const char *kPlacements[] = {"permute", "memory"},
                              *kPrefetches[] = {"none", "first_level", "second_level"},
                              *kTables[] = {"automatic", "caches", "columns", "rows", "spread", "entries"},
                              *kHints[] = {"none", "streaming"},
                              *kHomes[] = {"automatic", "registers", "shared", "memory"},
                              *kSums[] = {"automatic", "fused", "separate"};
  if constexpr (std::same_as<Enumeration, TablePlacement>) return {"TablePlacement", kPlacements};
  if constexpr (std::same_as<Enumeration, Prefetch>) return {"Prefetch", kPrefetches};
  if constexpr (std::same_as<Enumeration, TableHome>) return {"TableHome", kTables};
  if constexpr (std::same_as<Enumeration, CacheHint>) return {"CacheHint", kHints};
  if constexpr (std::same_as<Enumeration, RowHome>) return {"RowHome", kHomes};
  if constexpr (std::same_as<Enumeration, ColumnSums>) return {"ColumnSums", kSums};
}

template <class Value>
const char* name_of_value(Value value) {
  return names_of<Value>().values[static_cast<std::size_t>(value)];
}

// visit("threads", schedule.threads) and so on, in the order of declaration.
template <class Schedule, class Visit>
void each_field(Schedule& s, const Visit& visit) {
  if constexpr (requires { s.row_warps; }) {
    visit("row_warps", s.row_warps), visit("octets", s.octets), visit("block_rows", s.block_rows),
        visit("access_bytes", s.access_bytes);
    visit("blocks_per_sm", s.blocks_per_sm), visit("resident_blocks", s.resident_blocks),
        visit("rows_ahead", s.rows_ahead);
    visit("home", s.home), visit("sums", s.sums), visit("loads", s.loads), visit("stores", s.stores);
    if (s.row_lanes != 0) visit("row_lanes", s.row_lanes);  // left open, it is nobody's choice but the plan's
  } else if constexpr (requires { s.octets; }) {
    visit("threads", s.threads), visit("octets", s.octets), visit("access_bytes", s.access_bytes),
        visit("blocks_per_sm", s.blocks_per_sm);
    visit("resident_blocks", s.resident_blocks), visit("loads", s.loads), visit("stores", s.stores),
        visit("table", s.table);
  } else if constexpr (requires { s.unroll; }) {
    visit("threads", s.threads), visit("vector_bits", s.vector_bits), visit("unroll", s.unroll),
        visit("block_elements", s.block_elements);
    visit("streaming_stores", s.streaming_stores), visit("table", s.table);
  } else {
    visit("threads", s.threads), visit("vector_bits", s.vector_bits), visit("vectors", s.vectors),
        visit("rows", s.rows);
    if constexpr (requires { s.task_elements; })
      visit("task_elements", s.task_elements);
    else
      visit("tasks", s.tasks), visit("fold_columns", s.fold_columns);
    visit("streaming_stores", s.streaming_stores), visit("prefetch", s.prefetch),
        visit("rows_ahead", s.rows_ahead);
  }
}

template <class Schedule>
const char* type_name_of(const Schedule&) {
  if constexpr (std::same_as<Schedule, CpuSchedule>) return "CpuSchedule";
  if constexpr (std::same_as<Schedule, CpuNormForwardSchedule>) return "CpuNormForwardSchedule";
  if constexpr (std::same_as<Schedule, CpuNormBackwardSchedule>) return "CpuNormBackwardSchedule";
  if constexpr (std::same_as<Schedule, GpuSchedule>) return "GpuSchedule";
  if constexpr (std::same_as<Schedule, GpuNormSchedule>) return "GpuNormSchedule";
}

// In C++: "512", "true", "Prefetch::none".
template <class Value>
std::string value_text(Value value) {
  if constexpr (std::is_enum_v<Value>)
    return std::string(names_of<Value>().type) + "::" + name_of_value(value);
  else if constexpr (std::same_as<Value, bool>)
    return value ? "true" : "false";
  else
    return std::to_string(value);
}

// "{.threads = 0, .vector_bits = 512, ...}" with the members whose names `has` accepts.
template <class Schedule, class Has>
std::string initialiser(const Schedule& schedule, const Has& has) {
  std::string text;
  each_field(schedule, [&](const char* name, const auto& field) {
    if (has(name)) text += std::string(text.empty() ? "." : ", .") + name + " = " + value_text(field);
  });
  return "{" + text + "}";
}
template <class Schedule>
std::string initialiser(const Schedule& schedule) {
  return initialiser(schedule, [](const char*) { return true; });
}

}  // namespace outgrad::kernels::jit
