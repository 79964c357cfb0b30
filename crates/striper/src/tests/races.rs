//! Clients that die, and clients that conflict: every order of requests that real OSDs may choose.

use super::*;

/// One operation of a client that will die.
fn doomed(striper: &Striper, which: usize) -> Pending<()> {
    match which {
        0 => striper.write("o", 3 * UNIT, pattern(7, 4 * UNIT as usize)),
        1 => striper.append("o", pattern(7, 5 * UNIT as usize)),
        2 => striper.truncate("o", UNIT + 9),
        3 => striper.remove("o"),
        _ => striper.write_full("o", pattern(7, 3 * UNIT as usize)),
    }
}

/// For every last request of a client, and every choice of requests in flight that are executed after it: a removal finds
/// everything that is left, and data that was cut off does not reappear.
#[test]
fn a_client_may_die_after_any_request() {
    for seed in 0..400 {
        let mut dice = Dice::new(seed);
        let (which, last) = (dice.below(5), dice.below(12));
        let cluster = Cluster::default();
        let initial = pattern(3, 9 * UNIT as usize);
        if dice.below(5) > 0 {
            cluster.wait(cluster.striper(1).write("o", 0, initial.clone())).unwrap();
        }
        let existed = !cluster.names().is_empty();
        cluster.0.lock().held = true;
        let victim = cluster.striper(2);
        let started = doomed(&victim, which);
        for _ in 0..last {
            cluster.run_tasks();
            let mut world = cluster.0.lock();
            let eligible = world.eligible();
            if !eligible.is_empty() {
                let at = eligible[dice.below(eligible.len())];
                world.carry_out(at);
            }
        }
        drop(started);
        {
            let mut world = cluster.0.lock();
            world.dead.push(2);
            world.tasks.clear();
            // Requests in flight arrive or are lost.
            while let Some(at) = world.eligible().first().copied() {
                if dice.below(2) == 0 {
                    drop(world.queue.remove(at));
                } else {
                    world.carry_out(at);
                }
            }
            world.held = false;
        }
        let other = cluster.striper(3);
        let case = format!("seed {seed}: operation {which}, dead after {last} requests");
        if let Ok(stat) = cluster.wait(other.stat("o")) {
            let contents = cluster.wait(other.read("o", 0, 1 << 30)).unwrap();
            assert_eq!(contents.len() as u64, stat.size, "{case}");
            if existed && which == 2 {
                assert!(contents == initial || contents == initial[..UNIT as usize + 9], "{case}");
            }
            // A range beyond the size reads as zeros once it is part of the object.
            let grown = 30 * UNIT;
            if which == 2 {
                cluster.wait(other.write("o", grown, pattern(8, 10))).unwrap();
                let hole = cluster.wait(other.read("o", stat.size, grown - stat.size)).unwrap();
                let stray = hole.iter().position(|byte| *byte != 0);
                assert_eq!(stray, None, "{case}, size {}", stat.size);
            }
            cluster.wait(other.remove("o")).unwrap();
        } else if !cluster.names().is_empty() {
            // Partly removed: the object is created again, or its removal is completed.
            if dice.below(2) == 0 {
                cluster.wait(other.append("o", pattern(9, 3 * UNIT as usize))).unwrap();
                assert_eq!(cluster.wait(other.read("o", 0, 1 << 30)).unwrap(), pattern(9, 3 * UNIT as usize));
            }
            cluster.wait(other.remove("o")).unwrap();
        }
        assert_eq!(cluster.names(), Vec::<String>::new(), "{case}");
    }
}

#[test]
fn appends_of_many_clients_lie_side_by_side() {
    for seed in 0..60 {
        let mut dice = Dice::new(seed);
        let cluster = Cluster::default();
        cluster.0.lock().held = true;
        let clients: Vec<_> = (0..4).map(|id| cluster.striper(id)).collect();
        let mut appends = Vec::new();
        for n in 0..24 {
            let len = 1 + dice.below(2 * UNIT as usize);
            let data = Bytes::from(vec![n as u8 + 1; len]);
            appends.push((n as u8 + 1, len, clients[dice.below(4)].append("o", data)));
            if dice.below(3) == 0 {
                cluster.run_tasks();
            }
        }
        let mut wanted = BTreeMap::new();
        for (mark, len, append) in appends {
            cluster.drive(append, |n| dice.below(n)).unwrap();
            wanted.insert(mark, len);
        }
        let contents = cluster.wait(clients[0].read("o", 0, 1 << 30)).unwrap();
        let mut seen = BTreeMap::new();
        for run in contents.chunk_by(|a, b| a == b) {
            assert_eq!(seen.insert(run[0], run.len()), None, "seed {seed}: an append is torn");
        }
        assert_eq!(seen, wanted, "seed {seed}");
        // A removal finds every piece.
        cluster.wait(clients[3].remove("o")).unwrap();
        assert!(cluster.names().is_empty());
    }
}

