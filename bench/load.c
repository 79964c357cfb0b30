/* Loads a RADOS cluster through librados' or libradosstriper's C interface, with a bounded number of operations in flight. The same
 * program runs on Ceph's libraries and on Nacre's: choose with LD_LIBRARY_PATH, and the cluster with CEPH_CONF.
 *
 * usage: load write POOL NAME BLOCK DEPTH SECONDS WARM_UP SLICE [OBJECTS] new objects of BLOCK bytes; after so many the first again
 *        load fill POOL NAME BLOCK DEPTH SECONDS WARM_UP SLICE OBJECTS    so many new objects, each once
 *        load read POOL NAME BLOCK DEPTH SECONDS WARM_UP SLICE OBJECTS    random ones of those objects
 *        load zipf POOL NAME BLOCK DEPTH SECONDS WARM_UP SLICE OBJECTS THETA CACHED
 *                                                                         the same, object N with a probability as 1 / (N + 1)^THETA
 *        load scan POOL NAME BLOCK DEPTH SECONDS WARM_UP SLICE OBJECTS    all of those objects in order, each once
 *        load stripe POOL NAME BLOCK DEPTH SECONDS WARM_UP SLICE [BLOCKS] one striped object, from its start on (unit 4 MiB, count 1),
 *                                                                         after so many blocks its start again; DEPTH 0: synchronous calls
 *        load clean POOL NAME OBJECTS                                     removes the objects
 *        load clean-striped POOL NAME
 * build: clang -O2 -o load load.c -lradosstriper -lrados -lpthread -lm
 *
 * Each SLICE seconds it prints a line of JSON. The warm-up ends when the rates of three slices in a row differ by at most a tenth of
 * their mean, or after WARM_UP seconds; then SECONDS are measured. The last line has the totals. `stripe` reads everything back
 * after that and compares it. For `zipf` it has the share of the operations that CACHED objects serve at best: those that were read most
 * often ("lfu_hit_rate"). "gap_ms" is the longest time in which no operation ended. */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <rados/librados.h>
#include <radosstriper/libradosstriper.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define MAX_DEPTH 4096
#define STRIPE_UNIT (4u << 20)

static void check(int result, const char *what) {
  if (result < 0) {
    fprintf(stderr, "%s: %s\n", what, strerror(-result));
    exit(1);
  }
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec / 1e9;
}

