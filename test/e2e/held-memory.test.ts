import assert from 'node:assert/strict'
import { writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { type AddressInfo, connect, type Socket } from 'node:net'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { call, post } from '../support/http.ts'
import { memoryOf } from '../support/memory.ts'
import { scrape } from '../support/metrics.ts'
import { type ServerProcess, startProcess } from '../support/process.ts'
import { until } from '../support/time.ts'
import { temporaryDirectory } from '../support/service.ts'
import { signToken, token } from '../support/tokens.ts'
import { head } from '../support/wire.ts'

/*
 * What strangers make the service hold before their token is verified. Each test sends as much as
 * the service takes, and reads nothing.
 */

/** The service reads until its memory stays the same for this long. */
const QUIET_MS = 500
const MIB = 1024 * 1024
const OPTIONS = {
  skip: process.platform === 'linux' ? false : 'NOT TESTED: memory is read from /proc',
}

/** The most header fields that a request may have, Host included; and the most bytes. */
const MOST_FIELDS = 99
const FIELD_BYTES = Math.floor((16 * 1024) / MOST_FIELDS) - 10
const HEAVY_LINES = Array.from(
  { length: MOST_FIELDS - 1 },
  (_, at) => `x${at}: ${String(at).padEnd(FIELD_BYTES, 'x')}`,
)
const HEAVY = head('GET', '/plants', { token: undefined, lines: HEAVY_LINES })
/** Node's parser does not count separators: they are just below its 16 KiB. */
const FIELDS = 'a: b\r\n'.repeat(5300)
const MANY_FIELDS = `GET /plants HTTP/1.1\r\nHost: a\r\n${FIELDS}\r\n`
const CHUNKED = ['Content-Type: application/json', 'Transfer-Encoding: chunked']
const ONE_BYTE_CHUNKS = '1\r\nx\r\n'.repeat(40_000)

interface Target extends ServerProcess {
  readonly path: string
}

/** On a unix socket, whose buffers are small: a response that is not read soon waits. */
async function start(
  t: TestContext,
  env: Readonly<Record<string, string>> = {},
): Promise<Target> {
  const directory = await temporaryDirectory()
  const path = join(directory, 'http.sock')
  const all = { PLANTS_LISTEN: `unix:${path}`, PLANTS_LOG_LEVEL: 'info', ...env }
  return { ...(await startProcess(t, join(directory, 'data'), all)), path }
}

/** Connections that send this and never read. */
function flood(t: TestContext, path: string, count: number, bytes: (at: number) => string): readonly Socket[] {
  const sockets: Socket[] = []
  t.after(() => sockets.forEach((socket) => socket.destroy()))
  for (let at = 0; at < count; at++) {
    const socket = connect(path).pause()
    sockets.push(socket.on('error', () => {}))
    socket.write(bytes(at), 'latin1')
  }
  return sockets
}

/** The most that was resident since the last call, in MiB, once that grows no more. */
async function peakMiB({ child }: ServerProcess): Promise<number> {
  let most = 0
  for (let grewAtMs = performance.now(); performance.now() - grewAtMs < QUIET_MS; await sleep(20)) {
    const now = memoryOf(child.pid).residentMiB
    if (now <= most + 1) continue
    most = now
    grewAtMs = performance.now()
  }
  const { peakMiB: peak } = memoryOf(child.pid)
  // The kernel's peak begins anew (proc(5), clear_refs).
  writeFileSync(`/proc/${child.pid}/clear_refs`, '5')
  return peak
}

/** The request of a list that the kernel's buffers do not hold. */
async function longList(path: string): Promise<string> {
  for (let id = 0; id < 12; id++)
    assert.equal((await post(path, { id, name: 'x'.repeat(60_000 + id) })).status, 200)
  return head('GET', '/plants', { token: token('alice') })
}

test('held: waiting requests with many headers take bounded memory', OPTIONS, async (t) => {
  const service = await start(t)
  const list = await longList(service.path)
  await peakMiB(service)
  flood(t, service.path, 60, () => list + MANY_FIELDS.repeat(60))
  const after = await peakMiB(service)
  t.diagnostic(`60 connections: at most ${Math.round(after)} MiB in all`)
  assert.ok(after < 150, `${after} MiB`)
})

test('held: beyond the bound the largest strangers are closed, owners are served', OPTIONS, async (t) => {
  const service = await start(t)
  const line = `x: ${'x'.repeat(230)}`
  const first = head('GET', '/plants', { token: undefined, lines: [line] })
  const sockets = flood(t, service.path, 600, () => first.repeat(1000) + HEAVY.repeat(60))
  const after = await peakMiB(service)
  const { value } = await scrape(service.adminPort)
  const held = value('plant_store_held_stranger_bytes') ?? 0
  t.diagnostic(`600 connections: at most ${Math.round(after)} MiB in all, ${held} bytes counted`)
  assert.ok(held > 32 * MIB && held <= 64 * MIB, String(held))
  assert.ok(after < 300, `${after} MiB`)
  assert.equal((await post(service.path, { id: 1, name: 'a' })).status, 200)
  assert.equal((await call(service.path)).status, 200)
  for (const socket of sockets) socket.destroy()
  await until('nothing is held', async () => {
    return (await scrape(service.adminPort)).value('plant_store_held_stranger_bytes') === 0
  })
})

test('held: headers that never end take little memory', OPTIONS, async (t) => {
  const service = await start(t)
  await peakMiB(service)
  const before = memoryOf(service.child.pid).residentMiB
  flood(t, service.path, 300, () => MANY_FIELDS.slice(0, -2))
  const after = await peakMiB(service)
  t.diagnostic(`300 connections: ${Math.round(before)} MiB before, ${Math.round(after)} after`)
  assert.ok(after - before < 30, `${after - before} MiB`)
})

test('held: a body after an unread list takes what one read brings', OPTIONS, async (t) => {
  const service = await start(t)
  const list = await longList(service.path)
  await peakMiB(service)
  const before = memoryOf(service.child.pid).residentMiB
  const body = head('POST', '/plants', { token: token('alice'), lines: CHUNKED }) + ONE_BYTE_CHUNKS
  flood(t, service.path, 100, () => list + body)
  const after = await peakMiB(service)
  t.diagnostic(`100 connections: ${Math.round(before)} MiB before, ${Math.round(after)} after`)
  assert.ok(after - before < 100, `${after - before} MiB`)
})

test('held: a body whose token waits for keys takes what one read brings', OPTIONS, async (t) => {
  // An issuer that never answers.
  const issuer = createServer(() => {}).listen(0, '127.0.0.1')
  t.after(() => issuer.close().closeAllConnections())
  await new Promise((resolve) => issuer.once('listening', resolve))
  // It listens on TCP.
  const { port } = issuer.address() as AddressInfo
  const service = await start(t, { PLANTS_JWKS_URL: `http://127.0.0.1:${port}/keys` })
  await peakMiB(service)
  const before = memoryOf(service.child.pid).residentMiB
  const bearer = (at: number): string =>
    signToken({ alg: 'ES256', kid: String(at) }, { sub: 'a' }, () => Buffer.alloc(64, 1))
  flood(
    t,
    service.path,
    400,
    (at) => head('POST', '/plants', { token: bearer(at), lines: CHUNKED }) + ONE_BYTE_CHUNKS,
  )
  const after = await peakMiB(service)
  t.diagnostic(`400 connections: ${Math.round(before)} MiB before, ${Math.round(after)} after`)
  assert.ok(after - before < 100, `${after - before} MiB`)
})
