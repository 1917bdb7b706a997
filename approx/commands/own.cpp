// `outgrad fit --expression`: a function and a format are enough; what was reached, in words.

#include "approx/commands/commands.h"
#include "approx/model/emit.h"
#include "approx/model/type_name.h"
#include "approx/search/own_fit.h"
#include "kernels/support/digest.h"
#include "kernels/support/bounds.h"
#include "kernels/support/errors.h"
#include "kernels/support/files.h"
#include "kernels/support/numbers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <string_view>
#include <utility>

namespace outgrad::approx {
namespace {

/// "own_x_sigmoid_1_2_x": the words and numbers of a function, the operations that tell functions apart in
/// words; of a long one its beginning and its hash.
std::string words_of(const FunctionOptions& function, size_t longest) {
  constexpr std::pair<char, std::string_view> kWords[] = {
      {'+', "plus"}, {'-', "minus"}, {'/', "over"}, {'^', "to"}};
  std::string name = "own";
  std::string text = function.activation.empty() ? function.expression : function.activation;
  for (const auto& [option, value] : {std::pair("beta", function.beta), std::pair("alpha", function.alpha)})
    if (value) text += fmt::format(" {} {}", option, *value);
  bool fresh = true;  // whether the next letter begins a word
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const auto* const word =
        std::find_if(std::begin(kWords), std::end(kWords), [&](const auto& each) { return each.first == c; });
    if (word != std::end(kWords)) name += "_" + std::string(word->second);
    if (std::isalnum(byte) != 0)
      name += std::string(fresh ? "_" : "") + static_cast<char>(std::tolower(byte));
    fresh = std::isalnum(byte) == 0;
  }
  if (name.size() <= longest) return name;
  constexpr size_t kHash = 8;
  name.resize(longest - kHash - 1);
  if (name.back() == '_') name.pop_back();
  return name + "_" + kernels::sha256(text).substr(0, kHash);
}

/// "2^-9", "2^-9.5", "0.002".
double error_of(const std::string& text) {
  const bool power = text.starts_with("2^");
  const auto number = kernels::number_in<double>(std::string_view(text).substr(power ? 2 : 0));
  const double error = !number ? 0 : power ? std::exp2(*number) : *number;
  constexpr double kLeast = 0x1p-40, kMost = 0.5;
  if (!(error >= kLeast && error <= kMost))
    throw kernels::SpecError("fit", "--error",
                             "'" + text + "' is neither 2^-N nor a number, from 2^-40 to 0.5");
  return error;
}

/// "0.01119 (2^-6.48)", both rounded up; a `sign` of -1: down.
std::string both(double bound, double sign = 1) {
  if (!(bound > 0)) return "0";
  return fmt::format("{:.4g} (2^{:.2f})", sign * kernels::digits_up(sign * bound, 4),
                     sign * kernels::decimals_up(sign * std::log2(bound), 2));
}

std::string input(const FoundInputs& found, const char* bound, bool masked, Format format) {
  const auto place = found.find(bound);
  if (place == found.end()) return "";
  const Found& worst = place->second;
  return fmt::format("y = {:.9g}{}", worst.at, masked ? fmt::format(" and bit {:d}", worst.m) : "") +
         (std::isfinite(worst.at) ? ""
                                  : fmt::format(": what {} stores for f(x) from {:.9g} on", to_string(format),
                                                std::copysign(overflow_of(format), worst.at)));
}

/// One line of what was reached.
std::string line(const char* what, const std::string& text) {
  return fmt::format("  {:<18} {}\n", what, text);
}

/// T, its worst input and O, where they are enumerated.
std::string total(double t, double o, const std::string& worst, bool masked, Format format) {
  if (!(o > 0)) return "";
  const char* const where =
      format == Format::mxfp8 ? ", in blocks whose largest |y| is below 2^12" : "";  // validation's scales
  std::string text =
      line("T, all of f'(x)",
           "at most " + both(t) + ": the error of the gradient, with that of storing y" + where);
  if (!worst.empty()) text += line("worst input", worst);
  return text +
         line("O, out of reach", fmt::format("{}: no function of y{} errs by less; T/O {:.4f}", both(o, -1),
                                             masked ? " and its bit" : "", kernels::decimals_up(t / o, 4)));
}

std::string reached(const BackwardModel& m) {
  const Cost cost = cost_of(m);
  std::string text =
      total(m.kT, m.kO, input(m.found, "T", m.kMasked, m.format), m.kMasked, m.format) +
      line(m.kMasked ? "A + B + K, kernel" : "A + B, kernel",
           "at most " + both(std::nextafter(m.kAB + m.kK, 1.0)) + ": from the exact f' of the stored y");
  if (!(m.kO > 0) && !m.found.empty()) text += line("worst input", input(m.found, "AB", m.kMasked, m.format));
  return text + line("cost", fmt::format("{} operations, {} bytes: {} row{} of degree {}", cost.arithmetic,
                                         cost.table_bytes, m.kRows, m.kRows == 1 ? "" : "s", m.kDegree));
}
std::string reached(const TableModel& t) {
  return total(t.kT, t.kO, input(t.found, "T", t.kMasked, t.format), t.kMasked, t.format) +
         line("cost", fmt::format("{} integer operations, {} bytes: {} entries", t.index_operations(),
                                  2 * t.entries.size(), t.entries.size()));
}
template <class Model>
std::string reached(const Model&) {
  return "";
}

/// A header of f32 does not state T and O, so that check cannot prove them.
bool states_total(const BackwardModel& m) { return m.format != Format::f32 || !(m.kO > 0); }
bool states_total(const auto&) { return true; }

struct Paths {
  std::string fit, spec, header;
};

/// Beside the fit, with its name.
Paths paths_of(const std::string& out, const std::string& name) {
  const std::string fit = out.empty() ? "out/own/" + name + ".json" : out;
  const std::string stem = std::filesystem::path(fit).replace_extension().string();
  return {fit, stem + ".spec.json", stem + ".h"};
}

std::string words(const OwnFit& own, const OwnRequest& request, const Paths& paths) {
  const Fit& fit = own.fit;
  std::string text =
      fmt::format("{}: f(x) = {}, y in {}\n", fit.name, fit.function, request.format) +
      std::visit([](const auto& model) { return reached(model); }, fit.model) +
      line("proven", request.unchecked ? "by the fitter alone (--no-check)"
                     : std::visit([](const auto& model) { return states_total(model); }, fit.model)
                         ? "by the fitter, and again by check"
                         : "A, B and K by the fitter, and again by check; T and O by the fitter");
  if (!own.mirror.empty())
    text += line("mirrored",
                 "-f(-x) is fitted: store -f(x), with the bit of -x if there is one, and the kernel gives "
                 "f'(x)");
  text += line("header", paths.header);
  text += line("its struct", "outgrad::kernels::generated::" + type_name(fit.name));
  text += line("to change it", "edit " + paths.spec + ", then fit that");
  return text + line("next", "./outgrad report --header " + paths.header);
}

}  // namespace