static double cpu_us(void) {
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  return (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e6 + u.ru_utime.tv_usec + u.ru_stime.tv_usec;
}

/* Latencies in steps of at most 1/16 of the time. */
struct figures {
  uint64_t ops, counts[64 * 16];
  double sum_s, max_s, gap_s;
};

static void add(struct figures *f, double took_s) {
  uint64_t us = took_s * 1e6;
  us = us < 16 ? 16 : us;
  int bits = 63 - __builtin_clzll(us);
  f->counts[(bits - 4) * 16 + (us >> (bits - 4)) - 16]++;
  f->ops++;
  f->sum_s += took_s;
  f->max_s = took_s > f->max_s ? took_s : f->max_s;
}

static double quantile_ms(const struct figures *f, double share) {
  uint64_t wanted = f->ops * share + 0.999999, seen = 0;
  for (int i = 0; i < 60 * 16; i++) {
    seen += f->counts[i];
    if (f->counts[i] && seen >= wanted) {
      double end_ms = (double)((uint64_t)(17 + i % 16) << (i / 16)) / 1e3;
      return end_ms < f->max_s * 1e3 ? end_ms : f->max_s * 1e3;
    }
  }
  return 0;
}

static void print_figures(const char *kind, const struct figures *f, double seconds, double end_s) {
  printf("{\"kind\": \"%s\", \"end_s\": %.2f, \"seconds\": %.3f, \"ops\": %lu, \"iops\": %.1f, \"mean_ms\": %.3f, \"p50_ms\": %.3f, "
         "\"p99_ms\": %.3f, \"p999_ms\": %.3f, \"max_ms\": %.3f, \"gap_ms\": %.3f",
         kind, end_s, seconds, f->ops, f->ops / seconds, f->ops ? f->sum_s / f->ops * 1e3 : 0, quantile_ms(f, 0.5),
         quantile_ms(f, 0.99), quantile_ms(f, 0.999), f->max_s * 1e3, f->gap_s * 1e3);
}

static struct {
  rados_ioctx_t io;
  rados_striper_t striper;
  const char *mode, *name;
  size_t block;
  int reads, once;
  long depth, objects, cached;
  /* Of zipf: the probability that an operation is on this object or one before it, and the operations on each. */
  double *cumulated;
  uint64_t *counts;
  char *buffers[MAX_DEPTH];
  rados_completion_t completions[MAX_DEPTH];
  uint64_t numbers[MAX_DEPTH];
  double started[MAX_DEPTH], ended[MAX_DEPTH];
  pthread_mutex_t lock;
  pthread_cond_t some_done;
  int done[MAX_DEPTH], done_count;
} load = {.lock = PTHREAD_MUTEX_INITIALIZER, .some_done = PTHREAD_COND_INITIALIZER};

static uint64_t next_random(uint64_t *x) {
  *x ^= *x << 13;
  *x ^= *x >> 7;
  *x ^= *x << 17;
  return *x;
}

/* Contents that do not compress and differ from block to block. */
static void fill(char *buffer, uint64_t number) {
  uint64_t x = (number + 1) * 0x9e3779b97f4a7c15u | 1;
  /* Small blocks are filled as a whole; of larger ones each 4 KiB begins with a stamp, so that filling costs little. */
  for (size_t at = 0; at + 8 <= load.block; at += load.block <= 4096 ? 8 : 4096) {
    uint64_t word = next_random(&x);
    memcpy(buffer + at, &word, 8);
  }
}

static void on_complete(rados_completion_t completion, void *arg) {
  (void)completion;
  long slot = (long)arg;
  double at = now();
  pthread_mutex_lock(&load.lock);
  load.ended[slot] = at;
  load.done[load.done_count++] = slot;
  if (load.done_count == 1) pthread_cond_signal(&load.some_done);
  pthread_mutex_unlock(&load.lock);
}

static void object_name(char *out, size_t size, uint64_t number) { snprintf(out, size, "%s_object%lu", load.name, number); }

static void submit(long slot, uint64_t number) {
  char oid[160];
  object_name(oid, sizeof oid, number);
  load.numbers[slot] = number;
  rados_completion_t *c = &load.completions[slot];
  check(rados_aio_create_completion2((void *)slot, on_complete, c), "rados_aio_create_completion2");
  load.started[slot] = now();
  if (load.reads) {
    check(rados_aio_read(load.io, oid, *c, load.buffers[slot], load.block, 0), "rados_aio_read");
    return;
  }
  fill(load.buffers[slot], number);
  if (strcmp(load.mode, "stripe"))
    check(rados_aio_write(load.io, oid, *c, load.buffers[slot], load.block, 0), "rados_aio_write");
  else
    check(rados_striper_aio_write(load.striper, load.name, *c, load.buffers[slot], load.block, number * load.block),
          "rados_striper_aio_write");
}

static void take_result(long slot) {
  int result = rados_aio_get_return_value(load.completions[slot]);
  rados_aio_release(load.completions[slot]);
  check(result, load.mode);
  if (!load.reads) return;
  static char wanted[4 << 20];
  fill(wanted, load.numbers[slot]);
  size_t compared = load.block <= 4096 ? load.block / 8 * 8 : 8;
  if ((size_t)result != load.block || memcmp(wanted, load.buffers[slot], compared)) {
    fprintf(stderr, "object %lu differs (%d bytes read)\n", load.numbers[slot], result);
    exit(1);
  }
}

static void prepare_zipf(double theta) {
  double sum = 0;
  load.cumulated = malloc(load.objects * sizeof *load.cumulated);
  load.counts = calloc(load.objects, sizeof *load.counts);
  for (long i = 0; i < load.objects; i++) load.cumulated[i] = sum += 1 / pow(i + 1, theta);
  for (long i = 0; i < load.objects; i++) load.cumulated[i] /= sum;
}

static uint64_t zipf_number(uint64_t random) {
  double wanted = (random >> 11) * 0x1p-53;
  long low = 0, high = load.objects - 1;
  while (low < high) {
    long middle = (low + high) / 2;
    if (load.cumulated[middle] > wanted)
      high = middle;
    else
      low = middle + 1;
  }
  load.counts[low]++;
  return low;
}

static int by_count(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x < y) - (x > y);
}

/* The share of the operations that were on the `cached` objects with the most of them. */
static double lfu_hit_rate(void) {
  uint64_t all = 0, hits = 0;
  qsort(load.counts, load.objects, sizeof *load.counts, by_count);
  for (long i = 0; i < load.objects; i++) {
    all += load.counts[i];
    hits += i < load.cached ? load.counts[i] : 0;
  }
  return all ? (double)hits / all : 0;
}

