// Parses options; every refusal names the option and the reason.
#include "autotune/options.h"

#include <dlfcn.h>

#include <algorithm>
#include <charconv>

namespace outgrad::autotune {
namespace {

bool contains(std::initializer_list<std::string_view> names, std::string_view name) { return std::find(names.begin(), names.end(), name) != names.end(); }

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

template <class Number>
bool parse(const std::string& text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

Options::Options(std::string command, const std::vector<std::string>& args, std::initializer_list<std::string_view> valued,
                 std::initializer_list<std::string_view> flags, std::initializer_list<std::string_view> lists)
    : command_(std::move(command)) {
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (args[i].rfind("--", 0) != 0) throw kernels::SpecError(command_, args[i], "unexpected argument");
    const std::size_t equals = args[i].find('=');
    const std::string name = args[i].substr(2, equals == std::string::npos ? equals : equals - 2);
    std::string value;
    if (contains(lists, name)) {
      std::vector<std::string> words;
      if (equals != std::string::npos) words.push_back(args[i].substr(equals + 1));
      while (i + 1 < args.size() && args[i + 1].rfind("--", 0) != 0) words.push_back(args[++i]);
      if (words.empty()) throw bad(name, "needs a value");
      if (!lists_.emplace(name, std::move(words)).second) throw bad(name, "given twice");
      continue;
    }
    if (contains(flags, name)) {
      if (equals != std::string::npos) throw bad(name, "takes no value");
    } else if (!contains(valued, name)) {
      throw bad(name, "unknown option");
    } else if (equals != std::string::npos) {
      value = args[i].substr(equals + 1);
    } else if (++i < args.size()) {
      value = args[i];
    } else {
      throw bad(name, "needs a value");
    }
    if (!values_.emplace(name, value).second) throw bad(name, "given twice");
  }
}

std::string Options::text(std::string_view name, std::string_view otherwise) const {
  const auto found = values_.find(name);
  return found == values_.end() ? std::string(otherwise) : found->second;
}

std::vector<std::string> Options::words(std::string_view name) const {
  const auto found = lists_.find(name);
  return found == lists_.end() ? std::vector<std::string>{} : found->second;
}

std::string Options::required(std::string_view name) const {
  if (!has(name)) throw bad(name, "is required");
  return text(name, "");
}

std::string Options::one_of(std::string_view name, const std::vector<std::string>& allowed) const {
  const std::string value = text(name, allowed.front());
  if (std::find(allowed.begin(), allowed.end(), value) == allowed.end()) throw bad(name, "unknown value '" + value + "' (one of: " + joined(allowed) + ")");
  return value;
}

std::vector<std::string> Options::several_of(std::string_view name, const std::vector<std::string>& allowed) const {
  const std::string text = this->text(name, allowed.front());
  if (text == allowed.front()) return {allowed.begin() + 1, allowed.end()};
  std::vector<bool> chosen(allowed.size(), false);
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    const auto at = static_cast<std::size_t>(std::find(allowed.begin(), allowed.end(), word) - allowed.begin());
    if (at == allowed.size() || at == 0) throw bad(name, "unknown value '" + word + "' (of: " + joined(allowed) + ")");
    if (chosen[at]) throw bad(name, "'" + word + "' occurs twice");
    chosen[at] = true;
    begin = end + 1;
  }
  std::vector<std::string> words;
  for (std::size_t i = 1; i < allowed.size(); ++i)
    if (chosen[i]) words.push_back(allowed[i]);
  return words;
}

std::int64_t Options::integer(std::string_view name, std::int64_t otherwise, std::int64_t least, std::int64_t most) const {
  if (!has(name)) return otherwise;
  std::int64_t value = 0;
  if (!parse(text(name, ""), value) || value < least || value > most)
    throw bad(name, "'" + text(name, "") + "' is not an integer from " + std::to_string(least) + " to " + std::to_string(most));
  return value;
}

double Options::number(std::string_view name, double otherwise, double least, double most) const {
  if (!has(name)) return otherwise;
  double value = 0;
  if (!parse(text(name, ""), value) || !(value >= least && value <= most))
    throw bad(name, "'" + text(name, "") + "' is not a number from " + std::to_string(least) + " to " + std::to_string(most));
  return value;
}

std::vector<Shape> Options::shapes(std::string_view name) const {
  std::vector<Shape> shapes;
  if (!has(name)) return shapes;
  constexpr std::int64_t kMostElements = std::int64_t{1} << 32;
  const std::string list = text(name, "");
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    const std::string word = list.substr(begin, end - begin);
    const std::size_t cross = word.find('x');
    Shape shape{0, 0};
    if (cross == std::string::npos || !parse(word.substr(0, cross), shape.rows) || !parse(word.substr(cross + 1), shape.cols))
      throw bad(name, "'" + word + "' is no shape (ROWSxCOLUMNS, as in 4096x1024; several with commas)");
    if (shape.rows < 1 || shape.cols < 1 || shape.rows > kMostElements / shape.cols) throw bad(name, "'" + word + "' has not between 1 and 2^32 elements");
    shapes.push_back(shape);
    begin = end + 1;
  }
  return shapes;
}

void Options::refuse_all_but(const std::string& with, std::initializer_list<std::string_view> names) const {
  for (const auto& [name, value] : values_)
    if (!contains(names, name)) throw bad(name, "does not go with " + with);
  for (const auto& [name, words] : lists_)
    if (!contains(names, name)) throw bad(name, "does not go with " + with);
}

kernels::SpecError Options::bad(std::string_view name, const std::string& why) const { return {command_, "--" + std::string(name), why}; }

std::optional<int> cuda_device(const Options& options) {
  constexpr std::string_view kPrefix = "cuda:";
  constexpr int kMost = 9999;
  const std::string device = options.text("device", "");
  if (device.rfind(kPrefix, 0) != 0) return std::nullopt;
  int index = -1;
  if (!parse(device.substr(kPrefix.size()), index) || index < 0 || index > kMost)
    throw options.bad("device", "'" + device + "' names no device (cuda:0, cuda:1, ...)");
  return index;
}

void require_cpu_device(const Options& options) {
  const std::string device = options.text("device", "cpu");
  if (device == "cpu" || device == "auto") return;
  const bool cuda = cuda_device(options).has_value();
  if (cuda) {
    if (::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) == nullptr)
      throw kernels::CudaError("--device " + device + ": libcuda.so.1 cannot be loaded: no NVIDIA driver on this machine");
  }
  if (cuda) throw options.bad("device", "'" + device + "' is for tune and eval");
  if (device.rfind("sm_", 0) == 0) throw options.bad("device", "'" + device + "' is for tune");
  if (device.rfind("replay:", 0) == 0) throw options.bad("device", "a recording is a device of tune alone");
  throw options.bad("device", "unknown device '" + device + "' (cpu, auto, cuda:N, cuda:all, sm_XX, replay:FILE)");
}

}  // namespace outgrad::autotune
