//! Queues of notification topics: events that endpoints reject, full queues, and topics that are changed or removed.

use crate::notifications::{EventConsumer, Expected, NAMESPACES, TestGateway, put, run, text, wait_for};
use crate::s3::S3;
use crate::support::free_port;
use serde_json::{Value, json};
use std::collections::BTreeSet;

const SHARDS: &str = "rgw_bucket_persistent_notif_num_shards=2";

/// An endpoint where nothing listens.
fn nowhere() -> String {
    format!("http://127.0.0.1:{}/events", free_port())
}

/// Puts objects of that size with these keys.
fn put_all(site: &TestGateway, bucket: &str, keys: &[&str], size: usize) {
    let mut connection = site.connect();
    run(async {
        for key in keys {
            site.carry_out(&mut connection, &put(bucket, key, size)).await;
        }
    });
}

/// Removes the only topic. Nothing of it remains.
fn delete_topic(site: &TestGateway, topic: &str) {
    site.delete_topic(topic);
    NAMESPACES.iter().for_each(|namespace| wait_empty(site, namespace));
}

/// Waits until a namespace of topics' queues has no objects.
fn wait_empty(site: &TestGateway, namespace: &str) {
    wait_for(&format!("{namespace} is empty"), || match site.objects(namespace) {
        objects if objects.is_empty() => Ok(()),
        objects => Err(format!("{objects:?}")),
    });
}

#[test]
fn events_that_are_not_taken_are_kept_or_given_up_as_their_topics_say() {
    let s3 = S3::start_with(&[SHARDS]);
    let site = TestGateway::of(&s3);
    dead_letters_outlive_changes_of_their_topic(&site);
    a_queue_that_drops_keeps_the_newest_events(&site);
    a_topic_may_have_queues_and_have_none_again(&site);
    a_topic_that_is_removed_leaves_nothing(&site);
}

fn dead_letters_outlive_changes_of_their_topic(site: &TestGateway) {
    let consumer = EventConsumer::start();
    let is_bad = |record: &Value| text(record, "/s3/object/key").starts_with("bad");
    consumer.accept(move |record| !is_bad(record));
    let attributes = [("max_retries", "2"), ("retry_sleep_duration", "0"), ("OpaqueData", "before")];
    site.create_topic("letters", &consumer.url(), &attributes);
    site.create_bucket("letters", &["letters"]);
    put_all(site, "letters", &["bad-1", "good", "bad-2", "bad-3"], 1);
    let letters = site.wait_dead_letters("letters", 3);
    for letter in &letters {
        // The first attempt, and two more.
        assert_eq!((&letter["reason"], &letter["attempts"]), (&json!("max_retries"), &json!(3)), "{letter}");
        assert!(letter["last_failure"].as_str().unwrap().contains("400"), "{letter}");
    }
    let mut expected = Expected::default();
    expected.created("good", 1);
    consumer.wait_for("letters", &expected);
    site.wait_entries("letters", 0);
    site.set_attribute("letters", "OpaqueData", "after");
    site.command(&["topic", "reshard", "letters", "--shards", "3"]);
    assert_eq!(site.dead_letters("letters"), letters);

    let dispose = |args: &[&str]| site.json(&[&["topic", "dlq"], args].concat());
    let number = letters[0]["number"].to_string();
    assert_eq!(dispose(&["purge", "letters", "--number", &number]), json!({ "purged": 1 }));
    assert_eq!(site.dead_letters("letters"), letters[1..]);
    consumer.accept(|_| true);
    assert_eq!(dispose(&["replay", "letters", "--all"]), json!({ "replayed": 2 }));
    let replayed: BTreeSet<String> =
        letters[1..].iter().map(|letter| text(letter, "/event/eventId")).collect();
    letters[1..].iter().for_each(|letter| expected.created(&text(letter, "/event/s3/object/key"), 1));
    consumer.wait_for("letters", &expected);
    for record in consumer.records_of("letters") {
        let is_replayed = replayed.contains(&text(&record, "/eventId"));
        assert_eq!(record["replayed"] == true, is_replayed, "{record}");
        assert_eq!(is_bad(&record), is_replayed, "{record}");
        assert_eq!(record["opaqueData"], if is_replayed { "after" } else { "before" }, "{record}");
    }
    site.wait_dead_letters("letters", 0);

    consumer.accept(|_| false);
    put_all(site, "letters", &["bad-4"], 1);
    site.wait_dead_letters("letters", 1);
    assert_eq!(dispose(&["purge", "letters", "--all"]), json!({ "purged": 1 }));
    assert_eq!(site.dead_letters("letters"), Vec::<Value>::new());
    delete_topic(site, "letters");
}

