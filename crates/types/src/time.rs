//! Formats times for people, as Ceph does.

/// A smaller value is printed as a number of seconds: Ceph assumes that it is a duration.
const TEN_YEARS_NS: u64 = 10 * 365 * 86_400 * 1_000_000_000;

/// Formats nanoseconds since 1970 as `2026-11-21T20:57:43.602914+0000`; 0 as `0.000000`.
pub fn stamp(ns: u64) -> String {
    let (date, micros) = civil(ns);
    if ns < TEN_YEARS_NS {
        return format!("{}.{micros:06}", ns / 1_000_000_000);
    }
    format!("{date}.{micros:06}+0000")
}

/// Formats as `2026-11-21T20:57:43.602914Z`, as monmaps do.
pub fn stamp_z(ns: u64) -> String {
    let (date, micros) = civil(ns);
    format!("{date}.{micros:06}Z")
}

fn civil(ns: u64) -> (String, u64) {
    let seconds = ns / 1_000_000_000;
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Howard Hinnant's civil_from_days, for days since 1970.
    let z = days + 719_468;
    let (era, doe) = (z / 146_097, z % 146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + u64::from(month <= 2);
    let (h, m, s) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    (format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}"), ns % 1_000_000_000 / 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_printed_as_ceph_does() {
        assert_eq!(stamp(1_795_294_663_602_914_000), "2026-11-21T20:57:43.602914+0000");
        assert_eq!(stamp(951_782_400_000_000_000), "2000-02-29T00:00:00.000000+0000");
        assert_eq!(stamp(0), "0.000000");
        assert_eq!(stamp(3_500_000_000), "3.500000");
        assert_eq!(stamp_z(0), "1970-01-01T00:00:00.000000Z");
    }
}
