//! The S3 gateway of `nacre serve`: its name and key, and its first user.

use super::greeting::S3Access;
use crate::cluster_dir::ClusterDir;
use crate::daemon::{self, Daemon, Frontends};
use anyhow::{Context, Result, ensure};
use nacre_client::engine::CommandTarget;
use nacre_common::Config;
use nacre_common::auth::Keyring;
use nacre_rgw::{AccessKey, User};
use nacre_types::ids::{EntityKind, EntityName};
use serde_json::{Value, json};
use std::sync::Arc;

/// The first S3 user of a new cluster.
pub(super) const FIRST_USER: &str = "admin";
/// The capabilities of a gateway, by service.
const CAPS: [&str; 4] = ["mon", "allow rw", "osd", "allow rwx"];

/// Parses the name of a gateway's client.
pub(super) fn client_name(text: &str) -> Result<EntityName> {
    let name: EntityName = text.parse()?;
    ensure!(name.kind == EntityKind::Client, "the name of a gateway must begin with 'client.'");
    Ok(name)
}

/// Starts the S3 gateway, and creates its first user if there is none. Returns its URLs and the user.
pub(super) async fn start(
    layout: &ClusterDir,
    name: Option<&EntityName>,
    frontends: &Frontends,
    daemons: &mut Vec<Daemon>,
) -> Result<S3Access> {
    println!("starting S3");
    let admin = layout.config(EntityName::client("admin"))?;
    let config = match name {
        None => admin,
        Some(name) => {
            get_or_create_key(layout, &admin, name).await.with_context(|| format!("the key of {name}"))?;
            layout.config(name.clone())?
        }
    };
    let daemon = daemon::start_gateway(&config, frontends).await?;
    let Daemon::Gateway(server, ..) = &daemon else { unreachable!("it is a gateway that was started") };
    let (urls, gateway) = (daemon::server_urls(server), Arc::clone(server.gateway()));
    daemons.push(daemon);
    match gateway.users.get(FIRST_USER).await {
        Err(nacre_rgw::Error::NoSuchUser(_)) => {
            let mut user = User::new(FIRST_USER, "The first user");
            user.keys.push(AccessKey::generate()?);
            gateway.users.create(&user).await?;
            Ok((urls, user))
        }
        found => Ok((urls, found?)),
    }
}

/// Writes the client's keyring. Creates the key if the cluster has none for it.
async fn get_or_create_key(layout: &ClusterDir, admin: &Config, name: &EntityName) -> Result<()> {
    let cluster = nacre_client::native::connect(admin).await?;
    let send = |command: Value| {
        cluster.engine().command(CommandTarget::Mon, command.to_string(), Default::default())
    };
    let entity = name.to_string();
    let found = match send(json!({ "prefix": "auth get", "entity": entity })).await {
        Err(error) if error.is_not_found() => {
            send(json!({ "prefix": "auth get-or-create", "entity": entity, "caps": CAPS })).await
        }
        found => found,
    };
    cluster.shut_down();
    let path = layout.keyring(name);
    let text = String::from_utf8(found?.output.to_vec())?;
    Ok(Keyring::parse(&path, &text)?.write(&path)?)
}
