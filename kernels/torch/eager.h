// What Python calls past PyTorch's dispatcher, in eager mode and where nothing watches.
//
// PyTorch's way from Python to an operator matches arguments with a schema, boxes them and looks for keys.
// For a few rows that takes as long as the kernel. Here a function of CPython takes the same arguments and
// calls the same code. What it may not do itself it leaves to what stands behind it, the operator: each call
// that somebody watches (a mode, a transform, a tracer, the profiler, autograd), arguments that are not plain
// dense tensors on a CPU or a CUDA device, and each one that fails, so that errors are the operator's.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "kernels/torch/operators.h"
#include "kernels/torch/python.h"

namespace outgrad::torch_operators {

// What calls are made with, found once.
class Eager {
 public:
  // given: a tuple of outgrad/library.py: torch.Tensor, torch.nn.Parameter, whether a tensor has other signs
  // than its memory; from_tensor and to_tensors, which PyTorch before 2.14 has in place of functions of its
  // stable ABI (torch._C._aoti), or None; then the watchers, each of which takes nothing and returns what
  // counts as false while nothing watches. Null in a process without CPython.
  static const Eager* find(PyObject* given) {
    if (is_ == nullptr) {
      const std::optional<Python> python = Python::in_this_process();
      if (!python) return nullptr;
      is_ = new Eager(*python, given);  // for as long as there are threads
    }
    return is_;
  }
  static const Eager& is() { return *is_; }

  bool is_watched() const {
    for (PyObject* const watcher : watchers_)
      if (!is_false(python.PyObject_Vectorcall(watcher, nullptr, 0, nullptr))) return true;
    return false;
  }

  // Nothing if it is no dense tensor of PyTorch's own type with memory that has its values.
  OptionalTensor plain_tensor(PyObject* object) const {
    PyObject* const type = python.PyObject_Type(object);
    if (type == nullptr) return std::nullopt;
    python.Py_DecRef(type);
    if (type != tensor_type_ && type != parameter_type_) return std::nullopt;
    if (!is_false(python.PyObject_Vectorcall(is_negative_, &object, 1, nullptr))) return std::nullopt;
    const AtenTensorHandle handle = handle_of(object);
    if (handle == nullptr) return std::nullopt;
    const Tensor tensor(handle);
    std::int32_t layout = 0;
    if (aoti_torch_get_layout(handle, &layout) != AOTI_TORCH_SUCCESS || layout != aoti_torch_layout_strided())
      return std::nullopt;
    if (tensor.const_data_ptr() == nullptr && tensor.numel() > 0)
      return std::nullopt;  // zeros without memory
    return tensor;
  }

  // What a function gives, as a new reference; null if that fails.
  PyObject* to_python(const OptionalTensor& tensor) const {
    if (tensor) return to_python(*tensor);
    python.Py_IncRef(python.none);
    return python.none;
  }
  template <class... T>
  PyObject* to_python(const std::tuple<T...>& results) const {
    PyObject* const all = python.PyTuple_New(sizeof...(T));
    PySize count = 0;
    const auto set = [&](const auto& one) {
      return filled(all, count++, to_python(one), python.PyTuple_SetItem);
    };
    return std::apply([&](const auto&... each) { return (set(each) && ...) ? all : nullptr; }, results);
  }
  PyObject* to_python(const std::vector<Tensor>& results) const {
    PyObject* const all = python.PyList_New(static_cast<PySize>(results.size()));
    PySize count = 0;
    for (const Tensor& one : results)
      if (!filled(all, count++, to_python(one), python.PyList_SetItem)) return nullptr;
    return all;
  }
  PyObject* to_python(const Tensor& tensor) const {
    if (to_pyobject_ != nullptr) {
      void* object = nullptr;
      return to_pyobject_(tensor.get(), nullptr, &object) == AOTI_TORCH_SUCCESS
                 ? static_cast<PyObject*>(object)
                 : nullptr;
    }
    // a list, because PyTorch's function for a single one keeps a reference
    AtenTensorHandle handle = nullptr;
    PyObject* handles = python.PyList_New(1);
    if (aoti_torch_new_tensor_handle(tensor.get(), &handle) != AOTI_TORCH_SUCCESS ||
        !filled(handles, 0, python.PyCapsule_New(handle, nullptr, nullptr), python.PyList_SetItem))
      return nullptr;
    PyObject* const tensors = python.PyObject_Vectorcall(to_tensors_, &handles, 1, nullptr);
    python.Py_DecRef(handles);
    if (tensors == nullptr) return nullptr;
    PyObject* const object = python.PySequence_GetItem(tensors, 0);
    python.Py_DecRef(tensors);
    return object;
  }

  Python python;

