//! The cluster's secret for SSE-S3, from which the keys of objects are derived.

use crate::connection::Connection;
use crate::crypt::{SECRET_BYTES, Secret, SseKeySource};
use crate::error::{Error, Result};
use crate::record;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nacre_types::encoding::Versioned;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tokio::sync::OnceCell;

/// The monitors' config-key for the secret, in base64. It is the key that earlier releases used, and the prefix of the keys
/// of generated secrets.
const SECRET_KEY: &str = "rgw/crypt/default_encryption_key";
/// The record in `default.rgw.control` that names the secret in use.
const ACTIVE_SECRET: &str = "sse_secret";

/// Names the secret for SSE-S3 in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ActiveSecret {
    /// The monitors' config-key that contains it.
    key: String,
}

impl Versioned for ActiveSecret {
    const NAME: &'static str = "choice of a secret";
}

/// The secret of a cluster.
pub struct SseSecret {
    connection: Arc<Connection>,
    /// The secret that the gateway was configured with.
    configured: Option<[u8; SECRET_BYTES]>,
    secret: OnceCell<Secret>,
}

impl SseSecret {
    pub(crate) fn new(connection: &Arc<Connection>, configured: Option<[u8; SECRET_BYTES]>) -> SseSecret {
        SseSecret { connection: Arc::clone(connection), configured, secret: OnceCell::new() }
    }

    /// Returns the cluster's secret for SSE-S3.
    pub async fn get(&self) -> Result<Secret> {
        let known = self.secret.get_or_try_init(async || {
            let bytes = match self.configured {
                Some(key) => key,
                None => self.stored().await?,
            };
            Ok::<_, Error>(Secret::new(SseKeySource::Cluster, bytes))
        });
        known.await.cloned()
    }

    /// Returns the secret that the monitors store; generates one if there is none.
    ///
    /// Each gateway that finds none stores one under a name of its own. One record in RADOS, which is created once, names
    /// the one in use: a command to the monitors that arrives late can't replace it.
    async fn stored(&self) -> Result<[u8; SECRET_BYTES]> {
        if let Some((choice, _)) =
            record::read::<ActiveSecret>(&self.connection.pools.control, ACTIVE_SECRET).await?
        {
            return self.chosen(&choice.key).await;
        }
        // Earlier releases used a single name and had no such record.
        let made = match self.ask(SECRET_KEY).await? {
            Some(_) => None,
            None => Some(format!("{SECRET_KEY}/{}", self.connection.new_tag())),
        };
        if let Some(key) = &made {
            let val = STANDARD.encode(crate::crypt::random_salt()?);
            let command = serde_json::json!({ "prefix": "config-key set", "key": key, "val": val });
            self.connection.cluster.command(command.to_string(), "").await?;
        }
        let own = ActiveSecret { key: made.clone().unwrap_or_else(|| SECRET_KEY.to_owned()) };
        record::create(&self.connection.pools.control, ACTIVE_SECRET, &own).await?;
        let (choice, _) = record::read::<ActiveSecret>(&self.connection.pools.control, ACTIVE_SECRET)
            .await?
            .ok_or_else(|| Error::Contended("the secret for encryption".into()))?;
        if let Some(key) = made.filter(|key| *key != choice.key) {
            let command = serde_json::json!({ "prefix": "config-key rm", "key": key });
            if let Err(error) = self.connection.cluster.command(command.to_string(), "").await {
                tracing::debug!(%error, key, "rgw: a secret that nothing uses is left with the monitors");
            }
        }
        self.chosen(&choice.key).await
    }

    async fn chosen(&self, key: &str) -> Result<[u8; SECRET_BYTES]> {
        let kept = self.ask(key).await?;
        kept.ok_or_else(|| Error::Internal {
            what: "the secret for encryption",
            detail: format!("config-key {key} is gone"),
        })
    }

    async fn ask(&self, key: &str) -> Result<Option<[u8; SECRET_BYTES]>> {
        let command = serde_json::json!({ "prefix": "config-key get", "key": key });
        let kept = match self.connection.cluster.command(command.to_string(), "").await {
            Err(error) if error.is_not_found() => return Ok(None),
            kept => kept?.output,
        };
        let bytes = STANDARD.decode(kept.trim_ascii()).ok().and_then(|bytes| bytes.try_into().ok());
        let wrong = || Error::Internal {
            what: "the secret for encryption",
            detail: format!("config-key {key} is no secret of {SECRET_BYTES} bytes"),
        };
        bytes.map(Some).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestCluster;

    #[test]
    fn gateways_agree_on_the_secret() {
        let cluster = TestCluster::new();
        let [first, second] = [0, 1].map(|_| SseSecret::new(&cluster.connect().0, None));
        cluster.run(async move {
            let (one, two) = futures::join!(first.get(), second.get());
            // Each decrypts what the other encrypts.
            let encryption = one.unwrap().new_encryption().unwrap();
            two.unwrap().check(&encryption).unwrap();
            let strange = Secret::new(SseKeySource::Cluster, [7; SECRET_BYTES]);
            assert!(matches!(strange.check(&encryption), Err(Error::WrongKey)));
        });
    }
}
