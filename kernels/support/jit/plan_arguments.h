// The arguments of a plan's kernels (kernels/cuda/plan.h), made from the arrays of a call. For launchers that
// know kernels by name and not by type.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "kernels/cuda/plan.h"
#include "kernels/host/call.h"
#include "kernels/kernels.h"

namespace outgrad::kernels::jit {

// Whether a norm's dgamma or dbeta is wanted.
inline bool writes_sums(KernelId kernel, const Arguments& a) {
  const std::span<const Operand> all = operands(kernel);
  for (std::size_t k = 0; k < all.size(); ++k)
    if (all[k].role == Role::kOutput && all[k].extent == Extent::kColumns && a.array[k] != nullptr)
      return true;
  return false;
}

// Arrays lie on the device, and the workspace has the size that plan.h says. Pointers may be to any format;
// only the device's code knows which.
class PlanArguments {
 public:
  // watch: for a norm's forward; guard: for its backward; dropout: for either, where its kernel is an
  // instance with it; kept: what a norm keeps in 8 bits in place of y.
  PlanArguments(KernelId kernel, const Arguments& arguments, const SideWatch& watch = {},
                const SideGuard& guard = {}, const cuda::NormDropout& dropout = {},
                const cuda::NormCodes& kept = {})
      : kernel_(kernel), a_(arguments), n_(arguments.cols),
        slots_(slot_count(arguments.rows, arguments.cols)), watch_(watch), guard_(guard), dropout_(dropout),
        kept_(kept) {
    if (is_norm(kernel) && is_backward(kernel)) prepare_backward();
  }

  // Calls `work` with pointers to the arguments, in the order of the kernel's parameters.
  template <class Work>
  void with(const cuda::LaunchPlan& plan, const cuda::PlannedLaunch& launch, const Work& work) {
    if (!over_rows(kernel_)) return elementwise(work);
    switch (launch.kernel) {
      case DeviceKernel::bias_gelu_forward:
        return call(work, at("x"), at("bias"), a_.elements(), n_, at("y"), at("mask"));
      case DeviceKernel::bias_gelu_backward:
        return call(work, at("dy"), at("y"), at("mask"), cuda::slot_rows(a_.rows, slots_),
                    __builtin_ctzll(static_cast<unsigned long long>(launch.own_slots)), n_, at("dx"),
                    plan.launches > 1 ? at("workspace") : at("dbias"));
      case DeviceKernel::add_slots:
        if (kernel_ == KernelId::kBiasGeluBackward)
          return call(work, at("workspace"), n_, launch.left, launch.apart);
        return call(work, parts_.sums, sums_ * backward_.stride, launch.left, launch.apart);
      case DeviceKernel::norm_forward:
      case DeviceKernel::norm_encode: return call(work, forward());
      case DeviceKernel::norm_prepare:
        return call(work, parts_.columns, parts_.place, at("gamma"), at("beta"), n_, cuda::padded_columns(n_),
                    backward_.side, guard_);
      case DeviceKernel::finish_columns:
        if (kernel_ == KernelId::kBiasGeluBackward)
          return call(work, at("workspace"), static_cast<void*>(nullptr), static_cast<void*>(nullptr), n_, n_,
                      n_, launch.left, launch.apart, at("dbias"), static_cast<void*>(nullptr));
        return call(work, parts_.sums, plan.side == SideChannels::none ? nullptr : parts_.columns.divisor,
                    at("gamma"), n_, backward_.stride, sums_ * backward_.stride, launch.left, launch.apart,
                    at("dgamma"), at("dbeta"));
      default:  // the kernels that work by rows, or by the slots' rows
        backward_.own_slots = launch.own_slots;
        return call(work, backward_);
    }
  }

 private:
  using Any = float;  // stands for the format

  void* at(std::string_view name) const { return a_.at<void>(place_of(kernel_, name)); }
  template <class T>
  T* pointer(std::string_view name) const {
    return static_cast<T*>(at(name));
  }
  // First all arrays, then the number of their elements.
  template <class Work>
  void elementwise(const Work& work) const {
    Arguments own = a_;
    i64 elements = a_.elements();
    std::vector<void*> parameters;
    for (std::size_t k = 0; k < operands(kernel_).size(); ++k) parameters.push_back(&own.array[k]);
    parameters.push_back(&elements);
    work(parameters);
  }
  template <class Work, class... Values>
  void call(const Work& work, Values... values) const {
    work(std::vector<void*>{&values...});
  }

  cuda::NormForwardArrays<Any> forward() const {
    return {pointer<const Any>("x"),
            pointer<const Any>("residual"),
            at("gamma"),
            at("beta"),
            a_.rows,
            n_,
            a_.eps,
            pointer<Any>("z"),
            pointer<Any>("y"),
            pointer<float>("rstd"),
            a_.side,
            watch_,
            dropout_,
            kept_};
  }
  void prepare_backward() {
    parts_ = cuda::norm_workspace_at(reinterpret_cast<u64>(at("workspace")), n_);
    sums_ = cuda::column_sums(has_content(kernel_, Content::kBeta) ? Norm::layer : Norm::rms);
    backward_ = {pointer<const Any>("dy"),
                 pointer<const Any>("y"),
                 pointer<const Any>("dz_next"),
                 at("gamma"),
                 at("beta"),
                 parts_.columns,
                 parts_.place,
                 pointer<const float>("rstd"),
                 a_.rows,
                 n_,
                 {a_.side.channels, a_.side.count, a_.side.x_hat},
                 pointer<Any>(has_content(kernel_, Content::kDzNext) ? "dz" : "dx"),
                 writes_sums(kernel_, a_) ? parts_.sums : nullptr,
                 slots_,
                 cuda::slot_rows(a_.rows, slots_),
                 0,
                 cuda::sums_stride(n_),
                 guard_,
                 dropout_,
                 kept_};
  }

  KernelId kernel_;
  const Arguments& a_;
  i64 n_, slots_;
  SideWatch watch_;
  SideGuard guard_;
  cuda::NormDropout dropout_;
  cuda::NormCodes kept_;
  cuda::NormWorkspace parts_{};
  cuda::NormBackwardArrays<Any> backward_{};
  i64 sums_ = 0;
};

}  // namespace outgrad::kernels::jit