/// Clients that write, truncate and remove concurrently. Requests are executed in any allowed order.
#[test]
fn acknowledged_writes_survive_truncations_and_removals_before_them() {
    for seed in 0..200 {
        let mut dice = Dice::new(seed);
        let cluster = Cluster::default();
        cluster.0.lock().held = true;
        let clients: Vec<_> = (0..3).map(|id| cluster.striper(id)).collect();
        for round in 0..6 {
            // One client disturbs, the others write. Data written after the disturbance has ended must be there.
            let disturbance = match dice.below(3) {
                0 => clients[0].remove("o"),
                1 => clients[0].truncate("o", dice.below(6) as u64 * UNIT / 2),
                _ => clients[0].write_full("o", pattern(round, 3 * UNIT as usize)),
            };
            let during: Vec<_> = (1..3)
                .map(|id| clients[id].write("o", dice.below(8) as u64 * UNIT, pattern(id, UNIT as usize)))
                .collect();
            match cluster.drive(disturbance, |n| dice.below(n)) {
                Err(error) if error.is_not_found() => {}
                other => other.unwrap(),
            }
            for write in during {
                cluster.drive(write, |n| dice.below(n)).unwrap();
            }
            let (at, data) = (dice.below(12) as u64 * UNIT, pattern(round + 50, 2 * UNIT as usize));
            let writer = &clients[1 + dice.below(2)];
            cluster.drive(writer.write("o", at, data.clone()), |n| dice.below(n)).unwrap();
            let reader = &clients[dice.below(3)];
            let read = cluster.drive(reader.read("o", at, 2 * UNIT), |n| dice.below(n)).unwrap();
            assert!(read == data, "seed {seed}, round {round}");
        }
        cluster.drive(cluster.striper(9).remove("o"), |n| dice.below(n)).unwrap();
    }
}

/// Creates "o" as a client whose clock is `ahead` microseconds ahead would: its epoch is ahead by that much.
fn make_ahead(cluster: &Cluster, client: &Striper, ahead: u64, data: Bytes) {
    cluster.wait(client.write("o", 0, data)).unwrap();
    let mut world = cluster.0.lock();
    for stored in world.objects.values_mut() {
        let epoch: u64 = std::str::from_utf8(&stored.attrs[EPOCH]).unwrap().parse().unwrap();
        stored.attrs.insert(EPOCH.to_owned(), (epoch + ahead).to_string().into());
    }
}

const HOUR: u64 = 3_600_000_000;

#[test]
fn a_removal_that_was_held_up_takes_nothing_of_the_next_object() {
    for ahead in [0, HOUR] {
        let cluster = Cluster::default();
        let (slow, other) = (cluster.striper(0), cluster.striper(1));
        make_ahead(&cluster, &cluster.striper(2), ahead, pattern(1, 6 * UNIT as usize));
        cluster.0.lock().held = true;
        let removal = slow.remove("o");
        // It has ended the epoch and is about to remove the pieces.
        while !cluster.0.lock().objects["o.0000000000000000"].attrs.contains_key(UNFINISHED) {
            cluster.0.lock().carry_out(0);
            cluster.run_tasks();
        }
        cluster.0.lock().carry_out(0);
        cluster.run_tasks();
        let held_up: Vec<_> = std::mem::take(&mut cluster.0.lock().queue);
        assert!(held_up.len() > 1, "its requests for the pieces");
        // The next object starts in an earlier epoch if its client's clock is right.
        cluster.wait(cluster.striper(3).remove("o")).unwrap();
        cluster.wait(other.write("o", 0, pattern(2, 6 * UNIT as usize))).unwrap();
        cluster.0.lock().queue = held_up;
        cluster.wait(removal).unwrap();
        let read = cluster.wait(other.read("o", 0, 1 << 30)).unwrap();
        assert!(read == pattern(2, 6 * UNIT as usize), "ahead by {ahead}");
        assert!(cluster.0.lock().objects["o.0000000000000000"].attrs.contains_key(PIECE_BOUND));
    }
}

