//! `nacre user|key|bucket|gc`, and `radosgw-admin` by that name: the S3 gateway's users and buckets, in radosgw-admin's
//! words.

use super::session;
use anyhow::{Context as _, Result, bail};
use clap::{CommandFactory, Parser, Subcommand};
use nacre_client::block_on;
use nacre_rgw::{AccessKey, Config, Gateway, User};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

/// Administers the S3 gateway's users and buckets (Ceph's radosgw-admin). Answers are JSON.
#[derive(Debug, Parser)]
#[command(name = "radosgw-admin", disable_version_flag = true)]
struct Args {
    #[command(subcommand)]
    subject: Subject,
}

#[derive(Debug, Subcommand)]
enum Subject {
    /// Users.
    #[command(subcommand)]
    User(UserVerb),
    /// Users' keys.
    #[command(subcommand)]
    Key(KeyVerb),
    /// Buckets.
    #[command(subcommand)]
    Bucket(BucketVerb),
    /// Data that nothing names any more.
    #[command(subcommand)]
    Gc(GcVerb),
}

#[derive(Debug, clap::Args)]
struct UserArgs {
    /// The user's id.
    #[arg(long)]
    uid: String,
    /// The user's name for people.
    #[arg(long)]
    display_name: Option<String>,
    /// The user's mail address.
    #[arg(long)]
    email: Option<String>,
    /// The most buckets that it may have; 0 for as many as it likes.
    #[arg(long)]
    max_buckets: Option<u32>,
    #[command(flatten)]
    key: KeyArgs,
}

#[derive(Debug, clap::Args)]
struct KeyArgs {
    /// An access key; one is made up where none is named.
    #[arg(long)]
    access_key: Option<String>,
    /// Its secret; one is made up where none is named.
    #[arg(long, alias = "secret")]
    secret_key: Option<String>,
    /// The kind of key: s3.
    #[arg(long, default_value = "s3", value_parser = ["s3"])]
    key_type: String,
    /// Makes up an access key, as is done anyway where none is named.
    #[arg(long)]
    gen_access_key: bool,
    /// Makes up a secret, as is done anyway where none is named.
    #[arg(long)]
    gen_secret: bool,
}

#[derive(Debug, Subcommand)]
enum UserVerb {
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
    /// Removes a user that has no buckets.
    Rm {
        /// The user's id.
        #[arg(long)]
        uid: String,
    },
}

