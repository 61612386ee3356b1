import assert from 'node:assert/strict'
import { test } from 'node:test'
import { readCursor, writeCursor } from '../../dist/api/cursor.js'
import { call, post, type Reply } from '../support/http.ts'
import { startService } from '../support/service.ts'
import { token } from '../support/tokens.ts'
import { headerLines, verdict } from '../support/verdict.ts'

/** The query of the next page, or undefined at the end. */
function nextOf(reply: Reply): string | undefined {
  const [link, second] = headerLines(reply, 'link')
  assert.equal(second, undefined)
  if (link === undefined) return undefined
  const query = /^<plants(\?limit=[0-9]+&after=[A-Za-z0-9_-]+)>; rel="next"$/.exec(link)?.[1]
  assert.ok(query !== undefined, link)
  return query
}

function namesOf(reply: Reply): string[] {
  assert.equal(verdict(reply), 200)
  // Other tests assert the shape.
  return (reply.json() as { readonly name: string }[]).map(({ name }) => name)
}

test('limit and cursor', async (t) => {
  const { port, dataDirectory, close } = await startService(t)
  const ids = [
    [-(2n ** 63n), -(2n ** 53n) - 1n, -7n, -1n, 0n, 1n, 2n, 10n],
    [2n ** 53n, 2n ** 53n + 1n, 2n ** 63n - 2n, 2n ** 63n - 1n],
  ].flat()
  for (const id of [...ids].reverse())
    assert.equal(verdict(await post(port, `{"id":${id},"name":"${id}"}`)), 200)
  const all = ids.map(String)
  const get = (query: string, bearer = token('alice')) =>
    call(port, { path: `/plants${query}`, token: bearer })
  const walk = async (target: number, query: string) => {
    const pages: string[][] = []
    for (let next: string | undefined = query; next !== undefined; ) {
      const reply: Reply = await call(target, { path: `/plants${next}` })
      pages.push(namesOf(reply))
      next = nextOf(reply)
    }
    return pages
  }

  await t.test('following the Links returns the whole list, for every page size', async () => {
    for (let limit = 1; limit <= all.length + 1; limit++) {
      const pages = await walk(port, `?limit=${limit}`)
      assert.deepEqual(pages.flat(), all)
      assert.equal(pages.length, Math.ceil(all.length / limit))
      assert.ok(pages.slice(0, -1).every(({ length }) => length === limit))
    }
  })

  await t.test('after without limit returns all the rest', async () => {
    for (const [at, id] of ids.entries()) {
      const reply = await get(`?after=${writeCursor('alice', id)}`)
      assert.deepEqual([namesOf(reply), nextOf(reply)], [all.slice(at + 1), undefined])
    }
    assert.equal((await get(`?limit=0&after=${writeCursor('alice', 0n)}`)).text, '[]')
  })

  await t.test('limits are 1 to 10 digits from 0 to 2147483647, once decoded', async () => {
    const none = ['?Limit=x', '?', '?limi=x&after2', '??limit=2', '?limit=2147483647']
    for (const query of none) assert.deepEqual(namesOf(await get(query)), all, query)
    const two = ['0000000002', '%32', '2&', '2&y'].map((text) => `?limit=${text}`)
    for (const query of [...two, '?%6cimit=2', '?x=1&limit=2&y'])
      assert.equal(namesOf(await get(query)).length, 2, query)
    for (const text of [
      ['=2147483648', '=9999999999', '=00000000002', '=-1', '=+1', '=%2B1', '=1.0', '=1e1'],
      ['=0x1', '=', '', '=%20', '=1%20', '=%201', '=a', '=null', '=%', '=%zz', '=1%00'],
      ['=%D9%A1', '=1%0A', '=-0', '=NaN', '=Infinity', '=1,2', '[]=1&limit=[]'],
      ['=1&limit=1', '=1&%6cimit=1', '=1&limit'],
    ].flat())
      assert.equal(verdict(await get(`?limit${text}`)), 'limitInvalid', text)
  })

  await t.test('an invalid cursor is refused', async () => {
    const good = writeCursor('alice', 0n)
    const bytes = Buffer.from(good, 'base64url')
    const flipped = [...bytes.keys()].map((at) =>
      Buffer.from(bytes.map((byte, i) => (i === at ? byte ^ 1 : byte))).toString('base64url'),
    )
    // Four bits of the last character have no meaning: only one spelling is valid.
    const digits = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_'
    const spellings = [...digits].map((last) => good.slice(0, -1) + last)
    for (const cursor of [
      ['', 'x', '0', '-1', '%00', '%ff', 'A'.repeat(10_000), bytes.toString('hex')],
      [good.slice(1), `${good}A`, `${good}=`, `${good}%3D`, `%20${good}`, good.toLowerCase()],
      [Buffer.concat([bytes, Buffer.alloc(1)]).toString('base64url'), ...flipped],
      ['bob', '', 'alice '].map((owner) => writeCursor(owner, 0n)),
      [`${good}&after=${good}`, `${good}&after=`],
      spellings.filter((cursor) => cursor !== good),
    ].flat())
      assert.equal(verdict(await get(`?after=${cursor}`)), 'afterInvalid', cursor.slice(0, 40))
    assert.equal(verdict(await get('?after')), 'afterInvalid')
    assert.equal(verdict(await get(`?limit=x&after=${good}`)), 'limitInvalid')
    assert.equal(verdict(await get(`?limit=1&after=${good}`, token('bob'))), 'afterInvalid')
    assert.equal(verdict(await get(`?limit=1&after=${good}`)), 200)
  })

  await t.test('a cursor is valid after a restart', async () => {
    const first = await get('?limit=5')
    await close()
    const again = await startService(t, { data: dataDirectory })
    assert.deepEqual((await walk(again.port, nextOf(first) ?? '')).flat(), all.slice(5))
    await again.close()
  })
})

test('cursor: the format is fixed, so instances of two versions can serve together', () => {
  const written = [
    ['alice', 7n, 'AQAAAAAAAAAHXE-pbpA72T8'],
    ['Zoë 🌱', -(2n ** 63n), 'AYAAAAAAAAAAe7Br5gJIpSk'],
    ['a\u0000b', 2n ** 63n - 1n, 'AX__________Bqu-aADeAfY'],
  ] as const
  for (const [owner, id, cursor] of written) {
    assert.equal(writeCursor(owner, id), cursor)
    assert.equal(readCursor(owner, cursor), id)
    assert.equal(readCursor(`${owner} `, cursor), undefined)
  }
})
