//! Object storage daemon: PG hosting, op execution, recovery.
