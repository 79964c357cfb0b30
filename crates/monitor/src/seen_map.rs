//! Remembers the newest map of this monitor outside of the map store, as evidence if the store is restored from an old copy.
//!
//! The record may be a few seconds old. OSDs remember maps too, so it need not be exact.

use crate::error::MonError;
use nacre_types::encoding::{self, Versioned};
use nacre_types::osdmap::MapVersion;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// The name of the file in the monitor's data directory.
const FILE_NAME: &str = "seen_map";

/// The contents of the file.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct SeenMap {
    fsid: Uuid,
    map: MapVersion,
}

impl Versioned for SeenMap {
    const NAME: &'static str = "mon::SeenMap";
}

/// The file.
pub(super) struct SeenMapFile {
    dir: PathBuf,
    fsid: Uuid,
    written: MapVersion,
}

impl SeenMapFile {
    /// Reads the file in the monitor's data directory. A file of another cluster counts as missing.
    pub(super) fn open(dir: &Path, fsid: Uuid) -> Result<SeenMapFile, MonError> {
        fs::create_dir_all(dir).map_err(|error| MonError::Invalid(format!("{}: {error}", dir.display())))?;
        let path = dir.join(FILE_NAME);
        let seen = match fs::read(&path) {
            Ok(bytes) => Some(encoding::decode::<SeenMap>(&bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(MonError::Invalid(format!("{}: {error}", path.display()))),
        };
        let seen = seen.transpose().unwrap_or_else(|error| {
            tracing::warn!(file = %path.display(), %error, "the newest map of this monitor is not known");
            None
        });
        let written = seen.filter(|seen| seen.fsid == fsid).map(|seen| seen.map).unwrap_or_default();
        Ok(SeenMapFile { dir: dir.to_owned(), fsid, written })
    }

    /// The newest map that was written.
    pub(super) fn newest(&self) -> MapVersion {
        self.written
    }

    /// Writes a map, unless it is written already. Durable on return.
    pub(super) fn write(&mut self, map: MapVersion) -> io::Result<()> {
        if map == self.written {
            return Ok(());
        }
        let new = self.dir.join(format!("{FILE_NAME}.new"));
        let mut file = File::create(&new)?;
        file.write_all(&encoding::encode(&SeenMap { fsid: self.fsid, map }))?;
        file.sync_all()?;
        fs::rename(&new, self.dir.join(FILE_NAME))?;
        File::open(&self.dir)?.sync_all()?;
        self.written = map;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::ids::Epoch;

    #[test]
    fn the_newest_map_is_read_back_by_its_cluster_only() {
        let dir = tempfile::tempdir().unwrap();
        let fsid = Uuid::from_u128(7);
        let mut file = SeenMapFile::open(dir.path(), fsid).unwrap();
        assert_eq!(file.newest(), MapVersion::default());
        let map = MapVersion { generation: 1, epoch: Epoch(9), ..MapVersion::default() };
        file.write(map).unwrap();
        assert_eq!(SeenMapFile::open(dir.path(), fsid).unwrap().newest(), map);
        let other = SeenMapFile::open(dir.path(), Uuid::from_u128(8)).unwrap();
        assert_eq!(other.newest(), MapVersion::default());
        fs::write(dir.path().join(FILE_NAME), b"damaged").unwrap();
        assert_eq!(SeenMapFile::open(dir.path(), fsid).unwrap().newest(), MapVersion::default());
    }
}
