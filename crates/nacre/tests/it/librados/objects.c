/* One object at a time: data, attributes, versions, class methods, and the context that names it. Run by
 * tests/it/librados.rs. */

#include "check.h"

static void versions(void)
{
	int major = 0, minor = -1, extra = -1;
	rados_version(&major, &minor, &extra);
	EXPECT(major == LIBRADOS_VER_MAJOR && minor == LIBRADOS_VER_MINOR && extra == LIBRADOS_VER_EXTRA);
	rados_version(NULL, NULL, NULL);

	EQUAL(rados_write_full(io, "v", "x", 1), 0);
	uint64_t first = rados_get_last_version(io);
	EQUAL(rados_write(io, "v", "y", 1, 0), 0);
	EXPECT(first > 0 && rados_get_last_version(io) > first);
	char buf[4];
	EQUAL(rados_read(io, "v", buf, sizeof(buf), 0), 1);
	EXPECT(rados_get_last_version(io) > first);
	EQUAL(rados_get_last_version(NULL), 0);
}

static void data(void)
{
	char buf[64];
	uint64_t size = 0;

	/* Nothing is something: the object comes to be. */
	EQUAL(rados_write(io, "empty", "", 0, 0), 0);
	EQUAL(rados_stat(io, "empty", &size, NULL), 0);
	EQUAL(size, 0);
	EQUAL(rados_read(io, "empty", buf, sizeof(buf), 0), 0);
	EQUAL(rados_read(io, "empty", NULL, 0, 0), 0);
	EQUAL(rados_write(io, "empty", NULL, 0, 0), 0);
	EQUAL(rados_append(io, "empty", "", 0), 0);
	EQUAL(rados_write_full(io, "empty", "", 0), 0);

	EQUAL(rados_append(io, "a", "0123", 4), 0);
	EQUAL(rados_append(io, "a", "4567", 4), 0);
	EQUAL(rados_append(io, "a", buf, (size_t)1 << 40), -E2BIG);
	EQUAL(rados_read(io, "a", buf, sizeof(buf), 0), 8);
	EXPECT(!memcmp(buf, "01234567", 8));
	/* A length of none means all of it, which a buffer of none does not hold. */
	EQUAL(rados_read(io, "a", buf, 0, 0), -ERANGE);
	EQUAL(rados_writesame(io, "a", "ab", 2, 6, 1), 0);
	EQUAL(rados_read(io, "a", buf, sizeof(buf), 0), 8);
	EXPECT(!memcmp(buf, "0ababab7", 8));
	EQUAL(rados_writesame(io, "a", "ab", 2, 5, 0), -EINVAL);
	EQUAL(rados_writesame(io, "a", "ab", 0, 4, 0), -EINVAL);
	EQUAL(rados_writesame(io, "a", "ab", 2, (size_t)1 << 40, 0), -E2BIG);
	EQUAL(rados_cmpext(io, "a", "", 0, 0), 0);
	EQUAL(rados_cmpext(io, "none", "x", 1, 0), -ENOENT);
	/* What is not there compares as zeros. */
	EQUAL(rados_cmpext(io, "a", "7\0\0", 3, 7), 0);
	EQUAL(rados_trunc(io, "a", 4), 0);
	EQUAL(rados_trunc(io, "a", 6), 0);
	EQUAL(rados_read(io, "a", buf, sizeof(buf), 0), 6);
	EXPECT(!memcmp(buf, "0aba\0\0", 6));
	/* What is not there is as short as it can be. */
	EQUAL(rados_trunc(io, "none", 6), 0);
	EQUAL(rados_remove(io, "none"), -ENOENT);
	EQUAL(rados_set_alloc_hint(io, "a", 4096, 512), 0);

	/* Names: some, not too long, text. */
	char name[3000];
	memset(name, 'n', sizeof(name));
	name[sizeof(name) - 1] = 0;
	EQUAL(rados_write(io, name, "x", 1, 0), -ENAMETOOLONG);
	EQUAL(rados_write(io, "", "x", 1, 0), -EINVAL);
	EQUAL(rados_write(io, "\xff", "x", 1, 0), -EINVAL);
}

