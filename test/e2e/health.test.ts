import assert from 'node:assert/strict'
import { once } from 'node:events'
import { type AddressInfo, createServer } from 'node:net'
import { test } from 'node:test'
import { command } from '../support/process.ts'
import { embed, temporaryDirectory } from '../support/service.ts'
import { serving } from '../support/serving.ts'

const OK = { status: 0, stdout: 'ok\n', stderr: '' }
const health = (env: Readonly<Record<string, string>>) => command(['health'], env)

/** A port that is free at every address. What `freePort` returns is taken at one. */
async function freeEverywhere(): Promise<number> {
  const server = createServer().listen(0, '::')
  await once(server, 'listening')
  // It listens on TCP.
  const { port } = server.address() as AddressInfo
  await once(server.close(), 'close')
  return port
}

const folder = await temporaryDirectory()
const port = await freeEverywhere()
const [own, all] = [`unix:${folder}/plants.sock`, `0.0.0.0:${port}`]

for (const [listen, adminListen] of [
  [own, all],
  [own, `[::]:${port}`],
  [own, `unix:${folder}/admin.sock`],
  [`127.0.0.1:${port}`, 'off'],
] as const)
  test(`health: asks what the settings name: ${listen}, ${adminListen}`, async (t) => {
    const [variable, address] =
      adminListen === 'off' ? ['PLANTS_LISTEN', listen] : ['PLANTS_ADMIN_LISTEN', adminListen]
    const env = { PLANTS_LISTEN: listen, PLANTS_ADMIN_LISTEN: adminListen }
    const assertDown = async (): Promise<void> => {
      const { status, stdout, stderr } = await health(env)
      assert.deepEqual([status, stdout], [1, ''])
      assert.ok(stderr.startsWith(`plant-store: ${variable}: ${address} does not answer: `))
    }
    await assertDown()
    const service = await embed(t, { listen, adminListen })
    await service.listen()
    assert.deepEqual(await health(env), OK)
    await service.close()
    await assertDown()
  })

test('health: [::] is asked at 127.0.0.1, where it listens without IPv6 too', async (t) => {
  const service = await embed(t, { listen: own, adminListen: `127.0.0.1:${port}` })
  await service.listen()
  assert.deepEqual(await health({ PLANTS_ADMIN_LISTEN: `[::]:${port}` }), OK)
})

test('health: a service whose issuer is down is alive', async (t) => {
  const issuer = await serving(t, (_, res) => res.writeHead(500).end())
  const keys = { jwtSecret: undefined, jwksUrl: `${issuer}/keys` }
  const service = await embed(t, { listen: own, adminListen: all, ...keys })
  await service.listen()
  assert.deepEqual(await health({ PLANTS_ADMIN_LISTEN: all }), OK)
  assert.equal(service.health().status, 'unavailable')
})

test('health: what is no healthy plant store is not, within seconds', async (t) => {
  const wrong = await serving(t, (_, res) => res.writeHead(404).end('{}'))
  const silent = await serving(t, () => {})
  for (const [listen, reason] of [
    [wrong.replace('http://', ''), 'it answered 404'],
    [silent.replace('http://', ''), 'aborted'],
    ['127.0.0.1:0', 'a free port is another one each time'],
  ] as const) {
    const { status, stderr } = await health({ PLANTS_ADMIN_LISTEN: listen })
    assert.equal(status, 1)
    assert.ok(stderr.includes(`${listen} does not answer: `) && stderr.includes(reason), stderr)
  }
})
