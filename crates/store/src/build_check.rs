//! Checks that RocksDB was built as required: optimised, and with the processor's CRC instructions.
//!
//! A build that lost its optimisation, for example because a flag did not reach the C++ compiler, works but is several times
//! slower in every compaction and scan. It would go unnoticed until it causes problems, so it is measured here on a temporary
//! in-memory database, which takes some milliseconds.

use crate::error::{Result, StoreError};
use parking_lot::Mutex;
use rocksdb::{
    BlockBasedOptions, ChecksumType, DB, DBCompressionType, Env, InfoLogger, LogLevel, Options, ReadOptions,
    WriteBatch,
};
use std::sync::{Arc, Once, OnceLock};
use std::time::{Duration, Instant};

/// Number of entries in the scan. Their keys and values have the sizes of small records.
const ENTRIES: usize = 4_000;
const VALUE_BYTES: usize = 64;
/// The best of this many passes counts, because other load on the machine slows some passes but not all.
const PASSES: u32 = 8;
/// If a step of the scan takes longer than this, the build is not optimised.
pub const SLOW_ITERATOR_STEP: Duration = Duration::from_nanos(400);

/// The measurements, and how this program was built.
#[derive(Clone, Debug, PartialEq)]
pub struct BuildCheck {
    /// RocksDB's version.
    pub version: String,
    /// Whether RocksDB reports that it uses the processor's CRC instructions.
    pub hardware_crc: bool,
    /// Bytes per second that RocksDB reads from memory and verifies with CRC-32C.
    pub checked_bytes_per_second: f64,
    /// Time that an iterator takes to advance by one entry.
    pub step: Duration,
    /// The processor features that the database needs and the program was built for.
    pub features: Vec<&'static str>,
    /// Whether the program's own assertions are enabled (the `dev` profile).
    pub assertions: bool,
}

impl BuildCheck {
    /// Runs the measurements.
    pub fn run() -> Result<BuildCheck> {
        let said = Arc::new(Mutex::new((String::new(), false)));
        let heard = Arc::clone(&said);
        let logger = InfoLogger::new_callback_logger(LogLevel::Header, move |_, line| {
            let mut heard = heard.lock();
            if let Some((_, version)) = line.split_once("RocksDB version: ") {
                heard.0 = version.trim().to_owned();
            } else if let Some((_, crc)) = line.split_once("Fast CRC32 supported: ") {
                heard.1 = crc.trim().starts_with("Supported");
            }
        });
        let env = Env::mem_env().map_err(failed)?;
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_env(&env);
        options.set_info_logger(logger);
        options.set_compression_type(DBCompressionType::None);
        let mut table = BlockBasedOptions::default();
        table.set_checksum_type(ChecksumType::CRC32c);
        table.disable_cache();
        table.set_block_size(64 << 10);
        options.set_block_based_table_factory(&table);
        // The binding creates the folder outside the in-memory environment, so an existing one is used.
        let db = DB::open(&options, std::env::temp_dir()).map_err(failed)?;
        let step = scan(&db)?;
        let checked_bytes_per_second = check(&db)?;
        let (version, hardware_crc) = said.lock().clone();
        let assertions = cfg!(debug_assertions);
        Ok(BuildCheck {
            version,
            hardware_crc,
            checked_bytes_per_second,
            step,
            features: features(),
            assertions,
        })
    }

    /// Problems of the build, for health reports. Empty if there are none.
    pub fn warnings(&self) -> Vec<String> {
        let mut complaints = Vec::new();
        if self.step > SLOW_ITERATOR_STEP {
            complaints.push(format!(
                "a RocksDB that was built without optimisation: a step of a scan takes {} ns, above {}",
                self.step.as_nanos(),
                SLOW_ITERATOR_STEP.as_nanos()
            ));
        }
        if !self.hardware_crc {
            complaints.push("a RocksDB that was built without the processor's CRC instructions".to_owned());
        }
        complaints
    }
}

/// Problems of this process's build, for health reports. The first call starts the measurement on its own thread; the result is
/// empty until it has ended.
pub fn build_warnings() -> &'static [String] {
    static BEGUN: Once = Once::new();
    static FOUND: OnceLock<Vec<String>> = OnceLock::new();
    BEGUN.call_once(|| {
        let measure = || match BuildCheck::run() {
            Ok(check) => {
                tracing::info!(?check, "the build of the key-value store");
                let complaints = check.warnings();
                complaints.iter().for_each(|complaint| tracing::warn!("this program has {complaint}"));
                FOUND.get_or_init(|| complaints);
            }
            Err(error) => tracing::warn!(%error, "the build of the key-value store could not be checked"),
        };
        if let Err(error) = std::thread::Builder::new().name("build-check".into()).spawn(measure) {
            tracing::warn!(%error, "the build of the key-value store could not be checked");
        }
    });
    FOUND.get().map_or(&[], Vec::as_slice)
}

