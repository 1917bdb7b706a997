# What autotune/ uses of others, headers both: outgrad_json is nlohmann/json, outgrad_cli is CLI11. They come
# from the folder OUTGRAD_PACK_DIR, which `tests/gpu/gpu_run.sh --pack` makes, or from their packages.
function(outgrad_packed target header package imported debian)
  add_library(${target} INTERFACE)
  if(OUTGRAD_PACK_DIR)
    if(NOT EXISTS "${OUTGRAD_PACK_DIR}/${header}")
      message(FATAL_ERROR "OUTGRAD_PACK_DIR=${OUTGRAD_PACK_DIR} does not hold ${header}")
    endif()
    target_include_directories(${target} SYSTEM INTERFACE "${OUTGRAD_PACK_DIR}")
    return()
  endif()
  find_package(${package} QUIET)
  if(NOT ${package}_FOUND)
    message(FATAL_ERROR
      "${header} is not installed (Debian: ${debian}); give its folder with -DOUTGRAD_PACK_DIR=...")
  endif()
  target_link_libraries(${target} INTERFACE ${imported})
endfunction()

outgrad_packed(outgrad_json nlohmann/json.hpp nlohmann_json nlohmann_json::nlohmann_json nlohmann-json3-dev)
outgrad_packed(outgrad_cli CLI/CLI.hpp CLI11 CLI11::CLI11 libcli11-dev)
