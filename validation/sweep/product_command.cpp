// Results of products on the terminal and in files.
#include "validation/sweep/product_sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "kernels/support/files.h"

namespace outgrad::validation {
namespace {

void print_maximum(const char* name, const PairMaximum& most) {
  if (most.value < 0) return;
  fmt::print("  {:<15} {:<12.6g} at a = {:<14a} b = {:<14a} z / b = {:<15a} got {:<+13.9g} want {:+.9g}\n",
             name, most.value, most.a, most.b, most.s, most.got, most.want);
}

void print_errors(const ProductErrors& errors, const ProductSubject& subject) {
  fmt::print("\n{}: all {} pairs (a, b) of {}\n ", subject.name, errors.pairs(), subject.format.name);
  for (std::size_t k = 0; k < errors.counts.size(); ++k)
    fmt::print(" {} {}{}", kPairKindNames[k], errors.counts[k], k + 1 < errors.counts.size() ? "," : "\n");
  print_maximum("T right", errors.total[1]);
  print_maximum("T left", errors.total[0]);
  print_maximum("z / b, relative", errors.relative);
  print_maximum("db", errors.db);
  for (const SweepGate& gate : gates_of(errors, subject)) fmt::print("{}", gate.text());
  std::fflush(stdout);
}

}  // namespace

bool validate_products(const std::vector<const ProductSubject*>& subjects, const std::string& out,
                       const kernels::ResultForm& form) {
  auto list = nlohmann::ordered_json::array();
  const bool many = subjects.size() > 1;
  bool all_hold = true;
  for (const ProductSubject* subject : subjects) {
    const std::filesystem::path folder = out.empty() ? "out/sweeps" : out;
    const std::string file = many || out.empty() ? (folder / (subject->name + ".json")).string() : out;
    kernels::require_writable(file);
    const ProductErrors errors = product_errors(*subject, every_number(subject->format));
    list.push_back(product_json(errors, *subject));
    kernels::write_file(file, list.back().dump(1) + "\n");
    const std::vector<SweepGate> gates = gates_of(errors, *subject);
    all_hold = all_hold && std::all_of(gates.begin(), gates.end(), [](const auto& g) { return g.holds(); });
    if (form) continue;
    print_errors(errors, *subject);
    fmt::print("written to {}\n", file);
  }
  if (form) kernels::print_result(form, many ? list : list.front(), ".gates");
  return all_hold;
}

}  // namespace outgrad::validation
