import assert from 'node:assert/strict'
import { test } from 'node:test'
import { writeCursor } from '../../dist/api/cursor.js'
import { PageCache } from '../../dist/api/page-cache.js'
import type { HttpResponse } from '../../dist/http/response.js'
import { call, post } from '../support/http.ts'
import { seeded } from '../support/random.ts'
import { THOROUGH } from '../support/scale.ts'
import { startService } from '../support/service.ts'
import { token } from '../support/tokens.ts'
import { head, postBytes, Wire } from '../support/wire.ts'

const MIB = 1024 * 1024

function page(bytes: number): HttpResponse {
  return { status: 200, headers: [], body: Buffer.alloc(bytes) }
}

test('pages: the next list of an owner shows a new plant, whatever is cached', async (t) => {
  const { port } = await startService(t)
  const paths = ['/plants', '/plants?limit=2', '/plants?limit=1']
  const names: string[] = []
  for (let id = 1; id <= 5; id++) {
    names.push(`plant ${id}`)
    assert.equal((await post(port, { id, name: names.at(-1) })).status, 200)
    for (let again = 0; again < 2; again++) {
      for (const [i, limit] of [Infinity, 2, 1].entries()) {
        const { headers, json } = await call(port, { path: paths[i] ?? '' })
        assert.deepEqual(
          json(),
          names.slice(0, limit).map((name) => ({ name })),
        )
        assert.equal(headers['link'] !== undefined, limit < names.length)
      }
    }
  }
  assert.deepEqual((await call(port, { token: token('bob') })).json(), [])
})

interface Seen {
  readonly owner: string
  /** Times, by one counter for all clients. */
  readonly begun: number
  readonly ended: number
  readonly ids: ReadonlySet<number>
  /** The list shows every id up to this one that exists. */
  readonly known: number
}

/** True if `a` shows an id that `b` lacks, among those that `b` must show. */
function showsMore(a: Seen, b: Seen): boolean {
  return [...a.ids].some((id) => id <= b.known && !b.ids.has(id))
}

test('pages: concurrent creates and lists are linearizable, cached lists too', async (t) => {
  const { random } = seeded(t)
  const { port } = await startService(t, { logLevel: 'silent' })
  const below = (limit: number): number => Math.floor(random() * limit)
  const created: {
    readonly owner: string
    readonly id: number
    readonly begun: number
    ended: number
  }[] = []
  const lists: Seen[] = []
  let clock = 0
  const ids = Array.from({ length: 2000 }, (_, id) => id)
  const client = async (owner: string): Promise<void> => {
    const wire = await Wire.to(port)
    const bearer = token(owner)
    for (let requests = 0; requests < (THOROUGH ? 150 : 80); ) {
      const [before, answers] = [requests, [] as ((body: string) => void)[]]
      let bytes = ''
      const begun = clock++
      // Up to three are pipelined: they overlap for this client, but run in order.
      for (let left = 1 + below(3); left > 0; left--) {
        requests++
        if (below(3) === 0) {
          // The lowest id left, or any: on the first page, or after it.
          const id = ids.splice(below(2) * below(ids.length), 1)[0] ?? assert.fail()
          const create = { owner, id, begun, ended: Infinity }
          created.push(create)
          bytes += postBytes({ id, name: String(id) }, { token: bearer })
          answers.push(() => (create.ended = clock))
        } else {
          const limit = [Infinity, Infinity, 1, 3][below(4)] ?? Infinity
          bytes += head('GET', limit === Infinity ? '/plants' : `/plants?limit=${limit}`, {
            token: bearer,
          })
          answers.push((body) => {
            const found = (JSON.parse(body) as { readonly name: string }[]).map(({ name }) =>
              Number(name),
            )
            lists.push({
              owner,
              begun,
              ended: clock,
              ids: new Set(found),
              known: found.length === limit ? (found.at(-1) ?? 0) : Infinity,
            })
          })
        }
      }
      const found = (await wire.write(bytes).answers(requests)).slice(before)
      clock++
      for (const [at, { status, body }] of found.entries()) {
        assert.equal(status, 200)
        answers[at]?.(body)
      }
    }
    wire.destroy()
  }
  await Promise.all([
    ...Array.from({ length: 6 }, () => client('alice')),
    client('bob'),
    client('bob'),
  ])

  for (const [at, list] of lists.entries()) {
    const must = created.filter(
      ({ owner, id, ended }) => owner === list.owner && ended < list.begun && id <= list.known,
    )
    for (const { id } of must)
      assert.ok(list.ids.has(id), `${id} was acknowledged before and is missing`)
    const may = new Set(
      created
        .filter(({ owner, begun }) => owner === list.owner && begun <= list.ended)
        .map(({ id }) => id),
    )
    for (const id of list.ids)
      assert.ok(may.has(id), `${id} was not requested yet, or is another owner's`)
    for (const other of lists.slice(0, at)) {
      if (other.owner !== list.owner) continue
      const [more, less] = [showsMore(list, other), showsMore(other, list)]
      assert.ok(!(more && less), 'each of two lists shows what the other lacks')
      if (other.ended < list.begun)
        assert.ok(!less, 'a later list lacks what an earlier one showed')
      if (list.ended < other.begun)
        assert.ok(!more, 'a later list lacks what an earlier one showed')
    }
  }
})

