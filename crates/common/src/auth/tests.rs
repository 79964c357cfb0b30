use super::handshake::{
    Initiator, MAX_RECORD_BYTES, ServerIdentity, TransportKeys, banner, check_banner, respond,
};
use super::*;
use crate::config::ConfigBuilder;
use crate::options::kinds::ConnMode;
use nacre_types::ids::OsdId;
use proptest::prelude::*;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

const NOW: u64 = 1_800_000_000;

fn admin() -> EntityName {
    EntityName::client("admin")
}

fn me() -> ServerIdentity {
    ServerIdentity { entity: EntityName::osd(OsdId(3)), nonce: 42 }
}

fn body(expires_unix: u64) -> TicketBody {
    TicketBody {
        entity: admin(),
        client: Some(ClientId(9)),
        caps: Caps::from([("osd".into(), "allow *".into())]),
        issued_unix: NOW,
        expires_unix,
        session_key: SessionKey::generate().unwrap(),
    }
}

/// Runs the handshake in memory. `tamper` can alter the two records in transit.
fn shake(
    credential: &Credential,
    verifier: &Verifier,
    offered: &[ConnMode],
    allowed: &[ConnMode],
    target: Option<EntityName>,
    tamper: impl Fn(&mut Vec<u8>, &mut Vec<u8>),
) -> Result<((TransportKeys, Peer), (TransportKeys, Peer))> {
    let banners = [&banner(), &banner()];
    let (initiator, mut hello, mut first) =
        Initiator::start(credential, offered, target.as_ref(), banners).unwrap();
    tamper(&mut hello, &mut first);
    let (theirs, peer, second) =
        respond(verifier, &me(), |_| allowed.to_vec(), banners, &hello, &first, NOW)?;
    Ok((initiator.finish(&second)?, (theirs, peer)))
}

fn keyring(key: &Key) -> Keyring {
    let mut keyring = Keyring::new();
    keyring.insert(admin(), key.clone(), Caps::from([("mon".into(), "allow *".into())]));
    keyring
}

fn key_verifier(key: &Key) -> Verifier {
    Verifier::new().with_keys(Arc::new(keyring(key)))
}

fn ticket_verifier(keys: &RotatingSecrets) -> Verifier {
    let known = RotatingKeyring::new(10);
    known.update(keys.keys().to_vec());
    Verifier::new().with_tickets(Arc::new(known))
}

const BOTH: &[ConnMode] = &[ConnMode::Crc, ConnMode::Secure];

fn no_tampering(_: &mut Vec<u8>, _: &mut Vec<u8>) {}

#[test]
fn both_sides_learn_who_the_other_is_and_share_keys() {
    let key = Key::generate().unwrap();
    let credential = Credential::Key { entity: admin(), key: key.clone() };
    let ((ours, peer), (theirs, us)) =
        shake(&credential, &key_verifier(&key), BOTH, BOTH, None, no_tampering).unwrap();
    assert_eq!((peer.entity, peer.nonce), (me().entity, 42));
    assert_eq!((us.entity, us.caps["mon"].as_str()), (admin(), "allow *"));
    assert_eq!(
        (ours.mode, theirs.mode),
        (ConnMode::Secure, ConnMode::Secure),
        "keys are for secure connections"
    );
    let mut sealed = Vec::new();
    ours.seal(0, b"hello", &mut sealed).unwrap();
    assert_eq!(theirs.open_vec(0, &sealed).unwrap(), b"hello");
    assert!(theirs.open_vec(1, &sealed).is_err(), "a record at another position");
    sealed[2] ^= 1;
    assert!(theirs.open_vec(0, &sealed).is_err(), "an altered record");
}

#[test]
fn a_wrong_key_and_an_unknown_entity_get_the_same_answer() {
    let verifier = key_verifier(&Key::generate().unwrap());
    let refuse = |entity: EntityName| {
        let credential = Credential::Key { entity, key: Key::generate().unwrap() };
        shake(&credential, &verifier, BOTH, BOTH, None, no_tampering).err().unwrap().to_string()
    };
    assert_eq!(refuse(admin()), "authentication failed: client.admin is unknown or its key does not match");
    assert_eq!(refuse(EntityName::client("bob")), refuse(admin()).replace("client.admin", "client.bob"));
    let credential = Credential::Key { entity: admin(), key: Key::generate().unwrap() };
    let refused = shake(&credential, &Verifier::new(), BOTH, BOTH, None, no_tampering).err().unwrap();
    assert!(
        matches!(&refused, Error::Denied(why) if why == "keys are not taken here: this is not a monitor"),
        "who has no keys says nothing of the client's: {refused}"
    );
}

