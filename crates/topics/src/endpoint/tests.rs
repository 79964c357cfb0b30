use super::*;

fn made(list: &[(&str, &str)]) -> Result<Endpoint> {
    let pairs: Vec<_> = list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let attributes = Attributes::from_pairs(&pairs)?;
    Ok(attributes.endpoint("fishtopic")?.expect("the list has a push-endpoint"))
}

fn server(host: &str, port: u16) -> HostPort {
    HostPort { host: host.to_owned(), port }
}

fn kafka(list: &[(&str, &str)]) -> KafkaEndpoint {
    match made(list).unwrap() {
        Endpoint::Kafka(kafka) => kafka,
        other => panic!("{other:?}"),
    }
}

fn http(list: &[(&str, &str)]) -> HttpEndpoint {
    match made(list).unwrap() {
        Endpoint::Http(http) => http,
        other => panic!("{other:?}"),
    }
}

fn amqp(uri: &str) -> Result<AmqpEndpoint> {
    match made(&[("push-endpoint", uri), ("amqp-exchange", "ex1")])? {
        Endpoint::Amqp(amqp) => Ok(amqp),
        other => panic!("{other:?}"),
    }
}

/// `"push-endpoint": "kafka://", "persistent": "true"`, as in the document about sharded queues.
#[test]
fn kafka_without_a_host_is_the_broker_on_this_host() {
    let endpoint = kafka(&[("push-endpoint", "kafka://"), ("persistent", "true")]);
    assert_eq!(endpoint.brokers, [server("localhost", 9092)]);
    assert_eq!((endpoint.topic.as_str(), endpoint.ack_level), ("fishtopic", KafkaAckLevel::Broker));
    assert_eq!((endpoint.tls, endpoint.mechanism, endpoint.credentials), (false, None, None));
    let listed = kafka(&[("push-endpoint", "kafka://"), ("kafka-brokers", "k1, k2:9093,k1:9092")]);
    assert_eq!(listed.brokers, [server("k1", 9092), server("k2", 9093)]);
}

#[test]
fn brokers_of_the_uri_and_of_the_attribute_go_together() {
    let endpoint = kafka(&[
        ("push-endpoint", "kafka://user:p%40ss@k1:9093,[::1]/"),
        ("kafka-brokers", "k2,k1:9093"),
        ("use-ssl", "true"),
        ("verify-ssl", "false"),
        ("ca-location", "/ca.pem"),
        ("mechanism", "SCRAM-SHA-256"),
        ("kafka-ack-level", "none"),
    ]);
    assert_eq!(endpoint.brokers, [server("k1", 9093), server("::1", 9092), server("k2", 9092)]);
    let credentials = endpoint.credentials.unwrap();
    assert_eq!((credentials.user.as_str(), credentials.password.reveal()), ("user", "p@ss"));
    assert_eq!(
        (endpoint.tls, endpoint.verify_ssl, endpoint.ca_location.as_deref()),
        (true, false, Some("/ca.pem"))
    );
    assert_eq!((endpoint.mechanism, endpoint.ack_level), (Some(Mechanism::ScramSha256), KafkaAckLevel::None));
}

#[test]
fn credentials_of_attributes_count_with_both_halves_and_before_those_of_the_uri() {
    let uri = ("push-endpoint", "kafka://u:p@k");
    let user_of = |list: &[(&str, &str)]| kafka(list).credentials.map(|known| known.user);
    assert_eq!(user_of(&[uri]), Some("u".into()));
    assert_eq!(user_of(&[uri, ("user-name", "a")]), Some("u".into()));
    assert_eq!(user_of(&[uri, ("user-name", "a"), ("password", "b")]), Some("a".into()));
    assert_eq!(user_of(&[("push-endpoint", "kafka://k"), ("user-name", "a")]), None);
    assert_eq!(kafka(&[uri]).mechanism, Some(Mechanism::Plain));
    assert_eq!(kafka(&[("push-endpoint", "kafka://k"), ("mechanism", "PLAIN")]).mechanism, None);
}

#[test]
fn transactions_need_a_persistent_topic_and_acknowledgements() {
    let uri = ("push-endpoint", "kafka://k");
    assert!(kafka(&[uri, ("transactional", "true"), ("persistent", "true")]).transactional);
    assert!(made(&[uri, ("transactional", "true")]).is_err());
    assert!(
        made(&[uri, ("transactional", "true"), ("persistent", "true"), ("kafka-ack-level", "none")]).is_err()
    );
    assert!(
        made(&[("push-endpoint", "http://h"), ("transactional", "true"), ("persistent", "true")]).is_err()
    );
}

#[test]
fn urls_of_http_have_defaults_and_keep_path_and_query() {
    for (uri, url) in [
        ("http://sink", "http://sink:80/"),
        ("https://sink", "https://sink:443/"),
        ("http://localhost:10900", "http://localhost:10900/"),
        ("https://u:p@[2001:db8::1]:8443/a%20b?c=d@e", "https://[2001:db8::1]:8443/a%20b?c=d@e"),
        ("http://sink?token=x", "http://sink:80/?token=x"),
    ] {
        assert_eq!(http(&[("push-endpoint", uri)]).url(), url);
    }
    let endpoint = http(&[("push-endpoint", "https://sink")]);
    assert_eq!((endpoint.verify_ssl, endpoint.cloudevents, endpoint.batch_size), (true, false, 1));
    let endpoint = http(&[("push-endpoint", "https://sink"), ("verify-ssl", "false"), ("batch-size", "50")]);
    assert_eq!((endpoint.verify_ssl, endpoint.batch_size), (false, 50));
}