static void attributes(void)
{
	char buf[16];
	const char *name, *value;
	size_t len;
	rados_xattrs_iter_t iter;

	EQUAL(rados_getxattrs(io, "none", &iter), -ENOENT);
	EQUAL(rados_getxattr(io, "none", "a", buf, sizeof(buf)), -ENOENT);
	EQUAL(rados_rmxattr(io, "none", "a"), -ENOENT);
	EQUAL(rados_setxattr(io, "x", "b", "v\0w", 3), 0);
	EQUAL(rados_setxattr(io, "x", "a", "", 0), 0);
	EQUAL(rados_setxattr(io, "x", "c", NULL, 1), -EINVAL);
	EQUAL(rados_setxattr(io, "x", NULL, "v", 1), -EINVAL);
	EQUAL(rados_getxattr(io, "x", "a", NULL, 0), 0);
	EQUAL(rados_getxattr(io, "x", "b", NULL, 0), -ERANGE);
	EQUAL(rados_getxattr(io, "x", "b", buf, sizeof(buf)), 3);
	EXPECT(!memcmp(buf, "v\0w", 3));
	EQUAL(rados_getxattrs(io, "x", NULL), -EINVAL);
	EQUAL(rados_getxattrs(io, "x", &iter), 0);
	EQUAL(rados_getxattrs_next(iter, &name, &value, &len), 0);
	EXPECT(!strcmp(name, "a") && len == 0);
	EQUAL(rados_getxattrs_next(iter, &name, &value, &len), 0);
	EXPECT(!strcmp(name, "b") && len == 3 && !memcmp(value, "v\0w", 3));
	EQUAL(rados_getxattrs_next(iter, &name, &value, &len), 0);
	EXPECT(!name && !value && !len);
	EQUAL(rados_getxattrs_next(iter, &name, &value, &len), 0);
	EXPECT(!name);
	rados_getxattrs_end(iter);
	rados_getxattrs_end(iter);
	EQUAL(rados_rmxattr(io, "x", "b"), 0);
	EQUAL(rados_getxattr(io, "x", "b", buf, sizeof(buf)), -ENODATA);
}

static void classes(void)
{
	char buf[64];
	EQUAL(rados_exec(io, "o", "no_such_class", "method", NULL, 0, buf, sizeof(buf)), -EOPNOTSUPP);
	EQUAL(rados_exec(io, "v", "hello", "no_such_method", NULL, 0, buf, sizeof(buf)), -EOPNOTSUPP);
	EQUAL(rados_exec(io, "v", "hello", "say_hello", "you", 3, buf, sizeof(buf)), 11);
	EXPECT(!memcmp(buf, "Hello, you!", 11));
	EQUAL(rados_exec(io, "v", "hello", "say_hello", "you", 3, buf, 10), -ERANGE);
	EQUAL(rados_exec(io, "v", NULL, "say_hello", NULL, 0, buf, sizeof(buf)), -EINVAL);
}

/* A context of its own, so that the others keep their place. */
static void contexts(void)
{
	rados_ioctx_t own;
	char buf[32];
	int req = 7;
	uint64_t alignment = 7;

	EQUAL(rados_ioctx_create2(cluster, 1 << 30, &own), -ENOENT);
	EQUAL(rados_ioctx_create2(cluster, rados_ioctx_get_id(io), &own), 0);
	EXPECT(rados_ioctx_cct(own) == rados_cct(cluster));
	EQUAL(rados_ioctx_get_namespace(own, buf, sizeof(buf)), 0);
	rados_ioctx_set_namespace(own, "space");
	EQUAL(rados_ioctx_get_namespace(own, buf, 5), -ERANGE);
	EQUAL(rados_ioctx_get_namespace(own, buf, 6), 5);
	EXPECT(!strcmp(buf, "space"));
	EQUAL(rados_write_full(own, "o", "in space", 8), 0);
	EQUAL(rados_read(io, "o", buf, sizeof(buf), 0), -ENOENT);
	/* The locator places an object, and is part of its name. */
	rados_ioctx_locator_set_key(own, "key");
	EQUAL(rados_read(own, "o", buf, sizeof(buf), 0), -ENOENT);
	EQUAL(rados_write_full(own, "o", "with a key", 10), 0);
	rados_ioctx_locator_set_key(own, NULL);
	EQUAL(rados_read(own, "o", buf, sizeof(buf), 0), 8);
	/* What can't be a namespace is not taken for another. */
	rados_ioctx_set_namespace(own, "\xff\xfe");
	EQUAL(rados_write_full(own, "lost", "x", 1), -ENAMETOOLONG);
	rados_ioctx_set_namespace(own, "space");
	EQUAL(rados_read(own, "lost", buf, sizeof(buf), 0), -ENOENT);

	/* A snapshot that is read can't be written. */
	rados_ioctx_snap_set_read(own, 1);
	EQUAL(rados_write(own, "o", "x", 1, 0), -EROFS);
	EQUAL(rados_remove(own, "o"), -EROFS);
	/* No object has another state than its present one. */
	EQUAL(rados_read(own, "o", buf, sizeof(buf), 0), 8);
	rados_ioctx_snap_set_read(own, LIBRADOS_SNAP_HEAD);
	EQUAL(rados_read(own, "o", buf, sizeof(buf), 0), 8);

	rados_set_pool_full_try(own);
	rados_unset_pool_full_try(own);
	rados_set_osdmap_full_try(own);
	EQUAL(rados_write(own, "o", "x", 1, 0), 0);
	rados_unset_osdmap_full_try(own);

	EQUAL(rados_ioctx_pool_requires_alignment(own), 0);
	EQUAL(rados_ioctx_pool_required_alignment(own), 0);
	EQUAL(rados_ioctx_pool_requires_alignment2(own, NULL), 0);
	EQUAL(rados_ioctx_pool_required_alignment2(own, NULL), -EINVAL);
	EQUAL(rados_ioctx_pool_requires_alignment2(own, &req), 0);
	EQUAL(rados_ioctx_pool_required_alignment2(own, &alignment), 0);
	EXPECT(!req && !alignment);
	EQUAL(rados_cache_pin(own, "o"), -EINVAL);
	EQUAL(rados_cache_unpin(own, "o"), -EINVAL);
	rados_ioctx_destroy(own);
}

