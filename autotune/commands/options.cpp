// Options on CLI11; what is ours here are modes, shapes, lists in the order of a catalogue, and devices.
#include "autotune/commands/options.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>

#include "kernels/support/lists.h"

namespace outgrad::autotune {
namespace {

constexpr std::int64_t kMostElements = std::int64_t{1} << 32;

// The option that a word of a command line is, "--seed" of "--seed=1"; empty of a word that is none.
std::string_view option_in(std::string_view word) {
  return word.starts_with("--") ? word.substr(0, word.find('=')) : std::string_view();
}

void require(const std::string& name, const std::string& value, const CLI::Validator& check) {
  if (const std::string why = check(value); !why.empty()) throw CLI::ValidationError(name, why);
}

// The members that "A,B" names, in the order of `members`; "all" stands for every one.
template <class Member>
std::vector<Member> several_of(const std::string& name, const std::string& list,
                               const std::vector<Member>& members) {
  if (list == "all") return members;
  Words names;
  for (const Member member : members) names.push_back(name_of(member));
  const Words chosen = kernels::parts_of(list);
  for (const std::string& word : chosen) {
    require(name, word, CLI::IsMember(names));
    if (std::ranges::count(chosen, word) > 1) throw CLI::ValidationError(name, "'" + word + "' occurs twice");
  }
  std::vector<Member> several;
  for (const Member member : members)
    if (std::ranges::find(chosen, name_of(member)) != chosen.end()) several.push_back(member);
  return several;
}

Shape shape_in(const std::string& word) {
  const auto sides = kernels::numbers_in<std::int64_t>(word, 'x');
  if (!sides)
    throw CLI::ValidationError(
        "--shape", "'" + word + "' is no shape (ROWSxCOLUMNS, as in 4096x1024; several with commas)");
  const auto [rows, cols] = *sides;
  if (rows < 1 || cols < 1 || rows > kMostElements / cols)
    throw CLI::ValidationError("--shape", "'" + word + "' has not between 1 and 2^32 elements");
  return {rows, cols};
}

// What an option refuses before any value is read: it is given twice, is unknown, or is another mode's.
void check_names(const Mode& mode, const Words& words, const CLI::App& app) {
  std::vector<std::string_view> before;
  for (const std::string& word : words) {
    const std::string_view name = option_in(word);
    if (name.empty()) continue;
    const auto refuse = [&](const std::string& why) {
      throw kernels::SpecError(mode.command, std::string(name), why);
    };
    if (app.get_option_no_throw(std::string(name)) == nullptr)
      refuse(std::ranges::find(mode.of_all_modes, name) == mode.of_all_modes.end()
                 ? "unknown option" + kernels::nearest_option(app, std::string(name))
                 : std::string("does not go with ") + mode.name);
    if (std::ranges::find(before, name) != before.end()) refuse("given twice");
    before.push_back(name);
  }
}

}  // namespace

std::optional<std::string> given(const Words& words, std::string_view option) {
  const auto found =
      std::ranges::find_if(words, [&](const std::string& word) { return option_in(word) == option; });
  if (found == words.end()) return std::nullopt;
  if (found->size() > option.size()) return found->substr(option.size() + 1);
  const bool has_value = found + 1 != words.end() && option_in(found[1]).empty();
  return has_value ? found[1] : "";
}

void read_options(const Mode& mode, const Words& words, const std::function<void(CLI::App&)>& declare) {
  CLI::App app;
  app.set_help_flag();  // the program's (commands.h)
  app.require_subcommand(1);
  CLI::App* const command = app.add_subcommand(mode.command)->allow_extras();
  declare(*command);
  check_names(mode, words, *command);
  Words line = {mode.command};
  line.insert(line.end(), words.begin(), words.end());
  kernels::parse(app, line);
  for (const std::string& word : command->remaining())
    throw kernels::SpecError(mode.command, word, "unexpected argument");
}

CLI::Option* add_value(CLI::App& app, const std::string& name,
                       const std::function<void(const std::string&)>& read) {
  return app.add_option_function<std::string>(name, read)->type_name("VALUE");
}

CLI::Option* add_text(CLI::App& app, const std::string& name, std::string& text) {
  return app.add_option(name, text)->type_name("VALUE");
}

CLI::Option* add_list(CLI::App& app, const std::string& name, Words& list) {
  return app.add_option(name, list)->type_name("VALUE")->expected(1, -1);
}

CLI::Option* add_flag(CLI::App& app, const std::string& name, bool& flag) {
  return app.add_flag(name, flag)->disable_flag_override();
}

CLI::Option* add_choice(CLI::App& app, const std::string& name, std::string& chosen, const Words& allowed) {
  return add_value(app, name, [&chosen, name, allowed](const std::string& text) {
    require(name, text, CLI::IsMember(allowed));
    chosen = text;
  });
}

CLI::Option* add_accuracy(CLI::App& app, Accuracy& accuracy) {
  return add_value(app, "--accuracy", [&accuracy](const std::string& text) {
    require("--accuracy", text, CLI::IsMember(Words{"default", "any"}));
    accuracy = text == "any" ? Accuracy::kAny : Accuracy::kAsDefault;
  });
}

CLI::Option* add_seed(CLI::App& app, std::uint64_t& seed) {
  return add_number<std::int64_t>(app, "--seed", seed, 0, INT64_MAX);
}

CLI::Option* add_shapes(CLI::App& app, std::vector<Shape>& shapes) {
  return add_value(app, "--shape", [&shapes](const std::string& text) {
    for (const std::string& word : kernels::parts_of(text)) {
      const Shape shape = shape_in(word);
      if (std::ranges::find(shapes, shape) != shapes.end())
        throw CLI::ValidationError("--shape", "'" + word + "' occurs twice");
      shapes.push_back(shape);
    }
  });
}

CLI::Option* add_formats(CLI::App& app, std::vector<FormatId>& formats) {
  return add_value(app, "--format", [&formats](const std::string& text) {
    formats =
        several_of("--format", text, std::vector<FormatId>(std::begin(kAllFormats), std::end(kAllFormats)));
  });
}

void add_problems(CLI::App& app, ProblemChoice& choice) {
  add_value(app, "--kernel", [&choice](const std::string& text) {
    choice.kernels =
        several_of("--kernel", text, std::vector<KernelId>(kAllKernels.begin(), kAllKernels.end()));
  });
  add_formats(app, choice.formats);
  add_shapes(app, choice.shapes);
  add_number<std::int64_t>(app, "--elements", choice.elements, 0, kMostElements);
}

std::vector<Problem> problems_of(const char* command, const ProblemChoice& choice) {
  std::vector<Problem> problems;
  std::string names;
  bool with_rows = false;
  for (const KernelId kernel : choice.kernels) {
    names += (names.empty() ? "" : ",") + std::string(name_of(kernel));
    for (const FormatId format : choice.formats) {
      const Problem problem{kernel, format};
      if (!problem.over_rows()) {
        problems.push_back(choice.elements > 0 ? problem.sized(1, choice.elements) : problem);
        continue;
      }
      with_rows = true;
      // Without a shape, --elements bounds the default one.
      if (choice.shapes.empty())
        problems.push_back(choice.elements > 0 ? sized_within(problem, choice.elements) : problem);
      for (const Shape& shape : choice.shapes) problems.push_back(problem.sized(shape.rows, shape.cols));
    }
  }
  if (!choice.shapes.empty() && !with_rows)
    throw kernels::SpecError(command, "--shape",
                             "--kernel " + names + " has no rows: --elements N is its size");
  return problems;
}

std::optional<int> cuda_device(const char* command, const std::string& device) {
  constexpr std::string_view kPrefix = "cuda:";
  constexpr int kMost = 9999;
  if (!device.starts_with(kPrefix)) return std::nullopt;
  const auto index = kernels::number_in<int>(device.substr(kPrefix.size()));
  if (!index || *index < 0 || *index > kMost)
    throw kernels::SpecError(command, "--device", "'" + device + "' names no device (cuda:0, cuda:1, ...)");
  return index;
}

void require_cpu_device(const char* command, const std::string& device) {
  if (device == "cpu" || device == "auto") return;
  const auto refuse = [&](const std::string& why) { throw kernels::SpecError(command, "--device", why); };
  if (cuda_device(command, device)) {
    if (::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) == nullptr)
      throw kernels::CudaError("--device " + device +
                               ": libcuda.so.1 cannot be loaded: no NVIDIA driver on this machine");
    refuse("'" + device + "' is for tune and eval");
  }
  if (device.starts_with("sm_")) refuse("'" + device + "' is for tune");
  if (device.starts_with("replay:")) refuse("a recording is a device of tune alone");
  refuse("unknown device '" + device + "' (cpu, auto, cuda:N, cuda:all, sm_XX, replay:FILE)");
}

}  // namespace outgrad::autotune
