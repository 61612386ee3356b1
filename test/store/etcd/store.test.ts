import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { StoreUnavailable } from '../../../dist/plants/store.js'
import type { EtcdConfig } from '../../../dist/store/etcd/store.js'
import { plant, readAll } from '../../contract/store.contract.ts'
import { Cluster, type ClusterOptions, NO_ETCD, Proxy } from '../../support/etcd.ts'
import { configured, NO_TLS, openStore, PATIENT } from '../../support/etcd-store.ts'
import { Authority, NO_SECURED_ETCD } from '../../support/etcd-tls.ts'
import { call, post } from '../../support/http.ts'
import { run, startProcess } from '../../support/process.ts'
import { THOROUGH } from '../../support/scale.ts'
import { startService, temporaryDirectory } from '../../support/service.ts'
import { until } from '../../support/time.ts'
import { token } from '../../support/tokens.ts'
import { verdict } from '../../support/verdict.ts'

const NO_ETCDCTL =
  spawnSync('etcdctl', ['version']).error &&
  'etcdctl is not installed, so LITTLE of the etcd store is tested (Debian: apt-get install etcd-client)'
const skip = NO_ETCD ?? NO_ETCDCTL ?? false
const secured = NO_SECURED_ETCD ?? false
async function ownCluster(t: TestContext, options: ClusterOptions): Promise<Cluster> {
  const cluster = await Cluster.start(1, {
    ...options,
    flags: ['--unsafe-no-fsync', ...(options.flags ?? [])],
  })
  t.after(() => cluster.close())
  return cluster
}

function etcdctl(endpoint: string, ...args: readonly string[]): string {
  const { status, stdout, stderr } = spawnSync('etcdctl', [`--endpoints=${endpoint}`, ...args], {
    encoding: 'utf8',
    env: { PATH: process.env['PATH'] ?? '', ETCDCTL_API: '3' },
  })
  assert.equal(status, 0, stderr)
  return stdout
}

test(
  'in etcd a plant lies under prefix, base64url of the owner, and the id with its sign bit flipped, as JSON',
  { skip },
  async (t) => {
    const config = await configured()
    const store = await openStore(t, config)
    for (const id of [-1n, 0n, 1n])
      await store.create('a/\u0000é', plant(id, 'Oak', id === 0n ? undefined : 'old'))
    const owner = Buffer.from('a/\u0000é').toString('base64url')
    assert.equal(
      etcdctl(config.endpoints[0] ?? '', 'get', '--prefix', config.prefix),
      [
        `${config.prefix}${owner}/7fffffffffffffff\n{"name":"Oak","tag":"old"}\n`,
        `${config.prefix}${owner}/8000000000000000\n{"name":"Oak"}\n`,
        `${config.prefix}${owner}/8000000000000001\n{"name":"Oak","tag":"old"}\n`,
      ].join(''),
    )
  },
)

test(
  'two instances: what one acknowledged is in the very next list of the other, whatever was listed before',
  { skip },
  async (t) => {
    const etcd = await configured()
    const [one, other] = [await startService(t, { etcd }), await startService(t, { etcd })]
    for (const path of ['/plants', '/plants?limit=3', '/plants?limit=50']) {
      for (let id = 0; id > -20; id--) {
        const name = `${path} ${id}`
        const owner = { token: token(`owner of ${path}`) }
        assert.equal(
          (await post(id % 2 === 0 ? one.port : other.port, { id, name }, owner)).status,
          200,
        )
        for (const { port } of [other, one, other]) {
          const [first] = (await call(port, { path, ...owner })).json() as readonly {
            readonly name: string
          }[] // the service's own list
          assert.equal(first?.name, name)
        }
      }
    }
    assert.ok(!existsSync(one.dataDirectory), 'nothing is written to the data directory')
  },
)

