use super::multipart::{PartId, RequestedPart};
use super::*;
use crate::index::ListQuery;
use crate::notifications::Cause;
use crate::stored::{DataLocation, DataObjectKind, classify_data_object, head_name};
use crate::testing::{TestCluster, create_bucket, index_parts, writer_on};
use crate::uploads::{Upload, upload_name};
use s3s::checksum::ChecksumHasher;

fn bucket() -> Bucket {
    Bucket { id: "0123456789abcdef0123456789abcdef".into(), ..Bucket::default() }
}

#[test]
fn conditions_are_decided_by_a_base_or_by_the_head() {
    let seq = |number| nacre_index::seq::Seq { number, ..nacre_index::seq::Seq::LEGACY };
    let entry = AssumedHead::Entry(seq(3));
    let etag = WriteCondition::Etag("e".into());
    for (condition, absent, there) in [
        (&WriteCondition::None, true, true),
        (&WriteCondition::Absent, true, false),
        (&WriteCondition::Present, false, true),
        (&etag, false, true),
    ] {
        let decided = [&AssumedHead::Absent, &entry].map(|base| condition.is_decided_on(base));
        assert_eq!(decided, [absent, there], "{condition:?}");
    }
    assert_eq!(etag.guards(), [Guard::AttrEquals(ETAG, Bytes::from_static(b"e"))]);
}

#[test]
fn names_of_heads_tails_and_uploads_differ() {
    let bucket = bucket();
    let tag = "fedcba9876543210fedcba9876543210";
    for key in
        ["a", "_a", "__a", "_shadow_x_0", "__shadow_x_0", "_multipart_k.u", "multipart_k.u", "/", "a_0"]
    {
        let name = head_name(&bucket.id, key);
        assert_eq!(
            classify_data_object(&bucket.id, &name),
            Some(DataObjectKind::Head(key.to_owned())),
            "{name}"
        );
        let upload = upload_name(&bucket, key, tag);
        assert_eq!(
            classify_data_object(&bucket.id, &upload),
            Some(DataObjectKind::Upload(key.into(), tag.into())),
            "{upload}"
        );
    }
    let run = tails_name(&bucket, "", tag);
    assert_eq!(run, format!("{}__shadow_{tag}", bucket.id), "data that is there already keeps its name");
    for run in [run.clone(), tails_name(&bucket, "COLD", tag), tails_name(&bucket, "STANDARD_IA", tag)] {
        assert_eq!(
            classify_data_object(&bucket.id, &format!("{run}_17")),
            Some(DataObjectKind::Tail(run.clone()))
        );
    }
    // A key can't name it.
    assert_ne!(head_name(&bucket.id, &format!("_shadow_{tag}_17")), format!("{run}_17"));
    assert_eq!(classify_data_object(&bucket.id, "other_a"), None);
}

fn body(text: &'static str) -> UploadBody {
    let source = futures::stream::iter([Ok(Bytes::from_static(text.as_bytes()))]);
    UploadBody::new(Box::pin(source), text.len() as u64, ChecksumHasher::default())
}

/// A head of an object of alice.
fn head() -> Head {
    Head { owner: "alice".into(), ..Head::default() }
}

async fn put(writer: &Arc<ObjectWriter>, bucket: &Arc<Bucket>, condition: WriteCondition) -> Result<Head> {
    let (bucket, key, cause) = (Arc::clone(bucket), "k".to_owned(), Cause::default());
    let put = PutOp { bucket, key, head: head(), condition, cause, types: &[] };
    let seal = |_: Digests, head: &mut Head| {
        head.etag = "e".into();
        Ok(())
    };
    put.run(writer, body("hello"), Some(5), seal).await
}

#[test]
fn an_object_is_listed_from_its_write_to_its_removal() {
    let cluster = TestCluster::new();
    let (connection, peers) = cluster.connect();
    cluster.run_on_tokio(async {
        let parts = index_parts(&connection, &peers);
        let bucket = create_bucket(&parts, "b", "alice").await;
        let writer = writer_on(&parts);
        assert_eq!(put(&writer, &bucket, WriteCondition::Absent).await.unwrap().size, 5);
        let listing = async || {
            let query = ListQuery { max: 9, ..ListQuery::default() };
            let entries = writer.index.list(&bucket, &query).await.unwrap().entries;
            entries.into_iter().map(|(key, entry)| (key, entry.size)).collect::<Vec<_>>()
        };
        assert_eq!(listing().await, [("k".to_owned(), 5)]);
        let refused = put(&writer, &bucket, WriteCondition::Absent).await;
        assert!(matches!(refused, Err(Error::Precondition(_))));
        assert!(writer.index.finisher.drain().await);
        assert_eq!(writer.shards.usage(&bucket).await.unwrap(), (1, 5));
        let tag = |head: &mut Head| {
            head.tags.push(("a".into(), "b".into()));
            Ok(())
        };
        let no_events = (&Cause::default(), &[][..]);
        let tagged = writer.modify_version(&bucket, ("k", None), no_events, tag).await.unwrap();
        assert_eq!((tagged.size, tagged.tags.len()), (5, 1));
        let events = (&Cause::default(), RemovalEventTypes::REQUEST);
        for existed in [true, false] {
            let removing = writer.remove_object(&bucket, ("k", "alice"), WriteCondition::None, events);
            assert_eq!(removing.await.unwrap(), RemovalResult { existed, marker: None });
            assert!(listing().await.is_empty());
        }
        assert!(writer.index.finisher.drain().await);
        assert_eq!(writer.shards.usage(&bucket).await.unwrap(), (0, 0));
        assert!(writer.objects.current(&bucket.id, "k").await.unwrap().is_none());
    });
}

#[test]
fn an_upload_becomes_an_object_of_its_parts() {
    let cluster = TestCluster::new();
    let (connection, peers) = cluster.connect();
    cluster.run_on_tokio(async {
        let parts = index_parts(&connection, &peers);
        let bucket = create_bucket(&parts, "b", "alice").await;
        let writer = writer_on(&parts);
        let create = async || writer.uploads.create(&bucket, "k", Upload::new(head(), "", false)).await;
        let (id, aborted) = (create().await.unwrap(), create().await.unwrap());
        writer.abort_upload(&bucket, "k", &aborted).await.unwrap();
        let etag = "0".repeat(32);
        let part = PartId { key: "k", upload: &id, number: 1, class: "" };
        let seal = |_: Digests| Ok((etag.clone(), None));
        writer.put_part(&bucket, part, (body("hello"), None), Some(5), seal).await.unwrap();
        let complete = async |number| {
            let named = vec![RequestedPart { number, etag: Some(etag.clone()) }];
            let condition = (WriteCondition::None, Cause::default());
            writer.complete_upload(&bucket, ("k", &id), named, condition, |_, _, _| Ok(())).await
        };
        assert!(matches!(complete(2).await, Err(Error::InvalidPart(2))));
        let object = complete(1).await.unwrap();
        assert_eq!((object.size, &object.data), (5, &DataLocation::Parts(1)));
        // The reply may have been lost.
        assert_eq!(complete(1).await.unwrap().tag, object.tag);
        assert!(writer.uploads.list(&bucket, "", None, 9).await.unwrap().0.is_empty());
        assert!(matches!(writer.abort_upload(&bucket, "k", &id).await, Err(Error::NoSuchUpload)));
        // The parts belong to the object now.
        assert!(writer.garbage.list(true).await.unwrap().is_empty());
    });
}
