/* A program as users write them, compiled with Ceph's header and linked with Ceph's library; run with ours by
 * tests/it/librados.rs. Its first argument is a pool. */

#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>

static void handles(void)
{
	rados_t other;
	rados_ioctx_t none = NULL;
	char buf[64];

	EQUAL(rados_connect(NULL), -EINVAL);
	rados_shutdown(NULL);
	EQUAL(rados_create2(&other, "ceph", "not an entity", 0), -EINVAL);
	EQUAL(rados_create(&other, NULL), 0);
	EQUAL(rados_ioctx_create(other, pool, &none), -ENOTCONN);
	EQUAL(rados_cluster_fsid(other, buf, sizeof(buf)), 36);
	EXPECT(!strcmp(buf, "00000000-0000-0000-0000-000000000000"));
	EQUAL(rados_conf_get(other, "client_mount_timeout", buf, 2), -ENAMETOOLONG);
	EQUAL(rados_conf_get(other, "client_mount_timeout", buf, sizeof(buf)), 0);
	EQUAL(atoi(buf), 300);
	const char *argv[] = {"program", "--client_mount_timeout=9", "rest"};
	EQUAL(rados_conf_parse_argv(other, 3, argv), 0);
	EQUAL(rados_conf_get(other, "client_mount_timeout", buf, sizeof(buf)), 0);
	EQUAL(atoi(buf), 9);
	rados_t twin;
	EQUAL(rados_create_with_context(&twin, rados_cct(other)), 0);
	EQUAL(rados_conf_get(twin, "client_mount_timeout", buf, sizeof(buf)), 0);
	EQUAL(atoi(buf), 9);
	rados_shutdown(twin);
	rados_shutdown(other);
	rados_shutdown(other);
	EQUAL(rados_connect(other), -EINVAL);
	EQUAL(rados_connect(cluster), -EISCONN);

	EQUAL(rados_ioctx_create(cluster, pool, &none), 0);
	rados_ioctx_destroy(none);
	rados_ioctx_destroy(none);
	EQUAL(rados_write(none, "o", "x", 1, 0), -EINVAL);
	EQUAL(rados_write(cluster, "o", "x", 1, 0), -EINVAL);
	EQUAL(rados_write(NULL, "o", "x", 1, 0), -EINVAL);
	EQUAL(rados_write(io, NULL, "x", 1, 0), -EINVAL);
	EQUAL(rados_write(io, "o", NULL, 1, 0), -EINVAL);
	EQUAL(rados_cluster_fsid(cluster, buf, 36), -ERANGE);
	EQUAL(rados_cluster_fsid(cluster, buf, 37), 36);
	EQUAL(rados_ioctx_get_pool_name(io, buf, 2), -ERANGE);
	EQUAL(rados_ioctx_get_pool_name(io, buf, sizeof(buf)), strlen(pool));
	EXPECT(rados_ioctx_get_cluster(io) == cluster);
	EQUAL(rados_ioctx_get_id(io), rados_pool_lookup(cluster, pool));
	EQUAL(rados_pool_lookup(cluster, "none"), -ENOENT);
	int req = 7;
	uint64_t alignment = 7;
	EQUAL(rados_ioctx_pool_requires_alignment2(io, &req), 0);
	EQUAL(rados_ioctx_pool_required_alignment2(io, &alignment), 0);
	EXPECT(req == 0 && alignment == 0);
	int8_t min = 0, require = 0;
	EQUAL(rados_get_min_compatible_client(cluster, &min, &require), 0);
	EXPECT(min > 0 && require > 0);
	EQUAL(rados_get_min_compatible_osd(cluster, &min), 0);
	EQUAL(min, 16);
}

