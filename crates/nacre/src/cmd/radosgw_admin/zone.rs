//! `radosgw-admin zone` and `zonegroup`: the pools for the data of objects, by storage class.

use anyhow::{Result, bail};
use clap::Subcommand;
use nacre_client::Cluster;
use nacre_rgw::{PLACEMENT, STORAGE_CLASS, Zone};
use serde_json::Value;

/// The only zone, and the only zonegroup.
const NAME: &str = "default";

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Prints the zone.
    Get(Which),
    /// Where the zone's objects are.
    #[command(subcommand)]
    Placement(PlacementVerb),
}

#[derive(Debug, Subcommand)]
pub(super) enum PlacementVerb {
    /// Prints the placement targets.
    #[command(visible_alias = "ls")]
    List(Which),
    /// Prints a placement target.
    Get {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        target: Target,
    },
    /// Names the pool of a storage class that the zonegroup has.
    Add(PlacementArgs),
    /// Changes the pool: of STANDARD as long as no gateway has started, of other classes as long as they have no data.
    Modify(PlacementArgs),
    /// Removes a storage class that has no data.
    Rm {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        target: Target,
        /// The storage class.
        #[arg(long)]
        storage_class: String,
    },
}

#[derive(Debug, clap::Args)]
pub(super) struct PlacementArgs {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    target: Target,
    /// The storage class.
    #[arg(long, default_value = STORAGE_CLASS)]
    storage_class: String,
    /// The pool. Gateways make it where it is not there.
    #[arg(long)]
    data_pool: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(super) enum GroupVerb {
    /// Prints the zonegroup.
    Get(Group),
    /// The zonegroup's storage classes.
    #[command(subcommand)]
    Placement(GroupPlacementVerb),
}

#[derive(Debug, Subcommand)]
pub(super) enum GroupPlacementVerb {
    /// Prints the placement targets.
    #[command(visible_alias = "ls")]
    List(Group),
    /// Prints a placement target.
    Get {
        #[command(flatten)]
        group: Group,
        #[command(flatten)]
        target: Target,
    },
    /// Adds a storage class.
    Add(GroupPlacementArgs),
    /// The same.
    Modify(GroupPlacementArgs),
    /// Removes a storage class that has no pool in the zone.
    Rm(GroupPlacementArgs),
}

#[derive(Debug, clap::Args)]
pub(super) struct GroupPlacementArgs {
    #[command(flatten)]
    group: Group,
    #[command(flatten)]
    target: Target,
    /// The storage class.
    #[arg(long)]
    storage_class: String,
}

#[derive(Debug, clap::Args)]
pub(super) struct Target {
    /// The placement target: default-placement.
    #[arg(long)]
    placement_id: String,
}

#[derive(Debug, clap::Args)]
pub(super) struct Which {
    /// The zone: default.
    #[arg(long, default_value = NAME)]
    rgw_zone: String,
}

#[derive(Debug, clap::Args)]
pub(super) struct Group {
    /// The zonegroup: default.
    #[arg(long, default_value = NAME)]
    rgw_zonegroup: String,
}

impl Which {
    fn check(&self) -> Result<()> {
        match self.rgw_zone.as_str() {
            NAME => Ok(()),
            other => bail!("there is no zone {other}: the only zone is {NAME}"),
        }
    }
}

impl Group {
    fn check(&self) -> Result<()> {
        match self.rgw_zonegroup.as_str() {
            NAME => Ok(()),
            other => bail!("there is no zonegroup {other}: the only zonegroup is {NAME}"),
        }
    }
}

impl Target {
    fn check(&self) -> Result<()> {
        match self.placement_id.as_str() {
            PLACEMENT => Ok(()),
            other => bail!(
                "placement id '{other}' is not configured in zonegroup placement targets: the only one is {PLACEMENT}"
            ),
        }
    }
}

/// The only target of a list.
fn only_target(mut targets: Value) -> Value {
    targets[0]["val"].take()
}

pub(super) async fn carry_out(cluster: &Cluster, verb: Verb) -> Result<Option<Value>> {
    Ok(Some(match verb {
        Verb::Get(which) => {
            which.check()?;
            Zone::read(cluster).await?.describe()
        }
        Verb::Placement(PlacementVerb::List(which)) => {
            which.check()?;
            Zone::read(cluster).await?.describe_placement()
        }
        Verb::Placement(PlacementVerb::Get { which, target }) => {
            which.check()?;
            target.check()?;
            only_target(Zone::read(cluster).await?.describe_placement())
        }
        Verb::Placement(PlacementVerb::Add(args) | PlacementVerb::Modify(args)) => {
            let PlacementArgs { which, target, storage_class, data_pool } = args;
            which.check()?;
            target.check()?;
            Zone::set_class_pool(cluster, &storage_class, data_pool.as_deref()).await?.describe_placement()
        }
        Verb::Placement(PlacementVerb::Rm { which, target, storage_class }) => {
            which.check()?;
            target.check()?;
            Zone::remove_class_pool(cluster, &storage_class).await?.describe_placement()
        }
    }))
}

pub(super) async fn carry_out_of_group(cluster: &Cluster, verb: GroupVerb) -> Result<Option<Value>> {
    Ok(Some(match verb {
        GroupVerb::Get(group) => {
            group.check()?;
            Zone::read(cluster).await?.describe_zonegroup()
        }
        GroupVerb::Placement(GroupPlacementVerb::List(group)) => {
            group.check()?;
            Zone::read(cluster).await?.describe_targets()
        }
        GroupVerb::Placement(GroupPlacementVerb::Get { group, target }) => {
            group.check()?;
            target.check()?;
            only_target(Zone::read(cluster).await?.describe_targets())
        }
        GroupVerb::Placement(GroupPlacementVerb::Add(args) | GroupPlacementVerb::Modify(args)) => {
            args.group.check()?;
            args.target.check()?;
            Zone::define_class(cluster, &args.storage_class).await?.describe_targets()
        }
        GroupVerb::Placement(GroupPlacementVerb::Rm(args)) => {
            args.group.check()?;
            args.target.check()?;
            Zone::undefine_class(cluster, &args.storage_class).await?.describe_targets()
        }
    }))
}
