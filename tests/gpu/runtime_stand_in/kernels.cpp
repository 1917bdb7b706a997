// The stand-in that runs kernels, its calls under the names that cuda_runtime.h here gives them.
#define cudaMemsetAsync stand_in_memset_async
#define cudaGetErrorString stand_in_error_string
#define cudaDeviceGetAttribute stand_in_attribute
#define cudaGetDeviceProperties stand_in_properties
#include "tests/kernels/gpu_stand_in/stand_in.cpp"