static void data(void)
{
	char buf[64];
	uint64_t size = 0;
	time_t mtime = 0;

	EQUAL(rados_read(io, "none", buf, sizeof(buf), 0), -ENOENT);
	EQUAL(rados_stat(io, "none", &size, &mtime), -ENOENT);
	EQUAL(rados_write(io, "o", "0123456789", 10, 0), 0);
	EQUAL(rados_read(io, "o", buf, 4, 8), 2);
	EQUAL(rados_read(io, "o", buf, 4, 10), 0);
	EQUAL(rados_read(io, "o", buf, 4, 1000), 0);
	EQUAL(rados_read(io, "o", buf, (size_t)1 << 40, 0), -EDOM);
	EQUAL(rados_write(io, "o", buf, (size_t)1 << 40, 0), -E2BIG);
	EQUAL(rados_trunc(io, "o", (uint64_t)1 << 40), -E2BIG);
	EQUAL(rados_stat(io, "o", &size, NULL), 0);
	EQUAL(size, 10);
	EQUAL(rados_getxattr(io, "o", "a", buf, sizeof(buf)), -ENODATA);
	EQUAL(rados_setxattr(io, "o", "a", "value", 5), 0);
	EQUAL(rados_getxattr(io, "o", "a", buf, 4), -ERANGE);
	EQUAL(rados_getxattr(io, "o", "a", buf, 5), 5);
	EQUAL(rados_set_alloc_hint2(io, "o", 4096, 512, LIBRADOS_ALLOC_HINT_FLAG_IMMUTABLE), 0);
	EQUAL(rados_cache_pin(io, "o"), -EINVAL);

	EQUAL(rados_cmpext(io, "o", "0123", 4, 0), 0);
	EQUAL(rados_cmpext(io, "o", "01x3", 4, 0), -4095 - 2);
	struct { uint32_t count, crc[2]; } sums;
	uint32_t init = (uint32_t)-1;
	EQUAL(rados_checksum(io, "o", LIBRADOS_CHECKSUM_TYPE_CRC32C, (char *)&init, 4, 10, 0, 5, (char *)&sums, 8), -ERANGE);
	EQUAL(rados_checksum(io, "o", LIBRADOS_CHECKSUM_TYPE_CRC32C, (char *)&init, 4, 10, 0, 5, (char *)&sums, sizeof(sums)), 0);
	EXPECT(sums.count == 2 && sums.crc[0] != sums.crc[1]);
	EQUAL(rados_checksum(io, "o", LIBRADOS_CHECKSUM_TYPE_CRC32C, (char *)&init, 8, 10, 0, 5, (char *)&sums, sizeof(sums)), -EINVAL);

	/* The structure grew in Ceph 14.2; the version of the symbol tells which one is meant. */
	struct { struct rados_pool_stat_t stat; uint64_t guard; } stat;
	memset(&stat, 0x55, sizeof(stat));
	EQUAL(rados_ioctx_pool_stat(io, &stat.stat), 0);
	EXPECT(stat.stat.compressed_bytes_alloc == 0 && stat.guard == 0x5555555555555555);
}

static void locks(void)
{
	struct timeval minute = {60, 0};
	int exclusive = 7;
	char tag[8], clients[64], cookies[8], addrs[64];
	size_t tag_len = sizeof(tag), clients_len = sizeof(clients), cookies_len = 1, addrs_len = sizeof(addrs);

	EQUAL(rados_lock_exclusive(io, "o", "lock", "c1", "why", &minute, 0), 0);
	EQUAL(rados_lock_exclusive(io, "o", "lock", "c1", "why", NULL, 0), -EEXIST);
	EQUAL(rados_lock_exclusive(io, "o", "lock", "c1", "why", NULL, LIBRADOS_LOCK_FLAG_MAY_RENEW), 0);
	EQUAL(rados_lock_shared(io, "o", "lock", "c2", "t", "", NULL, 0), -EBUSY);
	EQUAL(rados_list_lockers(io, "o", "lock", &exclusive, tag, &tag_len, clients, &clients_len, cookies, &cookies_len,
				 addrs, &addrs_len), -ERANGE);
	EQUAL(cookies_len, 3);
	tag_len = sizeof(tag), clients_len = sizeof(clients), addrs_len = sizeof(addrs);
	EQUAL(rados_list_lockers(io, "o", "lock", &exclusive, tag, &tag_len, clients, &clients_len, cookies, &cookies_len,
				 addrs, &addrs_len), 1);
	char self[32];
	snprintf(self, sizeof(self), "client.%llu", (unsigned long long)rados_get_instance_id(cluster));
	EXPECT(exclusive == 1 && strcmp(cookies, "c1") == 0 && strcmp(clients, self) == 0 && addrs_len > 1);
	EQUAL(rados_unlock(io, "o", "lock", "c2"), -ENOENT);
	EQUAL(rados_unlock(io, "o", "lock", "c1"), 0);
	EQUAL(rados_lock_shared(io, "o", "lock", "c2", "t", "", NULL, 0), 0);
	EQUAL(rados_break_lock(io, "o", "lock", "nobody", "c2"), -EINVAL);
	EQUAL(rados_break_lock(io, "o", "lock", self, "c2"), 0);
	EQUAL(rados_unlock(io, "o", "lock", "c2"), -ENOENT);
}