test(
  'two instances: paging goes on at the other one, and both agree on who is first',
  { skip },
  async (t) => {
    const etcd = await configured()
    const [one, other] = [await startService(t, { etcd }), await startService(t, { etcd })]
    for (let id = 0; id < 90; id++)
      assert.equal((await post(one.port, { id, name: `plant ${id}` })).status, 200)
    const names: string[] = []
    let path: string | undefined = '/plants?limit=40'
    for (let i = 0; path !== undefined; i++) {
      const { headers, json } = await call(i % 2 === 0 ? one.port : other.port, { path })
      names.push(...(json() as readonly { readonly name: string }[]).map(({ name }) => name)) // the service's own list
      path = /^<(.*)>; rel="next"$/
        .exec(String(headers['link'] ?? ''))?.[1]
        ?.replace('?', '/plants?')
    }
    assert.deepEqual(
      names,
      Array.from({ length: 90 }, (_, id) => `plant ${id}`),
    )
    const both = await Promise.all([
      post(one.port, { id: 100, name: 'a' }),
      post(other.port, { id: 100, name: 'b' }),
    ])
    assert.deepEqual(both.map(({ status }) => status).sort(), [200, 409])
  },
)

test(
  'a plant that etcd takes for too large is 413, the longest owner and a full body still fit, and nothing of it is kept',
  { skip },
  async (t) => {
    const etcd = await configured()
    const { port } = await startService(t, { etcd, maxBodyBytes: 4 * 2 ** 20 })
    for (const bytes of [1_600_000, 2_500_000])
      assert.equal(verdict(await post(port, { id: 1, name: 'x'.repeat(bytes) })), 'bodyTooLarge')
    const long = { token: token('o'.repeat(8500)) }
    assert.equal((await post(port, { id: 1, name: 'x'.repeat(2 ** 20 - 30) }, long)).status, 200)
    assert.equal(
      (await call(port, { ...long, path: '/plants?limit=1' })).text.length,
      2 ** 20 - 30 + '[{"name":""}]'.length,
    )
    assert.equal((await call(port)).text, '[]')
  },
)

test(
  'plants of 1 MB after small ones are listed whole, though the page that they come in is asked for smaller',
  { skip },
  async (t) => {
    const store = await openStore(t, await configured())
    const plants = [
      ...Array.from({ length: 16 }, (_, i) => plant(BigInt(i), `${i}`)),
      ...Array.from({ length: THOROUGH ? 40 : 12 }, (_, i) =>
        plant(BigInt(100 + i), `${i} ${'x'.repeat(1_000_000)}`),
      ),
      plant(1000n),
    ]
    for (const each of plants) assert.equal(await store.create('alice', each), 'stored')
    const found = await readAll(store.list('alice', { after: undefined, limit: undefined }))
    // Not deepEqual: a difference of megabytes takes it minutes to describe.
    assert.ok(
      found.length === plants.length && found.every(({ name }, i) => name === plants[i]?.name),
    )
  },
)

test(
  'a full etcd answers 507 to what is new and 200 to what it has, goes on listing, stays ready, and takes plants again',
  { skip },
  async (t) => {
    const cluster = await ownCluster(t, { flags: ['--quota-backend-bytes', '20000000'] })
    const { port, adminPort } = await startService(t, {
      etcd: { ...(await configured()), endpoints: cluster.endpoints },
    })
    const text = 'x'.repeat(1_000_000)
    let kept = 0
    for (
      let reply = await post(port, { id: 0, name: text });
      ;
      reply = await post(port, { id: kept, name: text })
    ) {
      if (reply.status !== 200) {
        assert.equal(verdict(reply), 'storageFull')
        break
      }
      kept += 1
      assert.ok(kept < 40)
    }
    assert.equal((await post(port, { id: 0, name: text })).status, 200)
    assert.equal((await post(port, { id: 0, name: 'other' })).status, 409)
    assert.equal(verdict(await post(port, { id: 1000, name: 'small' })), 'storageFull')
    const list = await call(port)
    assert.equal((list.json() as readonly unknown[]).length, kept) // the service's own list
    assert.equal((await call(adminPort, { path: '/readyz' })).status, 200)
    const [endpoint = ''] = cluster.endpoints
    assert.equal(
      (await fetch(`${endpoint}/health`)).status,
      503,
      'etcd itself calls itself unhealthy',
    )
    // What an operator does: makes room, and takes the alarm back.
    etcdctl(endpoint, 'del', '--prefix', 'store/')
    const revision =
      /"revision":(\d+)/.exec(etcdctl(endpoint, 'endpoint', 'status', '--write-out=json'))?.[1] ??
      ''
    etcdctl(endpoint, 'compact', revision)
    etcdctl(endpoint, 'defrag')
    etcdctl(endpoint, 'alarm', 'disarm')
    assert.equal((await post(port, { id: 1000, name: 'small' })).status, 200)
  },
)

