// What the tuner found, as a header that the library runs by (kernels/ladder.h): a table for each kernel and
// format, one entry for each device and size. The text is a function of the choices alone, whatever their
// order.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "autotune/evidence/identity.h"
#include "autotune/measure/timing.h"
#include "autotune/space/sources.h"
#include "autotune/space/variant.h"
#include "kernels/ladder.h"

namespace outgrad::autotune {

// One entry of one table.
struct TunedChoice {
  Problem problem;  // cols = 0: for every size
  DeviceKey device{};  // no texts: for every device
  std::string variant;
  // as AnyVariant has them: the members of the schedule, and the fit's type where the kernel has one
  nlohmann::json parameters;
  // of a fit that kernels/fits.h does not list: its path from the tuned header's folder
  std::string fit_header{};
  kernels::Evidence evidence = kernels::Evidence::measured;
  Interval speedup{};
  std::string fit{}, claims{};  // of a backward the fit's name, and claims_text()
  // The kernel's default, with what it leaves open: on GPUs that is then chosen by the size that a call has,
  // and not as it was for the problem's. The header calls it "default".
  bool standard = false;
};

TunedChoice tuned_choice(const AnyVariant& variant, const DeviceKey& device, kernels::Evidence evidence,
                         const Interval& speedup);

// What the evidence in the records chooses (merge.h) for each device and size that these sources were
// measured on. `folder`: of the header to be; a winner whose fit has a header that is not there is left out,
// and so is, with a warning, one whose parameters are no schedule's. `earlier_too`: also for those that other
// sources were measured on, and not these; the entry says so.
std::vector<TunedChoice> winners_in(const std::vector<Record>& records, const SourceHashes& sources,
                                    const std::string& folder, Accuracy accuracy, bool earlier_too = false);

// The header's text. `origin` is a comment line on where it comes from. Kernels and formats that no choice is
// for keep the default's table; so does every device that no entry is for, and so do sizes of which a GPU's
// choice says nothing: a norm's other lengths, and elementwise kernels' small arrays. A table of fits says
// where any accuracy was asked for: without that, one that takes a fit along which is less accurate than the
// default compiles nowhere (kernels/accuracy.h). Throws SpecError for parameters that are no schedule's.
std::string tuned_header(std::vector<TunedChoice> choices, Backend backend, const std::string& origin,
                         Accuracy accuracy);

// "LayernormBackward<BF16>": the table of a problem.
std::string table_name(const Problem& problem);

}  // namespace outgrad::autotune