test('pages: cached by owner and query, until the owner has a new plant', () => {
  const pages = new PageCache()
  const [one, two] = ['[1]', '[2]'].map((json) => ({ ...page(0), body: Buffer.from(json) }))
  assert.ok(one && two)
  pages.add('alice', 'limit=1', one)
  pages.add('bob', 'limit=1', two)
  assert.deepEqual(pages.get('alice', 'limit=1'), one)
  assert.deepEqual(pages.get('bob', 'limit=1'), two)
  assert.equal(pages.get('alice', ''), undefined)
  assert.equal(pages.get('Alice', 'limit=1'), undefined)
  pages.invalidate('alice', 1n)
  assert.equal(pages.get('alice', 'limit=1'), undefined)
  assert.deepEqual(pages.get('bob', 'limit=1'), two)
  pages.invalidate('bob', 1n)
  assert.equal(pages.bytes, 0)
})

test('pages: a page that is cut before a new plant stays, and no other', () => {
  const pages = new PageCache()
  pages.add('alice', '', page(1000))
  pages.add('alice', 'limit=1', page(10), -5n)
  pages.add('alice', 'limit=2', page(20), 7n)
  pages.add('alice', 'limit=3', page(30), 9n)
  const kept = (): readonly string[] =>
    ['', 'limit=1', 'limit=2', 'limit=3'].filter((query) => pages.get('alice', query))
  pages.invalidate('bob', -9n)
  assert.deepEqual(kept(), ['', 'limit=1', 'limit=2', 'limit=3'])
  pages.invalidate('alice', 10n)
  assert.deepEqual(kept(), ['limit=1', 'limit=2', 'limit=3'])
  pages.invalidate('alice', 8n)
  assert.deepEqual(kept(), ['limit=1', 'limit=2'])
  pages.invalidate('alice', 7n)
  assert.deepEqual(kept(), ['limit=1'])
  pages.invalidate('alice', -6n)
  assert.deepEqual(kept(), [])
  assert.equal(pages.bytes, 0)
})

test('pages: a page that is added twice counts once', () => {
  const pages = new PageCache()
  pages.add('alice', 'limit=1', page(10), 1n)
  const { bytes } = pages
  pages.add('alice', 'limit=1', page(10), 1n)
  assert.equal(pages.bytes, bytes)
  pages.invalidate('alice', 0n)
  assert.equal(pages.bytes, 0)
})

test('pages: whatever id comes next, each page is the one that the plants give', async (t) => {
  const { random } = seeded(t)
  const { port } = await startService(t, { logLevel: 'silent' })
  const ends = [-(2n ** 63n), 2n ** 63n - 1n, 0n]
  const ids: bigint[] = []
  for (let step = 0; step < (THOROUGH ? 400 : 60); step++) {
    const id = ends[step] ?? BigInt(Math.floor(random() * 2000) - 1000)
    const { status } = await post(port, `{"id":${id},"name":"plant ${id}"}`)
    assert.equal(status, 200)
    if (!ids.includes(id)) ids.push(id)
    ids.sort((a, b) => (a < b ? -1 : 1))
    for (const limit of [0, 1, 2, 5, 20, ids.length - 1, ids.length]) {
      const { headers, json } = await call(port, { path: `/plants?limit=${limit}` })
      const shown = ids.slice(0, limit)
      assert.deepEqual(
        json(),
        shown.map((each) => ({ name: `plant ${each}` })),
      )
      const last = limit < ids.length ? shown.at(-1) : undefined
      const link = `<?limit=${limit}&after=${writeCursor('alice', last ?? 0n)}>; rel="next"`
      assert.equal(headers['link'], last === undefined ? undefined : link)
    }
  }
})