test(
  'readiness follows etcd: red with a reason while nothing is answered, green again by itself; a start does not wait for it',
  { skip },
  async (t) => {
    const config = await configured()
    const proxy = await Proxy.start(() => Number(new URL(config.endpoints[0] ?? '').port))
    t.after(() => proxy.close())
    proxy.mode = 'refuse'
    const { port, adminPort } = await startService(t, {
      etcd: {
        ...config,
        endpoints: [`http://127.0.0.1:${proxy.port}`],
        timing: { attempt: 100, call: 300, probe: 300 },
      },
    })
    const ready = async (): Promise<number> => (await call(adminPort, { path: '/readyz' })).status
    assert.equal(await ready(), 503)
    assert.equal(verdict(await post(port, { id: 1, name: 'x' })), 'storageUnavailable')
    assert.equal(verdict(await call(port)), 'storageUnavailable')
    proxy.mode = 'pass'
    await until('it is ready', async () => (await ready()) === 200)
    // A machine that is held up may take longer than this service waits.
    await until(
      'plants are kept',
      async () => (await post(port, { id: 1, name: 'x' })).status === 200,
    )
    proxy.mode = 'hang'
    await until('the reason is told', async () => {
      const { status, text } = await call(adminPort, { path: '/readyz' })
      return status === 503 && /"storage":"etcd did not answer in time: .*timed out/.test(text)
    })
    proxy.mode = 'pass'
    await until('it is ready again', async () => (await ready()) === 200)
  },
)

test(
  'a list that etcd breaks off destroys the connection, and is never a well-formed end',
  { skip },
  async (t) => {
    const config = await configured()
    const proxy = await Proxy.start(() => Number(new URL(config.endpoints[0] ?? '').port))
    t.after(() => proxy.close())
    const store = await openStore(t, config)
    for (let i = 0; i < 60; i++) await store.create('alice', plant(BigInt(i), 'x'.repeat(300_000)))
    const { port } = await startService(t, {
      etcd: {
        ...config,
        endpoints: [`http://127.0.0.1:${proxy.port}`],
        timing: { attempt: 1000, call: 1500, probe: 1500 },
      },
    })
    const ask = () =>
      fetch(`http://127.0.0.1:${port}/plants`, {
        headers: { authorization: `Bearer ${token('alice')}` },
      })
    let response = await ask()
    await until(
      'a list has begun',
      async () => response.status === 200 || (response = await ask()).status === 200,
    )
    proxy.mode = 'refuse'
    await assert.rejects(response.text())
  },
)

