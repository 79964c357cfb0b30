/* An HTTP server that takes bucket notifications: answers every POST with 200 over connections that stay open, and counts events and
 * their lag, the time from `eventTime` to the answer.
 *
 * usage: sink PORT      listens at 127.0.0.1
 *   GET /figures        {"events": …, "last_s": …, "lag_p50_ms": …, …} since the last reset; last_s is in seconds since 1970
 *   GET /reset          begins to count from nothing
 * build: clang -O2 -o sink sink.c */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* The longest request: 1000 events with tags and metadata. */
#define MAX_REQUEST (16u << 20)
#define FIRST_BUFFER (16u << 10)

static const char OK[] = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
static const char CONTINUE[] = "HTTP/1.1 100 Continue\r\n\r\n";

struct connection {
  int fd, told_to_continue;
  char *data;
  size_t len, size;
};

/* Lags in steps of at most 1/16. */
static struct {
  uint64_t requests, events, lags, counts[64 * 16];
  double last_s, lag_sum_s, lag_max_s;
} figures;

static void check(int result, const char *what) {
  if (result < 0) {
    perror(what);
    exit(1);
  }
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return t.tv_sec + t.tv_nsec / 1e9;
}

static void add_lag(double lag_s) {
  lag_s = lag_s < 0 ? 0 : lag_s;
  uint64_t us = lag_s * 1e6;
  us = us < 16 ? 16 : us;
  int bits = 63 - __builtin_clzll(us);
  figures.counts[(bits - 4) * 16 + (us >> (bits - 4)) - 16]++;
  figures.lags++;
  figures.lag_sum_s += lag_s;
  figures.lag_max_s = lag_s > figures.lag_max_s ? lag_s : figures.lag_max_s;
}

static double quantile_ms(double share) {
  uint64_t wanted = figures.lags * share + 0.999999, seen = 0;
  for (int i = 0; i < 60 * 16; i++) {
    seen += figures.counts[i];
    if (figures.counts[i] && seen >= wanted) {
      double end_ms = (double)((uint64_t)(17 + i % 16) << (i / 16)) / 1e3;
      return end_ms < figures.lag_max_s * 1e3 ? end_ms : figures.lag_max_s * 1e3;
    }
  }
  return 0;
}

/* Counts the events of a request's body. */
static void take(const char *body, size_t len) {
  static const char ID[] = "\"eventId\"", TIME[] = "\"eventTime\":";
  const char *end = body + len;
  double at = now();
  figures.requests++;
  figures.last_s = at;
  for (const char *p = body; (p = memmem(p, end - p, ID, sizeof ID - 1)); p += sizeof ID - 1) figures.events++;
  for (const char *p = body; (p = memmem(p, end - p, TIME, sizeof TIME - 1));) {
    p += sizeof TIME - 1;
    while (p < end && (*p == ' ' || *p == '"')) p++;
    struct tm tm = {0};
    char text[40] = {0};
    memcpy(text, p, end - p < 32 ? end - p : 32);
    const char *rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);
    if (rest) add_lag(at - (timegm(&tm) + (*rest == '.' ? atof(rest) : 0)));
  }
}

/* Everything that is answered fits into the socket's buffer. */
static int answer(int fd, const char *text, size_t len) { return send(fd, text, len, MSG_NOSIGNAL) == (ssize_t)len ? 0 : -1; }

static int answer_figures(int fd) {
  char body[512], text[1024];
  double mean_ms = figures.lags ? figures.lag_sum_s / figures.lags * 1e3 : 0;
  int len = snprintf(body, sizeof body,
                     "{\"requests\": %lu, \"events\": %lu, \"last_s\": %.6f, \"lag_mean_ms\": %.3f, \"lag_p50_ms\": %.3f, "
                     "\"lag_p99_ms\": %.3f, \"lag_max_ms\": %.3f}\n",
                     figures.requests, figures.events, figures.last_s, mean_ms, quantile_ms(0.5), quantile_ms(0.99),
                     figures.lag_max_s * 1e3);
  len = snprintf(text, sizeof text, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len, body);
  return answer(fd, text, len);
}

