//! `radosgw-admin topic` and `radosgw-admin notification`: notification topics with their queues, and buckets' configurations.

use anyhow::{Context as _, Result, ensure};
use clap::{Args, Subcommand};
use nacre_rgw::Gateway;
use serde_json::{Value, json};

/// Topics listed where no number is named.
const DEFAULT_ENTRIES: u64 = 1000;

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Prints all topics, or those of a user.
    #[command(alias = "ls")]
    List {
        /// The user's id.
        #[arg(long)]
        uid: Option<String>,
        /// Topics behind this name.
        #[arg(long)]
        marker: Option<String>,
        /// At most so many topics.
        #[arg(long)]
        max_entries: Option<u64>,
    },
    /// Prints a topic.
    Get(Which),
    /// Removes a topic with its queues and the events in them.
    Rm(Which),
}

#[derive(Debug, Subcommand)]
pub(super) enum NotificationVerb {
    /// Prints a bucket's notification configurations.
    #[command(alias = "ls")]
    List {
        /// The bucket.
        #[arg(long)]
        bucket: String,
    },
    /// Prints a notification configuration.
    Get {
        /// The bucket.
        #[arg(long)]
        bucket: String,
        /// The configuration's id.
        #[arg(long)]
        notification_id: String,
    },
    /// Removes a notification configuration, or all of a bucket.
    Rm {
        /// The bucket.
        #[arg(long)]
        bucket: String,
        /// The configuration's id; all of them where none is named.
        #[arg(long)]
        notification_id: Option<String>,
    },
}

/// The topic that is meant.
#[derive(Debug, Args)]
pub(super) struct Which {
    /// The topic's name.
    #[arg(value_name = "TOPIC", required_unless_present = "topic", conflicts_with = "topic")]
    named: Option<String>,
    /// The topic's name, as radosgw-admin takes it.
    #[arg(long = "topic", id = "topic", value_name = "TOPIC")]
    topic: Option<String>,
    /// The topic's tenant; there is only the default one.
    #[arg(long)]
    tenant: Option<String>,
}

impl Which {
    fn name(&self) -> Result<&str> {
        ensure!(self.tenant.as_deref().unwrap_or_default().is_empty(), "there is no tenant but the default one");
        self.named.as_deref().or(self.topic.as_deref()).context("--topic is needed")
    }
}

pub(super) async fn carry_out(gateway: &Gateway, verb: Verb) -> Result<Option<Value>> {
    Ok(match verb {
        Verb::List { uid, marker, max_entries } => {
            Some(list(gateway, uid.as_deref(), marker, max_entries.unwrap_or(u64::MAX)).await?)
        }
        Verb::Get(which) => Some(gateway.topic(which.name()?).await?.topic.describe()),
        Verb::Rm(which) => {
            let name = which.name()?;
            ensure!(gateway.remove_topic(name).await?, "no such topic: {name}");
            None
        }
    })
}

async fn list(gateway: &Gateway, uid: Option<&str>, marker: Option<String>, max: u64) -> Result<Value> {
    let (mut found, mut after) = (Vec::new(), marker);
    loop {
        let (topics, more) = gateway.topics(after.as_deref(), max.min(DEFAULT_ENTRIES)).await?;
        after = topics.last().map(|topic| topic.arn.name.clone());
        let wanted = topics.iter().filter(|topic| uid.is_none_or(|uid| topic.owner == uid));
        found.extend(wanted.map(|topic| topic.describe()));
        if !more || found.len() as u64 >= max {
            found.truncate(usize::try_from(max).unwrap_or(usize::MAX));
            return Ok(json!({ "topics": found }));
        }
    }
}

pub(super) async fn notification(gateway: &Gateway, verb: NotificationVerb) -> Result<Option<Value>> {
    Ok(match verb {
        NotificationVerb::List { bucket } => Some(gateway.describe_notifications(&bucket, None).await?),
        NotificationVerb::Get { bucket, notification_id } => {
            Some(gateway.describe_notifications(&bucket, Some(&notification_id)).await?)
        }
        NotificationVerb::Rm { bucket, notification_id } => {
            gateway.remove_notifications(&bucket, notification_id.as_deref()).await?;
            None
        }
    })
}