/* The object or block of the next operation; `next` counts the operations. */
static uint64_t next_number(uint64_t *next) {
  static uint64_t random = 88172645463325252u;
  uint64_t number = (*next)++;
  if (load.cumulated) return zipf_number(next_random(&random));
  if (load.reads && !load.once) return next_random(&random) % load.objects;
  return load.objects ? number % load.objects : number;
}

static int is_steady(const double *rates, int count) {
  if (count < 3) return 0;
  double least = 1e300, most = 0, sum = 0;
  for (int i = count - 3; i < count; i++) {
    least = rates[i] < least ? rates[i] : least;
    most = rates[i] > most ? rates[i] : most;
    sum += rates[i];
  }
  return sum > 0 && most - least <= 0.1 * sum / 3;
}

/* Returns how many operations were done. */
static uint64_t run(double seconds, double warm_up, double slice_s) {
  static struct figures slice, total;
  static double rates[100000];
  int slices = 0, warming = warm_up > 0, synchronous = load.depth == 0;
  uint64_t next = 0, in_flight = 0;
  double start = now(), sliced = start, measured = start, cpu = cpu_us();
  double last = start;
  /* The warm-up ends with a slice, and sets the end of what is measured. */
  double end = warming ? 1e300 : start + seconds;
  if (!warming) printf("{\"kind\": \"measuring\", \"steady\": false, \"end_s\": 0}\n"), fflush(stdout);
  for (long slot = 0; slot < load.depth && !(load.once && next >= (uint64_t)load.objects); slot++, in_flight++)
    submit(slot, next_number(&next));
  while (in_flight > 0 || (synchronous && now() < end)) {
    int done[MAX_DEPTH], count = 0;
    if (synchronous) {
      uint64_t number = next_number(&next);
      fill(load.buffers[0], number);
      double started = now();
      check(rados_striper_write(load.striper, load.name, load.buffers[0], load.block, number * load.block), "rados_striper_write");
      double took = now() - started;
      add(&slice, took);
      add(&total, took);
    } else {
      pthread_mutex_lock(&load.lock);
      while (load.done_count == 0) pthread_cond_wait(&load.some_done, &load.lock);
      count = load.done_count;
      memcpy(done, load.done, count * sizeof *done);
      load.done_count = 0;
      pthread_mutex_unlock(&load.lock);
    }
    double at = now();
    if (at - last > slice.gap_s) slice.gap_s = at - last;
    if (at - last > total.gap_s) total.gap_s = at - last;
    last = at;
    for (int i = 0; i < count; i++) {
      long slot = done[i];
      take_result(slot);
      add(&slice, load.ended[slot] - load.started[slot]);
      add(&total, load.ended[slot] - load.started[slot]);
      if (at < end && !(load.once && next >= (uint64_t)load.objects))
        submit(slot, next_number(&next));
      else
        in_flight--;
    }
    if (at - sliced >= slice_s && at < end) {
      rates[slices++] = slice.ops / (at - sliced);
      print_figures(warming ? "warm-up" : "slice", &slice, at - sliced, at - start);
      printf("}\n");
      memset(&slice, 0, sizeof slice);
      sliced = at;
      if (warming && (is_steady(rates, slices) || at - start >= warm_up)) {
        warming = 0;
        memset(&total, 0, sizeof total);
        if (load.counts) memset(load.counts, 0, load.objects * sizeof *load.counts);
        measured = at, end = at + seconds, cpu = cpu_us();
        printf("{\"kind\": \"measuring\", \"steady\": %s, \"end_s\": %.2f}\n", is_steady(rates, slices) ? "true" : "false", at - start);
      }
      fflush(stdout);
    }
  }
  if (!strcmp(load.mode, "stripe") && !synchronous) rados_striper_aio_flush(load.striper);
  double at = now();
  print_figures("total", &total, at - measured, at - start);
  if (load.objects && next > (uint64_t)load.objects) next = load.objects;
  if (load.counts) printf(", \"lfu_hit_rate\": %.6f", lfu_hit_rate());
  printf(", \"objects\": %lu, \"client_us_per_op\": %.2f}\n", next, total.ops ? (cpu_us() - cpu) / total.ops : 0);
  fflush(stdout);
  return next;
}