/// A write to an object whose creator's clock was ahead, which arrives when another object of the name exists, with an earlier
/// epoch; and one that arrives when none exists yet.
#[test]
fn a_late_write_does_nothing_to_an_object_of_an_earlier_epoch() {
    for made_before in [true, false] {
        let cluster = Cluster::default();
        let (late, other) = (cluster.striper(0), cluster.striper(1));
        make_ahead(&cluster, &cluster.striper(2), HOUR, pattern(1, UNIT as usize));
        cluster.0.lock().held = true;
        let write = late.write("o", UNIT, pattern(3, 10));
        let piece = |queued: &Queued| queued.request.object.name() == "o.0000000000000001";
        while !cluster.0.lock().queue.iter().any(piece) {
            cluster.0.lock().carry_out(0);
            cluster.run_tasks();
        }
        let late_requests: Vec<_> = std::mem::take(&mut cluster.0.lock().queue);
        cluster.wait(cluster.striper(3).remove("o")).unwrap();
        if made_before {
            cluster.wait(other.write("o", 0, pattern(2, 6 * UNIT as usize))).unwrap();
        }
        cluster.0.lock().queue = late_requests;
        while cluster.0.lock().queue.iter().any(piece) {
            cluster.0.lock().carry_out(0);
        }
        if !made_before {
            cluster.wait(other.write("o", 0, pattern(2, 6 * UNIT as usize))).unwrap();
        }
        cluster.wait(write).unwrap();
        let mut wanted = pattern(2, 6 * UNIT as usize).to_vec();
        wanted[UNIT as usize..][..10].copy_from_slice(&pattern(3, 10));
        // The late write is repeated on the current object.
        let read = cluster.wait(other.read("o", 0, 1 << 30)).unwrap();
        assert!(read == wanted, "made before: {made_before}");
        cluster.wait(other.remove("o")).unwrap();
        assert!(cluster.names().is_empty());
    }
}

#[test]
fn a_write_that_relied_on_what_is_gone_takes_its_piece_back() {
    let cluster = Cluster::default();
    let (writer, other) = (cluster.striper(0), cluster.striper(1));
    cluster.wait(writer.write("o", 0, pattern(1, 30 * UNIT as usize))).unwrap();
    cluster.wait(other.remove("o")).unwrap();
    cluster.wait(other.write("o", 0, "small")).unwrap();
    cluster.0.lock().held = true;
    // Relies on an object with many pieces. The current object has one piece and keeps its contents.
    let write = writer.write("o", 31 * UNIT, pattern(2, 10));
    cluster.drive(write, |n| n - 1).unwrap();
    assert_eq!(cluster.wait(other.read("o", 0, 5)).unwrap(), "small");
    assert_eq!(cluster.wait(other.stat("o")).unwrap().size, 31 * UNIT + 10);
    cluster.wait(other.remove("o")).unwrap();
    assert!(cluster.names().is_empty());
}

/// The existing pieces of `name`.
fn pieces(cluster: &Cluster, name: &str) -> Vec<u64> {
    let number = |piece: &String| {
        let number = piece.strip_prefix(name)?.strip_prefix('.')?;
        u64::from_str_radix(number, 16).ok()
    };
    cluster.names().iter().filter_map(number).collect()
}

#[test]
fn a_piece_of_a_former_object_is_no_data_of_the_next_one() {
    let cluster = Cluster::default();
    let (writer, other) = (cluster.striper(0), cluster.striper(1));
    cluster.wait(writer.write("o", 0, pattern(1, 30 * UNIT as usize))).unwrap();
    cluster.wait(writer.write("o", 32 * UNIT, "more pieces are announced")).unwrap();
    cluster.wait(other.remove("o")).unwrap();
    // The next object has few pieces, but announces as many as the failing write will use.
    cluster.wait(other.write("o", 0, "begin")).unwrap();
    cluster.wait(other.write("o", 90 * UNIT, "end")).unwrap();
    assert_eq!(pieces(&cluster, "o").len(), 2);
    cluster.0.lock().held = true;
    // The data arrives, then its epoch turns out to have passed.
    let write = writer.write("o", 40 * UNIT, pattern(3, UNIT as usize));
    let first = |queued: &Queued| queued.request.object.name() == "o.0000000000000000";
    let data = cluster.0.lock().queue.iter().position(|queued| !first(queued)).unwrap();
    cluster.0.lock().carry_out(data);
    assert_eq!(pieces(&cluster, "o").len(), 3);
    // The writer loads the object, takes its piece back, and only then writes again.
    while pieces(&cluster, "o").len() == 3 {
        assert!(!cluster.0.lock().queue.is_empty(), "a piece of the object before is left");
        cluster.0.lock().carry_out(0);
        cluster.run_tasks();
    }
    cluster.wait(write).unwrap();
    assert_eq!(cluster.wait(other.read("o", 40 * UNIT, UNIT)).unwrap(), pattern(3, UNIT as usize));
    cluster.wait(other.remove("o")).unwrap();
    assert!(cluster.names().is_empty());
}

