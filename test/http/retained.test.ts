import assert from 'node:assert/strict'
import { on, once } from 'node:events'
import type { IncomingMessage } from 'node:http'
import { connect, type Socket } from 'node:net'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { PageCache } from '../../dist/api/page-cache.js'
import { readCaller } from '../../dist/auth/caller.js'
import { TokenCache } from '../../dist/auth/token-cache.js'
import type { PlantChunk, PlantList, PlantStore } from '../../dist/plants/store.js'
import { readChunks } from '../../dist/store/etcd/ranges.js'
import { type EtcdResponse, plantKey, plantRange, plantValue } from '../../dist/store/etcd/wire.js'
import { PlantDatabase } from '../../dist/store/sqljs/memory/database.js'
import type { Row } from '../../dist/store/sqljs/disk/journal-format.js'
import { ALL } from '../contract/store.contract.ts'
import {
  ALICE,
  chunkOf,
  listOf,
  startBare,
  startMounted,
  slowStore,
  startOnPath,
} from '../support/bare.ts'
import { claims, RULES } from '../auth/tokens.ts'
import { flood, HEAVY, oneByteChunks } from '../support/flood.ts'
import { collect } from '../support/memory.ts'
import { startService } from '../support/service.ts'
import { onRequestStart } from '../support/serving.ts'
import { gate, until } from '../support/time.ts'
import { token } from '../support/tokens.ts'
import { verdict } from '../support/verdict.ts'
import { answersTo, head, postBytes, Wire } from '../support/wire.ts'

const MIB = 1024 * 1024
/** The first 100 warm up. */
const REQUESTS = 400
const IDLE = 300
/** Each connection, or list, would keep more than 1 MiB. */
const CONNECTIONS = 8
/** About the most that a header or a target may have. */
const PADDING = 15_000
/** Node looks at each connection every 50 ms here. */
const LONGER_THAN_A_CHECK_MS = 200

function usedMiB(): number {
  collect()
  const { heapUsed, external } = process.memoryUsage()
  return (heapUsed + external) / MIB
}

/** V8 gives the memory of buffers back in a thread of its own. */
async function assertLess(maxMiB: number, keptMiB: () => number): Promise<void> {
  let kept = keptMiB()
  for (let tries = 0; tries < 20 && kept >= maxMiB; tries++) {
    await sleep(50)
    kept = keptMiB()
  }
  assert.ok(kept < maxMiB, `${kept} MiB`)
}

/** Each has fewer pages than one may have cached. */
const owners = Array.from({ length: 40 }, (_, i) => token(`owner ${i}`))
for (const [what, requestOf] of [
  [
    'token does not keep the blanks before it',
    (at: number) => {
      const bearer = `${' '.repeat(PADDING)}${token(`owner ${at % 10}`, { at })}`
      return head('GET', '/plants', { token: undefined, lines: [`Authorization: Bearer${bearer}`] })
    },
  ],
  [
    'page does not keep the target of its request',
    (at: number) => {
      const target = `http://${'a'.repeat(PADDING)}/plants?limit=${1_000_000_000 + at}`
      return head('GET', target, { token: owners[at % owners.length] })
    },
  ],
] as const)
  test(`retained: a cached ${what}`, async (t) => {
    const { port } = await startService(t, { logLevel: 'silent' })
    let beforeMiB = 0
    for (let at = 0; at < REQUESTS; at += 100) {
      if (at === 100) beforeMiB = usedMiB()
      const requests = Array.from({ length: 99 }, (_, i) => requestOf(at + i))
      const answers = await answersTo(port, requests.join(''), 99)
      assert.deepEqual(answers.map(verdict), Array(99).fill(200))
    }
    // What is cached of one is a few hundred bytes; all of one would be 15 KB.
    await assertLess(2.5, () => usedMiB() - beforeMiB)
  })

/** New ones each time: what a list keeps of them is its own. */
function longPart(): EtcdResponse {
  const value = plantValue({ name: 'x'.repeat(MIB) })
  return { kvs: [{ key: plantKey('plants/', 'alice', 1n), value }], more: true }
}

