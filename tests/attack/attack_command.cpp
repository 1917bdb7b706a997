// Arguments of `outgrad attack`, its units of work, each of which is done only once, and its table.
#include "tests/attack/commands.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

#include "kernels/support/digest.h"
#include "kernels/support/errors.h"
#include "kernels/support/files.h"
#include "kernels/support/options.h"
#include "kernels/support/process.h"
#include "kernels/support/shard.h"
#include "tests/attack/gate.h"
#include "validation/certificate/header_reader.h"

namespace outgrad::validation {

using kernels::SpecError;

namespace {

struct Arguments {
  std::string size = "small", only, out, shard, fitter;
  std::vector<std::string> headers, merge;
  std::optional<size_t> mutations, passes, specifications, stores;
  std::uint64_t seed = 1;
  kernels::ResultForm form;
  bool fresh = false;
};

// Mutants of a header, kinds of damage of each coefficient and comment, specifications, and those of stores.
struct Size {
  size_t mutations, passes, specifications, stores;
};
// One header of each kind and format, chosen for a truth that is quickly found.
constexpr std::array kSmallHeaders{"elu_bf16",   "gelu_bf16_parity", "gelu_code", "gelu_e4m3_oracle",
                                   "gelu_f16",   "gelu_fp8",         "gelu_f32",  "gelu_forward_bf16",
                                   "gelu_mxfp8", "tanh_f16"};
// Full: over 20,000 mutants of the committed headers, and 2,400 specifications. Tables with a thousand rows,
// or with entries by the thousand, are thinned.
constexpr Size kFull{900, 1, 2000, 400}, kSmall{14, 1, 2, 2};

// A digest of everything on which a unit's result depends, this program and its checker included, with as
// many digits as are needed to distinguish units.
std::string key_of(const std::string& text) {
  static const std::string program = kernels::sha256(kernels::read_file("/proc/self/exe"));
  constexpr size_t kDigits = 16;
  return kernels::sha256(program + text).substr(0, kDigits);
}

std::vector<std::string> committed_headers(const std::string& sources, bool all) {
  std::vector<std::string> files;
  if (!all) {
    for (const char* name : kSmallHeaders) files.push_back(sources + "/kernels/generated/" + name + ".h");
    return files;
  }
  for (const auto& entry : std::filesystem::directory_iterator(sources + "/kernels/generated")) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".h") && !name.starts_with("tuned_")) files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

void print(const nlohmann::json& document) {
  const auto& mutations = document.at("mutations");
  const auto& specifications = document.at("specifications");
  const auto row = [](const std::string& name, const nlohmann::json& tally) {
    fmt::print("{:<46} {:>7} {:>7} {:>8} {:>8} {:>8}\n", name, tally.at("tried").get<std::int64_t>(),
               tally.at("killed").get<std::int64_t>(), tally.at("harmless").get<std::int64_t>(),
               tally.at("survived").get<std::int64_t>(), tally.at("internal").get<std::int64_t>());
  };
  if (mutations.at("tried") > 0) {
    fmt::print("{:<46} {:>7} {:>7} {:>8} {:>8} {:>8}\n", "headers", "tried", "killed", "harmless", "survived",
               "internal");
    for (const auto& [header, tally] : mutations.at("by_header").items()) row(header, tally);
    fmt::print("by damage\n");
    for (const auto& [kind, tally] : mutations.at("by_kind").items()) row("  " + kind, tally);
    row("all", mutations);
    for (const auto& [header, why] : mutations.at("false_headers").items())
      fmt::print("FALSE AS IT IS {}: {}\n", header, why.get<std::string>());
    for (const auto& failure : mutations.at("failures")) {
      fmt::print("{}: {}, {}: {}\n", failure.at("header").get<std::string>(),
                 failure.at("place").get<std::string>(), failure.at("kind").get<std::string>(),
                 failure.at("why").get<std::string>());
    }
  }
  if (specifications.at("tried") > 0) {
    fmt::print(
        "specifications: {} tried, {} fitted and true, {} refused, {} undecided, {} false ({} of them "
        "accepted by check), {} contested, {} hung, {} out of "
        "memory, {} internal errors; longest fit {:.1f} s\n",
        specifications.at("tried").get<std::int64_t>(), specifications.at("fitted").get<std::int64_t>(),
        specifications.at("refused").get<std::int64_t>(), specifications.at("undecided").get<std::int64_t>(),
        specifications.at("false").get<std::int64_t>(), specifications.at("survived").get<std::int64_t>(),
        specifications.at("contested").get<std::int64_t>(), specifications.at("hung").get<std::int64_t>(),
        specifications.at("memory").get<std::int64_t>(), specifications.at("internal").get<std::int64_t>(),
        specifications.at("longest_cpu_s").get<double>());
    for (const auto& [reason, times] : specifications.at("reasons").items())
      fmt::print("  {:>5} {}\n", times.get<std::int64_t>(), reason);
    for (const auto& failure : specifications.at("failures")) {
      fmt::print("{}: {}\n  {}", failure.at("outcome").get<std::string>(),
                 failure.at("why").get<std::string>(), failure.at("specification").get<std::string>());
    }
  }
}

void run(const Arguments& arguments, int& status) {
  gate::Units units;
  if (!arguments.merge.empty()) {
    for (const std::string& file : arguments.merge) {
      for (auto& [name, unit] : gate::read_units(file, arguments.seed)) {
        nlohmann::json& known = units[name];
        if (!known.is_null() && !unit.is_null() && known != unit)
          throw SpecError(file, name, "is in another file too, with other results");
        if (known.is_null()) known = unit;
      }
    }
    for (const auto& [name, unit] : units) {
      if (unit.is_null())
        throw SpecError(
            "attack", "--merge",
            "'" + name + "' is done in none of the files: a shard is missing, or was interrupted");
    }
  } else {
    if (arguments.size != "small" && arguments.size != "full")
      throw SpecError("attack", "--size", "'" + arguments.size + "' is not small or full");
    const Size size = arguments.size == "full" ? kFull : kSmall;
    gate::Options options;
    options.toolchain = gate::default_toolchain();
    options.seed = arguments.seed, options.only = arguments.only;
    options.most = arguments.mutations.value_or(size.mutations),
    options.passes = arguments.passes.value_or(size.passes);
    options.specifications = arguments.specifications.value_or(size.specifications);
    options.stores = arguments.stores.value_or(options.specifications > 0 ? size.stores : 0);
    options.fitter =
        arguments.fitter.empty() ? kernels::beside_this_program("outgrad-fit") : arguments.fitter;
    const kernels::Shard shard =
        arguments.shard.empty() ? kernels::Shard{} : kernels::read_shard(arguments.shard, "attack");
    if (options.specifications + options.stores > 0 && !std::filesystem::exists(options.fitter))
      throw kernels::EnvironmentError(options.fitter + ": the fitter is not there");
    const std::vector<std::string> files =
        arguments.headers.empty() ? committed_headers(options.toolchain.sources, arguments.size == "full")
                                  : arguments.headers;
    // what is taken from other headers comes from the same ones, whichever are damaged
    std::vector<std::string> texts, donors;
    for (const std::string& file : committed_headers(options.toolchain.sources, true))
      donors.push_back(kernels::read_file(file));
    for (const std::string& file : files) {
      texts.push_back(kernels::read_file(file));
      if (!arguments.headers.empty()) parse_header(texts.back(), file);  // only headers can be damaged
    }
    if (options.most > 0 && std::ranges::all_of(texts, [&](const std::string& text) {
          return gate::sites_for(text, options.only).empty();
        }))
      throw SpecError("attack", "--only",
                      "no place or kind of damage is called '" + options.only + "' in these headers");
    if (!arguments.out.empty()) kernels::require_writable(arguments.out);
    // Results of another run are kept, except for units that now depend on something else.
    if (!arguments.out.empty() && !arguments.fresh && std::filesystem::exists(arguments.out))
      units = gate::read_units(arguments.out, arguments.seed);
    // Units of all shards are named before the first is done, so that --merge can tell which are missing.
    std::vector<std::function<void()>> ours;
    const auto plan = [&](const std::string& name, size_t number, const std::string& key,
                          const std::function<nlohmann::json()>& work) {
      nlohmann::json& unit = units[name];
      if (number % static_cast<size_t>(shard.count) != static_cast<size_t>(shard.index - 1)) return;
      if (!unit.is_null() && unit.at("key") == key) return;
      ours.emplace_back([=, &arguments, &units, &unit] {
        const auto begin = std::chrono::steady_clock::now();
        unit = work();
        unit["key"] = key;
        fmt::print(stderr, "{}: {:.0f} s\n", name,
                   std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
        if (!arguments.out.empty())
          kernels::write_file(arguments.out, gate::document(units, arguments.seed).dump(1) + "\n");
      });
    };
    for (size_t i = 0; options.most > 0 && i < files.size(); ++i) {
      const std::string name = std::filesystem::path(files[i]).stem().string();
      plan("header " + name, i,
           key_of(fmt::format("{} {} {} {} {}{}", options.seed, options.passes, options.most, options.only,
                              texts[i], fmt::join(donors, ""))),
           [&, i, name] { return gate::to_json(gate::attack_header(name, texts[i], donors, options)); });
    }
    const std::string fitter = options.specifications + options.stores > 0
                                   ? kernels::sha256(kernels::read_file(options.fitter))
                                   : "";
    const auto judge_all = [&](const char* what, size_t count, auto&& block_of) {
      for (size_t block = 0; block * gate::kBlock < count; ++block) {
        const std::vector<gate::Specification> specs = block_of(block, options);
        std::string text = fitter;
        for (const gate::Specification& spec : specs) text += spec.json;
        plan(fmt::format("{} {}", what, block), block, key_of(text),
             [&, specs] { return gate::to_json(gate::attack_specifications(specs, options)); });
      }
    };
    judge_all("specifications", options.specifications, gate::specifications_of);
    judge_all("stores", options.stores, gate::stores_of);
    for (const auto& work : ours) work();
  }
  const nlohmann::json document = gate::document(units, arguments.seed);
  if (!arguments.out.empty()) kernels::write_file(arguments.out, document.dump(1) + "\n");
  if (arguments.form) {
    kernels::print_result(arguments.form, document, "");
  } else {
    print(document);
  }
  if (!gate::holds(document)) status = kernels::kExitViolated;
}

}  // namespace

void add_attack(CLI::App& app, int& status) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("attack",
                                         "Damaged headers and random specifications against check, beside a "
                                         "brute force that shares nothing with it");
  command->add_option("--size", arguments->size, "small (minutes) or full (hours)")->capture_default_str();
  command->add_option("--headers", arguments->headers,
                      "Generated headers to damage (default: all committed ones; small: one of each kind)");
  command->add_option("--mutations", arguments->mutations, "Mutants of each header, at most; 0: no headers");
  command->add_option("--passes", arguments->passes,
                      "Kinds of damage that each coefficient and comment gets");
  command->add_option("--only", arguments->only,
                      "Damage at places of this name or kind alone: kO, strings, comments, ...");
  command->add_option("--specifications", arguments->specifications,
                      "Random specifications of fits for y and a bit");
  command->add_option(
      "--stores", arguments->stores,
      "Random specifications of parity formats, MXFP8 and codes; none by default with --specifications 0");
  command->add_option("--seed", arguments->seed, "The same seed, the same damage")->capture_default_str();
  command->add_option(
      "--shard", arguments->shard,
      "Only part i of n, written as i/n, for --merge: every n-th header and block of specifications");
  command->add_option("--merge", arguments->merge, "Results of shards to put together instead of working");
  command->add_option("--fitter", arguments->fitter, "outgrad-fit, if not the one beside this program");
  command->add_option("--out", arguments->out,
                      "Where the results go; units that are there already are kept, and not done again");
  command->add_flag("--fresh", arguments->fresh, "Do everything again");
  for (const char* other : {"--size", "--headers", "--mutations", "--passes", "--only", "--specifications",
                            "--stores", "--shard", "--fitter", "--fresh"})
    command->get_option("--merge")->excludes(other);
  kernels::add_result_form(*command, arguments->form, "the results");
  command->callback([arguments, &status] { run(*arguments, status); });
}

}  // namespace outgrad::validation
