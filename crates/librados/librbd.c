/* The names of Ceph's block devices that fio looks for when it starts. Nothing here is ever called: fio's rados engine
 * has no use for them, and Ceph's own librbd needs the C++ interface of Ceph's librados. */

#define NAME(name) int name(void) { return -95; }

NAME(rbd_aio_create_completion)
NAME(rbd_aio_discard)
NAME(rbd_aio_flush)
NAME(rbd_aio_get_arg)
NAME(rbd_aio_get_return_value)
NAME(rbd_aio_read)
NAME(rbd_aio_release)
NAME(rbd_aio_write)
NAME(rbd_close)
NAME(rbd_flush)
NAME(rbd_invalidate_cache)
NAME(rbd_open)
NAME(rbd_poll_io_events)
NAME(rbd_set_image_notification)
NAME(rbd_stat)
