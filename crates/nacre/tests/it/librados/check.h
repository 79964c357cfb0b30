/* What every program of this folder begins with: a session with the cluster, a context on the pool that the first
 * argument names, and two ways to insist. */

#include <errno.h>
#include <rados/librados.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static rados_t cluster;
static rados_ioctx_t io;
static const char *pool;

#define EXPECT(condition)                                                               \
	do {                                                                            \
		if (!(condition)) {                                                     \
			fprintf(stderr, "line %d: not so: %s\n", __LINE__, #condition); \
			exit(1);                                                        \
		}                                                                       \
	} while (0)

#define EQUAL(call, wanted)                                                                                 \
	do {                                                                                                \
		long long got_ = (call), wanted_ = (wanted);                                                \
		if (got_ != wanted_) {                                                                      \
			fprintf(stderr, "line %d: %s is %lld, not %lld\n", __LINE__, #call, got_, wanted_); \
			exit(1);                                                                            \
		}                                                                                           \
	} while (0)

static inline void begin(int argc, char **argv)
{
	EQUAL(argc, 2);
	pool = argv[1];
	EQUAL(rados_create(&cluster, "admin"), 0);
	EQUAL(rados_conf_read_file(cluster, NULL), 0);
	EQUAL(rados_connect(cluster), 0);
	EQUAL(rados_ioctx_create(cluster, pool, &io), 0);
}

static inline int end(void)
{
	rados_ioctx_destroy(io);
	rados_shutdown(cluster);
	puts("done");
	return 0;
}
