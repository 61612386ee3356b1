import assert from 'node:assert/strict'
import { test } from 'node:test'
import { writeCursor } from '../../dist/api/cursor.js'
import { PageCache } from '../../dist/api/page-cache.js'
import type { HttpResponse } from '../../dist/http/response.js'
import { listOf, startBare } from '../support/bare.ts'
import { call, post } from '../support/http.ts'
import { Random, seeded } from '../support/random.ts'
import { THOROUGH } from '../support/scale.ts'
import { startService } from '../support/service.ts'
import { token } from '../support/tokens.ts'
import { head, postBytes, Wire } from '../support/wire.ts'

const MIB = 1024 * 1024

function page(bytes: number): HttpResponse {
  return { status: 200, headers: [], body: Buffer.alloc(bytes) }
}

interface Create {
  readonly owner: string
  readonly id: number
  /** Times, by one counter for all clients. */
  readonly begun: number
  ended: number
}

interface Seen extends Omit<Create, 'id'> {
  readonly ids: ReadonlySet<number>
  /** The list shows every id up to this one that exists. */
  readonly known: number
}

/** True if `a` shows an id that `b` lacks, among those that `b` must show. */
function showsMore(a: Seen, b: Seen): boolean {
  return [...a.ids].some((id) => id <= b.known && !b.ids.has(id))
}

test('pages: concurrent creates and lists are linearizable, cached lists too', async (t) => {
  const random = new Random(seeded(t).seed)
  const { port } = await startService(t, { logLevel: 'silent' })
  const created: Create[] = []
  const lists: Seen[] = []
  let clock = 0
  const ids = Array.from({ length: 2000 }, (_, id) => id)
  /** The bytes of a request, and what its response says. */
  const create = (owner: string, begun: number) => {
    // The lowest id left, or any: on the first page, or after it.
    const id = ids.splice(random.below(2) * random.below(ids.length), 1)[0] ?? assert.fail()
    const one = { owner, id, begun, ended: Infinity }
    created.push(one)
    const bytes = postBytes({ id, name: String(id) }, { token: token(owner) })
    return { bytes, read: () => (one.ended = clock) }
  }
  const list = (owner: string, begun: number) => {
    const limit = random.pick([Infinity, Infinity, 1, 3])
    const target = limit === Infinity ? '/plants' : `/plants?limit=${limit}`
    const read = (body: string) => {
      const plants = JSON.parse(body) as { readonly name: string }[]
      const found = plants.map(({ name }) => Number(name))
      const known = found.length === limit ? (found.at(-1) ?? 0) : Infinity
      lists.push({ owner, begun, ended: clock, ids: new Set(found), known })
    }
    return { bytes: head('GET', target, { token: token(owner) }), read }
  }
  const client = async (owner: string): Promise<void> => {
    const wire = await Wire.to(port)
    for (let before = 0; before < (THOROUGH ? 150 : 25); ) {
      const begun = clock++
      // Up to three are pipelined: they overlap for this client, but run in order.
      const batch = Array.from({ length: 1 + random.below(3) }, () =>
        random.chance(1 / 3) ? create(owner, begun) : list(owner, begun),
      )
      wire.write(batch.map(({ bytes }) => bytes).join(''))
      const answers = (await wire.answers(before + batch.length)).slice(before)
      clock++
      for (const [at, { status, body }] of answers.entries()) {
        assert.equal(status, 200)
        batch[at]?.read(body)
      }
      before += batch.length
    }
  }
  const owners = [...Array<string>(6).fill('alice'), 'bob', 'bob']
  await Promise.all(owners.map(client))

  for (const [at, seen] of lists.entries()) {
    const own = created.filter(({ owner }) => owner === seen.owner)
    for (const { id, ended } of own)
      assert.ok(
        ended >= seen.begun || id > seen.known || seen.ids.has(id),
        `${id} was acknowledged before and is missing`,
      )
    const may = new Set(own.filter(({ begun }) => begun <= seen.ended).map(({ id }) => id))
    for (const id of seen.ids)
      assert.ok(may.has(id), `${id} was not requested yet, or is another owner's`)
    for (const other of lists.slice(0, at)) {
      if (other.owner !== seen.owner) continue
      const [more, less] = [showsMore(seen, other), showsMore(other, seen)]
      assert.ok(!(more && less), 'each of two lists shows what the other lacks')
      const isWrong = (less && other.ended < seen.begun) || (more && seen.ended < other.begun)
      assert.ok(!isWrong, 'a later list lacks what an earlier one showed')
    }
  }
})

test('pages: a page that is cut before a new plant stays, and no other', () => {
  const pages = new PageCache()
  const queries = ['', 'limit=1', 'limit=2', 'limit=3']
  for (const [at, next] of [undefined, -5n, 7n, 9n].entries())
    pages.add('alice', queries[at] ?? '', page(10 * at), next)
  for (const [owner, id, first, end] of [
    ['bob', -9n, 0, 4],
    ['alice', 10n, 1, 4],
    ['alice', 8n, 1, 3],
    ['alice', 7n, 1, 2],
    ['alice', -6n, 0, 0],
  ] as const) {
    pages.invalidate(owner, id)
    const kept = queries.filter((query) => pages.get('alice', query))
    assert.deepEqual(kept, queries.slice(first, end), `after ${owner} ${id}`)
  }
})

test('pages: a page that is added twice counts once', () => {
  const pages = new PageCache()
  pages.add('alice', '', page(1))
  for (let time = 0; time < 100; time++) pages.add('alice', 'limit=1', page(100_000))
  assert.ok(pages.get('alice', ''))
})

