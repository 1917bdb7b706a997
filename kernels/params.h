// Schedule parameters of the host loops: how the work is cut and stored, never what is computed.
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

}  // namespace outgrad::kernels
