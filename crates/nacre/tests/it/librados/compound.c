/* Compound operations, part by part: what each does, what each refuses, and that all of it happens or nothing. Run by
 * tests/it/librados.rs. */

#include "check.h"

/* Carries a write out and gives it back. */
static int written(rados_write_op_t op, const char *oid, int flags)
{
	int result = rados_write_op_operate(op, io, oid, NULL, flags);
	rados_release_write_op(op);
	return result;
}

static int read_(rados_read_op_t op, const char *oid)
{
	int result = rados_read_op_operate(op, io, oid, 0);
	rados_release_read_op(op);
	return result;
}

static void data(void)
{
	char buf[32];
	uint64_t size;
	int code = 1;

	rados_write_op_t op = rados_create_write_op();
	rados_write_op_write(op, "0123456789", 10, 2);
	rados_write_op_append(op, "ab", 2);
	rados_write_op_writesame(op, "xy", 2, 4, 0);
	rados_write_op_truncate(op, 13);
	rados_write_op_set_alloc_hint(op, 4096, 512);
	rados_write_op_set_alloc_hint2(op, 4096, 512, LIBRADOS_ALLOC_HINT_FLAG_COMPRESSIBLE);
	EQUAL(written(op, "d", 0), 0);
	EQUAL(rados_read(io, "d", buf, sizeof(buf), 0), 13);
	EXPECT(!memcmp(buf, "xyxy23456789a", 13));

	/* All or nothing. */
	op = rados_create_write_op();
	rados_write_op_write_full(op, "gone", 4);
	rados_write_op_cmpxattr(op, "a", LIBRADOS_CMPXATTR_OP_EQ, "v", 1);
	EQUAL(written(op, "d", 0), -ECANCELED);
	EQUAL(rados_stat(io, "d", &size, NULL), 0);
	EQUAL(size, 13);
	op = rados_create_write_op();
	rados_write_op_cmpext(op, "yxyz", 4, 1, &code);
	rados_write_op_write_full(op, "gone", 4);
	EQUAL(written(op, "d", 0), -4095 - 3);
	EQUAL(code, -4095 - 3);
	op = rados_create_write_op();
	rados_write_op_cmpext(op, "yxy2", 4, 1, &code);
	rados_write_op_write(op, "X", 1, 0);
	EQUAL(written(op, "d", 0), 0);
	EQUAL(code, 0);

	/* Versions as the last operation saw them. */
	uint64_t version = rados_get_last_version(io);
	op = rados_create_write_op();
	rados_write_op_assert_version(op, version + 1);
	rados_write_op_write(op, "Y", 1, 0);
	EQUAL(written(op, "d", 0), -EOVERFLOW);
	op = rados_create_write_op();
	rados_write_op_assert_version(op, version - 1);
	rados_write_op_write(op, "Y", 1, 0);
	EQUAL(written(op, "d", 0), -ERANGE);
	op = rados_create_write_op();
	rados_write_op_assert_version(op, version);
	rados_write_op_write(op, "Y", 1, 0);
	EQUAL(written(op, "d", 0), 0);

	/* A part that fails may be let pass. */
	op = rados_create_write_op();
	rados_write_op_remove(op);
	rados_write_op_set_flags(op, LIBRADOS_OP_FLAG_FAILOK);
	rados_write_op_create(op, LIBRADOS_CREATE_IDEMPOTENT, NULL);
	rados_write_op_write(op, "new", 3, 0);
	EQUAL(written(op, "fresh", 0), 0);
	op = rados_create_write_op();
	rados_write_op_create(op, LIBRADOS_CREATE_EXCLUSIVE, NULL);
	EQUAL(written(op, "fresh", 0), -EEXIST);
	op = rados_create_write_op();
	rados_write_op_create(op, LIBRADOS_CREATE_IDEMPOTENT, NULL);
	EQUAL(written(op, "fresh", 0), 0);
	EQUAL(rados_read(io, "fresh", buf, sizeof(buf), 0), 3);

	/* What makes no sense is told when it is carried out. */
	op = rados_create_write_op();
	rados_write_op_write(op, "x", (size_t)1 << 40, 0);
	EQUAL(written(op, "d", 0), -E2BIG);
	op = rados_create_write_op();
	rados_write_op_writesame(op, "xyz", 3, 4, 0);
	EQUAL(written(op, "d", 0), -EINVAL);
	op = rados_create_write_op();
	rados_write_op_append(op, NULL, 4);
	EQUAL(written(op, "d", 0), -EINVAL);
	op = rados_create_write_op();
	rados_write_op_assert_exists(op);
	EQUAL(written(op, "none", 0), -ENOENT);
	rados_release_write_op(NULL);
	rados_release_read_op(NULL);
}

