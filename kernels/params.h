// Schedule parameters of the host loops and of the CUDA kernels: how the work is cut and stored, never what is computed.
#pragma once

namespace outgrad::kernels {

enum class TablePlacement {
  permute,  // coefficients held in registers or read as whole vectors, picked by permutes
  memory,   // coefficients read by gathers
};

// What a norm has fetched ahead of its use, while it writes a row.
enum class Prefetch {
  none,
  first_level,   // into the core's first cache level
  second_level,  // into its second
};

// Schedules are structural types, used as template arguments: each is its own compiled loop. Every schedule gives the same bits.

// Of a norm's forward on the host.
struct CpuNormForwardSchedule {
  int threads = 0;                  // 0 = all
  int vector_bits = 0;              // 0 = scalar, 256, 512
  int vectors = 2;                  // side by side in the passes that write a row, 1 to 8: AVX-512 stores two of 16-bit elements as one cache line
  int rows = 4;                     // of 16-bit elements taken together, 1 to 8, of fp32 half as many: gamma and beta are read once for all, and the
                                    // end of one row's sum hides behind the others; streamed, they are written while the next ones are summed
  int task_elements = 1 << 16;      // a task is as many whole rows as have so many elements, but one at least
  bool streaming_stores = false;    // write past the cache where rows are whole cache lines and the output is large
  Prefetch prefetch = Prefetch::second_level;  // of x and what is added to it
  int rows_ahead = 1;                          // 1: of the rows to be summed next; 2: of those after them; and so on
};

// Of a norm's backward on the host.
struct CpuNormBackwardSchedule {
  int threads = 0;                // 0 = all
  int vector_bits = 0;            // 0 = scalar, 256, 512
  int vectors = 2;                // side by side in the pass that writes dx, 1 to 8: AVX-512 stores two of 16-bit elements as one cache line
  int rows = 4;                   // of 16-bit elements taken together, 1 to 8, of fp32 half as many: what there is for each column is read, and its
                                  // sums are written, once for all; streamed, dx is written while the next ones are summed
  int tasks = 128;                // that share the rows, at most: a power of two up to 128; enough for the largest machines' cores, and few enough
                                  // that the tasks' partial sums stay small beside the tensors
  int fold_columns = 1024;        // of dgamma and dbeta to a task of the last pass, which adds the tasks' sums: runs of 4 KiB of each
  bool streaming_stores = false;  // as in the forward
  Prefetch prefetch = Prefetch::second_level;  // of dy, y and what is added to dx; measured on Zen 4: fetching into the first level costs more than it
                                               // saves, as its few outstanding misses are then all in use
  int rows_ahead = 1;                          // as in the forward
};

// Of GELU's kernels on the host, with or without a bias.
struct CpuSchedule {
  int threads = 0;                // 0 = all
  int vector_bits = 0;            // 0 = scalar, 256, 512
  int unroll = 1;                 // vectors interleaved in one loop body, to cover the latency of the polynomial's chain
  int block_elements = 1 << 16;   // elements per task: a positive multiple of 1024
  bool streaming_stores = false;  // write past the cache where the output is aligned and large
  TablePlacement table = TablePlacement::permute;

#ifndef __CUDACC_RTC__  // which takes no functions of the host
  // A norm takes of it what it has itself.
  constexpr operator CpuNormForwardSchedule() const {
    return {.threads = threads, .vector_bits = vector_bits, .task_elements = block_elements, .streaming_stores = streaming_stores};
  }
  constexpr operator CpuNormBackwardSchedule() const {
    // In vectors of 256 bits rows one by one, a cache line of 16-bit elements at a time: 4 rows in half lines were measured to stream more slowly.
    const CpuNormBackwardSchedule plain;
    return {.threads = threads,
            .vector_bits = vector_bits,
            .vectors = vector_bits == 256 ? 4 : plain.vectors,
            .rows = vector_bits == 256 ? 1 : plain.rows,
            .streaming_stores = streaming_stores};
  }
#endif
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

// A grid of as many blocks as the device holds at once: each fills its table once and loops to the end. The device is asked how many.
inline constexpr int kAllResident = -1;

// Each schedule is its own compiled kernel. Every schedule gives the same bits.
struct GpuSchedule {
  int threads = 256;                 // per block: a multiple of 32, at most 1024
  int octets = 0;                    // of 8 elements, loaded together by a thread in one trip of its loop: 1 to 8; 0 = the kernel's default
  int access_bytes = 16;             // the widest global load and store, where tensors are aligned to it: 4, 8 or 16
  int blocks_per_sm = kAllResident;  // the grid holds this many blocks for each SM, which loop over the rest; 0 = a block for each trip, no loop
  int resident_blocks = 0;           // blocks per SM that the register allocation must leave room for; 0 = the kernel's default
  CacheHint loads = CacheHint::none;
  CacheHint stores = CacheHint::none;
  TableHome table = TableHome::automatic;
};

// A kernel takes its schedule as a type with such a member: for a __global__ template with an argument of class type nvcc (13.0) writes
// host code that does not compile.
struct DefaultGpuSchedule {
  static constexpr GpuSchedule kSchedule = {};
};

// Where a row of a norm lies between its sums and the pass that writes its result.
enum class RowHome {
  automatic,  // the first of the following that holds the row
  registers,  // at most `octets` octets of each tensor a thread: rows of whole octets, aligned to access_bytes, of at most 2^14 elements
  shared,     // the block's shared memory, up to what the device lends one block; one row at a time
  memory,     // read again, from L2, for each use
};

// How the sums over rows that dgamma and dbeta are of come about.
enum class ColumnSums {
  automatic,  // fused where rows lie in registers
  fused,      // by the pass that writes dx: a slot's rows go one after the other through the warps that own them, which keep the sums
  separate,   // by a kernel of their own before it, which reads dy and y once more
};

// Schedule of a norm's kernels on a GPU. Each schedule is its own compiled kernel. Every schedule gives the same bits. Where a row does not
// suit the home that is asked for, the next one down the list is taken: the bits are the same there, too.
struct GpuNormSchedule {
  int row_warps = 0;        // warps that share a row: 1, 2, 4, 8, 16 or 32; 0 = by n, as few as hold the row at `octets` to a thread
  int octets = 0;           // of 8 elements of a row that a thread keeps in registers: 1, 2, 4 or 8; 0 = default_octets of kernels/cuda/plan.h
  int block_rows = 0;       // rows side by side in one block (fused: slots): 1, 2, 4 or 8; 0 = as many as make four warps, of slots eight
  int access_bytes = 16;    // the widest global load and store, where rows are aligned to it: 4, 8 or 16
  int blocks_per_sm = 0;    // the grid holds this many blocks for each SM, which loop over the rest; 0 = a block for each block_rows rows
  int resident_blocks = 0;  // blocks per SM that the register allocation must leave room for; 0 = as many as make 16 warps, 24 in a forward
  int rows_ahead = -1;  // fused sums: rows on their way into shared memory before it is their turn, 0 to 4; -1 = as many as make 64 KiB an SM, 1 at least
  RowHome home = RowHome::automatic;
  ColumnSums sums = ColumnSums::automatic;
  CacheHint loads = CacheHint::none;  // of x, dy, y and what is added to them, but not of rows ahead; not of what all rows share, which stays in the caches
  CacheHint stores = CacheHint::none;  // of y, z and dx
};

struct DefaultGpuNormSchedule {
  static constexpr GpuNormSchedule kSchedule = {};
};

}  // namespace outgrad::kernels
