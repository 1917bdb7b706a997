// Options on CLI11; what is ours here are shapes, lists in the order of a catalogue, and devices.
#include "autotune/options.h"

#include <dlfcn.h>

#include <algorithm>

#include "kernels/support/options.h"

namespace outgrad::autotune {
namespace {

using kernels::number_in;

constexpr std::int64_t kMostElements = std::int64_t{1} << 32;  // of a shape

bool contains(std::initializer_list<std::string_view> names, std::string_view name) { return std::find(names.begin(), names.end(), name) != names.end(); }

// What is between commas, empty words too.
std::vector<std::string> parts_of(const std::string& list) {
  std::vector<std::string> words(1);
  for (const char c : list) {
    if (c == ',')
      words.emplace_back();
    else
      words.back() += c;
  }
  return words;
}

void require(const Options& options, std::string_view name, const std::string& value, const CLI::Validator& check) {
  if (const std::string why = check(value); !why.empty()) throw options.bad(name, why);
}

template <class Number>
Number number_of(const Options& options, std::string_view name, Number otherwise, Number least, Number most) {
  if (!options.has(name)) return otherwise;
  const std::string text = options.text(name, "");
  require(options, name, text, kernels::in_range(least, most));
  return *number_in<Number>(text);
}

Shape shape_in(const Options& options, std::string_view name, const std::string& word) {
  const auto sides = kernels::numbers_in<std::int64_t>(word, 'x');
  if (!sides) throw options.bad(name, "'" + word + "' is no shape (ROWSxCOLUMNS, as in 4096x1024; several with commas)");
  const auto [rows, cols] = *sides;
  if (rows < 1 || cols < 1 || rows > kMostElements / cols) throw options.bad(name, "'" + word + "' has not between 1 and 2^32 elements");
  return {rows, cols};
}

}  // namespace

Options::Options(std::string command, const std::vector<std::string>& args, std::initializer_list<std::string_view> valued,
                 std::initializer_list<std::string_view> flags, std::initializer_list<std::string_view> lists)
    : command_(std::move(command)) {
  CLI::App app;
  app.set_help_flag();  // the program's (commands.h)
  app.require_subcommand(1);
  CLI::App* const command_line = app.add_subcommand(command_)->allow_extras();
  const auto add = [&](std::string_view name) {
    const auto keep = [this, name](const std::vector<std::string>& words) {
      if (!values_.emplace(name, words).second) throw bad(name, "given twice");
      return true;
    };
    return command_line->add_option("--" + std::string(name), keep)->trigger_on_parse()->type_name("VALUE");
  };
  for (const std::string_view name : valued) add(name);
  for (const std::string_view name : flags) add(name)->expected(0)->disable_flag_override();
  for (const std::string_view name : lists) add(name)->expected(1, -1)->allow_extra_args();
  std::vector<std::string> words = {command_};
  words.insert(words.end(), args.begin(), args.end());
  kernels::parse(app, words);
  for (const std::string& word : command_line->remaining()) {
    if (word.rfind("--", 0) != 0) throw kernels::SpecError(command_, word, "unexpected argument");
    throw bad(word.substr(2, word.find('=') - 2), "unknown option");
  }
}

std::string Options::text(std::string_view name, std::string_view otherwise) const {
  const auto found = values_.find(name);
  return found == values_.end() ? std::string(otherwise) : found->second.front();
}

std::vector<std::string> Options::words(std::string_view name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? std::vector<std::string>{} : found->second;
}

std::string Options::required(std::string_view name) const {
  if (!has(name)) throw bad(name, "is required");
  return text(name, "");
}

std::string Options::one_of(std::string_view name, const std::vector<std::string>& allowed) const {
  const std::string value = text(name, allowed.front());
  require(*this, name, value, CLI::IsMember(allowed));
  return value;
}

std::vector<std::string> Options::several_of(std::string_view name, const std::vector<std::string>& allowed) const {
  std::vector<std::string> rest(allowed.begin() + 1, allowed.end());
  const std::string list = text(name, allowed.front());
  if (list == allowed.front()) return rest;
  std::vector<std::string> chosen = parts_of(list);
  for (const std::string& word : chosen) {
    require(*this, name, word, CLI::IsMember(rest));
    if (std::count(chosen.begin(), chosen.end(), word) > 1) throw bad(name, "'" + word + "' occurs twice");
  }
  std::erase_if(rest, [&](const std::string& word) { return std::find(chosen.begin(), chosen.end(), word) == chosen.end(); });
  return rest;
}

std::int64_t Options::integer(std::string_view name, std::int64_t otherwise, std::int64_t least, std::int64_t most) const {
  return number_of(*this, name, otherwise, least, most);
}

double Options::number(std::string_view name, double otherwise, double least, double most) const { return number_of(*this, name, otherwise, least, most); }

std::vector<Shape> Options::shapes(std::string_view name) const {
  std::vector<Shape> shapes;
  if (!has(name)) return shapes;
  for (const std::string& word : parts_of(text(name, ""))) shapes.push_back(shape_in(*this, name, word));
  return shapes;
}

void Options::refuse_all_but(const std::string& with, std::initializer_list<std::string_view> names) const {
  for (const auto& [name, words] : values_)
    if (!contains(names, name)) throw bad(name, "does not go with " + with);
}

kernels::SpecError Options::bad(std::string_view name, const std::string& why) const { return {command_, "--" + std::string(name), why}; }

std::optional<int> cuda_device(const Options& options) {
  constexpr std::string_view kPrefix = "cuda:";
  constexpr int kMost = 9999;
  const std::string device = options.text("device", "");
  if (device.rfind(kPrefix, 0) != 0) return std::nullopt;
  const auto index = number_in<int>(device.substr(kPrefix.size()));
  if (!index || *index < 0 || *index > kMost) throw options.bad("device", "'" + device + "' names no device (cuda:0, cuda:1, ...)");
  return index;
}

void require_cpu_device(const Options& options) {
  const std::string device = options.text("device", "cpu");
  if (device == "cpu" || device == "auto") return;
  if (cuda_device(options)) {
    if (::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) == nullptr)
      throw kernels::CudaError("--device " + device + ": libcuda.so.1 cannot be loaded: no NVIDIA driver on this machine");
    throw options.bad("device", "'" + device + "' is for tune and eval");
  }
  if (device.rfind("sm_", 0) == 0) throw options.bad("device", "'" + device + "' is for tune");
  if (device.rfind("replay:", 0) == 0) throw options.bad("device", "a recording is a device of tune alone");
  throw options.bad("device", "unknown device '" + device + "' (cpu, auto, cuda:N, cuda:all, sm_XX, replay:FILE)");
}

}  // namespace outgrad::autotune