/* The bytes of a chunked body, 0 if it is not whole yet; `*data` gets the length of its data, which `move` moves to its start. */
static size_t chunked_size(char *body, size_t len, size_t *data, int move) {
  size_t at = 0;
  *data = 0;
  for (;;) {
    char *line_end = memmem(body + at, len - at, "\r\n", 2);
    if (!line_end) return 0;
    size_t chunk = strtoul(body + at, NULL, 16), start = line_end + 2 - body;
    if (chunk > MAX_REQUEST || start + chunk + 2 > len) return 0;
    if (chunk == 0) return start + 2;
    if (move) memmove(body + *data, body + start, chunk);
    *data += chunk, at = start + chunk + 2;
  }
}

/* Answers the requests that have arrived as a whole. Returns -1 where the connection is to be closed. */
static int serve(struct connection *c) {
  size_t at = 0;
  for (;;) {
    char *start = c->data + at, *head_end = memmem(start, c->len - at, "\r\n\r\n", 4);
    if (!head_end) break;
    /* Within the head only: it ends with NUL meanwhile. */
    char *body = head_end + 4;
    *head_end = 0;
    char *length = strcasestr(start, "\r\ncontent-length:");
    int chunked = strcasestr(start, "\r\ntransfer-encoding: chunked") != NULL;
    int expects = strcasestr(start, "\r\nexpect: 100-continue") != NULL;
    int is_get = !strncmp(start, "GET ", 4), is_reset = is_get && !strncmp(start + 4, "/reset", 6);
    size_t wanted = length ? strtoul(length + 17, NULL, 10) : 0, there = c->data + c->len - body, used = wanted;
    *head_end = '\r';
    if (wanted > MAX_REQUEST) return -1;
    if (chunked) used = chunked_size(body, there, &wanted, 0);
    if (chunked ? used == 0 : there < wanted) {
      if (expects && !c->told_to_continue && answer(c->fd, CONTINUE, sizeof CONTINUE - 1) < 0) return -1;
      c->told_to_continue = expects;
      break;
    }
    c->told_to_continue = 0;
    if (chunked) chunked_size(body, there, &wanted, 1);
    if (is_reset) memset(&figures, 0, sizeof figures);
    if (!is_get) take(body, wanted);
    if ((is_get && !is_reset ? answer_figures(c->fd) : answer(c->fd, OK, sizeof OK - 1)) < 0) return -1;
    at = body + used - c->data;
  }
  memmove(c->data, c->data + at, c->len - at);
  c->len -= at;
  return 0;
}

/* Takes what has arrived. Returns -1 where the connection is to be closed. */
static int receive(struct connection *c) {
  for (;;) {
    if (c->len == c->size) {
      if (c->size >= MAX_REQUEST) return -1;
      c->size *= 2;
      c->data = realloc(c->data, c->size);
    }
    ssize_t got = recv(c->fd, c->data + c->len, c->size - c->len, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN)) return -1;
    if (got < 0) return 0;
    c->len += got;
    if (serve(c) < 0) return -1;
  }
}

int main(int argc, char **argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: sink PORT\n");
    return 2;
  }
  struct rlimit files;
  check(getrlimit(RLIMIT_NOFILE, &files), "getrlimit");
  files.rlim_cur = files.rlim_max;
  check(setrlimit(RLIMIT_NOFILE, &files), "setrlimit");
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), on = 1;
  check(listener, "socket");
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  check(bind(listener, (struct sockaddr *)&address, sizeof address), "bind");
  check(listen(listener, 4096), "listen");
  int poll = epoll_create1(0);
  check(poll, "epoll_create1");
  struct epoll_event event = {.events = EPOLLIN};
  check(epoll_ctl(poll, EPOLL_CTL_ADD, listener, &event), "epoll_ctl");
  printf("sink is ready\n"), fflush(stdout);
  for (;;) {
    struct epoll_event events[256];
    int count = epoll_wait(poll, events, 256, -1);
    if (count < 0 && errno == EINTR) continue;
    check(count, "epoll_wait");
    for (int i = 0; i < count; i++) {
      struct connection *c = events[i].data.ptr;
      if (c) {
        if (receive(c) < 0) close(c->fd), free(c->data), free(c);
        continue;
      }
      int fd;
      while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        c = calloc(1, sizeof *c);
        c->fd = fd, c->size = FIRST_BUFFER, c->data = malloc(c->size);
        event = (struct epoll_event){.events = EPOLLIN, .data.ptr = c};
        check(epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
      }
    }
  }
}
