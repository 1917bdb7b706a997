// The facts as JSON, and one run of page.py.
#include "validation/report/facts.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "kernels/formats.h"
#include "kernels/support/errors.h"
#include "kernels/support/files.h"
#include "kernels/support/process.h"
#include "validation/report/own_function.h"
#include "validation/sweep/targets.h"

namespace outgrad::validation {

namespace {

/// What the headers say of themselves, by kind.
Json headers_of(const Results& results) {
  Json headers;
  for (const char* kind : {"backward", "tables", "forward", "rounded", "codes"})
    headers[kind] = Json::array();
  const auto bytes = [](const CoefficientTable& table) { return table.values.size() * sizeof(float); };
  const auto add = [&](const char* kind, const HeaderNames& header, const Json& more) {
    headers[kind].push_back(
        {{"file", header.file}, {"origin", results.origin(header.file)}, {"name", header.name}});
    headers[kind].back().update(more);
  };
  for (const BackwardHeader& h : results.backward) {
    add("backward", h,
        {{"format", h.format},
         {"accuracy", h.accuracy},
         {"degree", h.degree},
         {"rows", h.rows},
         {"operations", h.operations},
         {"bytes", bytes(h.table)},
         {"A", h.bound_a},
         {"K", h.bound_k},
         {"B", h.bound_b},
         {"AB", h.bound_ab},
         {"storage", storage_claims(h.storage)}});
  }
  for (const TableHeader& h : results.tables)
    add("tables", h, {{"format", h.format}, {"storage", storage_claims(h.storage)}});
  for (const ForwardHeader& h : results.forward) {
    add("forward", h,
        {{"degree", h.degree},
         {"tail_degree", h.tail_degree},
         {"rows", h.rows},
         {"tail_rows", h.tail_rows},
         {"bytes", bytes(h.table) + bytes(h.tail)},
         {"A", h.bound_a}});
  }
  for (const RoundedForwardHeader& h : results.rounded) {
    add("rounded", h,
        {{"format", h.format},
         {"rows", h.rows},
         {"bytes", bytes(h.table)},
         {"A", h.bound_a},
         {"A_core", h.bound_core}});
  }
  for (const CodeHeader& h : results.codes) add("codes", h, Json::object());
  return headers;
}

/// Whether a line begins with one of the report's files, as a refusal does. An interpreter that cannot find
/// page.py ends with the status of bad input too.
bool is_refusal(const std::string& line, const Json& report) {
  for (const Json& entries : report["facts"]["files"]) {
    for (const Json& entry : entries) {
      if (line.starts_with(entry["file"].get<std::string>() + ": ")) return true;
    }
  }
  return false;
}

/// Runs a script on a folder.
void run_script(const std::string& script, const std::string& folder,
                const std::function<bool(const std::string&)>& is_refusal) {
  const char* const chosen = std::getenv("OUTGRAD_PYTHON");
  // The python3 in the PATH may be the user's own, whereas ./outgrad installs Debian's packages.
  std::vector<std::string> pythons{"python3", "/usr/bin/python3"};
  if (chosen && *chosen) pythons = {chosen};
  constexpr double kLimit_s = 300;
  constexpr size_t kMostBytes = 1 << 16;
  std::string why;
  for (const std::string& python : pythons) {
    kernels::Launch launch{{python, "-B", OUTGRAD_SOURCES "/validation/report/" + script, folder}};
    launch.err = kernels::Launch::kCaptured;
    const kernels::Ending ending = kernels::run(launch, kLimit_s, kMostBytes);
    if (ending.status == kernels::kExitHolds) return;
    if (ending.status == kernels::Ending::kNotStarted) {
      why = python + ": cannot be started";
      continue;
    }
    const std::string said = ending.text.substr(0, ending.text.find_last_not_of('\n') + 1);
    const std::string last = said.substr(said.rfind('\n') + 1);  // of a traceback, what went wrong
    if (ending.status == kernels::kExitBadInput && is_refusal(last)) throw kernels::SpecError(last);
    why = ending.late ? fmt::format("it was not done after {} s", kLimit_s) : last;
    if (ending.status != kernels::kExitEnvironment) break;
  }
  throw kernels::EnvironmentError(
      "the page is rendered by Python with jinja2 and matplotlib (Debian: python3-jinja2, "
      "python3-matplotlib; "
      "OUTGRAD_PYTHON names another Python), which failed: " +
      why);
}

}  // namespace

Json facts(const Results& results) {
  Json files = Json::object(), tuned = Json::array(), targets = Json::array();
  for (const auto& [kind, paths] : results.files) {
    for (const std::string& path : paths)
      files[kind].push_back({{"file", path}, {"origin", results.origin(path)}});
  }
  for (Json problem : results.tuned) {
    problem["origin"] = results.origin(problem["file"]);
    tuned.push_back(std::move(problem));
  }
  for (const Targets& one : kTargets) targets.push_back(one.format);
  Json run;  // null where nobody has left a provenance.json
  if (const Provenance& made = results.provenance; !made.made_by.empty())
    run = {{"date", made.date}, {"finished", made.finished}, {"missing", made.missing}};
  return {{"made_by", results.provenance.made_by},
          {"run", run},
          {"formats", targets},
          {"stored_formats", kernels::StoredFormats::kNames},
          {"commands",
           {{"validate", validate_command("FORMAT")},
            {"stores", kStoreCommand},
            {"products", kProductCommand},
            {"attack", kAttackCommand},
            {"proofs", kProofCommand}}},
          {"headers", headers_of(results)},
          {"files", files},
          {"tuned", tuned},
          {"warnings", results.warnings}};
}

std::map<std::string, std::string> rendered(const std::string& script, const std::string& name,
                                            const Json& data, const std::vector<std::string>& files,
                                            const std::function<bool(const std::string&)>& is_refusal) {
  const kernels::ScratchFolder scratch;
  kernels::write_file(scratch / name, data.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  run_script(script, scratch.path(), is_refusal);
  std::map<std::string, std::string> texts;
  for (const std::string& file : files) texts[file] = kernels::read_file(scratch / file);
  return texts;
}

void write_report(const Json& report, const std::string& folder) {
  const std::filesystem::path to(folder);
  const auto names_file = [&](const std::string& line) { return is_refusal(line, report); };
  for (const auto& [name, text] :
       rendered("page.py", "report.json", report, {"report.json", "index.html", "report.md"}, names_file))
    kernels::write_file((to / name).string(), text);
}

}  // namespace outgrad::validation
