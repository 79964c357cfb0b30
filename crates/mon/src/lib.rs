//! Cluster map authority: MapStore, map logic, commands, health.
