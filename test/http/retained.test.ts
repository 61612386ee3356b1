import assert from 'node:assert/strict'
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { TokenCache } from '../../dist/auth/token-cache.js'
import type { PlantList } from '../../dist/plants/store.js'
import { readChunks } from '../../dist/store/etcd/list.js'
import {
  type Entry,
  type Page,
  plantKey,
  plantRange,
  plantValue,
} from '../../dist/store/etcd/wire.js'
import { PlantDatabase } from '../../dist/store/sqljs/database.js'
import type { Row } from '../../dist/store/sqljs/journal-format.js'
import { startBare } from '../support/bare.ts'
import { flood, HEAVY } from '../support/flood.ts'
import { startService } from '../support/service.ts'
import { until } from '../support/time.ts'
import { token } from '../support/tokens.ts'
import { verdict } from '../support/verdict.ts'
import { head, postBytes, Wire } from '../support/wire.ts'

setFlagsFromString('--expose-gc')
// What the flag adds to every new context.
const collect = runInNewContext('gc') as () => void
const MIB = 1024 * 1024
const REQUESTS = 600
const IDLE = 300
/** About the most that a header or a target may have. */
const PADDING = 15_000
/** The service looks at each connection once a second. */
const LONGER_THAN_A_CHECK_MS = 1200

function usedMiB(): number {
  collect()
  const { heapUsed, external } = process.memoryUsage()
  return (heapUsed + external) / MIB
}

/** How much the service's memory has grown after these requests. */
async function growthMiB(port: number, requestOf: (at: number) => string): Promise<number> {
  const beforeMiB = usedMiB()
  for (let at = 0; at < REQUESTS; at += 100) {
    const wire = await Wire.to(port)
    wire.write(Array.from({ length: 99 }, (_, i) => requestOf(at + i)).join(''))
    for (const answer of await wire.answers(99)) assert.equal(verdict(answer), 200)
    wire.destroy()
  }
  return usedMiB() - beforeMiB
}

test('retained: a cached token does not keep the blanks before it', async (t) => {
  const { port } = await startService(t, { logLevel: 'silent' })
  const request = (at: number) =>
    head('GET', '/plants', {
      token: undefined,
      lines: [`Authorization: Bearer${' '.repeat(PADDING)}${token(`owner ${at % 10}`, { at })}`],
    })
  const grownMiB = await growthMiB(port, request)
  assert.ok(grownMiB < 5, `${grownMiB} MiB`)
})

test('retained: a cached page does not keep the target of its request', async (t) => {
  const { port } = await startService(t, { logLevel: 'silent' })
  const owners = Array.from({ length: 20 }, (_, i) => token(`owner ${i}`))
  const request = (at: number) =>
    head('GET', `http://${'a'.repeat(PADDING)}/plants?limit=${1_000_000_000 + at}`, {
      token: owners[at % owners.length],
    })
  const grownMiB = await growthMiB(port, request)
  assert.ok(grownMiB < 5, `${grownMiB} MiB`)
})

/** New ones each time: what a list keeps of them is its own. */
function longPage(): Page {
  const entry = (id: bigint): Entry => ({
    key: plantKey('plants/', 'alice', id),
    value: plantValue({ name: 'x'.repeat(MIB) }),
  })
  return { entries: [entry(1n)], more: true }
}

test('retained: a list that waits for its reader keeps nothing of its last chunk', async () => {
  const LISTS = 40
  const all = { after: undefined, limit: undefined }
  const database = await PlantDatabase.serving()
  database.insert([1, 2].map((id): Row => ['alice', String(id), 'x'.repeat(MIB)]))
  const range = plantRange('plants/', 'alice', undefined)
  for (const begin of [
    (): PlantList => database.lists.list('alice', all),
    (): PlantList => readChunks(async () => longPage(), range, Infinity),
  ]) {
    const beforeMiB = usedMiB()
    const lists = Array.from({ length: LISTS }, begin)
    for (const list of lists) assert.equal((await list.next()).value?.count, 1)
    const keptMiB = (): number => usedMiB() - beforeMiB
    // V8 gives the memory of buffers back in a thread of its own.
    for (let tries = 0; tries < 20 && keptMiB() >= 5; tries++) await sleep(50)
    assert.ok(keptMiB() < 5, `${keptMiB()} MiB`)
    // They still go on.
    for (const list of lists) assert.equal((await list.next()).value?.count, 1)
  }
  database.close()
})

