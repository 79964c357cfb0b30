//! Asynchronous code above the engine in the simulated world: gateways, queues, delivery.
//!
//! The replication machine is pure and driven by events; code above the engine is `async`. Here it runs on a single-threaded
//! [`executor`] whose order, clocks and random numbers come from one seed, and on [`mem_engine`], which keeps objects in
//! memory and executes compound operations with the OSD's own interpreter (`nacre_exec`). The engine also causes the faults
//! that clients of a real cluster see: lost answers, operations that are late or overtake one another, and operations of a
//! dead process that arrive until it is blocklisted.
//!
//! The same code also runs on whole simulated clusters: [`cluster_engine`] sends its requests as those of a client of a
//! [`crate::world::World`], on the world's clock.
//!
//! A process crashes as a whole: its tasks are dropped and its sessions fall silent, while its sent messages are still under way.
//!
//! One seed determines one history: two runs of it have the same [`executor::Executor::hash`].

pub mod cluster_engine;
pub mod executor;
pub mod faults;
pub mod mem_engine;