#[test]
fn data_that_arrives_after_a_removal_goes_with_the_next_write() {
    let cluster = Cluster::default();
    let (writer, other) = (cluster.striper(0), cluster.striper(1));
    cluster.wait(writer.write("o", 0, pattern(1, 3 * UNIT as usize))).unwrap();
    cluster.0.lock().held = true;
    let write = writer.write("o", 4 * UNIT, pattern(3, UNIT as usize));
    while cluster.0.lock().objects["o.0000000000000000"].attrs[SIZE] != (5 * UNIT).to_string() {
        let first = |queued: &Queued| queued.request.object.name() == "o.0000000000000000";
        let at = cluster.0.lock().queue.iter().position(first).unwrap();
        cluster.0.lock().carry_out(at);
        cluster.run_tasks();
    }
    // The size held and the data is late: the object is removed before it arrives.
    let late: Vec<_> = std::mem::take(&mut cluster.0.lock().queue);
    assert_eq!(late.len(), 1);
    cluster.wait(other.remove("o")).unwrap();
    cluster.0.lock().queue = late;
    cluster.wait(write).unwrap();
    assert_eq!(pieces(&cluster, "o"), [2]);
    cluster.wait(writer.write("o", 0, "x")).unwrap();
    assert_eq!(pieces(&cluster, "o"), [0]);
}

/// Data that arrives in a piece that a removal or truncation has removed, and whose writer never returns.
#[test]
fn data_that_arrives_late_is_no_part_of_what_is_written_there_later() {
    for truncated in [false, true] {
        let cluster = Cluster::default();
        let (writer, other) = (cluster.striper(0), cluster.striper(1));
        cluster.wait(writer.write("o", 0, pattern(1, 3 * UNIT as usize))).unwrap();
        cluster.0.lock().held = true;
        let write = writer.write("o", 4 * UNIT, pattern(3, UNIT as usize));
        let mut late: Vec<_> = std::mem::take(&mut cluster.0.lock().queue);
        let first = |queued: &Queued| queued.request.object.name() == "o.0000000000000000";
        let size = late.remove(late.iter().position(first).unwrap());
        cluster.0.lock().queue.push(size);
        cluster.0.lock().carry_out(0);
        let gone = if truncated { other.truncate("o", 2 * UNIT) } else { other.remove("o") };
        cluster.wait(gone).unwrap();
        cluster.0.lock().queue = late;
        cluster.wait(write).unwrap();
        assert!(pieces(&cluster, "o").contains(&2));
        // A write to the same piece, behind the late data; then a truncation that cuts the piece.
        cluster.wait(other.write("o", 6 * UNIT + 1, "x")).unwrap();
        let hole = cluster.wait(other.read("o", 4 * UNIT, UNIT)).unwrap();
        assert_eq!(hole.iter().position(|byte| *byte != 0), None, "truncated: {truncated}");
        assert_eq!(cluster.wait(other.read("o", 6 * UNIT + 1, 9)).unwrap(), "x");
        cluster.wait(other.remove("o")).unwrap();
        assert!(cluster.names().is_empty());
    }
}

