//! Fuzz targets with damaged inputs for data that arrives before and around messages: see `nacre_fuzz`.

use crate::auth::handshake::{self, AuthRefusal, Initiator, ServerIdentity, banner, check_banner, respond};
use crate::auth::{
    AuthTicketReply, AuthTicketRequest, Caps, Credential, Key, Keyring, RotatingKeyring, RotatingKeys,
    RotatingSecrets, SessionKey, TicketBody, TicketGrant, Verifier,
};
use crate::config::ConfFile;
use crate::options::kinds::ConnMode;
use nacre_fuzz::{CountingAllocator, Target};
use nacre_types::ids::{ClientId, EntityName, OsdId};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::Path;
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const NOW: u64 = 1_800_000_000;
/// A fixed key, so that every run tries the same inputs.
const KEY: &str = "AQAAAAAAAAAAABAAAgMEBQYHCAkKCwwNDg8QEQ==";

pub(crate) fn corpus() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"))
}

fn record<T: Serialize + DeserializeOwned>(name: &str, seeds: &[T]) {
    let seeds = seeds.iter().map(handshake::encode).collect();
    Target::new(name, corpus(), seeds)
        .run(|input| Some(handshake::encode(&handshake::decode::<T>("record", input).ok()?)));
}

fn body() -> TicketBody {
    TicketBody {
        entity: EntityName::client("admin"),
        client: Some(ClientId(9)),
        caps: Caps::from([("osd".into(), "allow *".into())]),
        issued_unix: NOW,
        expires_unix: NOW + 3600,
        session_key: SessionKey::generate().unwrap(),
    }
}

#[test]
fn fuzz_records_of_handshakes() {
    record("refusal", &[AuthRefusal { expired: true, text: "the ticket has expired".into() }]);
    record("ticket-body", &[body()]);
    record(
        "claim",
        &[
            handshake::ClaimedIdentity::Key(EntityName::client("a")),
            handshake::ClaimedIdentity::Ticket(vec![1, 2].into()),
        ],
    );
    Target::new("banner", corpus(), vec![banner().to_vec()]).run(|input| {
        let bytes = input.first_chunk()?;
        check_banner(bytes).ok()?;
        Some(bytes.to_vec())
    });
}

/// The two records that an unauthenticated peer sends: the length of the first one, then both.
#[test]
fn fuzz_first_records_of_strangers() {
    let entity = EntityName::client("admin");
    let key = Key::generate().unwrap();
    let mut keyring = Keyring::new();
    keyring.insert(entity.clone(), key.clone(), Caps::new());
    let keys = RotatingSecrets::generate(NOW, 3600).unwrap();
    let known = RotatingKeyring::new(10);
    known.update(keys.keys().to_vec());
    let verifier = Verifier::new().with_keys(Arc::new(keyring)).with_tickets(Arc::new(known));
    let me = ServerIdentity { entity: EntityName::osd(OsdId(3)), nonce: 42 };
    let banners = [&banner(), &banner()];
    let modes = [ConnMode::Crc, ConnMode::Secure];
    let seeds =
        [Credential::Key { entity, key }, Credential::Ticket(keys.seal(body()).unwrap())].map(|credential| {
            let (_, hello, first) = Initiator::start(&credential, &modes, None, banners).unwrap();
            [&(hello.len() as u16).to_le_bytes()[..], &hello, &first].concat()
        });
    // No corpus: records are not accepted with other keys.
    Target::new("first-records", Path::new("none"), seeds.to_vec()).run(|input| {
        let (length, rest) = input.split_first_chunk::<2>()?;
        let (hello, first) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
        handshake::claimed_name(hello);
        respond(&verifier, &me, |_| modes.to_vec(), banners, hello, first, NOW).ok()?;
        Some(input.to_vec())
    });
}

#[test]
fn fuzz_tickets() {
    let keys = RotatingSecrets::generate(NOW, 3600).unwrap();
    let known = RotatingKeyring::new(10);
    known.update(keys.keys().to_vec());
    let sealed = keys.seal(body()).unwrap().blob;
    Target::new("ticket", Path::new("none"), vec![sealed.to_vec()]).run(|input| {
        known.unseal(input, NOW).ok()?;
        assert_eq!(input, &sealed[..], "a ticket that nobody sealed");
        Some(input.to_vec())
    });
    let secret = || SessionKey::generate().unwrap();
    record("AuthTicketRequest", &[AuthTicketRequest { tid: 1, renew: Some(sealed.clone()) }]);
    let ticket = Some(TicketGrant { blob: sealed, session_key: secret(), expires_unix: NOW });
    let client = ClientId(4);
    let keys = keys.keys().to_vec();
    record(
        "AuthTicketReply",
        &[AuthTicketReply { tid: 1, code: 0, status: "ok".into(), client, ticket, keys: keys.clone() }],
    );
    record("RotatingKeys", &[RotatingKeys { keys }]);
}

#[test]
fn fuzz_keyrings_and_configuration_files() {
    let keyring = format!(
        "[client.admin]\n\tkey = {KEY}\n\tcaps mon = \"allow *\"\n\tcaps osd = \"allow r\"\n[osd.0]\nkey = {KEY}\n"
    );
    let conf = "[global]\nfsid = 1\nmon host = a, b ; c\n# no\n[osd.1]\n\tosd data = /x \\\n  y\n";
    let words = [
        "[", "]", "=", "\n", "\\\n", "\"", "'", "#", ";", "key", "caps", " mon ", "client.", "[global]", "é",
        "\0", "AQ==", "auid = 1",
    ];
    let path = Path::new("fuzzed");
    let target =
        Target { dictionary: &words, ..Target::new("keyring", corpus(), vec![keyring.into_bytes()]) };
    target.run(|input| {
        let keyring = Keyring::parse(path, std::str::from_utf8(input).ok()?).ok()?;
        Some(keyring.to_text().as_bytes().to_vec())
    });
    let target =
        Target { dictionary: &words, ..Target::new("conf", corpus(), vec![conf.as_bytes().to_vec()]) };
    target.run(|input| {
        ConfFile::parse(path, std::str::from_utf8(input).ok()?).ok()?;
        Some(input.to_vec())
    });
    let target = Target {
        dictionary: &["=", "AQ", "/"],
        ..Target::new("key", corpus(), vec![KEY.as_bytes().to_vec()])
    };
    target.run(|input| {
        let key = Key::from_base64(std::str::from_utf8(input).ok()?).ok()?;
        Some(key.to_base64().as_bytes().to_vec())
    });
}
