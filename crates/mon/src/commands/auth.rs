//! `auth …`.

use super::{CommandAnswer, CommandFailure, CommandOutcome, Context, unhandled};
use crate::auth_db::{encode, keyring_text};
use crate::logic::MapState;
use nacre_common::auth::{Caps, KeyRecord, Keyring};
use nacre_types::caps;
use nacre_types::command::Call;
use nacre_types::ids::EntityName;
use serde_json::{Value, json};
use std::path::Path;

/// Longest capabilities of an entity, in bytes; no ticket can hold more.
const MAX_CAPS: usize = 32 << 10;
/// Longest name of an entity, in bytes: it is part of a key of the map store.
const MAX_NAME: usize = 1 << 10;

impl MapState {
    pub(super) fn auth_command(&mut self, call: &Call<'_>, ctx: &Context) -> CommandOutcome {
        match call.prefix() {
            "auth ls" | "auth list" => Ok(self.auth_ls(ctx)),
            "auth import" => self.auth_import(ctx),
            prefix => {
                let entity: EntityName = call
                    .required_text("entity")
                    .parse()
                    .map_err(|_| CommandFailure::invalid("bad entity name"))?;
                match prefix {
                    "auth get" => self.auth_get(&entity, ctx),
                    "auth get-key" | "auth print-key" | "auth print_key" => self.auth_get_key(&entity, ctx),
                    "auth add" => self.auth_add(&entity, &parse_caps(call)?, ctx),
                    "auth get-or-create" => self.auth_get_or_create(&entity, &parse_caps(call)?, ctx, false),
                    "auth get-or-create-key" => {
                        self.auth_get_or_create(&entity, &parse_caps(call)?, ctx, true)
                    }
                    "auth caps" => self.auth_caps(&entity, parse_caps(call)?),
                    "auth rotate" => self.auth_rotate(&entity, ctx),
                    "auth rm" | "auth del" => Ok(self.auth_rm(&entity)),
                    _ => unhandled(call),
                }
            }
        }
    }

    fn auth_ls(&self, ctx: &Context) -> CommandAnswer {
        if ctx.is_json() {
            let entries: Vec<Value> =
                self.auth.iter().map(|(entity, record)| entry_json(entity, record)).collect();
            return CommandAnswer::json(json!({ "auth_dump": entries }));
        }
        let mut out = String::new();
        for (entity, record) in self.auth.iter() {
            out.push_str(&format!("{entity}\n\tkey: {}\n", *record.key.to_base64()));
            for (service, caps) in &record.caps {
                out.push_str(&format!("\tcaps: [{service}] {caps}\n"));
            }
        }
        let status = if out.is_empty() { "no installed auth entries!" } else { "installed auth entries:" };
        CommandAnswer::text(out).with_status(status)
    }

    fn auth_get(&self, entity: &EntityName, ctx: &Context) -> CommandOutcome {
        let record = self
            .auth
            .get(entity)
            .ok_or_else(|| CommandFailure::not_found(format!("failed to find {entity} in keyring")))?;
        let answer = CommandAnswer::either(
            ctx,
            || json!([entry_json(entity, record)]),
            || keyring_text(entity, record, true),
        );
        Ok(answer.with_status(format!("exported keyring for {entity}")))
    }

    fn auth_get_key(&self, entity: &EntityName, ctx: &Context) -> CommandOutcome {
        let record =
            self.auth.get(entity).ok_or_else(|| CommandFailure::not_found(format!("don't have {entity}")))?;
        let key = record.key.to_base64();
        Ok(CommandAnswer::either(ctx, || json!({ "key": *key }), || key.to_string()))
    }

    fn auth_add(&mut self, entity: &EntityName, caps: &Caps, ctx: &Context) -> CommandOutcome {
        let mut record = KeyRecord { key: ctx.fresh_key.clone(), caps: caps.clone() };
        if !ctx.input.is_empty() {
            let given = parse_keyring(&ctx.input)?;
            let found = given.get(entity);
            let found = found
                .ok_or_else(|| CommandFailure::not_found(format!("{entity} is not in the given keyring")))?;
            record.key = found.key.clone();
            if !found.caps.is_empty() {
                if !caps.is_empty() {
                    return Err(CommandFailure::invalid(
                        "caps cannot be specified both in keyring and in command",
                    ));
                }
                record.caps = found.caps.clone();
            }
        }
        if let Some(existing) = self.auth.get(entity) {
            if !ctx.input.is_empty() && existing.key != record.key {
                return Err(CommandFailure::invalid(format!(
                    "entity {entity} exists but key does not match"
                )));
            }
            if existing.caps.len() != record.caps.len() {
                return Err(CommandFailure::invalid(format!("entity {entity} exists but caps do not match")));
            }
            let differs =
                record.caps.iter().find(|(service, text)| existing.caps.get(*service) != Some(*text));
            if let Some((service, _)) = differs {
                return Err(CommandFailure::invalid(format!(
                    "entity {entity} exists but cap {service} does not match"
                )));
            }
            return Ok(CommandAnswer::default());
        }
        check_entry(entity, &record.caps)?;
        self.put_auth(entity.clone(), record);
        Ok(CommandAnswer::status(format!("added key for {entity}")))
    }

