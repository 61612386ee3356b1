import assert from 'node:assert/strict'
import { once } from 'node:events'
import type { Socket } from 'node:net'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { ALICE, type Bare, type BareOptions, startBare } from '../support/bare.ts'
import { temporaryDirectory } from '../support/directories.ts'
import { until } from '../support/time.ts'
import { verdict } from '../support/verdict.ts'
import { head, postBytes, Wire } from '../support/wire.ts'

const KIB = 1024
/** What Node reads at once. */
const READ_BYTES = 64 * KIB
/** More than one read and the buffers of a unix socket. */
const LONG = { id: 1, name: 'x'.repeat(900_000) }
const GET = head('GET', '/plants')
const CHUNKED =
  head('POST', '/plants', {
    lines: ['Content-Type: application/json', 'Transfer-Encoding: chunked'],
  }) + `${JSON.stringify(LONG).length.toString(16)}\r\n${JSON.stringify(LONG)}\r\n0\r\n\r\n`

/** HTTP on a unix socket. No token is decided before `decide`. */
async function start(
  t: TestContext,
  options: BareOptions = {},
): Promise<Bare & { readonly path: string; decide(): void }> {
  let decide = (): void => {}
  const decided = new Promise<void>((resolve) => (decide = resolve))
  const path = join(await temporaryDirectory(), 'http.sock')
  const authenticate = async (): Promise<typeof ALICE> => (await decided, ALICE)
  const bare = await startBare(t, { path, authenticate, ...options })
  return { ...bare, path, decide: () => decide() }
}

for (const [what, before, bytes] of [
  ['of known length', '', postBytes(LONG)],
  ['in chunks', '', CHUNKED],
  ['that waits for a request', GET, postBytes(LONG)],
] as const) {
  test(`strangers: a body ${what} is read no further before its token is decided`, async (t) => {
    const { path, connections, decide } = await start(t)
    const { strangers } = connections
    const wire = await Wire.to(path)
    // A request that waits pauses the socket: then what one read brings must hold some of the body.
    const split = before === '' ? bytes.indexOf('\r\n\r\n') + 4 : bytes.length
    wire.write(before + bytes.slice(0, split))
    const count = before === '' ? 1 : 2
    await until('its headers are read', () => connections.active === count)
    wire.write(bytes.slice(split))
    await until('some of it is held', () => strangers.heldBytes >= 8 * KIB)
    await sleep(100)
    // The buffer doubles, and headers count too.
    assert.ok(strangers.heldBytes < 2.5 * READ_BYTES, String(strangers.heldBytes))
    assert.ok(wire.socket.writableLength > 0)
    decide()
    assert.equal((await wire.answers(count)).map(verdict).at(-1), 200)
    assert.equal(strangers.heldBytes, 0)
    wire.destroy()
  })
}

test('strangers: a body that becomes due before its token is decided stays unread', async (t) => {
  const decisions: (() => void)[] = []
  const decided = (): Promise<void> => new Promise((resolve) => decisions.push(resolve))
  const { path, connections } = await start(t, {
    authenticate: async () => (await decided(), ALICE),
  })
  const { strangers } = connections
  const wire = await Wire.to(path)
  wire.write(GET + postBytes(LONG))
  await until('some of it is held', () => strangers.heldBytes >= 8 * KIB)
  decisions[0]?.()
  await until('the body is due', () => decisions.length === 2)
  await sleep(100)
  assert.ok(strangers.heldBytes > 0 && strangers.heldBytes < 2.5 * READ_BYTES)
  assert.ok(wire.socket.writableLength > 0)
  decisions[1]?.()
  assert.deepEqual((await wire.answers(2)).map(verdict), [200, 200])
  assert.equal(strangers.heldBytes, 0)
  wire.destroy()
})

