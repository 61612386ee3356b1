import assert from 'node:assert/strict'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { connect, type Socket } from 'node:net'
import { test, type TestContext } from 'node:test'
import { call, post } from '../support/http.ts'
import { memoryOf } from '../support/memory.ts'
import { startProcess } from '../support/process.ts'
import { LONG } from '../support/scale.ts'
import { temporaryDirectory } from '../support/service.ts'
import { head } from '../support/wire.ts'

const IDLE = 10_000
/** Descriptors of the tests' own process and of the service beside those connections. */
const SPARE = 200
/**
 * Less than a connection that keeps a buffer of 64 KiB would take. V8's young generation grows
 * meanwhile and counts too: with Node 26 each connection seems to take 29 to 38 KB.
 */
const IDLE_MAX_BYTES = 48 * 1024
const MIB = 1024 * 1024

/** Node has raised its own soft limit to the hard one, which is what a child gets. */
function maxDescriptors(): number {
  const limits = readFileSync('/proc/self/limits', 'utf8')
  return Number(/^Max open files +(\d+)/m.exec(limits)?.[1] ?? Infinity)
}

/** Connections that have the response to one request. */
async function openIdle(t: TestContext, port: number): Promise<readonly Socket[]> {
  const sockets: Socket[] = []
  t.after(() => sockets.forEach((socket) => socket.destroy()))
  while (sockets.length < IDLE) {
    const some = Array.from({ length: 250 }, () => connect(port, '127.0.0.1'))
    sockets.push(...some)
    for (const socket of some) socket.on('error', () => {}).write(head('GET', '/plants?limit=1'))
    await Promise.all(some.map((socket) => once(socket, 'data')))
  }
  return sockets
}

test(`load: ${IDLE} idle connections take little memory`, { skip: LONG }, async (t) => {
  const needed = IDLE + SPARE
  if (maxDescriptors() < needed)
    return t.skip(`NOT TESTED: needs ${needed} descriptors (ulimit -n)`)
  const service = await startProcess(t, `${await temporaryDirectory()}/data`, {
    PLANTS_MAX_CONNECTIONS: String(IDLE + 10),
    PLANTS_SHUTDOWN_TIMEOUT: '120',
  })
  for (let id = 0; id < 300; id++) await call(service.port, { path: '/plants?limit=1' })
  const resident = () => memoryOf(service.child.pid).residentMiB * MIB
  const before = resident()
  const idle = await openIdle(t, service.port)
  const each = (resident() - before) / IDLE
  assert.equal((await post(service.port, { id: 1, name: 'meanwhile' })).status, 200)
  assert.deepEqual((await call(service.port)).json(), [{ name: 'meanwhile' }])
  assert.equal((await call(service.adminPort, { path: '/readyz', token: undefined })).status, 200)
  assert.ok(each < IDLE_MAX_BYTES, `${each} bytes`)
  assert.equal(idle.filter((socket) => socket.destroyed).length, 0)
  t.diagnostic(`${Math.round(each)} bytes for each idle connection`)
  // They do not hold the stop up either.
  assert.equal(await service.kill('SIGTERM'), 0)
  assert.doesNotMatch(service.output(), /given up/)
})

test('load: a low limit of open files is in the log at the start', async (t) => {
  const [connections, others] = [50, 96]
  for (const [maxDescriptors, isLow] of [
    [connections + others, false],
    [connections + others - 1, true],
  ] as const) {
    const settings = { PLANTS_MAX_CONNECTIONS: String(connections) }
    const directory = `${await temporaryDirectory()}/data`
    const service = await startProcess(t, directory, settings, ['serve'], { maxDescriptors })
    const needed = `"openFiles":${maxDescriptors},"needed":${connections + others}`
    const line = `"the limit of open files is low for PLANTS_MAX_CONNECTIONS",${needed}`
    assert.equal(service.output().includes(line), isLow, service.output())
    assert.equal(await service.kill('SIGTERM'), 0)
  }
})