static void operations(void)
{
	const char *keys[] = {"a\0b", "c"}, *vals[] = {"1\0", ""};
	size_t key_lens[] = {3, 1}, val_lens[] = {2, 0};
	char buf[8];
	size_t got = 0, key_len = 0, val_len = 0;
	int code = 1, cmp = 1;
	uint64_t size = 0;
	unsigned char more = 1;
	struct timespec when = {1000000000, 5};

	rados_write_op_t write = rados_create_write_op();
	rados_write_op_create(write, LIBRADOS_CREATE_EXCLUSIVE, NULL);
	rados_write_op_write_full(write, "abcdef", 6);
	rados_write_op_zero(write, 0, 1);
	rados_write_op_omap_set2(write, keys, vals, key_lens, val_lens, 2);
	EQUAL(rados_write_op_operate2(write, io, "op", &when, LIBRADOS_OPERATION_FULL_TRY), 0);
	/* What was carried out is used up. */
	EQUAL(rados_write_op_operate(write, io, "op", NULL, 0), 0);
	rados_release_write_op(write);
	rados_release_write_op(write);
	EQUAL(rados_write_op_operate(write, io, "op", NULL, 0), -EINVAL);

	rados_omap_iter_t iter;
	rados_xattrs_iter_t xattrs;
	rados_read_op_t read = rados_create_read_op();
	rados_read_op_assert_exists(read);
	rados_read_op_stat(read, &size, NULL, &code);
	rados_read_op_read(read, 0, sizeof(buf), buf, &got, &code);
	rados_read_op_omap_get_vals2(read, "", "", 10, &iter, &more, NULL);
	rados_read_op_getxattrs(read, &xattrs, NULL);
	rados_read_op_cmpext(read, "bcd", 3, 1, &cmp);
	rados_read_op_omap_cmp2(read, "a\0b", LIBRADOS_CMPXATTR_OP_EQ, "1\0", 3, 2, &cmp);
	EQUAL(rados_read_op_operate(read, io, "op", 0), 0);
	EXPECT(code == 0 && cmp == 0 && size == 6 && got == 6 && memcmp(buf, "\0bcdef", 6) == 0 && !more);
	EQUAL(rados_omap_iter_size(iter), 2);
	char *key, *val;
	EQUAL(rados_omap_get_next2(iter, &key, &val, &key_len, &val_len), 0);
	EXPECT(key_len == 3 && memcmp(key, "a\0b", 3) == 0 && val_len == 2);
	EQUAL(rados_omap_get_next2(iter, &key, &val, &key_len, &val_len), 0);
	EXPECT(key_len == 1 && val_len == 0);
	EQUAL(rados_omap_get_next2(iter, &key, &val, &key_len, &val_len), 0);
	EXPECT(key == NULL && val == NULL);
	rados_omap_get_end(iter);
	EQUAL(rados_omap_get_next2(iter, &key, &val, &key_len, &val_len), -EINVAL);
	const char *name;
	EQUAL(rados_getxattrs_next(xattrs, &name, (const char **)&val, &val_len), 0);
	EXPECT(name == NULL);
	rados_getxattrs_end(xattrs);
	rados_release_read_op(read);

	/* A buffer that is too small fails its part, not the operation. */
	read = rados_create_read_op();
	rados_read_op_assert_version(read, 1 << 30);
	rados_read_op_stat(read, &size, NULL, &code);
	EQUAL(rados_read_op_operate(read, io, "op", 0), -EOVERFLOW);
	EQUAL(code, -EOVERFLOW);
	rados_release_read_op(read);
	read = rados_create_read_op();
	rados_read_op_cmpxattr(read, "a", 99, "x", 1);
	EQUAL(rados_read_op_operate(read, io, "op", 0), -EINVAL);
	rados_release_read_op(read);

	write = rados_create_write_op();
	rados_write_op_assert_exists(write);
	rados_write_op_remove(write);
	EQUAL(rados_write_op_operate(write, io, "op", NULL, 0), 0);
	rados_release_write_op(write);
}

static void count(rados_completion_t completion, void *arg)
{
	/* The handle is good here though it was released, and a callback may wait for other operations. */
	EXPECT(rados_aio_is_complete(completion) == 1 && rados_aio_get_return_value(completion) == 0);
	uint64_t size;
	EQUAL(rados_stat(io, "o", &size, NULL), 0);
	__atomic_add_fetch((int *)arg, 1, __ATOMIC_SEQ_CST);
}

