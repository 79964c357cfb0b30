//! `radosgw-admin topic` and `radosgw-admin notification`: notification topics with their queues, and buckets' configurations.

use anyhow::{Context as _, Result, ensure};
use clap::{Args, Subcommand};
use nacre_rgw::{DeadLetterAction, DeadLetters, Gateway};
use serde_json::{Value, json};

/// Topics listed by default.
const DEFAULT_ENTRIES: u64 = 1000;
/// Events and dead letters shown by default.
const DEFAULT_EVENTS: usize = 1000;

#[derive(Debug, Subcommand)]
pub(super) enum TopicVerb {
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
    Get(TopicArgs),
    /// Prints what a topic's queue holds, who delivers it, and how far behind that is.
    Stats(TopicArgs),
    /// Prints the events of a topic's queue.
    Dump {
        #[command(flatten)]
        which: TopicArgs,
        /// At most so many events.
        #[arg(long, default_value_t = DEFAULT_EVENTS)]
        max_entries: usize,
    },
    /// Removes a topic with its queues and the events in them.
    Rm(TopicArgs),
    /// Gives a topic's queue another number of shards, while it is in use: no event is lost, and those of a key stay in order.
    Reshard {
        #[command(flatten)]
        which: TopicArgs,
        /// Shards that it is to have.
        #[arg(long, alias = "num-shards")]
        shards: u32,
    },
    /// Events that could not be delivered within the topic's time_to_live or max_retries.
    #[command(subcommand)]
    Dlq(DlqVerb),
}

#[derive(Debug, Subcommand)]
pub(super) enum DlqVerb {
    /// Prints dead letters, oldest first.
    #[command(alias = "ls")]
    List {
        #[command(flatten)]
        which: TopicArgs,
        /// Those behind this number.
        #[arg(long)]
        marker: Option<u64>,
        /// At most so many.
        #[arg(long, default_value_t = DEFAULT_EVENTS as u64)]
        max_entries: u64,
    },
    /// Delivers dead letters again, marked with "replayed": true.
    Replay(DeadLetterArgs),
    /// Removes dead letters for good.
    Purge(DeadLetterArgs),
}

/// The dead letters that are meant.
#[derive(Debug, Args)]
pub(super) struct DeadLetterArgs {
    #[command(flatten)]
    which: TopicArgs,
    /// The letter with this number.
    #[arg(long, required_unless_present = "all", conflicts_with = "all")]
    number: Option<u64>,
    /// All letters.
    #[arg(long)]
    all: bool,
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
pub(super) struct TopicArgs {
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

impl TopicArgs {
    fn name(&self) -> Result<&str> {
        ensure!(
            self.tenant.as_deref().unwrap_or_default().is_empty(),
            "there is no tenant but the default one"
        );
        self.named.as_deref().or(self.topic.as_deref()).context("--topic is needed")
    }
}

pub(super) async fn run(gateway: &Gateway, verb: TopicVerb) -> Result<Option<Value>> {
    Ok(match verb {
        TopicVerb::List { uid, marker, max_entries } => {
            Some(list(gateway, uid.as_deref(), marker, max_entries.unwrap_or(u64::MAX)).await?)
        }
        TopicVerb::Get(which) => Some(gateway.topic(which.name()?).await?.describe()),
        TopicVerb::Stats(which) => Some(gateway.topic_stats(which.name()?).await?),
        TopicVerb::Dump { which, max_entries } => Some(gateway.dump_topic(which.name()?, max_entries).await?),
        TopicVerb::Reshard { which, shards } => {
            Some(gateway.reshard_topic(which.name()?, shards).await?.describe())
        }
        TopicVerb::Dlq(DlqVerb::List { which, marker, max_entries }) => {
            Some(gateway.dead_letters(which.name()?, marker, max_entries).await?)
        }
        TopicVerb::Dlq(DlqVerb::Replay(letters)) => {
            Some(dispose(gateway, &letters, DeadLetterAction::Replay).await?)
        }
        TopicVerb::Dlq(DlqVerb::Purge(letters)) => {
            Some(dispose(gateway, &letters, DeadLetterAction::Purge).await?)
        }
        TopicVerb::Rm(which) => {
            let name = which.name()?;
            ensure!(gateway.remove_topic(name).await?, "no such topic: {name}");
            None
        }
    })
}

async fn dispose(gateway: &Gateway, letters: &DeadLetterArgs, action: DeadLetterAction) -> Result<Value> {
    let which = letters.number.map_or(DeadLetters::All, DeadLetters::One);
    let count = gateway.dispose_dead_letters(letters.which.name()?, which, action).await?;
    let done = match action {
        DeadLetterAction::Replay => "replayed",
        DeadLetterAction::Purge => "purged",
    };
    Ok(json!({ done: count }))
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

pub(super) async fn run_notification(gateway: &Gateway, verb: NotificationVerb) -> Result<Option<Value>> {
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
