//! CRUSH: the hierarchy of devices and the rules that place data on them.

use serde::{Deserialize, Serialize};

/// A CRUSH map.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CrushMap {}
