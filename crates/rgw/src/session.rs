//! Temporary credentials: an access key, its secret and a token, which expire (`AssumeRole`, `GetSessionToken`).
//!
//! Temporary credentials are not stored. The token is a sealed [`Session`] (XChaCha20-Poly1305); the secret is derived from
//! the access key (HMAC-SHA256). The keys for both are derived from one random key in `default.rgw.meta` that all gateways
//! share. A signature with a temporary access key proves nothing by itself: every request must contain a token of that
//! access key.

use crate::error::{Error, Result};
use crate::policy::Policy;
use crate::record;
use crate::role::{Role, Roles};
use crate::time::now_ns;
use crate::user::{TEMPORARY_KEY_CHARS, TEMPORARY_KEY_PREFIX, User, Users, is_temporary};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use hmac::{Hmac, Mac};
use nacre_client::IoCtx;
use nacre_types::encoding::{self, Versioned};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use std::sync::Arc;
use tokio::sync::OnceCell;

const NONCE_BYTES: usize = 24;
/// The maximum length of a token, in characters. A session policy has at most 2 048.
const MAX_TOKEN_CHARS: usize = 8192;
/// The RADOS object of the sealing key.
const KEY: &str = "key";

/// The content of a token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// The access key that the token belongs to.
    pub access_key: String,
    /// The user that requested the credentials.
    pub user: String,
    /// When that user was created, in nanoseconds since 1970: a later user of that id is a different one.
    pub user_created_ns: u64,
    /// The role that was assumed: name, id, and the name of the session.
    pub role: Option<(String, String, String)>,
    /// A policy that limits the session. JSON; empty if nothing but the rights of the user or role limits it.
    pub policy: String,
    /// When the credentials expire, in nanoseconds since 1970.
    pub expires_ns: u64,
}

impl Versioned for Session {
    const NAME: &'static str = "session token";
    const VERSION: u8 = 2;
    /// A reader of version 1 would accept the token for a later user of the same id. Tokens of version 1 are refused for the
    /// same reason; their owners request new ones.
    const COMPAT: u8 = 2;
}

/// The key from which the keys for tokens and secrets are derived.
#[derive(Clone, Serialize, Deserialize)]
struct SealingKey {
    key: [u8; 32],
}

impl Versioned for SealingKey {
    const NAME: &'static str = "key of session tokens";
}

/// Temporary credentials, as they are issued.
pub struct Credentials {
    /// The access key.
    pub access_key: String,
    /// The secret that requests are signed with.
    pub secret_key: String,
    /// The token that requests must contain.
    pub token: String,
    /// When the credentials expire, in nanoseconds since 1970.
    pub expires_ns: u64,
}

/// The sender of a request, and what limits it.
#[derive(Clone, Debug)]
pub struct CallerIdentity {
    /// The user that sent the request, or that assumed the role.
    pub user: Arc<User>,
    /// The assumed role and the session's name.
    pub role: Option<(Arc<Role>, String)>,
    /// The policy that limits the session.
    pub policy: Option<Arc<Policy>>,
}

/// Seals tokens and derives secrets.
pub(crate) struct TokenSealer {
    cipher: XChaCha20Poly1305,
    secrets: [u8; 32],
}

fn mac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac =
        <Hmac<Sha256> as Mac>::new_from_slice(key).expect("invariant: HMAC takes keys of any length");
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

impl TokenSealer {
    fn new(key: &[u8; 32]) -> TokenSealer {
        let cipher = XChaCha20Poly1305::new((&mac(key, &[b"session tokens"])).into());
        TokenSealer { cipher, secrets: mac(key, &[b"secrets of access keys"]) }
    }

    /// Returns the secret of a temporary access key.
    fn secret(&self, access_key: &str) -> String {
        STANDARD_NO_PAD.encode(&mac(&self.secrets, &[access_key.as_bytes()])[..30])
    }

    fn seal(&self, session: &Session) -> Result<String> {
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce).map_err(Error::no_random_numbers)?;
        let body = encoding::encode(session);
        let payload = Payload { msg: &body, aad: session.access_key.as_bytes() };
        let sealed = self.cipher.encrypt(XNonce::from_slice(&nonce), payload);
        let sealed = sealed.map_err(|error| Error::Internal {
            what: "a session token can't be sealed",
            detail: error.to_string(),
        })?;
        Ok(STANDARD.encode([&nonce[..], &sealed].concat()))
    }

    /// Opens a token that was sent with an access key. Fails if it is not a token of that key, or has expired.
    fn open(&self, access_key: &str, token: &str, now_ns: u64) -> Result<Session> {
        let sealed = (token.len() <= MAX_TOKEN_CHARS).then(|| STANDARD.decode(token).ok()).flatten();
        let sealed = sealed.filter(|sealed| sealed.len() > NONCE_BYTES).ok_or(Error::InvalidToken)?;
        let (nonce, body) = sealed.split_at(NONCE_BYTES);
        let payload = Payload { msg: body, aad: access_key.as_bytes() };
        let opened = self.cipher.decrypt(XNonce::from_slice(nonce), payload);
        let session: Session = opened
            .ok()
            .and_then(|body| encoding::decode(&body).ok())
            .filter(|session: &Session| session.access_key == access_key)
            .ok_or(Error::InvalidToken)?;
        if session.expires_ns <= now_ns { Err(Error::ExpiredToken) } else { Ok(session) }
    }
}

