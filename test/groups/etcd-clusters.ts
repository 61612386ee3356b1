import '../store/etcd/robustness.test.ts'
import '../faults/etcd.test.ts'