test('pages: at most 16 MiB are cached; the oldest owners are evicted first', () => {
  const pages = new PageCache()
  for (let owner = 0; owner < 40; owner++) {
    pages.add(`owner ${owner}`, '', page(MIB - 1100))
    assert.ok(pages.bytes <= 16 * MIB)
  }
  assert.equal(pages.get('owner 0', ''), undefined)
  assert.ok(pages.get('owner 39', ''))
  pages.add('huge', '', page(16 * MIB))
  assert.equal(pages.get('huge', ''), undefined)
})

test('pages: evicted and invalidated in any order, the oldest owners go first', (t) => {
  const { random } = seeded(t)
  const pages = new PageCache()
  /** What is cached, the oldest first. Each entry takes 1 MiB with its overhead. */
  const model: string[] = []
  const remove = (at: number): void => void (at >= 0 && model.splice(at, 1))
  for (let step = 0; step < 5000; step++) {
    const owner = String.fromCharCode(97 + Math.floor(random() * 26))
    if (random() < 0.4) {
      pages.invalidate(owner, 0n)
      remove(model.indexOf(owner))
    } else {
      pages.add(owner, '', page(MIB - 1024 - 2 * owner.length))
      remove(model.indexOf(owner))
      model.push(owner)
      if (model.length > 16) model.shift()
    }
    const cached = [...'abcdefghijklmnopqrstuvwxyz'].filter((each) => pages.get(each, ''))
    assert.deepEqual(cached, model.toSorted())
  }
  for (const owner of model) pages.invalidate(owner, 0n)
  assert.equal(pages.bytes, 0)
})

test('pages: one owner has a sixteenth of the cache and evicts no other owner', () => {
  const pages = new PageCache()
  for (let owner = 0; owner < 5000; owner++) pages.add(`owner ${owner}`, '', page(1000))
  for (let limit = 0; limit < 1000; limit++) {
    pages.add('alice', `limit=${limit}`, page(100_000))
    assert.ok(pages.bytes <= 5000 * (1512 + 512 + 20) + MIB + 1024)
  }
  assert.ok(pages.get('alice', 'limit=999'))
  for (let owner = 0; owner < 5000; owner++) assert.ok(pages.get(`owner ${owner}`, ''))
  pages.add('bob', '', page(MIB - 511))
  assert.equal(pages.get('bob', ''), undefined, 'a page that is larger than a share')
})

test('pages: unusual spellings of a query and pages after a cursor are not cached', () => {
  const pages = new PageCache()
  for (const query of [
    'limit=1&x=2',
    'x',
    '&',
    'limit=%31',
    'after=abc',
    'limit=1&after=abc',
    'limit=00000000001',
  ]) {
    pages.add('alice', query, page(1))
    assert.equal(pages.get('alice', query), undefined, query)
  }
  assert.equal(pages.bytes, 0)
})

test('pages: a page keeps its own bytes, not the buffer that they are a part of', () => {
  const pages = new PageCache()
  for (let owner = 0; owner < 100; owner++) {
    pages.add(`owner ${owner}`, '', {
      status: 200,
      headers: [],
      body: Buffer.alloc(8192).subarray(0, 100),
    })
    const body = pages.get(`owner ${owner}`, '')?.body
    assert.ok(Buffer.isBuffer(body))
    assert.equal(body.buffer.byteLength, 100)
  }
})

test('pages: long names of owners count', () => {
  const pages = new PageCache()
  const name = 'é'.repeat(8800)
  for (let owner = 0; owner < 3000; owner++) {
    pages.add(`${owner} ${name}`, '', page(1))
    assert.ok(pages.bytes <= 16 * MIB)
  }
  // If only bodies counted, all 3,000 would be cached and hold 53 MB.
  assert.equal(pages.get(`0 ${name}`, ''), undefined)
  for (let owner = 0; owner < 3000; owner++) pages.invalidate(`${owner} ${name}`, 1n)
  assert.equal(pages.bytes, 0)
})