/// Identifies the senders of requests, and issues temporary credentials.
pub struct Authenticator {
    pool: IoCtx,
    users: Arc<Users>,
    roles: Arc<Roles>,
    /// Seals session tokens; created when it is first needed.
    sealer: OnceCell<TokenSealer>,
}

impl Authenticator {
    /// `pool` contains the sealing key.
    pub(crate) fn new(pool: &IoCtx, users: &Arc<Users>, roles: &Arc<Roles>) -> Authenticator {
        let (users, roles) = (Arc::clone(users), Arc::clone(roles));
        Authenticator { pool: pool.clone(), users, roles, sealer: OnceCell::new() }
    }

    async fn sealer(&self) -> Result<&TokenSealer> {
        self.sealer
            .get_or_try_init(|| async {
                let pool = &self.pool;
                if let Some((found, _)) = record::read::<SealingKey>(pool, KEY).await? {
                    return Ok(TokenSealer::new(&found.key));
                }
                let mut made = SealingKey { key: [0; 32] };
                getrandom::fill(&mut made.key).map_err(Error::no_random_numbers)?;
                if record::create(pool, KEY, &made).await? {
                    return Ok(TokenSealer::new(&made.key));
                }
                // Another gateway has created the key.
                let found = record::read::<SealingKey>(pool, KEY).await?;
                let (found, _) = found.ok_or_else(|| Error::Internal {
                    what: "the key of session tokens",
                    detail: format!("{KEY} was removed"),
                })?;
                Ok(TokenSealer::new(&found.key))
            })
            .await
    }

    /// Returns the secret for signatures with an access key: a user's, or that of temporary credentials.
    pub async fn secret_key(&self, access_key: &str) -> Result<String> {
        if is_temporary(access_key) {
            return Ok(self.sealer().await?.secret(access_key));
        }
        let user = self.users.cached_by_key(access_key).await?;
        let key = user.keys.iter().find(|key| key.access_key == access_key);
        key.map(|key| key.secret_key.clone()).ok_or_else(|| Error::NoSuchUser(access_key.to_owned()))
    }

    /// Issues temporary credentials. The caller fills in the session, except for the access key.
    pub async fn issue(&self, mut session: Session) -> Result<Credentials> {
        const LETTERS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
        let mut random = [0; TEMPORARY_KEY_CHARS - TEMPORARY_KEY_PREFIX.len()];
        getrandom::fill(&mut random).map_err(Error::no_random_numbers)?;
        let letters = random.iter().map(|byte| char::from(LETTERS[usize::from(byte % 32)]));
        session.access_key = TEMPORARY_KEY_PREFIX.chars().chain(letters).collect();
        let sealer = self.sealer().await?;
        Ok(Credentials {
            secret_key: sealer.secret(&session.access_key),
            token: sealer.seal(&session)?,
            expires_ns: session.expires_ns,
            access_key: session.access_key,
        })
    }

