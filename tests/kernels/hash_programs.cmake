# Programs that print hashes of results, built for several machines and with several sets of flags, whose
# outputs must agree.
#
# They take minutes to compile, so they wait for the tests labelled `exhaustive`, for which
# kernels.hash_programs builds them. Every run of the suite compares the library's own variants
# (CInterface.EveryInstructionSetGivesTheSameBits), and each night the library as subproject_test builds it:
# not optimised, for a processor that it does not know.
add_custom_target(outgrad-hash-programs)
add_test(NAME kernels.hash_programs
  COMMAND "${CMAKE_COMMAND}" --build "${PROJECT_BINARY_DIR}" --target outgrad-hash-programs)
set_tests_properties(kernels.hash_programs PROPERTIES LABELS exhaustive TIMEOUT 3600
  FIXTURES_SETUP exhaustive-kernels)

# hash_main.cpp under flags that change what a compiler may fuse and which instructions it has;
# contraction_test compares the outputs.
include(CheckCXXCompilerFlag)
set(OUTGRAD_HASH_PROGRAMS "")

function(outgrad_hash_program name)
  string(REPLACE ";" " " flags "${ARGN}")
  set(CMAKE_REQUIRED_QUIET ON)
  check_cxx_compiler_flag("${flags}" OUTGRAD_HASH_FLAGS_${name})
  if(NOT OUTGRAD_HASH_FLAGS_${name})
    return()
  endif()
  add_executable(outgrad-hash-${name} EXCLUDE_FROM_ALL "${PROJECT_SOURCE_DIR}/tests/kernels/hash_main.cpp")
  target_compile_features(outgrad-hash-${name} PRIVATE cxx_std_20)
  target_compile_options(outgrad-hash-${name} PRIVATE ${ARGN})
  target_include_directories(outgrad-hash-${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(outgrad-hash-${name} PRIVATE OpenMP::OpenMP_CXX)
  add_dependencies(outgrad-hash-programs outgrad-hash-${name})
  set(OUTGRAD_HASH_PROGRAMS ${OUTGRAD_HASH_PROGRAMS} "$<TARGET_FILE:outgrad-hash-${name}>" PARENT_SCOPE)
endfunction()

# The last one has no fused multiply-add instruction: its fmas are library calls.
outgrad_hash_program(unfused -O2 -march=native -ffp-contract=off)
outgrad_hash_program(fused -O3 -march=native -ffp-contract=fast)
outgrad_hash_program(avx2 -O3 -march=native -mno-avx512f -ffp-contract=fast)
outgrad_hash_program(portable -O3 -march=native -mno-avx2 -mno-fma -mno-avx512f -ffp-contract=fast)

list(JOIN OUTGRAD_HASH_PROGRAMS ":" outgrad_hash_paths)
target_compile_definitions(outgrad-kernels-tests PRIVATE "OUTGRAD_HASH_PROGRAMS=\"${outgrad_hash_paths}\"")

# The C library again for other machines: all its kernels as the one variant of a build that knows no x86,
# with flags of its own, behind c_hash_main.c. hash_test holds their output against the library's.
#   contracted  what this machine has, products and sums fused wherever the compiler likes
#   portable    neither AVX-512 nor AVX2 nor an instruction for fma
#   plain       not optimised
#   clang       another compiler, if it is there
#   aarch64     another architecture, if its compiler and an emulator are there
set(OUTGRAD_C_HASH_MACHINES "")

function(outgrad_c_hash_machine name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "CXX;CC;EMULATOR" "FLAGS")
  set(program "${CMAKE_CURRENT_BINARY_DIR}/outgrad-c-hash-${name}")
  set(common -I${PROJECT_SOURCE_DIR} -I${PROJECT_SOURCE_DIR}/kernels/c)
  set(sources kernels/c/outgrad.cpp "${outgrad_facts}" ${outgrad_formats})
  set(objects "${program}-main.o")
  get_target_property(kernel_headers outgrad_kernels HEADER_SET)
  add_custom_command(OUTPUT "${program}-main.o"
    COMMAND ${arg_CC} -std=c99 -O1 ${common} -c "${PROJECT_SOURCE_DIR}/tests/kernels/c_hash_main.c"
    -o "${program}-main.o"
    DEPENDS "${PROJECT_SOURCE_DIR}/tests/kernels/c_hash_main.c" "${PROJECT_SOURCE_DIR}/kernels/c/outgrad.h"
    VERBATIM)
  foreach(source ${sources})
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY "${PROJECT_SOURCE_DIR}")
    cmake_path(GET source STEM stem)
    add_custom_command(OUTPUT "${program}-${stem}.o"
      COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${arg_CXX} -std=c++20 -fopenmp ${arg_FLAGS} ${common}
      -DOUTGRAD_C_VARIANT=Baseline
        -c "${source}" -o "${program}-${stem}.o"
      DEPENDS "${source}" "${PROJECT_SOURCE_DIR}/kernels/c/table.h"
      "${PROJECT_SOURCE_DIR}/kernels/c/variant.h" ${kernel_headers} VERBATIM)
    list(APPEND objects "${program}-${stem}.o")
  endforeach()
  set(static "")
  if(arg_EMULATOR)
    set(static -static)  # the emulator needs no libraries of the other architecture then
  endif()
  add_custom_command(OUTPUT "${program}" COMMAND ${arg_CXX} -fopenmp ${static} ${objects} -o "${program}"
    DEPENDS ${objects} VERBATIM)
  add_custom_target(outgrad-machine-${name} DEPENDS "${program}")
  add_dependencies(outgrad-hash-programs outgrad-machine-${name})
  set(command ${arg_EMULATOR} "${program}")
  list(TRANSFORM command REPLACE "(.+)" "'\\1'")
  list(JOIN command " " command)
  set(OUTGRAD_C_HASH_MACHINES ${OUTGRAD_C_HASH_MACHINES} "${name}=${command}" PARENT_SCOPE)
endfunction()

set(outgrad_host CXX ${CMAKE_CXX_COMPILER} CC ${CMAKE_C_COMPILER})
if(OUTGRAD_LIBRARY AND OUTGRAD_X86)
  outgrad_c_hash_machine(contracted ${outgrad_host} FLAGS -O3 -march=native -ffp-contract=fast)
  outgrad_c_hash_machine(portable ${outgrad_host}
    FLAGS -O3 -march=native -mno-avx2 -mno-fma -mno-avx512f -ffp-contract=fast)
  outgrad_c_hash_machine(plain ${outgrad_host} FLAGS -O0 -mavx2 -mfma -mf16c)
  find_program(OUTGRAD_CLANG_CXX clang++)
  find_program(OUTGRAD_CLANG_CC clang)
  find_library(OUTGRAD_CLANG_OPENMP NAMES omp PATH_SUFFIXES llvm-14/lib llvm-15/lib llvm-16/lib llvm-17/lib
    llvm-18/lib llvm-19/lib)
  if(OUTGRAD_CLANG_CXX
    AND OUTGRAD_CLANG_CC AND OUTGRAD_CLANG_OPENMP AND NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    outgrad_c_hash_machine(clang CXX ${OUTGRAD_CLANG_CXX} CC ${OUTGRAD_CLANG_CC}
      FLAGS -O2 -march=native -ffp-contract=fast -Wno-pass-failed)
  endif()
  find_program(OUTGRAD_AARCH64_CXX aarch64-linux-gnu-g++)
  find_program(OUTGRAD_AARCH64_CC aarch64-linux-gnu-gcc)
  find_program(OUTGRAD_AARCH64_EMULATOR NAMES qemu-aarch64-static qemu-aarch64)
  if(OUTGRAD_AARCH64_CXX AND OUTGRAD_AARCH64_CC AND OUTGRAD_AARCH64_EMULATOR)
    # Products and sums fused wherever the compiler likes is what it does unasked.
    outgrad_c_hash_machine(aarch64 CXX ${OUTGRAD_AARCH64_CXX} CC ${OUTGRAD_AARCH64_CC}
      EMULATOR ${OUTGRAD_AARCH64_EMULATOR} FLAGS -O2)
  endif()
endif()
list(JOIN OUTGRAD_C_HASH_MACHINES ":" outgrad_c_hash_machines)
target_compile_definitions(outgrad-kernels-tests
  PRIVATE "OUTGRAD_C_HASH_MACHINES=\"${outgrad_c_hash_machines}\"")