static void *writer(void *arg)
{
	int called = 0;
	char oid[32] = "";
	for (int n = 0; n < 100; n++) {
		rados_completion_t c;
		snprintf(oid, sizeof(oid), "t%ld.%d", (long)arg, n % 10);
		EQUAL(rados_aio_create_completion2(&called, count, &c), 0);
		EQUAL(rados_aio_write(io, oid, c, oid, sizeof(oid), 0), 0);
		rados_aio_release(c);
	}
	while (__atomic_load_n(&called, __ATOMIC_SEQ_CST) < 100)
		usleep(1000);
	return NULL;
}

static void asynchronous(void)
{
	rados_completion_t c, flushed;
	char buf[4];

	EQUAL(rados_aio_create_completion(NULL, NULL, NULL, &c), 0);
	EQUAL(rados_aio_is_complete(c), 0);
	EQUAL(rados_aio_cancel(io, c), -ENOENT);
	EQUAL(rados_aio_read(io, "o", c, buf, sizeof(buf), 2), 0);
	EQUAL(rados_aio_read(io, "o", c, buf, sizeof(buf), 2), -EINVAL);
	EQUAL(rados_aio_wait_for_complete(c), 0);
	EQUAL(rados_aio_get_return_value(c), 4);
	EXPECT(rados_aio_get_version(c) > 0 && memcmp(buf, "2345", 4) == 0);
	rados_aio_release(c);
	rados_aio_release(c);
	EQUAL(rados_aio_wait_for_complete(c), -EINVAL);

	EQUAL(rados_aio_create_completion2(NULL, NULL, &c), 0);
	EQUAL(rados_aio_create_completion2(NULL, NULL, &flushed), 0);
	EQUAL(rados_aio_write_full(io, "flushed", c, "x", 1), 0);
	EQUAL(rados_aio_flush_async(io, flushed), 0);
	EQUAL(rados_aio_wait_for_complete_and_cb(flushed), 0);
	EQUAL(rados_aio_is_safe(c), 1);
	rados_aio_release(flushed);
	rados_aio_release(c);

	EQUAL(rados_aio_create_completion2(NULL, NULL, &c), 0);
	EQUAL(rados_aio_write_full(io, "cancelled", c, "x", 1), 0);
	if (rados_aio_cancel(io, c) == 0)
		EQUAL(rados_aio_get_return_value(c), -ECANCELED);
	EQUAL(rados_aio_wait_for_complete_and_cb(c), 0);
	rados_aio_release(c);

	pthread_t threads[4];
	for (long n = 0; n < 4; n++)
		EQUAL(pthread_create(&threads[n], NULL, writer, (void *)n), 0);
	for (int n = 0; n < 4; n++)
		EQUAL(pthread_join(threads[n], NULL), 0);
	EQUAL(rados_aio_flush(io), 0);
}

/* Lists from one cursor to another, few at a time. */
static int listed(rados_object_list_cursor from, rados_object_list_cursor to)
{
	int found = 0;
	rados_object_list_cursor at = rados_object_list_begin(io), moved = at;
	rados_object_list_item items[7];
	EQUAL(rados_object_list(io, from, to, 0, NULL, 0, items, &at), 0);
	while (rados_object_list_cursor_cmp(io, at, to) < 0) {
		int some = rados_object_list(io, at, to, 7, NULL, 0, items, &at);
		EXPECT(some >= 0 && some <= 7);
		for (int n = 0; n < some; n++)
			EXPECT(strlen(items[n].oid) == items[n].oid_length && items[n].nspace_length == 5);
		/* All seven: those behind the last object are empty. */
		rados_object_list_free(7, items);
		found += some;
	}
	/* The calls move the cursor that they are given; what they would make nobody would free. */
	EXPECT(at == moved);
	rados_object_list_cursor_free(io, at);
	return found;
}