static void verify_striped(uint64_t blocks) {
  uint64_t size;
  time_t mtime;
  check(rados_striper_stat(load.striper, load.name, &size, &mtime), "rados_striper_stat");
  char *wanted = calloc(1, load.block), *got = malloc(load.block);
  memcpy(wanted, load.buffers[0], load.block);
  for (uint64_t i = 0; i < blocks; i++) {
    fill(wanted, i);
    int result = rados_striper_read(load.striper, load.name, got, load.block, i * load.block);
    if (size != blocks * load.block || result != (int)load.block || memcmp(wanted, got, load.block)) {
      fprintf(stderr, "block %lu of %lu differs (%d bytes read, size %lu)\n", i, blocks, result, size);
      exit(1);
    }
  }
  printf("{\"kind\": \"verified\", \"bytes\": %lu}\n", size);
}

static void clean(long objects) {
  static rados_completion_t in_flight[64];
  for (long i = 0; i < objects + 64; i++) {
    rados_completion_t *c = &in_flight[i % 64];
    if (*c) {
      rados_aio_wait_for_complete(*c);
      int result = rados_aio_get_return_value(*c);
      check(result == -ENOENT ? 0 : result, "rados_aio_remove");
      rados_aio_release(*c);
      *c = NULL;
    }
    if (i < objects) {
      char oid[160];
      object_name(oid, sizeof oid, i);
      check(rados_aio_create_completion2(NULL, NULL, c), "rados_aio_create_completion2");
      check(rados_aio_remove(load.io, oid, *c), "rados_aio_remove");
    }
  }
}

int main(int argc, char **argv) {
  if (argc < 4) {
    fprintf(stderr, "usage: load write|fill|read|zipf|scan|stripe POOL NAME BLOCK DEPTH SECONDS WARM_UP SLICE [OBJECTS]\n"
                    "       load clean POOL NAME OBJECTS | load clean-striped POOL NAME\n");
    return 2;
  }
  load.mode = argv[1], load.name = argv[3];
  int striped = !strcmp(load.mode, "stripe") || !strcmp(load.mode, "clean-striped");
  rados_t cluster;
  check(rados_create(&cluster, "admin"), "rados_create");
  check(rados_conf_read_file(cluster, NULL), "rados_conf_read_file");
  check(rados_connect(cluster), "rados_connect");
  check(rados_ioctx_create(cluster, argv[2], &load.io), "rados_ioctx_create");
  if (striped) {
    check(rados_striper_create(load.io, &load.striper), "rados_striper_create");
    check(rados_striper_set_object_layout_stripe_unit(load.striper, STRIPE_UNIT), "stripe unit");
    check(rados_striper_set_object_layout_stripe_count(load.striper, 1), "stripe count");
    check(rados_striper_set_object_layout_object_size(load.striper, STRIPE_UNIT), "object size");
  }
  if (!strcmp(load.mode, "clean") && argc == 5) {
    clean(atol(argv[4]));
  } else if (!strcmp(load.mode, "clean-striped")) {
    check(rados_striper_remove(load.striper, load.name), "rados_striper_remove");
  } else if (argc >= 9) {
    load.block = strtoull(argv[4], NULL, 0);
    load.depth = atol(argv[5]);
    load.objects = argc > 9 ? atol(argv[9]) : 0;
    int zipf = !strcmp(load.mode, "zipf"), scan = !strcmp(load.mode, "scan");
    load.once = scan || !strcmp(load.mode, "fill");
    load.reads = scan || zipf || !strcmp(load.mode, "read");
    if ((load.reads || load.once) && load.objects <= 0) {
      fprintf(stderr, "how many objects are there?\n");
      return 2;
    }
    if (zipf && argc < 12) {
      fprintf(stderr, "theta, and how many objects are cached?\n");
      return 2;
    }
    if (zipf) {
      load.cached = atol(argv[11]);
      prepare_zipf(atof(argv[10]));
    }
    if (load.depth > MAX_DEPTH || load.block > STRIPE_UNIT || load.block < 8) {
      fprintf(stderr, "at most %d operations in flight, of 8 bytes to 4 MiB\n", MAX_DEPTH);
      return 2;
    }
    for (long slot = 0; slot < (load.depth ? load.depth : 1); slot++) {
      load.buffers[slot] = malloc(load.block);
      uint64_t x = 88172645463325252u;
      for (size_t at = 0; at + 8 <= load.block; at += 8) {
        uint64_t word = next_random(&x);
        memcpy(load.buffers[slot] + at, &word, 8);
      }
    }
    uint64_t blocks = run(atof(argv[6]), atof(argv[7]), atof(argv[8]));
    if (striped) verify_striped(blocks);
  } else {
    fprintf(stderr, "too few arguments\n");
    return 2;
  }
  if (striped) rados_striper_destroy(load.striper);
  rados_ioctx_destroy(load.io);
  rados_shutdown(cluster);
  return 0;
}
