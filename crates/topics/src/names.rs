//! Names of topics and of the RADOS objects that hold their queues, and which queue an event goes to.
//!
//! Shard 0 of the topic `TOPIC` of `TENANT` is the object `TENANT:TOPIC`, so gateways that do not know shards find a queue;
//! shard `x` is `TENANT:TOPIC.x`. The names of two topics never collide, because names of tenants and topics can't contain
//! `.` or `:`.

use crate::error::{Error, Result, quoted};
use nacre_types::hash::ceph_str_hash_rjenkins;

/// The pool of the queue objects.
pub const QUEUE_POOL: &str = "default.rgw.log";
/// The namespace of the queue objects in their pool.
pub const QUEUE_NAMESPACE: &str = "notif";
/// The number of shards of a new topic if `rgw_bucket_persistent_notif_num_shards` is not set.
pub const DEFAULT_SHARDS: u32 = 11;
/// The most shards of a topic.
pub const MAX_SHARDS: u32 = 4096;
/// The longest name of a topic or tenant, in bytes. SNS has the same limit for topics.
pub const MAX_NAME_BYTES: usize = 256;

/// Refuses invalid topic names. SNS's rule: ASCII letters, digits, `_` and `-`.
pub fn check_topic(name: &str) -> Result<()> {
    let is_sound = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    check("Name", name, is_sound, "ASCII letters, digits, '_' and '-'")?;
    if name.is_empty() { Err(Error::invalid("Name", "a topic's name is not empty")) } else { Ok(()) }
}

/// Refuses invalid tenant names. The default tenant has an empty name.
pub fn check_tenant(name: &str) -> Result<()> {
    check(
        "tenant",
        name,
        |byte| byte.is_ascii_alphanumeric() || byte == b'_',
        "ASCII letters, digits and '_'",
    )
}

fn check(parameter: &str, name: &str, is_sound: impl Fn(u8) -> bool, allowed: &str) -> Result<()> {
    if name.len() > MAX_NAME_BYTES {
        return Err(Error::invalid(parameter, format!("longer than {MAX_NAME_BYTES} bytes")));
    }
    if name.bytes().all(is_sound) {
        return Ok(());
    }
    Err(Error::invalid(parameter, format!("{} has characters other than {allowed}", quoted(name))))
}

/// Refuses invalid numbers of shards.
pub fn check_shards(shards: u32) -> Result<()> {
    if (1..=MAX_SHARDS).contains(&shards) {
        return Ok(());
    }
    Err(Error::invalid("shards", format!("{shards} is not between 1 and {MAX_SHARDS}")))
}

/// The queue of a shard, identified by its object's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueName {
    /// The topic's tenant, empty for the default one.
    pub tenant: String,
    /// The topic's name.
    pub topic: String,
    /// The shard.
    pub shard: u32,
}

impl QueueName {
    /// Parses an object's name; `None` if it is not that of a queue.
    pub fn parse(object: &str) -> Option<QueueName> {
        let (tenant, rest) = object.split_once(':')?;
        let (topic, shard) = match rest.split_once('.') {
            None => (rest, 0),
            Some((topic, number)) => {
                let shard = number.parse().ok().filter(|shard| (1..MAX_SHARDS).contains(shard))?;
                // Signs and leading zeros are refused, so that a shard has one name.
                let is_only_name =
                    number.bytes().all(|byte| byte.is_ascii_digit()) && !number.starts_with('0');
                (topic, is_only_name.then_some(shard)?)
            }
        };
        check_tenant(tenant).and_then(|()| check_topic(topic)).ok()?;
        Some(QueueName { tenant: tenant.to_owned(), topic: topic.to_owned(), shard })
    }
}

impl std::fmt::Display for QueueName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.shard {
            0 => write!(f, "{}:{}", self.tenant, self.topic),
            shard => write!(f, "{}:{}.{shard}", self.tenant, self.topic),
        }
    }
}

/// The name of a shard's queue object.
pub fn queue(tenant: &str, topic: &str, shard: u32) -> String {
    QueueName { tenant: tenant.to_owned(), topic: topic.to_owned(), shard }.to_string()
}

/// The names of all queue objects of a topic with `shards` shards, in the order of the shards.
pub fn queues(tenant: &str, topic: &str, shards: u32) -> impl Iterator<Item = String> + use<> {
    let mut name = QueueName { tenant: tenant.to_owned(), topic: topic.to_owned(), shard: 0 };
    (0..shards).map(move |shard| {
        name.shard = shard;
        name.to_string()
    })
}

