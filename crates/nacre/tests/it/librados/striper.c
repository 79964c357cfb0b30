/* Striped objects as users' programs use them, compiled with Ceph's headers and linked with Ceph's libraries; run with
 * ours by tests/it/librados.rs. Its first argument is a pool. */

#include "check.h"
#include <radosstriper/libradosstriper.h>
#include <time.h>

static rados_striper_t striper;

#define UNIT 65536

static void fill(char *buf, size_t len, int seed)
{
	for (size_t i = 0; i < len; i++)
		buf[i] = (char)((i * 31 + i / 251 + (size_t)seed) % 253 + 1);
}

static void layouts(void)
{
	rados_striper_t other;
	uint64_t size;
	time_t mtime;
	char buf[16];

	EQUAL(rados_striper_create(NULL, &other), -EINVAL);
	EQUAL(rados_striper_create(io, NULL), -EINVAL);
	EQUAL(rados_striper_create(io, &other), 0);
	EQUAL(rados_striper_set_object_layout_stripe_unit(other, 0), -EINVAL);
	EQUAL(rados_striper_set_object_layout_stripe_unit(other, 65537), -EINVAL);
	EQUAL(rados_striper_set_object_layout_stripe_count(other, 0), -EINVAL);
	EQUAL(rados_striper_set_object_layout_object_size(other, 6 << 20), -EINVAL);
	EQUAL(rados_striper_set_object_layout_object_size(other, 4 << 20), 0);
	/* The default object size does not hold such a unit. */
	EQUAL(rados_striper_set_object_layout_stripe_unit(other, 8 << 20), 0);
	EQUAL(rados_striper_write(other, "unfit", "x", 1, 0), -EINVAL);
	EQUAL(rados_striper_set_object_layout_object_size(other, 24 << 20), 0);
	EQUAL(rados_striper_write(other, "fit", "x", 1, 0), 0);
	EQUAL(rados_striper_read(striper, "fit", buf, sizeof(buf), 0), 1);
	EQUAL(rados_striper_getxattr(striper, "fit", "striper.layout.object_size", buf, sizeof(buf)), 8);
	EXPECT(!memcmp(buf, "25165824", 8));
	EQUAL(rados_striper_remove(striper, "fit"), 0);
	EQUAL(rados_striper_stat(striper, "fit", &size, &mtime), -ENOENT);
	rados_striper_destroy(other);
	rados_striper_destroy(other);
	EQUAL(rados_striper_write(other, "o", "x", 1, 0), -EINVAL);
	EQUAL(rados_striper_write(io, "o", "x", 1, 0), -EINVAL);
	EQUAL(rados_striper_write(NULL, "o", "x", 1, 0), -EINVAL);
	EQUAL(rados_striper_write(striper, NULL, "x", 1, 0), -EINVAL);
	EQUAL(rados_striper_write(striper, "o", NULL, 1, 0), -EINVAL);
}

static void contents(void)
{
	size_t len = 9 * UNIT + 17;
	char *data = malloc(len), *back = malloc(2 * len);
	uint64_t size;
	time_t mtime, now = time(NULL);

	fill(data, len, 1);
	EQUAL(rados_striper_read(striper, "o", back, len, 0), -ENOENT);
	EQUAL(rados_striper_trunc(striper, "o", 0), -ENOENT);
	EQUAL(rados_striper_remove(striper, "o"), -ENOENT);
	EQUAL(rados_striper_write(striper, "o", data, len, 0), 0);
	EQUAL(rados_striper_read(striper, "o", back, 2 * len, 0), len);
	EXPECT(!memcmp(data, back, len));
	EQUAL(rados_striper_read(striper, "o", back, 100, len - 7), 7);
	EQUAL(rados_striper_read(striper, "o", back, 100, len), 0);
	EQUAL(rados_striper_read(striper, "o", back, 100, 1ULL << 40), 0);
	EQUAL(rados_striper_stat(striper, "o", &size, &mtime), 0);
	EXPECT(size == len && mtime >= now - 60 && mtime <= now + 60);

	/* Inside, across units, not beyond the end. */
	fill(data + UNIT - 5, UNIT + 10, 2);
	EQUAL(rados_striper_write(striper, "o", data + UNIT - 5, UNIT + 10, UNIT - 5), 0);
	EQUAL(rados_striper_append(striper, "o", "tail", 4), 0);
	EQUAL(rados_striper_read(striper, "o", back, 2 * len, 0), len + 4);
	EXPECT(!memcmp(data, back, len) && !memcmp(back + len, "tail", 4));

	/* Holes are zeros, cut off and grown again too. */
	EQUAL(rados_striper_trunc(striper, "o", 100), 0);
	EQUAL(rados_striper_trunc(striper, "o", 3 * UNIT), 0);
	EQUAL(rados_striper_write(striper, "o", "x", 1, 5 * UNIT), 0);
	EQUAL(rados_striper_read(striper, "o", back, 2 * len, 0), 5 * UNIT + 1);
	EXPECT(!memcmp(data, back, 100) && back[5 * UNIT] == 'x');
	for (size_t i = 100; i < 5 * UNIT; i++)
		EXPECT(!back[i]);

	EQUAL(rados_striper_write_full(striper, "o", "short", 5), 0);
	EQUAL(rados_striper_read(striper, "o", back, 2 * len, 0), 5);
	EXPECT(!memcmp(back, "short", 5));
	EQUAL(rados_striper_remove(striper, "o"), 0);
	EQUAL(rados_striper_read(striper, "o", back, 1, 0), -ENOENT);
	free(data);
	free(back);
}

