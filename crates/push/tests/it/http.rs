//! HTTP endpoints against a sink.

use crate::events::{
    PATIENT, endpoint, endpoints, event, limits, open, outage, read, read_all, refusal, try_open,
};
use crate::servers::sink::{Answer, Sink};
use nacre_notify::push::PushFailure;
use nacre_push::{ClientLimits, EndpointClients};
use nacre_topics::endpoint::EndpointPolicy;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

#[tokio::test]
async fn requests_have_the_event_and_headers_over_a_connection_that_is_kept() {
    let sink = Sink::start();
    let clients = endpoints(None, PATIENT);
    let url = sink.url().replace("http://", "http://alice:se%3Acret@") + "/hook?token=1";
    let connection =
        open(&clients, &endpoint("t", &[("push-endpoint", &url), ("cloudevents", "true")]), None);
    for number in 1..=3 {
        assert_eq!(connection.push(vec![event("cat", number)]).await, [Ok(())]);
    }
    let received = sink.received();
    assert_eq!(received.len(), 3);
    assert_eq!(sink.connections(), 1);
    let first = &received[0];
    assert_eq!((first.method.as_str(), first.target.as_str()), ("POST", "/hook?token=1"));
    assert_eq!(read(&first.body), ("cat".to_owned(), 1));
    for (name, value) in [
        ("authorization", "Basic YWxpY2U6c2U6Y3JldA=="),
        ("content-type", "application/json"),
        ("idempotency-key", "1574430455.124724.change1.0"),
        ("ce-specversion", "1.0"),
        ("ce-type", "com.amazonaws.ObjectCreated:Put"),
        ("ce-subject", "cat"),
        ("host", &format!("127.0.0.1:{}", sink.port())),
    ] {
        assert_eq!(first.header(name), value, "{name}");
    }
}

#[tokio::test]
async fn answers_decide_whether_an_event_was_refused() {
    let sink = Sink::start();
    let clients = endpoints(None, PATIENT);
    let connection = open(&clients, &endpoint("t", &[("push-endpoint", &sink.url())]), None);
    for (status, is_refused) in [
        (400, true),
        (403, true),
        (404, true),
        (408, false),
        (429, false),
        (500, false),
        (503, false),
        (302, false),
    ] {
        let elsewhere = format!("{}/elsewhere", sink.url());
        sink.answer(move |_| Answer {
            headers: vec![("location", elsewhere.clone())],
            ..Answer::status(status)
        });
        let outcomes = connection.push(vec![event("cat", 1)]).await;
        let reason = if is_refused { refusal(&outcomes) } else { outage(&outcomes) };
        assert!(reason.contains(&status.to_string()), "{reason}");
    }
    sink.answer(|_| Answer::status(204));
    assert_eq!(connection.push(vec![event("cat", 2)]).await, [Ok(())]);
    assert!(sink.received().iter().all(|received| received.target == "/"), "a redirect was followed");
}

#[tokio::test]
async fn a_refused_batch_is_split_until_bad_events_are_alone() {
    let sink = Sink::start();
    sink.answer(|received| {
        let has_bad = read_all(&received.body).iter().any(|(key, _)| key == "bad");
        Answer::status(if has_bad { 422 } else { 200 })
    });
    let clients = endpoints(None, PATIENT);
    let attributes = [("push-endpoint", &*sink.url()), ("batch-size", "8")];
    let connection = open(&clients, &endpoint("t", &attributes), None);
    let keys = ["a", "b", "bad", "c", "d", "e", "f", "g", "h"];
    let messages = keys.iter().zip(1..).map(|(key, number)| event(key, number)).collect();
    let outcomes = connection.push(messages).await;
    for (key, outcome) in keys.iter().zip(&outcomes) {
        assert_eq!(matches!(outcome, Err(PushFailure::Refused(_))), *key == "bad", "{key}: {outcome:?}");
        assert_eq!(outcome.is_ok(), *key != "bad", "{key}: {outcome:?}");
    }
    let received = sink.received();
    assert!(received.iter().all(|received| read_all(&received.body).len() <= 8));
    let whole = received.iter().find(|received| read_all(&received.body).len() == 8).unwrap();
    assert_eq!(whole.header("idempotency-key"), "1574430455.124724.change1.0-1574430455.124724.change8.0-8");
}