test(
  'a create whose answer is lost after etcd has done it is stored by the next endpoint, or undecided and stored when repeated',
  { skip },
  async (t) => {
    const config = await configured()
    const target = (): number => Number(new URL(config.endpoints[0] ?? '').port)
    const [lossy, good] = [await Proxy.start(target), await Proxy.start(target)]
    t.after(() => [lossy, good].forEach((proxy) => proxy.close()))
    const endpoint = ({ port }: Proxy): string => `http://127.0.0.1:${port}`
    const both = await openStore(t, { ...config, endpoints: [endpoint(lossy), endpoint(good)] })
    const hasty = await openStore(t, {
      ...config,
      endpoints: [endpoint(lossy)],
      timing: { attempt: 200, call: 200, probe: 200 },
    })
    const alone = await openStore(t, { ...config, endpoints: [endpoint(lossy)] })
    lossy.mode = 'drop-answers'
    assert.equal(await both.create('alice', plant(1n, 'a')), 'stored')
    const { dropped } = lossy
    assert.ok(dropped >= 1)
    // At least once it came to an answer.
    do await assert.rejects(hasty.create('alice', plant(2n, 'b')), StoreUnavailable)
    while (lossy.dropped === dropped)
    lossy.mode = 'pass'
    assert.equal(await alone.create('alice', plant(2n, 'b')), 'stored')
    assert.equal(await alone.create('alice', plant(2n, 'c')), 'conflict')
    assert.deepEqual(await readAll(alone.list('alice', { after: undefined, limit: undefined })), [
      { name: 'a' },
      { name: 'b' },
    ])
  },
)

test(
  'users of etcd: a right password works, through a restart of etcd too; a wrong one and missing rights are named',
  { skip },
  async (t) => {
    const cluster = await ownCluster(t, { flags: ['--auth-token-ttl', '2'] })
    const [endpoint = ''] = cluster.endpoints
    for (const args of [
      'user add root:pw',
      'user grant-role root root',
      'user add p:secret',
      'role add plants',
      'role grant-permission plants --prefix=true readwrite plants/',
      'user grant-role p plants',
    ])
      etcdctl(endpoint, ...args.split(' '))
    const config: EtcdConfig = {
      endpoints: cluster.endpoints,
      prefix: 'plants/',
      user: { name: 'p', password: 'secret' },
      tls: NO_TLS,
      timing: PATIENT,
    }
    const store = await openStore(t, config)
    assert.equal(await store.create('alice', plant(1n)), 'stored', 'users are not asked for yet')
    etcdctl(endpoint, 'auth', 'enable')
    assert.equal(await store.create('alice', plant(2n)), 'stored')
    etcdctl(endpoint, '--user', 'root:pw', 'role', 'grant-permission', 'plants', 'read', 'x')
    assert.equal(await store.create('alice', plant(3n)), 'stored')
    const [member] = cluster.members
    assert.ok(member)
    await member.end()
    cluster.startMember(member)
    assert.equal(await store.create('alice', plant(4n)), 'stored')
    assert.equal(
      (await readAll(store.list('alice', { after: undefined, limit: undefined }))).length,
      4,
    )
    await until('there is no unavailableReason', () => store.unavailableReason() === undefined)
    for (const [other, reason] of [
      [{ ...config, user: { name: 'p', password: 'wrong' } }, /authentication failed/],
      [{ ...config, prefix: 'other/' }, /permission denied/],
      [{ ...config, user: undefined }, /user name is empty/],
    ] as const) {
      const refused = await openStore(t, other)
      assert.match(refused.unavailableReason() ?? '', reason)
      await assert.rejects(refused.create('alice', plant(1n)), StoreUnavailable)
      assert.equal(
        (await fetch(`${endpoint}/health`)).status,
        200,
        'etcd itself calls itself healthy',
      )
    }
  },
)

