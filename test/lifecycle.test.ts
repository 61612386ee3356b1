import assert from 'node:assert/strict'
import { once } from 'node:events'
import fs, { existsSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs'
import { Server } from 'node:http'
import { syncBuiltinESMExports } from 'node:module'
import { type AddressInfo, createServer } from 'node:net'
import { join } from 'node:path'
import { type TestContext, test } from 'node:test'
import type { LogLine, PlantService } from '../dist/index.js'
import { ListenFailed } from '../dist/http/listen.js'
import { HttpServer } from '../dist/http/server.js'
import { DirectoryLocked } from '../dist/store/sqljs/disk/lock.js'
import { SqljsStore } from '../dist/store/sqljs/sqljs-store.js'
import { call, post, type Reply } from './support/http.ts'
import { RFC_KEY } from './support/keys.ts'
import { portOf } from './support/ports.ts'
import { serving } from './support/serving.ts'
import { embed, startService, temporaryDirectory } from './support/service.ts'
import { until } from './support/time.ts'

const CLOSED = 'the service is closed: create another one'

async function newDirectory(): Promise<string> {
  return join(await temporaryDirectory(), 'data')
}

function assertUnavailable({ status, headers, json }: Reply): void {
  assert.deepEqual([status, headers['retry-after']], [503, '1'])
  assert.equal((json() as { readonly error: number }).error, 50302)
}

test('open: fails on a locked directory; another service opens it once it is free', async (t) => {
  const dataDirectory = await newDirectory()
  const holder = await startService(t, { data: dataDirectory })
  assert.equal((await post(holder.port, { id: 1, name: 'Fern' })).status, 200)
  const service = await embed(t, { data: dataDirectory })
  for (const attempt of [service.open(), service.open(), service.listen()])
    await assert.rejects(attempt, DirectoryLocked)
  await holder.close()
  await assert.rejects(service.open(), { message: CLOSED })
  const { plants } = await (await embed(t, { data: dataDirectory })).listen()
  assert.deepEqual((await call(portOf(plants))).json(), [{ name: 'Fern' }])
})

test('open: calls at the same time share one attempt', async (t) => {
  const opened = t.mock.method(SqljsStore, 'open')
  const service = await embed(t)
  await Promise.all([service.open(), service.listen(), service.open()])
  assert.equal(opened.mock.callCount(), 1)
  assert.equal(await service.listen(), await service.listen())
})

test('listen: a failed call frees its addresses, and fetches no key', async (t) => {
  const directory = await temporaryDirectory()
  const [folder, dataDirectory] = [join(directory, 'sockets'), join(directory, 'data')]
  let fetches = 0
  const issuer = await serving(t, (_req, res) => {
    fetches += 1
    res.writeHead(500).end()
  })
  const taken = createServer().listen(0, '127.0.0.1')
  await once(taken, 'listening')
  t.after(() => taken.close())
  // It listens on TCP.
  const { port } = taken.address() as AddressInfo
  const create = () =>
    embed(t, {
      data: dataDirectory,
      jwtSecret: undefined,
      jwksUrl: `${issuer}/keys`,
      listen: `127.0.0.1:${port}`,
      adminListen: `unix:${folder}/admin.sock`,
    })
  const refused = (service: PlantService, why: RegExp) =>
    assert.rejects(service.listen(), { name: 'ListenFailed', message: why })
  await refused(await create(), /admin\.sock/)
  assert.equal(existsSync(dataDirectory), false)

  mkdirSync(folder)
  const own = new RegExp(`^listen: cannot listen on 127.0.0.1:${port}: `)
  const service = await create()
  await Promise.all([refused(service, own), refused(service, own)])
  assert.deepEqual(readdirSync(folder), [])
  assert.equal(fetches, 0)
  assert.equal(service.health().checks.service, 'draining')

  taken.close()
  await once(taken, 'close')
  const { plants, admin } = await (await create()).listen()
  assert.deepEqual([plants, admin], [`http://127.0.0.1:${port}`, `unix:${folder}/admin.sock`])
  assert.equal((await call(`${folder}/admin.sock`, { path: '/livez' })).status, 200)
  assert.equal((await call(`${folder}/admin.sock`, { path: '/metrics' })).status, 200)
  await until('the keys are fetched', () => fetches > 0)
})

for (const isOpen of [true, false])
  test(`listen: a failed call closes a store that ${isOpen ? 'is open' : 'opens'}`, async (t) => {
    const data = await newDirectory()
    const path = join(await temporaryDirectory(), 'no folder', 'plants.sock')
    const unusable = { [isOpen ? 'listen' : 'adminListen']: `unix:${path}` }
    const service = await embed(t, { data, ...unusable })
    const opening = service.open()
    if (isOpen) await opening
    await Promise.all([
      assert.rejects(service.listen(), ListenFailed),
      isOpen || assert.rejects(opening, { message: CLOSED }),
    ])
    assertUnavailable(await call(portOf(await serving(t, service.handler))))
    await (await embed(t, { data })).open()
  })

test('close: afterwards open, listen and requests are refused for good', async (t) => {
  const service = await embed(t)
  await service.close()
  const closed = { message: CLOSED, name: 'StoreUnavailable' }
  for (let i = 0; i < 2; i++) {
    await assert.rejects(service.open(), closed)
    await assert.rejects(service.listen(), closed)
  }
  const port = portOf(await serving(t, service.handler))
  assertUnavailable(await call(port))
})

test('handler: before open() 503 at once, and one line in the log says why', async (t) => {
  const lines: LogLine[] = []
  const service = await embed(t, { logLevel: 'error', onLog: (line) => void lines.push(line) })
  const port = portOf(await serving(t, service.handler))
  const opened = t.mock.method(SqljsStore, 'open')
  // Before any other check.
  for (const path of ['/plants', '/plants?limit=x', '/nothing'])
    assertUnavailable(await call(port, { path, token: undefined }))
  assert.equal(opened.mock.callCount(), 0)
  await until('the cause is in the log', () => lines.length > 0)
  const opening = service.open()
  assertUnavailable(await call(port))
  await opening
  assert.equal((await call(port)).status, 200)
  assert.equal(lines.length, 1)
  assert.match(
    lines[0]?.message ?? '',
    /until the store is open: call open\(\) or listen\(\) first/,
  )
})

/** Unix sockets in a new folder. */
async function sockets() {
  const folder = await temporaryDirectory()
  return { listen: { path: `${folder}/plants` }, adminListen: { path: `${folder}/admin` } }
}

const fail = (): never => {
  throw new Error('impossible')
}

/** The file cannot clear a timer. A service of another test may clear its own meanwhile. */
function failClearing(t: TestContext, file: string): void {
  const { clearTimeout } = globalThis
  t.mock.method(globalThis, 'clearTimeout', (timer: NodeJS.Timeout) =>
    new Error().stack?.includes(file) ? fail() : clearTimeout(timer),
  )
}

/** A call that fails during a stop, and the step that the log must name. */
const FAILING: readonly (readonly [step: string, breakIt: (t: TestContext) => unknown])[] = [
  ['accept no more', (t) => t.mock.method(fs, 'unlinkSync', fail)],
  ['answer what is under way', (t) => t.mock.method(HttpServer.prototype, 'drain', fail)],
  ['close the keys', (t) => failClearing(t, '/auth/key-source.js')],
  ['close the server', (t) => t.mock.method(Server.prototype, 'close', fail)],
  [
    'release the store',
    (t) => {
      const { close } = SqljsStore.prototype
      t.mock.method(SqljsStore.prototype, 'close', async function (this: SqljsStore) {
        await close.call(this)
        fail()
      })
    },
  ],
  ['close admin connections', (t) => t.mock.method(Server.prototype, 'closeAllConnections', fail)],
]

test('stop: time limits hold until the requests under way are answered', async (t) => {
  const { close } = await startService(t)
  // It ends Node's checks of late headers and bodies.
  const closed = t.mock.method(Server.prototype, 'close')
  const drained = t.mock.method(HttpServer.prototype, 'drain', () => closed.mock.callCount())
  await close()
  assert.equal(drained.mock.calls[0]?.result, 0)
})

for (const [step, breakIt] of FAILING) {
  test(`stop: goes on after "${step}" fails`, async (t) => {
    const { listen, adminListen } = await sockets()
    const jwksFile = join(await temporaryDirectory(), 'jwks.json')
    writeFileSync(jwksFile, JSON.stringify({ keys: [RFC_KEY] }))
    const own = { listen, adminListen, jwksFile }
    const { dataDirectory, logLines, close } = await startService(t, own)
    breakIt(t)
    // Modules that imported these functions by name get the mocks only by this call.
    syncBuiltinESMExports()
    await close()
    t.mock.restoreAll()
    syncBuiltinESMExports()
    await until('it is logged', () => logLines.some((line) => line.includes(`"step":"${step}"`)))
    assert.match(logLines.join('\n'), new RegExp(`"step":"${step}"[^\n]*impossible`))
    // The addresses and the directory are free.
    await startService(t, { ...own, data: dataDirectory })
    assert.equal((await call(adminListen.path, { path: '/readyz', token: undefined })).status, 200)
  })
}
