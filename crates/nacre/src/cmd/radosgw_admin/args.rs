//! The command line of radosgw-admin.

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(super) enum CommandGroup {
    /// Users.
    #[command(subcommand)]
    User(UserVerb),
    /// Keys of users.
    #[command(subcommand)]
    Key(KeyVerb),
    /// Buckets.
    #[command(subcommand)]
    Bucket(BucketVerb),
    /// Quotas of users and buckets.
    #[command(subcommand)]
    Quota(QuotaVerb),
    /// Usage log of requests (`rgw_enable_usage_log`).
    #[command(subcommand)]
    Usage(UsageVerb),
    /// Admin API capabilities of users.
    #[command(subcommand)]
    Caps(CapsVerb),
    /// Objects.
    #[command(subcommand)]
    Object(ObjectVerb),
    /// Stored metadata of users and buckets.
    #[command(subcommand)]
    Metadata(MetadataVerb),
    /// Lifecycle processing of buckets.
    #[command(subcommand)]
    Lc(LcVerb),
    /// Scheduled resharding of bucket indexes.
    #[command(subcommand)]
    Reshard(ReshardVerb),
    /// Unreferenced data (garbage collection).
    #[command(subcommand)]
    Gc(GcVerb),
    /// Data pools by storage class.
    #[command(subcommand)]
    Zone(super::zone::ZoneVerb),
    /// Storage classes.
    #[command(subcommand)]
    Zonegroup(super::zone::ZonegroupVerb),
    /// Rate limits of users and buckets, per minute and gateway.
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
    /// User id.
    #[arg(long)]
    pub(super) uid: String,
    /// Display name of the user.
    #[arg(long)]
    pub(super) display_name: Option<String>,
    /// Email address of the user.
    #[arg(long)]
    pub(super) email: Option<String>,
    /// Maximum number of buckets; 0 for no limit, negative for none.
    #[arg(long, allow_hyphen_values = true)]
    pub(super) max_buckets: Option<i32>,
    /// Refuse the user's requests.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_parser = flag)]
    pub(super) suspended: Option<bool>,
    /// Allow all operations on all buckets.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_parser = flag)]
    pub(super) admin: Option<bool>,
    /// Same as --admin; in Ceph for the gateways of other zones.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_parser = flag)]
    pub(super) system: Option<bool>,
    /// Admin API capabilities: users=read, write;buckets=*
    #[arg(long)]
    pub(super) caps: Option<String>,
    #[command(flatten)]
    pub(super) key: KeyArgs,
}