#[test]
fn cloudevents_and_batches_exclude_each_other_and_batches_are_for_http() {
    let uri = ("push-endpoint", "http://sink");
    assert!(http(&[uri, ("cloudevents", "true"), ("batch-size", "1")]).cloudevents);
    assert!(made(&[uri, ("cloudevents", "true"), ("batch-size", "2")]).is_err());
    assert!(made(&[("push-endpoint", "kafka://k"), ("batch-size", "2")]).is_err());
    assert!(made(&[("push-endpoint", "kafka://k"), ("batch-size", "1")]).is_ok());
}

#[test]
fn uris_of_amqp_name_a_virtual_host() {
    for (uri, host, port, vhost) in [
        ("amqp://mq", "mq", 5672, "/"),
        ("amqps://mq", "mq", 5671, "/"),
        ("amqp://mq:5673/", "mq", 5673, "/"),
        ("amqp://mq/%2f", "mq", 5672, "/"),
        ("amqp://mq/tenant%20a", "mq", 5672, "tenant a"),
    ] {
        let endpoint = amqp(uri).unwrap();
        assert_eq!((endpoint.server, endpoint.vhost.as_str()), (server(host, port), vhost), "{uri}");
        assert_eq!((endpoint.exchange.as_str(), endpoint.routing_key.as_str()), ("ex1", "fishtopic"));
        assert_eq!((endpoint.credentials, endpoint.ack_level), (Credentials::guest(), AmqpAckLevel::Broker));
    }
    assert!(amqp("amqp://mq/a/b").is_err() && amqp("amqp://mq/a?b=c").is_err());
    assert!(amqp(&format!("amqp://mq/{}", "v".repeat(256))).is_err());
    assert!(made(&[("push-endpoint", "amqp://mq")]).is_err(), "the exchange is mandatory");
}

#[test]
fn malformed_uris_are_refused_without_being_quoted() {
    for uri in [
        "secret",
        "secret:9092",
        "://secret",
        "ftp://secret",
        "KAFKA://secret",
        "http://",
        "http:///secret",
        "http://secret,other",
        "http://secret:0",
        "http://secret:65536",
        "http://secret:80:80",
        "http://secret:+80",
        "http://secret@host",
        "http://secret:@host",
        "http://:secret@host",
        "http://user:secret%00@host",
        "http://user:secret%ff@host",
        "http://[secret]",
        "http://[::1",
        "http://[::1]secret",
        "http://[fe80::1%25secret]",
        "http://::1",
        "http://host/#secret",
        "http://ho st/secret",
        "http://höst/secret",
        "http://host/secret\r\n",
        "http://host\\secret",
        "amqp://secret,other",
        "kafka://k/secret",
        "kafka://k1,,secret",
    ] {
        let error = made(&[("push-endpoint", uri), ("amqp-exchange", "e")]).unwrap_err();
        assert!(
            matches!(&error, Error::Invalid { parameter, .. } if parameter == "push-endpoint"),
            "{uri}: {error}"
        );
        assert!(!error.to_string().contains("secret"), "{error}");
    }
    assert!(PushEndpoint::parse(&format!("http://h/{}", "x".repeat(2039))).is_ok());
    assert!(PushEndpoint::parse(&format!("http://h/{}", "x".repeat(2040))).is_err());
    let hosts = |count: usize| format!("kafka://{}", vec!["k"; count].join(","));
    assert!(PushEndpoint::parse(&hosts(32)).is_ok() && PushEndpoint::parse(&hosts(33)).is_err());
}

#[test]
fn secrets_do_not_show() {
    for (uri, display) in [
        ("https://bob:hunter2@sink/path?token=hunter2", "https://bob:****@sink:443"),
        ("https://sink/path?token=hunter2", "https://sink:443"),
        ("kafka://b%40b:hunter2@k1,k2:1", "kafka://b%40b:****@k1:9092,k2:1"),
        ("amqps://bob:hunter2@mq/v", "amqps://bob:****@mq:5671"),
        ("amqp://mq", "amqp://mq:5672"),
    ] {
        let endpoint = made(&[("push-endpoint", uri), ("amqp-exchange", "e")]).unwrap();
        assert_eq!(endpoint.to_string(), display);
        assert!(!format!("{endpoint:?}").contains("hunter2"), "{endpoint:?}");
        let stored = PushEndpoint::parse(uri).unwrap();
        assert!(!format!("{stored:?}").contains("hunter2"), "{stored:?}");
        assert_eq!(stored.reveal(), uri);
    }
    // Replies show everything except the password.
    let shown = PushEndpoint::parse("https://bob:hunter2@sink/path?a=b").unwrap();
    assert_eq!(
        (shown.to_string().as_str(), shown.has_credentials()),
        ("https://bob:****@sink/path?a=b", true)
    );
    let shown = PushEndpoint::parse("https://sink/a@b").unwrap();
    assert_eq!((shown.to_string().as_str(), shown.has_credentials()), ("https://sink/a@b", false));
}

#[test]
fn names_that_the_broker_can_not_have_are_refused() {
    let attributes = |uri: &str| {
        let pairs =
            [("push-endpoint".to_owned(), uri.to_owned()), ("amqp-exchange".to_owned(), "e".to_owned())];
        Attributes::from_pairs(&pairs).unwrap()
    };
    let (kafka, amqp) = (attributes("kafka://k"), attributes("amqp://mq"));
    assert!(kafka.endpoint(&"t".repeat(249)).is_ok() && kafka.endpoint(&"t".repeat(250)).is_err());
    assert!(amqp.endpoint(&"t".repeat(255)).is_ok() && amqp.endpoint(&"t".repeat(256)).is_err());
    assert!(attributes("http://h").endpoint(&"t".repeat(256)).is_ok());
}
