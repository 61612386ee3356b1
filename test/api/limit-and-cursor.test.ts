import assert from 'node:assert/strict'
import { test } from 'node:test'
import { readCursor, writeCursor } from '../../dist/api/cursor.js'
import { call, post, type Reply } from '../support/http.ts'
import { startService } from '../support/service.ts'
import { token } from '../support/tokens.ts'
import { headerLines, verdict } from '../support/verdict.ts'
import { firstAnswer, head } from '../support/wire.ts'

interface Named {
  readonly name: string
}

/** The query of the next page, or undefined at the end. */
function nextOf(reply: Reply): string | undefined {
  const [link, second] = headerLines(reply, 'link')
  assert.equal(second, undefined)
  if (link === undefined) return undefined
  const query = /^<(\?limit=[0-9]+&after=[A-Za-z0-9_-]+)>; rel="next"$/.exec(link)?.[1]
  assert.ok(query !== undefined, link)
  return query
}

function namesOf(reply: Reply): string[] {
  assert.equal(verdict(reply), 200)
  // Other tests assert the shape.
  return (reply.json() as Named[]).map(({ name }) => name)
}

test('limit and cursor', async (t) => {
  const { port, dataDirectory, close } = await startService(t)
  const ids = [
    -(2n ** 63n),
    -(2n ** 53n) - 1n,
    -7n,
    -1n,
    0n,
    1n,
    2n,
    10n,
    2n ** 53n,
    2n ** 53n + 1n,
    2n ** 63n - 2n,
    2n ** 63n - 1n,
  ]
  for (const id of [...ids].reverse())
    assert.equal(verdict(await post(port, `{"id":${id},"name":"${id}"}`)), 200)
  const all = ids.map(String)
  const get = (query: string, bearer = token('alice')) =>
    call(port, { path: `/plants${query}`, token: bearer })
  const walk = async (target: number, query: string, bearer = token('alice')) => {
    const pages: string[][] = []
    for (let next: string | undefined = query; next !== undefined; ) {
      const reply: Reply = await call(target, { path: `/plants${next}`, token: bearer })
      pages.push(namesOf(reply))
      next = nextOf(reply)
    }
    return pages
  }

  await t.test('without parameters: the whole list, ascending by id, without a Link', async () => {
    const reply = await get('')
    assert.deepEqual([namesOf(reply), nextOf(reply)], [all, undefined])
  })

  await t.test('following the Links returns the whole list, for every page size', async () => {
    for (let limit = 1; limit <= all.length + 1; limit++) {
      const pages = await walk(port, `?limit=${limit}`)
      assert.deepEqual(pages.flat(), all)
      assert.deepEqual(
        pages.map(({ length }) => length),
        Array.from({ length: Math.ceil(all.length / limit) }, (_, at) =>
          Math.min(limit, all.length - at * limit),
        ),
      )
    }
  })

  await t.test('a limit that does not cut the list short has no Link', async () => {
    for (const limit of [all.length, all.length + 1, 2147483647]) {
      const reply = await get(`?limit=${limit}`)
      assert.deepEqual([namesOf(reply), nextOf(reply)], [all, undefined])
    }
    const none = await get('?limit=0')
    assert.deepEqual([none.text, nextOf(none)], ['[]', undefined])
  })

  await t.test('HEAD has the Link and the length of GET, and no body', async () => {
    const bytes = (method: string) => head(method, '/plants?limit=3')
    const [got, only] = [
      await firstAnswer(port, bytes('GET')),
      await firstAnswer(port, bytes('HEAD'), [0]),
    ]
    for (const name of ['link', 'content-length', 'content-type'])
      assert.deepEqual(headerLines(only, name), headerLines(got, name), name)
    assert.deepEqual([only.status, only.body], [200, ''])
  })

  await t.test('after without limit returns all the rest', async () => {
    for (const [at, id] of ids.entries()) {
      const reply = await get(`?after=${writeCursor('alice', id)}`)
      assert.deepEqual([namesOf(reply), nextOf(reply)], [all.slice(at + 1), undefined])
    }
    assert.equal((await get(`?limit=0&after=${writeCursor('alice', 0n)}`)).text, '[]')
  })

  await t.test('limits are 1 to 10 digits from 0 to 2147483647, once decoded', async () => {
    for (const [query, length] of [
      ['?limit=2147483647', 12],
      ['?limit=0000000002', 2],
      ['?limit=%32', 2],
      ['?%6cimit=2', 2],
      ['?x=1&limit=2&y', 2],
      ['?limit=2&', 2],
      ['?Limit=x', 12],
      ['?', 12],
      ['?limi=x&after2', 12],
      ['??limit=2', 12],
    ] as const) {
      assert.equal(namesOf(await get(query)).length, length, query)
    }
    for (const query of [
      '?limit=2147483648',
      '?limit=9999999999',
      '?limit=00000000002',
      '?limit=-1',
      '?limit=+1',
      '?limit=%2B1',
      '?limit=1.0',
      '?limit=1e1',
      '?limit=0x1',
      '?limit=',
      '?limit',
      '?limit=%20',
      '?limit=1%20',
      '?limit=%201',
      '?limit=a',
      '?limit=null',
      '?limit=1&limit=1',
      '?limit=1&%6cimit=1',
      '?limit=1&limit',
      '?limit=%',
      '?limit=%zz',
      '?limit=1%00',
      '?limit=%D9%A1',
      '?limit=1%0A',
      '?limit=-0',
      '?limit=NaN',
      '?limit=Infinity',
      '?limit=1,2',
      '?limit[]=1&limit=[]',
    ]) {
      assert.equal(verdict(await get(query)), 'limitInvalid', query)
    }
  })

  await t.test('an invalid cursor is refused', async () => {
    const good = writeCursor('alice', 0n)
    const bytes = Buffer.from(good, 'base64url')
    const flipped = [...bytes.keys()].map((at) =>
      Buffer.from(bytes.map((byte, i) => (i === at ? byte ^ 1 : byte))).toString('base64url'),
    )
    for (const cursor of [
      '',
      'x',
      good.slice(1),
      `${good}A`,
      `${good}=`,
      `${good}%3D`,
      `%20${good}`,
      good.toLowerCase(),
      Buffer.concat([bytes, Buffer.alloc(1)]).toString('base64url'),
      bytes.toString('hex'),
      '0',
      '-1',
      ...flipped,
      writeCursor('bob', 0n),
      writeCursor('', 0n),
      writeCursor('alice ', 0n),
      'A'.repeat(10_000),
      `${good}&after=${good}`,
      `${good}&after=`,
      '%00',
      '%ff',
      // Four bits of the last character have no meaning: only one spelling is valid.
      ...[...'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_']
        .map((last) => good.slice(0, -1) + last)
        .filter((cursor) => cursor !== good),
    ]) {
      assert.equal(verdict(await get(`?after=${cursor}`)), 'afterInvalid', cursor.slice(0, 40))
    }
    assert.equal(verdict(await get('?after')), 'afterInvalid')
    assert.equal(verdict(await get(`?limit=x&after=${good}`)), 'limitInvalid')
    assert.equal(verdict(await get(`?limit=1&after=${good}`, token('bob'))), 'afterInvalid')
    assert.equal(verdict(await get(`?limit=1&after=${good}`)), 200)
  })

  await t.test('a walk lists new plants ahead of its cursor once, and none before it', async () => {
    const bearer = token('carol')
    for (const id of [10, 20, 30]) await post(port, { id, name: String(id) }, { token: bearer })
    const first = await get('?limit=2', bearer)
    assert.deepEqual(namesOf(first), ['10', '20'])
    for (const id of [5, 15, 25]) await post(port, { id, name: String(id) }, { token: bearer })
    assert.deepEqual((await walk(port, nextOf(first) ?? '', bearer)).flat(), ['25', '30'])
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
