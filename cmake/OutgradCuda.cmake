# Enables CUDA for outgrad-gpu, which compiles every __global__ wrapper. What `run` builds loads CUDA at run
# time instead.
set(OUTGRAD_CUDA_FOUND OFF)
if(OUTGRAD_CUDA STREQUAL "OFF" OR (OUTGRAD_CUDA STREQUAL "AUTO" AND NOT OUTGRAD_TESTS))
  return()
endif()
include(CheckLanguage)
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  # The toolkit's own installer does not put its bin/ into PATH.
  find_program(OUTGRAD_NVCC nvcc HINTS "$ENV{CUDA_PATH}/bin" "$ENV{CUDA_HOME}/bin" PATHS /usr/local/cuda/bin)
  mark_as_advanced(OUTGRAD_NVCC)
  if(OUTGRAD_NVCC)
    set(CMAKE_CUDA_COMPILER "${OUTGRAD_NVCC}")
  endif()
endif()
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80 90)  # A100 and H100; no GPU is needed to compile for them
endif()
check_language(CUDA)
if(CMAKE_CUDA_COMPILER)
  enable_language(CUDA)
  set(OUTGRAD_CUDA_FOUND ON)
elseif(OUTGRAD_CUDA STREQUAL "ON")
  message(FATAL_ERROR
    "OUTGRAD_CUDA=ON, but no working nvcc was found (PATH, CUDACXX, CUDA_PATH, /usr/local/cuda)")
endif()
