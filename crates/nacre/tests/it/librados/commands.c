/* Commands to all kinds of daemons, the cluster log, and lists in their older form. Run by tests/it/librados.rs. */

#include "check.h"

static char *out, *status;
static size_t out_len, status_len;

/* Whether the last command's output has this in it; gives the output back. */
static int said(const char *text)
{
	int found = 0;
	size_t len = strlen(text);
	for (size_t at = 0; at + len <= out_len && !found; at++)
		found = !memcmp(out + at, text, len);
	rados_buffer_free(out);
	rados_buffer_free(status);
	out = status = NULL;
	return found;
}

#define RESULTS &out, &out_len, &status, &status_len

static void daemons(void)
{
	const char *version[] = {"{\"prefix\": \"version\"}"}, *none[] = {"{\"prefix\": \"no such command\"}"};
	const char *query[1], *bad[] = {"{"}, *health[] = {"{\"prefix\": \"health\"}"};
	char pg[32], text[64];

	EQUAL(rados_mon_command(cluster, none, 1, NULL, 0, RESULTS), -EINVAL);
	EXPECT(status_len > 0 && !out_len);
	said("");
	EQUAL(rados_mon_command(cluster, bad, 1, NULL, 0, RESULTS), -EINVAL);
	said("");
	EQUAL(rados_mon_command(cluster, health, 1, NULL, 0, NULL, NULL, NULL, NULL), 0);
	EQUAL(rados_mgr_command(cluster, health, 1, NULL, 0, RESULTS), 0);
	EXPECT(said("HEALTH_"));
	EQUAL(rados_mgr_command_target(cluster, NULL, health, 1, NULL, 0, RESULTS), 0);
	EXPECT(said("HEALTH_"));
	EQUAL(rados_osd_command(cluster, 0, version, 1, NULL, 0, RESULTS), 0);
	EXPECT(said("version"));
	EQUAL(rados_osd_command(cluster, 99, version, 1, NULL, 0, RESULTS), -ENOENT);
	said("");
	EQUAL(rados_osd_command(cluster, -1, version, 1, NULL, 0, RESULTS), -EINVAL);
	said("");
	snprintf(pg, sizeof(pg), "%lld.0", (long long)rados_ioctx_get_id(io));
	snprintf(text, sizeof(text), "{\"prefix\": \"query\", \"pgid\": \"%s\"}", pg);
	query[0] = text;
	EQUAL(rados_pg_command(cluster, pg, query, 1, NULL, 0, RESULTS), 0);
	EXPECT(said("info"));
	EQUAL(rados_pg_command(cluster, "no pg", query, 1, NULL, 0, RESULTS), -EINVAL);
	said("");
	rados_buffer_free(NULL);
}

static void pings(void)
{
	const char *dump[] = {"{\"prefix\": \"mon dump\", \"format\": \"json\"}"};
	char name[32] = "", fsid[37], *answer;
	size_t len;
	rados_t other;

	EQUAL(rados_mon_command(cluster, dump, 1, NULL, 0, RESULTS), 0);
	char *found = strstr(out, "\"name\":\"");
	EXPECT(found && sscanf(found, "\"name\":\"%31[^\"]", name) == 1);
	said("");
	EQUAL(rados_ping_monitor(cluster, name, &answer, &len), 0);
	EXPECT(strlen(answer) == len && strstr(answer, "health"));
	rados_buffer_free(answer);
	/* The answer may be nobody's concern. */
	EQUAL(rados_ping_monitor(cluster, name, NULL, NULL), 0);
	EQUAL(rados_ping_monitor(cluster, "nobody", &answer, &len), -ENOENT);
	/* Without a session. */
	EQUAL(rados_create(&other, NULL), 0);
	EQUAL(rados_conf_read_file(other, NULL), 0);
	EQUAL(rados_ping_monitor(other, name, &answer, &len), 0);
	rados_buffer_free(answer);
	EQUAL(rados_cluster_fsid(other, fsid, sizeof(fsid)), 36);
	EXPECT(!strcmp(fsid, "00000000-0000-0000-0000-000000000000"));
	rados_shutdown(other);
}

static int lines, own, audits;

static void on_line(void *arg, const char *line, const char *who, uint64_t sec, uint64_t nsec, uint64_t seq,
		    const char *level, const char *msg)
{
	(void)nsec;
	(void)seq;
	EXPECT(arg == &lines && strlen(line) > strlen(msg) && strlen(who) > 0 && sec > 1000000000 && strlen(level) > 0);
	if (strstr(msg, "said by a test"))
		__atomic_add_fetch(&own, 1, __ATOMIC_SEQ_CST);
	__atomic_add_fetch(&lines, 1, __ATOMIC_SEQ_CST);
}

static void on_line2(void *arg, const char *line, const char *channel, const char *who, const char *name, uint64_t sec,
		     uint64_t nsec, uint64_t seq, const char *level, const char *msg)
{
	EXPECT(!strcmp(channel, "cluster") || !strcmp(channel, "audit"));
	if (!strcmp(channel, "audit"))
		__atomic_add_fetch(&audits, 1, __ATOMIC_SEQ_CST);
	on_line(arg, line, name ? name : who, sec, nsec, seq, level, msg);
}

