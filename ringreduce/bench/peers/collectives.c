/* Times one MPI collective by the method of `ringreduce bench --level c` (docs/reference/benchmarks.md), float32, sum.
 *
 * Up to 4 KiB: BATCHES runs of calls back to back, each run's mean, the slowest rank's. Above: every call is preceded
 * by rewriting the input and a barrier and timed alone, the slowest rank's time of each call. One JSON line on rank 0.
 * Fewer calls than ITERS where they would take more than SECONDS, by the pace of the warm-up; 3 at least. Fewer than
 * WARMUP where these would take more than WARMUP_SECONDS. Both may be inf.
 * The first call is checked, and one after the timed ones.
 * Usage: mpirun -np N collectives NAME COUNT IN_PLACE ITERS WARMUP SECONDS WARMUP_SECONDS N CPUS
 * COUNT: elements of a rank's larger operand. N: the ranks, since the mpirun of another MPI starts N jobs of one rank
 * CPUS: those of each rank, as in "0,2;1,3", since an mpirun that binds takes CPUs that taskset forbids; "" binds nobody
 */
#define _GNU_SOURCE
#include <limits.h>
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { BATCHES = 20, LEAST = 3, SMALL = 4096, HUGE_PAGE = 1 << 21 };
enum kind { ALLREDUCE, REDUCESCATTER, ALLGATHER, BROADCAST, ALLTOALL, BARRIER, KINDS };
static const char* const names[KINDS] = {"allreduce", "reducescatter", "allgather", "broadcast", "alltoall", "barrier"};

static enum kind kind;
static int rank, size, count, part, in_place;
static float *input, *output, *original;

/* Operands start on a huge page, with huge pages advised: as ours do. */
static float* operand(size_t elements) {
  const size_t room = (elements * sizeof(float) / HUGE_PAGE + 1) * HUGE_PAGE;
  float* memory = aligned_alloc(HUGE_PAGE, room);
  madvise(memory, room, MADV_HUGEPAGE);
  memset(memory, 0, room);
  return memory;
}

static float given(int from, long position) { return (float)(1 + (position * 31 + (position >> 12) * 7 + 17L * from) % 61); }

static float wanted(long i) {
  float sum = 0;
  switch (kind) {
    case ALLREDUCE:
      for (int r = 0; r < size; ++r) sum += given(r, i);
      return sum;
    case REDUCESCATTER:
      for (int r = 0; r < size; ++r) sum += given(r, (long)rank * part + i);
      return sum;
    case ALLGATHER:
      return given((int)(i / part), i % part);
    case BROADCAST:
      return given(0, i);
    default:
      return given((int)(i / part), (long)rank * part + i % part);
  }
}

