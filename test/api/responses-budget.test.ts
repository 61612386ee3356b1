import assert from 'node:assert/strict'
import type { Socket } from 'node:net'
import { test, type TestContext } from 'node:test'
import type { PlantList } from '../../dist/plants/store.js'
import type { Budget } from '../../dist/limits/budget.js'
import { ALICE, type BareOptions, chunkOf, listOf } from '../support/bare.ts'
import { startBare, startOnPath } from '../support/bare.ts'
import { until } from '../support/time.ts'
import { headerLines, verdict } from '../support/verdict.ts'
import { firstAnswer, head, postBytes, Wire } from '../support/wire.ts'

/*
 * What clients do not read: a page above 64 KiB is reserved until it is sent, and of a list's chunk
 * the part above that. Readers use a unix socket, whose buffers are small.
 */

const MIB = 2 ** 20
/** As the README has it. */
const SHORT_BYTES = 64 * 1024
const LARGE = { name: 'x'.repeat(MIB) }
const PAGE_BYTES = chunkOf([LARGE]).length
const SHORT = { name: 'x'.repeat(SHORT_BYTES - chunkOf([{ name: '' }]).length) }

/** The owner of a request is its token. */
const authenticate = (owner: string) => ({ ...ALICE, owner })

const start = (t: TestContext, options: BareOptions) => startOnPath(t, { authenticate, ...options })

/** Pages of one large plant; an owner named small has a short list. */
const PAGES: BareOptions['store'] = {
  list: (owner) => listOf([[owner === 'small' ? { name: 'a' } : LARGE]]),
}

/** A client that sends this and reads nothing. */
async function stalled(path: string, bytes: string): Promise<Wire> {
  const wire = await Wire.to(path)
  wire.socket.pause()
  return wire.write(bytes)
}

const listOfOwner = (token: string): string => head('GET', '/plants', { token })

async function ask(path: string, bytes: string): Promise<ReturnType<typeof verdict>> {
  const answer = await firstAnswer(path, bytes)
  const what = verdict(answer)
  assert.deepEqual(headerLines(answer, 'retry-after'), what === 'overloaded' ? ['1'] : [])
  return what
}

function nothingHeld(budget: Budget): Promise<void> {
  return until('nothing is held', () => budget.held === 0)
}

test('responses: a long page is reserved until it is read, or its client has left', async (t) => {
  const { path, responses, answered } = await start(t, { store: PAGES })
  for (const end of ['read', 'left'] as const) {
    const wire = await stalled(path, listOfOwner('alice'))
    await until('it is reserved', () => responses.held === PAGE_BYTES)
    if (end === 'read') {
      wire.socket.resume()
      assert.deepEqual((await wire.answers(1)).map(verdict), [200])
    } else wire.destroy()
    await nothingHeld(responses)
    wire.destroy()
  }
  assert.deepEqual(answered, ['GET 200', 'GET 200 aborted'])
})

test('responses: 64 KiB are not reserved, one byte more is; HEAD reserves nothing', async (t) => {
  const held: number[] = []
  for (const name of [SHORT.name, `${SHORT.name}x`]) {
    const store = { list: () => listOf([[{ name }]]) }
    const { path, responses, answered, server } = await start(t, { store })
    let side: Socket | undefined
    server.on('connection', (socket) => (side = socket))
    const only = await Wire.to(path)
    await only.write(head('HEAD', '/plants', { token: 'alice' })).answers(1, [0])
    assert.equal(responses.held, 0)
    const wire = await stalled(path, listOfOwner('alice').repeat(9))
    // More than the buffers of the socket take.
    const isFull = (): boolean => (side?.writableLength ?? 0) > 0
    await until('the first is sent, and one waits', () => answered.length > 1 && isFull())
    held.push(responses.held)
    for (const each of [only, wire]) each.destroy()
  }
  assert.deepEqual(held, [0, SHORT_BYTES + 1])
})

