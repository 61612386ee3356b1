import { Agent, request } from 'node:http'
import { after, test, type TestContext } from 'node:test'
import { EtcdStore } from '../../../dist/store/etcd/store.js'
import { Gate, storeContract, underTest } from '../../contract/store.contract.ts'
import { Cluster, NO_ETCD } from '../../support/etcd.ts'
import { configOf, diagnosticLog, fill } from '../../support/etcd-store.ts'
import { THOROUGH } from '../../support/scale.ts'
import { serving } from '../../support/serving.ts'
import { PATIENCE_MS } from '../../support/time.ts'

if (NO_ETCD !== undefined) {
  test('etcd: the contract', { skip: NO_ETCD }, () => {})
} else {
  // One text of the contract takes 6 MiB as JSON.
  const cluster = await Cluster.start(1, {
    cheap: true,
    flags: ['--max-request-bytes', '16777216'],
  })
  const agent = new Agent({ keepAlive: true })
  after(async () => {
    agent.destroy()
    await cluster.close()
  })
  /** Passes calls on to etcd, and makes creates wait. */
  const gated = (t: TestContext, gate: Gate): Promise<string> =>
    serving(t, (req, res) => {
      const { url, method, headers } = req
      const passOn = (): void => {
        const target = `${cluster.endpoints.join()}${url}`
        const onward = request(target, { agent, method, headers }, (answer) => {
          res.writeHead(answer.statusCode ?? 0, answer.headers)
          answer.pipe(res)
        })
        onward.on('error', () => res.destroy())
        req.pipe(onward)
      }
      if (gate.passed && url === '/v3/kv/txn') void gate.passed.then(passOn)
      else passOn()
    })
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
