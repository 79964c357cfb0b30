//! Capabilities for services that do not exist in Nacre. They are only checked, so that Ceph's tools get Ceph's answers.

use super::mon::{constraints, keyword_value, permissions, separator, spaces};
use super::scan::Scan;
use super::{CapsError, network, parse_grants};

/// Checks a `mgr` capability (`MgrCap`).
pub(super) fn check_mgr(text: &str) -> Result<(), CapsError> {
    let profiles = parse_grants("mgr", text, |_| {}, separator, mgr_grant)?;
    for (profile, keys) in profiles.into_iter().flatten() {
        match profile.as_str() {
            "read-only" | "read-write" | "crash" | "osd" | "mds" => {}
            "rbd" | "rbd-read-only" => {
                if let Some(key) = keys.iter().find(|key| !matches!(key.as_str(), "pool" | "namespace")) {
                    let reason = format!("profile '{profile}' does not recognize key '{key}'");
                    return Err(CapsError::Profile(reason));
                }
            }
            other => return Err(CapsError::Profile(format!("unrecognized profile '{other}'"))),
        }
    }
    Ok(())
}

/// A profile's name and the keys of its arguments, if the grant is a profile.
type Profile = Option<(String, Vec<String>)>;

fn mgr_grant(scan: &mut Scan<'_>) -> Option<Profile> {
    let _ = spaces(scan);
    let allowed = |then: fn(&mut Scan<'_>) -> Option<()>| {
        move |scan: &mut Scan<'_>| {
            scan.literal("allow")?;
            spaces(scan)?;
            then(scan)?;
            let _ = network(scan);
            Some(None)
        }
    };
    let grant = scan
        .attempt(allowed(|scan| permissions(scan).map(drop)))
        .or_else(|| scan.attempt(mgr_profile))
        .or_else(|| {
            scan.attempt(allowed(|scan| {
                keyword_value(scan, "service")?;
                spaces(scan)?;
                permissions(scan).map(drop)
            }))
        })
        .or_else(|| {
            scan.attempt(allowed(|scan| {
                keyword_value(scan, "module")?;
                let _ = scan.attempt(with);
                spaces(scan)?;
                permissions(scan).map(drop)
            }))
        })
        .or_else(|| {
            scan.attempt(allowed(|scan| {
                keyword_value(scan, "command")?;
                let _ = scan.attempt(with);
                Some(())
            }))
        })?;
    let _ = spaces(scan);
    Some(grant)
}

fn with(scan: &mut Scan<'_>) -> Option<()> {
    spaces(scan)?;
    scan.literal("with")?;
    spaces(scan)?;
    constraints(scan).map(drop)
}

fn mgr_profile(scan: &mut Scan<'_>) -> Option<Profile> {
    let _ = scan.attempt(|scan| {
        scan.literal("allow")?;
        spaces(scan)
    });
    let name = keyword_value(scan, "profile")?;
    let keys = scan.attempt(|scan| {
        spaces(scan)?;
        constraints(scan)
    });
    let _ = network(scan);
    Some(Some((name, keys.unwrap_or_default().into_iter().map(|(key, ..)| key).collect())))
}

/// Checks an `mds` capability (`MDSAuthCaps`).
pub(super) fn check_mds(text: &str) -> Result<(), CapsError> {
    // The form from before there were permissions.
    if text == "allow" {
        return Ok(());
    }
    parse_grants("mds", text, |scan| scan.any_spaces(), separator, mds_grant).map(drop)
}

fn mds_grant(scan: &mut Scan<'_>) -> Option<()> {
    scan.literal("allow")?;
    spaces(scan)?;
    ["*", "all", "rwps", "rwp", "rws", "rw", "r"].into_iter().find(|word| scan.literal(word).is_some())?;
    let value = |name: &'static str, value: fn(&mut Scan<'_>) -> Option<()>| {
        move |scan: &mut Scan<'_>| {
            spaces(scan)?;
            scan.literal(name)?;
            scan.literal("=")?;
            value(scan)
        }
    };
    let number =
        |scan: &mut Scan<'_>| scan.take_while1(|c| c.is_ascii_digit())?.parse::<u32>().ok().map(drop);
    let _ = scan.attempt(value("fsname", |scan| {
        scan.take_while1(|c| c.is_ascii_alphanumeric() || "_.-".contains(c)).map(drop)
    }));
    let _ = scan.attempt(value("path", |scan| scan.value_or_empty().map(drop)));
    if scan.attempt(value("uid", number)).is_some() {
        let _ = scan.attempt(value("gids", |scan| {
            let number =
                |scan: &mut Scan<'_>| scan.take_while1(|c| c.is_ascii_digit())?.parse::<u32>().ok().map(drop);
            number(scan)?;
            while scan
                .attempt(|scan| {
                    scan.literal(",")?;
                    number(scan)
                })
                .is_some()
            {}
            Some(())
        }));
    }
    let _ = scan.attempt(|scan| {
        spaces(scan)?;
        scan.literal("root_squash")
    });
    let _ = network(scan);
    Some(())
}