test('retained: a list that waits for its reader keeps nothing of its last chunk', async () => {
  const database = await PlantDatabase.serving()
  database.insert([1, 2].map((id): Row => ['alice', String(id), 'x'.repeat(MIB)]))
  const range = plantRange('plants/', 'alice', undefined)
  for (const begin of [
    (): PlantList => database.lists.list('alice', ALL),
    (): PlantList => readChunks(async () => longPart(), range, Infinity),
  ]) {
    const beforeMiB = usedMiB()
    const lists = Array.from({ length: CONNECTIONS }, begin)
    for (const list of lists) assert.equal((await list.next()).value?.count, 1)
    await assertLess(5, () => usedMiB() - beforeMiB)
    // They still go on.
    for (const list of lists) assert.equal((await list.next()).value?.count, 1)
  }
  database.close()
})

/** A page of eight plants is cut before it has 8 MiB. */
const PLANT_BYTES = 1.1 * MIB
const PAGE_PLANTS = 7
const PAGE_TARGET = '/plants?limit=1000'

/** Its lists have this many long plants. A response has bytes of its own. */
function longPlants(count: number): Partial<PlantStore> {
  const plant = { name: 'x'.repeat(PLANT_BYTES) }
  const chunks = [...listOf(Array.from({ length: count }, () => [plant]))]
  return { list: (_, { limit }) => (limit === 0 ? listOf([[]]) : chunks.values()) }
}

/** A connection that has read the page, and keeps nothing of it. */
async function readPage(target: number, bytes: string): Promise<Socket> {
  const socket = connect(target, '127.0.0.1').unref()
  socket.write(bytes)
  let left = PAGE_PLANTS * PLANT_BYTES
  for await (const [chunk] of on(socket, 'data')) {
    // Node's sockets have no encoding by default.
    left -= (chunk as Buffer).length
    if (left < 0) break
  }
  // The service may reset it when the test ends.
  return socket.resume().on('error', () => {})
}

for (const [where, start] of Object.entries({ startBare, startMounted }))
  test(`retained: a page that was read is free while its request goes on; ${where}`, async (t) => {
    const bare = await start(t, { store: longPlants(PAGE_PLANTS + 1) })
    const beforeMiB = usedMiB()
    const sockets: Socket[] = []
    const lines = ['Content-Length: 10']
    for (let at = 0; at < CONNECTIONS; at++)
      sockets.push(await readPage(bare.port, head('GET', PAGE_TARGET, { lines })))
    await until('nothing is held', () => bare.responses.held === 0)
    await assertLess(4, () => usedMiB() - beforeMiB)
  })

for (const [where, start] of Object.entries({ startBare, startMounted }))
  test(`retained: a connection keeps nothing of its first exchange; ${where}`, async (t) => {
    const bare = await start(t, { store: longPlants(PAGE_PLANTS + 1) })
    const beforeMiB = usedMiB()
    const sockets: Socket[] = []
    for (let at = 0; at < CONNECTIONS; at++) {
      const socket = await readPage(bare.port, head('GET', PAGE_TARGET))
      for (let next = 0; next < 3; next++) {
        socket.write(head('GET', '/plants?limit=0'))
        await once(socket, 'data')
      }
      sockets.push(socket)
    }
    assert.equal(bare.answered.length, 4 * CONNECTIONS)
    await assertLess(4, () => usedMiB() - beforeMiB)
  })

test('retained: a response to HEAD that is not taken keeps no page', async (t) => {
  const HEADS = 4
  // A read of 64 KiB has fewer of them than may wait.
  const lines = [`Padding: ${'x'.repeat(9000)}`]
  const request = Buffer.from(head('HEAD', '/plants?limit=1&uncached', { lines }))
  const bare = await startOnPath(t, { store: longPlants(1) })
  const beforeMiB = usedMiB()
  const sockets = flood(bare.path, HEADS, () => '')
  // More than the buffers of a unix socket hold.
  for (let sent = 0; sent < 500; sent++) for (const socket of sockets) socket.write(request)
  let answered = 0
  await until('all are stuck', async () => {
    const before = answered
    await sleep(LONGER_THAN_A_CHECK_MS)
    answered = bare.answered.length
    return before > 0 && before === answered
  })
  assert.ok(bare.answered.every((each) => each === 'HEAD 200'))
  assert.ok(answered > HEADS && answered < 500 * HEADS)
  await assertLess(3, () => usedMiB() - beforeMiB)
  for (const socket of sockets) socket.destroy()
})

