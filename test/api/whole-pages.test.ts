import assert from 'node:assert/strict'
import { test } from 'node:test'
import { isDeepStrictEqual } from 'node:util'
import type { PlantList } from '../../dist/plants/store.js'
import { listFrom, listOf, startBare } from '../support/bare.ts'
import { call, type Reply, post } from '../support/http.ts'
import { Random, seeded } from '../support/random.ts'
import { LONG, THOROUGH } from '../support/scale.ts'
import { startService } from '../support/service.ts'
import { gate, until } from '../support/time.ts'
import { head, Wire } from '../support/wire.ts'

/*
 * A page is made whole before it is sent: at most `limit` plants and 8 MiB, but at least one plant.
 * If more follow, it has a Link.
 */

const PAGE_MAX_BYTES = 8 * 1024 * 1024
const LIMIT_MAX = 2 ** 31 - 1

/** Follows the pages of a list from its first query on. */
async function* pagesOf(port: number, first: string) {
  for (let query: string | undefined = first; query !== undefined; ) {
    const { status, headers, text, json }: Reply = await call(port, { path: `/plants${query}` })
    const bytes = Buffer.byteLength(text)
    assert.deepEqual([status, Number(headers['content-length'])], [200, bytes])
    query = /^<plants(\?.*)>; rel="next"$/.exec(String(headers['link']))?.[1]
    // The interface: an array of plants.
    const names = (json() as { readonly name: string }[]).map(({ name }) => name)
    yield { bytes, names, isLast: query === undefined }
  }
}

async function create(port: number, names: readonly string[]): Promise<void> {
  for (const [id, name] of names.entries())
    assert.equal((await post(port, { id, name })).status, 200)
}

test('whole pages: the greatest limit gives pages of 8 MiB, together the list', async (t) => {
  const { port } = await startService(t)
  const all = Array.from({ length: 30 }, (_, id) => `${id} ${'x'.repeat(330_000 + id)}`)
  await create(port, all)
  const found: string[][] = []
  for await (const { bytes, names, isLast } of pagesOf(port, `?limit=${LIMIT_MAX}`)) {
    const longest = Math.max(...names.map(({ length }) => length))
    assert.ok(bytes <= PAGE_MAX_BYTES, `${bytes} bytes`)
    if (!isLast) assert.ok(bytes + longest + 100 > PAGE_MAX_BYTES, 'it has room for more')
    found.push([...names])
  }
  assert.deepEqual(found.flat(), all)
  assert.equal(found.length, 2)
})

test('whole pages: a plant that is longer than a page is one', { skip: LONG }, async (t) => {
  const { port } = await startService(t, { maxBodyBytes: 2 * PAGE_MAX_BYTES })
  const name = 'x'.repeat(PAGE_MAX_BYTES)
  await create(port, ['a', name, 'b'])
  const found: string[][] = []
  for await (const { names } of pagesOf(port, '?limit=10')) found.push([...names])
  assert.ok(isDeepStrictEqual(found, [['a'], [name], ['b']]))
})

test('whole pages: random ones beside writers skip nothing and show nothing twice', async (t) => {
  const random = new Random(seeded(t).seed)
  const { port } = await startService(t)
  const END = THOROUGH ? 4000 : 320
  /** Ids that are certainly stored. */
  const stored = new Set<number>()
  const store = async (id: number): Promise<void> => {
    const length = random.chance(0.02) ? random.below(70_000) : random.below(20)
    assert.equal((await post(port, { id, name: `${id} ${'x'.repeat(length)}` })).status, 200)
    stored.add(id)
  }
  for (let id = 0; id < END; id += 8) await store(id)
  let isDone = false
  const writers = [1, 2, 3].map(async (offset) => {
    for (let id = offset; id < END && !isDone; id += 8) await store(id)
  })
  for (let walk = 0; walk < (THOROUGH ? 60 : 2); walk++) {
    const before = [...stored].sort((a, b) => a - b)
    const limit = 1 + random.small(1500)
    const found: number[] = []
    for await (const { names } of pagesOf(port, `?limit=${limit}`)) {
      assert.ok(names.length <= limit && names.length > 0, `${names.length}`)
      found.push(...names.map((name) => parseInt(name, 10)))
      if (random.chance(0.05)) break
    }
    assert.ok(
      found.every((id, at) => at === 0 || id > (found[at - 1] ?? id)),
      'ascending ids',
    )
    const [last, shown] = [found.at(-1) ?? -1, new Set(found)]
    const missing = before.filter((id) => id <= last && !shown.has(id))
    assert.deepEqual(missing, [], `walk ${walk} with limit ${limit}`)
  }
  isDone = true
  await Promise.all(writers)
  t.diagnostic(`beside ${stored.size - END / 8} creates`)
})

test('whole pages: one that waits is held until it ends, though its client has left', async (t) => {
  const { opened, open } = gate()
  let chunks = 0
  const list = () =>
    listFrom(async () => {
      if (chunks++ > 0) await opened
      return [{ name: 'x'.repeat(100_000) }]
    })
  const { port, responses, connections } = await startBare(t, { store: { list } })
  const wire = await Wire.to(port)
  wire.write(head('GET', `/plants?limit=${LIMIT_MAX}`))
  await until('it waits', () => chunks === 2)
  wire.socket.resetAndDestroy()
  await until('its client has left', () => connections.sockets.length === 0)
  assert.ok(responses.held >= 100_000, `${responses.held} bytes`)
  open()
  await until('nothing is held', () => responses.held === 0)
})

test('whole pages: empty chunks of a store are skipped, in a page and in a stream', async (t) => {
  const [fern, moss] = [[{ name: 'Fern' }], [{ name: 'Moss' }]]
  const both = [...fern, ...moss]
  for (const [chunks, expected] of [
    [[[], fern, [], [], moss, []], both],
    [[fern, [], moss], both],
    [[[], both], both],
    [[both, [], []], both],
    [[[], []], []],
  ] as const)
    for (const isAsync of [false, true]) {
      const list = (): PlantList => {
        const chunked = listOf(chunks)
        return isAsync ? { next: async () => chunked.next() } : chunked
      }
      const { port } = await startBare(t, { store: { list } })
      for (const query of ['', '?limit=9']) {
        const { status, text } = await call(port, { path: `/plants${query}` })
        assert.deepEqual([status, text], [200, JSON.stringify(expected)])
      }
    }
})