static void lists(void)
{
	char oid[16];
	rados_ioctx_set_namespace(io, "space");
	for (int n = 0; n < 100; n++) {
		snprintf(oid, sizeof(oid), "l%d", n);
		EQUAL(rados_write_full(io, oid, "x", 1), 0);
	}
	rados_object_list_cursor begin = rados_object_list_begin(io), end = rados_object_list_end(io);
	EXPECT(rados_object_list_is_end(io, end) && !rados_object_list_is_end(io, begin));
	EQUAL(listed(begin, end), 100);
	int found = 0;
	for (int n = 0; n < 3; n++) {
		rados_object_list_cursor from = rados_object_list_begin(io), to = rados_object_list_end(io);
		rados_object_list_cursor first = from, last = to;
		rados_object_list_slice(io, begin, end, n, 3, &from, &to);
		EXPECT(from == first && to == last);
		found += listed(from, to);
		rados_object_list_cursor_free(io, from);
		rados_object_list_cursor_free(io, to);
	}
	EQUAL(found, 100);
	/* Under valgrind: cursors that pile up are more than may be left at the end. */
	rados_object_list_cursor made = NULL;
	for (int n = 0; n < 4000; n++)
		EQUAL(rados_object_list(io, begin, end, 0, NULL, 0, NULL, &made), 0);
	EXPECT(rados_object_list_cursor_cmp(io, made, begin) == 0);
	rados_object_list_cursor_free(io, made);

	rados_list_ctx_t list;
	const char *entry, *key, *nspace;
	size_t entry_size;
	EQUAL(rados_nobjects_list_open(io, &list), 0);
	for (int n = 0; n < 50; n++)
		EQUAL(rados_nobjects_list_next(list, &entry, &key, &nspace), 0);
	EXPECT(key == NULL && strcmp(nspace, "space") == 0);
	rados_object_list_cursor middle;
	EQUAL(rados_nobjects_list_get_cursor(list, &middle), 0);
	rados_nobjects_list_seek(list, 0);
	for (int n = 0; n < 100; n++)
		EQUAL(rados_nobjects_list_next2(list, &entry, &key, &nspace, &entry_size, NULL, NULL), 0);
	EXPECT(entry_size == strlen(entry));
	EQUAL(rados_nobjects_list_next(list, &entry, &key, &nspace), -ENOENT);
	rados_nobjects_list_seek_cursor(list, middle);
	for (int n = 0; n < 50; n++)
		EQUAL(rados_nobjects_list_next(list, &entry, &key, &nspace), 0);
	EQUAL(rados_nobjects_list_next(list, &entry, &key, &nspace), -ENOENT);
	rados_nobjects_list_close(list);
	rados_nobjects_list_close(list);
	rados_object_list_cursor_free(io, middle);
	rados_object_list_cursor_free(io, begin);
	rados_object_list_cursor_free(io, end);
	rados_ioctx_set_namespace(io, NULL);
}

/* What a watch's callbacks saw. */
struct heard {
	int notified, old, lost, answers;
	uint64_t notifier;
	char data[16];
	size_t len;
};

static void on_notify(void *arg, uint64_t notify_id, uint64_t cookie, uint64_t notifier, void *data, size_t len)
{
	struct heard *heard = arg;
	EXPECT(len < sizeof(heard->data));
	memcpy(heard->data, data, len);
	heard->len = len;
	heard->notifier = notifier;
	/* A callback may wait for other operations, but not for itself. */
	uint64_t size;
	EQUAL(rados_stat(io, "o", &size, NULL), 0);
	EQUAL(rados_watch_flush(cluster), -EDEADLK);
	if (heard->answers)
		EQUAL(rados_notify_ack(io, "o", notify_id, cookie, "pong", 4), 0);
	__atomic_add_fetch(&heard->notified, 1, __ATOMIC_SEQ_CST);
}

static void on_old_notify(uint8_t opcode, uint64_t ver, void *arg)
{
	EXPECT(opcode == 0 && ver == 0);
	__atomic_add_fetch(&((struct heard *)arg)->old, 1, __ATOMIC_SEQ_CST);
}

static void on_lost(void *arg, uint64_t cookie, int err)
{
	EXPECT(cookie > 0 && err == -ENOTCONN);
	__atomic_add_fetch(&((struct heard *)arg)->lost, 1, __ATOMIC_SEQ_CST);
}