test('retained: a streamed list that waits for its turn keeps no part of it', async (t) => {
  const { opened, open } = gate()
  let waiting = 0
  const json = chunkOf([{ name: 'x'.repeat(PLANT_BYTES) }])
  const list = (): PlantList => {
    let last = 0n
    return {
      async next() {
        if (last > 0n) waiting++
        if (last > 0n) await opened
        return { value: { json, count: 1, next: ++last < 2n ? last : undefined } }
      },
    }
  }
  const bare = await startBare(t, { store: { list } })
  const beforeMiB = usedMiB()
  const sockets = flood(bare.port, CONNECTIONS, () => head('GET', '/plants'))
  for (const socket of sockets) socket.resume()
  await until('all wait', () => waiting === CONNECTIONS)
  await assertLess(4, () => usedMiB() - beforeMiB)
  open()
})

test('retained: a page that waits for its next chunk has what is counted of it', async (t) => {
  const { opened, open } = gate()
  let waiting = 0
  const list = (): PlantList => {
    let last = 0n
    const chunk = (): IteratorResult<PlantChunk, undefined> => {
      // A text of its own each time.
      const json = chunkOf([{ name: 'x'.repeat(PLANT_BYTES) }])
      return { value: { json, count: 1, next: ++last < 3n ? last : undefined } }
    }
    // At once, as from memory, but for the last: the reader awaits both.
    const next = () => (last === 2n ? (waiting++, opened.then(chunk)) : chunk())
    return { next } as PlantList
  }
  const bare = await startBare(t, { store: { list } })
  const beforeMiB = usedMiB()
  const sockets = flood(bare.port, CONNECTIONS, () => head('GET', PAGE_TARGET))
  await until('all wait', () => waiting === CONNECTIONS)
  const heldMiB = bare.responses.held / MIB
  assert.ok(heldMiB > CONNECTIONS * 2, `${heldMiB} MiB`)
  await assertLess(heldMiB + 4, () => usedMiB() - beforeMiB)
  for (const socket of sockets) socket.destroy()
  open()
})

test('retained: an announced body takes memory as it comes, and is reserved whole', async (t) => {
  const bare = await startBare(t)
  const bytes = postBytes({ id: 1, name: 'x'.repeat(MIB - 100) })
  const begun = bytes.slice(0, bytes.indexOf('{') + 1)
  const beforeMiB = usedMiB()
  const sockets = flood(bare.port, 20, () => begun)
  const reserved = bare.bodies.held
  await until('all are reserved', () => bare.bodies.held > reserved + 19 * MIB)
  await sleep(LONGER_THAN_A_CHECK_MS)
  for (const socket of sockets) socket.write('"')
  await sleep(LONGER_THAN_A_CHECK_MS)
  await assertLess(4, () => usedMiB() - beforeMiB)
  assert.ok(bare.bodies.held > reserved + 19 * MIB)
  for (const socket of sockets) socket.destroy()
})

test('retained: a chunked body that is not served is dropped while a create waits', async (t) => {
  const { store, release } = slowStore()
  const { port } = await startBare(t, { store })
  const beforeMiB = usedMiB()
  const first = postBytes({ id: 1, name: 'waits' })
  const sockets = flood(port, 5, () => first + oneByteChunks(token('alice')))
  await until('all is sent', () => sockets.every((socket) => socket.writableLength === 0))
  await sleep(LONGER_THAN_A_CHECK_MS)
  await assertLess(4, () => usedMiB() - beforeMiB)
  release()
  for (const socket of sockets) socket.destroy()
})

test('retained: an idle connection keeps no request', async (t) => {
  const { port } = await startBare(t)
  const requests: WeakRef<object>[] = []
  onRequestStart(t, (request) => requests.push(new WeakRef(request)))
  const wire = await Wire.to(port)
  for (const nth of [1, 2]) {
    await wire.write(head('GET', '/plants')).answers(nth)
    await until('it is collected', () => {
      collect()
      return requests.every((request) => request.deref() === undefined)
    })
  }
  assert.equal(requests.length, 2)
})

