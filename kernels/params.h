// Schedule parameters of the host loops and the CUDA kernels. They say how the work is cut and stored, never
// what is computed.
#pragma once

namespace outgrad::kernels {

enum class TablePlacement {
  permute,  // coefficients are held in registers or read as whole vectors, and picked by permutes
  memory,   // coefficients are read by gathers
};

// What a norm prefetches while it writes a row.
enum class Prefetch {
  none,
  first_level,   // into the core's first-level cache
  second_level,  // into its second-level cache
};

// Schedules are structural types that serve as template arguments; each one is a separately compiled loop.
// Every schedule gives the same bits.

// Schedule of a norm's forward on the host.
struct CpuNormForwardSchedule {
  int threads = 0;      // 0 = all
  int vector_bits = 0;  // 0 = scalar, 256, 512
  // Vectors side by side in the passes that write a row, 1 to 8. AVX-512 stores two vectors of 16-bit
  // elements as one cache line.
  int vectors = 2;
  // Rows processed together, 1 to 8; in fp32 half as many unless they are short. gamma and beta are read once
  // for all these rows, and the end of one row's sum overlaps with the other rows. When streaming, they are
  // written while the next ones are summed.
  int rows = 4;
  // a task is as many whole rows as have this many elements together, but at least one
  int task_elements = 1 << 16;
  // write past the cache if rows are whole cache lines and the output is large
  bool streaming_stores = false;
  Prefetch prefetch = Prefetch::second_level;  // of x and of what is added to it
  // 1: the rows that are summed next; 2: those after them; and so on
  int rows_ahead = 1;
};

// Schedule of a norm's backward on the host.
struct CpuNormBackwardSchedule {
  int threads = 0;  // 0 = all
  int vector_bits = 0;  // 0 = scalar, 256, 512
  // Vectors side by side in the pass that writes dx, 1 to 8. AVX-512 stores two vectors of 16-bit elements as
  // one cache line.
  int vectors = 2;
  // Rows of a slot processed together, 1 to 8, in fp32 half as many; or slots, a power of two, where each has
  // one or two rows. The columns' constants are read, and the columns' sums written, once for all these rows.
  // When streaming, dx is written while the next ones are summed.
  int rows = 4;
  // The most tasks that share the rows: a power of two up to 128. This is enough for the cores of the largest
  // machines, and few enough that the tasks' partial sums stay small beside the tensors.
  int tasks = 128;
  // Columns of dgamma and dbeta for each task of the last pass, which adds the tasks' sums: runs of 4 KiB of
  // each.
  int fold_columns = 1024;
  bool streaming_stores = false;  // as in the forward
  // Prefetching of dy, y and what is added to dx. Measured on Zen 4: prefetching into the first level costs
  // more than it saves, because its few outstanding misses are then all in use.
  Prefetch prefetch = Prefetch::second_level;
  int rows_ahead = 1;  // as in the forward
};

// Schedule of GELU's kernels on the host, with or without a bias.
struct CpuSchedule {
  int threads = 0;  // 0 = all
  int vector_bits = 0;  // 0 = scalar, 256, 512
  // vectors interleaved in one loop body, to hide the latency of the polynomial's chain
  int unroll = 1;
  int block_elements = 1 << 16;  // elements per task: a positive multiple of 1024
  bool streaming_stores = false;  // write past the cache if the output is aligned and large
  TablePlacement table = TablePlacement::permute;

#ifndef __CUDACC_RTC__  // NVRTC does not accept host functions
  // A norm's schedule takes over the members that both have.
  constexpr operator CpuNormForwardSchedule() const {
    return {.threads = threads,
            .vector_bits = vector_bits,
            .task_elements = block_elements,
            .streaming_stores = streaming_stores};
  }
  constexpr operator CpuNormBackwardSchedule() const {
    // With vectors of 256 bits, rows are processed one by one, a cache line of 16-bit elements at a time.
    // Measured: 4 rows in half lines stream more slowly.
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
  automatic,  // kernels/cuda/tables.cuh chooses for the fit
  // global memory, through L1; rows known at compile time, as with a single row, become immediate operands
  caches,
  // shared memory, word by word; with up to 32 rows no two lanes of a warp collide; one 4-byte load per word
  columns,
  rows,  // shared memory, row by row in 16-byte loads; lanes that read different rows may collide
  // like rows, but with 8 copies, one for each 16 bytes of the banks: 16-byte loads never collide; 128 bytes
  // per row and load
  spread,
  entries,  // shared memory, with a direct table's entries unchanged
};

// Which hint global loads and stores carry.
enum class CacheHint {
  none,
  streaming,  // .cs: read or written once, first to be evicted
};

// The grid has as many blocks as the device can hold at once. Each block fills its table once and loops to
// the end. The device is asked for the number.
inline constexpr int kAllResident = -1;

// Each schedule is its own compiled kernel. Every schedule gives the same bits.
struct GpuSchedule {
  int threads = 256;  // per block: a multiple of 32, at most 1024
  // octets (8 elements each) that a thread loads together in one trip of its loop: 1 to 8; 0 = the kernel's
  // default
  int octets = 0;
  // the widest global load and store, if the tensors are aligned to it: 4, 8 or 16
  int access_bytes = 16;
  // the grid has this many blocks per SM, which loop over the work; 0 = one block for each trip, no loop
  int blocks_per_sm = kAllResident;
  // blocks per SM that the register allocation must leave room for; 0 = the kernel's default
  int resident_blocks = 0;
  CacheHint loads = CacheHint::none;
  CacheHint stores = CacheHint::none;
  TableHome table = TableHome::automatic;
};

// A kernel takes its schedule as a type that has it as a member. For a __global__ template with an argument
// of class type, nvcc (13.0) writes host code that does not compile.
struct DefaultGpuSchedule {
  static constexpr GpuSchedule kSchedule = {};
};

// Where a norm keeps a row between summing it and writing the result.
enum class RowHome {
  automatic,  // the first of the following that holds the row
  // at most `octets` octets of each tensor per thread; for rows of whole octets, aligned to access_bytes,
  // with at most 2^14 elements
  registers,
  shared,  // the block's shared memory, up to the device's limit for one block; one row at a time
  memory,  // read again, from L2, for each use
};

// How the sums over rows for dgamma and dbeta are computed.
enum class ColumnSums {
  automatic,  // fused if rows are held in registers
  // in the pass that writes dx: a slot's rows go one after the other through the warps that own the slot and
  // keep the sums
  fused,
  separate,  // in a separate kernel before that pass, which reads dy and y once more
};

// Schedule of a norm's kernels on a GPU. Each schedule is a separately compiled kernel. Every schedule gives
// the same bits. If a row does not suit the requested home, the next home down the list is used; the bits are
// the same there.
struct GpuNormSchedule {
  // warps that share a row: 1, 2, 4, 8, 16 or 32; 0 = chosen by n, the fewest that hold the row with `octets`
  // per thread
  int row_warps = 0;
  // octets (8 elements each) of a row that a thread keeps in registers: 1, 2, 4 or 8; 0 = default_octets of
  // kernels/cuda/plan.h
  int octets = 0;
  // rows side by side in one block (when fused: slots): 1, 2, 4 or 8; 0 = as many as make four warps, or
  // eight for slots
  int block_rows = 0;
  int access_bytes = 16;  // the widest global load and store, if rows are aligned to it: 4, 8 or 16
  // the grid has this many blocks per SM, which loop over the rows; 0 = one block for every block_rows rows
  int blocks_per_sm = 0;
  // blocks per SM that the register allocation must leave room for; 0 = as many as make 16 warps, 24 in a
  // forward
  int resident_blocks = 0;
  // With fused sums: the rows that are copied into shared memory before it is their turn, 0 to 4; -1 = as
  // many as make 64 KiB per SM, but at least 1.
  int rows_ahead = -1;
  RowHome home = RowHome::automatic;
  ColumnSums sums = ColumnSums::automatic;
  // The hint for loads of x, dy, y and what is added to them. It does not apply to rows ahead, nor to what
  // all rows share, which stays in the caches.
  CacheHint loads = CacheHint::none;
  CacheHint stores = CacheHint::none;  // of y, z and dx
  // lanes of a warp that share a row, while the others have rows of their own: 8 or 16; 32: all of them; 0 =
  // chosen by n
  int row_lanes = 0;
};

struct DefaultGpuNormSchedule {
  static constexpr GpuNormSchedule kSchedule = {};
};

}  // namespace outgrad::kernels
