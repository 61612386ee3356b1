import { after, test, type TestContext } from 'node:test'
import { EtcdStore } from '../../../dist/store/etcd/store.js'
import { Gate, storeContract, underTest } from '../../contract/store.contract.ts'
import { Cluster, NO_ETCD } from '../../support/etcd.ts'
import { configOf, diagnosticLog, fill } from '../../support/etcd-store.ts'
import { THOROUGH } from '../../support/scale.ts'
import { isRead, passingGrpc } from '../../support/serving-grpc.ts'

if (NO_ETCD !== undefined) {
  test('etcd: the contract', { skip: NO_ETCD }, () => {})
} else {
  // One text of the contract takes 6 MiB as JSON.
  const cluster = await Cluster.start(1, {
    cheap: true,
    flags: ['--max-request-bytes', '16777216'],
  })
  after(() => cluster.close())
  /** Passes calls on to etcd, and makes creates wait. */
  const gated = (t: TestContext, gate: Gate): Promise<string> => {
    const config = configOf(cluster.endpoints)
    return passingGrpc(t, config, (call) => (isRead(call) ? undefined : gate.passed))
  }
  let opened = 0
  storeContract(
    'etcd',
    async (t, willHold) => {
      const gate = new Gate()
      const endpoints = willHold ? [await gated(t, gate)] : cluster.endpoints
      // Each test has its own part of the cluster.
      const config = configOf(endpoints, `contract/${opened++}/`)
      const open = () => EtcdStore.open(config, diagnosticLog(t))
      const under = await underTest(t, open, gate)
      return { ...under, fill: (owner, plants) => fill(config, owner, plants) }
    },
    THOROUGH ? 6000 : 1500,
  )
}
