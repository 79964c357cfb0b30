//! Publications of the map authority.

use nacre_types::encoding::{self, DecodeError};
use nacre_types::msg::MapPublish;
use nacre_types::osdmap::{Incremental, OsdMap};
use std::sync::Arc;

/// Returns the map that results from a publication, or `None` if it is not new. Fails if its incrementals do not follow the current map:
/// the full map must then be requested.
pub fn apply_publish(
    have: Option<&Arc<OsdMap>>,
    publish: &MapPublish,
) -> Result<Option<Arc<OsdMap>>, DecodeError> {
    let mut map = have.cloned();
    let mut changed = false;
    if !publish.full.is_empty() {
        let full: OsdMap = encoding::decode(&publish.full)?;
        let stamp = |map: &OsdMap| (map.generation, map.epoch);
        if map.as_ref().is_none_or(|known| stamp(known) < stamp(&full)) {
            map = Some(Arc::new(full));
            changed = true;
        }
    }
    for blob in &publish.incrementals {
        let inc: Incremental = encoding::decode(&blob.0)?;
        match &map {
            Some(current) if inc.epoch <= current.epoch => {}
            Some(current) => {
                map = Some(Arc::new(current.apply(&inc)?));
                changed = true;
            }
            None => {
                let detail = format!("incremental {} without a map before it", inc.epoch);
                return Err(DecodeError::Corrupt { what: "MapPublish", detail });
            }
        }
    }
    Ok(map.filter(|_| changed))
}
