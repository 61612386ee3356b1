import assert from 'node:assert/strict'
import { connect, type Socket } from 'node:net'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import type { Caller } from '../../dist/auth/caller.js'
import type { PlantList } from '../../dist/plants/store.js'
import { ALICE, type Bare, type BareOptions, listOf, startBare, chunkOf } from '../support/bare.ts'
import { temporaryDirectory } from '../support/directories.ts'
import { until } from '../support/time.ts'
import { headerLines, verdict } from '../support/verdict.ts'
import { head, postBytes, Wire } from '../support/wire.ts'

setFlagsFromString('--expose-gc')
// V8 adds it to every context that is created from now on.
const collect = runInNewContext('gc') as () => void

const MIB = 2 ** 20
const LARGE = chunkOf([{ name: 'x'.repeat(MIB) }])
/** More than the buffers of a unix socket hold of a response that no client reads. */
const CHUNKS = 5

interface LongList extends PlantList {
  next(): string | undefined
}

/** A list of large chunks. */
function longList(chunks = CHUNKS): LongList {
  let left = chunks
  return {
    cutAt: undefined,
    next: () => (left-- > 0 ? LARGE : undefined),
    ended: false,
    close: () => {},
  }
}

/**
 * HTTP on a unix socket over a store whose lists are long; the owner of a request is its bearer's
 * token.
 */
async function startUnix(
  t: TestContext,
  answersMaxBytes: number,
  options: BareOptions = {},
): Promise<Bare & { readonly path: string }> {
  const path = join(await temporaryDirectory(), 'http.sock')
  const bare = await startBare(t, {
    path,
    answersMaxBytes,
    store: { list: (owner) => (owner === 'small' ? listOf([[{ name: 'a' }]]) : longList()) },
    authenticate: (owner) => ({ ...ALICE, owner }),
    ...options,
  })
  return { ...bare, path }
}

/**
 * The same with lists that have a small chunk first. All of them begin before any of them holds
 * much: else the later ones would be refused.
 */
function startTogether(t: TestContext, answersMaxBytes: number, lists: number, small: string) {
  let begin = (): void => {}
  const begun = new Promise<void>((resolve) => (begin = resolve))
  let asked = 0
  const list = (): PlantList => {
    const long = longList()
    let first: string | undefined = small
    const next = (): string | undefined => {
      const chunk = first ?? long.next()
      first = undefined
      return chunk
    }
    return { ...long, next, ended: false }
  }
  const authenticate = async (owner: string): Promise<Caller> => {
    if (++asked === lists) begin()
    await begun
    return { ...ALICE, owner }
  }
  return startUnix(t, answersMaxBytes, { store: { list }, authenticate })
}

/** A client that asks for the long list and reads nothing. */
async function stalled(path: string, owner: string): Promise<Wire> {
  const wire = await Wire.to(path)
  wire.socket.pause()
  return wire.write(head('GET', '/plants', { token: owner }))
}

async function ask(path: string, bytes: string): Promise<ReturnType<typeof verdict>> {
  const wire = await Wire.to(path)
  const [answer] = await wire.write(bytes).answers(1)
  wire.destroy()
  assert.ok(answer)
  const what = verdict(answer)
  assert.deepEqual(headerLines(answer, 'retry-after'), what === 'overloaded' ? ['1'] : [])
  return what
}

test('answers: with too many unread bytes, refuses until readers leave', async (t) => {
  const { path, answers } = await startUnix(t, 4 * MIB)
  const readers: Wire[] = []
  const small = head('GET', '/plants', { token: 'small' })
  const create = postBytes({ id: 1, name: 'a' }, { token: 'small' })
  assert.deepEqual([await ask(path, small), await ask(path, create)], [200, 200])
  for (let reader = 0; reader < 8; reader++) {
    readers.push(await stalled(path, `owner-${reader}`))
    await until(
      'the reader has its response, or waits for room',
      () => answers.heldBytes >= Math.min(reader + 1, 4) * MIB,
    )
  }
  // At most one chunk beyond the bound: each chunk is counted in the tick that creates it.
  assert.ok(answers.heldBytes < 5.1 * MIB, String(answers.heldBytes))
  assert.deepEqual([await ask(path, small), await ask(path, create)], ['overloaded', 'overloaded'])
  for (const reader of readers) reader.destroy()
  await until('nothing is held', () => answers.heldBytes === 0)
  assert.deepEqual([await ask(path, small), await ask(path, create)], [200, 200])
})

