// LayerNorm in bf16 by schedules beside the default.
#include "tests/gpu/norm_checks.cuh"

namespace outgrad::tests::gpu {
namespace {

using kernels::BF16;

// The other homes of a row, sums apart, warps that share a row, slots side by side.
struct NormsShared {
  static constexpr const char* kName = ", rows in shared memory";
  static constexpr kernels::GpuNormSchedule kSchedule = {
      .row_warps = 4, .blocks_per_sm = 2, .home = kernels::RowHome::shared};
};
struct NormsInMemory {
  static constexpr const char* kName = ", rows read again";
  static constexpr kernels::GpuNormSchedule kSchedule = {
      .row_warps = 32, .access_bytes = 8, .home = kernels::RowHome::memory};
};
struct NormsApart {
  static constexpr const char* kName = ", sums apart";
  static constexpr kernels::GpuNormSchedule kSchedule = {.octets = 2,
                                                         .blocks_per_sm = 4,
                                                         .sums = kernels::ColumnSums::separate,
                                                         .loads = kernels::CacheHint::streaming};
};
struct NormsSideBySide {
  static constexpr const char* kName = ", slots side by side";
  static constexpr kernels::GpuNormSchedule kSchedule = {
      .row_warps = 8, .octets = 1, .block_rows = 4, .rows_ahead = 1, .stores = kernels::CacheHint::streaming};
};

}  // namespace

void norm_schedules_equality(Report& report, i64 rows, i64 n) {
  matrix_equality<BF16>(report, NormCase<Norm::layer, BF16, false, NormsShared>(rows, n));
  matrix_equality<BF16>(report, NormCase<Norm::layer, BF16, true, NormsInMemory>(rows, n));
  matrix_equality<BF16>(report, NormCase<Norm::layer, BF16, false, NormsApart>(rows, n));
  matrix_equality<BF16>(report, NormCase<Norm::layer, BF16, false, NormsSideBySide>(rows, n));
}

}  // namespace outgrad::tests::gpu