static void attributes(void)
{
	char buf[8];
	rados_write_op_t op = rados_create_write_op();
	rados_write_op_setxattr(op, "a", "one", 3);
	rados_write_op_setxattr(op, "b", "two", 3);
	EQUAL(written(op, "x", 0), 0);
	op = rados_create_write_op();
	rados_write_op_cmpxattr(op, "a", LIBRADOS_CMPXATTR_OP_EQ, "uno", 3);
	rados_write_op_rmxattr(op, "b");
	EQUAL(written(op, "x", 0), -ECANCELED);
	op = rados_create_write_op();
	rados_write_op_cmpxattr(op, "a", LIBRADOS_CMPXATTR_OP_EQ, "one", 3);
	rados_write_op_cmpxattr(op, "b", LIBRADOS_CMPXATTR_OP_NE, "one", 3);
	rados_write_op_cmpxattr(op, "absent", LIBRADOS_CMPXATTR_OP_EQ, "", 0);
	rados_write_op_rmxattr(op, "b");
	EQUAL(written(op, "x", 0), 0);
	EQUAL(rados_getxattr(io, "x", "b", buf, sizeof(buf)), -ENODATA);
	op = rados_create_write_op();
	rados_write_op_cmpxattr(op, "a", 77, "one", 3);
	EQUAL(written(op, "x", 0), -EINVAL);
	op = rados_create_write_op();
	rados_write_op_setxattr(op, NULL, "one", 3);
	EQUAL(written(op, "x", 0), -EINVAL);

	rados_read_op_t read = rados_create_read_op();
	/* As in Ceph, a comparison that holds is 1 where it is the last part. */
	rados_read_op_cmpxattr(read, "a", LIBRADOS_CMPXATTR_OP_EQ, "one", 3);
	EQUAL(read_(read, "x"), 1);
	read = rados_create_read_op();
	rados_read_op_cmpxattr(read, "a", LIBRADOS_CMPXATTR_OP_EQ, "two", 3);
	EQUAL(read_(read, "x"), -ECANCELED);
}

/* The keys that an iterator has, in order, each ending with a semicolon. */
static const char *keys_of(rados_omap_iter_t iter)
{
	static char keys[256];
	char *key, *val;
	size_t len;
	keys[0] = 0;
	for (;;) {
		EQUAL(rados_omap_get_next(iter, &key, &val, &len), 0);
		if (!key)
			break;
		strcat(strcat(keys, key), "=");
		strncat(keys, val ? val : "", len);
		strcat(keys, ";");
	}
	rados_omap_get_end(iter);
	return keys;
}