test('answers: one owner leaves room for others', async (t) => {
  const { path, answers } = await startUnix(t, 8 * MIB)
  const readers: Wire[] = []
  for (let reader = 0; reader < 8; reader++) readers.push(await stalled(path, 'alice'))
  await until('alice holds her half', () => answers.heldBytes >= 4 * MIB)
  assert.ok(answers.heldBytes < 5.1 * MIB, String(answers.heldBytes))
  assert.equal(await ask(path, head('GET', '/plants', { token: 'alice' })), 'overloaded')
  assert.equal(await ask(path, head('GET', '/plants', { token: 'small' })), 200)
  for (const reader of readers) reader.destroy()
  await until('nothing is held', () => answers.heldBytes === 0)
})

test('answers: a list without room waits for some, and arrives whole', async (t) => {
  const SMALL = chunkOf([{ name: 'a' }])
  const OWNERS = 6
  const { path, answers } = await startTogether(t, 2 * MIB, OWNERS, SMALL)
  const readers = await Promise.all(
    Array.from({ length: OWNERS }, (_, reader) => stalled(path, `owner-${reader}`)),
  )
  await until('there is no room', () => answers.heldBytes >= 2 * MIB)
  // All together hold no more than the budget and a chunk.
  await sleep(300)
  assert.ok(answers.heldBytes < 3.5 * MIB, String(answers.heldBytes))
  for (const reader of readers) reader.socket.resume()
  const plants = LARGE.slice(1, -1)
  const whole = `[${['{"name":"a"}', ...Array.from({ length: CHUNKS }, () => plants)].join()}]`
  for (const reader of readers) {
    const [answer] = await reader.answers(1)
    assert.equal(verdict(answer ?? assert.fail()), 200)
    // Not `equal`: it would print megabytes.
    assert.ok(answer?.body === whole, `${answer?.body.length} of ${whole.length}`)
    reader.destroy()
  }
  await until('nothing is held', () => answers.heldBytes === 0)
})

test('answers: lists of one owner go on, however many another owner leaves unread', async (t) => {
  const LISTS = 30
  const BYTES = 60 * 1024
  const piece = chunkOf([{ name: 'x'.repeat(BYTES) }])
  const { path, answers } = await startUnix(t, 5 * MIB, {
    store: { list: () => listOf(Array.from({ length: 40 }, () => [{ name: 'x'.repeat(BYTES) }])) },
  })
  const alice: Wire[] = []
  for (let reader = 0; reader < LISTS; reader++) {
    alice.push(await stalled(path, 'alice'))
    await until('it has its room', () => answers.heldBytes >= (reader + 1) * piece.length)
  }
  const mallory: Wire[] = []
  for (let reader = 0; reader < LISTS; reader++) mallory.push(await stalled(path, 'mallory'))
  await until('mallory holds what she can', () => !answers.hasRoom('mallory'))
  assert.ok(!answers.hasRoom('alice'))
  for (const reader of alice) reader.socket.resume()
  for (const reader of alice) {
    const [answer] = await reader.answers(1)
    assert.equal((JSON.parse(answer?.body ?? '') as unknown[]).length, 40)
    reader.destroy()
  }
  // Mallory was refused nothing either, but has not read. Her connections end after `stalledMs`.
  assert.ok(answers.heldBytes > MIB, String(answers.heldBytes))
  for (const reader of mallory) reader.destroy()
  await until('nothing is held', () => answers.heldBytes === 0)
})