#[derive(Debug, clap::Args)]
pub(super) struct KeyArgs {
    /// Access key [default: generated].
    #[arg(long)]
    pub(super) access_key: Option<String>,
    /// Secret key [default: generated].
    #[arg(long, alias = "secret")]
    pub(super) secret_key: Option<String>,
    /// Key type; only s3.
    #[arg(long, default_value = "s3", value_parser = ["s3"])]
    pub(super) key_type: String,
    /// Generate the access key; the default without --access-key.
    #[arg(long)]
    pub(super) gen_access_key: bool,
    /// Generate the secret key; the default without --secret-key.
    #[arg(long)]
    pub(super) gen_secret: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum UserVerb {
    /// Create a user with an access key and a secret key.
    Create(UserArgs),
    /// Print a user.
    Info {
        /// User id.
        #[arg(long, required_unless_present = "access_key")]
        uid: Option<String>,
        /// An access key of the user.
        #[arg(long)]
        access_key: Option<String>,
    },
    /// List the ids of all users.
    #[command(alias = "ls")]
    List,
    /// Change a user.
    Modify(UserArgs),
    /// Refuse the user's requests.
    Suspend {
        /// User id.
        #[arg(long)]
        uid: String,
    },
    /// Accept the user's requests again.
    Enable {
        /// User id.
        #[arg(long)]
        uid: String,
    },
    /// Print the number of objects and bytes in all buckets of a user.
    Stats {
        /// User id.
        #[arg(long)]
        uid: String,
        /// Read the statistics of the buckets; always done.
        #[arg(long)]
        sync_stats: bool,
    },
    /// Remove a user without buckets.
    Rm {
        /// User id.
        #[arg(long)]
        uid: String,
        /// Remove the user's buckets and their objects, too.
        #[arg(long)]
        purge_data: bool,
        /// Remove the user's keys, too; always done.
        #[arg(long)]
        purge_keys: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum KeyVerb {
    /// Add an access key and a secret key to a user.
    Create {
        /// User id.
        #[arg(long)]
        uid: String,
        #[command(flatten)]
        key: KeyArgs,
    },
    /// Remove an access key and its secret key from a user.
    Rm {
        /// User id.
        #[arg(long)]
        uid: String,
        /// Access key.
        #[arg(long)]
        access_key: String,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum BucketVerb {
    /// List the names of all buckets, or of a user's buckets.
    #[command(alias = "ls")]
    List {
        /// User id.
        #[arg(long)]
        uid: Option<String>,
    },
    /// Print properties and statistics of a bucket, or of all buckets.
    Stats {
        /// Bucket name.
        #[arg(long)]
        bucket: Option<String>,
    },
    /// Compare a bucket's index with its objects, and find unreferenced data. Prints the differences. The bucket may be in
    /// use. The exit code is 1 if problems remain.
    Check {
        /// Bucket name [default: all buckets].
        #[arg(long)]
        bucket: Option<String>,
        /// Repair differences: index entries from the heads of objects; unreferenced data goes to garbage collection.
        #[arg(long)]
        fix: bool,
        /// Compare objects, too; always done.
        #[arg(long)]
        check_objects: bool,
    },
    /// Change the number of shards of a bucket's index. The bucket may be in use; writes wait for a moment.
    Reshard {
        /// Bucket name.
        #[arg(long)]
        bucket: String,
        /// New number of shards.
        #[arg(long)]
        num_shards: u32,
        /// Allow fewer shards than now.
        #[arg(long)]
        yes_i_really_mean_it: bool,
    },
    /// Change the owner of a bucket. The owners of its objects do not change.
    Link {
        /// Bucket name.
        #[arg(long)]
        bucket: String,
        /// User id.
        #[arg(long)]
        uid: String,
    },
    /// Remove a bucket from its owner's list of buckets.
    Unlink {
        /// Bucket name.
        #[arg(long)]
        bucket: String,
        /// User id.
        #[arg(long)]
        uid: String,
    },
    /// Remove a bucket.
    Rm {
        /// Bucket name.
        #[arg(long)]
        bucket: String,
        /// Remove the objects of the bucket, too.
        #[arg(long)]
        purge_objects: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum GcVerb {
    /// List entries that may be removed.
    List {
        /// Include entries that may be removed only later.
        #[arg(long)]
        include_all: bool,
    },
    /// Remove the data of entries that may be removed.
    Process {
        /// Include entries that may be removed only later; current readers of their data get errors.
        #[arg(long)]
        include_all: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum LcVerb {
    /// List the buckets with lifecycle rules and the state of their processing.
    List,
    /// Apply the lifecycle rules that are due.
    Process {
        /// Bucket name [default: all buckets].
        #[arg(long)]
        bucket: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum ReshardVerb {
    /// Schedule a bucket for resharding by a gateway.
    Add {
        /// Bucket name.
        #[arg(long)]
        bucket: String,
        /// New number of shards.
        #[arg(long)]
        num_shards: u32,
    },
    /// List the buckets that are scheduled for resharding.
    List,
    /// Remove a bucket from the list of scheduled buckets.
    Cancel {
        /// Bucket name.
        #[arg(long)]
        bucket: String,
    },
    /// Reshard the scheduled buckets now.
    Process,
}

/// Whose quota.
#[derive(Debug, clap::Args)]
pub(super) struct QuotaArgs {
    /// Scope: user for all buckets of a user together; bucket for each of them, or for the one of --bucket.
    #[arg(long, value_parser = ["user", "bucket"])]
    pub(super) quota_scope: Option<String>,
    /// User id.
    #[arg(long, required_unless_present = "bucket")]
    pub(super) uid: Option<String>,
    /// Bucket name, for the quota of one bucket.
    #[arg(long, conflicts_with = "uid")]
    pub(super) bucket: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(super) enum QuotaVerb {
    /// Set limits; they are enforced while the quota is enabled.
    Set {
        #[command(flatten)]
        whose: QuotaArgs,
        /// Maximum number of objects; negative for no limit.
        #[arg(long, allow_hyphen_values = true)]
        max_objects: Option<i64>,
        /// Maximum size in bytes, or with B, K, M, G or T; negative for no limit.
        #[arg(long, allow_hyphen_values = true, value_parser = size)]
        max_size: Option<i64>,
    },
    /// Enforce the limits.
    Enable {
        #[command(flatten)]
        whose: QuotaArgs,
    },
    /// Stop enforcing the limits.
    Disable {
        #[command(flatten)]
        whose: QuotaArgs,
    },
}

/// Which records of the usage log.
#[derive(Debug, clap::Args)]
pub(super) struct UsageArgs {
    /// User id [default: all users].
    #[arg(long)]
    pub(super) uid: Option<String>,
    /// Only this bucket.
    #[arg(long)]
    pub(super) bucket: Option<String>,
    /// Start of the period: 2026-01-31 or "2026-01-31 12:00:00", UTC.
    #[arg(long, value_parser = date)]
    pub(super) start_date: Option<u64>,
    /// End of the period (exclusive).
    #[arg(long, value_parser = date)]
    pub(super) end_date: Option<u64>,
}

#[derive(Debug, Subcommand)]
pub(super) enum UsageVerb {
    /// Print usage records.
    Show {
        #[command(flatten)]
        of: UsageArgs,
        /// Request categories, separated by commas.
        #[arg(long, value_delimiter = ',')]
        categories: Vec<String>,
        /// Whether to print the hourly records of each bucket.
        #[arg(long, action = clap::ArgAction::Set, default_value = "true", value_parser = flag)]
        show_log_entries: bool,
        /// Whether to print totals.
        #[arg(long, action = clap::ArgAction::Set, default_value = "true", value_parser = flag)]
        show_log_sum: bool,
    },
    /// Remove usage records.
    Trim {
        #[command(flatten)]
        of: UsageArgs,
        /// Required without --uid.
        #[arg(long)]
        yes_i_really_mean_it: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum CapsVerb {
    /// Add capabilities to a user.
    Add {
        /// User id.
        #[arg(long)]
        uid: String,
        /// Capabilities: users=read, write;buckets=*
        #[arg(long)]
        caps: String,
    },
    /// Remove capabilities from a user.
    Rm {
        /// User id.
        #[arg(long)]
        uid: String,
        /// Capabilities: users=read, write;buckets=*
        #[arg(long)]
        caps: String,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum ObjectVerb {
    /// Print the metadata of an object and the location of its data.
    Stat {
        /// Bucket name.
        #[arg(long)]
        bucket: String,
        /// Object key.
        #[arg(long)]
        object: String,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum MetadataVerb {
    /// List the metadata sections, or the keys of a section.
    #[command(alias = "ls")]
    List {
        /// Section: user, bucket or bucket.instance.
        section: Option<String>,
    },
    /// Print the metadata of a key.
    Get {
        /// Key: user:ID or bucket:NAME.
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
