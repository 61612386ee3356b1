import assert from 'node:assert/strict'
import { once } from 'node:events'
import { connect, createServer as createTcpServer, type AddressInfo } from 'node:net'
import { test } from 'node:test'
import { StoreUnavailable } from '../../../dist/plants/store.js'
import { plant, readAll } from '../../contract/store.contract.ts'
import { Cluster, gateway, NO_ETCD } from '../../support/etcd.ts'
import { configured, NO_TLS, openStore, PATIENT } from '../../support/etcd-store.ts'
import { call, post } from '../../support/http.ts'
import { startProcess } from '../../support/process.ts'
import { LONG } from '../../support/scale.ts'
import { startService, temporaryDirectory } from '../../support/service.ts'
import { serving } from '../../support/serving.ts'
import { token } from '../../support/tokens.ts'
import { verdict } from '../../support/verdict.ts'

const skip = NO_ETCD ?? false
const ALL = { after: undefined, limit: undefined } as const

test(
  "a prefix that lies in an owner's range of another deployment shows that owner nothing of it",
  { skip },
  async (t) => {
    const outer = await configured()
    const owner = 'i\u025e'
    const inner = {
      ...outer,
      prefix: `${outer.prefix}${Buffer.from(owner).toString('base64url')}/`,
    }
    assert.ok(inner.prefix.endsWith('/acme/'))
    const [one, other] = [await startService(t, { etcd: outer }), await openStore(t, inner)]
    for (let id = 0n; id < 40n; id++) await other.create('victim', plant(id, 'secret'))
    assert.equal(
      (await post(one.port, { id: 1, name: 'own' }, { token: token(owner) })).status,
      200,
    )
    for (const path of ['/plants', '/plants?limit=10', '/plants?limit=36', '/plants?limit=40']) {
      const reply = await call(one.port, { token: token(owner), path })
      assert.ok(!reply.text.includes('secret'), path)
      assert.equal(verdict(reply), 'storageUnavailable')
    }
    assert.equal(
      (await call(one.port, { token: token(owner), path: '/plants?limit=1' })).text,
      '[{"name":"own"}]',
    )
    assert.equal((await readAll(other.list('victim', ALL))).length, 40)
  },
)

test(
  "an answer without a revision is no list of etcd's: 503, never an empty list",
  { skip },
  async (t) => {
    for (const text of ['{}', '[]', '"ok"', '0', 'null', '{"status":"ok"}', '{"header":{}}']) {
      const endpoint = await serving(t, (_, res) => res.end(text))
      const store = await openStore(t, {
        ...(await configured()),
        endpoints: [endpoint],
        timing: { attempt: 100, call: 200, probe: 200 },
      })
      await assert.rejects(Promise.resolve(store.list('alice', ALL)), StoreUnavailable, text)
      await assert.rejects(
        Promise.resolve(store.list('alice', { after: undefined, limit: 5 })),
        StoreUnavailable,
        text,
      )
      await assert.rejects(store.create('alice', plant(1n)), StoreUnavailable, text)
      assert.notEqual(store.unavailableReason(), undefined, text)
    }
  },
)

test(
  'members that are stopped and started in turn, as for an upgrade, fail no call',
  { skip },
  async (t) => {
    const cluster = await Cluster.start(3, { flags: ['--unsafe-no-fsync'] })
    t.after(() => cluster.close())
    const store = await openStore(t, { ...(await configured()), endpoints: cluster.endpoints })
    let running = true
    let id = 0n
    const failures = new Set<string>()
    const clients = Array.from({ length: 16 }, async (_, i) => {
      while (running) {
        const done =
          i % 2 === 0
            ? store.create('alice', plant(id++))
            : store.list('alice', { after: undefined, limit: 5 })
        await done.catch((error: unknown) => failures.add(String(error)))
      }
    })
    for (const member of cluster.members) {
      await member.end('SIGTERM')
      cluster.startMember(member)
      await cluster.ready()
    }
    running = false
    await Promise.all(clients)
    assert.deepEqual([...failures], [])
  },
)

