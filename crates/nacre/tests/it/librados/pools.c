/* Pools: made, found, listed, described and removed; the cluster's own figures. Run by tests/it/librados.rs. */

#include "check.h"

/* Whether a list of names, each with its zero and one more at the end, has one. */
static int has(const char *names, const char *name)
{
	for (; *names; names += strlen(names) + 1)
		if (!strcmp(names, name))
			return 1;
	return 0;
}

static void made(void)
{
	char *names, small[4], buf[16];
	int64_t id, base = -1;

	EQUAL(rados_pool_create(cluster, "one"), 0);
	EQUAL(rados_pool_create(cluster, "one"), -EEXIST);
	EQUAL(rados_pool_create(cluster, ""), -EINVAL);
	EQUAL(rados_pool_create(cluster, NULL), -EINVAL);
	EQUAL(rados_pool_create_with_auid(cluster, "two", 5), -EINVAL);
	EQUAL(rados_pool_create_with_auid(cluster, "two", (uint64_t)-1), 0);
	EQUAL(rados_pool_create_with_crush_rule(cluster, "three", 0), 0);
	EQUAL(rados_pool_create_with_crush_rule(cluster, "four", 200), -ENOENT);
	EQUAL(rados_pool_create_with_all(cluster, "four", (uint64_t)-1, 0), 0);
	EQUAL(rados_pool_create_with_all(cluster, "five", 1, 0), -EINVAL);

	int needed = rados_pool_list(cluster, NULL, 0);
	EXPECT(needed > 20);
	EQUAL(rados_pool_list(cluster, NULL, 5), -EINVAL);
	names = malloc(needed);
	memset(names, 'x', needed);
	EQUAL(rados_pool_list(cluster, names, needed), needed);
	EXPECT(has(names, "one") && has(names, "two") && has(names, "three") && has(names, "four") && !has(names, "five"));
	EXPECT(!names[needed - 1] && !names[needed - 2]);
	free(names);
	memset(small, 'x', sizeof(small));
	EQUAL(rados_pool_list(cluster, small, 3), needed);
	EXPECT(small[3] == 'x' && !small[2]);

	id = rados_pool_lookup(cluster, "one");
	EXPECT(id > 0);
	EQUAL(rados_pool_lookup(cluster, "none"), -ENOENT);
	EQUAL(rados_pool_reverse_lookup(cluster, id, buf, 3), -ERANGE);
	EQUAL(rados_pool_reverse_lookup(cluster, id, buf, 4), 3);
	EXPECT(!strcmp(buf, "one"));
	EQUAL(rados_pool_reverse_lookup(cluster, 1 << 30, buf, sizeof(buf)), -ENOENT);
	EQUAL(rados_pool_get_base_tier(cluster, id, &base), 0);
	EQUAL(base, id);
	EQUAL(rados_pool_get_base_tier(cluster, 1 << 30, &base), -ENOENT);
	EQUAL(rados_inconsistent_pg_list(cluster, 1 << 30, buf, sizeof(buf)), -ENOENT);
}

static void applications(void)
{
	rados_ioctx_t one;
	char names[32], values[32];
	size_t len = sizeof(names), values_len;

	EQUAL(rados_ioctx_create(cluster, "one", &one), 0);
	EQUAL(rados_application_list(one, names, &len), 0);
	EQUAL(len, 0);
	EQUAL(rados_application_metadata_set(one, "app", "k", "v"), -ENOENT);
	EQUAL(rados_application_enable(one, "app", 0), 0);
	EQUAL(rados_application_enable(one, "other", 0), -EPERM);
	EQUAL(rados_application_enable(one, "other", 1), 0);
	len = 3;
	EQUAL(rados_application_list(one, names, &len), -ERANGE);
	EQUAL(len, 10);
	EQUAL(rados_application_list(one, names, &len), 0);
	EXPECT(!memcmp(names, "app\0other", 10));
	EQUAL(rados_application_metadata_set(one, "app", "key", "value"), 0);
	EQUAL(rados_application_metadata_set(one, "app", "k2", ""), 0);
	len = 5;
	EQUAL(rados_application_metadata_get(one, "app", "key", values, &len), -ERANGE);
	EQUAL(len, 6);
	EQUAL(rados_application_metadata_get(one, "app", "key", values, &len), 0);
	EXPECT(!strcmp(values, "value"));
	len = sizeof(values);
	EQUAL(rados_application_metadata_get(one, "app", "none", values, &len), -ENOENT);
	EQUAL(rados_application_metadata_get(one, "none", "key", values, &len), -ENOENT);
	len = values_len = 1;
	EQUAL(rados_application_metadata_list(one, "app", names, &len, values, &values_len), -ERANGE);
	EXPECT(len == 7 && values_len == 7);
	EQUAL(rados_application_metadata_list(one, "app", names, &len, values, &values_len), 0);
	EXPECT(!memcmp(names, "k2\0key", 7) && !memcmp(values, "\0value", 7));
	EQUAL(rados_application_metadata_remove(one, "app", "k2"), 0);
	len = sizeof(values);
	EQUAL(rados_application_metadata_get(one, "app", "k2", values, &len), -ENOENT);
	rados_ioctx_destroy(one);
}

static void figures(void)
{
	struct rados_cluster_stat_t all = {0};
	struct rados_pool_stat_t stat;
	rados_ioctx_t one;

	EQUAL(rados_cluster_stat(cluster, NULL), -EINVAL);
	EQUAL(rados_cluster_stat(cluster, &all), 0);
	EXPECT(all.kb > 0 && all.kb >= all.kb_used && all.kb >= all.kb_avail);
	EQUAL(rados_ioctx_create(cluster, "one", &one), 0);
	EQUAL(rados_ioctx_pool_stat(one, NULL), -EINVAL);
	EQUAL(rados_ioctx_pool_stat(one, &stat), 0);
	EQUAL(stat.num_objects, 0);
	rados_ioctx_destroy(one);
}

static void removed(void)
{
	rados_ioctx_t one;
	char buf[4];

	EQUAL(rados_ioctx_create(cluster, "none", &one), -ENOENT);
	EQUAL(rados_ioctx_create(cluster, "one", NULL), -EINVAL);
	EQUAL(rados_ioctx_create(cluster, "one", &one), 0);
	EQUAL(rados_write_full(one, "o", "x", 1), 0);
	EQUAL(rados_pool_delete(cluster, "one"), 0);
	EQUAL(rados_pool_delete(cluster, "one"), -ENOENT);
	EQUAL(rados_wait_for_latest_osdmap(cluster), 0);
	EQUAL(rados_pool_lookup(cluster, "one"), -ENOENT);
	/* Nothing waits for a pool that is gone. */
	EQUAL(rados_write_full(one, "o", "x", 1), -ENOENT);
	EQUAL(rados_read(one, "o", buf, sizeof(buf), 0), -ENOENT);
	rados_ioctx_destroy(one);
	EQUAL(rados_pool_delete(cluster, "two"), 0);
	EQUAL(rados_pool_delete(cluster, "three"), 0);
	EQUAL(rados_pool_delete(cluster, "four"), 0);
}

int main(int argc, char **argv)
{
	begin(argc, argv);
	made();
	applications();
	figures();
	removed();
	return end();
}
