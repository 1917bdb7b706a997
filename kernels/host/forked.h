// What a process knows of its threads after a fork.
#pragma once

namespace outgrad::kernels {

// Set in a child that was forked after a call on several threads (kernels/host/parallel.h). It is one of the
// whole process, outside the inline namespace: the child may call another instruction set's kernels than its
// parent did.
inline bool after_fork = false;

}  // namespace outgrad::kernels
