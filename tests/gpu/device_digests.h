// The device's digests of all outputs.
#pragma once

#include "tests/gpu/digests.h"

namespace outgrad::tests::gpu {

// Over every bit pattern of the format, by all cores of the host.
template <class T>
OutputDigests device_digests();

}  // namespace outgrad::tests::gpu