static void call(void) {
  switch (kind) {
    case ALLREDUCE:
      MPI_Allreduce(in_place ? MPI_IN_PLACE : input, output, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      break;
    case REDUCESCATTER:
      MPI_Reduce_scatter_block(input, output, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      break;
    case ALLGATHER:
      MPI_Allgather(input, part, MPI_FLOAT, output, part, MPI_FLOAT, MPI_COMM_WORLD);
      break;
    case BROADCAST:
      MPI_Bcast(input, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
      break;
    case ALLTOALL:
      MPI_Alltoall(input, part, MPI_FLOAT, output, part, MPI_FLOAT, MPI_COMM_WORLD);
      break;
    default:
      MPI_Barrier(MPI_COMM_WORLD);
  }
}

static double per_call(int calls) {
  const double start = MPI_Wtime();
  for (int i = 0; i < calls; ++i) call();
  return (MPI_Wtime() - start) / calls;
}

static void rewrite(size_t nbytes) {
  memcpy(input, original, nbytes);
  MPI_Barrier(MPI_COMM_WORLD);
}

static long count_wrong(int outputs) {
  long wrong = 0;
  for (int i = 0; kind != BARRIER && i < outputs; ++i) wrong += output[i] != wanted(i);
  return wrong;
}

static int at_least(int least, double value) { return value < least ? least : (int)value; }

/* Seconds of a call with what comes before it, the slowest rank's mean of so many. */
static double slowest(int calls, size_t nbytes) {
  double mean = MPI_Wtime();
  for (int i = 0; i < calls; ++i) {
    rewrite(nbytes);
    call();
  }
  mean = (MPI_Wtime() - mean) / calls;
  MPI_Allreduce(MPI_IN_PLACE, &mean, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return mean;
}

static int ascending(const void* a, const void* b) {
  return (*(const double*)a > *(const double*)b) - (*(const double*)a < *(const double*)b);
}

/* The least sample that 99 % of them do not exceed, as in ../percentile.py. */
static double p99(const double* samples, int number) { return samples[number - number / 100 - 1]; }

/* Binds this process to the CPUs that lists, such as "0,2;1,3", has for the rank. Returns whether it has any. */
static int bind_to(const char* lists, long of_rank) {
  for (; of_rank > 0 && lists != NULL; --of_rank) {
    lists = strchr(lists, ';');
    if (lists != NULL) ++lists;
  }
  if (lists == NULL || *lists == '\0') return 0;
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  char* end = NULL;
  for (const char* at = lists;; at = end + 1) {
    CPU_SET(strtoul(at, &end, 10), &cpus);
    if (*end != ',') break;
  }
  return sched_setaffinity(0, sizeof cpus, &cpus) == 0;
}

int main(int argc, char** argv) {
  if (argc != 10) return 2;
  /* Before the library makes its shared memory, whose pages lie near the CPU that touches them first. */
  const char* told = getenv("OMPI_COMM_WORLD_RANK");
  if (told == NULL) told = getenv("PMI_RANK");
  const int is_bound = told != NULL && bind_to(argv[9], strtol(told, NULL, 10));
  int granted;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SINGLE, &granted);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size != atoi(argv[8])) {
    fprintf(stderr, "%d ranks have met, not %s: is this mpirun that of the MPI compiled for?\n", size, argv[8]);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  if (argv[9][0] != '\0' && !is_bound && !bind_to(argv[9], rank)) {
    fprintf(stderr, "rank %d cannot be bound to its CPUs of %s\n", rank, argv[9]);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  while (kind < KINDS && strcmp(argv[1], names[kind]) != 0) ++kind;
  if (kind == KINDS) MPI_Abort(MPI_COMM_WORLD, 2);
  const long elements = strtol(argv[2], NULL, 10);
  if (elements < 0 || elements > INT_MAX) MPI_Abort(MPI_COMM_WORLD, 2);
  count = (int)elements;
  part = count / size;
  in_place = atoi(argv[3]) || kind == BROADCAST || kind == BARRIER;
  const int iters = atoi(argv[4]), warmup = atoi(argv[5]);
  const double budget = atof(argv[6]), warmup_budget = atof(argv[7]);
  const int inputs = kind == ALLGATHER ? part : count, outputs = kind == REDUCESCATTER ? part : count;
  const size_t nbytes = inputs * sizeof(float);
  const int small = count * sizeof(float) <= SMALL;
  int samples = small ? BATCHES : iters, calls = small && iters > BATCHES ? iters / BATCHES : 1;
  double* seconds = malloc(samples * sizeof(double));
  input = operand(inputs);
  output = in_place ? input : operand(outputs);
  original = malloc(nbytes + 1);

  for (int i = 0; i < inputs; ++i) original[i] = given(rank, i);
  rewrite(nbytes);
  call();
  long wrong = count_wrong(outputs);
  if (small) memset(input, 0, nbytes); /* back to back, the sums feed the next call: stay finite */
  double pace = slowest(1, small ? 0 : nbytes);
  const int affordable = pace * warmup > warmup_budget ? at_least(1, warmup_budget / pace) : warmup - 1;
  if (warmup > 1) pace = slowest(affordable, small ? 0 : nbytes);
  if (small && pace * BATCHES * calls > budget) calls = at_least(1, budget / (pace * BATCHES));
  if (pace * samples > budget) samples = at_least(samples < LEAST ? samples : LEAST, budget / pace);
  for (int i = 0; i < samples; ++i) {
    rewrite(small ? 0 : nbytes);
    seconds[i] = per_call(calls);
  }
  rewrite(nbytes);
  call();
  wrong += count_wrong(outputs);

  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, seconds, samples, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  qsort(seconds, samples, sizeof(double), ascending);
  if (rank == 0)
    printf("{\"wrong\": %ld, \"min\": %.4f, \"p50\": %.4f, \"p99\": %.4f, \"cpu\": %d}\n", wrong, seconds[0] * 1e6,
           seconds[samples / 2] * 1e6, p99(seconds, samples) * 1e6, sched_getcpu());
  return MPI_Finalize();
}