/// A truncation that cuts a piece with late data.
#[test]
fn a_truncation_takes_no_data_that_arrived_late_into_the_object() {
    let cluster = Cluster::default();
    let (writer, other) = (cluster.striper(0), cluster.striper(1));
    cluster.wait(writer.write("o", 0, pattern(1, 3 * UNIT as usize))).unwrap();
    cluster.0.lock().held = true;
    let write = writer.write("o", 4 * UNIT, pattern(3, UNIT as usize));
    let late: Vec<_> = std::mem::take(&mut cluster.0.lock().queue);
    cluster.wait(other.truncate("o", 2 * UNIT)).unwrap();
    cluster.wait(other.truncate("o", 8 * UNIT)).unwrap();
    let data = late.into_iter().filter(|queued| queued.request.object.name() == "o.0000000000000002");
    cluster.0.lock().queue = data.collect();
    cluster.0.lock().carry_out(0);
    drop(write);
    cluster.wait(other.truncate("o", 5 * UNIT)).unwrap();
    let hole = cluster.wait(other.read("o", 4 * UNIT, UNIT)).unwrap();
    assert_eq!(hole.iter().position(|byte| *byte != 0), None);
}

/// Data for a removed object arrives when an object of the same name has a hole in its place.
#[test]
fn a_read_shows_no_data_of_another_object_of_the_same_name() {
    let cluster = Cluster::default();
    let (writer, other, reader) = (cluster.striper(0), cluster.striper(1), cluster.striper(2));
    cluster.wait(writer.write("o", 0, pattern(1, 3 * UNIT as usize))).unwrap();
    cluster.0.lock().held = true;
    let write = writer.write("o", 4 * UNIT, pattern(3, UNIT as usize));
    let late: Vec<_> = std::mem::take(&mut cluster.0.lock().queue);
    cluster.wait(other.remove("o")).unwrap();
    cluster.wait(other.write("o", 0, "x")).unwrap();
    cluster.wait(other.truncate("o", 8 * UNIT)).unwrap();
    let data = late.into_iter().filter(|queued| queued.request.object.name() == "o.0000000000000002");
    cluster.0.lock().queue = data.collect();
    cluster.0.lock().carry_out(0);
    drop(write);
    assert_eq!(pieces(&cluster, "o"), [0, 2], "the late data has made a piece");
    for striper in [&reader, &other] {
        let hole = cluster.wait(striper.read("o", 4 * UNIT, UNIT)).unwrap();
        assert_eq!(hole.len() as u64, UNIT);
        assert_eq!(hole.iter().position(|byte| *byte != 0), None);
    }
    // Data of the object itself is read.
    cluster.wait(other.write("o", 4 * UNIT, "here")).unwrap();
    assert_eq!(cluster.wait(reader.read("o", 4 * UNIT, 4)).unwrap(), "here");
}

/// Requests time out. The writer fails, but remembers the pieces that it may have created.
#[test]
fn a_write_that_failed_leaves_no_piece_behind() {
    let cluster = Cluster::default();
    let (writer, other) = (cluster.striper(0), cluster.striper(1));
    cluster.wait(writer.write("o", 0, pattern(1, 3 * UNIT as usize))).unwrap();
    cluster.0.lock().held = true;
    let write = writer.write("o", 4 * UNIT, pattern(3, UNIT as usize));
    let mut sent: Vec<_> = std::mem::take(&mut cluster.0.lock().queue);
    let first = |queued: &Queued| queued.request.object.name() == "o.0000000000000000";
    let size = sent.remove(sent.iter().position(first).unwrap());
    size.time_out();
    // The data arrives when the object is removed.
    cluster.wait(other.remove("o")).unwrap();
    cluster.0.lock().queue = sent;
    assert_eq!(cluster.wait(write).unwrap_err().errno(), Errno::ETIMEDOUT);
    assert_eq!(pieces(&cluster, "o"), [2]);
    // The next write takes the piece back; that request times out too.
    cluster.0.lock().held = true;
    let write = writer.write("o", 0, "x");
    let stray = |queued: &Queued| queued.request.object.name() == "o.0000000000000002";
    let back = loop {
        cluster.run_tasks();
        let at = cluster.0.lock().queue.iter().position(stray);
        match at {
            Some(at) => break cluster.0.lock().queue.remove(at),
            None => cluster.0.lock().carry_out(0),
        }
    };
    back.time_out();
    assert_eq!(cluster.wait(write).unwrap_err().errno(), Errno::ETIMEDOUT);
    cluster.wait(writer.write("o", 0, "x")).unwrap();
    assert_eq!(pieces(&cluster, "o"), [0]);
}

