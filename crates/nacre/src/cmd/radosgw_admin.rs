//! `nacre user|key|bucket|quota|usage|caps|object|metadata|gc|lc|reshard|ratelimit|topic|notification|zone|zonegroup`, and
//! `radosgw-admin`: the S3 gateway's users, buckets and topics, with the words of radosgw-admin.

mod args;
mod ratelimit;
mod topic;
mod zone;

use super::session;
use crate::daemon::{passive_delivery, rgw_config};
use crate::progress::{Progress, Unit};
use anyhow::{Context as _, Result, bail};
use args::{
    BucketVerb, CapsVerb, CommandGroup, GcVerb, KeyArgs, KeyVerb, LcVerb, MetadataVerb, ObjectVerb,
    QuotaArgs, QuotaVerb, ReshardVerb, UsageArgs, UsageVerb, UserVerb,
};
use clap::{CommandFactory, Parser};
use nacre_client::{Cluster, block_on};
use nacre_common::Config;
use nacre_rgw::{
    AccessKey, BucketInconsistency, CheckReport, Gateway, GcResult, LifecycleCounts, LifecycleStatus,
    QuotaChange, UsageFilter, User, caps,
};
use nacre_types::errno::Errno;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

/// Manage users, buckets and topics of the S3 gateway (Ceph's radosgw-admin). The output is JSON.
#[derive(Debug, Parser)]
#[command(name = "radosgw-admin", disable_version_flag = true)]
struct Args {
    /// Output format; `json` and `json-pretty` are the same
    #[arg(short = 'f', long = "format", global = true, value_name = "FORMAT", value_parser = ["json", "json-pretty"])]
    _format: Option<String>,
    #[command(subcommand)]
    subject: CommandGroup,
}

/// `radosgw-admin ARGS`. As in Ceph, the exit code is the errno of the failure, and EINVAL for wrong arguments.
pub(crate) fn main(args: Vec<OsString>) -> ExitCode {
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::from(exit_code(&error))
        }
    }
}

