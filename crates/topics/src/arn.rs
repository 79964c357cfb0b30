//! Amazon resource names of topics and buckets, as Ceph writes them.

use crate::error::{Error, Result, quoted};
use crate::names;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The longest zone group name, in bytes.
const MAX_ZONEGROUP_BYTES: usize = 256;

/// The ARN of a topic: `arn:aws:sns:ZONEGROUP:TENANT:NAME`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TopicArn {
    /// The zone group, which clients call region.
    pub zonegroup: String,
    /// The tenant, empty for the default one.
    pub tenant: String,
    /// The topic's name in its tenant.
    pub name: String,
}

impl TopicArn {
    /// Whether both name the same topic. The zone group is not compared: tenant and name are unique in the cluster.
    pub fn is_same_topic(&self, other: &TopicArn) -> bool {
        (&self.tenant, &self.name) == (&other.tenant, &other.name)
    }
}

impl fmt::Display for TopicArn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "arn:aws:sns:{}:{}:{}", self.zonegroup, self.tenant, self.name)
    }
}

impl FromStr for TopicArn {
    type Err = Error;

    fn from_str(text: &str) -> Result<TopicArn> {
        let wrong = |reason: &str| {
            let form = "a topic's ARN is arn:aws:sns:ZONEGROUP:TENANT:NAME";
            Error::invalid("TopicArn", format!("{} {reason}; {form}", quoted(text)))
        };
        let parts: Vec<&str> = text.splitn(7, ':').collect();
        let [arn, partition, service, zonegroup, tenant, name] = parts[..] else {
            return Err(wrong("does not have six parts"));
        };
        if arn != "arn" || partition != "aws" || service != "sns" {
            return Err(wrong("does not begin with arn:aws:sns:"));
        }
        let is_sound = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if zonegroup.len() > MAX_ZONEGROUP_BYTES || !zonegroup.bytes().all(is_sound) {
            return Err(wrong("has a zone group that can't exist"));
        }
        names::check_tenant(tenant).map_err(|_| wrong("has a tenant that can't exist"))?;
        names::check_topic(name).map_err(|_| wrong("has a topic name that can't exist"))?;
        Ok(TopicArn { zonegroup: zonegroup.to_owned(), tenant: tenant.to_owned(), name: name.to_owned() })
    }
}

/// The name of a bucket in event records: `arn:aws:s3:ZONEGROUP:TENANT:BUCKET`.
pub fn bucket(zonegroup: &str, tenant: &str, bucket: &str) -> String {
    format!("arn:aws:s3:{zonegroup}:{tenant}:{bucket}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arns_of_topics_are_read_and_written() {
        for (text, zonegroup, tenant, name) in [
            ("arn:aws:sns:default::fishtopic0", "default", "", "fishtopic0"),
            ("arn:aws:sns:default::fishtopic1", "default", "", "fishtopic1"),
            ("arn:aws:sns:zone-group.1:acme:a_b", "zone-group.1", "acme", "a_b"),
            ("arn:aws:sns:::a", "", "", "a"),
        ] {
            let arn: TopicArn = text.parse().unwrap();
            assert_eq!((&*arn.zonegroup, &*arn.tenant, &*arn.name), (zonegroup, tenant, name));
            assert_eq!(arn.to_string(), text);
        }
    }

    #[test]
    fn arns_of_other_things_are_refused() {
        for text in [
            "",
            "fishtopic",
            "arn:aws:sns:default:fishtopic",
            "arn:aws:sqs:default::fishtopic",
            "arn:aws:sns:default::",
            "arn:aws:sns:default::a:b",
            "arn:aws:sns:default::a.1",
            "arn:aws:sns:default:a-b:c",
            "arn:aws:sns:de fault::a",
            "ARN:aws:sns:default::a",
        ] {
            assert!(text.parse::<TopicArn>().is_err(), "{text}");
        }
    }

    #[test]
    fn tenant_and_name_tell_topics_apart_and_the_zone_group_does_not() {
        let arn = |text: &str| text.parse::<TopicArn>().unwrap();
        let topic = arn("arn:aws:sns:default:acme:a");
        assert!(topic.is_same_topic(&arn("arn:aws:sns:elsewhere:acme:a")));
        assert!(!topic.is_same_topic(&arn("arn:aws:sns:default::a")));
        assert!(!topic.is_same_topic(&arn("arn:aws:sns:default:acme:b")));
    }

    #[test]
    fn arns_of_buckets_are_as_in_ceph() {
        assert_eq!(bucket("zonegroup1", "", "mybucket1"), "arn:aws:s3:zonegroup1::mybucket1");
    }
}
