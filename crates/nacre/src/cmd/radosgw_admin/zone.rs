//! `radosgw-admin zone`: which pool has the data of objects.

use anyhow::{Result, bail};
use clap::Subcommand;
use nacre_client::Cluster;
use nacre_rgw::{PLACEMENT, STORAGE_CLASS, Zone};
use serde_json::Value;

/// The only zone.
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
    List(Which),
    /// Chooses the pool of objects' data, as long as no gateway has started.
    Modify {
        #[command(flatten)]
        which: Which,
        /// The placement target: default-placement.
        #[arg(long)]
        placement_id: String,
        /// The storage class: STANDARD.
        #[arg(long, default_value = STORAGE_CLASS)]
        storage_class: String,
        /// The pool. The first gateway makes it where it is not there.
        #[arg(long)]
        data_pool: String,
    },
}

#[derive(Debug, clap::Args)]
pub(super) struct Which {
    /// The zone: default.
    #[arg(long, default_value = NAME)]
    rgw_zone: String,
}

impl Which {
    fn check(&self) -> Result<()> {
        match self.rgw_zone.as_str() {
            NAME => Ok(()),
            other => bail!("there is no zone {other}: the only zone is {NAME}"),
        }
    }
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
        Verb::Placement(PlacementVerb::Modify { which, placement_id, storage_class, data_pool }) => {
            which.check()?;
            if placement_id != PLACEMENT {
                bail!("there is no placement target {placement_id}: the only one is {PLACEMENT}");
            }
            if storage_class != STORAGE_CLASS {
                bail!("there is no storage class {storage_class}: the only one is {STORAGE_CLASS}");
            }
            if data_pool.is_empty() {
                bail!("--data-pool is empty");
            }
            Zone::set_data_pool(cluster, &data_pool).await?.describe_placement()
        }
    }))
}
