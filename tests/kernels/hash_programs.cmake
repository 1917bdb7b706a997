# hash_main.cpp under flags that change what a compiler may fuse and which instructions it has; contraction_test compares the outputs.
include(CheckCXXCompilerFlag)
set(OUTGRAD_HASH_PROGRAMS "")

function(outgrad_hash_program name)
  string(REPLACE ";" " " flags "${ARGN}")
  set(CMAKE_REQUIRED_QUIET ON)
  check_cxx_compiler_flag("${flags}" OUTGRAD_HASH_FLAGS_${name})
  if(NOT OUTGRAD_HASH_FLAGS_${name})
    return()
  endif()
  add_executable(outgrad-hash-${name} "${PROJECT_SOURCE_DIR}/tests/kernels/hash_main.cpp")
  target_compile_features(outgrad-hash-${name} PRIVATE cxx_std_20)
  target_compile_options(outgrad-hash-${name} PRIVATE ${ARGN})
  target_include_directories(outgrad-hash-${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(outgrad-hash-${name} PRIVATE OpenMP::OpenMP_CXX)
  add_dependencies(outgrad-kernels-tests outgrad-hash-${name})
  set(OUTGRAD_HASH_PROGRAMS ${OUTGRAD_HASH_PROGRAMS} "$<TARGET_FILE:outgrad-hash-${name}>" PARENT_SCOPE)
endfunction()

# The last one has no fused multiply-add instruction: its fmas are library calls.
outgrad_hash_program(unfused -O2 -march=native -ffp-contract=off)
outgrad_hash_program(fused -O3 -march=native -ffp-contract=fast)
outgrad_hash_program(avx2 -O3 -march=native -mno-avx512f -ffp-contract=fast)
outgrad_hash_program(portable -O3 -march=native -mno-avx2 -mno-fma -mno-avx512f -ffp-contract=fast)

list(JOIN OUTGRAD_HASH_PROGRAMS ":" outgrad_hash_paths)
target_compile_definitions(outgrad-kernels-tests PRIVATE "OUTGRAD_HASH_PROGRAMS=\"${outgrad_hash_paths}\"")