static void omap(void)
{
	const char *keys[] = {"a1", "a2", "b1", "b2"}, *vals[] = {"1", "2", "3", "4"};
	const size_t lens[] = {1, 1, 1, 1}, key_lens[] = {2, 2, 2, 2};
	rados_omap_iter_t iter, second;
	unsigned char more = 7;
	int code = 1, other = 1;

	rados_write_op_t op = rados_create_write_op();
	rados_write_op_omap_set(op, keys, vals, lens, 4);
	EQUAL(written(op, "m", 0), 0);

	rados_read_op_t read = rados_create_read_op();
	rados_read_op_omap_get_vals(read, "", "", 100, &iter, &code);
	rados_read_op_omap_get_keys(read, "a1", 2, &second, &other);
	EQUAL(read_(read, "m"), 0);
	EXPECT(code == 0 && other == 0 && rados_omap_iter_size(iter) == 4);
	EXPECT(!strcmp(keys_of(iter), "a1=1;a2=2;b1=3;b2=4;"));
	EXPECT(!strcmp(keys_of(second), "a2=;b1=;"));
	read = rados_create_read_op();
	rados_read_op_omap_get_keys2(read, "", 3, &iter, &more, &code);
	EQUAL(read_(read, "m"), 0);
	EXPECT(more == 1 && !strcmp(keys_of(iter), "a1=;a2=;b1=;"));
	read = rados_create_read_op();
	rados_read_op_omap_get_keys2(read, "b1", 3, &iter, &more, &code);
	EQUAL(read_(read, "m"), 0);
	EXPECT(more == 0 && !strcmp(keys_of(iter), "b2=;"));
	read = rados_create_read_op();
	rados_read_op_omap_get_vals2(read, "a1", "a", 100, &iter, &more, &code);
	EQUAL(read_(read, "m"), 0);
	EXPECT(more == 0 && !strcmp(keys_of(iter), "a2=2;"));
	const char *some[] = {"b2", "none", "a1"};
	const size_t some_lens[] = {2, 4, 2};
	read = rados_create_read_op();
	rados_read_op_omap_get_vals_by_keys(read, some, 3, &iter, &code);
	rados_read_op_omap_get_vals_by_keys2(read, some, 3, some_lens, &second, &other);
	EQUAL(read_(read, "m"), 0);
	EXPECT(!strcmp(keys_of(iter), "a1=1;b2=4;"));
	EXPECT(!strcmp(keys_of(second), "a1=1;b2=4;"));
	/* An object without any, and none at all: the iterator is there and empty. */
	EQUAL(rados_write_full(io, "bare", "x", 1), 0);
	read = rados_create_read_op();
	rados_read_op_omap_get_vals2(read, "", "", 100, &iter, &more, &code);
	EQUAL(read_(read, "bare"), 0);
	EXPECT(!strcmp(keys_of(iter), "") && code == 0);
	read = rados_create_read_op();
	rados_read_op_omap_get_vals2(read, "", "", 100, &iter, &more, &code);
	EQUAL(read_(read, "none"), -ENOENT);
	EXPECT(!strcmp(keys_of(iter), "") && code == -ENOENT);

	/* Guards, with both kinds of keys. */
	op = rados_create_write_op();
	rados_write_op_omap_cmp(op, "a1", LIBRADOS_CMPXATTR_OP_EQ, "1", 1, &code);
	rados_write_op_omap_cmp2(op, "b1", LIBRADOS_CMPXATTR_OP_LT, "4", 2, 1, &other);
	rados_write_op_omap_rm_keys(op, keys, 1);
	EQUAL(written(op, "m", 0), 0);
	op = rados_create_write_op();
	rados_write_op_omap_cmp(op, "a2", LIBRADOS_CMPXATTR_OP_EQ, "9", 1, &code);
	rados_write_op_omap_clear(op);
	EQUAL(written(op, "m", 0), -ECANCELED);
	EQUAL(code, -ECANCELED);
	read = rados_create_read_op();
	rados_read_op_omap_cmp(read, "a2", LIBRADOS_CMPXATTR_OP_GT, "1", 1, &code);
	rados_read_op_omap_get_keys2(read, NULL, 10, &iter, NULL, NULL);
	EQUAL(read_(read, "m"), 0);
	EXPECT(!strcmp(keys_of(iter), "a2=;b1=;b2=;"));

	op = rados_create_write_op();
	rados_write_op_omap_rm_keys2(op, keys + 3, key_lens, 1);
	EQUAL(written(op, "m", 0), 0);
	op = rados_create_write_op();
	rados_write_op_omap_rm_range2(op, "a", 1, "b1", 2);
	EQUAL(written(op, "m", 0), 0);
	read = rados_create_read_op();
	rados_read_op_omap_get_keys2(read, "", 10, &iter, NULL, NULL);
	EQUAL(read_(read, "m"), 0);
	EXPECT(!strcmp(keys_of(iter), "b1=;"));
	op = rados_create_write_op();
	rados_write_op_omap_clear(op);
	EQUAL(written(op, "m", 0), 0);
	read = rados_create_read_op();
	rados_read_op_omap_get_keys2(read, "", 10, &iter, &more, NULL);
	EQUAL(read_(read, "m"), 0);
	EXPECT(!strcmp(keys_of(iter), "") && !more);
	op = rados_create_write_op();
	rados_write_op_omap_set(op, NULL, vals, lens, 2);
	EQUAL(written(op, "m", 0), -EINVAL);
	op = rados_create_write_op();
	rados_write_op_omap_set(op, NULL, NULL, NULL, 0);
	EQUAL(written(op, "m", 0), 0);
}