fn failed(error: rocksdb::Error) -> StoreError {
    crate::error::database("check the database's build", &error)
}

/// Time that an iterator takes for one step over sorted tables.
fn scan(db: &DB) -> Result<Duration> {
    let mut batch = WriteBatch::default();
    for number in 0..ENTRIES {
        batch.put(format!("scan/{number:012}"), [number as u8; VALUE_BYTES]);
    }
    db.write(batch).map_err(failed)?;
    db.flush().map_err(failed)?;
    let pass = || {
        let mut iterator = db.raw_iterator();
        iterator.seek("scan/");
        let (started, mut entries, mut bytes) = (Instant::now(), 0, 0);
        while let Some((_, value)) = iterator.item() {
            entries += 1;
            bytes += value.len();
            iterator.next();
        }
        let took = started.elapsed();
        iterator.status().map_err(failed)?;
        assert_eq!(
            (entries, bytes),
            (ENTRIES, ENTRIES * VALUE_BYTES),
            "invariant: the database holds just this"
        );
        Ok(took / ENTRIES as u32)
    };
    fail::fail_point!("store::slow_scan", |_| Ok(SLOW_ITERATOR_STEP * 3));
    best(pass)
}

/// Bytes of blocks that are read and verified per second.
fn check(db: &DB) -> Result<f64> {
    const PART: usize = 1 << 20;
    const PARTS: usize = 4;
    let mut batch = WriteBatch::default();
    for number in 0..PARTS {
        batch.put(format!("blob/{number}"), vec![number as u8; PART]);
    }
    db.write(batch).map_err(failed)?;
    db.flush().map_err(failed)?;
    let pass = || {
        let started = Instant::now();
        for number in 0..PARTS {
            let mut options = ReadOptions::default();
            options.set_verify_checksums(true);
            let value = db.get_pinned_opt(format!("blob/{number}"), &options).map_err(failed)?;
            assert_eq!(value.map(|value| value.len()), Some(PART), "invariant: it was just put");
        }
        Ok(started.elapsed())
    };
    Ok((PART * PARTS) as f64 / best(pass)?.as_secs_f64())
}

fn best(pass: impl Fn() -> Result<Duration>) -> Result<Duration> {
    (0..PASSES).map(|_| pass()).try_fold(Duration::MAX, |best, took| Ok(best.min(took?)))
}

/// The target features that the compiler was given and that matter to RocksDB's CRC.
fn features() -> Vec<&'static str> {
    let known = [
        ("sse4.2", cfg!(target_feature = "sse4.2")),
        ("pclmulqdq", cfg!(target_feature = "pclmulqdq")),
        ("avx2", cfg!(target_feature = "avx2")),
        ("crc", cfg!(all(target_arch = "aarch64", target_feature = "crc"))),
        ("aes", cfg!(all(target_arch = "aarch64", target_feature = "aes"))),
    ];
    known.into_iter().filter(|(_, on)| *on).map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_build_is_as_it_must_be() {
        let check = BuildCheck::run().unwrap();
        assert!(check.hardware_crc && !check.version.is_empty(), "{check:?}");
        assert!(check.checked_bytes_per_second > 0.0 && check.step > Duration::ZERO, "{check:?}");
        assert!(!check.features.is_empty(), "{check:?}");
        assert_eq!(check.warnings(), Vec::<String>::new(), "{check:?}");
    }

    #[test]
    fn a_build_that_is_not_is_complained_of() {
        let good = BuildCheck::run().unwrap();
        let slow = BuildCheck { step: SLOW_ITERATOR_STEP * 2, ..good.clone() };
        assert!(slow.warnings()[0].contains("without optimisation"), "{:?}", slow.warnings());
        let soft = BuildCheck { hardware_crc: false, ..good };
        assert!(soft.warnings()[0].contains("CRC instructions"), "{:?}", soft.warnings());
    }

    #[test]
    fn what_is_wrong_is_found_out_beside_the_start() {
        let _faults = fail::FailScenario::setup();
        fail::cfg("store::slow_scan", "return").unwrap();
        let began = Instant::now();
        while build_warnings().is_empty() {
            assert!(began.elapsed() < Duration::from_secs(60), "no complaint");
            std::thread::yield_now();
        }
        assert!(build_warnings()[0].contains("without optimisation"));
    }
}
