use super::*;
use crate::server::RequestInfo;

const LIMITS: ConnectionLimits = ConnectionLimits {
    most: 4,
    per_address: 0,
    handshake: Duration::from_millis(200),
    head: Duration::from_millis(200),
    idle: Duration::from_millis(400),
    stalled_after: Duration::from_millis(300),
    min_rate: 1000,
};

fn connections(limits: ConnectionLimits) -> Arc<Connections> {
    Arc::new(Connections::new(limits, Arc::default()))
}

fn ip(last: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, last])
}

fn is_given_up(place: &ConnectionPermit) -> bool {
    place.connection().phase().0 == Phase::Closing
}

async fn admit(connections: &Arc<Connections>, last: u8) -> ConnectionPermit {
    let place = connections.admit(ip(last), false).await.unwrap();
    // Ages have a resolution of milliseconds.
    tokio::time::sleep(Duration::from_millis(2)).await;
    place
}

/// Drops the connections that were told to close, as their tasks do.
fn end(places: &mut Vec<ConnectionPermit>) -> usize {
    let before = places.len();
    places.retain(|place| !is_given_up(place));
    before - places.len()
}

#[tokio::test]
async fn the_oldest_idle_connection_of_the_busiest_address_makes_way() {
    let all = connections(LIMITS);
    let lone = admit(&all, 1).await;
    let mut many = vec![admit(&all, 2).await, admit(&all, 2).await, admit(&all, 2).await];
    assert!(many[0].connection().begin());
    let waiting = tokio::spawn({
        let all = Arc::clone(&all);
        async move { all.admit(ip(3), false).await.unwrap() }
    });
    while !many.iter().any(is_given_up) {
        tokio::task::yield_now().await;
    }
    // The place becomes free only when the socket is closed.
    assert!(!waiting.is_finished());
    assert!(is_given_up(&many[1]) && !is_given_up(&many[0]) && !is_given_up(&lone));
    assert!(!many[1].connection().begin(), "a request began on a connection that is closed");
    assert_eq!(end(&mut many), 1);
    let newest = waiting.await.unwrap();
    assert!(!is_given_up(&newest) && !is_given_up(&lone));
}

#[tokio::test]
async fn silent_connections_from_many_addresses_make_way_the_oldest_first() {
    let all = connections(LIMITS);
    let mut places = Vec::new();
    for last in 1..=4 {
        places.push(admit(&all, last).await);
    }
    for last in 101..=120 {
        let waiting = tokio::spawn({
            let all = Arc::clone(&all);
            async move { all.admit(ip(last), false).await.unwrap() }
        });
        while !is_given_up(&places[0]) {
            tokio::task::yield_now().await;
        }
        assert_eq!(end(&mut places), 1, "only the oldest is closed");
        places.push(waiting.await.unwrap());
    }
    assert_eq!(places.len(), LIMITS.most);
}

#[tokio::test]
async fn busy_connections_are_closed_only_when_they_stall() {
    let all = connections(ConnectionLimits { most: 2, ..LIMITS });
    let (stranger, known) = (admit(&all, 1).await, admit(&all, 1).await);
    for place in [&stranger, &known] {
        assert!(place.connection().begin());
    }
    let info = Arc::new(RequestInfo::default());
    info.set_operation("PutObject", "alice");
    known.connection().set_request(info);
    assert!(!all.evict_idle() && !all.evict_stalled());
    known.connection().begin_body_wait();
    stranger.connection().begin_answer_wait();
    // A known user's request may stall for some time, an unknown one's may not.
    assert!(all.evict_stalled());
    assert!(is_given_up(&stranger) && !is_given_up(&known));
    assert!(!all.evict_stalled());
    tokio::time::sleep(LIMITS.stalled_after * 2).await;
    known.connection().received();
    assert!(!all.evict_stalled(), "a byte came");
    known.connection().begin_body_wait();
    tokio::time::sleep(LIMITS.stalled_after * 2).await;
    assert!(all.evict_stalled() && is_given_up(&known));
}

#[tokio::test]
async fn an_address_has_its_bound() {
    let all = connections(ConnectionLimits { per_address: 2, most: 100, ..LIMITS });
    let mut places = Vec::new();
    for _ in 0..5 {
        places.push(admit(&all, 1).await);
        places.push(admit(&all, 2).await);
    }
    assert_eq!(end(&mut places), 6);
    for place in &places {
        assert!(place.connection().begin());
    }
    assert!(all.admit(ip(1), false).await.is_none(), "all of them are busy");
    assert!(all.admit(ip(3), false).await.is_some());
    // One host can use a whole IPv6 network.
    let six = |text: &str| text.parse::<IpAddr>().unwrap();
    assert_eq!(counted(six("2001:db8::1")), counted(six("2001:db8::ffff:1:2:3")));
    assert_ne!(counted(six("2001:db8::1")), counted(six("2001:db8:0:1::1")));
    assert_eq!(counted(six("::ffff:192.0.2.1")), ip(1));
}