    fn auth_get_or_create(
        &mut self,
        entity: &EntityName,
        caps: &Caps,
        ctx: &Context,
        key_only: bool,
    ) -> CommandOutcome {
        if let Some(existing) = self.auth.get(entity) {
            let differs = caps.iter().find(|(service, text)| existing.caps.get(*service) != Some(*text));
            if let Some((service, _)) = differs {
                return Err(CommandFailure::invalid(format!(
                    "key for {entity} exists but cap {service} does not match"
                )));
            }
        } else {
            check_entry(entity, caps)?;
            self.put_auth(entity.clone(), KeyRecord { key: ctx.fresh_key.clone(), caps: caps.clone() });
        }
        let record = self.auth.get(entity).expect("invariant: it exists now");
        Ok(match key_only {
            true => CommandAnswer::either(
                ctx,
                || json!({ "key": *record.key.to_base64() }),
                || record.key.to_base64().to_string(),
            ),
            false => CommandAnswer::either(
                ctx,
                || json!([entry_json(entity, record)]),
                || keyring_text(entity, record, false),
            ),
        })
    }

    fn auth_caps(&mut self, entity: &EntityName, caps: Caps) -> CommandOutcome {
        let record = self.auth.get(entity);
        let record =
            record.ok_or_else(|| CommandFailure::not_found(format!("couldn't find entry {entity}")))?;
        check_caps(&caps)?;
        let record = KeyRecord { key: record.key.clone(), caps };
        self.put_auth(entity.clone(), record);
        Ok(CommandAnswer::status(format!("updated caps for {entity}")))
    }

    /// Gives the entity a new key. The old key stops working as soon as the change is durable.
    fn auth_rotate(&mut self, entity: &EntityName, ctx: &Context) -> CommandOutcome {
        let record =
            self.auth.get(entity).ok_or_else(|| CommandFailure::not_found("entity does not exist"))?;
        let record = KeyRecord { key: ctx.fresh_key.clone(), caps: record.caps.clone() };
        let answer = CommandAnswer::either(
            ctx,
            || json!([entry_json(entity, &record)]),
            || keyring_text(entity, &record, true),
        );
        self.put_auth(entity.clone(), record);
        Ok(answer)
    }

    fn auth_rm(&mut self, entity: &EntityName) -> CommandAnswer {
        if !self.auth.remove(entity) {
            return CommandAnswer::status(format!("entity {entity} does not exist"));
        }
        self.keys.insert(crate::keys::auth(entity), None);
        CommandAnswer::status("updated")
    }

    fn auth_import(&mut self, ctx: &Context) -> CommandOutcome {
        if ctx.input.is_empty() {
            return Err(CommandFailure::invalid("auth import: no data supplied"));
        }
        let given = parse_keyring(&ctx.input)?;
        let entries: Vec<(EntityName, KeyRecord)> = given
            .iter()
            .map(|(entity, e)| (entity.clone(), KeyRecord { key: e.key.clone(), caps: e.caps.clone() }))
            .collect();
        entries.iter().try_for_each(|(entity, record)| check_entry(entity, &record.caps))?;
        for (entity, record) in entries {
            self.put_auth(entity, record);
        }
        Ok(CommandAnswer::status("imported keyring"))
    }

    fn put_auth(&mut self, entity: EntityName, record: KeyRecord) {
        self.keys.insert(crate::keys::auth(&entity), Some(encode(&record)));
        self.auth.insert(entity, record);
    }
}

fn entry_json(entity: &EntityName, record: &KeyRecord) -> Value {
    json!({ "entity": entity.to_string(), "key": *record.key.to_base64(), "caps": record.caps })
}

/// Parses alternating services and caps: `mon 'allow r' osd 'allow rw'`.
fn parse_caps(call: &Call<'_>) -> Result<Caps, CommandFailure> {
    let words = call.texts("caps");
    if !words.len().is_multiple_of(2) {
        return Err(CommandFailure::invalid("bad capabilities request; odd number of arguments"));
    }
    Ok(words.chunks_exact(2).map(|pair| (pair[0].to_owned(), pair[1].to_owned())).collect())
}

fn check_entry(entity: &EntityName, caps: &Caps) -> Result<(), CommandFailure> {
    let bytes = entity.to_string().len();
    if bytes > MAX_NAME {
        return Err(CommandFailure::invalid(format!(
            "the entity's name has {bytes} bytes, the limit is {MAX_NAME}"
        )));
    }
    check_caps(caps)
}

fn check_caps(caps: &Caps) -> Result<(), CommandFailure> {
    let bytes: usize = caps.iter().map(|(service, text)| service.len() + text.len()).sum();
    if bytes > MAX_CAPS {
        return Err(CommandFailure::invalid(format!(
            "the capabilities have {bytes} bytes, the limit is {MAX_CAPS}"
        )));
    }
    caps.iter()
        .try_for_each(|(service, text)| caps::validate(service, text))
        .map_err(|error| CommandFailure::invalid(error.to_string()))
}

fn parse_keyring(input: &[u8]) -> Result<Keyring, CommandFailure> {
    let text = std::str::from_utf8(input).map_err(|_| {
        CommandFailure::invalid("error decoding keyring cannot parse buffer: Malformed input")
    })?;
    let keyring = Keyring::parse(Path::new("input"), text);
    match keyring {
        Ok(keyring) if keyring.iter().next().is_some() => Ok(keyring),
        _ => Err(CommandFailure::invalid("error decoding keyring cannot parse buffer: Malformed input")),
    }
}