fn exit_code(error: &anyhow::Error) -> u8 {
    let errno_of = |cause: &(dyn std::error::Error + 'static)| {
        let of_gateway = cause.downcast_ref().map(nacre_rgw::Error::errno);
        let of_cluster = || cause.downcast_ref().map(nacre_client::Error::errno);
        of_gateway.or_else(of_cluster).or_else(|| cause.downcast_ref().map(nacre_common::Error::errno))
    };
    let errno = error.chain().find_map(errno_of).unwrap_or(Errno::EINVAL);
    u8::try_from(errno.0).unwrap_or(1).max(1)
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

/// `nacre quota ARGS`.
pub(crate) fn quota(args: Vec<OsString>) -> ExitCode {
    main_of("quota", args)
}

/// `nacre usage ARGS`.
pub(crate) fn usage(args: Vec<OsString>) -> ExitCode {
    main_of("usage", args)
}

/// `nacre caps ARGS`.
pub(crate) fn caps(args: Vec<OsString>) -> ExitCode {
    main_of("caps", args)
}

/// `nacre object ARGS`.
pub(crate) fn object(args: Vec<OsString>) -> ExitCode {
    main_of("object", args)
}

/// `nacre metadata ARGS`.
pub(crate) fn metadata(args: Vec<OsString>) -> ExitCode {
    main_of("metadata", args)
}

/// `nacre lc ARGS`.
pub(crate) fn lc(args: Vec<OsString>) -> ExitCode {
    main_of("lc", args)
}

/// `nacre reshard ARGS`.
pub(crate) fn reshard(args: Vec<OsString>) -> ExitCode {
    main_of("reshard", args)
}

/// `nacre gc ARGS`.
pub(crate) fn gc(args: Vec<OsString>) -> ExitCode {
    main_of("gc", args)
}

/// `nacre ratelimit ARGS`.
pub(crate) fn ratelimit(args: Vec<OsString>) -> ExitCode {
    main_of("ratelimit", args)
}

/// `nacre topic ARGS`.
pub(crate) fn topic(args: Vec<OsString>) -> ExitCode {
    main_of("topic", args)
}

/// `nacre notification ARGS`.
pub(crate) fn notification(args: Vec<OsString>) -> ExitCode {
    main_of("notification", args)
}

/// `nacre zone ARGS`.
pub(crate) fn zone(args: Vec<OsString>) -> ExitCode {
    main_of("zone", args)
}

/// `nacre zonegroup ARGS`.
pub(crate) fn zonegroup(args: Vec<OsString>) -> ExitCode {
    main_of("zonegroup", args)
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
    // The background work of gateways is left to them.
    let config = Config::load(&invocation)?;
    let rgw = nacre_rgw::Config {
        lifecycle: false,
        dynamic_resharding: false,
        watch: false,
        ..rgw_config(&config)?
    };
    let cluster = session::connect(&invocation).context("couldn't connect to the cluster")?;
    let rgw = nacre_rgw::Config { delivery: Some(passive_delivery(&config, &cluster)), ..rgw };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let progress = Progress::start("radosgw-admin", Unit::Time, None);
    let outcome = runtime.block_on(async {
        // Gateways create the pools that the zone names.
        let subject = match args.subject {
            CommandGroup::Zone(verb) => return zone::carry_out(&cluster, verb).await,
            CommandGroup::Zonegroup(verb) => return zone::run_zonegroup(&cluster, verb).await,
            subject => subject,
        };
        let gateway = Gateway::open(cluster.clone(), rgw).await?;
        let outcome = carry_out(&gateway, &cluster, subject).await;
        gateway.shut_down().await;
        outcome
    });
    block_on(cluster.watch_flush()).ok();
    cluster.shut_down();
    drop(progress);
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

async fn carry_out(
    gateway: &Arc<Gateway>,
    cluster: &Cluster,
    subject: CommandGroup,
) -> Result<Option<Value>> {
    match subject {
        CommandGroup::User(verb) => users(gateway, verb).await,
        CommandGroup::Key(KeyVerb::Create { uid, key }) => {
            Ok(Some(gateway.users.add_key(&uid, keys(&key)?).await?.describe()))
        }
        CommandGroup::Key(KeyVerb::Rm { uid, access_key }) => {
            gateway.users.remove_key(&uid, &access_key).await?;
            Ok(None)
        }
        CommandGroup::Bucket(verb) => buckets(gateway, verb).await,
        CommandGroup::Quota(verb) => set_quota(gateway, verb).await,
        CommandGroup::Usage(verb) => show_usage(gateway, verb).await,
        CommandGroup::Caps(CapsVerb::Add { uid, caps }) => {
            let more = caps::parse(&caps)?;
            Ok(Some(change_caps(gateway, &uid, |held| caps::add(held, &more)).await?))
        }
        CommandGroup::Caps(CapsVerb::Rm { uid, caps }) => {
            let gone = caps::parse(&caps)?;
            Ok(Some(change_caps(gateway, &uid, |held| caps::remove(held, &gone)).await?))
        }
        CommandGroup::Object(ObjectVerb::Stat { bucket, object }) => {
            Ok(Some(gateway.object_stat(&bucket, &object).await?))
        }
        CommandGroup::Metadata(MetadataVerb::List { section: None }) => {
            Ok(Some(json!(Gateway::metadata_sections())))
        }
        CommandGroup::Metadata(MetadataVerb::List { section: Some(section) }) => {
            Ok(Some(json!(gateway.metadata_keys(&section).await?)))
        }
        CommandGroup::Metadata(MetadataVerb::Get { key }) => {
            let (section, key) =
                key.split_once(':').context("a metadata key must be user:ID or bucket:NAME")?;
            Ok(Some(gateway.metadata(section, key).await?))
        }
        CommandGroup::Lc(LcVerb::List) => {
            let entries = gateway.lifecycle.entries().await?;
            let status = |status| match status {
                LifecycleStatus::Uninitial => "UNINITIAL",
                LifecycleStatus::Processing => "PROCESSING",
                LifecycleStatus::Complete => "COMPLETE",
            };
            let shown = entries.into_iter().map(|(name, entry)| {
                json!({
                    "bucket": format!(":{name}:{}", entry.id),
                    "started_ns": entry.begun_ns,
                    "status": status(entry.status),
                })
            });
            Ok(Some(shown.collect()))
        }
        CommandGroup::Lc(LcVerb::Process { bucket }) => {
            let LifecycleCounts { objects, noncurrent, markers, uploads, moved } = match bucket {
                Some(bucket) => gateway.lifecycle.process_bucket(&bucket).await?,
                None => gateway.lifecycle.process(true).await?,
            };
            Ok(Some(json!({
                "objects": objects, "noncurrent_versions": noncurrent, "delete_markers": markers, "uploads": uploads,
                "transitions": moved,
            })))
        }
        CommandGroup::Reshard(ReshardVerb::Add { bucket, num_shards }) => {
            gateway.resharder.request(&gateway.bucket(&bucket).await?, num_shards).await?;
            Ok(None)
        }
        CommandGroup::Reshard(ReshardVerb::List) => {
            let entries = gateway.resharder.entries().await?;
            let shown = entries.into_iter().map(|(name, entry)| {
                json!({
                    "bucket_name": name,
                    "bucket_id": entry.id,
                    "time_ns": entry.requested_ns,
                    "old_num_shards": entry.from,
                    "tentative_new_num_shards": entry.shards,
                })
            });
            Ok(Some(shown.collect()))
        }
        CommandGroup::Reshard(ReshardVerb::Cancel { bucket }) => {
            gateway.resharder.withdraw_request(&bucket).await?;
            Ok(None)
        }
        CommandGroup::Reshard(ReshardVerb::Process) => {
            gateway.resharder.process().await?;
            Ok(None)
        }
        CommandGroup::Ratelimit(verb) => ratelimit::carry_out(gateway, verb).await,
        CommandGroup::Zone(verb) => zone::carry_out(cluster, verb).await,
        CommandGroup::Zonegroup(verb) => zone::run_zonegroup(cluster, verb).await,
        CommandGroup::Topic(verb) => topic::run(gateway, verb).await,
        CommandGroup::Notification(verb) => topic::run_notification(gateway, verb).await,
        CommandGroup::Gc(GcVerb::List { include_all }) => {
            let records = gateway.garbage.list(include_all).await?;
            let shown = records.into_iter().map(|record| {
                let mut shown =
                    json!({ "name": record.name, "objects": record.count, "due_ns": record.due_ns });
                if let Some(damage) = record.damage {
                    shown["damaged"] = damage.into();
                }
                shown
            });
            Ok(Some(shown.collect()))
        }
        CommandGroup::Gc(GcVerb::Process { include_all }) => {
            let GcResult { damaged, failed, .. } = gateway.garbage.collect(include_all).await?;
            if damaged > 0 {
                eprintln!("{damaged} damaged records were not removed; gc list --include-all shows them");
            }
            if failed > 0 {
                bail!("the objects of {failed} records could not be removed; try again");
            }
            Ok(None)
        }
    }
}

async fn users(gateway: &Arc<Gateway>, verb: UserVerb) -> Result<Option<Value>> {
    Ok(match verb {
        UserVerb::Create(args) => {
            let name = args.display_name.context("could not create user: no display name specified")?;
            let mut user = User::new(&args.uid, &name);
            user.email = args.email.unwrap_or_default();
            user.max_buckets = args.max_buckets.unwrap_or(user.max_buckets);
            (user.admin, user.system) = (args.admin.unwrap_or(false), args.system.unwrap_or(false));
            user.suspended = args.suspended.unwrap_or(false);
            if let Some(text) = &args.caps {
                caps::add(&mut user.caps, &caps::parse(text)?);
            }
            user.keys.push(keys(&args.key)?);
            gateway.users.create(&user).await.context("could not create user")?;
            Some(gateway.users.get(&user.id).await?.describe())
        }
        UserVerb::Info { uid, access_key } => {
            let user = match (uid, access_key) {
                (Some(uid), _) => gateway.users.get(&uid).await?,
                (None, Some(key)) => gateway.users.get_by_key(&key).await?,
                (None, None) => bail!("--uid or --access-key is required"),
            };
            Some(user.describe())
        }
        UserVerb::List => Some(json!(gateway.users.list().await?)),
        UserVerb::Modify(args) => {
            let more = args.caps.as_deref().map(caps::parse).transpose()?.unwrap_or_default();
            let changed = gateway.users.modify(&args.uid, |user| {
                user.display_name =
                    args.display_name.clone().unwrap_or(std::mem::take(&mut user.display_name));
                user.email = args.email.clone().unwrap_or(std::mem::take(&mut user.email));
                user.max_buckets = args.max_buckets.unwrap_or(user.max_buckets);
                user.suspended = args.suspended.unwrap_or(user.suspended);
                user.admin = args.admin.unwrap_or(user.admin);
                user.system = args.system.unwrap_or(user.system);
                caps::add(&mut user.caps, &more);
                Ok(())
            });
            let mut user = changed.await?;
            if args.key.access_key.is_some() || args.key.gen_access_key {
                user = gateway.users.add_key(&args.uid, keys(&args.key)?).await?;
            }
            Some(user.describe())
        }
        UserVerb::Suspend { uid } => Some(set_suspended(gateway, &uid, true).await?),
        UserVerb::Enable { uid } => Some(set_suspended(gateway, &uid, false).await?),
        UserVerb::Stats { uid, sync_stats: _ } => Some(gateway.user_stats(&uid).await?.describe()),
        UserVerb::Rm { uid, purge_data: true, purge_keys: _ } => {
            gateway.purge_user(&uid).await?;
            None
        }
        UserVerb::Rm { uid, purge_data: false, purge_keys: _ } => {
            gateway.users.remove(&uid).await?;
            None
        }
    })
}

async fn set_suspended(gateway: &Gateway, uid: &str, suspended: bool) -> Result<Value> {
    let user = gateway.users.modify(uid, |user| {
        user.suspended = suspended;
        Ok(())
    });
    Ok(user.await?.describe())
}

async fn change_caps(gateway: &Gateway, uid: &str, change: impl Fn(&mut caps::Caps)) -> Result<Value> {
    let user = gateway.users.modify(uid, |user| {
        change(&mut user.caps);
        Ok(())
    });
    Ok(user.await?.describe())
}

async fn set_quota(gateway: &Gateway, verb: QuotaVerb) -> Result<Option<Value>> {
    let (whose, change) = match verb {
        QuotaVerb::Set { whose, max_objects, max_size } => {
            (whose, QuotaChange { enabled: None, max_size, max_objects })
        }
        QuotaVerb::Enable { whose } => (whose, QuotaChange { enabled: Some(true), ..QuotaChange::default() }),
        QuotaVerb::Disable { whose } => {
            (whose, QuotaChange { enabled: Some(false), ..QuotaChange::default() })
        }
    };
    let QuotaArgs { quota_scope, uid, bucket } = whose;
    match (quota_scope.as_deref(), uid, bucket) {
        (None | Some("bucket"), None, Some(bucket)) => drop(gateway.set_bucket_quota(&bucket, change).await?),
        (Some("user"), None, Some(_)) => bail!("a quota with scope user requires --uid"),
        (Some(scope), Some(uid), _) => drop(gateway.set_user_quota(&uid, scope == "bucket", change).await?),
        _ => bail!("--quota-scope=user or --quota-scope=bucket is required"),
    }
    Ok(None)
}

async fn show_usage(gateway: &Gateway, verb: UsageVerb) -> Result<Option<Value>> {
    let filter = |of: UsageArgs, categories| UsageFilter {
        user: of.uid,
        bucket: of.bucket,
        start: of.start_date.unwrap_or(0),
        end: of.end_date,
        categories,
    };
    match verb {
        UsageVerb::Show { of, categories, show_log_entries, show_log_sum } => {
            Ok(Some(gateway.usage.report(&filter(of, categories), show_log_entries, show_log_sum).await?))
        }
        UsageVerb::Trim { of, yes_i_really_mean_it } => {
            if of.uid.is_none() && !yes_i_really_mean_it {
                bail!(
                    "usage trim without user specified will remove *all* users data: --yes-i-really-mean-it"
                );
            }
            gateway.usage.trim(&filter(of, Vec::new())).await?;
            Ok(None)
        }
    }
}

async fn buckets(gateway: &Arc<Gateway>, verb: BucketVerb) -> Result<Option<Value>> {
    Ok(match verb {
        BucketVerb::Reshard { bucket, num_shards, yes_i_really_mean_it } => {
            let shards = gateway.bucket(&bucket).await?.shards;
            if num_shards < shards && !yes_i_really_mean_it {
                bail!(
                    "num shards ({num_shards}) is less than the current number ({shards}); say --yes-i-really-mean-it"
                );
            }
            gateway.resharder.reshard_bucket(&bucket, num_shards).await?;
            None
        }
        BucketVerb::List { uid: None } => Some(json!(gateway.buckets.list().await?)),
        BucketVerb::List { uid: Some(uid) } => {
            gateway.users.get(&uid).await?;
            let own = gateway.users.buckets.list(&uid, "", u64::MAX).await?;
            Some(own.into_iter().map(|(name, _)| name).collect())
        }
        BucketVerb::Stats { bucket: Some(name) } => Some(gateway.bucket_stats(&name).await?),
        BucketVerb::Stats { bucket: None } => {
            let mut all = Vec::new();
            for name in gateway.buckets.list().await? {
                all.push(gateway.bucket_stats(&name).await?);
            }
            Some(all.into())
        }
        BucketVerb::Check { bucket, fix, check_objects: _ } => {
            let named = bucket.is_some();
            let names = match bucket {
                Some(bucket) => vec![bucket],
                None => gateway.buckets.list().await?,
            };
            let mut all = Vec::new();
            let mut wrong = 0;
            for name in names {
                let report = gateway.checker.check(&name, fix).await?;
                wrong += if fix { 0 } else { report.found };
                all.push(checked(&name, &report, fix));
            }
            let answer = if named { all.remove(0) } else { all.into() };
            if wrong > 0 {
                println!("{answer:#}");
                bail!("{wrong} problems were found; --fix repairs them");
            }
            Some(answer)
        }
        BucketVerb::Link { bucket, uid } => {
            gateway.link_bucket(&bucket, &uid).await?;
            None
        }
        BucketVerb::Unlink { bucket, uid } => {
            gateway.unlink_bucket(&bucket, &uid).await?;
            None
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

/// The result of a check: radosgw-admin's fields, then those of Nacre.
fn checked(name: &str, report: &CheckReport, fixed: bool) -> Value {
    let header = |(objects, bytes): (u64, u64)| json!({ "usage": { "rgw.main": { "size": bytes, "num_objects": objects } } });
    let named = |kind: &str, what: &str, more: Value| {
        let mut object = json!({ "type": kind, "name": what });
        if let (Some(object), Value::Object(more)) = (object.as_object_mut(), more) {
            object.extend(more);
        }
        object
    };
    let none = || json!({});
    let mut uploads = Vec::new();
    let problems: Vec<Value> = report
        .problems
        .iter()
        .map(|problem| match problem {
            BucketInconsistency::MissingShard(shard) => named("missing_shard", shard, none()),
            BucketInconsistency::ClosedShard(shard) => named("closed_shard", shard, none()),
            BucketInconsistency::WrongEntry(key) => named("wrong_entry", key, none()),
            BucketInconsistency::CorruptEntry(key) => named("corrupt_entry", key, none()),
            BucketInconsistency::CorruptHead(key) => named("corrupt_head", key, none()),
            BucketInconsistency::StalePending(key) => named("stale_pending", key, none()),
            BucketInconsistency::WrongSums(shard) => named("wrong_sums", shard, none()),
            BucketInconsistency::MissingUpload(key, id) => {
                uploads.push(Value::from(format!("{key}.{id}")));
                named("missing_upload", key, json!({ "upload": id }))
            }
            BucketInconsistency::UnlistedUpload(key, id) => {
                named("unlisted_upload", key, json!({ "upload": id }))
            }
            BucketInconsistency::Orphan(run, count) => named("orphan", run, json!({ "objects": count })),
            BucketInconsistency::BusyShard(shard) => named("busy_shard", shard, none()),
        })
        .collect();
    json!({
        "bucket": name,
        "invalid_multipart_entries": uploads,
        "check_result": {
            "existing_header": header(report.existing),
            "calculated_header": header(report.calculated),
        },
        "num_problems": report.found,
        "problems": problems,
        "fixed": fixed && report.found > 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_errnos() {
        let of_gateway =
            |error: nacre_rgw::Error| exit_code(&anyhow::Error::from(error).context("could not do it"));
        assert_eq!(of_gateway(nacre_rgw::Error::NoSuchUser("tom".into())), 2);
        assert_eq!(of_gateway(nacre_rgw::Error::BucketNotEmpty("full".into())), 39);
        assert_eq!(of_gateway(nacre_rgw::Error::Rados(Errno::EIO.into())), 5);
        assert_eq!(exit_code(&nacre_client::Error::TimedOut("the mon".into()).into()), 110);
        assert_eq!(exit_code(&nacre_common::Error::TimedOut("the mon".into()).into()), 110);
        assert_eq!(exit_code(&anyhow::anyhow!("--uid or --access-key is required")), 22);
    }
}
