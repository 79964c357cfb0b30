//! The command line of radosgw-admin.

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(super) enum Subject {
    /// Users.
    #[command(subcommand)]
    User(UserVerb),
    /// Users' keys.
    #[command(subcommand)]
    Key(KeyVerb),
    /// Buckets.
    #[command(subcommand)]
    Bucket(BucketVerb),
    /// Limits on what users and buckets hold.
    #[command(subcommand)]
    Quota(QuotaVerb),
    /// What requests were counted (`rgw_enable_usage_log`).
    #[command(subcommand)]
    Usage(UsageVerb),
    /// What users may do by the admin API.
    #[command(subcommand)]
    Caps(CapsVerb),
    /// Objects.
    #[command(subcommand)]
    Object(ObjectVerb),
    /// Users and buckets as they are kept.
    #[command(subcommand)]
    Metadata(MetadataVerb),
    /// What is to go by buckets' lifecycles.
    #[command(subcommand)]
    Lc(LcVerb),
    /// Buckets whose index moves into another number of shards.
    #[command(subcommand)]
    Reshard(ReshardVerb),
    /// Unreferenced data.
    #[command(subcommand)]
    Gc(GcVerb),
    /// Which pools have the data of objects.
    #[command(subcommand)]
    Zone(super::zone::ZoneVerb),
    /// Which storage classes there are.
    #[command(subcommand)]
    Zonegroup(super::zone::ZonegroupVerb),
    /// How much users and buckets may do in a minute through one gateway.
    #[command(subcommand)]
    Ratelimit(super::ratelimit::RatelimitVerb),
    /// Notification topics and their queues.
    #[command(subcommand)]
    Topic(super::topic::TopicVerb),
    /// Notification configurations of buckets.
    #[command(subcommand)]
    Notification(super::topic::NotificationVerb),
}

#[derive(Debug, clap::Args)]
pub(super) struct UserArgs {
    /// The user's id.
    #[arg(long)]
    pub(super) uid: String,
    /// The user's name for people.
    #[arg(long)]
    pub(super) display_name: Option<String>,
    /// The user's mail address.
    #[arg(long)]
    pub(super) email: Option<String>,
    /// The most buckets that it may have; 0 for as many as it likes, below zero for none.
    #[arg(long, allow_hyphen_values = true)]
    pub(super) max_buckets: Option<i32>,
    /// Whether its requests are refused.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_parser = flag)]
    pub(super) suspended: Option<bool>,
    /// Whether it may do anything with all buckets.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_parser = flag)]
    pub(super) admin: Option<bool>,
    /// The same, for other zones' gateways in Ceph.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_parser = flag)]
    pub(super) system: Option<bool>,
    /// What it may do by the admin API: users=read, write;buckets=*
    #[arg(long)]
    pub(super) caps: Option<String>,
    #[command(flatten)]
    pub(super) key: KeyArgs,
}

