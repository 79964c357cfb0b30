/* Every operation that a completion tells of, with its results and its errors. Run by tests/it/librados.rs. */

#include "check.h"
#include <time.h>

static rados_completion_t c;

/* Takes a completion for the next operation. */
static rados_completion_t taken(void)
{
	EQUAL(rados_aio_create_completion2(NULL, NULL, &c), 0);
	return c;
}

/* Waits for it; what it returned. */
static int told(void)
{
	EQUAL(rados_aio_wait_for_complete(c), 0);
	EXPECT(rados_aio_is_complete(c) == 1 && rados_aio_is_safe(c) == 1);
	int result = rados_aio_get_return_value(c);
	rados_aio_release(c);
	return result;
}

static void objects(void)
{
	char buf[32];
	uint64_t size = 0;
	time_t mtime = 0, now = time(NULL);

	EQUAL(rados_aio_append(io, "a", taken(), "0123", 4), 0);
	EQUAL(told(), 0);
	EQUAL(rados_aio_append(io, "a", taken(), "4567", 4), 0);
	EQUAL(told(), 0);
	EQUAL(rados_aio_writesame(io, "a", taken(), "xy", 2, 4, 2), 0);
	EQUAL(told(), 0);
	EQUAL(rados_aio_writesame(io, "a", taken(), "xy", 2, 5, 2), -EINVAL);
	rados_aio_release(c);
	EQUAL(rados_aio_read(io, "a", taken(), buf, sizeof(buf), 0), 0);
	EQUAL(told(), 8);
	EXPECT(!memcmp(buf, "01xyxy67", 8));
	EQUAL(rados_aio_read(io, "a", taken(), buf, sizeof(buf), 100), 0);
	EQUAL(told(), 0);
	EQUAL(rados_aio_read(io, "none", taken(), buf, sizeof(buf), 0), 0);
	EQUAL(told(), -ENOENT);
	EQUAL(rados_aio_cmpext(io, "a", taken(), "xy", 2, 2), 0);
	EQUAL(told(), 0);
	EQUAL(rados_aio_cmpext(io, "a", taken(), "xz", 2, 2), 0);
	EQUAL(told(), -4095 - 1);
	EQUAL(rados_aio_stat(io, "a", taken(), &size, &mtime), 0);
	EQUAL(told(), 0);
	EXPECT(size == 8 && mtime >= now - 60 && mtime <= now + 60);
	EQUAL(rados_aio_stat(io, "a", taken(), NULL, NULL), 0);
	EQUAL(told(), 0);
	EQUAL(rados_aio_stat(io, "none", taken(), &size, &mtime), 0);
	EQUAL(told(), -ENOENT);
	EQUAL(rados_aio_exec(io, "a", taken(), "hello", "say_hello", "you", 3, buf, sizeof(buf)), 0);
	EQUAL(told(), 11);
	EXPECT(!memcmp(buf, "Hello, you!", 11));
	EQUAL(rados_aio_exec(io, "a", taken(), "hello", "say_hello", "you", 3, buf, 10), 0);
	EQUAL(told(), -ERANGE);
	EQUAL(rados_aio_exec(io, "a", taken(), "no_such_class", "x", NULL, 0, buf, 10), 0);
	EQUAL(told(), -EOPNOTSUPP);
	EQUAL(rados_aio_remove(io, "a", taken()), 0);
	EQUAL(told(), 0);
	EQUAL(rados_aio_remove(io, "a", taken()), 0);
	EQUAL(told(), -ENOENT);
}

static void attributes(void)
{
	char buf[8];
	const char *name, *value;
	size_t len;
	rados_xattrs_iter_t iter;

	EQUAL(rados_aio_setxattr(io, "x", taken(), "k", "value", 5), 0);
	EQUAL(told(), 0);
	EQUAL(rados_aio_getxattr(io, "x", taken(), "k", buf, sizeof(buf)), 0);
	EQUAL(told(), 5);
	EXPECT(!memcmp(buf, "value", 5));
	EQUAL(rados_aio_getxattr(io, "x", taken(), "k", buf, 4), 0);
	EQUAL(told(), -ERANGE);
	EQUAL(rados_aio_getxattrs(io, "x", taken(), &iter), 0);
	EQUAL(told(), 0);
	EQUAL(rados_getxattrs_next(iter, &name, &value, &len), 0);
	EXPECT(!strcmp(name, "k") && len == 5 && !memcmp(value, "value", 5));
	EQUAL(rados_getxattrs_next(iter, &name, &value, &len), 0);
	EXPECT(!name);
	rados_getxattrs_end(iter);
	EQUAL(rados_aio_rmxattr(io, "x", taken(), "k"), 0);
	EQUAL(told(), 0);
	EQUAL(rados_aio_getxattr(io, "x", taken(), "k", buf, sizeof(buf)), 0);
	EQUAL(told(), -ENODATA);
	EQUAL(rados_aio_rmxattr(io, "none", taken(), "k"), 0);
	EQUAL(told(), -ENOENT);
}