static void logged(void)
{
	const char *log[] = {"{\"prefix\": \"log\", \"logtext\": [\"said\", \"by\", \"a\", \"test\"]}"};

	EQUAL(rados_monitor_log(cluster, "no such level", on_line, &lines), -EINVAL);
	for (int version = 1; version <= 2; version++) {
		own = lines = audits = 0;
		if (version == 1)
			EQUAL(rados_monitor_log(cluster, "info", on_line, &lines), 0);
		else
			EQUAL(rados_monitor_log2(cluster, "info", on_line2, &lines), 0);
		/* The last entries are told first: in the second round of both channels. */
		for (int n = 0; n < 6000 && version == 2 && __atomic_load_n(&lines, __ATOMIC_SEQ_CST) < 2; n++)
			usleep(10000);
		EXPECT(version == 1 || (lines >= 2 && audits >= 1));
		__atomic_store_n(&own, 0, __ATOMIC_SEQ_CST);
		EQUAL(rados_mon_command(cluster, log, 1, NULL, 0, NULL, NULL, NULL, NULL), 0);
		for (int n = 0; n < 6000 && !__atomic_load_n(&own, __ATOMIC_SEQ_CST); n++)
			usleep(10000);
		EQUAL(own, 1);
		/* Given back, it tells no more. */
		EQUAL(rados_monitor_log(cluster, "", NULL, NULL), 0);
	}
}

static void lists(void)
{
	rados_list_ctx_t list;
	const char *entry, *key;
	char oid[16];
	int found = 0;

	rados_ioctx_set_namespace(io, "older");
	for (int n = 0; n < 20; n++) {
		snprintf(oid, sizeof(oid), "l%d", n);
		rados_ioctx_locator_set_key(io, n == 7 ? "key" : NULL);
		EQUAL(rados_write_full(io, oid, "x", 1), 0);
	}
	rados_ioctx_locator_set_key(io, NULL);
	EQUAL(rados_objects_list_open(io, &list), 0);
	uint32_t first = rados_objects_list_get_pg_hash_position(list);
	EQUAL(rados_nobjects_list_get_pg_hash_position(list), first);
	while (!rados_objects_list_next(list, &entry, &key)) {
		EXPECT((key && !strcmp(key, "key")) == !strcmp(entry, "l7"));
		found++;
	}
	EQUAL(found, 20);
	EQUAL(rados_objects_list_next(list, &entry, &key), -ENOENT);
	rados_objects_list_seek(list, 0);
	EQUAL(rados_objects_list_next(list, &entry, NULL), 0);
	rados_objects_list_close(list);
	EQUAL(rados_objects_list_next(list, &entry, &key), -EINVAL);
	/* All namespaces. */
	rados_ioctx_set_namespace(io, LIBRADOS_ALL_NSPACES);
	EQUAL(rados_nobjects_list_open(io, &list), 0);
	const char *nspace;
	for (found = 0; !rados_nobjects_list_next(list, &entry, &key, &nspace);)
		found += !strcmp(nspace, "older");
	EQUAL(found, 20);
	rados_nobjects_list_close(list);
	rados_ioctx_set_namespace(io, NULL);
}

static void fenced(void)
{
	rados_t other;
	rados_ioctx_t theirs;
	char *addrs;

	EQUAL(rados_blacklist_add(cluster, "", 0), -EINVAL);
	EQUAL(rados_create(&other, NULL), 0);
	EQUAL(rados_conf_read_file(other, NULL), 0);
	EQUAL(rados_connect(other), 0);
	EQUAL(rados_ioctx_create(other, pool, &theirs), 0);
	EQUAL(rados_write_full(theirs, "o", "x", 1), 0);
	EQUAL(rados_getaddrs(other, &addrs), 0);
	EQUAL(rados_blacklist_add(cluster, addrs, 60), 0);
	free(addrs);
	EQUAL(rados_wait_for_latest_osdmap(other), 0);
	EQUAL(rados_write_full(theirs, "o", "x", 1), -ESHUTDOWN);
	rados_ioctx_destroy(theirs);
	rados_shutdown(other);
	EQUAL(rados_write_full(io, "o", "x", 1), 0);
}

static int lost_code;

static void heard_nothing(void *arg, uint64_t notify_id, uint64_t handle, uint64_t notifier, void *data, size_t len)
{
	(void)arg, (void)notify_id, (void)handle, (void)notifier, (void)data, (void)len;
}

static void lost(void *arg, uint64_t cookie, int code)
{
	(void)arg, (void)cookie;
	__atomic_store_n(&lost_code, code, __ATOMIC_SEQ_CST);
}

/* A watch whose client gives no sign of life lapses after the time that the client asked for. */
static void lapsing(void)
{
	uint64_t watch;
	int code;

	EQUAL(rados_write_full(io, "watched", "x", 1), 0);
	EQUAL(rados_conf_set(cluster, "objecter_inject_no_watch_ping", "true"), 0);
	EQUAL(rados_watch3(io, "watched", &watch, heard_nothing, lost, 2, NULL), 0);
	EXPECT(rados_watch_check(io, watch) > 0);
	for (int n = 0; n < 2000 && !__atomic_load_n(&lost_code, __ATOMIC_SEQ_CST); n++)
		usleep(10000);
	EQUAL(lost_code, -ENOTCONN);
	EQUAL(rados_watch_check(io, watch), -ENOTCONN);
	code = rados_unwatch2(io, watch);
	EXPECT(code == 0 || code == -ENOTCONN);
	EQUAL(rados_conf_set(cluster, "objecter_inject_no_watch_ping", "false"), 0);
}

int main(int argc, char **argv)
{
	begin(argc, argv);
	daemons();
	pings();
	logged();
	lists();
	fenced();
	lapsing();
	return end();
}