#[derive(Debug, clap::Args)]
pub(super) struct KeyArgs {
    /// An access key; one is made up where none is named.
    #[arg(long)]
    pub(super) access_key: Option<String>,
    /// Its secret; one is made up where none is named.
    #[arg(long, alias = "secret")]
    pub(super) secret_key: Option<String>,
    /// The kind of key: s3.
    #[arg(long, default_value = "s3", value_parser = ["s3"])]
    pub(super) key_type: String,
    /// Makes up an access key, as is done anyway where none is named.
    #[arg(long)]
    pub(super) gen_access_key: bool,
    /// Makes up a secret, as is done anyway where none is named.
    #[arg(long)]
    pub(super) gen_secret: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum UserVerb {
    /// Makes a user with a pair of keys.
    Create(UserArgs),
    /// Prints a user.
    Info {
        /// The user's id.
        #[arg(long, required_unless_present = "access_key")]
        uid: Option<String>,
        /// One of its access keys.
        #[arg(long)]
        access_key: Option<String>,
    },
    /// Prints all users' ids.
    #[command(alias = "ls")]
    List,
    /// Changes a user.
    Modify(UserArgs),
    /// Refuses the user's requests.
    Suspend {
        /// The user's id.
        #[arg(long)]
        uid: String,
    },
    /// Takes the user's requests again.
    Enable {
        /// The user's id.
        #[arg(long)]
        uid: String,
    },
    /// Prints what all of a user's buckets hold.
    Stats {
        /// The user's id.
        #[arg(long)]
        uid: String,
        /// Reads the buckets, as is done anyway.
        #[arg(long)]
        sync_stats: bool,
    },
    /// Removes a user that has no buckets.
    Rm {
        /// The user's id.
        #[arg(long)]
        uid: String,
        /// Its buckets and what is in them, too.
        #[arg(long)]
        purge_data: bool,
        /// Its keys too, as is done anyway.
        #[arg(long)]
        purge_keys: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum KeyVerb {
    /// Gives a user another pair of keys.
    Create {
        /// The user's id.
        #[arg(long)]
        uid: String,
        #[command(flatten)]
        key: KeyArgs,
    },
    /// Takes a pair of keys from a user.
    Rm {
        /// The user's id.
        #[arg(long)]
        uid: String,
        /// The access key.
        #[arg(long)]
        access_key: String,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum BucketVerb {
    /// Prints the names of all buckets, or of a user's.
    #[command(alias = "ls")]
    List {
        /// The user's id.
        #[arg(long)]
        uid: Option<String>,
    },
    /// Prints what a bucket is and holds, or all buckets.
    Stats {
        /// The bucket.
        #[arg(long)]
        bucket: Option<String>,
    },
    /// Compares a bucket's index with its objects, and data with what names it; prints what differs. A bucket may be in
    /// use meanwhile. The exit code is 1 where something is wrong and stays so.
    Check {
        /// The bucket; all of them where none is named.
        #[arg(long)]
        bucket: Option<String>,
        /// Mends what differs: the objects' heads are right, and unreferenced data becomes garbage.
        #[arg(long)]
        fix: bool,
        /// Compares objects too, as is done anyway.
        #[arg(long)]
        check_objects: bool,
    },
    /// Moves a bucket's index into another number of shards, while it is in use; writers wait for a moment.
    Reshard {
        /// The bucket.
        #[arg(long)]
        bucket: String,
        /// Shards that it is to have.
        #[arg(long)]
        num_shards: u32,
        /// Also fewer than it has.
        #[arg(long)]
        yes_i_really_mean_it: bool,
    },
    /// Gives a bucket to a user. Its objects stay whose they are.
    Link {
        /// The bucket.
        #[arg(long)]
        bucket: String,
        /// The user's id.
        #[arg(long)]
        uid: String,
    },
    /// Takes a bucket off its owner's list.
    Unlink {
        /// The bucket.
        #[arg(long)]
        bucket: String,
        /// The user's id.
        #[arg(long)]
        uid: String,
    },
    /// Removes a bucket.
    Rm {
        /// The bucket.
        #[arg(long)]
        bucket: String,
        /// Its objects too.
        #[arg(long)]
        purge_objects: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum GcVerb {
    /// Prints what may be removed.
    List {
        /// What may be removed later, too.
        #[arg(long)]
        include_all: bool,
    },
    /// Removes what may be removed.
    Process {
        /// What may be removed later, too: readers of it get errors.
        #[arg(long)]
        include_all: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum LcVerb {
    /// Prints the buckets that have rules, and how far the work on them is.
    List,
    /// Does what is due now.
    Process {
        /// The bucket; all of them where none is named.
        #[arg(long)]
        bucket: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum ReshardVerb {
    /// Has a gateway reshard a bucket.
    Add {
        /// The bucket.
        #[arg(long)]
        bucket: String,
        /// Shards that it is to have.
        #[arg(long)]
        num_shards: u32,
    },
    /// Prints the buckets that are to be resharded.
    List,
    /// Takes a bucket off that list.
    Cancel {
        /// The bucket.
        #[arg(long)]
        bucket: String,
    },
    /// Does what is on the list.
    Process,
}

/// Whose quota.
#[derive(Debug, clap::Args)]
pub(super) struct QuotaArgs {
    /// For all of the user's buckets together (user), or for each of them or the one that is named (bucket).
    #[arg(long, value_parser = ["user", "bucket"])]
    pub(super) quota_scope: Option<String>,
    /// The user's id.
    #[arg(long, required_unless_present = "bucket")]
    pub(super) uid: Option<String>,
    /// The bucket, for a quota of its own.
    #[arg(long, conflicts_with = "uid")]
    pub(super) bucket: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(super) enum QuotaVerb {
    /// Sets limits; they hold when the quota is enabled.
    Set {
        #[command(flatten)]
        whose: QuotaArgs,
        /// The most objects; below zero for any number.
        #[arg(long, allow_hyphen_values = true)]
        max_objects: Option<i64>,
        /// The most bytes, with B, K, M, G or T; below zero for any number.
        #[arg(long, allow_hyphen_values = true, value_parser = size)]
        max_size: Option<i64>,
    },
    /// Enforces the limits.
    Enable {
        #[command(flatten)]
        whose: QuotaArgs,
    },
    /// Enforces them no longer.
    Disable {
        #[command(flatten)]
        whose: QuotaArgs,
    },
}

/// Which records of the usage log.
#[derive(Debug, clap::Args)]
pub(super) struct UsageArgs {
    /// The user's id; all users where none is named.
    #[arg(long)]
    pub(super) uid: Option<String>,
    /// One bucket.
    #[arg(long)]
    pub(super) bucket: Option<String>,
    /// From then on: 2026-01-31 or "2026-01-31 12:00:00", UTC.
    #[arg(long, value_parser = date)]
    pub(super) start_date: Option<u64>,
    /// Before then.
    #[arg(long, value_parser = date)]
    pub(super) end_date: Option<u64>,
}

#[derive(Debug, Subcommand)]
pub(super) enum UsageVerb {
    /// Prints what was counted.
    Show {
        #[command(flatten)]
        of: UsageArgs,
        /// Kinds of requests, with commas between them.
        #[arg(long, value_delimiter = ',')]
        categories: Vec<String>,
        /// Whether to print each bucket's hours.
        #[arg(long, action = clap::ArgAction::Set, default_value = "true", value_parser = flag)]
        show_log_entries: bool,
        /// Whether to print sums.
        #[arg(long, action = clap::ArgAction::Set, default_value = "true", value_parser = flag)]
        show_log_sum: bool,
    },
    /// Removes what was counted.
    Trim {
        #[command(flatten)]
        of: UsageArgs,
        /// Needed where no user is named.
        #[arg(long)]
        yes_i_really_mean_it: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum CapsVerb {
    /// Lets a user do more.
    Add {
        /// The user's id.
        #[arg(long)]
        uid: String,
        /// What: users=read, write;buckets=*
        #[arg(long)]
        caps: String,
    },
    /// Lets a user do less.
    Rm {
        /// The user's id.
        #[arg(long)]
        uid: String,
        /// What: users=read, write;buckets=*
        #[arg(long)]
        caps: String,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum ObjectVerb {
    /// Prints what an object is and where its data lies.
    Stat {
        /// The bucket.
        #[arg(long)]
        bucket: String,
        /// The key.
        #[arg(long)]
        object: String,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum MetadataVerb {
    /// Prints the kinds of metadata, or the keys of one.
    #[command(alias = "ls")]
    List {
        /// user, bucket or bucket.instance.
        section: Option<String>,
    },
    /// Prints one.
    Get {
        /// As user:ID or bucket:NAME.
        key: String,
    },
}

/// Parses `--flag` with or without a value, as radosgw-admin does.
fn flag(text: &str) -> Result<bool, String> {
    match text {
        "1" | "true" | "yes" => Ok(true),
        "0" | "false" | "no" => Ok(false),
        _ => Err("1 or 0".to_owned()),
    }
}

fn date(text: &str) -> Result<u64, String> {
    nacre_rgw::parse_epoch(text)
        .ok_or_else(|| "not a date as 2026-01-31 or \"2026-01-31 12:00:00\"".to_owned())
}

/// Parses a number of bytes, with a suffix for powers of 1024.
fn size(text: &str) -> Result<i64, String> {
    let wrong = || format!("'{text}' is not a number of bytes");
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let factor = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 1,
        "K" | "KB" | "KIB" => 1_i64 << 10,
        "M" | "MB" | "MIB" => 1 << 20,
        "G" | "GB" | "GIB" => 1 << 30,
        "T" | "TB" | "TIB" => 1 << 40,
        "P" | "PB" | "PIB" => 1 << 50,
        _ => return Err(wrong()),
    };
    digits.parse::<i64>().ok().and_then(|number| number.checked_mul(factor)).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_radosgw_admins_suffixes() {
        for (text, bytes) in
            [("0", 0), ("1024", 1024), ("10K", 10 << 10), ("3GB", 3 << 30), ("-1", -1), ("2T", 2 << 40)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "x", "1X", "99999999P", "1.5G"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
