//! The commands of the map authority that gateways use: pools, the blocklist, configuration keys.

use super::{Blocked, DEFAULT_PG_NUM, Inner, World};
use bytes::Bytes;
use nacre_engine::{CommandReply, Error, Result};
use nacre_types::errno::Errno;
use serde_json::{Value, json};
use std::sync::Arc;

/// Default duration of an entry of the blocklist, in seconds (`mon_osd_blocklist_default_expire`).
const DEFAULT_EXPIRE_S: f64 = 3600.0;

fn refuse<T>(errno: Errno, status: impl Into<String>) -> Result<T> {
    Err(Error::Command { errno, status: status.into() })
}

fn done(status: impl Into<String>) -> Result<CommandReply> {
    Ok(CommandReply { status: status.into(), output: Bytes::new() })
}

fn answer(output: Value) -> Result<CommandReply> {
    Ok(CommandReply { status: String::new(), output: output.to_string().into() })
}

impl Inner {
    /// Executes a command.
    pub(super) fn command(self: &Arc<Self>, command: &str) -> Result<CommandReply> {
        let Ok(command) = serde_json::from_str::<Value>(command) else {
            return refuse(Errno::EINVAL, "the command is no JSON");
        };
        let text = |name: &str| command[name].as_str().unwrap_or_default().to_owned();
        self.scheduler.note("command", 0);
        let wall_ns = self.scheduler.wall_ns();
        let mut guard = self.world.lock();
        let world = &mut *guard;
        match text("prefix").as_str() {
            "osd pool create" => self.create_pool(world, &text("pool"), &command),
            "osd pool rm" => self.remove_pool(world, &text("pool")),
            "osd pool application enable" => match world.pool_id(&text("pool")) {
                Some(_) => done("enabled"),
                None => refuse(Errno::ENOENT, "there is no such pool"),
            },
            "osd blocklist" => self.blocklist(world, &command, wall_ns),
            "osd stat" => answer(json!({ "epoch": world.epoch, "num_osds": super::OSDS })),
            "config-key set" => {
                world.config_keys.insert(text("key"), text("val"));
                done("set")
            }
            "config-key rm" => {
                world.config_keys.remove(&text("key"));
                done("removed")
            }
            "config-key get" => match world.config_keys.get(&text("key")) {
                Some(value) => Ok(CommandReply { status: String::new(), output: value.clone().into() }),
                None => refuse(Errno::ENOENT, "there is no such key"),
            },
            other => refuse(Errno::EINVAL, format!("the command '{other}' is not simulated")),
        }
    }

    fn create_pool(self: &Arc<Self>, world: &mut World, name: &str, command: &Value) -> Result<CommandReply> {
        if world.pool_id(name).is_some() {
            return refuse(Errno::EEXIST, format!("pool '{name}' already exists"));
        }
        let asked = command["pg_num"].as_u64().and_then(|pg_num| u32::try_from(pg_num).ok());
        world.make_pool(name, asked.unwrap_or(DEFAULT_PG_NUM).max(1));
        self.publish(world);
        done(format!("pool '{name}' created"))
    }

    fn remove_pool(self: &Arc<Self>, world: &mut World, name: &str) -> Result<CommandReply> {
        let Some(pool) = world.pool_id(name) else { return done("there is no such pool") };
        world.pools.remove(&pool);
        world.pgs.retain(|pg, _| pg.pool != pool);
        world.image.collections.retain(|pg, _| pg.pool != pool);
        self.publish(world);
        done(format!("pool '{name}' removed"))
    }

    fn blocklist(self: &Arc<Self>, world: &mut World, command: &Value, wall_ns: u64) -> Result<CommandReply> {
        let addr = command["addr"].as_str().unwrap_or_default().to_owned();
        match command["blocklistop"].as_str() {
            Some("add") if !addr.is_empty() => {
                let expire_s = command["expire"].as_f64().unwrap_or(DEFAULT_EXPIRE_S).clamp(1.0, 1e9);
                let until_wall_ns = wall_ns + (expire_s * 1e9) as u64;
                self.publish(world);
                // A PG that has an earlier map with the entry continues to refuse.
                let known = world.blocklist.get(&addr).filter(|known| known.until_wall_ns > wall_ns);
                let since_epoch = known.map_or(world.epoch, |known| known.since_epoch);
                world.blocklist.insert(addr.clone(), Blocked { since_epoch, until_wall_ns });
                done(format!("blocklisting {addr}"))
            }
            Some("rm") if !addr.is_empty() => {
                world.blocklist.remove(&addr);
                self.publish(world);
                done(format!("un-blocklisting {addr}"))
            }
            Some("ls") => answer(world.blocklist.keys().map(|addr| json!({ "addr": addr })).collect()),
            _ => refuse(Errno::EINVAL, "blocklistop is add, rm or ls"),
        }
    }
}