/// The shard for the events of a key: Ceph's string hash `rjenkins` of `BUCKET:KEY`, modulo the number of shards.
///
/// The function is fixed: events of one key are in one shard only if all gateways compute the same hash.
///
/// # Panics
///
/// If `shards` is 0.
pub fn shard_of(bucket: &str, key: &str, shards: u32) -> u32 {
    let mut hashed = Vec::with_capacity(bucket.len() + 1 + key.len());
    hashed.extend_from_slice(bucket.as_bytes());
    hashed.push(b':');
    hashed.extend_from_slice(key.as_bytes());
    ceph_str_hash_rjenkins(&hashed) % shards
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The eleven lines that `rados ls --namespace notif` prints of the topic `fishtopic` of the default tenant.
    const FISHTOPIC: [&str; 11] = [
        ":fishtopic.7",
        ":fishtopic.5",
        ":fishtopic.2",
        ":fishtopic.10",
        ":fishtopic.1",
        ":fishtopic.4",
        ":fishtopic.8",
        ":fishtopic",
        ":fishtopic.3",
        ":fishtopic.6",
        ":fishtopic.9",
    ];

    #[test]
    fn a_topic_of_eleven_shards_has_the_documented_objects() {
        let mut wanted: Vec<_> = FISHTOPIC.iter().map(|name| (*name).to_owned()).collect();
        let mut names: Vec<_> = queues("", "fishtopic", DEFAULT_SHARDS).collect();
        assert_eq!((names[0].as_str(), names[10].as_str()), (":fishtopic", ":fishtopic.10"));
        wanted.sort_unstable();
        names.sort_unstable();
        assert_eq!(names, wanted);
    }

    #[test]
    fn names_of_queue_objects_are_read_again() {
        for name in FISHTOPIC.into_iter().chain(["acme:a-b_c", "acme:a-b_c.4095"]) {
            assert_eq!(QueueName::parse(name).unwrap().to_string(), name);
        }
        let parsed = QueueName::parse("acme:a.12").unwrap();
        assert_eq!(parsed, QueueName { tenant: "acme".into(), topic: "a".into(), shard: 12 });
        assert_eq!(queue("acme", "a", 12), "acme:a.12");
    }

    #[test]
    fn a_shard_has_one_name_only() {
        for name in [
            "fishtopic",
            "",
            ":",
            ":a.",
            ":a.0",
            ":a.01",
            ":a.+1",
            ":a.1.2",
            ":a.4096",
            "a:b:c",
            ":a b",
            "ä:b",
        ] {
            assert_eq!(QueueName::parse(name), None, "{name}");
        }
    }

    #[test]
    fn topics_whose_queues_could_be_anothers_are_refused() {
        for name in ["", "fishtopic.3", "a:b", "a b", "a/b", "ä", "a\0", &"x".repeat(MAX_NAME_BYTES + 1)] {
            assert!(check_topic(name).is_err(), "{name}");
        }
        for name in ["fishtopic0", "A-b_9", &"x".repeat(MAX_NAME_BYTES)] {
            check_topic(name).unwrap();
        }
        check_tenant("").unwrap();
        check_tenant("acme_1").unwrap();
        assert!(check_tenant("a:b").is_err() && check_tenant("a-b").is_err());
        assert!(check_shards(0).is_err() && check_shards(MAX_SHARDS + 1).is_err());
        assert!(check_shards(1).is_ok() && check_shards(MAX_SHARDS).is_ok());
    }

    /// (bucket, key, hash, shard of 11, shard of 101).
    const VECTORS: &[(&str, &str, u32, u32, u32)] = &[
        ("bk000000000000", "object", 0x2a47_3a48, 6, 67),
        ("photos", "2026/01/cat.jpg", 0xb51c_eeb9, 10, 44),
        ("b", "", 0xc11c_e58b, 8, 77),
        ("photos", "a", 0xf92e_27a2, 2, 87),
        ("photos", "b", 0x2f41_1377, 6, 30),
        ("photos", "c", 0x6cc3_f37b, 1, 39),
        ("fotos", "übung.txt", 0xf98d_de8e, 0, 28),
        ("bk000000000000", "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", 0xc32d_d272, 1, 27),
    ];

    #[test]
    fn shards_of_keys_are_as_documented() {
        assert_eq!(ceph_str_hash_rjenkins(b"foo"), 0x7fc1_f406);
        for (bucket, key, hash, of_11, of_101) in VECTORS {
            assert_eq!(ceph_str_hash_rjenkins(format!("{bucket}:{key}").as_bytes()), *hash, "{bucket}:{key}");
            assert_eq!(shard_of(bucket, key, 11), *of_11, "{bucket}:{key}");
            assert_eq!(shard_of(bucket, key, 101), *of_101, "{bucket}:{key}");
            assert_eq!(shard_of(bucket, key, 1), 0);
        }
    }

    #[test]
    fn keys_spread_evenly_over_shards() {
        let mut found = [0_u32; 11];
        (0..11_000).for_each(|key| found[shard_of("bucket", &format!("key-{key}"), 11) as usize] += 1);
        assert!(found.iter().all(|keys| (850..1150).contains(keys)), "{found:?}");
    }
}