static void watches(void)
{
	struct heard heard = {.answers = 1}, silent = {0};
	uint64_t cookie = 0, second = 0, old = 0, self = rados_get_instance_id(cluster);
	char *reply;
	size_t reply_len, nr_acks, nr_timeouts;
	struct notify_ack_t *acks;
	struct notify_timeout_t *timeouts;
	rados_completion_t c;

	EQUAL(rados_watch2(io, "absent", &cookie, on_notify, on_lost, &heard), -ENOENT);
	EQUAL(rados_watch2(io, "o", NULL, on_notify, on_lost, &heard), -EINVAL);
	EQUAL(rados_watch2(io, "o", &cookie, NULL, on_lost, &heard), -EINVAL);
	EQUAL(rados_watch2(io, "o", &cookie, on_notify, on_lost, &heard), 0);
	EXPECT(rados_watch_check(io, cookie) > 0 && rados_watch_check(io, cookie) < 30000);
	EQUAL(rados_watch_check(io, 12345), -ENOTCONN);

	/* One watcher answers. */
	EQUAL(rados_notify2(io, "o", "ping", 4, 5000, &reply, &reply_len), 0);
	EXPECT(heard.notified == 1 && heard.notifier == self && heard.len == 4 && memcmp(heard.data, "ping", 4) == 0);
	EQUAL(rados_decode_notify_response(reply, reply_len, &acks, &nr_acks, &timeouts, &nr_timeouts), 0);
	EXPECT(nr_acks == 1 && nr_timeouts == 0 && timeouts == NULL && acks[0].notifier_id == self);
	EXPECT(acks[0].cookie == cookie && acks[0].payload_len == 4 && memcmp(acks[0].payload, "pong", 4) == 0);
	rados_free_notify_response(acks, nr_acks, timeouts);
	EQUAL(rados_decode_notify_response(reply, reply_len - 1, &acks, &nr_acks, &timeouts, &nr_timeouts), -EINVAL);
	EQUAL(rados_decode_notify_response(reply, 0, &acks, &nr_acks, &timeouts, &nr_timeouts), -EINVAL);
	rados_buffer_free(reply);

	/* The library answers for the first kind of watch; nobody wants the answers. */
	EQUAL(rados_watch(io, "o", 0, &old, on_old_notify, &heard), 0);
	EQUAL(rados_notify(io, "o", 0, NULL, 0), 0);
	EQUAL(rados_notify2(io, "o", NULL, 0, 5000, NULL, NULL), 0);
	EXPECT(heard.notified == 3 && heard.old == 2 && heard.len == 0);
	EQUAL(rados_unwatch(io, "o", old), 0);

	/* A watcher that does not answer is told of as such. */
	EQUAL(rados_aio_create_completion2(NULL, NULL, &c), 0);
	EQUAL(rados_aio_watch2(io, "o", c, &second, on_notify, on_lost, 60, &silent), 0);
	EQUAL(rados_aio_wait_for_complete_and_cb(c), 0);
	EQUAL(rados_aio_get_return_value(c), 0);
	EXPECT(second > 0 && second != cookie);
	rados_aio_release(c);
	EQUAL(rados_aio_create_completion2(NULL, NULL, &c), 0);
	EQUAL(rados_aio_notify(io, "o", c, "x", 1, 1000, &reply, &reply_len), 0);
	EQUAL(rados_aio_wait_for_complete(c), 0);
	EQUAL(rados_aio_get_return_value(c), -ETIMEDOUT);
	rados_aio_release(c);
	EQUAL(rados_decode_notify_response(reply, reply_len, &acks, &nr_acks, &timeouts, &nr_timeouts), 0);
	EXPECT(nr_acks == 1 && acks[0].cookie == cookie && nr_timeouts == 1 && timeouts[0].cookie == second);
	rados_free_notify_response(acks, nr_acks, timeouts);
	rados_buffer_free(reply);

	/* Given back, it hears nothing. */
	EQUAL(rados_aio_create_completion2(NULL, NULL, &c), 0);
	EQUAL(rados_aio_unwatch(io, second, c), 0);
	EQUAL(rados_aio_wait_for_complete(c), 0);
	EQUAL(rados_aio_get_return_value(c), 0);
	rados_aio_release(c);
	EQUAL(rados_watch_flush(cluster), 0);
	EQUAL(silent.notified, 1);
	EQUAL(rados_notify2(io, "o", "x", 1, 5000, NULL, NULL), 0);
	EQUAL(silent.notified, 1);
	EQUAL(rados_unwatch2(io, second), -ENOTCONN);

	/* Without the object there is nothing to hear of. */
	EQUAL(rados_write_full(io, "watched", "x", 1), 0);
	EQUAL(rados_watch3(io, "watched", &second, on_notify, on_lost, 60, &heard), 0);
	EQUAL(rados_remove(io, "watched"), 0);
	for (int n = 0; n < 6000 && __atomic_load_n(&heard.lost, __ATOMIC_SEQ_CST) == 0; n++)
		usleep(10000);
	EQUAL(heard.lost, 1);
	EQUAL(rados_watch_check(io, second), -ENOTCONN);
	rados_unwatch2(io, second);
	EQUAL(rados_unwatch2(io, cookie), 0);
	EQUAL(rados_aio_create_completion2(NULL, NULL, &c), 0);
	EQUAL(rados_aio_watch_flush(cluster, c), 0);
	EQUAL(rados_aio_wait_for_complete(c), 0);
	rados_aio_release(c);
}

