import '../store/etcd/auth.test.ts'
import '../store/etcd/etcd-store.test.ts'
import '../store/etcd/tls.test.ts'
