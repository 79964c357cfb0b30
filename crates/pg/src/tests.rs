//! Several machines together: a toy cluster with stores, links, an authority and clients.

#![expect(unreachable_pub, reason = "modules of one test share each other's types")]

mod authority;
mod clients;
mod cluster;
mod damage;
mod fences;
mod host;
mod life;
mod random;
mod size;
mod store;
