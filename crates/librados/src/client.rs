//! The object behind a `rados_t`: a configuration, and a session with the cluster once connected.

use crate::abi::Handle;
use crate::finisher::Finisher;
use crate::guard::ApiResult;
use crate::handles::HandleTable;
use crate::log_subscription::MonitorLog;
use crate::service_registration::{ServiceMetadata, ServiceRegistration};
use crate::settings::{ClientSettings, option_text};
use nacre_client::Cluster;
use nacre_common::{Config, options};
use nacre_types::errno::Errno;
use nacre_types::osdmap::OsdMap;
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;

/// All cluster handles in use.
pub(crate) static CLIENTS: HandleTable<Client> = HandleTable::new();

/// `EISCONN`: already connected.
const EISCONN: Errno = Errno(106);

/// A cluster handle.
pub(crate) struct Client {
    pub(crate) handle: Handle,
    pub(crate) finisher: Finisher,
    settings: Mutex<ClientSettings>,
    link: RwLock<Link>,
    log_watch: Mutex<Option<MonitorLog>>,
    service: Mutex<Option<ServiceRegistration>>,
}

enum Link {
    Configuring,
    Connecting,
    Connected { cluster: Cluster, config: Config },
    ShutDown,
}

impl Client {
    /// Creates a handle that is not connected, in the table.
    pub(crate) fn create(settings: ClientSettings) -> Handle {
        CLIENTS.insert_with(|handle| Client {
            handle,
            finisher: Finisher::default(),
            settings: Mutex::new(settings),
            link: RwLock::new(Link::Configuring),
            log_watch: Mutex::new(None),
            service: Mutex::new(None),
        })
    }

    /// The session. ENOTCONN if there is none.
    pub(crate) fn cluster(&self) -> ApiResult<Cluster> {
        match &*self.link.read() {
            Link::Connected { cluster, .. } => Ok(cluster.clone()),
            _ => Err(Errno::ENOTCONN.into()),
        }
    }

    /// The current cluster map of the session.
    pub(crate) fn osdmap(&self) -> ApiResult<Arc<OsdMap>> {
        Ok(self.cluster()?.osdmap().ok_or(Errno::ENOTCONN)?)
    }

    /// The newest cluster map, requested from the cluster.
    pub(crate) fn newest_osdmap(&self) -> ApiResult<Arc<OsdMap>> {
        self.cluster()?.refresh_map().wait()?;
        self.osdmap()
    }

    /// A copy of the settings.
    pub(crate) fn settings(&self) -> ClientSettings {
        self.settings.lock().clone()
    }

    /// Changes the settings from which the session will be created.
    pub(crate) fn configure<R>(
        &self,
        change: impl FnOnce(&mut ClientSettings) -> ApiResult<R>,
    ) -> ApiResult<R> {
        change(&mut self.settings.lock())
    }

    /// Sets an option. Once connected, only options that can change at run time have an effect.
    pub(crate) fn set_option(&self, name: &str, value: &str) -> ApiResult<()> {
        self.configure(|settings| settings.set(name, value))?;
        if let Link::Connected { config, .. } = &*self.link.read()
            && let Some(spec) = options::find(name)
        {
            config.set(spec.name, value)?;
        }
        Ok(())
    }

    /// An option's value.
    pub(crate) fn option(&self, name: &str) -> ApiResult<String> {
        if let Link::Connected { config, .. } = &*self.link.read() {
            return match self.settings.lock().ignored_option(name) {
                Some(value) => Ok(value),
                None => option_text(config, name),
            };
        }
        self.settings.lock().get(name)
    }

    /// Starts the session. EISCONN if there is one, EINPROGRESS if another thread is starting it.
    pub(crate) fn connect(&self) -> ApiResult<()> {
        {
            let mut link = self.link.write();
            match &*link {
                Link::Configuring => *link = Link::Connecting,
                Link::Connecting => return Err(Errno::EINPROGRESS.into()),
                Link::Connected { .. } => return Err(EISCONN.into()),
                Link::ShutDown => return Err(Errno::ENOTCONN.into()),
            }
        }
        let connected = self.begin();
        let mut link = self.link.write();
        if matches!(&*link, Link::ShutDown) {
            if let Ok((cluster, _)) = connected {
                cluster.shut_down();
            }
            return Err(Errno::ESHUTDOWN.into());
        }
        match connected {
            Ok((cluster, config)) => {
                if let Some(service) = &mut *self.service.lock()
                    && let Err(failure) = service.start(cluster.clone())
                {
                    *link = Link::Configuring;
                    cluster.shut_down();
                    return Err(failure);
                }
                *link = Link::Connected { cluster, config };
                Ok(())
            }
            Err(failure) => {
                *link = Link::Configuring;
                Err(failure)
            }
        }
    }

    fn begin(&self) -> ApiResult<(Cluster, Config)> {
        let config = self.settings().config()?;
        crate::log::start(&config);
        let cluster = nacre_client::connect(&config).wait().inspect_err(|error| {
            tracing::error!(%error, "can't connect to the cluster");
        })?;
        Ok((cluster, config))
    }

    /// Replaces the subscription to the cluster log.
    pub(crate) fn set_monitor_log(&self, watch: Option<MonitorLog>) {
        let before = std::mem::replace(&mut *self.log_watch.lock(), watch);
        if before.is_some() {
            drop(before);
            // A callback of it that is running returns before this does, unless it is the caller.
            self.finisher.flush_unless_on_finisher();
        }
    }

    /// Registers a daemon of a service, now or when connected. EEXIST if one is registered.
    pub(crate) fn register(&self, mut registration: ServiceRegistration) -> ApiResult<()> {
        // Held until the registration is stored: a session that is being started starts the registration that it finds there.
        let link = self.link.read();
        let mut service = self.service.lock();
        if service.is_some() {
            return Err(Errno::EEXIST.into());
        }
        if let Link::Connected { cluster, .. } = &*link {
            registration.start(cluster.clone())?;
        }
        *service = Some(registration);
        Ok(())
    }

    /// Sets the current status of the registered daemon, if any. ENOTCONN without a session.
    pub(crate) fn set_service_status(&self, status: ServiceMetadata) -> ApiResult<()> {
        self.cluster()?;
        if let Some(service) = &*self.service.lock() {
            service.set_status(status);
        }
        Ok(())
    }

    /// Ends the session: operations in flight fail, callbacks run, then all its resources are freed.
    pub(crate) fn shut_down(&self) {
        let before = std::mem::replace(&mut *self.link.write(), Link::ShutDown);
        if let Link::Connected { cluster, .. } = before {
            cluster.shut_down();
        }
        self.set_monitor_log(None);
        let service = self.service.lock().take();
        // Waits for its thread, without the lock.
        drop(service);
        self.finisher.stop();
    }
}