#[derive(Debug, Subcommand)]
enum KeyVerb {
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
enum BucketVerb {
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
enum GcVerb {
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

/// `radosgw-admin ARGS`.
pub(crate) fn main(args: Vec<OsString>) -> ExitCode {
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn main_of(subject: &str, mut args: Vec<OsString>) -> ExitCode {
    args.insert(0, subject.into());
    main(args)
}

/// `nacre user ARGS`.
pub(crate) fn user(args: Vec<OsString>) -> ExitCode {
    main_of("user", args)
}

/// `nacre key ARGS`.
pub(crate) fn key(args: Vec<OsString>) -> ExitCode {
    main_of("key", args)
}

/// `nacre bucket ARGS`.
pub(crate) fn bucket(args: Vec<OsString>) -> ExitCode {
    main_of("bucket", args)
}

/// `nacre gc ARGS`.
pub(crate) fn gc(args: Vec<OsString>) -> ExitCode {
    main_of("gc", args)
}

/// What `radosgw-admin --help` prints.
pub(crate) fn help() -> String {
    Args::command().term_width(100).render_long_help().to_string()
}

fn run(args: Vec<OsString>) -> Result<()> {
    let invocation = session::parse(args).map_err(anyhow::Error::msg)?;
    let words = std::iter::once("radosgw-admin").chain(invocation.rest.iter().map(String::as_str));
    let args = match Args::try_parse_from(words) {
        Ok(args) => args,
        Err(error) => error.exit(),
    };
    let cluster = session::connect(&invocation)
        .map_err(|error| anyhow::anyhow!("couldn't connect to the cluster: {error}"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(async {
        let gateway = Gateway::open(cluster.clone(), Config::default()).await?;
        let outcome = carry_out(&gateway, args.subject).await;
        gateway.finish().await;
        outcome
    });
    block_on(cluster.watch_flush()).ok();
    cluster.shut_down();
    if let Some(answer) = outcome? {
        println!("{answer:#}");
    }
    Ok(())
}

fn keys(args: &KeyArgs) -> Result<AccessKey> {
    let made_up = AccessKey::generate()?;
    Ok(AccessKey {
        access_key: args.access_key.clone().unwrap_or(made_up.access_key),
        secret_key: args.secret_key.clone().unwrap_or(made_up.secret_key),
    })
}

async fn carry_out(gateway: &Arc<Gateway>, subject: Subject) -> Result<Option<Value>> {
    match subject {
        Subject::User(verb) => users(gateway, verb).await,
        Subject::Key(KeyVerb::Create { uid, key }) => {
            Ok(Some(gateway.add_key(&uid, keys(&key)?).await?.describe()))
        }
        Subject::Key(KeyVerb::Rm { uid, access_key }) => {
            gateway.remove_key(&uid, &access_key).await?;
            Ok(None)
        }
        Subject::Bucket(verb) => buckets(gateway, verb).await,
        Subject::Gc(GcVerb::List { include_all }) => {
            let records = gateway.garbage(include_all, usize::MAX).await?;
            let shown = records.into_iter().map(
                |record| json!({ "name": record.name, "objects": record.count, "due_ns": record.due_ns }),
            );
            Ok(Some(shown.collect()))
        }
        Subject::Gc(GcVerb::Process { include_all }) => {
            gateway.collect_garbage(include_all).await?;
            Ok(None)
        }
    }
}

async fn users(gateway: &Gateway, verb: UserVerb) -> Result<Option<Value>> {
    Ok(match verb {
        UserVerb::Create(args) => {
            let name = args.display_name.context("could not create user: no display name specified")?;
            let mut user = User::new(&args.uid, &name);
            user.email = args.email.unwrap_or_default();
            user.max_buckets = args.max_buckets.unwrap_or(user.max_buckets);
            user.keys.push(keys(&args.key)?);
            gateway.create_user(&user).await.context("could not create user")?;
            Some(user.describe())
        }
        UserVerb::Info { uid, access_key } => {
            let user = match (uid, access_key) {
                (Some(uid), _) => gateway.user(&uid).await?,
                (None, Some(key)) => gateway.user_of_key(&key).await?,
                (None, None) => bail!("--uid or --access-key is needed"),
            };
            Some(user.describe())
        }
        UserVerb::List => Some(json!(gateway.users().await?)),
        UserVerb::Modify(args) => {
            let changed = gateway.modify_user(&args.uid, |user| {
                user.display_name =
                    args.display_name.clone().unwrap_or(std::mem::take(&mut user.display_name));
                user.email = args.email.clone().unwrap_or(std::mem::take(&mut user.email));
                user.max_buckets = args.max_buckets.unwrap_or(user.max_buckets);
                Ok(())
            });
            let mut user = changed.await?;
            if args.key.access_key.is_some() || args.key.gen_access_key {
                user = gateway.add_key(&args.uid, keys(&args.key)?).await?;
            }
            Some(user.describe())
        }
        UserVerb::Suspend { uid } => Some(set_suspended(gateway, &uid, true).await?),
        UserVerb::Enable { uid } => Some(set_suspended(gateway, &uid, false).await?),
        UserVerb::Rm { uid } => {
            gateway.remove_user(&uid).await?;
            None
        }
    })
}

async fn set_suspended(gateway: &Gateway, uid: &str, suspended: bool) -> Result<Value> {
    let user = gateway.modify_user(uid, |user| {
        user.suspended = suspended;
        Ok(())
    });
    Ok(user.await?.describe())
}

async fn buckets(gateway: &Arc<Gateway>, verb: BucketVerb) -> Result<Option<Value>> {
    Ok(match verb {
        BucketVerb::List { uid: None } => Some(json!(gateway.buckets().await?)),
        BucketVerb::List { uid: Some(uid) } => {
            gateway.user(&uid).await?;
            let own = gateway.buckets_of(&uid, "", u64::MAX).await?;
            Some(own.into_iter().map(|(name, _)| name).collect())
        }
        BucketVerb::Stats { bucket: Some(name) } => Some(stats(gateway, &name).await?),
        BucketVerb::Stats { bucket: None } => {
            let mut all = Vec::new();
            for name in gateway.buckets().await? {
                all.push(stats(gateway, &name).await?);
            }
            Some(all.into())
        }
        BucketVerb::Rm { bucket, purge_objects } => {
            if purge_objects {
                gateway.purge_bucket(&bucket).await?;
            }
            gateway.remove_bucket(&bucket).await?;
            None
        }
    })
}

async fn stats(gateway: &Gateway, name: &str) -> Result<Value> {
    let bucket = gateway.bucket(name).await?;
    let (objects, bytes) = gateway.bucket_usage(&bucket).await?;
    Ok(json!({
        "bucket": bucket.name,
        "num_shards": bucket.shards,
        "id": bucket.id,
        "marker": bucket.id,
        "index_generation": bucket.generation,
        "owner": bucket.owner,
        "creation_time_ns": bucket.created_ns,
        "usage": { "rgw.main": { "size": bytes, "num_objects": objects } },
    }))
}