test('pages: whatever id comes next, each page is the one that the plants give', async (t) => {
  const random = new Random(seeded(t).seed)
  const { port } = await startService(t, { logLevel: 'silent' })
  const ends = [-(2n ** 63n), 2n ** 63n - 1n, 0n]
  const ids: bigint[] = []
  for (let step = 0; step < (THOROUGH ? 400 : 12); step++) {
    const id = ends[step] ?? BigInt(random.below(2000) - 1000)
    assert.equal((await post(port, `{"id":${id},"name":"plant ${id}"}`)).status, 200)
    if (!ids.includes(id)) ids.push(id)
    ids.sort((a, b) => (a < b ? -1 : 1))
    // The second one may be cached.
    for (const limit of [0, 1, 1, 2, 5, 20, ids.length - 1, ids.length, Infinity, Infinity]) {
      const path = limit === Infinity ? '/plants' : `/plants?limit=${limit}`
      const { headers, json } = await call(port, { path })
      const shown = ids.slice(0, limit)
      const plants = shown.map((each) => ({ name: `plant ${each}` }))
      assert.deepEqual(json(), plants)
      const last = limit < ids.length ? shown.at(-1) : undefined
      const link = `<plants?limit=${limit}&after=${writeCursor('alice', last ?? 0n)}>; rel="next"`
      assert.equal(headers['link'], last === undefined ? undefined : link)
    }
  }
})

test('pages: added and invalidated in any order, they are what was added, and fit', (t) => {
  const random = new Random(seeded(t).seed)
  const pages = new PageCache()
  const owners = [...'abcdefghijklmnopqrstuvwxyz']
  const model = new Map<string, HttpResponse>()
  for (let step = 0; step < (THOROUGH ? 5000 : 60); step++) {
    const owner = owners[random.below(owners.length)] ?? ''
    if (random.chance(0.4)) {
      pages.invalidate(owner, 0n)
      model.delete(owner)
    } else if (!pages.get(owner, '')) {
      const response = { ...page(MIB - 1024 - 4 * owner.length), status: step }
      pages.add(owner, '', response)
      model.set(owner, response)
      assert.equal(pages.get(owner, '')?.status, step)
    }
    const all = owners.map((each) => [model.get(each)?.status, pages.get(each, '')?.status])
    const kept = all.filter(([, status]) => status !== undefined)
    for (const [added, status] of kept) assert.equal(status, added)
    assert.ok(kept.length <= 16)
  }
  // What was invalidated does not count any more.
  for (const owner of owners) pages.invalidate(owner, 0n)
  for (const owner of owners) pages.add(owner, '', page(MIB - 1028))
  const newest = owners.slice(-8).reverse()
  assert.ok(newest.every((owner) => pages.get(owner, '')))
})

test('pages: one owner has a sixteenth of the cache and evicts no other owner', () => {
  const pages = new PageCache()
  for (let owner = 0; owner < 2500; owner++) pages.add(`owner ${owner}`, '', page(1000))
  // More than the whole cache.
  const limits = Array.from({ length: 200 }, (_, limit) => `limit=${limit}`)
  for (const limit of limits) pages.add('alice', limit, page(100_000))
  assert.ok(limits.filter((limit) => pages.get('alice', limit)).length * 100_000 <= MIB)
  assert.ok(pages.get('alice', 'limit=199'))
  for (let owner = 0; owner < 2500; owner++) assert.ok(pages.get(`owner ${owner}`, ''))
  pages.add('bob', '', page(MIB - 511))
  assert.equal(pages.get('bob', ''), undefined, 'a page that is larger than a share')
})

test('pages: an owner has 16 pages: a create looks at each', () => {
  const pages = new PageCache()
  const cached = (): number => {
    const queries = Array.from({ length: 100 }, (_, limit) => `limit=${limit}`)
    return queries.filter((query) => pages.get('alice', query)).length
  }
  for (let limit = 0; limit < 16; limit++) pages.add('alice', `limit=${limit}`, page(1), -1n)
  assert.equal(cached(), 16)
  for (let limit = 16; limit < 100; limit++) pages.add('alice', `limit=${limit}`, page(1), -1n)
  assert.ok(cached() <= 16 && pages.get('alice', 'limit=99'))
})

test('pages: unusual spellings of a query and pages after a cursor are not cached', () => {
  const pages = new PageCache()
  const unusual = ['limit=1&x=2', 'x', '&', 'limit=%31', 'limit=00000000001']
  for (const query of [...unusual, 'after=abc', 'limit=1&after=abc']) {
    pages.add('alice', query, page(1))
    assert.equal(pages.get('alice', query), undefined, query)
  }
})

test('pages: a page keeps its own bytes, not the buffer that they are a part of', () => {
  const pages = new PageCache()
  const body = Buffer.alloc(8192).subarray(0, 100)
  pages.add('alice', '', { ...page(0), body })
  const kept = pages.get('alice', '')?.body
  assert.ok(Buffer.isBuffer(kept) && kept !== body)
  assert.equal(kept.buffer.byteLength, 100)
})

test('pages: long names of owners count', () => {
  const pages = new PageCache()
  const name = 'é'.repeat(8800)
  const owners = Array.from({ length: 3000 }, (_, owner) => `${owner} ${name}`)
  for (const owner of owners) pages.add(owner, '', page(1))
  // If only bodies counted, all 3,000 would be cached and hold 53 MB.
  const kept = owners.filter((owner) => pages.get(owner, ''))
  assert.ok(kept.length * 2 * name.length <= 16 * MIB)
})

test('pages: a list of a store that others write to is not cached', async (t) => {
  for (const isShared of [false, true]) {
    let lists = 0
    const list = () => listOf([[{ name: String(++lists) }]])
    const { port } = await startBare(t, { store: { isShared, list } })
    for (const _ of [1, 2, 3]) assert.equal((await call(port)).status, 200)
    assert.equal(lists, isShared ? 3 : 1)
  }
})