fn a_queue_that_drops_keeps_the_newest_events(site: &TestGateway) {
    const PUTS: usize = 40;
    let attributes = [("queue-full-policy", "drop-oldest"), ("queue-max-bytes", "6000")];
    site.create_topic("dropping", &nowhere(), &attributes);
    site.create_bucket("dropping", &["dropping"]);
    (1..=PUTS).for_each(|size| put_all(site, "dropping", &["key"], size));
    let number = |stats: &Value, path: &str| stats.pointer(path).and_then(Value::as_u64).unwrap() as usize;
    let (kept, dropped) = wait_for("all events are in the queue or dropped", || {
        let stats = site.stats("dropping");
        let (kept, dropped) = (number(&stats, "/Topic Stats/Entries"), number(&stats, "/dropped"));
        // Each of the two shards has half of the limit.
        let is_within = number(&stats, "/Topic Stats/Size") <= 3000;
        if kept + dropped == PUTS && is_within { Ok((kept, dropped)) } else { Err(stats.to_string()) }
    });
    assert!(kept > 1 && dropped > 1, "{kept} kept, {dropped} dropped");
    let consumer = EventConsumer::start();
    site.create_topic("dropping", &consumer.url(), &attributes);
    let mut expected = Expected::default();
    (dropped + 1..=PUTS).for_each(|size| expected.created("key", size));
    consumer.wait_for("dropping", &expected);
    site.wait_entries("dropping", 0);
    assert_eq!(site.stats("dropping")["dropped"], dropped);
    delete_topic(site, "dropping");
}

fn a_topic_may_have_queues_and_have_none_again(site: &TestGateway) {
    let keys = ["a", "b", "c"];
    let visible = |names: &[&str]| -> BTreeSet<String> { names.iter().map(ToString::to_string).collect() };
    let mut expected = Expected::default();
    site.create_topic("switched", &nowhere(), &[]);
    site.create_bucket("switched", &["switched"]);
    put_all(site, "switched", &keys, 1);
    site.wait_entries("switched", 3);
    site.set_attribute("switched", "persistent", "false");
    assert_eq!(site.objects("notif"), visible(&[]));
    // These events are lost, but no operation fails because of that.
    put_all(site, "switched", &keys, 2);
    site.wait_entries("switched", 3);
    site.set_attribute("switched", "persistent", "true");
    assert_eq!(site.objects("notif"), visible(&[":switched", ":switched.1"]));
    put_all(site, "switched", &keys, 3);
    site.wait_entries("switched", 6);

    let consumer = EventConsumer::start();
    site.create_topic("switched", &consumer.url(), &[]);
    for key in keys {
        expected.created(key, 1);
        expected.created(key, 3);
    }
    consumer.wait_for("switched", &expected);
    site.wait_entries("switched", 0);
    wait_empty(site, "notif.closed");
    // Without queues an event is delivered before its operation is answered.
    site.set_attribute("switched", "persistent", "false");
    put_all(site, "switched", &keys, 4);
    keys.iter().for_each(|key| expected.created(key, 4));
    assert_eq!(expected.check(&consumer.records_of("switched")), Ok(()));
    delete_topic(site, "switched");
}

fn a_topic_that_is_removed_leaves_nothing(site: &TestGateway) {
    let consumer = EventConsumer::start();
    consumer.accept(|_| false);
    site.create_topic("removed", &consumer.url(), &[("max_retries", "1"), ("retry_sleep_duration", "0")]);
    site.create_bucket("removed", &["removed"]);
    put_all(site, "removed", &["dead"], 1);
    site.wait_dead_letters("removed", 1);
    site.create_topic("removed", &nowhere(), &[]);
    put_all(site, "removed", &["a", "b", "c", "d"], 1);
    site.wait_entries("removed", 4);
    site.command(&["topic", "reshard", "removed", "--shards", "3"]);
    put_all(site, "removed", &["a", "b", "c", "d"], 2);
    site.wait_entries("removed", 8);
    for namespace in ["notif", "notif.closed", "notif.dead"] {
        assert!(!site.objects(namespace).is_empty(), "{namespace}");
    }
    delete_topic(site, "removed");

    // A new topic with that name has no events of the old one.
    consumer.accept(|_| true);
    site.create_topic("removed", &consumer.url(), &[]);
    put_all(site, "removed", &["new"], 3);
    let mut expected = Expected::default();
    expected.created("new", 3);
    consumer.wait_for("removed", &expected);
    assert_eq!(site.dead_letters("removed"), Vec::<Value>::new());
    delete_topic(site, "removed");
}
