import assert from 'node:assert/strict'
import { once } from 'node:events'
import fs, { existsSync, mkdirSync, readdirSync, renameSync, writeFileSync } from 'node:fs'
import { generateKeyPairSync } from 'node:crypto'
import { createServer as createHttp, Server } from 'node:http'
import { syncBuiltinESMExports } from 'node:module'
import { type AddressInfo, createServer } from 'node:net'
import { join } from 'node:path'
import { type TestContext, test } from 'node:test'
import { FileKeys } from '../dist/auth/file-keys.js'
import { readOptions } from '../dist/config.js'
import { ListenFailed } from '../dist/http/listen.js'
import { Connections } from '../dist/http/server.js'
import { createPlantService, type PlantService, type PlantServiceConfig } from '../dist/index.js'
import { createLog } from '../dist/ops/log.js'
import { StoreUnavailable } from '../dist/plants/store.js'
import { createService } from '../dist/service.js'
import { DirectoryLocked } from '../dist/store/sqljs/lock.js'
import { SqljsStore } from '../dist/store/sqljs/store.js'
import { call, post } from './support/http.ts'
import { PEM, readPair } from './support/keys.ts'
import { underWay } from './support/metrics.ts'
import { serving } from './support/serving.ts'
import { startService, temporaryDirectory } from './support/service.ts'
import { stopClock, until } from './support/time.ts'
import { AUDIENCE, ISSUER, SECRET } from './support/tokens.ts'
import { verdict } from './support/verdict.ts'
import { postBytes, Wire } from './support/wire.ts'

/** What every service here is told; each has a directory of its own beside. */
const OPTIONS: PlantServiceConfig = {
  issuer: ISSUER,
  audience: AUDIENCE,
  keys: { kind: 'secret', secret: SECRET },
  listen: '127.0.0.1:0',
  adminListen: '127.0.0.1:0',
  logLevel: 'silent',
}

const KEY = readPair(generateKeyPairSync('ed25519', PEM)).publicKey.export({ format: 'jwk' })

interface Unix {
  readonly path: string
}

function embedded(t: TestContext, options: Partial<PlantServiceConfig>): PlantService {
  const service = createPlantService({ ...OPTIONS, ...options })
  t.after(() => service.close())
  return service
}

async function newDirectory(): Promise<string> {
  return join(await temporaryDirectory(), 'data')
}

function portOf(url: string): number {
  return Number(new URL(url).port)
}

test('open: after a locked directory it may be called again, and then serves', async (t) => {
  const dataDirectory = await newDirectory()
  const holder = await startService(t, { dataDirectory })
  assert.equal((await post(holder.port, { id: 1, name: 'Fern' })).status, 200)
  const service = embedded(t, { dataDirectory })
  for (const attempt of await Promise.allSettled([
    service.open(),
    service.open(),
    service.listen(),
  ])) {
    assert.ok(attempt.status === 'rejected' && attempt.reason instanceof DirectoryLocked)
  }
  await assert.rejects(service.open(), DirectoryLocked)
  await holder.close()
  await service.open()
  const { plants } = await service.listen()
  assert.deepEqual((await call(portOf(plants))).json(), [{ name: 'Fern' }])
})

test('open: several calls at once share one attempt', async (t) => {
  const opened = t.mock.method(SqljsStore, 'open')
  const service = embedded(t, { dataDirectory: await newDirectory() })
  await Promise.all([service.open(), service.listen(), service.open()])
  assert.equal(opened.mock.callCount(), 1)
  assert.equal(await service.listen(), await service.listen())
})

test('close: after an open that failed it ends, and holds nothing', async (t) => {
  const dataDirectory = await newDirectory()
  const holder = await startService(t, { dataDirectory })
  const service = embedded(t, { dataDirectory })
  await assert.rejects(service.open(), DirectoryLocked)
  await service.close()
  await holder.close()
  await startService(t, { dataDirectory })
})