test('responses: a page without room is 503, also a cached one; short ones go on', async (t) => {
  const { path, responses } = await start(t, { store: PAGES, responsesMaxBytes: 4.5 * MIB })
  // Cached, and not read by anyone who waits.
  assert.equal(await ask(path, listOfOwner('carol')), 200)
  const readers: Wire[] = []
  for (const owner of ['alice', 'bob', 'dave']) {
    readers.push(await stalled(path, listOfOwner(owner)))
    await until('it is reserved', () => responses.held >= readers.length * PAGE_BYTES)
  }
  for (const owner of ['carol', 'erin'])
    assert.equal(await ask(path, listOfOwner(owner)), 'overloaded')
  assert.equal(await ask(path, listOfOwner('small')), 200)
  assert.equal(await ask(path, postBytes({ id: 1, name: 'a' }, { token: 'erin' })), 200)
  for (const reader of readers) reader.destroy()
  await nothingHeld(responses)
  assert.equal(await ask(path, listOfOwner('erin')), 200)
})

test('responses: one owner leaves room for others', async (t) => {
  const { path, responses } = await start(t, { store: PAGES, responsesMaxBytes: 9 * MIB })
  const readers = Array.from({ length: 8 }, () => stalled(path, listOfOwner('alice')))
  await until('alice holds what she may', () => responses.held === 4 * PAGE_BYTES)
  assert.equal(await ask(path, listOfOwner('alice')), 'overloaded')
  assert.equal(await ask(path, listOfOwner('bob')), 200)
  for (const reader of await Promise.all(readers)) reader.destroy()
  await nothingHeld(responses)
})

test('responses: a list that goes on without room is reset, and logged', async (t) => {
  let wire: Wire | undefined
  const list = (): PlantList => {
    const chunks = listOf([[{ name: 'first' }], [LARGE]])
    // libuv reports a reset as a normal end if it comes together with the last bytes.
    const begun = () => until('the list has begun', () => wire?.text.includes('first') ?? false)
    let calls = 0
    return {
      async next() {
        if (calls++ > 0) await begun()
        return chunks.next()
      },
    }
  }
  // On TCP, where a reset can be told from an end.
  const bare = await startBare(t, { store: { list }, authenticate, responsesMaxBytes: 2.5 * MIB })
  const hold = bare.responses.reserve('bob', 1.2 * MIB)
  wire = await Wire.to(bare.port)
  await wire.write(listOfOwner('alice')).end()
  assert.ok(!wire.text.includes(']'), wire.text)
  assert.match(String(wire.error), /ECONNRESET/)
  assert.deepEqual(bare.answered, ['GET 200 aborted'])
  assert.equal(bare.failures.length, 1)
  hold.set(0)
  const { body } = await firstAnswer(bare.port, listOfOwner('alice'))
  assert.equal(body, chunkOf([{ name: 'first' }, LARGE]))
  await nothingHeld(bare.responses)
})

test('responses: of a chunk only the part above 64 KiB is reserved', async (t) => {
  const chunks = [[SHORT], [LARGE], [SHORT]]
  const { path, responses } = await start(t, { store: { list: () => listOf(chunks) } })
  const wire = await stalled(path, listOfOwner('alice'))
  // Its "]" is sent at the end of the list.
  await until('the long chunk waits', () => responses.held === PAGE_BYTES - 1 - SHORT_BYTES)
  wire.socket.resume()
  const [answer] = await wire.answers(1)
  assert.equal(answer?.body, chunkOf(chunks.flat()))
  await nothingHeld(responses)
})

test('responses: that of a create is held with its body until it is read', async (t) => {
  const { path, bodies, plants } = await start(t, { bodiesMaxBytes: 2 * MIB })
  const body = { id: 1, name: 'x'.repeat(900_000) }
  const wire = await stalled(path, postBytes(body, { token: 'alice' }))
  await until('it is stored', () => plants.size === 1)
  await until('its response waits', () => bodies.held === JSON.stringify(body).length)
  assert.equal(await ask(path, postBytes(body, { token: 'alice' })), 'overloaded')
  wire.socket.resume()
  assert.deepEqual((await wire.answers(1)).map(verdict), [200])
  await nothingHeld(bodies)
})