test('answers: while there is no room, one list of an owner at a time takes more', async (t) => {
  const READERS = 20
  const small = chunkOf([{ name: 'x'.repeat(60 * 1024) }])
  const { path, answers, connections } = await startTogether(t, 4 * MIB, READERS, small)
  // Each list begins with a short chunk. The long ones after it would be 20 MiB.
  const readers: Wire[] = []
  for (let reader = 0; reader < READERS; reader++) readers.push(await stalled(path, 'mallory'))
  // Her half, and one chunk more.
  await until('one list takes more', () => answers.heldBytes > 3 * MIB)
  for (let round = 0; round < 20; round++) {
    await sleep(20)
    assert.ok(answers.heldBytes < 3.5 * MIB, String(answers.heldBytes))
  }
  // The two that hold a long chunk leave: two others take their places.
  for (const reader of readers.splice(0, 2)) reader.destroy()
  await until('they have left', () => connections.size === READERS - 2)
  await until('another takes more', () => answers.heldBytes > 3 * MIB)
  for (const reader of readers) reader.socket.resume()
  for (const reader of readers) {
    const [answer] = await reader.answers(1)
    assert.equal((JSON.parse(answer?.body ?? '') as unknown[]).length, 1 + CHUNKS)
    reader.destroy()
  }
  await until('nothing is held', () => answers.heldBytes === 0)
})

test('answers: a create reserves its response before it is stored', async (t) => {
  let release = (): void => {}
  const held = new Promise<void>((resolve) => (release = resolve))
  const CREATES = 16
  let created = 0
  const { path, answers } = await startUnix(t, 4 * MIB, {
    store: {
      create: async () => {
        created++
        await held
        return 'stored'
      },
    },
  })
  const wires: Wire[] = []
  for (let id = 0; id < CREATES; id++) {
    const wire = await Wire.to(path)
    wire.socket.pause()
    wires.push(wire.write(postBytes({ id, name: 'x'.repeat(MIB - 100) }, { token: `owner-${id}` })))
  }
  await until('there is no room for another', () => !answers.hasRoom('other', MIB))
  await sleep(200)
  release()
  await sleep(200)
  assert.ok(created > 0 && created <= 4, String(created))
  assert.ok(answers.heldBytes <= 4 * MIB, String(answers.heldBytes))
  for (const wire of wires) wire.destroy()
  await until('nothing is held', () => answers.heldBytes === 0)
})

test('answers: memory in use is what is counted; a piece keeps no whole chunk', async (t) => {
  const OWNERS = 40
  let release = (): void => {}
  const released = new Promise<undefined>((resolve) => (release = () => resolve(undefined)))
  let waiting = 0
  const list = (): PlantList => {
    const { next, close } = longList(1)
    return { cutAt: undefined, next: () => next() ?? (waiting++, released), ended: false, close }
  }
  const { port, answers } = await startBare(t, {
    answersMaxBytes: 4 * MIB,
    store: { list },
    authenticate: (owner) => ({ ...ALICE, owner }),
  })
  const readers: Socket[] = []
  for (let reader = 0; reader < OWNERS; reader++) {
    // It reads all that comes, so its list waits for the next chunk, whatever a socket holds.
    const socket = connect(port, '127.0.0.1')
      .on('error', () => {})
      .resume()
    readers.push(socket)
    socket.write(head('GET', '/plants', { token: `owner-${reader}` }))
    await until('the reader has its first chunk', () => waiting > reader)
  }
  assert.ok(answers.heldBytes < 4 * MIB, String(answers.heldBytes))
  // The chunks of all readers would be 40 MiB.
  await until('no more is in memory than is counted', () => {
    collect()
    return process.memoryUsage().arrayBuffers < 16 * MIB
  })
  for (const reader of readers) reader.destroy()
  await until('nothing is held', () => answers.heldBytes === 0)
  release()
})