/* Whether the service map tells what a daemon says of itself. */
static int served(const char *said)
{
	const char *cmd[] = {"{\"prefix\": \"service dump\", \"format\": \"json\"}"};
	char *out;
	size_t len;
	EQUAL(rados_mon_command(cluster, cmd, 1, NULL, 0, &out, &len, NULL, NULL), 0);
	int found = memmem(out, len, said, strlen(said)) != NULL;
	rados_buffer_free(out);
	return found;
}

static void services(void)
{
	rados_t other;
	EQUAL(rados_create(&other, "admin"), 0);
	EQUAL(rados_conf_read_file(other, NULL), 0);
	EQUAL(rados_service_update_status(other, "busy\0yes\0"), -ENOTCONN);
	EQUAL(rados_service_register(other, "osd", "0", ""), -EINVAL);
	EQUAL(rados_service_register(other, "early", "", ""), -EINVAL);
	/* Made known before there is a session, told once there is one. */
	EQUAL(rados_service_register(other, "early", "x", "foo\0bar\0this\0that\0"), 0);
	EQUAL(rados_service_register(other, "early", "x", ""), -EEXIST);
	EXPECT(!served("\"this\":\"that\""));
	EQUAL(rados_connect(other), 0);
	for (int n = 0; n < 6000 && !served("\"this\":\"that\""); n++)
		usleep(10000);
	EXPECT(served("\"this\":\"that\"") && served("\"foo\":\"bar\"") && served("\"early\":"));
	EQUAL(rados_service_update_status(other, "busy\0yes\0"), 0);
	rados_shutdown(other);
	EQUAL(rados_service_register(other, "late", "x", ""), -EINVAL);
	EQUAL(rados_service_update_status(cluster, "nobody\0registered\0"), 0);
}

/* A range of addresses shuts out who connects from there, until it is taken back. */
static void ranges(void)
{
	static const char range[] = "{\"prefix\": \"osd blocklist\", \"range\": \"range\", \"addr\": \"127.0.0.0/8\",";
	const char *add[] = {range, "\"blocklistop\": \"add\"}"}, *rm[] = {range, "\"blocklistop\": \"rm\"}"};
	rados_t other;
	rados_ioctx_t there;
	EQUAL(rados_create(&other, "admin"), 0);
	EQUAL(rados_conf_read_file(other, NULL), 0);
	EQUAL(rados_connect(other), 0);
	EQUAL(rados_ioctx_create(other, pool, &there), 0);
	EQUAL(rados_write_full(there, "ranges", "x", 1), 0);
	EQUAL(rados_mon_command(cluster, add, 2, NULL, 0, NULL, NULL, NULL, NULL), 0);
	EQUAL(rados_wait_for_latest_osdmap(other), 0);
	EQUAL(rados_write_full(there, "ranges", "x", 1), -ESHUTDOWN);
	rados_ioctx_destroy(there);
	rados_shutdown(other);
	EQUAL(rados_mon_command(cluster, rm, 2, NULL, 0, NULL, NULL, NULL, NULL), 0);
	EQUAL(rados_wait_for_latest_osdmap(cluster), 0);
	EQUAL(rados_write_full(io, "ranges", "x", 1), 0);
}