/// A request that its writer gave up arrives after further writes and a removal.
#[test]
fn a_request_that_was_given_up_leaves_no_piece_behind() {
    let cluster = Cluster::default();
    let (writer, other) = (cluster.striper(0), cluster.striper(1));
    cluster.wait(writer.write("o", 0, pattern(1, 3 * UNIT as usize))).unwrap();
    cluster.0.lock().held = true;
    let write = writer.write("o", 4 * UNIT, pattern(3, UNIT as usize));
    let data = |queued: &Queued| queued.request.object.name() == "o.0000000000000002";
    let at = cluster.0.lock().queue.iter().position(data).unwrap();
    let late = cluster.0.lock().queue.remove(at).give_up();
    assert_eq!(cluster.wait(write).unwrap_err().errno(), Errno::ETIMEDOUT);
    // The epoch still holds, which says nothing about the request in flight.
    cluster.wait(writer.write("o", 0, "x")).unwrap();
    cluster.wait(other.remove("o")).unwrap();
    cluster.0.lock().queue.push(late);
    cluster.0.lock().carry_out(0);
    assert_eq!(pieces(&cluster, "o"), [2]);
    cluster.wait(writer.write("o", 0, "x")).unwrap();
    assert_eq!(pieces(&cluster, "o"), [0]);
}

#[test]
fn a_piece_made_behind_a_removal_under_way_is_taken_back() {
    let cluster = Cluster::default();
    let (writer, remover) = (cluster.striper(0), cluster.striper(1));
    cluster.wait(writer.write("o", 0, pattern(1, 3 * UNIT as usize))).unwrap();
    cluster.0.lock().held = true;
    let write = writer.write("o", 4 * UNIT, pattern(3, UNIT as usize));
    let late: Vec<_> = std::mem::take(&mut cluster.0.lock().queue);
    assert_eq!(late.len(), 2, "data and size");
    // All pieces are removed except the first, which is about to be removed.
    let removal = remover.remove("o");
    while pieces(&cluster, "o").len() > 1 {
        cluster.0.lock().carry_out(0);
        cluster.run_tasks();
    }
    cluster.run_tasks();
    let end = std::mem::take(&mut cluster.0.lock().queue);
    cluster.0.lock().queue = late;
    while pieces(&cluster, "o").len() == 1 {
        cluster.0.lock().carry_out(0);
    }
    // The writer learns that the epoch has passed while the removal makes no progress. Its next request removes its piece.
    while pieces(&cluster, "o").len() > 1 {
        assert!(!cluster.0.lock().queue.is_empty(), "nobody would find the piece");
        cluster.0.lock().carry_out(0);
        cluster.run_tasks();
    }
    cluster.0.lock().queue.extend(end);
    cluster.wait(write).unwrap();
    cluster.wait(removal).unwrap();
    let _ = cluster.wait(remover.remove("o"));
    assert!(cluster.names().is_empty());
}

#[test]
fn a_read_never_takes_what_a_removal_left_for_a_hole() {
    let cluster = Cluster::default();
    let (reader, remover) = (cluster.striper(0), cluster.striper(1));
    let data = pattern(1, 4 * UNIT as usize);
    cluster.wait(remover.write("o", 0, data.clone())).unwrap();
    assert_eq!(cluster.wait(reader.read("o", 0, 4 * UNIT)).unwrap(), data);
    cluster.0.lock().held = true;
    let read = reader.read("o", 0, 4 * UNIT);
    let mut late: Vec<_> = std::mem::take(&mut cluster.0.lock().queue);
    // The first piece answers, then all pieces are removed.
    cluster.0.lock().queue.push(late.remove(0));
    cluster.0.lock().carry_out(0);
    cluster.wait(remover.remove("o")).unwrap();
    cluster.0.lock().held = true;
    cluster.0.lock().queue = late;
    assert_eq!(cluster.wait(read).unwrap_err().errno(), Errno::ENOENT);
}

