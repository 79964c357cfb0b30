//! The replication state machine of one placement group: pure, events in, commands out.
