// Options of one command, by name. CLI11 reads them in options.cpp alone, as it takes seconds to compile: what an option must be is said where it is read.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/support/errors.h"

namespace outgrad::autotune {

// A matrix's, both at least 1.
struct Shape {
  std::int64_t rows, cols;
};

class Options {
 public:
  // Of `--name value`, `--name=value`, `--flag`, and of `lists` `--name value value...` up to the next option. Throws SpecError for a name that is not
  // listed, a missing value, a name given twice, a stray argument.
  Options(std::string command, const std::vector<std::string>& args, std::initializer_list<std::string_view> valued,
          std::initializer_list<std::string_view> flags, std::initializer_list<std::string_view> lists = {});

  bool has(std::string_view name) const { return values_.contains(name); }
  std::string text(std::string_view name, std::string_view otherwise) const;
  std::vector<std::string> words(std::string_view name) const;  // of a list; empty when it is absent

  // The following throw SpecError for an absent or unacceptable value.
  std::string required(std::string_view name) const;
  std::string one_of(std::string_view name, const std::vector<std::string>& allowed) const;  // absent: the first
  // Of "A,B", in the order of `allowed`, whose first, "all", stands for the others; absent: all of them. Also throws for a name given twice.
  std::vector<std::string> several_of(std::string_view name, const std::vector<std::string>& allowed) const;
  std::int64_t integer(std::string_view name, std::int64_t otherwise, std::int64_t least, std::int64_t most) const;
  double number(std::string_view name, double otherwise, double least, double most) const;
  std::vector<Shape> shapes(std::string_view name) const;  // "4096x1024,7x3"; absent: none

  // Throws SpecError for an option that was given and is not among these: `with` does not take it.
  void refuse_all_but(const std::string& with, std::initializer_list<std::string_view> names) const;

  // What is wrong with one option, as `<command>: --<name>: <why>`.
  kernels::SpecError bad(std::string_view name, const std::string& why) const;

 private:
  std::string command_;
  std::map<std::string, std::vector<std::string>, std::less<>> values_;  // a word each but of lists
};

// N of `--device cuda:N`; nothing of another device. Throws SpecError for "cuda:" with no number of a device.
std::optional<int> cuda_device(const Options& options);
// Reads `--device`: "cpu", or "auto", which is the CPU in this build, pass; a form that belongs to another build or machine is
// refused with the reason: SpecError, or EnvironmentError for cuda:N where the driver library cannot be loaded.
void require_cpu_device(const Options& options);

}  // namespace outgrad::autotune
