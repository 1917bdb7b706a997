// What Python calls past PyTorch's dispatcher, in eager mode and where nothing watches.
//
// PyTorch's way from Python to an operator matches arguments with a schema, boxes them and looks for keys.
// For a few rows that is a large part of a call. Here a function of CPython takes the same arguments and
// calls the same code. What it may not do itself it leaves to what stands behind it, the operator: each call
// that somebody watches (a mode, a transform, a tracer, a profiler, autograd), arguments that are not plain
// dense tensors on a CPU or a CUDA device, and each one that fails, so that errors are the operator's. What
// records PyTorch's functions and is no profiler, such as an ExecutionTraceObserver by itself, misses these
// calls: no public function that we know of tells that it is there.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/torch/operators.h"
#include "kernels/torch/python.h"

namespace outgrad::torch_operators {

// A reference, given back at the end.
class Owned {
 public:
  Owned(const Python& python, PyObject* object) : python_(python), object_(object) {}
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() {
    if (object_ != nullptr) python_.Py_DecRef(object_);
  }
  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  const Python& python_;
  PyObject* object_;
};

// What calls are made with, found once.
class Eager {
 public:
  // given: a tuple of outgrad/library.py: torch.Tensor, torch.nn.Parameter, whether a tensor has other signs
  // than its memory; from_tensor and to_tensors, which PyTorch before 2.14 has in place of functions of its
  // stable ABI (torch._C._aoti), or None; then the watchers, each of which takes nothing and returns what
  // counts as false while nothing watches, and behind each what is asked where it does not, or None. Null in
  // a process without CPython.
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
    return std::ranges::any_of(watchers_, [this](const Watcher& watcher) {
      return !says_no(watcher.first) && (watcher.closer_look == python.none || !says_no(watcher.closer_look));
    });
  }

  // Nothing if it is no dense tensor of PyTorch's own type with memory that has its values.
  OptionalTensor plain_tensor(PyObject* object) const {
    const Owned type(python, python.PyObject_Type(object));
    if (type.get() != tensor_type_ && type.get() != parameter_type_) return std::nullopt;
    if (!is_false(Owned(python, python.PyObject_Vectorcall(is_negative_, &object, 1, nullptr))))
      return std::nullopt;
    const AtenTensorHandle handle = handle_of(object);
    if (handle == nullptr) return std::nullopt;
    const Tensor tensor(handle);
    std::int32_t layout = 0;
    if (aoti_torch_get_layout(handle, &layout) != AOTI_TORCH_SUCCESS || layout != aoti_torch_layout_strided())
      return std::nullopt;
    const void* data = nullptr;  // asked for here, for what asks for PyTorch logs a failure with its stack
    if (torch_get_const_data_ptr(handle, &data) != AOTI_TORCH_SUCCESS ||
        (data == nullptr && tensor.numel() > 0))
      return std::nullopt;  // a batch of torch.autograd.grad, or zeros without memory
    return tensor;
  }

  // What a function gives, as a new reference; null if that fails.
  PyObject* to_python(const Tensor& tensor) const {
    const Tensor* const one = &tensor;
    PyObject* object = nullptr;
    return set_objects({&one, 1}, &object) ? object : nullptr;
  }
  template <class... T>
  PyObject* to_python(const std::tuple<T...>& results) const {
    const auto all = std::apply([](const auto&... each) { return std::array{pointer_to(each)...}; }, results);
    return sequence_of(all, python.PyTuple_New, python.PyTuple_SetItem);
  }
  PyObject* to_python(const std::vector<Tensor>& results) const {
    std::vector<const Tensor*> all;
    for (const Tensor& one : results) all.push_back(&one);
    return sequence_of(all, python.PyList_New, python.PyList_SetItem);
  }

  Python python;

 private:
  Eager(const Python& of, PyObject* given) : python(of) {
    PySize at = 0;
    for (PyObject** const to : {&tensor_type_, &parameter_type_, &is_negative_, &from_tensor_, &to_tensors_})
      *to = python.PySequence_GetItem(given, at++);
    for (; at < python.PySequence_Size(given); at += 2)
      watchers_.push_back({python.PySequence_GetItem(given, at), python.PySequence_GetItem(given, at + 1)});
    if (from_tensor_ != python.none) return;
    from_pyobject_ = function_of_pytorch<FromPython>("torch_tensor_from_pyobject");
    to_pyobject_ = function_of_pytorch<ToPython>("torch_tensor_to_pyobject");
  }

  static const Tensor* pointer_to(const Tensor& tensor) { return &tensor; }
  static const Tensor* pointer_to(const OptionalTensor& tensor) { return tensor ? &*tensor : nullptr; }