/// An append that has claimed its range and whose data is late, while another client truncates the object.
#[test]
fn a_late_append_puts_nothing_behind_a_cut() {
    // Into a piece that exists already, and into a new one, which the truncation removes or cuts.
    let into_last_unit = 3 * UNIT + 3 * UNIT / 4;
    for (units, cut) in [(7, 3 * UNIT + 10), (7, into_last_unit), (8, 3 * UNIT + 10), (8, 4 * UNIT + 10)] {
        let cluster = Cluster::default();
        let (writer, other) = (cluster.striper(0), cluster.striper(1));
        let size = units * UNIT / 2;
        cluster.wait(writer.write("o", 0, pattern(1, size as usize))).unwrap();
        cluster.0.lock().held = true;
        let append = writer.append("o", pattern(2, UNIT as usize / 2));
        let first = |queued: &Queued| queued.request.object.name() == "o.0000000000000000";
        while cluster.0.lock().queue.iter().all(first) {
            cluster.0.lock().carry_out(0);
            cluster.run_tasks();
        }
        let late: Vec<_> = std::mem::take(&mut cluster.0.lock().queue);
        cluster.wait(other.truncate("o", cut)).unwrap();
        cluster.0.lock().queue = late;
        // The truncation left a part of the range, or removed it as it would have removed the data.
        let wanted = if cut > size { Err(Errno::ECANCELED) } else { Ok(()) };
        assert_eq!(cluster.wait(append).map_err(|error| error.errno()), wanted, "{units}, cut at {cut}");
        cluster.wait(other.write("o", 8 * UNIT, "end")).unwrap();
        let hole = cluster.wait(other.read("o", cut, 8 * UNIT - cut)).unwrap();
        assert_eq!(hole.iter().position(|byte| *byte != 0), None, "{units} half units before, cut at {cut}");
        cluster.wait(other.remove("o")).unwrap();
        assert!(cluster.names().is_empty());
    }
}

/// A client begins to truncate an object, and its cuts of the pieces arrive after others have completed the truncation.
#[test]
fn a_cut_that_was_held_up_leaves_no_piece_of_an_object_that_is_gone() {
    for remade in [false, true] {
        let cluster = Cluster::default();
        let (slow, other) = (cluster.striper(0), cluster.striper(1));
        cluster.wait(other.write("o", 0, pattern(1, 8 * UNIT as usize))).unwrap();
        cluster.0.lock().held = true;
        let truncation = slow.truncate("o", 5 * UNIT);
        let first = |queued: &Queued| queued.request.object.name() == "o.0000000000000000";
        while cluster.0.lock().queue.iter().all(first) {
            cluster.0.lock().carry_out(0);
            cluster.run_tasks();
        }
        let late: Vec<_> = std::mem::take(&mut cluster.0.lock().queue);
        cluster.wait(other.remove("o")).unwrap();
        if remade {
            cluster.wait(other.write("o", 0, "small")).unwrap();
        }
        cluster.0.lock().queue = late;
        cluster.wait(truncation).unwrap();
        assert_eq!(pieces(&cluster, "o"), if remade { vec![0] } else { vec![] });
    }
}

#[test]
fn what_is_no_first_piece_is_refused_at_once() {
    let cluster = Cluster::default();
    let striper = cluster.striper(0);
    cluster.0.lock().objects.insert("plain.0000000000000000".into(), Stored::default());
    let before = cluster.0.lock().executed;
    for outcome in [
        cluster.wait(striper.write("plain", 0, "x")),
        cluster.wait(striper.append("plain", "x")),
        cluster.wait(striper.write_full("plain", "x")),
        cluster.wait(striper.truncate("plain", 0)),
        cluster.wait(striper.remove("plain")),
        cluster.wait(striper.read("plain", 0, 1)).map(drop),
    ] {
        assert_eq!(outcome.unwrap_err().errno(), Errno::ENOENT);
    }
    assert!(cluster.0.lock().executed - before < 20);
}

/// Data in a range by which a truncation had extended the object is removed by the next truncation.
#[test]
fn data_in_what_a_truncation_grew_does_not_come_back() {
    let cluster = Cluster::default();
    let (grower, writer, cutter) = (cluster.striper(0), cluster.striper(1), cluster.striper(2));
    cluster.wait(grower.write("o", 0, "begin")).unwrap();
    cluster.wait(grower.truncate("o", 6 * UNIT)).unwrap();
    cluster.wait(writer.write("o", 3 * UNIT, pattern(5, 100))).unwrap();
    cluster.wait(cutter.truncate("o", 0)).unwrap();
    cluster.wait(cutter.truncate("o", 6 * UNIT)).unwrap();
    let read = cluster.wait(writer.read("o", 3 * UNIT, 100)).unwrap();
    assert!(read.iter().all(|byte| *byte == 0));
    cluster.wait(cutter.remove("o")).unwrap();
    assert!(cluster.names().is_empty());
}
