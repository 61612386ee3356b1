import assert from 'node:assert/strict'
import { createServer } from 'node:net'
import { once } from 'node:events'
import { join } from 'node:path'
import { test } from 'node:test'
import { freePort } from '../support/ports.ts'
import { command, startProcess } from '../support/process.ts'
import { temporaryDirectory } from '../support/service.ts'
import { serving } from '../support/serving.ts'

const OK = { status: 0, stdout: 'ok\n', stderr: '' }

/** A port that is free at every address. What `freePort` returns is taken at one. */
async function freeEverywhere(): Promise<number> {
  const server = createServer().listen(0, '::')
  await once(server, 'listening')
  const address = server.address()
  await once(server.close(), 'close')
  assert.ok(address !== null && typeof address === 'object')
  return address.port
}

async function health(env: Readonly<Record<string, string>>) {
  return command(['health'], env)
}

test('health: asks the listener that the settings name, whichever that is', async (t) => {
  const folder = await temporaryDirectory()
  const port = await freeEverywhere()
  const [own, admin] = [`unix:${folder}/plants.sock`, `unix:${folder}/admin.sock`]
  for (const [i, env] of [
    { PLANTS_LISTEN: own, PLANTS_ADMIN_LISTEN: `0.0.0.0:${port}` },
    { PLANTS_LISTEN: own, PLANTS_ADMIN_LISTEN: `[::]:${port}` },
    { PLANTS_LISTEN: own, PLANTS_ADMIN_LISTEN: admin },
    { PLANTS_LISTEN: `127.0.0.1:${port}`, PLANTS_ADMIN_LISTEN: 'off' },
    { PLANTS_LISTEN: own, PLANTS_ADMIN_LISTEN: 'off', PLANTS_DATA: ':memory:' },
  ].entries()) {
    const data = { PLANTS_DATA: join(folder, `data-${i}`), ...env }
    const before = await health(data)
    assert.deepEqual([before.status, before.stdout], [1, ''])
    const where = env.PLANTS_ADMIN_LISTEN === 'off' ? 'PLANTS_LISTEN' : 'PLANTS_ADMIN_LISTEN'
    const address = env.PLANTS_ADMIN_LISTEN === 'off' ? env.PLANTS_LISTEN : env.PLANTS_ADMIN_LISTEN
    assert.ok(before.stderr.startsWith(`plant-store: ${where}: ${address} does not answer: `))
    const server = await startProcess(t, data.PLANTS_DATA, env)
    assert.deepEqual(await health(data), OK)
    assert.equal(await server.kill('SIGTERM'), 0)
    assert.equal((await health(data)).status, 1)
  }
})

test('health: a service whose issuer is down is alive', async (t) => {
  const issuer = await serving(t, (_, res) => res.writeHead(500).end())
  const data = join(await temporaryDirectory(), 'data')
  const admin = { PLANTS_ADMIN_LISTEN: `127.0.0.1:${await freePort()}` }
  await startProcess(t, data, { ...admin, PLANTS_JWKS_URL: `${issuer}/keys` })
  assert.deepEqual(await health({ ...admin, PLANTS_DATA: data }), OK)
})

test('health: what is no healthy plant store is not, within seconds', async (t) => {
  const wrong = await serving(t, (_, res) => res.writeHead(404).end('{}'))
  const silent = createServer().listen(0, '127.0.0.1')
  await once(silent, 'listening')
  t.after(() => silent.close())
  const address = silent.address()
  assert.ok(address !== null && typeof address === 'object')
  for (const [listen, reason] of [
    [wrong.replace('http://', ''), 'it answered 404'],
    [`127.0.0.1:${address.port}`, 'aborted'],
    ['127.0.0.1:0', 'a free port is another one each time'],
  ] as const) {
    const { status, stderr } = await health({ PLANTS_ADMIN_LISTEN: listen })
    assert.equal(status, 1)
    assert.ok(stderr.includes(`${listen} does not answer: `) && stderr.includes(reason), stderr)
  }
})