static void compounds(void)
{
	char buf[8];
	size_t got = 0;
	int code = 1;
	uint64_t size;
	time_t when = 1000000000, mtime = 0;

	rados_write_op_t write = rados_create_write_op();
	rados_write_op_write_full(write, "abc", 3);
	EQUAL(rados_aio_write_op_operate(write, io, taken(), "c", &when, 0), 0);
	rados_release_write_op(write);
	EQUAL(told(), 0);
	EQUAL(rados_stat(io, "c", &size, &mtime), 0);
	EXPECT(size == 3 && mtime == when);

	rados_read_op_t read = rados_create_read_op();
	rados_read_op_read(read, 0, sizeof(buf), buf, &got, &code);
	EQUAL(rados_aio_read_op_operate(read, io, taken(), "c", 0), 0);
	EQUAL(told(), 0);
	rados_release_read_op(read);
	EXPECT(got == 3 && code == 0 && !memcmp(buf, "abc", 3));
	read = rados_create_read_op();
	rados_read_op_read(read, 0, sizeof(buf), buf, &got, &code);
	EQUAL(rados_aio_read_op_operate(read, io, taken(), "none", 0), 0);
	EQUAL(told(), -ENOENT);
	rados_release_read_op(read);
	EQUAL(code, -ENOENT);
	write = rados_create_write_op();
	rados_write_op_create(write, LIBRADOS_CREATE_EXCLUSIVE, NULL);
	EQUAL(rados_aio_write_op_operate(write, io, taken(), "c", NULL, 0), 0);
	rados_release_write_op(write);
	EQUAL(told(), -EEXIST);
	/* Nothing to do is done. */
	write = rados_create_write_op();
	EQUAL(rados_aio_write_op_operate(write, io, taken(), "none", NULL, 0), 0);
	rados_release_write_op(write);
	EQUAL(told(), 0);

	EQUAL(rados_lock_exclusive(io, "c", "lock", "cookie", "", NULL, 0), 0);
	EQUAL(rados_aio_unlock(io, "c", "lock", "cookie", taken()), 0);
	EQUAL(told(), 0);
	EQUAL(rados_aio_unlock(io, "c", "lock", "cookie", taken()), 0);
	EQUAL(told(), -ENOENT);
}

static int calls, slow;

static void on_complete(rados_completion_t completion, void *arg)
{
	(void)completion;
	(void)arg;
	/* Long enough for whoever does not wait for it to be seen. */
	usleep(20000);
	__atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
}

static void on_flushed(rados_completion_t completion, void *arg)
{
	(void)completion;
	/* Those before it have been called. */
	__atomic_store_n((int *)arg, __atomic_load_n(&calls, __ATOMIC_SEQ_CST), __ATOMIC_SEQ_CST);
}

static void on_complete_flush(rados_completion_t completion, void *arg)
{
	(void)completion;
	(void)arg;
	/* It does not wait for itself. */
	EQUAL(rados_aio_flush(io), 0);
	__atomic_add_fetch(&slow, 1, __ATOMIC_SEQ_CST);
}