 private:
  Eager(const Python& of, PyObject* given) : python(of) {
    PySize at = 0;
    for (PyObject** const to : {&tensor_type_, &parameter_type_, &is_negative_, &from_tensor_, &to_tensors_})
      *to = python.PySequence_GetItem(given, at++);
    while (at < python.PySequence_Size(given)) watchers_.push_back(python.PySequence_GetItem(given, at++));
    if (from_tensor_ != python.none) return;
    from_pyobject_ = function_of_pytorch<FromPython>("torch_tensor_from_pyobject");
    to_pyobject_ = function_of_pytorch<ToPython>("torch_tensor_to_pyobject");
  }

  // Puts an element into a tuple or list, of which nothing is left if that fails.
  bool filled(PyObject* all, PySize at, PyObject* one, int (*set)(PyObject*, PySize, PyObject*)) const {
    if (all != nullptr && one != nullptr && set(all, at, one) == 0) return true;
    if (all != nullptr) python.Py_DecRef(all);
    return false;
  }

  // Of what a call returned, whose reference it takes.
  bool is_false(PyObject* found) const {
    if (found == nullptr) return false;
    const bool truth = found != python.no && python.PyObject_IsTrue(found) != 0;
    python.Py_DecRef(found);
    return !truth;
  }

  AtenTensorHandle handle_of(PyObject* object) const {
    AtenTensorHandle handle = nullptr;
    if (from_pyobject_ != nullptr)
      return from_pyobject_(object, &handle) == AOTI_TORCH_SUCCESS ? handle : nullptr;
    PyObject* const capsule = python.PyObject_Vectorcall(from_tensor_, &object, 1, nullptr);
    if (capsule == nullptr) return nullptr;
    void* const found = python.PyCapsule_GetPointer(capsule, python.PyCapsule_GetName(capsule));
    python.Py_DecRef(capsule);
    return static_cast<AtenTensorHandle>(found);
  }

  using FromPython = AOTITorchError(void* object, AtenTensorHandle* tensor);
  using ToPython = AOTITorchError(AtenTensorHandle tensor, void* type, void** object);

  static inline const Eager* is_ = nullptr;
  PyObject *tensor_type_, *parameter_type_, *is_negative_, *from_tensor_, *to_tensors_;
  std::vector<PyObject*> watchers_;
  FromPython* from_pyobject_ = nullptr;
  ToPython* to_pyobject_ = nullptr;
};

// Without Python's global lock, as long as it is there.
class OthersRun {
 public:
  explicit OthersRun(const Python& python) : python_(python), thread_(python.PyEval_SaveThread()) {}
  OthersRun(const OthersRun&) = delete;
  OthersRun& operator=(const OthersRun&) = delete;
  ~OthersRun() { python_.PyEval_RestoreThread(thread_); }

 private:
  const Python& python_;
  void* thread_;
};

// A function's arguments. Those at the end that may be left out are then None or 0.
class Arguments {
 public:
  Arguments(const Eager& eager, PyObject* const* first, PySize count)
      : eager_(eager), at_(first), end_(first + count) {}

  template <class T>
  using Held = std::conditional_t<std::is_same_v<T, Tensor>, OptionalTensor, T>;

  // The next one; `fit` is false from the first on that is none.
  template <class T>
  Held<T> next() {
    const Python& python = eager_.python;
    if (!fit || at_ == end_) return {};
    PyObject* const object = *at_++;
    if constexpr (std::is_same_v<T, Tensor>) {
      return tensor(object);
    } else if constexpr (std::is_same_v<T, OptionalTensor>) {
      return object == python.none ? std::nullopt : tensor(object);
    } else if constexpr (std::is_same_v<T, std::vector<Tensor>>) {
      return tensors(object);
    } else if constexpr (std::is_same_v<T, bool>) {
      fit = object == python.yes || object == python.no;
      return object == python.yes;
    } else {
      T value = 0;
      if constexpr (std::is_same_v<T, i64>) {
        value = python.PyLong_AsLongLong(object);
      } else {
        static_assert(std::is_same_v<T, double>);
        value = python.PyFloat_AsDouble(object);
      }
      fit = value != -1 || python.PyErr_Occurred() == nullptr;
      return value;
    }
  }

  bool fit = true;

 private:
  OptionalTensor tensor(PyObject* object) {
    OptionalTensor found = eager_.plain_tensor(object);
    fit = found.has_value();
    return found;
  }
  std::vector<Tensor> tensors(PyObject* sequence) {
    const Python& python = eager_.python;
    const PySize count = python.PySequence_Size(sequence);
    fit = count >= 0;
    std::vector<Tensor> all;
    for (PySize k = 0; k < count && fit; ++k) {
      PyObject* const one = python.PySequence_GetItem(sequence, k);
      fit = one != nullptr;
      if (!fit) break;
      if (const OptionalTensor found = tensor(one)) all.push_back(*found);
      python.Py_DecRef(one);
    }
    return all;
  }

