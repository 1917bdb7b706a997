// What the package calls of CPython's C API, found in the process at run time: the library has the same bytes
// for each Python, and loads where there is none. Names and types are those of the stable ABI, but for
// PyObject_Vectorcall, which is exported from 3.9 on and part of it from 3.12 on.
#pragma once

#include <cstddef>
#include <optional>

#ifdef __linux__
#include <dlfcn.h>
#endif

namespace outgrad::torch_operators {

struct PyObject;  // of which nothing is read here
using PySize = std::ptrdiff_t;
using PyFunction = PyObject*(PyObject* self, PyObject* const* arguments, PySize count);

struct PyMethod {  // PyMethodDef
  static constexpr int kFast = 0x0080;  // METH_FASTCALL
  const char* name;
  PyFunction* function;
  int flags;
  const char* doc;
};

struct Python {
  PyObject* (*PyObject_Vectorcall)(PyObject*, PyObject* const*, std::size_t, PyObject*);
  PyObject* (*PyObject_Type)(PyObject*);
  int (*PyObject_IsTrue)(PyObject*);
  PyObject* (*PyCFunction_NewEx)(PyMethod*, PyObject*, PyObject*);
  PyObject* (*PyCapsule_New)(void*, const char*, void (*)(PyObject*));
  void* (*PyCapsule_GetPointer)(PyObject*, const char*);
  const char* (*PyCapsule_GetName)(PyObject*);
  long long (*PyLong_AsLongLong)(PyObject*);
  double (*PyFloat_AsDouble)(PyObject*);
  PyObject* (*PyTuple_New)(PySize);
  int (*PyTuple_SetItem)(PyObject*, PySize, PyObject*);
  PyObject* (*PyList_New)(PySize);
  int (*PyList_SetItem)(PyObject*, PySize, PyObject*);
  PySize (*PySequence_Size)(PyObject*);
  PyObject* (*PySequence_GetItem)(PyObject*, PySize);
  PyObject* (*PyErr_Occurred)();
  void (*PyErr_Clear)();
  PyObject* (*PyErr_NoMemory)();
  void* (*PyEval_SaveThread)();
  void (*PyEval_RestoreThread)(void*);
  void (*Py_IncRef)(PyObject*);
  void (*Py_DecRef)(PyObject*);
  PyObject *none, *yes, *no;

  // Nothing in a process without them all.
  static std::optional<Python> in_this_process() {
    Python of{};
    bool all = true;
    const auto find = [&all]<class To>(To*& to, const char* name) {
#ifdef __linux__
      to = reinterpret_cast<To*>(::dlsym(RTLD_DEFAULT, name));
#endif
      all = all && to != nullptr;
    };
    find(of.PyObject_Vectorcall, "PyObject_Vectorcall");
    find(of.PyObject_Type, "PyObject_Type");
    find(of.PyObject_IsTrue, "PyObject_IsTrue");
    find(of.PyCFunction_NewEx, "PyCFunction_NewEx");
    find(of.PyCapsule_New, "PyCapsule_New");
    find(of.PyCapsule_GetPointer, "PyCapsule_GetPointer");
    find(of.PyCapsule_GetName, "PyCapsule_GetName");
    find(of.PyLong_AsLongLong, "PyLong_AsLongLong");
    find(of.PyFloat_AsDouble, "PyFloat_AsDouble");
    find(of.PyTuple_New, "PyTuple_New");
    find(of.PyTuple_SetItem, "PyTuple_SetItem");
    find(of.PyList_New, "PyList_New");
    find(of.PyList_SetItem, "PyList_SetItem");
    find(of.PySequence_Size, "PySequence_Size");
    find(of.PySequence_GetItem, "PySequence_GetItem");
    find(of.PyErr_Occurred, "PyErr_Occurred");
    find(of.PyErr_Clear, "PyErr_Clear");
    find(of.PyErr_NoMemory, "PyErr_NoMemory");
    find(of.PyEval_SaveThread, "PyEval_SaveThread");
    find(of.PyEval_RestoreThread, "PyEval_RestoreThread");
    find(of.Py_IncRef, "Py_IncRef");
    find(of.Py_DecRef, "Py_DecRef");
    find(of.none, "_Py_NoneStruct");
    find(of.yes, "_Py_TrueStruct");
    find(of.no, "_Py_FalseStruct");
    return all ? std::optional(of) : std::nullopt;
  }
};

}  // namespace outgrad::torch_operators