#[tokio::test]
async fn a_keys_events_wait_for_each_other_and_for_none_that_was_refused() {
    let sink = Sink::start();
    // Later events are answered sooner: only waiting keeps the order.
    sink.answer(|received| {
        let (key, number) = read(&received.body);
        let delay = Duration::from_millis(100 / number);
        Answer { delay, ..Answer::status(if key == "bad" { 400 } else { 200 }) }
    });
    let clients = endpoints(None, PATIENT);
    let connection = open(&clients, &endpoint("t", &[("push-endpoint", &sink.url())]), None);
    let messages = [("cat", 1), ("dog", 1), ("cat", 2), ("bad", 1), ("cat", 3), ("bad", 2)];
    let outcomes = connection.push(messages.iter().map(|(key, number)| event(key, *number)).collect()).await;
    for ((key, number), outcome) in messages.iter().zip(&outcomes) {
        assert_eq!(outcome.is_ok(), *key != "bad", "{key} {number}: {outcome:?}");
    }
    let received: Vec<_> = sink.received().iter().map(|received| read(&received.body)).collect();
    let numbers = |key: &str| received.iter().filter(|(k, _)| k == key).map(|(_, n)| *n).collect::<Vec<_>>();
    assert_eq!((numbers("cat"), numbers("dog"), numbers("bad")), (vec![1, 2, 3], vec![1], vec![1]));
}

#[tokio::test]
async fn an_endpoint_that_does_not_answer_ends_the_push_in_time_and_gets_nothing_more() {
    let sink = Sink::start();
    sink.answer(|_| Answer { delay: Duration::from_secs(3600), ..Answer::status(200) });
    let clients = endpoints(None, Duration::from_millis(300));
    let connection = open(&clients, &endpoint("t", &[("push-endpoint", &sink.url())]), None);
    let outcomes = connection.push(vec![event("cat", 1), event("cat", 2)]).await;
    assert!(
        outcomes.iter().all(|outcome| matches!(outcome, Err(PushFailure::Unavailable(_)))),
        "{outcomes:?}"
    );

    let port = sink.port();
    drop(sink);
    let refused = connection.push(vec![event("cat", 1)]).await;
    assert!(outage(&refused).contains("refused"), "{refused:?}");
    // It comes back at the same address: the next push connects.
    let sink = Sink::start_at(port);
    assert_eq!(connection.push(vec![event("cat", 1)]).await, [Ok(())]);
    assert_eq!(sink.received().len(), 1);
}

#[tokio::test]
async fn connections_and_bodies_are_bounded() {
    let sink = Sink::start();
    sink.answer(|_| Answer { delay: Duration::from_millis(20), ..Answer::status(200) });
    let limits = ClientLimits { http_connections: 3, http_first_connections: 2, ..limits(PATIENT) };
    let clients = EndpointClients::new(EndpointPolicy::default(), limits);
    let endpoint = endpoint("t", &[("push-endpoint", &sink.url())]);
    // Two shards of a topic.
    let (first, second) = (open(&clients, &endpoint, None), open(&clients, &endpoint, None));
    let messages = |prefix: &str| (0..20).map(|at| event(&format!("{prefix}{at}"), 1)).collect();
    let (a, b) = tokio::join!(first.push(messages("a")), second.push(messages("b")));
    assert!(a.iter().chain(&b).all(Result::is_ok), "{a:?} {b:?}");
    let opened = sink.connections();
    assert!((1..=20).contains(&opened), "{opened} connections for 40 requests");

    // A body without an end worth waiting for: delivered, and the connection is not used again.
    sink.answer(|_| Answer { body: vec![b'x'; 8 << 20].into(), ..Answer::status(200) });
    for number in 1..=2 {
        assert_eq!(first.push(vec![event("cat", number)]).await, [Ok(())]);
    }
    let before = sink.connections();
    sink.answer(|_| Answer::status(200));
    assert_eq!(first.push(vec![event("cat", 3)]).await, [Ok(())]);
    assert!(sink.connections() >= before);
}

#[tokio::test]
async fn an_endpoint_that_answers_slowly_gets_further_connections() {
    const SLOW: Duration = Duration::from_secs(2);
    let sink = Sink::start();
    let times = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&times);
    sink.answer(move |_| {
        noted.lock().unwrap().push(Instant::now());
        Answer { delay: SLOW, ..Answer::status(200) }
    });
    let limits = ClientLimits { http_connections: 3, http_first_connections: 1, ..limits(PATIENT) };
    let clients = EndpointClients::new(EndpointPolicy::default(), limits);
    let connection = open(&clients, &endpoint("t", &[("push-endpoint", &sink.url())]), None);
    let outcomes = connection.push((0..4).map(|at| event(&format!("k{at}"), 1)).collect()).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    let times = times.lock().unwrap();
    // Three do not wait for the first answer, the fourth does.
    assert!(times[2] - times[0] < SLOW && times[3] - times[0] >= SLOW, "{times:?}");
}

