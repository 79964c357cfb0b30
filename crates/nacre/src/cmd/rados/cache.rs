//! Verbs on cache pools: they flush objects to the base pool and evict them from the cache.
//!
//! They address the cache pool itself, independently of overlays.

use super::{Context, RadosFailure, failed, out, reason};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use nacre_client::{Error, IoCtx, ReadOp, block_on};
use nacre_types::ObjectId;
use nacre_types::errno::Errno;
use nacre_types::op::{Op, request_flag};

/// Objects that are flushed and evicted concurrently.
const IN_FLIGHT: usize = 16;

pub(super) fn flush(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    one(context, operands[0], Op::CacheFlush)
}

pub(super) fn try_flush(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    one(context, operands[0], Op::CacheTryFlush)
}

pub(super) fn evict(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    one(context, operands[0], Op::CacheEvict)
}

pub(super) fn flush_evict_all(context: &Context<'_>, _: &[&str]) -> Result<(), RadosFailure> {
    all(context, Op::CacheFlush, "cache-flush-evict-all")
}

pub(super) fn try_flush_evict_all(context: &Context<'_>, _: &[&str]) -> Result<(), RadosFailure> {
    all(context, Op::CacheTryFlush, "cache-try-flush-evict-all")
}

fn one(context: &Context<'_>, object: &str, op: Op) -> Result<(), RadosFailure> {
    // Ceph's program prints this for all three verbs.
    let doing = format!("error from cache-flush {object}");
    block_on(run(&cache(context), object, op)).map_err(failed(doing))
}

/// The pool itself, not the cache tier that serves it.
fn cache(context: &Context<'_>) -> IoCtx {
    context.pool().with_flags(request_flag::IGNORE_OVERLAY)
}

async fn run(pool: &IoCtx, object: &str, op: Op) -> nacre_client::Result<()> {
    let mut read = ReadOp::new();
    read.push(op);
    pool.operate_read(object, read).await?.success().map(drop)
}

/// Flushes and evicts every object of the pool. Prints failures and continues. Fails at the end if there were any.
fn all(context: &Context<'_>, flush: Op, verb: &str) -> Result<(), RadosFailure> {
    let pool = cache(context);
    let errors = block_on(async {
        let mut errors = 0_u64;
        let mut lister = pool.list_all();
        let mut in_flight = FuturesUnordered::new();
        let mut finished = |outcome: Result<(), String>| {
            if let Err(text) = outcome {
                eprintln!("{text}");
                errors += 1;
            }
        };
        loop {
            let page = lister
                .next_page()
                .await
                .map_err(failed(format_args!("error listing pool {}", pool.pool_name())))?;
            let Some(page) = page else { break };
            for object in page {
                out(format!("{}\t{}\t{}\n", object.namespace(), object.name(), object.locator()))?;
                in_flight.push(flush_and_evict(&pool, object, flush.clone()));
                if in_flight.len() >= IN_FLIGHT
                    && let Some(outcome) = in_flight.next().await
                {
                    finished(outcome);
                }
            }
        }
        while let Some(outcome) = in_flight.next().await {
            finished(outcome);
        }
        Ok::<_, RadosFailure>(errors)
    })?;
    match errors {
        0 => Ok(()),
        _ => Err(RadosFailure::new(format!("{verb} finished with errors"))),
    }
}

/// Flushes and evicts an object. Returns the error to print. An object that the cluster has evicted meanwhile is not an error.
async fn flush_and_evict(pool: &IoCtx, object: ObjectId, flush: Op) -> Result<(), String> {
    let pool = pool.with_namespace(object.namespace()).with_locator(object.locator());
    let told = |doing: &str, error: &Error| {
        format!("failed to {doing} {}/{}: {}", object.namespace(), object.name(), reason(error))
    };
    for (doing, op) in [("flush", flush), ("evict", Op::CacheEvict)] {
        match run(&pool, object.name(), op).await {
            Err(error) if error.errno() == Errno::ENOENT => return Ok(()),
            outcome => outcome.map_err(|error| told(doing, &error))?,
        }
    }
    Ok(())
}
