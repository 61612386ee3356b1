import '../store/etcd/bounds.test.ts'
import '../store/etcd/contract.test.ts'
import '../store/etcd/failure-log.test.ts'
import '../store/etcd/wire.test.ts'
