//! `osd force-create-pg`: the operator accepts that all copies of a PG are lost.
//!
//! Creates the PG again, empty, in an interval above all its earlier ones ([`Interval::recreation`]). So its earlier intervals
//! have no effect any more, and a copy that turns up later is no member: it is filled from the empty PG, or removed.

use super::{CommandAnswer, CommandFailure, CommandOutcome, Context};
use crate::logic::{LogLevel, MapState, has_lost_copy};
use crate::text::{bytes, count, plural};
use nacre_types::command::Call;
use nacre_types::errno::Errno;
use nacre_types::ids::{Interval, OsdId, PgId};
use nacre_types::osdmap::{Member, PgMembership};
use nacre_types::placement::PgMapper;

impl MapState {
    pub(super) fn force_create_pg(&mut self, call: &Call<'_>, ctx: &Context) -> CommandOutcome {
        let pg = call.pg("pgid").ok_or_else(|| CommandFailure::invalid("invalid pgid"))?;
        let pool = self.working.pools.get(&pg.pool).filter(|pool| pg.seed < pool.pg_num);
        let pool = pool.ok_or_else(|| CommandFailure::not_found(format!("pg {pg} should not exist")))?;
        let min_size = pool.min_size as usize;
        if !call.flag("yes_i_really_mean_it") {
            return Err(CommandFailure::new(
                Errno::EPERM,
                "This command will recreate a lost (as in data lost) PG with data in it, such that the cluster will give up ever \
                 trying to recover the lost data.  Do this only if you are certain that all copies of the PG are in fact lost and \
                 you are willing to accept that the data is permanently destroyed.  Pass --yes-i-really-mean-it to proceed.",
            ));
        }
        let creating = Ok(CommandAnswer::status(format!("pg {pg} already creating")));
        let Some(current) = self.working.membership(pg).cloned() else { return creating };
        let left = current.in_sync.iter().filter(|member| !has_lost_copy(&self.working, **member));
        let mut left: Vec<OsdId> = left.map(|member| member.osd).collect();
        left.sort_unstable();
        if !left.is_empty() {
            if current.interval.is_creation() {
                return creating;
            }
            return Err(busy(format!(
                "pg {pg} is not lost: {} may have all its data; start {}, or give up what is there with ceph osd lost",
                left.iter().map(OsdId::to_string).collect::<Vec<_>>().join(", "),
                if left.len() == 1 { "it" } else { "them" }
            )));
        }
        let interval = self.recreation_of(pg, &current)?;
        let up = PgMapper::new(&self.working).up(pg);
        let in_sync: Vec<Member> = up.iter().filter_map(|osd| self.working.up_member(*osd)).collect();
        let in_sync: Vec<Member> =
            in_sync.into_iter().filter(|member| self.working.is_member_up(*member)).collect();
        let primary = in_sync.first().filter(|_| in_sync.len() >= min_size).map(|member| member.osd);
        let Some(primary) = primary else {
            return Err(busy(format!(
                "pg {pg} needs {min_size} OSDs that are up, and CRUSH chooses {}",
                in_sync.len()
            )));
        };
        let lost = self.last_known(pg);
        self.last_dirty.forget(pg);
        self.set_membership(pg, PgMembership { interval, primary, in_sync });
        let who = ctx.entity.to_string();
        let text =
            format!("pg {pg} begins again without data: {who} accepted that its copies are lost ({lost})");
        self.log.append(ctx.now, &who, LogLevel::Warn, text);
        Ok(CommandAnswer::status(format!("pg {pg} now creating, ok")))
    }

    fn recreation_of(&self, pg: PgId, current: &PgMembership) -> Result<Interval, CommandFailure> {
        if !current.interval.is_since(self.working.generation) {
            return Err(busy(format!(
                "pg {pg} waits for what OSDs remember of it since the map store was restored; give up those that are gone with \
                 ceph osd lost"
            )));
        }
        let interval = current.interval.recreation();
        interval.ok_or_else(|| busy(format!("pg {pg} was made again too often; remove the pool")))
    }

    /// The contents of a PG according to its last report, as a text.
    fn last_known(&self, pg: PgId) -> String {
        match self.stats.pgs.get(&pg).map(|report| report.sums) {
            None => "what it held is not known".to_owned(),
            Some(sums) => {
                let objects = usize::try_from(sums.objects).unwrap_or(usize::MAX);
                let mut text =
                    format!("{} {} of {}", count(sums.objects), plural(objects, "object"), bytes(sums.bytes));
                if let Some(dirty) = self.last_dirty.of(pg).filter(|dirty| dirty.objects > 0) {
                    text += &format!(", of which {} dirty ({})", count(dirty.objects), bytes(dirty.bytes));
                }
                text
            }
        }
    }
}

fn busy(text: String) -> CommandFailure {
    CommandFailure::new(Errno::EBUSY, text)
}
