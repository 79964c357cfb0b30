//! `bench` and `cleanup`: the load of [`crate::cmd::obj_bencher`] on a pool.

use super::args::Format;
use super::{Context, RadosFailure, out, pools};
use crate::cmd::obj_bencher::{
    self, BackendCallback, BackendError, BenchBackend, BenchKind, BenchPlan, LAST_RUN_OBJECT, OBJECT_PREFIX,
    RunRecord, Settings, bench_failed,
};
use crate::cmd::steady::SLICE_SECONDS;
use bytes::Bytes;
use nacre_client::{Error, IoCtx, NetworkThread, OpReply, ReadOp, WriteOp};
use nacre_types::errno::Errno;

/// Maximum number of sessions of one benchmark. Each has a thread.
const MAX_CLIENTS: u32 = 1024;

impl From<Error> for BackendError {
    fn from(error: Error) -> BackendError {
        BackendError { text: error.to_string(), errno: error.errno() }
    }
}

impl BenchBackend for IoCtx {
    fn write(&self, plan: &BenchPlan, name: &str, offset: u64, data: Bytes, done: BackendCallback<()>) {
        let mut op = WriteOp::new();
        if plan.hints {
            op.set_alloc_hint(plan.object_size, plan.op_size, 0);
        }
        op.write(offset, data);
        let success = |reply: OpReply| reply.success();
        self.aio_operate(
            name,
            op,
            Box::new(move |reply| done(reply.and_then(success).map(drop).map_err(BackendError::from))),
        );
    }

    fn read(&self, name: &str, offset: u64, len: u64, done: BackendCallback<Bytes>) {
        let mut op = ReadOp::new();
        op.read(offset, len);
        let output = |reply: OpReply| reply.success()?.output(0);
        self.aio_operate_read(
            name,
            op,
            Box::new(move |reply| done(reply.and_then(output).map_err(BackendError::from))),
        );
    }

    fn remove(&self, name: &str, done: BackendCallback<bool>) {
        let mut op = WriteOp::new();
        op.remove();
        let outcome = |reply: nacre_client::Result<OpReply>| match reply.and_then(OpReply::success) {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error.into()),
        };
        self.aio_operate(name, op, Box::new(move |reply| done(outcome(reply))));
    }

    fn save(&self, name: &str, data: Vec<u8>) -> Result<(), BackendError> {
        Ok(self.write_full(name, data).wait()?)
    }

    fn load(&self, name: &str) -> Result<Option<Bytes>, BackendError> {
        match self.read(name, 0, 0).wait() {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

pub(super) fn bench(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    let kind = match operands[1] {
        "write" => BenchKind::Write,
        "seq" => BenchKind::Sequential,
        "rand" => BenchKind::Random,
        _ => return Err(RadosFailure::usage()),
    };
    let seconds: u64 = operands[0]
        .parse()
        .map_err(|_| RadosFailure::new(format!("Invalid value for seconds: '{}'", operands[0])))?;
    let args = context.args;
    let hints = !args.no_hints;
    if args.format == Format::Plain {
        out(format!("hints = {}\n", u8::from(hints)))?;
    }
    let concurrent = args.concurrent.unwrap_or(16);
    if concurrent == 0 {
        return Err(bench_failed("benchmark", Errno::EINVAL));
    }
    let clients = args.clients.unwrap_or(1);
    if !(1..=MAX_CLIENTS).contains(&clients) {
        eprintln!("--clients must be from 1 to {MAX_CLIENTS}");
        return Err(bench_failed("benchmark", Errno::EINVAL));
    }
    let run = match kind {
        BenchKind::Write => {
            let op_size = context.op_size();
            let object_size = args.object_size.unwrap_or(op_size);
            if object_size < op_size {
                eprintln!("objects must be at least as large as ops: -O {object_size} is below -b {op_size}");
                return Err(bench_failed("benchmark", Errno::EINVAL));
            }
            RunRecord { object_size, objects: 0, pid: std::process::id(), op_size }
        }
        BenchKind::Sequential | BenchKind::Random => {
            obj_bencher::last_run(context.pool(), args.run_name.as_deref())?
        }
    };
    let plan = BenchPlan {
        kind,
        prefix: run.prefix(),
        op_size: run.op_size,
        ops_per_object: run.object_size / run.op_size,
        object_size: run.object_size,
        objects: run.objects,
        max_objects: args.max_objects,
        concurrent,
        verify: !args.no_verify,
        hints,
        seed: None,
    };
    let settings = Settings {
        run_name: args.run_name.as_deref(),
        seconds,
        warm_up: args.warm_up,
        slice: args.slice.unwrap_or(SLICE_SECONDS),
        format: args.format,
        show_time: args.show_time,
        no_cleanup: args.no_cleanup,
    };
    // With a thread for each of hundreds of sessions, the benchmark would measure context switches.
    let others = if clients == 1 {
        Vec::new()
    } else {
        let network = NetworkThread::start().map_err(|e| RadosFailure::new(e.to_string()))?;
        (1..clients).map(|_| context.another_session(&network)).collect::<Result<_, _>>()?
    };
    let pools = std::iter::once(context.pool()).chain(others.iter().map(|(_, pool)| pool));
    let result = obj_bencher::run(&pools.cloned().collect::<Vec<_>>(), plan, run, &settings);
    for (cluster, _) in others {
        cluster.shut_down();
    }
    result
}

pub(super) fn cleanup(context: &Context<'_>, _: &[&str]) -> Result<(), RadosFailure> {
    let args = context.args;
    let pool = context.pool();
    let removed = match &args.prefix {
        Some(prefix) if !prefix.starts_with(OBJECT_PREFIX) => {
            eprintln!("Specified --prefix invalid, it must begin with \"{OBJECT_PREFIX}\"");
            return Err(bench_failed("cleanup", Errno::EINVAL));
        }
        Some(prefix) => {
            let namespace = pool.namespace().to_owned();
            let matches = |object: &nacre_types::ObjectId| {
                object.namespace() == namespace
                    && (object.name().starts_with(prefix.as_str()) || object.name() == LAST_RUN_OBJECT)
            };
            let removed = pools::remove_all(pool, matches);
            let removed = removed.map_err(|error| bench_failed("cleanup", error.errno()))?;
            // The record of the last run is not one of the benchmark's objects.
            Some(removed.saturating_sub(1))
        }
        None => obj_bencher::clean_up_last_run(std::slice::from_ref(pool), args.run_name.as_deref())?,
    };
    obj_bencher::print_removed(removed, args.format)
}