#[tokio::test]
async fn the_oldest_idle_connection_of_an_address_makes_way_at_its_bound() {
    let all = connections(ConnectionLimits { per_address: 3, most: 100, ..LIMITS });
    let others = [admit(&all, 2).await, admit(&all, 2).await];
    let mut places = [admit(&all, 1).await, admit(&all, 1).await, admit(&all, 1).await];
    // The oldest connection is busy. The second one began to wait for its next request after the third one began to wait
    // for its first.
    assert!(places[0].connection().begin() && places[1].connection().begin());
    places[1].connection().answered();
    places[1].connection().flushed();
    for (made_way, stays) in [(2, 1), (1, 2)] {
        let newest = admit(&all, 1).await;
        assert!(is_given_up(&places[made_way]) && !is_given_up(&places[stays]));
        places[made_way] = newest;
    }
    assert!(!is_given_up(&places[0]) && !others.iter().any(is_given_up));
}

#[tokio::test]
async fn a_request_that_begins_while_its_connection_is_chosen_is_not_cut() {
    let all = connections(ConnectionLimits { most: 2, ..LIMITS });
    let (first, second) = (admit(&all, 1).await, admit(&all, 1).await);
    let seen = first.connection().phase();
    // As another thread would.
    assert!(first.connection().begin());
    {
        let mut table = all.table.lock();
        assert!(!all.close(&mut table, first.connection(), seen));
        assert_eq!(table.active, 2);
    }
    assert!(!is_given_up(&first));
    assert!(all.evict_idle() && is_given_up(&second) && !all.evict_idle());
    let seen = second.connection().phase();
    assert!(!all.close(&mut all.table.lock(), second.connection(), seen), "it is closed once");
    assert_eq!(all.table.lock().active, 1);
}

#[tokio::test]
async fn a_connection_whose_task_panics_or_is_cancelled_leaves_nothing() {
    let metrics = Arc::new(Metrics::default());
    let all = Arc::new(Connections::new(
        ConnectionLimits { most: 1, per_address: 1, ..LIMITS },
        Arc::clone(&metrics),
    ));
    for panics in [true, false] {
        // The previous connection has released its place.
        let place = all.admit(ip(1), false).await.unwrap();
        assert!(place.connection().begin());
        let task = tokio::spawn(async move {
            let _place = place;
            if panics {
                std::panic::resume_unwind(Box::new("a connection"));
            }
            std::future::pending::<()>().await;
        });
        if !panics {
            task.abort();
        }
        assert_eq!(task.await.unwrap_err().is_panic(), panics);
        let table = all.table.lock();
        assert_eq!((table.by_id.len(), table.of_address.len(), table.active), (0, 0, 0));
        let mut out = nacre_common::metrics::Exposition::default();
        metrics.expose("rgw.a", &mut out);
        assert!(out.render().contains("ceph_rgw_connections_open{ceph_daemon=\"rgw.a\"} 0\n"));
    }
}

#[tokio::test]
async fn every_phase_has_its_time() {
    let all = connections(ConnectionLimits { most: 10, ..LIMITS });
    let begin = Instant::now();
    let handshake = all.admit(ip(1), true).await.unwrap();
    let silent = all.admit(ip(1), false).await.unwrap();
    let [head, between, working, unread, trickle, steady] =
        futures::future::join_all([0; 6].map(|_| async { all.admit(ip(1), false).await.unwrap() }))
            .await
            .try_into()
            .unwrap();
    head.connection().received();
    for place in [&between, &working, &unread, &trickle, &steady] {
        assert!(place.connection().begin());
    }
    between.connection().answered();
    between.connection().flushed();
    unread.connection().begin_answer_wait();
    while begin.elapsed() < LIMITS.idle * 3 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        // One byte at a time is too slow.
        for (place, bytes) in [(&trickle, 1), (&steady, 100_000)] {
            place.connection().body_progress(bytes);
            place.connection().begin_body_wait();
        }
        assert!(!steady.connection().body_time_left().is_zero());
        all.close_timed_out();
        let waited = begin.elapsed();
        if waited < LIMITS.head {
            assert!(![&handshake, &silent, &head].into_iter().any(is_given_up));
        }
        if waited < LIMITS.idle {
            assert!(![&between, &unread, &trickle].into_iter().any(is_given_up));
        }
    }
    assert!([&handshake, &silent, &head, &between, &unread].into_iter().all(is_given_up));
    assert!(trickle.connection().body_time_left().is_zero());
    assert!(![&working, &steady].into_iter().any(is_given_up));
}