std::string FunctionOptions::name() const {
  constexpr size_t kLongest = 28;  // of the 64 that a name may have, with what a front adds
  return activation.empty() || beta || alpha ? words_of(*this, kLongest) : activation;
}

bool fit_without_specification(const OwnRequest& request) {
  if (request.format.empty()) throw kernels::SpecError("fit", "--format", "is missing");
  constexpr size_t kLongest = 48;  // of the 64 that a name may have
  const std::string name =
      request.name.empty() ? words_of(request.function, kLongest) + "_" + request.format : request.name;
  const double error = request.error.empty() ? 0 : error_of(request.error);
  const OwnFunction function{name, request.function.members(), format_of(request.format), error,
                             request.oracle};
  const Paths paths = paths_of(request.out, name);
  kernels::require_writable(paths.fit, {paths.spec, paths.header});
  std::optional<JobLine> progress(std::in_place, name);
  const OwnFit own = fit_own(function, request.threads);
  const std::string text = to_json(own.fit);
  const Fit written = fit_from_json(text, name);
  const std::string refuted = request.unchecked ? "" : unproven(written);
  progress.reset();
  if (!refuted.empty()) {
    print_unproven(own.fit, refuted);
    return false;
  }
  kernels::write_file(paths.spec, own.spec.text);
  kernels::write_file(paths.fit, text);
  kernels::write_file(paths.header,
                      emit_header(written, std::filesystem::path(paths.fit).filename().string()));
  if (request.form)
    print_fit(request.form, text);
  else
    fmt::print("{}", words(own, request, paths));
  return true;
}

}  // namespace outgrad::approx
