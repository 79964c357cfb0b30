//! Commands that show and change topics' queues, in radosgw-admin's terms.

use super::Topics;
use crate::error::Result;
use crate::message::GatewayMessage;
use crate::time::now_ns;
use bytes::Bytes;
use nacre_notify::{DeadLetterInfo, LetterSelection, QueuedEvent, TopicReport};
use nacre_queues::retry::BreakerState;
use nacre_queues::stats::ShardStats;
use nacre_topics::record::{DeliveredEvent, body};
use nacre_topics::topic::TopicId;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Dead letters read at a time.
const PAGE: u64 = 256;

/// The dead letters of a topic that a command is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadLetterSelection {
    /// All dead letters.
    All,
    /// The dead letter with this number.
    One(u64),
}

/// What a command does with dead letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadLetterAction {
    /// Delivers them again, marked as replayed.
    Replay,
    /// Removes them permanently.
    Purge,
}

impl From<DeadLetterSelection> for LetterSelection {
    fn from(which: DeadLetterSelection) -> LetterSelection {
        match which {
            DeadLetterSelection::All => LetterSelection::All,
            DeadLetterSelection::One(number) => LetterSelection::One(number),
        }
    }
}

fn seconds(ns: u64) -> f64 {
    // Milliseconds are precise enough and readable.
    (ns / 1_000_000) as f64 / 1000.0
}

fn shard(stats: &ShardStats, now_ns: u64) -> Value {
    let breaker = stats.breaker.map(BreakerState::as_str);
    let owner = (stats.owner > 0).then(|| format!("client.{}", stats.owner));
    let (pg, primary) = stats.placement.clone().unzip();
    json!({
        "generation": stats.generation,
        "shard": stats.shard,
        "object": stats.object,
        "entries": stats.entries,
        "size": stats.size_bytes,
        "resident_size": stats.resident_bytes,
        "dropped": stats.dropped,
        "owner": owner,
        "owner_epoch": stats.epoch,
        "oldest_age": seconds(stats.lag_ns(now_ns)),
        "breaker": breaker,
        "pg": pg,
        "primary": primary,
    })
}

/// What `topic stats` prints: radosgw-admin's totals, then Nacre's figures.
fn stats(report: &TopicReport, now_ns: u64) -> Value {
    let totals = &report.totals;
    let missing: Vec<Value> = report
        .missing
        .iter()
        .map(|(generation, shard)| json!({ "generation": generation, "shard": shard }))
        .collect();
    json!({
        "Topic Stats": {
            "Reservations": totals.reservations,
            "Size": totals.size_bytes,
            "Entries": totals.entries,
        },
        "lag": seconds(totals.lag_ns),
        "dropped": totals.dropped,
        "distinct_pgs": totals.pgs,
        "distinct_primaries": totals.primaries,
        "dead_letters": {
            "entries": report.letters.entries,
            "size": report.letters.bytes,
            "dropped": report.letters.dropped,
        },
        "shards": report.shards.iter().map(|stats| shard(stats, now_ns)).collect::<Vec<_>>(),
        "missing_shards": missing,
    })
}

/// An event's record as consumers get it, without the topic's opaque data, which is added at delivery.
fn record(event: &nacre_topics::record::Event, is_replayed: bool) -> Value {
    let delivery = DeliveredEvent { event, opaque_data: "", is_replayed };
    let text = body(&[delivery]);
    let mut document: Value = serde_json::from_slice(&text).unwrap_or_default();
    document["Records"][0].take()
}

fn queued(event: &QueuedEvent) -> Value {
    json!({
        "generation": event.generation,
        "shard": event.shard,
        "sequence": event.sequence,
        "failed_attempts": event.attempts,
        "last_failure": (!event.detail.is_empty()).then_some(event.detail.as_str()),
        "event": record(&event.event, event.is_replayed),
    })
}

impl Topics {
    /// The figures of a topic's queue, as `topic stats` prints them.
    pub async fn stats(&self, name: &str) -> Result<Value> {
        let mut report = self.require_notifier()?.report(&self.arn(name)).await?;
        let breakers = self.breakers(report.stored.record.topic.id).await?;
        report.set_breakers(&breakers);
        Ok(stats(&report, now_ns()))
    }

    /// The state of the circuit breaker of a topic's endpoint in each running gateway, by the number of its session.
    async fn breakers(&self, topic: TopicId) -> Result<BTreeMap<u64, BreakerState>> {
        let answers = self.peers.query(&GatewayMessage::AskBreaker(topic.to_string())).await?;
        let state = |(session, answer): (u64, Bytes)| {
            Some((session, BreakerState::from_name(std::str::from_utf8(&answer).ok()?)?))
        };
        Ok(answers.into_iter().filter_map(state).collect())
    }

    /// The state of that circuit breaker in this gateway; empty if this gateway has no notifier.
    pub(crate) fn local_breaker_state(&self, topic: &str) -> &'static str {
        let (Some(notifier), Ok(topic)) = (self.notifier(), topic.parse::<TopicId>()) else { return "" };
        notifier.breaker(topic).as_str()
    }

    /// At most `max` events of a topic's queue, as `topic dump` prints them: those of each shard in order.
    pub async fn dump(&self, name: &str, max: usize) -> Result<Value> {
        let found = self.require_notifier()?.dump(&self.arn(name), max).await?;
        Ok(found.iter().map(queued).collect())
    }

    /// At most `max` dead letters of a topic with numbers above `after`, oldest first.
    pub async fn dead_letters(&self, name: &str, after: Option<u64>, max: u64) -> Result<Value> {
        let (arn, notifier) = (self.arn(name), self.require_notifier()?);
        let (mut found, mut after) = (Vec::new(), after);
        while (found.len() as u64) < max {
            let page = notifier.letters(&arn, after, PAGE.min(max - found.len() as u64)).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.number);
            found.extend(page.iter().map(letter));
        }
        Ok(found.into())
    }

    /// Delivers dead letters of a topic again, or removes them. Returns how many.
    pub async fn replay_or_purge_letters(
        &self,
        name: &str,
        which: DeadLetterSelection,
        action: DeadLetterAction,
    ) -> Result<u64> {
        let (arn, notifier) = (self.arn(name), self.require_notifier()?);
        Ok(match action {
            DeadLetterAction::Replay => {
                let replayed = notifier.replay_letters(&arn, which.into()).await;
                // Gateways deliver them, and check the topic when they are notified of it.
                self.notify_events(&arn).await;
                replayed?
            }
            DeadLetterAction::Purge => notifier.purge_letters(&arn, which.into()).await?,
        })
    }
}

fn letter(letter: &DeadLetterInfo) -> Value {
    let DeadLetterInfo { number, event, letter } = letter;
    json!({
        "number": number,
        "reason": letter.reason.as_str(),
        "attempts": letter.attempts,
        "dead_since": crate::time::format_time(letter.dead_ns),
        "last_failure": letter.detail,
        "event": record(event, letter.event.replayed),
    })
}
