//! `radosgw-admin ratelimit`: limits of users and buckets per minute and gateway.

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use nacre_rgw::{Gateway, RateLimit};
use serde_json::{Value, json};

#[derive(Debug, Subcommand)]
pub(super) enum RatelimitVerb {
    /// Print the limits.
    Get(RatelimitScopeArgs),
    /// Set limits; they are enforced while the rate limit is enabled.
    Set {
        #[command(flatten)]
        scope_args: RatelimitScopeArgs,
        /// Maximum number of read requests per minute; 0 for no limit.
        #[arg(long)]
        max_read_ops: Option<u64>,
        /// Maximum number of write requests per minute; 0 for no limit.
        #[arg(long)]
        max_write_ops: Option<u64>,
        /// Maximum number of bytes read per minute; 0 for no limit.
        #[arg(long)]
        max_read_bytes: Option<u64>,
        /// Maximum number of bytes written per minute; 0 for no limit.
        #[arg(long)]
        max_write_bytes: Option<u64>,
    },
    /// Enforce the limits.
    Enable(RatelimitScopeArgs),
    /// Stop enforcing the limits.
    Disable(RatelimitScopeArgs),
}

#[derive(Debug, Args)]
pub(super) struct RatelimitScopeArgs {
    /// Scope of the limits: a user or a bucket.
    #[arg(long, value_enum)]
    ratelimit_scope: Option<Scope>,
    /// User id.
    #[arg(long)]
    uid: Option<String>,
    /// Bucket name.
    #[arg(long)]
    bucket: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Scope {
    User,
    Bucket,
}

pub(super) async fn carry_out(gateway: &Gateway, verb: RatelimitVerb) -> Result<Option<Value>> {
    Ok(match verb {
        RatelimitVerb::Get(whose) => Some(whose.get(gateway).await?),
        RatelimitVerb::Set {
            scope_args: whose,
            max_read_ops,
            max_write_ops,
            max_read_bytes,
            max_write_bytes,
        } => {
            let change = |limit: &mut RateLimit| {
                limit.max_read_ops = max_read_ops.unwrap_or(limit.max_read_ops);
                limit.max_write_ops = max_write_ops.unwrap_or(limit.max_write_ops);
                limit.max_read_bytes = max_read_bytes.unwrap_or(limit.max_read_bytes);
                limit.max_write_bytes = max_write_bytes.unwrap_or(limit.max_write_bytes);
            };
            whose.change(gateway, change).await?;
            None
        }
        RatelimitVerb::Enable(whose) => {
            whose.change(gateway, |limit| limit.enabled = true).await?;
            None
        }
        RatelimitVerb::Disable(whose) => {
            whose.change(gateway, |limit| limit.enabled = false).await?;
            None
        }
    })
}

impl RatelimitScopeArgs {
    /// The selected user or bucket: by the scope, or otherwise by the given name.
    fn named(&self) -> Result<(Scope, &str)> {
        let uid = || self.uid.as_deref().map(|uid| (Scope::User, uid));
        let bucket = || self.bucket.as_deref().map(|bucket| (Scope::Bucket, bucket));
        match (self.ratelimit_scope, &self.uid, &self.bucket) {
            (Some(Scope::User), ..) => uid().context("--uid is required"),
            (Some(Scope::Bucket), ..) => bucket().context("--bucket is required"),
            (None, Some(_), Some(_)) => bail!("--ratelimit-scope is required: user or bucket"),
            (None, ..) => uid().or_else(bucket).context("--uid or --bucket is required"),
        }
    }

    async fn get(&self, gateway: &Gateway) -> Result<Value> {
        Ok(match self.named()? {
            (Scope::User, uid) => {
                json!({ "user_ratelimit": gateway.users.get(uid).await?.ratelimit.describe() })
            }
            (Scope::Bucket, name) => {
                json!({ "bucket_ratelimit": gateway.bucket(name).await?.ratelimit().describe() })
            }
        })
    }

    async fn change(&self, gateway: &Gateway, change: impl Fn(&mut RateLimit)) -> Result<()> {
        match self.named()? {
            (Scope::User, uid) => {
                let changed = gateway.users.modify(uid, |user| {
                    change(&mut user.ratelimit);
                    Ok(())
                });
                changed.await?;
            }
            (Scope::Bucket, name) => drop(gateway.buckets.set_ratelimit(name, change).await?),
        }
        Ok(())
    }
}
