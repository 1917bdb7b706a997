// The page as JSON, and one run of page.py.
#include "validation/report/page.h"

#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "kernels/support/errors.h"
#include "kernels/support/files.h"
#include "kernels/support/process.h"

namespace outgrad::validation::page {

using Json = nlohmann::ordered_json;

// Members are written under their names. nlohmann/json finds these functions for elements and members as well.
#define OUTGRAD_TO_JSON(Type, ...) \
  void to_json(Json& nlohmann_json_j, const Type& nlohmann_json_t) { NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(NLOHMANN_JSON_TO, __VA_ARGS__)) }

static void to_json(Json& json, Tone tone) { json = std::array{"", "good", "bad", "muted"}.at(static_cast<size_t>(tone)); }
static OUTGRAD_TO_JSON(Cell, text, tone) static OUTGRAD_TO_JSON(Column, name, note, left) static OUTGRAD_TO_JSON(Table, caption, command, columns, rows) static OUTGRAD_TO_JSON(Axis, label, log, from, to, ticks) static OUTGRAD_TO_JSON(
    Series, label, colour, mark, x, y, low, high,
    notes) static OUTGRAD_TO_JSON(Plot, title, heading, width, height, x, y,
                                  series) static OUTGRAD_TO_JSON(Figure, caption, command,
                                                                 plots) static OUTGRAD_TO_JSON(Paragraph, text,
                                                                                               tone) static OUTGRAD_TO_JSON(Heading,
                                                                                                                            text) static OUTGRAD_TO_JSON(Definitions,
                                                                                                                                                         items) static OUTGRAD_TO_JSON(Tile,
                                                                                                                                                                                       figure,
                                                                                                                                                                                       what,
                                                                                                                                                                                       note,
                                                                                                                                                                                       tone) static OUTGRAD_TO_JSON(Tiles,
                                                                                                                                                                                                                    tiles,
                                                                                                                                                                                                                    commands) static void to_json(Json&
                                                                                                                                                                                                                                                      json,
                                                                                                                                                                                                                                                  const Block&
                                                                                                                                                                                                                                                      block) {
  json = std::visit([](const auto& one) { return Json(one); }, block);
  json["kind"] = std::array{"paragraph", "heading", "definitions", "table", "figure"}.at(block.index());
}
static OUTGRAD_TO_JSON(Section, title, blocks) static OUTGRAD_TO_JSON(Verdict, headline, detail, tone)
    OUTGRAD_TO_JSON(Document, title, lead, verdict, key_figures, summary, remarks, sections)
#undef OUTGRAD_TO_JSON

        std::string quoted(std::string text) {
  for (char& c : text) {
    if (c == '`') c = '\'';
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return text;
}

/// Runs page.py on a folder.
static void render(const std::string& folder) {
  const char* const chosen = std::getenv("OUTGRAD_PYTHON");
  // The python3 in the PATH may be the user's own, whereas ./outgrad installs Debian's packages.
  std::vector<std::string> pythons{"python3", "/usr/bin/python3"};
  if (chosen && *chosen) pythons = {chosen};
  constexpr double kLimit_s = 300;
  constexpr size_t kMostBytes = 1 << 16;
  std::string why;
  for (const std::string& python : pythons) {
    kernels::Launch launch{{python, "-B", OUTGRAD_SOURCES "/validation/report/page.py", folder}};
    launch.err = kernels::Launch::kCaptured;
    const kernels::Ending ending = kernels::run(launch, kLimit_s, kMostBytes);
    if (ending.status == kernels::kExitHolds) return;
    if (ending.status == kernels::Ending::kNotStarted) {
      why = python + ": cannot be started";
      continue;
    }
    const std::string said = ending.text.substr(0, ending.text.find_last_not_of('\n') + 1);
    why = ending.late ? fmt::format("it was not done after {} s", kLimit_s) : said.substr(said.rfind('\n') + 1);  // the last line of a traceback
    if (ending.status != kernels::kExitEnvironment) break;
  }
  throw kernels::EnvironmentError(
      "the page is rendered by Python with jinja2 and matplotlib (Debian: python3-jinja2, python3-matplotlib; OUTGRAD_PYTHON names another Python), which "
      "failed: " +
      why);
}

void write_report(const Json& report, const std::string& folder) {
  const kernels::ScratchFolder scratch;
  const std::filesystem::path to(folder);
  kernels::write_file(scratch / "report.json", report.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  render(scratch.path());
  for (const char* name : {"report.json", "index.html", "report.md"}) kernels::write_file((to / name).string(), kernels::read_file(scratch / name));
}

}  // namespace outgrad::validation::page
