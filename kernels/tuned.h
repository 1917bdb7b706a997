// The fit and schedule that the plain entry points run: a tuned header where the build names one, else the committed default.
#pragma once

#ifdef OUTGRAD_TUNED_HEADER
#include OUTGRAD_TUNED_HEADER
#else
#include "kernels/generated/tuned_default.h"
#endif