test('retained: idle connections keep nothing of large headers', async (t) => {
  const { port } = await startBare(t)
  const keptMiB = async (bytes: string): Promise<number> => {
    const beforeMiB = usedMiB()
    const sockets = flood(port, IDLE, () => bytes)
    for (const socket of sockets) {
      socket.resume()
      if (socket.bytesRead === 0) await once(socket, 'data')
    }
    await sleep(LONGER_THAN_A_CHECK_MS)
    const grownMiB = usedMiB() - beforeMiB
    for (const socket of sockets) socket.destroy()
    await sleep(LONGER_THAN_A_CHECK_MS)
    return grownMiB
  }
  const small = await keptMiB(head('GET', '/plants', { token: undefined }))
  const large = await keptMiB(HEAVY)
  t.diagnostic(`${IDLE} connections: ${small.toFixed(1)} MiB, ${large.toFixed(1)} MiB`)
  assert.ok(large - small < 3, `${large - small} MiB`)
})

test('retained: cached tokens with thousands of scopes take a few MiB', () => {
  const cache = new TokenCache()
  const tokenAt = (at: number): string => String(at).padStart(12_000, 'x')
  const beforeMiB = usedMiB()
  for (let at = 0; at < 250; at++) {
    const scopes = new Set(Array.from({ length: 3000 }, (_, i) => (at * 3000 + i).toString(36)))
    cache.add(tokenAt(at), { ...ALICE, scopes })
  }
  const grownMiB = usedMiB() - beforeMiB
  assert.ok(cache.get(tokenAt(240), 0))
  assert.ok(grownMiB < 20, `${grownMiB} MiB`)
})

test('retained: caches keep nothing of what they have dropped', async () => {
  const pages = new PageCache()
  const tokens = new TokenCache()
  const beforeMiB = usedMiB()
  for (let at = 0; at < 100; at++) {
    const body = Buffer.alloc(0.9 * MIB)
    pages.add(`owner ${at % 2}`, `limit=${at}`, { status: 200, headers: [], body })
    for (let again = 0; again < 500; again++) tokens.add('token', ALICE)
  }
  await assertLess(4, () => usedMiB() - beforeMiB)
  assert.ok(pages.get('owner 1', 'limit=99') && tokens.get('token', 0))
})

test('retained: a cached scope keeps nothing of its claim', async () => {
  const cache = new TokenCache()
  const beforeMiB = usedMiB()
  for (let at = 0; at < 500; at++) {
    // Two bytes a character, for all of it.
    const scope = `plants:read:${at} \u0416${' '.repeat(8000)}`
    cache.add(`token ${at}`, readCaller({ ...claims(), scope }, RULES))
  }
  assert.ok(cache.get('token 7', 0)?.scopes.has('plants:read:7'))
  await assertLess(2, () => usedMiB() - beforeMiB)
  assert.ok(cache.get('token 7', 0))
})

test('retained: a create that waits keeps no headers of requests after it', async (t) => {
  const { store, release } = slowStore()
  const bare = await startBare(t, { store })
  const requests: IncomingMessage[] = []
  onRequestStart(t, (request) => requests.push(request))
  const wire = await Wire.to(bare.port)
  // Nine are one too many.
  await wire.write(postBytes({ id: 1, name: 'Fern' }) + head('GET', '/plants').repeat(9)).end()
  await until('it is gone', () => bare.connections.sockets.length === 0)
  const counts = requests.map(({ rawHeaders }) => rawHeaders.length)
  assert.deepEqual(counts, [counts[0], ...Array<number>(9).fill(0)])
  release()
})

for (const [where, start] of Object.entries({ startBare, startMounted }))
  test(`retained: a plant that waits for the store keeps no body; ${where}`, async (t) => {
    const COUNT = 8
    let waiting = 0
    const { opened, open } = gate()
    const create = async (): Promise<'stored'> => (waiting++, await opened, 'stored')
    const { port } = await start(t, { store: { create } })
    collect()
    const before = process.memoryUsage().arrayBuffers
    const wires = await Promise.all(Array.from({ length: COUNT }, () => Wire.to(port)))
    // Only the name of this plant is short: what is kept of the body would be all of it.
    for (const [id, wire] of wires.entries())
      wire.write(postBytes({ id, name: 'Fern', note: 'x'.repeat(MIB - 100) }))
    await until('all wait', () => waiting === COUNT)
    await assertLess(COUNT / 4, () => {
      collect()
      return (process.memoryUsage().arrayBuffers - before) / MIB
    })
    open()
    for (const wire of wires) {
      assert.deepEqual((await wire.answers(1)).map(verdict), [200])
    }
  })
