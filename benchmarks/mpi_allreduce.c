/* Times MPI_Allreduce, fp32 sum, in place, by the method of `ringreduce bench --level c` (docs/benchmarks.md).
 *
 * Up to 4 KiB: BATCHES runs of calls back to back, each run's mean, the slowest rank's. Above: every call is preceded
 * by rewriting the buffer and a barrier and timed alone, the slowest rank's time of each call. One JSON line on rank 0.
 * Usage: mpirun -np N mpi_allreduce NBYTES ITERS WARMUP
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { BATCHES = 20, SMALL = 4096, HUGE_PAGE = 1 << 21 };

static int ascending(const void* a, const void* b) {
  return (*(const double*)a > *(const double*)b) - (*(const double*)a < *(const double*)b);
}

static void rewrite(float* x, const float* original, size_t nbytes) {
  memcpy(x, original, nbytes);
  MPI_Barrier(MPI_COMM_WORLD);
}

static double per_call(float* x, int count, int calls) {
  const double start = MPI_Wtime();
  for (int i = 0; i < calls; ++i) MPI_Allreduce(MPI_IN_PLACE, x, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  return (MPI_Wtime() - start) / calls;
}

int main(int argc, char** argv) {
  int rank, size, granted, wrong = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SINGLE, &granted);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (argc != 4) MPI_Abort(MPI_COMM_WORLD, 2);
  const size_t nbytes = strtoul(argv[1], NULL, 10), room = (nbytes / HUGE_PAGE + 1) * HUGE_PAGE;
  const int iters = atoi(argv[2]), warmup = atoi(argv[3]), count = (int)(nbytes / sizeof(float));
  const int small = nbytes <= SMALL, samples = small ? BATCHES : iters, calls = small ? iters / BATCHES : 1;
  double* seconds = malloc(samples * sizeof(double));
  float *x = aligned_alloc(HUGE_PAGE, room), *original = malloc(nbytes);
  madvise(x, room, MADV_HUGEPAGE); /* as ours: MPI gets the best memory too */

  for (int j = 0; j < count; ++j) original[j] = (float)(rank + j % 7);
  rewrite(x, original, nbytes);
  per_call(x, count, 1);
  for (int j = 0; j < count; ++j) wrong += x[j] != (float)(size * (size - 1) / 2 + size * (j % 7));
  if (small)
    for (int j = 0; j < count; ++j) x[j] = 0; /* back to back, the sums feed the next call: stay finite */
  for (int i = -warmup; i < samples; ++i) {
    rewrite(x, original, small ? 0 : nbytes);
    const double mean = per_call(x, count, i < 0 ? 1 : calls);
    if (i >= 0) seconds[i] = mean;
  }

  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, seconds, samples, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  qsort(seconds, samples, sizeof(double), ascending);
  if (rank == 0)
    printf("{\"ranks\": %d, \"nbytes\": %zu, \"wrong\": %d, \"min\": %.4f, \"p50\": %.4f, \"p99\": %.4f}\n", size,
           nbytes, wrong, seconds[0] * 1e6, seconds[samples / 2] * 1e6, seconds[(samples - 1) * 99 / 100] * 1e6);
  return MPI_Finalize();
}