  const Eager& eager_;
  PyObject *const *at_, *const *end_;
};

// What a function says that may leave a call to what stands behind it.
template <class T>
using Maybe = std::optional<T>;

// Calls functions of one signature with arguments of Python.
template <class Function>
struct Computed;
template <class Result, class... P>
struct Computed<Result(P...)> {
  using Pointer = Result (*)(P...);
  static constexpr PySize kMost = sizeof...(P);

  // The result of the function that function_for(the first tensor's kind of device) gives, as a new
  // reference, or null with an error of CPython; nothing if what stands behind it is to be called.
  template <class Choice>
  static Maybe<PyObject*> of(PyObject* const* given, PySize count, const Choice& function_for) {
    const Eager& eager = Eager::is();
    try {
      Arguments arguments(eager, given, count);
      const std::tuple<Arguments::Held<std::remove_cvref_t<P>>...> taken{
          arguments.template next<std::remove_cvref_t<P>>()...};
      if (!arguments.fit) return std::nullopt;
      const Pointer function = function_for(place_of(*std::get<0>(taken)).type);
      if (function == nullptr) return std::nullopt;
      const auto compute = [&] {
        const OthersRun meanwhile(eager.python);
        return std::apply(
            [function](const auto&... each) { return function(as<std::remove_cvref_t<P>>(each)...); }, taken);
      };
      return given_as(eager, compute());
    } catch (const std::exception&) {  // which that meets, too
      return std::nullopt;
    }
  }

 private:
  template <class T>
  static const T& as(const Arguments::Held<T>& held) {
    if constexpr (std::is_same_v<T, Tensor>) {
      return *held;
    } else {
      return held;
    }
  }

  template <class T>
  static Maybe<PyObject*> given_as(const Eager& eager, const Maybe<T>& result) {
    return result ? given_as(eager, *result) : std::nullopt;
  }
  template <class T>
  static Maybe<PyObject*> given_as(const Eager& eager, const T& result) {
    PyObject* const object = eager.to_python(result);
    if (object == nullptr && eager.python.PyErr_Occurred() == nullptr) eager.python.PyErr_NoMemory();
    return object;
  }
};

// The same for a function of CPython whose `self` stands behind it.
template <class Function, class Choice>
PyObject* computed_past(PyObject* self, PyObject* const* given, PySize count, PySize needed,
                        const Choice& function_for) {
  const Eager& eager = Eager::is();
  if (needed <= count && count <= Computed<Function>::kMost && !eager.is_watched())
    if (const Maybe<PyObject*> found = Computed<Function>::of(given, count, function_for)) return *found;
  eager.python.PyErr_Clear();
  return eager.python.PyObject_Vectorcall(self, given, static_cast<std::size_t>(count), nullptr);
}

// An operator as a function of CPython, whose `self` is the operator in PyTorch.
template <class OnHost, class Pointer = decltype(+OnHost{})>
struct Past;
template <class OnHost, class Result, class... P>
struct Past<OnHost, Result (*)(P...)> {
  static PyObject* call(PyObject* self, PyObject* const* given, PySize count) {
    return computed_past<Result(P...)>(self, given, count, needed, function_for);
  }

  static inline Result (*on_cuda)(P...) = nullptr;
  static inline PySize needed = sizeof...(P);  // arguments without a default
  static inline PyMethod method{"operator", &call, PyMethod::kFast, nullptr};

 private:
  static auto function_for(std::int32_t device_type) -> Result (*)(P...) {
    if (device_type == aoti_torch_device_type_cpu()) return &Named<OnHost>::call;
    return device_type == aoti_torch_device_type_cuda() ? on_cuda : nullptr;
  }
};

// How to call each operator past the dispatcher, in their order.
inline std::vector<PyMethod*> ways_past() {
  std::vector<void (*)()> on_cuda;
  operators<Cuda>([&]<class Function>(const char*, const char*, Function) {
    on_cuda.push_back(reinterpret_cast<void (*)()>(&Named<Function>::call));
  });
  std::vector<PyMethod*> all;
  operators<Host>([&]<class Function>(const char* schema, const char*, Function) {
    using Way = Past<Function>;
    // the same operator, and so of the same type; those of the host alone are the last ones
    if (all.size() < on_cuda.size())
      Way::on_cuda = reinterpret_cast<decltype(Way::on_cuda)>(on_cuda[all.size()]);
    Way::method.doc = schema;
    // each default is None or 0
    Way::needed -= std::ranges::count(std::string_view(schema), '=');
    all.push_back(&Way::method);
  });
  return all;
}

// A function as one of CPython, whose `self` computes the same in Python. kNeeded: how many arguments it
// takes at least.
template <auto kFunction, PySize kNeeded>
PyObject* past_python(PyObject* self, PyObject* const* given, PySize count) {
  const auto same = [](std::int32_t) { return kFunction; };
  return computed_past<std::remove_pointer_t<decltype(kFunction)>>(self, given, count, kNeeded, same);
}

}  // namespace outgrad::torch_operators