static void classes(void)
{
	char *out = NULL, buf[32];
	size_t len = 0, used = 7;
	int code = 1, other = 1;

	rados_write_op_t op = rados_create_write_op();
	rados_write_op_exec(op, "hello", "record_hello", "you", 3, &code);
	EQUAL(written(op, "greeted", 0), 0);
	EQUAL(code, 0);
	op = rados_create_write_op();
	rados_write_op_exec(op, "no_such_class", "x", NULL, 0, &code);
	EQUAL(written(op, "greeted", 0), -EOPNOTSUPP);
	EQUAL(code, -EOPNOTSUPP);

	rados_read_op_t read = rados_create_read_op();
	rados_read_op_exec(read, "hello", "replay", NULL, 0, &out, &len, &code);
	rados_read_op_exec_user_buf(read, "hello", "replay", NULL, 0, buf, sizeof(buf), &used, &other);
	EQUAL(read_(read, "greeted"), 0);
	EXPECT(code == 0 && len == 11 && !memcmp(out, "Hello, you!", 11));
	EXPECT(other == 0 && used == 11 && !memcmp(buf, "Hello, you!", 11));
	rados_buffer_free(out);
	/* Too small a buffer is the part's failure; results that nobody wants are not made. */
	read = rados_create_read_op();
	rados_read_op_exec_user_buf(read, "hello", "replay", NULL, 0, buf, 10, &used, &other);
	rados_read_op_exec(read, "hello", "replay", NULL, 0, NULL, NULL, NULL);
	EQUAL(read_(read, "greeted"), 0);
	EXPECT(other == -ERANGE && used == 0);
}

static void sums(void)
{
	struct { uint32_t count, crc[2]; } sums = {0};
	const uint32_t init = (uint32_t)-1;
	char buf[8];
	size_t got = 7;
	int code = 1, other = 1;

	EQUAL(rados_write_full(io, "s", "0123456789", 10), 0);
	rados_read_op_t read = rados_create_read_op();
	rados_read_op_checksum(read, LIBRADOS_CHECKSUM_TYPE_CRC32C, (const char *)&init, 4, 0, 10, 5, (char *)&sums,
			       sizeof(sums), &code);
	rados_read_op_set_flags(read, LIBRADOS_OP_FLAG_FADVISE_NOCACHE);
	EQUAL(read_(read, "s"), 0);
	EXPECT(code == 0 && sums.count == 2 && sums.crc[0] != sums.crc[1]);
	/* Each part has its own result. */
	read = rados_create_read_op();
	rados_read_op_checksum(read, LIBRADOS_CHECKSUM_TYPE_CRC32C, (const char *)&init, 4, 0, 10, 5, (char *)&sums, 8,
			       &code);
	rados_read_op_read(read, 8, sizeof(buf), buf, &got, &other);
	EQUAL(read_(read, "s"), 0);
	EXPECT(code == -ERANGE && other == 0 && got == 2);
	read = rados_create_read_op();
	rados_read_op_read(read, 0, (size_t)1 << 40, buf, &got, &other);
	EQUAL(read_(read, "s"), -EDOM);
	read = rados_create_read_op();
	rados_read_op_read(read, 0, 4, buf, NULL, NULL);
	EQUAL(read_(read, "none"), -ENOENT);
	/* Nothing to do is done. */
	read = rados_create_read_op();
	EQUAL(read_(read, "none"), 0);
}

