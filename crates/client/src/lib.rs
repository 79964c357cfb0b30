//! RADOS client: engine seam, objecter, IoCtx, asynchronous I/O.
