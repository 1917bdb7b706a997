// The CPU kernels as a search space: the parameters of a variant, its name, its source.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "autotune/space/accuracy.h"
#include "autotune/space/problem.h"
#include "autotune/space/space.h"
#include "kernels/accuracy.h"
#include "kernels/host/call.h"
#include "kernels/params.h"
#include "kernels/support/jit/program.h"

namespace outgrad::autotune {

using kernels::jit::type_name;

// What defines the bits: one thread, scalar code, plain stores.
inline constexpr kernels::CpuSchedule kReferenceSchedule{.threads = 1};

// Where code that the tuner had compiled is.
struct Compiled {
  std::string library;    // path of the shared object
  std::string symbol;     // its VariantFunction
  double compile_ms = 0;  // share of its translation unit's time; 0 when it came from the cache
};

// A certified fit that a problem can use, and the scalar kernel that defines its bits.
struct FitChoice {
  std::string type;        // of the generated header: "GeluF32"
  std::string name;        // "gelu_f32"
  std::string accuracy{};  // its class, "abs:2^-26"; empty for a forward
  kernels::FitBounds bounds{};  // of a backward
  // whether there are rows to pick, so that the table's placement is a choice: not for one row, nor for a
  // direct table
  bool has_rows = false;
  VariantFunction reference = nullptr;
  // the function of kernels/forwards.h, "forwards::Silu", of a forward of another activation than GELU
  std::string forward{};
  // For a header that this program was not built with, its text, and its scalar kernel in place of
  // `reference`.
  std::string header{};
  Compiled compiled_reference{};
};
using Fits = std::vector<std::shared_ptr<const FitChoice>>;

// All fits of a problem, polynomials and direct tables, from kernels/fits.h; the default first. Of a norm and
// of codes none.
const Fits& fits_of(const Problem& problem);
// Those of them that may be chosen.
Fits fits_within(const Problem& problem, Accuracy accuracy);
// Why a fit may not be chosen for the problem, in words; nothing where it may.
std::optional<std::string> why_too_coarse(const Problem& problem, const kernels::FitBounds& bounds,
                                          Accuracy accuracy);

// What a record says of the fit of a problem's variant.
FitRecord fit_record(const Problem& problem, const FitChoice& fit);

// The scalar kernel of a problem without a fit: of a norm, or of codes.
VariantFunction fitless_reference(const Problem& problem);

// Whose kernels a variant, or a tuned header, schedules.
enum class Backend { kCpu, kCuda };

// One certified fit in one schedule, for whatever device: what the tuner needs to know of it.
struct AnyVariant {
  Problem problem;
  std::shared_ptr<const FitChoice> fit;  // null for a norm and for codes

  AnyVariant(const Problem& of, std::shared_ptr<const FitChoice> choice)
      : problem(of), fit(std::move(choice)) {}
  virtual ~AnyVariant() = default;
  virtual std::string name() const = 0;
  virtual nlohmann::json parameters() const = 0;
  // Elements of a unit of its work: the verifier tries lengths around it.
  virtual int block_elements() const = 0;
  // Whether its code, which may be made for the problem's columns, runs over rows of so many.
  virtual bool takes(kernels::i64) const { return true; }
};

// On the CPU.
struct Variant : AnyVariant {
  std::variant<kernels::CpuSchedule, kernels::CpuNormForwardSchedule, kernels::CpuNormBackwardSchedule>
      schedule;

  template <class Schedule>
  Variant(const Problem& of, std::shared_ptr<const FitChoice> choice, const Schedule& how)
      : AnyVariant(of, std::move(choice)), schedule(how) {}

  // "f32.gelu_f32.v512.u4.b16384.nt.permute.t2": format, fit, vector bits (s: scalar), unroll, block, nt or
  // wb stores, table placement, threads (t0: all); what is no parameter of the kernel is left out: of codes
  // "bf16.v512.b65536.nt.t0". Of a norm "bf16.v512.x4.r4.k128.f1024.nt.l2a1.t0": format, vector bits, vectors
  // side by side, rows together, tasks and fold_columns of a backward (of a forward b65536: task_elements),
  // stores, cache level and rows ahead of the prefetch (l0: none), threads.
  std::string name() const override;
  // The name without what only cuts work into tasks and hands them out: variants of one loop_name share the
  // code of their loops, so that they compile fast side by side.
  std::string loop_name() const;
  std::string schedule_text() const;  // in C++: "CpuSchedule{.threads = 0, ...}"
  // The body of its VariantFunction.
  std::string body() const;
  nlohmann::json parameters() const override;
  int block_elements() const override;

  // These are for a kernel that is no norm's.
  kernels::CpuSchedule& gelu() { return std::get<kernels::CpuSchedule>(schedule); }
  const kernels::CpuSchedule& gelu() const { return std::get<kernels::CpuSchedule>(schedule); }
};

// The variant in kernels/generated/tuned_default.h, of a norm its own default: what every gain is measured
// against.
Variant default_variant(const Problem& problem);

// The space over these fits (norms and codes have none) on a CPU with `threads` threads whose build reaches
// `vector_bits`. Parameters are those that the kernel uses of its schedule, by the names in kernels/params.h,
// and `fit`. Of a sized problem over rows, values that would cut it alike are one.
Space cpu_space(const Problem& problem, const Fits& fits, int vector_bits, int threads);
Variant variant_at(const Problem& problem, const Fits& fits, const Space& space, const Point& point);
// The fit that parameters name. Throws SpecError where it is not among these, nlohmann's exceptions where
// they name none.
std::shared_ptr<const FitChoice> fit_among(const Fits& fits, const nlohmann::json& parameters);

// Where a fit's own header stands beside the tuned header that uses it.
std::string header_path(const FitChoice& fit);  // "fits/gelu_bf16_d4_8.h"

}  // namespace outgrad::autotune