test('listen: a failed one leaves nothing open, and may be called again', async (t) => {
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
  const service = embedded(t, {
    dataDirectory,
    keys: { kind: 'url', url: `${issuer}/keys` },
    listen: { host: '127.0.0.1', port },
    adminListen: `unix:${folder}/admin.sock`,
  })

  await assert.rejects(
    service.listen(),
    (error) => error instanceof ListenFailed && /admin\.sock/.test(error.message),
  )
  assert.equal(existsSync(dataDirectory), false)

  mkdirSync(folder)
  const attempts = await Promise.allSettled([service.listen(), service.listen()])
  for (const attempt of attempts) {
    assert.ok(attempt.status === 'rejected' && attempt.reason instanceof ListenFailed)
    assert.match(attempt.reason.message, new RegExp(`^cannot listen on 127\\.0\\.0\\.1:${port}: `))
  }
  assert.deepEqual(readdirSync(folder), [])
  assert.equal(fetches, 0)
  // Nobody holds the directory.
  await (await startService(t, { dataDirectory })).close()

  taken.close()
  await once(taken, 'close')
  const { plants, admin } = await service.listen()
  assert.deepEqual([plants, admin], [`http://127.0.0.1:${port}`, `unix:${folder}/admin.sock`])
  assert.equal((await call(`${folder}/admin.sock`, { path: '/livez' })).status, 200)
  assert.equal((await call(`${folder}/admin.sock`, { path: '/metrics' })).status, 200)
  await until('keys are asked for', () => fetches > 0)
})

test('listen: a failed one leaves a store open that open() has opened', async (t) => {
  const path = join(await temporaryDirectory(), 'no folder', 'plants.sock')
  const service = embedded(t, { dataDirectory: await newDirectory(), listen: { path } })
  await service.open()
  const server = createHttp(service.handler).listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.after(() => server.close())
  // It listens on TCP.
  const { port } = server.address() as AddressInfo
  const opened = t.mock.method(SqljsStore, 'open')
  await assert.rejects(service.listen(), ListenFailed)
  assert.equal((await post(port, { id: 1, name: 'Fern' })).status, 200)
  assert.equal(opened.mock.callCount(), 0)
})

test('close: open, listen and requests are refused after it, for good', async (t) => {
  const service = embedded(t, { dataDirectory: await newDirectory() })
  await service.close()
  const closed = { message: 'the service is closed: create another one' }
  for (let i = 0; i < 2; i++) {
    await assert.rejects(service.open(), closed)
    await assert.rejects(service.open(), StoreUnavailable)
    await assert.rejects(service.listen(), closed)
    await assert.rejects(service.listen(), ListenFailed)
  }
  const port = portOf(await serving(t, service.handler))
  const { status, headers, json } = await call(port)
  assert.deepEqual([status, headers['retry-after']], [503, '1'])
  assert.equal((json() as { readonly error: number }).error, 50302)
})

test('handler: mounted without open(), it tries a locked directory once a second', async (t) => {
  const dataDirectory = await newDirectory()
  const holder = await startService(t, { dataDirectory })
  const lines: string[] = []
  const sink = {
    write(text: string, done: () => void) {
      lines.push(...text.trimEnd().split('\n'))
      done()
    },
  }
  const log = createLog('error', sink)
  const config = readOptions({ ...OPTIONS, dataDirectory })
  const service = createService(config, { log, onFatal: () => assert.fail() })
  t.after(() => service.close())
  const port = portOf(await serving(t, service.handler))
  const opened = t.mock.method(SqljsStore, 'open')
  const clock = stopClock(t)
  for (let i = 0; i < 10; i++) {
    const { status, headers, json } = await call(port)
    assert.deepEqual([status, headers['retry-after']], [503, '1'])
    assert.equal((json() as { readonly error: number }).error, 50302)
  }
  assert.equal(opened.mock.callCount(), 1)
  await until('the cause is in the log', () => lines.length > 0)
  assert.match(
    lines.join('\n'),
    /^[^\n]*"the store could not be opened"[^\n]*is in use by process[^\n]*$/,
  )
  await holder.close()
  assert.equal((await call(port)).status, 503)
  clock.pass(1000)
  assert.equal((await call(port)).status, 200)
  assert.equal(opened.mock.callCount(), 2)
})

test('paths: after a chdir every plant is kept where the first one is', async (t) => {
  const [first, other, before] = [
    await temporaryDirectory(),
    await temporaryDirectory(),
    process.cwd(),
  ]
  t.after(() => process.chdir(before))
  // So that a file that goes astray has a place to go to.
  mkdirSync(join(other, 'data'))
  process.chdir(first)
  const service = embedded(t, {
    dataDirectory: 'data',
    listen: 'unix:plants.sock',
    adminListen: 'off',
  })
  process.chdir(other)
  const socket = join(first, 'plants.sock')
  assert.equal((await service.listen()).plants, `unix:${socket}`)
  // Long enough for a compaction, and for the journals after it.
  for (let id = 0; id < 13; id++) {
    const body = JSON.stringify({ id, name: 'x'.repeat(900_000) })
    const headers = { 'content-type': 'application/json' }
    assert.equal((await call(socket, { method: 'POST', body, headers })).status, 200)
  }
  await service.close()
  assert.deepEqual([readdirSync(other), readdirSync(join(other, 'data'))], [['data'], []])
  const again = await startService(t, { dataDirectory: join(first, 'data') })
  assert.equal(((await call(again.port)).json() as unknown[]).length, 13)
})

