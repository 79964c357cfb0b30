/* Lets a process's fsyncs hang, as those of a disk that does not answer, while the file that HANG names is there. */
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static int synced(long call, int fd)
{
	const char *hang = getenv("HANG");

	while (hang && access(hang, F_OK) == 0)
		usleep(10000);
	return (int)syscall(call, fd);
}

int fsync(int fd)
{
	return synced(SYS_fsync, fd);
}

int fdatasync(int fd)
{
	return synced(SYS_fdatasync, fd);
}
