//! A librdkafka producer, used through its C interface: the producers of the crate rdkafka can't set the callback that
//! checks the address of each connection.
#![allow(unsafe_code)]

use crate::{Context, unavailable};
use futures::channel::oneshot;
use nacre_notify::push::PushFailure;
use parking_lot::Mutex;
use rdkafka::bindings as c;
use rdkafka::client::{Client, ClientContext};
use rdkafka::config::ClientConfig;
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::types::RDKafkaType;
use rustix::net::connect;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The time that the report thread blocks in one poll.
const POLL_MS: c_int = 1000;
/// The time that it blocks in one poll for reports of events that are withdrawn at the end.
const DRAIN_MS: c_int = 100;
const DRAIN_ROUNDS: usize = 20;

/// The outcome of an event.
pub(super) type DeliveryReport = Result<(), RDKafkaErrorCode>;

/// A producer and the thread that receives its reports. Events that still wait when it ends are withdrawn.
pub(super) struct Producer {
    native: Arc<Native>,
}

/// The state of the callbacks.
struct Callbacks {
    context: Arc<Context>,
    /// The last error with a broker.
    last_error: Mutex<Option<String>>,
    /// The reason why the last connection was not allowed. librdkafka itself would only report that permission was denied.
    refusal: Mutex<Option<String>>,
}

impl ClientContext for Callbacks {}

struct Native {
    client: Client<Callbacks>,
    ends: AtomicBool,
}

/// An error in a step of a transaction.
#[derive(Debug)]
pub(super) struct TransactionError {
    pub(super) code: RDKafkaErrorCode,
    pub(super) reason: String,
    /// Whether the same step may succeed later.
    pub(super) is_retriable: bool,
    /// Whether the transaction must be aborted.
    pub(super) requires_abort: bool,
}

impl Producer {
    /// Starts a producer without connecting. Blocks while it reads certificates and starts threads.
    pub(super) fn start(config: &ClientConfig, context: &Arc<Context>) -> Result<Producer, PushFailure> {
        let failed = |error: rdkafka::error::KafkaError| unavailable(format!("Kafka's client: {error}"));
        let native_config = config.create_native_config().map_err(failed)?;
        // SAFETY: the configuration lives until `Client::new` takes it. That sets its opaque pointer to the `Callbacks`,
        // which the client keeps for as long as any callback may run.
        unsafe {
            c::rd_kafka_conf_set_dr_msg_cb(native_config.ptr(), Some(on_report));
            c::rd_kafka_conf_set_error_cb(native_config.ptr(), Some(on_error));
            c::rd_kafka_conf_set_log_cb(native_config.ptr(), Some(on_log));
            c::rd_kafka_conf_set_connect_cb(native_config.ptr(), Some(on_connect));
        }
        let callbacks =
            Callbacks { context: context.clone(), last_error: Mutex::new(None), refusal: Mutex::new(None) };
        let client =
            Client::new(config, native_config, RDKafkaType::RD_KAFKA_PRODUCER, callbacks).map_err(failed)?;
        let native = Arc::new(Native { client, ends: AtomicBool::new(false) });
        let polled = native.clone();
        std::thread::Builder::new()
            .name("kafka-reports".to_owned())
            .spawn(move || polled.poll_to_the_end())
            .map_err(|error| unavailable(format!("Kafka's client: {error}")))?;
        Ok(Producer { native })
    }

    /// Queues an event. Its report arrives within the message timeout. Never blocks.
    pub(super) fn send(
        &self,
        topic: &CString,
        key: &[u8],
        payload: &[u8],
    ) -> Result<oneshot::Receiver<DeliveryReport>, RDKafkaErrorCode> {
        let (sender, receiver) = oneshot::channel::<DeliveryReport>();
        let opaque = Box::into_raw(Box::new(sender));
        // SAFETY: topic, key and payload are copied before the call returns. `opaque` comes back in exactly one report, or
        // is taken back here.
        let error: RDKafkaErrorCode = unsafe {
            use c::rd_kafka_vtype_t as tag;
            c::rd_kafka_producev(
                self.native.ptr(),
                tag::RD_KAFKA_VTYPE_TOPIC,
                topic.as_ptr(),
                tag::RD_KAFKA_VTYPE_MSGFLAGS,
                c::RD_KAFKA_MSG_F_COPY,
                tag::RD_KAFKA_VTYPE_VALUE,
                payload.as_ptr().cast::<c_void>(),
                payload.len(),
                tag::RD_KAFKA_VTYPE_KEY,
                key.as_ptr().cast::<c_void>(),
                key.len(),
                tag::RD_KAFKA_VTYPE_OPAQUE,
                opaque.cast::<c_void>(),
                tag::RD_KAFKA_VTYPE_END,
            )
        }
        .into();
        if error == RDKafkaErrorCode::NoError {
            return Ok(receiver);
        }
        // SAFETY: librdkafka did not take the event, so nothing else has the pointer.
        drop(unsafe { Box::from_raw(opaque) });
        Err(error)
    }