test('close: during a recovery it waits for that, and nothing is served after', async (t) => {
  const dataDirectory = await newDirectory()
  const original = SqljsStore.open.bind(SqljsStore)
  let recover = (): void => {}
  const recovering = new Promise<void>((resolve) => (recover = resolve))
  const opened = t.mock.method(SqljsStore, 'open', (options: Parameters<typeof original>[0]) =>
    recovering.then(() => original(options)),
  )
  const folder = await temporaryDirectory()
  const listen = `unix:${folder}/plants.sock`
  // Would hold the stop if it were served.
  const service = embedded(t, { dataDirectory, listen, drainDelaySeconds: 3600 })
  const listening = service.listen()
  const refused = assert.rejects(listening, {
    message: 'the service is closed: create another one',
  })
  await until('it recovers', () => opened.mock.callCount() === 1)
  const closed = service.close()
  recover()
  await refused
  await closed
  assert.deepEqual(readdirSync(folder), [])
  opened.mock.restore()
  await startService(t, { dataDirectory })
})

/** Where a service on unix sockets listens, in a folder of its own. */
async function sockets(): Promise<{
  readonly folder: string
  readonly listen: Unix
  readonly adminListen: Unix
}> {
  const folder = join(await temporaryDirectory(), 'sockets')
  mkdirSync(folder)
  return {
    folder,
    listen: { path: join(folder, 'plants') },
    adminListen: { path: join(folder, 'admin') },
  }
}

test('stop: with its sockets folder gone it drains and leaves a snapshot', async (t) => {
  const { folder, listen, adminListen } = await sockets()
  const { dataDirectory, logLines, close } = await startService(t, { listen, adminListen })
  const half = postBytes({ id: 1, name: 'in flight' })
  const wire = (await Wire.to(listen.path)).write(half.slice(0, -3))
  await underWay(adminListen.path, 1)
  renameSync(folder, `${folder}.gone`)
  writeFileSync(folder, 'no folder any more')
  const closed = close()
  assert.deepEqual((await wire.write(half.slice(-3)).allAnswers()).map(verdict), [200])
  await closed
  assert.ok(readdirSync(dataDirectory).includes('plants.sqlite'))
  const errors = () => logLines.filter((line) => line.includes('"level":"error"'))
  await until('both sockets are in the log', () => errors().length === 2)
  for (const line of errors()) assert.match(line, /"step":"accept no more[^"]*".*ENOTDIR/)
})

const fail = (): never => {
  throw new Error('impossible')
}

/** Calls that a stop makes and that may fail, each with the step that is logged then. */
const FAILING: readonly (readonly [step: string, breakIt: (t: TestContext) => unknown])[] = [
  ['accept no more', (t) => t.mock.method(fs, 'unlinkSync', fail)],
  ['answer what is under way', (t) => t.mock.method(Connections.prototype, 'drain', fail)],
  ['close the keys', (t) => t.mock.method(FileKeys.prototype, 'close', fail)],
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
  ['stop watching the event loop', (t) => t.mock.method(globalThis, 'clearInterval', fail)],
  [
    'close the connections of the admin listener',
    (t) => t.mock.method(Server.prototype, 'closeAllConnections', fail),
  ],
]

for (const [step, breakIt] of FAILING) {
  test(`stop: goes on where "${step}" fails`, async (t) => {
    const { listen, adminListen } = await sockets()
    const path = join(await temporaryDirectory(), 'jwks.json')
    writeFileSync(path, JSON.stringify({ keys: [KEY] }))
    const own = { listen, adminListen, keys: { kind: 'file', path } } as const
    const { dataDirectory, logLines, close } = await startService(t, own)
    breakIt(t)
    // What modules have imported by name is what is here when this is called.
    syncBuiltinESMExports()
    await close()
    t.mock.restoreAll()
    syncBuiltinESMExports()
    await until('it is logged', () => logLines.some((line) => line.includes(`"step":"${step}"`)))
    assert.match(logLines.join('\n'), new RegExp(`"step":"${step}"[^\n]*impossible`))
    // Nothing is held any more: neither an address nor the directory.
    await startService(t, { ...own, dataDirectory })
    assert.equal((await call(adminListen.path, { path: '/readyz', token: undefined })).status, 200)
  })
}
