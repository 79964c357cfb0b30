//! `config-key …`: values that programs store in the cluster.

use super::{CommandAnswer, CommandFailure, CommandOutcome, Context, unhandled};
use crate::logic::MapState;
use nacre_types::command::Call;
use nacre_types::errno::Errno;
use serde_json::{Value, json};

/// Longest value (`mon_config_key_max_entry_size`).
const MAX_VALUE: usize = 64 << 10;
/// Longest key.
const MAX_KEY: usize = 1024;
/// Most entries.
const MAX_ENTRIES: usize = 16_384;

impl MapState {
    pub(super) fn config_key_command(&mut self, call: &Call<'_>, ctx: &Context) -> CommandOutcome {
        match call.prefix() {
            "config-key ls" | "config-key list" => {
                Ok(CommandAnswer::json(json!(self.config_keys.keys().collect::<Vec<_>>())))
            }
            "config-key dump" => {
                let prefix = call.text("key").unwrap_or("");
                let entries = self.config_keys.iter().filter(|(key, _)| key.starts_with(prefix));
                let shown = entries.map(|(key, value)| (key.clone(), shown(value)));
                Ok(CommandAnswer::json(Value::Object(shown.collect())))
            }
            prefix => {
                let key = call.required_text("key").to_owned();
                match prefix {
                    "config-key get" => self.config_key_get(&key),
                    "config-key set" | "config-key put" => self.config_key_set(&key, call.text("val"), ctx),
                    "config-key exists" => match self.config_keys.contains_key(&key) {
                        true => Ok(CommandAnswer::status(format!("key '{key}' exists"))),
                        false => Err(CommandFailure::not_found(format!("key '{key}' doesn't exist"))),
                    },
                    "config-key rm" | "config-key del" => {
                        if self.config_keys.remove(&key).is_none() {
                            return Ok(CommandAnswer::status(format!("no such key '{key}'")));
                        }
                        self.keys.insert(crate::keys::config_key(&key), None);
                        Ok(CommandAnswer::status("key deleted"))
                    }
                    _ => unhandled(call),
                }
            }
        }
    }

    fn config_key_get(&self, key: &str) -> CommandOutcome {
        match self.config_keys.get(key) {
            Some(value) => Ok(CommandAnswer::bytes(value.clone()).with_status(format!("obtained '{key}'"))),
            None => Err(CommandFailure::not_found(format!(
                "error obtaining '{key}': (2) No such file or directory"
            ))),
        }
    }

    fn config_key_set(&mut self, key: &str, value: Option<&str>, ctx: &Context) -> CommandOutcome {
        let value = value.map_or_else(|| ctx.input.to_vec(), |text| text.as_bytes().to_vec());
        if value.len() > MAX_VALUE || key.len() > MAX_KEY {
            let text = format!(
                "error: entry size limited to {MAX_VALUE} bytes. Use 'mon config key max entry size' to manually adjust"
            );
            return Err(CommandFailure::new(Errno::EFBIG, text));
        }
        if key.is_empty() || key.chars().any(char::is_control) {
            return Err(CommandFailure::invalid(format!("invalid key '{key}'")));
        }
        if !self.config_keys.contains_key(key) && self.config_keys.len() >= MAX_ENTRIES {
            return Err(CommandFailure::new(Errno::ENOSPC, format!("there are {MAX_ENTRIES} keys already")));
        }
        self.keys.insert(crate::keys::config_key(key), Some(value.clone()));
        self.config_keys.insert(key.to_owned(), value);
        Ok(CommandAnswer::status(format!("set {key}")))
    }
}

fn shown(value: &[u8]) -> Value {
    match std::str::from_utf8(value) {
        Ok(text) if !text.contains('\0') => text.into(),
        _ => format!("<<< binary blob of length {} >>>", value.len()).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Desk;
    use nacre_types::errno::Errno;
    use serde_json::json;

    #[test]
    fn values_are_kept_listed_and_removed() {
        let mut desk = Desk::new();
        assert_eq!(desk.status("config-key set", json!({ "key": "a/b", "val": "v" })), "set a/b");
        assert_eq!(desk.text("config-key get", json!({ "key": "a/b" })), "v");
        assert_eq!(desk.json("config-key ls", json!({})), json!(["a/b"]));
        assert_eq!(desk.json("config-key dump", json!({ "key": "a" })), json!({ "a/b": "v" }));
        assert_eq!(desk.status("config-key exists", json!({ "key": "a/b" })), "key 'a/b' exists");
        assert_eq!(desk.status("config-key rm", json!({ "key": "a/b" })), "key deleted");
        let text = "error obtaining 'a/b': (2) No such file or directory";
        desk.fails("config-key get", json!({ "key": "a/b" }), Errno::ENOENT, text);
        let long = "x".repeat(70_000);
        assert_eq!(desk.run("config-key set", json!({ "key": "k", "val": long })).0, Errno::EFBIG.negated());
    }
}
