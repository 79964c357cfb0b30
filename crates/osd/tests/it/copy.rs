//! Copy-from between objects, pools and OSDs: the OSD reads the source itself.

use super::cluster::TestCluster;
use bytes::Bytes;
use nacre_client::WriteOp;
use nacre_types::errno::Errno;

fn payload(len: usize) -> Bytes {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect::<Vec<_>>().into()
}

#[test]
fn objects_are_copied_within_and_between_pools() {
    let cluster = TestCluster::start(3, &[("osd_op_num_shards", "2")]);
    cluster.create_pool("data", 3, 2, 8);
    cluster.create_pool("other", 2, 1, 8);
    let (data, other) = (cluster.io("data"), cluster.io("other").with_namespace("ns"));
    cluster.block_on(async {
        let large = payload(20 << 20);
        data.write_full("source", "its first version").await.unwrap();
        let mut make = WriteOp::new();
        make.write_full(large.clone()).set_xattr("a", "1");
        make.omap_set((0..2000).map(|i| (format!("k{i:04}").into(), Bytes::from_static(b"v"))).collect());
        data.operate("source", make).await.unwrap().success().unwrap();
        data.write_full("small", "tiny").await.unwrap();
        let version = data.operate_read("source", {
            let mut read = nacre_client::ReadOp::new();
            read.stat();
            read
        });
        let version = version.await.unwrap().version;
        for io in [&data, &other] {
            io.write_full("target", "something else").await.unwrap();
            let mut copy = WriteOp::new();
            copy.copy_from(&data, "source", version).unwrap();
            let done = io.operate("target", copy).await.unwrap().success().unwrap();
            assert_eq!(done.version, version, "the user version is the source's");
            assert!(io.read("target", 0, 0).await.unwrap() == large);
            assert_eq!(io.get_xattr("target", "a").await.unwrap(), "1");
            let keys = io.omap_get_keys("target", "k1989", 100).await.unwrap();
            assert_eq!((keys.keys.len(), &keys.keys[0][..]), (10, &b"k1990"[..]));
        }
        let copy = |name: &str, version| {
            let mut copy = WriteOp::new();
            copy.copy_from(&data, name, version).unwrap();
            other.operate("target", copy)
        };
        let refused = |reply: nacre_client::OpReply| reply.success().unwrap_err().errno();
        assert_eq!(refused(copy("none", 0).await.unwrap()), Errno::ENOENT);
        assert_eq!(refused(copy("source", version - 1).await.unwrap()), Errno::ERANGE);
        assert_eq!(refused(copy("source", version + 1).await.unwrap()), Errno::EOVERFLOW);
        assert_eq!(other.stat("target").await.unwrap().size, large.len() as u64, "nothing changed");
        let mut itself = WriteOp::new();
        itself.copy_from(&data, "source", 0).unwrap();
        assert_eq!(refused(data.operate("source", itself).await.unwrap()), Errno::EINVAL);
    });
}

#[test]
fn what_follows_a_copy_on_its_object_waits_for_it() {
    let cluster = TestCluster::start(2, &[]);
    cluster.create_pool("data", 2, 1, 4);
    let io = cluster.io("data");
    cluster.block_on(async {
        io.write_full("a", payload(9 << 20)).await.unwrap();
        io.write_full("b", "b").await.unwrap();
        let copy = |from: &str, to: &str| {
            let mut copy = WriteOp::new();
            copy.copy_from(&io, from, 0).unwrap();
            io.operate(to, copy)
        };
        // Submitted together: each sees the effects of the earlier ones.
        let copied = copy("a", "target");
        let appended = io.append("target", "+");
        let read = io.read("target", 9 << 20, 0);
        let again = copy("b", "target");
        let last = io.read("target", 0, 0);
        copied.await.unwrap().success().unwrap();
        appended.await.unwrap();
        assert_eq!(read.await.unwrap(), "+");
        again.await.unwrap().success().unwrap();
        assert_eq!(last.await.unwrap(), "b");
        // Two objects that are copied to each other do not deadlock.
        for _ in 0..10 {
            let (first, second) = (copy("a", "b"), copy("b", "a"));
            first.await.unwrap().success().unwrap();
            second.await.unwrap().success().unwrap();
        }
    });
}