test(
  'large plants are listed over a network that a whole page does not come through in the time of an attempt',
  { skip },
  async (t) => {
    const config = await configured()
    const store = await openStore(t, config)
    for (let id = 0n; id < 8n; id++) await store.create('alice', plant(id, 'x'.repeat(500_000)))
    const target = Number(new URL(config.endpoints[0] ?? '').port)
    // Of each answer so much comes through at once, and the rest not at all.
    const throughBytes = 1_500_000
    const slow = createTcpServer((client) => {
      const server = connect(target, '127.0.0.1')
      let leftBytes = 0
      client.on('data', (bytes: Buffer) => {
        leftBytes = throughBytes
        server.write(bytes)
      })
      server.on('data', (bytes: Buffer) => {
        if (leftBytes > 0) client.write(bytes)
        leftBytes -= bytes.length
      })
      for (const [from, to] of [
        [client, server],
        [server, client],
      ] as const)
        from.on('error', () => {}).on('close', () => to.destroy())
    }).listen(0, '127.0.0.1')
    await once(slow, 'listening')
    t.after(() => slow.close())
    // It listens on TCP.
    const { port } = slow.address() as AddressInfo
    const far = await openStore(t, {
      ...config,
      endpoints: [`http://127.0.0.1:${port}`],
      timing: { ...PATIENT, attempt: 1000 },
    })
    assert.equal((await readAll(far.list('alice', ALL))).length, 8)
  },
)

test(
  'what others wrote under the prefix spoils only the lists of its owner',
  { skip },
  async (t) => {
    const etcd = await configured()
    const { port } = await startService(t, { etcd })
    const base64 = (text: string): string => Buffer.from(text).toString('base64')
    let n = 0
    for (const value of ['', 'junk', '{}', '[]', 'null', '{"name":1}', '{"name":"x","tag":null}']) {
      const owner = `owner${n++}`
      const key = `${etcd.prefix}${Buffer.from(owner).toString('base64url')}/8000000000000001`
      await gateway(etcd.endpoints[0] ?? '', '/v3/kv/put', {
        key: base64(key),
        value: base64(value),
      })
      const by = { token: token(owner) }
      for (const path of ['/plants', '/plants?limit=1']) {
        const { status } = await call(port, { ...by, path })
        assert.ok(status >= 500, `${value}: ${status}`)
      }
      assert.equal(verdict(await post(port, { id: 1, name: 'x' }, by)), 'idTaken')
      assert.equal((await post(port, { id: 2, name: 'x' }, by)).status, 200)
    }
    assert.equal((await call(port)).text, '[]')
  },
)

test('the time of a call is over when it is over, though most of it went into a token', async (t) => {
  const header = { revision: '7' }
  let asked = 0
  const endpoint = await serving(t, (req, res) => {
    req.resume()
    const put = req.url === '/v3/kv/txn'
    if (put) asked += 1
    setTimeout(
      () => res.end(JSON.stringify(put ? { header, succeeded: true } : { header, token: 'x' })),
      put || asked === 0 ? 500 : 0,
    )
  })
  const store = await openStore(t, {
    endpoints: [endpoint],
    prefix: 'x/',
    user: { name: 'p', password: 'x' },
    tls: NO_TLS,
    timing: { attempt: 600, call: 700, probe: 100 },
  })
  await assert.rejects(store.create('alice', plant(1n)), StoreUnavailable)
  assert.ok(asked <= 1)
})

test(
  'readers of lists that stall hold some MiB each, also where plants are large, and the process lives',
  { skip: skip || LONG },
  async (t) => {
    const config = await configured()
    const store = await openStore(t, config)
    // One page of all would be 30 MB.
    for (let id = 0n; id < 23n; id++) await store.create('alice', plant(id, 'x'.repeat(1_000_000)))
    const env = {
      PLANTS_ETCD_ENDPOINTS: config.endpoints.join(),
      PLANTS_ETCD_PREFIX: config.prefix,
      NODE_OPTIONS: '--max-old-space-size=256',
    }
    const { port } = await startProcess(t, await temporaryDirectory(), env)
    for (let i = 0; i < 20; i++) {
      const socket = connect(port, '127.0.0.1')
      t.after(() => socket.destroy())
      socket.write(
        `GET /plants HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${token('alice')}\r\n\r\n`,
      )
      await once(socket, 'readable')
    }
    assert.equal((await post(port, { id: 1, name: 'x' }, { token: token('bob') })).status, 200)
  },
)
