import assert from 'node:assert/strict'
import type { Socket } from 'node:net'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import {
  flood,
  MANY_HEADERS,
  oneByteChunks,
  peakMiB,
  silentIssuer,
  strangeToken,
} from '../support/flood.ts'
import { post } from '../support/http.ts'
import { memoryOf } from '../support/memory.ts'
import { type ServerProcess, startProcess } from '../support/process.ts'
import { temporaryDirectory } from '../support/service.ts'
import { token } from '../support/tokens.ts'
import { head } from '../support/wire.ts'

/*
 * What clients make the service hold before it answers them. Each sends as much as the service
 * takes, and reads nothing.
 */

const OPTIONS = {
  skip: process.platform === 'linux' ? false : 'NOT TESTED: memory is read from /proc',
}

interface Target extends ServerProcess {
  readonly path: string
}

/** On a unix socket, whose buffers are small: a response that is not read soon waits. */
async function start(t: TestContext, env: Readonly<Record<string, string>> = {}): Promise<Target> {
  const directory = await temporaryDirectory()
  const path = join(directory, 'http.sock')
  const all = { PLANTS_LISTEN: `unix:${path}`, ...env }
  return { ...(await startProcess(t, join(directory, 'data'), all)), path }
}

/** By how many MiB the process grows at most while these connections send. */
async function growthOf(
  t: TestContext,
  { child: { pid }, path }: Target,
  connections: number,
  bytes: (at: number) => string,
): Promise<{ readonly grown: number; readonly sockets: readonly Socket[] }> {
  await peakMiB(pid)
  const before = memoryOf(pid).residentMiB
  const sockets = flood(path, connections, bytes)
  t.after(() => sockets.forEach((socket) => socket.destroy()))
  const most = await peakMiB(pid)
  t.diagnostic(`${connections} connections: ${Math.round(before)} MiB, then ${Math.round(most)}`)
  return { grown: most - before, sockets }
}

/** The request of a list that the kernel's buffers do not hold. */
async function longList(path: string): Promise<string> {
  for (let id = 0; id < 12; id++)
    assert.equal((await post(path, { id, name: 'x'.repeat(60_000) })).status, 200)
  return head('GET', '/plants', { token: token('alice') })
}

test('held: headers of requests that wait take bounded memory', OPTIONS, async (t) => {
  const service = await start(t)
  const list = await longList(service.path)
  const bytes = list + `${MANY_HEADERS}\r\n`.repeat(60)
  const { grown } = await growthOf(t, service, 60, () => bytes)
  assert.ok(grown < 130, `${grown} MiB`)
})

test('held: headers that never end take little memory', OPTIONS, async (t) => {
  const { grown } = await growthOf(t, await start(t), 300, () => MANY_HEADERS)
  assert.ok(grown < 30, `${grown} MiB`)
})

test('held: a body that waits for an unread list takes little memory', OPTIONS, async (t) => {
  const service = await start(t)
  const bytes = (await longList(service.path)) + oneByteChunks(token('alice'))
  const { grown } = await growthOf(t, service, 100, () => bytes)
  assert.ok(grown < 40, `${grown} MiB`)
})

test('held: a body whose token waits for keys takes little memory', OPTIONS, async (t) => {
  const issuer = await silentIssuer()
  t.after(issuer.close)
  const service = await start(t, { PLANTS_JWKS_URL: issuer.url })
  const { grown } = await growthOf(t, service, 400, (at) => oneByteChunks(strangeToken(String(at))))
  assert.ok(grown < 60, `${grown} MiB`)
})