test(
  'TLS: without the CA or a client certificate nothing is kept',
  { skip: secured },
  async (t) => {
    const authority = new Authority(await temporaryDirectory())
    const { directory } = authority
    const file = (name: string): string => authority.file(name)
    for (const name of ['server', 'client']) authority.sign(name, `/CN=${name}`)
    const cluster = await ownCluster(t, {
      scheme: 'https',
      flags: [
        '--cert-file',
        file('server.pem'),
        '--key-file',
        file('server.key'),
        '--client-cert-auth',
        '--trusted-ca-file',
        file('ca.pem'),
      ],
    })
    const data = join(directory, 'data')
    const env = {
      PLANTS_ETCD_ENDPOINTS: cluster.endpoints.join(),
      PLANTS_ETCD_CA_FILE: file('ca.pem'),
      PLANTS_ETCD_CERT_FILE: file('client.pem'),
      PLANTS_ETCD_KEY_FILE: file('client.key'),
    }
    const server = await startProcess(t, data, env)
    await until(
      'it is ready',
      async () => (await call(server.adminPort, { path: '/readyz' })).status === 200,
    )
    assert.equal((await post(server.port, { id: 1, name: 'x' })).status, 200)
    const { PLANTS_ETCD_CA_FILE: _, ...unknownCa } = env
    const { PLANTS_ETCD_CERT_FILE: __, PLANTS_ETCD_KEY_FILE: ___, ...nobody } = env
    const refused = async (
      wrong: Readonly<Record<string, string>>,
      reason: RegExp,
    ): Promise<void> => {
      const { adminPort } = await startProcess(t, data, wrong)
      await until(`the reason is ${reason}`, async () => {
        const { status, text } = await call(adminPort, { path: '/readyz' })
        assert.equal(status, 503)
        return reason.test(text)
      })
    }
    await Promise.all([
      refused(unknownCa, /self.signed|unable to (?:get|verify)/),
      refused(nobody, /certificate required|bad certificate|ECONNRESET|socket hang up/),
    ])
  },
)

test(
  'import brings the plants of the embedded store into etcd; check and export say what is used instead',
  { skip },
  async (t) => {
    const directory = await temporaryDirectory()
    const { endpoints, prefix } = await configured()
    const etcd = { PLANTS_ETCD_ENDPOINTS: endpoints.join(), PLANTS_ETCD_PREFIX: prefix }
    const embedded = await startProcess(t, join(directory, 'data'))
    for (const [id, owner] of [
      ['-9223372036854775808', 'alice'],
      ['9223372036854775807', 'alice'],
      ['1', 'bob'],
    ] as const) {
      assert.equal(
        (await post(embedded.port, `{"id":${id},"name":"${owner}"}`, { token: token(owner) }))
          .status,
        200,
      )
    }
    const file = join(directory, 'plants.db')
    assert.equal((await run(['export', file], { PLANTS_DATA: join(directory, 'data') })).status, 0)
    const server = await startProcess(t, join(directory, 'none'), etcd)
    assert.equal(
      (await post(server.port, { id: 1, name: 'other' }, { token: token('bob') })).status,
      200,
    )
    const conflicting = await run(['import', file], etcd)
    assert.equal(conflicting.status, 1)
    assert.match(
      conflicting.stderr,
      /not imported: owner "bob", id 1: the store has another plant with this id/,
    )
    assert.deepEqual((await call(server.port)).json(), [{ name: 'alice' }, { name: 'alice' }])
    assert.deepEqual(
      await run(['import', file], { ...etcd, PLANTS_ETCD_PREFIX: `${prefix}fresh/` }),
      {
        status: 0,
        stdout: `3 plants read from ${file}; all of them are in the store\n`,
        stderr: '',
      },
    )
    const unreachable = await run(['import', file], { PLANTS_ETCD_ENDPOINTS: 'http://127.0.0.1:1' })
    assert.equal(unreachable.status, 1)
    assert.match(
      unreachable.stderr,
      /^plant-store: nothing can be kept at the moment: etcd did not answer in time: .*ECONNREFUSED/m,
    )
    for (const command of [['check'], ['export', join(directory, 'other.db')]]) {
      const { status, stderr } = await run(command, etcd)
      assert.equal(status, 1)
      assert.match(stderr, /is for the embedded store: .*etcdctl/)
    }
    assert.equal(await server.kill('SIGTERM'), 0)
  },
)
