use super::*;
use crate::testing::{TestCluster, create_bucket, index_parts};
use nacre_index::finish::UploadResolution;

#[test]
fn records_of_uploads_with_a_class_refuse_readers_that_know_none() {
    for class in ["", "COLD"] {
        let version = if class.is_empty() { 1 } else { 2 };
        let head = Head { owner: "o".into(), class: class.into(), ..Head::default() };
        let upload = Upload::new(head, "CRC32", true);
        let encoded = record::encode(&upload);
        assert_eq!(encoded[1], version);
        assert_eq!(record::decode::<Upload>("upload", &encoded).unwrap(), upload);
        let entry = UploadEntry { begun_ns: 7, owner: "o".into(), class: class.into() };
        let encoded = record::encode(&entry);
        assert_eq!(encoded[1], version);
        assert_eq!(record::decode::<UploadEntry>("shard", &encoded).unwrap(), entry);
        let tails =
            Tails { name: Tails::name_for("0123456789abcdef0123456789abcdef", class, "0f"), count: 1 };
        let intent = PartIntent { tails: tails.clone() };
        let encoded = record::encode(&intent);
        assert_eq!(encoded[1], version);
        assert_eq!(record::decode::<PartIntent>("upload", &encoded).unwrap(), intent);
        let part =
            Part { size: 5, mtime_ns: 6, etag: "e".into(), checksum: None, tails, salt: Some([3; 32]) };
        let encoded = record::encode(&part);
        assert_eq!(encoded[1], version);
        assert_eq!(record::decode::<Part>("upload", &encoded).unwrap(), part);
    }
}

#[test]
fn an_upload_is_listed_with_its_parts_until_it_ends() {
    let cluster = TestCluster::new();
    let (connection, peers) = cluster.connect();
    cluster.run(async move {
        let parts = index_parts(&connection, &peers);
        let bucket = create_bucket(&parts, "b", "alice").await;
        let (uploads, garbage) = (parts.uploads, parts.garbage);
        let upload = || Upload::new(Head { owner: "alice".into(), ..Head::default() }, "", false);
        let id = uploads.create(&bucket, "k", upload()).await.unwrap();
        let listed = uploads.list(&bucket, "", None, 9).await.unwrap();
        assert_eq!((listed.0[0].0.as_str(), &listed.0[0].1, listed.1), ("k", &id, false));
        assert_eq!(uploads.ids_of(&bucket, "k").await.unwrap(), std::slice::from_ref(&id));
        assert_eq!(uploads.read(&bucket, "k", &id).await.unwrap().head.upload, id);
        let name = upload_name(&bucket, "k", &id);
        // The second part 1 replaces the first one, whose tails become garbage.
        for tag in ["a", "c"] {
            let tails = Tails { name: format!("0f__shadow_{tag}"), count: 1 };
            uploads.prepare_part(&name, tag, &tails).await.unwrap();
            let (size, etag) = (5, tag.to_owned());
            let part = Part { size, mtime_ns: 6, etag, checksum: None, tails, salt: None };
            uploads.list_part(&name, 1, tag, &part).await.unwrap();
        }
        let parts = uploads.all_parts(&bucket, "k", &id).await.unwrap();
        assert_eq!((parts.len(), parts[0].0, parts[0].1.etag.as_str()), (1, 1, "c"));
        let discarded = || async { garbage.list(true).await.unwrap().len() };
        assert_eq!(discarded().await, 1);
        // No part is written to an upload that is being completed. A failed completion leaves the upload as it was.
        let (_, mark, version) = uploads.marked(&name).await.unwrap().unwrap();
        assert_eq!(mark, None);
        uploads.mark(&name, version, "t").await.unwrap();
        let late = uploads.prepare_part(&name, "d", &Tails::default()).await;
        assert!(matches!(late, Err(Error::NoSuchUpload)));
        assert!(uploads.mark_aborted(&name, None).await.is_err());
        let shard = shard_of(&bucket, "k");
        let end = UploadResolution { key: "k".into(), upload: id.clone(), tag: "t".into(), completed: false };
        uploads.resolve(&bucket, &shard, &end).await.unwrap();
        assert_eq!(uploads.marked(&name).await.unwrap().unwrap().1, None);
        uploads.mark_aborted(&name, None).await.unwrap();
        uploads.purge(&bucket, ("k", &id), &[]).await.unwrap();
        assert!(matches!(uploads.read(&bucket, "k", &id).await, Err(Error::NoSuchUpload)));
        assert!(uploads.list(&bucket, "", None, 9).await.unwrap().0.is_empty());
        assert_eq!(discarded().await, 2);
    });
}
