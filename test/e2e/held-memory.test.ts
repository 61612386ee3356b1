import assert from 'node:assert/strict'
import { join } from 'node:path'
import { test } from 'node:test'
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
import { startProcess } from '../support/process.ts'
import { LONG } from '../support/scale.ts'
import { temporaryDirectory } from '../support/service.ts'
import { token } from '../support/tokens.ts'
import { head } from '../support/wire.ts'

/*
 * What clients make the service hold before it answers them. Each sends as much as the service
 * takes, and reads nothing.
 */

const LIST = head('GET', '/plants', { token: token('alice') })
const ALICE = token('alice')

/** What these many connections send, and by how many MiB the process may grow. */
const FLOODS: readonly (readonly [
  what: string,
  connections: number,
  maxMiB: number,
  bytes: (at: number) => string,
  skip?: typeof LONG,
])[] = [
  ['headers of requests that wait', 60, 130, () => LIST + `${MANY_HEADERS}\r\n`.repeat(60), LONG],
  // A list of their chunks takes 160 MiB and more.
  ['bodies in chunks of one byte', 10, 80, () => oneByteChunks(ALICE)],
  ['headers that never end', 300, 30, () => MANY_HEADERS, LONG],
  ['a body that waits for an unread list', 100, 40, () => LIST + oneByteChunks(ALICE), LONG],
  [
    'a body whose token waits for keys',
    400,
    60,
    (at) => oneByteChunks(strangeToken(String(at))),
    LONG,
  ],
]

for (const [what, connections, maxMiB, bytes, long = false] of FLOODS) {
  const skip = process.platform === 'linux' ? long : 'NOT TESTED: memory is read from /proc'
  test(`held: ${what} take less than ${maxMiB} MiB`, { skip }, async (t) => {
    const directory = await temporaryDirectory()
    // On a unix socket, whose buffers are small: a response that is not read soon waits.
    const path = join(directory, 'http.sock')
    const env = { PLANTS_LISTEN: `unix:${path}` }
    const issuer = what.includes('keys') ? await silentIssuer() : undefined
    t.after(() => issuer?.close())
    const keys = issuer ? { PLANTS_JWKS_URL: issuer.url } : {}
    const { child } = await startProcess(t, join(directory, 'data'), { ...env, ...keys })
    // A list that the kernel's buffers do not hold.
    if (!issuer)
      for (let id = 0; id < 12; id++)
        assert.equal((await post(path, { id, name: 'x'.repeat(60_000) })).status, 200)
    await peakMiB(child.pid)
    const before = memoryOf(child.pid).residentMiB
    const sockets = flood(path, connections, bytes)
    t.after(() => sockets.forEach((socket) => socket.destroy()))
    const most = await peakMiB(child.pid)
    t.diagnostic(`${connections} connections: ${Math.round(before)} MiB, then ${Math.round(most)}`)
    assert.ok(most - before < maxMiB, `${most - before} MiB`)
  })
}
