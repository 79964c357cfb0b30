"""Prints the results of usual and unusual calls of librados, one line each. With Ceph's library on a Ceph cluster it records the
correct results (`record`); with Nacre's on a Nacre cluster it shows the differences. Run by tests/it/librados_answers.rs.

usage: probe.py POOL    (CEPH_CONF names the cluster; the pool is empty, has 8 PGs and size 2)"""

import sys

import calls_cluster
import calls_events
import calls_objects
from capi import show

for module in (calls_cluster, calls_objects, calls_events):
    for part in module.PARTS:
        print(f"== {part.__name__}")
        try:
            part(sys.argv[1].encode())
        except AssertionError as error:
            show("stopped", repr(error))
print("== end")
