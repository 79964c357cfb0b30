//! Ceph's limits on requests, from the options.

use nacre_types::errno::Errno;

/// Limits of one OSD. The defaults are those of Ceph's options, whose names the fields have without `osd_`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// `osd_max_object_size`: the maximum size of an object in bytes (EFBIG).
    pub max_object_size_bytes: u64,
    /// `osd_max_write_size` in bytes: the maximum payload of one request (EMSGSIZE); 0 means no limit.
    pub max_write_size_bytes: u64,
    /// `osd_max_object_name_len` (ENAMETOOLONG), for names and locator keys.
    pub max_object_name_len: usize,
    /// `osd_max_object_namespace_len` (ENAMETOOLONG).
    pub max_object_namespace_len: usize,
    /// `osd_max_attr_name_len` (ENAMETOOLONG).
    pub max_attr_name_len: usize,
    /// `osd_max_attr_size` (EFBIG); 0 means no limit.
    pub max_attr_size_bytes: u64,
    /// `osd_max_omap_entries_per_request`: replies are truncated to this.
    pub max_omap_entries_per_request: u64,
    /// `osd_max_omap_bytes_per_request`: replies are truncated to this.
    pub max_omap_bytes_per_request: u64,
    /// `osd_max_pgls`: objects per listing reply.
    pub max_pgls: u64,
    /// `osd_max_write_op_reply_len`: output per op of an update (EOVERFLOW).
    pub max_write_op_reply_len: usize,
    /// `osd_max_object_watches`: watches on one object (ENOSPC).
    pub max_object_watches: usize,
    /// `osd_max_client_watches`: watches of one session on one OSD (ENOSPC).
    pub max_client_watches: usize,
    /// `osd_max_watches`: watches on one OSD (ENOSPC).
    pub max_watches: usize,
    /// `osd_client_watch_timeout`: the default timeout of watches, in seconds.
    pub watch_timeout_s: u32,
    /// `osd_default_notify_timeout`: the default timeout of notifies, in seconds.
    pub notify_timeout_s: u32,
    /// `osd_class_load_list`: calls of other classes fail with EPERM.
    pub classes_offered: ClassList,
    /// `osd_class_default_list`: the classes that `x` and `class-read` in capabilities include.
    pub classes_by_default: ClassList,
}

impl Limits {
    /// `check_offset_and_length`: EFBIG beyond `osd_max_object_size`. A client's negative offset arrives as a huge one.
    pub(crate) fn check_range(&self, offset: u64, len: u64) -> Result<(), Errno> {
        let max = self.max_object_size_bytes;
        let fits = offset < max && len <= max && offset + len <= max;
        if fits { Ok(()) } else { Err(Errno::EFBIG) }
    }
}

/// Names of object classes, separated as in Ceph's lists; `*` means all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassList(Vec<String>);

impl ClassList {
    /// Parses an option's text.
    pub fn parse(text: &str) -> ClassList {
        let names = text.split(|c: char| c.is_whitespace() || ",;=".contains(c));
        ClassList(names.filter(|name| !name.is_empty()).map(str::to_owned).collect())
    }

    /// Whether the list contains `class`.
    pub fn contains(&self, class: &str) -> bool {
        self.0.iter().any(|name| name == "*" || name == class)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_object_size_bytes: 128 << 20,
            max_write_size_bytes: 90 << 20,
            max_object_name_len: 2048,
            max_object_namespace_len: 256,
            max_attr_name_len: 100,
            max_attr_size_bytes: 0,
            max_omap_entries_per_request: 1024,
            max_omap_bytes_per_request: 1 << 30,
            max_pgls: 1024,
            max_write_op_reply_len: 64,
            max_object_watches: 4096,
            max_client_watches: 4096,
            max_watches: 262_144,
            watch_timeout_s: 30,
            notify_timeout_s: 30,
            classes_offered: ClassList::parse("*"),
            classes_by_default: ClassList::parse("*"),
        }
    }
}