  // A tuple or list, with None in place of null.
  PyObject* sequence_of(std::span<const Tensor* const> tensors, PyObject* (*make)(PySize),
                        int (*set)(PyObject*, PySize, PyObject*)) const {
    constexpr std::size_t kMost = 8;
    PyObject* objects[kMost];
    require(tensors.size() <= kMost, "an operator gives more than 8 tensors");
    Owned all(python, make(static_cast<PySize>(tensors.size())));
    if (!all || !set_objects(tensors, objects)) return nullptr;
    PySize at = 0;
    for (PyObject* const one : std::span(objects, tensors.size()))
      if (set(all.get(), at++, one) != 0) return nullptr;
    return all.release();
  }

  // New references to all of them, to None for null; or to none.
  bool set_objects(std::span<const Tensor* const> tensors, PyObject** objects) const {
    return to_pyobject_ != nullptr ? set_by_shim(tensors, objects) : set_by_capsules(tensors, objects);
  }
  bool set_by_shim(std::span<const Tensor* const> tensors, PyObject** objects) const {
    for (std::size_t k = 0; k < tensors.size(); ++k) {
      void* object = python.none;
      if (tensors[k] == nullptr) {
        python.Py_IncRef(python.none);
      } else if (to_pyobject_(tensors[k]->get(), nullptr, &object) != AOTI_TORCH_SUCCESS) {
        while (k > 0) python.Py_DecRef(objects[--k]);
        return false;
      }
      objects[k] = static_cast<PyObject*>(object);
    }
    return true;
  }
  // All at once, because each call takes longer than a tensor, and because PyTorch's function for a single
  // one keeps a reference.
  bool set_by_capsules(std::span<const Tensor* const> tensors, PyObject** objects) const {
    const auto is_there = [](const Tensor* one) { return one != nullptr; };
    const Owned handles(python, python.PyList_New(std::ranges::count_if(tensors, is_there)));
    if (!handles) return false;
    PySize at = 0;
    for (const Tensor* const tensor : tensors) {
      if (tensor == nullptr) continue;
      AtenTensorHandle handle = nullptr;
      if (aoti_torch_new_tensor_handle(tensor->get(), &handle) != AOTI_TORCH_SUCCESS) return false;
      PyObject* const capsule = python.PyCapsule_New(handle, nullptr, nullptr);
      if (capsule == nullptr || python.PyList_SetItem(handles.get(), at++, capsule) != 0) return false;
    }
    PyObject* const given = handles.get();
    const Owned found(python, python.PyObject_Vectorcall(to_tensors_, &given, 1, nullptr));
    if (!found) return false;
    at = 0;
    for (const Tensor* const tensor : tensors) {
      if (tensor == nullptr) python.Py_IncRef(python.none);
      *objects++ = tensor == nullptr ? python.none : python.PySequence_GetItem(found.get(), at++);
    }
    return true;
  }

  bool says_no(PyObject* function) const {
    return is_false(Owned(python, python.PyObject_Vectorcall(function, nullptr, 0, nullptr)));
  }
  // Of what a call returned.
  bool is_false(const Owned& found) const {
    return found && (found.get() == python.no || python.PyObject_IsTrue(found.get()) == 0);
  }

  AtenTensorHandle handle_of(PyObject* object) const {
    AtenTensorHandle handle = nullptr;
    if (from_pyobject_ != nullptr)
      return from_pyobject_(object, &handle) == AOTI_TORCH_SUCCESS ? handle : nullptr;
    const Owned capsule(python, python.PyObject_Vectorcall(from_tensor_, &object, 1, nullptr));
    if (!capsule) return nullptr;
    return static_cast<AtenTensorHandle>(
        python.PyCapsule_GetPointer(capsule.get(), python.PyCapsule_GetName(capsule.get())));
  }

  using FromPython = AOTITorchError(void* object, AtenTensorHandle* tensor);
  using ToPython = AOTITorchError(AtenTensorHandle tensor, void* type, void** object);

  static inline const Eager* is_ = nullptr;
  PyObject *tensor_type_, *parameter_type_, *is_negative_, *from_tensor_, *to_tensors_;
  struct Watcher {
    PyObject *first, *closer_look;
  };
  std::vector<Watcher> watchers_;
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
      const Owned one(python, python.PySequence_GetItem(sequence, k));
      fit = static_cast<bool>(one);
      if (!fit) break;
      if (const OptionalTensor found = tensor(one.get())) all.push_back(*found);
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
  std::vector<std::pair<std::string_view, void (*)()>> on_cuda;
  operators<Cuda>([&]<class Function>(const char* schema, const char*, Function) {
    on_cuda.emplace_back(schema, reinterpret_cast<void (*)()>(&Named<Function>::call));
  });
  std::vector<PyMethod*> all;
  operators<Host>([&]<class Function>(const char* schema, const char*, Function) {
    using Way = Past<Function>;
    // of one schema, and so of one type; those of the host alone are the last ones
    if (const std::size_t at = all.size(); at < on_cuda.size() && on_cuda[at].first == schema)
      Way::on_cuda = reinterpret_cast<decltype(Way::on_cuda)>(on_cuda[at].second);
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