test('strangers: what waits counts at once, headers and bodies, until it is due', async (t) => {
  const { path, connections, decide } = await start(t)
  const { strangers } = connections
  const PADDING = 10 * KIB
  const padded = head('GET', '/plants', { lines: [`x: ${'x'.repeat(PADDING)}`] })
  const [wire, other] = [await Wire.to(path), await Wire.to(path)]
  wire.write(GET + padded.repeat(4))
  await until('four wait', () => connections.active === 5)
  // In the tick that reads them: no check of all connections is between.
  const { heldBytes } = strangers
  assert.ok(heldBytes > 4 * PADDING && heldBytes < 4 * (PADDING + 8 * KIB), String(heldBytes))
  other.write(GET + postBytes({ id: 1, name: 'x'.repeat(30 * KIB) }))
  await until('a body waits', () => connections.active === 7)
  await until('it counts', () => strangers.heldBytes > heldBytes + 30 * KIB)
  decide()
  assert.deepEqual((await wire.answers(5)).map(verdict), Array(5).fill(200))
  assert.deepEqual((await other.answers(2)).map(verdict), [200, 200])
  assert.equal(strangers.heldBytes, 0)
  for (const each of [wire, other]) each.destroy()
})

test('strangers: above the limit those who hold most are closed, and no others', async (t) => {
  const LIMIT = 256 * KIB
  const { path, connections, decide } = await start(t, { strangersMaxBytes: LIMIT })
  const padded = head('GET', '/plants', { lines: [`x: ${'x'.repeat(8 * KIB)}`] })
  const wires: Wire[] = []
  let active = 0
  // About 13 KiB for each request that waits: 26, 65, 130, and what is then too much.
  for (const waiting of [2, 5, 10, 4]) {
    const wire = await Wire.to(path)
    wires.push(wire.write(GET + padded.repeat(waiting)))
    active += 1 + waiting
    if (waiting !== 4) await until('they wait', () => connections.active === active)
  }
  await until('one is closed', () => wires.some(({ ended }) => ended))
  assert.equal(connections.size, 3)
  assert.deepEqual(wires.map(({ ended }) => ended), [false, false, true, false])
  assert.ok(connections.strangers.heldBytes < LIMIT)
  decide()
  for (const [at, count] of [3, 6, 0, 5].entries())
    if (count > 0) assert.equal((await wires[at]?.answers(count))?.length, count)
  assert.equal(connections.strangers.heldBytes, 0)
  for (const wire of wires) wire.destroy()
})

/** What ends the connection, though Node's parser goes on. */
const LAST = {
  'an unclear end': `${head('POST', '/plants', {
    lines: ['Transfer-Encoding: gzip', 'Transfer-Encoding: chunked'],
  })}0\r\n\r\n`,
  'too many headers': head('GET', '/plants', { lines: Array.from({ length: 100 }, () => 'a:') }),
  'an expectation of a stranger': `${head('POST', '/plants', {
    token: undefined,
    lines: ['Content-Length: 2', 'Expect: 100-continue'],
  })}{}`,
}
const ENDLESS = {
  'a body': head('POST', '/plants', { lines: ['Content-Length: 4000000000'] }) + 'x'.repeat(1000),
  requests: head('GET', '/plants', { token: undefined }),
}

for (const [what, last] of Object.entries(LAST))
  for (const [more, bytes] of Object.entries(ENDLESS))
    test(`strangers: after ${what}, ${more} without end take little memory`, async (t) => {
      const { path, connections, server } = await start(t, { authenticate: () => ALICE })
      const accepted = once(server, 'connection')
      const wire = await Wire.to(path)
      // The listener's own value.
      const [side] = (await accepted) as [Socket]
      const flood = more === 'requests' ? bytes.repeat(20_000) : bytes + 'x'.repeat(2 ** 22)
      wire.write(last + flood)
      await until('it is refused', () => wire.text.includes('HTTP/1.1 4'))
      await sleep(300)
      assert.ok(side.bytesRead < 512 * KIB, String(side.bytesRead))
      // Node keeps what one or two reads brought until the connection ends.
      assert.ok(connections.strangers.heldBytes < 16 * KIB * KIB)
      await until('it is closed', () => wire.ended)
      await until('nothing is held', () => connections.strangers.heldBytes === 0)
    })