test('retained: an idle connection keeps no request', async (t) => {
  const { port } = await startService(t, { logLevel: 'silent' })
  const requests: WeakRef<object>[] = []
  const onStart = (message: unknown): void => {
    // Node documents the channel: `request` is an IncomingMessage.
    requests.push(new WeakRef((message as { readonly request: object }).request))
  }
  subscribe('http.server.request.start', onStart)
  t.after(() => unsubscribe('http.server.request.start', onStart))
  const wire = await Wire.to(port)
  t.after(() => wire.destroy())
  const ask = async (nth: number): Promise<void> => {
    wire.write(head('GET', '/plants'))
    assert.deepEqual((await wire.answers(nth)).map(verdict), Array(nth).fill(200))
  }
  await ask(1)
  await sleep(LONGER_THAN_A_CHECK_MS)
  await ask(2)
  await sleep(LONGER_THAN_A_CHECK_MS)
  collect()
  const kept = requests.map((request) => request.deref() !== undefined)
  assert.deepEqual(kept, [false, false])
})

test('retained: idle connections keep nothing of large headers', async (t) => {
  const { port } = await startService(t, { logLevel: 'silent' })
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
  const beforeMiB = usedMiB()
  for (let at = 0; at < 250; at++) {
    const scopes = new Set(Array.from({ length: 3000 }, (_, i) => (at * 3000 + i).toString(36)))
    cache.add(String(at).padStart(12_000, 'x'), 2e9, { owner: 'alice', ownerHash: '', scopes })
  }
  const grownMiB = usedMiB() - beforeMiB
  assert.ok(cache.size > 10)
  assert.ok(grownMiB < 20, `${grownMiB} MiB`)
})

for (const where of ['own server', 'another server'] as const) {
  test(`retained: a plant that waits for the store keeps no body; ${where}`, async (t) => {
    const COUNT = 20
    let waiting = 0
    let release = (): void => {}
    const released = new Promise<void>((resolve) => (release = resolve))
    const create = async (): Promise<'stored'> => {
      waiting++
      await released
      return 'stored'
    }
    const bare = await startBare(t, { store: { create } })
    let { port } = bare
    if (where === 'another server') {
      const outer = createServer(bare.adapter.handler).listen(0, '127.0.0.1')
      await once(outer, 'listening')
      t.after(() => outer.close())
      // It listens on TCP.
      port = (outer.address() as AddressInfo).port
    }
    collect()
    const before = process.memoryUsage().arrayBuffers
    const wires = await Promise.all(Array.from({ length: COUNT }, () => Wire.to(port)))
    // Only the name of this plant is short: what is kept of the body would be all of it.
    for (const [id, wire] of wires.entries())
      wire.write(postBytes({ id, name: 'Fern', note: 'x'.repeat(MIB - 100) }))
    await until('all wait', () => waiting === COUNT)
    const kept = (): number => {
      collect()
      return (process.memoryUsage().arrayBuffers - before) / MIB
    }
    // V8 gives the memory of buffers back in a thread of its own.
    for (let tries = 0; tries < 20 && kept() >= COUNT / 4; tries++) await sleep(50)
    const keptMiB = kept()
    release()
    for (const wire of wires) {
      assert.deepEqual((await wire.answers(1)).map(verdict), [200])
      wire.destroy()
    }
    assert.ok(keptMiB < COUNT / 4, `${keptMiB} MiB`)
  })
}