static void commands(void)
{
	const char *cmd[] = {"{\"prefix\":", "\"osd pool get\", \"pool\": \"none\", \"var\": \"size\"}"};
	char *out, *status;
	size_t out_len, status_len;
	EQUAL(rados_mon_command(cluster, cmd, 2, "", 0, &out, &out_len, &status, &status_len), -ENOENT);
	EXPECT(out == NULL && out_len == 0 && status_len > 0 && strstr(status, "unrecognized pool") != NULL);
	rados_buffer_free(out);
	rados_buffer_free(status);
	cmd[1] = "\"fsid\"}";
	EQUAL(rados_mon_command(cluster, cmd, 2, NULL, 0, &out, &out_len, NULL, NULL), 0);
	EXPECT(out_len >= 36);
	rados_buffer_free(out);
	EQUAL(rados_mon_command_target(cluster, "nobody", cmd, 2, NULL, 0, &out, &out_len, NULL, NULL), -ENOENT);
	char *addrs;
	EQUAL(rados_getaddrs(cluster, &addrs), 0);
	char own[40];
	snprintf(own, sizeof(own), "127.0.0.1:0/%llu", (unsigned long long)rados_get_instance_id(cluster));
	EXPECT(strcmp(addrs, own) == 0);

	/* A fenced client writes no more. */
	EQUAL(rados_blocklist_add(cluster, addrs, 60), 0);
	free(addrs);
	EQUAL(rados_wait_for_latest_osdmap(cluster), 0);
	EQUAL(rados_write_full(io, "fenced", "x", 1), -ESHUTDOWN);
}

/* As programs expect to find their configuration. */
static void configuration(void)
{
	rados_t other;
	char buf[256];
	char *conf = strdup(getenv("CEPH_CONF"));

	EQUAL(rados_create(&other, NULL), 0);
	EQUAL(rados_conf_set(other, "no_such_option", "1"), -ENOENT);
	EQUAL(rados_conf_get(other, "no_such_option", buf, sizeof(buf)), -ENOENT);
	EQUAL(rados_conf_set(other, "rados_osd_op_timeout", "never"), -EINVAL);
	EQUAL(rados_conf_read_file(other, "/none/ceph.conf"), -ENOENT);
	EXPECT(setenv("CEPH_CONF", "/none/ceph.conf", 1) == 0);
	EQUAL(rados_conf_read_file(other, NULL), -ENOENT);
	EXPECT(setenv("CEPH_CONF", conf, 1) == 0);
	EQUAL(rados_conf_read_file(other, NULL), 0);
	EQUAL(rados_conf_get(other, "mon_host", buf, sizeof(buf)), 0);
	EXPECT(strstr(buf, "127.0.0.1"));

	/* The environment's options, then those of a call, which win. */
	EXPECT(setenv("CEPH_ARGS", "--rados-osd-op-timeout 21 --rados_mon_op_timeout=22", 1) == 0);
	EQUAL(rados_conf_parse_env(other, NULL), 0);
	EQUAL(rados_conf_get(other, "rados_osd_op_timeout", buf, sizeof(buf)), 0);
	EQUAL(atoi(buf), 21);
	EXPECT(setenv("OWN_ARGS", "--rados_mon_op_timeout 23", 1) == 0);
	EQUAL(rados_conf_parse_env(other, "OWN_ARGS"), 0);
	EQUAL(rados_conf_get(other, "rados_mon_op_timeout", buf, sizeof(buf)), 0);
	EQUAL(atoi(buf), 23);
	EQUAL(rados_conf_set(other, "rados_osd_op_timeout", "24"), 0);
	EQUAL(rados_conf_parse_env(other, NULL), 0);
	EQUAL(rados_conf_get(other, "rados osd op timeout", buf, sizeof(buf)), 0);
	EQUAL(atoi(buf), 24);
	EXPECT(unsetenv("CEPH_ARGS") == 0);

	/* The words that are no options, in their order. */
	const char *argv[] = {"--rados-mon-op-timeout", "25", "one", "--own", "two"}, *rest[5];
	EQUAL(rados_conf_parse_argv_remainder(other, 5, argv, rest), 0);
	EXPECT(!strcmp(rest[0], "one") && !strcmp(rest[1], "--own") && !strcmp(rest[2], "two"));
	EXPECT(!rest[3] && !rest[4]);

	/* A keyring that is not there is no key; the one of the configuration is. */
	EQUAL(rados_conf_set(other, "keyring", "/none/keyring"), 0);
	EQUAL(rados_connect(other), -ENOENT);
	rados_shutdown(other);
	EQUAL(rados_create(&other, NULL), 0);
	EQUAL(rados_conf_read_file(other, conf), 0);
	EQUAL(rados_connect(other), 0);
	rados_shutdown(other);
	free(conf);
}

int main(int argc, char **argv)
{
	begin(argc, argv);
	handles();
	configuration();
	data();
	locks();
	operations();
	asynchronous();
	lists();
	watches();
	services();
	ranges();
	commands();
	return end();
}
