// Schedule parameters of the host loops and of the CUDA kernels: how the work is cut and stored, never what is computed.
#pragma once

namespace outgrad::kernels {

enum class TablePlacement {
  permute,  // coefficients held in registers or read as whole vectors, picked by permutes
  memory,   // coefficients read by gathers
};

// A structural type, used as a template argument: each schedule is its own compiled loop. Every schedule gives the same bits.
struct CpuSchedule {
  int threads = 0;                // 0 = all
  int vector_bits = 0;            // 0 = scalar, 256, 512
  int unroll = 1;                 // vectors interleaved in one loop body, to cover the latency of the polynomial's chain
  int block_elements = 1 << 16;   // elements per task: a positive multiple of 1024
  bool streaming_stores = false;  // write past the cache where the output is aligned and large
  TablePlacement table = TablePlacement::permute;
};

// Where a CUDA kernel reads a fit's coefficients, or a direct table's entries.
enum class TableHome {
  automatic,  // the choice of kernels/cuda/tables.cuh for the fit
  caches,     // global memory, through L1; rows that are known at compile time, as a single one's, become immediate operands
  columns,    // shared memory, word by word: up to 32 rows no two lanes of a warp collide; one 4-byte load a word
  rows,       // shared memory, row by row in 16-byte loads; lanes that read different rows may collide
  spread,     // as rows, with 8 copies, one for each 16 bytes of the banks: 16-byte loads that never collide; 128 bytes a row and load
  entries,    // shared memory, a direct table's entries as they are
};

// Which hint global loads and stores carry.
enum class CacheHint {
  none,
  streaming,  // .cs: read or written once, first to be evicted
};

// Each schedule is its own compiled kernel. Every schedule gives the same bits.
struct GpuSchedule {
  int threads = 256;        // per block: a multiple of 32, at most 1024
  int octets = 0;           // of 8 elements, loaded together by a thread in one trip of its loop: 1 to 8; 0 = default_octets
  int access_bytes = 16;    // the widest global load and store, where tensors are aligned to it: 4, 8 or 16
  int blocks_per_sm = 8;    // the grid holds this many blocks for each SM, which loop over the rest; 0 = a block for each trip, no loop
  int resident_blocks = 1;  // blocks per SM that the register allocation must leave room for
  CacheHint loads = CacheHint::none;
  CacheHint stores = CacheHint::none;
  TableHome table = TableHome::automatic;
};

// A kernel takes its schedule as a type with such a member: for a __global__ template with an argument of class type nvcc (13.0) writes
// host code that does not compile.
struct DefaultGpuSchedule {
  static constexpr GpuSchedule kSchedule = {};
};

}  // namespace outgrad::kernels
