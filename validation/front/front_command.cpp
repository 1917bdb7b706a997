// Options, files and output of the front.
#include "validation/commands.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "kernels/host/errors.h"
#include "kernels/support/errors.h"
#include "kernels/support/files.h"
#include "kernels/support/options.h"
#include "kernels/support/progress.h"
#include "kernels/support/suggestion.h"
#include "validation/front/front.h"
#include "validation/front/gated_pairs.h"
#include "validation/front/header_points.h"
#include "validation/softmax/code.h"
#include "validation/softmax/rows.h"
#include "validation/softmax/stores.h"

namespace outgrad::validation {
namespace {

struct Arguments {
  std::string activation = "gelu", header, histogram, speed, out;
  std::vector<std::string> foreign;
  bool markdown = false, softmax = false;
  kernels::ResultForm form;
  int groups = SoftmaxFrontOptions{}.groups;
};

const SweptActivation& activation_named(const std::string& name) {
  if (const SweptActivation* f = swept_activation(name)) return *f;
  std::vector<std::string> known;
  for (const SweptActivation* each : swept_activations()) known.emplace_back(each->name);
  throw kernels::SpecError("front", "--activation",
                           fmt::format("'{}' is not one of {}{}", name, fmt::join(known, ", "),
                                       kernels::did_you_mean(name, known)));
}

// Whether no error was found beyond its proven bound.
bool holds(const FrontRow& row) {
  bool all = true;
  for (const StoreUnder& under : row.under) {
    if (std::isnan(row.store.proven) || under.greatest <= row.store.proven + kSweepMargin) continue;
    fmt::print(stderr, "outgrad: front: {}: {:.9g} found at x = {:.9g}, {} states {:.9g}\n", row.store.name,
               under.greatest, under.at, row.store.proof, row.store.proven);
    all = false;
  }
  return all;
}

// The stores of a published system: of the same activation, or, beside a header, whatever is kept of x
// itself.
void add_foreign(const Arguments& arguments, const SweptActivation* f, std::vector<Store>& stores) {
  for (const std::string& file : arguments.foreign) {
    const ForeignFunction function = parse_foreign(kernels::read_file(file), file);
    if (f != nullptr && function.activation != f)
      throw kernels::SpecError(file, "activation", fmt::format("is not {}", f->name));
    if (f == nullptr && !function.quantiser)
      throw kernels::SpecError(file, "kind",
                               "is not a quantiser of x, which serves the function of any header");
    stores.push_back(foreign_store(function));
  }
}

void add_speeds(const Arguments& arguments, const SweptActivation& f, std::vector<Store>& stores) {
  if (arguments.speed.empty()) return;
  const std::map<std::string, StoreSpeed> speeds =
      parse_speeds(kernels::read_file(arguments.speed), arguments.speed, f);
  for (Store& store : stores)
    if (const auto known = speeds.find(store.name); known != speeds.end()) store.speed = known->second;
}

bool in_markdown(const Arguments& arguments) {
  return arguments.markdown || !kernels::is_terminal(STDOUT_FILENO);
}

// On a terminal a table that fits, elsewhere Markdown, from which pages are made.
std::string shown(const Arguments& arguments, const std::string& name, const std::vector<FrontRow>& rows,
                  std::size_t rank_by) {
  return in_markdown(arguments) ? front_text(name, rows)
                                : front_table(name, rows, rank_by, kernels::columns_of(STDOUT_FILENO));
}

// The pairs' table is wider than a terminal.
std::string shown(const Arguments& arguments, const std::vector<PairRow>& pairs, const std::string& file) {
  if (pairs.empty() || in_markdown(arguments)) return pairs_text(pairs);
  return fmt::format("gated pairs: {} stores, in {}; --markdown prints them\n", pairs.size(), file);
}

// The domain and its stores, ours or the header's first.
std::pair<FrontDomain, std::vector<Store>> subject_of(const Arguments& arguments) {
  if (!arguments.header.empty()) {
    const Header header = read_header(arguments.header);
    std::vector<Store> stores{header_store(header)};
    add_foreign(arguments, nullptr, stores);
    return {FrontDomain(header), std::move(stores)};
  }
  const SweptActivation& f = activation_named(arguments.activation);
  std::vector<Store> stores = own_stores(f);
  add_foreign(arguments, &f, stores);
  add_speeds(arguments, f, stores);
  return {FrontDomain(f), std::move(stores)};
}

/// The files that the command reads, none of which it may write.
std::vector<std::string> inputs_of(const Arguments& arguments) {
  std::vector<std::string> files = arguments.foreign;
  files.insert(files.end(), {arguments.header, arguments.histogram, arguments.speed});
  return files;
}

bool front(const Arguments& arguments) {
  std::vector<Distribution> distributions = usual_distributions();
  constexpr std::size_t kRankBy = 1;  // sigma = 1
  if (!arguments.histogram.empty())
    distributions.push_back(
        Distribution::parse(kernels::read_file(arguments.histogram), arguments.histogram));
  auto [domain, stores] = subject_of(arguments);
  const std::string file =
      arguments.out.empty() ? fmt::format("out/front/{}.json", domain.name) : arguments.out;
  kernels::require_writable(file, inputs_of(arguments));
  const std::vector<FrontRow> rows = front_of(domain, std::move(stores), distributions, kRankBy);
  std::vector<PairRow> pairs;
  if (arguments.header.empty())
    pairs = pair_rows(activation_named(arguments.activation), distributions, kRankBy);
  nlohmann::ordered_json result = front_json(domain.name, rows);
  if (!pairs.empty()) result["gated_pairs"] = pairs_json(pairs);
  kernels::write_file(file, result.dump(1) + "\n");
  if (arguments.form)
    kernels::print_result(arguments.form, result, "stores");
  else
    fmt::print("{}", shown(arguments, domain.name, rows, kRankBy) + shown(arguments, pairs, file));
  bool all = true;
  for (const FrontRow& row : rows) all = holds(row) && all;
  for (const PairRow& row : pairs) all = holds(row.slope) && all;
  return all;
}

// Of softmax's output: the proofs of the codes and of exp, the attack on the bounds, and the stores side by
// side. Whether all bounds hold.
bool front_of_softmax(const Arguments& arguments) {
  constexpr std::uint64_t kEvaluations = 10'000'000;
  SoftmaxFrontOptions options;
  options.groups = arguments.groups;
  for (const std::string& file : arguments.foreign) {
    const ForeignFunction function = parse_foreign(kernels::read_file(file), file);
    if (!function.quantiser)
      throw kernels::SpecError(file, "kind",
                               "is not a quantiser, which could be applied to softmax's output");
    options.quantisers.push_back({function.name, *function.quantiser});
  }
  const std::string to = arguments.out.empty() ? "out/softmax/front.json" : arguments.out;
  kernels::require_writable(to, arguments.foreign);
  const SoftmaxCodeProof proof = prove_softmax_code();
  const SoftmaxExpProof exp = prove_softmax_exp();
  const SoftmaxAttack attack = attack_softmax(kEvaluations, options.seed);
  const std::vector<SoftmaxFrontRow> rows = softmax_front(options);
  nlohmann::ordered_json result = softmax_front_json(rows);
  result["code"] = to_json(proof);
  result["exp"] = to_json(exp);
  result["attack"] = to_json(attack);
  kernels::write_file(to, result.dump(1) + "\n");
  if (arguments.form)
    kernels::print_result(arguments.form, result, "rows");
  else
    fmt::print("{}", to_text(proof) + to_text(exp) + to_text(attack) + "\n" + softmax_front_text(rows));
  const bool all =
      holds(proof) && holds(exp) && attack.violations == 0 &&
      std::all_of(rows.begin(), rows.end(), [](const SoftmaxFrontRow& row) { return row.holds(); });
  if (!all) fmt::print(stderr, "outgrad: front: softmax: a bound of kernels/softmax.h is violated\n");
  return all;
}

}  // namespace

void add_front(CLI::App& app, int& status) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand(
      "front", "Bits kept for an activation's backward pass against the error of its gradient");
  command->add_option("--activation", arguments->activation, "one that is swept (default: gelu)");
  command->add_option("--foreign", arguments->foreign,
                      "published systems of this activation, files as validate --foreign reads them");
  command->add_option("--activations", arguments->histogram,
                      "histogram of a model's activations, a fourth distribution of x");
  command->add_option("--speed", arguments->speed,
                      "what bench --stores --json wrote, for the speed of our stores");
  command
      ->add_option("--header", arguments->header,
                   "a header of your own in place of an activation; --foreign are quantisers then")
      ->excludes("--activation")
      ->excludes("--speed");
  command->add_option("--out", arguments->out,
                      "result (default: out/front/ACTIVATION.json, or out/softmax/front.json)");
  kernels::add_result_form(*command, arguments->form, "the result");
  command
      ->add_flag("--markdown", arguments->markdown,
                 "print the whole table as Markdown on a terminal, too, as into a file or a pipe")
      ->excludes("--json")
      ->excludes("--csv");
  CLI::Option* const softmax =
      command
          ->add_flag("--softmax", arguments->softmax,
                     "of softmax's output instead; --foreign are quantisers, which are applied to it")
          ->excludes("--activation")
          ->excludes("--header")
          ->excludes("--speed")
          ->excludes("--activations")
          ->excludes("--markdown");
  command
      ->add_option("--groups", arguments->groups,
                   "with --softmax: groups of 64 rows of each kind (default: 40)")
      ->check(CLI::Range(1, 10'000))
      ->needs(softmax);
  command->callback([arguments, &status] {
    if (!(arguments->softmax ? front_of_softmax(*arguments) : front(*arguments)))
      status = kernels::kExitViolated;
  });
}

}  // namespace outgrad::validation
