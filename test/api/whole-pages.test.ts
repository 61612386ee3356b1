import assert from 'node:assert/strict'
import { setImmediate as nextTick } from 'node:timers/promises'
import { test } from 'node:test'
import { listFrom, startBare } from '../support/bare.ts'
import { call, type Reply, post } from '../support/http.ts'
import { Random, seeded } from '../support/random.ts'
import { startService } from '../support/service.ts'
import { until } from '../support/time.ts'
import { head, Wire } from '../support/wire.ts'

/*
 * A page is made whole before it is sent: at most `limit` plants and 8 MiB, but at least one plant.
 * If more follow, it has a Link.
 */

const PAGE_MAX_BYTES = 8 * 1024 * 1024
const LIMIT_MAX = 2 ** 31 - 1

interface Page {
  readonly names: readonly string[]
  /** The path of the next page. */
  readonly next: string | undefined
}

function pageOf({ status, headers, text }: Reply): Page {
  assert.equal(status, 200)
  assert.equal(Number(headers['content-length']), Buffer.byteLength(text))
  const query = /^<(\?.*)>; rel="next"$/.exec(String(headers['link'] ?? ''))?.[1]
  // The interface: an array of plants.
  const plants = JSON.parse(text) as { readonly name: string }[]
  return { names: plants.map(({ name }) => name), next: query && `/plants${query}` }
}

test('whole pages: the greatest limit gives pages of 8 MiB, together the list', async (t) => {
  const { port } = await startService(t)
  const all = Array.from({ length: 30 }, (_, id) => `${id} ${'x'.repeat(330_000 + id)}`)
  for (const [id, name] of all.entries()) assert.equal((await post(port, { id, name })).status, 200)
  const found: string[] = []
  let pages = 0
  for (let path: string | undefined = `/plants?limit=${LIMIT_MAX}`; path; pages++) {
    const reply = await call(port, { path })
    const { names, next } = pageOf(reply)
    const longest = Math.max(...names.map(({ length }) => length))
    assert.ok(reply.text.length <= PAGE_MAX_BYTES, `${reply.text.length} bytes`)
    if (next) assert.ok(reply.text.length + longest + 100 > PAGE_MAX_BYTES, 'it has room for more')
    found.push(...names)
    path = next
  }
  assert.deepEqual(found, all)
  assert.equal(pages, 2)
})

test('whole pages: a plant that is longer than a page is one', async (t) => {
  const { port } = await startService(t, { maxBodyBytes: 16 * 2 ** 20 })
  const name = 'x'.repeat(16 * 2 ** 20 - 100)
  for (const [id, text] of ['a', name, 'b'].entries())
    assert.equal((await post(port, { id, name: text })).status, 200)
  const lengths: number[][] = []
  for (let path: string | undefined = '/plants?limit=10'; path; ) {
    const { names, next } = pageOf(await call(port, { path }))
    lengths.push(names.map(({ length }) => length))
    path = next
  }
  assert.deepEqual(lengths, [[1], [name.length], [1]])
})

test('whole pages: random ones beside writers skip nothing and show nothing twice', async (t) => {
  const { seed, random } = seeded(t)
  const { port } = await startService(t)
  const END = 4000
  /** Ids that are certainly stored. */
  const stored = new Set<number>()
  const names = new Random(seed)
  const create = async (id: number): Promise<void> => {
    const name = `${id} ${'x'.repeat(names.chance(0.02) ? names.below(70_000) : names.below(20))}`
    assert.equal((await post(port, { id, name })).status, 200)
    stored.add(id)
  }
  for (let id = 0; id < END; id += 8) await create(id)
  let isDone = false
  const writers = [1, 2, 3].map(async (offset) => {
    for (let id = offset; id < END && !isDone; id += 8) await create(id)
  })
  let count = 0
  for (let walk = 0; walk < 60; walk++) {
    const before = [...stored].sort((a, b) => a - b)
    const limit = 1 + Math.floor(random() ** 3 * 1500)
    const found: number[] = []
    for (let path: string | undefined = `/plants?limit=${limit}`; path; count++) {
      const page = pageOf(await call(port, { path }))
      assert.ok(page.names.length <= limit && page.names.length > 0, `${page.names.length}`)
      found.push(...page.names.map((name) => parseInt(name, 10)))
      path = random() < 0.05 ? undefined : page.next
    }
    assert.ok(found.every((id, at) => at === 0 || id > (found[at - 1] ?? id)), 'ascending ids')
    const last = found.at(-1) ?? -1
    const shown = new Set(found)
    const missing = before.filter((id) => id <= last && !shown.has(id))
    assert.deepEqual(missing, [], `walk ${walk} with limit ${limit}`)
  }
  isDone = true
  await Promise.all(writers)
  t.diagnostic(`${count} pages beside ${stored.size - END / 8} creates`)
})

test('whole pages: one whose client has left is made no further, and holds nothing', async (t) => {
  let chunks = 0
  const { port, responses, connections } = await startBare(t, {
    store: {
      list: () =>
        listFrom(async () => {
          chunks++
          await nextTick()
          return [{ name: 'x'.repeat(10_000) }]
        }),
    },
  })
  for (let round = 0; round < 20; round++) {
    const before = chunks
    const wire = await Wire.to(port)
    wire.write(head('GET', `/plants?limit=${LIMIT_MAX}`))
    await until('the page has begun', () => chunks > before + 10)
    wire.destroy()
    await until('its client has left', () => connections.size === 0)
    await until('nothing is held', () => responses.held === 0)
    const after = chunks
    for (let tick = 0; tick < 50; tick++) await nextTick()
    assert.ok(chunks <= after + 1, `${chunks - after} more chunks`)
  }
})
