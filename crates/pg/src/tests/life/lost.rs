//! All copies of a PG are lost, and the operator accepts this.

use super::{append, cluster, set, write_some};
use crate::tests::cluster::{Cluster, osd};
use crate::tests::host::{MS, Request};

/// Makes the OSDs lose their disks, all at once, and start again.
fn lose(c: &mut Cluster, osds: &[u32]) {
    for id in osds {
        c.kill(osd(*id), 0);
        c.wipe(osd(*id));
        c.mon.down(osd(*id));
    }
    osds.iter().for_each(|id| c.boot(osd(*id)));
}

/// Stops expecting the objects that were written.
fn give_up(c: &mut Cluster, objects: u32) {
    let lost: Vec<_> = (0..objects).map(|n| c.clients.object(&format!("a{n}"))).collect();
    c.lost.extend(lost);
}

#[test]
fn a_pg_without_copies_does_not_serve_until_that_is_accepted() {
    let mut c = cluster(3, 3, 2);
    write_some(&mut c, 4);
    let before = c.mon.membership().unwrap().interval;
    lose(&mut c, &[0, 1, 2]);
    assert!(!c.run_for(30_000 * MS, &|c| c.is_served()), "an empty PG took the place of a lost one");
    assert!(c.hosts.values().all(|host| !host.pg.has_copy()));
    give_up(&mut c, 4);
    c.mon.recreate();
    c.run_clean();
    assert_eq!(c.in_sync(), set(&[0, 1, 2]));
    assert!(c.mon.membership().unwrap().interval > before);
    append(&mut c, "b0");
    assert_eq!(c.ask("b0", Request::Read).len(), 4);
    c.run_clean();
    // It is a PG like others: it survives the loss of one member, and can be lost and created again.
    c.kill(osd(0), 0);
    c.mon.down(osd(0));
    append(&mut c, "b0");
    c.boot(osd(0));
    c.run_clean();
    assert_eq!(c.ask("b0", Request::Read).len(), 8);
    lose(&mut c, &[0, 1, 2]);
    let lost = c.clients.object("b0");
    c.lost.insert(lost);
    c.mon.recreate();
    c.run_clean();
}

#[test]
fn what_an_earlier_member_has_is_not_taken_for_the_new_pgs() {
    let mut c = cluster(3, 2, 2);
    write_some(&mut c, 2);
    // The copy of osd.1 remains.
    c.kill(osd(1), 0);
    c.mon.down(osd(1));
    c.mon.set_up(&[0, 2]);
    c.run_until("the other member", |c| c.in_sync() == set(&[0, 2]));
    c.run_clean();
    write_some(&mut c, 4);
    c.run_clean();
    lose(&mut c, &[0, 2]);
    c.mon.set_up(&[1, 0]);
    c.boot(osd(1));
    assert!(!c.run_for(30_000 * MS, &|c| c.is_served()), "an old copy took the place of the newest ones");
    assert!(c.hosts[&osd(1)].pg.has_copy());
    give_up(&mut c, 4);
    c.mon.recreate();
    c.run_clean();
    assert_eq!((c.primary(), c.in_sync()), (osd(1), set(&[0, 1])));
    assert!(c.hosts[&osd(1)].store.durable.objects.is_empty());
    append(&mut c, "b0");
    c.run_clean();
}

#[test]
fn what_an_earlier_member_has_goes_when_it_joins_later() {
    let mut c = cluster(3, 2, 2);
    write_some(&mut c, 3);
    c.kill(osd(1), 0);
    c.mon.down(osd(1));
    c.mon.set_up(&[0, 2]);
    c.run_until("the other member", |c| c.in_sync() == set(&[0, 2]));
    c.run_clean();
    lose(&mut c, &[0, 2]);
    give_up(&mut c, 3);
    c.mon.recreate();
    c.run_clean();
    append(&mut c, "b0");
    c.run_clean();
    c.boot(osd(1));
    c.mon.set_up(&[0, 1]);
    c.run_until("the member that returned", |c| c.in_sync() == set(&[0, 1]));
    c.run_clean();
    assert_eq!(c.in_sync(), set(&[0, 1]));
    assert_eq!(c.hosts[&osd(1)].store.durable.objects.len(), 1);
}