static void attributes(void)
{
	rados_xattrs_iter_t iter;
	const char *name, *value;
	char buf[16];
	size_t len;
	int seen = 0;

	EQUAL(rados_striper_setxattr(striper, "a", "user", "1", 1), -ENOENT);
	EQUAL(rados_striper_write(striper, "a", "data", 4, 0), 0);
	EQUAL(rados_striper_setxattr(striper, "a", "user", "value", 5), 0);
	EQUAL(rados_striper_setxattr(striper, "a", "other", "", 0), 0);
	EQUAL(rados_striper_setxattr(striper, "a", "striper.size", "9", 1), -EINVAL);
	EQUAL(rados_striper_getxattr(striper, "a", "user", buf, sizeof(buf)), 5);
	EXPECT(!memcmp(buf, "value", 5));
	EQUAL(rados_striper_getxattr(striper, "a", "user", buf, 4), -ERANGE);
	EQUAL(rados_striper_getxattr(striper, "a", "none", buf, sizeof(buf)), -ENODATA);
	EQUAL(rados_striper_getxattrs(striper, "a", &iter), 0);
	for (;;) {
		EQUAL(rados_striper_getxattrs_next(iter, &name, &value, &len), 0);
		if (!name)
			break;
		EXPECT(strncmp(name, "striper.", 8));
		seen++;
	}
	rados_striper_getxattrs_end(iter);
	EQUAL(seen, 2);
	EQUAL(rados_striper_rmxattr(striper, "a", "user"), 0);
	EQUAL(rados_striper_getxattr(striper, "a", "user", buf, sizeof(buf)), -ENODATA);
	EQUAL(rados_striper_remove(striper, "a"), 0);
}

static int called;

static void count(rados_completion_t c, void *arg)
{
	/* A callback may use the library, and wait for it. */
	uint64_t size;
	time_t mtime;
	(void)c;
	EQUAL(rados_striper_stat(striper, arg, &size, &mtime), 0);
	__atomic_add_fetch(&called, 1, __ATOMIC_SEQ_CST);
}

