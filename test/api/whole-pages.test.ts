import assert from 'node:assert/strict'
import { test } from 'node:test'
import { isDeepStrictEqual } from 'node:util'
import type { PlantList } from '../../dist/plants/store.js'
import { listFrom, listOf, startBare } from '../support/bare.ts'
import { call, type Reply, post } from '../support/http.ts'
import { startService } from '../support/service.ts'
import { gate, until } from '../support/time.ts'
import { head, Wire } from '../support/wire.ts'

/*
 * A page is made whole before it is sent: at most `limit` plants and 8 MiB, but at least one plant.
 * If more follow, it has a Link.
 */

const PAGE_MAX_BYTES = 8 * 1024 * 1024
const LIMIT_MAX = 2 ** 31 - 1

interface Page {
  readonly bytes: number
  readonly names: readonly string[]
  readonly isLast: boolean
}

/** Follows the pages of a list from its first query on. */
async function* pagesOf(port: number, first: string): AsyncGenerator<Page> {
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

test('whole pages: a plant that is longer than a page is one', async (t) => {
  const { port } = await startService(t, { maxBodyBytes: 2 * PAGE_MAX_BYTES })
  const name = 'x'.repeat(PAGE_MAX_BYTES)
  await create(port, ['a', name, 'b'])
  const found: string[][] = []
  for await (const { names } of pagesOf(port, '?limit=10')) found.push([...names])
  assert.ok(isDeepStrictEqual(found, [['a'], [name], ['b']]))
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