static void callbacks(void)
{
	rados_completion_t flushed;
	int seen = 0;

	/* A completion has two callbacks, both of which mean the same. */
	EQUAL(rados_aio_create_completion(NULL, on_complete, on_complete, &c), 0);
	EQUAL(rados_aio_write(io, "o", c, "x", 1, 0), 0);
	EQUAL(rados_aio_wait_for_safe_and_cb(c), 0);
	EXPECT(rados_aio_is_complete_and_cb(c) == 1 && rados_aio_is_safe_and_cb(c) == 1);
	EQUAL(calls, 2);
	rados_aio_release(c);

	/* Who has flushed finds that callbacks have returned. */
	for (int n = 0; n < 5; n++) {
		EQUAL(rados_aio_create_completion2(NULL, on_complete, &c), 0);
		EQUAL(rados_aio_write(io, "o", c, "x", 1, 0), 0);
		rados_aio_release(c);
	}
	EQUAL(rados_aio_flush(io), 0);
	EQUAL(calls, 7);
	for (int n = 0; n < 3; n++) {
		EQUAL(rados_aio_create_completion2(NULL, on_complete, &c), 0);
		EQUAL(rados_aio_write(io, "o", c, "x", 1, 0), 0);
		rados_aio_release(c);
	}
	EQUAL(rados_aio_create_completion2(&seen, on_flushed, &flushed), 0);
	EQUAL(rados_aio_flush_async(io, flushed), 0);
	EQUAL(rados_aio_wait_for_complete_and_cb(flushed), 0);
	EQUAL(rados_aio_get_return_value(flushed), 0);
	rados_aio_release(flushed);
	EQUAL(seen, 10);

	EQUAL(rados_aio_create_completion2(NULL, on_complete_flush, &c), 0);
	EQUAL(rados_aio_write(io, "o", c, "x", 1, 0), 0);
	EQUAL(rados_aio_wait_for_complete_and_cb(c), 0);
	rados_aio_release(c);
	EQUAL(slow, 1);
	/* Nothing in flight. */
	EQUAL(rados_aio_flush(io), 0);
	EQUAL(rados_aio_flush_async(io, taken()), 0);
	EQUAL(told(), 0);

	EQUAL(rados_aio_create_completion2(NULL, NULL, NULL), -EINVAL);
	EQUAL(rados_aio_write(io, "o", NULL, "x", 1, 0), -EINVAL);
	EQUAL(rados_aio_write(NULL, "o", taken(), "x", 1, 0), -EINVAL);
	/* It was not used: another operation may. */
	EQUAL(rados_aio_write(io, "o", c, "x", 1, 0), 0);
	EQUAL(told(), 0);
	EQUAL(rados_aio_write(io, "o", taken(), "x", (size_t)1 << 40, 0), -E2BIG);
	EQUAL(rados_aio_append(io, "o", c, "x", (size_t)1 << 40), -E2BIG);
	EQUAL(rados_aio_write_full(io, "o", c, "x", (size_t)1 << 40), -E2BIG);
	EQUAL(rados_aio_read(io, "o", c, NULL, (size_t)1 << 40, 0), -EDOM);
	rados_aio_release(c);
}

/* Cancels in a race with operations that end: nothing is written where it was cancelled. */
static void cancelled(void)
{
	int got = 0;
	char *buf = malloc(4096);
	EQUAL(rados_write_full(io, "o", "0123456789", 10), 0);
	for (int n = 0; n < 200; n++) {
		memset(buf, 0, 10);
		EQUAL(rados_aio_read(io, "o", taken(), buf, 10, 0), 0);
		for (volatile int spin = n * 100; spin > 0; spin--)
			;
		int cancel = rados_aio_cancel(io, c);
		if (cancel == 0) {
			EXPECT(buf[0] == 0);
			EQUAL(told(), -ECANCELED);
			/* The buffer is the caller's again. */
			free(buf);
			buf = malloc(4096);
			got++;
		} else {
			EQUAL(cancel, -ENOENT);
			EQUAL(told(), 10);
			EXPECT(!memcmp(buf, "0123456789", 10));
		}
	}
	free(buf);
	EXPECT(got > 0);
}

static void on_notify(void *arg, uint64_t notify_id, uint64_t cookie, uint64_t notifier, void *data, size_t len)
{
	(void)notifier;
	(void)data;
	(void)len;
	EQUAL(rados_notify_ack(arg, "o", notify_id, cookie, NULL, 0), 0);
	__atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
}

static void watches(void)
{
	uint64_t cookie = 0;
	calls = 0;
	EQUAL(rados_aio_watch(io, "none", taken(), &cookie, on_notify, NULL, io), 0);
	EQUAL(told(), -ENOENT);
	EQUAL(rados_aio_watch(io, "o", taken(), &cookie, on_notify, NULL, io), 0);
	EQUAL(told(), 0);
	EXPECT(cookie != 0);
	EQUAL(rados_notify2(io, "o", "x", 1, 10000, NULL, NULL), 0);
	EQUAL(rados_aio_notify(io, "o", taken(), "x", 1, 10000, NULL, NULL), 0);
	EQUAL(told(), 0);
	EQUAL(rados_aio_unwatch(io, cookie, taken()), 0);
	EQUAL(told(), 0);
	EQUAL(rados_watch_flush(cluster), 0);
	EQUAL(calls, 2);
}

int main(int argc, char **argv)
{
	begin(argc, argv);
	objects();
	attributes();
	compounds();
	callbacks();
	cancelled();
	watches();
	return end();
}
