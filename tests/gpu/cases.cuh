// How a case of several launches is compared, in place and on streams; what a case is: BiasCase
// (gelu_checks.cuh) is one.
#pragma once

#include "tests/gpu/checks.h"
#include "tests/gpu/device_side.cuh"

namespace outgrad::tests::gpu {

// Whether y takes the place of x in a case's forwards, and dx that of dy in its backwards.
enum class Place { own, input };

// In place, on the default stream.
template <class T, class Case>
void matrix_equality(Report& report, const Case& work) {
  work.enqueue(Place::input, nullptr);
  u64 hash = 0;
  const std::string wrong = work.wrong(Place::input, hash);
  report.add(work.name(), kernels::Format<T>::kName, static_cast<u64>(work.outputs()), hash, wrong);
}

// The work on a stream that does not wait for the default one, then as a graph launched twice.
template <class T, class Case>
void stream_equality(Report& report, const Case& work) {
  const Stream stream;
  const auto outcome = [&](const char* how) {
    stream.synchronise(how);
    u64 hash = 0;
    const std::string wrong = work.wrong(Place::own, hash);
    report.add(work.name() + ", " + how, kernels::Format<T>::kName, static_cast<u64>(work.outputs()), hash,
               wrong);
  };
  work.spoil();
  work.enqueue(Place::own, stream.get());
  outcome("own stream");

  const Graph graph(stream, [&] { work.enqueue(Place::own, stream.get()); });
  work.spoil();
  for (int launch = 0; launch < 2; ++launch) graph.launch(stream);
  outcome("graph");
}

}  // namespace outgrad::tests::gpu