#[test]
fn a_server_without_the_key_can_not_pose_as_one() {
    let (real, fake) = (Key::generate().unwrap(), Key::generate().unwrap());
    let banners = [&banner(), &banner()];
    let client = Credential::Key { entity: admin(), key: real };
    let (initiator, _, _) = Initiator::start(&client, BOTH, None, banners).unwrap();
    let impostor = Credential::Key { entity: admin(), key: fake.clone() };
    let (_, hello, first) = Initiator::start(&impostor, BOTH, None, banners).unwrap();
    let (_, _, second) =
        respond(&key_verifier(&fake), &me(), |_| BOTH.to_vec(), banners, &hello, &first, NOW).unwrap();
    assert!(matches!(initiator.finish(&second), Err(Error::Denied(_))));
}

#[test]
fn tickets_lead_to_their_entity_caps_and_session() {
    let keys = RotatingSecrets::generate(NOW, 3600).unwrap();
    let credential = Credential::Ticket(keys.seal(body(NOW + 60)).unwrap());
    let (_, (_, us)) = shake(&credential, &ticket_verifier(&keys), BOTH, BOTH, None, no_tampering).unwrap();
    assert_eq!((us.entity, us.client), (admin(), Some(ClientId(9))));
    assert_eq!(us.caps["osd"], "allow *");
}

#[test]
fn expired_early_forged_and_stolen_tickets_are_refused() {
    let keys = RotatingSecrets::generate(NOW, 3600).unwrap();
    let verifier = ticket_verifier(&keys);
    let attempt =
        |ticket: Ticket| shake(&Credential::Ticket(ticket), &verifier, BOTH, BOTH, None, no_tampering).err();
    assert!(attempt(keys.seal(body(NOW - 10)).unwrap()).is_none(), "within the allowed skew");
    assert!(matches!(attempt(keys.seal(body(NOW - 11)).unwrap()), Some(Error::Expired(_))));
    let early = TicketBody { issued_unix: NOW + 11, ..body(NOW + 60) };
    assert!(matches!(attempt(keys.seal(early).unwrap()), Some(Error::Expired(_))));
    let other = RotatingSecrets::generate(NOW, 3600).unwrap();
    assert!(matches!(attempt(other.seal(body(NOW + 60)).unwrap()), Some(Error::Corrupt { .. })));
    let seen = keys.seal(body(NOW + 60)).unwrap();
    let stolen = Ticket { session_key: SessionKey::generate().unwrap(), ..seen.clone() };
    assert!(matches!(attempt(stolen), Some(Error::Denied(_))), "the blob alone is worth nothing");
    for at in 0..seen.blob.len() {
        let mut blob = seen.blob.to_vec();
        blob[at] ^= 0x40;
        assert!(attempt(Ticket { blob: blob.into(), ..seen.clone() }).is_some(), "byte {at}");
    }
}

#[test]
fn refused_tickets_say_by_how_much_the_clocks_differ() {
    let keys = RotatingSecrets::generate(NOW, 3600).unwrap();
    let verifier = ticket_verifier(&keys);
    let refusal = |body: TicketBody| {
        let credential = Credential::Ticket(keys.seal(body).unwrap());
        match shake(&credential, &verifier, BOTH, BOTH, None, no_tampering).err() {
            Some(Error::Expired(why)) => why,
            other => panic!("not refused as expired: {other:?}"),
        }
    };
    let early = refusal(TicketBody { issued_unix: NOW + 7200, ..body(NOW + 10_800) });
    assert!(early.starts_with("the clocks of the monitor and of this service differ by 7200 s"), "{early}");
    assert!(early.contains("auth_clock_skew allows 10 s"), "{early}");
    let late = refusal(TicketBody { issued_unix: NOW - 10_800, ..body(NOW - 7200) });
    assert!(late.contains("was issued 10800 s ago and expired 7200 s ago"), "{late}");
    assert!(late.contains("their clocks differ by 10800 s"), "{late}");

    // A service checks its own clock by the ticket granted to it.
    let own = RotatingKeyring::new(10);
    own.update(keys.keys().to_vec());
    let granted = own.open_ignoring_time(&keys.seal(body(NOW - 7200)).unwrap().blob).unwrap();
    let difference = |now| own.excess_clock_skew(&granted, now).map(|difference| difference.to_string());
    assert_eq!((difference(NOW + 10), difference(NOW - 10)), (None, None));
    assert_eq!(difference(NOW + 7200).as_deref(), Some("7200 s ahead of"));
    assert_eq!(difference(NOW - 11).as_deref(), Some("11 s behind"));
}

