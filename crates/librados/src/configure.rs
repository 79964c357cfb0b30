//! Cluster handles and their configuration: `rados_create*`, `rados_conf_*`, `rados_version`.

use crate::abi::{CStrPtr, Handle, InArray, OutArray, OutBuf, OutPtr};
use crate::client::{CLIENTS, Client};
use crate::guard::{ApiResult, exports};
use crate::settings::ClientSettings;
use nacre_types::errno::Errno;
use nacre_types::ids::EntityName;
use std::ffi::c_int;

/// The version of the interface (`LIBRADOS_VER_*`), not of the library.
const VERSION: (c_int, c_int, c_int) = (3, 0, 0);
/// `ENOSYS`: not possible in this state.
const ENOSYS: Errno = Errno(38);

exports! {
    /// Returns the version of the interface.
    fn rados_version(major: OutPtr<c_int>, minor: OutPtr<c_int>, extra: OutPtr<c_int>) {
        major.set(VERSION.0);
        minor.set(VERSION.1);
        extra.set(VERSION.2);
        Ok(())
    }

    /// Creates a handle for `client.ID`, or for `client.admin` without an id.
    fn rados_create(cluster: OutPtr<Handle>, id: CStrPtr) -> c_int {
        let cluster = cluster.required()?;
        let id = if id.is_null() { "admin" } else { id.text()? };
        cluster.set(Client::create(ClientSettings::new(EntityName::client(id), "")));
        Ok(0)
    }

    /// Creates a handle for the entity `name` and the cluster of that name.
    fn rados_create2(cluster: OutPtr<Handle>, clustername: CStrPtr, name: CStrPtr, _flags: u64) -> c_int {
        let cluster = cluster.required()?;
        let entity: EntityName = name.text()?.parse().map_err(|_| Errno::EINVAL)?;
        cluster.set(Client::create(ClientSettings::new(entity, clustername.text_or_empty()?)));
        Ok(0)
    }

    /// Creates a handle with the configuration of another one, as returned by `rados_cct`.
    fn rados_create_with_context(cluster: OutPtr<Handle>, context: Handle) -> c_int {
        let cluster = cluster.required()?;
        cluster.set(Client::create(CLIENTS.get(context)?.settings()));
        Ok(0)
    }

    /// The configuration of a handle, for `rados_create_with_context`.
    fn rados_cct(cluster: Handle) -> Handle {
        Ok(CLIENTS.get(cluster)?.handle)
    }

    /// Reads a configuration file, or the one that Ceph's programs find if `path` is null. ENOSYS once connected.
    fn rados_conf_read_file(cluster: Handle, path: CStrPtr) -> c_int {
        let path = if path.is_null() { None } else { Some(path.text()?) };
        let client = CLIENTS.get(cluster)?;
        if client.cluster().is_ok() {
            return Err(ENOSYS.into());
        }
        client.configure(|settings| settings.read_file(path))?;
        Ok(0)
    }

    /// Reads options from a command line, whose first word is the program's name.
    fn rados_conf_parse_argv(cluster: Handle, argc: c_int, argv: InArray<CStrPtr>) -> c_int {
        let client = CLIENTS.get(cluster)?;
        let words = words(argc, argv)?;
        client.configure(|settings| settings.parse_argv(words.get(1..).unwrap_or_default()))?;
        Ok(0)
    }

    /// Reads options from words. The remaining words are stored in `remargv`, followed by nulls up to `argc`.
    fn rados_conf_parse_argv_remainder(
        cluster: Handle,
        argc: c_int,
        argv: InArray<CStrPtr>,
        remargv: OutArray<CStrPtr>,
    ) -> c_int {
        let client = CLIENTS.get(cluster)?;
        let texts = words(argc, argv)?;
        let rest = client.configure(|settings| settings.parse_argv(&texts))?;
        // The remaining words are in their order, and the caller expects its own pointers to them.
        let mut left = rest.iter().peekable();
        let given = argv.slice(texts.len())?;
        let mut kept = Vec::with_capacity(texts.len());
        for (word, text) in given.iter().zip(&texts) {
            if left.next_if(|next| *next == text).is_some() {
                kept.push(*word);
            }
        }
        kept.resize(texts.len(), CStrPtr::NULL);
        remargv.store(texts.len(), &kept)?;
        Ok(0)
    }

    /// Reads options from an environment variable, `CEPH_ARGS` if `var` is null.
    fn rados_conf_parse_env(cluster: Handle, var: CStrPtr) -> c_int {
        let var = if var.is_null() { "CEPH_ARGS" } else { var.text()? };
        CLIENTS.get(cluster)?.configure(|settings| settings.parse_env(var))?;
        Ok(0)
    }

    /// Sets an option.
    fn rados_conf_set(cluster: Handle, option: CStrPtr, value: CStrPtr) -> c_int {
        CLIENTS.get(cluster)?.set_option(option.text()?, value.text()?)?;
        Ok(0)
    }

    /// An option's value. ENAMETOOLONG if the buffer is too small.
    fn rados_conf_get(cluster: Handle, option: CStrPtr, buf: OutBuf, len: usize) -> c_int {
        let value = CLIENTS.get(cluster)?.option(option.text()?)?;
        if value.len() >= len {
            return Err(Errno::ENAMETOOLONG.into());
        }
        buf.fill_text(len, value.as_bytes())?;
        Ok(0)
    }
}

fn words(argc: c_int, argv: InArray<CStrPtr>) -> ApiResult<Vec<String>> {
    let words = argv.slice(usize::try_from(argc).map_err(|_| Errno::EINVAL)?)?;
    words.iter().map(|word| word.text().map(str::to_owned)).collect()
}