#[tokio::test]
async fn certificates_are_verified_against_the_file_unless_told_otherwise() {
    let sink = Sink::start_tls();
    let ca = sink.ca();
    let clients = endpoints(Some(&ca), PATIENT);
    let (url, path) = (sink.url(), ca.display().to_string());
    let cases: [(&[(&str, &str)], bool); 3] =
        [(&[("ca-location", &path)], true), (&[("verify-ssl", "false")], true), (&[], false)];
    for (attributes, is_taken) in cases {
        let attributes = [&[("push-endpoint", url.as_str())], attributes].concat();
        let outcomes = open(&clients, &endpoint("t", &attributes), None).push(vec![event("cat", 1)]).await;
        if is_taken {
            assert_eq!(outcomes, [Ok(())], "{attributes:?}");
        } else {
            assert!(outage(&outcomes).contains("certificate"), "{outcomes:?}");
        }
    }
    // The name counts too.
    let by_address = url.replace("localhost", "[::ffff:127.0.0.1]");
    let attributes = [("push-endpoint", by_address.as_str()), ("ca-location", &path)];
    let outcomes = open(&clients, &endpoint("t", &attributes), None).push(vec![event("cat", 1)]).await;
    assert!(outage(&outcomes).contains("certificate"), "{outcomes:?}");
    assert_eq!(sink.received().len(), 2);
}

#[tokio::test]
async fn ca_files_that_are_missing_elsewhere_or_no_certificates_are_named_at_once() {
    let sink = Sink::start_tls();
    let folder = sink.ca().parent().unwrap().to_owned();
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::copy(sink.ca(), elsewhere.path().join("ca.crt")).unwrap();
    std::os::unix::fs::symlink(elsewhere.path().join("ca.crt"), folder.join("link.crt")).unwrap();
    std::fs::write(folder.join("text"), "no certificate").unwrap();
    let clients = endpoints(Some(&sink.ca()), PATIENT);
    for (name, reason) in [
        ("missing.crt", "No such file"),
        ("link.crt", "rgw_notification_ca_folder"),
        ("text", "no certificate in it"),
        ("server.key", "no certificate in it"),
    ] {
        let path = folder.join(name).display().to_string();
        for scheme in ["https", "amqps"] {
            let url = format!("{scheme}://localhost:{}", sink.port());
            let mut attributes = vec![("push-endpoint", url.as_str()), ("ca-location", &path)];
            attributes.extend((scheme == "amqps").then_some(("amqp-exchange", "e")));
            let failure = try_open(&clients, &endpoint("t", &attributes), None).err().unwrap();
            assert!(
                matches!(&failure, PushFailure::Unavailable(text) if text.contains(reason)),
                "{name}: {failure}"
            );
        }
        let kafka = [("push-endpoint", "kafka://localhost"), ("use-ssl", "true"), ("ca-location", &*path)];
        let failure = try_open(&clients, &endpoint("t", &kafka), None).err().unwrap();
        assert!(failure.to_string().contains(reason), "{name}: {failure}");
    }
}

#[tokio::test]
async fn addresses_are_checked_at_each_connection_by_the_policy_of_that_time() {
    let sink = Sink::start();
    let clients = endpoints(None, PATIENT);
    let url = format!("http://localhost:{}", sink.port());
    let connection = open(&clients, &endpoint("t", &[("push-endpoint", &url)]), None);
    let strict = EndpointPolicy { listens_beyond_loopback: true, ..EndpointPolicy::default() };
    clients.set_policy(strict);
    let outcomes = connection.push(vec![event("cat", 1)]).await;
    assert!(outage(&outcomes).contains("rgw_allow_notification_local_endpoints"), "{outcomes:?}");
    assert_eq!(sink.connections(), 0);
    clients.set_policy(EndpointPolicy::default());
    assert_eq!(connection.push(vec![event("cat", 1)]).await, [Ok(())]);
}

#[tokio::test]
async fn failures_tell_neither_path_nor_password() {
    let clients = endpoints(None, Duration::from_secs(2));
    let url = "http://alice:hunter2@127.0.0.1:1/secret-path?token=secret-token";
    let connection = open(&clients, &endpoint("t", &[("push-endpoint", url)]), None);
    let outcomes = connection.push(vec![event("cat", 1)]).await;
    let text = outage(&outcomes);
    assert!(text.contains("127.0.0.1:1"), "{text}");
    assert!(!text.contains("hunter2") && !text.contains("secret"), "{text}");
}
