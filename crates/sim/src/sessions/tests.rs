//! Two processes with sockets that deliver everything at once.

use super::*;
use crate::scenario::Scenario;
use nacre_types::Epoch;
use nacre_types::msg::MonSubscribe;

const CLIENT: Node = Node::Client(0);
const SERVER: Node = Node::Osd(0);
const MESSAGE: MonSubscribe = MonSubscribe { next_epoch: Epoch(7), config: true };

struct Pair {
    client: Sessions,
    server: Sessions,
    conn: u64,
}

impl Pair {
    /// A client's lossy connection that is up.
    fn new() -> Pair {
        let settings = SessionSettings { full_one_in: 0, ..Scenario::of(1).client_sessions(None) };
        let [mut client, server] = [1, 2].map(|nonce| Sessions::new(settings, nonce, 1));
        let conn = client.connect(0, (SERVER, Policy::Lossy), 0, Some(ClientId(5)));
        let mut pair = Pair { client, server, conn };
        pair.settle(0);
        assert!(matches!(pair.server.next_event(0), Some(Event::Accepted(_, Some(ClientId(5)), _))));
        assert!(matches!(pair.client.next_event(0), Some(Event::Connected(up)) if up == conn));
        pair
    }

    /// Delivers what both send until nothing is in transit.
    fn settle(&mut self, now: Nanos) {
        loop {
            self.client.flush();
            self.server.flush();
            let sent = |sessions: &mut Sessions| -> Vec<(u64, SocketEvent)> {
                let events = sessions.take().filter_map(|out| match out {
                    SessionOutput::Send(_, number, event) => Some((number, event)),
                    _ => None,
                });
                events.collect()
            };
            let (up, down) = (sent(&mut self.client), sent(&mut self.server));
            if up.is_empty() && down.is_empty() {
                return;
            }
            up.into_iter().for_each(|(number, event)| self.server.on_socket(now, CLIENT, number, event));
            down.into_iter().for_each(|(number, event)| self.client.on_socket(now, SERVER, number, event));
        }
    }
}

#[test]
fn a_message_passes_a_lossy_connection() {
    let mut pair = Pair::new();
    pair.client.send(pair.conn, EncodedMessage::new(&MESSAGE)).unwrap();
    pair.settle(1);
    let Some(Event::Message(delivery)) = pair.server.next_event(1) else { panic!("no message") };
    assert_eq!((delivery.from, delivery.decode::<MonSubscribe>().unwrap()), (CLIENT, MESSAGE));
    let id = delivery.id;
    pair.server.send(id, EncodedMessage::new(&MESSAGE)).unwrap();
    pair.settle(2);
    assert!(matches!(pair.client.next_event(2), Some(Event::Message(answer)) if answer.id == pair.conn));
}

#[test]
fn what_came_before_the_end_is_handled_and_then_the_owner_hears_of_it() {
    let mut pair = Pair::new();
    pair.client.send(pair.conn, EncodedMessage::new(&MESSAGE)).unwrap();
    pair.client.flush();
    pair.client.forget(pair.conn);
    pair.settle(1);
    assert!(matches!(pair.server.next_event(1), Some(Event::Message(_))));
    assert!(matches!(pair.server.next_event(1), Some(Event::Reset { peer: CLIENT, is_lost: false, .. })));
    assert!(pair.client.next_event(1).is_none(), "it ended the connection itself");
    assert_eq!(pair.server.next_wake(), None);
}

#[test]
fn who_connects_hears_that_no_process_listens() {
    let settings = Scenario::of(1).client_sessions(None);
    let ends = |event: SocketEvent| {
        let mut sessions = Sessions::new(settings, 1, 1);
        sessions.connect(0, (SERVER, Policy::Lossy), 0, None);
        let connects = sessions.take().find_map(|out| match out {
            SessionOutput::Send(_, number, SocketEvent::Connect(..)) => Some(number),
            _ => None,
        });
        sessions.on_socket(1, SERVER, connects.unwrap(), event);
        match sessions.next_event(1) {
            Some(Event::Reset { is_lost: true, cause, .. }) => cause,
            _ => panic!("the connection goes on"),
        }
    };
    assert_eq!(ends(SocketEvent::Refused), ResetCause::Refused);
    assert_eq!(ends(SocketEvent::Closed), ResetCause::Other);
}

#[test]
fn an_unused_connection_ends() {
    let mut pair = Pair::new();
    let mut heard = Vec::new();
    let mut now = 0;
    while let Some(at) = pair.client.next_wake() {
        now = at;
        pair.client.on_time(now);
        pair.server.on_time(now);
        pair.settle(now);
        while pair.server.next_event(now).is_some() {}
        heard.extend(std::iter::from_fn(|| pair.client.next_event(now)));
        assert!(now <= 2 * IDLE_TIMEOUT);
    }
    assert!(now > IDLE_TIMEOUT, "it was not silence that ended it");
    assert!(matches!(heard[..], [Event::Reset { is_lost: true, .. }]));
}