    /// Identifies the sender of a request by its access key and the token that was sent with it. Temporary credentials are
    /// valid only with their token; a user's own access key requires that there is none. Fails if the user is suspended or
    /// removed, or the role is removed.
    pub async fn authenticate(&self, access_key: &str, token: Option<&str>) -> Result<CallerIdentity> {
        let assumed = if is_temporary(access_key) {
            let token = token.ok_or(Error::InvalidToken)?;
            let session = self.sealer().await?.open(access_key, token, now_ns())?;
            let user = match self.users.cached(&session.user).await {
                Err(Error::NoSuchUser(_)) => return Err(Error::InvalidToken),
                Ok(user) if user.created_ns != session.user_created_ns => return Err(Error::InvalidToken),
                user => user?,
            };
            let role = match session.role {
                None => None,
                Some((name, id, session)) => match self.roles.cached(&name).await {
                    Ok(role) if role.id == id => Some((role, session)),
                    Ok(_) | Err(Error::NoSuchRole(_)) => return Err(Error::InvalidToken),
                    Err(error) => return Err(error),
                },
            };
            let read =
                |text: &str| Policy::read_identity(text).map(Arc::new).map_err(|_| Error::InvalidToken);
            let policy = (!session.policy.is_empty()).then(|| read(&session.policy)).transpose()?;
            CallerIdentity { user, role, policy }
        } else {
            // A token that is not needed proves nothing.
            if token.is_some() {
                return Err(Error::InvalidToken);
            }
            CallerIdentity { user: self.users.cached_by_key(access_key).await?, role: None, policy: None }
        };
        if assumed.user.suspended { Err(Error::Denied("the user is suspended")) } else { Ok(assumed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestCluster;

    fn session() -> Session {
        Session {
            access_key: "ASIAAAAAAAAAAAAAAAAA".into(),
            user: "alice".into(),
            user_created_ns: 7,
            role: Some(("reader".into(), "id".into(), "s1".into())),
            policy: "{}".into(),
            expires_ns: 1000,
        }
    }

    #[test]
    fn tokens_are_opened_for_their_own_key_until_they_expire() {
        let sealer = TokenSealer::new(&[7; 32]);
        let session = session();
        let token = sealer.seal(&session).unwrap();
        assert_eq!(sealer.open(&session.access_key, &token, 999).unwrap(), session);
        assert!(matches!(sealer.open(&session.access_key, &token, 1000), Err(Error::ExpiredToken)));
        assert!(matches!(sealer.open("ASIABAAAAAAAAAAAAAAA", &token, 999), Err(Error::InvalidToken)));
        assert!(matches!(
            TokenSealer::new(&[8; 32]).open(&session.access_key, &token, 999),
            Err(Error::InvalidToken)
        ));
        assert_ne!(sealer.seal(&session).unwrap(), token);
    }

    #[test]
    fn no_changed_token_is_opened() {
        let sealer = TokenSealer::new(&[7; 32]);
        let session = session();
        let bytes = STANDARD.decode(sealer.seal(&session).unwrap()).unwrap();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            let token = STANDARD.encode(&changed);
            assert!(matches!(sealer.open(&session.access_key, &token, 1), Err(Error::InvalidToken)), "{at}");
            let cut = STANDARD.encode(&bytes[..at]);
            assert!(matches!(sealer.open(&session.access_key, &cut, 1), Err(Error::InvalidToken)), "{at}");
        }
        for wrong in ["", "?", &"A".repeat(MAX_TOKEN_CHARS + 4)] {
            assert!(matches!(sealer.open(&session.access_key, wrong, 1), Err(Error::InvalidToken)));
        }
    }

    #[test]
    fn secrets_differ_by_access_key_and_cluster() {
        let (one, two) = (TokenSealer::new(&[7; 32]), TokenSealer::new(&[8; 32]));
        assert_eq!(one.secret("ASIAA").len(), 40);
        assert_ne!(one.secret("ASIAA"), one.secret("ASIAB"));
        assert_ne!(one.secret("ASIAA"), two.secret("ASIAA"));
        assert!(
            is_temporary("ASIAAAAAAAAAAAAAAAAA")
                && !is_temporary("ASIA")
                && !is_temporary("AKIAAAAAAAAAAAAAAAAA")
        );
    }

    #[test]
    fn temporary_credentials_end_with_their_user() {
        let cluster = TestCluster::new();
        let (connection, peers) = cluster.connect();
        cluster.run(async move {
            let users = Arc::new(Users::new(&connection, &peers, crate::user::DefaultQuotas::default()));
            let roles = Arc::new(Roles::new(&connection, &peers));
            let [issuer, other] = [0, 1].map(|_| Authenticator::new(&connection.pools.sts, &users, &roles));
            users.create(&User::new("alice", "Alice")).await.unwrap();
            let user_created_ns = users.get("alice").await.unwrap().created_ns;
            let session = Session {
                user_created_ns,
                role: None,
                policy: String::new(),
                expires_ns: u64::MAX,
                ..session()
            };
            let issued = issuer.issue(session).await.unwrap();
            // Any gateway knows the secret, and opens the token.
            assert_eq!(other.secret_key(&issued.access_key).await.unwrap(), issued.secret_key);
            let caller = other.authenticate(&issued.access_key, Some(&issued.token)).await.unwrap();
            assert_eq!(caller.user.id, "alice");
            for token in [None, Some("AAAA")] {
                let refused = other.authenticate(&issued.access_key, token).await;
                assert!(matches!(refused, Err(Error::InvalidToken)));
            }
            // A later user of the same name is another one.
            users.remove("alice").await.unwrap();
            users.create(&User::new("alice", "Another")).await.unwrap();
            let refused = other.authenticate(&issued.access_key, Some(&issued.token)).await;
            assert!(matches!(refused, Err(Error::InvalidToken)));
        });
    }
}
