// The CPU as an executor: what the host compiler made, called in this process.
#pragma once

#include <memory>

#include "autotune/measure/executor.h"

namespace outgrad::autotune {

std::unique_ptr<Executor> open_cpu();

}  // namespace outgrad::autotune
