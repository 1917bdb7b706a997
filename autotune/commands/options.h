// Options that several commands have, and how a mode of a command reads its own into its struct. CLI11 takes
// seconds to compile: for the sources of this folder, no other header.
#pragma once

#include <cstdint>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "autotune/space/accuracy.h"
#include "autotune/space/problem.h"
#include "kernels/support/options.h"

namespace outgrad::autotune {

using Words = std::vector<std::string>;  // of a command line, behind the command

// The value of `--option value` or `--option=value` among the words, as it stands there; empty where it has
// none. Nothing: the option is not given. What tells the modes of a command apart is asked for in this way,
// before any is read.
std::optional<std::string> given(const Words& words, std::string_view option);

// One of the ways in which a command is used.
struct Mode {
  const char* command;
  const char* name;  // "--merge", "a replay": in words, what the options of other modes do not go with
  std::span<const std::string_view> of_all_modes{};
};

// Reads the words into what the options are bound to that `declare` adds to the application. Throws SpecError
// ("tune: --seed: why") for a value that is none, an option that is given twice, is unknown or is another
// mode's, and for a word that belongs to no option.
void read_options(const Mode& mode, const Words& words, const std::function<void(CLI::App&)>& declare);

// ---- what `declare` adds

// read(text) takes the value, or throws CLI::ValidationError(name, why).
CLI::Option* add_value(CLI::App& app, const std::string& name,
                       const std::function<void(const std::string&)>& read);
CLI::Option* add_text(CLI::App& app, const std::string& name, std::string& text);
// at least one, up to the next option
CLI::Option* add_list(CLI::App& app, const std::string& name, Words& list);
CLI::Option* add_flag(CLI::App& app, const std::string& name, bool& flag);
CLI::Option* add_choice(CLI::App& app, const std::string& name, std::string& chosen, const Words& allowed);
CLI::Option* add_accuracy(CLI::App& app, Accuracy& accuracy);  // --accuracy default|any

template <class Number, class Member>
CLI::Option* add_number(CLI::App& app, const std::string& name, Member& number, Number least, Number most) {
  return add_value(app, name,
                   [&number, name, range = kernels::in_range(least, most)](const std::string& text) {
                     if (const std::string why = range(text); !why.empty())
                       throw CLI::ValidationError(name, why);
                     number = static_cast<Member>(*kernels::number_in<Number>(text));
                   });
}
inline constexpr std::uint64_t kSeed = 1;  // where --seed says nothing
CLI::Option* add_seed(CLI::App& app, std::uint64_t& seed);

// A matrix's, both at least 1.
struct Shape {
  std::int64_t rows, cols;
  bool operator==(const Shape&) const = default;
};
CLI::Option* add_shapes(CLI::App& app, std::vector<Shape>& shapes);  // --shape 4096x1024,7x3

// --format: of "A,B" in the order of kAllFormats.
CLI::Option* add_formats(CLI::App& app, std::vector<FormatId>& formats);

// What --kernel, --format, --shape and --elements choose.
struct ProblemChoice {
  std::vector<KernelId> kernels{std::begin(kAllKernels), std::end(kAllKernels)};
  std::vector<FormatId> formats{std::begin(kAllFormats), std::end(kAllFormats)};
  std::vector<Shape> shapes{};
  std::int64_t elements = 0;
};
void add_problems(CLI::App& app, ProblemChoice& choice);
// One problem for each kernel, format and shape. Throws SpecError for a shape that no chosen kernel has.
std::vector<Problem> problems_of(const char* command, const ProblemChoice& choice);

// ---- what --device names

// N of "cuda:N"; nothing of another device. Throws SpecError for "cuda:" with no number of a device.
std::optional<int> cuda_device(const char* command, const std::string& device);
// "cpu", or "auto", which is the CPU in this build, pass; a form that belongs to another command or machine
// is refused with the reason: SpecError, or CudaError for cuda:N where the driver library cannot be loaded.
void require_cpu_device(const char* command, const std::string& device);

}  // namespace outgrad::autotune