    /// The fatal error of this producer, if there is one: it will send no more events.
    pub(super) fn fatal_error(&self) -> Option<RDKafkaErrorCode> {
        // SAFETY: a null buffer of length 0 asks for the code only.
        let code: RDKafkaErrorCode =
            unsafe { c::rd_kafka_fatal_error(self.native.ptr(), ptr::null_mut(), 0) }.into();
        (code != RDKafkaErrorCode::NoError).then_some(code)
    }

    /// The last error with a broker, if there was one.
    pub(super) fn last_error(&self) -> Option<String> {
        let callbacks = self.native.client.context();
        let refusal = callbacks.refusal.lock().clone();
        refusal.or_else(|| callbacks.last_error.lock().clone())
    }

    /// Fences all other producers with the same `transactional.id`. Blocks.
    pub(super) fn init_transactions(&self, timeout: Duration) -> Result<(), TransactionError> {
        // SAFETY: the client lives.
        result_of(unsafe { c::rd_kafka_init_transactions(self.native.ptr(), millis(timeout)) })
    }

    /// Starts a transaction.
    pub(super) fn begin(&self) -> Result<(), TransactionError> {
        // SAFETY: the client lives.
        result_of(unsafe { c::rd_kafka_begin_transaction(self.native.ptr()) })
    }

    /// Commits the transaction. Blocks. After a retriable error it must be called again, because the outcome is unknown.
    pub(super) fn commit(&self, timeout: Duration) -> Result<(), TransactionError> {
        // SAFETY: the client lives; reports are received by their own thread.
        result_of(unsafe { c::rd_kafka_commit_transaction(self.native.ptr(), millis(timeout)) })
    }

    /// Aborts the transaction and withdraws its events. Blocks.
    pub(super) fn abort(&self, timeout: Duration) -> Result<(), TransactionError> {
        // SAFETY: the client lives; reports are received by their own thread.
        result_of(unsafe { c::rd_kafka_abort_transaction(self.native.ptr(), millis(timeout)) })
    }
}

/// Tells the thread to end. The thread then destroys the client, which blocks.
impl Drop for Producer {
    fn drop(&mut self) {
        self.native.ends.store(true, Ordering::Release);
        // SAFETY: the client lives; the queue is returned before it ends.
        unsafe {
            let queue = c::rd_kafka_queue_get_main(self.native.ptr());
            c::rd_kafka_queue_yield(queue);
            c::rd_kafka_queue_destroy(queue);
        }
    }
}

impl Native {
    fn ptr(&self) -> *mut c::rd_kafka_t {
        self.client.native_ptr()
    }

    fn poll(&self, timeout_ms: c_int) {
        // SAFETY: the client lives.
        unsafe { c::rd_kafka_poll(self.ptr(), timeout_ms) };
    }

    /// Receives reports until the producer ends; then withdraws the events that still wait.
    fn poll_to_the_end(self: Arc<Native>) {
        while !self.ends.load(Ordering::Acquire) {
            self.poll(POLL_MS);
        }
        // Other users of the client are about to drop it, so it is destroyed on this thread.
        while Arc::strong_count(&self) > 1 {
            self.poll(DRAIN_MS);
        }
        // SAFETY: the client lives.
        unsafe { c::rd_kafka_purge(self.ptr(), c::RD_KAFKA_PURGE_F_QUEUE | c::RD_KAFKA_PURGE_F_INFLIGHT) };
        for _ in 0..DRAIN_ROUNDS {
            // SAFETY: the client lives.
            if unsafe { c::rd_kafka_outq_len(self.ptr()) } == 0 {
                break;
            }
            self.poll(DRAIN_MS);
        }
    }
}

fn millis(timeout: Duration) -> c_int {
    c_int::try_from(timeout.as_millis()).unwrap_or(c_int::MAX)
}

fn result_of(error: *mut c::rd_kafka_error_t) -> Result<(), TransactionError> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: the error is one that librdkafka just returned; its text lives until it is destroyed, which happens once.
    unsafe {
        let found = TransactionError {
            code: c::rd_kafka_error_code(error).into(),
            reason: CStr::from_ptr(c::rd_kafka_error_string(error)).to_string_lossy().into_owned(),
            is_retriable: c::rd_kafka_error_is_retriable(error) != 0,
            requires_abort: c::rd_kafka_error_txn_requires_abort(error) != 0,
        };
        c::rd_kafka_error_destroy(error);
        Err(found)
    }
}

