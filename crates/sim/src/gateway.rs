//! Asynchronous code above the engine in the simulated world: gateways, queues, delivery.
//!
//! The replication machine is pure and is driven by events; code above the engine is `async`. It runs here on a
//! single-threaded [`executor`] whose order, clocks and random numbers come from one seed, and on [`mem_engine`], which
//! keeps objects in memory, carries out compound operations by the OSD's own interpreter (`nacre_exec`), and makes the trouble that clients
//! of a real cluster see: answers that are lost, operations that are late or overtake one another, operations of a dead
//! process that arrive until it is blocklisted.
//!
//! The same code runs on whole simulated clusters too: [`cluster_engine`] makes its requests those of a client of a
//! [`crate::world::World`], on the world's clock.
//!
//! A process is what crashes as a whole: its tasks are dropped, its sessions fall silent, what it has sent is on its way.
//!
//! One seed names one history: two runs of it have the same [`executor::Executor::hash`].

pub mod cluster_engine;
pub mod executor;
pub mod faults;
pub mod mem_engine;
