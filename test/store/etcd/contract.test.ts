import { once } from 'node:events'
import { Agent, createServer, request } from 'node:http'
import type { AddressInfo } from 'node:net'
import { after, test } from 'node:test'
import { EtcdStore } from '../../../dist/store/etcd/store.js'
import { Gate, storeContract, underTest } from '../../contract/store.contract.ts'
import { Cluster, NO_ETCD } from '../../support/etcd.ts'
import { NO_TLS, PATIENT } from '../../support/etcd-store.ts'
import { THOROUGH } from '../../support/scale.ts'

if (NO_ETCD !== undefined) {
  test('etcd: the contract', { skip: NO_ETCD }, () => {})
} else {
  // One text of the contract takes 6 MiB as JSON. Nothing here needs the disk.
  const cluster = await Cluster.start(1, {
    flags: ['--unsafe-no-fsync', '--max-request-bytes', '16777216'],
  })
  const [member] = cluster.members
  // Stands before etcd, so that creates can be made to wait on their way.
  const gate = new Gate()
  const agent = new Agent({ keepAlive: true })
  const front = createServer((req, res) => {
    const passOn = (): void => {
      const onward = request(
        {
          host: '127.0.0.1',
          port: member?.port,
          agent,
          path: req.url,
          method: req.method,
          headers: req.headers,
        },
        (answer) => {
          res.writeHead(answer.statusCode ?? 0, answer.headers)
          answer.pipe(res)
        },
      )
      onward.on('error', () => res.destroy())
      req.pipe(onward)
    }
    if (gate.passed && req.url === '/v3/kv/txn') void gate.passed.then(passOn)
    else passOn()
  }).listen(0, '127.0.0.1')
  await once(front, 'listening')
  // It listens on TCP.
  const endpoint = `http://127.0.0.1:${(front.address() as AddressInfo).port}`
  after(async () => {
    front.close()
    agent.destroy()
    await cluster.close()
  })
  let opened = 0
  storeContract(
    'etcd',
    async (t) => {
      // Every test has a part of the cluster to itself.
      const prefix = `contract/${opened++}/`
      const log = (level: string, message: string, fields: unknown): void =>
        t.diagnostic(`${level}: ${message} ${JSON.stringify(fields)}`)
      const open = (): Promise<EtcdStore> =>
        EtcdStore.open(
          { endpoints: [endpoint], prefix, user: undefined, tls: NO_TLS, timing: PATIENT },
          log,
        )
      return underTest(t, open, gate)
    },
    THOROUGH ? 6000 : 1500,
  )
}