/* Exported for old programs, in no header any more. */
int rados_tmap_get(rados_ioctx_t io, const char *o, char *buf, size_t buflen);
int rados_tmap_put(rados_ioctx_t io, const char *o, const char *buf, size_t buflen);
int rados_tmap_update(rados_ioctx_t io, const char *o, const char *cmdbuf, size_t cmdbuflen);

/* What this release does not have says so, and nothing else. */
static int64_t own_id(void)
{
	return rados_ioctx_get_id(io);
}

/* The pool has no snapshots. */
static void snapshots(void)
{
	char name[8] = "";
	rados_snap_t snaps[2] = {7, 5};
	time_t when;

	EQUAL(rados_ioctx_snap_list(io, snaps, 2), 0);
	EQUAL(rados_ioctx_snap_list(io, NULL, 0), 0);
	EQUAL(rados_ioctx_snap_lookup(io, "s", snaps), -ENOENT);
	EQUAL(rados_ioctx_snap_get_name(io, 1, name, sizeof(name)), -ENOENT);
	EQUAL(rados_ioctx_snap_get_stamp(io, 1, &when), -ENOENT);
	EQUAL(rados_ioctx_snap_remove(io, "s"), -ENOENT);
	EQUAL(rados_ioctx_snap_rollback(io, "o", "s"), -ENOENT);
	EQUAL(rados_rollback(io, "o", "s"), -ENOENT);
	EQUAL(rados_ioctx_selfmanaged_snap_set_write_ctx(io, 0, snaps, 0), 0);
	EQUAL(rados_ioctx_selfmanaged_snap_set_write_ctx(io, 6, snaps, 2), -EINVAL);
	EQUAL(rados_ioctx_selfmanaged_snap_set_write_ctx(io, 7, snaps, 2), -EOPNOTSUPP);
}

static void missing(void)
{
	char name[8] = "", value[8] = "";
	rados_snap_t snap = 0;
	rados_completion_t c;
	uint64_t auid;

	EQUAL(rados_ioctx_snap_create(io, "s"), -EOPNOTSUPP);
	EQUAL(rados_ioctx_selfmanaged_snap_create(io, &snap), -EOPNOTSUPP);
	EQUAL(rados_ioctx_selfmanaged_snap_remove(io, 1), -EOPNOTSUPP);
	EQUAL(rados_ioctx_selfmanaged_snap_rollback(io, "o", 1), -EOPNOTSUPP);
	EQUAL(rados_ioctx_pool_set_auid(io, 5), -EOPNOTSUPP);
	EQUAL(rados_ioctx_pool_get_auid(io, &auid), -EOPNOTSUPP);
	EQUAL(rados_inconsistent_pg_list(cluster, own_id(), name, sizeof(name)), -EOPNOTSUPP);
	EQUAL(rados_tmap_get(io, "o", name, sizeof(name)), -EOPNOTSUPP);
	EQUAL(rados_tmap_put(io, "o", name, sizeof(name)), -EOPNOTSUPP);
	EQUAL(rados_tmap_update(io, "o", value, sizeof(value)), -EOPNOTSUPP);

	EQUAL(rados_aio_create_completion2(NULL, NULL, &c), 0);
	rados_aio_ioctx_selfmanaged_snap_create(io, &snap, c);
	EQUAL(rados_aio_wait_for_complete(c), 0);
	EQUAL(rados_aio_get_return_value(c), -EOPNOTSUPP);
	rados_aio_release(c);
	EQUAL(rados_aio_create_completion2(NULL, NULL, &c), 0);
	rados_aio_ioctx_selfmanaged_snap_remove(io, 1, c);
	EQUAL(rados_aio_wait_for_complete(c), 0);
	EQUAL(rados_aio_get_return_value(c), -EOPNOTSUPP);
	rados_aio_release(c);
}

int main(int argc, char **argv)
{
	begin(argc, argv);
	versions();
	data();
	attributes();
	classes();
	contexts();
	snapshots();
	missing();
	return end();
}