#[test]
fn tickets_outlive_one_rotation_and_their_keys_are_dropped_after_them() {
    let ttl = 100;
    let mut keys = RotatingSecrets::generate(NOW, ttl).unwrap();
    let daemon = RotatingKeyring::new(0);
    daemon.update(keys.keys().to_vec());
    assert!(!keys.rotate(NOW + ttl - 1, ttl).unwrap());
    let ticket = keys.seal(body(NOW + 2 * ttl - 1)).unwrap();
    assert!(keys.rotate(NOW + ttl, ttl).unwrap());
    let newer = keys.seal(body(NOW + 2 * ttl)).unwrap();
    daemon.unseal(&newer.blob, NOW + ttl).expect("the next key was known ahead");
    daemon.update(keys.keys().to_vec());
    daemon.unseal(&ticket.blob, NOW + 2 * ttl - 1).unwrap();
    assert!(keys.rotate(NOW + 2 * ttl, ttl).unwrap());
    daemon.update(keys.keys().to_vec());
    assert!(matches!(daemon.unseal(&ticket.blob, NOW + 150), Err(Error::Expired(_))));
    assert_eq!(keys.open_expired(&newer.blob).unwrap().client, Some(ClientId(9)));
    assert!(keys.rotate(NOW + 50 * ttl, ttl).unwrap(), "after a standstill");
    assert!(!keys.rotate(NOW + 50 * ttl + 1, ttl).unwrap());
}

#[test]
fn a_mode_can_not_be_negotiated_down_in_between() {
    let keys = RotatingSecrets::generate(NOW, 3600).unwrap();
    let verifier = ticket_verifier(&keys);
    let credential = Credential::Ticket(keys.seal(body(NOW + 60)).unwrap());
    let preferring_secure = [ConnMode::Secure, ConnMode::Crc];
    let swap_modes = |hello: &mut Vec<u8>, _: &mut Vec<u8>| {
        let at = hello.len() - 3;
        assert_eq!(hello[at..at + 2], [2, 1]);
        hello[at..at + 2].copy_from_slice(&[1, 2]);
    };
    let result = shake(&credential, &verifier, &preferring_secure, BOTH, None, swap_modes);
    assert!(matches!(result, Err(Error::Denied(_))));
    let modes = |offered: &[ConnMode], allowed: &[ConnMode]| {
        shake(&credential, &verifier, offered, allowed, None, no_tampering).map(|((ours, _), _)| ours.mode)
    };
    assert_eq!(modes(&preferring_secure, BOTH).unwrap(), ConnMode::Secure);
    assert_eq!(modes(BOTH, BOTH).unwrap(), ConnMode::Crc);
    assert_eq!(modes(BOTH, &[ConnMode::Secure]).unwrap(), ConnMode::Secure);
    assert!(modes(&[ConnMode::Crc], &[ConnMode::Secure]).is_err());
}

#[test]
fn whoever_reaches_the_wrong_daemon_is_told_so() {
    let keys = RotatingSecrets::generate(NOW, 3600).unwrap();
    let credential = Credential::Ticket(keys.seal(body(NOW + 60)).unwrap());
    let wrong = Some(EntityName::osd(OsdId(4)));
    let error = shake(&credential, &ticket_verifier(&keys), BOTH, BOTH, wrong, no_tampering).err().unwrap();
    assert_eq!(error.to_string(), "authentication failed: osd.4 was wanted, but this is osd.3");
}

#[test]
fn banners_of_others_are_told_apart() {
    assert_eq!(check_banner(&banner()), Ok(1));
    assert!(check_banner(b"ceph v2\n\x10\0\0\0\0\0\0\0").unwrap_err().contains("Ceph"));
    assert!(check_banner(b"GET / HTTP/1.1\r\n").unwrap_err().contains("does not speak"));
    let mut newer = banner();
    newer[8..12].copy_from_slice(&[9, 0, 12, 0]);
    assert!(check_banner(&newer).unwrap_err().contains("versions 9 to 12"));
}

#[test]
fn keys_are_ceph_s_and_never_print() {
    let text = "AQBSdFhcAAAAABAAEm+vBQ0tEyVmXPjNhDl9zw==";
    let key = Key::from_base64(text).unwrap();
    assert_eq!(key.to_base64().as_str(), text);
    assert_eq!(format!("{key:?} {:?}", key.handshake_psk()), "Key(…) SessionKey(…)");
    assert_eq!(Key::generate().unwrap().to_base64().len(), 40);
    for bad in ["", "AQBS", "not base64!", "AgBSdFhcAAAAABAAEm+vBQ0tEyVmXPjNhDl9zw=="] {
        assert!(Key::from_base64(bad).is_err(), "{bad}");
    }
    assert_ne!(Key::generate().unwrap().handshake_psk(), key.handshake_psk());
}

