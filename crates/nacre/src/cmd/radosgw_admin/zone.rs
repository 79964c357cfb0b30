//! `radosgw-admin zone` and `zonegroup`: the pools for the data of objects, by storage class.

use anyhow::{Result, bail};
use clap::Subcommand;
use nacre_client::Cluster;
use nacre_rgw::{DEFAULT_PLACEMENT, DEFAULT_STORAGE_CLASS, Zone};
use serde_json::Value;

/// The only zone, and the only zonegroup.
const NAME: &str = "default";

#[derive(Debug, Subcommand)]
pub(super) enum ZoneVerb {
    /// Print the zone.
    Get(ZoneArgs),
    /// Data pools of the zone.
    #[command(subcommand)]
    Placement(PlacementVerb),
}

#[derive(Debug, Subcommand)]
pub(super) enum PlacementVerb {
    /// List the placement targets.
    #[command(visible_alias = "ls")]
    List(ZoneArgs),
    /// Print a placement target.
    Get {
        #[command(flatten)]
        which: ZoneArgs,
        #[command(flatten)]
        target: PlacementTargetArgs,
    },
    /// Set the data pool of a storage class of the zonegroup.
    Add(PlacementArgs),
    /// Change the data pool: of STANDARD until a gateway has started, of other classes while they have no data.
    Modify(PlacementArgs),
    /// Remove a storage class without data.
    Rm {
        #[command(flatten)]
        which: ZoneArgs,
        #[command(flatten)]
        target: PlacementTargetArgs,
        /// Storage class.
        #[arg(long)]
        storage_class: String,
    },
}

#[derive(Debug, clap::Args)]
pub(super) struct PlacementArgs {
    #[command(flatten)]
    which: ZoneArgs,
    #[command(flatten)]
    target: PlacementTargetArgs,
    /// Storage class.
    #[arg(long, default_value = DEFAULT_STORAGE_CLASS)]
    storage_class: String,
    /// Data pool. Gateways create it if it does not exist.
    #[arg(long)]
    data_pool: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(super) enum ZonegroupVerb {
    /// Print the zonegroup.
    Get(ZonegroupArgs),
    /// Storage classes of the zonegroup.
    #[command(subcommand)]
    Placement(ZonegroupPlacementVerb),
}

#[derive(Debug, Subcommand)]
pub(super) enum ZonegroupPlacementVerb {
    /// List the placement targets.
    #[command(visible_alias = "ls")]
    List(ZonegroupArgs),
    /// Print a placement target.
    Get {
        #[command(flatten)]
        group: ZonegroupArgs,
        #[command(flatten)]
        target: PlacementTargetArgs,
    },
    /// Add a storage class.
    Add(ZonegroupPlacementArgs),
    /// Same as add.
    Modify(ZonegroupPlacementArgs),
    /// Remove a storage class that has no pool in the zone.
    Rm(ZonegroupPlacementArgs),
}

#[derive(Debug, clap::Args)]
pub(super) struct ZonegroupPlacementArgs {
    #[command(flatten)]
    group: ZonegroupArgs,
    #[command(flatten)]
    target: PlacementTargetArgs,
    /// Storage class.
    #[arg(long)]
    storage_class: String,
}

#[derive(Debug, clap::Args)]
pub(super) struct PlacementTargetArgs {
    /// Placement target; only default-placement.
    #[arg(long)]
    placement_id: String,
}

#[derive(Debug, clap::Args)]
pub(super) struct ZoneArgs {
    /// Zone; only default.
    #[arg(long, default_value = NAME)]
    rgw_zone: String,
}

#[derive(Debug, clap::Args)]
pub(super) struct ZonegroupArgs {
    /// Zonegroup; only default.
    #[arg(long, default_value = NAME)]
    rgw_zonegroup: String,
}

impl ZoneArgs {
    fn check(&self) -> Result<()> {
        match self.rgw_zone.as_str() {
            NAME => Ok(()),
            other => bail!("there is no zone {other}: the only zone is {NAME}"),
        }
    }
}

impl ZonegroupArgs {
    fn check(&self) -> Result<()> {
        match self.rgw_zonegroup.as_str() {
            NAME => Ok(()),
            other => bail!("there is no zonegroup {other}: the only zonegroup is {NAME}"),
        }
    }
}

impl PlacementTargetArgs {
    fn check(&self) -> Result<()> {
        match self.placement_id.as_str() {
            DEFAULT_PLACEMENT => Ok(()),
            other => bail!(
                "placement id '{other}' is not configured in zonegroup placement targets: the only one is {DEFAULT_PLACEMENT}"
            ),
        }
    }
}

/// The only target of a list.
fn only_target(mut targets: Value) -> Value {
    targets[0]["val"].take()
}

pub(super) async fn carry_out(cluster: &Cluster, verb: ZoneVerb) -> Result<Option<Value>> {
    Ok(Some(match verb {
        ZoneVerb::Get(which) => {
            which.check()?;
            Zone::read(cluster).await?.describe()
        }
        ZoneVerb::Placement(PlacementVerb::List(which)) => {
            which.check()?;
            Zone::read(cluster).await?.describe_zone_placement()
        }
        ZoneVerb::Placement(PlacementVerb::Get { which, target }) => {
            which.check()?;
            target.check()?;
            only_target(Zone::read(cluster).await?.describe_zone_placement())
        }
        ZoneVerb::Placement(PlacementVerb::Add(args) | PlacementVerb::Modify(args)) => {
            let PlacementArgs { which, target, storage_class, data_pool } = args;
            which.check()?;
            target.check()?;
            Zone::set_class_pool(cluster, &storage_class, data_pool.as_deref())
                .await?
                .describe_zone_placement()
        }
        ZoneVerb::Placement(PlacementVerb::Rm { which, target, storage_class }) => {
            which.check()?;
            target.check()?;
            Zone::remove_class_pool(cluster, &storage_class).await?.describe_zone_placement()
        }
    }))
}

pub(super) async fn run_zonegroup(cluster: &Cluster, verb: ZonegroupVerb) -> Result<Option<Value>> {
    Ok(Some(match verb {
        ZonegroupVerb::Get(group) => {
            group.check()?;
            Zone::read(cluster).await?.describe_zonegroup()
        }
        ZonegroupVerb::Placement(ZonegroupPlacementVerb::List(group)) => {
            group.check()?;
            Zone::read(cluster).await?.describe_zonegroup_placement()
        }
        ZonegroupVerb::Placement(ZonegroupPlacementVerb::Get { group, target }) => {
            group.check()?;
            target.check()?;
            only_target(Zone::read(cluster).await?.describe_zonegroup_placement())
        }
        ZonegroupVerb::Placement(
            ZonegroupPlacementVerb::Add(args) | ZonegroupPlacementVerb::Modify(args),
        ) => {
            args.group.check()?;
            args.target.check()?;
            Zone::define_class(cluster, &args.storage_class).await?.describe_zonegroup_placement()
        }
        ZonegroupVerb::Placement(ZonegroupPlacementVerb::Rm(args)) => {
            args.group.check()?;
            args.target.check()?;
            Zone::undefine_class(cluster, &args.storage_class).await?.describe_zonegroup_placement()
        }
    }))
}
