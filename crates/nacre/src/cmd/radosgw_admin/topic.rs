//! `radosgw-admin topic` and `radosgw-admin notification`: notification topics with their queues, and buckets' configurations.

use anyhow::{Context as _, Result, ensure};
use clap::{Args, Subcommand};
use nacre_rgw::{DeadLetterAction, DeadLetterSelection, Gateway};
use serde_json::{Value, json};

/// Topics listed by default.
const DEFAULT_ENTRIES: u64 = 1000;
/// Events and dead letters shown by default.
const DEFAULT_EVENTS: usize = 1000;

#[derive(Debug, Subcommand)]
pub(super) enum TopicVerb {
    /// List all topics, or those of a user.
    #[command(alias = "ls")]
    List {
        /// User id.
        #[arg(long)]
        uid: Option<String>,
        /// List topics after this name.
        #[arg(long)]
        marker: Option<String>,
        /// Maximum number of topics.
        #[arg(long)]
        max_entries: Option<u64>,
    },
    /// Print a topic.
    Get(TopicArgs),
    /// Print statistics of a topic's queue: length, owner of each shard, age of the oldest event.
    Stats(TopicArgs),
    /// Print the events in a topic's queue.
    Dump {
        #[command(flatten)]
        which: TopicArgs,
        /// Maximum number of events.
        #[arg(long, default_value_t = DEFAULT_EVENTS)]
        max_entries: usize,
    },
    /// Remove a topic with its queues and their events.
    Rm(TopicArgs),
    /// Change the number of shards of a topic's queue. The queue may be in use; events of a key stay in order.
    Reshard {
        #[command(flatten)]
        which: TopicArgs,
        /// New number of shards.
        #[arg(long, alias = "num-shards")]
        shards: u32,
    },
    /// Dead letters: events that were not delivered within the topic's time_to_live or max_retries.
    #[command(subcommand)]
    Dlq(DlqVerb),
}

#[derive(Debug, Subcommand)]
pub(super) enum DlqVerb {
    /// List dead letters, oldest first.
    #[command(alias = "ls")]
    List {
        #[command(flatten)]
        which: TopicArgs,
        /// List dead letters after this number.
        #[arg(long)]
        marker: Option<u64>,
        /// Maximum number of dead letters.
        #[arg(long, default_value_t = DEFAULT_EVENTS as u64)]
        max_entries: u64,
    },
    /// Deliver dead letters again, marked with "replayed": true.
    Replay(DeadLetterArgs),
    /// Remove dead letters permanently.
    Purge(DeadLetterArgs),
}

/// The selected dead letters.
#[derive(Debug, Args)]
pub(super) struct DeadLetterArgs {
    #[command(flatten)]
    which: TopicArgs,
    /// Number of a dead letter.
    #[arg(long, required_unless_present = "all", conflicts_with = "all")]
    number: Option<u64>,
    /// All dead letters.
    #[arg(long)]
    all: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum NotificationVerb {
    /// List the notification configurations of a bucket.
    #[command(alias = "ls")]
    List {
        /// Bucket name.
        #[arg(long)]
        bucket: String,
    },
    /// Print a notification configuration.
    Get {
        /// Bucket name.
        #[arg(long)]
        bucket: String,
        /// Id of the configuration.
        #[arg(long)]
        notification_id: String,
    },
    /// Remove a notification configuration, or all of a bucket.
    Rm {
        /// Bucket name.
        #[arg(long)]
        bucket: String,
        /// Id of the configuration [default: all].
        #[arg(long)]
        notification_id: Option<String>,
    },
}

/// The selected topic.
#[derive(Debug, Args)]
pub(super) struct TopicArgs {
    /// Topic name.
    #[arg(value_name = "TOPIC", required_unless_present = "topic", conflicts_with = "topic")]
    named: Option<String>,
    /// Topic name, in the syntax of radosgw-admin.
    #[arg(long = "topic", id = "topic", value_name = "TOPIC")]
    topic: Option<String>,
    /// Tenant of the topic; only the default one, the empty string.
    #[arg(long)]
    tenant: Option<String>,
}

impl TopicArgs {
    fn name(&self) -> Result<&str> {
        ensure!(self.tenant.as_deref().unwrap_or_default().is_empty(), "the only tenant is the default one");
        self.named.as_deref().or(self.topic.as_deref()).context("--topic is required")
    }
}

pub(super) async fn run(gateway: &Gateway, verb: TopicVerb) -> Result<Option<Value>> {
    Ok(match verb {
        TopicVerb::List { uid, marker, max_entries } => {
            Some(list(gateway, uid.as_deref(), marker, max_entries.unwrap_or(u64::MAX)).await?)
        }
        TopicVerb::Get(which) => Some(gateway.topics.get(which.name()?).await?.describe()),
        TopicVerb::Stats(which) => Some(gateway.topics.stats(which.name()?).await?),
        TopicVerb::Dump { which, max_entries } => {
            Some(gateway.topics.dump(which.name()?, max_entries).await?)
        }
        TopicVerb::Reshard { which, shards } => {
            Some(gateway.topics.reshard(which.name()?, shards).await?.describe())
        }
        TopicVerb::Dlq(DlqVerb::List { which, marker, max_entries }) => {
            Some(gateway.topics.dead_letters(which.name()?, marker, max_entries).await?)
        }
        TopicVerb::Dlq(DlqVerb::Replay(letters)) => {
            Some(dispose(gateway, &letters, DeadLetterAction::Replay).await?)
        }
        TopicVerb::Dlq(DlqVerb::Purge(letters)) => {
            Some(dispose(gateway, &letters, DeadLetterAction::Purge).await?)
        }
        TopicVerb::Rm(which) => {
            let name = which.name()?;
            ensure!(gateway.topics.remove(name).await?, "no such topic: {name}");
            None
        }
    })
}

async fn dispose(gateway: &Gateway, letters: &DeadLetterArgs, action: DeadLetterAction) -> Result<Value> {
    let which = letters.number.map_or(DeadLetterSelection::All, DeadLetterSelection::One);
    let count = gateway.topics.replay_or_purge_letters(letters.which.name()?, which, action).await?;
    let done = match action {
        DeadLetterAction::Replay => "replayed",
        DeadLetterAction::Purge => "purged",
    };
    Ok(json!({ done: count }))
}

async fn list(gateway: &Gateway, uid: Option<&str>, marker: Option<String>, max: u64) -> Result<Value> {
    let (mut found, mut after) = (Vec::new(), marker);
    loop {
        let (topics, more) = gateway.topics.list(after.as_deref(), max.min(DEFAULT_ENTRIES)).await?;
        after = topics.last().map(|topic| topic.arn.name.clone());
        let wanted = topics.iter().filter(|topic| uid.is_none_or(|uid| topic.owner == uid));
        found.extend(wanted.map(|topic| topic.describe()));
        if !more || found.len() as u64 >= max {
            found.truncate(usize::try_from(max).unwrap_or(usize::MAX));
            return Ok(json!({ "topics": found }));
        }
    }
}

pub(super) async fn run_notification(gateway: &Gateway, verb: NotificationVerb) -> Result<Option<Value>> {
    Ok(match verb {
        NotificationVerb::List { bucket } => Some(gateway.notifications.describe(&bucket, None).await?),
        NotificationVerb::Get { bucket, notification_id } => {
            Some(gateway.notifications.describe(&bucket, Some(&notification_id)).await?)
        }
        NotificationVerb::Rm { bucket, notification_id } => {
            gateway.notifications.remove(&bucket, notification_id.as_deref()).await?;
            None
        }
    })
}
