/* Programs that fork: the library has no threads before it connects, and works in a child that connects itself. Run by
 * tests/it/librados.rs. */

#include "check.h"
#include <dirent.h>
#include <sys/wait.h>

static int threads(void)
{
	int count = 0;
	DIR *tasks = opendir("/proc/self/task");
	EXPECT(tasks);
	for (struct dirent *task; (task = readdir(tasks));)
		count += task->d_name[0] != '.';
	closedir(tasks);
	return count;
}

static void works(const char *oid)
{
	char buf[8];
	EQUAL(rados_connect(cluster), 0);
	EQUAL(rados_ioctx_create(cluster, pool, &io), 0);
	EQUAL(rados_write_full(io, oid, "forked", 6), 0);
	EQUAL(rados_read(io, oid, buf, sizeof(buf), 0), 6);
	EXPECT(threads() > 1);
	rados_ioctx_destroy(io);
	rados_shutdown(cluster);
	/* It takes all of its threads with it. */
	for (int n = 0; n < 6000 && threads() > 1; n++)
		usleep(10000);
	EQUAL(threads(), 1);
}

int main(int argc, char **argv)
{
	char buf[64];
	int status;

	EQUAL(argc, 2);
	pool = argv[1];
	EQUAL(rados_create(&cluster, NULL), 0);
	EQUAL(rados_conf_read_file(cluster, NULL), 0);
	EQUAL(rados_conf_set(cluster, "rados_osd_op_timeout", "60"), 0);
	EQUAL(rados_conf_get(cluster, "rados_osd_op_timeout", buf, sizeof(buf)), 0);
	EQUAL(rados_service_register(cluster, "forking", "x", ""), 0);
	EQUAL(threads(), 1);
	for (int n = 0; n < 3; n++) {
		pid_t child = fork();
		EXPECT(child >= 0);
		if (child == 0) {
			snprintf(buf, sizeof(buf), "child%d", n);
			works(buf);
			_exit(0);
		}
		EQUAL(waitpid(child, &status, 0), child);
		EQUAL(status, 0);
	}
	works("parent");
	puts("done");
	return 0;
}