#[test]
fn keyrings_read_and_write_ceph_s_format() {
    let text = "[mon.]\n\tkey = AQBSdFhcAAAAABAAEm+vBQ0tEyVmXPjNhDl9zw==\n[client.admin]\n\tkey = AQBSdFhcAAAAABAAEm+vBQ0tEyVmXPjNhDl9zw==\n\tcaps mon = \"allow *\"\n\
                \tcaps osd = \"allow rwx pool=a \\\"b\\\"\"\n";
    let keyring = Keyring::parse(Path::new("k"), text).unwrap();
    assert_eq!(keyring.get(&admin()).unwrap().caps["osd"], "allow rwx pool=a \"b\"");
    assert_eq!(keyring.to_text().as_str(), text);
    let secret = "AQBSdFhcAAAAABAAEm+vBQ0tEyVmXPjNhDl9zx==";
    for bad in [
        format!("[client.a]\nkey {secret}\n"),
        format!("[client.a]\n{secret}\n"),
        format!("[client.a]\nkey = {secret}x\n"),
        format!("[client.a]\nsecret = {secret}\n"),
        format!("[nobody]\nkey = {secret}\n"),
        "[client.a]\ncaps mon = \"allow *\"\n".to_owned(),
    ] {
        let error = Keyring::parse(Path::new("k"), &bad).unwrap_err().to_string();
        assert!(!error.contains("BSdF") && error.starts_with("k:"), "{error}");
    }
}

#[test]
fn keyring_files_are_private() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keyring");
    std::fs::write(&path, "old").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let ring = keyring(&Key::generate().unwrap());
    ring.write(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    assert_eq!(Keyring::read(&path).unwrap(), ring);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file stays");
    assert!(matches!(Keyring::read(&dir.path().join("x")), Err(Error::NotFound(_))));
}

#[test]
fn the_key_is_found_by_option_file_or_keyring() {
    let dir = tempfile::tempdir().unwrap();
    let (in_ring, in_file, in_option) =
        (Key::generate().unwrap(), Key::generate().unwrap(), Key::generate().unwrap());
    let ring = dir.path().join("ring");
    keyring(&in_ring).write(&ring).unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, format!("{}\n", in_file.to_base64().as_str())).unwrap();
    let base = || ConfigBuilder::new(admin()).set("keyring", format!("/nowhere/x,{}", ring.display()));
    let found = |builder: ConfigBuilder| match find_key(&builder.build().unwrap()).unwrap() {
        Credential::Key { key, .. } => key,
        Credential::Ticket(_) => unreachable!("keys come from keyrings"),
    };
    assert_eq!(found(base()), in_ring);
    let with_file = || base().set("keyfile", file.display().to_string());
    assert_eq!(found(with_file()), in_file);
    assert_eq!(found(with_file().set("key", in_option.to_base64().as_str())), in_option);
    let nobody = ConfigBuilder::new(EntityName::client("bob")).set("keyring", ring.display().to_string());
    let error = find_key(&nobody.build().unwrap()).unwrap_err().to_string();
    assert!(error.ends_with("has no key for client.bob"), "{error}");
    let none = ConfigBuilder::new(admin()).set("keyring", "/nowhere/x").build().unwrap();
    assert!(find_key(&none).unwrap_err().to_string().contains("tried /nowhere/x"));
}

proptest! {
    #[test]
    fn no_keyring_text_panics(text in "(\\PC|\n|[\\[\\]=\"'#;\\\\]){0,200}") {
        let _ = Keyring::parse(Path::new("x"), &text);
        let _ = Key::from_base64(&text);
    }

    #[test]
    fn no_ticket_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), own_key in any::<bool>()) {
        let keys = RotatingSecrets::generate(NOW, 60).unwrap();
        let known = RotatingKeyring::new(0);
        known.update(keys.keys().to_vec());
        let mut bytes = bytes;
        if own_key && bytes.len() >= 9 {
            bytes[0] = 1;
            bytes[1..9].copy_from_slice(&2u64.to_le_bytes());
        }
        prop_assert!(known.unseal(&bytes, NOW).is_err());
    }

    #[test]
    fn no_handshake_record_panics(
        hello in prop::collection::vec(any::<u8>(), 0..200),
        first in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let banners = [&banner(), &banner()];
        let key = Key::generate().unwrap();
        let verifier = key_verifier(&key);
        prop_assert!(respond(&verifier, &me(), |_| BOTH.to_vec(), banners, &hello, &first, NOW).is_err());
        let client = Credential::Key { entity: admin(), key };
        let (initiator, own_hello, _) = Initiator::start(&client, BOTH, None, banners).unwrap();
        prop_assert!(respond(&verifier, &me(), |_| BOTH.to_vec(), banners, &own_hello, &first, NOW).is_err());
        prop_assert!(initiator.finish(&first).is_err());
        prop_assert!(own_hello.len() < MAX_RECORD_BYTES);
    }
}