/* A read that is ordered with writes finds what was written before it, of many that are on their way at once. */
static void ordered(void)
{
	enum { ROUNDS = 64 };
	rados_completion_t writes[ROUNDS], reads[ROUNDS];
	uint32_t found[ROUNDS];
	size_t length[ROUNDS];
	int code[ROUNDS];

	for (uint32_t n = 0; n < ROUNDS; n++) {
		EQUAL(rados_aio_create_completion2(NULL, NULL, &writes[n]), 0);
		EQUAL(rados_aio_create_completion2(NULL, NULL, &reads[n]), 0);
		EQUAL(rados_aio_write_full(io, "ordered", writes[n], (char *)&n, sizeof(n)), 0);
		rados_read_op_t op = rados_create_read_op();
		rados_read_op_read(op, 0, sizeof(found[n]), (char *)&found[n], &length[n], &code[n]);
		EQUAL(rados_aio_read_op_operate(op, io, reads[n], "ordered", LIBRADOS_OPERATION_ORDER_READS_WRITES), 0);
		rados_release_read_op(op);
	}
	for (uint32_t n = 0; n < ROUNDS; n++) {
		EQUAL(rados_aio_wait_for_complete(reads[n]), 0);
		EQUAL(rados_aio_get_return_value(reads[n]), 0);
		EQUAL(length[n], sizeof(n));
		EQUAL(found[n], n);
		EQUAL(rados_aio_wait_for_complete(writes[n]), 0);
		rados_aio_release(writes[n]);
		rados_aio_release(reads[n]);
	}
}

/* Flags that mean nothing to a pool without tiers, redirects and snapshots are taken, and all is correct with them. */
static void hints(void)
{
	const int flags[] = {LIBRADOS_OPERATION_BALANCE_READS, LIBRADOS_OPERATION_LOCALIZE_READS,
			     LIBRADOS_OPERATION_IGNORE_CACHE, LIBRADOS_OPERATION_SKIPRWLOCKS,
			     LIBRADOS_OPERATION_IGNORE_OVERLAY, LIBRADOS_OPERATION_IGNORE_REDIRECT,
			     LIBRADOS_OPERATION_ORDERSNAP};

	for (uint32_t n = 0; n < sizeof(flags) / sizeof(*flags); n++) {
		uint32_t found = 0;
		size_t length;
		int code;
		rados_write_op_t write = rados_create_write_op();
		rados_write_op_write_full(write, (char *)&n, sizeof(n));
		EQUAL(written(write, "hinted", flags[n]), 0);
		rados_read_op_t op = rados_create_read_op();
		rados_read_op_read(op, 0, sizeof(found), (char *)&found, &length, &code);
		EQUAL(rados_read_op_operate(op, io, "hinted", flags[n]), 0);
		rados_release_read_op(op);
		EQUAL(found, n);
	}
}

int main(int argc, char **argv)
{
	begin(argc, argv);
	data();
	attributes();
	omap();
	classes();
	sums();
	ordered();
	hints();
	return end();
}
