import { after, test, type TestContext } from 'node:test'
import { EtcdStore } from '../../../dist/store/etcd/etcd-store.js'
import { Gate, storeContract, underTest } from '../../contract/store.contract.ts'
import { Cluster, NO_ETCD } from '../../support/etcd.ts'
import { type Asked, type FakeReply, fakeEtcd, keysPut, passOn } from '../../support/etcd-fake.ts'
import { configOf, diagnosticLog, fill } from '../../support/etcd-store.ts'
import { THOROUGH } from '../../support/scale.ts'
import { PATIENCE_MS } from '../../support/time.ts'

if (NO_ETCD !== undefined) {
  test('etcd: the contract', { skip: NO_ETCD }, () => {})
} else {
  // Room for the longest plant in base64, and for more: the bound is the store's own.
  const cluster = await Cluster.start(1, {
    cheap: true,
    flags: ['--max-request-bytes', String(2 ** 25)],
  })
  after(() => cluster.close())
  const answer = passOn(cluster.endpoints[0])
  /** Passes calls on to etcd, and makes creates wait. */
  const gated = async (t: TestContext, gate: Gate): Promise<string> => {
    const answerInTime = async (asked: Asked): Promise<FakeReply> => {
      if (keysPut(asked).length > 0) await gate.passed
      return answer(asked)
    }
    const { endpoint } = await fakeEtcd(t, answerInTime, answer)
    return endpoint
  }
  let opened = 0
  storeContract(
    'etcd',
    async (t, willHold) => {
      const gate = new Gate()
      const endpoints = willHold ? [await gated(t, gate)] : cluster.endpoints
      // Each test has its own part of the cluster.
      const shared = configOf(endpoints, `contract/${opened++}/`)
      // A busy machine may take seconds for the longest text.
      const config = { ...shared, timing: { attemptMs: PATIENCE_MS / 2, callMs: PATIENCE_MS } }
      const open = () => EtcdStore.open(config, diagnosticLog(t))
      const under = await underTest(t, open, gate)
      return { ...under, fill: (owner, plants) => fill(config, owner, plants) }
    },
    THOROUGH ? 6000 : 1500,
  )
}