static void asynchronous(void)
{
	enum { DEPTH = 32 };
	char *data = malloc(DEPTH * UNIT), *back = malloc(DEPTH * UNIT);
	rados_completion_t c[DEPTH], one;
	uint64_t size;
	time_t mtime;

	fill(data, DEPTH * UNIT, 3);
	for (int i = 0; i < DEPTH; i++) {
		EQUAL(rados_aio_create_completion("aio", count, NULL, &c[i]), 0);
		EQUAL(rados_striper_aio_write(striper, "aio", c[i], data + i * UNIT, UNIT, (uint64_t)i * UNIT), 0);
	}
	rados_striper_aio_flush(striper);
	EQUAL(called, DEPTH);
	for (int i = 0; i < DEPTH; i++) {
		EQUAL(rados_aio_is_safe_and_cb(c[i]), 1);
		EQUAL(rados_aio_get_return_value(c[i]), 0);
		rados_aio_release(c[i]);
	}
	for (int i = 0; i < DEPTH; i++) {
		EQUAL(rados_aio_create_completion(NULL, NULL, NULL, &c[i]), 0);
		EQUAL(rados_striper_aio_read(striper, "aio", c[i], back + i * UNIT, UNIT, (uint64_t)i * UNIT), 0);
	}
	for (int i = 0; i < DEPTH; i++) {
		rados_aio_wait_for_complete(c[i]);
		EQUAL(rados_aio_get_return_value(c[i]), UNIT);
		rados_aio_release(c[i]);
	}
	EXPECT(!memcmp(data, back, DEPTH * UNIT));

	/* Appends in flight lie side by side, in the order in which they were started. */
	for (int i = 0; i < DEPTH; i++) {
		EQUAL(rados_aio_create_completion(NULL, NULL, NULL, &c[i]), 0);
		EQUAL(rados_striper_aio_append(striper, "log", c[i], data + i * 1000, 1000), 0);
	}
	for (int i = 0; i < DEPTH; i++) {
		rados_aio_wait_for_safe(c[i]);
		EQUAL(rados_aio_get_return_value(c[i]), 0);
		rados_aio_release(c[i]);
	}
	EQUAL(rados_striper_read(striper, "log", back, DEPTH * UNIT, 0), DEPTH * 1000);
	EXPECT(!memcmp(data, back, DEPTH * 1000));

	EQUAL(rados_aio_create_completion(NULL, NULL, NULL, &one), 0);
	EQUAL(rados_striper_aio_stat(striper, "log", one, &size, &mtime), 0);
	rados_aio_wait_for_complete(one);
	EQUAL(rados_aio_get_return_value(one), 0);
	EXPECT(size == DEPTH * 1000);
	EQUAL(rados_striper_aio_stat(striper, "log", one, &size, &mtime), -EINVAL);
	rados_aio_release(one);
	EQUAL(rados_striper_aio_stat(striper, "log", NULL, &size, &mtime), -EINVAL);

	EQUAL(rados_aio_create_completion(NULL, NULL, NULL, &one), 0);
	EQUAL(rados_striper_aio_write_full(striper, "log", one, "new", 3), 0);
	rados_aio_wait_for_complete(one);
	EQUAL(rados_aio_get_return_value(one), 0);
	rados_aio_release(one);
	EQUAL(rados_striper_read(striper, "log", back, 100, 0), 3);
	const char *gone[] = {"log", "aio", "log"};
	for (int i = 0; i < 3; i++) {
		EQUAL(rados_aio_create_completion(NULL, NULL, NULL, &one), 0);
		EQUAL(rados_striper_aio_remove(striper, gone[i], one), 0);
		rados_aio_wait_for_complete(one);
		EQUAL(rados_aio_get_return_value(one), i == 2 ? -ENOENT : 0);
		rados_aio_release(one);
	}
	free(data);
	free(back);
}

static void sets(void)
{
	rados_striper_multi_completion_t set;

	EQUAL(rados_striper_multi_aio_create_completion(NULL, NULL, NULL, &set), 0);
	rados_striper_multi_aio_wait_for_complete(set);
	rados_striper_multi_aio_wait_for_safe(set);
	rados_striper_multi_aio_wait_for_complete_and_cb(set);
	rados_striper_multi_aio_wait_for_safe_and_cb(set);
	EQUAL(rados_striper_multi_aio_is_complete(set), 1);
	EQUAL(rados_striper_multi_aio_is_safe(set), 1);
	EQUAL(rados_striper_multi_aio_is_complete_and_cb(set), 1);
	EQUAL(rados_striper_multi_aio_is_safe_and_cb(set), 1);
	EQUAL(rados_striper_multi_aio_get_return_value(set), 0);
	rados_striper_multi_aio_release(set);
	EQUAL(rados_striper_multi_aio_is_complete(set), -EINVAL);
}

int main(int argc, char **argv)
{
	begin(argc, argv);
	EQUAL(rados_striper_create(io, &striper), 0);
	EQUAL(rados_striper_set_object_layout_stripe_unit(striper, UNIT), 0);
	EQUAL(rados_striper_set_object_layout_stripe_count(striper, 3), 0);
	EQUAL(rados_striper_set_object_layout_object_size(striper, 2 * UNIT), 0);
	layouts();
	contents();
	attributes();
	asynchronous();
	sets();
	/* The context's namespace is the striper's. */
	char buf[4];
	rados_ioctx_set_namespace(io, "elsewhere");
	EQUAL(rados_striper_write(striper, "n", "x", 1, 0), 0);
	rados_ioctx_set_namespace(io, "");
	EQUAL(rados_striper_read(striper, "n", buf, sizeof(buf), 0), -ENOENT);
	rados_ioctx_set_namespace(io, "elsewhere");
	EQUAL(rados_striper_read(striper, "n", buf, sizeof(buf), 0), 1);
	EQUAL(rados_striper_remove(striper, "n"), 0);
	rados_striper_destroy(striper);
	return end();
}
