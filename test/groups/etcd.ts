import '../store/etcd/auth.test.ts'
import '../store/etcd/store.test.ts'
import '../store/etcd/tls.test.ts'
