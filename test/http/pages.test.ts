import assert from 'node:assert/strict'
import { test } from 'node:test'
import { RememberedPages } from '../../dist/http/pages.js'
import { type Answer, jsonAnswer } from '../../dist/http/respond.js'
import { call, post } from '../support/http.ts'
import { startService } from '../support/service.ts'
import { token } from '../support/tokens.ts'

const MIB = 1024 * 1024

function page(bytes: number): Answer {
  return { status: 200, headers: [], body: Buffer.alloc(bytes) }
}

test('a create is seen by the very next list of its owner, whatever was listed before', async (t) => {
  const { port } = await startService(t)
  const paths = ['/plants', '/plants?limit=2', '/plants?limit=1']
  const names: string[] = []
  for (let id = 1; id <= 5; id++) {
    names.push(`plant ${id}`)
    assert.equal((await post(port, { id, name: names.at(-1) })).status, 200)
    for (let again = 0; again < 2; again++) {
      for (const [i, limit] of [Infinity, 2, 1].entries()) {
        const { headers, json } = await call(port, { path: paths[i] ?? '' })
        assert.deepEqual(json(), names.slice(0, limit).map((name) => ({ name })))
        assert.equal(headers['link'] !== undefined, limit < names.length)
      }
    }
  }
  assert.deepEqual((await call(port, { token: token('bob') })).json(), [])
})

test('pages: an answer is given again for the same owner and query only, until that owner is forgotten', () => {
  const pages = new RememberedPages()
  const [one, two] = [jsonAnswer(200, [1]), jsonAnswer(200, [2])]
  pages.add('alice', 'limit=1', one)
  pages.add('bob', 'limit=1', two)
  assert.equal(pages.get('alice', 'limit=1'), one)
  assert.equal(pages.get('bob', 'limit=1'), two)
  assert.equal(pages.get('alice', ''), undefined)
  assert.equal(pages.get('Alice', 'limit=1'), undefined)
  pages.forget('alice')
  assert.equal(pages.get('alice', 'limit=1'), undefined)
  assert.equal(pages.get('bob', 'limit=1'), two)
  pages.forget('bob')
  assert.equal(pages.bytes, 0)
})

test('pages: never more than 16 MiB are kept, and the oldest owners go first', () => {
  const pages = new RememberedPages()
  for (let owner = 0; owner < 40; owner++) {
    pages.add(`owner ${owner}`, '', page(MIB))
    assert.ok(pages.bytes <= 16 * MIB)
  }
  assert.equal(pages.get('owner 0', ''), undefined)
  assert.ok(pages.get('owner 39', ''))
  pages.add('huge', '', page(16 * MIB))
  assert.equal(pages.get('huge', ''), undefined)
})

test('pages: one owner keeps at most 64, and unusual spellings of a query are not kept', () => {
  const pages = new RememberedPages()
  pages.add('bob', '', page(1))
  for (let limit = 0; limit < 1000; limit++) pages.add('alice', `limit=${limit}`, page(1))
  assert.ok(pages.bytes <= 65 * 1024)
  assert.ok(pages.get('alice', 'limit=999'))
  assert.ok(pages.get('bob', ''))
  for (const query of ['limit=1&x=2', 'x', '&', 'limit=%31', 'after=abc', `limit=1&after=${'a'.repeat(33)}`]) {
    pages.add('alice', query, page(1))
    assert.equal(pages.get('alice', query), undefined, query)
  }
})