/// Receives the report of an event.
unsafe extern "C" fn on_report(_: *mut c::rd_kafka_t, message: *const c::rd_kafka_message_t, _: *mut c_void) {
    // SAFETY: `message` is valid during the call. Its private pointer is the sender that `send` gave with it, and no other
    // report has it.
    let (code, sender) = unsafe {
        ((*message).err, Box::from_raw((*message)._private.cast::<oneshot::Sender<DeliveryReport>>()))
    };
    let code = RDKafkaErrorCode::from(code);
    // Fails if nothing waits for the report any more.
    _ = sender.send(if code == RDKafkaErrorCode::NoError { Ok(()) } else { Err(code) });
}

unsafe extern "C" fn on_error(_: *mut c::rd_kafka_t, _: c_int, reason: *const c_char, opaque: *mut c_void) {
    // SAFETY: the opaque pointer of a client is its `Callbacks` (see `Producer::start`), and `reason` is a text.
    let (callbacks, reason) = unsafe { (&*opaque.cast::<Callbacks>(), CStr::from_ptr(reason)) };
    *callbacks.last_error.lock() = Some(reason.to_string_lossy().into_owned());
}

unsafe extern "C" fn on_log(
    _: *const c::rd_kafka_t,
    level: c_int,
    facility: *const c_char,
    text: *const c_char,
) {
    // SAFETY: both are texts during the call.
    let (facility, text) = unsafe { (CStr::from_ptr(facility), CStr::from_ptr(text)) };
    // Important problems also make events fail, and are reported with them.
    tracing::debug!(level, facility = %facility.to_string_lossy(), "librdkafka: {}", text.to_string_lossy());
}

/// Connects a socket to a broker if the policy allows its address. Returns 0 or an errno.
unsafe extern "C" fn on_connect(
    socket: c_int,
    address: *const libc::sockaddr,
    length: c_int,
    _: *const c_char,
    opaque: *mut c_void,
) -> c_int {
    // SAFETY: the opaque pointer of a client is its `Callbacks` (see `Producer::start`), and `address` has `length` bytes.
    let (callbacks, address) = unsafe { (&*opaque.cast::<Callbacks>(), address_of(address, length)) };
    let Some(address) = address else { return libc::EAFNOSUPPORT };
    if let Err(error) = callbacks.context.policy().check_address(address.ip()) {
        *callbacks.refusal.lock() = Some(error.to_string());
        return libc::EACCES;
    }
    *callbacks.refusal.lock() = None;
    // SAFETY: librdkafka keeps the socket open during the call.
    let socket = unsafe { BorrowedFd::borrow_raw(socket) };
    match connect(socket, &address) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => 0,
        Err(errno) => errno.raw_os_error(),
    }
}

/// Decodes an IPv4 or IPv6 address.
///
/// # Safety
/// `address` points to `length` bytes that are initialised.
unsafe fn address_of(address: *const libc::sockaddr, length: c_int) -> Option<SocketAddr> {
    let length = usize::try_from(length).ok()?;
    let has = |size: usize| length >= size;
    if address.is_null() || !has(size_of::<libc::sa_family_t>()) {
        return None;
    }
    // SAFETY: each structure is read only if the address is of its family and has its size; it may not be aligned.
    unsafe {
        match c_int::from((&raw const (*address).sa_family).read_unaligned()) {
            libc::AF_INET if has(size_of::<libc::sockaddr_in>()) => {
                let v4 = address.cast::<libc::sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
                Some(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(v4.sin_port))))
            }
            libc::AF_INET6 if has(size_of::<libc::sockaddr_in6>()) => {
                let v6 = address.cast::<libc::sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let port = u16::from_be(v6.sin6_port);
                Some(SocketAddr::V6(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id)))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_the_kernel_has_them() {
        let mut v4: libc::sockaddr_in = unsafe { std::mem::zeroed() };
        v4.sin_family = libc::AF_INET as libc::sa_family_t;
        v4.sin_port = 9092_u16.to_be();
        v4.sin_addr.s_addr = u32::from(Ipv4Addr::new(192, 0, 2, 1)).to_be();
        let read = |length: usize| unsafe { address_of((&raw const v4).cast(), length as c_int) };
        assert_eq!(read(size_of_val(&v4)), Some("192.0.2.1:9092".parse().unwrap()));
        assert_eq!(read(4), None);

        let mut v6: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
        v6.sin6_family = libc::AF_INET6 as libc::sa_family_t;
        v6.sin6_port = 9093_u16.to_be();
        v6.sin6_addr.s6_addr = "2001:db8::1".parse::<Ipv6Addr>().unwrap().octets();
        let read = |length: usize| unsafe { address_of((&raw const v6).cast(), length as c_int) };
        assert_eq!(read(size_of_val(&v6)), Some("[2001:db8::1]:9093".parse().unwrap()));
        assert_eq!(unsafe { address_of(ptr::null(), 128) }, None);
    }
}
