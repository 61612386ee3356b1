import '../store/etcd/gateway.test.ts'
import '../store/etcd/one-cluster.test.ts'
import '../store/etcd/robustness.test.ts'
import '../faults/etcd.test.ts'
